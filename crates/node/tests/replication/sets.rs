//! Several region sets in one cluster: directories are turned to them, and what a dead node takes along is what was to be kept there
//! alone.

use crate::common::*;
use polvo_format::{Ino, NodeId};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;

const DEFAULT: RegionSet = RegionSet {
    replicas: 2,
    durability: Durability::Sync,
};
const ALONE: RegionSet = RegionSet {
    replicas: 1,
    durability: Durability::Sync,
};
const AHEAD: RegionSet = RegionSet {
    replicas: 3,
    durability: Durability::Async,
};

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        nodes: 4,
        replicas: DEFAULT.replicas,
        sets: vec![ALONE, AHEAD],
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

async fn turn(c: &Caller, dir: InodeRef, value: &str) -> Result<(), FsError> {
    let (name, value) = (b"polvo.regions".to_vec(), value.as_bytes().to_vec());
    let set = ask::SetXattr {
        inode: dir,
        name,
        value,
        mode: XattrMode::Any,
    };
    c.ask(dir.ino.region(), set).await.map(|_| ())
}

async fn told(c: &Caller, inode: InodeRef) -> String {
    let name = b"polvo.regions".to_vec();
    let value = c.ask(inode.ino.region(), ask::GetXattr { inode, name }).await.unwrap();
    String::from_utf8(value.to_vec()).unwrap()
}

fn set_of(cluster: &Cluster, ino: Ino) -> RegionSet {
    cluster.map().region(ino.region()).unwrap().set
}

/// What is made in a directory lies in regions of its kind, on all nodes; directories that are made there inherit it.
#[test]
fn new_inodes_go_to_regions_of_the_directorys_kind() {
    run(options(1), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        assert_eq!(told(&c, ROOT).await, DEFAULT.to_string());
        for (value, set) in [
            ("replicas=1", ALONE),
            ("durability=async", AHEAD),
            ("replicas=3 durability=async", AHEAD),
            ("default", DEFAULT),
            ("replicas=2", DEFAULT),
        ] {
            let dir = c.mkdir(ROOT, value).await.unwrap();
            assert_eq!(set_of(cluster, dir.ino), DEFAULT, "the directory itself is the root's");
            turn(&c, dir, value).await.unwrap();
            assert_eq!(told(&c, dir).await, set.to_string());
            let mut nodes = [0; 4];
            let below = c.mkdir(dir, "below").await.unwrap();
            assert_eq!(told(&c, below).await, set.to_string());
            for dir in [dir, below] {
                for i in 0..40 {
                    let file = c.create(dir, &format!("f{i}")).await.unwrap();
                    assert_eq!(set_of(cluster, file.ino), set, "{value}");
                    assert_eq!(told(&c, file).await, set.to_string());
                    nodes[usize::from(primary(cluster, file))] += 1;
                }
            }
            // as long as nodes have not told each other more, the one with most gets one of sixteen
            assert!(nodes.iter().all(|count| *count > 0), "{value}: {nodes:?}");
            // at the client's own node
            let home = Caller::at_home(cluster, &format!("at home {value}"), 2);
            let (name, local) = (b"polvo.placement".to_vec(), b"local".to_vec());
            let set_local = ask::SetXattr {
                inode: dir,
                name,
                value: local,
                mode: XattrMode::Any,
            };
            c.ask(dir.ino.region(), set_local).await.unwrap();
            assert_eq!(told(&c, dir).await, set.to_string(), "the other half stays");
            for i in 0..10 {
                let file = home.create(dir, &format!("local{i}")).await.unwrap();
                assert_eq!((set_of(cluster, file.ino), primary(cluster, file)), (set, 2), "{value}");
            }
        }
        let dir = c.find(ROOT, "replicas=1").await.unwrap();
        for (value, said) in [
            ("replicas=2 durability=async", "no regions"),
            (
                "replicas=5",
                "replicas=2 durability=sync, and replicas=1, and replicas=3 durability=async",
            ),
            ("copies", "replicas=NUMBER"),
            ("", "nothing is given"),
        ] {
            let error = turn(&c, dir, value).await.unwrap_err().to_string();
            assert!(error.contains(said), "{value}: {error}");
        }
        assert_eq!(
            told(&c, dir).await,
            ALONE.to_string(),
            "what is refused changes nothing"
        );
        let file = c.find(dir, "f1").await.unwrap();
        assert_eq!(turn(&c, file, "replicas=1").await, Err(FsError::NotDirectory));
        let other = c.as_user(user(7));
        assert_eq!(turn(&other, dir, "default").await, Err(FsError::NotPermitted));
        // and it stays when the log is read again
        cluster.sleep(Duration::from_secs(5)).await;
        for node in 0..4 {
            cluster.crash(node).await;
            cluster.restart(node).await.unwrap();
        }
        cluster.sleep(Duration::from_secs(5)).await;
        assert_eq!(told(&c, dir).await, ALONE.to_string());
    });
}

/// A node dies for good: what was kept at it alone is gone, all else is there, and names of both kinds can be made and removed.
#[test]
fn a_node_that_dies_takes_along_what_was_to_be_there_alone() {
    run(options(2), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let mut files = Vec::new();
        for value in ["replicas=1", "replicas=3", "default"] {
            let dir = c.mkdir(ROOT, value).await.unwrap();
            turn(&c, dir, value).await.unwrap();
            for i in 0..40 {
                let name = format!("f{i}");
                let file = c.create(dir, &name).await.unwrap();
                let contents = pattern(800, i);
                c.write(file, 0, &contents).await.unwrap();
                files.push((dir, name, file, contents));
            }
        }
        c.ask_node(0, ask::Sync).await.unwrap();
        cluster.sleep(Duration::from_secs(2)).await;
        cluster.crash(3).await;
        cluster.sleep(Duration::from_secs(5)).await;
        let map = cluster.newest_map().unwrap();
        let mut gone = 0;
        for (dir, name, file, contents) in &files {
            assert_eq!(c.find(*dir, name).await, Ok(*file), "directories have copies");
            match map.primary(file.ino.region()) {
                Some(NodeId(3)) => {
                    assert_eq!(set_of(cluster, file.ino), ALONE);
                    gone += 1;
                }
                _ => assert_eq!(&c.read(*file).await.unwrap(), contents, "{name}"),
            }
        }
        assert!((3..20).contains(&gone), "{gone}");
        // what is new goes to nodes that are there
        for value in ["replicas=1", "replicas=3", "default"] {
            let dir = c.find(ROOT, value).await.unwrap();
            for i in 0..20 {
                let file = c.create(dir, &format!("new{i}")).await.unwrap();
                c.write(file, 0, b"new").await.unwrap();
                assert_eq!(c.read(file).await.unwrap(), b"new");
                c.unlink(dir, &format!("new{i}")).await.unwrap();
            }
        }
        cluster.restart(3).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        settle(cluster).await;
        for (_, name, file, contents) in &files {
            assert_eq!(&c.read(*file).await.unwrap(), contents, "{name}");
        }
    });
}

/// A node is taken out of the cluster: each region has as many replicas as its kind says, and not as most have.
#[test]
fn each_kind_keeps_its_number_when_a_node_is_removed() {
    run(
        ClusterOptions {
            sets: vec![RegionSet { replicas: 3, ..DEFAULT }],
            ..options(3)
        },
        async |cluster| {
            let c = Caller::new(cluster, "client");
            cluster.mirrored().await;
            cluster.crash(3).await;
            cluster.sleep(Duration::from_secs(5)).await;
            let (node, force) = (NodeId(3), false);
            for step in 0.. {
                assert!(step < 60, "node 3 was not removed");
                match c.ask_node(0, ask::RemoveNode { node, force }).await {
                    Ok(None) => break,
                    Ok(Some(_)) | Err(FsError::WrongEpoch) => cluster.sleep(Duration::from_millis(500)).await,
                    Err(error) => panic!("{error}"),
                }
            }
            cluster.mirrored().await;
            let map = cluster.newest_map().unwrap();
            for info in &map.regions {
                assert_eq!(info.replicas.len(), usize::from(info.set.replicas), "{info:?}");
            }
            assert_eq!(map.sets().count(), 2);
        },
    );
}

/// Of those that serve regions of a kind none is heard by who makes a file: that is no lack of room.
#[test]
fn a_kind_whose_nodes_are_away_has_room() {
    let sets = vec![DEFAULT];
    let only_one = ClusterOptions {
        nodes: 3,
        replicas: 1,
        sets,
        regions_per_node: 1,
        ..options(4)
    };
    run(only_one, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let dir = c.directory_at(cluster, 0, "dir").await;
        turn(&c, dir, "replicas=2").await.unwrap();
        c.create(dir, "before").await.unwrap();
        // others take its regions with copies, and it serves what it has alone
        cluster.crash(0).await;
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.restart(0).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        let map = cluster.newest_map().unwrap();
        assert_eq!(map.primary(dir.ino.region()), Some(NodeId(0)));
        assert!(
            map.of_set(Some(DEFAULT))
                .iter()
                .all(|info| info.primary() != Some(NodeId(0)))
        );
        for other in ["node-1", "node-2"] {
            cluster.network().partition("node-0", other);
        }
        cluster.sleep(Duration::from_secs(1)).await;
        for i in 0..6 {
            let made = c.create(dir, &format!("f{i}")).await;
            assert!(matches!(made, Ok(_) | Err(FsError::Unreachable { .. })), "{made:?}");
        }
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(5)).await;
        c.create(dir, "since").await.unwrap();
        settle(cluster).await;
    });
}
