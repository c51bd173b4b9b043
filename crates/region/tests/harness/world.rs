//! Regions in simulated pools, used as nodes and clients use them: changes of names are put together from intents,
//! those that touch several regions are collected, decided and dispatched, and file data is written to delegated space.
//! One-sided writes are stores to the other pool.

use super::mirrors::Mirrors;
use polvo_format::{Attr, FileKind, Gpa, Ino, NodeId, PAGE, RegionId, SessionId, Tail, TxnId, crcs_of_pages};
use polvo_pmem::Pmem;
use polvo_pmem::sim::CrashImage;
use polvo_proto::*;
use polvo_region::*;

/// Whatever a region does not need, somebody can use.
pub const EVERYBODY: Demand = Demand {
    copies: true,
    crowded: true,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The session on whose behalf everything is done.
pub const SESSION: SessionId = SessionId(0x5e55_1011);
pub const ROOT_REGION: RegionId = RegionId(0);
pub const START_NS: i64 = 1_700_000_000_000_000_000;

/// How large, and which region lies in which pool.
#[derive(Clone, Debug)]
pub struct Shape {
    pub pool_len: u64,
    pub segment_shift: u32,
    /// Pool of each region, by region number.
    pub home: Vec<usize>,
}

impl Shape {
    /// One pool with region 0.
    pub fn small() -> Shape {
        Shape {
            pool_len: 8 << 20,
            segment_shift: 18,
            home: vec![0],
        }
    }

    /// Two pools with a region each.
    pub fn two_pools() -> Shape {
        Shape {
            home: vec![0, 1],
            ..Shape::small()
        }
    }

    /// One pool with two regions.
    pub fn two_regions() -> Shape {
        Shape {
            home: vec![0, 0],
            ..Shape::small()
        }
    }

    fn pools(&self) -> usize {
        self.home.iter().max().expect("there is a region") + 1
    }
}

pub struct World {
    pub shape: Shape,
    pub pools: Vec<Arc<PoolSpace>>,
    /// By region number.
    pub regions: Vec<Region>,
    /// Moves on with every change.
    pub now: i64,
    /// Are sent what was done wherever nodes wait for theirs.
    pub mirrors: Option<Box<Mirrors>>,
}

/// A transaction that has collected.
pub struct Collecting {
    pub txn: TxnId,
    pub coordinator: RegionId,
    pub local: Vec<Intent>,
    pub remote: Vec<RemotePart>,
    /// What the participants' intents will have come to.
    pub outcomes: Vec<(Intent, Outcome)>,
}

/// Parts of this world are collected, none is prepared.
fn collected(part: &RemotePart) -> &CollectedPart {
    part.collected().expect("parts of this world are collected")
}

pub fn refer(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}
pub fn new_file(kind: FileKind, mode: u32) -> NewFile {
    NewFile {
        kind,
        mode,
        uid: 10,
        gid: 20,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

/// Where an address lies in a pool.
pub fn place_in(pool: &PoolSpace, gpa: Gpa) -> u64 {
    let shift = pool.usage().segment_size.trailing_zeros();
    let index = (gpa.offset().0 >> shift) as u32;
    let segments = pool.segments_of(gpa.region());
    let (_, offset, _) = segments
        .iter()
        .find(|s| s.0 == index)
        .expect("the address lies in a segment");
    offset + (gpa.offset().0 & ((1 << shift) - 1))
}

pub fn symlink(target: &[u8]) -> NewFile {
    NewFile {
        target: target.to_vec(),
        umask: 0,
        xattrs: Vec::new(),
        ..new_file(FileKind::Symlink, 0o777)
    }
}

fn region_of(intent: &Intent) -> RegionId {
    let inode = match intent {
        // beside its directory, unless it is said where
        Intent::NewInode { parent, .. } => parent,
        Intent::AddName { dir, .. } | Intent::RemoveName { dir, .. } | Intent::ReplaceName { dir, .. } => dir,
        Intent::AddLink { inode }
        | Intent::DropLink { inode }
        | Intent::DropDirectory { inode }
        | Intent::SetParent { inode, .. }
        | Intent::Touch { inode }
        | Intent::Pin { inode } => inode,
    };
    inode.ino.region()
}

impl World {
    /// Formats pools and makes the regions.
    pub fn new(shape: Shape) -> World {
        let pools = (0..shape.pools()).map(|pool| {
            let pmem = Pmem::simulated(shape.pool_len);
            let node = NodeId(pool as u16 + 1);
            let identity = PoolIdentity {
                cluster: [7; 16],
                pool: [pool as u8; 16],
                node,
            };
            PoolSpace::format(
                &pmem,
                &FormatParams {
                    identity,
                    segment_shift: Some(shape.segment_shift),
                    checksums: true,
                },
            )
            .unwrap();
            PoolSpace::open(pmem).unwrap()
        });
        let pools: Vec<_> = pools.collect();
        let create =
            |(id, &pool): (usize, &usize)| Region::create(&pools[pool], RegionId(id as u16), START_NS).unwrap();
        let regions = shape.home.iter().enumerate().map(create).collect();
        World {
            shape,
            pools,
            regions,
            now: START_NS,
            mirrors: None,
        }
    }

    /// Starts again on what the media hold, as nodes do: pools are opened, regions recovered, decided transactions
    /// dispatched again, the others given up.
    pub fn open(shape: Shape, pmems: Vec<Arc<Pmem>>, now: i64) -> Result<World, RegionError> {
        let pools = pmems.into_iter().map(PoolSpace::open).collect::<Result<Vec<_>, _>>()?;
        World::serve(shape, pools, now, |pool, region| {
            Region::recover(pool, region, &mut |_, _| ())
        })
    }

    /// The same, of pools that are open.
    pub fn serve(
        shape: Shape,
        pools: Vec<Arc<PoolSpace>>,
        now: i64,
        recover: impl Fn(&Arc<PoolSpace>, RegionId) -> Result<(Region, Recovery), RegionError>,
    ) -> Result<World, RegionError> {
        let recover = |(id, &pool): (usize, &usize)| recover(&pools[pool], RegionId(id as u16));
        let recovered = shape
            .home
            .iter()
            .enumerate()
            .map(recover)
            .collect::<Result<Vec<_>, _>>()?;
        let held: Vec<Vec<TxnId>> = recovered.iter().map(|(_, recovery)| recovery.held_by.clone()).collect();
        let regions = recovered.into_iter().map(|(region, _)| region).collect();
        let mut world = World {
            shape,
            pools,
            regions,
            now,
            mirrors: None,
        };
        world.redispatch();
        for (region, held) in held.into_iter().enumerate() {
            for txn in held {
                let coordinator = world.shape.home.get(usize::from(txn.region().0));
                let coordinator = coordinator.map(|pool| &world.pools[*pool]);
                assert!(
                    !coordinator.is_some_and(|pool| pool.is_logged(txn)),
                    "{txn:?} was dispatched"
                );
                world.regions[region].abort(txn);
            }
            assert_eq!(world.regions[region].reap(), []);
        }
        Ok(world)
    }

    pub fn open_images(shape: &Shape, images: &[CrashImage], now: i64) -> Result<World, RegionError> {
        World::open(
            shape.clone(),
            images.iter().map(Pmem::simulated_from_image).collect(),
            now,
        )
    }

    /// Ends all processes and starts them again: what was stored is there.
    pub fn restart(&mut self) -> Result<(), RegionError> {
        let pmems = self.pools.iter().map(|pool| pool.pmem().clone()).collect();
        self.regions.clear();
        self.pools.clear();
        *self = World::open(self.shape.clone(), pmems, self.now)?;
        Ok(())
    }

    /// Dispatches what `open` has found.
    pub fn redispatch(&mut self) {
        for pool in self.pools.clone() {
            for found in pool.undispatched() {
                for part in &found.remote {
                    self.dispatch(found.txn, part);
                }
                pool.retire(found.record);
            }
        }
    }

    pub fn tick(&mut self) -> i64 {
        self.now += 1_000_003;
        self.now
    }

    pub fn region(&mut self, id: RegionId) -> &mut Region {
        &mut self.regions[usize::from(id.0)]
    }

    pub fn of(&mut self, inode: InodeRef) -> &mut Region {
        self.region(inode.ino.region())
    }

    pub fn pool_of(&self, id: RegionId) -> &Arc<PoolSpace> {
        &self.pools[self.shape.home[usize::from(id.0)]]
    }

    pub fn root(&mut self) -> InodeRef {
        refer(&self.region(ROOT_REGION).attr(Ino::ROOT, None).unwrap().0)
    }

    pub fn attr(&mut self, inode: InodeRef) -> Result<Attr, RegionError> {
        Ok(self.of(inode).attr(inode.ino, Some(inode.generation))?.0)
    }

    pub fn lookup(&mut self, dir: InodeRef, name: &[u8]) -> Result<DirEntry, RegionError> {
        Ok(self.of(dir).lookup(dir, name)?.0)
    }

    /// Pool and offset in it of an address.
    pub fn locate(&self, gpa: Gpa) -> (Arc<Pmem>, u64) {
        let pool = self.pool_of(gpa.region());
        (pool.pmem().clone(), place_in(pool, gpa))
    }

    /// What was done so far goes to the mirrors.
    pub fn mirror(&mut self) {
        if let Some(mut mirrors) = self.mirrors.take() {
            mirrors.send(self);
            self.mirrors = Some(mirrors);
        }
    }

    // ---- transactions

    /// Collects at every region but the coordinator's. On an error what was collected is given up.
    pub fn collect(
        &mut self,
        coordinator: RegionId,
        intents: Vec<(RegionId, Intent)>,
    ) -> Result<Collecting, RegionError> {
        let txn = self.region(coordinator).next_txn();
        let now = self.tick();
        let mut parts: BTreeMap<RegionId, Vec<Intent>> = BTreeMap::new();
        for (region, intent) in intents {
            parts.entry(region).or_default().push(intent);
        }
        let local = parts.remove(&coordinator).unwrap_or_default();
        let mut collecting = Collecting {
            txn,
            coordinator,
            local,
            remote: Vec::new(),
            outcomes: Vec::new(),
        };
        for (region, intents) in parts {
            match self.region(region).collect(txn, &intents, now) {
                Ok(collected) => {
                    let (part, outcomes) = CollectedPart::new(region, collected, intents.len()).expect("a part");
                    collecting.outcomes.extend(intents.into_iter().zip(outcomes));
                    collecting.remote.push(RemotePart::Collected(part));
                    self.mirror();
                }
                Err(why) => {
                    self.give_up(&collecting);
                    return Err(why);
                }
            }
        }
        Ok(collecting)
    }

    /// The coordinator lets participants go.
    pub fn give_up(&mut self, collecting: &Collecting) {
        for part in &collecting.remote {
            self.unlock(collecting.txn, part);
            assert_eq!(self.region(part.region()).reap(), []);
        }
    }

    fn unlock(&self, txn: TxnId, part: &RemotePart) {
        for lock in &collected(part).locks {
            let (pmem, offset) = self.locate(*lock);
            pmem.cas_u64(offset, txn.0, 0);
            pmem.persist(offset, 8);
        }
    }

    /// Decides: on success it has happened. `coordinate` on the coordinator's behalf.
    pub fn decide(&mut self, collecting: &Collecting) -> Result<Decided, RegionError> {
        let now = self.now;
        let Collecting {
            txn,
            coordinator,
            local,
            remote,
            ..
        } = collecting;
        self.region(*coordinator).decide(*txn, local, remote, now)
    }

    /// Writes a participant's bytes and unlocks it, as one-sided operations do. Nothing is written where a lock word
    /// has moved on: then all bytes were there before, since swaps come last.
    pub fn dispatch(&self, txn: TxnId, part: &RemotePart) {
        let held = |lock: &Gpa| {
            let (pmem, offset) = self.locate(*lock);
            pmem.read_u64(offset) == txn.0
        };
        let collected = collected(part);
        if collected.locks.iter().all(held) {
            for (gpa, bytes) in &collected.writes {
                let (pmem, offset) = self.locate(*gpa);
                pmem.write(offset, bytes);
                pmem.flush(offset, bytes.len() as u64);
            }
            self.pool_of(collected.region).pmem().fence();
        }
        self.unlock(txn, part);
    }

    /// All of it. Outcomes of the coordinator's intents come first, then those of the others.
    pub fn transact(
        &mut self,
        coordinator: RegionId,
        intents: Vec<(RegionId, Intent)>,
    ) -> Result<Vec<(Intent, Outcome)>, RegionError> {
        let collecting = self.collect(coordinator, intents)?;
        self.decide_and_dispatch(collecting)
    }

    pub fn decide_and_dispatch(&mut self, collecting: Collecting) -> Result<Vec<(Intent, Outcome)>, RegionError> {
        let decided = match self.decide(&collecting) {
            Ok(decided) => decided,
            Err(why) => {
                self.give_up(&collecting);
                return Err(why);
            }
        };
        assert_eq!(decided.record.is_some(), !collecting.remote.is_empty());
        assert_eq!(decided.outcomes.len(), collecting.local.len());
        self.mirror();
        for part in &collecting.remote {
            self.dispatch(collecting.txn, part);
            if self.mirrors.is_some() {
                assert_eq!(self.region(part.region()).reap(), []);
                self.mirror();
            }
        }
        if let Some(record) = decided.record {
            self.region(collecting.coordinator).retire(collecting.txn, record);
            self.mirror();
        }
        let local = collecting.local.into_iter().zip(decided.outcomes);
        Ok(local.chain(collecting.outcomes).collect())
    }

    // ---- names, as a node changes them

    fn change(&mut self, coordinator: InodeRef, intents: Vec<Intent>) -> Result<Vec<(Intent, Outcome)>, RegionError> {
        let intents = intents.into_iter().map(|intent| (region_of(&intent), intent)).collect();
        self.transact(coordinator.ino.region(), intents)
    }

    /// Makes an inode in `region` and names it.
    pub fn create(
        &mut self,
        dir: InodeRef,
        name: &[u8],
        file: NewFile,
        region: RegionId,
    ) -> Result<InodeRef, RegionError> {
        let collecting = self.collect_create(dir, name, file, region)?;
        let outcomes = self.decide_and_dispatch(collecting)?;
        let made = outcomes
            .iter()
            .find(|(intent, _)| matches!(intent, Intent::NewInode { .. }));
        Ok(refer(&made.expect("a new inode has an outcome").1.attr))
    }

    pub fn collect_create(
        &mut self,
        dir: InodeRef,
        name: &[u8],
        file: NewFile,
        region: RegionId,
    ) -> Result<Collecting, RegionError> {
        let coordinator = dir.ino.region();
        let kind = file.kind;
        let placement = self.of(dir).placement(dir)?;
        let new = Intent::NewInode {
            file,
            parent: dir,
            placement,
            unnamed: false,
        };
        let add = |target| Intent::AddName {
            dir,
            name: name.to_vec(),
            target,
            kind,
        };
        if region == coordinator {
            return self.collect(coordinator, vec![(region, new), (region, add(None))]);
        }
        let mut collecting = self.collect(coordinator, vec![(region, new)])?;
        let made = refer(&collecting.outcomes[0].1.attr);
        collecting.local.push(add(Some(made)));
        Ok(collecting)
    }

    /// Makes a file without a name and holds it open.
    pub fn create_unnamed(&mut self, dir: InodeRef, mode: u32) -> Result<InodeRef, RegionError> {
        let region = dir.ino.region();
        let file = new_file(FileKind::File, mode);
        let new = Intent::NewInode {
            file,
            parent: dir,
            placement: Placement::default(),
            unnamed: true,
        };
        let outcomes = self.transact(region, vec![(region, new)])?;
        let made = refer(&outcomes[0].1.attr);
        self.of(made).open(SESSION, made)?;
        Ok(made)
    }

    pub fn link(&mut self, inode: InodeRef, dir: InodeRef, name: &[u8]) -> Result<(), RegionError> {
        let kind = self.attr(inode)?.kind;
        let add = Intent::AddName {
            dir,
            name: name.to_vec(),
            target: Some(inode),
            kind,
        };
        self.change(dir, vec![add, Intent::AddLink { inode }])?;
        Ok(())
    }

    pub fn unlink(&mut self, dir: InodeRef, name: &[u8]) -> Result<(), RegionError> {
        let target = self.lookup(dir, name)?.target;
        let remove = Intent::RemoveName {
            dir,
            name: name.to_vec(),
            target,
        };
        self.change(dir, vec![remove, Intent::DropLink { inode: target }])?;
        Ok(())
    }

    pub fn rmdir(&mut self, dir: InodeRef, name: &[u8]) -> Result<(), RegionError> {
        let target = self.lookup(dir, name)?.target;
        let remove = Intent::RemoveName {
            dir,
            name: name.to_vec(),
            target,
        };
        self.change(dir, vec![remove, Intent::DropDirectory { inode: target }])?;
        Ok(())
    }

    fn moved(target: &DirEntry, from: InodeRef, to: InodeRef) -> Intent {
        if target.kind == FileKind::Directory && from != to {
            Intent::SetParent {
                inode: target.target,
                parent: to,
            }
        } else {
            Intent::Touch { inode: target.target }
        }
    }

    /// Renames, over what is there if anything.
    pub fn rename(&mut self, old_dir: InodeRef, old: &[u8], new_dir: InodeRef, new: &[u8]) -> Result<(), RegionError> {
        self.rename_and_leave(old_dir, old, new_dir, new, None)
    }

    /// The same, with a whiteout left at the old name.
    pub fn rename_with_whiteout(
        &mut self,
        old_dir: InodeRef,
        old: &[u8],
        new_dir: InodeRef,
        new: &[u8],
    ) -> Result<(), RegionError> {
        let whiteout = new_file(FileKind::CharDevice, 0);
        self.rename_and_leave(old_dir, old, new_dir, new, Some(whiteout))
    }

    fn rename_and_leave(
        &mut self,
        old_dir: InodeRef,
        old: &[u8],
        new_dir: InodeRef,
        new: &[u8],
        left: Option<NewFile>,
    ) -> Result<(), RegionError> {
        let source = self.lookup(old_dir, old)?;
        let remove = Intent::RemoveName {
            dir: old_dir,
            name: old.to_vec(),
            target: source.target,
        };
        let mut intents = match self.lookup(new_dir, new) {
            Ok(there) if there.target == source.target => return Ok(()),
            Ok(there) => {
                let drop = match there.kind {
                    FileKind::Directory => Intent::DropDirectory { inode: there.target },
                    _ => Intent::DropLink { inode: there.target },
                };
                let (dir, name, old, new, kind) = (new_dir, new.to_vec(), there.target, source.target, source.kind);
                vec![
                    remove,
                    Intent::ReplaceName {
                        dir,
                        name,
                        old,
                        new,
                        kind,
                    },
                    drop,
                ]
            }
            Err(RegionError::Fs(FsError::NotFound)) => {
                let (name, kind) = (new.to_vec(), source.kind);
                vec![
                    remove,
                    Intent::AddName {
                        dir: new_dir,
                        name,
                        target: Some(source.target),
                        kind,
                    },
                ]
            }
            Err(why) => return Err(why),
        };
        if let Some(file) = left {
            let kind = file.kind;
            let new = Intent::NewInode {
                file,
                parent: old_dir,
                placement: Placement::default(),
                unnamed: false,
            };
            let add = Intent::AddName {
                dir: old_dir,
                name: old.to_vec(),
                target: None,
                kind,
            };
            intents.splice(1..1, [new, add]);
        }
        intents.push(Self::moved(&source, old_dir, new_dir));
        self.change(new_dir, intents)?;
        Ok(())
    }

    /// Exchanges two names.
    pub fn exchange(&mut self, a_dir: InodeRef, a: &[u8], b_dir: InodeRef, b: &[u8]) -> Result<(), RegionError> {
        let (x, y) = (self.lookup(a_dir, a)?, self.lookup(b_dir, b)?);
        if x.target == y.target {
            return Ok(());
        }
        let replace = |dir, name: &[u8], from: &DirEntry, to: &DirEntry| Intent::ReplaceName {
            dir,
            name: name.to_vec(),
            old: from.target,
            new: to.target,
            kind: to.kind,
        };
        let names = vec![replace(a_dir, a, &x, &y), replace(b_dir, b, &y, &x)];
        let moved = [Self::moved(&x, a_dir, b_dir), Self::moved(&y, b_dir, a_dir)];
        self.change(b_dir, names.into_iter().chain(moved).collect())?;
        Ok(())
    }

    // ---- data

    pub fn set_attr(&mut self, inode: InodeRef, set: SetAttr) -> Result<Attr, RegionError> {
        let now = self.tick();
        Ok(self.of(inode).set_attr(inode, &set, now)?.0)
    }

    pub fn set_attr_and_xattr(
        &mut self,
        inode: InodeRef,
        set: SetAttr,
        (name, value): (&[u8], &[u8]),
    ) -> Result<Attr, RegionError> {
        let now = self.tick();
        let xattr = Some((name, Some(value)));
        Ok(self.of(inode).set_attr_and_xattr(inode, &set, xattr, now)?.0)
    }

    pub fn accessed(&mut self, inode: InodeRef) -> Result<(), RegionError> {
        let now = self.tick();
        let region = self.of(inode);
        let (_, tail) = region.attr(inode.ino, Some(inode.generation))?;
        region.accessed(inode, tail, false, now).map(drop)
    }

    pub fn truncate(&mut self, inode: InodeRef, size: u64) -> Result<Attr, RegionError> {
        self.set_attr(
            inode,
            SetAttr {
                size: Some(size),
                ..SetAttr::default()
            },
        )
    }

    /// Eager write.
    pub fn write(&mut self, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Result<Written, RegionError> {
        let now = self.tick();
        self.of(inode).write(inode, at, bytes, Tail::default(), now)
    }

    /// Client-active write: the bytes of each run go to delegated space, then one commit names them all. The
    /// runs' offsets count from `from`.
    pub fn commit(&mut self, inode: InodeRef, runs: &[(u64, Vec<u8>)], from: WriteAt) -> Result<Written, RegionError> {
        let mut spare: Vec<PageRun> = Vec::new();
        let (mut write_runs, mut crcs) = (Vec::new(), Vec::new());
        for (offset, bytes) in runs {
            let mut done = 0;
            while done < bytes.len() {
                let start = (offset + done as u64) % PAGE as u64;
                let pages = (start as usize + bytes.len() - done).div_ceil(PAGE) as u32;
                if spare.is_empty() {
                    spare = match self.of(inode).delegate(SESSION, pages) {
                        Ok(space) => space,
                        Err(why) => {
                            self.take_back(inode, &write_runs);
                            return Err(why);
                        }
                    };
                }
                let run = spare.pop().expect("delegated space is not empty");
                let len = (u64::from(run.pages) * PAGE as u64 - start).min((bytes.len() - done) as u64);
                let gpa = run.gpa.checked_add(start).unwrap();
                let (pmem, at) = self.locate(gpa);
                pmem.write_streaming(at, &bytes[done..done + len as usize]);
                crcs_of_pages(at, &bytes[done..done + len as usize], &mut crcs);
                pmem.fence();
                write_runs.push(WriteRun {
                    offset: offset + done as u64,
                    len,
                    gpa,
                });
                done += len as usize;
                let used = (start + len).div_ceil(PAGE as u64) as u32;
                if used < run.pages {
                    let gpa = run.gpa.checked_add(u64::from(used) * PAGE as u64).unwrap();
                    spare.push(PageRun {
                        gpa,
                        pages: run.pages - used,
                    });
                }
            }
        }
        self.of(inode).return_space(SESSION, &spare);
        let now = self.tick();
        let written = self.of(inode).commit(
            SESSION,
            inode,
            NewData {
                runs: &write_runs,
                crcs: &crcs,
            },
            from,
            Tail::default(),
            now,
        );
        if written.is_err() {
            self.take_back(inode, &write_runs);
        }
        written
    }

    fn take_back(&mut self, inode: InodeRef, runs: &[WriteRun]) {
        let page = |run: &WriteRun| {
            let within = run.gpa.offset().0 % PAGE as u64;
            let gpa = Gpa(run.gpa.0 - within);
            PageRun {
                gpa,
                pages: (within + run.len).div_ceil(PAGE as u64) as u32,
            }
        };
        let runs: Vec<PageRun> = runs.iter().map(page).collect();
        self.of(inode).return_space(SESSION, &runs);
    }

    pub fn fallocate(
        &mut self,
        inode: InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<Attr, RegionError> {
        let now = self.tick();
        Ok(self.of(inode).fallocate(inode, mode, offset, len, now)?.0)
    }

    pub fn set_xattr(
        &mut self,
        inode: InodeRef,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr, RegionError> {
        let now = self.tick();
        Ok(self.of(inode).set_xattr(inode, name, value, mode, now)?.0)
    }

    /// What is made in the directory goes to its maker's node, to regions of that kind.
    pub fn set_placement(&mut self, dir: InodeRef, set: Option<RegionSet>) -> Result<Attr, RegionError> {
        let now = self.tick();
        let placement = Placement { local: true, set };
        Ok(self.of(dir).set_placement(dir, placement, now)?.0)
    }

    pub fn remove_xattr(&mut self, inode: InodeRef, name: &[u8]) -> Result<Attr, RegionError> {
        let now = self.tick();
        Ok(self.of(inode).remove_xattr(inode, name, now)?.0)
    }

    pub fn read(&mut self, inode: InodeRef, offset: u64, len: usize) -> Result<Vec<u8>, RegionError> {
        let mut bytes = vec![0xcc; len];
        let read = self.of(inode).read(inode, offset, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Log garbage collection of a region until nothing is left to do.
    pub fn collect_garbage(&mut self, region: RegionId) {
        let now = self.tick();
        for _ in 0..100_000 {
            if !self.region(region).collect_garbage(now) {
                return;
            }
        }
        panic!("garbage collection does not end");
    }

    /// What a check of all regions finds.
    pub fn check(&mut self) -> Vec<String> {
        let facts = self.regions.iter_mut().map(|region| {
            let report = region.check(&mut |_, _| ());
            let inode = |&(inode, kind, nlink): &(InodeRef, FileKind, u32)| InodeFact { inode, kind, nlink };
            let name = |&(dir, target, kind): &(Ino, InodeRef, FileKind)| NameFact { dir, target, kind };
            CheckFacts {
                region: region.id(),
                findings: report
                    .findings
                    .iter()
                    .map(|f| format!("{:?}: {}", f.ino, f.what))
                    .chain(region.scrub_all().iter().map(|d| format!("{d:?}")))
                    .collect(),
                inodes: report.inodes.iter().map(inode).collect(),
                names: report.names.iter().map(name).collect(),
                next: None,
            }
        });
        join_facts(&facts.collect::<Vec<_>>())
    }
}
