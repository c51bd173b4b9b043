//! How many requests of each kind were served.

use polvo_proto::{Request, RequestKind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Requests by kind.
pub(crate) struct RequestCounters {
    counts: [AtomicU64; RequestKind::NAMES.len()],
}

impl Default for RequestCounters {
    fn default() -> Self {
        RequestCounters {
            counts: [const { AtomicU64::new(0) }; RequestKind::NAMES.len()],
        }
    }
}

impl RequestCounters {
    pub fn count(&self, request: &Request) {
        self.counts[request.kind() as usize].fetch_add(1, Relaxed);
    }

    /// A write by a colocated client, which makes no request of it.
    pub fn count_write(&self) {
        self.counts[RequestKind::Write as usize].fetch_add(1, Relaxed);
    }

    /// Kinds that occurred, with their counts.
    pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
        let all = RequestKind::NAMES
            .iter()
            .zip(&self.counts)
            .map(|(name, count)| (*name, count.load(Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }
}
