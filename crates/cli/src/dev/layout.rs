//! What a development cluster is made of and where it lies: `dev.toml`, and the paths that follow from it.

use crate::args::Provider;
use crate::config::{check_replicas, parse_persistence};
use crate::process::{ProcessId, RunningProcess};
use crate::text_position::explain;
use crate::{CliError, ClusterId, Context};
use polvo_proto::Durability;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Longest path of a UNIX socket that every system takes, in bytes.
const SOCKET_PATH_MAX: usize = 100;

/// Contents of `dev.toml`. Paths are absolute.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct DevCluster {
    /// Identity, a UUID.
    pub id: String,
    /// Number of nodes.
    pub nodes: u16,
    /// Of how many of them it was made; `None`: of all. The others were added.
    #[serde(default)]
    pub first_nodes: Option<u16>,
    /// Bytes of each pool.
    pub size: u64,
    /// Regions a node.
    pub regions_per_node: u16,
    /// At how many nodes each region is kept.
    #[serde(default = "replicas_of_before")]
    pub replicas: u8,
    /// Seconds after which the copies of a node that is away are made elsewhere; `None`: as nodes have it.
    #[serde(default)]
    pub replace_after_s: Option<u64>,
    /// When a change of a region that is kept at several nodes is answered.
    #[serde(default = "durability_of_before")]
    pub durability: String,
    /// Further region sets.
    #[serde(default)]
    pub sets: Vec<String>,
    /// Reactors of a node; `None`: its share of the cores.
    #[serde(default)]
    pub reactors: Option<u16>,
    /// How nodes and clients talk when both ways are there.
    pub provider: String,
    /// Where the pools are.
    pub pool_dir: PathBuf,
    /// Persistence mode of the pools.
    pub persistence: String,
    /// Log level of the nodes.
    pub log_level: String,
    /// Where node 0 mounts the cluster.
    pub mount: Option<PathBuf>,
    /// With these options.
    pub mount_options: String,
    /// TCP port of each node.
    pub ports: Vec<u16>,
    /// Directories that were made besides the cluster's own, outermost first; removed again when they are empty.
    pub made: Vec<PathBuf>,
}

/// Of a cluster that was made before there was a choice.
fn replicas_of_before() -> u8 {
    1
}

/// Of a cluster that was made before there was a choice.
fn durability_of_before() -> String {
    Durability::default().to_string()
}

/// Name of the file.
pub(super) const DEV_FILE: &str = "dev.toml";

/// The right to work on a cluster's directory.
#[must_use]
pub(super) struct DirLock {
    _dir: File,
}

impl DirLock {
    /// Takes it; `up` and `down` never work on one directory at the same time.
    pub(super) fn take(dir: &Path) -> Result<DirLock, CliError> {
        let what = || format!("cluster directory {}", dir.display());
        let open = File::open(dir).doing(what)?;
        match flock(&open, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DirLock { _dir: open }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(CliError::Other(format!(
                "another `polvo up` or `down` works on {} now",
                dir.display()
            ))),
            Err(errno) => Err(errno).doing(what),
        }
    }
}

impl DevCluster {
    /// Reads `dev.toml`; `None` when there is none in `dir`.
    pub fn read(dir: &Path) -> Result<Option<DevCluster>, CliError> {
        let file = dir.join(DEV_FILE);
        let text = match std::fs::read_to_string(&file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.doing(|| file.display().to_string())?,
        };
        let cluster: DevCluster =
            toml::from_str(&text).map_err(|e| explain(&file, &text, &e, "the file is written by `polvo up`"))?;
        let problem = |what: &str| CliError::Usage(format!("{}: {what}", file.display()));
        cluster.id.parse::<ClusterId>().map_err(|why| problem(&why))?;
        parse_persistence(&cluster.persistence).map_err(|why| problem(&why))?;
        if cluster.ports.len() != usize::from(cluster.nodes) || cluster.nodes == 0 {
            return Err(problem("there must be a port for each node"));
        }
        cluster.durability.parse::<Durability>().map_err(|why| problem(&why))?;
        if cluster.first() == 0 || cluster.first() > cluster.nodes {
            return Err(problem("first_nodes must be 1 to nodes"));
        }
        check_replicas(cluster.replicas, usize::from(cluster.first())).map_err(|why| problem(&why))?;
        Ok(Some(cluster))
    }

    /// Writes `dev.toml`.
    pub(super) fn write(&self, dir: &Path) -> Result<(), CliError> {
        assert_eq!(
            self.ports.len(),
            usize::from(self.nodes),
            "there is a port for each node"
        );
        let file = dir.join(DEV_FILE);
        let text = toml::to_string(self).expect("strings, numbers and paths can be written as TOML");
        std::fs::write(
            &file,
            format!("# What `polvo up` has made; `polvo down` removes it.\n{text}"),
        )
        .doing(|| format!("writing {}", file.display()))
    }

    /// The identity.
    pub fn cluster_id(&self) -> ClusterId {
        self.id.parse().expect("checked when it was read, or made by us")
    }

    /// Of how many nodes it was made: those with the lowest numbers.
    pub fn first(&self) -> u16 {
        self.first_nodes.unwrap_or(self.nodes)
    }

    /// Numbers of the nodes.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = u16> + use<> {
        0..self.nodes
    }

    /// The provider.
    pub(super) fn provider(&self) -> Provider {
        if self.provider == Provider::Tcp.to_string() {
            Provider::Tcp
        } else {
            Provider::Shm
        }
    }

    /// Pool of a node.
    pub fn pool(&self, node: u16) -> PathBuf {
        self.pool_dir.join(format!("node{node}.pool"))
    }

    /// Where shm peers meet a node. A UNIX socket's path must be short, so a long directory gets it elsewhere.
    pub(super) fn socket(&self, dir: &Path, node: u16) -> PathBuf {
        let beside = node_dir(dir, node).join("shm.sock");
        match beside.as_os_str().len() <= SOCKET_PATH_MAX {
            true => beside,
            false => self.far_sockets().join(format!("node{node}.sock")),
        }
    }

    /// Directory of the sockets of a cluster whose own has too long a path.
    pub(super) fn far_sockets(&self) -> PathBuf {
        std::env::temp_dir().join(format!("polvo-{}", self.cluster_id().short()))
    }
}

/// Directory of a node.
pub(super) fn node_dir(dir: &Path, node: u16) -> PathBuf {
    dir.join(format!("node{node}"))
}

/// Configuration of a node.
pub(super) fn config_file(dir: &Path, node: u16) -> PathBuf {
    node_dir(dir, node).join("polvod.toml")
}

/// Log of a node.
pub(super) fn log_file(dir: &Path, node: u16) -> PathBuf {
    node_dir(dir, node).join("polvod.log")
}

/// Process id of a node.
pub(super) fn pid_file(dir: &Path, node: u16) -> PathBuf {
    node_dir(dir, node).join("polvod.pid")
}

/// A node's process, if it runs.
pub(super) fn running(dir: &Path, node: u16) -> Option<(ProcessId, RunningProcess)> {
    let id = ProcessId::read(&pid_file(dir, node))?;
    Some((id, id.open()?))
}
