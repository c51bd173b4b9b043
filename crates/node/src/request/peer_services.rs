//! What nodes ask of each other.

use crate::region_service::RegionService;
use crate::request::context::RequestContext;
use crate::request::sessions::Party;
use polvo_format::{NodeId, PoolPast, RegionId, SessionId, TxnId};
use polvo_proto::{Answer, FsError, InodeRef, Intent, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl RequestContext<'_> {
    /// The node that asks; clients are refused.
    pub(crate) fn asking_node(&self) -> Result<NodeId, FsError> {
        match self.session.party {
            Party::Node(node) => Ok(node),
            Party::Client => Err(FsError::NotPermitted),
        }
    }

    /// The pool of the node that asks, and ours.
    pub fn past(&self, theirs: &PoolPast) -> Answer {
        let node = self.asking_node()?;
        let seen = self.node.context.pools().see(node, theirs);
        seen.inspect_err(|error| tracing::error!(%error, "refused"))?;
        Ok(Reply::Past(self.node.space.past()))
    }

    pub async fn collect(
        &self,
        txn: TxnId,
        region: RegionId,
        on_behalf: SessionId,
        open: bool,
        intents: &[Intent],
    ) -> Answer {
        let (service, open_for) = self.participant(txn, region, open.then_some(on_behalf))?;
        let collected = self.node.collect_here(service, txn, intents, open_for).await?;
        Ok(Reply::Collected(collected))
    }

    #[cfg(feature = "two-phase")]
    pub async fn prepare(
        &self,
        txn: TxnId,
        region: RegionId,
        on_behalf: SessionId,
        open: bool,
        intents: &[Intent],
    ) -> Answer {
        let (service, open_for) = self.participant(txn, region, open.then_some(on_behalf))?;
        let outcomes = self.node.prepare_here(service, txn, intents, open_for).await?;
        Ok(Reply::Prepared(outcomes))
    }

    /// The region that takes part in a transaction of the node that asks, and the session that is to hold the new inode,
    /// made known here.
    fn participant(
        &self,
        txn: TxnId,
        region: RegionId,
        open_for: Option<SessionId>,
    ) -> Result<(&Arc<RegionService>, Option<SessionId>), FsError> {
        if self.asking_node()? != txn.node() {
            return Err(FsError::NotPermitted);
        }
        let service = self.service(region)?;
        if let Some(session) = open_for {
            self.node.sessions.ensure(session, self.node.tick.load(Relaxed))?;
        }
        Ok((service, open_for))
    }

    #[cfg(feature = "two-phase")]
    pub fn conclude(&self, txn: TxnId, region: RegionId, commit: bool) -> Answer {
        if self.asking_node()? != txn.node() {
            return Err(FsError::NotPermitted);
        }
        self.service(region)?;
        self.node.conclude(txn, region, commit)?;
        Ok(Reply::Done)
    }

    pub fn txn_state(&self, txn: TxnId) -> Answer {
        self.asking_node()?;
        if txn.node() != self.node.id() {
            return Err(FsError::Invalid(format!("{txn:?} is not coordinated here")));
        }
        Ok(Reply::TxnState(self.node.txn_state(txn)))
    }

    pub fn rename_lock(&self, txn: TxnId, release: bool) -> Answer {
        self.asking_node()?;
        self.service(polvo_format::Ino::ROOT.region())?;
        Ok(Reply::Granted(self.node.grant_rename(txn, release)?))
    }

    pub async fn parent(&self, inode: InodeRef) -> Answer {
        self.asking_node()?;
        Ok(Reply::Parent(self.on(inode.ino.region(), |r| r.parent(inode)).await?))
    }
}
