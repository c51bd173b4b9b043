//! How long a waiting future polls before it sleeps.
//!
//! Waking a thread costs more than most operations here take, so whoever waits for a completion polls for it first, for
//! a bounded time and only where another core can do the work meanwhile. Servers that wait for requests do not spin, unless
//! told to; then for a bounded time after each request, so that an idle one uses no CPU either.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const UNSET: u64 = u64::MAX;
static LIMIT_NS: AtomicU64 = AtomicU64::new(UNSET);
static SERVE_LIMIT_NS: AtomicU64 = AtomicU64::new(0);

/// Default where there is more than one core: about what a round trip to a sleeping peer takes.
const DEFAULT: Duration = Duration::from_micros(50);

/// Within one poll of a future, before others on the thread get their turn.
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

/// One wait's spinning.
#[derive(Debug)]
pub(crate) enum Spin {
    Fresh { limit: Duration },
    Until { end: Instant, turn: Instant },
    Over,
}

/// What to do after a look that found nothing.
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Let others have a turn, then look again.
    Yield,
    /// Sleep.
    Sleep,
}

impl Spin {
    /// A wait that spins for so long, if at all.
    pub(crate) fn new(limit: Duration) -> Spin {
        if limit.is_zero() {
            Spin::Over
        } else {
            Spin::Fresh { limit }
        }
    }

    /// Begins a new poll of the future.
    pub(crate) fn poll(&mut self) {
        if let Spin::Until { turn, .. } = self {
            *turn = Instant::now() + TURN;
        }
    }

    pub(crate) fn next(&mut self) -> Next {
        match self {
            Spin::Over => Next::Sleep,
            Spin::Fresh { limit } => {
                let now = Instant::now();
                *self = Spin::Until {
                    end: now + *limit,
                    turn: now + TURN,
                };
                Next::Look
            }
            Spin::Until { end, turn } => {
                let now = Instant::now();
                if now >= *end {
                    *self = Spin::Over;
                    Next::Sleep
                } else if now >= *turn {
                    Next::Yield
                } else {
                    std::hint::spin_loop();
                    Next::Look
                }
            }
        }
    }
}
