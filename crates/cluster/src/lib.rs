//! The cluster map, placement, and a thread's links to the nodes of the map.
//!
//! Clients and nodes use this crate alike: a [`SessionContext`] is what all threads of one session share (identity,
//! map, limits, counters), [`Links`] is what one thread has of its own (connections, segment maps). Everything a
//! caller can wait for is bounded by [`Timeouts`].
#![forbid(unsafe_code)]

mod absences;
mod bootstrap;
mod check;
mod colocated;
mod copy_moves;
mod counters;
mod dial;
mod join;
mod link;
mod links;
mod lock_ranges;
mod map_cell;
mod one_sided;
mod placement;
mod pools_seen;
mod session;
mod shown_reads;
mod timeouts;

pub use bootstrap::fetch_map;
pub use check::check_cluster;
pub use colocated::{Colocated, ColocatedCaller, ColocatedSession, LocalFuture, ShownBytes, WrittenAtOnce};
pub use copy_moves::{CopyMove, MovedCopy, kept_by, next_of_move, spread_copies, with_copy, with_moved, without_copy};
pub use counters::{CounterSet, LinkCounters, LinkTotals};
pub use dial::host_identity;
pub use join::{InFlight, join_all};
pub use link::Link;
pub use links::Links;
pub use lock_ranges::RangeLocks;
pub use map_cell::MapCell;
pub use one_sided::{RegionVerb, within};
pub use placement::{candidates, initial_map, next_voters, replace_copies, with_node, without_node};
pub use pools_seen::PoolsSeen;
pub use session::SessionContext;
pub use timeouts::Timeouts;
