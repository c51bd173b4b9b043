//! How long a waiting future polls before it sleeps.
//!
//! Waking a thread costs more than most operations here take, so whoever waits for a completion polls for it first, for
//! a bounded time and only where another core can do the work meanwhile. Servers that wait for requests do the same as long
//! as it pays: while requests follow each other within that time. So a server of busy clients costs them no doorbells, and
//! one that is asked now and then sleeps at once. (KVM polls for an idle processor's next interrupt by such a rule: Linux,
//! Documentation/virt/kvm/halt-polling.rst.) Where several wait on a thread, its poller looks for all of them.

use crate::poller;
use crate::provider::Look;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const UNSET: u64 = u64::MAX;
static LIMIT_NS: AtomicU64 = AtomicU64::new(UNSET);
static SERVE_LIMIT_NS: AtomicU64 = AtomicU64::new(UNSET);

/// Default where there is more than one core: about what a round trip to a sleeping peer takes.
const DEFAULT: Duration = Duration::from_micros(50);

/// Default for servers where there is more than one core and a look is a load: longer than a client takes between two
/// requests for 1 MiB that it moves itself. Over sockets looks are system calls, which hold up those who send.
const SERVE_DEFAULT: Duration = Duration::from_micros(100);

/// For the waits of a thread, one after the other, before its other tasks get their turn. Were it counted anew for each wait, a
/// task whose waits are all shorter would keep the thread, and what others have to post would not be under way meanwhile.
const BUSY_POLL_SHARE: Duration = Duration::from_micros(8);

/// Sets, for the whole process, how long a future that waits for a completion polls before it sleeps; zero: not at all.
pub fn set_spin_limit(limit: Duration) {
    LIMIT_NS.store(known(limit), Ordering::Relaxed);
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

/// Sets, for the whole process, how long a server polls for the next request, after one that came within that time; zero: not
/// at all. `None`, as in the beginning: 100 us over `shm` where callers poll too, not at all over `tcp`.
pub fn set_serve_spin_limit(limit: Option<Duration>) {
    SERVE_LIMIT_NS.store(limit.map_or(UNSET, known), Ordering::Relaxed);
}

/// What [`set_serve_spin_limit`] has set.
pub fn serve_spin_limit() -> Option<Duration> {
    match SERVE_LIMIT_NS.load(Ordering::Relaxed) {
        UNSET => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// How long a server polls whose looks are such.
pub(crate) fn serve_limit(looks: Look) -> Duration {
    serve_spin_limit().unwrap_or(match looks {
        Look::AtMemory if !spin_limit().is_zero() => SERVE_DEFAULT,
        _ => Duration::ZERO,
    })
}

fn known(limit: Duration) -> u64 {
    limit.as_nanos().min(u128::from(UNSET - 1)) as u64
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
    static SHARE_ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
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
fn is_share_over(now: Instant) -> bool {
    let is_over = SHARE_ENDS.get().is_some_and(|end| end <= now);
    if is_over {
        SHARE_ENDS.set(None);
    } else if SHARE_ENDS.get().is_none() {
        SHARE_ENDS.set(Some(now + BUSY_POLL_SHARE));
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
    /// Told not to.
    Off,
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
    /// It sleeps; known once it was asked: when it began to wait.
    Over {
        began: Option<Instant>,
    },
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
            State::Off
        } else {
            State::Fresh { limit }
        };
        Spin { state }
    }

    /// The wait after this one, whose event has come: it spins if this one ended within that time, or if others of the thread
    /// are looked after anyway.
    pub(crate) fn next_wait(&self, limit: Duration) -> Spin {
        match self.state {
            State::Over { began: Some(began) } if !poller::is_at_work() && began.elapsed() > limit => Spin {
                state: State::Over { began: None },
            },
            _ => Spin::new(limit),
        }
    }

    /// Something has moved, though it is not what is waited for: that is worth polling for a while longer. Its turn ends as before.
    pub(crate) fn renew(&mut self, limit: Duration) {
        match &mut self.state {
            State::Active { end, .. } => *end = None,
            _ => *self = self.next_wait(limit),
        }
    }

    /// `shared_since`: when the poller looked last, if it looks for what is waited for.
    pub(crate) fn next(&mut self, shared_since: Option<Instant>) -> Next {
        match &mut self.state {
            State::Off => Next::Sleep,
            State::Over { began } => {
                began.get_or_insert_with(Instant::now);
                Next::Sleep
            }
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
                    let began = end.checked_sub(*limit);
                    self.state = State::Over { began };
                    Next::Sleep
                } else if called.is_some_and(|looks| looks != poller::looks()) {
                    Next::Share(end)
                } else if is_share_over(now) {
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

    /// Or an idle server would use a core, or a busy one have a doorbell rung for each request.
    #[test]
    fn polling_goes_on_as_long_as_it_pays() {
        const LIMIT: Duration = Duration::from_millis(200);
        let spins = |spin: &mut Spin| !matches!(spin.next(None), Next::Sleep);
        let ended = |ago| Spin {
            state: State::Over {
                began: Instant::now().checked_sub(ago),
            },
        };
        assert!(
            spins(&mut Spin::new(LIMIT).next_wait(LIMIT)),
            "what came while it polled"
        );
        assert!(
            spins(&mut ended(LIMIT / 20).next_wait(LIMIT)),
            "what came soon after it slept"
        );
        let mut rare = ended(2 * LIMIT).next_wait(LIMIT);
        assert!(!spins(&mut rare), "what came late");
        assert!(spins(&mut rare.next_wait(LIMIT)), "what comes soon again");
        assert!(!spins(&mut rare.next_wait(Duration::ZERO)), "who is told not to");
        let mut renewed = Spin::new(LIMIT);
        assert!(spins(&mut renewed));
        let State::Active { end, .. } = &mut renewed.state else {
            panic!("it was asked")
        };
        *end = Some(Instant::now());
        renewed.renew(LIMIT);
        assert!(spins(&mut renewed), "something has moved");
    }

    #[test]
    fn a_turn_is_shared_by_all_waits_of_a_thread_and_ends() {
        SHARE_ENDS.set(None);
        let start = Instant::now();
        assert!(!is_share_over(start), "it begins");
        assert!(!is_share_over(start + BUSY_POLL_SHARE / 2));
        assert!(is_share_over(start + BUSY_POLL_SHARE));
        assert!(!is_share_over(start + BUSY_POLL_SHARE), "the next one begins");
        assert!(is_share_over(start + 2 * BUSY_POLL_SHARE));
    }
}
