//! A node is taken out of the map, as an operator says; and it serves nothing any more, whenever it hears of that.
//!
//! In order: its copies are made elsewhere, others vote, then it goes; a primary follows the map as ever. By force, of one that is dead:
//! nothing is waited for, and where no majority of the voters is left, the node that was asked votes alone from then on, with a map and a
//! ballot above all that the others can have accepted.
//!
//! Invariants:
//!
//! - A node that is removed serves no region: it was refused before as long as it did, or had the only copy that counts.
//! - It is heard by nobody: who learns the map fences it off, and answers it no question of nodes.
//! - It learns the map with any connection to another node, before it serves when it is started, and ends; it keeps that in its pool.
//!
//! What cannot be known: where no majority is left, what the voters that are gone have decided without this node. What was answered then
//! is lost; and one of them that is started again while it reaches nobody serves what it had as if nothing had happened.

use crate::node::Node;
use polvo_cluster::{Links, Timeouts, join_all, without_node};
use polvo_format::{Epoch, NodeId, RegionId};
use polvo_proto::{ClusterMap, Cred, FsError, RegionInfo, Replica, ReplicaRole, ask};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::timeout;

/// Changes of the map that one step may take: copies, voters twice, the node.
const CHANGES_MAX: u32 = 5;

impl Node {
    /// See [`polvo_proto::Request::RemoveNode`].
    pub(crate) async fn remove_node(
        self: &Arc<Self>,
        links: &Rc<Links>,
        gone: NodeId,
        force: bool,
    ) -> Result<Option<Vec<RegionId>>, FsError> {
        let known = self.map();
        if known.node(gone).is_none() {
            return Ok(None);
        }
        let there = self.there(links, &known).await;
        // who was reached has told what it knows
        let known = self.map();
        let has_majority = known.voters.are_majority(|voter| there.contains(&voter));
        if let Err(why) = self.may_remove(&known, gone, force, &there, has_majority) {
            return Err(FsError::Invalid(format!("node {} cannot be removed: {why}", gone.0)));
        }
        if !has_majority {
            let map = self.vote_alone()?;
            let epoch = map.epoch.0;
            tracing::error!(
                node = gone.0,
                epoch,
                "a node is removed by force: this one votes alone from here on"
            );
            return Ok(remaining(&map, gone));
        }
        let mut map = self.confirm_map(links).await?;
        for _ in 0..CHANGES_MAX {
            let step = |map: &ClusterMap| without_node(map, gone, &there, !force);
            let next = self.change_map(links, step).await?;
            let has_changed = next.epoch > map.epoch;
            map = next;
            if !has_changed || map.node(gone).is_none() {
                break;
            }
        }
        if map.node(gone).is_none() {
            tracing::warn!(node = gone.0, "was removed from the cluster");
        }
        Ok(remaining(&map, gone))
    }

    /// Why not?
    fn may_remove(
        &self,
        map: &ClusterMap,
        gone: NodeId,
        force: bool,
        there: &BTreeSet<NodeId>,
        has_majority: bool,
    ) -> Result<(), String> {
        let served = map.regions.iter().filter(|info| info.primary() == Some(gone));
        let is_mirror = |replica: &Replica| replica.role == ReplicaRole::Mirror && there.contains(&replica.node);
        let has_mirror = |info: &&RegionInfo| info.replicas.iter().any(is_mirror);
        let alone: Vec<RegionId> = served
            .clone()
            .filter(|info| !has_mirror(info))
            .map(|info| info.id)
            .collect();
        let served: Vec<RegionId> = served.map(|info| info.id).collect();
        match () {
            () if gone == self.id() => Err("it was asked itself".into()),
            () if force && there.contains(&gone) => Err("it answers; stop it first, or remove it without force".into()),
            () if !alone.is_empty() => Err(format!(
                "no other node that answers has all of regions {}, and their files would be lost with it",
                named(&alone)
            )),
            () if !force && !served.is_empty() => Err(format!(
                "it serves regions {}; stop it, and remove it when others have taken its place (`polvo status`)",
                named(&served)
            )),
            () if !force && !has_majority => Err("no majority of those who vote on the cluster map answers".into()),
            () => Ok(()),
        }
    }

    /// The nodes that answer, this one among them.
    async fn there(&self, links: &Rc<Links>, map: &ClusterMap) -> BTreeSet<NodeId> {
        let others = map.nodes.iter().map(|node| node.id).filter(|id| *id != self.id());
        let asked = others.map(|other| async move {
            let usage = links.call_node_at_once(other, Cred::Kernel, ask::Usage);
            let answer = timeout(Timeouts::ASIDE, usage).await;
            answer.is_ok_and(|answer| answer.is_ok()).then_some(other)
        });
        let answered = join_all(asked).await.into_iter().flatten();
        answered.chain([self.id()]).collect()
    }

    /// Is this node none of the cluster any more, by a map that the nodes have made? (One that is new is in none yet.)
    pub(crate) fn is_removed(&self) -> bool {
        self.has_belonged.load(Relaxed) && is_without(&self.map(), self.id())
    }
}

/// Is a node in none of this map, which the nodes have made?
fn is_without(map: &ClusterMap, node: NodeId) -> bool {
    map.epoch > Epoch(1) && map.node(node).is_none()
}

/// Has a node been in a map that the nodes have made, when this one is such a map?
pub(crate) fn belongs(map: &ClusterMap, node: NodeId) -> bool {
    map.epoch > Epoch(1) && map.node(node).is_some()
}

/// Regions of which a node has a copy yet; `None`: it is removed.
fn remaining(map: &ClusterMap, node: NodeId) -> Option<Vec<RegionId>> {
    map.node(node)?;
    let its = map.regions.iter().filter(|info| info.role(node).is_some());
    Some(its.map(|info| info.id).collect())
}

fn named(regions: &[RegionId]) -> String {
    let ids: Vec<String> = regions.iter().map(|region| region.0.to_string()).collect();
    ids.join(" ")
}

/// Ends the node once the map that has named it does so no more, and fences off others of which that is so. Runs until it is dropped.
pub(crate) async fn follow_removals(node: Arc<Node>) {
    let ids = |map: &ClusterMap| -> BTreeSet<NodeId> { map.nodes.iter().map(|node| node.id).collect() };
    let mut before = ids(&node.map());
    let mut has_said = false;
    loop {
        let map = node.map();
        if belongs(&map, node.id()) {
            node.has_belonged.store(true, Relaxed);
        }
        if is_without(&map, node.id()) && !node.is_removed() && !has_said {
            has_said = true;
            tracing::warn!("this node is not in the cluster yet: `polvo node add` takes it in");
        }
        if node.is_removed() {
            // it is not started again by itself
            node.learn_map(&map);
            tracing::error!(epoch = map.epoch.0, "this node was removed from the cluster: it ends");
            node.regions.all().for_each(|service| service.end());
            *node.refused.lock() = Some(FsError::Removed { node: node.id().0 });
            node.stop();
            return;
        }
        let now = ids(&map);
        for gone in before.difference(&now) {
            node.fence_off(*gone).await;
        }
        before = now;
        node.map.newer_than(map.epoch).await;
    }
}
