//! A cluster in one thread: simulated pools, simulated network, paused clock. For tests of this crate and of those above.
//!
//! [`run`] makes the runtime and starts the nodes; the test then stops, crashes and restarts them and connects links
//! as a client. Each node runs in a `LocalSet` of its own, so that a crash ends everything of it at once. Nothing
//! depends on real time; all randomness comes from the seed.
//!
//! ```
//! use polvo_node::sim::{ClusterOptions, run};
//! use polvo_proto::{Cred, Reply, Request};
//!
//! run(ClusterOptions { seed: 1, ..ClusterOptions::default() }, async |cluster| {
//!     let links = cluster.client("test");
//!     let usage = links.call_node(cluster.node(0).id(), Cred::Kernel, Request::Usage).await;
//!     assert!(matches!(usage, Ok(Reply::Usage(usage)) if usage.inodes == 1), "the root");
//! });
//! ```

mod stillness;

pub use stillness::Stillness;

use crate::housekeeping::check_pages::facts;
use crate::replication::feed::limit_backlogs;
use crate::replication::fill::FillCounters;
use crate::replication::lane_feed::limit_lanes;
use crate::{Clock, Node, NodeConfig, OneSided, Reactor, ScrubPace, Transactions};
use polvo_cluster::{Links, LocalFuture, MapCell, SessionContext, Timeouts, initial_map};
use polvo_fabric::sim::{Entered, Network};
use polvo_fabric::{Address, Identity, Role, Security};
use polvo_format::{Gpa, NodeId, RegionId, SessionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll};
use polvo_proto::{
    ClusterMap, Durability, FsError, NodeInfo, RegionSet, Replica, ReplicaRole, SegmentClass, join_facts,
};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::Instant;

const CLUSTER: [u8; 16] = [0x51; 16];
/// When the simulated world begins: 2026-11-21, in nanoseconds since the UNIX epoch.
const BEGINNING_NS: i64 = 1_795_219_200_000_000_000;

/// Unless said otherwise.
const TWO: NonZeroUsize = NonZeroUsize::new(2).expect("not 0");

/// What kind of cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Of all randomness.
    pub seed: u64,
    /// Nodes, numbered from 0, at `sim://node-N`.
    pub nodes: u16,
    /// Regions a node.
    pub regions_per_node: u16,
    /// Replicas of each region of the default set, the primary counted.
    pub replicas: u8,
    /// When changes of regions of the default set are answered.
    pub durability: Durability,
    /// Further region sets.
    pub sets: Vec<RegionSet>,
    /// Size of a pool, in bytes.
    pub pool_bytes: u64,
    /// log2 of the segment size; `None`: by pool size.
    pub segment_shift: Option<u32>,
    /// Whether file data has checksums.
    pub checksums: bool,
    /// Whether nodes compare it with them unasked.
    pub scrub: Option<ScrubPace>,
    /// Reactors a node: tasks here, each with links of its own.
    pub reactors: NonZeroUsize,
    /// Limits.
    pub timeouts: Timeouts,
    /// To whom the nodes give one-sided access to file data.
    pub one_sided: OneSided,
    /// How nodes carry out transactions.
    pub transactions: Transactions,
    /// Bytes of records that a mirror's lane takes before they are put in place, if fewer than fit; one record always goes.
    pub lane_max: Option<u32>,
    /// Bytes of records that primaries keep for mirrors that are away, if fewer than otherwise.
    pub backlog_max: Option<usize>,
    /// Slots of the redo log that nodes use, if fewer than there are (with the feature `planted`).
    pub redo_slots: Option<usize>,
    /// When the copies of a node that is away are made elsewhere; `None`: never.
    pub replace_after: Option<Duration>,
    /// By how many in a thousand the clock runs too fast by which each node measures leases; those that are missing are right.
    pub drift: Vec<i32>,
}

impl ClusterOptions {
    /// All region sets, the default first.
    fn all_sets(&self) -> Vec<RegionSet> {
        let default = RegionSet {
            replicas: self.replicas,
            durability: self.durability,
        };
        [default].into_iter().chain(self.sets.iter().copied()).collect()
    }
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions {
            seed: 0,
            nodes: 3,
            regions_per_node: 2,
            replicas: 1,
            durability: Durability::default(),
            sets: Vec::new(),
            pool_bytes: 64 << 20,
            segment_shift: None,
            checksums: true,
            scrub: None,
            reactors: TWO,
            timeouts: Timeouts::default(),
            one_sided: OneSided::All,
            transactions: Transactions::default(),
            lane_max: None,
            backlog_max: None,
            redo_slots: None,
            replace_after: None,
            drift: Vec::new(),
        }
    }
}

/// A node's clock in the simulated world. It shows the right time of day, as if it were set again and again, and runs wrong.
struct SimClock {
    start: Instant,
    drift: i32,
}

impl Clock for SimClock {
    fn now_ns(&self) -> i64 {
        BEGINNING_NS + i64::try_from(self.start.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    fn lasts(&self, duration: Duration) -> Duration {
        duration * 1000 / (1000 + self.drift).cast_unsigned()
    }
}

struct Running {
    node: Arc<Node>,
    task: JoinHandle<Result<(), FsError>>,
    stillness: Stillness,
}

struct Host {
    pmem: Arc<Pmem>,
    running: Option<Running>,
}

/// A cluster in one thread.
pub struct Cluster {
    options: ClusterOptions,
    network: Network,
    _entered: Entered,
    map: ClusterMap,
    start: Instant,
    hosts: Vec<Host>,
    sessions: Cell<u64>,
}

/// Makes a runtime with a paused clock, starts a cluster in it and runs `test`. The seed is printed when it fails.
pub fn run<T>(options: ClusterOptions, test: impl AsyncFnOnce(&mut Cluster) -> T) -> T {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed: {}", self.0);
            }
        }
    }
    let _seed = Seed(options.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime needs no more than a few descriptors");
    // what polls it is compiled once, not for each test
    let all: LocalFuture<'_, T> = Box::pin(async {
        let mut cluster = Cluster::start(options).await;
        let result = test(&mut cluster).await;
        cluster.stop_all().await;
        result
    });
    LocalSet::new().block_on(&runtime, all)
}

fn host_name(node: u16) -> String {
    format!("node-{node}")
}

fn info_of(node: u16) -> NodeInfo {
    NodeInfo {
        id: NodeId(node),
        host: host_name(node),
        addresses: vec![Address::Sim(host_name(node)).to_string()],
    }
}

fn identity(role: Role) -> Identity {
    Identity {
        cluster: CLUSTER,
        secret: b"a secret of the simulated cluster".as_slice().into(),
        role,
        security: Security::default(),
    }
}

impl Cluster {
    /// Formats the pools and starts the nodes, on the current `LocalSet`, under a paused clock.
    pub async fn start(options: ClusterOptions) -> Cluster {
        limit_lanes(options.lane_max);
        limit_backlogs(options.backlog_max);
        #[cfg(feature = "planted")]
        polvo_region::limit_redo_log(options.redo_slots);
        let network = Network::new(options.seed);
        let entered = network.enter();
        network.deliver_here(); // a node's LocalSet ends with it
        let map = initial_map(
            CLUSTER,
            (0..options.nodes).map(info_of).collect(),
            options.regions_per_node,
            &options.all_sets(),
        );
        let mut cluster = Cluster {
            network,
            _entered: entered,
            map,
            start: Instant::now(),
            hosts: Vec::new(),
            sessions: Cell::new(0),
            options,
        };
        for node in 0..cluster.options.nodes {
            let pmem = cluster.format_pool(node, 0xaa);
            cluster.hosts.push(Host { pmem, running: None });
            cluster.restart(node).await.expect("a fresh pool opens");
        }
        cluster
    }

    fn format_pool(&self, node: u16, mark: u8) -> Arc<Pmem> {
        let pmem = Pmem::simulated(self.options.pool_bytes);
        let mut pool = [mark; 16];
        pool[0] = node as u8;
        let identity = PoolIdentity {
            cluster: CLUSTER,
            pool,
            node: NodeId(node),
        };
        let params = FormatParams {
            identity,
            segment_shift: self.options.segment_shift,
            checksums: self.options.checksums,
        };
        PoolSpace::format(&pmem, &params).expect("the pool is large enough");
        pmem
    }

    /// Puts a new, empty pool in the place of that of a node that does not run.
    pub fn new_pool(&mut self, node: u16) {
        let pmem = self.format_pool(node, 0xbb);
        let host = &mut self.hosts[usize::from(node)];
        assert!(host.running.is_none(), "node {node} runs");
        host.pmem = pmem;
    }

    /// A host more, with a pool of its own, whose node does not run yet; all nodes that are started from here on are configured with it. It
    /// is to be added to the cluster.
    pub fn new_host(&mut self) -> NodeInfo {
        let node = self.options.nodes;
        self.options.nodes += 1;
        let pmem = self.format_pool(node, 0xcc);
        self.hosts.push(Host { pmem, running: None });
        let info = info_of(node);
        self.map.nodes.push(info.clone());
        info
    }

    /// The network, for delays, partitions and disconnections. Nodes are the hosts `node-N`; a client's host is its name.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The map.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// How many nodes it has, whether they run or not.
    pub fn nodes(&self) -> u16 {
        self.options.nodes
    }

    /// Are nodes replaced that stay away?
    pub fn replaces(&self) -> bool {
        self.options.replace_after.is_some()
    }

    /// The newest map that a node which runs goes by.
    pub fn newest_map(&self) -> Option<Arc<ClusterMap>> {
        self.running().map(|node| node.map()).max_by_key(|map| map.epoch)
    }

    /// The limits.
    pub fn timeouts(&self) -> Timeouts {
        self.options.timeouts
    }

    /// How nodes carry out transactions.
    pub fn transactions(&self) -> Transactions {
        self.options.transactions
    }

    /// A node that runs.
    pub fn node(&self, node: u16) -> &Arc<Node> {
        &self.hosts[usize::from(node)]
            .running
            .as_ref()
            .expect("this node runs")
            .node
    }

    /// A node's pool.
    pub fn pmem(&self, node: u16) -> &Arc<Pmem> {
        &self.hosts[usize::from(node)].pmem
    }

    /// What the pool of a node holds now.
    pub fn copy_of_pool(&self, node: u16) -> CrashImage {
        self.pmem(node).sim().expect("pools are simulated").image(&mut KeepAll)
    }

    /// Puts a copy in the place of the pool of a node that does not run.
    pub fn set_back(&mut self, node: u16, copy: &CrashImage) {
        let host = &mut self.hosts[usize::from(node)];
        assert!(host.running.is_none(), "node {node} runs");
        host.pmem = Pmem::simulated_from_image(copy);
    }

    /// True while it has been started and has neither crashed nor stopped.
    pub fn is_running(&self, node: u16) -> bool {
        self.hosts[usize::from(node)]
            .running
            .as_ref()
            .is_some_and(|running| !running.task.is_finished())
    }

    /// Starts a node on what its pool holds. Errors are those of opening the pool, of `Node::open` and of `Node::serve`.
    pub async fn restart(&mut self, node: u16) -> Result<(), FsError> {
        self.start_node(node, false).await
    }

    /// As `restart`, although other nodes have seen a later copy of the pool.
    pub async fn restart_accepting(&mut self, node: u16) -> Result<(), FsError> {
        self.start_node(node, true).await
    }

    /// Boxed, so that a node's start is compiled here and not in every crate that has tests.
    fn start_node(&mut self, node: u16, accept_older_pool: bool) -> LocalFuture<'_, Result<(), FsError>> {
        Box::pin(self.start_as(node, accept_older_pool))
    }

    async fn start_as(&mut self, node: u16, accept_older_pool: bool) -> Result<(), FsError> {
        let host = &self.hosts[usize::from(node)];
        assert!(host.running.is_none(), "node {node} runs already");
        self.network.reconnect(&host_name(node));
        let space = PoolSpace::open(host.pmem.clone()).map_err(|error| FsError::Io(error.to_string()))?;
        let config = NodeConfig {
            id: NodeId(node),
            identity: identity(Role::Node(node)),
            listen: vec![Address::Sim(host_name(node))],
            map: self.map.clone(),
            timeouts: self.options.timeouts,
            transactions: self.options.transactions,
            name: host_name(node),
            one_sided: self.options.one_sided,
            accept_older_pool,
            scrub: self.options.scrub,
            replace_after: self.options.replace_after,
            reactors: self.options.reactors,
        };
        let clock = Arc::new(SimClock {
            start: self.start,
            drift: self.options.drift.get(usize::from(node)).copied().unwrap_or(0),
        });
        let opened = Node::open(space, config, clock, &mut |_, _, _| {})?;
        // before it listens: it connects to others first
        self.network.place(&opened.memory, &host_name(node));
        let (ready, is_ready) = oneshot::channel();
        let service = opened.clone();
        let stillness = Stillness::default();
        let process = stillness.clone();
        let task = spawn_local(async move {
            let begin = |reactor: Reactor| {
                spawn_local(reactor.run());
                Ok(())
            };
            let serve = service.serve(begin, |_| ready.send(()).expect("the cluster waits for its nodes"));
            process.bound(LocalSet::new().run_until(serve)).await
        });
        if is_ready.await.is_err() {
            task.await.expect("a node does not panic")?;
            return Err(FsError::Io(format!("node {node} did not start")));
        }
        self.hosts[usize::from(node)].running = Some(Running {
            node: opened,
            task,
            stillness,
        });
        Ok(())
    }

    /// Ends a node as `kill -9` would: no more of it runs, its pool holds what was stored. Messages that were under way
    /// arrive or are lost, by the seed.
    pub async fn crash(&mut self, node: u16) {
        let running = self.hosts[usize::from(node)].running.take().expect("this node runs");
        self.network.disconnect(&host_name(node));
        running.task.abort();
        let ended = running.task.await;
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "node {node} ran until its crash"
        );
    }

    /// The process of a node stands still until then, as one that is stopped and goes on later: nothing of it runs. What others write
    /// to its memory gets there meanwhile.
    pub fn stand_still(&self, node: u16, until: Instant) {
        let running = self.hosts[usize::from(node)].running.as_ref().expect("this node runs");
        running.stillness.begin(until);
    }

    /// Nobody stands still, all nodes go by one map, and every copy is a mirror.
    pub fn is_calm(&self) -> bool {
        let now = Instant::now();
        let running = || self.hosts.iter().filter_map(|host| host.running.as_ref());
        let mut maps = running().map(|running| running.node.map());
        let Some(map) = maps.next() else { return false };
        let is_copied = |replica: &Replica| replica.role != ReplicaRole::Backup;
        maps.all(|other| other.epoch == map.epoch)
            && map.regions.iter().all(|info| info.replicas.iter().all(is_copied))
            && running().all(|running| !running.stillness.is_still(now))
    }

    /// As `crash`, and the machine loses power: of what was not durable a random part is lost, by `seed`.
    pub async fn power_cut(&mut self, node: u16, seed: u64) {
        self.crash(node).await;
        self.pmem(node).sim().expect("pools are simulated").power_cut(seed);
    }

    /// A node that runs no more, though nobody has stopped it or had it crash: others have taken its place while it was away.
    pub fn deposed(&self) -> Option<u16> {
        let ended = |host: &&(u16, &Host)| {
            host.1
                .running
                .as_ref()
                .is_some_and(|running| running.task.is_finished())
        };
        let hosts: Vec<(u16, &Host)> = (0..).zip(&self.hosts).collect();
        hosts.iter().find(ended).map(|(node, _)| *node)
    }

    /// What a node ended with that was not asked to.
    pub async fn ended(&mut self, node: u16) -> Result<(), FsError> {
        let running = self.hosts[usize::from(node)].running.take().expect("this node runs");
        let result = running.task.await.expect("a node does not panic");
        self.network.disconnect(&host_name(node));
        result
    }

    /// Stops a node in good order.
    pub async fn stop(&mut self, node: u16) {
        let running = self.hosts[usize::from(node)].running.take().expect("this node runs");
        running.node.stop();
        running
            .task
            .await
            .expect("a node does not panic")
            .or_else(|error| match error {
                FsError::Deposed { .. } => Ok(()),
                error => Err(error),
            })
            .expect("a node stops in good order");
        self.network.disconnect(&host_name(node));
    }

    /// Stops all that run.
    pub async fn stop_all(&mut self) {
        for node in 0..self.options.nodes {
            if self.hosts[usize::from(node)].running.is_some() {
                self.stop(node).await;
            }
        }
    }

    /// What a client needs to be one: its identity.
    pub fn client_identity(&self) -> Identity {
        identity(Role::Client)
    }

    /// Addresses of all nodes.
    pub fn addresses(&self) -> Vec<Address> {
        (0..self.options.nodes)
            .map(|node| Address::Sim(host_name(node)))
            .collect()
    }

    /// A fresh session id.
    pub fn next_session(&self) -> SessionId {
        let n = self.sessions.get() + 1;
        self.sessions.set(n);
        SessionId(0xc11e_0000_0000_0000 | n)
    }

    /// Links of a new client session, on a host of that name.
    pub fn client(&self, name: &str) -> Rc<Links> {
        self.client_at(name, None)
    }

    /// As `client`, at home at a node.
    pub fn client_at(&self, name: &str, home: Option<NodeId>) -> Rc<Links> {
        let map = MapCell::new(self.map.clone());
        let (me, session) = (self.client_identity(), self.next_session());
        let context = SessionContext::new(map, me, session, name.to_string(), home, self.options.timeouts, None);
        self.network.place(context.memory(), name);
        context.links()
    }

    /// Lets simulated time pass.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Checks every region of the running nodes and joins what they know; transactions must have come to rest.
    pub fn check(&self) -> Vec<String> {
        let nodes = self.hosts.iter().filter_map(|host| host.running.as_ref());
        let regions = nodes.flat_map(|running| running.node.regions.all());
        let facts = regions.map(|service| {
            let mut facts = facts(service);
            let damaged = service.enter(|region| region.scrub_all());
            facts
                .findings
                .extend(damaged.iter().map(|damaged| format!("{damaged:?}")));
            facts
        });
        join_facts(&facts.collect::<Vec<_>>())
    }

    /// Waits (in simulated time, at most a minute) until every copy at a node that runs is a mirror.
    pub async fn mirrored(&self) {
        assert!(self.is_soon_mirrored().await, "copies were not made within a minute");
    }

    /// How many segments of each node's pool are free, and how many each region has there.
    pub fn space(&self) -> String {
        let of = |node: &Arc<Node>| {
            let regions = node.map().regions.iter().map(|info| info.id).collect::<Vec<_>>();
            let held = regions.into_iter().map(|region| {
                let segments = node.space.segments_of(region);
                let data = segments
                    .iter()
                    .filter(|(_, _, class)| *class == polvo_proto::SegmentClass::Data)
                    .count();
                format!("{}: {}+{data}", region.0, segments.len() - data)
            });
            let (usage, held) = (node.space.usage(), held.collect::<Vec<_>>());
            format!(
                "node {}: {} of {} free, {}",
                node.id().0,
                usage.free_segments,
                usage.segments,
                held.join(", ")
            )
        };
        self.running().map(of).collect::<Vec<_>>().join("; ")
    }

    /// Is every copy at a node that runs a mirror within a minute of simulated time?
    pub async fn is_soon_mirrored(&self) -> bool {
        for _ in 0..600 {
            if self.is_mirrored() {
                return true;
            }
            self.sleep(Duration::from_millis(100)).await;
        }
        false
    }

    /// Are all copies at nodes that run those of mirrors, by the maps of all that run?
    pub fn is_mirrored(&self) -> bool {
        let runs = |node: NodeId| self.is_running(node.0);
        let is_mirror = |replica: &Replica| replica.role != ReplicaRole::Backup || !runs(replica.node);
        let mut regions = self
            .running()
            .flat_map(|node| node.regions.all().map(move |service| (node, service.id)));
        regions.all(|(node, region)| {
            node.map()
                .region(region)
                .is_some_and(|info| info.replicas.iter().all(is_mirror))
        })
    }

    /// What a node has done to make copies since it was started: how many are made, and bytes compared and sent.
    pub fn fills(&self, node: u16) -> [u64; 3] {
        let FillCounters {
            made,
            compared_bytes,
            sent_bytes,
            ..
        } = &self.node(node).fills;
        [made, compared_bytes, sent_bytes].map(|counter| counter.load(Relaxed))
    }

    /// How many copies are being made.
    pub fn filling(&self) -> u64 {
        self.running().map(|node| node.fills.under_way.load(Relaxed)).sum()
    }

    /// Regions of which a node has copies.
    pub fn copies(&self, node: u16) -> Vec<RegionId> {
        self.node(node).copies.regions()
    }

    /// Regions of which the pool of a node holds anything.
    pub fn held(&self, node: u16) -> Vec<RegionId> {
        let space = &self.node(node).space;
        [space.regions(), space.copies()].concat()
    }

    /// Waits (in simulated time, at most a minute) until no region has a replica at a node any more, by all nodes that run, and all have
    /// as many mirrors as they are to have.
    pub async fn replaced(&self, gone: u16) {
        for _ in 0..600 {
            let names = |node: &Arc<Node>| node.map().regions.iter().any(|info| info.role(NodeId(gone)).is_some());
            if !self.running().any(names) {
                return self.mirrored().await;
            }
            self.sleep(Duration::from_millis(100)).await;
        }
        panic!("node {gone} was not replaced within a minute");
    }

    /// Offsets in the pool of a node, and lengths, of the segments that it has of a region: of file data or of all else.
    pub fn segments(&self, node: u16, region: RegionId, data: bool) -> Vec<(u64, u64)> {
        let space = &self.node(node).space;
        let size = space.usage().segment_size;
        let segments = space.segments_of(region).into_iter();
        let those = segments.filter(|(_, _, class)| (*class == SegmentClass::Data) == data);
        those.map(|(_, at, _)| (at, size)).collect()
    }

    /// Where an address of a region lies in the pool of a node that has it, be it as a copy.
    pub fn place(&self, node: u16, at: Gpa) -> u64 {
        let space = &self.node(node).space;
        let size = space.usage().segment_size;
        let index = at.offset().0 / size;
        let mut segments = space.segments_of(at.region()).into_iter();
        let segment = segments.find(|(other, ..)| u64::from(*other) == index);
        let (_, begins, _) = segment.expect("the region has the segment");
        begins + at.offset().0 % size
    }

    fn running(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.hosts.iter().filter_map(|host| Some(&host.running.as_ref()?.node))
    }

    /// Compares the mirrors of all regions of running nodes with what they are copies of, in every byte that recovery goes by. Nothing
    /// may be under way. Says what differs, and how many were compared.
    pub fn compare_mirrors(&self) -> Result<usize, String> {
        let mut compared = 0;
        for (primary, service) in self
            .running()
            .flat_map(|node| node.regions.all().map(move |service| (node, service)))
        {
            let map = primary.map();
            let role = |node: NodeId| map.region(service.id).and_then(|info| info.role(node));
            for mirror in self
                .running()
                .filter(|node| role(node.id()) == Some(ReplicaRole::Mirror))
            {
                compare(primary, mirror, service.id)?;
                compared += 1;
            }
        }
        Ok(compared)
    }

    /// True when no node has a transaction that is not decided, or decided and not dispatched, and mirrors in the set lack nothing.
    pub fn is_at_rest(&self) -> bool {
        self.hosts
            .iter()
            .filter_map(|host| host.running.as_ref())
            .all(|running| {
                let node = &running.node;
                node.undecided.count() == 0
                    && node.dispatching.load(Relaxed) == 0
                    && node.undispatched.lock().is_empty()
                    && nothing_is_prepared(node)
                    && node.regions.all().all(|service| service.may_rest())
                    && node
                        .regions
                        .all()
                        .all(|service| service.enter(|region| region.reap()).is_empty())
            })
    }

    /// Waits (in simulated time, at most a minute) until all transactions have come to rest.
    pub async fn rest(&self) {
        for _ in 0..600 {
            if self.is_at_rest() {
                return;
            }
            self.sleep(Duration::from_millis(100)).await;
        }
        panic!("transactions did not come to rest within a minute");
    }
}

/// Compares a mirror's copy of a region, with all that has come to its lane, with the region.
fn compare(primary: &Node, mirror: &Node, region: RegionId) -> Result<(), String> {
    let which = format!("copy of region {} at node {}", region.0, mirror.id().0);
    mirror
        .copies
        .apply(region)
        .map_err(|error| format!("{which}: {error}"))?;
    let (ours, theirs) = (primary.space.segments_of(region), mirror.space.segments_of(region));
    let what = |segments: &[(u32, u64, SegmentClass)]| -> Vec<_> { segments.iter().map(|s| (s.0, s.2)).collect() };
    if what(&ours) != what(&theirs) {
        return Err(format!("{which}: segments {:?}, not {:?}", what(&theirs), what(&ours)));
    }
    let size = primary.space.usage().segment_size as usize;
    let (mut here, mut there) = (vec![0; size], vec![0; size]);
    let pairs = ours
        .iter()
        .zip(&theirs)
        .filter(|(ours, _)| ours.2 != SegmentClass::Data);
    for ((index, at, class), (_, copy, _)) in pairs {
        primary.pmem.read(*at, &mut here);
        mirror.pmem.read(*copy, &mut there);
        if let Some(at) = (0..size).find(|at| here[*at] != there[*at]) {
            return Err(format!("{which}: segment {index} ({class:?}) differs at {at:#x}"));
        }
    }
    Ok(())
}

/// The node has nothing prepared for transactions of others.
fn nothing_is_prepared(_node: &Node) -> bool {
    #[cfg(feature = "two-phase")]
    return _node.prepared.waiting().is_empty();
    #[cfg(not(feature = "two-phase"))]
    true
}
