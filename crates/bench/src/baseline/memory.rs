//! Memory: copies from and to pages that are in no cache, and what it takes to make them durable.

use super::pages;
use crate::BenchError;
use crate::samples::gbps;
use polvo_pmem::{Persistence, Pmem};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// Log lines are stored in a ring of that size, as if there were a log for every page.
const LOG: u64 = 16 << 20;

/// Memory too large for the caches, all of it touched.
pub struct Memory(Vec<u8>);

impl Memory {
    /// Of `len` bytes.
    pub fn new(len: u64) -> Memory {
        Memory(vec![1; len as usize])
    }

    /// `ns` a 4 KiB copy from random pages.
    pub fn copy_from_random_pages(&self, ops: usize) -> f64 {
        assert!(self.0.len() >= PAGE, "{} bytes are less than a page", self.0.len());
        let mut page = [0u8; PAGE];
        let start = Instant::now();
        for at in pages(self.0.len() as u64, ops) {
            page.copy_from_slice(&self.0[at as usize..at as usize + PAGE]);
            std::hint::black_box(&page);
        }
        start.elapsed().as_nanos() as f64 / ops as f64
    }

    /// GB/s of copying it in pieces of 1 MiB to one place.
    pub fn copy_from_sequentially(&self) -> f64 {
        let mut chunk = vec![0u8; MIB];
        let start = Instant::now();
        for piece in self.0.chunks_exact(MIB) {
            chunk.copy_from_slice(piece);
            std::hint::black_box(&chunk);
        }
        gbps(start.elapsed(), self.0.len() as u64)
    }
}

/// Persistent memory of its own, written the best way there is.
pub struct DurableMemory {
    pool: Arc<Pmem>,
    len: u64,
}

impl DurableMemory {
    /// `len` bytes in a file below `dir`, all of them touched; made durable as `persistence` says, or as a pool there is.
    pub fn new(dir: &Path, len: u64, persistence: Option<Persistence>) -> Result<DurableMemory, BenchError> {
        let path = dir.join("durable-baseline");
        let pool = Pmem::create(&path, len + LOG, persistence)?;
        std::fs::remove_file(&path)?; // the mapping keeps it
        pool.zero_streaming(0, len + LOG);
        Ok(DurableMemory { pool, len })
    }

    /// `ns` a 4 KiB non-temporal copy to random pages, followed by two lines that are stored and flushed one after the other:
    /// data, log entry and tail, without anything around them.
    pub fn copy_to_random_pages(&self, ops: usize) -> f64 {
        let (page, line) = ([7u8; PAGE], [5u8; 64]);
        let start = Instant::now();
        for (index, at) in pages(self.len, ops).enumerate() {
            self.pool.write_streaming(at, &page);
            self.pool.fence();
            for which in 0..2 {
                let log = self.len + (index as u64 * 4096 + which * 64) % LOG;
                self.pool.write(log, &line);
                self.pool.persist(log, 64);
            }
        }
        start.elapsed().as_nanos() as f64 / ops as f64
    }

    /// `ns` for the memory that a durable overwrite of a random page of a file touches, without a decision: the page's entry in
    /// a table of them, read and changed; the page and the next line of one log, made durable together; an inode's
    /// attributes, checksums and tail, of which the line with the tail is made durable.
    pub fn overwrite_random_pages(&self, ops: usize) -> f64 {
        let (page, line) = ([7u8; PAGE], [5u8; 64]);
        let mut table = vec![[1u64; 3]; (self.len / PAGE as u64) as usize];
        let inode = self.len;
        let start = Instant::now();
        for (index, at) in pages(self.len, ops).enumerate() {
            let entry = &mut table[at as usize / PAGE];
            std::hint::black_box(*entry);
            *entry = [at, PAGE as u64, index as u64];
            self.pool.write_streaming(at, &page);
            let log = self.len + PAGE as u64 + index as u64 * 64 % (LOG - PAGE as u64);
            self.pool.write(log, &line);
            self.pool.flush(log, 64);
            self.pool.fence();
            self.pool.write(inode + 64, &line);
            self.pool.write_u64(inode + 32, index as u64);
            self.pool.write_u64(inode + 48, index as u64);
            self.pool.persist(inode, 64);
        }
        start.elapsed().as_nanos() as f64 / ops as f64
    }

    /// GB/s of non-temporal copies of 1 MiB, each fenced.
    pub fn copy_to_sequentially(&self) -> f64 {
        let chunk = vec![3u8; MIB];
        let start = Instant::now();
        for at in (0..self.len).step_by(MIB) {
            self.pool.write_streaming(at, &chunk);
            self.pool.fence();
        }
        gbps(start.elapsed(), self.len)
    }

    /// `ns` to store 8 bytes and make their line durable; lines one after the other.
    pub fn flush_lines(&self, ops: usize) -> f64 {
        let start = Instant::now();
        for index in 0..ops as u64 {
            let at = index * 64 % self.len;
            self.pool.write_u64(at, index);
            self.pool.persist(at, 8);
        }
        start.elapsed().as_nanos() as f64 / ops as f64
    }
}

/// What lookups in a directory read of memory: a hash table of names, and inodes.
pub struct NamesAndInodes {
    /// Places of as many bytes as a client's name cache has, each with the number of an inode in its first word.
    names: Vec<[u64; 5]>,
    inodes: Arc<Pmem>,
    files: usize,
}

impl NamesAndInodes {
    const INODE: u64 = 256;

    /// For that many files, with the inodes in a file below `dir`.
    pub fn new(dir: &Path, files: usize) -> Result<NamesAndInodes, BenchError> {
        let path = dir.join("names-and-inodes");
        let len = files as u64 * NamesAndInodes::INODE;
        let inodes = Pmem::create(&path, len, None)?;
        std::fs::remove_file(&path)?; // the mapping keeps it
        inodes.zero_streaming(0, len);
        let places = (files + files / 7).next_power_of_two();
        assert!(files > 0 && places >= files, "{places} places for {files} names");
        let names = (0..places).map(|place| [(place % files) as u64, 0, 0, 0, 0]).collect();
        Ok(NamesAndInodes { names, inodes, files })
    }

    /// `ns` for the memory that a lookup of a random name reads, without a decision: a place in the table, then the two lines
    /// of the inode that it says. No lookup begins before the one before has ended.
    pub fn look_up(&self, ops: usize) -> f64 {
        let mut zero = 0;
        let start = Instant::now();
        for at in pages((self.files * PAGE) as u64, ops) {
            let hash = (at / PAGE as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let place = &self.names[(hash + zero) as usize & (self.names.len() - 1)];
            let inode = place[0] * NamesAndInodes::INODE;
            zero = place[4] + self.inodes.read_u64(inode) + self.inodes.read_u64(inode + 64);
        }
        start.elapsed().as_nanos() as f64 / ops as f64 + zero as f64
    }
}
