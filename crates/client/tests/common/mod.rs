//! What the tests share: a simulated cluster with clients of all kinds, in one thread, under a paused clock.

use polvo_client::{Client, LocalClient, OpenFile, Transfers};
use polvo_cluster::{MapCell, SessionContext, Timeouts};
use polvo_format::{Attr, FileKind, Generation, Ino};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::{Cred, InodeRef, NewFile};
use std::rc::Rc;
use std::sync::Arc;

pub const ROOT: InodeRef = InodeRef {
    ino: Ino::ROOT,
    generation: Generation(1),
};

/// Starts three nodes and runs the test; what does not end within a minute of real time is a hang.
pub fn with_cluster(seed: u64, test: impl AsyncFnOnce(&mut Cluster)) {
    with_options(
        ClusterOptions {
            seed,
            ..ClusterOptions::default()
        },
        test,
    );
}

pub fn with_options(options: ClusterOptions, test: impl AsyncFnOnce(&mut Cluster)) {
    run(options, async |cluster| {
        test(cluster).await;
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new(), "the cluster is clean at the end");
    });
}

/// A client of its own, with its maintenance running.
pub fn external(cluster: &Cluster, name: &str) -> Rc<LocalClient> {
    external_as(cluster, name, Cred::Kernel)
}

pub fn external_as(cluster: &Cluster, name: &str, cred: Cred) -> Rc<LocalClient> {
    external_with(cluster, name, cred, Transfers::default())
}

/// As [`external`], with data moved so.
pub fn external_by(cluster: &Cluster, name: &str, transfers: Transfers) -> Rc<LocalClient> {
    external_with(cluster, name, Cred::Kernel, transfers)
}

fn external_with(cluster: &Cluster, name: &str, cred: Cred, transfers: Transfers) -> Rc<LocalClient> {
    let context = SessionContext::new(
        MapCell::new(cluster.map().clone()),
        cluster.client_identity(),
        cluster.next_session(),
        name.to_string(),
        None,
        cluster.timeouts(),
        None,
    );
    cluster.network().place(context.memory(), name);
    with_maintenance(&Client::over(context, cred, transfers))
}

/// A colocated client.
pub fn internal(cluster: &Cluster, node: u16) -> Rc<LocalClient> {
    with_maintenance(&Client::internal(
        cluster.node(node).colocated(),
        format!("colocated-{node}"),
        Cred::Kernel,
    ))
}

fn with_maintenance(client: &Arc<Client>) -> Rc<LocalClient> {
    tokio::task::spawn_local(client.local().maintain());
    client.local()
}

pub fn new_file(kind: FileKind, mode: u32) -> NewFile {
    NewFile {
        kind,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

pub fn file() -> NewFile {
    new_file(FileKind::File, 0o644)
}

pub fn directory() -> NewFile {
    new_file(FileKind::Directory, 0o755)
}

pub fn symlink(target: &[u8]) -> NewFile {
    NewFile {
        target: target.to_vec(),
        umask: 0,
        xattrs: Vec::new(),
        ..new_file(FileKind::Symlink, 0o777)
    }
}

pub fn inode(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}

/// Everything in a file.
pub async fn content(client: &LocalClient, file: &OpenFile) -> Vec<u8> {
    let size = client.get_attr(file.inode()).await.expect("attributes").size as usize;
    let mut bytes = vec![0xee; size + 10];
    let read = client.read(file, 0, &mut bytes).await.expect("read");
    assert_eq!(read, size, "reads end where the file does");
    bytes.truncate(read);
    bytes
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// A small generator of numbers, the same for a seed everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn short_leases() -> Timeouts {
    Timeouts {
        lease: std::time::Duration::from_secs(6),
        ..Timeouts::default()
    }
}

/// A directory whose inode lies on that node, and a file in it on the same node, made by some client.
pub async fn home_on(cluster: &Cluster, node: u16) -> (InodeRef, InodeRef) {
    let client = external(cluster, "maker");
    let mine = |inode: InodeRef| cluster.node(node).serves(inode.ino.region());
    for n in 0.. {
        let dir = inode(
            &client
                .create(ROOT, format!("dir-{node}-{n}").as_bytes(), directory())
                .await
                .expect("mkdir"),
        );
        for m in 0..20u32 {
            let made = client
                .create(dir, format!("file-{m}").as_bytes(), file())
                .await
                .expect("create");
            if mine(dir) && mine(inode(&made)) {
                let name = format!("file-{m}");
                client
                    .rename(dir, name.as_bytes(), dir, b"f", polvo_proto::RenameMode::Replace)
                    .await
                    .expect("rename");
                client.client().shutdown();
                return (dir, inode(&made));
            }
        }
    }
    unreachable!()
}
