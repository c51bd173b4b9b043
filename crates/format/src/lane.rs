//! A lane: where the primary of a region stores its mirror records ([`crate::MirrorRecord`]) at a node that has a copy, by one-sided
//! writes (Mojim, section 3.2.1, where it is the mirror's log). A lane is one segment.
//!
//! ```text
//! 0     head, written in turn at 0 and at 64: the newer of the two that are whole counts
//! 4096  ring: records one after the other; one that does not fit before the end lies at the beginning
//! ```
//!
//! A head says up to where the records have been applied. The next one lies where the head says, or at the beginning of the ring; it
//! is known by its number and its checksum. Whoever begins a lane anew fills its ring with zeros, so that no older record has that
//! number.

use crate::{FormatError, LINE, Lsn, PAGE, RegionId, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "head of a lane";

/// Bytes of both heads.
pub const LANE_HEADS: usize = 2 * LINE;
/// Where the ring begins.
pub const LANE_RING: u64 = PAGE as u64;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    serial: U64,
    applied: U64,
    position: U32,
    region: U16,
    whole: u8,
    reserved: [u8; 5],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == 32);
const CRC: usize = size_of::<Raw>() - 4;

/// How far a copy has followed its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneHead {
    /// Counts heads.
    pub serial: u64,
    /// Whose records.
    pub region: RegionId,
    /// Number of the last one that was applied.
    pub applied: Lsn,
    /// Where the next one lies in the ring, unless it did not fit there.
    pub position: u32,
    /// The copy is whole: what was there before `applied` has been copied.
    pub whole: bool,
}

impl LaneHead {
    /// Where it is stored in the lane.
    pub fn offset(&self) -> u64 {
        self.serial % 2 * LINE as u64
    }

    /// As it is stored.
    pub fn encode(&self) -> [u8; size_of::<u64>() * 4] {
        let raw = Raw {
            serial: U64::new(self.serial),
            applied: U64::new(self.applied.0),
            position: U32::new(self.position),
            region: U16::new(self.region.0),
            whole: self.whole.into(),
            reserved: [0; 5],
            crc: U32::ZERO,
        };
        let mut bytes: [u8; 32] = zerocopy::transmute!(raw);
        let crc = checksum::crc32c(&bytes[..CRC]);
        bytes[CRC..].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(LaneHead::decode(&bytes), Ok(*self), "a head is read as it was written");
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<LaneHead, FormatError> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need: size_of::<Raw>(),
        })?;
        if checksum::crc32c(&bytes[..CRC]) != raw.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let whole = match raw.whole {
            0 => false,
            1 => true,
            other => return Err(FormatError::invalid(WHAT, format!("whole: {other}"))),
        };
        if !raw.position.get().is_multiple_of(8) {
            return Err(FormatError::invalid(WHAT, format!("position {}", raw.position)));
        }
        Ok(LaneHead {
            serial: raw.serial.get(),
            region: RegionId(raw.region.get()),
            applied: Lsn(raw.applied.get()),
            position: raw.position.get(),
            whole,
        })
    }

    /// The newer one of a lane's two heads.
    ///
    /// # Errors
    /// None is whole.
    pub fn newest(heads: &[u8; LANE_HEADS]) -> Result<LaneHead, FormatError> {
        let (first, second) = heads.split_at(LINE);
        match (LaneHead::decode(first), LaneHead::decode(second)) {
            (Ok(first), Ok(second)) if second.serial > first.serial => Ok(second),
            (Ok(head), _) | (Err(_), Ok(head)) => Ok(head),
            (Err(error), Err(_)) => Err(error),
        }
    }
}

/// Where records go in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Its bytes.
    pub len: u32,
}

impl Ring {
    /// That of a lane in a segment of so many bytes.
    pub fn of_segment(segment: u64) -> Ring {
        let len = u32::try_from(segment - LANE_RING).expect("a segment has at most 1 GiB");
        Ring { len }
    }

    /// The longest record that always finds a place in an empty ring, wherever that begins.
    pub fn record_max(self) -> u32 {
        self.len / 2 - 8
    }

    /// Bytes from `head` to `tail`, with what was left empty at the end.
    pub fn used(self, head: u32, tail: u32) -> u32 {
        match tail >= head {
            true => tail - head,
            false => self.len - head + tail,
        }
    }

    /// Where a record of so many bytes goes behind `tail`, when what lies from `head` on is still needed; `None` while it does not
    /// fit. The tail never comes up to the head: a ring in which they are equal is empty.
    pub fn place(self, head: u32, tail: u32, len: u32) -> Option<u32> {
        debug_assert!(
            head <= self.len && tail <= self.len,
            "{head} and {tail} lie in the ring"
        );
        let fits = |at: u32, end: u32| at.checked_add(len).is_some_and(|after| after <= end).then_some(at);
        match tail >= head {
            true => fits(tail, self.len).or_else(|| fits(0, head.saturating_sub(8))),
            false => fits(tail, head - 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(serial: u64) -> LaneHead {
        LaneHead {
            serial,
            region: RegionId(7),
            applied: Lsn(1000 + serial),
            position: 64,
            whole: serial > 3,
        }
    }

    #[test]
    fn the_newer_whole_head_counts() {
        let mut bytes = [0; LANE_HEADS];
        assert_eq!(LaneHead::newest(&bytes), Err(FormatError::Checksum(WHAT)), "of zeros");
        for serial in 1..6 {
            let head = head(serial);
            let at = head.offset() as usize;
            bytes[at..at + 32].copy_from_slice(&head.encode());
            assert_eq!(LaneHead::newest(&bytes), Ok(head));
        }
        let before = bytes;
        for bit in 0..32 * 8 {
            bytes = before;
            bytes[LINE + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LaneHead::newest(&bytes), Ok(head(4)), "bit {bit} of the newer one");
        }
    }

    #[test]
    fn records_never_overlap_what_is_still_needed() {
        let ring = Ring { len: 1024 };
        let (mut head, mut tail) = (0u32, 0u32);
        let mut there: std::collections::VecDeque<(u32, u32)> = Default::default();
        let mut draw = 1u32;
        for step in 0..20_000 {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = (draw >> 16) % (ring.record_max() / 8) * 8 + 8;
            match ring.place(head, tail, len) {
                Some(at) => {
                    let free = |(from, to): &(u32, u32)| at + len <= *from || *to <= at;
                    assert!(
                        at + len <= ring.len && there.iter().all(free),
                        "step {step}: {at}+{len} in {there:?}"
                    );
                    assert!(tail < head || at >= tail || at + len < head, "step {step}");
                    there.push_back((at, at + len));
                    tail = at + len;
                }
                None => {
                    assert!(
                        !there.is_empty(),
                        "step {step}: an empty ring takes {len} bytes, from {tail} on"
                    );
                    let (_, end) = there.pop_front().unwrap();
                    head = end;
                }
            }
            assert_eq!(there.is_empty(), head == tail, "step {step}");
        }
    }
}
