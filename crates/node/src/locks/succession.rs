//! Locks of before: a node keeps locks in memory, so when it has been started anew, or has taken the place of another one, it does not
//! know who has some. Their holders claim them back (`client/locks`).
//!
//! - Until a succession's *grace* is over, nobody is given a lock in the region that he does not claim back. Where the region was handed
//!   over, and it was said who has locks there, that is so for inodes of which somebody has some, until he has claimed or let go of all.
//! - From then on until it *ends*, an inode of which somebody was given a lock is not claimed any more: locks of the one before may have
//!   been taken and let go of by others. After the end nothing is claimed.
//! - Only locks given under the term right before this one are claimed back. Under one before that, others may have had them
//!   in between.

use crate::clock::outlasting;
use crate::housekeeping::pool_past::lock_term_before;
use crate::locks::lock_table::{Locks, Table};
use crate::node::Node;
use crate::replication::primary::Replication;
use crate::request::sessions::Session;
use foldhash::{HashMap, HashSet};
use polvo_cluster::Timeouts;
use polvo_format::{RegionId, SessionId};
use polvo_proto::{FsError, InodeRef, LOCKS_MAX, LockAsk, LockHolder, LockKind, LockTerm, Locked, LockedBy};
use polvo_region::planted::{Planted, planted};
use tokio::time::Instant;

/// Most inodes that are remembered as locked anew; with more of them nothing is claimed back.
const ANEW_MAX: usize = 1 << 16;

/// A region's locks were given by somebody else before.
pub(crate) struct Succession {
    /// Under which term; none: not known.
    before: Option<LockTerm>,
    grace: Instant,
    ends: Instant,
    /// Inodes of which locks were given since.
    anew: HashSet<InodeRef>,
    /// Who had how many locks and has not claimed all of them yet, of each inode of which there is somebody; none: not known.
    unclaimed: Option<HashMap<InodeRef, HashMap<LockHolder, u32>>>,
}

impl Succession {
    /// Of who gave locks under the term `before`. Nobody else is given any until `grace`, and some may be claimed back until it `ends`.
    pub fn new(before: Option<LockTerm>, grace: Instant, ends: Instant) -> Succession {
        Succession {
            before,
            grace,
            ends,
            anew: HashSet::default(),
            unclaimed: None,
        }
    }

    /// These had locks, and nobody else.
    pub fn of(mut self, locked: &[LockedBy]) -> Succession {
        let mut unclaimed: HashMap<InodeRef, HashMap<LockHolder, u32>> = HashMap::default();
        for by in locked.iter().filter(|by| by.locks > 0) {
            unclaimed.entry(by.inode).or_default().insert(by.holder, by.locks);
        }
        self.unclaimed = Some(unclaimed);
        self
    }

    /// Whoever had locks of the inode has claimed them back, or let go of them.
    fn is_settled(&self, inode: InodeRef) -> bool {
        let unclaimed = self.unclaimed.as_ref();
        unclaimed.is_some_and(|unclaimed| !unclaimed.contains_key(&inode))
    }

    /// Those have claimed or let go of all that they had. True: of some inode nobody is left.
    fn settle(&mut self, who: impl Fn(InodeRef, LockHolder, u32) -> bool) -> bool {
        let Some(unclaimed) = &mut self.unclaimed else {
            return false;
        };
        let before = unclaimed.len();
        unclaimed.retain(|inode, holders| {
            holders.retain(|holder, locks| !who(*inode, *holder, *locks));
            !holders.is_empty()
        });
        unclaimed.len() < before
    }

    fn may_be_claimed(&self, inode: InodeRef, term: LockTerm) -> bool {
        let now = Instant::now();
        self.before == Some(term) && now < self.ends && !self.anew.contains(&inode)
    }
}

impl Table {
    /// Somebody is given a lock that he did not claim back.
    pub(super) fn note_given(&mut self, inode: InodeRef) {
        if let Some(succession) = self.successions.get_mut(&inode.ino.region()) {
            succession.anew.insert(inode);
            if succession.anew.len() > ANEW_MAX {
                succession.before = None;
                succession.anew = HashSet::default();
            }
        }
    }

    /// Successions that have ended are forgotten.
    pub(super) fn sweep_successions(&mut self) {
        let now = Instant::now();
        self.successions
            .retain(|_, succession| now < succession.ends.max(succession.grace));
    }
}

impl Locks {
    /// Of a node that gives locks under this term.
    pub fn new(term: LockTerm) -> Locks {
        let locks = Locks::default();
        locks.table.lock().term = term;
        locks
    }

    /// The term under which locks are given.
    pub fn term(&self) -> LockTerm {
        self.table.lock().term
    }

    /// Locks of a region were given by somebody else before.
    pub fn succeed(&self, region: RegionId, succession: Succession) {
        self.table.lock().successions.insert(region, succession);
    }

    /// When locks of an inode may be given that are not claimed back, if [`Locks::settled`] does not come before; none: now.
    pub fn grace(&self, inode: InodeRef) -> Option<Instant> {
        let table = self.table.lock();
        let succession = table.successions.get(&inode.ino.region())?;
        let is_over = succession.grace <= Instant::now() || succession.is_settled(inode);
        (!is_over && !planted(Planted::LockGraceForgotten)).then_some(succession.grace)
    }

    /// A holder has let go of all that he had of an inode, or a session has ended (`inode`: none).
    pub(super) fn settle(&self, table: &mut Table, session: SessionId, of: Option<(InodeRef, u64)>) {
        let is_meant = |inode: InodeRef, holder: LockHolder, _: u32| {
            holder.session == session && of.is_none_or(|(which, owner)| (which, owner) == (inode, holder.owner))
        };
        let regions = of.map_or(RegionId(0)..=RegionId(u16::MAX), |(inode, _)| {
            inode.ino.region()..=inode.ino.region()
        });
        let successions = table.successions.range_mut(regions);
        if successions.fold(false, |any, (_, succession)| succession.settle(is_meant) || any) {
            self.settled.notify_waiters();
        }
    }

    /// May locks of a region be claimed back yet?
    pub fn is_claimed(&self, region: RegionId) -> bool {
        let now = Instant::now();
        let table = self.table.lock();
        let succession = table.successions.get(&region);
        succession.is_some_and(|succession| now < succession.ends.max(succession.grace))
    }

    /// Gives back what the owner had under an earlier term, or says that it is still there. Answered with the term of now; none: somebody
    /// else may have had it.
    ///
    /// # Errors
    /// `NoLocks`; `SessionExpired`.
    pub fn claim(
        &self,
        session: &Session,
        (inode, owner): (InodeRef, u64),
        term: LockTerm,
        ranges: &[Locked],
        whole: Option<Locked>,
    ) -> Result<Option<LockTerm>, FsError> {
        let me = LockHolder {
            session: session.id,
            owner,
        };
        let ask = |kind, locked: &Locked| LockAsk {
            owner,
            kind,
            mode: locked.mode,
            range: locked.range,
            pid: locked.pid,
        };
        let ranges = ranges.iter().map(|locked| ask(LockKind::Range, locked));
        let asks: Vec<LockAsk> = ranges
            .chain(whole.iter().map(|locked| ask(LockKind::Whole, locked)))
            .collect();
        let mut table = self.table.lock();
        // whoever ends the session clears the table afterwards
        if session.is_ended() {
            return Err(FsError::SessionExpired);
        }
        let now = Some(table.term);
        let locks = table.inodes.get(&inode);
        if now == Some(term) {
            let has_all = asks.iter().all(|ask| locks.is_some_and(|locks| locks.has(me, ask)));
            return Ok(now.filter(|_| has_all));
        }
        let region = inode.ino.region();
        let succession = table.successions.get(&region);
        let may_be_claimed = succession.is_some_and(|succession| succession.may_be_claimed(inode, term));
        let are_free = asks.iter().all(|ask| locks.is_none_or(|locks| locks.is_free(me, ask)));
        if !(may_be_claimed || planted(Planted::LateLockClaimed)) || !are_free {
            return Ok(None);
        }
        if table.locks_of(session.id) + asks.len() > LOCKS_MAX {
            return Err(FsError::NoLocks);
        }
        for ask in &asks {
            table.change(inode, me, |locks| locks.take(me, ask));
        }
        table.advance(inode);
        // in pages: not before the last one
        let has = table.inodes.get(&inode).map_or(0, |locks| locks.locks_of(me));
        let has_all =
            |of: InodeRef, holder: LockHolder, locks: u32| of == inode && holder == me && has >= locks as usize;
        let succession = table.successions.get_mut(&region);
        if succession.is_some_and(|succession| succession.settle(has_all)) {
            self.settled.notify_waiters();
        }
        Ok(now)
    }
}

impl Node {
    /// The node gave locks before it was started anew, if it ever did: whoever has some is to claim them back before others get any.
    pub(crate) fn await_claims_of_locks(&self) {
        let Some(before) = lock_term_before(&self.space.past()) else {
            return;
        };
        let grace = self.started + self.clock.lasts(outlasting(Timeouts::LOCK_GRACE));
        let ends = self.started + self.config.timeouts.lease;
        for service in self.regions.all() {
            // who has taken another one's place, and was started anew since, does not know what that one has given
            let is_successor = service.replication().is_some_and(Replication::is_successor);
            let before = Some(before).filter(|_| !is_successor);
            let succession = Succession::new(before, grace, ends);
            self.locks.succeed(service.id, succession);
        }
    }
}
