//! Programs that wait for locks.
//!
//! A wait takes as long as it takes, so it must not keep a thread that serves the kernel: all waits of a mount are tasks
//! of one thread of their own, begun with the first of them. Each asks the node again and again, for up to a second at
//! a time, and looks now and then whether a signal has come for the thread that waits: the wait is then called off and
//! the thread gets EINTR (which the kernel turns into a restart of the call where the program wants that). So a
//! program that is killed while it waits leaves nothing behind.

use crate::caller::is_signalled;
use crate::error::errno;
use crate::lock_owners::LockOwners;
use parking_lot::Mutex;
use polvo_client::{Client, LocalClient, LockAnswer, OpenFile};
use polvo_fusedev::{Errno, Reply};
use polvo_proto::{FsError, InodeRef, LOCK_WAIT_MAX_MS, LockAsk, LockRange, LockTicket};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Requests that wait at nodes at a time. A connection carries twice as many, so that others get through; further
/// waits ask without waiting, and keep their place in the queue too.
const LONG_ASKS: usize = 8;
/// How often those ask.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How often a waiting thread is looked at.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// A program that waits.
pub(crate) struct LockWait {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) ask: LockAsk,
    /// Who waits, as the kernel names it.
    pub(crate) owner: u64,
    /// Its place in the queue.
    pub(crate) ticket: u64,
    /// The thread that waits.
    pub(crate) thread: u32,
    pub(crate) reply: Reply<()>,
}

/// All waits of a mount.
pub(crate) struct LockWaits {
    client: Arc<Client>,
    owners: Arc<LockOwners>,
    begin: Mutex<Option<UnboundedSender<LockWait>>>,
}

impl LockWaits {
    pub(crate) fn new(client: &Arc<Client>, owners: &Arc<LockOwners>) -> LockWaits {
        LockWaits {
            client: client.clone(),
            owners: owners.clone(),
            begin: Mutex::new(None),
        }
    }

    /// Takes over a wait. Their number is bounded by that of the kernel's requests, and by the node.
    pub(crate) fn begin(&self, wait: LockWait) {
        let mut begin = self.begin.lock();
        let sender = match &*begin {
            Some(sender) => sender,
            None => match self.start() {
                Ok(sender) => begin.insert(sender),
                Err(error) => {
                    tracing::error!(%error, "no thread to wait for locks on");
                    return wait.reply.error(Errno::NOLCK);
                }
            },
        };
        if let Err(unsent) = sender.send(wait) {
            unsent.0.reply.error(Errno::IO);
        }
    }

    /// Starts the thread, which ends with the mount: when this is dropped, and what still waits then is answered EIO.
    fn start(&self) -> std::io::Result<UnboundedSender<LockWait>> {
        let (sender, mut begun) = unbounded_channel::<LockWait>();
        let (client, owners) = (self.client.clone(), self.owners.clone());
        polvo_fusedev::spawn("polvo-lockwait", move || {
            client.run(|local| async move {
                let long_asks = Rc::new(Semaphore::new(LONG_ASKS));
                let mut waits = tokio::task::JoinSet::new();
                while let Some(wait) = begun.recv().await {
                    waits.spawn_local(wait_for_lock(local.clone(), owners.clone(), wait, long_asks.clone()));
                    while waits.try_join_next().is_some() {}
                }
            });
        })?;
        Ok(sender)
    }
}

async fn wait_for_lock(client: Rc<LocalClient>, owners: Arc<LockOwners>, wait: LockWait, long_asks: Rc<Semaphore>) {
    let mut ended = outcome(&client, &wait, &long_asks).await;
    if ended.is_ok() {
        ended = keep_for_owner(&client, &owners, &wait.ask, wait.file.inode(), wait.owner).await;
    }
    match ended {
        Ok(()) => wait.reply.ok(&()),
        Err(error) => wait.reply.error(errno(&error)),
    }
}

/// A lock was granted. A process that has closed the file meanwhile (by another thread) has let go of it already, maybe before
/// it was there: nobody would do so again.
pub(crate) async fn keep_for_owner(
    client: &LocalClient,
    owners: &LockOwners,
    ask: &LockAsk,
    inode: InodeRef,
    owner: u64,
) -> Result<(), FsError> {
    match owners.key(inode, owner) {
        Some(key) if key == ask.owner => Ok(()),
        _ => client.unlock(inode, ask.owner, LockRange::ALL).await,
    }
}

async fn outcome(client: &LocalClient, wait: &LockWait, long_asks: &Semaphore) -> Result<(), FsError> {
    let inode = wait.file.inode();
    loop {
        let long = long_asks.try_acquire();
        let ticket = LockTicket {
            number: wait.ticket,
            wait_ms: if long.is_ok() { LOCK_WAIT_MAX_MS } else { 0 },
        };
        let mut asked = pin!(client.lock(inode, wait.ask, Some(ticket)));
        let answer = loop {
            tokio::select! {
                answer = &mut asked => break answer?,
                () = tokio::time::sleep(SIGNAL_POLL) => {
                    if is_signalled(wait.thread) {
                        client.cancel_lock(inode, wait.ticket).await?;
                        break asked.await?;
                    }
                }
            }
        };
        if answer == LockAnswer::Granted {
            return Ok(());
        }
        if is_signalled(wait.thread) {
            return called_off(client, wait).await;
        }
        if long.is_err() {
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

/// Leaves the queue. Whether the lock was granted just before is told by whether it can be had.
async fn called_off(client: &LocalClient, wait: &LockWait) -> Result<(), FsError> {
    let inode = wait.file.inode();
    client.cancel_lock(inode, wait.ticket).await?;
    match client.lock(inode, wait.ask, None).await {
        Ok(_) => Ok(()),
        Err(FsError::WouldBlock) => Err(FsError::Interrupted),
        Err(error) => Err(error),
    }
}
