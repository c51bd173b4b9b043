//! From what a user typed to a connected client: which cluster, which secret, which path.

use crate::args::{ClusterArgs, Mover, Provider};
use crate::cluster_dir::{ClusterDir, DEFAULT_DIRS};
use crate::config::{Config, ConfigTimeouts};
use crate::secret::Secret;
use crate::url::{SCHEME, Url};
use crate::{CliError, Context};
use polvo_client::{Client, ClientConfig, LocalClient, Transfers};
use polvo_cluster::Timeouts;
use polvo_fabric::{Address, Identity, Role};
use polvo_proto::{Cred, GROUPS_MAX};
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;
use tokio::task::LocalSet;

/// A path in a cluster, as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// `host:port` when the cluster was named by a `polvo://` address; else the cluster of the command line.
    pub authority: Option<String>,
    /// Absolute path in the cluster.
    pub path: Vec<u8>,
}

impl Location {
    /// Parses `polvo://host:port/path` or a path; a relative path starts at the root.
    pub fn parse(text: &OsStr) -> Result<Location, CliError> {
        let bytes = text.as_bytes();
        if bytes.starts_with(SCHEME.as_bytes()) {
            let url = Url::parse(bytes).map_err(CliError::Usage)?;
            return Ok(Location {
                authority: Some(url.authority),
                path: url.path,
            });
        }
        if bytes.is_empty() {
            return Err(CliError::Usage("an empty path names nothing; the root is /".into()));
        }
        let path = if bytes.starts_with(b"/") {
            bytes.to_vec()
        } else {
            [b"/", bytes].concat()
        };
        Ok(Location { authority: None, path })
    }

    /// Parses several; they must lie in one cluster.
    pub fn parse_all<S: AsRef<OsStr>>(texts: &[S]) -> Result<Vec<Location>, CliError> {
        let all: Vec<Location> = texts
            .iter()
            .map(|t| Location::parse(t.as_ref()))
            .collect::<Result<_, _>>()?;
        match all.iter().find(|l| l.authority != all[0].authority) {
            None => Ok(all),
            Some(_) => Err(CliError::Usage(
                "all paths of a command must name the same cluster".into(),
            )),
        }
    }

    /// The path for messages.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}

/// All that is needed to reach a cluster.
#[derive(Clone)]
pub struct Reach {
    /// Nodes to ask.
    pub addresses: Vec<Address>,
    /// Who we are.
    pub identity: Identity,
    /// `shm` or `tcp`, when forced.
    pub provider: Option<String>,
    /// Who moves file data.
    pub transfers: Transfers,
    /// What is read is compared with its checksums.
    pub verify: bool,
    /// Limits.
    pub timeouts: ConfigTimeouts,
    /// Where the cluster's directory is, when that is how it was named.
    pub dir: Option<ClusterDir>,
}

impl Reach {
    /// Resolves which cluster the command line means. `authority`: `host:port` of a `polvo://` address.
    pub fn resolve(args: &ClusterArgs, authority: Option<&str>) -> Result<Reach, CliError> {
        let named = args.cluster_dir.clone();
        // A polvo:// address with a secret file needs no directory, and the default ones may be another cluster's.
        let dir = match (&named, authority, &args.secret_file) {
            (Some(dir), _, _) => Some(ClusterDir::read(dir)?),
            (None, Some(_), Some(_)) => None,
            (None, _, _) => ClusterDir::find_default().map(|d| ClusterDir::read(&d)).transpose()?,
        };
        let addresses = match (authority, &dir) {
            (Some(authority), _) => vec![Address::Tcp(authority.to_string())],
            (None, Some(dir)) => of_provider(&dir.addresses, args.provider),
            (None, None) => return Err(CliError::Usage(no_cluster())),
        };
        let secret_file = args
            .secret_file
            .clone()
            .or_else(|| dir.as_ref().map(|d| d.secret_file.clone()));
        let Some(secret_file) = secret_file else {
            return Err(CliError::Usage(
                "no secret; give --secret-file FILE or --cluster-dir DIR".into(),
            ));
        };
        let secret = Secret::read(&secret_file)?;
        let known = args.cluster.or(dir.as_ref().and_then(|d| d.id)).or(secret.cluster);
        let Some(cluster) = known else {
            let file = secret_file.display();
            return Err(CliError::Usage(format!(
                "{file} does not name the cluster; give --cluster UUID"
            )));
        };
        if let Some(other) = secret.cluster.filter(|id| *id != cluster) {
            let file = secret_file.display();
            return Err(CliError::Usage(format!(
                "{file} is the secret of cluster {other}, not of {cluster}"
            )));
        }
        Ok(Reach {
            addresses,
            identity: Identity {
                cluster: cluster.0,
                secret: secret.secret,
                role: Role::Client,
                security: args
                    .security
                    .or(dir.as_ref().and_then(|d| d.security))
                    .unwrap_or_default(),
            },
            provider: args.provider.map(|p| p.to_string()),
            transfers: args.transfers.map(Mover::transfers).unwrap_or_default(),
            verify: args.verify,
            timeouts: dir.as_ref().map(|d| d.timeouts).unwrap_or_default(),
            dir,
        })
    }

    /// By which a node's configuration says that the others are reached.
    pub fn of_others(config: &Config) -> Result<Reach, CliError> {
        let (cluster, secret) = config.cluster_and_secret()?;
        let others = config.nodes.iter().filter(|node| node.id != config.node);
        Ok(Reach {
            addresses: others.flat_map(|node| node.addresses.clone()).collect(),
            identity: Identity {
                cluster: cluster.0,
                secret: secret.secret,
                role: Role::Client,
                security: config.security,
            },
            provider: None,
            transfers: Transfers::default(),
            verify: false,
            timeouts: config.timeouts,
            dir: None,
        })
    }

    /// Limits of the waits of a command: whoever typed it can type it again, so it waits for a node that is away no longer
    /// than for a connection.
    pub fn command_timeouts(&self) -> Timeouts {
        Timeouts {
            away: self.timeouts.connect,
            ..self.timeouts.cluster()
        }
    }

    /// The client's configuration.
    pub fn client_config(&self, name: String, cred: Cred) -> ClientConfig {
        ClientConfig {
            addresses: self.addresses.clone(),
            identity: self.identity.clone(),
            name,
            provider: self.provider.clone(),
            timeouts: self.command_timeouts(),
            cred,
            transfers: self.transfers,
            verify: self.verify,
        }
    }
}

/// Those of one provider, if one is asked for and has any.
fn of_provider(addresses: &[Address], provider: Option<Provider>) -> Vec<Address> {
    let wanted = |a: &&Address| match provider {
        None => true,
        Some(Provider::Tcp) => matches!(a, Address::Tcp(_)),
        Some(Provider::Shm) => matches!(a, Address::Shm(_)),
    };
    let some: Vec<Address> = addresses.iter().filter(wanted).cloned().collect();
    if some.is_empty() { addresses.to_vec() } else { some }
}

fn no_cluster() -> String {
    format!(
        "no cluster: neither ./{} nor {} has a cluster.toml; start one with `polvo up`, or give --cluster-dir DIR or a \
         polvo://HOST:PORT/ address",
        DEFAULT_DIRS[0], DEFAULT_DIRS[1]
    )
}

/// The caller's own credentials: the nodes check permissions with these.
pub fn own_cred() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred::User {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.iter().take(GROUPS_MAX).map(|g| g.as_raw()).collect(),
    }
}

/// Connects, runs one command with a client that may do what the caller may, and ends the session.
pub fn with_client<T, F>(
    args: &ClusterArgs,
    authority: Option<String>,
    command: &str,
    work: impl FnOnce(Arc<Client>, Rc<LocalClient>) -> F,
) -> Result<T, CliError>
where
    F: Future<Output = Result<T, CliError>>,
{
    with_client_as(own_cred(), args, authority, command, work)
}

/// The same with other credentials.
pub fn with_client_as<T, F>(
    cred: Cred,
    args: &ClusterArgs,
    authority: Option<String>,
    command: &str,
    work: impl FnOnce(Arc<Client>, Rc<LocalClient>) -> F,
) -> Result<T, CliError>
where
    F: Future<Output = Result<T, CliError>>,
{
    with_reach(cred, &Reach::resolve(args, authority.as_deref())?, command, work)
}

/// The same where it is known how the cluster is reached.
pub fn with_reach<T, F>(
    cred: Cred,
    reach: &Reach,
    command: &str,
    work: impl FnOnce(Arc<Client>, Rc<LocalClient>) -> F,
) -> Result<T, CliError>
where
    F: Future<Output = Result<T, CliError>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting the asynchronous runtime".into())?;
    let result = LocalSet::new().block_on(&runtime, async {
        let config = reach.client_config(format!("polvo {command}"), cred);
        let client = Client::connect(config)
            .await
            .doing(|| format!("connecting to {}", shown(&reach.addresses)))?;
        let local = client.local();
        let lease = tokio::task::spawn_local(local.clone().maintain());
        let result = work(client.clone(), local).await;
        client.shutdown();
        // What the session holds is returned; a node that does not answer gets it back when the lease ends.
        let _ = tokio::time::timeout(reach.timeouts.connect, lease).await;
        result
    });
    runtime.shutdown_background();
    result
}

fn shown(addresses: &[Address]) -> String {
    addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_scheme_is_of_the_default_cluster() {
        let at = |text: &str| Location::parse(OsStr::new(text)).unwrap();
        assert_eq!(
            at("/a/b"),
            Location {
                authority: None,
                path: b"/a/b".into()
            }
        );
        assert_eq!(
            at("a"),
            Location {
                authority: None,
                path: b"/a".into()
            }
        );
        assert_eq!(
            at("polvo://h:1/a"),
            Location {
                authority: Some("h:1".into()),
                path: b"/a".into()
            }
        );
        assert!(Location::parse(OsStr::new("")).is_err());
        assert!(Location::parse(OsStr::new("polvo://h/a")).is_err());
    }

    #[test]
    fn names_need_not_be_utf8() {
        let odd = OsStr::from_bytes(b"/\xff\xfe");
        assert_eq!(Location::parse(odd).unwrap().path, b"/\xff\xfe");
    }

    #[test]
    fn a_command_speaks_to_one_cluster() {
        assert!(Location::parse_all(&["polvo://h:1/a", "polvo://h:2/a"]).is_err());
        assert_eq!(Location::parse_all(&["a", "/b"]).unwrap().len(), 2);
    }
}
