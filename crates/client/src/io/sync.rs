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
