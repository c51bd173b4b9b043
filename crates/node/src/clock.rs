//! A node's clock, so that the simulator can replace it by one that is wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clocks may run too fast or too slow by so many in a thousand.
const DRIFT: u64 = 10;

/// Where file times come from, and by what leases are measured.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the UNIX epoch.
    fn now_ns(&self) -> i64;

    /// How much time really passes until `duration` has passed by this clock. Only the simulator knows of a difference.
    fn lasts(&self, duration: Duration) -> Duration {
        duration
    }
}

/// When so much has passed by this node's clock, `lease` has passed by all others that began then.
pub(crate) const fn outlasting(lease: Duration) -> Duration {
    Duration::from_nanos((lease.as_nanos() as u64).saturating_mul(1000 + DRIFT) / (1000 - DRIFT) + 1)
}

/// What has passed by all other clocks when `lease` has passed by this node's.
pub(crate) const fn outlasted_by(lease: Duration) -> Duration {
    Duration::from_nanos((lease.as_nanos() as u64).saturating_mul(1000 - DRIFT) / (1000 + DRIFT))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outlasted_is_over_by_the_slowest_clock_when_the_fastest_says_so() {
        for lease in [1, 999, 1000, 2000, 30_000, 86_400_000].map(Duration::from_millis) {
            // of the fastest clock so much has passed in 1000 / (1000 + DRIFT) of it, and by the slowest 1000 - DRIFT of that
            let passed = |duration: Duration| duration.as_nanos() * u128::from(1000 - DRIFT);
            let needed = |duration: Duration| duration.as_nanos() * u128::from(1000 + DRIFT);
            assert!(passed(outlasting(lease)) >= needed(lease));
            assert!(passed(lease) >= needed(outlasted_by(lease)));
            assert!(outlasting(lease) < lease * 103 / 100 && outlasted_by(lease) > lease * 97 / 100);
        }
    }
}
