//! Segment cleaning: what is left in a segment of data that is hardly used moves elsewhere, so that the segment can go back to the
//! pool ([`shrink`](crate::shrink)).
//!
//! Writes go to space that was delegated, and what they replace lies anywhere: in the end a region has a little in each of many
//! segments, which other regions cannot use, nor the copies of this one. So while pools fill up, one segment after the other is closed
//! (nothing of it is given out), and all files are gone through, a bounded piece in each step of housekeeping. Whole pages are copied
//! with their checksums, verified before; the file's log gets entries that map them where they lie now, with the file's own times: to
//! whoever reads it nothing has changed but the tail. The old pages go to quarantine, as if they had been written anew, so readers,
//! snapshots and mirrors need to know nothing of this. What cannot be moved (damaged, or in the hands of a session or a transaction)
//! stays: then the segment is opened again, and another one is taken. So does what files with very long logs have that are not in use.
//!
//! Rosenblum and Ousterhout, *The Design and Implementation of a Log-Structured File System* (1992), section 3.

use crate::dram_inode::Body;
use crate::extents::Mapped;
use crate::space::{Run, each_page};
use crate::store::{Store, Urgency};
use crate::{Region, RegionError};
use polvo_format::{AttrChange, Entry, FileKind, InodeHead, PAGE};
use polvo_proto::{FsError, SegmentClass};
use std::collections::{BTreeMap, BTreeSet};

const PAGE_BYTES: u64 = PAGE as u64;
/// Closed segments: most. They are so until nobody can be reading in them any more.
const CLOSED_MAX: usize = 8;
/// Steps at a time,
const STEPS: usize = 4;
/// in each of which so many pages are copied at most: about a millisecond's work, together with
const PAGES_PER_STEP: u64 = 256;
/// most files, or longer logs, that are looked at.
const LOOKED_AT_PER_STEP: usize = 512;
/// A longer log (1 MiB) is not read for this.
const LOG_UNITS_MAX: u64 = 1 << 14;
/// Most pieces that are mapped anew at once, but for those of one page.
const ENTRIES_MAX: usize = 512;

/// What is being cleaned, and what was.
#[derive(Default)]
pub(crate) struct Cleaning {
    now: Option<Position>,
    /// segments that were cleaned, some in vain, since all were
    tried: BTreeSet<u32>,
}

impl Cleaning {
    /// The segment that is being cleaned.
    pub fn segment(&self) -> Option<u32> {
        Some(self.now?.segment)
    }

    /// It is left as it is.
    pub fn stop(&mut self) {
        self.now = None;
    }
}

#[derive(Clone, Copy)]
struct Position {
    segment: u32,
    /// files from this slot on are to be looked at
    slot: u64,
}

/// What was moved of a file.
#[derive(Clone, Copy, Default)]
struct Moved {
    pages: u64,
    /// There is more that can be.
    rest: bool,
}

/// Pages that follow each other are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Move {
    /// region offsets
    from: u64,
    to: u64,
    len: u64,
}

impl Region {
    /// Cleans segments, a bounded piece; `spare` pages are to stay free when they are gone.
    pub(crate) fn clean(&mut self, spare: u64) {
        for _ in 0..STEPS {
            if !self.clean_some() && !self.begin_to_clean(spare) {
                return;
            }
        }
    }

    /// Closes a segment of data of which at most half is in use, if there is one and as much is free elsewhere.
    fn begin_to_clean(&mut self, spare: u64) -> bool {
        if self.store.space.closed() >= CLOSED_MAX {
            return false;
        }
        let (store, tried) = (&mut self.store, &mut self.cleaning.tried);
        let Some(segment) = store.hardly_used_data(spare, tried) else {
            // while some are closed there is less room than there will be
            if store.space.closed() == 0 {
                tried.clear();
            }
            return false;
        };
        tried.insert(segment);
        let (region, used) = (store.region.0, store.space.bitmap(segment).used());
        tracing::debug!(region, segment, used, "a segment is cleaned");
        store.space.close(segment);
        self.cleaning.now = Some(Position { segment, slot: 1 });
        true
    }

    /// Moves some of what is left in the segment that is being cleaned; false when there is nothing (more) that can be.
    fn clean_some(&mut self) -> bool {
        let Some(Position { segment, mut slot }) = self.cleaning.now.take() else {
            return false;
        };
        // where space was short, it has been opened since, and may be gone
        if !self.store.space.is_closed(segment) || self.store.space.left_in_closed(segment) == 0 {
            return false;
        }
        let (mut pages, mut looked_at) = (0, 0);
        while pages < PAGES_PER_STEP && looked_at < LOOKED_AT_PER_STEP {
            // a file's log may have needed the room
            if !self.store.space.is_closed(segment) {
                return false;
            }
            let Some(next) = self.store.space.next_slot(slot) else {
                return false;
            };
            slot = next + 1;
            match self.clean_file(next, segment, PAGES_PER_STEP - pages, &mut looked_at) {
                Ok(Moved { pages: some, rest }) => {
                    pages += some;
                    if rest {
                        slot = next;
                    }
                }
                Err(RegionError::Fs(FsError::NoSpace)) => return false,
                Err(error) => {
                    tracing::debug!(region = self.store.region.0, slot = next, %error, "a file's data are not moved");
                }
            }
        }
        self.cleaning.now = Some(Position { segment, slot });
        true
    }

    /// Moves what a file has in a segment, at most so many pages (at least one).
    fn clean_file(&mut self, slot: u64, segment: u32, most: u64, looked_at: &mut usize) -> Result<Moved, RegionError> {
        debug_assert!(most > 0 && self.store.origin.is_none(), "nobody has asked for this");
        *looked_at += 1;
        let ino = self.store.ino(slot);
        self.reach(ino)?;
        if self.locked.contains(slot) {
            return Ok(Moved::default());
        }
        // directories, and logs that take long to be read, are not read for this
        let Ok(head) = InodeHead::decode(&self.store.read_slot(slot), ino) else {
            return Ok(Moved::default());
        };
        let is_file = matches!(head.kind, Some(FileKind::File | FileKind::Object | FileKind::Symlink));
        if !is_file || head.tail.units() > LOG_UNITS_MAX && !self.cache.has(slot) {
            return Ok(Moved::default());
        }
        *looked_at += head.tail.units() as usize / 64;
        let inode = self.cache.get(&self.store, slot)?;
        let store = &mut self.store;
        let Body::File(view) = &inode.body else {
            return Ok(Moved::default());
        };
        let shift = store.segment_shift();
        let lies_there = |mapped: &Mapped| !mapped.inline && mapped.gpa.offset().0 >> shift == u64::from(segment);
        let extents = view
            .read()
            .index
            .iter()
            .filter(|(_, mapped)| lies_there(mapped))
            .collect::<Vec<_>>();
        let moved = StagedMove::of(store, &extents, most)?;
        let mut entries = moved.entries(&extents, inode.attr.mtime_ns);
        if entries.is_empty() {
            return Ok(Moved::default());
        }
        entries.push(Entry::SetAttr(AttrChange {
            mtime_ns: Some(inode.attr.mtime_ns),
            ctime_ns: inode.attr.ctime_ns,
            ..AttrChange::default()
        }));
        let (attr, moves) = (inode.attr, &moved.moves);
        let copy = |store: &Store| moves.iter().for_each(|pages| store.copy_pages(*pages));
        moved.store.append(inode, &entries, Urgency::Normal, copy)?;
        debug_assert_eq!(inode.attr, attr, "only where its bytes lie has changed");
        let rest = moved.rest;
        Ok(Moved {
            pages: moved.happened(&entries),
            rest,
        })
    }
}

/// Pages taken for what is to move; the guard gives them back unless it has happened.
struct StagedMove<'a> {
    store: &'a mut Store,
    moves: Vec<Move>,
    /// There is more that could move.
    rest: bool,
    happened: bool,
}

impl Drop for StagedMove<'_> {
    fn drop(&mut self) {
        if !self.happened {
            for Move { to, len, .. } in &self.moves {
                let run = self.store.space.page_run(*to, len / PAGE_BYTES);
                self.store.space.give(run);
            }
        }
    }
}

impl<'a> StagedMove<'a> {
    /// Takes pages for what extents of one segment have there, at most so many. Damaged pages stay where they are.
    fn of(store: &'a mut Store, extents: &[(u64, Mapped)], most: u64) -> Result<StagedMove<'a>, RegionError> {
        let mut pieces: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, mapped) in extents {
            each_page(mapped.gpa.offset().0, mapped.len, |page, _| {
                *pieces.entry(page).or_default() += 1
            });
        }
        let mut staged = StagedMove {
            store,
            moves: Vec::new(),
            rest: false,
            happened: false,
        };
        let space = &staged.store.pool;
        let is_sound = |page: &u64| space.damaged_page(staged.store.at(page * PAGE_BYTES), 1).is_none();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let (mut pages, mut entries) = (0, 0);
        for (page, its) in pieces.into_iter().filter(|(page, _)| is_sound(page)) {
            (pages, entries) = (pages + 1, entries + its);
            if pages > most || pages > 1 && entries > ENTRIES_MAX {
                staged.rest = true;
                break;
            }
            match runs.last_mut() {
                Some((first, len)) if *first + *len == page => *len += 1,
                _ => runs.push((page, 1)),
            }
        }
        for (first, len) in runs {
            let mut done = 0;
            while done < len {
                let want = (len - done) as u32;
                // of what is there: a segment more would be no gain
                let run: Run = staged
                    .store
                    .space
                    .take_run(SegmentClass::Data, want)
                    .ok_or(FsError::NoSpace)?;
                staged.moves.push(Move {
                    from: (first + done) * PAGE_BYTES,
                    to: staged.store.space.offset(run),
                    len: u64::from(run.len) * PAGE_BYTES,
                });
                done += u64::from(run.len);
            }
        }
        Ok(staged)
    }

    /// The entries that map what moves where it will lie.
    fn entries(&self, extents: &[(u64, Mapped)], time_ns: i64) -> Vec<Entry<'static>> {
        let mut entries = Vec::new();
        for (offset, mapped) in extents {
            let (first, end) = (mapped.gpa.offset().0, mapped.gpa.offset().0 + mapped.len);
            for Move { from, to, len } in &self.moves {
                let (start, end) = (first.max(*from), end.min(from + len));
                if start < end {
                    entries.push(Entry::Write {
                        offset: offset + (start - first),
                        len: end - start,
                        gpa: self.store.gpa(to + (start - from)),
                        time_ns,
                    });
                }
            }
        }
        entries
    }

    /// It has: the pages are the file's. How many they are.
    fn happened(mut self, entries: &[Entry<'_>]) -> u64 {
        let mut seen = BTreeSet::new();
        for entry in entries {
            let Entry::Write { len, gpa, .. } = entry else { continue };
            each_page(gpa.offset().0, *len, |page, bytes| {
                let space = &mut self.store.space;
                if seen.insert(page) {
                    space.map_fresh(page * PAGE_BYTES, bytes);
                } else {
                    let fits = space.map_more(page * PAGE_BYTES, bytes);
                    assert!(fits, "no byte of a page is mapped twice");
                }
            });
        }
        self.happened = true;
        let pages = self.moves.iter().map(|pages| pages.len / PAGE_BYTES).sum();
        debug_assert_eq!(seen.len() as u64, pages, "each page that was copied is in use");
        pages
    }
}

impl Store {
    /// Copies pages of data, and what is known of their checksums: durable after the next fence.
    fn copy_pages(&self, Move { from, to, len }: Move) {
        let mut bytes = vec![0; len as usize];
        self.read(from, &mut bytes);
        self.write_data(to, &bytes);
        if self.checksums {
            let mut page = from;
            self.write_checksums(to, len / PAGE_BYTES, || {
                let word = self.checksum_word(page);
                page += PAGE_BYTES;
                word
            });
        }
    }

    /// The segment of data to be cleaned next, if one is worth it.
    fn hardly_used_data(&self, spare: u64, tried: &BTreeSet<u32>) -> Option<u32> {
        let data = self.segments().filter(|(_, _, class)| *class == SegmentClass::Data);
        let used = |index: u32| u64::from(self.space.bitmap(index).used());
        let is_worth_it = |index: &u32| {
            let units = u64::from(self.space.bitmap(*index).len());
            !self.space.is_closed(*index)
                && (1..=units / 2).contains(&used(*index))
                && self.space.free(SegmentClass::Data) >= spare + units
        };
        data.map(|(index, ..)| index)
            .filter(|index| !tried.contains(index) && is_worth_it(index))
            .min_by_key(|index| (used(*index), std::cmp::Reverse(*index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shrink::Demand;
    use crate::testing::*;
    use polvo_format::{Attr, FileKind, Lsn, Tail};
    use polvo_proto::{EAGER_MAX, InodeRef, SetAttr, WriteAt};

    const DEMAND: Demand = Demand {
        copies: false,
        crowded: true,
    };
    const FILES: usize = 60;

    /// Numbers that look random, the same each time.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    struct Model {
        region: Region,
        /// what is to be there
        files: Vec<(InodeRef, Vec<u8>)>,
        tick: u64,
    }

    impl Model {
        fn name(n: usize) -> Vec<u8> {
            format!("f{n}").into_bytes()
        }

        fn write(&mut self, n: usize, offset: usize, bytes: &[u8]) {
            let (inode, known) = &mut self.files[n];
            let (at, r) = (offset as u64, &mut self.region);
            match bytes.len() <= EAGER_MAX {
                true => r
                    .write(*inode, WriteAt::Offset(at), bytes, Tail::default(), NOW + 1)
                    .map(drop),
                false => commit(r, *inode, at, at % PAGE_BYTES, bytes, !n.is_multiple_of(3)),
            }
            .unwrap();
            known.resize(known.len().max(offset + bytes.len()), 0);
            known[offset..][..bytes.len()].copy_from_slice(bytes);
        }

        /// Files in many pieces, of which one in ten stays, in a region whose every segment they lie in.
        fn scattered(captured: bool) -> Model {
            let mut r = region(16);
            if captured {
                r.capture(Lsn(1));
            }
            let file = |n: usize| (make(&mut r, ROOT, &Model::name(n), FileKind::File).unwrap(), Vec::new());
            let files = (0..FILES).map(file).collect();
            let mut model = Model {
                region: r,
                files,
                tick: 0,
            };
            let mut random = Numbers(7);
            for round in 0..40 * FILES {
                let n = round % FILES;
                let len = 1 + random.below([300, 5000, 12_000][round % 3]) as usize;
                let size = model.files[n].1.len();
                let offset = match random.below(3) {
                    0 => size,
                    _ => random.below(size as u64 + 5000) as usize,
                };
                model.write(n, offset, &vec![1 + random.below(255) as u8; len]);
                if random.below(20) == 0 {
                    let (inode, known) = &mut model.files[n];
                    known.truncate(known.len() - known.len() / 5);
                    let size = SetAttr {
                        size: Some(known.len() as u64),
                        ..SetAttr::default()
                    };
                    model.region.set_attr(*inode, &size, NOW).unwrap();
                }
            }
            // more pieces of pages than are mapped at once
            (0..2).for_each(|page| model.write(0, page * PAGE, &[1; PAGE]));
            for at in (0..2 * PAGE).step_by(6) {
                model.write(0, at, &[2]);
            }
            for n in (0..FILES).filter(|n| n % 10 != 0) {
                unlink(&mut model.region, ROOT, &Model::name(n)).unwrap();
            }
            model.files = model.files.into_iter().step_by(10).collect();
            model.check();
            model
        }

        fn keep_house(&mut self, rounds: usize) {
            for _ in 0..rounds {
                while self.region.collect_garbage(NOW) {}
                self.region.shrink(DEMAND, |_| ());
                self.end_quarantine();
            }
        }

        fn end_quarantine(&mut self) {
            let mut records = Vec::new();
            if let Some(last) = self.region.take_records(&mut records) {
                self.region.set_mirrored(last);
            }
            self.tick += 1;
            self.region.set_tick(self.tick, self.tick - 1);
        }

        fn attributes(&mut self) -> Vec<Attr> {
            let of = |(inode, _): &(InodeRef, Vec<u8>)| self.region.attr(inode.ino, Some(inode.generation)).unwrap().0;
            self.files.iter().map(of).collect()
        }

        fn segments(&self) -> usize {
            self.region
                .segments()
                .filter(|segment| segment.2 == SegmentClass::Data)
                .count()
        }

        /// Segments that what is there takes at least.
        fn needed(&self) -> usize {
            let used = self.region.store.space.used(SegmentClass::Data);
            (used * PAGE_BYTES).div_ceil(1 << self.region.store.segment_shift()) as usize
        }

        fn check(&mut self) {
            let (again, _) = recovered(&self.region);
            let mut again = again;
            for (inode, known) in &self.files {
                for r in [&mut self.region, &mut again] {
                    let mut bytes = vec![0; known.len() + 1];
                    assert_eq!(r.read(*inode, 0, &mut bytes).unwrap(), known.len());
                    assert!(bytes[..known.len()] == known[..], "the bytes of {inode:?}");
                }
            }
            for r in [&mut self.region, &mut again] {
                assert_eq!(findings(r), [""; 0]);
            }
        }
    }

    #[test]
    fn hardly_used_segments_go_back() {
        for captured in [false, true] {
            let mut model = Model::scattered(captured);
            let (before, attributes) = (model.segments(), model.attributes());
            assert!(
                before > 3 * model.needed(),
                "{before} segments, {} needed",
                model.needed()
            );
            for _ in 0..10 {
                model.keep_house(10);
                model.check();
            }
            let (after, needed) = (model.segments(), model.needed());
            assert!(after <= needed + 2, "{after} of {before} segments, {needed} needed");
            assert_eq!(model.attributes(), attributes, "nobody has changed them");
            // and all goes on
            for n in 0..model.files.len() {
                for offset in [0, 5000, model.files[n].1.len()] {
                    model.write(n, offset, &[9; 3000]);
                }
            }
            model.check();
        }
    }

    #[test]
    fn what_cannot_be_moved_stays() {
        let mut model = Model::scattered(false);
        for _ in 0..2 {
            model.end_quarantine();
        }
        // a page of a session in the segment that is cleaned first, and one that is damaged
        let segment = model.region.store.hardly_used_data(0, &BTreeSet::new()).unwrap();
        let tried = BTreeSet::from([segment]);
        let damaged = model.region.store.hardly_used_data(0, &tried).unwrap();
        let bitmap = model.region.store.space.bitmap(segment);
        let free = (0..bitmap.len()).find(|unit| !bitmap.is_used(*unit)).unwrap();
        let delegated = Run {
            segment,
            start: free,
            len: 1,
        };
        assert!(model.region.store.space.mark(delegated));
        let page = model.region.store.space.bitmap(damaged).next_used(0).unwrap();
        let at = model.region.store.space.offset(Run {
            segment: damaged,
            start: page,
            len: 1,
        });
        let at = model.region.store.at(at) + 5;
        let mut byte = [0];
        model.region.store.pool.pmem().read(at, &mut byte);
        model.region.store.pool.pmem().write(at, &[byte[0] ^ 1]);
        let before = model.segments();
        model.keep_house(100);
        let (after, needed) = (model.segments(), model.needed());
        assert!(
            after <= needed + 4 && after < before,
            "{after} of {before} segments, {needed} needed"
        );
        let space = &model.region.store.space;
        assert!(space.bitmap(segment).is_used(free) && space.bitmap(damaged).is_used(page));
        model.region.store.pool.pmem().write(at, &byte);
        model.region.store.space.give(delegated);
        model.keep_house(100);
        assert!(model.segments() <= model.needed() + 2, "{} segments", model.segments());
        model.check();
    }

    #[test]
    fn where_there_is_room_again_no_segment_stays_closed() {
        let mut model = Model::scattered(false);
        (0..2).for_each(|_| model.end_quarantine());
        assert!(model.region.begin_to_clean(0));
        let segment = model.region.cleaning.segment().unwrap();
        for _ in 0..2 {
            model.region.shrink(Demand::default(), |_| ());
        }
        assert!(!model.region.store.space.is_closed(segment));
        model.check();
    }

    #[test]
    fn a_snapshot_shows_what_was_there() {
        let mut model = Model::scattered(false);
        let (inode, known) = model.files[1].clone();
        let snapshot = model.region.begin_read(inode, 0, known.len() as u64).unwrap();
        assert!(!snapshot.more);
        model.keep_house(60);
        while model.region.delegate(SESSION, 1000).is_ok_and(|runs| {
            for run in runs {
                model.region.store.write_data(
                    run.gpa.offset().0,
                    &vec![0xee; (u64::from(run.pages) * PAGE_BYTES) as usize],
                );
            }
            true
        }) {}
        let mut shown = Vec::new();
        for piece in &snapshot.pieces {
            match piece {
                crate::Piece::Zeros(len) => shown.resize(shown.len() + *len as usize, 0),
                crate::Piece::Inline(bytes) => shown.extend(bytes),
                crate::Piece::Data { at, len } => {
                    let mut bytes = vec![0; *len as usize];
                    model.region.store.pool.pmem().read(*at, &mut bytes);
                    shown.extend(bytes);
                }
            }
        }
        assert!(shown == known, "a reader outside of the lock sees the file");
        model.region.end_read(snapshot.number);
    }

    #[test]
    fn where_space_is_short_all_of_it_can_be_used() {
        let mut model = Model::scattered(false);
        let rounds = (0..10).find(|_| {
            model.keep_house(1);
            model.region.store.space.closed() > 0
        });
        assert!(rounds.is_some(), "nothing is cleaned");
        let free = model.region.store.free_data_pages();
        let mut given = 0;
        while let Ok(runs) = model.region.delegate(SESSION, 1000) {
            given += runs.iter().map(|run| u64::from(run.pages)).sum::<u64>();
        }
        assert!(given + 2 >= free, "{given} of {free} pages");
        model.keep_house(20);
        model.region.end_session(SESSION);
        model.keep_house(100);
        assert!(model.segments() <= model.needed() + 2, "{} segments", model.segments());
        model.check();
    }
}
