//! Nodes that are away, pools that are damaged, sessions that end.

use super::{healthy, options, run, stage};
use crate::common::*;
use polvo_cluster::Timeouts;
use polvo_format::{FileKind, NodeId};
use polvo_node::Phase;
use polvo_node::sim::ClusterOptions;
use polvo_proto::*;
use std::time::Duration;
use tokio::task::spawn_local;

#[test]
fn a_session_that_ends_while_it_waits_gets_nothing() {
    run(options(53), async |cluster| {
        let (c, leaving) = (Caller::new(cluster, "client"), Caller::new(cluster, "leaving"));
        let s = stage(cluster, &c).await;
        let asking = s.rename_until(cluster, &c, Phase::Collected).await;
        let link = leaving.links.to(NodeId(2)).await.unwrap();
        let opening = {
            let (link, call) = (
                link.clone(),
                leaving.links.make_call(Cred::Kernel, Request::Open { inode: s.file }),
            );
            spawn_local(async move { link.call(&call).await })
        };
        cluster.sleep(Duration::from_millis(100)).await;
        let detach = leaving.links.make_call(Cred::Kernel, Request::Detach);
        assert_eq!(link.call(&detach).await, Ok(Reply::Done));
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        assert_eq!(opening.await.unwrap(), Err(FsError::SessionExpired));
        c.unlink(s.new_dir, "dest").await.unwrap();
        assert_eq!(c.attr(s.file).await, Err(FsError::Stale), "nobody holds it");
        healthy(cluster).await;
    });
}

/// A client's lease ends while its node is at a request of it; the client asks again, as a new session, and is told what it has done.
#[test]
fn who_asks_again_as_a_new_session_waits_for_what_the_old_one_has_begun() {
    let options = ClusterOptions {
        timeouts: Timeouts {
            lease: Duration::from_secs(2),
            ..Timeouts::default()
        },
        ..options(59)
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        let s = stage(cluster, &c).await;
        let asking = s.rename_until(cluster, &c, Phase::Collected).await;
        // nobody renews it
        cluster.sleep(Duration::from_millis(3200)).await;
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        assert_eq!(c.find(s.new_dir, "dest").await, Ok(s.file));
        healthy(cluster).await;
    });
}

#[test]
fn without_a_node_the_rest_works_on() {
    run(options(23), async |cluster| {
        let c = Caller::new(cluster, "client");
        let dir = c.directory_at(cluster, 0, "d").await;
        let (lost, _) = c.file_at(cluster, dir, 2, "lost").await;
        let (kept, _) = c.file_at(cluster, dir, 1, "kept").await;
        cluster.crash(2).await;
        let start = tokio::time::Instant::now();
        for i in 0..30 {
            let file = c.create(dir, &format!("new{i}")).await.unwrap();
            assert_ne!(primary(cluster, file), 2);
        }
        c.unlink(dir, &kept).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        let start = tokio::time::Instant::now();
        assert!(matches!(
            c.unlink(dir, &lost).await,
            Err(FsError::Unreachable { node: 2, .. })
        ));
        assert!(start.elapsed() < cluster.timeouts().rpc, "{:?}", start.elapsed());
        let found = c.find(dir, &lost).await;
        assert!(found.is_ok(), "nothing half-done: {found:?}");
        cluster.restart(2).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        c.unlink(dir, &lost).await.unwrap();
        healthy(cluster).await;
    });
}

#[test]
fn an_expired_session_gives_everything_back() {
    run(options(29), async |cluster| {
        let (gone, other) = (Caller::new(cluster, "gone"), Caller::new(cluster, "other"));
        let lease = cluster.timeouts().lease;
        let (name, file) = other.file_at(cluster, ROOT, 1, "f").await;
        gone.open(file).await.unwrap();
        let free = async |c: &Caller| match c.ask_node(1, Request::Usage).await {
            Ok(Reply::Usage(usage)) => usage.data_bytes,
            other => panic!("{other:?}"),
        };
        let before = free(&other).await;
        gone.delegate(file.ino.region(), 100).await.unwrap();
        assert_eq!(free(&other).await, before + 100 * 4096);
        other.unlink(ROOT, &name).await.unwrap();
        for _ in 0..3 {
            cluster.sleep(lease / 3).await;
            other.links.renew().await;
        }
        cluster.sleep(lease / 3).await;
        other.links.renew().await;
        assert_eq!(other.attr(file).await, Err(FsError::Stale), "nobody holds it any more");
        for _ in 0..4 {
            cluster.sleep(lease / 3).await;
            other.links.renew().await;
        }
        assert_eq!(free(&other).await, before, "delegated pages are back");
        // who comes back finds out, and starts anew
        let resets = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counter = resets.clone();
        gone.links.context().on_reset(move |node, _| {
            assert_eq!(node, NodeId(1));
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(gone.ask_node(1, Request::Usage).await.is_ok());
        assert_eq!(resets.load(std::sync::atomic::Ordering::Relaxed), 1);
        healthy(cluster).await;
    });
}

#[test]
fn a_session_that_renews_keeps_what_it_holds() {
    run(options(31), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (name, file) = c.file_at(cluster, ROOT, 2, "f").await;
        c.open(file).await.unwrap();
        c.unlink(ROOT, &name).await.unwrap();
        for _ in 0..20 {
            cluster.sleep(cluster.timeouts().renew_every()).await;
            for (node, answer) in c.links.renew().await {
                assert!(answer.is_ok(), "{node}: {answer:?}");
            }
        }
        assert_eq!(c.attr(file).await.unwrap().nlink, 0);
        healthy(cluster).await;
    });
}

#[test]
fn pools_are_checked_before_they_are_served() {
    run(options(41), async |cluster| {
        cluster.stop(2).await;
        let pmem = cluster.pmem(2).clone();
        let mut first = vec![0; 4096];
        pmem.read(0, &mut first);
        pmem.write(0, &pattern(4096, 1));
        pmem.persist(0, 4096);
        // one of two superblocks is enough
        cluster.restart(2).await.unwrap();
        let c = Caller::new(cluster, "client");
        c.file_at(cluster, ROOT, 2, "f").await;
        let kind = FileKind::Directory;
        c.make(ROOT, "d", new_file(kind, 0o755), false).await.unwrap();
        healthy(cluster).await;
    });
}
