//! Damaged file data: who verifies what it reads is told, and a scrub names it.

use crate::common::*;
use polvo_client::{LocalClient, Thresholds, Transfers};
use polvo_format::{NodeId, PAGE};
use polvo_node::ScrubPace;
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{DamagedData, EAGER_MAX, FsError, InodeRef, Reply, Request, ScrubPlace, Scrubbed};
use std::rc::Rc;
use std::time::Duration;

/// Flips a bit of what was stored of these bytes, wherever that is.
fn damage(cluster: &Cluster, nodes: u16, bytes: &[u8]) {
    let mut found = 0;
    for node in 0..nodes {
        let pmem = cluster.pmem(node);
        let mut all = vec![0; pmem.len() as usize];
        pmem.read(0, &mut all);
        for at in (0..all.len() - bytes.len()).filter(|at| all[*at..].starts_with(bytes)) {
            pmem.write(at as u64, &[all[at] ^ 0x10]);
            found += 1;
        }
    }
    assert_eq!(found, 1, "it is stored once");
}

async fn scrub(client: &LocalClient) -> Scrubbed {
    let mut all = Scrubbed::default();
    for region in client.regions() {
        let mut next = Some(ScrubPlace::default());
        while let Some(from) = next {
            let step = client.scrub(region, from).await.expect("scrub");
            all.bytes += step.bytes;
            all.unknown += step.unknown;
            all.damaged.extend(step.damaged);
            next = step.next;
        }
    }
    all
}

/// Clients of all kinds, those in the nodes last.
fn readers(cluster: &Cluster, verify: bool) -> Vec<Rc<LocalClient>> {
    let directed = |pooled, eager_read| {
        Transfers::Server(Thresholds {
            eager_write: EAGER_MAX,
            eager_read,
            pooled,
        })
    };
    let ways = [
        Transfers::Client,
        directed(usize::MAX, 32 << 10),
        directed(usize::MAX, 0),
        directed(0, 0),
    ];
    let remote = ways.into_iter().enumerate();
    let mut all: Vec<_> = remote
        .map(|(n, way)| external_by(cluster, &format!("reader-{verify}-{n}"), way))
        .collect();
    all.extend((0..3).map(|node| internal(cluster, node)));
    all.iter().for_each(|client| client.client().verify_reads(verify));
    all
}

async fn read(client: &LocalClient, file: InodeRef, at: usize, len: usize) -> Result<Vec<u8>, FsError> {
    let open = client.open(file).await?;
    let mut bytes = vec![0xee; len];
    let read = client.read(&open, at as u64, &mut bytes).await?;
    bytes.truncate(read);
    Ok(bytes)
}

#[test]
fn damaged_data_is_no_answer_to_who_verifies() {
    with_cluster(91, async |cluster| {
        let writer = external(cluster, "writer");
        // as it was committed, in pieces; appended, in place and not; small, in the log
        let mut files = Vec::new();
        for (n, pieces) in [&[300_000, 5000][..], &[2000, 2000, 4096, 3000], &[20_000, 100]]
            .into_iter()
            .enumerate()
        {
            let name = format!("f{n}");
            let (made, open) = writer.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            let mut expected = Vec::new();
            for (m, len) in pieces.iter().enumerate() {
                let bytes = pattern((n * 10 + m) as u64, *len);
                writer.append(&open, &bytes).await.expect("append");
                expected.extend(bytes);
            }
            writer
                .write(&open, 50, b"a small write in the log")
                .await
                .expect("write");
            expected[50..][..24].copy_from_slice(b"a small write in the log");
            files.push((inode(&made), expected));
        }
        let (verifying, trusting) = (readers(cluster, true), readers(cluster, false));
        for (file, expected) in &files {
            for client in &verifying {
                assert!(read(client, *file, 0, expected.len() + 10).await.as_ref() == Ok(expected));
                assert!(read(client, *file, 4000, 200).await.unwrap() == expected[4000..4200]);
            }
        }
        let clean = scrub(&writer).await;
        let all: usize = files.iter().map(|(_, bytes)| bytes.len() - 24).sum();
        assert_eq!((clean.bytes, clean.unknown, clean.damaged), (all as u64, 0, vec![]));
        for (file, expected) in &files {
            let at = 9000;
            damage(cluster, 3, &expected[at..at + 32]);
            let found = scrub(&writer).await.damaged;
            let is_there = |d: &DamagedData| d.inode == *file && (d.offset..d.offset + d.len).contains(&(at as u64));
            assert!(
                found.iter().any(is_there) && found.iter().all(|d| d.inode == *file),
                "{found:?}"
            );
            for (n, client) in verifying.iter().enumerate() {
                let refused = read(client, *file, at, 10).await;
                assert!(matches!(refused, Err(FsError::Io(_))), "reader {n}: {refused:?}");
                let refused = read(client, *file, 0, expected.len()).await;
                assert!(matches!(refused, Err(FsError::Io(_))), "reader {n}: {refused:?}");
                let far = at - 2 * PAGE;
                assert!(
                    read(client, *file, far, 10).await.unwrap() == expected[far..far + 10],
                    "reader {n}"
                );
            }
            for client in &trusting {
                assert!(read(client, *file, at, 10).await.unwrap() != expected[at..at + 10]);
            }
            // written anew, it is sound again
            let open = writer.open(*file).await.expect("open");
            writer.write(&open, 0, expected).await.expect("write");
            for client in &verifying {
                assert!(read(client, *file, 0, expected.len()).await.as_ref() == Ok(expected));
            }
            assert_eq!(scrub(&writer).await.damaged, vec![]);
        }
    });
}

/// Whoever reads while others append in place, overwrite and truncate is never told that sound data is damaged.
#[test]
fn sound_data_that_changes_is_never_called_damaged() {
    for seed in 0..8 {
        with_cluster(700 + seed, async |cluster| {
            let writer = external(cluster, "writer");
            let (made, open) = writer.create_open(ROOT, b"f", file()).await.expect("create");
            let file = inode(&made);
            let busy = readers(cluster, true).into_iter().map(|client| {
                tokio::task::spawn_local(async move {
                    for n in 0..40 {
                        match read(&client, file, n * 300 % 9000, 9000).await {
                            Ok(_) | Err(FsError::Busy) => {}
                            Err(error) => panic!("{error}"),
                        }
                        tokio::time::sleep(Duration::from_micros(50 + 13 * n as u64)).await;
                    }
                })
            });
            let busy: Vec<_> = busy.collect();
            for n in 0..120u64 {
                let len = 1 + (n * 7919 % 3000) as usize;
                match n % 7 {
                    0..5 => drop(writer.append(&open, &pattern(n, len)).await.expect("append")),
                    5 => drop(
                        writer
                            .write(&open, n * 31 % 8000, &pattern(n, 9000))
                            .await
                            .expect("write"),
                    ),
                    _ => {
                        let size = polvo_proto::SetAttr {
                            size: Some(n * 53 % 7000),
                            ..Default::default()
                        };
                        writer.set_attr(file, size).await.expect("truncate");
                    }
                }
            }
            for task in busy {
                task.await.expect("readers are content");
            }
            assert_eq!(scrub(&writer).await.damaged, vec![]);
        });
    }
}

#[test]
fn nodes_scrub_unasked_and_count_what_they_find() {
    let options = ClusterOptions {
        seed: 92,
        nodes: 1,
        scrub: Some(ScrubPace {
            every: Duration::from_secs(3600),
            rate: 1 << 20,
        }),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        let bytes = pattern(1, 3 << 20);
        client.write(&open, 0, &bytes).await.expect("write");
        damage(cluster, 1, &bytes[1_000_000..1_000_064]);
        // bytes verified, damaged places found
        let scrubbed = async || {
            let Ok(Reply::Json(status)) = client.ask(NodeId(0), Request::Status).await else {
                panic!("no status");
            };
            let (_, status) = status.split_once("\"scrubbed\"").expect("it tells of scrubs");
            let number = |key: &str| {
                let (_, rest) = status.split_once(key).expect("the key is there");
                let digits: String = rest
                    .chars()
                    .skip_while(|c| !c.is_ascii_digit())
                    .take_while(char::is_ascii_digit)
                    .collect();
                digits.parse::<u64>().expect("a number")
            };
            (number("bytes"), number("damaged"))
        };
        assert_eq!(scrubbed().await, (0, 0));
        cluster.sleep(Duration::from_secs(3601)).await;
        let (early, _) = scrubbed().await;
        assert!(early < 2 << 20, "{early} bytes in a second");
        cluster.sleep(Duration::from_secs(10)).await;
        assert_eq!(scrubbed().await, ((3 << 20) - 4096, 1));
        client.write(&open, 0, &bytes).await.expect("write");
    });
}

/// A region comes to the node around a client that reads of it elsewhere, and compares that with its checksums.
#[test]
fn a_verified_read_goes_on_where_the_region_comes_to_the_node_around_it() {
    const LEN: usize = 50_000;
    let options = ClusterOptions {
        seed: 91,
        replicas: 2,
        regions_per_node: 1,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let (_, made) = home_on(cluster, 1).await;
        let region = made.ino.region();
        let map = cluster.newest_map().expect("nodes run");
        let copies = &map.region(region).expect("it is there").replicas;
        let mirror = copies.iter().map(|copy| copy.node.0).find(|node| *node != 1);
        let inside = internal(cluster, mirror.expect("it has a mirror"));
        inside.client().verify_reads(true);
        let writer = external(cluster, "writer");
        let theirs = writer.open(made).await.expect("open");
        writer.write(&theirs, 0, &pattern(1, LEN)).await.expect("write");
        let open = inside.open(made).await.expect("open");
        cluster.mirrored().await;
        let delay = Duration::from_millis(1);
        cluster.network().set_delay(delay..=delay);
        let reading = tokio::task::spawn_local(async move {
            let mut bytes = vec![0; LEN];
            (inside.read(&open, 0, &mut bytes).await, bytes)
        });
        cluster.sleep(delay / 2).await;
        cluster.crash(1).await;
        let (read, bytes) = reading.await.expect("no panic");
        assert_eq!(read, Ok(LEN));
        assert!(bytes == pattern(1, LEN), "what was written");
        assert!(
            cluster.node(mirror.expect("it has a mirror")).serves(region),
            "the read has waited for the move"
        );
        cluster.restart(1).await.expect("restart");
    });
}
