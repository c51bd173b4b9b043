//! What goes wrong with replicas is found: each bug, planted, within so many seeds. `crates/node/tests/planted` and
//! `crates/region/tests/planted` have a scenario of its own for each that a random run meets too seldom.

mod common;

use common::first_that_fails;
use polvo_client::{Client, Transfers};
use polvo_cluster::{MapCell, SessionContext};
use polvo_format::{FileKind, Generation, Ino};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::{Cred, Durability, InodeRef, NewFile};
use polvo_region::planted::{Plant, Planted};
use polvo_sim::schedule::Limits;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::spawn_local;

/// Looks for a bug where each region has a mirror.
fn is_found(bug: Planted, seeds: Range<u64>) {
    is_found_where(Durability::Sync, bug, seeds);
}

/// The same, where changes are answered then.
fn is_found_where(durability: Durability, bug: Planted, seeds: Range<u64>) {
    let _plant = Plant::new(bug);
    let limits = Limits {
        replicas: Some(2),
        durability: Some(durability),
        ..Limits::default()
    };
    let failed = first_that_fails(&format!("{bug:?}"), seeds, &limits);
    println!("{}", failed.failure.unwrap_or_default());
}

#[test]
fn an_answer_before_the_mirrors_have_what_was_done() {
    is_found(Planted::MirrorNotAwaited, 0..100);
}

#[test]
fn a_mirror_left_out_that_may_take_over() {
    is_found(Planted::SetShrunkUntold, 0..100);
}

#[test]
fn a_request_done_by_each_of_two_primaries() {
    is_found(Planted::RepeatedElsewhere, 0..300);
}

#[test]
fn a_commit_where_its_data_is_not() {
    a_primary_dies_while_data_is_committed();
    let plant = Plant::new(Planted::CommittedElsewhere);
    let result = std::panic::catch_unwind(a_primary_dies_while_data_is_committed);
    assert!(plant.reached() > 0, "there is nothing to commit");
    result.expect_err("nobody notices the bug");
}

#[test]
fn a_transaction_that_is_not_awaited_by_who_waits_for_nothing_else() {
    is_found_where(Durability::Async, Planted::TransactionNotAwaited, 400..700);
}

#[test]
fn a_mirror_that_joins_without_what_was_answered_meanwhile() {
    is_found(Planted::JoinedBehind, 100..200);
}

#[test]
fn a_place_taken_by_a_node_that_ends() {
    is_found(Planted::PlaceTakenWhileEnding, 900..920);
}

/// Several clients append what is too much for one request, and the primary dies while they do: what was said to be done is there. (A
/// random run has a primary die between data and its commit too seldom.)
fn a_primary_dies_while_data_is_committed() {
    const LEN: usize = 100_000;
    let options = ClusterOptions {
        seed: 84,
        replicas: 2,
        regions_per_node: 1,
        pool_bytes: 128 << 20,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        cluster.mirrored().await;
        let (client, reader) = (client(cluster, "client"), client(cluster, "reader"));
        let root = InodeRef {
            ino: Ino::ROOT,
            generation: Generation(1),
        };
        let new = NewFile {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            umask: 0,
            xattrs: Vec::new(),
        };
        let made = client.create(root, b"f", new).await.expect("create");
        let file = InodeRef {
            ino: made.ino,
            generation: made.generation,
        };
        let (open, theirs) = (
            client.open(file).await.expect("open"),
            reader.open(file).await.expect("open"),
        );
        let delay = Duration::from_millis(1);
        for step in 0..12u32 {
            cluster.mirrored().await;
            client.append(&open, &[0xff; LEN]).await.expect("append"); // there is space in hand
            cluster.network().set_delay(delay..=delay);
            let appending: Vec<_> = (0..4)
                .map(|n| {
                    let (client, open) = (client.clone(), open.clone());
                    spawn_local(async move { client.append(&open, &[n; LEN]).await })
                })
                .collect();
            cluster.sleep(delay * step / 2 + delay / 4).await;
            let map = client.client().map();
            let primary = map.primary(file.ino.region()).expect("it is served").0;
            cluster.crash(primary).await;
            for (n, appending) in (0..).zip(appending) {
                let (at, len) = appending.await.expect("no panic").expect("append");
                let mut bytes = vec![0xee; LEN];
                assert_eq!((len, reader.read(&theirs, at, &mut bytes).await), (LEN, Ok(LEN)));
                assert!(bytes.iter().all(|byte| *byte == n), "step {step}, at {at}");
            }
            cluster.network().set_delay(Duration::ZERO..=Duration::ZERO);
            cluster.restart(primary).await.expect("restart");
        }
    });
}

fn client(cluster: &Cluster, name: &str) -> Rc<polvo_client::LocalClient> {
    let (map, me) = (MapCell::new(cluster.map().clone()), cluster.client_identity());
    let (session, timeouts) = (cluster.next_session(), cluster.timeouts());
    let context = SessionContext::new(map, me, session, name.to_string(), None, timeouts, None);
    cluster.network().place(context.memory(), name);
    let client = Client::over(context, Cred::Kernel, Transfers::default());
    spawn_local(client.local().maintain());
    client.local()
}
