//! Nodes are added to a cluster that has files, and get their share of it.

use crate::common::*;
use polvo_cluster::{MovedCopy, spread_copies};
use polvo_format::{NodeId, RegionId};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

fn options(seed: u64, nodes: u16, replicas: u8) -> ClusterOptions {
    ClusterOptions {
        seed,
        nodes,
        replicas,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

/// Asks until it is done; of whoever serves the region by then. That a node is there again others notice within two seconds.
async fn move_copy(c: &Caller, cluster: &Cluster, moved: MovedCopy) -> Result<(), FsError> {
    let MovedCopy { region, from, to } = moved;
    let since = Instant::now();
    loop {
        let primary = cluster.newest_map().unwrap().primary(region).unwrap();
        match c.ask_node(primary.0, ask::MoveCopy { region, from, to }).await {
            Err(FsError::Unreachable { .. }) if since.elapsed() < Duration::from_secs(5) => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(FsError::Retry) => sleep(Duration::from_millis(50)).await,
            done => return done,
        }
    }
}

/// Until nodes have equally many copies.
async fn spread(c: &Caller, cluster: &Cluster) -> usize {
    let map = cluster.newest_map().unwrap();
    let moves = spread_copies(&map, &map.nodes.iter().map(|node| node.id).collect());
    for one in &moves {
        move_copy(c, cluster, *one).await.unwrap();
    }
    moves.len()
}

/// Adds a node, which is started before that, or right afterwards, when others have not heard of it yet.
async fn add(c: &Caller, cluster: &mut Cluster, comes_first: bool) -> u16 {
    let info = cluster.new_host();
    let id = info.id;
    if comes_first {
        cluster.restart(id.0).await.unwrap();
        cluster.sleep(Duration::from_secs(25)).await;
        let map = cluster.node(id.0).map();
        assert!(
            map.epoch.0 > 1 && map.node(id).is_none(),
            "it has heard of the others' map"
        );
        cluster.crash(id.0).await;
        cluster.restart(id.0).await.unwrap();
        cluster.sleep(Duration::from_secs(25)).await;
        assert!(cluster.is_running(id.0), "it is not one that was removed");
    }
    let map = c.ask_node(0, ask::AddNode(Box::new(info.clone()))).await.unwrap();
    assert_eq!(map.node(id), Some(&info));
    if !comes_first {
        cluster.restart(id.0).await.unwrap();
    }
    id.0
}

fn replicas(map: &ClusterMap, region: RegionId) -> BTreeSet<NodeId> {
    let info = map.region(region).unwrap();
    info.replicas.iter().map(|replica| replica.node).collect()
}

/// Files and what they hold.
type Files = Vec<(InodeRef, Vec<u8>)>;

/// Files are written all the time, of which each is there afterwards; no operation fails or waits for long.
fn worker(cluster: &Cluster, dir: InodeRef) -> JoinHandle<(Duration, Files)> {
    let c = Caller::new(cluster, "worker");
    spawn_local(async move {
        let (mut longest, mut made) = (Duration::ZERO, Vec::new());
        for i in 0..600u64 {
            let since = Instant::now();
            let file = c.create(dir, &format!("w{i}")).await.unwrap();
            let bytes = pattern(100 + 7 * i as usize % 3_900, i);
            c.write(file, 0, &bytes).await.unwrap();
            made.push((file, bytes));
            longest = longest.max(since.elapsed());
            sleep(Duration::from_millis(5)).await;
        }
        (longest, made)
    })
}

async fn all_there(c: &Caller, made: &[(InodeRef, Vec<u8>)]) {
    for (i, (file, bytes)) in made.iter().enumerate() {
        assert_eq!(&c.read(*file).await.unwrap(), bytes, "file {i}");
    }
}

#[test]
fn a_new_node_gets_copies_while_clients_work_and_others_die_afterwards() {
    for (seed, nodes, copies) in [(1, 3, 2), (2, 3, 3), (3, 2, 2)] {
        run(options(seed, nodes, copies), async move |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let dir = c.mkdir(ROOT, "dir").await.unwrap();
            let worker = worker(cluster, dir);
            let new = add(&c, cluster, seed == 2).await;
            let before = cluster.newest_map().unwrap();
            let moves = spread(&c, cluster).await;
            assert!(moves > 0);
            let map = cluster.newest_map().unwrap();
            for info in &map.regions {
                assert_eq!(info.replicas.len(), usize::from(copies), "{info:?}");
                assert_eq!(info.primary(), before.primary(info.id));
            }
            let its: Vec<RegionId> = (map.regions.iter())
                .filter(|info| info.role(NodeId(new)) == Some(ReplicaRole::Mirror))
                .map(|info| info.id)
                .collect();
            assert_eq!(its.len(), moves);
            // and it serves some of them
            let (region, primary) = (its[0], map.primary(its[0]).unwrap());
            loop {
                let to = NodeId(new);
                match c.ask_node(primary.0, ask::HandOver { region, to }).await {
                    Err(FsError::Retry) => sleep(Duration::from_millis(100)).await,
                    done => break done.unwrap(),
                }
            }
            // who has never asked the mirrors anything gives them the time to answer
            for _ in 0..300 {
                let map = cluster.newest_map().unwrap();
                let role = map.region(region).unwrap().role(primary);
                assert_eq!(role, Some(ReplicaRole::Mirror), "no copy fewer");
                sleep(Duration::from_millis(1)).await;
            }
            let (longest, made) = worker.await.unwrap();
            assert!(longest < Duration::from_millis(300), "{longest:?}");
            cluster.mirrored().await;
            settle(cluster).await;
            all_there(&c, &made).await;
            // the others give back what they have no copy of any more
            cluster.sleep(Duration::from_secs(12)).await;
            let map = cluster.newest_map().unwrap();
            for node in 0..cluster.nodes() {
                let held: BTreeSet<RegionId> = cluster.copies(node).into_iter().collect();
                for region in held {
                    assert!(replicas(&map, region).contains(&NodeId(node)), "{region:?} at {node}");
                }
            }
            // a node that was there before dies, and the new one has what that had
            if nodes > 2 {
                cluster.crash(primary.0).await;
                all_there(&c, &made).await;
                cluster.restart(primary.0).await.unwrap();
                cluster.sleep(Duration::from_secs(5)).await;
            }
            cluster.rest().await;
            cluster.mirrored().await;
            assert_eq!(cluster.check(), Vec::<String>::new());
            cluster.compare_mirrors().unwrap();
        });
    }
}

#[test]
fn a_cluster_that_grows_to_three_nodes_has_three_that_vote() {
    run(options(5, 2, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let file = c.create(dir, "f").await.unwrap();
        c.write(file, 0, b"contents").await.unwrap();
        assert_eq!(cluster.newest_map().unwrap().voters.now().count(), 1);
        add(&c, cluster, false).await;
        spread(&c, cluster).await;
        // nodes look for each other every ten seconds
        cluster.sleep(Duration::from_secs(30)).await;
        let map = cluster.newest_map().unwrap();
        assert!(map.voters.now().eq([0, 1, 2].map(NodeId)), "{:?}", map.voters);
        // the one that has voted alone dies
        cluster.crash(0).await;
        assert_eq!(c.read(file).await.unwrap(), b"contents");
        c.write(file, 0, b"changed!").await.unwrap();
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        assert_eq!(c.read(file).await.unwrap(), b"changed!");
    });
}

#[test]
fn a_node_that_makes_no_sense_is_not_added() {
    run(options(6, 3, 2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let user = c.as_user(user(1));
        let info = cluster.new_host();
        let ask_add = |info: &NodeInfo| ask::AddNode(Box::new(info.clone()));
        assert_eq!(user.ask_node(0, ask_add(&info)).await, Err(FsError::NotPermitted));
        let why = async |change: &dyn Fn(&mut NodeInfo)| {
            let mut other = info.clone();
            change(&mut other);
            c.ask_node(0, ask_add(&other)).await.unwrap_err().to_string()
        };
        assert!(why(&|info| info.id = NodeId(1)).await.contains("there is one already"));
        assert!(why(&|info| info.addresses.clear()).await.contains("0 addresses"));
        let at_node_1 = cluster.map().node(NodeId(1)).unwrap().addresses.clone();
        assert!(
            why(&|info| info.addresses = at_node_1.clone())
                .await
                .contains("node 1 has one of its addresses")
        );
        assert_eq!(cluster.newest_map().unwrap().nodes.len(), 3);
        // twice is once
        for _ in 0..2 {
            c.ask_node(1, ask_add(&info)).await.unwrap();
        }
        assert_eq!(cluster.newest_map().unwrap().nodes.len(), 4);
        // nothing is lost where it never comes
        let (region, to) = (RegionId(0), info.id);
        let from = replicas(cluster.map(), region).into_iter().max();
        let moved = c.ask_node(0, ask::MoveCopy { region, from, to }).await;
        assert!(matches!(moved, Err(FsError::Unreachable { .. })), "{moved:?}");
        assert_eq!(cluster.newest_map().unwrap().region(region).unwrap().replicas.len(), 2);
        // it comes, is removed, and its number is not used again
        cluster.restart(info.id.0).await.unwrap();
        cluster.sleep(Duration::from_secs(12)).await;
        while c
            .ask_node(
                0,
                ask::RemoveNode {
                    node: info.id,
                    force: false,
                },
            )
            .await
            .unwrap()
            .is_some()
        {}
        let again = c.ask_node(0, ask_add(&info)).await.unwrap_err().to_string();
        assert!(again.contains("there was one of this number before"), "{again}");
        assert_eq!(
            cluster.ended(info.id.0).await,
            Err(FsError::Removed { node: info.id.0 })
        );
    });
}

/// Names are made, moved to other directories and removed all the time, with everything in one region or in several; what took
/// longest is told.
fn rover(cluster: &Cluster, number: u64, dirs: Vec<InodeRef>, stop: Rc<Cell<bool>>) -> JoinHandle<(Duration, String)> {
    let c = Caller::new(cluster, &format!("rover-{number}"));
    let begun = Instant::now();
    spawn_local(async move {
        let mut rng = Rng::new(number);
        let mut longest = (Duration::ZERO, String::new());
        let mut i = 0;
        while !stop.get() {
            let (from, to) = (
                rng.roll(dirs.len() as u64) as usize,
                rng.roll(dirs.len() as u64) as usize,
            );
            let name = format!("{number}-{i}");
            for step in 0..4 {
                let since = Instant::now();
                match step {
                    0 => drop(c.create(dirs[from], &name).await.unwrap()),
                    1 => c
                        .rename(dirs[from], &name, dirs[to], &format!("{name}-moved"))
                        .await
                        .unwrap(),
                    2 => drop(c.find(dirs[to], &format!("{name}-moved")).await.unwrap()),
                    _ => c.unlink(dirs[to], &format!("{name}-moved")).await.unwrap(),
                }
                if since.elapsed() > longest.0 {
                    let what = ["create", "rename", "lookup", "unlink"][step];
                    longest = (since.elapsed(), format!("{what} at {:?}", since - begun));
                }
            }
            i += 1;
            sleep(Duration::from_millis(1)).await;
        }
        longest
    })
}

/// Others serve all that a node has served, and have its copies.
async fn leave(c: &Caller, cluster: &Cluster, node: NodeId) {
    loop {
        let map = cluster.newest_map().unwrap();
        let Some(info) = map.regions.iter().find(|info| info.role(node).is_some()) else {
            return;
        };
        let region = info.id;
        let done = match info.primary() {
            Some(primary) if primary == node => {
                let mirror = info.replicas.iter().find(|replica| replica.role == ReplicaRole::Mirror);
                match mirror {
                    Some(mirror) => {
                        c.ask_node(
                            node.0,
                            ask::HandOver {
                                region,
                                to: mirror.node,
                            },
                        )
                        .await
                    }
                    None => Err(FsError::Retry),
                }
            }
            _ => {
                let without = map.nodes.iter().find(|other| info.role(other.id).is_none());
                let (from, to) = (Some(node), without.unwrap().id);
                move_copy(c, cluster, MovedCopy { region, from, to }).await
            }
        };
        match done {
            Ok(()) | Err(FsError::Retry | FsError::WrongEpoch) => sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn nobody_waits_for_a_node_that_is_left_and_removed() {
    for seed in 0..8 {
        run(options(200 + seed, 4, 2), async move |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let mut dirs = Vec::new();
            for node in 0..4 {
                dirs.push(c.directory_at(cluster, node, "dir").await);
            }
            let stop = Rc::new(Cell::new(false));
            let rovers: Vec<_> = (0..6)
                .map(|number| rover(cluster, seed * 10 + number, dirs.clone(), stop.clone()))
                .collect();
            let victim = NodeId(1 + (seed % 3) as u16);
            leave(&c, cluster, victim).await;
            while c
                .ask_node(
                    0,
                    ask::RemoveNode {
                        node: victim,
                        force: false,
                    },
                )
                .await
                .unwrap()
                .is_some()
            {
                sleep(Duration::from_millis(500)).await;
            }
            cluster.sleep(Duration::from_secs(20)).await;
            stop.set(true);
            for rover in rovers {
                // what they wait for each other takes up to half a second
                let (longest, what) = rover.await.unwrap();
                assert!(
                    longest < Duration::from_millis(600),
                    "seed {seed}: {longest:?} for a {what}"
                );
            }
            assert_eq!(cluster.ended(victim.0).await, Err(FsError::Removed { node: victim.0 }));
        });
    }
}

/// Whoever dies in the middle of a move: the region goes on with a copy more or as many as before, and the move can be taken up.
#[test]
fn nodes_die_while_a_copy_moves() {
    for seed in 0..12 {
        run(options(100 + seed, 3, 2), async move |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            let dir = c.mkdir(ROOT, "dir").await.unwrap();
            let mut made = Vec::new();
            for i in 0..40 {
                let file = c.create(dir, &format!("f{i}")).await.unwrap();
                let bytes = pattern(4_000, i);
                c.write(file, 0, &bytes).await.unwrap();
                made.push((file, bytes));
            }
            let new = add(&c, cluster, seed % 2 == 0).await;
            let map = cluster.newest_map().unwrap();
            let moves = spread_copies(&map, &map.nodes.iter().map(|node| node.id).collect());
            let one = moves[seed as usize % moves.len()];
            let primary = map.primary(one.region).unwrap();
            let victim = [primary, one.from.unwrap(), NodeId(new)][seed as usize % 3];
            let asking = {
                let c = Caller::new(cluster, "operator");
                let ask = ask::MoveCopy {
                    region: one.region,
                    from: one.from,
                    to: one.to,
                };
                spawn_local(async move {
                    for _ in 0..200 {
                        match c.ask_node(primary.0, ask.clone()).await {
                            Err(FsError::Retry) => sleep(Duration::from_millis(1)).await,
                            _ => return,
                        }
                    }
                })
            };
            sleep(Duration::from_micros(600 * seed)).await;
            cluster.crash(victim.0).await;
            all_there(&c, &made).await;
            asking.abort();
            cluster.restart(victim.0).await.unwrap();
            cluster.sleep(Duration::from_secs(5)).await;
            cluster.mirrored().await;
            spread(&c, cluster).await;
            cluster.mirrored().await;
            let map = cluster.newest_map().unwrap();
            assert!(map.regions.iter().all(|info| info.replicas.len() == 2), "{map:?}");
            all_there(&c, &made).await;
            cluster.rest().await;
            cluster.mirrored().await;
            assert_eq!(cluster.check(), Vec::<String>::new());
            cluster.compare_mirrors().unwrap();
        });
    }
}
