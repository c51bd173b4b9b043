//! A region's copy in this pool, and the lane by which it follows the region ([`polvo_format::LaneHead`]).
//!
//! The primary of the region stores records in the lane, and file data where they belong in the copy, by one-sided writes; nobody here
//! does anything for that. Now and then ([`Lane::apply`]) what has come is put in place, which makes room in the ring. A copy is *whole*
//! once it has got what the region held when its records began to come; until then it takes nobody's place.
//!
//! ```text
//! create, or restart: no region any more, records from a number on ... segments go, are taken, filled, records come ... finish: whole
//! ```
//!
//! What is there when a copy begins anew stays, as something to compare with: most of it is what the region has.

use crate::planted::{Planted, planted};
use crate::{PoolSpace, RegionError, Replica};
use polvo_format::{Change, LANE_HEADS, LANE_RING, LaneHead, Lsn, MirrorRecord, RegionId, RegionOffset, Ring, TxnId};
use polvo_proto::{FsError, SegmentClass};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A region's copy and its lane.
pub struct Lane {
    space: Arc<PoolSpace>,
    /// where the lane begins in the pool
    at: u64,
    head: LaneHead,
    replica: Replica,
}

impl Lane {
    /// A new copy of a region. What the pool has of the region, from when it was served here, is what the copy begins with: the lane
    /// comes first, so that it is a copy from then on, which is not whole. Where there is no room for a lane that is given up.
    ///
    /// # Errors
    /// ENOSPC when the pool has no free segment.
    pub fn create(space: &Arc<PoolSpace>, region: RegionId) -> Result<Lane, RegionError> {
        let at = match space.take_lane(region) {
            Err(RegionError::Fs(FsError::NoSpace)) if !space.segments_of(region).is_empty() => {
                give_back_segments(space, region);
                space.take_lane(region)?
            }
            taken => taken?,
        };
        let mut lane = Lane::at(space, region, at);
        lane.restart(Lsn(0));
        Ok(lane)
    }

    /// The pool serves the region no more, and another one that has all of it does: what is here is a copy from now on, whole up to that
    /// record of the region's. Nothing that it has decided is undispatched.
    ///
    /// # Errors
    /// ENOSPC when the pool has no free segment for the lane; what is here stays as it is.
    pub fn of_region(space: &Arc<PoolSpace>, region: RegionId, last: Lsn) -> Result<Lane, RegionError> {
        let mut lane = Lane::at(space, region, space.take_lane(region)?);
        lane.restart(last);
        lane.make_durable();
        lane.finish();
        Ok(lane)
    }

    /// All of the copy is durable before its head says that it is whole: attributes beside the logs are stored for readers, and not
    /// flushed, while a region is served.
    fn make_durable(&self) {
        let pmem = self.space.pmem();
        let len = self.space.usage().segment_size;
        for (_, at, class) in self.space.segments_of(self.head.region) {
            if class == SegmentClass::Inodes {
                pmem.flush(at, len);
            }
        }
        pmem.fence();
    }

    fn at(space: &Arc<PoolSpace>, region: RegionId, at: u64) -> Lane {
        Lane {
            space: space.clone(),
            at,
            head: LaneHead {
                serial: 0,
                region,
                applied: Lsn(0),
                position: 0,
                whole: false,
            },
            replica: Replica::new(space, region, Lsn(0)),
        }
    }

    /// What the pool has of a region that is not served here is given up, be it a copy or not: all segments go back, and the lane last, so
    /// that what is left after a power cut is no region.
    pub fn discard(space: &PoolSpace, region: RegionId) {
        space.forget_decisions(region);
        give_back_segments(space, region);
        if space.has_copy(region) {
            space.give_back_lane(region);
        }
    }

    /// All copies that a pool has, with what had come to their lanes applied, as far as the redo log has room.
    ///
    /// # Errors
    /// Per region, what is wrong with its lane or with what has come there.
    pub fn open_all(space: &Arc<PoolSpace>) -> Vec<(RegionId, Result<Lane, RegionError>)> {
        let mut lanes: Vec<_> = (space.lanes().into_iter())
            .map(|(region, at)| (region, Lane::open(space, region, at)))
            .collect();
        // what one retires makes room for what another one has
        let mut waits = true;
        while mem::take(&mut waits) {
            let mut has_come_on = false;
            for (_, opened) in &mut lanes {
                let Ok(lane) = opened else { continue };
                let before = lane.head;
                match lane.apply() {
                    Ok(_) => {}
                    Err(RegionError::Fs(FsError::Retry)) => waits = true,
                    Err(error) => {
                        *opened = Err(error);
                        continue;
                    }
                }
                has_come_on |= lane.head != before;
            }
            waits &= has_come_on;
        }
        lanes
    }

    /// As [`Self::promote`], of a pool that is being opened.
    ///
    /// # Errors
    /// Also: there is no copy.
    pub fn promote_in(space: &Arc<PoolSpace>, region: RegionId) -> Result<Lsn, RegionError> {
        let lanes = Lane::open_all(space);
        let lane = lanes
            .into_iter()
            .find_map(|(copy, lane)| (copy == region).then_some(lane));
        lane.ok_or_else(|| RegionError::Pool(format!("there is no copy of region {region}")))??
            .promote()
    }

    /// The copy whose lane begins there, as it is: nothing is applied yet.
    ///
    /// # Errors
    /// `Corrupt` when the lane's head cannot be read.
    pub(crate) fn open(space: &Arc<PoolSpace>, region: RegionId, at: u64) -> Result<Lane, RegionError> {
        let damage = |why: String| RegionError::Corrupt { what: "lane", at, why };
        let mut heads = [0; LANE_HEADS];
        space.pmem().read(at, &mut heads);
        let head = LaneHead::newest(&heads).map_err(|why| damage(why.to_string()))?;
        let ring = Ring::of_segment(space.layout().segment_size());
        if head.region != region || head.position > ring.len {
            return Err(damage(format!("{head:?} is not of region {region}")));
        }
        Ok(Lane {
            space: space.clone(),
            at,
            head,
            replica: Replica::new(space, region, head.applied),
        })
    }

    /// Whose copy.
    pub fn region(&self) -> RegionId {
        self.head.region
    }

    /// Where the lane begins in the pool.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Bytes of the ring, and how far the copy is.
    pub fn state(&self) -> (Ring, LaneHead) {
        (self.ring(), self.head)
    }

    fn ring(&self) -> Ring {
        Ring::of_segment(self.space.layout().segment_size())
    }

    /// Stores the head, durably.
    fn store_head(&mut self) {
        self.head.serial += 1;
        let (at, pmem) = (self.at + self.head.offset(), self.space.pmem());
        let bytes = self.head.encode();
        pmem.write(at, &bytes);
        pmem.persist(at, bytes.len() as u64);
    }

    /// The copy begins anew, and goes on with the record after that one. It is whole no more before anything else changes.
    pub fn restart(&mut self, applied: Lsn) {
        self.head.whole = planted(Planted::WholeMeanwhile) && self.head.whole;
        self.store_head();
        if let Err(error) = self.apply() {
            // what is in place is compared, whatever it is
            tracing::debug!(region = self.region().0, %error, "records that had come to a copy");
        }
        let (space, region, ring) = (&self.space, self.region(), self.ring());
        space.forget_decisions(region);
        space.pmem().zero_streaming(self.at + LANE_RING, ring.len.into());
        space.pmem().fence();
        (self.head.applied, self.head.position) = (applied, 0);
        self.replica = Replica::new(space, region, applied);
        self.store_head();
    }

    /// Takes segments for the copy, unless it has them; gives where each one lies in the pool, and whether it was there.
    ///
    /// # Errors
    /// ENOSPC when the pool has no more; `Pool` for one that is there for something else, or of no class.
    pub fn take_segments(&mut self, segments: &[(u32, u8)]) -> Result<Vec<(u64, bool)>, RegionError> {
        let take = |&(index, class): &(u32, u8)| {
            let was_there = self.space.class_of_segment(self.region(), index).is_some();
            Ok((self.replica.take_segment(index, class)?, was_there))
        };
        segments.iter().map(take).collect()
    }

    /// Of a copy that is not whole: of the segments in a range only these stay, by index and class.
    ///
    /// # Errors
    /// `Pool` when it is whole.
    pub fn keep_only(&mut self, range: RangeInclusive<u32>, segments: &[(u32, u8)]) -> Result<(), RegionError> {
        let region = self.region();
        if self.head.whole {
            return Err(RegionError::Pool(format!("the copy of region {region} is whole")));
        }
        let kept: BTreeMap<u32, u8> = segments.iter().copied().collect();
        for (index, _, class) in self.space.segments_of(region) {
            if range.contains(&index) && kept.get(&index) != Some(&(class as u8)) {
                self.space.give_back_segment(region, index);
            }
        }
        Ok(())
    }

    /// Where bytes of the copy lie in the pool; `None` unless all of them are in one segment that it has.
    pub fn place(&self, at: RegionOffset, len: u64) -> Option<u64> {
        self.replica.place(at, len)
    }

    /// All of what the region held has been copied, as far as records to come do not change it.
    pub fn finish(&mut self) {
        self.head.whole = true;
        self.store_head();
    }

    /// Puts in place what has come. Gives the number of the last record.
    ///
    /// # Errors
    /// A record that makes no sense. It stays where it is, and so do those behind it. `Retry` when the pool's redo log has no room for
    /// what the region has decided and not retired: other copies may give it some, once they follow.
    pub fn apply(&mut self) -> Result<Lsn, RegionError> {
        let (mut bytes, before) = (Vec::new(), self.head);
        let mut has_looked_ahead = false;
        let result = loop {
            let Some(at) = self.record_behind(self.head, &mut bytes) else {
                break Ok(());
            };
            let (record, len) = MirrorRecord::decode(&bytes).expect("it was just read");
            if planted(Planted::HeadBeforeRecord) {
                (self.head.applied, self.head.position) = (record.lsn, at + len as u32);
                self.store_head();
            }
            match self.replica.apply(&record) {
                Ok(()) => (self.head.applied, self.head.position) = (record.lsn, at + len as u32),
                Err(RegionError::Fs(FsError::Retry))
                    if !mem::replace(&mut has_looked_ahead, true) && !planted(Planted::RetiredNotSought) =>
                {
                    let retired = self.retired_behind();
                    self.replica.expect_retired(retired);
                }
                Err(error) => break Err(error),
            }
        };
        if self.head != before {
            self.store_head();
        }
        result.map(|()| self.head.applied)
    }

    /// What is retired by records that have come and are not applied.
    fn retired_behind(&self) -> BTreeSet<TxnId> {
        let (mut bytes, mut head, mut retired) = (Vec::new(), self.head, BTreeSet::new());
        while let Some(at) = self.record_behind(head, &mut bytes) {
            let (record, len) = MirrorRecord::decode(&bytes).expect("it was just read");
            retired.extend(record.changes().filter_map(|change| match change {
                Change::Retired { txn } => Some(txn),
                _ => None,
            }));
            (head.applied, head.position) = (record.lsn, at + len as u32);
        }
        retired
    }

    /// Reads the record that follows those up to a head; gives where it lies in the ring.
    fn record_behind(&self, head: LaneHead, bytes: &mut Vec<u8>) -> Option<u32> {
        let (position, ring) = (head.position, self.ring());
        let mut at = |at: u32| {
            let room = (ring.len - at) as usize;
            let len =
                |bytes: &[u8]| MirrorRecord::len(bytes).filter(|len| *len <= room.min(ring.record_max() as usize));
            bytes.resize(MirrorRecord::HEAD.min(room), 0);
            self.space.pmem().read(self.at + LANE_RING + u64::from(at), bytes);
            let len = len(bytes)?;
            bytes.resize(len, 0);
            self.space.pmem().read(self.at + LANE_RING + u64::from(at), bytes);
            let (record, _) = MirrorRecord::decode(bytes).ok()?;
            (record.lsn == head.applied.next() && record.region == self.region()).then_some(at)
        };
        at(position).or_else(|| (position > 0).then(|| at(0)).flatten())
    }

    /// The copy becomes the region: what has come is applied, and the lane goes back to the pool. This is not to be used any more.
    ///
    /// # Errors
    /// It is not whole, or what has come makes no sense; nothing has changed then but what was applied.
    pub fn promote(&mut self) -> Result<Lsn, RegionError> {
        if !self.head.whole {
            let why = format!("the copy of region {} is not whole", self.region());
            return Err(RegionError::Pool(why));
        }
        let last = self.apply()?;
        self.space.give_back_lane(self.region());
        Ok(last)
    }
}

fn give_back_segments(space: &PoolSpace, region: RegionId) {
    for (index, _, _) in space.segments_of(region) {
        space.give_back_segment(region, index);
    }
}

/// What is to be copied of a segment.
pub struct ToCopy {
    /// where it lies in the pool
    pub at: u64,
    /// what it holds
    pub class: SegmentClass,
    /// of one of data, the runs of pages that may hold something: first page, and how many
    pub pages: Vec<(u32, u32)>,
}

/// For who fills a copy: what is needed of a region that is served.
impl crate::Region {
    /// What is to be copied of a segment, if the region has it.
    pub fn to_copy(&self, index: u32) -> Option<ToCopy> {
        let (_, at, class) = self.segments().find(|(other, ..)| *other == index)?;
        let pages = match class {
            SegmentClass::Data => self.store.space.bitmap(index).used_runs().collect(),
            SegmentClass::Inodes | SegmentClass::Logs | SegmentClass::Register => Vec::new(),
        };
        Some(ToCopy { at, class, pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use crate::testing::*;
    use polvo_format::{FileKind, Gpa};
    use polvo_pmem::Pmem;
    use polvo_pmem::sim::{CrashImage, RandomLines};
    use polvo_proto::{InodeRef, WriteAt};
    use std::sync::Mutex;

    /// A region, its copy in another pool, and what the primary knows of the lane there.
    struct Pair {
        region: Region,
        lane: Lane,
        pool: Arc<PoolSpace>,
        tail: u32,
    }

    impl Pair {
        fn new() -> Pair {
            let mut region = region(8);
            make(&mut region, ROOT, b"first", FileKind::File).unwrap();
            region.capture(Lsn(4));
            let pool = pool(8, true);
            let mut lane = Lane::create(&pool, region.id()).unwrap();
            lane.restart(Lsn(4));
            assert_eq!(pool.regions(), [], "a copy is no region of the pool");
            let segments: Vec<_> = region.segments().collect();
            for (index, from, class) in segments {
                let to = lane.take_segments(&[(index, class as u8)]).unwrap()[0].0;
                copy(&region, from, &pool, to, 1 << 18);
            }
            let mut pair = Pair {
                region,
                lane,
                pool,
                tail: 0,
            };
            pair.send();
            pair.lane.apply().unwrap();
            pair.lane.finish();
            pair
        }

        /// What has been recorded goes to the lane, as a primary sends it.
        fn send(&mut self) {
            let mut bytes = Vec::new();
            self.region.take_records(&mut bytes).expect("it is captured");
            MirrorRecord::seal(&mut bytes);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (record, len) = MirrorRecord::decode(rest).unwrap();
                for change in record.changes() {
                    match change {
                        Change::Segment { index, class } => drop(self.lane.take_segments(&[(index, class)]).unwrap()),
                        Change::Run { at, len } => {
                            let to = self.pool.locate(Gpa::new(record.region, at), len.into()).unwrap();
                            copy(&self.region, self.region.store.at(at.0), &self.pool, to, len.into());
                        }
                        _ => {}
                    }
                }
                let (ring, head) = self.lane.state();
                let place = ring.place(head.position, self.tail, len as u32).unwrap_or_else(|| {
                    self.lane.apply().unwrap();
                    let (_, head) = self.lane.state();
                    assert_eq!(head.position, self.tail, "what came is in place");
                    ring.place(head.position, self.tail, len as u32)
                        .expect("there is room now")
                });
                let pmem = self.pool.pmem();
                pmem.write_streaming(self.lane.offset() + LANE_RING + u64::from(place), &rest[..len]);
                pmem.fence();
                self.tail = place + len as u32;
                rest = &rest[len..];
            }
        }
    }

    fn copy(from: &Region, at: u64, to: &PoolSpace, there: u64, len: u64) {
        let mut bytes = vec![0; len as usize];
        from.store.pool.pmem().read(at, &mut bytes);
        to.pmem().write_streaming(there, &bytes);
        to.pmem().fence();
    }

    /// The region that a mirror's pool gives after its machine has lost power.
    fn promoted(image: &CrashImage) -> Region {
        let pool = PoolSpace::open(Pmem::simulated_from_image(image)).unwrap();
        let (region, lane) = Lane::open_all(&pool).pop().expect("there is a copy");
        lane.unwrap().promote().unwrap();
        Region::recover(&pool, region, &mut |_, _| ()).unwrap().0
    }

    fn names(region: &mut Region) -> Vec<u32> {
        let is_there = |n: &u32| region.lookup(ROOT, format!("f{n}").as_bytes()).is_ok();
        (0..60).filter(is_there).collect()
    }

    fn store(region: &mut Region, file: InodeRef, n: u32) {
        let bytes = vec![n as u8; 700];
        region
            .store(file, WriteAt::Offset(u64::from(n) * 500), &bytes, NOW)
            .unwrap();
    }

    #[test]
    fn whatever_a_mirror_loses_with_its_power_it_has_all_that_was_answered() {
        let mut pair = Pair::new();
        let file = make(&mut pair.region, ROOT, b"data", FileKind::File).unwrap();
        pair.send();
        let images: Arc<Mutex<Vec<CrashImage>>> = Arc::default();
        let seen = images.clone();
        pair.pool.pmem().sim().unwrap().set_fence_hook(Box::new(move |point| {
            let mut lines = RandomLines::new(point.number());
            seen.lock().unwrap().push(point.image(&mut lines));
        }));
        let mut answered = Vec::new();
        for n in 0..60u32 {
            if n % 5 == 4 {
                unlink(&mut pair.region, ROOT, format!("f{}", n - 2).as_bytes()).unwrap();
            }
            make(&mut pair.region, ROOT, format!("f{n}").as_bytes(), FileKind::File).unwrap();
            store(&mut pair.region, file, n % 16);
            pair.send();
            let now = names(&mut pair.region);
            if n % 9 == 8 {
                pair.lane.apply().unwrap();
            }
            for image in std::mem::take(&mut *images.lock().unwrap()) {
                let mut found = promoted(&image);
                let names = names(&mut found);
                // what was under way may be there or not; all before it is
                assert!(
                    names.iter().eq(&now) || answered_are_there(&answered, &names, n),
                    "{n}: {names:?}, {now:?}"
                );
                assert_eq!(findings(&mut found), Vec::<String>::new());
            }
            answered = now;
        }
        assert!(pair.lane.state().1.applied > Lsn(60));
    }

    /// All that was there before operation `n`, but for what it takes away.
    fn answered_are_there(answered: &[u32], found: &[u32], n: u32) -> bool {
        let goes = |name: &u32| n % 5 == 4 && *name == n - 2;
        answered.iter().all(|name| goes(name) || found.contains(name))
            && found.iter().all(|name| *name == n || answered.contains(name))
    }

    #[test]
    fn a_copy_that_is_not_whole_takes_nobodys_place_and_goes_back_to_the_pool() {
        let mut pair = Pair::new();
        let free = pair.pool.usage().free_segments;
        pair.lane.restart(Lsn(9));
        assert!(pair.lane.promote().unwrap_err().to_string().contains("not whole"));
        assert_eq!(pair.pool.usage().free_segments, free, "what it has is to be compared");
        let region = pair.region.id();
        drop(pair.lane);
        Lane::discard(&pair.pool, region);
        assert!(!pair.pool.has_copy(region) && Lane::open_all(&pair.pool).is_empty());
        let usage = pair.pool.usage();
        assert_eq!(usage.free_segments, usage.segments);
    }

    #[test]
    fn a_record_that_has_come_in_part_is_none() {
        let mut pair = Pair::new();
        make(&mut pair.region, ROOT, b"f1", FileKind::File).unwrap();
        pair.send();
        let (_, head) = pair.lane.state();
        let end = pair.lane.offset() + LANE_RING + u64::from(pair.tail) - 8;
        pair.pool.pmem().write_u64(end, !pair.pool.pmem().read_u64(end));
        let applied = pair.lane.apply().unwrap();
        assert!(
            applied < pair.region.captured().unwrap(),
            "the last record is not whole"
        );
        assert!(applied >= head.applied);
    }

    #[test]
    fn a_region_that_lived_here_is_what_its_copy_begins_with() {
        let pair = Pair::new();
        let pool = pair.region.store.pool.clone();
        let region = pair.region.id();
        drop(pair.region);
        assert_eq!(pool.regions(), [region]);
        let segments = pool.segments_of(region);
        let mut lane = Lane::create(&pool, region).unwrap();
        assert!(pool.regions().is_empty() && !lane.state().1.whole);
        assert_eq!(pool.segments_of(region), segments);
        let (index, at, class) = segments[0];
        let taken = lane.take_segments(&[(index, class as u8), (90, class as u8)]).unwrap();
        assert_eq!(taken[0], (at, true));
        assert!(!taken[1].1, "it has not been there");
    }

    #[test]
    fn a_region_that_lived_here_makes_room_for_its_copys_lane() {
        let pair = Pair::new();
        let pool = pair.region.store.pool.clone();
        let region = pair.region.id();
        drop(pair.region);
        for index in 50.. {
            if pool.take_segment(region, index, SegmentClass::Data).is_err() {
                break;
            }
        }
        assert_eq!(pool.usage().free_segments, 0);
        let lane = Lane::create(&pool, region).unwrap();
        assert!(pool.regions().is_empty() && pool.segments_of(region).is_empty());
        assert!(!lane.state().1.whole);
    }

    #[test]
    fn a_copy_keeps_those_of_a_range_of_segments_that_its_region_has() {
        let mut pair = Pair::new();
        let region = pair.region.id();
        let has = |pair: &Pair| -> Vec<(u32, u8)> {
            let segments = pair.pool.segments_of(region).into_iter();
            segments.map(|(index, _, class)| (index, class as u8)).collect()
        };
        let before = has(&pair);
        assert!(pair.lane.keep_only(0..=u32::MAX, &[]).is_err(), "it is whole");
        assert_eq!(has(&pair), before);
        pair.lane.restart(Lsn(9));
        let data = SegmentClass::Data as u8;
        let added: Vec<(u32, u8)> = (40..44).map(|index| (index, data)).collect();
        pair.lane.take_segments(&added).unwrap();
        // 42 is for something else, 50 it does not have
        let named = [(41, data), (42, SegmentClass::Logs as u8), (50, data)];
        pair.lane.keep_only(41..=u32::MAX, &named).unwrap();
        assert_eq!(has(&pair), [&before[..], &added[..2]].concat());
    }

    /// A copy of which nothing comes but what its region has decided, and that it is retired.
    struct Decisions {
        lane: Lane,
        tail: u32,
        last: Lsn,
    }

    impl Decisions {
        fn of(region: u16, pool: &Arc<PoolSpace>) -> Decisions {
            let mut lane = Lane::create(pool, RegionId(region)).unwrap();
            lane.finish();
            Decisions {
                lane,
                tail: 0,
                last: Lsn(0),
            }
        }

        fn txn(&self, n: u64) -> TxnId {
            TxnId::new(self.lane.region(), n)
        }

        fn decide(&mut self, n: u64) {
            let (mut record, of) = (Vec::new(), self.lane.region());
            let part = crate::RemotePart::Collected(crate::CollectedPart {
                region: RegionId(9),
                writes: vec![],
                locks: vec![Gpa::new(RegionId(9), RegionOffset(56))],
            });
            crate::pool::encode_parts(&mut record, of, self.txn(n), &[part]);
            self.send(Change::Decided { record: &record });
        }

        fn retire(&mut self, n: u64) {
            let txn = self.txn(n);
            self.send(Change::Retired { txn });
        }

        fn send(&mut self, change: Change<'_>) {
            let mut bytes = Vec::new();
            self.last = self.last.next();
            MirrorRecord::begin(&mut bytes);
            change.encode(&mut bytes);
            MirrorRecord::end(&mut bytes, 0, self.last, self.lane.region());
            MirrorRecord::seal(&mut bytes);
            let place = u64::from(self.tail);
            let pmem = self.lane.space.pmem();
            pmem.write_streaming(self.lane.offset() + LANE_RING + place, &bytes);
            pmem.fence();
            self.tail += bytes.len() as u32;
        }

        fn open(&self) -> usize {
            self.lane.space.decided_by(self.lane.region()).len()
        }
    }

    const NO_ROOM: RegionError = RegionError::Fs(FsError::Retry);

    /// A primary whose participants cannot be reached for a while decides as much as its own log holds, and a mirror has several primaries.
    #[test]
    fn what_is_retired_by_records_that_have_come_needs_no_room_in_the_redo_log() {
        let pool = pool(8, true);
        let slots = u64::from(pool.layout().redo_slots);
        let mut copy = Decisions::of(3, &pool);
        for round in 0..3 {
            let decided = round * 1000 + 1..round * 1000 + 2 * slots;
            decided.clone().for_each(|n| copy.decide(n));
            assert_eq!(copy.lane.apply(), Err(NO_ROOM));
            assert!(copy.open() > 0, "what there is room for is in the log");
            decided.for_each(|n| copy.retire(n));
            assert_eq!(copy.lane.apply(), Ok(copy.last));
            assert_eq!(copy.open(), 0);
        }
    }

    /// As a pool finds them that is opened, in whatever order.
    #[test]
    fn copies_make_room_for_each_other_in_the_redo_log() {
        for first in [3, 4] {
            let pool = pool(8, true);
            let all = u64::from(pool.layout().redo_slots) * 3 / 4;
            let (mut full, mut waits) = (Decisions::of(first, &pool), Decisions::of(7 - first, &pool));
            (1..all).for_each(|n| full.decide(n));
            full.lane.apply().unwrap();
            (1..all).for_each(|n| waits.decide(n));
            assert_eq!(waits.lane.apply(), Err(NO_ROOM));
            let reopened = |pool: &PoolSpace| {
                let image = pool.pmem().sim().unwrap().image(&mut polvo_pmem::sim::KeepAll);
                PoolSpace::open(Pmem::simulated_from_image(&image)).unwrap()
            };
            // nothing is damaged, and nothing is lost
            let found = Lane::open_all(&reopened(&pool));
            assert!(found.iter().all(|(_, lane)| lane.is_ok()) && found.len() == 2);

            (1..all).for_each(|n| full.retire(n));
            assert_eq!(waits.lane.apply(), Err(NO_ROOM), "nobody has looked at the other one");
            for (region, lane) in Lane::open_all(&reopened(&pool)) {
                let expected = if region == RegionId(first) {
                    full.last
                } else {
                    waits.last
                };
                assert_eq!(lane.unwrap().state().1.applied, expected, "{region}");
            }
            let image = reopened(&pool);
            Lane::promote_in(&image, RegionId(7 - first)).unwrap();
            assert_eq!(image.decided_by(RegionId(7 - first)).len() as u64, all - 1);
        }
    }
}
