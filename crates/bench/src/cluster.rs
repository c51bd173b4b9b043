//! A cluster of one node inside the benchmark's own process, so that internal and external clients of the same pool
//! are measured side by side.

use crate::BenchError;
use polvo_client::{Client, ClientConfig, LocalClient, Transfers};
use polvo_cluster::{Timeouts, initial_map};
use polvo_fabric::{Address, Identity, Role};
use polvo_format::{FileKind, Ino, NodeId};
use polvo_node::{Node, NodeConfig, SystemClock, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::{Cred, FsError, InodeRef, NewFile, NodeInfo};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

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

/// Length of leases where that does not matter.
pub const LEASE: Duration = Duration::from_secs(30);

/// The node.
pub struct BenchNode {
    node: Arc<Node>,
    identity: Identity,
    timeouts: Timeouts,
    addresses: Vec<Address>,
    reactor: JoinHandle<Result<(), String>>,
    pool: PathBuf,
}

impl BenchNode {
    /// Formats a pool of `pool_len` bytes in `dir` and serves it over tcp (loopback) and shm, with leases of that length.
    pub fn start(dir: &Path, pool_len: u64, lease: Duration) -> Result<BenchNode, BenchError> {
        let cluster = *b"polvo-benchmark!";
        let identity = Identity {
            cluster,
            secret: Arc::from(&b"benchmark secret"[..]),
            role: Role::Node(0),
        };
        let timeouts = Timeouts {
            connect: Duration::from_secs(2),
            rpc: Duration::from_secs(10),
            held: Duration::from_secs(2),
            lease,
            away: Duration::from_secs(2),
        };
        let pool = dir.join("pool");
        let pmem = Pmem::create(&pool, pool_len, None)?;
        let params = FormatParams {
            identity: PoolIdentity {
                cluster,
                pool: cluster,
                node: NodeId(0),
            },
            segment_shift: None,
        };
        PoolSpace::format(&pmem, &params)?;
        let space = PoolSpace::open(pmem)?;
        let shm = Address::Shm(dir.join("node.sock"));
        // the map names the port, so one is found before the node binds it
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let tcp = Address::Tcp(format!("127.0.0.1:{port}"));
        let info = NodeInfo {
            id: NodeId(0),
            host: polvo_cluster::host_identity(),
            addresses: vec![shm.to_string(), tcp.to_string()],
        };
        let config = NodeConfig {
            id: NodeId(0),
            identity: identity.clone(),
            listen: vec![tcp, shm],
            map: initial_map(cluster, vec![info], 1),
            timeouts,
            transactions: Transactions::default(),
            name: "bench".into(),
            one_sided: polvo_node::OneSided::All,
        };
        let node = Node::open(space, config, Arc::new(SystemClock), &mut |_, _, _| ())?;
        let (ready, bound) = mpsc::channel();
        let served = node.clone();
        let reactor = std::thread::Builder::new().name("reactor".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|e| e.to_string())?;
            let tasks = tokio::task::LocalSet::new();
            let serve = served.serve(move |addresses| {
                let _ = ready.send(addresses.to_vec());
            });
            tasks.block_on(&runtime, serve).map_err(|e| e.to_string())
        })?;
        let addresses = bound
            .recv_timeout(Duration::from_secs(10))
            .map_err(|_| "the node did not start to listen")?;
        Ok(BenchNode {
            node,
            identity,
            timeouts,
            addresses,
            reactor,
            pool,
        })
    }

    /// The node itself.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// A client inside the node.
    pub fn internal(&self) -> Arc<Client> {
        Client::internal(&self.node, "bench".into(), Cred::Kernel)
    }

    /// An external client over `tcp` or `shm`.
    pub fn external(&self, provider: &str) -> Result<Arc<Client>, BenchError> {
        let address = self
            .addresses
            .iter()
            .find(|a| matches!((a, provider), (Address::Tcp(_), "tcp") | (Address::Shm(_), "shm")))
            .ok_or("the node does not listen with that provider")?
            .clone();
        let config = ClientConfig {
            addresses: vec![address],
            identity: Identity {
                role: Role::Client,
                ..self.identity.clone()
            },
            name: format!("bench-{provider}"),
            provider: Some(provider.into()),
            timeouts: self.timeouts,
            cred: Cred::Kernel,
            transfers: Transfers::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(tokio::task::LocalSet::new().block_on(&runtime, Client::connect(config))?)
    }

    /// Ends it in good order, and removes the pool.
    pub fn stop(self) -> Result<(), BenchError> {
        let pool = self.pool.clone();
        self.leave()?;
        Ok(std::fs::remove_file(pool)?)
    }

    /// Ends it in good order and leaves the pool.
    pub fn leave(self) -> Result<(), BenchError> {
        self.node.stop();
        self.reactor.join().map_err(|_| "the reactor thread failed")??;
        Ok(())
    }
}
