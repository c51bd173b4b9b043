//! `polvo balance`: has regions served where there is the least to do, by nodes that have them.

use crate::args::BalanceArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::{CliError, Exit, progress};
use polvo_client::LocalClient;
use polvo_format::{NodeId, RegionId};
use polvo_proto::{ClusterMap, FsError, RegionInfo, ReplicaRole, ask};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between two attempts at a region that is in the middle of something.
const AGAIN: Duration = Duration::from_millis(200);

/// A region that another node is to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    region: RegionId,
    from: NodeId,
    to: NodeId,
}

/// Runs the command.
pub fn balance(args: &BalanceArgs) -> Result<Exit, CliError> {
    let place = args.url.as_ref().map(|url| Location::parse(url)).transpose()?;
    let authority = place.and_then(|place| place.authority);
    let away = args.away_from.map(NodeId);
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    with_client(&args.cluster, authority, "balance", |client, local| async move {
        let failed = |what: String, source| CliError::Fs { what, source };
        let map = newest(&local, &client.map())
            .await
            .map_err(|error| failed("asking for the cluster map".into(), error))?;
        if let Some(node) = away.filter(|node| map.node(*node).is_none()) {
            return Err(CliError::Usage(format!("the cluster has no node {}", node.0)));
        }
        let moves = plan(&map, away);
        if args.dry_run {
            print(moves.iter().fold(String::new(), |mut lines, one| {
                let _ = writeln!(
                    lines,
                    "region {}: from node {} to node {}",
                    one.region.0, one.from.0, one.to.0
                );
                lines
            }))?;
        } else {
            let bar = progress::count("regions handed over", moves.len() as u64, false);
            for one in &moves {
                bar.set_message(format!("region {} to node {}", one.region.0, one.to.0));
                let done = hand_over(&local, *one, deadline).await;
                done.map_err(|error| {
                    let Move { region, from, to } = one;
                    failed(
                        format!("handing region {} over from node {} to node {}", region.0, from.0, to.0),
                        error,
                    )
                })?;
                bar.inc(1);
            }
            bar.finish_and_clear();
        }
        let after = with_moves(&map, &moves);
        let mut said = match (moves.len(), args.dry_run) {
            (0, _) => "nothing to do: ".to_string(),
            (n, true) => format!("{n} regions would be handed over: "),
            (n, false) => format!("{n} regions were handed over: "),
        };
        let _ = writeln!(said, "{}", spread(&after));
        print(said)?;
        let stays: Vec<String> = (after.regions.iter())
            .filter(|info| away.is_some() && info.primary() == away)
            .map(|info| info.id.0.to_string())
            .collect();
        if stays.is_empty() {
            return Ok(Exit::Success);
        }
        eprintln!(
            "polvo: no other node has all of regions {}, which stay",
            stays.join(" ")
        );
        Ok(Exit::Failure)
    })
}

/// Has a node hand a region over, once it may. One that has come to its node less than a lease ago stays for as long.
async fn hand_over(local: &Rc<LocalClient>, one: Move, deadline: Instant) -> Result<(), FsError> {
    let Move { region, from, to } = one;
    loop {
        match local.ask(from, ask::HandOver { region, to }).await {
            Err(FsError::Retry) if Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
            Err(FsError::Retry) => {
                return Err(FsError::Io(
                    "it is in the middle of something all the time, has come there a moment ago, or a copy of it is being made; give the \
                     command again to go on"
                        .into(),
                ));
            }
            done => return done,
        }
    }
}

/// The newest map that any node has.
async fn newest(local: &Rc<LocalClient>, known: &ClusterMap) -> Result<ClusterMap, FsError> {
    let mut newest: Option<ClusterMap> = None;
    let mut error = FsError::Io("there is no node".into());
    for node in known.nodes.iter().map(|node| node.id) {
        match local.ask(node, ask::Map).await {
            Ok(map) if newest.as_ref().is_none_or(|known| map.epoch > known.epoch) => newest = Some(map),
            Ok(_) => {}
            Err(why) => error = why,
        }
    }
    newest.ok_or(error)
}

/// How many regions each node serves of those that have copies, but for those of which that is all of a set (they cannot be moved).
pub(crate) fn served(map: &ClusterMap) -> BTreeMap<NodeId, usize> {
    let mut served: BTreeMap<NodeId, usize> = map.nodes.iter().map(|node| (node.id, 0)).collect();
    let primaries = map.regions.iter().filter(|info| info.replicas.len() > 1);
    for node in primaries.filter_map(RegionInfo::primary) {
        *served.entry(node).or_default() += 1;
    }
    served
}

/// Would it help to hand regions over?
pub(crate) fn is_uneven(map: &ClusterMap) -> bool {
    !plan(map, None).is_empty()
}

/// For people.
pub(crate) fn spread(map: &ClusterMap) -> String {
    let each = served(map)
        .into_iter()
        .map(|(node, count)| format!("node {} serves {count}", node.0));
    each.collect::<Vec<_>>().join(", ")
}

/// What is to be handed over for nodes to serve as equally many regions as can be; with `away` none at that node, as far as others have
/// them. Only a mirror in the set can serve a region. Where none of those of a busy node's regions has less to do, others make room.
pub(crate) fn plan(map: &ClusterMap, away: Option<NodeId>) -> Vec<Move> {
    let mut map = map.clone();
    let mut moves = Vec::new();
    while let Some(more) = step(&map, away) {
        map = with_moves(&map, &more);
        moves.extend(more);
    }
    in_one(moves)
}

/// The shortest way by which a node has one region less and another that has at least two fewer, or is not the one to be left, one more.
fn step(map: &ClusterMap, away: Option<NodeId>) -> Option<Vec<Move>> {
    let served = served(map);
    let mut busiest: Vec<(&NodeId, &usize)> = served.iter().filter(|(_, count)| **count > 0).collect();
    busiest.sort_by_key(|(node, count)| (Some(**node) != away, usize::MAX - **count));
    busiest.into_iter().find_map(|(from, count)| {
        let may_end = |node: NodeId| match away {
            Some(away) if *from == away => true,
            _ => served[&node] + 1 < *count,
        };
        way(map, *from, away, &may_end)
    })
}

fn way(map: &ClusterMap, from: NodeId, away: Option<NodeId>, may_end: &dyn Fn(NodeId) -> bool) -> Option<Vec<Move>> {
    let mut came_by: BTreeMap<NodeId, Move> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(node) = next.pop_front() {
        let mut ends: Vec<Move> = Vec::new();
        for info in map.regions.iter().filter(|info| info.primary() == Some(node)) {
            let mirrors = info
                .replicas
                .iter()
                .filter(|replica| replica.role == ReplicaRole::Mirror);
            for to in mirrors
                .map(|replica| replica.node)
                .filter(|to| Some(*to) != away && *to != from)
            {
                if came_by.contains_key(&to) {
                    continue;
                }
                let one = Move {
                    region: info.id,
                    from: node,
                    to,
                };
                came_by.insert(to, one);
                next.push_back(to);
                ends.extend(may_end(to).then_some(one));
            }
        }
        // of those that are equally near the one that has the least to do
        let served = served(map);
        if let Some(end) = ends.into_iter().min_by_key(|one| served[&one.to]) {
            let mut way = vec![end];
            while let Some(before) = way.last().filter(|one| one.from != from) {
                way.push(came_by[&before.from]);
            }
            return Some(way);
        }
    }
    None
}

/// A region that would go on from where it goes goes there at once.
fn in_one(moves: Vec<Move>) -> Vec<Move> {
    let mut of_region: BTreeMap<RegionId, Move> = BTreeMap::new();
    for one in moves {
        of_region
            .entry(one.region)
            .and_modify(|known| known.to = one.to)
            .or_insert(one);
    }
    of_region.into_values().filter(|one| one.from != one.to).collect()
}

/// The map as it is after these.
fn with_moves(map: &ClusterMap, moves: &[Move]) -> ClusterMap {
    let mut map = map.clone();
    for one in moves {
        for info in map.regions.iter_mut().filter(|info| info.id == one.region) {
            for replica in &mut info.replicas {
                match replica.node {
                    node if node == one.to => replica.role = ReplicaRole::Primary,
                    node if node == one.from => replica.role = ReplicaRole::Mirror,
                    _ => {}
                }
            }
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_format::Epoch;
    use polvo_proto::{NodeInfo, RegionSet, Replica};

    /// Of each region the primary first, then its mirrors.
    fn map(nodes: u16, regions: &[&[u16]]) -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        let region = |(id, replicas): (usize, &&[u16])| RegionInfo {
            id: RegionId(id as u16),
            set: RegionSet::default(),
            epoch: Epoch(1),
            replicas: (replicas.iter().enumerate())
                .map(|(i, node)| Replica {
                    node: NodeId(*node),
                    role: if i == 0 {
                        ReplicaRole::Primary
                    } else {
                        ReplicaRole::Mirror
                    },
                })
                .collect(),
        };
        ClusterMap {
            regions: regions.iter().enumerate().map(region).collect(),
            ..initial_map([1; 16], (0..nodes).map(node).collect(), 1, &[RegionSet::default()])
        }
    }

    fn counts(map: &ClusterMap) -> Vec<usize> {
        served(map).into_values().collect()
    }

    fn planned(map: &ClusterMap, away: Option<u16>) -> (usize, ClusterMap) {
        let moves = plan(map, away.map(NodeId));
        for one in &moves {
            let info = map.region(one.region).unwrap();
            assert_eq!(
                (info.primary(), info.role(one.to)),
                (Some(one.from), Some(ReplicaRole::Mirror))
            );
        }
        (moves.len(), with_moves(map, &moves))
    }

    #[test]
    fn a_node_that_has_come_back_gets_its_share_by_as_few_moves_as_can_be() {
        let after_its_death: [&[u16]; 6] = [&[1, 0], &[2, 0], &[1, 2], &[1, 0], &[2, 1], &[2, 0]];
        let map = map(3, &after_its_death);
        assert_eq!(counts(&map), [0, 3, 3]);
        let (moves, after) = planned(&map, None);
        assert_eq!((moves, counts(&after)), (2, vec![2, 2, 2]));
        assert!(is_uneven(&map) && !is_uneven(&after));
    }

    #[test]
    fn others_make_room_where_the_idle_node_has_nothing_of_the_busy_one() {
        let map = map(3, &[&[1, 2], &[1, 2], &[1, 2], &[2, 0], &[1, 2]]);
        assert_eq!(counts(&map), [0, 4, 1]);
        let (moves, after) = planned(&map, None);
        assert_eq!((moves, counts(&after)), (3, vec![1, 2, 2]));
    }

    #[test]
    fn what_cannot_be_better_stays() {
        for regions in [
            &[&[0, 1][..], &[1, 0], &[0, 1]][..],
            &[&[0], &[0], &[0, 1]],
            &[&[0], &[0], &[0]],
            &[],
        ] {
            assert_eq!(planned(&map(2, regions), None).0, 0, "{regions:?}");
        }
    }

    #[test]
    fn a_node_that_is_to_be_left_serves_only_what_nobody_else_has() {
        let map = map(3, &[&[0, 1], &[0, 2], &[1, 0], &[2, 1], &[0], &[0, 1], &[0, 2]]);
        let (moves, after) = planned(&map, Some(0));
        assert_eq!((moves, counts(&after)), (4, vec![0, 3, 3]));
        assert_eq!(
            after.region(RegionId(4)).unwrap().primary(),
            Some(NodeId(0)),
            "nobody else has it"
        );
    }

    #[test]
    fn random_clusters_are_as_even_as_can_be() {
        let mut state = 7u64;
        let mut draw = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        };
        for _ in 0..200 {
            let nodes = 2 + draw(5) as u16;
            let regions: Vec<Vec<u16>> = (0..draw(20))
                .map(|_| {
                    let first = draw(u64::from(nodes)) as u16;
                    let other = (first + 1 + draw(u64::from(nodes) - 1) as u16) % nodes;
                    vec![first, other]
                })
                .collect();
            let regions: Vec<&[u16]> = regions.iter().map(Vec::as_slice).collect();
            let map = map(nodes, &regions);
            let (_, after) = planned(&map, None);
            let most = |map: &ClusterMap| counts(map).into_iter().max().unwrap_or(0);
            assert!(most(&after) <= most(&map));
            assert!(!is_uneven(&after));
            // what cannot be better has a set of nodes that share their regions with each other alone
            let top = most(&after);
            let least = after.regions.len().div_ceil(usize::from(nodes));
            assert!(top == least || step(&after, None).is_none());
        }
    }
}
