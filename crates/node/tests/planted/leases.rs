//! Who may answer, and for how long: leases, clocks that drift, and gates of what is read past a primary.

use super::*;

/// What happens at a moment between two beacons happens at several.
fn phases() -> impl Iterator<Item = Duration> {
    (0..333).step_by(30).map(Duration::from_millis)
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
fn a_place_taken_by_a_node_that_ends() {
    caught(Planted::PlaceTakenWhileEnding, two_do_not_hear_each_other);
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
fn a_lease_of_one_that_has_taken_our_place_and_forgotten_us() {
    caught(Planted::LeaseByNewerMap, a_primary_stands_still_until_it_is_replaced);
}

#[test]
fn beacons_that_wait_for_requests() {
    caught(Planted::BeaconsBehindRequests, a_connection_is_lost_whose_request_waits);
}

/// Node 0 asks its mirror to change what somebody has a token of who is gone, and loses its connections: they are made anew, and nobody
/// takes its place, though what it has asked for waits for longer than it may be silent.
fn a_connection_is_lost_whose_request_waits() {
    phases().for_each(a_connection_is_lost_after);
}

fn a_connection_is_lost_after(phase: Duration) {
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
            cluster.sleep(phase).await;
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
    phases().for_each(tokens_of_a_slow_primary_after);
}

fn tokens_of_a_slow_primary_after(phase: Duration) {
    with_clocks(39, &APART, async move |cluster| {
        cluster.sleep(phase).await;
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
    let lease = Timeouts::default().token * 980 / 1000;
    asked.renewed.then_some(sent + lease * 1000 / 990)
}

/// Two nodes do not hear each other, and the third one hears both: one takes the other's place, which ends, and takes none while it
/// does.
fn two_do_not_hear_each_other() {
    for seed in 600..604 {
        run(replicated(seed), async |cluster| {
            cluster.mirrored().await;
            cluster.network().partition("node-0", "node-1");
            let ended = deposed_within(cluster, Duration::from_secs(8)).await;
            assert!(ended == [0] || ended == [1], "seed {seed}: {ended:?}");
            cluster.network().heal_all();
            cluster.sleep(Duration::from_secs(3)).await;
        });
    }
}
