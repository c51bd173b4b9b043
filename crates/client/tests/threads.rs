//! The blocking client: real threads, real sockets and shared memory, clients outside and inside nodes at once.

use crate::common::{ROOT, file, inode, pattern};
use polvo_client::{Client, ClientConfig, LocalClient, OpenFile, Thresholds, Transfers};
use polvo_cluster::{Timeouts, host_identity, initial_map};
use polvo_fabric::{Address, Identity, Role, Security};
use polvo_format::NodeId;
use polvo_node::{Node, NodeConfig, Reactor, SystemClock, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::{Cred, FsError, NodeInfo, RegionSet, Reply, Request};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::task::LocalSet;

const CLUSTER: [u8; 16] = [7; 16];
const NODES: u16 = 2;

type Serving = JoinHandle<Result<(), FsError>>;

struct Cluster {
    nodes: Vec<(Arc<Node>, Serving)>,
    addresses: Vec<Address>,
}

fn identity(role: Role) -> Identity {
    Identity {
        cluster: CLUSTER,
        secret: b"of these tests".as_slice().into(),
        role,
        security: Security::default(),
    }
}

impl Cluster {
    /// Two nodes of a process, each served by a thread of its own.
    fn start(dir: &Path, provider: &str) -> Cluster {
        // ports that were free a moment ago
        let ports: Vec<TcpListener> = (0..NODES)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
            .collect();
        let addresses: Vec<Address> = ports
            .iter()
            .enumerate()
            .map(|(node, port)| match provider {
                "shm" => Address::Shm(dir.join(format!("{node}.sock"))),
                _ => Address::Tcp(port.local_addr().expect("bound").to_string()),
            })
            .collect();
        drop(ports);
        let info = |node: u16| NodeInfo {
            id: NodeId(node),
            host: host_identity(),
            addresses: vec![addresses[usize::from(node)].to_string()],
        };
        let map = initial_map(CLUSTER, (0..NODES).map(info).collect(), 2, &[RegionSet::default()]);
        let start = |node: u16| {
            let pmem = Pmem::create(&dir.join(format!("{node}.pool")), 64 << 20, None).expect("pool");
            let id = NodeId(node);
            let identity_of_pool = PoolIdentity {
                cluster: CLUSTER,
                pool: [node as u8; 16],
                node: id,
            };
            let params = FormatParams {
                identity: identity_of_pool,
                segment_shift: None,
                checksums: true,
            };
            PoolSpace::format(&pmem, &params).expect("format");
            let config = NodeConfig {
                id,
                identity: identity(Role::Node(node)),
                listen: vec![addresses[usize::from(node)].clone()],
                map: map.clone(),
                timeouts: Timeouts::default(),
                transactions: Transactions::default(),
                name: format!("node-{node}"),
                one_sided: polvo_node::OneSided::All,
                accept_older_pool: false,
                scrub: None,
                replace_after: None,
                reactors: std::num::NonZeroUsize::new(3).expect("not 0"),
            };
            let space = PoolSpace::open(pmem).expect("open");
            let opened = Node::open(space, config, Arc::new(SystemClock), &mut |_, _, _| {}).expect("node");
            let (ready, is_ready) = mpsc::channel();
            let served = opened.clone();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("runtime");
                LocalSet::new().block_on(
                    &runtime,
                    served.serve(Reactor::spawn, |_| ready.send(()).expect("somebody waits")),
                )
            });
            is_ready.recv().expect("the node serves");
            (opened, thread)
        };
        let nodes = (0..NODES).map(start).collect();
        Cluster { nodes, addresses }
    }

    fn client(&self, name: &str) -> Arc<Client> {
        self.client_by(name, Transfers::default())
    }

    fn client_by(&self, name: &str, transfers: Transfers) -> Arc<Client> {
        let config = ClientConfig {
            addresses: self.addresses.clone(),
            identity: identity(Role::Client),
            name: name.to_string(),
            provider: None,
            timeouts: Timeouts::default(),
            cred: Cred::Kernel,
            transfers,
            verify: false,
        };
        let client = Client::connect_blocking(config).expect("connect");
        client.start_maintenance();
        client
    }

    fn stop(self) {
        for (node, thread) in self.nodes {
            node.stop();
            thread.join().expect("no panic").expect("good order");
        }
    }
}

async fn work(client: &LocalClient, shared: &OpenFile, thread: u64) {
    let name = format!("thread-{thread}");
    let (_, own) = client.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
    for n in 0..30u64 {
        let bytes = pattern(thread << 16 | n, if n % 3 == 0 { 70_000 } else { 600 });
        assert_eq!(client.write(&own, n * 1000, &bytes).await, Ok(bytes.len()));
        let mut back = vec![0; bytes.len()];
        assert_eq!(client.read(&own, n * 1000, &mut back).await, Ok(bytes.len()));
        assert!(back == bytes);
        let buffer = client.client().buffer(bytes.len()).expect("memory");
        let read = client.read_into(&own, n * 1000, &buffer, 0, bytes.len()).await;
        assert_eq!(read, Ok(bytes.len()));
        buffer.read(0, &mut back);
        assert!(back == bytes);
        let written = client.write_from(&own, n * 1000 + 7, &buffer, 0, bytes.len()).await;
        assert_eq!(written, Ok(bytes.len()));
        assert_eq!(client.read(&own, n * 1000 + 7, &mut back).await, Ok(bytes.len()));
        assert!(back == bytes);
        let mut record = vec![thread as u8; 100 + n as usize];
        record[..8].copy_from_slice(&(100 + n).to_le_bytes());
        client.append(shared, &record).await.expect("append");
        assert_eq!(
            client.lookup(ROOT, name.as_bytes()).await.map(|x| x.ino),
            Ok(own.inode().ino)
        );
    }
    drop(own);
    client.unlink(ROOT, name.as_bytes()).await.expect("unlink");
}

/// Threads of two remote clients, one of which has the nodes move its data, and of a colocated one, all at the same time.
fn many_threads(provider: &str) {
    let dir = tempfile::tempdir().expect("directory");
    let cluster = Cluster::start(dir.path(), provider);
    let remote = cluster.client("remote");
    let sizes = Thresholds {
        eager_write: 100,
        eager_read: 100,
        pooled: 10_000,
    };
    let directed = cluster.client_by("directed", Transfers::Server(sizes));
    let colocated = Client::internal(cluster.nodes[1].0.colocated(), "colocated".into(), Cred::Kernel);
    colocated.start_maintenance();
    let made = remote.run(|client| async move { client.create(ROOT, b"shared", file()).await.expect("create") });

    let threads: Vec<_> = (0..6u64)
        .map(|thread| {
            let client = [&remote, &colocated, &directed][thread as usize % 3].clone();
            std::thread::spawn(move || {
                let shared = client.run(|c| async move { c.open(inode(&made)).await.expect("open") });
                client.run(|c| async move { work(&c, &shared, thread).await });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    for client in [&remote, &colocated, &directed] {
        let all = client.run(|c| async move {
            let shared = c.open(inode(&made)).await.expect("open");
            crate::common::content(&c, &shared).await
        });
        let (mut at, mut count) = (0, [0u64; 6]);
        while at < all.len() {
            let len = u64::from_le_bytes(all[at..at + 8].try_into().expect("8 bytes")) as usize;
            let thread = all[at + 8];
            assert!(all[at + 8..at + len].iter().all(|b| *b == thread), "a record is whole");
            assert_eq!(len as u64, 100 + count[usize::from(thread)], "and in order");
            count[usize::from(thread)] += 1;
            at += len;
        }
        assert_eq!(count, [30; 6]);
    }
    assert!(remote.counters().rpcs > 0);
    remote.shutdown();
    directed.shutdown();
    colocated.shutdown();
    let probe = cluster.client("probe");
    for (node, _) in &cluster.nodes {
        let id = node.id();
        let Ok(Reply::Json(status)) = probe.run(|c| async move { c.ask(id, Request::Status).await }) else {
            panic!("no status");
        };
        assert!(
            !status.contains("\"remote\"") && !status.contains("\"colocated\""),
            "sessions have ended: {status}"
        );
    }
    probe.shutdown();
    cluster.stop();
}

#[test]
fn over_tcp() {
    many_threads("tcp");
}

#[test]
fn over_shm() {
    many_threads("shm");
}

#[test]
fn nobody_at_the_address_is_an_error_in_bounded_time() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = Address::Tcp(port.local_addr().expect("bound").to_string());
    drop(port);
    let config = ClientConfig {
        addresses: vec![address],
        identity: identity(Role::Client),
        name: "lost".into(),
        provider: None,
        timeouts: Timeouts::default(),
        cred: Cred::Kernel,
        transfers: Transfers::default(),
        verify: false,
    };
    let error = Client::connect_blocking(config).err();
    assert!(matches!(error, Some(FsError::Io(_))), "{error:?}");
}

/// One thread writes a large piece again and again, another one a small piece behind it: reads of both end, and see each
/// write of the large one whole.
#[test]
fn readers_inside_a_node_see_whole_writes_of_writers_that_never_pause() {
    const LARGE: usize = 200_000;
    let dir = tempfile::tempdir().expect("directory");
    let cluster = Cluster::start(dir.path(), "shm");
    let remote = cluster.client("remote");
    let made = remote.run(|client| async move { client.create(ROOT, b"shared", file()).await.expect("create") });
    let here = cluster.nodes.iter().find(|(node, _)| node.serves(made.ino.region()));
    let colocated = Client::internal(
        here.expect("it is served").0.colocated(),
        "colocated".into(),
        Cred::Kernel,
    );
    colocated.start_maintenance();
    let open = || colocated.run(|c| async move { c.open(inode(&made)).await.expect("open") });
    let is_over = AtomicBool::new(false);
    let write = |file: &OpenFile, offset: usize, len: usize, value: u8| {
        let wrote = colocated.run(|c| async move { c.write(file, offset as u64, &vec![value; len]).await });
        assert_eq!(wrote, Ok(len));
    };
    write(&open(), 0, LARGE + 64, 0);
    std::thread::scope(|scope| {
        for (offset, len) in [(0, LARGE), (LARGE, 64)] {
            let (write, file, is_over) = (&write, open(), &is_over);
            scope.spawn(move || {
                for value in (0..=u8::MAX).cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    write(&file, offset, len, value);
                }
            });
        }
        let file = open();
        let file = &*file;
        let read = || {
            colocated.run(|c| async move {
                let mut bytes = vec![0; LARGE + 64];
                assert_eq!(c.read(file, 0, &mut bytes).await, Ok(bytes.len()));
                bytes
            })
        };
        let all: Vec<Vec<u8>> = (0..200).map(|_| read()).collect();
        is_over.store(true, Ordering::Relaxed);
        for bytes in all {
            assert!(bytes[..LARGE].iter().all(|b| *b == bytes[0]), "the large one is whole");
            assert!(bytes[LARGE..].iter().all(|b| *b == bytes[LARGE]), "and the small one");
        }
    });
    colocated.shutdown();
    remote.shutdown();
    cluster.stop();
}
