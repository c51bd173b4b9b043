//! A cluster directory: what a client needs to reach a cluster, in one place.
//!
//! `polvo up` makes one for each development cluster; for a real cluster an administrator writes `/etc/polvo`. It holds
//! `cluster.toml` and, usually, the secret:
//!
//! ```toml
//! id = "3f3f3f3f-3f3f-4f3f-bf3f-3f3f3f3f3f3f"     # may be left out when the secret file names it
//! secret_file = "secret"
//! addresses = ["tcp://10.0.0.1:7400", "tcp://10.0.0.2:7400"]
//! # connect_ms = 2000, rpc_ms = 8000, held_ms = 4000, lease_ms = 30000, token_ms = 1500, away_ms = 10000, stop_ms = 10000
//! ```

use crate::config::ConfigTimeouts;
use crate::text_position::explain;
use crate::{CliError, ClusterId, Context};
use polvo_fabric::{Address, Security};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file in the directory.
pub const CLUSTER_FILE: &str = "cluster.toml";
/// Where commands search when no directory is named.
pub const DEFAULT_DIRS: [&str; 2] = [".polvo", "/etc/polvo"];

/// `cluster.toml` as written.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    id: Option<String>,
    secret_file: PathBuf,
    security: Option<String>,
    addresses: Vec<String>,
    connect_ms: Option<u64>,
    rpc_ms: Option<u64>,
    held_ms: Option<u64>,
    lease_ms: Option<u64>,
    token_ms: Option<u64>,
    away_ms: Option<u64>,
    stop_ms: Option<u64>,
}

/// A cluster as a client knows it before it has connected.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    /// The directory.
    pub dir: PathBuf,
    /// Identity, when the file names it.
    pub id: Option<ClusterId>,
    /// The secret's file.
    pub secret_file: PathBuf,
    /// What becomes of bytes that travel over tcp, when the file says so.
    pub security: Option<Security>,
    /// Nodes to ask.
    pub addresses: Vec<Address>,
    /// Limits.
    pub timeouts: ConfigTimeouts,
}

impl ClusterDir {
    /// Reads `cluster.toml` in `dir`.
    pub fn read(dir: &Path) -> Result<ClusterDir, CliError> {
        let file = dir.join(CLUSTER_FILE);
        let text = std::fs::read_to_string(&file).doing(|| format!("cluster file {}", file.display()))?;
        let known = "known keys: id, secret_file, security, addresses, connect_ms, rpc_ms, held_ms, lease_ms, token_ms, away_ms, stop_ms";
        let raw: ClusterFile = toml::from_str(&text).map_err(|e| explain(&file, &text, &e, known))?;
        let problem = |why: String| CliError::Usage(format!("{}: {why}", file.display()));
        let id = raw.id.map(|id| id.parse()).transpose().map_err(problem)?;
        let security = raw.security.map(|word| word.parse()).transpose().map_err(problem)?;
        let addresses: Vec<Address> = raw.addresses.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err(problem("addresses is empty; name at least one node".into()));
        }
        let mut timeouts = ConfigTimeouts::default();
        for (given, wait) in [
            (raw.connect_ms, &mut timeouts.connect),
            (raw.rpc_ms, &mut timeouts.rpc),
            (raw.held_ms, &mut timeouts.held),
            (raw.lease_ms, &mut timeouts.lease),
            (raw.token_ms, &mut timeouts.token),
            (raw.away_ms, &mut timeouts.away),
            (raw.stop_ms, &mut timeouts.stop),
        ] {
            match given {
                None => {}
                Some(ms @ 1..=3_600_000) => *wait = Duration::from_millis(ms),
                Some(ms) => return Err(problem(format!("a wait of {ms} ms; must be 1 to 3600000"))),
            }
        }
        Ok(ClusterDir {
            dir: dir.into(),
            id,
            secret_file: dir.join(raw.secret_file),
            security,
            addresses,
            timeouts,
        })
    }

    /// True when this user may write there.
    pub fn is_writable(&self) -> bool {
        rustix::fs::access(&self.dir, rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// The directory that a command uses when none is named: the first of [`DEFAULT_DIRS`] that has a `cluster.toml`.
    pub fn find_default() -> Option<PathBuf> {
        DEFAULT_DIRS
            .iter()
            .map(PathBuf::from)
            .find(|d| d.join(CLUSTER_FILE).exists())
    }

    /// Writes `cluster.toml` into `dir`, replacing what is there. `secret_file` relative to `dir`.
    pub fn write(dir: &Path, id: ClusterId, secret_file: &Path, addresses: &[Address]) -> Result<(), CliError> {
        let file = ClusterFile {
            id: Some(id.to_string()),
            secret_file: secret_file.into(),
            security: None,
            addresses: addresses.iter().map(Address::to_string).collect(),
            connect_ms: None,
            rpc_ms: None,
            held_ms: None,
            lease_ms: None,
            token_ms: None,
            away_ms: None,
            stop_ms: None,
        };
        let text = toml::to_string(&file).expect("strings and paths can be written as TOML");
        let path = dir.join(CLUSTER_FILE);
        std::fs::write(&path, format!("# How clients reach this cluster.\n{text}"))
            .doing(|| format!("writing {}", path.display()))
    }
}
