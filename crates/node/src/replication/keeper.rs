//! What is done for copies beside the requests: they are filled, taken into the set and out of it, and told to put in place what has
//! come to their lanes.
//!
//! Who is in the set the map says, and the map changes by consensus ([`Node::change_map`]). A mirror that cannot be reached for
//! [`MIRROR_AWAY`] is taken out of it; then answers go on without it. One that comes back gets what it has missed, or what its copy
//! lacks, and is taken in again. The primary waits for it from before the map says so. One that does not come back is replaced
//! ([`replace`](super::replace)): who is kept up to date follows the map.

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use crate::replication::feed::Feed;
use crate::replication::fill::Filling;
use crate::replication::follower::{Follower, Standing, attach};
use crate::replication::lane_feed::{self, LaneFeed};
use crate::replication::leases::{LEASE, STOOD_STILL};
use crate::replication::replace::replace;
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_fabric::Sparing;
use polvo_format::{Epoch, Lsn, NodeId, RegionId};
use polvo_proto::{ClusterMap, FsError, RegionInfo, ReplicaRole};
use polvo_region::planted::{Planted, planted};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MutexGuard;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// How often it is looked after copies of which nobody has said that something is to be done.
const PERIOD: Duration = Duration::from_millis(500);
/// A mirror that has not been reached for so long is taken out of the set.
pub(crate) const MIRROR_AWAY: Duration = Duration::from_millis(1500);
/// A mirror that this node has not heard yet counts as away when the region has been served for so long.
const FIRST_ANSWER: Duration = Duration::from_millis(500);
/// After a copy could not be made it is tried again so much later, and twice as much later each time up to [`FILL_AGAIN_MAX`]: nodes
/// of a cluster that starts are there one after the other.
const FILL_AGAIN_MIN: Duration = Duration::from_millis(50);
const FILL_AGAIN_MAX: Duration = Duration::from_secs(2);
/// For so long a copy may fail at a node that answers before that is said.
const FAILS_UNSAID: Duration = Duration::from_secs(10);

/// Runs until it is dropped.
pub(crate) async fn run(node: Arc<Node>, links: Rc<Links>) {
    let mut kept: JoinSet<()> = JoinSet::new();
    let mut known: BTreeMap<RegionId, Arc<RegionService>> = BTreeMap::new();
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let begun = node.regions.begun.notified();
        tokio::select! {
            biased;
            () = begun => {}
            _ = period.tick() => {}
        }
        for service in node.regions.all().filter(|service| service.replication().is_some()) {
            let before = known.insert(service.id, service.clone());
            if before.is_none_or(|before| !Arc::ptr_eq(&before, service)) {
                let (node, links, service) = (node.clone(), links.clone(), service.clone());
                kept.spawn_local(async move { keep(&node, &links, &service).await });
            }
        }
    }
}

/// Has a majority of the voters confirm the map before regions with copies are served: what this pool knows of it may be from before
/// others took our place.
pub(crate) async fn confirm(node: Arc<Node>, links: Rc<Links>) {
    let mut replicated = node.regions.all().filter_map(|service| service.replication());
    if replicated.any(Replication::is_successor) {
        tokio::time::sleep(node.leases.grace()).await;
    }
    loop {
        match node.confirm_map(&links).await {
            Ok(map) => {
                // others have taken our place since: nobody was answered here
                let theirs = node
                    .regions
                    .all()
                    .filter(|service| map.primary(service.id) != Some(node.id()));
                for service in theirs {
                    tracing::info!(region = service.id.0, "served elsewhere now");
                    service.end();
                }
                let ours = |info: &&RegionInfo| info.primary() == Some(node.id());
                for info in map.regions.iter().filter(ours) {
                    let replication = node.service(info.id).and_then(|service| service.replication());
                    let Some(replication) = replication else { continue };
                    if let Err(error) = replication.confirm(info, &node.leases).await {
                        tracing::error!(%error, "this node stops");
                        *node.refused.lock() = Some(error);
                        node.stop();
                        return;
                    }
                }
                return;
            }
            Err(error) => tracing::warn!(%error, "regions with copies wait for a majority"),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Looks after the copies of one region, wherever the map wants them to be.
async fn keep(node: &Arc<Node>, links: &Rc<Links>, service: &Arc<RegionService>) {
    let Some(replication) = service.replication() else {
        return;
    };
    let mut keeping: JoinSet<()> = JoinSet::new();
    let (behind, over) = (service.clone(), links.clone());
    keeping.spawn_local(async move {
        if let Some(replication) = behind.replication() {
            replication.follow_up(&behind, &over, PERIOD).await;
        }
    });
    let mut by_node: BTreeMap<NodeId, AbortHandle> = BTreeMap::new();
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !service.is_over() {
        period.tick().await;
        if replication.is_confirmed() {
            let mut feed = replication.feed().lock().await;
            let map = node.map();
            let info = map.region(service.id).filter(|info| info.primary() == Some(node.id()));
            if info.is_some_and(|info| replication.follow(&mut feed, info, &node.leases)) {
                feed.rest_if_idle(service);
            }
            // where nobody waits for mirrors nobody sends: what is recorded for those that are away is not to pile up in the region, nor
            // what it has freed
            if !feed.has_mirror() {
                let _ = replication.send(&mut feed, service, links, true).await;
                feed.rest_if_idle(service);
            }
        }
        while keeping.try_join_next().is_some() {}
        for copy in replication.nodes() {
            if by_node.get(&copy).is_none_or(AbortHandle::is_finished) {
                let (node, links, service) = (node.clone(), links.clone(), service.clone());
                let task = keeping.spawn_local(async move { keep_copy(&node, &links, &service, copy).await });
                by_node.insert(copy, task);
            }
        }
    }
    while keeping.join_next().await.is_some() {}
}

/// What is known of one copy from one look at it to the next.
struct Looks {
    /// It is not tried to make it before.
    not_before: Instant,
    /// So much later the next time.
    pause: Duration,
    /// Its node had no room for it the last time.
    is_full: bool,
    /// Since when it has been where none can be: its node does not answer, or has no room.
    amiss_since: Option<Instant>,
    /// Since when it fails, out of the set, though its node answers and has room.
    fails_since: Option<Instant>,
    /// When that was said.
    said: Sparing,
}

impl Looks {
    /// The node has, or has not, the room for a copy.
    fn note_full(&mut self, region: RegionId, node: NodeId, is_full: bool) {
        if is_full && !self.is_full {
            tracing::warn!(
                region = region.0,
                node = node.0,
                "there is no room for a copy in this node's pool"
            );
        }
        self.is_full = is_full;
    }

    /// A look at a copy out of the set, whose node answers, came to this. Nobody is told of what is mended by the next looks.
    fn note_failure(&mut self, region: RegionId, node: NodeId, error: &FsError) {
        let since = *self.fails_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= FAILS_UNSAID
            && let Some(more) = self.said.may_say()
        {
            let (region, node) = (region.0, node.0);
            tracing::warn!(region, node, %error, more, "a copy cannot be made or does not follow; it is tried again");
        }
    }
}

/// Looks after one copy, as long as its node is to have one.
async fn keep_copy(node: &Arc<Node>, links: &Rc<Links>, service: &Arc<RegionService>, copy: NodeId) {
    let Some(replication) = service.replication() else {
        return;
    };
    let mut looks = Looks {
        not_before: Instant::now(),
        pause: FILL_AGAIN_MIN,
        is_full: false,
        amiss_since: None,
        fails_since: None,
        said: Sparing::default(),
    };
    while !service.is_over() && replication.nodes().contains(&copy) {
        let wanted = replication.wanted();
        let mut next = PERIOD;
        let end = look_after(node, links, service, replication, copy, &mut looks).await;
        let is_mirror = role(&node.map(), service.id, copy) == Some(ReplicaRole::Mirror);
        if is_mirror || looks.is_full || node.leases.is_silent(copy, LEASE) {
            looks.fails_since = None; // the others of these are said elsewhere
        } else if let Err(error) = &end {
            looks.note_failure(service.id, copy, error);
        }
        if let Err(error) = end {
            tracing::debug!(region = service.id.0, node = copy.0, %error, "a copy");
            let again = looks.not_before.saturating_duration_since(Instant::now());
            if !again.is_zero() {
                next = again.min(PERIOD);
            }
        }
        if replication.is_confirmed()
            && let Some(limit) = node.config.replace_after
        {
            let is_away = node.leases.is_silent(copy, LEASE);
            let since = (is_away || looks.is_full).then(|| looks.amiss_since.unwrap_or_else(Instant::now));
            looks.amiss_since = since;
            if since.is_some_and(|since| since.elapsed() >= limit) {
                // whatever comes of it, the next attempt is as much later
                looks.amiss_since = None;
                if let Err(error) = replace(node, links, service, copy, is_away).await {
                    tracing::warn!(region = service.id.0, node = copy.0, %error, "a copy cannot be made elsewhere");
                }
            }
        }
        let waits_since = Instant::now();
        let _ = timeout(next, wanted).await;
        if waits_since.elapsed() >= STOOD_STILL {
            looks.amiss_since = None; // it is this node that was away
        }
    }
}

async fn look_after(
    node: &Arc<Node>,
    links: &Rc<Links>,
    service: &Arc<RegionService>,
    replication: &Replication,
    copy: NodeId,
    looks: &mut Looks,
) -> Result<(), FsError> {
    if !replication.is_confirmed() {
        return Ok(());
    }
    let mut feed = replication.feed().lock().await;
    if feed.is_missed(copy) {
        // nobody waits for it, nor for this
        drop(feed);
        if node.leases.is_silent(copy, LEASE) || Instant::now() < looks.not_before {
            return Ok(());
        }
        looks.not_before = Instant::now() + PERIOD;
        feed = reconnect(service, links, replication, copy).await?;
    }
    let Some(follower) = feed.follower(copy) else {
        return Ok(());
    };
    if node.leases.is_silent(copy, LEASE) {
        // it may come back with another pool: where nothing is to be sent nobody would notice
        follower.lane = None;
    }
    // one that was never asked before, as when the region has just come here, has a moment to answer
    let is_silent = node.leases.is_silent(copy, MIRROR_AWAY) && replication.has_served_for(FIRST_ANSWER);
    let late = is_silent || follower.away_since.is_some_and(|since| since.elapsed() >= MIRROR_AWAY);
    if follower.in_sync && (follower.standing == Standing::Lost || late) {
        return go_on_without(node, links, service, replication, feed, copy).await;
    }
    if follower.away_since.is_some() && node.leases.is_silent(copy, LEASE) {
        return Ok(()); // it would only be waited for once more, and with it the others
    }
    let (mut feed, sent) = catch_up(service, links, replication, feed, copy).await;
    let Some(follower) = feed.follower(copy) else {
        return Ok(());
    };
    match follower.standing {
        Standing::Lost if Instant::now() >= looks.not_before => {
            drop(feed);
            let filled = fill(node, service, links, replication, copy).await;
            looks.note_full(service.id, copy, filled == Err(FsError::NoSpace));
            looks.not_before = Instant::now() + looks.pause;
            looks.pause = (looks.pause * 2).min(FILL_AGAIN_MAX);
            filled?;
            replication.look_after_all();
            Ok(())
        }
        Standing::Lost | Standing::Filling(_) => Ok(()),
        Standing::Whole => {
            sent?;
            let unapplied = follower
                .lane
                .as_ref()
                .filter(|lane| !lane.is_empty())
                .map(|lane| lane.sent());
            if may_join(node, &mut feed, service.id, copy) {
                join_set(node, links, service, replication, &mut feed, copy).await?;
                looks.pause = FILL_AGAIN_MIN;
            }
            drop(feed);
            match unapplied {
                Some(sent) => apply(service, links, replication, copy, sent).await,
                None => Ok(()),
            }
        }
    }
}

/// Connects again to a copy out of the set: it gets what it has missed, or is made anew.
async fn reconnect<'r>(
    service: &RegionService,
    links: &Rc<Links>,
    replication: &'r Replication,
    copy: NodeId,
) -> Result<MutexGuard<'r, Feed>, FsError> {
    let place = attach(copy, service, links, None).await;
    let mut feed = replication.feed().lock().await;
    match place {
        // its lane is full of what waits for room, in the redo log or the pool, and what makes room cannot come: begun anew the copy has
        // none of it
        Err(FsError::Retry | FsError::NoSpace) if !planted(Planted::RetiredNotSought) => feed.lose_missed(copy),
        place => feed.returned(copy, place?, service)?,
    }
    Ok(feed)
}

/// A mirror leaves the set: nothing waits for it any more.
async fn go_on_without(
    node: &Arc<Node>,
    links: &Rc<Links>,
    service: &RegionService,
    replication: &Replication,
    mut feed: MutexGuard<'_, Feed>,
    copy: NodeId,
) -> Result<(), FsError> {
    if !planted(Planted::SetShrunkUntold) {
        leave(node, links, service.id, copy).await?;
    }
    if let Some(follower) = feed.follower(copy) {
        follower.in_sync = false;
    }
    tracing::warn!(
        region = service.id.0,
        node = copy.0,
        "the region goes on without this mirror"
    );
    replication.set_changed(&feed, &node.leases);
    feed.rest_if_idle(service);
    Ok(())
}

/// Sends what there is, even if nothing has changed: so it is found out whether the copy is there. One that is behind gets all that it has
/// missed, and others have their turn meanwhile. Gives how that ended.
async fn catch_up<'r>(
    service: &RegionService,
    links: &Rc<Links>,
    replication: &'r Replication,
    mut feed: MutexGuard<'r, Feed>,
    copy: NodeId,
) -> (MutexGuard<'r, Feed>, Result<(), FsError>) {
    let mut sent = replication.send(&mut feed, service, links, false).await;
    let mut before = None;
    while let has @ Some(_) = feed.catches_up(copy)
        && has > before
        && !service.has_ended()
    {
        before = has;
        drop(feed);
        yield_now().await;
        feed = replication.feed().lock().await;
        sent = replication.send(&mut feed, service, links, false).await;
    }
    (feed, sent)
}

/// Has this copy all there is, and is it in the set, or in that of the map, not yet? It may be in the set and not in the map's: it has come
/// back when it had left those of all regions.
fn may_join(node: &Node, feed: &mut Feed, region: RegionId, copy: NodeId) -> bool {
    let has_joined = role(&node.map(), region, copy) == Some(ReplicaRole::Mirror);
    let in_sync = feed.follower(copy).is_some_and(|follower| follower.in_sync);
    feed.is_current(copy) && !(has_joined && in_sync) && !node.leases.is_silent(copy, LEASE / 2)
}

/// A copy that has all there is becomes a mirror.
async fn join_set(
    node: &Arc<Node>,
    links: &Rc<Links>,
    service: &RegionService,
    replication: &Replication,
    feed: &mut Feed,
    copy: NodeId,
) -> Result<(), FsError> {
    // nothing is answered without it from here on: also when this fails, the map may say that it is one
    if let Some(follower) = feed.follower(copy) {
        follower.in_sync = true;
    }
    replication.set_changed(feed, &node.leases);
    // what was answered before that, while the last records were under way, it must have, too
    if !planted(Planted::JoinedBehind) {
        replication.send(feed, service, links, true).await?;
    }
    join(node, links, service.id, copy).await?;
    tracing::info!(region = service.id.0, node = copy.0, "a mirror more");
    Ok(())
}

/// Has a mirror put in place what has come, up to `sent` at least. More may come meanwhile: nobody waits for this.
async fn apply(
    service: &Arc<RegionService>,
    links: &Rc<Links>,
    replication: &Replication,
    copy: NodeId,
    sent: Lsn,
) -> Result<(), FsError> {
    let applied = lane_feed::apply(copy, service, links, false).await;
    let mut feed = replication.feed().lock().await;
    let Some(follower) = feed.follower(copy) else {
        return Ok(());
    };
    match applied {
        Ok(last) if last >= sent => {
            follower.lane.iter_mut().for_each(|lane| lane.applied(last));
            Ok(())
        }
        // its redo log has no room for what is decided and not retired: what has come stays in its lane
        Err(error @ FsError::Retry) if !planted(Planted::RetiredNotSought) => Err(error),
        applied => {
            // it is connected to anew, and says what it has
            follower.lane = None;
            applied.map(drop)
        }
    }
}

/// Has all mirrors put in place what was done by now, as far as they can in a moment ([`Timeouts::RELEASE`]): segments that the region has
/// given back are then in their pools. (Who is asked for room by a mirror may be waiting for that mirror to have some.)
pub(crate) async fn apply_all(service: &Arc<RegionService>, links: &Rc<Links>) {
    let deadline = || Instant::now() + Timeouts::RELEASE;
    let (Some(replication), Ok(())) = (service.replication(), service.mirrored(links, deadline).await) else {
        return;
    };
    let Ok(feed) = timeout(Timeouts::RELEASE, replication.feed().lock()).await else {
        return;
    };
    let unapplied = feed.unapplied();
    drop(feed);
    let applied = unapplied
        .into_iter()
        .map(|(copy, sent)| timeout(Timeouts::RELEASE, apply(service, links, replication, copy, sent)));
    for error in join_all(applied).await.into_iter().flatten().filter_map(Result::err) {
        tracing::debug!(region = service.id.0, %error, "a mirror does not put in place what has come");
    }
}

/// Makes a copy, while the region is served ([`fill`](super::fill)).
async fn fill(
    node: &Node,
    service: &Arc<RegionService>,
    links: &Rc<Links>,
    replication: &Replication,
    copy: NodeId,
) -> Result<(), FsError> {
    let from = replication.feed().lock().await.begin_fill(copy, service);
    let filling = Filling::begin(&node.fills);
    let copied = async {
        let place = attach(copy, service, links, Some(from)).await?;
        let mut lane = LaneFeed::new(place, service.segment_shift());
        lane.fill(copy, service, links, &filling).await?;
        Ok(lane)
    }
    .await;
    let (mut lane, copied) = match copied {
        Ok(lane) => (Some(Box::new(lane)), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let mut feed = replication.feed().lock().await;
    let mut filled = copied.map(|()| false);
    while filled == Ok(false) {
        filled = feed.filled(copy, from, &mut lane, service, links).await;
        if filled == Ok(false) {
            // others have their turn
            drop(feed);
            yield_now().await;
            feed = replication.feed().lock().await;
        }
    }
    match filled {
        Ok(_) => {
            filling.made();
            let (compared, sent) = filling.bytes();
            tracing::info!(region = service.id.0, node = copy.0, compared, sent, "a copy is made");
            Ok(())
        }
        Err(error) => {
            feed.follower(copy).into_iter().for_each(Follower::lose);
            feed.rest_if_idle(service);
            Err(error)
        }
    }
}

/// A copy becomes a mirror: who takes over must have asked it, or be it.
async fn join(node: &Arc<Node>, links: &Rc<Links>, region: RegionId, copy: NodeId) -> Result<(), FsError> {
    let us = node.id();
    let map = node
        .change_map(links, |map| {
            with_role(map, us, copy, ReplicaRole::Mirror, |id| id == region)
        })
        .await?;
    must_be(&map, region, us, copy, ReplicaRole::Mirror)
}

/// A mirror is one no more: it may never take over with what it has. One that is silent leaves the sets of all our regions at once, so
/// that those that come to it later find it done.
async fn leave(node: &Arc<Node>, links: &Rc<Links>, region: RegionId, copy: NodeId) -> Result<(), FsError> {
    let us = node.id();
    let from_all = node.leases.is_silent(copy, MIRROR_AWAY);
    let map = node
        .change_map(links, |map| {
            with_role(map, us, copy, ReplicaRole::Backup, |id| id == region || from_all)
        })
        .await?;
    must_be(&map, region, us, copy, ReplicaRole::Backup)
}

fn role(map: &ClusterMap, region: RegionId, node: NodeId) -> Option<ReplicaRole> {
    map.region(region).and_then(|info| info.role(node))
}

/// Has a change come about?
pub(super) fn must_be(
    map: &ClusterMap,
    region: RegionId,
    us: NodeId,
    copy: NodeId,
    role: ReplicaRole,
) -> Result<(), FsError> {
    let now = map.region(region).filter(|info| info.primary() == Some(us));
    match now.and_then(|info| info.role(copy)) == Some(role) {
        true => Ok(()),
        false => Err(FsError::WrongEpoch),
    }
}

/// The map in which a copy has another role in these regions, as far as `us` serves them; `None` where nothing is to be changed.
pub(super) fn with_role(
    map: &ClusterMap,
    us: NodeId,
    copy: NodeId,
    role: ReplicaRole,
    of: impl Fn(RegionId) -> bool,
) -> Option<ClusterMap> {
    let mut changed = map.clone();
    changed.epoch = Epoch(map.epoch.0 + 1);
    let mut any = false;
    let ours = |info: &&mut RegionInfo| of(info.id) && info.primary() == Some(us);
    for info in changed.regions.iter_mut().filter(ours) {
        let mut replicas = info.replicas.iter_mut();
        let Some(replica) = replicas.find(|replica| replica.node == copy && replica.role != role) else {
            continue;
        };
        replica.role = role;
        info.epoch = changed.epoch;
        any = true;
    }
    any.then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_proto::{RegionInfo, RegionSet, Replica};

    #[test]
    fn only_the_primary_changes_roles_and_epochs_rise() {
        let [us, other, third] = [1, 2, 3].map(NodeId);
        let replica = |node, role| Replica { node, role };
        let map = ClusterMap {
            cluster: [1; 16],
            voters: polvo_consensus::Voters::new([NodeId(1)]),
            epoch: Epoch(4),
            nodes: vec![],
            regions: vec![RegionInfo {
                id: RegionId(7),
                set: RegionSet::default(),
                epoch: Epoch(2),
                replicas: vec![replica(us, ReplicaRole::Primary), replica(other, ReplicaRole::Backup)],
            }],
        };
        let change = |by, copy, role| with_role(&map, by, copy, role, |id| id == RegionId(7));
        let changed = change(us, other, ReplicaRole::Mirror).expect("it is a change");
        let info = changed.region(RegionId(7)).unwrap();
        assert_eq!(
            (changed.epoch, info.epoch, info.role(other)),
            (Epoch(5), Epoch(5), Some(ReplicaRole::Mirror))
        );
        assert_eq!(change(us, other, ReplicaRole::Backup), None, "as it is");
        assert_eq!(change(other, other, ReplicaRole::Mirror), None, "by who is not primary");
        assert_eq!(change(us, third, ReplicaRole::Mirror), None, "of who has no copy");
        let leaves = |map: &ClusterMap, of: u16| with_role(map, us, other, ReplicaRole::Backup, |id| id.0 >= of);
        let gone = leaves(&changed, 0).expect("it was a mirror");
        let info = gone.region(RegionId(7)).expect("regions do not go");
        assert_eq!(
            (gone.epoch, info.epoch, info.role(other)),
            (Epoch(6), Epoch(6), Some(ReplicaRole::Backup))
        );
        assert_eq!(leaves(&gone, 0), None, "it is none any more");
        assert_eq!(leaves(&changed, 8), None, "of none of these");
    }
}
