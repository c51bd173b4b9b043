//! The redo log of a coordinator is full of transactions that a participant has not got: who needs a slot waits, and either
//! gets one or is told that it took too long. Nothing is half-done.

use crate::common::*;
use polvo_client::LocalClient;
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{FsError, InodeRef};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};

/// Slots of the redo log in a pool of 8 MiB that records with parts of other nodes may take.
const SLOTS: usize = 28;
/// Files that a client removes, all at once.
const FILES: usize = 20;

/// Two remote clients, and two that are colocated with the coordinator.
fn clients(cluster: &Cluster) -> [Rc<LocalClient>; 4] {
    [
        external(cluster, "a"),
        external(cluster, "b"),
        internal(cluster, 0),
        internal(cluster, 0),
    ]
}

fn primary(cluster: &Cluster, inode: InodeRef) -> u16 {
    cluster.map().primary(inode.ino.region()).expect("served").0
}

/// Files of node 2 whose names are in a directory of node 0.
async fn names_of_far_files(cluster: &Cluster, client: &LocalClient) -> (InodeRef, Vec<String>) {
    let mut n = 0..10_000;
    let dir = loop {
        let name = format!("dir{}", n.next().expect("one of them is at node 0"));
        let dir = inode(&client.create(ROOT, name.as_bytes(), directory()).await.expect("create"));
        if primary(cluster, dir) == 0 {
            break dir;
        }
    };
    let mut names = Vec::new();
    while names.len() < 4 * FILES {
        let name = format!("f{}", n.next().expect("a third of them is at node 2"));
        let made = inode(&client.create(dir, name.as_bytes(), file()).await.expect("create"));
        // the others stay: a node that had more inodes than they would be given none
        if primary(cluster, made) == 2 {
            names.push(name);
        }
    }
    (dir, names)
}

/// How many names are in a directory.
async fn count(client: &LocalClient, dir: InodeRef) -> usize {
    let (mut names, mut after) = (0, 0);
    loop {
        let page = client.read_dir(dir, after, 50).await.expect("read_dir").entries;
        let Some(last) = page.last() else { return names };
        (names, after) = (names + page.len(), last.cookie);
    }
}

type Removals = Vec<(String, JoinHandle<Result<(), FsError>>)>;

/// Begins to remove the files, and when all that fits has been collected, keeps what node 0 sends from node 2.
async fn remove_and_block(cluster: &Cluster, dir: InodeRef, names: Vec<String>) -> Removals {
    let network = cluster.network();
    let late = Duration::from_millis(50);
    network.set_delay_between("node-2", "node-0", late..=late);
    let clients = clients(cluster);
    for client in &clients {
        client.lookup(dir, names[0].as_bytes()).await.expect("lookup");
    }
    let removals = names.into_iter().enumerate().map(|(n, name)| {
        let (client, its) = (clients[n % clients.len()].clone(), name.clone());
        let removal = spawn_local(async move { client.unlink(dir, its.as_bytes()).await });
        (name, removal)
    });
    let removals = removals.collect();
    cluster.sleep(late / 2).await;
    network.partition_one_way("node-0", "node-2");
    removals
}

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        pool_bytes: 8 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

#[test]
fn who_finds_the_redo_log_full_waits_for_a_slot() {
    with_options(options(1), async |cluster| {
        let maker = external(cluster, "maker");
        let (dir, names) = names_of_far_files(cluster, &maker).await;
        let before = count(&maker, dir).await;
        let removals = remove_and_block(cluster, dir, names).await;
        cluster.sleep(Duration::from_millis(300)).await;
        let there = count(&maker, dir).await;
        assert_eq!(before - there, SLOTS, "so many are decided, and no more fit");
        cluster.network().heal_all();
        for (name, removal) in removals {
            assert_eq!(removal.await.expect("it runs"), Ok(()), "{name}");
        }
    });
}

#[test]
fn who_waits_too_long_for_a_slot_is_told_and_has_changed_nothing() {
    with_options(options(2), async |cluster| {
        let maker = external(cluster, "maker");
        let (dir, names) = names_of_far_files(cluster, &maker).await;
        let removals = remove_and_block(cluster, dir, names).await;
        cluster.sleep(Duration::from_secs(10)).await;
        cluster.network().heal_all();
        let (mut done, mut late) = (0, 0);
        for (name, removal) in removals {
            let removed = removal.await.expect("it runs");
            let there = maker.lookup(dir, name.as_bytes()).await.map(|_| ());
            match (&removed, there) {
                (Ok(()), Err(FsError::NotFound)) => done += 1,
                (Err(FsError::Busy), Ok(())) => late += 1,
                (Err(FsError::Unreachable { .. }), Ok(()) | Err(FsError::NotFound)) => {}
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(done > 0 && late > 0, "{done} done, {late} too late");
    });
}
