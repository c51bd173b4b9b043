//! How full the nodes are, and which region gets a new inode (placement by two choices).

use parking_lot::Mutex;
use polvo_cluster::candidates;
use polvo_format::{Ino, NodeId, RegionId};
use polvo_proto::{ClusterMap, Placement, Usage};
use std::collections::HashMap;

/// What an inode weighs beside the pages of its data: about what its log and the page that its data begins take.
const INODE_WEIGHT: u64 = 4096;

#[derive(Clone, Copy, Default)]
struct Known {
    usage: Usage,
    /// Inodes we have placed there since that was said.
    placed: u64,
    /// It had no room just now.
    full: bool,
}

impl Known {
    /// Bytes in use a million bytes of pool.
    fn score(&self) -> u64 {
        if self.full {
            return u64::MAX;
        }
        let used =
            u128::from(self.usage.data_bytes) + u128::from(self.usage.inodes + self.placed) * u128::from(INODE_WEIGHT);
        let total = u128::from(self.usage.total_bytes.max(1));
        u64::try_from(used * 1_000_000_000 / total).unwrap_or(u64::MAX - 1)
    }
}

/// How full the nodes are, as far as we have heard.
#[derive(Default)]
pub(crate) struct Fullness {
    nodes: Mutex<HashMap<NodeId, Known>>,
}

impl Fullness {
    /// A node has said how full it is.
    pub fn learn(&self, node: NodeId, usage: Usage) {
        self.nodes.lock().insert(
            node,
            Known {
                usage,
                placed: 0,
                full: false,
            },
        );
    }

    /// An inode was placed there.
    pub fn note_placed(&self, node: NodeId) {
        self.nodes.lock().entry(node).or_default().placed += 1;
    }

    /// It had no room for one; it is taken last until it says otherwise.
    pub fn note_full(&self, node: NodeId) {
        self.nodes.lock().entry(node).or_default().full = true;
    }

    /// The region for a new inode, `None` when all have been rejected. First the candidates by hash, the less full
    /// first (`local`: before them, regions of the caller's home); then any other node, the least full first. A node in
    /// `rejected` is not chosen again.
    pub fn choose(
        &self,
        map: &ClusterMap,
        placement: Placement,
        home: Option<NodeId>,
        dir: Ino,
        name: &[u8],
        rejected: &[NodeId],
    ) -> Option<RegionId> {
        let both = candidates(map, dir, name);
        let usable = |node: &NodeId| !rejected.contains(node);
        if let (Placement::Local, Some(home)) = (placement, home.filter(usable))
            && let Some(region) = region_of(map, home, both[0])
        {
            return Some(region);
        }
        let nodes = self.nodes.lock();
        let score = |node: NodeId| nodes.get(&node).map_or(0, Known::score);
        let by_hash = both
            .into_iter()
            .filter_map(|region| map.primary(region).filter(usable).map(|node| (score(node), region)))
            .min_by_key(|(score, _)| *score);
        if let Some((_, region)) = by_hash {
            return Some(region);
        }
        let mut others: Vec<NodeId> = map.nodes.iter().map(|n| n.id).filter(usable).collect();
        others.sort_by_key(|node| score(*node));
        others.into_iter().find_map(|node| region_of(map, node, both[0]))
    }
}

/// One of the regions of a node, spread by the hash that chose `seed`.
fn region_of(map: &ClusterMap, node: NodeId, seed: RegionId) -> Option<RegionId> {
    let own = || map.regions.iter().filter(|region| region.primary() == Some(node));
    let count = own().count();
    own()
        .nth(usize::from(seed.0) / map.nodes.len().max(1) % count.max(1))
        .map(|region| region.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_proto::NodeInfo;

    fn cluster() -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        initial_map([7; 16], (0..3).map(node).collect(), 2)
    }

    fn usage(data_bytes: u64, inodes: u64) -> Usage {
        Usage {
            total_bytes: 1 << 30,
            free_bytes: (1 << 30) - data_bytes,
            inodes,
            free_inodes: 1 << 20,
            data_bytes,
        }
    }

    fn place(fullness: &Fullness, count: u32, placement: Placement, home: Option<NodeId>) -> [u32; 3] {
        let map = cluster();
        let mut placed = [0; 3];
        for i in 0..count {
            let region = fullness
                .choose(&map, placement, home, Ino(1), &i.to_le_bytes(), &[])
                .unwrap();
            let node = map.primary(region).unwrap();
            fullness.note_placed(node);
            placed[usize::from(node.0)] += 1;
        }
        placed
    }

    #[test]
    fn equal_nodes_get_equal_shares() {
        for count in place(&Fullness::default(), 3000, Placement::Hash, None) {
            assert!((950..1050).contains(&count), "{count}");
        }
    }

    #[test]
    fn a_fuller_node_is_spared_until_the_others_catch_up() {
        let fullness = Fullness::default();
        for (node, data) in [(0, 4096 * 1000), (1, 0), (2, 0)] {
            fullness.learn(NodeId(node), usage(data, 0));
        }
        let placed = place(&fullness, 5000, Placement::Hash, None);
        assert!((950..1050).contains(&placed[0]), "{placed:?}");
        assert!(placed[1].abs_diff(placed[2]) < 50, "{placed:?}");
    }

    #[test]
    fn local_goes_home_while_home_has_room() {
        let fullness = Fullness::default();
        let home = Some(NodeId(2));
        assert_eq!(place(&fullness, 100, Placement::Local, home), [0, 0, 100]);
        let map = cluster();
        let elsewhere = fullness
            .choose(&map, Placement::Local, home, Ino(1), b"x", &[NodeId(2)])
            .and_then(|r| map.primary(r));
        assert!(elsewhere.is_some_and(|node| node != NodeId(2)));
    }

    #[test]
    fn every_node_is_tried_once_and_then_none() {
        let (fullness, map) = (Fullness::default(), cluster());
        let mut rejected = Vec::new();
        while let Some(region) = fullness.choose(&map, Placement::Hash, None, Ino(1), b"x", &rejected) {
            rejected.push(map.primary(region).unwrap());
        }
        rejected.sort();
        assert_eq!(rejected, [NodeId(0), NodeId(1), NodeId(2)]);
    }
}
