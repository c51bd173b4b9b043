//! Transactions: collect, decide, settle, abort (collect-dispatch, Octopus section 3.3.2).
//!
//! A participant collects: it stages, takes and links the log pages that the entries need, stores the transaction's id
//! in the lock words and hands out bytes; what would change in DRAM is kept aside. The coordinator decides: it stages
//! its own part, logs everything as one redo record and puts its own part in place. The participant learns the end from
//! the lock words: cleared with the tail as staged, it happened; cleared with the old tail, it did not.

use crate::hash::NumberMap;
use crate::inode::Inode;
use crate::log::{Layout, LogEnd, read_back};
use crate::planted::{Planted, planted};
use crate::region::{freed_head, lock_gpa, raised};
use crate::stage::{Stage, Staged};
use crate::store::Store;
use crate::{RedoId, Region, RegionError, RemotePart};
use polvo_format::{
    INODE_ATTRIBUTES, INODE_CHECKSUMS, INODE_LOCK, INODE_LOG_PAGE, INODE_SIZE, InodeHead, LINE, Tail, TxnId,
    encode_attributes,
};
use polvo_proto::{Collected, FsError, InodeRef, Intent, Outcome};
use std::collections::BTreeMap;

/// Most transactions that may hold inodes of a region at once.
const LOCKING_MAX: usize = 4096;

/// Inodes that transactions have locked here, and what becomes of them.
#[derive(Default)]
pub(crate) struct TxnLocks {
    by_slot: NumberMap<TxnId>,
    pending: BTreeMap<TxnId, Vec<TxnLock>>,
}

/// A coordinator's decision, durable: reply to the client after dispatch.
#[derive(Debug)]
#[must_use]
pub struct Decided {
    /// retire it when the remote part is dispatched; `None`: nothing remote, already retired
    pub record: Option<RedoId>,
    /// one an intent
    pub outcomes: Vec<Outcome>,
}

/// One inode in the hands of a transaction.
struct TxnLock {
    slot: u64,
    fate: Fate,
}

/// What is to be done in DRAM when the transaction's end is known.
enum Fate {
    /// an inode that was there before: sealed log units to apply
    Changes {
        units: Vec<u8>,
        tail: Tail,
        parent: InodeRef,
    },
    /// a new inode
    New { inode: InodeRef, pages: Vec<u64> },
    /// found locked at recovery: load it anew
    Recovered,
    /// found locked at recovery: a slot reserved for a new inode, and log pages linked to it
    RecoveredNew { pages: Vec<u64> },
}

/// Is an inode being made by a transaction?
pub(crate) enum Reserved {
    ByTransaction,
    No,
}

impl TxnLocks {
    pub fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }

    /// Is the inode of a slot in the hands of a transaction, as far as known?
    pub fn contains(&self, slot: u64) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// Is this very inode one that a transaction is making?
    pub fn reserved(&self, inode: InodeRef) -> Reserved {
        let parts = self
            .by_slot
            .get(&inode.ino.slot())
            .and_then(|txn| self.pending.get(txn));
        let new = |part: &TxnLock| matches!(&part.fate, Fate::New { inode: new, .. } if *new == inode);
        match parts {
            Some(parts) if parts.iter().any(new) => Reserved::ByTransaction,
            _ => Reserved::No,
        }
    }

    fn add(&mut self, txn: TxnId, slot: u64, fate: Fate) {
        self.by_slot.insert(slot, txn);
        self.pending.entry(txn).or_default().push(TxnLock { slot, fate });
    }

    /// Recovery found a lock word set. `reserved`: the slot is free; these log pages are linked to it.
    pub fn recovered(&mut self, txn: TxnId, slot: u64, reserved: Option<Vec<u64>>) {
        let fate = reserved.map_or(Fate::Recovered, |pages| Fate::RecoveredNew { pages });
        self.add(txn, slot, fate);
    }

    fn take(&mut self, slot: u64) -> Option<Fate> {
        let txn = self.by_slot.remove(&slot)?;
        let parts = self.pending.get_mut(&txn)?;
        let at = parts.iter().position(|p| p.slot == slot)?;
        let part = parts.swap_remove(at);
        if parts.is_empty() {
            self.pending.remove(&txn);
        }
        Some(part.fate)
    }

    /// Transactions that hold something.
    pub fn transactions(&self) -> Vec<TxnId> {
        self.pending.keys().copied().collect()
    }

    /// Slots that transactions have reserved for new inodes.
    pub fn reserved_slots(&self) -> Vec<u64> {
        let parts = self.pending.values().flatten();
        let new = parts.filter(|p| matches!(p.fate, Fate::New { .. } | Fate::RecoveredNew { .. }));
        new.map(|p| p.slot).collect()
    }

    fn slots(&self, txn: TxnId) -> Vec<u64> {
        self.pending
            .get(&txn)
            .map_or(Vec::new(), |parts| parts.iter().map(|p| p.slot).collect())
    }
}

impl Region {
    /// Participant: stages the intents, locks every inode they touch (durably, with the transaction's id) and returns
    /// the bytes for the coordinator to log and dispatch. Nothing visible changes. All or nothing.
    ///
    /// # Errors
    /// `Locked` when another transaction (or this one) has collected an inode already; `Retry` when too many transactions
    /// are open here.
    pub fn collect(&mut self, txn: TxnId, intents: &[Intent], now_ns: i64) -> Result<Collected, RegionError> {
        self.with_space(now_ns, |region| {
            if txn == TxnId::default() {
                return Err(FsError::Invalid("transaction 0".into()).into());
            }
            if region.locked.pending.len() >= LOCKING_MAX {
                region.settle();
            }
            if region.locked.pending.len() >= LOCKING_MAX {
                return Err(FsError::Retry.into());
            }
            let stage = region.stage(intents, now_ns)?;
            let layouts = region.lay_out_stage(&stage, intents)?;

            let mut collected = Collected {
                writes: Vec::new(),
                locks: Vec::new(),
                outcomes: outcomes(&stage, &layouts),
            };
            region.link_pages(&stage, &layouts);
            let mut heads = Vec::new();
            for (staged, layout) in stage.inodes.iter().zip(&layouts) {
                collected.locks.push(lock_gpa(region.store.region, staged.slot()));
                if staged.entries.is_empty() {
                    continue;
                }
                for (offset, range) in &layout.pieces {
                    let bytes = layout.bytes[range.clone()].to_vec();
                    collected.writes.push((region.store.gpa(*offset), bytes.into()));
                }
                let first_page = region.first_page(staged, layout);
                let offset = staged.slot() * INODE_SIZE as u64;
                let attributes = encode_attributes(&staged.attr);
                let head = staged
                    .head(first_page, layout.tail)
                    .encode(staged.inode.ino, &attributes);
                collected
                    .writes
                    .push((region.store.gpa(offset + INODE_ATTRIBUTES), attributes.to_vec().into()));
                heads.push((region.store.gpa(offset), head.to_vec().into()));
            }
            collected.writes.extend(heads);

            for (staged, layout) in stage.inodes.iter().zip(&layouts) {
                if staged.fresh && layout.new_pages.is_empty() {
                    // what a transaction that was given up has linked to the slot does not come with it; goes out with
                    // the lock word, which lies in the same line
                    let link = region.store.at(staged.slot() * INODE_SIZE as u64 + INODE_LOG_PAGE);
                    region.store.pmem.write_u64(link, 0);
                }
                region.store.write_word(Store::lock_offset(staged.slot()), txn.0);
            }
            if !planted(Planted::LocksNotDurable) {
                region.store.pmem.fence();
            }
            for (staged, layout) in stage.inodes.iter().zip(layouts) {
                let slot = staged.slot();
                let fate = if staged.fresh {
                    region.inodes += 1;
                    Fate::New {
                        inode: staged.inode,
                        pages: layout.new_pages,
                    }
                } else {
                    Fate::Changes {
                        units: layout.bytes,
                        tail: layout.tail,
                        parent: staged.parent,
                    }
                };
                region.locked.add(txn, slot, fate);
            }
            region.stage_again(stage);
            Ok(collected)
        })
    }

    /// Coordinator (or a purely local change with `remote` empty): stages the intents on this region, checks them, logs
    /// one redo record with the remote parts, applies the local part. All of it is durable on return; on error nothing
    /// changed.
    ///
    /// # Errors
    /// What the intents fail with; `Locked`; `Retry` when no slot of the redo log is free.
    pub fn decide(
        &mut self,
        txn: TxnId,
        intents: &[Intent],
        remote: &[RemotePart],
        now_ns: i64,
    ) -> Result<Decided, RegionError> {
        self.with_space(now_ns, |region| {
            let mut stage = region.stage(intents, now_ns)?;
            let asked = stage.asked_by(region.store.origin);
            let mut layouts = region.lay_out_stage(&stage, intents)?;
            if remote.is_empty() && region.decide_single(&stage, &layouts) {
                let outcomes = outcomes(&stage, &layouts);
                if asked.is_some() {
                    region.store.carried_out(asked);
                }
                region.stage_again(stage);
                region.store.layouts = layouts;
                return Ok(Decided { record: None, outcomes });
            }

            // inodes that go at once: taken out of the cache, so that what they map is at hand whatever happens
            let mut freed: Vec<Box<Inode>> = Vec::new();
            let mut writes = std::mem::take(&mut region.store.writes);
            writes.clear();
            let mut heads = std::mem::take(&mut region.store.heads);
            heads.clear();
            for (staged, layout) in stage.inodes.iter().zip(&mut layouts) {
                if staged.entries.is_empty() {
                    continue;
                }
                let slot = staged.slot();
                let offset = slot * INODE_SIZE as u64;
                if staged.dies && !staged.fresh && !region.sessions.is_held(slot) {
                    region.store.give_pages(&layout.new_pages);
                    layout.new_pages.clear();
                    layout.tail = raised(staged.tail);
                    let inode = match region.cache.take(slot) {
                        Some(inode) => inode,
                        None => match region.store.load(slot) {
                            Ok(inode) => Box::new(inode),
                            Err(e) => {
                                region.drop_stage(&stage, &layouts);
                                freed.into_iter().for_each(|inode| region.cache.put(inode));
                                return Err(e);
                            }
                        },
                    };
                    heads.push((offset, freed_head(&inode)));
                    freed.push(inode);
                    continue;
                }
                let pages = region.cache.known(slot).map_or(&[][..], |inode| &inode.pages);
                let end = LogEnd {
                    ino: staged.inode.ino,
                    tail: staged.tail,
                    pages,
                };
                for (at, range) in &layout.pieces {
                    writes.push(*at, &layout.bytes[range.clone()]);
                }
                for (at, header) in layout.headers(end) {
                    writes.push(at, &header);
                }
                if let Some((at, next)) = layout.link(end).filter(|_| !pages.is_empty()) {
                    writes.push(at, &next.to_le_bytes());
                }
                let first_page = pages.first().or(layout.new_pages.first()).copied().unwrap_or(0);
                let attributes = encode_attributes(&staged.attr);
                let head = staged
                    .head(first_page, layout.tail)
                    .encode(staged.inode.ino, &attributes);
                writes.push(offset + INODE_ATTRIBUTES, &attributes);
                heads.push((offset, head));
            }
            for (offset, head) in &heads {
                writes.push(*offset, head);
            }
            region.store.heads = heads;

            let logged = region.redo(txn, &writes, remote);
            region.store.writes = writes;
            let record = match logged {
                Ok(record) => record,
                Err(e) => {
                    region.drop_stage(&stage, &layouts);
                    freed.into_iter().for_each(|inode| region.cache.put(inode));
                    return Err(e);
                }
            };
            for inode in freed {
                region.forget(inode);
            }
            for (staged, layout) in stage.inodes.iter().zip(&layouts) {
                region.take_over(staged, layout);
            }
            let outcomes = outcomes(&stage, &layouts);
            region.store.carried_out(asked);
            region.stage_again(stage);
            region.store.layouts = layouts;
            Ok(Decided { record, outcomes })
        })
    }

    /// A change of one inode needs no redo record. True when this was one and is done.
    fn decide_single(&mut self, stage: &Stage, layouts: &[Layout]) -> bool {
        let ([staged], [layout, ..]) = (&stage.inodes[..], layouts) else {
            return stage.inodes.iter().all(|s| s.entries.is_empty());
        };
        if staged.entries.is_empty() {
            return true;
        }
        if staged.fresh || staged.moved || staged.dies {
            return false;
        }
        let Some(mut inode) = self.cache.take(staged.slot()) else {
            return false;
        };
        let records = read_back(inode.tail.units(), &layout.bytes);
        self.store.commit(&mut inode, layout, records);
        self.cache.put(inode);
        if staged.attr.nlink != 0 {
            self.dead.remove(&staged.slot());
        }
        true
    }

    /// The DRAM side of a decided change.
    fn take_over(&mut self, staged: &Staged, layout: &Layout) {
        let slot = staged.slot();
        if staged.fresh {
            self.inodes += 1;
            if staged.attr.nlink == 0 {
                self.dead.insert(slot);
            }
            return;
        }
        if staged.entries.is_empty() || staged.dies && !self.sessions.is_held(slot) {
            return;
        }
        // an inode that is not here is loaded from its log when next needed
        if let Some(inode) = self.cache.known(slot) {
            let mut hidden = Vec::new();
            inode.parent = staged.parent;
            let records = read_back(inode.tail.units(), &layout.bytes);
            self.store.take_over(inode, layout, records, &mut hidden, |_| ());
            self.store.unmap(&hidden);
        }
        if staged.attr.nlink == 0 {
            self.dead.insert(slot);
        } else {
            self.dead.remove(&slot);
        }
    }

    /// Lays out the entries of every staged inode; there may be more layouts than inodes. On error everything staged is
    /// given back.
    fn lay_out_stage(&mut self, stage: &Stage, intents: &[Intent]) -> Result<Vec<Layout>, RegionError> {
        let urgency = Self::urgency(intents);
        let mut layouts = std::mem::take(&mut self.store.layouts);
        layouts.iter_mut().for_each(Layout::clear);
        if layouts.len() < stage.inodes.len() {
            layouts.resize_with(stage.inodes.len(), Layout::default);
        }
        for (staged, layout) in stage.inodes.iter().zip(&mut layouts) {
            let laid_out = if staged.fresh {
                let end = LogEnd {
                    ino: staged.inode.ino,
                    tail: staged.tail,
                    pages: &[],
                };
                self.store.lay_out(end, &staged.entries, urgency, layout)
            } else {
                match self.cache.get(&self.store, staged.slot()) {
                    Ok(inode) => {
                        let end = LogEnd {
                            ino: staged.inode.ino,
                            tail: staged.tail,
                            pages: &inode.pages,
                        };
                        self.store.lay_out(end, &staged.entries, urgency, layout)
                    }
                    Err(e) => Err(e),
                }
            };
            if let Err(e) = laid_out {
                self.drop_stage(stage, &layouts);
                return Err(e);
            }
        }
        Ok(layouts)
    }

    fn drop_stage(&mut self, stage: &Stage, layouts: &[Layout]) {
        for layout in layouts {
            self.store.give_pages(&layout.new_pages);
        }
        self.unstage(stage);
    }

    fn first_page(&mut self, staged: &Staged, layout: &Layout) -> u64 {
        let before = self
            .cache
            .known(staged.slot())
            .filter(|_| !staged.fresh)
            .and_then(|i| i.pages.first().copied());
        before.or(layout.new_pages.first().copied()).unwrap_or(0)
    }

    /// Links the log pages that a collected change needs, for good: an inode that has a page behind its tail is none the
    /// worse for it. Durable with the fence after the lock words, which lie in the line of what is stored in the inode
    /// here; a link to a page whose header did not make it is recognised as none.
    fn link_pages(&mut self, stage: &Stage, layouts: &[Layout]) {
        let with_pages = || {
            stage
                .inodes
                .iter()
                .zip(layouts)
                .filter(|(_, layout)| !layout.new_pages.is_empty())
        };
        if with_pages().next().is_none() {
            return;
        }
        for (staged, layout) in with_pages() {
            let pages = self
                .cache
                .known(staged.slot())
                .filter(|_| !staged.fresh)
                .map_or(&[][..], |i| &i.pages);
            let end = LogEnd {
                ino: staged.inode.ino,
                tail: staged.tail,
                pages,
            };
            for (offset, header) in layout.headers(end) {
                self.store.write(offset, &header);
            }
        }
        for (staged, layout) in with_pages() {
            let at = self.store.slot_at(staged.slot());
            if staged.fresh {
                self.store.pmem.write_u64(at + INODE_LOG_PAGE, layout.new_pages[0]);
                continue;
            }
            let inode = self
                .cache
                .known(staged.slot())
                .expect("what was just staged is not dropped from the cache");
            let end = LogEnd {
                ino: staged.inode.ino,
                tail: staged.tail,
                pages: &inode.pages,
            };
            let link = layout.link(end);
            self.store
                .log_resized(inode.pages.len(), inode.pages.len() + layout.new_pages.len());
            inode.pages.extend_from_slice(&layout.new_pages);
            if let Some((link, next)) = link {
                self.store.write_word(link, next);
            }
            // the link in the inode counts among what the attributes' checksum covers
            let checksums = inode.head().checksums(inode.attr.ino, &encode_attributes(&inode.attr));
            self.store.pmem.write_u64(at + INODE_CHECKSUMS, checksums);
        }
    }

    // ---- the end

    /// Looks at the lock words of what was collected here: takes over what was dispatched, drops what was given up.
    /// (Also done whenever such an inode is touched.) Returns transactions that are still open.
    pub fn settle(&mut self) -> Vec<TxnId> {
        let mut slots: Vec<u64> = self.locked.by_slot.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            // still held, or damaged: found out again by whoever touches it
            let _ = self.settle_slot(slot);
        }
        self.locked.transactions()
    }

    /// The coordinator says it is aborted: lets go.
    pub fn abort(&mut self, txn: TxnId) {
        let slots = self.locked.slots(txn);
        for slot in &slots {
            let at = self.store.at(Store::lock_offset(*slot));
            self.store.pmem.cas_u64(at, txn.0, 0);
            self.store.pmem.flush(at, 8);
        }
        self.store.pmem.fence();
        for slot in slots {
            let _ = self.settle_slot(slot);
        }
    }

    /// Finds out how the transaction ended that has collected the inode of this slot, if any. `Locked` while it has not.
    pub(crate) fn settle_slot(&mut self, slot: u64) -> Result<(), RegionError> {
        let Some(&txn) = self.locked.by_slot.get(&slot) else {
            return Ok(());
        };
        if self.store.lock_word(slot) != 0 {
            if planted(Planted::CollectedTwice) {
                return Ok(());
            }
            let ino = self.store.ino(slot);
            return Err(RegionError::Locked { ino, txn });
        }
        let ino = self.store.ino(slot);
        let mut line = [0; LINE];
        self.store.read(slot * INODE_SIZE as u64, &mut line);
        let head = match InodeHead::decode(&line[..INODE_LOCK as usize], ino) {
            Ok(head) => head,
            Err(e) => {
                // the transaction has ended and this is no torn write of its: nobody waits for it any more
                let e = self.store.corrupt("inode", slot * INODE_SIZE as u64, e);
                self.locked.take(slot);
                self.store.damaged.insert(slot, e.to_string());
                return Err(e);
            }
        };
        match self.locked.take(slot).expect("a held slot has a fate") {
            Fate::Changes { units, tail, parent } => {
                if head.tail != tail {
                    return Ok(());
                }
                if let Some(inode) = self.cache.known(slot).filter(|inode| inode.tail != tail) {
                    let mut hidden = Vec::new();
                    inode.parent = parent;
                    let records = read_back(inode.tail.units(), &units);
                    self.store.apply(inode, records, tail, &mut hidden, |_| ());
                    self.store.unmap(&hidden);
                }
            }
            Fate::New { inode, pages } => {
                if head.kind.is_none() || head.generation != inode.generation {
                    self.inodes = self.inodes.checked_sub(1).expect("a reserved inode is counted");
                    self.drop_reserved(slot, &pages);
                    return Ok(());
                }
            }
            Fate::Recovered => {
                let inode = self.store.load(slot)?;
                self.store.refresh(ino, &inode.head(), &encode_attributes(&inode.attr));
                self.store.pmem.fence();
                self.cache.take(slot);
            }
            Fate::RecoveredNew { pages } => {
                if head.kind.is_none() {
                    self.drop_reserved(slot, &pages);
                    return Ok(());
                }
                self.inodes += 1;
            }
        }
        let nlink = self.cache.get(&self.store, slot)?.attr.nlink;
        if nlink == 0 {
            self.dead.insert(slot);
            self.free_if_dead(slot);
        } else {
            self.dead.remove(&slot);
        }
        Ok(())
    }

    fn drop_reserved(&mut self, slot: u64, pages: &[u64]) {
        self.sessions.forget(slot);
        self.store.retire_pages(pages);
        let run = self.store.slot_run(slot);
        self.store.space.give(run);
    }
}

/// The results, one an intent: each inode as it is after all of them.
fn outcomes(stage: &Stage, layouts: &[Layout]) -> Vec<Outcome> {
    let outcome = |&at: &usize| Outcome {
        attr: stage.inodes[at].attr,
        tail: layouts[at].tail,
    };
    stage.about.iter().map(outcome).collect()
}
