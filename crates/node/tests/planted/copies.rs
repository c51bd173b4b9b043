//! What mirrors and copies have when they take a place, and what they are sent.

use super::*;

#[test]
fn an_answer_before_the_mirrors_have_what_was_done() {
    caught(Planted::MirrorNotAwaited, a_primary_dies_that_its_mirror_did_not_hear);
}

#[test]
fn a_mirror_left_out_that_may_take_over() {
    caught(Planted::SetShrunkUntold, a_mirror_comes_back_when_its_primary_has_died);
}

#[test]
fn records_that_come_when_a_mirror_has_taken_over() {
    caught(Planted::LaneKeyKept, records_are_late);
}

#[test]
fn a_request_done_by_each_of_two_primaries() {
    caught(Planted::RepeatedElsewhere, an_answer_is_lost_with_its_node);
}

#[test]
fn an_empty_pool_served_for_a_lost_one() {
    caught(Planted::LostPoolServed, a_node_comes_back_with_an_empty_pool);
}

#[test]
fn a_node_that_answers_before_it_has_heard_of_the_others() {
    caught(
        Planted::UnconfirmedServed,
        a_node_comes_back_that_does_not_know_of_its_mirror,
    );
}

#[test]
fn a_request_by_an_old_map_that_is_carried_out() {
    caught(Planted::OldEpochServed, a_client_does_not_know_that_a_region_has_moved);
}

#[test]
fn a_page_of_a_copy_that_differs_and_is_not_sent() {
    caught(Planted::DifferenceUnsent, a_mirror_has_missed_too_much);
}

#[test]
fn a_copy_given_back_by_a_map_of_before() {
    caught(Planted::CopyFreedUnconfirmed, a_copy_is_where_only_a_later_map_wants_it);
}

#[test]
fn a_page_taken_from_a_mirror_that_lacks_records() {
    caught(Planted::TakenFromBehind, an_inode_is_damaged_that_has_just_changed);
}

#[test]
fn damage_sent_to_a_copy_that_is_whole() {
    caught(Planted::DamageSent, file_data_is_damaged_at_a_primary);
}

/// What was written while nobody with a copy could hear of it is not lost with the node, or nobody was told that it is written.
fn a_primary_dies_that_its_mirror_did_not_hear() {
    run(replicated(31), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"before").await;
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
        }
        let write = timeout(Duration::from_millis(500), c.write(file, 0, b"after!")).await;
        cluster.crash(0).await;
        cluster.network().heal_all();
        let read = c.read(file).await.unwrap();
        match write {
            Ok(Ok(_)) => assert_eq!(read, b"after!"),
            _ => assert!(read == b"before" || read == b"after!"),
        }
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(3)).await;
    });
}

/// A node has got a copy that the configuration does not give it, knows of no map but that one, and hears nobody.
fn a_copy_is_where_only_a_later_map_wants_it() {
    run(replacing(39), async |cluster| {
        cluster.mirrored().await;
        cluster.crash(3).await;
        cluster.replaced(3).await;
        let is_new = |node: u16, region: RegionId| cluster.map().region(region).unwrap().role(NodeId(node)).is_none();
        let new = |node| cluster.held(node).into_iter().find(|region| is_new(node, *region));
        let (node, region) = (0..3)
            .find_map(|node| Some((node, new(node)?)))
            .expect("somebody has got a copy");
        let register = cluster.segments(node, REGISTER_OWNER, false)[0].0;
        for node in 0..3 {
            cluster.crash(node).await;
        }
        // what it has kept of the map cannot be read any more
        for place in [0, REGISTER_PLACE as u64] {
            (0..64).for_each(|word| cluster.pmem(node).write_u64(register + place + 8 * word, 7));
        }
        cluster.restart(node).await.unwrap();
        assert_eq!(cluster.node(node).map().epoch, Epoch(1));
        cluster.sleep(Duration::from_secs(40)).await;
        assert!(cluster.held(node).contains(&region));
    });
}

/// A node is started, and once more if it ends since others have taken its place.
async fn comes_back(cluster: &mut Cluster, node: u16) {
    cluster.restart(node).await.unwrap();
    cluster.sleep(Duration::from_secs(3)).await;
    if cluster.deposed() == Some(node) {
        let ended = cluster.ended(node).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(node).await.unwrap();
    }
    cluster.sleep(Duration::from_secs(5)).await;
}

/// A primary goes on without a mirror and dies; the mirror is there again, and lacks what was done meanwhile.
fn a_mirror_comes_back_when_its_primary_has_died() {
    run(replicated(53), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (_, file) = file_in(&c, dir, 0, "f").await;
        c.write(file, 0, b"before").await.unwrap();
        cluster.crash(1).await;
        c.write(file, 0, b"after!").await.unwrap();
        cluster.crash(0).await;
        comes_back(cluster, 1).await;
        comes_back(cluster, 0).await;
        assert_eq!(c.read(file).await.unwrap(), b"after!");
    });
}

/// Who goes by the map of before is told that there is another one.
fn a_client_does_not_know_that_a_region_has_moved() {
    run(replicated(83), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (_, file) = file_in(&c, dir, 0, "f").await;
        let ino = file.ino;
        let mut call = c.links.make_call(Cred::Kernel, ask::GetAttr { ino, generation: None });
        cluster.crash(0).await;
        assert!(c.attr(file).await.is_ok());
        assert_eq!(c.links.primary(RegionId(0)), Ok(NodeId(1)));
        let link = c.links.to(NodeId(1)).await.unwrap();
        call.request_id = c
            .links
            .make_call(Cred::Kernel, ask::GetAttr { ino, generation: None })
            .request_id;
        assert_eq!(link.call(&call).await, Err(FsError::WrongEpoch));
    });
}

/// What a primary has sent to its mirror arrives when that has taken its place.
fn records_are_late() {
    run(replicated(59), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (_, file) = file_in(&c, dir, 0, "f").await;
        let (_, other) = file_in(&c, dir, 0, "g").await;
        // its mirror has the segment
        c.write(file, 8192, &pattern(4_000, 3)).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        let slow = Duration::from_secs(8);
        for other in ["node-1", "node-2"] {
            cluster.network().set_delay_between("node-0", other, slow..=slow);
        }
        let late = pattern(4_000, 1);
        for other in ["node-1", "node-2"] {
            cluster.network().partition("behind", other);
        }
        let write = timeout(Duration::from_millis(700), behind.write(file, 0, &late)).await;
        assert!(write.is_err(), "{write:?}");
        cluster.network().partition("client", "node-0");
        // it fills all segments that there are
        let later = pattern(4_000, 2);
        for page in 0..200 {
            c.write(other, page * 4096, &later).await.unwrap();
        }
        let later = c.read(other).await.unwrap();
        cluster.sleep(slow).await;
        let usual = Duration::from_micros(20)..=Duration::from_millis(2);
        for other in ["node-1", "node-2"] {
            cluster.network().set_delay_between("node-0", other, usual.clone());
        }
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(10)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        assert!(c.read(other).await.unwrap() == later, "others' bytes");
        cluster.restart(0).await.unwrap();
        cluster.mirrored().await;
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

/// A node has done something, and its mirror knows of it; it dies before its answer has come.
fn an_answer_is_lost_with_its_node() {
    run(replicated(61), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = directory_in(&c, 0, "dir").await;
        let (name, _) = file_in(&c, dir, 0, "f").await;
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition_one_way("node-0", "client");
        let unlinking = {
            let c = c.clone();
            spawn_local(async move { c.unlink(dir, &name).await })
        };
        cluster.sleep(Duration::from_millis(200)).await;
        cluster.crash(0).await;
        cluster.network().heal_all();
        assert_eq!(unlinking.await.unwrap(), Ok(()));
    });
}

/// A node comes back without its pool before others have missed it.
fn a_node_comes_back_with_an_empty_pool() {
    run(replicated(67), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"contents").await;
        cluster.crash(0).await;
        cluster.new_pool(0);
        if cluster.restart(0).await.is_ok() {
            cluster.sleep(Duration::from_secs(5)).await;
            if let Some(node) = cluster.deposed() {
                assert!(cluster.ended(node).await.is_err());
            }
        }
        assert_eq!(c.read(file).await.as_deref(), Ok(b"contents".as_slice()));
    });
}

/// A node dies before it knows that its copy has become a mirror, and comes back when that has taken its place.
fn a_node_comes_back_that_does_not_know_of_its_mirror() {
    run(replicated(71), async |cluster| {
        let (c, behind) = (Caller::new(cluster, "client"), Caller::new(cluster, "behind"));
        let file = file_of_node_0(cluster, &c, b"before").await;
        assert_eq!(behind.read(file).await.unwrap(), b"before");
        let copy = cluster.copy_of_pool(0);
        cluster.mirrored().await;
        cluster.crash(0).await;
        c.write(file, 0, b"after!").await.unwrap();
        cluster.set_back(0, &copy);
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
            cluster.network().partition("behind", other);
        }
        cluster.network().partition("client", "node-0");
        if cluster.restart(0).await.is_ok() {
            let read = timeout(Duration::from_secs(3), behind.read(file)).await;
            assert!(
                !matches!(read, Ok(Ok(bytes)) if bytes == b"before"),
                "that was long ago"
            );
            cluster.crash(0).await;
        }
        cluster.network().heal_all();
        assert_eq!(c.read(file).await.unwrap(), b"after!");
    });
}

/// What a file holds is what was written last, also at who was away so long that nobody knows what it lacks.
fn a_mirror_has_missed_too_much() {
    let options = ClusterOptions {
        backlog_max: Some(0),
        ..replicated(47)
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, &pattern(4096, 1)).await;
        let mirror = cluster.map().region(file.ino.region()).unwrap().replicas[1].node.0;
        cluster.crash(mirror).await;
        cluster.sleep(Duration::from_secs(3)).await;
        c.write(file, 0, &pattern(4096, 2)).await.unwrap();
        cluster.restart(mirror).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.mirrored().await;
        cluster.crash(0).await;
        let found = c.read(file).await.unwrap();
        assert!(found == pattern(4096, 2), "it holds something else");
    });
}

/// Compares a region with its copies.
async fn scrub_copies(c: &Caller, region: RegionId) {
    let mut place = Some(CopyPlace::default());
    while let Some(from) = place {
        let step = c.ask(region, ask::ScrubCopies { region, from }).await.unwrap();
        place = step.next;
    }
}

/// What was done to an inode is not undone when the inode is repaired.
fn an_inode_is_damaged_that_has_just_changed() {
    run(replicated(48), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let file = file_of_node_0(cluster, &c, b"contents").await;
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(2)).await;
        let mode = SetAttr {
            mode: Some(0o751),
            ..SetAttr::default()
        };
        c.set(file, mode).await.unwrap();
        let slot = RegionOffset(file.ino.slot() * INODE_SIZE as u64);
        let at = cluster.place(0, Gpa::new(file.ino.region(), slot)) + 8;
        let pmem = cluster.pmem(0).clone();
        pmem.write_u64(at, pmem.read_u64(at) ^ 1);
        scrub_copies(&c, file.ino.region()).await;
        // what is kept in memory is no witness
        cluster.crash(0).await;
        cluster.restart(0).await.unwrap();
        assert_eq!(c.attr(file).await.unwrap().mode, 0o751);
    });
}

/// A file is what it was, after damage of what its node has of it.
fn file_data_is_damaged_at_a_primary() {
    run(replicated(49), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let contents = pattern(PAGE, 3);
        let file = file_of_node_0(cluster, &c, &contents).await;
        let region = file.ino.region();
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(2)).await;
        let pmem = cluster.pmem(0).clone();
        let mut page = vec![0; PAGE];
        let segments = cluster.segments(0, region, true).into_iter();
        let mut pages = segments.flat_map(|(at, len)| (at..at + len).step_by(PAGE));
        let holds = |at: &u64| {
            pmem.read(*at, &mut page);
            page == contents
        };
        let at = pages.find(holds).expect("it has data");
        pmem.write_u64(at + 64, !pmem.read_u64(at + 64));
        scrub_copies(&c, region).await;
        cluster.crash(0).await;
        assert!(c.read(file).await.unwrap() == contents, "it holds something else");
    });
}
