//! `polvo up`

use super::down::{remove_all, stop_nodes};
use super::layout::{DevCluster, DirLock, config_file, log_file, node_dir, pid_file, running};
use super::ports::free_ports;
use crate::args::{ClusterArgs, DevMedium, Provider, UpArgs};
use crate::cluster_dir::ClusterDir;
use crate::cluster_map::cluster_map;
use crate::config::{Config, check_replicas, check_sets, default_replicas, parse_persistence, reactors_of};
use crate::connect::{Reach, own_cred, with_client_as};
use crate::daemon::READY;
use crate::daemon_args::DAEMON;
use crate::detached::{Detached, this_program};
use crate::format::{FormatJob, format};
use crate::node_add::add_node;
use crate::output::say;
use crate::process::ProcessId;
use crate::secret::Secret;
use crate::size::Size;
use crate::status::wait_until_whole;
use crate::{CliError, ClusterId, Context, Exit, progress};
use polvo_fabric::Address;
use polvo_format::NodeId;
use polvo_proto::{Cred, InodeRef, RegionSet, SetAttr};
use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time for a clean end of the nodes that a failed `up` has started.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);
/// Nodes that are just ending keep their pools until they have.
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// Copies of empty regions take some milliseconds; where they take that long something is wrong, and the cluster can be used without.
const COPIES_WITHIN: Duration = Duration::from_secs(10);

/// Starts again with other ports when somebody was faster at one of those chosen.
const PORT_TRIES: u32 = 4;
/// Nodes of a new cluster, unless it is told so.
const NODES: u16 = 3;
/// Where pools go by default.
const TMPFS: &str = "/dev/shm";

/// Runs the command.
pub fn up(args: &UpArgs) -> Result<(), CliError> {
    check(args)?;
    let mut made = Vec::new();
    make_dirs(&args.dir, &mut made)?;
    let dir = args.dir.canonicalize().doing(|| args.dir.display().to_string())?;
    let lock = DirLock::take(&dir)?;
    let started = match DevCluster::read(&dir)? {
        Some(cluster) => restart(args, &dir, cluster)?,
        None => start_new(args, &dir, made)?,
    };
    drop(lock);
    say(summary(&args.dir, &dir, &started).trim_end());
    Ok(())
}

/// What can be said of the command line alone.
fn check(args: &UpArgs) -> Result<(), CliError> {
    if let Some(size) = args.size.filter(|s| s.0 < 32 << 20) {
        return Err(CliError::Usage(format!("--size {size}: a pool needs at least 32 MiB")));
    }
    if let Some(mode) = &args.persistence {
        parse_persistence(mode).map_err(CliError::Usage)?;
    }
    Ok(())
}

/// Replicas that a new cluster of so many nodes is to have.
fn replicas_of_new(args: &UpArgs, nodes: u16) -> Result<u8, CliError> {
    let wanted = args.replicas.unwrap_or_else(|| default_replicas(usize::from(nodes)));
    check_replicas(wanted, usize::from(nodes)).map_err(|why| CliError::Usage(format!("--replicas {wanted}: {why}")))
}

/// Kinds of regions that a new cluster of so many nodes is to have, the default first.
fn sets_of_new(args: &UpArgs, replicas: u8, nodes: u16) -> Result<Vec<RegionSet>, CliError> {
    let default = RegionSet {
        replicas,
        durability: args.durability.unwrap_or_default(),
    };
    check_sets(default, &args.sets, usize::from(nodes)).map_err(|why| CliError::Usage(format!("--set: {why}")))
}

/// Those beside the default, as configurations name them.
fn further(sets: &[RegionSet]) -> Vec<String> {
    sets[1..].iter().map(RegionSet::to_string).collect()
}

/// What `up` has to report.
struct Started {
    cluster: DevCluster,
    running: Running,
}

/// What has come of starting nodes.
#[derive(Default)]
struct Running {
    /// With the numbers of their processes.
    nodes: Vec<(u16, u32)>,
    /// Those that ended at once, since the cluster has removed them.
    removed: Vec<u16>,
    took: Duration,
}

/// Makes a directory and those above it; what was made is noted, outermost first.
fn make_dirs(dir: &Path, made: &mut Vec<PathBuf>) -> Result<(), CliError> {
    let full = std::path::absolute(dir).doing(|| dir.display().to_string())?;
    // Only what is not there: a mount whose process has died answers with another error.
    let is_missing = |d: &&Path| {
        d.symlink_metadata()
            .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    };
    let missing: Vec<&Path> = full.ancestors().take_while(is_missing).collect();
    for dir in missing.into_iter().rev() {
        std::fs::create_dir(dir).doing(|| format!("making directory {}", dir.display()))?;
        made.push(dir.to_path_buf());
    }
    Ok(())
}

fn start_new(args: &UpArgs, dir: &Path, made: Vec<PathBuf>) -> Result<Started, CliError> {
    let mut listed = std::fs::read_dir(dir).doing(|| dir.display().to_string())?;
    if listed.next().is_some() {
        return Err(CliError::Usage(format!(
            "{} is neither empty nor the directory of a development cluster; choose another --dir",
            dir.display()
        )));
    }
    let mut cluster = plan(args, dir).inspect_err(|_| {
        for made in made.iter().rev() {
            let _ = std::fs::remove_dir(made); // it stays where somebody has put something into it
        }
    })?;
    cluster.made = made;
    let result = build(args, dir, &mut cluster);
    if result.is_err() {
        stop_nodes(dir, &cluster, GIVEN_UP_WITHIN);
        remove_all(dir, &cluster);
    }
    let running = result?;
    Ok(Started { cluster, running })
}

/// Decides everything that the command line leaves open.
fn plan(args: &UpArgs, dir: &Path) -> Result<DevCluster, CliError> {
    let id = ClusterId::random();
    let nodes = args.nodes.unwrap_or(NODES);
    let replicas = replicas_of_new(args, nodes)?;
    let sets = sets_of_new(args, replicas, nodes)?;
    let size = args.size.unwrap_or(Size(1 << 30));
    let on_tmpfs = Path::new(TMPFS).join(format!("polvo-{}", id.short()));
    let pool_dir = match (&args.pool_dir, args.medium) {
        (Some(parent), _) => {
            let parent = std::path::absolute(parent).doing(|| parent.display().to_string())?;
            parent.join(format!("polvo-{}", id.short()))
        }
        (None, Some(DevMedium::Tmpfs)) => on_tmpfs,
        (None, Some(DevMedium::File)) => dir.join("pools"),
        (None, None) if has_room(Path::new(TMPFS), size.0.saturating_mul(u64::from(nodes))) => on_tmpfs,
        (None, None) => {
            eprintln!(
                "polvo: {TMPFS} has no room for {nodes} pools of {size}; they go to {}",
                dir.display()
            );
            dir.join("pools")
        }
    };
    Ok(DevCluster {
        id: id.to_string(),
        nodes,
        first_nodes: None,
        size: size.0,
        regions_per_node: args.regions_per_node.unwrap_or_else(|| default_regions(size, &sets)),
        replicas,
        replace_after_s: args.replace_after,
        durability: args.durability.unwrap_or_default().to_string(),
        sets: further(&sets),
        reactors: args.reactors,
        provider: args.provider.unwrap_or(Provider::Shm).to_string(),
        pool_dir,
        persistence: args.persistence.clone().unwrap_or_else(|| "auto".into()),
        log_level: args.log_level.clone().unwrap_or_else(|| "info".into()),
        mount: args
            .mount
            .as_deref()
            .map(std::path::absolute)
            .transpose()
            .doing(|| "the mount point".into())?,
        mount_options: args.mount_options.clone().unwrap_or_default(),
        ports: free_ports(usize::from(nodes))?,
        made: Vec::new(),
    })
}

/// True when a directory's file system, and this machine's memory if it is a tmpfs, have `bytes` to spare.
fn has_room(dir: &Path, bytes: u64) -> bool {
    let Ok(stat) = rustix::fs::statvfs(dir) else {
        return false;
    };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let available = available.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    // Some memory must be left for the programs.
    stat.f_bavail * stat.f_frsize >= bytes && available.is_none_or(|kib| kib * 1024 >= bytes / 4 * 5)
}

/// Makes everything and starts the nodes.
fn build(args: &UpArgs, dir: &Path, cluster: &mut DevCluster) -> Result<Running, CliError> {
    cluster.write(dir)?;
    if let Some(mount) = cluster.mount.clone() {
        check_mount_point(&mount)?;
        make_dirs(&mount, &mut cluster.made)?;
    }
    make_dirs(&cluster.pool_dir.clone(), &mut cluster.made)?;
    cluster.write(dir)?;
    Secret::random(cluster.cluster_id()).write_new(&dir.join("secret"))?;
    let all: Vec<u16> = cluster.node_ids().collect();
    format_pools(cluster, &all, !args.no_checksums)?;
    for attempt in 1.. {
        write_configs(dir, cluster)?;
        match start_nodes(args, dir, cluster, &all) {
            Err(e) if e.exit == Some(Exit::Address) && attempt < PORT_TRIES => {
                stop_nodes(dir, cluster, GIVEN_UP_WITHIN);
                cluster.ports = free_ports(usize::from(cluster.nodes))?;
                cluster.write(dir)?;
            }
            Err(e) => return Err(e.error),
            Ok(started) => {
                give_root_to_user(dir)?;
                wait_for_copies(args, dir)?;
                return Ok(started);
            }
        }
    }
    unreachable!("the loop ends by returning")
}

/// What is stored from now on is to outlive a node: all regions of a new cluster have their copies first.
fn wait_for_copies(args: &UpArgs, dir: &Path) -> Result<(), CliError> {
    let within = COPIES_WITHIN.min(Duration::from_secs(args.wait));
    let bar = progress::spinner("making copies", false);
    let is_whole = wait_until_whole(&cluster_args(dir), within)?;
    bar.finish_and_clear();
    if !is_whole {
        eprintln!(
            "polvo: after {} s regions lack copies yet; polvo status names them, {} has why",
            within.as_secs(),
            log_file(dir, 0).display()
        );
    }
    Ok(())
}

/// Where commands find the cluster.
fn cluster_args(dir: &Path) -> ClusterArgs {
    ClusterArgs {
        cluster_dir: Some(dir.to_path_buf()),
        ..ClusterArgs::default()
    }
}

/// The root directory of a new cluster is the superuser's. It becomes the user's who makes the cluster: nobody else could.
fn give_root_to_user(dir: &Path) -> Result<(), CliError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        return Ok(());
    }
    let owner = SetAttr {
        uid: Some(uid.as_raw()),
        gid: Some(gid.as_raw()),
        ..SetAttr::default()
    };
    with_client_as(Cred::Kernel, &cluster_args(dir), None, "up", async |_, local| {
        let root = local.walk(b"/", true).await.doing(|| "the root directory".into())?;
        let root = InodeRef {
            ino: root.ino,
            generation: root.generation,
        };
        local
            .set_attr(root, owner)
            .await
            .doing(|| "giving you the root directory".into())?;
        Ok(())
    })
}

/// What can be seen before anything is made; the node checks more when it mounts.
fn check_mount_point(mount: &Path) -> Result<(), CliError> {
    let refuse = |why: &str| {
        Err(CliError::Mount {
            dir: mount.display().to_string(),
            why: why.into(),
        })
    };
    match std::fs::read_dir(mount) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => refuse("not empty (or something is mounted there already); choose an empty directory"),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => refuse("not a directory"),
        // A mount whose process has died; the node takes it away.
        Err(_) => Ok(()),
    }
}

fn format_pools(cluster: &DevCluster, nodes: &[u16], checksums: bool) -> Result<(), CliError> {
    let persistence = parse_persistence(&cluster.persistence).map_err(CliError::Usage)?;
    let job = |node: u16| FormatJob {
        pool: cluster.pool(node),
        cluster: cluster.cluster_id(),
        node: NodeId(node),
        size: Some(Size(cluster.size)),
        persistence,
        checksums,
        force: false,
    };
    // Side by side: most of the time goes into making the pages.
    std::thread::scope(|scope| {
        let making: Vec<_> = nodes
            .iter()
            .map(|n| scope.spawn(move || format(&job(*n)).map(drop)))
            .collect();
        making
            .into_iter()
            .try_for_each(|t| t.join().expect("formatting does not panic"))
    })
}

/// Addresses of a node, the preferred one first.
fn addresses(dir: &Path, cluster: &DevCluster, node: u16) -> Vec<Address> {
    let tcp = Address::Tcp(format!("127.0.0.1:{}", cluster.ports[usize::from(node)]));
    let shm = Address::Shm(cluster.socket(dir, node));
    match cluster.provider() {
        Provider::Tcp => vec![tcp, shm],
        Provider::Shm => vec![shm, tcp],
    }
}

/// Writes the configuration of every node and of the clients.
fn write_configs(dir: &Path, cluster: &DevCluster) -> Result<(), CliError> {
    let mut all = Vec::new();
    for node in cluster.node_ids() {
        all.push(addresses(dir, cluster, node));
        let node_dir = node_dir(dir, node);
        std::fs::create_dir_all(&node_dir).doing(|| format!("making directory {}", node_dir.display()))?;
        if let Some(parent) = cluster.socket(dir, node).parent() {
            std::fs::create_dir_all(parent).doing(|| format!("making directory {}", parent.display()))?;
        }
    }
    for node in cluster.node_ids() {
        let file = config_file(dir, node);
        std::fs::write(&file, config_text(cluster, node, &all)).doing(|| format!("writing {}", file.display()))?;
    }
    let flat: Vec<Address> = all.into_iter().flatten().collect();
    ClusterDir::write(dir, cluster.cluster_id(), Path::new("secret"), &flat)
}

/// A string as TOML has it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_string()).to_string()
}

fn config_text(cluster: &DevCluster, node: u16, addresses: &[Vec<Address>]) -> String {
    let path = |p: &Path| quoted(&p.to_string_lossy());
    let share = reactors_of(usize::from(cluster.nodes));
    let reactors = cluster.reactors.map_or(share.get(), usize::from);
    let mut text = format!(
        "# Node {node} of a development cluster, written by `polvo up`. polvod --print-config explains every key.\n\n\
         [cluster]\nid = {}\nsecret_file = \"../secret\"\nregions_per_node = {}\nreplicas = {}\ndurability = {}\nsets = [{}]\n",
        quoted(&cluster.id),
        cluster.regions_per_node,
        cluster.replicas,
        quoted(&cluster.durability),
        cluster
            .sets
            .iter()
            .map(|set| quoted(set))
            .collect::<Vec<_>>()
            .join(", ")
    );
    if let Some(seconds) = cluster.replace_after_s {
        let _ = writeln!(text, "replace_after_s = {seconds}");
    }
    // Nodes of one host talk over shm, unless they take each other to be on different ones.
    let tcp = cluster.provider() == Provider::Tcp;
    for (id, list) in addresses.iter().enumerate() {
        let list: Vec<String> = list.iter().map(|a| quoted(&a.to_string())).collect();
        let _ = write!(
            text,
            "\n[[cluster.nodes]]\nid = {id}\naddresses = [{}]\n",
            list.join(", ")
        );
        if id >= usize::from(cluster.first()) {
            text += "added = true\n";
        }
        if tcp {
            let _ = writeln!(
                text,
                "# as if on machines of their own: tcp, unless a client asks for shm\nhost = \"dev{id}\""
            );
        }
    }
    let _ = write!(
        text,
        "\n[node]\nid = {node}\nreactors = {reactors}\npid_file = \"polvod.pid\"\n\n[pool]\npath = {}\npersistence = {}\n\n[log]\nlevel = {}\n",
        path(&cluster.pool(node)),
        quoted(&cluster.persistence),
        quoted(&cluster.log_level)
    );
    if let (0, Some(mount)) = (node, &cluster.mount) {
        let _ = write!(
            text,
            "\n[mount]\ndir = {}\noptions = {}\n",
            path(mount),
            quoted(&cluster.mount_options)
        );
    }
    text
}

/// Starts the nodes of a cluster that are missing.
fn restart(args: &UpArgs, dir: &Path, mut cluster: DevCluster) -> Result<Started, CliError> {
    // Nodes that were killed a moment ago still have their pools.
    for node in cluster.node_ids() {
        if let Some(id) = ProcessId::read(&pid_file(dir, node)) {
            id.wait_if_ending(ENDED_WITHIN);
        }
    }
    let node0_down = running(dir, 0).is_none();
    adopt(args, dir, &mut cluster, node0_down)?;
    // those that have no pool yet come to a cluster that runs
    let missing = cluster.node_ids().filter(|n| running(dir, *n).is_none());
    let is_new = |node: &u16| *node >= cluster.first() && !cluster.pool(*node).exists();
    let (new, missing): (Vec<u16>, Vec<u16>) = missing.partition(is_new);
    let mut started = start_missing(args, dir, &mut cluster, &missing)?;
    if !new.is_empty() {
        let more = add_nodes(args, dir, &cluster, &new)?;
        started.nodes.extend(more.nodes);
        started.took += more.took;
    }
    let running = started;
    Ok(Started { cluster, running })
}

/// Starts nodes that have pools.
fn start_missing(args: &UpArgs, dir: &Path, cluster: &mut DevCluster, missing: &[u16]) -> Result<Running, CliError> {
    if missing.is_empty() {
        return Ok(Running::default());
    }
    if let Some(mount) = cluster.mount.clone().filter(|_| missing.contains(&0)) {
        check_mount_point(&mount)?;
        make_dirs(&mount, &mut cluster.made)?;
        cluster.write(dir)?;
    }
    write_configs(dir, cluster)?;
    start_nodes(args, dir, cluster, missing).map_err(|e| e.error)
}

/// Has the cluster take nodes in, and starts them. One that was taken in and did not start is found by the next `up`.
fn add_nodes(args: &UpArgs, dir: &Path, cluster: &DevCluster, new: &[u16]) -> Result<Running, CliError> {
    if !has_room(&cluster.pool_dir, cluster.size.saturating_mul(new.len() as u64)) {
        return Err(CliError::Usage(format!(
            "{} has no room for {} pools more of {}",
            cluster.pool_dir.display(),
            new.len(),
            Size(cluster.size)
        )));
    }
    write_configs(dir, cluster)?;
    for node in new {
        let config = Config::read(&config_file(dir, *node))?;
        let map = cluster_map(&config, cluster.cluster_id());
        let info = map.node(NodeId(*node)).expect("its configuration names it");
        let reach = Reach::resolve(&cluster_args(dir), None)?;
        add_node(own_cred(), &reach, info.clone())?;
    }
    format_pools(cluster, new, !args.no_checksums)?;
    start_nodes(args, dir, cluster, new).map_err(|e| e.error)
}

/// Takes over what the command line says of a cluster that is there already, as far as it can still be changed.
fn adopt(args: &UpArgs, dir: &Path, cluster: &mut DevCluster, node0_down: bool) -> Result<(), CliError> {
    let fixed = |what: &str, was: String, asked: String| match was == asked {
        true => Ok(()),
        false => Err(CliError::Usage(format!(
            "the cluster in {} has {what} {was}, not {asked}; `polvo down --dir {}` removes it",
            dir.display(),
            dir.display()
        ))),
    };
    if let Some(nodes) = args.nodes.filter(|nodes| *nodes <= cluster.nodes) {
        fixed("--nodes", cluster.nodes.to_string(), nodes.to_string())?;
    }
    if let Some(size) = args.size {
        fixed("--size", Size(cluster.size).to_string(), size.to_string())?;
    }
    if let Some(regions) = args.regions_per_node {
        fixed(
            "--regions-per-node",
            cluster.regions_per_node.to_string(),
            regions.to_string(),
        )?;
    }
    if let Some(replicas) = args.replicas {
        fixed("--replicas", cluster.replicas.to_string(), replicas.to_string())?;
    }
    if let Some(durability) = args.durability {
        fixed("--durability", cluster.durability.clone(), durability.to_string())?;
    }
    if !args.sets.is_empty() {
        let asked = further(&sets_of_new(args, cluster.replicas, cluster.first())?);
        fixed("--set", cluster.sets.join(" --set "), asked.join(" --set "))?;
    }
    if let Some(provider) = args.provider {
        fixed("--provider", cluster.provider.clone(), provider.to_string())?;
    }
    if args.pool_dir.is_some() || args.medium.is_some() {
        let place = cluster.pool_dir.display();
        return Err(CliError::Usage(format!(
            "the pools of this cluster are in {place} already; leave out --medium and --pool-dir"
        )));
    }
    if args.reactors.is_some() {
        cluster.reactors = args.reactors;
    }
    if args.replace_after.is_some() {
        cluster.replace_after_s = args.replace_after;
    }
    if let Some(mode) = &args.persistence {
        cluster.persistence = mode.clone();
    }
    if let Some(level) = &args.log_level {
        cluster.log_level = level.clone();
    }
    if let Some(options) = &args.mount_options {
        cluster.mount_options = options.clone();
    }
    if let Some(mount) = &args.mount {
        let mount = std::path::absolute(mount).doing(|| mount.display().to_string())?;
        if cluster.mount.as_ref() != Some(&mount) && !node0_down {
            return Err(CliError::Usage(format!(
                "node 0 runs without a mount at {}; use: polvo mount --cluster-dir {} / {}",
                mount.display(),
                dir.display(),
                mount.display()
            )));
        }
        cluster.mount = Some(mount);
    }
    if let Some(more) = args.nodes.and_then(|nodes| nodes.checked_sub(cluster.nodes)) {
        cluster.first_nodes = Some(cluster.first()).filter(|first| *first < cluster.nodes + more);
        cluster.ports.extend(free_ports(usize::from(more))?);
        cluster.nodes += more;
    }
    cluster.write(dir)
}

/// A failure to start, with the exit code of the node that failed.
struct StartFailure {
    error: CliError,
    exit: Option<Exit>,
}

impl From<CliError> for StartFailure {
    fn from(error: CliError) -> Self {
        StartFailure { error, exit: None }
    }
}

/// Starts some nodes and waits until all of them are ready that are not removed; on failure none of them runs.
fn start_nodes(args: &UpArgs, dir: &Path, cluster: &DevCluster, nodes: &[u16]) -> Result<Running, StartFailure> {
    let program = this_program()?;
    let begun = Instant::now();
    let mut children: Vec<(u16, Detached)> = Vec::new();
    let result = (|| {
        for node in nodes {
            let _ = std::fs::remove_file(pid_file(dir, *node));
            let mut polvod = Command::new(&program);
            polvod.arg0(DAEMON).arg("--config").arg(config_file(dir, *node));
            let child = Detached::start(polvod, &log_file(dir, *node))?;
            children.push((*node, child));
        }
        let wait = Duration::from_secs(args.wait);
        let (mut started, mut removed) = (Vec::new(), Vec::new());
        let bar = progress::spinner("starting", false);
        for (node, child) in &mut children {
            let told = |line: &str| bar.set_message(format!("node {node}: {line}"));
            match child.wait_for(READY, begun + wait, told) {
                Ok(_) => started.push((*node, child.pid())),
                Err(failure) => {
                    let code = failure.status.and_then(|status| status.code());
                    if code == Some(Exit::Removed as i32) {
                        removed.push(*node);
                        continue;
                    }
                    return Err(StartFailure {
                        error: CliError::Other(failure.explain(&format!("node {node}"), wait)),
                        exit: (code == Some(Exit::Address as i32)).then_some(Exit::Address),
                    });
                }
            }
        }
        bar.finish_and_clear();
        Ok((started, removed))
    })();
    match result {
        Ok((nodes, removed)) => Ok(Running {
            nodes,
            removed,
            took: begun.elapsed(),
        }),
        Err(failure) => {
            // In good order where that is possible: node 0 takes its mount away.
            match nodes.len() == usize::from(cluster.nodes) {
                true => drop(stop_nodes(dir, cluster, GIVEN_UP_WITHIN)),
                false => {
                    let begun = nodes.iter().filter_map(|node| running(dir, *node));
                    for (_, process) in begun {
                        process.end(GIVEN_UP_WITHIN);
                    }
                }
            }
            children.iter_mut().for_each(|(_, child)| child.kill());
            Err(failure)
        }
    }
}

/// Regions of each set and node with a pool of that size, which also has copies of others': threads wait for each other less the more
/// there are, and each takes some segments at each node that has it.
fn default_regions(pool: Size, sets: &[RegionSet]) -> u16 {
    let replicas: u64 = sets.iter().map(|set| u64::from(set.replicas)).sum();
    let least = if sets.len() == 1 { 4 } else { 1 };
    (pool.0 / replicas.max(1) / (64 << 20)).clamp(least, 16) as u16
}

/// What is to be known of the cluster's replicas, if it has more than one.
fn replicas_said(cluster: &DevCluster) -> Option<String> {
    let DevCluster { nodes, replicas, .. } = cluster;
    match (replicas, nodes) {
        (..=1, _) if cluster.sets.is_empty() => None,
        (2.., 2) if cluster.sets.is_empty() => Some(
            "Each region is kept at both nodes. Two nodes have no majority without each other, so node 0 decides alone who serves what:\n\
             nothing is lost when one dies, but while node 0 is dead files wait until it is back. Of three nodes any one may die."
                .into(),
        ),
        _ if !cluster.sets.is_empty() => Some(format!(
            "Files are kept at {replicas} nodes; or, in directories of `polvo set`, with {}.",
            cluster.sets.join(" or ")
        )),
        _ => Some(format!("Each region is kept at {replicas} nodes.")),
    }
}

/// What the user wants to know now. `shown` is the directory as the user typed it.
fn summary(shown: &Path, dir: &Path, started: &Started) -> String {
    let (c, begun) = (&started.cluster, &started.running);
    let mut text = format!(
        "PolvoFS cluster {} in {}: {} nodes of {} each in {}, over {}\n",
        c.cluster_id().short(),
        shown.display(),
        c.nodes,
        Size(c.size),
        c.pool_dir.display(),
        c.provider
    );
    for node in c.node_ids() {
        let new = begun.nodes.iter().find(|(n, _)| *n == node);
        let (pid, how) = match (new, running(dir, node)) {
            (Some((_, pid)), _) => (pid.to_string(), "started"),
            (None, Some((id, _))) => (id.pid.to_string(), "running already"),
            (None, None) if begun.removed.contains(&node) => ("-".into(), "removed from the cluster"),
            (None, None) => ("-".into(), "not running"),
        };
        let mount = c.mount.as_ref().filter(|_| node == 0 && !begun.removed.contains(&node));
        let mounted = mount
            .map(|m| format!(", mounted at {}", m.display()))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "  node {node}  127.0.0.1:{}  pid {pid}  {how}{mounted}",
            c.ports[usize::from(node)]
        );
    }
    if let Some(said) = replicas_said(c) {
        let _ = writeln!(text, "{said}");
    }
    let has_copies = c.replicas > 1 || !c.sets.is_empty();
    if has_copies && begun.nodes.iter().any(|(node, _)| *node >= c.first()) {
        let _ = writeln!(text, "`polvo balance` gives a node that was added its share.");
    }
    if !begun.nodes.is_empty() {
        let _ = writeln!(text, "Ready after {:.1} s.", begun.took.as_secs_f64());
    }
    let with = if shown == Path::new(".polvo") {
        String::new()
    } else {
        format!(" --cluster-dir {}", shown.display())
    };
    let dir_option = if shown == Path::new(".polvo") {
        String::new()
    } else {
        format!(" --dir {}", shown.display())
    };
    let _ = writeln!(text);
    if let Some(mount) = &c.mount {
        let _ = writeln!(text, "Use it:      cp -r /usr/include {}/", mount.display());
    }
    let _ = writeln!(text, "Look at it:  polvo status{with}");
    let _ = writeln!(
        text,
        "No mount:    polvo put{with} -r /usr/include /    polvo ls{with} -l /"
    );
    let _ = writeln!(
        text,
        "Mount it:    polvo mount{with} / DIR              polvo umount DIR"
    );
    let _ = writeln!(text, "Stop it:     polvo down{dir_option}");
    text
}
