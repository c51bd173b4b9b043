//! Durability against power loss, where the medium needs to be asked for it.

use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use polvo_cluster::join_all;
use polvo_format::NodeId;
use polvo_proto::{FsError, ask};

impl LocalClient {
    /// Makes what was written durable against power loss, where the medium needs to be asked. `None`: everywhere.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when a node that has to be asked cannot be.
    pub async fn sync(&self, file: Option<&OpenFile>) -> Result<(), FsError> {
        let nodes = match file {
            Some(file) => vec![self.client.primary(data_region(&file.open_inode))?],
            None => self.client.map().nodes.iter().map(|node| node.id).collect(),
        };
        for answer in join_all(nodes.into_iter().map(|node| self.sync_at(node))).await {
            answer?;
        }
        Ok(())
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

    async fn sync_at(&self, node: NodeId) -> Result<(), FsError> {
        let needed = match self.colocated_in(node) {
            Some(_) => true, // it knows best, and asking costs nothing
            None => self.links.to(node).await?.needs_sync,
        };
        if !needed {
            return Ok(());
        }
        self.call_node(node, ask::Sync).await
    }
}
