//! What clients and nodes say to each other: the requests and replies that travel by RPC, their encoding and limits.
//!
//! One-sided operations need no message; what they need (segment places, keys) is handed out here. Encoding is
//! postcard; every decoder rejects trailing bytes and values over the limits below, so that a handler sees only
//! requests of sane size.
#![forbid(unsafe_code)]

mod check_facts;
mod error;
mod kept_map;
mod limits;
mod lock;
mod map;
mod message;
mod region_set;
mod replies;
mod requests;
mod scrubbed;

pub use check_facts::{CheckFacts, InodeFact, NameFact, join_facts};
pub use error::FsError;
pub use kept_map::{KeptMap, ROUNDS_MAX};
pub use limits::*;
pub use lock::*;
pub use map::{
    Beat, ClusterMap, Gate, LanePlace, NodeInfo, RegionInfo, Replica, ReplicaRole, SegmentClass, SegmentMap,
    SegmentPlace,
};
pub use message::*;
pub use region_set::{Durability, Placement, RegionSet, SetWish};
pub use replies::{LockAnswer, OtherReply, Reply, WriteAnswer, reply};
pub use requests::{Ask, Request, RequestKind, ask};
pub use scrubbed::{CopyPlace, DamagedData, ScrubPlace, Scrubbed, ScrubbedCopies};

/// Version of the protocol; peers with another one are refused at attach.
pub const PROTOCOL_VERSION: u32 = 24;
