//! File operations by system calls, on any directory: on tmpfs a baseline, elsewhere what is measured.

use super::pages;
use crate::BenchError;
use crate::samples::{gbps, ns_per_op};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const MIB: usize = 1 << 20;

/// `ns` the cheapest system call takes.
pub fn system_call(ops: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..ops {
        std::hint::black_box(rustix::process::getppid());
    }
    start.elapsed().as_nanos() as f64 / ops as f64
}

/// A file all of whose bytes are written; removed at the end.
pub struct BigFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl BigFile {
    /// Of `len` bytes, a multiple of 1 MiB, in `dir`.
    pub fn new(dir: &Path, len: u64) -> Result<BigFile, BenchError> {
        let path = dir.join(format!("polvo-bench-{}.big", std::process::id()));
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path)?;
        let big = BigFile { path, file, len };
        big.write_sequentially()?;
        Ok(big)
    }

    /// `ns` a 4 KiB `pread` of a random page.
    pub fn read_random_pages(&self, ops: usize) -> Result<f64, BenchError> {
        let mut page = [0u8; 4096];
        let mut at = pages(self.len, ops);
        Ok(ns_per_op(ops, |_| {
            self.file
                .read_exact_at(&mut page, at.next().expect("a page an operation"))
        })?)
    }

    /// `ns` a 4 KiB `pwrite` to a random page; with `durable` followed by `fdatasync`.
    pub fn write_random_pages(&self, ops: usize, durable: bool) -> Result<f64, BenchError> {
        let page = [3u8; 4096];
        let mut at = pages(self.len, ops);
        Ok(ns_per_op(ops, |_| {
            self.file.write_all_at(&page, at.next().expect("a page an operation"))?;
            if durable { self.file.sync_data() } else { Ok(()) }
        })?)
    }

    /// GB/s of reading it in pieces of 1 MiB.
    pub fn read_sequentially(&self) -> Result<f64, BenchError> {
        let mut chunk = vec![0u8; MIB];
        let start = Instant::now();
        for at in (0..self.len).step_by(MIB) {
            self.file.read_exact_at(&mut chunk, at)?;
        }
        Ok(gbps(start.elapsed(), self.len))
    }

    /// GB/s of writing it in pieces of 1 MiB, with one `fdatasync` at the end.
    pub fn write_sequentially(&self) -> Result<f64, BenchError> {
        let chunk = vec![1u8; MIB];
        let start = Instant::now();
        for at in (0..self.len).step_by(MIB) {
            self.file.write_all_at(&chunk, at)?;
        }
        self.file.sync_data()?;
        Ok(gbps(start.elapsed(), self.len))
    }
}

impl Drop for BigFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What [`names`] measures, in its order.
pub const NAME_OPERATIONS: [&str; 3] = ["create", "stat", "unlink"];

/// Creates, stats and unlinks of empty files a second, in a directory of its own below `dir`.
pub fn names(dir: &Path, ops: usize) -> Result<[f64; 3], BenchError> {
    let dir = dir.join(format!("polvo-bench-{}.names", std::process::id()));
    std::fs::create_dir(&dir)?;
    let names: Vec<_> = (0..ops).map(|i| dir.join(format!("f{i}"))).collect();
    let mut made = 0;
    let per_second = |ns: f64| 1e9 / ns;
    let measured = (|| {
        let create = ns_per_op(ops, |i| {
            made = i + 1;
            OpenOptions::new()
                .create_new(true)
                .write(true)
                .open(&names[i])
                .map(drop)
        })?;
        let stat = ns_per_op(made, |i| {
            std::hint::black_box(std::fs::symlink_metadata(&names[i])?);
            Ok::<_, std::io::Error>(())
        })?;
        let unlink = ns_per_op(made, |i| std::fs::remove_file(&names[i]))?;
        Ok([create, stat, unlink].map(per_second))
    })();
    std::fs::remove_dir_all(&dir)?;
    measured
}
