//! A copy of a region in another pool, which follows the region record by record ([`MirrorRecord`]).
//!
//! For each record in this order: [`Replica::prepare`], then its runs are written to their [`Replica::place`]s, then
//! [`Replica::apply`]. To apply a record is not atomic: after a power cut those that were perhaps not applied whole are applied
//! again from the first one on, to the same end.

use crate::planted::{Planted, planted};
use crate::{PoolSpace, RegionError};
use polvo_format::{Change, Gpa, Lsn, MirrorRecord, REGISTER_OWNER, RegionId, RegionOffset, TxnId};
use polvo_proto::SegmentClass;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A region's copy.
pub struct Replica {
    space: Arc<PoolSpace>,
    region: RegionId,
    /// of the last record that was applied
    applied: Lsn,
    /// Transactions of which it is known that a record behind that one retires them.
    retired: BTreeSet<TxnId>,
}

impl Replica {
    /// Of a region whose segments, as they were behind record `applied`, lie in this pool.
    pub fn new(space: &Arc<PoolSpace>, region: RegionId, applied: Lsn) -> Replica {
        Replica {
            space: space.clone(),
            region,
            applied,
            retired: BTreeSet::new(),
        }
    }

    /// Records that have come retire these: they need no slot of the redo log any more when their turn comes.
    pub fn expect_retired(&mut self, retired: impl IntoIterator<Item = TxnId>) {
        self.retired.extend(retired);
    }

    /// Number of the last record that was applied.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// Takes the segments that come with a record.
    ///
    /// # Errors
    /// ENOSPC when the pool has no free segment; `Pool` for a record of something else.
    pub fn prepare(&self, record: &MirrorRecord<'_>) -> Result<(), RegionError> {
        if record.region != self.region {
            return Err(self.refuse(record, "it is another region's"));
        }
        for change in record.changes() {
            let Change::Segment { index, class } = change else {
                continue;
            };
            self.take_segment(index, class).map_err(|error| match error {
                RegionError::Pool(why) => self.refuse(record, why),
                error => error,
            })?;
        }
        Ok(())
    }

    /// Takes a segment, unless it is there since it was taken before; gives where it lies in the pool.
    ///
    /// # Errors
    /// ENOSPC when the pool has no free segment; `Pool` for one of no class, or that is there for something else.
    pub fn take_segment(&self, index: u32, class: u8) -> Result<u64, RegionError> {
        let Some(class) = SegmentClass::from_u8(class).filter(|class| class.is_of_regions()) else {
            return Err(RegionError::Pool(format!("a segment of class {class}")));
        };
        if self.region == REGISTER_OWNER {
            return Err(RegionError::Pool("the register is no region".into()));
        }
        match self.segment(index) {
            None => self.space.take_segment(self.region, index, class),
            Some(there) if there == class => {
                let at = RegionOffset(u64::from(index) << self.space.layout().segment_shift);
                Ok(self.place(at, 1).expect("a segment that is there has a place"))
            }
            Some(there) => Err(RegionError::Pool(format!("segment {index} is for {there:?}"))),
        }
    }

    /// Where bytes of the region lie in this pool; `None` unless all of them are in one segment.
    pub fn place(&self, at: RegionOffset, len: u64) -> Option<u64> {
        let shift = self.space.layout().segment_shift;
        // no address has more bits
        (at.0 >> shift <= u64::from(u32::MAX) && at.0 < 1 << 48)
            .then(|| self.space.locate(Gpa::new(self.region, at), len))
            .flatten()
    }

    /// Puts what a record says in place, durably. The runs that it names are there.
    ///
    /// # Errors
    /// `Pool` for a record that does not follow the last one that was applied, or names what the region does not have. No byte
    /// was changed then; segments and slots of the redo log may have been taken. `Retry` when the redo log has no slot free.
    pub fn apply(&mut self, record: &MirrorRecord<'_>) -> Result<(), RegionError> {
        if record.lsn != self.applied.next() {
            return Err(self.refuse(record, format!("the last one was {}", self.applied.0)));
        }
        self.check(record)?;
        let (pmem, layout) = (self.space.pmem(), self.space.layout());
        let place = |at, len| self.place(at, len).expect("every place was looked up");
        for change in record.changes() {
            match change {
                Change::Bytes { at, bytes } => {
                    let place = place(at, bytes.len() as u64);
                    pmem.write(place, bytes);
                    pmem.flush(place, bytes.len() as u64);
                }
                Change::Checksums { at, words } if layout.has_checksums() => {
                    let first = layout.checksum_offset(place(at, 1));
                    pmem.write(first, words.as_flattened());
                    pmem.flush(first, words.as_flattened().len() as u64);
                }
                _ => {}
            }
        }
        if !planted(Planted::AppliedUnfenced) {
            pmem.fence();
        }
        for change in record.changes() {
            match change {
                Change::SegmentGone { index } if self.segment(index).is_some() => {
                    self.space.give_back_segment(self.region, index);
                }
                Change::Retired { txn } => {
                    self.space.retire_of(txn);
                    self.retired.remove(&txn);
                }
                _ => {}
            }
        }
        self.applied = record.lsn;
        Ok(())
    }

    /// All or nothing: every address is looked up before the first byte is written.
    fn check(&self, record: &MirrorRecord<'_>) -> Result<(), RegionError> {
        self.prepare(record)?;
        for change in record.changes() {
            if let Change::Decided { record: redo } = change {
                // before anything else, since there may be no room; nobody asks about it here as long as this is a copy
                let adopted = self.space.adopt(self.region, redo, |txn| self.retired.contains(&txn));
                adopted.map_err(|error| match error {
                    RegionError::Pool(why) => self.refuse(record, why),
                    error => error,
                })?;
            }
        }
        let page = polvo_format::PAGE as u64;
        for change in record.changes() {
            let is_here = match change {
                Change::Bytes { at, bytes } => self.place(at, bytes.len() as u64).is_some(),
                Change::Run { at, len } => self.place(at, len.into()).is_some(),
                Change::Checksums { at, words } => {
                    at.0.is_multiple_of(page) && self.place(at, words.len() as u64 * page).is_some()
                }
                Change::Segment { .. }
                | Change::SegmentGone { .. }
                | Change::Decided { .. }
                | Change::Retired { .. } => true,
            };
            if !is_here {
                return Err(self.refuse(record, format!("the region has no place for {change:?}")));
            }
        }
        Ok(())
    }

    fn segment(&self, index: u32) -> Option<SegmentClass> {
        self.space.class_of_segment(self.region, index)
    }

    fn refuse(&self, record: &MirrorRecord<'_>, why: impl std::fmt::Display) -> RegionError {
        let (region, lsn, of) = (self.region, record.lsn.0, record.region);
        RegionError::Pool(format!(
            "copy of region {region}: record {lsn} of region {of} is refused: {why}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    /// A record with these changes.
    fn record(lsn: u64, changes: &[Change<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        MirrorRecord::begin(&mut bytes);
        changes.iter().for_each(|change| change.encode(&mut bytes));
        MirrorRecord::end(&mut bytes, 0, Lsn(lsn), RegionId(0));
        MirrorRecord::seal(&mut bytes);
        bytes
    }

    fn apply(replica: &mut Replica, lsn: u64, changes: &[Change<'_>]) -> Result<(), String> {
        let record = record(lsn, changes);
        let (record, _) = MirrorRecord::decode(&record).expect("just made");
        replica.apply(&record).map_err(|error| error.to_string())
    }

    #[test]
    fn records_that_do_not_follow_or_name_what_is_not_there_change_nothing() {
        let region = region(8);
        let (space, pmem) = (region.store.pool.clone(), region.store.pool.pmem().clone());
        let mut replica = Replica::new(&space, RegionId(0), Lsn(4));
        let size = 1u64 << region.store.segment_shift();
        let segments = space.segments_of(RegionId(0)).len() as u64;
        let bytes = |at| Change::Bytes {
            at: RegionOffset(at),
            bytes: &[0xee; 16],
        };
        let refused = |replica: &mut Replica, lsn, changes: &[Change<'_>], why: &str| {
            let image = |pmem: &polvo_pmem::Pmem| pmem.sim().unwrap().image(&mut polvo_pmem::sim::KeepAll);
            let before = image(&pmem);
            let said = apply(replica, lsn, changes).expect_err("it is refused");
            assert!(said.contains(why), "{said}");
            assert!(image(&pmem).fingerprint() == before.fingerprint(), "{said}");
            assert_eq!(replica.applied(), Lsn(4));
        };
        refused(&mut replica, 4, &[bytes(512)], "the last one was 4");
        refused(&mut replica, 6, &[bytes(512)], "the last one was 4");
        refused(&mut replica, 5, &[bytes(512), bytes(segments * size)], "no place");
        refused(&mut replica, 5, &[bytes(512), bytes(size - 8)], "no place");
        refused(&mut replica, 5, &[bytes(512), bytes(u64::MAX)], "no place");
        let at = RegionOffset(100);
        refused(
            &mut replica,
            5,
            &[Change::Checksums { at, words: &[[1; 8]] }],
            "no place",
        );
        let unknown = Change::Segment { index: 90, class: 9 };
        refused(&mut replica, 5, &[unknown], "class 9");
        let other = Change::Segment { index: 0, class: 3 };
        refused(&mut replica, 5, &[other], "segment 0 is for Inodes");
        assert_eq!(apply(&mut replica, 5, &[bytes(512)]), Ok(()));
        let mut found = [0; 16];
        pmem.read(replica.place(RegionOffset(512), 16).unwrap(), &mut found);
        assert_eq!(found, [0xee; 16]);
    }

    #[test]
    fn what_was_applied_in_part_is_applied_again_to_the_same_end() {
        let region = region(8);
        let space = region.store.pool.clone();
        let index = space.segments_of(RegionId(0)).len() as u32;
        let at = RegionOffset(u64::from(index) << region.store.segment_shift());
        let comes = [
            Change::Segment { index, class: 2 },
            Change::Bytes { at, bytes: &[3; 64] },
        ];
        let goes = [Change::SegmentGone { index }];
        let free = space.usage().free_segments;
        for _ in 0..2 {
            let mut replica = Replica::new(&space, RegionId(0), Lsn(0));
            assert_eq!(apply(&mut replica, 1, &comes), Ok(()));
            assert_eq!(space.usage().free_segments, free - 1);
            let mut replica = Replica::new(&space, RegionId(0), Lsn(0));
            assert_eq!(apply(&mut replica, 1, &comes), Ok(()));
            assert_eq!(apply(&mut replica, 2, &goes), Ok(()));
            let mut replica = Replica::new(&space, RegionId(0), Lsn(1));
            assert_eq!(apply(&mut replica, 2, &goes), Ok(()));
            assert_eq!(space.usage().free_segments, free);
        }
    }
}
