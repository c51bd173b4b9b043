//! Reading file data outside the region's lock: a snapshot says where the bytes lie, and while it is under way they stay.
//!
//! Data is copy-on-write, so what is mapped keeps its bytes until its pages are used again, and pages that are freed while a
//! snapshot is under way stay in quarantine until it has ended, however short space is. Whoever reads so can be trusted with
//! nothing but the file it may read: it never sees another one's bytes. One thing is written in place: bytes behind the end
//! of the file in its last page, which a snapshot shows if the file was shortened since. As long as one does, they go elsewhere.

use crate::dram_inode::Body;
use crate::snapshots::UnderWay;
use crate::{Region, RegionError};
use polvo_proto::{FsError, InodeRef};

/// Most pieces of one snapshot; a read of a file in smaller pieces is cut short.
const PIECES_MAX: usize = 512;

/// Bytes of a file that follow each other, and where they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// So many zeros.
    Zeros(u64),
    /// In a data page.
    Data {
        /// Offset in the pool, bytes.
        at: u64,
        /// Bytes; never across a segment.
        len: u64,
    },
    /// They lay in the log, and are here.
    Inline(Vec<u8>),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Zeros(len) | Piece::Data { len, .. } => *len,
            Piece::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Where the bytes of a read lie.
#[derive(Debug)]
#[must_use = "pages that it shows are not used again before its end"]
pub struct Snapshot {
    /// By which it is ended.
    pub number: u64,
    /// Bytes: short at the end of the file, or where there are very many pieces.
    pub len: u64,
    /// More of what was asked for follows.
    pub more: bool,
    /// Together `len` bytes.
    pub pieces: Vec<Piece>,
}

impl Region {
    /// Begins to read at most `len` bytes at an offset. Ended by [`Region::end_read`], always.
    ///
    /// # Errors
    /// EISDIR; EINVAL: not a regular file.
    pub fn begin_read(&mut self, inode: InodeRef, offset: u64, len: u64) -> Result<Snapshot, RegionError> {
        let (store, inode) = self.inode(inode)?;
        let mapping = match &inode.body {
            Body::File(view) => view.read(),
            Body::Directory(_) | Body::Counted(_) => return Err(FsError::IsDirectory.into()),
            Body::Special => return Err(FsError::Invalid("not a regular file".into()).into()),
        };
        let end = offset.saturating_add(len).min(inode.attr.size).max(offset);
        let mut pieces = Vec::new();
        let mut done = offset;
        for (at, extent) in mapping.index.from(offset).take_while(|(at, _)| *at < end) {
            if pieces.len() + 2 > PIECES_MAX {
                break;
            }
            let (start, stop) = (at.max(offset), (at + extent.len).min(end));
            if done < start {
                pieces.push(Piece::Zeros(start - done));
            }
            let from = extent.gpa.offset().0 + (start - at);
            pieces.push(if extent.inline {
                let mut bytes = vec![0; (stop - start) as usize];
                store.read(from, &mut bytes);
                Piece::Inline(bytes)
            } else {
                Piece::Data {
                    at: store.at(from),
                    len: stop - start,
                }
            });
            done = stop;
        }
        if pieces.len() + 2 <= PIECES_MAX && done < end {
            pieces.push(Piece::Zeros(end - done));
            done = end;
        }
        debug_assert_eq!(
            pieces.iter().map(Piece::len).sum::<u64>(),
            done - offset,
            "the pieces have all bytes"
        );
        let snapshots = &mut store.space.snapshots;
        snapshots.begun += 1;
        let shown = UnderWay {
            slot: inode.slot,
            end: done,
        };
        let before = snapshots.under_way.insert(snapshots.begun, shown);
        assert!(before.is_none(), "each snapshot has a number of its own");
        debug_assert!(
            pieces.len() <= PIECES_MAX && (offset..=end).contains(&done),
            "no more than was asked for"
        );
        Ok(Snapshot {
            number: snapshots.begun,
            len: done - offset,
            more: done < end,
            pieces,
        })
    }

    /// Ends a snapshot, once.
    pub fn end_read(&mut self, number: u64) {
        let snapshots = &mut self.store.space.snapshots;
        let ended = snapshots.under_way.remove(&number);
        debug_assert!(
            snapshots
                .under_way
                .last_key_value()
                .is_none_or(|(last, _)| *last <= snapshots.begun),
            "what is under way has begun"
        );
        debug_assert!(ended.is_some(), "snapshot {number} is under way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use polvo_format::{FileKind, PAGE, Tail};
    use polvo_proto::{SegmentClass, SetAttr, WriteAt};

    fn file(r: &mut Region, bytes: &[u8]) -> InodeRef {
        let file = make(r, ROOT, b"file", FileKind::File).unwrap();
        r.write(file, WriteAt::Offset(0), bytes, Tail(0), NOW).unwrap();
        file
    }

    fn shown(r: &Region, snapshot: &Snapshot) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in &snapshot.pieces {
            match piece {
                Piece::Zeros(len) => bytes.resize(bytes.len() + *len as usize, 0),
                Piece::Inline(inline) => bytes.extend_from_slice(inline),
                Piece::Data { at, len } => {
                    let start = bytes.len();
                    bytes.resize(start + *len as usize, 0);
                    r.store.pool.pmem().read(*at, &mut bytes[start..]);
                }
            }
        }
        assert_eq!(bytes.len() as u64, snapshot.len);
        bytes
    }

    #[test]
    fn it_shows_what_reading_shows() {
        let mut r = region(8);
        let file = file(&mut r, &[1; 3000]);
        r.write(file, WriteAt::Offset(10_000), &[2; 4096], Tail(0), NOW)
            .unwrap();
        r.write(file, WriteAt::Offset(100), b"inline", Tail(0), NOW).unwrap();
        for (offset, len) in [
            (0, 20_000),
            (50, 100),
            (2990, 8000),
            (14_000, 500),
            (14_096, 1),
            (50_000, 1),
            (7, 0),
        ] {
            let mut expected = vec![0; len as usize];
            let read = r.read(file, offset, &mut expected).unwrap();
            expected.truncate(read);
            let snapshot = r.begin_read(file, offset, len).unwrap();
            assert_eq!(shown(&r, &snapshot), expected, "{offset}+{len}");
            assert!(!snapshot.more);
            r.end_read(snapshot.number);
        }
        assert!(r.begin_read(ROOT, 0, 1).is_err());
    }

    #[test]
    fn pages_that_it_shows_are_not_used_again_before_its_end() {
        let mut r = region(8);
        let file = file(&mut r, &[7; PAGE]);
        let snapshot = r.begin_read(file, 0, PAGE as u64).unwrap();
        r.write(file, WriteAt::Offset(0), &[8; PAGE], Tail(0), NOW).unwrap();
        r.set_tick(100, 99);
        r.store.space.empty_quarantine();
        assert_eq!(r.store.space.quarantined(SegmentClass::Data), 1);
        // all space there is
        while let Ok(runs) = r.delegate(SESSION, 1000) {
            for run in runs {
                let at = r.store.at(run.gpa.offset().0);
                r.store.pool.pmem().write(at, &vec![9; run.pages as usize * PAGE]);
            }
        }
        assert_eq!(shown(&r, &snapshot), [7; PAGE]);
        r.end_read(snapshot.number);
        assert!(r.store.space.empty_quarantine(), "now they can be used");
    }

    #[test]
    fn it_stays_as_it_was_where_a_file_is_shortened_and_goes_on() {
        let mut r = region_without_checksums(8);
        let file = file(&mut r, &[1; 3000]);
        let whole = r.begin_read(file, 0, 10_000).unwrap();
        let beginning = r.begin_read(file, 0, 500).unwrap();
        r.write(file, WriteAt::End, &[2; 100], Tail(0), NOW).unwrap();
        r.write(file, WriteAt::Offset(0), &[3; 3000], Tail(0), NOW).unwrap();
        assert_eq!(shown(&r, &whole), [1; 3000], "an append and an overwrite go elsewhere");
        r.end_read(whole.number);
        let before = [[3; 3000].as_slice(), &[2; 100]].concat();
        let whole = r.begin_read(file, 0, 10_000).unwrap();
        let shorten = SetAttr {
            size: Some(1000),
            ..SetAttr::default()
        };
        r.set_attr(file, &shorten, NOW).unwrap();
        r.write(file, WriteAt::End, &[4; 2000], Tail(0), NOW).unwrap();
        assert_eq!(shown(&r, &whole), before);
        assert_eq!(shown(&r, &beginning), [1; 500]);
        for snapshot in [whole, beginning] {
            r.end_read(snapshot.number);
        }
        let mut after = vec![0; 3000];
        r.read(file, 0, &mut after).unwrap();
        assert_eq!(after, [[3; 1000].as_slice(), &[4; 2000]].concat());
    }

    #[test]
    fn a_file_in_very_many_pieces_is_shown_in_parts() {
        let mut r = region(16);
        let file = file(&mut r, b"x");
        for n in 1..2 * PIECES_MAX as u64 {
            r.write(file, WriteAt::Offset(n * 10), b"y", Tail(0), NOW).unwrap();
        }
        let (mut at, mut parts) = (0, 0);
        loop {
            let snapshot = r.begin_read(file, at, u64::MAX).unwrap();
            assert!(snapshot.pieces.len() <= PIECES_MAX);
            r.end_read(snapshot.number);
            at += snapshot.len;
            parts += 1;
            if !snapshot.more {
                break;
            }
        }
        assert_eq!(at, r.attr(file.ino, None).unwrap().0.size);
        assert!(parts > 2, "{parts}");
    }
}
