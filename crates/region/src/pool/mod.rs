//! A pool: superblocks, segment table, redo log. Shared by all regions whose segments lie in it.
//!
//! The zones are those of Octopus (section 3.1); `docs/media-format.md` draws them byte by byte. Everything here may
//! be called from several threads at once: locks are short and never held while bytes are written to a segment or to
//! a redo log slot.

mod mend;
mod open;
mod peers;
#[cfg(feature = "two-phase")]
mod prepared;
mod redo_log;
mod register;
mod segment_table;
mod sequence;

use crate::RegionError;
use polvo_format::{Era, Gpa, NodeId, PoolLayout, PoolPast, RegionId, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::{Collected, FsError, Outcome, SegmentClass};
use redo_log::Decided;
use redo_log::RedoLog;
pub(crate) use redo_log::encode_parts;
#[cfg(feature = "planted")]
pub use redo_log::limit_redo_log;
use segment_table::SegmentTable;
use sequence::Sequence;
use std::sync::Arc;

#[cfg(feature = "two-phase")]
pub use prepared::PreparedPart;

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
    /// whether it has room for checksums of file data: 8 bytes a page
    pub checksums: bool,
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
    /// who logged it
    pub region: RegionId,
    /// transaction
    pub txn: TxnId,
    /// (region, bytes and locks)
    pub remote: Vec<RemotePart>,
}

impl Undispatched {
    /// Was it decided here, or is it a part prepared for another region's transaction?
    fn is_decision(&self) -> bool {
        self.txn.region() == self.region
    }
}

/// Redo log slot in use: the slot (lower 8 bits) and the number of the record among those of the slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RedoId(pub u64);

/// What another region's primary contributed to a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemotePart {
    /// It has handed out what is to be written.
    Collected(CollectedPart),
    /// It is prepared there, in a record of that pool (two-phase commit), and all that remains is to say so.
    #[cfg(feature = "two-phase")]
    Prepared(RegionId),
}

impl RemotePart {
    /// Where.
    pub fn region(&self) -> RegionId {
        match self {
            RemotePart::Collected(part) => part.region,
            #[cfg(feature = "two-phase")]
            RemotePart::Prepared(region) => *region,
        }
    }

    /// What is to be written there, if that is known here.
    pub fn collected(&self) -> Option<&CollectedPart> {
        match self {
            RemotePart::Collected(part) => Some(part),
            #[cfg(feature = "two-phase")]
            RemotePart::Prepared(_) => None,
        }
    }
}

/// What a participant has to write. It holds at least one lock, and all its addresses lie in its region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectedPart {
    /// where
    pub region: RegionId,
    /// bytes to write, in order
    pub writes: Vec<(Gpa, Vec<u8>)>,
    /// lock words to swap from the transaction's id to 0, at the end
    pub locks: Vec<Gpa>,
}

impl CollectedPart {
    /// A part as its participant has handed it out for so many intents, and the participant's outcomes.
    ///
    /// # Errors
    /// EIO where that is no part: an address in another region, no lock, outcomes of something else.
    pub fn new(
        region: RegionId,
        collected: Collected,
        intents: usize,
    ) -> Result<(CollectedPart, Vec<Outcome>), FsError> {
        let addresses = collected.writes.iter().map(|(at, _)| at).chain(&collected.locks);
        if collected.locks.is_empty()
            || collected.outcomes.len() != intents
            || addresses.into_iter().any(|at| at.region() != region)
        {
            let why = format!("the primary of region {} collected something else", region.0);
            return Err(FsError::Io(why));
        }
        let writes = collected.writes.into_iter();
        let part = CollectedPart {
            region,
            writes: writes.map(|(at, bytes)| (at, bytes.into_vec())).collect(),
            locks: collected.locks,
        };
        Ok((part, collected.outcomes))
    }
}

/// Segments of a pool: table, free list, redo log slots. Shared by the regions of the pool; `Send + Sync`.
pub struct PoolSpace {
    pmem: Arc<Pmem>,
    identity: PoolIdentity,
    layout: PoolLayout,
    table: SegmentTable,
    redo: RedoLog,
    sequence: Sequence,
}

impl PoolSpace {
    /// Who it belongs to.
    pub fn identity(&self) -> PoolIdentity {
        self.identity
    }

    /// Which pool it is, and its latest eras.
    pub fn past(&self) -> PoolPast {
        PoolPast {
            pool: self.identity.pool,
            history: self.sequence.history(),
        }
    }

    /// A new era of the pool begins, with a mark drawn at random: at a start, before anything is served, and at a clean end.
    /// `known`: an era that others have seen of a later copy of this pool, which is to be used in spite of it. Durable on
    /// return.
    pub fn begin_era(&self, mark: u64, known: Option<Era>) {
        self.sequence.begin_era(&self.pmem, mark, |history| {
            if let Some(known) = known {
                history.leave_behind(known);
            }
        });
    }

    /// Has the run that has the pool, or else the last one, given tokens? Then nothing may change before their leases are over.
    pub fn tokens_given(&self) -> bool {
        self.sequence.tokens_given()
    }

    /// Notes whether it has: before the first one is given, and once none of an earlier incarnation can be believed any more.
    /// Durable on return.
    pub fn note_tokens_given(&self, given: bool) {
        self.sequence.note_tokens_given(&self.pmem, given);
    }

    /// Where its zones lie.
    pub fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Regions that own segments here, in order; copies of others are none of them.
    pub fn regions(&self) -> Vec<RegionId> {
        self.table.regions()
    }

    /// Regions of which the pool has a copy ([`crate::Lane`]), in order, each with where its lane begins.
    pub(crate) fn lanes(&self) -> Vec<(RegionId, u64)> {
        self.table.lanes()
    }

    /// Regions of which the pool has a copy, in order.
    pub fn copies(&self) -> Vec<RegionId> {
        self.table.lanes().into_iter().map(|(region, _)| region).collect()
    }

    /// Is there a copy of this region?
    pub fn has_copy(&self, region: RegionId) -> bool {
        self.table.lanes().iter().any(|(copy, _)| *copy == region)
    }

    pub(crate) fn take_lane(&self, region: RegionId) -> Result<u64, RegionError> {
        self.table.take_lane(&self.pmem, region)
    }

    pub(crate) fn give_back_lane(&self, region: RegionId) {
        self.table.give_back_lane(&self.pmem, region);
    }

    /// Counts.
    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            segments: self.layout.segments,
            free_segments: self.table.free(),
            segment_size: self.layout.segment_size(),
        }
    }

    /// A region's segments, by index: (index in the region, pool offset, what it holds).
    pub fn segments_of(&self, region: RegionId) -> Vec<(u32, u64, SegmentClass)> {
        self.table.segments_of(region)
    }

    /// What a region's segment of this index holds, if it has one here.
    pub(crate) fn class_of_segment(&self, region: RegionId, index: u32) -> Option<SegmentClass> {
        self.table.class_of(region, index)
    }

    /// Gives a free segment to a region as its segment number `index`; returns its pool offset. Durable on return.
    /// Segments for inodes and logs come zeroed, those for data as they are. ENOSPC when none is free.
    ///
    /// # Panics
    /// When the region has a segment of this index.
    pub(crate) fn take_segment(&self, region: RegionId, index: u32, class: SegmentClass) -> Result<u64, RegionError> {
        self.table.take(&self.pmem, region, index, class)
    }

    /// Takes a segment back from its region. Durable on return. Nothing on the media may lead to it any more.
    ///
    /// # Panics
    /// When the region has no segment of this index.
    pub(crate) fn give_back_segment(&self, region: RegionId, index: u32) {
        self.table.give_back(&self.pmem, region, index);
    }

    /// Logs a redo record: from its return on, the transaction has happened, and recovery puts `local` in place.
    /// The caller then puts it in place, durably, and says so with [`Self::applied`]. `local` lies in the `region` that logs it. At
    /// most 16 KiB in all.
    ///
    /// # Errors
    /// EINVAL when it is too large; `Retry` when all slots (that a record with a remote part may take) are in use.
    pub(crate) fn log<'a>(
        &self,
        region: RegionId,
        txn: TxnId,
        local: impl IntoIterator<Item = (Gpa, &'a [u8])> + Clone,
        remote: &[RemotePart],
    ) -> Result<RedoId, RegionError> {
        self.redo
            .log(&self.pmem, &self.layout, (region, txn), local, remote, Decided::Here)
    }

    /// The record's local part is in place and durable. Returns the record when its remote part remains to be
    /// dispatched (then [`Self::retire`] it); else its slot is free again. Durable on return.
    pub(crate) fn applied(&self, record: RedoId) -> Option<RedoId> {
        self.redo.applied(&self.pmem, &self.layout, record)
    }

    /// A region of which there is a copy here has decided this, which it has in a record without a local part: it is in the log from
    /// its return on. Nothing happens where it is there already, or `is_retired` as its primary has said since.
    ///
    /// # Errors
    /// `Pool` for what is no such record; `Retry` when all slots that it may take are in use.
    pub(crate) fn adopt(
        &self,
        region: RegionId,
        record: &[u8],
        is_retired: impl FnOnce(TxnId) -> bool,
    ) -> Result<(), RegionError> {
        let (txn, remote) = redo_log::parts_of(region, record).map_err(RegionError::Pool)?;
        match self.redo.is_logged(txn) || is_retired(txn) {
            true => Ok(()),
            false => self.redo.adopt(&self.pmem, &self.layout, (region, txn), remote),
        }
    }

    /// How many transactions with parts elsewhere may be decided here and not be retired, at a time.
    pub fn decisions_max(&self) -> usize {
        self.redo.own_max()
    }

    /// What a region has decided here, of which it is not known that every participant has its part. Nobody may decide in it meanwhile.
    pub(crate) fn decided_by(&self, region: RegionId) -> Vec<(TxnId, Vec<RemotePart>)> {
        self.redo.decided_by(&self.pmem, &self.layout, region)
    }

    /// What a region has decided here is its own affair no more: who serves it says anew what counts.
    pub(crate) fn forget_decisions(&self, region: RegionId) {
        for (txn, _) in self.decided_by(region) {
            self.retire_of(txn);
        }
    }

    /// As [`Self::retire`], of what was adopted.
    pub(crate) fn retire_of(&self, txn: TxnId) {
        if let Some(record) = self.redo.record_of(txn) {
            self.retire(record);
        }
    }

    /// Records found at `open` whose remote parts are not known to be dispatched. Dispatch, then `retire`.
    pub fn undispatched(&self) -> Vec<Undispatched> {
        let found = self.redo.found().into_iter();
        found.filter(Undispatched::is_decision).collect()
    }

    /// True while a record of this transaction is in the log: it has been decided, and not every participant is known
    /// to have its part.
    pub fn is_logged(&self, txn: TxnId) -> bool {
        self.redo.is_logged(txn)
    }

    /// The remote part is durable at the participants. A record that was retired already is left alone.
    pub fn retire(&self, record: RedoId) {
        self.redo.retire(&self.pmem, &self.layout, record);
    }

    /// A number that no earlier incarnation of this pool has used (persisted in strides).
    pub fn next_sequence(&self) -> u64 {
        self.sequence.next(&self.pmem)
    }

    /// Where `len` bytes at an address lie in this pool; `None` unless they all lie in one segment here.
    pub(crate) fn locate(&self, gpa: Gpa, len: u64) -> Option<u64> {
        self.table.locate(gpa, len)
    }

    /// The pool.
    pub fn pmem(&self) -> &Arc<Pmem> {
        &self.pmem
    }
}

#[cfg(test)]
mod tests;
