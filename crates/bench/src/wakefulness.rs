//! How the threads of this process wait: awake, polling for what comes next, or asleep in the kernel.
//!
//! A thread that polls without a core of its own takes one from those that have work, so an experiment says how many
//! threads it runs, and they are kept awake only where there are as many cores.

use crate::cores::cores;
use polvo_fabric::{busy_poll_budget, serve_busy_poll_budget, set_busy_poll_budget, set_serve_busy_poll_budget};
use std::time::Duration;

/// How long a server that is awake polls for the next request: longer than anything that a client does in between.
const AWAKE: Duration = Duration::from_millis(5);

/// How threads wait until this is dropped; then as before.
#[must_use = "when it is dropped, threads wait as before"]
pub struct Wakefulness {
    serving: Option<Duration>,
    waiting: Duration,
}

impl Wakefulness {
    /// Servers that are busy: they poll for the next request.
    pub fn awake() -> Wakefulness {
        Wakefulness::set(AWAKE, busy_poll_budget())
    }

    /// Servers that are idle: they sleep until a request comes. Who waits for an answer polls for it, as ever.
    pub fn asleep() -> Wakefulness {
        Wakefulness::set(Duration::ZERO, busy_poll_budget())
    }

    /// So many busy threads: awake where each has a core; else none of them polls, neither for requests nor for answers.
    pub fn of(threads: usize) -> Wakefulness {
        match threads <= cores() {
            true => Wakefulness::awake(),
            false => Wakefulness::set(Duration::ZERO, Duration::ZERO),
        }
    }

    fn set(serving: Duration, waiting: Duration) -> Wakefulness {
        let before = Wakefulness {
            serving: serve_busy_poll_budget(),
            waiting: busy_poll_budget(),
        };
        set_serve_busy_poll_budget(Some(serving));
        set_busy_poll_budget(waiting);
        before
    }
}

impl Drop for Wakefulness {
    fn drop(&mut self) {
        set_serve_busy_poll_budget(self.serving);
        set_busy_poll_budget(self.waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_polls_where_cores_are_lacking_and_all_is_as_before_in_the_end() {
        let before = (serve_busy_poll_budget(), busy_poll_budget());
        {
            let _crowded = Wakefulness::of(cores() + 1);
            assert_eq!(
                (serve_busy_poll_budget(), busy_poll_budget()),
                (Some(Duration::ZERO), Duration::ZERO)
            );
            {
                let _enough = Wakefulness::of(cores());
                assert_eq!(serve_busy_poll_budget(), Some(AWAKE));
            }
            assert_eq!(
                (serve_busy_poll_budget(), busy_poll_budget()),
                (Some(Duration::ZERO), Duration::ZERO)
            );
        }
        assert_eq!((serve_busy_poll_budget(), busy_poll_budget()), before);
    }
}
