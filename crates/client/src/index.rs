//! The index of an open file: file offset to place, as of a log tail.
//!
//! Made from the `FileMap`s that the primary hands out and kept up to date with the file's own log entries. Pure: no
//! I/O; who pulls entries, and when, is the business of `pull` and `read`. Large maps are loaded as far as they are
//! needed: offsets from [`FileIndex::known_to`] on are not known yet.

use polvo_format::{Gpa, Tail};
use polvo_proto::{Extent, LogCursor};
use std::collections::BTreeMap;

/// One effect of a log entry on a file's mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MapChange {
    /// Bytes now lie at `gpa`; the file reaches at least to their end.
    Map {
        /// file offset
        offset: u64,
        /// bytes
        len: u64,
        /// where
        gpa: Gpa,
    },
    /// The range reads as zeros; the size stays.
    Hole {
        /// file offset
        offset: u64,
        /// bytes
        len: u64,
    },
    /// The file ends here: what lay beyond is gone.
    Size(u64),
}

impl MapChange {
    /// Whether bytes of `offset..offset + len` that lie in the file may read differently after the change. (Whether the
    /// file ends elsewhere is for the caller to see.)
    pub(crate) fn touches(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        match *self {
            MapChange::Map { offset: o, len: l, .. } | MapChange::Hole { offset: o, len: l } => {
                o < end && offset < o.saturating_add(l)
            }
            MapChange::Size(size) => size < end,
        }
    }
}

/// Part of a planned read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Bytes.
    pub(crate) len: usize,
    /// Where they lie; `None` for zeros.
    pub(crate) gpa: Option<Gpa>,
}

/// What to fetch for a read, valid while the log tail is `tail`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The log tail for which the plan holds.
    pub(crate) tail: Tail,
    /// Bytes the read yields (short at end of file).
    pub(crate) len: usize,
    /// Consecutive parts, together `len` bytes.
    pub(crate) pieces: Vec<Piece>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    len: u64,
    gpa: Gpa,
}

/// Mapping of one file as of a log tail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileIndex {
    cursor: LogCursor,
    size: u64,
    /// Offsets below are fully covered by `extents` (what is not in there is a hole).
    known_to: u64,
    extents: BTreeMap<u64, Place>,
}

impl FileIndex {
    /// An index that knows the size and the log, but no extent yet.
    pub(crate) fn new(cursor: LogCursor, size: u64) -> FileIndex {
        FileIndex {
            cursor,
            size,
            known_to: 0,
            extents: BTreeMap::new(),
        }
    }

    /// The index of a file that has just been made: no extents.
    pub(crate) fn empty(cursor: LogCursor) -> FileIndex {
        FileIndex {
            known_to: u64::MAX,
            ..FileIndex::new(cursor, 0)
        }
    }

    /// The log as of which the index holds.
    pub(crate) fn cursor(&self) -> LogCursor {
        self.cursor
    }

    /// File size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Offsets from here on are not known.
    pub(crate) fn known_to(&self) -> u64 {
        self.known_to
    }

    /// Number of extents held.
    pub(crate) fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Adds a page of extents that starts at `known_to` and reaches to `to` (`u64::MAX` for the last page). The page
    /// must be of the same tail as the index.
    pub(crate) fn add_page(&mut self, extents: &[Extent], to: u64) {
        let from = self.known_to;
        for extent in extents {
            let end = extent.offset.saturating_add(extent.len).min(to);
            let start = extent.offset.max(from);
            if start < end
                && let Some(gpa) = extent.gpa.checked_add(start - extent.offset)
            {
                self.insert(start, end - start, gpa);
            }
        }
        self.known_to = self.known_to.max(to);
    }

    /// Takes over the extents that `other`, an index of the same tail, knows from our `known_to` on.
    pub(crate) fn join(&mut self, other: &FileIndex) {
        debug_assert_eq!(self.cursor.tail, other.cursor.tail);
        let from = self.known_to;
        if other.known_to <= from {
            return;
        }
        for (&offset, place) in &other.extents {
            let end = offset + place.len;
            let start = offset.max(from);
            if start < end
                && let Some(gpa) = place.gpa.checked_add(start - offset)
            {
                self.insert(start, end - start, gpa);
            }
        }
        self.known_to = other.known_to;
    }

    /// Restricts what is known to offsets from `from` on (used for a page that lies in the middle of a file).
    pub(crate) fn starting_at(mut self, from: u64) -> FileIndex {
        self.known_to = from;
        self
    }

    /// Applies one change. Extents in the part that is not known yet are left out: they come with their page.
    pub(crate) fn apply(&mut self, change: &MapChange) {
        match *change {
            MapChange::Map { offset, len, gpa } => {
                let end = offset.saturating_add(len);
                let known = end.min(self.known_to);
                if offset < known && !self.replace(offset, known - offset, gpa) {
                    self.cut(offset, known);
                    self.insert(offset, known - offset, gpa);
                }
                self.size = self.size.max(end);
            }
            MapChange::Hole { offset, len } => self.cut(offset, offset.saturating_add(len)),
            MapChange::Size(size) => {
                if size < self.size {
                    self.cut(size, u64::MAX);
                }
                self.size = size;
            }
        }
    }

    /// The log has been applied up to here.
    pub(crate) fn set_cursor(&mut self, cursor: LogCursor) {
        self.cursor = cursor;
    }

    /// What to fetch for a read of `len` bytes at `offset`; `None` when the extents there are not loaded.
    pub(crate) fn plan(&self, offset: u64, len: usize) -> Option<Plan> {
        let end = offset.saturating_add(len as u64).min(self.size);
        let mut plan = Plan {
            tail: self.cursor.tail,
            len: 0,
            pieces: Vec::new(),
        };
        if offset >= end {
            return Some(plan);
        }
        if end > self.known_to {
            return None;
        }
        plan.len = (end - offset) as usize;
        let mut at = offset;
        let first = match self.extents.range(..=offset).next_back() {
            // one extent holds it all: most reads
            Some((&start, place)) if start + place.len >= end => {
                plan.pieces.push(Piece {
                    len: plan.len,
                    gpa: Some(Gpa(place.gpa.0 + (offset - start))),
                });
                return Some(plan);
            }
            Some((&start, _)) => start,
            None => offset,
        };
        for (&start, place) in self.extents.range(first..end) {
            let stop = (start + place.len).min(end);
            if stop <= at {
                continue;
            }
            if start > at {
                plan.pieces.push(Piece {
                    len: (start - at) as usize,
                    gpa: None,
                });
                at = start;
            }
            let gpa = Gpa(place.gpa.0 + (at - start));
            plan.pieces.push(Piece {
                len: (stop - at) as usize,
                gpa: Some(gpa),
            });
            at = stop;
        }
        if at < end {
            plan.pieces.push(Piece {
                len: (end - at) as usize,
                gpa: None,
            });
        }
        Some(plan)
    }

    /// First offset at or after `offset` that is mapped, and below the size. `Err` when more must be loaded first:
    /// the index is complete only up to [`FileIndex::known_to`].
    pub(crate) fn next_data(&self, offset: u64) -> Result<Option<u64>, NotLoaded> {
        if offset >= self.size {
            return Ok(None);
        }
        if let Some((&start, place)) = self.extents.range(..=offset).next_back()
            && start + place.len > offset
        {
            return Ok(Some(offset));
        }
        match self.extents.range(offset..).next() {
            Some((&start, _)) if start < self.size => Ok(Some(start)),
            _ if self.known_to < self.size => Err(NotLoaded),
            _ => Ok(None),
        }
    }

    /// First offset at or after `offset` that is not mapped; the end of the file counts as a hole. `None` past the end.
    pub(crate) fn next_hole(&self, offset: u64) -> Result<Option<u64>, NotLoaded> {
        if offset >= self.size {
            return Ok(None);
        }
        let mut at = offset;
        if let Some((&start, place)) = self.extents.range(..=at).next_back() {
            at = at.max(start + place.len);
        }
        if at > offset || self.extents.contains_key(&at) {
            for (&start, place) in self.extents.range(at..) {
                if start != at {
                    break;
                }
                at = start + place.len;
            }
        }
        if at >= self.known_to && self.known_to < self.size {
            return Err(NotLoaded);
        }
        Ok(Some(at.min(self.size)))
    }

    /// Maps a range that one extent covers exactly, where it joins no neighbour: an overwrite of what was written in one
    /// piece. The tree stays as it is. False when that is not so, and nothing was done.
    fn replace(&mut self, offset: u64, len: u64, gpa: Gpa) -> bool {
        let follows = |place: &Place, gpa: Gpa| place.gpa.checked_add(place.len) == Some(gpa);
        if self.extents.get(&offset).is_none_or(|old| old.len != len) {
            return false;
        }
        let before = self.extents.range(..offset).next_back();
        if before.is_some_and(|(start, place)| start + place.len == offset && follows(place, gpa)) {
            return false;
        }
        let new = Place { len, gpa };
        let after = self.extents.get(&(offset + len));
        if after.is_some_and(|after| follows(&new, after.gpa)) {
            return false;
        }
        *self.extents.get_mut(&offset).expect("looked at above") = new;
        true
    }

    /// Removes everything mapped in `from..to`.
    fn cut(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        if let Some((&start, &place)) = self.extents.range(..from).next_back() {
            let end = start + place.len;
            if end > from {
                self.extents.insert(
                    start,
                    Place {
                        len: from - start,
                        gpa: place.gpa,
                    },
                );
                if end > to {
                    let rest = Place {
                        len: end - to,
                        gpa: Gpa(place.gpa.0 + (to - start)),
                    };
                    self.extents.insert(to, rest);
                    return;
                }
            }
        }
        while let Some((&start, &place)) = self.extents.range(from..to).next() {
            self.extents.remove(&start);
            let end = start + place.len;
            if end > to {
                let rest = Place {
                    len: end - to,
                    gpa: Gpa(place.gpa.0 + (to - start)),
                };
                self.extents.insert(to, rest);
            }
        }
    }

    /// Maps a range that is unmapped, joining it with its neighbours where they are neighbours on the media too.
    fn insert(&mut self, mut offset: u64, mut len: u64, mut gpa: Gpa) {
        if len == 0 {
            return;
        }
        if let Some((&start, &place)) = self.extents.range(..offset).next_back()
            && start + place.len == offset
            && place.gpa.checked_add(place.len) == Some(gpa)
        {
            self.extents.remove(&start);
            (offset, len, gpa) = (start, place.len + len, place.gpa);
        }
        if let Some(&next) = self.extents.get(&(offset + len))
            && gpa.checked_add(len) == Some(next.gpa)
        {
            self.extents.remove(&(offset + len));
            len += next.len;
        }
        self.extents.insert(offset, Place { len, gpa });
    }
}

/// The answer lies in a part of the map that is not loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotLoaded;

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{RegionId, RegionOffset};
    use proptest::prelude::*;

    const SPACE: usize = 512;

    fn cursor(units: u64) -> LogCursor {
        LogCursor {
            tail: Tail::new(1, units),
            page: RegionOffset(0),
        }
    }

    fn gpa(at: u64) -> Gpa {
        Gpa::new(RegionId(3), RegionOffset(at))
    }

    /// A file as an array: for each byte the address it lies at, or 0.
    #[derive(Clone)]
    struct Model {
        bytes: Vec<u64>,
        size: usize,
    }

    impl Model {
        fn apply(&mut self, change: &MapChange) {
            match *change {
                MapChange::Map { offset, len, gpa } => {
                    for i in 0..len {
                        self.bytes[(offset + i) as usize] = gpa.0 + i;
                    }
                    self.size = self.size.max((offset + len) as usize);
                }
                MapChange::Hole { offset, len } => self.bytes[offset as usize..(offset + len) as usize].fill(0),
                MapChange::Size(size) => {
                    self.bytes[size as usize..].fill(0);
                    self.size = size as usize;
                }
            }
        }
    }

    fn change() -> impl Strategy<Value = MapChange> {
        let range = (0..SPACE as u64 - 64, 1..64u64);
        prop_oneof![
            4 => (range.clone(), 1..1u64 << 12).prop_map(|((offset, len), at)| MapChange::Map {
                offset, len, gpa: gpa(at * 16)
            }),
            // on a grid, so that extents are exchanged in place and meet their neighbours
            4 => (0..SPACE as u64 / 16 - 4, 1..64u64).prop_map(|(n, at)| MapChange::Map {
                offset: n * 16, len: 16, gpa: gpa(at * 16)
            }),
            2 => range.prop_map(|(offset, len)| MapChange::Hole { offset, len }),
            1 => (0..SPACE as u64).prop_map(MapChange::Size),
        ]
    }

    fn check(index: &FileIndex, model: &Model) {
        assert_eq!(index.size(), model.size as u64);
        for offset in (0..SPACE).step_by(7) {
            let Some(plan) = index.plan(offset as u64, 100) else {
                panic!("plan of loaded index")
            };
            assert_eq!(plan.len, model.size.saturating_sub(offset).min(100));
            assert_eq!(plan.pieces.iter().map(|p| p.len).sum::<usize>(), plan.len);
            let mut at = offset;
            for piece in &plan.pieces {
                for i in 0..piece.len {
                    let expect = piece.gpa.map_or(0, |g| g.0 + i as u64);
                    assert_eq!(model.bytes[at + i], expect, "byte {}", at + i);
                }
                at += piece.len;
            }
            let data = (offset..model.size).find(|&i| model.bytes[i] != 0).map(|i| i as u64);
            assert_eq!(index.next_data(offset as u64), Ok(data));
            let hole = (offset < model.size).then(|| {
                (offset..model.size)
                    .find(|&i| model.bytes[i] == 0)
                    .unwrap_or(model.size) as u64
            });
            assert_eq!(index.next_hole(offset as u64), Ok(hole), "hole from {offset}");
        }
    }

    proptest! {
        #[test]
        fn overlay_equals_byte_array(changes in prop::collection::vec(change(), 1..60)) {
            let mut index = FileIndex::empty(cursor(0));
            let mut model = Model { bytes: vec![0; SPACE], size: 0 };
            for c in &changes {
                index.apply(c);
                model.apply(c);
            }
            check(&index, &model);
        }

        /// Pages fetched at different times, each brought up to date with the entries it missed, make the same index.
        #[test]
        fn pages_of_different_tails_join(
            changes in prop::collection::vec(change(), 1..60), cut in 0..SPACE as u64, early in 0usize..60, late in 0usize..60,
        ) {
            let early = early.min(changes.len());
            let late = late.clamp(early, changes.len());
            let whole = |n: usize| {
                let mut index = FileIndex::empty(cursor(0));
                changes[..n].iter().for_each(|c| index.apply(c));
                index
            };
            let extents = |n: usize| -> Vec<Extent> {
                whole(n).extents.iter().map(|(&offset, p)| Extent { offset, len: p.len, gpa: p.gpa }).collect()
            };
            let mut first = FileIndex::new(cursor(early as u64), whole(early).size);
            first.add_page(&extents(early), cut);
            let mut second = FileIndex::new(cursor(late as u64), whole(late).size).starting_at(cut);
            second.add_page(&extents(late), u64::MAX);
            changes[early..].iter().for_each(|c| first.apply(c));
            changes[late..].iter().for_each(|c| second.apply(c));
            first.set_cursor(cursor(changes.len() as u64));
            second.set_cursor(cursor(changes.len() as u64));
            first.join(&second);
            let mut model = Model { bytes: vec![0; SPACE], size: 0 };
            changes.iter().for_each(|c| model.apply(c));
            check(&first, &model);
        }

        /// `touches` never denies a change that alters what a read sees.
        #[test]
        fn touching_is_never_denied(before in prop::collection::vec(change(), 0..20), c in change(), at in 0..SPACE - 64, len in 1usize..64) {
            let mut model = Model { bytes: vec![0; SPACE], size: 0 };
            before.iter().for_each(|c| model.apply(c));
            let mut after = model.clone();
            after.apply(&c);
            let end = (at + len).min(model.size).max(at);
            if model.bytes[at..end] != after.bytes[at..end] {
                prop_assert!(c.touches(at as u64, (end - at) as u64));
            }
        }
    }

    #[test]
    fn neighbours_in_file_and_media_join() {
        let mut index = FileIndex::empty(cursor(0));
        index.apply(&MapChange::Map {
            offset: 0,
            len: 100,
            gpa: gpa(4096),
        });
        index.apply(&MapChange::Map {
            offset: 100,
            len: 3996,
            gpa: gpa(4196),
        });
        assert_eq!(index.extents(), 1);
        index.apply(&MapChange::Map {
            offset: 5000,
            len: 10,
            gpa: gpa(8192),
        });
        index.apply(&MapChange::Map {
            offset: 4096,
            len: 10,
            gpa: gpa(9000),
        });
        assert_eq!(index.extents(), 3);
    }

    #[test]
    fn unknown_part_is_not_planned() {
        let mut index = FileIndex::new(cursor(0), 1000);
        index.add_page(
            &[Extent {
                offset: 0,
                len: 400,
                gpa: gpa(4096),
            }],
            400,
        );
        assert!(index.plan(0, 400).is_some());
        assert!(index.plan(390, 20).is_none());
        assert_eq!(index.next_data(500), Err(NotLoaded));
        assert_eq!(index.next_hole(0), Err(NotLoaded));
        assert!(index.plan(1000, 20).is_some(), "past the end nothing needs to be known");
    }
}
