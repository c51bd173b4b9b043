//! Extents of files in the node around us, as this thread has found them: a read that lies in one of them asks nobody where.
//! It takes no lock, so that threads which read one file do not meet. A thread has some 50 KiB of it from its first such read.
//!
//! An entry says where bytes lie as of a log's tail. A mapping follows from the log, so the entry is true as long as the log
//! has that tail, whatever happened in between; that is validated before and after a copy, as with any other read.

use polvo_format::Tail;
use polvo_proto::InodeRef;
use std::cell::RefCell;
use std::ops::Range;

/// Entries: so many MiB of files.
const ENTRIES: usize = 1024;
/// What has one entry, bytes as a power of two: as much as a large write puts in one place at least.
const SPAN_SHIFT: u32 = 20;

/// An extent.
#[derive(Clone)]
struct Entry {
    inode: InodeRef,
    tail: Tail,
    /// bytes of the file, none after its end
    range: Range<u64>,
    /// pool offset of the first of them
    at: u64,
}

/// One thread's.
#[derive(Default)]
pub(crate) struct ExtentCache(RefCell<Vec<Option<Entry>>>);

impl ExtentCache {
    fn place(inode: InodeRef, offset: u64) -> usize {
        // neighbours in a file do not displace each other
        let spread = inode.ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (spread ^ offset >> SPAN_SHIFT) as usize % ENTRIES
    }

    /// Pool offset of `len` bytes of a file if its log has the tail that comes along.
    #[inline]
    pub(crate) fn find(&self, inode: InodeRef, offset: u64, len: usize) -> Option<(u64, Tail)> {
        let entries = self.0.borrow();
        let entry = entries.get(ExtentCache::place(inode, offset))?.as_ref()?;
        let open_table = entry.inode == inode
            && entry.range.start <= offset
            && offset.checked_add(len as u64).is_some_and(|end| end <= entry.range.end);
        open_table.then(|| (entry.at + (offset - entry.range.start), entry.tail))
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&self) {
        self.0.borrow_mut().fill(None);
    }

    /// Remembers where a range of a file lies, as of a tail of its log; to be found by reads that begin where this one did.
    pub(crate) fn keep(&self, inode: InodeRef, tail: Tail, offset: u64, range: Range<u64>, at: u64) {
        let mut entries = self.0.borrow_mut();
        if entries.is_empty() {
            entries.resize(ENTRIES, None);
        }
        debug_assert!(range.contains(&offset), "it is found where the read began");
        entries[ExtentCache::place(inode, offset)] = Some(Entry { inode, tail, range, at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    fn file(slot: u64, generation: u32) -> InodeRef {
        InodeRef {
            ino: Ino(slot),
            generation: Generation(generation),
        }
    }

    #[test]
    fn what_lies_in_an_extent_that_is_known() {
        let (cache, tail) = (ExtentCache::default(), Tail::new(1, 7));
        assert_eq!(cache.find(file(5, 1), 0, 1), None);
        cache.keep(file(5, 1), tail, 200, 100..300, 4096);
        assert_eq!(cache.find(file(5, 1), 100, 200), Some((4096, tail)));
        assert_eq!(cache.find(file(5, 1), 299, 1), Some((4295, tail)));
        for (offset, len) in [(99, 2), (299, 2), (300, 1), (u64::MAX, 2)] {
            assert_eq!(cache.find(file(5, 1), offset, len), None, "{offset}, {len}");
        }
        assert_eq!(cache.find(file(5, 2), 150, 1), None, "another file in the same slot");
        assert_eq!(cache.find(file(6, 1), 150, 1), None);
    }

    #[test]
    fn a_thousand_mib_of_a_file_are_known_at_once() {
        let (cache, tail) = (ExtentCache::default(), Tail::new(1, 7));
        let span = 1 << SPAN_SHIFT;
        for n in 0..ENTRIES as u64 {
            cache.keep(file(9, 1), tail, n * span, n * span..(n + 1) * span, n * 2 * span);
        }
        for n in 0..ENTRIES as u64 {
            assert_eq!(cache.find(file(9, 1), n * span + 1, 5), Some((n * 2 * span + 1, tail)));
        }
    }
}
