//! What all threads of one session share.

use crate::absences::Absences;
use crate::{CounterSet, LinkTotals, MapCell, PoolsSeen, Timeouts, host_identity};
use parking_lot::{Mutex, RwLock};
use polvo_fabric::{Identity, MemoryRegions};
use polvo_format::{NodeId, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

type ResetHook = Box<dyn Fn(NodeId, u64) + Send + Sync>;

/// What all threads of one session share: who they are, the map, limits, counters. `Send + Sync`.
pub struct SessionContext {
    pub(crate) map: Arc<MapCell>,
    pub(crate) me: Identity,
    pub(crate) session: SessionId,
    pub(crate) name: String,
    pub(crate) home: Option<NodeId>,
    pub(crate) timeouts: Timeouts,
    pub(crate) host: String,
    pub(crate) provider: Option<String>,
    /// Ours that peers may reach: what RPC needs for its replies, and what the process has registered besides.
    pub(crate) memory: Arc<MemoryRegions>,
    pub(crate) counters: CounterSet,
    /// Nodes that know of the session, as far as we have heard (those whose lease is to be renewed).
    attached: Mutex<BTreeMap<NodeId, Attached>>,
    /// How often operations were given up at each node.
    given_up: Mutex<BTreeMap<NodeId, Arc<AtomicU64>>>,
    pub(crate) pools: PoolsSeen,
    pub(crate) absences: Absences,
    /// How long operations wait for a node that is away.
    patience: RwLock<Duration>,
    on_reset: RwLock<Option<ResetHook>>,
    syncs: AtomicBool,
}

/// What is known of the session at a node.
#[derive(Clone, Copy, Default)]
struct Attached {
    /// its number there, once a node has said it
    number: Option<u64>,
    /// how often it was another one than before
    resets: u64,
}

impl SessionContext {
    /// A session by that id (drawn at random by the caller, never 0). `name` and `home` are those of
    /// `Request::Attach`. `provider` forces `tcp` or `shm`; `None` takes `shm` on the same host and else what the
    /// map lists first.
    pub fn new(
        map: Arc<MapCell>,
        me: Identity,
        session: SessionId,
        name: String,
        home: Option<NodeId>,
        timeouts: Timeouts,
        provider: Option<String>,
    ) -> Arc<SessionContext> {
        Self::over(MemoryRegions::new(), map, me, session, name, home, timeouts, provider)
    }

    /// As `new`, in a process that has memory regions already (a node).
    #[allow(clippy::too_many_arguments)] // a constructor of the one thing that knows all of them
    pub fn over(
        memory: Arc<MemoryRegions>,
        map: Arc<MapCell>,
        me: Identity,
        session: SessionId,
        name: String,
        home: Option<NodeId>,
        timeouts: Timeouts,
        provider: Option<String>,
    ) -> Arc<SessionContext> {
        let timeouts = match map.get().is_replicated() {
            true => timeouts.with_copies(),
            false => timeouts,
        };
        Arc::new(SessionContext {
            memory,
            map,
            me,
            session,
            name,
            home,
            timeouts,
            host: host_identity(),
            provider,
            counters: CounterSet::default(),
            attached: Mutex::default(),
            given_up: Mutex::default(),
            pools: PoolsSeen::default(),
            absences: Absences::default(),
            patience: RwLock::new(timeouts.away),
            on_reset: RwLock::new(None),
            syncs: AtomicBool::new(true),
        })
    }

    /// Called with each node that turns out not to know the session (any more), and the session's number there: all that was
    /// held there by another number is gone. Also called when a node is first met over a connection.
    pub fn on_reset(&self, hook: impl Fn(NodeId, u64) + Send + Sync + 'static) {
        *self.on_reset.write() = Some(Box::new(hook));
    }

    /// The session's id.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Its name, as nodes show it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What peers may reach of this process.
    pub fn memory(&self) -> &Arc<MemoryRegions> {
        &self.memory
    }

    /// The map.
    pub fn map(&self) -> &Arc<MapCell> {
        &self.map
    }

    /// What was seen of the nodes' pools.
    pub fn pools(&self) -> &PoolsSeen {
        &self.pools
    }

    /// The limits.
    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// How long operations wait for a node that is away, counted from when that was noticed; then they fail, at once, until
    /// the node is back. `Timeouts::away` unless set otherwise.
    pub fn patience(&self) -> Duration {
        *self.patience.read()
    }

    /// Sets [`SessionContext::patience`]; zero: operations fail at once while a node is known to be away.
    pub fn set_patience(&self, patience: Duration) {
        *self.patience.write() = patience;
    }

    /// Whether nodes are asked to make durable what needs it.
    pub fn syncs(&self) -> bool {
        self.syncs.load(Ordering::Acquire)
    }

    /// Nodes that connections are made to from now on hear that they are asked for `Sync`, or that they are not and have to make
    /// each change durable by themselves.
    pub fn set_syncs(&self, syncs: bool) {
        self.syncs.store(syncs, Ordering::Release);
    }

    /// What all threads' links sent so far.
    pub fn totals(&self) -> LinkTotals {
        self.counters.totals()
    }

    /// Nodes whose lease `Links::renew` renews.
    pub fn attached_nodes(&self) -> Vec<NodeId> {
        self.attached.lock().keys().copied().collect()
    }

    /// The session has something at that node (a file made and opened there by way of another node, say): its lease
    /// is renewed from now on even if no thread has a link to it yet.
    pub fn note_attached(&self, node: NodeId) {
        self.attached.lock().entry(node).or_default();
    }

    pub(crate) fn note_detached(&self, node: NodeId) {
        self.attached.lock().remove(&node);
    }

    /// How often operations were given up at a node.
    pub(crate) fn given_up(&self, node: NodeId) -> Arc<AtomicU64> {
        self.given_up.lock().entry(node).or_default().clone()
    }

    /// An operation at that node is about to be reported as failed although it may still be on its way, in a send queue or in
    /// the node's receive queue. From now on no thread uses the connections that it has there: the first new one has the node
    /// close them before anything else is done (`Request::Attach`), so that nothing late comes after what is done next.
    pub(crate) fn give_up(&self, node: NodeId) {
        self.given_up(node).fetch_add(1, Ordering::AcqRel);
    }

    /// How often that node turned out not to know the session.
    pub(crate) fn resets(&self, node: NodeId) -> u64 {
        self.attached.lock().get(&node).map_or(0, |attached| attached.resets)
    }

    /// The node has said by what number it knows the session. If that is not the one known, what was there is gone: that an
    /// answer has said so before and was lost makes no difference.
    pub(crate) fn note_session(&self, node: NodeId, number: u64) {
        {
            let mut all = self.attached.lock();
            let attached = all.entry(node).or_default();
            if attached.number == Some(number) {
                return;
            }
            attached.number = Some(number);
            attached.resets += 1;
            debug_assert!(
                attached.resets < 1 << 48,
                "sessions at a node are counted (`OpenInode::holder`)"
            );
        }
        if let Some(hook) = &*self.on_reset.read() {
            hook(node, number);
        }
    }
}
