//! Dispatch (Octopus 3.3.2): the participants' bytes go where they belong, then their locks are let go, by one-sided writes
//! that nobody waits for. A decided transaction is dispatched until every participant has its part, whatever happens to the
//! request that began it.
//!
//! A part is there when its locks are: they are the last words of its batch. So what was posted is probed later, many
//! parts at a time, and only where a lock stays what it was, or a connection was lost, is the part sent again, with care.

use crate::backoff::Backoff;
use crate::housekeeping::every_period;
use crate::node::Node;
use crate::region_service::{Held, RegionService};
use crate::request::context::{self, RequestContext};
use crate::transactions::commit_protocol::{self, CommitProtocol};
use crate::transactions::probe::Phase;
use polvo_cluster::{Links, RegionVerb, Timeouts, join_all};
use polvo_format::{Gpa, NodeId, RegionId, TxnId};
use polvo_proto::{Cred, FsError, Intent, Outcome, ask};
use polvo_region::planted::{Planted, planted};
use polvo_region::{CollectedPart, RedoId, RemotePart, Undispatched};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Ticks of housekeeping after which what was posted and has not arrived is sent again.
const TICKS_UNDER_WAY: u64 = 2;
/// Words that are probed in one batch.
const REAP_BATCH: usize = 32;
/// A lock word that nobody holds.
const FREE: [u8; 8] = [0; 8];

/// What is known of the parts that remain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// No part was sent.
    Nothing,
    /// All are on their way, since this tick of grace at the latest.
    Everything(u64),
    /// An attempt may have had an effect, or may have one yet.
    InDoubt,
}

/// What became of a part that was sent.
#[derive(PartialEq, Eq)]
pub(crate) enum Arrival {
    There,
    OnItsWay,
}

/// A decided transaction, as far as it is not known to be dispatched.
pub(crate) struct Dispatch {
    txn: TxnId,
    record: RedoId,
    parts: Vec<RemotePart>,
    sent: Sent,
    /// Nodes that may have sent parts of it before this one took their place.
    deposed: Arc<[NodeId]>,
}

impl Dispatch {
    /// Just decided.
    pub fn new(txn: TxnId, record: RedoId, parts: Vec<RemotePart>) -> Dispatch {
        Dispatch {
            txn,
            record,
            parts,
            sent: Sent::Nothing,
            deposed: Arc::default(),
        }
    }

    /// Found in the log at a start: who knows how far the previous incarnation got.
    pub fn found(undispatched: Undispatched) -> Dispatch {
        Dispatch {
            sent: Sent::InDoubt,
            ..Dispatch::new(undispatched.txn, undispatched.record, undispatched.remote)
        }
    }

    /// Decided by the primary whose place was taken: one of these, which may not know it yet.
    pub fn succeeded(undispatched: Undispatched, deposed: Arc<[NodeId]>) -> Dispatch {
        Dispatch {
            deposed,
            ..Dispatch::found(undispatched)
        }
    }

    fn is_on_its_way(&self) -> bool {
        let all = matches!(self.sent, Sent::Everything(_));
        debug_assert!(
            !all || !self.parts.is_empty(),
            "nothing is on its way of what has arrived"
        );
        all
    }
}

/// Whoever decided it before has no more say where it has parts.
async fn fence_off(node: &Arc<Node>, links: &Rc<Links>, dispatch: &Dispatch) -> Result<(), FsError> {
    for part in &dispatch.parts {
        let at = links.primary(part.region())?;
        for deposed in dispatch.deposed.iter().copied().filter(|deposed| *deposed != at) {
            if at == node.id() {
                node.fence_off(deposed).await;
                continue;
            }
            let fence = ask::FenceOff { node: deposed };
            links
                .call_node_within(at, Cred::Kernel, fence, Timeouts::MIRROR)
                .await?;
        }
    }
    Ok(())
}

/// The node of the first part that remains; ours where the map does not know it.
fn waits_for(node: &Node, links: &Links, dispatch: &Dispatch) -> NodeId {
    let part = dispatch.parts.first();
    let primary = part.and_then(|part| links.primary(part.region()).ok());
    primary.unwrap_or(node.id())
}

/// A dispatch that somebody is at. Whoever drops it unfinished leaves it to those who come by: the next probe, or
/// housekeeping.
pub(crate) struct Dispatching {
    node: Arc<Node>,
    dispatch: Option<Dispatch>,
    /// The coordinator's region is not handed over meanwhile.
    _held: Option<Held>,
}

impl Dispatching {
    fn new(node: &Arc<Node>, dispatch: Dispatch) -> Dispatching {
        node.dispatching.fetch_add(1, Relaxed);
        Dispatching {
            node: node.clone(),
            _held: node.service(dispatch.txn.region()).and_then(RegionService::hold),
            dispatch: Some(dispatch),
        }
    }

    /// One attempt at every part that remains, all at a time, for at most `limit`.
    async fn attempt(&mut self, links: &Rc<Links>, limit: Duration) -> Result<(), FsError> {
        let Some(dispatch) = &mut self.dispatch else {
            return Ok(());
        };
        let (node, txn) = (&self.node, dispatch.txn);
        match node.service(txn.region()) {
            // whoever takes the coordinator's place knows of it before a participant does
            Some(service) => service.mirrored(links, || Instant::now() + limit).await?,
            // this node ends, since others have taken its place in another region: it goes on with this when it is started again
            None if node.map().primary(txn.region()) == Some(node.id()) => return Err(node.stopping_error()),
            // others have taken our place, and see to it if they know of it: if not, it has not happened
            None => {
                node.space.retire(dispatch.record);
                self.dispatch = None;
                return Ok(());
            }
        }
        if !dispatch.deposed.is_empty() {
            fence_off(node, links, dispatch).await?;
        }
        let in_doubt = mem::replace(&mut dispatch.sent, Sent::InDoubt) != Sent::Nothing;
        debug_assert!(
            node.space.is_logged(txn),
            "the record stays until every part has arrived"
        );
        debug_assert!(!dispatch.parts.is_empty(), "a dispatch has parts that remain");
        let attempts = dispatch.parts.iter().enumerate().map(|(i, part)| async move {
            if i > 0 {
                node.probe.reached(Phase::PartlyDispatched).await;
            }
            commit_protocol::commit(node, links, txn, part, in_doubt).await
        });
        let asked = waits_for(node, links, dispatch).0;
        let gone = |why| FsError::Unreachable { node: asked, why };
        let regions: Vec<RegionId> = dispatch.parts.iter().map(RemotePart::region).collect();
        let results = tokio::select! {
            biased;
            results = tokio::time::timeout(limit, join_all(attempts)) => results.map_err(|_| gone(format!(
                "it did not take its part of a transaction within {} ms",
                limit.as_millis()
            )))?,
            () = links.moved(&regions) => return Err(gone("another node serves the region now".into())),
        };
        assert_eq!(results.len(), dispatch.parts.len(), "each part has one result");
        let mut failure = None;
        let mut results = results.into_iter();
        dispatch.parts.retain(|_| match results.next() {
            Some(Err(error)) => {
                failure = Some(error);
                true
            }
            Some(Ok(arrival)) => arrival == Arrival::OnItsWay,
            None => true,
        });
        if let Some(error) = failure {
            return Err(error);
        }
        if dispatch.parts.is_empty() {
            self.retire().await;
        } else {
            dispatch.sent = Sent::Everything(self.node.tick.load(Relaxed));
        }
        Ok(())
    }

    /// Attempts until all is done or on its way, or `backoff` is used up.
    async fn until_sent(mut self, links: Rc<Links>, mut backoff: Backoff, deadline: Instant) -> Result<(), FsError> {
        let txn = self.dispatch.as_ref().map(|dispatch| dispatch.txn);
        self.node.probe.reached(Phase::Decided).await;
        while let Err(error) = self.attempt(&links, context::call_limit(deadline)).await {
            tracing::debug!(?txn, %error, "dispatch failed, trying again");
            if backoff.wait().await.is_err() {
                tracing::warn!(?txn, %error, "dispatch goes on in the background");
                let node = match (&error, &self.dispatch) {
                    (FsError::Unreachable { node, .. }, _) => *node,
                    (_, Some(dispatch)) => waits_for(&self.node, &links, dispatch).0,
                    (_, None) => self.node.id().0,
                };
                let why = format!("the operation is committed, but a node it concerns cannot be reached: {error}");
                return Err(FsError::Unreachable { node, why });
            }
        }
        let node = self.node.clone();
        drop(self);
        if node.undispatched.lock().len() >= node.posted_max() {
            reap(&node, &links, context::call_limit(deadline)).await;
        }
        Ok(())
    }

    /// Every participant has its part.
    async fn retire(&mut self) {
        if let Some(dispatch) = &self.dispatch {
            debug_assert!(dispatch.sent != Sent::Nothing, "what was not sent has not arrived");
            self.node.probe.reached(Phase::Dispatched).await;
            match self.node.service(dispatch.txn.region()) {
                Some(service) => service.enter(|region| region.retire(dispatch.txn, dispatch.record)),
                // who serves the region now sees to it
                None => self.node.space.retire(dispatch.record),
            }
        }
        self.dispatch = None;
    }
}

impl Drop for Dispatching {
    fn drop(&mut self) {
        if let Some(dispatch) = self.dispatch.take() {
            let mut undispatched = self.node.undispatched.lock();
            undispatched.push(dispatch);
            debug_assert!(
                undispatched.len() <= self.node.space.layout().redo_slots as usize,
                "each has a record in the redo log"
            );
        }
        let dispatching = self.node.dispatching.fetch_sub(1, Relaxed);
        debug_assert!(dispatching > 0, "who dispatches is counted");
    }
}

/// Dispatches what a request has decided. The caller goes on when that is on its way, over a connection even before: the
/// decision is durable, and until the locks are let go whoever looks at what they protect waits for it. (A protocol by which
/// participants act themselves is waited for.)
///
/// # Errors
/// A participant does not answer: the operation is done but not seen everywhere, and housekeeping goes on with it.
pub(crate) async fn finish(ctx: &RequestContext<'_>, dispatch: Dispatch) -> Result<(), FsError> {
    let by_reactor = ctx.pair.is_some() && !ctx.node.config.transactions.is_awaited();
    assert!(
        !dispatch.parts.is_empty(),
        "what no participant takes part in is not dispatched"
    );
    let dispatching = Dispatching::new(ctx.node, dispatch);
    let mut to_do = Box::pin(dispatching.until_sent(ctx.links.clone(), ctx.backoff(), ctx.deadline()));
    if !by_reactor {
        return to_do.await;
    }
    match poll_fn(|cx| Poll::Ready(to_do.as_mut().poll(cx))).await {
        Poll::Ready(ended) => ended,
        Poll::Pending => {
            tokio::task::spawn_local(to_do);
            Ok(())
        }
    }
}

/// Probes whether what was posted has arrived, with one batch a region, for at most `limit`; what has is retired. What
/// cannot be told stays.
pub(crate) async fn reap(node: &Arc<Node>, links: &Rc<Links>, limit: Duration) {
    let posted: Vec<Dispatch> = {
        let mut undispatched = node.undispatched.lock();
        undispatched
            .extract_if(.., |dispatch| dispatch.is_on_its_way())
            .collect()
    };
    // what is not retired goes back to where it was
    let mut posted: Vec<Dispatching> = posted.into_iter().map(|one| Dispatching::new(node, one)).collect();
    let mut to_ask: BTreeMap<RegionId, Vec<(TxnId, Gpa)>> = BTreeMap::new();
    for dispatch in posted.iter().filter_map(|one| one.dispatch.as_ref()) {
        for part in &dispatch.parts {
            // what is prepared there is never on its way: whoever has it put in place waits for the answer
            let Some(part) = part.collected() else { continue };
            // the last one is let go last
            let locks = to_ask.entry(part.region).or_default();
            locks.extend(part.locks.last().map(|at| (dispatch.txn, *at)));
        }
    }
    let asking = join_all(to_ask.into_iter().map(|(region, locks)| async move {
        let held = still_held(links, region, &locks).await;
        held.unwrap_or_else(|_| locks.iter().map(|(txn, _)| *txn).collect())
    }));
    let Ok(held) = tokio::time::timeout(limit, asking).await else {
        return;
    };
    let held: BTreeSet<TxnId> = held.into_iter().flatten().collect();
    for one in &mut posted {
        if one
            .dispatch
            .as_ref()
            .is_some_and(|dispatch| !held.contains(&dispatch.txn))
        {
            one.retire().await;
        }
    }
}

/// Those of the transactions whose locks in a region are still theirs.
async fn still_held(links: &Rc<Links>, region: RegionId, locks: &[(TxnId, Gpa)]) -> Result<Vec<TxnId>, FsError> {
    let mut held = Vec::new();
    debug_assert!(locks.iter().all(|(_, at)| at.region() == region), "locks of one region");
    for locks in locks.chunks(REAP_BATCH) {
        let words = read_words(links, region, locks.iter().map(|(_, at)| *at)).await?;
        let theirs = locks.iter().zip(words).filter(|((txn, _), word)| *word == txn.0);
        held.extend(theirs.map(|((txn, _), _)| *txn));
    }
    Ok(held)
}

/// Lock words. One whose segment has gone back to the pool is free: nothing in it was in use any more.
async fn read_words(links: &Links, region: RegionId, at: impl Iterator<Item = Gpa>) -> Result<Vec<u64>, FsError> {
    let at: Vec<Gpa> = at.collect();
    debug_assert!(at.iter().all(|at| at.0.is_multiple_of(8)), "lock words are aligned");
    let mut words = vec![FREE; at.len()];
    match read_at(links, region, &at, &mut words).await {
        Err(FsError::Invalid(_)) => {
            for (at, word) in at.chunks(1).zip(words.chunks_mut(1)) {
                match read_at(links, region, at, word).await {
                    Err(FsError::Invalid(_)) => word[0] = FREE,
                    read => read?,
                }
            }
        }
        read => read?,
    }
    Ok(words.into_iter().map(u64::from_le_bytes).collect())
}

async fn read_at(links: &Links, region: RegionId, at: &[Gpa], words: &mut [[u8; 8]]) -> Result<(), FsError> {
    let reads = at
        .iter()
        .zip(words)
        .map(|(at, into)| RegionVerb::Read { at: *at, into });
    let reads = &mut reads.collect::<Vec<_>>();
    match links.has_copies(region) {
        // asked: it takes note of what has arrived, and waits until its mirrors have that
        true => links.read_by_request(region, reads).await,
        false => links.one_sided(region, reads).await,
    }
}

/// One more attempt, every half second, at every decided transaction that somebody may still wait for: each beside the others, since
/// a node that does not answer holds up what concerns it, and nothing else. Runs until it is dropped.
pub(crate) async fn dispatch_left_over(node: Arc<Node>, links: Rc<Links>) {
    let mut attempts = JoinSet::new();
    let mut period = every_period();
    loop {
        period.tick().await;
        reap(&node, &links, Timeouts::ASIDE).await;
        let late = node.tick.load(Relaxed).saturating_sub(TICKS_UNDER_WAY);
        let is_left_over = |dispatch: &mut Dispatch| match dispatch.sent {
            Sent::Everything(since) => since <= late,
            Sent::Nothing | Sent::InDoubt => true,
        };
        let left_over: Vec<Dispatch> = node.undispatched.lock().extract_if(.., is_left_over).collect();
        for dispatch in left_over {
            // what fails goes back to where it was
            let (mut one, links) = (Dispatching::new(&node, dispatch), links.clone());
            attempts.spawn_local(async move {
                let txn = one.dispatch.as_ref().map(|dispatch| dispatch.txn);
                match one.attempt(&links, Timeouts::DISPATCH).await {
                    Ok(()) => tracing::info!(?txn, "dispatched late"),
                    Err(error) => tracing::debug!(?txn, %error, "still to be dispatched"),
                }
            });
        }
        while attempts.try_join_next().is_some() {}
    }
}

impl Node {
    /// Most transactions that are left alone once they are posted: a part of those that the redo log has room for.
    fn posted_max(&self) -> usize {
        self.space.decisions_max() / 3
    }

    /// There are decided transactions that are not known to be dispatched, of regions that are served here: of others whoever serves them
    /// sees to it.
    pub(crate) fn has_undispatched(&self) -> bool {
        let undispatched = self.undispatched.lock();
        undispatched.iter().any(|dispatch| self.serves(dispatch.txn.region()))
    }

    /// Are there any of this region?
    pub(crate) fn has_undispatched_of(&self, region: RegionId) -> bool {
        let undispatched = self.undispatched.lock();
        undispatched.iter().any(|dispatch| dispatch.txn.region() == region)
    }

    /// Decided transactions of which it is not even known that they are on their way.
    pub(crate) fn in_doubt(&self) -> usize {
        let undispatched = self.undispatched.lock();
        undispatched.iter().filter(|dispatch| !dispatch.is_on_its_way()).count()
    }

    /// Sends a part that may have arrived already, or may be about to.
    async fn send_again(self: &Arc<Self>, links: &Rc<Links>, txn: TxnId, part: &CollectedPart) -> Result<(), FsError> {
        // What was sent before must not come in later than what is sent now.
        let at = links.primary(part.region)?;
        match links.has_copies(part.region) {
            // one that is away may be succeeded soon
            true => {
                links
                    .call_node_within(at, Cred::Kernel, ask::Fence, Timeouts::MIRROR)
                    .await?
            }
            false => links.call_node(at, Cred::Kernel, ask::Fence).await?,
        }
        links.forget_segments(part.region);
        debug_assert!(!part.locks.is_empty(), "a part without locks cannot be seen to arrive");
        let words = read_words(links, part.region, part.locks.iter().copied()).await?;
        // Locks are let go after all writes: if one is, the writes are in place, and others may have written since.
        let write = words.iter().all(|word| *word == txn.0) || planted(Planted::DispatchedTwice);
        let locks = part.locks.iter().zip(&words).filter(|(_, word)| **word == txn.0);
        let locks: Vec<Gpa> = locks.map(|(at, _)| *at).collect();
        let mut found = vec![0u64; locks.len()];
        let writes = part.writes.iter().filter(|_| write);
        let writes = writes.map(|(at, bytes)| write_any((*at, bytes)));
        let swaps = locks.iter().zip(&mut found).map(|(at, found)| RegionVerb::CompareSwap {
            at: *at,
            expect: txn.0,
            new: 0,
            found,
        });
        let mut ops: Vec<RegionVerb<'_>> = writes.chain(swaps).collect();
        if ops.is_empty() {
            return Ok(());
        }
        links.one_sided(part.region, &mut ops).await?;
        drop(ops);
        if let Some(word) = found.iter().find(|word| **word != txn.0) {
            tracing::error!(
                ?txn,
                region = part.region.0,
                word,
                "a lock that a transaction held was let go by others"
            );
        }
        Ok(())
    }
}

/// Collect and dispatch (Octopus 3.3.2): a participant hands out what it would write, and the coordinator writes it.
pub(crate) struct CollectDispatch;

impl CommitProtocol for CollectDispatch {
    type Part = CollectedPart;

    async fn join(
        ctx: &RequestContext<'_>,
        txn: TxnId,
        region: RegionId,
        intents: &[Intent],
        open: bool,
    ) -> Result<(CollectedPart, Vec<Outcome>), FsError> {
        let collect = ask::Collect {
            txn,
            region,
            on_behalf: ctx.session.id,
            open,
            intents: intents.to_vec(),
        };
        CollectedPart::new(region, ctx.ask_region(region, collect).await?, intents.len())
    }

    async fn commit(
        node: &Arc<Node>,
        links: &Rc<Links>,
        txn: TxnId,
        part: &CollectedPart,
        in_doubt: bool,
    ) -> Result<Arrival, FsError> {
        debug_assert!(!part.locks.is_empty(), "a part without locks cannot be seen to arrive");
        if let Some(service) = node.service(part.region)
            && let Some(_held) = service.hold()
        {
            service.dispatch(txn, part)?;
            if service.replication().is_some() {
                service.enter(|region| drop(region.reap()));
                Box::pin(service.mirrored(links, || Instant::now() + Timeouts::MIRROR)).await?;
            }
            return Ok(Arrival::There);
        }
        if in_doubt {
            Box::pin(node.send_again(links, txn, part)).await?;
            return match links.has_copies(part.region) {
                true => Ok(Arrival::OnItsWay), // it is probed whether its mirrors have it
                false => Ok(Arrival::There),
            };
        }
        let writes = part.writes.iter().map(|(at, bytes)| (*at, bytes.as_slice()));
        let free = part.locks.iter().map(|at| (*at, FREE.as_slice()));
        let mut ops: Vec<RegionVerb<'_>> = match planted(Planted::LocksReleasedFirst) {
            false => writes.chain(free).map(write_any).collect(),
            true => {
                let mut first: Vec<RegionVerb<'_>> = free.map(write_any).collect();
                links.post_writes(part.region, &mut first).await?;
                node.probe.reached(Phase::PartlyDispatched).await;
                writes.map(write_any).collect()
            }
        };
        let is_there = links.post_writes(part.region, &mut ops).await?;
        match is_there && !links.has_copies(part.region) {
            true => Ok(Arrival::There),
            false => Ok(Arrival::OnItsWay),
        }
    }

    async fn abort(ctx: &RequestContext<'_>, txn: TxnId, part: &CollectedPart) -> Result<(), FsError> {
        if let Some(service) = ctx.node.service(part.region)
            && let Some(_held) = service.hold()
        {
            service.unlock(txn, &part.locks);
            return Ok(());
        }
        let mut found = vec![0u64; part.locks.len()];
        let swaps = part
            .locks
            .iter()
            .zip(&mut found)
            .map(|(at, found)| RegionVerb::CompareSwap {
                at: *at,
                expect: txn.0,
                new: 0,
                found,
            });
        ctx.links.one_sided(part.region, &mut swaps.collect::<Vec<_>>()).await
    }
}

fn write_any<'a>((at, bytes): (Gpa, &'a [u8])) -> RegionVerb<'a> {
    RegionVerb::WriteAny { at, bytes }
}
