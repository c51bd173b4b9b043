//! A client's advisory locks. Whoever has one, and is told after a question to the file's node that he has it still, has had it
//! all the time: nobody else was given it meanwhile, whatever has become of the nodes.

use polvo_client::{LocalClient, LockAnswer};
use polvo_proto::{FsError, InodeRef, LockAsk, LockKind, LockMode, LockRange, LockTicket};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The owner, the only one of its session.
const OWNER: u64 = 1;
/// How long a lock is waited for before the wait is called off.
const WAIT_MS: u32 = 400;

/// How often each inode was locked, as those who did it know.
pub type Granted = RefCell<BTreeMap<InodeRef, u64>>;

/// The lock that a client has.
pub struct Locker {
    inode: InodeRef,
    /// Which of all there were of the inode.
    number: u64,
}

fn ask() -> LockAsk {
    LockAsk {
        owner: OWNER,
        kind: LockKind::Range,
        mode: LockMode::Exclusive,
        range: LockRange::ALL,
        pid: 1,
    }
}

/// What may come of any question.
fn is_expected(error: &FsError) -> bool {
    matches!(
        error,
        FsError::WouldBlock
            | FsError::Interrupted
            | FsError::Unreachable { .. }
            | FsError::Stale
            | FsError::Busy
            | FsError::SessionExpired
            | FsError::Io(_)
    )
}

impl Locker {
    /// Takes a lock, at once or after a while, or not at all.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn take(
        client: &LocalClient,
        inode: InodeRef,
        granted: &Granted,
        waits: bool,
    ) -> Result<Option<Locker>, String> {
        let ticket = waits.then(|| LockTicket {
            number: client.client().next_lock_ticket(),
            wait_ms: WAIT_MS,
        });
        match client.lock(inode, ask(), ticket).await {
            Ok(LockAnswer::Granted(_)) => {
                let mut granted = granted.borrow_mut();
                let number = granted.entry(inode).or_default();
                *number += 1;
                tracing::debug!(by = %client.client().session(), ino = %inode.ino, number, "lock given");
                Ok(Some(Locker { inode, number: *number }))
            }
            Ok(LockAnswer::Queued) => {
                let ticket = ticket.ok_or("queued, and nobody waits")?;
                // it may have been granted just before
                drop(client.cancel_lock(inode, ticket.number).await);
                drop(client.release_locks(inode, OWNER).await);
                Ok(None)
            }
            Err(error) if is_expected(&error) => {
                drop(client.release_locks(inode, OWNER).await);
                Ok(None)
            }
            Err(error) => Err(format!("a lock of {inode:?}: {error}")),
        }
    }

    /// Asks the node of the file something, and then whether the lock is there. False: it may have been lost.
    ///
    /// # Errors
    /// It is said to be there, and somebody else has had it.
    pub async fn has_it(&self, client: &LocalClient, granted: &Granted) -> Result<bool, String> {
        let last = granted.borrow().get(&self.inode).copied().unwrap_or(0);
        if client.test_lock(self.inode, ask()).await.is_err() || client.hold_locks(self.inode, OWNER).await.is_err() {
            return Ok(false);
        }
        tracing::debug!(by = %client.client().session(), ino = %self.inode.ino, number = self.number, "lock is there");
        match last == self.number {
            true => Ok(true),
            false => Err(format!(
                "lock {} of {:?} is said to be there, and was given {} times more",
                self.number,
                self.inode,
                last - self.number
            )),
        }
    }

    /// Lets go of it.
    pub async fn let_go(self, client: &LocalClient) {
        tracing::debug!(by = %client.client().session(), ino = %self.inode.ino, number = self.number, "lock let go");
        drop(client.release_locks(self.inode, OWNER).await);
    }
}
