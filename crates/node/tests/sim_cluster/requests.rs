//! Sessions and their requests: who may ask, what is asked again, what is fenced off.

use super::with_cluster;
use crate::common::*;
use polvo_cluster::{MapCell, RegionVerb, SessionContext};
use polvo_format::{FileKind, Ino, NodeId, Tail};
use polvo_node::sim::{ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;

#[test]
fn clients_may_not_do_what_nodes_do() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let txn = polvo_format::TxnId::new(Ino::ROOT.region(), 1);
        let region = Ino::ROOT.region();
        let on_behalf = c.links.context().session();
        let refused = [
            Request::TxnState { txn },
            Request::RenameLock { txn, release: false },
            Request::Parent { inode: ROOT },
            Request::Collect {
                txn,
                region,
                on_behalf,
                open: false,
                intents: vec![],
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
        ];
        for request in refused {
            assert_eq!(
                c.ask_node(0, request.clone()).await,
                Err(FsError::NotPermitted),
                "{request:?}"
            );
        }
        assert_eq!(
            c.as_user(user(1)).ask_node(0, Request::Shutdown).await,
            Err(FsError::NotPermitted)
        );
        let map = c.links.segments(region, false).await.unwrap();
        assert_eq!(map.node_key, 0);
        let link = c.links.to(NodeId(0)).await.unwrap();
        let mut call = c.links.make_call(Cred::Kernel, Request::Map);
        call.session = polvo_format::SessionId(99);
        assert_eq!(
            link.call(&call).await,
            Err(FsError::NotPermitted),
            "a session that is not ours"
        );
        let garbage = link.rpc.call(&[0xff; 40], Duration::from_secs(1)).await.unwrap();
        assert!(matches!(decode_answer(&garbage), Ok(Err(FsError::Invalid(_)))));
    });
}

/// Space that was given in a session which is over may lie in a segment that is gone: that the session is over is what
/// counts, since whoever hears of it takes other space and goes on.
#[test]
fn space_of_a_session_that_is_over_is_not_looked_for() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "c");
        let region = ROOT.ino.region();
        let nowhere = polvo_format::Gpa::new(region, polvo_format::RegionOffset(1 << 40));
        for (is_ours, expected) in [(true, "invalid argument"), (false, "session expired")] {
            let mut write = [RegionVerb::WriteData {
                at: nowhere,
                bytes: &[7; 64],
            }];
            let error = c.links.one_sided_while(region, &mut write, || is_ours).await;
            let error = error.expect_err("there is nothing").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    });
}

#[test]
fn a_fence_ends_the_other_connections_of_a_node() {
    with_cluster(async |cluster| {
        let (reactor, thread) = (cluster.node(0).new_links(), cluster.node(0).new_links());
        let other_node = cluster.node(2).new_links();
        let to = NodeId(1);
        let (ours, theirs) = (reactor.to(to).await.unwrap(), thread.to(to).await.unwrap());
        let bystander = other_node.to(to).await.unwrap();
        assert_eq!(
            reactor.call_node(to, Cred::Kernel, Request::Fence).await,
            Ok(Reply::Done)
        );
        cluster.sleep(Duration::from_millis(100)).await;
        assert!(theirs.is_closed() && !ours.is_closed() && !bystander.is_closed());
        assert!(
            thread.call_node(to, Cred::Kernel, Request::Usage).await.is_ok(),
            "over a new one"
        );
    });
}

#[test]
fn a_request_repeated_is_done_once() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let file = new_file(FileKind::File, 0o600);
        let call = c.links.make_call(
            Cred::Kernel,
            Request::Create {
                dir: ROOT,
                name: b"f".into(),
                file,
                open: false,
            },
        );
        let link = c.links.to(NodeId(0)).await.unwrap();
        let (first, at_once) = tokio::join!(link.call(&call), link.call(&call));
        assert!(first.is_ok());
        assert_eq!(first, at_once);
        assert_eq!(link.call(&call).await, first);
        link.rpc.queue_pair().close();
        assert_eq!(
            c.links.send(NodeId(0), &call).await,
            first,
            "over another connection too"
        );
        assert_eq!(c.names(ROOT).await, Ok(vec!["f".to_string()]));
    });
}

/// A request that was sent over a connection that is lost: its answer if it was done, else it never will be.
#[test]
fn a_request_withdrawn_is_answered_or_never_done() {
    with_cluster(async |cluster| {
        let links = cluster.client("client");
        let thread = links.context().links();
        // the same set of links, connected anew before the node knows that it has lost anything
        let again = SessionContext::new(
            MapCell::new(cluster.map().clone()),
            cluster.client_identity(),
            links.context().session(),
            "client".into(),
            None,
            cluster.timeouts(),
            None,
        );
        cluster.network().place(again.memory(), "client again");
        let make = |name: &str| {
            let file = new_file(FileKind::File, 0o600);
            let name = name.into();
            links.make_call(
                Cred::Kernel,
                Request::Create {
                    dir: ROOT,
                    name,
                    file,
                    open: false,
                },
            )
        };
        let withdraw = |call: &polvo_proto::Call| polvo_proto::Call {
            request: Request::Withdraw {
                region: ROOT.ino.region(),
            },
            ..call.clone()
        };
        let (done, undone) = (make("done"), make("undone"));
        let old = links.to(NodeId(0)).await.unwrap();
        let bystander = thread.to(NodeId(0)).await.unwrap();
        let first = old.call(&done).await;
        assert!(first.is_ok());

        let slow = Duration::from_millis(500);
        cluster.network().set_delay_between("client", "node-0", slow..=slow);
        let late = tokio::task::spawn_local({
            let (old, undone) = (old.clone(), undone.clone());
            async move { old.call(&undone).await }
        });
        tokio::task::yield_now().await;
        let anew = again.links();
        let new = anew.to(NodeId(0)).await.unwrap();
        assert_eq!(new.call(&withdraw(&undone)).await, Ok(Reply::Withdrawn));
        assert_eq!(new.call(&withdraw(&done)).await, first);
        assert_eq!(new.call(&undone).await, Ok(Reply::Withdrawn), "it comes too late");
        let late = late.await.unwrap();
        assert!(matches!(late, Err(FsError::Unreachable { .. })), "{late:?}");
        assert!(old.is_closed() && !new.is_closed() && !bystander.is_closed());
        let names = Caller::new(cluster, "other").names(ROOT).await;
        assert_eq!(names, Ok(vec!["done".to_string()]));
    });
}

#[test]
fn a_client_inside_a_node_calls_it_directly() {
    with_cluster(async |cluster| {
        let node = cluster.node(1).clone();
        let context = node.client_context(cluster.next_session(), "mount".into());
        let links = context.links();
        let here = node.colocated();
        let ask = async |request| node.handle(&links, links.make_call(Cred::Kernel, request)).await;
        assert_eq!(ask(Request::Usage).await, Err(FsError::SessionExpired), "attach first");
        let attach = Request::Attach {
            version: PROTOCOL_VERSION,
            name: "mount".into(),
            home: Some(NodeId(1)),
            fence: 0,
            syncs: true,
        };
        assert!(matches!(ask(attach).await, Ok(Reply::Attached { node: NodeId(1), .. })));
        let elsewhere = ask(Request::GetAttr {
            ino: Ino::ROOT,
            generation: None,
        })
        .await;
        assert_eq!(
            elsewhere,
            Err(FsError::WrongEpoch),
            "the root is served by another node"
        );

        let c = Caller::new(cluster, "client");
        let dir = c.directory_at(cluster, 1, "d").await;
        let mut nodes = std::collections::BTreeSet::new();
        for i in 0..12 {
            let file = new_file(FileKind::File, 0o644);
            let create = Request::Create {
                dir,
                name: format!("f{i}").into_bytes(),
                file,
                open: true,
            };
            let file = match ask(create).await.unwrap() {
                Reply::Made(made) => inode_of(&made.attr),
                other => panic!("{other:?}"),
            };
            nodes.insert(primary(cluster, file));
            if primary(cluster, file) != 1 {
                continue;
            }
            let region = file.ino.region();
            let bytes = pattern(5000, i);
            let space = match ask(Request::Delegate { region, pages: 2 }).await.unwrap() {
                Reply::Space(space) => space,
                other => panic!("{other:?}"),
            };
            assert_eq!((space.len(), space[0].pages), (1, 2));
            let at = here.locate(space[0].gpa, bytes.len()).unwrap();
            here.pool().write_streaming(at, &bytes);
            here.pool().fence();
            let runs = vec![WriteRun {
                offset: 0,
                len: 5000,
                gpa: space[0].gpa,
            }];
            let commit = Request::Commit {
                inode: file,
                runs,
                append: false,
                crcs: Vec::new(),
                known: Tail::default(),
                want_pages: 0,
            };
            ask(commit).await.unwrap();
            let mut read = vec![0; 5000];
            here.pool().read(at, &mut read);
            assert_eq!(read, bytes);
            assert_eq!(c.read(file).await.unwrap(), bytes);
        }
        assert_eq!(nodes.len(), 3);
        ask(Request::Detach).await.unwrap();
        assert_eq!(ask(Request::Usage).await, Err(FsError::SessionExpired));
    });
}

#[test]
fn a_node_shuts_down_when_asked() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let (name, file) = c.file_at(cluster, ROOT, 1, "f").await;
        c.write(file, 0, b"kept").await.unwrap();
        c.ask_node(1, Request::Shutdown).await.unwrap();
        for _ in 0..100 {
            cluster.sleep(Duration::from_millis(50)).await;
        }
        assert!(!cluster.is_running(1));
        cluster.stop(1).await;
        assert!(matches!(c.attr(file).await, Err(FsError::Unreachable { .. })));
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(c.find(ROOT, &name).await, Ok(file));
        assert_eq!(c.read(file).await.unwrap(), b"kept");
    });
}

#[test]
fn the_same_seed_runs_the_same() {
    let trace = |seed| {
        run(
            ClusterOptions {
                seed,
                ..ClusterOptions::default()
            },
            async |cluster| {
                let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
                let work = async |c: &Caller, name: &str| {
                    for i in 0..30 {
                        let _ = c.create(ROOT, &format!("{}", i % 7)).await;
                        let _ = c
                            .rename(ROOT, &format!("{}", i % 5), ROOT, &format!("{name}{}", i % 3))
                            .await;
                    }
                };
                tokio::join!(work(&a, "x"), work(&b, "y"));
                (cluster.network().delivered(), a.names(ROOT).await.unwrap())
            },
        )
    };
    assert_eq!(trace(5), trace(5));
}

#[test]
fn a_node_that_ends_may_be_asked_to_stop_again() {
    with_cluster(async |cluster| {
        let node = cluster.node(1).clone();
        node.stop();
        node.stopped().await;
        for _ in 0..20 {
            node.stop();
            tokio::task::yield_now().await;
        }
        assert_eq!(node.refusal(), None);
        cluster.stop(1).await;
        cluster.restart(1).await.unwrap();
    });
}
