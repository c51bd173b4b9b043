//! Gates of the regions served here ([`polvo_proto::Gate`]): what clients read behind what they read of a region, to know that all its
//! mirrors have that and that nobody can have taken this node's place.
//!
//! A client believes what it has read when the gate it read behind it is open, and before the lease is over that it knows of: this node
//! has told of one in an answer, or its beat has changed since a read of before, by which it was shown after that was posted. So a
//! primary that stands still, or was cut off from its mirrors, is believed for as long as its lease lasts and no longer, though its memory
//! can still be read. A node that was started anew changes nothing for that long: gates of before stay open to who has mapped them.

use crate::clock::outlasting;
use crate::replication::leases::{GRACE, LEASE};
use polvo_fabric::{Access, Buffer, Memory, MemoryRegions};
use polvo_format::{Lsn, RegionId};
use polvo_proto::{Beat, ClusterMap, Gate};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// No client is told of more of a lease than this. A mirror that joins the set may have heard of the primary half a lease ago, and takes
/// its place after a grace from then on, whatever was told before.
pub(crate) const TOLD: Duration = Duration::from_millis(750);
const _: () = assert!(
    outlasting(TOLD).as_millis() + LEASE.as_millis() / 2 < GRACE.as_millis(),
    "by whichever clocks"
);
/// Bytes from one gate to the next: a line each.
const STRIDE: u64 = 64;
const _: () = assert!(Gate::SIZE as u64 <= STRIDE, "a gate lies in a line");

/// Memory for the gates of all regions of a cluster, and its key; none where they have no copies.
#[derive(Default)]
pub(crate) struct Gates(Option<(Arc<Buffer>, u64)>);

/// The gate of a region that is served here. Closed when it is made.
pub(crate) struct ShownGate {
    memory: Arc<Buffer>,
    key: u64,
    offset: u64,
}

impl Gates {
    /// For those of a cluster.
    pub fn of(map: &ClusterMap, memory: &MemoryRegions) -> Gates {
        if !map.is_replicated() {
            return Gates::default();
        }
        let regions = map.regions.len();
        let len = regions as u64 * STRIDE;
        let buffer = Buffer::new(regions * STRIDE as usize);
        let key = memory.register(Memory::Buffer(buffer.clone()), 0, len, Access::READ);
        Gates(Some((buffer, key.0)))
    }

    /// That of one.
    pub fn gate(&self, region: RegionId) -> Option<Arc<ShownGate>> {
        let (memory, key) = self.0.as_ref()?;
        let gate = ShownGate {
            memory: memory.clone(),
            key: *key,
            offset: u64::from(region.0) * STRIDE,
        };
        gate.close();
        Some(Arc::new(gate))
    }
}

impl ShownGate {
    /// Key and offset, for clients.
    pub fn place(&self) -> (u64, u64) {
        (self.key, self.offset)
    }

    /// Something is about to be stored of this record.
    pub fn begin(&self, record: Lsn) {
        self.store(Gate::BEGUN, record.0);
        // who sees any of what is stored from here on sees this
        fence(Ordering::Release);
    }

    /// What is stored is of no record behind this one.
    pub fn ended(&self, record: Lsn) {
        self.store(Gate::BEGUN, record.0);
    }

    /// Every mirror in the set has the records up to this one; `None`: there are no mirrors.
    pub fn mirrored(&self, record: Option<Lsn>) {
        self.store(Gate::MIRRORED, record.map_or(u64::MAX, |record| record.0));
    }

    /// Shows lease number `n`, and how much of it is `left`, by the fastest clock.
    ///
    /// Whoever has read another beat, but not none, has done so before that was found: also where this node stands still in between.
    pub fn beat(&self, n: u64, left: impl FnOnce() -> Duration) {
        self.store(Gate::BEAT, Beat::default().0);
        fence(Ordering::SeqCst);
        self.store(Gate::BEAT, Beat::new(n, left()).0);
    }

    /// Nothing may be believed that is read here.
    pub fn close(&self) {
        self.store(Gate::BEAT, Beat::default().0);
        self.store(Gate::BEGUN, u64::MAX);
        self.store(Gate::MIRRORED, 0);
    }

    fn store(&self, at: usize, word: u64) {
        self.memory.write_word(self.offset as usize + at, word.to_le());
    }
}
