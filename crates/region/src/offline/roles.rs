//! Who serves which region, and who may take its place, by what the pools of a stopped cluster keep of the cluster map.

use crate::PoolSpace;
use polvo_format::{NodeId, RegionId};
use polvo_proto::{ClusterMap, KeptMap, RegionInfo, ReplicaRole};

/// The newest map that a node knows to have been chosen, and later ones that were perhaps.
#[derive(Default)]
pub(super) struct Roles {
    newest: Option<ClusterMap>,
    accepted: Vec<ClusterMap>,
}

impl Roles {
    /// What one more pool keeps. One that cannot be read says nothing.
    pub fn learn(&mut self, space: &PoolSpace) {
        let kept = space.register().ok().flatten();
        let Some(kept) = kept.and_then(|bytes| KeptMap::decode(&bytes).ok()) else {
            return;
        };
        if let Some((_, map)) = kept.voter.accepted() {
            self.accepted.push(map.clone());
        }
        if self.newest.as_ref().is_none_or(|map| map.epoch < kept.known.epoch) {
            self.newest = Some(kept.known);
        }
    }

    /// Those that there are to be.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        let regions = self.newest.iter().flat_map(|map| &map.regions);
        regions.map(|region| region.id)
    }

    /// Does no pool keep a map?
    pub fn is_unknown(&self) -> bool {
        self.newest.is_none()
    }

    fn region(&self, id: RegionId) -> Option<&RegionInfo> {
        self.newest.as_ref()?.region(id)
    }

    /// The node that serves a region; `None` where no pool knows.
    pub fn primary(&self, id: RegionId) -> Option<NodeId> {
        self.region(id)?.primary()
    }

    /// Is the region to have copies?
    pub fn has_copies(&self, id: RegionId) -> bool {
        self.region(id).is_some_and(|region| region.replicas.len() > 1)
    }

    /// Is it a mirror in the set, which has all that was answered? Not one that a later map, which was perhaps chosen, takes out of it.
    pub fn is_mirror(&self, id: RegionId, node: NodeId) -> bool {
        let epoch = self.newest.as_ref().map(|map| map.epoch);
        let later = self.accepted.iter().filter(|map| Some(map.epoch) > epoch);
        let is_in = |map: &ClusterMap| map.region(id).and_then(|region| region.role(node)) == Some(ReplicaRole::Mirror);
        self.newest.iter().chain(later).all(is_in) && self.newest.is_some()
    }
}
