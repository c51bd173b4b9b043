//! The region header: slot 0 of a region's inode table, written last when the region is made. Behind it lie two words that
//! change while the region lives: the floor, and the limit of its transactions' numbers.

use crate::{FormatError, Generation, RegionId, Tail, checksum};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "region header";
const MAGIC: [u8; 8] = *b"PolvoRgn";
const VERSION: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    region: U16,
    segment_shift: U32,
    reserved: [u8; 44],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == crate::LINE);

/// What a region says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionHeader {
    /// Which region.
    pub region: RegionId,
    /// log2 of the segment size, in which its offsets are counted.
    pub segment_shift: u32,
}

impl RegionHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; crate::LINE] {
        let mut raw = Raw {
            magic: MAGIC,
            version: U16::new(VERSION),
            region: U16::new(self.region.0),
            segment_shift: U32::new(self.segment_shift),
            reserved: [0; 44],
            crc: U32::ZERO,
        };
        raw.crc = U32::new(checksum::crc32c(&raw.as_bytes()[..60]));
        let bytes = zerocopy::transmute!(raw);
        debug_assert_eq!(
            RegionHeader::decode(&bytes),
            Ok(Some(*self)),
            "a header is read as it was written"
        );
        bytes
    }

    /// Reads a header. `None`: its first word, which is stored last, is 0: the region was never finished.
    pub fn decode(bytes: &[u8; crate::LINE]) -> Result<Option<RegionHeader>, FormatError> {
        if bytes[..8] == [0; 8] {
            return Ok(None);
        }
        let raw = Raw::read_from_bytes(bytes).expect("a header fills a line");
        if raw.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if raw.crc.get() != checksum::crc32c(&bytes[..60]) {
            return Err(FormatError::Checksum(WHAT));
        }
        if raw.version.get() != VERSION {
            return Err(FormatError::Version {
                structure: WHAT,
                found: u32::from(raw.version.get()),
                known: u32::from(VERSION),
            });
        }
        Ok(Some(RegionHeader {
            region: RegionId(raw.region.get()),
            segment_shift: raw.segment_shift.get(),
        }))
    }
}

/// Region offset of the floor's word.
pub const REGION_FLOOR: u64 = crate::LINE as u64;

/// What slots that nobody has used begin above. Segments of inodes come back to a region as zeros, and under an index that they
/// may have had before: whoever remembers an inode of that time, or reads a page of its log, must not take a new one for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Floor {
    /// The highest one that a slot of a segment had which went back to the pool.
    pub generation: Generation,
    /// No log of such a slot had this version, or a higher one.
    pub version: u32,
}

impl Floor {
    /// The word: as a tail, so that up to three flipped bits are noticed.
    pub fn encode(self) -> u64 {
        let word = Tail::new(self.version, u64::from(self.generation.0)).0;
        debug_assert_eq!(Floor::decode(word), Ok(self), "a floor is read as it was written");
        word
    }

    /// Reads the word.
    pub fn decode(word: u64) -> Result<Floor, FormatError> {
        let tail = Tail(word);
        match tail.is_sound() {
            true => Ok(Floor {
                generation: Generation(tail.units() as u32),
                version: tail.version(),
            }),
            false => Err(FormatError::Checksum("floor of the region")),
        }
    }

    /// The lowest floor above both.
    pub fn max(self, other: Floor) -> Floor {
        Floor {
            generation: self.generation.max(other.generation),
            version: self.version.max(other.version),
        }
    }
}

/// Region offset of the word that limits the numbers of the region's transactions.
pub const REGION_SEQUENCE: u64 = REGION_FLOOR + 8;

/// Numbers of the region's transactions from here on were never used ([`crate::TxnId`]); at most 2^48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct SequenceLimit(pub u64);

impl SequenceLimit {
    /// The word: 56 bits, and a check by which up to three flipped ones are noticed.
    pub fn encode(self) -> u64 {
        assert!(self.0 <= 1 << 48, "the numbers of a region's transactions are used up");
        let word = self.0 | u64::from(sequence_check(self.0)) << 56;
        debug_assert_eq!(SequenceLimit::decode(word), Ok(self), "it is read as it was written");
        word
    }

    /// Reads the word.
    pub fn decode(word: u64) -> Result<SequenceLimit, FormatError> {
        let limit = word & ((1 << 56) - 1);
        match limit <= 1 << 48 && sequence_check(limit) == (word >> 56) as u8 {
            true => Ok(SequenceLimit(limit)),
            false => Err(FormatError::Checksum("limit of the region's transactions")),
        }
    }
}

fn sequence_check(limit: u64) -> u8 {
    let bytes = limit.to_le_bytes();
    checksum::crc8([0, 1, 2, 3, 4, 5, 6].map(|at| bytes[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_round_trips_and_damage_is_noticed() {
        assert_eq!(Floor::decode(0), Ok(Floor::default()));
        let floor = Floor {
            generation: Generation(u32::MAX),
            version: 77,
        };
        let word = floor.encode();
        assert_eq!(Floor::decode(word), Ok(floor));
        assert!((0..64).all(|bit| Floor::decode(word ^ 1 << bit).is_err()));
    }

    #[test]
    fn a_sequence_limit_round_trips_and_damage_is_noticed() {
        assert_eq!(SequenceLimit::decode(0), Ok(SequenceLimit(0)));
        for limit in [0, 1, 1 << 20, (1 << 48) - 7, 1 << 48].map(SequenceLimit) {
            let word = limit.encode();
            assert_eq!(SequenceLimit::decode(word), Ok(limit));
            for (a, b) in (0..64).flat_map(|a| (0..=a).map(move |b| (a, b))) {
                assert!(
                    SequenceLimit::decode(word ^ (1 << a | 1 << b)).is_err(),
                    "bits {a} and {b}"
                );
            }
        }
    }

    #[test]
    fn a_header_round_trips_and_damage_is_noticed() {
        let header = RegionHeader {
            region: RegionId(9),
            segment_shift: 21,
        };
        let bytes = header.encode();
        assert_eq!(RegionHeader::decode(&bytes), Ok(Some(header)));
        assert_eq!(RegionHeader::decode(&[0; 64]), Ok(None));
        for bit in 0..512 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(RegionHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
