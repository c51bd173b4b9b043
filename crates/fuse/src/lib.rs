//! The mount: kernel requests into client calls.
//!
//! [`Mount::new`] mounts a [`polvo_client::Client`] at a directory and serves the kernel on threads of its own; each
//! of them runs operations itself ([`polvo_client::Client::run`]), so a request is carried out from start to
//! end by the thread that read it, without a hand-off. The client may be one of its own (over the fabric) or one inside
//! a node; this crate does not know the difference.
//!
//! What the kernel may keep: attributes and names of which the client has tokens (`kernel_cache`). Files are opened for direct
//! I/O. So an operation that has returned on one mount is seen at once on all others. Memory mappings work nevertheless
//! (`FUSE_DIRECT_IO_ALLOW_MMAP`); pages of a mapping are as fresh as the last open, stat or fault. That is why one mount at a
//! time may map a file shared and writable (`mappings`).
//!
//! What a mount cannot do: `O_TMPFILE` (nodes make no files without names; the kernel says EOPNOTSUPP and programs fall back to
//! a named file), and the file position after an `O_APPEND` write that met another mount's append (the bytes are right, `lseek(SEEK_CUR)` is what this kernel
//! thought).
//!
//! Locks (`fcntl`, `flock`) are those of the whole cluster, unless the mount is told to keep them to itself (`nolock`).
//! Who waits for one does so on a thread apart (`lock_waits`).
#![forbid(unsafe_code)]

mod attr;
mod caller;
mod complaints;
mod directory;
mod error;
mod filesystem;
mod flags;
mod handles;
mod inodes;
mod kernel_cache;
mod lock_owners;
mod lock_requests;
mod lock_waits;
mod mappings;
mod mount;
mod mount_point;
mod mount_table;
mod moved;
mod open_file;
mod options;
mod pages;
mod remount;
mod requests;
mod xattr;

pub use error::MountError;
pub use mappings::SharedMappings;
pub use mount::Mount;
pub use mount_point::unmount;
pub use options::{CacheMode, MountOptions};
pub use remount::remount;
