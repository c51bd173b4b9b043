//! Nodes die, come back, lose power or cannot be reached in the middle of transactions; sessions expire; clients get
//! into each other's way.

mod common;

use common::*;
use polvo_format::{FileKind, INODE_HEAD_SIZE, INODE_LOCK, INODE_SIZE, InodeHead, NodeId, TxnId};
use polvo_node::sim::{self, Cluster, ClusterOptions};
use polvo_node::{Phase, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::*;
use polvo_region::{OfflinePool, check};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::spawn_local;

const PHASES: [Phase; 4] = [
    Phase::Collected,
    Phase::Decided,
    Phase::PartlyDispatched,
    Phase::Dispatched,
];

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        pool_bytes: 16 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// Runs a test with either way to carry out transactions.
fn run(options: ClusterOptions, test: impl AsyncFn(&mut Cluster)) {
    for transactions in [Transactions::CollectDispatch, Transactions::TwoPhaseCommit] {
        let options = ClusterOptions {
            transactions,
            ..options.clone()
        };
        sim::run(options, &test);
    }
}

async fn until(cluster: &Cluster, what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        cluster.sleep(Duration::from_micros(200)).await;
    }
    panic!("{what} did not happen within 10 seconds");
}

async fn healthy(cluster: &Cluster) {
    cluster.rest().await;
    assert_eq!(cluster.check(), Vec::<String>::new());
}

/// A rename over an existing file, with each of the four inodes on a node or region of its own where there are that
/// many: old directory on 1, new directory on 0 (coordinator), moved file on 2, replaced file on 1.
struct Stage {
    old_dir: InodeRef,
    new_dir: InodeRef,
    file: InodeRef,
    victim: InodeRef,
}

async fn stage(cluster: &Cluster, c: &Caller) -> Stage {
    let old_dir = c.directory_at(cluster, 1, "old").await;
    let new_dir = c.directory_at(cluster, 0, "new").await;
    let (source, file) = c.file_at(cluster, old_dir, 2, "f").await;
    let (dest, victim) = c.file_at(cluster, new_dir, 1, "v").await;
    c.rename(old_dir, &source, old_dir, "source").await.unwrap();
    c.rename(new_dir, &dest, new_dir, "dest").await.unwrap();
    c.write(file, 0, b"moved").await.unwrap();
    Stage {
        old_dir,
        new_dir,
        file,
        victim,
    }
}

async fn renamed(c: &Caller, s: &Stage) -> bool {
    let there = c.find(s.new_dir, "dest").await.unwrap();
    let moved = there == s.file;
    assert!(moved || there == s.victim);
    assert_eq!(c.find(s.old_dir, "source").await.is_ok(), !moved, "all or nothing");
    assert_eq!(c.attr(s.victim).await.is_ok(), !moved, "all or nothing");
    assert_eq!(c.read(s.file).await.unwrap(), b"moved");
    moved
}

fn coordinator_dies(phase: Phase, power: Option<u64>) {
    run(options(11), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        cluster.rest().await;
        cluster.node(0).stop_coordinator_at(phase);
        let asking = {
            let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
            spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
        };
        until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
        // what was posted arrives
        cluster.sleep(Duration::from_millis(100)).await;
        match power {
            None => cluster.crash(0).await,
            Some(seed) => cluster.power_cut(0, seed).await,
        }
        // it may have been answered as soon as it was decided
        let answer = asking.await.unwrap();
        let answered = answer.is_ok() && cluster.transactions() == Transactions::CollectDispatch;
        assert!(
            matches!(answer, Err(FsError::Unreachable { .. })) || answered && phase != Phase::Collected,
            "{phase:?}: {answer:?}"
        );
        // a participant that has its part goes on without the coordinator; that must not be undone later
        let has_its_part = match cluster.transactions() {
            Transactions::CollectDispatch => matches!(phase, Phase::PartlyDispatched | Phase::Dispatched),
            // who was told may not have heard it
            Transactions::TwoPhaseCommit => phase == Phase::Dispatched,
        };
        let meanwhile = match has_its_part {
            true => Some(c.create(s.old_dir, "meanwhile").await.unwrap()),
            false => None,
        };
        cluster.restart(0).await.unwrap();
        // others get through as soon as it is known how the transaction ended (a while after a failure nobody tries)
        cluster.sleep(Duration::from_millis(300)).await;
        c.set(
            s.file,
            SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            },
        )
        .await
        .unwrap();
        cluster.rest().await;
        assert_eq!(renamed(&c, &s).await, phase != Phase::Collected, "{phase:?}");
        if let Some(meanwhile) = meanwhile {
            assert_eq!(c.find(s.old_dir, "meanwhile").await, Ok(meanwhile));
        }
        healthy(cluster).await;
    });
}

#[test]
fn a_coordinator_that_dies_is_finished_or_forgotten_when_it_is_back() {
    for phase in PHASES {
        coordinator_dies(phase, None);
    }
}

#[test]
fn so_is_one_that_loses_power() {
    for phase in PHASES {
        for seed in 0..8 {
            coordinator_dies(phase, Some(seed));
        }
    }
}

/// All nodes die; the check of their pools does what they would do at their start.
#[test]
fn what_a_crash_leaves_is_finished_in_the_pools_as_well() {
    for phase in PHASES {
        run(options(12), async |cluster| {
            let c = Caller::new(cluster, "client");
            let s = stage(cluster, &c).await;
            cluster.node(0).stop_coordinator_at(phase);
            let asking = {
                let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
                spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
            };
            until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
            for node in 0..3 {
                cluster.crash(node).await;
            }
            let pools: Vec<_> = (0..3)
                .map(|node| OfflinePool {
                    name: format!("pool {node}"),
                    pmem: cluster.pmem(node).clone(),
                })
                .collect();
            let checked = check(&pools, true, &mut |_, _, _| ()).unwrap();
            assert_eq!(checked.findings, Vec::<String>::new(), "{phase:?}: {:?}", checked.notes);
            asking.abort(); // it would be asked again
            for node in 0..3 {
                cluster.restart(node).await.unwrap();
            }
            assert!(cluster.is_at_rest(), "{phase:?}: {:?}", checked.notes);
            assert_eq!(renamed(&c, &s).await, phase != Phase::Collected, "{phase:?}");
            healthy(cluster).await;
        });
    }
}

/// Who asked waits for the coordinator to be back and asks again: what was done is not done again, what was not is.
#[test]
fn creates_and_removals_survive_their_coordinator_too() {
    for phase in PHASES {
        run(options(13), async |cluster| {
            let c = Caller::new(cluster, "client");
            let dir = c.directory_at(cluster, 0, "d").await;
            let (doomed, doomed_file) = c.file_at(cluster, dir, 1, "doomed").await;
            cluster.rest().await;
            let mut made = Vec::new();
            // a create whose inode comes to another node, and an unlink of one that lies there
            for round in 0..20 {
                cluster.node(0).stop_coordinator_at(phase);
                let name = format!("new{round}");
                let asking = {
                    let (c, name) = (c.clone(), name.clone());
                    spawn_local(async move { c.create(dir, &name).await })
                };
                until(cluster, "an end or a stop", || {
                    asking.is_finished() && cluster.is_at_rest() || cluster.node(0).coordinator_has_stopped()
                })
                .await;
                made.push(name.clone());
                if cluster.node(0).coordinator_has_stopped() {
                    cluster.crash(0).await;
                    cluster.restart(0).await.unwrap();
                    let made = asking.await.unwrap();
                    assert_eq!(made, c.find(dir, &name).await, "{phase:?}");
                    assert!(made.is_ok(), "{phase:?}: {made:?}");
                    break;
                }
            }
            cluster.rest().await;
            cluster.node(0).stop_coordinator_at(phase);
            let asking = {
                let (c, doomed) = (c.clone(), doomed.clone());
                spawn_local(async move { c.unlink(dir, &doomed).await })
            };
            // a transaction of one participant never is partly dispatched
            if phase != Phase::PartlyDispatched {
                until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
                cluster.crash(0).await;
                cluster.restart(0).await.unwrap();
            }
            assert_eq!(asking.await.unwrap(), Ok(()), "{phase:?}");
            cluster.rest().await;
            assert_eq!(c.find(dir, &doomed).await, Err(FsError::NotFound), "{phase:?}");
            assert_eq!(c.attr(doomed_file).await.err(), Some(FsError::Stale), "{phase:?}");
            let last = made.last().unwrap();
            let found = c.find(dir, last).await;
            assert!(found.is_ok(), "{phase:?}: {found:?} {made:?}");
            healthy(cluster).await;
        });
    }
}

/// A transaction is dispatched, its coordinator dies before it has said so, and the segment of inodes that it has touched goes
/// back to the pool meanwhile.
#[test]
fn what_was_dispatched_ends_although_its_segment_is_gone() {
    run(options(19), async |cluster| {
        let slots = (1 << 18) / INODE_SIZE as u64;
        let c = Caller::new(cluster, "client");
        let dir = c.directory_at(cluster, 0, "d").await;
        let crowd = c.directory_at(cluster, 1, "crowd").await;
        let mut others = Vec::new();
        let region = loop {
            let name = format!("f{}", others.len());
            let file = c.create(crowd, &name).await.unwrap();
            others.push((name, file));
            if primary(cluster, file) == 1 && file.ino.slot() >= slots {
                break file.ino.region();
            }
        };
        let mut tries = 0..;
        let (doomed, file) = loop {
            let name = format!("doomed{}", tries.next().unwrap());
            let file = c.create(dir, &name).await.unwrap();
            if file.ino.region() == region && file.ino.slot() >= slots {
                break (name, file);
            }
            c.unlink(dir, &name).await.unwrap();
        };
        cluster.rest().await;
        cluster.node(0).stop_coordinator_at(Phase::Dispatched);
        let asking = {
            let (c, doomed) = (c.clone(), doomed.clone());
            spawn_local(async move { c.unlink(dir, &doomed).await })
        };
        until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
        cluster.crash(0).await;
        for (name, _) in others.iter().filter(|(_, other)| other.ino.region() == region) {
            c.unlink(crowd, name).await.unwrap();
        }
        cluster.sleep(Duration::from_secs(5)).await;
        let segments = Request::Segments { region, from: 0 };
        match c.ask_node(1, segments).await {
            Ok(Reply::Segments(map)) => assert!(map.locate(file.ino.offset().unwrap()).is_none(), "it went back"),
            other => panic!("{other:?}"),
        }
        cluster.restart(0).await.unwrap();
        assert_eq!(asking.await.unwrap(), Ok(()));
        cluster.rest().await;
        assert_eq!(c.find(dir, &doomed).await, Err(FsError::NotFound));
        assert_eq!(c.attr(file).await.err(), Some(FsError::Stale));
        healthy(cluster).await;
    });
}

#[test]
fn a_participant_that_dies_gets_its_part_when_it_is_back() {
    for power in [None, Some(1), Some(2), Some(3)] {
        run(options(17), async |cluster| {
            let c = Caller::new(cluster, "client");
            let s = stage(cluster, &c).await;
            cluster.node(0).stop_coordinator_at(Phase::Decided);
            let asking = {
                let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
                spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
            };
            until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
            match power {
                None => cluster.crash(1).await,
                Some(seed) => cluster.power_cut(1, seed).await,
            }
            cluster.node(0).let_coordinator_go_on();
            cluster.sleep(Duration::from_secs(1)).await;
            cluster.restart(1).await.unwrap();
            assert_eq!(asking.await.unwrap(), Ok(()), "it came back in time");
            assert!(renamed(&c, &s).await);
            healthy(cluster).await;
        });
    }
}

/// Whoever asked is answered at the decision, and nobody sees what was before.
#[test]
fn what_is_decided_is_waited_for_by_those_who_look() {
    sim::run(options(19), async |cluster| {
        let c = Caller::new(cluster, "client");
        let other = Caller::new(cluster, "other");
        let s = stage(cluster, &c).await;
        cluster.node(0).stop_coordinator_at(Phase::Decided);
        assert_eq!(c.rename(s.old_dir, "source", s.new_dir, "dest").await, Ok(()));
        assert!(cluster.node(0).coordinator_has_stopped(), "nobody has got its part");
        let looks: Vec<_> = [&c, &other]
            .into_iter()
            .flat_map(|who| {
                let (old, attr) = (who.clone(), who.clone());
                let (old_dir, victim) = (s.old_dir, s.victim);
                [
                    spawn_local(async move { old.find(old_dir, "source").await.map(drop) }),
                    spawn_local(async move { attr.attr(victim).await.map(drop) }),
                ]
            })
            .collect();
        cluster.sleep(Duration::from_millis(100)).await;
        assert!(looks.iter().all(|look| !look.is_finished()), "they wait");
        cluster.node(0).let_coordinator_go_on();
        for look in looks {
            let seen = look.await.unwrap();
            assert!(matches!(seen, Err(FsError::NotFound | FsError::Stale)), "{seen:?}");
        }
        assert!(renamed(&other, &s).await);
        healthy(cluster).await;
    });
}

/// A thread of the coordinator's process posts its dispatch and goes on, and is never heard of again.
#[test]
fn a_thread_inside_the_coordinator_does_not_wait_for_the_dispatch() {
    sim::run(options(23), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        let inside = Caller::inside(cluster, "thread", 0).await;
        assert_eq!(inside.rename(s.old_dir, "source", s.new_dir, "dest").await, Ok(()));
        assert!(!cluster.is_at_rest(), "it is on its way");
        drop(inside);
        assert_eq!(c.find(s.old_dir, "source").await, Err(FsError::NotFound));
        assert!(renamed(&c, &s).await);
        healthy(cluster).await;
    });
}

/// More than the redo log holds, before housekeeping comes by.
#[test]
fn what_was_posted_is_retired_by_those_who_come_next() {
    sim::run(options(29), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        let inside = Caller::inside(cluster, "thread", 0).await;
        let start = tokio::time::Instant::now();
        for n in 0..50 {
            let (from, to) = (format!("f{n}"), format!("t{n}"));
            let made = inside.create(s.new_dir, &from).await.unwrap();
            inside.rename(s.new_dir, &from, s.new_dir, &to).await.unwrap();
            if primary(cluster, made) != 0 {
                inside.unlink(s.new_dir, &to).await.unwrap();
            }
        }
        let took = start.elapsed();
        assert!(took < Duration::from_millis(500), "housekeeping came by: {took:?}");
        healthy(cluster).await;
    });
}

#[test]
fn a_participant_that_stays_away_is_served_later() {
    run(options(19), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        cluster.node(0).stop_coordinator_at(Phase::Decided);
        let asking = {
            let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
            spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
        };
        until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
        cluster.crash(2).await;
        cluster.node(0).let_coordinator_go_on();
        let answer = asking.await.unwrap();
        match cluster.transactions() {
            Transactions::CollectDispatch => assert_eq!(answer, Ok(())),
            Transactions::TwoPhaseCommit => assert!(
                matches!(&answer, Err(FsError::Unreachable { why, .. }) if why.contains("committed")),
                "{answer:?}"
            ),
        }
        // when its time is over, housekeeping goes on with it
        cluster.sleep(Duration::from_secs(20)).await;
        assert!(!cluster.is_at_rest());
        // the coordinator dies as well, and comes back before the participant does
        cluster.crash(0).await;
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(20)).await;
        cluster.restart(2).await.unwrap();
        cluster.rest().await;
        assert!(renamed(&c, &s).await);
        healthy(cluster).await;
    });
}

#[test]
fn a_slow_coordinator_is_waited_for() {
    run(options(43), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        cluster.node(0).stop_coordinator_at(Phase::Collected);
        let asking = {
            let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
            spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
        };
        until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
        let touching = {
            let (c, file) = (c.clone(), s.file);
            let set = SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            };
            spawn_local(async move { c.set(file, set).await })
        };
        // long enough for the participants to ask how it stands
        cluster.sleep(Duration::from_secs(3)).await;
        assert!(!touching.is_finished(), "the file is held");
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        assert_eq!(touching.await.unwrap().unwrap().mode, 0o600);
        assert!(renamed(&c, &s).await);
        healthy(cluster).await;
    });
}

#[test]
fn a_held_inode_is_not_waited_for_for_ever() {
    run(options(47), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        cluster.node(0).stop_coordinator_at(Phase::Decided);
        let asking = {
            let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
            spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
        };
        until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
        let start = tokio::time::Instant::now();
        let written = c.write(s.file, 0, b"m").await.map(|_| ());
        let waited = start.elapsed();
        match cluster.transactions() {
            Transactions::CollectDispatch => {
                let held = cluster.timeouts().held;
                assert_eq!(written, Err(FsError::Busy));
                assert!(waited >= held && waited < held + Duration::from_secs(1), "{waited:?}");
            }
            // who has prepared asks how it ended, and concludes it
            Transactions::TwoPhaseCommit => assert_eq!(written, Ok(())),
        }
        cluster.node(0).let_coordinator_go_on();
        let _late = asking.await;
        assert!(renamed(&c, &s).await);
        healthy(cluster).await;
    });
}

#[test]
fn a_session_that_ends_while_it_waits_gets_nothing() {
    run(options(53), async |cluster| {
        let (c, leaving) = (Caller::new(cluster, "client"), Caller::new(cluster, "leaving"));
        let s = stage(cluster, &c).await;
        cluster.node(0).stop_coordinator_at(Phase::Collected);
        let asking = {
            let (c, old_dir, new_dir) = (c.clone(), s.old_dir, s.new_dir);
            spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
        };
        until(cluster, "the stop", || cluster.node(0).coordinator_has_stopped()).await;
        let link = leaving.links.to(NodeId(2)).await.unwrap();
        let opening = {
            let (link, call) = (
                link.clone(),
                leaving.links.make_call(Cred::Kernel, Request::Open { inode: s.file }),
            );
            spawn_local(async move { link.call(&call).await })
        };
        cluster.sleep(Duration::from_millis(100)).await;
        let detach = leaving.links.make_call(Cred::Kernel, Request::Detach);
        assert_eq!(link.call(&detach).await, Ok(Reply::Done));
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        assert_eq!(opening.await.unwrap(), Err(FsError::SessionExpired));
        c.unlink(s.new_dir, "dest").await.unwrap();
        assert_eq!(c.attr(s.file).await, Err(FsError::Stale), "nobody holds it");
        healthy(cluster).await;
    });
}

#[test]
fn without_a_node_the_rest_works_on() {
    run(options(23), async |cluster| {
        let c = Caller::new(cluster, "client");
        let dir = c.directory_at(cluster, 0, "d").await;
        let (lost, _) = c.file_at(cluster, dir, 2, "lost").await;
        let (kept, _) = c.file_at(cluster, dir, 1, "kept").await;
        cluster.crash(2).await;
        let start = tokio::time::Instant::now();
        for i in 0..30 {
            let file = c.create(dir, &format!("new{i}")).await.unwrap();
            assert_ne!(primary(cluster, file), 2);
        }
        c.unlink(dir, &kept).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        let start = tokio::time::Instant::now();
        assert!(matches!(
            c.unlink(dir, &lost).await,
            Err(FsError::Unreachable { node: 2, .. })
        ));
        assert!(start.elapsed() < cluster.timeouts().rpc, "{:?}", start.elapsed());
        let found = c.find(dir, &lost).await;
        assert!(found.is_ok(), "nothing half-done: {found:?}");
        cluster.restart(2).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        c.unlink(dir, &lost).await.unwrap();
        healthy(cluster).await;
    });
}

#[test]
fn an_expired_session_gives_everything_back() {
    run(options(29), async |cluster| {
        let (gone, other) = (Caller::new(cluster, "gone"), Caller::new(cluster, "other"));
        let lease = cluster.timeouts().lease;
        let (name, file) = other.file_at(cluster, ROOT, 1, "f").await;
        gone.open(file).await.unwrap();
        let free = async |c: &Caller| match c.ask_node(1, Request::Usage).await {
            Ok(Reply::Usage(usage)) => usage.data_bytes,
            other => panic!("{other:?}"),
        };
        let before = free(&other).await;
        gone.delegate(file.ino.region(), 100).await.unwrap();
        assert_eq!(free(&other).await, before + 100 * 4096);
        other.unlink(ROOT, &name).await.unwrap();
        for _ in 0..3 {
            cluster.sleep(lease / 3).await;
            other.links.renew().await;
        }
        cluster.sleep(lease / 3).await;
        other.links.renew().await;
        assert_eq!(other.attr(file).await, Err(FsError::Stale), "nobody holds it any more");
        for _ in 0..4 {
            cluster.sleep(lease / 3).await;
            other.links.renew().await;
        }
        assert_eq!(free(&other).await, before, "delegated pages are back");
        // who comes back finds out, and starts anew
        let resets = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counter = resets.clone();
        gone.links.context().on_reset(move |node| {
            assert_eq!(node, NodeId(1));
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(gone.ask_node(1, Request::Usage).await.is_ok());
        assert_eq!(resets.load(std::sync::atomic::Ordering::Relaxed), 1);
        healthy(cluster).await;
    });
}

#[test]
fn a_session_that_renews_keeps_what_it_holds() {
    run(options(31), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (name, file) = c.file_at(cluster, ROOT, 2, "f").await;
        c.open(file).await.unwrap();
        c.unlink(ROOT, &name).await.unwrap();
        for _ in 0..20 {
            cluster.sleep(cluster.timeouts().renew_every()).await;
            for (node, answer) in c.links.renew().await {
                assert!(answer.is_ok(), "{node}: {answer:?}");
            }
        }
        assert_eq!(c.attr(file).await.unwrap().nlink, 0);
        healthy(cluster).await;
    });
}

#[test]
fn of_many_that_create_the_same_names_one_wins_each() {
    run(options(37), async |cluster| {
        let clients: Vec<Caller> = (0..6).map(|i| Caller::new(cluster, &format!("c{i}"))).collect();
        let tasks: Vec<_> = clients
            .iter()
            .cloned()
            .map(|c| {
                spawn_local(async move {
                    let mut won = 0;
                    for i in 0..40 {
                        match c.create(ROOT, &format!("f{i}")).await {
                            Ok(_) => won += 1,
                            Err(FsError::Exists) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    won
                })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += task.await.unwrap();
        }
        assert_eq!(won, 40);
        assert_eq!(clients[0].names(ROOT).await.unwrap().len(), 40);
        healthy(cluster).await;
    });
}

#[test]
fn renames_of_the_same_names_lose_nothing() {
    for seed in 0..6 {
        run(options(seed), async |cluster| {
            let first = Caller::new(cluster, "first");
            let mut dirs = Vec::new();
            for i in 0..3 {
                dirs.push(first.directory_at(cluster, i, "d").await);
            }
            let mut files = Vec::new();
            for i in 0..4 {
                files.push(first.create(dirs[i % 3], &format!("f{i}")).await.unwrap());
            }
            let tasks: Vec<_> = (0..4)
                .map(|t| {
                    let c = Caller::new(cluster, &format!("c{t}"));
                    let dirs = dirs.clone();
                    spawn_local(async move {
                        let mut dice = Dice::new(seed * 100 + t);
                        for _ in 0..60 {
                            let (from, to) = (dirs[dice.roll(3) as usize], dirs[dice.roll(3) as usize]);
                            let (old, new) = (format!("f{}", dice.roll(4)), format!("f{}", dice.roll(4)));
                            let mode = [RenameMode::NoReplace, RenameMode::Exchange][dice.roll(2) as usize];
                            match c.rename_with(from, &old, to, &new, mode).await {
                                Ok(()) | Err(FsError::NotFound | FsError::Exists) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let mut found = Vec::new();
            for dir in &dirs {
                for name in first.names(*dir).await.unwrap() {
                    found.push(first.find(*dir, &name).await.unwrap());
                }
            }
            found.sort_by_key(|f| f.ino);
            files.sort_by_key(|f| f.ino);
            assert_eq!(found, files);
            healthy(cluster).await;
        });
    }
}

/// Two names on two nodes are exchanged back and forth by two clients at the same time. Each exchange that is reported as
/// done has happened: a look at one name before, and at the other after somebody else's exchange, shows the same file twice,
/// which is no reason to believe that it has two names and nothing is to be done.
#[test]
fn exchanges_at_once_in_opposite_directions_all_happen() {
    for seed in 0..20 {
        run(options(seed), async |cluster| {
            let c = Caller::new(cluster, "first");
            let dirs = [
                c.mkdir(ROOT, "a").await.unwrap(),
                c.mkdir(ROOT, "b").await.unwrap(),
                c.mkdir(ROOT, "c").await.unwrap(),
            ];
            for at in 0..3 {
                let (a, b) = (dirs[at], dirs[(at + 1) % 3]);
                let file = c.create(a, "n").await.unwrap();
                let other = c.create(b, "n").await.unwrap();
                let mut exchanged = 0;
                for _ in 0..20 {
                    let tasks = [(a, b), (b, a)].map(|(from, to)| {
                        let c = Caller::new(cluster, "exchanger");
                        let request = Request::Rename {
                            old_dir: from,
                            old_name: b"n".to_vec(),
                            new_dir: to,
                            new_name: b"n".to_vec(),
                            mode: RenameMode::Exchange,
                        };
                        spawn_local(async move { c.ask(to.ino.region(), request).await })
                    });
                    for task in tasks {
                        match task.await.unwrap() {
                            Ok(_) => exchanged += 1,
                            Err(FsError::Busy) => {}
                            Err(error) => panic!("seed {seed}: {error}"),
                        }
                    }
                    let found = (c.find(a, "n").await.unwrap(), c.find(b, "n").await.unwrap());
                    let expected = if exchanged % 2 == 0 {
                        (file, other)
                    } else {
                        (other, file)
                    };
                    assert_eq!(found, expected, "seed {seed}: after {exchanged} exchanges");
                }
                c.unlink(a, "n").await.unwrap();
                c.unlink(b, "n").await.unwrap();
            }
            healthy(cluster).await;
        });
    }
}

#[test]
fn directories_moved_into_each_other_at_once_make_no_ring() {
    for seed in 0..6 {
        run(options(seed), async |cluster| {
            let c = Caller::new(cluster, "first");
            let mut dirs = Vec::new();
            for i in 0..5 {
                dirs.push(c.mkdir(ROOT, &format!("d{i}")).await.unwrap());
            }
            let tasks: Vec<_> = (0..4)
                .map(|t| {
                    let c = Caller::new(cluster, &format!("c{t}"));
                    let dirs = dirs.clone();
                    spawn_local(async move {
                        let mut dice = Dice::new(seed * 100 + t + 1);
                        let mut moved = 0;
                        for _ in 0..40 {
                            // wherever it is just now, under whichever parent
                            let which = dice.roll(5) as usize;
                            let name = format!("d{which}");
                            let mut parents = dirs.clone();
                            parents.push(ROOT);
                            let mut from = None;
                            for parent in parents {
                                if c.find(parent, &name).await == Ok(dirs[which]) {
                                    from = Some(parent);
                                }
                            }
                            let to = dirs[dice.roll(5) as usize];
                            let Some(from) = from else { continue };
                            match c.rename(from, &name, to, &name).await {
                                Ok(()) => moved += 1,
                                Err(FsError::Invalid(_) | FsError::NotFound | FsError::NotEmpty) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        moved
                    })
                })
                .collect();
            let mut moved = 0;
            for task in tasks {
                moved += task.await.unwrap();
            }
            assert!(moved > 5, "{moved}");
            healthy(cluster).await;
        });
    }
}

/// What a client knows of its own directory after operations that may have been cut off.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Option<bool>>,
    acknowledged: u32,
    cut_off: u32,
}

impl Model {
    fn after<T>(&mut self, name: &str, there: bool, result: &Result<T, FsError>) {
        let known = match result {
            Ok(_) => Some(there),
            Err(FsError::Exists) => Some(true),
            Err(FsError::NotFound) => Some(false),
            Err(FsError::Unreachable { .. } | FsError::Busy | FsError::SessionExpired) => None,
            Err(error) => panic!("{name}: {error}"),
        };
        match known {
            Some(_) => self.acknowledged += 1,
            None => self.cut_off += 1,
        }
        self.names.insert(name.to_string(), known);
    }
}

/// What all clients together went through; a run in which nothing happened shows nothing.
fn assert_busy(models: &[Model], faults: u32) {
    let acknowledged: u32 = models.iter().map(|m| m.acknowledged).sum();
    let cut_off: u32 = models.iter().map(|m| m.cut_off).sum();
    let what = format!("{faults} faults, {acknowledged} answers, {cut_off} cut off");
    assert!(acknowledged > 60 && faults >= 1, "{what}");
}

/// Seeds to go through: `SEEDS=n` in the environment for more.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8)
}

async fn work(c: Caller, dir: InodeRef, seed: u64, rounds: u32) -> Model {
    let mut dice = Dice::new(seed);
    let mut model = Model::default();
    for _ in 0..rounds {
        if model.names.values().any(Option::is_none) {
            // a node is away: a client would wait a little, too
            tokio::time::sleep(Duration::from_millis(dice.roll(250))).await;
        }
        let name = format!("n{}", dice.roll(12));
        match dice.roll(4) {
            0 | 1 => {
                let result = c.create(dir, &name).await;
                model.after(&name, true, &result);
            }
            2 => {
                let result = c.unlink(dir, &name).await;
                model.after(&name, false, &result);
            }
            _ => {
                let other = format!("n{}", dice.roll(12));
                if other == name {
                    continue;
                }
                let result = c.rename(dir, &name, dir, &other).await;
                match &result {
                    Err(FsError::NotFound) => model.after(&name, false, &result),
                    _ => {
                        model.after(&name, false, &result);
                        model.after(&other, true, &result);
                    }
                }
            }
        }
    }
    model
}

/// Everything acknowledged is there, nothing is half-done, whichever nodes die and when.
#[test]
fn what_was_acknowledged_survives_any_crash() {
    for seed in seeds() {
        run(options(seed), async |cluster| {
            let mut tasks = Vec::new();
            for i in 0..3u16 {
                let c = Caller::new(cluster, &format!("c{i}"));
                let dir = c.directory_at(cluster, i, &format!("home{i}-")).await;
                tasks.push((dir, spawn_local(work(c, dir, seed * 10 + u64::from(i), 150))));
            }
            let mut dice = Dice::new(seed + 1000);
            let mut faults = 0;
            while !tasks.iter().all(|(_, task)| task.is_finished()) {
                cluster.sleep(Duration::from_micros(1 + dice.roll(60_000))).await;
                let node = dice.roll(3) as u16;
                let nodes = if dice.roll(3) == 0 {
                    vec![node, (node + 1) % 3, (node + 2) % 3]
                } else {
                    vec![node]
                };
                let power = dice.roll(2) == 0;
                for node in &nodes {
                    match power {
                        true => cluster.power_cut(*node, dice.roll(1 << 30)).await,
                        false => cluster.crash(*node).await,
                    }
                }
                for node in nodes {
                    cluster.sleep(Duration::from_millis(dice.roll(800))).await;
                    cluster.restart(node).await.unwrap();
                }
                faults += 1;
            }
            cluster.rest().await;
            let reader = Caller::new(cluster, "reader");
            let mut models = Vec::new();
            for (dir, task) in tasks {
                let model = task.await.unwrap();
                let names = reader.names(dir).await.unwrap();
                for (name, known) in &model.names {
                    if let Some(there) = known {
                        assert_eq!(names.contains(name), *there, "{name}");
                    }
                }
                models.push(model);
            }
            assert_busy(&models, faults);
            healthy(cluster).await;
        });
    }
}

/// As above, with the network misbehaving instead: cut connections and partitions that heal.
#[test]
fn what_was_acknowledged_survives_a_bad_network() {
    for seed in seeds() {
        run(options(seed), async |cluster| {
            let mut tasks = Vec::new();
            for i in 0..3u16 {
                let c = Caller::new(cluster, &format!("c{i}"));
                let dir = c.directory_at(cluster, i, &format!("home{i}-")).await;
                tasks.push((dir, spawn_local(work(c, dir, seed * 10 + u64::from(i), 100))));
            }
            let mut dice = Dice::new(seed + 2000);
            let mut faults = 0;
            let hosts = ["node-0", "node-1", "node-2", "c0", "c1", "c2"];
            while !tasks.iter().all(|(_, task)| task.is_finished()) {
                cluster.sleep(Duration::from_micros(1 + dice.roll(100_000))).await;
                let (a, b) = (hosts[dice.roll(6) as usize], hosts[dice.roll(3) as usize]);
                match dice.roll(2) {
                    0 => {
                        cluster.network().disconnect(a);
                        cluster.network().reconnect(a);
                    }
                    _ if a != b => {
                        cluster.network().partition(a, b);
                        cluster.sleep(Duration::from_millis(dice.roll(3000))).await;
                        cluster.network().heal(a, b);
                    }
                    _ => {}
                }
                faults += 1;
            }
            cluster.rest().await;
            let reader = Caller::new(cluster, "reader");
            let mut models = Vec::new();
            for (dir, task) in tasks {
                let model = task.await.unwrap();
                let names = reader.names(dir).await.unwrap();
                for (name, known) in &model.names {
                    if let Some(there) = known {
                        assert_eq!(names.contains(name), *there, "{name}");
                    }
                }
                models.push(model);
            }
            assert_busy(&models, faults);
            healthy(cluster).await;
        });
    }
}

/// Where the inode lies in a pool: only there its checksum fits its number, but for copies in the redo log, which comes first.
fn slot_in(pmem: &Pmem, inode: InodeRef) -> u64 {
    let mut head = [0; INODE_HEAD_SIZE];
    let is_it = |at: &u64| {
        pmem.read(*at, &mut head);
        InodeHead::decode(&head, inode.ino).is_ok_and(|head| head.kind.is_some())
    };
    (0..pmem.len())
        .step_by(INODE_SIZE)
        .filter(is_it)
        .last()
        .expect("the inode is there")
}

#[test]
fn an_inode_held_by_a_transaction_of_nobody_is_let_go() {
    run(options(59), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (_, file) = c.file_at(cluster, ROOT, 2, "f").await;
        cluster.rest().await;
        cluster.stop(2).await;
        let pmem = cluster.pmem(2).clone();
        let lock = slot_in(&pmem, file) + INODE_LOCK;
        assert_eq!(pmem.read_u64(lock), 0);
        pmem.write_u64(lock, TxnId::new(NodeId(77), 5).0);
        pmem.persist(lock, 8);
        cluster.restart(2).await.unwrap();
        assert_eq!(c.attr(file).await.unwrap().ino, file.ino);
        assert_eq!(pmem.read_u64(lock), 0);
        healthy(cluster).await;
    });
}

#[test]
fn pools_are_checked_before_they_are_served() {
    run(options(41), async |cluster| {
        cluster.stop(2).await;
        let pmem = cluster.pmem(2).clone();
        let mut first = vec![0; 4096];
        pmem.read(0, &mut first);
        pmem.write(0, &pattern(4096, 1));
        pmem.persist(0, 4096);
        // one of two superblocks is enough
        cluster.restart(2).await.unwrap();
        let c = Caller::new(cluster, "client");
        c.file_at(cluster, ROOT, 2, "f").await;
        let kind = FileKind::Directory;
        c.make(ROOT, "d", new_file(kind, 0o755), false).await.unwrap();
        healthy(cluster).await;
    });
}
