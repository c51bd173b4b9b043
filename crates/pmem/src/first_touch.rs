//! The first store through a mapping to each page.
//!
//! Such a store is a fault of the operating system, which takes longer than to copy the page. Where the pages are those of a
//! tmpfs file, the kernel can enter many at a time, for stores as well, when it is asked to before (`MADV_POPULATE_READ`): a
//! third of the time a page. (Pages of a file that do not exist yet it has to make one by one, which takes as long either
//! way.) Other media are left alone: there the kernel has to hear of each page's first store.

use rustix::mm::{Advice, madvise};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes entered at a time. Those that are not in use yet take memory from then on.
const BLOCK: usize = 64 << 10;

/// Blocks of a mapping that were entered, a bit each.
pub(crate) struct FirstTouch {
    entered: Box<[AtomicU64]>,
}

impl FirstTouch {
    /// Of a fresh mapping of `len` bytes.
    pub(crate) fn new(len: usize) -> FirstTouch {
        FirstTouch {
            entered: (0..len.div_ceil(64 * BLOCK)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// To be called before bytes are stored to.
    ///
    /// # Safety
    /// The mapping is the `mapped` bytes from `base` on, `len` bytes at `at` lie within it, and it is of tmpfs.
    #[inline]
    pub(crate) unsafe fn before_store(&self, base: *mut u8, mapped: usize, at: usize, len: usize) {
        debug_assert!(at + len <= mapped, "{len} bytes at {at:#x} of {mapped:#x}");
        debug_assert!(mapped <= self.entered.len() * 64 * BLOCK, "every block has a bit");
        for block in at / BLOCK..(at + len).div_ceil(BLOCK) {
            let (word, bit) = (&self.entered[block / 64], 1 << (block % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
                let start = block * BLOCK;
                // SAFETY: the caller's; the block begins within the mapping and is cut to it.
                unsafe { enter(base.add(start), BLOCK.min(mapped - start)) };
            }
        }
    }
}

/// # Safety
/// The bytes are mapped, from tmpfs.
#[cold]
unsafe fn enter(at: *mut u8, len: usize) {
    // SAFETY: the caller's; entering pages changes no byte.
    // An older kernel refuses: then each page is entered when it is stored to.
    let _best_effort = unsafe { madvise(at.cast(), len, Advice::LinuxPopulateRead) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pmem;

    /// Faults of this thread so far.
    fn faults() -> i64 {
        // SAFETY: all zero is a valid `rusage`, which is filled in.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: it points to a `rusage`.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        usage.ru_minflt
    }

    #[test]
    fn a_block_is_one_fault() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let len = 64 * BLOCK as u64;
        let pool = Pmem::create(&dir.path().join("pool"), len, None).unwrap();
        pool.zero_streaming(0, len);
        let fd = pool.fd().unwrap().try_clone_to_owned().unwrap();
        let mapped = Pmem::from_fd(fd, len, pool.persistence(), pool.medium()).unwrap();
        let before = faults();
        for at in (100..len - 4096).step_by(4096) {
            mapped.write_streaming(at, &[2; 4096]);
        }
        let (taken, pages) = (faults() - before, len as i64 / 4096);
        assert!(taken < pages / 4, "{taken} faults for {pages} pages");
        mapped.enter_pages(len, 0);
        mapped.enter_pages(len - 1, 1);
    }
}
