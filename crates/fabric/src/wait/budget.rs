//! The busy-poll budget of a wait: how long it polls before it sleeps.
//!
//! Waking a thread costs more than most operations here take, so whoever waits for a completion polls for it first, for
//! a bounded time and only where another core can do the work meanwhile. Servers that wait for requests do the same as long
//! as it pays: while requests follow each other within that time. So a server of busy clients costs them no doorbells, and
//! one that is asked now and then sleeps at once. (KVM polls for an idle processor's next interrupt by such a rule: Linux,
//! Documentation/virt/kvm/halt-polling.rst.) Where several wait on a thread, its poller polls for all of them.

use super::now;
use super::thread::{self, PollingWait};
use crate::provider::Polling;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const UNSET: u64 = u64::MAX;
static BUDGET_NS: AtomicU64 = AtomicU64::new(UNSET);
static SERVE_BUDGET_NS: AtomicU64 = AtomicU64::new(UNSET);

/// Default where there is more than one core: about what a round trip to a sleeping peer takes.
const DEFAULT: Duration = Duration::from_micros(50);

/// Default for servers where there is more than one core and a poll is a load: longer than a client takes between two
/// requests for 1 MiB that it moves itself. Over sockets polls are system calls, which hold up those who send.
const SERVE_DEFAULT: Duration = Duration::from_micros(100);

/// Sets, for the whole process, how long a future that waits for a completion polls before it sleeps; zero: not at all.
pub fn set_busy_poll_budget(budget: Duration) {
    BUDGET_NS.store(known(budget), Ordering::Relaxed);
}

/// What [`set_busy_poll_budget`] has set; 50 us by default, zero on a single core.
pub fn busy_poll_budget() -> Duration {
    match BUDGET_NS.load(Ordering::Relaxed) {
        UNSET => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let budget = if cores > 1 { DEFAULT } else { Duration::ZERO };
            set_busy_poll_budget(budget);
            budget
        }
        ns => Duration::from_nanos(ns),
    }
}

/// Sets, for the whole process, how long a server polls for the next request, after one that came within that time; zero: not
/// at all. `None`, as in the beginning: 100 us over `shm` where callers poll too, not at all over `tcp`.
pub fn set_serve_busy_poll_budget(budget: Option<Duration>) {
    SERVE_BUDGET_NS.store(budget.map_or(UNSET, known), Ordering::Relaxed);
}

/// What [`set_serve_busy_poll_budget`] has set.
pub fn serve_busy_poll_budget() -> Option<Duration> {
    match SERVE_BUDGET_NS.load(Ordering::Relaxed) {
        UNSET => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// How long a server polls where that is done so.
pub(crate) fn serve_budget(polling: Polling) -> Duration {
    serve_busy_poll_budget().unwrap_or(match polling {
        Polling::Memory if !busy_poll_budget().is_zero() => SERVE_DEFAULT,
        _ => Duration::ZERO,
    })
}

fn known(budget: Duration) -> u64 {
    budget.as_nanos().min(u128::from(UNSET - 1)) as u64
}

/// One wait's budget.
#[derive(Debug)]
pub(super) struct Budget {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing of it is spent.
    Whole { limit: Duration },
    /// It is being spent.
    Polling {
        limit: Duration,
        /// Known once the clock was read.
        end: Option<Instant>,
        /// How often the poller had polled when it was called.
        called: Option<u64>,
        #[allow(dead_code)] // held, not used
        counted: PollingWait,
    },
    /// It is spent, or there was none. Known once the wait sleeps: when it began.
    Spent { began: Option<Instant> },
}

/// What to do after a poll that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Poll again.
    Poll,
    /// Let other tasks have a turn, then poll again.
    Yield,
    /// Other waits of this thread poll as well: call the poller, let it have its turn, and poll again.
    Call,
    /// It has come, or is at it already: have it poll until then, and sleep.
    Share(Instant),
    /// Sleep.
    Sleep,
}

impl Budget {
    /// Polls for so long.
    pub(super) fn new(limit: Duration) -> Budget {
        let state = if limit.is_zero() {
            State::Spent { began: None }
        } else {
            State::Whole { limit }
        };
        Budget { state }
    }

    /// The budget of the wait after this one, which has ended: there is one if this one ended within that time, or if others of
    /// the thread are polled for anyway.
    pub(super) fn next_wait(&self, limit: Duration) -> Budget {
        match self.state {
            State::Spent { began: Some(began) }
                if !limit.is_zero() && !thread::with(thread::Thread::is_shared) && now() - began > limit =>
            {
                Budget {
                    state: State::Spent { began: None },
                }
            }
            _ => Budget::new(limit),
        }
    }

    /// Something has moved, though it is not what is waited for: that is worth polling for a while longer. Its turn ends as before.
    pub(super) fn renew(&mut self, limit: Duration) {
        match &mut self.state {
            State::Polling { end, .. } => *end = None,
            _ => *self = self.next_wait(limit),
        }
    }

    /// `shared_since`: when the poller polled last, if it polls for what is waited for.
    pub(super) fn next(&mut self, thread: &thread::Thread, shared_since: Option<Instant>) -> Next {
        match &mut self.state {
            State::Spent { began } => {
                began.get_or_insert_with(now);
                Next::Sleep
            }
            State::Whole { limit } => {
                let limit = *limit;
                let counted = PollingWait::begin(thread);
                let leaves = !thread.is_alone() && thread.has_poller();
                let end = shared_since.filter(|_| leaves).map(|last| last + limit);
                self.state = State::Polling {
                    limit,
                    end,
                    called: leaves.then(|| thread.polls.get()),
                    counted,
                };
                match end {
                    Some(end) => Next::Share(end),
                    None if leaves => Next::Call,
                    None => Next::Poll,
                }
            }
            State::Polling { limit, end, called, .. } => {
                if called.is_none() && !thread.is_alone() && thread.has_poller() {
                    *called = Some(thread.polls.get());
                    return Next::Call;
                }
                let now = now();
                let end = *end.get_or_insert(now + *limit);
                if now >= end {
                    let began = end.checked_sub(*limit);
                    self.state = State::Spent { began };
                    Next::Sleep
                } else if called.is_some_and(|polls| polls != thread.polls.get()) {
                    Next::Share(end)
                } else if thread.is_share_over(now) {
                    Next::Yield
                } else {
                    Next::Poll
                }
            }
        }
    }
}

#[cfg(test)]
impl Budget {
    /// All that decides what happens next, as text.
    pub(super) fn describe(&self, at: impl Fn(Option<Instant>) -> String) -> String {
        match &self.state {
            State::Whole { .. } => "whole".into(),
            State::Polling { end, called, .. } => {
                let has_polled = called.map(|polls| thread::with(|thread| polls != thread.polls.get()));
                format!("polling {} {has_polled:?}", at(*end))
            }
            State::Spent { began } => format!("spent {}", at(*began)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or an idle server would use a core, or a busy one have a doorbell rung for each request.
    #[test]
    fn polling_goes_on_as_long_as_it_pays() {
        const LIMIT: Duration = Duration::from_millis(200);
        let polls = |budget: &mut Budget| thread::with(|thread| budget.next(thread, None)) != Next::Sleep;
        let ended = |ago| Budget {
            state: State::Spent {
                began: Instant::now().checked_sub(ago),
            },
        };
        assert!(
            polls(&mut Budget::new(LIMIT).next_wait(LIMIT)),
            "what came while it polled"
        );
        assert!(
            polls(&mut ended(LIMIT / 20).next_wait(LIMIT)),
            "what came soon after it slept"
        );
        let mut rare = ended(2 * LIMIT).next_wait(LIMIT);
        assert!(!polls(&mut rare), "what came late");
        assert!(polls(&mut rare.next_wait(LIMIT)), "what comes soon again");
        assert!(!polls(&mut rare.next_wait(Duration::ZERO)), "who is told not to");
        let mut renewed = Budget::new(LIMIT);
        assert!(polls(&mut renewed));
        let State::Polling { end, .. } = &mut renewed.state else {
            panic!("it was asked")
        };
        *end = Some(Instant::now());
        renewed.renew(LIMIT);
        assert!(polls(&mut renewed), "something has moved");
    }
}
