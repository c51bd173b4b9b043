//! An entry of the segment table: one 8-byte word, so that one atomic store gives a segment to a region or takes it
//! back.
//!
//! Bits 0..28 index of the segment in its region, 28..32 class, 32..48 region, 48..64 a CRC-16 over the entry's place
//! in the table and the other 48 bits. Class 0 is "free" (a free entry carries a checksum too, so that a table
//! overwritten with zeros is damage and not free space). Up to three flipped bits are always noticed.

use crate::{FormatError, RegionId, SegmentIndex};

const WHAT: &str = "segment table entry";

/// Bits of the index in the region.
const INDEX_BITS: u32 = 28;

/// Most segments of a region.
pub const REGION_SEGMENTS_MAX: u32 = 1 << INDEX_BITS;

/// Class of a segment that is the lane of a region of which the pool has a copy ([`crate::LaneHead`]). Its index is 0, and it is none of
/// the region's own segments.
pub const LANE_CLASS: u8 = 4;

/// Owner of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOwner {
    /// Region.
    pub region: RegionId,
    /// Index in the region: the segment's first byte is region offset `index * segment size`.
    pub index: u32,
    /// What it holds, `1..=15` (the values are those of `polvo_proto::SegmentClass`, and [`LANE_CLASS`]).
    pub class: u8,
}

/// What the table says about one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentEntry {
    /// Nobody's.
    Free,
    /// A region's.
    Owned(SegmentOwner),
}

impl SegmentEntry {
    /// The word for the table's entry number `at`.
    pub fn encode(self, at: SegmentIndex) -> u64 {
        let low = match self {
            SegmentEntry::Free => 0,
            SegmentEntry::Owned(SegmentOwner { region, index, class }) => {
                assert!(
                    index < REGION_SEGMENTS_MAX && (1..16).contains(&class),
                    "segment entry out of range"
                );
                u64::from(region.0) << 32 | u64::from(class) << INDEX_BITS | u64::from(index)
            }
        };
        let word = low | u64::from(check(at, low)) << 48;
        debug_assert_eq!(
            SegmentEntry::decode(word, at),
            Ok(self),
            "an entry is read as it was written"
        );
        word
    }

    /// Reads the word of entry number `at`.
    pub fn decode(word: u64, at: SegmentIndex) -> Result<SegmentEntry, FormatError> {
        let low = word & ((1 << 48) - 1);
        if check(at, low) != (word >> 48) as u16 {
            return Err(FormatError::Checksum(WHAT));
        }
        if low == 0 {
            return Ok(SegmentEntry::Free);
        }
        let class = (low >> INDEX_BITS & 0xf) as u8;
        if class == 0 {
            return Err(FormatError::invalid(WHAT, "owned without a class"));
        }
        let index = low as u32 & (REGION_SEGMENTS_MAX - 1);
        Ok(SegmentEntry::Owned(SegmentOwner {
            region: RegionId((low >> 32) as u16),
            index,
            class,
        }))
    }
}

/// CRC-16/CCITT over the place (32 bits) and the entry's lower 48 bits.
fn check(at: SegmentIndex, low: u64) -> u16 {
    if cfg!(fuzzing) {
        return 0; // as other checksums are then
    }
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = (byte as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    let step = |crc: u16, byte: &u8| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)];
    let crc = at.0.to_le_bytes().iter().fold(0xffff, step);
    low.to_le_bytes()[..6].iter().fold(crc, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNED: SegmentEntry = SegmentEntry::Owned(SegmentOwner {
        region: RegionId(0x1234),
        index: 77,
        class: 3,
    });

    #[test]
    fn comes_back_as_written() {
        let edge = SegmentOwner {
            region: RegionId(u16::MAX),
            index: REGION_SEGMENTS_MAX - 1,
            class: 15,
        };
        for entry in [SegmentEntry::Free, OWNED, SegmentEntry::Owned(edge)] {
            for at in [0, 1, 65535].map(SegmentIndex) {
                let word = entry.encode(at);
                assert_eq!(SegmentEntry::decode(word, at), Ok(entry));
            }
        }
    }

    #[test]
    fn up_to_three_flipped_bits_are_noticed() {
        for entry in [SegmentEntry::Free, OWNED] {
            let word = entry.encode(SegmentIndex(5));
            for a in 0..64 {
                for b in 0..=a {
                    for c in 0..=b {
                        // the three may coincide, which gives the flips of one and of two bits too
                        let bad = word ^ (1 << a | 1 << b | 1 << c);
                        assert!(SegmentEntry::decode(bad, SegmentIndex(5)).is_err(), "bits {a} {b} {c}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_entry_is_valid_in_its_own_place_only() {
        let word = OWNED.encode(SegmentIndex(5));
        for at in (0..65536).filter(|&at| at != 5) {
            assert!(SegmentEntry::decode(word, SegmentIndex(at)).is_err(), "at {at}");
        }
    }

    #[test]
    fn zeros_and_ones_are_damage() {
        let free_zeros = (0..65536)
            .filter(|&at| SegmentEntry::decode(0, SegmentIndex(at)).is_ok())
            .count();
        assert!(free_zeros <= 1, "CRC-16 maps one place at most to zero");
        assert!(SegmentEntry::decode(u64::MAX, SegmentIndex(0)).is_err());
    }
}
