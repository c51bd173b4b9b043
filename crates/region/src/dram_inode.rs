//! An inode as kept in DRAM: what its log says, taken together. Everything here can be rebuilt from the media at any
//! time; log entries are applied by the same code whether they are read back or just made.

use crate::directory::{Dentry, Directory, Tally};
use crate::extents::Mapped;
use crate::file_index::FileIndex;
use crate::file_view::FileView;
use crate::planted::{Planted, planted};
use polvo_format::{
    Attr, Entry, FileKind, Gpa, INODE_SIZE, Ino, InodeHead, Record, RegionId, RegionOffset, Tail, UnitPlace,
};
use polvo_proto::{InodeRef, Placement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is behind an inode of a kind. Small: a change takes it out and puts it back.
pub(crate) enum Body {
    /// file, object, symbolic link (its target is its content)
    File(Arc<FileView>),
    Directory(Box<Directory>),
    /// directory of which recovery keeps no names; never in the cache
    Counted(Box<Tally>),
    /// pipe, socket, device
    Special,
}

impl Body {
    /// Same mapping, same names?
    pub fn is_same(&self, other: &Body) -> bool {
        match (self, other) {
            (Body::File(a), Body::File(b)) => a.read().index.iter().eq(b.read().index.iter()),
            (Body::Directory(a), Body::Directory(b)) => a.next_cookie() == b.next_cookie() && a.after(0).eq(b.after(0)),
            (Body::Special, Body::Special) => true,
            _ => false,
        }
    }
}

/// An extended attribute whose value is being put together.
struct PartialXattr {
    name: Box<[u8]>,
    value: Vec<u8>,
    /// bytes that are still to come
    rest: usize,
}

pub(crate) struct Inode {
    pub slot: u64,
    pub attr: Attr,
    pub tail: Tail,
    /// tail when its access time was last set, as far as is known: it may have been at any time before the inode was
    /// loaded
    pub atime_set: Tail,
    /// log pages in order (region offsets); there may be more than the tail needs
    pub pages: Vec<u64>,
    /// of a directory
    pub parent: InodeRef,
    pub placement: Placement,
    /// made without a name and never named yet: may get one though its link count is 0
    pub linkable: bool,
    pub body: Body,
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    xattr_units: u64,
    /// of whose value some parts have been applied; never between two commits
    partial_xattr: Option<Box<PartialXattr>>,
    /// of the mapping, after the last change
    mapping_units: u64,
    /// entries that only keep requests in memory, until the log is next written anew
    pub done_units: u64,
    /// when last used, for the cache
    pub stamp: u64,
}

impl Inode {
    /// The inode of a slot before its first log entry.
    pub fn new(ino: Ino, kind: FileKind, head: &InodeHead) -> Inode {
        Inode {
            slot: ino.slot(),
            attr: Attr {
                ino,
                generation: head.generation,
                kind,
                mode: 0,
                nlink: 0,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                blocks: 0,
                atime_ns: 0,
                mtime_ns: 0,
                ctime_ns: 0,
                btime_ns: head.btime_ns,
            },
            tail: Tail::new(head.tail.version(), 0),
            atime_set: head.tail,
            pages: Vec::new(),
            parent: InodeRef {
                ino: head.parent,
                generation: head.parent_generation,
            },
            placement: Placement::default(),
            linkable: false,
            body: match kind {
                FileKind::File | FileKind::Object | FileKind::Symlink => Body::File(Arc::default()),
                FileKind::Directory => Body::Directory(Box::default()),
                _ => Body::Special,
            },
            xattrs: BTreeMap::new(),
            xattr_units: 0,
            partial_xattr: None,
            mapping_units: 0,
            done_units: 0,
            stamp: 0,
        }
    }

    /// Number and generation.
    pub fn inode_ref(&self) -> InodeRef {
        InodeRef {
            ino: self.attr.ino,
            generation: self.attr.generation,
        }
    }

    /// Line 0 as it should be on the media.
    pub fn head(&self) -> InodeHead {
        InodeHead {
            kind: Some(self.attr.kind),
            generation: self.attr.generation,
            parent: self.parent.ino,
            parent_generation: self.parent.generation,
            log_page: RegionOffset(self.pages.first().copied().unwrap_or(0)),
            btime_ns: self.attr.btime_ns,
            tail: self.tail,
        }
    }

    /// Log units (about) that a compact log would take.
    pub fn live_units(&self) -> u64 {
        let body = match &self.body {
            Body::File(_) => self.mapping_units,
            Body::Directory(directory) => directory.live_units(),
            Body::Counted(tally) => tally.live_units(),
            Body::Special => 0,
        };
        1 + body + self.xattr_units
    }

    /// Is more than half of a log of some size dead?
    pub fn is_garbage(&self) -> bool {
        debug_assert!(self.done_units <= self.tail.units(), "requests are part of the log");
        let units = self.tail.units() - self.done_units;
        self.pages.len() > 4 && self.live_units() * 2 < units
    }

    /// How much DRAM it takes, about, in units of 100 bytes.
    pub fn weight(&self) -> usize {
        let body = match &self.body {
            Body::File(view) => view.read().index.len(),
            Body::Directory(directory) => directory.len() * 2,
            Body::Counted(_) | Body::Special => 0,
        };
        4 + body + self.xattr_units as usize + self.pages.len() / 12
    }

    /// Region offset of a log position's unit. Its page is linked.
    pub fn unit_offset(&self, position: u64) -> u64 {
        unit_offset(self.slot, &self.pages, position)
    }

    /// Applies the entries that lie behind the tail and moves it to `tail`. What they hide of the file's mapping is
    /// appended to `hidden`. `before_seen` is done before readers of the mapping see the change.
    pub fn apply_all<'a>(
        &mut self,
        region: RegionId,
        shift: u32,
        tail: Tail,
        records: impl Iterator<Item = Record<'a>>,
        hidden: &mut Vec<Mapped>,
        before_seen: impl FnOnce(),
    ) -> Result<(), &'static str> {
        debug_assert!(
            tail.version() == self.tail.version() && tail > self.tail || planted(Planted::HeldLogCompacted),
            "entries make a log longer"
        );
        let mut end = self.tail.units();
        self.change(tail, |inode, mut index| {
            for record in records {
                debug_assert!(
                    record.position >= end || planted(Planted::HeldLogCompacted),
                    "entries come in order"
                );
                end = record.position + record.units;
                inode.apply(region, shift, &record, index.as_deref_mut(), hidden)?;
            }
            if inode.partial_xattr.is_some() {
                return Err(XATTR_BROKEN_OFF);
            }
            debug_assert!(
                end <= tail.units() || planted(Planted::HeldLogCompacted),
                "entries end by the tail"
            );
            before_seen();
            Ok(())
        })
    }

    /// Does a change that ends with this tail; of a file, with its mapping in hand. Readers of the mapping see all of
    /// it or nothing.
    pub fn change<T>(&mut self, tail: Tail, with: impl FnOnce(&mut Inode, Option<&mut FileIndex>) -> T) -> T {
        debug_assert_eq!(self.slot, self.attr.ino.slot(), "an inode lies in its slot");
        self.tail = tail;
        if !matches!(self.body, Body::File(_)) {
            let done = with(self, None);
            self.derive();
            return done;
        }
        let body = std::mem::replace(&mut self.body, Body::Special);
        let Body::File(view) = &body else {
            unreachable!("it is one")
        };
        let mut mapping = view.write();
        let done = with(self, Some(&mut mapping.index));
        (mapping.tail, mapping.size) = (tail, self.attr.size);
        self.attr.blocks = mapping.index.mapped().div_ceil(512);
        self.mapping_units = mapping.index.live_units();
        debug_assert!(mapping.index.inline() <= mapping.index.mapped());
        drop(mapping);
        self.body = body;
        done
    }

    /// Somebody else has the file's mapping too.
    pub fn is_shared(&self) -> bool {
        matches!(&self.body, Body::File(view) if Arc::strong_count(view) > 1)
    }

    /// Applies one entry (of a file with its mapping in hand), but for the attributes that follow from the body (see
    /// [`Self::derive`]).
    pub fn apply(
        &mut self,
        region: RegionId,
        shift: u32,
        record: &Record,
        index: Option<&mut FileIndex>,
        hidden: &mut Vec<Mapped>,
    ) -> Result<(), &'static str> {
        if self.breaks_xattr_off(&record.entry) {
            return Err(XATTR_BROKEN_OFF);
        }
        let file = || index.ok_or("mapping of something that is no file");
        match record.entry {
            Entry::Pad | Entry::SetAttr(_) | Entry::Parent { .. } => {}
            Entry::Done { .. } => self.done_units += 1,
            Entry::Init(init) => {
                if record.position != 0 {
                    return Err("checkpoint in the middle of a log");
                }
                self.placement = Placement::try_from(init.placement)?;
                self.linkable = init.nlink == 0;
                if let Body::Directory(directory) = &mut self.body {
                    directory.set_next_cookie(init.rdev_or_cookie);
                }
            }
            Entry::Write { offset, len, gpa, .. } => {
                let new = Mapped {
                    len,
                    gpa,
                    inline: false,
                };
                file()?.insert(offset, new, shift, hidden);
            }
            Entry::Inline { offset, bytes, .. } => {
                let at = self.unit_offset(record.position) + Record::INLINE_BYTES;
                let new = Mapped {
                    len: bytes.len() as u64,
                    gpa: Gpa::new(region, RegionOffset(at)),
                    inline: true,
                };
                file()?.insert(offset, new, shift, hidden);
            }
            Entry::Truncate { size, .. } => file()?.remove(size, u64::MAX, hidden),
            Entry::Hole { offset, len, .. } => file()?.remove(offset, len, hidden),
            Entry::SetXattr { name, value, rest, .. } => self.add_xattr_part(name, value, usize::from(rest)),
            Entry::DelXattr { name, .. } => self.forget_xattr(name),
            Entry::DentryAdd {
                name,
                target: ino,
                generation,
                kind,
                cookie,
                ..
            } => {
                let target = InodeRef { ino, generation };
                let new = Dentry { cookie, target, kind };
                match &mut self.body {
                    Body::Directory(directory) => directory.add(name, new)?,
                    Body::Counted(tally) => tally.add(name, new)?,
                    _ => return Err(NO_DIRECTORY),
                }
            }
            Entry::DentryDel { name, cookie, .. } => match &mut self.body {
                Body::Directory(directory) => directory.remove(name, cookie)?,
                Body::Counted(tally) => tally.remove(name, cookie)?,
                _ => return Err(NO_DIRECTORY),
            },
            Entry::Links { .. } => self.linkable = false,
            Entry::Placement { placement: byte, .. } => self.placement = Placement::try_from(byte)?,
        }
        record.update(&mut self.attr);
        Ok(())
    }

    /// Does this entry not go on where the value of an extended attribute has been begun, or go on with none that has?
    fn breaks_xattr_off(&self, entry: &Entry) -> bool {
        match (&self.partial_xattr, entry) {
            (_, Entry::Pad) => false,
            (None, Entry::SetXattr { offset, .. }) => *offset != 0,
            (None, _) => false,
            (
                Some(partial),
                Entry::SetXattr {
                    name,
                    value,
                    offset,
                    rest,
                    ..
                },
            ) => {
                *partial.name != **name
                    || partial.value.len() != usize::from(*offset)
                    || partial.rest != value.len() + usize::from(*rest)
            }
            (Some(_), _) => true,
        }
    }

    /// Forgets the value that has been begun and not ended; false if there is none.
    pub fn drop_partial_xattr(&mut self) -> bool {
        self.partial_xattr.take().is_some()
    }

    /// The next part of a value ([`Self::breaks_xattr_off`] has said no), after which `rest` bytes are to come.
    fn add_xattr_part(&mut self, name: &[u8], value: &[u8], rest: usize) {
        if rest == 0 && self.partial_xattr.is_none() {
            return self.remember_xattr(name.into(), value.into());
        }
        let mut partial = self.partial_xattr.take().unwrap_or_else(|| {
            Box::new(PartialXattr {
                name: name.into(),
                value: Vec::with_capacity(value.len() + rest),
                rest: 0,
            })
        });
        debug_assert!(
            partial.rest == 0 || partial.rest == value.len() + rest,
            "parts follow each other"
        );
        partial.value.extend_from_slice(value);
        partial.rest = rest;
        match rest {
            0 => self.remember_xattr(partial.name, partial.value.into()),
            _ => self.partial_xattr = Some(partial),
        }
    }

    fn remember_xattr(&mut self, name: Box<[u8]>, value: Box<[u8]>) {
        self.forget_xattr(&name);
        self.xattr_units += xattr_units(&name, &value);
        let before = self.xattrs.insert(name, value);
        debug_assert!(before.is_none(), "a name has one value");
        self.check_xattrs();
    }

    /// The units of all extended attributes are counted.
    fn check_xattrs(&self) {
        debug_assert_eq!(
            self.xattr_units,
            self.xattrs
                .iter()
                .map(|(name, value)| xattr_units(name, value))
                .sum::<u64>(),
            "extended attributes are counted"
        );
    }

    fn forget_xattr(&mut self, name: &[u8]) {
        if let Some(value) = self.xattrs.remove(name) {
            let units = self.xattr_units.checked_sub(xattr_units(name, &value));
            self.xattr_units = units.expect("extended attributes are counted");
            self.check_xattrs();
        }
    }

    /// Attributes that follow from the body.
    pub fn derive(&mut self) {
        let (names, subdirectories) = match &self.body {
            Body::File(view) => {
                self.attr.blocks = view.read().index.mapped().div_ceil(512);
                return;
            }
            Body::Directory(directory) => (directory.len() as u64, directory.subdirectories()),
            Body::Counted(tally) => (tally.len(), tally.subdirectories()),
            Body::Special => {
                self.attr.blocks = 0;
                return;
            }
        };
        if self.attr.nlink != 0 {
            self.attr.nlink = 2 + subdirectories;
        }
        self.attr.size = names * 64;
        let bytes = self.attr.size;
        self.attr.blocks = bytes.div_ceil(512);
    }
}

/// Log units of the entries that set an extended attribute.
fn xattr_units(name: &[u8], value: &[u8]) -> u64 {
    Entry::set_xattr(name, value, 0).map(|part| part.units()).sum()
}

/// Parts of a value follow each other, and all of them are there.
pub(crate) const XATTR_BROKEN_OFF: &str = "part of an extended attribute is missing";

const NO_DIRECTORY: &str = "name in something that is no directory";

/// Region offset of a log position's unit.
pub(crate) fn unit_offset(slot: u64, pages: &[u64], position: u64) -> u64 {
    match UnitPlace::of(position) {
        UnitPlace::Inode(at) => slot * INODE_SIZE as u64 + at,
        UnitPlace::Page { page, at } => pages[page as usize] + at,
    }
}
