//! The memory regions of a process: which bytes its peers may reach, by which key, and for what.

use crate::access::{SLOT_BITS, SLOTS, Want, check, draw, slot_of};
use crate::key_table::{KeyTable, Slot};
use crate::{Access, FabricError, Memory, RemoteKey};
use foldhash::HashMap;
use std::io;
use std::sync::{Arc, OnceLock, RwLock};

struct Entry {
    key: u64,
    memory: Memory,
    /// By which peers on this host know the memory.
    number: u64,
    /// First byte in `memory`.
    start: u64,
    len: u64,
    access: Access,
}

impl Entry {
    fn slot(&self) -> Slot {
        Slot {
            memory: self.number,
            start: self.start,
            len: self.len,
            access: self.access,
        }
    }
}

#[derive(Default)]
struct Table {
    slots: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Registrations so far.
    registered: u64,
    /// Numbers of the memories that regions lie in, by their address, and how many regions do.
    numbers: HashMap<usize, (u64, usize)>,
    memories: HashMap<u64, Memory>,
    next_number: u64,
}

/// A memory region that was resolved.
pub(crate) struct Known {
    key: u64,
    memory: Memory,
    slot: Slot,
}

impl Table {
    /// Slots are in use or free; every memory that a region lies in is known by its number.
    fn check(&self) {
        debug_assert_eq!(
            self.slots.iter().filter(|slot| slot.is_none()).count(),
            self.free.len(),
            "free slots are in the list"
        );
        debug_assert_eq!(
            self.numbers.values().map(|(_, regions)| regions).sum::<usize>(),
            self.slots.len() - self.free.len(),
            "each region lies in a memory"
        );
        debug_assert_eq!(self.memories.len(), self.numbers.len(), "a memory has one number");
        debug_assert!(self.numbers.values().all(|(number, regions)| {
            *regions > 0 && *number < self.next_number && self.memories.contains_key(number)
        }));
    }

    fn get(&self, key: u64) -> Result<&Entry, FabricError> {
        self.slots
            .get(slot_of(key))
            .and_then(Option::as_ref)
            .filter(|entry| entry.key == key)
            .ok_or(FabricError::BadKey { key })
    }

    /// The number of a memory that one more region lies in.
    fn hold(&mut self, memory: &Memory) -> u64 {
        let next = self.next_number;
        let (number, regions) = self.numbers.entry(memory.address()).or_insert((next, 0));
        *regions += 1;
        if *regions == 1 {
            self.next_number += 1;
            let before = self.memories.insert(next, memory.clone());
            debug_assert!(before.is_none(), "a number is given once");
        }
        *number
    }

    /// A region less lies in this memory.
    fn release(&mut self, memory: &Memory) {
        let address = memory.address();
        if let Some((number, regions)) = self.numbers.get_mut(&address) {
            *regions = regions
                .checked_sub(1)
                .expect("a memory is held as often as it is released");
            if *regions == 0 {
                let known = self.memories.remove(number);
                debug_assert!(
                    known.is_some_and(|known| known.address() == address),
                    "the memory of that number"
                );
                self.numbers.remove(&address);
            }
        }
    }
}

/// The memory regions of one process (node or client). `Send + Sync`, shared by all its queue pairs.
pub struct MemoryRegions {
    table: RwLock<Table>,
    /// Made when the first peer on this host comes; changed under the lock of `table`.
    shared: OnceLock<KeyTable>,
}

impl MemoryRegions {
    /// Empty table.
    pub fn new() -> Arc<MemoryRegions> {
        Arc::new(MemoryRegions {
            table: RwLock::default(),
            shared: OnceLock::new(),
        })
    }

    /// Registers `len` bytes at `offset` of `memory`; offset 0 of the memory region is `offset`. The key is a capability:
    /// who has it may use the region, over whichever connection, and nobody can guess it.
    ///
    /// Panics if the range lies outside `memory`, or is not aligned to 8 bytes though it allows atomics, or when a million
    /// memory regions are registered already, or when the system has no random numbers.
    pub fn register(&self, memory: Memory, offset: u64, len: u64, access: Access) -> RemoteKey {
        assert!(
            offset <= memory.len() && len <= memory.len() - offset,
            "a memory region lies within its memory"
        );
        assert!(
            !access.atomic || offset.is_multiple_of(8),
            "atomics need an aligned memory region"
        );
        let mut table = self.table.write().expect("nobody panics holding this lock");
        let slot = table.free.pop().unwrap_or(table.slots.len() as u32);
        assert!((slot as usize) < SLOTS, "too many memory regions");
        table.registered += 1;
        let key = draw(table.registered) << SLOT_BITS | u64::from(slot);
        let number = table.hold(&memory);
        let entry = Entry {
            key,
            memory,
            number,
            start: offset,
            len,
            access,
        };
        if let Some(shared) = self.shared.get() {
            shared.enter(key, entry.slot());
        }
        let entry = Some(entry);
        match table.slots.get_mut(slot as usize) {
            Some(place) => {
                assert!(place.is_none(), "slot {slot} is free");
                *place = entry;
            }
            None => table.slots.push(entry),
        }
        debug_assert!(
            slot_of(key) == slot as usize && table.get(key).is_ok(),
            "the key is found"
        );
        table.check();
        RemoteKey(key)
    }

    /// Revokes; later operations with it fail with [`FabricError::BadKey`]. An unknown key is ignored.
    pub fn deregister(&self, key: RemoteKey) {
        let mut table = self.table.write().expect("nobody panics holding this lock");
        let slot = slot_of(key.0);
        if let Some(place) = table.slots.get_mut(slot)
            && place.as_ref().is_some_and(|entry| entry.key == key.0)
            && let Some(entry) = place.take()
        {
            if let Some(shared) = self.shared.get() {
                shared.remove(key.0);
            }
            table.release(&entry.memory);
            debug_assert!(!table.free.contains(&(slot as u32)), "a slot is freed once");
            table.free.push(slot as u32);
            debug_assert!(table.get(key.0).is_err(), "a key that was revoked is not found");
            table.check();
        }
    }

    /// The table for peers on this host.
    pub(crate) fn share(&self) -> io::Result<&KeyTable> {
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let table = self.table.write().expect("nobody panics holding this lock");
        if self.shared.get().is_none() {
            let shared = KeyTable::new()?;
            for entry in table.slots.iter().flatten() {
                shared.enter(entry.key, entry.slot());
            }
            debug_assert!(
                table.slots.iter().flatten().all(|entry| shared.holds(entry.key)),
                "peers see every key"
            );
            let _ = self.shared.set(shared);
        }
        Ok(self.shared.get().expect("just set"))
    }

    /// Pools with a descriptor that regions lie in, and their numbers.
    pub(crate) fn pools(&self) -> Vec<(u64, Arc<polvo_pmem::Pmem>)> {
        let table = self.table.read().expect("nobody panics holding this lock");
        let pool = |(number, memory): (&u64, &Memory)| match memory {
            Memory::Pool(pool) if pool.fd().is_some() => Some((*number, pool.clone())),
            _ => None,
        };
        table.memories.iter().filter_map(pool).collect()
    }

    /// A memory by its number, while any region lies in it.
    pub(crate) fn memory(&self, number: u64) -> Option<Memory> {
        self.table
            .read()
            .expect("nobody panics holding this lock")
            .memories
            .get(&number)
            .cloned()
    }

    /// As [`MemoryRegions::resolve`], for who asks for the same memory region again and again: what is `known` of it is believed as
    /// long as its key is valid. To be used when the table was shared with a peer.
    pub(crate) fn resolve_again<'k>(
        &self,
        known: &'k mut Option<Known>,
        key: u64,
        offset: u64,
        len: u64,
        want: Want,
    ) -> Result<(&'k Memory, u64), FabricError> {
        let is_valid = self.shared.get().is_some_and(|shared| shared.holds(key));
        if !is_valid || known.as_ref().is_none_or(|known| known.key != key) {
            let table = self.table.read().expect("nobody panics holding this lock");
            let entry = table.get(key)?;
            *known = Some(Known {
                key,
                memory: entry.memory.clone(),
                slot: entry.slot(),
            });
        }
        let Known { key: of, memory, slot } = known.as_ref().expect("just made");
        debug_assert_eq!(*of, key, "what is known is of this key");
        check(key, slot.len, slot.access, offset, len, want)?;
        debug_assert!(
            slot.start + offset + len <= memory.len(),
            "a memory region lies within its memory"
        );
        Ok((memory, slot.start + offset))
    }

    /// The memory behind `len` bytes at `offset` of a memory region, and where in that memory they begin.
    pub(crate) fn resolve(&self, key: u64, offset: u64, len: u64, want: Want) -> Result<(Memory, u64), FabricError> {
        let table = self.table.read().expect("nobody panics holding this lock");
        let entry = table.get(key)?;
        check(key, entry.len, entry.access, offset, len, want)?;
        debug_assert!(
            entry.start + offset + len <= entry.memory.len(),
            "a memory region lies within its memory"
        );
        Ok((entry.memory.clone(), entry.start + offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    fn region(len: usize, access: Access) -> (Arc<MemoryRegions>, u64) {
        let regions = MemoryRegions::new();
        let key = regions.register(Memory::Buffer(Buffer::new(len + 64)), 64, len as u64, access);
        (regions, key.0)
    }

    #[test]
    fn a_range_inside_resolves_to_its_place_in_the_memory() {
        let (regions, key) = region(100, Access::ALL);
        assert_eq!(regions.resolve(key, 0, 100, Want::Read).unwrap().1, 64);
        assert_eq!(regions.resolve(key, 100, 0, Want::Write).unwrap().1, 164);
    }

    #[test]
    fn what_lies_outside_is_refused_however_it_is_put() {
        let (regions, key) = region(100, Access::ALL);
        for (offset, len) in [
            (0, 101),
            (101, 0),
            (100, 1),
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            let error = regions.resolve(key, offset, len, Want::Read).err().unwrap();
            assert_eq!(error, FabricError::OutOfRange { key, offset, len });
        }
        assert!(regions.resolve(key, 4, 8, Want::Atomic).is_err(), "atomics are aligned");
    }

    #[test]
    fn what_is_known_of_a_region_is_believed_while_its_key_is_valid() {
        let (regions, key) = region(100, Access::WRITE);
        regions.share().unwrap();
        let mut known = None;
        let mut again = |key, offset, len, want| {
            regions
                .resolve_again(&mut known, key, offset, len, want)
                .map(|(_, at)| at)
        };
        for _ in 0..2 {
            assert_eq!(again(key, 3, 97, Want::Write), Ok(67));
            assert!(again(key, 3, 98, Want::Write).is_err());
            assert_eq!(again(key, 3, 8, Want::Read), Err(FabricError::Denied { key }));
            assert!(again(key ^ 1 << 40, 0, 8, Want::Write).is_err());
        }
        assert!(again(key, 0, 8, Want::Write).is_ok());
        regions.deregister(RemoteKey(key));
        assert_eq!(again(key, 0, 8, Want::Write), Err(FabricError::BadKey { key }));
        let other = Memory::Buffer(Buffer::new(8));
        let fresh = regions.register(other, 0, 8, Access::ALL).0;
        assert_eq!(slot_of(fresh), slot_of(key));
        assert!(again(key, 0, 8, Want::Write).is_err());
        assert_eq!(again(fresh, 0, 8, Want::Write), Ok(0));
    }

    #[test]
    fn rights_are_kept_apart() {
        let (regions, key) = region(100, Access::READ);
        assert!(regions.resolve(key, 0, 8, Want::Read).is_ok());
        for want in [Want::Write, Want::Atomic] {
            assert_eq!(
                regions.resolve(key, 0, 8, want).err(),
                Some(FabricError::Denied { key })
            );
        }
    }

    #[test]
    fn a_key_tells_nothing_of_the_next() {
        let regions = MemoryRegions::new();
        let memory = Memory::Buffer(Buffer::new(8));
        let draw = || regions.register(memory.clone(), 0, 8, Access::ALL).0 >> SLOT_BITS;
        let drawn: Vec<u64> = (0..100).map(|_| draw()).collect();
        let steps: std::collections::HashSet<u64> = drawn.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert_eq!(steps.len(), 99, "no step between two keys comes twice");
        assert!(drawn.windows(2).any(|w| w[1] < w[0]), "they do not ascend");
    }

    #[test]
    fn a_key_is_never_used_again() {
        let regions = MemoryRegions::new();
        let memory = Memory::Buffer(Buffer::new(8));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let key = regions.register(memory.clone(), 0, 8, Access::ALL);
            assert!(seen.insert(key));
            regions.deregister(key);
            assert_eq!(
                regions.resolve(key.0, 0, 8, Want::Read).err(),
                Some(FabricError::BadKey { key: key.0 })
            );
        }
        assert!(regions.resolve(0, 0, 0, Want::Read).is_err());
    }
}
