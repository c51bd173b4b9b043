//! Free and used space of a region, in DRAM only: rebuilt from the logs at recovery.
//!
//! Three classes of segments, three kinds of units: inode slots, log pages, data pages. A data page is in use while
//! live bytes of it are mapped; pages that are partly live have a counter. Freed pages wait in quarantine until no
//! client can still be reading (or a client that is gone, writing) them.

use crate::bitmap::Bitmap;
use crate::hash::NumberMap;
use crate::planted::{Planted, planted};
use crate::snapshots::Snapshots;
use polvo_format::{INODE_SIZE, Lsn, PAGE};
use polvo_proto::SegmentClass;
use std::collections::{BTreeSet, VecDeque};

const PAGE_BYTES: u64 = PAGE as u64;
/// Segments looked at for a long run before the best found so far is good enough.
const SEARCH_SEGMENTS: usize = 32;
/// Most runs in quarantine; beyond, it is emptied early.
const QUARANTINE_MAX: usize = 1 << 20;

/// Consecutive units of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub segment: u32,
    pub start: u32,
    pub len: u32,
}

impl Run {
    /// Has it a unit in common with another one?
    fn overlaps(&self, other: Run) -> bool {
        self.segment == other.segment && self.start < other.start + other.len && other.start < self.start + self.len
    }
}

struct Freed {
    tick: u64,
    run: Run,
    /// a client that is gone may still write to it: never free early
    written: bool,
    /// snapshots that had begun: they may show it, and then it is never free before they end
    shown: u64,
    /// the record that has freed it, or a later one; the last number there is while that has not been sent
    record: Lsn,
}

/// A segment that is being emptied: what is free in it stays out of use, counted as in quarantine.
struct Closed {
    segment: u32,
    free: Vec<Run>,
}

#[derive(Default)]
struct Class {
    /// segments that have a free unit
    open: BTreeSet<u32>,
    cursor: u32,
    units: u64,
    free: u64,
    quarantined: u64,
}

pub(crate) struct Space {
    shift: u32,
    /// by index; none where a segment went back to the pool
    segments: Vec<Option<(SegmentClass, Bitmap)>>,
    classes: [Class; 3],
    /// live bytes of data pages (by number) that are partly live
    live: NumberMap<u16>,
    quarantine: VecDeque<Freed>,
    /// free, but not to be given out yet; counted as in quarantine
    held_back: Vec<Run>,
    closed: Vec<Closed>,
    tick: u64,
    /// of what is freed now
    record: Lsn,
    /// what these records have freed may be used again: every copy that follows has them
    mirrored: Lsn,
    pub snapshots: Snapshots,
}

fn class_at(class: SegmentClass) -> usize {
    debug_assert!(class.is_of_regions(), "a region's segment");
    class as usize - 1
}

/// A count of units without some that it has counted.
fn less(count: u64, units: u32) -> u64 {
    count.checked_sub(u64::from(units)).expect("units are counted once")
}

impl Space {
    pub fn new(shift: u32) -> Space {
        Space {
            shift,
            segments: Vec::new(),
            classes: Default::default(),
            live: NumberMap::default(),
            quarantine: VecDeque::new(),
            held_back: Vec::new(),
            closed: Vec::new(),
            tick: 0,
            record: Lsn(0),
            mirrored: Lsn(0),
            snapshots: Snapshots::default(),
        }
    }

    /// A segment more, all free. Indexes ascend.
    pub fn add_segment(&mut self, index: u32, class: SegmentClass) {
        let unit = if class == SegmentClass::Inodes {
            INODE_SIZE
        } else {
            PAGE
        };
        let units = (1u64 << self.shift) / unit as u64;
        assert!(index as usize >= self.segments.len(), "segments come in order");
        assert!(
            units.is_multiple_of(64) && u32::try_from(units).is_ok(),
            "a segment of {units} units"
        );
        self.segments.resize_with(index as usize, || None);
        self.segments.push(Some((class, Bitmap::new(units as u32))));
        assert_eq!(self.segments.len(), index as usize + 1, "a segment lies at its index");
        let of_class = &mut self.classes[class_at(class)];
        let added = of_class.open.insert(index);
        assert!(added, "segment {index} is there already");
        of_class.units += units;
        of_class.free += units;
        self.check_class(class);
    }

    /// The counts of a class are those of its segments: every unit is free, in quarantine or given out, and in one of these.
    fn check_class(&self, class: SegmentClass) {
        let of_class = &self.classes[class_at(class)];
        debug_assert!(
            of_class.free + of_class.quarantined <= of_class.units,
            "units of {class:?}"
        );
        if cfg!(debug_assertions) {
            let its = (0..)
                .zip(&self.segments)
                .filter_map(|(index, segment)| Some((index, segment.as_ref()?)));
            let (mut units, mut free, mut open) = (0, 0, 0);
            for (index, (_, bitmap)) in its.filter(|(_, (of, _))| *of == class) {
                units += u64::from(bitmap.len());
                free += u64::from(bitmap.free());
                open += usize::from(bitmap.free() > 0);
                debug_assert_eq!(
                    bitmap.free() > 0,
                    of_class.open.contains(&index),
                    "segment {index} is open"
                );
            }
            debug_assert_eq!(
                (units, free),
                (of_class.units, of_class.free),
                "units of {class:?}, and free ones"
            );
            let waiting = self
                .quarantined_runs()
                .filter(|run| self.segment(run.segment).0 == class);
            debug_assert_eq!(
                waiting.map(|run| u64::from(run.len)).sum::<u64>(),
                of_class.quarantined,
                "units of {class:?} in quarantine"
            );
            debug_assert_eq!(open, of_class.open.len(), "open segments are of {class:?}");
        }
    }

    /// Segments of a class of which nothing is in use or in quarantine, those with the highest index first.
    pub fn empty_segments(&self, class: SegmentClass) -> Vec<u32> {
        let open = self.classes[class_at(class)].open.iter().rev().copied();
        debug_assert!(
            open.clone().all(|index| self.segment(index).0 == class),
            "segments are open in their class"
        );
        open.filter(|&index| self.bitmap(index).used() == 0).collect()
    }

    /// The first slot from one on that is in use.
    pub fn next_slot(&self, from: u64) -> Option<u64> {
        let in_segment = (1u64 << self.shift) / INODE_SIZE as u64;
        let (first, mut at) = ((from / in_segment) as usize, (from % in_segment) as u32);
        for (index, segment) in self.segments.iter().enumerate().skip(first) {
            if let Some((SegmentClass::Inodes, bitmap)) = segment
                && let Some(unit) = bitmap.next_used(at)
            {
                debug_assert!(unit >= at && bitmap.is_used(unit));
                return Some(index as u64 * in_segment + u64::from(unit));
            }
            at = 0;
        }
        None
    }

    /// Takes away a segment.
    ///
    /// # Panics
    /// When something of it is in use.
    pub fn remove_segment(&mut self, index: u32) {
        let (class, bitmap) = self.segments[index as usize].take().expect("the segment is ours");
        assert_eq!(bitmap.used(), 0, "segment {index} is in use");
        assert!(!self.is_closed(index), "segment {index} is closed");
        debug_assert!(
            self.quarantined_runs().all(|run| run.segment != index),
            "segment {index} is in quarantine"
        );
        let of_class = &mut self.classes[class_at(class)];
        let was_open = of_class.open.remove(&index);
        assert!(was_open, "segment {index} has free units");
        of_class.units = less(of_class.units, bitmap.len());
        of_class.free = less(of_class.free, bitmap.len());
        self.check_class(class);
    }

    fn segment(&self, index: u32) -> &(SegmentClass, Bitmap) {
        self.segments[index as usize].as_ref().expect("the segment is ours")
    }

    fn segment_mut(&mut self, index: u32) -> &mut (SegmentClass, Bitmap) {
        self.segments[index as usize].as_mut().expect("the segment is ours")
    }

    /// Are all pages in use that some bytes lie in?
    pub fn is_in_use(&self, offset: u64, len: u64) -> bool {
        let mut all = true;
        each_page(offset, len, |page, _| {
            let run = self.page_run(page * PAGE_BYTES, 1);
            all &= self.bitmap(run.segment).is_used(run.start);
        });
        all
    }

    pub fn bitmap(&self, segment: u32) -> &Bitmap {
        &self.segment(segment).1
    }

    /// Free units of a class, quarantine not counted.
    pub fn free(&self, class: SegmentClass) -> u64 {
        self.classes[class_at(class)].free
    }

    /// Units of a class that hold something (or are delegated to a session).
    pub fn used(&self, class: SegmentClass) -> u64 {
        let of_class = &self.classes[class_at(class)];
        let given_out = of_class.units.checked_sub(of_class.free + of_class.quarantined);
        given_out.expect("no unit is counted twice")
    }

    /// Units of a class in quarantine.
    pub fn quarantined(&self, class: SegmentClass) -> u64 {
        self.classes[class_at(class)].quarantined
    }

    /// Takes any one unit.
    pub fn take_one(&mut self, class: SegmentClass) -> Option<Run> {
        let cursor = self.classes[class_at(class)].cursor;
        let at_cursor = self.segments.get(cursor as usize).and_then(Option::as_ref);
        let is_open = at_cursor.is_some_and(|(of, bitmap)| *of == class && bitmap.free() > 0);
        let of_class = &mut self.classes[class_at(class)];
        let segment = match is_open {
            true => cursor,
            false => *of_class.open.range(cursor..).next().or(of_class.open.first())?,
        };
        debug_assert!(of_class.open.contains(&segment) && of_class.free > 0);
        of_class.cursor = segment;
        let start = self
            .segment_mut(segment)
            .1
            .take_one()
            .expect("open segments have a free unit");
        debug_assert!(self.bitmap(segment).is_used(start), "what was taken is in use");
        self.took(segment, 1);
        Some(Run { segment, start, len: 1 })
    }

    /// Takes a run of at most `max` units: the longest found with bounded effort.
    pub fn take_run(&mut self, class: SegmentClass, max: u32) -> Option<Run> {
        if max == 1 {
            return self.take_one(class);
        }
        let of_class = &self.classes[class_at(class)];
        let from_cursor = of_class.open.range(of_class.cursor..);
        let mut best: Option<Run> = None;
        for &segment in from_cursor
            .chain(of_class.open.range(..of_class.cursor))
            .take(SEARCH_SEGMENTS)
        {
            let longest = best.map_or(0, |b| b.len);
            let bitmap = self.bitmap(segment);
            if bitmap.free() <= longest {
                continue;
            }
            if let Some((start, len)) = bitmap.best_run(max).filter(|(_, len)| *len > longest) {
                best = Some(Run { segment, start, len });
                if len == max {
                    break;
                }
            }
        }
        let run = best?;
        debug_assert!(
            (1..=max).contains(&run.len),
            "{} units where {max} were asked for",
            run.len
        );
        self.classes[class_at(class)].cursor = run.segment;
        let marked = self.mark(run);
        debug_assert!(marked, "a run found free is free");
        debug_assert_eq!(self.segment(run.segment).0, class, "a run of {class:?}");
        Some(run)
    }

    /// Takes the unit right after another one of its segment, if that is free.
    pub fn take_after(&mut self, page: u64) -> Option<Run> {
        let run = self.page_run((page + 1) * PAGE_BYTES, 1);
        let (class, bitmap) = self.segments.get(run.segment as usize)?.as_ref()?;
        let same_segment = self.page_run(page * PAGE_BYTES, 1).segment == run.segment;
        (same_segment && *class == SegmentClass::Data && bitmap.free_at(run.start, 1) == 1).then(|| {
            let marked = self.mark(run);
            debug_assert!(marked, "a page found free is free");
            debug_assert_eq!(self.offset(run), (page + 1) * PAGE_BYTES, "the page right after it");
            run
        })
    }

    /// Marks a run as in use; false when part of it is already.
    pub fn mark(&mut self, run: Run) -> bool {
        debug_assert!(run.len > 0, "a run of no units");
        let marked = self.segment_mut(run.segment).1.take(run.start, run.len);
        if marked {
            self.took(run.segment, run.len);
        }
        marked
    }

    fn took(&mut self, segment: u32, n: u32) {
        let (class, full) = (self.segment(segment).0, self.bitmap(segment).free() == 0);
        let of_class = &mut self.classes[class_at(class)];
        of_class.free = less(of_class.free, n);
        debug_assert!(
            of_class.open.contains(&segment),
            "what is taken is of a segment with free units"
        );
        if full {
            of_class.open.remove(&segment);
        }
        debug_assert!(of_class.free + of_class.quarantined <= of_class.units);
        debug_assert_eq!(full, !of_class.open.contains(&segment));
    }

    /// Gives a run back at once: nobody can know of it any more.
    pub fn give(&mut self, run: Run) {
        debug_assert!(run.len > 0, "a run of no units");
        if let Some(closed) = self.closed.iter_mut().find(|closed| closed.segment == run.segment) {
            debug_assert!(
                closed.free.iter().all(|free| !free.overlaps(run)),
                "{run:?} is free already"
            );
            closed.free.push(run);
            let class = self.segment(run.segment).0;
            self.classes[class_at(class)].quarantined += u64::from(run.len);
            return;
        }
        let (class, bitmap) = self.segment_mut(run.segment);
        let was_full = bitmap.free() == 0;
        bitmap.give(run.start, run.len);
        let class = *class;
        let of_class = &mut self.classes[class_at(class)];
        of_class.free += u64::from(run.len);
        debug_assert_eq!(was_full, !of_class.open.contains(&run.segment));
        if was_full {
            of_class.open.insert(run.segment);
        }
        debug_assert!(of_class.free + of_class.quarantined <= of_class.units);
    }

    /// The run of pages that begins at a region offset.
    pub fn page_run(&self, offset: u64, pages: u64) -> Run {
        let within = offset & ((1 << self.shift) - 1);
        debug_assert!(offset.is_multiple_of(PAGE_BYTES), "page at {offset:#x}");
        debug_assert!(
            pages > 0 && within + pages * PAGE_BYTES <= 1 << self.shift,
            "{pages} pages at {offset:#x}"
        );
        Run {
            segment: (offset >> self.shift) as u32,
            start: (within / PAGE_BYTES) as u32,
            len: pages as u32,
        }
    }

    /// Region offset of a run's first byte.
    pub fn offset(&self, run: Run) -> u64 {
        debug_assert!(
            run.start + run.len <= self.bitmap(run.segment).len(),
            "{run:?} lies in its segment"
        );
        let unit = match self.segment(run.segment).0 {
            SegmentClass::Inodes => INODE_SIZE as u64,
            _ => PAGE_BYTES,
        };
        (u64::from(run.segment) << self.shift) + u64::from(run.start) * unit
    }

    // ---- quarantine

    /// The region's records are kept for copies from now on, or no longer.
    pub fn set_recorded(&mut self, recorded: bool) {
        self.record = match recorded {
            true => Lsn(u64::MAX),
            false => Lsn(0),
        };
        if !recorded {
            self.quarantine.iter_mut().for_each(|freed| freed.record = Lsn(0));
        }
    }

    /// What was freed by now, the records up to this one say.
    pub fn records_taken(&mut self, last: Lsn) {
        let unsent = self.quarantine.iter_mut().rev();
        unsent
            .take_while(|freed| freed.record == Lsn(u64::MAX))
            .for_each(|freed| freed.record = last);
    }

    /// Every mirror has the records up to this one: what it is sent from pages that they have freed it has got.
    pub fn set_mirrored(&mut self, last: Lsn) {
        self.mirrored = self.mirrored.max(last);
    }

    /// Has every mirror the record that has freed it?
    fn is_mirrored(&self, freed: &Freed) -> bool {
        freed.record <= self.mirrored || planted(Planted::ReusedUnmirrored)
    }

    /// Will units of a class be free as soon as the mirrors know that they are?
    pub fn waits_for_mirrors(&self, class: SegmentClass) -> bool {
        let of_class = |freed: &&Freed| self.segment(freed.run.segment).0 == class;
        let mut waiting = self.quarantine.iter().filter(of_class);
        waiting.any(|freed| !freed.written && self.snapshots.let_go(freed.shown) && !self.is_mirrored(freed))
    }

    /// What is freed from now on carries `tick`; what was freed at or before `safe` is free again.
    pub fn set_tick(&mut self, tick: u64, safe: u64) {
        assert!(safe <= tick, "tick {tick}, and what {safe} has freed is free");
        self.tick = self.tick.max(tick);
        let safe = safe + u64::from(planted(Planted::QuarantineEndsEarly));
        self.end_oldest(|freed| freed.tick <= safe);
        debug_assert!(
            self.quarantine.iter().is_sorted_by_key(|freed| freed.tick),
            "ticks ascend"
        );
        debug_assert!(self.tick >= tick, "ticks do not go back");
        debug_assert!(
            self.quarantine.iter().all(|freed| freed.tick <= self.tick),
            "what is in quarantine was freed before"
        );
        self.check_class(SegmentClass::Data);
        self.check_class(SegmentClass::Logs);
    }

    /// Ends the quarantine of what has waited longest, up to the first that is to wait on or that a snapshot or a copy needs.
    fn end_oldest(&mut self, may_end: impl Fn(&Freed) -> bool) {
        while self
            .quarantine
            .front()
            .is_some_and(|freed| may_end(freed) && self.snapshots.let_go(freed.shown) && self.is_mirrored(freed))
        {
            let freed = self.quarantine.pop_front().expect("there is a front");
            self.leave_quarantine(freed.run);
        }
    }

    /// Ends it early, up to the first that somebody may still reach: as [`Self::end_quarantine`], without looking at all there is.
    pub fn end_quarantine_at_front(&mut self) {
        self.end_oldest(|freed| !freed.written);
        self.check_class(SegmentClass::Data);
        self.check_class(SegmentClass::Logs);
    }

    /// Pages that nobody is to use before their time. `written`: by a client that is gone and may still write there.
    pub fn quarantine(&mut self, run: Run, written: bool) {
        if planted(Planted::NoQuarantine) || written && planted(Planted::DelegatedPagesFree) {
            return self.give(run);
        }
        let (class, bitmap) = self.segment(run.segment);
        debug_assert!(*class != SegmentClass::Inodes, "slots are free at once");
        debug_assert!(
            (run.start..run.start + run.len).all(|unit| bitmap.is_used(unit)),
            "{run:?} was in use"
        );
        let of_class = &mut self.classes[class_at(*class)];
        of_class.quarantined += u64::from(run.len);
        debug_assert!(of_class.free + of_class.quarantined <= of_class.units);
        if let Some(last) = self.quarantine.back_mut() {
            debug_assert!(last.tick <= self.tick, "ticks ascend");
            let follows = last.run.segment == run.segment && last.run.start + last.run.len == run.start;
            if follows && last.tick == self.tick && last.written == written {
                last.run.len += run.len;
                last.shown = self.snapshots.begun();
                last.record = self.record;
                return;
            }
        }
        if self.quarantine.len() >= QUARANTINE_MAX {
            self.empty_quarantine();
        }
        self.quarantine.push_back(Freed {
            tick: self.tick,
            run,
            written,
            shown: self.snapshots.begun(),
            record: self.record,
        });
    }

    fn leave_quarantine(&mut self, run: Run) {
        debug_assert!(run.len > 0, "a run of no units");
        let class = self.segment(run.segment).0;
        let of_class = &mut self.classes[class_at(class)];
        of_class.quarantined = less(of_class.quarantined, run.len);
        self.give(run);
    }

    /// Space is short: opens closed segments, and ends the quarantine early. True when that gave anything.
    pub fn empty_quarantine(&mut self) -> bool {
        let closed = self.closed.len();
        self.open_closed();
        self.end_quarantine() || closed > 0
    }

    /// Empties the quarantine but for what a client that is gone may still write to, and what a snapshot may show. True when that gave
    /// anything.
    pub fn end_quarantine(&mut self) -> bool {
        let before = self.quarantine.len();
        for freed in std::mem::take(&mut self.quarantine) {
            let written = freed.written && !planted(Planted::WrittenPagesReused);
            if written || !self.snapshots.let_go(freed.shown) || !self.is_mirrored(&freed) {
                self.quarantine.push_back(freed);
            } else {
                self.leave_quarantine(freed.run);
            }
        }
        debug_assert!(self.quarantine.len() <= before);
        debug_assert!(
            self.quarantine
                .iter()
                .all(|freed| freed.written || !self.snapshots.let_go(freed.shown) || !self.is_mirrored(freed)),
            "only what somebody may still reach waits on"
        );
        self.check_class(SegmentClass::Data);
        self.check_class(SegmentClass::Logs);
        self.quarantine.len() < before
    }

    /// Every run that is free but not given out: in quarantine, held back, or in a closed segment.
    pub fn quarantined_runs(&self) -> impl Iterator<Item = Run> + '_ {
        let closed = self.closed.iter().flat_map(|closed| &closed.free);
        self.quarantine
            .iter()
            .map(|f| f.run)
            .chain(self.held_back.iter().chain(closed).copied())
    }

    /// Takes all free units of a segment, as if they were in quarantine.
    fn take_free(&mut self, segment: u32) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut start = 0;
        while start < self.bitmap(segment).len() {
            let len = self.bitmap(segment).free_at(start, u32::MAX);
            if len > 0 {
                let run = Run { segment, start, len };
                assert!(self.mark(run), "a run found free is free");
                runs.push(run);
            }
            start += len.max(1);
        }
        assert_eq!(self.bitmap(segment).free(), 0, "all of segment {segment} is taken");
        let class = self.segment(segment).0;
        self.classes[class_at(class)].quarantined += runs.iter().map(|run| u64::from(run.len)).sum::<u64>();
        runs
    }

    /// Keeps the data pages that are free now from being given out, until `give_out_held_back`.
    pub fn hold_back_free_data(&mut self) {
        for segment in self.classes[class_at(SegmentClass::Data)].open.clone() {
            let free = self.take_free(segment);
            self.held_back.extend(free);
        }
        assert!(
            self.classes[class_at(SegmentClass::Data)].open.is_empty(),
            "no segment of data is open"
        );
        assert_eq!(self.free(SegmentClass::Data), 0, "free data is held back");
    }

    /// What was held back can be given out.
    pub fn give_out_held_back(&mut self) {
        for run in std::mem::take(&mut self.held_back) {
            self.leave_quarantine(run);
        }
        self.check_class(SegmentClass::Data);
    }

    /// Gives out nothing of a segment any more, until it is opened again. What is moved out of it goes to the lowest segments that have
    /// room.
    pub fn close(&mut self, segment: u32) {
        assert!(!self.is_closed(segment), "segment {segment} is closed once");
        let class = self.segment(segment).0;
        assert_ne!(class, SegmentClass::Inodes, "inodes are not moved");
        self.classes[class_at(class)].cursor = 0;
        let free = self.take_free(segment);
        debug_assert!(
            free.iter().all(|run| run.segment == segment),
            "all of it is of the segment"
        );
        self.closed.push(Closed { segment, free });
        self.check_class(class);
    }

    /// Is a segment closed?
    pub fn is_closed(&self, segment: u32) -> bool {
        self.closed.iter().any(|closed| closed.segment == segment)
    }

    /// How many are closed.
    pub fn closed(&self) -> usize {
        self.closed.len()
    }

    /// Units of a closed segment that are in use.
    pub fn left_in_closed(&self, segment: u32) -> u64 {
        let closed = self.closed.iter().find(|closed| closed.segment == segment);
        let free = closed.into_iter().flat_map(|closed| &closed.free).copied();
        let waiting = self.quarantine.iter().map(|freed| freed.run);
        let not_in_use = waiting.filter(|run| run.segment == segment).chain(free);
        let not_in_use = not_in_use.map(|run| u64::from(run.len)).sum();
        let left = u64::from(self.bitmap(segment).used()).checked_sub(not_in_use);
        left.expect("what is free of a closed segment counts as used")
    }

    /// Closed segments of which nothing will become free by itself any more, with the quarantine, are ones like others again; but for
    /// `kept`.
    pub fn open_ready(&mut self, kept: Option<u32>) {
        if self.closed.is_empty() {
            return;
        }
        let waiting: BTreeSet<u32> = self.quarantine.iter().map(|freed| freed.run.segment).collect();
        let stays = |closed: &Closed| kept == Some(closed.segment) || waiting.contains(&closed.segment);
        let ready: Vec<u32> = self
            .closed
            .iter()
            .filter(|closed| !stays(closed))
            .map(|closed| closed.segment)
            .collect();
        ready.into_iter().for_each(|segment| self.open(segment));
    }

    /// Closed segments are ones like others again.
    pub fn open_closed(&mut self) {
        while let Some(closed) = self.closed.last() {
            self.open(closed.segment);
        }
    }

    fn open(&mut self, segment: u32) {
        let at = self.closed.iter().position(|closed| closed.segment == segment);
        let closed = self.closed.swap_remove(at.expect("the segment is closed"));
        let is_its = |run: &Run| run.segment == segment;
        debug_assert!(closed.free.iter().all(is_its), "free runs are of the closed segment");
        closed.free.into_iter().for_each(|run| self.leave_quarantine(run));
        self.check_class(self.segment(segment).0);
    }

    // ---- live bytes

    /// Live bytes of a data page that is in use.
    pub fn live_bytes(&self, page: u64) -> u16 {
        let live = self.live.get(&page).copied().unwrap_or(PAGE as u16);
        debug_assert!((1..=PAGE as u16).contains(&live), "{live} live bytes of page {page}");
        live
    }

    /// Bytes of pages that held nothing live until now are mapped.
    pub fn map_fresh(&mut self, offset: u64, len: u64) {
        debug_assert!(len > 0, "no bytes are mapped");
        debug_assert!(self.is_in_use(offset, len), "what is mapped is in use");
        let (head, tail) = parts_of_pages(offset, len);
        for (at, bytes) in [(offset, head), (offset + len - tail, tail)] {
            if bytes > 0 {
                let before = self.live.insert(at / PAGE_BYTES, bytes as u16);
                debug_assert!(
                    before.is_none()
                        || planted(Planted::CommittedPagesReturned)
                        || planted(Planted::PartlyLivePagesForgotten),
                    "page {} was fresh",
                    at / PAGE_BYTES
                );
            }
        }
    }

    /// Bytes of pages that hold live bytes already are mapped in addition; false when that is more than a page has.
    pub fn map_more(&mut self, offset: u64, len: u64) -> bool {
        debug_assert!(
            self.is_in_use(offset, len) || planted(Planted::PartlyLivePagesForgotten),
            "what is mapped is in use"
        );
        let mut fits = true;
        each_page(offset, len, |page, bytes| {
            let live = u64::from(self.live_bytes(page)) + bytes;
            match live {
                0..PAGE_BYTES => {
                    self.live.insert(page, live as u16);
                }
                PAGE_BYTES => {
                    self.live.remove(&page);
                }
                _ => fits = false,
            }
        });
        fits
    }

    /// Bytes are mapped no more: pages without a live byte go to quarantine.
    pub fn unmap(&mut self, offset: u64, len: u64) {
        debug_assert!(len > 0, "no bytes are unmapped");
        let (head, tail) = parts_of_pages(offset, len);
        self.unmap_part(offset, head);
        let whole = len - head - tail;
        if whole > 0 {
            self.quarantine(self.page_run(offset + head, whole / PAGE_BYTES), false);
        }
        self.unmap_part(offset + len - tail, tail);
    }

    fn unmap_part(&mut self, offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let page = offset / PAGE_BYTES;
        debug_assert!(
            bytes <= u64::from(self.live_bytes(page)) || planted(Planted::PartlyLivePagesForgotten),
            "{bytes} bytes of page {page} were live"
        );
        let left = u64::from(self.live_bytes(page)).saturating_sub(bytes);
        if left == 0 {
            self.live.remove(&page);
            self.quarantine(self.page_run(page * PAGE_BYTES, 1), false);
        } else {
            self.live.insert(page, left as u16);
            debug_assert_eq!(u64::from(self.live_bytes(page)), left, "what is left is live");
        }
    }
}

/// How many bytes at the beginning of a range, and how many at its end, lie in pages that it does not fill. What is between
/// them is whole pages.
fn parts_of_pages(offset: u64, len: u64) -> (u64, u64) {
    let head = len.min(offset.next_multiple_of(PAGE_BYTES) - offset);
    let tail = (len - head) % PAGE_BYTES;
    debug_assert!(head < PAGE_BYTES && head + tail <= len);
    (head, tail)
}

/// Calls with each page's number and how many bytes of the range lie in it.
pub(crate) fn each_page(offset: u64, len: u64, mut with: impl FnMut(u64, u64)) {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let bytes = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
        with(at / PAGE_BYTES, bytes);
        at += bytes;
    }
    debug_assert!(at == end, "the pages have all bytes of {offset:#x}+{len}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let mut space = Space::new(21);
        for (index, class) in (0..).zip([
            SegmentClass::Inodes,
            SegmentClass::Logs,
            SegmentClass::Data,
            SegmentClass::Data,
        ]) {
            space.add_segment(index, class);
        }
        space
    }

    #[test]
    fn runs_are_as_long_as_a_segment_and_small_ones_fill_the_gaps() {
        let mut s = space();
        let a = s.take_run(SegmentClass::Data, 10).unwrap();
        let b = s.take_run(SegmentClass::Data, 10_000).unwrap();
        assert_eq!((a.segment, a.start, a.len), (2, 0, 10));
        assert_eq!((b.segment, b.start, b.len), (3, 0, 512));
        assert_eq!(s.take_run(SegmentClass::Data, 10_000).unwrap().len, 502);
        assert_eq!(s.take_run(SegmentClass::Data, 1), None);
        s.give(Run {
            segment: 2,
            start: 4,
            len: 1,
        });
        assert_eq!(s.take_one(SegmentClass::Data).unwrap().start, 4);
        assert_eq!(s.free(SegmentClass::Data), 0);
        assert_eq!(s.free(SegmentClass::Inodes), 8192);
    }

    #[test]
    fn a_page_is_freed_with_its_last_live_byte() {
        let mut s = space();
        let run = s.take_run(SegmentClass::Data, 3).unwrap();
        let at = s.offset(run);
        s.map_fresh(at, 2 * 4096 + 100);
        assert!(s.map_more(at + 2 * 4096 + 100, 50));
        assert!(!s.map_more(at, 1), "a fully live page has no room");
        s.unmap(at + 4000, 4096 + 96);
        assert_eq!(s.quarantined(SegmentClass::Data), 1);
        s.unmap(at + 2 * 4096, 150);
        s.unmap(at, 4000);
        assert_eq!(s.quarantined(SegmentClass::Data), 3);
        s.set_tick(1, 0);
        assert_eq!(
            (s.quarantined(SegmentClass::Data), s.free(SegmentClass::Data)),
            (0, 1024)
        );
    }

    #[test]
    fn only_the_ends_of_what_is_mapped_are_partly_live() {
        let mut s = space();
        let run = s.take_run(SegmentClass::Data, 14).unwrap();
        let at = s.offset(run);
        let live = |s: &Space| -> Vec<u16> { (0..4).map(|page| s.live_bytes(at / 4096 + page)).collect() };
        s.map_fresh(at + 4000, 96 + 2 * 4096 + 5);
        assert_eq!(live(&s), [96, 4096, 4096, 5]);
        s.unmap(at + 4000, 96 + 2 * 4096 + 5);
        assert_eq!((s.quarantined(SegmentClass::Data), s.live.len()), (4, 0));
        for (n, (skip, len)) in (0..).zip([(0, 4096), (10, 20), (0, 7), (4095, 1), (4090, 10)]) {
            let at = at + (4 + 2 * n) * 4096 + skip;
            s.map_fresh(at, len);
            s.unmap(at, len);
            assert_eq!(s.live.len(), 0, "{skip}+{len}");
        }
    }

    #[test]
    fn unmapping_across_pages_without_a_whole_one() {
        let mut s = space();
        let at = {
            let run = s.take_run(SegmentClass::Data, 2).unwrap();
            s.offset(run)
        };
        s.map_fresh(at, 8192);
        s.unmap(at + 4000, 200);
        assert_eq!((s.live_bytes(at / 4096), s.live_bytes(at / 4096 + 1)), (4000, 3992));
        assert_eq!(s.quarantined(SegmentClass::Data), 0);
    }

    #[test]
    fn quarantine_ends_with_its_tick_or_when_space_is_short() {
        let mut s = space();
        s.set_tick(5, 4);
        let a = s.take_run(SegmentClass::Data, 1).unwrap();
        let b = s.take_run(SegmentClass::Data, 1).unwrap();
        s.quarantine(a, false);
        s.quarantine(b, true);
        s.set_tick(6, 4);
        assert_eq!(s.quarantined(SegmentClass::Data), 2);
        assert!(s.empty_quarantine());
        assert_eq!(s.quarantined(SegmentClass::Data), 1);
        assert!(!s.empty_quarantine());
        s.set_tick(7, 5);
        assert_eq!(s.quarantined(SegmentClass::Data), 0);
    }

    #[test]
    fn the_next_page_is_taken_only_within_the_segment() {
        let mut s = space();
        let a = s.take_run(SegmentClass::Data, 511).unwrap();
        let last = s.offset(a) / 4096 + 510;
        assert_eq!(s.take_after(last).unwrap().start, 511);
        assert_eq!(s.take_after(last + 1), None);
        assert_eq!(s.take_after(last - 1), None);
    }
}
