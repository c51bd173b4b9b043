//! An operator takes nodes out of the cluster, in order and by force; they serve nothing any more.

use crate::common::*;
use polvo_consensus::register::{Ask, Ballot};
use polvo_format::{Epoch, NodeId, RegionId};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;

fn options(seed: u64, nodes: u16, replicas: u8) -> ClusterOptions {
    ClusterOptions {
        seed,
        nodes,
        replicas,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

async fn files(c: &Caller) -> Vec<(InodeRef, Vec<u8>)> {
    let mut files = Vec::new();
    for i in 0..30 {
        let file = c.create(ROOT, &format!("f{i}")).await.unwrap();
        let contents = pattern(700 + 90 * i as usize, i);
        c.write(file, 0, &contents).await.unwrap();
        files.push((file, contents));
    }
    files
}

async fn all_there(c: &Caller, files: &[(InodeRef, Vec<u8>)]) {
    for (i, (file, contents)) in files.iter().enumerate() {
        assert_eq!(&c.read(*file).await.unwrap(), contents, "file {i}");
    }
}

/// Of an administrator, asked of a node.
async fn step(c: &Caller, at: u16, node: u16, force: bool) -> Result<Option<Vec<RegionId>>, FsError> {
    let node = NodeId(node);
    c.ask_node(at, ask::RemoveNode { node, force }).await
}

async fn remove(cluster: &Cluster, c: &Caller, at: u16, node: u16, force: bool) -> Result<(), FsError> {
    for _ in 0..120 {
        if step(c, at, node, force).await?.is_none() {
            return Ok(());
        }
        cluster.sleep(Duration::from_millis(500)).await;
    }
    panic!("node {node} was not removed within a minute");
}

/// No node knows it any more, all regions have so many replicas, and its pool is served no more.
async fn is_gone(cluster: &mut Cluster, node: u16, replicas: usize) {
    cluster.sleep(Duration::from_secs(2)).await;
    cluster.mirrored().await;
    let map = cluster.newest_map().unwrap();
    assert!(
        map.node(NodeId(node)).is_none() && map.voters.all().all(|voter| voter != NodeId(node)),
        "{map:?}"
    );
    assert!(
        map.regions.iter().all(|info| info.replicas.len() == replicas),
        "{map:?}"
    );
    if cluster.deposed() == Some(node) {
        assert_eq!(cluster.ended(node).await, Err(FsError::Removed { node }));
    }
    for _ in 0..2 {
        assert_eq!(cluster.restart(node).await, Err(FsError::Removed { node }));
    }
    cluster.rest().await;
    cluster.mirrored().await;
    assert_eq!(cluster.check(), Vec::<String>::new());
    cluster.compare_mirrors().unwrap();
}

#[test]
fn a_node_is_removed_in_order_when_others_have_all_that_it_has() {
    for (gone, at) in [(3, 0), (0, 1)] {
        run(options(u64::from(gone), 4, 2), async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let all = files(&c).await;
            let served = step(&c, at, gone, false).await.unwrap_err().to_string();
            assert!(
                served.contains("it serves regions") && served.contains("stop it"),
                "{served}"
            );
            assert!(step(&c, gone, gone, false).await.is_err(), "by itself");
            let user = c.as_user(user(1));
            assert_eq!(step(&user, at, gone, true).await, Err(FsError::NotPermitted));
            assert!(
                step(&c, at, gone, true)
                    .await
                    .unwrap_err()
                    .to_string()
                    .contains("it answers")
            );
            cluster.stop(gone).await;
            cluster.sleep(Duration::from_secs(4)).await;
            if gone == 3 {
                // it is there again, and has copies that count: they stay until others are made
                cluster.restart(gone).await.unwrap();
                cluster.mirrored().await;
                assert!(
                    step(&c, at, gone, false)
                        .await
                        .unwrap()
                        .is_some_and(|regions| !regions.is_empty())
                );
            }
            remove(cluster, &c, at, gone, false).await.unwrap();
            is_gone(cluster, gone, 2).await;
            all_there(&c, &all).await;
            // what it had others have
            let next = 2;
            cluster.crash(next).await;
            all_there(&c, &all).await;
        });
    }
}

#[test]
fn the_survivor_of_two_goes_on_when_the_one_that_votes_is_removed_by_force() {
    run(options(10, 2, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let all = files(&c).await;
        cluster.crash(0).await;
        cluster.sleep(Duration::from_secs(5)).await;
        assert!(step(&c, 1, 0, false).await.is_err(), "there is no majority");
        remove(cluster, &c, 1, 0, true).await.unwrap();
        all_there(&c, &all).await;
        let more = c.create(ROOT, "more").await.unwrap();
        is_gone(cluster, 0, 1).await;
        // and it stays so when nobody is left whom the others could ask
        cluster.crash(1).await;
        assert_eq!(cluster.restart(0).await, Err(FsError::Removed { node: 0 }));
        cluster.restart(1).await.unwrap();
        assert_eq!(c.find(ROOT, "more").await, Ok(more));
        all_there(&c, &all).await;
    });
}

#[test]
fn of_three_nodes_two_of_which_are_gone_for_good_one_goes_on() {
    run(options(11, 3, 3), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let all = files(&c).await;
        cluster.crash(0).await;
        cluster.crash(1).await;
        cluster.sleep(Duration::from_secs(5)).await;
        for gone in [0, 1] {
            remove(cluster, &c, 2, gone, true).await.unwrap();
        }
        all_there(&c, &all).await;
        for gone in [1, 0] {
            is_gone(cluster, gone, 1).await;
        }
    });
}

/// Three of five that vote are taken for dead, and are not: with one that goes by the forced map they would be a majority of those before.
#[test]
fn those_who_voted_before_change_nothing_behind_a_forced_map() {
    let five = ClusterOptions {
        regions_per_node: 1,
        ..options(14, 5, 5)
    };
    run(five, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        for dead in [0, 1, 2] {
            cluster.crash(dead).await;
        }
        cluster.sleep(Duration::from_secs(5)).await;
        let before = cluster.newest_map().unwrap();
        assert!(step(&c, 3, 0, true).await.unwrap().is_some());
        cluster.sleep(Duration::from_secs(15)).await;
        let forced = cluster.node(4).map().epoch;
        assert!(forced > before.epoch);
        for back in [1, 2] {
            cluster.network().partition("node-3", &format!("node-{back}"));
            cluster.restart(back).await.unwrap();
        }
        let links = cluster.node(1).new_links();
        let changed = cluster.node(1).change_map(&links, |map| Some(map.clone())).await;
        assert!(changed.is_err(), "{changed:?}");
        // nor does node 4 accept what one would have it accept that has not heard of the forced map
        let (round, by) = (1 << 40, NodeId(1));
        let mut older = (*before).clone();
        older.epoch = Epoch(before.epoch.0 + 1);
        let accept = Ask::Accept(Ballot { round, by }, older);
        let answer = links.call_node_at_once(NodeId(4), Cred::Kernel, ask::Register(Box::new(accept)));
        assert!(matches!(answer.await, Err(FsError::Invalid(why)) if why.contains("was chosen")));
        drop(links);
        assert!(cluster.newest_map().unwrap().epoch >= forced);
        cluster.network().heal_all();
        remove(cluster, &c, 3, 0, true).await.unwrap();
        is_gone(cluster, 0, 4).await;
    });
}

#[test]
fn who_has_what_nobody_else_has_is_not_removed() {
    run(options(12, 3, 1), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.crash(2).await;
        for force in [true, false] {
            let refused = step(&c, 0, 2, force).await.unwrap_err().to_string();
            assert!(refused.contains("regions 2 5"), "{refused}");
        }
        cluster.restart(2).await.unwrap();
    });
}

/// It was stopped in the middle of whatever it did, and goes on when others have forgotten it.
#[test]
fn a_removed_node_that_goes_on_ends() {
    run(options(13, 4, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let all = files(&c).await;
        cluster.stand_still(3, tokio::time::Instant::now() + Duration::from_secs(30));
        cluster.sleep(Duration::from_secs(6)).await;
        remove(cluster, &c, 0, 3, true).await.unwrap();
        all_there(&c, &all).await;
        cluster.sleep(Duration::from_secs(27)).await;
        is_gone(cluster, 3, 2).await;
        all_there(&c, &all).await;
    });
}
