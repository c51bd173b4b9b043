//! Tokens: what a client knows without asking.
//!
//! A token is a promise of an inode's primary that nothing of the inode changes before this client was asked and has answered
//! (`region/tokens`, `node/tokens`). As long as it lasts, what was found out under it is true, and is used without a round trip:
//! attributes, and a directory's names where the name cache is at the tail that goes with them. It lasts until it is asked for,
//! or the lease that all tokens of a node share runs out, counted from when this client sent what was answered last.
//!
//! - Nobody asks a client for its own tokens: what it knows by one holds only until a change of its own begins
//!   ([`own_changes`]). Then the next look validates as ever, and what that finds is known by the token again.
//! - Who passes on what he knows by a token, to the kernel, does so while he keeps a [`Kept`], which whoever answers waits for:
//!   so what is passed on is there before it is called back ([`Keeper::forget`]).
//! - A token is taken for what is used a second time within a lease, beside the operations ([`watch`]); whoever does not use
//!   them any more gives all of them back, and nothing wakes up.

mod own_changes;
mod watch;

pub(crate) use own_changes::OwnChange;

use crate::remote_inode::Current;
use crate::tokens::own_changes::{OwnChanges, Seal};
use foldhash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use polvo_format::{Attr, Ino, NodeId, Tail};
use polvo_proto::InodeRef;
use polvo_region::planted::{Planted, planted};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

const SHARDS: usize = 16;
/// Inodes of which it is remembered when they were used last.
const RECENT: usize = 4096;
/// Inodes that wait for a token to be taken: most.
const WANTED_MAX: usize = 4096;
/// What is used again within so long is worth a token.
const SOON: Duration = Duration::from_secs(2);

/// Who keeps what this client knows by tokens: a mount's kernel.
pub trait Keeper: Send + Sync {
    /// Nothing of this inode may be believed any more. On return it is not; or it will not be so soon, when this is asked again.
    ///
    /// # Errors
    /// How long it may take.
    fn forget(&self, inode: InodeRef) -> Result<(), Duration>;

    /// The logs of these inodes may have gone back, and may get another content up to a tail that was seen before.
    fn may_go_back(&self, _of: &dyn Fn(Ino) -> bool) {}

    /// The inode's log has moved from one tail to another by its access time alone: its bytes are what they were.
    fn was_only_read(&self, _inode: InodeRef, _from: Tail, _to: Tail) {}
}

/// A token.
struct Held {
    number: u64,
    at: Arc<AtNode>,
    /// What the inode is, and that nothing of our own has begun to change it since; `None`: not known.
    known: Option<(Current, Seal)>,
    used: AtomicU64,
}

/// Before a look: the token that there was, and what we had changed ourselves.
#[derive(Clone, Copy)]
pub(crate) struct Look(Option<(u64, Seal)>);

impl Look {
    /// There was none.
    pub(crate) const NONE: Look = Look(None);
}

/// All tokens of a node share a lease.
struct AtNode {
    node: NodeId,
    /// 0 before the first one.
    term: AtomicU64,
    /// How long it is, and when it ends.
    lease: Mutex<(Duration, Instant)>,
    /// Some were used since it was last asked.
    used: AtomicBool,
    requests: Mutex<Requests>,
}

/// What is being asked of a node.
#[derive(Default)]
struct Requests {
    /// Requests for tokens that are under way.
    taking: u32,
    /// All tokens are about to go back: no others are asked for.
    is_ending: bool,
    /// The node has given none, and is not asked again before.
    not_before: Option<Instant>,
    /// A task hears what the node asks for.
    is_watched: bool,
    /// Tokens of these were asked for, up to that number, some of which may still come.
    early: HashMap<InodeRef, u64>,
}

impl AtNode {
    fn new(node: NodeId) -> AtNode {
        AtNode {
            node,
            term: AtomicU64::new(0),
            lease: Mutex::new((Duration::ZERO, Instant::now())),
            used: AtomicBool::new(false),
            requests: Mutex::default(),
        }
    }

    fn left(&self) -> Duration {
        self.lease.lock().1.saturating_duration_since(Instant::now())
    }
}

type Shard = HashMap<InodeRef, Held>;

/// What is to be done beside the operations.
#[derive(Default)]
struct Wanted {
    inodes: HashSet<InodeRef>,
    in_order: Vec<InodeRef>,
    /// Nodes that gave some, and are to be heard.
    to_watch: Vec<Arc<AtNode>>,
}

/// The tokens of a client.
pub(crate) struct Tokens {
    in_use: AtomicBool,
    own: OwnChanges,
    shards: [RwLock<Shard>; SHARDS],
    nodes: Mutex<BTreeMap<NodeId, Arc<AtNode>>>,
    recent: Box<[AtomicU64]>,
    wanted: Mutex<Wanted>,
    pub(crate) work: Notify,
    origin: Instant,
    keeper: RwLock<Option<Arc<dyn Keeper>>>,
    /// That were given back because they were asked for.
    recalls: AtomicU64,
}

/// The token that there was of an inode, by which it is found out whether that is there still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Since(u64);

/// What is passed on by tokens is not called back while this lasts.
pub struct Kept<'a> {
    _token: RwLockReadGuard<'a, Shard>,
    lasts: Duration,
    tail: Option<Tail>,
}

impl Kept<'_> {
    /// How long it may be believed at most, from now on.
    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    /// The tail of the inode's log as of which it is known; `None` where that was found out without one.
    pub fn tail(&self) -> Option<Tail> {
        self.tail
    }
}

impl Tokens {
    pub fn new() -> Tokens {
        Tokens {
            in_use: AtomicBool::new(false),
            own: OwnChanges::new(),
            shards: Default::default(),
            nodes: Mutex::default(),
            recent: (0..RECENT).map(|_| AtomicU64::new(0)).collect(),
            wanted: Mutex::default(),
            work: Notify::new(),
            origin: Instant::now(),
            keeper: RwLock::new(None),
            recalls: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    /// To be called before anything else is done.
    pub fn use_them(&self, keeper: Option<Arc<dyn Keeper>>) {
        *self.keeper.write() = keeper;
        self.in_use.store(true, Relaxed);
    }

    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        &self.shards[(ino.0 ^ ino.0 >> 48 ^ ino.0 >> 4) as usize % SHARDS]
    }

    /// A change of an inode by this client begins.
    #[inline]
    pub fn changing(&self, ino: Ino) -> OwnChange<'_> {
        match self.is_in_use() {
            true => self.own.begin(ino),
            false => OwnChange::unnoted(),
        }
    }

    /// A change of inodes of which it is not known which they are, until it has ended ([`OwnChange::was_of`]).
    #[inline]
    pub fn changing_any(&self) -> OwnChange<'_> {
        match self.is_in_use() {
            true => self.own.begin_any(),
            false => OwnChange::unnoted(),
        }
    }

    /// Is there a token of it, whatever is known by it?
    #[inline]
    pub fn has(&self, inode: InodeRef) -> bool {
        self.is_in_use() && self.is_held(inode)
    }

    #[inline(never)]
    fn is_held(&self, inode: InodeRef) -> bool {
        self.shard(inode.ino).read_recursive().contains_key(&inode)
    }

    /// An inode that has no token is used, and where that was so a moment ago, too, one is wanted.
    #[inline]
    pub fn used(&self, inode: InodeRef) {
        if self.is_in_use() && self.was_used_recently(inode) {
            self.want(inode);
        }
    }

    /// To be asked for before an inode is looked at.
    #[inline]
    pub fn look(&self, inode: InodeRef) -> Look {
        match self.is_in_use() {
            true => self.look_by_token(inode),
            false => Look(None),
        }
    }

    #[inline(never)]
    fn look_by_token(&self, inode: InodeRef) -> Look {
        let shard = self.shard(inode.ino).read_recursive();
        let number = shard.get(&inode).map(|held| held.number);
        Look(number.zip(self.own.seal(inode.ino)))
    }

    /// The inode as it is now, where that is known by a token.
    #[inline]
    pub fn known(&self, inode: InodeRef) -> Option<Current> {
        match self.is_in_use() {
            true => self.known_by_token(inode),
            false => None,
        }
    }

    #[inline(never)]
    fn known_by_token(&self, inode: InodeRef) -> Option<Current> {
        let shard = self.shard(inode.ino).read_recursive();
        let held = shard.get(&inode)?;
        let (current, _) = self.current_of(inode.ino, held)?;
        Some(current)
    }

    fn current_of(&self, ino: Ino, held: &Held) -> Option<(Current, Duration)> {
        let (current, seal) = held.known?;
        let left = held.at.left();
        let is_over = left.is_zero() && !planted(Planted::BelievedAfterLease);
        if is_over || !(self.own.holds(ino, seal) || planted(Planted::OwnChangesOverlooked)) {
            return None;
        }
        held.used.store(self.now_ms(), Relaxed);
        held.at.used.store(true, Relaxed);
        Some((current, left))
    }

    /// What a look has found. Where the token that was there before it is there still, it is known from here on; where there is
    /// none, and the inode was looked at a moment ago as well, one is wanted.
    #[inline]
    pub fn seen(&self, current: &Current, look: Look) {
        if self.is_in_use() {
            self.seen_by_token(current, look);
        }
    }

    #[inline(never)]
    fn seen_by_token(&self, current: &Current, look: Look) {
        let inode = current.inode();
        {
            let mut shard = self.shard(inode.ino).write();
            if let Some(held) = shard.get_mut(&inode) {
                held.at.used.store(true, Relaxed);
                if let Some((number, seal)) = look.0
                    && number == held.number
                {
                    let mut current = *current;
                    // what a look does not find, and was known as of the same tail
                    let before = held.known.filter(|(before, _)| before.log.tail == current.log.tail);
                    current.is_bare |= before.is_some_and(|(before, _)| before.is_bare);
                    held.known = Some((current, seal));
                }
                return;
            }
        }
        self.used(inode);
    }

    /// Notes that an inode is used; whether it was used a moment ago, too.
    #[inline(never)]
    fn was_used_recently(&self, inode: InodeRef) -> bool {
        let mixed = (inode.ino.0 ^ u64::from(inode.generation.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &self.recent[(mixed >> 52) as usize % RECENT];
        let mark = mixed & 0xffff_ffff;
        let now = self.now_ms();
        let before = place.swap(mark << 32 | now & 0xffff_ffff, Relaxed);
        before >> 32 == mark && now.wrapping_sub(before) & 0xffff_ffff <= SOON.as_millis() as u64
    }

    fn want(&self, inode: InodeRef) {
        let mut wanted = self.wanted.lock();
        if wanted.in_order.len() < WANTED_MAX && wanted.inodes.insert(inode) {
            wanted.in_order.push(inode);
            self.work.notify_one();
        }
    }

    fn now_ms(&self) -> u64 {
        self.origin.elapsed().as_millis() as u64
    }

    /// See [`crate::Client::keep_attr`].
    pub fn keep(&self, attr: &Attr) -> Option<Kept<'_>> {
        let inode = inode_of(attr);
        let shard = self.shard(inode.ino).read_recursive();
        let (current, lasts) = self.current_of(inode.ino, shard.get(&inode)?)?;
        // a quarter is for clocks that do not go alike
        let lasts = lasts - lasts / 4;
        let tail = Some(current.log.tail);
        (current.attr == *attr).then_some(Kept {
            _token: shard,
            lasts,
            tail,
        })
    }

    /// The same for what is so of a directory.
    pub fn keep_names(&self, dir: InodeRef, is_so: impl FnOnce(&Current) -> bool) -> Option<Kept<'_>> {
        let shard = self.shard(dir.ino).read_recursive();
        let (current, lasts) = self.current_of(dir.ino, shard.get(&dir)?)?;
        let lasts = lasts - lasts / 4;
        let tail = Some(current.log.tail);
        is_so(&current).then_some(Kept {
            _token: shard,
            lasts,
            tail,
        })
    }

    /// See [`crate::Client::token_of`].
    pub fn of(&self, inode: InodeRef) -> Option<Since> {
        let shard = self.shard(inode.ino).read_recursive();
        shard.get(&inode).map(|held| Since(held.number))
    }

    /// See [`crate::Client::keep_since`].
    pub fn keep_since(&self, inode: InodeRef, since: Since) -> Option<Kept<'_>> {
        let shard = self.shard(inode.ino).read_recursive();
        let held = shard.get(&inode).filter(|held| held.number == since.0)?;
        let left = held.at.left();
        let lasts = left - left / 4;
        (!left.is_zero()).then_some(Kept {
            _token: shard,
            lasts,
            tail: None,
        })
    }

    /// See [`Keeper::was_only_read`].
    pub fn was_only_read(&self, inode: InodeRef, from: Tail, to: Tail) {
        if let Some(keeper) = &*self.keeper.read() {
            keeper.was_only_read(inode, from, to);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// How many were given back so far because somebody's change waited for them.
    pub fn recalls(&self) -> u64 {
        self.recalls.load(Relaxed)
    }
}

pub(crate) fn inode_of(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}
