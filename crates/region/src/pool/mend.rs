//! Damage in a pool's own zones put right: superblock, segment table, redo log. Offline only.

use super::open::{Found, find_superblock};
use super::redo_log::RedoLog;
use super::sequence::write_superblock;
use super::{PoolSpace, segment_table};
use crate::RegionError;
use crate::flipped_bit::{flip_back, flipped_bit};
use polvo_format::{LINE, REDO_RECORD_MAX, RedoRecord, RedoState, SUPERBLOCK_SIZE, SegmentEntry, SegmentIndex};
use polvo_pmem::Pmem;

impl PoolSpace {
    /// Writes a damaged superblock anew from the other copy; says so when there was one.
    ///
    /// # Errors
    /// [`RegionError::Pool`] when neither copy can be used.
    pub(crate) fn mend_superblock(pmem: &Pmem) -> Result<Option<String>, RegionError> {
        let Found { superblock, damaged } = find_superblock(pmem)?;
        Ok(damaged.map(|(copy, why)| {
            write_superblock(pmem, &superblock);
            let copy = copy / SUPERBLOCK_SIZE as u64;
            format!("superblock: copy {copy} ({why}) written anew from the other one")
        }))
    }

    /// Segments whose table entry is damaged.
    pub(crate) fn damaged_segments(&self) -> Vec<SegmentIndex> {
        self.table.damaged()
    }

    /// The table entry that differs from the damaged one of a segment by one bit, if it makes sense here.
    pub(crate) fn segment_entry_before_flip(&self, at: SegmentIndex) -> Option<SegmentEntry> {
        let word = self.pmem.read_u64(self.layout.entry_offset(at));
        let entry = |bytes: &[u8]| {
            let word = u64::from_le_bytes(bytes.try_into().expect("a word is 8 bytes"));
            SegmentEntry::decode(word, at).ok()
        };
        let mut bytes = word.to_le_bytes();
        let bit = flipped_bit(&mut bytes, 0..64, |bytes| entry(bytes).is_some())?;
        bytes[bit / 8] ^= 1 << (bit % 8);
        entry(&bytes).filter(|entry| match entry {
            SegmentEntry::Free => true,
            SegmentEntry::Owned(owner) => self.table.could_be(*owner),
        })
    }

    /// Stores a table entry, durably. What this pool knows of its segments stays as it is: open it anew.
    pub(crate) fn store_segment_entry(&self, at: SegmentIndex, entry: SegmentEntry) {
        segment_table::store(&self.pmem, &self.layout, at, entry);
    }

    /// Flips bits of the redo log back that alone are wrong in their slot; says what was done. Open the pool anew then.
    pub(crate) fn mend_redo_log(&self) -> Vec<String> {
        let mut done = Vec::new();
        let mut bytes = vec![0; REDO_RECORD_MAX];
        for slot in self.redo.closed() {
            let at = self.layout.slot_offset(slot);
            self.pmem.read(at, &mut bytes);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("a word is 8 bytes"));
            let valid = |bytes: &[u8]| match RedoState::decode(word(bytes)) {
                Ok((RedoState::Free, _)) => true,
                Ok(_) => RedoRecord::decode(bytes).is_ok(),
                Err(_) => false,
            };
            // a wrong state is wrong in its byte; of a right one the record is to be looked at
            let looked_at = match RedoState::decode(word(&bytes)) {
                Err(_) => 1,
                Ok(_) => {
                    let payload = u32::from_le_bytes(bytes[20..24].try_into().expect("a word is 4 bytes")) as usize;
                    LINE + payload.min(REDO_RECORD_MAX - LINE)
                }
            };
            let found = flipped_bit(&mut bytes, 0..looked_at * 8, valid);
            if let Some(bit) = found {
                flip_back(&self.pmem, at, bit);
                done.push(format!("redo log: slot {slot}: a flipped bit put right"));
            }
        }
        done
    }

    /// Clears the slots of the redo log whose records cannot be used; says which. Open the pool anew then.
    pub(crate) fn clear_redo_log(&self) -> Vec<String> {
        let clear = |slot: u32| {
            let at = self.layout.slot_offset(slot);
            // nothing of the record is ever taken for one again
            self.pmem.write(at + 8, &[0; LINE - 8]);
            self.pmem.persist(at + 8, LINE as u64 - 8);
            RedoLog::clear(&self.pmem, &self.layout, slot);
            format!(
                "redo log: slot {slot} cleared; its record is damaged, and what it had still to change elsewhere is lost"
            )
        };
        self.redo.closed().into_iter().map(clear).collect()
    }
}
