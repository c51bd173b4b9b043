//! `polvo down`

use super::layout::{DEV_FILE, DevCluster, DirLock, node_dir, pid_file, running};
use crate::CliError;
use crate::args::DownArgs;
use crate::cluster_dir::CLUSTER_FILE;
use crate::mount_files::{MOUNTS_DIR, registered_in};
use crate::output::say;
use crate::process::Ended;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Runs the command.
pub fn down(args: &DownArgs) -> Result<(), CliError> {
    let dir = match args.dir.canonicalize() {
        Ok(dir) => dir,
        Err(_) => {
            say(format!("No cluster in {}: nothing to stop.", args.dir.display()));
            return Ok(());
        }
    };
    let _lock = DirLock::take(&dir)?;
    let Some(cluster) = DevCluster::read(&dir)? else {
        say(format!("No cluster in {}: nothing to stop.", args.dir.display()));
        return Ok(());
    };
    let stopped = stop_nodes(&dir, &cluster, Duration::from_secs(args.wait));
    for line in &stopped.told {
        say(line);
    }
    if stopped.stuck {
        return Err(CliError::Other(
            "a process does not end even when it is killed; nothing was removed".into(),
        ));
    }
    if args.keep {
        say(format!(
            "Pools and configuration are kept; go on with: polvo up --dir {}",
            args.dir.display()
        ));
        return Ok(());
    }
    let left = remove_all(&dir, &cluster);
    if left.is_empty() {
        say("Removed everything that `polvo up` had made.");
        return Ok(());
    }
    Err(CliError::Other(format!("could not be removed: {}", left.join("; "))))
}

/// What became of the processes of a cluster.
#[derive(Default)]
pub(super) struct Stopped {
    /// A line for each.
    pub(super) told: Vec<String>,
    /// Some process is still there.
    pub(super) stuck: bool,
}

impl Stopped {
    fn note(&mut self, who: &str, ended: Ended) {
        match ended {
            Ended::Asked => self.told.push(format!("{who}: stopped")),
            Ended::Killed => self.told.push(format!("{who}: did not stop in time, killed")),
            Ended::StillThere => {
                self.told.push(format!("{who}: cannot be killed"));
                self.stuck = true;
            }
        }
    }
}

/// Ends external mounts first, then node 0, whose mount needs the others until it is gone, then the others at once.
/// Takes away mounts whose process died.
pub(super) fn stop_nodes(dir: &Path, cluster: &DevCluster, wait: Duration) -> Stopped {
    let mut stopped = Stopped::default();
    for mount in registered_in(&dir.join(MOUNTS_DIR)) {
        if let Some(process) = mount.process.open() {
            stopped.note(&format!("mount at {}", mount.dir.display()), process.end(wait));
        }
        take_dead_mount_away(&mount.dir);
    }
    let (first, rest): (Vec<u16>, Vec<u16>) = cluster.node_ids().partition(|n| *n == 0);
    for batch in [first, rest] {
        std::thread::scope(|scope| {
            let ending: Vec<_> = batch
                .into_iter()
                .filter_map(|node| Some((node, running(dir, node)?.1)))
                .map(|(node, process)| (node, scope.spawn(move || process.end(wait))))
                .collect();
            for (node, ending) in ending {
                stopped.note(&format!("node {node}"), ending.join().expect("waiting does not panic"));
            }
        });
    }
    if let Some(mount) = &cluster.mount {
        take_dead_mount_away(mount);
    }
    for node in cluster.node_ids().filter(|n| running(dir, *n).is_none()) {
        let _ = std::fs::remove_file(pid_file(dir, node));
    }
    stopped
}

/// Unmounts what a killed process has left; somebody else's file system is left alone.
fn take_dead_mount_away(mount: &Path) {
    let dead = |e: &std::io::Error| e.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error());
    if std::fs::read_dir(mount).is_err_and(|e| dead(&e) || e.kind() == ErrorKind::ConnectionAborted) {
        let _ = polvo_fuse::unmount(mount, true);
    }
}

/// Removes what `up` has made; returns what could not be removed. Files that others have put there stay, and with them
/// the directories that hold them.
pub(super) fn remove_all(dir: &Path, cluster: &DevCluster) -> Vec<String> {
    let mut left = Vec::new();
    let mut note = |path: &Path, result: std::io::Result<()>| match result {
        Err(e) if e.kind() != ErrorKind::NotFound => left.push(format!("{}: {e}", path.display())),
        _ => {}
    };
    for node in cluster.node_ids() {
        let pool = cluster.pool(node);
        note(&pool, std::fs::remove_file(&pool));
        let socket = cluster.socket(dir, node);
        note(&socket, std::fs::remove_file(&socket));
        let node_dir = node_dir(dir, node);
        note(&node_dir, std::fs::remove_dir_all(&node_dir));
    }
    let far = cluster.far_sockets();
    note(&far, std::fs::remove_dir(&far));
    let mounts = dir.join(MOUNTS_DIR);
    note(&mounts, std::fs::remove_dir_all(&mounts));
    for file in ["secret", CLUSTER_FILE, DEV_FILE] {
        let file = dir.join(file);
        note(&file, std::fs::remove_file(&file));
    }
    // The innermost first. A directory that somebody uses is not ours any more.
    for made in cluster.made.iter().rev() {
        match std::fs::remove_dir(made) {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {}
            other => note(made, other),
        }
    }
    left
}
