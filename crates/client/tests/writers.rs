//! Files open for writing: one client at a time may map one shared and writable, and asking for that costs no round trip of
//! its own.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile};
use polvo_node::sim::Cluster;
use polvo_proto::{FsError, InodeRef};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Longer than what was closed is kept to oneself.
const TOLD: Duration = Duration::from_millis(100);

async fn two_clients_and_a_file(cluster: &Cluster) -> (Rc<LocalClient>, Rc<LocalClient>, InodeRef) {
    let (a, b) = (external(cluster, "a"), external(cluster, "b"));
    let made = inode(&a.create(ROOT, b"file", file()).await.expect("create"));
    b.lookup(ROOT, b"file").await.expect("lookup");
    (a, b, made)
}

fn primary(cluster: &Cluster, inode: InodeRef) -> u16 {
    cluster.map().primary(inode.ino.region()).expect("served").0
}

async fn to_map(client: &LocalClient, inode: InodeRef) -> Arc<OpenFile> {
    client.open_to_write(inode, true).await.expect("opening never fails")
}

/// What opening to map costs: requests, and batches of one-sided reads.
async fn cost(client: &LocalClient, inode: InodeRef) -> (u64, u64) {
    let before = client.client().counters();
    drop(to_map(client, inode).await);
    let after = client.client().counters();
    (
        after.rpcs - before.rpcs,
        after.one_sided_batches - before.one_sided_batches,
    )
}

#[test]
fn opening_to_write_costs_a_round_trip_at_the_most() {
    with_cluster(71, async |cluster| {
        let (a, _, file) = two_clients_and_a_file(cluster).await;
        a.get_attr(file).await.expect("stat"); // and where its segment lies
        assert_eq!(cost(&a, file).await, (1, 0), "with the hold");
        assert_eq!(cost(&a, file).await, (0, 1), "the end has not been told yet");
        cluster.sleep(TOLD).await;
        assert_eq!(cost(&a, file).await, (1, 0), "the hold is there");
        let first = to_map(&a, file).await;
        cluster.sleep(TOLD).await;
        assert_eq!(cost(&a, file).await, (0, 1), "while it is open");
        drop(first);
        let before = a.client().counters().rpcs;
        cluster.sleep(TOLD).await;
        let told = a.client().counters().rpcs - before;
        assert!(told <= 2, "{told} requests after a close");
    });
}

#[test]
fn the_right_goes_from_client_to_client() {
    with_cluster(72, async |cluster| {
        let (a, b, file) = two_clients_and_a_file(cluster).await;
        let colocated = internal(cluster, primary(cluster, file));
        for (first, second) in [(&a, &b), (&b, &colocated), (&colocated, &a)] {
            let held = to_map(first, file).await;
            let again = first.open_to_write(file, false).await.expect("open");
            assert!(held.may_map() && again.may_map());
            let other = to_map(second, file).await;
            assert!(!other.may_map());
            second.write(&other, 0, b"written all the same").await.expect("write");
            drop(held);
            cluster.sleep(TOLD).await;
            assert!(!to_map(second, file).await.may_map(), "it is open still");
            drop(again);
            cluster.sleep(TOLD).await;
            assert!(to_map(second, file).await.may_map());
            drop(other);
            cluster.sleep(TOLD).await;
        }
    });
}

#[test]
fn who_makes_a_file_open_may_map_it() {
    with_cluster(73, async |cluster| {
        let (a, b) = (external(cluster, "a"), external(cluster, "b"));
        for n in 0..6 {
            let name = format!("file-{n}");
            let (attr, made) = a.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            assert!(made.may_map());
            assert!(!to_map(&b, inode(&attr)).await.may_map());
            drop(made);
            cluster.sleep(TOLD).await;
            assert!(to_map(&b, inode(&attr)).await.may_map());
        }
    });
}

#[test]
fn the_right_outlives_a_restart_of_the_node() {
    with_cluster(74, async |cluster| {
        let (a, b, file) = two_clients_and_a_file(cluster).await;
        let node = primary(cluster, file);
        let (mapped, written) = (to_map(&a, file).await, to_map(&b, file).await);
        for quick in [&b, &a] {
            cluster.crash(node).await;
            cluster.restart(node).await.expect("restart");
            // whoever only writes does not take it
            let file = if Rc::ptr_eq(quick, &a) { &mapped } else { &written };
            quick.write(file, 0, b"first").await.expect("write");
            a.write_pages(&mapped, 0, b"pages")
                .await
                .expect("the right is still there");
            assert!(mapped.may_map() && !written.may_map());
        }
        // the client is idle, and has it back nevertheless
        cluster.crash(node).await;
        cluster.restart(node).await.expect("restart");
        cluster.sleep(cluster.timeouts().lease).await;
        assert!(!to_map(&external(cluster, "c"), file).await.may_map());
        assert!(mapped.may_map());
    });
}

#[test]
fn pages_are_not_written_back_when_somebody_else_may_map_the_file() {
    with_cluster(75, async |cluster| {
        let (a, b, file) = two_clients_and_a_file(cluster).await;
        let node = primary(cluster, file);
        let mapped = to_map(&a, file).await;
        a.write_pages(&mapped, 0, b"pages of a").await.expect("write");
        cluster.crash(node).await;
        cluster.restart(node).await.expect("restart");
        let quicker = to_map(&b, file).await;
        assert!(quicker.may_map());
        b.write_pages(&quicker, 0, b"pages of b").await.expect("write");
        let large = vec![b'a'; 1 << 20];
        for pages in [&b"pages of a"[..], &large] {
            let refused = a.write_pages(&mapped, 0, pages).await;
            assert!(matches!(refused, Err(FsError::Io(_))), "{refused:?}");
        }
        assert_eq!(content(&b, &quicker).await, b"pages of b");
        assert!(!mapped.may_map());
        a.write(&mapped, 0, b"write").await.expect("others are none of that");
        drop(quicker);
        cluster.sleep(TOLD).await;
        assert!(to_map(&a, file).await.may_map());
    });
}
