//! The cluster map that nodes keep together: changes take effect once and one after the other, whoever makes them and whatever dies;
//! nobody forgets what it has promised; in the end all go by one map.

use crate::common::*;
use polvo_cluster::Timeouts;
use polvo_consensus::Voters;
use polvo_consensus::register::{Answer, Ask, Ballot};
use polvo_format::{Epoch, NodeId};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::{ClusterMap, Cred, FsError, MAP_BYTES_MAX, Reply, Request, ask};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::Instant;

fn with_nodes(nodes: u16, seed: u64, test: impl AsyncFnOnce(&mut Cluster)) {
    let options = ClusterOptions {
        seed,
        nodes,
        regions_per_node: 1,
        pool_bytes: 16 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    };
    run(options, test);
}

/// Time for nodes to hear of each other's maps.
async fn meet(cluster: &Cluster) {
    cluster.sleep(Duration::from_secs(25)).await;
}

fn host(node: u16) -> String {
    format!("node-{node}")
}

/// Adds a mark to the entry of node 0, unless it is there.
fn marked(map: &ClusterMap, mark: &str) -> Option<ClusterMap> {
    let mut next = map.clone();
    let addresses = &mut next.nodes[0].addresses;
    if addresses.iter().any(|there| there == mark) {
        return None;
    }
    addresses.push(mark.into());
    Some(next)
}

fn marks(map: &ClusterMap) -> Vec<String> {
    let addresses = map.nodes[0].addresses.iter();
    let mut marks: Vec<String> = addresses.filter(|a| a.starts_with("mark")).cloned().collect();
    marks.sort();
    marks
}

async fn change(cluster: &Cluster, node: u16, mark: &str) -> Result<Arc<ClusterMap>, FsError> {
    let node = cluster.node(node).clone();
    let links = node.new_links();
    node.change_map(&links, |map| marked(map, mark)).await
}

async fn confirm(cluster: &Cluster, node: u16) -> Result<Arc<ClusterMap>, FsError> {
    let node = cluster.node(node).clone();
    node.confirm_map(&node.new_links()).await
}

/// Every change was made from the one before, once.
fn is_consistent(map: &ClusterMap) {
    let mut marks = marks(map);
    let count = marks.len();
    marks.dedup();
    assert_eq!(marks.len(), count, "a change took effect twice");
    assert_eq!(map.epoch, Epoch(1 + count as u64), "epochs grow by one: {marks:?}");
}

type Spoil = fn(&mut ClusterMap);

fn voters(ids: &[u16]) -> Voters {
    Voters::new(ids.iter().copied().map(NodeId))
}

#[test]
fn changes_by_all_nodes_at_once_take_effect_once_each() {
    for seed in 0..8 {
        with_nodes(5, seed, async |cluster| {
            let changing: Vec<_> = (0..5u16)
                .map(|number| {
                    let node = cluster.node(number).clone();
                    let links = node.new_links();
                    spawn_local(async move {
                        let mut epochs = Vec::new();
                        for round in 0..4 {
                            let mark = format!("mark {number}.{round}");
                            let chosen = node.change_map(&links, |map| marked(map, &mark)).await.unwrap();
                            assert!(marks(&chosen).contains(&mark));
                            assert!(node.map().epoch >= chosen.epoch, "it goes by what it has made");
                            epochs.push(chosen.epoch);
                        }
                        epochs
                    })
                })
                .collect();
            for changed in changing {
                assert!(changed.await.unwrap().is_sorted_by(|a, b| a < b));
            }
            let map = confirm(cluster, 0).await.unwrap();
            assert_eq!(marks(&map).len(), 20);
            is_consistent(&map);
            meet(cluster).await;
            for node in 0..5 {
                assert_eq!(*cluster.node(node).map(), *map, "node {node}");
            }
            // clients hear of it, too
            let client = Caller::new(cluster, "client");
            client.create(ROOT, "file").await.unwrap();
            assert_eq!(client.links.context().map().epoch(), map.epoch);
        });
    }
}

#[test]
fn a_minority_of_the_voters_may_be_dead_and_a_majority_may_not() {
    with_nodes(5, 1, async |cluster| {
        cluster.crash(1).await;
        cluster.crash(3).await;
        change(cluster, 0, "mark 1").await.unwrap();
        cluster.crash(4).await;
        let start = Instant::now();
        let error = change(cluster, 2, "mark 2").await.unwrap_err();
        let took = start.elapsed();
        assert!(took <= Timeouts::MAP_CHANGE + Timeouts::ASIDE, "{took:?}");
        let text = error.to_string();
        assert_eq!(error.errno(), 5);
        assert!(
            ["no majority", "node 1:", "node 3:", "node 4:"]
                .iter()
                .all(|part| text.contains(part)),
            "{text}"
        );
        assert!(!text.contains("node 0:") && !text.contains("node 2:"), "{text}");
        let error = confirm(cluster, 0).await.unwrap_err();
        assert!(error.to_string().contains("no majority"), "{error}");
        cluster.restart(3).await.unwrap();
        let map = change(cluster, 3, "mark 3").await.unwrap();
        // the second one may have taken effect, or may not
        assert!(marks(&map).contains(&"mark 1".into()) && marks(&map).contains(&"mark 3".into()));
        is_consistent(&map);
        cluster.restart(1).await.unwrap();
        cluster.restart(4).await.unwrap();
        meet(cluster).await;
        for node in 0..5 {
            assert_eq!(*cluster.node(node).map(), *map, "node {node}");
        }
    });
}

#[test]
fn of_two_nodes_one_votes() {
    with_nodes(2, 2, async |cluster| {
        assert_eq!(cluster.map().voters, voters(&[0]));
        change(cluster, 1, "mark 1").await.unwrap();
        cluster.crash(1).await;
        change(cluster, 0, "mark 2").await.unwrap();
        cluster.restart(1).await.unwrap();
        meet(cluster).await;
        assert_eq!(cluster.node(1).map().epoch, Epoch(3));
        cluster.crash(0).await;
        let error = change(cluster, 1, "mark 3").await.unwrap_err();
        assert!(error.to_string().contains("node 0:"), "{error}");
        cluster.restart(0).await.unwrap();
        is_consistent(&change(cluster, 1, "mark 4").await.unwrap());
    });
    with_nodes(1, 3, async |cluster| {
        change(cluster, 0, "mark 1").await.unwrap();
        cluster.power_cut(0, 7).await;
        cluster.restart(0).await.unwrap();
        assert_eq!(marks(&cluster.node(0).map()), ["mark 1"]);
        is_consistent(&confirm(cluster, 0).await.unwrap());
    });
}

fn ballot(round: u64, by: u16) -> Ballot {
    let by = NodeId(by);
    Ballot { round, by }
}

/// Asks node `of` as node `by` would.
async fn asked(cluster: &Cluster, by: u16, of: u16, ask: Ask<ClusterMap>) -> Answer<ClusterMap> {
    let links = cluster.node(by).new_links();
    let register = ask::Register(Box::new(ask));
    let answer = links.call_node(NodeId(of), Cred::Kernel, register).await;
    *answer.unwrap()
}

#[test]
fn a_voter_that_loses_power_keeps_its_promise_and_what_it_has_accepted() {
    for seed in 0..40 {
        with_nodes(3, seed, async |cluster| {
            meet(cluster).await;
            let promised = asked(cluster, 0, 1, Ask::Promise(ballot(1000, 0))).await;
            assert!(matches!(promised, Answer::Promised(_, Some(_))), "{promised:?}");
            cluster.power_cut(1, seed).await;
            cluster.restart(1).await.unwrap();
            let late = asked(cluster, 2, 1, Ask::Promise(ballot(999, 2))).await;
            let Answer::Refused(_, higher) = late else {
                panic!("it has promised not to: {late:?}");
            };
            assert!(higher >= ballot(1000, 0), "its own, since, are higher: {higher:?}");

            let mut map = marked(cluster.map(), "mark").unwrap();
            map.epoch = Epoch(2);
            let accepted = asked(cluster, 0, 1, Ask::Accept(ballot(2000, 0), map.clone())).await;
            assert_eq!(accepted, Answer::Accepted(ballot(2000, 0)));
            cluster.power_cut(1, seed + 1).await;
            cluster.restart(1).await.unwrap();
            let found = asked(cluster, 2, 1, Ask::Promise(ballot(3000, 2))).await;
            let Answer::Promised(_, Some((by, there))) = found else {
                panic!("it has accepted a map: {found:?}");
            };
            // perhaps once more since, when it asked for the map after its start
            assert!(by >= ballot(2000, 0) && there == map, "{by:?} {there:?}");
        });
    }
}

#[test]
fn who_was_cut_off_follows_when_it_is_back() {
    for seed in 0..5 {
        with_nodes(5, seed, async |cluster| {
            meet(cluster).await;
            for other in 0..4 {
                cluster.network().partition(&host(4), &host(other));
            }
            let map = change(cluster, 1, "mark 1").await.unwrap();
            let error = change(cluster, 4, "mark 2").await.unwrap_err();
            assert!(error.to_string().contains("no majority"), "{error}");
            assert_eq!(cluster.node(4).map().epoch, Epoch(1));
            cluster.network().heal_all();
            meet(cluster).await;
            for node in 0..5 {
                assert_eq!(*cluster.node(node).map(), *map, "node {node}");
            }
            // it has it for good
            cluster.power_cut(4, seed).await;
            for other in 0..4 {
                cluster.network().partition(&host(4), &host(other));
            }
            cluster.restart(4).await.unwrap();
            assert_eq!(*cluster.node(4).map(), *map);
            cluster.network().heal_all();
            is_consistent(&change(cluster, 4, "mark 2").await.unwrap());
        });
    }
}

#[test]
fn a_node_that_does_not_vote_and_has_missed_changes_catches_up_at_its_start() {
    with_nodes(4, 4, async |cluster| {
        assert_eq!(cluster.map().voters, voters(&[0, 1, 2]));
        change(cluster, 3, "mark 1").await.unwrap();
        meet(cluster).await;
        cluster.stop(3).await;
        change(cluster, 0, "mark 2").await.unwrap();
        let map = change(cluster, 1, "mark 3").await.unwrap();
        cluster.restart(3).await.unwrap();
        // by what it has kept, until it has asked
        assert!(cluster.node(3).map().epoch >= Epoch(2));
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(*cluster.node(3).map(), *map);
        is_consistent(&map);
    });
}

#[test]
fn a_voter_that_is_away_for_long_is_replaced() {
    with_nodes(4, 5, async |cluster| {
        meet(cluster).await;
        assert_eq!(cluster.node(3).map().voters, voters(&[0, 1, 2]));
        cluster.crash(0).await;
        cluster.sleep(Duration::from_secs(40)).await;
        assert_eq!(cluster.node(1).map().voters, voters(&[0, 1, 2]), "it may come back");
        cluster.sleep(Duration::from_secs(60)).await;
        for node in 1..4 {
            assert_eq!(cluster.node(node).map().voters, voters(&[1, 2, 3]), "node {node}");
        }
        assert_eq!(cluster.node(1).map().epoch, Epoch(3));
        // it hears of it, and is none any more: one of the others may go
        cluster.restart(0).await.unwrap();
        cluster.crash(2).await;
        cluster.sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.node(0).map().voters, voters(&[1, 2, 3]));
        change(cluster, 0, "mark").await.unwrap();
        cluster.sleep(Duration::from_secs(100)).await;
        for node in [0, 1, 3] {
            assert_eq!(cluster.node(node).map().voters, voters(&[0, 1, 3]), "node {node}");
        }
    });
}

#[test]
fn voters_that_have_lost_a_map_are_not_believed() {
    with_nodes(4, 8, async |cluster| {
        meet(cluster).await;
        let copies = [0, 1].map(|node| cluster.copy_of_pool(node));
        change(cluster, 3, "mark 1").await.unwrap();
        meet(cluster).await;
        for node in [0, 1, 2] {
            cluster.stop(node).await;
        }
        for (node, copy) in (0..).zip(&copies) {
            cluster.set_back(node, copy);
            cluster.restart_accepting(node).await.unwrap();
        }
        let error = change(cluster, 3, "mark 2").await.unwrap_err();
        assert!(error.to_string().contains("epoch 1, and epoch 2 was chosen"), "{error}");
        assert_eq!(
            marks(&cluster.node(3).map()),
            ["mark 1"],
            "it goes on with what it knows"
        );
    });
}

#[test]
fn a_voter_that_cannot_read_what_it_has_promised_does_not_vote() {
    with_nodes(3, 10, async |cluster| {
        meet(cluster).await;
        cluster.crash(1).await;
        let pmem = cluster.pmem(1);
        let places = (0..pmem.len()).step_by(4096).filter(|at| {
            let mut magic = [0; 8];
            pmem.read(*at, &mut magic);
            magic == *b"PolvoReg"
        });
        let places: Vec<u64> = places.collect();
        assert_eq!(places.len(), 2);
        for at in places {
            pmem.write_u64(at + 64, !pmem.read_u64(at + 64));
            pmem.persist(at + 64, 8);
        }
        cluster.restart(1).await.unwrap();
        for (node, votes) in [(0, true), (1, false), (2, true)] {
            let status = Caller::new(cluster, "client").ask_node(node, Request::Status).await;
            let Ok(Reply::Json(status)) = status else {
                panic!("{status:?}");
            };
            assert!(status.contains(&format!("\"votes\":{votes}")), "node {node}: {status}");
        }
        let links = cluster.node(0).new_links();
        let ask = Request::Register(Box::new(Ask::Promise(ballot(1000, 0))));
        let answer = links.call_node(NodeId(1), Cred::Kernel, ask).await;
        assert!(matches!(answer, Err(FsError::Io(_))), "{answer:?}");
        // it serves, follows, and does not count
        Caller::new(cluster, "client").create(ROOT, "file").await.unwrap();
        let map = change(cluster, 0, "mark 1").await.unwrap();
        meet(cluster).await;
        assert_eq!(*cluster.node(1).map(), *map);
        cluster.crash(2).await;
        let error = change(cluster, 0, "mark 2").await.unwrap_err().to_string();
        assert!(error.contains("node 1:") && error.contains("cannot be read"), "{error}");
    });
}

#[test]
fn a_map_that_just_fits_travels() {
    with_nodes(3, 9, async |cluster| {
        let node = cluster.node(2).clone();
        let room = MAP_BYTES_MAX - cluster.map().encoded_len() - 3;
        let long = format!("mark {}", "m".repeat(room - 5));
        let map = change(cluster, 2, &long).await.unwrap();
        assert_eq!(map.encoded_len(), MAP_BYTES_MAX);
        let error = node
            .change_map(&node.new_links(), |map| marked(map, "mark"))
            .await
            .unwrap_err();
        assert_eq!(error.errno(), 22);
        meet(cluster).await;
        for node in 0..3 {
            assert_eq!(*cluster.node(node).map(), *map, "node {node}");
            cluster.power_cut(node, 1).await;
            cluster.restart(node).await.unwrap();
            assert_eq!(cluster.node(node).map().epoch, Epoch(2));
        }
        is_consistent(&confirm(cluster, 1).await.unwrap());
    });
}

#[test]
fn clients_have_no_say() {
    with_nodes(3, 6, async |cluster| {
        let client = Caller::new(cluster, "client");
        let map = marked(cluster.map(), "mark").unwrap();
        let newer = ClusterMap {
            epoch: Epoch(9),
            ..map.clone()
        };
        for request in [
            Request::Register(Box::new(Ask::Promise(ballot(5, 0)))),
            Request::Register(Box::new(Ask::Accept(ballot(5, 0), map))),
            Request::NewMap(Box::new(newer)),
        ] {
            assert_eq!(client.ask_node(1, request).await, Err(FsError::NotPermitted));
        }
        assert_eq!(cluster.node(1).map().epoch, Epoch(1));
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    with_nodes(3, 7, async |cluster| {
        let node = cluster.node(0).clone();
        let links = node.new_links();
        let changes: [(&str, Spoil); 5] = [
            ("another cluster", |map| map.cluster = [9; 16]),
            ("0 regions", |map| map.regions.clear()),
            ("node 7 is not in it", |map| map.voters = voters(&[0, 1, 7])),
            ("not one step", |map| map.voters = voters(&[0, 1])),
            ("fit a message", |map| map.nodes[0].addresses = vec!["a".repeat(60_000)]),
        ];
        for (why, spoil) in changes {
            let spoilt = |map: &ClusterMap| {
                let mut next = map.clone();
                spoil(&mut next);
                Some(next)
            };
            let error = node.change_map(&links, spoilt).await.unwrap_err();
            assert!(error.errno() == 22 && error.to_string().contains(why), "{why}: {error}");
        }
        assert_eq!(confirm(cluster, 1).await.unwrap().epoch, Epoch(1));
        // nor from another node
        let links = cluster.node(2).new_links();
        let mut other = cluster.map().clone();
        other.epoch = Epoch(9);
        other.cluster = [9; 16];
        let asks = [
            Request::NewMap(Box::new(other.clone())),
            Request::Register(Box::new(Ask::Accept(ballot(9, 2), other))),
            Request::Register(Box::new(Ask::Promise(ballot(u64::MAX, 2)))),
            Request::Register(Box::new(Ask::Promise(Ballot::default()))),
        ];
        for ask in asks {
            let answer = links.call_node(NodeId(1), Cred::Kernel, ask).await;
            assert!(matches!(answer, Err(FsError::Invalid(_))), "{answer:?}");
        }
        is_consistent(&change(cluster, 1, "mark").await.unwrap());
    });
}

#[test]
fn whatever_dies_no_change_is_lost_and_none_is_made_twice() {
    for seed in 0..12 {
        with_nodes(5, seed, async |cluster| {
            let mut rng = Rng::new(seed);
            let mut acknowledged = Vec::new();
            let mut newest = Epoch(1);
            for round in 0..60u64 {
                let (node, other) = (rng.roll(5) as u16, rng.roll(5) as u16);
                match (cluster.is_running(node), rng.roll(8)) {
                    (true, 0) => cluster.crash(node).await,
                    (true, 1) => cluster.power_cut(node, seed << 8 | round).await,
                    (true, 2) if other != node => cluster.network().partition(&host(node), &host(other)),
                    (true, 3) => cluster.network().heal_all(),
                    (true, 4) => cluster.sleep(Duration::from_millis(rng.roll(8_000))).await,
                    (true, _) => {
                        let mark = format!("mark {round}");
                        if let Ok(map) = change(cluster, node, &mark).await {
                            is_consistent(&map);
                            assert!(map.epoch > newest, "a change is made from the newest map");
                            newest = map.epoch;
                            acknowledged.push(mark);
                        }
                    }
                    (false, _) => cluster.restart(node).await.unwrap(),
                }
            }
            cluster.network().heal_all();
            for node in 0..5 {
                if !cluster.is_running(node) {
                    cluster.restart(node).await.unwrap();
                }
            }
            meet(cluster).await;
            let map = confirm(cluster, 0).await.unwrap();
            is_consistent(&map);
            let marks = marks(&map);
            assert!(acknowledged.iter().all(|mark| marks.contains(mark)), "{marks:?}");
            assert!(acknowledged.len() > 3, "{acknowledged:?}");
            meet(cluster).await;
            for node in 0..5 {
                assert_eq!(*cluster.node(node).map(), *map, "node {node}");
            }
        });
    }
}
