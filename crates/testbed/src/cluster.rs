//! Clusters in the benchmark's own process, so that colocated and remote clients of the same pool are measured side
//! by side, and nodes without the cost of processes.

use crate::Failure;
use crate::cores::SERVING;
use crate::on_thread::OnThread;
use polvo_client::{Client, ClientConfig, LocalClient, Transfers};
use polvo_cluster::{Timeouts, initial_map};
use polvo_fabric::{Address, Identity, Role, Security};
use polvo_format::{FileKind, Ino, NodeId, RegionId};
use polvo_node::{Node, NodeConfig, OneSided, Reactor, SystemClock, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::{
    ClusterMap, Cred, Durability, FsError, InodeRef, NewFile, NodeInfo, RegionSet, Replica, ReplicaRole,
};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

const CLUSTER: [u8; 16] = *b"polvo-benchmark!";
/// Copies of a region are made by then.
const COPIED: Duration = Duration::from_secs(60);

/// A directory that is removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory of this process's own below `parent`.
    pub fn new(parent: &Path) -> std::io::Result<Scratch> {
        let path = parent.join(format!("polvo-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A regular file of the benchmark's user.
pub fn new_file() -> NewFile {
    NewFile {
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

/// The root directory.
pub fn root(client: &Arc<Client>) -> Result<InodeRef, FsError> {
    client.run(|c| async move { c.resolve(Ino::ROOT).await })
}

/// Bytes of pools in use.
pub fn used_bytes(client: &Arc<Client>) -> Result<u64, FsError> {
    let (nodes, _) = client.run(|c| async move { c.usage().await })?;
    Ok(nodes
        .iter()
        .map(|(_, usage)| usage.total_bytes - usage.free_bytes)
        .sum())
}

/// Lets what was freed be used again at once, as it is after a while in a system that runs.
pub async fn tick(client: &LocalClient, node: &Node) {
    node.advance_tick();
    client.renew().await;
    node.advance_tick();
}

/// Size of the pool for files of `file_len` bytes: room for overwritten pages until they may be used again.
pub fn pool_len(file_len: u64) -> u64 {
    file_len * 6 + (512 << 20)
}

/// One node of a cluster in this process.
pub struct BenchNode {
    node: Arc<Node>,
    timeouts: Timeouts,
    addresses: Vec<Address>,
    reactor: JoinHandle<Result<(), String>>,
    /// What the kernel says of the reactor's thread.
    schedstat: PathBuf,
    pool: PathBuf,
}

/// What a cluster is to be.
pub struct ClusterPlan<'a> {
    /// Where its pools and sockets lie.
    pub dir: &'a Path,
    /// How many, each with a thread of its own that accepts connections and is a reactor.
    pub nodes: u16,
    /// Reactors of each node.
    pub reactors: NonZeroUsize,
    /// Regions of each node.
    pub regions: u16,
    /// Replicas of the first node's region, the primary counted. With more than one it is the only region there is: the other nodes
    /// have copies of it and nothing else, and what is measured beside one node without copies differs in the copies alone.
    pub replicas: u8,
    /// When its changes are answered.
    pub durability: Durability,
    /// Bytes of each pool.
    pub pool_len: u64,
    /// How nodes (and clients that go by the map) reach each other: `shm` or `tcp`; `None`: shm first.
    pub provider: Option<&'a str>,
    /// How nodes carry out transactions.
    pub transactions: Transactions,
    /// Core that the first reactor keeps to; the others follow. `None`: they run anywhere.
    pub first_core: Option<usize>,
    /// File data has checksums.
    pub checksums: bool,
    /// Time limits; see [`PATIENT`].
    pub timeouts: Timeouts,
}

impl<'a> ClusterPlan<'a> {
    /// One node as it is for its users: it runs anywhere, and has the time limits that they have.
    pub fn one_node(dir: &'a Path, pool_len: u64) -> ClusterPlan<'a> {
        ClusterPlan {
            dir,
            nodes: 1,
            reactors: NonZeroUsize::MIN,
            regions: 1,
            replicas: 1,
            durability: Durability::default(),
            pool_len,
            provider: None,
            transactions: Transactions::default(),
            first_core: None,
            checksums: false,
            timeouts: Timeouts::default(),
        }
    }
}

/// Time limits where clients may be left alone: who measures renews nothing meanwhile.
pub const PATIENT: Timeouts = Timeouts {
    connect: Duration::from_secs(2),
    rpc: Duration::from_secs(10),
    held: Duration::from_secs(2),
    lease: Duration::from_secs(600),
    token: Duration::from_secs(1),
    away: Duration::from_secs(2),
};

impl ClusterPlan<'_> {
    /// Formats the pools and serves them, each node over tcp (loopback) and shm.
    pub fn start(&self) -> Result<Vec<BenchNode>, Failure> {
        // the map names the ports, so they are found before the nodes bind them
        let ports: Vec<_> = (0..self.nodes)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()?;
        let mut listen = Vec::new();
        for (id, port) in (0..self.nodes).zip(ports) {
            listen.push([
                Address::Shm(self.dir.join(format!("node{id}.sock"))),
                Address::Tcp(format!("127.0.0.1:{}", port.local_addr()?.port())),
            ]);
        }
        let infos = (0..self.nodes).zip(&listen).map(|(id, addresses)| NodeInfo {
            id: NodeId(id),
            host: polvo_cluster::host_identity(),
            addresses: addresses
                .iter()
                .filter(|address| self.provider.is_none_or(|name| is_of(address, name)))
                .map(Address::to_string)
                .collect(),
        });
        let set = RegionSet {
            replicas: self.replicas,
            durability: self.durability,
        };
        let mut map = initial_map(CLUSTER, infos.collect(), self.regions, &[set]);
        if self.replicas > 1 {
            map.regions.truncate(1);
        }
        let nodes = (0..self.nodes).zip(listen);
        nodes.map(|(id, listen)| self.start_node(id, listen, &map)).collect()
    }

    fn start_node(&self, id: u16, listen: [Address; 2], map: &ClusterMap) -> Result<BenchNode, Failure> {
        let identity = identity(Role::Node(id));
        let timeouts = self.timeouts;
        let pool = self.dir.join(match id {
            0 => "pool".to_owned(),
            id => format!("pool{id}"),
        });
        let pmem = Pmem::create(&pool, self.pool_len, None)?;
        let mut pool_id = CLUSTER;
        pool_id[..2].copy_from_slice(&id.to_le_bytes());
        let params = FormatParams {
            identity: PoolIdentity {
                cluster: CLUSTER,
                pool: pool_id,
                node: NodeId(id),
            },
            segment_shift: None,
            checksums: self.checksums,
        };
        PoolSpace::format(&pmem, &params)?;
        let space = PoolSpace::open(pmem)?;
        let config = NodeConfig {
            id: NodeId(id),
            identity,
            listen: listen.to_vec(),
            map: map.clone(),
            timeouts,
            transactions: self.transactions,
            name: format!("bench {id}"),
            one_sided: OneSided::All,
            accept_older_pool: false,
            scrub: None,
            replace_after: None,
            reactors: self.reactors,
        };
        let node = Node::open(space, config, Arc::new(SystemClock), &mut |_, _, _| ())?;
        let (ready, bound) = mpsc::channel();
        let served = node.clone();
        let name = format!("reactor{id}");
        let core = self.first_core.map(|first| first + usize::from(id));
        let reactor = std::thread::Builder::new().name(name).spawn(move || {
            let on_thread = OnThread::on_core(core).map_err(|why| why.to_string())?;
            let serve = served.serve(Reactor::spawn, move |addresses| {
                let _ = ready.send((addresses.to_vec(), rustix::thread::gettid()));
            });
            on_thread.run(serve).map_err(|e| e.to_string())
        })?;
        let (addresses, thread) = bound
            .recv_timeout(Duration::from_secs(10))
            .map_err(|_| "the node did not start to listen")?;
        Ok(BenchNode {
            node,
            timeouts,
            addresses,
            reactor,
            schedstat: format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero()).into(),
            pool,
        })
    }
}

/// Who somebody of a benchmark's cluster is.
fn identity(role: Role) -> Identity {
    Identity {
        cluster: CLUSTER,
        secret: Arc::from(&b"benchmark secret"[..]),
        role,
        security: Security::None,
    }
}

/// How a client of the node at that address is made, by that address's provider.
pub fn client_config(address: Address, timeouts: Timeouts) -> ClientConfig {
    let provider = match address {
        Address::Tcp(_) => "tcp",
        _ => "shm",
    };
    ClientConfig {
        addresses: vec![address],
        identity: identity(Role::Client),
        name: format!("bench-{provider}"),
        provider: Some(provider.into()),
        timeouts,
        cred: Cred::Kernel,
        transfers: Transfers::default(),
        verify: false,
    }
}

fn is_of(address: &Address, provider: &str) -> bool {
    matches!((address, provider), (Address::Tcp(_), "tcp") | (Address::Shm(_), "shm"))
}

impl BenchNode {
    /// A cluster of one node, with a pool of `pool_len` bytes in `dir`.
    pub fn start(dir: &Path, pool_len: u64) -> Result<BenchNode, Failure> {
        BenchNode::start_with(dir, pool_len, false)
    }

    /// As [`BenchNode::start`], with or without checksums of file data.
    pub fn start_with(dir: &Path, pool_len: u64, checksums: bool) -> Result<BenchNode, Failure> {
        let plan = ClusterPlan {
            first_core: Some(SERVING),
            checksums,
            timeouts: PATIENT,
            ..ClusterPlan::one_node(dir, pool_len)
        };
        plan.start()?.pop().ok_or_else(|| "one node was asked for".into())
    }

    /// As many nodes as the first one's region has replicas, which reach each other that way. On return the copies are mirrors.
    pub fn start_replicas(
        dir: &Path,
        pool_len: u64,
        replicas: u8,
        durability: Durability,
        provider: &str,
    ) -> Result<Vec<BenchNode>, Failure> {
        let plan = ClusterPlan {
            nodes: u16::from(replicas),
            replicas,
            durability,
            provider: Some(provider),
            first_core: Some(SERVING),
            timeouts: PATIENT,
            ..ClusterPlan::one_node(dir, pool_len)
        };
        let nodes = plan.start()?;
        nodes.first().ok_or("a region has one replica at least")?.mirrored()?;
        Ok(nodes)
    }

    /// Waits until all copies of the first region, which it serves, are mirrors.
    pub fn mirrored(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let are_mirrors = || {
            let map = self.node.map();
            let is_copied = |replica: &Replica| replica.role != ReplicaRole::Backup;
            map.region(RegionId(0))
                .is_some_and(|info| info.replicas.iter().all(is_copied))
        };
        while !are_mirrors() {
            if begun.elapsed() > COPIED {
                return Err("copies are not made".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Who clients are.
    pub fn client_identity(&self) -> Identity {
        identity(Role::Client)
    }

    /// Where it is served over `tcp` or `shm`.
    pub fn address(&self, provider: &str) -> Result<Address, Failure> {
        let found = self.addresses.iter().find(|address| is_of(address, provider));
        Ok(found.ok_or("the node does not listen with that provider")?.clone())
    }

    /// How a client over `tcp` or `shm` is made.
    pub fn client_config(&self, provider: &str) -> Result<ClientConfig, Failure> {
        Ok(client_config(self.address(provider)?, self.timeouts))
    }

    /// The node itself.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Time of a processor that the node's reactor has used so far. What it has used since it last went to sleep may be
    /// missing, up to a tick of the kernel.
    pub fn processor_time(&self) -> Result<Duration, Failure> {
        let stat = std::fs::read_to_string(&self.schedstat)?;
        let ns = stat.split_whitespace().next().ok_or("an empty schedstat")?;
        Ok(Duration::from_nanos(ns.parse()?))
    }

    /// A colocated client.
    pub fn internal(&self) -> Arc<Client> {
        Client::internal(self.node.colocated(), "bench".into(), Cred::Kernel)
    }

    /// An external client over `tcp` or `shm`.
    pub fn external(&self, provider: &str) -> Result<Arc<Client>, Failure> {
        self.external_by(provider, Transfers::default())
    }

    /// An external client whose data is moved so.
    pub fn external_by(&self, provider: &str, transfers: Transfers) -> Result<Arc<Client>, Failure> {
        let config = ClientConfig {
            transfers,
            ..self.client_config(provider)?
        };
        Ok(OnThread::new()?.run(Client::connect(config))?)
    }

    /// Ends it in good order, and removes the pool.
    pub fn stop(self) -> Result<(), Failure> {
        let pool = self.pool.clone();
        self.leave()?;
        Ok(std::fs::remove_file(pool)?)
    }

    /// Ends it in good order and leaves the pool.
    pub fn leave(self) -> Result<(), Failure> {
        self.node.stop();
        self.reactor.join().map_err(|_| "the reactor thread failed")??;
        Ok(())
    }
}
