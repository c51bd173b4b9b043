//! Numbers that are never used twice in the life of a pool.

use parking_lot::Mutex;
use polvo_format::{History, SUPERBLOCKS, Superblock};
use polvo_pmem::Pmem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers reserved at a time. What is left of a stride when the process ends is lost.
pub(super) const STRIDE: u64 = 1 << 20;

/// Hands out numbers below the one that the newest superblock reserves, which it raises when they run out.
pub(super) struct Sequence {
    next: AtomicU64,
    limit: AtomicU64,
    superblock: Mutex<Superblock>,
}

impl Sequence {
    /// Goes on where the superblock says that earlier runs have stopped at the latest.
    pub fn new(superblock: Superblock) -> Sequence {
        Sequence {
            next: AtomicU64::new(superblock.sequence),
            limit: AtomicU64::new(superblock.sequence),
            superblock: Mutex::new(superblock),
        }
    }

    /// The next number.
    pub fn next(&self, pmem: &Pmem) -> u64 {
        let mut number = self.next.load(Relaxed);
        loop {
            // the limit only grows, and is raised after the superblock that reserves the numbers is durable
            if number >= self.limit.load(Relaxed) {
                self.reserve(pmem);
            }
            match self.next.compare_exchange_weak(number, number + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    debug_assert!(
                        number < self.limit.load(Relaxed),
                        "numbers are reserved before they are used"
                    );
                    return number;
                }
                Err(now) => number = now,
            }
        }
    }

    /// Numbers from here on are not reserved yet.
    #[cfg(test)]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// The latest eras of the pool.
    pub fn history(&self) -> History {
        self.superblock.lock().history
    }

    /// A new era begins, after `change`. Durable on return, in both copies: whichever of them is damaged later, the other
    /// one knows of it.
    pub fn begin_era(&self, pmem: &Pmem, mark: u64, change: impl FnOnce(&mut History)) {
        let mut superblock = self.superblock.lock();
        change(&mut superblock.history);
        superblock.history.begin(mark);
        debug_assert_eq!(superblock.history.latest().mark, mark, "the era that has begun counts");
        for _copy in 0..SUPERBLOCKS {
            superblock.generation += 1;
            write_superblock(pmem, &superblock);
        }
    }

    /// Has the run that has the pool, or else the last one, given tokens?
    pub fn tokens_given(&self) -> bool {
        self.superblock.lock().tokens_given
    }

    /// Notes whether it has. Durable on return, in both copies.
    pub fn note_tokens_given(&self, pmem: &Pmem, given: bool) {
        let mut superblock = self.superblock.lock();
        if superblock.tokens_given == given {
            return;
        }
        superblock.tokens_given = given;
        for _copy in 0..SUPERBLOCKS {
            superblock.generation += 1;
            write_superblock(pmem, &superblock);
        }
    }

    fn reserve(&self, pmem: &Pmem) {
        let mut superblock = self.superblock.lock();
        if self.next.load(Relaxed) < self.limit.load(Relaxed) {
            return; // somebody else has done it
        }
        superblock.generation += 1;
        assert_eq!(
            superblock.sequence,
            self.limit.load(Relaxed),
            "the limit is what the superblock says"
        );
        superblock.sequence += STRIDE;
        assert!(superblock.sequence >> 48 == 0, "2^48 numbers have been handed out");
        write_superblock(pmem, &superblock);
        assert!(
            superblock.sequence > self.next.load(Relaxed),
            "numbers are reserved ahead"
        );
        self.limit.store(superblock.sequence, Relaxed);
    }
}

/// Writes a superblock to the copy that its generation belongs to; durable on return.
pub(super) fn write_superblock(pmem: &Pmem, superblock: &Superblock) {
    let bytes = superblock.encode();
    assert!(superblock.generation > 0 && superblock.offset() + bytes.len() as u64 <= superblock.layout.table_offset);
    pmem.write(superblock.offset(), &bytes);
    pmem.persist(superblock.offset(), bytes.len() as u64);
    debug_assert_eq!(
        Superblock::decode(&bytes, superblock.offset()),
        Ok(*superblock),
        "a superblock is read as it was written"
    );
}
