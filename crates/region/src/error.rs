//! The one error type of the crate.

use polvo_format::{Ino, TxnId};
use polvo_proto::FsError;

/// Errors; `FsError` is what goes to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// the answer of the operation
    #[error(transparent)]
    Fs(#[from] FsError),
    /// inode is collected by a transaction: wait until it ends, then try again
    #[error("inode {ino} is locked by transaction {txn:?}")]
    Locked {
        /// inode
        ino: Ino,
        /// by
        txn: TxnId,
    },
    /// another session has a token of the inode: it is to be asked, and waited for, then try again
    #[error("inode {0} is watched by another session")]
    Watched(Ino),
    /// media damage
    #[error("{what} at pool offset {at:#x}: {why}")]
    Corrupt {
        /// structure
        what: &'static str,
        /// where
        at: u64,
        /// why
        why: String,
    },
    /// pool unusable (not a pool, wrong version, other cluster, truncated)
    #[error("{0}")]
    Pool(String),
}
