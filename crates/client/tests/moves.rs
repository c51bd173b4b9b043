//! Regions that move: their primary dies, and another node that has a copy takes its place.

use crate::common::*;
use polvo_client::AccessTimeRule;
use polvo_format::{NodeId, RegionId};
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{Durability, FsError, Replica, ReplicaRole, SetAttr, ask};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// A region a node, each with a mirror.
fn replicated(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        replicas: 2,
        regions_per_node: 1,
        pool_bytes: 128 << 20,
        ..ClusterOptions::default()
    }
}

/// A primary dies before the data of large writes is there, between it and their mirror, and after that: its successor has each of them
/// once, with its own data, although it gives the pages that they were written to at the primary to others.
#[test]
pub fn large_writes_are_done_once_though_their_primary_dies() {
    const LEN: usize = 100_000;
    const WRITERS: u64 = 4;
    with_options(replicated(84), async |cluster| {
        cluster.mirrored().await;
        let (_, made) = home_on(cluster, 1).await;
        let (client, other) = (external(cluster, "client"), external(cluster, "other"));
        let open = client.open(made).await.expect("open");
        let theirs = other.open(made).await.expect("open");
        let delay = Duration::from_millis(1);
        for step in 0..24u32 {
            cluster.mirrored().await;
            // there is space in hand
            client.set_attr(made, truncated()).await.expect("truncate");
            client.write(&open, 0, &pattern(1, LEN)).await.expect("write");
            cluster.network().set_delay(delay..=delay);
            let asking: Vec<_> = (0..WRITERS)
                .map(|n| {
                    let (client, open) = (client.clone(), open.clone());
                    tokio::task::spawn_local(async move { client.append(&open, &pattern(2 + n, LEN)).await })
                })
                .collect();
            cluster.sleep(delay * (step % 12) / 2 + delay / 4).await;
            let primary = client
                .client()
                .map()
                .primary(made.ino.region())
                .expect("it is served")
                .0;
            cluster.crash(primary).await;
            let mut places = vec![0];
            for (n, asked) in asking.into_iter().enumerate() {
                let (at, len) = asked.await.expect("no panic").expect("append");
                let mut bytes = vec![0; LEN];
                assert_eq!((len, other.read(&theirs, at, &mut bytes).await), (LEN, Ok(LEN)));
                assert!(bytes == pattern(2 + n as u64, LEN), "step {step}, writer {n}, at {at}");
                places.push(at);
            }
            places.sort_unstable();
            let expected: Vec<u64> = (0..=WRITERS).map(|n| n * LEN as u64).collect();
            assert_eq!(places, expected, "step {step}: one behind the other, and no more");
            assert_eq!(content(&other, &theirs).await.len(), LEN * (1 + WRITERS as usize));
            cluster.network().set_delay(Duration::ZERO..=Duration::ZERO);
            cluster.restart(primary).await.expect("restart");
        }
        cluster.mirrored().await;
    });
}

fn truncated() -> SetAttr {
    SetAttr {
        size: Some(0),
        ..SetAttr::default()
    }
}

/// A region moves while its primary is asked for space: that of the node which serves it by then is used from there on, whether that
/// one's number is higher or lower.
#[test]
fn a_client_goes_on_with_space_of_whichever_node_serves_the_region() {
    const LEN: usize = 100_000;
    const SEGMENTS_MAX: usize = 40;
    let options = ClusterOptions {
        segment_shift: Some(18),
        ..replicated(88)
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let (_, made) = home_on(cluster, 2).await;
        let region = made.ino.region();
        let client = external(cluster, "client");
        let open = client.open(made).await.expect("open");
        let mut moves = Vec::new();
        for round in 0..4 {
            for n in 0..40 {
                client.write(&open, 0, &pattern(n, LEN)).await.expect("write");
            }
            let primary = client.client().map().primary(region).expect("it is served").0;
            let taken = cluster.segments(primary, region, true).len();
            assert!(
                taken <= SEGMENTS_MAX,
                "round {round}: {taken} segments at node {primary}"
            );
            cluster.mirrored().await;
            let delay = Duration::from_millis(2);
            cluster.network().set_delay(delay..=delay);
            // more than is in hand
            let asking = {
                let (client, open) = (client.clone(), open.clone());
                tokio::task::spawn_local(async move { client.write(&open, 0, &pattern(round, LEN * 10)).await })
            };
            cluster.sleep(delay / 2).await;
            cluster.crash(primary).await;
            cluster.network().set_delay(Duration::ZERO..=Duration::ZERO);
            assert_eq!(asking.await.expect("no panic"), Ok(LEN * 10));
            assert!(
                content(&client, &open).await == pattern(round, LEN * 10),
                "round {round}"
            );
            client.set_attr(made, truncated()).await.expect("truncate");
            let now = client.client().map().primary(region).expect("it is served").0;
            moves.push((primary, now));
            cluster.restart(primary).await.expect("restart");
        }
        assert!(moves.iter().any(|(from, to)| from > to) && moves.iter().any(|(from, to)| from < to));
        cluster.mirrored().await;
    });
}

/// A node falls silent, and its connections stay as they are. Whoever was reading or writing goes on as soon as another one serves the
/// region, and does not wait for what he has asked of the silent one, nor for a connection to it.
#[test]
fn nobody_waits_for_a_silent_node_whose_regions_have_moved() {
    let (mut reading, mut changing) = (Duration::ZERO, Duration::ZERO);
    for seed in [600, 603, 607, 608] {
        with_options(replicated(seed), async |cluster| {
            cluster.mirrored().await;
            let client = external(cluster, "client");
            let is_over = Rc::new(Cell::new(false));
            let mut workers = Vec::new();
            let (dir, made) = home_on(cluster, 1).await;
            for n in 0..4u64 {
                for changes in [false, true] {
                    let open = client.open(made).await.expect("open");
                    client.write(&open, 0, &pattern(n, 20_000)).await.expect("write");
                    let (client, is_over) = (client.clone(), is_over.clone());
                    workers.push(tokio::task::spawn_local(async move {
                        let mut longest = Duration::ZERO;
                        for i in 0.. {
                            if is_over.get() {
                                break;
                            }
                            let begun = Instant::now();
                            if changes {
                                client.write(&open, 0, &pattern(i, 20_000)).await.expect("write");
                                let name = format!("f{n}-{i}");
                                client.create(dir, name.as_bytes(), file()).await.expect("create");
                            } else {
                                let mut bytes = vec![0; 20_000];
                                assert_eq!(client.read(&open, 0, &mut bytes).await, Ok(20_000));
                                client.get_attr(made).await.expect("attributes");
                            }
                            longest = longest.max(begun.elapsed());
                            tokio::time::sleep(Duration::from_millis(3 + n)).await;
                        }
                        (changes, longest)
                    }));
                }
            }
            cluster.sleep(Duration::from_millis(300 + 37 * (seed % 10))).await;
            for other in ["node-0", "node-2", "client"] {
                cluster.network().partition("node-1", other);
            }
            cluster.sleep(Duration::from_secs(6)).await;
            is_over.set(true);
            for worker in workers {
                let (changes, longest) = worker.await.expect("no panic");
                let most = if changes { &mut changing } else { &mut reading };
                *most = longest.max(*most);
            }
            println!("seed {seed}: so far reading {reading:?}, changing {changing:?}");
            cluster.network().heal_all();
            while cluster.deposed() != Some(1) {
                cluster.sleep(Duration::from_millis(100)).await;
            }
            cluster.ended(1).await.expect_err("others have taken its place");
            cluster.restart(1).await.expect("restart");
        });
    }
    // found, succeeded, heard of; and what the one before has promised is over
    assert!(reading < Duration::from_millis(2300), "{reading:?}");
    assert!(changing < Duration::from_millis(3000), "{changing:?}");
}

/// Node 1, whose place others have taken while it was silent, hears of it and is started anew.
async fn is_back(cluster: &mut Cluster) {
    cluster.network().heal_all();
    while cluster.deposed() != Some(1) {
        cluster.sleep(Duration::from_millis(100)).await;
    }
    cluster.ended(1).await.expect_err("others have taken its place");
    cluster.restart(1).await.expect("restart");
    cluster.mirrored().await;
}

/// What is done beside the operations is not waited for either: of a file that has lost a name the client lets go, and it opens it again
/// by another one, while that has been asked of a node that is silent since.
#[test]
fn nobody_waits_for_what_is_let_go_of_at_a_silent_node() {
    with_options(replicated(611), async |cluster| {
        cluster.mirrored().await;
        let client = external(cluster, "client");
        let (dir, made) = home_on(cluster, 1).await;
        client.link(made, dir, b"g").await.expect("link");
        client.lookup(dir, b"f").await.expect("a name that the client knows");
        // its lease has been renewed there, over a connection that stays
        cluster.sleep(cluster.timeouts().lease / 2).await;
        client.lookup(dir, b"f").await.expect("a name that the client knows");
        let open = client.open(made).await.expect("open");
        client.write(&open, 0, &pattern(5, 20_000)).await.expect("write");
        drop(open);
        client.unlink(dir, b"f").await.expect("unlink");
        for other in ["node-0", "node-2", "client"] {
            cluster.network().partition("node-1", other);
        }
        // it has been asked of the silent one by then
        cluster.sleep(Duration::from_millis(100)).await;
        let begun = Instant::now();
        let open = client.open(made).await.expect("open");
        let mut bytes = vec![0; 20_000];
        assert_eq!(client.read(&open, 0, &mut bytes).await, Ok(20_000));
        assert_eq!(bytes, pattern(5, 20_000));
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        is_back(cluster).await;
    });
}

/// Nor is its node waited for who has read from a file and then asks for its attributes, which the access time is part of.
#[test]
fn nobody_waits_for_an_access_time_at_a_silent_node() {
    with_options(replicated(612), async |cluster| {
        cluster.mirrored().await;
        let client = external(cluster, "client");
        client.client().keep_access_times(AccessTimeRule {
            of_directories: true,
            strict: false,
        });
        let (dir, made) = home_on(cluster, 1).await;
        client.lookup(dir, b"f").await.expect("a name that the client knows");
        let open = client.open(made).await.expect("open");
        client.write(&open, 0, &pattern(5, 20_000)).await.expect("write");
        let mut bytes = vec![0; 20_000];
        assert_eq!(client.read(&open, 0, &mut bytes).await, Ok(20_000));
        for other in ["node-0", "node-2", "client"] {
            cluster.network().partition("node-1", other);
        }
        client.accessed(&open);
        let begun = Instant::now();
        assert_eq!(client.get_attr(made).await.expect("attributes").size, 20_000);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        is_back(cluster).await;
    });
}

/// Nor who makes durable what he has changed, where nodes have to be asked for it: those that have it are.
#[test]
fn nobody_waits_for_a_silent_node_to_make_durable_what_others_have() {
    with_options(replicated(613), async |cluster| {
        for node in 0..3 {
            cluster.pmem(node).sim().expect("simulated").needs_sync_from_now(true);
        }
        cluster.mirrored().await;
        let client = external(cluster, "client");
        assert!(!client.needs_no_sync().await, "nodes have to be asked");
        let (dir, made) = home_on(cluster, 1).await;
        let open = client.open(made).await.expect("open");
        client.write(&open, 0, &pattern(5, 20_000)).await.expect("write");
        client.create(dir, b"g", file()).await.expect("create");
        for other in ["node-0", "node-2", "client"] {
            cluster.network().partition("node-1", other);
        }
        let begun = Instant::now();
        let sync_all = async {
            client.sync(None).await.expect("of names");
            begun.elapsed()
        };
        let sync_file = async {
            client.sync(Some(&open)).await.expect("of a file");
            begun.elapsed()
        };
        let (all, of_file) = tokio::join!(sync_all, sync_file);
        assert!(
            all.max(of_file) < Duration::from_secs(4),
            "{all:?}, of a file {of_file:?}"
        );
        is_back(cluster).await;
    });
}

/// Where the one before was ahead of its mirror, who takes its place may write a log anew up to the same tail, with something else in it.
/// Who was reading meanwhile, and knew how the log went on then, reads by the log that there is.
#[test]
fn a_read_that_outlives_its_node_goes_by_the_log_that_there_is_then() {
    const LEN: usize = 20_000;
    let options = ClusterOptions {
        durability: Durability::Async,
        ..replicated(614)
    };
    with_options(options, async |cluster| {
        let (delay, slow) = (Duration::from_millis(1), Duration::from_millis(60));
        cluster.mirrored().await;
        let (_, made) = home_on(cluster, 1).await;
        let (writer, reader) = (external(cluster, "writer"), external(cluster, "reader"));
        let open = writer.open(made).await.expect("open");
        let block = |n: u64| pattern(n, LEN);
        for n in 0..3 {
            writer.write(&open, n * LEN as u64, &block(n)).await.expect("write");
        }
        cluster.mirrored().await;
        let theirs = reader.open(made).await.expect("open");
        // no mirror has this, and the reader knows of it
        for other in ["node-0", "node-2"] {
            cluster.network().partition("node-1", other);
        }
        writer.write(&open, 0, &block(10)).await.expect("write");
        let mut bytes = vec![0; 3 * LEN];
        assert_eq!(reader.read(&theirs, 0, &mut bytes).await, Ok(bytes.len()));
        assert_eq!(bytes, [block(10), block(1), block(2)].concat());
        // it reads again, and hears of the node's successor later than the writer does
        for node in ["node-0", "node-2"] {
            cluster.network().set_delay_between("reader", node, slow..=slow);
            cluster.network().set_delay_between("writer", node, delay..=delay);
        }
        cluster.network().set_delay_between("reader", "node-1", slow..=slow);
        let reading = tokio::task::spawn_local(async move {
            let mut bytes = vec![0; 3 * LEN];
            let read = reader.read(&theirs, 0, &mut bytes).await;
            (read, bytes)
        });
        cluster.sleep(delay * 10).await;
        cluster.crash(1).await;
        cluster.network().heal_all();
        writer.write(&open, LEN as u64, &block(11)).await.expect("write");
        let (read, bytes) = reading.await.expect("no panic");
        assert_eq!(read, Ok(bytes.len()));
        let found: Vec<_> = bytes
            .chunks(LEN)
            .map(|bytes| (0..12).find(|n| bytes == block(*n)))
            .collect();
        let (before, after) = ([0, 1, 2].map(Some), [0, 11, 2].map(Some));
        assert!(found == before || found == after, "by the log that is lost: {found:?}");
        cluster.restart(1).await.expect("restart");
    });
}

/// A client that does nothing with a file which has no name any more opens it again where another node serves it now, before that gives
/// it up.
#[test]
fn an_idle_client_keeps_a_file_without_a_name_through_a_move() {
    let options = ClusterOptions {
        seed: 83,
        replicas: 2,
        timeouts: short_leases(),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let (dir, made) = home_on(cluster, 1).await;
        let client = external(cluster, "client");
        let open = client.open(made).await.expect("open");
        client.write(&open, 0, &pattern(2, 5_000)).await.expect("write");
        client.unlink(dir, b"f").await.expect("unlink");
        cluster.crash(1).await;
        cluster.sleep(short_leases().lease * 4).await;
        let mut bytes = vec![0; 5_000];
        assert_eq!(client.read(&open, 0, &mut bytes).await, Ok(5_000));
        assert_eq!(bytes, pattern(2, 5_000));
        drop(open);
        cluster.restart(1).await.expect("restart");
        cluster.sleep(short_leases().lease * 2).await;
        cluster.mirrored().await;
        assert!(client.get_attr(made).await.is_err(), "nobody has it open");
    });
}

/// Has one of its mirrors serve a region, as soon as it may.
async fn hand_over(cluster: &Cluster, region: RegionId) -> NodeId {
    let operator = external(cluster, "operator");
    let map = cluster.newest_map().expect("nodes run");
    let info = map.region(region).expect("it is there");
    let from = info.primary().expect("it is served");
    let is_mirror = |replica: &&Replica| replica.role == ReplicaRole::Mirror;
    let to = info.replicas.iter().find(is_mirror).expect("it has a mirror").node;
    while let Err(error) = operator.ask(from, ask::HandOver { region, to }).await {
        assert_eq!(error, FsError::Retry);
        cluster.sleep(Duration::from_millis(50)).await;
    }
    to
}

/// A client inside a node remembers where files lie in its pool: not beyond the time when their region is elsewhere, though it comes back.
#[test]
pub fn what_lies_in_the_node_around_a_client_goes_and_comes_back() {
    const LEN: usize = 3 << 20;
    with_options(replicated(87), async |cluster| {
        cluster.mirrored().await;
        let (_, made) = home_on(cluster, 1).await;
        let (inside, other) = (internal(cluster, 1), external(cluster, "other"));
        let (open, theirs) = (
            inside.open(made).await.expect("open"),
            other.open(made).await.expect("open"),
        );
        for round in 0..6 {
            let bytes = pattern(round, LEN);
            match round % 3 {
                0 => other.write(&theirs, 0, &bytes).await,
                _ => inside.write(&open, 0, &bytes).await,
            }
            .expect("write");
            for _ in 0..3 {
                assert!(content(&inside, &open).await == bytes, "round {round}, inside");
                assert!(content(&other, &theirs).await == bytes, "round {round}");
            }
            let before = inside.client().map().primary(made.ino.region());
            let now = hand_over(cluster, made.ino.region()).await;
            assert_ne!(before, Some(now));
            for _ in 0..3 {
                assert!(
                    content(&inside, &open).await == bytes,
                    "round {round}, inside, handed over"
                );
                assert!(content(&other, &theirs).await == bytes, "round {round}, handed over");
            }
            cluster.mirrored().await;
        }
    });
}

/// A node has handed one region over, and knows its sessions as before: what they have in hand of its other regions is theirs yet.
#[test]
pub fn what_sessions_have_of_other_regions_of_a_node_stays() {
    let options = ClusterOptions {
        regions_per_node: 2,
        ..replicated(88)
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let client = external(cluster, "client");
        let map = cluster.map().clone();
        let at_node_1 = map.regions.iter().filter(|info| info.primary() == Some(NodeId(1)));
        let [goes, stays] = at_node_1.map(|info| info.id).collect::<Vec<_>>()[..] else {
            panic!("two of each node")
        };
        let mut i = 0;
        let open = loop {
            i += 1;
            let name = format!("f{i}");
            let (attr, open) = client.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            if attr.ino.region() == stays {
                break open;
            }
        };
        // of all sessions there, which is ours alone
        let in_hand = async || {
            let status = client.ask(NodeId(1), ask::Status).await.expect("status");
            let counts = status.split("\"delegated_pages\":").skip(1);
            let number = |count: &str| count.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok();
            counts.filter_map(number).sum::<u64>()
        };
        let mut before = None;
        for round in 0..8 {
            client.write(&open, 0, &pattern(round, 100_000)).await.expect("write");
            hand_over(cluster, goes).await;
            client
                .write(&open, 0, &pattern(round + 1, 100_000))
                .await
                .expect("write");
            before.get_or_insert(in_hand().await);
        }
        let (before, after) = (before.expect("there were rounds"), in_hand().await);
        assert!(
            before > 0 && after <= 2 * before,
            "{before} pages were in hand, and {after} are"
        );
    });
}
