//! What a node is started with.

use polvo_cluster::Timeouts;
use polvo_fabric::{Address, Identity};
use polvo_format::NodeId;
use polvo_proto::ClusterMap;
use std::num::NonZeroUsize;
use std::time::Duration;

/// To whom a node gives one-sided access to file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OneSided {
    /// To all who know the cluster's secret.
    #[default]
    All,
    /// To nodes and colocated clients; for remote clients the node moves the data itself.
    Nodes,
}

/// How transactions that concern several nodes are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transactions {
    /// The coordinator alone logs, and writes the participants' bytes by one-sided operations (Octopus 3.3.2).
    #[default]
    CollectDispatch,
    /// Every participant logs its own part and is asked twice.
    #[cfg(feature = "two-phase")]
    TwoPhaseCommit,
}

impl Transactions {
    /// Participants have to act before the caller may be answered.
    pub(crate) fn is_awaited(self) -> bool {
        self != Transactions::CollectDispatch
    }
}

/// When and how fast a node scrubs unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubPace {
    /// From the end of one scrub to the beginning of the next, and from the start to the first.
    pub every: Duration,
    /// Bytes a second.
    pub rate: u64,
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
    /// The copy of a node that has been away for so long is made elsewhere; `None`: never.
    pub replace_after: Option<Duration>,
    /// Threads that serve connections.
    pub reactors: NonZeroUsize,
}
