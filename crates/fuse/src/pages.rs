//! As of when the pages are that the kernel has of files.
//!
//! A file that is opened for reading alone, while nobody has it open for writing on this mount, is read by way of the kernel's pages
//! (`mappings`). Before it reads from them, the kernel makes sure that the attributes it believes in are valid, and asks for them
//! where they are not. So pages need no time-out of their own: they are as good as the attributes are.
//!
//! What always holds: *every page that the kernel has of a file was read when the file's log had got to the tail that is noted here,
//! or later.* The tail is set to where a look has found it only after all pages have been dropped that were there then; what is read
//! afterwards is read there or later. Where a look finds the tail that is noted, nothing has changed since, and all pages are good.
//! So whoever tells the kernel of attributes that it may believe in has compared the tail before; and so has who answers the
//! question before a read.
//!
//! Where the question before a read finds another tail, the kernel is not told to drop pages: it would then drop the answer, too, and
//! read by the size from before. It drops them by itself where size or time of change are not what it knows; so it is told of a time
//! that the file never had ([`Pages::other_time`]), and that nothing lasts. Asked again, at the same tail, it is told to drop them, and the
//! tail is noted.
//!
//! **What is not closed**: Linux drops an answer's attributes where the inode was invalidated, or other attributes were taken in, after
//! the question was sent, and reads by the size that it knew before. So a read that comes while somebody changes the file for a second
//! time may end where the file ended before the first time. That is why `cache=strict` does not read by way of pages.
//!
//! A page that a read is filling is waited for when pages are dropped, and then dropped (the kernel has it locked); reads wait for
//! nobody who drops pages.

use polvo_format::Tail;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// A file of which pages were dropped because somebody else changes it is read past them for so long: its pages cost more than they
/// are worth.
const CONTENDED: Duration = Duration::from_secs(1);

/// What the kernel has of a file that was opened to be read by way of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    as_of: Tail,
    /// Another one that the question before a read has found since.
    found: Option<Tail>,
    /// When somebody else's change had them dropped last.
    recalled: Option<Instant>,
}

impl Pages {
    /// All that were there when a look found this tail have been dropped since.
    pub(crate) fn read_since(as_of: Tail) -> Pages {
        Pages {
            as_of,
            found: None,
            recalled: None,
        }
    }

    /// The same, of a file that is known already; or its bytes at this tail are what they were at the one that was noted.
    pub(crate) fn are_as_of(&mut self, as_of: Tail) {
        self.as_of = as_of;
        self.found = None;
    }

    /// The question before a read has found this tail, which is another one. True: for the first time.
    pub(crate) fn is_new(&mut self, tail: Tail) -> bool {
        self.found.replace(tail) != Some(tail)
    }

    /// A time that no file has: another one each time.
    pub(crate) fn other_time() -> i64 {
        static TIMES: AtomicI64 = AtomicI64::new(1);
        TIMES.fetch_add(1, Ordering::Relaxed)
    }

    /// Some are none of the file's.
    pub(crate) fn spoilt(self) -> Pages {
        let as_of = Tail::default(); // of no inode that there is
        Pages { as_of, ..self }
    }

    /// As of this tail, or later.
    pub(crate) fn as_of(&self) -> Tail {
        self.as_of
    }

    /// Somebody else is about to change the file.
    pub(crate) fn recalled(&mut self) {
        self.recalled = Some(Instant::now());
    }

    /// Somebody else has changed the file a moment ago.
    pub(crate) fn are_contended(&self) -> bool {
        self.recalled.is_some_and(|at| at.elapsed() < CONTENDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_somebody_else_changes_is_contended_for_a_while() {
        let mut pages = Pages::read_since(Tail::new(1, 3));
        assert!(!pages.are_contended());
        pages.recalled();
        pages.are_as_of(Tail::new(1, 5));
        assert!(pages.are_contended(), "whatever was read since");
        assert_eq!(pages.as_of(), Tail::new(1, 5));
        pages.recalled = Instant::now().checked_sub(CONTENDED);
        assert!(!pages.are_contended());
    }
}
