//! The first store of this process to a page of a peer's pool.
//!
//! Such a store is a fault of the operating system, which takes longer than to copy the page. Where the pages are those of a
//! tmpfs file, the kernel can enter many at a time, for stores as well, when it is asked to before (`MADV_POPULATE_READ`): a
//! quarter of the time a page. Other media are left alone: there the kernel has to hear of each page's first store.

use polvo_pmem::{Medium, Pmem};
use rustix::mm::Advice;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes entered at a time. Those that are not in use yet take memory from then on.
const BLOCK: u64 = 64 << 10;

/// Blocks of a pool's mapping that were entered, a bit each.
pub(super) struct FirstTouch {
    entered: Box<[AtomicU64]>,
}

impl FirstTouch {
    /// Of a fresh mapping; `None` where it does not help.
    pub(super) fn new(pool: &Pmem) -> Option<FirstTouch> {
        let words = pool.len().div_ceil(64 * BLOCK);
        (pool.medium() == Medium::Tmpfs).then(|| FirstTouch {
            entered: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// To be called before bytes of the pool are stored to; the range lies within it.
    pub(super) fn before_store(&self, pool: &Pmem, at: u64, len: u64) {
        for block in at / BLOCK..(at + len).div_ceil(BLOCK) {
            let (word, bit) = (&self.entered[(block / 64) as usize], 1 << (block % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
                enter(pool, block * BLOCK);
            }
        }
    }
}

fn enter(pool: &Pmem, start: u64) {
    let Some(base) = pool.as_mut_ptr() else { return };
    let len = BLOCK.min(pool.len() - start) as usize;
    let at = base.wrapping_add(start as usize);
    // SAFETY: the range lies in the pool's mapping, which is there as long as `pool`; entering its pages changes no byte.
    // An older kernel refuses: then each page is entered when it is stored to.
    let _best_effort = unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateRead) };
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let len = 64 * BLOCK;
        let pool = Pmem::create(&dir.path().join("pool"), len, None).unwrap();
        (0..len).step_by(4096).for_each(|at| pool.write(at, &[1]));
        let fd = pool.fd().unwrap().try_clone_to_owned().unwrap();
        let mapped = Pmem::from_fd(fd, len, pool.persistence(), pool.medium()).unwrap();
        let first = FirstTouch::new(&mapped).unwrap();
        let before = faults();
        for at in (100..len - 4096).step_by(4096) {
            first.before_store(&mapped, at, 4096);
            mapped.write(at, &[2; 4096]);
        }
        let (taken, pages) = (faults() - before, len as i64 / 4096);
        assert!(taken < pages / 4, "{taken} faults for {pages} pages");
        first.before_store(&mapped, len, 0);
        first.before_store(&mapped, len - 1, 1);
    }
}
