//! One node: its pool, its regions, its sessions.

use crate::clock::Clock;
use crate::config::{NodeConfig, OneSided};
use crate::housekeeping::check_pages::CheckPages;
use crate::housekeeping::pool_past;
use crate::housekeeping::room::Sought;
use crate::housekeeping::scrub::ScrubCounters;
use crate::housekeeping::utilization::Utilization;
use crate::locks::lock_table::Locks;
use crate::map::{MapRegister, belongs};
use crate::names::rename_lock::{Holder, RenameLock};
use crate::opening::{self, Opening};
use crate::reactor::Reactors;
use crate::region_service::{PoolKeys, RegionService};
use crate::regions::Regions;
use crate::replication::Replication;
use crate::replication::copies::Copies;
use crate::replication::fill::FillCounters;
use crate::replication::gate::Gates;
use crate::replication::leases::Leases;
use crate::request::counters::RequestCounters;
use crate::request::sessions::{Party, Sessions};
use crate::tokens::Tokens;
use crate::transactions::coordinator::Undecided;
use crate::transactions::dispatch::Dispatch;
use crate::transactions::probe::Probe;
#[cfg(feature = "two-phase")]
use crate::transactions::two_phase::Prepared;
use parking_lot::Mutex;
use polvo_cluster::{Links, MapCell, SessionContext, Timeouts};
use polvo_fabric::{Address, MemoryRegions};
use polvo_format::{NodeId, RegionId, SessionId, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::{ClusterMap, Cred, FsError, TxnState, Usage, ask};
use polvo_region::planted::{Planted, planted};
use polvo_region::{PoolSpace, Region, RegionError};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::sync::watch;
use tokio::time::Instant;

/// One node: its pool, its regions, its sessions. `Send + Sync`: entered by whichever thread needs it.
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) space: Arc<PoolSpace>,
    pub(crate) pmem: Arc<Pmem>,
    /// The newest map.
    pub(crate) map: Arc<MapCell>,
    /// What the pool keeps of it.
    pub(crate) register: MapRegister,
    /// It has been in a map that the nodes have made: out of it again it was removed.
    pub(crate) has_belonged: AtomicBool,
    pub(crate) regions: Regions,
    /// What peers may reach of ours.
    pub(crate) memory: Arc<MemoryRegions>,
    pub(crate) keys: Mutex<PoolKeys>,
    /// Of the regions that have copies.
    pub(crate) gates: Gates,
    pub(crate) sessions: Sessions,
    pub(crate) reactors: Reactors,
    pub(crate) locks: Locks,
    pub(crate) tokens: Tokens,
    pub(crate) utilization: Utilization,
    pub(crate) undecided: Undecided,
    /// Decided transactions that nobody is at, of which it is not known that every participant has its part.
    pub(crate) undispatched: Mutex<Vec<Dispatch>>,
    #[cfg(feature = "two-phase")]
    pub(crate) prepared: Prepared,
    /// Of regions that are served elsewhere.
    pub(crate) copies: Copies,
    pub(crate) leases: Leases,
    pub(crate) checks: CheckPages,
    pub(crate) scrubbed: ScrubCounters,
    pub(crate) fills: FillCounters,
    pub(crate) counters: RequestCounters,
    pub(crate) probe: Probe,
    pub(crate) started: Instant,
    /// Number of this incarnation; grows from one to the next of the pool.
    incarnation: u64,
    /// Pages that were free when a region came to be served here are not given out yet: at the start,
    held_back: AtomicBool,
    /// or later, until then, when another node had handed it over.
    held_back_until: Mutex<Option<Instant>>,
    /// When all nodes were last asked to give back segments that hold nothing.
    pub(crate) room_sought: tokio::sync::Mutex<Option<Sought>>,
    /// Grace tick (quarantine of freed space).
    pub(crate) tick: AtomicU64,
    /// Regions whose files without a name wait for those that had them open ([`CLAIMS`]), and until when.
    pub(crate) claims: Mutex<BTreeMap<RegionId, Instant>>,
    /// Who hands a region over: one at a time.
    pub(crate) handing_over: tokio::sync::Mutex<()>,
    /// Who changes the cluster map.
    pub(crate) changing_map: tokio::sync::Mutex<()>,
    pub(crate) stopping: watch::Sender<bool>,
    /// Why this pool must not be served any longer.
    pub(crate) refused: Mutex<Option<FsError>>,
    /// Decided transactions that are being dispatched.
    pub(crate) dispatching: AtomicU64,
    /// Where `serve` listens.
    pub(crate) bound: Mutex<Vec<Address>>,
    pub(crate) rename_lock: RenameLock,
    pub(crate) context: Arc<SessionContext>,
    /// That of [`Node::watch_links`].
    watch_context: Arc<SessionContext>,
    jitter: AtomicU64,
}

/// Holds files without a name after a node was started anew, or has taken another one's place, where regions have copies: for the length
/// of a lease, within which those that had them open open them again.
pub(crate) const CLAIMS: SessionId = SessionId(2);
/// Owns the pages of writes under way that the node does itself.
pub(crate) const WRITES: SessionId = SessionId(0);
// clients draw odd numbers
const _: () = assert!(
    CLAIMS.0 != WRITES.0 && CLAIMS.0.is_multiple_of(2) && WRITES.0.is_multiple_of(2),
    "no session has these"
);

impl Node {
    /// Opens the pool, recovers its regions (creates those that the map assigns to us and that are not there yet): by the map that
    /// the pool keeps, or the configured one, where that was never changed. `progress(what, done, total)` tells how far it is.
    ///
    /// # Errors
    /// EINVAL for a pool of another node or cluster, or a map that is too large; EIO for damage, ENOSPC when a new region does not
    /// fit.
    pub fn open(
        space: Arc<PoolSpace>,
        mut config: NodeConfig,
        clock: Arc<dyn Clock>,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<Arc<Node>, FsError> {
        opening::check_owner(&space, &config)?;
        let (register, map) = opening::kept_map(&space, &config)?;
        let has_belonged = belongs(&map.get(), config.id);
        if map.get().is_replicated() {
            config.timeouts = config.timeouts.with_copies();
        }
        let memory = MemoryRegions::new();
        let keys = PoolKeys::register(&memory, space.pmem());
        let gates = Gates::of(&map.get(), &memory);
        let incarnation = space.next_sequence();
        let held_back = opening::begin_incarnation(space.pmem(), incarnation);
        let lock_term = pool_past::draw_lock_term();
        let opening = Opening {
            space: &space,
            config: &config,
            map: &map.get(),
            memory: &memory,
            gates: &gates,
            held_back,
            lock_term,
        };
        let regions = opening.regions(clock.now_ns(), progress)?;
        opening.set_register_aside();
        let node = Arc::new(Node {
            leases: Leases::new(&*clock),
            clock,
            pmem: space.pmem().clone(),
            context: opening.context(&map, incarnation),
            watch_context: opening.watch_context(&map, incarnation),
            undispatched: Mutex::new(opening.undispatched()),
            map,
            has_belonged: AtomicBool::new(has_belonged),
            register,
            claims: Mutex::new(opening::claims(&regions, config.timeouts.lease)),
            regions,
            memory,
            keys: Mutex::new(keys),
            gates,
            sessions: Sessions::default(),
            reactors: Reactors::new(config.reactors),
            locks: Locks::new(lock_term),
            tokens: Tokens::new(incarnation),
            utilization: Utilization::default(),
            undecided: Undecided::default(),
            #[cfg(feature = "two-phase")]
            prepared: Prepared::found(space.prepared()),
            copies: Copies::open(&space),
            checks: CheckPages::default(),
            scrubbed: ScrubCounters::default(),
            fills: FillCounters::default(),
            counters: RequestCounters::default(),
            probe: Probe::default(),
            started: Instant::now(),
            incarnation,
            held_back: AtomicBool::new(held_back),
            held_back_until: Mutex::default(),
            room_sought: tokio::sync::Mutex::default(),
            tick: AtomicU64::new(1),
            handing_over: tokio::sync::Mutex::default(),
            changing_map: tokio::sync::Mutex::default(),
            stopping: watch::channel(false).0,
            refused: Mutex::default(),
            dispatching: AtomicU64::new(0),
            bound: Mutex::default(),
            rename_lock: RenameLock::new(),
            jitter: AtomicU64::new(u64::from(config.id.0) << 32),
            space,
            config,
        });
        node.mistrust_what_was_told_before();
        node.await_claims_of_locks();
        node.utilization.learn(node.id(), node.usage());
        Ok(node)
    }

    /// Asks `serve` to return.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// `serve` was asked to return: nothing is begun any more that others would rely on.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// What is answered to who waits for something when this node stops.
    pub(crate) fn stopping_error(&self) -> FsError {
        FsError::Unreachable {
            node: self.id().0,
            why: "it is stopping".into(),
        }
    }

    /// Waits until `serve` was asked to return, by whomever: [`Node::stop`], a `Shutdown` request, or the node itself.
    pub async fn stopped(&self) {
        // the sender lives as long as the node
        let _ = self.stopping.subscribe().wait_for(|stop| *stop).await;
    }

    /// Why the node ends by itself, if it does; `serve` says so, too, when it returns.
    pub fn refusal(&self) -> Option<FsError> {
        self.refused.lock().clone()
    }

    /// The links that a thread of this process uses for calls from this node (`Role::Node`).
    pub fn new_links(self: &Arc<Self>) -> Rc<Links> {
        self.context.links()
    }

    /// Links for beacons and what follows from them, in whose way no request stands.
    pub(crate) fn watch_links(&self) -> Rc<Links> {
        match planted(Planted::BeaconsBehindRequests) {
            true => self.context.links(),
            false => self.watch_context.links(),
        }
    }

    /// What the threads of a colocated client share: a session of its own, at home here. Its own node is
    /// called through [`polvo_cluster::Colocated::caller`], beginning with `Attach`.
    pub fn client_context(self: &Arc<Self>, session: SessionId, name: String) -> Arc<SessionContext> {
        let config = &self.config;
        let (memory, map, me) = (self.memory.clone(), self.map.clone(), config.identity.clone());
        SessionContext::over(memory, map, me, session, name, Some(config.id), config.timeouts, None)
    }

    /// Whether this kind of peer may read and write file data one-sided.
    pub(crate) fn gives_one_sided(&self, party: Party) -> bool {
        self.config.one_sided == OneSided::All || matches!(party, Party::Node(_))
    }

    /// Regions served here?
    pub fn serves(&self, region: RegionId) -> bool {
        self.regions.get(region).is_some()
    }

    /// Which.
    pub fn id(&self) -> NodeId {
        self.config.id
    }

    /// The map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.get()
    }

    /// The cell that holds the newest map.
    pub fn map_cell(&self) -> &Arc<MapCell> {
        &self.map
    }

    /// The limits.
    pub fn timeouts(&self) -> &Timeouts {
        &self.config.timeouts
    }

    /// True when durability needs `Sync`: against power loss, or against the loss of a node whose mirrors are behind.
    pub fn needs_sync(&self) -> bool {
        self.pmem.needs_sync() || self.map().is_async()
    }

    pub(crate) fn service(&self, region: RegionId) -> Option<&Arc<RegionService>> {
        self.regions.get(region)
    }

    /// Does something in a region; once more when it finds no space and other regions here have some to spare.
    pub(crate) fn enter_with_room<T>(
        &self,
        service: &RegionService,
        mut f: impl FnMut(&mut Region) -> Result<T, RegionError>,
    ) -> Result<T, RegionError> {
        self.with_room(|| service.enter(&mut f))
    }

    /// As [`Node::enter_with_room`], entering being the caller's affair.
    pub(crate) fn with_room<T>(&self, mut f: impl FnMut() -> Result<T, RegionError>) -> Result<T, RegionError> {
        match f() {
            Err(RegionError::Fs(FsError::NoSpace)) => {
                self.give_out_held_back();
                self.collect_segments();
                match f() {
                    Err(RegionError::Fs(FsError::NoSpace)) if self.has_held_back() => Err(FsError::HeldBack.into()),
                    result => result,
                }
            }
            result => result,
        }
    }

    /// Are there pages that are not given out yet?
    fn has_held_back(&self) -> bool {
        self.held_back.load(Relaxed) || self.held_back_until.lock().is_some()
    }

    /// May others still be storing to what an earlier incarnation has given them?
    pub(crate) fn holds_back(&self) -> bool {
        self.give_out_held_back();
        self.held_back.load(Relaxed)
    }

    /// A region that is about to be served here was handed over by another node: clients may still be storing to what that has given them.
    pub(crate) fn hold_back_free_data(&self, region: &mut Region) {
        let mut until = self.held_back_until.lock();
        region.hold_back_free_data();
        *until = Some(Instant::now() + self.config.timeouts.lease);
    }

    /// Gives out pages that were free when their regions came here, once nobody can still be storing to them: nobody has the pool mapped
    /// any more who was given it by an earlier incarnation, or so much time has passed that all leases of who has served them before have
    /// ended.
    pub(crate) fn give_out_held_back(&self) {
        let mut until = self.held_back_until.lock();
        let is_over = |until: Instant| Instant::now() >= until;
        if !self.held_back.load(Relaxed) && until.is_none_or(|until| !is_over(until)) {
            return;
        }
        let late = self.started.elapsed() >= self.config.timeouts.lease;
        let is_free = late || !self.pmem.is_mapped_since_before(self.incarnation).unwrap_or(true);
        if is_free && until.is_none_or(is_over) {
            *until = None;
            for service in self.regions.all() {
                service.enter(|region| region.give_out_held_back());
            }
            self.held_back.store(false, Relaxed);
            tracing::info!(after = ?self.started.elapsed(), "space that was held back is given out again");
        }
    }

    /// Has all regions give back segments that hold nothing.
    #[cold]
    pub(crate) fn collect_segments(&self) {
        let released: u32 = self.regions.all().map(|service| service.release_segments()).sum();
        tracing::debug!(released, "empty segments collected for want of space");
    }

    /// A number to seed jitter with: repeats from run to run, differs from node to node and from use to use.
    pub(crate) fn next_jitter(&self) -> u64 {
        let n = self.jitter.fetch_add(1, Relaxed).wrapping_add(1);
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Space and inodes of this node.
    pub(crate) fn usage(&self) -> Usage {
        let pool = self.space.usage();
        let free = u64::from(pool.free_segments) * pool.segment_size;
        let mut sum = Usage {
            total_bytes: u64::from(pool.segments) * pool.segment_size,
            free_bytes: free,
            free_segment_bytes: free,
            free_inodes: free / polvo_format::INODE_SIZE as u64,
            ..Usage::default()
        };
        for service in self.regions.all() {
            let usage = service.enter(|region| region.usage());
            sum.free_bytes += usage.free_bytes;
            sum.inodes += usage.inodes;
            sum.free_inodes += usage.free_inodes;
            sum.data_bytes += usage.data_bytes;
        }
        debug_assert!(sum.free_bytes <= sum.total_bytes, "no more is free than there is");
        sum
    }

    /// Grants the rename lock (region 0 is served here), or takes it back.
    pub(crate) fn grant_rename(&self, holder: Holder, release: bool) -> Result<u64, FsError> {
        if release {
            self.rename_lock.release(holder.txn);
            return Ok(0);
        }
        let hold_for = self.config.timeouts.rename_grant();
        self.rename_lock
            .take(holder, hold_for, &self.map(), || self.space.next_sequence())
    }

    /// Asks the coordinator of a transaction that holds inodes of a region how it ended: lets go if it was given up. (What it has
    /// decided the coordinator writes here; what is prepared here for it is put in place.)
    pub(crate) async fn resolve(self: &Arc<Self>, links: &Rc<Links>, service: &Arc<RegionService>, txn: TxnId) {
        let state = match self.map().primary(txn.region()) {
            _ if let Some(own) = self.service(txn.region()) => {
                let state = self.txn_state(txn);
                // who serves it in our place may know better
                let Ok(()) = own.mirrored(links, || Instant::now() + Timeouts::ASIDE).await else {
                    return;
                };
                state
            }
            None => TxnState::Aborted, // a damaged lock word: there is nobody who could end it otherwise
            Some(coordinator) => {
                let asked = links.call_node_within(coordinator, Cred::Kernel, ask::TxnState { txn }, Timeouts::ASIDE);
                let Ok(state) = asked.await else { return };
                state
            }
        };
        if state == TxnState::Aborted {
            tracing::info!(
                ?txn,
                region = service.id.0,
                "letting go of what a transaction left behind"
            );
            service.enter(|region| region.abort(txn));
        }
        #[cfg(feature = "two-phase")]
        if state != TxnState::Undecided
            && let Err(error) = self.conclude(txn, service.id, state == TxnState::Committed)
        {
            let region = service.id.0;
            tracing::warn!(?txn, region, %error, "a prepared transaction could not be concluded");
        }
    }

    /// Has nobody taken our place in any region?
    pub(crate) fn may_promise(&self) -> bool {
        let mut replicated = self.regions.all().filter_map(|service| service.replication());
        replicated.all(Replication::may_promise)
    }

    /// Nothing that a node sent here before takes effect any more.
    pub(crate) async fn fence_off(&self, deposed: NodeId) {
        if planted(Planted::DeposedNotFenced) {
            return;
        }
        // also what it writes without us, to memory that is shared
        self.keys.lock().fence_off(deposed, &self.memory);
        let closing = self.reactors.connections.close_all_of(deposed);
        self.reactors.close(closing).await;
    }

    /// Files without a name that nobody has opened again in time go.
    pub(crate) fn end_claims(&self) {
        let now = Instant::now();
        let mut ended = Vec::new();
        self.claims.lock().retain(|region, until| {
            let waits = *until > now;
            ended.extend((!waits).then_some(*region));
            waits
        });
        for service in ended.into_iter().filter_map(|region| self.service(region)) {
            service.enter(|region| region.end_session(CLAIMS));
        }
    }

    /// Ends a session: everything it holds here comes back.
    pub(crate) fn end_session(&self, id: SessionId) {
        if self.sessions.end(id).is_some() {
            self.checks.forget(id);
            self.locks.end_session(id);
            self.end_tokens_of(id);
            for service in self.regions.all() {
                service.enter(|region| region.end_session(id));
            }
        }
    }
}

#[cfg(feature = "testing")]
impl Node {
    /// The next transaction coordinated here stops when it gets to that phase, until `let_coordinator_go_on`.
    pub fn stop_coordinator_at(&self, phase: crate::Phase) {
        self.probe.stop_at(phase);
    }

    /// True while a coordinator is stopped.
    pub fn coordinator_has_stopped(&self) -> bool {
        self.probe.has_stopped()
    }

    /// Ends the stop.
    pub fn let_coordinator_go_on(&self) {
        self.probe.go_on();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_node_is_entered_by_any_thread() {
        fn any_thread<T: Send + Sync>() {}
        any_thread::<super::Node>();
    }
}
