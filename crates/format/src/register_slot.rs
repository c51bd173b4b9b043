//! What a pool keeps of a value that nodes agree on (the cluster map): the bytes, and a header by which they are known to be whole.
//! They lie in a segment of their own, in two places. Whoever changes them writes both, one after the other, so a power cut leaves
//! what was before in one of them, or what is new; and whichever is damaged later, the other one has it.
//!
//! What the bytes mean, their encoder says; the version of that stands in the header.

use crate::{FormatError, RegionId, checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const WHAT: &str = "register";
const MAGIC: [u8; 8] = *b"PolvoReg";
const VERSION: u32 = 2;

/// Bytes before the value.
pub const REGISTER_HEADER: usize = 64;
/// Bytes from one of the two places to the other, and from it to the end of the smallest segment.
pub const REGISTER_PLACE: usize = 128 << 10;
/// Most bytes of the value.
pub const REGISTER_VALUE_MAX: usize = REGISTER_PLACE - REGISTER_HEADER;
/// To whom the segment with the register belongs, in the segment table: no region has this number.
pub const REGISTER_OWNER: RegionId = RegionId(u16::MAX);
/// Most regions of a cluster: their numbers begin with 0.
pub const REGIONS_MAX: usize = u16::MAX as usize;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    len: U32,
    written: U64,
    reserved: [u8; 36],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == REGISTER_HEADER);

/// A register as it was found in one of its places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterSlot<'a> {
    /// How often it was written, from 1: the greater one of the two counts.
    pub written: u64,
    /// What is kept.
    pub value: &'a [u8],
}

impl<'a> RegisterSlot<'a> {
    /// In which of the two places it lies: 0 or 1.
    pub fn place(&self) -> u64 {
        self.written % 2
    }

    /// Bytes for the media, header and value. The checksum covers `owner`, the identity of the pool, too: what was left at this
    /// place by another pool is no register.
    pub fn encode(&self, owner: &[u8; 16]) -> Vec<u8> {
        assert!(self.written > 0, "it is written for the first time by 1");
        assert!(self.value.len() <= REGISTER_VALUE_MAX, "{} bytes", self.value.len());
        let len = u32::try_from(self.value.len()).expect("a register is shorter than its place");
        let mut raw = Raw {
            magic: MAGIC,
            version: U32::new(VERSION),
            len: U32::new(len),
            written: U64::new(self.written),
            reserved: [0; 36],
            crc: U32::ZERO,
        };
        raw.crc = U32::new(crc(raw.as_bytes(), self.value, owner));
        let bytes = [raw.as_bytes(), self.value].concat();
        debug_assert_eq!(
            RegisterSlot::decode(&bytes, owner),
            Ok(Some(*self)),
            "a register is read as it was written"
        );
        bytes
    }

    /// Reads what lies in a place, which may be longer than the register. `None`: nothing was ever written there.
    ///
    /// # Errors
    /// `Short`, `Magic`, `Checksum`, `Version`; `Invalid` for a register that was never written.
    pub fn decode(bytes: &'a [u8], owner: &[u8; 16]) -> Result<Option<RegisterSlot<'a>>, FormatError> {
        let short = |need| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need,
        };
        let (raw, rest) = Raw::read_from_prefix(bytes).map_err(|_| short(REGISTER_HEADER))?;
        if *raw.as_bytes() == [0; REGISTER_HEADER] {
            return Ok(None);
        }
        if raw.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let len = raw.len.get() as usize;
        let value = rest
            .get(..len)
            .ok_or_else(|| short(REGISTER_HEADER.saturating_add(len)))?;
        if crc(raw.as_bytes(), value, owner) != raw.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        if raw.version.get() != VERSION {
            return Err(FormatError::Version {
                structure: WHAT,
                found: raw.version.get(),
                known: VERSION,
            });
        }
        let written = raw.written.get();
        match written {
            0 => Err(FormatError::invalid(WHAT, "written 0 times")),
            written => Ok(Some(RegisterSlot { written, value })),
        }
    }
}

fn crc(header: &[u8], value: &[u8], owner: &[u8; 16]) -> u32 {
    let crc = checksum::crc32c_append(checksum::crc32c(owner), &header[..REGISTER_HEADER - 4]);
    checksum::crc32c_append(crc, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: [u8; 16] = *b"owner-owner-owne";
    const SAMPLE: RegisterSlot<'_> = RegisterSlot {
        written: 5,
        value: b"what nodes agree on",
    };

    #[test]
    fn comes_back_as_written_for_its_owner_only() {
        let mut bytes = SAMPLE.encode(&OWNER);
        let len = bytes.len();
        bytes.extend([0xee; 100]);
        assert_eq!(RegisterSlot::decode(&bytes, &OWNER), Ok(Some(SAMPLE)));
        assert!(RegisterSlot::decode(&bytes, b"somebody-elses-p").is_err());
        for short in [0, 1, REGISTER_HEADER - 1, REGISTER_HEADER, len - 1] {
            assert!(RegisterSlot::decode(&bytes[..short], &OWNER).is_err(), "{short} bytes");
        }
        let empty = RegisterSlot {
            written: u64::MAX,
            value: b"",
        };
        let bytes = empty.encode(&OWNER);
        assert_eq!(RegisterSlot::decode(&bytes, &OWNER), Ok(Some(empty)));
    }

    #[test]
    fn a_place_that_was_never_written_holds_nothing() {
        assert_eq!(RegisterSlot::decode(&[0; 200], &OWNER), Ok(None));
        assert!(RegisterSlot::decode(&[0xff; 200], &OWNER).is_err());
        // a length of which not all is there
        let mut bytes = SAMPLE.encode(&OWNER);
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(
            RegisterSlot::decode(&bytes, &OWNER),
            Err(FormatError::Short { .. })
        ));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = SAMPLE.encode(&OWNER);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(RegisterSlot::decode(&bad, &OWNER).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_torn_line_is_noticed() {
        let before = RegisterSlot {
            written: 3,
            value: &[0x11; 300],
        };
        let after = RegisterSlot {
            written: 5,
            value: &[0x22; 310],
        };
        let (old, new) = (before.encode(&OWNER), after.encode(&OWNER));
        // magic number, version and length differ in the length
        for torn in (16..new.len()).step_by(8) {
            // bytes up to here are new; the others are what was there
            let mut bytes = old.clone();
            bytes.resize(new.len(), 0);
            bytes[..torn].copy_from_slice(&new[..torn]);
            let found = RegisterSlot::decode(&bytes, &OWNER);
            assert!(found.is_err(), "{torn}: {found:?}");
        }
    }
}
