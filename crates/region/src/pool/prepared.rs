//! Parts that are prepared here for transactions of other nodes: two-phase commit, which is there to be compared with.

use super::redo_log::Decided;
use super::{CollectedPart, PoolSpace, RedoId, RemotePart, Undispatched};
use crate::RegionError;
use polvo_format::TxnId;

/// What a region of this pool has prepared for another node's transaction.
#[derive(Clone, Debug)]
pub struct PreparedPart {
    /// record
    pub record: RedoId,
    /// transaction
    pub txn: TxnId,
    /// what remains to be put in place once it is committed
    pub part: CollectedPart,
}

impl PoolSpace {
    /// Logs what a region of this pool has prepared for another node's transaction, durably. When its end is known, put it in
    /// place or not, then [`Self::retire`] the record.
    ///
    /// # Errors
    /// EAGAIN ([`polvo_proto::FsError::Retry`]) while too many records wait; EINVAL for one that no slot takes.
    pub fn log_prepared(&self, txn: TxnId, part: CollectedPart) -> Result<PreparedPart, RegionError> {
        let remote = [RemotePart::Collected(part.clone())];
        let record = self
            .redo
            .log(&self.pmem, &self.layout, (part.region, txn), [], &remote, Decided::Here)?;
        self.redo.nothing_to_apply(record);
        Ok(PreparedPart { record, txn, part })
    }

    /// Parts found at `open` that are prepared for transactions of other nodes: their coordinators know whether to put
    /// them in place.
    pub fn prepared(&self) -> Vec<PreparedPart> {
        let found = self.redo.found().into_iter();
        let others = found.filter(|record| !record.is_decision());
        let parts = others.flat_map(
            |Undispatched {
                 record, txn, remote, ..
             }| {
                remote.into_iter().filter_map(move |part| match part {
                    RemotePart::Collected(part) => Some(PreparedPart { record, txn, part }),
                    RemotePart::Prepared(_) => None,
                })
            },
        );
        parts.collect()
    }
}
