//! Advisory locks between clients of a cluster: exclusion, waiting in order, deadlocks over several nodes, and what
//! happens to locks when their holder, or their node, goes.

use crate::common::*;
use polvo_client::{LocalClient, LockAnswer};
use polvo_format::{NodeId, SessionId};
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{FsError, InodeRef, LockAsk, LockKind, LockMode, LockRange, LockTicket};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

fn bytes(owner: u64, first: u64, last: u64) -> LockAsk {
    LockAsk {
        owner,
        kind: LockKind::Range,
        mode: LockMode::Exclusive,
        range: LockRange { first, last },
        pid: owner as u32,
    }
}

fn whole(owner: u64, mode: LockMode) -> LockAsk {
    LockAsk {
        kind: LockKind::Whole,
        mode,
        ..bytes(owner, 0, LockRange::END)
    }
}

async fn file_at(cluster: &Cluster, client: &LocalClient, node: NodeId) -> InodeRef {
    for n in 0..1000 {
        let name = format!("f{n}-{}", node.0);
        let made = match client.create(ROOT, name.as_bytes(), file()).await {
            Err(FsError::Exists) => continue,
            made => made.expect("create"),
        };
        if cluster.map().primary(made.ino.region()) == Some(node) {
            return inode(&made);
        }
    }
    panic!("no file went to {node:?}");
}

/// Takes a lock at once or not at all.
async fn try_lock(client: &LocalClient, inode: InodeRef, ask: LockAsk) -> Result<(), FsError> {
    match client.lock(inode, ask, None).await? {
        LockAnswer::Granted(_) => Ok(()),
        LockAnswer::Queued => panic!("queued, and nobody waits"),
    }
}

/// Asks until it is granted or refused.
async fn wait_for(client: &LocalClient, inode: InodeRef, ask: LockAsk) -> Result<(), FsError> {
    let ticket = LockTicket {
        number: client.client().next_lock_ticket(),
        wait_ms: 1000,
    };
    loop {
        match client.lock(inode, ask, Some(ticket)).await? {
            LockAnswer::Granted(_) => return Ok(()),
            LockAnswer::Queued => {}
        }
    }
}

fn waiting(client: &Rc<LocalClient>, inode: InodeRef, ask: LockAsk) -> JoinHandle<Result<(), FsError>> {
    let client = client.clone();
    spawn_local(async move { wait_for(&client, inode, ask).await })
}

#[test]
fn clients_of_all_kinds_exclude_each_other_and_wait_in_order() {
    with_cluster(1, async |cluster| {
        let clients = [internal(cluster, 0), external(cluster, "a"), external(cluster, "b")];
        for node in 0..3 {
            let f = file_at(cluster, &clients[0], NodeId(node)).await;
            let [a, b, c] = &clients;
            assert_eq!(try_lock(a, f, bytes(1, 10, 19)).await, Ok(()));
            assert_eq!(try_lock(b, f, bytes(1, 19, 30)).await, Err(FsError::WouldBlock));
            let seen = b
                .test_lock(f, bytes(1, 0, LockRange::END))
                .await
                .expect("asked")
                .expect("seen");
            assert_eq!((seen.range.first, seen.range.last, seen.pid), (10, 19, 1));
            assert_eq!(try_lock(b, f, whole(5, LockMode::Exclusive)).await, Ok(()));
            assert_eq!(
                try_lock(c, f, whole(5, LockMode::Shared)).await,
                Err(FsError::WouldBlock)
            );
            let first = waiting(b, f, bytes(2, 0, 100));
            sleep(Duration::from_millis(100)).await;
            let second = waiting(c, f, bytes(2, 0, 100));
            sleep(Duration::from_secs(5)).await;
            assert!(!first.is_finished() && !second.is_finished());
            a.release_locks(f, 1).await.expect("released");
            assert_eq!(first.await.expect("no panic"), Ok(()));
            assert!(!second.is_finished());
            b.unlock(f, 2, LockRange { first: 0, last: 49 })
                .await
                .expect("unlocked");
            sleep(Duration::from_secs(2)).await;
            assert!(!second.is_finished(), "the other half is locked still");
            b.release_locks(f, 2).await.expect("released");
            assert_eq!(second.await.expect("no panic"), Ok(()));
            c.release_locks(f, 2).await.expect("released");
            b.release_locks(f, 5).await.expect("released");
            assert_eq!(a.test_lock(f, bytes(1, 0, LockRange::END)).await, Ok(None));
        }
    });
}

#[test]
fn a_counter_under_a_lock_misses_no_increment() {
    with_cluster(2, async |cluster| {
        let clients = [internal(cluster, 1), external(cluster, "a"), external(cluster, "b")];
        let made = clients[0].create(ROOT, b"counter", file()).await.expect("create");
        let f = inode(&made);
        let mut adders = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            let client = client.clone();
            adders.push(spawn_local(async move {
                let open = client.open(f).await.expect("open");
                for round in 0..30u64 {
                    let kind = if round % 2 == 0 {
                        bytes(n as u64, 0, 7)
                    } else {
                        bytes(n as u64, 3, 3 + round)
                    };
                    wait_for(&client, f, kind).await.expect("locked");
                    let mut word = [0; 8];
                    client.read(&open, 0, &mut word).await.expect("read");
                    let next = u64::from_le_bytes(word) + 1;
                    client.write(&open, 0, &next.to_le_bytes()).await.expect("write");
                    client.unlock(f, n as u64, LockRange::ALL).await.expect("unlocked");
                }
            }));
        }
        for adder in adders {
            adder.await.expect("no panic");
        }
        let open = clients[0].open(f).await.expect("open");
        assert_eq!(content(&clients[0], &open).await, 90u64.to_le_bytes());
    });
}

#[test]
fn a_deadlock_over_nodes_refuses_one_and_the_others_go_on() {
    with_cluster(3, async |cluster| {
        let clients = [internal(cluster, 0), external(cluster, "a"), external(cluster, "b")];
        let mut files = Vec::new();
        for node in 0..3 {
            files.push(file_at(cluster, &clients[0], NodeId(node)).await);
        }
        for circle in 2..=3 {
            for n in 0..circle {
                let locked = try_lock(&clients[n], files[n], bytes(1, 0, 0)).await;
                assert_eq!(locked, Ok(()));
            }
            let mut waits = Vec::new();
            for n in 0..circle {
                sleep(Duration::from_secs(1)).await;
                waits.push(waiting(&clients[n], files[(n + 1) % circle], bytes(1, 0, 0)));
            }
            let last = waits.pop().expect("a circle");
            let refused = timeout(Duration::from_secs(5), last).await.expect("found in time");
            assert_eq!(refused.expect("no panic"), Err(FsError::Deadlock), "who closed it");
            assert!(waits.iter().all(|wait| !wait.is_finished()), "and nobody else");
            // it gives up what it has, and so the others come through, one after the other
            clients[circle - 1]
                .release_locks(files[circle - 1], 1)
                .await
                .expect("released");
            for (n, wait) in waits.into_iter().enumerate().rev() {
                assert_eq!(wait.await.expect("no panic"), Ok(()));
                clients[n].release_locks(files[n + 1], 1).await.expect("released");
                clients[n].release_locks(files[n], 1).await.expect("released");
            }
        }
    });
}

#[test]
fn a_long_chain_is_no_deadlock() {
    with_cluster(4, async |cluster| {
        let clients = [external(cluster, "a"), external(cluster, "b"), external(cluster, "c")];
        let mut files = Vec::new();
        for node in 0..3 {
            files.push(file_at(cluster, &clients[0], NodeId(node)).await);
        }
        for (client, f) in clients.iter().zip(&files) {
            client.lock(*f, bytes(1, 0, 0), None).await.expect("locked");
        }
        let first = waiting(&clients[0], files[1], bytes(1, 0, 0));
        let second = waiting(&clients[1], files[2], bytes(1, 0, 0));
        sleep(Duration::from_secs(60)).await;
        assert!(!first.is_finished() && !second.is_finished());
        clients[2].release_locks(files[2], 1).await.expect("released");
        assert_eq!(second.await.expect("no panic"), Ok(()));
        clients[1].release_locks(files[1], 1).await.expect("released");
        assert_eq!(first.await.expect("no panic"), Ok(()));
    });
}

#[test]
fn locks_end_with_their_client_at_once_when_it_says_so_and_with_its_lease_when_it_does_not() {
    with_cluster(5, async |cluster| {
        let (leaves, dies, stays) = (
            external(cluster, "leaves"),
            external(cluster, "dies"),
            external(cluster, "stays"),
        );
        let f = file_at(cluster, &stays, NodeId(1)).await;
        try_lock(&leaves, f, bytes(1, 0, 0)).await.expect("locked");
        try_lock(&dies, f, bytes(1, 1, 1)).await.expect("locked");
        let wait = waiting(&stays, f, bytes(1, 0, 0));
        sleep(Duration::from_millis(10)).await;
        leaves.end().await;
        let granted = timeout(Duration::from_secs(1), wait).await.expect("at once");
        assert_eq!(granted.expect("no panic"), Ok(()));
        let began = Instant::now();
        let wait = waiting(&stays, f, bytes(1, 1, 1));
        cluster.network().disconnect("dies");
        let granted = timeout(cluster.timeouts().lease * 2, wait)
            .await
            .expect("with the lease");
        assert_eq!(granted.expect("no panic"), Ok(()));
        assert!(began.elapsed() > cluster.timeouts().lease / 2, "not before");
        cluster.network().reconnect("dies");
    });
}

#[test]
fn a_wait_that_is_called_off_ends_and_leaves_nothing() {
    with_cluster(6, async |cluster| {
        let (a, b) = (external(cluster, "a"), internal(cluster, 2));
        for node in 0..3 {
            let f = file_at(cluster, &a, NodeId(node)).await;
            try_lock(&a, f, bytes(1, 0, 0)).await.expect("locked");
            let ticket = LockTicket {
                number: 77,
                wait_ms: 1000,
            };
            let asking = {
                let b = b.clone();
                spawn_local(async move { b.lock(f, bytes(1, 0, 0), Some(ticket)).await })
            };
            sleep(Duration::from_millis(100)).await;
            b.cancel_lock(f, 77).await.expect("called off");
            assert_eq!(asking.await.expect("no panic"), Err(FsError::Interrupted));
            a.release_locks(f, 1).await.expect("released");
            assert_eq!(a.test_lock(f, bytes(2, 0, 0)).await, Ok(None), "nobody got it");
        }
    });
}

#[test]
fn a_lock_outlives_the_start_of_its_node() {
    with_cluster(7, async |cluster| {
        let (a, b, c) = (external(cluster, "a"), external(cluster, "b"), internal(cluster, 2));
        let f = file_at(cluster, &a, NodeId(1)).await;
        for ask in [bytes(1, 0, 9), bytes(1, 20, 29), whole(2, LockMode::Shared)] {
            try_lock(&a, f, ask).await.expect("locked");
        }
        a.unlock(f, 1, LockRange { first: 4, last: 5 }).await.expect("unlocked");
        let waits = waiting(&c, f, bytes(1, 25, 25));
        sleep(Duration::from_millis(100)).await;
        for crash in [true, false] {
            match crash {
                true => cluster.crash(1).await,
                false => cluster.stop(1).await,
            }
            cluster.restart(1).await.expect("recovers");
            for (ask, expected) in [
                (bytes(1, 9, 9), Err(FsError::WouldBlock)),
                (whole(1, LockMode::Exclusive), Err(FsError::WouldBlock)),
                (whole(1, LockMode::Shared), Ok(())),
                (bytes(1, 4, 5), Ok(())),
            ] {
                assert_eq!(try_lock(&b, f, ask).await, expected, "{ask:?}");
            }
            assert!(a.client().holds_all_locks());
            assert!(!waits.is_finished());
            b.release_locks(f, 1).await.expect("released");
        }
        a.unlock(f, 1, LockRange { first: 25, last: 25 })
            .await
            .expect("unlocked");
        assert_eq!(waits.await.expect("no panic"), Ok(()));
    });
}

/// A client that does not hear of its node's start in time: it has its lock still, if nobody else has had one of that file.
#[test]
fn a_lock_that_others_may_have_had_is_lost() {
    with_cluster(9, async |cluster| {
        let (a, b) = (external(cluster, "a"), external(cluster, "b"));
        let f = file_at(cluster, &a, NodeId(1)).await;
        let g = file_at(cluster, &a, NodeId(1)).await;
        for inode in [f, g] {
            a.open(inode).await.expect("open");
            try_lock(&a, inode, bytes(1, 0, 0)).await.expect("locked");
        }
        cluster.network().disconnect("a");
        cluster.crash(1).await;
        let began = Instant::now();
        cluster.restart(1).await.expect("recovers");
        assert_eq!(try_lock(&b, f, bytes(1, 0, 0)).await, Ok(()), "nobody claims it");
        assert!(
            began.elapsed() >= cluster.timeouts().token,
            "not before it might have been claimed"
        );
        b.release_locks(f, 1).await.expect("released");
        cluster.network().reconnect("a");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(a.hold_locks(g, 1).await, Ok(()));
        assert!(matches!(a.hold_locks(f, 1).await, Err(FsError::Io(_))));
        assert!(!a.client().holds_locks(f, 1) && a.client().holds_locks(g, 1) && a.client().holds_locks(f, 2));
        assert!(matches!(try_lock(&a, f, bytes(1, 5, 5)).await, Err(FsError::Io(_))));
        assert!(matches!(a.unlock(f, 1, LockRange::ALL).await, Err(FsError::Io(_))));
        a.release_locks(f, 1).await.expect("closed");
        assert!(a.client().holds_all_locks());
        assert_eq!(try_lock(&a, f, bytes(1, 0, 0)).await, Ok(()), "it is free");
        assert_eq!(try_lock(&a, g, bytes(1, 0, 5)).await, Ok(()));
    });
}

#[test]
fn a_lock_whose_session_has_ended_at_its_node_is_lost() {
    with_cluster(10, async |cluster| {
        let (a, b) = (external(cluster, "a"), external(cluster, "b"));
        let f = file_at(cluster, &a, NodeId(1)).await;
        try_lock(&a, f, bytes(1, 0, 0)).await.expect("locked");
        cluster.network().disconnect("a");
        assert_eq!(wait_for(&b, f, bytes(1, 0, 0)).await, Ok(()), "with the lease");
        b.release_locks(f, 1).await.expect("released");
        // the node that might know is not the one that is asked
        cluster.crash(1).await;
        cluster.restart(1).await.expect("recovers");
        cluster.network().reconnect("a");
        assert!(matches!(a.hold_locks(f, 1).await, Err(FsError::Io(_))));
    });
}

/// Who hears that he has a lock when his session has ended at its node, and somebody else has it, does not believe it.
#[test]
fn a_lock_that_was_given_long_ago_is_asked_for_again() {
    let options = ClusterOptions {
        seed: 97,
        timeouts: short_leases(),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (late, other) = (external(cluster, "late"), external(cluster, "other"));
        let file = file_at(cluster, &other, NodeId(1)).await;
        late.get_attr(file).await.expect("attributes"); // it is connected
        let answered = Duration::from_secs(7);
        cluster
            .network()
            .set_delay_between("node-1", "late", answered..=answered);
        let asking = {
            let late = late.clone();
            spawn_local(async move { try_lock(&late, file, bytes(1, 0, 9)).await })
        };
        cluster.sleep(Duration::from_millis(100)).await;
        cluster.network().partition_one_way("late", "node-1");
        let refused = try_lock(&other, file, bytes(1, 0, 9)).await;
        assert_eq!(refused, Err(FsError::WouldBlock), "it is given");
        let begun = Instant::now();
        wait_for(&other, file, bytes(1, 0, 9))
            .await
            .expect("its holder is gone");
        assert!(begun.elapsed() < answered && !asking.is_finished());
        cluster.network().set_delay(Duration::ZERO..=Duration::ZERO);
        cluster.sleep(answered.saturating_sub(begun.elapsed())).await;
        cluster.network().heal_all();
        assert!(asking.await.expect("no panic").is_err(), "two have the lock");
        other.release_locks(file, 1).await.expect("release");
    });
}

fn replicated(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        replicas: 2,
        ..ClusterOptions::default()
    }
}

/// The primary of a file dies, or is cut off: others wait for the file's locks, and do not get what somebody has, though he has not asked
/// for anything since.
#[test]
fn locks_move_with_their_region() {
    for (seed, kill) in [(11, true), (12, false)] {
        with_options(replicated(seed), async |cluster| {
            cluster.mirrored().await;
            let (a, b, idle) = (
                external(cluster, "a"),
                external(cluster, "b"),
                external(cluster, "idle"),
            );
            let f = file_at(cluster, &a, NodeId(1)).await;
            try_lock(&idle, f, bytes(1, 0, 9)).await.expect("locked");
            try_lock(&a, f, bytes(1, 10, 19)).await.expect("locked");
            let waits = waiting(&a, f, bytes(2, 0, 0));
            sleep(Duration::from_secs(5)).await;
            match kill {
                true => cluster.crash(1).await,
                false => ["node-0", "node-2", "a", "b", "idle"]
                    .iter()
                    .for_each(|other| cluster.network().partition("node-1", other)),
            }
            let began = Instant::now();
            assert_eq!(try_lock(&b, f, bytes(1, 9, 10)).await, Err(FsError::WouldBlock));
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
            for of in [0, 9, 10, 19] {
                assert_eq!(
                    try_lock(&b, f, bytes(1, of, of)).await,
                    Err(FsError::WouldBlock),
                    "{of}"
                );
            }
            assert_eq!(try_lock(&b, f, bytes(1, 20, 29)).await, Ok(()));
            assert!(!waits.is_finished());
            assert_eq!(idle.hold_locks(f, 1).await, Ok(()));
            idle.unlock(f, 1, LockRange::ALL).await.expect("unlocked");
            assert_eq!(waits.await.expect("no panic"), Ok(()));
            cluster.network().heal_all();
        });
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    with_cluster(8, async |cluster| {
        let a = external(cluster, "a");
        let f = file_at(cluster, &a, NodeId(1)).await;
        for (first, last) in [(1, 0), (0, u64::MAX)] {
            assert!(matches!(
                try_lock(&a, f, bytes(1, first, last)).await,
                Err(FsError::Invalid(_))
            ));
            let range = LockRange { first, last };
            assert!(matches!(a.unlock(f, 1, range).await, Err(FsError::Invalid(_))));
        }
        let gone = InodeRef {
            generation: polvo_format::Generation(f.generation.0 + 1),
            ..f
        };
        assert_eq!(try_lock(&a, gone, bytes(1, 0, 0)).await, Err(FsError::Stale));
        assert_ne!(a.client().session(), SessionId(0));
        let waits = a.ask(NodeId(1), polvo_proto::Request::LockWaits).await;
        assert_eq!(waits, Err(FsError::NotPermitted), "only nodes ask for that");
    });
}

/// The file is closed while somebody waits for a lock, and locked anew by the same owner.
#[test]
fn a_wait_outlives_the_close_of_its_file() {
    with_cluster(13, async |cluster| {
        let (a, b) = (external(cluster, "a"), external(cluster, "b"));
        let f = file_at(cluster, &a, NodeId(1)).await;
        try_lock(&b, f, bytes(1, 0, 0)).await.expect("locked");
        let waits = waiting(&a, f, bytes(1, 0, 0));
        sleep(Duration::from_millis(100)).await;
        a.release_locks(f, 1).await.expect("closed");
        try_lock(&a, f, bytes(1, 9, 9)).await.expect("locked");
        b.release_locks(f, 1).await.expect("released");
        assert_eq!(waits.await.expect("no panic"), Ok(()));
        assert_eq!(a.hold_locks(f, 1).await, Ok(()));
        a.release_locks(f, 1).await.expect("closed");
        assert_eq!(try_lock(&b, f, bytes(1, 0, 9)).await, Ok(()), "nothing is left");
    });
}
