//! Programs that wait for locks.
//!
//! A wait takes as long as it takes, so it must not keep a thread that serves the kernel: all waits of a mount are tasks
//! of one thread of their own, begun with the first of them. Each asks the node again and again, for up to a second at
//! a time. When a signal comes for the thread that waits, the kernel says so (INTERRUPT): the wait is then called off and
//! the thread gets EINTR (which the kernel turns into a restart of the call where the program wants that). So a
//! program that is killed while it waits leaves nothing behind.
//!
//! The interrupt of a request may be read before the request has come to its wait, so it is remembered for a while.

use crate::error::errno;
use crate::lock_owners::LockOwners;
use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_client::{Client, LocalClient, LockAnswer, OpenFile};
use polvo_fusedev::{Errno, Reply};
use polvo_proto::{FsError, InodeRef, LOCK_WAIT_MAX_MS, LockAsk, LockRange, LockTicket};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};

/// Requests that wait at nodes at a time. A connection carries twice as many, so that others get through; further
/// waits ask without waiting, and keep their place in the queue too.
const LONG_ASKS: usize = 8;
/// How often those ask.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Interrupts of requests that do not wait, remembered at a time. What is under way now is among the last so many.
const REMEMBERED: usize = 256;

/// A program that waits.
pub(crate) struct LockWait {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) ask: LockAsk,
    /// Who waits, as the kernel names it.
    pub(crate) owner: u64,
    /// Its place in the queue.
    pub(crate) ticket: u64,
    pub(crate) reply: Reply<()>,
}

/// Waits by what the kernel calls their requests.
#[derive(Default)]
struct Interrupts {
    /// Told when they are to be called off.
    waiting: HashMap<u64, Arc<Notify>>,
    /// Requests that were not among them when they were interrupted.
    others: VecDeque<u64>,
}

impl Interrupts {
    /// A request begins to wait.
    fn begin(&mut self, unique: u64) -> Arc<Notify> {
        let interrupted = Arc::new(Notify::new());
        if self.others.contains(&unique) {
            interrupted.notify_one();
        }
        self.waiting.insert(unique, interrupted.clone());
        interrupted
    }

    fn interrupt(&mut self, unique: u64) {
        if let Some(interrupted) = self.waiting.get(&unique) {
            return interrupted.notify_one();
        }
        if self.others.len() == REMEMBERED {
            self.others.pop_front();
        }
        self.others.push_back(unique);
    }
}

/// All waits of a mount.
pub(crate) struct LockWaits {
    client: Arc<Client>,
    owners: Arc<LockOwners>,
    interrupts: Arc<Mutex<Interrupts>>,
    begin: Mutex<Option<UnboundedSender<LockWait>>>,
}

impl LockWaits {
    pub(crate) fn new(client: &Arc<Client>, owners: &Arc<LockOwners>) -> LockWaits {
        LockWaits {
            client: client.clone(),
            owners: owners.clone(),
            interrupts: Arc::default(),
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

    /// Whoever waits, or is about to, is called off.
    pub(crate) fn interrupt(&self, unique: u64) {
        self.interrupts.lock().interrupt(unique);
    }

    /// Starts the thread, which ends with the mount: when this is dropped, and what still waits then is answered EIO.
    fn start(&self) -> std::io::Result<UnboundedSender<LockWait>> {
        let (sender, mut begun) = unbounded_channel::<LockWait>();
        let (client, owners, interrupts) = (self.client.clone(), self.owners.clone(), self.interrupts.clone());
        polvo_fusedev::spawn("polvo-lockwait", move || {
            client.run(|local| async move {
                let long_asks = Rc::new(Semaphore::new(LONG_ASKS));
                let mut waits = tokio::task::JoinSet::new();
                while let Some(wait) = begun.recv().await {
                    let (local, owners, long_asks) = (local.clone(), owners.clone(), long_asks.clone());
                    let (unique, interrupts) = (wait.reply.unique(), interrupts.clone());
                    let interrupted = interrupts.lock().begin(unique);
                    waits.spawn_local(async move {
                        let ended = wait_for_lock(&local, &owners, &wait, &long_asks, &interrupted).await;
                        interrupts.lock().waiting.remove(&unique);
                        wait.reply.give(ended.map_err(|error| errno(&error)));
                    });
                    while waits.try_join_next().is_some() {}
                }
            });
        })?;
        Ok(sender)
    }
}

async fn wait_for_lock(
    client: &LocalClient,
    owners: &LockOwners,
    wait: &LockWait,
    long_asks: &Semaphore,
    interrupted: &Notify,
) -> Result<(), FsError> {
    outcome(client, wait, long_asks, interrupted).await?;
    keep_for_owner(client, owners, &wait.ask, wait.file.inode(), wait.owner).await
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

async fn outcome(
    client: &LocalClient,
    wait: &LockWait,
    long_asks: &Semaphore,
    interrupted: &Notify,
) -> Result<(), FsError> {
    let inode = wait.file.inode();
    loop {
        let long = long_asks.try_acquire();
        let ticket = LockTicket {
            number: wait.ticket,
            wait_ms: if long.is_ok() { LOCK_WAIT_MAX_MS } else { 0 },
        };
        let mut asked = pin!(client.lock(inode, wait.ask, Some(ticket)));
        let (answer, is_called_off) = tokio::select! {
            answer = &mut asked => (answer?, false),
            () = interrupted.notified() => {
                client.cancel_lock(inode, wait.ticket).await?;
                (asked.await?, true)
            }
        };
        if matches!(answer, LockAnswer::Granted(_)) {
            return Ok(());
        }
        if is_called_off {
            return called_off(client, wait).await;
        }
        if long.is_err() {
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                () = interrupted.notified() => return called_off(client, wait).await,
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn is_told(interrupted: &Notify) -> bool {
        let mut told = pin!(interrupted.notified());
        told.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn an_interrupt_may_come_before_the_wait() {
        let mut interrupts = Interrupts::default();
        interrupts.interrupt(8);
        let (first, second) = (interrupts.begin(8), interrupts.begin(10));
        assert!(is_told(&first) && !is_told(&first));
        assert!(!is_told(&second));
        interrupts.interrupt(10);
        assert!(is_told(&second));
        for unique in 0..2 * REMEMBERED as u64 {
            interrupts.interrupt(100 + unique);
        }
        assert_eq!(interrupts.others.len(), REMEMBERED);
        assert!(!is_told(&interrupts.begin(100)), "that was long ago");
    }
}
