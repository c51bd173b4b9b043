//! The model: a tree of inodes in DRAM.

use polvo_format::{Attr, FileKind, Ino, PAGE};
use polvo_proto::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};

/// A file's bytes: pages that were written, the rest zeros.
#[derive(Clone, Default)]
pub struct Bytes {
    pub pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Bytes {
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
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

    pub fn clear(&mut self, from: u64, to: u64) {
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

    pub fn get(&self, offset: u64, len: usize) -> Vec<u8> {
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

pub struct Inode {
    pub inode: InodeRef,
    pub attr: Attr,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub data: Bytes,
    pub target: Vec<u8>,
    pub names: BTreeMap<Vec<u8>, InodeRef>,
    pub parent: InodeRef,
    pub placement: Placement,
    pub open: bool,
    /// Made without a name, and never named.
    pub linkable: bool,
}

pub struct Model {
    pub inodes: BTreeMap<Ino, Inode>,
    pub root: InodeRef,
    /// Every inode that there ever was: none comes again.
    pub seen: BTreeSet<(Ino, u32)>,
}

impl Model {
    pub fn get(&mut self, inode: InodeRef) -> &mut Inode {
        self.inodes
            .get_mut(&inode.ino)
            .filter(|i| i.inode == inode)
            .expect("the model knows the inode")
    }

    pub fn pick(&self, index: &Index, which: impl Fn(&Inode) -> bool) -> Option<InodeRef> {
        let of: Vec<_> = self.inodes.values().filter(|i| which(i)).map(|i| i.inode).collect();
        (!of.is_empty()).then(|| *index.get(&of))
    }

    pub fn dir(&self, index: &Index) -> InodeRef {
        self.pick(index, |i| i.attr.kind == FileKind::Directory)
            .expect("there is a root")
    }

    pub fn file(&self, index: &Index) -> Option<InodeRef> {
        self.pick(index, |i| i.attr.kind == FileKind::File)
    }

    pub fn entry(&self, index: &Index, which: impl Fn(&Inode) -> bool) -> Option<(InodeRef, Vec<u8>, InodeRef)> {
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

    pub fn is_dir(&self, inode: InodeRef) -> bool {
        self.inodes[&inode.ino].attr.kind == FileKind::Directory
    }

    /// `dir` is `inode` or lies below it.
    pub fn is_below(&self, mut dir: InodeRef, inode: InodeRef) -> bool {
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

    pub fn add_name(&mut self, dir: InodeRef, name: &[u8], target: InodeRef, now: i64) {
        let is_dir = self.is_dir(target);
        let dir = self.get(dir);
        assert!(dir.names.insert(name.to_vec(), target).is_none());
        dir.attr.nlink += u32::from(is_dir);
        (dir.attr.mtime_ns, dir.attr.ctime_ns) = (now, now);
    }

    pub fn remove_name(&mut self, dir: InodeRef, name: &[u8], now: i64) -> InodeRef {
        let target = self.get(dir).names.remove(name).expect("the model has the name");
        let is_dir = self.is_dir(target);
        let dir = self.get(dir);
        dir.attr.nlink -= u32::from(is_dir);
        (dir.attr.mtime_ns, dir.attr.ctime_ns) = (now, now);
        target
    }

    pub fn drop_link(&mut self, inode: InodeRef, now: i64) {
        let node = self.get(inode);
        node.attr.nlink -= 1;
        node.attr.ctime_ns = now;
        if node.attr.nlink == 0 && !node.open {
            self.inodes.remove(&inode.ino);
        }
    }

    pub fn size(&self, inode: InodeRef) -> u64 {
        self.inodes[&inode.ino].attr.size
    }

    pub fn wrote(&mut self, file: InodeRef, offset: u64, bytes: &[u8], now: i64) {
        let node = self.get(file);
        node.data.put(offset, bytes);
        node.attr.size = node.attr.size.max(offset + bytes.len() as u64);
        (node.attr.mtime_ns, node.attr.ctime_ns) = (now, now);
    }
}
