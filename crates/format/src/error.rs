//! Why bytes of the media were not what they should be.

/// Error of every decoder of this crate. Where the structure lies is known to the caller only, who adds it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// Fewer bytes than the structure takes.
    #[error("{structure}: {len} bytes where {need} are needed")]
    Short {
        /// which
        structure: &'static str,
        /// bytes there are
        len: usize,
        /// bytes it takes
        need: usize,
    },
    /// The structure's first bytes are not its magic number.
    #[error("{0}: no magic number")]
    Magic(&'static str),
    /// Written by another version of PolvoFS.
    #[error("{structure}: version {found}, this program knows version {known}")]
    Version {
        /// which
        structure: &'static str,
        /// on the media
        found: u32,
        /// known here
        known: u32,
    },
    /// The bytes changed since they were written (or were never written completely).
    #[error("{0}: wrong checksum")]
    Checksum(&'static str),
    /// The checksum is right, but a field has a value that it cannot have.
    #[error("{structure}: {why}")]
    Invalid {
        /// which
        structure: &'static str,
        /// field and value
        why: String,
    },
    /// An inode was read while it was being changed (or its checksums are wrong): read it again, a few times.
    #[error("inode: read while it was changed")]
    Torn,
    /// The inode slot holds no inode.
    #[error("inode: slot is free")]
    Free,
}

impl FormatError {
    /// A field with a value that it cannot have.
    pub fn invalid(structure: &'static str, why: impl Into<String>) -> FormatError {
        FormatError::Invalid {
            structure,
            why: why.into(),
        }
    }
}
