//! Regions that are handed over to one of their mirrors: nobody dies, nobody is told of an error, and nobody waits for long.

use crate::common::*;
use polvo_format::{NodeId, RegionId, Tail};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

fn options(seed: u64, replicas: u8) -> ClusterOptions {
    ClusterOptions {
        seed,
        nodes: 3,
        replicas,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// Until a region is elsewhere: one that has been where it is for less than a lease, or is busy, stays a while.
async fn hand_over(c: &Caller, cluster: &Cluster, region: RegionId, to: NodeId) -> Result<(), FsError> {
    loop {
        let from = cluster.newest_map().unwrap().primary(region).unwrap();
        match c.ask_node(from.0, ask::HandOver { region, to }).await {
            Err(FsError::Retry) => sleep(Duration::from_millis(100)).await,
            done => return done,
        }
    }
}

/// As `Caller::write`; whether it was done before it was asked once more is not of interest.
async fn write(c: &Caller, file: InodeRef, bytes: &[u8]) {
    let request = ask::Write {
        inode: file,
        offset: 0,
        append: false,
        known: Tail::default(),
        bytes: bytes.to_vec(),
    };
    c.ask(file.ino.region(), request).await.unwrap();
}

fn mirror_of(cluster: &Cluster, region: RegionId) -> NodeId {
    let map = cluster.newest_map().unwrap();
    let mut replicas = map.region(region).unwrap().replicas.iter();
    replicas
        .find(|replica| replica.role == ReplicaRole::Mirror)
        .unwrap()
        .node
}

#[test]
fn all_regions_go_to_another_node_and_back_while_clients_work() {
    for (seed, replicas) in [(1, 2), (2, 3)] {
        run(options(seed, replicas), async move |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let dir = c.mkdir(ROOT, "dir").await.unwrap();
            let worker = {
                let c = Caller::new(cluster, "worker");
                spawn_local(async move {
                    let (mut longest, mut made) = (Duration::ZERO, Vec::new());
                    for i in 0..1_000u64 {
                        let since = Instant::now();
                        let file = c.create(dir, &format!("w{i}")).await.unwrap();
                        let bytes = pattern(100 + 7 * i as usize % 3_900, i);
                        write(&c, file, &bytes).await;
                        made.push((file, bytes));
                        longest = longest.max(since.elapsed());
                        sleep(Duration::from_millis(3)).await;
                    }
                    (longest, made)
                })
            };
            let regions: Vec<RegionId> = cluster.map().regions.iter().map(|info| info.id).collect();
            for region in regions.iter().copied() {
                let to = mirror_of(cluster, region);
                hand_over(&c, cluster, region, to).await.unwrap();
                let map = cluster.newest_map().unwrap();
                assert_eq!(map.primary(region), Some(to));
                let info = map.region(region).unwrap();
                let mirrors = info
                    .replicas
                    .iter()
                    .filter(|replica| replica.role == ReplicaRole::Mirror);
                assert_eq!(mirrors.count(), usize::from(replicas) - 1, "no copy fewer");
            }
            cluster.mirrored().await;
            let (longest, made) = worker.await.unwrap();
            println!("longest pause: {longest:?}");
            for (i, (file, bytes)) in made.iter().enumerate() {
                assert_eq!(c.find(dir, &format!("w{i}")).await, Ok(*file));
                assert_eq!(&c.read(*file).await.unwrap(), bytes, "file {i}");
            }
            // and back, and what it was handed over to dies
            for region in regions.iter().copied() {
                let to = mirror_of(cluster, region);
                hand_over(&c, cluster, region, to).await.unwrap();
            }
            cluster.mirrored().await;
            settle(cluster).await;
            cluster.crash(1).await;
            for (i, (file, bytes)) in made.iter().enumerate() {
                assert_eq!(c.find(dir, &format!("w{i}")).await, Ok(*file));
                assert_eq!(&c.read(*file).await.unwrap(), bytes, "file {i}");
            }
            cluster.restart(1).await.unwrap();
            cluster.sleep(Duration::from_secs(5)).await;
            settle(cluster).await;
            assert!(longest < Duration::from_millis(300), "{longest:?}");
        });
    }
}

/// Somebody has it locked: he claims that from who serves the region now, and nobody else gets the lock meanwhile; who waits for it goes on
/// to wait.
#[test]
fn locks_go_with_their_region() {
    run(options(4, 2), async |cluster| {
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        cluster.mirrored().await;
        let file = a.create(ROOT, "locked").await.unwrap();
        let region = file.ino.region();
        let lock = |owner, wait| ask::Lock {
            inode: file,
            lock: LockAsk {
                owner,
                kind: LockKind::Range,
                mode: LockMode::Exclusive,
                range: LockRange::ALL,
                pid: 1,
            },
            wait,
        };
        let Ok(LockAnswer::Granted(term)) = a.ask(region, lock(1, None)).await else {
            panic!("nobody has it");
        };
        let waits = spawn_local({
            let b = b.clone();
            let request = lock(
                2,
                Some(LockTicket {
                    number: 1,
                    wait_ms: 1000,
                }),
            );
            async move {
                loop {
                    match b.ask(region, request.clone()).await.unwrap() {
                        LockAnswer::Queued => {}
                        LockAnswer::Granted(_) => return Instant::now(),
                    }
                }
            }
        });
        cluster.sleep(Duration::from_millis(100)).await;
        let since = Instant::now();
        hand_over(&a, cluster, region, mirror_of(cluster, region))
            .await
            .unwrap();
        assert!(
            since.elapsed() < Duration::from_millis(200),
            "who waits is sent away: {:?}",
            since.elapsed()
        );
        cluster.sleep(Duration::from_millis(500)).await;
        let claim = ask::ClaimLocks {
            inode: file,
            owner: 1,
            term,
            ranges: vec![Locked {
                range: LockRange::ALL,
                mode: LockMode::Exclusive,
                pid: 1,
            }],
            whole: None,
        };
        let claimed = a.ask(region, claim).await.unwrap();
        assert!(claimed.is_some_and(|now| now != term), "{claimed:?}");
        cluster.sleep(Duration::from_secs(5)).await;
        assert!(!waits.is_finished(), "it is locked");
        let let_go = Instant::now();
        let unlock = ask::Unlock {
            inode: file,
            owner: 1,
            range: LockRange::ALL,
        };
        a.ask(region, unlock).await.unwrap();
        assert!(waits.await.unwrap() >= let_go);
        settle(cluster).await;
    });
}

/// Who had locks where a region was is known where it goes: nobody else waits for them any longer than they take to be claimed.
#[test]
fn locks_are_given_as_soon_as_those_of_before_are_claimed() {
    const SOON: Duration = Duration::from_millis(50);
    const GRACE: Duration = Duration::from_secs(2);
    run(options(6, 2), async |cluster| {
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        cluster.mirrored().await;
        // one by one: claimed, let go of, claimed in parts, of who has gone, of nobody
        let dir = a.mkdir(ROOT, "dir").await.unwrap();
        let mut files = Vec::new();
        for n in 0.. {
            if files.len() == 5 {
                break;
            }
            let file = a.create(dir, &format!("file {n}")).await.unwrap();
            files.extend((file.ino.region() == dir.ino.region()).then_some(file));
        }
        let [claimed, let_go, in_parts, left, free] = files[..] else {
            panic!("five files")
        };
        let region = dir.ino.region();
        let lock = |inode, owner, mode, (first, last), wait| ask::Lock {
            inode,
            lock: LockAsk {
                owner,
                kind: LockKind::Range,
                mode,
                range: LockRange { first, last },
                pid: 1,
            },
            wait,
        };
        let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
        let mut term = None;
        for (inode, range) in [
            (claimed, (0, 9)),
            (let_go, (0, 9)),
            (in_parts, (0, 9)),
            (in_parts, (20, 29)),
            (left, (0, 9)),
        ] {
            let answer = a.ask(region, lock(inode, 1, shared, range, None)).await;
            let Ok(LockAnswer::Granted(given)) = answer else {
                panic!("nobody has it: {answer:?}");
            };
            term = Some(given);
        }
        hand_over(&a, cluster, region, mirror_of(cluster, region))
            .await
            .unwrap();
        let since = Instant::now();
        // none of them is in the way of another; who has not been heard of might be
        let waits: Vec<_> = [
            (claimed, shared),
            (let_go, exclusive),
            (in_parts, shared),
            (left, exclusive),
        ]
        .into_iter()
        .zip(1..)
        .map(|((inode, mode), number)| {
            let ticket = LockTicket { number, wait_ms: 1000 };
            let (b, request) = (b.clone(), lock(inode, 2, mode, (0, 29), Some(ticket)));
            spawn_local(async move {
                while b.ask(region, request.clone()).await.unwrap() == LockAnswer::Queued {}
                Instant::now()
            })
        })
        .collect();
        let answer = b.ask(region, lock(free, 2, exclusive, (0, 29), None)).await.unwrap();
        assert!(matches!(answer, LockAnswer::Granted(_)), "{answer:?}");
        assert!(since.elapsed() < SOON, "nobody had it: {:?}", since.elapsed());
        let claim = |inode, first, last| ask::ClaimLocks {
            inode,
            owner: 1,
            term: term.unwrap(),
            ranges: vec![Locked {
                range: LockRange { first, last },
                mode: shared,
                pid: 1,
            }],
            whole: None,
        };
        cluster.sleep(Duration::from_millis(300)).await;
        assert!(
            waits.iter().all(|wait| !wait.is_finished()),
            "before anybody has claimed"
        );
        let at = Instant::now();
        assert!(a.ask(region, claim(claimed, 0, 9)).await.unwrap().is_some());
        let unlock = ask::Unlock {
            inode: let_go,
            owner: 1,
            range: LockRange::ALL,
        };
        a.ask(region, unlock).await.unwrap();
        assert!(a.ask(region, claim(in_parts, 0, 9)).await.unwrap().is_some());
        cluster.sleep(Duration::from_millis(300)).await;
        let finished: Vec<bool> = waits.iter().map(|wait| wait.is_finished()).collect();
        assert_eq!(
            finished,
            [true, true, false, false],
            "one has not claimed all of it, one nothing"
        );
        let rest = Instant::now();
        assert!(a.ask(region, claim(in_parts, 20, 29)).await.unwrap().is_some());
        let mut times = Vec::new();
        for wait in waits {
            times.push(wait.await.unwrap());
        }
        assert!(
            times[0] - at < SOON && times[1] - at < SOON,
            "{:?}",
            (times[0] - at, times[1] - at)
        );
        assert!(times[2] - rest < SOON, "{:?}", times[2] - rest);
        let waited = times[3] - since;
        assert!(
            (GRACE..GRACE + Duration::from_millis(200)).contains(&waited),
            "{waited:?}"
        );
        let late = a.ask(region, claim(left, 0, 9)).await.unwrap();
        assert_eq!(late, None, "somebody else has it by now");
        settle(cluster).await;
    });
}

/// What was stored while a region was served, and had not to be durable then, is so once that is a copy: it loses its power.
#[test]
fn a_copy_that_was_the_region_before_survives_a_power_cut() {
    for seed in 61..65 {
        run(options(seed, 2), async move |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let dir = c.mkdir(ROOT, "dir").await.unwrap();
            for i in 0..40 {
                let file = c.create(dir, &format!("f{i}")).await.unwrap();
                write(&c, file, &pattern(700, i)).await;
            }
            cluster.rest().await;
            let map = cluster.newest_map().unwrap();
            let leaves = map.primary(ROOT.ino.region()).unwrap();
            for region in map.regions.iter().map(|info| info.id) {
                if map.primary(region) == Some(leaves) {
                    hand_over(&c, cluster, region, mirror_of(cluster, region))
                        .await
                        .unwrap();
                }
            }
            cluster.power_cut(leaves.0, seed).await;
            cluster.restart(leaves.0).await.unwrap();
            cluster.mirrored().await;
            cluster.rest().await;
            let compared = cluster.compare_mirrors().expect("copies are as their regions");
            assert!(compared > 1, "{compared} compared");
        });
    }
}

/// What cannot be handed over stays, and is served; what makes no sense is refused.
#[test]
fn only_mirrors_get_regions_and_only_administrators_ask() {
    run(options(5, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (region, mirror) = (RegionId(0), mirror_of(cluster, RegionId(0)));
        let to = |region, to| ask::HandOver { region, to };
        let third = (1..3).map(NodeId).find(|node| *node != mirror).unwrap();
        let refused = c.ask_node(0, to(region, third)).await;
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
        let elsewhere = cluster
            .map()
            .regions
            .iter()
            .find(|info| info.primary() == Some(third))
            .unwrap()
            .id;
        let refused = c.ask_node(0, to(elsewhere, mirror)).await;
        assert_eq!(refused, Err(FsError::WrongEpoch));
        let user = c.as_user(user(1000)).ask_node(0, to(region, mirror)).await;
        assert_eq!(user, Err(FsError::NotPermitted));
        let take = ask::TakeOver {
            region,
            epoch: polvo_format::Epoch(1),
            locked: None,
        };
        assert_eq!(
            c.ask_node(mirror.0, take).await,
            Err(FsError::NotPermitted),
            "of nobody but a node"
        );
        assert_eq!(c.ask_node(0, to(region, NodeId(0))).await, Ok(()), "it is there");
        assert_eq!(c.ask_node(0, to(region, mirror)).await, Ok(()));
        assert_eq!(c.ask_node(0, to(region, mirror)).await, Ok(()), "it is there by now");
        c.create(ROOT, "file").await.unwrap();
        settle(cluster).await;
    });
}

/// Whoever is to get it, or has handed it over, dies in the middle.
#[test]
fn nodes_die_while_a_region_is_handed_over() {
    for (seed, dies, after_ms) in (0..16u64).map(|i| (i, i % 2, i / 2)) {
        run(options(1000 + seed, 2), async move |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let dir = c.mkdir(ROOT, "dir").await.unwrap();
            let region = dir.ino.region();
            let from = cluster.newest_map().unwrap().primary(region).unwrap();
            let to = mirror_of(cluster, region);
            let worker = spawn_local({
                let c = Caller::new(cluster, "worker");
                async move {
                    for i in 0..300 {
                        c.create(dir, &format!("f{i}")).await.unwrap();
                    }
                }
            });
            let operator = Caller::new(cluster, "operator");
            let asked = spawn_local(async move { operator.ask_node(from.0, ask::HandOver { region, to }).await });
            sleep(Duration::from_millis(after_ms)).await;
            let dead = [from, to][dies as usize].0;
            cluster.crash(dead).await;
            worker.await.unwrap();
            let _ = asked.await.unwrap();
            cluster.restart(dead).await.unwrap();
            cluster.sleep(Duration::from_secs(5)).await;
            assert_eq!(c.names(dir).await.unwrap().len(), 300);
            settle(cluster).await;
        });
    }
}

/// Nobody who reads or writes there notices.
#[test]
fn a_region_goes_that_is_read_and_written() {
    for seed in 0..4 {
        run(options(70 + seed, 2), async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let file = c.create(ROOT, "file").await.unwrap();
            c.write(file, 0, b"before").await.unwrap();
            let region = file.ino.region();
            let writer = spawn_local({
                let c = Caller::new(cluster, "writer");
                async move {
                    for round in 0..200u64 {
                        let bytes = pattern(4000, round);
                        let request = ask::Write {
                            inode: file,
                            offset: 0,
                            append: true,
                            known: Tail::default(),
                            bytes: bytes.clone(),
                        };
                        c.ask(file.ino.region(), request).await.unwrap();
                    }
                }
            });
            // what they have begun to show is not known where it is ended
            let readers = (0..4).map(|reader| {
                let c = Caller::new(cluster, &format!("reader {reader}"));
                spawn_local(async move {
                    for round in 0..200 {
                        let request = ask::Read {
                            inode: file,
                            offset: 4000 * round,
                            len: 4000,
                            into: None,
                            verify: false,
                        };
                        c.ask(file.ino.region(), request).await.unwrap();
                    }
                })
            });
            let readers: Vec<_> = readers.collect();
            sleep(Duration::from_millis(5 + seed)).await;
            hand_over(&c, cluster, region, mirror_of(cluster, region))
                .await
                .unwrap();
            writer.await.unwrap();
            for reader in readers {
                reader.await.unwrap();
            }
            let read = c.read(file).await.unwrap();
            assert_eq!(read.len(), 6 + 200 * 4000, "each was appended once");
            for (round, bytes) in read[6..].chunks(4000).enumerate() {
                assert_eq!(bytes, pattern(4000, round as u64), "round {round}");
            }
            settle(cluster).await;
        });
    }
}
