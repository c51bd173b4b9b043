//! Persistent memory: map a pool; store, flush, fence.
//!
//! A pool is one range of bytes that survives: a `/dev/dax*` device, a file on a DAX file system, a file on tmpfs, a
//! plain file, or a simulated medium whose power can be cut at any fence ([`sim`]). The layers above see [`Pmem`] only:
//! they store, [`flush`](Pmem::flush) what they stored and [`fence`](Pmem::fence); what was flushed before a fence is
//! durable after it. Which of these steps cost anything is decided by the [`Medium`] and its [`Persistence`].
//!
//! Durability against power loss is what these calls promise on DAX media. On tmpfs they promise survival of the
//! process; on a plain file [`Pmem::sync`] has to be called as well ([`Pmem::needs_sync`]).
//!
//! ```
//! let pool = polvo_pmem::Pmem::simulated(4096);
//! pool.write(128, b"octopus");
//! pool.persist(128, 7);
//! let mut found = [0; 7];
//! pool.read(128, &mut found);
//! assert_eq!(&found, b"octopus");
//! ```
//!
//! Unsafe code: the mapping, copies into and out of it, the cache instructions, prefetches, and the one for checksums. Everything that can
//! be reached from outside is safe, except the use of the pointer that [`Pmem::as_mut_ptr`] gives to the fabric's providers.

mod copy;
mod crc32c;
mod error;
mod fetch;
mod first_touch;
mod incarnation;
mod mapping;
mod persistence;
mod pool;
pub mod sim;
mod unknown_name;

pub use crc32c::crc32c_append;
pub use error::PmemError;
pub use fetch::fetch;
pub use mapping::Medium;
pub use persistence::Persistence;
pub use pool::Pmem;
pub use unknown_name::UnknownName;

/// Bytes of a cache line: what `flush` works on and what the simulated medium keeps or loses.
pub const CACHE_LINE: u64 = 64;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("pools are mapped whole: a 64-bit address space is needed");
