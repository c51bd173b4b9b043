//! What all threads of a client share: the session, the caches, the holds, the space in hand.

use crate::access_times::AccessTimes;
use crate::cache::listings::Listings;
use crate::cache::name_cache::{Known, NameCache};
use crate::colocated::ColocatedNode;
use crate::io::extent_pool::ExtentPool;
use crate::io::sync::Unsynced;
use crate::io::transfers::Transfers;
use crate::local_client::LocalClient;
use crate::locks::Locks;
use crate::open_table::OpenTable;
use crate::tokens::{Keeper, Kept, OwnChange, Since, Tokens, inode_of};
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};
use polvo_cluster::{Colocated, MapCell, SessionContext, Timeouts, fetch_map};
use polvo_fabric::{Address, Identity};
use polvo_format::{Attr, Ino, NodeId, RegionId, SessionId};
use polvo_proto::{ClusterMap, Cred, FsError, InodeRef, RegionInfo, ReplicaRole};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How to reach a cluster.
#[derive(Clone)]
pub struct ClientConfig {
    /// Bootstrap addresses; any node of the cluster will do.
    pub addresses: Vec<Address>,
    /// Who we are (role client) and the secret that proves it.
    pub identity: Identity,
    /// Shown in `polvo status`.
    pub name: String,
    /// Forces `tcp` or `shm`; `None` takes shm on the same host, else tcp.
    pub provider: Option<String>,
    /// Limits of every wait.
    pub timeouts: Timeouts,
    /// On whose behalf requests are made (a mount passes [`Cred::Kernel`]).
    pub cred: Cred,
    /// Who moves file data.
    pub transfers: Transfers,
    /// Each read is compared with the checksums of the data.
    pub verify: bool,
}

/// What a client has asked of the nodes, also in `polvo status --json` of a mount. Work of an internal client in its
/// own node is no round trip and is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// RPCs made.
    pub rpcs: u64,
    /// Those of them that renew leases (heartbeats, watches over tokens): they come with time, not with what is done.
    pub renewals: u64,
    /// Batches of one-sided operations.
    pub one_sided_batches: u64,
    /// Bytes that one-sided operations moved.
    pub one_sided_bytes: u64,
    /// File bytes that travelled inside an RPC (eager writes).
    pub eager_bytes: u64,
    /// Tokens that it has just now.
    pub tokens: u64,
    /// Tokens that it has given back because somebody else's change waited for them.
    pub recalls: u64,
}

/// State shared by all threads of a client. `Send + Sync`.
pub struct Client {
    pub(crate) context: Arc<SessionContext>,
    /// The node this client lives in, if it does.
    pub(crate) colocated: Option<ColocatedNode>,
    pub(crate) cred: Cred,
    pub(crate) transfers: Transfers,
    verify: AtomicBool,
    pub(crate) names: NameCache,
    pub(crate) listings: Listings,
    pub(crate) open_table: OpenTable,
    pub(crate) locks: Locks,
    pub(crate) access_times: AccessTimes,
    pub(crate) tokens: Tokens,
    pub(crate) extent_pool: ExtentPool,
    pub(crate) eager_bytes: AtomicU64,
    /// What may be lost of names and attributes.
    pub(crate) unsynced: Unsynced,
    pub(crate) losses_told: AtomicU64,
    incarnations: Incarnations,
    pub(crate) stop: Stop,
    threads: Mutex<BTreeMap<&'static str, JoinHandle<()>>>,
}

/// Of a session's number at a node: how often it was lost there, below the node's.
const LOST_BITS: u32 = 32;

/// Are these numbers of sessions at one node? Only those grow.
pub(crate) fn is_at_same_node(a: u64, b: u64) -> bool {
    a >> LOST_BITS == b >> LOST_BITS
}

/// How often the session was lost at each node, and regions were handed over by nodes that know it still. What was obtained in an earlier
/// incarnation (holds, space) is gone.
#[derive(Default)]
struct Incarnations {
    each: RwLock<Losses>,
    all: AtomicU64,
}

#[derive(Default)]
struct Losses {
    of_node: HashMap<NodeId, u64>,
    of_region: HashMap<RegionId, u64>,
}

/// Tells the maintenance to end.
#[derive(Default)]
pub(crate) struct Stop {
    asked: AtomicBool,
    pub(crate) changed: Notify,
    all: Notify,
}

impl Stop {
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.changed.notify_one();
        self.all.notify_waiters();
    }

    /// Waits for it, beside the maintenance.
    pub(crate) async fn is_there(&self) {
        let mut told = pin!(self.all.notified());
        told.as_mut().enable();
        if !self.is_asked() {
            told.await;
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl Client {
    /// Connects to a cluster and opens a session. Call inside a tokio current-thread runtime with a `LocalSet`, or use
    /// [`Client::connect_blocking`].
    ///
    /// # Errors
    /// [`FsError::Io`] (with what happened at the last address tried) when no address answers.
    pub async fn connect(config: ClientConfig) -> Result<Arc<Client>, FsError> {
        let session = draw_session()?;
        let map = fetch_map(
            &config.addresses,
            &config.identity,
            session,
            &config.name,
            &config.timeouts,
        )
        .await?;
        let context = SessionContext::new(
            MapCell::new(map),
            config.identity,
            session,
            config.name,
            None,
            config.timeouts,
            config.provider,
        );
        let client = Client::make(context, None, config.cred, config.transfers);
        client.verify_reads(config.verify);
        Ok(client)
    }

    /// A client over a session that the caller has made (the simulator's, say).
    pub fn over(context: Arc<SessionContext>, cred: Cred, transfers: Transfers) -> Arc<Client> {
        Client::make(context, None, cred, transfers)
    }

    /// A colocated client: the node's own regions are called and read directly, others as by any client.
    ///
    /// # Panics
    /// When the system has no random numbers to draw a session from.
    pub fn internal(node: Arc<dyn Colocated>, name: String, cred: Cred) -> Arc<Client> {
        let session = draw_session().expect("the system has random numbers");
        Client::internal_as(node, session, name, cred)
    }

    /// As [`Client::internal`], with a session id that the caller has drawn (the simulator, whose runs repeat).
    pub fn internal_as(node: Arc<dyn Colocated>, session: SessionId, name: String, cred: Cred) -> Arc<Client> {
        let context = node.client_context(session, name);
        Client::make(context, Some(ColocatedNode::new(node)), cred, Transfers::default())
    }

    /// From now on, each read compares what it reads with the checksums of the data (or no longer does), whole pages at a time, and
    /// fails with [`FsError::Io`] where they differ. Where data has no checksums it is read as ever.
    pub fn verify_reads(&self, verify: bool) {
        self.verify.store(verify, Ordering::Relaxed);
    }

    pub(crate) fn verifies(&self) -> bool {
        self.verify.load(Ordering::Relaxed)
    }

    fn make(
        context: Arc<SessionContext>,
        colocated: Option<ColocatedNode>,
        cred: Cred,
        transfers: Transfers,
    ) -> Arc<Client> {
        let client = Arc::new(Client {
            context: context.clone(),
            colocated,
            cred,
            transfers,
            verify: AtomicBool::new(false),
            names: NameCache::new(),
            listings: Listings::default(),
            open_table: OpenTable::new(),
            locks: Locks::default(),
            access_times: AccessTimes::default(),
            tokens: Tokens::new(),
            extent_pool: ExtentPool::default(),
            eager_bytes: AtomicU64::new(0),
            unsynced: Unsynced::default(),
            losses_told: AtomicU64::new(0),
            incarnations: Incarnations::default(),
            stop: Stop::default(),
            threads: Mutex::default(),
        });
        let weak = Arc::downgrade(&client);
        context.on_reset(move |node, number| {
            if let Some(client) = weak.upgrade() {
                client.is_known_as(node, number);
            }
        });
        let weak = Arc::downgrade(&client);
        context.map().on_moves(move |before, now| {
            if let Some(client) = weak.upgrade() {
                client.moved(before, now);
            }
        });
        client
    }

    /// This thread's client, for use inside a tokio current-thread runtime with a `LocalSet`. One per thread; heartbeats
    /// are sent by whichever runs [`LocalClient::maintain`].
    pub fn local(self: &Arc<Self>) -> Rc<LocalClient> {
        LocalClient::new(self)
    }

    /// Starts the maintenance thread (heartbeats, recalls, returns). Not used in the simulator, which spawns
    /// [`LocalClient::maintain`]. Does nothing when there is one already.
    pub fn start_maintenance(self: &Arc<Self>) {
        let started = self.start_thread("polvo-lease", |local| local.maintain());
        if let Err(error) = started {
            tracing::error!(%error, "no thread for the lease: the session will expire when idle");
        }
    }

    /// Starts the thread that takes tokens and answers for them, and from then on they are used ([`Client::use_tokens`]). Not used
    /// in the simulator, which spawns [`LocalClient::watch_tokens`].
    pub fn start_tokens(self: &Arc<Self>, keeper: Option<Arc<dyn Keeper>>) {
        match self.start_thread("polvo-tokens", |local| local.watch_tokens()) {
            Ok(()) => self.use_tokens(keeper),
            Err(error) => tracing::error!(%error, "no thread for tokens: everything is looked up each time"),
        }
    }

    fn start_thread<F: Future<Output = ()> + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: impl FnOnce(Rc<LocalClient>) -> F + Send + 'static,
    ) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        if threads.contains_key(name) || self.stop.is_asked() {
            return Ok(());
        }
        let client = self.clone();
        let thread = std::thread::Builder::new().name(name.into());
        threads.insert(name, thread.spawn(move || client.run(work))?);
        Ok(())
    }

    /// From now on tokens are taken for what is used again and again, and what is known by them is used without asking. To be
    /// called before anything is changed, and [`LocalClient::watch_tokens`] has to run. `keeper`: who is passed on what is known by
    /// them.
    pub fn use_tokens(&self, keeper: Option<Arc<dyn Keeper>>) {
        self.tokens.use_them(keeper);
    }

    /// Attributes as this client has just been told of them: as long as what this returns is there, nobody else changes them
    /// unless [`Keeper::forget`] is called after it has gone. `None`: that is not known.
    pub fn keep_attr(&self, attr: &Attr) -> Option<Kept<'_>> {
        // a read that its access time does not tell of yet is to be seen here
        match self.access_times.awaits(inode_of(attr)) {
            false => self.tokens.keep(attr),
            true => None,
        }
    }

    /// The same for a name: that it stands for that inode, or for none.
    pub fn keep_name(&self, dir: InodeRef, name: &[u8], is: Option<InodeRef>) -> Option<Kept<'_>> {
        self.tokens.keep_names(dir, |now| {
            let known = self.names.find(dir, name).filter(|(log, _)| log.tail == now.log.tail);
            match (known, is) {
                (Some((_, Known::Child(child))), Some(inode)) => child.target() == inode,
                (Some((_, Known::Absent)), None) => true,
                _ => false,
            }
        })
    }

    /// The token that this client has of an inode.
    pub fn token_of(&self, inode: InodeRef) -> Option<Since> {
        self.tokens.of(inode)
    }

    /// Where the token has been there ever since, nobody else has changed the inode: for who passes on what he has changed himself,
    /// as for [`Client::keep_attr`].
    pub fn keep_since(&self, inode: InodeRef, since: Since) -> Option<Kept<'_>> {
        self.tokens.keep_since(inode, since)
    }

    /// Ends the session; everything it holds is returned. Waits (bounded) unless called inside a runtime: there, whoever
    /// awaits [`LocalClient::maintain`] or [`LocalClient::end`] waits.
    pub fn shutdown(self: &Arc<Self>) {
        self.stop.ask();
        if tokio::runtime::Handle::try_current().is_ok() {
            return;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            self.run(|local| async move { local.end().await });
        }
        for (name, thread) in threads {
            if thread.join().is_err() {
                tracing::error!("thread {name} had panicked");
            }
        }
    }

    /// How long operations wait for a node that is away, counted from when this client has noticed that it is; then they
    /// fail, at once, until it is back. [`Timeouts::away`] unless set here; zero: at once.
    pub fn set_patience(&self, patience: Duration) {
        self.context.set_patience(patience);
    }

    /// What has been asked of the nodes so far.
    pub fn counters(&self) -> Counters {
        let totals = self.context.totals();
        Counters {
            rpcs: totals.rpcs,
            renewals: totals.renewals,
            one_sided_batches: totals.one_sided_batches,
            one_sided_bytes: totals.one_sided_bytes,
            eager_bytes: self.eager_bytes.load(Ordering::Relaxed),
            tokens: self.tokens.count() as u64,
            recalls: self.tokens.recalls(),
        }
    }

    /// The newest cluster map known.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.context.map().get()
    }

    /// The session's id, as nodes show it.
    pub fn session(&self) -> SessionId {
        self.context.session()
    }

    /// The node that serves a region.
    pub(crate) fn primary(&self, region: RegionId) -> Result<NodeId, FsError> {
        let primary = self.context.map().get().primary(region);
        primary.ok_or_else(|| FsError::Io(format!("region {} has no primary", region.0)))
    }

    /// Whether one node serves both regions.
    pub(crate) fn together(&self, a: RegionId, b: RegionId) -> bool {
        let map = self.context.map().get();
        a == b || map.primary(a).is_some_and(|node| map.primary(b) == Some(node))
    }

    /// Number of the session at a node, as far as a region is concerned that it serves: grows when the node forgets it, or hands the
    /// region over.
    pub(crate) fn incarnation(&self, node: NodeId, region: RegionId) -> u64 {
        let losses = self.incarnations.each.read();
        let mut lost = losses.of_node.get(&node).copied().unwrap_or(0);
        if !losses.of_region.is_empty() {
            lost += losses.of_region.get(&region).copied().unwrap_or(0);
        }
        // no two nodes have the same: a region may move from one to another
        u64::from(node.0) << LOST_BITS | lost
    }

    /// Number of losses at all nodes: while it stays, nothing was lost.
    pub(crate) fn losses(&self) -> u64 {
        self.incarnations.all.load(Ordering::Acquire)
    }

    /// A node knows the session by that number. The node around us may have said so before, without a connection.
    pub(crate) fn is_known_as(&self, node: NodeId, number: u64) {
        let here = self.colocated.as_ref().filter(|here| here.node.id() == node);
        if here.is_none_or(|here| here.is_news(number)) {
            self.lost(node);
        }
    }

    /// A node did not know the session (any more, or yet): what was held there is gone. What was cached goes too: a node
    /// that has lost power may have gone back behind a tail that we have seen.
    fn lost(&self, node: NodeId) {
        *self.incarnations.each.write().of_node.entry(node).or_default() += 1;
        self.incarnations.all.fetch_add(1, Ordering::AcqRel);
        tracing::debug!(session = %self.session(), %node, "a new session at a node");
        // it has been attached as long as it took to say so, at the most
        let since = Instant::now().checked_sub(self.context.timeouts().connect);
        let since = since.unwrap_or_else(Instant::now);
        let map = self.map();
        let there = |region| map.primary(region) == Some(node);
        self.forget(node, there);
        self.locks.lose_where(|inode| there(inode.ino.region()));
        self.locks.renewed(node, since, |_| false);
    }

    fn forget(&self, node: NodeId, there: impl Fn(RegionId) -> bool) {
        self.extent_pool.forget_where(&there);
        self.open_table.lost(node);
        self.tokens.lost(node);
        self.names.forget_where(|dir| there(dir.ino.region()));
        self.listings.forget();
    }

    /// A change of names or attributes by this client begins, at this inode.
    pub(crate) fn changing(&self, ino: Ino) -> OwnChange<'_> {
        self.unsynced.changing();
        self.tokens.changing(ino)
    }

    /// The same, of inodes of which it is not known which they are.
    pub(crate) fn changing_any(&self) -> OwnChange<'_> {
        self.unsynced.changing();
        self.tokens.changing_any()
    }

    /// Regions have other primaries than before: what was had of those before is gone.
    fn moved(&self, before: &ClusterMap, now: &ClusterMap) {
        let has_moved = |region: RegionId| before.primary(region) != now.primary(region);
        // who has handed one over has all of it, and knows us as before; who was dead has not until some maps later
        let has_left = |region: RegionId| {
            let from = before.primary(region).filter(|_| has_moved(region));
            let role = from.and_then(|node| now.region(region)?.role(node));
            role == Some(ReplicaRole::Mirror)
        };
        let is_next = now.epoch.0 == before.epoch.0 + 1;
        let moved = before.regions.iter().filter(|region| has_moved(region.id));
        let (left, lost): (Vec<&RegionInfo>, Vec<&RegionInfo>) = moved.partition(|region| has_left(region.id));
        let lost: BTreeSet<NodeId> = lost.into_iter().filter_map(RegionInfo::primary).collect();
        // who serves it now may lack what was done last
        let may_lack = |region: RegionId| {
            let is_async = has_moved(region) && now.region(region).is_some_and(RegionInfo::is_async);
            is_async && !(is_next && has_left(region))
        };
        if self.colocated.is_some() {
            self.open_table.moved(&has_moved);
        }
        self.open_table.primary_lost(|ino| may_lack(ino.region()));
        if now.regions.iter().any(|region| may_lack(region.id)) {
            self.unsynced.primary_lost();
            self.tokens.may_go_back(&|ino| may_lack(ino.region()));
        }
        for node in lost {
            *self.incarnations.each.write().of_node.entry(node).or_default() += 1;
            tracing::debug!(%node, "regions have moved from a node");
            self.forget(node, has_moved);
        }
        for info in left {
            *self.incarnations.each.write().of_region.entry(info.id).or_default() += 1;
            tracing::debug!(region = info.id.0, "was handed over");
        }
        self.extent_pool.forget_where(has_left);
        self.names.forget_where(|dir| has_left(dir.ino.region()));
        self.listings.forget();
        self.locks.lose_where(|inode| has_moved(inode.ino.region()));
        self.incarnations.all.fetch_add(1, Ordering::AcqRel);
    }
}

/// A session id: random, never 0.
fn draw_session() -> Result<SessionId, FsError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| FsError::Io(format!("no random numbers: {e}")))?;
    Ok(SessionId(u64::from_le_bytes(bytes) | 1))
}
