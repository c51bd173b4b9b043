//! The cluster map as the nodes keep it together: the value of a register ([`polvo_consensus::register`]) whose voters are named in
//! it. Nothing else changes a map.
//!
//! ```text
//!   change_map ---- change      asks the voters, this node among them or not: promise? accept?
//!                     |
//!   Register -----> voting      what this node has promised, accepted and knows to be chosen, in its pool before it says so
//!                     |
//!   NewMap ------->  learn      a map that was chosen: kept, and offered to the cell that all links go by
//!                     ^
//!   housekeeping -- following   after the start, and when another node names a later epoch; voters that are gone are replaced
//!   AddNode ------ addition     a node is taken into the map
//!   RemoveNode --- removal      a node is taken out of the map
//! ```
//!
//! Invariants:
//!
//! - a voter answers when its answer is durable in its pool, and not at all when what its pool keeps cannot be read;
//! - the cell holds only maps that were chosen, or the one of the configuration, which is the first (epoch 1);
//! - two attempts have the same ballot never: its round is durable in the proposer's pool before anybody is asked;
//! - each change raises the epoch by one; nobody but [`Node::change_map`](crate::Node::change_map) makes one, unless an operator says that
//!   a majority of the voters is gone for good ([`removal`]).

mod addition;
mod change;
mod following;
mod removal;
mod voting;

pub(crate) use following::{Reached, confirm_at_start};
pub(crate) use removal::{belongs, follow_removals};
pub(crate) use voting::MapRegister;
