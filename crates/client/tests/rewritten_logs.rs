//! A directory's log that garbage collection rewrites takes no names from those who know them, and shows nobody what is no
//! longer so.

use crate::common::*;
use polvo_client::LocalClient;
use polvo_node::sim::Cluster;
use polvo_proto::{FsError, InodeRef, Reply, Request};
use std::rc::Rc;

/// Names made: several log pages.
const NAMES: u32 = 600;
/// Names that stay: when the others are removed, the log is rewritten once on the way.
const STAY: u32 = 380;
/// Requests that a client makes beside what it is asked to do while it looks all names up (leases), at the most.
const ASIDE: u64 = 20;

fn name(n: u32) -> Vec<u8> {
    format!("name-{n}").into_bytes()
}

/// Version of the directory's log.
async fn version(cluster: &Cluster, client: &LocalClient, dir: InodeRef) -> u32 {
    let request = Request::GetAttr {
        ino: dir.ino,
        generation: Some(dir.generation),
    };
    let primary = cluster.map().primary(dir.ino.region()).expect("it has one");
    match client.ask(primary, request).await {
        Ok(Reply::Attr { tail, .. }) => tail.version(),
        other => panic!("{other:?}"),
    }
}

/// Waits until the log that was of a version is rewritten.
async fn rewritten(cluster: &Cluster, client: &LocalClient, dir: InodeRef, was: u32) {
    for _ in 0..20 {
        if version(cluster, client, dir).await > was {
            return;
        }
        cluster.sleep(cluster.timeouts().renew_every()).await;
    }
    panic!("garbage is not collected");
}

async fn make(client: &LocalClient, dir: InodeRef, names: std::ops::Range<u32>) {
    for n in names {
        client.create(dir, &name(n), file()).await.expect("create");
    }
}

async fn unlink(client: &LocalClient, dir: InodeRef, names: std::ops::Range<u32>) {
    for n in names {
        client.unlink(dir, &name(n)).await.expect("unlink");
    }
}

/// Looks all names up, of which the first ones are there; how many requests that took.
async fn look_up(client: &LocalClient, dir: InodeRef, there: u32) -> u64 {
    let before = client.client().counters().rpcs;
    for n in 0..NAMES {
        match client.lookup(dir, &name(n)).await {
            Ok(_) => assert!(n < there, "name {n} is gone"),
            Err(FsError::NotFound) => assert!(n >= there, "name {n} is there"),
            Err(error) => panic!("name {n}: {error}"),
        }
    }
    client.client().counters().rpcs - before
}

/// A directory with all the names, and two clients, a third on watch; who has met all nodes, and looked the names up,
/// asks nothing.
async fn scene(cluster: &Cluster) -> (InodeRef, Rc<LocalClient>, Rc<LocalClient>, Rc<LocalClient>) {
    let [one, two, watch] = ["one", "two", "watch"].map(|name| external(cluster, name));
    let dir = inode(&one.create(ROOT, b"dir", directory()).await.expect("mkdir"));
    make(&one, dir, 0..NAMES).await;
    for client in [&one, &two] {
        look_up(client, dir, NAMES).await;
        assert!(look_up(client, dir, NAMES).await <= ASIDE);
    }
    (dir, one, two, watch)
}

#[test]
fn names_known_to_the_end_of_the_old_log_are_known_in_the_new_one() {
    with_cluster(80, async |cluster| {
        let (dir, one, two, watch) = scene(cluster).await;
        let was = version(cluster, &watch, dir).await;
        unlink(&one, dir, STAY..NAMES).await;
        for client in [&one, &two] {
            assert!(look_up(client, dir, STAY).await <= ASIDE, "the log has grown");
        }
        rewritten(cluster, &watch, dir, was).await;
        for client in [&one, &two] {
            assert!(
                look_up(client, dir, STAY).await <= 1 + ASIDE,
                "one request, not one a name"
            );
        }
        // and the new log is followed
        unlink(&two, dir, STAY - 1..STAY).await;
        assert!(look_up(&one, dir, STAY - 1).await <= ASIDE);
    });
}

#[test]
fn who_makes_and_removes_names_keeps_up_with_every_rewriting() {
    with_cluster(81, async |cluster| {
        const FEW: u32 = 100;
        let (dir, one, _, watch) = scene(cluster).await;
        let mut versions = vec![version(cluster, &watch, dir).await];
        for round in 0..3 {
            for n in FEW..NAMES {
                unlink(&one, dir, n..n + 1).await;
                if n % 100 == 0 {
                    cluster.sleep(cluster.timeouts().renew_every()).await;
                    versions.push(version(cluster, &watch, dir).await);
                }
            }
            assert!(look_up(&one, dir, FEW).await <= ASIDE, "round {round}");
            make(&one, dir, FEW..NAMES).await;
            assert!(look_up(&one, dir, NAMES).await <= ASIDE, "round {round}");
        }
        versions.dedup();
        assert!(
            versions.len() > 6,
            "rewritten too seldom to show anything: {versions:?}"
        );
    });
}

#[test]
fn what_was_missed_before_the_rewriting_is_caught_up_with_or_all_is_forgotten() {
    with_cluster(82, async |cluster| {
        let (dir, one, two, watch) = scene(cluster).await;
        // missed in the old log, which nobody has written over yet
        let was = version(cluster, &watch, dir).await;
        unlink(&one, dir, STAY..NAMES).await;
        rewritten(cluster, &watch, dir, was).await;
        unlink(&one, dir, STAY - 1..STAY).await;
        assert!(look_up(&two, dir, STAY - 1).await <= ASIDE);

        // missed by more than one rewriting: of the first nothing is remembered
        for _ in 0..2 {
            make(&one, dir, STAY - 1..NAMES).await;
            let was = version(cluster, &watch, dir).await;
            unlink(&one, dir, STAY..NAMES).await;
            rewritten(cluster, &watch, dir, was).await;
            unlink(&one, dir, STAY - 1..STAY).await;
        }
        assert!(
            look_up(&two, dir, STAY - 1).await >= NAMES.into(),
            "all is asked for anew"
        );
        assert!(look_up(&two, dir, STAY - 1).await <= ASIDE);
    });
}

#[test]
fn a_node_that_was_started_anew_remembers_no_rewriting() {
    with_cluster(83, async |cluster| {
        let (dir, one, two, watch) = scene(cluster).await;
        let was = version(cluster, &watch, dir).await;
        unlink(&one, dir, STAY..NAMES).await;
        rewritten(cluster, &watch, dir, was).await;
        let primary = cluster.map().primary(dir.ino.region()).expect("it has one").0;
        cluster.crash(primary).await;
        cluster.restart(primary).await.expect("it comes back");
        assert!(look_up(&two, dir, STAY).await >= NAMES.into(), "all is asked for anew");
        assert!(look_up(&two, dir, STAY).await <= ASIDE);
    });
}

#[test]
fn a_client_inside_a_node_keeps_up_as_well() {
    with_cluster(84, async |cluster| {
        let (one, two) = (internal(cluster, 0), internal(cluster, 0));
        let mut dirs = Vec::new();
        for n in 0..20 {
            dirs.push(inode(&one.create(ROOT, &name(n), directory()).await.expect("mkdir")));
        }
        dirs.retain(|dir| cluster.node(0).serves(dir.ino.region()));
        let dir = dirs[0];
        make(&one, dir, 0..NAMES).await;
        look_up(&two, dir, NAMES).await;
        let was = version(cluster, &one, dir).await;
        unlink(&one, dir, STAY..NAMES).await;
        rewritten(cluster, &one, dir, was).await;
        look_up(&one, dir, STAY).await;
        look_up(&two, dir, STAY).await;
    });
}
