//! How many requests of each kind were served, and how many are under way.

use polvo_proto::{Request, RequestKind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Threads share these in turn, so that those that serve side by side do not meet in a cache line.
const SHARES: usize = 32;

thread_local! {
    /// Which of them is this thread's.
    static SHARE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % SHARES
    };
}

/// What some threads have counted; in cache lines of its own.
#[repr(align(128))]
struct Share {
    by_kind: [AtomicU64; RequestKind::NAMES.len()],
    under_way: AtomicU64,
}

/// Requests by kind.
pub(crate) struct RequestCounters {
    shares: [Share; SHARES],
}

impl Default for RequestCounters {
    fn default() -> Self {
        let share = |_| Share {
            by_kind: [const { AtomicU64::new(0) }; RequestKind::NAMES.len()],
            under_way: AtomicU64::new(0),
        };
        RequestCounters {
            shares: std::array::from_fn(share),
        }
    }
}

/// A request that was counted, until it is answered or given up.
#[must_use]
pub(crate) struct UnderWay<'a>(&'a Share);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let under_way = self.0.under_way.fetch_sub(1, Relaxed);
        debug_assert!(under_way > 0, "a request under way is counted");
    }
}

impl RequestCounters {
    fn own(&self) -> &Share {
        &self.shares[SHARE.with(|share| *share)]
    }

    /// A request that a connection has brought.
    pub fn begin(&self, request: &Request) -> UnderWay<'_> {
        let share = self.own();
        share.by_kind[request.kind() as usize].fetch_add(1, Relaxed);
        share.under_way.fetch_add(1, Relaxed);
        UnderWay(share)
    }

    /// One of a colocated client.
    pub fn count(&self, request: &Request) {
        self.own().by_kind[request.kind() as usize].fetch_add(1, Relaxed);
    }

    /// A write by a colocated client, which makes no request of it.
    pub fn count_write(&self) {
        self.own().by_kind[RequestKind::Write as usize].fetch_add(1, Relaxed);
    }

    /// Is any under way?
    pub fn are_under_way(&self) -> bool {
        self.shares.iter().any(|share| share.under_way.load(Relaxed) > 0)
    }

    /// Kinds that occurred, with their counts.
    pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
        let of_kind = |(kind, name): (usize, &'static str)| {
            let counts = self.shares.iter().map(|share| share.by_kind[kind].load(Relaxed));
            (name, counts.sum::<u64>())
        };
        let all = RequestKind::NAMES.iter().copied().enumerate().map(of_kind);
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_have_counted_is_added_up() {
        let counters = RequestCounters::default();
        let under_way = counters.begin(&Request::Withdraw {
            region: polvo_format::RegionId(0),
        });
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| counters.count(&Request::Fence));
            }
        });
        counters.count_write();
        assert_eq!(counters.total(), 5);
        let fences = counters
            .by_kind()
            .into_iter()
            .find(|(name, _)| *name == RequestKind::NAMES[Request::Fence.kind() as usize]);
        assert_eq!(fences.map(|(_, count)| count), Some(3));
        assert!(counters.are_under_way());
        drop(under_way);
        assert!(!counters.are_under_way());
    }
}
