//! One-sided reads of regions with copies show nothing that a mirror lacks, and nothing of a primary whose place others have taken.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile};
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_proto::FsError;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

const LEN: usize = 5000;

fn replicated(seed: u64, test: impl AsyncFnOnce(&mut Cluster)) {
    let options = ClusterOptions {
        seed,
        replicas: 2,
        regions_per_node: 1,
        ..ClusterOptions::default()
    };
    with_options(options, test);
}

/// A file of node 0, open at a client which has read it and knows of a lease; and the same file at another one.
async fn read_before(cluster: &Cluster) -> ((Rc<LocalClient>, Arc<OpenFile>), (Rc<LocalClient>, Arc<OpenFile>)) {
    cluster.mirrored().await;
    let (reader, writer) = (external(cluster, "reader"), external(cluster, "writer"));
    let mut made = None;
    for n in 0..1000 {
        let name = format!("file-{n}");
        let created = inode(&writer.create(ROOT, name.as_bytes(), file()).await.expect("create"));
        if cluster.node(0).serves(created.ino.region()) {
            made = Some(created);
            break;
        }
    }
    let made = made.expect("some name belongs there");
    let (read, written) = (
        reader.open(made).await.expect("open"),
        writer.open(made).await.expect("open"),
    );
    writer.write(&written, 0, &pattern(1, LEN)).await.expect("write");
    for _ in 0..2 {
        assert_eq!(shown(&reader, &read).await, Some(1));
    }
    ((reader, read), (writer, written))
}

/// Which pattern the file shows; none: nothing came within a short time.
async fn shown(client: &LocalClient, file: &OpenFile) -> Option<u64> {
    let mut bytes = vec![0; LEN];
    let read = timeout(Duration::from_millis(50), client.read(file, 0, &mut bytes))
        .await
        .ok()?;
    assert_eq!(read, Ok(LEN));
    let seen = (1..9).find(|n| bytes == pattern(*n, LEN));
    assert!(seen.is_some(), "half of one and half of another");
    seen
}

#[test]
fn what_a_mirror_lacks_is_not_shown() {
    replicated(2101, async |cluster| {
        let ((reader, read), (writer, written)) = read_before(cluster).await;
        let asked = reader.client().counters().rpcs;
        assert_eq!(shown(&reader, &read).await, Some(1));
        assert_eq!(reader.client().counters().rpcs, asked, "nobody is asked");

        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
        }
        let write = spawn_local(async move { writer.write(&written, 0, &pattern(2, LEN)).await });
        sleep(Duration::from_millis(100)).await;
        assert!(!write.is_finished(), "it waits for the mirror");
        for _ in 0..4 {
            assert_ne!(shown(&reader, &read).await, Some(2), "no mirror has it");
        }
        cluster.network().heal_all();
        assert_eq!(write.await.expect("no panic"), Ok(LEN));
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(shown(&reader, &read).await, Some(2));
    });
}

#[test]
fn a_primary_that_is_cut_off_is_believed_for_a_lease() {
    replicated(2102, async |cluster| {
        let ((reader, read), (writer, written)) = read_before(cluster).await;
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
            cluster.network().partition("reader", other);
        }
        cluster.network().partition("writer", "node-0");
        let begin = Instant::now();
        let write = spawn_local(async move { writer.write(&written, 0, &pattern(2, LEN)).await });
        let mut last = begin;
        while !write.is_finished() {
            if shown(&reader, &read).await == Some(1) {
                last = Instant::now();
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(write.await.expect("no panic"), Ok(LEN));
        assert!(last > begin, "it was believed for a while");
        assert!(
            last - begin < Duration::from_millis(1000),
            "{:?} is no lease",
            last - begin
        );
        for _ in 0..20 {
            assert_eq!(shown(&reader, &read).await, None, "others have taken its place");
        }
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(2)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(0).await.expect("it starts anew");
        cluster.mirrored().await;
        assert_eq!(shown(&reader, &read).await, Some(2));
    });
}

/// Who goes on reading asks once: later leases are seen at the gate.
#[test]
fn a_reader_that_goes_on_asks_nobody() {
    replicated(2103, async |cluster| {
        let ((reader, read), _) = read_before(cluster).await;
        let before = reader.client().counters();
        let reads = 100;
        for _ in 0..reads {
            sleep(Duration::from_millis(100)).await;
            assert_eq!(shown(&reader, &read).await, Some(1));
        }
        let after = reader.client().counters();
        // sessions are renewed meanwhile
        let asked = after.rpcs - before.rpcs;
        assert!(asked < reads / 3, "{asked} requests for {reads} reads");
    });
}
