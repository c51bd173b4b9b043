//! `polvo balance`: has regions kept, and served, where there is the least to do.

use crate::args::BalanceArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::{CliError, Exit, progress};
use polvo_client::LocalClient;
use polvo_cluster::{MovedCopy, kept_by, spread_copies, with_moved};
use polvo_format::{NodeId, RegionId};
use polvo_proto::{ClusterMap, FsError, RegionInfo, ReplicaRole, ask};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between two attempts at a region that is in the middle of something.
const AGAIN: Duration = Duration::from_millis(200);

/// Copies are made and regions handed over in turn, until there is nothing to do, or so often.
const ROUNDS_MAX: u32 = 8;
/// Nodes may take each other to be away for so long when one has just been started.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

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
    let wait = Duration::from_secs(args.wait);
    with_client(&args.cluster, authority, "balance", |client, local| async move {
        let asking = |error| failed("asking for the cluster map".into(), error);
        let (mut map, mut there) = newest(&local, &client.map()).await.map_err(asking)?;
        if let Some(node) = away.filter(|node| map.node(*node).is_none()) {
            return Err(CliError::Usage(format!("the cluster has no node {}", node.0)));
        }
        let mut done = Steps::default();
        let mut next = Steps::next(&map, &there, away);
        for _ in 0..ROUNDS_MAX {
            if next.is_empty() {
                break;
            }
            if args.dry_run {
                print(next.said())?;
                map = next.after(&map);
            } else {
                let made = make_copies(&local, &mut map, &next.copies, wait).await?;
                if made < next.copies.len() {
                    next.copies.truncate(made);
                    next.moves.clear();
                }
                hand_over_all(&local, &next.moves, wait).await?;
                (map, there) = newest(&local, &map).await.map_err(asking)?;
            }
            done.add(next);
            next = Steps::next(&map, &there, away);
        }
        let end = summary(&map, &done, away, args.dry_run)?;
        if next.is_empty() {
            return Ok(end);
        }
        eprintln!("polvo: nodes come and go, and change what was planned; give the command again to go on");
        Ok(Exit::Failure)
    })
}

/// What is done, in this order: copies that are made elsewhere, and regions that are handed over then.
#[derive(Default)]
struct Steps {
    copies: Vec<MovedCopy>,
    moves: Vec<Move>,
}

impl Steps {
    /// The next ones. Regions that a node serves stay where they are as long as it does: after they are handed over there may be more.
    fn next(map: &ClusterMap, there: &BTreeSet<NodeId>, away: Option<NodeId>) -> Steps {
        let copies = match away {
            Some(_) => Vec::new(),
            None => spread_copies(map, there),
        };
        let copied = copies.iter().fold(map.clone(), |map, one| with_moved(&map, *one));
        let moves = plan(&copied, away);
        Steps { copies, moves }
    }

    fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.moves.is_empty()
    }

    fn add(&mut self, more: Steps) {
        self.copies.extend(more.copies);
        self.moves.extend(more.moves);
    }

    fn after(&self, map: &ClusterMap) -> ClusterMap {
        let copied = self.copies.iter().fold(map.clone(), |map, one| with_moved(&map, *one));
        with_moves(&copied, &self.moves)
    }

    fn said(&self) -> String {
        let copies = self.copies.iter().map(|one| said_of_copy(*one));
        copies.chain(self.moves.iter().map(|one| said_of_move(*one))).collect()
    }
}

/// Has copies made elsewhere; gives how many. Where others have changed the map so that the plan does not hold any more it ends there.
async fn make_copies(
    local: &Rc<LocalClient>,
    map: &mut ClusterMap,
    copies: &[MovedCopy],
    wait: Duration,
) -> Result<usize, CliError> {
    let bar = progress::count("copies made", copies.len() as u64, copies.is_empty());
    for (made, one) in copies.iter().enumerate() {
        bar.set_message(format!("region {} to node {}", one.region.0, one.to.0));
        match move_copy(local, map, *one, wait).await {
            Ok(()) => bar.inc(1),
            Err(FsError::Invalid(why)) => {
                tracing::debug!(%why, "planned anew");
                bar.finish_and_clear();
                return Ok(made);
            }
            Err(error) => {
                let what = format!("making a copy of region {} for node {}", one.region.0, one.to.0);
                return Err(failed(what, error));
            }
        }
    }
    bar.finish_and_clear();
    Ok(copies.len())
}

/// Has regions handed over, one after the other.
async fn hand_over_all(local: &Rc<LocalClient>, moves: &[Move], wait: Duration) -> Result<(), CliError> {
    let bar = progress::count("regions handed over", moves.len() as u64, moves.is_empty());
    for one in moves {
        let Move { region, from, to } = one;
        bar.set_message(format!("region {} to node {}", region.0, to.0));
        let what = || format!("handing region {} over from node {} to node {}", region.0, from.0, to.0);
        let done = hand_over(local, *one, Instant::now() + wait).await;
        done.map_err(|error| failed(what(), error))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

fn failed(what: String, source: FsError) -> CliError {
    CliError::Fs { what, source }
}

fn said_of_copy(one: MovedCopy) -> String {
    let (region, to) = (one.region.0, one.to.0);
    match one.from {
        Some(from) => format!("region {region}: a copy from node {} to node {to}\n", from.0),
        None => format!("region {region}: a copy more at node {to}\n"),
    }
}

fn said_of_move(one: Move) -> String {
    format!(
        "region {}: served by node {} instead of node {}\n",
        one.region.0, one.to.0, one.from.0
    )
}

/// Says what was done, or would be, and how the map is afterwards.
fn summary(map: &ClusterMap, done: &Steps, away: Option<NodeId>, is_dry: bool) -> Result<Exit, CliError> {
    let verb = if is_dry { "would be" } else { "were" };
    let mut said = String::new();
    if !done.copies.is_empty() {
        let _ = writeln!(
            said,
            "{} copies {verb} made elsewhere: {}",
            done.copies.len(),
            kept_where(map)
        );
    }
    match done.moves.len() {
        0 if done.copies.is_empty() => said += "nothing to do: ",
        n => {
            let _ = write!(said, "{n} regions {verb} handed over: ");
        }
    }
    let _ = writeln!(said, "{}", spread(map));
    print(said)?;
    let stays: Vec<String> = (map.regions.iter())
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
}

/// Has a copy made where it is to be, while its region is served, whoever does that meanwhile.
async fn move_copy(
    local: &Rc<LocalClient>,
    map: &mut ClusterMap,
    one: MovedCopy,
    wait: Duration,
) -> Result<(), FsError> {
    let MovedCopy { region, from, to } = one;
    let begun = Instant::now();
    loop {
        let primary = map.primary(region).ok_or(FsError::NotFound)?;
        match local.ask(primary, ask::MoveCopy { region, from, to }).await {
            Err(FsError::Retry) if begun.elapsed() < wait => {}
            Err(FsError::Retry) => {
                let why = "it is not whole yet; nodes go on making it, give the command again to go on";
                return Err(FsError::Io(why.into()));
            }
            Err(FsError::Unreachable { .. } | FsError::WrongEpoch) if begun.elapsed() < NOTICED_WITHIN => {
                if let Ok((newer, _)) = newest(local, map).await {
                    *map = newer;
                }
            }
            done => return done,
        }
        tokio::time::sleep(AGAIN).await;
    }
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

/// The newest map that any node has, and which of them answer.
async fn newest(local: &Rc<LocalClient>, known: &ClusterMap) -> Result<(ClusterMap, BTreeSet<NodeId>), FsError> {
    let mut newest: Option<ClusterMap> = None;
    let mut there = BTreeSet::new();
    let mut error = FsError::Io("there is no node".into());
    for node in known.nodes.iter().map(|node| node.id) {
        match local.ask(node, ask::Map).await {
            Ok(map) => {
                there.insert(node);
                if newest.as_ref().is_none_or(|known| map.epoch > known.epoch) {
                    newest = Some(map);
                }
            }
            Err(why) => error = why,
        }
    }
    let newest = newest.ok_or(error)?;
    there.retain(|node| newest.node(*node).is_some());
    Ok((newest, there))
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

/// Why it would help to have copies made elsewhere, or regions handed over; `there`: the nodes that answer.
pub(crate) fn unevenness(map: &ClusterMap, there: &BTreeSet<NodeId>) -> Option<String> {
    match (spread_copies(map, there).is_empty(), plan(map, None).is_empty()) {
        (true, true) => None,
        (true, false) => Some(spread(map)),
        (false, true) => Some(kept_where(map)),
        (false, false) => Some(format!("{}; {}", kept_where(map), spread(map))),
    }
}

/// How many regions, of those with copies, each node has: for people.
fn kept_where(map: &ClusterMap) -> String {
    let kept = kept_by(map, &map.nodes.iter().map(|node| node.id).collect());
    let each = kept
        .into_iter()
        .map(|(node, count)| format!("node {} keeps {count}", node.0));
    each.collect::<Vec<_>>().join(", ")
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
        let there = map.nodes.iter().map(|node| node.id).collect();
        let said = unevenness(&map, &there).unwrap();
        assert!(said.contains("node 0 serves 0"), "{said}");
        assert_eq!(unevenness(&after, &there), None);
    }

    /// What nodes keep is what they serve: only when that is handed over copies can go.
    #[test]
    fn copies_and_what_is_served_are_evened_out_in_turn() {
        let [one, other]: [&[u16]; 2] = [&[0, 1], &[1, 0]];
        for regions in [[one, one, one, one, other, other, other, other], [one; 8]] {
            let mut map = map(4, &regions);
            let there = map.nodes.iter().map(|node| node.id).collect();
            let mut rounds = 0;
            loop {
                let next = Steps::next(&map, &there, None);
                if next.is_empty() {
                    break;
                }
                map = next.after(&map);
                rounds += 1;
            }
            assert!(rounds < ROUNDS_MAX, "{rounds}");
            assert_eq!(counts(&map), [2; 4]);
            assert!(kept_where(&map).matches("keeps 4").count() == 4, "{}", kept_where(&map));
        }
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
            assert!(plan(&after, None).is_empty());
            // what cannot be better has a set of nodes that share their regions with each other alone
            let top = most(&after);
            let least = after.regions.len().div_ceil(usize::from(nodes));
            assert!(top == least || step(&after, None).is_none());
        }
    }
}
