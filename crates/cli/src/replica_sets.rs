//! What `polvo status` says of the regions' replicas: who has them, what lacks copies, what nobody serves.

use crate::table::Table;
use polvo_format::{NodeId, RegionId};
use polvo_proto::{ClusterMap, FsError, RegionInfo, RegionSet, Replica, ReplicaRole};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Regions that a line of text names; of more it says how many. JSON names them all.
const NAMED_MAX: usize = 24;

/// How the replicas of all regions stand, by the map and by what the nodes say of themselves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReplicaSets {
    /// Region sets, by the replicas that each is to have, its primary counted, as far as there are nodes.
    wanted: BTreeSet<usize>,
    regions: usize,
    /// Regions that have fewer mirrors than they are to have: copies are being made, or their nodes do not answer.
    lacking: Vec<RegionId>,
    /// Regions that nobody serves now, and why.
    unserved: BTreeMap<RegionId, Unserved>,
}

/// Why a region is not served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Unserved {
    NoPrimary,
    /// Its primary does not answer.
    Missing(NodeId),
    /// Its primary has not begun to serve it.
    NotYet(NodeId),
    /// Its primary does not know whether others have taken its place.
    Unconfirmed(NodeId),
}

impl Unserved {
    fn explain(self) -> String {
        match self {
            Unserved::NoPrimary => "the cluster map names nobody who would".into(),
            Unserved::Missing(node) => format!("node {} does not answer", node.0),
            Unserved::NotYet(node) => format!("node {} has not begun to", node.0),
            Unserved::Unconfirmed(node) => format!("node {} waits for a majority of the nodes that vote", node.0),
        }
    }
}

impl ReplicaSets {
    /// By a map and the answers of the nodes in it.
    pub(crate) fn of(map: &ClusterMap, answers: &[(NodeId, Result<Value, FsError>)]) -> ReplicaSets {
        let said: BTreeMap<NodeId, &Value> = answers
            .iter()
            .filter_map(|(node, answer)| Some((*node, answer.as_ref().ok()?)))
            .collect();
        let served: BTreeMap<NodeId, Served> = said.iter().map(|(node, said)| (*node, Served::of(said))).collect();
        let wanted = |info: &RegionInfo| usize::from(info.region_set().replicas).min(map.nodes.len());
        let is_lacking = |info: &&RegionInfo| {
            let is_none = |replica: &Replica| match replica.role {
                ReplicaRole::Primary => false,
                ReplicaRole::Mirror => !said.contains_key(&replica.node),
                ReplicaRole::Backup => true,
            };
            info.replicas.len() < wanted(info) || info.replicas.iter().any(is_none)
        };
        let unserved = |info: &RegionInfo| {
            let why = match info.primary() {
                None => Some(Unserved::NoPrimary),
                Some(node) => match served.get(&node) {
                    None => Some(Unserved::Missing(node)),
                    Some(served) => served.lacks(info.id, node),
                },
            };
            why.map(|why| (info.id, why))
        };
        ReplicaSets {
            wanted: map.regions.iter().map(wanted).collect(),
            regions: map.regions.len(),
            lacking: map.regions.iter().filter(is_lacking).map(|info| info.id).collect(),
            unserved: map.regions.iter().filter_map(unserved).collect(),
        }
    }

    /// Does any region lack a mirror, or somebody who serves it?
    pub(crate) fn are_degraded(&self) -> bool {
        !self.lacking.is_empty() || !self.unserved.is_empty()
    }

    /// A line, and one more for each reason for which regions are not served.
    pub(crate) fn summary(&self) -> String {
        let mut text = match (self.lacking.len(), self.unserved.is_empty()) {
            (0, true) => {
                let wanted: Vec<String> = self.wanted.iter().map(usize::to_string).collect();
                format!("replicas: all regions have {}\n", wanted.join(" or "))
            }
            (0, false) => String::new(),
            (lacking, _) => format!(
                "replicas: DEGRADED: {lacking} of {} regions lack a mirror: {}\n",
                self.regions,
                named(&self.lacking)
            ),
        };
        let mut by_reason = BTreeMap::<Unserved, Vec<RegionId>>::new();
        for (region, why) in &self.unserved {
            by_reason.entry(*why).or_default().push(*region);
        }
        for (why, regions) in by_reason {
            let _ = writeln!(
                text,
                "NOT SERVED: {} of {} regions, since {}: {}",
                regions.len(),
                self.regions,
                why.explain(),
                named(&regions)
            );
        }
        text
    }

    /// The same, with all regions.
    pub(crate) fn as_json(&self) -> Value {
        let unserved = |(region, why): (&RegionId, &Unserved)| json!({ "region": region.0, "why": why.explain() });
        json!({
            "wanted": self.wanted.last(),
            "degraded": self.are_degraded(),
            "lacking": self.lacking.iter().map(|region| region.0).collect::<Vec<_>>(),
            "unserved": self.unserved.iter().map(unserved).collect::<Vec<_>>(),
        })
    }
}

/// What a node says of the regions that it serves.
struct Served {
    regions: BTreeSet<u64>,
    unconfirmed: BTreeSet<u64>,
    /// All of them are listed.
    is_complete: bool,
}

impl Served {
    fn of(status: &Value) -> Served {
        let listed = status["regions"].as_array().map_or(&[][..], Vec::as_slice);
        let ids =
            |regions: &mut dyn Iterator<Item = &Value>| regions.filter_map(|region| region["id"].as_u64()).collect();
        Served {
            regions: ids(&mut listed.iter()),
            unconfirmed: ids(&mut listed.iter().filter(|region| region["confirmed"] == json!(false))),
            is_complete: status["regions_total"].as_u64() == Some(listed.len() as u64),
        }
    }

    /// Why a region is not served by this node, whose it is.
    fn lacks(&self, region: RegionId, node: NodeId) -> Option<Unserved> {
        let id = u64::from(region.0);
        match () {
            () if self.unconfirmed.contains(&id) => Some(Unserved::Unconfirmed(node)),
            () if self.is_complete && !self.regions.contains(&id) => Some(Unserved::NotYet(node)),
            () => None,
        }
    }
}

fn named(regions: &[RegionId]) -> String {
    let ids = regions.iter().take(NAMED_MAX).map(|region| region.0.to_string());
    let listed = ids.collect::<Vec<_>>().join(" ");
    match regions.len().saturating_sub(NAMED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// Nodes that have a role in a region.
fn nodes_with(info: &RegionInfo, role: ReplicaRole) -> Vec<u16> {
    let replicas = info.replicas.iter().filter(|replica| replica.role == role);
    replicas.map(|replica| replica.node.0).collect()
}

/// A region of the map: who serves it, who has a copy that counts, who is to have one: being copied to, away, or without room.
pub(crate) fn region_json(info: &RegionInfo) -> Value {
    json!({
        "id": info.id.0,
        "wanted": info.region_set().replicas,
        "durability": info.set.durability.to_string(),
        "epoch": info.epoch.0,
        "primary": info.primary().map(|node| node.0),
        "mirrors": nodes_with(info, ReplicaRole::Mirror),
        "missing": nodes_with(info, ReplicaRole::Backup),
    })
}

/// When changes of regions with copies are answered: a line, empty where no region has any. Where there are several region sets, a
/// line for each, the default first.
pub(crate) fn sets_said(map: &ClusterMap) -> String {
    let sets: Vec<(RegionSet, usize)> = map
        .sets()
        .map(|regions| (regions[0].region_set(), regions.len()))
        .collect();
    match &sets[..] {
        [_] if !map.is_replicated() => String::new(),
        [(set, _)] => format!("durability: {}\n", set.durability),
        several => {
            let line = |(set, count): &(RegionSet, usize)| format!("set of {count} regions: {set}\n");
            several.iter().map(line).collect()
        }
    }
}

/// The regions by their replica sets, those alike in one row; `None` where no region has copies.
pub(crate) fn sets_table(map: &ClusterMap) -> Option<Table> {
    if !map.is_replicated() {
        return None;
    }
    let mut sets = BTreeMap::<_, Vec<RegionId>>::new();
    for info in &map.regions {
        let with = |role| nodes_with(info, role);
        let set = [ReplicaRole::Primary, ReplicaRole::Mirror, ReplicaRole::Backup].map(with);
        sets.entry(set).or_default().push(info.id);
    }
    let mut table = Table::new(["PRIMARY", "MIRRORS", "MISSING AT", ">COUNT", "REGIONS"]);
    for (set, regions) in &sets {
        let [primary, mirrors, missing] = set.each_ref().map(|nodes| match nodes.is_empty() {
            true => "-".to_string(),
            false => nodes.iter().map(u16::to_string).collect::<Vec<_>>().join(" "),
        });
        table.row([primary, mirrors, missing, regions.len().to_string(), named(regions)]);
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_proto::{Durability, NodeInfo};

    /// Three nodes, two regions each; all copies are made.
    fn map(replicas: u8) -> ClusterMap {
        map_of(&[RegionSet {
            replicas,
            durability: Durability::Sync,
        }])
    }

    fn map_of(sets: &[RegionSet]) -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        let mut map = initial_map([7; 16], (0..3).map(node).collect(), 2, sets);
        let all = map.regions.iter_mut().flat_map(|info| &mut info.replicas);
        all.filter(|replica| replica.role == ReplicaRole::Backup)
            .for_each(|replica| replica.role = ReplicaRole::Mirror);
        map
    }

    /// What the node says that serves what the map gives it.
    fn answer(map: &ClusterMap, node: u16) -> (NodeId, Result<Value, FsError>) {
        let node = NodeId(node);
        let ours = map.regions.iter().filter(|info| info.primary() == Some(node));
        let regions: Vec<Value> = ours.map(|info| json!({ "id": info.id.0, "confirmed": true })).collect();
        (node, Ok(json!({ "regions_total": regions.len(), "regions": regions })))
    }

    fn all_answer(map: &ClusterMap) -> Vec<(NodeId, Result<Value, FsError>)> {
        [0, 1, 2].map(|node| answer(map, node)).into()
    }

    fn missing(node: u16) -> Result<Value, FsError> {
        Err(FsError::Unreachable {
            node,
            why: "refused".into(),
        })
    }

    #[test]
    fn all_replicas_are_there() {
        for replicas in [1, 2, 3] {
            let map = map(replicas);
            let sets = ReplicaSets::of(&map, &all_answer(&map));
            assert!(!sets.are_degraded(), "{sets:?}");
            assert_eq!(sets.summary(), format!("replicas: all regions have {replicas}\n"));
            let json = sets.as_json();
            assert_eq!(
                (&json["wanted"], &json["degraded"], &json["lacking"], &json["unserved"]),
                (&json!(replicas), &json!(false), &json!([]), &json!([]))
            );
        }
    }

    #[test]
    fn regions_whose_copies_are_being_made_are_named() {
        let mut map = map(2);
        for region in [1, 4] {
            map.regions[region].replicas[1].role = ReplicaRole::Backup;
        }
        let sets = ReplicaSets::of(&map, &all_answer(&map));
        assert!(sets.are_degraded());
        assert_eq!(
            sets.summary(),
            "replicas: DEGRADED: 2 of 6 regions lack a mirror: 1 4\n"
        );
        assert_eq!(sets.as_json()["lacking"], json!([1, 4]));
    }

    #[test]
    fn a_node_that_does_not_answer_is_neither_mirror_nor_primary() {
        let map = map(2);
        let mut answers = all_answer(&map);
        answers[1].1 = missing(1);
        let lacking: Vec<u16> = map
            .regions
            .iter()
            .filter(|info| info.role(NodeId(1)) == Some(ReplicaRole::Mirror))
            .map(|info| info.id.0)
            .collect();
        assert_eq!(lacking.len(), 2);
        let sets = ReplicaSets::of(&map, &answers);
        assert_eq!(
            sets.summary(),
            format!(
                "replicas: DEGRADED: 2 of 6 regions lack a mirror: {} {}\n\
                 NOT SERVED: 2 of 6 regions, since node 1 does not answer: 1 4\n",
                lacking[0], lacking[1]
            )
        );
        let unserved =
            json!([{ "region": 1, "why": "node 1 does not answer" }, { "region": 4, "why": "node 1 does not answer" }]);
        assert_eq!(sets.as_json()["unserved"], unserved);
    }

    #[test]
    fn without_copies_a_missing_node_leaves_its_regions_unserved() {
        let map = map(1);
        let mut answers = all_answer(&map);
        answers[2].1 = missing(2);
        let sets = ReplicaSets::of(&map, &answers);
        assert_eq!(
            sets.summary(),
            "NOT SERVED: 2 of 6 regions, since node 2 does not answer: 2 5\n"
        );
    }

    #[test]
    fn a_primary_that_does_not_serve_is_told_from_one_that_does() {
        let mut map = map(2);
        let mut answers = all_answer(&map);
        answers[0].1 = Ok(json!({
            "regions_total": 2, "regions": [{ "id": 0, "confirmed": false }, { "id": 3, "confirmed": true }],
        }));
        answers[1].1 = Ok(json!({ "regions_total": 1, "regions": [{ "id": 4 }] }));
        // more than it lists
        answers[2].1 = Ok(json!({ "regions_total": 900, "regions": [] }));
        map.regions[5].replicas[0].role = ReplicaRole::Mirror;
        let sets = ReplicaSets::of(&map, &answers);
        assert_eq!(
            sets.summary(),
            "NOT SERVED: 1 of 6 regions, since the cluster map names nobody who would: 5\n\
             NOT SERVED: 1 of 6 regions, since node 1 has not begun to: 1\n\
             NOT SERVED: 1 of 6 regions, since node 0 waits for a majority of the nodes that vote: 0\n"
        );
        // nothing that a node says can be wrong enough to matter
        for odd in [
            json!(null),
            json!({ "regions": 7 }),
            json!({ "regions": [{ "id": "x" }, 3] }),
        ] {
            answers[0].1 = Ok(odd);
            let _ = ReplicaSets::of(&map, &answers).summary();
        }
    }

    #[test]
    fn long_lists_are_cut_short_in_text_alone() {
        let mut map = map(2);
        let first = map.regions[0].clone();
        map.regions = (0..100)
            .map(|id| RegionInfo {
                id: RegionId(id),
                ..first.clone()
            })
            .collect();
        map.regions
            .iter_mut()
            .for_each(|info| info.replicas[1].role = ReplicaRole::Backup);
        let sets = ReplicaSets::of(&map, &[(NodeId(0), Ok(json!({})))]);
        assert!(sets.summary().ends_with(" 22 23 and 76 more\n"), "{}", sets.summary());
        assert_eq!(sets.as_json()["lacking"].as_array().map(Vec::len), Some(100));
    }

    #[test]
    fn when_changes_are_answered_is_said_where_there_are_copies() {
        assert_eq!(sets_said(&map(1)), "");
        assert_eq!(sets_said(&map(2)), "durability: sync\n");
        let set = |replicas, durability| RegionSet { replicas, durability };
        let ahead = map_of(&[set(2, Durability::Async)]);
        assert_eq!(sets_said(&ahead), "durability: async\n");
        assert_eq!(region_json(&ahead.regions[0])["durability"], json!("async"));
        let several = map_of(&[
            set(2, Durability::Sync),
            set(1, Durability::Sync),
            set(3, Durability::Async),
        ]);
        assert_eq!(
            sets_said(&several),
            "set of 6 regions: replicas=2 durability=sync\nset of 6 regions: replicas=1\n\
             set of 6 regions: replicas=3 durability=async\n"
        );
        let said = ReplicaSets::of(&several, &all_answer(&several));
        assert_eq!(said.summary(), "replicas: all regions have 1 or 2 or 3\n");
        assert_eq!(region_json(&several.regions[17])["wanted"], json!(3));
    }

    #[test]
    fn regions_are_shown_with_their_replica_sets() {
        assert!(sets_table(&map(1)).is_none(), "there is nothing to show");
        let mut map = map(2);
        map.regions[3].replicas[1].role = ReplicaRole::Backup;
        let table = sets_table(&map).expect("there are copies").to_string();
        let lines = [
            "PRIMARY  MIRRORS  MISSING AT  COUNT  REGIONS",
            "0        -        2               1  3",
            "0        1        -               1  0",
            "1        0        -               1  4",
            "1        2        -               1  1",
            "2        0        -               1  2",
            "2        1        -               1  5",
            "",
        ];
        assert_eq!(table, lines.join("\n"));
        assert_eq!(
            region_json(&map.regions[3]),
            json!({ "id": 3, "wanted": 2, "durability": "sync", "epoch": 1, "primary": 0, "mirrors": [], "missing": [2] })
        );
        assert_eq!(region_json(&map.regions[0])["mirrors"], json!([1]));
    }
}
