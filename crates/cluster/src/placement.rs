//! Which regions may get a new inode, how a new cluster is divided into regions, and who votes on its map.

use polvo_consensus::Voters;
use polvo_format::{Epoch, Ino, NodeId, REGIONS_MAX, RegionId};
use polvo_proto::{ClusterMap, Durability, NodeInfo, RegionInfo, Replica, ReplicaRole};

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

/// How many vote in a cluster of so many nodes: a majority of them is left when none, one or two are gone.
fn voters_of(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// The map of a new cluster: `per_node` regions a node, dealt out in turn, region 0 to the first node. The nodes with the lowest
/// numbers vote: one of up to two, three of three or four, five of more.
pub fn initial_map(cluster: [u8; 16], nodes: Vec<NodeInfo>, per_node: u16) -> ClusterMap {
    let count = nodes.len() * usize::from(per_node);
    assert!(
        count > 0 && count <= REGIONS_MAX,
        "a cluster has 1 to {REGIONS_MAX} regions"
    );
    let mut ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
    ids.sort();
    let voters = Voters::new(ids.into_iter().take(voters_of(nodes.len())));
    let region = |i: usize| RegionInfo {
        id: RegionId(i as u16),
        durability: Durability::default(),
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
        voters,
    }
}

/// The map of a new cluster whose regions are to have so many replicas each, the primary counted; as many as there are nodes where
/// they are fewer. The copies of one node's regions are dealt out to all others in turn, so that they share its work when it dies.
pub fn with_replicas(mut map: ClusterMap, replicas: u16) -> ClusterMap {
    let nodes: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
    let copies = usize::from(replicas.max(1)).min(nodes.len()) - 1;
    for (i, region) in map.regions.iter_mut().enumerate() {
        let (primary, others) = (i % nodes.len(), nodes.len() - 1);
        for copy in 0..copies {
            let step = 1 + (i / nodes.len() + copy) % others;
            region.replicas.push(Replica {
                node: nodes[(primary + step) % nodes.len()],
                role: ReplicaRole::Backup,
            });
        }
    }
    map
}

/// The map of a new cluster whose regions are to be as durable as that before a change is answered, where they have copies.
pub fn with_durability(mut map: ClusterMap, durability: Durability) -> ClusterMap {
    map.regions.iter_mut().for_each(|region| region.durability = durability);
    map
}

/// The next step in replacing a voter that is not `alive` by a node that is: it comes to vote beside the others, or, where that is
/// under way, the new voters come to stand alone. `None`: there is nothing to do, or nobody to take the place.
///
/// Where nodes do not agree on who is alive each may take its own step; the register orders them.
pub fn next_voters(map: &ClusterMap, alive: impl Fn(NodeId) -> bool) -> Option<Voters> {
    let voters = &map.voters;
    if voters.is_joint() {
        return voters.finished();
    }
    let gone = voters.now().find(|node| !alive(*node))?;
    let mut ids: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
    ids.sort();
    let taker = ids
        .into_iter()
        .find(|node| alive(*node) && voters.now().all(|voter| voter != *node))?;
    let others = voters.now().filter(|node| *node != gone);
    voters.with_next(others.chain([taker]))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn voters(ids: &[u16]) -> Voters {
        Voters::new(ids.iter().copied().map(NodeId))
    }

    #[test]
    fn the_nodes_with_the_lowest_numbers_vote() {
        for (nodes, voting) in [
            (1, &[0][..]),
            (2, &[0]),
            (3, &[0, 1, 2]),
            (4, &[0, 1, 2]),
            (5, &[0, 1, 2, 3, 4]),
            (9, &[0, 1, 2, 3, 4]),
        ] {
            let map = cluster(nodes, 2);
            assert_eq!(map.voters, voters(voting), "{nodes} nodes");
            assert_eq!(map.check(), Ok(()));
        }
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        let map = initial_map([7; 16], [9, 2, 7, 5].map(node).to_vec(), 1);
        assert_eq!(map.voters, voters(&[2, 5, 7]));
    }

    #[test]
    fn a_voter_that_is_gone_is_replaced_in_two_steps_by_a_node_that_is_there() {
        let mut map = cluster(5, 1);
        map.voters = voters(&[0, 1, 2]);
        let alive = |gone: &'static [u16]| move |node: NodeId| !gone.contains(&node.0);
        assert_eq!(next_voters(&map, alive(&[])), None, "all are there");
        assert_eq!(next_voters(&map, alive(&[3, 4])), None, "they do not vote");
        assert_eq!(next_voters(&map, alive(&[1, 3, 4])), None, "nobody takes the place");
        let joint = next_voters(&map, alive(&[1, 3])).unwrap();
        assert_eq!(Some(&joint), map.voters.with_next([0, 2, 4].map(NodeId)).as_ref());
        assert!(joint.may_follow(&map.voters));
        map.voters = joint;
        // whoever is gone by then: the step that was begun is finished
        for gone in [&[][..], &[0, 4]] {
            assert_eq!(next_voters(&map, alive(gone)), Some(voters(&[0, 2, 4])));
        }
        map.voters = voters(&[0, 2, 4]);
        assert_eq!(next_voters(&map, alive(&[1])), None);
        // of two that are gone one after the other
        let joint = next_voters(&map, alive(&[2, 4])).unwrap();
        assert_eq!(joint.finished(), Some(voters(&[0, 4, 1])));
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
    fn copies_lie_on_different_nodes_and_all_of_them_have_some() {
        for (nodes, replicas) in [(1, 2), (2, 1), (2, 3), (3, 2), (3, 3), (5, 3)] {
            let map = with_replicas(cluster(nodes, 12), replicas);
            let mut copies = vec![0; usize::from(nodes)];
            for region in &map.regions {
                let mut on: Vec<u16> = region.replicas.iter().map(|replica| replica.node.0).collect();
                assert_eq!(on.len(), usize::from(replicas.min(nodes)));
                on[1..].iter().for_each(|node| copies[usize::from(*node)] += 1);
                on.sort_unstable();
                on.dedup();
                assert_eq!(on.len(), region.replicas.len(), "{region:?}");
                assert_eq!(region.primary(), Some(NodeId(region.id.0 % nodes)));
            }
            let expected = 12 * (replicas.min(nodes) - 1);
            assert!(
                copies.iter().all(|count| *count == expected),
                "{nodes} nodes, {replicas} replicas: {copies:?}"
            );
        }
    }

    #[test]
    fn one_node_is_enough() {
        let map = cluster(1, 2);
        let [a, b] = candidates(&map, Ino(1), b"x");
        assert!(map.region(a).is_some() && map.region(b).is_some());
    }
}
