//! The daemon's inside: sessions, the services that clients call, transactions across regions, housekeeping.
//!
//! A [`Node`] is entered by whichever thread needs it: by its reactor for requests that come over the fabric, by a
//! mount's thread for files of its own regions. State lies behind short locks; a region's lock is never held across
//! an await or a copy of file data. Everything that waits is bounded by `Timeouts::held`.
//!
//! ```text
//!   reactor --- session_services   who calls, leases          region_service - a region and its lock
//!      |        name_services      create, unlink, link    utilization - which region gets a new inode
//!      |        rename             rename                     sessions -- who holds what
//!   handle ---- file_services      attributes, data           replay ---- answers to repeated requests
//!               lock_services      advisory locks             lock_table, deadlocks
//!               transfers          data that the node moves   housekeeping
//!               peer_services      what nodes ask nodes
//!                    |
//!               transaction (collect, decide) --- dispatch
//!                    |
//!               two_phase (prepare, conclude), for comparison
//! ```
#![forbid(unsafe_code)]

mod acl;
mod backoff;
mod check_pages;
mod clock;
mod deadlocks;
mod dispatch;
mod error;
mod file_services;
mod housekeeping;
mod lock_ranges;
mod lock_services;
mod lock_table;
mod name_services;
mod names;
mod node;
mod peer_services;
mod permission;
mod pool_past;
mod probe;
mod reactor;
mod region_service;
mod rename;
mod rename_lock;
mod replay;
mod request_context;
mod request_counters;
mod scrub;
mod session_services;
mod sessions;
#[cfg(feature = "testing")]
pub mod sim;
mod status;
mod transaction;
mod transfers;
mod two_phase;
mod utilization;

pub use clock::{Clock, SystemClock};
pub use node::{Node, NodeConfig, OneSided};
pub use polvo_region::{FileView, Part};
#[cfg(feature = "testing")]
pub use probe::Phase;
pub use scrub::ScrubPace;
pub use sessions::Session;
pub use two_phase::Transactions;
