//! Regions that are answered before their mirrors have what was done: what a node's death may take with it, and what it may not. Each bug
//! of [`polvo_region::planted`] that is about them is planted once, too.

use super::*;
use polvo_cluster::join_all;

/// Region n is at node n, and its mirror at the next one.
fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        regions_per_node: 1,
        replicas: 2,
        durability: Durability::Async,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

#[test]
fn a_transaction_that_does_not_wait_for_mirrors() {
    caught(Planted::TransactionNotAwaited, a_participant_dies_that_has_collected);
}

#[test]
fn a_sync_that_does_not_wait_for_mirrors() {
    caught(Planted::SyncNotAwaited, a_primary_dies_that_was_asked_to_sync);
}

#[test]
fn a_generation_given_again_after_a_loss() {
    caught(Planted::LostGenerationsGiven, a_file_is_lost_and_another_one_made);
}

#[test]
fn answers_however_far_mirrors_are_behind() {
    caught(Planted::BehindUnbounded, much_is_done_at_once);
}

#[test]
fn answers_without_a_lease() {
    caught(Planted::LeaseForgotten, a_primary_is_cut_off);
}

/// A directory and a file there, both at node `n`.
async fn file_at(cluster: &Cluster, c: &Caller, node: u16) -> (InodeRef, InodeRef) {
    let dir = c.directory_at(cluster, node, "dir").await;
    let (_, file) = c.file_at(cluster, dir, node, "f").await;
    (dir, file)
}

/// A node dies when its network is the usual one again, and comes back; others have taken its place by then.
async fn dies(cluster: &mut Cluster, node: u16) {
    cluster.crash(node).await;
    cluster.network().heal_all();
    cluster.sleep(Duration::from_secs(5)).await;
    cluster.restart(node).await.unwrap();
    cluster.sleep(Duration::from_secs(5)).await;
}

#[test]
fn a_change_is_answered_before_its_mirror_hears_of_it_and_comes_there_unasked() {
    run(options(1), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (_, file) = file_at(cluster, &c, 0).await;
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition("node-0", "node-1");
        let begun = Instant::now();
        c.write(file, 0, b"bytes").await.unwrap();
        assert_eq!(c.read(file).await.unwrap(), b"bytes");
        assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
        assert!(!cluster.is_at_rest(), "the mirror cannot have it");
        cluster.network().heal_all();
        settle(cluster).await;
        cluster.crash(0).await;
        assert_eq!(c.read(file).await.unwrap(), b"bytes");
        cluster.restart(0).await.unwrap();
    });
}

#[test]
fn a_node_that_is_stopped_takes_nothing_with_it() {
    run(options(2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (_, file) = file_at(cluster, &c, 0).await;
        cluster.sleep(Duration::from_secs(1)).await;
        // nothing is sent by itself so soon
        c.write(file, 0, b"bytes").await.unwrap();
        assert!(!cluster.is_at_rest());
        cluster.stop(0).await;
        assert_eq!(c.read(file).await.unwrap(), b"bytes");
        cluster.restart(0).await.unwrap();
        settle(cluster).await;
    });
}

/// Files of a region are written in turn while its mirror hears nothing, and a node dies: what is there is what was there at one time.
#[test]
fn who_takes_the_place_has_the_region_as_it_was_at_a_commit_point() {
    let mut lost = 0;
    for seed in 0..8 {
        lost += std::thread::spawn(move || {
            run(options(10 + seed), async |cluster| {
                let c = Caller::new(cluster, "client");
                cluster.mirrored().await;
                let (dir, first) = file_at(cluster, &c, 0).await;
                let (_, second) = c.file_at(cluster, dir, 0, "g").await;
                let write = async |turn: u8| {
                    c.write(first, 0, &[turn]).await.unwrap();
                    c.write(second, 0, &[turn]).await.unwrap();
                };
                for turn in 0..10 {
                    write(turn).await;
                }
                c.ask_node(0, ask::Sync).await.unwrap();
                // as long as it has a lease
                for turn in 10..60 + 5 * seed as u8 {
                    write(turn).await;
                    if turn == 40 {
                        cluster.network().partition("node-0", "node-1");
                    }
                }
                dies(cluster, 0).await;
                let (first, second) = (c.read(first).await.unwrap()[0], c.read(second).await.unwrap()[0]);
                assert!(first >= 9 && second >= 9, "it was synced: {first}, {second}");
                assert!(first == second || first == second + 1, "{first}, {second}");
                settle(cluster).await;
                u32::from(second < 59 + 5 * seed as u8)
            })
        })
        .join()
        .unwrap();
    }
    assert!(lost > 0, "nothing was lost: this shows nothing");
}

/// A participant that nobody with a copy can hear is asked to collect, and dies.
fn a_participant_dies_that_has_collected() {
    run(options(43), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let new_dir = c.directory_at(cluster, 0, "new").await;
        let (old_dir, file) = file_at(cluster, &c, 1).await;
        c.link(file, old_dir, "source").await.unwrap();
        c.ask_node(1, ask::Sync).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition("node-1", "node-2");
        let renaming = {
            let c = c.clone();
            spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
        };
        cluster.sleep(Duration::from_millis(600)).await;
        dies(cluster, 1).await;
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.rest().await;
        assert_eq!(c.find(new_dir, "dest").await, Ok(file));
        assert_eq!(c.find(old_dir, "source").await, Err(FsError::NotFound));
        settle(cluster).await;
    });
}

/// Who is told that what he has written is durable finds it whoever dies; who is not may.
fn a_primary_dies_that_was_asked_to_sync() {
    run(options(47), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (_, file) = file_at(cluster, &c, 0).await;
        c.write(file, 0, b"before").await.unwrap();
        c.ask_node(0, ask::Sync).await.unwrap();
        cluster.network().partition("node-0", "node-1");
        c.write(file, 0, b"after!").await.unwrap();
        let synced = timeout(Duration::from_millis(600), c.ask_node(0, ask::Sync)).await;
        dies(cluster, 0).await;
        let found = c.read(file).await.unwrap();
        assert!(found == b"before" || found == b"after!");
        assert!(found == b"after!" || !matches!(synced, Ok(Ok(()))), "it was synced");
        settle(cluster).await;
    });
}

/// Of a file that is lost with its node somebody knows; the next one is not taken for it.
fn a_file_is_lost_and_another_one_made() {
    run(options(53), async |cluster| {
        let c = Caller::at_home(cluster, "client", 0);
        cluster.mirrored().await;
        let dir = c.directory_at(cluster, 0, "dir").await;
        set_xattr(&c, dir, "polvo.placement", b"local").await;
        c.ask_node(0, ask::Sync).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition("node-0", "node-1");
        let lost = c.create(dir, "lost").await.unwrap();
        assert_eq!(lost.ino.region(), dir.ino.region(), "no other region takes part");
        dies(cluster, 0).await;
        let mut is_there_again = false;
        for i in 0..20 {
            let next = c.create(dir, &format!("next{i}")).await.unwrap();
            is_there_again |= next.ino == lost.ino;
            assert_ne!(next, lost);
        }
        assert!(is_there_again, "no file lies where the lost one lay");
        assert_eq!(c.attr(lost).await.err(), Some(FsError::Stale));
        settle(cluster).await;
    });
}

/// More is done in the time that a message takes to the mirror than may be ahead of it.
fn much_is_done_at_once() {
    let options = ClusterOptions {
        pool_bytes: 160 << 20,
        segment_shift: Some(22),
        ..options(59)
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (_, file) = file_at(cluster, &c, 0).await;
        cluster.sleep(Duration::from_secs(1)).await;
        let (slow, fast) = (Duration::from_millis(140), Duration::from_micros(100));
        cluster.network().set_delay_between("node-0", "node-1", slow..=slow);
        for (from, to) in [("client", "node-0"), ("node-0", "client")] {
            cluster.network().set_delay_between(from, to, fast..=fast);
        }
        let value = vec![7; XATTR_VALUE_MAX - 1000];
        let begun = Instant::now();
        for _ in 0..17 {
            join_all((0..10).map(|_| set_xattr(&c, file, "user.x", &value))).await;
        }
        let took = begun.elapsed();
        assert!(took >= 2 * slow, "{took:?}");
        assert!(took < 20 * slow, "{took:?}");
        cluster.network().set_delay_between("node-0", "node-1", fast..=fast);
        settle(cluster).await;
    });
}

/// A primary whose mirror has not heard of it for a lease says nothing more: others may have taken its place.
fn a_primary_is_cut_off() {
    run(options(61), async |cluster| {
        let (c, beside) = (Caller::new(cluster, "client"), Caller::new(cluster, "beside"));
        cluster.mirrored().await;
        let (_, file) = file_at(cluster, &c, 0).await;
        c.write(file, 0, b"before").await.unwrap();
        assert_eq!(beside.read(file).await.unwrap(), b"before");
        for node in ["node-1", "node-2", "client"] {
            cluster.network().partition("node-0", node);
        }
        for node in ["node-1", "node-2"] {
            cluster.network().partition("beside", node);
        }
        c.write(file, 0, b"after!").await.unwrap();
        let found = timeout(Duration::from_secs(4), beside.read(file)).await;
        assert!(
            !matches!(&found, Ok(Ok(bytes)) if bytes == b"before"),
            "a later primary is there"
        );
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(5)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
    });
}
