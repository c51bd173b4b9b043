//! What a node is started with.

use crate::housekeeping::scrub::ScrubPace;
use crate::transactions::commit_protocol::Transactions;
use polvo_cluster::Timeouts;
use polvo_fabric::{Address, Identity};
use polvo_format::NodeId;
use polvo_proto::ClusterMap;

/// To whom a node gives one-sided access to file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OneSided {
    /// To all who know the cluster's secret.
    #[default]
    All,
    /// To nodes (and what lives in them); for clients the node moves the data itself.
    Nodes,
}

/// What a node is started with.
#[derive(Clone)]
pub struct NodeConfig {
    /// Who.
    pub id: NodeId,
    /// Handshake; its role is this node's.
    pub identity: Identity,
    /// Where to listen.
    pub listen: Vec<Address>,
    /// The cluster map to start with.
    pub map: ClusterMap,
    /// Limits.
    pub timeouts: Timeouts,
    /// How transactions that it coordinates are carried out.
    pub transactions: Transactions,
    /// Shown in status.
    pub name: String,
    /// To whom one-sided access to file data is given.
    pub one_sided: OneSided,
    /// Serve the pool although other nodes have seen a later copy of it: what was done since this copy is lost.
    pub accept_older_pool: bool,
    /// File data is compared with its checksums unasked; `None`: never.
    pub scrub: Option<ScrubPace>,
}
