//! File operations by system calls, on any directory: on tmpfs a baseline, elsewhere what is measured.

use super::pages;
use crate::BenchError;
use crate::samples::{gbps, ns_per_op};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
        assert!(len.is_multiple_of(MIB as u64), "a file of {len} bytes");
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

    /// GB/s of so many threads that each read, or write, a part of it in pieces of 1 MiB.
    pub fn in_parts(&self, writing: bool, jobs: u64) -> Result<f64, BenchError> {
        let part = self.len / jobs / MIB as u64 * MIB as u64;
        let job = |number: u64| {
            let mut chunk = vec![2u8; MIB];
            (number * part..(number + 1) * part)
                .step_by(MIB)
                .try_for_each(|at| match writing {
                    true => self.file.write_all_at(&chunk, at),
                    false => self.file.read_exact_at(&mut chunk, at),
                })
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..jobs).map(|number| scope.spawn(move || job(number))).collect();
            let mut ended = running.into_iter().map(|job| job.join().expect("a job does not panic"));
            ended.try_for_each(|ended| ended)
        })?;
        Ok(gbps(start.elapsed(), part * jobs))
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

/// How many files are used again and again.
pub const IN_USE: usize = 16;
/// What is used for so long is known wherever it can be.
const WARM: Duration = Duration::from_millis(200);

/// A few files that are used again and again, and one of 4 MiB that is open for reading; removed at the end.
pub struct FilesInUse {
    dir: PathBuf,
    paths: Vec<PathBuf>,
    read: File,
    _open: Vec<File>,
}

impl FilesInUse {
    const LEN: usize = 4 << 20;

    /// In a new directory below `dir`.
    pub fn new(dir: &Path) -> Result<FilesInUse, BenchError> {
        let dir = dir.join(format!("polvo-bench-{}.used", std::process::id()));
        std::fs::create_dir(&dir)?;
        let paths: Vec<_> = (0..IN_USE).map(|n| dir.join(format!("f{n}"))).collect();
        let open = paths.iter().map(File::create_new).collect::<Result<_, _>>()?;
        let read = dir.join("read");
        File::create_new(&read)?.write_all(&vec![4; FilesInUse::LEN])?;
        Ok(FilesInUse {
            read: File::open(read)?,
            dir,
            paths,
            _open: open,
        })
    }

    /// Which they are.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Their attributes, one after the other: `ns` each.
    pub fn stat(&self, ops: usize) -> Result<f64, BenchError> {
        self.warm(ops, |n| {
            std::hint::black_box(std::fs::symlink_metadata(&self.paths[n % IN_USE])?);
            Ok(())
        })
    }

    /// Opens them, which are open already, for reading and closes them: `ns` each.
    pub fn open_and_close(&self, ops: usize) -> Result<f64, BenchError> {
        self.warm(ops, |n| File::open(&self.paths[n % IN_USE]).map(drop))
    }

    /// Reads random pages: `ns` each.
    pub fn read_pages(&self, ops: usize) -> Result<f64, BenchError> {
        let mut page = [0u8; 4096];
        let places: Vec<u64> = pages(FilesInUse::LEN as u64, ops).collect();
        self.warm(ops, |n| self.read.read_exact_at(&mut page, places[n]))
    }

    fn warm(&self, ops: usize, mut op: impl FnMut(usize) -> io::Result<()>) -> Result<f64, BenchError> {
        let end = Instant::now() + WARM;
        while Instant::now() < end {
            (0..ops.min(100)).try_for_each(&mut op)?;
        }
        Ok(ns_per_op(ops, op)?)
    }
}

impl Drop for FilesInUse {
    fn drop(&mut self) {
        for path in self.paths.iter().chain([&self.dir.join("read")]) {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_dir(&self.dir);
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
