//! Coordinators that die, or are slow, and what is left of their transactions.

use super::{PHASES, coordinator_stops, healthy, options, renamed, run, stage, until};
use crate::common::*;
use polvo_format::{INODE_HEAD_SIZE, INODE_LOCK, INODE_SIZE, InodeHead, RegionId, TxnId};
use polvo_node::{Phase, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::*;
use polvo_region::{OfflinePool, check};
use std::time::Duration;
use tokio::task::spawn_local;

fn coordinator_dies(phase: Phase, power: Option<u64>) {
    run(options(11), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        cluster.rest().await;
        let asking = s.rename_until(cluster, &c, phase).await;
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
            let asking = s.rename_until(cluster, &c, phase).await;
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
                coordinator_stops(cluster).await;
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
        let (name, file) = others.pop().unwrap();
        let doomed = "doomed".to_string();
        c.rename(crowd, &name, dir, &doomed).await.unwrap();
        cluster.rest().await;
        cluster.node(0).stop_coordinator_at(Phase::Dispatched);
        let asking = {
            let (c, doomed) = (c.clone(), doomed.clone());
            spawn_local(async move { c.unlink(dir, &doomed).await })
        };
        coordinator_stops(cluster).await;
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
fn a_slow_coordinator_is_waited_for() {
    run(options(43), async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        let asking = s.rename_until(cluster, &c, Phase::Collected).await;
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
        let asking = s.rename_until(cluster, &c, Phase::Decided).await;
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
        pmem.write_u64(lock, TxnId::new(RegionId(7777), 5).0);
        pmem.persist(lock, 8);
        cluster.restart(2).await.unwrap();
        assert_eq!(c.attr(file).await.unwrap().ino, file.ino);
        assert_eq!(pmem.read_u64(lock), 0);
        healthy(cluster).await;
    });
}
