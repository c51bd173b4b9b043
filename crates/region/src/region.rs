//! The region: what its parts share, how it is made, and how an inode is reached.
//!
//! What it has, and the files that say what it does with it:
//!
//! - [`store`](crate::store): its bytes and their [`space`](crate::space). [`log`](crate::log) and
//!   [`staged_append`](crate::staged_append) append to one inode, [`gc`](crate::gc), [`shrink`](crate::shrink) and
//!   [`cleaning`](crate::cleaning) make room;
//! - [`cache`](crate::cache): inodes as they are in DRAM. [`region_read`](crate::region_read),
//!   [`change`](crate::change) and [`snapshot`](crate::snapshot) are about one of them;
//! - [`stage`](crate::stage): inodes as intents would have them. [`staging`](crate::staging) works that out,
//!   [`staged_change`](crate::staged_change) makes it happen or gives back what was taken for it;
//! - [`txn_locks`](crate::txn_locks): inodes in the hands of transactions. [`transaction`](crate::transaction)
//!   collects, decides, reaps and aborts;
//! - [`session_table`](crate::session_table): inodes open, pages delegated.
//!   [`session_resources`](crate::session_resources) opens, releases, delegates and takes back;
//! - [`tokens`](crate::tokens): which sessions are to be asked before an inode changes.
//!
//! It is made by [`Region::create`] or [`Region::recover`]; then calls come in any order, one at a time.

use crate::cache::Cache;
use crate::cleaning::Cleaning;
use crate::dram_inode::Inode;
use crate::origins::Done;
use crate::planted::{Planted, planted};
use crate::session_table::Sessions;
use crate::stage::Stage;
use crate::store::{Store, Urgency};
use crate::tokens::Tokens;
use crate::txn_locks::TxnLocks;
use crate::writes::Writes;
use crate::{FormatParams, PoolIdentity, PoolSpace, RedoId, RegionError, RemotePart};
use polvo_format::{
    Change, Entry, FileKind, Generation, Gpa, INODE_ATTRIBUTES, INODE_HEAD_SIZE, INODE_SIZE, INODE_TAIL, Init, Ino,
    InodeHead, LINE, NodeId, Origin, PAGE, REGION_SEQUENCE, RegionHeader, RegionId, RegionOffset, SEGMENT_SHIFT_MIN,
    SequenceLimit, Tail, TxnId, encode_attributes,
};
use polvo_pmem::Pmem;
use polvo_proto::{FsError, InodeRef, SegmentClass, Usage};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Last log version. A log that has reached it is compacted no more, a slot not used again.
pub(crate) const VERSION_MAX: u32 = (1 << 24) - 1;

/// Numbers of transactions that are set aside at a time. What is left of a stride at a start is lost.
const TXN_STRIDE: u64 = 1 << 20;

/// Pieces of garbage collection done at once when space is short.
const COLLECTIONS_FOR_SPACE: u32 = 64;

/// Memory of a [placeholder](Region::placeholder); of it is used what is written.
const PLACEHOLDER_BYTES: u64 = 8 << 20;

/// A region served here. Guard it with one short lock.
pub struct Region {
    pub(crate) store: Store,
    pub(crate) cache: Cache,
    /// scratch of transactions
    pub(crate) stage: Stage,
    pub(crate) locked: TxnLocks,
    pub(crate) sessions: Sessions,
    pub(crate) tokens: Tokens,
    pub(crate) cleaning: Cleaning,
    /// inodes in use
    pub(crate) inodes: u64,
    /// inodes without a name that are kept for those who hold them open
    pub(crate) dead: BTreeSet<u64>,
}

impl Region {
    /// Makes an empty region in the pool; region 0 gets the root directory (mode 0755, owner 0:0).
    ///
    /// # Errors
    /// ENOSPC when the pool has not three free segments.
    pub fn create(space: &Arc<PoolSpace>, id: RegionId, now_ns: i64) -> Result<Region, RegionError> {
        let mut store = Store::new(space, id)?;
        if store.segments().next().is_some() {
            return Err(RegionError::Pool(format!("region {id} exists already")));
        }
        store.add_segment(SegmentClass::Inodes)?;
        Region::found(store, now_ns)
    }

    /// An empty region in memory of its own, kept nowhere: in the place of one that is served elsewhere since, so that who still has hold
    /// of it changes nothing that counts.
    pub fn placeholder(id: RegionId) -> Region {
        let pmem = Pmem::simulated(PLACEHOLDER_BYTES);
        let params = FormatParams {
            identity: PoolIdentity {
                cluster: [0; 16],
                pool: [0; 16],
                node: NodeId(0),
            },
            segment_shift: Some(SEGMENT_SHIFT_MIN),
            checksums: false,
        };
        let made = PoolSpace::format(&pmem, &params)
            .and_then(|()| PoolSpace::open(pmem))
            .and_then(|space| Region::create(&space, id, 0));
        made.expect("an empty region fits into fresh memory")
    }

    /// Writes what every region begins with, the header last.
    pub(crate) fn found(mut store: Store, now_ns: i64) -> Result<Region, RegionError> {
        if !store.segments().any(|s| s.2 == SegmentClass::Logs) {
            store.add_segment(SegmentClass::Logs)?;
        }
        let header_slot = store.slot_run(0);
        let marked = store.space.mark(header_slot);
        assert!(marked, "nobody has got slot 0");
        let mut region = Region::empty(store);
        if region.id() == RegionId(0) {
            region.make_root(now_ns)?;
        }
        let store = &region.store;
        let header = RegionHeader {
            region: store.region,
            segment_shift: store.segment_shift(),
        };
        let header = header.encode();
        store.write(8, &header[8..]);
        store.fence();
        // one word says that all of it is there
        store.write_word(
            0,
            u64::from_le_bytes(header[..8].try_into().expect("a word is 8 bytes")),
        );
        store.commit_point();
        debug_assert!(
            region.store.space.used(SegmentClass::Inodes) == 1 + region.inodes,
            "nothing else is there"
        );
        Ok(region)
    }

    pub(crate) fn empty(store: Store) -> Region {
        Region {
            store,
            cache: Cache::default(),
            stage: Stage::default(),
            locked: TxnLocks::default(),
            sessions: Sessions::default(),
            tokens: Tokens::default(),
            cleaning: Cleaning::default(),
            inodes: 0,
            dead: BTreeSet::new(),
        }
    }

    fn make_root(&mut self, now_ns: i64) -> Result<(), RegionError> {
        let store = &mut self.store;
        let root = store.slot_run(Ino::ROOT.slot());
        let marked = store.space.mark(root);
        assert!(marked && self.inodes == 0, "the root is the first inode");
        let head = InodeHead {
            generation: Generation(1),
            parent: Ino::ROOT,
            parent_generation: Generation(1),
            btime_ns: now_ns,
            ..InodeHead::UNUSED
        };
        let mut inode = Inode::new(Ino::ROOT, FileKind::Directory, &head);
        let init = Init {
            mode: 0o755,
            nlink: 2,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            atime_ns: now_ns,
            rdev_or_cookie: 1,
            ..Init::default()
        };
        // nobody can see it yet: the region's header comes last
        let head = inode.head().encode(Ino::ROOT, &encode_attributes(&inode.attr));
        store.write(Ino::ROOT.slot() * INODE_SIZE as u64, &head);
        store.append(&mut inode, &[Entry::Init(init)], Urgency::Normal, |_| ())?;
        assert_eq!(inode.attr.nlink, 2, "the root is its own parent");
        self.inodes += 1;
        self.cache.put(Box::new(inode));
        Ok(())
    }

    /// From here on a request asks for what is committed: the next commit carries it, and that one alone. Returns the
    /// one before.
    pub fn asked_by(&mut self, origin: Option<Origin>) -> Option<Origin> {
        debug_assert!(
            origin.is_none() || self.store.origin.is_none(),
            "the request before has ended"
        );
        std::mem::replace(&mut self.store.origin, origin)
    }

    /// What a request has done here, if it is one of the last of its session and was carried out: in this incarnation or
    /// before, as long as the log of what it was about is there.
    pub fn done_before(&self, origin: Origin) -> Option<Done> {
        self.store.origins.find(origin)
    }

    /// The id of a new transaction that this region coordinates: never used before, nor by a later primary of the region.
    pub fn next_txn(&mut self) -> TxnId {
        let store = &mut self.store;
        while !TxnId::is_number(store.next_txn) {
            store.next_txn += 1;
        }
        if store.next_txn >= store.txn_limit.0 {
            let limit = SequenceLimit(store.txn_limit.0.max(1) + TXN_STRIDE);
            store.write_word(REGION_SEQUENCE, limit.encode());
            store.commit_point();
            store.txn_limit = limit;
            debug_assert_eq!(store.read_sequence(), Ok(limit), "the limit is read as it was written");
        }
        let txn = TxnId::new(store.region, store.next_txn);
        store.next_txn += 1;
        txn
    }

    /// Which.
    pub fn id(&self) -> RegionId {
        self.store.region
    }

    /// Segments by index: (index, pool offset, class). New ones have higher indexes.
    pub fn segments(&self) -> impl Iterator<Item = (u32, u64, SegmentClass)> + '_ {
        self.store.segments()
    }

    /// Inodes in use, bytes free in its own segments.
    pub fn usage(&self) -> Usage {
        let (space, data) = (&self.store.space, SegmentClass::Data);
        debug_assert!(
            self.inodes < space.used(SegmentClass::Inodes),
            "an inode has a slot, as the header has"
        );
        Usage {
            total_bytes: (self.segments().count() as u64) << self.store.segment_shift(),
            free_bytes: (space.free(data) + space.quarantined(data)) * PAGE as u64,
            free_segment_bytes: 0,
            inodes: self.inodes,
            free_inodes: space.free(SegmentClass::Inodes),
            data_bytes: space.used(data) * PAGE as u64,
        }
    }

    /// Whether there is room at the mirrors' nodes for more data: else a change that takes a segment finds no space, rather than the
    /// region its copies lost.
    pub fn set_may_grow(&mut self, may_grow: bool) {
        self.store.may_grow = may_grow;
    }

    /// Does a change, and does it again after some garbage collection when there was no space for it. (What finds no
    /// space changes nothing.)
    pub(crate) fn with_space<T>(
        &mut self,
        now_ns: i64,
        mut change: impl FnMut(&mut Region) -> Result<T, RegionError>,
    ) -> Result<T, RegionError> {
        match change(self) {
            Err(RegionError::Fs(FsError::NoSpace)) if !self.store.garbage.is_empty() => {
                for _ in 0..COLLECTIONS_FOR_SPACE {
                    if !self.collect_garbage(now_ns) {
                        break;
                    }
                }
                change(self)
            }
            result => result,
        }
    }

    /// The inode behind a reference, and the store. ESTALE when the slot has another file or none.
    pub(crate) fn inode(&mut self, inode: InodeRef) -> Result<(&mut Store, &mut Inode), RegionError> {
        let slot = self.reach(inode.ino)?;
        let found = self.cache.get(&self.store, slot)?;
        debug_assert!(
            found.slot == slot && found.attr.ino == inode.ino,
            "an inode lies in its slot"
        );
        if found.attr.generation != inode.generation {
            return Err(FsError::Stale.into());
        }
        Ok((&mut self.store, found))
    }

    /// The same, to change it. `Watched` while another session has a token of it.
    #[inline]
    pub(crate) fn inode_to_change(&mut self, inode: InodeRef) -> Result<(&mut Store, &mut Inode), RegionError> {
        if self.tokens.is_armed() {
            self.reach(inode.ino)?; // locked comes first: whoever has it locked has asked
            self.tokens.check(self.store.ino(inode.ino.slot()))?;
        }
        self.inode(inode)
    }

    /// The slot of an inode that may be looked at: not damaged, and not (or no more) held by a transaction.
    pub(crate) fn reach(&mut self, ino: Ino) -> Result<u64, RegionError> {
        let slot = self.store.slot_of(ino).ok_or(FsError::Stale)?;
        if !self.locked.is_empty() {
            self.reap_slot(slot)?;
        }
        if !self.store.damaged.is_empty()
            && let Some(why) = self.store.damaged.get(&slot)
        {
            return Err(FsError::Io(why.clone()).into());
        }
        Ok(slot)
    }

    /// Logs a redo record and puts the local part in place, durably. Gives the record when a remote part remains.
    pub(crate) fn redo(
        &self,
        txn: TxnId,
        writes: &Writes,
        remote: &[RemotePart],
    ) -> Result<Option<RedoId>, RegionError> {
        let store = &self.store;
        debug_assert!(
            writes.iter().next().is_some() || !remote.is_empty(),
            "a record says something"
        );
        debug_assert!(
            writes
                .iter()
                .all(|(at, bytes)| at.is_multiple_of(8) && !bytes.is_empty()),
            "words are written whole"
        );
        debug_assert!(
            remote.iter().all(|part| part.region() != store.region),
            "what is written here is no remote part"
        );
        let local = writes.iter().map(|(offset, bytes)| (store.gpa(offset), bytes));
        if planted(Planted::NamesChangedInPlace) || planted(Planted::LogsOneAfterTheOther) {
            planted_in_place(store, writes);
        }
        if !remote.is_empty() && planted(Planted::DecidedWithoutRemotePart) {
            self.redo(txn, writes, &[])?;
            let record = store.pool.log(store.region, txn, [], remote)?;
            return Ok(store.pool.applied(record));
        }
        let record = store.pool.log(store.region, txn, local, remote)?;
        if store.is_captured() && !remote.is_empty() && !planted(Planted::DecisionsUnnoted) {
            store.note_decision(txn, remote);
        }
        if remote.is_empty() && planted(Planted::RetiredBeforeApplied) {
            store.pool.applied(record);
        }
        for (offset, bytes) in writes.iter() {
            let in_slot = (store.class(offset) == SegmentClass::Inodes).then_some(offset % INODE_SIZE as u64);
            if in_slot == Some(0) && bytes.len() == INODE_HEAD_SIZE {
                // who reads just the tail must find everything else in place; one write-back for the line
                let (before, tail) = bytes.split_at(INODE_TAIL as usize);
                store.write_unflushed(offset, before);
                let tail = u64::from_le_bytes(tail.try_into().expect("the tail ends the head"));
                store.write_word(offset + INODE_TAIL, tail);
            } else if in_slot == Some(INODE_ATTRIBUTES) && bytes.len() == LINE {
                // a cache, which recovery does not believe
                store.write_unflushed(offset, bytes);
            } else {
                store.write(offset, bytes);
            }
        }
        store.commit_point();
        if remote.is_empty() && planted(Planted::RetiredBeforeApplied) {
            return Ok(None);
        }
        Ok(store.pool.applied(record))
    }

    /// Every participant has its part of what was decided here, and so have their mirrors.
    pub fn retire(&mut self, txn: TxnId, record: RedoId) {
        self.store.pool.retire(record);
        if self.store.is_captured() {
            self.store.note(Change::Retired { txn });
            self.store.end_record();
        }
    }

    /// Frees an inode that has no name and that nobody holds.
    pub(crate) fn free_inode(&mut self, slot: u64) -> Result<(), RegionError> {
        assert!(
            !self.locked.contains(slot) && !self.sessions.is_held(slot),
            "nobody has slot {slot}"
        );
        let inode = self.cache.get(&self.store, slot)?;
        assert_eq!(inode.attr.nlink, 0, "what is freed has no name");
        let freed = Writes::one(slot * INODE_SIZE as u64, &freed_head(inode));
        self.redo(TxnId::default(), &freed, &[])?;
        self.forget(slot);
        Ok(())
    }

    /// The DRAM side of freeing an inode, which was just looked at: its space goes to quarantine, its slot can be used
    /// again.
    pub(crate) fn forget(&mut self, slot: u64) {
        let inode = self.cache.take(slot).expect("what was just looked at is in the cache");
        debug_assert!(!self.sessions.is_held(slot), "nobody holds slot {slot}");
        assert!(!self.locked.contains(slot), "no transaction has slot {slot}");
        self.tokens.forget(slot);
        self.dead.remove(&slot);
        self.store.garbage.remove(&slot);
        self.inodes = self.inodes.checked_sub(1).expect("an inode in use is counted");
        if let crate::dram_inode::Body::File(view) = &inode.body {
            for (_, extent) in view.read().index.iter().filter(|(_, e)| !e.inline) {
                self.store.space.unmap(extent.gpa.offset().0, extent.len);
            }
        }
        self.store.retire_pages(&inode.pages);
        self.store.log_resized(inode.pages.len(), 0);
        if !is_worn(inode.attr.generation, raised(inode.tail)) {
            let run = self.store.slot_run(slot);
            self.store.space.give(run);
        }
    }
}

/// Two of Chipmunk's: a change of several inodes without a redo record; each log by itself.
#[cold]
fn planted_in_place(store: &Store, writes: &Writes) {
    for (offset, bytes) in writes.iter().rev() {
        store.write(offset, bytes);
        if planted(Planted::LogsOneAfterTheOther) && bytes.len() == INODE_HEAD_SIZE {
            store.fence();
        }
    }
    store.fence();
}

/// The tail of a log's next version, empty.
pub(crate) fn raised(tail: Tail) -> Tail {
    let raised = Tail::new((tail.version() + 1).min(VERSION_MAX), 0);
    debug_assert!(raised > tail || tail.version() == VERSION_MAX, "versions grow");
    raised
}

/// A free slot that has used up its generations or log versions and is never used again.
pub(crate) fn is_worn(generation: Generation, tail: Tail) -> bool {
    generation.0 == u32::MAX || tail.version() == VERSION_MAX
}

/// Line 0 of the slot once the inode is gone: generation and version stay.
pub(crate) fn freed_head(inode: &Inode) -> [u8; INODE_HEAD_SIZE] {
    let head = InodeHead {
        generation: inode.attr.generation,
        tail: raised(inode.tail),
        ..InodeHead::UNUSED
    };
    head.encode(inode.attr.ino, &[0; INODE_ATTRIBUTES as usize])
}

/// The address of a slot's lock word.
pub(crate) fn lock_gpa(region: RegionId, slot: u64) -> Gpa {
    Gpa::new(region, RegionOffset(Store::lock_offset(slot)))
}
