//! A node is taken into the map, as an operator says. It has no region then, and does not vote: regions are brought to it
//! ([`move_copy`](crate::replication::move_copy), [`hand_over`](crate::replication::hand_over)), and where a cluster of so many nodes has more
//! voters it comes to vote once it is there ([`following`](super::following)).
//!
//! Invariants:
//!
//! - A number is a node's for good: what others know of the pool that had it (whether a copy of it is an old one, who may write here) holds
//!   of no other pool.
//! - A node that is not in the map is answered no question of nodes, and serves nothing. One that was in none before waits for this, and
//!   keeps no map in its pool that does not name it: it is not one that was removed.

use crate::node::Node;
use polvo_cluster::{Links, with_node};
use polvo_fabric::Address;
use polvo_proto::{ClusterMap, FsError, NodeInfo};
use std::rc::Rc;
use std::sync::Arc;

/// A node has no more addresses than this.
const ADDRESSES_MAX: usize = 16;
/// Longest address and name of a machine, in bytes.
const TEXT_MAX: usize = 255;

impl Node {
    /// See [`polvo_proto::Request::AddNode`].
    pub(crate) async fn add_node(
        self: &Arc<Self>,
        links: &Rc<Links>,
        new: &NodeInfo,
    ) -> Result<Arc<ClusterMap>, FsError> {
        let refused = |why: String| FsError::Invalid(format!("node {} cannot be added: {why}", new.id.0));
        let known = self.confirm_map(links).await?;
        may_add(&known, new).map_err(refused)?;
        if known.node(new.id).is_none() && self.space.peer(new.id).is_some() {
            return Err(refused("there was one of this number before; give it another".into()));
        }
        let add = |map: &ClusterMap| may_add(map, new).ok().and_then(|()| with_node(map, new));
        let map = self.change_map(links, add).await?;
        may_add(&map, new).map_err(refused)?;
        if known.node(new.id).is_none() {
            tracing::warn!(node = new.id.0, addresses = ?new.addresses, "was added to the cluster");
        }
        Ok(map)
    }
}

/// May it be in this map, or is it?
///
/// # Errors
/// Why not.
fn may_add(map: &ClusterMap, new: &NodeInfo) -> Result<(), String> {
    if new.addresses.is_empty() || new.addresses.len() > ADDRESSES_MAX {
        return Err(format!(
            "it has {} addresses, and may have 1 to {ADDRESSES_MAX}",
            new.addresses.len()
        ));
    }
    if new.host.len() > TEXT_MAX || new.addresses.iter().any(|address| address.len() > TEXT_MAX) {
        return Err(format!(
            "an address or the name of its machine is longer than {TEXT_MAX} bytes"
        ));
    }
    for address in &new.addresses {
        address.parse::<Address>().map_err(|why| why.to_string())?;
    }
    match map.node(new.id) {
        Some(there) if there.addresses == new.addresses => return Ok(()),
        Some(there) => return Err(format!("there is one already, at {}", there.addresses.join(", "))),
        None => {}
    }
    let is_at = |address: &String| map.nodes.iter().find(|node| node.addresses.contains(address));
    match new.addresses.iter().find_map(is_at) {
        Some(other) => Err(format!("node {} has one of its addresses", other.id.0)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_format::NodeId;
    use polvo_proto::RegionSet;

    fn node(id: u16, addresses: &[&str]) -> NodeInfo {
        NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_number_and_an_address_are_one_nodes() {
        let nodes = vec![node(0, &["tcp://a:1", "shm:///a"]), node(1, &["tcp://b:1"])];
        let map = initial_map([7; 16], nodes, 2, &[RegionSet::default()]);
        let why = |id, addresses: &[&str]| may_add(&map, &node(id, addresses)).err().unwrap_or_default();
        assert_eq!(why(2, &["tcp://c:1", "shm:///c"]), "");
        assert_eq!(why(1, &["tcp://b:1"]), "", "it is there");
        assert_eq!(why(1, &["tcp://c:1"]), "there is one already, at tcp://b:1");
        assert_eq!(why(2, &["tcp://c:1", "shm:///a"]), "node 0 has one of its addresses");
        assert!(why(2, &[]).starts_with("it has 0 addresses"));
        assert!(why(2, &["tcp://c:1"; 17]).starts_with("it has 17 addresses"));
        assert!(why(2, &["nowhere"]).contains("nowhere"), "{}", why(2, &["nowhere"]));
        assert!(why(2, &[&format!("tcp://{}:1", "c".repeat(300))]).contains("longer than"));
        let grown = with_node(&map, &node(5, &["tcp://c:1"])).unwrap();
        assert_eq!(grown.check(), Ok(()));
        assert_eq!(grown.nodes.len(), 3);
        assert_eq!(
            (grown.regions.clone(), grown.voters.clone()),
            (map.regions.clone(), map.voters.clone())
        );
        assert_eq!(with_node(&grown, &node(5, &["tcp://c:1"])), None);
    }
}
