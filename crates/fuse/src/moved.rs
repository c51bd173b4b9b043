//! Directories that others have moved: the kernel lets go of the name by which it knows them.
//!
//! The kernel has one place for a directory. Where a look finds it in another one, it is moved there, for which the kernel tries to take the
//! lock of renames, and that of the directory where it was (`__d_unalias`, fs/dcache.c). A rename has those locks while it looks the
//! directory up, so that it could never take a directory from where somebody else has moved it: ESTALE, and the same when the kernel tries
//! once more. So the old name is dropped by a thread, which waits for the lock of the directory where it was:
//!
//! ```text
//! others            LOOKUP: it was known elsewhere                                the old name is told to the thread
//!                   waits for [`AT_ONCE`]: the answer finds it nowhere            which drops it
//!
//! rename            locks both directories, LOOKUP: it was known elsewhere        the old name is told to the thread,
//!                   ESTALE, both are let go of                                    which has waited for that: the name is dropped
//! rename, again     LOOKUP of what leads there: waits for the thread [`Moved::wait`]
//!                   locks both, LOOKUP: it is known nowhere
//! ```
//!
//! What keeps the thread from it keeps looks from their answers for [`DROPS_WITHIN`], no longer. A look in the directory where it was does
//! not wait: it has that lock itself. A directory in which a program works, or that it has open, stays where it is for the kernel.

use parking_lot::{Condvar, Mutex};
use polvo_fusedev::abi::INodeNo;
use polvo_fusedev::{Entry, Notifier, will_wait};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A look waits until so long after a name was told, no longer;
const DROPS_WITHIN: Duration = Duration::from_millis(50);
/// and one that has found, or finds, the directory itself, which may be a rename's.
const AT_ONCE: Duration = Duration::from_millis(4);
/// Names that wait to be dropped; what is more stays as it is.
const WAITING_MAX: usize = 64;

/// A name of a directory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of this directory.
    pub(crate) parent: INodeNo,
    /// The name.
    pub(crate) name: Box<[u8]>,
}

/// A name that is to be dropped.
struct Pending {
    from: Place,
    /// Where the directory was found.
    to: Place,
    told: Instant,
}

impl Pending {
    /// Until when a look at this place waits for it; `None`: it must not.
    fn until(&self, parent: INodeNo, name: &[u8]) -> Option<Instant> {
        let is_of_it = self.to.parent == parent && *self.to.name == *name;
        let limit = if is_of_it { AT_ONCE } else { DROPS_WITHIN };
        (self.from.parent != parent).then_some(self.told + limit)
    }
}

/// Those that the thread has not dropped yet, in its order.
#[derive(Default)]
struct Waiting {
    names: Mutex<VecDeque<Pending>>,
    is_any: AtomicBool,
    one_less: Condvar,
}

impl Waiting {
    fn push(&self, from: Place, to: Place) {
        let told = Instant::now();
        let mut names = self.names.lock();
        names.push_back(Pending { from, to, told });
        self.is_any.store(true, SeqCst);
    }

    /// The last one is not to be dropped after all.
    fn take_back(&self) {
        self.less(|names| names.pop_back());
    }

    /// The first one has been dropped.
    fn dropped(&self) {
        self.less(|names| names.pop_front());
    }

    fn less(&self, pop: impl FnOnce(&mut VecDeque<Pending>) -> Option<Pending>) {
        let mut names = self.names.lock();
        let popped = pop(&mut names);
        debug_assert!(popped.is_some(), "what ends has begun");
        self.is_any.store(!names.is_empty(), SeqCst);
        self.one_less.notify_all();
    }
}

/// Names that are to be dropped.
#[derive(Default)]
pub(crate) struct Moved {
    waiting: Arc<Waiting>,
    /// To the thread, once there has been something to do.
    thread: Mutex<Option<SyncSender<(Notifier, Place)>>>,
}

impl Moved {
    /// The kernel is to let go of the name `from` of a directory that was found at `to`.
    pub(crate) fn drop_name(&self, notifier: Notifier, from: Place, to: Place) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            *thread = start(&self.waiting);
        }
        let Some(sender) = &*thread else { return };
        self.waiting.push(from.clone(), to);
        if sender.try_send((notifier, from)).is_err() {
            self.waiting.take_back();
        }
    }

    /// Before a look at a place is answered: waits until what is to be dropped has been, as long as that may take.
    pub(crate) fn wait(&self, parent: INodeNo, name: &[u8]) {
        if !self.waiting.is_any.load(SeqCst) {
            return;
        }
        let mut names = self.waiting.names.lock();
        while let Some(until) = names.iter().map(|pending| pending.until(parent, name)).min()
            && let Some(until) = until.filter(|until| Instant::now() < *until)
        {
            will_wait();
            self.waiting.one_less.wait_until(&mut names, until);
        }
    }
}

/// The thread ends with who sends to it.
fn start(waiting: &Arc<Waiting>) -> Option<SyncSender<(Notifier, Place)>> {
    let (sender, names): (_, Receiver<(Notifier, Place)>) = sync_channel(WAITING_MAX);
    let waiting = waiting.clone();
    let started = std::thread::Builder::new().name("polvo-moved".into()).spawn(move || {
        for (notifier, place) in names {
            if let Err(error) = notifier.inval_entry(place.parent, &place.name, Entry::Drop) {
                tracing::debug!(%error, "a directory stays where the kernel knows it");
            }
            waiting.dropped();
        }
    });
    started.map(|_thread| sender).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(parent: u64, name: &[u8]) -> Place {
        let (parent, name) = (INodeNo(parent), name.into());
        Place { parent, name }
    }

    #[test]
    fn a_look_waits_for_what_is_to_be_dropped_and_not_for_ever() {
        let moved = Moved::default();
        let took = |parent, name: &[u8]| {
            let began = Instant::now();
            moved.wait(INodeNo(parent), name);
            began.elapsed()
        };
        assert!(took(1, b"any") < AT_ONCE, "nothing waits");
        moved.waiting.push(place(2, b"was"), place(3, b"is"));
        let told = Instant::now();
        assert!(took(2, b"any") < AT_ONCE, "it has the lock that the thread waits for");
        moved.wait(INodeNo(3), b"is");
        let found = told.elapsed();
        assert!(
            found + Duration::from_millis(1) >= AT_ONCE && found < DROPS_WITHIN,
            "{found:?}"
        );
        moved.wait(INodeNo(3), b"any");
        assert!(told.elapsed() + Duration::from_millis(1) >= DROPS_WITHIN);
        assert!(
            took(1, b"any") < AT_ONCE,
            "it is late, and nobody waits for it any more"
        );
        moved.waiting.dropped();
        (0..2).for_each(|_| moved.waiting.push(place(2, b"was"), place(3, b"is")));
        std::thread::scope(|threads| {
            threads.spawn(|| (0..2).for_each(|_| moved.waiting.dropped()));
            while moved.waiting.is_any.load(SeqCst) {
                moved.wait(INodeNo(1), b"any");
            }
        });
        assert!(took(1, b"any") < AT_ONCE, "nothing waits");
    }
}
