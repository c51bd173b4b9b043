//! Bytes, attributes, garbage collection, sessions, space.

use crate::harness::power::{Scenario, collect_states, go_on, recover_all, verify};
use crate::harness::snapshot::snapshot;
use crate::harness::world::*;
use crate::{R0, R1, directory, file, name, pattern};
use polvo_format::{INLINE_MAX, PAGE};
use polvo_proto::*;
use polvo_region::*;
use std::collections::BTreeSet;

pub fn data() {
    let mut s = Scenario::new("data", Shape::small());
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    let page = PAGE as u64;
    let eager: &[(WriteAt, usize)] = &[
        (WriteAt::Offset(0), 1),
        (WriteAt::Offset(0), 100),
        (WriteAt::Offset(1), INLINE_MAX),
        (WriteAt::Offset(10), INLINE_MAX + 1),
        (WriteAt::Offset(0), EAGER_MAX),
        (WriteAt::Offset(page - 1), 2),
        (WriteAt::Offset(page / 2), EAGER_MAX),
        (WriteAt::End, 1),
        (WriteAt::End, 300),
        (WriteAt::End, EAGER_MAX),
        (WriteAt::End, 700),
        (WriteAt::Offset(20_000), 50),
        (WriteAt::Offset(25_000), EAGER_MAX),
        (WriteAt::Offset(14_000), 3000),
        (WriteAt::Offset(0), EAGER_MAX),
    ];
    for (n, &(at, len)) in eager.iter().enumerate() {
        let bytes = pattern(n as u64, len);
        s.step("write", |w| w.write(f, at, &bytes)).unwrap();
    }
    let commits: &[(WriteAt, &[(u64, usize)])] = &[
        (WriteAt::Offset(0), &[(0, PAGE)]),
        (WriteAt::Offset(0), &[(100, 3 * PAGE)]),
        (WriteAt::Offset(0), &[(0, 10), (50, 10), (5000, PAGE), (60_000, 1)]),
        (WriteAt::End, &[(0, 2 * PAGE)]),
        (WriteAt::End, &[(0, 100), (100, 100), (200, 5000)]),
        (WriteAt::Offset(0), &[(40_000, 40_000)]),
        (WriteAt::Offset(0), &[(39_999, 2)]),
    ];
    for (n, &(from, runs)) in commits.iter().enumerate() {
        let runs: Vec<_> = runs
            .iter()
            .map(|&(offset, len)| (offset, pattern(n as u64 + 50, len)))
            .collect();
        s.step("commit", |w| w.commit(f, &runs, from)).unwrap();
    }
    for size in [79_000, 70_000, 69_633, 69_632, 69_631, 100_000, 4097, 10, 0, 12_345] {
        s.step("truncate", |w| w.truncate(f, size)).unwrap();
        s.step("append after it", |w| w.write(f, WriteAt::End, b"tail"))
            .unwrap();
    }
    s.step("fill", |w| w.commit(f, &[(0, pattern(80, 60_000))], WriteAt::Offset(0)))
        .unwrap();
    use FallocateMode::*;
    for (mode, offset, len) in [
        (PunchHole, 100, 10),
        (PunchHole, 4096, 8192),
        (PunchHole, 5000, 20_000),
        (ZeroRange { keep_size: true }, 59_000, 5000),
        (ZeroRange { keep_size: false }, 59_990, 20),
        (ZeroRange { keep_size: false }, 70_000, 10_001),
        (PunchHole, 0, 1 << 40),
    ] {
        s.step("fallocate", |w| w.fallocate(f, mode, offset, len)).unwrap();
        s.step("write into it", |w| {
            w.write(f, WriteAt::Offset(offset + len / 2), b"in the middle of it")
                .map(|_| ())
        })
        .or_else(|why| if len == 1 << 40 { Ok(()) } else { Err(why) })
        .unwrap();
    }
    let g = s.world.create(root, b"sparse", file(), R0).unwrap();
    for offset in [0, 1 << 32, (1 << 62) + 5] {
        s.step("write far out", |w| w.write(g, WriteAt::Offset(offset), b"far out"))
            .unwrap();
        s.step("commit far out", |w| {
            w.commit(g, &[(offset + 4000, pattern(90, 5000))], WriteAt::Offset(0))
        })
        .unwrap();
    }
    s.unseen("garbage", |w| w.collect_garbage(R0));
    s.step("unlink", |w| w.unlink(root, b"f")).unwrap();
    s.step("truncate far in", |w| w.truncate(g, 1 << 20)).unwrap();
}

pub fn attributes() {
    let mut s = Scenario::new("attributes", Shape::small());
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    let d = s.world.create(root, b"d", directory(), R0).unwrap();
    s.world.write(f, WriteAt::Offset(0), &pattern(1, 3000)).unwrap();
    let none = SetAttr::default();
    let time = |ns| Some(TimeChange::To(ns));
    for inode in [f, d] {
        for set in [
            SetAttr {
                mode: Some(0o4755),
                ..none
            },
            SetAttr { uid: Some(77), ..none },
            SetAttr {
                uid: Some(1),
                gid: Some(u32::MAX - 1),
                ..none
            },
            SetAttr {
                atime: time(-5),
                ..none
            },
            SetAttr {
                mtime: time(i64::MAX),
                atime: Some(TimeChange::Now),
                ..none
            },
            none,
        ] {
            s.step("set_attr", |w| w.set_attr(inode, set)).unwrap();
        }
        for (n, len) in [(1, 0), (2, 10), (3, 200), (4, XATTR_VALUE_MAX), (2, 1000), (4, 5)] {
            let value = pattern(n, len);
            let name = format!("user.{n}");
            s.step("set_xattr", |w| {
                w.set_xattr(inode, name.as_bytes(), &value, XattrMode::Any)
            })
            .unwrap();
        }
        let long = [&b"user."[..], &name(0, 250)].concat();
        s.step("set_xattr", |w| {
            w.set_xattr(inode, &long, &pattern(9, XATTR_VALUE_MAX), XattrMode::Create)
        })
        .unwrap();
        s.step("set_xattr", |w| w.set_xattr(inode, &long, b"new", XattrMode::Replace))
            .unwrap();
        s.step("remove_xattr", |w| w.remove_xattr(inode, b"user.3")).unwrap();
        s.step("remove_xattr", |w| w.remove_xattr(inode, b"user.4")).unwrap();
    }
    let all = SetAttr {
        mode: Some(0o600),
        size: Some(1000),
        mtime: time(7),
        uid: Some(3),
        ..none
    };
    s.step("set_attr with size", |w| w.set_attr(f, all)).unwrap();
    s.step("placement", |w| w.set_placement(d, Some(RegionSet::default())))
        .unwrap();
    s.step("mkdir inherits", |w| w.create(d, b"inherits", directory(), R0))
        .unwrap();
    s.unseen("garbage", |w| w.collect_garbage(R0));
}

/// Logs that are mostly dead are written anew; power cuts at every fence of that, and of changes afterwards.
pub fn garbage_collection() {
    let mut s = Scenario::new("garbage collection", Shape::small());
    let root = s.world.root();
    let files: Vec<_> = (0..3)
        .map(|n| s.world.create(root, &name(n, 3), file(), R0).unwrap())
        .collect();
    for round in 0..4 {
        for (n, &f) in files.iter().enumerate() {
            for i in 0..60 {
                let len = [100, 1000, 3000][n];
                s.world
                    .write(f, WriteAt::Offset(i % 7 * 500), &pattern(round + i, len))
                    .unwrap();
            }
            s.world
                .set_xattr(f, b"user.x", &pattern(round, 600), XattrMode::Any)
                .unwrap();
        }
        for i in 0..40 {
            s.world.create(root, &name(100 + i, 30), file(), R0).unwrap();
            s.world
                .rename(root, &name(100 + i, 30), root, &name(200 + i, 40))
                .unwrap();
            s.world.unlink(root, &name(200 + i, 40)).unwrap();
        }
        let before = snapshot(&mut s.world).unwrap();
        s.unseen("garbage", |w| w.collect_garbage(R0));
        let after = snapshot(&mut s.world).unwrap();
        assert!(
            before.0.iter().any(|(path, node)| node.tail != after.0[path].tail),
            "nothing was collected"
        );
        s.step("write after it", |w| w.write(files[0], WriteAt::End, &pattern(99, 90)))
            .unwrap();
        s.step("create after it", |w| w.create(root, &name(900 + round, 9), file(), R0))
            .unwrap();
    }
}

pub fn sessions_and_space() {
    let mut s = Scenario::new("sessions and space", Shape::small());
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    s.world
        .commit(f, &[(0, pattern(1, 30_000))], WriteAt::Offset(0))
        .unwrap();
    s.unseen("open", |w| w.of(f).open(SESSION, f)).unwrap();
    s.step("unlink of a held file", |w| w.unlink(root, b"f")).unwrap();
    assert_eq!(s.world.region(R0).dead_held(SESSION), [f]);
    s.unseen("write to a dead file", |w| w.write(f, WriteAt::Offset(5), b"dead"))
        .unwrap();
    s.unseen("release of a dead file", |w| w.of(f).release(SESSION, f));
    s.world.of(f).attr(f.ino, Some(f.generation)).unwrap_err();
    for n in 0..4 {
        // the slot, the log pages and the data of the dead are used again
        let g = s.step("create", |w| w.create(root, &name(n, 2), file(), R0)).unwrap();
        s.unseen("ticks", |w| w.region(R0).set_tick(10 * n + 10, 10 * n + 9));
        s.step("commit", |w| {
            w.commit(g, &[(0, pattern(n, 30_000))], WriteAt::Offset(0))
        })
        .unwrap();
        s.world.of(g).open(SESSION, g).unwrap();
        s.step("unlink", |w| w.unlink(root, &name(n, 2))).unwrap();
        s.unseen("end of the session", |w| w.region(R0).end_session(SESSION));
    }
    let space = s.unseen("delegate", |w| w.region(R0).delegate(SESSION, 20)).unwrap();
    s.unseen("return", |w| w.region(R0).return_space(SESSION, &space));
    let unnamed = s
        .unseen("create without a name", |w| w.create_unnamed(root, 0o600))
        .unwrap();
    s.unseen("write to it", |w| {
        w.write(unnamed, WriteAt::Offset(0), &pattern(8, 2000))
    })
    .unwrap();
    s.step("name it", |w| w.link(unnamed, root, b"named")).unwrap();
    s.unseen("let it go", |w| w.of(unnamed).release(SESSION, unnamed));
    let lost = s
        .unseen("create without a name", |w| w.create_unnamed(root, 0o600))
        .unwrap();
    s.unseen("let it go", |w| w.of(lost).release(SESSION, lost));
}

/// Until nothing fits, and after deleting.
pub fn a_full_pool() {
    let mut s = Scenario::new(
        "a full pool",
        Shape {
            pool_len: 3 << 20,
            ..Shape::small()
        },
    );
    s.full = true;
    let root = s.world.root();
    let mut files = 0;
    loop {
        let made = if files % 8 < 2 {
            s.step("create", |w| w.create(root, &name(files, 100), file(), R0))
        } else {
            s.world.create(root, &name(files, 100), file(), R0)
        };
        let f = match made {
            Ok(f) => f,
            Err(RegionError::Fs(FsError::NoSpace)) => break,
            Err(why) => panic!("{why}"),
        };
        files += 1;
        let bytes = pattern(files, 30_000);
        let written = if files % 8 < 2 {
            s.step("commit", |w| w.commit(f, &[(0, bytes)], WriteAt::Offset(0)))
        } else {
            s.world.commit(f, &[(0, bytes)], WriteAt::Offset(0))
        };
        match written {
            Ok(_) => (),
            Err(RegionError::Fs(FsError::NoSpace)) => break,
            Err(why) => panic!("{why}"),
        }
    }
    assert!(files > 10, "{files} files fill the pool");
    // what says "no space" changes nothing (`go_on` needs space: looked at by hand here)
    let before = snapshot(&mut s.world).unwrap();
    let (states, result) = collect_states(&mut s.world, |w| {
        let f = w.lookup(root, &name(0, 100)).unwrap().target;
        w.commit(f, &[(0, pattern(3, 200_000))], WriteAt::Offset(0))
    });
    assert!(matches!(result, Err(RegionError::Fs(FsError::NoSpace))), "{result:?}");
    recover_all("no space", &s.world.shape, s.world.now, &states, |world, _| {
        verify(world, &before, &before, true)
    });
    for n in 0..files {
        if n % 10 == 0 {
            s.step("unlink", |w| w.unlink(root, &name(n, 100))).unwrap();
        } else if s.world.lookup(root, &name(n, 100)).is_ok() {
            s.world.unlink(root, &name(n, 100)).unwrap();
        }
    }
    go_on(&mut s.world).unwrap();
}

/// What one region gives back another one takes.
pub fn segments_change_hands() {
    let shape = Shape {
        pool_len: 4 << 20,
        ..Shape::two_regions()
    };
    let mut s = Scenario::new("segments change hands", shape);
    s.full = true;
    let root = s.world.root();
    let kept = s.world.create(root, b"kept", file(), R0).unwrap();
    s.world
        .commit(kept, &[(0, pattern(1, 10_000))], WriteAt::Offset(0))
        .unwrap();
    for round in 0..3 {
        for (from, to) in [(R0, R1), (R1, R0)] {
            let mut filled = Vec::new();
            for n in 0.. {
                let f = s.world.create(root, &name(n, 20), file(), from).unwrap();
                filled.push(name(n, 20));
                match s.world.commit(f, &[(0, pattern(n, 200_000))], WriteAt::Offset(0)) {
                    Ok(_) => (),
                    Err(RegionError::Fs(FsError::NoSpace)) => break,
                    Err(why) => panic!("{why}"),
                }
            }
            assert!(filled.len() > 3, "round {round}: {} files fill the pool", filled.len());
            let f = s.world.create(root, b"next", file(), to).unwrap();
            let bytes = pattern(round, 300_000);
            let result = s.world.commit(f, &[(0, bytes.clone())], WriteAt::Offset(0));
            assert!(matches!(result, Err(RegionError::Fs(FsError::NoSpace))), "{result:?}");
            for name in filled {
                s.world.unlink(root, &name).unwrap();
            }
            let result = s.world.commit(f, &[(0, bytes.clone())], WriteAt::Offset(0));
            assert!(
                matches!(result, Err(RegionError::Fs(FsError::NoSpace))),
                "not given back: {result:?}"
            );
            let mut told = Vec::new();
            let before: Vec<_> = s.world.region(from).segments().map(|segment| segment.0).collect();
            let released = s.step("release", |w| w.region(from).release_segments(|index| told.push(index)));
            assert_eq!(released as usize, told.len());
            assert!(released >= 2, "round {round}: {released} given back");
            s.step("commit into what was given back", |w| {
                w.commit(f, &[(0, bytes)], WriteAt::Offset(0))
            })
            .unwrap();
            assert_eq!(s.world.check(), [""; 0]);
            let grown = s.world.create(root, b"grown", file(), from).unwrap();
            s.world
                .commit(grown, &[(0, pattern(round, 100_000))], WriteAt::Offset(0))
                .unwrap();
            let fresh = s.world.region(from).segments().map(|segment| segment.0);
            let reused: Vec<u32> = fresh.filter(|index| told.contains(index)).collect();
            assert_eq!(reused, [], "of {before:?}");
            for name in [&b"next"[..], b"grown"] {
                s.world.unlink(root, name).unwrap();
            }
            s.world.region(to).release_segments(|_| ());
        }
        s.world.restart().unwrap();
    }
    assert_eq!(s.world.read(kept, 0, 10_000).unwrap(), pattern(1, 10_000));
}

/// Segments of inodes and of logs go back when what was in them is deleted, logs that are left being moved; nobody is taken
/// for another one afterwards, wherever the power is cut.
pub fn segments_of_inodes_and_logs_go_back() {
    // more inodes than a segment has slots; those in a directory of their own go later, so that its log is moved
    const CROWD: u64 = 1100;
    const LATER: u64 = CROWD - 50;
    let mut s = Scenario::new("segments of inodes and logs go back", Shape::small());
    let root = s.world.root();
    let count = |world: &mut World| {
        let segments = world.region(R0).segments();
        segments.filter(|segment| segment.2 != SegmentClass::Data).count()
    };
    let fresh = count(&mut s.world);
    let later = s.world.create(root, b"later", directory(), R0).unwrap();
    let dir = |n| if n < LATER { root } else { later };
    let seen: BTreeSet<InodeRef> = (0..CROWD)
        .map(|n| s.world.create(dir(n), &name(n, 200), file(), R0).unwrap())
        .collect();
    let full = count(&mut s.world);
    assert!(full > fresh + 2);
    for n in (0..LATER).chain((LATER..CROWD).step_by(2)) {
        s.world.unlink(dir(n), &name(n, 200)).unwrap();
    }
    for round in 0..6 {
        if round == 2 {
            for n in (LATER..CROWD).skip(1).step_by(2) {
                s.world.unlink(later, &name(n, 200)).unwrap();
            }
        }
        s.world.collect_garbage(R0);
        let what = format!("shrink, round {round}");
        if round % 2 == 1 {
            s.unseen(&what, |w| w.region(R0).shrink(EVERYBODY, |_| ()));
        } else {
            let (states, _) = collect_states(&mut s.world, |w| w.region(R0).shrink(EVERYBODY, |_| ()));
            recover_all(&what, &s.world.shape, s.world.now, &states, |world, _| {
                for n in 0..CROWD {
                    let new = world.create(root, &name(n, 5), file(), R0);
                    let new = new.map_err(|why| why.to_string())?;
                    if seen.contains(&new) {
                        return Err(format!("{new:?} has been another file"));
                    }
                }
                match &world.check()[..] {
                    [] => Ok(()),
                    findings => Err(findings.join("; ")),
                }
            });
        }
        let tick = s.world.tick() as u64;
        s.world.region(R0).set_tick(tick, tick - 1);
    }
    assert_eq!(count(&mut s.world), fresh, "{full} before");
    assert_eq!(s.world.check(), [""; 0]);
}
