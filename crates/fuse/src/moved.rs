//! Directories that others have moved: the kernel lets go of the name by which it knows them.
//!
//! The kernel has one place for a directory. Where a look finds it in another one, it is moved there, for which the kernel tries to take the
//! lock of renames (`__d_unalias`, fs/dcache.c). A rename has that lock while it looks the directory up, so that it could never take a
//! directory from where somebody else has moved it: ESTALE, and the same when the kernel tries once more. So the old name is dropped,
//!
//! ```text
//! rename            locks both directories, LOOKUP: it was known elsewhere        the old name is told to a thread
//!                   ESTALE, both are let go of                                    which has waited for that: the name is dropped
//! rename, again     LOOKUP of what leads there: waits for the thread [`Moved::wait`]
//!                   locks both, LOOKUP: it is known nowhere
//! ```
//!
//! and what keeps the thread from it keeps looks from their answers for [`DROPS_WITHIN`], no longer. A directory in which a program works, or
//! that it has open, stays where it is for the kernel.

use parking_lot::{Condvar, Mutex};
use polvo_fusedev::abi::INodeNo;
use polvo_fusedev::{Entry, Notifier, will_wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A look waits until so long after the last name was told, no longer.
const DROPS_WITHIN: Duration = Duration::from_millis(20);
/// Names that wait to be dropped; what is more stays as it is.
const WAITING_MAX: usize = 64;

/// A name of a directory.
pub(crate) struct Place {
    /// Of this directory.
    pub(crate) parent: INodeNo,
    /// The name.
    pub(crate) name: Box<[u8]>,
}

/// How many names are to be dropped, and until when looks wait for that: counted from the last one that was told, since who keeps the thread
/// from it may do so for long.
struct Waiting {
    names: Mutex<(usize, Instant)>,
    is_any: AtomicBool,
    none: Condvar,
}

impl Waiting {
    fn one_more(&self) {
        let mut names = self.names.lock();
        *names = (names.0 + 1, Instant::now() + DROPS_WITHIN);
        self.is_any.store(true, SeqCst);
    }

    fn one_less(&self) {
        let mut names = self.names.lock();
        names.0 -= 1;
        if names.0 == 0 {
            self.is_any.store(false, SeqCst);
            self.none.notify_all();
        }
    }
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting {
            names: Mutex::new((0, Instant::now())),
            is_any: AtomicBool::new(false),
            none: Condvar::new(),
        }
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
    /// The kernel is to let go of a name.
    pub(crate) fn drop_name(&self, notifier: Notifier, place: Place) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            *thread = start(&self.waiting);
        }
        let Some(sender) = &*thread else { return };
        self.waiting.one_more();
        if sender.try_send((notifier, place)).is_err() {
            self.waiting.one_less();
        }
    }

    /// Waits until what is to be dropped has been, within [`DROPS_WITHIN`] of when that was told.
    pub(crate) fn wait(&self) {
        if !self.waiting.is_any.load(SeqCst) {
            return;
        }
        let mut names = self.waiting.names.lock();
        if names.0 > 0 && Instant::now() < names.1 {
            will_wait();
            let until = names.1;
            while names.0 > 0 && !self.waiting.none.wait_until(&mut names, until).timed_out() {}
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
            waiting.one_less();
        }
    });
    started.map(|_thread| sender).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_waits_for_what_is_to_be_dropped_and_not_for_ever() {
        let moved = Moved::default();
        let took = || {
            let began = Instant::now();
            moved.wait();
            began.elapsed()
        };
        assert!(took() < DROPS_WITHIN, "nothing waits");
        moved.waiting.one_more();
        let queued = Instant::now();
        moved.wait();
        assert!(queued.elapsed() >= DROPS_WITHIN - Duration::from_millis(1));
        assert!(took() < DROPS_WITHIN, "it is late, and nobody waits for it any more");
        moved.waiting.one_more();
        std::thread::scope(|threads| {
            threads.spawn(|| (0..2).for_each(|_| moved.waiting.one_less()));
            while moved.waiting.is_any.load(SeqCst) {
                moved.wait();
            }
        });
        assert!(took() < DROPS_WITHIN, "nothing waits");
    }
}
