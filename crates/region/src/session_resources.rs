//! What sessions hold in a region: inodes open, pages to write to. In DRAM only; after a restart sessions attach again
//! and ask again.

use crate::planted::{Planted, planted};
use crate::txn_locks::Reserved;
use crate::{Region, RegionError};
use polvo_format::{PAGE, SessionId};
use polvo_proto::{FsError, InodeRef, MapClaim, PageRun, SegmentClass};

const PAGE_BYTES: u64 = PAGE as u64;
/// Most inodes that one session holds open in a region.
const OPEN_MAX: usize = 1 << 20;
/// Most pages delegated at once: 256 MiB.
const DELEGATE_MAX: u32 = 1 << 16;
/// Inodes that nobody has claimed: so many go at once.
const UNCLAIMED_MAX: usize = 4096;
/// Pages that a session gets if it asks for so many, however short space is.
const FAIR_MIN: u32 = 16;

impl Region {
    /// Holds an inode open for a session (it outlives its last name). An inode that a transaction is making can be
    /// held already.
    ///
    /// # Errors
    /// EBUSY when the session holds too many.
    pub fn open(&mut self, session: SessionId, inode: InodeRef) -> Result<(), RegionError> {
        let slot = match self.locked.reserved(inode) {
            Reserved::ByTransaction => inode.ino.slot(),
            Reserved::No => {
                self.inode(inode)?;
                inode.ino.slot()
            }
        };
        let held = self.sessions.sessions.entry(session).or_default();
        if held.open.len() >= OPEN_MAX && !held.open.contains_key(&slot) {
            return Err(FsError::Busy.into());
        }
        if held.open.insert(slot, inode.generation).is_none() {
            *self.sessions.holders.entry(slot).or_default() += 1;
        }
        self.sessions.check_slot(slot);
        debug_assert!(
            self.sessions.is_held(slot) || planted(Planted::HoldsDroppedForAll),
            "slot {slot} is held"
        );
        Ok(())
    }

    /// As [`Region::open`], and notes that the session writes to the inode. `number` grows with each call of a session.
    /// Returns whether the session has the right to map the file shared and writable.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn open_to_write(
        &mut self,
        session: SessionId,
        inode: InodeRef,
        claim: MapClaim,
        number: u64,
    ) -> Result<bool, RegionError> {
        self.open(session, inode)?;
        let writers = self.sessions.writers.entry(inode.ino.slot()).or_default();
        Ok(writers.note(session, claim, number))
    }

    /// Opens an inode that was made just now, for the session that wanted it: it writes to it, and may map it.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn open_made(&mut self, session: SessionId, inode: InodeRef) -> Result<(), RegionError> {
        self.open_to_write(session, inode, MapClaim::IfAlone, 0).map(drop)
    }

    /// The session writes to the inode no longer, unless `open_to_write` was called with a greater number since.
    pub fn end_writing(&mut self, session: SessionId, inode: InodeRef, number: u64) {
        let slot = inode.ino.slot();
        let held = self.sessions.sessions.get(&session);
        let generation = held.and_then(|held| held.open.get(&slot));
        if inode.ino.region() == self.store.region && generation == Some(&inode.generation) {
            self.sessions.end_writing(session, slot, number);
        }
    }

    /// Lets go; frees the inode if it is dead and nobody else holds it.
    pub fn release(&mut self, session: SessionId, inode: InodeRef) {
        let Some(held) = self.sessions.sessions.get_mut(&session) else {
            return;
        };
        let slot = inode.ino.slot();
        if inode.ino.region() != self.store.region || held.open.get(&slot) != Some(&inode.generation) {
            return;
        }
        held.open.remove(&slot);
        debug_assert!(
            self.sessions.is_held(slot) || planted(Planted::HoldsDroppedForAll),
            "slot {slot} was held"
        );
        self.let_go(session, slot);
    }

    fn let_go(&mut self, session: SessionId, slot: u64) {
        self.sessions.drop_hold(session, slot);
        self.free_if_dead(slot);
    }

    /// Frees an inode that is dead, not held open, and not in the hands of a transaction. What fails now (no redo log
    /// slot is free) is tried again by garbage collection.
    pub(crate) fn free_if_dead(&mut self, slot: u64) {
        let free = self.dead.contains(&slot) && !self.sessions.is_held(slot) && !self.locked.contains(slot);
        if free && let Err(e) = self.free_inode(slot) {
            tracing::debug!(region = self.store.region.0, slot, error = %e, "freeing an inode is put off");
        }
    }

    /// Dead inodes that this session holds open.
    pub fn dead_held(&self, session: SessionId) -> Vec<InodeRef> {
        let Some(held) = self.sessions.sessions.get(&session) else {
            return Vec::new();
        };
        let dead = self.dead.iter().filter_map(|slot| Some((*slot, *held.open.get(slot)?)));
        dead.map(|(slot, generation)| InodeRef {
            ino: self.store.ino(slot),
            generation,
        })
        .collect()
    }

    /// How many inodes a session holds open here, and how many pages are delegated to it.
    pub fn held_by_session(&self, session: SessionId) -> (u64, u64) {
        self.sessions
            .sessions
            .get(&session)
            .map_or((0, 0), |s| (s.open.len() as u64, s.delegated.runs.values().sum()))
    }

    /// Hands out space; fewer pages than asked when short, ENOSPC when none.
    pub fn delegate(&mut self, session: SessionId, pages: u32) -> Result<Vec<PageRun>, RegionError> {
        // what is left is for others too
        let fair = u32::try_from(self.store.free_data_pages() / 4)
            .unwrap_or(u32::MAX)
            .max(FAIR_MIN);
        let segments = self.store.segments.len();
        let mut left = pages.min(DELEGATE_MAX).min(fair);
        let mut given = Vec::new();
        while left > 0 {
            // many small pieces cost the client more than they are worth, but some space is better than none
            if given.len() >= 64 {
                break;
            }
            let run = match self.store.take_data(left) {
                Ok(run) => run,
                Err(_) if !given.is_empty() => break,
                Err(e) => return Err(e),
            };
            let offset = self.store.space.offset(run);
            assert!(
                (1..=left).contains(&run.len),
                "{} pages where {left} are to come",
                run.len
            );
            debug_assert!(
                self.sessions
                    .sessions
                    .values()
                    .all(|other| !other.delegated.overlaps(offset / PAGE_BYTES, u64::from(run.len)))
                    || planted(Planted::CommittedPagesReturned),
                "{run:?} is nobody's yet"
            );
            let delegated = &mut self.sessions.sessions.entry(session).or_default().delegated;
            delegated.add(offset / PAGE_BYTES, u64::from(run.len));
            given.push(PageRun {
                gpa: self.store.gpa(offset),
                pages: run.len,
            });
            left = left.checked_sub(run.len).expect("no more is taken than asked for");
        }
        assert!(
            !given.is_empty() || pages == 0,
            "some space is delegated, or it is an error"
        );
        if self.store.segments.len() > segments {
            self.store.end_record(); // copies have the segment before data come to it
        }
        Ok(given)
    }

    /// Takes unused delegated space back (what is not this session's is ignored).
    pub fn return_space(&mut self, session: SessionId, runs: &[PageRun]) {
        let Some(held) = self.sessions.sessions.get_mut(&session) else {
            return;
        };
        for run in runs {
            let offset = run.gpa.offset().0;
            let len = u64::from(run.pages) * PAGE_BYTES;
            let ours = run.gpa.region() == self.store.region
                && offset.is_multiple_of(PAGE_BYTES)
                && self.store.is_within(offset, len, SegmentClass::Data);
            if ours && run.pages > 0 && held.delegated.remove(offset / PAGE_BYTES, u64::from(run.pages)) {
                let run = self.store.space.page_run(offset, u64::from(run.pages));
                debug_assert!(self.store.space.is_in_use(offset, len), "what is delegated is in use");
                self.store.space.give(run);
            }
        }
    }

    /// The session is gone: everything it held open and every page delegated to it comes back (pages via quarantine:
    /// it may still be writing).
    pub fn end_session(&mut self, session: SessionId) {
        if self.sessions.claims.take_if(|claims| claims.by == session).is_some() {
            // the rest goes with garbage collection
            let dead: Vec<u64> = self.dead.iter().copied().take(UNCLAIMED_MAX).collect();
            dead.into_iter().for_each(|slot| self.free_if_dead(slot));
        }
        let Some(held) = self.sessions.sessions.remove(&session) else {
            return;
        };
        for (first, pages) in held.delegated.runs {
            // neighbouring runs may have become one across a segment's end
            let mut at = first;
            while at < first + pages {
                let in_segment = (1u64 << self.store.segment_shift()) / PAGE_BYTES;
                let n = (in_segment - at % in_segment).min(first + pages - at);
                assert!(n > 0, "a run of no pages");
                let run = self.store.space.page_run(at * PAGE_BYTES, n);
                self.store.space.quarantine(run, true);
                at += n;
            }
        }
        for slot in held.open.into_keys() {
            self.let_go(session, slot);
        }
    }

    /// Will pages of data be free as soon as mirrors know that they are?
    pub fn frees_when_mirrored(&self) -> bool {
        self.store.space.waits_for_mirrors(SegmentClass::Data)
    }

    /// Are inodes without a name kept for those only who may have had them open when another node served the region?
    pub fn keeps_for_claims(&self) -> bool {
        self.dead.iter().any(|slot| self.sessions.is_only_claimed(*slot))
    }

    /// Recovered while processes may still have the pool mapped that had space of an earlier incarnation: the data pages that
    /// are free now are not given out until [`Region::give_out_held_back`]. New data goes to fresh segments meanwhile.
    pub fn hold_back_free_data(&mut self) {
        self.store.space.hold_back_free_data();
    }

    /// Nobody stores to what an earlier incarnation had given out any more.
    pub fn give_out_held_back(&mut self) {
        self.store.space.give_out_held_back();
    }

    /// Quarantine: what is freed from now on carries `tick`; what was freed at or before `safe` is free again.
    pub fn set_tick(&mut self, tick: u64, safe: u64) {
        self.store.space.set_tick(tick, safe);
    }
}
