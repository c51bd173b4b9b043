//! The daemon's core: sessions, the services that clients call, transactions across regions, housekeeping.
//!
//! A [`Node`] is entered by whichever thread needs it: by its reactor for requests that come over the fabric, by a
//! mount's thread for files of its own regions. State lies behind short locks; a region's lock is never held across
//! an await or a copy of file data. Everything that waits is bounded by `Timeouts::held`.
//!
//! ```text
//!   reactor --- request/        who calls, leases, answers to repeated requests, what nodes ask nodes
//!      |          names/        create, unlink, link, rename; who may
//!   handle ----   data/         attributes, bytes, transfers that the node directs
//!                 locks/        advisory locks
//!                 tokens/       who is asked before an inode changes
//!                    |
//!               transactions/   collect, decide, dispatch
//!                    |
//!               region_service  a region and its lock
//!
//!   replication/   copies of regions at other nodes: who waits for them, how they are filled, followed and joined
//!   map/           the cluster map, which the nodes keep together
//!   housekeeping/  leases, transactions left over, scrubbing, usage of other nodes
//! ```
#![forbid(unsafe_code)]

mod backoff;
mod clock;
mod colocated;
mod config;
mod data;
mod error;
mod housekeeping;
mod locks;
mod map;
mod names;
mod node;
mod opening;
mod reactor;
mod region_service;
mod regions;
mod replication;
mod request;
#[cfg(feature = "testing")]
pub mod sim;
mod tokens;
mod transactions;

pub use clock::{Clock, SystemClock};
pub use config::{NodeConfig, OneSided, ScrubPace, Transactions};
pub use node::Node;
pub use reactor::Reactor;
#[cfg(feature = "testing")]
pub use transactions::probe::Phase;
