//! A node dies, and what it has served is served by those that have copies; nobody who was answered has lost anything.

use crate::common::*;
use polvo_format::NodeId;
use polvo_node::Phase;
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;
use tokio::task::spawn_local;

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        replicas: 2,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// Files with contents of their own, spread over all regions.
async fn files(c: &Caller, dir: InodeRef, count: u64) -> Vec<(InodeRef, Vec<u8>)> {
    let mut files = Vec::new();
    for i in 0..count {
        let file = c.create(dir, &format!("f{i}")).await.unwrap();
        let contents = pattern(500 + 100 * i as usize, i);
        c.write(file, 0, &contents).await.unwrap();
        files.push((file, contents));
    }
    files
}

async fn all_there(c: &Caller, dir: InodeRef, files: &[(InodeRef, Vec<u8>)]) {
    for (i, (file, contents)) in files.iter().enumerate() {
        assert_eq!(c.find(dir, &format!("f{i}")).await, Ok(*file));
        assert_eq!(&c.read(*file).await.unwrap(), contents, "file {i}");
    }
}

#[test]
fn what_a_dead_node_has_served_is_served_by_others_with_all_that_was_answered() {
    for dead in 0..3 {
        std::thread::spawn(move || {
            run(options(100 + u64::from(dead)), async |cluster| {
                let c = Caller::new(cluster, "client");
                cluster.mirrored().await;
                let before = files(&c, ROOT, 30).await;
                cluster.crash(dead).await;
                let begun = tokio::time::Instant::now();
                all_there(&c, ROOT, &before).await;
                let dir = c.mkdir(ROOT, "dir").await.unwrap();
                println!("node {dead}: went on after {:?}", begun.elapsed());
                assert!(begun.elapsed() < Duration::from_secs(6));
                let since = files(&c, dir, 30).await;
                all_there(&c, ROOT, &before).await;
                all_there(&c, dir, &since).await;
                cluster.restart(dead).await.unwrap();
                cluster.sleep(Duration::from_secs(3)).await;
                settle(cluster).await;
                all_there(&c, ROOT, &before).await;
                all_there(&c, dir, &since).await;
                // and once more, with another one
                cluster.crash((dead + 1) % 3).await;
                all_there(&c, ROOT, &before).await;
                all_there(&c, dir, &since).await;
                cluster.restart((dead + 1) % 3).await.unwrap();
                cluster.sleep(Duration::from_secs(3)).await;
                settle(cluster).await;
            });
        })
        .join()
        .unwrap();
    }
}

/// Files are open when their node dies, and are unlinked before those that have them open could say so to whoever serves them now.
#[test]
fn what_is_open_and_unlinked_after_its_node_has_died_stays_for_who_has_it_open() {
    run(options(720), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = c.directory_at(cluster, 1, "dir").await;
        let restarted = c.mkdir(ROOT, "restarted").await.unwrap();
        for (node, back, dir) in [(1, false, dir), (2, true, restarted)] {
            let files = &files(&c, dir, 20).await;
            for (file, _) in files {
                c.open(*file).await.unwrap();
            }
            cluster.crash(node).await;
            if back {
                cluster.restart(node).await.unwrap();
            }
            for i in 0..files.len() {
                c.unlink(dir, &format!("f{i}")).await.unwrap();
            }
            // what the session had open it says again, to whoever serves it now
            for (file, contents) in files {
                c.open(*file).await.unwrap();
                assert_eq!(&c.read(*file).await.unwrap(), contents);
            }
            // shorter than the session lasts by itself
            cluster.sleep(Duration::from_secs(15)).await;
            for (file, contents) in files {
                assert_eq!(&c.read(*file).await.unwrap(), contents, "it is open");
                c.release(*file).await.unwrap();
            }
            cluster.sleep(Duration::from_secs(30)).await;
            for (file, _) in files {
                assert_eq!(
                    c.attr(*file).await.err(),
                    Some(FsError::Stale),
                    "nobody has it open any more"
                );
            }
            if !back {
                cluster.restart(node).await.unwrap();
                cluster.sleep(Duration::from_secs(5)).await;
            }
        }
        // nobody has these open: they go when the time is over in which somebody could say so
        let gone = files(&c, dir, 20).await;
        cluster.crash(0).await;
        for (i, (file, _)) in gone.iter().enumerate() {
            c.unlink(dir, &format!("f{i}")).await.unwrap();
            let _gone = c.attr(*file).await;
        }
        cluster.sleep(Duration::from_secs(40)).await;
        for (file, _) in &gone {
            assert_eq!(c.attr(*file).await.err(), Some(FsError::Stale));
        }
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        settle(cluster).await;
    });
}

/// A node hears nobody, and is heard by all: others take its place hardly later than if it had stopped.
#[test]
fn one_that_hears_nobody_is_soon_heard_by_nobody() {
    for seed in 700..712 {
        std::thread::spawn(move || {
            run(options(seed), async |cluster| {
                cluster.mirrored().await;
                cluster.sleep(Duration::from_millis(100 * (seed - 700))).await;
                for other in ["node-1", "node-2"] {
                    cluster.network().partition_one_way(other, "node-0");
                }
                let since = tokio::time::Instant::now();
                let map = || cluster.node(1).map();
                while map().regions.iter().any(|info| info.primary() == Some(NodeId(0))) {
                    cluster.sleep(Duration::from_millis(10)).await;
                }
                println!("seed {seed}: its place is taken after {:?}", since.elapsed());
                assert!(since.elapsed() < Duration::from_millis(2_500), "{:?}", since.elapsed());
                cluster.network().heal_all();
                assert_eq!(deposed_within(cluster, Duration::from_secs(5)).await, [0]);
            });
        })
        .join()
        .unwrap();
    }
}

/// Two nodes do not hear each other, and the third one hears both: one takes the other's place, and nobody else's place is taken, neither
/// while the loser ends nor since.
#[test]
fn of_two_that_do_not_hear_each_other_one_goes_on() {
    for seed in 600..612 {
        run(options(seed), async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let before = files(&c, ROOT, 12).await;
            cluster.network().partition("node-0", "node-1");
            let ended = deposed_within(cluster, Duration::from_secs(8)).await;
            println!("seed {seed}: ended: {ended:?}");
            assert!(ended == [0] || ended == [1], "seed {seed}: {ended:?}");
            all_there(&c, ROOT, &before).await;
            cluster.network().heal_all();
            cluster.sleep(Duration::from_secs(3)).await;
            settle(cluster).await;
            all_there(&c, ROOT, &before).await;
        });
    }
}

/// Of two files without a name that were open when their node died, the one that is opened again stays as long as it is open; the
/// other one's space is free after a lease.
#[test]
fn files_without_a_name_wait_for_those_that_had_them_open() {
    run(options(400), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = dir_on(cluster, &c, 1).await;
        let mut nameless = Vec::new();
        for name in ["claimed", "forgotten"] {
            let (name, file) = c.file_at(cluster, dir, 1, name).await;
            c.write(file, 0, name.as_bytes()).await.unwrap();
            c.open(file).await.unwrap();
            c.unlink(dir, &name).await.unwrap();
            nameless.push((file, name));
        }
        let [(claimed, contents), (forgotten, _)] = &nameless[..] else {
            unreachable!()
        };
        for dead in [1, primary(cluster, *claimed)] {
            cluster.crash(dead).await;
            c.open(*claimed).await.unwrap();
            assert_eq!(c.read(*claimed).await.unwrap(), contents.as_bytes());
            cluster.restart(dead).await.unwrap();
            cluster.mirrored().await;
        }
        assert!(c.attr(*forgotten).await.is_ok(), "somebody may still come for it");
        // the session lives, so that what it has opened again stays
        for _ in 0..6 {
            cluster.sleep(Duration::from_secs(6)).await;
            assert!(c.links.renew().await.iter().all(|(_, answer)| answer.is_ok()));
        }
        assert_eq!(c.attr(*forgotten).await.err(), Some(FsError::Stale));
        assert_eq!(c.read(*claimed).await.unwrap(), contents.as_bytes());
        c.release(*claimed).await.unwrap();
        assert_eq!(c.attr(*claimed).await.err(), Some(FsError::Stale));
        settle(cluster).await;
    });
}

/// A coordinator dies when it has decided, before its participants have their parts; or a participant, before or after it has.
#[test]
fn transactions_are_finished_by_who_takes_a_dead_nodes_place() {
    for (phase, dead) in [
        (Phase::Decided, 0),
        (Phase::Decided, 1),
        (Phase::Dispatched, 1),
        (Phase::Collected, 0),
        (Phase::Collected, 1),
    ] {
        let scenario = move || {
            run(options(200 + u64::from(dead)), async |cluster| {
                let c = Caller::new(cluster, "client");
                cluster.mirrored().await;
                // a rename from a directory on node 1 to one on node 0, which coordinates
                let new_dir = dir_on(cluster, &c, 0).await;
                let old_dir = dir_on(cluster, &c, 1).await;
                let file = c.create(old_dir, "old").await.unwrap();
                c.write(file, 0, b"contents").await.unwrap();
                cluster.node(0).stop_coordinator_at(phase);
                let renaming = {
                    let c = c.clone();
                    spawn_local(async move { c.rename(old_dir, "old", new_dir, "new").await })
                };
                while !cluster.node(0).coordinator_has_stopped() {
                    cluster.sleep(Duration::from_millis(1)).await;
                }
                cluster.crash(dead).await;
                if dead != 0 {
                    cluster.node(0).let_coordinator_go_on();
                }
                let renamed = tokio::time::timeout(Duration::from_secs(30), renaming).await;
                let renamed = renamed.expect("it ends").unwrap();
                println!("{phase:?}, node {dead} died: {renamed:?}");
                let (old, new) = (c.find(old_dir, "old").await, c.find(new_dir, "new").await);
                match renamed {
                    Ok(()) => assert_eq!((old, new), (Err(FsError::NotFound), Ok(file))),
                    Err(_) => assert!(
                        (old.clone(), new.clone()) == (Ok(file), Err(FsError::NotFound))
                            || (old, new) == (Err(FsError::NotFound), Ok(file)),
                        "half done"
                    ),
                }
                assert_eq!(c.read(file).await.unwrap(), b"contents");
                cluster.restart(dead).await.unwrap();
                cluster.sleep(Duration::from_secs(3)).await;
                settle(cluster).await;
            });
        };
        std::thread::spawn(scenario).join().unwrap();
    }
}

/// Who moves a directory dies, and has the lock under which that is done. Nobody waits for it longer than for what he has served.
#[test]
fn the_rename_lock_of_a_dead_node_is_free_when_others_have_taken_its_place() {
    run(options(210), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let grantor = primary(cluster, ROOT);
        let (holder, other) = ((grantor + 1) % 3, (grantor + 2) % 3);
        let old_dir = dir_on(cluster, &c, grantor).await;
        let (held_dir, new_dir) = (dir_on(cluster, &c, holder).await, dir_on(cluster, &c, other).await);
        for name in ["held", "moved"] {
            c.mkdir(old_dir, name).await.unwrap();
        }
        cluster.node(holder).stop_coordinator_at(Phase::Collected);
        let held = {
            let c = c.clone();
            spawn_local(async move { c.rename(old_dir, "held", held_dir, "held").await })
        };
        while !cluster.node(holder).coordinator_has_stopped() {
            cluster.sleep(Duration::from_millis(1)).await;
        }
        cluster.crash(holder).await;
        let begun = tokio::time::Instant::now();
        c.rename(old_dir, "moved", new_dir, "moved").await.unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        held.await.unwrap().unwrap();
        c.find(new_dir, "moved").await.unwrap();
        c.find(held_dir, "held").await.unwrap();
        cluster.restart(holder).await.unwrap();
        cluster.sleep(Duration::from_secs(3)).await;
        settle(cluster).await;
    });
}

async fn dir_on(cluster: &Cluster, c: &Caller, node: u16) -> InodeRef {
    for i in 0.. {
        let dir = c.mkdir(ROOT, &format!("dir on {node}, {i}")).await.unwrap();
        if cluster.map().primary(dir.ino.region()) == Some(NodeId(node)) {
            return dir;
        }
    }
    unreachable!()
}

/// A node is cut off from the others, which take its place; when it is back it gives way, and gets copies.
#[test]
fn a_node_that_was_cut_off_gives_way() {
    run(options(300), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let before = files(&c, ROOT, 20).await;
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
        }
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let since = files(&c, dir, 20).await;
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(2)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(0).await.unwrap();
        settle(cluster).await;
        all_there(&c, ROOT, &before).await;
        all_there(&c, dir, &since).await;
    });
}

/// A node comes back without its disk: what it has served is served by others, and it gets copies of everything.
#[test]
fn a_node_that_has_lost_its_pool_is_filled_again() {
    run(options(400), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let before = files(&c, ROOT, 30).await;
        cluster.crash(0).await;
        cluster.new_pool(0);
        // at once: the others have not missed it yet
        if cluster.restart(0).await.is_ok() {
            cluster.sleep(Duration::from_secs(5)).await;
            if let Some(node) = cluster.deposed() {
                let ended = cluster.ended(node).await;
                println!("it ended with {ended:?}");
                cluster.restart(node).await.unwrap();
            }
        }
        cluster.sleep(Duration::from_secs(3)).await;
        all_there(&c, ROOT, &before).await;
        settle(cluster).await;
        // what it has now counts
        cluster.crash(1).await;
        all_there(&c, ROOT, &before).await;
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(3)).await;
        settle(cluster).await;
    });
}

/// Of two that make the same name one decides while its mirror cannot be reached; the other one finds the name when it is to decide, and
/// is not told of it before the mirror has it: nobody may ever hear of it otherwise.
#[test]
fn who_comes_too_late_with_a_name_is_told_so_when_mirrors_have_it() {
    for ms in (150..=300).step_by(50) {
        run(options(900), async |cluster| {
            let (one, other) = (Caller::new(cluster, "one"), Caller::new(cluster, "other"));
            cluster.mirrored().await;
            let before = files(&one, ROOT, 12).await;
            let primary = primary(cluster, ROOT);
            let map = cluster.map();
            let replicas = &map.region(ROOT.ino.region()).unwrap().replicas;
            let mirror = replicas
                .iter()
                .find(|replica| replica.node.0 != primary)
                .unwrap()
                .node
                .0;
            cluster
                .network()
                .set_delay(Duration::from_millis(30)..=Duration::from_millis(30));
            let makers = (0..12).flat_map(|i| [(one.clone(), i), (other.clone(), i)]);
            let made = makers.map(|(c, i)| spawn_local(async move { c.create(ROOT, &format!("n{i}")).await }));
            let made: Vec<_> = made.collect();
            // both have looked for the name, and their inodes are being collected elsewhere
            cluster.sleep(Duration::from_millis(ms)).await;
            let (node, copy) = (format!("node-{primary}"), format!("node-{mirror}"));
            cluster.network().partition(&node, &copy);
            // what the mirror has is told by then: it is put in place elsewhere, and the answer is on its way
            cluster.sleep(Duration::from_millis(91)).await;
            let told = || made.iter().filter(|made| made.is_finished()).count();
            let before_that = told();
            cluster.sleep(Duration::from_millis(700)).await;
            assert_eq!(
                told(),
                before_that,
                "cut off after {ms} ms: the mirror has nothing of what these are told"
            );
            cluster.network().heal_all();
            cluster
                .network()
                .set_delay(Duration::from_micros(20)..=Duration::from_micros(20));
            let mut answers = Vec::new();
            for made in made {
                answers.push(made.await.unwrap());
            }
            for pair in answers.chunks(2) {
                let won = pair.iter().filter(|answer| answer.is_ok()).count();
                assert!(won == 1 && pair.contains(&Err(FsError::Exists)), "{pair:?}");
            }
            all_there(&one, ROOT, &before).await;
        });
    }
}

/// What a name leads to is told along with it only as far as mirrors have it: that may be another region's.
#[test]
fn attributes_that_come_with_a_name_are_those_that_mirrors_have() {
    run(options(901), async |cluster| {
        let (c, other) = (Caller::new(cluster, "client"), Caller::new(cluster, "other"));
        cluster.mirrored().await;
        let dir = c.directory_at(cluster, 0, "dir").await;
        let mut elsewhere = dir;
        for i in 0..30 {
            if elsewhere.ino.region() == dir.ino.region() {
                elsewhere = c.directory_at(cluster, 0, &format!("elsewhere{i}-")).await;
            }
        }
        let (_, file) = c.file_at(cluster, elsewhere, 0, "f").await;
        assert_ne!(file.ino.region(), dir.ino.region());
        c.link(file, dir, "f").await.unwrap();
        c.write(file, 0, b"before").await.unwrap();
        let lookup = ask::Lookup {
            dir,
            name: b"f".to_vec(),
        };
        let found = other.ask(dir.ino.region(), lookup.clone()).await.unwrap();
        assert_eq!(found.attr.map(|(attr, _)| attr.size), Some(6));
        cluster.rest().await;
        for away in [1, 2] {
            cluster.network().partition("node-0", &format!("node-{away}"));
        }
        let writing = spawn_local(async move { c.write(file, 6, b" and after").await });
        cluster.sleep(Duration::from_millis(50)).await;
        assert!(!writing.is_finished());
        let found = other.ask(dir.ino.region(), lookup).await.unwrap();
        assert_eq!(found.target, file);
        assert_eq!(found.attr.map(|(attr, _)| attr.size).filter(|size| *size > 6), None);
        cluster.network().heal_all();
        writing.await.unwrap().unwrap();
    });
}
