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
//! and what keeps a thread from it keeps a look from its answer for [`DROPS_WITHIN`], no longer. A directory in which a program works, or that it has
//! open, stays where it is for the kernel.

use parking_lot::{Condvar, Mutex};
use polvo_fusedev::abi::INodeNo;
use polvo_fusedev::{Entry, Notifier, will_wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A look waits for no longer.
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

#[derive(Default)]
struct Waiting {
    count: Mutex<usize>,
    is_any: AtomicBool,
    none: Condvar,
}

impl Waiting {
    fn change(&self, count: impl FnOnce(&mut usize)) {
        let mut waiting = self.count.lock();
        count(&mut waiting);
        self.is_any.store(*waiting > 0, SeqCst);
        if *waiting == 0 {
            self.none.notify_all();
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
        self.waiting.change(|count| *count += 1);
        if sender.try_send((notifier, place)).is_err() {
            self.waiting.change(|count| *count -= 1);
        }
    }

    /// Waits until what is to be dropped has been, within [`DROPS_WITHIN`].
    pub(crate) fn wait(&self) {
        if !self.waiting.is_any.load(SeqCst) {
            return;
        }
        will_wait();
        let until = Instant::now() + DROPS_WITHIN;
        let mut count = self.waiting.count.lock();
        while *count > 0 && !self.waiting.none.wait_until(&mut count, until).timed_out() {}
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
            waiting.change(|count| *count -= 1);
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
        moved.wait();
        moved.waiting.change(|count| *count += 1);
        let began = Instant::now();
        moved.wait();
        assert!(began.elapsed() >= DROPS_WITHIN);
        std::thread::scope(|threads| {
            threads.spawn(|| moved.waiting.change(|count| *count -= 1));
            while moved.waiting.is_any.load(SeqCst) {
                moved.wait();
            }
        });
        let began = Instant::now();
        moved.wait();
        assert!(began.elapsed() < DROPS_WITHIN, "nothing waits");
    }
}
