//! How many one-way delays of the network an operation takes, exactly: of a region without copies, with one mirror and with two, and with
//! one mirror that is not waited for. The table in docs/replication.md (*Round trips*) is this one.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile};
use polvo_format::NodeId;
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{Durability, FsError, InodeRef, RenameMode, WriteAt};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Of every message, whoever sends it to whom.
const DELAY: Duration = Duration::from_millis(10);
/// Whatever an operation has left behind has been done by then: records are in place, and nodes exchange beacons alone.
const CALM: Duration = Duration::from_secs(3);
const MIB: usize = 1 << 20;

/// The same operations at regions with that many replicas, in the order of [`OPERATIONS`].
async fn delays_of_all(cluster: &mut Cluster) -> Vec<u32> {
    cluster.mirrored().await;
    cluster.network().set_delay(DELAY..=DELAY);
    let place = Place::new(cluster).await;
    let mut found = Vec::new();
    for (what, operation, _) in OPERATIONS {
        // the first time connections are made and space is taken
        place.perform(operation, 0).await;
        let mut taken = Vec::new();
        for turn in 1..=3 {
            taken.push(place.delays(operation, turn).await);
        }
        let least = *taken.iter().min().expect("some were taken");
        // whose bytes are the first in a segment has mirrors take one, too
        let most = if matches!(operation, Overwrite(MIB)) {
            least + 2
        } else {
            least
        };
        assert!(
            taken.iter().all(|delays| (least..=most).contains(delays)),
            "{what}: {taken:?} delays"
        );
        found.push(least);
    }
    found
}

#[derive(Clone, Copy)]
enum Operation {
    Overwrite(usize),
    Append,
    Read(usize),
    /// Right behind another one.
    ReadOn(usize),
    Attributes,
    Lookup,
    Create {
        far: bool,
    },
    Unlink {
        far: bool,
    },
    Rename {
        far: bool,
    },
}

use Operation::*;

/// With their delays without copies, with one mirror and with two.
const OPERATIONS: [(&str, Operation, [u32; 3]); 14] = [
    ("write 4 KiB", Overwrite(4096), [2, 4, 4]),
    ("append 4 KiB", Append, [2, 4, 4]),
    ("write 1 MiB", Overwrite(MIB), [2, 4, 4]),
    ("read 4 KiB", Read(4096), [2, 2, 2]),
    ("read 1 MiB, the first for long", Read(MIB), [2, 4, 4]),
    ("read 1 MiB", ReadOn(MIB), [2, 2, 2]),
    ("attributes", Attributes, [2, 2, 2]),
    ("name not seen before", Lookup, [2, 2, 2]),
    ("create", Create { far: false }, [2, 4, 4]),
    ("create, inode at another node", Create { far: true }, [4, 8, 8]),
    ("unlink", Unlink { far: false }, [2, 4, 4]),
    ("unlink, inode at another node", Unlink { far: true }, [4, 8, 8]),
    ("rename in a directory", Rename { far: false }, [2, 4, 4]),
    (
        "rename to a directory at another node",
        Rename { far: true },
        [6, 10, 10],
    ),
];

/// The same with one mirror that is not waited for.
const ASYNC: [u32; OPERATIONS.len()] = [2, 2, 2, 2, 4, 2, 2, 2, 2, 8, 2, 8, 2, 10];

/// What the operations are done to, and by whom.
struct Place<'c> {
    cluster: &'c Cluster,
    client: Rc<LocalClient>,
    /// Another one, which makes names that the first has not seen.
    other: Rc<LocalClient>,
    dir: InodeRef,
    /// A directory at another node.
    far: InodeRef,
    file: Arc<OpenFile>,
}

/// Numbers of names to try until one belongs where it is to be.
const TRIES: std::ops::Range<u32> = 0..1000;

impl Place<'_> {
    async fn new(cluster: &Cluster) -> Place<'_> {
        let (client, other) = (external(cluster, "client"), external(cluster, "other"));
        let (dir, far) = (
            directory_at(cluster, &client, 1).await,
            directory_at(cluster, &client, 2).await,
        );
        let mut place = Place {
            cluster,
            file: client.open(ROOT).await.expect("the root can be opened"),
            client,
            other,
            dir,
            far,
        };
        let (_, made) = place.make("file", 0, false).await;
        place.file = place.client.open(made).await.expect("open");
        for at in 0..2 {
            place
                .client
                .write(&place.file, (at * MIB) as u64, &pattern(7, MIB))
                .await
                .expect("write");
        }
        place
    }

    /// Is it at the other node, not at that of the directory?
    fn is_at(&self, inode: InodeRef, far: bool) -> bool {
        let dir = if far { self.far } else { self.dir };
        primary(self.cluster, inode) == primary(self.cluster, dir)
    }

    /// Makes a file in the directory whose inode is there, or (`far`) at another node. Its name, which the client has not seen.
    async fn make(&self, what: &str, turn: u32, far: bool) -> (String, InodeRef) {
        for n in TRIES {
            let name = format!("{what}-{turn}-{far}-{n}");
            let made = inode(
                &self
                    .other
                    .create(self.dir, name.as_bytes(), file())
                    .await
                    .expect("create"),
            );
            if self.is_at(made, far) {
                return (name, made);
            }
        }
        panic!("no name belongs there");
    }

    /// One-way delays that it takes.
    async fn delays(&self, operation: Operation, turn: u32) -> u32 {
        let took = self.perform(operation, turn).await;
        let delays = (took.as_nanos() / DELAY.as_nanos()) as u32;
        assert!(took - delays * DELAY < DELAY / 2, "{took:?} are no whole delays");
        delays
    }

    /// How long it takes.
    async fn perform(&self, operation: Operation, turn: u32) -> Duration {
        let (client, dir) = (&self.client, self.dir);
        match operation {
            Overwrite(len) => {
                let bytes = pattern(u64::from(turn), len);
                timed(async { client.write(&self.file, 0, &bytes).await.map(drop) }).await
            }
            Append => {
                let bytes = pattern(u64::from(turn), 4096);
                timed(async { client.write_at(&self.file, WriteAt::End, &bytes).await.map(drop) }).await
            }
            Read(len) => {
                let mut bytes = vec![0; len];
                timed(async { client.read(&self.file, 0, &mut bytes).await.map(drop) }).await
            }
            ReadOn(len) => {
                let mut bytes = vec![0; len];
                timed(async { client.read(&self.file, 0, &mut bytes).await.map(drop) }).await;
                let (before, start) = (client.client().counters().rpcs, Instant::now());
                client.read(&self.file, 0, &mut bytes).await.expect("read");
                let asked = client.client().counters().rpcs - before;
                assert_eq!(asked, 0, "nobody is asked");
                start.elapsed()
            }
            Attributes => timed(async { client.get_attr(self.file.inode()).await.map(drop) }).await,
            Lookup => {
                let (name, _) = self.make("seen", turn, false).await;
                timed(async { client.lookup(dir, name.as_bytes()).await.map(drop) }).await
            }
            Create { far } => {
                for n in TRIES {
                    let (name, mut made) = (format!("created-{turn}-{far}-{n}"), None);
                    let create = async {
                        made = Some(inode(&client.create(dir, name.as_bytes(), file()).await?));
                        Ok::<_, FsError>(())
                    };
                    let took = timed(create).await;
                    if made.is_some_and(|made| self.is_at(made, far)) {
                        return took;
                    }
                }
                panic!("no name belongs there");
            }
            Unlink { far } => {
                let (name, _) = self.make("removed", turn, far).await;
                timed(async { client.unlink(dir, name.as_bytes()).await }).await
            }
            Rename { far } => {
                let (name, _) = self.make(if far { "moved" } else { "renamed" }, turn, false).await;
                let to = if far { self.far } else { dir };
                let new = format!("new-{name}-{far}");
                let rename = client.rename(dir, name.as_bytes(), to, new.as_bytes(), RenameMode::Replace);
                timed(async { rename.await.map(drop) }).await
            }
        }
    }
}

async fn timed<E: std::fmt::Debug>(operation: impl Future<Output = Result<(), E>>) -> Duration {
    tokio::time::sleep(CALM).await;
    let start = Instant::now();
    operation.await.expect("it is done");
    start.elapsed()
}

fn primary(cluster: &Cluster, inode: InodeRef) -> NodeId {
    cluster.map().primary(inode.ino.region()).expect("it is served")
}

async fn directory_at(cluster: &Cluster, client: &LocalClient, node: u16) -> InodeRef {
    for n in TRIES {
        let name = format!("dir-{node}-{n}");
        let made = inode(&client.create(ROOT, name.as_bytes(), directory()).await.expect("create"));
        if primary(cluster, made) == NodeId(node) {
            return made;
        }
    }
    panic!("no name belongs at node {node}");
}

#[test]
fn operations_take_so_many_delays() {
    let mut columns = Vec::new();
    let modes = [
        (1, Durability::Sync),
        (2, Durability::Sync),
        (3, Durability::SyncFlush),
        (2, Durability::Async),
    ];
    for (seed, (replicas, durability)) in (1..).zip(modes) {
        let options = ClusterOptions {
            seed,
            regions_per_node: 1,
            replicas,
            durability,
            segment_shift: Some(22),
            // connections are those of a reactor
            reactors: NonZeroUsize::MIN,
            ..ClusterOptions::default()
        };
        with_options(options, async |cluster| columns.push(delays_of_all(cluster).await));
    }
    let mut table = String::new();
    for (row, (what, _, [none, one, two])) in OPERATIONS.into_iter().enumerate() {
        let expected = [none, one, two, ASYNC[row]];
        let found: Vec<u32> = columns.iter().map(|column| column[row]).collect();
        table += &format!("{what}: {found:?}, not {expected:?}\n").repeat(usize::from(found != expected));
    }
    assert!(
        table.is_empty(),
        "delays without copies, with one mirror, with two, with one that is not waited for:\n{table}"
    );
}
