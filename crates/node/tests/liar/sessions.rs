//! Requests of sessions that are somebody else's, over, or were never opened; of another epoch; that are no requests.

use super::scene::*;
use crate::common::*;
use polvo_fabric::{Address, MemoryRegions, connect};
use polvo_format::{Epoch, FileKind, NodeId, SessionId, Tail};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use polvo_rpc::RpcClient;
use std::time::Duration;

/// A connection of the liar's on which nothing was said yet.
async fn stranger(cluster: &Cluster, node: u16) -> RpcClient {
    admitted(cluster, node).await.expect("there is room for one more")
}

/// The same, if the node lets it in.
async fn admitted(cluster: &Cluster, node: u16) -> Option<RpcClient> {
    let memory = MemoryRegions::new();
    cluster.network().place(&memory, "stranger");
    let address = Address::Sim(format!("node-{node}"));
    let limit = cluster.timeouts().connect;
    let pair = connect(&address, &cluster.client_identity(), &memory, limit)
        .await
        .unwrap();
    RpcClient::establish(pair, &memory, limit).await.ok()
}

async fn ask_over(rpc: &RpcClient, session: SessionId, request: Request) -> Answer {
    ask_of(rpc, session, 0, request).await
}

/// As above, by that of the session's sets of links.
async fn ask_of(rpc: &RpcClient, session: SessionId, link_set: u64, request: Request) -> Answer {
    let call = Call {
        again: false,
        session,
        request_id: Call::request_id(link_set, 1),
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
        fence: 0,
        syncs: true,
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
            let (name, home, fence) = (String::new(), None, 0);
            let answer = ask_over(
                &rpc,
                SessionId(5),
                Request::Attach {
                    version,
                    name,
                    home,
                    fence,
                    syncs: true,
                },
            )
            .await;
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

#[test]
fn a_connection_without_a_session_is_closed_after_a_while() {
    refused(async |cluster, _| {
        let (silent, honest) = (stranger(cluster, 0).await, stranger(cluster, 0).await);
        let session = cluster.next_session();
        assert!(matches!(
            ask_over(&honest, session, attach()).await,
            Ok(Reply::Attached { .. })
        ));
        cluster.sleep(Duration::from_secs(9)).await;
        assert!(!silent.is_closed());
        cluster.sleep(Duration::from_secs(2)).await;
        assert!(silent.is_closed() && !honest.is_closed());
        assert_eq!(ask_over(&honest, session, Request::Detach).await, Ok(Reply::Done));
    });
}

#[test]
fn clients_leave_connections_to_nodes() {
    run(ClusterOptions::default(), async |cluster| {
        let mut connections = Vec::new();
        while let Some(connection) = admitted(cluster, 0).await {
            let session = cluster.next_session();
            ask_over(&connection, session, attach()).await.unwrap();
            connections.push((connection, session));
        }
        assert!(
            (3800..=4096 - 256).contains(&connections.len()),
            "{}",
            connections.len()
        );
        let links = cluster.node(1).new_links();
        let usage = links.call_node(NodeId(0), Cred::Kernel, Request::Usage).await;
        assert!(matches!(usage, Ok(Reply::Usage(_))), "a node is served: {usage:?}");
        for (connection, session) in &connections {
            assert_eq!(ask_over(connection, *session, Request::Detach).await, Ok(Reply::Done));
        }
    });
}

#[test]
fn one_session_does_not_take_all_connections() {
    refused(async |cluster, _| {
        let session = cluster.next_session();
        let mut connections = Vec::new();
        let refused = loop {
            let connection = stranger(cluster, 0).await;
            // each a set of links of its own: one of the same set would take the place of the one before
            let answer = ask_of(&connection, session, connections.len() as u64 + 1, attach()).await;
            if answer.is_err() {
                break answer;
            }
            connections.push(connection);
        };
        assert!(matches!(refused, Err(FsError::Io(_))), "{refused:?}");
        assert_eq!(connections.len(), 512);
        assert!(connections.iter().all(|connection| !connection.is_closed()));
        let (other, another) = (stranger(cluster, 0).await, cluster.next_session());
        let answer = ask_over(&other, another, attach()).await;
        assert!(
            matches!(answer, Ok(Reply::Attached { .. })),
            "others are served: {answer:?}"
        );
        for (connection, session) in [(&other, another), (&connections[0], session)] {
            assert_eq!(ask_over(connection, session, Request::Detach).await, Ok(Reply::Done));
        }
    });
}
