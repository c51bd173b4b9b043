//! What clients and nodes say to each other: the requests and replies that travel by RPC, their encoding and limits.
//!
//! One-sided operations need no message; what they need (segment places, keys) is handed out here. Encoding is
//! postcard; every decoder rejects trailing bytes and values over the limits below, so that a handler sees only
//! requests of sane size.
#![forbid(unsafe_code)]

mod error;
mod map;
mod message;

pub use error::FsError;
pub use map::{ClusterMap, NodeInfo, RegionInfo, Replica, ReplicaRole, SegmentClass, SegmentMap, SegmentPlace};
pub use message::*;

/// Version of the protocol; peers with another one are refused at attach.
pub const PROTOCOL_VERSION: u32 = 1;
/// Largest write whose bytes travel in the request, in bytes.
pub const EAGER_MAX: usize = 4096;
/// Largest extended attribute value, in bytes.
pub const XATTR_VALUE_MAX: usize = 3584;
/// Most write runs in one commit.
pub const RUNS_MAX: usize = 512;
/// Largest file, in bytes (2^63 - 1, as POSIX `off_t` allows).
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
