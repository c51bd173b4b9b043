//! A primary's end of a lane: how the records of a region get to one node that has a copy of it.

use crate::region_service::RegionService;
use crate::replication::feed::Records;
use crate::replication::primary::AGAIN;
use polvo_cluster::{Links, Timeouts, within};
use polvo_fabric::{FabricError, Local, Memory, QueuePair, Remote, RemoteKey, Verb};
use polvo_format::{
    Change, Gpa, LANE_HEADS, LANE_RING, LaneHead, Lsn, MirrorRecord, NodeId, PAGE, PAGE_CHECKSUM_SIZE, RegionOffset,
    Ring,
};
use polvo_proto::{Cred, FsError, LanePlace, SEGMENTS_PAGE, SegmentClass, ask};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::rc::Rc;
use tokio::time::{Instant, sleep};

/// Bytes moved in one batch.
const BATCH_BYTES: u64 = 1 << 20;
/// Records that a mirror is asked to put in place before its ring is full, bytes: some milliseconds of its reactor's time.
const FILLED: u32 = 256 << 10;
/// Most verbs of a batch.
const BATCH_VERBS: usize = 128;

#[cfg(feature = "testing")]
thread_local! {
    static LANE_MAX: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// Lanes that this thread writes to are full with so many bytes, or one record.
#[cfg(feature = "testing")]
pub(crate) fn limit_lanes(bytes: Option<u32>) {
    LANE_MAX.set(bytes.unwrap_or(u32::MAX));
}

#[cfg(feature = "testing")]
fn lane_max() -> u32 {
    LANE_MAX.get()
}

#[cfg(not(feature = "testing"))]
const fn lane_max() -> u32 {
    u32::MAX
}

/// The lane at one node, as its only writer knows it.
pub(crate) struct LaneFeed {
    pub(super) place: LanePlace,
    ring: Ring,
    /// What lies in the ring from here on may not have been applied yet.
    head: u32,
    /// Where the next record goes.
    tail: u32,
    /// The last record that is there, with all before it.
    sent: Lsn,
    /// Where the copy's segments lie in that pool, by their indexes.
    pub(super) segments: BTreeMap<u32, u64>,
    /// It has been said that the ring fills up, and that has not got better since.
    is_filling: bool,
}

/// Verbs of a batch, put together record by record, or page by page.
#[derive(Default)]
pub(super) struct Batch<'v> {
    verbs: Vec<Verb<'v>>,
    bytes: u64,
}

/// To whom something is sent.
struct Mirror<'v> {
    node: NodeId,
    pair: &'v QueuePair,
    service: &'v RegionService,
    links: &'v Rc<Links>,
    /// Where the region's bytes are.
    memory: &'v Memory,
}

/// What is on its way out of some records.
struct Outgoing<'v> {
    records: &'v Records,
    batch: Batch<'v>,
    /// Behind that.
    stretch: Option<Stretch>,
    /// The last record of both.
    last: Lsn,
}

/// One run of bytes of the backlog that goes to one place in the ring: records that follow each other there and here.
#[derive(Clone, Copy)]
struct Stretch {
    from: usize,
    len: usize,
    at: u32,
}

impl LaneFeed {
    /// As the node that has it has answered.
    pub fn new(place: LanePlace, segment_shift: u32) -> LaneFeed {
        LaneFeed {
            ring: Ring::of_segment(1 << segment_shift),
            head: place.position,
            tail: place.position,
            sent: place.last,
            segments: BTreeMap::new(),
            is_filling: false,
            place,
        }
    }

    /// The last record that is there.
    pub fn sent(&self) -> Lsn {
        self.sent
    }

    /// Has everything been applied, as far as is known?
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Much of what lies in the ring may be needed still. True once, each time that comes about: it is to be put in place before somebody
    /// has to wait for that.
    pub fn fills_up(&mut self) -> bool {
        let used = self.ring.used(self.head, self.tail);
        let is_filling = used > FILLED.min(self.ring.len / 2);
        !mem::replace(&mut self.is_filling, is_filling) && is_filling
    }

    /// What came up to this record is applied.
    pub fn applied(&mut self, last: Lsn) {
        if last == self.sent {
            self.head = self.tail;
        }
    }

    /// What came is applied; the lane is empty.
    pub async fn apply(
        &mut self,
        to: NodeId,
        service: &RegionService,
        links: &Links,
        whole: bool,
    ) -> Result<(), FsError> {
        let region = service.id;
        let deadline = Instant::now() + Timeouts::MIRROR;
        let applied = loop {
            match apply(to, service, links, whole).await {
                // until others retire something: the redo log there has no room for what is decided
                Err(FsError::Retry) if Instant::now() + AGAIN < deadline => sleep(AGAIN).await,
                applied => break applied?,
            }
        };
        if applied != self.sent {
            let (applied, sent) = (applied.0, self.sent.0);
            return Err(FsError::Io(format!(
                "node {} has applied the records of region {} up to {applied}, and was sent those up to {sent}",
                to.0, region.0
            )));
        }
        self.head = self.tail;
        Ok(())
    }

    /// Sends what of the backlog is not there yet, but stops behind so many `bytes`. On return what was sent is there, durably, with the
    /// file data that it names.
    ///
    /// # Errors
    /// The node cannot be reached, or has no more space; something may have arrived. The lane is not to be used any more.
    pub async fn send(
        &mut self,
        to: NodeId,
        service: &RegionService,
        links: &Rc<Links>,
        backlog: &VecDeque<Records>,
        bytes: usize,
    ) -> Result<(), FsError> {
        let mut left = bytes;
        for records in backlog {
            if records.last() <= self.sent {
                continue;
            }
            if left == 0 {
                break;
            }
            self.send_some(to, service, links, records).await?;
            self.sent = records.last();
            left = left.saturating_sub(records.bytes().len());
        }
        Ok(())
    }

    async fn send_some(
        &mut self,
        to: NodeId,
        service: &RegionService,
        links: &Rc<Links>,
        records: &Records,
    ) -> Result<(), FsError> {
        let link = links.at_once_within(to, Timeouts::MIRROR).await?;
        let memory = Memory::Pool(service.pmem().clone());
        let mirror = Mirror {
            node: to,
            pair: link.rpc.queue_pair(),
            service,
            links,
            memory: &memory,
        };
        let mut out = Outgoing::of(records, self.sent);
        let mut from = 0;
        while let Some(rest) = records.bytes().get(from..).filter(|rest| !rest.is_empty()) {
            let (record, len) =
                MirrorRecord::read_own(rest).map_err(|why| FsError::Io(format!("a record of ours: {why}")))?;
            if record.lsn > self.sent {
                if len > self.ring.record_max() as usize {
                    return Err(FsError::Io(format!("a record of {len} bytes fits no lane")));
                }
                // file data first: the record is found only where they are
                self.send_data(&mirror, &record, &mut out).await?;
                let at = self.find_place(&mirror, len as u32, &mut out).await?;
                out.put(&self.place, Stretch { from, len, at });
                self.tail = at + len as u32;
                out.last = record.lsn;
            }
            from += len;
        }
        out.close(&self.place);
        let mut heads = [0; LANE_HEADS];
        out.batch.verbs.push(Verb::Read {
            from: self.remote(self.place.lane),
            into: &mut heads,
        });
        out.batch.execute(mirror.pair, to).await?;
        drop(out);
        if let Ok(head) = LaneHead::newest(&heads) {
            self.head = head.position;
        }
        Ok(())
    }

    /// The runs of bytes that a record names, and the segments.
    async fn send_data<'v>(
        &mut self,
        mirror: &Mirror<'v>,
        record: &MirrorRecord<'_>,
        out: &mut Outgoing<'v>,
    ) -> Result<(), FsError> {
        let (to, service) = (mirror.node, mirror.service);
        let mut has_emptied = false;
        for change in record.changes() {
            let (at, len) = match change {
                Change::Run { at, len } => (at, len),
                Change::Segment { index, class } if !self.segments.contains_key(&index) => {
                    Box::pin(self.learn_segments(to, service, mirror.links, &[(index, class)])).await?;
                    continue;
                }
                _ => continue,
            };
            let Ok((here, class)) = service.locate(Gpa::new(service.id, at), len as usize) else {
                continue; // its segment has gone since, and so does the copy's, with a later record
            };
            let index = self.index_of(service, at);
            if !self.segments.contains_key(&index) {
                Box::pin(self.learn_segments(to, service, mirror.links, &[(index, class as u8)])).await?;
            }
            let Some(there) = self.locate(service, at) else {
                let (node, region) = (to.0, service.id.0);
                return Err(FsError::Io(format!(
                    "node {node} has no segment {index} of region {region}"
                )));
            };
            out.close(&self.place);
            // what the ring holds of a page's life before would be put in place over it later; file data comes by runs alone
            let is_in_place = has_emptied || (self.is_empty() && out.batch.verbs.is_empty());
            if class != SegmentClass::Data && !is_in_place {
                self.empty(mirror, out).await?;
                has_emptied = true;
            }
            for start in (0..u64::from(len)).step_by(BATCH_BYTES as usize) {
                let len = BATCH_BYTES.min(u64::from(len) - start);
                if out.batch.is_full(len) {
                    out.batch.post(mirror.pair, to).await?;
                }
                let from = Local {
                    memory: mirror.memory,
                    offset: here + start,
                    len,
                };
                let there = Remote {
                    offset: there.offset + start,
                    ..there
                };
                out.batch.push(Verb::WriteFrom { to: there, from }, len);
            }
        }
        Ok(())
    }

    /// Where a record of so many bytes goes, in a ring that is emptied for it if need be.
    async fn find_place<'v>(&mut self, mirror: &Mirror<'v>, len: u32, out: &mut Outgoing<'v>) -> Result<u32, FsError> {
        if let Some(place) = self.place(len) {
            return Ok(place);
        }
        self.empty(mirror, out).await?;
        let place = self.ring.place(self.head, self.tail, len);
        Ok(place.expect("an empty ring has room for any record"))
    }

    /// Has all put in place that was sent, or is to be.
    async fn empty<'v>(&mut self, mirror: &Mirror<'v>, out: &mut Outgoing<'v>) -> Result<(), FsError> {
        out.close(&self.place);
        out.batch.post(mirror.pair, mirror.node).await?;
        self.sent = out.last;
        self.apply(mirror.node, mirror.service, mirror.links, false).await
    }

    /// Where a record of so many bytes goes; `None` while there is no room.
    fn place(&self, len: u32) -> Option<u32> {
        if !self.is_empty() && self.ring.used(self.head, self.tail).saturating_add(len) > lane_max() {
            return None;
        }
        self.ring.place(self.head, self.tail, len)
    }

    pub(super) fn remote(&self, offset: u64) -> Remote {
        Remote {
            key: RemoteKey(self.place.key),
            offset,
        }
    }

    fn index_of(&self, service: &RegionService, at: RegionOffset) -> u32 {
        u32::try_from(at.0 >> service.segment_shift()).unwrap_or(u32::MAX)
    }

    /// Where an address of the region lies in the copy.
    fn locate(&self, service: &RegionService, at: RegionOffset) -> Option<Remote> {
        let shift = service.segment_shift();
        let segment = self.segments.get(&self.index_of(service, at))?;
        Some(self.remote(segment + (at.0 & ((1 << shift) - 1))))
    }

    /// The copy gets segments, unless it has them. Gives those that were there.
    pub(super) async fn learn_segments(
        &mut self,
        to: NodeId,
        service: &RegionService,
        links: &Links,
        wanted: &[(u32, u8)],
    ) -> Result<BTreeSet<u32>, FsError> {
        let mut were_there = BTreeSet::new();
        for page in wanted.chunks(SEGMENTS_PAGE) {
            let segments = ask::MirrorSegments {
                region: service.id,
                segments: page.to_vec(),
            };
            let places = links
                .call_node_within(to, Cred::Kernel, segments, Timeouts::MIRROR)
                .await?;
            if places.len() != page.len() {
                return Err(FsError::Io(format!(
                    "node {} has other segments than it was asked for",
                    to.0
                )));
            }
            for ((index, _), (place, was_there)) in page.iter().zip(places) {
                self.segments.insert(*index, place);
                if was_there {
                    were_there.insert(*index);
                }
            }
        }
        Ok(were_there)
    }

    /// Where the checksum of a page of the copy lies in that pool, if it has checksums.
    pub(super) fn checksum_of(&self, at: u64) -> Option<u64> {
        let (checksums, segments) = self.place.checksums;
        let page = at.checked_sub(segments)? / PAGE as u64;
        (checksums != 0).then(|| checksums + page * PAGE_CHECKSUM_SIZE)
    }
}

/// Has a node put in place what has come for a region; gives the last record that it has.
pub(crate) async fn apply(to: NodeId, service: &RegionService, links: &Links, whole: bool) -> Result<Lsn, FsError> {
    let region = service.id;
    let apply = ask::ApplyMirror { region, whole };
    links.call_node_within(to, Cred::Kernel, apply, Timeouts::MIRROR).await
}

impl<'v> Outgoing<'v> {
    fn of(records: &'v Records, sent: Lsn) -> Outgoing<'v> {
        Outgoing {
            records,
            batch: Batch::default(),
            stretch: None,
            last: sent,
        }
    }

    /// The next record.
    fn put(&mut self, place: &LanePlace, next: Stretch) {
        match &mut self.stretch {
            Some(before) if before.at + before.len as u32 == next.at && before.from + before.len == next.from => {
                before.len += next.len;
            }
            _ => {
                self.close(place);
                self.stretch = Some(next);
            }
        }
    }

    /// What comes next is not a record that goes on where those before it end.
    fn close(&mut self, place: &LanePlace) {
        if let Some(stretch) = self.stretch.take() {
            self.batch.push_stretch(place, self.records, stretch);
        }
    }
}

impl<'v> Batch<'v> {
    pub(super) fn is_full(&self, more: u64) -> bool {
        self.verbs.len() >= BATCH_VERBS || self.bytes + more > BATCH_BYTES
    }

    pub(super) fn push(&mut self, verb: Verb<'v>, bytes: u64) {
        self.verbs.push(verb);
        self.bytes += bytes;
    }

    fn push_stretch(&mut self, place: &LanePlace, records: &'v Records, stretch: Stretch) {
        let Stretch { from, len, at } = stretch;
        let to = Remote {
            key: RemoteKey(place.key),
            offset: place.lane + LANE_RING + u64::from(at),
        };
        let bytes = &records.bytes()[from..from + len];
        self.push(Verb::Write { to, bytes }, len as u64);
    }

    /// Waits until everything is there.
    pub(super) async fn execute(&mut self, pair: &QueuePair, node: NodeId) -> Result<(), FsError> {
        if self.verbs.is_empty() {
            return Ok(());
        }
        let mut verbs = self.take();
        let done = within(pair, Timeouts::MIRROR, pair.execute(&mut verbs)).await;
        done.map_err(|error| not_reached(node, &error))
    }

    /// Does not wait: what is executed behind it over the same queue pair is there after it, or not at all.
    async fn post(&mut self, pair: &QueuePair, node: NodeId) -> Result<(), FsError> {
        if self.verbs.is_empty() {
            return Ok(());
        }
        let mut verbs = self.take();
        let done = within(pair, Timeouts::MIRROR, pair.execute_quietly(&mut verbs)).await;
        done.map_err(|error| not_reached(node, &error))
    }

    fn take(&mut self) -> Vec<Verb<'v>> {
        self.bytes = 0;
        mem::take(&mut self.verbs)
    }
}

pub(super) fn not_reached(node: NodeId, error: &FabricError) -> FsError {
    FsError::Unreachable {
        node: node.0,
        why: error.to_string(),
    }
}
