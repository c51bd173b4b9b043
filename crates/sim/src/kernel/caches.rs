//! What the kernel keeps: names, and attributes and pages of inodes.
//!
//! As Linux has it: an answer brings attributes with the version that there was when its request was sent; they are dropped if
//! the inode's version has grown since. An invalidation moves the version, and finds only inodes that are there.

use crate::operation::{Answer, Name};
use polvo_format::{Attr, FileKind};
use polvo_proto::InodeRef;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

/// A name: what it stands for.
#[derive(Clone, Copy)]
pub struct Dentry {
    child: Option<(InodeRef, FileKind)>,
    /// The last tick in which that is believed; `None`: not at all.
    until: Option<u64>,
}

/// An inode that the kernel knows.
struct Inode {
    attr: Attr,
    /// The last tick in which the attributes are believed; `None`: not at all.
    until: Option<u64>,
    version: u64,
    /// Answers that have told of it.
    lookups: u64,
    pages: BTreeMap<u64, Page>,
}

/// A page of a file, by its number.
enum Page {
    /// A read fills it, and has it locked.
    Filling,
    There(Vec<u8>),
}

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// An answer's attributes, and for how long they may be believed.
#[derive(Clone, Copy)]
pub struct Attributes {
    /// They.
    pub attr: Attr,
    /// From when they are taken in.
    pub valid: Duration,
}

/// What is known of a name without a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// It stands for this.
    Inode(InodeRef, FileKind),
    /// There is no such name.
    Absent,
    /// It stood for this; who wants to know asks.
    Expired(InodeRef),
    /// Nothing.
    Nothing,
}

/// The caches of one mount's kernel.
pub struct Caches {
    dentries: BTreeMap<(InodeRef, Name), Dentry>,
    inodes: BTreeMap<InodeRef, Inode>,
    version: u64,
    tick: Duration,
    began: Instant,
}

/// Which inode attributes are of.
pub fn inode_of(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}

impl Caches {
    /// Empty ones, of a kernel that counts time in ticks.
    pub fn new(tick: Duration) -> Caches {
        Caches {
            dentries: BTreeMap::new(),
            inodes: BTreeMap::new(),
            version: 1,
            tick,
            began: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        (self.began.elapsed().as_nanos() / self.tick.as_nanos()) as u64
    }

    /// The last tick of something that lasts so long from now; `None`: it does not last.
    fn last_tick(&self, valid: Duration) -> Option<u64> {
        let ticks = valid.as_nanos().div_ceil(self.tick.as_nanos()) as u64;
        (ticks > 0).then(|| self.now() + ticks)
    }

    /// To be kept with a request that is sent.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Does the kernel know the inode?
    pub fn knows(&self, inode: InodeRef) -> bool {
        self.inodes.contains_key(&inode)
    }

    /// What is known of a name.
    pub fn name(&self, dir: InodeRef, name: Name) -> Known {
        match self.dentries.get(&(dir, name)) {
            None => Known::Nothing,
            Some(dentry) if dentry.until.is_some_and(|until| self.now() <= until) => match dentry.child {
                Some((inode, kind)) => Known::Inode(inode, kind),
                None => Known::Absent,
            },
            Some(Dentry {
                child: Some((inode, _)),
                ..
            }) => Known::Expired(*inode),
            Some(_) => Known::Nothing,
        }
    }

    /// Attributes that are believed.
    pub fn attributes(&self, inode: InodeRef) -> Option<Answer> {
        let known = self.inodes.get(&inode)?;
        (self.now() <= known.until?).then(|| shown(&known.attr))
    }

    /// Takes in a name.
    pub fn enter_name(&mut self, dir: InodeRef, name: Name, child: Option<(InodeRef, FileKind)>, valid: Duration) {
        match (self.last_tick(valid), child) {
            (None, None) => drop(self.dentries.remove(&(dir, name))),
            // one that is not believed still says which inode to compare with
            (until, _) => drop(self.dentries.insert((dir, name), Dentry { child, until })),
        }
    }

    /// Forgets a name.
    pub fn drop_name(&mut self, dir: InodeRef, name: Name) {
        self.dentries.remove(&(dir, name));
    }

    /// A rename: what the kernel believes of a name, and for how long, goes with it.
    pub fn move_name(&mut self, from: (InodeRef, Name), to: (InodeRef, Name), is_exchange: bool) {
        let (moved, target) = (self.dentries.remove(&from), self.dentries.remove(&to));
        if let Some(moved) = moved {
            self.dentries.insert(to, moved);
        }
        if let Some(target) = target.filter(|_| is_exchange) {
            self.dentries.insert(from, target);
        }
    }

    /// Takes in attributes, unless the inode was invalidated since the request was sent. `version` 0: in any case.
    pub fn enter_attributes(&mut self, told: &Attributes, version: u64) {
        self.enter(told, version, 0);
    }

    /// The same of an answer that tells of the inode: the kernel knows it from here on.
    pub fn enter_inode(&mut self, told: &Attributes, version: u64) {
        self.enter(told, version, 1);
    }

    fn enter(&mut self, told: &Attributes, version: u64, lookups: u64) {
        let until = self.last_tick(told.valid);
        self.version += 1;
        let known = self.inodes.entry(inode_of(&told.attr)).or_insert(Inode {
            attr: told.attr,
            until: None,
            version: 0,
            lookups: 0,
            pages: BTreeMap::new(),
        });
        known.lookups += lookups;
        if version == 0 || known.version <= version {
            known.attr = told.attr;
            known.until = until;
            known.version = self.version;
        }
    }

    /// A page of a file, if it is there.
    pub fn page(&self, inode: InodeRef, page: u64) -> Option<&[u8]> {
        match self.inodes.get(&inode)?.pages.get(&page)? {
            Page::There(bytes) => Some(bytes),
            Page::Filling => None,
        }
    }

    /// A read begins that fills these pages, as far as they are not there.
    pub fn begin_filling(&mut self, inode: InodeRef, pages: Range<u64>) {
        if let Some(known) = self.inodes.get_mut(&inode) {
            for page in pages {
                known.pages.entry(page).or_insert(Page::Filling);
            }
        }
    }

    /// It has read that; nothing: it failed.
    pub fn end_filling(&mut self, inode: InodeRef, pages: Range<u64>, bytes: Option<&[u8]>) {
        let Some(known) = self.inodes.get_mut(&inode) else {
            return;
        };
        for (n, page) in pages.enumerate() {
            if !matches!(known.pages.get(&page), Some(Page::Filling)) {
                continue;
            }
            known.pages.remove(&page);
            if let Some(bytes) = bytes {
                let from = bytes.len().min(n * PAGE as usize);
                let to = bytes.len().min(from + PAGE as usize);
                known.pages.insert(page, Page::There(bytes[from..to].to_vec()));
            }
        }
    }

    /// By the daemon: pages go. False: a read is filling some, which are to be waited for.
    pub fn drop_pages(&mut self, inode: InodeRef) -> bool {
        let Some(known) = self.inodes.get_mut(&inode) else {
            return true;
        };
        known.pages.retain(|_, page| matches!(page, Page::Filling));
        known.pages.is_empty()
    }

    /// Inodes that the kernel knows.
    pub fn inodes(&self) -> Vec<InodeRef> {
        self.inodes.keys().copied().collect()
    }

    /// Memory is short: an inode goes, and its names. Gives how many answers that have told of it are forgotten.
    pub fn evict(&mut self, inode: InodeRef) -> u64 {
        let is_of = |dentry: &Dentry| dentry.child.is_some_and(|(child, _)| child == inode);
        self.dentries.retain(|(dir, _), dentry| *dir != inode && !is_of(dentry));
        self.inodes.remove(&inode).map_or(0, |known| known.lookups)
    }

    /// After a change of this kernel's own: attributes are believed no more. Answers that are under way are taken in.
    pub fn expire(&mut self, inode: InodeRef) {
        if let Some(known) = self.inodes.get_mut(&inode) {
            known.until = None;
        }
    }

    /// By the daemon: attributes are believed no more. False: there is no such inode.
    pub fn invalidate(&mut self, inode: InodeRef) -> bool {
        self.version += 1;
        let version = self.version;
        let Some(known) = self.inodes.get_mut(&inode) else {
            return false;
        };
        debug_assert!(known.version < version, "versions grow");
        known.version = version;
        known.until = None;
        true
    }
}

/// What a program is told of an inode.
pub fn shown(attr: &Attr) -> Answer {
    Answer::Attr {
        size: attr.size,
        nlink: attr.nlink,
        mode: attr.mode,
        kind: attr.kind,
    }
}
