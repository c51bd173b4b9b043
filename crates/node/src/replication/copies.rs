//! A mirror's side: the copies that this node's pool has of regions elsewhere.

use crate::error::to_fs;
use crate::replication::fill::Pages;
use crate::request::context::RequestContext;
use parking_lot::{Mutex, MutexGuard};
use polvo_cluster::Timeouts;
use polvo_fabric::{Access, Memory, MemoryRegions, RemoteKey};
use polvo_format::{Lsn, PAGE, RegionId, RegionOffset};
use polvo_pmem::Pmem;
use polvo_proto::{FsError, LanePlace, LockTerm, ReplicaRole};
use polvo_region::planted::{Planted, planted};
use polvo_region::{Lane, PoolSpace, RegionError};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// One copy.
struct Copy {
    /// None once it is a copy no more: who had come for it before finds that.
    lane: Option<Lane>,
    /// Under which its primary writes; none before it has attached.
    key: Option<RemoteKey>,
    /// Under which that gives locks.
    locks: Option<LockTerm>,
    /// When it attached.
    attached: Option<Instant>,
}

/// The copies that a node has.
#[derive(Default)]
pub(crate) struct Copies {
    by_region: Mutex<BTreeMap<RegionId, Arc<Mutex<Copy>>>>,
}

impl Copies {
    /// Those that the pool has. One that is damaged is given up when its primary attaches.
    pub fn open(space: &Arc<PoolSpace>) -> Copies {
        let mut by_region = BTreeMap::new();
        for (region, opened) in Lane::open_all(space) {
            match opened {
                Ok(lane) => {
                    let (_, head) = lane.state();
                    tracing::info!(region = region.0, applied = head.applied.0, whole = head.whole, "copy");
                    by_region.insert(region, Arc::new(Mutex::new(Copy::new(lane))));
                }
                Err(error) => tracing::error!(region = region.0, %error, "a copy cannot be used"),
            }
        }
        Copies {
            by_region: Mutex::new(by_region),
        }
    }

    fn get(&self, region: RegionId) -> Option<Arc<Mutex<Copy>>> {
        self.by_region.lock().get(&region).cloned()
    }

    fn get_or_create(&self, space: &Arc<PoolSpace>, region: RegionId) -> Result<Arc<Mutex<Copy>>, FsError> {
        let mut by_region = self.by_region.lock();
        if let Some(copy) = by_region.get(&region) {
            return Ok(copy.clone());
        }
        if space.has_copy(region) {
            Lane::discard(space, region); // it could not be opened
        }
        let lane = Lane::create(space, region).map_err(to_fs)?;
        let copy = Arc::new(Mutex::new(Copy::new(lane)));
        by_region.insert(region, copy.clone());
        Ok(copy)
    }

    /// What the pool has of a region that was served here until now is a copy, whole up to that record.
    ///
    /// # Errors
    /// ENOSPC: there is no room for its lane.
    pub fn take_in(&self, space: &Arc<PoolSpace>, region: RegionId, last: Lsn) -> Result<(), FsError> {
        let mut by_region = self.by_region.lock();
        if by_region.contains_key(&region) {
            return Ok(()); // who serves it now has begun one
        }
        let lane = Lane::of_region(space, region, last).map_err(to_fs)?;
        by_region.insert(region, Arc::new(Mutex::new(Copy::new(lane))));
        Ok(())
    }

    /// Which.
    pub fn regions(&self) -> Vec<RegionId> {
        self.by_region.lock().keys().copied().collect()
    }

    /// Nothing more comes to a copy from here on. False: there is none that is whole.
    pub fn seal(&self, region: RegionId, memory: &MemoryRegions) -> bool {
        let Some(copy) = self.get(region) else { return false };
        let mut copy = copy.lock();
        copy.revoke(memory);
        copy.lane().is_ok_and(|lane| lane.state().1.whole)
    }

    /// Puts in place what has come for a copy; it may be unlocked meanwhile. Gives the number of the last record.
    ///
    /// # Errors
    /// What has come makes no sense; or `Retry`: the redo log has no room for what the region has decided, nor once the other copies have
    /// followed.
    fn follow(&self, region: RegionId, copy: &mut MutexGuard<'_, Copy>) -> Result<Lsn, FsError> {
        let applied = match copy.lane().and_then(Lane::apply) {
            Err(RegionError::Fs(FsError::Retry)) if !planted(Planted::RetiredNotSought) => {
                MutexGuard::unlocked(copy, || self.apply_others(region));
                copy.lane().and_then(Lane::apply)
            }
            applied => applied,
        };
        applied.map_err(to_fs)
    }

    /// All copies but that one follow as far as they can, which takes from the redo log what has been retired since. No copy is locked by
    /// the caller.
    #[cold]
    fn apply_others(&self, region: RegionId) {
        let by_region = self.by_region.lock();
        let others = by_region.iter().filter(|(other, _)| **other != region);
        let others: Vec<Arc<Mutex<Copy>>> = others.map(|(_, copy)| copy.clone()).collect();
        drop(by_region);
        for other in others {
            let _ = other.lock().lane().and_then(Lane::apply); // its primary hears of it in its turn
        }
    }

    /// A copy becomes the region itself: what has come is put in place, and it is a copy no more. Says what the last record was, and under
    /// which term its primary gave locks, if it is known.
    ///
    /// # Errors
    /// There is none, it is not whole, or what has come makes no sense: then it stays what it is.
    pub fn promote(&self, region: RegionId) -> Result<(Lsn, Option<LockTerm>), FsError> {
        let copy = self.get(region).ok_or(FsError::NotFound)?;
        self.follow(region, &mut copy.lock())?;
        let mut by_region = self.by_region.lock();
        let mut promoted = copy.lock();
        let last = promoted.lane().and_then(Lane::promote).map_err(to_fs)?;
        promoted.lane = None;
        by_region.remove(&region);
        tracing::info!(region = region.0, last = last.0, "a copy takes its region's place");
        Ok((last, promoted.locks))
    }

    /// Gives what the pool has of a region back to it, unless somebody is at it, or has attached `since` then, or it `is_strange` no more;
    /// no new copy is begun meanwhile. Has it?
    pub fn give_back(
        &self,
        space: &PoolSpace,
        region: RegionId,
        memory: &MemoryRegions,
        since: Instant,
        is_strange: impl FnOnce() -> bool,
    ) -> bool {
        let mut by_region = self.by_region.lock();
        let is_wanted = |copy: &Copy| copy.attached.is_some_and(|attached| attached >= since);
        let is_in_use = |copy: &Arc<Mutex<Copy>>| Arc::strong_count(copy) > 1 || is_wanted(&copy.lock());
        if by_region.get(&region).is_some_and(is_in_use) || !is_strange() {
            return false;
        }
        if let Some(copy) = by_region.remove(&region) {
            let mut copy = copy.lock();
            copy.revoke(memory);
            copy.lane = None;
        }
        Lane::discard(space, region);
        true
    }

    /// Puts in place what has come for a region.
    #[cfg(feature = "testing")]
    pub fn apply(&self, region: RegionId) -> Result<Lsn, FsError> {
        let copy = self.get(region).ok_or(FsError::NotFound)?;
        copy.lock().lane().and_then(Lane::apply).map_err(to_fs)
    }

    /// Which, how far each has followed, and whether it is whole; for status.
    pub fn list(&self) -> Vec<(RegionId, Lsn, bool)> {
        let by_region = self.by_region.lock();
        let state = |(region, copy): (&RegionId, &Arc<Mutex<Copy>>)| {
            let (_, head) = copy.lock().lane().ok()?.state();
            Some((*region, head.applied, head.whole))
        };
        by_region.iter().filter_map(state).collect()
    }
}

impl Copy {
    fn new(lane: Lane) -> Copy {
        Copy {
            lane: Some(lane),
            key: None,
            locks: None,
            attached: None,
        }
    }

    /// # Errors
    /// It is a copy no more.
    fn lane(&mut self) -> Result<&mut Lane, RegionError> {
        self.lane.as_mut().ok_or(FsError::NotPermitted.into())
    }

    /// Nothing that was posted under the key before takes effect any more.
    fn revoke(&mut self, memory: &MemoryRegions) {
        if let Some(key) = self.key.take()
            && !planted(Planted::LaneKeyKept)
        {
            memory.deregister(key);
        }
    }

    /// Refuses what was asked by who attached before.
    fn must_have_key(&self, key: u64) -> Result<(), FsError> {
        match self.key {
            Some(RemoteKey(ours)) if ours == key => Ok(()),
            _ => Err(FsError::NotPermitted),
        }
    }

    fn give_key(&mut self, memory: &MemoryRegions, pmem: &Arc<Pmem>) -> u64 {
        let access = Access {
            read: true,
            write: true,
            atomic: false,
        };
        let key = memory.register(Memory::Pool(pmem.clone()), 0, pmem.len(), access);
        self.key = Some(key);
        key.0
    }
}

impl RequestContext<'_> {
    /// Refuses all but the primary of a region of which the map gives us a copy.
    fn must_be_mirrored(&self, region: RegionId) -> Result<(), FsError> {
        let (asking, map) = (self.asking_node()?, self.node.map());
        let info = map.region(region).ok_or(FsError::WrongEpoch)?;
        let ours = info.role(self.node.id());
        let is_copy = matches!(ours, Some(ReplicaRole::Mirror | ReplicaRole::Backup));
        match info.primary() == Some(asking) && is_copy && !self.node.serves(region) {
            true => Ok(()),
            false => Err(FsError::NotPermitted),
        }
    }

    fn copy(&self, region: RegionId) -> Result<Arc<Mutex<Copy>>, FsError> {
        self.must_be_mirrored(region)?;
        let copy = self.node.copies.get(region);
        copy.ok_or_else(|| FsError::Invalid(format!("there is no copy of region {} here", region.0)))
    }

    /// See [`polvo_proto::Request::AttachMirror`].
    pub fn attach_mirror(
        &self,
        region: RegionId,
        segment_shift: u32,
        fill_from: Option<Lsn>,
        locks: LockTerm,
    ) -> Result<LanePlace, FsError> {
        self.must_be_mirrored(region)?;
        let node = self.node;
        if node.is_stopping() {
            return Err(node.stopping_error());
        }
        let layout = node.space.layout();
        if layout.segment_shift != segment_shift {
            return Err(FsError::Invalid(format!(
                "the pool of node {} has segments of {} bytes, that of the primary of region {} of {}: make them alike \
                 (polvo format --segment-shift)",
                node.id().0,
                1u64 << layout.segment_shift,
                region.0,
                1u64 << segment_shift.min(63)
            )));
        }
        if fill_from.is_some() && node.holds_back() {
            return Err(FsError::HeldBack); // a client may be storing yet to what it was given when the region was served here
        }
        let copy = node.copies.get_or_create(&node.space, region)?;
        let mut copy = copy.lock();
        copy.revoke(&node.memory);
        if let Some(before) = fill_from {
            copy.lane().map_err(to_fs)?.restart(before);
        }
        let last = node.copies.follow(region, &mut copy)?;
        // others may have attached while other copies followed
        copy.revoke(&node.memory);
        let key = copy.give_key(&node.memory, &node.pmem);
        copy.locks = Some(locks);
        copy.attached = Some(Instant::now());
        let lane = copy.lane().map_err(to_fs)?;
        let (_, head) = lane.state();
        Ok(LanePlace {
            key,
            lane: lane.offset(),
            checksums: match layout.has_checksums() {
                true => (layout.checksums_offset, layout.segments_offset),
                false => (0, 0),
            },
            last,
            position: head.position,
            whole: head.whole,
        })
    }

    /// See [`polvo_proto::Request::MirrorSegments`].
    pub async fn mirror_segments(&self, region: RegionId, segments: &[(u32, u8)]) -> Result<Vec<(u64, bool)>, FsError> {
        let copy = self.copy(region)?;
        let attached = copy.lock().key;
        let take = || {
            let mut copy = copy.lock();
            if copy.key != attached {
                return Err(FsError::NotPermitted); // who asked has given up since, and the copy may be beyond these segments
            }
            copy.lane().and_then(|lane| lane.take_segments(segments)).map_err(to_fs)
        };
        match take() {
            // regions here and elsewhere may have some that hold nothing
            Err(FsError::NoSpace) => {
                Box::pin(self.node.seek_room(self.links, 2 * Timeouts::RELEASE)).await;
                take()
            }
            taken => taken,
        }
    }

    /// See [`polvo_proto::Request::KeepSegments`].
    pub fn keep_segments(
        &self,
        region: RegionId,
        key: u64,
        (first, last): (u32, u32),
        segments: &[(u32, u8)],
    ) -> Result<(), FsError> {
        let copy = self.copy(region)?;
        let mut copy = copy.lock();
        copy.must_have_key(key)?;
        let lane = copy.lane().map_err(to_fs)?;
        lane.keep_only(first..=last, segments).map_err(to_fs)
    }

    /// See [`polvo_proto::Request::PageSums`].
    pub async fn page_sums(
        &self,
        region: RegionId,
        key: u64,
        (segment, first, count): (u32, u32, u32),
        checksums: bool,
    ) -> Result<Vec<u8>, FsError> {
        let (layout, pmem) = (self.node.space.layout(), &self.node.pmem);
        let copy = self.copy(region)?;
        let at = {
            let mut copy = copy.lock();
            copy.must_have_key(key)?;
            let first = u64::from(first) * PAGE as u64;
            let at = RegionOffset((u64::from(segment) << layout.segment_shift).saturating_add(first));
            copy.lane().map_err(to_fs)?.place(at, u64::from(count) * PAGE as u64)
        };
        let at = at
            .filter(|_| count > 0 && (!checksums || layout.has_checksums()))
            .ok_or_else(|| FsError::Invalid(format!("the copy of region {} has no such pages", region.0)))?;
        let pages = Pages {
            at,
            checksums: checksums.then(|| layout.checksum_offset(at)),
            count,
        };
        let sums = pages.sums(pmem, key).await;
        pages.persist(pmem);
        Ok(sums)
    }

    /// See [`polvo_proto::Request::ApplyMirror`].
    pub fn apply_mirror(&self, region: RegionId, whole: bool) -> Result<Lsn, FsError> {
        let copy = self.copy(region)?;
        let mut copy = copy.lock();
        let last = self.node.copies.follow(region, &mut copy)?;
        if whole {
            copy.lane().map_err(to_fs)?.finish();
        }
        Ok(last)
    }
}
