//! Several clients on one file: random operations against a model, and appends at the same time.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile, Whence};
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::{FallocateMode, FsError, SetAttr};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const FILE_MAX: u64 = 600_000;

struct Model {
    bytes: Vec<u8>,
}

impl Model {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(bytes);
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.bytes.len() as u64) as usize;
        if (offset as usize) < end {
            self.bytes[offset as usize..end].fill(0);
        }
    }
}

async fn random_operations(clients: &[(Rc<LocalClient>, Arc<OpenFile>)], seed: u64, steps: u64) {
    let mut random = Random(seed);
    let mut model = Model { bytes: Vec::new() };
    for step in 0..steps {
        let (client, file) = &clients[random.below(clients.len() as u64) as usize];
        let offset = random.below(FILE_MAX);
        let len = match random.below(4) {
            0 => 1 + random.below(100),
            1 => 1 + random.below(5000),
            2 => 4096 * (1 + random.below(8)),
            _ => 1 + random.below(100_000),
        };
        let offset = if random.below(3) == 0 { offset & !4095 } else { offset };
        let what = random.below(100);
        let done = match what {
            0..40 => {
                let bytes = pattern(seed + step, len as usize);
                model.write(offset, &bytes);
                client
                    .write(file, offset, &bytes)
                    .await
                    .map(|n| assert_eq!(n, bytes.len()))
            }
            40..50 if model.bytes.len() < FILE_MAX as usize => {
                let bytes = pattern(seed + step, len as usize);
                let at = model.bytes.len() as u64;
                model.write(at, &bytes);
                client
                    .append(file, &bytes)
                    .await
                    .map(|went| assert_eq!(went, (at, bytes.len())))
            }
            50..58 => {
                model.bytes.resize(offset as usize, 0);
                let set = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                client
                    .set_attr(file.inode(), set)
                    .await
                    .map(|attr| assert_eq!(attr.size, offset))
            }
            58..66 => {
                model.zero(offset, len);
                client.fallocate(file, FallocateMode::PunchHole, offset, len).await
            }
            66..72 => {
                model.zero(offset, len);
                let mode = FallocateMode::ZeroRange { keep_size: true };
                client.fallocate(file, mode, offset, len).await
            }
            _ => {
                let mut bytes = vec![0xee; len as usize];
                client.read(file, offset, &mut bytes).await.map(|read| {
                    let start = (offset as usize).min(model.bytes.len());
                    let expect = &model.bytes[start..(start + len as usize).min(model.bytes.len())];
                    assert_eq!(read, expect.len(), "step {step}: read of {len} at {offset}");
                    assert!(bytes[..read] == *expect, "step {step}: read of {len} at {offset}");
                })
            }
        };
        done.unwrap_or_else(|error| panic!("step {step}, kind {what}: {error}"));
        if step % 64 == 63 {
            for (client, file) in clients {
                assert!(content(client, file).await == model.bytes, "after step {step}");
                check_seek(client, file, &model).await;
            }
        }
    }
}

/// What `seek` calls a hole reads as zeros.
async fn check_seek(client: &LocalClient, file: &OpenFile, model: &Model) {
    let mut at = 0;
    while let Ok(hole) = client.seek(file, at, Whence::Hole).await {
        let data = match client.seek(file, hole, Whence::Data).await {
            Ok(data) => data,
            Err(FsError::NoSuchOffset) => model.bytes.len() as u64,
            Err(error) => panic!("{error}"),
        };
        assert!(model.bytes[hole as usize..data as usize].iter().all(|b| *b == 0));
        if data <= at && data == model.bytes.len() as u64 || data == model.bytes.len() as u64 {
            break;
        }
        at = data;
    }
}

async fn open_all(cluster: &Cluster, seed: u64) -> Vec<(Rc<LocalClient>, Arc<OpenFile>)> {
    let clients = [
        external(cluster, "one"),
        external(cluster, "two"),
        internal(cluster, (seed % 3) as u16),
    ];
    let made = clients[0].create(ROOT, b"shared", file()).await.expect("create");
    let mut open = Vec::new();
    for client in clients {
        let file = client.open(inode(&made)).await.expect("open");
        open.push((client, file));
    }
    open
}

#[test]
fn random_operations_by_clients_in_turn_equal_a_byte_array() {
    for seed in 0..6 {
        with_cluster(seed, async |cluster| {
            let clients = open_all(cluster, seed).await;
            random_operations(&clients, seed, 700).await;
        });
    }
}

/// The log is rewritten under the readers again and again: one client overwrites the same small range.
#[test]
fn readers_survive_rewritten_logs() {
    with_cluster(20, async |cluster| {
        let clients = open_all(cluster, 20).await;
        let (writer, file) = &clients[0];
        writer.write(file, 0, &pattern(1, 200_000)).await.expect("write");
        let mut model = pattern(1, 200_000);
        for round in 0..3000u64 {
            let offset = round % 7 * 4096;
            let bytes = pattern(round, 700);
            writer.write(file, offset, &bytes).await.expect("write");
            model[offset as usize..offset as usize + 700].copy_from_slice(&bytes);
            if round % 500 == 0 {
                cluster.sleep(Duration::from_secs(1)).await; // housekeeping
            }
            if round % 100 == 7 {
                for (client, file) in &clients {
                    assert!(content(client, file).await == model, "round {round}");
                }
            }
        }
    });
}

/// Records appended by several clients at the same time are all there, whole, and in each client's order.
#[test]
fn records_appended_at_once_are_all_there_and_whole() {
    const RECORDS: u64 = 400;
    for seed in [31, 32] {
        with_cluster(seed, async |cluster| {
            let clients = open_all(cluster, seed).await;
            let record = |client: usize, n: u64| {
                // mostly small, now and then by way of delegated space
                let len = if n % 37 == 5 { 9000 } else { 40 + (n % 50) as usize * 8 };
                let mut bytes = pattern(n << 8 | client as u64, len);
                bytes[..8].copy_from_slice(&(len as u64).to_le_bytes());
                bytes[8..16].copy_from_slice(&(client as u64).to_le_bytes());
                bytes[16..24].copy_from_slice(&n.to_le_bytes());
                bytes
            };
            let tasks: Vec<_> = clients
                .iter()
                .cloned()
                .enumerate()
                .map(|(number, (client, file))| {
                    tokio::task::spawn_local(async move {
                        for n in 0..RECORDS {
                            let bytes = record(number, n);
                            let (at, _) = client.append(&file, &bytes).await.expect("append");
                            let mut back = vec![0; bytes.len()];
                            assert_eq!(client.read(&file, at, &mut back).await, Ok(bytes.len()));
                            assert!(back == bytes, "what was appended is where the answer says");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("appender");
            }
            let all = content(&clients[1].0, &clients[1].1).await;
            let (mut at, mut next) = (0, vec![0u64; clients.len()]);
            while at < all.len() {
                let word = |n: usize| u64::from_le_bytes(all[at + n * 8..at + n * 8 + 8].try_into().expect("8 bytes"));
                let (len, client, n) = (word(0) as usize, word(1) as usize, word(2));
                assert_eq!(n, next[client], "in order");
                assert!(all[at..at + len] == record(client, n), "whole");
                next[client] += 1;
                at += len;
            }
            assert_eq!(next, vec![RECORDS; clients.len()]);
        });
    }
}

/// Writes of several pages are atomic: a reader never sees parts of two.
#[test]
fn a_large_write_is_seen_whole_or_not_at_all() {
    with_cluster(40, async |cluster| {
        let clients = open_all(cluster, 40).await;
        let (writer, file) = clients[0].clone();
        writer.write(&file, 0, &vec![0; 40_000]).await.expect("write");
        let writing = tokio::task::spawn_local(async move {
            for round in 1..=200u8 {
                writer.write(&file, 0, &vec![round; 40_000]).await.expect("write");
            }
        });
        let writing = Rc::new(writing);
        // two faces of one client share its index: what one pulls the other must not miss
        let twin = (clients[1].0.client().local(), clients[1].1.clone());
        let readers = clients[1..].iter().cloned().chain([twin]);
        let tasks: Vec<_> = readers
            .map(|(client, file)| {
                let writing = writing.clone();
                tokio::task::spawn_local(async move {
                    let (mut last, mut reads) = (0, 0);
                    while !writing.is_finished() {
                        let mut bytes = vec![0xee; 40_000];
                        assert_eq!(client.read(&file, 0, &mut bytes).await, Ok(40_000));
                        assert!(bytes.iter().all(|b| *b == bytes[0]), "parts of two writes");
                        assert!(bytes[0] >= last, "time runs backwards");
                        last = bytes[0];
                        reads += 1;
                        // a read inside a node takes no time, and simulated time passes only while all wait
                        tokio::time::sleep(Duration::from_micros(50)).await;
                    }
                    reads
                })
            })
            .collect();
        let mut reads = 0;
        for task in tasks {
            reads += task.await.expect("reader");
        }
        assert!(reads > 20, "only {reads} reads: the test shows little");
    });
}

/// Whatever the faces of a client do with the index they share: a read sees all writes that had returned before it began.
#[test]
fn a_read_sees_what_had_returned_before_it_began() {
    const PART: usize = 5000;
    for seed in [41, 42, 43] {
        with_cluster(seed, async |cluster| {
            let clients = open_all(cluster, seed).await;
            let (writer, file) = clients[0].clone();
            writer.write(&file, 0, &[0; 4 * PART]).await.expect("write");
            let done = Rc::new(std::cell::Cell::new([0u8; 4]));
            let report = done.clone();
            let writing = Rc::new(tokio::task::spawn_local(async move {
                let mut random = Random(seed);
                for round in 1..=250u8 {
                    let part = random.below(4) as usize;
                    writer
                        .write(&file, (part * PART) as u64, &[round; PART])
                        .await
                        .expect("write");
                    let mut now = report.get();
                    now[part] = round;
                    report.set(now);
                }
            }));
            let twins = (0..3).map(|_| (clients[1].0.client().local(), clients[1].1.clone()));
            let readers: Vec<_> = clients[1..].iter().cloned().chain(twins).collect();
            let tasks: Vec<_> = readers
                .into_iter()
                .enumerate()
                .map(|(n, (client, file))| {
                    let (writing, done) = (writing.clone(), done.clone());
                    tokio::task::spawn_local(async move {
                        let mut random = Random(seed << 8 | n as u64);
                        while !writing.is_finished() {
                            let part = random.below(4) as usize;
                            let before = done.get()[part];
                            let mut bytes = vec![0xee; PART];
                            let read = client.read(&file, (part * PART) as u64, &mut bytes).await;
                            assert_eq!(read, Ok(PART));
                            assert!(bytes.iter().all(|b| *b == bytes[0]), "parts of two writes");
                            assert!(
                                bytes[0] >= before,
                                "reader {n} saw {} after {before} had returned",
                                bytes[0]
                            );
                            tokio::time::sleep(Duration::from_micros(random.below(300))).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("reader");
            }
        });
    }
}

/// A small pool fills up, says so, and is of use again when something is deleted.
#[test]
fn a_full_pool_is_of_use_again_after_deleting() {
    let segment_shift = Some(18);
    let options = ClusterOptions {
        seed: 50,
        nodes: 1,
        pool_bytes: 24 << 20,
        segment_shift,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (one, two) = (external(cluster, "one"), external(cluster, "two"));
        for round in 0..3 {
            let mut files = Vec::new();
            let mut kept = 0;
            'full: loop {
                let client = if files.len() % 2 == 0 { &one } else { &two };
                let name = format!("f{}", files.len());
                let (_, open) = match client.create_open(ROOT, name.as_bytes(), file()).await {
                    Ok(made) => made,
                    Err(FsError::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                };
                files.push(name);
                let mut offset = 0;
                while offset < 3 << 20 {
                    let bytes = pattern(offset, 200_000);
                    match client.write(&open, offset, &bytes).await {
                        Ok(written) => {
                            kept += written;
                            offset += written as u64;
                            assert!(written > 0);
                        }
                        Err(FsError::NoSpace) => break 'full,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            assert!(kept > 15 << 20, "round {round}: full with {kept} bytes");
            for name in &files {
                two.unlink(ROOT, name.as_bytes())
                    .await
                    .expect("unlink works on a full pool");
            }
            // what the other client holds of the dead is recalled
            cluster.sleep(cluster.timeouts().renew_every() * 2).await;
        }
    });
}

/// What fills a node's pool may be copies of what was removed, and what fills those of its regions' copies, too.
#[test]
fn full_nodes_are_of_use_again_as_soon_as_files_are_removed_where_there_are_copies() {
    let options = ClusterOptions {
        seed: 53,
        nodes: 3,
        replicas: 2,
        pool_bytes: 24 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let (one, idle) = (external(cluster, "one"), external(cluster, "idle"));
        // whoever is not heard of may be reading yet what is removed
        idle.resolve(ROOT.ino).await.expect("it has a session");
        let mut filled = Vec::new();
        for round in 0..4 {
            let (mut names, mut bytes) = (Vec::new(), 0);
            let full = loop {
                let name = format!("f{round}-{}", names.len());
                let (_, open) = match one.create_open(ROOT, name.as_bytes(), file()).await {
                    Ok(made) => made,
                    Err(error) => break error,
                };
                names.push(name);
                match one.write(&open, 0, &pattern(7, 400_000)).await {
                    Ok(written) => bytes += written,
                    Err(error) => break error,
                }
            };
            assert_eq!(full, FsError::NoSpace);
            filled.push(bytes >> 20);
            for name in &names {
                one.unlink(ROOT, name.as_bytes())
                    .await
                    .expect("unlink works on full pools");
            }
        }
        // in pools as small as these a client may have a third of what is free in hand
        assert!(
            filled.iter().all(|mib| mib * 3 >= filled[0] * 2),
            "MiB until it was full: {filled:?}"
        );
    });
}

/// Whatever region a file falls to, it can have what another region had before.
#[test]
fn one_file_after_another_fills_the_pool() {
    let segment_shift = Some(18);
    let options = ClusterOptions {
        seed: 51,
        nodes: 1,
        pool_bytes: 24 << 20,
        segment_shift,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        let (one, two) = (external(cluster, "one"), internal(cluster, 0));
        let (kept, open) = one.create_open(ROOT, b"kept", file()).await.expect("create");
        let sentinel = pattern(7, 300_000);
        assert_eq!(one.write(&open, 0, &sentinel).await, Ok(sentinel.len()));
        let mut regions = BTreeSet::from([kept.ino.region()]);
        for round in 0..10u64 {
            let client = if round % 3 == 2 { &two } else { &one };
            // a directory of its own, in whose region the file lies
            let name = format!("d{round}");
            let dir = inode(&client.create(ROOT, name.as_bytes(), directory()).await.expect("mkdir"));
            let (attr, open) = client.create_open(dir, b"file", file()).await.expect("create");
            regions.insert(attr.ino.region());
            let mut size = 0;
            loop {
                match client.write(&open, size, &pattern(size + round, 200_000)).await {
                    Ok(written) => size += written as u64,
                    Err(FsError::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(size > 15 << 20, "round {round}: full with {size} bytes");
            for at in (0..size - 200_000).step_by(200_000) {
                let mut bytes = vec![0; 200_000];
                two.read(&open, at, &mut bytes).await.expect("read");
                assert!(bytes == pattern(at + round, 200_000), "round {round}, offset {at}");
            }
            drop(open);
            client.unlink(dir, b"file").await.expect("unlink");
            client.rmdir(ROOT, name.as_bytes()).await.expect("rmdir");
            // what is held of the dead is recalled
            cluster.sleep(cluster.timeouts().renew_every() * 2).await;
        }
        assert!(regions.len() > 1, "files fall to more than one region: {regions:?}");
        let mut bytes = vec![0; sentinel.len()];
        assert_eq!(one.read(&open, 0, &mut bytes).await, Ok(sentinel.len()));
        assert!(bytes == sentinel);
    });
}
