//! A region is handed over: one of its mirrors serves it from now on, and this node, which has served it, becomes a mirror. Nobody has
//! died, so nothing has to be waited for but what is under way.
//!
//! ```text
//! primary  tokens come back | closes to requests | those under way end | mirrors get the last records | ends | map | has a copy | tells
//! mirror                                                                                                                       serves
//! ```
//!
//! Invariants:
//!
//! - The service ends only when nobody is in the middle of anything in the region, no transaction of others holds an inode of it, nothing
//!   that it has decided is undispatched, and every mirror has all that was recorded ([`RegionService::give_up`]). So what follows finds nothing half done, and nobody's request is lost:
//!   those that were refused are done by the next primary.
//!   What other nodes write past it are parts of such transactions, the locks last: where none is held nothing is on its way.
//! - It ends before the map is asked to change, and goes on only once it is known that the map has not changed: there is never more than
//!   one who serves it. It is in nobody's reach meanwhile; late stores of this process would go to an empty region.
//! - What is here is equal to what the mirrors have in every byte that recovery reads, and so is what the next primary recovers, which
//!   writes none of them; what was stored here and not flushed is durable before it counts as a copy. All go on behind the last record, as
//!   if nothing had happened: nothing is compared, and there is no moment with a copy fewer.
//! - Nobody believes in a token that was given here: none are given any more, and those that there are were asked for, and have come back
//!   or ended. So it is with the rename lock, which region 0 grants. Locks are claimed from the next primary, which is told who has some;
//!   so a region stays where it is as long as some may be claimed here.
//! - Pages that were delegated here may be stored to for as long as a lease by who has this pool mapped, and stands still in the middle of
//!   it: the next primary gives out no page that was free before.

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use crate::replication::follower::Standing;
use crate::transactions::dispatch;
use polvo_cluster::{Links, Timeouts};
use polvo_format::{Epoch, Ino, NodeId, RegionId};
use polvo_proto::{ClusterMap, Cred, FsError, ReplicaRole, ask};
use polvo_region::Region;
use polvo_region::planted::{Planted, planted};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Requests that have begun are waited for so long; then the region stays where it is.
const DRAIN: Duration = Duration::from_millis(250);
/// How often it is looked whether they have ended.
const DRAIN_POLL: Duration = Duration::from_millis(1);
/// A node that has fewer free segments does not hand a region over: it needs one to become a mirror.
const FREE_SEGMENTS: u32 = 3;
/// How often it is looked whether tokens have come back.
const RECALL_POLL: Duration = Duration::from_millis(10);
/// Between two attempts to learn how a change of the map has ended.
const LEARN_AGAIN: Duration = Duration::from_millis(100);

/// A region that is about to be handed over, until that has come to an end.
struct Leaving<'a> {
    node: &'a Node,
    service: &'a Arc<RegionService>,
    is_given_up: bool,
}

impl<'a> Leaving<'a> {
    fn begin(node: &'a Node, service: &'a Arc<RegionService>) -> Leaving<'a> {
        service.set_leaving(true);
        if service.id == Ino::ROOT.region() {
            node.rename_lock.set_closed(true);
        }
        Leaving {
            node,
            service,
            is_given_up: false,
        }
    }

    /// Nobody has the rename lock, if it is granted by this region.
    fn may_rename_elsewhere(&self) -> bool {
        self.service.id != Ino::ROOT.region() || self.node.rename_lock.is_free(&self.node.map())
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.service.set_leaving(false);
        if !self.is_given_up {
            self.node.rename_lock.set_closed(false);
            self.service.reopen(None);
        }
    }
}

impl Node {
    /// See [`polvo_proto::Request::HandOver`]. Runs to its end, whatever becomes of who has asked.
    ///
    /// # Errors
    /// As there; EIO when the map cannot be changed.
    pub(crate) async fn hand_over(
        self: &Arc<Self>,
        links: &Rc<Links>,
        region: RegionId,
        to: NodeId,
    ) -> Result<(), FsError> {
        let (node, links) = (self.clone(), links.clone());
        let run = tokio::task::spawn_local(async move { node.hand_over_one(&links, region, to).await });
        run.await.map_err(|_| self.stopping_error())?
    }

    async fn hand_over_one(self: &Arc<Self>, links: &Rc<Links>, region: RegionId, to: NodeId) -> Result<(), FsError> {
        let _turn = self.handing_over.try_lock().map_err(|_| FsError::Retry)?;
        let map = self.map();
        let Some(service) = self.service(region) else {
            let is_done = map.primary(region) == Some(to);
            return if is_done { Ok(()) } else { Err(FsError::WrongEpoch) };
        };
        let invalid = |why: &str| FsError::Invalid(format!("region {}: {why}", region.0));
        let replication = service.replication().ok_or_else(|| invalid("it has no copies"))?;
        if to == self.id() {
            return Ok(());
        }
        if map.region(region).and_then(|info| info.role(to)) != Some(ReplicaRole::Mirror) {
            return Err(invalid(&format!("node {} is no mirror of it that has all of it", to.0)));
        }
        let awaits_claims = || self.claims.lock().contains_key(&region) || self.locks.is_claimed(region);
        if !replication.is_confirmed() || self.is_stopping() || awaits_claims() {
            return Err(FsError::Retry);
        }
        // for the lane of what is a copy afterwards; others may take some meanwhile
        let has_room = || self.space.usage().free_segments >= FREE_SEGMENTS;
        if !has_room() {
            Box::pin(self.seek_room(links, 2 * Timeouts::RELEASE)).await;
        }
        if !has_room() {
            return Err(FsError::NoSpace);
        }
        let mut leaving = Leaving::begin(self, service);
        // who took one just now is found
        service.enter(|_| ());
        self.recall(region, &leaving).await?;
        let since = Instant::now();
        service.close_to_requests();
        self.locks.send_away(region);
        let given_up = self.give_up(links, service, replication, since + DRAIN).await?;
        leaving.is_given_up = true;
        match self.change_primary(links, region, to).await {
            // nobody but who serves it changes that
            map if map.primary(region) == Some(self.id()) && !self.was_elsewhere(region) => {
                service.reopen(Some(given_up));
                replication.go_on(&self.leases);
                leaving.is_given_up = false;
                Err(FsError::Retry)
            }
            map => {
                drop(given_up);
                self.become_mirror(links, service, &map, to).await;
                let after_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                tracing::info!(region = region.0, to = to.0, after_us, "handed over");
                Ok(())
            }
        }
    }

    /// Waits until nobody has a token of the region, or the rename lock by it.
    async fn recall(self: &Arc<Self>, region: RegionId, leaving: &Leaving<'_>) -> Result<(), FsError> {
        let deadline = Instant::now() + 2 * self.config.timeouts.token;
        let is_believed = || self.recall_tokens_of(region) && !planted(Planted::HandedOverTokensBelieved);
        while is_believed() || !leaving.may_rename_elsewhere() {
            if Instant::now() >= deadline {
                return Err(FsError::Retry);
            }
            sleep(RECALL_POLL).await;
        }
        Ok(())
    }

    /// Ends the service once nothing is under way there and the mirrors have all of it.
    ///
    /// # Errors
    /// `Retry`: that has not come about in time, or a copy is being made.
    async fn give_up(
        self: &Arc<Self>,
        links: &Rc<Links>,
        service: &Arc<RegionService>,
        replication: &Replication,
        deadline: Instant,
    ) -> Result<Region, FsError> {
        while Instant::now() < deadline {
            if self.has_undispatched_of(service.id) {
                dispatch::reap(self, links, Timeouts::ASIDE).await;
            }
            let is_held = || {
                service.enter(|region| {
                    drop(region.reap());
                    region.is_held()
                })
            };
            if service.is_idle() && !self.has_undispatched_of(service.id) && !is_held() {
                let mut feed = timeout_at(deadline, replication.feed().lock())
                    .await
                    .map_err(|_| FsError::Retry)?;
                let is_made = |standing, in_sync| standing == Standing::Whole && in_sync;
                let mut followers = feed.followers.iter();
                if !followers.all(|follower| is_made(follower.standing, follower.in_sync)) {
                    return Err(FsError::Retry);
                }
                feed.take_and(service, |_| ());
                replication
                    .send_taken(&mut feed, service, links, true)
                    .await
                    .map_err(|_| FsError::Retry)?;
                if !replication.may_promise() {
                    return Err(FsError::Retry); // others may be about to take our place
                }
                if let Some(given_up) = service.give_up(feed.taken) {
                    if !self.has_undispatched_of(service.id) {
                        return Ok(given_up);
                    }
                    service.reopen(Some(given_up));
                    replication.go_on(&self.leases);
                    service.close_to_requests();
                }
            }
            sleep(DRAIN_POLL).await;
        }
        Err(FsError::Retry)
    }

    /// Has another node served the region since it was given up here?
    fn was_elsewhere(&self, region: RegionId) -> bool {
        self.copies.regions().contains(&region) || self.serves(region)
    }

    /// Has the map give the region to one of its mirrors. Gives the map by which that is so, or by which it is known not to be.
    async fn change_primary(self: &Arc<Self>, links: &Rc<Links>, region: RegionId, to: NodeId) -> Arc<ClusterMap> {
        let us = self.id();
        loop {
            match self.change_map(links, |map| handed_over(map, region, us, to)).await {
                Ok(map) => return map,
                // it may have come about
                Err(error) => {
                    tracing::warn!(region = region.0, %error, "whether a region is handed over is not known yet");
                    sleep(LEARN_AGAIN).await;
                }
            }
        }
    }

    /// What is here of a region that was given up is a copy from now on; who serves it now is told so.
    async fn become_mirror(self: &Arc<Self>, links: &Rc<Links>, service: &RegionService, map: &ClusterMap, to: NodeId) {
        let region = service.id;
        let locked = match planted(Planted::HandedOverLocksUntold) {
            true => Some(Vec::new()),
            false => self.locks.locked_by(region),
        };
        self.locks.forget_region(region);
        self.claims.lock().remove(&region);
        let last = service.replication().map(Replication::mirrored).unwrap_or_default();
        if let Err(error) = self.copies.take_in(&self.space, region, last) {
            tracing::warn!(region = region.0, %error, "what was served here is made anew as a copy");
        }
        let take_over = ask::TakeOver {
            region,
            epoch: map.epoch,
            locked,
        };
        let told = async {
            links
                .call_node_at_once(to, Cred::Kernel, ask::NewMap(Box::new(map.clone())))
                .await?;
            links.call_node_at_once(to, Cred::Kernel, take_over).await
        };
        match timeout(Timeouts::ASIDE, told).await {
            Ok(Ok(())) => {}
            // it takes the region over a grace after it has heard of the map
            Ok(Err(error)) => {
                tracing::warn!(region = region.0, to = to.0, %error, "was not told of a region that is its now")
            }
            Err(_) => tracing::warn!(
                region = region.0,
                to = to.0,
                "was not told in time of a region that is its now"
            ),
        }
    }
}

/// The map in which `to` serves a region in the stead of `us`, and we have one of its mirrors; `None` where nothing is to be changed.
fn handed_over(map: &ClusterMap, region: RegionId, us: NodeId, to: NodeId) -> Option<ClusterMap> {
    let mut changed = map.clone();
    changed.epoch = Epoch(map.epoch.0 + 1);
    let info = changed.regions.iter_mut().find(|info| info.id == region)?;
    if info.primary() != Some(us) || info.role(to) != Some(ReplicaRole::Mirror) {
        return None;
    }
    for replica in &mut info.replicas {
        replica.role = match replica.node {
            node if node == to => ReplicaRole::Primary,
            node if node == us => ReplicaRole::Mirror,
            _ => replica.role,
        };
    }
    info.epoch = changed.epoch;
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_proto::{RegionInfo, RegionSet, Replica};

    #[test]
    fn only_a_mirror_gets_a_region_and_only_from_who_serves_it() {
        use ReplicaRole::{Backup, Mirror, Primary};
        let [us, mirror, backup] = [1, 2, 3].map(NodeId);
        let replicas = [(us, Primary), (mirror, Mirror), (backup, Backup)];
        let replicas = replicas.map(|(node, role)| Replica { node, role }).to_vec();
        let map = ClusterMap {
            cluster: [1; 16],
            voters: polvo_consensus::Voters::new([us]),
            epoch: Epoch(8),
            nodes: vec![],
            regions: vec![RegionInfo {
                id: RegionId(5),
                set: RegionSet::default(),
                epoch: Epoch(3),
                replicas,
            }],
        };
        let changed = handed_over(&map, RegionId(5), us, mirror).expect("it is a change");
        let info = changed.region(RegionId(5)).unwrap();
        assert_eq!(
            (changed.epoch, info.epoch, info.primary()),
            (Epoch(9), Epoch(9), Some(mirror))
        );
        assert_eq!([us, backup].map(|node| info.role(node)), [Some(Mirror), Some(Backup)]);
        for (by, to) in [(us, backup), (us, us), (mirror, us), (mirror, mirror)] {
            assert_eq!(handed_over(&map, RegionId(5), by, to), None, "{by:?} to {to:?}");
        }
        assert_eq!(handed_over(&map, RegionId(6), us, mirror), None);
        assert_eq!(handed_over(&changed, RegionId(5), us, mirror), None, "it is so already");
    }
}
