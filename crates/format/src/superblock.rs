//! The superblock: what a pool is, whom it belongs to and where its zones lie (the zones are those of Octopus,
//! section 3.1).
//!
//! Two copies lie at offsets 0 and [`SUPERBLOCK_SIZE`]; a change is written to the older one with a generation raised
//! by one, so that at any moment one copy is whole.

use crate::history::{ERAS_KEPT, History};
use crate::page_checksum::PAGE_CHECKSUM_SIZE;
use crate::peer_record::{PEER_PLACE, PEERS_MAX, PEERS_MIN};
use crate::{FormatError, NodeId, PAGE, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const WHAT: &str = "superblock";

/// First bytes of a pool.
pub const POOL_MAGIC: [u8; 8] = *b"POLVOFS\0";
/// Newest version of the media format that this program knows: that of pools with checksums of file data.
pub const FORMAT_VERSION: u32 = 8;
/// Version of pools without them; it is the same in all else.
const WITHOUT_CHECKSUMS: u32 = 7;
/// Bytes set aside for one superblock; the second one lies this far into the pool.
pub const SUPERBLOCK_SIZE: usize = PAGE;
/// Number of superblocks.
pub const SUPERBLOCKS: u64 = 2;
/// Smallest log2 of a segment's size (256 KiB, which is 64 pages: a word of a bitmap).
pub const SEGMENT_SHIFT_MIN: u32 = 18;
/// log2 of a segment's size where the pool is not so large that the table would get too long (2 MiB).
pub const SEGMENT_SHIFT_DEFAULT: u32 = 21;
/// Largest log2 of a segment's size (1 GiB).
pub const SEGMENT_SHIFT_MAX: u32 = 30;
/// Most segments in a pool.
pub const SEGMENTS_MAX: u64 = 1 << 16;
/// Fewest segments with which a pool is of any use: inodes, logs, data and one to grow.
pub const SEGMENTS_MIN: u64 = 4;
/// Bytes of a redo log slot.
pub const REDO_SLOT_SIZE: u32 = 16 << 10;
/// Most redo log slots (smaller pools have fewer).
pub const REDO_SLOTS_MAX: u64 = 256;
/// So many a pool has that is of some use, for transactions of its node; those beyond are for what copies bring of other nodes'.
pub const REDO_SLOTS_OWN: u64 = 64;
/// Fewest redo log slots.
pub const REDO_SLOTS_MIN: u64 = 8;

/// Flag: see [`Superblock::tokens_given`].
const TOKENS_GIVEN: u32 = 1;

/// The bytes on the media. The rest of the superblock's page is not used.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    reserved0: U32,
    generation: U64,
    cluster: [u8; 16],
    pool: [u8; 16],
    node: U16,
    reserved1: U16,
    segment_shift: U32,
    pool_len: U64,
    table_offset: U64,
    redo_offset: U64,
    redo_slots: U32,
    redo_slot_size: U32,
    segments_offset: U64,
    segments: U32,
    flags: U32,
    sequence: U64,
    era: U64,
    marks: [U64; ERAS_KEPT as usize],
    checksums_offset: U64,
    reserved3: [u8; 52],
    crc: U32,
}

/// Bytes of a superblock that its checksum covers, with the checksum.
pub const SUPERBLOCK_USED: usize = size_of::<Raw>();
const _: () = assert!(SUPERBLOCK_USED == 256);

/// Where the zones of a pool lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolLayout {
    /// Bytes of the pool that are used at the most; the device may be longer.
    pub pool_len: u64,
    /// log2 of the segment size.
    pub segment_shift: u32,
    /// Segment table: 8 bytes a segment.
    pub table_offset: u64,
    /// Redo log slots.
    pub redo_offset: u64,
    /// How many.
    pub redo_slots: u32,
    /// First segment; a multiple of the segment size.
    pub segments_offset: u64,
    /// How many.
    pub segments: u32,
    /// Checksums of the pages of all segments ([`crate::PageChecksum`]); 0: none.
    pub checksums_offset: u64,
}

impl PoolLayout {
    /// Lays out a pool of `pool_len` bytes; segment size by pool size where no shift is given. The error says, for a
    /// user, why the pool cannot be made.
    pub fn plan(pool_len: u64, segment_shift: Option<u32>, checksums: bool) -> Result<PoolLayout, FormatError> {
        let shift = match segment_shift {
            Some(shift) => shift,
            None => (SEGMENT_SHIFT_DEFAULT..SEGMENT_SHIFT_MAX)
                .find(|shift| pool_len >> shift <= SEGMENTS_MAX)
                .unwrap_or(SEGMENT_SHIFT_MAX),
        };
        if !(SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT_MAX).contains(&shift) {
            return Err(FormatError::invalid(
                "pool",
                format!("segment shift {shift}; it must be {SEGMENT_SHIFT_MIN} to {SEGMENT_SHIFT_MAX}"),
            ));
        }
        let page = PAGE as u64;
        let segment = 1 << shift;
        let table_offset = SUPERBLOCKS * SUPERBLOCK_SIZE as u64;
        let table_len = ((pool_len >> shift).min(SEGMENTS_MAX) * SEGMENT_ENTRY_SIZE).next_multiple_of(page);
        let redo_offset = table_offset + table_len;
        let own = (pool_len >> 18).clamp(REDO_SLOTS_MIN, REDO_SLOTS_OWN);
        let redo_slots = (pool_len >> 22).clamp(own, REDO_SLOTS_MAX);
        let redo_end = redo_offset + redo_slots * u64::from(REDO_SLOT_SIZE);
        let checksums_len = match checksums {
            true => checksums_len((pool_len >> shift).min(SEGMENTS_MAX), shift),
            false => 0,
        };
        let peers_len = if checksums { PEERS_MIN * PEER_PLACE } else { 0 };
        let segments_offset = (redo_end + peers_len + checksums_len).next_multiple_of(segment);
        let segments = (pool_len.saturating_sub(segments_offset) >> shift).min(SEGMENTS_MAX);
        if segments < SEGMENTS_MIN {
            let need = segments_offset + (SEGMENTS_MIN << shift);
            return Err(FormatError::invalid(
                "pool",
                format!("{pool_len} bytes are too few: with segments of {segment} bytes a pool needs {need} or more"),
            ));
        }
        let layout = PoolLayout {
            pool_len,
            segment_shift: shift,
            table_offset,
            redo_offset,
            redo_slots: redo_slots as u32,
            segments_offset,
            segments: segments as u32,
            checksums_offset: if checksums { segments_offset - checksums_len } else { 0 },
        };
        debug_assert_eq!(layout.check(), Ok(()), "zones do not cover each other");
        debug_assert!(!checksums || layout.peers().1 >= PEERS_MIN, "peers have room");
        Ok(layout)
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> u64 {
        1 << self.segment_shift
    }

    /// Pool offset of a segment's first byte.
    pub fn segment_offset(&self, segment: crate::SegmentIndex) -> u64 {
        assert!(segment.0 < self.segments, "{segment} of {}", self.segments);
        self.segments_offset + (u64::from(segment.0) << self.segment_shift)
    }

    /// Pool offset of a segment's table entry.
    pub fn entry_offset(&self, segment: crate::SegmentIndex) -> u64 {
        assert!(segment.0 < self.segments, "{segment} of {}", self.segments);
        self.table_offset + u64::from(segment.0) * SEGMENT_ENTRY_SIZE
    }

    /// Pool offset of a redo log slot.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        assert!(slot < self.redo_slots, "redo slot {slot} of {}", self.redo_slots);
        self.redo_offset + u64::from(slot) * u64::from(REDO_SLOT_SIZE)
    }

    /// Where the records of peers lie ([`crate::PeerRecord`]), and for how many nodes there is room: between the redo log and
    /// the checksums or the first segment, as far as they are apart.
    pub fn peers(&self) -> (u64, u64) {
        let offset = self.redo_offset + u64::from(self.redo_slots) * u64::from(REDO_SLOT_SIZE);
        let offset = offset.next_multiple_of(PEER_PLACE);
        let end = match self.checksums_offset {
            0 => self.segments_offset,
            checksums => checksums,
        };
        let room = end.saturating_sub(offset) / PEER_PLACE;
        (offset, room.min(PEERS_MAX))
    }

    /// Whether pages of file data have checksums here.
    pub fn has_checksums(&self) -> bool {
        self.checksums_offset != 0
    }

    /// Pool offset of the checksum of the page that lies at a pool offset, in a segment. Those of pages that follow each other
    /// follow each other. Only where there are any.
    pub fn checksum_offset(&self, page: u64) -> u64 {
        debug_assert!(self.has_checksums(), "pages have checksums here");
        debug_assert!(
            (self.segments_offset..self.pool_len).contains(&page),
            "{page:#x} lies in a segment"
        );
        self.checksums_offset + (page - self.segments_offset) / PAGE as u64 * PAGE_CHECKSUM_SIZE
    }

    /// Every zone lies in the pool, aligned, and none covers another.
    fn check(&self) -> Result<(), String> {
        let page = PAGE as u64;
        if !(SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT_MAX).contains(&self.segment_shift) {
            return Err(format!("segment shift {}", self.segment_shift));
        }
        let segments = u64::from(self.segments);
        if !(SEGMENTS_MIN..=SEGMENTS_MAX).contains(&segments) {
            return Err(format!("{segments} segments"));
        }
        if !(REDO_SLOTS_MIN..=REDO_SLOTS_MAX).contains(&u64::from(self.redo_slots)) {
            return Err(format!("{} redo log slots", self.redo_slots));
        }
        let zones = [
            ("segment table", self.table_offset, segments * SEGMENT_ENTRY_SIZE, page),
            (
                "redo log",
                self.redo_offset,
                u64::from(self.redo_slots) * u64::from(REDO_SLOT_SIZE),
                page,
            ),
            (
                "checksums",
                self.checksums_offset,
                checksums_len(segments, self.segment_shift),
                page,
            ),
            (
                "segments",
                self.segments_offset,
                segments << self.segment_shift,
                self.segment_size(),
            ),
        ];
        let mut end = SUPERBLOCKS * SUPERBLOCK_SIZE as u64;
        for (zone, offset, len, align) in zones {
            if zone == "checksums" && !self.has_checksums() {
                continue;
            }
            if offset < end || !offset.is_multiple_of(align) {
                return Err(format!("{zone} at {offset:#x}"));
            }
            end = offset
                .checked_add(len)
                .filter(|&end| end <= self.pool_len)
                .ok_or_else(|| format!("{zone} beyond the pool's end"))?;
        }
        Ok(())
    }
}

/// Bytes of the checksums of so many segments, whole pages.
fn checksums_len(segments: u64, segment_shift: u32) -> u64 {
    let pages = segments << segment_shift >> PAGE.ilog2();
    (pages * PAGE_CHECKSUM_SIZE).next_multiple_of(PAGE as u64)
}

/// Bytes of an entry of the segment table.
pub const SEGMENT_ENTRY_SIZE: u64 = 8;

/// What a superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The copy with the greater one counts. Copy `generation % 2` is the one it is written to.
    pub generation: u64,
    /// Cluster that the pool belongs to.
    pub cluster: [u8; 16],
    /// Identity of the pool itself.
    pub pool: [u8; 16],
    /// Node that serves it.
    pub node: NodeId,
    /// Where the zones lie.
    pub layout: PoolLayout,
    /// Numbers below it may have been handed out.
    pub sequence: u64,
    /// The latest eras of the pool.
    pub history: History,
    /// The run that has the pool, or the last one, has given tokens: until their leases are over nothing may change.
    pub tokens_given: bool,
}

impl Superblock {
    /// Pool offset of the copy that this generation is written to.
    pub fn offset(&self) -> u64 {
        self.generation % SUPERBLOCKS * SUPERBLOCK_SIZE as u64
    }

    /// Bytes for the media, checksum included.
    pub fn encode(&self) -> [u8; SUPERBLOCK_USED] {
        let mut raw = Raw {
            magic: POOL_MAGIC,
            version: U32::new(match self.layout.has_checksums() {
                true => FORMAT_VERSION,
                false => WITHOUT_CHECKSUMS,
            }),
            reserved0: U32::ZERO,
            generation: U64::new(self.generation),
            cluster: self.cluster,
            pool: self.pool,
            node: U16::new(self.node.0),
            reserved1: U16::ZERO,
            segment_shift: U32::new(self.layout.segment_shift),
            pool_len: U64::new(self.layout.pool_len),
            table_offset: U64::new(self.layout.table_offset),
            redo_offset: U64::new(self.layout.redo_offset),
            redo_slots: U32::new(self.layout.redo_slots),
            redo_slot_size: U32::new(REDO_SLOT_SIZE),
            segments_offset: U64::new(self.layout.segments_offset),
            segments: U32::new(self.layout.segments),
            flags: U32::new(if self.tokens_given { TOKENS_GIVEN } else { 0 }),
            sequence: U64::new(self.sequence),
            era: U64::new(self.history.era),
            marks: self.history.marks.map(U64::new),
            checksums_offset: U64::new(self.layout.checksums_offset),
            reserved3: [0; 52],
            crc: U32::ZERO,
        };
        raw.crc = U32::new(checksum::crc32c(&raw.as_bytes()[..SUPERBLOCK_USED - 4]));
        raw.as_bytes().try_into().expect("the struct has this size")
    }

    /// Reads the copy that lies at `offset` in the pool. Errors: [`FormatError::Magic`] where there is no superblock,
    /// `Checksum`, `Version` for one of another version, `Invalid` for fields that no program of this version writes.
    /// (Magic number, version and checksum keep their places in all versions.)
    pub fn decode(bytes: &[u8], offset: u64) -> Result<Superblock, FormatError> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need: SUPERBLOCK_USED,
        })?;
        if raw.magic != POOL_MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if checksum::crc32c(&raw.as_bytes()[..SUPERBLOCK_USED - 4]) != raw.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = raw.version.get();
        if version != FORMAT_VERSION && version != WITHOUT_CHECKSUMS {
            return Err(FormatError::Version {
                structure: WHAT,
                found: version,
                known: FORMAT_VERSION,
            });
        }
        if raw.redo_slot_size.get() != REDO_SLOT_SIZE {
            return Err(FormatError::invalid(
                WHAT,
                format!("redo log slots of {} bytes", raw.redo_slot_size),
            ));
        }
        let superblock = Superblock {
            generation: raw.generation.get(),
            cluster: raw.cluster,
            pool: raw.pool,
            node: NodeId(raw.node.get()),
            layout: PoolLayout {
                pool_len: raw.pool_len.get(),
                segment_shift: raw.segment_shift.get(),
                table_offset: raw.table_offset.get(),
                redo_offset: raw.redo_offset.get(),
                redo_slots: raw.redo_slots.get(),
                segments_offset: raw.segments_offset.get(),
                segments: raw.segments.get(),
                checksums_offset: raw.checksums_offset.get(),
            },
            sequence: raw.sequence.get(),
            history: History {
                era: raw.era.get(),
                marks: raw.marks.map(U64::get),
            },
            tokens_given: raw.flags.get() & TOKENS_GIVEN != 0,
        };
        superblock
            .layout
            .check()
            .map_err(|why| FormatError::invalid(WHAT, why))?;
        if superblock.layout.has_checksums() != (version == FORMAT_VERSION) {
            let at = superblock.layout.checksums_offset;
            return Err(FormatError::invalid(
                WHAT,
                format!("checksums at {at:#x} in version {version}"),
            ));
        }
        if superblock.generation == 0 || superblock.generation >> 63 != 0 || superblock.offset() != offset {
            return Err(FormatError::invalid(
                WHAT,
                format!("generation {} in this copy", superblock.generation),
            ));
        }
        if superblock.sequence == 0 || superblock.sequence >> 48 != 0 {
            return Err(FormatError::invalid(WHAT, format!("sequence {}", superblock.sequence)));
        }
        if raw.flags.get() & !TOKENS_GIVEN != 0 {
            return Err(FormatError::invalid(WHAT, format!("flags {:#x}", raw.flags.get())));
        }
        if superblock.history.era >> 48 != 0 {
            return Err(FormatError::invalid(WHAT, format!("era {}", superblock.history.era)));
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            generation: 3,
            cluster: *b"cluster-cluster-",
            pool: *b"pool-pool-pool-p",
            node: NodeId(7),
            layout: PoolLayout::plan(64 << 20, None, true).unwrap(),
            sequence: 1 << 20,
            history: History {
                era: 3,
                marks: [8, 1, 2, 3, 4, 5, 6, 7],
            },
            tokens_given: true,
        }
    }

    #[test]
    fn large_pools_have_room_for_what_is_decided_elsewhere() {
        let slots = |len| PoolLayout::plan(len, None, true).unwrap().redo_slots;
        assert_eq!(
            [15 << 20, 16 << 20, 256 << 20, 1 << 30, 1 << 40].map(slots),
            [60, 64, 64, 256, 256]
        );
    }

    #[test]
    fn comes_back_as_written() {
        let s = sample();
        assert_eq!(Superblock::decode(&s.encode(), s.offset()), Ok(s));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let s = sample();
        let good = s.encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bad, s.offset()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn refuses_short_foreign_newer_and_misplaced() {
        let s = sample();
        let good = s.encode();
        assert!(matches!(
            Superblock::decode(&good[..100], s.offset()),
            Err(FormatError::Short { .. })
        ));
        assert!(matches!(Superblock::decode(&[0; 4096], 0), Err(FormatError::Magic(_))));
        for version in [1, 9] {
            let mut other = good;
            other[8] = version;
            let crc = crc32c::crc32c(&other[..SUPERBLOCK_USED - 4]).to_le_bytes();
            other[SUPERBLOCK_USED - 4..].copy_from_slice(&crc);
            let refused = Superblock::decode(&other, s.offset());
            assert!(matches!(refused, Err(FormatError::Version { found, .. }) if found == u32::from(version)));
        }
        assert!(matches!(Superblock::decode(&good, 0), Err(FormatError::Invalid { .. })));
        let mut flagged = good;
        flagged[108] |= 2;
        let crc = crc32c::crc32c(&flagged[..SUPERBLOCK_USED - 4]).to_le_bytes();
        flagged[SUPERBLOCK_USED - 4..].copy_from_slice(&crc);
        let refused = Superblock::decode(&flagged, s.offset());
        assert!(
            matches!(refused, Err(FormatError::Invalid { .. })),
            "a flag of another version"
        );
    }

    #[test]
    fn refuses_zones_that_overlap_or_leave_the_pool() {
        let changes: [fn(&mut PoolLayout); 7] = [
            |l| l.table_offset = 4096,
            |l| l.redo_offset = l.table_offset,
            |l| l.segments_offset += 4096,
            |l| l.segments += 1,
            |l| l.segment_shift = 63,
            |l| l.pool_len = 1 << 20,
            |l| l.redo_slots = 1 << 20,
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut s = sample();
            change(&mut s.layout);
            let got = Superblock::decode(&s.encode(), s.offset());
            assert!(matches!(got, Err(FormatError::Invalid { .. })), "change {i}: {got:?}");
        }
    }

    #[test]
    fn plans_fit_their_pool() {
        for len in [
            10 << 20,
            16 << 20,
            (16 << 20) + 12345,
            1 << 30,
            64 << 30,
            100 << 30,
            3 << 40,
        ] {
            let l = PoolLayout::plan(len, None, true).unwrap();
            l.check().unwrap();
            assert!(u64::from(l.segments) <= SEGMENTS_MAX);
            if len <= 64 << 30 {
                assert_eq!(l.segment_shift, SEGMENT_SHIFT_DEFAULT);
            }
            let used = u64::from(l.segments) << l.segment_shift;
            assert!(
                len - used < l.segments_offset + l.segment_size(),
                "nothing but a last part is left over"
            );
        }
        PoolLayout::plan(2 << 20, Some(18), true).unwrap().check().unwrap();
        for (len, shift) in [
            (0, None),
            (1 << 20, None),
            (8 << 20, None),
            (1 << 30, Some(17)),
            (1 << 30, Some(31)),
        ] {
            PoolLayout::plan(len, shift, true).unwrap_err();
        }
    }
}
