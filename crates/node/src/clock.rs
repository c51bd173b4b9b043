//! Wall clock, so that the simulator can replace it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where file times come from.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the UNIX epoch.
    fn now_ns(&self) -> i64;
}

/// The system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> i64 {
        // `as_nanos` counts in 128 bits
        let ns = |d: Duration| {
            let seconds = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(i64::from(d.subsec_nanos()))
        };
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => ns(after),
            Err(before) => -ns(before.duration()),
        }
    }
}
