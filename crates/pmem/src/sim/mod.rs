//! The simulated medium: what was stored is kept apart from what is durable, so a test can cut the power.
//!
//! The model, per cache line of 64 bytes:
//! - a store makes the line *dirty*: the CPU sees it, the medium may or may not get it (caches evict when they like);
//! - [`flush`](crate::Pmem::flush) puts its present content *on its way*;
//! - [`fence`](crate::Pmem::fence) makes what is on its way durable;
//! - a streaming store is a store and a flush in one.
//!
//! After a power cut ([`SimMedium::image`], [`FencePoint::image`], [`SimMedium::power_cut`]) the medium holds everything
//! durable, and of each line that is not, what a [`Chooser`] picks: the durable content, the present one, one from in
//! between (a line that was overwritten may have been evicted before), or a mix of 8-byte words of all these. Only
//! aligned 8-byte words are atomic, as on the real thing. Reality is kinder here (x86 keeps stores to one line in
//! order); code that survives this survives that.
//!
//! To try a crash at every fence, set a hook; it is called before a fence takes effect:
//!
//! ```
//! use polvo_pmem::{Pmem, sim::RandomLines};
//! use std::sync::{Arc, Mutex};
//!
//! let pool = Pmem::simulated(1 << 20);
//! let images = Arc::new(Mutex::new(Vec::new()));
//! let seen = images.clone();
//! pool.sim().unwrap().set_fence_hook(Box::new(move |point| {
//!     for seed in 0..4 {
//!         seen.lock().unwrap().push(point.image(&mut RandomLines::new(seed ^ point.number() << 8)));
//!     }
//! }));
//! pool.write_u64(0, 1);
//! pool.persist(0, 8);
//! for image in images.lock().unwrap().iter() {
//!     let found = Pmem::simulated_from_image(image).read_u64(0);
//!     assert!(found == 0 || found == 1);
//! }
//! ```
//!
//! Images share their pages with the medium and with each other and cost a few microseconds, whatever the pool's size.

mod chooser;
mod medium;
mod pages;
#[cfg(test)]
mod tests;

pub use chooser::{Chooser, Fate, KeepAll, LoseAll, PendingLine, RandomLines, SomeLines};
pub use medium::{FenceHook, FencePoint, Omission, SimMedium, SimStats};
pub use pages::CrashImage;
