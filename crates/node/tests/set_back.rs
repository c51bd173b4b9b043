//! Pools set back to older copies of themselves: somebody remembers more of the pool than the copy does.

use crate::common::*;
use polvo_format::NodeId;
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::{Cred, FsError, Request};
use std::time::Duration;

fn with_nodes(nodes: u16, seed: u64, test: impl AsyncFnOnce(&mut Cluster)) {
    let options = ClusterOptions {
        seed,
        nodes,
        pool_bytes: 16 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    };
    run(options, test);
}

fn is_set_back(result: &Result<(), FsError>, of: u16) -> bool {
    matches!(result, Err(FsError::SetBack { node, .. }) if *node == of)
}

/// Time for nodes to show each other their pools.
async fn meet(cluster: &Cluster) {
    cluster.sleep(Duration::from_secs(15)).await;
}

#[test]
fn a_copy_is_refused_at_the_start_and_the_pool_itself_is_not() {
    with_nodes(3, 1, async |cluster| {
        meet(cluster).await;
        let copy = cluster.copy_of_pool(1);
        Caller::new(cluster, "client").create(ROOT, "file").await.unwrap();
        // a clean end is enough to tell them apart
        cluster.stop(1).await;
        let pool = cluster.copy_of_pool(1);
        cluster.set_back(1, &copy);
        for _ in 0..20 {
            assert!(is_set_back(&cluster.restart(1).await, 1), "however often it is tried");
        }
        cluster.set_back(1, &pool);
        cluster.restart(1).await.unwrap();
        meet(cluster).await;
        assert!(cluster.is_running(1));
        // so is one more start
        let copy = cluster.copy_of_pool(1);
        cluster.crash(1).await;
        cluster.restart(1).await.unwrap();
        meet(cluster).await;
        cluster.crash(1).await;
        cluster.set_back(1, &copy);
        assert!(is_set_back(&cluster.restart(1).await, 1));
        cluster.set_back(1, &pool);
        assert!(is_set_back(&cluster.restart(1).await, 1), "older still");
    });
}

#[test]
fn a_copy_that_nobody_could_be_asked_about_stops_when_somebody_comes() {
    with_nodes(3, 2, async |cluster| {
        meet(cluster).await;
        let copy = cluster.copy_of_pool(2);
        cluster.stop(2).await;
        cluster.stop(0).await;
        cluster.power_cut(1, 5).await;
        cluster.set_back(2, &copy);
        cluster.restart(2).await.unwrap();
        meet(cluster).await;
        assert!(cluster.is_running(2), "there is nobody who could know");
        // what it saw it remembers in its pool
        cluster.restart(1).await.unwrap();
        assert!(is_set_back(&cluster.ended(2).await, 2));
        cluster.restart(0).await.unwrap();
        meet(cluster).await;
        assert!(cluster.is_running(0) && cluster.is_running(1));
    });
}

#[test]
fn a_copy_that_was_started_before_is_another_one_for_all_that() {
    with_nodes(2, 3, async |cluster| {
        meet(cluster).await;
        let copy = cluster.copy_of_pool(0);
        cluster.stop(0).await;
        cluster.stop(1).await;
        // its eras come to the same number, alone
        cluster.set_back(0, &copy);
        for _ in 0..3 {
            cluster.restart(0).await.unwrap();
            cluster.stop(0).await;
        }
        cluster.restart(1).await.unwrap();
        assert!(is_set_back(&cluster.restart(0).await, 0));
    });
}

#[test]
fn a_copy_that_is_accepted_is_the_pool_from_then_on() {
    with_nodes(3, 4, async |cluster| {
        meet(cluster).await;
        let copy = cluster.copy_of_pool(1);
        for _ in 0..6 {
            cluster.stop(1).await;
            cluster.restart(1).await.unwrap();
            meet(cluster).await;
        }
        cluster.crash(1).await;
        let pool = cluster.copy_of_pool(1);
        cluster.set_back(1, &copy);
        assert!(is_set_back(&cluster.restart(1).await, 1));
        cluster.restart_accepting(1).await.unwrap();
        for node in [1, 0, 2, 1] {
            meet(cluster).await;
            assert!((0..3).all(|node| cluster.is_running(node)));
            cluster.crash(node).await;
            cluster.restart(node).await.unwrap();
        }
        meet(cluster).await;
        // and the one before is not
        cluster.crash(1).await;
        cluster.set_back(1, &pool);
        assert!(is_set_back(&cluster.restart(1).await, 1));
    });
}

#[test]
fn a_whole_cluster_can_be_set_back() {
    with_nodes(3, 7, async |cluster| {
        meet(cluster).await;
        let client = Caller::new(cluster, "client");
        client.create(ROOT, "early").await.unwrap();
        cluster.stop_all().await;
        let copies: Vec<_> = (0..3).map(|node| cluster.copy_of_pool(node)).collect();
        for round in 0..5 {
            for node in 0..3 {
                cluster.restart(node).await.unwrap();
            }
            meet(cluster).await;
            let client = Caller::new(cluster, &format!("client {round}"));
            assert_eq!(client.names(ROOT).await.unwrap(), ["early"]);
            client.create(ROOT, "late").await.unwrap();
            match round % 2 {
                0 => cluster.stop_all().await,
                _ => {
                    for node in 0..3 {
                        cluster.crash(node).await;
                    }
                }
            }
            for (node, copy) in (0..3).zip(&copies) {
                cluster.set_back(node, copy);
            }
        }
    });
}

#[test]
fn a_client_remembers_while_it_lives() {
    with_nodes(1, 5, async |cluster| {
        let client = cluster.client("client");
        let ask = async || client.call_node(NodeId(0), Cred::Kernel, Request::Map).await;
        ask().await.unwrap();
        let copy = cluster.copy_of_pool(0);
        cluster.stop(0).await;
        cluster.restart(0).await.unwrap();
        ask().await.unwrap();
        cluster.crash(0).await;
        let pool = cluster.copy_of_pool(0);
        cluster.set_back(0, &copy);
        cluster.restart(0).await.unwrap();
        let refused = ask().await.unwrap_err();
        assert!(matches!(refused, FsError::SetBack { node: 0, .. }), "{refused}");
        assert_eq!(refused.errno(), 5);
        cluster.crash(0).await;
        cluster.set_back(0, &pool);
        cluster.restart(0).await.unwrap();
        ask().await.unwrap();
    });
}

#[test]
fn no_pool_is_refused_that_was_not_set_back() {
    for seed in 0..5 {
        with_nodes(3, seed, async |cluster| {
            let mut rng = Rng::new(seed);
            for round in 0..40 {
                let node = rng.roll(3) as u16;
                match (cluster.is_running(node), rng.roll(4)) {
                    (true, 0) => cluster.stop(node).await,
                    (true, 1) => cluster.crash(node).await,
                    (true, 2) => cluster.power_cut(node, seed << 8 | round).await,
                    (true, _) => cluster.sleep(Duration::from_millis(rng.roll(20_000))).await,
                    (false, _) => cluster.restart(node).await.unwrap(),
                }
            }
            for node in 0..3 {
                if !cluster.is_running(node) {
                    cluster.restart(node).await.unwrap();
                }
            }
            meet(cluster).await;
            assert!((0..3).all(|node| cluster.is_running(node)));
        });
    }
}

#[test]
fn clients_cannot_say_what_a_pool_was() {
    with_nodes(2, 6, async |cluster| {
        let client = Caller::new(cluster, "client");
        let mut past = polvo_format::PoolPast::default();
        past.history.era = 1 << 40;
        assert_eq!(
            client.ask_node(0, Request::Past(past)).await,
            Err(FsError::NotPermitted)
        );
        meet(cluster).await;
        assert!(cluster.is_running(0) && cluster.is_running(1));
    });
}
