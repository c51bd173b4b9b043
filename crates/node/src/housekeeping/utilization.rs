//! Utilization of the nodes, and which region gets a new inode (placement by two choices).

use parking_lot::Mutex;
use polvo_cluster::candidates;
use polvo_format::{Ino, NodeId, RegionId};
use polvo_proto::{ClusterMap, Placement, RegionInfo, Replica, ReplicaRole, Usage};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Below this mean fill (a part of all pools) differences in bytes count for less: there is room everywhere.
const ROOMY: f64 = 0.125;
/// A region gets nothing that could go to another one when its nodes are fuller than the other's by more than one of so many parts of what is
/// left in the fullest of their pools.
const LEFT_PARTS: f64 = 4.0;
/// A node with less than one of so many parts of its pool left is spared, as long as there are others.
const TIGHT: u64 = 32;
/// Pools fill up where less than one of so many parts of one belongs to no region.
pub(crate) const CROWDED: u64 = 4;
/// Below this mean number of inodes a node differences in inodes count for less.
const FEW_INODES: f64 = 64.0;

#[derive(Clone, Copy, Default)]
struct Known {
    usage: Usage,
    /// Inodes we have placed there since that was said.
    placed: u64,
    /// How full it is: 0 to 1.
    fill: f64,
    /// It had no room just now.
    full: bool,
}

impl Known {
    /// Hardly any room is left there for more of a region that the node serves, or for more of a copy: that takes segments that are free.
    fn is_tight(&self, role: ReplicaRole) -> bool {
        let left = match role {
            ReplicaRole::Primary => self.usage.free_bytes,
            _ => self.usage.free_segment_bytes,
        };
        self.full || left < self.usage.total_bytes / TIGHT
    }

    fn inodes(&self) -> u64 {
        self.usage.inodes + self.placed
    }

    /// What its regions and its copies of others' take.
    fn used_bytes(&self) -> u64 {
        self.usage.total_bytes.saturating_sub(self.usage.free_bytes)
    }
}

#[derive(Default)]
struct Nodes {
    known: BTreeMap<NodeId, Known>,
    /// Sums over `known`.
    pool_bytes: u64,
    used_bytes: u64,
    inodes: u64,
    /// Somewhere hardly any room is left.
    is_any_tight: bool,
    /// The nodes of one region may be much fuller than those of another.
    is_uneven: bool,
}

impl Nodes {
    #[expect(clippy::cast_precision_loss, reason = "shares need no more than 52 bits")]
    fn learn(&mut self, node: NodeId, usage: Usage) {
        let mut known = Known {
            usage,
            ..Known::default()
        };
        known.fill = known.used_bytes() as f64 / usage.total_bytes.max(1) as f64;
        let before = self.known.insert(node, known).unwrap_or_default();
        debug_assert!(
            self.pool_bytes >= before.usage.total_bytes
                && self.used_bytes >= before.used_bytes()
                && self.inodes >= before.inodes(),
            "the sums have each node in them"
        );
        self.pool_bytes = self.pool_bytes - before.usage.total_bytes + usage.total_bytes;
        self.used_bytes = self.used_bytes - before.used_bytes() + known.used_bytes();
        self.inodes = self.inodes - before.inodes() + usage.inodes;
        self.note_extremes();
        self.check();
    }

    /// The sums are those of what is known.
    fn check(&self) {
        let sum = |of: fn(&Known) -> u64| self.known.values().map(of).fold(0, u64::wrapping_add);
        debug_assert_eq!(self.inodes, sum(Known::inodes), "inodes of all nodes");
        debug_assert_eq!(self.used_bytes, sum(Known::used_bytes), "bytes of all nodes");
        debug_assert_eq!(
            self.pool_bytes,
            sum(|known| known.usage.total_bytes),
            "pools of all nodes"
        );
    }

    fn placed(&mut self, node: NodeId) {
        self.known.entry(node).or_default().placed += 1;
        self.inodes += 1;
    }

    /// Is there room for more of a region at all of its nodes? Its copies take as much as it does.
    fn is_roomy(&self, region: &RegionInfo) -> bool {
        let is_tight = |replica: &Replica| {
            let known = self.known.get(&replica.node);
            known.is_some_and(|known| known.is_tight(replica.role))
        };
        !self.is_any_tight || !region.replicas.iter().any(is_tight)
    }

    fn note_extremes(&mut self) {
        // free segments are free for regions, too
        self.is_any_tight = self.known.values().any(|known| known.is_tight(ReplicaRole::Mirror));
        let fills = || self.known.values().map(|known| known.fill);
        let of = |fill| Fill {
            mean: fill,
            fullest: fill,
        };
        let (least, most) = (fills().fold(1.0, f64::min), fills().fold(0.0, f64::max));
        self.is_uneven = of(most).is_much_more(of(least));
    }

    /// What the shares of nodes are measured by.
    #[expect(clippy::cast_precision_loss, reason = "shares need no more than 52 bits")]
    fn means(&self) -> Means {
        let pools = self.pool_bytes.max(1) as f64;
        Means {
            fill: (self.used_bytes as f64 / pools).max(ROOMY),
            inodes: (self.inodes as f64).max(FEW_INODES * self.known.len() as f64) / pools,
        }
    }

    /// The utilization of a region's nodes beside the others. What they hold of the bytes, copies among them, and what the primary holds of
    /// the inodes count alike, each against the mean, for the size of the pool: a node that was given a few large files is spared inodes
    /// until its share of them is as much below the mean as its share of the bytes is above, and not until all of its bytes are made up for
    /// by others in small files.
    #[expect(clippy::cast_precision_loss, reason = "shares need no more than 52 bits")]
    fn candidate(&self, region: &RegionInfo, primary: NodeId, means: &Means) -> Candidate {
        let mut fill = self.fill(region);
        let score = match self.known.get(&primary) {
            None => 0.0,
            Some(known) if known.full => {
                fill.mean = f64::INFINITY;
                f64::INFINITY
            }
            Some(known) => {
                let pool = known.usage.total_bytes.max(1) as f64;
                fill.mean / means.fill + known.inodes() as f64 / pool / means.inodes
            }
        };
        Candidate {
            region: region.id,
            fill,
            score,
        }
    }

    /// How full a region's nodes are: it takes as much at each of them.
    #[expect(clippy::cast_precision_loss, reason = "they are few")]
    fn fill(&self, region: &RegionInfo) -> Fill {
        let fill = |replica: &Replica| self.known.get(&replica.node).map_or(0.0, |known| known.fill);
        if let [only] = &region.replicas[..] {
            let mean = fill(only);
            return Fill { mean, fullest: mean };
        }
        let (mut sum, mut fullest) = (0.0, 0.0_f64);
        for fill in region.replicas.iter().map(fill) {
            (sum, fullest) = (sum + fill, fullest.max(fill));
        }
        let mean = sum / region.replicas.len().max(1) as f64;
        Fill { mean, fullest }
    }
}

/// Those of all nodes, with least ones where there is hardly anything.
struct Means {
    fill: f64,
    /// A byte of the pools.
    inodes: f64,
}

/// How full the nodes of a region are: 0 to 1.
#[derive(Clone, Copy)]
struct Fill {
    mean: f64,
    fullest: f64,
}

impl Fill {
    /// Is it much more than that of another region's nodes, for what is left? What is placed by inodes alone fills some nodes before
    /// others, and of several copies some need the others' room.
    fn is_much_more(self, other: Fill) -> bool {
        self.mean - other.mean > (1.0 - self.fullest.max(other.fullest)) / LEFT_PARTS
    }
}

/// A region that is looked at for a new inode.
struct Candidate {
    region: RegionId,
    fill: Fill,
    score: f64,
}

impl Candidate {
    /// The less full one. A node that has had no room comes last, however full it is.
    fn or_better(self, other: Candidate) -> Candidate {
        match () {
            () if self.fill.is_much_more(other.fill) => other,
            () if other.fill.is_much_more(self.fill) || self.score <= other.score => self,
            () => other,
        }
    }
}

/// Utilization of the nodes, as far as we have heard.
#[derive(Default)]
pub(crate) struct Utilization {
    nodes: Mutex<Nodes>,
    /// An inode has been placed since `take_used`.
    used: AtomicBool,
}

impl Utilization {
    /// A node has told its utilization.
    pub fn learn(&self, node: NodeId, usage: Usage) {
        self.nodes.lock().learn(node, usage);
    }

    /// An inode was placed there.
    pub fn note_placed(&self, node: NodeId) {
        self.nodes.lock().placed(node);
        self.used.store(true, Relaxed);
    }

    /// It had no room for one; it is taken last until it says otherwise.
    pub fn note_full(&self, node: NodeId) {
        let mut nodes = self.nodes.lock();
        nodes.known.entry(node).or_default().full = true;
        nodes.note_extremes();
    }

    /// Has anything been placed since this was last asked? Else nobody needs news of the others.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    /// Is this region as good a place as the one that was chosen: with room as that has, and its nodes not much fuller?
    pub fn is_as_good(&self, region: &RegionInfo, chosen: &RegionInfo) -> bool {
        let nodes = self.nodes.lock();
        let has_room = nodes.is_roomy(region) || !nodes.is_roomy(chosen);
        let is_fuller = || nodes.is_uneven && nodes.fill(region).is_much_more(nodes.fill(chosen));
        has_room && !is_fuller()
    }

    /// Have the nodes of a region's mirrors room for more of it? Nobody waits for other copies; one that is away says nothing new.
    pub fn has_room_for_copies(&self, region: &RegionInfo) -> bool {
        let nodes = self.nodes.lock();
        let is_tight = |replica: &Replica| {
            let known = nodes.known.get(&replica.node).map(|known| known.usage);
            known.is_some_and(|usage| usage.free_segment_bytes < usage.total_bytes / TIGHT)
        };
        let is_mirror = |replica: &&Replica| replica.role == ReplicaRole::Mirror;
        !region.replicas.iter().filter(is_mirror).any(is_tight)
    }

    /// Does any pool fill up?
    pub fn is_crowded(&self) -> bool {
        let is_crowded = |known: &Known| known.usage.free_segment_bytes < known.usage.total_bytes / CROWDED;
        self.nodes.lock().known.values().any(is_crowded)
    }

    /// The region for a new inode, of the set that the placement says; `None` when all have been rejected. First the candidates by hash, the less full
    /// first (`local`: before them, regions of the caller's home); where one of the nodes that are to keep it has hardly any room left,
    /// a region of which none is so, if there is any; then any other node, the least full first. A node in `rejected` is not chosen
    /// again.
    pub fn choose(
        &self,
        map: &ClusterMap,
        placement: Placement,
        home: Option<NodeId>,
        dir: Ino,
        name: &[u8],
        rejected: &[NodeId],
    ) -> Option<RegionId> {
        let regions = map.of_set(placement.set);
        if regions.is_empty() {
            return None;
        }
        let both = candidates(map, regions, dir, name);
        let usable = |node: &NodeId| !rejected.contains(node);
        if let (true, Some(home)) = (placement.local, home.filter(usable))
            && let Some(region) = region_of(map, regions, home, both[0])
        {
            return Some(region);
        }
        let nodes = self.nodes.lock();
        let means = nodes.means();
        let candidate = |info: &RegionInfo| {
            let primary = info.primary().filter(usable)?;
            Some(nodes.candidate(info, primary, &means))
        };
        let by_hash = match both.map(|region| map.region(region).and_then(candidate)) {
            [Some(one), Some(other)] => Some(one.or_better(other)),
            [one, other] => one.or(other),
        };
        let is_tight = |region: RegionId| map.region(region).is_none_or(|info| !nodes.is_roomy(info));
        let by_hash = match by_hash {
            Some(Candidate { region, .. }) if nodes.is_any_tight && is_tight(region) => {
                let roomy = regions.iter().filter(|info| nodes.is_roomy(info));
                let mut roomy: Vec<Candidate> = roomy.filter_map(candidate).collect();
                roomy.sort_by(|a, b| a.score.total_cmp(&b.score));
                let best = roomy.iter().filter(|found| found.score == roomy[0].score).count();
                let found = roomy.get(usize::from(both[0].0) % best.max(1));
                Some(found.map_or(region, |found| found.region))
            }
            by_hash => by_hash.map(|found| found.region),
        };
        if let Some(region) = by_hash {
            debug_assert!(
                map.primary(region).is_some_and(|node| usable(&node)),
                "a node that was rejected is not chosen again"
            );
            return Some(region);
        }
        // of the node whose best region is the least full, one spread by the hash
        let all = regions.iter().filter_map(candidate);
        let best = all.min_by(|a, b| a.score.total_cmp(&b.score));
        let node = best.and_then(|best| map.primary(best.region))?;
        region_of(map, regions, node, both[0])
    }
}

/// One of those `regions` that a node serves, spread by the hash that chose `seed`.
fn region_of(map: &ClusterMap, regions: &[RegionInfo], node: NodeId, seed: RegionId) -> Option<RegionId> {
    let own = || regions.iter().filter(|region| region.primary() == Some(node));
    let count = own().count();
    own()
        .nth(usize::from(seed.0) / map.nodes.len().max(1) % count.max(1))
        .map(|region| region.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_proto::{NodeInfo, RegionSet};

    fn cluster() -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        initial_map([7; 16], (0..3).map(node).collect(), 2, &[RegionSet::default()])
    }

    fn twice_replicated(regions_per_node: u16) -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        let twice = RegionSet {
            replicas: 2,
            ..RegionSet::default()
        };
        initial_map([7; 16], (0..3).map(node).collect(), regions_per_node, &[twice])
    }

    const LOCAL: Placement = Placement { local: true, set: None };

    fn usage(data_bytes: u64, inodes: u64) -> Usage {
        Usage {
            total_bytes: 1 << 30,
            free_bytes: (1 << 30) - data_bytes,
            free_segment_bytes: (1 << 30) - data_bytes,
            inodes,
            free_inodes: 1 << 20,
            data_bytes,
        }
    }

    fn place(utilization: &Utilization, count: u32, placement: Placement, home: Option<NodeId>) -> [u32; 3] {
        let map = cluster();
        let mut placed = [0; 3];
        for i in 0..count {
            let region = utilization
                .choose(&map, placement, home, Ino(1), &i.to_le_bytes(), &[])
                .unwrap();
            let node = map.primary(region).unwrap();
            utilization.note_placed(node);
            placed[usize::from(node.0)] += 1;
        }
        placed
    }

    #[test]
    fn equal_nodes_get_equal_shares() {
        for count in place(&Utilization::default(), 3000, Placement::default(), None) {
            assert!((950..1050).contains(&count), "{count}");
        }
    }

    #[test]
    fn a_fuller_node_is_spared_as_much_as_it_is_fuller() {
        let utilization = Utilization::default();
        // 40 % of the bytes; the others hold 30 % each
        for (node, data) in [(0, 400 << 20), (1, 300 << 20), (2, 300 << 20)] {
            utilization.learn(NodeId(node), usage(data, 0));
        }
        let placed = place(&utilization, 10_000, Placement::default(), None);
        assert!((2600..2750).contains(&placed[0]), "{placed:?}");
        assert!(placed[1].abs_diff(placed[2]) < 100, "{placed:?}");
    }

    #[test]
    fn inodes_and_bytes_stay_balanced_when_few_files_hold_most_bytes() {
        // Three nodes place files each for its own directories, and hear of one another every 500 files. One file in
        // 200 is as large as 1000 others.
        let map = cluster();
        let choosers: [Utilization; 3] = std::array::from_fn(|_| Utilization::default());
        let mut held = [usage(0, 0); 3];
        let mut random = 0x5eed_u64;
        for i in 0..27_000_u64 {
            if i % 500 == 0 {
                for (chooser, node) in choosers.iter().flat_map(|c| (0..3).map(move |n| (c, n))) {
                    chooser.learn(NodeId(node), held[usize::from(node)]);
                }
            }
            random = random
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let chooser = &choosers[usize::try_from(random >> 40).unwrap() % 3];
            let region = chooser
                .choose(&map, Placement::default(), None, Ino(1), &i.to_le_bytes(), &[])
                .unwrap();
            let node = map.primary(region).unwrap();
            chooser.note_placed(node);
            let to = &mut held[usize::from(node.0)];
            to.inodes += 1;
            to.data_bytes += if (random >> 33).is_multiple_of(200) {
                4 << 20
            } else {
                4 << 10
            };
            *to = usage(to.data_bytes, to.inodes);
        }
        for (what, of) in [
            ("inodes", (|u: &Usage| u.inodes) as fn(&Usage) -> u64),
            ("bytes", |u| u.data_bytes),
        ] {
            let sum: u64 = held.iter().map(of).sum();
            for amount in held.iter().map(of) {
                assert!((27..40).contains(&(amount * 100 / sum)), "{what}: {amount} of {sum}");
            }
        }
    }

    /// Two replicas of each region: as long as two nodes have room for a region and its copy, that is where files go.
    #[test]
    fn a_region_whose_copy_finds_no_room_is_spared() {
        let map = twice_replicated(8);
        let utilization = Utilization::default();
        let choose = |i: u32| {
            let region = utilization.choose(&map, Placement::default(), None, Ino(1), &i.to_le_bytes(), &[]);
            map.region(region.unwrap()).unwrap()
        };
        let is_at = |info: &RegionInfo, node| info.replicas.iter().any(|replica| replica.node == NodeId(node));
        for full in 0..3 {
            for other in 0..3 {
                let data = if other == full { 1000 << 20 } else { 600 << 20 };
                utilization.learn(NodeId(other), usage(data, 0));
            }
            let mut chosen = std::collections::BTreeSet::new();
            for i in 0..1000 {
                let info = choose(i);
                assert!(
                    !is_at(info, full) && utilization.nodes.lock().is_roomy(info),
                    "{info:?}"
                );
                chosen.insert(info.id);
            }
            assert!(chosen.len() > 1, "they are spread: {chosen:?}");
            for mut info in map.regions.clone() {
                for role in [ReplicaRole::Backup, ReplicaRole::Mirror] {
                    let copies = info.replicas.iter_mut().filter(|it| it.role != ReplicaRole::Primary);
                    copies.for_each(|copy| copy.role = role);
                    let is_mirror = info.role(NodeId(full)) == Some(ReplicaRole::Mirror);
                    assert_eq!(utilization.has_room_for_copies(&info), !is_mirror, "{info:?}");
                }
            }
        }
        // nobody has any: it goes where it would
        (0..3).for_each(|other| utilization.learn(NodeId(other), usage(1010 << 20, 0)));
        assert!((0..100).any(|i| is_at(choose(i), 0)));
    }

    /// Files of 400 KiB in a directory of that region, two replicas of each, until the nodes are nearly full. Gives how much of each node's GiB
    /// is used then, in MiB, and how many inodes each has.
    fn fill(map: &ClusterMap, of_dir: RegionId, mut held: [Usage; 3]) -> ([u64; 3], [u64; 3]) {
        let utilization = Utilization::default();
        let of_dir = map.region(of_dir).unwrap();
        for i in 0..3600_u32 {
            if i % 20 == 0 {
                (0..3).for_each(|id| utilization.learn(NodeId(id), held[usize::from(id)]));
            }
            let chosen = utilization.choose(map, Placement::default(), None, Ino(1), &i.to_le_bytes(), &[]);
            let mut info = map.region(chosen.unwrap()).unwrap();
            if info.primary() == of_dir.primary() && utilization.is_as_good(of_dir, info) {
                info = of_dir;
            }
            utilization.note_placed(info.primary().unwrap());
            for replica in &info.replicas {
                let at = &mut held[usize::from(replica.node.0)];
                at.inodes += u64::from(replica.role == ReplicaRole::Primary);
                at.free_bytes = at.free_bytes.saturating_sub(400 << 10);
                at.free_segment_bytes = at.free_bytes;
            }
        }
        (
            held.map(|usage| (usage.total_bytes - usage.free_bytes) >> 20),
            held.map(|usage| usage.inodes),
        )
    }

    fn are_alike(used: [u64; 3]) -> bool {
        used.iter().max().unwrap() - used.iter().min().unwrap() < 1024 / 10
    }

    /// One directory's files fill all nodes alike, those with the copies of its region, too.
    #[test]
    fn copies_fill_their_nodes_as_files_do() {
        let (used, inodes) = fill(&twice_replicated(4), RegionId(4), [usage(0, 0); 3]);
        assert!(are_alike(used), "{used:?} MiB of 1024");
        assert!(inodes.iter().all(|inodes| (1000..1400).contains(inodes)), "{inodes:?}");
    }

    /// A node that has most of the inodes is spared more of them, but not until the others are full.
    #[test]
    fn inodes_do_not_keep_a_node_empty() {
        let mut map = twice_replicated(4);
        // node 0 has died and come back
        for info in map.regions.iter_mut().filter(|info| info.primary() == Some(NodeId(0))) {
            for replica in &mut info.replicas {
                replica.role = match replica.node {
                    NodeId(0) => ReplicaRole::Mirror,
                    _ => ReplicaRole::Primary,
                };
            }
        }
        let (used, inodes) = fill(
            &map,
            RegionId(2),
            [usage(0, 0), usage(10 << 20, 2000), usage(70 << 20, 14_000)],
        );
        assert!(are_alike(used), "{used:?} MiB of 1024, {inodes:?}");
    }

    /// Its pool may have room that none of its regions can use: their mirrors' nodes have none.
    #[test]
    fn a_node_that_has_had_no_room_comes_last() {
        let utilization = Utilization::default();
        for (node, data) in [(0, 100 << 20), (1, 1010 << 20), (2, 1010 << 20)] {
            utilization.learn(NodeId(node), usage(data, 0));
        }
        assert!(place(&utilization, 300, Placement::default(), None)[0] > 0);
        utilization.note_full(NodeId(0));
        assert_eq!(place(&utilization, 300, Placement::default(), None)[0], 0);
    }

    #[test]
    fn local_goes_home_while_home_has_room() {
        let utilization = Utilization::default();
        let home = Some(NodeId(2));
        assert_eq!(place(&utilization, 100, LOCAL, home), [0, 0, 100]);
        let map = cluster();
        let elsewhere = utilization
            .choose(&map, LOCAL, home, Ino(1), b"x", &[NodeId(2)])
            .and_then(|r| map.primary(r));
        assert!(elsewhere.is_some_and(|node| node != NodeId(2)));
    }

    #[test]
    fn every_node_is_tried_once_and_then_none() {
        let (utilization, map) = (Utilization::default(), cluster());
        let mut rejected = Vec::new();
        while let Some(region) = utilization.choose(&map, Placement::default(), None, Ino(1), b"x", &rejected) {
            rejected.push(map.primary(region).unwrap());
        }
        rejected.sort();
        assert_eq!(rejected, [NodeId(0), NodeId(1), NodeId(2)]);
    }
}
