//! Two-phase commit, for comparison with collect-dispatch (Octopus 3.3.2), a feature of this crate: a participant stages and locks as it does when
//! it is collected from, but logs its part itself and votes; the coordinator's record names the participants and holds
//! none of their bytes; each is told to commit, puts its part in place, unlocks and forgets it.
//!
//! A prepared part lies in the participant's redo log as a record whose one remote part is the participant's own region.
//! The transaction's id says whose decision it waits for: a record of the region's own transactions is a decision. A
//! participant that hears nothing asks (`Node::resolve`), before and after a restart.

use crate::error::to_fs;
use crate::node::Node;
use crate::region_service::{OnBehalf, RegionService};
use crate::request::context::RequestContext;
use crate::transactions::commit_protocol::CommitProtocol;
use crate::transactions::dispatch::Arrival;
use parking_lot::Mutex;
use polvo_cluster::Links;
use polvo_format::{RegionId, TxnId};
use polvo_proto::{Cred, FsError, Intent, Outcome, ask};
use polvo_region::{CollectedPart, PreparedPart};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The coordinator keeps nothing of a participant but where it is.
pub(crate) struct TwoPhaseCommit;

/// Parts that this node has prepared for transactions of other nodes.
#[derive(Default)]
pub(crate) struct Prepared {
    parts: Mutex<BTreeMap<(RegionId, TxnId), PreparedPart>>,
}

impl Prepared {
    /// Found in the log at a start.
    pub fn found(parts: impl IntoIterator<Item = PreparedPart>) -> Prepared {
        let prepared = Prepared::default();
        parts.into_iter().for_each(|part| prepared.add(part));
        prepared
    }

    fn add(&self, prepared: PreparedPart) {
        let key = (prepared.part.region, prepared.txn);
        let before = self.parts.lock().insert(key, prepared);
        assert!(before.is_none(), "a region prepares a transaction once");
    }

    /// Whose decision is waited for, and where.
    pub fn waiting(&self) -> Vec<(RegionId, TxnId)> {
        self.parts.lock().keys().copied().collect()
    }
}

impl Node {
    /// Participant, first phase: stages, locks and logs its part. What it returns is its vote for the transaction.
    ///
    /// # Errors
    /// Its vote against; nothing is held then.
    pub(crate) async fn prepare_here(
        &self,
        service: &Arc<RegionService>,
        txn: TxnId,
        intents: &[Intent],
        on_behalf: &OnBehalf,
    ) -> Result<Vec<Outcome>, FsError> {
        let collected = self.collect_here(service, txn, intents, on_behalf).await?;
        let (part, outcomes) = CollectedPart::new(service.id, collected, intents.len())?;
        match self.space.log_prepared(txn, part) {
            Ok(prepared) => {
                self.prepared.add(prepared);
                Ok(outcomes)
            }
            Err(error) => {
                service.enter(|region| region.abort(txn));
                Err(to_fs(error))
            }
        }
    }

    /// Participant, second phase: puts its part in place, or gives it up; durable on return. What is not prepared (any
    /// more) has been concluded before.
    pub(crate) fn conclude(&self, txn: TxnId, region: RegionId, commit: bool) -> Result<(), FsError> {
        let mut parts = self.prepared.parts.lock();
        let Some(prepared) = parts.get(&(region, txn)) else {
            return Ok(());
        };
        let service = self.service(region).ok_or(FsError::WrongEpoch)?;
        match commit {
            true => service.dispatch(txn, &prepared.part)?,
            false => service.unlock(txn, &prepared.part.locks),
        }
        self.space.retire(prepared.record);
        parts.remove(&(region, txn));
        Ok(())
    }
}

impl CommitProtocol for TwoPhaseCommit {
    type Part = RegionId;

    async fn join(
        ctx: &RequestContext<'_>,
        txn: TxnId,
        region: RegionId,
        intents: &[Intent],
        open: bool,
    ) -> Result<(RegionId, Vec<Outcome>), FsError> {
        let prepare = ask::Prepare {
            txn,
            region,
            on_behalf: ctx.session.id,
            open,
            intents: intents.to_vec(),
        };
        match ctx.ask_region(region, prepare).await? {
            outcomes if outcomes.len() == intents.len() => Ok((region, outcomes)),
            _ => Err(FsError::Io(format!(
                "the primary of region {} prepared something else",
                region.0
            ))),
        }
    }

    async fn commit(
        _: &Arc<Node>,
        links: &Rc<Links>,
        txn: TxnId,
        region: &RegionId,
        _in_doubt: bool,
    ) -> Result<Arrival, FsError> {
        conclude(links, txn, *region, true).await.map(|()| Arrival::There)
    }

    async fn abort(ctx: &RequestContext<'_>, txn: TxnId, region: &RegionId) -> Result<(), FsError> {
        conclude(ctx.links, txn, *region, false).await
    }
}

/// Coordinator, second phase: tells a participant how it ended.
async fn conclude(links: &Links, txn: TxnId, region: RegionId, commit: bool) -> Result<(), FsError> {
    links
        .call_region(region, Cred::Kernel, ask::Conclude { txn, region, commit })
        .await
}
