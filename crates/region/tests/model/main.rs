//! Random sequences of all operations against a model in DRAM: results, attributes, times, link counts, names, bytes,
//! extended attributes, errors; with restarts and garbage collection in between; checks find nothing, and all space
//! comes back when everything is deleted.

mod expected;
#[path = "../harness/mod.rs"]
mod harness;
mod operation;

use expected::{Bytes, Inode, Model};
use harness::replicas::Replicas;
use harness::snapshot::{Body, mapped, snapshot};
use harness::world::*;
use operation::{Op, bytes, name, op};
use polvo_format::{Attr, FileKind, PAGE, RegionId};
use polvo_proto::*;
use polvo_region::RegionError;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
fn fs_error<T: std::fmt::Debug>(result: Result<T, RegionError>) -> FsError {
    match result {
        Err(RegionError::Fs(why)) => why,
        other => panic!("an error of the file system was expected, not {other:?}"),
    }
}

struct Run {
    world: World,
    model: Model,
    tick: u64,
    /// copies of the world, as it was after the last step
    replicas: Option<Replicas>,
}

impl Run {
    fn new(shape: Shape) -> Run {
        let mut world = World::new(shape);
        let root = world.root();
        let attr = world.attr(root).unwrap();
        let inode = Inode {
            inode: root,
            attr,
            xattrs: BTreeMap::new(),
            data: Bytes::default(),
            target: vec![],
            names: BTreeMap::new(),
            parent: root,
            placement: Placement::default(),
            open: false,
            linkable: false,
        };
        let model = Model {
            inodes: [(root.ino, inode)].into(),
            root,
            seen: BTreeSet::new(),
        };
        Run {
            world,
            model,
            tick: 1,
            replicas: None,
        }
    }

    fn made(&mut self, inode: InodeRef, file: &NewFile, parent: InodeRef, unnamed: bool) {
        let now = self.world.now;
        assert!(
            self.model.seen.insert((inode.ino, inode.generation.0)),
            "{inode:?} was there before"
        );
        let dir = file.kind == FileKind::Directory;
        let attr = Attr {
            ino: inode.ino,
            generation: inode.generation,
            kind: file.kind,
            mode: file.mode,
            nlink: if unnamed { 0 } else { 1 + u32::from(dir) },
            uid: file.uid,
            gid: file.gid,
            rdev: file.rdev,
            size: file.target.len() as u64,
            blocks: 0,
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
        };
        let placement = if dir {
            self.model.get(parent).placement
        } else {
            Placement::default()
        };
        let new = Inode {
            inode,
            attr,
            xattrs: BTreeMap::new(),
            data: Bytes::default(),
            target: file.target.clone(),
            names: BTreeMap::new(),
            parent,
            placement,
            open: unnamed,
            linkable: unnamed,
        };
        assert!(
            self.model.inodes.insert(inode.ino, new).is_none(),
            "{inode:?} is in use"
        );
    }

    /// One operation, which the copies follow.
    fn step(&mut self, op: &Op) {
        if self.replicas.is_none() {
            self.replicas = Some(Replicas::of(&mut self.world));
        }
        self.carry_out(op);
        let mut replicas = self.replicas.take();
        if let Some(copies) = &mut replicas
            && copies.follow(&mut self.world)
        {
            self.replicas = replicas;
        }
    }

    fn carry_out(&mut self, op: &Op) {
        match op {
            Op::Create {
                dir,
                name: n,
                kind,
                region,
            } => self.create(dir, *n, *kind, *region),
            Op::Unnamed { dir } => self.unnamed(dir),
            Op::Link { file, dir, name: n } => self.link(file, dir, *n),
            Op::Unlink { entry } => self.unlink(entry),
            Op::Rmdir { entry } => self.rmdir(entry),
            Op::Rename { entry, dir, name: n } => self.rename(entry, dir, *n),
            Op::RenameOver { entry, other } => self.rename_over(entry, other),
            Op::Exchange { entry, other } => self.exchange(entry, other),
            Op::SetAttr { inode, set } => self.set_attr(inode, *set),
            Op::Write { file, at, len } => self.write(file, *at, *len),
            Op::Commit { file, runs, from } => self.commit(file, runs, *from),
            Op::Truncate { file, size } => self.truncate(file, *size),
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => self.fallocate(file, *mode, *offset, *len),
            Op::SetXattr { inode, name, len, mode } => self.set_xattr(inode, *name, *len, *mode),
            Op::RemoveXattr { inode, name } => self.remove_xattr(inode, *name),
            Op::Placement { dir, value } => self.placement(dir, *value),
            Op::Open { file } => self.open(file),
            Op::Release { file } => self.release(file),
            Op::CollectGarbage => (0..self.world.regions.len() as u16).for_each(|region| {
                self.world.collect_garbage(RegionId(region));
                self.world.region(RegionId(region)).shrink(EVERYBODY, |_| ());
                self.world.region(RegionId(region)).release_segments(|_| ());
            }),
            Op::Tick => self.pass_tick(),
            Op::Restart => self.restart(),
            Op::Verify => self.verify(),
        }
    }

    fn create(&mut self, dir: &Index, n: u8, kind: u8, region: u16) {
        use FileKind::*;
        let regions = self.world.regions.len() as u16;
        let kind = [
            File,
            File,
            File,
            File,
            Directory,
            Directory,
            Directory,
            Symlink,
            Fifo,
            Socket,
            CharDevice,
            BlockDevice,
        ][usize::from(kind)];
        let (dir, name) = (self.model.dir(dir), name(n));
        let mut file = new_file(kind, 0o640 | u32::from(n));
        match kind {
            Symlink => file.target = bytes(i64::from(n), 1 + usize::from(n) * 16),
            CharDevice | BlockDevice => file.rdev = 0x0102_0304_0506,
            _ => (),
        }
        let made = self.world.create(dir, &name, file.clone(), RegionId(region % regions));
        if self.model.get(dir).names.contains_key(&name) {
            assert_eq!(fs_error(made), FsError::Exists);
            return;
        }
        let made = made.unwrap();
        self.made(made, &file, dir, false);
        self.model.add_name(dir, &name, made, self.world.now);
    }

    fn unnamed(&mut self, dir: &Index) {
        let dir = self.model.dir(dir);
        let made = self.world.create_unnamed(dir, 0o600).unwrap();
        self.made(made, &new_file(FileKind::File, 0o600), dir, true);
    }

    fn link(&mut self, file: &Index, dir: &Index, n: u8) {
        let (Some(file), dir, name) = (self.model.file(file), self.model.dir(dir), name(n)) else {
            return;
        };
        let linked = self.world.link(file, dir, &name);
        let exists = self.model.get(dir).names.contains_key(&name);
        let node = self.model.get(file);
        let dead = node.attr.nlink == 0 && !node.linkable;
        if exists || dead {
            // which of the two is seen first is left open
            let why = fs_error(linked);
            assert!(
                exists && why == FsError::Exists || dead && why == FsError::NotFound,
                "{why}"
            );
            return;
        }
        linked.unwrap();
        let now = self.world.now;
        self.model.add_name(dir, &name, file, now);
        let node = self.model.get(file);
        node.linkable = false;
        node.attr.nlink += 1;
        node.attr.ctime_ns = now;
    }

    fn unlink(&mut self, entry: &Index) {
        let Some((dir, name, target)) = self.model.entry(entry, |i| i.attr.kind != FileKind::Directory) else {
            return;
        };
        self.world.unlink(dir, &name).unwrap();
        let now = self.world.now;
        self.model.remove_name(dir, &name, now);
        self.model.drop_link(target, now);
        assert_eq!(fs_error(self.world.lookup(dir, &name)), FsError::NotFound);
    }

    fn rmdir(&mut self, entry: &Index) {
        let Some((dir, name, target)) = self.model.entry(entry, |i| i.attr.kind == FileKind::Directory) else {
            return;
        };
        let removed = self.world.rmdir(dir, &name);
        if !self.model.get(target).names.is_empty() {
            assert_eq!(fs_error(removed), FsError::NotEmpty);
            return;
        }
        removed.unwrap();
        self.model.remove_name(dir, &name, self.world.now);
        self.model.inodes.remove(&target.ino);
        self.world.attr(target).unwrap_err();
    }

    fn rename(&mut self, entry: &Index, dir: &Index, n: u8) {
        let Some((from, old, target)) = self.model.entry(entry, |_| true) else {
            return;
        };
        let (to, new) = (self.model.dir(dir), name(n));
        if self.model.get(to).names.contains_key(&new) || self.model.is_below(to, target) {
            return; // over something: `RenameOver`; into itself: the node's to refuse
        }
        self.world.rename(from, &old, to, &new).unwrap();
        self.renamed(from, &old, to, &new);
    }

    fn rename_over(&mut self, entry: &Index, other: &Index) {
        let Some((from, old, source)) = self.model.entry(entry, |_| true) else {
            return;
        };
        let dir = self.model.is_dir(source);
        let Some((to, new, there)) = self.model.entry(other, |i| (i.attr.kind == FileKind::Directory) == dir) else {
            return;
        };
        // into itself, or over what it lies in: the node's to refuse
        if dir && (self.model.is_below(to, source) || self.model.is_below(from, there)) || source == there {
            return;
        }
        let renamed = self.world.rename(from, &old, to, &new);
        if dir && !self.model.get(there).names.is_empty() {
            assert_eq!(fs_error(renamed), FsError::NotEmpty);
            return;
        }
        renamed.unwrap();
        let now = self.world.now;
        self.model.remove_name(to, &new, now);
        if dir {
            self.model.inodes.remove(&there.ino);
        } else {
            self.model.drop_link(there, now);
        }
        self.renamed(from, &old, to, &new);
    }

    fn exchange(&mut self, entry: &Index, other: &Index) {
        let (Some((a_dir, a, x)), Some((b_dir, b, y))) =
            (self.model.entry(entry, |_| true), self.model.entry(other, |_| true))
        else {
            return;
        };
        if x == y || self.model.is_below(b_dir, x) || self.model.is_below(a_dir, y) {
            return;
        }
        self.world.exchange(a_dir, &a, b_dir, &b).unwrap();
        let now = self.world.now;
        self.model.remove_name(a_dir, &a, now);
        self.model.remove_name(b_dir, &b, now);
        for (dir, name, target) in [(a_dir, &a, y), (b_dir, &b, x)] {
            self.model.add_name(dir, name, target, now);
            let is_dir = self.model.is_dir(target);
            let node = self.model.get(target);
            node.attr.ctime_ns = now;
            if is_dir {
                node.parent = dir;
            }
        }
    }

    fn set_attr(&mut self, inode: &Index, set: SetAttr) {
        let inode = self.model.pick(inode, |_| true).unwrap();
        let got = self.world.set_attr(inode, set).unwrap();
        let now = self.world.now;
        let time = |change: Option<TimeChange>, old: i64| match change {
            None => old,
            Some(TimeChange::Now) => now,
            Some(TimeChange::To(ns)) => ns,
        };
        let attr = &mut self.model.get(inode).attr;
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime_ns = time(set.atime, attr.atime_ns);
        attr.mtime_ns = time(set.mtime, attr.mtime_ns);
        attr.ctime_ns = now;
        let expected = *attr;
        assert_same(&expected, &got);
    }

    fn write(&mut self, file: &Index, at: WriteAt, len: usize) {
        let Some(file) = self.model.file(file) else { return };
        let data = bytes(self.world.now, (len).min(EAGER_MAX));
        let offset = at.in_file(self.model.size(file));
        let written = self.world.write(file, at, &data).unwrap();
        assert_eq!(written.offset, offset);
        self.model.wrote(file, offset, &data, self.world.now);
        assert_same(&self.model.get(file).attr, &written.attr);
    }

    fn commit(&mut self, file: &Index, runs: &[(u64, usize)], from: WriteAt) {
        let Some(file) = self.model.file(file) else { return };
        // an append leaves no gaps
        let mut end = 0;
        let runs = runs.iter().map(|&(offset, len)| {
            let at = if from == WriteAt::End { end } else { offset };
            end += len as u64;
            (at, bytes(self.world.now + at as i64, len))
        });
        let runs: Vec<_> = runs.collect();
        let base = from.in_file(self.model.size(file));
        let written = match self.world.commit(file, &runs, from) {
            Err(RegionError::Fs(FsError::NoSpace)) => return,
            written => written.unwrap(),
        };
        assert_eq!(written.offset, base + runs[0].0);
        for (at, data) in &runs {
            self.model.wrote(file, base + at, data, self.world.now);
        }
        assert_same(&self.model.get(file).attr, &written.attr);
    }

    fn truncate(&mut self, file: &Index, size: u64) {
        let Some(file) = self.model.file(file) else { return };
        let got = self.world.truncate(file, size).unwrap();
        let now = self.world.now;
        let node = self.model.get(file);
        node.data.clear(size, u64::MAX);
        node.attr.size = size;
        (node.attr.mtime_ns, node.attr.ctime_ns) = (now, now);
        assert_same(&node.attr, &got);
    }

    fn fallocate(&mut self, file: &Index, mode: FallocateMode, offset: u64, len: u64) {
        let Some(file) = self.model.file(file) else { return };
        let before = self.model.size(file);
        let got = match self.world.fallocate(file, mode, offset, len) {
            Err(RegionError::Fs(FsError::NoSpace)) => return,
            got => got.unwrap(),
        };
        let now = self.world.now;
        let end = offset + len;
        let node = self.model.get(file);
        match mode {
            FallocateMode::PunchHole => node.data.clear(offset, end),
            FallocateMode::ZeroRange { keep_size } => {
                node.data.clear(offset, end);
                if !keep_size {
                    node.attr.size = before.max(end);
                }
            }
        }
        (node.attr.ctime_ns, node.attr.mtime_ns) = (now, now);
        assert_same(&node.attr, &got);
    }

    fn set_xattr(&mut self, inode: &Index, name: u8, len: usize, mode: XattrMode) {
        let inode = self.model.pick(inode, |_| true).unwrap();
        let name = [&b"user."[..], &vec![b'x'; usize::from(name) * 40 + 1]].concat();
        let value = bytes(self.world.now, len);
        let got = self.world.set_xattr(inode, &name, &value, mode);
        let now = self.world.now;
        let node = self.model.get(inode);
        match (mode, node.xattrs.contains_key(&name)) {
            (XattrMode::Create, true) => assert_eq!(fs_error(got), FsError::Exists),
            (XattrMode::Replace, false) => assert_eq!(fs_error(got), FsError::NoAttribute),
            _ => {
                node.attr.ctime_ns = now;
                assert_same(&node.attr, &got.unwrap());
                node.xattrs.insert(name, value);
            }
        }
    }

    fn remove_xattr(&mut self, inode: &Index, name: u8) {
        let inode = self.model.pick(inode, |_| true).unwrap();
        let name = [&b"user."[..], &vec![b'x'; usize::from(name) * 40 + 1]].concat();
        let got = self.world.remove_xattr(inode, &name);
        let now = self.world.now;
        let node = self.model.get(inode);
        if node.xattrs.remove(&name).is_none() {
            assert_eq!(fs_error(got), FsError::NoAttribute);
            assert_eq!(
                fs_error(self.world.of(inode).get_xattr(inode, &name)),
                FsError::NoAttribute
            );
            return;
        }
        node.attr.ctime_ns = now;
        assert_same(&node.attr, &got.unwrap());
    }

    fn placement(&mut self, dir: &Index, value: Placement) {
        let dir = self.model.dir(dir);
        let now = self.world.tick();
        self.world.of(dir).set_placement(dir, value, now).unwrap();
        let node = self.model.get(dir);
        node.placement = value;
        node.attr.ctime_ns = now;
    }

    fn open(&mut self, file: &Index) {
        let Some(file) = self.model.file(file) else { return };
        self.world.of(file).open(SESSION, file).unwrap();
        self.model.get(file).open = true;
    }

    fn release(&mut self, file: &Index) {
        let Some(file) = self.model.pick(file, |i| i.open) else {
            return;
        };
        self.world.of(file).release(SESSION, file);
        let node = self.model.get(file);
        node.open = false;
        if node.attr.nlink == 0 {
            self.model.inodes.remove(&file.ino);
            self.world.attr(file).unwrap_err();
        }
    }

    fn restart(&mut self) {
        self.replicas = None;
        self.world.restart().unwrap();
        self.model.inodes.retain(|_, node| node.attr.nlink > 0);
        self.model.inodes.values_mut().for_each(|node| node.open = false);
        self.verify();
    }

    fn renamed(&mut self, from: InodeRef, old: &[u8], to: InodeRef, new: &[u8]) {
        let now = self.world.now;
        let target = self.model.remove_name(from, old, now);
        self.model.add_name(to, new, target, now);
        let node = self.model.get(target);
        node.attr.ctime_ns = now;
        if node.attr.kind == FileKind::Directory {
            node.parent = to;
        }
    }

    fn pass_tick(&mut self) {
        self.tick += 1;
        for region in &mut self.world.regions {
            region.set_tick(self.tick, self.tick - 1);
        }
    }

    /// Everything of the model is there, and nothing else; checks find nothing.
    fn verify(&mut self) {
        let tree = snapshot(&mut self.world).unwrap();
        if let Some(replicas) = &self.replicas {
            replicas.compare(&self.world, &tree).unwrap();
        }
        let mut reached = BTreeSet::from([self.model.root.ino]);
        for node in tree.0.values() {
            let expected = &self.model.inodes[&node.attr.ino];
            reached.insert(node.attr.ino);
            assert_same(&expected.attr, &node.attr);
            let placement = |(name, _): &(&Vec<u8>, &Vec<u8>)| !name.starts_with(b"polvo.");
            let user: BTreeMap<_, _> = node.xattrs.iter().filter(placement).collect();
            assert_eq!(user, expected.xattrs.iter().collect(), "extended attributes");
            match &node.body {
                Body::Directory {
                    parent,
                    placement,
                    entries,
                } => {
                    assert_eq!((*parent, *placement), (expected.parent, expected.placement));
                    let names: BTreeMap<_, _> = entries.iter().map(|e| (e.1.clone(), e.2)).collect();
                    assert_eq!(names.len(), entries.len(), "a name is there twice");
                    assert_eq!(names, expected.names);
                    assert_eq!(node.attr.size, 64 * names.len() as u64);
                    for (_, name, target, kind) in entries {
                        assert_eq!(*kind, self.model.inodes[&target.ino].attr.kind, "{name:?}");
                    }
                }
                Body::Symlink(target) => assert_eq!(*target, expected.target),
                Body::File(_) | Body::Special => (),
            }
        }
        let open: Vec<_> = self
            .model
            .inodes
            .values()
            .filter(|i| i.attr.nlink == 0)
            .map(|i| i.inode.ino)
            .collect();
        reached.extend(&open);
        assert_eq!(
            reached,
            self.model.inodes.keys().copied().collect(),
            "inodes are missing"
        );
        let files: Vec<_> = self
            .model
            .inodes
            .values()
            .filter(|i| i.attr.kind == FileKind::File)
            .map(|i| i.inode)
            .collect();
        for file in files {
            self.verify_bytes(file);
        }
        assert_eq!(self.world.check(), Vec::<String>::new());
        let used: u64 = self.world.regions.iter().map(|region| region.usage().inodes).sum();
        assert_eq!(used, self.model.inodes.len() as u64);
    }

    /// By reads at the primary, and by the map as clients do it.
    fn verify_bytes(&mut self, file: InodeRef) {
        let by_map = mapped(&mut self.world, file).unwrap();
        let node = &self.model.inodes[&file.ino];
        let size = node.attr.size;
        let mut seen = Bytes::default();
        for (offset, bytes) in &by_map {
            assert!(offset + bytes.len() as u64 <= size, "mapped beyond the end");
            seen.put(*offset, bytes);
        }
        for (&page, bytes) in &node.data.pages {
            let got = seen.pages.get(&page).map_or(&[0; PAGE], |page| page);
            assert!(got == &**bytes, "page {page} of {file:?} by the map");
        }
        for (page, bytes) in &seen.pages {
            assert!(
                node.data.pages.contains_key(page) || bytes.iter().all(|&b| b == 0),
                "page {page} has bytes"
            );
        }
        let places: BTreeSet<u64> = node.data.pages.keys().map(|page| page * PAGE as u64).collect();
        let places: Vec<u64> = places
            .into_iter()
            .chain([0, 5, size.saturating_sub(3000), size, size + 9])
            .collect();
        for at in places {
            let expected = self.model.inodes[&file.ino]
                .data
                .get(at, size.saturating_sub(at).min(5000) as usize);
            let got = self.world.read(file, at, 5000).unwrap();
            assert!(expected == got, "bytes from {at} of {file:?}");
        }
    }

    /// Deletes everything: all inodes, pages and log pages are free again.
    fn delete_everything(&mut self) {
        while let Some((dir, name, target)) = self.model.entry(&INDEX, |i| i.names.is_empty()) {
            if self.model.is_dir(target) {
                self.world.rmdir(dir, &name).unwrap();
                self.model.remove_name(dir, &name, self.world.now);
                self.model.inodes.remove(&target.ino);
            } else {
                self.world.unlink(dir, &name).unwrap();
                self.model.remove_name(dir, &name, self.world.now);
                self.model.drop_link(target, self.world.now);
            }
        }
        for region in &mut self.world.regions {
            region.end_session(SESSION);
        }
        self.model.inodes.retain(|_, inode| inode.attr.nlink > 0);
        self.model.inodes.values_mut().for_each(|inode| inode.open = false);
        self.verify();
    }
}

static INDEX: std::sync::LazyLock<Index> = std::sync::LazyLock::new(|| {
    use proptest::strategy::ValueTree;
    any::<Index>()
        .new_tree(&mut proptest::test_runner::TestRunner::deterministic())
        .unwrap()
        .current()
});

/// But for what the model does not know: a directory's size, and blocks.
fn assert_same(expected: &Attr, got: &Attr) {
    let mut expected = *expected;
    if expected.kind == FileKind::Directory {
        expected.size = got.size;
    }
    expected.blocks = got.blocks;
    assert_eq!(expected, *got);
}

/// `ROUNDS` multiplies the number of sequences.
fn rounds() -> u32 {
    std::env::var("ROUNDS")
        .ok()
        .map_or(1, |s| s.parse().expect("ROUNDS is a number"))
}

fn shapes() -> impl Strategy<Value = Shape> {
    let larger = |shape: Shape| Shape {
        pool_len: 16 << 20,
        ..shape
    };
    prop_oneof![
        Just(larger(Shape::small())),
        Just(larger(Shape::two_pools())),
        Just(larger(Shape::two_regions())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600 * rounds(), max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_do_what_the_model_does(shape in shapes(), ops in prop::collection::vec(op(), 1..250)) {
        let mut run = Run::new(shape);
        for op in &ops {
            run.step(op);
        }
        run.verify();
        run.replicas = None;
        run.world.restart().unwrap();
        run.model.inodes.retain(|_, node| node.attr.nlink > 0);
        run.model.inodes.values_mut().for_each(|node| node.open = false);
        run.verify();
        run.delete_everything();
    }
}

/// Free bytes for data in all pools.
fn free(world: &World) -> u64 {
    world
        .pools
        .iter()
        .map(|pool| u64::from(pool.usage().free_segments) * pool.usage().segment_size)
        .sum::<u64>()
        + world
            .regions
            .iter()
            .map(|region| region.usage().free_bytes)
            .sum::<u64>()
}

#[test]
fn all_space_comes_back_in_many_rounds() {
    let mut run = Run::new(Shape {
        pool_len: 5 << 20,
        ..Shape::two_regions()
    });
    let root = run.model.root;
    let mut free_after = Vec::new();
    for round in 0..6 {
        // until it is full: data, then names
        let mut files = 0u32;
        loop {
            let region = RegionId((files % 2) as u16);
            let name = format!("{files:050}");
            let made = run
                .world
                .create(root, name.as_bytes(), new_file(FileKind::File, 0o600), region);
            let file = match made {
                Ok(file) => file,
                Err(why) => {
                    assert_eq!(fs_error::<()>(Err(why)), FsError::NoSpace);
                    break;
                }
            };
            files += 1;
            if let Err(why) = run
                .world
                .commit(file, &[(0, bytes(i64::from(files), 20_000))], WriteAt::Offset(0))
            {
                assert_eq!(fs_error::<()>(Err(why)), FsError::NoSpace);
                if files > 400 {
                    break;
                }
            }
        }
        assert!(files > 50, "only {files} files fit in round {round}");
        assert_eq!(run.world.check(), Vec::<String>::new());
        if round % 2 == 1 {
            run.world.restart().unwrap();
        }
        let names = run.world.of(root).read_dir(root, 0, 10_000).unwrap();
        let mut after = 0;
        while let Some(entry) = run.world.of(root).read_dir(root, after, 1).unwrap().pop() {
            after = entry.cookie;
            run.world.unlink(root, &entry.name).unwrap();
        }
        assert!(!names.is_empty());
        run.tick += 2;
        run.pass_tick();
        run.pass_tick();
        for region in 0..2 {
            run.world.collect_garbage(RegionId(region));
        }
        run.pass_tick();
        run.pass_tick();
        run.model.get(root).attr = run.world.attr(root).unwrap(); // the model has not followed
        run.verify();
        free_after.push(free(&run.world));
    }
    // what is given to logs and inodes stays there; it settles, and does not grow from round to round
    assert!(free_after[5] >= free_after[1], "{free_after:?}");
    assert!(free_after[5] > 1 << 20, "{free_after:?}");
}
