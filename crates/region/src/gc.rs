//! Log garbage collection: a log that is more than half dead is written anew, compact, under the next version.
//!
//! The new log (a checkpoint, then what is live) goes to fresh pages that nobody can see; one redo record swaps it in
//! together with the units that lie in the inode. The old pages go to quarantine: a client that is just reading them
//! notices that the version has changed. A log whose version cannot be raised any more is left as it is.
//!
//! A directory in DRAM remembers where its old log ended and its new one began: who knows names as of the old log goes
//! on from there ([`Region::log_sequel`]).

use crate::RegionError;
use crate::directory::{Rewritten, dentry_entry};
use crate::dram_inode::{Body, Inode};
use crate::layout::{Layout, LogEnd, read_back};
use crate::planted::{Planted, planted};
use crate::region::{Region, VERSION_MAX, raised};
use crate::staged_change::StagedChange;
use crate::store::Store;
use crate::writes::Writes;
use polvo_format::{
    Entry, FileKind, Gpa, INODE_ATTRIBUTES, INODE_SIZE, INODE_UNITS, Init, InodeHead, LINE, Record, RegionOffset,
    UnitPlace, encode_attributes,
};
use polvo_proto::SegmentClass;

/// Log units looked at or written in one call: about 1 MiB. One log is never cut, however long.
const UNITS_PER_CALL: u64 = 1 << 14;

impl Region {
    /// Does a bounded piece of log garbage collection; false when there is nothing to do.
    pub fn collect_garbage(&mut self, _now_ns: i64) -> bool {
        // what could not be freed when its last holder let go
        let dead: Vec<u64> = self
            .dead
            .iter()
            .copied()
            .filter(|slot| !self.sessions.is_held(*slot))
            .take(64)
            .collect();
        for slot in dead {
            self.free_if_dead(slot);
        }
        let mut units = 0;
        while units < UNITS_PER_CALL {
            let Some(slot) = self.store.garbage.pop_first() else {
                return units > 0;
            };
            if self.locked.contains(slot) && !planted(Planted::HeldLogCompacted) && self.reap_slot(slot).is_err() {
                continue; // looked at again when its log next grows
            }
            units += 1;
            match self.compact(slot) {
                Ok(moved) => units += moved,
                Err(e) => {
                    tracing::debug!(region = self.store.region.0, slot, error = %e, "log garbage collection is put off");
                }
            }
        }
        true
    }

    /// Writes the log of an inode anew if that is worth it. Gives the units looked at and written.
    fn compact(&mut self, slot: u64) -> Result<u64, RegionError> {
        match self.cache.get(&self.store, slot)?.is_garbage() {
            true => self.rewrite_log(slot),
            false => Ok(0),
        }
    }

    /// Writes the log of an inode anew, if it can be. Gives the units looked at and written.
    pub(crate) fn rewrite_log(&mut self, slot: u64) -> Result<u64, RegionError> {
        let inode = self.cache.get(&self.store, slot)?;
        if inode.attr.nlink == 0 || inode.tail.version() + 1 >= VERSION_MAX {
            return Ok(0);
        }
        debug_assert!(
            !self.locked.contains(slot) || planted(Planted::HeldLogCompacted),
            "no transaction has slot {slot}"
        );
        let mut inode = self.cache.take(slot).expect("just used");
        let result = self.compact_inode(&mut inode);
        self.cache.put(inode);
        result
    }

    /// The same for an inode that is not in the cache.
    pub(crate) fn compact_inode(&mut self, inode: &mut Inode) -> Result<u64, RegionError> {
        assert!(raised(inode.tail) > inode.tail, "there is a next version of the log");
        let (entries, done_units) = checkpoint(&self.store, inode);
        assert!(
            !entries.is_empty() && entries.len().is_multiple_of(LINE),
            "a log has a checkpoint"
        );
        if planted(Planted::OldPagesFreedEarly) {
            let old = std::mem::take(&mut inode.pages);
            self.store.give_pages(&old);
        }
        let end = LogEnd {
            ino: inode.attr.ino,
            tail: raised(inode.tail),
            pages: &[],
        };
        let mut change = StagedChange::nothing(self);
        change.lay_out_log(end, &entries)?;
        let writes = store_log(&change.region.store, inode, end, change.log());
        let layout = change.replace_log(&writes)?;
        Ok(self.switch_logs(inode, layout, done_units))
    }

    /// The DRAM side: the old log goes to quarantine. Gives the units looked at and written.
    fn switch_logs(&mut self, inode: &mut Inode, layout: Layout, done_units: u64) -> u64 {
        let looked_at = inode.tail.units() + layout.tail.units();
        assert!(done_units <= layout.tail.units(), "requests are part of the log");
        inode.done_units = done_units;
        let old_pages = std::mem::replace(&mut inode.pages, layout.new_pages);
        self.store.retire_pages(&old_pages);
        assert_eq!(
            inode.pages.len() as u64,
            UnitPlace::pages(layout.tail.units()),
            "a new log has the pages that it needs"
        );
        self.store.log_resized(old_pages.len(), inode.pages.len());
        let store = &self.store;
        let before = inode.tail;
        inode.change(layout.tail, |inode, index| {
            if let Some(index) = index.filter(|index| index.inline() > 0) {
                index.move_inline(inline_places(store, inode, &layout.bytes));
            }
        });
        assert!(
            inode.tail == layout.tail && inode.tail > before,
            "the log is the new one"
        );
        let after = inode.cursor();
        if let Body::Directory(directory) = &mut inode.body {
            directory.set_rewritten(Rewritten {
                before,
                pages: old_pages,
                after,
            });
        }
        looked_at
    }
}

/// Stores what of a log that was laid out anew goes to log pages, durably: nobody can see it. Gives what puts the log
/// in the place of the inode's old one.
fn store_log(store: &Store, inode: &Inode, end: LogEnd<'_>, layout: &Layout) -> Writes {
    assert!(layout.tail.units() > 0, "a log has a checkpoint");
    debug_assert!(
        layout.new_pages.iter().all(|page| !inode.pages.contains(page)),
        "the old log stays as it is"
    );
    let inode_offset = inode.slot * INODE_SIZE as u64;
    let attributes = encode_attributes(&inode.attr);
    let mut lines = attributes.to_vec();
    for (offset, range) in &layout.pieces {
        let bytes = &layout.bytes[range.clone()];
        if store.class(*offset) == SegmentClass::Inodes {
            let at = (offset - inode_offset - INODE_ATTRIBUTES) as usize;
            assert!(
                at + bytes.len() + INODE_ATTRIBUTES as usize <= INODE_SIZE,
                "units in the inode"
            );
            debug_assert!(at + INODE_ATTRIBUTES as usize >= INODE_UNITS as usize);
            lines.resize(lines.len().max(at + bytes.len()), 0);
            lines[at..at + bytes.len()].copy_from_slice(bytes);
        } else {
            store.write_run(*offset, bytes);
        }
    }
    for (offset, header) in layout.headers(end) {
        store.write(offset, &header);
    }
    if !planted(Planted::SwitchedBeforeDurable) {
        store.fence();
    }
    let head = InodeHead {
        log_page: RegionOffset(layout.new_pages.first().copied().unwrap_or(0)),
        tail: layout.tail,
        ..inode.head()
    };
    debug_assert!(head.tail > inode.tail && head.generation == inode.attr.generation);
    let mut writes = Writes::one(inode_offset + INODE_ATTRIBUTES, &lines);
    writes.push(inode_offset, &head.encode(inode.attr.ino, &attributes));
    writes
}

/// The entries of a compact log: everything that is live, and the requests that may be asked again; how many those are.
fn checkpoint(store: &Store, inode: &Inode) -> (Vec<u8>, u64) {
    let attr = &inode.attr;
    let mut entries = Vec::new();
    let init = Init {
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.ctime_ns,
        atime_ns: attr.atime_ns,
        rdev_or_cookie: match &inode.body {
            Body::Directory(directory) => directory.next_cookie(),
            _ => attr.rdev,
        },
        placement: if attr.kind == FileKind::Directory {
            inode.placement.into()
        } else {
            0
        },
    };
    Entry::Init(init).encode(false, &mut entries);
    let checkpoint = !planted(Planted::NotACheckpoint);
    let mut push = |entry: Entry| entry.encode(checkpoint, &mut entries);
    let dropped = planted(Planted::LiveEntriesDropped);
    for (name, value) in inode.xattrs.iter().filter(|_| !dropped) {
        Entry::set_xattr(name, value, 0).for_each(&mut push);
    }
    match &inode.body {
        Body::File(view) => {
            let mut bytes = Vec::new();
            for (offset, extent) in view.read().index.iter() {
                if extent.inline {
                    bytes.resize(extent.len as usize, 0);
                    store.read(extent.gpa.offset().0, &mut bytes);
                    push(Entry::Inline {
                        offset,
                        bytes: &bytes,
                        time_ns: 0,
                    });
                } else {
                    push(Entry::Write {
                        offset,
                        len: extent.len,
                        gpa: extent.gpa,
                        time_ns: 0,
                    });
                }
            }
        }
        Body::Directory(directory) => {
            for (name, dentry) in directory.after(0) {
                push(dentry_entry(name, dentry, 0));
            }
        }
        Body::Counted(_) => unreachable!("only recovery counts names, and compacts no log"),
        Body::Special => {}
    }
    let mut done = 0;
    for (origin, entry) in store.origins.of(inode.inode_ref()) {
        let at = entries.len();
        entry.encode(checkpoint, &mut entries);
        Entry::add_origin(&mut entries, at, origin).expect("just made");
        done += 1;
    }
    debug_assert!(
        read_back(0, &entries).filter(|record| record.origin.is_some()).count() as u64 == done,
        "each request is named once"
    );
    (entries, done)
}

/// Where the bytes of the inline entries of a new log lie, in order.
fn inline_places(store: &Store, inode: &Inode, units: &[u8]) -> Vec<Gpa> {
    let inline = |record: Record| match record.entry {
        Entry::Inline { .. } => Some(store.gpa(inode.unit_offset(record.position) + Record::INLINE_BYTES)),
        _ => None,
    };
    read_back(0, units).filter_map(inline).collect()
}
