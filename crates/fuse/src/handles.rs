//! Open file handles: the numbers given to the kernel, and what they stand for.

use parking_lot::RwLock;
use polvo_fusedev::Errno;
use polvo_fusedev::abi::FileHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of locks; a power of two.
const SHARDS: usize = 16;

/// Slots of one shard; freed ones are used again.
struct Shard<T> {
    slots: Vec<Option<Arc<T>>>,
    free: Vec<usize>,
}

/// A table of things held open. A handle is valid from [`insert`](Self::insert) to [`remove`](Self::remove); the kernel
/// uses none outside of that, and one it should not have is EBADF.
pub(crate) struct Handles<T> {
    shards: [RwLock<Shard<T>>; SHARDS],
    next: AtomicUsize,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Handles<T> {
        Handles {
            shards: std::array::from_fn(|_| {
                RwLock::new(Shard {
                    slots: Vec::new(),
                    free: Vec::new(),
                })
            }),
            next: AtomicUsize::new(0),
        }
    }

    /// Where a handle's slot is: shard and index in it.
    fn place(handle: FileHandle) -> (usize, usize) {
        (handle.0 as usize % SHARDS, handle.0 as usize / SHARDS)
    }

    /// Gives a number to an open thing.
    pub(crate) fn insert(&self, open: Arc<T>) -> FileHandle {
        let shard_at = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[shard_at].write();
        let index = match shard.free.pop() {
            Some(index) => {
                let before = shard.slots[index].replace(open);
                assert!(before.is_none(), "a free slot stands for nothing");
                index
            }
            None => {
                shard.slots.push(Some(open));
                shard.slots.len() - 1
            }
        };
        let handle = FileHandle((index * SHARDS + shard_at) as u64);
        debug_assert_eq!(Self::place(handle), (shard_at, index));
        handle
    }

    /// What a handle stands for.
    ///
    /// # Errors
    /// EBADF for one that is not open.
    pub(crate) fn get(&self, handle: FileHandle) -> Result<Arc<T>, Errno> {
        let (shard_at, index) = Self::place(handle);
        let shard = self.shards[shard_at].read();
        shard.slots.get(index).and_then(Clone::clone).ok_or(Errno::BADF)
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// EBADF for one that is not open.
    pub(crate) fn remove(&self, handle: FileHandle) -> Result<Arc<T>, Errno> {
        let (shard_at, index) = Self::place(handle);
        let mut shard = self.shards[shard_at].write();
        let open = shard.slots.get_mut(index).and_then(Option::take).ok_or(Errno::BADF)?;
        shard.free.push(index);
        debug_assert!(shard.free.len() <= shard.slots.len(), "a slot is free once");
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_distinct_while_open_and_end_once() {
        let handles = Handles::new();
        let open: Vec<_> = (0..100).map(|n| handles.insert(Arc::new(n))).collect();
        for (n, handle) in open.iter().enumerate() {
            assert_eq!(*handles.get(*handle).expect("open"), n);
        }
        assert_eq!(handles.remove(open[33]).map(|n| *n).ok(), Some(33));
        assert_eq!(handles.get(open[33]).err(), Some(Errno::BADF));
        assert_eq!(handles.remove(open[33]).err(), Some(Errno::BADF));
        assert_eq!(handles.get(FileHandle(u64::MAX)).err(), Some(Errno::BADF));
        let later: Vec<_> = (100..116).map(|n| handles.insert(Arc::new(n))).collect();
        assert!(later.contains(&open[33]), "its slot is used again");
    }
}
