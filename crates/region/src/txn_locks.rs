//! Inodes of a region in the hands of transactions, and what is to be done when their ends are known.

use crate::hash::NumberMap;
use crate::planted::{Planted, planted};
use polvo_format::{Tail, TxnId};
use polvo_proto::InodeRef;
use std::collections::BTreeMap;

/// Inodes that transactions have locked here, and what becomes of them.
#[derive(Default)]
pub(crate) struct TxnLocks {
    /// who has a slot's inode
    pub by_slot: NumberMap<TxnId>,
    /// what each has
    pub pending: BTreeMap<TxnId, Vec<TxnLock>>,
}

/// One inode in the hands of a transaction.
pub(crate) struct TxnLock {
    slot: u64,
    fate: Fate,
}

/// What is to be done in DRAM when the transaction's end is known.
pub(crate) enum Fate {
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

    pub fn add(&mut self, txn: TxnId, slot: u64, fate: Fate) {
        assert!(txn != TxnId::default(), "a transaction has a number");
        let before = self.by_slot.insert(slot, txn);
        assert!(
            before.is_none() || planted(Planted::CollectedTwice),
            "slot {slot} is locked by {before:?}"
        );
        debug_assert!(
            self.pending
                .get(&txn)
                .is_none_or(|parts| parts.iter().all(|part| part.slot != slot))
                || planted(Planted::CollectedTwice),
            "slot {slot} is locked once"
        );
        self.pending.entry(txn).or_default().push(TxnLock { slot, fate });
    }

    /// Recovery found a lock word set. `reserved`: the slot is free; these log pages are linked to it.
    pub fn recovered(&mut self, txn: TxnId, slot: u64, reserved: Option<Vec<u64>>) {
        let fate = reserved.map_or(Fate::Recovered, |pages| Fate::RecoveredNew { pages });
        self.add(txn, slot, fate);
    }

    /// Was the slot found reserved for a new inode, which counts when its transaction has happened?
    pub fn is_uncounted(&self, slot: u64) -> bool {
        let parts = self.by_slot.get(&slot).and_then(|txn| self.pending.get(txn));
        let is_new = |part: &TxnLock| part.slot == slot && matches!(part.fate, Fate::RecoveredNew { .. });
        parts.is_some_and(|parts| parts.iter().any(is_new))
    }

    pub fn take(&mut self, slot: u64) -> Option<Fate> {
        let txn = self.by_slot.remove(&slot)?;
        let parts = self.pending.get_mut(&txn)?;
        let at = parts.iter().position(|p| p.slot == slot)?;
        let part = parts.swap_remove(at);
        if parts.is_empty() {
            self.pending.remove(&txn);
        }
        debug_assert!(!self.contains(slot), "slot {slot} is let go");
        self.check();
        Some(part.fate)
    }

    /// What is locked is pending, and what is pending is locked.
    pub fn check(&self) {
        debug_assert!(
            self.pending.values().map(Vec::len).sum::<usize>() == self.by_slot.len()
                || planted(Planted::CollectedTwice),
            "each locked inode is of one transaction"
        );
        debug_assert!(
            self.pending.values().all(|parts| !parts.is_empty()),
            "transactions hold something"
        );
        debug_assert!(
            self.by_slot.values().all(|txn| self.pending.contains_key(txn)) || planted(Planted::CollectedTwice),
            "who has locked an inode is pending"
        );
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

    pub fn slots(&self, txn: TxnId) -> Vec<u64> {
        self.pending
            .get(&txn)
            .map_or(Vec::new(), |parts| parts.iter().map(|p| p.slot).collect())
    }
}
