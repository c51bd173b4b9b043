//! Which segment belongs to which region. The table on the media is the truth; what is kept here mirrors it.

use crate::RegionError;
use parking_lot::Mutex;
use polvo_format::{
    Gpa, LANE_CLASS, PoolLayout, REGISTER_OWNER, RegionId, RegionOffset, SegmentEntry, SegmentIndex, SegmentOwner,
};
use polvo_pmem::Pmem;
use polvo_proto::{FsError, SegmentClass};
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct SegmentTable {
    layout: PoolLayout,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: BTreeSet<u32>,
    owned: BTreeMap<(RegionId, u32), (SegmentIndex, SegmentClass)>,
    /// by whose records come there: the pool has a copy of that region
    lanes: BTreeMap<RegionId, SegmentIndex>,
    /// neither: nobody knows whose they are
    damaged: BTreeSet<u32>,
}

impl SegmentTable {
    /// Marks all segments free on the media. Not durable before the next fence.
    pub fn format(pmem: &Pmem, layout: &PoolLayout) {
        let words = (0..layout.segments).flat_map(|at| SegmentEntry::Free.encode(SegmentIndex(at)).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        pmem.write_streaming(layout.table_offset, &bytes);
    }

    /// Reads the table. `damage(pool offset, what is wrong)` decides whether a damaged entry is an error; if not, its
    /// segment is neither free nor anybody's.
    pub fn read(
        pmem: &Pmem,
        layout: &PoolLayout,
        mut damage: impl FnMut(u64, String) -> Result<(), RegionError>,
    ) -> Result<SegmentTable, RegionError> {
        let mut state = State::default();
        for at in (0..layout.segments).map(SegmentIndex) {
            let offset = layout.entry_offset(at);
            match SegmentEntry::decode(pmem.read_u64(offset), at) {
                Ok(SegmentEntry::Free) => {
                    state.free.insert(at.0);
                }
                Ok(SegmentEntry::Owned(owner)) => {
                    if let Err(why) = state.enter(layout, at, owner) {
                        damage(offset, why)?;
                        state.damaged.insert(at.0);
                    }
                }
                Err(why) => {
                    damage(offset, format!("{at}: {why}"))?;
                    state.damaged.insert(at.0);
                }
            }
        }
        state.check(layout);
        assert_eq!(
            state.free.len() + state.owned.len() + state.lanes.len() + state.damaged.len(),
            layout.segments as usize,
            "every entry was read"
        );
        Ok(SegmentTable {
            layout: *layout,
            state: Mutex::new(state),
        })
    }

    /// Segments whose entry is damaged.
    pub fn damaged(&self) -> Vec<SegmentIndex> {
        self.state.lock().damaged.iter().copied().map(SegmentIndex).collect()
    }

    /// Could a segment be this one? It makes sense, and no other one is.
    pub fn could_be(&self, owner: SegmentOwner) -> bool {
        let state = self.state.lock();
        if owner.class == LANE_CLASS {
            return owner.index == 0 && !state.lanes.contains_key(&owner.region);
        }
        SegmentClass::from_u8(owner.class).is_some_and(|class| may_own(owner.region, owner.index, class))
            && u64::from(owner.index) < region_segments_max(&self.layout)
            && !state.owned.contains_key(&(owner.region, owner.index))
    }

    /// Regions that live here: those that have segments, and are no copies.
    pub fn regions(&self) -> Vec<RegionId> {
        let state = self.state.lock();
        let owners = state.owned.keys().map(|(region, _)| *region);
        let mut regions: Vec<_> = owners.filter(|region| !state.lanes.contains_key(region)).collect();
        regions.dedup();
        regions.retain(|region| *region != REGISTER_OWNER);
        regions
    }

    /// Regions of which there is a copy, each with where its lane begins.
    pub fn lanes(&self) -> Vec<(RegionId, u64)> {
        let state = self.state.lock();
        let lanes = state.lanes.iter();
        lanes
            .map(|(region, at)| (*region, self.layout.segment_offset(*at)))
            .collect()
    }

    /// Takes a segment for a lane, zeroed. Durable on return; gives where it begins.
    pub fn take_lane(&self, pmem: &Pmem, region: RegionId) -> Result<u64, RegionError> {
        let at = {
            let mut state = self.state.lock();
            assert!(!state.lanes.contains_key(&region), "{region} has a lane");
            SegmentIndex(state.free.pop_first().ok_or(FsError::NoSpace)?)
        };
        let offset = self.layout.segment_offset(at);
        pmem.zero_streaming(offset, self.layout.segment_size());
        pmem.fence();
        let owner = SegmentOwner {
            region,
            index: 0,
            class: LANE_CLASS,
        };
        store(pmem, &self.layout, at, SegmentEntry::Owned(owner));
        let mut state = self.state.lock();
        let before = state.lanes.insert(region, at);
        assert!(before.is_none(), "{region} has got a lane meanwhile");
        state.check(&self.layout);
        Ok(offset)
    }

    /// Gives a lane back. Durable on return. What else the region has here is no copy any more.
    ///
    /// # Panics
    /// When it has none.
    pub fn give_back_lane(&self, pmem: &Pmem, region: RegionId) {
        let lane = self.state.lock().lanes.remove(&region);
        let at = lane.unwrap_or_else(|| panic!("{region} has no lane"));
        store(pmem, &self.layout, at, SegmentEntry::Free);
        let mut state = self.state.lock();
        let added = state.free.insert(at.0);
        assert!(added, "{at} is free already");
        state.check(&self.layout);
    }

    /// Pool offset of the segment that holds the register, if there is one.
    pub fn register(&self) -> Option<u64> {
        let state = self.state.lock();
        let (at, class) = state.owned.get(&(REGISTER_OWNER, 0))?;
        debug_assert_eq!(*class, SegmentClass::Register, "{at}");
        Some(self.layout.segment_offset(*at))
    }

    pub fn free(&self) -> u32 {
        self.state.lock().free.len() as u32
    }

    pub fn segments_of(&self, region: RegionId) -> Vec<(u32, u64, SegmentClass)> {
        let state = self.state.lock();
        let of_region = state.owned.range((region, 0)..=(region, u32::MAX));
        of_region
            .map(|(&(_, index), &(at, class))| (index, self.layout.segment_offset(at), class))
            .collect()
    }

    /// What a region's segment of this index holds, if it has one.
    pub fn class_of(&self, region: RegionId, index: u32) -> Option<SegmentClass> {
        let state = self.state.lock();
        state.owned.get(&(region, index)).map(|(_, class)| *class)
    }

    pub fn take(&self, pmem: &Pmem, region: RegionId, index: u32, class: SegmentClass) -> Result<u64, RegionError> {
        let owner = SegmentOwner {
            region,
            index,
            class: class as u8,
        };
        if u64::from(index) >= region_segments_max(&self.layout) {
            return Err(FsError::NoSpace.into());
        }
        assert!(may_own(region, index, class), "{region}: segment {index} for {class:?}");
        let at = {
            let mut state = self.state.lock();
            assert!(
                !state.owned.contains_key(&(region, index)),
                "{region} has a segment {index}"
            );
            SegmentIndex(state.free.pop_first().ok_or(FsError::NoSpace)?)
        };
        let offset = self.layout.segment_offset(at);
        assert!(offset.is_multiple_of(self.layout.segment_size()), "{at} is aligned");
        match class {
            SegmentClass::Inodes | SegmentClass::Logs | SegmentClass::Register => {
                pmem.zero_streaming(offset, self.layout.segment_size());
                // zeros first: a segment that is the region's is never seen with what it held before
                pmem.fence();
            }
            SegmentClass::Data => (),
        }
        store(pmem, &self.layout, at, SegmentEntry::Owned(owner));
        let mut state = self.state.lock();
        let before = state.owned.insert((region, index), (at, class));
        assert!(before.is_none(), "{region} has got a segment {index} meanwhile");
        state.check(&self.layout);
        drop(state);
        debug_assert_eq!(
            self.locate(
                Gpa::new(region, RegionOffset(u64::from(index) << self.layout.segment_shift)),
                1
            ),
            Some(offset),
            "{at} is found where it is"
        );
        Ok(offset)
    }

    pub fn give_back(&self, pmem: &Pmem, region: RegionId, index: u32) {
        let owned = self.state.lock().owned.remove(&(region, index));
        let (at, class) = owned.unwrap_or_else(|| panic!("{region} has no segment {index}"));
        store(pmem, &self.layout, at, SegmentEntry::Free);
        if class == SegmentClass::Inodes {
            // when a repair asks a segment whose it is, it goes by the inodes in it
            pmem.zero_streaming(self.layout.segment_offset(at), self.layout.segment_size());
            pmem.fence();
        }
        let mut state = self.state.lock();
        let added = state.free.insert(at.0);
        assert!(added, "{at} is free already");
        debug_assert!(
            !state.owned.contains_key(&(region, index)),
            "{region} has no segment {index} any more"
        );
        state.check(&self.layout);
    }

    /// Where `len` bytes at an address lie in this pool; `None` unless they all lie in one segment here.
    pub fn locate(&self, gpa: Gpa, len: u64) -> Option<u64> {
        let index = u32::try_from(gpa.offset().0 >> self.layout.segment_shift).ok()?;
        let within = gpa.offset().0 & (self.layout.segment_size() - 1);
        if within.checked_add(len)? > self.layout.segment_size() {
            return None;
        }
        let (at, _) = *self.state.lock().owned.get(&(gpa.region(), index))?;
        let found = self.layout.segment_offset(at) + within;
        debug_assert!(found + len <= self.layout.pool_len, "{gpa:?} lies in the pool");
        Some(found)
    }
}

/// Stores an entry, durably: gives a segment to a region or takes it back.
pub(super) fn store(pmem: &Pmem, layout: &PoolLayout, at: SegmentIndex, entry: SegmentEntry) {
    let offset = layout.entry_offset(at);
    pmem.write_u64(offset, entry.encode(at));
    pmem.persist(offset, 8);
    debug_assert_eq!(SegmentEntry::decode(pmem.read_u64(offset), at), Ok(entry), "{at}");
}

impl State {
    /// Each segment is free, or owned, or nobody knows whose, or just changing hands.
    fn check(&self, layout: &PoolLayout) {
        assert!(
            self.free.len() + self.owned.len() + self.lanes.len() + self.damaged.len() <= layout.segments as usize,
            "no segment counts twice"
        );
        debug_assert!(
            (self.owned.values().map(|(at, _)| at))
                .chain(self.lanes.values())
                .all(|at| !self.free.contains(&at.0) && !self.damaged.contains(&at.0)),
            "what is owned is neither free nor damaged"
        );
        debug_assert!(self.free.is_disjoint(&self.damaged), "what is damaged is not free");
    }

    fn enter(&mut self, layout: &PoolLayout, at: SegmentIndex, owner: SegmentOwner) -> Result<(), String> {
        let SegmentOwner { region, index, class } = owner;
        if class == LANE_CLASS {
            return match (index, self.lanes.get(&region)) {
                (0, None) => {
                    self.lanes.insert(region, at);
                    Ok(())
                }
                (0, Some(other)) => Err(format!("{other} and {at} both claim to be the lane of {region}")),
                (index, _) => Err(format!("{at}: lane {index} of {region}, which has one")),
            };
        }
        let class = SegmentClass::from_u8(class).ok_or_else(|| format!("{at}: class {class}"))?;
        if u64::from(index) >= region_segments_max(layout) {
            return Err(format!(
                "{at}: segment {index} of {region} is outside of the region's address space"
            ));
        }
        if !may_own(region, index, class) {
            return Err(format!("{at}: segment {index} of {region} for {class:?}"));
        }
        if let Some((other, _)) = self.owned.get(&(region, index)) {
            return Err(format!("{other} and {at} both claim to be segment {index} of {region}"));
        }
        self.owned.insert((region, index), (at, class));
        Ok(())
    }
}

/// The register has one segment, of an owner of its own, who has no other.
fn may_own(owner: RegionId, index: u32, class: SegmentClass) -> bool {
    match class.is_of_regions() {
        true => owner != REGISTER_OWNER,
        false => owner == REGISTER_OWNER && index == 0,
    }
}

/// A region's address space has 48 bits.
fn region_segments_max(layout: &PoolLayout) -> u64 {
    u64::from(polvo_format::REGION_SEGMENTS_MAX).min(1 << (Gpa::OFFSET_BITS - layout.segment_shift))
}
