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
    FormatError, Gpa, LINE, PoolLayout, REDO_RECORD_MAX, REDO_SLOTS_OWN, RedoEncoder, RedoPart, RedoRecord, RedoState,
    RegionId, TxnId,
};
use polvo_pmem::Pmem;
use polvo_proto::FsError;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Record numbers have 56 bits.
const NUMBER_MAX: u64 = (1 << 56) - 1;
/// What is said of records that a program for comparison has left.
const NOT_HERE: &str = "a transaction of two-phase commit, which nodes do only where they are built to be compared";

pub(super) struct RedoLog {
    state: Mutex<State>,
    /// Slots that only records without a remote part may take: those come free again before their region's lock is
    /// released, so that changes within a region go on while a participant cannot be reached.
    reserved: usize,
    /// Slots that records with a remote part may take which are of regions that are served here: the others are left to what copies have
    /// from their primaries ([`Self::adopt`]), of which this node decides nothing, and without which the copies cannot follow.
    own_max: usize,
}

/// Whose decision a record is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    /// Of a region that is served here.
    Here,
    /// A copy has it from its primary; or it was found at the start.
    Elsewhere,
}

struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with what was decided here.
    own: usize,
    /// Of the last record, among all of them.
    order: u64,
    /// From before the last `open`, and not retired.
    found: Vec<Undispatched>,
}

impl State {
    /// What the slots hold at a start; and their records by their numbers, the order in which they are to be put in place.
    fn read(
        pmem: &Pmem,
        layout: &PoolLayout,
        damage: &mut impl FnMut(u64, String) -> Result<(), RegionError>,
    ) -> Result<(State, BTreeMap<u64, InSlot>), RegionError> {
        let closed = || Slot {
            number: 0,
            stage: Stage::Closed,
            decided: None,
        };
        let mut state = State {
            slots: (0..layout.redo_slots).map(|_| closed()).collect(),
            free: Vec::new(),
            own: 0,
            order: 0,
            found: Vec::new(),
        };
        let mut records: BTreeMap<u64, InSlot> = BTreeMap::new();
        for at in 0..layout.redo_slots {
            let found = match read_slot(pmem, layout, at) {
                Ok(found) => found,
                Err(why) => {
                    damage(layout.slot_offset(at), format!("slot {at}: {why}"))?;
                    continue;
                }
            };
            let Some((order, _)) = found.record else {
                state.slots[at as usize].end(Stage::Free, found.number);
                continue;
            };
            if let Some(other) = records.insert(order, found) {
                let why = format!("slots {} and {at}: two records with one number", other.at);
                damage(layout.slot_offset(at), why)?;
            }
        }
        state.order = records.last_key_value().map_or(0, |(order, _)| *order);
        Ok((state, records))
    }

    /// A record was found: its local part is put in place; what it has for elsewhere remains.
    fn recover(&mut self, pmem: &Pmem, layout: &PoolLayout, table: &SegmentTable, found: InSlot) -> Result<(), String> {
        let (at, number) = (found.at, found.number);
        let (_, bytes) = found.record.expect("slots without a record were free");
        match put_in_place(pmem, table, &bytes, found.logged)? {
            None => {
                store_state(pmem, layout, at, RedoState::Free, number);
                self.slots[at as usize].end(Stage::Free, number);
            }
            Some((region, txn, remote)) => {
                store_state(pmem, layout, at, RedoState::AppliedToDispatch, number);
                self.found.push(Undispatched {
                    record: RedoId::new(at, number),
                    region,
                    txn,
                    remote,
                });
                self.slots[at as usize].end(Stage::ToDispatch { txn }, number);
            }
        }
        Ok(())
    }

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
        debug_assert_eq!(
            self.slots
                .iter()
                .filter(|slot| slot.decided == Some(Decided::Here))
                .count(),
            self.own,
            "what was decided here is counted"
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
    /// Of a record with a remote part.
    decided: Option<Decided>,
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

#[cfg(feature = "planted")]
thread_local! {
    static SLOTS_LIMIT: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Of pools that this thread opens only so many slots of the redo log are used.
#[cfg(feature = "planted")]
pub fn limit_redo_log(slots: Option<usize>) {
    SLOTS_LIMIT.set(slots.unwrap_or(usize::MAX));
}

#[cfg(feature = "planted")]
fn slots_limit() -> usize {
    SLOTS_LIMIT.get()
}

#[cfg(not(feature = "planted"))]
const fn slots_limit() -> usize {
    usize::MAX
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

    /// See [`PoolSpace::log`](super::PoolSpace::log); `decided`: where, if there is a remote part.
    pub fn log<'a>(
        &self,
        pmem: &Pmem,
        layout: &PoolLayout,
        (region, txn): (RegionId, TxnId),
        local: impl IntoIterator<Item = (Gpa, &'a [u8])> + Clone,
        remote: &[RemotePart],
        decided: Decided,
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
        let (id, order) = self.claim(txn, (!remote.is_empty()).then_some(decided))?;
        RECORD.with_borrow_mut(|buffer| {
            let mut encoder = RedoEncoder::new(buffer, id.number(), order, region, txn);
            for (gpa, bytes) in local {
                encoder.local(gpa, bytes);
            }
            for part in remote {
                encode_part(&mut encoder, part);
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

    /// Logs what a region has decided of which there is a copy here; it is to be dispatched.
    ///
    /// # Errors
    /// `Retry` when all slots that it may take are in use.
    pub fn adopt(
        &self,
        pmem: &Pmem,
        layout: &PoolLayout,
        (region, txn): (RegionId, TxnId),
        remote: Vec<RemotePart>,
    ) -> Result<(), RegionError> {
        let record = self.log(pmem, layout, (region, txn), [], &remote, Decided::Elsewhere)?;
        self.applied(pmem, layout, record);
        let mut state = self.state.lock();
        state.found.push(Undispatched {
            record,
            region,
            txn,
            remote,
        });
        state.check();
        Ok(())
    }

    /// A slot for a record, and the record's number among all.
    fn claim(&self, txn: TxnId, decided: Option<Decided>) -> Result<(RedoId, u64), RegionError> {
        let mut state = self.state.lock();
        let keep = if decided.is_some() { self.reserved } else { 0 };
        let is_own = decided == Some(Decided::Here);
        if state.free.len() <= keep || is_own && state.own >= self.own_max {
            return Err(FsError::Retry.into());
        }
        let at = state.free.pop().expect("there are more than `keep`");
        debug_assert!(!state.free.contains(&at), "redo log slot {at} is free once");
        state.own += usize::from(is_own);
        let slot = &mut state.slots[at as usize];
        assert!(slot.stage == Stage::Free, "redo log slot {at} is free");
        slot.number = (slot.number + 1) & NUMBER_MAX;
        slot.stage = Stage::Logged {
            txn,
            remote: decided.is_some(),
        };
        slot.decided = decided;
        let id = RedoId::new(at, slot.number);
        state.order += 1;
        Ok((id, state.order))
    }

    /// How many transactions with parts elsewhere may be decided here and not be retired, at a time.
    pub fn own_max(&self) -> usize {
        self.own_max
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
        let was_own = slot.decided.take() == Some(Decided::Here);
        state.own -= usize::from(was_own);
        debug_assert!(!state.free.contains(&record.slot()), "a slot is freed once");
        state.free.push(record.slot());
        state.check();
    }

    /// The record of a transaction that is to be dispatched.
    pub fn record_of(&self, txn: TxnId) -> Option<RedoId> {
        let state = self.state.lock();
        let is_it = |slot: &Slot| matches!(slot.stage, Stage::ToDispatch { txn: t } if t == txn);
        let found = (0..).zip(&state.slots).find(|(_, slot)| is_it(slot));
        found.map(|(at, slot)| RedoId::new(at, slot.number))
    }

    /// What a region has decided and not retired, as it stands in the log: the transaction and its parts elsewhere.
    pub fn decided_by(&self, pmem: &Pmem, layout: &PoolLayout, region: RegionId) -> Vec<(TxnId, Vec<RemotePart>)> {
        let state = self.state.lock();
        let is_open = |slot: &Slot| {
            matches!(
                slot.stage,
                Stage::Logged { remote: true, .. } | Stage::ToDispatch { .. }
            )
        };
        let open = (0..).zip(&state.slots).filter(|(_, slot)| is_open(slot));
        let read = |(at, _): (u32, &Slot)| {
            let mut bytes = vec![0; REDO_RECORD_MAX];
            pmem.read(layout.slot_offset(at), &mut bytes);
            let record = RedoRecord::decode(&bytes).ok()?;
            let is_its = record.region == region && record.txn.region() == region;
            let parts = record
                .remote
                .into_iter()
                .map(to_dispatch)
                .collect::<Result<_, _>>()
                .ok()?;
            is_its.then_some((record.txn, parts))
        };
        open.filter_map(read).collect()
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

    /// Reads the log after a start: puts local parts in place (durably), in the order in which they were logged, keeps what is
    /// to be dispatched, clears what was torn. `damage(pool offset, what is wrong)` decides whether damage is an error; if not,
    /// the slot is left alone for good.
    pub fn recover(
        pmem: &Pmem,
        layout: &PoolLayout,
        table: &SegmentTable,
        mut damage: impl FnMut(u64, String) -> Result<(), RegionError>,
    ) -> Result<RedoLog, RegionError> {
        let (mut state, records) = State::read(pmem, layout, &mut damage)?;
        for found in records.into_values() {
            let InSlot { at, number, .. } = found;
            if let Err(why) = state.recover(pmem, layout, table, found) {
                state.slots[at as usize].number = number;
                damage(layout.slot_offset(at), format!("slot {at}: {why}"))?;
            }
        }
        let used = (layout.redo_slots as usize).min(slots_limit());
        for slot in &mut state.slots[used..] {
            if slot.stage == Stage::Free {
                slot.stage = Stage::Closed;
            }
        }
        state.free = (0..layout.redo_slots)
            .rev()
            .filter(|&at| state.slots[at as usize].stage == Stage::Free)
            .collect();
        state.check();
        let own = used.min(REDO_SLOTS_OWN as usize);
        let reserved = (own / 8).max(2);
        assert!(reserved < own, "records with a remote part have slots, too");
        Ok(RedoLog {
            state: Mutex::new(state),
            reserved,
            own_max: own - reserved,
        })
    }
}

impl Slot {
    /// What became of it at a start.
    fn end(&mut self, stage: Stage, number: u64) {
        let decided = matches!(stage, Stage::ToDispatch { .. }).then_some(Decided::Elsewhere);
        *self = Slot { number, stage, decided };
    }
}

/// What a slot held at a start.
struct InSlot {
    at: u32,
    number: u64,
    logged: RedoState,
    /// its number among all, and the bytes of the slot; none where the slot is free
    record: Option<(u64, Vec<u8>)>,
}

/// Reads a slot. A record that never came to be is cleared.
fn read_slot(pmem: &Pmem, layout: &PoolLayout, at: u32) -> Result<InSlot, FormatError> {
    let mut bytes = vec![0; LINE];
    pmem.read(layout.slot_offset(at), &mut bytes);
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let (logged, number) = RedoState::decode(word)?;
    let free = InSlot {
        at,
        number,
        logged,
        record: None,
    };
    if logged == RedoState::Free {
        return Ok(free);
    }
    bytes.resize(REDO_RECORD_MAX, 0);
    pmem.read(layout.slot_offset(at), &mut bytes);
    match RedoRecord::decode(&bytes) {
        Ok(record) => {
            let record = Some((record.order, bytes));
            Ok(InSlot { record, ..free })
        }
        Err(FormatError::Checksum(_)) if logged == RedoState::Logged => {
            tracing::info!(
                slot = at,
                "redo record was torn by a power cut before its commit; cleared"
            );
            store_state(pmem, layout, at, RedoState::Free, number);
            Ok(free)
        }
        Err(why) => Err(why),
    }
}

/// What remains of a record: whose, and what is to be written elsewhere.
type Remains = (RegionId, TxnId, Vec<RemotePart>);

/// Puts a record's local part in place, durably, unless it is there.
fn put_in_place(pmem: &Pmem, table: &SegmentTable, slot: &[u8], logged: RedoState) -> Result<Option<Remains>, String> {
    let record = RedoRecord::decode(slot).map_err(|why| why.to_string())?;
    if record.txn.region() != record.region && !record.remote.is_empty() {
        check_prepared(table, &record, cfg!(feature = "two-phase"))?;
    }
    let (region, txn) = (record.region, record.txn);
    let remote: Vec<RemotePart> = record.remote.into_iter().map(to_dispatch).collect::<Result<_, _>>()?;
    if logged == RedoState::Logged {
        // all or nothing: every address is checked before the first byte is written
        let place = |(gpa, bytes): &(Gpa, &[u8])| {
            let len = bytes.len() as u64;
            table
                .locate(*gpa, len)
                .ok_or_else(|| format!("{txn:?} writes {len} bytes to {gpa:?}, which is no segment of this pool"))
        };
        let places = record.local.iter().map(place).collect::<Result<Vec<u64>, String>>()?;
        for (place, (_, bytes)) in places.into_iter().zip(&record.local) {
            pmem.write(place, bytes);
            pmem.flush(place, bytes.len() as u64);
        }
        pmem.fence();
    }
    Ok((!remote.is_empty()).then_some((region, txn, remote)))
}

/// What a region has decided: the transaction and its parts elsewhere, of a record without a local part.
pub(super) fn parts_of(region: RegionId, record: &[u8]) -> Result<(TxnId, Vec<RemotePart>), String> {
    let record = RedoRecord::decode(record).map_err(|why| why.to_string())?;
    if record.region != region || record.txn.region() != region || !record.local.is_empty() || record.remote.is_empty()
    {
        return Err(format!("{:?} is not what region {region} has decided", record.txn));
    }
    let remote = record.remote.into_iter().map(to_dispatch).collect::<Result<_, _>>()?;
    Ok((record.txn, remote))
}

/// A record without a local part, as replicas of the region get it.
pub(crate) fn encode_parts(into: &mut Vec<u8>, region: RegionId, txn: TxnId, remote: &[RemotePart]) {
    let mut encoder = RedoEncoder::new(into, 0, 0, region, txn);
    for part in remote {
        encode_part(&mut encoder, part);
    }
    encoder.finish();
}

fn encode_part(encoder: &mut RedoEncoder<'_>, part: &RemotePart) {
    match part {
        RemotePart::Collected(part) => {
            let writes = part.writes.iter().map(|(gpa, bytes)| (*gpa, bytes.as_slice()));
            encoder.collected(part.region, writes, &part.locks);
        }
        #[cfg(feature = "two-phase")]
        RemotePart::Prepared(region) => encoder.prepared(*region),
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

/// Another region's transaction: the record holds what the region that logged it has prepared for it, and nothing else. `known`:
/// this program does two-phase commit.
pub(super) fn check_prepared(table: &SegmentTable, record: &RedoRecord<'_>, known: bool) -> Result<(), String> {
    let [RedoPart::Collected { region, locks, .. }] = record.remote.as_slice() else {
        return Err(format!(
            "{:?} is another region's, and not one part prepared for it",
            record.txn
        ));
    };
    let here = *region == record.region && locks.iter().all(|at| table.locate(*at, 8).is_some());
    if !here || !record.local.is_empty() {
        return Err(format!(
            "{:?} is another region's, and not prepared by {region} here",
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
