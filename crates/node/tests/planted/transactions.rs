//! Transactions: what is locked, decided, dispatched and forgotten, with and without mirrors.

use super::*;

#[test]
fn locks_released_before_the_bytes_are_written() {
    caught(Planted::LocksReleasedFirst, others_meanwhile);
}

#[test]
fn a_transaction_forgotten_before_it_is_decided() {
    caught(Planted::ForgottenBeforeDecided, a_slow_coordinator);
}

#[test]
fn what_came_later_overwritten_by_a_second_dispatch() {
    caught(Planted::DispatchedTwice, a_coordinator_comes_back);
}

#[test]
fn an_ended_session_that_is_served() {
    caught(Planted::EndedSessionServed, a_session_ends_while_it_waits);
}

#[test]
fn an_ended_session_for_which_a_file_is_opened() {
    caught(Planted::EndedSessionServed, a_session_ends_before_its_file_is_made);
}

#[test]
fn a_decision_that_no_mirror_knows_of() {
    caught(Planted::DecisionsUnnoted, a_coordinator_is_succeeded);
}

#[test]
fn locks_that_no_mirror_knows_of() {
    caught(Planted::CollectedUnmirrored, a_participant_dies_that_has_collected);
}

#[test]
fn a_part_that_no_mirror_has_when_its_decision_is_retired() {
    caught(Planted::RetiredUnmirrored, a_participant_dies_that_has_its_part);
}

#[test]
fn a_replaced_coordinator_that_can_still_write() {
    caught(Planted::DeposedNotFenced, a_dispatch_is_late);
}

#[test]
fn a_copy_that_has_not_heard_of_earlier_decisions() {
    caught(Planted::EarlierDecisionsUnnoted, a_coordinator_dies_twice);
}

/// The coordinator of a rename dies when it has decided, and others take its place.
fn a_coordinator_is_succeeded() {
    run(replicated(41), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let (stage, asking) = stopped_at(cluster, &c, Phase::Decided).await;
        cluster.crash(0).await;
        assert_eq!(asking.await.unwrap(), Ok(()));
        // until it is missed
        cluster.sleep(Duration::from_secs(4)).await;
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A rename from a directory in region 1, of node 1 with its mirror at node 2, to one of node 0, which coordinates: in region 0, with
/// its mirror at node 1, or in region 3, with its mirror at node 2.
async fn stage(c: &Caller, coordinator: u16) -> Stage {
    stage_in(c, coordinator, 1).await
}

/// A rename of a file in region 1 from a directory in region `old` to one in region `new`.
async fn stage_in(c: &Caller, new: u16, old: u16) -> Stage {
    let (old_dir, new_dir) = (directory_in(c, old, "old").await, directory_in(c, new, "new").await);
    let (name, file) = file_in(c, old_dir, 1, "f").await;
    c.rename(old_dir, &name, old_dir, "source").await.unwrap();
    // everybody knows where everything lies
    let (name, _) = file_in(c, old_dir, 1, "g").await;
    c.rename(old_dir, &name, new_dir, "first").await.unwrap();
    Stage { old_dir, new_dir, file }
}

fn rename(c: &Caller, stage: Stage) -> JoinHandle<Result<(), FsError>> {
    let c = c.clone();
    spawn_local(async move { c.rename(stage.old_dir, "source", stage.new_dir, "dest").await })
}

async fn coordinator_stops(cluster: &Cluster) {
    while !cluster.node(0).coordinator_has_stopped() {
        cluster.sleep(Duration::from_millis(1)).await;
    }
}

/// The rename of a stage, by when node 0 has decided it and goes no further.
async fn decided(cluster: &Cluster, c: &Caller, stage: Stage) -> JoinHandle<Result<(), FsError>> {
    cluster.rest().await;
    cluster.sleep(Duration::from_secs(1)).await;
    cluster.node(0).stop_coordinator_at(Phase::Decided);
    let renaming = rename(c, stage);
    coordinator_stops(cluster).await;
    renaming
}

/// A participant that nobody with a copy can hear is asked to collect, and dies.
fn a_participant_dies_that_has_collected() {
    run(replicated(43), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage(&c, 0).await;
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(1)).await;
        cluster.network().partition("node-1", "node-2");
        let renaming = rename(&c, stage);
        cluster.sleep(Duration::from_millis(600)).await;
        cluster.crash(1).await;
        cluster.network().heal_all();
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_secs(4)).await;
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A participant has got its part, of which nobody with a copy can hear, and dies.
fn a_participant_dies_that_has_its_part() {
    run(replicated(47), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage(&c, 0).await;
        let renaming = decided(cluster, &c, stage).await;
        cluster.network().partition("node-1", "node-2");
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_millis(1000)).await;
        cluster.crash(1).await;
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(4)).await;
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A coordinator's writes to a participant arrive when others have taken its place, and done that in its stead.
fn a_dispatch_is_late() {
    // whether they come at a bad moment is a matter of when the network sends them again
    for seed in 78..84 {
        a_dispatch_is_late_by(seed);
    }
}

fn a_dispatch_is_late_by(seed: u64) {
    run(replicated(seed), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage(&c, 3).await;
        let renaming = decided(cluster, &c, stage).await;
        for other in ["node-1", "node-2"] {
            cluster.network().partition_one_way("node-0", other);
        }
        cluster.node(0).let_coordinator_go_on();
        cluster.sleep(Duration::from_millis(100)).await;
        cluster.network().partition("client", "node-0");
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_secs(4)).await;
        let later = c.create(stage.old_dir, "later").await.unwrap();
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(8)).await;
        let ended = cluster.ended(0).await;
        assert!(matches!(ended, Err(FsError::Deposed { .. })), "{ended:?}");
        cluster.restart(0).await.unwrap();
        cluster.mirrored().await;
        assert_eq!(c.find(stage.old_dir, "later").await, Ok(later));
        is_renamed(cluster, &c, stage).await;
    });
}

/// A coordinator dies when it has decided, comes back, makes a new copy of its region, and dies again before all participants have
/// their parts.
fn a_coordinator_dies_twice() {
    run(replicated(79), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let stage = stage_in(&c, 3, 5).await;
        let renaming = decided(cluster, &c, stage).await;
        cluster.crash(0).await;
        cluster.restart(0).await.unwrap();
        cluster.node(0).stop_coordinator_at(Phase::PartlyDispatched);
        // the copy counts no more, is made anew, and counts again
        cluster.sleep(Duration::from_millis(700)).await;
        cluster.mirrored().await;
        coordinator_stops(cluster).await;
        cluster.crash(0).await;
        assert_eq!(renaming.await.unwrap(), Ok(()));
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        is_renamed(cluster, &c, stage).await;
    });
}

/// A rename, coordinated by node 0, of a file on node 2 from a directory on node 1.
#[derive(Clone, Copy)]
struct Stage {
    old_dir: InodeRef,
    new_dir: InodeRef,
    file: InodeRef,
}

/// Sets the stage, begins the rename and waits until its coordinator has stopped at that phase.
async fn stopped_at(cluster: &Cluster, c: &Caller, phase: Phase) -> (Stage, JoinHandle<Result<(), FsError>>) {
    let old_dir = c.directory_at(cluster, 1, "old").await;
    let new_dir = c.directory_at(cluster, 0, "new").await;
    let (name, file) = c.file_at(cluster, old_dir, 2, "f").await;
    c.rename(old_dir, &name, old_dir, "source").await.unwrap();
    cluster.rest().await;
    cluster.node(0).stop_coordinator_at(phase);
    let stage = Stage { old_dir, new_dir, file };
    let asking = {
        let c = c.clone();
        spawn_local(async move { c.rename(old_dir, "source", new_dir, "dest").await })
    };
    for _ in 0..10_000 {
        if cluster.node(0).coordinator_has_stopped() {
            return (stage, asking);
        }
        cluster.sleep(Duration::from_micros(200)).await;
    }
    panic!("the coordinator did not stop");
}

async fn is_renamed(cluster: &Cluster, c: &Caller, stage: Stage) {
    cluster.rest().await;
    assert_eq!(c.find(stage.new_dir, "dest").await, Ok(stage.file));
    assert_eq!(c.find(stage.old_dir, "source").await, Err(FsError::NotFound));
    assert_eq!(cluster.check(), Vec::<String>::new());
}

/// While one part is being dispatched, others change the inodes that are let go.
fn others_meanwhile() {
    run(options(3), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (stage, asking) = stopped_at(cluster, &c, Phase::PartlyDispatched).await;
        let touching = [stage.old_dir, stage.file].map(|inode| {
            let c = c.clone();
            spawn_local(async move { c.set(inode, mode(0o700)).await })
        });
        cluster.sleep(Duration::from_millis(200)).await;
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        for touched in touching {
            assert_eq!(touched.await.unwrap().unwrap().mode, 0o700);
        }
        is_renamed(cluster, &c, stage).await;
    });
}

/// Participants get impatient and ask how it stands.
fn a_slow_coordinator() {
    run(options(5), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (stage, asking) = stopped_at(cluster, &c, Phase::Collected).await;
        cluster.sleep(Duration::from_secs(3)).await;
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        is_renamed(cluster, &c, stage).await;
    });
}

/// A coordinator dies when one participant has its part; that one goes on.
fn a_coordinator_comes_back() {
    run(options(7), async |cluster| {
        let c = Caller::new(cluster, "client");
        let (stage, asking) = stopped_at(cluster, &c, Phase::PartlyDispatched).await;
        // the part that is under way arrives
        cluster.sleep(Duration::from_millis(100)).await;
        cluster.crash(0).await;
        assert_eq!(asking.await.unwrap(), Ok(()), "it was answered at the decision");
        // which one it is depends on the numbers of their regions
        let created = c.create(stage.old_dir, "meanwhile").await;
        let set = c.set(stage.file, mode(0o700)).await;
        assert!(created.is_ok() != set.is_ok(), "{created:?}, {set:?}");
        cluster.restart(0).await.unwrap();
        cluster.rest().await;
        match created {
            Ok(made) => assert_eq!(c.find(stage.old_dir, "meanwhile").await, Ok(made)),
            Err(_) => assert_eq!(c.attr(stage.file).await.unwrap().mode, 0o700),
        }
        is_renamed(cluster, &c, stage).await;
    });
}

/// A session waits for an inode that a transaction holds, and ends before it gets it.
fn a_session_ends_while_it_waits() {
    run(options(9), async |cluster| {
        let (c, leaving) = (Caller::new(cluster, "client"), Caller::new(cluster, "leaving"));
        let (stage, asking) = stopped_at(cluster, &c, Phase::Collected).await;
        let link = leaving.links.to(NodeId(2)).await.unwrap();
        let opening = {
            let request = Request::Open { inode: stage.file };
            let (link, call) = (link.clone(), leaving.links.make_call(Cred::Kernel, request));
            spawn_local(async move { link.call(&call).await })
        };
        cluster.sleep(Duration::from_millis(100)).await;
        let detach = leaving.links.make_call(Cred::Kernel, Request::Detach);
        assert_eq!(link.call(&detach).await, Ok(Reply::Done));
        cluster.node(0).let_coordinator_go_on();
        assert_eq!(asking.await.unwrap(), Ok(()));
        let _answer = opening.await.unwrap();
        is_renamed(cluster, &c, stage).await;
        c.unlink(stage.new_dir, "dest").await.unwrap();
        assert_eq!(c.attr(stage.file).await, Err(FsError::Stale), "nobody holds it");
    });
}

/// A session makes a file and has it open, in another region of the node that coordinates; it ends while that node waits for somebody with
/// a token of the directory.
fn a_session_ends_before_its_file_is_made() {
    let other = RegionSet {
        replicas: 1,
        durability: Durability::Async,
    };
    let options = ClusterOptions {
        sets: vec![other],
        ..options(10)
    };
    run(options, async |cluster| {
        let [c, silent] = ["client", "silent"].map(|name| Caller::new(cluster, name));
        let leaving = Caller::at_home(cluster, "leaving", 1);
        let dir = c.directory_at(cluster, 1, "dir").await;
        set_xattr(&c, dir, "polvo.regions", b"durability=async").await;
        set_xattr(&c, dir, "polvo.placement", b"local").await;
        let before = leaving.create(dir, "before").await.unwrap();
        assert!(primary(cluster, before) == 1 && before.ino.region() != dir.ino.region());
        let inodes = async || c.ask_node(1, ask::Usage).await.unwrap().inodes;
        let count = inodes().await;
        cluster.rest().await;
        let token = ask::TakeTokens { inodes: vec![dir] };
        let tokens = silent.ask_node(1, token).await.unwrap().tokens;
        assert!(tokens[0].is_some(), "nobody asks for it");
        let link = leaving.links.to(NodeId(1)).await.unwrap();
        let making = {
            let create = ask::Create {
                dir,
                name: b"made".to_vec(),
                file: new_file(FileKind::File, 0o644),
                open: true,
            };
            let (link, call) = (link.clone(), leaving.links.make_call(Cred::Kernel, create));
            spawn_local(async move { link.call(&call).await })
        };
        cluster.sleep(Duration::from_millis(300)).await;
        assert!(!making.is_finished(), "it is asked for the token");
        let detach = leaving.links.make_call(Cred::Kernel, Request::Detach);
        assert_eq!(link.call(&detach).await, Ok(Reply::Done));
        cluster.sleep(cluster.timeouts().token * 2).await;
        let _answer = making.await.unwrap();
        if c.find(dir, "made").await.is_ok() {
            c.unlink(dir, "made").await.unwrap();
        }
        cluster.rest().await;
        assert_eq!(inodes().await, count, "nobody holds it");
    });
}
