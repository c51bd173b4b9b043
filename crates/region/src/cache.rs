//! Inodes in DRAM, loaded from their logs on first use. All of it can be loaded again, so whatever was not used for
//! long is simply dropped when there is too much.

use crate::RegionError;
use crate::dram_inode::Inode;
use crate::hash::NumberMap;
use crate::store::Store;
use std::collections::hash_map::Entry;

/// Most inodes kept.
const INODES_MAX: usize = 1 << 16;
/// Most weight kept (see [`Inode::weight`]): about 1 GiB.
const WEIGHT_MAX: usize = 10_000_000;
/// The inodes of the last so many uses are never dropped: a transaction finds there what it has just looked at. Nor are those
/// whose mapping is shared with readers.
const RECENT: u64 = 1024;
/// Fewest loads between two looks at the weight, unless they weigh a lot.
const LOADS_PER_WEIGHING: usize = 1024;
/// A load pays for going over so many inodes: a look at the weight goes over all of them.
const INODES_PER_LOAD: usize = 4;

#[derive(Default)]
pub(crate) struct Cache {
    inodes: NumberMap<Box<Inode>>,
    clock: u64,
    since_weighing: Loads,
}

/// What has been loaded since the last look at the weight.
#[derive(Default)]
struct Loads {
    count: usize,
    weight: usize,
}

impl Loads {
    fn add(&mut self, weight: usize) {
        self.count += 1;
        self.weight += weight;
    }

    /// Whether the weight of that many inodes is to be looked at.
    fn are_many(&self, inodes: usize) -> bool {
        self.count >= LOADS_PER_WEIGHING.max(inodes / INODES_PER_LOAD) || self.weight >= WEIGHT_MAX / 4
    }
}

impl Cache {
    /// The inode of a slot, from the media if need be.
    pub fn get(&mut self, store: &Store, slot: u64) -> Result<&mut Inode, RegionError> {
        self.clock += 1;
        if self.may_be_full() && !self.inodes.contains_key(&slot) {
            self.make_room();
        }
        let inode = match self.inodes.entry(slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let inode = Box::new(store.load(slot)?);
                self.since_weighing.add(inode.weight());
                place.insert(inode)
            }
        };
        debug_assert_eq!(inode.slot, slot, "an inode is found by its slot");
        debug_assert!(inode.stamp < self.clock, "its last use was before this one");
        inode.stamp = self.clock;
        Ok(inode)
    }

    /// The inode of a slot, if it is here.
    pub fn known(&mut self, slot: u64) -> Option<&mut Inode> {
        let inode = self.inodes.get_mut(&slot).map(|b| &mut **b);
        debug_assert!(inode.as_ref().is_none_or(|inode| inode.slot == slot));
        inode
    }

    /// Takes the inode of a slot out.
    pub fn take(&mut self, slot: u64) -> Option<Box<Inode>> {
        let inode = self.inodes.remove(&slot);
        debug_assert!(inode.as_ref().is_none_or(|inode| inode.slot == slot));
        inode
    }

    /// Is an inode in it?
    pub fn has(&self, slot: u64) -> bool {
        self.inodes.contains_key(&slot)
    }

    /// Puts an inode in.
    pub fn put(&mut self, mut inode: Box<Inode>) {
        self.clock += 1;
        inode.stamp = self.clock;
        self.make_room();
        debug_assert_eq!(inode.slot, inode.attr.ino.slot(), "an inode lies in its slot");
        let before = self.inodes.insert(inode.slot, inode);
        debug_assert!(before.is_none(), "an inode is in DRAM once");
    }

    fn may_be_full(&self) -> bool {
        self.since_weighing.are_many(self.inodes.len()) || self.inodes.len() >= INODES_MAX
    }

    fn make_room(&mut self) {
        let heavy = self.since_weighing.are_many(self.inodes.len()) && {
            self.since_weighing = Loads::default();
            self.inodes.values().map(|i| i.weight()).sum::<usize>() > WEIGHT_MAX
        };
        if heavy || self.inodes.len() >= INODES_MAX {
            let mut stamps: Vec<u64> = self.inodes.values().map(|i| i.stamp).collect();
            let middle = stamps.len() / 2;
            let (_, &mut median, _) = stamps.select_nth_unstable(middle);
            let recent = self.clock.saturating_sub(RECENT);
            debug_assert!(median <= self.clock, "stamps are of the past");
            self.inodes
                .retain(|_, inode| inode.stamp >= median || inode.stamp >= recent || inode.is_shared());
            debug_assert!(!self.inodes.is_empty(), "what was used last stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inodes gone over in so many loads of that weight, into a cache that is full.
    fn gone_over(loads: usize, weight: usize) -> usize {
        let (mut since, mut gone_over) = (Loads::default(), 0);
        for _ in 0..loads {
            if since.are_many(INODES_MAX) {
                since = Loads::default();
                gone_over += INODES_MAX;
            }
            since.add(weight);
        }
        gone_over
    }

    #[test]
    fn what_looks_at_the_weight_cost_is_bounded_by_the_loads() {
        const LOADS: usize = 1_000_000;
        let light = gone_over(LOADS, 4);
        assert!(light > 0 && light <= LOADS * INODES_PER_LOAD, "{light}");
        // few heavy ones do not go unseen for long
        assert!(gone_over(10, WEIGHT_MAX / 8) >= 4 * INODES_MAX);
    }
}
