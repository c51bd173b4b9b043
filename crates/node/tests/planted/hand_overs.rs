//! Regions that are handed over to a mirror, and copies that are moved.

use super::locks::{claim, granted, lock};
use super::*;

#[test]
fn tokens_that_are_believed_in_when_a_region_is_handed_over() {
    caught(
        Planted::HandedOverTokensBelieved,
        a_region_goes_of_which_a_session_has_a_token,
    );
}

async fn hand_over(c: &Caller, region: RegionId, from: u16, to: u16) {
    while let Err(error) = c.ask_node(from, ask::HandOver { region, to: NodeId(to) }).await {
        assert_eq!(error, FsError::Retry);
        sleep(Duration::from_millis(20)).await;
    }
}

/// Its holder does not answer: it may believe in it until its lease is over, so nothing changes before.
fn a_region_goes_of_which_a_session_has_a_token() {
    run(replicated(61), async |cluster| {
        let (c, holder) = (Caller::new(cluster, "client"), Caller::new(cluster, "holder"));
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        let (mirror, region) = (mirror_of(cluster, file), file.ino.region());
        let begun = Instant::now();
        let taken = holder
            .ask_node(0, ask::TakeTokens { inodes: vec![file] })
            .await
            .unwrap();
        assert!(taken.tokens[0].is_some());
        hand_over(&c, region, 0, mirror).await;
        c.write(file, 0, b"after!").await.unwrap();
        assert!(
            begun.elapsed() >= Duration::from_millis(taken.lease_ms),
            "changed after {:?}",
            begun.elapsed()
        );
        assert_eq!(cluster.newest_map().unwrap().primary(region), Some(NodeId(mirror)));
    });
}

#[test]
fn locks_that_are_not_told_of_when_a_region_is_handed_over() {
    caught(Planted::HandedOverLocksUntold, a_region_goes_where_somebody_has_a_lock);
}

/// It is claimed from who serves the region now, who gives it to nobody else before.
fn a_region_goes_where_somebody_has_a_lock() {
    run(replicated(63), async |cluster| {
        cluster.mirrored().await;
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        let file = file_of_node_0(cluster, &a, b"locked").await;
        let region = file.ino.region();
        let term = granted(&a, file).await;
        hand_over(&a, region, 0, mirror_of(cluster, file)).await;
        let other = spawn_local(async move { b.ask(region, lock(file)).await });
        sleep(Duration::from_millis(300)).await;
        let claimed = a.ask(region, claim(file, term)).await.unwrap();
        assert!(claimed.is_some(), "nobody else may have had it");
        assert_eq!(other.await.unwrap(), Err(FsError::WouldBlock));
    });
}

#[test]
fn a_copy_that_goes_before_the_one_in_its_stead_is_whole() {
    caught(Planted::CopyMovedEarly, a_primary_dies_when_a_copy_has_moved);
}

fn a_primary_dies_when_a_copy_has_moved() {
    run(replicated(62), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, &pattern(4_000, 1)).await;
        let (mirror, region) = (mirror_of(cluster, file), file.ino.region());
        let info = cluster.new_host();
        let (from, to) = (Some(NodeId(mirror)), info.id);
        c.ask_node(1, ask::AddNode(Box::new(info))).await.unwrap();
        cluster.restart(to.0).await.unwrap();
        sleep(Duration::from_secs(3)).await;
        while let Err(error) = c.ask_node(0, ask::MoveCopy { region, from, to }).await {
            assert_eq!(error, FsError::Retry);
        }
        cluster.crash(0).await;
        assert_eq!(c.read(file).await, Ok(pattern(4_000, 1)));
        assert_eq!(cluster.newest_map().unwrap().primary(region), Some(to));
    });
}
