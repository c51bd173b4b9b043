//! A region's copy in this pool, and the lane by which it follows the region ([`polvo_format::LaneHead`]).
//!
//! The primary of the region stores records in the lane, and file data where they belong in the copy, by one-sided writes; nobody here
//! does anything for that. Now and then ([`Lane::apply`]) what has come is put in place, which makes room in the ring. A copy is *whole*
//! once it has got what the region held when its records began to come; until then it is good for nothing.
//!
//! ```text
//! create, or restart: empty copy, records from a number on ... segments are taken, filled, records come ... finish: whole
//! ```

use crate::{PoolSpace, RegionError, Replica};
use polvo_format::{LANE_HEADS, LANE_RING, LaneHead, Lsn, MirrorRecord, RegionId, Ring};
use polvo_proto::{FsError, SegmentClass};
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
    /// A new copy of a region, with nothing in it. What the pool has of the region, from when it was served here, is given up: the lane
    /// comes first, so that it is a copy from then on.
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
        let mut lane = Lane {
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
        };
        lane.restart(Lsn(0));
        Ok(lane)
    }

    /// A copy that cannot be opened is given up: its segments and its lane go back to the pool.
    pub fn discard(space: &PoolSpace, region: RegionId) {
        give_back_segments(space, region);
        space.give_back_lane(region);
    }

    /// All copies that a pool has, with what had come to their lanes applied.
    ///
    /// # Errors
    /// Per region, what is wrong with its lane or with what has come there.
    pub fn open_all(space: &Arc<PoolSpace>) -> Vec<(RegionId, Result<Lane, RegionError>)> {
        let open = |(region, at)| {
            let opened = Lane::open(space, region, at).and_then(|mut lane| {
                lane.apply()?;
                Ok(lane)
            });
            (region, opened)
        };
        space.lanes().into_iter().map(open).collect()
    }

    /// As [`Self::promote`], of a pool that is being opened.
    ///
    /// # Errors
    /// Also: there is no copy.
    pub fn promote_in(space: &Arc<PoolSpace>, region: RegionId) -> Result<Lsn, RegionError> {
        let lane = space.lanes().into_iter().find(|(copy, _)| *copy == region);
        let (_, at) = lane.ok_or_else(|| RegionError::Pool(format!("there is no copy of region {region}")))?;
        Lane::open(space, region, at)?.promote()
    }

    fn open(space: &Arc<PoolSpace>, region: RegionId, at: u64) -> Result<Lane, RegionError> {
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

    /// The copy begins anew, with nothing in it, and goes on with the record after that one.
    pub fn restart(&mut self, applied: Lsn) {
        self.head.whole = false;
        self.store_head();
        let (space, region, ring) = (&self.space, self.region(), self.ring());
        give_back_segments(space, region);
        space.pmem().zero_streaming(self.at + LANE_RING, ring.len.into());
        space.pmem().fence();
        (self.head.applied, self.head.position) = (applied, 0);
        self.replica = Replica::new(space, region, applied);
        self.store_head();
    }

    /// Takes segments for the copy, unless it has them; gives where each one lies in the pool.
    ///
    /// # Errors
    /// ENOSPC when the pool has no more; `Pool` for one that is there for something else, or of no class.
    pub fn take_segments(&mut self, segments: &[(u32, u8)]) -> Result<Vec<u64>, RegionError> {
        let take = |&(index, class): &(u32, u8)| self.replica.take_segment(index, class);
        segments.iter().map(take).collect()
    }

    /// All of what the region held has been copied, as far as records to come do not change it.
    pub fn finish(&mut self) {
        self.head.whole = true;
        self.store_head();
    }

    /// Puts in place what has come. Gives the number of the last record.
    ///
    /// # Errors
    /// A record that makes no sense. It stays where it is, and so do those behind it.
    pub fn apply(&mut self) -> Result<Lsn, RegionError> {
        let (mut bytes, before) = (Vec::new(), self.head);
        let result = loop {
            let Some(at) = self.next_record(&mut bytes) else {
                break Ok(());
            };
            let (record, len) = MirrorRecord::decode(&bytes).expect("it was just read");
            if let Err(error) = self.replica.apply(&record) {
                break Err(error);
            }
            (self.head.applied, self.head.position) = (record.lsn, at + len as u32);
        };
        if self.head != before {
            self.store_head();
        }
        result.map(|()| self.head.applied)
    }

    /// Reads the record that follows those which were applied; gives where it lies in the ring.
    fn next_record(&self, bytes: &mut Vec<u8>) -> Option<u32> {
        let (position, ring) = (self.head.position, self.ring());
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
            (record.lsn == self.head.applied.next() && record.region == self.region()).then_some(at)
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
