//! The index of an open file: file offset to place, as of a log tail.
//!
//! Made from the `FileMap`s that the primary hands out and kept up to date with the file's own log entries. Pure: no
//! I/O; who pulls entries, and when, is the business of `pull` and `read`. Maps are loaded where they are needed, page by
//! page: between the ranges that are known may lie others that are not, and what is known of very many extents is forgotten.

use crate::cache::known_ranges::KnownRanges;
use polvo_format::{Gpa, Tail};
use polvo_proto::{Extent, LogCursor};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most extents of a file that are kept (40 MB), ranges counted as extents; with more, all of them are forgotten and loaded
/// anew where they are needed.
const EXTENTS_MAX: usize = 1 << 20;

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
    /// Bytes the read yields (short at end of file, and where there are too many pieces).
    pub(crate) len: usize,
    /// There were too many pieces: more bytes of the read follow.
    pub(crate) cut: bool,
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
    /// Offsets that `extents` tells all about: what of them is not in there is a hole. No extent lies elsewhere.
    known: KnownRanges,
    extents: BTreeMap<u64, Place>,
    max: usize,
}

impl FileIndex {
    /// An index that knows the size and the log, but no extent yet.
    pub(crate) fn new(cursor: LogCursor, size: u64) -> FileIndex {
        FileIndex {
            cursor,
            size,
            known: KnownRanges::default(),
            extents: BTreeMap::new(),
            max: EXTENTS_MAX,
        }
    }

    /// The index of a file that has just been made: no extents.
    pub(crate) fn empty(cursor: LogCursor) -> FileIndex {
        FileIndex {
            known: KnownRanges::one(0..u64::MAX),
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

    /// Number of extents held.
    pub(crate) fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Adds extents that are all that lie in `range`, as of the index's own tail.
    pub(crate) fn add_page(&mut self, extents: &[Extent], range: Range<u64>) {
        self.make_room(extents.len());
        let places = extents.iter().map(|extent| {
            let Extent { offset, len, gpa } = *extent;
            (offset, Place { len, gpa })
        });
        self.fill(places, range);
    }

    /// Takes over what `other`, an index of the same tail, knows.
    pub(crate) fn join(&mut self, other: &FileIndex) {
        debug_assert_eq!(self.cursor.tail, other.cursor.tail);
        self.make_room(other.extents.len());
        for range in other.known.within(0..u64::MAX) {
            let first = other
                .extents
                .range(..=range.start)
                .next_back()
                .map_or(range.start, |(start, _)| *start);
            let places = other
                .extents
                .range(first..range.end)
                .map(|(offset, place)| (*offset, *place));
            self.fill(places, range);
        }
    }

    /// Enters the extents of a range, in order, where it is not known yet.
    fn fill(&mut self, places: impl Iterator<Item = (u64, Place)>, range: Range<u64>) {
        let gaps = self.known.gaps(range.clone());
        let mut gaps = gaps.iter().peekable();
        for (offset, place) in places {
            let end = offset.saturating_add(place.len);
            while let Some(gap) = gaps.peek() {
                let (start, stop) = (offset.max(gap.start), end.min(gap.end));
                if start < stop
                    && let Some(gpa) = place.gpa.checked_add(start - offset)
                {
                    self.insert(start, stop - start, gpa);
                }
                // the next extent may lie in this gap, too
                if end < gap.end {
                    break;
                }
                gaps.next();
            }
        }
        self.known.add(range.clone());
        debug_assert!(range.is_empty() || self.known.known_from(range.start) >= range.end);
    }

    /// Forgets what is known where it would become too much.
    fn make_room(&mut self, extents: usize) {
        if self.extents.len() + self.known.len() + extents > self.max {
            self.known.clear();
            self.extents.clear();
        }
        debug_assert!(
            self.extents.is_empty() || self.known.len() > 0,
            "an extent lies where all is known"
        );
    }

    /// Applies one change. Extents in parts that are not known are left out: they come with their page.
    pub(crate) fn apply(&mut self, change: &MapChange) {
        match *change {
            MapChange::Map { offset, len, gpa } => {
                let end = offset.saturating_add(len);
                if self.known.known_from(offset) >= end {
                    self.map(offset, len, gpa);
                } else {
                    let known: Vec<Range<u64>> = self.known.within(offset..end).collect();
                    for Range { start, end } in known {
                        self.map(start, end - start, Gpa(gpa.0 + (start - offset)));
                    }
                }
                self.size = self.size.max(end);
                self.make_room(0);
                debug_assert!(self.size >= end, "the file has what was written");
            }
            MapChange::Hole { offset, len } => self.cut(offset, offset.saturating_add(len)),
            MapChange::Size(size) => {
                if size < self.size {
                    self.cut(size, u64::MAX);
                    self.known.add(size..u64::MAX);
                    debug_assert!(self.is_unmapped(size, u64::MAX), "nothing lies beyond the end");
                }
                self.size = size;
            }
        }
    }

    /// The log has been applied up to here.
    pub(crate) fn set_cursor(&mut self, cursor: LogCursor) {
        let (now, new) = (self.cursor.tail, cursor.tail);
        debug_assert!(
            now.version() != new.version() || now.units() <= new.units(),
            "a log is followed forwards"
        );
        self.cursor = cursor;
    }

    /// What to fetch for a read of `len` bytes at `offset`, in at most `max` pieces.
    ///
    /// # Errors
    /// [`NotLoaded`] where the extents of what those pieces would be are not known.
    pub(crate) fn plan(&self, offset: u64, len: usize, max: usize) -> Result<Plan, NotLoaded> {
        let end = offset.saturating_add(len as u64).min(self.size);
        let mut plan = Plan {
            tail: self.cursor.tail,
            len: 0,
            cut: false,
            pieces: Vec::new(),
        };
        if offset >= end {
            return Ok(plan);
        }
        let known = self.known.known_from(offset).min(end);
        if known == offset {
            return Err(NotLoaded { at: offset });
        }
        let mut at = offset;
        let first = match self.extents.range(..=offset).next_back() {
            // one extent holds it all: most reads
            Some((&start, place)) if start + place.len >= end => {
                debug_assert!(known == end, "an extent lies where all is known");
                plan.len = (end - offset) as usize;
                plan.pieces.push(Piece {
                    len: plan.len,
                    gpa: Some(Gpa(place.gpa.0 + (offset - start))),
                });
                return Ok(plan);
            }
            Some((&start, _)) => start,
            None => offset,
        };
        for (&start, place) in self.extents.range(first..known) {
            let stop = (start + place.len).min(known);
            if stop <= at {
                continue;
            }
            if plan.pieces.len() + 2 > max {
                plan.cut = true;
                break;
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
        if !plan.cut && known < end {
            return Err(NotLoaded { at: known });
        }
        if !plan.cut && at < end {
            plan.cut = plan.pieces.len() >= max;
            if !plan.cut {
                plan.pieces.push(Piece {
                    len: (end - at) as usize,
                    gpa: None,
                });
                at = end;
            }
        }
        plan.len = (at - offset) as usize;
        debug_assert_eq!(plan.pieces.iter().map(|piece| piece.len).sum::<usize>(), plan.len);
        debug_assert!(plan.pieces.len() <= max && plan.pieces.iter().all(|piece| piece.len > 0));
        Ok(plan)
    }

    /// First offset at or after `offset` that is mapped, and below the size.
    ///
    /// # Errors
    /// [`NotLoaded`] where it is not known; up to there nothing is mapped.
    pub(crate) fn next_data(&self, offset: u64) -> Result<Option<u64>, NotLoaded> {
        if offset >= self.size {
            return Ok(None);
        }
        if let Some((&start, place)) = self.extents.range(..=offset).next_back()
            && start + place.len > offset
        {
            return Ok(Some(offset));
        }
        let known = self.known.known_from(offset);
        match self.extents.range(offset..known).next() {
            Some((&start, _)) if start < self.size => Ok(Some(start)),
            _ if known < self.size => Err(NotLoaded { at: known }),
            _ => Ok(None),
        }
    }

    /// First offset at or after `offset` that is not mapped; the end of the file counts as a hole. `None` past the end.
    ///
    /// # Errors
    /// [`NotLoaded`] where it is not known; up to there all is mapped.
    pub(crate) fn next_hole(&self, offset: u64) -> Result<Option<u64>, NotLoaded> {
        if offset >= self.size {
            return Ok(None);
        }
        let known = self.known.known_from(offset);
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
        if at >= known && known < self.size {
            return Err(NotLoaded { at: known });
        }
        Ok(Some(at.min(self.size)))
    }

    /// Maps a range that is known.
    fn map(&mut self, offset: u64, len: u64, gpa: Gpa) {
        debug_assert!(
            self.known.known_from(offset) >= offset + len,
            "an extent is entered where all is known"
        );
        if !self.replace(offset, len, gpa) {
            self.cut(offset, offset + len);
            debug_assert!(self.is_unmapped(offset, offset + len), "what was there is gone");
            self.insert(offset, len, gpa);
        }
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
        *self.extents.get_mut(&offset).expect("found above") = new;
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

    fn is_unmapped(&self, from: u64, to: u64) -> bool {
        let before = self.extents.range(..to).next_back();
        before.is_none_or(|(start, place)| start + place.len <= from)
    }

    /// Maps a range that is unmapped, joining it with its neighbours where they are neighbours on the media too.
    fn insert(&mut self, mut offset: u64, mut len: u64, mut gpa: Gpa) {
        if len == 0 {
            return;
        }
        debug_assert!(
            self.is_unmapped(offset, offset.saturating_add(len)),
            "extents do not overlap"
        );
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
pub(crate) struct NotLoaded {
    /// The first offset that is missed.
    pub(crate) at: u64,
}

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
            let Ok(plan) = index.plan(offset as u64, 100, usize::MAX) else {
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
            check_cut(index, model, offset);
            let hole = (offset < model.size).then(|| {
                (offset..model.size)
                    .find(|&i| model.bytes[i] == 0)
                    .unwrap_or(model.size) as u64
            });
            assert_eq!(index.next_hole(offset as u64), Ok(hole), "hole from {offset}");
        }
    }

    /// A plan of few pieces is the beginning of the whole one.
    fn check_cut(index: &FileIndex, model: &Model, offset: usize) {
        let whole = index.plan(offset as u64, 100, usize::MAX).expect("loaded");
        let plan = index.plan(offset as u64, 100, 3).expect("loaded");
        assert!(plan.pieces.len() <= 3 && (plan.cut || plan == whole));
        assert!(offset >= model.size || plan.len > 0, "it gets on");
        assert_eq!(plan.pieces.iter().map(|p| p.len).sum::<usize>(), plan.len);
        assert!(whole.pieces.starts_with(&plan.pieces));
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

        /// Pages fetched at different times and places, in any order, each brought up to date with the entries it missed,
        /// make the same index; what was never fetched stays unknown, whatever changes there.
        #[test]
        fn pages_of_different_tails_join(
            changes in prop::collection::vec(change(), 1..60),
            pages in prop::collection::vec((0..SPACE as u64, 1..128u64, 0usize..60), 1..12),
        ) {
            let (mut first, mut made) = (FileIndex::new(cursor(0), 0), 0);
            let mut fetched = vec![false; SPACE];
            let mut pages = pages;
            pages.sort_by_key(|(_, _, when)| *when);
            for (from, len, when) in pages {
                let when = when.min(changes.len());
                let mut whole = FileIndex::empty(cursor(0));
                changes[..when].iter().for_each(|c| whole.apply(c));
                let extents: Vec<Extent> =
                    whole.extents.iter().map(|(&offset, p)| Extent { offset, len: p.len, gpa: p.gpa }).collect();
                changes[made..when].iter().for_each(|c| first.apply(c));
                first.set_cursor(cursor(when as u64));
                made = when;
                let mut page = FileIndex::new(cursor(when as u64), whole.size);
                page.add_page(&extents, from..from + len);
                first.join(&page);
                fetched[from as usize..((from + len) as usize).min(SPACE)].fill(true);
            }
            changes[made..].iter().for_each(|c| first.apply(c));
            let mut model = Model { bytes: vec![0; SPACE], size: 0 };
            changes.iter().for_each(|c| model.apply(c));
            prop_assert_eq!(first.size(), model.size as u64);
            for offset in 0..model.size as u64 {
                let end = (offset + 40).min(model.size as u64);
                match first.plan(offset, 40, usize::MAX) {
                    Err(NotLoaded { at }) => {
                        prop_assert!((offset..end).contains(&at) && !fetched[at as usize], "{at} is known");
                    }
                    Ok(plan) => {
                        let mut at = offset as usize;
                        for piece in &plan.pieces {
                            for i in 0..piece.len {
                                prop_assert_eq!(model.bytes[at + i], piece.gpa.map_or(0, |g| g.0 + i as u64));
                            }
                            at += piece.len;
                        }
                        prop_assert_eq!(at as u64, end);
                    }
                }
                let mut mapped = (offset..model.size as u64).map(|i| model.bytes[i as usize] != 0);
                let data = first.next_data(offset);
                match data {
                    Err(NotLoaded { at }) => prop_assert!(mapped.by_ref().take((at - offset) as usize).all(|m| !m)),
                    Ok(data) => prop_assert_eq!(data, mapped.position(|m| m).map(|n| offset + n as u64)),
                }
                let mut mapped = (offset..model.size as u64).map(|i| model.bytes[i as usize] != 0);
                match first.next_hole(offset) {
                    Err(NotLoaded { at }) => prop_assert!(mapped.by_ref().take((at - offset) as usize).all(|m| m)),
                    Ok(hole) => {
                        let first = mapped.position(|m| !m).map_or(model.size as u64, |n| offset + n as u64);
                        prop_assert_eq!(hole, Some(first));
                    }
                }
            }
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
        let extent = |offset, len| Extent {
            offset,
            len,
            gpa: gpa(4096 + offset),
        };
        let missing = |at| NotLoaded { at };
        index.add_page(&[extent(0, 400)], 0..400);
        index.add_page(&[extent(600, 100)], 600..700);
        assert!(index.plan(0, 400, 9).is_ok());
        assert!(index.plan(600, 100, 9).is_ok(), "behind a gap");
        assert_eq!(index.plan(390, 20, 9), Err(missing(400)));
        assert_eq!(index.plan(500, 110, 9), Err(missing(500)));
        assert_eq!(index.next_data(500), Err(missing(500)));
        assert_eq!(index.next_hole(0), Err(missing(400)));
        assert_eq!(index.next_data(650), Ok(Some(650)));
        assert!(
            index.plan(1000, 20, 9).is_ok(),
            "past the end nothing needs to be known"
        );
        index.apply(&MapChange::Size(500));
        index.apply(&MapChange::Size(900));
        assert_eq!(index.next_data(500), Ok(None), "what was cut off is known to be empty");
    }

    #[test]
    fn very_many_extents_are_forgotten() {
        let mut index = FileIndex::empty(cursor(0));
        index.max = 100;
        for n in 0..1000u64 {
            index.apply(&MapChange::Map {
                offset: n * 10,
                len: 5,
                gpa: gpa(n * 64),
            });
            assert!(index.extents() <= 100);
            assert_eq!(index.size(), n * 10 + 5);
        }
        assert_eq!(index.plan(0, 5, 9), Err(NotLoaded { at: 0 }));
        for n in 0..300u64 {
            let mut page = FileIndex::new(cursor(0), index.size());
            let (offset, len, gpa) = (n * 10, 5, gpa(n * 64));
            page.add_page(&[Extent { offset, len, gpa }], offset..offset + 5);
            index.join(&page);
            assert!(index.extents() + index.known.len() <= 102);
            assert!(index.plan(offset, 5, 9).is_ok(), "what was asked for last is there");
        }
    }
}
