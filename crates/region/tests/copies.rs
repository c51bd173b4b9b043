//! Copies in the pools of a stopped cluster: the check says how each one stands, and notices damage on either side.

mod harness;

use harness::damage::flip;
use harness::mirrors::Mirrors;
use harness::structures::written;
use harness::world::*;
use polvo_consensus::Voters;
use polvo_consensus::register::Voter;
use polvo_format::*;
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll};
use polvo_proto::*;
use polvo_region::*;
use std::sync::Arc;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);
/// Bytes of the file that has data.
const LONG: usize = 30_000;

/// Pools of a cluster: node 1 serves region 0, node 2 region 1; nodes 100 and 101 have copies of them, in the set.
struct Stopped {
    images: Vec<CrashImage>,
    /// in region 1
    long: InodeRef,
    /// in region 0
    small: InodeRef,
}

/// What the map says: the nodes that have each region, the primary first.
type Nodes = [[(u16, ReplicaRole); 2]; 2];
const P: ReplicaRole = ReplicaRole::Primary;
const M: ReplicaRole = ReplicaRole::Mirror;
const B: ReplicaRole = ReplicaRole::Backup;
const IN_SET: Nodes = [[(1, P), (100, M)], [(2, P), (101, M)]];

impl Stopped {
    /// `later` is done when the mirrors have got all.
    fn after(later: impl FnOnce(&mut World, InodeRef)) -> Stopped {
        let mut w = World::new(Shape::two_pools());
        let root = w.root();
        let file = || new_file(FileKind::File, 0o644);
        let small = w.create(root, b"small", file(), R0).unwrap();
        w.write(small, WriteAt::Offset(0), b"before").unwrap();
        let mut mirrors = Mirrors::of(&mut w);
        let long = w.create(root, b"long", file(), R1).unwrap();
        w.commit(long, &[(0, vec![7; LONG])], WriteAt::Offset(0)).unwrap();
        for n in 0..80u32 {
            w.write(small, WriteAt::Offset(0), format!("small {n}").as_bytes())
                .unwrap();
        }
        w.regions.iter_mut().for_each(|region| drop(region.reap()));
        mirrors.send(&mut w);
        later(&mut w, small);
        let images = written(&w).into_iter().chain(mirrors.written()).collect();
        let mut stopped = Stopped { images, long, small };
        stopped.keep_map(5, IN_SET);
        stopped
    }

    fn new() -> Stopped {
        Stopped::after(|_, _| ())
    }

    /// What has come to the lanes is in place, and does not cover damage up.
    fn placed(mut self) -> Stopped {
        for pool in [2, 3] {
            self.change(pool, |space| drop(Lane::open_all(space)));
        }
        self
    }

    fn change(&mut self, pool: usize, change: impl FnOnce(&Arc<PoolSpace>)) {
        let pmem = Pmem::simulated_from_image(&self.images[pool]);
        change(&PoolSpace::open(pmem.clone()).unwrap());
        self.images[pool] = pmem.sim().unwrap().image(&mut KeepAll);
    }

    /// All nodes know this map.
    fn keep_map(&mut self, epoch: u64, nodes: Nodes) {
        let ids = [1, 2, 100, 101].map(NodeId);
        let region = |(id, nodes): (u16, &[(u16, ReplicaRole); 2])| RegionInfo {
            id: RegionId(id),
            epoch: Epoch(epoch),
            replicas: nodes
                .iter()
                .map(|(node, role)| polvo_proto::Replica {
                    node: NodeId(*node),
                    role: *role,
                })
                .collect(),
        };
        let known = ClusterMap {
            cluster: [7; 16],
            epoch: Epoch(epoch),
            nodes: ids
                .map(|id| NodeInfo {
                    id,
                    host: String::new(),
                    addresses: vec![],
                })
                .to_vec(),
            regions: (0..).zip(&nodes).map(region).collect(),
            voters: Voters::new(ids),
        };
        let kept = KeptMap {
            proposed: 1,
            voter: Voter::of_first(known.clone()),
            known,
        };
        for pool in 0..self.images.len() {
            self.change(pool, |space| space.keep_register(&kept.encode()).unwrap());
        }
    }

    fn pools(&self, which: &[usize]) -> Vec<OfflinePool> {
        let pool = |at: &usize| OfflinePool {
            name: format!("pool {at}"),
            pmem: Pmem::simulated_from_image(&self.images[*at]),
        };
        which.iter().map(pool).collect()
    }

    fn checked(&self, which: &[usize]) -> Checked {
        check(&self.pools(which), true, &mut |_, _, _| ()).unwrap()
    }

    /// Where a byte of an inode's slot lies in a pool.
    fn slot(&self, pool: usize, inode: InodeRef) -> u64 {
        let space = PoolSpace::open(Pmem::simulated_from_image(&self.images[pool])).unwrap();
        place_in(
            &space,
            Gpa::new(inode.ino.region(), RegionOffset(inode.ino.slot() * INODE_SIZE as u64)),
        )
    }

    /// Where the data of the long file begins in a pool.
    fn data(&self, pool: usize) -> u64 {
        let pmem = Pmem::simulated_from_image(&self.images[pool]);
        let space = PoolSpace::open(pmem.clone()).unwrap();
        let data = space.segments_of(R1).into_iter().filter(|s| s.2 == SegmentClass::Data);
        let mut pages = data.flat_map(|(_, at, _)| (at..at + (1 << 18)).step_by(PAGE));
        let holds = |at: &u64| {
            let mut page = [0; PAGE];
            pmem.read(*at, &mut page);
            page == [7; PAGE]
        };
        pages.find(holds).expect("the file has data")
    }

    /// With a bit of a byte of a pool flipped.
    fn flipped(mut self, pool: usize, at: u64) -> Stopped {
        self.change(pool, |space| flip(space.pmem(), at * 8 + 3));
        self
    }
}

const ALL: [usize; 4] = [0, 1, 2, 3];
const CLEAN: [&str; 0] = [];

#[test]
fn copies_are_equal_with_what_has_come_to_their_lanes() {
    let checked = Stopped::new().checked(&ALL);
    assert_eq!(checked.findings, CLEAN);
    assert_eq!(checked.replicas.len(), 2, "{:?}", checked.replicas);
    for (line, nodes) in checked.replicas.iter().zip([(1, 100), (2, 101)]) {
        let (primary, mirror) = nodes;
        assert!(line.contains(&format!("node {primary} serves it")), "{line}");
        assert!(line.contains(&format!("node {mirror} has records up to ")), "{line}");
        assert!(line.contains("not in place yet") && line.ends_with(": equal"), "{line}");
    }
}

#[test]
fn a_copy_that_lacks_what_was_done_last_is_behind_and_no_error() {
    let stopped = Stopped::after(|w, small| _ = w.write(small, WriteAt::Offset(3), b"unsent").unwrap());
    let checked = stopped.checked(&ALL);
    assert_eq!(checked.findings, CLEAN);
    assert!(
        checked.replicas[0].ends_with("behind in 1 inodes"),
        "{:?}",
        checked.replicas
    );
    assert!(checked.replicas[1].ends_with(": equal"), "{:?}", checked.replicas);
}

#[test]
fn damage_of_a_copy_is_named() {
    let stopped = Stopped::new();
    let places = [
        (
            2,
            stopped.slot(2, stopped.small),
            "copy of region 0 at node 100: inode i0:",
        ),
        (
            3,
            stopped.slot(3, stopped.long) + 128,
            "copy of region 1 at node 101: inode i1:",
        ),
        (3, stopped.data(3) + 5000, "of the file are damaged"),
        (
            2,
            stopped.slot(
                2,
                InodeRef {
                    ino: Ino::new(R0, 0),
                    generation: Generation(0),
                },
            ),
            "region header",
        ),
    ];
    for (pool, at, what) in places {
        let checked = Stopped::new().placed().flipped(pool, at).checked(&ALL);
        let named = checked.findings.iter().find(|line| line.contains(what));
        assert!(
            named.is_some_and(|line| line.starts_with("copy of region ")),
            "{what}: {checked:?}"
        );
        let region = if pool == 2 { 0 } else { 1 };
        assert!(
            checked.replicas[region].ends_with(": damaged"),
            "{:?}",
            checked.replicas
        );
        assert!(
            checked.replicas[1 - region].ends_with(": equal"),
            "{:?}",
            checked.replicas
        );
    }
}

#[test]
fn a_difference_that_no_checksum_tells_is_named_with_its_place() {
    let mut stopped = Stopped::new().placed();
    let at = stopped.data(3);
    stopped.change(3, |space| {
        let page = at + PAGE as u64;
        space.pmem().write_u64(space.layout().checksum_offset(page), 0);
        space.pmem().write(page + 9, &[8]);
    });
    let checked = stopped.checked(&ALL);
    let ino = stopped.long.ino;
    let expected =
        format!("copy of region 1 at node 101: inode {ino:?}: byte 4105 of the file is another one in the copy");
    assert_eq!(checked.findings, [expected]);
    assert!(checked.replicas[1].ends_with(": differs"), "{:?}", checked.replicas);
}

#[test]
fn damage_of_a_region_is_not_its_copys() {
    let stopped = Stopped::new();
    let at = stopped.slot(1, stopped.long) + 128;
    let checked = stopped.flipped(1, at).checked(&ALL);
    assert!(
        checked.findings.iter().all(|line| !line.contains("copy")),
        "{checked:?}"
    );
    assert!(!checked.findings.is_empty());
}

#[test]
fn a_copy_that_is_being_made_is_no_error() {
    let mut stopped = Stopped::new();
    stopped.keep_map(6, [[(1, P), (100, B)], [(2, P), (101, M)]]);
    stopped.change(2, |space| {
        let (_, lane) = Lane::open_all(space).pop().unwrap();
        lane.unwrap().restart(Lsn(0));
    });
    let checked = stopped.checked(&ALL);
    assert_eq!(checked.findings, CLEAN);
    assert!(
        checked.replicas[0].ends_with(", not in the set: not whole"),
        "{:?}",
        checked.replicas
    );
}

#[test]
fn a_mirror_stands_in_for_a_pool_that_is_not_there() {
    let stopped = Stopped::new();
    let checked = stopped.checked(&[0, 2, 3]);
    assert_eq!(
        checked.findings, CLEAN,
        "names lead to region 1, which is read where its copy is"
    );
    assert_eq!((checked.regions, checked.inodes), (2, 3));
    let note = "region 1: the node that serves it is not here: node 101 takes its place when the nodes start";
    assert!(checked.notes.iter().any(|line| line == note), "{:?}", checked.notes);
    // what is out of the set takes nobody's place, also where the map that says so was perhaps not chosen
    let mut stopped = Stopped::new();
    stopped.keep_map(6, [[(1, P), (100, M)], [(2, P), (101, B)]]);
    let checked = stopped.checked(&[0, 2, 3]);
    assert_eq!(checked.regions, 1);
    assert!(checked.findings[0].contains("names lead to regions {1}"), "{checked:?}");
}

#[test]
fn a_region_is_where_the_map_says() {
    // node 101 has taken the place of node 2, and died before it knew more than that
    let mut stopped = Stopped::new();
    stopped.keep_map(6, [[(1, P), (100, M)], [(101, P), (2, B)]]);
    let checked = stopped.checked(&ALL);
    assert_eq!(checked.findings, CLEAN);
    assert_eq!((checked.regions, checked.inodes), (2, 3));
    let note = "pool 1 has region 1 as it was before node 101 served it: it becomes a copy when the nodes start";
    assert!(checked.notes.iter().any(|line| line == note), "{:?}", checked.notes);
}
