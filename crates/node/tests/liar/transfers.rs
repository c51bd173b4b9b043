//! Clients that lie about memory of theirs that the node is to read from or write to (server-directed transfers). As
//! everywhere here: an error, nothing changed, and the node serves others meanwhile.

use super::scene::*;
use crate::common::*;
use polvo_fabric::{Access, Buffer, Memory, MemoryRegions, RemoteKey, Verb};
use polvo_format::Tail;
use polvo_node::OneSided;
use polvo_node::sim::{ClusterOptions, run};
use polvo_proto::*;
use std::sync::Arc;
use std::time::Duration;

fn read(inode: InodeRef, len: u64, into: Option<Window>) -> Request {
    let offset = 0;
    Request::Read {
        inode,
        offset,
        len,
        into,
        verify: false,
    }
}

fn write(inode: InodeRef, offset: u64, len: u64, from: Window) -> Request {
    Request::WriteFrom {
        inode,
        offset,
        append: false,
        known: Tail::default(),
        from,
        len,
    }
}

fn memory(s: &Scene) -> &Arc<MemoryRegions> {
    s.liar.links.context().memory()
}

fn window(s: &Scene, len: usize, access: Access) -> Window {
    let memory = memory(s).register(Memory::Buffer(Buffer::new(len)), 0, len as u64, access);
    Window {
        key: memory.0,
        offset: 0,
    }
}

fn at(window: Window, offset: u64) -> Window {
    Window { offset, ..window }
}

/// A read of few bytes is answered without waiting for completions: who lies about where they are to go may hear that they
/// are there.
fn is_refused(answer: &Answer) -> bool {
    matches!(
        answer,
        Ok(Reply::Read { .. }) | Err(FsError::Invalid(_) | FsError::Unreachable { .. })
    )
}

#[test]
fn keys_that_are_none_or_for_something_else_and_ranges_outside() {
    refused(async |_, s| {
        let (reads, writes) = (window(s, 100_000, Access::READ), window(s, 100_000, Access::WRITE));
        let gone = window(s, 100_000, Access::ALL);
        memory(s).deregister(RemoteKey(gone.key));
        let invented = Window {
            key: 0x1234_5678_9abc_def0,
            offset: 0,
        };
        let of_the_node = Window {
            key: s.segments().await.read_key,
            offset: 0,
        };
        let none = Window { key: 0, offset: 0 };
        for from in [
            writes,
            gone,
            invented,
            of_the_node,
            none,
            at(reads, 99_999),
            at(reads, u64::MAX - 5),
        ] {
            for (offset, len) in [(0, 5000), (3, 100_000), (1 << 40, 5000)] {
                let answer = s.say(write(s.file, offset, len, from)).await;
                assert!(matches!(answer, Err(FsError::Invalid(_))), "{from:?}: {answer:?}");
            }
        }
        for into in [
            reads,
            gone,
            invented,
            of_the_node,
            none,
            at(writes, 99_999),
            at(writes, u64::MAX - 5),
        ] {
            let answer = s.say(read(s.file, 20_000, Some(into))).await;
            assert!(is_refused(&answer), "{into:?}: {answer:?}");
        }
        assert!(matches!(
            s.say(read(s.file, 20_000, Some(writes))).await,
            Ok(Reply::Read { len: 20_000, .. })
        ));
    });
}

#[test]
fn lengths_that_no_transfer_has() {
    refused(async |_, s| {
        let all = window(s, 16 << 20, Access::ALL);
        for len in [0, TRANSFER_MAX + 1, u64::MAX] {
            let answer = s.say(write(s.file, 0, len, all)).await;
            assert!(matches!(answer, Err(FsError::Invalid(_))), "{len}: {answer:?}");
        }
        for (len, into) in [
            (TRANSFER_MAX + 1, Some(all)),
            (u64::MAX, Some(all)),
            (EAGER_READ_MAX as u64 + 1, None),
            (u64::MAX, None),
        ] {
            let answer = s.say(read(s.file, len, into)).await;
            assert!(matches!(answer, Err(FsError::Invalid(_))), "{len}: {answer:?}");
        }
        for offset in [FILE_SIZE_MAX, u64::MAX] {
            let answer = s.say(write(s.file, offset, 5000, all)).await;
            assert_eq!(answer.err(), Some(FsError::FileTooLarge));
        }
    });
}

#[test]
fn files_that_are_none_or_not_its_own() {
    refused(async |_, s| {
        let all = window(s, 100_000, Access::ALL);
        let mut stale = s.file;
        stale.generation.0 += 1;
        for inode in [s.dir, s.link, s.pipe, stale] {
            let answer = s.say(write(inode, 0, 50_000, all)).await;
            assert!(
                matches!(answer, Err(FsError::Invalid(_) | FsError::IsDirectory | FsError::Stale)),
                "{answer:?}"
            );
        }
        for inode in [s.dir, s.pipe, stale] {
            let answer = s.say(read(inode, 5000, Some(all))).await;
            assert!(
                matches!(answer, Err(FsError::Invalid(_) | FsError::IsDirectory | FsError::Stale)),
                "{answer:?}"
            );
        }
        for request in [write(s.file, 0, 50_000, all), read(s.pipe, 5000, Some(all))] {
            let answer = s.say_as(request, |call| call.cred = user(77)).await;
            assert!(
                matches!(answer, Err(FsError::Access | FsError::Invalid(_))),
                "{answer:?}"
            );
        }
    });
}

#[test]
fn memory_that_is_taken_away_while_it_is_read() {
    refused(async |cluster, s| {
        for round in 0..20 {
            let from = window(s, 3 << 20, Access::ALL);
            let take_away = async {
                cluster.sleep(Duration::from_micros(round * 20)).await;
                memory(s).deregister(RemoteKey(from.key));
            };
            // it may not have a page of its own in the end: the length is more than the pool has room for
            let request = write(s.dir, 0, 3 << 20, from);
            let (answer, ()) = tokio::join!(s.say(request), take_away);
            assert!(answer.is_err(), "{answer:?}");
            let request = read(s.file, 20_000, Some(from));
            let answer = s.say(request).await;
            assert!(is_refused(&answer), "{answer:?}");
        }
    });
}

/// Which is no lie: whoever drops a read takes its memory back.
#[test]
fn a_read_that_is_given_up_costs_no_connection() {
    let options = ClusterOptions {
        seed: 64,
        nodes: 1,
        regions_per_node: 1,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let client = Caller::new(cluster, "client");
        let file = client.create(ROOT, "file").await.unwrap();
        client.write_active(file, 0, &pattern(60_000, 7)).await.unwrap();
        let link = client
            .links
            .to(cluster.map().primary(file.ino.region()).unwrap())
            .await
            .unwrap();
        let memory = client.links.context().memory();
        for after in 0..100 {
            let buffer = Buffer::new(60_000);
            let key = memory.register(Memory::Buffer(buffer.clone()), 0, 60_000, Access::WRITE);
            let window = Window { key: key.0, offset: 0 };
            let reading = client.ask(file.ino.region(), read(file, 60_000, Some(window)));
            let done = tokio::time::timeout(Duration::from_micros(50 * after), reading)
                .await
                .is_ok();
            memory.deregister(key);
            let bytes = || {
                let mut bytes = vec![0; 60_000];
                buffer.read(0, &mut bytes);
                bytes
            };
            let then = bytes();
            cluster.sleep(Duration::from_millis(20)).await;
            assert!(bytes() == then, "{after}");
            assert!(!link.is_closed(), "{after}: {:?}", link.rpc.queue_pair().lost());
            if done {
                return;
            }
        }
        panic!("it takes no longer than that");
    });
}

#[test]
fn a_client_that_answers_nothing_any_more_stalls_nobody_and_its_pages_come_back() {
    let options = ClusterOptions {
        seed: 63,
        nodes: 1,
        regions_per_node: 1,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let (honest, liar) = (Caller::new(cluster, "honest"), Caller::new(cluster, "liar"));
        let file = honest.create(ROOT, "file").await.unwrap();
        let region = file.ino.region();
        honest.write_active(file, 0, &pattern(100_000, 7)).await.unwrap();
        let used = async || match honest.ask_node(0, Request::Usage).await {
            Ok(Reply::Usage(usage)) => usage.data_bytes,
            other => panic!("{other:?}"),
        };
        let before = used().await;
        let buffer = Memory::Buffer(Buffer::new(1 << 20));
        let key = liar.links.context().memory().register(buffer, 0, 1 << 20, Access::ALL);
        let window = Window { key: key.0, offset: 0 };
        for request in [write(file, 0, 1 << 20, window), read(file, 100_000, Some(window))] {
            liar.ask_node(0, Request::Map).await.unwrap(); // connected
            // what the node asks of it gets no answer any more
            let cut = async {
                cluster.sleep(Duration::from_micros(100)).await;
                cluster.network().partition_one_way("liar", "node-0");
                let begun = tokio::time::Instant::now();
                for _ in 0..50 {
                    honest.attr(file).await.unwrap();
                }
                assert!(begun.elapsed() < Duration::from_secs(1), "others are served");
            };
            let (answer, ()) = tokio::join!(liar.ask(region, request), cut);
            assert!(answer.is_err(), "{answer:?}");
            cluster.network().heal_all();
            cluster.sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(honest.read(file).await.unwrap(), pattern(100_000, 7));
        assert_eq!(used().await, before);
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

#[test]
fn one_sided_access_to_data_of_a_node_that_gives_none() {
    let options = ClusterOptions {
        seed: 62,
        one_sided: OneSided::Nodes,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let liar = Caller::new(cluster, "liar");
        let file = liar.create(ROOT, "file").await.unwrap();
        let region = file.ino.region();
        let from = liar
            .links
            .context()
            .memory()
            .register(Memory::Buffer(Buffer::new(8192)), 0, 8192, Access::READ);
        let from = Window { key: from.0, offset: 0 };
        liar.ask(region, write(file, 0, 8192, from)).await.unwrap();
        assert_eq!(liar.delegate(region, 8).await.err(), Some(FsError::NotPermitted));
        let map = (*liar.links.segments(region, true).await.unwrap()).clone();
        assert_eq!((map.read_key, map.node_key), (0, 0));
        for place in &map.segments {
            let is_data = place.class == SegmentClass::Data;
            assert_eq!((place.write_key, place.read_key == 0), (0, is_data), "{place:?}");
        }
        let data = map
            .segments
            .iter()
            .find(|place| place.class == SegmentClass::Data)
            .unwrap();
        let known = map
            .segments
            .iter()
            .map(|place| place.read_key)
            .find(|key| *key != 0)
            .unwrap();
        let link = liar.links.to(cluster.map().primary(region).unwrap()).await.unwrap();
        for (key, offset) in [
            (known, 1 << 30),
            (known, data.pool_offset),
            (known ^ 1 << 30, data.pool_offset),
        ] {
            let from = polvo_fabric::Remote {
                key: RemoteKey(key),
                offset,
            };
            let verb = Verb::Read {
                from,
                into: &mut [0; 8],
            };
            assert!(link.rpc.queue_pair().execute(&mut [verb]).await.is_err());
        }
        let run = WriteRun {
            offset: 0,
            len: 4096,
            gpa: polvo_format::Gpa::new(
                region,
                polvo_format::RegionOffset(u64::from(data.index) << map.segment_shift),
            ),
        };
        let commit = Request::Commit {
            inode: file,
            runs: vec![run],
            append: false,
            crcs: Vec::new(),
            known: Tail::default(),
            want_pages: 8,
        };
        assert_eq!(liar.ask(region, commit).await.err(), Some(FsError::NotPermitted));
    });
}
