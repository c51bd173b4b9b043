//! Two clients of three nodes, all in this process: what one has written, the other reads at once.
//!
//!     cargo run -p polvo-client --example two_clients
//!
//! Nodes and network are simulated (`polvo_node::sim`). Against nodes that run, a client comes from `Client::connect`, and a thread
//! without a runtime calls `Client::run`.

use polvo_client::{Client, LocalClient, Transfers};
use polvo_cluster::{MapCell, SessionContext};
use polvo_format::{FileKind, Generation, Ino};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::{Cred, FsError, InodeRef, NewFile, RenameMode};
use std::rc::Rc;

const ROOT: InodeRef = InodeRef {
    ino: Ino::ROOT,
    generation: Generation(1),
};

/// A client on a machine of its own.
fn client(cluster: &Cluster, name: &str) -> Rc<LocalClient> {
    let context = SessionContext::new(
        MapCell::new(cluster.map().clone()),
        cluster.client_identity(),
        cluster.next_session(),
        name.into(),
        None,
        cluster.timeouts(),
        None,
    );
    cluster.network().place(context.memory(), name);
    Client::over(context, Cred::Kernel, Transfers::default()).local()
}

fn new(kind: FileKind, mode: u32) -> NewFile {
    NewFile {
        kind,
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
    }
}

async fn demonstrate(cluster: &Cluster) -> Result<(), FsError> {
    let (writer, reader) = (client(cluster, "writer"), client(cluster, "reader"));

    let dir = writer.create(ROOT, b"dir", new(FileKind::Directory, 0o755)).await?;
    let dir = InodeRef {
        ino: dir.ino,
        generation: dir.generation,
    };
    let (_, file) = writer.create_open(dir, b"draft", new(FileKind::File, 0o644)).await?;
    writer.write(&file, 0, b"one POSIX file system ").await?;
    let (at, _) = writer.append(&file, b"out of many machines").await?;
    writer.rename(dir, b"draft", dir, b"text", RenameMode::Replace).await?;

    let found = reader.lookup(dir, b"text").await?;
    println!(
        "{:?}: {} bytes, the last of them appended at {at}",
        found.ino, found.size
    );
    let file = reader
        .open(InodeRef {
            ino: found.ino,
            generation: found.generation,
        })
        .await?;
    let mut bytes = vec![0; found.size as usize];
    reader.read(&file, 0, &mut bytes).await?;
    println!("{}", String::from_utf8_lossy(&bytes));
    assert_eq!(bytes, b"one POSIX file system out of many machines");
    assert_eq!(reader.lookup(dir, b"draft").await, Err(FsError::NotFound));
    Ok(())
}

fn main() {
    run(ClusterOptions::default(), async |cluster| {
        demonstrate(cluster).await.expect("the nodes answer");
    });
}
