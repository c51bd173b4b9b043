//! A walk over everything of a region on the media: every inode slot, every log, and which pages they claim. Recovery
//! makes the DRAM state from it; the check compares it with the DRAM state.

use crate::dram_inode::{Body, Inode};
use crate::extents::Mapped;
use crate::hash::NumberMap;
use crate::load::{Names, Reading, Whole};
use crate::planted::{Planted, planted};
use crate::region::is_worn;
use crate::space::{Space, each_page};
use crate::store::Store;
use crate::{Finding, RegionError};
use polvo_format::{Generation, INODE_LOCK, INODE_SIZE, Ino, InodeHead, InodeView, PAGE, TxnId};
use polvo_proto::SegmentClass;

/// Slots read at a time.
const CHUNK: usize = 256;
const PAGE_BYTES: u64 = PAGE as u64;

/// An inode slot that is not simply free, and what the media say about it.
pub(crate) enum Slot {
    /// in use; `stale`: its cached attributes are not what the log says
    InUse {
        inode: Box<Inode>,
        lock: u64,
        stale: bool,
    },
    /// free, but a transaction has reserved it and linked these log pages (or its first line is just being written)
    Reserved {
        lock: u64,
        pages: Vec<u64>,
    },
    /// never used again: its generations or log versions are used up
    Worn,
    Damaged(String),
}

/// A slot as read, nothing claimed yet.
enum Read {
    Free,
    Worn,
    Reserved { lock: u64, head: InodeHead },
    InUse { inode: Box<Inode>, lock: u64, stale: bool },
    Damaged(RegionError, InodeHead),
}

/// What the walk has claimed and read so far.
pub(crate) struct Survey {
    names: Names,
    pub space: Space,
    pub reading: Reading,
    pub findings: Vec<Finding>,
    /// Of all slots.
    pub highest: Generation,
}

impl Survey {
    pub fn new(store: &Store, names: Names) -> Survey {
        let mut space = Space::new(store.segment_shift());
        for (index, _, class) in store.segments() {
            space.add_segment(index, class);
        }
        Survey {
            names,
            space,
            reading: Reading::default(),
            findings: Vec::new(),
            highest: Generation(0),
        }
    }

    fn finding(&mut self, ino: Ino, what: String) {
        self.findings.push(Finding { ino: Some(ino), what });
    }

    /// Walks all slots, in order; `visit` gets each that is not free. `progress(done, total)` counts segments.
    pub fn walk(
        &mut self,
        store: &Store,
        progress: &mut dyn FnMut(u64, u64),
        visit: &mut dyn FnMut(u64, Slot),
    ) -> Result<(), RegionError> {
        let total = store.segments().count() as u64;
        let slots_in_segment = (1u64 << store.segment_shift()) / INODE_SIZE as u64;
        let mut bytes = vec![0; CHUNK * INODE_SIZE];
        for (done, (index, _, class)) in (0..).zip(store.segments()) {
            progress(done, total);
            if class != SegmentClass::Inodes {
                continue;
            }
            let first = u64::from(index) * slots_in_segment;
            for chunk in (first..first + slots_in_segment).step_by(CHUNK) {
                store.read(chunk * INODE_SIZE as u64, &mut bytes);
                self.reading.bytes += bytes.len() as u64;
                for (n, bytes) in bytes.as_chunks::<INODE_SIZE>().0.iter().enumerate() {
                    let slot = chunk + n as u64;
                    if slot == 0 {
                        self.space.mark(store.slot_run(0));
                    } else if *bytes == [0; INODE_SIZE] {
                        // never used: nothing to decode
                    } else if let Some(found) = self.slot(store, slot, bytes) {
                        self.space.mark(store.slot_run(slot));
                        if let Slot::Damaged(why) = &found {
                            self.finding(store.ino(slot), why.clone());
                        }
                        visit(slot, found);
                    }
                }
            }
        }
        progress(total, total);
        Ok(())
    }

    /// Reads one slot and claims what it uses; `None` when it is free.
    fn slot(&mut self, store: &Store, slot: u64, bytes: &[u8; INODE_SIZE]) -> Option<Slot> {
        let mut read = self.read(store, slot, bytes);
        if let Read::Damaged(..) = read {
            // perhaps a coordinator was just writing to it
            let again = store.read_slot(slot);
            if again != *bytes {
                read = self.read(store, slot, &again);
            }
        }
        let ino = store.ino(slot);
        match read {
            Read::Free => None,
            Read::Worn => Some(Slot::Worn),
            Read::Reserved { lock, head } => {
                let pages = store.follow_pages(ino, &head, 0).unwrap_or_default();
                self.claim_pages(store, ino, &pages);
                Some(Slot::Reserved { lock, pages })
            }
            Read::InUse { inode, lock, stale } => match self.claim(store, &inode) {
                Ok(()) => Some(Slot::InUse { inode, lock, stale }),
                Err(why) => {
                    let e = store.corrupt("mapping", slot * INODE_SIZE as u64, why);
                    Some(Slot::Damaged(e.to_string()))
                }
            },
            Read::Damaged(e, head) => {
                // what can still be found of it stays out of others' hands
                let whole = Whole::AsFarAsItGoes;
                if let Ok(part) = store.load_from(ino, &head, bytes, whole, self.names, &mut self.reading) {
                    let _ = self.claim(store, &part);
                }
                Some(Slot::Damaged(e.to_string()))
            }
        }
    }

    fn read(&mut self, store: &Store, slot: u64, bytes: &[u8; INODE_SIZE]) -> Read {
        let ino = store.ino(slot);
        let lock = bytes[INODE_LOCK as usize..][..8].try_into().expect("a word is 8 bytes");
        let lock = u64::from_le_bytes(lock);
        let head = match InodeHead::decode(bytes, ino) {
            Ok(head) => {
                self.highest = self.highest.max(head.generation);
                head
            }
            Err(e) => {
                let head = InodeHead::decode_unchecked(bytes);
                return match lock {
                    0 => Read::Damaged(store.corrupt("inode", slot * INODE_SIZE as u64, e), head),
                    // a transaction's writes have not all arrived; they will be written again
                    _ => Read::Reserved { lock, head },
                };
            }
        };
        if head.kind.is_none() {
            return match lock {
                0 if is_worn(head.generation, head.tail) => Read::Worn,
                0 => Read::Free,
                _ => Read::Reserved { lock, head },
            };
        }
        let whole = if lock == 0 { Whole::Must } else { Whole::AsFarAsItGoes };
        match store.load_from(ino, &head, bytes, whole, self.names, &mut self.reading) {
            Ok(inode) => {
                let view = InodeView::decode(bytes, ino).ok();
                let stale = view.is_none_or(|view| view.attr != inode.attr);
                let inode = Box::new(inode);
                Read::InUse { inode, lock, stale }
            }
            Err(e) => Read::Damaged(e, head),
        }
    }

    fn claim(&mut self, store: &Store, inode: &Inode) -> Result<(), String> {
        self.claim_pages(store, inode.attr.ino, &inode.pages);
        match &inode.body {
            Body::File(view) => self.claim_data(store, view.read().index.iter().map(|(_, e)| e)),
            _ => Ok(()),
        }
    }

    fn claim_pages(&mut self, store: &Store, ino: Ino, pages: &[u64]) {
        for &page in pages {
            if !self.space.mark(store.space.page_run(page, 1)) {
                self.finding(ino, format!("log page +{page:#x} belongs to another log too"));
            }
        }
    }

    /// Claims a file's data pages. A page belongs to one file; within it, each byte to one extent. Where that is not so, all
    /// else that the file maps is claimed all the same, so that nobody gets it.
    fn claim_data(&mut self, store: &Store, extents: impl Iterator<Item = Mapped>) -> Result<(), String> {
        let mut partial: NumberMap<u64> = NumberMap::default();
        let mut shared = None;
        for extent in extents.filter(|e| !e.inline) {
            let (at, len) = (extent.gpa.offset().0, extent.len);
            let (first, end) = (at.next_multiple_of(PAGE_BYTES), (at + len) / PAGE_BYTES * PAGE_BYTES);
            if first < end {
                let run = store.space.page_run(first, (end - first) / PAGE_BYTES);
                if !self.space.mark(run) {
                    for page in (first..end).step_by(PAGE) {
                        self.space.mark(store.space.page_run(page, 1));
                    }
                    shared.get_or_insert_with(|| {
                        format!("{len} bytes at {:?} are mapped by something else too", extent.gpa)
                    });
                }
            }
            each_page(at, len, |page, bytes| {
                if bytes < PAGE_BYTES {
                    *partial.entry(page).or_default() += bytes;
                }
            });
        }
        for (page, live) in partial {
            let at = page * PAGE_BYTES;
            let marked = self.space.mark(store.space.page_run(at, 1));
            if live > PAGE_BYTES || !marked {
                shared.get_or_insert_with(|| format!("page +{at:#x} is mapped by something else too"));
                continue;
            }
            debug_assert!(live > 0, "a page of which nothing is mapped");
            self.space.map_fresh(at, live);
            if planted(Planted::PartlyLivePagesForgotten) {
                self.space.give(store.space.page_run(at, 1));
            }
        }
        match shared {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}

/// The transaction that a lock word names.
pub(crate) fn holder(lock: u64) -> Option<TxnId> {
    (lock != 0).then_some(TxnId(lock))
}
