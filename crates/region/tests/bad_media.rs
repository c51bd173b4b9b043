//! Pools that are damaged in any place: opening, recovering, reading, checking and changing them gives errors or
//! findings. Nothing panics, nothing runs for ever, and no damage of metadata goes unnoticed.

mod harness;

use harness::damage::{Random, Watched, flip};
use harness::power::{CrashState, durable, recover_all, rounds};
use harness::snapshot::{Snapshot, difference, node, snapshot};
use harness::world::*;
use polvo_format::{FileKind, RegionId, SUPERBLOCK_SIZE};
use polvo_pmem::Pmem;
use polvo_pmem::sim::CrashImage;
use polvo_proto::*;
use polvo_region::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const R0: RegionId = RegionId(0);
const LINE: u64 = 64;

/// A world in which every structure of the media is in use.
fn furnished() -> World {
    let mut w = World::new(Shape::small());
    let root = w.root();
    let file = || new_file(FileKind::File, 0o644);
    let dir = w
        .create(root, b"dir", new_file(FileKind::Directory, 0o755), R0)
        .unwrap();
    let sub = w.create(dir, b"sub", new_file(FileKind::Directory, 0o755), R0).unwrap();
    for n in 0..20u8 {
        let f = w.create(dir, &[b'a' + n; 200], file(), R0).unwrap();
        w.write(f, WriteAt::Offset(u64::from(n) * 3000), &vec![n; 900]).unwrap();
        if n % 2 == 0 {
            w.commit(f, &[(100, vec![n + 100; 10_000])], WriteAt::from_wire(0, n % 4 == 0))
                .unwrap();
        }
        if n % 5 == 0 {
            w.set_xattr(f, b"user.n", &vec![n; 700], XattrMode::Any).unwrap();
            w.set_xattr(f, b"user.parts", &vec![n; 5000], XattrMode::Any).unwrap();
            w.fallocate(f, FallocateMode::PunchHole, 500, 50).unwrap();
            w.truncate(f, 5000).unwrap();
        }
        if n % 3 == 0 {
            w.link(f, sub, &[b'l', b'A' + n]).unwrap();
        }
    }
    w.create(sub, b"short link", symlink(b"dir/aaa"), R0).unwrap();
    w.create(sub, b"long link", symlink(&[b'x'; 4095]), R0).unwrap();
    w.create(sub, b"pipe", new_file(FileKind::Fifo, 0o600), R0).unwrap();
    w.unlink(dir, &[b'a'; 200]).unwrap();
    w.rename(dir, &[b'b'; 200], sub, b"b").unwrap();
    w.set_attr(
        sub,
        SetAttr {
            mode: Some(0o1700),
            ..SetAttr::default()
        },
    )
    .unwrap();
    w.set_placement(sub, None).unwrap();
    w
}

fn damaged(image: &CrashImage, how: String, damage: impl FnOnce(&Pmem)) -> CrashState {
    let pmem = Pmem::simulated_from_image(image);
    damage(&pmem);
    let image = pmem.sim().unwrap().image(&mut polvo_pmem::sim::KeepAll);
    CrashState::new(vec![image], how)
}

/// Every line of these ranges that is not all zeros.
fn lines(image: &CrashImage, ranges: &[(u64, u64)]) -> Vec<u64> {
    let all = ranges
        .iter()
        .flat_map(|&(offset, len)| (offset..offset + len).step_by(LINE as usize));
    let used = |&offset: &u64| {
        let mut line = [0; LINE as usize];
        image.read(offset, &mut line);
        line != [0; LINE as usize]
    };
    all.filter(used).collect()
}

/// Reads and changes all kinds of things; errors are fine here, panics and endless loops are not.
fn use_it(world: &mut World, tree: &Snapshot) {
    for known in tree.0.values() {
        let inode = refer(&known.attr);
        let _ = node(world, inode);
        let _ = world.of(inode).file_map(inode, 0);
        let _ = world.of(inode).open(SESSION, inode);
        let _ = world.write(inode, WriteAt::End, b"more");
        let _ = world.truncate(inode, 10);
        let _ = world.set_xattr(inode, b"user.n", b"new", XattrMode::Any);
        let _ = world.create(inode, b"new", new_file(FileKind::File, 0o600), R0);
    }
    for _ in 0..50 {
        if !world.regions[0].collect_garbage(START_NS) {
            break;
        }
    }
    let root = refer(&tree.0[&b"/"[..]].attr);
    let mut to_empty = vec![root];
    let mut seen = BTreeSet::new();
    while let Some(dir) = to_empty.pop() {
        if !seen.insert(dir.ino) {
            continue;
        }
        for entry in world.of(dir).read_dir(dir, 0, 1000).unwrap_or_default() {
            if entry.kind == FileKind::Directory && entry.target.ino.region() == R0 {
                to_empty.push(entry.target);
            } else {
                let _ = world.unlink(dir, &entry.name);
            }
        }
    }
    world.regions[0].end_session(SESSION);
    let _ = snapshot(world);
    let _ = world.check();
}

/// Each state: an error, or findings, or the tree as it was.
fn nothing_goes_unnoticed(what: &str, states: Vec<CrashState>, tree: &Snapshot) {
    let (refused, found, harmless) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let total = states.len();
    let opens = |state: &CrashState| {
        let _watched = Watched::new(format!("{what}, {}", state.how));
        let open = || World::open_images(&Shape::small(), &state.images, START_NS).map(|_| ());
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(open)) {
            Ok(Ok(())) => true,
            Ok(Err(why)) => {
                assert!(!why.to_string().is_empty());
                refused.fetch_add(1, Relaxed);
                false
            }
            Err(_) => panic!("{what}, {}: opening panics", state.how),
        }
    };
    let openable: Vec<CrashState> = states.into_iter().filter(opens).collect();
    recover_all(what, &Shape::small(), START_NS, &openable, |world, number| {
        let _watched = Watched::new(format!("{what}, {}", openable[number].how));
        let findings = world.check();
        match snapshot(world) {
            Ok(now) if now == *tree && findings.is_empty() => harmless.fetch_add(1, Relaxed),
            Ok(now) if findings.is_empty() => return Err(format!("nobody notices:\n{}", difference(tree, &now))),
            _ => found.fetch_add(1, Relaxed),
        };
        use_it(world, tree);
        Ok(())
    });
    let (refused, found, harmless) = (refused.into_inner(), found.into_inner(), harmless.into_inner());
    println!("{what}: {total} damaged pools: {refused} refused, {found} with findings, {harmless} unharmed");
    assert!(total > 0 && refused + found + harmless == total as u64);
}

/// The used lines of the segments of one class.
fn lines_of(world: &World, image: &CrashImage, class: SegmentClass) -> Vec<u64> {
    let size = world.pools[0].usage().segment_size;
    let segments = world.pools[0].segments_of(R0);
    let ranges: Vec<_> = segments.iter().filter(|s| s.2 == class).map(|s| (s.1, size)).collect();
    assert!(!ranges.is_empty());
    lines(image, &ranges)
}

/// Damages lines one at a time: single bits, zeros, noise, another line's content.
fn damage_lines(image: &CrashImage, lines: &[u64], seed: u64) -> Vec<CrashState> {
    let mut random = Random(seed);
    let mut states = Vec::new();
    for &line in lines {
        for _ in 0..4 * rounds() {
            let bit = line * 8 + random.next() % (LINE * 8);
            states.push(damaged(
                image,
                format!("bit {} of the byte at {:#x}", bit % 8, bit / 8),
                |p| flip(p, bit),
            ));
        }
        states.push(damaged(image, format!("zeros at {line:#x}"), |p| {
            p.write(line, &[0; 64])
        }));
        let noise: Vec<u8> = (0..8).flat_map(|_| random.next().to_le_bytes()).collect();
        states.push(damaged(image, format!("noise at {line:#x}"), |p| p.write(line, &noise)));
        let other = lines[(random.next() % lines.len() as u64) as usize];
        let mut copy = [0; 64];
        image.read(other, &mut copy);
        states.push(damaged(image, format!("the line of {other:#x} at {line:#x}"), |p| {
            p.write(line, &copy)
        }));
    }
    states
}

fn whole() -> (World, CrashImage, Snapshot) {
    let mut world = furnished();
    let image = durable(&world).remove(0);
    let tree = snapshot(&mut world).unwrap();
    (world, image, tree)
}

#[test]
fn an_undamaged_pool_is_fine() {
    let (_, image, tree) = whole();
    let states = vec![damaged(&image, "nothing".into(), |_| ())];
    recover_all("undamaged", &Shape::small(), START_NS, &states, |world, _| {
        assert_eq!(world.check(), Vec::<String>::new());
        assert!(
            snapshot(world).unwrap() == tree,
            "{}",
            difference(&tree, &snapshot(world).unwrap())
        );
        Ok(())
    });
}

#[test]
fn damaged_inodes() {
    let (world, image, tree) = whole();
    let lines = lines_of(&world, &image, SegmentClass::Inodes);
    nothing_goes_unnoticed("inodes", damage_lines(&image, &lines, 1), &tree);
}

#[test]
fn damaged_log_pages() {
    let (world, image, tree) = whole();
    let lines = lines_of(&world, &image, SegmentClass::Logs);
    nothing_goes_unnoticed("log pages", damage_lines(&image, &lines, 2), &tree);
}

#[test]
fn damaged_superblocks_table_and_redo_log() {
    let (world, image, tree) = whole();
    let layout = *world.pools[0].layout();
    let lines = lines(&image, &[(0, layout.segments_offset)]);
    assert!(lines.len() > 8);
    nothing_goes_unnoticed("pool", damage_lines(&image, &lines, 3), &tree);
}

#[test]
fn whole_pages_lost() {
    let (world, image, tree) = whole();
    let mut pages: Vec<u64> = [SegmentClass::Inodes, SegmentClass::Logs]
        .iter()
        .flat_map(|&class| lines_of(&world, &image, class))
        .map(|line| line / 4096 * 4096)
        .collect();
    pages.dedup();
    let mut random = Random(4);
    let mut states = Vec::new();
    for &page in &pages {
        states.push(damaged(&image, format!("zeros in page {page:#x}"), |p| {
            p.write(page, &[0; 4096])
        }));
        let noise: Vec<u8> = (0..512).flat_map(|_| random.next().to_le_bytes()).collect();
        states.push(damaged(&image, format!("noise in page {page:#x}"), |p| {
            p.write(page, &noise)
        }));
        let other = pages[(random.next() % pages.len() as u64) as usize];
        let mut copy = vec![0; 4096];
        image.read(other, &mut copy);
        states.push(damaged(&image, format!("page {other:#x} at {page:#x}"), |p| {
            p.write(page, &copy)
        }));
    }
    nothing_goes_unnoticed("pages", states, &tree);
}

/// Media that never were a pool, and pools that have lost their end.
#[test]
fn other_media() {
    let (_, image, _) = whole();
    let bytes = image.to_vec();
    let mut random = Random(5);
    let mut media = vec![vec![0; 1], vec![0; 4096], vec![0; 8 << 20], vec![0xff; 8 << 20]];
    media.push((0..1 << 18).flat_map(|_| random.next().to_le_bytes()).collect());
    for len in [
        1,
        SUPERBLOCK_SIZE,
        2 * SUPERBLOCK_SIZE,
        bytes.len() / 2,
        bytes.len() - 1,
    ] {
        media.push(bytes[..len].to_vec());
    }
    for (number, media) in media.into_iter().enumerate() {
        match PoolSpace::open(Pmem::simulated_from(media)) {
            Err(RegionError::Pool(why)) => assert!(why.len() > 20, "{number}: {why}"),
            Err(why) => panic!("{number}: {why}"),
            Ok(_) => panic!("medium {number} opens"),
        }
    }
    let longer = [&bytes[..], &[0; 100]].concat();
    PoolSpace::open(Pmem::simulated_from(longer)).unwrap();
}

/// A region that the pool does not have, and one that was never finished.
#[test]
fn other_regions() {
    let world = furnished();
    let pool = &world.pools[0];
    Region::recover(pool, RegionId(9), &mut |_, _| ())
        .err()
        .expect("there is no such region");
    assert_eq!(pool.regions(), [R0]);
}
