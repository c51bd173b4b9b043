//! A region served here: the region behind its lock, and where its segments lie.

use crate::config::OneSided;
use crate::replication::gate::ShownGate;
use crate::replication::{Replication, Until};
use crate::request::sessions::Session;
use parking_lot::{Mutex, RwLock};
use polvo_cluster::Links;
use polvo_fabric::{Access, Memory, MemoryRegions, RemoteKey};
use polvo_format::{Epoch, Gpa, Lsn, NodeId, PAGE, PAGE_CHECKSUM_SIZE, PoolLayout, RegionId, SessionId, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::{
    Collected, FsError, InodeRef, Intent, LockTerm, PageRun, RegionInfo, SEGMENTS_PAGE, SegmentClass, SegmentMap,
    SegmentPlace,
};
use polvo_region::planted::{Planted, planted};
use polvo_region::{CollectedPart, Demand, Region, RegionError};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use tokio::time::Instant;

/// Keys under which peers reach the whole pool.
pub(crate) struct PoolKeys {
    /// Reads anywhere.
    read: u64,
    /// Writes and atomics anywhere: of each node that has asked for it. Nobody else is disturbed when one of them is fenced off.
    nodes: BTreeMap<NodeId, u64>,
}

impl PoolKeys {
    pub fn register(memory: &MemoryRegions, pmem: &Arc<Pmem>) -> PoolKeys {
        PoolKeys {
            read: register_pool(memory, pmem, false),
            nodes: BTreeMap::new(),
        }
    }

    /// What a node is given, or anybody else.
    pub fn of(&mut self, node: Option<NodeId>, memory: &MemoryRegions, pmem: &Arc<Pmem>) -> KeysGiven {
        let key = node.map(|node| {
            *self
                .nodes
                .entry(node)
                .or_insert_with(|| register_pool(memory, pmem, true))
        });
        KeysGiven {
            read: self.read,
            node: key.unwrap_or(0),
        }
    }

    /// Nothing takes effect any more that a node writes under the key that it was given.
    pub fn fence_off(&mut self, node: NodeId, memory: &MemoryRegions) {
        if let Some(key) = self.nodes.remove(&node) {
            memory.deregister(RemoteKey(key));
        }
    }
}

fn register_pool(memory: &MemoryRegions, pmem: &Arc<Pmem>, changes: bool) -> u64 {
    let access = Access {
        read: true,
        write: changes,
        atomic: changes,
    };
    memory.register(Memory::Pool(pmem.clone()), 0, pmem.len(), access).0
}

/// Those of [`PoolKeys`] that one peer is given.
#[derive(Clone, Copy)]
pub(crate) struct KeysGiven {
    pub read: u64,
    /// 0: none.
    pub node: u64,
}

#[derive(Default)]
struct Places {
    /// By index.
    known: Vec<SegmentPlace>,
    /// Segments of this index and above are not known yet.
    next: u32,
}

impl Places {
    fn find(&self, index: u32) -> Option<&SegmentPlace> {
        // as long as no segment was given back, each is at its index
        if let Some(place) = self.known.get(index as usize).filter(|place| place.index == index) {
            return Some(place);
        }
        let at = self.known.binary_search_by_key(&index, |place| place.index).ok()?;
        Some(&self.known[at])
    }
}

/// For whom a participant does its part.
pub(crate) struct OnBehalf {
    pub session: SessionId,
    /// It has the inode that is made open, from before anybody can see it: as it is known here, unless it has ended by then.
    pub opens: Option<Arc<Session>>,
}

/// A region served here.
pub(crate) struct RegionService {
    pub id: RegionId,
    /// Since when it is served here.
    pub epoch: Epoch,
    region: Mutex<Region>,
    /// Where segments lie. What is missing is in the region. Locked, if both are, after the region.
    places: RwLock<Places>,
    segment_shift: u32,
    /// Where they begin in the pool, and the segments; 0 and 0: nowhere.
    checksums: (u64, u64),
    pmem: Arc<Pmem>,
    memory: Arc<MemoryRegions>,
    one_sided: OneSided,
    /// Under which the node gives locks.
    pub lock_term: LockTerm,
    /// Its copies elsewhere, if it is to have any.
    replication: Option<Replication>,
    /// Segments have been given back since mirrors were last told to do the same.
    gave_back: AtomicBool,
    /// It is served elsewhere since.
    ended: AtomicBool,
    /// It is about to be handed over: no tokens are given.
    leaving: AtomicBool,
    /// Who is in the middle of something here.
    holds: Holds,
}

/// How many requests, and other work that waits in between, are in the middle of something in a region: until they are through it is not
/// handed over.
#[derive(Default)]
struct Holds(AtomicU32);

impl Holds {
    /// Nobody begins a request; what has begun goes on.
    const CLOSED: u32 = 1 << 30;
    /// Nobody begins anything.
    const ENDED: u32 = 1 << 31;

    /// One more, unless one of these is so.
    fn begin(&self, unless: u32) -> bool {
        let before = self.0.fetch_add(1, AcqRel);
        debug_assert!(
            before & !(Holds::CLOSED | Holds::ENDED) < Holds::CLOSED - 1,
            "they are few"
        );
        let is_refused = before & unless != 0;
        if is_refused {
            self.end();
        }
        !is_refused
    }

    fn end(&self) {
        let before = self.0.fetch_sub(1, AcqRel);
        debug_assert!(before & !(Holds::CLOSED | Holds::ENDED) > 0, "who holds is counted");
    }

    fn is(&self, state: u32) -> bool {
        self.0.load(Acquire) & state != 0
    }
}

/// Keeps a region from being handed over, until it is dropped.
pub(crate) struct Held(Arc<RegionService>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.holds.end();
    }
}

impl RegionService {
    /// `info`: its entry in the map. `gate`: where it is to have copies. `lock_term`: under which the node gives locks.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are the node's, which is not there yet when it is opened"
    )]
    pub fn new(
        mut region: Region,
        info: &RegionInfo,
        gate: Option<Arc<ShownGate>>,
        layout: &PoolLayout,
        pmem: &Arc<Pmem>,
        memory: &Arc<MemoryRegions>,
        one_sided: OneSided,
        lock_term: LockTerm,
    ) -> RegionService {
        let replication = Replication::of(info, gate);
        if let Some(gate) = replication.as_ref().map(|replication| replication.gate().clone()) {
            region.set_on_record(Arc::new(move |record| gate.begin(record)));
        }
        let service = RegionService {
            id: region.id(),
            epoch: info.epoch,
            replication,
            gave_back: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            holds: Holds::default(),
            region: Mutex::new(region),
            places: RwLock::default(),
            segment_shift: layout.segment_shift,
            checksums: match layout.has_checksums() {
                true => (layout.checksums_offset, layout.segments_offset),
                false => (0, 0),
            },
            pmem: pmem.clone(),
            memory: memory.clone(),
            one_sided,
            lock_term,
        };
        service.update_places();
        service
    }

    /// Enters the region: one short critical section.
    pub fn enter<T>(&self, f: impl FnOnce(&mut Region) -> T) -> T {
        let mut region = self.region.lock();
        if let Some(replication) = &self.replication {
            region.set_mirrored(replication.mirrored());
        }
        let done = f(&mut region);
        self.note_records(&region);
        done
    }

    #[inline]
    fn note_records(&self, region: &Region) {
        if let Some(replication) = &self.replication {
            replication.note(region.captured(), region.recorded_bytes());
        }
    }

    /// It is served elsewhere: nobody is answered here any more, or reaches its data.
    pub fn end(&self) {
        self.ended.store(true, Release);
        if let Some(replication) = &self.replication {
            replication.gate().close();
        }
        let places = std::mem::take(&mut *self.places.write());
        let keys = places.known.iter().flat_map(|place| [place.write_key, place.read_key]);
        keys.filter(|key| *key != 0)
            .for_each(|key| self.memory.deregister(RemoteKey(key)));
    }

    /// It is not served here any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    /// It is not, and will not be after all (see [`Self::reopen`]).
    pub fn is_over(&self) -> bool {
        self.has_ended() && !self.is_leaving()
    }

    /// A request begins something here: until [`Self::end_request`] the region is not handed over. False: it is about to be, or was.
    #[inline]
    pub fn begin_request(&self) -> bool {
        self.holds.begin(Holds::CLOSED | Holds::ENDED)
    }

    /// See [`Self::begin_request`].
    #[inline]
    pub fn end_request(&self) {
        self.holds.end();
    }

    /// What goes on behind requests begins something here. None: the region was handed over.
    pub fn hold(self: &Arc<Self>) -> Option<Held> {
        self.holds.begin(Holds::ENDED).then(|| Held(self.clone()))
    }

    /// It is about to be handed over, or is not after all: no tokens are given meanwhile.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Release);
    }

    /// See [`Self::set_leaving`]. To be asked with the region entered.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Acquire)
    }

    /// Requests are refused from here on, but those that have begun.
    pub fn close_to_requests(&self) {
        self.holds.0.fetch_or(Holds::CLOSED, AcqRel);
    }

    /// See [`Self::close_to_requests`].
    pub fn is_closed(&self) -> bool {
        self.holds.is(Holds::CLOSED)
    }

    /// Is nobody in the middle of anything?
    pub fn is_idle(&self) -> bool {
        !self.holds.is(!(Holds::CLOSED | Holds::ENDED))
    }

    /// Was it ended to be handed over? All that was done here is at its mirrors then.
    pub fn was_given_up(&self) -> bool {
        self.holds.is(Holds::ENDED)
    }

    /// Ends the service of a region that is closed to requests, if nobody is in the middle of anything, and nothing was recorded behind
    /// that record, which its mirrors have. The region: nobody else can reach it any more.
    pub fn give_up(&self, mirrored: Lsn) -> Option<Region> {
        let mut region = self.region.lock();
        if region.captured() != Some(mirrored) {
            return None;
        }
        let (closed, ended) = (Holds::CLOSED, Holds::CLOSED | Holds::ENDED);
        self.holds.0.compare_exchange(closed, ended, AcqRel, Acquire).ok()?;
        // before who waits for the region finds it empty
        self.end();
        Some(std::mem::replace(&mut region, Region::placeholder(self.id)))
    }

    /// A region that was given up is served here as before, if it is given, or was not given up yet.
    pub fn reopen(&self, given_up: Option<Region>) {
        if let Some(given_up) = given_up {
            let mut region = self.region.lock();
            *region = given_up;
            self.ended.store(false, Release);
        }
        self.holds.0.fetch_and(!(Holds::CLOSED | Holds::ENDED), AcqRel);
    }

    /// Its copies elsewhere, if it is to have any.
    pub fn replication(&self) -> Option<&Replication> {
        self.replication.as_ref()
    }

    /// May it be answered before mirrors have what was done?
    pub fn is_async(&self) -> bool {
        self.replication.as_ref().is_some_and(Replication::is_async)
    }

    /// Every mirror in the set has all that was done.
    #[cfg(feature = "testing")]
    pub fn may_rest(&self) -> bool {
        self.replication.as_ref().is_none_or(Replication::may_rest)
    }

    /// Need nobody wait before he is told what was found or done in the region by now?
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.replication.as_ref().is_none_or(Replication::may_answer)
    }

    /// Has every mirror what was found or done in the region by now?
    #[inline]
    pub fn is_mirrored(&self) -> bool {
        self.replication.as_ref().is_none_or(Replication::is_mirrored)
    }

    /// Waits until it may be told what was found or done in the region by now.
    ///
    /// # Errors
    /// As [`Replication::wait`].
    #[inline]
    pub async fn answerable(&self, links: &Rc<Links>, deadline: impl FnOnce() -> Instant) -> Result<(), FsError> {
        match &self.replication {
            Some(replication) if !replication.may_answer() => {
                Box::pin(replication.wait(self, links, Until::MayAnswer, deadline())).await
            }
            _ => Ok(()),
        }
    }

    /// Waits until every mirror has what was found or done in the region by now, however early it may be told: whoever takes over
    /// cannot lack it.
    ///
    /// # Errors
    /// As [`Replication::wait`].
    #[inline]
    pub async fn mirrored(&self, links: &Rc<Links>, deadline: impl FnOnce() -> Instant) -> Result<(), FsError> {
        match &self.replication {
            Some(replication) if !replication.is_mirrored() => {
                Box::pin(replication.wait(self, links, Until::Mirrored, deadline())).await
            }
            _ => Ok(()),
        }
    }

    /// log2 of the size of its segments.
    pub fn segment_shift(&self) -> u32 {
        self.segment_shift
    }

    /// The pool that it lies in.
    pub fn pmem(&self) -> &Arc<Pmem> {
        &self.pmem
    }

    /// Where the checksum of a page of the pool lies, if it has one.
    pub fn checksum_of(&self, at: u64) -> Option<u64> {
        let (checksums, segments) = self.checksums;
        let page = at.checked_sub(segments)? / PAGE as u64;
        (checksums != 0).then(|| checksums + page * PAGE_CHECKSUM_SIZE)
    }

    /// Participant's part of a transaction.
    ///
    /// # Errors
    /// As [`Region::collect`]; [`FsError::SessionExpired`]: nothing is opened for a session that has ended. (Its end lets go of what was
    /// opened before, since both happen with the region entered.)
    pub fn collect(
        &self,
        txn: TxnId,
        intents: &[Intent],
        on_behalf: &OnBehalf,
        now_ns: i64,
    ) -> Result<Collected, RegionError> {
        let mut region = self.region.lock();
        let has_ended = on_behalf.opens.as_ref().is_some_and(|session| session.is_ended());
        if has_ended && !planted(Planted::EndedSessionServed) {
            return Err(FsError::SessionExpired.into());
        }
        region.entered_for(on_behalf.session);
        let collected = region.collect(txn, intents, now_ns);
        self.note_records(&region);
        let collected = collected?;
        debug_assert!(collected.outcomes.len() == intents.len(), "an outcome for each intent");
        debug_assert!(
            intents.is_empty() || !collected.locks.is_empty(),
            "what is collected is locked"
        );
        let made = intents
            .iter()
            .position(Intent::makes_inode)
            .and_then(|i| collected.outcomes.get(i));
        if let (Some(_), Some(outcome)) = (&on_behalf.opens, made) {
            let inode = InodeRef {
                ino: outcome.attr.ino,
                generation: outcome.attr.generation,
            };
            if let Err(error) = region.open_made(on_behalf.session, inode) {
                region.abort(txn);
                self.note_records(&region);
                return Err(error);
            }
        }
        Ok(collected)
    }

    /// Takes over segments that the region has got since, with a key to write to those that hold data, and one to read the
    /// others where clients may read only those.
    fn update_places(&self) {
        self.take_over_segments(&self.region.lock());
    }

    fn take_over_segments(&self, region: &Region) {
        let mut places = self.places.write();
        if self.has_ended() {
            return;
        }
        for (index, pool_offset, class) in region.segments() {
            if index < places.next {
                continue;
            }
            let key = |access| {
                let memory = Memory::Pool(self.pmem.clone());
                let key = self
                    .memory
                    .register(memory, pool_offset, 1 << self.segment_shift, access);
                key.0
            };
            let (write_key, read_key) = match (class, self.one_sided) {
                (SegmentClass::Data, _) => (key(Access::WRITE), 0),
                (SegmentClass::Inodes | SegmentClass::Logs, OneSided::Nodes) => (0, key(Access::READ)),
                (SegmentClass::Inodes | SegmentClass::Logs, OneSided::All) | (SegmentClass::Register, _) => (0, 0),
            };
            debug_assert!(
                places.known.last().is_none_or(|last| last.index < index),
                "segments come in order of their indexes"
            );
            debug_assert!(
                pool_offset + (1 << self.segment_shift) <= self.pmem.len(),
                "a segment lies in the pool"
            );
            places.known.push(SegmentPlace {
                index,
                pool_offset,
                class,
                write_key,
                read_key,
            });
            places.next = index + 1;
        }
    }

    /// Space is short: gives segments that hold nothing back to the pool; returns how many.
    pub fn release_segments(&self) -> u32 {
        self.giving_back(|region, last_word| region.release_segments(last_word))
    }

    /// Now and then: gives segments back that are not needed ([`Region::shrink`]), and does a bounded piece of work for more of them to be
    /// empty; returns how many.
    /// `crowded`: pools fill up.
    pub fn shrink(&self, crowded: bool) -> u32 {
        let demand = Demand {
            copies: self.replication().is_some(),
            crowded,
        };
        self.giving_back(|region, last_word| region.shrink(demand, last_word))
    }

    /// Does something that gives segments back, their keys taken away first.
    fn giving_back(&self, f: impl FnOnce(&mut Region, &mut dyn FnMut(u32)) -> u32) -> u32 {
        let mut region = self.region.lock();
        if let Some(replication) = &self.replication {
            region.set_mirrored(replication.mirrored());
        }
        // those that came before one that goes are not to be missed
        self.take_over_segments(&region);
        let done = f(&mut region, &mut |index| {
            let mut places = self.places.write();
            if let Ok(at) = places.known.binary_search_by_key(&index, |place| place.index) {
                let place = places.known.remove(at);
                assert!(
                    place.index == index && index < places.next,
                    "a segment that is known goes"
                );
                let keys = [place.write_key, place.read_key].into_iter().filter(|key| *key != 0);
                keys.for_each(|key| self.memory.deregister(RemoteKey(key)));
            }
        });
        self.note_records(&region);
        if done > 0 {
            self.gave_back.store(true, Release);
        }
        done
    }

    /// Have segments been given back since this was last asked, which mirrors may still have?
    pub fn take_given_back(&self) -> bool {
        self.replication.is_some() && self.gave_back.swap(false, AcqRel)
    }

    /// One page of the segment map, from segment `from` on.
    pub fn segment_map(&self, from: u32, keys: KeysGiven) -> SegmentMap {
        self.update_places();
        let places = &self.places.read().known;
        let start = places.partition_point(|place| place.index < from);
        let end = places.len().min(start + SEGMENTS_PAGE);
        debug_assert!(
            places[start..end].iter().all(|place| place.index >= from),
            "a page begins where it was asked for"
        );
        SegmentMap {
            region: self.id,
            epoch: self.epoch,
            segment_shift: self.segment_shift,
            read_key: keys.read,
            node_key: keys.node,
            checksums: self.checksums,
            gate: match &self.replication {
                Some(replication) => replication.gate().place(),
                None => (0, 0),
            },
            segments: places[start..end].to_vec(),
        }
    }

    /// The segments that hold these pages.
    pub fn places_of(&self, runs: &[PageRun]) -> Vec<SegmentPlace> {
        let mut indexes: Vec<u32> = runs
            .iter()
            .filter_map(|run| u32::try_from(run.gpa.offset().0 >> self.segment_shift).ok())
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        let find = || -> Option<Vec<SegmentPlace>> {
            let places = self.places.read();
            indexes.iter().map(|index| places.find(*index).copied()).collect()
        };
        find().unwrap_or_else(|| {
            self.update_places();
            find().unwrap_or_default()
        })
    }

    fn find(&self, at: Gpa, len: usize) -> Option<(u64, SegmentClass)> {
        let offset = at.offset().0;
        let inner = offset & ((1 << self.segment_shift) - 1);
        let index = u32::try_from(offset >> self.segment_shift).ok()?;
        if at.region() != self.id || len as u64 > (1 << self.segment_shift) - inner {
            return None;
        }
        let places = self.places.read();
        let place = places.find(index)?;
        let found = place.pool_offset + inner;
        debug_assert!(
            place.index == index && found + len as u64 <= self.pmem.len(),
            "it lies in the pool"
        );
        Some((found, place.class))
    }

    /// Where `len` bytes at an address lie in the pool and what their segment holds. They may not cross segments.
    pub fn locate(&self, at: Gpa, len: usize) -> Result<(u64, SegmentClass), FsError> {
        if let Some(found) = self.find(at, len) {
            return Ok(found);
        }
        self.update_places();
        self.find(at, len)
            .ok_or_else(|| FsError::Invalid(format!("{at:?} and {len} bytes on are not in a segment")))
    }

    /// As [`Self::locate`]; `None` for what is no file data.
    pub fn locate_data(&self, at: Gpa, len: usize) -> Result<Option<u64>, FsError> {
        let (offset, class) = self.locate(at, len)?;
        Ok((class == SegmentClass::Data).then_some(offset))
    }

    /// Makes what a participant of this pool contributed durable: all writes, then the locks let go. When some locks are found
    /// let go already (or gone, with their segment), all writes are in place since the first time, and later ones of others
    /// may be too, so nothing is written any more.
    pub fn dispatch(&self, txn: TxnId, part: &CollectedPart) -> Result<(), FsError> {
        let located = part.locks.iter().filter_map(|lock| self.locate(*lock, 8).ok());
        let held: Vec<u64> = located.map(|(at, _)| at).collect();
        if held.iter().any(|at| at % 8 != 0) {
            return Err(FsError::Io("lock word out of line in a transaction's record".into()));
        }
        if held.len() == part.locks.len() && held.iter().all(|at| self.pmem.read_u64(*at) == txn.0) {
            for (at, bytes) in &part.writes {
                let (offset, _) = self.locate(*at, bytes.len())?;
                self.pmem.write(offset, bytes);
                self.pmem.flush(offset, bytes.len() as u64);
            }
            self.pmem.fence();
        }
        self.release(txn, &held);
        Ok(())
    }

    /// Lets go of lock words that still hold the transaction's id.
    pub fn unlock(&self, txn: TxnId, locks: &[Gpa]) {
        let held: Vec<u64> = locks
            .iter()
            .filter_map(|lock| self.locate(*lock, 8).ok())
            .map(|(at, _)| at)
            .filter(|at| at % 8 == 0)
            .collect();
        self.release(txn, &held);
    }

    fn release(&self, txn: TxnId, locks: &[u64]) {
        for at in locks {
            if self.pmem.cas_u64(*at, txn.0, 0) == txn.0 {
                self.pmem.flush(*at, 8);
            }
        }
        self.pmem.fence();
    }

    /// Writes bytes to a data segment of this region: durable after a fence of this thread's.
    pub fn write_streaming(&self, at: Gpa, bytes: &[u8]) -> Result<(), FsError> {
        let (offset, class) = self.locate(at, bytes.len())?;
        if class != SegmentClass::Data {
            return Err(FsError::NotPermitted);
        }
        self.pmem.write_streaming(offset, bytes);
        Ok(())
    }

    /// What this thread has stored is in place, and durable, after this.
    pub fn end_stores(&self) {
        self.pmem.fence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{NodeId, RegionOffset};
    use polvo_proto::RegionSet;
    use polvo_region::{FormatParams, PoolIdentity, PoolSpace};

    fn service() -> (Arc<PoolSpace>, RegionService) {
        let pmem = Pmem::simulated(8 << 20);
        let params = FormatParams {
            identity: PoolIdentity {
                cluster: [1; 16],
                pool: [2; 16],
                node: NodeId(1),
            },
            segment_shift: Some(18),
            checksums: true,
        };
        PoolSpace::format(&pmem, &params).unwrap();
        let space = PoolSpace::open(pmem.clone()).unwrap();
        let region = Region::create(&space, RegionId(0), 0).unwrap();
        let memory = MemoryRegions::new();
        let info = RegionInfo {
            id: RegionId(0),
            set: RegionSet::default(),
            epoch: Epoch(1),
            replicas: vec![],
        };
        let (layout, term) = (space.layout(), LockTerm(1));
        let service = RegionService::new(region, &info, None, layout, &pmem, &memory, OneSided::All, term);
        (space, service)
    }

    #[test]
    fn a_region_is_given_up_when_nobody_is_in_the_middle_of_anything_and_all_of_it_is_mirrored() {
        let (_space, service) = service();
        let service = Arc::new(service);
        service.enter(|region| region.capture(Lsn(7)));
        assert!(service.begin_request());
        assert!(service.give_up(Lsn(7)).is_none(), "it is not closed");
        service.close_to_requests();
        assert!(!service.begin_request(), "it is closed");
        assert!(
            !service.is_idle() && service.give_up(Lsn(7)).is_none(),
            "a request is under way"
        );
        let held = service.hold();
        service.end_request();
        assert!(held.is_some() && service.give_up(Lsn(7)).is_none(), "something goes on");
        drop(held);
        assert!(
            service.is_idle() && service.give_up(Lsn(6)).is_none(),
            "mirrors lack the last record"
        );
        let usage = service.enter(|region| region.usage());
        let region = service.give_up(Lsn(7)).expect("nobody is there");
        assert!(service.has_ended() && service.was_given_up());
        assert!(!service.begin_request() && service.hold().is_none());
        assert!(
            service.locate(Gpa::new(RegionId(0), RegionOffset(0)), 8).is_err(),
            "nobody reaches it"
        );
        assert_eq!(region.usage(), usage);
        service.reopen(Some(region));
        assert!(!service.has_ended() && service.begin_request() && service.hold().is_some());
        assert!(
            service.locate(Gpa::new(RegionId(0), RegionOffset(0)), 8).is_ok(),
            "as before"
        );
        assert_eq!(service.enter(|region| region.usage()), usage);
    }

    #[test]
    fn a_segment_that_goes_hides_none_that_came_before_it() {
        let (_space, service) = service();
        let delegate = |session| service.enter(|region| region.delegate(SessionId(session), 64).unwrap());
        let index = |run: &PageRun| (run.gpa.offset().0 >> 18) as u32;
        let (kept, given_up) = (delegate(7), delegate(8));
        let (kept_at, last) = (index(&kept[0]), index(given_up.last().unwrap()));
        assert!(kept_at < last, "segments of their own");
        service.enter(|region| region.return_space(SessionId(8), &given_up));
        assert!(service.release_segments() > 0);
        let keys = KeysGiven { read: 1, node: 0 };
        let known = service.segment_map(0, keys).segments;
        let known: Vec<u32> = known.iter().map(|place| place.index).collect();
        assert!(known.contains(&kept_at) && !known.contains(&last), "{known:?}");
    }
}
