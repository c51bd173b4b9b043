//! A pool whose lines were overwritten: opening, recovering, checking, repairing, reading and changing it gives errors at
//! worst.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{FileKind, Ino, RegionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll};
use polvo_proto::{FallocateMode, InodeRef, SetAttr, WriteAt};
use polvo_region::{OfflinePool, PoolSpace, Region, check, repair};
use std::sync::OnceLock;

#[path = "../../crates/region/tests/harness/mod.rs"]
mod harness;
use harness::world::{SESSION, Shape, World, new_file, symlink};

const LINE: u64 = 64;

/// A pool with something of everything, and its lines that are not empty.
fn model() -> &'static (CrashImage, Vec<u64>) {
    static MODEL: OnceLock<(CrashImage, Vec<u64>)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let region = RegionId(0);
        let mut w = World::new(Shape {
            pool_len: 4 << 20,
            ..Shape::small()
        });
        let root = w.root();
        let dir = w
            .create(root, b"dir", new_file(FileKind::Directory, 0o755), region)
            .unwrap();
        for n in 0..40u32 {
            let name = format!("a name of some length {n}").repeat(1 + n as usize % 4);
            let file = w
                .create(dir, name.as_bytes(), new_file(FileKind::File, 0o644), region)
                .unwrap();
            w.write(file, WriteAt::Offset(u64::from(n) * 100), &[n as u8; 300])
                .unwrap();
            if n % 3 == 0 {
                let at = if n % 2 == 0 { WriteAt::End } else { WriteAt::Offset(0) };
                w.commit(file, &[(0, vec![1; 9000]), (20_000, vec![2; 5000])], at)
                    .unwrap();
            }
            if n % 5 == 0 {
                w.set_xattr(file, b"user.name", &[3; 5000], polvo_proto::XattrMode::Any)
                    .unwrap();
                w.link(file, root, format!("link {n}").as_bytes()).unwrap();
            }
            if n % 7 == 0 {
                w.unlink(dir, name.as_bytes()).unwrap();
            }
        }
        w.create(root, b"symlink", symlink(b"where it leads"), region).unwrap();
        let pmem = w.pools[0].pmem();
        let image = pmem.sim().unwrap().image(&mut polvo_pmem::sim::LoseAll);
        let mut used = Vec::new();
        let mut line = [0; LINE as usize];
        for at in (0..image.len()).step_by(LINE as usize) {
            image.read(at, &mut line);
            if line != [0; LINE as usize] {
                used.push(at);
            }
        }
        (image, used)
    })
}

// A change a chunk: which line (2 bytes), where in it, how many bytes of the six that follow, the bytes.
fuzz_target!(|bytes: &[u8]| {
    let (image, used) = model();
    let pmem = Pmem::simulated_from_image(image);
    for chunk in bytes.chunks_exact(10).take(32) {
        let line = used[usize::from(u16::from_le_bytes([chunk[0], chunk[1]])) % used.len()];
        let within = u64::from(chunk[2]) % LINE;
        let len = (u64::from(chunk[3]) % 6 + 1).min(LINE - within);
        pmem.write(line + within, &chunk[4..4 + len as usize]);
    }
    pmem.persist(0, 64);
    if let Ok((pool, _)) = PoolSpace::open_for_check(pmem.clone()) {
        for region in pool.regions() {
            if let Ok((mut region, _)) = Region::recover(&pool, region, &mut |_, _| ()) {
                let _ = region.check(&mut |_, _| ());
            }
        }
    }
    let copy = pmem.sim().expect("the pool is simulated").image(&mut KeepAll);
    let pools = [OfflinePool {
        name: "pool".into(),
        pmem: Pmem::simulated_from_image(&copy),
    }];
    if repair(&pools, true, 7, &mut |_, _, _| ()).is_ok() {
        check(&pools, true, &mut |_, _, _| ()).expect("what was repaired can be opened");
    }
    let Ok(pool) = PoolSpace::open(pmem) else { return };
    for undispatched in pool.undispatched() {
        pool.retire(undispatched.record);
    }
    let Ok((mut region, _)) = Region::recover(&pool, RegionId(0), &mut |_, _| ()) else {
        return;
    };
    let (mut to_visit, mut seen) = (vec![Ino::ROOT], std::collections::BTreeSet::new());
    while let Some(ino) = to_visit.pop() {
        if seen.len() > 200 || !seen.insert(ino) {
            continue;
        }
        let Ok((attr, _)) = region.attr(ino, None) else {
            continue;
        };
        let inode = InodeRef {
            ino,
            generation: attr.generation,
        };
        let _ = region.read_link(inode);
        let _ = region.parent(inode);
        let _ = region.file_map(inode, 0);
        let _ = region.list_xattr(inode);
        let _ = region.get_xattr(inode, b"user.name");
        let mut page = [0; 8192];
        for offset in [0, 4000, attr.size.saturating_sub(5000)] {
            let _ = region.read(inode, offset, &mut page);
        }
        let entries = region.read_dir(inode, 0, 100).unwrap_or_default();
        let _ = region.lookup(inode, b"dir");
        let _ = region.open(SESSION, inode);
        let _ = region.write(inode, WriteAt::End, b"more", polvo_format::Tail::default(), 1);
        let _ = region.set_attr(
            inode,
            &SetAttr {
                size: Some(attr.size / 2),
                ..SetAttr::default()
            },
            2,
        );
        let _ = region.fallocate(inode, FallocateMode::PunchHole, 100, 5000, 3);
        let _ = region.set_xattr(inode, b"user.other", b"value", polvo_proto::XattrMode::Any, 4);
        let _ = region.remove_xattr(inode, b"user.name", 5);
        to_visit.extend(entries.iter().map(|entry| entry.target.ino));
    }
    if let Ok(space) = region.delegate(SESSION, 20) {
        region.return_space(SESSION, &space);
    }
    for _ in 0..100 {
        if !region.collect_garbage(6) {
            break;
        }
    }
    region.end_session(SESSION);
    region.set_tick(9, 9);
    region.release_segments(|_| ());
    let _ = region.check(&mut |_, _| ());
});
