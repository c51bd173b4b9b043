//! Under which key the node knows the owner of a lock.
//!
//! The kernel names an owner by a hash of an address: that of a process's table of files for `fcntl` locks, that of an open
//! file for `flock` and open file description locks. Those of a process have ended when its address is used again, since
//! closing a file waits for `FLUSH`. Those of an open file end with `RELEASE`, for which nobody waits: the next open file
//! may have got the address, and the lock, before. So a lock that is let go of at a `RELEASE` is let go of by a key that
//! no later owner has.
//!
//! The requests do not say which of the two an owner is, but their order does. Every process has sent `FLUSH` for a handle
//! before the handle's `RELEASE`, so who still owns locks by way of it then is the open file itself. And an owner that
//! comes by way of another handle than before is either a process that has the file open twice, or an open file that has
//! the address of one that is gone: only then it is asked which (`flock` says it, for `fcntl` see `caller`). Where that cannot
//! be seen, both keep one key, and what was locked by way of the first handle may last until the second one ends.

use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_fusedev::abi::FileHandle;
use polvo_proto::InodeRef;
use std::sync::atomic::{AtomicU64, Ordering};

/// An owner of locks of one inode.
struct Owner {
    key: u64,
    /// By way of which it has asked for locks; none: its open file has ended, and the node is being told.
    handles: Vec<FileHandle>,
}

/// The key of somebody who is about to ask for a lock.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Entered {
    pub(crate) key: u64,
    /// Key of an open file that is gone; its locks are to be let go of first.
    pub(crate) ended: Option<u64>,
}

/// All owners of locks of a mount.
#[derive(Default)]
pub(crate) struct LockOwners {
    /// By inode and the kernel's name.
    owners: Mutex<HashMap<(InodeRef, u64), Owner>>,
    /// Keys that are no name of the kernel's. They count from 1: as likely one of its hashes as two of those are alike.
    keys: AtomicU64,
}

impl LockOwners {
    /// An owner asks for a lock by way of a handle. `is_open_file` is asked only where it matters.
    pub(crate) fn enter(
        &self,
        inode: InodeRef,
        name: u64,
        handle: FileHandle,
        is_open_file: impl FnOnce() -> bool,
    ) -> Entered {
        match self.try_enter(inode, name, handle, None) {
            Some(entered) => entered,
            None => self
                .try_enter(inode, name, handle, Some(is_open_file()))
                .expect("nothing is left to be asked"),
        }
    }

    fn try_enter(&self, inode: InodeRef, name: u64, handle: FileHandle, is_open_file: Option<bool>) -> Option<Entered> {
        let mut owners = self.owners.lock();
        let fresh = || self.keys.fetch_add(1, Ordering::Relaxed) + 1;
        let owner = owners.entry((inode, name)).or_insert(Owner {
            key: name,
            handles: vec![handle],
        });
        let mut ended = None;
        if owner.handles.is_empty() {
            // only an open file ends so, and this one has its address
            owner.key = fresh();
        } else if !owner.handles.contains(&handle) && is_open_file? {
            ended = Some(owner.key);
            owner.key = fresh();
            owner.handles.clear();
        }
        if !owner.handles.contains(&handle) {
            owner.handles.push(handle);
        }
        let key = owner.key;
        debug_assert!(
            ended != Some(key),
            "who comes after an owner that has ended has another key"
        );
        debug_assert!(owner.handles.contains(&handle));
        Some(Entered { key, ended })
    }

    /// The key of somebody who may have locks.
    pub(crate) fn key(&self, inode: InodeRef, name: u64) -> Option<u64> {
        self.owners.lock().get(&(inode, name)).map(|owner| owner.key)
    }

    /// A process closes a file: all its locks of it end, whichever handle it closes. The key they are to be let go of by.
    pub(crate) fn closed(&self, inode: InodeRef, name: u64) -> Option<u64> {
        self.owners.lock().remove(&(inode, name)).map(|owner| owner.key)
    }

    /// An open file ends. The key its locks are to be let go of by, unless that has been done or somebody else has it;
    /// to be followed by [`LockOwners::told`] when the node has been told.
    pub(crate) fn ended(&self, inode: InodeRef, name: u64, handle: FileHandle) -> Option<u64> {
        let mut owners = self.owners.lock();
        let owner = owners.get_mut(&(inode, name))?;
        let before = owner.handles.len();
        owner.handles.retain(|known| *known != handle);
        (before > 0 && owner.handles.is_empty()).then_some(owner.key)
    }

    /// The node knows that a key has ended, so the name stands for nobody.
    pub(crate) fn told(&self, inode: InodeRef, name: u64, key: u64) {
        let mut owners = self.owners.lock();
        if owners
            .get(&(inode, name))
            .is_some_and(|owner| owner.key == key && owner.handles.is_empty())
        {
            owners.remove(&(inode, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    const INODE: InodeRef = InodeRef {
        ino: Ino(5),
        generation: Generation(1),
    };
    const NAME: u64 = 0xABCD;
    const FIRST: FileHandle = FileHandle(1);
    const SECOND: FileHandle = FileHandle(2);

    fn not_asked() -> bool {
        panic!("the order tells it")
    }

    fn entered(key: u64, ended: Option<u64>) -> Entered {
        Entered { key, ended }
    }

    #[test]
    fn a_process_has_one_key_by_whichever_handle() {
        let owners = LockOwners::default();
        for _ in 0..2 {
            assert_eq!(owners.enter(INODE, NAME, FIRST, not_asked), entered(NAME, None));
            assert_eq!(owners.enter(INODE, NAME, SECOND, || false), entered(NAME, None));
            assert_eq!(owners.closed(INODE, NAME), Some(NAME));
            assert_eq!(owners.closed(INODE, NAME), None);
            assert_eq!(owners.ended(INODE, NAME, FIRST), None, "the process has let go of all");
        }
        assert!(owners.owners.lock().is_empty());
    }

    #[test]
    fn an_open_file_that_asks_before_the_last_one_is_released_gets_a_key_of_its_own() {
        let owners = LockOwners::default();
        owners.enter(INODE, NAME, FIRST, not_asked);
        assert_eq!(owners.enter(INODE, NAME, SECOND, || true), entered(1, Some(NAME)));
        assert_eq!(owners.key(INODE, NAME), Some(1));
        assert_eq!(owners.ended(INODE, NAME, FIRST), None, "that has been done");
        assert_eq!(owners.ended(INODE, NAME, SECOND), Some(1));
        owners.told(INODE, NAME, 1);
        assert!(owners.owners.lock().is_empty());
    }

    #[test]
    fn an_open_file_that_asks_while_the_node_is_told_of_the_last_one_gets_a_key_of_its_own() {
        let owners = LockOwners::default();
        owners.enter(INODE, NAME, FIRST, not_asked);
        assert_eq!(owners.ended(INODE, NAME, FIRST), Some(NAME));
        assert_eq!(owners.enter(INODE, NAME, SECOND, not_asked), entered(1, None));
        owners.told(INODE, NAME, NAME);
        assert_eq!(owners.key(INODE, NAME), Some(1), "that is another one");
    }

    #[test]
    fn where_nothing_can_be_seen_nobody_loses_a_lock() {
        let owners = LockOwners::default();
        owners.enter(INODE, NAME, FIRST, not_asked);
        assert_eq!(owners.enter(INODE, NAME, SECOND, || false), entered(NAME, None));
        assert_eq!(owners.ended(INODE, NAME, FIRST), None, "another has the key");
        assert_eq!(owners.ended(INODE, NAME, SECOND), Some(NAME));
    }
}
