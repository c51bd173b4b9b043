//! What nodes ask of each other.

use crate::sessions::Party;
use crate::turn::Turn;
use polvo_format::{NodeId, RegionId, SessionId, TxnId};
use polvo_proto::{Answer, FsError, InodeRef, Intent, Reply};
use std::sync::atomic::Ordering::Relaxed;

impl Turn<'_> {
    /// The node that asks; clients are refused.
    pub(crate) fn asking_node(&self) -> Result<NodeId, FsError> {
        match self.session.party {
            Party::Node(node) => Ok(node),
            Party::Client => Err(FsError::NotPermitted),
        }
    }

    pub async fn collect(
        &self,
        txn: TxnId,
        region: RegionId,
        on_behalf: SessionId,
        open: bool,
        intents: &[Intent],
    ) -> Answer {
        if self.asking_node()? != txn.node() {
            return Err(FsError::NotPermitted);
        }
        let served = self.served(region)?;
        if open {
            self.node.sessions.ensure(on_behalf, self.node.tick.load(Relaxed))?;
        }
        let collected = self
            .node
            .collect_here(served, txn, intents, open.then_some(on_behalf))
            .await?;
        Ok(Reply::Collected(collected))
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
        self.served(polvo_format::Ino::ROOT.region())?;
        Ok(Reply::Granted(self.node.grant_rename(txn, release)?))
    }

    pub async fn parent(&self, inode: InodeRef) -> Answer {
        self.asking_node()?;
        Ok(Reply::Parent(self.on(inode.ino.region(), |r| r.parent(inode)).await?))
    }
}
