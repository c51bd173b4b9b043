//! Clients that lie: what no client of ours would send, over raw requests and raw one-sided operations. Each lie gets an
//! error (or is plainly ignored, where an honest client that has missed something says the same), and changes nothing:
//! the whole tree, the space of every node, what sessions hold and the check are compared, and the tree once more after
//! a restart of all nodes.
//!
//! What is not refused, because nothing could tell it from honest work: whoever has the cluster's secret may write to any
//! data segment, and may call itself a node (see *Trust* in docs/operations.md).

mod common;
mod scene;

use common::*;
use polvo_fabric::{Address, FabricError, MemoryRegions, Remote, RemoteKey, Verb, connect};
use polvo_format::{Epoch, FileKind, Generation, Gpa, Ino, NodeId, RegionId, RegionOffset, SessionId, Tail, TxnId};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use polvo_rpc::RpcClient;
use scene::*;
use std::time::Duration;

// ---- keys

#[test]
fn a_key_that_was_never_given_to_it() {
    refused(async |cluster, s| {
        let map = s.segments().await;
        let given: Vec<u64> = std::iter::once(map.read_key)
            .chain(map.segments.iter().map(|place| place.write_key))
            .filter(|key| *key != 0)
            .collect();
        // the neighbours of those it has: the key of nodes to the whole pool was registered next to that for reading
        let near = given[..2].iter().flat_map(|key| {
            let tag = key >> 20;
            (tag - 8..=tag + 8).flat_map(|tag| (0..6).map(move |slot| tag << 20 | slot))
        });
        let elsewhere = {
            let region = cluster
                .map()
                .regions
                .iter()
                .find(|r| r.primary() == Some(NodeId(0)))
                .unwrap()
                .id;
            s.liar.links.segments(region, true).await.unwrap().read_key
        };
        let guesses: Vec<u64> = near
            .chain([0, 1, u64::MAX, elsewhere])
            .filter(|key| !given.contains(key))
            .collect();
        assert!(guesses.len() > 100);
        for key in guesses {
            let to = Remote {
                key: RemoteKey(key),
                offset: 0,
            };
            let error = s.touch(Verb::Write { to, bytes: &[0; 8] }).await;
            assert_eq!(error, FabricError::BadKey { key });
            let (mut into, mut found) = ([0; 8], 0);
            let error = s
                .touch(Verb::Read {
                    from: to,
                    into: &mut into,
                })
                .await;
            assert_eq!(error, FabricError::BadKey { key });
            let swap = Verb::CompareSwap {
                at: to,
                expect: 0,
                new: 1,
                found: &mut found,
            };
            assert_eq!(s.touch(swap).await, FabricError::BadKey { key });
        }
    });
}

#[test]
fn a_write_with_a_key_for_reading() {
    refused(async |_, s| {
        let map = s.segments().await;
        let inode_at = map.locate(s.file.ino.offset().unwrap()).unwrap();
        for offset in [0, inode_at.0.pool_offset + inode_at.1, s.file.ino.slot()] {
            let to = Remote {
                key: RemoteKey(map.read_key),
                offset,
            };
            let error = s.touch(Verb::Write { to, bytes: &[0xee; 8] }).await;
            assert_eq!(error, FabricError::Denied { key: map.read_key });
        }
    });
}

#[test]
fn an_atomic_by_a_client_and_a_read_with_a_key_for_writing() {
    refused(async |_, s| {
        let map = s.segments().await;
        let write_key = map
            .segments
            .iter()
            .find(|place| place.write_key != 0)
            .unwrap()
            .write_key;
        for key in [map.read_key, write_key] {
            let at = Remote {
                key: RemoteKey(key),
                offset: 0,
            };
            let mut found = 0;
            let swap = Verb::CompareSwap {
                at,
                expect: 0,
                new: 1,
                found: &mut found,
            };
            assert_eq!(s.touch(swap).await, FabricError::Denied { key });
            let add = Verb::FetchAdd {
                at,
                add: 1,
                found: &mut found,
            };
            assert_eq!(s.touch(add).await, FabricError::Denied { key });
        }
        let (from, mut into) = (
            Remote {
                key: RemoteKey(write_key),
                offset: 0,
            },
            [0; 8],
        );
        let error = s.touch(Verb::Read { from, into: &mut into }).await;
        assert_eq!(error, FabricError::Denied { key: write_key });
    });
}

#[test]
fn a_write_to_metadata_by_a_client() {
    refused(async |_, s| {
        let map = s.segments().await;
        assert_eq!(map.node_key, 0, "that is for nodes");
        for place in map.segments.iter().filter(|place| place.class != SegmentClass::Data) {
            assert_eq!(place.write_key, 0, "{:?}", place.class);
        }
        let at = Gpa::new(s.region, s.file.ino.offset().unwrap());
        let link = s.liar.links.clone();
        let mut write = [polvo_cluster::RegionVerb::WriteAny { at, bytes: &[0; 8] }];
        assert_eq!(link.one_sided(s.region, &mut write).await, Err(FsError::NotPermitted));
        let mut write = [polvo_cluster::RegionVerb::WriteData { at, bytes: &[0; 8] }];
        assert!(link.one_sided(s.region, &mut write).await.is_err());
    });
}

#[test]
fn offsets_outside_the_memory_of_a_key() {
    refused(async |cluster, s| {
        let map = s.segments().await;
        let pool = cluster.pmem(s.node).len();
        let write_key = map
            .segments
            .iter()
            .find(|place| place.write_key != 0)
            .unwrap()
            .write_key;
        let segment = 1u64 << SHIFT;
        for offset in [segment, segment - 4, segment + 8, pool, u64::MAX, u64::MAX - 7] {
            let to = Remote {
                key: RemoteKey(write_key),
                offset,
            };
            let error = s.touch(Verb::Write { to, bytes: &[0xee; 8] }).await;
            assert!(matches!(error, FabricError::OutOfRange { .. }), "{error}");
        }
        for offset in [pool, pool - 4, u64::MAX, u64::MAX - 3] {
            let (from, mut into) = (
                Remote {
                    key: RemoteKey(map.read_key),
                    offset,
                },
                [0; 8],
            );
            let error = s.touch(Verb::Read { from, into: &mut into }).await;
            assert!(matches!(error, FabricError::OutOfRange { .. }), "{error}");
        }
    });
}

// ---- sessions and epochs

/// A connection of the liar's on which nothing was said yet.
async fn stranger(cluster: &Cluster, node: u16) -> RpcClient {
    let memory = MemoryRegions::new();
    cluster.network().place(&memory, "stranger");
    let address = Address::Sim(format!("node-{node}"));
    let limit = cluster.timeouts().connect;
    let pair = connect(&address, &cluster.client_identity(), &memory, limit)
        .await
        .unwrap();
    RpcClient::establish(pair, &memory, limit).await.unwrap()
}

async fn ask_over(rpc: &RpcClient, session: SessionId, request: Request) -> Answer {
    let call = Call {
        session,
        request_id: 1,
        epoch: Epoch(1),
        cred: Cred::Kernel,
        request,
    };
    let reply = rpc.call(&call.encode(), Duration::from_secs(5)).await.unwrap();
    decode_answer(&reply).unwrap()
}

fn attach() -> Request {
    Request::Attach {
        version: PROTOCOL_VERSION,
        name: "stranger".into(),
        home: None,
    }
}

fn some_changes(s: &Scene) -> Vec<Request> {
    vec![
        Request::Write {
            inode: s.file,
            offset: 0,
            append: false,
            known: Tail::default(),
            bytes: b"lie".to_vec(),
        },
        Request::Unlink {
            dir: s.dir,
            name: b"file".to_vec(),
        },
        s.commit(s.file, vec![run_of(s.theirs.gpa, 0, 4096)]),
        Request::Delegate {
            region: s.region,
            pages: 4,
        },
        Request::ReturnSpace { runs: vec![s.theirs] },
        Request::Release { inodes: vec![s.file] },
        Request::Detach,
    ]
}

#[test]
fn requests_before_attach() {
    refused(async |cluster, s| {
        let rpc = stranger(cluster, s.node).await;
        let honest = s.honest.links.context().session();
        for request in some_changes(s) {
            for session in [honest, SessionId(77), SessionId(0)] {
                let answer = ask_over(&rpc, session, request.clone()).await;
                assert_eq!(answer, Err(FsError::SessionExpired), "{request:?}");
            }
        }
    });
}

#[test]
fn a_session_of_another_client_and_one_that_nobody_attached() {
    refused(async |_, s| {
        let honest = s.honest.links.context().session();
        for request in some_changes(s) {
            for session in [honest, SessionId(77), SessionId(0), SessionId(u64::MAX)] {
                let answer = s.say_as(request.clone(), |call| call.session = session).await;
                assert_eq!(answer, Err(FsError::NotPermitted), "{request:?}");
            }
        }
    });
}

#[test]
fn a_session_that_has_ended() {
    refused(async |cluster, s| {
        let rpc = stranger(cluster, s.node).await;
        let session = SessionId(0xdead);
        ask_over(&rpc, session, attach()).await.unwrap();
        ask_over(&rpc, session, Request::Detach).await.unwrap();
        for request in some_changes(s) {
            let answer = ask_over(&rpc, session, request.clone()).await;
            assert_eq!(answer, Err(FsError::SessionExpired), "{request:?}");
        }
    });
}

#[test]
fn a_second_session_over_the_same_connection() {
    refused(async |cluster, s| {
        let rpc = stranger(cluster, s.node).await;
        ask_over(&rpc, SessionId(1), attach()).await.unwrap();
        for n in 2..10 {
            assert_eq!(ask_over(&rpc, SessionId(n), attach()).await, Err(FsError::NotPermitted));
        }
        ask_over(&rpc, SessionId(1), attach()).await.unwrap();
        ask_over(&rpc, SessionId(1), Request::Detach).await.unwrap();
        ask_over(&rpc, SessionId(2), attach()).await.unwrap();
        ask_over(&rpc, SessionId(2), Request::Detach).await.unwrap();
    });
}

#[test]
fn the_session_of_a_node_and_session_0_and_another_version() {
    refused(async |cluster, s| {
        let of_node = cluster.node(0).new_links();
        of_node
            .call_node(NodeId(s.node), Cred::Kernel, Request::Map)
            .await
            .unwrap();
        let rpc = stranger(cluster, s.node).await;
        let session = of_node.context().session();
        assert_eq!(ask_over(&rpc, session, attach()).await, Err(FsError::NotPermitted));
        assert!(is_invalid(&ask_over(&rpc, SessionId(0), attach()).await));
        for version in [0, PROTOCOL_VERSION + 1, u32::MAX] {
            let (name, home) = (String::new(), None);
            let answer = ask_over(&rpc, SessionId(5), Request::Attach { version, name, home }).await;
            assert!(matches!(answer, Err(FsError::NotSupported(_))), "{answer:?}");
        }
    });
}

/// Who knows a session's id can speak for it. So nobody learns it: not from the status, not from a lock in the way.
#[test]
fn the_session_of_another_is_not_to_be_found_out() {
    refused(async |_, s| {
        let honest = s.honest.links.context().session();
        let Ok(Reply::Json(status)) = s.say(Request::Status).await else {
            panic!("no status")
        };
        assert!(status.contains("honest") && !status.contains(&format!("{:016x}", honest.0)));
        let lock = lock_of(9, LockMode::Shared, LockRange::ALL);
        let seen = s.say(Request::TestLock { inode: s.file, lock }).await;
        assert!(matches!(seen, Ok(Reply::LockSeen(Some(_)))), "{seen:?}");
        let bytes = encode_answer(&seen);
        let id = postcard_of(honest);
        assert!(
            !bytes.windows(id.len()).any(|window| window == id),
            "its holder is told"
        );
    });
}

/// A number as messages carry it: seven bits a byte.
fn postcard_of(session: SessionId) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = session.0;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

#[test]
fn a_stale_epoch() {
    refused(async |_, s| {
        let of_region = some_changes(s).into_iter().filter(|request| {
            !matches!(
                request,
                Request::Detach | Request::ReturnSpace { .. } | Request::Release { .. }
            )
        });
        let region = s.region;
        for request in of_region.chain([Request::Segments { region, from: 0 }]) {
            let answer = s.say_as(request.clone(), |call| call.epoch = Epoch(0)).await;
            assert_eq!(answer, Err(FsError::WrongEpoch), "{request:?}");
        }
    });
}

#[test]
fn a_request_id_used_again_for_something_else() {
    refused(async |_, s| {
        let taken = Request::Create {
            dir: s.dir,
            name: b"file".to_vec(),
            file: new_file(FileKind::File, 0o600),
            open: false,
        };
        let answer = s.say_as(taken, |call| call.request_id = 1 << 60).await;
        assert_eq!(answer, Err(FsError::Exists));
        for request in some_changes(s).into_iter().filter(Request::is_mutation) {
            let answer = s.say_as(request.clone(), |call| call.request_id = 1 << 60).await;
            assert_eq!(answer, Err(FsError::Exists), "{request:?} gets the answer of the first");
        }
    });
}

#[test]
fn garbage_in_place_of_a_request() {
    refused(async |_, s| {
        let good = s.liar.links.make_call(Cred::Kernel, some_changes(s).remove(0)).encode();
        let longer = [&good[..], &[0]].concat();
        let mut cases = vec![vec![], vec![0xff; 40], vec![0; 300], longer, pattern(500, 3)];
        cases.extend((1..good.len()).map(|len| good[..len].to_vec()));
        for bytes in cases {
            let link = s.liar.links.to(NodeId(s.node)).await.unwrap();
            let answer = link.rpc.call(&bytes, Duration::from_secs(5)).await.unwrap();
            let answer = decode_answer(&answer).unwrap();
            assert!(is_invalid(&answer), "{bytes:?}: {answer:?}");
        }
    });
}

// ---- space

#[test]
fn a_commit_of_pages_that_were_never_given() {
    refused(async |_, s| {
        let Ok(Reply::FileMap(map)) = s.say(Request::Extents { inode: s.file, from: 0 }).await else {
            panic!("no map")
        };
        let of_file = map.extents.iter().find(|extent| extent.len >= 4096).unwrap().gpa;
        s.refuses_commit("pages of the file", vec![run_of(of_file, 0, 4096)])
            .await;
        let free = s.ours.gpa.checked_add(u64::from(s.ours.pages) * 4096).unwrap();
        s.refuses_commit("free pages", vec![run_of(free, 0, 4096)]).await;
    });
}

#[test]
fn a_commit_of_pages_given_to_another_session() {
    refused(async |_, s| {
        s.refuses_commit("theirs", vec![run_of(s.theirs.gpa, 0, 4096)]).await;
        let both = vec![run_of(s.ours.gpa, 0, 4096), run_of(s.theirs.gpa, 4096, 4096)];
        s.refuses_commit("ours, then theirs", both).await;
        let last = s.theirs.gpa.checked_add(7 * 4096 + 100).unwrap();
        s.refuses_commit("from theirs into ours", vec![run_of(last, 0, 8000)])
            .await;
    });
}

#[test]
fn a_commit_of_the_same_pages_twice() {
    refused(async |_, s| {
        let twice = vec![run_of(s.ours.gpa, 0, 4096), run_of(s.ours.gpa, 4096, 4096)];
        s.refuses_commit("the same page", twice).await;
        let second = s.ours.gpa.checked_add(2000).unwrap();
        let halves = vec![run_of(s.ours.gpa, 0, 2000), run_of(second, 2000, 2000)];
        s.refuses_commit("two parts of one page", halves).await;
        let second = s.ours.gpa.checked_add(4096).unwrap();
        let overlap = vec![run_of(s.ours.gpa, 0, 3 * 4096), run_of(second, 3 * 4096, 4096)];
        s.refuses_commit("a page within a run", overlap).await;
    });
}

#[test]
fn a_commit_of_more_bytes_than_were_given() {
    refused(async |_, s| {
        let given = u64::from(s.ours.pages) * 4096;
        for len in [
            given + 1,
            given + 4096,
            1 << SHIFT,
            (1 << SHIFT) + 1,
            1 << 47,
            i64::MAX as u64,
        ] {
            s.refuses_commit("too long", vec![run_of(s.ours.gpa, 0, len)]).await;
        }
        let inside = s.ours.gpa.checked_add(1).unwrap();
        s.refuses_commit("misaligned, over the end", vec![run_of(inside, 0, given)])
            .await;
        for len in [u64::MAX, u64::MAX - 4095, 1 << 63] {
            s.refuses_commit("longer than any file", vec![run_of(s.ours.gpa, 0, len)])
                .await;
        }
    });
}

#[test]
fn a_commit_of_runs_that_overlap_in_the_file_are_out_of_order_or_empty() {
    refused(async |_, s| {
        let page = |n: u64| s.ours.gpa.checked_add(n * 4096).unwrap();
        let overlap = vec![run_of(page(0), 0, 4096), run_of(page(1), 4095, 4096)];
        s.refuses_commit("overlapping", overlap).await;
        let order = vec![run_of(page(0), 4096, 4096), run_of(page(1), 0, 4096)];
        s.refuses_commit("out of order", order).await;
        s.refuses_commit("empty", vec![run_of(page(0), 0, 0)]).await;
        s.refuses_commit(
            "an empty one behind",
            vec![run_of(page(0), 0, 10), run_of(page(1), 10, 0)],
        )
        .await;
        s.refuses_commit("none", vec![]).await;
        s.refuses_commit("very many", vec![run_of(page(0), 0, 1); RUNS_MAX + 1])
            .await;
    });
}

#[test]
fn a_commit_of_addresses_outside_the_data_of_the_region() {
    refused(async |cluster, s| {
        let map = s.segments().await;
        let at = |region, offset| Gpa::new(region, RegionOffset(offset));
        for place in map.segments.iter().filter(|place| place.class != SegmentClass::Data) {
            let start = u64::from(place.index) << SHIFT;
            s.refuses_commit("metadata", vec![run_of(at(s.region, start), 0, 4096)])
                .await;
        }
        let beyond = u64::from(map.segments.last().unwrap().index + 1) << SHIFT;
        for offset in [beyond, beyond - 1, (1 << 48) - 4096, (1 << 48) - 1] {
            s.refuses_commit("no segment", vec![run_of(at(s.region, offset), 0, 4096)])
                .await;
        }
        let other = cluster.map().regions.iter().map(|info| info.id);
        for region in other.filter(|region| *region != s.region).chain([RegionId(60_000)]) {
            let run = run_of(at(region, s.ours.gpa.offset().0), 0, 4096);
            s.refuses_commit("another region", vec![run]).await;
        }
    });
}

#[test]
fn a_commit_to_offsets_that_no_file_has() {
    refused(async |_, s| {
        let last = i64::MAX as u64;
        for offset in [last, last - 4095, u64::MAX, u64::MAX - 4095, 1 << 63] {
            let request = s.commit(s.file, vec![run_of(s.ours.gpa, offset, 4096)]);
            assert_eq!(s.say(request).await, Err(FsError::FileTooLarge), "{offset}");
        }
    });
}

/// An honest client that has missed its session's end says the same; so it is ignored.
#[test]
fn the_return_of_space_and_the_release_of_inodes_of_others() {
    refused(async |_, s| {
        let Ok(Reply::FileMap(map)) = s.say(Request::Extents { inode: s.file, from: 0 }).await else {
            panic!("no map")
        };
        let run = |gpa, pages| PageRun { gpa, pages };
        let beyond = s.ours.gpa.checked_add(u64::from(s.ours.pages) * 4096).unwrap();
        let runs = vec![
            s.theirs,
            run(map.extents.last().unwrap().gpa, 1),
            run(s.ours.gpa, 0),
            run(s.ours.gpa, s.ours.pages + 1),
            run(s.ours.gpa, u32::MAX),
            run(s.ours.gpa.checked_add(1).unwrap(), 1),
            run(beyond, 1),
            run(Gpa(u64::MAX), u32::MAX),
            run(Gpa(0), 1),
            run(Gpa::new(RegionId(60_000), RegionOffset(0)), 1),
        ];
        assert_eq!(s.say(Request::ReturnSpace { runs }).await, Ok(Reply::Done));
        let inodes = vec![
            s.file,
            s.dir,
            ROOT,
            InodeRef {
                ino: Ino(u64::MAX),
                generation: Generation(0),
            },
        ];
        assert_eq!(s.say(Request::Release { inodes }).await, Ok(Reply::Done));
        let (inode, range) = (s.file, LockRange::ALL);
        assert_eq!(s.say(Request::Unlock { inode, owner: 1, range }).await, Ok(Reply::Done));
        assert_eq!(s.say(Request::CancelLock { inode, ticket: 0 }).await, Ok(Reply::Done));
    });
}

// ---- inodes

/// Everything that can be asked of an inode, with the inode in each of its places.
fn about(s: &Scene, inode: InodeRef) -> Vec<Request> {
    let name = || b"lie".to_vec();
    let mut requests = about_directory(s, inode);
    requests.extend(about_data(s, inode));
    requests.extend([
        Request::GetAttr {
            ino: inode.ino,
            generation: Some(inode.generation),
        },
        Request::SetAttr {
            inode,
            set: SetAttr {
                mode: Some(0),
                ..SetAttr::default()
            },
        },
        Request::ReadLink { inode },
        Request::Open { inode },
        Request::Extents { inode, from: 0 },
        Request::GetXattr {
            inode,
            name: b"user.a".to_vec(),
        },
        Request::ListXattr { inode },
        Request::SetXattr {
            inode,
            name: b"user.lie".to_vec(),
            value: vec![1],
            mode: XattrMode::Any,
        },
        Request::RemoveXattr {
            inode,
            name: b"user.a".to_vec(),
        },
        Request::Lock {
            inode,
            lock: lock_of(7, LockMode::Shared, LockRange { first: 50, last: 60 }),
            wait: None,
        },
        Request::Link {
            inode,
            dir: s.dir,
            name: name(),
        },
    ]);
    requests
}

fn about_directory(s: &Scene, dir: InodeRef) -> Vec<Request> {
    let name = || b"lie".to_vec();
    let file = new_file(FileKind::File, 0o644);
    vec![
        Request::Lookup { dir, name: name() },
        Request::ReadDir { dir, after: 0, max: 9 },
        Request::Create {
            dir,
            name: name(),
            file: file.clone(),
            open: false,
        },
        Request::CreateUnnamed { dir, file },
        Request::Unlink { dir, name: name() },
        Request::Rmdir { dir, name: name() },
        Request::Link {
            inode: s.file,
            dir,
            name: name(),
        },
        Request::Rename {
            old_dir: dir,
            old_name: name(),
            new_dir: s.dir,
            new_name: b"other".to_vec(),
            mode: RenameMode::Replace,
        },
        Request::Rename {
            old_dir: s.dir,
            old_name: b"file".to_vec(),
            new_dir: dir,
            new_name: name(),
            mode: RenameMode::Replace,
        },
    ]
}

/// What only a file with bytes is asked.
fn about_data(s: &Scene, inode: InodeRef) -> Vec<Request> {
    vec![
        Request::Write {
            inode,
            offset: 0,
            append: false,
            known: Tail::default(),
            bytes: b"lie".to_vec(),
        },
        Request::Write {
            inode,
            offset: 0,
            append: true,
            known: Tail::default(),
            bytes: vec![7; EAGER_MAX],
        },
        s.commit(inode, vec![run_of(s.ours.gpa, 0, 4096)]),
        Request::Fallocate {
            inode,
            mode: FallocateMode::Extend,
            offset: 1 << 20,
            len: 1,
        },
        Request::Fallocate {
            inode,
            mode: FallocateMode::PunchHole,
            offset: 0,
            len: 1 << 20,
        },
        Request::SetAttr {
            inode,
            set: SetAttr {
                size: Some(1),
                ..SetAttr::default()
            },
        },
    ]
}

#[test]
fn a_directory_as_a_file() {
    refused(async |_, s| {
        for request in about_data(s, s.dir).into_iter().chain(about_data(s, s.dir)) {
            assert_eq!(s.say(request.clone()).await, Err(FsError::IsDirectory), "{request:?}");
        }
        let inode = s.dir;
        assert!(is_invalid(&s.say(Request::ReadLink { inode }).await));
        let (dir, name) = (s.dir, b"sub".to_vec());
        assert_eq!(s.say(Request::Unlink { dir, name }).await, Err(FsError::IsDirectory));
        let name = b"lie".to_vec();
        assert_eq!(
            s.say(Request::Link { inode, dir, name }).await,
            Err(FsError::NotPermitted)
        );
    });
}

#[test]
fn a_file_as_a_directory() {
    refused(async |_, s| {
        for inode in [s.file, s.link, s.pipe] {
            for request in about_directory(s, inode) {
                assert_eq!(s.say(request.clone()).await, Err(FsError::NotDirectory), "{request:?}");
            }
        }
        let (dir, name) = (s.dir, b"file".to_vec());
        assert_eq!(s.say(Request::Rmdir { dir, name }).await, Err(FsError::NotDirectory));
        let inode = s.file;
        assert!(is_invalid(&s.say(Request::ReadLink { inode }).await));
    });
}

#[test]
fn a_symbolic_link_and_a_pipe_as_a_file() {
    refused(async |_, s| {
        for inode in [s.link, s.pipe] {
            for request in about_data(s, inode) {
                let answer = s.say(request.clone()).await;
                assert!(is_invalid(&answer), "{request:?}: {answer:?}");
            }
        }
    });
}

#[test]
fn slots_that_are_free_hold_the_region_header_or_do_not_exist() {
    refused(async |_, s| {
        let at = |slot: u64| Ino(u64::from(s.region.0) << 48 | slot);
        let last = (1u64 << SHIFT) / 256;
        // free ones beside the last in use, the header, log pages and data taken for inodes, beyond the end
        for slot in [
            0,
            last - 1,
            last,
            2 * last,
            3 * last,
            1 << 30,
            (1 << 40) - 1,
            1 << 40,
            (1 << 48) - 1,
        ] {
            for generation in [0, 1, 2, u32::MAX] {
                let inode = InodeRef {
                    ino: at(slot),
                    generation: Generation(generation),
                };
                for request in about(s, inode) {
                    let answer = s.say(request.clone()).await;
                    assert_eq!(answer, Err(FsError::Stale), "slot {slot}: {request:?}");
                }
            }
            let (ino, generation) = (at(slot), None);
            assert_eq!(s.say(Request::GetAttr { ino, generation }).await, Err(FsError::Stale));
        }
    });
}

#[test]
fn a_wrong_generation() {
    refused(async |_, s| {
        for inode in [s.file, s.dir, s.link, s.pipe] {
            let right = inode.generation.0;
            for generation in [0, right - 1, right + 1, u32::MAX] {
                let inode = InodeRef {
                    generation: Generation(generation),
                    ..inode
                };
                for request in about(s, inode) {
                    assert_eq!(s.say(request.clone()).await, Err(FsError::Stale), "{request:?}");
                }
            }
        }
    });
}

#[test]
fn regions_of_another_node_and_regions_that_do_not_exist() {
    refused(async |cluster, s| {
        let elsewhere = cluster
            .map()
            .regions
            .iter()
            .filter(|r| r.primary() != Some(NodeId(s.node)));
        for region in elsewhere
            .map(|info| info.id)
            .chain([RegionId(60_000), RegionId(u16::MAX)])
        {
            let inode = InodeRef {
                ino: Ino::new(region, 1),
                generation: Generation(1),
            };
            let away = [
                Request::Segments { region, from: 0 },
                Request::Delegate { region, pages: 1 },
                Request::Check { region, page: 0 },
                Request::TestLock {
                    inode,
                    lock: lock_of(1, LockMode::Shared, LockRange::ALL),
                },
                Request::Unlock {
                    inode,
                    owner: 1,
                    range: LockRange::ALL,
                },
                Request::CancelLock { inode, ticket: 1 },
            ];
            for request in about_data(s, inode).into_iter().chain(away) {
                assert_eq!(s.say(request.clone()).await, Err(FsError::WrongEpoch), "{request:?}");
            }
            // some of these are for this node to pass on, and then another one refuses
            for request in about(s, inode).into_iter().filter(|_| region.0 >= 60_000) {
                assert!(s.say(request.clone()).await.is_err(), "{request:?}");
            }
        }
    });
}

// ---- names, numbers

#[test]
fn names_that_cannot_be() {
    refused(async |_, s| {
        let dir = s.dir;
        let long = vec![b'x'; 256];
        let cases: [(&[u8], Expected); 6] = [
            (b"", |e| *e == FsError::NotFound),
            (b".", |e| {
                matches!(
                    e,
                    FsError::Exists | FsError::NotFound | FsError::Busy | FsError::Invalid(_)
                )
            }),
            (b"..", |e| {
                matches!(
                    e,
                    FsError::Exists | FsError::NotFound | FsError::Busy | FsError::NotEmpty
                )
            }),
            (b"a/b", |e| matches!(e, FsError::Invalid(_))),
            (b"file\0", |e| matches!(e, FsError::Invalid(_))),
            (&long, |e| *e == FsError::NameTooLong),
        ];
        for (name, expected) in cases {
            let name = || name.to_vec();
            let rename = |old_name, new_name, mode| Request::Rename {
                old_dir: dir,
                old_name,
                new_dir: dir,
                new_name,
                mode,
            };
            let requests = [
                Request::Lookup { dir, name: name() },
                Request::Create {
                    dir,
                    name: name(),
                    file: new_file(FileKind::File, 0o644),
                    open: true,
                },
                Request::Create {
                    dir,
                    name: name(),
                    file: new_file(FileKind::Directory, 0o755),
                    open: false,
                },
                Request::Unlink { dir, name: name() },
                Request::Rmdir { dir, name: name() },
                Request::Link {
                    inode: s.file,
                    dir,
                    name: name(),
                },
                rename(name(), b"new".to_vec(), RenameMode::Replace),
                rename(b"file".to_vec(), name(), RenameMode::Replace),
                rename(b"file".to_vec(), name(), RenameMode::Exchange),
                rename(name(), b"file".to_vec(), RenameMode::Exchange),
            ];
            for request in requests {
                let answer = s.say(request.clone()).await;
                assert!(answer.as_ref().is_err_and(expected), "{request:?}: {answer:?}");
            }
        }
    });
}

#[test]
fn new_files_that_cannot_be() {
    refused(async |_, s| {
        let with = |kind, target: &[u8]| NewFile {
            target: target.to_vec(),
            ..new_file(kind, 0o644)
        };
        let long = vec![b't'; 4096];
        let cases: [(NewFile, Expected); 6] = [
            (with(FileKind::Symlink, b""), |e| *e == FsError::NotFound),
            (with(FileKind::Symlink, &long), |e| *e == FsError::NameTooLong),
            (with(FileKind::Symlink, b"a\0b"), |e| matches!(e, FsError::Invalid(_))),
            (with(FileKind::File, b"target"), |e| matches!(e, FsError::Invalid(_))),
            (with(FileKind::Directory, b"target"), |e| {
                matches!(e, FsError::Invalid(_))
            }),
            (with(FileKind::Object, b""), |e| matches!(e, FsError::Invalid(_))),
        ];
        for (file, expected) in cases {
            let (dir, name) = (s.dir, b"new".to_vec());
            let request = Request::Create {
                dir,
                name,
                file: file.clone(),
                open: false,
            };
            let answer = s.say(request).await;
            assert!(answer.as_ref().is_err_and(expected), "{file:?}: {answer:?}");
        }
        for kind in [
            FileKind::Directory,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
        ] {
            let (dir, file) = (s.dir, new_file(kind, 0o644));
            assert!(
                is_invalid(&s.say(Request::CreateUnnamed { dir, file }).await),
                "{kind:?}"
            );
        }
    });
}

#[test]
fn extended_attributes_that_cannot_be() {
    refused(async |_, s| {
        let inode = s.file;
        let set = |name: &[u8], len| Request::SetXattr {
            inode,
            name: name.to_vec(),
            value: vec![1; len],
            mode: XattrMode::Any,
        };
        for name in [&b""[..], b"user.\0", &[b'x'; 256]] {
            let answer = s.say(set(name, 1)).await;
            assert!(is_invalid(&answer), "{name:?}: {answer:?}");
            let name = name.to_vec();
            assert!(is_invalid(&s.say(Request::RemoveXattr { inode, name }).await));
        }
        assert_eq!(s.say(set(b"user.a", XATTR_VALUE_MAX + 1)).await, Err(FsError::TooBig));
        for name in [
            &b"system.posix_acl_access"[..],
            b"system.posix_acl_default",
            b"system.other",
        ] {
            let answer = s.say(set(name, 4)).await;
            assert!(matches!(answer, Err(FsError::NotSupported(_))), "{answer:?}");
        }
        // a list of owner, group and others, without a mask: somebody is named
        let mut list = 2u32.to_le_bytes().to_vec();
        for tag in [1u16, 2, 4, 32] {
            list.extend(tag.to_le_bytes());
            list.extend([7, 0, 9, 0, 0, 0]);
        }
        let request = Request::SetXattr {
            inode,
            name: b"system.posix_acl_access".to_vec(),
            value: list.clone(),
            mode: XattrMode::Any,
        };
        assert!(is_invalid(&s.say(request).await));
        let mut file = new_file(FileKind::File, 0o644);
        file.xattrs = vec![(b"system.posix_acl_access".to_vec().into(), list.into())];
        let request = Request::Create {
            dir: s.dir,
            name: b"with-attributes".to_vec(),
            file,
            open: false,
        };
        assert!(is_invalid(&s.say(request).await), "they are inherited, never sent");
        assert_eq!(s.say(set(b"polvo.placement", 4)).await, Err(FsError::NotDirectory));
        let inode = s.dir;
        let request = Request::SetXattr {
            inode,
            name: b"polvo.placement".to_vec(),
            value: b"mine".to_vec(),
            mode: XattrMode::Any,
        };
        assert!(is_invalid(&s.say(request).await));
    });
}

#[test]
fn offsets_and_lengths_that_no_file_has() {
    refused(async |_, s| {
        let inode = s.file;
        let last = i64::MAX as u64;
        for offset in [last, last - 1, 1 << 63, u64::MAX, u64::MAX - 2] {
            let (append, known, bytes) = (false, Tail::default(), b"lie".to_vec());
            let request = Request::Write {
                inode,
                offset,
                append,
                known,
                bytes,
            };
            assert_eq!(s.say(request).await, Err(FsError::FileTooLarge), "{offset}");
            for mode in [
                FallocateMode::Extend,
                FallocateMode::KeepSize,
                FallocateMode::PunchHole,
                FallocateMode::ZeroRange { keep_size: false },
            ] {
                for (offset, len) in [(offset, 3), (3, offset)] {
                    let request = Request::Fallocate {
                        inode,
                        mode,
                        offset,
                        len,
                    };
                    assert_eq!(s.say(request).await, Err(FsError::FileTooLarge), "{offset} {len}");
                }
            }
        }
        for size in [last + 1, u64::MAX] {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            assert_eq!(s.say(Request::SetAttr { inode, set }).await, Err(FsError::FileTooLarge));
        }
        let (mode, offset, len) = (FallocateMode::Extend, 0, 0);
        let nothing = Request::Fallocate {
            inode,
            mode,
            offset,
            len,
        };
        assert!(is_invalid(&s.say(nothing).await));
        for (first, last) in [(1, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let range = LockRange { first, last };
            let lock = lock_of(3, LockMode::Shared, range);
            let wait = None;
            assert!(is_invalid(&s.say(Request::Lock { inode, lock, wait }).await));
            assert!(is_invalid(&s.say(Request::TestLock { inode, lock }).await));
            assert!(is_invalid(&s.say(Request::Unlock { inode, owner: 3, range }).await));
        }
        let known = s.say(Request::Extents { inode, from: u64::MAX }).await;
        assert!(
            matches!(&known, Ok(Reply::FileMap(map)) if map.extents.is_empty()),
            "{known:?}"
        );
        let known = s
            .say(Request::ReadDir {
                dir: s.dir,
                after: u64::MAX,
                max: u32::MAX,
            })
            .await;
        assert_eq!(known, Ok(Reply::Entries(vec![])));
    });
}

#[test]
fn absurd_counts() {
    refused(async |_, s| {
        let inode = s.file;
        let over = [
            Request::Write {
                inode,
                offset: 0,
                append: true,
                known: Tail::default(),
                bytes: vec![1; EAGER_MAX + 1],
            },
            Request::Release {
                inodes: vec![inode; RELEASE_MAX + 1],
            },
            Request::ReturnSpace {
                runs: vec![s.ours; RELEASE_MAX + 1],
            },
            Request::Attach {
                version: PROTOCOL_VERSION,
                name: "x".repeat(CLIENT_NAME_MAX + 1),
                home: None,
            },
        ];
        for request in over {
            let answer = s.say(request).await;
            assert!(is_invalid(&answer), "{answer:?}");
        }
        let crowd = Cred::User {
            uid: 0,
            gid: 0,
            groups: vec![0; GROUPS_MAX + 1],
        };
        let answer = s.say_as(Request::Map, |call| call.cred = crowd).await;
        assert!(is_invalid(&answer), "{answer:?}");
        let region = s.region;
        let answer = s.say(Request::Segments { region, from: u32::MAX }).await;
        assert!(
            matches!(&answer, Ok(Reply::Segments(map)) if map.segments.is_empty()),
            "{answer:?}"
        );
        for page in [1, 2, u64::MAX] {
            let answer = s.say(Request::Check { region, page }).await;
            assert!(is_invalid(&answer), "{answer:?}");
        }
        let answer = s.say(Request::Heartbeat { tick: u64::MAX }).await;
        assert!(matches!(answer, Ok(Reply::Renewed { .. })), "{answer:?}");
        let home = Some(NodeId(u16::MAX));
        let (version, name) = (PROTOCOL_VERSION, "liar".into());
        assert!(s.say(Request::Attach { version, name, home }).await.is_ok());
    });
}

#[test]
fn an_absurd_wish_for_space_is_granted_in_part() {
    let options = ClusterOptions {
        seed: 63,
        nodes: 1,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let (liar, other) = (Caller::new(cluster, "liar"), Caller::new(cluster, "other"));
        let region = RegionId(0);
        let runs = liar.delegate(region, u32::MAX).await.unwrap();
        let pages: u32 = runs.iter().map(|run| run.pages).sum();
        let Ok(Reply::Usage(usage)) = liar.ask_node(0, Request::Usage).await else {
            panic!("no usage")
        };
        assert_eq!(usage.data_bytes, u64::from(pages) * 4096);
        assert!(
            u64::from(pages) * 4096 <= usage.total_bytes / 3,
            "others get some: {pages}"
        );
        let file = other.create(ROOT, "f").await.unwrap();
        other.write_active(file, 0, &pattern(200_000, 1)).await.unwrap();
        let request = Request::ReturnSpace { runs };
        assert_eq!(liar.ask(region, request).await, Ok(Reply::Done));
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

/// Pages of a check come in order; another one than the next is not handed out (nor is its number counted on).
#[test]
fn pages_of_a_check_that_were_not_named() {
    let options = ClusterOptions {
        seed: 62,
        nodes: 1,
        regions_per_node: 1,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "liar");
        for i in 0..1600 {
            c.create(ROOT, &format!("f{i}")).await.unwrap();
        }
        let region = RegionId(0);
        let ask = |page| c.ask_node(0, Request::Check { region, page });
        let Ok(Reply::Facts(first)) = ask(0).await else {
            panic!("no facts")
        };
        assert_eq!(first.next, Some(1));
        for page in [2, 3, u64::MAX] {
            assert!(is_invalid(&ask(page).await), "{page}");
        }
        assert!(matches!(ask(1).await, Ok(Reply::Facts(_))));
        assert!(is_invalid(&ask(1).await), "handed out already");
    });
}

// ---- what nodes say to each other

#[test]
fn requests_that_are_for_nodes_only() {
    refused(async |cluster, s| {
        let txn = TxnId::new(NodeId(0), 1);
        let on_behalf = s.liar.links.context().session();
        let region = s.region;
        let requests = [
            Request::TxnState { txn },
            Request::RenameLock { txn, release: false },
            Request::RenameLock { txn, release: true },
            Request::Parent { inode: s.dir },
            Request::Collect {
                txn,
                region,
                on_behalf,
                open: true,
                intents: vec![Intent::DropLink { inode: s.file }],
            },
            Request::Prepare {
                txn,
                region,
                on_behalf,
                open: false,
                intents: vec![],
            },
            Request::Conclude {
                txn,
                region,
                commit: true,
            },
            Request::Fence,
            Request::LockWaits,
        ];
        for node in 0..3 {
            for request in &requests {
                let answer = s.liar.ask_node(node, request.clone()).await;
                assert_eq!(answer, Err(FsError::NotPermitted), "{request:?}");
            }
            let user = s.liar.as_user(user(1));
            assert_eq!(user.ask_node(node, Request::Shutdown).await, Err(FsError::NotPermitted));
        }
        assert!((0..3).all(|node| cluster.is_running(node)));
    });
}
