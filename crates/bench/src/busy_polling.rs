//! Which threads of this process poll for what comes next, and which sleep in the kernel.
//!
//! A thread that polls without a core of its own takes one from those that have work, so an experiment says how many
//! threads it runs, and they poll only where there are as many cores.

use polvo_fabric::{busy_poll_budget, serve_busy_poll_budget, set_busy_poll_budget, set_serve_busy_poll_budget};
use polvo_testbed::cores::cores;
use std::time::Duration;

/// Busy-poll budget of servers: longer than anything that a client does between two requests.
const SERVING: Duration = Duration::from_millis(5);

/// Busy-poll budgets until this is dropped; then as before.
#[must_use = "when it is dropped, budgets are as before"]
pub struct BusyPolling {
    serving: Option<Duration>,
    waiting: Duration,
}

impl BusyPolling {
    /// Busy servers: they poll for the next request, and clients for their answers.
    pub fn by_servers() -> BusyPolling {
        BusyPolling::set(SERVING, busy_poll_budget())
    }

    /// Idle servers: they sleep until a request comes. Clients poll for their answers.
    pub fn by_clients() -> BusyPolling {
        BusyPolling::set(Duration::ZERO, busy_poll_budget())
    }

    /// So many busy threads: all poll where each has a core; else none does, neither for requests nor for answers.
    pub fn by_threads(threads: usize) -> BusyPolling {
        match threads <= cores() {
            true => BusyPolling::by_servers(),
            false => BusyPolling::set(Duration::ZERO, Duration::ZERO),
        }
    }

    fn set(serving: Duration, waiting: Duration) -> BusyPolling {
        let before = BusyPolling {
            serving: serve_busy_poll_budget(),
            waiting: busy_poll_budget(),
        };
        set_serve_busy_poll_budget(Some(serving));
        set_busy_poll_budget(waiting);
        before
    }
}

impl Drop for BusyPolling {
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
            let _crowded = BusyPolling::by_threads(cores() + 1);
            assert_eq!(
                (serve_busy_poll_budget(), busy_poll_budget()),
                (Some(Duration::ZERO), Duration::ZERO)
            );
            {
                let _enough = BusyPolling::by_threads(cores());
                assert_eq!(serve_busy_poll_budget(), Some(SERVING));
            }
            assert_eq!(
                (serve_busy_poll_budget(), busy_poll_budget()),
                (Some(Duration::ZERO), Duration::ZERO)
            );
        }
        assert_eq!((serve_busy_poll_budget(), busy_poll_budget()), before);
    }
}
