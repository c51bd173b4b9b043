//! A pool: superblocks, segment table, redo log. Shared by all regions whose segments lie in it.

use crate::RegionError;
use polvo_format::{Gpa, NodeId, RegionId, TxnId};
use polvo_pmem::Pmem;
use std::sync::Arc;

/// Who a pool belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolIdentity {
    /// cluster
    pub cluster: [u8; 16],
    /// this pool
    pub pool: [u8; 16],
    /// node
    pub node: NodeId,
}

/// Parameters of `format`.
#[derive(Clone, Debug)]
pub struct FormatParams {
    /// who
    pub identity: PoolIdentity,
    /// log2 of the segment size; `None` = by pool size (2 MiB up to 64 GiB)
    pub segment_shift: Option<u32>,
}

/// Segments of a pool: table, free list, redo log slots. Shared by the regions of the pool; `Send + Sync`.
pub struct PoolSpace {
    _p: (),
}
/// Segment counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolUsage {
    /// all
    pub segments: u32,
    /// not owned by a region
    pub free_segments: u32,
    /// bytes of one
    pub segment_size: u64,
}
/// A logged transaction whose remote part still has to be dispatched.
#[derive(Clone, Debug)]
pub struct Undispatched {
    /// record
    pub record: RedoId,
    /// transaction
    pub txn: TxnId,
    /// (region, bytes and locks)
    pub remote: Vec<RemotePart>,
}
/// Redo log slot in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RedoId(pub u64);
/// What another region's primary contributed.
#[derive(Clone, Debug)]
pub struct RemotePart {
    /// where
    pub region: RegionId,
    /// bytes to write, in order
    pub writes: Vec<(Gpa, Vec<u8>)>,
    /// lock words to swap from the transaction's id to 0, at the end
    pub locks: Vec<Gpa>,
}

impl PoolSpace {
    /// Writes an empty pool.
    pub fn format(_pmem: &Arc<Pmem>, _params: &FormatParams) -> Result<(), RegionError> {
        todo!()
    }
    /// Opens a pool: checks superblocks, reads the segment table, replays the local part of redo records.
    pub fn open(_pmem: Arc<Pmem>) -> Result<Arc<PoolSpace>, RegionError> {
        todo!()
    }
    /// Who it belongs to.
    pub fn identity(&self) -> PoolIdentity {
        todo!()
    }
    /// Regions that own segments here.
    pub fn regions(&self) -> Vec<RegionId> {
        todo!()
    }
    /// Counts.
    pub fn usage(&self) -> PoolUsage {
        todo!()
    }
    /// Records found at `open` whose remote part is not known to be dispatched. Dispatch, then `retire`.
    pub fn undispatched(&self) -> Vec<Undispatched> {
        todo!()
    }
    /// The remote part is durable at the participants.
    pub fn retire(&self, _record: RedoId) {
        todo!()
    }
    /// A number that no earlier run of this pool has used (persisted in strides); for `TxnId`s.
    pub fn next_sequence(&self) -> u64 {
        todo!()
    }
    /// The pool.
    pub fn pmem(&self) -> &Arc<Pmem> {
        todo!()
    }
}
