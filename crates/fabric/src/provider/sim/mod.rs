//! A simulated network: any number of hosts in one thread, in virtual time, from one seed.
//!
//! Messages of a connection arrive in order, each after a random delay, so that those of different connections overtake
//! each other. Verbs take effect at the target when their message arrives, without its doing anything. Hosts can be cut
//! off, pairs of hosts partitioned. Run it on a current-thread runtime with the clock paused, inside a `LocalSet`:
//!
//! ```
//! use polvo_fabric::sim::Network;
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
//! # tokio::task::LocalSet::new().block_on(&runtime, async {
//! let network = Network::new(42);
//! let _entered = network.enter();
//! // Listener::bind(&"sim://node-1".parse()?, ...), connect(&"sim://node-1".parse()?, ...)
//! network.partition("node-1", "node-2");
//! network.heal("node-1", "node-2");
//! # });
//! ```
//!
//! The host of a process is known by its [`MemoryRegions`]: a listener's is the name it binds, others are `client-1`,
//! `client-2`... in the order in which they first connect, unless [`Network::place`] names them.

mod end;
mod network;

pub(crate) use network::{Arrived, SimListening, connect};
pub use network::{Entered, Network};

#[allow(unused_imports)] // named in the documentation
use crate::MemoryRegions;
