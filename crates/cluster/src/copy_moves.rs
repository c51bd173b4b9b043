//! Copies of regions that go from one node to another, as an operator says: a cluster that has grown keeps some of what it has at the new
//! nodes, and what lacks a copy gets one.

use polvo_format::{Epoch, NodeId, RegionId};
use polvo_proto::{ClusterMap, RegionInfo, Replica, ReplicaRole};
use std::collections::{BTreeMap, BTreeSet};

/// A region's copy that is to be at another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MovedCopy {
    /// Of which region.
    pub region: RegionId,
    /// Who has it now, and is to have none then; `None`: the region has fewer than it is to have.
    pub from: Option<NodeId>,
    /// Who is to have it.
    pub to: NodeId,
}

/// A step by which a node gets a region's copy, and another one none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMove {
    /// It is to get one: where it is another one's there is one more meanwhile than the region is to have.
    Begin,
    /// The copy is being made.
    Waits,
    /// Both have it: the first one is to leave the set, and the list.
    End,
    /// It is so.
    Done,
}

/// What is to be done next for a copy to be where it is to be.
///
/// # Errors
/// Why that cannot be, in words.
pub fn next_of_move(map: &ClusterMap, moved: MovedCopy) -> Result<CopyMove, String> {
    let MovedCopy { region, from, to } = moved;
    let info = map.region(region).ok_or("there is no such region")?;
    if map.node(to).is_none() || from == Some(to) {
        return Err(format!("there is no other node {}", to.0));
    }
    let (has, wanted) = (info.replicas.len(), usize::from(info.region_set().replicas));
    let role_of_from = from.and_then(|from| info.role(from));
    match (role_of_from, info.role(to)) {
        (Some(ReplicaRole::Primary), _) => Err("the node that is to have no copy of it serves it".into()),
        (None, Some(ReplicaRole::Backup)) => Ok(CopyMove::Waits),
        (None, Some(_)) => Ok(CopyMove::Done),
        (None, None) if from.is_some() => {
            Err("the node that is to have no copy of it has none, nor has the other".into())
        }
        (None, None) if has < wanted => Ok(CopyMove::Begin),
        (None, None) => Err(format!("it has {wanted} replicas, as it is to have")),
        (Some(_), None) if has > wanted => Err("another copy of it is being moved".into()),
        (Some(_), None) => Ok(CopyMove::Begin),
        (Some(_), Some(_)) if has <= wanted => Err(format!("node {} has a copy of it already", to.0)),
        (Some(_), Some(ReplicaRole::Backup)) => Ok(CopyMove::Waits),
        (Some(_), Some(_)) => Ok(CopyMove::End),
    }
}

/// The map in which one more node is to get a copy of a region that `primary` serves. `None`: it has one, or is not in the map, or the
/// region is served elsewhere.
pub fn with_copy(map: &ClusterMap, primary: NodeId, region: RegionId, to: NodeId) -> Option<ClusterMap> {
    map.node(to)?;
    change_replicas(map, primary, region, |info| {
        let is_new = info.role(to).is_none();
        let role = ReplicaRole::Backup;
        info.replicas.extend(is_new.then_some(Replica { node: to, role }));
    })
}

/// The map in which a node has no copy any more of a region that `primary` serves. `None`: it has none, or is to leave the set first.
pub fn without_copy(map: &ClusterMap, primary: NodeId, region: RegionId, from: NodeId) -> Option<ClusterMap> {
    change_replicas(map, primary, region, |info| {
        let is_it = |replica: &Replica| replica.node == from && replica.role == ReplicaRole::Backup;
        info.replicas.retain(|replica| !is_it(replica));
    })
}

fn change_replicas(
    map: &ClusterMap,
    primary: NodeId,
    region: RegionId,
    change: impl FnOnce(&mut RegionInfo),
) -> Option<ClusterMap> {
    let mut changed = map.clone();
    changed.epoch = Epoch(map.epoch.0 + 1);
    let infos = &mut changed.regions;
    let info = infos
        .iter_mut()
        .find(|info| info.id == region && info.primary() == Some(primary))?;
    let before = info.replicas.len();
    change(info);
    info.epoch = changed.epoch;
    (info.replicas.len() != before).then_some(changed)
}

/// Which copies are to be elsewhere for the nodes that are `there` to have equally many regions, whether they serve them or have a copy; of
/// those regions alone that have copies. First come those that lack one, and those of which an earlier move was not finished.
pub fn spread_copies(map: &ClusterMap, there: &BTreeSet<NodeId>) -> Vec<MovedCopy> {
    let mut map = map.clone();
    let mut moves = Vec::new();
    while let Some(next) = next_to_spread(&map, there) {
        map = with_moved(&map, next);
        moves.push(next);
    }
    moves
}

/// The map as it is when that copy is there.
pub fn with_moved(map: &ClusterMap, moved: MovedCopy) -> ClusterMap {
    let mut map = map.clone();
    for info in map.regions.iter_mut().filter(|info| info.id == moved.region) {
        info.replicas.retain(|replica| Some(replica.node) != moved.from);
        if info.role(moved.to).is_none() {
            info.replicas.push(Replica {
                node: moved.to,
                role: ReplicaRole::Mirror,
            });
        }
    }
    map
}

/// How many regions each of these nodes keeps, whether it serves them or has a copy; of those that have copies.
pub fn kept_by(map: &ClusterMap, of: &BTreeSet<NodeId>) -> BTreeMap<NodeId, usize> {
    let mut loads: BTreeMap<NodeId, usize> = of.iter().map(|node| (*node, 0)).collect();
    let replicas = map.regions.iter().filter(|info| info.replicas.len() > 1);
    for replica in replicas.flat_map(|info| &info.replicas) {
        loads.entry(replica.node).and_modify(|load| *load += 1);
    }
    loads
}

fn next_to_spread(map: &ClusterMap, there: &BTreeSet<NodeId>) -> Option<MovedCopy> {
    let loads = kept_by(map, there);
    let load = |node: NodeId| loads.get(&node).copied().unwrap_or(usize::MAX);
    let wanted = |info: &RegionInfo| usize::from(info.region_set().replicas).min(map.nodes.len());
    let replicated = || map.regions.iter().filter(|info| info.replicas.len() > 1);
    let lacks = replicated()
        .filter(|info| info.replicas.len() < wanted(info))
        .find_map(|info| {
            let free = there.iter().filter(|node| info.role(**node).is_none());
            let to = *free.min_by_key(|node| (load(**node), **node))?;
            Some(MovedCopy {
                region: info.id,
                from: None,
                to,
            })
        });
    let has_spare = || {
        replicated()
            .filter(|info| info.replicas.len() > wanted(info))
            .find_map(|info| {
                let mut copies: Vec<&Replica> = info
                    .replicas
                    .iter()
                    .filter(|copy| copy.role != ReplicaRole::Primary)
                    .collect();
                // of the node that is not there, or has the most
                copies.sort_by_key(|copy| (usize::MAX - load(copy.node), copy.node));
                let (from, to) = (copies.first()?.node, copies.last()?.node);
                Some(MovedCopy {
                    region: info.id,
                    from: Some(from),
                    to,
                })
                .filter(|one| from != to && there.contains(&one.to))
            })
    };
    let uneven = || {
        let mut by_load: Vec<NodeId> = there.iter().copied().collect();
        by_load.sort_by_key(|node| (load(*node), *node));
        let pairs = by_load
            .iter()
            .rev()
            .flat_map(|from| by_load.iter().map(|to| (*from, *to)));
        let mut pairs = pairs.filter(|(from, to)| load(*from) >= load(*to) + 2);
        pairs.find_map(|(from, to)| {
            let is_copy =
                |info: &&RegionInfo| matches!(info.role(from), Some(ReplicaRole::Mirror | ReplicaRole::Backup));
            let of_primary = |primary: Option<NodeId>| {
                replicated()
                    .filter(|info| info.primary() == primary && info.role(to).is_some())
                    .count()
            };
            // the nodes that serve what it has a copy of are to be many: it takes some from each of them, and fills in for each
            let movable = replicated().filter(is_copy).filter(|info| info.role(to).is_none());
            let region = movable.min_by_key(|info| (of_primary(info.primary()), info.id))?.id;
            Some(MovedCopy {
                region,
                from: Some(from),
                to,
            })
        })
    };
    lacks.or_else(has_spare).or_else(uneven)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{initial_map, with_node};
    use polvo_proto::{NodeInfo, RegionSet};

    fn node(id: u16) -> NodeInfo {
        NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        }
    }

    /// All copies are whole.
    fn cluster(nodes: u16, per_node: u16, replicas: u8) -> ClusterMap {
        let set = RegionSet {
            replicas,
            ..RegionSet::default()
        };
        let mut map = initial_map([7; 16], (0..nodes).map(node).collect(), per_node, &[set]);
        let copies = map.regions.iter_mut().flat_map(|info| &mut info.replicas);
        for copy in copies.filter(|copy| copy.role == ReplicaRole::Backup) {
            copy.role = ReplicaRole::Mirror;
        }
        map
    }

    fn grown(map: &ClusterMap, by: &[u16]) -> ClusterMap {
        by.iter()
            .fold(map.clone(), |map, id| with_node(&map, &node(*id)).unwrap())
    }

    fn all(map: &ClusterMap) -> BTreeSet<NodeId> {
        map.nodes.iter().map(|node| node.id).collect()
    }

    fn spread(map: &ClusterMap) -> (usize, ClusterMap) {
        let moves = spread_copies(map, &all(map));
        let after = moves.iter().fold(map.clone(), |map, one| with_moved(&map, *one));
        for (before, info) in map.regions.iter().zip(&after.regions) {
            assert_eq!(info.primary(), before.primary(), "who serves it has it");
            let nodes: BTreeSet<NodeId> = info.replicas.iter().map(|replica| replica.node).collect();
            assert_eq!(nodes.len(), info.replicas.len(), "one a node: {info:?}");
        }
        (moves.len(), after)
    }

    #[test]
    fn nodes_that_are_new_get_their_share_by_as_few_moves_as_can_be() {
        for (nodes, per_node, replicas, new, moves) in [
            (3, 4, 2, 1, 6),
            (3, 4, 3, 1, 9),
            (3, 8, 2, 3, 24),
            (2, 4, 2, 1, 5),
            (5, 4, 3, 1, 10),
        ] {
            let map = cluster(nodes, per_node, replicas);
            assert_eq!(spread(&map).0, 0, "a cluster is made even");
            let by: Vec<u16> = (nodes..nodes + new).collect();
            let (moved, after) = spread(&grown(&map, &by));
            let loads = kept_by(&after, &all(&after));
            let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
            assert!(most - least <= 1, "{loads:?}");
            assert_eq!(moved, moves, "{nodes} and {new} nodes, {replicas} replicas");
            assert!(
                after
                    .regions
                    .iter()
                    .all(|info| info.replicas.len() == usize::from(replicas))
            );
        }
    }

    #[test]
    fn a_new_node_gets_copies_of_what_different_nodes_serve() {
        let (_, after) = spread(&grown(&cluster(3, 4, 2), &[3]));
        let its = after.regions.iter().filter(|info| info.role(NodeId(3)).is_some());
        let primaries: Vec<NodeId> = its.filter_map(RegionInfo::primary).collect();
        for node in 0..3 {
            assert_eq!(
                primaries.iter().filter(|primary| primary.0 == node).count(),
                2,
                "{primaries:?}"
            );
        }
    }

    #[test]
    fn who_is_away_gets_nothing_and_loses_nothing() {
        let map = grown(&cluster(3, 4, 2), &[3, 4]);
        let there = [0, 1, 2, 4].map(NodeId).into();
        let moves = spread_copies(&map, &there);
        assert!(moves.iter().all(|one| one.to == NodeId(4)), "{moves:?}");
        let there = [0, 1, 3].map(NodeId).into();
        let moves = spread_copies(&map, &there);
        assert!(!moves.is_empty());
        assert!(
            moves
                .iter()
                .all(|one| one.to == NodeId(3) && one.from != Some(NodeId(2))),
            "{moves:?}"
        );
    }

    #[test]
    fn a_region_that_lacks_a_copy_gets_one_and_what_was_begun_is_finished() {
        let mut map = cluster(3, 2, 3);
        map.nodes.retain(|node| node.id != NodeId(2));
        map.regions.retain(|info| info.primary() != Some(NodeId(2)));
        map.regions
            .iter_mut()
            .for_each(|info| info.replicas.retain(|copy| copy.node != NodeId(2)));
        assert_eq!(spread(&map).0, 0, "two nodes have no three copies");
        let (moves, after) = spread(&grown(&map, &[5]));
        assert_eq!(moves, 4);
        assert!(
            after
                .regions
                .iter()
                .all(|info| info.replicas.len() == 3 && info.role(NodeId(5)).is_some())
        );

        // the operator went away when the copy had been begun
        let map = grown(&cluster(3, 4, 2), &[3]);
        let first = spread_copies(&map, &all(&map))[0];
        let begun = with_copy(&map, map.primary(first.region).unwrap(), first.region, first.to).unwrap();
        let next = spread_copies(&begun, &all(&begun));
        assert_eq!((next[0], next.len()), (first, 6));
        assert!(spread(&begun).1.regions.iter().all(|info| info.replicas.len() == 2));
        // nobody waits for a copy at a node that is away
        let info = begun.region(first.region).unwrap();
        let there = all(&begun).into_iter().filter(|node| info.primary() == Some(*node));
        assert_eq!(spread_copies(&begun, &there.collect()), []);
    }

    #[test]
    fn a_move_takes_its_steps_in_order_and_those_alone() {
        let mut map = grown(&cluster(3, 2, 2), &[3]);
        let region = RegionId(0); // of node 0, with a copy at node 1
        let step = |map: &ClusterMap, from: Option<u16>, to: u16| {
            let (from, to) = (from.map(NodeId), NodeId(to));
            next_of_move(map, MovedCopy { region, from, to })
        };
        let refused = |map: &ClusterMap, from, to| step(map, from, to).unwrap_err();
        assert!(refused(&map, Some(0), 3).contains("serves it"));
        assert!(refused(&map, Some(2), 3).contains("has none"));
        assert!(refused(&map, Some(1), 9).contains("no other node 9"));
        assert!(refused(&map, Some(1), 1).contains("no other node 1"));
        assert!(refused(&map, Some(1), 0).contains("node 0 has a copy of it already"));
        assert!(refused(&map, None, 3).contains("has 2 replicas"));
        assert_eq!(step(&map, Some(1), 3), Ok(CopyMove::Begin));
        assert_eq!(
            with_copy(&map, NodeId(1), region, NodeId(3)),
            None,
            "by who does not serve it"
        );
        map = with_copy(&map, NodeId(0), region, NodeId(3)).unwrap();
        assert_eq!(map.check(), Ok(()));
        assert_eq!(map.region(region).unwrap().epoch, map.epoch);
        assert_eq!(with_copy(&map, NodeId(0), region, NodeId(3)), None, "twice");
        assert_eq!(step(&map, Some(1), 3), Ok(CopyMove::Waits));
        assert!(refused(&map, Some(1), 2).contains("being moved"));
        assert_eq!(
            without_copy(&map, NodeId(0), region, NodeId(1)),
            None,
            "it is in the set"
        );
        let role = |map: &mut ClusterMap, node, role| {
            let info = map.regions.iter_mut().find(|info| info.id == region).unwrap();
            info.replicas
                .iter_mut()
                .find(|copy| copy.node == NodeId(node))
                .unwrap()
                .role = role;
        };
        role(&mut map, 3, ReplicaRole::Mirror);
        assert_eq!(step(&map, Some(1), 3), Ok(CopyMove::End));
        role(&mut map, 1, ReplicaRole::Backup);
        assert_eq!(step(&map, Some(1), 3), Ok(CopyMove::End));
        map = without_copy(&map, NodeId(0), region, NodeId(1)).unwrap();
        assert_eq!(step(&map, Some(1), 3), Ok(CopyMove::Done));
    }
}
