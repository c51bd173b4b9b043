//! Each bug of [`polvo_region::planted`] that lies in this crate, planted once: a test of its name, in which the cluster
//! misbehaves and a check says so. The same scenario passes without the bug.

mod common;

use common::*;
use polvo_cluster::{RegionVerb, Timeouts};
use polvo_consensus::register::{Answer as VoterAnswer, Ask as VoterAsk, Ballot};
use polvo_format::{
    Epoch, Gpa, INODE_SIZE, INODE_TAIL, NodeId, PAGE, REGISTER_OWNER, REGISTER_PLACE, RegionId, RegionOffset,
};
use polvo_node::Phase;
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use polvo_region::planted::{Plant, Planted};
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

/// The scenario passes, and fails with the bug, which it has got to.
fn caught(bug: Planted, scenario: fn()) {
    scenario();
    let plant = Plant::new(bug);
    let result = std::panic::catch_unwind(scenario);
    assert!(plant.reached() > 0, "the scenario does not get to {bug:?}");
    result.expect_err("nobody notices the bug");
}

#[test]
fn locks_released_before_the_bytes_are_written() {
    caught(Planted::LocksReleasedFirst, others_meanwhile);
}

#[test]
fn a_transaction_forgotten_before_it_is_decided() {
    caught(Planted::ForgottenBeforeDecided, a_slow_coordinator);
}

#[test]
fn what_came_later_overwritten_by_a_second_dispatch() {
    caught(Planted::DispatchedTwice, a_coordinator_comes_back);
}

#[test]
fn an_ended_session_that_is_served() {
    caught(Planted::EndedSessionServed, a_session_ends_while_it_waits);
}

#[test]
fn a_voter_that_does_not_keep_what_it_promises() {
    caught(Planted::VoterForgets, a_voter_loses_power);
}

#[test]
fn an_answer_before_the_mirrors_have_what_was_done() {
    caught(Planted::MirrorNotAwaited, a_primary_dies_that_its_mirror_did_not_hear);
}

#[test]
fn a_primary_that_answers_when_others_have_taken_its_place() {
    caught(Planted::LeaseForgotten, a_primary_is_cut_off);
}

#[test]
fn what_mirrors_lack_read_past_its_primary() {
    caught(Planted::GateLeftOpen, mirrors_are_cut_off);
}

#[test]
fn a_lease_that_clients_believe_in_for_ever() {
    caught(Planted::LeaseToldForEver, a_cut_off_primary_is_read_past);
}

#[test]
fn a_mirror_that_takes_over_after_a_lease_by_its_own_clock() {
    caught(Planted::GraceAsLease, a_slow_primary_and_a_fast_mirror);
    let _plant = Plant::new(Planted::GraceAsLease);
    one_answers_at_a_time(&[]); // only drift shows it
}

#[test]
fn a_dead_primarys_lease_by_the_clock_of_who_takes_its_place() {
    caught(Planted::DeadLeaseByOwnClock, tokens_of_a_slow_primary);
}

#[test]
fn tokens_of_a_primary_that_others_have_taken_the_place_of() {
    caught(Planted::TokensWithoutLease, tokens_of_a_slow_primary);
}

#[test]
fn a_lease_on_tokens_told_in_full() {
    caught(Planted::TokenLeaseInFull, a_token_given_by_a_fast_clock);
}

#[test]
fn a_decision_that_no_mirror_knows_of() {
    caught(Planted::DecisionsUnnoted, a_coordinator_is_succeeded);
}

#[test]
fn locks_that_no_mirror_knows_of() {
    caught(Planted::CollectedUnmirrored, a_participant_dies_that_has_collected);
}

#[test]
fn a_part_that_no_mirror_has_when_its_decision_is_retired() {
    caught(Planted::RetiredUnmirrored, a_participant_dies_that_has_its_part);
}

#[test]
fn a_mirror_left_out_that_may_take_over() {
    caught(Planted::SetShrunkUntold, a_mirror_comes_back_when_its_primary_has_died);
}

#[test]
fn records_that_come_when_a_mirror_has_taken_over() {
    caught(Planted::LaneKeyKept, records_are_late);
}

#[test]
fn a_request_done_by_each_of_two_primaries() {
    caught(Planted::RepeatedElsewhere, an_answer_is_lost_with_its_node);
}

#[test]
fn an_empty_pool_served_for_a_lost_one() {
    caught(Planted::LostPoolServed, a_node_comes_back_with_an_empty_pool);
}

#[test]
fn a_node_that_answers_before_it_has_heard_of_the_others() {
    caught(
        Planted::UnconfirmedServed,
        a_node_comes_back_that_does_not_know_of_its_mirror,
    );
}

#[test]
fn a_request_by_an_old_map_that_is_carried_out() {
    caught(Planted::OldEpochServed, a_client_does_not_know_that_a_region_has_moved);
}

#[test]
fn a_replaced_coordinator_that_can_still_write() {
    caught(Planted::DeposedNotFenced, a_dispatch_is_late);
}

#[test]
fn a_copy_that_has_not_heard_of_earlier_decisions() {
    caught(Planted::EarlierDecisionsUnnoted, a_coordinator_dies_twice);
}

#[test]
fn locks_given_before_others_have_claimed_theirs() {
    caught(Planted::LockGraceForgotten, a_lock_moves_with_its_region);
}

#[test]
fn locks_claimed_that_others_may_have_had() {
    caught(Planted::LateLockClaimed, a_lock_is_claimed_too_late);
}

#[test]
fn a_page_of_a_copy_that_differs_and_is_not_sent() {
    caught(Planted::DifferenceUnsent, a_mirror_has_missed_too_much);
}

#[test]
fn a_lease_of_one_that_has_taken_our_place_and_forgotten_us() {
    caught(Planted::LeaseByNewerMap, a_primary_stands_still_until_it_is_replaced);
}

#[test]
fn a_forced_map_that_others_may_have_overtaken() {
    caught(Planted::ForcedMapNotAbove, the_voter_of_two_has_gone_on_alone);
}

#[test]
fn a_copy_given_back_by_a_map_of_before() {
    caught(Planted::CopyFreedUnconfirmed, a_copy_is_where_only_a_later_map_wants_it);
}

#[test]
fn a_page_taken_from_a_mirror_that_lacks_records() {
    caught(Planted::TakenFromBehind, an_inode_is_damaged_that_has_just_changed);
}

#[test]
fn damage_sent_to_a_copy_that_is_whole() {
    caught(Planted::DamageSent, file_data_is_damaged_at_a_primary);
}

#[test]
fn beacons_that_wait_for_requests() {
    caught(Planted::BeaconsBehindRequests, a_connection_is_lost_whose_request_waits);
}

fn replicated(seed: u64) -> ClusterOptions {
    ClusterOptions {
        replicas: 2,
        pool_bytes: 32 << 20,
        ..options(seed)
    }
}

/// A file in a region of node 0, with these contents.
async fn file_of_node_0(cluster: &Cluster, c: &Caller, contents: &[u8]) -> InodeRef {
    let dir = c.directory_at(cluster, 0, "dir").await;
    let (_, file) = c.file_at(cluster, dir, 0, "f").await;
    c.write(file, 0, contents).await.unwrap();
    file
}

/// What was written while nobody with a copy could hear of it is not lost with the node, or nobody was told that it is written.
fn a_primary_dies_that_its_mirror_did_not_hear() {
    run(replicated(31), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
        }
        let write = timeout(Duration::from_millis(500), c.write(file, 0, b"after!")).await;
        cluster.crash(0).await;
        cluster.network().heal_all();
        let read = c.read(file).await.unwrap();
        match write {
            Ok(Ok(_)) => assert_eq!(read, b"after!"),
            _ => assert!(read == b"before" || read == b"after!"),
        }
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(3)).await;
    });
}

/// Node 0 asks its mirror to change what somebody has a token of who is gone, and loses its connections: they are made anew, and nobody
/// takes its place, though what it has asked for waits for longer than it may be silent.
fn a_connection_is_lost_whose_request_waits() {
    let token = Duration::from_secs(4);
    let timeouts = Timeouts {
        token,
        ..Timeouts::default()
    };
    run(
        ClusterOptions {
            timeouts,
            ..replicated(32)
        },
        async |cluster| {
            let (c, holder) = (Caller::new(cluster, "client"), Caller::new(cluster, "holder"));
            cluster.mirrored().await;
            let file = file_of_node_0(cluster, &c, b"before").await;
            let (mirror, region) = (mirror_of(cluster, file), file.ino.region());
            let dir = c.directory_at(cluster, mirror, "dir").await;
            let (_, watched) = c.file_at(cluster, dir, mirror, "f").await;
            let inodes = vec![watched];
            let taken = holder.ask_node(mirror, ask::TakeTokens { inodes }).await.unwrap();
            assert!(taken.tokens[0].is_some());
            let into = c.directory_at(cluster, 0, "into").await;
            let linking = spawn_local(async move { c.link(watched, into, "linked").await });
            cluster.sleep(Duration::from_millis(200)).await;
            assert!(!linking.is_finished(), "the holder is asked");
            cluster.network().disconnect("node-0");
            cluster.network().reconnect("node-0");
            cluster.sleep(Duration::from_secs(4)).await;
            let map = cluster.newest_map().expect("nodes run");
            assert_eq!(map.primary(region), Some(NodeId(0)), "nobody has cut it off");
            linking.await.unwrap().unwrap();
            settle(cluster).await;
        },
    );
}

/// A client that reaches nobody but the old primary is told nothing that is not so any more.
fn a_primary_is_cut_off() {
    run(replicated(37), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        assert_eq!(behind.read(file).await.unwrap(), b"before");
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
            cluster.network().partition("behind", other);
        }
        cluster.network().partition("client", "node-0");
        c.write(file, 0, b"after!").await.unwrap();
        let read = timeout(Duration::from_secs(2), behind.read(file)).await;
        assert!(
            !matches!(read, Ok(Ok(bytes)) if bytes == b"before"),
            "that was long ago"
        );
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(2)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(0).await.unwrap();
        cluster.mirrored().await;
        assert_eq!(behind.read(file).await.unwrap(), b"after!");
    });
}

/// The tail of an inode's log, read past the primary; none: nothing may be believed within a short time.
async fn tail_past(c: &Caller, inode: InodeRef) -> Option<u64> {
    let (region, mut tail) = (inode.ino.region(), [0; 8]);
    let at = Gpa::new(region, inode.ino.offset().unwrap());
    let at = at.checked_add(INODE_TAIL).unwrap();
    let mut ops = [RegionVerb::Read { at, into: &mut tail }];
    let read = timeout(Duration::from_millis(50), c.links.read(region, &mut ops));
    read.await.ok()?.unwrap();
    Some(u64::from_le_bytes(tail))
}

/// What no mirror has nobody sees, though it lies in the primary's memory.
fn mirrors_are_cut_off() {
    run(replicated(38), async |cluster| {
        let (c, reader) = (Caller::new(cluster, "client"), Caller::new(cluster, "reader"));
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        let before = tail_past(&reader, file).await.unwrap();
        assert_eq!(tail_past(&reader, file).await, Some(before));
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
        }
        let write = spawn_local(async move { c.write(file, 0, b"after!").await });
        sleep(Duration::from_millis(20)).await;
        for _ in 0..4 {
            let seen = tail_past(&reader, file).await;
            assert!(seen.is_none_or(|seen| seen == before), "no mirror has that");
        }
        cluster.network().heal_all();
        write.await.unwrap().unwrap();
        assert_ne!(tail_past(&reader, file).await, Some(before));
        cluster.sleep(Duration::from_secs(2)).await;
    });
}

/// As [`a_primary_is_cut_off`], of a client that asks nobody.
fn a_cut_off_primary_is_read_past() {
    run(replicated(39), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        let before = tail_past(&behind, file).await.unwrap();
        cut_off(cluster, "behind");
        cluster.network().partition("client", "node-0");
        let write = spawn_local(async move { c.write(file, 0, b"after!").await });
        let mut seen = 0;
        while !write.is_finished() {
            seen += u32::from(tail_past(&behind, file).await == Some(before));
            sleep(Duration::from_millis(10)).await;
        }
        write.await.unwrap().unwrap();
        assert!(seen > 1, "a lease was left");
        assert_eq!(tail_past(&behind, file).await, None, "that was long ago");
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(2)).await;
        assert!(matches!(cluster.ended(0).await, Err(FsError::Deposed { .. })));
        cluster.restart(0).await.unwrap();
        cluster.mirrored().await;
    });
}

/// Four nodes with two replicas of each region, of which one that is away for two seconds is replaced.
fn replacing(seed: u64) -> ClusterOptions {
    ClusterOptions {
        nodes: 4,
        segment_shift: Some(18),
        replace_after: Some(Duration::from_secs(2)),
        ..replicated(seed)
    }
}

/// Nobody who serves what node 0 has served knows it as a replica any more when it goes on. A client that reaches nobody else is told
/// nothing that is not so any more.
fn a_primary_stands_still_until_it_is_replaced() {
    run(replacing(38), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        assert_eq!(behind.attr(file).await.unwrap().size, 6);
        for other in ["node-1", "node-2", "node-3"] {
            cluster.network().partition("behind", other);
        }
        // there is nothing that its mirrors lack
        cluster.sleep(Duration::from_secs(40)).await;
        for other in ["node-1", "node-2", "node-3"] {
            cluster.network().partition("node-0", other);
        }
        let goes_on = Instant::now() + Duration::from_secs(10);
        cluster.stand_still(0, goes_on);
        c.write(file, 0, b"afterwards").await.unwrap();
        tokio::time::sleep_until(goes_on - Duration::from_millis(100)).await;
        for other in ["node-1", "node-2", "node-3"] {
            cluster.network().heal("node-0", other);
        }
        let map = cluster.node(1).map();
        assert!(
            map.regions.iter().all(|info| info.role(NodeId(0)).is_none()),
            "it is replaced"
        );
        let asked = timeout(Duration::from_secs(5), behind.attr(file)).await;
        assert!(!matches!(asked, Ok(Ok(attr)) if attr.size == 6), "that was long ago");
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
    });
}

/// Of two nodes the one that votes has changed the map since the other one has heard of it, and is removed by force.
fn the_voter_of_two_has_gone_on_alone() {
    let two = ClusterOptions {
        nodes: 2,
        segment_shift: Some(18),
        ..replicated(40)
    };
    run(two, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        cluster.network().partition("node-0", "node-1");
        cluster.sleep(Duration::from_secs(3)).await;
        let links = cluster.node(0).new_links();
        for _ in 0..10 {
            let changed = cluster.node(0).change_map(&links, |map| Some(map.clone())).await;
            assert!(changed.unwrap().epoch > cluster.node(1).map().epoch);
        }
        drop(links);
        cluster.crash(0).await;
        cluster.network().heal_all();
        for _ in 0..20 {
            let (node, replicas) = (NodeId(0), 2);
            let remove = ask::RemoveNode {
                node,
                force: true,
                replicas,
            };
            if c.ask_node(1, remove).await.unwrap().is_none() {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        c.create(ROOT, "since").await.unwrap();
        assert_eq!(cluster.restart(0).await, Err(FsError::Removed { node: 0 }));
    });
}

/// A node has got a copy that the configuration does not give it, knows of no map but that one, and hears nobody.
fn a_copy_is_where_only_a_later_map_wants_it() {
    run(replacing(39), async |cluster| {
        cluster.mirrored().await;
        cluster.crash(3).await;
        cluster.replaced(3).await;
        let is_new = |node: u16, region: RegionId| cluster.map().region(region).unwrap().role(NodeId(node)).is_none();
        let new = |node| cluster.held(node).into_iter().find(|region| is_new(node, *region));
        let (node, region) = (0..3)
            .find_map(|node| Some((node, new(node)?)))
            .expect("somebody has got a copy");
        let register = cluster.segments(node, REGISTER_OWNER, false)[0].0;
        for node in 0..3 {
            cluster.crash(node).await;
        }
        // what it has kept of the map cannot be read any more
        for place in [0, REGISTER_PLACE as u64] {
            (0..64).for_each(|word| cluster.pmem(node).write_u64(register + place + 8 * word, 7));
        }
        cluster.restart(node).await.unwrap();
        assert_eq!(cluster.node(node).map().epoch, Epoch(1));
        cluster.sleep(Duration::from_secs(40)).await;
        assert!(cluster.held(node).contains(&region));
    });
}

/// The clock of node 0 is as slow as one may be, those of its mirrors as fast.
const APART: [i32; 3] = [-10, 10, 10];

/// Three nodes, of which node 0 is cut off from the others, while `behind` reaches nobody else.
fn cut_off(cluster: &Cluster, behind: &str) {
    for other in ["node-1", "node-2"] {
        cluster.network().partition("node-0", other);
        cluster.network().partition(behind, other);
    }
}

fn with_clocks(seed: u64, drift: &[i32], scenario: impl AsyncFnOnce(&mut Cluster)) {
    let drift = drift.to_vec();
    run(
        ClusterOptions {
            drift,
            ..replicated(seed)
        },
        async |cluster| {
            // what clocks make of some milliseconds is not hidden behind delays
            let us = Duration::from_micros(20);
            cluster.network().set_delay(us..=us);
            cluster.mirrored().await;
            scenario(cluster).await;
        },
    );
}

fn a_slow_primary_and_a_fast_mirror() {
    one_answers_at_a_time(&APART);
}

/// A primary is cut off from its mirror; it is asked all the time, and so is the mirror. That looks for beacons at several moments
/// between two of them: it was started so much later.
fn one_answers_at_a_time(drift: &[i32]) {
    for later_ms in (0..340).step_by(15) {
        with_clocks(38, drift, async |cluster| {
            let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
            let file = file_of_node_0(cluster, &c, b"before").await;
            behind.attr(file).await.unwrap();
            let mirror = mirror_of(cluster, file);
            cluster.crash(mirror).await;
            cluster.sleep(Duration::from_millis(later_ms)).await;
            cluster.restart(mirror).await.unwrap();
            cluster.sleep(Duration::from_secs(3)).await;
            cluster.mirrored().await;
            let successor = Caller::colocated(cluster, "successor", mirror).await;
            cut_off(cluster, "behind");
            let asking = spawn_local(async move {
                let mut last = Instant::now();
                while let Ok(Ok(_)) = timeout(Duration::from_millis(5), behind.attr(file)).await {
                    last = Instant::now();
                }
                last
            });
            serves(&successor, file).await;
            let (first, last) = (Instant::now(), asking.await.unwrap());
            assert!(last < first, "both answer for {:?}", last - first);
        });
    }
}

/// A primary whose clock is slow is cut off, and gives and renews tokens as long as it may, to somebody whose clock is as slow.
fn tokens_of_a_slow_primary() {
    with_clocks(39, &APART, async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        let file = file_of_node_0(cluster, &c, b"before").await;
        believed_until(&behind, file).await.expect("nothing is in the way");
        let successor = Caller::colocated(cluster, "successor", mirror_of(cluster, file)).await;
        cut_off(cluster, "behind");
        let believing = spawn_local(async move {
            let (begun, mut until) = (Instant::now(), Instant::now());
            while begun.elapsed() < Duration::from_secs(8) {
                let taken = timeout(Duration::from_millis(5), believed_until(&behind, file)).await;
                until = until.max(taken.ok().flatten().unwrap_or(until));
                if begun.elapsed() > Duration::from_secs(2) {
                    until = until.max(watched_until(&behind).await.unwrap_or(until));
                }
            }
            until
        });
        serves(&successor, file).await;
        successor.write(file, 0, b"after!").await.unwrap();
        let (changed, until) = (Instant::now(), believing.await.unwrap());
        assert!(changed >= until, "changed {:?} too early", until - changed);
    });
}

/// The node that has a copy of the region of a file at node 0.
fn mirror_of(cluster: &Cluster, file: InodeRef) -> u16 {
    let map = cluster.node(0).map();
    let mut replicas = map.region(file.ino.region()).unwrap().replicas.iter();
    let mirror = replicas.find(|replica| replica.role == ReplicaRole::Mirror);
    mirror.expect("it is mirrored").node.0
}

/// Waits until the node around a caller serves a file.
async fn serves(colocated: &Caller, file: InodeRef) {
    let before = colocated.links.primary(file.ino.region());
    while colocated.links.primary(file.ino.region()) == before || colocated.attr(file).await.is_err() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// A node whose clock is fast gives a token to somebody whose clock is slow.
fn a_token_given_by_a_fast_clock() {
    with_clocks(40, &[10; 3], async |cluster| {
        let (c, holder) = (Caller::new(cluster, "client"), Caller::new(cluster, "holder"));
        let file = file_of_node_0(cluster, &c, b"before").await;
        let until = believed_until(&holder, file).await.expect("nothing is in the way");
        c.write(file, 0, b"after!").await.unwrap();
        let changed = Instant::now();
        assert!(changed >= until, "changed {:?} too early", until - changed);
    });
}

/// Takes a token of a file at node 0, and says until when it is believed by a clock as slow as one may be.
async fn believed_until(holder: &Caller, file: InodeRef) -> Option<Instant> {
    let sent = Instant::now();
    let taken = holder.ask_node(0, ask::TakeTokens { inodes: vec![file] }).await.ok()?;
    taken.tokens[0].as_ref()?;
    Some(sent + Duration::from_millis(taken.lease_ms) * 1000 / 990)
}

/// Has node 0 renew the lease on tokens, and says until when they are believed by such a clock.
async fn watched_until(holder: &Caller) -> Option<Instant> {
    let sent = Instant::now();
    let (term, answered, end) = (0, Vec::new(), false);
    let asked = holder.ask_node(0, ask::Watch { term, answered, end }).await.ok()?;
    let lease = Duration::from_millis(2000) * 980 / 1000;
    asked.renewed.then_some(sent + lease * 1000 / 990)
}

/// The coordinator of a rename dies when it has decided, and others take its place.
fn a_coordinator_is_succeeded() {
    run(replicated(41), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (stage, asking) = stopped_at(cluster, &c, Phase::Decided).await;
        cluster.crash(0).await;
        assert_eq!(asking.await.unwrap(), Ok(()));
        // until it is missed
        cluster.sleep(Duration::from_secs(4)).await;
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A directory in a region.
async fn directory_in(c: &Caller, region: u16, prefix: &str) -> InodeRef {
    for i in 0..500 {
        let dir = c.mkdir(ROOT, &format!("{prefix}{i}")).await.unwrap();
        if dir.ino.region() == RegionId(region) {
            return dir;
        }
    }
    panic!("no directory came to region {region}");
}

/// A file there.
async fn file_in(c: &Caller, dir: InodeRef, region: u16, prefix: &str) -> (String, InodeRef) {
    for i in 0..500 {
        let name = format!("{prefix}{i}");
        let file = c.create(dir, &name).await.unwrap();
        if file.ino.region() == RegionId(region) {
            return (name, file);
        }
    }
    panic!("no file came to region {region}");
}

/// A rename from a directory in region 1, of node 1 with its mirror at node 2, to one of node 0, which coordinates: in region 0, with
/// its mirror at node 1, or in region 3, with its mirror at node 2.
async fn stage(c: &Caller, coordinator: u16) -> Stage {
    stage_in(c, coordinator, 1).await
}

/// A rename of a file in region 1 from a directory in region `old` to one in region `new`.
async fn stage_in(c: &Caller, new: u16, old: u16) -> Stage {
    let (old_dir, new_dir) = (directory_in(c, old, "old").await, directory_in(c, new, "new").await);
    let (name, file) = file_in(c, old_dir, 1, "f").await;
    c.rename(old_dir, &name, old_dir, "source").await.unwrap();
    // everybody knows where everything lies
    let (name, _) = file_in(c, old_dir, 1, "g").await;
    c.rename(old_dir, &name, new_dir, "first").await.unwrap();
    Stage { old_dir, new_dir, file }
}

fn rename(c: &Caller, stage: Stage) -> JoinHandle<Result<(), FsError>> {
    let c = c.clone();
    spawn_local(async move { c.rename(stage.old_dir, "source", stage.new_dir, "dest").await })
}

async fn coordinator_stops(cluster: &Cluster) {
    while !cluster.node(0).coordinator_has_stopped() {
        cluster.sleep(Duration::from_millis(1)).await;
    }
}

/// The rename of a stage, by when node 0 has decided it and goes no further.
async fn decided(cluster: &Cluster, c: &Caller, stage: Stage) -> JoinHandle<Result<(), FsError>> {
    cluster.rest().await;
    cluster.sleep(Duration::from_secs(1)).await;
    cluster.node(0).stop_coordinator_at(Phase::Decided);
    let renaming = rename(c, stage);
    coordinator_stops(cluster).await;
    renaming
}

/// A participant that nobody with a copy can hear is asked to collect, and dies.
fn a_participant_dies_that_has_collected() {
    run(replicated(43), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage(&c, 0).await;
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition("node-1", "node-2");
        let renaming = rename(&c, stage);
        cluster.sleep(Duration::from_millis(600)).await;
        cluster.crash(1).await;
        cluster.network().heal_all();
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_secs(4)).await;
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A participant has got its part, of which nobody with a copy can hear, and dies.
fn a_participant_dies_that_has_its_part() {
    run(replicated(47), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage(&c, 0).await;
        let renaming = decided(cluster, &c, stage).await;
        cluster.network().partition("node-1", "node-2");
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_millis(1000)).await;
        cluster.crash(1).await;
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(4)).await;
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A node is started, and once more if it ends since others have taken its place.
async fn comes_back(cluster: &mut Cluster, node: u16) {
    cluster.restart(node).await.unwrap();
    cluster.sleep(Duration::from_secs(3)).await;
    if cluster.deposed() == Some(node) {
        let ended = cluster.ended(node).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(node).await.unwrap();
    }
    cluster.sleep(Duration::from_secs(5)).await;
}

/// A primary goes on without a mirror and dies; the mirror is there again, and lacks what was done meanwhile.
fn a_mirror_comes_back_when_its_primary_has_died() {
    run(replicated(53), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (_, file) = file_in(&c, dir, 0, "f").await;
        c.write(file, 0, b"before").await.unwrap();
        cluster.crash(1).await;
        c.write(file, 0, b"after!").await.unwrap();
        cluster.crash(0).await;
        comes_back(cluster, 1).await;
        comes_back(cluster, 0).await;
        assert_eq!(c.read(file).await.unwrap(), b"after!");
    });
}

/// Who goes by the map of before is told that there is another one.
fn a_client_does_not_know_that_a_region_has_moved() {
    run(replicated(83), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (_, file) = file_in(&c, dir, 0, "f").await;
        let ino = file.ino;
        let mut call = c.links.make_call(Cred::Kernel, ask::GetAttr { ino, generation: None });
        cluster.crash(0).await;
        assert!(c.attr(file).await.is_ok());
        assert_eq!(c.links.primary(RegionId(0)), Ok(NodeId(1)));
        let link = c.links.to(NodeId(1)).await.unwrap();
        call.request_id = c
            .links
            .make_call(Cred::Kernel, ask::GetAttr { ino, generation: None })
            .request_id;
        assert_eq!(link.call(&call).await, Err(FsError::WrongEpoch));
    });
}

/// What a primary has sent to its mirror arrives when that has taken its place.
fn records_are_late() {
    run(replicated(59), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (_, file) = file_in(&c, dir, 0, "f").await;
        let (_, other) = file_in(&c, dir, 0, "g").await;
        // its mirror has the segment
        c.write(file, 8192, &pattern(4_000, 3)).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        let slow = Duration::from_secs(8);
        for other in ["node-1", "node-2"] {
            cluster.network().set_delay_between("node-0", other, slow..=slow);
        }
        let late = pattern(4_000, 1);
        for other in ["node-1", "node-2"] {
            cluster.network().partition("behind", other);
        }
        let write = timeout(Duration::from_millis(700), behind.write(file, 0, &late)).await;
        assert!(write.is_err(), "{write:?}");
        cluster.network().partition("client", "node-0");
        // it fills all segments that there are
        let later = pattern(4_000, 2);
        for page in 0..200 {
            c.write(other, page * 4096, &later).await.unwrap();
        }
        let later = c.read(other).await.unwrap();
        cluster.sleep(slow).await;
        let usual = Duration::from_micros(20)..=Duration::from_millis(2);
        for other in ["node-1", "node-2"] {
            cluster.network().set_delay_between("node-0", other, usual.clone());
        }
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(10)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        assert!(c.read(other).await.unwrap() == later, "others' bytes");
        cluster.restart(0).await.unwrap();
        cluster.mirrored().await;
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

/// A node has done something, and its mirror knows of it; it dies before its answer has come.
fn an_answer_is_lost_with_its_node() {
    run(replicated(61), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (name, _) = file_in(&c, dir, 0, "f").await;
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition_one_way("node-0", "client");
        let unlinking = {
            let c = c.clone();
            spawn_local(async move { c.unlink(dir, &name).await })
        };
        cluster.sleep(Duration::from_millis(200)).await;
        cluster.crash(0).await;
        cluster.network().heal_all();
        assert_eq!(unlinking.await.unwrap(), Ok(()));
    });
}

/// A node comes back without its pool before others have missed it.
fn a_node_comes_back_with_an_empty_pool() {
    run(replicated(67), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"contents").await;
        cluster.crash(0).await;
        cluster.new_pool(0);
        if cluster.restart(0).await.is_ok() {
            cluster.sleep(Duration::from_secs(5)).await;
            if let Some(node) = cluster.deposed() {
                assert!(cluster.ended(node).await.is_err());
            }
        }
        assert_eq!(c.read(file).await.as_deref(), Ok(b"contents".as_slice()));
    });
}

/// A node dies before it knows that its copy has become a mirror, and comes back when that has taken its place.
fn a_node_comes_back_that_does_not_know_of_its_mirror() {
    run(replicated(71), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        let file = file_of_node_0(cluster, &c, b"before").await;
        assert_eq!(behind.read(file).await.unwrap(), b"before");
        let copy = cluster.copy_of_pool(0);
        cluster.mirrored().await;
        cluster.crash(0).await;
        c.write(file, 0, b"after!").await.unwrap();
        cluster.set_back(0, &copy);
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
            cluster.network().partition("behind", other);
        }
        cluster.network().partition("client", "node-0");
        if cluster.restart(0).await.is_ok() {
            let read = timeout(Duration::from_secs(3), behind.read(file)).await;
            assert!(
                !matches!(read, Ok(Ok(bytes)) if bytes == b"before"),
                "that was long ago"
            );
            cluster.crash(0).await;
        }
        cluster.network().heal_all();
        assert_eq!(c.read(file).await.unwrap(), b"after!");
    });
}

/// A coordinator's writes to a participant arrive when others have taken its place, and done that in its stead.
fn a_dispatch_is_late() {
    run(replicated(73), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage(&c, 3).await;
        let renaming = decided(cluster, &c, stage).await;
        for other in ["node-1", "node-2"] {
            cluster.network().partition_one_way("node-0", other);
        }
        cluster.node(0).let_coordinator_go_on();
        cluster.sleep(Duration::from_millis(100)).await;
        cluster.network().partition("client", "node-0");
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_secs(4)).await;
        let later = c.create(stage.old_dir, "later").await.unwrap();
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(8)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(0).await.unwrap();
        cluster.mirrored().await;
        assert_eq!(c.find(stage.old_dir, "later").await, Ok(later));
        is_renamed(cluster, &c, stage).await;
    });
}

/// A coordinator dies when it has decided, comes back, makes a new copy of its region, and dies again before all participants have
/// their parts.
fn a_coordinator_dies_twice() {
    run(replicated(79), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage_in(&c, 3, 5).await;
        let renaming = decided(cluster, &c, stage).await;
        cluster.crash(0).await;
        cluster.restart(0).await.unwrap();
        cluster.node(0).stop_coordinator_at(Phase::PartlyDispatched);
        // the copy counts no more, is made anew, and counts again
        cluster.sleep(Duration::from_millis(700)).await;
        cluster.mirrored().await;
        coordinator_stops(cluster).await;
        cluster.crash(0).await;
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        pool_bytes: 16 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// A rename, coordinated by node 0, of a file on node 2 from a directory on node 1.
#[derive(Clone, Copy)]
struct Stage {
    old_dir: InodeRef,
    new_dir: InodeRef,
    file: InodeRef,
}

/// Sets the stage, begins the rename and waits until its coordinator has stopped at that phase.
async fn stopped_at(cluster: &Cluster, c: &Caller, phase: Phase) -> (Stage, JoinHandle<Result<(), FsError>>) {
    let old_dir = c.directory_at(cluster, 1, "old").await;
    let new_dir = c.directory_at(cluster, 0, "new").await;
    let (name, file) = c.file_at(cluster, old_dir, 2, "f").await;
    c.rename(old_dir, &name, old_dir, "source").await.unwrap();
    cluster.rest().await;
    cluster.node(0).stop_coordinator_at(phase);
    let stage = Stage { old_dir, new_dir, file };
    let asking = {
        let c = c.clone();
        spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
    };
    for _ in 0..10_000 {
        if cluster.node(0).coordinator_has_stopped() {
            return (stage, asking);
        }
        cluster.sleep(Duration::from_micros(200)).await;
    }
    panic!("the coordinator did not stop");
}

fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

async fn is_renamed(cluster: &Cluster, c: &Caller, stage: Stage) {
    cluster.rest().await;
    assert_eq!(c.find(stage.new_dir, "dest").await, Ok(stage.file));
    assert_eq!(c.find(stage.old_dir, "source").await, Err(FsError::NotFound));
    assert_eq!(cluster.check(), Vec::<String>::new());
}

/// While one part is being dispatched, others change the inodes that are let go.
fn others_meanwhile() {
    run(options(3), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (stage, asking) = stopped_at(cluster, &c, Phase::PartlyDispatched).await;
        let touching = [stage.old_dir, stage.file].map(|inode| {
            let c = c.clone();
            spawn_local(async move { c.set(inode, mode(0o700)).await })
        });
        cluster.sleep(Duration::from_millis(200)).await;
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        for touched in touching {
            assert_eq!(touched.await.unwrap().unwrap().mode, 0o700);
        }
        is_renamed(cluster, &c, stage).await;
    });
}

/// Participants get impatient and ask how it stands.
fn a_slow_coordinator() {
    run(options(5), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (stage, asking) = stopped_at(cluster, &c, Phase::Collected).await;
        cluster.sleep(Duration::from_secs(3)).await;
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        is_renamed(cluster, &c, stage).await;
    });
}

/// A coordinator dies when one participant has its part; that one goes on.
fn a_coordinator_comes_back() {
    run(options(7), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (stage, asking) = stopped_at(cluster, &c, Phase::PartlyDispatched).await;
        // the part that is under way arrives
        cluster.sleep(Duration::from_millis(100)).await;
        cluster.crash(0).await;
        assert_eq!(asking.await.unwrap(), Ok(()), "it was answered at the decision");
        // which one it is depends on the numbers of their regions
        let created = c.create(stage.old_dir, "meanwhile").await;
        let set = c.set(stage.file, mode(0o700)).await;
        assert!(created.is_ok() != set.is_ok(), "{created:?}, {set:?}");
        cluster.restart(0).await.unwrap();
        cluster.rest().await;
        match created {
            Ok(made) => assert_eq!(c.find(stage.old_dir, "meanwhile").await, Ok(made)),
            Err(_) => assert_eq!(c.attr(stage.file).await.unwrap().mode, 0o700),
        }
        is_renamed(cluster, &c, stage).await;
    });
}

/// A session waits for an inode that a transaction holds, and ends before it gets it.
fn a_session_ends_while_it_waits() {
    run(options(9), async |cluster| {
        let (c, leaving) = (Caller::new(cluster, "client"), Caller::new(cluster, "leaving"));
        let (stage, asking) = stopped_at(cluster, &c, Phase::Collected).await;
        let link = leaving.links.to(NodeId(2)).await.unwrap();
        let opening = {
            let request = Request::Open { inode: stage.file };
            let (link, call) = (link.clone(), leaving.links.make_call(Cred::Kernel, request));
            spawn_local(async move { link.call(&call).await })
        };
        cluster.sleep(Duration::from_millis(100)).await;
        let detach = leaving.links.make_call(Cred::Kernel, Request::Detach);
        assert_eq!(link.call(&detach).await, Ok(Reply::Done));
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        let _answer = opening.await.unwrap();
        is_renamed(cluster, &c, stage).await;
        c.unlink(stage.new_dir, "dest").await.unwrap();
        assert_eq!(c.attr(stage.file).await, Err(FsError::Stale), "nobody holds it");
    });
}

/// A voter has promised to accept nothing of a lower ballot any more, and its machine loses power.
fn a_voter_loses_power() {
    run(options(11), async |cluster| {
        // each has asked for the map after its start
        cluster.sleep(Duration::from_secs(10)).await;
        let links = [0, 2].map(|node| cluster.node(node).new_links());
        let promise = |round, by| {
            let by = NodeId(by);
            ask::Register(Box::new(VoterAsk::Promise(Ballot { round, by })))
        };
        let promised = links[0].call_node(NodeId(1), Cred::Kernel, promise(1000, 0)).await;
        assert!(
            matches!(promised.as_deref(), Ok(VoterAnswer::Promised(..))),
            "{promised:?}"
        );
        cluster.power_cut(1, 3).await;
        cluster.restart(1).await.unwrap();
        let late = links[1].call_node(NodeId(1), Cred::Kernel, promise(999, 2)).await;
        assert!(matches!(late.as_deref(), Ok(VoterAnswer::Refused(..))), "{late:?}");
    });
}

/// An exclusive lock of all of a file.
fn lock(inode: InodeRef) -> ask::Lock {
    ask::Lock {
        inode,
        lock: LockAsk {
            owner: 1,
            kind: LockKind::Range,
            mode: LockMode::Exclusive,
            range: LockRange::ALL,
            pid: 1,
        },
        wait: None,
    }
}

/// What is claimed back when that is gone.
fn claim(inode: InodeRef, term: LockTerm) -> ask::ClaimLocks {
    ask::ClaimLocks {
        inode,
        owner: 1,
        term,
        ranges: vec![Locked {
            range: LockRange::ALL,
            mode: LockMode::Exclusive,
            pid: 1,
        }],
        whole: None,
    }
}

async fn granted(c: &Caller, inode: InodeRef) -> LockTerm {
    match c.ask(inode.ino.region(), lock(inode)).await.expect("a lock") {
        LockAnswer::Granted(term) => term,
        LockAnswer::Queued => panic!("queued, and nobody waits"),
    }
}

/// The primary of a file dies: whoever has locked it claims that back from its successor, and nobody else is given the lock before.
fn a_lock_moves_with_its_region() {
    run(replicated(5), async |cluster| {
        cluster.mirrored().await;
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        let file = file_of_node_0(cluster, &a, b"locked").await;
        let term = granted(&a, file).await;
        cluster.crash(0).await;
        let other = spawn_local({
            let b = b.clone();
            async move { b.ask(file.ino.region(), lock(file)).await }
        });
        cluster.sleep(Duration::from_millis(2400)).await;
        let claimed = loop {
            match a.ask(file.ino.region(), claim(file, term)).await {
                Ok(claimed) => break claimed,
                Err(error) => assert!(matches!(error, FsError::Unreachable { .. }), "{error}"),
            }
        };
        assert!(claimed.is_some_and(|now| now != term));
        assert_eq!(other.await.expect("no panic"), Err(FsError::WouldBlock));
        assert_eq!(
            a.ask(file.ino.region(), claim(file, claimed.unwrap())).await,
            Ok(claimed),
            "it is held"
        );
        assert_eq!(
            b.ask(file.ino.region(), claim(file, claimed.unwrap())).await,
            Ok(None),
            "not by all"
        );
    });
}

/// Who does not come in time has lost his lock once somebody else has had it, though it is free again; nor does what was had under another term
/// than the one before count.
fn a_lock_is_claimed_too_late() {
    run(replicated(6), async |cluster| {
        cluster.mirrored().await;
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        let file = file_of_node_0(cluster, &a, b"locked").await;
        let region = file.ino.region();
        let term = granted(&a, file).await;
        cluster.crash(0).await;
        granted(&b, file).await;
        let (owner, range) = (1, LockRange::ALL);
        let inode = file;
        b.ask(region, ask::Unlock { inode, owner, range })
            .await
            .expect("unlocked");
        assert_eq!(a.ask(region, claim(file, term)).await, Ok(None));
        assert_eq!(a.ask(region, claim(file, LockTerm(term.0 ^ 2))).await, Ok(None));
        granted(&a, file).await;
    });
}

/// What a file holds is what was written last, also at who was away so long that nobody knows what it lacks.
fn a_mirror_has_missed_too_much() {
    let options = ClusterOptions {
        backlog_max: Some(0),
        ..replicated(47)
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, &pattern(4096, 1)).await;
        let mirror = cluster.map().region(file.ino.region()).unwrap().replicas[1].node.0;
        cluster.crash(mirror).await;
        cluster.sleep(Duration::from_secs(3)).await;
        c.write(file, 0, &pattern(4096, 2)).await.unwrap();
        cluster.restart(mirror).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.mirrored().await;
        cluster.crash(0).await;
        let found = c.read(file).await.unwrap();
        assert!(found == pattern(4096, 2), "it holds something else");
    });
}

/// Compares a region with its copies.
async fn scrub_copies(c: &Caller, region: RegionId) {
    let mut place = Some(CopyPlace::default());
    while let Some(from) = place {
        let step = c.ask(region, ask::ScrubCopies { region, from }).await.unwrap();
        place = step.next;
    }
}

/// What was done to an inode is not undone when the inode is repaired.
fn an_inode_is_damaged_that_has_just_changed() {
    run(replicated(48), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"contents").await;
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(2)).await;
        let mode = SetAttr {
            mode: Some(0o751),
            ..SetAttr::default()
        };
        c.set(file, mode).await.unwrap();
        let slot = RegionOffset(file.ino.slot() * INODE_SIZE as u64);
        let at = cluster.place(0, Gpa::new(file.ino.region(), slot)) + 8;
        let pmem = cluster.pmem(0).clone();
        pmem.write_u64(at, pmem.read_u64(at) ^ 1);
        scrub_copies(&c, file.ino.region()).await;
        // what is kept in memory is no witness
        cluster.crash(0).await;
        cluster.restart(0).await.unwrap();
        assert_eq!(c.attr(file).await.unwrap().mode, 0o751);
    });
}

/// A file is what it was, after damage of what its node has of it.
fn file_data_is_damaged_at_a_primary() {
    run(replicated(49), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let contents = pattern(PAGE, 3);
        let file = file_of_node_0(cluster, &c, &contents).await;
        let region = file.ino.region();
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(2)).await;
        let pmem = cluster.pmem(0).clone();
        let mut page = vec![0; PAGE];
        let segments = cluster.segments(0, region, true).into_iter();
        let mut pages = segments.flat_map(|(at, len)| (at..at + len).step_by(PAGE));
        let holds = |at: &u64| {
            pmem.read(*at, &mut page);
            page == contents
        };
        let at = pages.find(holds).expect("it has data");
        pmem.write_u64(at + 64, !pmem.read_u64(at + 64));
        scrub_copies(&c, region).await;
        cluster.crash(0).await;
        assert!(c.read(file).await.unwrap() == contents, "it holds something else");
    });
}
