//! Primaries and mirrors watch each other ([`polvo_consensus::lease`] says why that is safe, and a model checker that it is).
//!
//! A primary answers for a region as long as it has a lease of every mirror in its set. It gets one by a *beacon*: a call that says
//! nothing but that it is there. The lease counts from when the beacon was sent; the mirror counts from when it came, which is later.
//! A mirror that has heard nothing for longer than any lease lasts takes over: it answers no beacons of that primary any more, takes
//! away the key by which records come, has the map changed, puts in place what has come, and serves.
//!
//! ```text
//! primary   beacon ----------------- lease ------------|            answers nothing more
//!              \      / answered
//! mirror        came ------------------------ grace -------------| refuses beacons, revokes keys, changes the map, serves
//! ```
//!
//! Clocks need not agree, only run alike: the grace is longer than the lease by what they may drift apart.

use crate::clock::{Clock, outlasting};
use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use crate::replication::promotion::Before;
use crate::request::context::RequestContext;
use parking_lot::Mutex;
use polvo_cluster::{Links, Timeouts};
use polvo_format::{Epoch, NodeId, RegionId};
use polvo_proto::{ClusterMap, Cred, FsError, LockedBy, ReplicaRole, ask};
use polvo_region::planted::{Planted, planted};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// A primary answers for so long after it has sent a beacon that was answered.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// A mirror takes over when it has heard nothing for so long.
pub(crate) const GRACE: Duration = Duration::from_millis(1500);
const _: () = assert!(
    outlasting(LEASE).as_nanos() < GRACE.as_nanos(),
    "a grace is longer than a lease, by whichever clocks"
);
/// A mirror that wakes up so late has stood still, and not heard what it should have.
pub(crate) const STOOD_STILL: Duration = Duration::from_millis(1000);
/// Three beacons a lease.
pub(crate) const BEACON_EVERY: Duration = Duration::from_millis(333);

/// Beacons of which one node has answered none yet: most. Who does not hear it does not let it hear of him for longer, so that others
/// take his place as soon as that of one who has stopped.
const UNANSWERED_MAX: usize = 2;

/// Limits of the calls by which nodes watch each other: what comes later says nothing any more, and a connection over which nothing
/// comes is made anew.
pub(crate) fn timeouts(of_node: &Timeouts) -> Timeouts {
    Timeouts {
        connect: BEACON_EVERY,
        rpc: LEASE,
        ..*of_node
    }
}

/// What is known of a primary of which this node is a mirror.
struct Watch {
    heard: Instant,
    /// Its beacons are refused until it knows a map that is as new as this.
    refused_below: Option<Epoch>,
}

/// Leases that this node has of its mirrors, and what it has heard of its primaries.
pub(crate) struct Leases {
    /// [`LEASE`] by this node's clock.
    lease: Duration,
    /// [`GRACE`] by this node's clock.
    grace: Duration,
    /// When the last beacon was sent that a mirror has answered.
    answered: Mutex<BTreeMap<NodeId, Instant>>,
    watched: Mutex<BTreeMap<NodeId, Watch>>,
    /// Regions that the map gives to this node, which has a copy and does not serve them yet, and since when.
    waiting: Mutex<BTreeMap<RegionId, Instant>>,
    /// Those of them that who served them before has handed over, and who has locks there.
    handed_over: Mutex<BTreeMap<RegionId, Option<Vec<LockedBy>>>>,
    /// There are more of those.
    handed: Notify,
    /// A node that goes by a newer map than this one.
    newer_at: Mutex<Option<NodeId>>,
}

impl Leases {
    /// None yet; by this clock.
    pub fn new(clock: &dyn Clock) -> Leases {
        let grace = match planted(Planted::GraceAsLease) {
            true => LEASE,
            false => GRACE,
        };
        Leases {
            lease: clock.lasts(LEASE),
            grace: clock.lasts(grace),
            answered: Mutex::default(),
            watched: Mutex::default(),
            waiting: Mutex::default(),
            handed_over: Mutex::default(),
            handed: Notify::new(),
            newer_at: Mutex::default(),
        }
    }

    /// How long this node waits for one that may have a lease of it: when that has passed, it has none any more.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Until when a primary may answer whose mirrors are these; `None`: not now.
    pub fn until(&self, mirrors: &[NodeId]) -> Option<Instant> {
        let answered = self.answered.lock();
        let leases = mirrors
            .iter()
            .map(|mirror| answered.get(mirror).map(|sent| *sent + self.lease));
        leases.min().flatten()
    }

    /// Has this one not answered for so long?
    pub fn is_silent(&self, mirror: NodeId, limit: Duration) -> bool {
        self.answered
            .lock()
            .get(&mirror)
            .is_none_or(|sent| sent.elapsed() >= limit)
    }

    fn answered(&self, mirror: NodeId, sent: Instant) {
        let mut answered = self.answered.lock();
        let known = answered.entry(mirror).or_insert(sent);
        *known = (*known).max(sent);
    }

    /// A beacon has come. False: it is refused.
    fn heard(&self, primary: NodeId, epoch: Epoch) -> bool {
        let mut watched = self.watched.lock();
        let now = Instant::now();
        let watch = watched.entry(primary).or_insert(Watch {
            heard: now,
            refused_below: None,
        });
        if watch.refused_below.is_some_and(|needed| epoch < needed) {
            return false;
        }
        *watch = Watch {
            heard: now,
            refused_below: None,
        };
        true
    }

    /// Which of these have not been heard of for longer than any lease lasts, and when they were last. From here on their beacons are
    /// refused.
    fn silent(&self, primaries: &BTreeSet<NodeId>) -> Vec<(NodeId, Instant)> {
        let mut watched = self.watched.lock();
        watched.retain(|primary, _| primaries.contains(primary));
        let now = Instant::now();
        let mut silent = Vec::new();
        for primary in primaries {
            let watch = watched.entry(*primary).or_insert(Watch {
                heard: now,
                refused_below: None,
            });
            if now.duration_since(watch.heard) >= self.grace {
                watch.refused_below = Some(Epoch(u64::MAX));
                silent.push((*primary, watch.heard));
            }
        }
        silent
    }

    /// This node itself has stood still: what it has not heard meanwhile says nothing of others.
    fn begin_anew(&self) {
        let now = Instant::now();
        self.watched.lock().values_mut().for_each(|watch| watch.heard = now);
    }

    /// The map has been changed, or need not be: the primary is heard again once it knows that map.
    fn decided(&self, primary: NodeId, epoch: Epoch) {
        if let Some(watch) = self.watched.lock().get_mut(&primary) {
            *watch = Watch {
                heard: Instant::now(),
                refused_below: Some(epoch),
            };
        }
    }
}

impl Node {
    /// See [`polvo_proto::Request::Beacon`].
    pub(crate) fn beacon(&self, from: NodeId, epoch: Epoch) -> Result<Epoch, FsError> {
        let known = self.map().epoch;
        if epoch > known {
            *self.leases.newer_at.lock() = Some(from);
        }
        let map = self.map();
        let ours = map.regions.iter().filter(|info| info.primary() == Some(self.id()));
        // we may have taken its place there; then it has to know it before it is heard
        let taken = ours
            .filter(|info| info.role(from).is_some())
            .map(|info| info.epoch)
            .max();
        if taken.is_some_and(|taken| epoch < taken) {
            return Err(FsError::WrongEpoch);
        }
        match self.leases.heard(from, epoch) {
            true => Ok(known),
            false => Err(FsError::WrongEpoch),
        }
    }
}

impl RequestContext<'_> {
    /// See [`polvo_proto::Request::TakeOver`].
    pub(crate) fn take_over(
        &self,
        region: RegionId,
        epoch: Epoch,
        locked: Option<Vec<LockedBy>>,
    ) -> Result<(), FsError> {
        let (before, map) = (self.asking_node()?, self.node.map());
        if map.epoch < epoch {
            return Err(FsError::WrongEpoch);
        }
        let info = map.region(region).ok_or(FsError::WrongEpoch)?;
        if info.primary() != Some(self.node.id()) || info.role(before).is_none() {
            return Err(FsError::NotPermitted);
        }
        // served meanwhile: it has waited long enough
        if !self.node.serves(region) {
            self.node.leases.handed_over.lock().insert(region, locked);
            self.node.leases.handed.notify_one();
        }
        Ok(())
    }
}

/// Sends beacons to all that have copies of regions here, so that one which becomes a mirror has heard of us. Runs until it is dropped.
pub(crate) async fn send_beacons(node: Arc<Node>, links: Rc<Links>) {
    let mut renewing: JoinSet<()> = JoinSet::new();
    let mut sending: BTreeMap<NodeId, JoinSet<()>> = BTreeMap::new();
    let mut last_renewal = Instant::now();
    let mut period = interval(BEACON_EVERY);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let begun = node.regions.begun.notified();
        tokio::select! {
            biased;
            // whose mirrors may not have heard of us for long
            () = begun => {}
            _ = period.tick() => {}
        }
        let mut copies = BTreeSet::new();
        let replicated = || node.regions.all().filter_map(|service| service.replication());
        // one that may not have what it should be does not keep others from taking its place
        if replicated().all(Replication::is_confirmed) {
            copies.extend(replicated().flat_map(Replication::nodes));
        }
        while renewing.try_join_next().is_some() {}
        if last_renewal.elapsed() >= node.config.timeouts.renew_every() {
            last_renewal = Instant::now();
            let links = links.clone();
            renewing.spawn_local(async move { drop(links.renew().await) });
        }
        sending.retain(|node, _| copies.contains(node));
        for copy in copies {
            // one that does not answer keeps nobody else waiting
            let unanswered = sending.entry(copy).or_default();
            while unanswered.try_join_next().is_some() {}
            if unanswered.len() < UNANSWERED_MAX {
                let (node, links) = (node.clone(), links.clone());
                unanswered.spawn_local(async move { beacon(&node, &links, copy).await });
            }
        }
    }
}

/// All regions here have leases by what is known now.
fn renew_all(node: &Node) {
    for replication in node.regions.all().filter_map(|service| service.replication()) {
        replication.renew(&node.leases);
    }
}

async fn beacon(node: &Arc<Node>, links: &Rc<Links>, mirror: NodeId) {
    // who goes by a newer map refuses one of ours, and takes one by the map that is learned from it
    for _ in 0..2 {
        let (sent, epoch) = (Instant::now(), node.map().epoch);
        match links
            .call_node_at_once(mirror, Cred::Kernel, ask::Beacon { epoch })
            .await
        {
            Ok(newest) => {
                if newest > epoch {
                    learn_map(node, links, mirror).await;
                }
                if may_count(node, newest) {
                    let was_silent = node.leases.is_silent(mirror, LEASE / 2);
                    node.leases.answered(mirror, sent);
                    renew_all(node);
                    if was_silent {
                        // its copies may become mirrors now
                        let replicated = node.regions.all().filter_map(|service| service.replication());
                        replicated.for_each(Replication::look_after_all);
                    }
                }
                return;
            }
            Err(FsError::WrongEpoch) => learn_map(node, links, mirror).await,
            Err(error) => {
                tracing::debug!(node = mirror.0, %error, "beacon");
                return;
            }
        }
        if node.map().epoch <= epoch {
            return;
        }
    }
}

/// Is the answer of one that goes by the map of this epoch a lease? It may know, and have forgotten since we are none of the region's
/// replicas any more, that others have taken our place: what the map says of it counts before the lease does.
fn may_count(node: &Node, epoch: Epoch) -> bool {
    let map = node.map();
    let is_ours = |service: &Arc<RegionService>| map.primary(service.id) == Some(node.id());
    map.epoch >= epoch && node.regions.all().all(is_ours) || planted(Planted::LeaseByNewerMap)
}

async fn learn_map(node: &Arc<Node>, links: &Rc<Links>, from: NodeId) {
    if let Ok(map) = links.call_node_at_once(from, Cred::Kernel, ask::Map).await {
        node.map.offer(map);
    }
}

/// Watches the primaries of which this node has copies that count, and takes their place. Runs until it is dropped, or the node ends:
/// then it hears of nobody any more.
pub(crate) async fn watch(node: Arc<Node>, links: Rc<Links>) {
    let mut period = interval(BEACON_EVERY);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let waits_since = Instant::now();
        tokio::select! {
            biased;
            _ = period.tick() => {}
            () = node.leases.handed.notified() => {}
        }
        if node.is_stopping() && !planted(Planted::PlaceTakenWhileEnding) {
            return;
        }
        if waits_since.elapsed() > STOOD_STILL {
            node.leases.begin_anew();
        }
        let newer_at = node.leases.newer_at.lock().take();
        if let Some(newer_at) = newer_at {
            learn_map(&node, &links, newer_at).await;
        }
        let map = node.map();
        let primaries = map
            .regions
            .iter()
            .filter(|info| info.role(node.id()) == Some(ReplicaRole::Mirror));
        let primaries: BTreeSet<NodeId> = primaries.filter_map(|info| info.primary()).collect();
        succeed_by_map(&node, &map);
        for (primary, heard) in node.leases.silent(&primaries) {
            if let Err(error) = take_over(&node, &links, primary, heard).await {
                tracing::warn!(node = primary.0, %error, "a node is gone, and its place could not be taken");
            }
        }
    }
}

/// Serves what the map gives to this node, and of which it has a copy: it had taken the place of the primary when it was started anew,
/// or the change came about later than it has waited for. Whoever has served it before may have a lease of ours for a while.
fn succeed_by_map(node: &Arc<Node>, map: &ClusterMap) {
    let mut waiting = node.leases.waiting.lock();
    let mut handed_over = node.leases.handed_over.lock();
    let is_ours = |region: &RegionId| map.primary(*region) == Some(node.id()) && !node.serves(*region);
    waiting.retain(|region, _| is_ours(region));
    handed_over.retain(|region, _| is_ours(region));
    for region in node.copies.regions().into_iter().filter(is_ours) {
        let since = waiting.entry(region).or_insert_with(|| {
            node.copies.seal(region, &node.memory);
            Instant::now()
        });
        let before = match handed_over.get(&region) {
            Some(locked) => Before::GaveUp(locked.clone()),
            None if since.elapsed() < node.leases.grace() => continue,
            None => Before::Heard(*since),
        };
        if let Err(error) = node.promote(region, map, before) {
            tracing::error!(region = region.0, %error, "a copy could not take its region's place");
            *since = Instant::now();
        }
    }
}

/// Takes the place of a primary in all regions of which we are a mirror.
async fn take_over(node: &Arc<Node>, links: &Rc<Links>, gone: NodeId, heard: Instant) -> Result<(), FsError> {
    let since = Instant::now();
    let us = node.id();
    let regions = |map: &ClusterMap| -> Vec<RegionId> {
        let ours = map.regions.iter().filter(|info| info.primary() == Some(gone));
        ours.filter(|info| info.role(us) == Some(ReplicaRole::Mirror))
            .map(|info| info.id)
            .collect()
    };
    // nothing more comes from it, and what has come is all there is
    let whole: BTreeSet<RegionId> = regions(&node.map())
        .into_iter()
        .filter(|region| node.copies.seal(*region, &node.memory))
        .collect();
    // of two that do not hear each other one goes on: the other one has lost its place when it comes to take the first one's
    let is_ending = || node.is_stopping() && !planted(Planted::PlaceTakenWhileEnding);
    let goes_on =
        |map: &ClusterMap| !is_ending() && node.regions.all().all(|service| map.primary(service.id) == Some(us));
    let step = |map: &ClusterMap| goes_on(map).then(|| succeed(map, us, gone, &whole)).flatten();
    let map = node.change_map(links, step).await?;
    node.leases.decided(gone, map.epoch);
    for region in whole {
        if map.primary(region) != Some(us) || node.serves(region) {
            continue;
        }
        match node.promote(region, &map, Before::Heard(heard)) {
            Ok(()) => {
                let after_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                tracing::warn!(region = region.0, from = gone.0, after_us, "served here now");
            }
            Err(error) => {
                tracing::error!(region = region.0, %error, "a copy could not take its region's place");
            }
        }
    }
    Ok(())
}

/// The map in which `us` serves the regions that `gone` has served, as far as we have copies that count. Who else has a copy gets a new
/// one, since nobody knows which records it has.
fn succeed(map: &ClusterMap, us: NodeId, gone: NodeId, whole: &BTreeSet<RegionId>) -> Option<ClusterMap> {
    let mut changed = map.clone();
    changed.epoch = Epoch(map.epoch.0 + 1);
    let mut any = false;
    for info in &mut changed.regions {
        let is_ours = info.primary() == Some(gone) && info.role(us) == Some(ReplicaRole::Mirror);
        if !is_ours || !whole.contains(&info.id) {
            continue;
        }
        for replica in &mut info.replicas {
            replica.role = match replica.node == us {
                true => ReplicaRole::Primary,
                false => ReplicaRole::Backup,
            };
        }
        info.epoch = changed.epoch;
        any = true;
    }
    any.then_some(changed)
}

/// Ends the node once the map gives a region to somebody else that it serves: others may have changed it since. Runs until it is
/// dropped.
pub(crate) async fn give_way(node: Arc<Node>) {
    let mut period = interval(BEACON_EVERY);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        let map = node.map();
        let is_confirmed = |service: &&Arc<RegionService>| service.replication().is_some_and(Replication::is_confirmed);
        let confirmed = || node.regions.all().filter(is_confirmed);
        let deposed = confirmed().find(|service| map.primary(service.id) != Some(node.id()));
        if let Some(service) = deposed {
            let (region, now) = (service.id.0, map.primary(service.id));
            let now = now.map_or("nobody".to_string(), |node| format!("node {}", node.0));
            tracing::error!("region {region} is served by {now} since this node was away: it starts anew");
            *node.refused.lock() = Some(FsError::Deposed { region });
            // first, or it would look as if it had lost none and could take a place
            node.stop();
            // the other regions, too: what waits for their mirrors, which have heard nothing, would keep this node from ending
            confirmed().for_each(|service| service.end());
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use polvo_proto::{RegionInfo, RegionSet, Replica};

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_is_heard_again_with_a_newer_map() {
        let (leases, primary) = (Leases::new(&SystemClock), NodeId(3));
        let all = BTreeSet::from([primary]);
        assert!(leases.silent(&all).is_empty(), "watched from now on");
        tokio::time::advance(GRACE / 2).await;
        assert!(leases.heard(primary, Epoch(4)));
        tokio::time::advance(GRACE - Duration::from_millis(1)).await;
        assert!(leases.silent(&all).is_empty() && leases.heard(primary, Epoch(4)));
        tokio::time::advance(GRACE).await;
        assert_eq!(leases.silent(&all).len(), 1);
        assert!(!leases.heard(primary, Epoch(4)) && !leases.heard(primary, Epoch(1 << 40)));
        leases.decided(primary, Epoch(5));
        assert!(!leases.heard(primary, Epoch(4)), "it goes by the map from before");
        assert!(
            leases.heard(primary, Epoch(5)) && leases.heard(primary, Epoch(4)),
            "it has known it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn leases_count_from_the_last_beacon_that_every_mirror_has_answered() {
        let leases = Leases::new(&SystemClock);
        let [a, b] = [1, 2].map(NodeId);
        let start = Instant::now();
        assert_eq!(leases.until(&[a]), None);
        leases.answered(a, start);
        tokio::time::advance(LEASE / 2).await;
        leases.answered(b, Instant::now());
        assert_eq!(leases.until(&[a]), Some(start + LEASE));
        assert_eq!(leases.until(&[a, b]), Some(start + LEASE));
        leases.answered(a, Instant::now());
        leases.answered(a, start); // late
        assert_eq!(leases.until(&[b, a]), Some(start + LEASE / 2 + LEASE));
        assert_eq!(leases.until(&[a, b, NodeId(9)]), None);
    }

    #[test]
    fn a_mirror_takes_what_is_whole_and_others_are_copies_again() {
        let [us, gone, third] = [1, 2, 3].map(NodeId);
        let region = |id, roles: &[(NodeId, ReplicaRole)]| RegionInfo {
            id: RegionId(id),
            set: RegionSet::default(),
            epoch: Epoch(1),
            replicas: roles
                .iter()
                .map(|(node, role)| Replica {
                    node: *node,
                    role: *role,
                })
                .collect(),
        };
        use ReplicaRole::{Backup, Mirror, Primary};
        let map = ClusterMap {
            cluster: [1; 16],
            voters: polvo_consensus::Voters::new([NodeId(1)]),
            epoch: Epoch(8),
            nodes: vec![],
            regions: vec![
                region(0, &[(gone, Primary), (us, Mirror), (third, Mirror)]),
                region(1, &[(gone, Primary), (us, Backup)]),
                region(2, &[(third, Primary), (us, Mirror)]),
                region(3, &[(gone, Primary), (us, Mirror)]),
            ],
        };
        let whole = BTreeSet::from([0, 1, 2].map(RegionId));
        let changed = succeed(&map, us, gone, &whole).unwrap();
        let primaries: Vec<_> = changed.regions.iter().map(|info| info.primary()).collect();
        assert_eq!(
            primaries,
            [Some(us), Some(gone), Some(third), Some(gone)],
            "region 3 has no whole copy"
        );
        assert_eq!(changed.regions[0].role(third), Some(Backup));
        assert_eq!(
            (changed.epoch, changed.regions[0].epoch, changed.regions[1].epoch),
            (Epoch(9), Epoch(9), Epoch(1))
        );
        assert_eq!(
            succeed(&changed, us, gone, &whole),
            None,
            "there is nothing more to take"
        );
    }
}
