//! Data that the node moves: every way, beside the data that a client moves itself.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile, Thresholds, Transfers};
use polvo_node::OneSided;
use polvo_node::sim::ClusterOptions;
use polvo_proto::{EAGER_MAX, FsError};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Eager as far as that goes, pooled, zero-copy, and as measured.
const WAYS: [Thresholds; 3] = [
    Thresholds {
        eager_write: EAGER_MAX,
        eager_read: 32 << 10,
        pooled: usize::MAX,
    },
    Thresholds {
        eager_write: 0,
        eager_read: 0,
        pooled: usize::MAX,
    },
    Thresholds {
        eager_write: 0,
        eager_read: 0,
        pooled: 0,
    },
];

async fn opened(client: &LocalClient, name: &str) -> Arc<OpenFile> {
    let (_, file) = client.create_open(ROOT, name.as_bytes(), file()).await.unwrap();
    file
}

async fn again(client: &LocalClient, name: &str) -> Arc<OpenFile> {
    let found = client.lookup(ROOT, name.as_bytes()).await.unwrap();
    client.open(inode(&found)).await.unwrap()
}

async fn read(client: &LocalClient, file: &OpenFile, at: u64, len: usize, registered: bool) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = if registered {
        let buffer = client.client().buffer(len + 16).unwrap();
        let read = client.read_into(file, at, &buffer, 8, len).await.unwrap();
        buffer.read(8, &mut bytes);
        read
    } else {
        client.read(file, at, &mut bytes).await.unwrap()
    };
    bytes.truncate(read);
    bytes
}

async fn write(client: &LocalClient, file: &OpenFile, at: u64, bytes: &[u8], registered: bool) {
    let written = if registered {
        let buffer = client.client().buffer(bytes.len() + 3).unwrap();
        buffer.write(3, bytes);
        client.write_from(file, at, &buffer, 3, bytes.len()).await
    } else {
        client.write(file, at, bytes).await
    };
    assert_eq!(written, Ok(bytes.len()));
}

#[test]
fn whatever_way_data_goes_all_see_the_same() {
    with_cluster(71, async |cluster| {
        let active = external(cluster, "active");
        for (number, way) in WAYS.into_iter().enumerate() {
            let directed = external_by(cluster, &format!("directed-{number}"), Transfers::Server(way));
            for registered in [false, true] {
                let name = format!("file-{number}-{registered}");
                let mine = opened(&directed, &name).await;
                let theirs = again(&active, &name).await;
                let mut expected = Vec::new();
                let sizes = [1, 100, 4096, 4097, 20_000, 100_000, 1 << 20, (1 << 20) + 1, 9 << 20];
                for (n, size) in sizes.into_iter().enumerate() {
                    let bytes = pattern(n as u64, size);
                    let at = n * 5000;
                    put(&mut expected, at, &bytes);
                    write(&directed, &mine, at as u64, &bytes, registered).await;
                    assert!(
                        read(&active, &theirs, at as u64, size, false).await == bytes,
                        "{way:?} {size}"
                    );
                    // and back, with a hole and bytes in the log between
                    let beyond = expected.len() + 10_000;
                    active.write(&theirs, 7, b"small").await.unwrap();
                    put(&mut expected, 7, b"small");
                    active.write(&theirs, beyond as u64, &pattern(9, 300)).await.unwrap();
                    put(&mut expected, beyond, &pattern(9, 300));
                    for (start, len) in [(0, 40), (3, 9000), (at, size + 20_000), (expected.len() - 1, 5)] {
                        let end = expected.len().min(start + len);
                        let found = read(&directed, &mine, start as u64, len, registered).await;
                        let differs = found.iter().zip(&expected[start..end]).position(|(a, b)| a != b);
                        assert_eq!((found.len(), differs), (end - start, None), "{way:?} {start}+{len}");
                    }
                    assert_eq!(read(&directed, &mine, expected.len() as u64, 10, registered).await, b"");
                }
                let first = directed.append(&mine, &pattern(4, 50_000)).await.unwrap();
                assert_eq!(first, (expected.len() as u64, 50_000));
                expected.extend_from_slice(&pattern(4, 50_000));
                assert!(content(&active, &theirs).await == expected);
                // room for the next
                directed.unlink(ROOT, name.as_bytes()).await.unwrap();
            }
            directed.end().await;
        }
    });
}

fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    file.resize(file.len().max(at + bytes.len()), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

async fn used(client: &LocalClient) -> u64 {
    client
        .usage()
        .await
        .unwrap()
        .0
        .iter()
        .map(|(_, usage)| usage.data_bytes)
        .sum()
}

#[test]
fn a_node_that_keeps_its_data_to_itself_moves_it() {
    let options = ClusterOptions {
        one_sided: OneSided::Nodes,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (client, colocated) = (external(cluster, "client"), internal(cluster, 0));
        let file = opened(&client, "file").await;
        let bytes = pattern(3, 3 << 20);
        assert_eq!(client.write(&file, 100, &bytes).await, Ok(bytes.len()));
        client.write(&file, 5, b"small").await.unwrap();
        let before = client.client().counters();
        let found = content(&client, &file).await;
        assert!(found[100..] == bytes && &found[5..10] == b"small");
        let after = client.client().counters();
        assert!(
            after.one_sided_bytes - before.one_sided_bytes < 1000,
            "attributes at the most"
        );
        let theirs = again(&colocated, "file").await;
        assert!(
            content(&colocated, &theirs).await == found,
            "whoever lives in a node needs no help"
        );
        assert_eq!(colocated.write(&theirs, 0, &bytes).await, Ok(bytes.len()));
        assert!(content(&client, &file).await[..bytes.len()] == bytes);
        for n in 0..50u32 {
            let name = format!("other-{n}");
            client
                .create(ROOT, name.as_bytes(), crate::common::file())
                .await
                .unwrap();
            assert!(colocated.lookup(ROOT, name.as_bytes()).await.is_ok());
        }
    });
}

#[test]
fn a_pool_without_room_is_filled_piece_by_piece_and_nothing_is_lost() {
    let options = ClusterOptions {
        nodes: 1,
        regions_per_node: 1,
        pool_bytes: 8 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let client = external_by(cluster, "client", Transfers::Server(WAYS[1]));
        let file = opened(&client, "file").await;
        let mut expected = Vec::new();
        loop {
            let bytes = pattern(expected.len() as u64, 300_000);
            match client.write(&file, expected.len() as u64, &bytes).await {
                Ok(written) => expected.extend_from_slice(&bytes[..written]),
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(expected.len() > 5 << 20, "{}", expected.len());
        assert!(content(&client, &file).await == expected);
        let before = used(&client).await;
        assert_eq!(
            client.write(&file, 0, &[1; 200_000]).await.err(),
            Some(FsError::NoSpace)
        );
        assert_eq!(used(&client).await, before);
    });
}

/// Two programs append to one file until no room is left: what an append says it has written is there, in one piece, and
/// nothing else is.
#[test]
fn an_append_without_room_has_no_effect_or_a_short_count() {
    const LEN: usize = 64 << 10;
    let kinds = ["colocated", "active", "directed"];
    let short = Cell::new(0);
    for (seed, kind) in (0..4).flat_map(|seed| kinds.map(|kind| (seed, kind))) {
        let options = ClusterOptions {
            seed: 80 + seed,
            nodes: 1,
            regions_per_node: 1,
            pool_bytes: 8 << 20,
            segment_shift: Some(18),
            ..ClusterOptions::default()
        };
        with_options(options, async |cluster| {
            let client = |name| match kind {
                "colocated" => internal(cluster, 0),
                "active" => external(cluster, name),
                _ => external_by(cluster, name, Transfers::Server(WAYS[1])),
            };
            let clients = [client("one"), client("two")];
            let first = opened(&clients[0], "log").await;
            let files = [first, again(&clients[1], "log").await];
            clients[0]
                .write(&files[0], 0, &pattern(1, 20_000 * seed as usize))
                .await
                .unwrap();
            let mut expected = 20_000 * seed;
            for step in 0u64.. {
                let bytes = [pattern(step, LEN), pattern(1000 + step, LEN)];
                let answers = tokio::join!(
                    clients[0].append(&files[0], &bytes[0]),
                    clients[1].append(&files[1], &bytes[1]),
                );
                let mut full = 0;
                for (answer, bytes) in [answers.0, answers.1].into_iter().zip(&bytes) {
                    match answer {
                        Ok((at, written)) => {
                            assert!(written > 0);
                            short.set(short.get() + usize::from(written < LEN));
                            expected += written as u64;
                            let found = read(&clients[0], &files[0], at, written, false).await;
                            assert!(
                                found == bytes[..written],
                                "seed {seed}, {kind}, step {step}: not in one piece"
                            );
                        }
                        Err(FsError::NoSpace) => full += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                let size = content(&clients[1], &files[1]).await.len() as u64;
                assert_eq!(
                    size, expected,
                    "seed {seed}, {kind}, step {step}: bytes that no answer tells of"
                );
                if full == 2 {
                    break;
                }
            }
        });
    }
    assert!(short.get() > 0, "the room left was always a multiple of the appends");
}

#[test]
fn reads_see_whole_writes_of_others_and_appends_of_many_stay_together() {
    with_cluster(72, async |cluster| {
        let way = |n: usize| Transfers::Server(WAYS[n % WAYS.len()]);
        let clients: Vec<Rc<LocalClient>> = (0..4)
            .map(|n| match n {
                0 => external(cluster, "active"),
                _ => external_by(cluster, &format!("directed-{n}"), way(n)),
            })
            .collect();
        const LEN: usize = 200_000;
        let shared = opened(&clients[0], "shared").await;
        clients[0].write(&shared, 0, &[0; LEN]).await.unwrap();
        opened(&clients[0], "log").await;
        let tasks: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, client)| {
                let client = client.clone();
                tokio::task::spawn_local(async move {
                    let (shared, log) = (again(&client, "shared").await, again(&client, "log").await);
                    for round in 0..20u8 {
                        let mark = n as u8 * 50 + round;
                        client.write(&shared, 0, &[mark; LEN]).await.unwrap();
                        client.append(&log, &[mark; 5000]).await.unwrap();
                        let found = read(&client, &shared, 0, LEN, round % 2 == 0).await;
                        assert!(found.iter().all(|byte| *byte == found[0]), "a mixture");
                        if round % 5 == 0 {
                            let size = polvo_proto::SetAttr {
                                size: Some(0),
                                ..Default::default()
                            };
                            client.set_attr(shared.inode(), size).await.unwrap();
                            client.write(&shared, 0, &[mark; LEN]).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let log = again(&clients[0], "log").await;
        let bytes = content(&clients[0], &log).await;
        assert_eq!(bytes.len(), 4 * 20 * 5000);
        assert!(
            bytes
                .chunks(5000)
                .all(|record| record.iter().all(|byte| *byte == record[0]))
        );
    });
}
