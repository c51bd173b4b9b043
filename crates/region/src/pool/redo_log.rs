//! The pool's redo log: slots that hold one record each (Octopus, section 3.3.2: the coordinator alone logs).
//!
//! Life of a slot: free - logged - free; or, with a remote part, free - logged - applied, to dispatch - free. The state
//! stands in the slot's first word. Regions log at the same time, in different slots.

use super::segment_table::SegmentTable;
use super::{CollectedPart, RedoId, RemotePart, Undispatched};
use crate::RegionError;
use crate::planted::{Planted, planted};
use parking_lot::Mutex;
use polvo_format::{
    FormatError, Gpa, LINE, NodeId, PoolLayout, REDO_RECORD_MAX, RedoEncoder, RedoPart, RedoRecord, RedoState, TxnId,
};
use polvo_pmem::Pmem;
use polvo_proto::FsError;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Record numbers have 56 bits.
const NUMBER_MAX: u64 = (1 << 56) - 1;
/// What is said of records that a program for comparison has left.
const NOT_HERE: &str = "a transaction of two-phase commit, which nodes do only where they are built to be compared";

pub(super) struct RedoLog {
    state: Mutex<State>,
    /// Slots that only records without a remote part may take: those come free again before their region's lock is
    /// released, so that changes within a region go on while a participant cannot be reached.
    reserved: usize,
}

struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// From before the last `open`, and not retired.
    found: Vec<Undispatched>,
}

impl State {
    /// What is free is in the list, and nothing else; what is still to be dispatched is in its slot.
    fn check(&self) {
        assert!(
            self.free.len() <= self.slots.len(),
            "no more slots are free than there are"
        );
        debug_assert_eq!(
            self.slots.iter().filter(|slot| slot.stage == Stage::Free).count(),
            self.free.len(),
            "free slots are in the list"
        );
        debug_assert!(
            self.found.iter().all(|found| {
                let slot = &self.slots[found.record.slot() as usize];
                slot.number == found.record.number() && matches!(slot.stage, Stage::ToDispatch { .. })
            }),
            "what is to be dispatched is in the log"
        );
    }
}

struct Slot {
    /// Of the record that is (or was last) in the slot.
    number: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    Logged {
        txn: TxnId,
        remote: bool,
    },
    ToDispatch {
        txn: TxnId,
    },
    /// On the way to `Free`; or not to be touched because it is damaged.
    Closed,
}

impl RedoId {
    fn new(slot: u32, number: u64) -> RedoId {
        assert!(slot < 256, "redo log slot {slot}");
        assert!(number <= NUMBER_MAX, "record {number}");
        RedoId(number << 8 | u64::from(slot))
    }

    fn slot(self) -> u32 {
        (self.0 & 0xff) as u32
    }

    fn number(self) -> u64 {
        self.0 >> 8
    }
}

thread_local! {
    /// Where a record is put together before it is written in one piece.
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl RedoLog {
    /// Marks all slots free on the media. Not durable before the next fence.
    pub fn format(pmem: &Pmem, layout: &PoolLayout) {
        for slot in 0..layout.redo_slots {
            pmem.zero_streaming(layout.slot_offset(slot), LINE as u64);
        }
    }

    pub fn log<'a>(
        &self,
        pmem: &Pmem,
        layout: &PoolLayout,
        txn: TxnId,
        local: impl IntoIterator<Item = (Gpa, &'a [u8])> + Clone,
        remote: &[RemotePart],
    ) -> Result<RedoId, RegionError> {
        let size = LINE
            + local
                .clone()
                .into_iter()
                .map(|(_, bytes)| RedoEncoder::write_size(bytes.len()))
                .sum::<usize>()
            + remote
                .iter()
                .map(|part| match part {
                    RemotePart::Collected(part) => {
                        RedoEncoder::collected_size(part.writes.iter().map(|w| w.1.len()), part.locks.len())
                    }
                    #[cfg(feature = "two-phase")]
                    RemotePart::Prepared(_) => RedoEncoder::PREPARED_SIZE,
                })
                .sum::<usize>();
        if size > REDO_RECORD_MAX {
            let why = format!("a transaction of {size} bytes, of which a redo record holds {REDO_RECORD_MAX}");
            return Err(FsError::Invalid(why).into());
        }
        let id = self.claim(txn, !remote.is_empty())?;
        RECORD.with_borrow_mut(|buffer| {
            let mut encoder = RedoEncoder::new(buffer, id.number(), txn);
            for (gpa, bytes) in local {
                encoder.local(gpa, bytes);
            }
            for part in remote {
                match part {
                    RemotePart::Collected(part) => {
                        let writes = part.writes.iter().map(|(gpa, bytes)| (*gpa, bytes.as_slice()));
                        encoder.collected(part.region, writes, &part.locks);
                    }
                    #[cfg(feature = "two-phase")]
                    RemotePart::Prepared(region) => encoder.prepared(*region),
                }
            }
            let record = encoder.finish();
            assert_eq!(record.len(), size, "a record is as long as was reckoned");
            debug_assert!(
                RedoRecord::decode(record).is_ok_and(|read| read.txn == txn && read.remote.len() == remote.len()),
                "a record is read as it was written"
            );
            // One fence is enough: the checksum tells a whole record from one that a power cut has torn.
            pmem.write_streaming(layout.slot_offset(id.slot()), record);
            pmem.fence();
        });
        Ok(id)
    }

    fn claim(&self, txn: TxnId, remote: bool) -> Result<RedoId, RegionError> {
        let mut state = self.state.lock();
        let keep = if remote { self.reserved } else { 0 };
        if state.free.len() <= keep {
            return Err(FsError::Retry.into());
        }
        let at = state.free.pop().expect("there are more than `keep`");
        debug_assert!(!state.free.contains(&at), "redo log slot {at} is free once");
        let slot = &mut state.slots[at as usize];
        assert!(slot.stage == Stage::Free, "redo log slot {at} is free");
        slot.number = (slot.number + 1) & NUMBER_MAX;
        slot.stage = Stage::Logged { txn, remote };
        Ok(RedoId::new(at, slot.number))
    }

    pub fn applied(&self, pmem: &Pmem, layout: &PoolLayout, record: RedoId) -> Option<RedoId> {
        let to_dispatch = {
            let mut state = self.state.lock();
            let slot = &mut state.slots[record.slot() as usize];
            assert!(slot.number == record.number(), "{record:?} is not in the redo log");
            match slot.stage {
                Stage::Logged { txn, remote: true } => slot.stage = Stage::ToDispatch { txn },
                Stage::Logged { remote: false, .. } => slot.stage = Stage::Closed,
                _ => panic!("{record:?} is not about to be applied"),
            }
            slot.stage != Stage::Closed
        };
        if to_dispatch {
            let state = match planted(Planted::RetiredBeforeDispatch) {
                true => RedoState::Free,
                false => RedoState::AppliedToDispatch,
            };
            store_state(pmem, layout, record.slot(), state, record.number());
            Some(record)
        } else {
            self.free(pmem, layout, record);
            None
        }
    }

    /// As [`Self::applied`], for a record without a local part, whose state on the media may stay what it is.
    #[cfg(feature = "two-phase")]
    pub fn nothing_to_apply(&self, record: RedoId) {
        let slot = &mut self.state.lock().slots[record.slot() as usize];
        assert!(slot.number == record.number(), "{record:?} is not in the redo log");
        let Stage::Logged { txn, remote: true } = slot.stage else {
            panic!("{record:?} is not about to be dispatched");
        };
        slot.stage = Stage::ToDispatch { txn };
    }

    pub fn retire(&self, pmem: &Pmem, layout: &PoolLayout, record: RedoId) {
        {
            let mut state = self.state.lock();
            let Some(slot) = state.slots.get_mut(record.slot() as usize) else {
                return;
            };
            if slot.number != record.number() || !matches!(slot.stage, Stage::ToDispatch { .. }) {
                return;
            }
            slot.stage = Stage::Closed;
            state.found.retain(|found| found.record != record);
            state.check();
        }
        self.free(pmem, layout, record);
    }

    /// Frees a slot that nobody else touches (its stage is `Closed`): first on the media, then for the next record.
    fn free(&self, pmem: &Pmem, layout: &PoolLayout, record: RedoId) {
        store_state(pmem, layout, record.slot(), RedoState::Free, record.number());
        let mut state = self.state.lock();
        let slot = &mut state.slots[record.slot() as usize];
        assert!(slot.stage == Stage::Closed, "{record:?} is not about to be freed");
        assert_eq!(slot.number, record.number(), "{record:?} is in the redo log");
        slot.stage = Stage::Free;
        debug_assert!(!state.free.contains(&record.slot()), "a slot is freed once");
        state.free.push(record.slot());
        state.check();
    }

    /// Records found at the start whose remote parts remain, and that were not retired since.
    pub fn found(&self) -> Vec<Undispatched> {
        self.state.lock().found.clone()
    }

    /// Slots that are not to be touched because they are damaged.
    pub fn closed(&self) -> Vec<u32> {
        let state = self.state.lock();
        let closed = (0..).zip(&state.slots).filter(|(_, slot)| slot.stage == Stage::Closed);
        closed.map(|(at, _)| at).collect()
    }

    /// Marks a slot free on the media, whatever it holds; durable on return. For a log that is read anew afterwards.
    pub fn clear(pmem: &Pmem, layout: &PoolLayout, slot: u32) {
        store_state(pmem, layout, slot, RedoState::Free, 0);
    }

    pub fn is_logged(&self, txn: TxnId) -> bool {
        let state = self.state.lock();
        state.slots.iter().any(|slot| match slot.stage {
            Stage::Logged { txn: t, .. } | Stage::ToDispatch { txn: t } => t == txn,
            Stage::Free | Stage::Closed => false,
        })
    }

    /// Reads the log after a start: puts local parts in place (durably), keeps what is to be dispatched, clears what
    /// was torn. `damage(pool offset, what is wrong)` decides whether damage is an error; if not, the slot is left
    /// alone for good.
    ///
    /// At most one record a region has not been applied, so the order of the records does not matter.
    pub fn recover(
        pmem: &Pmem,
        layout: &PoolLayout,
        table: &SegmentTable,
        node: NodeId,
        mut damage: impl FnMut(u64, String) -> Result<(), RegionError>,
    ) -> Result<RedoLog, RegionError> {
        let mut state = State {
            slots: Vec::new(),
            free: Vec::new(),
            found: Vec::new(),
        };
        let mut replayed = BTreeSet::new();
        let mut bytes = vec![0; REDO_RECORD_MAX];
        for at in 0..layout.redo_slots {
            let offset = layout.slot_offset(at);
            pmem.read(offset, &mut bytes[..LINE]);
            let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let (stage, number) = match RedoState::decode(word) {
                Ok((RedoState::Free, number)) => (Stage::Free, number),
                Ok((logged, number)) => {
                    pmem.read(offset, &mut bytes);
                    match recover_slot(pmem, table, node, &bytes, logged, &mut replayed) {
                        Ok(Recovered::Torn) => {
                            tracing::info!(
                                slot = at,
                                "redo record was torn by a power cut before its commit; cleared"
                            );
                            store_state(pmem, layout, at, RedoState::Free, number);
                            (Stage::Free, number)
                        }
                        Ok(Recovered::Done) => {
                            store_state(pmem, layout, at, RedoState::Free, number);
                            (Stage::Free, number)
                        }
                        Ok(Recovered::ToDispatch(txn, remote)) => {
                            store_state(pmem, layout, at, RedoState::AppliedToDispatch, number);
                            state.found.push(Undispatched {
                                record: RedoId::new(at, number),
                                txn,
                                remote,
                            });
                            (Stage::ToDispatch { txn }, number)
                        }
                        Err(why) => {
                            damage(offset, format!("slot {at}: {why}"))?;
                            (Stage::Closed, number)
                        }
                    }
                }
                Err(why) => {
                    damage(offset, format!("slot {at}: {why}"))?;
                    (Stage::Closed, 0)
                }
            };
            state.slots.push(Slot { number, stage });
        }
        state.free = (0..layout.redo_slots)
            .rev()
            .filter(|&at| state.slots[at as usize].stage == Stage::Free)
            .collect();
        assert_eq!(state.slots.len(), layout.redo_slots as usize, "every slot was read");
        state.check();
        let reserved = (layout.redo_slots as usize / 8).max(2);
        assert!(
            reserved < state.slots.len(),
            "records with a remote part have slots, too"
        );
        Ok(RedoLog {
            state: Mutex::new(state),
            reserved,
        })
    }
}

enum Recovered {
    /// Never came to be.
    Torn,
    /// Is in place; nothing remains.
    Done,
    /// Is in place; this remains.
    ToDispatch(TxnId, Vec<RemotePart>),
}

fn recover_slot(
    pmem: &Pmem,
    table: &SegmentTable,
    node: NodeId,
    slot: &[u8],
    logged: RedoState,
    replayed: &mut BTreeSet<polvo_format::RegionId>,
) -> Result<Recovered, String> {
    let record = match RedoRecord::decode(slot) {
        Ok(record) => record,
        Err(FormatError::Checksum(_)) if logged == RedoState::Logged => return Ok(Recovered::Torn),
        Err(why) => return Err(why.to_string()),
    };
    if record.txn.node() != node && !record.remote.is_empty() {
        check_prepared(table, &record, cfg!(feature = "two-phase"))?;
    }
    let remote: Vec<RemotePart> = record.remote.into_iter().map(to_dispatch).collect::<Result<_, _>>()?;
    if logged == RedoState::Logged {
        // all or nothing: every address is checked before the first byte is written
        let mut writes = Vec::with_capacity(record.local.len());
        let mut regions = BTreeSet::new();
        for (gpa, bytes) in &record.local {
            let offset = table.locate(*gpa, bytes.len() as u64).ok_or_else(|| {
                format!(
                    "{:?} writes {} bytes to {gpa:?}, which is no segment of this pool",
                    record.txn,
                    bytes.len()
                )
            })?;
            writes.push((offset, *bytes));
            regions.insert(gpa.region());
        }
        if let Some(region) = regions.iter().find(|region| replayed.contains(region)) {
            return Err(format!("{:?} is the second unapplied record of {region}", record.txn));
        }
        replayed.extend(regions);
        debug_assert_eq!(writes.len(), record.local.len(), "every write has its place");
        for (offset, bytes) in writes {
            pmem.write(offset, bytes);
            pmem.flush(offset, bytes.len() as u64);
        }
        pmem.fence();
    }
    match remote.is_empty() {
        true => Ok(Recovered::Done),
        false => Ok(Recovered::ToDispatch(record.txn, remote)),
    }
}

fn to_dispatch(part: RedoPart<'_>) -> Result<RemotePart, String> {
    match part {
        RedoPart::Collected { region, writes, locks } => Ok(RemotePart::Collected(CollectedPart {
            region,
            writes: writes.into_iter().map(|(gpa, bytes)| (gpa, bytes.to_vec())).collect(),
            locks,
        })),
        #[cfg(feature = "two-phase")]
        RedoPart::Prepared { region } => Ok(RemotePart::Prepared(region)),
        #[cfg(not(feature = "two-phase"))]
        RedoPart::Prepared { .. } => Err(NOT_HERE.into()),
    }
}

/// Another node's transaction: the record holds what a region of this pool has prepared for it, and nothing else. `known`: this
/// program does two-phase commit.
pub(super) fn check_prepared(table: &SegmentTable, record: &RedoRecord<'_>, known: bool) -> Result<(), String> {
    let [RedoPart::Collected { region, locks, .. }] = record.remote.as_slice() else {
        return Err(format!(
            "{:?} is another node's, and not one part prepared for it",
            record.txn
        ));
    };
    let here = locks.iter().all(|at| table.locate(*at, 8).is_some());
    if !here || !record.local.is_empty() {
        return Err(format!(
            "{:?} is another node's, and not prepared by {region} here",
            record.txn
        ));
    }
    known.then_some(()).ok_or_else(|| NOT_HERE.into())
}

fn store_state(pmem: &Pmem, layout: &PoolLayout, slot: u32, state: RedoState, number: u64) {
    let offset = layout.slot_offset(slot);
    pmem.write_u64(offset, state.word(number));
    pmem.persist(offset, 8);
    debug_assert_eq!(
        RedoState::decode(pmem.read_u64(offset)),
        Ok((state, number)),
        "slot {slot}"
    );
}
