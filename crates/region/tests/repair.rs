//! Repair: damaged pools are as they were afterwards, or what was lost is named; what was not damaged stays as it was, under
//! its name; a second repair finds nothing to do; a power cut in the middle of a repair leaves pools that can be repaired.

mod harness;

use harness::damage::{Random, flip, for_all};
use harness::power::{rounds, seed};
use harness::snapshot::{Body, Node, Snapshot, node, snapshot};
use harness::structures::{flipped, furnished, media, offline, said, shape, written};
use harness::world::*;
use parking_lot::Mutex;
use polvo_format::*;
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll, LoseAll, RandomLines};
use polvo_proto::*;
use polvo_region::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);
const LOST: &[u8] = b"lost+found";

fn repaired(pools: &[OfflinePool]) -> Result<Repaired, String> {
    repair(pools, false, START_NS, &mut |_, _, _| ()).map_err(|e| e.to_string())
}

fn images(pools: &[OfflinePool]) -> Vec<CrashImage> {
    let image = |pool: &OfflinePool| pool.pmem.sim().unwrap().image(&mut KeepAll);
    pools.iter().map(image).collect()
}

/// What the check finds wrong.
fn findings(pools: &[OfflinePool]) -> Vec<String> {
    check(pools, false, &mut |_, _, _| ()).unwrap().findings
}

/// Repairs, and says what was done; all is clean then, and a second repair does nothing.
fn repairs(images: &[CrashImage]) -> (Vec<CrashImage>, Repaired) {
    let pools = offline(images);
    let report = repaired(&pools).unwrap();
    assert_eq!(report.refused, Vec::<String>::new(), "{:#?}", report.done);
    assert_eq!(findings(&pools), Vec::<String>::new(), "{:#?}", report.done);
    let again = repaired(&pools).unwrap();
    assert_eq!(
        (again.done, again.refused),
        (vec![], vec![]),
        "after {:#?}",
        report.done
    );
    (self::images(&pools), report)
}

fn world(images: &[CrashImage], shape: &Shape) -> World {
    World::open_images(shape, images, START_NS).unwrap()
}

/// Writes to a copy of pools.
fn changed(images: &[CrashImage], pool: usize, change: impl FnOnce(&Pmem)) -> Vec<CrashImage> {
    let mut images = images.to_vec();
    let pmem = Pmem::simulated_from_image(&images[pool]);
    change(&pmem);
    images[pool] = pmem.sim().unwrap().image(&mut KeepAll);
    images
}

/// Names of a directory.
fn names(world: &mut World, dir: InodeRef) -> Vec<String> {
    let entries = world.of(dir).read_dir(dir, 0, 1000).unwrap();
    entries
        .iter()
        .map(|e| String::from_utf8_lossy(&e.name).into_owned())
        .collect()
}

fn said_something(report: &Repaired, what: &str) {
    assert!(
        report.done.iter().any(|line| line.contains(what)),
        "{what}: {:#?}",
        report.done
    );
}

#[test]
fn nothing_is_done_to_pools_that_are_whole() {
    let (images, report) = repairs(&furnished());
    assert_eq!(report.done, Vec::<String>::new());
    assert_eq!(said(&offline(&images)), Vec::<String>::new());
}

/// Whatever the structure, one flipped bit is put right exactly.
#[test]
fn a_flipped_bit_is_put_right() {
    let (images, media, tree) = media();
    let mut random = Random(seed());
    let mut flips = Vec::new();
    // what a transaction that is not dispatched holds is written again by its coordinator, and checked by nobody before
    let held = |named: &[String], tree: &Snapshot| {
        let linked = tree.0[&b"/far/linked"[..]].attr.ino;
        named.contains(&format!("inode {linked:?}:"))
    };
    for structure in media.structures.iter().filter(|s| !held(&s.named, &tree)) {
        let bits = (structure.bytes.end - structure.bytes.start) * 8;
        let some = (0..bits.min(16)).map(|_| random.below(bits));
        flips.extend(some.map(|bit| (structure, structure.bytes.start * 8 + bit)));
    }
    println!("seed {}: {} flipped bits", seed(), flips.len());
    for_all("flipped bits", flips.len(), |n| {
        let (structure, bit) = flips[n];
        let what = format!("bit {} of byte {:#x} of {:?}", bit % 8, bit / 8, structure.named);
        let pools = offline(&flipped(&images, structure.pool, bit));
        let report = repaired(&pools)?;
        if !report.refused.is_empty() || report.done.len() != 1 {
            return Err(format!("{what}: {report:#?}"));
        }
        let left = findings(&pools);
        if !left.is_empty() {
            return Err(format!("{what}: {left:#?} after {report:#?}"));
        }
        let now = snapshot(&mut world(&self::images(&pools), &shape())).map_err(|e| format!("{what}: {e}"))?;
        if now != tree {
            let difference = harness::snapshot::difference(&tree, &now);
            return Err(format!("{what}: {report:#?}\n{difference}"));
        }
        Ok(())
    });
}

// ---- names that do not fit

/// Two regions on two nodes with a few files, and what is wrong with their names.
fn with_names(wrong: impl FnOnce(&mut World, InodeRef)) -> (Vec<CrashImage>, Shape) {
    let mut w = World::new(shape());
    let root = w.root();
    wrong(&mut w, root);
    (written(&w), w.shape)
}

fn folder() -> NewFile {
    new_file(FileKind::Directory, 0o755)
}

fn file() -> NewFile {
    new_file(FileKind::File, 0o644)
}

/// One intent at the region it is about.
fn only(w: &mut World, inode: InodeRef, intent: Intent) {
    w.transact(inode.ino.region(), vec![(inode.ino.region(), intent)])
        .unwrap();
}

fn add(dir: InodeRef, name: &[u8], target: InodeRef, kind: FileKind) -> Intent {
    Intent::AddName {
        dir,
        name: name.to_vec(),
        target: Some(target),
        kind,
    }
}

#[test]
fn link_counts_are_set_from_names() {
    let (images, shape) = with_names(|w, root| {
        let many = w.create(root, b"many", file(), R1).unwrap();
        only(w, many, Intent::AddLink { inode: many });
        let few = w.create(root, b"few", file(), R0).unwrap();
        only(w, root, add(root, b"few too", few, FileKind::File));
    });
    let (images, report) = repairs(&images);
    assert_eq!(report.done.len(), 2, "{report:#?}");
    let mut w = world(&images, &shape);
    let root = w.root();
    for (name, nlink) in [(&b"many"[..], 1), (b"few", 2), (b"few too", 2)] {
        let target = w.lookup(root, name).unwrap().target;
        assert_eq!(w.attr(target).unwrap().nlink, nlink);
    }
}

#[test]
fn what_has_lost_its_name_is_found_again() {
    let (mut inode, mut dir) = (None, None);
    let (images, shape) = with_names(|w, root| {
        let lost = w.create(root, b"lost", file(), R1).unwrap();
        w.write(lost, WriteAt::Offset(0), b"contents").unwrap();
        only(
            w,
            root,
            Intent::RemoveName {
                dir: root,
                name: b"lost".to_vec(),
                target: lost,
            },
        );
        let lost_dir = w.create(root, b"dir", folder(), R1).unwrap();
        w.create(lost_dir, b"below", file(), R0).unwrap();
        only(
            w,
            root,
            Intent::RemoveName {
                dir: root,
                name: b"dir".to_vec(),
                target: lost_dir,
            },
        );
        (inode, dir) = (Some(lost), Some(lost_dir));
    });
    let (inode, dir) = (inode.unwrap(), dir.unwrap());
    let (images, _) = repairs(&images);
    let mut w = world(&images, &shape);
    let root = w.root();
    let found = w.lookup(root, LOST).unwrap().target;
    assert_eq!(w.attr(found).unwrap().mode, 0o700);
    let name = |i: InodeRef| format!("#{}-{}-{}", i.ino.region().0, i.ino.slot(), i.generation.0);
    let (mut expected, mut there) = (vec![name(inode), name(dir)], names(&mut w, found));
    expected.sort();
    there.sort();
    assert_eq!(there, expected);
    assert_eq!(w.read(inode, 0, 100).unwrap(), b"contents");
    assert_eq!(w.of(dir).parent(dir).unwrap(), found);
    assert_eq!(names(&mut w, dir), ["below"]);
}

#[test]
fn names_that_lead_nowhere_go() {
    let (images, shape) = with_names(|w, root| {
        let nobody = |slot, generation| InodeRef {
            ino: Ino::new(R1, slot),
            generation: Generation(generation),
        };
        only(w, root, add(root, b"nobody", nobody(77, 1), FileKind::File));
        let other = w.create(root, b"other", file(), R1).unwrap();
        let older = nobody(other.ino.slot(), other.generation.0 + 1);
        only(w, root, add(root, b"older", older, FileKind::File));
        only(w, root, add(root, b"root", root, FileKind::Directory));
        // called something else than it is
        let dir = w.create(root, b"dir", folder(), R1).unwrap();
        w.create(dir, b"below", file(), R0).unwrap();
        let again = Intent::ReplaceName {
            dir: root,
            name: b"dir".to_vec(),
            old: dir,
            new: dir,
            kind: FileKind::File,
        };
        only(w, root, again);
    });
    let (images, report) = repairs(&images);
    said_something(&report, "/nobody");
    let mut w = world(&images, &shape);
    let root = w.root();
    assert_eq!(names(&mut w, root), ["other", "dir"]);
    assert_eq!(w.lookup(root, b"dir").unwrap().kind, FileKind::Directory);
}

#[test]
fn directories_have_one_name_and_hang_below_the_root() {
    let mut ring = None;
    let (images, shape) = with_names(|w, root| {
        let a = w.create(root, b"a", folder(), R0).unwrap();
        let b = w.create(root, b"b", folder(), R1).unwrap();
        let twice = w.create(a, b"twice", folder(), R1).unwrap();
        only(w, b, add(b, b"twice too", twice, FileKind::Directory));
        // a parent that is not where the name is
        let astray = w.create(a, b"astray", folder(), R1).unwrap();
        only(
            w,
            astray,
            Intent::SetParent {
                inode: astray,
                parent: b,
            },
        );
        // a ring that nobody can reach
        let one = w.create(root, b"one", folder(), R0).unwrap();
        let two = w.create(one, b"two", folder(), R1).unwrap();
        w.create(two, b"inside", file(), R0).unwrap();
        only(w, two, add(two, b"one", one, FileKind::Directory));
        only(
            w,
            root,
            Intent::RemoveName {
                dir: root,
                name: b"one".to_vec(),
                target: one,
            },
        );
        ring = Some((a, b, twice, astray, one, two));
    });
    let (a, b, twice, astray, one, two) = ring.unwrap();
    let (images, _) = repairs(&images);
    let mut w = world(&images, &shape);
    let root = w.root();
    assert_eq!(names(&mut w, root), ["a", "b", "lost+found"]);
    assert_eq!(names(&mut w, a), ["twice", "astray"]);
    assert_eq!(names(&mut w, b), Vec::<String>::new());
    assert_eq!(w.of(twice).parent(twice).unwrap(), a);
    assert_eq!(w.of(astray).parent(astray).unwrap(), a);
    assert_eq!(w.of(one).parent(one).unwrap(), w.lookup(root, LOST).unwrap().target);
    assert_eq!(names(&mut w, one), ["two"]);
    assert_eq!(names(&mut w, two), ["inside"]);
}

// ---- damage beyond one bit

/// Where the bytes of an inode lie: pool and ranges.
type Places = Vec<(usize, Range<u64>)>;

/// Everything that an inode is made of: slot, log pages, file data.
fn places(images: &[CrashImage], shape: &Shape, inode: InodeRef) -> Places {
    let mut w = world(images, shape);
    let pool = shape.home[usize::from(inode.ino.region().0)];
    let place = |w: &World, offset: u64, len: u64| {
        let (_, at) = w.locate(Gpa::new(inode.ino.region(), RegionOffset(offset)));
        (pool, at..at + len)
    };
    let slot = place(&w, inode.ino.slot() * INODE_SIZE as u64, INODE_SIZE as u64);
    let mut bytes = [0; INODE_SIZE];
    images[pool].read(slot.1.start, &mut bytes);
    let head = InodeHead::decode(&bytes, inode.ino).unwrap();
    let mut all = vec![slot];
    let mut next = head.log_page.0;
    for _ in 0..UnitPlace::pages(head.tail.units()) {
        let page = place(&w, next, PAGE as u64);
        let mut header = [0; LINE];
        images[pool].read(page.1.start, &mut header);
        next = LogPage::decode(&header).unwrap().next.0;
        all.push(page);
    }
    if let Ok(map) = w.of(inode).file_map(inode, 0) {
        assert!(!map.more);
        for extent in map.extents {
            let place = place(&w, extent.gpa.offset().0, extent.len);
            all.push(place);
        }
    }
    all
}

fn find(tree: &Snapshot, path: &[u8]) -> InodeRef {
    refer(&tree.0[path].attr)
}

/// Overwrites bytes with what cannot be put right.
fn noise(images: &[CrashImage], place: &(usize, Range<u64>)) -> Vec<CrashImage> {
    let mut random = Random(place.1.start);
    let bytes: Vec<u8> = place.1.clone().map(|_| random.next() as u8).collect();
    changed(images, place.0, |p| p.write(place.1.start, &bytes))
}

#[test]
fn a_file_whose_log_is_damaged_is_kept_in_lost_and_found() {
    let (images, _, tree) = media();
    let long = find(&tree, b"/far/long");
    let (pool, page) = places(&images, &shape(), long)[1].clone();
    // two lines in the middle of its first log page
    let damaged = noise(&images, &(pool, page.start + 1024..page.start + 1152));
    let (images, report) = repairs(&damaged);
    said_something(&report, "/far/long");
    let mut w = world(&images, &shape());
    let (root, far) = (w.root(), find(&tree, b"/far/"));
    assert!(!names(&mut w, far).contains(&"long".to_string()));
    let found = w.lookup(root, LOST).unwrap().target;
    assert_eq!(
        names(&mut w, found),
        [format!("#1-{}-{}", long.ino.slot(), long.generation.0)]
    );
    // attributes are those beside the tail, extended attributes come after the damage
    let known = &tree.0[&b"/far/long"[..]];
    let now = node(&mut w, long).unwrap();
    assert_eq!((now.attr.size, now.attr.mode), (known.attr.size, known.attr.mode));
    assert_eq!(now.xattrs, known.xattrs);
}

#[test]
fn a_directory_whose_log_is_damaged_is_rebuilt_in_its_place() {
    let mut w = World::new(shape());
    let root = w.root();
    let dir = w.create(root, b"dir", folder(), R1).unwrap();
    let made: Vec<InodeRef> = (0..200u64)
        .map(|n| {
            let made = w.create(dir, format!("file {n}").as_bytes(), file(), RegionId((n % 2) as u16));
            let made = made.unwrap();
            w.write(made, WriteAt::Offset(0), &n.to_le_bytes()).unwrap();
            made
        })
        .collect();
    let whole = written(&w);
    let log = places(&whole, &shape(), dir);
    // one page of its log is gone, header and all
    let (images, report) = repairs(&changed(&whole, log[2].0, |p| p.write(log[2].1.start, &[0; PAGE])));
    said_something(&report, "rebuilt");
    let mut w = world(&images, &shape());
    let root = w.root();
    let found = w.lookup(root, LOST).unwrap().target;
    let (here, there) = (names(&mut w, dir), names(&mut w, found));
    assert_eq!((here.len(), there.len()), (137, 63));
    for (n, made) in made.into_iter().enumerate() {
        assert_eq!(w.read(made, 0, 100).unwrap(), (n as u64).to_le_bytes());
        assert_eq!(w.attr(made).unwrap().nlink, 1);
        let name = format!("#{}-{}-{}", made.ino.region().0, made.ino.slot(), made.generation.0);
        assert!(here.contains(&format!("file {n}")) != there.contains(&name));
    }
}

#[test]
fn the_root_is_found_again_or_made_anew() {
    let (images, _, tree) = media();
    let (pool, slot) = places(&images, &shape(), find(&tree, b"/"))[0].clone();
    for zeros in [64, 256] {
        let damaged = changed(&images, pool, |p| p.write(slot.start, &vec![0; zeros]));
        let (images, _) = repairs(&damaged);
        let mut w = world(&images, &shape());
        for (path, known) in tree.0.iter().filter(|(path, _)| *path != b"/") {
            let now = node(&mut w, refer(&known.attr)).unwrap();
            let same = match (&now.body, &known.body) {
                (Body::Directory { entries: a, .. }, Body::Directory { entries: b, .. }) => a == b,
                (a, b) => a == b,
            };
            assert!(same, "{}", String::from_utf8_lossy(path));
        }
    }
}

#[test]
fn segments_are_known_by_what_they_hold() {
    let (images, _, tree) = media();
    for pool in 0..2 {
        let space = PoolSpace::open(Pmem::simulated_from_image(&images[pool])).unwrap();
        let layout = *space.layout();
        let segments: Vec<u64> = (0..layout.segments)
            .map(|n| layout.entry_offset(SegmentIndex(n)))
            .collect();
        for at in segments {
            let damaged = changed(&images, pool, |p| p.write(at, &[0x5a; 8]));
            assert!(World::open_images(&shape(), &damaged, START_NS).is_err());
            let (images, report) = repairs(&damaged);
            assert_eq!(report.done.len(), 1, "{report:#?}");
            assert!(snapshot(&mut world(&images, &shape())).unwrap() == tree, "{report:#?}");
        }
    }
}

/// What a node has to remember of the cluster map is found again where nothing says that it is there; where it cannot be read it is
/// named, and left as it is.
#[test]
fn the_register_of_a_node_is_known_by_what_it_holds() {
    let images = furnished();
    let kept = |byte: u8| {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        let region = RegionInfo {
            id: R0,
            set: RegionSet::default(),
            epoch: Epoch(1),
            replicas: vec![],
        };
        let known = ClusterMap {
            cluster: [byte; 16],
            epoch: Epoch(3),
            nodes: vec![node(0)],
            regions: vec![region],
            voters: polvo_consensus::Voters::new([NodeId(0)]),
        };
        let voter = polvo_consensus::register::Voter::of_first(known.clone());
        KeptMap {
            proposed: 9,
            voter,
            known,
        }
    };
    let mut with_register = images.clone();
    let space = PoolSpace::open(Pmem::simulated_from_image(&images[1])).unwrap();
    space.keep_register(&kept(1).encode()).unwrap();
    with_register[1] = space.pmem().sim().unwrap().image(&mut KeepAll);
    let (_, report) = repairs(&with_register);
    assert_eq!(report.done, Vec::<String>::new());
    let register = |images: &[CrashImage]| {
        let space = PoolSpace::open(Pmem::simulated_from_image(&images[1])).unwrap();
        space.register().map(|bytes| KeptMap::decode(&bytes.unwrap()).unwrap())
    };
    let layout = *PoolSpace::open(Pmem::simulated_from_image(&with_register[1]))
        .unwrap()
        .layout();
    let entry = (0..layout.segments)
        .map(SegmentIndex)
        .find(|at| {
            let of = |images: &[CrashImage]| Pmem::simulated_from_image(&images[1]).read_u64(layout.entry_offset(*at));
            of(&images) != of(&with_register)
        })
        .unwrap();
    let lost = changed(&with_register, 1, |pmem| {
        pmem.write_u64(layout.entry_offset(entry), 0x1234_5678_9abc_def0)
    });
    let (again, report) = repairs(&lost);
    said_something(&report, "register");
    assert_eq!(register(&again).unwrap(), kept(1));

    let damaged = changed(&with_register, 1, |pmem| {
        let at = layout.segment_offset(entry);
        for place in [at, at + REGISTER_PLACE as u64] {
            pmem.write_u64(place + 72, !pmem.read_u64(place + 72));
        }
    });
    let pools = offline(&damaged);
    assert!(findings(&pools).iter().any(|line| line.contains("register")));
    let report = repaired(&pools).unwrap();
    assert!(
        report.refused.iter().any(|line| line.contains("register")),
        "{report:?}"
    );
    assert_eq!(report.done, Vec::<String>::new());
    assert!(register(&self::images(&pools)).is_err());
}

#[test]
fn headers_and_records_that_are_gone_are_written_anew() {
    let (images, _, tree) = media();
    let space = PoolSpace::open(Pmem::simulated_from_image(&images[1])).unwrap();
    let (_, first, _) = space.segments_of(R1)[0];
    let header = noise(&images, &(1, first..first + 64));
    let superblock = noise(&header, &(0, 4096..4352));
    let slot = space.layout().slot_offset(3);
    let (images, report) = repairs(&noise(&superblock, &(1, slot..slot + 4096)));
    assert_eq!(report.done.len(), 3, "{report:#?}");
    assert!(snapshot(&mut world(&images, &shape())).unwrap() == tree);
}

#[test]
fn a_decided_transaction_whose_record_is_lost_leaves_a_tree_that_fits() {
    let (images, _, tree) = media();
    let space = PoolSpace::open(Pmem::simulated_from_image(&images[0])).unwrap();
    let slot = (0..8).map(|n| space.layout().slot_offset(n)).find(|at| {
        let mut state = [0];
        images[0].read(*at, &mut state);
        state != [0]
    });
    let slot = slot.unwrap();
    let (images, report) = repairs(&noise(&images, &(0, slot + 64..slot + 256)));
    said_something(&report, "redo log");
    let mut w = world(&images, &shape());
    let linked = find(&tree, b"/far/linked");
    assert_eq!(
        w.attr(linked).unwrap().nlink,
        2,
        "the name was in place, the link was not"
    );
}

/// What is named by others but is in pools that are not there is not judged.
#[test]
fn without_all_pools_only_what_is_exact_is_repaired() {
    let (images, _, tree) = media();
    let short = find(&tree, b"/dir/short");
    let (pool, slot) = places(&images, &shape(), short)[0].clone();
    let damaged = noise(&images, &(pool, slot.start..slot.start + 64));
    let small = find(&tree, b"/dir/small");
    let (_, slot) = places(&images, &shape(), small)[0].clone();
    let damaged = changed(&damaged, pool, |p| flip(p, slot.start * 8 + 77));
    let pools = offline(&damaged[..1]);
    let report = repaired(&pools).unwrap();
    assert_eq!(report.done.len(), 1, "{report:#?}");
    assert!(report.refused.iter().any(|line| line.contains("pools")), "{report:#?}");
    let (images, _) = repairs(&[&self::images(&pools)[..], &damaged[1..]].concat());
    let mut w = world(&images, &shape());
    node(&mut w, small).unwrap();
    let dir = find(&tree, b"/dir/");
    w.lookup(dir, b"short").unwrap_err();
    // its type and generation are known from the name, its log is whole
    let now = node(&mut w, short).unwrap();
    assert_eq!(now.body, tree.0[&b"/dir/short"[..]].body);
}

// ---- any damage

/// A tree over so many nodes.
fn grown(nodes: usize, random: &mut Random) -> World {
    let shape = Shape {
        pool_len: 6 << 20,
        home: (0..nodes).collect(),
        ..Shape::small()
    };
    let mut w = World::new(shape);
    let region = |random: &mut Random| RegionId(random.below(nodes as u64) as u16);
    let mut dirs = vec![w.root()];
    for n in 0..8u32 {
        let above = dirs[random.below(dirs.len() as u64) as usize];
        let at = region(random);
        dirs.push(w.create(above, format!("dir {n}").as_bytes(), folder(), at).unwrap());
    }
    for n in 0..60u32 {
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let (name, at) = (format!("{n}").repeat(1 + n as usize % 60), region(random));
        let f = w.create(dir, name.as_bytes(), file(), at).unwrap();
        for _ in 0..random.below(8) {
            let bytes = vec![n as u8; 1 + random.below(3000) as usize];
            w.write(f, WriteAt::Offset(random.below(20_000)), &bytes).unwrap();
        }
        if n % 4 == 0 {
            w.commit(f, &[(0, vec![n as u8 + 1; 9000])], WriteAt::End).unwrap();
        }
        if n % 5 == 0 {
            let other = dirs[random.below(dirs.len() as u64) as usize];
            w.link(f, other, format!("link {n}").as_bytes()).unwrap();
        }
        if n % 6 == 0 {
            w.set_xattr(f, b"user.n", &vec![n as u8; 500], XattrMode::Any).unwrap();
        }
        if n % 7 == 0 {
            w.unlink(dir, name.as_bytes()).unwrap();
        }
        if n % 11 == 0 {
            w.create(dir, format!("s{n}").as_bytes(), symlink(name.as_bytes()), at)
                .unwrap();
        }
    }
    w
}

/// Used lines of pools.
fn used_lines(images: &[CrashImage]) -> Vec<(usize, u64)> {
    let mut used = Vec::new();
    for (pool, image) in images.iter().enumerate() {
        for at in (0..image.len()).step_by(64) {
            let mut line = [0; 64];
            image.read(at, &mut line);
            if line != [0; 64] {
                used.push((pool, at));
            }
        }
    }
    used
}

/// Damages a few places; gives what was touched.
fn spoil(images: &mut Vec<CrashImage>, used: &[(usize, u64)], random: &mut Random) -> Places {
    let mut touched = Vec::new();
    for _ in 0..1 + random.below(4) {
        let pick = |random: &mut Random| used[random.below(used.len() as u64) as usize];
        let (pool, at) = pick(random);
        let page = at / 4096 * 4096;
        let kind = random.below(7);
        let (from, len) = match kind {
            0 | 1 => (at + random.below(64), 1),
            2 => (at, 8 + random.below(7) * 8),
            3 => (at, 64),
            _ => (page, 4096),
        };
        let mut bytes = vec![0; len as usize];
        images[pool].read(from, &mut bytes);
        match kind {
            0 => bytes[0] ^= 1 << random.below(8),
            1 => bytes[0] = random.next() as u8,
            2 | 3 => bytes.iter_mut().for_each(|b| *b = random.next() as u8),
            4 => bytes.fill(0),
            _ => {
                // another page, and this one in its place
                let (other, at) = pick(random);
                let there = at / 4096 * 4096;
                let mut others = vec![0; 4096];
                images[other].read(there, &mut others);
                if kind == 5 {
                    *images = changed(images, other, |p| p.write(there, &bytes));
                    touched.push((other, there..there + 4096));
                }
                bytes = others;
            }
        }
        *images = changed(images, pool, |p| p.write(from, &bytes));
        touched.push((pool, from..from + len));
    }
    touched
}

fn overlap(one: &Places, other: &Places) -> bool {
    let overlaps =
        |a: &(usize, Range<u64>), b: &(usize, Range<u64>)| a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end;
    one.iter().any(|a| other.iter().any(|b| overlaps(a, b)))
}

/// What a user has stored in a file: all but what changes with its names.
fn contents(node: &Node) -> impl PartialEq + use<> {
    let attr = node.attr;
    let kept = (attr.kind, attr.mode, attr.uid, attr.gid, attr.rdev);
    let body = match &node.body {
        Body::Directory { .. } => None, // names come and go with what they lead to
        body => Some((attr.size, attr.mtime_ns, body.clone())),
    };
    (kept, node.xattrs.clone(), body)
}

struct Grown {
    images: Vec<CrashImage>,
    shape: Shape,
    tree: Snapshot,
    places: BTreeMap<Ino, Places>,
    used: Vec<(usize, u64)>,
}

impl Grown {
    fn new(nodes: usize, random: &mut Random) -> Grown {
        let world = grown(nodes, random);
        let (images, shape) = (written(&world), world.shape.clone());
        drop(world);
        let tree = snapshot(&mut self::world(&images, &shape)).unwrap();
        let place = |known: &Node| (known.attr.ino, places(&images, &shape, refer(&known.attr)));
        let places = tree.0.values().map(place).collect();
        let used = used_lines(&images);
        Grown {
            images,
            shape,
            tree,
            places,
            used,
        }
    }

    /// What was not touched is as it was, and under its name when nothing on the way there was touched.
    fn untouched_is_whole(&self, images: &[CrashImage], touched: &Places) -> Result<u64, String> {
        let mut w = World::open_images(&self.shape, images, START_NS).map_err(|e| format!("opening: {e}"))?;
        let whole = |ino: &Ino| !overlap(&self.places[ino], touched);
        let mut compared = 0;
        for (path, known) in &self.tree.0 {
            let shown = String::from_utf8_lossy(path);
            if !whole(&known.attr.ino) {
                continue;
            }
            let now = node(&mut w, refer(&known.attr)).map_err(|e| format!("{shown}: {e}"))?;
            if contents(&now) != contents(known) {
                return Err(format!("{shown} is not what it was: {now:?}\nwas {known:?}"));
            }
            compared += 1;
            let mut at = w.root();
            let mut way: &[u8] = b"/";
            let mut rest = &path[1..];
            while !rest.is_empty() && whole(&self.tree.0[way].attr.ino) {
                let end = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
                let next = w.lookup(at, &rest[..end]);
                let through = (end + 1).min(rest.len());
                way = &path[..path.len() - rest.len() + through];
                if !whole(&self.tree.0[way].attr.ino) {
                    break; // a damaged one may have lost its name
                }
                at = next.map_err(|e| format!("{shown}: its name is gone: {e}"))?.target;
                rest = &rest[through..];
                if rest.is_empty() && at != refer(&known.attr) {
                    return Err(format!("{shown} leads to another inode"));
                }
            }
        }
        Ok(compared)
    }
}

fn any_damage(nodes: usize) {
    let mut random = Random(seed() ^ nodes as u64);
    let grown = Grown::new(nodes, &mut random);
    let seeds: Vec<u64> = (0..400 * rounds()).map(|_| random.next()).collect();
    println!(
        "seed {}: {} inodes, {} used lines",
        seed(),
        grown.places.len(),
        grown.used.len()
    );
    // what could not be done, damaged pools, files compared
    let counts = Mutex::new([0u64; 4]);
    for_all("damaged clusters", seeds.len(), |n| {
        let mut random = Random(seeds[n]);
        let mut images = grown.images.clone();
        let touched = spoil(&mut images, &grown.used, &mut random);
        let what = format!("number {n}, {touched:x?}");
        let pools = offline(&images);
        let Ok(report) = repaired(&pools) else {
            counts.lock()[0] += 1;
            return Ok(()); // no superblock is left
        };
        let left = findings(&pools);
        if report.refused.is_empty() != left.is_empty() {
            return Err(format!("{what}: left {left:#?} of {report:#?}"));
        }
        let again = repaired(&pools).map_err(|e| format!("{what}: the second time: {e}"))?;
        if !again.done.is_empty() || again.refused != report.refused {
            return Err(format!("{what}: the second time {again:#?}, after {report:#?}"));
        }
        if !left.is_empty() {
            counts.lock()[1] += 1;
            return Ok(());
        }
        let compared = grown
            .untouched_is_whole(&self::images(&pools), &touched)
            .map_err(|why| format!("{what}: {why}\n{report:#?}"))?;
        let mut counts = counts.lock();
        counts[2] += 1;
        counts[3] += compared;
        Ok(())
    });
    let [hopeless, refused, whole, compared] = counts.into_inner();
    println!(
        "{nodes} nodes: {whole} repaired ({compared} files compared), {refused} in part, {hopeless} without a superblock"
    );
    assert!(whole > 100, "most can be repaired");
}

#[test]
fn any_damage_of_one_node() {
    any_damage(1);
}

#[test]
fn any_damage_of_three_nodes() {
    any_damage(3);
}

// ---- power cuts

/// What power cuts before each fence of a repair leave.
fn cut_short(images: &[CrashImage]) -> Vec<Vec<CrashImage>> {
    let pools = offline(images);
    let states = Arc::new(Mutex::new(Vec::new()));
    for (at, pool) in pools.iter().enumerate() {
        let (others, into) = (pools.clone(), states.clone());
        pool.pmem.sim().unwrap().set_fence_hook(Box::new(move |point| {
            for turn in 0..4 {
                let image = |pool: usize, other: &OfflinePool| {
                    let mut random = RandomLines::new(seed() << 32 ^ point.number() << 8 ^ turn);
                    let chooser: &mut dyn polvo_pmem::sim::Chooser = match turn {
                        0 => &mut LoseAll,
                        1 => &mut KeepAll,
                        _ => &mut random,
                    };
                    match pool == at {
                        true => point.image(chooser),
                        false => other.pmem.sim().unwrap().image(chooser),
                    }
                };
                let images: Vec<CrashImage> = others.iter().enumerate().map(|(n, pool)| image(n, pool)).collect();
                into.lock().push(images);
            }
        }));
    }
    repaired(&pools).unwrap();
    pools
        .iter()
        .for_each(|pool| pool.pmem.sim().unwrap().clear_fence_hook());
    let states = std::mem::take(&mut *states.lock());
    assert!(!states.is_empty());
    states
}

#[test]
fn a_repair_that_is_cut_short_is_taken_up_by_the_next() {
    let mut random = Random(seed() ^ 0xc07);
    let grown = Grown::new(2, &mut random);
    let mut cuts = 0;
    let mut repairable = 0;
    for _ in 0..10 * rounds() {
        let mut images = grown.images.clone();
        let touched = spoil(&mut images, &grown.used, &mut random);
        let pools = offline(&images);
        if !repaired(&pools).is_ok_and(|report| report.refused.is_empty() && !report.done.is_empty()) {
            continue;
        }
        repairable += 1;
        let mut states = cut_short(&images);
        // many leave the same
        let mut seen = BTreeSet::new();
        states.retain(|images| seen.insert(images.iter().map(CrashImage::fingerprint).collect::<Vec<_>>()));
        cuts += states.len();
        for_all("power cuts", states.len(), |n| {
            let pools = offline(&states[n]);
            let report = repaired(&pools)?;
            let left = findings(&pools);
            if !report.refused.is_empty() || !left.is_empty() {
                return Err(format!("{touched:x?}, cut {n}: {left:#?} are left, after {report:#?}"));
            }
            grown
                .untouched_is_whole(&self::images(&pools), &touched)
                .map_err(|why| format!("{touched:x?}, cut {n}: {why}\n{report:#?}"))?;
            Ok(())
        });
    }
    println!("seed {}: {repairable} damaged clusters, {cuts} power cuts", seed());
    assert!(repairable > 3 && cuts > 60);
}
