//! What is done to single inodes of a recovered region: a log written anew, a slot retired, data separated, names and link
//! counts changed. Each is one commit of a log or one redo record.

use super::salvage::Reading;
use crate::directory::{Dentry, dentry_entry};
use crate::dram_inode::{Body, Inode};
use crate::extents::Mapped;
use crate::file_view::FileView;
use crate::region::VERSION_MAX;
use crate::space::{Run, each_page};
use crate::store::Urgency;
use crate::writes::Writes;
use crate::{Region, RegionError};
use polvo_format::{Entry, FileKind, Generation, INODE_ATTRIBUTES, INODE_SIZE, Ino, InodeHead, PAGE, Tail, TxnId};
use polvo_proto::{FsError, InodeRef, Intent};

/// Pages taken for the data of a file: they come back when this ends, unless the file's log says by then that they are its.
#[must_use]
struct FreshPages<'a> {
    region: &'a mut Region,
    runs: Vec<Run>,
}

impl Drop for FreshPages<'_> {
    fn drop(&mut self) {
        // after a panic nobody knows whether they are the file's
        for run in self.runs.iter().filter(|_| !std::thread::panicking()) {
            self.region.store.space.give(*run);
        }
    }
}

impl FreshPages<'_> {
    /// They are the file's.
    fn happened(mut self) {
        self.runs.clear();
    }

    /// Copies what a file has outside its log, and maps the copies instead.
    fn copy(&mut self, view: &FileView) -> Result<(), RegionError> {
        let store = &mut self.region.store;
        let (shift, mut hidden) = (store.segment_shift(), Vec::new());
        let extents: Vec<(u64, Mapped)> = view.read().index.iter().filter(|(_, e)| !e.inline).collect();
        for (offset, extent) in extents {
            let mut done = 0;
            while done < extent.len {
                let run = store.take_data((extent.len - done).div_ceil(PAGE as u64).min(256) as u32)?;
                self.runs.push(run);
                let len = (u64::from(run.len) * PAGE as u64).min(extent.len - done);
                let mut bytes = vec![0; len as usize];
                store.read(extent.gpa.offset().0 + done, &mut bytes);
                let at = store.space.offset(run);
                store.write_data(at, &bytes);
                store.put_checksums_of(at, &bytes);
                let new = Mapped {
                    len,
                    gpa: store.gpa(at),
                    inline: false,
                };
                view.write().index.insert(offset + done, new, shift, &mut hidden);
                done += len;
            }
        }
        Ok(())
    }
}

impl Region {
    /// Calls with every inode that can be read, in order.
    pub(super) fn each_inode(&self, with: &mut dyn FnMut(&Inode)) {
        let mut slots = Vec::new();
        self.store.each_slot(&mut |slot, bytes| {
            if InodeHead::decode(bytes, self.store.ino(slot)).is_ok_and(|head| head.kind.is_some()) {
                slots.push(slot);
            }
        });
        for slot in slots {
            if let Ok(inode) = self.store.load(slot) {
                with(&inode);
            }
        }
    }

    /// Keeps what a damaged inode has, as far as that can be read, out of the hands of others until it is rebuilt.
    pub(super) fn set_aside(&mut self, reading: &Reading) {
        let space = &mut self.store.space;
        for page in reading.inode.pages.iter().filter(|page| **page != 0) {
            space.mark(space.page_run(*page, 1));
        }
        let Body::File(view) = &reading.inode.body else {
            return;
        };
        for (_, extent) in view.read().index.iter().filter(|(_, e)| !e.inline) {
            each_page(extent.gpa.offset().0, extent.len, |page, _| {
                space.mark(space.page_run(page * PAGE as u64, 1));
            });
        }
    }

    /// Writes what could be read of an inode under the next version of its log. Link counts of files become `nlink`.
    ///
    /// # Errors
    /// ENOSPC; EINVAL when its log versions are used up.
    pub(super) fn rewrite(&mut self, reading: Reading, newest: u32, nlink: u32) -> Result<(), RegionError> {
        // inline bytes are copied from where they lie
        for flip in &reading.flips {
            self.store.flip_back(flip.at, flip.bit);
        }
        let mut inode = reading.inode;
        let version = inode.tail.version().max(newest);
        if version >= VERSION_MAX - 1 {
            return Err(FsError::Invalid("its log versions are used up".into()).into());
        }
        inode.attr.nlink = match inode.attr.kind {
            FileKind::Directory => 2,
            _ => nlink,
        };
        if inode.attr.mode == 0 {
            inode.attr.mode = match inode.attr.kind {
                FileKind::Directory => 0o700,
                _ => 0o600,
            };
        }
        inode.derive();
        inode.tail = Tail::new(version, 0);
        // the old ones are found to be free at the next start
        inode.pages.clear();
        self.compact_inode(&mut inode)?;
        self.cache.take(inode.slot);
        self.store.damaged.remove(&inode.slot);
        Ok(())
    }

    /// Marks a slot of which nothing is known as used up: free, and never given to anybody again.
    pub(super) fn retire_slot(&mut self, slot: u64) -> Result<(), RegionError> {
        let head = InodeHead {
            generation: Generation(u32::MAX),
            tail: Tail::new(VERSION_MAX, 0),
            ..InodeHead::UNUSED
        };
        let head = head.encode(self.store.ino(slot), &[0; INODE_ATTRIBUTES as usize]);
        let retired = Writes::one(slot * INODE_SIZE as u64, &head);
        self.redo(TxnId::default(), &retired, &[])?;
        self.store.damaged.remove(&slot);
        Ok(())
    }

    /// Copies all data of a file to fresh pages: those it has belong to another file too.
    pub(super) fn separate(&mut self, mut inode: Inode) -> Result<(), RegionError> {
        let Body::File(view) = &inode.body else {
            return Ok(());
        };
        let view = view.clone();
        let mut fresh = FreshPages {
            region: self,
            runs: Vec::new(),
        };
        fresh.copy(&view)?;
        inode.pages.clear();
        fresh.region.compact_inode(&mut inode)?;
        fresh.happened();
        self.cache.take(inode.slot);
        self.store.damaged.remove(&inode.slot);
        Ok(())
    }

    fn append_to(&mut self, inode: InodeRef, entry: &Entry) -> Result<(), RegionError> {
        let (store, inode) = self.inode(inode)?;
        store.append(inode, &[*entry], Urgency::Frees, |_| ())
    }

    /// Takes a name out of a directory, whatever it leads to.
    pub(super) fn strike_name(&mut self, dir: InodeRef, name: &[u8], now_ns: i64) -> Result<(), RegionError> {
        let (_, inode) = self.inode(dir)?;
        let old = inode.directory_body()?.get(name).ok_or(FsError::NotFound)?;
        let entry = Entry::DentryDel {
            name,
            target: old.target.ino,
            generation: old.target.generation,
            kind: old.kind,
            cookie: old.cookie,
            time_ns: now_ns,
        };
        self.append_to(dir, &entry)
    }

    /// Enters a name into a directory, or points one that is there at another inode.
    pub(super) fn enter_name(
        &mut self,
        dir: InodeRef,
        name: &[u8],
        target: InodeRef,
        kind: FileKind,
        now_ns: i64,
    ) -> Result<(), RegionError> {
        let (_, inode) = self.inode(dir)?;
        let directory = inode.directory_body()?;
        let cookie = directory.get(name).map_or(directory.next_cookie(), |old| old.cookie);
        if cookie == u64::MAX {
            return Err(FsError::NoSpace.into());
        }
        self.append_to(dir, &dentry_entry(name, Dentry { cookie, target, kind }, now_ns))
    }

    /// Sets a link count.
    pub(super) fn set_links(&mut self, inode: InodeRef, nlink: u32, now_ns: i64) -> Result<(), RegionError> {
        self.append_to(inode, &Entry::Links { nlink, time_ns: now_ns })?;
        if nlink != 0 {
            self.dead.remove(&inode.ino.slot());
        }
        Ok(())
    }

    /// Sets the parent of a directory.
    pub(super) fn set_parent(&mut self, dir: InodeRef, parent: InodeRef, now_ns: i64) -> Result<(), RegionError> {
        let intents = [Intent::SetParent { inode: dir, parent }];
        self.decide(TxnId::default(), &intents, &[], now_ns).map(|_| ())
    }

    /// Frees the inodes without a name that recovery has kept.
    pub(super) fn free_dead(&mut self) {
        let dead: Vec<u64> = self.dead.iter().copied().collect();
        dead.into_iter().for_each(|slot| self.free_if_dead(slot));
    }

    /// Inodes that recovery could not read, or of which something belongs to others too.
    pub(super) fn damaged(&self) -> Vec<Ino> {
        let mut slots: Vec<u64> = self.store.damaged.keys().copied().collect();
        slots.sort_unstable();
        slots.into_iter().map(|slot| self.store.ino(slot)).collect()
    }
}
