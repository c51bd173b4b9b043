//! From the configuration's list of nodes to the static cluster map.

use crate::ClusterId;
use crate::config::Config;
use polvo_cluster::{host_identity, initial_map};
use polvo_fabric::Address;
use polvo_proto::{ClusterMap, NodeInfo};

/// True for an address that leads to this machine wherever it is used.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Shm(_) => false,
        Address::Sim(_) => false,
        Address::Tcp(at) => {
            let host = at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host);
            host == "localhost" || host == "[::1]" || host.starts_with("127.")
        }
    }
}

/// The map that every node of the cluster makes from its configuration: they agree because the lists agree. A node's
/// host is what the configuration says; left out, it is this machine for this node and for nodes at loopback addresses.
pub fn cluster_map(config: &Config, cluster: ClusterId) -> ClusterMap {
    assert!(
        config.nodes.iter().any(|node| node.id == config.node),
        "the configuration names node {}",
        config.node.0
    );
    let here = host_identity();
    let nodes = config.nodes.iter().map(|node| {
        let local = node.id == config.node || node.addresses.iter().any(is_local);
        let host = node
            .host
            .clone()
            .unwrap_or_else(|| if local { here.clone() } else { String::new() });
        NodeInfo {
            id: node.id,
            host,
            addresses: node.addresses.iter().map(Address::to_string).collect(),
        }
    });
    initial_map(cluster.0, nodes.collect(), config.regions_per_node)
}
