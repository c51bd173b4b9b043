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
    /// EBUSY: a transaction held the inode for longer than the configured wait
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
    /// ETIMEDOUT, EIO at a mount: a node did not answer in the configured time
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
    /// storing there for the run before. Try again.
    #[error("no space left but for what is held back since a node was started anew")]
    HeldBack,
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
}

impl FsError {
    /// The errno of the FUSE and C edge (Linux numbers).
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotPermitted => 1,
            FsError::NotFound => 2,
            FsError::Interrupted => 4,
            FsError::Io(_) | FsError::Unreachable { .. } | FsError::WrongEpoch | FsError::SetBack { .. } => 5,
            FsError::NoSuchOffset => 6,
            FsError::TooBig => 7,
            FsError::BadHandle => 9,
            FsError::WouldBlock => 11,
            FsError::Access => 13,
            FsError::Busy => 16,
            FsError::Exists => 17,
            FsError::NotDirectory => 20,
            FsError::IsDirectory => 21,
            FsError::Invalid(_) => 22,
            FsError::FileTooLarge => 27,
            FsError::NoSpace | FsError::HeldBack => 28,
            FsError::TooManyLinks => 31,
            FsError::Deadlock => 35,
            FsError::NameTooLong => 36,
            FsError::NoLocks => 37,
            FsError::NotEmpty => 39,
            FsError::Loop => 40,
            FsError::NoAttribute => 61,
            FsError::NotSupported(_) => 95,
            FsError::Stale | FsError::SessionExpired => 116,
        }
    }
}
