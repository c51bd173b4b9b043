//! Mixed operations in random order, and a test of the harness itself.

use crate::harness::power::{Scenario, seed, verify};
use crate::harness::snapshot::{node, snapshot};
use crate::harness::world::*;
use crate::{R0, directory, file, name, pattern};
use polvo_format::{FileKind, RegionId};
use polvo_proto::*;

/// A long mixed life: whatever the sequence, each operation is whole.
pub fn a_random_life() {
    for life in 0..6 {
        let shape = [Shape::small(), Shape::two_pools(), Shape::two_regions()][life as usize % 3].clone();
        let regions = shape.home.len() as u64;
        let mut s = Scenario::new("a random life", shape);
        let mut random = Random(seed() << 8 | life);
        let root = s.world.root();
        let mut dirs = vec![root];
        for step in 0..60 {
            let dir = dirs[random.below(dirs.len() as u64) as usize];
            let to = dirs[random.below(dirs.len() as u64) as usize];
            let region = RegionId(random.below(regions) as u16);
            let some = |random: &mut Random, w: &mut World, dir: InodeRef| -> Option<DirEntry> {
                let all = w.of(dir).read_dir(dir, 0, 1000).unwrap();
                let files: Vec<_> = all.into_iter().filter(|e| e.kind == FileKind::File).collect();
                (!files.is_empty()).then(|| files[random.below(files.len() as u64) as usize].clone())
            };
            let fresh = name(step, [2, 40, 200][random.below(3) as usize]);
            let entry = some(&mut random, &mut s.world, dir);
            let (a, b, c) = (
                random.below(40_000),
                random.below(9000) as usize + 1,
                random.below(1 << 32),
            );
            match (random.below(12), entry) {
                (0 | 1, _) | (_, None) => {
                    s.step("create", |w| w.create(dir, &fresh, file(), region)).unwrap();
                }
                (2, _) => {
                    if dirs.len() < 4 {
                        dirs.push(s.step("mkdir", |w| w.create(dir, &fresh, directory(), region)).unwrap());
                    }
                }
                (3, Some(e)) => s.step("unlink", |w| w.unlink(dir, &e.name)).unwrap(),
                (4, Some(e)) => s.step("rename", |w| w.rename(dir, &e.name, to, &fresh)).unwrap(),
                (5, Some(e)) => s.step("link", |w| w.link(e.target, to, &fresh)).unwrap(),
                (6, Some(e)) => {
                    if let Some(other) = some(&mut random, &mut s.world, to) {
                        s.step("rename over", |w| w.rename(dir, &e.name, to, &other.name))
                            .unwrap();
                    }
                }
                (7, Some(e)) => {
                    let bytes = pattern(c, b.min(EAGER_MAX));
                    let at = WriteAt::from_wire(a, c % 3 == 0);
                    s.step("write", |w| w.write(e.target, at, &bytes)).unwrap();
                }
                (8, Some(e)) => {
                    s.step("commit", |w| {
                        w.commit(e.target, &[(a, pattern(c, b))], WriteAt::from_wire(0, c % 3 == 0))
                    })
                    .unwrap();
                }
                (9, Some(e)) => {
                    s.step("truncate", |w| w.truncate(e.target, a)).unwrap();
                }
                (10, Some(e)) => {
                    s.step("set_xattr", |w| {
                        w.set_xattr(e.target, b"user.a", &pattern(c, b % 3000), XattrMode::Any)
                    })
                    .unwrap();
                }
                (_, Some(e)) => {
                    s.step("punch", |w| {
                        w.fallocate(e.target, FallocateMode::PunchHole, a, b as u64)
                    })
                    .unwrap();
                }
            }
            if step % 20 == 19 {
                s.unseen("garbage", |w| w.collect_garbage(region));
                s.world.restart().unwrap();
            }
        }
    }
}

struct Random(u64);

impl Random {
    /// splitmix64, reduced.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// The harness notices what it is there to notice: a tree that is neither of two.
pub fn a_third_state_is_noticed() {
    let mut w = World::new(Shape::small());
    let root = w.root();
    let before = snapshot(&mut w).unwrap();
    w.create(root, b"one", file(), R0).unwrap();
    let after = snapshot(&mut w).unwrap();
    let one = w.lookup(root, b"one").unwrap().target;
    verify(&mut w, &before, &after, false).unwrap();
    verify(&mut w, &after, &before, false).unwrap();
    verify(&mut w, &after, &before, true).unwrap_err();
    w.write(one, WriteAt::Offset(0), b"x").unwrap();
    assert!(verify(&mut w, &before, &after, false).unwrap_err().contains("neither"));
    assert_ne!(node(&mut w, one).unwrap().attr.size, 0);
    assert!(before != after);
}
