//! Nodes that are away, come back, or forget us; sessions that end.

use crate::common::*;
use polvo_cluster::{MapCell, SessionContext, Timeouts, fetch_map};
use polvo_format::NodeId;
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{FsError, InodeRef, RenameMode, SetAttr};
use std::time::Duration;

/// A missing node is an error in bounded time for what lies there; the rest works on.
#[test]
fn a_missing_node_is_an_error_and_no_hang() {
    with_options(
        ClusterOptions {
            seed: 70,
            timeouts: short_leases(),
            ..ClusterOptions::default()
        },
        async |cluster| {
            let (dir, made) = home_on(cluster, 2).await;
            let client = external(cluster, "client");
            let open = client.open(made).await.expect("open");
            client.write(&open, 0, &pattern(1, 50_000)).await.expect("write");
            cluster.crash(2).await;
            let start = tokio::time::Instant::now();
            let unreachable = |result: Result<(), FsError>| {
                assert!(
                    matches!(result, Err(FsError::Unreachable { node: 2, .. })),
                    "{result:?}"
                );
            };
            let mut bytes = [0; 100];
            unreachable(client.read(&open, 0, &mut bytes).await.map(drop));
            unreachable(client.write(&open, 0, b"x").await.map(drop));
            unreachable(client.write(&open, 0, &[7; 50_000]).await.map(drop));
            unreachable(client.lookup(dir, b"f").await.map(drop));
            unreachable(client.get_attr(made).await.map(drop));
            unreachable(client.create(dir, b"g", file()).await.map(drop));
            assert!(
                start.elapsed() < cluster.timeouts().rpc * 3,
                "took {:?}",
                start.elapsed()
            );
            for n in 0..10u32 {
                let here = client.create(ROOT, format!("here-{n}").as_bytes(), file()).await;
                if let Ok(made) = here {
                    client
                        .lookup(ROOT, format!("here-{n}").as_bytes())
                        .await
                        .expect("lookup");
                    let open = client.open(inode(&made)).await.expect("open");
                    client.write(&open, 0, &[5; 10_000]).await.expect("write");
                }
            }
            let (usage, missing) = client.usage().await.expect("usage");
            assert_eq!((usage.len(), missing), (2, vec![polvo_format::NodeId(2)]));
            cluster.restart(2).await.expect("restart");
            cluster.sleep(Duration::from_secs(1)).await;
            assert_eq!(client.read(&open, 0, &mut bytes).await, Ok(100), "open files go on");
            assert_eq!(bytes[..], pattern(1, 100)[..]);
            client
                .write(&open, 0, &[7; 50_000])
                .await
                .expect("write, with space asked for anew");
            assert_eq!(client.lookup(dir, b"f").await.map(|x| x.ino), Ok(made.ino));
        },
    );
}

/// A node that has restarted may know a session again before its client comes back: by what another node has made there
/// for it. The space that it had before is somebody else's all the same.
#[test]
fn space_from_before_a_restart_is_not_used_though_the_session_is_known_again() {
    let options = ClusterOptions {
        seed: 76,
        timeouts: short_leases(),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (_, made) = home_on(cluster, 2).await;
        let client = external(cluster, "client");
        let open = client.open(made).await.expect("open");
        client.write(&open, 0, &pattern(1, 50_000)).await.expect("write");
        cluster.crash(2).await;
        cluster.restart(2).await.expect("restart");
        let mut opened = Vec::new();
        for n in 0..100u32 {
            let name = format!("made-{n}");
            let (attr, file) = client.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            opened.push(file);
            if cluster.node(2).serves(attr.ino.region()) {
                break;
            }
        }
        client
            .write(&open, 0, &pattern(2, 50_000))
            .await
            .expect("write, with space asked for anew");
        assert!(content(&client, &open).await == pattern(2, 50_000));
    });
}

/// After a crash (or a power cut) of all nodes what had returned is there, for clients that lived on, too.
#[test]
fn clients_live_through_the_restart_of_all_nodes() {
    for (seed, power) in [(71, false), (72, true)] {
        let options = ClusterOptions {
            seed,
            timeouts: short_leases(),
            ..ClusterOptions::default()
        };
        with_options(options, async |cluster| {
            let client = external(cluster, "client");
            let dir = inode(&client.create(ROOT, b"dir", directory()).await.expect("mkdir"));
            let mut open = Vec::new();
            for n in 0..12u64 {
                let name = format!("f{n}");
                let (_, file) = client.create_open(dir, name.as_bytes(), file()).await.expect("create");
                client.write(&file, n * 1000, &pattern(n, 30_000)).await.expect("write");
                client.write(&file, 0, &pattern(n, 300)).await.expect("write");
                open.push(file);
            }
            let gone = open.pop().expect("twelve were opened");
            client.unlink(dir, b"f11").await.expect("unlink");
            for round in 0..3u64 {
                for node in 0..3 {
                    match power {
                        true => cluster.power_cut(node, seed + round).await,
                        false => cluster.crash(node).await,
                    }
                }
                for node in 0..3 {
                    cluster.restart(node).await.expect("restart");
                }
                cluster.sleep(Duration::from_millis(500)).await;
                for (n, file) in open.iter().enumerate() {
                    let n = n as u64;
                    let mut model = vec![0; n as usize * 1000 + 30_000];
                    model[n as usize * 1000..].copy_from_slice(&pattern(n, 30_000));
                    model[..300].copy_from_slice(&pattern(n, 300));
                    for past in 0..round {
                        model.extend(pattern(past, 5000));
                    }
                    assert!(content(&client, file).await == model, "round {round}, file {n}");
                    assert_eq!(
                        client.append(file, &pattern(round, 5000)).await,
                        Ok((model.len() as u64, 5000))
                    );
                    let name = format!("f{n}");
                    assert_eq!(
                        client.lookup(dir, name.as_bytes()).await.map(|x| x.ino),
                        Ok(file.inode().ino)
                    );
                }
                let mut bytes = [0; 10];
                let dead = client.read(&gone, 0, &mut bytes).await;
                assert!(
                    matches!(dead, Err(FsError::Stale | FsError::NotFound)),
                    "unlinked before the crash: {dead:?}"
                );
            }
        });
    }
}

/// A client that was silent for longer than its lease comes back: its space is somebody else's by then.
#[test]
fn a_client_cut_off_for_longer_than_its_lease_starts_anew() {
    let options = ClusterOptions {
        seed: 73,
        timeouts: short_leases(),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (slow, quick) = (external(cluster, "slow"), external(cluster, "quick"));
        let (made, open) = slow.create_open(ROOT, b"f", file()).await.expect("create");
        let mut model = pattern(1, 100_000);
        slow.write(&open, 0, &model).await.expect("write");
        for node in 0..3 {
            cluster.network().partition("slow", &format!("node-{node}"));
        }
        let cut_off = slow.write(&open, 0, &[9; 20_000]).await;
        assert!(matches!(cut_off, Err(FsError::Unreachable { .. })), "{cut_off:?}");
        cluster.sleep(cluster.timeouts().lease * 3).await;
        let theirs = quick.open(inode(&made)).await.expect("open");
        for n in 0..20u64 {
            let bytes = pattern(n, 60_000);
            quick.write(&theirs, n * 10_000, &bytes).await.expect("write");
            model.resize(model.len().max(n as usize * 10_000 + 60_000), 0);
            model[n as usize * 10_000..n as usize * 10_000 + 60_000].copy_from_slice(&bytes);
        }
        cluster.network().heal_all();
        cluster.sleep(Duration::from_millis(500)).await;
        let bytes = pattern(99, 50_000);
        slow.write(&open, 5000, &bytes).await.expect("write");
        model[5000..55_000].copy_from_slice(&bytes);
        assert!(content(&quick, &theirs).await == model);
        assert!(content(&slow, &open).await == model);
    });
}

/// Everything a client holds is returned when it ends.
#[test]
fn the_end_of_a_session_returns_everything() {
    with_cluster(74, async |cluster| {
        let free = async |cluster: &Cluster| {
            let probe = external(cluster, "probe");
            let (usage, _) = probe.usage().await.expect("usage");
            usage.iter().map(|(_, u)| (u.inodes, u.data_bytes)).collect::<Vec<_>>()
        };
        let before = free(cluster).await;
        for client in [external(cluster, "client"), internal(cluster, 1)] {
            let mut open = Vec::new();
            for n in 0..10u64 {
                let (_, file) = client.create_unnamed(ROOT, file()).await.expect("create");
                client.write(&file, 0, &pattern(n, 100_000)).await.expect("write");
                open.push(file);
            }
            client.end().await;
            drop(open);
        }
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(free(cluster).await, before);
    });
}

/// Colocated: a large write takes pages for itself alone: none stay taken, whether it finds enough of them or not.
#[test]
fn writes_inside_a_node_keep_no_pages() {
    with_cluster(76, async |cluster| {
        let client = internal(cluster, 0);
        let used = async || {
            let (usage, _) = client.usage().await.expect("usage");
            usage.iter().map(|(_, u)| u.data_bytes).sum::<u64>()
        };
        let mut here = None;
        for n in 0..50 {
            let name = format!("f{n}");
            let (made, open) = client.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            if cluster.node(0).serves(made.ino.region()) {
                here = Some((name, open));
                break;
            }
        }
        let (name, open) = here.expect("a file of this node");
        let mut model = pattern(1, 9 << 20);
        assert_eq!(client.write(&open, 0, &model).await, Ok(model.len()));
        assert_eq!(used().await, model.len() as u64);
        // in more pieces than one copy has
        for n in 0..400 {
            let (at, bytes) = (n * 8192, pattern(n as u64, 4096));
            client.write(&open, at as u64, &bytes).await.expect("write");
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let mut read = vec![0; 1 << 20];
        for at in (0..model.len()).step_by(read.len()) {
            assert_eq!(client.read(&open, at as u64, &mut read).await, Ok(read.len()));
            assert!(read == model[at..at + read.len()], "at {at}");
        }
        let mut end = model.len() as u64;
        let bytes = pattern(2, 3 << 20);
        loop {
            match client.write(&open, end, &bytes).await {
                Ok(written) => end += written as u64,
                Err(error) => break assert_eq!(error, FsError::NoSpace),
            }
        }
        assert_eq!(
            used().await,
            end.next_multiple_of(4096),
            "no page is lost to a write that found too few"
        );
        client.unlink(ROOT, name.as_bytes()).await.expect("unlink");
        drop(open);
        cluster.sleep(cluster.timeouts().renew_every() * 2).await;
        assert_eq!(used().await, 0);
    });
}

/// An idle client neither keeps what it does not use, nor loses its session.
#[test]
fn idle_clients_keep_their_session_and_return_space() {
    let options = ClusterOptions {
        seed: 75,
        timeouts: short_leases(),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (client, other) = (external(cluster, "client"), external(cluster, "other"));
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        client.write(&open, 0, &pattern(1, 1 << 20)).await.expect("write");
        other.unlink(ROOT, b"f").await.expect("unlink");
        cluster.sleep(cluster.timeouts().lease * 5).await;
        assert!(
            content(&client, &open).await == pattern(1, 1 << 20),
            "dead, but held open"
        );
        let used = async || {
            other
                .usage()
                .await
                .expect("usage")
                .0
                .iter()
                .map(|(_, u)| u.data_bytes)
                .sum::<u64>()
        };
        assert_eq!(used().await, 1 << 20, "no page is in hand for no use");
        drop(open);
        cluster.sleep(cluster.timeouts().renew_every() * 2).await;
        assert_eq!(used().await, 0, "let go of after the last close");
    });
}

/// A node that was started anew has given to others what we had been given before. Nothing of ours goes there.
#[test]
fn space_from_before_a_restart_is_not_written_to() {
    with_options(
        ClusterOptions {
            seed: 77,
            nodes: 1,
            ..ClusterOptions::default()
        },
        async |cluster| {
            let (ours, theirs) = (external(cluster, "ours"), external(cluster, "theirs"));
            let (attr, open) = ours.create_open(ROOT, b"ours", file()).await.expect("create");
            ours.write(&open, 0, &pattern(1, 100_000)).await.expect("write");
            // the node goes while the data is under way, and is back before we are
            let slow = Duration::from_millis(50);
            cluster.network().set_delay_between("ours", "node-0", slow..=slow);
            let writing = {
                let (ours, open) = (ours.clone(), open.clone());
                tokio::task::spawn_local(async move { ours.write(&open, 0, &pattern(99, 90_000)).await })
            };
            cluster.sleep(slow / 2).await;
            cluster.crash(0).await;
            cluster.restart(0).await.expect("restart");
            let mut others = Vec::new();
            for n in 0..20u64 {
                let name = format!("theirs-{n}");
                let (_, open) = theirs.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
                theirs.write(&open, 0, &pattern(n, 200_000)).await.expect("write");
                others.push(open);
            }
            assert!(!writing.is_finished(), "it is still on its way");
            assert_eq!(writing.await.expect("it does not panic"), Ok(90_000));
            for (n, other) in others.iter().enumerate() {
                let mut bytes = vec![0; 200_000];
                theirs.read(other, 0, &mut bytes).await.expect("read");
                assert!(bytes == pattern(n as u64, 200_000), "file {n} was written to");
            }
            let mut bytes = vec![0; 90_000];
            theirs
                .read(&theirs.open(inode(&attr)).await.expect("open"), 0, &mut bytes)
                .await
                .expect("read");
            assert!(bytes == pattern(99, 90_000));
        },
    );
}

/// What a client does to a file of its own and its directory, all of which lies at one node: the results, by name.
async fn everything(
    client: &polvo_client::LocalClient,
    dir: InodeRef,
    open: &polvo_client::OpenFile,
    round: u32,
) -> Vec<(&'static str, Result<(), FsError>)> {
    let mut bytes = [0; 100];
    let name = format!("new-{round}");
    vec![
        ("read", client.read(open, 0, &mut bytes).await.map(drop)),
        ("small write", client.write(open, 0, b"x").await.map(drop)),
        ("large write", client.write(open, 0, &[7; 50_000]).await.map(drop)),
        ("lookup", client.lookup(dir, b"f").await.map(drop)),
        ("attributes", client.get_attr(open.inode()).await.map(drop)),
        ("create", client.create(dir, name.as_bytes(), file()).await.map(drop)),
        ("open", client.open(open.inode()).await.map(drop)),
    ]
}

/// Whoever waits for a node that is back within the limit sees nothing of its restart. Others are not kept waiting.
#[test]
fn a_restart_within_the_limit_is_not_noticed() {
    for colocated in [false, true] {
        with_options(
            ClusterOptions {
                seed: 78,
                ..ClusterOptions::default()
            },
            async |cluster| {
                let (dir, made) = home_on(cluster, 2).await;
                let (_, elsewhere) = home_on(cluster, 1).await;
                let client = match colocated {
                    true => internal(cluster, 0),
                    false => external(cluster, "client"),
                };
                let (open, other) = (client.open(made).await.expect("open"), client.open(elsewhere).await);
                let other = other.expect("open");
                client.write(&open, 0, &pattern(1, 50_000)).await.expect("write");
                client.write(&other, 0, &pattern(2, 50_000)).await.expect("write");
                let away = cluster.timeouts().away;
                for round in 0..3 {
                    cluster.crash(2).await;
                    let waiting = {
                        let (client, open) = (client.clone(), open.clone());
                        tokio::task::spawn_local(async move {
                            let start = tokio::time::Instant::now();
                            (everything(&client, dir, &open, round).await, start.elapsed())
                        })
                    };
                    cluster.sleep(away / 2).await;
                    assert!(!waiting.is_finished(), "it waits");
                    let start = tokio::time::Instant::now();
                    assert!(content(&client, &other).await == pattern(2, 50_000));
                    let (usage, missing) = client.usage().await.expect("usage");
                    assert_eq!((usage.len(), missing.len()), (2, 1));
                    assert!(
                        start.elapsed() < Duration::from_millis(100),
                        "others' files, and df: {:?}",
                        start.elapsed()
                    );
                    cluster.restart(2).await.expect("restart");
                    let (results, took) = waiting.await.expect("no panic");
                    for (what, result) in results {
                        assert_eq!(result, Ok(()), "{what}, round {round}");
                    }
                    println!("colocated {colocated}, round {round}: everything done after {took:?}");
                    assert!(took < away / 2 + Duration::from_secs(1));
                }
            },
        );
    }
}

/// Past the limit everything that needs the node fails, and at once from then on, until it is back.
#[test]
fn after_the_limit_operations_fail_at_once_until_the_node_is_back() {
    with_options(
        ClusterOptions {
            seed: 79,
            ..ClusterOptions::default()
        },
        async |cluster| {
            let (dir, made) = home_on(cluster, 2).await;
            for soft in [false, true] {
                let client = external(cluster, if soft { "soft" } else { "hard" });
                if soft {
                    client.client().set_patience(Duration::ZERO);
                }
                let open = client.open(made).await.expect("open");
                client.write(&open, 0, &pattern(1, 50_000)).await.expect("write");
                cluster.crash(2).await;
                let away = cluster.timeouts().away;
                let limit = if soft { Duration::ZERO } else { away };
                let (mut bytes, start) = ([0; 100], tokio::time::Instant::now());
                let unreachable = |result: &Result<(), FsError>| {
                    assert!(
                        matches!(result, Err(FsError::Unreachable { node: 2, .. })),
                        "{result:?}"
                    );
                };
                unreachable(&client.read(&open, 0, &mut bytes).await.map(drop));
                let first = start.elapsed();
                assert!(first + Duration::from_millis(200) > limit, "{first:?}");
                assert!(first < limit + Duration::from_millis(200), "{first:?}");
                let start = tokio::time::Instant::now();
                for (_, result) in everything(&client, dir, &open, 0).await {
                    unreachable(&result);
                }
                println!(
                    "soft {soft}: first error after {first:?}, the next seven within {:?}",
                    start.elapsed()
                );
                assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
                cluster.sleep(Duration::from_secs(60)).await;
                let start = tokio::time::Instant::now();
                unreachable(&client.lookup(dir, b"f").await.map(drop));
                assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
                cluster.restart(2).await.expect("restart");
                cluster.sleep(Duration::from_millis(300)).await;
                for (what, result) in everything(&client, dir, &open, u32::from(soft) + 1).await {
                    assert_eq!(result, Ok(()), "{what}");
                }
            }
        },
    );
}

/// A client that ends while a node is away does not wait for it; nor do leases at other nodes end because of it.
#[test]
fn neither_the_end_nor_the_lease_waits_for_a_node_that_is_away() {
    let options = ClusterOptions {
        seed: 80,
        timeouts: Timeouts {
            away: Duration::from_secs(60),
            ..short_leases()
        },
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (_, made) = home_on(cluster, 2).await;
        let (dir, unnamed) = home_on(cluster, 1).await;
        let client = external(cluster, "client");
        let kept = client.open(unnamed).await.expect("open");
        client.write(&kept, 0, &pattern(3, 100)).await.expect("write");
        client.unlink(dir, b"f").await.expect("unlink");
        client.open(made).await.expect("open");
        cluster.crash(2).await;
        let waiting = {
            let client = client.clone();
            tokio::task::spawn_local(async move { client.get_attr(made).await })
        };
        cluster.sleep(cluster.timeouts().lease * 4).await;
        assert!(!waiting.is_finished(), "it waits for a minute");
        assert!(content(&client, &kept).await == pattern(3, 100), "held all the time");
        let start = tokio::time::Instant::now();
        client.end().await;
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
        waiting.abort();
        cluster.restart(2).await.expect("restart");
    });
}

/// A node that has forgotten a session says so when it is attached again; whoever gets no answer and asks once more is told
/// the same.
#[test]
fn a_forgotten_session_is_noticed_even_if_the_answer_that_said_so_was_lost() {
    with_cluster(76, async |cluster| {
        let (_, made) = home_on(cluster, 1).await;
        let client = external(cluster, "client");
        let open = client.open(made).await.expect("open");
        client.write(&open, 0, &pattern(1, 50_000)).await.expect("write");
        cluster.crash(1).await;
        cluster.restart(1).await.expect("restart");
        let unheard = SessionContext::new(
            MapCell::new(cluster.map().clone()),
            cluster.client_identity(),
            client.client().session(),
            "client".into(),
            None,
            cluster.timeouts(),
            None,
        );
        cluster.network().place(unheard.memory(), "client");
        unheard.links().to(NodeId(1)).await.expect("attach");
        client
            .write(&open, 0, &pattern(2, 60_000))
            .await
            .expect("with space that was given to the session as it is now");
        assert!(content(&client, &open).await == pattern(2, 60_000));
    });
}

/// Connections that are lost before the data of a large write arrives, between it and the commit, and after that: it is done
/// once, with all of its data.
#[test]
fn a_large_write_whose_connection_is_lost_is_done_once() {
    let options = ClusterOptions {
        seed: 90,
        pool_bytes: 256 << 20,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        let mut expected = pattern(7, 100_000);
        for at in [0, 0] {
            client.write(&open, at, &expected).await.expect("write");
        }
        let delay = Duration::from_millis(1);
        cluster.network().set_delay(delay..=delay);
        let batches = || client.client().counters().one_sided_batches;
        let (mut lost, mut written_again) = (0, 0);
        for step in 0..60u32 {
            let before = batches();
            let bytes = pattern(u64::from(step), 100_000);
            let cut = async {
                cluster.sleep(delay * (step % 20) / 10 + delay / 20).await;
                cluster.network().disconnect("client");
                cluster.network().reconnect("client");
            };
            let (at, ()) = tokio::join!(client.append(&open, &bytes), cut);
            assert_eq!(at, Ok((expected.len() as u64, bytes.len())), "{step}");
            expected.extend(&bytes);
            lost += 1;
            written_again += batches() - before - 1;
        }
        assert!(content(&client, &open).await == expected);
        assert!(0 < written_again && written_again < lost, "{written_again} of {lost}");
    });
}

/// A large write is several batches, and the connection is lost while some are under way and others wait.
#[test]
fn a_write_of_several_batches_is_whole_whatever_is_lost() {
    for seed in 91..95 {
        let options = ClusterOptions {
            seed,
            pool_bytes: 128 << 20,
            ..ClusterOptions::default()
        };
        with_options(options, async |cluster| {
            let client = external(cluster, "client");
            let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
            let delay = Duration::from_micros(100)..=Duration::from_micros(1900);
            cluster.network().set_delay(delay);
            let lose = || {
                cluster.network().disconnect("client");
                cluster.network().reconnect("client");
            };
            let mut random = Random(seed);
            for step in 0..200u8 {
                let bytes = vec![step; 3_100_000];
                lose(); // then each batch asks where it belongs
                let cut = async {
                    cluster.sleep(Duration::from_micros(random.next() % 10_000)).await;
                    lose();
                };
                let (written, ()) = tokio::join!(client.write(&open, 0, &bytes), cut);
                assert_eq!(written, Ok(bytes.len()), "{step}");
                assert!(content(&client, &open).await == bytes, "{step}");
            }
        });
    }
}

/// What was on its way when a client gave a write up does not take effect after a later write of the same session, by whichever
/// thread: what is held up in send queues arrives long after the partition has ended.
#[test]
fn a_write_that_was_given_up_does_not_come_after_a_later_one() {
    for (seed, len) in (0..12).flat_map(|seed| [(seed, 100), (seed, 3_000), (seed, 30_000)]) {
        let options = ClusterOptions {
            seed: 1_300 + seed,
            ..ClusterOptions::default()
        };
        with_options(options, async |cluster| {
            let (_, made) = home_on(cluster, 1).await;
            let client = external(cluster, "client");
            let other_thread = client.client().local();
            let open = client.open(made).await.expect("open");
            client.write(&open, 0, &pattern(1, len)).await.expect("write");
            other_thread.write(&open, 0, &pattern(2, len)).await.expect("write");
            cluster.network().partition("client", "node-1");
            let given_up = client.write(&open, 0, &pattern(3, len)).await;
            assert!(matches!(given_up, Err(FsError::Unreachable { .. })), "{given_up:?}");
            cluster.network().heal_all();
            let later = if seed % 2 == 0 { &client } else { &other_thread };
            later.write(&open, 0, &pattern(4, len)).await.expect("write");
            for _ in 0..40 {
                let mut bytes = vec![0; len];
                assert_eq!(client.read(&open, 0, &mut bytes).await, Ok(len));
                assert!(
                    bytes == pattern(4, len),
                    "seed {seed}, {len} bytes: the write that was given up has come"
                );
                cluster.sleep(Duration::from_millis(500)).await;
            }
        });
    }
}

/// Who has only asked for the map, and then does nothing, leaves nothing behind that would have to expire.
#[test]
fn first_contact_leaves_no_session() {
    with_cluster(96, async |cluster| {
        let session = cluster.next_session();
        let map = cluster.map();
        let addresses: Vec<_> = map.nodes[0]
            .addresses
            .iter()
            .map(|a| a.parse().expect("an address"))
            .collect();
        let me = cluster.client_identity();
        let fetched = fetch_map(&addresses, &me, session, "visitor", &cluster.timeouts()).await;
        assert_eq!(fetched.as_ref(), Ok(map));
        let known = cluster.node(0).colocated().session(session).map(drop);
        assert_eq!(known, Err(FsError::SessionExpired));
    });
}

/// What a client does to a file while its node is started anew.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Write(usize),
    Append(usize),
    Rename,
    Unlink,
    Create,
    SetAttr,
}

/// A node commits, and dies before its answer arrives; somebody else changes the same before the client can ask again. What was
/// done is not done again over that, and what was not is done.
#[test]
fn what_a_node_did_before_it_was_started_anew_is_done_once() {
    let asked = [
        Asked::Write(100),
        Asked::Write(3_000),
        Asked::Write(30_000),
        Asked::Append(100),
        Asked::Append(30_000),
        Asked::Rename,
        Asked::Unlink,
        Asked::Create,
        Asked::SetAttr,
    ];
    for (n, asked) in asked.into_iter().enumerate() {
        let options = ClusterOptions {
            nodes: 1,
            seed: 300 + n as u64,
            ..ClusterOptions::default()
        };
        with_options(options, async |cluster| {
            let (mut before, mut after) = (0, 0);
            for step in 0..10 {
                match done_while_the_node_dies(cluster, asked, step).await {
                    true => before += 1,
                    false => after += 1,
                }
            }
            assert!(
                before > 0 && after > 0,
                "{asked:?}: {before} done before, {after} after"
            );
        });
    }
}

/// Returns whether it was done before the node died.
async fn done_while_the_node_dies(cluster: &mut Cluster, asked: Asked, step: u32) -> bool {
    let delay = Duration::from_millis(1);
    let (me, you) = (format!("client-{step}"), format!("other-{step}"));
    let (client, other) = (external(cluster, &me), external(cluster, &you));
    let name = |what: &str| format!("{what}-{step}").into_bytes();
    let (f, g, h) = (name("f"), name("g"), name("h"));
    let (made, open) = client.create_open(ROOT, &f, file()).await.expect("create");
    let base = pattern(1, 40_000);
    client.write(&open, 0, &base).await.expect("write");
    let theirs = other.open(inode(&made)).await.expect("open");
    cluster.network().set_delay_between(&me, "node-0", delay..=delay);
    let mine = |len| pattern(2 + u64::from(step), len);
    let asking = {
        let (client, open, f, g, h) = (client.clone(), open.clone(), f.clone(), g.clone(), h.clone());
        let bytes = match asked {
            Asked::Write(len) | Asked::Append(len) => mine(len),
            _ => Vec::new(),
        };
        tokio::task::spawn_local(async move {
            match asked {
                Asked::Write(_) => client.write(&open, 10, &bytes).await.map(|_| None),
                Asked::Append(_) => client.append(&open, &bytes).await.map(|(at, _)| Some(at)),
                Asked::Rename => client
                    .rename(ROOT, &f, ROOT, &g, RenameMode::Replace)
                    .await
                    .map(|()| None),
                Asked::Unlink => client.unlink(ROOT, &f).await.map(|()| None),
                Asked::Create => client.create(ROOT, &h, file()).await.map(|_| None),
                Asked::SetAttr => {
                    let set = SetAttr {
                        mode: Some(0o611),
                        ..SetAttr::default()
                    };
                    client.set_attr(open.inode(), set).await.map(|_| None)
                }
            }
        })
    };
    cluster.sleep(delay * step / 5).await;
    cluster.network().disconnect(&me);
    cluster.crash(0).await;
    cluster.restart(0).await.expect("restart");

    // somebody else sees whether it was done, and does something else to the same
    let exists = async |name: &[u8]| other.lookup(ROOT, name).await.is_ok();
    let now = match asked {
        Asked::Write(_) | Asked::Append(_) => content(&other, &theirs).await,
        _ => Vec::new(),
    };
    let (done, expected) = match asked {
        Asked::Write(len) => {
            let mut with_mine = base.clone();
            with_mine[10..10 + len].copy_from_slice(&mine(len));
            let done = now == with_mine;
            assert!(done || now == base);
            let over = pattern(99, 50);
            other.write(&theirs, 20, &over).await.expect("write");
            // whoever came last lies on top
            let mut last = with_mine;
            if done {
                last[20..70].copy_from_slice(&over);
            }
            (done, last)
        }
        Asked::Append(len) => {
            let done = now.len() > base.len();
            other.append(&theirs, b"theirs").await.expect("append");
            let parts = match done {
                true => [&base[..], &mine(len), b"theirs"].concat(),
                false => [&base[..], b"theirs", &mine(len)].concat(),
            };
            (done, parts)
        }
        Asked::Rename => {
            let done = exists(&g).await;
            if done {
                other
                    .rename(ROOT, &g, ROOT, &f, RenameMode::Replace)
                    .await
                    .expect("back");
            }
            (done, base.clone())
        }
        Asked::Unlink => {
            let done = !exists(&f).await;
            if done {
                other.create(ROOT, &f, file()).await.expect("create");
            }
            (done, base.clone())
        }
        Asked::Create => {
            let done = exists(&h).await;
            if done {
                other.unlink(ROOT, &h).await.expect("unlink");
            }
            (done, base.clone())
        }
        Asked::SetAttr => {
            let attr = other.get_attr(inode(&made)).await.expect("attr");
            let done = attr.mode & 0o777 == 0o611;
            let set = SetAttr {
                mode: Some(0o622),
                ..SetAttr::default()
            };
            other.set_attr(inode(&made), set).await.expect("chmod");
            (done, base.clone())
        }
    };
    cluster.network().reconnect(&me);
    let answer = asking.await.expect("no panic");
    match asked {
        // what it made is gone: if the answer was lost, only that can be said
        Asked::Create if done => assert!(matches!(answer, Ok(_) | Err(FsError::Unreachable { .. })), "{answer:?}"),
        Asked::Append(_) => {
            let at = base.len() + if done { 0 } else { b"theirs".len() };
            assert_eq!(answer, Ok(Some(at as u64)), "step {step}, done {done}");
        }
        _ => assert_eq!(answer, Ok(None), "{asked:?}, step {step}, done {done}"),
    }
    match asked {
        Asked::Rename => {
            assert_eq!((exists(&f).await, exists(&g).await), (done, !done), "step {step}");
        }
        Asked::Unlink => assert_eq!(exists(&f).await, done, "step {step}: the new one stays"),
        Asked::Create => assert_eq!(exists(&h).await, !done, "step {step}"),
        Asked::SetAttr => {
            let mode = other.get_attr(inode(&made)).await.expect("attr").mode & 0o777;
            assert_eq!(mode, if done { 0o622 } else { 0o611 }, "step {step}");
        }
        Asked::Write(_) | Asked::Append(_) => {
            assert!(
                content(&other, &theirs).await == expected,
                "{asked:?}, step {step}, done {done}"
            );
            assert!(
                content(&client, &open).await == expected,
                "{asked:?}, step {step}, done {done}"
            );
        }
    }
    client.client().shutdown();
    other.client().shutdown();
    done
}
