//! What is stored in a region, kept for its replicas: one record a commit point ([`MirrorRecord`]), with a log sequence
//! number (Mojim, section 3.2.1).
//!
//! All stores of a region go through [`Store`](crate::store), and there each one is noted where capturing is on. Invariants:
//!
//! - records that are applied in order to a copy of the region give, after each of them, a region that recovers to what this
//!   one was at that commit point; and the copy is equal in every byte that recovery reads;
//! - what a record says by address alone (a run) is on the media before the commit point, and stays as it is until the pages
//!   are used again.
//!
//! What a coordinator writes here by one-sided operations nobody notes: the region does, when it learns how the transaction
//! has ended ([`Region::reap_slot`](crate::Region)). It has been decided, and that is told before. What is noted of a change that fails goes out with the next record: it
//! lies where nothing leads.

use crate::Region;
use polvo_format::{Change, Lsn, MirrorRecord, RegionId};
use std::sync::Arc;

/// Hears of each record before any store that it is about.
pub type OnRecord = Arc<dyn Fn(Lsn) + Send + Sync>;

/// Stores noted since the records were last taken.
pub(crate) struct Capture {
    region: RegionId,
    /// of the last record
    last: Lsn,
    /// records that have ended, and what has been noted since
    records: Vec<u8>,
    /// how many bytes have ended
    ended: usize,
    /// the same, of all records since the beginning
    recorded: u64,
    on_record: Option<OnRecord>,
}

impl Capture {
    pub fn new(region: RegionId, last: Lsn, on_record: Option<OnRecord>) -> Capture {
        Capture {
            region,
            last,
            records: Vec::new(),
            ended: 0,
            recorded: 0,
            on_record,
        }
    }

    pub fn last(&self) -> Lsn {
        self.last
    }

    pub fn recorded_bytes(&self) -> u64 {
        self.recorded
    }

    /// One more thing for the record that is being made.
    pub fn note(&mut self, change: Change<'_>) {
        if self.records.len() == self.ended {
            MirrorRecord::begin(&mut self.records);
            if let Some(on_record) = &self.on_record {
                on_record(self.last.next());
            }
        }
        change.encode(&mut self.records);
    }

    /// A commit point. Where nothing was noted since the last one there is no record.
    pub fn end_record(&mut self) {
        if self.records.len() > self.ended {
            self.last = self.last.next();
            MirrorRecord::end(&mut self.records, self.ended, self.last, self.region);
            self.recorded += (self.records.len() - self.ended) as u64;
            self.ended = self.records.len();
        }
        debug_assert_eq!(self.records.len(), self.ended, "a record goes to the end");
    }

    /// Takes the records that have ended. `into` is emptied first, and its memory used for those to come.
    fn take(&mut self, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&self.records[self.ended..]);
        self.records.truncate(self.ended);
        std::mem::swap(&mut self.records, into);
        self.ended = 0;
    }
}

impl Region {
    /// This hears of the records from the next capture on. What it is told last may come to nothing: the change has failed.
    pub fn set_on_record(&mut self, on_record: OnRecord) {
        self.store.on_record = Some(on_record);
    }

    /// From here on what changes in the region is kept as records, behind the one with number `last`. Copies are made of what the
    /// pool holds from then on, with what transactions have locked.
    pub fn capture(&mut self, last: Lsn) {
        debug_assert!(!self.store.is_captured(), "one capture a region");
        let capture = Capture::new(self.store.region, last, self.store.on_record.clone());
        self.store.set_capture(Some(capture));
        self.store.space.set_recorded(true);
    }

    /// A copy begins: with the next record it hears of what was decided before and is not seen everywhere, which lies in the pool's redo
    /// log and in no segment.
    pub fn note_decisions(&mut self) {
        for (txn, parts) in self.store.pool.decided_by(self.id()) {
            self.store.note_decision(txn, &parts);
        }
        self.store.end_record();
    }

    /// From here on nothing is kept.
    pub fn end_capture(&mut self) {
        self.store.set_capture(None);
        self.store.space.set_recorded(false);
    }

    /// Number of the last record, where the region is captured.
    #[inline]
    pub fn captured(&self) -> Option<Lsn> {
        self.store.last_record()
    }

    /// Bytes of all records since capturing began; 0 where nothing is captured.
    #[inline]
    pub fn recorded_bytes(&self) -> u64 {
        self.store.recorded_bytes()
    }

    /// Every mirror has the records up to this one: pages that they have freed may be used again.
    pub fn set_mirrored(&mut self, last: Lsn) {
        self.store.space.set_mirrored(last);
    }

    /// Takes the records since the last time, one after the other, without checksums ([`MirrorRecord::seal`]). Gives the number
    /// of the last one; `None` where nothing is captured.
    pub fn take_records(&mut self, into: &mut Vec<u8>) -> Option<Lsn> {
        let capture = self.store.captured()?;
        capture.take(into);
        let last = capture.last;
        self.store.space.records_taken(last);
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use parking_lot::Mutex;
    use polvo_format::{FileKind, RegionOffset};

    #[test]
    fn records_end_at_commit_points_and_are_numbered() {
        let bytes = |at| Change::Bytes {
            at: RegionOffset(at),
            bytes: b"xyz",
        };
        let mut capture = Capture::new(RegionId(3), Lsn(6), None);
        let mut taken = vec![1; 100];
        capture.end_record();
        capture.take(&mut taken);
        assert!(taken.is_empty() && capture.last == Lsn(6), "nothing was noted");

        capture.note(bytes(8));
        capture.note(bytes(16));
        capture.end_record();
        capture.end_record();
        capture.note(bytes(24));
        capture.take(&mut taken);
        MirrorRecord::seal(&mut taken);
        let (record, end) = MirrorRecord::decode(&taken).unwrap();
        assert!(record.changes().eq([bytes(8), bytes(16)]) && end == taken.len());
        assert_eq!((record.lsn, record.region), (Lsn(7), RegionId(3)));

        capture.note(bytes(32));
        capture.end_record();
        capture.take(&mut taken);
        MirrorRecord::seal(&mut taken);
        let (record, _) = MirrorRecord::decode(&taken).unwrap();
        assert!(record.lsn == Lsn(8) && record.changes().eq([bytes(24), bytes(32)]));
    }

    /// Who reads past the primary may see a store as soon as it is made.
    #[test]
    fn a_record_is_told_of_before_anything_is_stored_of_it() {
        let mut region = region(4);
        let (pmem, heard) = (region.store.pool.pmem().clone(), Arc::new(Mutex::new(Vec::new())));
        // the pool's redo log is nobody's to read
        make(&mut region, ROOT, b"first", FileKind::File).expect("create");
        let segments: Vec<u64> = region.segments().map(|(_, at, _)| at).collect();
        let stored = move || {
            let mut bytes = vec![0; 1 << 18];
            let sum = |sum, at: &u64| {
                pmem.read(*at, &mut bytes);
                crc32c::crc32c_append(sum, &bytes)
            };
            segments.iter().fold(0, sum)
        };
        let (hears, seen) = (heard.clone(), stored.clone());
        region.set_on_record(Arc::new(move |record| hears.lock().push((record, seen()))));
        region.capture(Lsn(5));
        for n in 0..20u64 {
            let before = stored();
            make(&mut region, ROOT, format!("name-{n}").as_bytes(), FileKind::File).expect("create");
            assert_ne!(stored(), before);
            let last = region.captured().expect("it is captured");
            let heard = std::mem::take(&mut *heard.lock());
            assert_eq!(heard.first().map(|(_, seen)| *seen), Some(before), "turn {n}");
            assert_eq!(heard.last().map(|(record, _)| *record), Some(last), "turn {n}");
        }
    }
}
