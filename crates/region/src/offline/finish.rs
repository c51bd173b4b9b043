//! What a crash has left, finished: decided transactions are dispatched to the other pools (Octopus 3.3.2), and inodes
//! that undecided ones had collected are let go. (Redo records were replayed when the pools were opened.)

use super::Cluster;
use crate::store::Store;
use crate::{CollectedPart, RegionError, RemotePart, Undispatched};
use polvo_format::{INODE_LOCK, Ino, RegionId, TxnId};
use std::collections::BTreeMap;

/// Most inodes of a transaction that are spelled out.
const NAMED_MAX: usize = 8;

/// What was done, and what could not be.
#[derive(Default)]
pub(super) struct Finished {
    pub notes: Vec<String>,
    pub findings: Vec<String>,
    /// regions whose pools are needed and were not named
    pub missing: Vec<RegionId>,
}

/// Whether a lock word may be cleared that names a transaction which nobody can have begun.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// it is a finding
    Report,
    /// it goes
    Clear,
}

impl Cluster {
    /// Does for each decided transaction what its coordinator would do at its start.
    pub fn dispatch_decided(&self, finished: &mut Finished) {
        for (at, (_, space)) in self.pools.iter().enumerate() {
            // what a region elsewhere has decided, of which there is a copy here, that region dispatches
            let ours = |decided: &Undispatched| self.of_region.get(&decided.region) == Some(&at);
            for decided in space.undispatched().into_iter().filter(ours) {
                let txn = decided.txn;
                let mut complete = true;
                for part in &decided.remote {
                    complete &= match self.space_of(part.region()) {
                        Some(_) => match self.put_in_place(txn, part) {
                            Ok(()) => true,
                            Err(why) => {
                                finished.findings.push(format!("transaction {txn:?}: {why}"));
                                false
                            }
                        },
                        None => {
                            finished.missing.push(part.region());
                            finished.notes.push(format!(
                                "transaction {txn:?} waits for region {}, whose pool was not named",
                                part.region().0
                            ));
                            false
                        }
                    };
                }
                if complete {
                    space.retire(decided.record);
                    let note = format!("transaction {txn:?} was decided and is now finished");
                    finished.notes.push(note);
                }
            }
        }
    }

    /// Puts a participant's part in place, wherever it is logged.
    fn put_in_place(&self, txn: TxnId, part: &RemotePart) -> Result<(), String> {
        match part {
            RemotePart::Collected(part) => self.dispatch(txn, part),
            #[cfg(feature = "two-phase")]
            RemotePart::Prepared(region) => self.commit_prepared(txn, *region),
        }
    }

    #[cfg(feature = "two-phase")]
    fn commit_prepared(&self, txn: TxnId, region: RegionId) -> Result<(), String> {
        let Some(participant) = self.space_of(region) else {
            return Ok(());
        };
        let mut prepared = participant.prepared().into_iter();
        let Some(prepared) = prepared.find(|prepared| prepared.txn == txn && prepared.part.region == region) else {
            return Ok(()); // the participant knew already
        };
        self.dispatch(txn, &prepared.part)?;
        participant.retire(prepared.record);
        Ok(())
    }

    /// Gives up what was prepared for transactions that their coordinators have not decided, as far as their pools are
    /// here. (The lock words go with those of all that is not decided.)
    #[cfg(feature = "two-phase")]
    fn give_up_prepared(&self, finished: &mut Finished) {
        for (_, space) in &self.pools {
            for prepared in space.prepared() {
                let txn = prepared.txn;
                if self.is_logged(txn) {
                    continue; // told when it could not be dispatched
                }
                match self.space_of(txn.region()) {
                    Some(_) => space.retire(prepared.record),
                    None => finished.notes.push(format!(
                        "transaction {txn:?} waits for the decision of region {}, whose pool was not named",
                        txn.region()
                    )),
                }
            }
        }
    }

    /// Puts a participant's part in place. Locks are let go after all writes: where one is free, the writes are there
    /// already, and others may have written since.
    fn dispatch(&self, txn: TxnId, part: &CollectedPart) -> Result<(), String> {
        let place = |gpa: polvo_format::Gpa, len: u64| {
            let place = self.locate(gpa, len).filter(|_| gpa.region() == part.region);
            place.ok_or_else(|| format!("its record names {gpa:?}, which is not in region {}", part.region.0))
        };
        let locks = part.locks.iter().map(|at| place(*at, 8));
        let locks = locks.collect::<Result<Vec<_>, String>>()?;
        let writes = part
            .writes
            .iter()
            .map(|(at, bytes)| Ok((place(*at, bytes.len() as u64)?, bytes)))
            .collect::<Result<Vec<_>, String>>()?;
        if locks.iter().any(|(_, at)| !at.is_multiple_of(8)) {
            return Err("its record names a lock that is no word".into());
        }
        let held: Vec<_> = locks.iter().filter(|(p, at)| p.read_u64(*at) == txn.0).collect();
        if held.len() == locks.len() {
            for ((pmem, at), bytes) in writes {
                pmem.write(at, bytes);
                pmem.flush(at, bytes.len() as u64);
            }
            if let Some(space) = self.space_of(part.region) {
                space.pmem().fence();
            }
        }
        for (pmem, at) in held {
            pmem.cas_u64(*at, txn.0, 0);
            pmem.persist(*at, 8);
        }
        Ok(())
    }

    /// Lets go of inodes that transactions have collected which were never decided. (Nothing of such a transaction is in
    /// place anywhere, so the lock words are all there is to undo.)
    pub fn let_go_undecided(&self, unknown: Unknown, finished: &mut Finished) -> Result<(), RegionError> {
        #[cfg(feature = "two-phase")]
        self.give_up_prepared(finished);
        let mut held: BTreeMap<TxnId, Vec<(RegionId, u64)>> = BTreeMap::new();
        for (&region, &at) in &self.of_region {
            let store = Store::new(&self.pools[at].1, region)?;
            for slot in locked_slots(&store) {
                let txn = TxnId(store.lock_word(slot));
                held.entry(txn).or_default().push((region, slot));
            }
        }
        for (txn, slots) in held {
            if self.is_logged(txn) {
                continue; // told when it could not be dispatched
            }
            let named: Vec<String> = slots
                .iter()
                .take(NAMED_MAX)
                .map(|(region, slot)| format!("inode {:?}", Ino::new(*region, *slot)))
                .collect();
            let more = if slots.len() > NAMED_MAX { " and others" } else { "" };
            let inodes = named.join(", ") + more;
            let clear = match self.was_begun(txn) {
                Some(true) => {
                    let note =
                        format!("{inodes}: lock word names transaction {txn:?}, which was not decided and is given up");
                    finished.notes.push(note);
                    true
                }
                begun => {
                    let region = txn.region();
                    let (why, known) = match begun {
                        None => (format!("of region {region}, whose pool was not named"), false),
                        Some(_) => (format!("which region {region} has never begun"), true),
                    };
                    let what = format!("{inodes}: lock word names transaction {txn:?}, {why}");
                    match known || unknown == Unknown::Clear {
                        true => finished.findings.push(what),
                        false => finished.notes.push(what),
                    }
                    unknown == Unknown::Clear
                }
            };
            if clear {
                for (region, slot) in slots {
                    self.clear_lock(region, slot)?;
                }
            }
        }
        Ok(())
    }

    fn clear_lock(&self, region: RegionId, slot: u64) -> Result<(), RegionError> {
        let at = &self.pools[self.of_region[&region]].1;
        let store = Store::new(at, region)?;
        store.write_word(Store::lock_offset(slot), 0);
        store.fence();
        Ok(())
    }
}

/// Slots of a region whose lock word is set.
fn locked_slots(store: &Store) -> Vec<u64> {
    let mut slots = Vec::new();
    store.each_slot(&mut |slot, inode| {
        if inode[INODE_LOCK as usize..][..8] != [0; 8] {
            slots.push(slot);
        }
    });
    slots
}
