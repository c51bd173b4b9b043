//! Copies of regions at other nodes, which follow record by record (Mojim, section 3.2; thesis, section 3.3).
//!
//! ```text
//! primary   region --records--> Feed --> Follower, LaneFeed ....one-sided writes.... lane, copy   mirror
//!                                |                                                   Copies
//!           requests wait in Replication          keeper: attaches, fills, applies, joins, drops
//! ```
//!
//! Invariants:
//!
//! - nothing is answered before every mirror in the set has the records of what was found or done ([`Replication::wait`]); of an
//!   asynchronous region nothing before the mirrors lack no more than they may, and no part of a transaction over several regions, no
//!   `Sync`, and nothing that such a transaction goes by, before they have it;
//! - a mirror gets a region's records in order, each after the file data that it names, and one batch at a time;
//! - a mirror counts only once it has all that the region held, and the map says so ([`keeper`]); it is taken out of the map before
//!   anything is answered without it;
//! - a primary answers only as long as every mirror in its set has heard of it a moment ago ([`leases`]);
//! - what clients read past it they believe under the same conditions, which it shows them ([`gate`]).
//!
//! Who needs a record mirrored sends all that have ended by then; who comes meanwhile waits, and finds its own sent, or sends what
//! has come since: commits travel together without anybody waiting for others to come. Where several waited the last time, who comes lets
//! those have their turn first that are ready to run.

pub(crate) mod compare;
pub(crate) mod copies;
pub(crate) mod feed;
pub(crate) mod fill;
pub(crate) mod follower;
pub(crate) mod gate;
pub(crate) mod hand_over;
pub(crate) mod keeper;
pub(crate) mod lane_feed;
pub(crate) mod leases;
pub(crate) mod move_copy;
pub(crate) mod primary;
pub(crate) mod promotion;
pub(crate) mod replace;

pub(crate) use primary::{Replication, Until};
