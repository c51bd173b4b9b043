//! Identities and addresses. One type for each kind, so that mixing them up does not compile.

use crate::checksum::crc8;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[repr(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

id!(
    /// A region: one replicated address space. At most 2^16 in a cluster.
    RegionId(u16), "r{}");
id!(
    /// A node: one `polvod` and its pool.
    NodeId(u16), "n{}");
id!(
    /// Byte offset in a region (48 bits used).
    RegionOffset(u64), "+{:#x}");
id!(
    /// Index of a segment in its pool's segment table.
    SegmentIndex(u32), "seg{}");
id!(
    /// Tells apart the files that used one inode slot one after the other. Never 0 for an inode in use.
    Generation(u32), "g{}");
id!(
    /// Version of a region's replica set (and of the cluster map); grows with every change.
    Epoch(u64), "e{}");
id!(
    /// A client's lease on the cluster. Drawn at random by the client; never 0. Who knows it can speak for the session, so
    /// nodes tell it to nobody but each other.
    SessionId(u64), "s{:016x}");

/// Global address of a byte: region (upper 16 bits) and offset in it (lower 48). Never a pointer, never a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Gpa(pub u64);

impl Gpa {
    /// Bits of the offset part.
    pub const OFFSET_BITS: u32 = 48;

    /// Joins a region and an offset in it. The offset must fit 48 bits.
    pub fn new(region: RegionId, offset: RegionOffset) -> Gpa {
        assert!(offset.0 >> Self::OFFSET_BITS == 0, "region offset over 48 bits");
        let gpa = Gpa(u64::from(region.0) << Self::OFFSET_BITS | offset.0);
        debug_assert!(gpa.region() == region && gpa.offset() == offset, "{gpa:?}");
        gpa
    }

    /// The region part.
    pub fn region(self) -> RegionId {
        RegionId((self.0 >> Self::OFFSET_BITS) as u16)
    }

    /// The offset part.
    pub fn offset(self) -> RegionOffset {
        RegionOffset(self.0 & ((1 << Self::OFFSET_BITS) - 1))
    }

    /// The address `bytes` further on in the same region; `None` when that leaves the region's address space.
    pub fn checked_add(self, bytes: u64) -> Option<Gpa> {
        let offset = self.offset().0.checked_add(bytes)?;
        (offset >> Self::OFFSET_BITS == 0).then(|| Gpa::new(self.region(), RegionOffset(offset)))
    }
}

impl fmt::Debug for Gpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.region(), self.offset())
    }
}

/// Inode number: region (upper 16 bits) and slot in it. The inode lies at region offset `slot * 256`, so a number
/// is also an address and a remote `stat` needs no table. Slot 0 of every region is the region header; slot 1 of
/// region 0 is the root directory, so the root's number is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);

    /// Joins a region and a slot of its inode table.
    pub fn new(region: RegionId, slot: u64) -> Ino {
        assert!(slot < 1 << 40, "inode slot over 40 bits");
        let ino = Ino(u64::from(region.0) << 48 | slot);
        debug_assert!(ino.region() == region && ino.slot() == slot, "{ino:?}");
        ino
    }

    /// The region that holds the inode.
    pub fn region(self) -> RegionId {
        RegionId((self.0 >> 48) as u16)
    }

    /// The slot in the region.
    pub fn slot(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }

    /// Where the inode lies in its region; `None` for a number that no inode can have.
    pub fn offset(self) -> Option<RegionOffset> {
        let slot = self.slot();
        (slot != 0 && slot < 1 << 40).then(|| RegionOffset(slot * crate::INODE_SIZE as u64))
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{}:{}", self.region().0, self.slot())
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The log tail: logical length of the log in 64-byte units (bits 0..32), a check of the rest (bits 32..40) and the log
/// version (bits 40..64), raised when garbage collection writes a new log and when a slot is used again. Equal words mean
/// equal logs.
///
/// The tail is stored alone, as one word, so it carries its own check: without one, a flipped bit that moves it back to the
/// end of an earlier entry would look like a log that is shorter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Tail(pub u64);

/// The later log is the greater one: by version, then by length. (The check between them says nothing.)
impl Ord for Tail {
    fn cmp(&self, other: &Tail) -> std::cmp::Ordering {
        (self.version(), self.units()).cmp(&(other.version(), other.units()))
    }
}

impl PartialOrd for Tail {
    fn partial_cmp(&self, other: &Tail) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Tail {
    const CHECK: u64 = 0xff << 32;

    /// Joins a version and a length in 64-byte units.
    pub fn new(version: u32, units: u64) -> Tail {
        assert!(version < 1 << 24 && units < 1 << 32, "tail out of range");
        let word = u64::from(version) << 40 | units;
        let tail = Tail(word | u64::from(tail_check(word)) << 32);
        debug_assert!(
            tail.is_sound() && tail.version() == version && tail.units() == units,
            "{tail:?}"
        );
        tail
    }

    /// The log version.
    pub fn version(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// The log's length in 64-byte units.
    pub fn units(self) -> u64 {
        self.0 & ((1 << 32) - 1)
    }

    /// Is the check right? A word from the media with up to three flipped bits is not.
    pub fn is_sound(self) -> bool {
        let word = self.0 & !Self::CHECK;
        self.0 == word | u64::from(tail_check(word)) << 32
    }
}

/// Over version and length.
fn tail_check(word: u64) -> u8 {
    let bytes = word.to_le_bytes();
    crc8([0, 1, 2, 3, 5, 6, 7].map(|at| bytes[at]))
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}+{}", self.version(), self.units())
    }
}

/// A transaction across regions: the region whose primary coordinates it, and a number that is never used again there, whoever
/// becomes its primary. Never 0: it is what an inode's lock word holds while the transaction has collected the inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[repr(transparent)]
pub struct TxnId(pub u64);

impl TxnId {
    /// Is this the sequence number of a transaction? Those with a single bit are left out, so that a lock word of 0 in which a
    /// bit has flipped is nobody's.
    pub fn is_number(sequence: u64) -> bool {
        !sequence.is_power_of_two() && sequence < 1 << 48 && sequence != 0
    }

    /// Joins the coordinating region and its sequence number (at least 1, below 2^48).
    pub fn new(region: RegionId, sequence: u64) -> TxnId {
        assert!(sequence != 0 && sequence < 1 << 48, "transaction number out of range");
        let txn = TxnId(u64::from(region.0) << 48 | sequence);
        debug_assert!(txn.region() == region && txn != TxnId::default(), "{txn:?}");
        txn
    }

    /// The coordinating region.
    pub fn region(self) -> RegionId {
        RegionId((self.0 >> 48) as u16)
    }

    /// The region's sequence number.
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

impl fmt::Debug for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}:{}", self.region().0, self.sequence())
    }
}

/// Log sequence number: the number of a record among those of its region. The first one has 1, and none is left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Of the record after this one.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// Which request asked for a change: with it in the log, a node that was started anew still knows what it was asked, and does
/// nothing twice (the completion record of RIFL, SOSP 2015).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// Who asked.
    pub session: SessionId,
    /// The request's number in that session.
    pub request: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_three_flipped_bits_of_a_tail_are_noticed() {
        assert_eq!(Tail::new(0, 0), Tail::default());
        for tail in [
            Tail::default(),
            Tail::new(3, 77),
            Tail::new((1 << 24) - 1, (1 << 32) - 1),
        ] {
            assert!(tail.is_sound());
            for a in 0..64 {
                for b in 0..=a {
                    for c in 0..=b {
                        // the three may coincide, which gives the flips of one and of two bits too
                        let bad = Tail(tail.0 ^ (1 << a | 1 << b | 1 << c));
                        assert!(!bad.is_sound(), "{tail:?}, bits {a} {b} {c}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_tail_says_version_and_length() {
        let tail = Tail::new(5, 1 << 31);
        assert_eq!((tail.version(), tail.units()), (5, 1 << 31));
        assert_ne!(tail, Tail::new(6, 1 << 31));
        for units in 0..1000 {
            assert!(Tail::new(5, units) < Tail::new(5, units + 1) && Tail::new(5, units + 1) < Tail::new(6, units));
        }
    }
}
