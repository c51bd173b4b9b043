//! Clusters whose only region is at the first node, and has copies at the others.

use crate::BenchError;
use crate::suite::Context;
use polvo_client::{Client, LocalClient, OpenFile};
use polvo_format::FileKind;
use polvo_proto::{Durability, FsError, InodeRef, NewFile};
use polvo_testbed::cluster::{BenchNode, new_file, root};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// How many replicas there are of each of the places.
pub const REPLICAS: [u8; 3] = [1, 2, 3];
/// Of each node.
const POOL: u64 = 512 << 20;
/// The file that is read and overwritten.
pub const FILE: u64 = 64 << 20;
const MIB: usize = 1 << 20;

/// As a row says how many replicas there are.
pub fn shown(replicas: u8) -> String {
    match replicas {
        1 => "no copies".into(),
        n => format!("{n} replicas"),
    }
}

/// A cluster of as many nodes as there are replicas.
pub struct Place {
    nodes: Vec<BenchNode>,
    dir: PathBuf,
}

/// One for each number of replicas, all there at a time.
pub fn places(context: &Context<'_>, provider: &str) -> Result<Vec<Place>, BenchError> {
    let start = |replicas| Place::start(context, replicas, Durability::default(), provider);
    REPLICAS.into_iter().map(start).collect()
}

/// One without copies, and one with one mirror for each of these modes.
pub fn places_in_modes(context: &Context<'_>, modes: &[Durability], provider: &str) -> Result<Vec<Place>, BenchError> {
    let none = Place::start(context, 1, Durability::default(), provider);
    let others = modes.iter().map(|mode| Place::start(context, 2, *mode, provider));
    std::iter::once(none).chain(others).collect()
}

impl Place {
    /// In a directory that is made for it.
    fn start(context: &Context<'_>, replicas: u8, durability: Durability, provider: &str) -> Result<Place, BenchError> {
        let dir = context
            .scratch
            .join(format!("replicas-{replicas}-{durability}-{provider}"));
        std::fs::create_dir(&dir)?;
        let nodes = BenchNode::start_replicas(&dir, POOL, replicas, durability, provider)?;
        // the first touch of a page is a fault of the operating system, at a mirror as well as at the primary
        for node in &nodes {
            node.node().colocated().pool().enter_pages(0, POOL);
        }
        Ok(Place { nodes, dir })
    }

    /// Where the region is.
    pub fn primary(&self) -> &BenchNode {
        &self.nodes[0]
    }

    /// A client of that kind: `inside`, or over a provider.
    pub fn client(&self, kind: &str) -> Result<Arc<Client>, BenchError> {
        let client = match kind {
            "inside" => self.primary().internal(),
            provider => self.primary().external(provider)?,
        };
        client.start_maintenance();
        Ok(client)
    }

    pub fn end(self) -> Result<(), BenchError> {
        self.nodes.into_iter().try_for_each(BenchNode::stop)?;
        Ok(std::fs::remove_dir_all(&self.dir)?)
    }
}

/// A client on the measuring thread, with a directory of its own.
pub struct User {
    pub client: Arc<Client>,
    pub local: Rc<LocalClient>,
    pub dir: InodeRef,
}

/// A directory.
pub fn directory() -> NewFile {
    NewFile {
        kind: FileKind::Directory,
        mode: 0o755,
        ..new_file()
    }
}

impl User {
    /// Its directory has that name in the root directory.
    pub async fn new(client: Arc<Client>, top: InodeRef, name: &str) -> Result<User, FsError> {
        let local = client.local();
        let made = local.create(top, name.as_bytes(), directory()).await?;
        let dir = InodeRef {
            ino: made.ino,
            generation: made.generation,
        };
        Ok(User { client, local, dir })
    }

    /// A file of [`FILE`] bytes there, overwritten until this client and the nodes have stored to most of the pools, each by a mapping
    /// of its own.
    pub async fn big_file(&self) -> Result<Arc<OpenFile>, FsError> {
        let (_, file) = self.local.create_open(self.dir, b"big", new_file()).await?;
        let chunk = vec![1u8; MIB];
        for at in (0..POOL).step_by(MIB) {
            self.local.write(&file, at % FILE, &chunk).await?;
        }
        Ok(file)
    }

    /// It is not used any more.
    pub fn end(self) {
        let User { client, local, .. } = self;
        drop(local);
        client.shutdown();
    }
}

/// The root directory of a cluster.
pub fn top(primary: &BenchNode) -> Result<InodeRef, BenchError> {
    let client = primary.internal();
    let top = root(&client)?;
    client.shutdown();
    Ok(top)
}
