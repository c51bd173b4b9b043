//! Wall clock, so that the simulator can replace it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Where file times come from.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the UNIX epoch.
    fn now_ns(&self) -> i64;
}

/// The system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> i64 {
        let ns = |d: std::time::Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => ns(after),
            Err(before) => -ns(before.duration()),
        }
    }
}
