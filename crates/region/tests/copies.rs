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
            set: RegionSet::default(),
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
fn a_pool_that_cannot_be_opened_is_named_and_needed_only_without_mirrors() {
    let mut stopped = Stopped::new();
    let pmem = Pmem::simulated_from_image(&stopped.images[1]);
    pmem.write(0, &[0; 8192]);
    stopped.images[1] = pmem.sim().unwrap().image(&mut KeepAll);
    let checked = stopped.checked(&ALL);
    assert_eq!((checked.regions, checked.inodes, checked.lacking), (2, 3, false));
    assert!(
        checked.findings.len() == 1 && checked.findings[0].ends_with(NOTHING_LOST),
        "{checked:?}"
    );
    let refused = check(&stopped.pools(&[0, 1, 2]), true, &mut |_, _, _| ()).unwrap_err();
    assert!(refused.to_string().contains("not a PolvoFS pool"), "{refused}");
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

// ---- repair

/// Repairs all pools, with what files hold.
fn repaired(pools: &[OfflinePool]) -> Repaired {
    repair(pools, true, START_NS, &mut |_, _, _| ()).unwrap()
}

fn images(pools: &[OfflinePool]) -> Vec<CrashImage> {
    let image = |pool: &OfflinePool| pool.pmem.sim().unwrap().image(&mut KeepAll);
    pools.iter().map(image).collect()
}

impl Stopped {
    /// With bytes of a pool overwritten, beyond what a flipped bit explains.
    fn overwritten(mut self, pool: usize, at: u64, len: usize) -> Stopped {
        self.change(pool, |space| space.pmem().write(at, &vec![0x5a; len]));
        self
    }

    /// What nodes find in these pools: all files under their names, with what was written last.
    fn is_all_there(&self, images: &[CrashImage]) {
        let mut world = World::open_images(&Shape::two_pools(), &images[..2], START_NS).unwrap();
        let root = world.root();
        for (name, file, contents) in [
            (&b"small"[..], self.small, b"small 79".to_vec()),
            (b"long", self.long, vec![7; LONG]),
        ] {
            assert_eq!(world.lookup(root, name).unwrap().target, file);
            let mut found = vec![0; contents.len() + 1];
            let len = world.of(file).read(file, 0, &mut found).unwrap();
            assert!(
                found[..len] == contents,
                "{:?} holds something else",
                String::from_utf8_lossy(name)
            );
        }
    }
}

fn header(stopped: &Stopped) -> u64 {
    let ino = Ino::new(R1, 0);
    let generation = Generation(0);
    stopped.slot(1, InodeRef { ino, generation })
}

#[test]
fn what_is_damaged_and_whole_in_a_mirror_is_taken_from_there() {
    let stopped = Stopped::new();
    let slot = stopped.slot(1, stopped.long);
    let places = [
        ("a log", slot + 128, 64),
        ("an inode", slot, 56),
        ("an inode and its log", slot, 256),
        ("a region's header, and the inodes behind it", header(&stopped), 1024),
        ("file data", stopped.data(1) + 300, 9000),
    ];
    for (what, at, len) in places {
        let stopped = Stopped::new().overwritten(1, at, len);
        let pools = stopped.pools(&ALL);
        let report = repaired(&pools);
        assert_eq!(report.refused, CLEAN, "{what}");
        let taken = |line: &&String| line.ends_with("taken from the copy at node 101");
        assert!(report.done.iter().filter(taken).count() >= 2, "{what}: {report:?}");
        let checked = check(&pools, true, &mut |_, _, _| ()).unwrap();
        assert_eq!(checked.findings, CLEAN, "{what}");
        assert!(checked.replicas[1].ends_with(": equal"), "{what}: {checked:?}");
        stopped.is_all_there(&images(&pools));
        let again = repaired(&pools);
        assert_eq!(again.done, CLEAN, "{what}");
    }
}

#[test]
fn a_flipped_bit_is_put_right_where_it_is() {
    let stopped = Stopped::new().placed();
    let at = stopped.slot(1, stopped.long) + 128;
    let stopped = stopped.flipped(1, at);
    let pools = stopped.pools(&ALL);
    let report = repaired(&pools);
    assert!(
        report.done.len() == 1 && report.done[0].contains("flipped bits"),
        "{report:?}"
    );
    stopped.is_all_there(&images(&pools));
}

#[test]
fn nothing_is_taken_from_a_copy_that_is_behind_out_of_the_set_or_damaged() {
    let damaged = |stopped: Stopped| {
        let at = stopped.slot(0, stopped.small);
        stopped.overwritten(0, at, 256)
    };
    // another inode of the region has changed since
    let behind = || {
        damaged(Stopped::after(|w, _| {
            let root = w.root();
            w.set_xattr(root, b"user.unsent", b"1", XattrMode::Any).unwrap();
        }))
    };
    let mut out = damaged(Stopped::new());
    out.keep_map(6, [[(1, P), (100, B)], [(2, P), (101, M)]]);
    let placed = Stopped::new().placed();
    let at = placed.slot(2, placed.small);
    let both = damaged(placed.overwritten(2, at, 256));
    for (stopped, why) in [
        (behind(), "it lacks what was done last, in 1 inodes"),
        (out, ""),
        (both, "nothing is taken from its copy at node 100: "),
    ] {
        let pools = stopped.pools(&ALL);
        let report = repaired(&pools);
        assert!(
            !report.done.iter().any(|line| line.contains("taken from")),
            "{report:?}"
        );
        let is_said = why.is_empty() || report.notes.iter().any(|line| line.contains(why));
        assert!(is_said, "{why}: {report:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn a_page_taken_from_a_mirror_that_lacks_records_is_noticed() {
    let _plant = planted::Plant::new(planted::Planted::TakenFromBehind);
    std::panic::catch_unwind(nothing_is_taken_from_a_copy_that_is_behind_out_of_the_set_or_damaged)
        .expect_err("nobody notices the bug");
}

#[test]
fn a_damaged_copy_changes_no_region_and_takes_no_place() {
    let stopped = Stopped::new().placed();
    let at = stopped.slot(3, stopped.long) + 128;
    let stopped = stopped.overwritten(3, at, 64);
    let pools = stopped.pools(&ALL);
    let before = images(&pools);
    let report = repaired(&pools);
    assert_eq!(report.refused, CLEAN);
    assert!(
        report.done.len() == 1 && report.done[0].starts_with("copy of region 1 at node 101"),
        "{report:?}"
    );
    let after = images(&pools);
    assert_eq!(
        before[1].fingerprint(),
        after[1].fingerprint(),
        "the region is as it was"
    );
    stopped.is_all_there(&after);
    let checked = check(&pools, true, &mut |_, _, _| ()).unwrap();
    assert_eq!(checked.findings, CLEAN);
    assert!(checked.replicas[1].ends_with(": not whole"), "{checked:?}");
    assert_eq!(
        check(&stopped.pools(&[0, 2]), true, &mut |_, _, _| ()).unwrap().regions,
        1
    );
}

#[test]
fn a_restoration_that_loses_power_is_taken_up() {
    let stopped = Stopped::new();
    let at = stopped.slot(1, stopped.long);
    let stopped = stopped.overwritten(1, at, 256);
    let pools = stopped.pools(&ALL);
    let cuts: Arc<parking_lot::Mutex<Vec<CrashImage>>> = Arc::default();
    let seen = cuts.clone();
    pools[1].pmem.sim().unwrap().set_fence_hook(Box::new(move |point| {
        let mut lines = polvo_pmem::sim::RandomLines::new(point.number());
        seen.lock().push(point.image(&mut lines));
    }));
    repaired(&pools);
    let cuts = std::mem::take(&mut *cuts.lock());
    assert!(cuts.len() > 5, "{} power cuts", cuts.len());
    for (n, cut) in cuts.iter().enumerate() {
        let mut left = stopped.pools(&ALL);
        left[1].pmem = Pmem::simulated_from_image(cut);
        let report = repaired(&left);
        assert_eq!(report.refused, CLEAN, "cut {n}");
        assert_eq!(
            check(&left, true, &mut |_, _, _| ()).unwrap().findings,
            CLEAN,
            "cut {n}"
        );
        stopped.is_all_there(&images(&left));
    }
}
