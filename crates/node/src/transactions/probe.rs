//! Points of a transaction at which a test can stop its coordinator: to end the node there, or others meanwhile.

/// Where a coordinator has got to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "testing"), allow(dead_code))]
pub enum Phase {
    /// Every participant has staged and locked; nothing is decided.
    Collected,
    /// The record is durable, the own part applied; nothing is dispatched.
    Decided,
    /// One participant has its part, the others do not.
    PartlyDispatched,
    /// Every participant has its part; the record is still in the log.
    Dispatched,
}

/// Does nothing outside tests.
#[derive(Default)]
pub(crate) struct Probe {
    #[cfg(feature = "testing")]
    stop: parking_lot::Mutex<Stop>,
    #[cfg(feature = "testing")]
    go_on: tokio::sync::Notify,
}

#[cfg(feature = "testing")]
#[derive(Default)]
struct Stop {
    at: Option<Phase>,
    stopped: bool,
}

impl Probe {
    /// The next coordinator that gets to `phase` stops there.
    #[cfg(feature = "testing")]
    pub fn stop_at(&self, phase: Phase) {
        *self.stop.lock() = Stop {
            at: Some(phase),
            stopped: false,
        };
    }

    /// True while a coordinator is stopped.
    #[cfg(feature = "testing")]
    pub fn has_stopped(&self) -> bool {
        self.stop.lock().stopped
    }

    /// A coordinator that is stopped goes on.
    #[cfg(feature = "testing")]
    pub fn go_on(&self) {
        self.stop.lock().stopped = false;
        self.go_on.notify_waiters();
    }

    #[cfg(feature = "testing")]
    pub async fn reached(&self, phase: Phase) {
        let go_on = self.go_on.notified();
        {
            let mut stop = self.stop.lock();
            if stop.at != Some(phase) {
                return;
            }
            *stop = Stop {
                at: None,
                stopped: true,
            };
        }
        go_on.await;
    }

    #[cfg(not(feature = "testing"))]
    pub async fn reached(&self, _phase: Phase) {}
}
