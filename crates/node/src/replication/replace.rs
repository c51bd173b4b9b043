//! A copy whose node does not come back, or has no room for it, is made elsewhere; and what a node has of regions of which the map gives
//! it none any more goes back to its pool.
//!
//! ```text
//! primary             the mirror is away: it leaves the set (keeper) ........ for long: another node is named in its stead, as a backup
//! node that is named  ...................................................... filled, whole, a mirror (keeper, as every new copy)
//! node that was away  comes back: a majority confirms that it is to have none --> its segments are free
//! ```
//!
//! Invariants:
//!
//! - A region's list of replicas is changed by its primary alone, by compare-and-set, and only a backup is taken off it: who may take the
//!   primary's place, or thinks so, is asked for nothing less than before. (Where an operator takes a node out of the map for good, all
//!   that it is goes with it.)
//! - The primary changes a list only when it follows the one that there is: of a node that was taken off it knows nothing any more before it
//!   names that node again, which may have given its copy back between.
//! - Who was the primary and may still write what it has decided then stays on the list until it is fenced off where that goes: who takes
//!   our place knows by the list whom to fence off.
//! - A lease of one who has taken our place, and has since forgotten us, counts for nothing (`leases::may_count`).
//! - A copy that the map does not name is never promoted: it is given back, and only by a map that a majority has confirmed and that this
//!   node still goes by then. What the configuration says alone frees nothing.

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use polvo_cluster::{Links, Timeouts, join_all, replace_copies};
use polvo_format::{Epoch, NodeId, RegionId};
use polvo_proto::{ClusterMap, Cred, FsError, ask};
use polvo_region::planted::{Planted, planted};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a node looks for copies that it is not to have.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(5);

/// Has another node get the copy of a region that one was to have, and where that is away those of all our regions; as far as there are
/// nodes that answer, have none yet, and have the room.
///
/// # Errors
/// As [`Node::change_map`].
pub(super) async fn replace(
    node: &Arc<Node>,
    links: &Rc<Links>,
    service: &Arc<RegionService>,
    copy: NodeId,
    is_away: bool,
) -> Result<(), FsError> {
    let (us, before) = (node.id(), node.map());
    let others = before
        .nodes
        .iter()
        .map(|node| node.id)
        .filter(|id| *id != us && *id != copy);
    let room = join_all(others.map(|other| async move {
        let usage = links.call_node_within(other, Cred::Kernel, ask::Usage, Timeouts::ASIDE);
        Some((other, usage.await.ok()?.free_bytes))
    }));
    let room: BTreeMap<NodeId, u64> = room.await.into_iter().flatten().collect();
    let segment = node.space.usage().segment_size;
    let may_move = |other: &&Arc<RegionService>| {
        let is_fenced = |replication: &Replication| replication.is_confirmed() && !replication.is_unfenced(copy);
        let is_followed =
            |replication: &Replication| before.region(other.id).is_some_and(|info| replication.follows(info));
        (is_away || other.id == service.id)
            && other
                .replication()
                .is_some_and(|ours| is_fenced(ours) && is_followed(ours))
    };
    let ours = node.regions.all().filter(may_move);
    // and its lane
    let needed = |region: RegionId| (node.space.segments_of(region).len() as u64 + 1) * segment;
    let regions: BTreeMap<RegionId, u64> = ours.map(|other| (other.id, needed(other.id))).collect();
    let change = |map: &ClusterMap| {
        let is_known = |region: RegionId| {
            map.region(region).map(|info| info.epoch) == before.region(region).map(|info| info.epoch)
        };
        let mut known = regions.clone();
        known.retain(|region, _| is_known(*region));
        replace_copies(map, us, copy, &known, room.clone())
    };
    if change(&before).is_none() {
        tracing::debug!(region = service.id.0, node = copy.0, "no other node can take this copy");
        return Ok(());
    }
    let map = node.change_map(links, change).await?;
    for info in map.regions.iter().filter(|info| regions.contains_key(&info.id)) {
        let Some(then) = before
            .region(info.id)
            .filter(|then| then.role(copy).is_some() && info.role(copy).is_none())
        else {
            continue;
        };
        let taker = info.replicas.iter().find(|replica| then.role(replica.node).is_none());
        let taker = taker.map_or(u16::MAX, |replica| replica.node.0);
        tracing::warn!(
            region = info.id.0,
            node = copy.0,
            taker,
            "a copy is made elsewhere, as its node is away or full"
        );
    }
    Ok(())
}

/// Gives back what the pool holds of regions of which this node is to have no copy. Runs until it is dropped.
pub(crate) async fn give_back(node: Arc<Node>, links: Rc<Links>) {
    let mut period = interval(GIVE_BACK_EVERY);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        // a client may be storing yet to what it was given when the region was served here
        if strange(&node, &node.map()).is_empty() || node.holds_back() {
            continue;
        }
        let since = Instant::now();
        let confirmed = match planted(Planted::CopyFreedUnconfirmed) {
            true => Ok(node.map()),
            false => node.confirm_map(&links).await,
        };
        match confirmed {
            Ok(map) => strange(&node, &map)
                .into_iter()
                .for_each(|region| node.give_back_copy(region, since)),
            Err(error) => tracing::debug!(%error, "copies that others have now are kept"),
        }
    }
}

/// Regions of which the pool holds something, and this node is to have none by a map that the nodes have made.
fn strange(node: &Node, map: &ClusterMap) -> Vec<RegionId> {
    let mut held = node.space.regions();
    held.extend(node.space.copies());
    held.retain(|region| is_strange(node, map, *region));
    held
}

fn is_strange(node: &Node, map: &ClusterMap, region: RegionId) -> bool {
    let is_elsewhere = map.region(region).is_some_and(|info| info.role(node.id()).is_none());
    is_elsewhere && !node.serves(region) && (map.epoch > Epoch(1) || planted(Planted::CopyFreedUnconfirmed))
}

impl Node {
    /// Whoever has attached `since` may go by a later map than the one that was confirmed.
    fn give_back_copy(&self, region: RegionId, since: Instant) {
        // it may have been named again since
        let is_strange = || is_strange(self, &self.map(), region);
        if self
            .copies
            .give_back(&self.space, region, &self.memory, since, is_strange)
        {
            tracing::warn!(
                region = region.0,
                "the pool had a copy that others have now: it is given back"
            );
        }
    }
}
