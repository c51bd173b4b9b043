//! The inode: 256 bytes in a region's inode table, four cache lines.
//!
//! Line 0 is identity, log head and the words that others watch: the tail (commit point of the inode's log) and the
//! lock word (transaction that has collected the inode). Line 1 holds the attributes as of the tail: a cache for a
//! `stat` by one one-sided read, with a checksum over both, so that a torn read is noticed. Lines 2 and 3 are the first
//! two units of the log, so that a small file needs no log page. Recovery believes identity and log, never line 1.

use crate::{Attr, FileKind, FormatError, Generation, Ino, LINE, RegionOffset, Tail, checksum};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "inode";
/// What [`FormatError::Checksum`] names when the identity of an inode is right and its tail is not.
pub const TAIL: &str = "log tail of the inode";
/// First byte of the mark, and the version of the inode's layout.
const MAGIC: u16 = 0x0169;

/// Bytes of line 0 that a change writes: all but the lock word.
pub const INODE_HEAD_SIZE: usize = 56;
/// Offset of the log's first page in the inode.
pub const INODE_LOG_PAGE: u64 = 16;
/// Offset of the two checksums: identity (low half of the word) and attributes (high half).
pub const INODE_CHECKSUMS: u64 = 32;
/// Offset of the tail word.
pub const INODE_TAIL: u64 = 48;
/// Offset of the lock word.
pub const INODE_LOCK: u64 = 56;
/// Offset of the attributes, which fill one cache line.
pub const INODE_ATTRIBUTES: u64 = 64;
/// Offset of log position 0.
pub const INODE_UNITS: u64 = 128;
/// Bytes of an inode that say all but what its log says: lines 0 and 1.
pub const INODE_VIEW_SIZE: usize = INODE_UNITS as usize;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: U16,
    kind: u8,
    flags: u8,
    generation: U32,
    parent: U64,
    log_page: U64,
    btime: I64,
    identity_crc: U32,
    attr_crc: U32,
    parent_generation: U32,
    reserved: U32,
    tail: U64,
}
const _: () = assert!(size_of::<RawHead>() == INODE_HEAD_SIZE);
const _: () = assert!(std::mem::offset_of!(RawHead, log_page) as u64 == INODE_LOG_PAGE);
const _: () = assert!(std::mem::offset_of!(RawHead, identity_crc) as u64 == INODE_CHECKSUMS);
const _: () = assert!(std::mem::offset_of!(RawHead, tail) as u64 == INODE_TAIL);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAttr {
    mode: U32,
    nlink: U32,
    uid: U32,
    gid: U32,
    size: U64,
    blocks: U64,
    mtime: I64,
    ctime: I64,
    atime: I64,
    rdev: U64,
}
const _: () = assert!(size_of::<RawAttr>() == LINE);

/// What an inode slot says about itself: everything in line 0 but the attributes' checksum and the lock word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeHead {
    /// `None`: the slot is free (generation and log version stay, so that the next user gets new ones).
    pub kind: Option<FileKind>,
    /// Which of the slot's users.
    pub generation: Generation,
    /// A directory's parent (else 0).
    pub parent: Ino,
    /// Its generation.
    pub parent_generation: Generation,
    /// First log page; 0 while the log fits the inode.
    pub log_page: RegionOffset,
    /// Creation, nanoseconds since the epoch.
    pub btime_ns: i64,
    /// The log's length and version.
    pub tail: Tail,
}

impl InodeHead {
    /// A slot that was never used.
    pub const UNUSED: InodeHead = InodeHead {
        kind: None,
        generation: Generation(0),
        parent: Ino(0),
        parent_generation: Generation(0),
        log_page: RegionOffset(0),
        btime_ns: 0,
        tail: Tail(0),
    };

    fn raw(&self) -> RawHead {
        RawHead {
            magic: U16::new(MAGIC),
            kind: self.kind.map_or(0, |k| k as u8),
            flags: 0,
            generation: U32::new(self.generation.0),
            parent: U64::new(self.parent.0),
            log_page: U64::new(self.log_page.0),
            btime: I64::new(self.btime_ns),
            identity_crc: U32::ZERO,
            attr_crc: U32::ZERO,
            parent_generation: U32::new(self.parent_generation.0),
            reserved: U32::ZERO,
            tail: U64::new(self.tail.0),
        }
    }

    /// The checksum of the identity: number, kind, generation, parent, creation.
    pub fn identity_crc(&self, ino: Ino) -> u32 {
        identity_crc(ino, &self.raw())
    }

    /// The checksum that ties the attributes (64 bytes of line 1) to the tail.
    pub fn attr_crc(&self, attributes: &[u8; LINE]) -> u32 {
        attr_crc(self.generation, self.log_page, self.tail, attributes)
    }

    /// The two checksums as the 8-byte word at [`INODE_CHECKSUMS`].
    pub fn checksums(&self, ino: Ino, attributes: &[u8; LINE]) -> u64 {
        u64::from(self.identity_crc(ino)) | u64::from(self.attr_crc(attributes)) << 32
    }

    /// The bytes of line 0 up to the lock word.
    pub fn encode(&self, ino: Ino, attributes: &[u8; LINE]) -> [u8; INODE_HEAD_SIZE] {
        let mut raw = self.raw();
        raw.identity_crc = U32::new(identity_crc(ino, &raw));
        raw.attr_crc = U32::new(self.attr_crc(attributes));
        let bytes: [u8; INODE_HEAD_SIZE] = zerocopy::transmute!(raw);
        debug_assert_eq!(
            InodeHead::decode(&bytes, ino),
            Ok(*self),
            "a head is read as it was written"
        );
        bytes
    }

    /// Reads line 0 (at least its first 56 bytes) as recovery does: identity, not attributes. A slot of zeros was never
    /// used.
    pub fn decode(bytes: &[u8], ino: Ino) -> Result<InodeHead, FormatError> {
        let (raw, _) = RawHead::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need: INODE_HEAD_SIZE,
        })?;
        Self::from_raw(&raw, ino)
    }

    /// Reads line 0 without checking anything: what a transaction is just writing may be torn.
    ///
    /// # Panics
    /// With fewer than 56 bytes.
    pub fn decode_unchecked(bytes: &[u8]) -> InodeHead {
        let (raw, _) = RawHead::read_from_prefix(bytes).expect("the head is 56 bytes");
        InodeHead {
            kind: FileKind::from_u8(raw.kind),
            generation: Generation(raw.generation.get()),
            parent: Ino(raw.parent.get()),
            parent_generation: Generation(raw.parent_generation.get()),
            log_page: RegionOffset(raw.log_page.get()),
            btime_ns: raw.btime.get(),
            tail: Tail(raw.tail.get()),
        }
    }

    fn from_raw(raw: &RawHead, ino: Ino) -> Result<InodeHead, FormatError> {
        if raw.magic.get() == 0 && raw.kind == 0 && raw.generation.get() == 0 && raw.tail.get() == 0 {
            // a slot reserved for its first user may have a log page already
            return Ok(InodeHead {
                log_page: RegionOffset(raw.log_page.get()),
                ..InodeHead::UNUSED
            });
        }
        if raw.magic.get() != MAGIC {
            return Err(
                if raw.magic.get() & 0xff == MAGIC & 0xff && raw.magic.get() >> 8 > MAGIC >> 8 {
                    FormatError::Version {
                        structure: WHAT,
                        found: u32::from(raw.magic.get() >> 8),
                        known: u32::from(MAGIC >> 8),
                    }
                } else {
                    FormatError::Magic(WHAT)
                },
            );
        }
        if identity_crc(ino, raw) != raw.identity_crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let tail = Tail(raw.tail.get());
        if !tail.is_sound() {
            return Err(FormatError::Checksum(TAIL));
        }
        let kind = match raw.kind {
            0 => None,
            k => Some(FileKind::from_u8(k).ok_or_else(|| FormatError::invalid(WHAT, format!("kind {k}")))?),
        };
        Ok(InodeHead {
            kind,
            generation: Generation(raw.generation.get()),
            parent: Ino(raw.parent.get()),
            parent_generation: Generation(raw.parent_generation.get()),
            log_page: RegionOffset(raw.log_page.get()),
            btime_ns: raw.btime.get(),
            tail,
        })
    }
}

fn identity_crc(ino: Ino, raw: &RawHead) -> u32 {
    const LOG_PAGE: usize = INODE_LOG_PAGE as usize;
    let mut bytes = [0; LOG_PAGE + 20];
    bytes[..8].copy_from_slice(&ino.0.to_le_bytes());
    bytes[8..8 + LOG_PAGE].copy_from_slice(&raw.as_bytes()[..LOG_PAGE]);
    bytes[8 + LOG_PAGE..16 + LOG_PAGE].copy_from_slice(raw.btime.as_bytes());
    bytes[16 + LOG_PAGE..].copy_from_slice(raw.parent_generation.as_bytes());
    checksum::crc32c(&bytes)
}

fn attr_crc(generation: Generation, log_page: RegionOffset, tail: Tail, attributes: &[u8; LINE]) -> u32 {
    let mut bytes = [0; 20 + LINE];
    bytes[..4].copy_from_slice(&generation.0.to_le_bytes());
    bytes[4..12].copy_from_slice(&log_page.0.to_le_bytes());
    bytes[12..20].copy_from_slice(&tail.0.to_le_bytes());
    bytes[20..].copy_from_slice(attributes);
    checksum::crc32c(&bytes)
}

/// The 64 bytes of line 1.
pub fn encode_attributes(attr: &Attr) -> [u8; LINE] {
    let raw = RawAttr {
        mode: U32::new(attr.mode),
        nlink: U32::new(attr.nlink),
        uid: U32::new(attr.uid),
        gid: U32::new(attr.gid),
        size: U64::new(attr.size),
        blocks: U64::new(attr.blocks),
        mtime: I64::new(attr.mtime_ns),
        ctime: I64::new(attr.ctime_ns),
        atime: I64::new(attr.atime_ns),
        rdev: U64::new(attr.rdev),
    };
    zerocopy::transmute!(raw)
}

/// An inode as read from afar by one one-sided read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeView {
    /// Attributes as of `tail`.
    pub attr: Attr,
    /// The log.
    pub tail: Tail,
    /// The lock word: a transaction's id, or 0.
    pub lock: u64,
    /// A directory's parent (else number 0).
    pub parent: Ino,
    /// Its generation.
    pub parent_generation: Generation,
    /// First log page; 0 while the log fits the inode.
    pub log_page: RegionOffset,
}

impl InodeView {
    /// Reads lines 0 and 1 (what follows is left alone) of the inode with number `ino`. [`FormatError::Free`] when the slot holds none;
    /// [`FormatError::Torn`] when it was read while it changed (read it again; when that does not help it is damaged).
    pub fn decode(bytes: &[u8], ino: Ino) -> Result<InodeView, FormatError> {
        let bytes = bytes.first_chunk::<INODE_VIEW_SIZE>().ok_or(FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need: INODE_VIEW_SIZE,
        })?;
        let (raw, _) = RawHead::read_from_prefix(bytes).expect("two lines are more than the first one");
        let head = match InodeHead::from_raw(&raw, ino) {
            Err(FormatError::Checksum(_)) => return Err(FormatError::Torn),
            other => other?,
        };
        let kind = head.kind.ok_or(FormatError::Free)?;
        let attributes = *bytes.last_chunk::<LINE>().expect("the second line");
        if head.attr_crc(&attributes) != raw.attr_crc.get() {
            return Err(FormatError::Torn);
        }
        let a = RawAttr::read_from_bytes(&attributes).expect("attributes fill a line");
        Ok(InodeView {
            attr: Attr {
                ino,
                generation: head.generation,
                kind,
                mode: a.mode.get(),
                nlink: a.nlink.get(),
                uid: a.uid.get(),
                gid: a.gid.get(),
                rdev: a.rdev.get(),
                size: a.size.get(),
                blocks: a.blocks.get(),
                atime_ns: a.atime.get(),
                mtime_ns: a.mtime.get(),
                ctime_ns: a.ctime.get(),
                btime_ns: head.btime_ns,
            },
            tail: head.tail,
            lock: u64::from_le_bytes(bytes[INODE_LOCK as usize..64].try_into().expect("a word is 8 bytes")),
            parent: head.parent,
            parent_generation: head.parent_generation,
            log_page: head.log_page,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    fn sample() -> (Ino, InodeHead, Attr) {
        let ino = Ino::new(RegionId(3), 77);
        let head = InodeHead {
            kind: Some(FileKind::Directory),
            generation: Generation(5),
            parent: Ino::ROOT,
            parent_generation: Generation(1),
            log_page: RegionOffset(0x5000),
            btime_ns: -7,
            tail: Tail::new(4, 99),
        };
        let attr = Attr {
            ino,
            generation: head.generation,
            kind: FileKind::Directory,
            mode: 0o1777,
            nlink: 3,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 128,
            blocks: 1,
            atime_ns: 1,
            mtime_ns: 2,
            ctime_ns: 3,
            btime_ns: -7,
        };
        (ino, head, attr)
    }

    fn image(ino: Ino, head: &InodeHead, attr: &Attr, lock: u64) -> [u8; INODE_VIEW_SIZE] {
        let mut bytes = [0; INODE_VIEW_SIZE];
        let attributes = encode_attributes(attr);
        bytes[..INODE_HEAD_SIZE].copy_from_slice(&head.encode(ino, &attributes));
        bytes[INODE_LOCK as usize..64].copy_from_slice(&lock.to_le_bytes());
        bytes[64..128].copy_from_slice(&attributes);
        bytes
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let (ino, head, attr) = sample();
        let view = InodeView::decode(&image(ino, &head, &attr, 42), ino).unwrap();
        assert_eq!(
            (view.attr, view.tail, view.lock, view.log_page),
            (attr, head.tail, 42, head.log_page)
        );
        assert_eq!(
            (view.parent, view.parent_generation),
            (head.parent, head.parent_generation)
        );
        assert_eq!(InodeHead::decode(&image(ino, &head, &attr, 0), ino).unwrap(), head);
    }

    #[test]
    fn every_flipped_bit_of_lines_0_and_1_is_noticed_but_in_lock_and_unused_bytes() {
        let (ino, head, attr) = sample();
        let good = image(ino, &head, &attr, 0);
        for bit in 0..128 * 8 {
            let at = bit / 8;
            if (44..48).contains(&at) || (56..64).contains(&at) {
                continue;
            }
            let mut bad = good;
            bad[at] ^= 1 << (bit % 8);
            assert!(InodeView::decode(&bad, ino).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_inode_of_another_slot_is_refused() {
        let (ino, head, attr) = sample();
        let bytes = image(ino, &head, &attr, 0);
        assert_eq!(
            InodeHead::decode(&bytes, Ino(ino.0 + 1)),
            Err(FormatError::Checksum(WHAT))
        );
    }

    #[test]
    fn a_slot_of_zeros_is_free() {
        assert_eq!(InodeHead::decode(&[0; INODE_VIEW_SIZE], Ino(9)), Ok(InodeHead::UNUSED));
        assert_eq!(InodeView::decode(&[0; INODE_VIEW_SIZE], Ino(9)), Err(FormatError::Free));
    }
}
