//! Everything that a user can see of a tree, for comparison.

use super::world::{ROOT_REGION, World, refer};
use polvo_format::{Attr, FileKind, Ino, Tail};
use polvo_proto::{InodeRef, Placement};
use polvo_region::RegionError;
use std::collections::BTreeMap;

/// Files up to this size are read as a whole; of larger ones only what is mapped.
const WHOLE_MAX: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub attr: Attr,
    pub tail: Tail,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// (offset, bytes); neighbours are joined.
    File(Vec<(u64, Vec<u8>)>),
    Directory {
        parent: InodeRef,
        placement: Placement,
        /// in order of position
        entries: Vec<Entry>,
    },
    Symlink(Vec<u8>),
    Special,
}

/// A directory's entry: cookie, name, inode, kind.
pub type Entry = (u64, Vec<u8>, InodeRef, FileKind);

/// By path. An inode with two names is there twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot(pub BTreeMap<Vec<u8>, Node>);

/// Reads the whole tree.
pub fn snapshot(world: &mut World) -> Result<Snapshot, RegionError> {
    let mut nodes = BTreeMap::new();
    let (root, _) = world.region(ROOT_REGION).attr(Ino::ROOT, None)?;
    let mut to_visit = vec![(b"/".to_vec(), refer(&root))];
    while let Some((path, inode)) = to_visit.pop() {
        assert!(path.len() < 10_000, "directories form a ring");
        let node = node(world, inode)?;
        if let Body::Directory { entries, .. } = &node.body {
            for (_, name, target, kind) in entries {
                let slash: &[u8] = if *kind == FileKind::Directory { b"/" } else { b"" };
                let path = [&path[..], name, slash].concat();
                to_visit.push((path, *target));
            }
        }
        nodes.insert(path, node);
    }
    Ok(Snapshot(nodes))
}

/// Reads one inode.
pub fn node(world: &mut World, inode: InodeRef) -> Result<Node, RegionError> {
    let (attr, tail) = world.of(inode).attr(inode.ino, Some(inode.generation))?;
    let mut xattrs = BTreeMap::new();
    for name in world.of(inode).list_xattr(inode)? {
        let value = world.of(inode).get_xattr(inode, &name)?;
        assert!(xattrs.insert(name, value).is_none(), "an attribute is listed twice");
    }
    let body = match attr.kind {
        FileKind::Directory => {
            let parent = world.of(inode).parent(inode)?;
            let placement = world.of(inode).placement(inode)?;
            Body::Directory {
                parent,
                placement,
                entries: entries(world, inode)?,
            }
        }
        FileKind::Symlink => Body::Symlink(world.of(inode).read_link(inode)?),
        FileKind::File | FileKind::Object if attr.size <= WHOLE_MAX => {
            let bytes = world.read(inode, 0, attr.size as usize + 10)?;
            assert_eq!(bytes.len() as u64, attr.size, "a read ends at the end of file");
            Body::File(if bytes.is_empty() { vec![] } else { vec![(0, bytes)] })
        }
        FileKind::File | FileKind::Object => Body::File(mapped(world, inode)?),
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Body::Special,
    };
    Ok(Node {
        attr,
        tail,
        xattrs,
        body,
    })
}

fn entries(world: &mut World, dir: InodeRef) -> Result<Vec<Entry>, RegionError> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let some = world.of(dir).read_dir(dir, after, 7)?;
        let Some(last) = some.last() else { return Ok(all) };
        assert!(some.len() <= 7 && last.cookie > after, "reading a directory goes on");
        after = last.cookie;
        all.extend(some.into_iter().map(|e| (e.cookie, e.name, e.target, e.kind)));
    }
}

/// What is mapped, read by the map as a client with one-sided reads does it.
pub fn mapped(world: &mut World, inode: InodeRef) -> Result<Vec<(u64, Vec<u8>)>, RegionError> {
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut from = 0;
    loop {
        let map = world.of(inode).file_map(inode, from)?;
        for extent in &map.extents {
            let end = extent.offset + extent.len;
            assert!(extent.len > 0 && end > from, "extents are in order");
            let (pmem, at) = world.locate(extent.gpa);
            let mut bytes = vec![0; extent.len as usize];
            pmem.read(at, &mut bytes);
            match all.last_mut() {
                Some((start, before)) if *start + before.len() as u64 == extent.offset => before.extend(bytes),
                Some((start, before)) => {
                    assert!(*start + (before.len() as u64) < extent.offset, "extents overlap");
                    all.push((extent.offset, bytes));
                }
                None => all.push((extent.offset, bytes)),
            }
            from = end;
        }
        if !map.more {
            return Ok(all);
        }
        assert!(!map.extents.is_empty(), "more extents are promised and none come");
    }
}

/// What differs, for a message.
pub fn difference(one: &Snapshot, other: &Snapshot) -> String {
    let mut lines = Vec::new();
    for path in one
        .0
        .keys()
        .chain(other.0.keys().filter(|path| !one.0.contains_key(*path)))
    {
        let shown = String::from_utf8_lossy(path);
        match (one.0.get(path), other.0.get(path)) {
            (Some(a), Some(b)) if a == b => (),
            (Some(a), Some(b)) => {
                if a.attr != b.attr {
                    lines.push(format!("{shown}: {:?}\n   vs {:?}", a.attr, b.attr));
                }
                if a.tail != b.tail {
                    lines.push(format!("{shown}: tail {:?} vs {:?}", a.tail, b.tail));
                }
                if a.xattrs != b.xattrs {
                    let lens = |all: &BTreeMap<Vec<u8>, Vec<u8>>| {
                        let shown = |(name, value): (&Vec<u8>, &Vec<u8>)| {
                            format!("{} ({} bytes)", String::from_utf8_lossy(name), value.len())
                        };
                        all.iter().map(shown).collect::<Vec<_>>()
                    };
                    let (a, b) = (lens(&a.xattrs), lens(&b.xattrs));
                    lines.push(format!("{shown}: attributes differ: {a:?} vs {b:?}"));
                }
                match (&a.body, &b.body) {
                    (Body::File(a), Body::File(b)) if a != b => {
                        let place = a.iter().zip(b).find_map(|(a, b)| {
                            if a.0 != b.0 {
                                return Some(a.0.min(b.0));
                            }
                            let at = a.1.iter().zip(&b.1).position(|(x, y)| x != y);
                            at.map(|at| a.0 + at as u64)
                        });
                        let lens = |runs: &[(u64, Vec<u8>)]| {
                            runs.iter().map(|(at, bytes)| (*at, bytes.len())).collect::<Vec<_>>()
                        };
                        lines.push(format!(
                            "{shown}: bytes differ at {place:?}; {:?} vs {:?}",
                            lens(a),
                            lens(b)
                        ));
                    }
                    (a, b) if a != b => lines.push(format!("{shown}: {a:?}\n   vs {b:?}")),
                    _ => (),
                }
            }
            (here, _) => lines.push(format!(
                "{shown}: only in the {} one",
                if here.is_some() { "first" } else { "second" }
            )),
        }
    }
    lines.join("\n")
}
