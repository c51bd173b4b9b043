//! Points of a transaction at which a test can stop its coordinator for good, as if it had died there.

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
    stop_at: parking_lot::Mutex<Option<Phase>>,
}

impl Probe {
    /// The next coordinator that gets to `phase` stops there for ever.
    #[cfg(feature = "testing")]
    pub fn stop_at(&self, phase: Option<Phase>) {
        *self.stop_at.lock() = phase;
    }

    /// True once a coordinator has stopped.
    #[cfg(feature = "testing")]
    pub fn has_stopped(&self) -> bool {
        self.stop_at.lock().is_none()
    }

    #[cfg(feature = "testing")]
    pub async fn reached(&self, phase: Phase) {
        let stop = {
            let mut stop_at = self.stop_at.lock();
            let stop = *stop_at == Some(phase);
            if stop {
                *stop_at = None;
            }
            stop
        };
        if stop {
            std::future::pending::<()>().await;
        }
    }

    #[cfg(not(feature = "testing"))]
    pub async fn reached(&self, _phase: Phase) {}
}
