//! Scrubbing: file data compared with its checksums.

use crate::InodeRef;
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
}
