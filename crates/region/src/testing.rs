//! What unit tests of this crate share: a region on a simulated medium, and the operations that a node would make.

use crate::{FormatParams, NewData, PoolIdentity, PoolSpace, Recovery, Region, RegionError};
use polvo_format::{FileKind, Generation, Gpa, Ino, NodeId, PAGE, RegionId, SessionId, Tail, TxnId, crcs_of_pages};
use polvo_pmem::Pmem;
use polvo_pmem::sim::KeepAll;
use polvo_proto::{Collected, InodeRef, Intent, NewFile, Placement, WriteAt, WriteRun};
use std::sync::Arc;

pub const SESSION: SessionId = SessionId(7);
pub const NOW: i64 = 1_000;
pub const ROOT: InodeRef = InodeRef {
    ino: Ino::ROOT,
    generation: Generation(1),
};

/// An empty region 0 in a pool of some MiB with segments of 256 KiB.
pub fn region(pool_mib: u64) -> Region {
    region_of(pool_mib, true)
}

/// As [`region`], in a pool without checksums of file data.
pub fn region_without_checksums(pool_mib: u64) -> Region {
    region_of(pool_mib, false)
}

fn region_of(pool_mib: u64, checksums: bool) -> Region {
    Region::create(&pool(pool_mib, checksums), RegionId(0), NOW).unwrap()
}

/// An empty pool of some MiB with segments of 256 KiB.
pub fn pool(pool_mib: u64, checksums: bool) -> Arc<PoolSpace> {
    let pmem = Pmem::simulated(pool_mib << 20);
    let identity = PoolIdentity {
        cluster: [1; 16],
        pool: [2; 16],
        node: NodeId(1),
    };
    let params = FormatParams {
        identity,
        segment_shift: Some(18),
        checksums,
    };
    PoolSpace::format(&pmem, &params).unwrap();
    PoolSpace::open(pmem).unwrap()
}

/// The region as the next process finds it.
pub fn recovered(region: &Region) -> (Region, Recovery) {
    let image = region.store.pool.pmem().sim().unwrap().image(&mut KeepAll);
    let pool = PoolSpace::open(Pmem::simulated_from_image(&image)).unwrap();
    Region::recover(&pool, region.id(), &mut |_, _| ()).unwrap()
}

pub fn txn(n: u64) -> TxnId {
    TxnId::new(RegionId(9), n)
}

pub fn new_file(kind: FileKind) -> NewFile {
    NewFile {
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

pub fn new_inode(kind: FileKind) -> Intent {
    Intent::NewInode {
        file: new_file(kind),
        parent: ROOT,
        placement: Placement::default(),
        unnamed: false,
    }
}

pub fn add_name(dir: InodeRef, name: &[u8], kind: FileKind) -> Intent {
    Intent::AddName {
        dir,
        name: name.to_vec(),
        target: None,
        kind,
    }
}

/// Makes an inode below a directory.
pub fn make(region: &mut Region, dir: InodeRef, name: &[u8], kind: FileKind) -> Result<InodeRef, RegionError> {
    let intents = [new_inode(kind), add_name(dir, name, kind)];
    let decided = region.decide(txn(1), &intents, &[], NOW)?;
    let attr = decided.outcomes[0].attr;
    Ok(InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    })
}

/// Takes a file's name away.
pub fn unlink(region: &mut Region, dir: InodeRef, name: &[u8]) -> Result<(), RegionError> {
    let target = region.lookup(dir, name)?.0.target;
    let remove = Intent::RemoveName {
        dir,
        name: name.to_vec(),
        target,
    };
    let intents = [remove, Intent::DropLink { inode: target }];
    region.decide(txn(2), &intents, &[], NOW).map(|_| ())
}

/// Does what a coordinator does with what it has collected.
pub fn dispatch(region: &Region, txn: TxnId, collected: &Collected) {
    let pmem: &Arc<Pmem> = region.store.pool.pmem();
    for (gpa, bytes) in &collected.writes {
        let at = region.store.at(gpa.offset().0);
        pmem.write(at, bytes);
        pmem.persist(at, bytes.len() as u64);
    }
    for lock in &collected.locks {
        assert_eq!(pmem.cas_u64(region.store.at(lock.offset().0), txn.0, 0), txn.0);
    }
}

/// What a check finds.
pub fn findings(region: &mut Region) -> Vec<String> {
    let found = region.check(&mut |_, _| ()).findings.into_iter().map(|f| f.what);
    let mut all: Vec<String> = found.collect();
    all.extend(region.scrub_all().iter().map(|damaged| format!("{damaged:?}")));
    all
}

/// Commits bytes to delegated pages, at an offset in the first one.
pub fn commit(
    r: &mut Region,
    file: InodeRef,
    offset: u64,
    at: u64,
    bytes: &[u8],
    crcs: bool,
) -> Result<(), RegionError> {
    let pages = (at + bytes.len() as u64).div_ceil(PAGE as u64) as u32;
    let (mut runs, mut list) = (Vec::new(), Vec::new());
    let (mut rest, mut offset, mut skip) = (bytes, offset, at);
    for given in r.delegate(SESSION, pages).unwrap() {
        let room = u64::from(given.pages) * PAGE as u64 - skip;
        let (part, later) = rest.split_at(rest.len().min(room as usize));
        let gpa = Gpa(given.gpa.0 + skip);
        r.store.write_data(gpa.offset().0, part);
        if crcs {
            crcs_of_pages(gpa.0, part, &mut list);
        }
        let len = part.len() as u64;
        runs.push(WriteRun { offset, len, gpa });
        (rest, offset, skip) = (later, offset + len, 0);
    }
    r.commit(
        SESSION,
        file,
        NewData {
            runs: &runs,
            crcs: &list,
        },
        WriteAt::Offset(0),
        Tail(0),
        NOW,
    )
    .map(|_| ())
}
