//! The advisory locks of all inodes served here, and who waits for them.
//!
//! Locks live as long as the node runs and the session of their holder lasts; what comes after is `succession`'s affair. A request that finds others in the way
//! is put at the end of the inode's queue; whenever a lock goes, the queue is walked from its front and whoever has
//! nobody in the way any more gets what it waits for. Who waits is told so when it asks (again); a wait that nobody
//! asks after is forgotten.
//!
//! A request is refused at once when waiting would close a circle of waits of this node; circles over several nodes
//! are looked for by `deadlocks`.

use crate::locks::succession::Succession;
use crate::request::sessions::Session;
use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;
use polvo_cluster::{RangeLocks, Timeouts};
use polvo_format::{RegionId, SessionId};
use polvo_proto::{
    FsError, InodeRef, LOCK_WAITS_MAX, LOCKED_BY_MAX, LOCKS_MAX, LockAsk, LockHolder, LockKind, LockRange, LockSeen,
    LockTerm, LockWait, Locked, LockedBy,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Most waits for one another that are shown to another node in one answer.
const EDGES_MAX: usize = 2000;
/// Most holders and waits of an inode that are checked for what always holds of them (in builds with assertions).
const CHECKED_MAX: usize = 32;

/// Somebody who waits.
pub(crate) struct Waiter {
    holder: LockHolder,
    ticket: u64,
    ask: LockAsk,
    since: Instant,
    /// How the wait ended.
    outcome: OnceLock<Result<(), FsError>>,
    ended: Notify,
    /// Requests that wait for the end just now.
    attending: AtomicU32,
    left: Mutex<Instant>,
    /// Others have come to be in the way since the last look for a deadlock.
    fresh: AtomicBool,
}

/// A request that waits for the end of a wait.
struct Attending<'a>(&'a Waiter);

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        *self.0.left.lock() = Instant::now();
        let attending = self.0.attending.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(attending > 0, "who attends a wait is counted");
    }
}

impl Waiter {
    /// Waits for the end, for at most `limit`; `None`: not yet.
    pub async fn wait(&self, limit: Duration) -> Option<Result<(), FsError>> {
        self.attending.fetch_add(1, Ordering::AcqRel);
        let _attending = Attending(self);
        let end = async {
            loop {
                let mut ended = pin!(self.ended.notified());
                ended.as_mut().enable();
                if let Some(outcome) = self.outcome.get() {
                    return outcome.clone();
                }
                ended.await;
            }
        };
        tokio::time::timeout(limit, end).await.ok()
    }

    fn end(&self, outcome: Result<(), FsError>) {
        assert!(self.outcome.set(outcome).is_ok(), "a wait ends once");
        self.ended.notify_waiters();
    }

    fn is_forgotten(&self) -> bool {
        self.attending.load(Ordering::Acquire) == 0 && self.left.lock().elapsed() >= Timeouts::LOCK_FORGOTTEN
    }
}

/// What became of a request.
pub(crate) enum Asked {
    Granted,
    Waits(Arc<Waiter>),
}

/// Locks of one inode.
#[derive(Default)]
pub(super) struct InodeLocks {
    ranges: BTreeMap<LockHolder, RangeLocks>,
    whole: BTreeMap<LockHolder, Locked>,
    queue: VecDeque<Arc<Waiter>>,
}

/// What a session has here.
#[derive(Default)]
struct Share {
    locks: usize,
    waits: usize,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) inodes: HashMap<InodeRef, InodeLocks>,
    shares: HashMap<SessionId, Share>,
    /// Where a holder waits for ranges.
    waits: HashMap<LockHolder, Vec<(InodeRef, Arc<Waiter>)>>,
    /// Under which locks are given.
    pub(super) term: LockTerm,
    /// Regions whose locks were given by somebody else before.
    pub(super) successions: BTreeMap<RegionId, Succession>,
}

/// All locks of a node.
#[derive(Default)]
pub(crate) struct Locks {
    pub(super) table: Mutex<Table>,
    /// A wait for a range has begun.
    pub began: Notify,
    /// Of an inode whose region was handed over with locks, all of them are claimed, or let go of.
    pub settled: Notify,
}

impl InodeLocks {
    /// Locks of others that are in the way.
    fn in_the_way(&self, me: LockHolder, ask: &LockAsk) -> impl Iterator<Item = (LockHolder, Locked)> {
        let ask = *ask;
        let ranges = self.ranges.iter().filter(move |_| ask.kind.on_ranges());
        let ranges = ranges.filter_map(move |(holder, locks)| Some((*holder, *locks.conflict(ask.range, ask.mode)?)));
        let whole = self.whole.iter().filter(move |_| ask.kind.on_whole());
        let whole = whole
            .filter(move |(_, held)| held.mode.excludes(ask.mode))
            .map(|(holder, held)| (*holder, *held));
        ranges.chain(whole).filter(move |(holder, _)| *holder != me)
    }

    fn blockers(&self, me: LockHolder, ask: &LockAsk) -> Vec<LockHolder> {
        let mut blockers: Vec<LockHolder> = self.in_the_way(me, ask).map(|(holder, _)| holder).collect();
        blockers.dedup();
        blockers
    }

    pub(super) fn is_free(&self, me: LockHolder, ask: &LockAsk) -> bool {
        self.in_the_way(me, ask).next().is_none()
    }

    /// Somebody has all that he asks for.
    pub(super) fn has(&self, me: LockHolder, ask: &LockAsk) -> bool {
        let range = || {
            self.ranges
                .get(&me)
                .is_some_and(|held| held.covers(ask.range, ask.mode))
        };
        let whole = || self.whole.get(&me).is_some_and(|held| held.mode == ask.mode);
        (!ask.kind.on_ranges() || range()) && (!ask.kind.on_whole() || whole())
    }

    pub(super) fn locks_of(&self, holder: LockHolder) -> usize {
        self.ranges.get(&holder).map_or(0, RangeLocks::len) + usize::from(self.whole.contains_key(&holder))
    }

    pub(super) fn take(&mut self, me: LockHolder, ask: &LockAsk) {
        let locked = Locked {
            range: ask.range,
            mode: ask.mode,
            pid: ask.pid,
        };
        if ask.kind.on_ranges() {
            self.ranges.entry(me).or_default().set(locked);
        }
        if ask.kind.on_whole() {
            self.whole.insert(me, locked);
        }
    }

    fn clear(&mut self, holder: LockHolder, range: LockRange) {
        if let Some(locks) = self.ranges.get_mut(&holder) {
            locks.clear(range);
            if locks.is_empty() {
                self.ranges.remove(&holder);
            }
        }
        if range == LockRange::ALL {
            self.whole.remove(&holder);
        }
    }

    fn is_unused(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_empty() && self.queue.is_empty()
    }
}

impl Table {
    /// Inodes of a region of which somebody has locks, or wants some.
    fn inodes_of(&self, region: RegionId) -> Vec<InodeRef> {
        let all = self.inodes.keys().copied();
        all.filter(|inode| inode.ino.region() == region).collect()
    }

    /// How much a session has locked.
    pub(super) fn locks_of(&self, session: SessionId) -> usize {
        self.shares.get(&session).map_or(0, |share| share.locks)
    }

    /// Changes what a holder has locked of an inode, keeping count.
    pub(super) fn change(&mut self, inode: InodeRef, holder: LockHolder, change: impl FnOnce(&mut InodeLocks)) {
        let locks = self.inodes.entry(inode).or_default();
        let before = locks.locks_of(holder);
        change(locks);
        let after = locks.locks_of(holder);
        let share = self.shares.entry(holder.session).or_default();
        let others = share.locks.checked_sub(before);
        share.locks = others.expect("a session's share counts the locks of each of its holders") + after;
        self.drop_share(holder.session);
    }

    fn drop_share(&mut self, session: SessionId) {
        let nothing = |share: &Share| share.locks == 0 && share.waits == 0;
        if self.shares.get(&session).is_some_and(nothing) {
            self.shares.remove(&session);
        }
    }

    fn enqueue(&mut self, inode: InodeRef, waiter: &Arc<Waiter>) {
        let locks = self.inodes.entry(inode).or_default();
        debug_assert!(
            !locks.is_free(waiter.holder, &waiter.ask),
            "who has nobody in the way does not wait"
        );
        locks.queue.push_back(waiter.clone());
        self.shares.entry(waiter.holder.session).or_default().waits += 1;
        if waiter.ask.kind == LockKind::Range {
            let waits = self.waits.entry(waiter.holder).or_default();
            waits.push((inode, waiter.clone()));
        }
    }

    /// Ends waits for an inode.
    fn dequeue(&mut self, inode: InodeRef, which: impl Fn(&Waiter) -> bool, outcome: &Result<(), FsError>) {
        let Some(locks) = self.inodes.get_mut(&inode) else {
            return;
        };
        let mut gone = Vec::new();
        locks.queue.retain(|waiter| {
            let stays = !which(waiter);
            if !stays {
                gone.push(waiter.clone());
            }
            stays
        });
        for waiter in gone {
            self.ended(&waiter);
            waiter.end(outcome.clone());
        }
    }

    fn ended(&mut self, waiter: &Arc<Waiter>) {
        if let Some(share) = self.shares.get_mut(&waiter.holder.session) {
            let waits = share.waits.checked_sub(1);
            share.waits = waits.expect("a session's share counts each of its waits");
            self.drop_share(waiter.holder.session);
        }
        if let Some(waits) = self.waits.get_mut(&waiter.holder) {
            waits.retain(|(_, known)| !Arc::ptr_eq(known, waiter));
            if waits.is_empty() {
                self.waits.remove(&waiter.holder);
            }
        }
    }

    /// Locks of an inode have gone: gives what is free now to those who wait for it, first come first served.
    pub(super) fn advance(&mut self, inode: InodeRef) {
        // a grant can let go as well, when it turns an exclusive lock of the same owner into a shared one
        while self.grant_round(inode) {}
        if self.inodes.get(&inode).is_some_and(InodeLocks::is_unused) {
            self.inodes.remove(&inode);
        }
        self.check(inode);
    }

    fn grant_round(&mut self, inode: InodeRef) -> bool {
        let mut granted = false;
        let mut at = 0;
        while let Some(locks) = self.inodes.get_mut(&inode)
            && let Some(waiter) = locks.queue.get(at).cloned()
        {
            if !locks.is_free(waiter.holder, &waiter.ask) {
                waiter.fresh.store(true, Ordering::Relaxed);
                at += 1;
                continue;
            }
            let first = locks.queue.remove(at);
            assert!(
                first.is_some_and(|first| Arc::ptr_eq(&first, &waiter)),
                "the queue is this lock's"
            );
            self.change(inode, waiter.holder, |locks| locks.take(waiter.holder, &waiter.ask));
            self.note_given(inode);
            self.ended(&waiter);
            waiter.end(Ok(()));
            granted = true;
        }
        granted
    }

    /// What holds of an inode whenever the table is let go: no lock excludes another, nobody waits for what is free, and who
    /// has or wants something is counted.
    fn check(&self, inode: InodeRef) {
        if !cfg!(debug_assertions) {
            return;
        }
        let Some(locks) = self.inodes.get(&inode) else { return };
        if locks.ranges.len() + locks.whole.len() + locks.queue.len() > CHECKED_MAX {
            return;
        }
        assert!(
            !locks.is_unused(),
            "an inode that nobody locks or wants is not in the table"
        );
        for (holder, ranges) in &locks.ranges {
            assert!(!ranges.is_empty(), "a holder of ranges has some");
            assert!(
                self.shares.contains_key(&holder.session),
                "a holder's session has a share"
            );
        }
        for (holder, held) in &locks.whole {
            let mut others = locks.whole.iter().filter(|(other, _)| *other != holder);
            assert!(
                others.all(|(_, other)| !held.mode.excludes(other.mode)),
                "locks of a file that exclude each other"
            );
            assert!(
                self.shares.contains_key(&holder.session),
                "a holder's session has a share"
            );
        }
        for waiter in &locks.queue {
            assert!(waiter.outcome.get().is_none(), "a wait that has ended is in no queue");
            assert!(!locks.is_free(waiter.holder, &waiter.ask), "a wait for what is free");
            let share = self.shares.get(&waiter.holder.session);
            assert!(
                share.is_some_and(|share| share.waits > 0),
                "a wait that its session's share does not count"
            );
            let known = || {
                self.waits
                    .get(&waiter.holder)
                    .into_iter()
                    .flatten()
                    .any(|(at, w)| *at == inode && Arc::ptr_eq(w, waiter))
            };
            assert!(
                waiter.ask.kind != LockKind::Range || known(),
                "a wait for a range that its holder is not known to have"
            );
        }
    }

    /// True when one of `blockers` waits, by whatever way round, for `me`.
    fn leads_to(&self, blockers: Vec<LockHolder>, me: LockHolder) -> bool {
        let mut to_visit = blockers;
        let mut seen: HashSet<LockHolder> = HashSet::default();
        while let Some(holder) = to_visit.pop() {
            if holder == me {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            for (inode, waiter) in self.waits.get(&holder).into_iter().flatten() {
                if let Some(locks) = self.inodes.get(inode) {
                    to_visit.extend(locks.blockers(holder, &waiter.ask));
                }
            }
        }
        false
    }
}

impl Locks {
    /// Takes a lock, or a place in the queue for it.
    ///
    /// # Errors
    /// `WouldBlock` without a ticket; `Deadlock`; `NoLocks`; `SessionExpired`.
    pub fn ask(
        &self,
        session: &Session,
        inode: InodeRef,
        ask: &LockAsk,
        ticket: Option<u64>,
    ) -> Result<Asked, FsError> {
        let me = LockHolder {
            session: session.id,
            owner: ask.owner,
        };
        let mut table = self.table.lock();
        // whoever ends the session clears the table afterwards
        if session.is_ended() {
            return Err(FsError::SessionExpired);
        }
        if let Some(waiter) = table.inodes.get(&inode).and_then(|locks| {
            let mine = |waiter: &&Arc<Waiter>| waiter.holder == me && Some(waiter.ticket) == ticket;
            locks.queue.iter().find(mine)
        }) {
            return Ok(Asked::Waits(waiter.clone()));
        }
        if ask.kind == LockKind::Whole {
            // flock(2): a lock of another mode is let go of first
            let other = |held: &Locked| held.mode != ask.mode;
            let held = table.inodes.get(&inode).and_then(|locks| locks.whole.get(&me));
            if held.is_some_and(other) {
                table.change(inode, me, |locks| {
                    locks.whole.remove(&me);
                });
                table.advance(inode);
            }
        }
        let blockers = table
            .inodes
            .get(&inode)
            .map_or(Vec::new(), |locks| locks.blockers(me, ask));
        let (locks, waits) = table
            .shares
            .get(&session.id)
            .map_or((0, 0), |share| (share.locks, share.waits));
        if blockers.is_empty() {
            if locks >= LOCKS_MAX {
                return Err(FsError::NoLocks);
            }
            table.change(inode, me, |locks| locks.take(me, ask));
            table.note_given(inode);
            table.advance(inode);
            return Ok(Asked::Granted);
        }
        let Some(ticket) = ticket else {
            return Err(FsError::WouldBlock);
        };
        if waits >= LOCK_WAITS_MAX {
            return Err(FsError::NoLocks);
        }
        if ask.kind == LockKind::Range && table.leads_to(blockers, me) {
            return Err(FsError::Deadlock);
        }
        let now = Instant::now();
        let waiter = Arc::new(Waiter {
            holder: me,
            ticket,
            ask: *ask,
            since: now,
            outcome: OnceLock::new(),
            ended: Notify::new(),
            attending: AtomicU32::new(0),
            left: Mutex::new(now),
            fresh: AtomicBool::new(true),
        });
        table.enqueue(inode, &waiter);
        table.check(inode);
        if ask.kind == LockKind::Range {
            self.began.notify_one();
        }
        Ok(Asked::Waits(waiter))
    }

    /// Lets go of a range; of everything, waits that nobody asks after included, if it is all of the file.
    pub fn unlock(&self, session: SessionId, inode: InodeRef, owner: u64, range: LockRange) {
        let holder = LockHolder { session, owner };
        let mut table = self.table.lock();
        if range == LockRange::ALL {
            let left = |waiter: &Waiter| waiter.holder == holder && waiter.attending.load(Ordering::Acquire) == 0;
            table.dequeue(inode, left, &Err(FsError::Interrupted));
        }
        table.change(inode, holder, |locks| locks.clear(holder, range));
        table.advance(inode);
        if range == LockRange::ALL {
            self.settle(&mut table, session, Some((inode, owner)));
        }
    }

    /// The first lock that is in the way.
    pub fn test(&self, session: SessionId, inode: InodeRef, ask: &LockAsk) -> Option<LockSeen> {
        let me = LockHolder {
            session,
            owner: ask.owner,
        };
        let table = self.table.lock();
        let in_the_way = table.inodes.get(&inode)?.in_the_way(me, ask);
        let (_, held) = in_the_way.min_by_key(|(_, held)| held.range.first)?;
        Some(LockSeen {
            mode: held.mode,
            range: held.range,
            pid: held.pid,
        })
    }

    /// Ends a wait, if it has not ended.
    pub fn cancel(&self, session: SessionId, inode: InodeRef, ticket: u64, why: FsError) {
        let mut table = self.table.lock();
        let this_one = |waiter: &Waiter| waiter.holder.session == session && waiter.ticket == ticket;
        table.dequeue(inode, this_one, &Err(why));
        table.advance(inode);
    }

    /// A session has ended, and with it all that it had.
    pub fn end_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        self.settle(&mut table, session, None);
        if !table.shares.contains_key(&session) {
            return;
        }
        let inodes: Vec<InodeRef> = table.inodes.keys().copied().collect();
        for inode in inodes {
            let of_it = |waiter: &Waiter| waiter.holder.session == session;
            table.dequeue(inode, of_it, &Err(FsError::SessionExpired));
            if let Some(locks) = table.inodes.get_mut(&inode) {
                locks.ranges.retain(|holder, _| holder.session != session);
                locks.whole.retain(|holder, _| holder.session != session);
            }
            table.advance(inode);
        }
        table.shares.remove(&session);
        debug_assert!(
            table.waits.keys().all(|holder| holder.session != session),
            "a session that has ended waits for nothing"
        );
    }

    /// A region is about to be served elsewhere: who waits for locks there is to ask again.
    pub fn send_away(&self, region: RegionId) {
        let mut table = self.table.lock();
        for inode in table.inodes_of(region) {
            table.dequeue(inode, |_| true, &Err(FsError::WrongEpoch));
            table.advance(inode);
        }
    }

    /// Who has locks in a region; none: more than one message tells.
    pub fn locked_by(&self, region: RegionId) -> Option<Vec<LockedBy>> {
        let table = self.table.lock();
        let mut all = Vec::new();
        for inode in table.inodes_of(region) {
            let Some(locks) = table.inodes.get(&inode) else {
                continue;
            };
            let holders: BTreeSet<LockHolder> = locks.ranges.keys().chain(locks.whole.keys()).copied().collect();
            all.extend(holders.into_iter().map(|holder| LockedBy {
                inode,
                holder,
                locks: u32::try_from(locks.locks_of(holder)).unwrap_or(u32::MAX),
            }));
            if all.len() > LOCKED_BY_MAX {
                return None;
            }
        }
        Some(all)
    }

    /// A region is served elsewhere: locks there are claimed from who serves it now.
    pub fn forget_region(&self, region: RegionId) {
        let mut table = self.table.lock();
        for inode in table.inodes_of(region) {
            table.dequeue(inode, |_| true, &Err(FsError::WrongEpoch));
            let locks = table.inodes.get(&inode);
            let holders = locks.map(|locks| locks.ranges.keys().chain(locks.whole.keys()).copied());
            let holders: Vec<LockHolder> = holders.into_iter().flatten().collect();
            for holder in holders {
                table.change(inode, holder, |locks| locks.clear(holder, LockRange::ALL));
            }
            table.advance(inode);
        }
        table.successions.remove(&region);
    }

    /// Forgets waits that nobody asks after.
    pub fn sweep(&self) {
        let mut table = self.table.lock();
        table.sweep_successions();
        if table.shares.values().all(|share| share.waits == 0) {
            return;
        }
        let waiting = |locks: &InodeLocks| locks.queue.iter().any(|waiter| waiter.is_forgotten());
        let inodes: Vec<InodeRef> = table
            .inodes
            .iter()
            .filter(|(_, locks)| waiting(locks))
            .map(|(inode, _)| *inode)
            .collect();
        for inode in inodes {
            table.dequeue(inode, Waiter::is_forgotten, &Err(FsError::Interrupted));
            table.advance(inode);
        }
    }

    /// Locked ranges and files, and waits.
    pub fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        let sum = |part: fn(&Share) -> usize| table.shares.values().map(part).sum();
        (sum(|share| share.locks), sum(|share| share.waits))
    }

    /// True while somebody waits for a range.
    pub fn anybody_waits(&self) -> bool {
        !self.table.lock().waits.is_empty()
    }

    /// True once for every wait that has begun, or found others in its way, at least `age` ago.
    pub fn take_fresh(&self, age: Duration) -> bool {
        let table = self.table.lock();
        let old = table.waits.values().flatten().filter(|(_, w)| w.since.elapsed() >= age);
        old.fold(false, |any, (_, waiter)| {
            waiter.fresh.swap(false, Ordering::Relaxed) || any
        })
    }

    /// Who waits for ranges, and for whom; in part, if that is very much.
    pub fn waits(&self) -> Vec<LockWait> {
        let table = self.table.lock();
        let mut edges = 0;
        let mut waits = Vec::new();
        for (inode, waiter) in table.waits.values().flatten() {
            let Some(locks) = table.inodes.get(inode) else { continue };
            let blockers = locks.blockers(waiter.holder, &waiter.ask);
            edges += 1 + blockers.len();
            if edges > EDGES_MAX {
                break;
            }
            waits.push(LockWait {
                waiter: waiter.holder,
                ticket: waiter.ticket,
                age_ms: u64::try_from(waiter.since.elapsed().as_millis()).unwrap_or(u64::MAX),
                blockers,
            });
        }
        waits
    }

    /// Ends a wait that would never end by itself.
    pub fn refuse(&self, waiter: LockHolder, ticket: u64) {
        let mut table = self.table.lock();
        let waits = table.waits.get(&waiter).into_iter().flatten();
        let Some(inode) = waits
            .filter(|(_, known)| known.ticket == ticket)
            .map(|(inode, _)| *inode)
            .next()
        else {
            return;
        };
        let this_one = |known: &Waiter| known.holder == waiter && known.ticket == ticket;
        table.dequeue(inode, this_one, &Err(FsError::Deadlock));
        table.advance(inode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::sessions::{Party, Sessions};
    use polvo_format::{Generation, Ino};
    use polvo_proto::LockMode;

    fn inode(n: u64) -> InodeRef {
        InodeRef {
            ino: Ino(n),
            generation: Generation(1),
        }
    }

    fn ask(owner: u64, kind: LockKind, mode: LockMode, first: u64, last: u64) -> LockAsk {
        LockAsk {
            owner,
            kind,
            mode,
            range: LockRange { first, last },
            pid: owner as u32,
        }
    }

    fn range(owner: u64, first: u64, last: u64) -> LockAsk {
        ask(owner, LockKind::Range, LockMode::Exclusive, first, last)
    }

    fn whole(owner: u64, mode: LockMode) -> LockAsk {
        ask(owner, LockKind::Whole, mode, 0, LockRange::END)
    }

    fn session(n: u64) -> Arc<Session> {
        let sessions = Sessions::default();
        let attached = sessions.attach(SessionId(n), || n, Party::Client, String::new(), None, 1);
        attached.expect("a fresh session")
    }

    fn granted(asked: Result<Asked, FsError>) -> bool {
        matches!(asked, Ok(Asked::Granted))
    }

    fn waits(asked: Result<Asked, FsError>) -> Arc<Waiter> {
        match asked {
            Ok(Asked::Waits(waiter)) => waiter,
            Ok(Asked::Granted) => panic!("granted"),
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_get_it_in_the_order_they_came() {
        let (locks, s, f) = (Locks::default(), session(1), inode(5));
        assert!(granted(locks.ask(&s, f, &range(1, 0, 9), None)));
        assert_eq!(locks.ask(&s, f, &range(2, 5, 5), None).err(), Some(FsError::WouldBlock));
        let second = waits(locks.ask(&s, f, &range(2, 5, 5), Some(1)));
        let third = waits(locks.ask(&s, f, &range(3, 0, 20), Some(2)));
        let again = waits(locks.ask(&s, f, &range(2, 5, 5), Some(1)));
        assert!(Arc::ptr_eq(&second, &again), "its place is kept");
        assert_eq!(second.wait(Duration::from_secs(1)).await, None);
        locks.unlock(s.id, f, 1, LockRange { first: 4, last: 6 });
        assert_eq!(second.wait(Duration::from_secs(1)).await, Some(Ok(())));
        locks.unlock(s.id, f, 1, LockRange::ALL);
        assert_eq!(
            third.wait(Duration::ZERO).await,
            None,
            "the second one has a part of it"
        );
        locks.unlock(s.id, f, 2, LockRange::ALL);
        assert_eq!(third.wait(Duration::from_secs(1)).await, Some(Ok(())));
        locks.unlock(s.id, f, 3, LockRange::ALL);
        assert_eq!(locks.counts(), (0, 0));
        assert!(
            locks.table.lock().inodes.is_empty(),
            "nothing is kept for files without locks"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn whole_files_and_ranges_have_nothing_to_do_with_each_other_unless_nobody_knows_which() {
        let (locks, s, f) = (Locks::default(), session(1), inode(5));
        assert!(granted(locks.ask(&s, f, &range(1, 0, LockRange::END), None)));
        assert!(granted(locks.ask(&s, f, &whole(2, LockMode::Exclusive), None)));
        let unknown = ask(3, LockKind::Unknown, LockMode::Exclusive, 0, LockRange::END);
        for owner in [1, 2] {
            assert_eq!(locks.ask(&s, f, &unknown, None).err(), Some(FsError::WouldBlock));
            locks.unlock(s.id, f, owner, LockRange::ALL);
        }
        assert!(granted(locks.ask(&s, f, &unknown, None)));
        assert!(!granted(locks.ask(&s, f, &range(1, 0, 0), None)));
        assert!(!granted(locks.ask(&s, f, &whole(2, LockMode::Shared), None)));
    }

    #[tokio::test(start_paused = true)]
    async fn two_who_share_a_file_and_want_it_alone_get_it_one_after_the_other() {
        let (locks, s, f) = (Locks::default(), session(1), inode(5));
        for owner in [1, 2] {
            assert!(granted(locks.ask(&s, f, &whole(owner, LockMode::Shared), None)));
        }
        let first = waits(locks.ask(&s, f, &whole(1, LockMode::Exclusive), Some(1)));
        let second = waits(locks.ask(&s, f, &whole(2, LockMode::Exclusive), Some(2)));
        assert_eq!(first.wait(Duration::ZERO).await, Some(Ok(())));
        locks.unlock(s.id, f, 1, LockRange::ALL);
        assert_eq!(second.wait(Duration::ZERO).await, Some(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_would_close_a_circle_is_refused() {
        let (locks, s, t) = (Locks::default(), session(1), session(2));
        let (f, g) = (inode(5), inode(6));
        assert!(granted(locks.ask(&s, f, &range(1, 0, 0), None)));
        assert!(granted(locks.ask(&t, f, &range(1, 1, 1), None)));
        assert!(granted(locks.ask(&t, g, &range(2, 0, 0), None)));
        let _waits = waits(locks.ask(&s, f, &range(1, 1, 1), Some(1)));
        let _waits_too = waits(locks.ask(&t, f, &range(2, 0, 0), Some(2)));
        assert_eq!(
            locks.ask(&t, g, &range(1, 0, 0), Some(3)).err(),
            Some(FsError::Deadlock),
            "over three owners and two files"
        );
        assert!(granted(locks.ask(&t, g, &range(1, 5, 6), Some(4))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_ends_leaves_no_lock_and_no_wait() {
        let (locks, s, t, f) = (Locks::default(), session(1), session(2), inode(5));
        assert!(granted(locks.ask(&s, f, &range(1, 0, 9), None)));
        assert!(granted(locks.ask(&s, f, &whole(9, LockMode::Shared), None)));
        let of_t = waits(locks.ask(&t, f, &range(1, 0, 0), Some(1)));
        let of_s = waits(locks.ask(&s, f, &whole(8, LockMode::Exclusive), Some(2)));
        locks.end_session(s.id);
        assert_eq!(of_t.wait(Duration::ZERO).await, Some(Ok(())));
        assert_eq!(of_s.wait(Duration::ZERO).await, Some(Err(FsError::SessionExpired)));
        assert_eq!(locks.counts(), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_nobody_asks_after_is_forgotten() {
        let (locks, s, f) = (Locks::default(), session(1), inode(5));
        assert!(granted(locks.ask(&s, f, &range(1, 0, 9), None)));
        let waiter = waits(locks.ask(&s, f, &range(2, 0, 0), Some(1)));
        tokio::time::advance(Timeouts::LOCK_FORGOTTEN - Duration::from_millis(1)).await;
        assert_eq!(waiter.wait(Duration::ZERO).await, None);
        tokio::time::advance(Timeouts::LOCK_FORGOTTEN - Duration::from_millis(1)).await;
        locks.sweep();
        assert_eq!(locks.counts(), (1, 1), "it was asked after");
        tokio::time::advance(Duration::from_millis(1)).await;
        locks.sweep();
        assert_eq!(locks.counts(), (1, 0));
        locks.unlock(s.id, f, 1, LockRange::ALL);
        assert_eq!(locks.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_are_bounded() {
        let (locks, s, t) = (Locks::default(), session(1), session(2));
        for n in 0..LOCKS_MAX as u64 {
            let of_file = inode(5 + n % 64);
            assert!(granted(locks.ask(&s, of_file, &range(1, n * 2, n * 2), None)));
        }
        assert_eq!(
            locks.ask(&s, inode(4), &range(1, 0, 0), None).err(),
            Some(FsError::NoLocks)
        );
        assert!(
            granted(locks.ask(&t, inode(4), &range(1, 0, 0), None)),
            "each session has its own"
        );
        for n in 0..LOCK_WAITS_MAX as u64 {
            let _waits = waits(locks.ask(&t, inode(5), &range(1, 0, 0), Some(n)));
        }
        let one_more = locks.ask(&t, inode(5), &range(1, 0, 0), Some(u64::MAX));
        assert_eq!(one_more.err(), Some(FsError::NoLocks));
    }
}
