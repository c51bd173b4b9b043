//! A primary's side: how far the mirrors of one region are, and who waits for that.

use crate::clock::outlasted_by;
use crate::region_service::RegionService;
use crate::replication::feed::Feed;
use crate::replication::follower::Follower;
use crate::replication::gate::{ShownGate, TOLD};
use crate::replication::leases::Leases;
use polvo_cluster::Links;
use polvo_format::{Epoch, Lsn, NodeId};
use polvo_proto::{Durability, FsError, RegionInfo, Replica, ReplicaRole};
use polvo_region::planted::{Planted, planted};
use std::rc::Rc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::futures::Notified;
use tokio::sync::{Mutex, Notify};
use tokio::task::yield_now;
use tokio::time::Instant;

/// Of a region of which nobody has had a copy yet.
const FIRST_EPOCH: Epoch = Epoch(1);
/// Between two attempts to reach a mirror that did not take a record, or had no room for a moment.
pub(super) const AGAIN: Duration = Duration::from_millis(10);
/// Answers of an asynchronous region wait when the mirrors lack something that was done so long ago,
const BEHIND_MAX: Duration = Duration::from_secs(1);
/// or more than so many bytes of records.
const BEHIND_BYTES: u64 = 8 << 20;
/// What an asynchronous region has recorded is sent so much later, with what has come meanwhile.
const GATHER: Duration = Duration::from_millis(5);

/// What has to be before something is said of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// What its [`Durability`] asks for.
    MayAnswer,
    /// Every mirror in the set has what was recorded by then, whatever the mode: whoever takes over cannot lack it.
    Mirrored,
}

/// How far the mirrors of an asynchronous region are behind it.
#[derive(Default)]
struct Behind {
    /// When the first record came that mirrors may lack, in microseconds since the service began, or earlier.
    since_us: AtomicU64,
    /// Bytes of all records of the region,
    bytes: AtomicU64,
    /// and of those that every mirror in the set has.
    mirrored_bytes: AtomicU64,
    /// It has been said that there is something to send.
    is_told: AtomicBool,
    told: Notify,
}

/// The copies of one region, as its primary sees them.
pub(crate) struct Replication {
    /// Number of the last record of the region.
    captured: AtomicU64,
    /// Every mirror in the set has the records up to this one.
    mirrored: AtomicU64,
    /// There are mirrors in the set.
    waits: AtomicBool,
    /// How many wait for them at the moment.
    waiting: AtomicU32,
    /// Several did when something was sent last.
    is_shared: AtomicBool,
    /// Which.
    mirrors: parking_lot::Mutex<Vec<NodeId>>,
    /// All that have, or are to get, a copy.
    nodes: parking_lot::Mutex<Vec<NodeId>>,
    /// A majority has confirmed that the region is served here: before that nothing is answered.
    confirmed: AtomicBool,
    /// See [`Self::set_new`].
    is_new: AtomicBool,
    /// See [`Self::set_successor`].
    successor: AtomicBool,
    /// Answers may be given until then, in microseconds since `begun`: the shortest lease of a mirror.
    lease_until: AtomicU64,
    begun: Instant,
    /// What clients see of this.
    gate: Arc<ShownGate>,
    /// Leases that the gate has shown.
    beats: AtomicU64,
    /// Of a region that is answered before its mirrors have what it has done.
    behind: Option<Behind>,
    feed: Mutex<Feed>,
    /// Former primaries, as long as something is to be dispatched that they have decided.
    undispatched: parking_lot::Mutex<Weak<[NodeId]>>,
    /// Something is to be seen to. Each copy is looked after by somebody of its own.
    wanted: Notify,
}

impl Replication {
    /// Of a region whose map entry is this, which has just been opened: whatever copies there are have not followed this incarnation.
    /// `None` for one that is to have none.
    pub fn of(info: &RegionInfo, gate: Option<Arc<ShownGate>>) -> Option<Replication> {
        let others = info
            .replicas
            .iter()
            .filter(|replica| replica.role != ReplicaRole::Primary);
        let followers: Vec<Follower> = others.map(Follower::of).collect();
        let mirrors = followers
            .iter()
            .filter(|follower| follower.in_sync)
            .map(|follower| follower.node);
        let mirrors: Vec<NodeId> = mirrors.collect();
        let gate = gate.filter(|_| !followers.is_empty())?;
        let replication = Replication {
            nodes: parking_lot::Mutex::new(followers.iter().map(|follower| follower.node).collect()),
            // mirrors in the set lack something as long as they have not followed this incarnation
            captured: AtomicU64::new(1),
            mirrored: AtomicU64::new(0),
            waits: AtomicBool::new(!mirrors.is_empty()),
            waiting: AtomicU32::new(0),
            is_shared: AtomicBool::new(false),
            mirrors: parking_lot::Mutex::new(mirrors),
            confirmed: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
            successor: AtomicBool::new(false),
            lease_until: AtomicU64::new(0),
            begun: Instant::now(),
            gate,
            beats: AtomicU64::new(0),
            behind: (info.set.durability == Durability::Async).then(Behind::default),
            feed: Mutex::new(Feed::new(followers)),
            undispatched: parking_lot::Mutex::new(Weak::<[NodeId; 0]>::new()),
            wanted: Notify::new(),
        };
        replication.gate.ended(Lsn(1));
        replication.show_mirrored();
        Some(replication)
    }

    /// May be answered before mirrors have what was done?
    pub fn is_async(&self) -> bool {
        self.behind.is_some()
    }

    /// The region has been entered, and this is its last record since; `bytes`: of all of them.
    pub fn note(&self, last: Option<Lsn>, bytes: u64) {
        let Some(last) = last else { return };
        let before = self.captured.load(Acquire);
        debug_assert!(last.0 >= before, "records are numbered in order");
        if let Some(behind) = self.behind.as_ref().filter(|_| last.0 > before) {
            if self.mirrored.load(Acquire) >= before {
                behind.since_us.fetch_max(self.now_us(), Release);
            }
            behind.bytes.store(bytes, Release);
            if !behind.is_told.swap(true, AcqRel) {
                behind.told.notify_one();
            }
        }
        self.captured.store(last.0, Release);
        self.gate.ended(last);
    }

    /// Every mirror in the set has the records up to this one.
    pub fn mirrored(&self) -> Lsn {
        Lsn(self.mirrored.load(Acquire))
    }

    /// What clients see of how far mirrors have followed.
    pub fn gate(&self) -> &Arc<ShownGate> {
        &self.gate
    }

    /// Shows how far that is. What mirrors of an asynchronous region may lack is shown all the same.
    fn show_mirrored(&self) {
        let mirrored = self.mirrored();
        let is_waited_for = self.waits.load(Acquire) && !(self.is_async() && mirrored > Lsn(0));
        let is_shown = is_waited_for && !planted(Planted::GateLeftOpen);
        self.gate.mirrored(is_shown.then_some(mirrored));
    }

    /// Nobody takes our place for so long, by whichever clock, or longer. At most [`TOLD`].
    pub fn lease_left(&self) -> Duration {
        if !self.is_confirmed() {
            return Duration::ZERO;
        }
        if !self.waits.load(Acquire) {
            return TOLD;
        }
        if planted(Planted::LeaseToldForEver) {
            return Duration::MAX;
        }
        let until = Duration::from_micros(self.lease_until.load(Acquire));
        outlasted_by(until.saturating_sub(self.begun.elapsed())).min(TOLD)
    }

    /// Where the records are.
    pub fn feed(&self) -> &Mutex<Feed> {
        &self.feed
    }

    /// May be answered what was found or done in the region by now? Every mirror has it, or lacks no more than it may, and nobody has
    /// taken our place.
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.has_come(Until::MayAnswer)
    }

    /// Has every mirror in the set what was found or done in the region by now, and has nobody taken our place?
    pub fn is_mirrored(&self) -> bool {
        self.has_come(Until::Mirrored)
    }

    #[inline]
    fn has_come(&self, until: Until) -> bool {
        if !self.waits.load(Acquire) {
            return self.is_confirmed();
        }
        let captured = Lsn(self.captured.load(Acquire));
        self.is_enough(captured, until) && self.has_lease() && self.is_confirmed()
    }

    /// Have the mirrors in the set the records up to this one, or enough of them?
    #[inline]
    fn is_enough(&self, lsn: Lsn, until: Until) -> bool {
        let mirrored = self.mirrored.load(Acquire);
        match (mirrored >= lsn.0, until, &self.behind) {
            (true, ..) => true,
            // those that have not followed this incarnation yet lack nobody knows what
            (false, Until::MayAnswer, Some(behind)) => mirrored > 0 && behind.is_little(self.now_us()),
            (false, ..) => planted(Planted::MirrorNotAwaited),
        }
    }

    /// Has nobody taken our place, whatever mirrors may lack?
    pub fn may_promise(&self) -> bool {
        (!self.waits.load(Acquire) || self.has_lease()) && self.is_confirmed()
    }

    /// Every mirror in the set has all that was done.
    pub fn may_rest(&self) -> bool {
        !self.waits.load(Acquire) || self.mirrored.load(Acquire) >= self.captured.load(Acquire)
    }

    fn has_lease(&self) -> bool {
        self.now_us() < self.lease_until.load(Acquire) || planted(Planted::LeaseForgotten)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The map that gives us the region was chosen, and nobody else can have taken it since without our knowledge.
    ///
    /// # Errors
    /// It was served before, and this pool had nothing of it: what is here now is empty, and not the region.
    pub async fn confirm(&self, info: &RegionInfo, leases: &Leases) -> Result<(), FsError> {
        if self.is_new.load(Acquire) && info.epoch > FIRST_EPOCH && !planted(Planted::LostPoolServed) {
            return Err(FsError::Io(format!(
                "the pool holds nothing of region {}, which it has served: a mirror takes its place, if there is one",
                info.id.0
            )));
        }
        // who counts as a mirror by this map may take our place: nothing is answered without it from here on
        let mut feed = self.feed.lock().await;
        for follower in &mut feed.followers {
            follower.in_sync |= info.role(follower.node) == Some(ReplicaRole::Mirror);
        }
        self.follow(&mut feed, info, leases);
        self.set_changed(&feed, leases);
        self.confirmed.store(true, Release);
        self.look_after_all();
        Ok(())
    }

    /// As [`Self::confirm`], of the map by which it was made.
    pub fn confirm_new(&self) {
        self.confirmed.store(true, Release);
    }

    /// Has been confirmed.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Acquire) || planted(Planted::UnconfirmedServed)
    }

    /// Is it that long since this service began?
    pub fn has_served_for(&self, duration: Duration) -> bool {
        self.begun.elapsed() >= duration
    }

    /// This node had taken the place of another one when it died: that one may have a lease of ours.
    pub fn set_successor(&self) {
        self.successor.store(true, Release);
    }

    /// See [`Self::set_successor`].
    pub fn is_successor(&self) -> bool {
        self.successor.load(Acquire)
    }

    /// The pool had nothing of the region.
    pub fn set_new(&self) {
        self.is_new.store(true, Release);
    }

    /// See [`Self::set_new`].
    pub fn is_new(&self) -> bool {
        self.is_new.load(Acquire)
    }

    /// All nodes that have, or are to get, a copy.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.nodes.lock().clone()
    }

    /// Copies are at the nodes of a map that was chosen, by which the region is ours, from here on. Who has come has nothing that
    /// counts. For who is no replica any more nobody waits: it takes nobody's place, by this map and all that can follow it. Gives whether
    /// any has come or gone.
    pub fn follow(&self, feed: &mut Feed, info: &RegionInfo, leases: &Leases) -> bool {
        let is_copy = |node: NodeId| matches!(info.role(node), Some(ReplicaRole::Mirror | ReplicaRole::Backup));
        let before = feed.followers.len();
        feed.followers.retain(|follower| is_copy(follower.node));
        let mut has_changed = feed.followers.len() < before;
        for replica in info.replicas.iter().filter(|replica| is_copy(replica.node)) {
            if feed.follower(replica.node).is_none() {
                feed.followers.push(Follower::of(replica));
                has_changed = true;
            }
        }
        if has_changed {
            *self.nodes.lock() = feed.followers.iter().map(|follower| follower.node).collect();
            self.set_changed(feed, leases);
        }
        has_changed
    }

    /// Does it keep up to date those nodes that are to have copies by this?
    pub fn follows(&self, info: &RegionInfo) -> bool {
        let nodes = self.nodes();
        let is_copy = |replica: &&Replica| matches!(replica.role, ReplicaRole::Mirror | ReplicaRole::Backup);
        let copies = info.replicas.iter().filter(is_copy);
        copies.clone().count() == nodes.len() && copies.clone().all(|replica| nodes.contains(&replica.node))
    }

    /// Those that took this region's place at a node before may still write what it had decided.
    pub fn set_undispatched(&self, deposed: &Arc<[NodeId]>) {
        *self.undispatched.lock() = Arc::downgrade(deposed);
    }

    /// May this node still write what it has decided as the primary that it was?
    pub fn is_unfenced(&self, node: NodeId) -> bool {
        let deposed = self.undispatched.lock().upgrade();
        deposed.is_some_and(|deposed| deposed.contains(&node))
    }

    /// There may be later leases.
    pub fn renew(&self, leases: &Leases) {
        let until = leases.until(&self.mirrors.lock());
        let until = until.map_or(0, |until| until.saturating_duration_since(self.begun).as_micros());
        self.lease_until
            .store(u64::try_from(until).unwrap_or(u64::MAX), Release);
        if self.has_lease() || !self.waits.load(Acquire) {
            let n = 1 + self.beats.fetch_add(1, Relaxed);
            self.gate.beat(n, || self.lease_left());
        }
    }

    /// Waits until every mirror has what the region has recorded by now, or enough of it: only then may be said what was found or done
    /// there.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when a mirror has not taken it by then. It has happened, and may be found later.
    pub async fn wait(
        &self,
        service: &RegionService,
        links: &Rc<Links>,
        until: Until,
        deadline: Instant,
    ) -> Result<(), FsError> {
        let lsn = Lsn(self.captured.load(Acquire));
        let _waits = Waits::begin(&self.waiting);
        if self.is_shared.load(Relaxed) {
            // what has come together travels together
            yield_now().await;
        }
        loop {
            let mut feed = match self.feed.try_lock() {
                Ok(feed) => feed,
                Err(_) => match tokio::time::timeout_at(deadline, self.feed.lock()).await {
                    Ok(feed) => feed,
                    Err(_) => return Err(not_taken(service, None)),
                },
            };
            if service.has_ended() {
                // who serves it now may have it, or may not
                return Err(not_taken(service, None));
            }
            let waits = self.waits.load(Acquire);
            let is_mirrored = !waits || self.is_enough(lsn, until);
            if is_mirrored && (!waits || self.has_lease()) && self.is_confirmed() {
                return Ok(());
            }
            // one that is away is left to the keeper, which sees to it that the region goes on without it: others do not queue for it
            let error = match is_mirrored || feed.lacks_mirror() {
                false => match self.send(&mut feed, service, links, true).await {
                    Ok(()) => continue,
                    Err(error) => Some(error),
                },
                true => None,
            };
            drop(feed);
            self.look_after_all();
            if Instant::now() + AGAIN >= deadline {
                return Err(not_taken(service, error));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Sends what the mirrors in the set lack, if they lack anything: the node is about to end.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn catch_up(&self, service: &RegionService, links: &Rc<Links>) -> Result<(), FsError> {
        let mut feed = self.feed.lock().await;
        match self.may_rest() {
            true => Ok(()),
            false => self.send(&mut feed, service, links, true).await,
        }
    }

    /// Sends what an asynchronous region has recorded, a moment later, until the region is served elsewhere.
    pub async fn follow_up(&self, service: &RegionService, links: &Rc<Links>, period: Duration) {
        let Some(behind) = &self.behind else { return };
        while !service.is_over() {
            // it may have been told of what could not be sent then
            let _ = tokio::time::timeout(period, behind.told.notified()).await;
            tokio::time::sleep(GATHER).await;
            behind.is_told.store(false, Release);
            let mut feed = self.feed.lock().await;
            let is_behind = self.mirrored.load(Acquire) < self.captured.load(Acquire);
            if is_behind && !feed.lacks_mirror() && self.send(&mut feed, service, links, true).await.is_err() {
                self.look_after_all();
            }
        }
    }

    /// Sends all records there are to those who are in the set, and (not `only_set`) to the others that follow.
    ///
    /// # Errors
    /// That of one in the set that did not take them.
    pub async fn send(
        &self,
        feed: &mut Feed,
        service: &RegionService,
        links: &Rc<Links>,
        only_set: bool,
    ) -> Result<(), FsError> {
        feed.take(service);
        self.send_taken(feed, service, links, only_set).await
    }

    /// As [`Self::send`], of those records that were taken already.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_taken(
        &self,
        feed: &mut Feed,
        service: &RegionService,
        links: &Rc<Links>,
        only_set: bool,
    ) -> Result<(), FsError> {
        let result = feed.send(service, links, only_set).await;
        self.is_shared.store(self.waiting.load(Relaxed) > 1, Relaxed);
        if result.is_ok() {
            self.mirrored.fetch_max(feed.taken.0, Release);
            self.show_mirrored();
            if let Some(behind) = &self.behind {
                let taken_at = feed
                    .taken_at
                    .map_or(Duration::ZERO, |at| at.saturating_duration_since(self.begun));
                behind.caught_up(
                    u64::try_from(taken_at.as_micros()).unwrap_or(u64::MAX),
                    feed.taken_bytes,
                );
            }
        }
        feed.trim();
        if feed.do_lanes_fill_up() {
            self.look_after_all();
        }
        result
    }

    /// Who has served the region before has handed it over: all its mirrors, and it is one itself, have what it had recorded, up to that
    /// record. What is recorded here follows behind it.
    pub fn go_on_behind(&self, last: Lsn, leases: &Leases) {
        let mut feed = self.feed.try_lock().expect("nobody knows of it yet");
        feed.go_on_behind(last);
        self.captured.store(last.0, Release);
        self.mirrored.store(last.0, Release);
        self.gate.ended(last);
        self.set_changed(&feed, leases);
    }

    /// The region is served here again, after it was given up for a moment.
    pub fn go_on(&self, leases: &Leases) {
        self.gate.ended(Lsn(self.captured.load(Acquire)));
        self.show_mirrored();
        self.renew(leases);
    }

    /// Something is to be seen to at any of the copies.
    pub fn look_after_all(&self) {
        self.wanted.notify_waiters();
    }

    /// Waits for the next [`Self::look_after_all`] after this call, not after the first poll.
    pub fn wanted(&self) -> Notified<'_> {
        self.wanted.notified()
    }

    /// Who is in the set has changed. A mirror more: nothing is answered before it has heard of us.
    pub fn set_changed(&self, feed: &Feed, leases: &Leases) {
        let mirrors = feed
            .followers
            .iter()
            .filter(|follower| follower.in_sync)
            .map(|follower| follower.node);
        let mirrors: Vec<NodeId> = mirrors.collect();
        let waits = !mirrors.is_empty();
        *self.mirrors.lock() = mirrors;
        self.renew(leases);
        self.waits.store(waits, Release);
        self.show_mirrored();
    }
}

/// Somebody waits for mirrors.
struct Waits<'a>(&'a AtomicU32);

impl Waits<'_> {
    fn begin(waiting: &AtomicU32) -> Waits<'_> {
        waiting.fetch_add(1, Relaxed);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "who waits is counted");
    }
}

#[cold]
fn not_taken(service: &RegionService, error: Option<FsError>) -> FsError {
    let (node, why) = match error {
        Some(FsError::Unreachable { node, why }) => (node, why),
        Some(error) => (u16::MAX, error.to_string()),
        None => (
            u16::MAX,
            "it has not answered for so long that it may have taken our place".into(),
        ),
    };
    let region = service.id.0;
    FsError::Unreachable {
        node,
        why: format!("a mirror of region {region} did not take what was done in time: {why}"),
    }
}

impl Behind {
    /// Is what the mirrors lack little enough for answers to go on?
    fn is_little(&self, now_us: u64) -> bool {
        let bytes = self
            .bytes
            .load(Acquire)
            .saturating_sub(self.mirrored_bytes.load(Acquire));
        let since = Duration::from_micros(now_us.saturating_sub(self.since_us.load(Acquire)));
        bytes <= BEHIND_BYTES && since < BEHIND_MAX || planted(Planted::BehindUnbounded)
    }

    /// Every mirror has what was recorded before then: so many bytes.
    fn caught_up(&self, until_us: u64, bytes: u64) {
        self.since_us.fetch_max(until_us, Release);
        self.mirrored_bytes.store(bytes, Release);
    }
}
