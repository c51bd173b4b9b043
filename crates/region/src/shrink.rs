//! Segments go back to the pool, so that other regions, or data where names have been, have room.
//!
//! A segment goes back when nothing of it is in use. A log may lie anywhere, so the last few logs of a segment are written
//! anew elsewhere, by garbage collection. An inode stays where its number says; slots that are free are given out from the
//! lowest segment on. Before a segment of inodes goes, the region's floor ([`Floor`]) rises above what its slots have had:
//! they come back as zeros, and their next users must not be taken for those before. What lies in a segment of data is moved where
//! space is scarce, by [`cleaning`](crate::cleaning).

use crate::planted::{Planted, planted};
use crate::region::{Region, VERSION_MAX};
use crate::space::Run;
use crate::store::Store;
use polvo_format::{Change, Floor, Generation, INODE_SIZE, InodeHead, LINE, LogPage, PAGE, REGION_FLOOR, UnitPlace};
use polvo_proto::SegmentClass;
use std::collections::BTreeSet;

/// Most log pages that are read for one segment to be emptied: about a millisecond's work.
const MOVED_PAGES_MAX: u64 = 256;
/// Segments that are looked at for one worth emptying.
const LOOKED_AT_MAX: usize = 4;
/// More lives than a slot can have in the time by which an asynchronous primary may be ahead of its mirrors. No multiple of 256: mounts
/// show the lowest 8 bits.
const LOST_LIVES_MAX: u32 = (1 << 18) + 129;
/// A segment with a slot above this stays: what is left of generations and log versions is for the slots to come.
pub(crate) const FLOOR_MAX: Floor = Floor {
    generation: Generation(u32::MAX / 2),
    version: VERSION_MAX / 2,
};

/// Who could use segments of data that a region does not need.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Demand {
    /// The region is to have copies (also while it has none: a node can take one that has room for all segments). What is free in its
    /// segments can be used here, but not where the copies are.
    pub copies: bool,
    /// Pools fill up: hardly used segments are cleaned ([`cleaning`](crate::cleaning)).
    pub crowded: bool,
}

impl Region {
    /// Space is short: gives segments that hold nothing (any more) back to the pool, for other regions there to have room;
    /// returns how many. `last_word` is told the index of each while nobody else can have it yet; no segment of the region gets
    /// that index again before it is recovered.
    pub fn release_segments(&mut self, mut last_word: impl FnMut(u32)) -> u32 {
        self.reap(); // what was dispatched to us may have deleted files
        let kept = self.cleaning.segment();
        let store = &mut self.store;
        store.space.end_quarantine();
        store.space.open_ready(kept);
        let reserve = store.log_reserve();
        [
            (SegmentClass::Data, 0),
            (SegmentClass::Logs, reserve),
            (SegmentClass::Inodes, 0),
        ]
        .into_iter()
        .map(|(class, keep)| store.release_segments(class, keep, &mut last_word))
        .sum()
    }

    /// Now and then: as [`Self::release_segments`] for segments of inodes and logs, of which half a segment stays free, and does
    /// a bounded piece of work for one of logs to become empty. Where somebody can use them ([`Demand`]) for segments of data, too, of
    /// which as much stays free as is in use, at most a segment.
    pub fn shrink(&mut self, demand: Demand, mut last_word: impl FnMut(u32)) -> u32 {
        let kept = self.cleaning.segment();
        let store = &mut self.store;
        let in_segment = 1u64 << store.segment_shift();
        let slots = in_segment / INODE_SIZE as u64 / 2;
        let pages = store.log_reserve() + in_segment / PAGE as u64 / 2;
        // those that were closed are empty by now, or something has come between
        store.space.open_ready(kept);
        let mut released = store.release_segments(SegmentClass::Inodes, slots, &mut last_word)
            + store.release_segments(SegmentClass::Logs, pages, &mut last_word);
        let spare = store.space.used(SegmentClass::Data).min(in_segment / PAGE as u64);
        if demand.copies || demand.crowded {
            released += store.release_segments(SegmentClass::Data, spare, &mut last_word);
        }
        if store.space.closed() == 0
            && let Some((segment, logs)) = store.nearly_empty_logs(pages)
        {
            store.space.close(segment);
            for slot in logs {
                self.move_log(slot);
            }
        }
        match demand.crowded {
            true => self.clean(spare),
            false => self.cleaning.stop(), // the segment is opened next time
        }
        released
    }

    /// Writes a log anew, elsewhere. Where that cannot be, the segment is not emptied: it is open again next time.
    fn move_log(&mut self, slot: u64) {
        if self.locked.contains(slot) && self.reap_slot(slot).is_err() {
            return;
        }
        if let Err(error) = self.rewrite_log(slot) {
            tracing::debug!(region = self.store.region.0, slot, %error, "a log is not moved");
        }
    }
}

impl Region {
    /// The copy that this was recovered from may lack inodes that the region has had and others know: what is made from here on has
    /// generations that none of them can have had. `highest`: of the slots that are here ([`crate::Recovery`]).
    pub fn outgrow_lost(&mut self, highest: Generation) {
        if planted(Planted::LostGenerationsGiven) {
            return;
        }
        let before = self.store.floor;
        let next = highest.max(before.generation).0.saturating_add(LOST_LIVES_MAX);
        let floor = before.max(Floor {
            generation: Generation(next.min(FLOOR_MAX.generation.0)),
            ..before
        });
        if floor.generation.0 < next {
            tracing::warn!(
                region = self.store.region.0,
                "generations are used up: a new inode may be taken for one that was lost"
            );
        }
        self.store.write_word(REGION_FLOOR, floor.encode());
        self.store.commit_point();
        self.store.floor = floor;
    }
}

impl Store {
    /// Gives segments of a class that hold nothing back to the pool, as long as `keep` units stay free; returns how many.
    fn release_segments(&mut self, class: SegmentClass, keep: u64, last_word: &mut dyn FnMut(u32)) -> u32 {
        let mut released = 0;
        for index in self.space.empty_segments(class) {
            let units = u64::from(self.space.bitmap(index).len());
            if self.space.free(class) < keep + units {
                break;
            }
            if class == SegmentClass::Inodes && !self.raise_floor(index) {
                continue;
            }
            assert_eq!(self.space.bitmap(index).used(), 0, "segment {index} holds nothing");
            last_word(index);
            self.space.remove_segment(index);
            let (_, of) = self.segments[index as usize].take().expect("the segment is ours");
            assert_eq!(of, class, "segment {index}");
            if self.is_captured() {
                self.note(Change::SegmentGone { index });
                self.end_record();
            }
            self.pool.give_back_segment(self.region, index);
            released += 1;
        }
        released
    }

    /// Raises the floor above all slots of a segment, durably; false when that would leave too little to those that begin there.
    fn raise_floor(&mut self, index: u32) -> bool {
        let mut floor = self.floor;
        let mut sound = true;
        self.each_slot_of(
            index,
            &mut |slot, bytes| match InodeHead::decode(bytes, self.ino(slot)) {
                Ok(head) => {
                    floor = floor.max(Floor {
                        generation: head.generation,
                        version: head.tail.version(),
                    });
                }
                Err(_) => sound = false,
            },
        );
        if !sound || floor.max(FLOOR_MAX) != FLOOR_MAX {
            return false;
        }
        assert!(floor.max(self.floor) == floor, "the floor only rises");
        if floor != self.floor {
            self.write_word(REGION_FLOOR, floor.encode());
            self.commit_point();
            self.floor = floor;
        }
        debug_assert_eq!(self.read_floor(), Ok(floor), "the floor is read as it was written");
        true
    }

    /// A segment of logs of which at most a quarter is in use, and the inodes whose logs lie there: few enough to be moved, so
    /// that `keep` pages stay free elsewhere.
    fn nearly_empty_logs(&self, keep: u64) -> Option<(u32, BTreeSet<u64>)> {
        let bitmap = |index: &u32| self.space.bitmap(*index);
        let mut segments: Vec<u32> = self
            .segments()
            .filter(|(_, _, class)| *class == SegmentClass::Logs)
            .map(|(index, ..)| index)
            .filter(|index| {
                (1..=MOVED_PAGES_MAX.min(u64::from(bitmap(index).len()) / 4)).contains(&bitmap(index).used().into())
            })
            .collect();
        segments.sort_unstable_by_key(|index| bitmap(index).used());
        segments.into_iter().take(LOOKED_AT_MAX).find_map(|index| {
            let elsewhere = self.space.free(SegmentClass::Logs) - u64::from(bitmap(&index).free());
            let room = elsewhere.checked_sub(keep)?.min(MOVED_PAGES_MAX);
            Some((index, self.logs_in(index, room)?))
        })
    }

    /// The inodes whose logs lie in a segment, if the logs have at most `most` pages together.
    fn logs_in(&self, segment: u32, most: u64) -> Option<BTreeSet<u64>> {
        let bitmap = self.space.bitmap(segment);
        let mut logs = BTreeSet::new();
        let mut pages = 0;
        for start in (0..bitmap.len()).filter(|start| bitmap.is_used(*start)) {
            let mut header = [0; LINE];
            self.read(self.space.offset(Run { segment, start, len: 1 }), &mut header);
            // a page in quarantine is of a log that has moved, or that is gone; one just taken says nothing yet
            let Ok(page) = LogPage::decode(&header) else { continue };
            debug_assert!(logs.len() as u64 <= MOVED_PAGES_MAX, "few logs are moved");
            let Some(slot) = self.slot_of(page.ino) else { continue };
            if let Ok(head) = InodeHead::decode(&self.read_slot(slot), page.ino)
                && head.kind.is_some()
                && logs.insert(slot)
            {
                pages += UnitPlace::pages(head.tail.units());
                if pages > most {
                    return None;
                }
            }
        }
        Some(logs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use polvo_format::{FileKind, Lsn, PAGE_UNITS, Tail};
    use polvo_proto::{InodeRef, Intent, WriteAt};

    /// Slots of a segment in these tests, and some more.
    const CROWD: usize = 1200;
    const NONE: Demand = Demand {
        copies: false,
        crowded: false,
    };

    fn name(n: usize) -> Vec<u8> {
        format!("{n:0>200}").into_bytes()
    }

    fn crowd(r: &mut Region, dir: InodeRef) -> Vec<InodeRef> {
        (0..CROWD)
            .map(|n| make(r, dir, &name(n), FileKind::File).unwrap())
            .collect()
    }

    fn count(r: &Region, class: SegmentClass) -> usize {
        r.segments().filter(|segment| segment.2 == class).count()
    }

    /// Some ticks of housekeeping.
    fn keep_house(r: &mut Region, demand: Demand, tick: &mut u64) {
        for _ in 0..4 {
            while r.collect_garbage(NOW) {}
            r.shrink(demand, |_| ());
            *tick += 1;
            r.set_tick(*tick, *tick - 1);
        }
    }

    #[test]
    fn segments_of_inodes_and_logs_go_back_when_all_is_deleted() {
        let mut r = region(8);
        let fresh: Vec<_> = r.segments().collect();
        let mut tick = 0;
        for _ in 0..3 {
            crowd(&mut r, ROOT);
            assert!(count(&r, SegmentClass::Inodes) == 2 && count(&r, SegmentClass::Logs) >= 2);
            for n in 0..CROWD {
                unlink(&mut r, ROOT, &name(n)).unwrap();
            }
            keep_house(&mut r, NONE, &mut tick);
            let left: Vec<_> = r.segments().collect();
            assert_eq!((left.len(), left[0]), (fresh.len(), fresh[0]), "{left:?}");
            assert_eq!(findings(&mut r), [""; 0]);
            let (mut again, _) = recovered(&r);
            assert_eq!(findings(&mut again), [""; 0]);
        }
    }

    #[test]
    fn segments_of_data_go_back_where_there_are_copies() {
        let mut r = region(8);
        let mut tick = 0;
        const BLOCK: usize = 4 << 10;
        let blocks = (3usize << r.store.segment_shift()) / BLOCK;
        let copies = Demand {
            copies: true,
            crowded: false,
        };
        for (demand, captured) in [(NONE, false), (copies, false), (copies, true)] {
            if captured {
                r.capture(Lsn(1));
            }
            let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
            for _ in 0..blocks {
                r.write(file, WriteAt::End, &[7; BLOCK], Tail::default(), NOW).unwrap();
            }
            assert!(count(&r, SegmentClass::Data) >= 3);
            unlink(&mut r, ROOT, b"file").unwrap();
            for _ in 0..2 {
                keep_house(&mut r, demand, &mut tick);
                let mut records = Vec::new();
                r.take_records(&mut records)
                    .into_iter()
                    .for_each(|last| r.set_mirrored(last));
            }
            match demand.copies {
                false => assert!(
                    count(&r, SegmentClass::Data) >= 3,
                    "they are free for the region's files"
                ),
                true => assert_eq!(count(&r, SegmentClass::Data), 0),
            }
            assert_eq!(findings(&mut r), [""; 0]);
        }
    }

    #[test]
    fn nobody_takes_a_new_inode_for_one_of_a_segment_that_went_back() {
        let mut r = region(8);
        let (mut tick, mut seen) = (0, Vec::<InodeRef>::new());
        let mut versions: Vec<(u64, u32)> = Vec::new();
        for round in 0..4 {
            let inodes = crowd(&mut r, ROOT);
            for inode in &inodes {
                let slot = inode.ino.slot();
                versions.push((slot, r.store.load(slot).unwrap().tail.version()));
                assert!(!seen.contains(inode), "round {round}: {inode:?} has been another file");
            }
            seen.extend(inodes);
            for n in 0..CROWD {
                unlink(&mut r, ROOT, &name(n)).unwrap();
            }
            keep_house(&mut r, NONE, &mut tick);
            assert_eq!(count(&r, SegmentClass::Inodes), 1);
            r = recovered(&r).0;
        }
        let mut slots: Vec<u64> = seen.iter().map(|inode| inode.ino.slot()).collect();
        slots.sort_unstable();
        let twice = |slots: &[u64]| slots[0] == slots[1] && slots[0] > 1024;
        assert!(
            slots.windows(2).any(twice),
            "no segment came back under an index that it had"
        );
        let all = versions.len();
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions.len(), all, "no log has the version of another one of its slot");
    }

    #[test]
    fn a_few_logs_left_are_moved_together() {
        let mut r = region(16);
        let mut tick = 0;
        const DIRS: usize = 150;
        let mut dirs = Vec::new();
        // each log fills some pages; those of one directory in ten stay
        for n in 0..DIRS {
            let dir = make(&mut r, ROOT, format!("d{n}").as_bytes(), FileKind::Directory).unwrap();
            for m in 0..40 {
                make(&mut r, dir, &name(m), FileKind::File).unwrap();
            }
            dirs.push(dir);
        }
        let before = count(&r, SegmentClass::Logs);
        assert!(before > 6, "{before} segments of logs");
        for (n, dir) in dirs.iter().enumerate().filter(|(n, _)| n % 10 != 0) {
            for m in 0..40 {
                unlink(&mut r, *dir, &name(m)).unwrap();
            }
            let remove = Intent::RemoveName {
                dir: ROOT,
                name: format!("d{n}").into_bytes(),
                target: *dir,
            };
            let intents = [remove, Intent::DropDirectory { inode: *dir }];
            let _ = r.decide(txn(2), &intents, &[], NOW).unwrap();
        }
        for _ in 0..2 * before {
            keep_house(&mut r, NONE, &mut tick);
        }
        assert_eq!(findings(&mut r), [""; 0]);
        let pages = 64;
        let needed = DIRS as u64 / 10 * (40 * 5u64).div_ceil(PAGE_UNITS) + 2;
        assert!(
            count(&r, SegmentClass::Logs) as u64 <= needed.div_ceil(pages) + 1,
            "{} segments of logs for {needed} pages",
            count(&r, SegmentClass::Logs)
        );
        let (mut again, _) = recovered(&r);
        for n in (0..DIRS).step_by(10) {
            for m in 0..40 {
                assert!(again.lookup(dirs[n], &name(m)).is_ok());
            }
        }
    }

    #[test]
    fn slots_with_a_past_below_the_floor_are_used_again() {
        let mut r = region(8);
        let mut tick = 0;
        // the first segment is full, once; slots of the second have many users
        crowd(&mut r, ROOT);
        for _ in 0..5 {
            for n in CROWD - 100..CROWD {
                unlink(&mut r, ROOT, &name(n)).unwrap();
            }
            keep_house(&mut r, NONE, &mut tick);
            for n in CROWD - 100..CROWD {
                make(&mut r, ROOT, &name(n), FileKind::File).unwrap();
            }
        }
        for n in 0..CROWD {
            unlink(&mut r, ROOT, &name(n)).unwrap();
        }
        keep_house(&mut r, NONE, &mut tick);
        assert_eq!(count(&r, SegmentClass::Inodes), 1);
        let floor = r.store.floor;
        let inode = make(&mut r, ROOT, b"again", FileKind::File).unwrap();
        assert!(
            inode.generation > floor.generation,
            "{inode:?} may be one that was lost; {floor:?}"
        );
        // and so is one of a segment that comes anew
        let crowded = crowd(&mut r, ROOT);
        let above = |inode: &&InodeRef| inode.generation > floor.generation;
        assert!(crowded.iter().any(|inode| above(&inode)));
        assert_eq!(findings(&mut r), [""; 0]);
        let (mut again, _) = recovered(&r);
        assert_eq!(findings(&mut again), [""; 0]);
    }

    #[test]
    fn what_is_made_after_a_loss_is_not_taken_for_what_was_lost() {
        let mut r = region(8);
        let make_one = |r: &mut Region, name: &[u8]| make(r, ROOT, name, FileKind::File).unwrap();
        // a slot that was used before, and one that was not
        let (free, kept) = (make_one(&mut r, b"free"), make_one(&mut r, b"kept"));
        unlink(&mut r, ROOT, b"free").unwrap();
        let (mut copy, found) = recovered(&r);
        assert_eq!(found.highest, kept.generation);
        let lost = [make_one(&mut r, b"a"), make_one(&mut r, b"b")];
        assert_eq!(lost[0].ino, free.ino);
        copy.outgrow_lost(found.highest);
        // also when it is recovered again before anything is made
        let (mut copy, found) = recovered(&copy);
        let made = [make_one(&mut copy, b"a"), make_one(&mut copy, b"b")];
        for (lost, made) in lost.iter().zip(&made) {
            assert_eq!(lost.ino, made.ino);
            assert!(
                made.generation.0 > lost.generation.0 + LOST_LIVES_MAX / 2,
                "{made:?}, {lost:?}"
            );
        }
        assert_eq!(findings(&mut copy), [""; 0]);
        // and again, as long as there are generations
        (0..10_000).for_each(|_| copy.outgrow_lost(found.highest));
        assert_eq!(copy.store.floor.generation, FLOOR_MAX.generation);
        let last = make_one(&mut copy, b"c");
        assert!(last.generation > FLOOR_MAX.generation);
    }

    #[test]
    fn a_closed_segment_is_opened_where_space_is_short() {
        let mut r = region(2);
        let mut tick = 0;
        let dir = make(&mut r, ROOT, b"dir", FileKind::Directory).unwrap();
        let mut made = 0;
        while make(&mut r, dir, &name(made), FileKind::File).is_ok() {
            made += 1;
        }
        let segments = count(&r, SegmentClass::Logs);
        for n in 0..made - 5 {
            unlink(&mut r, dir, &name(n)).unwrap();
        }
        keep_house(&mut r, NONE, &mut tick);
        assert!(count(&r, SegmentClass::Logs) < segments);
        let mut again = 0;
        while make(&mut r, dir, &name(again), FileKind::File).is_ok() {
            again += 1;
        }
        assert!(again + 20 > made - 5, "{again} files, {made} before");
        assert_eq!(findings(&mut r), [""; 0]);
    }

    #[test]
    fn data_take_no_segment_for_which_copies_have_no_room() {
        let mut r = region(8);
        let before = count(&r, SegmentClass::Data);
        r.set_may_grow(false);
        assert!(
            r.delegate(SESSION, 10)
                .is_err_and(|error| matches!(error, crate::RegionError::Fs(polvo_proto::FsError::NoSpace)))
        );
        // names, small files and removals go on
        let inodes = crowd(&mut r, ROOT);
        r.write(inodes[0], WriteAt::Offset(1), b"x", Tail::default(), NOW)
            .unwrap();
        (0..CROWD).for_each(|n| unlink(&mut r, ROOT, &name(n)).unwrap());
        assert_eq!(count(&r, SegmentClass::Data), before);
        r.set_may_grow(true);
        assert_eq!(r.delegate(SESSION, 10).unwrap().len(), 1);
        r.set_may_grow(false);
        assert!(r.delegate(SESSION, 10).is_ok(), "what it has it can use");
    }

    #[test]
    fn a_worn_segment_stays() {
        let mut r = region(8);
        let inodes = crowd(&mut r, ROOT);
        let worn = inodes.last().unwrap();
        for n in 0..CROWD {
            unlink(&mut r, ROOT, &name(n)).unwrap();
        }
        let head = InodeHead {
            generation: Generation(FLOOR_MAX.generation.0 + 1),
            ..InodeHead::UNUSED
        };
        let head = head.encode(worn.ino, &[0; LINE]);
        r.store.write(worn.ino.slot() * INODE_SIZE as u64, &head);
        keep_house(&mut r, NONE, &mut 0);
        assert_eq!((count(&r, SegmentClass::Inodes), r.store.floor), (2, Floor::default()));
    }
}
