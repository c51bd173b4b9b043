//! What the waits of a thread and its poller know of each other.

use crate::provider::{News, Polling, Provider};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// For the waits of a thread, one after the other, before its other tasks get their turn. Were it counted anew for each wait, a
/// task whose waits are all shorter would keep the thread, and what others have to post would not be under way meanwhile.
pub(super) const BUSY_POLL_SHARE: Duration = Duration::from_micros(8);

/// As long as a thread polls, the kernel is asked so often what has come for those who sleep in it. The runtime by itself asks
/// after 61 turns, which is several times what a round trip to somebody who sleeps takes.
pub(super) const ASK: Duration = Duration::from_micros(16);

/// A queue pair that the poller polls.
pub(super) struct Polled {
    pub(super) news: Option<News>,
    pub(super) provider: Rc<dyn Provider>,
}

impl Polled {
    pub(super) fn has_news(&self) -> bool {
        // SAFETY: they came from the provider beside them, which lives as long as they do.
        self.news.as_ref().is_none_or(|news| unsafe { news.are_there() })
    }
}

/// The state of one thread.
pub(super) struct Thread {
    /// Waits that would rather poll again than sleep,
    polling: Cell<usize>,
    /// and how often the time of all of them was over.
    epoch: Cell<u64>,
    /// When the turn of those waits is over that poll by themselves.
    share_ends: Cell<Option<Instant>>,
    /// When somebody who polls had the kernel asked last.
    asked: Cell<Option<Instant>>,

    pub(super) pollers: Cell<usize>,
    pub(super) next_poller: Cell<u64>,
    /// Pollers that have nothing to poll, by their numbers. Each takes itself out when it ends: a waker keeps a runtime alive.
    pub(super) idle: RefCell<Vec<(u64, Waker)>>,
    pub(super) polled: RefCell<Vec<Polled>>,
    /// Until then all of them are polled: as long as one of them is worth it, the others cost a load each.
    pub(super) polled_until: Cell<Option<Instant>>,
    /// Until then the kernel is asked again and again on behalf of queue pairs that sleep in it.
    pub(super) kernel_until: Cell<Option<Instant>>,
    /// Flushed by the poller's next poll.
    pub(super) unflushed: RefCell<Vec<Rc<dyn Provider>>>,
    /// How often a poller has polled all queue pairs, and when last.
    pub(super) polls: Cell<u64>,
    pub(super) last_poll: Cell<Option<Instant>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            polling: Cell::new(0),
            epoch: Cell::new(0),
            share_ends: Cell::new(None),
            asked: Cell::new(None),
            pollers: Cell::new(0),
            next_poller: Cell::new(0),
            idle: RefCell::new(Vec::new()),
            polled: RefCell::new(Vec::new()),
            polled_until: Cell::new(None),
            kernel_until: Cell::new(None),
            unflushed: RefCell::new(Vec::new()),
            polls: Cell::new(0),
            last_poll: Cell::new(None),
        }
    };
}

/// Does something with the state of this thread.
pub(super) fn with<R>(what: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(what)
}

/// As [`with`], unless the thread is about to end and its variables have gone.
pub(super) fn try_with(what: impl FnOnce(&Thread)) {
    let _ = THREAD.try_with(what);
}

impl Thread {
    /// Whether this thread has a poller.
    pub(super) fn has_poller(&self) -> bool {
        self.pollers.get() > 0
    }

    /// Whether at most one wait would rather poll than sleep.
    pub(super) fn is_alone(&self) -> bool {
        self.polling.get() < 2
    }

    /// Whether anybody has left the polling to the poller.
    pub(super) fn is_shared(&self) -> bool {
        self.kernel_until.get().is_some() || !self.polled.borrow().is_empty()
    }

    /// When the poller polled last, if it polls this queue pair again and again.
    pub(super) fn shared_since(&self, provider: &dyn Provider) -> Option<Instant> {
        let is_shared = match provider.polling() {
            Polling::Memory => provider.shared().channel.is_polled(),
            _ => self.kernel_until.get().is_some(),
        };
        self.last_poll.get().filter(|_| is_shared)
    }

    /// Whether others of this thread should have a turn; the next one begins with the next question.
    pub(super) fn is_share_over(&self, now: Instant) -> bool {
        let is_over = self.share_ends.get().is_some_and(|end| end <= now);
        if is_over {
            self.share_ends.set(None);
        } else if self.share_ends.get().is_none() {
            self.share_ends.set(Some(now + BUSY_POLL_SHARE));
        }
        is_over
    }

    /// Whether the kernel should be asked what has come for those who sleep in it.
    pub(super) fn is_asking_due(&self, now: Instant) -> bool {
        let is_due = self.asked.get().is_none_or(|last| now - last >= ASK);
        if is_due {
            self.asked.set(Some(now));
        }
        is_due
    }

    /// The time of all waits that polled is over, though they do not know it yet.
    pub(super) fn end_all_waits(&self) {
        debug_assert!(self.has_poller(), "a poller says so");
        self.epoch.set(self.epoch.get() + 1);
        self.polling.set(0);
    }

    #[cfg(test)]
    pub(super) fn set_asked(&self, now: Instant) {
        self.asked.set(Some(now));
    }

    /// All that decides what happens next, as text.
    #[cfg(test)]
    pub(super) fn describe(&self, at: impl Fn(Option<Instant>) -> String) -> String {
        format!(
            "{} {} {} {} {} {} {} {} {} {}",
            self.polling.get(),
            at(self.share_ends.get()),
            at(self.asked.get()),
            self.pollers.get(),
            self.idle.borrow().len(),
            self.polled.try_borrow().map_or(usize::MAX, |polled| polled.len()),
            at(self.polled_until.get()),
            at(self.kernel_until.get()),
            self.unflushed.borrow().len(),
            at(self.last_poll.get()),
        )
    }

    /// As if nothing had ever happened on it.
    #[cfg(test)]
    pub(super) fn reset(&self) {
        for cell in [
            &self.share_ends,
            &self.asked,
            &self.polled_until,
            &self.kernel_until,
            &self.last_poll,
        ] {
            cell.set(None);
        }
        self.polls.set(0);
    }
}

/// A wait that would rather poll again than sleep.
#[derive(Debug)]
pub(super) struct PollingWait {
    epoch: u64,
}

impl PollingWait {
    pub(super) fn begin(thread: &Thread) -> PollingWait {
        thread.polling.set(thread.polling.get() + 1);
        PollingWait {
            epoch: thread.epoch.get(),
        }
    }
}

impl Drop for PollingWait {
    fn drop(&mut self) {
        try_with(|thread| {
            if thread.epoch.get() == self.epoch {
                let left = thread.polling.get().checked_sub(1);
                thread.polling.set(left.expect("it was counted when it began"));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_for_all_waits_of_a_thread_and_ends() {
        with(|thread| {
            let start = Instant::now();
            assert!(!thread.is_share_over(start), "it begins");
            assert!(!thread.is_share_over(start + BUSY_POLL_SHARE / 2));
            assert!(thread.is_share_over(start + BUSY_POLL_SHARE));
            assert!(!thread.is_share_over(start + BUSY_POLL_SHARE), "the next one begins");
            assert!(thread.is_share_over(start + 2 * BUSY_POLL_SHARE));
        });
    }
}
