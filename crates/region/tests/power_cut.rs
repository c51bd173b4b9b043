//! Power cuts at every fence of every operation of the crate: recovery gives the state before the operation or the one
//! after it, never another; then a check finds nothing and work goes on.
//!
//! Without libtest, since each scenario uses all CPUs by itself and the figures come last. Arguments: parts of names of
//! scenarios to run (all without). `POLVO_SEED` sets another seed for what survives, `ROUNDS` multiplies the number of
//! random states.

mod harness;

use harness::power::{CrashState, STATES, Scenario, collect_states, durable, go_on, recover_all, seed, verify};
use harness::snapshot::{node, snapshot};
use harness::world::*;
use polvo_format::{FileKind, INLINE_MAX, PAGE, RegionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::KeepAll;
use polvo_proto::*;
use polvo_region::*;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);

/// Bytes that tell where they were meant to go.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(seed * 2 + 7).wrapping_add(i >> 8) ^ seed) as u8 | 1)
        .collect()
}

fn file() -> NewFile {
    new_file(FileKind::File, 0o644)
}

fn directory() -> NewFile {
    new_file(FileKind::Directory, 0o755)
}

fn name(n: u64, len: usize) -> Vec<u8> {
    format!("{n:0len$}").into_bytes()
}

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

fn names_in_one_region() {
    names(&mut Scenario::new("names in one region", Shape::small()), &[R0]);
}

fn names_across_two_pools() {
    names(
        &mut Scenario::new("names across two pools", Shape::two_pools()),
        &[R0, R1],
    );
}

fn names_across_two_regions_of_a_pool() {
    names(
        &mut Scenario::new("names across two regions", Shape::two_regions()),
        &[R1, R0],
    );
}

/// So many names that a directory's log fills several pages, and goes again.
fn a_directory_that_grows() {
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

fn data() {
    let mut s = Scenario::new("data", Shape::small());
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    let page = PAGE as u64;
    let eager: &[(Option<u64>, usize)] = &[
        (Some(0), 1),
        (Some(0), 100),
        (Some(1), INLINE_MAX),
        (Some(10), INLINE_MAX + 1),
        (Some(0), EAGER_MAX),
        (Some(page - 1), 2),
        (Some(page / 2), EAGER_MAX),
        (None, 1),
        (None, 300),
        (None, EAGER_MAX),
        (None, 700),
        (Some(20_000), 50),
        (Some(25_000), EAGER_MAX),
        (Some(14_000), 3000),
        (Some(0), EAGER_MAX),
    ];
    for (n, &(offset, len)) in eager.iter().enumerate() {
        let bytes = pattern(n as u64, len);
        s.step("write", |w| w.write(f, offset, &bytes)).unwrap();
    }
    let commits: &[(bool, &[(u64, usize)])] = &[
        (false, &[(0, PAGE)]),
        (false, &[(100, 3 * PAGE)]),
        (false, &[(0, 10), (50, 10), (5000, PAGE), (60_000, 1)]),
        (true, &[(0, 2 * PAGE)]),
        (true, &[(0, 100), (100, 100), (200, 5000)]),
        (false, &[(40_000, 40_000)]),
        (false, &[(39_999, 2)]),
    ];
    for (n, &(append, runs)) in commits.iter().enumerate() {
        let runs: Vec<_> = runs
            .iter()
            .map(|&(offset, len)| (offset, pattern(n as u64 + 50, len)))
            .collect();
        s.step("commit", |w| w.commit(f, &runs, append)).unwrap();
    }
    for size in [79_000, 70_000, 69_633, 69_632, 69_631, 100_000, 4097, 10, 0, 12_345] {
        s.step("truncate", |w| w.truncate(f, size)).unwrap();
        s.step("append after it", |w| w.write(f, None, b"tail")).unwrap();
    }
    s.step("fill", |w| w.commit(f, &[(0, pattern(80, 60_000))], false))
        .unwrap();
    use FallocateMode::*;
    for (mode, offset, len) in [
        (PunchHole, 100, 10),
        (PunchHole, 4096, 8192),
        (PunchHole, 5000, 20_000),
        (ZeroRange { keep_size: true }, 59_000, 5000),
        (ZeroRange { keep_size: false }, 59_990, 20),
        (Extend, 0, 70_000),
        (Extend, 80_000, 1),
        (KeepSize, 90_000, 10_000),
        (PunchHole, 0, 1 << 40),
    ] {
        s.step("fallocate", |w| w.fallocate(f, mode, offset, len)).unwrap();
        s.step("write into it", |w| {
            w.write(f, Some(offset + len / 2), b"in the middle of it").map(|_| ())
        })
        .or_else(|why| if len == 1 << 40 { Ok(()) } else { Err(why) })
        .unwrap();
    }
    let g = s.world.create(root, b"sparse", file(), R0).unwrap();
    for offset in [0, 1 << 32, (1 << 62) + 5] {
        s.step("write far out", |w| w.write(g, Some(offset), b"far out"))
            .unwrap();
        s.step("commit far out", |w| {
            w.commit(g, &[(offset + 4000, pattern(90, 5000))], false)
        })
        .unwrap();
    }
    s.unseen("garbage", |w| w.collect_garbage(R0));
    s.step("unlink", |w| w.unlink(root, b"f")).unwrap();
    s.step("truncate far in", |w| w.truncate(g, 1 << 20)).unwrap();
}

fn attributes() {
    let mut s = Scenario::new("attributes", Shape::small());
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    let d = s.world.create(root, b"d", directory(), R0).unwrap();
    s.world.write(f, Some(0), &pattern(1, 3000)).unwrap();
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
    s.step("placement", |w| {
        w.set_xattr(d, b"polvo.placement", b"local", XattrMode::Any)
    })
    .unwrap();
    s.step("mkdir inherits", |w| w.create(d, b"inherits", directory(), R0))
        .unwrap();
    s.unseen("garbage", |w| w.collect_garbage(R0));
}

/// Logs that are mostly dead are written anew; power cuts at every fence of that, and of changes afterwards.
fn garbage_collection() {
    let mut s = Scenario::new("garbage collection", Shape::small());
    let root = s.world.root();
    let files: Vec<_> = (0..3)
        .map(|n| s.world.create(root, &name(n, 3), file(), R0).unwrap())
        .collect();
    for round in 0..4 {
        for (n, &f) in files.iter().enumerate() {
            for i in 0..60 {
                let len = [100, 1000, 3000][n];
                s.world.write(f, Some(i % 7 * 500), &pattern(round + i, len)).unwrap();
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
        s.step("write after it", |w| w.write(files[0], None, &pattern(99, 90)))
            .unwrap();
        s.step("create after it", |w| w.create(root, &name(900 + round, 9), file(), R0))
            .unwrap();
    }
}

fn sessions_and_space() {
    let mut s = Scenario::new("sessions and space", Shape::small());
    let root = s.world.root();
    let f = s.world.create(root, b"f", file(), R0).unwrap();
    s.world.commit(f, &[(0, pattern(1, 30_000))], false).unwrap();
    s.unseen("open", |w| w.of(f).open(SESSION, f)).unwrap();
    s.step("unlink of a held file", |w| w.unlink(root, b"f")).unwrap();
    assert_eq!(s.world.region(R0).dead_held(SESSION), [f]);
    s.unseen("write to a dead file", |w| w.write(f, Some(5), b"dead"))
        .unwrap();
    s.unseen("release of a dead file", |w| w.of(f).release(SESSION, f));
    s.world.of(f).attr(f.ino, Some(f.generation)).unwrap_err();
    for n in 0..4 {
        // the slot, the log pages and the data of the dead are used again
        let g = s.step("create", |w| w.create(root, &name(n, 2), file(), R0)).unwrap();
        s.unseen("ticks", |w| w.region(R0).set_tick(10 * n + 10, 10 * n + 9));
        s.step("commit", |w| w.commit(g, &[(0, pattern(n, 30_000))], false))
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
    s.unseen("write to it", |w| w.write(unnamed, Some(0), &pattern(8, 2000)))
        .unwrap();
    s.step("name it", |w| w.link(unnamed, root, b"named")).unwrap();
    s.unseen("let it go", |w| w.of(unnamed).release(SESSION, unnamed));
    let lost = s
        .unseen("create without a name", |w| w.create_unnamed(root, 0o600))
        .unwrap();
    s.unseen("let it go", |w| w.of(lost).release(SESSION, lost));
}

/// Until nothing fits, and after deleting.
fn a_full_pool() {
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
            s.step("commit", |w| w.commit(f, &[(0, bytes)], false))
        } else {
            s.world.commit(f, &[(0, bytes)], false)
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
        w.commit(f, &[(0, pattern(3, 200_000))], false)
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

/// `Region::create` cut short: the region is there and empty, or it can be made.
fn making_a_region() {
    let pmem = Pmem::simulated(3 << 20);
    let identity = PoolIdentity {
        cluster: [1; 16],
        pool: [1; 16],
        node: polvo_format::NodeId(1),
    };
    PoolSpace::format(
        &pmem,
        &FormatParams {
            identity,
            segment_shift: Some(18),
        },
    )
    .unwrap();
    for id in [R0, RegionId(7)] {
        let shape = Shape {
            pool_len: 3 << 20,
            ..Shape::small()
        };
        let mut w = World {
            shape: shape.clone(),
            pools: vec![PoolSpace::open(pmem.clone()).unwrap()],
            regions: vec![],
            now: START_NS,
        };
        let (mut states, region) = collect_states(&mut w, |w| Region::create(&w.pools[0], id, START_NS).unwrap());
        assert_eq!(region.id(), id);
        drop(region);
        states.push(CrashState {
            images: durable(&w),
            how: "after its end".into(),
        });
        let mut recovered = 0;
        for state in &states {
            let pool = PoolSpace::open(Pmem::simulated_from_image(&state.images[0])).unwrap();
            let region = match Region::recover(&pool, id, &mut |_, _| ()) {
                Ok((region, _)) => {
                    recovered += 1;
                    region
                }
                Err(recover) => Region::create(&pool, id, START_NS)
                    .unwrap_or_else(|why| panic!("{}: {why}; recovery: {recover}", state.how)),
            };
            STATES.fetch_add(1, Relaxed);
            if id == R0 {
                let mut w = World {
                    shape: shape.clone(),
                    pools: vec![pool],
                    regions: vec![region],
                    now: START_NS,
                };
                assert_eq!(snapshot(&mut w).unwrap().0.len(), 1);
                go_on(&mut w).unwrap_or_else(|why| panic!("{}: {why:?}", state.how));
            }
        }
        assert!(
            recovered > 0 && recovered < states.len(),
            "{recovered} of {}",
            states.len()
        );
    }
}

/// Power cuts while recovering from a power cut.
fn recovery_cut_short() {
    let mut s = Scenario::new("recovery cut short", Shape::two_pools());
    let root = s.world.root();
    let held = s.world.create(root, b"held", file(), R1).unwrap();
    s.world.commit(held, &[(0, pattern(1, 9000))], false).unwrap();
    s.world.of(held).open(SESSION, held).unwrap();
    s.world.unlink(root, b"held").unwrap();
    let other = s.world.create(root, b"other", file(), R0).unwrap();
    s.world.write(other, Some(0), b"other").unwrap();
    let before = snapshot(&mut s.world).unwrap();
    let (states, result) = collect_states(&mut s.world, |w| {
        w.create(root, b"new", directory(), R1)?;
        w.rename(root, b"other", root, b"renamed")
    });
    result.unwrap();
    let after = snapshot(&mut s.world).unwrap();
    let (shape, now) = (s.world.shape.clone(), s.world.now);
    for state in states.iter().step_by(7) {
        // not Scenario::step: the state before the recovery is one of three
        let mut w = World::open_images(&shape, &state.images, now).unwrap();
        let settled = snapshot(&mut w).unwrap();
        let pmems: Vec<_> = state.images.iter().map(Pmem::simulated_from_image).collect();
        let pools = pmems
            .iter()
            .cloned()
            .map(PoolSpace::open)
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        let mut starting = World {
            shape: shape.clone(),
            pools,
            regions: vec![],
            now,
        };
        let (again, result) = collect_states(&mut starting, |w| {
            World::open(shape.clone(), pmems.clone(), w.now).map(|_| ())
        });
        result.unwrap();
        recover_all(&format!("recovery of {}", state.how), &shape, now, &again, |w, _| {
            verify(w, &settled, &settled, true)
        });
    }
    assert!(before != after);
}

/// Transactions across two pools of which only one loses its power while the other's process lives on.
fn one_side_of_a_transaction_fails() {
    type Change = fn(&mut World, InodeRef) -> Result<Collecting, RegionError>;
    let changes: [(&str, Change); 5] = [
        ("create", |w, root| w.collect_create(root, b"new", file(), R1)),
        ("mkdir", |w, root| w.collect_create(root, b"new", directory(), R1)),
        ("symlink", |w, root| {
            w.collect_create(root, b"new", symlink(&pattern(1, 4000)), R1)
        }),
        ("link", |w, root| {
            let inode = w.lookup(root, b"there")?.target;
            let add = Intent::AddName {
                dir: root,
                name: b"new".into(),
                target: Some(inode),
                kind: FileKind::File,
            };
            w.collect(R0, vec![(R0, add), (R1, Intent::AddLink { inode })])
        }),
        ("unlink", |w, root| {
            let target = w.lookup(root, b"there")?.target;
            let remove = Intent::RemoveName {
                dir: root,
                name: b"there".into(),
                target,
            };
            w.collect(R0, vec![(R0, remove), (R1, Intent::DropLink { inode: target })])
        }),
    ];
    let prepare = || {
        let mut w = World::new(Shape::two_pools());
        let root = w.root();
        let there = w.create(root, b"there", file(), R1).unwrap();
        w.write(there, Some(0), b"there").unwrap();
        let before = snapshot(&mut w).unwrap();
        (w, root, before)
    };
    let mut states = 0;
    for (what, change) in changes {
        let after = {
            let (mut w, root, _) = prepare();
            let collecting = change(&mut w, root).unwrap();
            w.decide_and_dispatch(collecting).unwrap();
            snapshot(&mut w).unwrap()
        };
        // The coordinator fails while deciding. The participant lives: it takes over what is dispatched after the
        // restart, or lets go.
        let count = {
            let (mut w, root, _) = prepare();
            let collecting = change(&mut w, root).unwrap();
            collect_states(&mut w, |w| w.decide(&collecting).unwrap().record.unwrap())
                .0
                .len()
        };
        for number in 0..count {
            let (mut w, root, before) = prepare();
            let collecting = change(&mut w, root).unwrap();
            let (cuts, _) = collect_states(&mut w, |w| w.decide(&collecting).unwrap().record.unwrap());
            let pool = PoolSpace::open(Pmem::simulated_from_image(&cuts[number].images[0])).unwrap();
            let decided = pool.is_logged(collecting.txn);
            assert_eq!(decided, !pool.undispatched().is_empty());
            w.regions[0] = Region::recover(&pool, R0, &mut |_, _| ()).unwrap().0;
            w.pools[0] = pool;
            w.redispatch();
            let open = w.region(R1).settle();
            if decided {
                assert_eq!(open, [], "{what}, {}", cuts[number].how);
            } else {
                assert_eq!(open, [collecting.txn], "{what}, {}", cuts[number].how);
                w.region(R1).abort(collecting.txn);
                assert_eq!(w.region(R1).settle(), []);
            }
            let expected = if decided { &after } else { &before };
            verify(&mut w, expected, expected, true)
                .and_then(|()| go_on(&mut w).map_err(|why| format!("{why:?}")))
                .unwrap_or_else(|why| panic!("{what}, coordinator fails, {}: {why}", cuts[number].how));
            states += 1;
        }
        // The participant fails after it has collected, before or while it is dispatched to; the coordinator lives.
        for dispatched in 0.. {
            let (mut w, root, _) = prepare();
            let collecting = change(&mut w, root).unwrap();
            let record = w.decide(&collecting).unwrap().record.unwrap();
            let (cuts, ()) = collect_states(&mut w, |w| w.dispatch(collecting.txn, &collecting.remote[0]));
            let Some(cut) = cuts.get(dispatched) else { break };
            let pool = PoolSpace::open(Pmem::simulated_from_image(&cut.images[1])).unwrap();
            let (region, recovery) = Region::recover(&pool, R1, &mut |_, _| ()).unwrap();
            assert!(recovery.held_by.iter().all(|&txn| txn == collecting.txn));
            w.regions[1] = region;
            w.pools[1] = pool;
            w.dispatch(collecting.txn, &collecting.remote[0]);
            w.pools[0].retire(record);
            assert_eq!(w.region(R1).settle(), []);
            verify(&mut w, &after, &after, true)
                .and_then(|()| go_on(&mut w).map_err(|why| format!("{why:?}")))
                .unwrap_or_else(|why| panic!("{what}, participant fails, {}: {why}", cut.how));
            states += 1;
        }
        // The participant fails while collecting: the coordinator hears nothing and gives up.
        let (mut w, root, before) = prepare();
        let (cuts, collecting) = collect_states(&mut w, |w| change(w, root).unwrap());
        let image = w.pools[0].pmem().sim().unwrap().image(&mut KeepAll);
        for cut in cuts {
            let images = [image.clone(), cut.images[1].clone()];
            let mut w = World::open_images(
                &Shape::two_pools(),
                &images,
                collecting.txn.sequence() as i64 + START_NS,
            )
            .unwrap();
            verify(&mut w, &before, &before, true)
                .and_then(|()| go_on(&mut w).map_err(|why| format!("{why:?}")))
                .unwrap_or_else(|why| panic!("{what}, participant fails in collect, {}: {why}", cut.how));
            states += 1;
        }
    }
    STATES.fetch_add(states, Relaxed);
}

/// A long mixed life: whatever the sequence, each operation is whole.
fn a_random_life() {
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
                    let offset = (c % 3 != 0).then_some(a);
                    s.step("write", |w| w.write(e.target, offset, &bytes)).unwrap();
                }
                (8, Some(e)) => {
                    s.step("commit", |w| w.commit(e.target, &[(a, pattern(c, b))], c % 3 == 0))
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
fn a_third_state_is_noticed() {
    let mut w = World::new(Shape::small());
    let root = w.root();
    let before = snapshot(&mut w).unwrap();
    w.create(root, b"one", file(), R0).unwrap();
    let after = snapshot(&mut w).unwrap();
    let one = w.lookup(root, b"one").unwrap().target;
    verify(&mut w, &before, &after, false).unwrap();
    verify(&mut w, &after, &before, false).unwrap();
    verify(&mut w, &after, &before, true).unwrap_err();
    w.write(one, Some(0), b"x").unwrap();
    assert!(verify(&mut w, &before, &after, false).unwrap_err().contains("neither"));
    assert_ne!(node(&mut w, one).unwrap().attr.size, 0);
    assert_eq!(BTreeSet::from([before == after]), [false].into());
}

const SCENARIOS: &[(&str, fn())] = &[
    ("names in one region", names_in_one_region),
    ("names across two pools", names_across_two_pools),
    ("names across two regions of a pool", names_across_two_regions_of_a_pool),
    ("a directory that grows", a_directory_that_grows),
    ("data", data),
    ("attributes", attributes),
    ("garbage collection", garbage_collection),
    ("sessions and space", sessions_and_space),
    ("a full pool", a_full_pool),
    ("making a region", making_a_region),
    ("recovery cut short", recovery_cut_short),
    ("one side of a transaction fails", one_side_of_a_transaction_fails),
    ("a random life", a_random_life),
    ("a third state is noticed", a_third_state_is_noticed),
];

/// Fewest crash states of a whole run: fewer would mean that scenarios have lost their power cuts.
const STATES_MIN: u64 = 20_000;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let start = std::time::Instant::now();
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS {
        if !arguments.is_empty()
            && !arguments
                .iter()
                .any(|argument| name.contains(&argument.replace('_', " ")))
        {
            continue;
        }
        let (before, begin) = (STATES.load(Relaxed), start.elapsed());
        let result = std::panic::catch_unwind(scenario);
        let (states, time) = (STATES.load(Relaxed) - before, start.elapsed() - begin);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{name}: {verdict}, {states} crash states, {:.1} s", time.as_secs_f64());
        if result.is_err() {
            failed.push(*name);
        }
    }
    let states = STATES.load(Relaxed);
    println!(
        "power cuts: {states} crash states, {:.1} s, seed {}",
        start.elapsed().as_secs_f64(),
        seed()
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
    assert!(
        !arguments.is_empty() || states >= STATES_MIN,
        "{states} crash states, {STATES_MIN} are needed"
    );
}
