//! A node stays away, and others get its copies: they take the place of primaries with all that was answered. It comes back, and gives up
//! what it had.

use crate::common::*;
use polvo_format::{NodeId, RegionId};
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
        replace_after: Some(Duration::from_secs(2)),
        ..ClusterOptions::default()
    }
}

/// Files with contents of their own, spread over all regions.
async fn files(c: &Caller, prefix: &str, count: u64) -> Vec<(InodeRef, Vec<u8>)> {
    let mut files = Vec::new();
    for i in 0..count {
        let file = c.create(ROOT, &format!("{prefix}{i}")).await.unwrap();
        let contents = pattern(700 + 80 * i as usize, i);
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

fn map(cluster: &Cluster, node: u16) -> std::sync::Arc<ClusterMap> {
    cluster.node(node).map()
}

fn count_of_copies(map: &ClusterMap, node: u16) -> usize {
    let roles = map.regions.iter().filter_map(|info| info.role(NodeId(node)));
    roles.filter(|role| *role != ReplicaRole::Primary).count()
}

#[test]
fn copies_of_a_dead_node_are_made_elsewhere_and_can_take_over_with_everything() {
    for dead in [1, 4] {
        run(options(u64::from(dead), 5, 2), async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let mut all = files(&c, "before", 40).await;
            cluster.crash(dead).await;
            all.extend(files(&c, "away", 20).await);
            cluster.replaced(dead).await;
            let now = map(cluster, 0);
            for info in &now.regions {
                assert_eq!(info.replicas.len(), 2, "as many as before: {info:?}");
                assert!(info.role(NodeId(dead)).is_none());
            }
            let copies: Vec<usize> = (0..5)
                .map(|node| count_of_copies(&now, node))
                .filter(|n| *n > 0)
                .collect();
            assert!(
                copies.len() == 4 && copies.iter().max() <= copies.iter().min().map(|n| n + 1).as_ref(),
                "{copies:?}"
            );
            settle(cluster).await;
            all.extend(files(&c, "since", 20).await);
            // whoever dies next: what it has, others have
            let next = (dead + 1) % 5;
            cluster.power_cut(next, 5).await;
            all_there(&c, &all).await;
            cluster.replaced(next).await;
            settle(cluster).await;
            all_there(&c, &all).await;
        });
    }
}

#[test]
fn a_node_that_comes_back_gives_up_what_others_have_now() {
    run(options(10, 4, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let all = files(&c, "f", 40).await;
        assert!(!cluster.held(3).is_empty());
        cluster.crash(3).await;
        cluster.replaced(3).await;
        // it hears nothing of that: as long as nobody says so it keeps everything
        for other in ["node-0", "node-1", "node-2"] {
            cluster.network().partition("node-3", other);
        }
        cluster.restart(3).await.unwrap();
        cluster.sleep(Duration::from_secs(30)).await;
        let kept = cluster.held(3);
        assert!(kept.len() >= 4, "{kept:?}");
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(30)).await;
        assert_eq!(cluster.held(3), []);
        for region in 0..8 {
            let left = [true, false].map(|data| cluster.segments(3, RegionId(region), data));
            assert_eq!(left, [vec![], vec![]]);
        }
        settle(cluster).await;
        // and gets copies like any other one: here those of a node that it was a stranger to
        cluster.crash(0).await;
        cluster.replaced(0).await;
        assert!(!cluster.copies(3).is_empty());
        settle(cluster).await;
        all_there(&c, &all).await;
    });
}

/// It was cut off all the time, takes itself for a mirror yet, and hears of its primary's death as soon as it hears the others again.
#[test]
fn a_replaced_node_that_has_not_heard_of_it_takes_nobodys_place() {
    for seed in 20..23 {
        run(options(seed, 5, 2), async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let mut all = files(&c, "f", 40).await;
            for other in ["node-0", "node-2", "node-3", "node-4"] {
                cluster.network().partition("node-1", other);
            }
            cluster.sleep(Duration::from_secs(4)).await;
            all.extend(files(&c, "away", 30).await);
            let stale = map(cluster, 1);
            for _ in 0..600 {
                if count_of_copies(&map(cluster, 0), 1) == 0 {
                    break;
                }
                cluster.sleep(Duration::from_millis(100)).await;
            }
            let is_mirror = |info: &&RegionInfo| info.role(NodeId(1)) == Some(ReplicaRole::Mirror);
            let of = stale.regions.iter().find(is_mirror).expect("it takes itself for one");
            let primary = of.primary().unwrap().0;
            cluster.sleep(Duration::from_secs(3)).await;
            cluster.crash(primary).await;
            cluster.network().heal_all();
            all_there(&c, &all).await;
            cluster.sleep(Duration::from_secs(2)).await;
            let ended = cluster.ended(1).await;
            assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
            let now = map(cluster, (primary + 1) % 5 + u16::from((primary + 1) % 5 == 1));
            assert_ne!(now.primary(of.id), Some(NodeId(1)));
            cluster.restart(1).await.unwrap();
            cluster.restart(primary).await.unwrap();
            cluster.sleep(Duration::from_secs(20)).await;
            settle(cluster).await;
            all_there(&c, &all).await;
        });
    }
}

#[test]
fn nobody_is_replaced_where_all_have_a_copy_or_it_is_not_wanted() {
    let never = ClusterOptions {
        replace_after: None,
        ..options(30, 4, 2)
    };
    for options in [options(31, 3, 3), never] {
        run(options, async |cluster| {
            cluster.mirrored().await;
            cluster.crash(2).await;
            cluster.sleep(Duration::from_secs(120)).await;
            let epoch = map(cluster, 0).epoch;
            assert!(count_of_copies(&map(cluster, 0), 2) > 0);
            cluster.sleep(Duration::from_secs(60)).await;
            assert_eq!(map(cluster, 0).epoch, epoch, "nothing is tried over and over");
            cluster.restart(2).await.unwrap();
            settle(cluster).await;
        });
    }
}

/// What has been freed of a region is free in its pool also while nobody has a copy of it, so that a node that has no more room than what
/// is left can take one.
#[test]
fn a_copy_is_made_where_only_what_is_left_of_the_region_fits() {
    for backlog_max in [None, Some(200)] {
        let options = ClusterOptions {
            pool_bytes: 64 << 20,
            replace_after: Some(Duration::from_secs(10)),
            backlog_max,
            ..options(41, 3, 2)
        };
        run(options, async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let replicas = |first: u16, second: u16| {
                let map = map(cluster, 0);
                let has = |info: &&RegionInfo| {
                    info.primary() == Some(NodeId(first)) && info.role(NodeId(second)) == Some(ReplicaRole::Mirror)
                };
                map.regions.iter().find(has).map(|info| info.id)
            };
            // node 2 has room for 30 MiB more at the most
            large(&c, replicas(2, 1).expect("somebody follows node 2"), 33).await;
            let region = replicas(0, 1).expect("somebody follows node 0");
            cluster.crash(1).await;
            let (dir, name) = large(&c, region, 40).await;
            c.unlink(dir, &name).await.unwrap();
            cluster.replaced(1).await;
            settle(cluster).await;
            assert_eq!(
                map(cluster, 0).region(region).and_then(|info| info.role(NodeId(2))),
                Some(ReplicaRole::Mirror)
            );
        });
    }
}

/// Makes a file of so many MiB in a region; gives its name.
async fn large(c: &Caller, region: RegionId, mib: u64) -> (InodeRef, String) {
    for i in 0.. {
        let name = format!("large{i} of {region:?}");
        let file = c.create(ROOT, &name).await.unwrap();
        if file.ino.region() == region {
            let bytes = pattern(1 << 20, mib);
            for at in 0..mib {
                c.write_active(file, at << 20, &bytes).await.unwrap();
            }
            return (ROOT, name);
        }
    }
    unreachable!("regions are taken in turn")
}
