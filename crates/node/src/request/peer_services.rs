//! What nodes ask of each other.

use crate::names::rename_lock::Holder;
use crate::region_service::{OnBehalf, RegionService};
use crate::request::context::RequestContext;
use crate::request::sessions::Party;
use polvo_consensus::register::{Answer, Ask};
use polvo_format::{NodeId, PoolPast, RegionId, SessionId, TxnId};
use polvo_proto::{ClusterMap, Collected, FsError, InodeRef, Intent, TxnState, Usage};
use polvo_region::planted::{Planted, planted};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl RequestContext<'_> {
    /// The node that asks; clients are refused, and so is one that was removed.
    pub(crate) fn asking_node(&self) -> Result<NodeId, FsError> {
        match self.session.party {
            Party::Node(node) if self.node.map().node(node).is_some() => Ok(node),
            Party::Node(_) | Party::Client => Err(FsError::NotPermitted),
        }
    }

    /// Space and inodes of the node that asks, and ours.
    pub fn share_usage(&self, theirs: Usage) -> Result<Usage, FsError> {
        let node = self.asking_node()?;
        self.node.utilization.learn(node, theirs);
        Ok(self.node.usage())
    }

    /// The pool of the node that asks, and ours.
    pub fn past(&self, theirs: &PoolPast) -> Result<PoolPast, FsError> {
        let node = self.asking_node()?;
        let seen = self.node.context.pools().see(node, theirs);
        seen.inspect_err(|error| tracing::error!(%error, "refused"))?;
        Ok(self.node.space.past())
    }

    /// A voter's answer.
    pub fn register(&self, ask: Ask<ClusterMap>) -> Result<Box<Answer<ClusterMap>>, FsError> {
        self.asking_node()?;
        self.node.vote(ask).map(Box::new)
    }

    /// A map that was chosen.
    pub fn new_map(&self, map: &ClusterMap) -> Result<(), FsError> {
        self.asking_node()?;
        self.node.is_map_of_ours(map)?;
        self.node.learn_map(map);
        Ok(())
    }

    pub async fn collect(
        &self,
        txn: TxnId,
        region: RegionId,
        on_behalf: SessionId,
        open: bool,
        intents: &[Intent],
    ) -> Result<Collected, FsError> {
        let (service, on_behalf) = self.participant(txn, region, on_behalf, open)?;
        let collected = self.node.collect_here(service, txn, intents, &on_behalf).await;
        // who takes over knows of the locks
        if !service.is_mirrored() && !planted(Planted::CollectedUnmirrored) {
            Box::pin(self.mirrored(service)).await?;
        }
        match collected {
            // here: asked again it is known anew
            Err(FsError::SessionExpired) => Err(FsError::Retry),
            collected => collected,
        }
    }

    #[cfg(feature = "two-phase")]
    pub async fn prepare(
        &self,
        txn: TxnId,
        region: RegionId,
        on_behalf: SessionId,
        open: bool,
        intents: &[Intent],
    ) -> Result<Vec<polvo_proto::Outcome>, FsError> {
        let (service, on_behalf) = self.participant(txn, region, on_behalf, open)?;
        self.node.prepare_here(service, txn, intents, &on_behalf).await
    }

    /// See [`polvo_proto::Request::FenceOff`].
    pub async fn fence_off(&self, deposed: NodeId) -> Result<(), FsError> {
        let asking = self.asking_node()?;
        if deposed == asking || deposed == self.node.id() {
            return Err(FsError::Invalid("a node fences others off".into()));
        }
        self.node.fence_off(deposed).await;
        Ok(())
    }

    /// Refuses all but the primary of the region whose transaction it is. Where that may be another one since, one of the two nodes
    /// has yet to learn it.
    fn must_coordinate(&self, txn: TxnId) -> Result<(), FsError> {
        let asking = self.asking_node()?;
        let map = self.node.map();
        match map.primary(txn.region()) == Some(asking) {
            true => Ok(()),
            false if self.links.has_copies(txn.region()) => Err(FsError::Retry),
            false => Err(FsError::NotPermitted),
        }
    }

    /// The region that takes part in a transaction of the node that asks, and for whom: a session that is to hold the new inode is
    /// made known here.
    fn participant(
        &self,
        txn: TxnId,
        region: RegionId,
        session: SessionId,
        opens: bool,
    ) -> Result<(&Arc<RegionService>, OnBehalf), FsError> {
        self.must_coordinate(txn)?;
        let service = self.service(region)?;
        let ensure = || self.node.sessions.ensure(session, self.node.tick.load(Relaxed));
        let opens = opens.then(ensure).transpose()?;
        Ok((service, OnBehalf { session, opens }))
    }

    #[cfg(feature = "two-phase")]
    pub fn conclude(&self, txn: TxnId, region: RegionId, commit: bool) -> Result<(), FsError> {
        self.must_coordinate(txn)?;
        self.service(region)?;
        self.node.conclude(txn, region, commit)
    }

    pub async fn txn_state(&self, txn: TxnId) -> Result<TxnState, FsError> {
        self.asking_node()?;
        let Some(service) = self.node.service(txn.region()) else {
            return Err(FsError::Invalid(format!("{txn:?} is not coordinated here")));
        };
        let state = self.node.txn_state(txn);
        // who serves the region in our place may know better
        self.mirrored(service).await?;
        Ok(state)
    }

    pub fn rename_lock(&self, txn: TxnId, release: bool) -> Result<u64, FsError> {
        let holder = Holder {
            txn,
            node: self.asking_node()?,
            epoch: self.epoch,
        };
        self.service(polvo_format::Ino::ROOT.region())?;
        self.node.grant_rename(holder, release)
    }

    pub async fn parent(&self, inode: InodeRef) -> Result<InodeRef, FsError> {
        self.asking_node()?;
        self.on(inode.ino.region(), |r| r.parent(inode)).await
    }
}
