//! Nodes die, come back, lose power or cannot be reached in the middle of transactions; sessions expire; clients get
//! into each other's way.

mod conflicts;
mod coordinators;
mod nodes_and_sessions;
mod participants;
mod random_faults;

use crate::common::*;
use polvo_node::sim::{self, Cluster, ClusterOptions};
use polvo_node::{Phase, Transactions};
use polvo_proto::*;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};

const PHASES: [Phase; 4] = [
    Phase::Collected,
    Phase::Decided,
    Phase::PartlyDispatched,
    Phase::Dispatched,
];

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        pool_bytes: 16 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// Runs a test with either way to carry out transactions.
fn run(options: ClusterOptions, test: impl AsyncFn(&mut Cluster)) {
    for transactions in [Transactions::CollectDispatch, Transactions::TwoPhaseCommit] {
        let options = ClusterOptions {
            transactions,
            ..options.clone()
        };
        sim::run(options, &test);
    }
}

async fn until(cluster: &Cluster, what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        cluster.sleep(Duration::from_micros(200)).await;
    }
    panic!("{what} did not happen within 10 seconds");
}

async fn healthy(cluster: &Cluster) {
    cluster.rest().await;
    assert_eq!(cluster.check(), Vec::<String>::new());
}

/// A rename over an existing file, with each of the four inodes on a node or region of its own where there are that
/// many: old directory on 1, new directory on 0 (coordinator), moved file on 2, replaced file on 1.
struct Stage {
    old_dir: InodeRef,
    new_dir: InodeRef,
    file: InodeRef,
    victim: InodeRef,
}

async fn stage(cluster: &Cluster, c: &Caller) -> Stage {
    let old_dir = c.directory_at(cluster, 1, "old").await;
    let new_dir = c.directory_at(cluster, 0, "new").await;
    let (source, file) = c.file_at(cluster, old_dir, 2, "f").await;
    let (dest, victim) = c.file_at(cluster, new_dir, 1, "v").await;
    c.rename(old_dir, &source, old_dir, "source").await.unwrap();
    c.rename(new_dir, &dest, new_dir, "dest").await.unwrap();
    c.write(file, 0, b"moved").await.unwrap();
    Stage {
        old_dir,
        new_dir,
        file,
        victim,
    }
}

impl Stage {
    /// Has a client ask for the rename, and waits until its coordinator has stopped at a phase.
    async fn rename_until(&self, cluster: &Cluster, c: &Caller, phase: Phase) -> JoinHandle<Result<(), FsError>> {
        cluster.node(0).stop_coordinator_at(phase);
        let (c, old_dir, new_dir) = (c.clone(), self.old_dir, self.new_dir);
        let asking = spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await });
        coordinator_stops(cluster).await;
        asking
    }
}

async fn coordinator_stops(cluster: &Cluster) {
    until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
}

async fn renamed(c: &Caller, s: &Stage) -> bool {
    let there = c.find(s.new_dir, "dest").await.unwrap();
    let moved = there == s.file;
    assert!(moved || there == s.victim);
    assert_eq!(c.find(s.old_dir, "source").await.is_ok(), !moved, "all or nothing");
    assert_eq!(c.attr(s.victim).await.is_ok(), !moved, "all or nothing");
    assert_eq!(c.read(s.file).await.unwrap(), b"moved");
    moved
}
