//! Mirrors follow their regions in every byte, whatever is done, and through restarts of either side.

use crate::common::*;
use polvo_format::{FileKind, NodeId};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::Instant;

fn options(seed: u64, replicas: u8) -> ClusterOptions {
    ClusterOptions {
        seed,
        replicas,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// A little of everything that changes a region, in directories of its own.
async fn work(c: &Caller, name: &str) {
    let dir = c.mkdir(ROOT, name).await.unwrap();
    let other = c.mkdir(dir, "other").await.unwrap();
    for i in 0..24u32 {
        let file = c.create(dir, &format!("f{i}")).await.unwrap();
        c.write(file, 0, &pattern(100 + 150 * i as usize, u64::from(i)))
            .await
            .unwrap();
        if i % 3 == 0 {
            c.write_active(file, 4096, &pattern(50_000, u64::from(i)))
                .await
                .unwrap();
        }
        match i % 6 {
            1 => c.rename(dir, &format!("f{i}"), other, &format!("g{i}")).await.unwrap(),
            2 => c.unlink(dir, &format!("f{i}")).await.unwrap(),
            3 => drop(c.link(file, other, &format!("l{i}")).await.unwrap()),
            4 => {
                let set = SetAttr {
                    size: Some(50),
                    ..SetAttr::default()
                };
                c.set(file, set).await.unwrap();
            }
            _ => {}
        }
    }
    c.make(other, "pipe", new_file(FileKind::Fifo, 0o600), false)
        .await
        .unwrap();
}

async fn compared(cluster: &Cluster) -> usize {
    cluster.rest().await;
    cluster.mirrored().await;
    // what nobody waits for is sent now and then
    cluster.sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.check(), Vec::<String>::new());
    cluster.compare_mirrors().unwrap()
}

#[test]
fn mirrors_are_equal_after_all_that_changes_a_region() {
    all_that_changes_a_region(2);
}

#[test]
fn two_mirrors_are_equal_after_all_that_changes_a_region() {
    all_that_changes_a_region(3);
}

fn all_that_changes_a_region(replicas: u8) {
    {
        run(options(u64::from(replicas), replicas), async |cluster| {
            let c = Caller::new(cluster, "client");
            // some of it before there are copies, and some while they are made
            work(&c, "early").await;
            cluster.mirrored().await;
            let inside = Caller::colocated(cluster, "inside", 1).await;
            tokio::join!(work(&c, "a"), work(&inside, "b"));
            assert_eq!(compared(cluster).await, 6 * (usize::from(replicas) - 1));
        });
    }
}

#[test]
fn nothing_keeps_the_copies_of_a_new_cluster_waiting() {
    run(options(4, 3), async |cluster| {
        let begun = Instant::now();
        cluster.mirrored().await;
        let took = begun.elapsed();
        // a beacon has to be answered first; `mirrored` looks ten times a second
        assert!(took <= Duration::from_millis(400), "{took:?}");
    });
}

#[test]
fn a_lane_is_used_again_and_again() {
    run(options(5, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = c.create(ROOT, "file").await.unwrap();
        // some 3 MiB of records, through lanes of 252 KiB
        for i in 0..3000u32 {
            c.write(file, u64::from(i % 7) * 1000, &pattern(900, u64::from(i)))
                .await
                .unwrap();
        }
        compared(cluster).await;
    });
}

#[test]
fn a_region_goes_on_without_a_mirror_that_is_gone_and_takes_it_back() {
    run(options(6, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        work(&c, "before").await;
        cluster.crash(2).await;
        // what node 2 serves is away; work where the others are
        let dir = loop {
            let name = format!("d{}", cluster.next_session().0);
            let dir = c.mkdir(ROOT, &name).await;
            if let Some(dir) = dir.ok().filter(|dir| dir.ino.region().0 % 3 != 2) {
                break dir;
            }
        };
        let mut made = 0;
        for i in 0..60 {
            made += usize::from(c.create(dir, &format!("x{i}")).await.is_ok());
        }
        assert!(made > 20, "{made} of 60");
        cluster.restart(2).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        work(&c, "after").await;
        assert_eq!(compared(cluster).await, 6);
    });
}

/// A node is silent, and its connections stay. Whoever writes where it has a copy waits until it counts as away, and no longer.
#[test]
fn a_silent_mirror_is_not_waited_for_longer_than_it_takes_to_find_it_away() {
    let mut worst = Duration::ZERO;
    for seed in 700..704 {
        let pause = run(options(seed, 2), async |cluster| {
            let c = Rc::new(Caller::new(cluster, "client"));
            cluster.mirrored().await;
            let mut writers = Vec::new();
            let is_over = Rc::new(Cell::new(false));
            for i in 0..48u64 {
                let file = c.create(ROOT, &format!("f{i}")).await.unwrap();
                if cluster.map().primary(file.ino.region()) == Some(NodeId(2)) {
                    continue;
                }
                let (c, is_over) = (c.clone(), is_over.clone());
                writers.push(spawn_local(async move {
                    let mut longest = Duration::ZERO;
                    while !is_over.get() {
                        let begun = Instant::now();
                        c.write(file, 0, b"something else each time").await.unwrap();
                        longest = longest.max(begun.elapsed());
                        tokio::time::sleep(Duration::from_millis(1 + 61 * i % 1000)).await;
                    }
                    longest
                }));
            }
            cluster.sleep(Duration::from_millis(500 + 47 * seed % 500)).await;
            for other in ["node-0", "node-1", "client"] {
                cluster.network().partition("node-2", other);
            }
            cluster.sleep(Duration::from_secs(6)).await;
            is_over.set(true);
            let mut longest = Vec::new();
            for writer in writers {
                longest.push(writer.await.unwrap());
            }
            longest.sort();
            println!("seed {seed}: {longest:?}");
            *longest.last().unwrap()
        });
        worst = worst.max(pause);
    }
    assert!(worst < Duration::from_millis(2000), "{worst:?}");
}

#[test]
fn a_primary_that_was_started_anew_makes_new_copies() {
    run(options(7, 3), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        work(&c, "before").await;
        for node in [1, 0] {
            cluster.power_cut(node, 3).await;
            cluster.restart(node).await.unwrap();
            work(&c, &format!("after {node}")).await;
        }
        assert_eq!(compared(cluster).await, 12);
    });
}
