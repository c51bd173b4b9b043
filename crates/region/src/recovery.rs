//! Recovery: the DRAM state is rebuilt from the media alone. Redo records were replayed when the pool was opened; what
//! remains is one walk over all inodes and logs. A damaged inode does not stop it: it is set aside (EIO when used) and
//! reported.

use crate::dram_inode::Body;
use crate::load::Names;
use crate::origins::Origins;
use crate::region::Region;
use crate::session_table::Claims;
use crate::store::Store;
use crate::survey::{Slot, Survey, holder};
use crate::{Finding, PoolSpace, RegionError};
use polvo_format::{
    Generation, INODE_SIZE, Ino, InodeHead, LINE, REGION_FLOOR, REGION_SEQUENCE, RegionHeader, RegionId, SessionId,
    TxnId, encode_attributes,
};
use polvo_proto::{FsError, InodeRef, SegmentClass};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Inodes put into the cache by recovery, so that the first requests find something there.
const WARM_INODES: u64 = 1 << 14;

/// Most inodes whose cached attributes were written anew that are named.
const MENDED_MAX: usize = 1000;

/// What recovery found.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// inodes in use
    pub inodes: u64,
    /// bytes read from the media
    pub bytes_read: u64,
    /// inodes without a name, freed
    pub orphans_freed: u64,
    /// transactions (by others) that hold inodes here
    pub held_by: Vec<TxnId>,
    /// damage: these inodes answer EIO, everything else works
    pub damaged: Vec<Finding>,
    /// what was put right from the logs, at most so many that they can be listed: attributes beside the tail, which a
    /// power cut leaves behind it, or a flipped bit has changed
    pub mended: Vec<Finding>,
    /// the highest generation that a slot has had, as far as can be read
    pub highest: Generation,
}

/// What the walk over all inodes has brought.
#[derive(Default)]
struct Found {
    /// slots of inodes without a name that no transaction has locked
    orphans: Vec<u64>,
    /// inodes whose cached attributes are not what the log says
    stale: Vec<(Ino, InodeHead, [u8; LINE])>,
    /// slots of inodes whose logs are mostly dead
    garbage: BTreeSet<u64>,
    /// slots, and what is wrong with them
    damaged: Vec<(u64, String)>,
    /// how many logs there are of each length in pages
    lengths: BTreeMap<usize, usize>,
    /// all slots in use, where somebody may claim them
    claims: Option<Claims>,
}

/// What becomes of inodes without a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orphans {
    /// nobody holds them open after a restart: they go
    Free,
    /// their names may be lost: they stay until that is known
    Keep,
    /// those that had them open may come back for them
    HeldBy(SessionId),
    /// they stay, and nothing else is written either
    Untouched,
}

impl Region {
    /// Rebuilds the DRAM state from the media. `progress(done, total)` counts segments.
    ///
    /// # Errors
    /// `Corrupt` when the region's header is damaged; `Pool` when the region has no (or not all of its) segments here.
    pub fn recover(
        space: &Arc<PoolSpace>,
        id: RegionId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Region, Recovery), RegionError> {
        Region::recover_with(space, id, Orphans::Free, progress)
    }

    /// As [`Self::recover`], but inodes without a name, and those that lose their last one, are held open by a session that nobody has,
    /// until [`Self::end_session`] of it: whoever had them open may open them again before.
    ///
    /// # Errors
    /// As [`Self::recover`].
    pub fn recover_to_claim(
        space: &Arc<PoolSpace>,
        id: RegionId,
        by: SessionId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Region, Recovery), RegionError> {
        Region::recover_with(space, id, Orphans::HeldBy(by), progress)
    }

    /// As [`Self::recover`], but inodes without a name stay: names that lead to them may have been lost.
    pub(crate) fn recover_all(
        space: &Arc<PoolSpace>,
        id: RegionId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Region, Recovery), RegionError> {
        Region::recover_with(space, id, Orphans::Keep, progress)
    }

    /// As [`Self::recover_all`], and nothing is written: for who looks at a copy, which is to stay as it is. Not to be used but to check it.
    pub(crate) fn look(space: &Arc<PoolSpace>, id: RegionId) -> Result<(Region, Recovery), RegionError> {
        Region::recover_with(space, id, Orphans::Untouched, &mut |_, _| ())
    }

    fn recover_with(
        space: &Arc<PoolSpace>,
        id: RegionId,
        orphans: Orphans,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Region, Recovery), RegionError> {
        let mut store = Store::new(space, id)?;
        match store.segments().next() {
            Some((0, _, SegmentClass::Inodes)) => {}
            Some(_) => return Err(RegionError::Pool(format!("region {id} does not begin with inodes"))),
            None => return Err(RegionError::Pool(format!("region {id} has no segment in this pool"))),
        }
        let mut header = [0; LINE];
        store.read(0, &mut header);
        match RegionHeader::decode(&header).map_err(|e| store.corrupt("region header", 0, e))? {
            Some(header) if header.region == id && header.segment_shift == store.segment_shift() => {}
            Some(header) => return Err(store.corrupt("region header", 0, format!("is of region {}", header.region))),
            // the power went while the region was made
            None if orphans != Orphans::Untouched && is_unfinished(&store) => {
                store.zero_segment(0);
                let region = Region::found(store, 0)?;
                let recovery = Recovery {
                    inodes: region.inodes,
                    ..Recovery::default()
                };
                return Ok((region, recovery));
            }
            None => return Err(store.corrupt("region header", 0, "is missing")),
        }
        store.floor = store
            .read_floor()
            .map_err(|e| store.corrupt("region header", REGION_FLOOR, e))?;
        store.txn_limit = store
            .read_sequence()
            .map_err(|e| store.corrupt("region header", REGION_SEQUENCE, e))?;
        store.next_txn = store.txn_limit.0.max(1);
        Region::rebuild(store, orphans, progress)
    }

    fn rebuild(
        store: Store,
        keep: Orphans,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Region, Recovery), RegionError> {
        let mut region = Region::empty(store);
        let mut survey = Survey::new(&region.store, Names::Counted);
        survey.reading.origins = Some(Origins::default());
        let claims = match keep {
            Orphans::HeldBy(session) => Some(Claims::new(session)),
            _ => None,
        };
        let found = region.walk(&mut survey, claims, progress)?;
        region.sessions.claims = found.claims;

        region.store.space = survey.space;
        region.store.origins = survey.reading.origins.take().unwrap_or_default();
        region.store.garbage = found.garbage;
        for (pages, logs) in found.lengths {
            (0..logs).for_each(|_| region.store.log_resized(0, pages));
        }
        region.store.damaged.extend(found.damaged);
        debug_assert!(
            region
                .store
                .damaged
                .keys()
                .all(|slot| region.cache.known(*slot).is_none()),
            "what is damaged is not in DRAM"
        );
        let mended = match keep {
            Orphans::Untouched => Vec::new(),
            _ => region.refresh(found.stale),
        };
        let orphans_freed = region.adopt(found.orphans, keep);
        assert!(
            region.inodes < region.store.space.used(SegmentClass::Inodes),
            "every inode, and the header, has a slot"
        );
        debug_assert!(
            region.dead.iter().all(|slot| !region.locked.contains(*slot)),
            "what a transaction has is not dead yet"
        );
        let recovery = Recovery {
            inodes: region.inodes,
            bytes_read: survey.reading.bytes,
            orphans_freed,
            held_by: region.locked.transactions(),
            damaged: survey.findings,
            mended,
            highest: survey.highest,
        };
        Ok((region, recovery))
    }

    /// Goes over all inodes: counts them, notes who has locked them, and puts the first ones into the cache.
    fn walk(
        &mut self,
        survey: &mut Survey,
        claims: Option<Claims>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Found, RegionError> {
        let mut all = Found {
            claims,
            ..Found::default()
        };
        let Region {
            store,
            cache,
            locked,
            inodes,
            ..
        } = self;
        survey.walk(store, progress, &mut |slot, found| match found {
            Slot::InUse { inode, lock, stale } => {
                *inodes += 1;
                all.claims.iter_mut().for_each(|claims| claims.insert(slot));
                match holder(lock) {
                    Some(txn) => locked.recovered(txn, slot, None),
                    None if inode.attr.nlink == 0 => all.orphans.push(slot),
                    None if stale => {
                        all.stale
                            .push((inode.attr.ino, inode.head(), encode_attributes(&inode.attr)));
                    }
                    None => {}
                }
                *all.lengths.entry(inode.pages.len()).or_default() += 1;
                if inode.is_garbage() {
                    all.garbage.insert(slot);
                }
                let counted = matches!(inode.body, Body::Counted(_));
                if lock == 0 && !counted && *inodes <= WARM_INODES && inode.weight() < 1000 {
                    cache.put(inode);
                }
            }
            Slot::Reserved { lock, pages } => {
                let txn = holder(lock).expect("a reserved slot is locked");
                locked.recovered(txn, slot, Some(pages));
            }
            Slot::Worn => {}
            Slot::Damaged(why) => all.damaged.push((slot, why)),
        })?;
        Ok(all)
    }

    /// Writes attributes anew that are not what the logs say, durably. Names them.
    fn refresh(&mut self, stale: Vec<(Ino, InodeHead, [u8; LINE])>) -> Vec<Finding> {
        let mut mended = Vec::new();
        for (ino, head, attributes) in stale {
            self.store.refresh(ino, &head, &attributes);
            if mended.len() < MENDED_MAX {
                mended.push(Finding {
                    ino: Some(ino),
                    what: "attributes beside the tail were not what the log says".into(),
                });
            }
        }
        self.store.commit_point();
        mended
    }

    /// Inodes without a name. Gives how many were freed.
    fn adopt(&mut self, orphans: Vec<u64>, keep: Orphans) -> u64 {
        let mut freed = 0;
        for slot in orphans {
            self.dead.insert(slot);
            match keep {
                Orphans::Keep | Orphans::Untouched => {}
                Orphans::Free => self.free_if_dead(slot),
                Orphans::HeldBy(session) => self.hold_slot(session, slot),
            }
            freed += u64::from(!self.dead.contains(&slot));
        }
        debug_assert!(keep == Orphans::Free || freed == 0, "what is kept is not freed");
        freed
    }

    fn hold_slot(&mut self, session: SessionId, slot: u64) {
        let head = InodeHead::decode(&self.store.read_slot(slot), self.store.ino(slot));
        let held = head.map_err(|_| FsError::Stale.into()).and_then(|head| {
            let inode = InodeRef {
                ino: self.store.ino(slot),
                generation: head.generation,
            };
            self.open(session, inode)
        });
        if let Err(error) = held {
            tracing::warn!(region = self.store.region.0, slot, %error, "a file without a name is not kept");
        }
    }
}

/// Is there no inode but perhaps the root, and nothing else? (A region that was never finished has no other.)
pub(crate) fn is_unfinished(store: &Store) -> bool {
    let slots = (1u64 << store.segment_shift()) / INODE_SIZE as u64;
    store.segments().count() <= 2 && (2..slots).all(|slot| store.read_slot(slot) == [0; INODE_SIZE])
}
