//! Beside the operations: takes the tokens that are wanted, hears what is asked for, and answers.

use crate::local_client::LocalClient;
use crate::remote_inode::Current;
use crate::tokens::{AtNode, Held, Shard, Tokens, Wanted};
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};
use polvo_format::NodeId;
use polvo_proto::{FsError, InodeRef, TOKENS_MAX, TOKENS_PAGE, ask, reply};
use polvo_region::planted::{Planted, planted};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What is wanted in a moment is taken together.
const GATHER: Duration = Duration::from_millis(1);
/// After a request that failed.
const PAUSE: Duration = Duration::from_millis(50);
/// Whoever keeps what he was passed on, and has not forgotten it yet, is asked again so soon at the latest.
const FORGETTING: Duration = Duration::from_millis(5);

/// What goes on at one node.
#[derive(Default)]
struct Watching {
    /// Requests for tokens that are under way.
    taking: Cell<u32>,
    /// All of them are about to go back.
    ending: Cell<bool>,
    /// Tokens of these were asked for, up to that number, some of which may still come.
    early: RefCell<HashMap<InodeRef, u64>>,
}

impl LocalClient {
    /// Takes tokens as they are wanted, and answers for them, until the client is shut down.
    pub async fn watch_tokens(self: Rc<Self>) {
        self.links.never_wait();
        let tokens = &self.client.tokens;
        let stop = &self.client.stop;
        let mut watches: JoinSet<NodeId> = JoinSet::new();
        let mut watching: BTreeMap<NodeId, Rc<Watching>> = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                () = stop.is_there() => break,
                Some(ended) = watches.join_next() => {
                    let node = ended.expect("a watch at a node does not panic");
                    watching.remove(&node);
                    continue;
                }
                () = tokens.work.notified() => {}
            }
            tokio::time::sleep(GATHER).await;
            for (node, inodes) in self.wanted_by_node() {
                let at_node = watching.get(&node).cloned();
                let is_new = at_node.is_none();
                let at_node = at_node.unwrap_or_default();
                for some in inodes.chunks(TOKENS_PAGE) {
                    if let Err(error) = self.take_tokens(node, some, &at_node).await {
                        tracing::debug!(%node, %error, "no tokens");
                    }
                }
                if let Some(at) = tokens.at(node).filter(|_| is_new && !tokens.has_none_of(node)) {
                    watching.insert(node, at_node.clone());
                    watches.spawn_local(self.clone().watch_node(at, at_node));
                }
            }
        }
        watches.shutdown().await;
    }

    fn wanted_by_node(&self) -> BTreeMap<NodeId, Vec<InodeRef>> {
        let Wanted { in_order, .. } = std::mem::take(&mut *self.client.tokens.wanted.lock());
        let mut by_node: BTreeMap<NodeId, Vec<InodeRef>> = BTreeMap::new();
        for inode in in_order {
            if let Ok(node) = self.client.primary(inode.ino.region()) {
                by_node.entry(node).or_default().push(inode);
            }
        }
        by_node
    }

    /// Takes tokens of inodes of one node, in one request.
    async fn take_tokens(&self, node: NodeId, inodes: &[InodeRef], watching: &Watching) -> Result<(), FsError> {
        if watching.ending.get() {
            return Ok(()); // what is used again is wanted again
        }
        let tokens = &self.client.tokens;
        let seals: Vec<_> = inodes.iter().map(|inode| tokens.own.seal(inode.ino)).collect();
        let sent = Instant::now();
        let request = ask::TakeTokens {
            inodes: inodes.to_vec(),
        };
        watching.taking.set(watching.taking.get() + 1);
        let answer = self.call_node(node, request).await;
        watching.taking.set(watching.taking.get() - 1);
        let taken: reply::Taken = answer?;
        if taken.tokens.len() != inodes.len() {
            return Err(FsError::Io(format!(
                "node {} gave other tokens than were asked for",
                node.0
            )));
        }
        let Some(at) = tokens.renewed(node, taken.term, sent, Duration::from_millis(taken.lease_ms)) else {
            return Ok(()); // of a term that is over
        };
        let early = watching.early.borrow();
        for ((inode, seal), token) in inodes.iter().zip(seals).zip(taken.tokens) {
            let Some(token) = token else { continue };
            let current = Current::new(token.attr, token.tail);
            let was_asked_for = early.get(inode).is_some_and(|number| *number >= token.number);
            if was_asked_for || current.inode() != *inode {
                continue;
            }
            self.note(&current);
            let held = Held {
                number: token.number,
                at: at.clone(),
                known: seal.map(|seal| (current, seal)),
                used: AtomicU64::new(tokens.now_ms()),
            };
            tokens.shard(inode.ino).write().insert(*inode, held);
        }
        Ok(())
    }

    /// Hears what a node asks for, until no tokens of it are left or used.
    async fn watch_node(self: Rc<Self>, at: Arc<AtNode>, watching: Rc<Watching>) -> NodeId {
        let (tokens, node) = (&self.client.tokens, at.node);
        let mut answered: Vec<u64> = Vec::new();
        let mut last_used = Instant::now();
        loop {
            let is_used = at.used.swap(false, Relaxed);
            if is_used || watching.taking.get() > 0 {
                last_used = Instant::now();
            }
            // what was passed on by them is not believed for longer than a lease
            if last_used.elapsed() > at.lease() {
                watching.ending.set(true);
                tokens.drop_of(node);
                // used in between after all: what was passed on by them is asked for one by one
                watching.ending.set(!at.used.load(Relaxed));
            }
            let end = watching.ending.get();
            let (sent, term) = (Instant::now(), at.term.load(Relaxed));
            let request = ask::Watch {
                term,
                answered: std::mem::take(&mut answered),
                end,
            };
            let asked = tokio::select! {
                biased;
                () = self.client.stop.is_there() => return node,
                asked = self.call_node(node, request) => asked,
            };
            match asked {
                Ok(asked) if asked.term == term => {
                    at.renewed(sent);
                    if watching.taking.get() == 0 {
                        watching.early.borrow_mut().clear();
                    }
                    answered = self.answer(&asked.asked, &watching).await;
                    answered.extend(tokens.give_back_some(node));
                }
                Ok(asked) => {
                    tokens.drop_of(node);
                    at.term.store(asked.term, Relaxed);
                }
                Err(error) => {
                    tracing::debug!(%node, %error, "tokens are not watched");
                    if at.left().is_zero() {
                        tokens.drop_of(node);
                        return node;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            let is_left = !answered.is_empty() || watching.taking.get() > 0 || !tokens.has_none_of(node);
            if end || !is_left {
                return node;
            }
        }
    }

    /// Somebody's change waits for these: what is known by them is forgotten, here and where it was passed on. Gives the numbers
    /// to answer with.
    async fn answer(&self, asked: &[(InodeRef, u64)], watching: &Watching) -> Vec<u64> {
        if asked.is_empty() {
            return Vec::new();
        }
        let tokens = &self.client.tokens;
        if !planted(Planted::AnsweredBeforeForgotten) {
            for (inode, number) in asked {
                watching.early.borrow_mut().insert(*inode, *number);
                let mut shard = tokens.shard(inode.ino).write();
                if shard.get(inode).is_some_and(|held| held.number <= *number) {
                    shard.remove(inode);
                }
            }
        }
        let mut wait = FORGETTING;
        let mut forgotten = Vec::with_capacity(asked.len());
        for (inode, number) in asked {
            match tokens.forget(*inode) {
                Ok(()) => forgotten.push(*number),
                Err(left) => wait = wait.min(left),
            }
        }
        if forgotten.is_empty() {
            tokio::time::sleep(wait).await; // they are asked for again
        }
        forgotten
    }
}

impl AtNode {
    fn lease(&self) -> Duration {
        self.lease.lock().0
    }

    fn renewed(&self, sent: Instant) {
        let mut lease = self.lease.lock();
        lease.1 = lease.1.max(sent + lease.0);
    }
}

impl Tokens {
    fn at(&self, node: NodeId) -> Option<Arc<AtNode>> {
        self.nodes.lock().get(&node).cloned()
    }

    /// The lease at a node was renewed, by what was sent then. Tokens of an earlier term are no more; `None`: it is of such a one
    /// itself.
    fn renewed(&self, node: NodeId, term: u64, sent: Instant, lease: Duration) -> Option<Arc<AtNode>> {
        let new = || {
            Arc::new(AtNode {
                node,
                term: AtomicU64::new(term),
                lease: Mutex::new((lease, sent + lease)),
                used: AtomicBool::new(true),
            })
        };
        let at = self.nodes.lock().entry(node).or_insert_with(new).clone();
        let known = at.term.load(Relaxed);
        if term < known {
            return None;
        }
        if term > known {
            self.drop_of(node);
            at.term.store(term, Relaxed);
        }
        at.lease.lock().0 = lease;
        at.renewed(sent);
        Some(at)
    }

    /// Nothing is known by tokens of a node any more. What was passed on ends by itself.
    pub(crate) fn drop_of(&self, node: NodeId) {
        for shard in &self.shards {
            shard.write().retain(|_, held| held.at.node != node);
        }
    }

    fn has_none_of(&self, node: NodeId) -> bool {
        let any = |shard: &RwLock<Shard>| shard.read().values().any(|held| held.at.node == node);
        !self.shards.iter().any(any)
    }

    /// Has it forgotten where it was passed on.
    fn forget(&self, inode: InodeRef) -> Result<(), Duration> {
        let keeper = self.keeper.read().clone();
        keeper.map_or(Ok(()), |keeper| keeper.forget(inode))
    }

    /// Where there are too many: gives those back that were not used for longest.
    fn give_back_some(&self, node: NodeId) -> Vec<u64> {
        if self.count() + TOKENS_PAGE < TOKENS_MAX {
            return Vec::new();
        }
        let mut all: Vec<(u64, InodeRef)> = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let here = shard.iter().filter(|(_, held)| held.at.node == node);
            all.extend(here.map(|(inode, held)| (held.used.load(Relaxed), *inode)));
        }
        all.sort_unstable();
        all.truncate(TOKENS_PAGE / 2);
        let give_back = |(_, inode): &(u64, InodeRef)| {
            let held = self.shard(inode.ino).write().remove(inode)?;
            // where it is not forgotten yet, it is given back when it is asked for
            self.forget(*inode).is_ok().then_some(held.number)
        };
        all.iter().filter_map(give_back).collect()
    }
}
