//! What a client knows by tokens, and when it gives them back.

use crate::common::{ROOT, directory, external, file, inode, internal, with_cluster};
use polvo_client::{LocalClient, OpenFile};
use polvo_cluster::Timeouts;
use polvo_format::NodeId;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::Instant;

fn with_tokens(client: Rc<LocalClient>) -> Rc<LocalClient> {
    client.client().use_tokens(None);
    spawn_local(client.client().local().watch_tokens());
    client
}

/// The node around a client knows its session before the first connection to it is made, with the renewal of the lease on what
/// another node has made there: the client does not take its tokens for lost, or a change would wait until their lease is over.
#[test]
fn who_is_colocated_keeps_its_tokens_when_it_also_connects() {
    with_cluster(97, async |cluster| {
        let renewal = Instant::now() + cluster.timeouts().renew_every();
        let here = with_tokens(internal(cluster, 1));
        let mut opened = Vec::new();
        for i in 0..40 {
            let dir = here
                .create(ROOT, format!("d{i}").as_bytes(), directory())
                .await
                .unwrap();
            let (_, open) = here.create_open(inode(&dir), b"f", file()).await.unwrap();
            opened.push(open);
        }
        let map = here.client().map();
        let lies_here = |open: &&Arc<OpenFile>| map.primary(open.inode().ino.region()) == Some(NodeId(1));
        let known = opened.iter().find(lies_here).expect("one of forty lies here").inode();
        tokio::time::sleep_until(renewal - Duration::from_millis(200)).await;
        for _ in 0..3 {
            here.get_attr(known).await.unwrap();
            cluster.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(here.client().counters().tokens, 1);
        // until what was asked of the node before has been answered
        tokio::time::sleep_until(renewal + Timeouts::WATCH + Duration::from_millis(100)).await;
        let other = external(cluster, "other");
        let open = other.open(known).await.unwrap();
        let before = Instant::now();
        other.append(&open, b"more").await.unwrap();
        assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    });
}
