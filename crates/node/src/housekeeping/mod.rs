//! What a node does unasked: leases, grace ticks, transactions left over by others or by an earlier incarnation, usage of the
//! other nodes, log garbage collection.

pub(crate) mod check_pages;
pub(crate) mod pool_past;
pub(crate) mod room;
pub(crate) mod scrub;
pub(crate) mod status;
pub(crate) mod utilization;

use crate::housekeeping::utilization::CROWDED;
use crate::map;
use crate::node::Node;
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_format::{NodeId, RegionId, TxnId};
use polvo_proto::{Cred, ask};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// How often a node does its housekeeping. It does nothing in between.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);
/// Every so many periods nodes show each other what their pools are, and ask for each other's usage (which they do every period in
/// which inodes were placed, segments taken, or pools fill up, too).
const EXCHANGE_EVERY: u64 = 20;
/// An inode locked by a transaction for so long makes us ask its coordinator.
const OPEN_TOO_LONG: Duration = Duration::from_millis(700);
/// Pieces of log garbage collection a region and period.
const GARBAGE_PIECES: u32 = 64;

/// What a node does for itself. Runs until it is dropped.
pub(crate) async fn run(node: Arc<Node>) {
    let mut period = every_period();
    loop {
        period.tick().await;
        for session in node.sessions.expired(node.config.timeouts.lease) {
            tracing::info!(%session, "lease ended");
            let its = node.reactors.connections.close_session(session);
            node.reactors.close(its).await;
            node.end_session(session);
        }
        let late = node.reactors.connections.close_late();
        node.reactors.close(late).await;
        node.locks.sweep();
        node.sweep_tokens();
        node.give_out_held_back();
        node.end_claims();
        node.advance_tick();
        collect_garbage(&node).await;
    }
}

/// Keeps in touch with the other nodes; one that does not answer holds this up, and nothing else. Runs until it is dropped.
pub(crate) async fn meet_others(node: Arc<Node>, links: Rc<Links>) {
    let mut last_renewal = Instant::now();
    let mut reached = map::Reached::default();
    let mut replacing = JoinSet::new();
    let mut free_before = node.space.usage().free_segments;
    let mut period = every_period();
    for round in 0u64.. {
        period.tick().await;
        if last_renewal.elapsed() >= node.config.timeouts.renew_every() || round % EXCHANGE_EVERY == 0 {
            last_renewal = Instant::now();
            let renewed = links.renew().await;
            node.follow_map(&links, &renewed).await;
            reached.note(&node.map(), &renewed);
        }
        let free = node.space.usage().free_segments;
        let has_grown = std::mem::replace(&mut free_before, free) > free;
        let is_wanted = has_grown || node.utilization.take_used() || node.utilization.is_crowded();
        if is_wanted || round % EXCHANGE_EVERY == 0 {
            exchange_usage(&node, &links).await;
        }
        if round % EXCHANGE_EVERY == 0
            && let Err(error) = node.show_past(&links).await
        {
            tracing::error!(%error, "stopping");
            *node.refused.lock() = Some(error);
            node.stop();
        }
        if round % EXCHANGE_EVERY == 0 && replacing.is_empty() && reached.must_replace(node.id(), &node.map()) {
            replacing.spawn_local(replace_voter(node.clone(), links.clone(), reached.clone()));
        }
        while replacing.try_join_next().is_some() {}
    }
}

/// Ticks every [`PERIOD`], and as long after a round that took longer.
pub(crate) fn every_period() -> Interval {
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    period
}

/// A voter has been away for long, or there are to be more: others come to vote, beside the rounds, which wait for nobody.
async fn replace_voter(node: Arc<Node>, links: Rc<Links>, reached: map::Reached) {
    let map = node.map();
    match node.replace_voter(&links, reached.alive(node.id(), &map)).await {
        Ok(map) => {
            tracing::warn!(voters = ?map.voters, "others vote on the cluster map: one was away, or more are to vote")
        }
        Err(error) => tracing::warn!(%error, "those who are to vote on the cluster map cannot come to do so"),
    }
}

/// Connects again to nodes whose connection was lost, for the length of a lease: until one that was started anew has heard of us,
/// it holds space back that we might still be storing to. Runs until it is dropped.
pub(crate) async fn return_to_restarted(node: Arc<Node>, links: Rc<Links>) {
    let (lease, every) = (node.config.timeouts.lease, node.config.timeouts.renew_every());
    loop {
        // a connection that was made meanwhile is watched from the next round on
        if tokio::time::timeout(every, links.lost()).await.is_err() {
            continue;
        }
        let since = Instant::now();
        while since.elapsed() < lease {
            tokio::time::sleep(PERIOD).await;
            if links.renew().await.iter().all(|(_, answer)| answer.is_ok()) {
                break;
            }
        }
    }
}

impl Node {
    /// A tick of grace, as housekeeping makes one every half second: freed space may be used again once every session has been
    /// seen after the tick it was freed at.
    pub fn advance_tick(&self) {
        let tick = self.tick.fetch_add(1, Relaxed) + 1;
        let oldest = self.sessions.oldest_tick().unwrap_or(tick);
        assert!(oldest > 0 && tick > 1, "ticks of grace are counted from 1");
        let safe = oldest.min(tick) - 1;
        assert!(safe < tick, "space freed in this tick is not used in it");
        for service in self.regions.all() {
            service.enter(|region| region.set_tick(tick, safe));
        }
    }
}

/// Takes over what was dispatched to us, and asks about what stays open. Runs until it is dropped.
pub(crate) async fn resolve_left_over(node: Arc<Node>, links: Rc<Links>) {
    let mut open_since: BTreeMap<(RegionId, TxnId), Instant> = BTreeMap::new();
    let mut period = every_period();
    loop {
        period.tick().await;
        resolve(&node, &links, &mut open_since).await;
    }
}

async fn resolve(node: &Arc<Node>, links: &Rc<Links>, open_since: &mut BTreeMap<(RegionId, TxnId), Instant>) {
    let now = Instant::now();
    let mut open = BTreeMap::new();
    for service in node.regions.all() {
        let held = service.enter(|region| region.reap());
        open.extend(held.into_iter().map(|txn| ((service.id, txn), now)));
    }
    #[cfg(feature = "two-phase")]
    open.extend(node.prepared.waiting().into_iter().map(|key| (key, now)));
    for (key, since) in &mut open {
        *since = open_since.get(key).copied().unwrap_or(now);
    }
    debug_assert!(open.values().all(|since| *since <= now), "open since some time before");
    *open_since = open;
    let late: Vec<(RegionId, TxnId)> = open_since
        .iter()
        .filter(|(_, since)| now.duration_since(**since) >= OPEN_TOO_LONG)
        .map(|(key, _)| *key)
        .collect();
    join_all(late.into_iter().map(|(region, txn)| async move {
        if let Some(service) = node.service(region) {
            node.resolve(links, service, txn).await;
        }
    }))
    .await;
}

async fn exchange_usage(node: &Arc<Node>, links: &Rc<Links>) {
    let ours = node.usage();
    node.utilization.learn(node.id(), ours);
    let others: Vec<NodeId> = node
        .map()
        .nodes
        .iter()
        .map(|n| n.id)
        .filter(|id| *id != node.id())
        .collect();
    join_all(others.into_iter().map(|other| async move {
        let asked = links.call_node_within(other, Cred::Kernel, ask::ShareUsage(ours), Timeouts::ASIDE);
        if let Ok(usage) = asked.await {
            node.utilization.learn(other, usage);
        }
    }))
    .await;
}

/// In small pieces, so that requests come in between; then what is empty goes back to the pool.
async fn collect_garbage(node: &Arc<Node>) {
    let pool = node.space.usage();
    let crowded = u64::from(pool.free_segments) < u64::from(pool.segments) / CROWDED || node.utilization.is_crowded();
    for service in node.regions.all() {
        for _ in 0..GARBAGE_PIECES {
            if !service.enter(|region| region.collect_garbage(node.clock.now_ns())) {
                break;
            }
            tokio::task::yield_now().await;
        }
        let given_back = service.shrink(crowded);
        if given_back > 0 {
            tracing::debug!(region = service.id.0, given_back, "segments that are not needed");
        }
    }
    node.let_regions_grow();
}
