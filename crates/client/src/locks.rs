//! Advisory locks. They live at the primary of the inode, in its memory; kept here is what each owner has, so that closing a file
//! costs an RPC only where there are locks to let go of, and that locks outlive the node that gave them.
//!
//! When a node has forgotten the session, was started anew, or another one serves its regions now, what was locked there is *claimed back*
//! ([`LocalClient::hold_locks`]): by whoever reads, writes or locks under it before he goes on, and by the maintenance at once. The
//! node gives nobody else such locks for a while (`node/locks/succession`), and later ones as long as nobody else has had any
//! of the inode. What holds:
//!
//! - An owner is *held*, *unclaimed* or *lost*, and goes from one to the next in this order, and back to held by a claim that was granted.
//! - What it is said to have is never more than the node has given it, under one term. Where that is not known (it let go of a range while
//!   a request for it was under way) nothing is claimed.
//! - It claims only while the node that gave the locks can not have ended the session for want of a renewal.

use crate::local_client::LocalClient;
use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_cluster::{RangeLocks, Timeouts};
use polvo_format::NodeId;
use polvo_proto::{
    FsError, InodeRef, LOCK_CLAIMS_MAX, LockAnswer, LockAsk, LockKind, LockRange, LockSeen, LockTerm, LockTicket,
    Locked, ask,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Nodes that did not answer, and may have locks that are to be claimed back, are asked again so soon.
const LOCKS_CLAIMED: Duration = Duration::from_millis(200);

/// How often an owner's locks are claimed again because they were lost again meanwhile.
const CLAIMS_MAX: u32 = 8;

/// What is known of an owner's locks of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// They are there.
    Held,
    /// The node that gave them keeps them no longer.
    Unclaimed,
    /// Others may have had them.
    Lost,
}

/// An owner that may have locks of an inode.
struct Mark {
    standing: Standing,
    ranges: RangeLocks,
    whole: Option<Locked>,
    /// Under which they were given; none: there have been none.
    term: Option<LockTerm>,
    /// When whoever gave them was last certain to know the session.
    sure: Option<Instant>,
    /// What is being asked for.
    asking: Vec<LockRange>,
    /// It let go of something that was being asked for.
    is_unsure: bool,
    /// Held by who claims them.
    claiming: Arc<tokio::sync::Mutex<()>>,
}

/// What is claimed back.
struct Claim {
    term: LockTerm,
    ranges: Vec<Locked>,
    whole: Option<Locked>,
    losses: u64,
}

#[derive(Default)]
struct Inner {
    marks: BTreeMap<(InodeRef, u64), Mark>,
    /// What could not be let go of because the node did not answer.
    unreleased: Vec<(InodeRef, u64)>,
    /// When something was sent by which each node has renewed the session's lease.
    renewed: HashMap<NodeId, Instant>,
    /// How often something was lost.
    losses: u64,
}

/// Who may have locks, and which.
#[derive(Default)]
pub(crate) struct Locks {
    inner: Mutex<Inner>,
    /// Number of marks, and of those that are not held: most files of most programs are never locked.
    marks: AtomicUsize,
    not_held: AtomicUsize,
    tickets: AtomicU64,
    /// Who looks after the nodes that have some ([`LocalClient::watch_locks`]) is at it.
    is_watched: AtomicBool,
    /// There are some again, or some were lost.
    changed: Notify,
}

impl Mark {
    fn new() -> Mark {
        Mark {
            standing: Standing::Held,
            ranges: RangeLocks::default(),
            whole: None,
            term: None,
            sure: None,
            asking: Vec::new(),
            is_unsure: false,
            claiming: Arc::default(),
        }
    }

    fn has_any(&self) -> bool {
        !self.ranges.is_empty() || self.whole.is_some()
    }

    fn take(&mut self, ask: &LockAsk, term: LockTerm) {
        let locked = Locked {
            range: ask.range,
            mode: ask.mode,
            pid: ask.pid,
        };
        if ask.kind.on_ranges() {
            self.ranges.set(locked);
        }
        if ask.kind.on_whole() {
            self.whole = Some(locked);
        }
        self.term = Some(term);
    }

    fn clear(&mut self, range: LockRange) {
        self.ranges.clear(range);
        if range == LockRange::ALL {
            self.whole = None;
        }
        let overlaps = |asked: &LockRange| asked.first <= range.last && range.first <= asked.last;
        self.is_unsure |= self.asking.iter().any(overlaps);
        self.is_unsure &= self.has_any() || !self.asking.is_empty();
    }
}

/// A request for a lock, until it is answered.
struct Asking<'a> {
    locks: &'a Locks,
    inode: InodeRef,
    owner: u64,
    range: LockRange,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.locks.end_asking(self.inode, self.owner, self.range);
    }
}

impl Locks {
    /// An owner's locks stand otherwise now.
    fn stand(&self, mark: &mut Mark, standing: Standing) {
        let before = std::mem::replace(&mut mark.standing, standing);
        match (before == Standing::Held, standing == Standing::Held) {
            (true, false) => {
                self.not_held.fetch_add(1, Ordering::AcqRel);
            }
            (false, true) => self.is_held_again(),
            _ => {}
        }
    }

    fn is_held_again(&self) {
        let not_held = self.not_held.fetch_sub(1, Ordering::AcqRel);
        assert!(not_held > 0, "a mark that is not held is counted");
    }

    /// An owner is about to ask for a lock. Says how often something was lost before.
    fn begin_to_ask(&self, inode: InodeRef, ask: &LockAsk) -> u64 {
        let mut inner = self.inner.lock();
        inner.unreleased.retain(|of| *of != (inode, ask.owner));
        let mark = inner.marks.entry((inode, ask.owner)).or_insert_with(Mark::new);
        mark.asking.push(ask.range);
        // flock(2): a lock of another mode is let go of first
        if ask.kind == LockKind::Whole && mark.whole.is_some_and(|held| held.mode != ask.mode) {
            mark.whole = None;
        }
        self.marks.store(inner.marks.len(), Ordering::Release);
        inner.losses
    }

    /// It waits for the answer no longer.
    fn end_asking(&self, inode: InodeRef, owner: u64, range: LockRange) {
        let mut inner = self.inner.lock();
        // it may have closed the file meanwhile, and asked for something else since
        if let Some(mark) = inner.marks.get_mut(&(inode, owner))
            && let Some(at) = mark.asking.iter().position(|asked| *asked == range)
        {
            mark.asking.swap_remove(at);
            mark.is_unsure &= mark.has_any() || !mark.asking.is_empty();
        }
    }

    /// A lock was given, by a node that knew the session when something was `sent` to it. False: what the owner had before was given
    /// under another term.
    fn given(&self, inode: InodeRef, ask: &LockAsk, term: LockTerm, sent: Instant, losses: u64) -> bool {
        let mut inner = self.inner.lock();
        let has_lost = inner.losses != losses;
        let Some(mark) = inner.marks.get_mut(&(inode, ask.owner)) else {
            return true; // it has closed the file meanwhile
        };
        let had_any = mark.has_any();
        if had_any && mark.term != Some(term) {
            return false;
        }
        mark.sure = Some(mark.sure.filter(|_| had_any).map_or(sent, |sure| sure.min(sent)));
        mark.take(ask, term);
        if has_lost && mark.standing == Standing::Held {
            self.stand(mark, Standing::Unclaimed);
            self.changed.notify_one();
        }
        true
    }

    /// Forgets an owner; true when it may have locks.
    fn take(&self, inode: InodeRef, owner: u64) -> bool {
        if self.marks.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut inner = self.inner.lock();
        let Some(mark) = inner.marks.remove(&(inode, owner)) else {
            return false;
        };
        self.marks.store(inner.marks.len(), Ordering::Release);
        if mark.standing != Standing::Held {
            self.is_held_again();
        }
        true
    }

    /// Whoever gave locks of these inodes keeps them no longer.
    pub(crate) fn lose_where(&self, is_gone: impl Fn(InodeRef) -> bool) {
        let mut inner = self.inner.lock();
        inner.losses += 1;
        for ((inode, _), mark) in &mut inner.marks {
            if mark.standing == Standing::Held && mark.has_any() && is_gone(*inode) {
                self.stand(mark, Standing::Unclaimed);
                self.changed.notify_one();
            }
        }
    }

    /// A node knew the session when something was `sent` to it, and so it did when it gave locks of these inodes.
    pub(crate) fn renewed(&self, node: NodeId, sent: Instant, is_there: impl Fn(InodeRef) -> bool) {
        let mut inner = self.inner.lock();
        inner.renewed.insert(node, sent);
        for ((inode, _), mark) in &mut inner.marks {
            if mark.standing == Standing::Held && is_there(*inode) {
                mark.sure = mark.sure.max(Some(sent));
            }
        }
    }

    /// When a node was last certain to know the session.
    fn renewed_at(&self, node: NodeId) -> Option<Instant> {
        self.inner.lock().renewed.get(&node).copied()
    }

    /// What is to be claimed back for an owner; none: nothing.
    ///
    /// # Errors
    /// EIO: others may have had it.
    fn begin_claim(&self, inode: InodeRef, owner: u64, lease: Duration) -> Result<Option<Claim>, FsError> {
        let mut inner = self.inner.lock();
        let losses = inner.losses;
        let Some(mark) = inner.marks.get_mut(&(inode, owner)) else {
            return Ok(None);
        };
        if mark.standing == Standing::Unclaimed && !mark.has_any() {
            self.stand(mark, Standing::Held); // it has let go of all of it since
        }
        if mark.standing == Standing::Held {
            return Ok(None);
        }
        // either clock may run 1 % too fast or too slow
        let is_sure = mark.sure.is_some_and(|sure| sure.elapsed() < lease.mul_f64(0.98)) && !mark.is_unsure;
        match mark.term {
            Some(term) if is_sure && mark.standing == Standing::Unclaimed => Ok(Some(Claim {
                term,
                ranges: mark.ranges.iter().copied().collect(),
                whole: mark.whole,
                losses,
            })),
            _ => {
                self.stand(mark, Standing::Lost);
                Err(lock_lost())
            }
        }
    }

    /// What was claimed back has been answered: with the term under which it is held now, by a node that knew the session when something was
    /// `sent` to it. False: the owner has closed the file meanwhile.
    fn end_claim(&self, inode: InodeRef, owner: u64, losses: u64, given: Option<(LockTerm, Instant)>) -> bool {
        let mut inner = self.inner.lock();
        let has_lost = inner.losses != losses;
        let Some(mark) = inner.marks.get_mut(&(inode, owner)) else {
            return false;
        };
        match given {
            Some((term, sent)) => {
                (mark.term, mark.sure) = (Some(term), Some(sent));
                if !has_lost {
                    self.stand(mark, Standing::Held);
                }
            }
            None => self.stand(mark, Standing::Lost),
        }
        true
    }

    /// Owners whose locks are to be claimed back.
    fn unclaimed(&self) -> Vec<(InodeRef, u64)> {
        let inner = self.inner.lock();
        let unclaimed = inner
            .marks
            .iter()
            .filter(|(_, mark)| mark.standing == Standing::Unclaimed);
        unclaimed.map(|(of, _)| *of).collect()
    }

    /// Of which inodes somebody may have locks; none: nobody looks after them from here on, before there are some again.
    fn inodes(&self) -> Vec<InodeRef> {
        let inner = self.inner.lock();
        let inodes: Vec<InodeRef> = inner.marks.keys().map(|(inode, _)| *inode).collect();
        self.is_watched.store(!inodes.is_empty(), Ordering::Release);
        inodes
    }

    fn are_held(&self, inode: InodeRef, owner: u64) -> bool {
        self.not_held.load(Ordering::Acquire) == 0
            || self
                .inner
                .lock()
                .marks
                .get(&(inode, owner))
                .is_none_or(|mark| mark.standing == Standing::Held)
    }
}

fn lock_lost() -> FsError {
    FsError::Io("a lock was lost with the session at its node; close the file".into())
}

impl crate::Client {
    /// True when all that an owner has locked of an inode is its. Else the node that gave it keeps it no longer, and the owner should
    /// neither read nor write before [`LocalClient::hold_locks`].
    pub fn holds_locks(&self, inode: InodeRef, owner: u64) -> bool {
        self.locks.are_held(inode, owner)
    }

    /// The same of all owners and inodes.
    pub fn holds_all_locks(&self) -> bool {
        self.locks.not_held.load(Ordering::Acquire) == 0
    }

    /// A number for a [`LockTicket`].
    pub fn next_lock_ticket(&self) -> u64 {
        self.locks.tickets.fetch_add(1, Ordering::Relaxed)
    }
}

impl LocalClient {
    /// Makes sure that what an owner has locked of an inode is its, by claiming it back where it has to.
    ///
    /// # Errors
    /// EIO: others may have had it, and it is lost until [`LocalClient::release_locks`]. [`FsError::Unreachable`]: its node does not answer.
    pub async fn hold_locks(&self, inode: InodeRef, owner: u64) -> Result<(), FsError> {
        let locks = &self.client.locks;
        if locks.are_held(inode, owner) {
            return Ok(());
        }
        let claiming = {
            let inner = locks.inner.lock();
            let Some(mark) = inner.marks.get(&(inode, owner)) else {
                return Ok(());
            };
            mark.claiming.clone()
        };
        let _only_one = claiming.lock().await;
        let region = inode.ino.region();
        for _ in 0..CLAIMS_MAX {
            let lease = self.client.context.timeouts().lease;
            let Some(claim) = locks.begin_claim(inode, owner, lease)? else {
                return Ok(());
            };
            let sent = Instant::now();
            let given = self.claim(inode, owner, &claim).await?;
            let known = locks.renewed_at(self.client.primary(region)?).unwrap_or(sent);
            if !locks.end_claim(inode, owner, claim.losses, given.map(|term| (term, known))) {
                locks.inner.lock().unreleased.push((inode, owner));
                return Ok(());
            }
            let took = sent.elapsed();
            if given.is_none() {
                tracing::warn!(inode = inode.ino.0, ?took, "a lock was lost with the node that gave it");
                return Err(lock_lost());
            }
            tracing::debug!(inode = inode.ino.0, ?took, "locks are claimed back");
        }
        Err(FsError::Busy)
    }

    /// Claims locks back; answered with the term under which they are held from now on.
    async fn claim(&self, inode: InodeRef, owner: u64, claim: &Claim) -> Result<Option<LockTerm>, FsError> {
        let mut pages: Vec<(&[Locked], Option<Locked>)> =
            claim.ranges.chunks(LOCK_CLAIMS_MAX).map(|page| (page, None)).collect();
        match pages.last_mut() {
            Some(last) => last.1 = claim.whole,
            None => pages.push((&[], claim.whole)),
        }
        let mut term = None;
        for (ranges, whole) in pages {
            let claim = ask::ClaimLocks {
                inode,
                owner,
                term: claim.term,
                ranges: ranges.to_vec(),
                whole,
            };
            let given = self.call(inode.ino.region(), claim).await?;
            if given.is_none() || term.is_some() && term != given {
                return Ok(None); // a part at one node, a part at who has taken its place: none of them for certain
            }
            term = given;
        }
        Ok(term)
    }

    /// Claims back whatever nodes keep no longer. False: some could not be asked.
    pub(crate) async fn claim_locks(&self) -> bool {
        let mut all_asked = true;
        for (inode, owner) in self.client.locks.unclaimed() {
            if let Err(error @ FsError::Unreachable { .. }) = self.hold_locks(inode, owner).await {
                tracing::debug!(inode = inode.ino.0, %error, "locks are not claimed back yet");
                all_asked = false;
            }
        }
        all_asked
    }

    /// Looks after the nodes that keep locks of this client, and claims back what they do not keep any more. Does not return.
    pub(crate) async fn watch_locks(&self) {
        let locks = &self.client.locks;
        let here = self.client.colocated.as_ref().map(|here| here.node.id());
        let mut all_there = true;
        loop {
            let all_claimed = self.claim_locks().await;
            let pause = match all_there && all_claimed {
                _ if locks.inodes().is_empty() => Duration::MAX,
                true => Timeouts::LOCKS_WATCHED,
                false => LOCKS_CLAIMED,
            };
            if tokio::time::timeout(pause, locks.changed.notified()).await.is_ok() {
                continue;
            }
            let primary = |inode: InodeRef| self.client.primary(inode.ino.region()).ok();
            let nodes: BTreeSet<NodeId> = locks.inodes().into_iter().filter_map(primary).collect();
            let others: Vec<NodeId> = nodes.into_iter().filter(|node| Some(*node) != here).collect();
            let sent = Instant::now();
            let there = tokio::select! {
                biased;
                // a region has moved, or somebody has been given a lock: what is to be claimed does not wait for who does not answer
                () = locks.changed.notified() => continue,
                there = self.links.look_after(&others) => there,
            };
            all_there = there.len() == others.len();
            for node in there {
                locks.renewed(node, sent, |inode| primary(inode) == Some(node));
            }
        }
    }

    /// Takes an advisory lock on an open file. With a ticket: waits for it, for as long as the ticket says.
    ///
    /// # Errors
    /// [`FsError::WouldBlock`] without a ticket, [`FsError::Deadlock`], [`FsError::NoLocks`],
    /// [`FsError::Interrupted`] after [`LocalClient::cancel_lock`]; EIO when earlier locks of the owner were lost.
    pub async fn lock(&self, inode: InodeRef, lock: LockAsk, wait: Option<LockTicket>) -> Result<LockAnswer, FsError> {
        let (region, owner, locks) = (inode.ino.region(), lock.owner, &self.client.locks);
        let mut waits_again = false;
        for _ in 0..CLAIMS_MAX {
            self.hold_locks(inode, owner).await?;
            let node = self.client.primary(region)?;
            let (losses, sent) = (locks.begin_to_ask(inode, &lock), Instant::now());
            let _asking = Asking {
                locks,
                inode,
                owner,
                range: lock.range,
            };
            let answer = match self.call(region, ask::Lock { inode, lock, wait }).await {
                // it went away while this waited there: who waits goes on where it is back, or another one serves the region
                Err(FsError::Unreachable { .. }) if wait.is_some() && !std::mem::replace(&mut waits_again, true) => {
                    continue;
                }
                answer => answer?,
            };
            let LockAnswer::Granted(term) = answer else {
                return Ok(answer);
            };
            // who hears of it later (since he was cut off, or stood still) may hear it from a node that is gone, when others have
            // been given the lock; asking again for what one has changes nothing
            if sent.elapsed() > Timeouts::LOCK_GRACE {
                continue;
            }
            let known = locks.renewed_at(node).unwrap_or(sent);
            if locks.given(inode, &lock, term, known, losses) {
                if !locks.is_watched.load(Ordering::Acquire) {
                    locks.changed.notify_one();
                }
                return Ok(answer);
            }
            // what it had before is to be under the same term
            locks.lose_where(|lost| lost == inode);
        }
        Err(FsError::Busy)
    }

    /// Calls off a wait; whoever asks with that ticket gets EINTR, unless the lock was granted just before.
    pub async fn cancel_lock(&self, inode: InodeRef, ticket: u64) -> Result<(), FsError> {
        self.call(inode.ino.region(), ask::CancelLock { inode, ticket }).await
    }

    /// Lets go of what an owner has locked in a range.
    pub async fn unlock(&self, inode: InodeRef, owner: u64, range: LockRange) -> Result<(), FsError> {
        self.hold_locks(inode, owner).await?;
        if let Some(mark) = self.client.locks.inner.lock().marks.get_mut(&(inode, owner)) {
            mark.clear(range);
        }
        self.call(inode.ino.region(), ask::Unlock { inode, owner, range }).await
    }

    /// The first lock that keeps an owner from taking another.
    pub async fn test_lock(&self, inode: InodeRef, lock: LockAsk) -> Result<Option<LockSeen>, FsError> {
        self.call(inode.ino.region(), ask::TestLock { inode, lock }).await
    }

    /// Lets go of everything that an owner has locked of an inode, when it closes it. No RPC when that is nothing. When
    /// the node does not answer, it is told later.
    pub async fn release_locks(&self, inode: InodeRef, owner: u64) -> Result<(), FsError> {
        if !self.client.locks.take(inode, owner) {
            return Ok(());
        }
        let range = LockRange::ALL;
        let unlock = ask::Unlock { inode, owner, range };
        match self.call(inode.ino.region(), unlock).await {
            Err(error @ FsError::Unreachable { .. }) => {
                self.client.locks.inner.lock().unreleased.push((inode, owner));
                Err(error)
            }
            answer => answer,
        }
    }

    /// Tells nodes what they could not be told when it happened.
    pub(crate) async fn release_locks_left(&self) {
        let left = self.client.locks.inner.lock().unreleased.clone();
        for (inode, owner) in left {
            let range = LockRange::ALL;
            let unlock = ask::Unlock { inode, owner, range };
            if !matches!(
                self.call(inode.ino.region(), unlock).await,
                Err(FsError::Unreachable { .. })
            ) {
                let mut inner = self.client.locks.inner.lock();
                inner.unreleased.retain(|of| *of != (inode, owner));
            }
        }
    }
}
