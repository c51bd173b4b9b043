//! A file as a program has it open: the client's open file, and who has locked something by way of it.

use crate::mappings::Opened;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use polvo_client::OpenFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One open file of the kernel (a file handle).
pub(crate) struct OpenHandle {
    pub(crate) file: Arc<OpenFile>,
    /// Opened with `O_NOATIME`.
    pub(crate) leaves_access_time: bool,
    /// Whether it may be mapped, and is read by way of pages.
    pub(crate) opened: Opened,
    /// It was written by way of this and nobody has closed it since. Held while it is written.
    writes: RwLock<bool>,
    /// A program has closed it.
    flushed: AtomicBool,
    /// Owners that have asked for locks by way of this handle and have not closed the file since, as the kernel names them:
    /// processes, and this open file itself (`flock`, open file description locks).
    lockers: Mutex<Vec<u64>>,
}

impl OpenHandle {
    pub(crate) fn new(file: Arc<OpenFile>, flags: i32, opened: Opened) -> Arc<OpenHandle> {
        Arc::new(OpenHandle {
            file,
            leaves_access_time: flags & libc::O_NOATIME != 0,
            opened,
            writes: RwLock::new(false),
            flushed: AtomicBool::new(false),
            lockers: Mutex::default(),
        })
    }

    /// A program closes a descriptor of it.
    pub(crate) fn note_flush(&self) {
        self.flushed.store(true, Ordering::Relaxed);
    }

    /// It is written by way of this as long as what this returns is there. `begins` is called where that is news, before.
    pub(crate) fn writes(&self, begins: impl FnOnce()) -> RwLockReadGuard<'_, bool> {
        let writes = self.writes.read();
        if *writes {
            return writes;
        }
        drop(writes);
        let mut writes = self.writes.write();
        if !*writes {
            begins();
            *writes = true;
        }
        RwLockWriteGuard::downgrade(writes)
    }

    /// Whether it was written, and is no more.
    pub(crate) fn ends_writing(&self) -> bool {
        // somebody else goes on
        self.writes
            .try_write()
            .is_some_and(|mut writes| std::mem::replace(&mut *writes, false))
    }

    /// At its end: no program has ever had it, since the kernel refused to open it so.
    pub(crate) fn was_refused(&self) -> bool {
        self.opened == Opened::Unmappable && !self.flushed.load(Ordering::Relaxed)
    }

    /// An owner asks for a lock.
    pub(crate) fn note_locker(&self, owner: u64) {
        let mut lockers = self.lockers.lock();
        if !lockers.contains(&owner) {
            lockers.push(owner);
        }
    }

    /// An owner has closed the file.
    pub(crate) fn forget_locker(&self, owner: u64) {
        self.lockers.lock().retain(|known| *known != owner);
    }

    /// Whoever is left when the handle ends.
    pub(crate) fn lockers(&self) -> Vec<u64> {
        self.lockers.lock().clone()
    }
}
