//! Short scenarios in which a planted bug shows. On one thread, that of the test, since a bug is planted in a thread.

use crate::harness::mirrors::step_mirrored;
use crate::harness::power::Scenario;
use crate::harness::world::*;
use crate::{R0, R1, directory, file, pattern};
use polvo_format::{FileKind, Lsn, PAGE, SessionId};
use polvo_proto::*;

const OTHER: SessionId = SessionId(0x07e4);

fn small() -> Shape {
    Shape {
        pool_len: 2 << 20,
        ..Shape::small()
    }
}

fn two_pools() -> Shape {
    Shape {
        home: vec![0, 1],
        ..small()
    }
}

pub fn small_writes() {
    let mut s = Scenario::of("small writes", World::new(small()), 1);
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    s.step("append a page and some", |w| {
        w.write(f, WriteAt::End, &pattern(1, 4000))
    })
    .unwrap();
    s.step("append into the page", |w| w.write(f, WriteAt::End, &pattern(2, 1000)))
        .unwrap();
    s.step("write inline", |w| w.write(f, WriteAt::Offset(40), &pattern(3, 200)))
        .unwrap();
}

/// Data goes to pages that held other data before, whose checksums are durable.
pub fn pages_used_again() {
    let mut s = Scenario::of("pages used again", World::new(small()), 1);
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    for (number, name) in [(1, b"a"), (2, b"b")] {
        let old = s.world.create(root, name, file(), R0).unwrap();
        s.world
            .commit(old, &[(0, pattern(number, 9000))], WriteAt::Offset(0))
            .unwrap();
        s.world.unlink(root, name).unwrap();
    }
    s.world.region(R0).set_tick(9, 8);
    s.step("commit", |w| w.commit(f, &[(0, pattern(3, 9000))], WriteAt::Offset(0)))
        .unwrap();
    s.step("append", |w| w.write(f, WriteAt::End, &pattern(4, 4000)))
        .unwrap();
}

/// In one region: names and inodes in two logs and more.
pub fn renames() {
    let mut s = Scenario::of("renames", World::new(small()), 1);
    let root = s.world.root();
    let a = s.world.create(root, b"a", directory(), R0).unwrap();
    let b = s.world.create(root, b"b", directory(), R0).unwrap();
    s.world.create(a, b"one", file(), R0).unwrap();
    s.step("rename across directories", |w| w.rename(a, b"one", b, b"two"))
        .unwrap();
    s.step("rename in a directory", |w| w.rename(b, b"two", b, b"three"))
        .unwrap();
    s.step("unlink", |w| w.unlink(b, b"three")).unwrap();
}

/// The same with the inodes apart.
pub fn renames_across() {
    let mut s = Scenario::of("renames across", World::new(two_pools()), 1);
    let root = s.world.root();
    let a = s.world.create(root, b"a", directory(), R0).unwrap();
    let b = s.world.create(root, b"b", directory(), R1).unwrap();
    s.world.create(a, b"one", file(), R1).unwrap();
    s.step("rename across directories", |w| w.rename(a, b"one", b, b"two"))
        .unwrap();
    s.step("link", |w| {
        let inode = w.lookup(b, b"two").unwrap().target;
        w.link(inode, a, b"three")
    })
    .unwrap();
    s.step("unlink", |w| w.unlink(b, b"two")).unwrap();
}

/// The same with logs that have pages of their own.
pub fn renames_between_long_logs() {
    let mut s = Scenario::of("renames between long logs", World::new(two_pools()), 1);
    let root = s.world.root();
    let a = s.world.create(root, b"a", directory(), R0).unwrap();
    let b = s.world.create(root, b"b", directory(), R1).unwrap();
    for n in 0..30u8 {
        s.world.create(a, &[b'a', n + 1], file(), R0).unwrap();
        s.world.create(b, &[b'b', n + 1], file(), R1).unwrap();
    }
    s.step("there", |w| w.rename(a, b"a\x05", b, b"moved")).unwrap();
    s.step("back", |w| w.rename(b, b"moved", a, b"again")).unwrap();
}

/// Two transactions want to link the same file.
pub fn two_coordinators() {
    let mut w = World::new(two_pools());
    let root = w.root();
    let inode = w.create(root, b"there", file(), R1).unwrap();
    let link = |name: &[u8]| {
        let (dir, target, kind) = (root, Some(inode), FileKind::File);
        let add = Intent::AddName {
            dir,
            name: name.into(),
            target,
            kind,
        };
        vec![(R0, add), (R1, Intent::AddLink { inode })]
    };
    let first = w.collect(R0, link(b"first")).unwrap();
    let second = w.collect(R0, link(b"second"));
    assert!(second.is_err(), "the second one waits for the first");
    w.decide_and_dispatch(first).unwrap();
    w.transact(R0, link(b"second")).unwrap();
    assert_eq!(w.attr(inode).unwrap().nlink, 3);
    assert_eq!(w.check(), [""; 0]);
}

/// Somebody reads by a map of the file that was right a moment ago; he was last seen at tick 5.
pub fn a_slow_reader() {
    let mut w = World::new(small());
    let root = w.root();
    let f = w.create(root, b"f", file(), R0).unwrap();
    let old = pattern(1, 8 * PAGE);
    w.region(R0).set_tick(5, 4);
    w.commit(f, &[(0, old.clone())], WriteAt::Offset(0)).unwrap();
    let map = w.of(f).file_map(f, 0).unwrap();
    w.region(R0).set_tick(6, 4);
    w.commit(f, &[(0, pattern(2, 8 * PAGE))], WriteAt::Offset(0)).unwrap();
    w.region(R0).set_tick(7, 5);
    let g = w.create(root, b"g", file(), R0).unwrap();
    // all there is but what is in quarantine: nobody is short of space
    for n in 0..4 {
        w.commit(
            g,
            &[(n * 8 * PAGE as u64, pattern(3 + n, 8 * PAGE))],
            WriteAt::Offset(0),
        )
        .unwrap();
    }
    let mut read = Vec::new();
    for extent in &map.extents {
        let (pmem, at) = w.locate(extent.gpa);
        let mut bytes = vec![0; extent.len as usize];
        pmem.read(at, &mut bytes);
        read.extend(bytes);
    }
    assert!(read == old, "the reader sees others' bytes");
    w.region(R0).set_tick(8, 6);
    assert_eq!(w.check(), [""; 0]);
}

/// Mirrors of two nodes lose their power, and so do the nodes.
pub fn mirrors_lose_power() {
    let mut w = World::new(two_pools());
    let root = w.root();
    let a = w.create(root, b"a", directory(), R0).unwrap();
    let b = w.create(root, b"b", directory(), R1).unwrap();
    let f = w.create(a, b"one", file(), R1).unwrap();
    let all = |snapshot| snapshot;
    step_mirrored(&mut w, "rename", all, true, |w| w.rename(a, b"one", b, b"two"))
        .0
        .unwrap();
    // of which the participant has the old directory and the file
    step_mirrored(&mut w, "rename back", all, false, |w| w.rename(b, b"two", a, b"one"))
        .0
        .unwrap();
    step_mirrored(&mut w, "commit", all, true, |w| {
        w.commit(f, &[(0, pattern(1, 9000))], WriteAt::Offset(0))
    })
    .0
    .unwrap();
}

/// A file is written and cut off; its mirror gets what was written, from where it lies, later than others use space.
pub fn a_slow_mirror() {
    let mut w = World::new(small());
    let root = w.root();
    w.region(R0).capture(Lsn(0));
    let f = w.create(root, b"f", file(), R0).unwrap();
    let old = pattern(1, 8 * PAGE);
    w.region(R0).set_tick(5, 4);
    w.commit(f, &[(0, old.clone())], WriteAt::Offset(0)).unwrap();
    let map = w.of(f).file_map(f, 0).unwrap();
    let written = w.region(R0).take_records(&mut Vec::new()).unwrap();
    w.truncate(f, 0).unwrap();
    w.region(R0).set_mirrored(Lsn(written.0 - 1));
    w.region(R0).set_tick(8, 7);
    let g = w.create(root, b"g", file(), R0).unwrap();
    for n in 0..5 {
        let at = n * 8 * PAGE as u64;
        w.commit(g, &[(at, pattern(3 + n, 8 * PAGE))], WriteAt::Offset(0))
            .unwrap();
    }
    let mut sent = Vec::new();
    for extent in &map.extents {
        let (pmem, at) = w.locate(extent.gpa);
        let mut bytes = vec![0; extent.len as usize];
        pmem.read(at, &mut bytes);
        sent.extend(bytes);
    }
    assert!(sent == old, "the mirror is sent others' bytes");
    let all = w.region(R0).take_records(&mut Vec::new()).unwrap();
    w.region(R0).set_mirrored(all);
    w.region(R0).set_tick(9, 8);
    assert_eq!(w.check(), [""; 0]);
}

/// A session ends with pages that it may still write to, then `others` use space, then it writes. Nobody notices.
fn late(others: fn(&mut World)) {
    let mut w = World::new(small());
    let root = w.root();
    let mut late = Vec::new();
    while late.iter().map(|run: &PageRun| run.pages).sum::<u32>() < 24 {
        late.extend(w.region(R0).delegate(OTHER, 24).unwrap());
    }
    w.region(R0).end_session(OTHER);
    let f = w.create(root, b"f", file(), R0).unwrap();
    w.commit(f, &[(0, pattern(1, 20 * PAGE))], WriteAt::Offset(0)).unwrap();
    others(&mut w);
    let written = crate::harness::snapshot::snapshot(&mut w).unwrap();
    for run in late {
        let (pmem, at) = w.locate(run.gpa);
        pmem.write_streaming(at, &vec![0xee; run.pages as usize * PAGE]);
        pmem.fence();
    }
    let now = crate::harness::snapshot::snapshot(&mut w).unwrap();
    assert!(now == written, "the late writer hits another file");
    assert_eq!(w.check(), [""; 0]);
}

pub fn a_late_writer() {
    late(|_| ());
}

pub fn a_late_writer_when_space_is_short() {
    late(|w| {
        let root = w.root();
        let g = w.create(root, b"g", file(), R0).unwrap();
        let page = |n: u64| (n * PAGE as u64, pattern(n, PAGE));
        let full = (0..10_000).find_map(|n| w.commit(g, &[page(n)], WriteAt::Offset(0)).err());
        assert!(
            matches!(full, Some(polvo_region::RegionError::Fs(FsError::NoSpace))),
            "{full:?}"
        );
    });
}

/// A session writes, commits, and ends.
pub fn a_session_ends() {
    let mut s = Scenario::of("a session ends", World::new(small()), 1);
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    s.step("commit", |w| w.commit(f, &[(0, pattern(1, 9000))], WriteAt::Offset(0)))
        .unwrap();
    assert_eq!(s.world.check(), [""; 0]);
    s.unseen("end of the session", |w| w.region(R0).end_session(SESSION));
    assert_eq!(s.world.check(), [""; 0]);
    s.step("commit", |w| w.commit(f, &[(0, pattern(2, 9000))], WriteAt::Offset(0)))
        .unwrap();
}

/// Two sessions hold a file without a name; one lets go.
pub fn two_holders() {
    let mut w = World::new(small());
    let root = w.root();
    let f = w.create(root, b"f", file(), R0).unwrap();
    w.write(f, WriteAt::Offset(0), b"held").unwrap();
    w.of(f).open(SESSION, f).unwrap();
    w.of(f).open(OTHER, f).unwrap();
    w.unlink(root, b"f").unwrap();
    w.of(f).release(OTHER, f);
    let read = w.read(f, 0, 10);
    assert!(
        matches!(&read, Ok(bytes) if bytes == b"held"),
        "the other one still holds it: {read:?}"
    );
    w.of(f).release(SESSION, f);
    assert!(w.attr(f).is_err());
    assert_eq!(w.check(), [""; 0]);
}

/// Makes the log of a file long and mostly dead, with something live of each kind at its beginning.
fn wear(w: &mut World, f: InodeRef) {
    w.set_xattr(f, b"user.live", &pattern(1, 500), XattrMode::Any).unwrap();
    w.commit(f, &[(0, pattern(2, 9000))], WriteAt::Offset(0)).unwrap();
    for round in 0..8 {
        for piece in 0..20 {
            w.write(f, WriteAt::Offset(piece * 100), &pattern(round * 20 + piece, 100))
                .unwrap();
        }
        for n in 0..8 {
            w.set_xattr(f, b"user.dead", &pattern(n, 400), XattrMode::Any).unwrap();
        }
    }
}

pub fn garbage() {
    let mut s = Scenario::of("garbage", World::new(small()), 1);
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    wear(&mut s.world, f);
    let version = |w: &mut World| w.of(f).attr(f.ino, None).unwrap().1.version();
    let before = version(&mut s.world);
    s.unseen("garbage", |w| w.collect_garbage(R0));
    assert_eq!(version(&mut s.world), before + 1, "the log is written anew");
    s.step("write after it", |w| w.write(f, WriteAt::End, &pattern(9, 90)))
        .unwrap();
}

/// A transaction has collected an inode whose log is mostly dead.
pub fn garbage_of_what_is_held() {
    let mut w = World::new(two_pools());
    let root = w.root();
    let inode = w.create(root, b"there", file(), R1).unwrap();
    wear(&mut w, inode);
    let add = Intent::AddName {
        dir: root,
        name: b"new".into(),
        target: Some(inode),
        kind: FileKind::File,
    };
    let collecting = w.collect(R0, vec![(R0, add), (R1, Intent::AddLink { inode })]).unwrap();
    w.collect_garbage(R1);
    w.decide_and_dispatch(collecting).unwrap();
    let nlink = w.attr(inode).map(|attr| attr.nlink);
    assert!(matches!(nlink, Ok(2)), "after the transaction: {nlink:?}");
    assert_eq!(w.check(), [""; 0], "after the transaction");
    w.restart().unwrap();
    assert_eq!(w.check(), [""; 0], "after the transaction");
}
