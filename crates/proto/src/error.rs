//! The errors of file operations. Each is exactly one errno at the FUSE and C edge.

use serde::{Deserialize, Serialize};

/// Why a file operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("file exists")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("directory not empty")]
    NotEmpty,
    /// ENOSPC
    #[error("no space left in the pools that may hold this")]
    NoSpace,
    /// EACCES
    #[error("permission denied")]
    Access,
    /// EPERM
    #[error("operation not permitted")]
    NotPermitted,
    /// ESTALE: the inode slot has another file now, or none
    #[error("stale file handle")]
    Stale,
    /// EBUSY: a transaction held the inode for longer than the configured wait; or it may not go (the root)
    #[error("inode is held by a transaction that does not end")]
    Busy,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// ENAMETOOLONG
    #[error("file name too long")]
    NameTooLong,
    /// EINVAL
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// ELOOP
    #[error("too many levels of symbolic links")]
    Loop,
    /// ENODATA
    #[error("no such extended attribute")]
    NoAttribute,
    /// E2BIG
    #[error("extended attribute too large")]
    TooBig,
    /// EFBIG
    #[error("file too large")]
    FileTooLarge,
    /// EBADF
    #[error("bad file descriptor")]
    BadHandle,
    /// EOPNOTSUPP
    #[error("operation not supported: {0}")]
    NotSupported(String),
    /// EIO: a node did not answer in the configured time
    #[error("node {node} did not answer: {why}")]
    Unreachable {
        /// the node
        node: u16,
        /// what happened
        why: String,
    },
    /// EIO: media or protocol damage; the text names the structure
    #[error("input/output error: {0}")]
    Io(String),
    /// The caller's cluster map is older than the node's; refresh it and ask the right node. Never shown to a user.
    #[error("region moved; the caller's map is stale")]
    WrongEpoch,
    /// The session is unknown or expired; attach again. ESTALE to a user.
    #[error("session expired")]
    SessionExpired,
    /// ENXIO: `lseek` for data or a hole from the end of the file on, or no data follows
    #[error("no such offset in the file")]
    NoSuchOffset,
    /// EAGAIN: somebody else's lock is in the way
    #[error("locked by somebody else")]
    WouldBlock,
    /// EDEADLK
    #[error("waiting for this lock would never end")]
    Deadlock,
    /// ENOLCK
    #[error("too many locks")]
    NoLocks,
    /// EINTR: a wait was called off
    #[error("interrupted")]
    Interrupted,
    /// ENOSPC, when it lasts: there would be room, but for what a node that was started anew holds back until nobody can still be
    /// storing there for the previous incarnation. Try again.
    #[error("no space left but for what is held back since a node was started anew")]
    HeldBack,
    /// EIO: another node serves a region now that this one has served before it was away.
    #[error("region {region} is served by another node since this one was away; start it anew")]
    Deposed {
        /// which
        region: u16,
    },
    /// A node serves an older copy of its pool than the one that was seen.
    #[error(
        "node {node} serves an older copy of its pool: era {seen} of the pool was seen, and is none of the {found} that this \
         copy has had"
    )]
    SetBack {
        /// which
        node: u16,
        /// number of the era that was seen of its pool
        seen: u64,
        /// how many the copy has had
        found: u64,
    },
    /// What is needed is somebody else's for a moment (an inode or the rename lock: another transaction's; room in the redo
    /// log): nothing was done, and whoever coordinates tries again, or says [`FsError::Busy`] in the end. Never shown to a user.
    #[error("held by another transaction for a moment")]
    Retry,
    /// EIO: an operator has taken a node out of the cluster; what its pool has others have, or it is given up.
    #[error("node {node} was removed from the cluster: its pool is served no more, do not start it again")]
    Removed {
        /// which
        node: u16,
    },
}

// It is part of every result on the hot path: moved with it, and dropped; one more variant with a string costs 1 % of a write.
const _: () = assert!(size_of::<FsError>() <= 32);

impl FsError {
    /// The errno of the FUSE and C edge.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotPermitted => libc::EPERM,
            FsError::NotFound => libc::ENOENT,
            FsError::Interrupted => libc::EINTR,
            FsError::Io(_)
            | FsError::Unreachable { .. }
            | FsError::WrongEpoch
            | FsError::SetBack { .. }
            | FsError::Deposed { .. }
            | FsError::Removed { .. } => libc::EIO,
            FsError::NoSuchOffset => libc::ENXIO,
            FsError::TooBig => libc::E2BIG,
            FsError::BadHandle => libc::EBADF,
            FsError::WouldBlock => libc::EAGAIN,
            FsError::Access => libc::EACCES,
            FsError::Busy | FsError::Retry => libc::EBUSY,
            FsError::Exists => libc::EEXIST,
            FsError::NotDirectory => libc::ENOTDIR,
            FsError::IsDirectory => libc::EISDIR,
            FsError::Invalid(_) => libc::EINVAL,
            FsError::FileTooLarge => libc::EFBIG,
            FsError::NoSpace | FsError::HeldBack => libc::ENOSPC,
            FsError::TooManyLinks => libc::EMLINK,
            FsError::Deadlock => libc::EDEADLK,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::NoLocks => libc::ENOLCK,
            FsError::NotEmpty => libc::ENOTEMPTY,
            FsError::Loop => libc::ELOOP,
            FsError::NoAttribute => libc::ENODATA,
            FsError::NotSupported(_) => libc::EOPNOTSUPP,
            FsError::Stale | FsError::SessionExpired => libc::ESTALE,
        }
    }
}
