//! Changes of names, in one region and across regions.

use crate::harness::power::Scenario;
use crate::harness::world::*;
use crate::{R0, R1, directory, file, name, pattern};
use polvo_format::{FileKind, RegionId};
use polvo_proto::*;

/// Names, links and renames between `a` and `b` (below the root), new inodes in turn in each of `regions`.
fn names(s: &mut Scenario, regions: &[RegionId]) {
    let root = s.world.root();
    let mut turn = 0;
    let mut region = || {
        turn += 1;
        regions[turn % regions.len()]
    };
    let (ra, rb) = (region(), region());
    let a = s.step("mkdir a", |w| w.create(root, b"a", directory(), ra)).unwrap();
    let b = s.step("mkdir b", |w| w.create(root, b"b", directory(), rb)).unwrap();
    for (n, len) in [(1, 1), (2, 20), (3, 100), (4, 255), (5, 255)] {
        let at = region();
        s.step("create", |w| w.create(a, &name(n, len), file(), at)).unwrap();
    }
    let at = region();
    s.step("create in a setgid place", |w| {
        w.create(b, b"x", NewFile { mode: 0o2711, ..file() }, at)
    })
    .unwrap();
    for (link, target) in [
        (&b"l1"[..], pattern(1, 1)),
        (b"l2", pattern(2, 100)),
        (b"l3", pattern(3, 4095)),
    ] {
        let at = region();
        s.step("symlink", |w| w.create(b, link, symlink(&target), at)).unwrap();
    }
    for kind in [
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ] {
        let at = region();
        let device = NewFile {
            rdev: 0x0803,
            ..new_file(kind, 0o600)
        };
        s.step("mknod", |w| w.create(b, format!("{kind:?}").as_bytes(), device, at))
            .unwrap();
    }
    let one = s.world.lookup(a, b"1").unwrap().target;
    s.step("link", |w| w.link(one, b, b"one")).unwrap();
    s.step("link", |w| w.link(one, a, &name(9, 200))).unwrap();
    s.step("rename in a directory", |w| w.rename(a, b"1", a, b"uno"))
        .unwrap();
    s.step("rename to another directory", |w| {
        w.rename(a, &name(3, 100), b, b"three")
    })
    .unwrap();
    s.step("rename to a long name", |w| w.rename(b, b"three", a, &name(33, 255)))
        .unwrap();
    s.step("rename over a file", |w| w.rename(a, b"uno", b, b"x")).unwrap();
    s.step("rename over a link", |w| w.rename(b, b"l1", b, b"l2")).unwrap();
    s.step("rename over one of two names", |w| w.rename(b, b"l2", b, b"one"))
        .unwrap();
    for n in 0..3 {
        let at = region();
        s.step("mkdir", |w| w.create(a, format!("d{n}").as_bytes(), directory(), at))
            .unwrap();
    }
    let d0 = s.world.lookup(a, b"d0").unwrap().target;
    let at = region();
    s.step("mkdir below", |w| w.create(d0, b"below", directory(), at))
        .unwrap();
    s.step("rename a directory to another", |w| w.rename(a, b"d0", b, b"d0"))
        .unwrap();
    s.step("rename a directory in place", |w| w.rename(b, b"d0", b, b"d00"))
        .unwrap();
    s.step("rename over a directory", |w| w.rename(b, b"d00", a, b"d1"))
        .unwrap();
    s.step("exchange files", |w| w.exchange(a, &name(4, 255), b, b"x"))
        .unwrap();
    s.step("exchange in a directory", |w| {
        w.exchange(a, &name(4, 255), a, &name(5, 255))
    })
    .unwrap();
    s.step("exchange a directory and a file", |w| w.exchange(a, b"d2", b, b"x"))
        .unwrap();
    s.step("exchange directories", |w| w.exchange(a, b"d1", b, b"x"))
        .unwrap();
    s.unseen("a name that exists", |w| w.create(a, b"d1", file(), R0).unwrap_err());
    s.unseen("rmdir of a full directory", |w| w.rmdir(root, b"a").unwrap_err());
    s.unseen("rename over a full directory", |w| {
        w.rename(b, b"x", root, b"a").unwrap_err()
    });
    s.step("unlink one of two names", |w| w.unlink(b, b"one")).unwrap();
    let left: Vec<Vec<u8>> = entries(&mut s.world, b, |e| e.kind != FileKind::Directory);
    for name in left {
        s.step("unlink", |w| w.unlink(b, &name)).unwrap();
    }
    s.unseen("garbage of directories", |w| {
        regions.iter().for_each(|&r| w.collect_garbage(r))
    });
    let x = s.world.lookup(b, b"x").unwrap().target;
    let below: Vec<Vec<u8>> = entries(&mut s.world, x, |_| true);
    for name in below {
        s.step("rmdir", |w| w.rmdir(x, &name)).unwrap();
    }
    s.step("rmdir", |w| w.rmdir(b, b"x")).unwrap();
    s.step("rmdir", |w| w.rmdir(root, b"b")).unwrap();
}

fn entries(world: &mut World, dir: InodeRef, which: impl Fn(&DirEntry) -> bool) -> Vec<Vec<u8>> {
    let all = world.of(dir).read_dir(dir, 0, 1000).unwrap();
    all.into_iter().filter(|e| which(e)).map(|e| e.name).collect()
}

pub fn names_in_one_region() {
    names(&mut Scenario::new("names in one region", Shape::small()), &[R0]);
}

pub fn names_across_two_pools() {
    names(
        &mut Scenario::new("names across two pools", Shape::two_pools()),
        &[R0, R1],
    );
}

pub fn names_across_two_regions_of_a_pool() {
    names(
        &mut Scenario::new("names across two regions", Shape::two_regions()),
        &[R1, R0],
    );
}

/// So many names that a directory's log fills several pages, and goes again.
pub fn a_directory_that_grows() {
    let mut s = Scenario::new("a directory that grows", Shape::small());
    let root = s.world.root();
    let dir = s.world.create(root, b"dir", directory(), R0).unwrap();
    for n in 0..60 {
        // a power cut at some of them: where the log goes over to a page, and to the next ones
        if n < 4 || n % 15 >= 12 {
            s.step("create", |w| w.create(dir, &name(n, 255), file(), R0)).unwrap();
        } else {
            s.world.create(dir, &name(n, 255), file(), R0).unwrap();
        }
    }
    for n in 0..50 {
        if n % 10 == 0 {
            s.step("unlink", |w| w.unlink(dir, &name(n, 255))).unwrap();
        } else {
            s.world.unlink(dir, &name(n, 255)).unwrap();
        }
    }
    s.unseen("garbage", |w| w.collect_garbage(R0));
    s.step("create", |w| w.create(dir, b"one more", file(), R0)).unwrap();
}
