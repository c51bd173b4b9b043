//! What is staged of a region's inodes: for each that is touched a list of log entries, and its attributes after them.
//! [`crate::staging`] works it out; [`crate::staged_change`] makes it happen, or gives back what was taken for it.

use crate::directory::{Dentry, dentry_entry};
use crate::dram_inode::Inode;
use crate::layout::{LogEnd, read_back};
use crate::origins::Done;
use polvo_format::{
    Attr, AttrChange, Entry, FileKind, Generation, Init, Ino, InodeHead, LINE, Origin, RegionOffset, Tail, UnitPlace,
};
use polvo_proto::{InodeRef, NewFile};

/// An inode as it would be.
pub(crate) struct Staged {
    pub inode: InodeRef,
    pub attr: Attr,
    /// the log's end before
    pub tail: Tail,
    pub parent: InodeRef,
    /// `parent` is another one than before
    pub moved: bool,
    pub fresh: bool,
    /// loses its last name
    pub dies: bool,
    pub linkable: bool,
    /// unsealed log entries
    pub entries: Vec<u8>,
    /// what names stand for after the intent of that number
    pub names: Vec<(usize, Option<Dentry>)>,
    pub next_cookie: u64,
}

/// What a staged inode has allocated, empty.
pub(crate) type Buffers = (Vec<u8>, Vec<(usize, Option<Dentry>)>);

impl Staged {
    pub fn of(inode: &Inode, (entries, names): Buffers) -> Staged {
        Staged {
            inode: inode.inode_ref(),
            attr: inode.attr,
            tail: inode.tail,
            parent: inode.parent,
            moved: false,
            fresh: false,
            dies: false,
            linkable: inode.linkable,
            entries,
            names,
            next_cookie: inode.directory_body().map_or(0, |d| d.next_cookie()),
        }
        .check()
    }

    /// Nothing is staged of it yet.
    fn check(self) -> Staged {
        debug_assert!(self.entries.is_empty() && self.names.is_empty(), "buffers come empty");
        debug_assert!(self.attr.ino == self.inode.ino && self.attr.generation == self.inode.generation);
        debug_assert!(
            self.inode.generation.0 > 0,
            "generation 0 is of slots that nobody has used"
        );
        debug_assert!(
            self.fresh == (self.tail.units() == 0),
            "every log but a new one has a checkpoint"
        );
        self
    }

    /// A new inode, as its first log entry says; a parent, and that it may get a name, is for the caller to say.
    pub fn new(inode: InodeRef, version: u32, file: &NewFile, init: &Init, (entries, names): Buffers) -> Staged {
        Staged {
            inode,
            attr: Attr {
                ino: inode.ino,
                generation: inode.generation,
                kind: file.kind,
                mode: init.mode,
                nlink: init.nlink,
                uid: init.uid,
                gid: init.gid,
                rdev: rdev(file),
                size: init.size,
                blocks: init.size.div_ceil(512),
                atime_ns: init.atime_ns,
                mtime_ns: init.mtime_ns,
                ctime_ns: init.ctime_ns,
                btime_ns: init.ctime_ns,
            },
            tail: Tail::new(version, 0),
            parent: InodeRef {
                ino: Ino(0),
                generation: Generation(0),
            },
            moved: false,
            fresh: true,
            dies: false,
            linkable: false,
            entries,
            names,
            next_cookie: 1,
        }
        .check()
    }

    pub fn slot(&self) -> u64 {
        self.inode.ino.slot()
    }

    /// Where its log ends now, and the pages that it has.
    pub fn log_end<'a>(&self, pages: &'a [u64]) -> LogEnd<'a> {
        debug_assert!(
            pages.len() as u64 >= UnitPlace::pages(self.tail.units()),
            "the log has the pages up to its tail"
        );
        LogEnd {
            ino: self.inode.ino,
            tail: self.tail,
            pages,
        }
    }

    /// Line 0 after the change.
    pub fn head(&self, first_page: u64, tail: Tail) -> InodeHead {
        InodeHead {
            kind: Some(self.attr.kind),
            generation: self.inode.generation,
            parent: self.parent.ino,
            parent_generation: self.parent.generation,
            log_page: RegionOffset(first_page),
            btime_ns: self.attr.btime_ns,
            tail,
        }
    }

    pub fn push(&mut self, entry: &Entry) {
        entry.encode(false, &mut self.entries);
        debug_assert!(self.entries.len().is_multiple_of(LINE), "entries are whole");
    }

    pub fn touch(&mut self, now_ns: i64) {
        let change = AttrChange {
            ctime_ns: now_ns,
            ..AttrChange::default()
        };
        self.push(&Entry::SetAttr(change));
        self.attr.ctime_ns = now_ns;
    }

    pub fn set_nlink(&mut self, nlink: u32, now_ns: i64) {
        assert!(
            nlink == 0 || self.attr.kind != FileKind::Directory,
            "links of a directory follow from its names"
        );
        self.push(&Entry::Links { nlink, time_ns: now_ns });
        self.attr.nlink = nlink;
        self.attr.ctime_ns = now_ns;
        self.linkable = false;
        self.dies = nlink == 0;
    }

    pub fn set_parent(&mut self, parent: InodeRef, now_ns: i64) {
        self.push(&Entry::Parent {
            parent: parent.ino,
            generation: parent.generation,
            time_ns: now_ns,
        });
        assert!(
            self.attr.kind == FileKind::Directory,
            "only directories know their parents"
        );
        self.moved |= self.parent != parent;
        self.parent = parent;
        self.attr.ctime_ns = now_ns;
    }

    /// A name stands for another inode, or is new; the intent of that number says so.
    pub fn point_name(&mut self, number: usize, name: &[u8], new: Dentry, now_ns: i64) {
        debug_assert!(
            new.cookie > 0 && new.cookie < self.next_cookie,
            "a cookie that was given out"
        );
        self.push(&dentry_entry(name, new, now_ns));
        self.names.push((number, Some(new)));
    }

    pub fn remove_name(&mut self, number: usize, name: &[u8], old: Dentry, now_ns: i64) {
        debug_assert!(
            old.cookie > 0 && old.cookie < self.next_cookie,
            "a cookie that was given out"
        );
        self.push(&Entry::DentryDel {
            name,
            target: old.target.ino,
            generation: old.target.generation,
            kind: old.kind,
            cookie: old.cookie,
            time_ns: now_ns,
        });
        self.names.push((number, None));
    }

    /// Attributes of a directory whose names changed.
    pub fn names_changed(&mut self, entries: i64, subdirectories: i64, now_ns: i64) {
        debug_assert!(self.attr.kind == FileKind::Directory, "only directories have names");
        debug_assert!(
            self.attr.size.checked_add_signed(entries * 64).is_some(),
            "a name that goes was counted"
        );
        debug_assert!(
            self.attr
                .nlink
                .checked_add_signed(subdirectories as i32)
                .is_some_and(|nlink| nlink >= 2)
        );
        self.attr.size = self.attr.size.saturating_add_signed(entries * 64);
        self.attr.blocks = self.attr.size.div_ceil(512);
        self.attr.nlink = self.attr.nlink.saturating_add_signed(subdirectories as i32);
        (self.attr.mtime_ns, self.attr.ctime_ns) = (now_ns, now_ns);
    }
}

/// Everything that a list of intents would do.
#[derive(Default)]
pub(crate) struct Stage {
    pub inodes: Vec<Staged>,
    /// for each intent, which of `inodes` it is about
    pub about: Vec<usize>,
    pub made: Option<InodeRef>,
    /// of inodes staged before
    pub spare: Vec<Buffers>,
}

impl Stage {
    /// Puts the request that asks for all this into the log of an inode that stays; returns what it will have done
    /// there.
    pub fn asked_by(&mut self, origin: Option<Origin>) -> Option<(Origin, Done)> {
        let origin = origin?;
        let stays = |staged: &&mut Staged| !staged.fresh && !staged.dies && !staged.entries.is_empty();
        let staged = self.inodes.iter_mut().find(stays)?;
        Entry::add_origin(&mut staged.entries, 0, origin).expect("entries were made by this crate");
        let first = read_back(0, &staged.entries).next()?;
        debug_assert_eq!(first.origin, Some(origin), "the first entry says who asked");
        Some((origin, Done::by(staged.inode, &first.entry)))
    }

    /// Nothing is staged any more; what it has allocated stays for the next time.
    pub fn clear(&mut self) {
        let buffers = |mut staged: Staged| {
            staged.entries.clear();
            staged.names.clear();
            (staged.entries, staged.names)
        };
        self.spare.extend(self.inodes.drain(..).map(buffers));
        self.about.clear();
        self.made = None;
        debug_assert!(
            self.spare
                .iter()
                .all(|(entries, names)| entries.is_empty() && names.is_empty()),
            "buffers are kept empty"
        );
    }
}

/// The device number of a device, else 0.
pub(crate) fn rdev(file: &NewFile) -> u64 {
    match file.kind {
        FileKind::CharDevice | FileKind::BlockDevice => file.rdev,
        _ => 0,
    }
}
