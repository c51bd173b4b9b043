//! The operations that sequences are made of, on few names, so that they get into each other's way.

use crate::ground::{look, region_for, split};
use crate::harness::world::*;
use polvo_format::{FileKind, Gpa, RegionId};
use polvo_proto::*;
use polvo_region::RegionError;

pub struct Operation {
    pub name: &'static str,
    /// Paths that it works on: made first where an operation before has taken them away (as ACE does in its fourth
    /// phase).
    pub needs: &'static [&'static str],
    /// Nobody sees that it has happened.
    pub unseen: bool,
    pub run: fn(&mut World) -> Result<(), RegionError>,
}

const fn seen(
    name: &'static str,
    needs: &'static [&'static str],
    run: fn(&mut World) -> Result<(), RegionError>,
) -> Operation {
    Operation {
        name,
        needs,
        unseen: false,
        run,
    }
}

const fn unseen(name: &'static str, run: fn(&mut World) -> Result<(), RegionError>) -> Operation {
    Operation {
        name,
        needs: &[],
        unseen: true,
        run,
    }
}

/// Pages of a segment.
const SEGMENT_PAGES: u32 = 64;
const PAGE: u64 = polvo_format::PAGE as u64;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    crate::pattern(seed, len)
}

fn create(w: &mut World, path: &str, file: NewFile) -> Result<(), RegionError> {
    let (dir, name) = split(w, path)?;
    let region = region_for(w, path);
    w.create(dir, name, file, region).map(|_| ())
}

fn write(w: &mut World, path: &str, at: WriteAt, bytes: &[u8]) -> Result<(), RegionError> {
    let inode = look(w, path)?;
    w.write(inode, at, bytes).map(|_| ())
}

fn commit(w: &mut World, path: &str, runs: &[(u64, Vec<u8>)], from: WriteAt) -> Result<(), RegionError> {
    let inode = look(w, path)?;
    w.commit(inode, runs, from).map(|_| ())
}

fn truncate(w: &mut World, path: &str, size: u64) -> Result<(), RegionError> {
    let inode = look(w, path)?;
    w.truncate(inode, size).map(|_| ())
}

fn fallocate(w: &mut World, path: &str, mode: FallocateMode, offset: u64, len: u64) -> Result<(), RegionError> {
    let inode = look(w, path)?;
    w.fallocate(inode, mode, offset, len).map(|_| ())
}

fn link(w: &mut World, path: &str, new: &str) -> Result<(), RegionError> {
    let inode = look(w, path)?;
    let (dir, name) = split(w, new)?;
    w.link(inode, dir, name)
}

fn remove(w: &mut World, path: &str) -> Result<(), RegionError> {
    let (dir, name) = split(w, path)?;
    match w.lookup(dir, name)?.kind {
        FileKind::Directory => w.rmdir(dir, name),
        _ => w.unlink(dir, name),
    }
}

fn rename(w: &mut World, old: &str, new: &str) -> Result<(), RegionError> {
    let ((old_dir, old), (new_dir, new)) = (split(w, old)?, split(w, new)?);
    // a node refuses to replace a directory by something else, and something else by a directory
    if let Ok(there) = w.lookup(new_dir, new)
        && (there.kind == FileKind::Directory) != (w.lookup(old_dir, old)?.kind == FileKind::Directory)
    {
        return Err(FsError::NotDirectory.into());
    }
    w.rename(old_dir, old, new_dir, new)
}

fn exchange(w: &mut World, a: &str, b: &str) -> Result<(), RegionError> {
    let ((a_dir, a), (b_dir, b)) = (split(w, a)?, split(w, b)?);
    w.exchange(a_dir, a, b_dir, b)
}

fn set_xattr(w: &mut World, path: &str, name: &str, value: &[u8]) -> Result<(), RegionError> {
    let inode = look(w, path)?;
    w.set_xattr(inode, name.as_bytes(), value, XattrMode::Any).map(|_| ())
}

fn regions(w: &World) -> impl Iterator<Item = RegionId> + use<> {
    (0..w.shape.home.len() as u16).map(RegionId)
}

pub const OPERATIONS: &[Operation] = &[
    seen("create", &[], |w| create(w, "A/new", crate::file())),
    seen("create with a long name", &[], |w| {
        create(w, &format!("B/{}", "n".repeat(255)), crate::file())
    }),
    seen("mkdir", &[], |w| create(w, "A/dir", crate::directory())),
    seen("symlink", &[], |w| create(w, "B/link", symlink(&bytes(3, 200)))),
    seen("name a file without one", &[], |w| {
        let dir = look(w, "B")?;
        let unnamed = w.create_unnamed(dir, 0o600)?;
        let named = w
            .write(unnamed, WriteAt::Offset(0), b"unnamed")
            .and_then(|_| w.link(unnamed, dir, b"named"));
        w.of(unnamed).release(SESSION, unnamed);
        named
    }),
    seen("write inline", &["A/foo"], |w| {
        write(w, "A/foo", WriteAt::Offset(50), &bytes(10, 100))
    }),
    seen("write a page", &["A/foo"], |w| {
        write(w, "A/foo", WriteAt::Offset(PAGE - 100), &bytes(11, 4000))
    }),
    seen("write beyond the end", &["B/foo"], |w| {
        write(w, "B/foo", WriteAt::Offset(20_000), &bytes(12, 300))
    }),
    seen("append", &["A/bar"], |w| {
        write(w, "A/bar", WriteAt::End, &bytes(13, 300))
    }),
    seen("append a page", &["A/foo"], |w| {
        write(w, "A/foo", WriteAt::End, &bytes(14, 4096))
    }),
    seen("overwrite by commit", &["A/foo"], |w| {
        commit(w, "A/foo", &[(0, bytes(15, 9000))], WriteAt::Offset(0))
    }),
    seen("commit of runs", &["B/foo"], |w| {
        commit(
            w,
            "B/foo",
            &[(10, bytes(16, 10)), (5000, bytes(17, 4096)), (30_000, bytes(18, 1))],
            WriteAt::Offset(0),
        )
    }),
    seen("append by commit", &["A/bar"], |w| {
        commit(w, "A/bar", &[(0, bytes(19, 5000))], WriteAt::End)
    }),
    seen("truncate", &["A/foo"], |w| truncate(w, "A/foo", 4097)),
    seen("truncate to nothing", &["A/foo"], |w| truncate(w, "A/foo", 0)),
    seen("extend", &["B/foo"], |w| truncate(w, "B/foo", 40_000)),
    seen("punch", &["A/foo"], |w| {
        fallocate(w, "A/foo", FallocateMode::PunchHole, 1000, 5000)
    }),
    seen("zero a range", &["B/foo"], |w| {
        fallocate(w, "B/foo", FallocateMode::ZeroRange { keep_size: false }, 4096, 8192)
    }),
    seen("zero beyond the end", &["A/bar"], |w| {
        fallocate(w, "A/bar", FallocateMode::ZeroRange { keep_size: false }, 8192, 4096)
    }),
    seen("link", &["A/foo"], |w| link(w, "A/foo", "A/hard")),
    seen("link across", &["A/foo"], |w| link(w, "A/foo", "B/hard")),
    seen("unlink", &["A/foo"], |w| remove(w, "A/foo")),
    seen("unlink of another", &["B/foo"], |w| remove(w, "B/foo")),
    seen("unlink of a held file", &["A/bar"], |w| {
        let inode = look(w, "A/bar")?;
        w.of(inode).open(SESSION, inode)?;
        remove(w, "A/bar")
    }),
    seen("rename", &["A/foo"], |w| rename(w, "A/foo", "A/name")),
    seen("rename to a long name", &["A/foo"], |w| {
        rename(w, "A/foo", &format!("A/{}", "m".repeat(200)))
    }),
    seen("rename across", &["A/foo"], |w| rename(w, "A/foo", "B/name")),
    seen("rename with a whiteout", &["A/foo"], |w| {
        let ((a_dir, a), (b_dir, b)) = (split(w, "A/foo")?, split(w, "B/name")?);
        w.rename_with_whiteout(a_dir, a, b_dir, b)
    }),
    seen("rename over", &["A/foo", "A/bar"], |w| rename(w, "A/foo", "A/bar")),
    seen("rename over across", &["A/bar", "B/foo"], |w| {
        rename(w, "A/bar", "B/foo")
    }),
    seen("exchange", &["A/foo", "B/foo"], |w| exchange(w, "A/foo", "B/foo")),
    seen("exchange a directory and a file", &["A/sub", "B/foo"], |w| {
        exchange(w, "A/sub", "B/foo")
    }),
    seen("rmdir", &["A/sub"], |w| remove(w, "A/sub")),
    seen("rename a directory across", &["B/full"], |w| {
        rename(w, "B/full", "A/full")
    }),
    seen("rename over a directory", &["B/full", "A/sub"], |w| {
        rename(w, "B/full", "A/sub")
    }),
    seen("set an attribute", &["A/foo"], |w| {
        set_xattr(w, "A/foo", "user.x", &bytes(20, 300))
    }),
    seen("set a large attribute", &["B/full"], |w| {
        set_xattr(w, "B/full", "user.large", &bytes(21, 9000))
    }),
    seen("remove an attribute", &["A/foo"], |w| {
        let inode = look(w, "A/foo")?;
        w.remove_xattr(inode, b"user.x").map(|_| ())
    }),
    seen("chmod, chown and a size", &["B/foo"], |w| {
        let inode = look(w, "B/foo")?;
        let set = SetAttr {
            mode: Some(0o4700),
            uid: Some(5),
            size: Some(100),
            ..SetAttr::default()
        };
        w.set_attr(inode, set).map(|_| ())
    }),
    seen("chmod with an access control list", &["B/foo"], |w| {
        let inode = look(w, "B/foo")?;
        let set = SetAttr {
            mode: Some(0o640),
            ..SetAttr::default()
        };
        w.set_attr_and_xattr(inode, set, (b"system.posix_acl_access", &bytes(22, 44)))
            .map(|_| ())
    }),
    seen("read", &["A/foo"], |w| {
        let inode = look(w, "A/foo")?;
        w.accessed(inode)
    }),
    unseen("write what is not committed", |w| {
        for region in regions(w) {
            for run in w.region(region).delegate(SESSION, 3)? {
                let (pmem, at) = w.locate(run.gpa);
                pmem.write_streaming(at, &vec![0xee; run.pages as usize * PAGE as usize]);
                pmem.fence();
            }
        }
        Ok(())
    }),
    unseen("garbage collection", |w| {
        regions(w).for_each(|region| w.collect_garbage(region));
        Ok(())
    }),
    unseen("release of segments", |w| {
        for region in regions(w) {
            w.region(region).shrink(EVERYBODY, |_| ());
            w.region(region).release_segments(|_| ());
        }
        Ok(())
    }),
    unseen("cleaning of segments", |w| {
        for region in regions(w) {
            // a segment more, of which a page stays taken
            let region = w.region(region);
            let before = region.segments().count();
            let mut runs = Vec::new();
            while region.segments().count() == before
                && let Ok(more) = region.delegate(SESSION, SEGMENT_PAGES)
            {
                runs.extend(more);
            }
            let mut last = Vec::new();
            if let Some(run) = runs.pop() {
                let split = |first: u32, pages| PageRun {
                    gpa: Gpa(run.gpa.0 + u64::from(first) * PAGE),
                    pages,
                };
                last.push(split(run.pages - 1, 1));
                runs.extend((run.pages > 1).then(|| split(0, run.pages - 1)));
            }
            region.return_space(SESSION, &runs);
            // each is closed, cleaned, and opened again
            (0..6).for_each(|_| _ = region.shrink(EVERYBODY, |_| ()));
            // a segment to which nothing was moved goes back, and mirrors hear of it
            region.return_space(SESSION, &last);
            (0..3).for_each(|_| _ = region.shrink(EVERYBODY, |_| ()));
        }
        Ok(())
    }),
    unseen("end of the session", |w| {
        for region in regions(w) {
            w.region(region).end_session(SESSION);
            // the next round finds the pages out of quarantine
            let tick = w.now as u64;
            w.region(region).set_tick(tick, tick - 1);
        }
        Ok(())
    }),
    unseen("give up a transaction", |w| {
        let dir = look(w, "A")?;
        // on every region but the directory's, with a target that needs log pages
        for region in regions(w).filter(|&region| region != dir.ino.region()) {
            let collecting = w.collect_create(dir, b"never", symlink(&bytes(22, 4000)), region)?;
            w.give_up(&collecting);
        }
        Ok(())
    }),
    unseen("restart", World::restart),
];
