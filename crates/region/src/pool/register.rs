//! The register that a pool keeps for its node: a few bytes (what the node knows of the cluster map, and what it has promised about
//! it) in a segment that belongs to no region, in two places ([`polvo_format::RegisterSlot`]).

use super::PoolSpace;
use crate::RegionError;
use polvo_format::{FormatError, REGISTER_OWNER, REGISTER_PLACE, REGISTER_VALUE_MAX, RegisterSlot, SEGMENT_SHIFT_MIN};
use polvo_proto::{KeptMap, SegmentClass};

const _: () = assert!(KeptMap::BYTES_MAX <= REGISTER_VALUE_MAX && 2 * REGISTER_PLACE <= 1 << SEGMENT_SHIFT_MIN);

impl PoolSpace {
    /// Sets a segment aside for the register, unless there is one. Durable on return.
    ///
    /// # Errors
    /// ENOSPC when no segment is free.
    pub fn set_register_aside(&self) -> Result<(), RegionError> {
        self.register_segment().map(drop)
    }

    /// What was kept last. `None`: nothing ever was.
    ///
    /// # Errors
    /// [`RegionError::Corrupt`] when neither of its places can be read.
    pub fn register(&self) -> Result<Option<Vec<u8>>, RegionError> {
        let Some(segment) = self.table.register() else {
            return Ok(None);
        };
        Ok(self.newest_register(segment)?.map(|(_, value)| value))
    }

    /// Keeps these bytes in the place of those that were kept before. Durable on return, in both places; a power cut meanwhile leaves
    /// what was before, or these. One caller at a time.
    ///
    /// # Errors
    /// ENOSPC when there is no segment for it; [`RegionError::Corrupt`] when what was kept before cannot be read, and stays.
    pub fn keep_register(&self, value: &[u8]) -> Result<(), RegionError> {
        assert!(value.len() <= REGISTER_VALUE_MAX, "{} bytes", value.len());
        let segment = self.register_segment()?;
        let before = self.newest_register(segment)?.map_or(0, |(written, _)| written);
        // the older place first; the newer one only when that is durable
        for written in [before + 1, before + 2] {
            let slot = RegisterSlot { written, value };
            let bytes = slot.encode(&self.identity.pool);
            let at = register_place(segment, slot.place());
            self.pmem.write(at, &bytes);
            self.pmem.persist(at, bytes.len() as u64);
        }
        debug_assert_eq!(
            self.newest_register(segment).ok(),
            Some(Some((before + 2, value.to_vec()))),
            "what was kept last counts"
        );
        Ok(())
    }

    /// Is there a segment for it?
    pub(crate) fn has_register(&self) -> bool {
        self.table.register().is_some()
    }

    /// Does a segment hold the register of this pool? For who knows of it nothing but its bytes.
    pub(crate) fn holds_register(&self, segment: u64) -> bool {
        matches!(self.newest_register(segment), Ok(Some(_)))
    }

    fn register_segment(&self) -> Result<u64, RegionError> {
        match self.table.register() {
            Some(segment) => Ok(segment),
            None => self.take_segment(REGISTER_OWNER, 0, SegmentClass::Register),
        }
    }

    /// The newer one of what can be read, and how often it was written.
    fn newest_register(&self, segment: u64) -> Result<Option<(u64, Vec<u8>)>, RegionError> {
        let read = |place| {
            let mut bytes = vec![0; REGISTER_PLACE];
            self.pmem.read(register_place(segment, place), &mut bytes);
            match RegisterSlot::decode(&bytes, &self.identity.pool)? {
                Some(slot) if slot.place() != place => {
                    Err(FormatError::invalid("register", "in the other one's place"))
                }
                slot => Ok(slot.map(|slot| (slot.written, slot.value.to_vec()))),
            }
        };
        match (read(0), read(1)) {
            (Ok(one), Ok(other)) => Ok(one.max(other)),
            // torn, or damaged since
            (Ok(Some(whole)), Err(_)) | (Err(_), Ok(Some(whole))) => Ok(Some(whole)),
            // the very first one was torn: the second place is written first
            (Ok(None), Err(_)) => Ok(None),
            (Err(one), Ok(None) | Err(_)) => Err(damaged(segment, &one)),
        }
    }
}

fn register_place(segment: u64, place: u64) -> u64 {
    segment + place * REGISTER_PLACE as u64
}

fn damaged(segment: u64, why: &FormatError) -> RegionError {
    RegionError::Corrupt {
        what: "register",
        at: segment,
        why: format!("neither copy can be read; of the first one: {why}"),
    }
}
