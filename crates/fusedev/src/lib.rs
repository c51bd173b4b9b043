//! The kernel's side of a mount: FUSE by `/dev/fuse`, without a library in between.
//!
//! ```text
//!     Session::mount --> `mount`: the device, mounted --> INIT, answered with what FileSystem::init wants
//!          |
//!          +--> `readers`, looked after by `supervisor`
//!                  `transport`  one request, as bytes
//!                  `request`    decoded where they lie
//!                  `filesystem` the method that it is for
//!                  `reply`      the answer, from this thread or from another
//! ```
//!
//! What it is made for: few and cheap steps a request (one `read`, one `writev`; no allocation, no lock, no other system call), and
//! requests of the kernel that others leave out: INTERRUPT, `flock` told apart from `fcntl`, files without names, `statx`, 64-bit
//! `copy_file_range`, notifications. What comes from the kernel is checked like anything from outside; no bytes make it panic.
//!
//! `unsafe` is in `transport` alone: three `ioctl`s.

pub mod abi;
mod filesystem;
mod mount;
mod notify;
mod readers;
mod reply;
mod request;
mod session;
mod supervisor;
mod transport;
mod upcalls;

pub use filesystem::{Connection, FileSystem, MOST_WRITTEN};
pub use mount::{MountParameters, find_helper};
pub use notify::{Entry, Notifier};
pub use readers::{spawn, will_wait};
pub use reply::{Listing, Reply};
pub use request::{Malformed, Operation, Request};
pub use rustix::io::Errno;
pub use session::Session;
pub use transport::{BODY_PARTS, BackingId};
pub use upcalls::Upcalls;
