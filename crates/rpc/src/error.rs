//! The one error of this crate.

use polvo_fabric::FabricError;

/// Error of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The fabric's; a deadline that passed is [`FabricError::TimedOut`].
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The request is longer than [`crate::MAX_REQUEST`].
    #[error("request of {0} bytes is over the limit")]
    TooLarge(usize),
    /// The peer breaks the protocol; the connection is closed.
    #[error("malformed message from {peer}: {what}")]
    Malformed {
        /// Who.
        peer: String,
        /// What is wrong.
        what: String,
    },
}
