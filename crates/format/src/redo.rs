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
        number << 8 | self as u64
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
    reserved: [u8; 28],
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
    reserved: U16,
    writes: U32,
    locks: U32,
    reserved2: U32,
}

/// Another region's part of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedoPart<'a> {
    /// Which region.
    pub region: RegionId,
    /// Bytes to write, in order.
    pub writes: Vec<(Gpa, &'a [u8])>,
    /// Lock words to swap from the transaction's id to 0 after that.
    pub locks: Vec<Gpa>,
}

/// A record as read from the media.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedoRecord<'a> {
    /// Transaction.
    pub txn: TxnId,
    /// Bytes to write in this pool.
    pub local: Vec<(Gpa, &'a [u8])>,
    /// Bytes to write elsewhere.
    pub remote: Vec<RedoPart<'a>>,
}

/// Builds the bytes of a record in a buffer that the caller keeps for the next one.
pub struct RedoEncoder<'a> {
    into: &'a mut Vec<u8>,
    number: u64,
    txn: TxnId,
    local: u32,
    remote: u32,
}

impl<'a> RedoEncoder<'a> {
    /// Begins record `number` of a slot; what is in the buffer goes.
    pub fn new(into: &'a mut Vec<u8>, number: u64, txn: TxnId) -> RedoEncoder<'a> {
        into.clear();
        into.resize(LINE, 0);
        RedoEncoder {
            into,
            number,
            txn,
            local: 0,
            remote: 0,
        }
    }

    /// Bytes that a write takes in the record.
    pub fn write_size(bytes: usize) -> usize {
        size_of::<WriteHead>() + bytes.next_multiple_of(8)
    }

    /// Bytes that a remote part takes in the record.
    pub fn part_size(write_lens: impl IntoIterator<Item = usize>, locks: usize) -> usize {
        size_of::<PartHead>() + write_lens.into_iter().map(Self::write_size).sum::<usize>() + locks * 8
    }

    fn write(&mut self, gpa: Gpa, bytes: &[u8]) {
        let head = WriteHead {
            gpa: U64::new(gpa.0),
            len: U32::new(bytes.len() as u32),
            reserved: U32::ZERO,
        };
        self.into.extend_from_slice(head.as_bytes());
        self.into.extend_from_slice(bytes);
        self.into.resize(self.into.len().next_multiple_of(8), 0);
    }

    /// Adds a local write. All of them come before the first remote part.
    pub fn local(&mut self, gpa: Gpa, bytes: &[u8]) {
        assert!(self.remote == 0, "local writes come first");
        self.write(gpa, bytes);
        self.local += 1;
    }

    /// Adds a remote part.
    pub fn remote<'b, W>(&mut self, region: RegionId, writes: W, locks: &[Gpa])
    where
        W: ExactSizeIterator<Item = (Gpa, &'b [u8])>,
    {
        let head = PartHead {
            region: U16::new(region.0),
            reserved: U16::ZERO,
            writes: U32::new(writes.len() as u32),
            locks: U32::new(locks.len() as u32),
            reserved2: U32::ZERO,
        };
        self.into.extend_from_slice(head.as_bytes());
        for (gpa, bytes) in writes {
            self.write(gpa, bytes);
        }
        for lock in locks {
            self.into.extend_from_slice(&lock.0.to_le_bytes());
        }
        self.remote += 1;
    }

    /// Ends the record with state [`RedoState::Logged`]: the bytes for the slot. The caller has seen to it (with
    /// [`Self::write_size`], [`Self::part_size`]) that they fit.
    pub fn finish(self) -> &'a [u8] {
        let payload = self.into.len() - LINE;
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
            reserved: [0; 28],
            crc: U32::ZERO,
        };
        header.crc = U32::new(checksum(&header, self.number, &self.into[LINE..]));
        self.into[..LINE].copy_from_slice(header.as_bytes());
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
        let local = cursor.writes(header.local.get())?;
        let mut remote = Vec::new();
        for _ in 0..header.remote.get() {
            let head: PartHead = cursor.take()?;
            let region = RegionId(head.region.get());
            let writes = cursor.writes(head.writes.get())?;
            let mut locks = Vec::new();
            for _ in 0..head.locks.get() {
                locks.push(Gpa(cursor.take::<U64>()?.get()));
            }
            if let Some(gpa) = writes
                .iter()
                .map(|w| w.0)
                .chain(locks.iter().copied())
                .find(|g| g.region() != region)
            {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("address {gpa:?} in the part of region {region}"),
                ));
            }
            remote.push(RedoPart { region, writes, locks });
        }
        if !cursor.rest.is_empty() {
            return Err(FormatError::invalid(
                WHAT,
                format!("{} bytes after the end", cursor.rest.len()),
            ));
        }
        Ok(RedoRecord {
            txn: TxnId(header.txn.get()),
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
    use crate::{NodeId, RegionOffset};

    fn gpa(region: u16, offset: u64) -> Gpa {
        Gpa::new(RegionId(region), RegionOffset(offset))
    }

    fn sample() -> RedoRecord<'static> {
        RedoRecord {
            txn: TxnId::new(NodeId(3), 99),
            local: vec![(gpa(1, 256), b"hello"), (gpa(1, 4096), &[7; 64]), (gpa(1, 8), b"")],
            remote: vec![
                RedoPart {
                    region: RegionId(2),
                    writes: vec![(gpa(2, 512), b"there")],
                    locks: vec![gpa(2, 1024)],
                },
                RedoPart {
                    region: RegionId(9),
                    writes: vec![],
                    locks: vec![],
                },
            ],
        }
    }

    fn encode(record: &RedoRecord, number: u64) -> Vec<u8> {
        let mut buffer = vec![1; 10];
        let mut encoder = RedoEncoder::new(&mut buffer, number, record.txn);
        let mut size = LINE;
        for (gpa, bytes) in &record.local {
            encoder.local(*gpa, bytes);
            size += RedoEncoder::write_size(bytes.len());
        }
        for part in &record.remote {
            encoder.remote(part.region, part.writes.iter().copied(), &part.locks);
            size += RedoEncoder::part_size(part.writes.iter().map(|w| w.1.len()), part.locks.len());
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
            |_, p| p[8] = 0xff,
            |_, p| p[8..12].fill(0xff),
            |h, p| {
                p.truncate(p.len() - 8);
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
