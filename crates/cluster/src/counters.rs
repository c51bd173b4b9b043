//! What a process sent over its links: RPCs, one-sided batches, bytes.

use parking_lot::Mutex;
use polvo_proto::Request;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Sums of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkTotals {
    /// RPCs made.
    pub rpcs: u64,
    /// Those of them that renew leases (heartbeats, watches over tokens): they come with time, not with what is done.
    pub renewals: u64,
    /// Bytes that travelled inside RPCs, both ways.
    pub rpc_bytes: u64,
    /// One-sided batches executed.
    pub one_sided_batches: u64,
    /// Bytes read and written one-sided.
    pub one_sided_bytes: u64,
}

impl AddAssign for LinkTotals {
    fn add_assign(&mut self, other: LinkTotals) {
        self.rpcs += other.rpcs;
        self.renewals += other.renewals;
        self.rpc_bytes += other.rpc_bytes;
        self.one_sided_batches += other.one_sided_batches;
        self.one_sided_bytes += other.one_sided_bytes;
    }
}

/// Counters of one thread's links. One thread writes, any thread reads, so an update is a plain load and store.
#[derive(Default)]
pub struct LinkCounters {
    rpcs: AtomicU64,
    renewals: AtomicU64,
    rpc_bytes: AtomicU64,
    one_sided_batches: AtomicU64,
    one_sided_bytes: AtomicU64,
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl LinkCounters {
    pub(crate) fn count_rpc(&self, request: &Request, bytes: usize) {
        bump(&self.rpcs, 1);
        bump(&self.rpc_bytes, bytes as u64);
        if matches!(request, Request::Heartbeat { .. } | Request::Watch { .. }) {
            bump(&self.renewals, 1);
        }
    }

    pub(crate) fn count_batch(&self, bytes: usize) {
        bump(&self.one_sided_batches, 1);
        bump(&self.one_sided_bytes, bytes as u64);
    }

    /// The figures now.
    pub fn totals(&self) -> LinkTotals {
        LinkTotals {
            rpcs: self.rpcs.load(Relaxed),
            renewals: self.renewals.load(Relaxed),
            rpc_bytes: self.rpc_bytes.load(Relaxed),
            one_sided_batches: self.one_sided_batches.load(Relaxed),
            one_sided_bytes: self.one_sided_bytes.load(Relaxed),
        }
    }
}

/// The counters of all threads of a session, those that have ended included.
#[derive(Default)]
pub struct CounterSet {
    inner: Mutex<(LinkTotals, Vec<Weak<LinkCounters>>)>,
}

impl CounterSet {
    /// Counters for one more thread.
    pub(crate) fn join(&self) -> Arc<LinkCounters> {
        let counters = Arc::new(LinkCounters::default());
        self.inner.lock().1.push(Arc::downgrade(&counters));
        counters
    }

    /// A thread's links have ended: its figures stay.
    pub(crate) fn leave(&self, counters: &Arc<LinkCounters>) {
        let mut inner = self.inner.lock();
        inner.0 += counters.totals();
        inner.1.retain(|c| !std::ptr::eq(c.as_ptr(), Arc::as_ptr(counters)));
    }

    /// Sum over all threads.
    pub fn totals(&self) -> LinkTotals {
        let inner = self.inner.lock();
        let mut sum = inner.0;
        for counters in inner.1.iter().filter_map(Weak::upgrade) {
            sum += counters.totals();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_outlive_their_thread() {
        let set = CounterSet::default();
        let (a, b) = (set.join(), set.join());
        a.count_rpc(&Request::Status, 10);
        a.count_rpc(&Request::Heartbeat { tick: 1 }, 5);
        b.count_batch(4096);
        set.leave(&a);
        drop(a);
        b.count_batch(8);
        let expected = LinkTotals {
            rpcs: 2,
            renewals: 1,
            rpc_bytes: 15,
            one_sided_batches: 2,
            one_sided_bytes: 4104,
        };
        assert_eq!(set.totals(), expected);
    }
}
