//! The verbs: memory regions, one-sided operations, send and receive, the same over every provider.
//!
//! | provider | peers | one-sided operations |
//! |---|---|---|
//! | `shm` | on one host | loads, stores and CPU atomics on the peer's mapped memory, without involvement of the peer |
//! | `tcp` | across a network | a software RNIC: served from the memory regions by whoever drives the target's queue pair |
//! | `sim` | in one thread | virtual time, seeded delays, disconnection, partition |
//!
//! A [`QueuePair`] belongs to the thread (tokio current-thread runtime) that made it and is driven by the futures that
//! wait on it; everything is `!Send` unless said. A process registers what its peers may reach in [`MemoryRegions`]
//! (`Send + Sync`), [`connect`]s or [`Listener::accept`]s, and runs batches of [`Verb`]s with [`QueuePair::execute`].

mod access;
mod address;
mod endpoint;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod identity;
mod key_table;
mod memory;
mod provider;
mod queue_pair;
mod regions;
mod strangers;
mod verb;
mod wait;

/// The simulated network, see `Address::Sim`.
pub use provider::sim;

pub use access::{Access, RemoteKey};
pub use address::Address;
pub use endpoint::{Accepted, Listener, connect};
pub use error::FabricError;
pub use identity::{Identity, Role, Security};
pub use memory::{Buffer, Memory};
pub use queue_pair::{Events, QueuePair};
pub use regions::MemoryRegions;
pub use strangers::Sparing;
pub use verb::{Event, Local, MAX_SEND, Remote, Verb};
pub use wait::{
    Counters, busy_poll_budget, flush, poller, serve_busy_poll_budget, set_busy_poll_budget, set_serve_busy_poll_budget,
};
