//! What can go wrong when a pool is mapped or synced.

use crate::Persistence;

/// Error of mapping or syncing a pool.
#[derive(Debug, thiserror::Error)]
pub enum PmemError {
    /// The operating system refused.
    #[error("{path}: {what}: {source}")]
    Os {
        /// Pool.
        path: String,
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// Nothing there that could be a pool (empty, a directory, another kind of device, too short).
    #[error("{path}: cannot be used as a pool: {why}")]
    Unusable {
        /// Pool.
        path: String,
        /// Why, and what to do.
        why: String,
    },
    /// Somebody else has the pool open.
    #[error("{path}: pool is in use by another process (it holds the lock on it)")]
    Locked {
        /// Pool.
        path: String,
    },
    /// No room for a pool of this size.
    #[error("{path}: no space for a pool of {len} bytes")]
    NoSpace {
        /// Pool.
        path: String,
        /// Bytes asked for.
        len: u64,
    },
    /// The configured flush instruction does not exist on this CPU.
    #[error("persistence `{0}` is not supported by this CPU")]
    NotSupported(Persistence),
}
