//! Whole listings of small directories, each as of a tail of the directory's log.
//!
//! As with names, nothing here is believed by itself: whoever has a token of the directory knows the tail that its log has now, and
//! equal tails mean equal listings.

use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_format::Tail;
use polvo_proto::{DirPage, InodeRef};

/// Most names in all listings; when there are more, all are forgotten.
const NAMES_MAX: usize = 1 << 16;

#[derive(Default)]
struct Kept {
    pages: HashMap<InodeRef, DirPage>,
    names: usize,
}

/// Listings that have come whole, in one page.
#[derive(Default)]
pub(crate) struct Listings(Mutex<Kept>);

/// What a listing counts for: also that of an empty directory takes space.
fn weight(page: &DirPage) -> usize {
    page.entries.len() + 1
}

impl Listings {
    /// All names of a directory whose log is at this tail, if they are known and no more than `max`.
    pub(crate) fn get(&self, dir: InodeRef, tail: Tail, max: u32) -> Option<DirPage> {
        let kept = self.0.lock();
        let page = kept.pages.get(&dir)?;
        (page.tail == tail && page.entries.len() <= max as usize).then(|| page.clone())
    }

    /// A log may have gone back, and have got another content up to a tail that was seen before: nothing is known any more.
    pub(crate) fn forget(&self) {
        *self.0.lock() = Kept::default();
    }

    /// A directory was listed from its beginning.
    pub(crate) fn keep(&self, dir: InodeRef, page: &DirPage) {
        if !page.reaches(page.next_cookie) {
            return;
        }
        let mut kept = self.0.lock();
        if kept.names + weight(page) > NAMES_MAX {
            *kept = Kept::default();
        }
        let before = kept.pages.insert(dir, page.clone());
        kept.names = kept.names + weight(page) - before.as_ref().map_or(0, weight);
        debug_assert!(kept.names >= kept.pages.len(), "each listing counts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{FileKind, Generation, Ino};
    use polvo_proto::DirEntry;

    fn inode(ino: u64) -> InodeRef {
        InodeRef {
            ino: Ino(ino),
            generation: Generation(1),
        }
    }

    fn page(cookies: std::ops::Range<u64>, newest: u64, version: u32) -> DirPage {
        let entry = |cookie| DirEntry {
            cookie,
            target: inode(cookie),
            kind: FileKind::File,
            name: format!("n{cookie}").into_bytes(),
        };
        DirPage {
            entries: cookies.map(entry).collect(),
            next_cookie: newest + 1,
            tail: Tail::new(version, 3),
        }
    }

    #[test]
    fn a_listing_is_known_if_it_was_whole_and_nothing_has_changed() {
        let listings = Listings::default();
        let (whole, part) = (page(1..4, 3, 1), page(1..4, 9, 1));
        listings.keep(inode(1), &whole);
        listings.keep(inode(2), &part);
        assert_eq!(listings.get(inode(1), whole.tail, 3), Some(whole.clone()));
        assert_eq!(listings.get(inode(1), whole.tail, 2), None, "more than was asked for");
        assert_eq!(listings.get(inode(1), Tail::new(1, 5), 3), None, "it has changed");
        assert_eq!(listings.get(inode(2), part.tail, 9), None, "there is more");
        let empty = page(1..1, 7, 1);
        listings.keep(inode(2), &empty);
        assert_eq!(listings.get(inode(2), empty.tail, 0), Some(empty.clone()));
        listings.forget();
        assert_eq!(listings.get(inode(2), empty.tail, 0), None);
    }

    #[test]
    fn there_are_no_more_than_so_many_names() {
        let listings = Listings::default();
        for ino in 0..1000 {
            listings.keep(inode(ino), &page(1..101, 100, 1));
            assert!(listings.0.lock().names <= NAMES_MAX);
        }
        assert!(listings.get(inode(999), Tail::new(1, 3), 100).is_some());
    }
}
