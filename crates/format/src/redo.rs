//! The redo record: bytes to put in place, all or nothing, here and (through dispatch) in other regions.
//!
//! A record fills one slot of the pool's redo log: a header of one cache line, then the payload. The slot's first word
//! is its state, stored atomically; its upper 56 bits number the records of the slot, and the record's checksum covers
//! that number. So a state word that became durable without the rest of its record never makes the slot's former
//! content valid.

use crate::superblock::REDO_SLOT_SIZE;
use crate::{FormatError, Gpa, LINE, RegionId, TxnId, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const WHAT: &str = "redo record";
const MAGIC: [u8; 4] = *b"REDO";

/// Most bytes of a record, header included.
pub const REDO_RECORD_MAX: usize = REDO_SLOT_SIZE as usize;

/// What a slot holds. The codes differ in four bits, so that a flipped one turns none into another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RedoState {
    /// Nothing.
    Free = 0x00,
    /// A record whose local part is perhaps not (or partly) in place. With a wrong checksum: a record that never came
    /// to be, since nothing is put in place before the whole record is durable.
    Logged = 0x0f,
    /// A record whose local part is in place and whose remote part is perhaps not.
    AppliedToDispatch = 0x33,
}

impl RedoState {
    /// The slot's first word.
    pub fn word(self, number: u64) -> u64 {
        assert!(number >> 56 == 0, "redo record number over 56 bits");
        let word = number << 8 | self as u64;
        debug_assert_eq!(
            RedoState::decode(word),
            Ok((self, number)),
            "a state is read as it was written"
        );
        word
    }

    /// Takes a slot's first word apart: state and record number.
    pub fn decode(word: u64) -> Result<(RedoState, u64), FormatError> {
        use RedoState::*;
        let state = [Free, Logged, AppliedToDispatch]
            .into_iter()
            .find(|s| *s as u64 == word & 0xff);
        let state =
            state.ok_or_else(|| FormatError::invalid("redo log slot", format!("state {:#04x}", word & 0xff)))?;
        Ok((state, word >> 8))
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    /// [`RedoState::word`]
    state: U64,
    txn: U64,
    magic: [u8; 4],
    /// bytes after the header, a multiple of 8
    payload: U32,
    /// local writes
    local: U32,
    /// remote parts
    remote: U32,
    /// among the records of the pool: what is put in place anew is in this order
    order: U64,
    /// whose local writes they are
    region: U16,
    reserved: [u8; 18],
    /// over record number, the header from `txn` to here, and the payload
    crc: U32,
}
const _: () = assert!(size_of::<Header>() == LINE);

/// Precedes each write's bytes, which are padded with zeros to a multiple of 8.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct WriteHead {
    gpa: U64,
    len: U32,
    reserved: U32,
}

/// Precedes the writes and the lock words of a remote part.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct PartHead {
    region: U16,
    /// [`COLLECTED`] or [`PREPARED`]
    kind: U16,
    writes: U32,
    locks: U32,
    reserved: U32,
}

/// The record holds the part.
const COLLECTED: u16 = 0;
/// The participant's own log holds the part.
const PREPARED: u16 = 1;

/// Another region's part of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedoPart<'a> {
    /// What its participant has to write.
    Collected {
        /// Which region.
        region: RegionId,
        /// Bytes to write, in order.
        writes: Vec<(Gpa, &'a [u8])>,
        /// Lock words to swap from the transaction's id to 0 after that; at least one.
        locks: Vec<Gpa>,
    },
    /// The participant has logged it itself (two-phase commit).
    Prepared {
        /// Which region.
        region: RegionId,
    },
}

/// A record as read from the media.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedoRecord<'a> {
    /// Transaction. Its region is the one that logged the record, unless that is a part prepared for another one's.
    pub txn: TxnId,
    /// The region that logged it.
    pub region: RegionId,
    /// Its place among the records of the pool.
    pub order: u64,
    /// Bytes to write in that region.
    pub local: Vec<(Gpa, &'a [u8])>,
    /// Bytes to write elsewhere.
    pub remote: Vec<RedoPart<'a>>,
}

/// Builds the bytes of a record in a buffer that the caller keeps for the next one.
pub struct RedoEncoder<'a> {
    into: &'a mut Vec<u8>,
    number: u64,
    order: u64,
    region: RegionId,
    txn: TxnId,
    local: u32,
    remote: u32,
}

impl<'a> RedoEncoder<'a> {
    /// Begins record `number` of a slot, the one with number `order` of the pool, which a region logs; what is in the buffer goes.
    pub fn new(into: &'a mut Vec<u8>, number: u64, order: u64, region: RegionId, txn: TxnId) -> RedoEncoder<'a> {
        into.clear();
        into.resize(LINE, 0);
        RedoEncoder {
            into,
            number,
            order,
            region,
            txn,
            local: 0,
            remote: 0,
        }
    }

    /// Bytes that a write takes in the record.
    pub fn write_size(bytes: usize) -> usize {
        size_of::<WriteHead>() + bytes.next_multiple_of(8)
    }

    /// Bytes that a collected part takes in the record.
    pub fn collected_size(write_lens: impl IntoIterator<Item = usize>, locks: usize) -> usize {
        size_of::<PartHead>() + write_lens.into_iter().map(Self::write_size).sum::<usize>() + locks * 8
    }

    fn write(&mut self, gpa: Gpa, bytes: &[u8]) {
        let head = WriteHead {
            gpa: U64::new(gpa.0),
            len: U32::new(bytes.len() as u32),
            reserved: U32::ZERO,
        };
        debug_assert!(bytes.len() <= REDO_RECORD_MAX, "a write of {} bytes", bytes.len());
        let start = self.into.len();
        self.into.extend_from_slice(head.as_bytes());
        self.into.extend_from_slice(bytes);
        self.into.resize(self.into.len().next_multiple_of(8), 0);
        debug_assert_eq!(
            self.into.len() - start,
            Self::write_size(bytes.len()),
            "a write is as long as was reckoned"
        );
    }

    /// Adds a local write. All of them come before the first remote part.
    pub fn local(&mut self, gpa: Gpa, bytes: &[u8]) {
        assert!(self.remote == 0, "local writes come first");
        debug_assert_eq!(gpa.region(), self.region, "local writes are the region's own");
        self.write(gpa, bytes);
        self.local += 1;
    }

    /// Bytes that a prepared part takes in the record.
    pub const PREPARED_SIZE: usize = size_of::<PartHead>();

    fn part(&mut self, region: RegionId, kind: u16, writes: usize, locks: usize) {
        let head = PartHead {
            region: U16::new(region.0),
            kind: U16::new(kind),
            writes: U32::new(writes as u32),
            locks: U32::new(locks as u32),
            reserved: U32::ZERO,
        };
        self.into.extend_from_slice(head.as_bytes());
        self.remote += 1;
    }

    /// Adds a part that its participant has logged itself.
    pub fn prepared(&mut self, region: RegionId) {
        self.part(region, PREPARED, 0, 0);
    }

    /// Adds a part that was collected, which holds at least one lock.
    pub fn collected<'b, W>(&mut self, region: RegionId, writes: W, locks: &[Gpa])
    where
        W: ExactSizeIterator<Item = (Gpa, &'b [u8])>,
    {
        assert!(!locks.is_empty(), "a part without locks");
        self.part(region, COLLECTED, writes.len(), locks.len());
        for (gpa, bytes) in writes {
            self.write(gpa, bytes);
        }
        debug_assert!(
            locks.iter().all(|at| at.region() == region),
            "a part lies in its region"
        );
        for lock in locks {
            self.into.extend_from_slice(&lock.0.to_le_bytes());
        }
    }

    /// Ends the record with state [`RedoState::Logged`]: the bytes for the slot. The caller has seen to it (with
    /// [`Self::write_size`], [`Self::collected_size`]) that they fit.
    pub fn finish(self) -> &'a [u8] {
        let payload = self.into.len() - LINE;
        assert!(payload.is_multiple_of(8), "parts of a record are aligned");
        assert!(self.local + self.remote > 0, "a record says something");
        assert!(
            self.into.len() <= REDO_RECORD_MAX,
            "redo record of {} bytes",
            self.into.len()
        );
        let mut header = Header {
            state: U64::new(RedoState::Logged.word(self.number)),
            txn: U64::new(self.txn.0),
            magic: MAGIC,
            payload: U32::new(payload as u32),
            local: U32::new(self.local),
            remote: U32::new(self.remote),
            order: U64::new(self.order),
            region: U16::new(self.region.0),
            reserved: [0; 18],
            crc: U32::ZERO,
        };
        header.crc = U32::new(checksum(&header, self.number, &self.into[LINE..]));
        self.into[..LINE].copy_from_slice(header.as_bytes());
        debug_assert!(
            RedoRecord::decode(self.into).is_ok_and(|read| {
                (read.txn, read.local.len(), read.remote.len()) == (self.txn, self.local as usize, self.remote as usize)
            }),
            "a record is read as it was written"
        );
        self.into
    }
}

fn checksum(header: &Header, number: u64, payload: &[u8]) -> u32 {
    let crc = checksum::crc32c(&number.to_le_bytes());
    let crc = checksum::crc32c_append(crc, &header.as_bytes()[8..LINE - 4]);
    checksum::crc32c_append(crc, payload)
}

impl<'a> RedoRecord<'a> {
    /// Reads the record of a slot that is not free. [`FormatError::Checksum`] for one that is not whole; `Invalid`
    /// where the checksum is right and the content makes no sense.
    pub fn decode(slot: &'a [u8]) -> Result<RedoRecord<'a>, FormatError> {
        let (header, rest) = Header::read_from_prefix(slot).map_err(|_| FormatError::Short {
            structure: WHAT,
            len: slot.len(),
            need: LINE,
        })?;
        let (_, number) = RedoState::decode(header.state.get())?;
        let payload = rest
            .get(..header.payload.get() as usize)
            .ok_or(FormatError::Checksum(WHAT))?;
        if checksum(&header, number, payload) != header.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        if header.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let mut cursor = Cursor { rest: payload };
        if header.order.get() >> 63 != 0 {
            return Err(FormatError::invalid(WHAT, format!("order {}", header.order)));
        }
        let region = RegionId(header.region.get());
        let local = cursor.writes(header.local.get())?;
        if let Some((gpa, _)) = local.iter().find(|(at, _)| at.region() != region) {
            let why = format!("local write to {gpa:?} in a record of region {region}");
            return Err(FormatError::invalid(WHAT, why));
        }
        let mut remote = Vec::new();
        for _ in 0..header.remote.get() {
            remote.push(cursor.part()?);
        }
        if !cursor.rest.is_empty() {
            return Err(FormatError::invalid(
                WHAT,
                format!("{} bytes after the end", cursor.rest.len()),
            ));
        }
        Ok(RedoRecord {
            txn: TxnId(header.txn.get()),
            region,
            order: header.order.get(),
            local,
            remote,
        })
    }
}

/// Every step takes bytes off the payload, so all loops over counts from the media are bounded by its length.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn part(&mut self) -> Result<RedoPart<'a>, FormatError> {
        let head: PartHead = self.take()?;
        let region = RegionId(head.region.get());
        match (head.kind.get(), head.writes.get(), head.locks.get()) {
            (COLLECTED, _, 0) => {
                let why = format!("the part of region {region} holds no lock");
                Err(FormatError::invalid(WHAT, why))
            }
            (COLLECTED, writes, locks) => self.collected(region, writes, locks),
            (PREPARED, 0, 0) => Ok(RedoPart::Prepared { region }),
            (kind, writes, locks) => {
                let why = format!("a part of kind {kind} with {writes} writes and {locks} locks");
                Err(FormatError::invalid(WHAT, why))
            }
        }
    }

    fn collected(&mut self, region: RegionId, writes: u32, locks: u32) -> Result<RedoPart<'a>, FormatError> {
        let writes = self.writes(writes)?;
        let mut held = Vec::new();
        for _ in 0..locks {
            held.push(Gpa(self.take::<U64>()?.get()));
        }
        let mut addresses = writes.iter().map(|(at, _)| at).chain(&held);
        if let Some(gpa) = addresses.find(|at| at.region() != region) {
            let why = format!("address {gpa:?} in the part of region {region}");
            return Err(FormatError::invalid(WHAT, why));
        }
        Ok(RedoPart::Collected {
            region,
            writes,
            locks: held,
        })
    }

    fn take<T: FromBytes>(&mut self) -> Result<T, FormatError> {
        let (value, rest) =
            T::read_from_prefix(self.rest).map_err(|_| FormatError::invalid(WHAT, "ends in the middle of an item"))?;
        self.rest = rest;
        Ok(value)
    }

    fn writes(&mut self, count: u32) -> Result<Vec<(Gpa, &'a [u8])>, FormatError> {
        let mut writes = Vec::new();
        for _ in 0..count {
            let head: WriteHead = self.take()?;
            let len = head.len.get() as usize;
            let (bytes, rest) = self
                .rest
                .split_at_checked(len.next_multiple_of(8))
                .ok_or_else(|| FormatError::invalid(WHAT, "ends in the middle of a write"))?;
            writes.push((Gpa(head.gpa.get()), &bytes[..len]));
            self.rest = rest;
        }
        Ok(writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionOffset;

    fn gpa(region: u16, offset: u64) -> Gpa {
        Gpa::new(RegionId(region), RegionOffset(offset))
    }

    fn sample() -> RedoRecord<'static> {
        RedoRecord {
            txn: TxnId::new(RegionId(1), 99),
            region: RegionId(1),
            order: 1234,
            local: vec![(gpa(1, 256), b"hello"), (gpa(1, 4096), &[7; 64]), (gpa(1, 8), b"")],
            remote: vec![
                RedoPart::Collected {
                    region: RegionId(2),
                    writes: vec![(gpa(2, 512), b"there")],
                    locks: vec![gpa(2, 1024)],
                },
                RedoPart::Prepared { region: RegionId(9) },
            ],
        }
    }

    fn encode(record: &RedoRecord, number: u64) -> Vec<u8> {
        let mut buffer = vec![1; 10];
        let mut encoder = RedoEncoder::new(&mut buffer, number, record.order, record.region, record.txn);
        let mut size = LINE;
        for (gpa, bytes) in &record.local {
            encoder.local(*gpa, bytes);
            size += RedoEncoder::write_size(bytes.len());
        }
        for part in &record.remote {
            match part {
                RedoPart::Collected { region, writes, locks } => {
                    encoder.collected(*region, writes.iter().copied(), locks);
                    size += RedoEncoder::collected_size(writes.iter().map(|w| w.1.len()), locks.len());
                }
                RedoPart::Prepared { region } => {
                    encoder.prepared(*region);
                    size += RedoEncoder::PREPARED_SIZE;
                }
            }
        }
        assert_eq!(encoder.finish().len(), size);
        buffer
    }

    #[test]
    fn comes_back_as_written() {
        let record = sample();
        let bytes = encode(&record, 5);
        assert_eq!(RedoRecord::decode(&bytes), Ok(record));
        assert_eq!(
            RedoState::decode(u64::from_le_bytes(bytes[..8].try_into().unwrap())),
            Ok((RedoState::Logged, 5))
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = encode(&sample(), 5);
        for bit in 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(RedoRecord::decode(&bad).is_err(), "bit {bit}");
        }
        for bit in 0..8 {
            for state in [RedoState::Free, RedoState::Logged, RedoState::AppliedToDispatch] {
                assert!(RedoState::decode(state.word(5) ^ 1 << bit).is_err());
            }
        }
    }

    /// A crash may keep the new state word and lose the rest of the new record.
    #[test]
    fn a_new_state_word_does_not_revive_the_old_record() {
        let mut bytes = encode(&sample(), 5);
        bytes[..8].copy_from_slice(&RedoState::Logged.word(6).to_le_bytes());
        assert_eq!(RedoRecord::decode(&bytes), Err(FormatError::Checksum(WHAT)));
    }

    #[test]
    fn counts_and_lengths_that_lie_are_errors() {
        let record = sample();
        let reseal = |change: &dyn Fn(&mut Header, &mut Vec<u8>)| {
            let mut payload = encode(&record, 5);
            let mut header = Header::read_from_bytes(&payload[..LINE]).unwrap();
            payload.drain(..LINE);
            change(&mut header, &mut payload);
            header.crc = U32::new(checksum(&header, 5, &payload));
            RedoRecord::decode(&[header.as_bytes(), &payload].concat()).map(|_| ())
        };
        assert_eq!(reseal(&|_, _| ()), Ok(()));
        for (i, change) in [
            (|h, _| h.local = U32::new(u32::MAX)) as fn(&mut Header, &mut Vec<u8>),
            |h, _| h.local = U32::new(2),
            |h, _| h.remote = U32::new(u32::MAX),
            |h, _| h.remote = U32::new(1),
            |h, _| h.region = U16::new(2),
            |h, _| h.order = U64::new(1 << 63),
            |_, p| p[8] = 0xff,
            |_, p| p[8..12].fill(0xff),
            |h, p| {
                p.truncate(p.len() - 8);
                h.payload = U32::new(p.len() as u32);
            },
            // the last part: collected without a lock, of a kind that nobody knows, prepared and with a lock
            |_, p| *p.iter_mut().nth_back(13).expect("its kind") = 0,
            |_, p| *p.iter_mut().nth_back(13).expect("its kind") = 2,
            |h, p| {
                *p.iter_mut().nth_back(7).expect("its number of locks") = 1;
                p.extend_from_slice(&gpa(9, 8).0.to_le_bytes());
                h.payload = U32::new(p.len() as u32);
            },
        ]
        .iter()
        .enumerate()
        {
            assert!(
                matches!(reseal(change), Err(FormatError::Invalid { .. })),
                "change {i}: {:?}",
                reseal(change)
            );
        }
        assert!(reseal(&|h, _| h.payload = U32::new(u32::MAX)).is_err());
    }
}
