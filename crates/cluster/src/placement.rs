//! Which regions may get a new inode, how a new cluster is divided into regions, where copies go, and who votes on its map.

use polvo_consensus::Voters;
use polvo_format::{Epoch, Ino, NodeId, REGIONS_MAX, RegionId};
use polvo_proto::{ClusterMap, NodeInfo, RegionInfo, RegionSet, Replica, ReplicaRole};
use std::collections::{BTreeMap, BTreeSet};

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

/// Two candidate regions of a name, of `regions` of a map, by hash (placement by two choices): on different nodes where there are
/// several. Panics where there are none: a cluster has some of each set.
pub fn candidates(map: &ClusterMap, regions: &[RegionInfo], dir: Ino, name: &[u8]) -> [RegionId; 2] {
    assert!(!regions.is_empty(), "a set has regions");
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

/// The map of a new cluster: `per_node` regions a node of each of the `sets`, the first of which is the default; dealt out in turn,
/// region 0 to the first node. A region has as many replicas as its set says, or as there are nodes where they are fewer. The copies of
/// one node's regions are dealt out to all others in turn, so that they share its work when it dies. The nodes with the lowest numbers
/// vote: one of up to two, three of three or four, five of more.
///
/// A cluster that has grown was made with fewer nodes: those that were added have none of these regions.
pub fn initial_map(cluster: [u8; 16], nodes: Vec<NodeInfo>, per_node: u16, sets: &[RegionSet]) -> ClusterMap {
    let of_set = nodes.len() * usize::from(per_node);
    let count = of_set * sets.len();
    assert!(
        count > 0 && count <= REGIONS_MAX,
        "a cluster has 1 to {REGIONS_MAX} regions"
    );
    let mut ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
    ids.sort();
    let voters = Voters::new(ids.into_iter().take(voters_of(nodes.len())));
    let region = |i: usize| {
        let (set, i_in_set) = (sets[i / of_set], i % of_set);
        let (primary, others) = (i_in_set % nodes.len(), nodes.len() - 1);
        let copies = usize::from(set.replicas.max(1)).min(nodes.len()) - 1;
        let copy_at = |copy: usize| 1 + (i_in_set / nodes.len() + copy) % others;
        let at = |step: usize, role| Replica {
            node: nodes[(primary + step) % nodes.len()].id,
            role,
        };
        let copies = (0..copies).map(|copy| at(copy_at(copy), ReplicaRole::Backup));
        RegionInfo {
            id: RegionId(i as u16),
            set,
            epoch: Epoch(1),
            replicas: [at(0, ReplicaRole::Primary)].into_iter().chain(copies).collect(),
        }
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

/// How many copies each node has, or is getting.
fn copies_of(map: &ClusterMap) -> BTreeMap<NodeId, usize> {
    let mut copies: BTreeMap<NodeId, usize> = map.nodes.iter().map(|node| (node.id, 0)).collect();
    let all = map.regions.iter().flat_map(|info| &info.replicas);
    for copy in all.filter(|replica| replica.role != ReplicaRole::Primary) {
        *copies.entry(copy.node).or_default() += 1;
    }
    copies
}

/// The map with the numbers of replicas that its regions are to have, where it is of a program that kept none: the most that one has.
fn with_numbers(mut map: ClusterMap) -> ClusterMap {
    let most = map.regions.iter().map(|info| info.region_set().replicas).max();
    for info in map.regions.iter_mut().filter(|info| info.set.replicas == 0) {
        info.set.replicas = most.unwrap_or(1);
    }
    map
}

/// The next step in taking a node that serves nothing out of the map; `None`: others have to do something first, or it is out.
///
/// - Its copies are made at those of the nodes that are `there` which have the fewest, so that regions have as many replicas as they are
///   to have, as far as there are nodes. A mirror goes when all others of its region are whole; at once where it is not `waited` for.
/// - Those who vote in its stead, in two steps: as many as a cluster without it has, of those that are there first.
/// - The node, when nothing of the map names it any more.
pub fn without_node(map: &ClusterMap, gone: NodeId, there: &BTreeSet<NodeId>, waited: bool) -> Option<ClusterMap> {
    let mut changed = with_numbers(map.clone());
    changed.epoch = Epoch(map.epoch.0 + 1);
    let left = map.nodes.len() - usize::from(map.node(gone).is_some());
    let mut copies = copies_of(map);
    for info in &mut changed.regions {
        let wanted = usize::from(info.set.replicas).min(left);
        let (Some(role), before) = (info.role(gone), info.replicas.len()) else {
            continue;
        };
        if role == ReplicaRole::Primary {
            continue;
        }
        let is_whole = |replica: &&Replica| replica.node == gone || replica.role != ReplicaRole::Backup;
        let others_are_whole = info.replicas.iter().filter(is_whole).count() == before;
        let may_take =
            |(node, _): &(&NodeId, &usize)| there.contains(node) && **node != gone && info.role(**node).is_none();
        let taker = copies
            .iter()
            .filter(may_take)
            .min_by_key(|(node, copies)| (**copies, **node));
        let taker = taker.map(|(node, _)| *node).filter(|_| before - 1 < wanted);
        let goes = role == ReplicaRole::Backup || !waited || taker.is_none() && others_are_whole;
        info.replicas.retain(|replica| replica.node != gone || !goes);
        if let Some(node) = taker {
            *copies.entry(node).or_default() += 1;
            let role = ReplicaRole::Backup;
            info.replicas.push(Replica { node, role });
        }
        if goes || taker.is_some() {
            info.epoch = changed.epoch;
        }
    }
    if let Some(voters) = voters_without(map, gone, there) {
        changed.voters = voters;
    }
    let is_named = changed.regions.iter().any(|info| info.role(gone).is_some());
    if !is_named && map.voters.all().chain(changed.voters.all()).all(|voter| voter != gone) {
        changed.nodes.retain(|node| node.id != gone);
    }
    let has_changed = changed
        .regions
        .iter()
        .zip(&map.regions)
        .any(|(new, old)| new.replicas != old.replicas)
        || changed.voters != map.voters
        || changed.nodes != map.nodes;
    has_changed.then_some(changed)
}

/// The next step in letting those vote who are to without this node; `None`: they do.
fn voters_without(map: &ClusterMap, gone: NodeId, there: &BTreeSet<NodeId>) -> Option<Voters> {
    if map.voters.is_joint() {
        return map.voters.finished();
    }
    let votes = |node: NodeId| map.voters.now().any(|voter| voter == node);
    let mut others: Vec<NodeId> = map
        .nodes
        .iter()
        .map(|node| node.id)
        .filter(|node| *node != gone)
        .collect();
    let count = voters_of(others.len());
    others.retain(|node| votes(*node) || there.contains(node));
    others.sort_by_key(|node| (!there.contains(node), !votes(*node), *node));
    others.truncate(count);
    map.voters.with_next(others)
}

/// The map in which others get the copies of regions of `primary` that `gone` was to have: those regions, each with the bytes that a
/// copy takes, go to nodes with `room` for so many bytes that have none of the region yet, each to the one that has the fewest copies,
/// of several to that with the lowest number. `None` where nothing is to be changed: none of them is left with a mere backup there, or
/// there is nobody to take it.
///
/// A mirror is left alone: before it is replaced it has left the set.
pub fn replace_copies(
    map: &ClusterMap,
    primary: NodeId,
    gone: NodeId,
    regions: &BTreeMap<RegionId, u64>,
    mut room: BTreeMap<NodeId, u64>,
) -> Option<ClusterMap> {
    let mut changed = map.clone();
    changed.epoch = Epoch(map.epoch.0 + 1);
    let mut copies = copies_of(map);
    for info in changed
        .regions
        .iter_mut()
        .filter(|info| info.primary() == Some(primary))
    {
        let (Some(needed), Some(ReplicaRole::Backup)) = (regions.get(&info.id), info.role(gone)) else {
            continue;
        };
        let has_room = |node: &NodeId| room.get(node).is_some_and(|room| room >= needed);
        let may_take = |(node, _): &(&NodeId, &usize)| info.role(**node).is_none() && has_room(node);
        let Some((&taker, _)) = copies
            .iter()
            .filter(may_take)
            .min_by_key(|(node, copies)| (**copies, **node))
        else {
            continue;
        };
        *copies.entry(taker).or_default() += 1;
        room.entry(taker).and_modify(|room| *room -= needed);
        info.replicas.retain(|replica| replica.node != gone);
        info.replicas.push(Replica {
            node: taker,
            role: ReplicaRole::Backup,
        });
        info.epoch = changed.epoch;
    }
    (changed.regions != map.regions).then_some(changed)
}

/// The next step in replacing a voter that is not `alive` by a node that is, and where all are in having as many vote as a cluster of so
/// many nodes is to have: others come to vote beside them, or, where that is under way, the new voters come to stand alone. `None`: there
/// is nothing to do, or nobody to take the place.
///
/// Where nodes do not agree on who is alive each may take its own step; the register orders them.
pub fn next_voters(map: &ClusterMap, alive: impl Fn(NodeId) -> bool) -> Option<Voters> {
    let voters = &map.voters;
    if voters.is_joint() {
        return voters.finished();
    }
    let gone = voters.now().find(|node| !alive(*node));
    let missing = match gone {
        Some(_) => 1,
        None => voters_of(map.nodes.len()).saturating_sub(voters.now().count()),
    };
    let mut takers: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
    takers.retain(|node| alive(*node) && voters.now().all(|voter| voter != *node));
    takers.sort();
    // an even number of voters would bear no more deaths than one less
    let takers = takers.get(..missing)?.iter().copied();
    let others = voters.now().filter(|node| Some(*node) != gone);
    voters.with_next(others.chain(takers))
}

/// The map with one more node, which has no region, and does not vote ([`next_voters`] sees to that when it is there). `None`: it is in
/// it already.
pub fn with_node(map: &ClusterMap, node: &NodeInfo) -> Option<ClusterMap> {
    let is_new = map.node(node.id).is_none();
    let mut changed = map.clone();
    changed.epoch = Epoch(map.epoch.0 + 1);
    changed.nodes.push(node.clone());
    changed.nodes.sort_by_key(|node| node.id);
    is_new.then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_proto::Durability;

    fn node(id: u16) -> NodeInfo {
        NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        }
    }

    fn set(replicas: u8) -> RegionSet {
        RegionSet {
            replicas,
            ..RegionSet::default()
        }
    }

    fn cluster(nodes: u16, per_node: u16) -> ClusterMap {
        replicated(nodes, per_node, 1)
    }

    fn replicated(nodes: u16, per_node: u16, replicas: u8) -> ClusterMap {
        initial_map([7; 16], (0..nodes).map(node).collect(), per_node, &[set(replicas)])
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
        let map = initial_map([7; 16], [9, 2, 7, 5].map(node).to_vec(), 1, &[set(1)]);
        assert_eq!(map.voters, voters(&[2, 5, 7]));
    }

    #[test]
    fn a_cluster_that_has_grown_has_as_many_that_vote_as_one_that_was_made_so_large() {
        let grown = |map: &ClusterMap, to: u16| {
            (map.nodes.len() as u16..to).fold(map.clone(), |map, id| with_node(&map, &node(id)).unwrap())
        };
        let alive = |gone: &'static [u16]| move |node: NodeId| !gone.contains(&node.0);
        let three = grown(&cluster(2, 1), 3);
        assert_eq!(next_voters(&cluster(2, 1), alive(&[])), None, "of two nodes one votes");
        assert_eq!(
            next_voters(&three, alive(&[2])),
            None,
            "it is not there yet, and two are no better than one"
        );
        let joint = next_voters(&three, alive(&[])).unwrap();
        assert_eq!(Some(&joint), three.voters.with_next([0, 1, 2].map(NodeId)).as_ref());
        assert!(joint.may_follow(&three.voters));
        let mut five = grown(&cluster(3, 1), 5);
        assert_eq!(next_voters(&grown(&cluster(3, 1), 4), alive(&[])), None);
        assert_eq!(next_voters(&five, alive(&[4])), None);
        assert_eq!(next_voters(&five, alive(&[])).unwrap().next().count(), 5);
        // who is gone is replaced first
        five.voters = next_voters(&five, alive(&[1])).unwrap().finished().unwrap();
        assert_eq!(five.voters, voters(&[0, 2, 3]));
        assert_eq!(next_voters(&five, alive(&[1])), None);
        assert!(
            next_voters(&five, alive(&[]))
                .unwrap()
                .next()
                .eq([0, 1, 2, 3, 4].map(NodeId))
        );
    }

    #[test]
    fn a_voter_that_is_gone_is_replaced_in_two_steps_by_a_node_that_is_there() {
        let mut map = cluster(5, 1);
        map.nodes.retain(|node| node.id != NodeId(3));
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
            let [a, b] = candidates(&map, &map.regions, Ino(1), &i.to_le_bytes());
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
            let map = replicated(nodes, 12, replicas);
            let mut copies = vec![0; usize::from(nodes)];
            for region in &map.regions {
                let mut on: Vec<u16> = region.replicas.iter().map(|replica| replica.node.0).collect();
                let replicas = u16::from(replicas).min(nodes);
                assert_eq!((on.len(), region.region_set()), (usize::from(replicas), region.set));
                on[1..].iter().for_each(|node| copies[usize::from(*node)] += 1);
                on.sort_unstable();
                on.dedup();
                assert_eq!(on.len(), region.replicas.len(), "{region:?}");
                assert_eq!(region.primary(), Some(NodeId(region.id.0 % nodes)));
            }
            let expected = 12 * (u16::from(replicas).min(nodes) - 1);
            assert!(
                copies.iter().all(|count| *count == expected),
                "{nodes} nodes, {replicas} replicas: {copies:?}"
            );
        }
    }

    #[test]
    fn copies_of_a_node_that_is_gone_go_to_those_that_have_the_fewest() {
        let [gone, us] = [NodeId(1), NodeId(0)];
        let map = replicated(5, 8, 3);
        let ours: BTreeMap<RegionId, u64> = map.regions.iter().map(|info| (info.id, 10)).collect();
        let room = |bytes: u64| (0..5).map(|node| (NodeId(node), bytes)).collect::<BTreeMap<_, _>>();
        let changed = replace_copies(&map, us, gone, &ours, room(1000)).unwrap();
        assert_eq!((changed.check(), changed.epoch), (Ok(()), Epoch(map.epoch.0 + 1)));
        let mut taken = [0; 5];
        for (before, after) in map.regions.iter().zip(&changed.regions) {
            assert_eq!((after.replicas.len(), after.primary()), (3, before.primary()));
            if before.primary() != Some(us) || before.role(gone).is_none() {
                assert_eq!(before, after, "it is not ours, or has no copy there");
                continue;
            }
            let new: Vec<_> = after
                .replicas
                .iter()
                .filter(|r| before.role(r.node).is_none())
                .collect();
            assert!(after.role(gone).is_none() && new.len() == 1 && new[0].role == ReplicaRole::Backup);
            assert_eq!(after.epoch, changed.epoch);
            taken[usize::from(new[0].node.0)] += 1;
        }
        assert_eq!(taken, [0, 0, 2, 1, 1], "all had as many before");
        assert_eq!(
            replace_copies(&map, us, gone, &ours, room(1000)).as_ref(),
            Some(&changed)
        );
        assert_eq!(
            replace_copies(&changed, us, gone, &ours, room(1000)),
            None,
            "that is all"
        );
        assert_eq!(replace_copies(&map, us, gone, &ours, room(9)), None, "nobody has room");
        assert_eq!(
            replace_copies(&map, us, gone, &BTreeMap::new(), room(1000)),
            None,
            "none is meant"
        );
        let one = BTreeMap::from([(NodeId(4), 25)]);
        let changed = replace_copies(&map, us, gone, &ours, one).unwrap();
        let now = changed
            .regions
            .iter()
            .zip(&map.regions)
            .filter(|(after, before)| after != before);
        assert_eq!(now.count(), 2, "there is room for two");
    }

    /// All copies are made.
    fn whole(map: &mut ClusterMap) {
        let all = map.regions.iter_mut().flat_map(|info| &mut info.replicas);
        all.filter(|replica| replica.role == ReplicaRole::Backup)
            .for_each(|replica| replica.role = ReplicaRole::Mirror);
    }

    /// Others serve what a node has served; it would get copies.
    fn deposed(map: &mut ClusterMap, gone: NodeId) {
        for info in map.regions.iter_mut().filter(|info| info.primary() == Some(gone)) {
            info.replicas[0].role = ReplicaRole::Backup;
            info.replicas[1].role = ReplicaRole::Primary;
        }
    }

    #[test]
    fn a_node_is_taken_out_when_its_copies_are_elsewhere() {
        for (nodes, replicas, wanted) in [(4, 2, 2), (5, 3, 3), (3, 3, 2), (2, 2, 1)] {
            let gone = NodeId(1);
            let mut map = replicated(nodes, 4, replicas);
            whole(&mut map);
            let there: BTreeSet<NodeId> = (0..nodes).map(NodeId).filter(|node| *node != gone).collect();
            deposed(&mut map, gone);
            let mut steps = 0;
            while let Some(next) = without_node(&map, gone, &there, true) {
                assert!(next.check().is_ok() && next.voters.may_follow(&map.voters));
                for (before, after) in map.regions.iter().zip(&next.regions) {
                    let mirrors =
                        |info: &RegionInfo| info.replicas.iter().filter(|r| r.role != ReplicaRole::Backup).count();
                    assert!(mirrors(after) >= mirrors(before).min(wanted), "{before:?} {after:?}");
                }
                map = next;
                whole(&mut map);
                steps += 1;
                assert!(steps < 9);
            }
            assert!(map.node(gone).is_none(), "{nodes} nodes, {replicas} replicas: {map:?}");
            assert!(
                map.regions
                    .iter()
                    .all(|info| info.replicas.len() == wanted && info.role(gone).is_none())
            );
            assert_eq!(map.voters.now().count(), voters_of(usize::from(nodes) - 1));
        }
    }

    #[test]
    fn a_node_that_is_gone_for_good_is_not_waited_for_and_one_that_serves_stays() {
        let (gone, there) = (NodeId(0), BTreeSet::from([NodeId(1)]));
        let mut map = replicated(2, 2, 2);
        whole(&mut map);
        map.voters = voters(&[1]);
        let step = |map: &ClusterMap| without_node(map, gone, &there, false);
        let next = step(&map).expect("its copies go");
        assert!(next.node(gone).is_some(), "nobody serves its regions");
        assert_eq!(step(&next), None);
        deposed(&mut map, gone);
        let next = step(&map).unwrap();
        assert!(next.node(gone).is_none() && next.regions.iter().all(|info| info.replicas.len() == 1));
        // and voters that are away are none of the first choice
        let mut map = cluster(5, 1);
        map.voters = voters(&[0, 1, 2]);
        let next = voters_without(&map, NodeId(0), &BTreeSet::from([2, 3, 4].map(NodeId))).unwrap();
        assert_eq!(next.finished(), Some(voters(&[2, 3, 4])));
    }

    #[test]
    fn a_mirror_is_not_replaced() {
        let mut map = replicated(3, 1, 2);
        map.regions[0].replicas[1].role = ReplicaRole::Mirror;
        let (ours, room) = (BTreeMap::from([(RegionId(0), 1)]), BTreeMap::from([(NodeId(2), 9)]));
        assert_eq!(replace_copies(&map, NodeId(0), NodeId(1), &ours, room.clone()), None);
        map.regions[0].replicas[1].role = ReplicaRole::Backup;
        assert!(replace_copies(&map, NodeId(0), NodeId(1), &ours, room.clone()).is_some());
        assert_eq!(
            replace_copies(&map, NodeId(2), NodeId(1), &ours, room),
            None,
            "by its primary alone"
        );
    }

    #[test]
    fn each_set_has_as_many_regions_at_each_node_and_copies_of_its_own() {
        let sets = [
            set(2),
            set(1),
            RegionSet {
                replicas: 3,
                durability: Durability::Async,
            },
        ];
        let map = initial_map([7; 16], (0..4).map(node).collect(), 3, &sets);
        assert_eq!(map.check(), Ok(()));
        assert_eq!(map.sets().map(|regions| regions[0].set).collect::<Vec<_>>(), sets);
        for (i, regions) in map.sets().enumerate() {
            assert_eq!(map.of_set(Some(sets[i])), regions);
            assert_eq!(regions.len(), 12);
            let mut primaries = [0; 4];
            for region in regions {
                assert_eq!(region.replicas.len(), usize::from(sets[i].replicas));
                primaries[usize::from(region.primary().unwrap().0)] += 1;
            }
            assert_eq!(primaries, [3; 4]);
            for name in 0..100_u32 {
                let [a, b] = candidates(&map, regions, Ino(1), &name.to_le_bytes());
                assert!([a, b].iter().all(|id| map.region(*id).unwrap().set == sets[i]));
                assert_ne!(map.primary(a), map.primary(b));
            }
        }
        assert_eq!(map.of_set(None), map.of_set(Some(sets[0])));
        assert_eq!(map.of_set(Some(set(3))), &[]);
        let mut mixed = map.clone();
        mixed.regions[0].set = sets[1];
        assert!(mixed.check().unwrap_err().contains("lie together"));
    }

    #[test]
    fn a_set_is_found_by_what_is_wished_of_it() {
        let ahead = |replicas| RegionSet {
            replicas,
            durability: Durability::Async,
        };
        let sets = [set(2), ahead(2), set(1), ahead(3)];
        let map = initial_map([7; 16], (0..3).map(node).collect(), 1, &sets);
        let find = |wish: &str| map.find_set(wish.parse().unwrap());
        for (wish, found) in [
            ("replicas=2", None),
            ("durability=sync", None),
            ("replicas=2 durability=sync", None),
            ("durability=async", Some(sets[1])),
            ("replicas=1", Some(sets[2])),
            ("replicas=1 durability=async", Some(sets[2])),
            ("replicas=3", Some(sets[3])),
        ] {
            assert_eq!(find(wish), Ok(found), "{wish}");
        }
        for wish in ["replicas=4", "durability=sync-flush", "replicas=3 durability=sync"] {
            let error = find(wish).unwrap_err();
            assert!(error.contains(&format!("no regions with {wish}")), "{error}");
            assert!(error.contains("replicas=2 durability=async, and replicas=1"), "{error}");
        }
        let several = [set(1), ahead(2), ahead(3)];
        let map = initial_map([7; 16], (0..3).map(node).collect(), 1, &several);
        assert_eq!(
            map.find_set("durability=sync".parse().unwrap()),
            Ok(None),
            "it is the default"
        );
        assert_eq!(map.find_set("replicas=1".parse().unwrap()), Ok(None));
        let map = initial_map([7; 16], (0..3).map(node).collect(), 1, &[ahead(2), set(1)]);
        let error = map.find_set("durability=sync".parse().unwrap()).unwrap_err();
        assert!(
            error.contains("no regions"),
            "nobody has asked for one replica: {error}"
        );
        let map = initial_map([7; 16], (0..4).map(node).collect(), 1, &[set(4), ahead(2), ahead(3)]);
        let error = map.find_set("durability=async".parse().unwrap()).unwrap_err();
        assert!(error.contains("several sets"), "{error}");
        // a map of a program that kept no numbers has one set
        let mut map = replicated(3, 2, 2);
        map.regions.iter_mut().for_each(|info| info.set.replicas = 0);
        assert_eq!(map.find_set("replicas=2".parse().unwrap()), Ok(None));
        assert!(map.find_set("replicas=1".parse().unwrap()).is_err());
    }

    #[test]
    fn a_map_without_numbers_of_replicas_gets_them_when_a_node_goes() {
        let gone = NodeId(1);
        let mut map = replicated(4, 4, 2);
        whole(&mut map);
        deposed(&mut map, gone);
        map.regions.iter_mut().for_each(|info| info.set.replicas = 0);
        let there = BTreeSet::from([0, 2, 3].map(NodeId));
        while let Some(next) = without_node(&map, gone, &there, true) {
            map = next;
            whole(&mut map);
        }
        assert!(map.node(gone).is_none());
        assert!(
            map.regions
                .iter()
                .all(|info| info.replicas.len() == 2 && info.set == set(2))
        );
    }

    #[test]
    fn one_node_is_enough() {
        let map = cluster(1, 2);
        let [a, b] = candidates(&map, &map.regions, Ino(1), b"x");
        assert!(map.region(a).is_some() && map.region(b).is_some());
    }
}
