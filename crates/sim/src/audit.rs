//! The end of a run: everything is read once more, then deleted, and nothing may be left.

use crate::actor::{Actor, ROOT};
use crate::operation::{Answer, Operation, spelled};
use polvo_client::LocalClient;
use polvo_format::{FileKind, NodeId, RegionId};
use polvo_node::sim::Cluster;
use polvo_proto::{FsError, InodeRef};
use std::collections::BTreeSet;

/// Deepest tree; the clients cannot make a deeper one with as many directories as they have.
const DEPTH_MAX: usize = 64;
/// More than any file here is long.
const ALL_BYTES: u64 = 200_000;

/// Reads every directory, file and attribute, as one more client whose answers are part of the history.
///
/// # Errors
/// What cannot be read.
pub async fn read_everything(auditor: &mut Actor) -> Result<(), String> {
    let mut directories = vec![(ROOT, 0)];
    let mut seen = BTreeSet::new();
    while let Some((dir, depth)) = directories.pop() {
        if depth > DEPTH_MAX {
            return Err("directories form a loop".into());
        }
        let entries = match succeed(auditor, Operation::ReadDir { dir }).await? {
            Answer::Entries(entries) => entries,
            other => return Err(format!("a listing is {other}")),
        };
        for (name, inode, kind) in entries {
            succeed(auditor, Operation::Lookup { dir, name }).await?;
            succeed(auditor, Operation::GetAttr { inode }).await?;
            if kind == FileKind::Directory {
                directories.push((inode, depth + 1));
            } else if seen.insert(inode) {
                succeed(auditor, Operation::Open { inode }).await?;
                let len = ALL_BYTES;
                succeed(auditor, Operation::Read { inode, offset: 0, len }).await?;
                succeed(auditor, Operation::Close { inode }).await?;
            }
            if let Answer::Names(names) = succeed(auditor, Operation::ListXattr { inode }).await? {
                for name in names {
                    succeed(auditor, Operation::GetXattr { inode, name }).await?;
                }
            }
        }
    }
    Ok(())
}

async fn succeed(auditor: &mut Actor, operation: Operation) -> Result<Answer, String> {
    let shown = operation.to_string();
    let outcome = auditor.perform(operation).await;
    outcome.map_err(|error| format!("after all faults have ended, {shown} fails: {error}"))
}

/// Removes all names, the deepest first.
///
/// # Errors
/// What cannot be removed.
pub async fn delete_everything(client: &LocalClient) -> Result<(), String> {
    let mut directories = vec![ROOT];
    let mut found: Vec<(InodeRef, Vec<u8>, FileKind)> = Vec::new();
    while let Some(dir) = directories.pop() {
        let page = client.read_dir(dir, 0, 1000).await;
        for entry in page.map_err(|error| format!("a listing fails: {error}"))?.entries {
            if entry.kind == FileKind::Directory {
                directories.push(entry.target);
            }
            found.push((dir, entry.name, entry.kind));
        }
    }
    for (dir, name, kind) in found.into_iter().rev() {
        let removed = match kind {
            FileKind::Directory => client.rmdir(dir, &name).await,
            _ => client.unlink(dir, &name).await,
        };
        removed.map_err(|error| format!("{} cannot be removed: {error}", String::from_utf8_lossy(&name)))?;
    }
    match client.lookup(ROOT, &spelled(0)).await {
        Err(FsError::NotFound) => Ok(()),
        other => Err(format!("after deleting everything a lookup gives {other:?}")),
    }
}

/// What a cluster with nothing in it uses: one inode, no data.
///
/// # Errors
/// What is left.
pub async fn is_empty(client: &LocalClient, lost: Option<u16>) -> Result<(), String> {
    let (usages, missing) = client.usage().await.map_err(|error| error.to_string())?;
    if missing.iter().any(|node| Some(node.0) != lost) {
        return Err(format!("nodes {missing:?} do not answer"));
    }
    let inodes: u64 = usages.iter().map(|(_, usage)| usage.inodes).sum();
    let data: u64 = usages.iter().map(|(_, usage)| usage.data_bytes).sum();
    if (inodes, data) == (1, 0) {
        Ok(())
    } else {
        let each: Vec<String> = usages
            .iter()
            .map(|(node, usage)| format!("node {}: {} inodes, {} bytes", node.0, usage.inodes, usage.data_bytes))
            .collect();
        Err(format!(
            "everything was deleted and all sessions have ended, but {} inodes and {data} bytes of data are in use ({})",
            inodes - 1,
            each.join("; ")
        ))
    }
}

/// What pools hold of regions by the map, and that each region has as many replicas as it began with. Where nodes are replaced none is
/// left at one that was `lost`. Has any been made where none was at the beginning?
///
/// # Errors
/// A region with others, or a pool with what it is not to have.
pub fn replicas(cluster: &Cluster, lost: Option<u16>) -> Result<bool, String> {
    let Some(now) = cluster.newest_map() else {
        return Ok(false);
    };
    let mut any = false;
    for (before, info) in cluster.map().regions.iter().zip(&now.regions) {
        let is_left = |lost: u16| {
            info.role(NodeId(lost)).is_some() && cluster.replaces() && now.primary(info.id) != Some(NodeId(lost))
        };
        if info.replicas.len() != before.replicas.len() || lost.is_some_and(is_left) {
            return Err(format!(
                "region {} is left with these replicas: {:?}",
                info.id.0, info.replicas
            ));
        }
        any |= info.replicas.iter().any(|replica| before.role(replica.node).is_none());
    }
    for node in (0..cluster.nodes()).filter(|node| cluster.is_running(*node)) {
        let is_strange = |region: &RegionId| now.region(*region).is_none_or(|info| info.role(NodeId(node)).is_none());
        let strange: Vec<RegionId> = cluster.held(node).into_iter().filter(is_strange).collect();
        if !strange.is_empty() {
            return Err(format!(
                "the pool of node {node} still has something of {strange:?}, which others have"
            ));
        }
    }
    Ok(any)
}

/// The check of every region.
///
/// # Errors
/// What it complains about.
pub fn check(cluster: &Cluster, when: &str) -> Result<(), String> {
    let mut complaints = cluster.check();
    complaints.extend(cluster.compare_mirrors().err());
    if complaints.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "the check complains {when}:\n    {}",
            complaints.join("\n    ")
        ))
    }
}
