//! The life of `polvod`: open the pool, recover, serve, mount, and come to a clean end.
//!
//! What it tells whoever started it goes to stdout, a line each: `recovering ...` while it does, then `ready ...` once,
//! when every address is bound and the mount, if there is one, is there. `NOTIFY_SOCKET` (systemd) is told as well. The
//! log goes to stderr.

use crate::cluster_map::cluster_map;
use crate::config::{Config, ConfigMount};
use crate::descriptors;
use crate::mount::MountedDir;
use crate::on_thread::on_thread;
use crate::output::say;
use crate::process::ProcessId;
use crate::{CliError, ClusterId, Context};
use polvo_client::Client;
use polvo_fabric::{Address, Identity, Role};
use polvo_node::{Node, NodeConfig, Reactor, SystemClock, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::{Cred, FsError};
use polvo_region::PoolSpace;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tracing::{info, warn};

/// First word of the line on stdout that says that the node is up.
pub const READY: &str = "ready";

/// Runs a node to its end. Returns when it was asked to stop (SIGTERM, SIGINT, a `Shutdown` request), or must not go on.
/// `accept_older_pool`: even if other nodes have seen a later copy of the pool. `starts_anew`: this process will be the next run, too, when
/// others have taken the node's place; so its number stays in its file.
pub fn run(config: &Config, accept_older_pool: bool, starts_anew: bool) -> Result<(), CliError> {
    let (cluster, secret) = config.cluster_and_secret()?;
    descriptors::raise_limit(descriptors::NODE_WANTS);
    let pid_file = config.pid_file.as_deref().map(PidFile::write).transpose()?;
    let space = open_pool(config, cluster)?;
    let node = open_node(config, cluster, secret.secret, space, accept_older_pool)?;
    polvo_fabric::set_serve_busy_poll_budget(config.poll);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting the asynchronous runtime".into())?;
    let result = LocalSet::new().block_on(&runtime, serve(config, &node));
    // A request that hangs in a blocking thread must not keep the process.
    runtime.shutdown_background();
    match &result {
        Err(CliError::Deposed { .. }) if starts_anew => std::mem::forget(pid_file),
        _ => drop(pid_file),
    }
    info!(node = config.node.0, "ended");
    result
}

/// Opens the pool and makes sure that it is this node's.
fn open_pool(config: &Config, cluster: ClusterId) -> Result<Arc<PoolSpace>, CliError> {
    let refuse = |why: String| CliError::Pool {
        pool: config.pool.display().to_string(),
        why,
    };
    if !config.pool.exists() {
        return Err(refuse(format!(
            "not there; make it with: polvo format --config {}",
            config.file.display()
        )));
    }
    let pmem = Pmem::open(&config.pool, config.persistence).map_err(|e| CliError::pmem(&config.pool, e))?;
    info!(
        pool = %config.pool.display(),
        bytes = pmem.len(),
        medium = %pmem.medium(),
        persistence = %pmem.persistence(),
        "pool mapped"
    );
    let space = PoolSpace::open(pmem).map_err(|e| CliError::region(&config.pool, e))?;
    let found = space.identity();
    if found.cluster != cluster.0 {
        return Err(refuse(format!(
            "belongs to cluster {}, not to {cluster}",
            ClusterId(found.cluster)
        )));
    }
    if found.node != config.node {
        return Err(refuse(format!(
            "is the pool of node {}, this is node {}",
            found.node.0, config.node.0
        )));
    }
    Ok(space)
}

fn open_node(
    config: &Config,
    cluster: ClusterId,
    secret: Arc<[u8]>,
    space: Arc<PoolSpace>,
    accept_older_pool: bool,
) -> Result<Arc<Node>, CliError> {
    let node_config = NodeConfig {
        id: config.node,
        identity: Identity {
            cluster: cluster.0,
            secret,
            role: Role::Node(config.node.0),
            security: config.security,
        },
        listen: config.listen.clone(),
        map: cluster_map(config, cluster),
        timeouts: config.timeouts.cluster(),
        transactions: Transactions::default(),
        name: format!("node {}", config.node.0),
        one_sided: config.one_sided,
        accept_older_pool,
        scrub: config.scrub,
        replace_after: config.replace_after,
        reactors: config.reactors,
    };
    let started = Instant::now();
    let mut last = String::new();
    let mut progress = |what: &str, done: u64, total: u64| {
        if what != last || done == total {
            last = what.to_string();
            say(format!("recovering {what}: {done} of {total}"));
        }
    };
    let node = Node::open(space, node_config, Arc::new(SystemClock), &mut progress).map_err(|e| match e {
        FsError::Removed { .. } => CliError::Removed(e),
        e => CliError::Pool {
            pool: config.pool.display().to_string(),
            why: e.to_string(),
        },
    })?;
    info!(took_ms = started.elapsed().as_millis() as u64, "recovered");
    Ok(node)
}

async fn serve(config: &Config, node: &Arc<Node>) -> Result<(), CliError> {
    let mut terminate = signal(SignalKind::terminate()).doing(|| "handling SIGTERM".into())?;
    let mut interrupt = signal(SignalKind::interrupt()).doing(|| "handling SIGINT".into())?;

    let (bound_tx, bound_rx) = oneshot::channel();
    let serving = {
        let node = node.clone();
        async move {
            let ready = |addresses: &[Address]| drop(bound_tx.send(addresses.to_vec()));
            node.serve(Reactor::spawn, ready).await
        }
    };
    let mut serving = tokio::task::spawn_local(serving);
    // `serve` drops the sender when it fails before it has bound its addresses.
    let Ok(bound) = bound_rx.await else {
        return Err(match (&mut serving).await {
            Ok(Err(e)) => refusal(config, &e).unwrap_or_else(|| CliError::Listen(e.to_string())),
            Ok(Ok(())) => CliError::Listen("stopped before it was ready".into()),
            Err(join) => CliError::Other(format!("the node failed: {join}")),
        });
    };
    for address in &bound {
        info!(%address, "listening");
    }

    let mounted = match &config.mount {
        None => None,
        Some(mount) => match mount_in_node(node, mount).await {
            Ok(mounted) => Some(mounted),
            Err(e) => {
                node.stop();
                let _ = tokio::time::timeout(config.timeouts.stop, &mut serving).await;
                return Err(e);
            }
        },
    };
    announce_ready(&bound, config.mount.as_ref());

    let ended = tokio::select! {
        _ = terminate.recv() => {
            info!("SIGTERM: stopping");
            None
        }
        _ = interrupt.recv() => {
            info!("SIGINT: stopping");
            None
        }
        () = node.stopped() => None,
        result = &mut serving => Some(result),
    };
    sd_notify("STOPPING=1");
    let deadline = tokio::time::Instant::now() + config.timeouts.stop;
    let refused = node.refusal();
    // The mount goes first, while the node still serves what the kernel has yet to write.
    if let Some(mounted) = mounted {
        take_away(mounted, refused.is_some(), deadline).await;
    }
    let result = match ended {
        Some(result) => result,
        None => {
            node.stop();
            tokio::time::timeout_at(deadline, &mut serving)
                .await
                .unwrap_or_else(|_| {
                    warn!("stopping takes too long; ending all the same");
                    Ok(refused.map_or(Ok(()), Err))
                })
        }
    };
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) => Err(refusal(config, &e).unwrap_or_else(|| CliError::Fs {
            what: format!("node {}", config.node.0),
            source: e,
        })),
        Err(join) => Err(CliError::Other(format!("the node failed: {join}"))),
    }
}

/// Unmounts what is mounted in the node, until `deadline`. `by_force`: the node does not serve any more, so what the kernel has yet to
/// write cannot be waited for; programs that use the mount get errors.
async fn take_away(mounted: MountedDir, by_force: bool, deadline: tokio::time::Instant) {
    let unmounting = on_thread("unmount", move || match by_force {
        true => mounted.unmount_by_force(),
        false => mounted.unmount(),
    });
    match tokio::time::timeout_at(deadline, unmounting).await {
        Ok(Ok(Ok(()))) => info!("unmounted"),
        Ok(Ok(Err(e)) | Err(e)) => warn!("{e}"),
        Err(_) => warn!("unmounting takes too long; leaving it"),
    }
}

/// The error of a node that must not go on, if that is what this one is.
fn refusal(config: &Config, error: &FsError) -> Option<CliError> {
    let why = error.to_string();
    match error {
        FsError::SetBack { .. } => Some(CliError::SetBack {
            pool: config.pool.display().to_string(),
            why,
        }),
        FsError::Deposed { .. } => Some(CliError::Deposed {
            node: config.node.0,
            why,
        }),
        FsError::Removed { .. } => Some(CliError::Removed(error.clone())),
        _ => None,
    }
}

/// Mounts from a thread of its own: the kernel's first requests need this one to serve.
async fn mount_in_node(node: &Arc<Node>, mount: &ConfigMount) -> Result<MountedDir, CliError> {
    let client = Client::internal(node.colocated(), format!("mount {}", mount.dir.display()), Cred::Kernel);
    let (dir, options) = (mount.dir.clone(), mount.options.clone());
    let source = format!("polvo-node{}", node.id().0);
    on_thread("mount", move || MountedDir::mount(client, &source, &dir, &options)).await?
}

fn announce_ready(bound: &[Address], mount: Option<&ConfigMount>) {
    let addresses: Vec<String> = bound.iter().map(Address::to_string).collect();
    let mounted = mount
        .map(|m| format!(" mounted {}", m.dir.display()))
        .unwrap_or_default();
    say(format!("{READY} {}{mounted}", addresses.join(" ")));
    sd_notify("READY=1");
}

/// Tells systemd, when it asked to be told (sd_notify(3)).
fn sd_notify(state: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let path = path.to_string_lossy().into_owned();
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|a| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &a));
    if let Err(e) = sent {
        warn!("NOTIFY_SOCKET {path}: {e}");
    }
}

/// The process id in a file, for as long as we run.
struct PidFile<'a>(&'a Path);

impl PidFile<'_> {
    fn write(path: &Path) -> Result<PidFile<'_>, CliError> {
        if let Some(running) = ProcessId::read(path).filter(|id| *id != ProcessId::own())
            && running.open().is_some()
        {
            let why = format!(
                "{}: node runs already as process {}; stop it first",
                path.display(),
                running.pid
            );
            return Err(CliError::Other(why));
        }
        ProcessId::own().write(path)?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}
