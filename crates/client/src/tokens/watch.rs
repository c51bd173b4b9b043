//! Beside the operations: takes the tokens that are wanted, hears what is asked for, and answers.

use crate::local_client::LocalClient;
use crate::remote_inode::Current;
use crate::tokens::{AtNode, Held, Shard, Tokens, Wanted};
use parking_lot::RwLock;
use polvo_cluster::join_all;
use polvo_format::{Ino, NodeId};
use polvo_proto::{FsError, InodeRef, TOKENS_MAX, TOKENS_PAGE, ask, reply};
use polvo_region::planted::{Planted, planted};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What is wanted in a moment is taken together.
const WANTS_GATHER: Duration = Duration::from_millis(1);
/// Tokens that do not come for so long are done without.
const TAKING: Duration = Duration::from_secs(1);
/// After a request that failed.
const WATCH_PAUSE: Duration = Duration::from_millis(50);
/// Whoever keeps what he was passed on, and has not forgotten it yet, is asked again so soon at the latest.
const FORGETTING: Duration = Duration::from_millis(5);

impl LocalClient {
    /// Takes tokens as they are wanted, and answers for them, until the client is shut down.
    pub async fn watch_tokens(self: Rc<Self>) {
        self.links.never_wait();
        let tokens = &self.client.tokens;
        let mut watches = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.client.stop.is_there() => break,
                Some(ended) = watches.join_next() => {
                    ended.expect("a watch at a node does not panic");
                    continue;
                }
                () = tokens.work.notified() => {}
            }
            tokio::time::sleep(WANTS_GATHER).await;
            let Wanted { in_order, to_watch, .. } = std::mem::take(&mut *tokens.wanted.lock());
            for at in to_watch {
                watches.spawn_local(self.clone().watch_node(at));
            }
            // a node that does not answer is not to keep the others from being heard
            drop(tokio::time::timeout(TAKING, self.take_tokens(&in_order)).await);
        }
        watches.shutdown().await;
    }

    /// Takes tokens of inodes, in as few requests as it takes; some may not be given. Who wants several at once asks for them here
    /// and need not use them twice.
    pub async fn take_tokens(&self, inodes: &[InodeRef]) {
        let tokens = &self.client.tokens;
        if !tokens.is_in_use() {
            return;
        }
        let mut by_node: BTreeMap<NodeId, Vec<InodeRef>> = BTreeMap::new();
        for inode in inodes.iter().filter(|inode| !tokens.has(**inode)) {
            if let Ok(node) = self.client.primary(inode.ino.region()) {
                by_node.entry(node).or_default().push(*inode);
            }
        }
        let mut requests = Vec::new();
        for (node, inodes) in by_node {
            let at = tokens.at(node);
            let pages: Vec<Vec<InodeRef>> = inodes.chunks(TOKENS_PAGE).map(<[_]>::to_vec).collect();
            requests.extend(pages.into_iter().map(|page| (at.clone(), page)));
        }
        join_all(requests.into_iter().map(|(at, page)| async move {
            if let Err(error) = self.take_page(&at, &page).await {
                tracing::debug!(node = %at.node, %error, "no tokens");
                at.requests.lock().not_before = Some(Instant::now() + WATCH_PAUSE);
            }
        }))
        .await;
    }

    /// Takes tokens of inodes of one node, in one request.
    async fn take_page(&self, at: &Arc<AtNode>, inodes: &[InodeRef]) -> Result<(), FsError> {
        let tokens = &self.client.tokens;
        let Some(_taking) = Taking::begin(at) else {
            return Ok(()); // what is used again is wanted again
        };
        let seals: Vec<_> = inodes.iter().map(|inode| tokens.own.seal(inode.ino)).collect();
        let sent = Instant::now();
        let request = ask::TakeTokens {
            inodes: inodes.to_vec(),
        };
        let taken: reply::Taken = self.call_node(at.node, request).await?;
        if taken.tokens.len() != inodes.len() {
            let node = at.node.0;
            return Err(FsError::Io(format!(
                "node {node} gave other tokens than were asked for"
            )));
        }
        if !tokens.renewed(at, taken.term, sent, Duration::from_millis(taken.lease_ms)) {
            return Ok(()); // of a term that is over
        }
        for ((inode, seal), token) in inodes.iter().zip(seals).zip(taken.tokens) {
            let Some(token) = token else { continue };
            let current = Current {
                is_bare: token.is_bare,
                ..Current::new(token.attr, token.tail)
            };
            if current.inode() != *inode {
                continue;
            }
            self.note(&current);
            let held = Held {
                number: token.number,
                at: at.clone(),
                known: seal.map(|seal| (current, seal)),
                used: AtomicU64::new(tokens.now_ms()),
            };
            // what was asked for before it has come is not kept
            let requests = at.requests.lock();
            let is_current = requests.early.get(inode).is_none_or(|number| *number < token.number);
            if is_current || planted(Planted::OvertakenBelieved) {
                tokens.shard(inode.ino).write().insert(*inode, held);
            }
        }
        let mut requests = at.requests.lock();
        if !std::mem::replace(&mut requests.is_watched, true) {
            tokens.wanted.lock().to_watch.push(at.clone());
            tokens.work.notify_one();
        }
        Ok(())
    }

    /// Hears what a node asks for, until no tokens of it are left or used.
    async fn watch_node(self: Rc<Self>, at: Arc<AtNode>) {
        let (tokens, node) = (&self.client.tokens, at.node);
        let mut answered: Vec<u64> = Vec::new();
        let mut last_used = Instant::now();
        // tokens were dropped of which the node does not know yet that they are
        let mut owes_end = false;
        // asked for, and not forgotten yet where it was passed on: it is asked for again
        let mut owes_answer = false;
        loop {
            if at.used.swap(false, Relaxed) {
                last_used = Instant::now();
            }
            // what was passed on by them is not believed for longer than a lease
            let end = last_used.elapsed() > at.lease() && at.begin_ending();
            if end {
                tokens.drop_of(node);
                owes_end = true;
            }
            let (sent, term) = (Instant::now(), at.term.load(Relaxed));
            // used in between after all: what was passed on by them is asked for one by one
            let end = end && !at.used.load(Relaxed);
            let request = ask::Watch {
                term,
                answered: std::mem::take(&mut answered),
                end,
            };
            let asked = tokio::select! {
                biased;
                () = self.client.stop.is_there() => return,
                asked = self.call_node(node, request) => asked,
            };
            owes_end &= !end;
            match asked {
                Ok(asked) if asked.term == term => {
                    if asked.renewed {
                        at.renewed(sent);
                    }
                    at.forget_early();
                    answered = self.answer(&asked.asked, &at).await;
                    owes_answer = answered.len() < asked.asked.len();
                    answered.extend(tokens.give_back_some(node));
                }
                Ok(asked) => {
                    owes_answer = false;
                    tokens.drop_of(node);
                    at.term.fetch_max(asked.term, Relaxed);
                }
                Err(error) => {
                    tracing::debug!(%node, %error, "tokens are not watched");
                    if at.left().is_zero() {
                        // whatever was believed by them is over, and the node knows it
                        (owes_answer, owes_end) = (false, false);
                        tokens.drop_of(node);
                    }
                    tokio::time::sleep(WATCH_PAUSE).await;
                }
            }
            if answered.is_empty() && !owes_end && !owes_answer && at.ends_if(|| tokens.has_none_of(node)) {
                return;
            }
        }
    }

    /// Somebody's change waits for these: what is known by them is forgotten, here and where it was passed on. Gives the numbers
    /// to answer with.
    async fn answer(&self, asked: &[(InodeRef, u64)], at: &AtNode) -> Vec<u64> {
        if asked.is_empty() {
            return Vec::new();
        }
        let tokens = &self.client.tokens;
        if !planted(Planted::AnsweredBeforeForgotten) {
            for (inode, number) in asked {
                at.requests.lock().early.insert(*inode, *number);
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
        tokens.recalls.fetch_add(forgotten.len() as u64, Relaxed);
        forgotten
    }
}

/// A request for tokens, until it is answered.
struct Taking<'a>(&'a AtNode);

impl<'a> Taking<'a> {
    fn begin(at: &'a AtNode) -> Option<Taking<'a>> {
        let mut requests = at.requests.lock();
        if requests.is_ending || requests.not_before.is_some_and(|then| Instant::now() < then) {
            return None;
        }
        requests.taking += 1;
        Some(Taking(at))
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let mut requests = self.0.requests.lock();
        requests.taking = requests.taking.checked_sub(1).expect("a request is counted");
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

    /// From now on no tokens are asked for; false while some are.
    fn begin_ending(&self) -> bool {
        let mut requests = self.requests.lock();
        requests.is_ending |= requests.taking == 0;
        requests.is_ending
    }

    /// The watch ends here, if nothing is left of it; tokens may be asked for again.
    fn ends_if(&self, is_left_nothing: impl FnOnce() -> bool) -> bool {
        let mut requests = self.requests.lock();
        let ends = requests.taking == 0 && is_left_nothing();
        if ends {
            requests.is_watched = false;
        }
        requests.is_ending = false;
        ends
    }

    /// Whatever was asked for early has come, or will not.
    fn forget_early(&self) {
        let mut requests = self.requests.lock();
        if requests.taking == 0 {
            requests.early.clear();
        }
    }
}

impl Tokens {
    fn at(&self, node: NodeId) -> Arc<AtNode> {
        let new = || Arc::new(AtNode::new(node));
        self.nodes.lock().entry(node).or_insert_with(new).clone()
    }

    /// The lease at a node was renewed, by what was sent then. Tokens of an earlier term are no more; false: it is of such a one
    /// itself.
    fn renewed(&self, at: &AtNode, term: u64, sent: Instant, lease: Duration) -> bool {
        let known = at.term.fetch_max(term, Relaxed);
        if term < known {
            return false;
        }
        if term > known {
            self.drop_of(at.node);
        }
        at.used.store(true, Relaxed);
        at.lease.lock().0 = lease;
        at.renewed(sent);
        true
    }

    /// The session was lost at a node, and with it its tokens.
    pub(crate) fn lost(&self, node: NodeId) {
        self.at(node).term.store(0, Relaxed);
        self.drop_of(node);
    }

    /// The session ends: nothing is known by tokens any more, nor will be.
    pub(crate) fn end(&self) {
        self.in_use.store(false, Relaxed);
        self.shards.iter().for_each(|shard| shard.write().clear());
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

    /// The logs of these inodes may have gone back: who was passed on what was known of them hears of it.
    pub(crate) fn may_go_back(&self, of: &dyn Fn(Ino) -> bool) {
        let keeper = self.keeper.read().clone();
        keeper.into_iter().for_each(|keeper| keeper.may_go_back(of));
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

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino, RegionId};

    fn inode(slot: u64) -> InodeRef {
        InodeRef {
            ino: Ino::new(RegionId(0), slot),
            generation: Generation(1),
        }
    }

    /// Tokens with these numbers, of the inodes of these slots, used at these times.
    fn hold(tokens: &Tokens, at: &Arc<AtNode>, numbers: impl Iterator<Item = u64>, used: impl Fn(u64) -> u64) {
        for number in numbers {
            let held = Held {
                number,
                at: at.clone(),
                known: None,
                used: AtomicU64::new(used(number)),
            };
            let inode = inode(number);
            tokens.shard(inode.ino).write().insert(inode, held);
        }
    }

    #[test]
    fn of_too_many_tokens_those_go_back_that_were_not_used_for_longest() {
        let (tokens, page) = (Tokens::new(), TOKENS_PAGE as u64);
        let (here, elsewhere) = (tokens.at(NodeId(0)), tokens.at(NodeId(1)));
        let most = TOKENS_MAX as u64 - page;
        hold(&tokens, &elsewhere, 1..=most / 2, |_| 0);
        hold(&tokens, &here, most / 2 + 1..=most - 1, |number| {
            1 << 20 | (number ^ 0xfff)
        });
        assert_eq!(tokens.give_back_some(NodeId(0)), [], "there is room for more");
        hold(&tokens, &here, most..=most, |_| u64::MAX);
        let mut oldest: Vec<u64> = (most / 2 + 1..most).collect();
        oldest.sort_by_key(|number| number ^ 0xfff);
        oldest.truncate(TOKENS_PAGE / 2);
        assert_eq!(tokens.give_back_some(NodeId(0)), oldest);
        assert!(oldest.iter().all(|number| !tokens.is_held(inode(*number))));
        assert!(tokens.is_held(inode(most)), "used just now");
        assert!(tokens.is_held(inode(1)), "another node's");
        assert_eq!(tokens.give_back_some(NodeId(0)), [], "there is room again");
    }
}
