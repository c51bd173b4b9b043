//! Dispatch (Octopus 3.3.2): the participants' bytes go where they belong, by one-sided writes, then their locks are let
//! go by one-sided compare-and-swap. A decided transaction is dispatched until every participant has its part,
//! whatever happens to the request that began it.

use crate::backoff::Backoff;
use crate::node::Node;
use crate::probe::Phase;
use crate::turn::{self, Turn};
use crate::two_phase::{self, Transactions};
use polvo_cluster::{Links, RegionVerb, join_all};
use polvo_format::TxnId;
use polvo_proto::{Cred, FsError, Reply, Request};
use polvo_region::planted::{Planted, planted};
use polvo_region::{RedoId, RemotePart, Undispatched};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

struct PartToDo {
    part: RemotePart,
    /// An attempt may have had an effect, or may have one yet.
    in_doubt: bool,
}

/// A decided transaction, as far as it remains to be dispatched.
pub(crate) struct Dispatch {
    pub txn: TxnId,
    record: RedoId,
    parts: Vec<PartToDo>,
}

impl Dispatch {
    /// Just decided.
    pub fn new(txn: TxnId, record: RedoId, remote: Vec<RemotePart>) -> Dispatch {
        let parts = remote
            .into_iter()
            .map(|part| PartToDo { part, in_doubt: false })
            .collect();
        Dispatch { txn, record, parts }
    }

    /// Found in the log at a start: who knows how far the run before got.
    pub fn found(undispatched: Undispatched) -> Dispatch {
        let mut dispatch = Dispatch::new(undispatched.txn, undispatched.record, undispatched.remote);
        for part in &mut dispatch.parts {
            part.in_doubt = true;
        }
        dispatch
    }
}

/// A dispatch under way. Whoever drops it unfinished leaves it to housekeeping.
pub(crate) struct Dispatching {
    node: Arc<Node>,
    dispatch: Option<Dispatch>,
}

impl Dispatching {
    pub fn new(node: &Arc<Node>, dispatch: Dispatch) -> Dispatching {
        node.dispatching.fetch_add(1, Relaxed);
        Dispatching {
            node: node.clone(),
            dispatch: Some(dispatch),
        }
    }

    /// One attempt at every part that remains, all at a time, for at most `limit`.
    pub async fn attempt(&mut self, links: &Rc<Links>, limit: Duration) -> Result<(), FsError> {
        let Some(dispatch) = &mut self.dispatch else {
            return Ok(());
        };
        let in_doubt: Vec<bool> = dispatch
            .parts
            .iter_mut()
            .map(|todo| std::mem::replace(&mut todo.in_doubt, true))
            .collect();
        let (node, txn) = (&self.node, dispatch.txn);
        let attempts = dispatch
            .parts
            .iter()
            .zip(in_doubt)
            .enumerate()
            .map(|(i, (todo, in_doubt))| async move {
                if i > 0 {
                    node.probe.reached(Phase::PartlyDispatched).await;
                }
                node.dispatch_part(links, txn, &todo.part, in_doubt).await
            });
        let results = tokio::time::timeout(limit, join_all(attempts)).await;
        let results = results.map_err(|_| FsError::Unreachable {
            node: u16::MAX,
            why: format!("not every participant took its part within {} ms", limit.as_millis()),
        })?;
        let mut failure = None;
        let mut results = results.into_iter();
        dispatch.parts.retain(|_| match results.next() {
            Some(Err(error)) => {
                failure = Some(error);
                true
            }
            Some(Ok(())) | None => false,
        });
        if let Some(error) = failure {
            return Err(error);
        }
        node.probe.reached(Phase::Dispatched).await;
        node.space.retire(dispatch.record);
        self.dispatch = None;
        Ok(())
    }

    /// Attempts until there is nothing left to do, or `backoff` is used up.
    async fn until_done(mut self, links: Rc<Links>, mut backoff: Backoff, deadline: Instant) -> Result<(), FsError> {
        let txn = self.dispatch.as_ref().map(|dispatch| dispatch.txn);
        self.node.probe.reached(Phase::Decided).await;
        loop {
            let Err(error) = self.attempt(&links, turn::call_limit(deadline)).await else {
                return Ok(());
            };
            tracing::debug!(?txn, %error, "dispatch failed, trying again");
            if backoff.wait().await.is_err() {
                tracing::warn!(?txn, %error, "dispatch goes on in the background");
                let node = match error {
                    FsError::Unreachable { node, .. } => node,
                    _ => u16::MAX,
                };
                let why = format!("the operation is committed, but a node it concerns cannot be reached: {error}");
                return Err(FsError::Unreachable { node, why });
            }
        }
    }
}

impl Drop for Dispatching {
    fn drop(&mut self) {
        if let Some(dispatch) = self.dispatch.take() {
            self.node.undispatched.lock().push(dispatch);
        }
        self.node.dispatching.fetch_sub(1, Relaxed);
    }
}

/// Dispatches what a request has decided. Whoever asked over a connection is answered as soon as that is on its way: the
/// decision is durable, and until the locks are let go whoever looks at what they protect waits for it. Others wait here:
/// their thread may have nothing to do for us afterwards. So does two-phase commit, whose participants have to act first.
///
/// # Errors
/// A participant does not answer: the operation is done but not seen everywhere, and housekeeping goes on with it.
pub(crate) async fn finish(turn: &Turn<'_>, dispatch: Dispatch) -> Result<(), FsError> {
    let by_reactor = turn.pair.is_some() && turn.node.config.transactions == Transactions::CollectDispatch;
    let dispatching = Dispatching::new(turn.node, dispatch);
    let mut to_do = Box::pin(dispatching.until_done(turn.links.clone(), turn.backoff(), turn.deadline()));
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

impl Node {
    async fn dispatch_part(
        self: &Arc<Self>,
        links: &Rc<Links>,
        txn: TxnId,
        part: &RemotePart,
        in_doubt: bool,
    ) -> Result<(), FsError> {
        if let Some(served) = self.served(part.region) {
            return served.dispatch(txn, &part.writes, &part.locks);
        }
        if part.is_prepared() {
            return two_phase::conclude(links, txn, part.region, true).await;
        }
        let mut write = true;
        let mut locks = part.locks.clone();
        if in_doubt {
            // What was sent before must not come in later than what is sent now.
            let fenced = links
                .call_node(links.primary(part.region)?, Cred::Kernel, Request::Fence)
                .await?;
            if fenced != Reply::Done {
                return Err(FsError::Io("a participant did not fence".into()));
            }
            let mut found = vec![[0u8; 8]; locks.len()];
            let mut reads: Vec<RegionVerb<'_>> = locks
                .iter()
                .zip(&mut found)
                .map(|(at, into)| RegionVerb::Read { at: *at, into })
                .collect();
            links.one_sided(part.region, &mut reads).await?;
            drop(reads);
            // Locks are let go after all writes: if one is, the writes are in place, and others may have written since.
            let held = |word: &[u8; 8]| u64::from_le_bytes(*word) == txn.0;
            write = found.iter().all(held) || planted(Planted::DispatchedTwice);
            locks = locks
                .into_iter()
                .zip(&found)
                .filter(|(_, word)| held(word))
                .map(|(at, _)| at)
                .collect();
        }
        let mut found = vec![0u64; locks.len()];
        let writes = part
            .writes
            .iter()
            .filter(|_| write)
            .map(|(at, bytes)| RegionVerb::WriteAny { at: *at, bytes });
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
        if planted(Planted::LocksReleasedFirst) {
            let mut swaps = ops.split_off(ops.len() - locks.len());
            links.one_sided(part.region, &mut swaps).await?;
            self.probe.reached(Phase::PartlyDispatched).await;
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
