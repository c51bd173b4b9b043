//! Participants that die or stay away; dispatches, and the records they leave in the redo log.

use super::{healthy, options, renamed, run, stage};
use crate::common::*;
use polvo_node::{Phase, Transactions, sim};
use polvo_proto::*;
use std::time::Duration;
use tokio::task::spawn_local;

#[test]
fn a_participant_that_dies_gets_its_part_when_it_is_back() {
    for power in [None, Some(1), Some(2), Some(3)] {
        run(options(17), async |cluster| {
            let c = Caller::new(cluster, "client");
            let s = stage(cluster, &c).await;
            let asking = s.rename_until(cluster, &c, Phase::Decided).await;
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
        let lookups: Vec<_> = [&c, &other]
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
        assert!(lookups.iter().all(|lookup| !lookup.is_finished()), "they wait");
        cluster.node(0).let_coordinator_go_on();
        for lookup in lookups {
            let seen = lookup.await.unwrap();
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
        let colocated = Caller::colocated(cluster, "thread", 0).await;
        assert_eq!(colocated.rename(s.old_dir, "source", s.new_dir, "dest").await, Ok(()));
        assert!(!cluster.is_at_rest(), "it is on its way");
        drop(colocated);
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
        let colocated = Caller::colocated(cluster, "thread", 0).await;
        let start = tokio::time::Instant::now();
        for n in 0..50 {
            let (from, to) = (format!("f{n}"), format!("t{n}"));
            let made = colocated.create(s.new_dir, &from).await.unwrap();
            colocated.rename(s.new_dir, &from, s.new_dir, &to).await.unwrap();
            if primary(cluster, made) != 0 {
                colocated.unlink(s.new_dir, &to).await.unwrap();
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
        let asking = s.rename_until(cluster, &c, Phase::Decided).await;
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
