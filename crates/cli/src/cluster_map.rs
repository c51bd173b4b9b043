//! From the configuration's list of nodes to the static cluster map.

use crate::ClusterId;
use crate::config::{Config, ConfigNode};
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
/// host is what the configuration says; left out, it is this machine for this node and for nodes at loopback addresses. Nodes that were
/// added have none of the regions in it, and do not vote.
pub fn cluster_map(config: &Config, cluster: ClusterId) -> ClusterMap {
    assert!(
        config.nodes.iter().any(|node| node.id == config.node),
        "the configuration names node {}",
        config.node.0
    );
    let here = host_identity();
    let info = |node: &ConfigNode| {
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
    };
    let (added, first): (Vec<&ConfigNode>, Vec<&ConfigNode>) = config.nodes.iter().partition(|node| node.added);
    let first = first.into_iter().map(info).collect();
    let mut map = initial_map(cluster.0, first, config.regions_per_node, &config.sets);
    map.nodes.extend(added.into_iter().map(info));
    map.nodes.sort_by_key(|node| node.id);
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_template::TEMPLATE;
    use polvo_format::NodeId;
    use polvo_proto::ReplicaRole;
    use std::path::Path;

    #[test]
    fn each_region_has_as_many_replicas_as_the_configuration_says() {
        for replicas in [1, 2] {
            let text = TEMPLATE.replacen("# replicas = 1", &format!("replicas = {replicas}"), 1);
            let config = Config::parse(&text, Path::new("/etc/p.toml")).unwrap();
            let map = cluster_map(&config, ClusterId([7; 16]));
            assert_eq!(map.regions.len(), 8);
            for region in &map.regions {
                let primary = region.id.0 % 2;
                let roles = [(primary, ReplicaRole::Primary), (1 - primary, ReplicaRole::Backup)];
                let expected = roles.map(|(node, role)| (NodeId(node), role));
                let found: Vec<_> = region.replicas.iter().map(|r| (r.node, r.role)).collect();
                assert_eq!(found, expected[..replicas]);
            }
        }
    }

    #[test]
    fn a_node_that_was_added_has_none_of_the_first_regions() {
        let template = TEMPLATE.replacen("id = 1\naddresses", "id = 1\nadded = true\naddresses", 1);
        let grown = Config::parse(&template, Path::new("/etc/p.toml")).unwrap();
        let map = cluster_map(&grown, ClusterId([7; 16]));
        assert_eq!(map.check(), Ok(()));
        assert_eq!((map.nodes.len(), map.regions.len()), (2, 4));
        assert!(
            map.regions
                .iter()
                .all(|info| info.primary() == Some(NodeId(0)) && info.replicas.len() == 1)
        );
        assert!(map.voters.all().eq([NodeId(0)]));
        let nobody = template.replacen("# added = false", "added = true", 1);
        let why = Config::parse(&nobody, Path::new("/etc/p.toml"))
            .unwrap_err()
            .to_string();
        assert!(why.contains("all nodes are added"), "{why}");
    }
}
