//! Which regions may get a new inode, and how a new cluster is divided into regions.

use polvo_format::{Epoch, Ino, RegionId};
use polvo_proto::{ClusterMap, NodeInfo, RegionInfo, Replica, ReplicaRole};

/// Hash of a name in a directory: FNV-1a, finished with the mixer of SplitMix64. It must never change: nothing on the
/// media depends on it, but nodes of different versions should place alike.
fn hash(dir: Ino, name: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for byte in dir.0.to_le_bytes().iter().chain(name) {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mix(h)
}

fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// Two candidate regions of a name, by hash (placement by two choices): on different nodes where there are several.
/// Panics on a map without regions, which no cluster has.
pub fn candidates(map: &ClusterMap, dir: Ino, name: &[u8]) -> [RegionId; 2] {
    assert!(!map.regions.is_empty(), "a cluster map has at least region 0");
    let regions = &map.regions;
    let pick = |h: u64| &regions[(h % regions.len() as u64) as usize];
    let start = hash(dir, name);
    let first = pick(start);
    let mut second = start;
    // in a cluster of one node there is no other one to be found
    for _ in 0..if map.nodes.len() > 1 { 16 } else { 1 } {
        second = mix(second.wrapping_add(0x9e37_79b9_7f4a_7c15));
        if pick(second).primary() != first.primary() {
            break;
        }
    }
    [first.id, pick(second).id]
}

/// Regions of a new cluster: `per_node` regions a node, dealt out in turn, region 0 to the first node.
pub fn initial_map(cluster: [u8; 16], nodes: Vec<NodeInfo>, per_node: u16) -> ClusterMap {
    let count = nodes.len() * usize::from(per_node);
    assert!(count > 0 && count <= 1 << 16, "a cluster has 1 to 65536 regions");
    let region = |i: usize| RegionInfo {
        id: RegionId(i as u16),
        epoch: Epoch(1),
        replicas: vec![Replica {
            node: nodes[i % nodes.len()].id,
            role: ReplicaRole::Primary,
        }],
    };
    let regions = (0..count).map(region).collect();
    ClusterMap {
        cluster,
        epoch: Epoch(1),
        nodes,
        regions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::NodeId;

    fn cluster(nodes: u16, per_node: u16) -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        initial_map([7; 16], (0..nodes).map(node).collect(), per_node)
    }

    #[test]
    fn regions_are_dealt_out_in_turn() {
        let map = cluster(3, 4);
        assert_eq!(map.regions.len(), 12);
        for (i, region) in map.regions.iter().enumerate() {
            assert_eq!(
                (region.id.0 as usize, region.primary()),
                (i, Some(NodeId((i % 3) as u16)))
            );
        }
    }

    #[test]
    fn candidates_lie_on_different_nodes_and_use_all_of_them() {
        let map = cluster(3, 4);
        let mut first_on = [0u32; 3];
        let mut second_on = [0u32; 3];
        for i in 0..9_000u32 {
            let [a, b] = candidates(&map, Ino(1), &i.to_le_bytes());
            let (a, b) = (map.primary(a).unwrap().0 as usize, map.primary(b).unwrap().0 as usize);
            assert_ne!(a, b);
            first_on[a] += 1;
            second_on[b] += 1;
        }
        for count in first_on.into_iter().chain(second_on) {
            assert!((2_700..3_300).contains(&count), "{first_on:?} {second_on:?}");
        }
    }

    #[test]
    fn one_node_is_enough() {
        let map = cluster(1, 2);
        let [a, b] = candidates(&map, Ino(1), b"x");
        assert!(map.region(a).is_some() && map.region(b).is_some());
    }
}
