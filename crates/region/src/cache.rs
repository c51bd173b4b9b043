//! Inodes in DRAM, loaded from their logs on first use. All of it can be loaded again, so whatever was not used for
//! long is simply dropped when there is too much.

use crate::RegionError;
use crate::hash::NumberMap;
use crate::inode::Inode;
use crate::store::Store;
use std::collections::hash_map::Entry;

/// Most inodes kept.
const INODES_MAX: usize = 1 << 16;
/// Most weight kept (see [`Inode::weight`]): about 1 GiB.
const WEIGHT_MAX: usize = 10_000_000;
/// The inodes of the last so many uses are never dropped: a transaction finds there what it has just looked at. Nor are those
/// whose mapping is shared with readers.
const RECENT: u64 = 1024;
/// Loads between two looks at the weight.
const LOADS_PER_WEIGHING: u32 = 1024;

#[derive(Default)]
pub(crate) struct Cache {
    inodes: NumberMap<Box<Inode>>,
    clock: u64,
    loads: u32,
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
                self.loads += 1;
                place.insert(Box::new(store.load(slot, &mut 0)?))
            }
        };
        inode.stamp = self.clock;
        Ok(inode)
    }

    /// The inode of a slot, if it is here.
    pub fn known(&mut self, slot: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&slot).map(|b| &mut **b)
    }

    /// Takes the inode of a slot out.
    pub fn take(&mut self, slot: u64) -> Option<Box<Inode>> {
        self.inodes.remove(&slot)
    }

    /// Puts an inode in.
    pub fn put(&mut self, mut inode: Box<Inode>) {
        self.clock += 1;
        inode.stamp = self.clock;
        self.make_room();
        self.inodes.insert(inode.slot, inode);
    }

    fn may_be_full(&self) -> bool {
        self.loads >= LOADS_PER_WEIGHING || self.inodes.len() >= INODES_MAX
    }

    fn make_room(&mut self) {
        let heavy = self.loads >= LOADS_PER_WEIGHING && {
            self.loads = 0;
            self.inodes.values().map(|i| i.weight()).sum::<usize>() > WEIGHT_MAX
        };
        if heavy || self.inodes.len() >= INODES_MAX {
            let mut stamps: Vec<u64> = self.inodes.values().map(|i| i.stamp).collect();
            let middle = stamps.len() / 2;
            let (_, &mut median, _) = stamps.select_nth_unstable(middle);
            let recent = self.clock.saturating_sub(RECENT);
            self.inodes
                .retain(|_, inode| inode.stamp >= median || inode.stamp >= recent || inode.is_shared());
        }
    }
}
