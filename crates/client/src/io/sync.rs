//! Durability, where nodes need to be asked for it: against power loss, or against the loss of a node whose mirrors are behind
//! ([`polvo_proto::Durability::Async`]). What was lost with one before it could be asked is said once to each open file.

use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use polvo_cluster::join_all;
use polvo_format::{NodeId, RegionId};
use polvo_proto::{FsError, ask};
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

/// Changes of this client that it has not asked to be made durable since: of a file, or of all else.
#[derive(Default)]
pub(crate) struct Unsynced {
    begun: AtomicU64,
    /// How many had begun when others were made durable.
    synced: AtomicU64,
    /// How often some may have been lost.
    losses: AtomicU64,
}

impl Unsynced {
    /// One more begins.
    pub fn changing(&self) {
        self.begun.fetch_add(1, AcqRel);
    }

    /// Another node has taken the place of the primary, which may have been ahead of it.
    pub fn primary_lost(&self) {
        if self.begun.load(Acquire) > self.synced.load(Acquire) {
            self.losses.fetch_add(1, AcqRel);
        }
    }

    /// How often changes may have been lost.
    pub fn losses(&self) -> u64 {
        self.losses.load(Acquire)
    }

    /// What had `begun` when a node was asked is durable, unless somebody has not been `told` of a loss yet. He is now.
    ///
    /// # Errors
    /// [`FsError::Io`], once.
    fn synced(&self, begun: u64, told: &AtomicU64) -> Result<(), FsError> {
        let losses = self.losses();
        if told.swap(losses, AcqRel) != losses {
            return Err(FsError::Io(
                "changes that were not synced may be lost: another node has taken the place of the one that had them"
                    .into(),
            ));
        }
        self.synced.fetch_max(begun, AcqRel);
        Ok(())
    }
}

impl LocalClient {
    /// Makes what was written durable, where nodes need to be asked. `None`: everywhere.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when a node that has to be asked cannot be; [`FsError::Io`], once, where something of the file, or of
    /// names and attributes (`None`), may have been lost before.
    pub async fn sync(&self, file: Option<&OpenFile>) -> Result<(), FsError> {
        let (unsynced, told) = match file {
            Some(file) => (&file.open_inode.unsynced, &file.losses_told),
            None => (&self.client.unsynced, &self.client.losses_told),
        };
        let begun = unsynced.begun.load(Acquire);
        match file {
            Some(file) => self.sync_region(data_region(&file.open_inode)).await?,
            None => {
                let nodes: Vec<NodeId> = self.client.map().nodes.iter().map(|node| node.id).collect();
                for answer in join_all(nodes.into_iter().map(|node| self.sync_node(node))).await {
                    answer?;
                }
            }
        }
        unsynced.synced(begun, told)
    }

    /// Whether no node has to be asked: then none is any more, and one that joins later and would have to be makes each change of
    /// this client's durable by itself. False also while a node cannot be reached.
    pub async fn needs_no_sync(&self) -> bool {
        if !self.is_durable_everywhere().await {
            return false;
        }
        // a node may have been started anew since, and have heard that it is asked
        self.client.context.set_syncs(false);
        let is_so = self.is_durable_everywhere().await;
        self.client.context.set_syncs(!is_so);
        is_so
    }

    async fn is_durable_everywhere(&self) -> bool {
        let map = self.client.map();
        for node in map.nodes.iter().map(|node| node.id) {
            let needs_sync = match self.colocated_in(node) {
                Some(here) => here.node.needs_sync(),
                None => match self.links.at_once(node).await {
                    Ok(link) => link.needs_sync,
                    Err(_) => true,
                },
            };
            if needs_sync {
                return false;
            }
        }
        true
    }

    /// Asks whoever serves a region, if that has to be asked.
    async fn sync_region(&self, region: RegionId) -> Result<(), FsError> {
        // a node here knows best, and asking costs nothing
        let needed = self.colocated(region).is_some() || self.links.to_primary(region).await?.needs_sync;
        match needed {
            true => self.call(region, ask::Sync).await,
            false => Ok(()),
        }
    }

    /// Asks a node, if it has to be asked; one that is away only while it serves anything: others are asked, too, and have what it had.
    async fn sync_node(&self, node: NodeId) -> Result<(), FsError> {
        if self.colocated_in(node).is_some() {
            return self.call_node(node, ask::Sync).await;
        }
        let asked = async {
            match self.links.to(node).await?.needs_sync {
                true => self.call_node(node, ask::Sync).await,
                false => Ok(()),
            }
        };
        let answer = self.links.while_it_serves(node, asked).await;
        match answer {
            Err(FsError::Unreachable { .. }) if !self.client.map().serves(node) => Ok(()),
            answer => answer,
        }
    }
}
