//! Clusters whose only region is at the first node, and has copies at the others.

use crate::BenchError;
use crate::cluster::{BenchNode, ClusterPlan, PATIENT, new_file, root};
use crate::cores::SERVING;
use crate::crowd::touch;
use crate::suite::Context;
use polvo_client::{Client, LocalClient, OpenFile};
use polvo_format::{FileKind, RegionId};
use polvo_proto::{FsError, InodeRef, NewFile, ReplicaRole};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many replicas there are of each of the places.
pub const REPLICAS: [u16; 3] = [1, 2, 3];
/// Of each node.
const POOL: u64 = 1 << 30;
/// The file that is read and overwritten.
pub const FILE: u64 = 64 << 20;
const MIB: usize = 1 << 20;
/// Copies are made by then.
const MADE: Duration = Duration::from_secs(60);

/// As a row says how many replicas there are.
pub fn shown(replicas: u16) -> String {
    match replicas {
        1 => "no copies".into(),
        n => format!("{n} replicas"),
    }
}

/// A cluster of as many nodes as there are replicas.
pub struct Place {
    pub nodes: Vec<BenchNode>,
    dir: PathBuf,
}

/// One for each number of replicas, all there at a time.
pub fn places(context: &Context<'_>, provider: &str) -> Result<Vec<Place>, BenchError> {
    let start = |replicas| {
        let dir = context.scratch.join(format!("replicas-{replicas}-{provider}"));
        let place = Place::start(&dir, replicas, replicas, provider, POOL)?;
        touch(&place.nodes[..1], POOL)?;
        Ok(place)
    };
    REPLICAS.into_iter().map(start).collect()
}

impl Place {
    /// So many nodes, which reach each other that way. On return the copies are mirrors.
    pub fn start(dir: &Path, nodes: u16, replicas: u16, provider: &str, pool_len: u64) -> Result<Place, BenchError> {
        std::fs::create_dir(dir)?;
        let plan = ClusterPlan {
            nodes,
            replicas,
            provider: Some(provider),
            first_core: Some(SERVING),
            timeouts: PATIENT,
            ..ClusterPlan::one_node(dir, pool_len)
        };
        let nodes = plan.start()?;
        let dir = dir.to_owned();
        let place = Place { nodes, dir };
        place.mirrored()?;
        Ok(place)
    }

    /// Waits until all copies are mirrors.
    fn mirrored(&self) -> Result<(), BenchError> {
        let begun = Instant::now();
        let are_mirrors = || {
            let map = self.nodes[0].node().map();
            let region = map.region(RegionId(0));
            region.is_some_and(|info| info.replicas.iter().all(|replica| replica.role != ReplicaRole::Backup))
        };
        while !are_mirrors() {
            if begun.elapsed() > MADE {
                return Err("copies are not made".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
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

    /// A file of [`FILE`] bytes there. It is overwritten until this client and the nodes have stored to most of the pools: a mapping's
    /// first store to a page is a fault of the operating system, which is not what is measured.
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

/// The root directory of a place.
pub fn top(place: &Place) -> Result<InodeRef, BenchError> {
    let client = place.primary().internal();
    let top = root(&client)?;
    client.shutdown();
    Ok(top)
}
