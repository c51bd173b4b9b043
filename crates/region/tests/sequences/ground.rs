//! What sequences start from: a small tree, on one region, on two in two pools, and on two in one pool; with fresh logs,
//! and with logs that are mostly dead and end two units before a page does, so that whatever comes next needs a page.

use crate::harness::power::durable;
use crate::harness::world::*;
use polvo_format::{FileKind, RegionId, UnitPlace};
use polvo_pmem::sim::CrashImage;
use polvo_proto::*;
use polvo_region::RegionError;

/// Log units of a worn log.
const WORN_UNITS: u64 = 330;
/// Units that are left in a worn log's last page.
const WORN_ROOM: u64 = 2;
/// Bytes of a file that an operation finds.
const FILL: usize = 9000;

pub struct Ground {
    pub name: &'static str,
    shape: Shape,
    images: Vec<CrashImage>,
    now: i64,
}

impl Ground {
    /// All of them.
    pub fn all() -> Vec<Ground> {
        let small = |home: Vec<usize>, segments: u64| Shape {
            pool_len: (segments << 18) + (160 << 10),
            home,
            ..Shape::small()
        };
        let shapes = [
            ("one region, fresh", small(vec![0], 7), false),
            ("one region, worn", small(vec![0], 7), true),
            ("two pools, fresh", small(vec![0, 1], 7), false),
            ("two pools, worn", small(vec![0, 1], 7), true),
            ("two regions, fresh", small(vec![0, 0], 10), false),
            ("two regions, worn", small(vec![0, 0], 10), true),
        ];
        shapes.map(|(name, shape, worn)| Ground::new(name, shape, worn)).into()
    }

    fn new(name: &'static str, shape: Shape, worn: bool) -> Ground {
        let mut w = World::new(shape.clone());
        for path in ["A", "B", "A/foo", "A/bar", "A/sub", "B/foo", "B/full", "B/full/in"] {
            make(&mut w, path).unwrap();
        }
        if worn {
            for path in ["A", "B", "A/foo"] {
                wear(&mut w, path);
            }
        }
        Ground {
            name,
            shape,
            images: durable(&w),
            now: w.now,
        }
    }

    /// A world that has just started on it.
    pub fn world(&self) -> World {
        World::open_images(&self.shape, &self.images, self.now).expect("the ground is whole")
    }
}

/// Changes attributes until the log is long and at the end of a page.
fn wear(w: &mut World, path: &str) {
    let inode = look(w, path).unwrap();
    for round in 0.. {
        let (_, tail) = w.of(inode).attr(inode.ino, Some(inode.generation)).unwrap();
        if tail.units() >= WORN_UNITS && UnitPlace::room(tail.units()) == WORN_ROOM {
            return;
        }
        assert!(round < 1000, "the log of {path} does not end where it should");
        let mode = Some(0o700 + round % 8);
        w.set_attr(
            inode,
            SetAttr {
                mode,
                ..SetAttr::default()
            },
        )
        .unwrap();
    }
}

/// The inode of a path below the root.
pub fn look(w: &mut World, path: &str) -> Result<InodeRef, RegionError> {
    let mut at = w.root();
    for name in path.split('/') {
        at = w.lookup(at, name.as_bytes())?.target;
    }
    Ok(at)
}

/// The directory of a path, and the name in it.
pub fn split<'a>(w: &mut World, path: &'a str) -> Result<(InodeRef, &'a [u8]), RegionError> {
    let Some((dir, name)) = path.rsplit_once('/') else {
        return Ok((w.root(), path.as_bytes()));
    };
    Ok((look(w, dir)?, name.as_bytes()))
}

/// Where a new inode goes: by its path, so that directories, what is in them, and what it is replaced by lie together
/// and apart.
pub fn region_for(w: &World, path: &str) -> RegionId {
    let regions = w.shape.home.len() as u64;
    RegionId((path.bytes().map(u64::from).sum::<u64>() % regions) as u16)
}

/// Makes what a path says: `foo` and `bar` are files with contents, `in` is an empty one, all others directories.
pub fn make(w: &mut World, path: &str) -> Result<(), RegionError> {
    let (dir, name) = split(w, path)?;
    let region = region_for(w, path);
    let full = matches!(name, b"foo" | b"bar");
    let kind = if full || name == b"in" {
        FileKind::File
    } else {
        FileKind::Directory
    };
    let inode = w.create(dir, name, new_file(kind, 0o750), region)?;
    if full {
        w.commit(inode, &[(0, crate::pattern(1, FILL))], WriteAt::Offset(0))?;
        w.write(inode, WriteAt::Offset(100), &crate::pattern(2, 70))?;
        w.set_xattr(inode, b"user.x", &crate::pattern(3, 40), XattrMode::Any)?;
    }
    Ok(())
}
