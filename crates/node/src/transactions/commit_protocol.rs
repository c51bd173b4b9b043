//! How nodes agree on a transaction: what the coordinator has of a participant on another node, and how that node learns of the
//! end. Nodes collect and dispatch; two-phase commit is a feature of this crate, for comparison.

use crate::config::Transactions;
use crate::node::Node;
use crate::request::context::RequestContext;
use crate::transactions::dispatch::{Arrival, CollectDispatch};
#[cfg(feature = "two-phase")]
use crate::transactions::two_phase::TwoPhaseCommit;
use polvo_cluster::Links;
use polvo_format::{RegionId, TxnId};
use polvo_proto::{FsError, Intent, Outcome};
use polvo_region::RemotePart;
use std::rc::Rc;
use std::sync::Arc;

/// What a protocol does with a participant on another node. A participant that hears nothing asks how the transaction ended
/// (`Node::resolve`), so that none of this has to succeed for the cluster to come to rest.
pub(crate) trait CommitProtocol {
    /// What the coordinator keeps of it.
    type Part;

    /// Has it check, stage and lock what the transaction wants of a region.
    ///
    /// # Errors
    /// Its answer; nothing is locked there then, or it will ask.
    async fn join(
        ctx: &RequestContext<'_>,
        txn: TxnId,
        region: RegionId,
        intents: &[Intent],
        open: bool,
    ) -> Result<(Self::Part, Vec<Outcome>), FsError>;

    /// The transaction is decided: has the part put in place, and the locks let go after it. `in_doubt`: it may have been told
    /// before.
    async fn commit(
        node: &Arc<Node>,
        links: &Rc<Links>,
        txn: TxnId,
        part: &Self::Part,
        in_doubt: bool,
    ) -> Result<Arrival, FsError>;

    /// The transaction is given up: has the locks let go.
    async fn abort(ctx: &RequestContext<'_>, txn: TxnId, part: &Self::Part) -> Result<(), FsError>;
}

/// [`CommitProtocol::join`] by the node's protocol.
pub(crate) async fn join(
    ctx: &RequestContext<'_>,
    txn: TxnId,
    region: RegionId,
    intents: &[Intent],
    open: bool,
) -> Result<(RemotePart, Vec<Outcome>), FsError> {
    match ctx.node.config.transactions {
        Transactions::CollectDispatch => {
            let (part, outcomes) = Box::pin(CollectDispatch::join(ctx, txn, region, intents, open)).await?;
            Ok((RemotePart::Collected(part), outcomes))
        }
        #[cfg(feature = "two-phase")]
        Transactions::TwoPhaseCommit => {
            let (part, outcomes) = Box::pin(TwoPhaseCommit::join(ctx, txn, region, intents, open)).await?;
            Ok((RemotePart::Prepared(part), outcomes))
        }
    }
}

/// [`CommitProtocol::commit`] of a part, by the protocol that it came by.
pub(crate) async fn commit(
    node: &Arc<Node>,
    links: &Rc<Links>,
    txn: TxnId,
    part: &RemotePart,
    in_doubt: bool,
) -> Result<Arrival, FsError> {
    match part {
        RemotePart::Collected(part) => Box::pin(CollectDispatch::commit(node, links, txn, part, in_doubt)).await,
        #[cfg(feature = "two-phase")]
        RemotePart::Prepared(part) => Box::pin(TwoPhaseCommit::commit(node, links, txn, part, in_doubt)).await,
    }
}

/// [`CommitProtocol::abort`] of a part, by the protocol that it came by.
pub(crate) async fn abort(ctx: &RequestContext<'_>, txn: TxnId, part: &RemotePart) -> Result<(), FsError> {
    match part {
        RemotePart::Collected(part) => Box::pin(CollectDispatch::abort(ctx, txn, part)).await,
        #[cfg(feature = "two-phase")]
        RemotePart::Prepared(part) => Box::pin(TwoPhaseCommit::abort(ctx, txn, part)).await,
    }
}
