//! The region's bytes: where its offsets lie in the pool, and which of them are free.
//!
//! Offsets that come from the media are checked here (`*_from_media`) before anything is read at them; offsets that
//! this crate has made itself are trusted.

mod bytes;

use crate::capture::{Capture, OnRecord};
use crate::extents::Mapped;
use crate::hash::NumberMap;
use crate::layout::{AppendMemory, Layout};
use crate::origins::{Done, Origins};
use crate::space::{Run, Space};
use crate::writes::Writes;
use crate::{PoolSpace, PoolUsage, RegionError};
use polvo_format::{
    Change, Floor, Gpa, INODE_HEAD_SIZE, INODE_SIZE, Ino, Origin, PAGE, RegionId, RegionOffset, SequenceLimit,
};
use polvo_pmem::Pmem;
use polvo_proto::{FsError, SegmentClass};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Log pages that only operations which free something may take, so that a full region can be emptied again (at most
/// a quarter of a segment). In addition, as many as the longest log has: then that directory can be emptied name by
/// name, and its log be written anew at any time on the way.
const LOG_RESERVE: u64 = 64;
/// Data pages of a region that may wait for readers while it takes more segments, in any case: 8 MiB.
const SPARE_MIN: u64 = (8 << 20) >> 12;
/// Data pages: whoever asks for so many in one piece gets them so, if there is room.
const LONG_RUN: u32 = 64;
/// Logs up to this many pages are covered by [`LOG_RESERVE`] and not counted.
const SHORT_LOG: usize = 16;

/// Free segments of a pool that data leave to inodes and logs.
fn keep_for_metadata(usage: &PoolUsage) -> u32 {
    (usage.segments / 64).max(2)
}

/// What an allocation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// May fail when space is short.
    Normal,
    /// Frees space in the end: may dig into the reserve.
    Frees,
}

pub(crate) struct Store {
    pub pool: Arc<PoolSpace>,
    pmem: Arc<Pmem>,
    /// where replicas are told what is stored
    capture: Option<Box<RefCell<Capture>>>,
    /// who hears of records that begin
    pub on_record: Option<OnRecord>,
    pub region: RegionId,
    shift: u32,
    /// data pages have checksums
    pub checksums: bool,
    /// by index: pool offset and class. An index is given once in a run, so that nobody who remembers what was there
    /// takes another segment for it; none where a segment went back to the pool
    pub segments: Vec<Option<(u64, SegmentClass)>>,
    /// of slots that nobody has used
    pub floor: Floor,
    /// of the next transaction that the region coordinates
    pub next_txn: u64,
    /// as it is on the media: numbers from here on were never used
    pub txn_limit: SequenceLimit,
    pub space: Space,
    /// The mirrors' nodes have room for more segments of data.
    pub may_grow: bool,
    /// inodes whose log is more than half dead
    pub garbage: BTreeSet<u64>,
    /// inodes that recovery or a later load found damaged, and what is wrong
    pub damaged: NumberMap<String>,
    /// how many logs there are of each length in pages, short ones left out
    log_lengths: BTreeMap<usize, u32>,
    /// of the next append
    pub append_memory: Option<Box<AppendMemory>>,
    /// scratch of transactions: a layout for each inode, what goes into the redo record, and what comes last in it
    pub layouts: Vec<Layout>,
    pub writes: Writes,
    pub heads: Vec<(u64, [u8; INODE_HEAD_SIZE])>,
    /// scratch of `commit`: what it has hidden of a file's mapping
    pub hidden: Vec<Mapped>,
    /// the request that asks for the next commit
    pub origin: Option<Origin>,
    /// those that were carried out
    pub origins: Origins,
}

impl Store {
    /// The region's segments as the pool's table says.
    pub fn new(pool: &Arc<PoolSpace>, region: RegionId) -> Result<Store, RegionError> {
        let shift = pool.usage().segment_size.ilog2();
        let mut segments = Vec::new();
        let mut space = Space::new(shift);
        for (index, at, class) in pool.segments_of(region) {
            assert!(index as usize >= segments.len(), "segments come in order");
            segments.resize(index as usize, None);
            segments.push(Some((at, class)));
            space.add_segment(index, class);
        }
        debug_assert!(
            segments.iter().flatten().count() == pool.segments_of(region).len(),
            "each segment is here"
        );
        Ok(Store {
            pmem: pool.pmem().clone(),
            capture: None,
            on_record: None,
            pool: pool.clone(),
            region,
            shift,
            checksums: pool.layout().has_checksums(),
            segments,
            floor: Floor::default(),
            next_txn: 1,
            txn_limit: SequenceLimit::default(),
            space,
            may_grow: true,
            garbage: BTreeSet::new(),
            damaged: NumberMap::default(),
            log_lengths: BTreeMap::new(),
            append_memory: None,
            layouts: Vec::new(),
            writes: Writes::default(),
            heads: Vec::new(),
            hidden: Vec::new(),
            origin: None,
            origins: Origins::default(),
        })
    }

    /// (index, pool offset, class) of each segment, by index.
    pub fn segments(&self) -> impl Iterator<Item = (u32, u64, SegmentClass)> + '_ {
        (0..)
            .zip(&self.segments)
            .filter_map(|(index, segment)| segment.map(|(at, class)| (index, at, class)))
    }

    pub fn segment_shift(&self) -> u32 {
        self.shift
    }

    /// The request that asked for the next commit has got it.
    #[cold]
    pub fn carried_out(&mut self, asked: Option<(Origin, Done)>) {
        if let Some((origin, done)) = asked {
            debug_assert!(self.origin.is_none_or(|asked| asked == origin), "who asked has got it");
            self.origins.note(origin, done);
            self.origin = None;
        }
    }

    // ---- addresses

    /// Pool offset of a region offset of ours.
    pub fn at(&self, offset: u64) -> u64 {
        let (base, _) = self.segment(offset);
        debug_assert!(
            base.is_multiple_of(1 << self.shift),
            "segments are aligned in their pool"
        );
        base + (offset & ((1 << self.shift) - 1))
    }

    /// Global address of a region offset of ours.
    pub fn gpa(&self, offset: u64) -> Gpa {
        Gpa::new(self.region, RegionOffset(offset))
    }

    /// What the segment of a region offset of ours holds.
    pub fn class(&self, offset: u64) -> SegmentClass {
        self.segment(offset).1
    }

    fn segment(&self, offset: u64) -> (u64, SegmentClass) {
        self.segments[(offset >> self.shift) as usize].expect("the segment is ours")
    }

    /// Does an offset, from wherever, lie in a segment of ours?
    pub fn has_segment(&self, offset: u64) -> bool {
        let segment = usize::try_from(offset >> self.shift)
            .ok()
            .and_then(|s| self.segments.get(s));
        segment.is_some_and(|segment| segment.is_some())
    }

    /// Is this a range within one segment of this class?
    pub fn is_within(&self, offset: u64, len: u64, class: SegmentClass) -> bool {
        let within = offset & ((1 << self.shift) - 1);
        let segment = usize::try_from(offset >> self.shift)
            .ok()
            .and_then(|s| *self.segments.get(s)?);
        segment.is_some_and(|s| s.1 == class) && within.checked_add(len).is_some_and(|end| end <= 1 << self.shift)
    }

    /// Region offset of an address from the media that must lie in a data segment of this region.
    pub fn data_from_media(&self, gpa: Gpa, len: u64) -> Option<u64> {
        let offset = gpa.offset().0;
        (gpa.region() == self.region && self.is_within(offset, len, SegmentClass::Data)).then_some(offset)
    }

    /// Checks a log page's offset from the media.
    pub fn log_page_from_media(&self, offset: u64) -> bool {
        offset.is_multiple_of(PAGE as u64) && self.is_within(offset, PAGE as u64, SegmentClass::Logs)
    }

    /// The inode number of a slot.
    pub fn ino(&self, slot: u64) -> Ino {
        Ino::new(self.region, slot)
    }

    /// Does an inode number name a slot of this region?
    pub fn slot_of(&self, ino: Ino) -> Option<u64> {
        let offset = ino.offset()?.0;
        let known = ino.region() == self.region && self.is_within(offset, INODE_SIZE as u64, SegmentClass::Inodes);
        known.then(|| ino.slot())
    }

    /// The bit that stands for a slot.
    pub fn slot_run(&self, slot: u64) -> Run {
        let offset = slot * INODE_SIZE as u64;
        debug_assert_eq!(self.class(offset), SegmentClass::Inodes, "slot {slot}");
        Run {
            segment: (offset >> self.shift) as u32,
            start: ((offset & ((1 << self.shift) - 1)) / INODE_SIZE as u64) as u32,
            len: 1,
        }
    }

    // ---- space

    /// Gets a segment from the pool. Data leaves the last ones to inodes and logs; ordinary changes leave the very
    /// last one to deletions.
    fn grow(&mut self, class: SegmentClass, urgency: Urgency) -> bool {
        let usage = self.pool.usage();
        let keep = match (class, urgency) {
            (SegmentClass::Data, _) => keep_for_metadata(&usage),
            (_, Urgency::Normal) => 1,
            (_, Urgency::Frees) => 0,
        };
        let may_grow = class != SegmentClass::Data || self.may_grow;
        may_grow && usage.free_segments > keep && self.add_segment(class).is_ok()
    }

    /// Gets a segment from the pool, whatever that leaves.
    pub fn add_segment(&mut self, class: SegmentClass) -> Result<(), RegionError> {
        let index = self.segments.len() as u32;
        let at = self.pool.take_segment(self.region, index, class)?;
        assert!(
            self.segments.iter().flatten().all(|(other, _)| *other != at),
            "the segment at {at:#x} is ours already"
        );
        self.segments.push(Some((at, class)));
        self.space.add_segment(index, class);
        if self.is_captured() {
            let class = class as u8;
            self.note(Change::Segment { index, class });
        }
        debug_assert_eq!(self.class(u64::from(index) << self.shift), class, "segment {index}");
        debug_assert_eq!(self.at(u64::from(index) << self.shift), at, "segment {index}");
        Ok(())
    }

    /// Log pages that are left to operations which free something.
    pub fn log_reserve(&self) -> u64 {
        debug_assert!(
            self.log_lengths
                .iter()
                .all(|(pages, logs)| *pages > SHORT_LOG && *logs > 0)
        );
        let longest = self.log_lengths.last_key_value().map_or(0, |(&pages, _)| pages as u64);
        LOG_RESERVE.min(1 << (self.shift - 14)) + longest
    }

    /// Takes one log page.
    pub fn take_log_page(&mut self, urgency: Urgency) -> Result<u64, RegionError> {
        let class = SegmentClass::Logs;
        let reserve = match urgency {
            Urgency::Normal => self.log_reserve(),
            Urgency::Frees => 0,
        };
        if self.space.free(class) <= reserve {
            self.space.empty_quarantine();
        }
        while self.space.free(class) <= reserve {
            if !self.grow(class, urgency) {
                // what is removed makes room in the end; it is not to fail since mirrors are a moment behind
                let waits = urgency == Urgency::Frees && self.space.waits_for_mirrors(class);
                return Err(if waits { FsError::Retry } else { FsError::NoSpace }.into());
            }
        }
        debug_assert!(self.space.free(class) > reserve, "the reserve stays");
        let run = self.space.take_one(class).ok_or(FsError::NoSpace)?;
        let page = self.space.offset(run);
        debug_assert!(self.log_page_from_media(page), "log page at {page:#x}");
        Ok(page)
    }

    /// A log may have another number of pages than before.
    #[inline]
    pub fn log_resized(&mut self, before: usize, after: usize) {
        if before != after {
            self.count_log(before, after);
        }
    }

    fn count_log(&mut self, before: usize, after: usize) {
        if before > SHORT_LOG
            && let Some(logs) = self.log_lengths.get_mut(&before)
        {
            *logs = logs.checked_sub(1).expect("a length without logs is not kept");
            if *logs == 0 {
                self.log_lengths.remove(&before);
            }
        }
        debug_assert!(
            self.log_lengths.values().all(|logs| *logs > 0),
            "lengths that no log has are not kept"
        );
        if after > SHORT_LOG {
            *self.log_lengths.entry(after).or_default() += 1;
        }
    }

    /// Takes one inode slot.
    pub fn take_slot(&mut self) -> Result<u64, RegionError> {
        let class = SegmentClass::Inodes;
        if self.space.free(class) == 0 && !self.grow(class, Urgency::Normal) {
            return Err(FsError::NoSpace.into());
        }
        let run = self.space.take_one(class).ok_or(FsError::NoSpace)?;
        let slot = self.space.offset(run) / INODE_SIZE as u64;
        assert!(slot != 0, "slot 0 is the region's header");
        debug_assert_eq!(self.slot_run(slot), run, "a slot and its bit");
        Ok(slot)
    }

    /// Data pages that are free, in quarantine, or could come from the pool.
    pub fn free_data_pages(&self) -> u64 {
        let usage = self.pool.usage();
        let segments = usage.free_segments.saturating_sub(keep_for_metadata(&usage));
        let class = SegmentClass::Data;
        self.space.free(class) + self.space.quarantined(class) + (u64::from(segments) << (self.shift - 12))
    }

    /// Data pages that are free in the pool.
    fn free_in_pool(&self) -> u64 {
        u64::from(self.pool.usage().free_segments) << (self.shift - 12)
    }

    /// Takes a run of at most `max` data pages; ENOSPC when there is none at all.
    pub fn take_data(&mut self, max: u32) -> Result<Run, RegionError> {
        let class = SegmentClass::Data;
        let max = max.clamp(1, (1u32 << (self.shift - 12)).max(1));
        let mut run = match max >= LONG_RUN {
            true => self.take_long_run(max),
            false => None,
        };
        if run.is_none() && self.space.free(class) == 0 {
            self.space.empty_quarantine();
            if self.space.free(class) == 0 {
                self.grow(class, Urgency::Normal);
            }
        }
        run = run.or_else(|| self.space.take_run(class, max));
        let run = run.ok_or(FsError::NoSpace)?;
        debug_assert!(
            (1..=max).contains(&run.len),
            "{} pages where at most {max} are to come",
            run.len
        );
        debug_assert_eq!(self.class(self.space.offset(run)), class, "{run:?}");
        Ok(run)
    }

    /// A long run of data pages is worth a fresh segment while there are plenty, but others of this pool, and of the pools of copies, want
    /// segments, too:
    ///
    /// - Where too little is free the quarantine is ended first, once it holds more than a quarter of what is free in the pool, and more
    ///   than twice what is in use: with that much what is written anew lies together, however it was overwritten before. It never holds
    ///   back more than twice what is free in the pool, but for [`SPARE_MIN`].
    /// - Where enough is free, but in pieces, a segment is taken while the region has no more than a quarter of what is free in the pool.
    fn take_long_run(&mut self, max: u32) -> Option<Run> {
        let class = SegmentClass::Data;
        let (used, free) = (self.space.used(class), self.free_in_pool());
        if self.space.free(class) < u64::from(max) {
            let waits_max = (2 * used.min(free)).max(free / 4).max(SPARE_MIN);
            if self.space.quarantined(class) > waits_max {
                self.space.end_quarantine_at_front();
            }
            if self.space.free(class) < u64::from(max) {
                self.grow(class, Urgency::Normal);
            }
        }
        let run = self.space.take_run(class, max)?;
        let spare = self.space.free(class) + self.space.quarantined(class);
        if run.len >= LONG_RUN || spare > free / 4 || !self.grow(class, Urgency::Normal) {
            return Some(run);
        }
        self.space.give(run);
        self.space.take_run(class, max)
    }

    /// Gives log pages that never became part of a log back at once.
    pub fn give_pages(&mut self, pages: &[u64]) {
        for &page in pages {
            debug_assert!(self.log_page_from_media(page), "log page at {page:#x}");
            let run = self.space.page_run(page, 1);
            debug_assert!(self.space.is_in_use(page, 1), "log page {page:#x} is taken");
            self.space.give(run);
        }
    }

    /// Puts pages that a log has used in quarantine.
    pub fn retire_pages(&mut self, pages: &[u64]) {
        for &page in pages {
            debug_assert!(self.log_page_from_media(page), "log page at {page:#x}");
            let run = self.space.page_run(page, 1);
            self.space.quarantine(run, false);
        }
    }

    /// An error about something on the media.
    pub fn corrupt(&self, what: &'static str, offset: u64, why: impl ToString) -> RegionError {
        RegionError::Corrupt {
            what,
            at: self.at(offset),
            why: why.to_string(),
        }
    }
}
