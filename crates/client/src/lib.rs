//! The client library: path walk, open files, caches, client-active I/O. An async core, and a blocking client for callers
//! that are threads.
//!
//! - [`Client`] is what all threads share: session, caches, open files, space in hand. [`LocalClient`] is one thread's part of
//!   it, with connections of its own; [`Client::run`] runs an operation on the calling thread.
//! - Nothing cached is used without validation: names are valid while the directory's log tail is the one they were
//!   learnt at, extents while the file's is. So whatever has returned to anybody is seen by everybody at once. What a token
//!   says has not changed needs none (`tokens`).
//! - Data never passes through an RPC unless it is small: reads are one-sided reads of data and tail in one batch
//!   (`io/read`), writes go one-sided into delegated space and are committed with one RPC (`io/write`).
//! - Where a client has no one-sided access to data, or is told not to use it, the node moves the data (`io/transfers`).
//! - A colocated client ([`Client::internal`]) does the same with loads, stores and function calls (`colocated`).
//! - Who opens a file to write says so to its node, which lets one client at a time map it shared and writable (`io/writers`).
//!
//! Round trips with warm caches: lookup, stat and open 1 (one-sided; to write 1 RPC); create, unlink, rename 1 RPC; a read
//! 1 batch; a write 1 RPC, preceded by 1 one-sided batch when larger than 4 KiB.
#![forbid(unsafe_code)]

mod access_times;
mod blocking_client;
mod cache;
mod client;
mod colocated;
mod io;
mod local_client;
mod locks;
mod lookup;
mod maintenance;
mod metadata;
mod open;
mod open_table;
mod remote_inode;
mod tokens;

pub use access_times::AccessTimeRule;
pub use client::{Client, ClientConfig, Counters};
pub use colocated::shown::ShownFile;
pub use io::read::Whence;
pub use io::stream::ReadStream;
pub use io::transfers::{Buffer, Thresholds, Transfers};
pub use local_client::LocalClient;
pub use open::OpenFile;
pub use polvo_proto::LockAnswer;
pub use tokens::{Keeper, Kept, Since};
