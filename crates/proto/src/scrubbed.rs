//! Scrubbing: file data compared with its checksums.

use crate::InodeRef;
use polvo_format::{Ino, NodeId};
use serde::{Deserialize, Serialize};

/// Where a scrub goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubPlace {
    /// of an inode
    pub slot: u64,
    /// in the file
    pub offset: u64,
}

/// Bytes of a file that are not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DamagedData {
    /// which
    pub inode: InodeRef,
    /// in the file; as much of a page as the file has in one piece
    pub offset: u64,
    /// bytes
    pub len: u64,
}

/// What a step of a scrub has found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scrubbed {
    /// `None`: all has been looked at
    pub next: Option<ScrubPlace>,
    /// verified
    pub bytes: u64,
    /// without a checksum
    pub unknown: u64,
    /// damaged pages
    pub damaged: Vec<DamagedData>,
    /// pages that were damaged and are what the copy at that node has
    pub mended: Vec<(DamagedData, NodeId)>,
}

/// Where the comparison of a region with its copies goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopyPlace {
    /// index in the region
    pub segment: u32,
    /// page of it
    pub page: u32,
}

/// What a step of that comparison has found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubbedCopies {
    /// `None`: all has been compared
    pub next: Option<CopyPlace>,
    /// compared, of all copies together
    pub bytes: u64,
    /// pages that were others in a copy, and were sent to it
    pub sent: u64,
    /// pages of inodes, logs and data that were damaged in the region, and are what the copy at that node has; of which inode, if of one
    pub mended: Vec<(Option<Ino>, NodeId)>,
    /// pages that differ and are damaged here, which the copy does not help
    pub left: u64,
    /// copies that could not be compared, and why
    pub missing: Vec<(NodeId, String)>,
}
