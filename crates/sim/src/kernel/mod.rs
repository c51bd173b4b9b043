//! A mounted client: a model of the kernel's FUSE client, and of the mount that serves it, between an actor and its client.
//!
//! ```text
//!   actor      mount (this folder)                                        client
//!   look ----> caches: a name, attributes? ---- hit: answered, nobody is asked
//!                  | miss
//!                  v
//!              daemon: a request  ------------------------------------->  lookup, get_attr
//!              daemon: the answer, written while the token is kept  <---
//!                  | some time later
//!                  v
//!   told <---- caches: taken in, the timeouts begin
//!
//!   Keeper::forget (from the task that answers for tokens) ---> caches: attributes invalidated; daemon: are names over?
//! ```
//!
//! - [`caches`] is what Linux keeps (`fs/fuse/dir.c`, `fs/fuse/inode.c`): names, and attributes with the version that drops
//!   answers from before an invalidation.
//! - [`daemon`] is what `polvo-fuse` does with a look and with what it is told to forget (`kernel_cache`, `reply_found`).
//! - [`mount`] is an operation of a program: what it takes from the caches, what it asks, what it leaves invalid.
//! - [`Stillness`](polvo_node::sim::Stillness) stops a client's tasks, as a stopped process, while the kernel goes on by what it was told.
//!
//! What always holds:
//!
//! - what a hit says was so at some time between the invocation and the answer: the history is judged as that of any client;
//! - an answer that was written after an invalidation is not dropped by it, and one that was written before is, unless the
//!   kernel did not know the inode: then the daemon is told so and tries again;
//! - timeouts begin when the kernel takes an answer in, and are rounded up to its ticks.
//!
//! Files are read by way of pages here page by page, each read an operation of its own: what Linux gives together of several pages
//! may be as of several moments, and so may size and bytes where a page had to be filled: here such a read is done again when the page
//! is there. What it takes for the size is what its own question was answered, not what the kernel has taken in of that, which may be
//! less (`fuse/pages`). Attributes alone do not drop pages here, as they do there when size or time of change move.
//!
//! An actor does one operation after the other, so the locks of directories and two threads of one mount are not modelled.

pub mod caches;
pub mod daemon;
pub mod mount;

pub use mount::Mount;
