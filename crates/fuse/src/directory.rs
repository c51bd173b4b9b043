//! An open directory: where the reader is, and entries fetched ahead of it.
//!
//! The kernel addresses entries by offset and may come back to any it has seen (`seekdir`) or start over
//! (`rewinddir`). Offsets are positions in the directory itself, the cookies of its entries, which stay valid while
//! names come and go; so nothing needs to be kept for that. What is kept are entries that were fetched and did not fit
//! the kernel's buffer, and where the listing ends: new names have greater cookies, so a listing that followed them would
//! chase whoever renames files away and back. POSIX leaves open whether names made since `opendir` or `rewinddir` are shown.

use crate::attr::type_bits;
use crate::inodes::node_id;
use parking_lot::Mutex;
use polvo_fusedev::Errno;
use polvo_fusedev::abi::INodeNo;
use polvo_proto::{DirEntry, DirPage, FsError, InodeRef};
use std::collections::VecDeque;

/// Entries to fetch at once.
pub(crate) const FETCH: u32 = 256;
/// Offset after `.`.
const AFTER_DOT: u64 = 1;
/// Offset after `..`; an entry's offset is its cookie (never 0) above this.
const AFTER_DOT_DOT: u64 = 2;

/// One open directory.
pub(crate) struct OpenDirectory {
    /// Which.
    pub(crate) inode: InodeRef,
    /// Shown as the number of `..`.
    pub(crate) parent: INodeNo,
    ahead: Mutex<Ahead>,
}

/// Entries fetched ahead.
#[derive(Default)]
struct Ahead {
    /// Cookie of the last entry taken; `entries` follow it.
    after: u64,
    entries: VecDeque<DirEntry>,
    /// The directory had no more entries after these.
    ended: bool,
    /// Names with this cookie or a greater one were made since the listing began.
    end: Option<u64>,
}

/// What goes into the kernel's buffer.
pub(crate) enum Listed<'e> {
    /// `.` or `..`: number and name.
    Dot(INodeNo, &'static str),
    /// An entry.
    Entry(&'e DirEntry),
}

impl Listed<'_> {
    /// The bits of a mode that are its type.
    pub(crate) fn type_bits(&self) -> u32 {
        match self {
            Listed::Dot(..) => libc::S_IFDIR,
            Listed::Entry(entry) => type_bits(entry.kind),
        }
    }
}

/// What became of something to be listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It is in the buffer, or is not to be listed.
    Yes,
    /// The buffer is full.
    Full,
}

impl OpenDirectory {
    pub(crate) fn new(inode: InodeRef, parent: INodeNo) -> OpenDirectory {
        OpenDirectory {
            inode,
            parent,
            ahead: Mutex::default(),
        }
    }

    /// Lists from an offset on until the buffer is full or the directory ends. `fetch` gives up to [`FETCH`] entries after
    /// a cookie (none at the end); `take` puts one thing with the offset after it into the buffer.
    ///
    /// # Errors
    /// What `fetch` and `take` say, unless something is in the buffer already: then the error waits for the next call.
    pub(crate) fn list(
        &self,
        offset: u64,
        mut fetch: impl FnMut(u64) -> Result<DirPage, FsError>,
        mut take: impl FnMut(Listed<'_>, u64) -> Result<Taken, FsError>,
    ) -> Result<(), ListError> {
        let mut taken = 0u64;
        if offset < AFTER_DOT {
            if take(Listed::Dot(node_id(self.inode), "."), AFTER_DOT)? == Taken::Full {
                return Ok(());
            }
            taken += 1;
        }
        if offset < AFTER_DOT_DOT {
            if take(Listed::Dot(self.parent, ".."), AFTER_DOT_DOT)? == Taken::Full {
                return Ok(());
            }
            taken += 1;
        }
        let after = offset.saturating_sub(AFTER_DOT_DOT);
        let mut ahead = self.ahead.lock();
        // The start is always read anew: that is what rewinddir is for.
        if ahead.after != after || after == 0 {
            *ahead = Ahead {
                after,
                end: ahead.end.filter(|_| after != 0),
                ..Ahead::default()
            };
        }
        loop {
            if ahead.entries.is_empty() {
                if ahead.ended {
                    return Ok(());
                }
                let page = match fetch(ahead.after) {
                    Ok(page) => page,
                    Err(_) if taken > 0 => return Ok(()),
                    Err(error) => return Err(error.into()),
                };
                let end = *ahead.end.get_or_insert(page.next_cookie);
                let is_last = page.reaches(end);
                ahead.entries = page.entries.into_iter().take_while(|e| e.cookie < end).collect();
                ahead.ended = is_last;
                continue;
            }
            let entry = &ahead.entries[0];
            let cookie = entry.cookie;
            let next = match cookie.checked_add(AFTER_DOT_DOT) {
                Some(next) if cookie > 0 && i64::try_from(next).is_ok() => next,
                _ => return Err(ListError::Position(cookie)),
            };
            match take(Listed::Entry(entry), next) {
                Ok(Taken::Yes) => {}
                Ok(Taken::Full) => return Ok(()),
                Err(_) if taken > 0 => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            taken += 1;
            ahead.entries.pop_front();
            ahead.after = cookie;
        }
    }
}

/// Why a directory could not be listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    /// The client's error.
    #[error(transparent)]
    File(#[from] FsError),
    /// A cookie that is no position the kernel could come back to.
    #[error("directory position {0:#x} does not fit a file offset")]
    Position(u64),
}

impl ListError {
    pub(crate) fn errno(&self) -> Errno {
        match self {
            // removed (on another mount) since it was opened: what programs take for the end of the listing
            ListError::File(FsError::NotFound | FsError::Stale) => Errno::NOENT,
            ListError::File(error) => crate::error::errno(error),
            ListError::Position(_) => Errno::OVERFLOW,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{FileKind, Generation, Ino, Tail};

    fn inode(ino: u64) -> InodeRef {
        InodeRef {
            ino: Ino(ino),
            generation: Generation(1),
        }
    }

    fn entry(cookie: u64) -> DirEntry {
        DirEntry {
            cookie,
            target: inode(cookie ^ 1 << 40),
            kind: FileKind::File,
            name: format!("n{cookie}").into_bytes(),
        }
    }

    /// A page of a directory in which names were made up to `newest`.
    fn page(entries: Vec<DirEntry>, newest: u64) -> DirPage {
        DirPage {
            entries,
            next_cookie: newest + 1,
            tail: Tail::default(),
        }
    }

    /// Lists as the kernel does with room for `room` entries a call, calling `between` after each call.
    fn read_all(
        directory: &OpenDirectory,
        room: usize,
        names: &std::cell::RefCell<Vec<u64>>,
        mut between: impl FnMut(usize),
    ) -> Vec<String> {
        let (mut seen, mut offset, mut calls) = (Vec::new(), 0, 0);
        loop {
            let before = seen.len();
            let fetch = |after| {
                let names = names.borrow();
                let entries = names.iter().filter(|c| **c > after).take(3).map(|c| entry(*c));
                Ok(page(entries.collect(), names.last().copied().unwrap_or(0)))
            };
            directory
                .list(offset, fetch, |listed, next| {
                    if seen.len() - before == room {
                        return Ok(Taken::Full);
                    }
                    seen.push(match listed {
                        Listed::Dot(_, name) => name.to_owned(),
                        Listed::Entry(e) => String::from_utf8_lossy(&e.name).into_owned(),
                    });
                    offset = next;
                    Ok(Taken::Yes)
                })
                .expect("nothing fails here");
            if seen.len() == before {
                return seen;
            }
            calls += 1;
            between(calls);
        }
    }

    #[test]
    fn every_entry_once_whatever_the_room() {
        let names = std::cell::RefCell::new((1..=10).collect::<Vec<u64>>());
        let expected: Vec<String> = [".".to_owned(), "..".to_owned()]
            .into_iter()
            .chain((1..=10).map(|n| format!("n{n}")))
            .collect();
        for room in 1..15 {
            let directory = OpenDirectory::new(inode(9), INodeNo(4));
            assert_eq!(read_all(&directory, room, &names, |_| ()), expected, "room for {room}");
        }
    }

    #[test]
    fn a_listing_that_has_the_newest_name_is_not_asked_to_go_on() {
        let directory = OpenDirectory::new(inode(9), INodeNo(4));
        for (names, fetches) in [(vec![], 1), (vec![1, 2], 1), (vec![1, 2, 3, 4], 2)] {
            let mut fetched = 0;
            let fetch = |after| {
                fetched += 1;
                let entries = names.iter().filter(|c| **c > after).take(3).map(|c| entry(*c));
                Ok(page(entries.collect(), names.last().copied().unwrap_or(0)))
            };
            directory
                .list(0, fetch, |_, _| Ok(Taken::Yes))
                .expect("nothing fails here");
            assert_eq!(fetched, fetches, "{names:?}");
        }
    }

    #[test]
    fn deleting_what_was_listed_skips_nothing() {
        let names = std::cell::RefCell::new((1..=20).collect::<Vec<u64>>());
        let directory = OpenDirectory::new(inode(9), INodeNo(4));
        let seen = read_all(&directory, 5, &names, |calls| {
            names.borrow_mut().retain(|c| *c > calls as u64 * 3)
        });
        assert_eq!(seen.len(), 22);
    }

    /// xfstests generic/736: somebody renames a file away and back as fast as it is listed.
    #[test]
    fn a_listing_ends_however_busy_the_directory_is() {
        for room in 1..6 {
            let names = std::cell::RefCell::new((1..=20).collect::<Vec<u64>>());
            let directory = OpenDirectory::new(inode(9), INodeNo(4));
            let seen = read_all(&directory, room, &names, |calls| {
                assert!(calls < 100, "it goes on for ever");
                let mut names = names.borrow_mut();
                let newest = names.last().copied().unwrap_or(0);
                names.pop();
                names.extend(newest + 1..=newest + 5);
            });
            assert!(seen.len() <= 32, "room for {room}: {} entries", seen.len());
            let again = read_all(&directory, 100, &names, |_| ());
            assert_eq!(
                again.len(),
                2 + names.borrow().len(),
                "a new listing shows what is there now"
            );
        }
    }

    #[test]
    fn rewinding_shows_what_is_new_and_seeking_goes_back() {
        let names = std::cell::RefCell::new(vec![1, 2]);
        let directory = OpenDirectory::new(inode(9), INodeNo(4));
        assert_eq!(read_all(&directory, 10, &names, |_| ()).len(), 4);
        names.borrow_mut().push(3);
        assert_eq!(read_all(&directory, 10, &names, |_| ()).len(), 5);
        let mut seen = Vec::new();
        let fetch = |after| {
            let names = names.borrow();
            let entries = names.iter().filter(|c| **c > after).map(|c| entry(*c));
            Ok(page(entries.collect(), 3))
        };
        let take = |listed: Listed<'_>, next| {
            if let Listed::Entry(e) = listed {
                seen.push((e.cookie, next));
            }
            Ok(Taken::Yes)
        };
        directory
            .list(1 + AFTER_DOT_DOT, fetch, take)
            .expect("nothing fails here");
        assert_eq!(seen, [(2, 4), (3, 5)]);
    }

    #[test]
    fn an_error_waits_until_what_was_listed_is_delivered() {
        let directory = OpenDirectory::new(inode(9), INodeNo(4));
        let fetch = |after| {
            if after == 0 {
                Ok(page(vec![entry(1)], 2))
            } else {
                Err(FsError::Io("torn".into()))
            }
        };
        let mut last = 0;
        directory
            .list(0, fetch, |_, next| {
                last = next;
                Ok(Taken::Yes)
            })
            .expect("something was listed");
        assert_eq!(last, 3);
        let error = directory
            .list(3, fetch, |_, _| Ok(Taken::Yes))
            .expect_err("now it is due");
        assert_eq!(error.errno(), Errno::IO);
    }

    #[test]
    fn positions_that_no_offset_can_hold() {
        for cookie in [u64::MAX - 1, i64::MAX as u64 - 1, 0] {
            let directory = OpenDirectory::new(inode(9), INodeNo(4));
            let result = directory.list(
                2,
                |_| {
                    Ok(DirPage {
                        entries: vec![entry(cookie)],
                        next_cookie: u64::MAX,
                        tail: Tail::default(),
                    })
                },
                |_, _| Ok(Taken::Yes),
            );
            assert!(matches!(result, Err(ListError::Position(c)) if c == cookie));
        }
    }
}
