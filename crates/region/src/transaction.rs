//! Transactions: collect, decide, reap, abort (collect-dispatch, Octopus section 3.3.2).
//!
//! A participant collects: it stages, takes and links the log pages that the entries need, stores the transaction's id
//! in the lock words and hands out bytes; what would change in DRAM is kept aside. The coordinator decides: it stages
//! its own part, logs everything as one redo record and puts its own part in place. The participant learns the end from
//! the lock words: cleared with the tail as staged, it happened; cleared with the old tail, it did not.

use crate::layout::{Layout, read_back};
use crate::planted::{Planted, planted};
use crate::region::lock_gpa;
use crate::stage::Staged;
use crate::staged_change::StagedChange;
use crate::store::Store;
use crate::txn_locks::Fate;
use crate::{RedoId, Region, RegionError, RemotePart};
use polvo_format::{
    Gpa, INODE_ATTRIBUTES, INODE_CHECKSUMS, INODE_LOCK, INODE_LOG_PAGE, INODE_SIZE, InodeHead, LINE, TxnId,
    encode_attributes,
};
use polvo_proto::{Collected, FsError, Intent, Outcome, SegmentClass};

/// Most transactions that may hold inodes of a region at once.
const LOCKING_MAX: usize = 4096;

/// A coordinator's decision, durable: reply to the client after dispatch.
#[derive(Debug)]
#[must_use]
pub struct Decided {
    /// retire it when the remote part is dispatched; `None`: nothing remote, already retired
    pub record: Option<RedoId>,
    /// one an intent
    pub outcomes: Vec<Outcome>,
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
                region.reap();
            }
            if region.locked.pending.len() >= LOCKING_MAX {
                return Err(FsError::Retry.into());
            }
            let mut change = StagedChange::of(region, intents, now_ns)?;
            change.lay_out(intents)?;
            change.link_pages();
            let collected = change.collected();
            assert_eq!(collected.outcomes.len(), intents.len(), "an outcome for each intent");
            assert_eq!(
                collected.locks.len(),
                change.stage.inodes.len(),
                "a lock for each inode"
            );
            change.lock(txn);
            change.hand_over(txn);
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
            debug_assert!(
                remote
                    .iter()
                    .enumerate()
                    .all(|(n, part)| remote[..n].iter().all(|other| other.region() != part.region())),
                "a region has one part"
            );
            let mut change = StagedChange::of(region, intents, now_ns)?;
            let asked = change.stage.asked_by(change.region.store.origin);
            change.lay_out(intents)?;
            let record = match remote.is_empty() && change.commit_single() {
                true => None,
                false => change.commit_logged(txn, remote)?,
            };
            if asked.is_some() {
                change.region.store.carried_out(asked);
            }
            let outcomes = change.outcomes();
            assert_eq!(outcomes.len(), intents.len(), "an outcome for each intent");
            assert!(
                record.is_none() || !remote.is_empty(),
                "without a remote part the record is retired"
            );
            Ok(Decided { record, outcomes })
        })
    }

    /// The DRAM side of a decided change.
    pub(crate) fn take_over(&mut self, staged: &Staged, layout: &Layout) {
        let slot = staged.slot();
        if staged.fresh {
            self.inodes += 1;
            if staged.attr.nlink == 0 {
                self.dead.insert(slot);
            }
            return;
        }
        if staged.entries.is_empty() {
            return;
        }
        // an inode that is not here is loaded from its log when next needed
        if let Some(inode) = self.cache.known(slot) {
            let mut hidden = Vec::new();
            inode.parent = staged.parent;
            assert_eq!(inode.tail, staged.tail, "nobody has changed what was staged");
            let records = read_back(inode.tail.units(), &layout.bytes);
            self.store.take_over(inode, layout, records, &mut hidden, |_| ());
            debug_assert_eq!(
                (inode.tail, inode.attr),
                (layout.tail, staged.attr),
                "it is as it was staged"
            );
            self.store.unmap(&hidden);
        }
        if staged.attr.nlink == 0 {
            self.dead.insert(slot);
        } else {
            self.dead.remove(&slot);
        }
    }

    // ---- the end

    /// Do transactions hold inodes here, as far as is known without looking ([`Region::reap`])?
    pub fn is_held(&self) -> bool {
        !self.locked.is_empty()
    }

    /// Looks at the lock words of what was collected here: takes over what was dispatched, drops what was given up.
    /// (Also done whenever such an inode is touched.) Returns transactions that are still open.
    pub fn reap(&mut self) -> Vec<TxnId> {
        let mut slots: Vec<u64> = self.locked.by_slot.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            // still held, or damaged: found out again by whoever touches it
            let _ = self.reap_slot(slot);
        }
        self.locked.transactions()
    }

    /// The coordinator says it is aborted: lets go.
    pub fn abort(&mut self, txn: TxnId) {
        let slots = self.locked.slots(txn);
        for slot in &slots {
            let held = self.store.clear_word(Store::lock_offset(*slot), txn.0);
            debug_assert!(
                !held || self.store.lock_word(*slot) == 0,
                "{txn:?} has let go of slot {slot}"
            );
        }
        self.store.fence();
        for slot in slots {
            let _ = self.reap_slot(slot);
        }
    }

    /// Finds out how the transaction ended that has collected the inode of this slot, if any. `Locked` while it has not let go of
    /// all that it has here: replicas get that in one record, since a coordinator takes one lock that was let go for a sign that all
    /// its writes are there.
    pub(crate) fn reap_slot(&mut self, slot: u64) -> Result<(), RegionError> {
        let Some(&txn) = self.locked.by_slot.get(&slot) else {
            return Ok(());
        };
        let slots = match planted(Planted::ReapedOneByOne) {
            true => vec![slot],
            false => self.locked.slots(txn),
        };
        if slots.iter().any(|slot| self.store.lock_word(*slot) != 0) {
            if planted(Planted::CollectedTwice) {
                return Ok(());
            }
            let ino = self.store.ino(slot);
            return Err(RegionError::Locked { ino, txn });
        }
        let mut known = Ok(());
        for one in &slots {
            let resolved = self.resolve(*one);
            if *one == slot {
                known = resolved;
            }
        }
        self.store.end_record();
        slots.into_iter().for_each(|slot| self.free_if_dead(slot));
        known
    }

    /// The transaction has let go of the inode: takes over what it has written here, if it has. Replicas are told of it.
    fn resolve(&mut self, slot: u64) -> Result<(), RegionError> {
        let ino = self.store.ino(slot);
        if self.store.is_captured() {
            self.store.note_slot(slot);
        }
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
        // where its log units begin that are not noted yet
        let mut begin = 0;
        match self.locked.take(slot).expect("a held slot has a fate") {
            Fate::Changes { units, tail, parent } => {
                if head.tail != tail {
                    return Ok(());
                }
                begin = tail.units() - (units.len() / LINE) as u64;
                if let Some(inode) = self.cache.known(slot).filter(|inode| inode.tail != tail) {
                    let mut hidden = Vec::new();
                    inode.parent = parent;
                    debug_assert!(
                        inode.tail.version() == tail.version() || planted(Planted::HeldLogCompacted),
                        "the log of a locked inode stays"
                    );
                    debug_assert!(
                        inode.tail.units() + (units.len() / LINE) as u64 == tail.units()
                            || planted(Planted::HeldLogCompacted),
                        "the log of a locked inode does not grow"
                    );
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
                self.store.fence();
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
        debug_assert!(
            !self.locked.contains(slot) || planted(Planted::CollectedTwice),
            "slot {slot} is let go"
        );
        let inode = self.cache.get(&self.store, slot)?;
        if self.store.is_captured() && !planted(Planted::ReapedUnnoted) {
            self.store.note_units(inode, begin);
        }
        if inode.attr.nlink == 0 {
            self.dead.insert(slot);
        } else {
            self.dead.remove(&slot);
        }
        Ok(())
    }

    fn drop_reserved(&mut self, slot: u64, pages: &[u64]) {
        assert!(self.cache.known(slot).is_none(), "slot {slot} held no inode yet");
        assert!(!self.locked.contains(slot), "no transaction has slot {slot} any more");
        self.sessions.forget(slot);
        self.store.retire_pages(pages);
        let run = self.store.slot_run(slot);
        self.store.space.give(run);
    }
}

/// A participant's part: nothing visible changes, and everything is locked.
impl StagedChange<'_> {
    /// Links the log pages that a collected change needs, for good: an inode that has a page behind its tail is none the
    /// worse for it. Durable with the fence after the lock words, which lie in the line of what is stored in the inode
    /// here; a link to a page whose header did not make it is recognised as none.
    fn link_pages(&mut self) {
        let Region { store, cache, .. } = &mut *self.region;
        let inodes = self.stage.inodes.iter().zip(&self.layouts);
        let with_pages = || inodes.clone().filter(|(_, layout)| !layout.new_pages.is_empty());
        for (staged, layout) in with_pages() {
            let known = cache.known(staged.slot()).filter(|_| !staged.fresh);
            let pages = known.map_or(&[][..], |inode| &inode.pages);
            for (offset, header) in layout.headers(staged.log_end(pages)) {
                assert_eq!(store.class(offset), SegmentClass::Logs, "a log page");
                store.write(offset, &header);
            }
        }
        for (staged, layout) in with_pages() {
            let offset = staged.slot() * INODE_SIZE as u64;
            if staged.fresh {
                store.write_word_unflushed(offset + INODE_LOG_PAGE, layout.new_pages[0]);
                continue;
            }
            let inode = cache.known(staged.slot());
            let inode = inode.expect("what was just staged is not dropped from the cache");
            let link = layout.link(staged.log_end(&inode.pages));
            store.log_resized(inode.pages.len(), inode.pages.len() + layout.new_pages.len());
            inode.pages.extend_from_slice(&layout.new_pages);
            if let Some((link, next)) = link {
                store.write_word(link, next);
            }
            // the link in the inode counts among what the attributes' checksum covers
            let checksums = inode.head().checksums(inode.attr.ino, &encode_attributes(&inode.attr));
            store.write_word_unflushed(offset + INODE_CHECKSUMS, checksums);
        }
    }

    /// The bytes that the coordinator is to log and dispatch, the inodes' first lines last.
    fn collected(&mut self) -> Collected {
        let outcomes = self.outcomes();
        let Region { store, cache, .. } = &mut *self.region;
        let (mut writes, mut heads, mut locks) = (Vec::new(), Vec::new(), Vec::new());
        for (staged, layout) in self.stage.inodes.iter().zip(&self.layouts) {
            locks.push(lock_gpa(store.region, staged.slot()));
            if staged.entries.is_empty() {
                continue;
            }
            for (offset, range) in &layout.pieces {
                writes.push((store.gpa(*offset), layout.bytes[range.clone()].to_vec().into()));
            }
            let known = cache.known(staged.slot()).filter(|_| !staged.fresh);
            let before = known.and_then(|inode| inode.pages.first());
            let first_page = before.or(layout.new_pages.first()).copied().unwrap_or(0);
            let offset = staged.slot() * INODE_SIZE as u64;
            let attributes = encode_attributes(&staged.attr);
            let head = staged.head(first_page, layout.tail);
            let head = head.encode(staged.inode.ino, &attributes);
            writes.push((store.gpa(offset + INODE_ATTRIBUTES), attributes.to_vec().into()));
            heads.push((store.gpa(offset), head.to_vec().into()));
        }
        assert_eq!(locks.len(), self.stage.inodes.len(), "each inode is locked");
        assert!(heads.len() <= locks.len(), "a head for each inode that changes");
        writes.extend(heads);
        debug_assert!(
            writes.iter().all(|(at, _): &(Gpa, _)| at.region() == store.region),
            "a part lies in its region"
        );
        Collected {
            writes,
            locks,
            outcomes,
        }
    }

    /// Stores the transaction's id in the lock words, durably.
    fn lock(&self, txn: TxnId) {
        assert!(txn != TxnId::default(), "0 in a lock word says that nobody has it");
        let store = &self.region.store;
        for (staged, layout) in self.stage.inodes.iter().zip(&self.layouts) {
            if staged.fresh && layout.new_pages.is_empty() {
                // what a transaction that was given up has linked to the slot does not come with it; goes out with
                // the lock word, which lies in the same line
                store.write_word_unflushed(staged.slot() * INODE_SIZE as u64 + INODE_LOG_PAGE, 0);
            }
            store.write_word(Store::lock_offset(staged.slot()), txn.0);
        }
        debug_assert!(
            self.stage
                .inodes
                .iter()
                .all(|staged| store.lock_word(staged.slot()) == txn.0),
            "{txn:?} has every inode"
        );
        if !planted(Planted::LocksNotDurable) {
            store.fence();
        }
        store.end_record();
    }

    /// From here on the transaction has what was staged: its end says what becomes of it.
    fn hand_over(&mut self, txn: TxnId) {
        assert!(!self.happened, "{txn:?} has it already");
        self.happened = true;
        for (staged, layout) in self.stage.inodes.iter().zip(&mut self.layouts) {
            let fate = if staged.fresh {
                self.region.inodes += 1;
                Fate::New {
                    inode: staged.inode,
                    pages: std::mem::take(&mut layout.new_pages),
                }
            } else {
                Fate::Changes {
                    units: std::mem::take(&mut layout.bytes),
                    tail: layout.tail,
                    parent: staged.parent,
                }
            };
            self.region.locked.add(txn, staged.slot(), fate);
            debug_assert!(self.region.locked.contains(staged.slot()));
        }
        debug_assert!(
            self.layouts
                .iter()
                .zip(&self.stage.inodes)
                .all(|(layout, staged)| !staged.fresh || layout.new_pages.is_empty()),
            "the transaction has the pages"
        );
        self.region.locked.check();
        debug_assert!(self.region.locked.transactions().contains(&txn) || self.stage.inodes.is_empty());
    }
}
