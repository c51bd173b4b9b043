//! Each bug of [`polvo_region::planted`] that lies in this crate, planted once: a test of its name, in which the cluster
//! misbehaves and a check says so. The same scenario passes without the bug.

#[path = "../common/mod.rs"]
mod common;
mod copies;
mod hand_overs;
mod leases;
mod locks;
mod map;
mod modes;
mod transactions;

use common::*;
use polvo_cluster::{RegionVerb, Timeouts};
use polvo_consensus::register::{Answer as VoterAnswer, Ask as VoterAsk, Ballot};
use polvo_format::{
    Epoch, FileKind, Gpa, INODE_SIZE, INODE_TAIL, NodeId, PAGE, REGISTER_OWNER, REGISTER_PLACE, RegionId, RegionOffset,
};
use polvo_node::Phase;
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use polvo_region::planted::{Plant, Planted};
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

/// The scenario passes, and fails with the bug, which it has got to.
fn caught(bug: Planted, scenario: fn()) {
    scenario();
    let plant = Plant::new(bug);
    let result = std::panic::catch_unwind(scenario);
    assert!(plant.reached() > 0, "the scenario does not get to {bug:?}");
    result.expect_err("nobody notices the bug");
}

fn replicated(seed: u64) -> ClusterOptions {
    ClusterOptions {
        replicas: 2,
        pool_bytes: 32 << 20,
        ..options(seed)
    }
}

/// A file in a region of node 0, with these contents.
async fn file_of_node_0(cluster: &Cluster, c: &Caller, contents: &[u8]) -> InodeRef {
    let dir = c.directory_at(cluster, 0, "dir").await;
    let (_, file) = c.file_at(cluster, dir, 0, "f").await;
    c.write(file, 0, contents).await.unwrap();
    file
}

/// Four nodes with two replicas of each region, of which one that is away for two seconds is replaced.
fn replacing(seed: u64) -> ClusterOptions {
    ClusterOptions {
        nodes: 4,
        segment_shift: Some(18),
        replace_after: Some(Duration::from_secs(2)),
        ..replicated(seed)
    }
}

/// A directory in a region.
async fn directory_in(c: &Caller, region: u16, prefix: &str) -> InodeRef {
    for i in 0..500 {
        let dir = c.mkdir(ROOT, &format!("{prefix}{i}")).await.unwrap();
        if dir.ino.region() == RegionId(region) {
            return dir;
        }
    }
    panic!("no directory came to region {region}");
}

/// A file there.
async fn file_in(c: &Caller, dir: InodeRef, region: u16, prefix: &str) -> (String, InodeRef) {
    for i in 0..500 {
        let name = format!("{prefix}{i}");
        let file = c.create(dir, &name).await.unwrap();
        if file.ino.region() == RegionId(region) {
            return (name, file);
        }
    }
    panic!("no file came to region {region}");
}

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        pool_bytes: 16 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

async fn set_xattr(c: &Caller, inode: InodeRef, name: &str, value: &[u8]) {
    let set = ask::SetXattr {
        inode,
        name: name.into(),
        value: value.into(),
        mode: XattrMode::Any,
    };
    c.ask(inode.ino.region(), set).await.unwrap();
}

/// The node that has a copy of the region of a file at node 0.
fn mirror_of(cluster: &Cluster, file: InodeRef) -> u16 {
    let map = cluster.node(0).map();
    let mut replicas = map.region(file.ino.region()).unwrap().replicas.iter();
    let mirror = replicas.find(|replica| replica.role == ReplicaRole::Mirror);
    mirror.expect("it is mirrored").node.0
}
