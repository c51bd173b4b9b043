//! What lies on the media: superblock, segment table, region header, inode, log entries, redo record, each with its
//! checksum and version. Pure: bytes in, typed views out, no I/O. `docs/media-format.md` draws it byte by byte.
//!
//! Nothing read from the media is trusted: every decoder checks magic, version, bounds and checksum and returns a
//! [`FormatError`] that names the structure.
#![forbid(unsafe_code)]

mod attr;
mod checksum;
mod error;
mod history;
mod ids;
mod inode;
mod lane;
mod log_entry;
mod log_fields;
mod log_page;
mod log_record;
mod mirror_record;
mod page_checksum;
mod peer_record;
mod redo;
mod region_header;
mod register_slot;
mod segment_entry;
mod superblock;

pub use attr::{Attr, FileKind};
pub use error::FormatError;
pub use history::{ERAS_KEPT, Era, History, KnownPool, PoolPast};
pub use ids::{
    Epoch, Generation, Gpa, Ino, Lsn, NodeId, Origin, RegionId, RegionOffset, SegmentIndex, SessionId, Tail, TxnId,
};
pub use inode::{
    INODE_ATTRIBUTES, INODE_CHECKSUMS, INODE_HEAD_SIZE, INODE_LOCK, INODE_LOG_PAGE, INODE_TAIL, INODE_UNITS,
    INODE_VIEW_SIZE, InodeHead, InodeView, TAIL, encode_attributes,
};
pub use lane::{LANE_HEADS, LANE_RING, LaneHead, Ring};
pub use log_entry::{AttrChange, Entry, INLINE_ENTRY_MAX, INLINE_MAX, Init, XATTR_MAX, XATTR_PART_MAX};
pub use log_page::{INLINE_UNITS, LOG_PAGE_NEXT, LogPage, PAGE_UNITS, UnitPlace};
pub use log_record::{LogEntries, Record, entry_units, seal};
pub use mirror_record::{Change, MirrorRecord};
pub use page_checksum::{PAGE_CHECKSUM_SIZE, PAGE_CRC_SIZE, PageChecksum, crcs_of_pages};
pub use peer_record::{PEER_PLACE, PEER_RECORD_SIZE, PEERS_MAX, PeerRecord};
pub use redo::{REDO_RECORD_MAX, RedoEncoder, RedoPart, RedoRecord, RedoState};
pub use region_header::{Floor, REGION_FLOOR, REGION_SEQUENCE, RegionHeader, SequenceLimit};
pub use register_slot::{
    REGIONS_MAX, REGISTER_HEADER, REGISTER_OWNER, REGISTER_PLACE, REGISTER_VALUE_MAX, RegisterSlot,
};
pub use segment_entry::{LANE_CLASS, REGION_SEGMENTS_MAX, SegmentEntry, SegmentOwner};
pub use superblock::{
    FORMAT_VERSION, POOL_MAGIC, PoolLayout, REDO_SLOT_SIZE, REDO_SLOTS_OWN, SEGMENT_SHIFT_MIN, SUPERBLOCK_SIZE,
    SUPERBLOCK_USED, SUPERBLOCKS, Superblock,
};

/// A cache line: the unit in which the medium may tear a store of more than eight bytes.
pub const LINE: usize = 64;
/// The page: unit of data allocation and size of a log page, in bytes.
pub const PAGE: usize = 4096;
/// Size of an inode on the media, in bytes.
pub const INODE_SIZE: usize = 256;
/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes (PATH_MAX without the terminating NUL).
pub const SYMLINK_MAX: usize = 4095;

/// Does a name have one of the two bytes that no name may have, `/` or NUL? (All bytes are looked at: without a branch for
/// each of them that is the quickest where there are at most [`NAME_MAX`].)
pub fn has_slash_or_nul(name: &[u8]) -> bool {
    name.iter()
        .fold(false, |found, byte| found | (*byte == b'/') | (*byte == 0))
}
