//! Waiting for somebody else to get out of the way, bounded and with jitter.

use polvo_proto::FsError;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Attempts that only let others run, before the first sleep.
const YIELDS: u32 = 64;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(16);
/// Where something is locked for a moment only.
const SHORT_SLEEP_MAX: Duration = Duration::from_millis(1);
/// Shortest sleep.
const SLEEP_MIN: Duration = Duration::from_micros(500);

/// Attempts so far. Sleeps grow to a limit; jitter is drawn from a seed, so that a simulated run repeats.
pub(crate) struct Backoff {
    seed: u64,
    attempts: u32,
    yields: u32,
    sleep_max: Duration,
    deadline: Instant,
}

impl Backoff {
    /// For a whole attempt that failed: every sleep is drawn anew, up to 16 ms.
    pub fn new(seed: u64, deadline: Instant) -> Backoff {
        Backoff {
            seed: seed | 1,
            attempts: 0,
            yields: 2,
            sleep_max: SLEEP_MAX,
            deadline,
        }
    }

    /// For an inode that is locked for a moment: up to 1 ms between probes.
    pub fn short(seed: u64, deadline: Instant) -> Backoff {
        Backoff {
            yields: YIELDS,
            sleep_max: SHORT_SLEEP_MAX,
            ..Backoff::new(seed, deadline)
        }
    }

    /// Waits before the next attempt; `Busy` when the deadline has passed.
    pub async fn wait(&mut self) -> Result<(), FsError> {
        self.attempts += 1;
        debug_assert!(self.seed != 0, "xorshift never leaves 0");
        if self.attempts <= self.yields {
            tokio::task::yield_now().await;
            return Ok(());
        }
        if Instant::now() >= self.deadline {
            return Err(FsError::Busy);
        }
        // xorshift64: enough to keep two that met from meeting again
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let ceiling = Duration::from_millis(1 << (self.attempts - self.yields).min(10)).min(self.sleep_max);
        let share = 512 + (self.seed % 512) as u32;
        let pause = (ceiling * share / 1024).max(SLEEP_MIN);
        debug_assert!(pause <= self.sleep_max, "a sleep has its limit");
        sleep(pause).await;
        Ok(())
    }
}
