//! Random sequences of all operations against a model in DRAM: results, attributes, times, link counts, names, bytes,
//! extended attributes, errors; with restarts and garbage collection in between; checks find nothing, and all space
//! comes back when everything is deleted.

mod harness;

use harness::snapshot::{Body, mapped, snapshot};
use harness::world::*;
use polvo_format::{Attr, FileKind, Ino, PAGE, RegionId};
use polvo_proto::*;
use polvo_region::RegionError;
use proptest::option::of as some;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};

/// An operation; what it works on is chosen among what there is when it runs.
#[derive(Clone, Debug)]
enum Op {
    Create {
        dir: Index,
        name: u8,
        kind: u8,
        region: u16,
    },
    Unnamed {
        dir: Index,
    },
    Link {
        file: Index,
        dir: Index,
        name: u8,
    },
    Unlink {
        entry: Index,
    },
    Rmdir {
        entry: Index,
    },
    Rename {
        entry: Index,
        dir: Index,
        name: u8,
    },
    RenameOver {
        entry: Index,
        other: Index,
    },
    Exchange {
        entry: Index,
        other: Index,
    },
    SetAttr {
        inode: Index,
        set: SetAttr,
    },
    Write {
        file: Index,
        offset: Option<u64>,
        len: usize,
    },
    Commit {
        file: Index,
        runs: Vec<(u64, usize)>,
        append: bool,
    },
    Truncate {
        file: Index,
        size: u64,
    },
    Fallocate {
        file: Index,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    SetXattr {
        inode: Index,
        name: u8,
        len: usize,
        mode: XattrMode,
    },
    RemoveXattr {
        inode: Index,
        name: u8,
    },
    Placement {
        dir: Index,
        value: Placement,
    },
    Open {
        file: Index,
    },
    Release {
        file: Index,
    },
    CollectGarbage,
    Tick,
    Restart,
    Verify,
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..20_000u64,
        3 => (0..20u64).prop_map(|page| page * PAGE as u64),
        2 => 0..200_000u64,
        1 => 0..1u64 << 45,
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..200usize, 3 => 1..9000usize, 2 => (1..5usize).prop_map(|pages| pages * PAGE), 1 => 1..60_000usize]
}

fn op() -> impl Strategy<Value = Op> {
    let i = any::<Index>;
    let time = prop_oneof![Just(TimeChange::Now), any::<i64>().prop_map(TimeChange::To)];
    let set = (
        some((0..0o10000u32).prop_map(|mode| mode & !0o2000)),
        some(any::<u32>()),
        some(any::<u32>()),
        some(time.clone()),
        some(time),
    )
        .prop_map(|(mode, uid, gid, atime, mtime)| SetAttr {
            mode,
            uid,
            gid,
            size: None,
            atime,
            mtime,
        });
    let mode = prop_oneof![
        Just(FallocateMode::Extend),
        Just(FallocateMode::KeepSize),
        Just(FallocateMode::PunchHole),
        any::<bool>().prop_map(|keep_size| FallocateMode::ZeroRange { keep_size }),
    ];
    let xattr_mode =
        prop_oneof![4 => Just(XattrMode::Any), 1 => Just(XattrMode::Create), 1 => Just(XattrMode::Replace)];
    let runs = prop::collection::vec((0..30_000u64, len()), 1..4).prop_map(|mut runs| {
        // ascending, not overlapping: gaps become offsets
        let mut at = 0;
        for (offset, len) in &mut runs {
            *offset += at;
            at = *offset + *len as u64;
        }
        runs
    });
    prop_oneof![
        10 => (i(), any::<u8>(), 0..12u8, 0..2u16)
            .prop_map(|(dir, name, kind, region)| Op::Create { dir, name, kind, region }),
        1 => i().prop_map(|dir| Op::Unnamed { dir }),
        3 => (i(), i(), any::<u8>()).prop_map(|(file, dir, name)| Op::Link { file, dir, name }),
        5 => i().prop_map(|entry| Op::Unlink { entry }),
        3 => i().prop_map(|entry| Op::Rmdir { entry }),
        4 => (i(), i(), any::<u8>()).prop_map(|(entry, dir, name)| Op::Rename { entry, dir, name }),
        3 => (i(), i()).prop_map(|(entry, other)| Op::RenameOver { entry, other }),
        2 => (i(), i()).prop_map(|(entry, other)| Op::Exchange { entry, other }),
        3 => (i(), set).prop_map(|(inode, set)| Op::SetAttr { inode, set }),
        8 => (i(), some(offset()), len()).prop_map(|(file, offset, len)| Op::Write { file, offset, len }),
        8 => (i(), runs, any::<bool>()).prop_map(|(file, runs, append)| Op::Commit { file, runs, append }),
        4 => (i(), offset()).prop_map(|(file, size)| Op::Truncate { file, size }),
        4 => (i(), mode, offset(), 1..100_000u64)
            .prop_map(|(file, mode, offset, len)| Op::Fallocate { file, mode, offset, len }),
        3 => (i(), 0..6u8, 0..XATTR_VALUE_MAX, xattr_mode)
            .prop_map(|(inode, name, len, mode)| Op::SetXattr { inode, name, len, mode }),
        1 => (i(), 0..6u8).prop_map(|(inode, name)| Op::RemoveXattr { inode, name }),
        1 => (i(), any::<bool>()).prop_map(|(dir, local)| Op::Placement {
            dir,
            value: if local { Placement::Local } else { Placement::Hash }
        }),
        2 => i().prop_map(|file| Op::Open { file }),
        2 => i().prop_map(|file| Op::Release { file }),
        1 => Just(Op::CollectGarbage),
        2 => Just(Op::Tick),
        1 => Just(Op::Restart),
        2 => Just(Op::Verify),
    ]
}

/// Names with collisions among them, of very different lengths.
fn name(n: u8) -> Vec<u8> {
    let n = n % 16;
    let len = [1, 3, 10, 60, 255][usize::from(n) % 5];
    let mut name = vec![b'a' + n; len];
    name[0] = [0x80, b'.', b' ', 0xff, b'\n'][usize::from(n) % 5];
    if len == 1 {
        name[0] = b'a' + n;
    }
    name
}

fn bytes(seed: i64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed as u64).wrapping_mul(i as u64 + 7).wrapping_add(i as u64 >> 5) as u8 | 1)
        .collect()
}

/// A file's bytes: pages that were written, the rest zeros.
#[derive(Clone, Default)]
struct Bytes {
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Bytes {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, start) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let len = (PAGE - start).min(bytes.len() - done);
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE]));
            page[start..start + len].copy_from_slice(&bytes[done..done + len]);
            done += len;
        }
    }

    fn clear(&mut self, from: u64, to: u64) {
        let touched: Vec<u64> = self
            .pages
            .range(from / PAGE as u64..to.div_ceil(PAGE as u64))
            .map(|p| *p.0)
            .collect();
        for page in touched {
            let start = page * PAGE as u64;
            let (a, b) = (from.max(start) - start, to.min(start + PAGE as u64) - start);
            self.pages.get_mut(&page).unwrap()[a as usize..b as usize].fill(0);
        }
        self.pages.retain(|_, page| page.iter().any(|&byte| byte != 0));
    }

    fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (&page, bytes) in self
            .pages
            .range(offset / PAGE as u64..(offset + len as u64).div_ceil(PAGE as u64))
        {
            let start = page * PAGE as u64;
            for (i, &byte) in bytes.iter().enumerate() {
                let at = start + i as u64;
                if at >= offset && at < offset + len as u64 {
                    out[(at - offset) as usize] = byte;
                }
            }
        }
        out
    }
}

struct Inode {
    inode: InodeRef,
    attr: Attr,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    data: Bytes,
    target: Vec<u8>,
    names: BTreeMap<Vec<u8>, InodeRef>,
    parent: InodeRef,
    placement: Placement,
    open: bool,
    /// Made without a name, and never named.
    linkable: bool,
}

struct Model {
    inodes: BTreeMap<Ino, Inode>,
    root: InodeRef,
    /// Every inode that there ever was: none comes again.
    seen: BTreeSet<(Ino, u32)>,
}

impl Model {
    fn get(&mut self, inode: InodeRef) -> &mut Inode {
        self.inodes
            .get_mut(&inode.ino)
            .filter(|i| i.inode == inode)
            .expect("the model knows the inode")
    }

    fn pick(&self, index: &Index, which: impl Fn(&Inode) -> bool) -> Option<InodeRef> {
        let of: Vec<_> = self.inodes.values().filter(|i| which(i)).map(|i| i.inode).collect();
        (!of.is_empty()).then(|| *index.get(&of))
    }

    fn dir(&self, index: &Index) -> InodeRef {
        self.pick(index, |i| i.attr.kind == FileKind::Directory)
            .expect("there is a root")
    }

    fn file(&self, index: &Index) -> Option<InodeRef> {
        self.pick(index, |i| i.attr.kind == FileKind::File)
    }

    fn entry(&self, index: &Index, which: impl Fn(&Inode) -> bool) -> Option<(InodeRef, Vec<u8>, InodeRef)> {
        let all: Vec<_> = self
            .inodes
            .values()
            .flat_map(|dir| {
                dir.names
                    .iter()
                    .map(move |(name, target)| (dir.inode, name.clone(), *target))
            })
            .filter(|(_, _, target)| which(&self.inodes[&target.ino]))
            .collect();
        (!all.is_empty()).then(|| index.get(&all).clone())
    }

    fn is_dir(&self, inode: InodeRef) -> bool {
        self.inodes[&inode.ino].attr.kind == FileKind::Directory
    }

    /// `dir` is `inode` or lies below it.
    fn is_below(&self, mut dir: InodeRef, inode: InodeRef) -> bool {
        loop {
            if dir == inode {
                return true;
            }
            if dir == self.root {
                return false;
            }
            dir = self.inodes[&dir.ino].parent;
        }
    }

    fn add_name(&mut self, dir: InodeRef, name: &[u8], target: InodeRef, now: i64) {
        let is_dir = self.is_dir(target);
        let dir = self.get(dir);
        assert!(dir.names.insert(name.to_vec(), target).is_none());
        dir.attr.nlink += u32::from(is_dir);
        (dir.attr.mtime_ns, dir.attr.ctime_ns) = (now, now);
    }

    fn remove_name(&mut self, dir: InodeRef, name: &[u8], now: i64) -> InodeRef {
        let target = self.get(dir).names.remove(name).expect("the model has the name");
        let is_dir = self.is_dir(target);
        let dir = self.get(dir);
        dir.attr.nlink -= u32::from(is_dir);
        (dir.attr.mtime_ns, dir.attr.ctime_ns) = (now, now);
        target
    }

    fn drop_link(&mut self, inode: InodeRef, now: i64) {
        let node = self.get(inode);
        node.attr.nlink -= 1;
        node.attr.ctime_ns = now;
        if node.attr.nlink == 0 && !node.open {
            self.inodes.remove(&inode.ino);
        }
    }

    fn size(&self, inode: InodeRef) -> u64 {
        self.inodes[&inode.ino].attr.size
    }

    fn wrote(&mut self, file: InodeRef, offset: u64, bytes: &[u8], now: i64) {
        let node = self.get(file);
        node.data.put(offset, bytes);
        node.attr.size = node.attr.size.max(offset + bytes.len() as u64);
        (node.attr.mtime_ns, node.attr.ctime_ns) = (now, now);
    }
}

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
            placement: Placement::Hash,
            open: false,
            linkable: false,
        };
        let model = Model {
            inodes: [(root.ino, inode)].into(),
            root,
            seen: BTreeSet::new(),
        };
        Run { world, model, tick: 1 }
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
            Placement::Hash
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

    fn step(&mut self, op: &Op) {
        let regions = self.world.regions.len() as u16;
        match op {
            Op::Create {
                dir,
                name: n,
                kind,
                region,
            } => {
                use FileKind::*;
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
                ][usize::from(*kind)];
                let (dir, name) = (self.model.dir(dir), name(*n));
                let mut file = new_file(kind, 0o640 | u32::from(*n));
                match kind {
                    Symlink => file.target = bytes(i64::from(*n), 1 + usize::from(*n) * 16),
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
            Op::Unnamed { dir } => {
                let dir = self.model.dir(dir);
                let made = self.world.create_unnamed(dir, 0o600).unwrap();
                self.made(made, &new_file(FileKind::File, 0o600), dir, true);
            }
            Op::Link { file, dir, name: n } => {
                let (Some(file), dir, name) = (self.model.file(file), self.model.dir(dir), name(*n)) else {
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
            Op::Unlink { entry } => {
                let Some((dir, name, target)) = self.model.entry(entry, |i| i.attr.kind != FileKind::Directory) else {
                    return;
                };
                self.world.unlink(dir, &name).unwrap();
                let now = self.world.now;
                self.model.remove_name(dir, &name, now);
                self.model.drop_link(target, now);
                assert_eq!(fs_error(self.world.lookup(dir, &name)), FsError::NotFound);
            }
            Op::Rmdir { entry } => {
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
            Op::Rename { entry, dir, name: n } => {
                let Some((from, old, target)) = self.model.entry(entry, |_| true) else {
                    return;
                };
                let (to, new) = (self.model.dir(dir), name(*n));
                if self.model.get(to).names.contains_key(&new) || self.model.is_below(to, target) {
                    return; // over something: `RenameOver`; into itself: the node's to refuse
                }
                self.world.rename(from, &old, to, &new).unwrap();
                self.renamed(from, &old, to, &new);
            }
            Op::RenameOver { entry, other } => {
                let Some((from, old, source)) = self.model.entry(entry, |_| true) else {
                    return;
                };
                let dir = self.model.is_dir(source);
                let Some((to, new, there)) = self.model.entry(other, |i| (i.attr.kind == FileKind::Directory) == dir)
                else {
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
            Op::Exchange { entry, other } => {
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
            Op::SetAttr { inode, set } => {
                let inode = self.model.pick(inode, |_| true).unwrap();
                let got = self.world.set_attr(inode, *set).unwrap();
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
            Op::Write { file, offset, len } => {
                let Some(file) = self.model.file(file) else { return };
                let data = bytes(self.world.now, (*len).min(EAGER_MAX));
                let at = offset.unwrap_or(self.model.size(file));
                let written = self.world.write(file, *offset, &data).unwrap();
                assert_eq!(written.offset, at);
                self.model.wrote(file, at, &data, self.world.now);
                assert_same(&self.model.get(file).attr, &written.attr);
            }
            Op::Commit { file, runs, append } => {
                let Some(file) = self.model.file(file) else { return };
                // an append leaves no gaps
                let mut end = 0;
                let runs = runs.iter().map(|&(offset, len)| {
                    let at = if *append { end } else { offset };
                    end += len as u64;
                    (at, bytes(self.world.now + at as i64, len))
                });
                let runs: Vec<_> = runs.collect();
                let base = if *append { self.model.size(file) } else { 0 };
                let written = match self.world.commit(file, &runs, *append) {
                    Err(RegionError::Fs(FsError::NoSpace)) => return,
                    written => written.unwrap(),
                };
                assert_eq!(written.offset, base + runs[0].0);
                for (at, data) in &runs {
                    self.model.wrote(file, base + at, data, self.world.now);
                }
                assert_same(&self.model.get(file).attr, &written.attr);
            }
            Op::Truncate { file, size } => {
                let Some(file) = self.model.file(file) else { return };
                let got = self.world.truncate(file, *size).unwrap();
                let now = self.world.now;
                let node = self.model.get(file);
                node.data.clear(*size, u64::MAX);
                node.attr.size = *size;
                (node.attr.mtime_ns, node.attr.ctime_ns) = (now, now);
                assert_same(&node.attr, &got);
            }
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => {
                let Some(file) = self.model.file(file) else { return };
                let before = self.model.size(file);
                let got = match self.world.fallocate(file, *mode, *offset, *len) {
                    Err(RegionError::Fs(FsError::NoSpace)) => return,
                    got => got.unwrap(),
                };
                let now = self.world.now;
                let end = offset + len;
                let node = self.model.get(file);
                match mode {
                    FallocateMode::Extend => node.attr.size = before.max(end),
                    FallocateMode::KeepSize => (),
                    FallocateMode::PunchHole => node.data.clear(*offset, end),
                    FallocateMode::ZeroRange { keep_size } => {
                        node.data.clear(*offset, end);
                        if !keep_size {
                            node.attr.size = before.max(end);
                        }
                    }
                }
                // whether an allocation that changes nothing moves the times is left open
                if got.ctime_ns == now {
                    node.attr.ctime_ns = now;
                }
                if got.mtime_ns == now {
                    node.attr.mtime_ns = now;
                }
                assert_same(&node.attr, &got);
            }
            Op::SetXattr { inode, name, len, mode } => {
                let inode = self.model.pick(inode, |_| true).unwrap();
                let name = [&b"user."[..], &vec![b'x'; usize::from(*name) * 40 + 1]].concat();
                let value = bytes(self.world.now, *len);
                let got = self.world.set_xattr(inode, &name, &value, *mode);
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
            Op::RemoveXattr { inode, name } => {
                let inode = self.model.pick(inode, |_| true).unwrap();
                let name = [&b"user."[..], &vec![b'x'; usize::from(*name) * 40 + 1]].concat();
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
            Op::Placement { dir, value } => {
                let dir = self.model.dir(dir);
                let text: &[u8] = if *value == Placement::Local { b"local" } else { b"hash" };
                self.world
                    .set_xattr(dir, b"polvo.placement", text, XattrMode::Any)
                    .unwrap();
                let now = self.world.now;
                let node = self.model.get(dir);
                node.placement = *value;
                node.attr.ctime_ns = now;
            }
            Op::Open { file } => {
                let Some(file) = self.model.file(file) else { return };
                self.world.of(file).open(SESSION, file).unwrap();
                self.model.get(file).open = true;
            }
            Op::Release { file } => {
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
            Op::CollectGarbage => (0..regions).for_each(|region| self.world.collect_garbage(RegionId(region))),
            Op::Tick => self.pass_tick(),
            Op::Restart => {
                self.world.restart().unwrap();
                self.model.inodes.retain(|_, node| node.attr.nlink > 0);
                self.model.inodes.values_mut().for_each(|node| node.open = false);
                self.verify();
            }
            Op::Verify => self.verify(),
        }
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
            if let Err(why) = run.world.commit(file, &[(0, bytes(i64::from(files), 20_000))], false) {
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
