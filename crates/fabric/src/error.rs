//! The one error of this crate.

/// Error of a fabric operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The connection is gone; every outstanding and later operation gets this.
    #[error("connection to {peer} lost: {why}")]
    Disconnected {
        /// Who was at the other end.
        peer: String,
        /// What ended it.
        why: String,
    },
    /// Unknown or revoked key.
    #[error("remote key {key:#x} is not valid at the target")]
    BadKey {
        /// The key.
        key: u64,
    },
    /// Access right missing.
    #[error("remote key {key:#x} does not allow this operation")]
    Denied {
        /// The key.
        key: u64,
    },
    /// Outside the memory region, or a misaligned atomic.
    #[error("range {offset:#x}+{len:#x} lies outside memory region {key:#x}")]
    OutOfRange {
        /// The key.
        key: u64,
        /// First byte, relative to the memory region.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A batch that the fabric does not carry.
    #[error("{what} of {len} bytes is over the limit of {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size, bytes.
        len: u64,
        /// The limit, bytes.
        max: u64,
    },
    /// Connecting or accepting failed.
    #[error("cannot connect to {peer}: {why}")]
    Connect {
        /// Where to.
        peer: String,
        /// Reason of the operating system or the peer.
        why: String,
    },
    /// Secret, version or cluster do not match.
    #[error("{peer} refused us: {why}")]
    Refused {
        /// Who.
        peer: String,
        /// Which of them.
        why: String,
    },
    /// An address could not be parsed or bound.
    #[error("address {addr}: {why}")]
    Address {
        /// As it was given.
        addr: String,
        /// What is wrong with it.
        why: String,
    },
    /// A deadline passed.
    #[error("{peer} did not answer within {ms} ms")]
    TimedOut {
        /// Who.
        peer: String,
        /// The deadline, milliseconds.
        ms: u64,
    },
}
