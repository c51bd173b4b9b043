//! What memory regions are made of: pools and DRAM buffers.

use polvo_pmem::{Persistence, Pmem};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A shared mapping of a whole file descriptor, unmapped on drop.
pub(crate) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain shared memory; every access goes through the copying and atomic methods below, and other
// processes may write to it at any time anyway.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes (more than 0) of `fd`, shared, readable and (if `write`) writable.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, write: bool) -> std::io::Result<Mapping> {
        let protection = if write {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        assert!((at as usize).is_multiple_of(8) && len > 0, "the kernel maps at pages");
        Ok(Mapping {
            at: NonNull::new(at.cast()).expect("mmap returns no null mapping"),
            len,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// First byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    fn check(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{offset}+{len} lies outside {} bytes",
            self.len
        );
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.at.as_ptr().add(offset) }
    }

    /// Copies out; panics if out of range.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.check(offset, into.len());
        // SAFETY: source checked; `into` is exclusive memory of this process, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies in; panics if out of range.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.check(offset, bytes.len());
        // SAFETY: destination checked; a `&[u8]` is never made of a mapping, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Has the processor fetch the line of an offset, if there is one.
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: within the mapping; a prefetch neither faults nor changes anything.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.as_ptr().add(offset).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// As [`Mapping::prefetch`], for who is about to write to the line: other processors lose it.
    pub(crate) fn prefetch_to_write(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            // SAFETY: within the mapping; a prefetch neither faults nor changes anything, and does nothing where the processor
            // does not know it.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) self.at.as_ptr().add(offset), options(nostack, preserves_flags));
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// The word at an offset that is a multiple of 8; panics if it is not or lies out of range.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "{offset} is no multiple of 8");
        let at = self.check(offset, 8);
        // SAFETY: in range and aligned (mappings start at a page); lives as long as the mapping.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nobody holds a pointer beyond our life.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// DRAM that peers may reach (a memfd, so that peers on the host can map it). Access is by copy, because the peer may
/// write at any time.
pub struct Buffer {
    map: Mapping,
    len: usize,
    fd: OwnedFd,
}

impl Buffer {
    /// Zeroed buffer of `len` bytes. Panics when the operating system has no memory or descriptor left.
    pub fn new(len: usize) -> Arc<Buffer> {
        Arc::new(Buffer::try_new(len).unwrap_or_else(|e| panic!("no memory for a buffer of {len} bytes: {e}")))
    }

    /// Zeroed buffer of `len` bytes, or why there is none.
    pub fn try_new(len: usize) -> std::io::Result<Buffer> {
        let mapped = len.max(1).next_multiple_of(4096);
        let fd = rustix::fs::memfd_create("polvo-buffer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, mapped as u64)?;
        // Nobody can make it shorter under the mappings of its peers.
        rustix::fs::fcntl_add_seals(
            &fd,
            rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL,
        )?;
        let map = Mapping::new(fd.as_fd(), mapped, true)?;
        Ok(Buffer { map, len, fd })
    }

    /// Copies out; panics if out of range.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset <= self.len && into.len() <= self.len - offset,
            "outside the buffer"
        );
        self.map.read(offset, into);
    }

    /// Has the processor fetch what a peer has written there, up to two cache lines, while something else is done. Harmless
    /// if out of range.
    pub fn prefetch(&self, offset: usize) {
        self.map.prefetch(offset);
        self.map.prefetch(offset.saturating_add(64));
    }

    /// The word at an offset that is a multiple of 8, as a peer's aligned 8-byte write or atomic has left it; what the peer wrote
    /// before that is seen too. Panics if out of range.
    pub fn read_word(&self, offset: usize) -> u64 {
        assert!(offset <= self.len && self.len - offset >= 8, "outside the buffer");
        self.map.word(offset).load(Ordering::Acquire)
    }

    /// Stores a word at an offset that is a multiple of 8, atomically, behind what this thread has stored before. Panics if out of range.
    pub fn write_word(&self, offset: usize, word: u64) {
        assert!(offset <= self.len && self.len - offset >= 8, "outside the buffer");
        self.map.word(offset).store(word, Ordering::Release);
    }

    /// Copies `len` bytes out to the end of `into`; panics if out of range. The bytes are written once, without being
    /// zeroed before.
    pub fn append_to(&self, offset: usize, len: usize, into: &mut Vec<u8>) {
        assert!(offset <= self.len && len <= self.len - offset, "outside the buffer");
        into.reserve(len);
        let from = self.map.check(offset, len);
        let there = into.len();
        // SAFETY: source checked; the destination was just reserved and belongs to this process, so they do not overlap;
        // all bytes up to the new length have been written.
        unsafe {
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(there), len);
            into.set_len(there + len);
        }
    }

    /// Copies in; panics if out of range.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.len && bytes.len() <= self.len - offset,
            "outside the buffer"
        );
        self.map.write(offset, bytes);
    }

    /// Copies `len` bytes in from another buffer; panics if out of range.
    pub fn copy_from(&self, offset: usize, from: &Buffer, at: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "outside the buffer");
        assert!(at <= from.len && len <= from.len - at, "outside the buffer");
        let (to, from) = (self.map.check(offset, len), from.map.check(at, len));
        // SAFETY: both ranges were checked; `copy` allows for their being of one buffer and overlapping.
        unsafe { std::ptr::copy(from, to, len) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A peer's buffer, mapped here.
    pub(crate) fn of_peer(map: Mapping, len: usize, fd: OwnedFd) -> Buffer {
        assert!(len <= map.len(), "the whole buffer is mapped");
        Buffer { map, len, fd }
    }

    /// Descriptor that peers on this host map.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[cfg(test)]
    pub(crate) fn map(&self) -> &Mapping {
        &self.map
    }
}

/// What a memory region is made of.
#[derive(Clone)]
pub enum Memory {
    /// A pool; a completed remote write to it is durable (providers persist before they complete).
    Pool(Arc<Pmem>),
    /// DRAM.
    Buffer(Arc<Buffer>),
}

/// Writes from here on bypass the caches when they go to a pool, bytes.
const STREAM_FROM: usize = 256;

impl Memory {
    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match self {
            Memory::Pool(pool) => pool.len(),
            Memory::Buffer(buffer) => buffer.len() as u64,
        }
    }

    /// Identity within this process while the memory lives.
    pub(crate) fn address(&self) -> usize {
        match self {
            Memory::Pool(pool) => Arc::as_ptr(pool) as usize,
            Memory::Buffer(buffer) => Arc::as_ptr(buffer) as usize,
        }
    }

    /// First byte where it is plainly mapped, so that the kernel may copy from and to it.
    pub(crate) fn mapped(&self) -> Option<*mut u8> {
        match self {
            Memory::Pool(pool) => pool.as_mut_ptr(),
            Memory::Buffer(buffer) => Some(buffer.map.as_ptr()),
        }
    }

    /// Copies out. An aligned 8-byte read is atomic. The range was checked when its key was resolved.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        if into.len() == 8 && offset.is_multiple_of(8) {
            let word = match self {
                Memory::Pool(pool) => pool.read_u64(offset),
                Memory::Buffer(buffer) => buffer.map.word(offset as usize).load(Ordering::Acquire),
            };
            into.copy_from_slice(&word.to_ne_bytes());
            return;
        }
        match self {
            Memory::Pool(pool) => pool.read(offset, into),
            Memory::Buffer(buffer) => buffer.map.read(offset as usize, into),
        }
    }

    /// Copies in, and makes it durable. An aligned 8-byte write is atomic.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        if let Ok(word) = <[u8; 8]>::try_from(bytes)
            && offset.is_multiple_of(8)
        {
            let word = u64::from_ne_bytes(word);
            match self {
                Memory::Pool(pool) => {
                    pool.write_u64(offset, word);
                    pool.persist(offset, 8);
                }
                Memory::Buffer(buffer) => buffer.map.word(offset as usize).store(word, Ordering::Release),
            }
            return;
        }
        match self {
            Memory::Pool(pool) if bytes.len() >= STREAM_FROM => {
                pool.write_streaming(offset, bytes);
                pool.fence();
            }
            Memory::Pool(pool) => {
                pool.write(offset, bytes);
                pool.persist(offset, bytes.len() as u64);
            }
            Memory::Buffer(buffer) => buffer.map.write(offset as usize, bytes),
        }
    }

    /// Copies from other memory, and makes it durable. Both ranges were checked.
    pub(crate) fn copy_from(&self, offset: u64, from: &Memory, at: u64, len: u64) {
        let Some(base) = from.mapped() else {
            let mut bytes = vec![0; len as usize];
            from.read(at, &mut bytes);
            return self.write(offset, &bytes);
        };
        // SAFETY: in range, and `from` keeps its mapping. Others may change the bytes meanwhile: what is made of them here is a
        // copy of plain bytes.
        let bytes = unsafe { std::slice::from_raw_parts(base.wrapping_add(at as usize).cast_const(), len as usize) };
        self.write(offset, bytes);
    }

    /// Part of a larger write that arrives in pieces; `persist` follows when all of it is there.
    pub(crate) fn write_part(&self, offset: u64, bytes: &[u8]) {
        match self {
            Memory::Pool(pool) => pool.write(offset, bytes),
            Memory::Buffer(buffer) => buffer.map.write(offset as usize, bytes),
        }
    }

    /// Makes what was stored to the range durable.
    pub(crate) fn persist(&self, offset: u64, len: u64) {
        if let Memory::Pool(pool) = self
            && pool.persistence() != Persistence::None
        {
            pool.persist(offset, len);
        }
    }

    /// Compare-and-swap, durable; returns the word found.
    pub(crate) fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> u64 {
        match self {
            Memory::Pool(pool) => {
                let found = pool.cas_u64(offset, expect, new);
                pool.persist(offset, 8);
                found
            }
            Memory::Buffer(buffer) => buffer
                .map
                .word(offset as usize)
                .compare_exchange(expect, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found),
        }
    }

    /// Fetch-and-add, durable; returns the word found.
    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        match self {
            Memory::Pool(pool) => {
                let found = pool.faa_u64(offset, add);
                pool.persist(offset, 8);
                found
            }
            Memory::Buffer(buffer) => buffer.map.word(offset as usize).fetch_add(add, Ordering::AcqRel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_zeroed_and_keeps_what_is_written() {
        let buffer = Buffer::new(10_000);
        let mut found = vec![1; 10_000];
        buffer.read(0, &mut found);
        assert!(found.iter().all(|&byte| byte == 0));
        buffer.write(9_990, &[7; 10]);
        buffer.read(9_980, &mut found[..20]);
        assert_eq!(found[..20], [[0; 10], [7; 10]].concat());
        let mut appended = vec![3];
        buffer.append_to(9_989, 2, &mut appended);
        buffer.append_to(10_000, 0, &mut appended);
        assert_eq!(appended, [3, 0, 7]);
    }

    #[test]
    #[should_panic(expected = "outside the buffer")]
    fn a_buffer_ends_where_it_was_said_to_end() {
        Buffer::new(100).write(96, &[0; 5]);
    }

    #[test]
    #[should_panic(expected = "outside the buffer")]
    fn nothing_beyond_its_end_is_appended() {
        Buffer::new(100).append_to(96, 5, &mut Vec::new());
    }
}
