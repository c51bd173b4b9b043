//! Entries laid out behind the end of a log: their bytes, where they go, and the pages taken for them. [`crate::log`]
//! makes it.

use polvo_format::{
    INODE_LOG_PAGE, INODE_SIZE, Ino, LINE, LOG_PAGE_NEXT, LogEntries, LogPage, Record, RegionOffset, Tail, UnitPlace,
};
use std::ops::Range;

/// A unit of the log, as bytes.
pub(crate) const UNIT: usize = LINE;

/// Where a log ends.
#[derive(Clone, Copy)]
pub(crate) struct LogEnd<'a> {
    pub ino: Ino,
    pub tail: Tail,
    pub pages: &'a [u64],
}

/// Entries laid out behind a tail: sealed, cut into pieces, with the pages they need.
#[derive(Default)]
pub(crate) struct Layout {
    /// the units, pads included
    pub bytes: Vec<u8>,
    /// where they go: region offset, range of `bytes`
    pub pieces: Vec<(u64, Range<usize>)>,
    /// log pages taken for them
    pub new_pages: Vec<u64>,
    /// the tail behind them
    pub tail: Tail,
}

/// Memory of an append that is under way, kept from one to the next. (Boxed where it changes hands.)
#[derive(Default)]
pub(crate) struct AppendMemory {
    pub layout: Layout,
    /// the entries, unsealed
    pub units: Vec<u8>,
}

impl Layout {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.new_pages.clear();
    }

    /// It takes a log from one end to the other, and what it has is just enough.
    pub fn check(&self, end: LogEnd) {
        let units = (self.bytes.len() / UNIT) as u64;
        debug_assert_eq!(
            end.tail.units() + units,
            self.tail.units(),
            "units from one tail to the other"
        );
        debug_assert_eq!(end.tail.version(), self.tail.version(), "a log keeps its version");
        let in_pieces = self.pieces.iter().map(|(_, range)| range.len()).sum::<usize>();
        debug_assert_eq!(in_pieces, self.bytes.len(), "pieces have all bytes");
        debug_assert!(
            self.pieces.is_sorted_by(|a, b| a.1.end == b.1.start),
            "pieces follow each other"
        );
        let (needed, have) = (
            UnitPlace::pages(self.tail.units()),
            end.pages.len() + self.new_pages.len(),
        );
        debug_assert!(have as u64 >= needed, "{have} pages, {needed} needed");
        debug_assert!(
            self.new_pages.is_empty() || have as u64 == needed,
            "{have} pages, {needed} needed"
        );
    }

    /// Headers of the new pages: region offset, bytes.
    pub fn headers(&self, end: LogEnd) -> impl Iterator<Item = (u64, [u8; LINE])> + '_ {
        let first = end.pages.len() as u64;
        debug_assert!(
            self.new_pages.iter().all(|page| !end.pages.contains(page)),
            "new pages are new"
        );
        let (ino, version) = (end.ino, end.tail.version());
        self.new_pages.iter().enumerate().map(move |(n, &offset)| {
            let header = LogPage {
                ino,
                page: first + n as u64,
                version,
                next: RegionOffset(self.new_pages.get(n + 1).copied().unwrap_or(0)),
            };
            (offset, header.encode())
        })
    }

    /// The word that links the first new page to the page before it, or to the inode: region offset and value. `None`
    /// when there is no new page.
    pub fn link(&self, end: LogEnd) -> Option<(u64, u64)> {
        let link = match end.pages.last() {
            Some(page) => page + LOG_PAGE_NEXT,
            None => end.ino.slot() * INODE_SIZE as u64 + INODE_LOG_PAGE,
        };
        debug_assert!(link.is_multiple_of(8), "a link is a word");
        Some((link, *self.new_pages.first()?))
    }
}

/// Entries that this crate has made, read back.
pub(crate) fn read_back(position: u64, units: &[u8]) -> impl Iterator<Item = Record<'_>> {
    LogEntries::unsealed(position, units).map(|record| record.expect("entries were made by this crate"))
}
