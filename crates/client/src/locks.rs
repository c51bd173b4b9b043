//! Advisory locks. They live at the primary of the inode; kept here is only who may have some, so that closing a file
//! costs an RPC only where there are locks to let go of, and whose were lost with the session at a node.

use crate::local_client::LocalClient;
use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_format::NodeId;
use polvo_proto::{FsError, InodeRef, LockAnswer, LockAsk, LockRange, LockSeen, LockTicket, ask};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// An owner that may have locks of an inode.
struct Mark {
    node: NodeId,
    /// It has had one.
    granted: bool,
    /// It was lost.
    lost: bool,
}

#[derive(Default)]
struct Inner {
    marks: HashMap<(InodeRef, u64), Mark>,
    /// What could not be let go of because the node did not answer.
    unreleased: Vec<(InodeRef, u64)>,
}

/// Who may have locks.
#[derive(Default)]
pub(crate) struct Locks {
    inner: Mutex<Inner>,
    /// Number of marks, and of lost ones: most files of most programs are never locked.
    marks: AtomicUsize,
    lost: AtomicUsize,
    tickets: AtomicU64,
}

impl Locks {
    /// Notes an owner before it asks for a lock.
    ///
    /// # Errors
    /// EIO when locks of its were lost.
    fn note(&self, inode: InodeRef, owner: u64, node: NodeId) -> Result<(), FsError> {
        let mut inner = self.inner.lock();
        inner.unreleased.retain(|of| *of != (inode, owner));
        let fresh = Mark {
            node,
            granted: false,
            lost: false,
        };
        let mark = inner.marks.entry((inode, owner)).or_insert(fresh);
        if mark.lost {
            return Err(lock_lost());
        }
        self.marks.store(inner.marks.len(), Ordering::Release);
        Ok(())
    }

    fn granted(&self, inode: InodeRef, owner: u64) {
        if let Some(mark) = self.inner.lock().marks.get_mut(&(inode, owner)) {
            mark.granted = true;
        }
    }

    /// Forgets an owner; true when it may have locks.
    fn take(&self, inode: InodeRef, owner: u64) -> bool {
        if self.marks.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut inner = self.inner.lock();
        let Some(mark) = inner.marks.remove(&(inode, owner)) else {
            return false;
        };
        self.marks.store(inner.marks.len(), Ordering::Release);
        if mark.lost {
            let lost = self.lost.fetch_sub(1, Ordering::AcqRel);
            assert!(lost > 0, "a lost mark is counted");
        }
        true
    }

    /// The session at a node was lost, and all locks there with it.
    pub(crate) fn lost(&self, node: NodeId) {
        self.lose(|_, mark| mark.node == node);
    }

    /// Locks of these inodes were lost.
    pub(crate) fn lost_where(&self, gone: impl Fn(InodeRef) -> bool) {
        self.lose(|inode, _| gone(inode));
    }

    fn lose(&self, is_lost: impl Fn(InodeRef, &Mark) -> bool) {
        let mut inner = self.inner.lock();
        for ((inode, _), mark) in &mut inner.marks {
            if is_lost(*inode, mark) && mark.granted && !mark.lost {
                mark.lost = true;
                self.lost.fetch_add(1, Ordering::AcqRel);
            }
        }
        debug_assert!(
            self.lost.load(Ordering::Acquire) <= inner.marks.len(),
            "those that are lost are among the marks"
        );
    }

    fn is_lost(&self, inode: InodeRef, owner: u64) -> bool {
        self.lost.load(Ordering::Acquire) > 0
            && self
                .inner
                .lock()
                .marks
                .get(&(inode, owner))
                .is_some_and(|mark| mark.lost)
    }
}

fn lock_lost() -> FsError {
    FsError::Io("a lock was lost with the session at its node; close the file".into())
}

impl crate::Client {
    /// True when an owner had locked something of an inode and the node has forgotten it: others may have the lock by
    /// now, so the owner should neither read nor write. Lasts until [`LocalClient::release_locks`].
    pub fn has_lost_locks(&self, inode: InodeRef, owner: u64) -> bool {
        self.locks.is_lost(inode, owner)
    }

    /// True when any owner has.
    pub fn has_lost_any_locks(&self) -> bool {
        self.locks.lost.load(Ordering::Acquire) > 0
    }

    /// A number for a [`LockTicket`].
    pub fn next_lock_ticket(&self) -> u64 {
        self.locks.tickets.fetch_add(1, Ordering::Relaxed)
    }
}

impl LocalClient {
    /// Takes an advisory lock on an open file. With a ticket: waits for it, for as long as the ticket says.
    ///
    /// # Errors
    /// [`FsError::WouldBlock`] without a ticket, [`FsError::Deadlock`], [`FsError::NoLocks`],
    /// [`FsError::Interrupted`] after [`LocalClient::cancel_lock`]; EIO when earlier locks of the owner were lost.
    pub async fn lock(&self, inode: InodeRef, lock: LockAsk, wait: Option<LockTicket>) -> Result<LockAnswer, FsError> {
        let region = inode.ino.region();
        let node = self.client.primary(region)?;
        self.client.locks.note(inode, lock.owner, node)?;
        let answer = self.call(region, ask::Lock { inode, lock, wait }).await?;
        if answer == LockAnswer::Granted {
            self.client.locks.granted(inode, lock.owner);
        }
        Ok(answer)
    }

    /// Calls off a wait; whoever asks with that ticket gets EINTR, unless the lock was granted just before.
    pub async fn cancel_lock(&self, inode: InodeRef, ticket: u64) -> Result<(), FsError> {
        self.call(inode.ino.region(), ask::CancelLock { inode, ticket }).await
    }

    /// Lets go of what an owner has locked in a range.
    pub async fn unlock(&self, inode: InodeRef, owner: u64, range: LockRange) -> Result<(), FsError> {
        if self.client.has_lost_locks(inode, owner) {
            return Err(lock_lost());
        }
        self.call(inode.ino.region(), ask::Unlock { inode, owner, range }).await
    }

    /// The first lock that keeps an owner from taking another.
    pub async fn test_lock(&self, inode: InodeRef, lock: LockAsk) -> Result<Option<LockSeen>, FsError> {
        self.call(inode.ino.region(), ask::TestLock { inode, lock }).await
    }

    /// Lets go of everything that an owner has locked of an inode, when it closes it. No RPC when that is nothing. When
    /// the node does not answer, it is told later.
    pub async fn release_locks(&self, inode: InodeRef, owner: u64) -> Result<(), FsError> {
        if !self.client.locks.take(inode, owner) {
            return Ok(());
        }
        let range = LockRange::ALL;
        let unlock = ask::Unlock { inode, owner, range };
        match self.call(inode.ino.region(), unlock).await {
            Err(error @ FsError::Unreachable { .. }) => {
                self.client.locks.inner.lock().unreleased.push((inode, owner));
                Err(error)
            }
            answer => answer,
        }
    }

    /// Tells nodes what they could not be told when it happened.
    pub(crate) async fn release_locks_left(&self) {
        let left = self.client.locks.inner.lock().unreleased.clone();
        for (inode, owner) in left {
            let range = LockRange::ALL;
            let unlock = ask::Unlock { inode, owner, range };
            if !matches!(
                self.call(inode.ino.region(), unlock).await,
                Err(FsError::Unreachable { .. })
            ) {
                let mut inner = self.client.locks.inner.lock();
                inner.unreleased.retain(|of| *of != (inode, owner));
            }
        }
    }
}
