//! Where every structure of the media lies in a pool, by the media format alone.

use super::damage::flip;
use super::snapshot::{Snapshot, snapshot};
use super::world::*;
use polvo_format::*;
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll};
use polvo_proto::*;
use polvo_region::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);
/// Types of log entries, by the code on the media.
pub const ENTRY_TYPES: Range<u8> = 1..15;

/// Two nodes with a region each, in which every structure is in use; a decided transaction is not dispatched yet.
pub fn furnished() -> Vec<CrashImage> {
    let mut w = World::new(shape());
    let root = w.root();
    let file = || new_file(FileKind::File, 0o644);
    let folder = || new_file(FileKind::Directory, 0o755);
    let dir = w.create(root, b"dir", folder(), R0).unwrap();
    let far = w.create(root, b"far", folder(), R1).unwrap();
    let moved = w.create(dir, b"moved", folder(), R0).unwrap();
    let small = w.create(dir, b"small", file(), R0).unwrap();
    w.write(small, WriteAt::Offset(100), b"inline").unwrap();
    let long = w.create(far, b"long", file(), R1).unwrap();
    for n in 0..20u8 {
        w.write(long, WriteAt::Offset(u64::from(n) * 5000), &[n; 100]).unwrap();
    }
    w.commit(long, &[(7, vec![3; 9000])], WriteAt::Offset(0)).unwrap();
    w.set_xattr(long, b"user.a", &[1; 700], XattrMode::Any).unwrap();
    w.remove_xattr(long, b"user.a").unwrap();
    w.set_xattr(long, b"user.b", &[2; 3000], XattrMode::Any).unwrap();
    w.set_xattr(long, b"user.parts", &[4; 8000], XattrMode::Any).unwrap();
    w.fallocate(long, FallocateMode::PunchHole, 500, 50).unwrap();
    w.truncate(long, 70_000).unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    w.set_attr(small, mode).unwrap();
    w.link(small, far, b"other name").unwrap();
    w.rename(dir, b"moved", far, b"moved here").unwrap();
    w.set_placement(moved, None).unwrap();
    w.create(dir, b"short", symlink(b"dir/small"), R0).unwrap();
    w.create(dir, b"far link", symlink(&[b'x'; 4095]), R1).unwrap();
    w.create(far, b"pipe", new_file(FileKind::Fifo, 0o600), R1).unwrap();
    w.create(dir, b"gone", file(), R0).unwrap();
    w.unlink(dir, b"gone").unwrap();
    // a log that garbage collection has written anew
    let compact = w.create(dir, b"compact", file(), R0).unwrap();
    for _ in 0..400 {
        w.truncate(compact, 10).unwrap();
    }
    w.write(compact, WriteAt::Offset(3), b"after").unwrap();
    w.collect_garbage(R0);
    assert!(w.of(compact).attr(compact.ino, None).unwrap().1.version() > 0);
    // decided, and not dispatched
    let remote = w.create(far, b"linked", file(), R1).unwrap();
    let add = Intent::AddName {
        dir,
        name: b"late".to_vec(),
        target: Some(remote),
        kind: FileKind::File,
    };
    let intents = vec![(R0, add), (R1, Intent::AddLink { inode: remote })];
    let collecting = w.collect(R0, intents).unwrap();
    assert!(w.decide(&collecting).unwrap().record.is_some());
    written(&w)
}

/// What has been written to the pools of a world.
pub fn written(world: &World) -> Vec<CrashImage> {
    let image = |pool: &Arc<PoolSpace>| pool.pmem().sim().unwrap().image(&mut KeepAll);
    world.pools.iter().map(image).collect()
}

/// Pools for checking and repairing.
pub fn offline(images: &[CrashImage]) -> Vec<OfflinePool> {
    let pool = |(n, image): (usize, &CrashImage)| OfflinePool {
        name: format!("pool {n}"),
        pmem: Pmem::simulated_from_image(image),
    };
    images.iter().enumerate().map(pool).collect()
}

/// What the check of pools says, findings first.
pub fn said(pools: &[OfflinePool]) -> Vec<String> {
    match check(pools, false, &mut |_, _, _| ()) {
        Ok(checked) => checked.findings.into_iter().chain(checked.notes).collect(),
        Err(refused) => vec![refused.to_string()],
    }
}

/// Bytes of a pool, and what the check must say when a bit of them is flipped.
pub struct Structure {
    pub pool: usize,
    pub bytes: Range<u64>,
    /// all of them in one line
    pub named: Vec<String>,
    /// every bit, not one a byte
    pub all_bits: bool,
    /// the lock word of an inode with a part in a decided transaction: its coordinator takes another value for a sign that
    /// the part is in place
    pub collected: bool,
}

/// Bytes of a pool of which a flipped bit may go unnoticed, because nobody goes by them.
pub struct Quiet {
    pub pool: usize,
    pub bytes: Range<u64>,
    pub why: &'static str,
}

#[derive(Default)]
pub struct Media {
    pub structures: Vec<Structure>,
    pub quiet: Vec<Quiet>,
    pub entry_types: BTreeSet<u8>,
}

impl Media {
    fn add(&mut self, pool: usize, bytes: Range<u64>, named: &[&str]) {
        let named = named.iter().map(|s| s.to_string()).collect();
        let all_bits = bytes.end - bytes.start <= 64;
        self.structures.push(Structure {
            pool,
            bytes,
            named,
            all_bits,
            collected: false,
        });
    }

    fn quiet(&mut self, pool: usize, bytes: Range<u64>, why: &'static str) {
        if !bytes.is_empty() {
            self.quiet.push(Quiet { pool, bytes, why });
        }
    }

    /// Goes through a pool by the media format alone.
    pub fn read(&mut self, pool: usize, image: &CrashImage, regions: &[RegionId]) {
        let space = PoolSpace::open(Pmem::simulated_from_image(image)).unwrap();
        let layout = *space.layout();
        let get = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            image.read(at, &mut bytes);
            bytes
        };
        for copy in 0..2 {
            let at = copy * SUPERBLOCK_SIZE as u64;
            let used = at..at + SUPERBLOCK_USED as u64;
            self.add(pool, used.clone(), &["superblock", &format!("copy {copy}")]);
            self.quiet(pool, used.end..at + SUPERBLOCK_SIZE as u64, "not used");
        }
        for segment in 0..layout.segments {
            let at = layout.entry_offset(SegmentIndex(segment));
            self.add(pool, at..at + 8, &["segment table", &format!("seg{segment}:")]);
        }
        for slot in 0..layout.redo_slots {
            let at = layout.slot_offset(slot);
            let named = [&*format!("slot {slot}:"), "redo log"];
            let word = u64::from_le_bytes(get(at, 8).try_into().unwrap());
            let end = at + u64::from(layout.redo_slots.min(1)) * REDO_RECORD_MAX as u64;
            self.add(pool, at..at + 1, &named);
            if RedoState::decode(word).unwrap().0 == RedoState::Free {
                self.quiet(pool, at + 1..end, "of a record that is done with");
                continue;
            }
            let payload = u64::from(u32::from_le_bytes(get(at + 20, 4).try_into().unwrap()));
            self.add(pool, at + 1..at + 64 + payload, &named);
            self.quiet(pool, at + 64 + payload..end, "behind the record");
        }
        for &region in regions {
            for (index, at, class) in space.segments_of(region) {
                let size = layout.segment_size();
                if class != SegmentClass::Inodes {
                    continue;
                }
                for n in 0..size / INODE_SIZE as u64 {
                    let slot = u64::from(index) * (size / INODE_SIZE as u64) + n;
                    let bytes: [u8; INODE_SIZE] = get(at + n * 256, INODE_SIZE).try_into().unwrap();
                    if slot == 0 {
                        self.add(pool, at..at + 64, &[&format!("region {}:", region.0), "region header"]);
                        self.add(
                            pool,
                            at + 64..at + 72,
                            &[&format!("region {}:", region.0), "region header"],
                        );
                        self.add(
                            pool,
                            at + 72..at + 80,
                            &[&format!("region {}:", region.0), "region header"],
                        );
                        self.quiet(pool, at + 80..at + 256, "behind the words of the region's header");
                    } else if bytes != [0; INODE_SIZE] || n == 100 {
                        self.read_inode(pool, at + n * 256, Ino::new(region, slot), &bytes, &space, image);
                    }
                }
            }
        }
    }

    fn read_inode(
        &mut self,
        pool: usize,
        at: u64,
        ino: Ino,
        bytes: &[u8; INODE_SIZE],
        space: &PoolSpace,
        image: &CrashImage,
    ) {
        let head = InodeHead::decode(bytes, ino).unwrap();
        let id = &*format!("inode {ino:?}:");
        let part = |from: u64, to: u64| at + from..at + to;
        if bytes[56..64] != [0; 8] {
            self.quiet(pool, part(0, 56), "the coordinator writes it again");
            self.quiet(pool, part(64, 256), "the coordinator writes what it has changed again");
            self.add(pool, part(56, 64), &[id, "lock word"]);
            self.structures.last_mut().unwrap().collected = true;
            return;
        }
        self.add(pool, part(56, 64), &[id, "lock word"]);
        self.quiet(pool, part(44, 48), "not used");
        let Some(_) = head.kind else {
            let used = *bytes != [0; INODE_SIZE];
            self.add(pool, part(0, if used { 16 } else { 3 }), &[id, "inode"]);
            self.add(pool, part(48, 56), &[id, if used { "log tail" } else { "inode" }]);
            if used {
                self.add(pool, part(24, 36), &[id, "inode"]);
                self.add(pool, part(40, 44), &[id, "inode"]);
            } else {
                self.add(pool, part(4, 8), &[id, "inode"]);
            }
            self.quiet(pool, part(16, 24), "a free slot has no log");
            self.quiet(pool, part(36, 40), "a free slot has no attributes");
            self.quiet(pool, part(64, 256), "a free slot has no attributes and no log");
            return;
        };
        self.add(pool, part(0, 16), &[id, "inode"]);
        self.add(pool, part(24, 36), &[id, "inode"]);
        self.add(pool, part(36, 40), &[id, "attributes"]);
        self.add(pool, part(40, 44), &[id, "inode"]);
        self.add(pool, part(48, 56), &[id, "log tail"]);
        self.add(pool, part(64, 128), &[id, "attributes"]);
        let units = head.tail.units();
        let here = units.min(2) * 64;
        self.add(pool, part(128, 128 + here), &[id, "log"]);
        self.quiet(pool, part(128 + here, 256), "behind the tail");
        let mut all = bytes[128..128 + here as usize].to_vec();

        let pages = UnitPlace::pages(units);
        let link = part(16, 24);
        self.add(pool, link, &[id, if pages == 0 { "attributes" } else { "log" }]);
        let (mut next, shift) = (head.log_page.0, space.layout().segment_shift);
        for n in 0..pages {
            let index = (next >> shift) as u32;
            let segments = space.segments_of(ino.region());
            let (_, base, _) = segments.iter().find(|s| s.0 == index).unwrap();
            let at = base + (next & ((1 << shift) - 1));
            let mut page = vec![0; PAGE];
            image.read(at, &mut page);
            let header = LogPage::decode(&page).unwrap();
            assert!(header.belongs(ino, head.tail.version(), n));
            let in_page = (units - 2 - n * 63).min(63) * 64;
            self.add(pool, at..at + 32, &[id, "log page"]);
            if n + 1 < pages {
                self.add(pool, at + 32..at + 40, &[id, "log"]);
            } else {
                self.quiet(pool, at + 32..at + 40, "the link behind the last page that is needed");
            }
            self.quiet(pool, at + 40..at + 64, "not used");
            self.add(pool, at + 64..at + 64 + in_page, &[id, "log"]);
            self.quiet(pool, at + 64 + in_page..at + 4096, "behind the tail");
            all.extend(&page[64..64 + in_page as usize]);
            next = header.next.0;
        }
        let mut rest = &all[..];
        while let Some(units) = entry_units(rest) {
            self.entry_types.insert(rest[0]);
            rest = &rest[units as usize * 64..];
        }
        assert!(rest.is_empty());
    }
}

/// The same pools with one bit of one of them flipped.
pub fn flipped(images: &[CrashImage], pool: usize, bit: u64) -> Vec<CrashImage> {
    let mut images = images.to_vec();
    let pmem = Pmem::simulated_from_image(&images[pool]);
    flip(&pmem, bit);
    images[pool] = pmem.sim().unwrap().image(&mut KeepAll);
    images
}

/// The pools of [`furnished`].
pub fn shape() -> Shape {
    Shape {
        pool_len: 4 << 20,
        ..Shape::two_pools()
    }
}

/// Them, and what nodes serve from them.
pub fn media() -> (Vec<CrashImage>, Media, Snapshot) {
    let images = furnished();
    let mut media = Media::default();
    media.read(0, &images[0], &[R0]);
    media.read(1, &images[1], &[R1]);
    let tree = snapshot(&mut World::open_images(&shape(), &images, START_NS).unwrap()).unwrap();
    (images, media, tree)
}
