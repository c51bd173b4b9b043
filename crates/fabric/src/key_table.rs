//! The memory regions of a process as peers on the same host see them: a table in shared memory, written by the process,
//! read by its peers, so that they can check keys without asking and see at once when one is revoked.
//!
//! A slot of 64 bytes: key, memory, start, length, rights. The key is stored last and cleared first; since no key is ever
//! used twice, a reader that finds the same key before and after reading the rest has read what belongs to it.

use crate::access::{SLOTS, slot_of};
use crate::memory::Mapping;
use crate::{Access, FabricError};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

const SLOT: usize = 64;
const KEY: usize = 0;
const MEMORY: usize = 8;
const START: usize = 16;
const LEN: usize = 24;
const RIGHTS: usize = 32;
const TABLE: usize = SLOTS * SLOT;

/// What a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// Number of the memory at its owner.
    pub(crate) memory: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
}

/// The owner's side.
pub(crate) struct KeyTable {
    map: Mapping,
    /// Opened for reading only: what peers get.
    read_only: OwnedFd,
}

impl KeyTable {
    /// An empty table. Memory is used for the slots that are.
    pub(crate) fn new() -> io::Result<KeyTable> {
        let fd = rustix::fs::memfd_create("polvo-keys", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, TABLE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Mapping::new(fd.as_fd(), TABLE, true)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(KeyTable { map, read_only })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Enters a key; its slot is free.
    pub(crate) fn enter(&self, key: u64, slot: Slot) {
        assert!(key != 0, "a key is never 0");
        let at = slot_of(key) * SLOT;
        debug_assert_eq!(
            self.map.word(at + KEY).load(Ordering::Relaxed),
            0,
            "the slot of a key is free"
        );
        let rights =
            u64::from(slot.access.read) | u64::from(slot.access.write) << 1 | u64::from(slot.access.atomic) << 2;
        for (field, value) in [
            (MEMORY, slot.memory),
            (START, slot.start),
            (LEN, slot.len),
            (RIGHTS, rights),
        ] {
            self.map.word(at + field).store(value, Ordering::Relaxed);
        }
        self.map.word(at + KEY).store(key, Ordering::Release);
        debug_assert!(self.holds(key), "what was entered is there");
    }

    /// Whether a key is entered.
    pub(crate) fn holds(&self, key: u64) -> bool {
        key != 0 && self.map.word(slot_of(key) * SLOT + KEY).load(Ordering::Acquire) == key
    }

    /// Removes a key.
    pub(crate) fn remove(&self, key: u64) {
        debug_assert!(self.holds(key), "what is removed was entered");
        self.map.word(slot_of(key) * SLOT + KEY).store(0, Ordering::Relaxed);
        // Before anything else is stored to the slot.
        fence(Ordering::SeqCst);
    }
}

/// A peer's table.
pub(crate) struct PeerKeys {
    map: Mapping,
}

impl PeerKeys {
    /// Maps what the peer has sent.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> io::Result<PeerKeys> {
        check_sealed(fd, TABLE)?;
        Ok(PeerKeys {
            map: Mapping::new(fd, TABLE, false)?,
        })
    }

    /// What a key stands for.
    pub(crate) fn lookup(&self, key: u64) -> Result<Slot, FabricError> {
        let at = slot_of(key) * SLOT;
        let is_valid = || key != 0 && self.map.word(at + KEY).load(Ordering::Acquire) == key;
        let word = |field: usize| self.map.word(at + field).load(Ordering::Relaxed);
        if !is_valid() {
            return Err(FabricError::BadKey { key });
        }
        let rights = word(RIGHTS);
        let access = Access {
            read: rights & 1 != 0,
            write: rights & 2 != 0,
            atomic: rights & 4 != 0,
        };
        let slot = Slot {
            memory: word(MEMORY),
            start: word(START),
            len: word(LEN),
            access,
        };
        fence(Ordering::Acquire);
        if is_valid() {
            Ok(slot)
        } else {
            Err(FabricError::BadKey { key })
        }
    }
}

/// Makes sure that a memfd from a peer has `len` bytes and keeps them, so that touching a mapping of it is safe.
pub(crate) fn check_sealed(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let stat = rustix::fs::fstat(fd)?;
    let seals = rustix::fs::fcntl_get_seals(fd)?;
    if stat.st_size < 0 || (stat.st_size as u64) < len as u64 || !seals.contains(SealFlags::SHRINK) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "memory that could be taken away",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Memory, MemoryRegions};

    #[test]
    fn a_peer_sees_what_is_registered_until_it_is_revoked() {
        let regions = MemoryRegions::new();
        let memory = Memory::Buffer(Buffer::new(1000));
        let before = regions.register(memory.clone(), 8, 100, Access::READ);
        let peer = PeerKeys::new(regions.share().unwrap().fd()).unwrap();
        let after = regions.register(memory, 16, 200, Access::ALL);
        let (first, second) = (peer.lookup(before.0).unwrap(), peer.lookup(after.0).unwrap());
        assert_eq!((first.start, first.len, first.access), (8, 100, Access::READ));
        assert_eq!((second.start, second.len, second.access), (16, 200, Access::ALL));
        assert_eq!(first.memory, second.memory);
        assert!(regions.memory(first.memory).is_some() && regions.memory(first.memory + 1).is_none());
        regions.deregister(before);
        assert_eq!(peer.lookup(before.0), Err(FabricError::BadKey { key: before.0 }));
        assert!(peer.lookup(after.0).is_ok());
        regions.deregister(after);
        assert!(
            regions.memory(first.memory).is_none(),
            "memory that no key stands for is forgotten"
        );
        for key in [0, 1, u64::MAX, after.0 ^ 1] {
            assert_eq!(peer.lookup(key), Err(FabricError::BadKey { key }));
        }
    }

    #[test]
    fn a_peer_cannot_write_to_the_table() {
        let regions = MemoryRegions::new();
        let table = regions.share().unwrap();
        assert!(Mapping::new(table.fd(), TABLE, true).is_err());
    }
}
