//! How long a waiting future polls before it sleeps.
//!
//! Waking a thread costs more than most operations here take, so whoever waits for a completion polls for it first, for
//! a bounded time and only where another core can do the work meanwhile. Servers that wait for requests do not spin, unless
//! told to; then for a bounded time after each request, so that an idle one uses no CPU either. Where several wait on a
//! thread, its poller looks for all of them.

use crate::poller;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const UNSET: u64 = u64::MAX;
static LIMIT_NS: AtomicU64 = AtomicU64::new(UNSET);
static SERVE_LIMIT_NS: AtomicU64 = AtomicU64::new(0);

/// Default where there is more than one core: about what a round trip to a sleeping peer takes.
const DEFAULT: Duration = Duration::from_micros(50);

/// For the waits of a thread, one after the other, before its other tasks get their turn. Were it counted anew for each wait, a
/// task whose waits are all shorter would keep the thread, and what others have to post would not be under way meanwhile.
const TURN: Duration = Duration::from_micros(8);

/// Sets, for the whole process, how long a future that waits for a completion polls before it sleeps; zero: not at all.
pub fn set_spin_limit(limit: Duration) {
    LIMIT_NS.store(limit.as_nanos().min(u128::from(UNSET - 1)) as u64, Ordering::Relaxed);
}

/// What [`set_spin_limit`] has set; 50 us by default, zero on a single core.
pub fn spin_limit() -> Duration {
    match LIMIT_NS.load(Ordering::Relaxed) {
        UNSET => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let limit = if cores > 1 { DEFAULT } else { Duration::ZERO };
            set_spin_limit(limit);
            limit
        }
        ns => Duration::from_nanos(ns),
    }
}

/// Sets, for the whole process, how long a server polls for the next request after it has taken one; zero (the default):
/// not at all. Pays on machines with cores to spare: a request then finds its server awake.
pub fn set_serve_spin_limit(limit: Duration) {
    SERVE_LIMIT_NS.store(limit.as_nanos().min(u128::from(UNSET)) as u64, Ordering::Relaxed);
}

/// What [`set_serve_spin_limit`] has set.
pub fn serve_spin_limit() -> Duration {
    Duration::from_nanos(SERVE_LIMIT_NS.load(Ordering::Relaxed))
}

/// Waits of this thread that would rather look again than sleep: how many, and how often all of them were over.
#[derive(Clone, Copy)]
struct Waits {
    age: u64,
    count: usize,
}

thread_local! {
    static WAITS: Cell<Waits> = const { Cell::new(Waits { age: 0, count: 0 }) };
    /// When the turn of those waits is over that poll by themselves.
    static TURN_ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// One of them.
struct Counted {
    age: u64,
}

impl Counted {
    fn new() -> Counted {
        let Waits { age, count } = WAITS.get();
        WAITS.set(Waits { age, count: count + 1 });
        Counted { age }
    }

    fn is_alone() -> bool {
        WAITS.get().count < 2
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Waits { age, count } = WAITS.get();
        if age == self.age {
            WAITS.set(Waits { age, count: count - 1 });
        }
    }
}

/// Whether others of this thread should have a turn; the next one begins with the next question.
fn is_turn_over(now: Instant) -> bool {
    let is_over = TURN_ENDS.get().is_some_and(|end| end <= now);
    if is_over {
        TURN_ENDS.set(None);
    } else if TURN_ENDS.get().is_none() {
        TURN_ENDS.set(Some(now + TURN));
    }
    is_over
}

/// The time of all waits that spun on this thread is over, though they do not know it yet.
pub(crate) fn all_over() {
    let age = WAITS.get().age + 1;
    WAITS.set(Waits { age, count: 0 });
}

/// One wait's spinning.
pub(crate) struct Spin {
    state: State,
}

enum State {
    Fresh {
        limit: Duration,
    },
    Active {
        limit: Duration,
        /// Known once the clock was read.
        end: Option<Instant>,
        /// How often the poller had looked when it was called.
        called: Option<u64>,
        #[allow(dead_code)] // held, not looked at
        counted: Counted,
    },
    Over,
}

/// What to do after a look that found nothing.
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Let others have a turn, then look again.
    Yield,
    /// Others of this thread look again and again as well: call the poller, let it have its turn, and look again.
    Call,
    /// It has come, or is at it already: have it look until then, and sleep.
    Share(Instant),
    /// Sleep.
    Sleep,
}

impl Spin {
    /// A wait that spins for so long, if at all.
    pub(crate) fn new(limit: Duration) -> Spin {
        let state = if limit.is_zero() {
            State::Over
        } else {
            State::Fresh { limit }
        };
        Spin { state }
    }

    /// `shared_since`: when the poller looked last, if it looks for what is waited for.
    pub(crate) fn next(&mut self, shared_since: Option<Instant>) -> Next {
        match &mut self.state {
            State::Over => Next::Sleep,
            State::Fresh { limit } => {
                let counted = Counted::new();
                let leaves = !Counted::is_alone() && poller::is_there();
                let end = shared_since.filter(|_| leaves).map(|last| last + *limit);
                self.state = State::Active {
                    limit: *limit,
                    end,
                    called: leaves.then(poller::looks),
                    counted,
                };
                match end {
                    Some(end) => Next::Share(end),
                    None if leaves => Next::Call,
                    None => Next::Look,
                }
            }
            State::Active { limit, end, called, .. } => {
                if called.is_none() && !Counted::is_alone() && poller::is_there() {
                    *called = Some(poller::looks());
                    return Next::Call;
                }
                let now = Instant::now();
                let end = *end.get_or_insert(now + *limit);
                if now >= end {
                    self.state = State::Over;
                    Next::Sleep
                } else if called.is_some_and(|looks| looks != poller::looks()) {
                    Next::Share(end)
                } else if is_turn_over(now) {
                    Next::Yield
                } else {
                    Next::Look
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_shared_by_all_waits_of_a_thread_and_ends() {
        TURN_ENDS.set(None);
        let start = Instant::now();
        assert!(!is_turn_over(start), "it begins");
        assert!(!is_turn_over(start + TURN / 2));
        assert!(is_turn_over(start + TURN));
        assert!(!is_turn_over(start + TURN), "the next one begins");
        assert!(is_turn_over(start + 2 * TURN));
    }
}
