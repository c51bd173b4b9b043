//! The mirror record: what one commit point has changed in a region, as the region's replicas get it (Mojim, section 3.2.1;
//! thesis, section 4.3.3). All or nothing, and in the order of its number ([`Lsn`]).
//!
//! ```text
//! record   lsn 8 | bytes of the record 4 | CRC-32C 4 | region 2 | 0 14 | changes
//! change   place 8 | length 4 | kind 1 | class 1 | 0 2 | bytes, padded with zeros to a multiple of 8
//! ```
//!
//! Small things travel in the record. Of file data and of log pages that were written anew it says only where they lie:
//! they are sent from the primary's pool, ahead of the record, to where nothing leads before the record has been applied.

use crate::{FormatError, Lsn, RegionId, RegionOffset, TxnId, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "mirror record";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    lsn: U64,
    /// of the record, this header included
    len: U32,
    /// over what is before it and what follows it
    crc: U32,
    region: U16,
    reserved: [u8; 14],
}
const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 32);
/// Where the CRC lies.
const CRC: std::ops::Range<usize> = 12..16;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChangeHead {
    /// region offset, or index of a segment
    at: U64,
    len: U32,
    kind: u8,
    class: u8,
    reserved: U16,
}

const BYTES: u8 = 1;
const RUN: u8 = 2;
const CHECKSUMS: u8 = 3;
const SEGMENT: u8 = 4;
const SEGMENT_GONE: u8 = 5;
const DECIDED: u8 = 6;
const RETIRED: u8 = 7;

/// One thing that a record changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// These bytes come here.
    Bytes {
        /// Where, in the region.
        at: RegionOffset,
        /// At least one.
        bytes: &'a [u8],
    },
    /// What the primary has here, which was sent ahead.
    Run {
        /// Where, in the region; it lies in one segment.
        at: RegionOffset,
        /// How many bytes, at least one.
        len: u32,
    },
    /// Checksums of pages of file data that follow each other ([`crate::PageChecksum`]; 8 bytes each, 0 where nothing is
    /// known). They lie outside of the region.
    Checksums {
        /// Where the first page begins, in the region.
        at: RegionOffset,
        /// At least one.
        words: &'a [[u8; 8]],
    },
    /// The region gets a segment, of zeros if it is for inodes or logs.
    Segment {
        /// Its index in the region.
        index: u32,
        /// What it is for, as in [`crate::SegmentOwner`].
        class: u8,
    },
    /// A segment in which nothing is in use goes back to the pool.
    SegmentGone {
        /// Its index in the region.
        index: u32,
    },
    /// The region has decided a transaction with parts elsewhere: who takes its place has to see them there.
    Decided {
        /// A redo record without a local part ([`crate::RedoRecord`]).
        record: &'a [u8],
    },
    /// All parts of a transaction are there, and at the mirrors, too.
    Retired {
        /// Which.
        txn: TxnId,
    },
}

impl Change<'_> {
    /// Appends it to the record that is being made at the end of a buffer.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        let (kind, at, len, class, bytes) = match *self {
            Change::Bytes { at, bytes } => (BYTES, at.0, bytes.len() as u32, 0, bytes),
            Change::Run { at, len } => (RUN, at.0, len, 0, &[][..]),
            Change::Checksums { at, words } => (CHECKSUMS, at.0, words.len() as u32, 0, words.as_flattened()),
            Change::Segment { index, class } => (SEGMENT, index.into(), 0, class, &[][..]),
            Change::SegmentGone { index } => (SEGMENT_GONE, index.into(), 0, 0, &[][..]),
            Change::Decided { record } => (DECIDED, 0, record.len() as u32, 0, record),
            Change::Retired { txn } => (RETIRED, txn.0, 0, 0, &[][..]),
        };
        let head = ChangeHead {
            at: U64::new(at),
            len: U32::new(len),
            kind,
            class,
            reserved: U16::ZERO,
        };
        into.extend_from_slice(head.as_bytes());
        into.extend_from_slice(bytes);
        into.resize(into.len().next_multiple_of(8), 0);
        debug_assert_eq!(
            Changes { rest: &into[start..] }.take(),
            Ok(*self),
            "a change is read as it was written"
        );
    }
}

/// A record as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorRecord<'a> {
    /// Its number among those of the region.
    pub lsn: Lsn,
    /// Whose.
    pub region: RegionId,
    /// decoded once
    changes: &'a [u8],
}

impl<'a> MirrorRecord<'a> {
    /// Begins a record at the end of a buffer; [`Change::encode`] goes on, and [`Self::end`] ends it.
    pub fn begin(into: &mut Vec<u8>) {
        debug_assert!(into.len().is_multiple_of(8), "records are aligned");
        into.extend_from_slice(&[0; HEADER]);
    }

    /// Ends the record that began at `start` and goes to the end of the buffer. It has no checksum yet ([`Self::seal`]).
    pub fn end(into: &mut [u8], start: usize, lsn: Lsn, region: RegionId) {
        let record = &mut into[start..];
        assert!(
            record.len() > HEADER && record.len() <= u32::MAX as usize,
            "a record says something"
        );
        let header = Header {
            lsn: U64::new(lsn.0),
            len: U32::new(record.len() as u32),
            crc: U32::ZERO,
            region: U16::new(region.0),
            reserved: [0; 14],
        };
        record[..HEADER].copy_from_slice(header.as_bytes());
    }

    /// Gives each record of a buffer its checksum.
    pub fn seal(mut records: &mut [u8]) {
        while let Some((header, _)) = Header::read_from_prefix(records)
            .ok()
            .filter(|(header, _)| header.len.get() > 0)
        {
            let (record, rest) = records.split_at_mut(header.len.get() as usize);
            let crc = checksum(record);
            record[CRC].copy_from_slice(&crc.to_le_bytes());
            debug_assert!(
                MirrorRecord::decode(record).is_ok(),
                "a record is read as it was written"
            );
            records = rest;
        }
        debug_assert!(records.is_empty(), "records follow each other");
    }

    /// Bytes of a header.
    pub const HEAD: usize = HEADER;

    /// How long the record is that begins so, if it is one; no record is so long that it is not known from its header.
    pub fn len(bytes: &[u8]) -> Option<usize> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        let len = header.len.get() as usize;
        (len > HEADER && len.is_multiple_of(8)).then_some(len)
    }

    /// The number of the record that begins so, which is one of ours.
    pub fn lsn_of(bytes: &[u8]) -> Option<Lsn> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        Some(Lsn(header.lsn.get()))
    }

    /// Reads the record at the beginning of what is there, and says where the next one begins.
    ///
    /// # Errors
    /// `Short`, `Checksum` for one that is not whole; `Invalid` where the checksum is right and the content makes no sense.
    pub fn decode(bytes: &'a [u8]) -> Result<(MirrorRecord<'a>, usize), FormatError> {
        let (header, len) = Self::frame(bytes)?;
        if checksum(&bytes[..len]) != header.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let record = Self::of(&header, &bytes[HEADER..len]);
        let mut changes = Changes { rest: record.changes };
        while !changes.rest.is_empty() {
            changes.take()?;
        }
        Ok((record, len))
    }

    /// As [`Self::decode`], of what this process has made and sealed: nothing is checked but its length.
    ///
    /// # Errors
    /// `Short`, `Checksum` where it is no whole record.
    pub fn read_own(bytes: &'a [u8]) -> Result<(MirrorRecord<'a>, usize), FormatError> {
        let (header, len) = Self::frame(bytes)?;
        Ok((Self::of(&header, &bytes[HEADER..len]), len))
    }

    fn frame(bytes: &[u8]) -> Result<(Header, usize), FormatError> {
        let short = |need| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need,
        };
        let (header, _) = Header::read_from_prefix(bytes).map_err(|_| short(HEADER))?;
        let len = header.len.get() as usize;
        match len <= HEADER || !len.is_multiple_of(8) {
            true => Err(FormatError::Checksum(WHAT)),
            false if bytes.len() < len => Err(short(len)),
            false => Ok((header, len)),
        }
    }

    fn of(header: &Header, changes: &'a [u8]) -> MirrorRecord<'a> {
        MirrorRecord {
            lsn: Lsn(header.lsn.get()),
            region: RegionId(header.region.get()),
            changes,
        }
    }

    /// What it changes, in order.
    pub fn changes(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let mut changes = Changes { rest: self.changes };
        // to read it was tried when the record was decoded
        std::iter::from_fn(move || changes.take().ok())
    }
}

/// Over a whole record, but for where the checksum itself lies.
fn checksum(record: &[u8]) -> u32 {
    checksum::crc32c_append(checksum::crc32c(&record[..CRC.start]), &record[CRC.end..])
}

/// Every step takes bytes off the record, so that loops over what it says are bounded by its length.
struct Changes<'a> {
    rest: &'a [u8],
}

impl<'a> Changes<'a> {
    fn take(&mut self) -> Result<Change<'a>, FormatError> {
        let (head, rest) = ChangeHead::read_from_prefix(self.rest)
            .map_err(|_| FormatError::invalid(WHAT, "ends in the middle of a change"))?;
        let (at, len) = (RegionOffset(head.at.get()), head.len.get());
        let travels = match head.kind {
            BYTES | DECIDED => len as usize,
            CHECKSUMS => len as usize * 8,
            _ => 0,
        };
        let (bytes, rest) = rest
            .split_at_checked(travels.next_multiple_of(8))
            .ok_or_else(|| FormatError::invalid(WHAT, "ends in the middle of what comes to a place"))?;
        self.rest = rest;
        let index = u32::try_from(at.0);
        match (head.kind, len, index) {
            (BYTES, 1.., _) => Ok(Change::Bytes {
                at,
                bytes: &bytes[..travels],
            }),
            (RUN, 1.., _) => Ok(Change::Run { at, len }),
            (CHECKSUMS, 1.., _) => Ok(Change::Checksums {
                at,
                words: bytes.as_chunks().0,
            }),
            (SEGMENT, 0, Ok(index)) => Ok(Change::Segment {
                index,
                class: head.class,
            }),
            (SEGMENT_GONE, 0, Ok(index)) => Ok(Change::SegmentGone { index }),
            (DECIDED, 1.., Ok(0)) => Ok(Change::Decided {
                record: &bytes[..travels],
            }),
            (RETIRED, 0, _) => Ok(Change::Retired { txn: TxnId(at.0) }),
            (kind, ..) => Err(FormatError::invalid(
                WHAT,
                format!("a change of kind {kind} at {at:?}, length {len}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGES: [Change; 8] = [
        Change::Segment { index: 3, class: 2 },
        Change::Bytes {
            at: RegionOffset(0x1234),
            bytes: b"thirteen byte",
        },
        Change::Run {
            at: RegionOffset(0x10_0000),
            len: 70_000,
        },
        Change::Checksums {
            at: RegionOffset(0x10_0000),
            words: &[[1; 8], [0; 8], [9; 8]],
        },
        Change::Bytes {
            at: RegionOffset(8),
            bytes: &[7; 64],
        },
        Change::SegmentGone { index: u32::MAX },
        Change::Decided {
            record: b"what a redo record says",
        },
        Change::Retired { txn: TxnId(9) },
    ];

    /// Two records.
    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (lsn, changes) in [(Lsn(7), &CHANGES[..]), (Lsn(8), &CHANGES[1..2])] {
            let start = bytes.len();
            MirrorRecord::begin(&mut bytes);
            changes.iter().for_each(|change| change.encode(&mut bytes));
            MirrorRecord::end(&mut bytes, start, lsn, RegionId(5));
        }
        MirrorRecord::seal(&mut bytes);
        bytes
    }

    #[test]
    fn records_come_back_as_written_one_after_the_other() {
        let bytes = sample();
        let (first, next) = MirrorRecord::decode(&bytes).unwrap();
        assert_eq!((first.lsn, first.region), (Lsn(7), RegionId(5)));
        assert!(first.changes().eq(CHANGES));
        let (second, end) = MirrorRecord::decode(&bytes[next..]).unwrap();
        assert!(second.lsn == Lsn(8) && second.changes().eq([CHANGES[1]]));
        assert_eq!(next + end, bytes.len());
    }

    #[test]
    fn every_flipped_bit_and_every_missing_byte_is_noticed() {
        let good = sample();
        let (_, len) = MirrorRecord::decode(&good).unwrap();
        for bit in 0..len * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(MirrorRecord::decode(&bad).is_err(), "bit {bit}");
        }
        for cut in 0..len {
            assert!(MirrorRecord::decode(&good[..cut]).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn lengths_and_kinds_that_lie_are_errors() {
        let reseal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = sample();
            let (_, len) = MirrorRecord::decode(&bytes).unwrap();
            bytes.truncate(len);
            change(&mut bytes);
            let len = bytes.len() as u32;
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            let crc = checksum(&bytes);
            bytes[CRC].copy_from_slice(&crc.to_le_bytes());
            MirrorRecord::decode(&bytes).map(|_| ())
        };
        assert_eq!(reseal(&|_| ()), Ok(()));
        // the first change is a segment, the second one is bytes
        let second = HEADER + size_of::<ChangeHead>();
        for (number, change) in [
            (|b| b[HEADER + 12] = 0) as fn(&mut Vec<u8>),
            |b| b[HEADER + 12] = 8,
            |b| b[HEADER + 7] = 1,
            |b| b[HEADER + 8] = 1,
            |b| b.truncate(b.len() - 8),
            |b| b[HEADER + 16 + 8..][..4].fill(0xff),
            |b| b[HEADER + 16 + 8..][..4].fill(0),
        ]
        .iter()
        .enumerate()
        {
            let result = reseal(&|bytes| {
                assert_eq!(bytes[second + 12], BYTES);
                change(bytes);
            });
            assert!(
                matches!(result, Err(FormatError::Invalid { .. })),
                "change {number}: {result:?}"
            );
        }
    }
}
