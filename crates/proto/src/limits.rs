//! Limits of messages, and which requests change something.

use crate::{Call, Cred, DecodeError, InodeRef, Intent, Request, Usage};
use polvo_consensus::register;

/// Largest write whose bytes travel in the request, in bytes.
pub const EAGER_MAX: usize = 4096;
/// Largest read whose bytes travel in the answer, in bytes.
pub const EAGER_READ_MAX: usize = 32 << 10;
/// Largest server-directed transfer, in bytes.
pub const TRANSFER_MAX: u64 = 8 << 20;
/// Largest extended attribute value, in bytes.
pub const XATTR_VALUE_MAX: usize = polvo_format::XATTR_MAX;
/// Most bytes of the names of an inode's extended attributes, a NUL behind each: what `listxattr` can tell on Linux.
pub const XATTR_NAMES_MAX: usize = 64 << 10;
/// Most bytes of extended attributes, names and values, of one inode.
pub const XATTRS_MAX: usize = 1 << 20;
/// Largest access control list, in bytes: a new inode's lists travel with all else that makes it.
pub const ACL_MAX: usize = 3584;
/// Most write runs in one commit.
pub const RUNS_MAX: usize = 512;
/// Most bytes of checksums in one commit: that of a write of 8 MiB to pages of which no two are neighbours.
pub const CRCS_MAX: usize = 16 << 10;
/// Most pieces of one `ReadBytes`.
pub const READS_MAX: usize = 256;
/// Largest file, in bytes (2^63 - 1, as POSIX `off_t` allows).
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Most segments in one answer to `Segments`, one `MirrorSegments` or `KeepSegments`.
pub const SEGMENTS_PAGE: usize = 2048;
/// Most pages of one `PageSums`: well below a millisecond of a processor's time.
pub const SUMS_MAX: u32 = 64;
/// Most facts (inodes and names together) in one answer to `Check`.
pub const FACTS_PAGE: usize = 1500;
/// Most supplementary groups of a caller.
pub const GROUPS_MAX: usize = 64;
/// Most inodes in one `Release` or `Accessed`, and most runs in one `ReturnSpace`.
pub const RELEASE_MAX: usize = 1024;
/// Most intents in one `Collect` or `Prepare`.
pub const INTENTS_MAX: usize = 16;
/// Longest name of a client, in bytes.
pub const CLIENT_NAME_MAX: usize = 256;

/// Most bytes of a cluster map, encoded: it travels in one message, and a pool has room for two. That of 64 nodes and 1,024
/// regions with three replicas each takes about half of it.
pub const MAP_BYTES_MAX: usize = 56 << 10;

/// Most bytes, and most inodes, of a node's pool.
pub const USAGE_MAX: usize = 1 << 52;

/// Most locked ranges of a session at a node.
pub const LOCKS_MAX: usize = 1 << 16;
/// Most ranges in one [`crate::Request::ClaimLocks`].
pub const LOCK_CLAIMS_MAX: usize = 256;
/// Most holders of locks in one [`crate::Request::TakeOver`].
pub const LOCKED_BY_MAX: usize = 1000;
/// Most waits for locks of a session at a node.
pub const LOCK_WAITS_MAX: usize = 1 << 12;
/// Most tokens in one `TakeTokens`, in one `Watch`, and in the answer to either.
pub const TOKENS_PAGE: usize = 256;
/// Most tokens of a session at a node.
pub const TOKENS_MAX: usize = 1 << 16;
/// Longest wait for a lock in one request, in milliseconds.
pub const LOCK_WAIT_MAX_MS: u32 = 1000;

fn at_most(what: &str, found: usize, limit: usize) -> Result<(), DecodeError> {
    if found <= limit {
        Ok(())
    } else {
        Err(DecodeError(format!("{found} {what}, over the limit of {limit}")))
    }
}

impl Call {
    /// Refuses what no honest caller sends. Lengths for which POSIX has an error of its own (names, link targets,
    /// attribute values) are left to the operation.
    pub(crate) fn check_limits(&self) -> Result<(), DecodeError> {
        if let Cred::User { groups, .. } = &self.cred {
            at_most("groups", groups.len(), GROUPS_MAX)?;
        }
        match &self.request {
            Request::Attach { name, .. } => at_most("bytes of client name", name.len(), CLIENT_NAME_MAX),
            Request::Write { bytes, .. } => at_most("bytes of eager write", bytes.len(), EAGER_MAX),
            Request::Read { len, into: None, .. } => at_most("bytes of eager read", *len as usize, EAGER_READ_MAX),
            Request::Read { len, .. } | Request::WriteFrom { len, .. } => {
                at_most("bytes of a transfer", *len as usize, TRANSFER_MAX as usize)
            }
            Request::Commit { runs, crcs, .. } => {
                at_most("write runs", runs.len(), RUNS_MAX)?;
                at_most("bytes of checksums", crcs.len(), CRCS_MAX)
            }
            Request::Release { inodes } => at_most("inodes", inodes.len(), RELEASE_MAX),
            Request::Accessed { inodes, .. } => at_most("inodes", inodes.len(), RELEASE_MAX),
            Request::EndWriting { inodes } => at_most("inodes", inodes.len(), RELEASE_MAX),
            Request::TakeTokens { inodes } => at_most("inodes", inodes.len(), TOKENS_PAGE),
            Request::Watch { answered, .. } => at_most("tokens", answered.len(), TOKENS_PAGE),
            Request::ReturnSpace { runs } => at_most("page runs", runs.len(), RELEASE_MAX),
            Request::ReadBytes { pieces, .. } => {
                at_most("pieces", pieces.len(), READS_MAX)?;
                let bytes = pieces
                    .iter()
                    .map(|(_, len)| *len as usize)
                    .fold(0, usize::saturating_add);
                at_most("bytes of reads", bytes, EAGER_READ_MAX)
            }
            Request::MirrorSegments { segments, .. } | Request::KeepSegments { segments, .. } => {
                at_most("segments", segments.len(), SEGMENTS_PAGE)
            }
            Request::PageSums { count, .. } => at_most("pages", *count as usize, SUMS_MAX as usize),
            Request::Collect { intents, .. } | Request::Prepare { intents, .. } => {
                at_most("intents", intents.len(), INTENTS_MAX)
            }
            Request::Register(ask) => match &**ask {
                register::Ask::Promise(_) => Ok(()),
                register::Ask::Accept(_, map) => at_most("bytes of cluster map", map.encoded_len(), MAP_BYTES_MAX),
            },
            Request::TakeOver { locked, .. } => {
                let holders = locked.as_ref().map_or(0, Vec::len);
                at_most("holders of locks", holders, LOCKED_BY_MAX)
            }
            Request::ShareUsage(usage) => usage.check(),
            Request::NewMap(map) => at_most("bytes of cluster map", map.encoded_len(), MAP_BYTES_MAX),
            _ => Ok(()),
        }
    }
}

impl Usage {
    /// Refuses numbers of which those of all nodes could not be added up.
    fn check(&self) -> Result<(), DecodeError> {
        let bytes = self
            .total_bytes
            .max(self.free_bytes)
            .max(self.free_segment_bytes)
            .max(self.data_bytes);
        let largest = bytes.max(self.inodes).max(self.free_inodes);
        at_most(
            "bytes or inodes of a node",
            usize::try_from(largest).unwrap_or(usize::MAX),
            USAGE_MAX,
        )
    }
}

impl Intent {
    /// True when the intent makes an inode (and so needs space where it goes).
    pub fn makes_inode(&self) -> bool {
        matches!(self, Intent::NewInode { .. })
    }

    /// The inode that it is about; `None`: the one that it makes.
    pub fn inode(&self) -> Option<InodeRef> {
        match self {
            Intent::NewInode { .. } => None,
            Intent::AddName { dir, .. } | Intent::RemoveName { dir, .. } | Intent::ReplaceName { dir, .. } => {
                Some(*dir)
            }
            Intent::AddLink { inode }
            | Intent::DropLink { inode }
            | Intent::DropDirectory { inode }
            | Intent::SetParent { inode, .. }
            | Intent::Touch { inode }
            | Intent::Pin { inode } => Some(*inode),
        }
    }

    /// The name that is made, removed or pointed at something else.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Intent::AddName { name, .. } | Intent::RemoveName { name, .. } | Intent::ReplaceName { name, .. } => {
                Some(name)
            }
            _ => None,
        }
    }
}

impl Request {
    /// Can it be asked again of a node that has lost what it knew of the session? Either its commit carries the request, so
    /// that it is found ([`Call::again`]), or nothing stays of it without the session.
    pub fn is_found_again(&self) -> bool {
        self.is_mutation() && !matches!(self, Request::Collect { .. } | Request::Prepare { .. })
    }

    /// True when doing the request twice is not the same as doing it once: a node remembers the answers of these, so
    /// that a repeated request id gets the answer of the first time.
    pub fn is_mutation(&self) -> bool {
        match self {
            Request::SetAttr { .. }
            | Request::Create { .. }
            | Request::CreateUnnamed { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Link { .. }
            | Request::Rename { .. }
            | Request::Write { .. }
            | Request::WriteFrom { .. }
            | Request::Commit { .. }
            | Request::Fallocate { .. }
            | Request::Delegate { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Collect { .. }
            | Request::Prepare { .. }
            | Request::Withdraw { .. } => true,
            Request::Attach { .. }
            | Request::Heartbeat { .. }
            | Request::Detach
            | Request::Map
            | Request::Segments { .. }
            | Request::Lookup { .. }
            | Request::GetAttr { .. }
            | Request::ReadLink { .. }
            | Request::ReadDir { .. }
            | Request::Open { .. }
            | Request::Extents { .. }
            | Request::Release { .. }
            | Request::Sync
            | Request::ReturnSpace { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::Usage
            | Request::Past(_)
            | Request::Status
            | Request::Check { .. }
            | Request::Scrub { .. }
            | Request::ScrubCopies { .. }
            | Request::Shutdown
            | Request::TxnState { .. }
            | Request::Fence
            | Request::RenameLock { .. }
            | Request::Parent { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::ClaimLocks { .. }
            | Request::CancelLock { .. }
            | Request::LockWaits
            | Request::Accessed { .. }
            | Request::Read { .. }
            | Request::Conclude { .. }
            | Request::FollowLog { .. }
            | Request::OpenToWrite { .. }
            | Request::EndWriting { .. }
            | Request::TakeTokens { .. }
            | Request::Watch { .. }
            | Request::Register(_)
            | Request::NewMap(_)
            | Request::AttachMirror { .. }
            | Request::MirrorSegments { .. }
            | Request::KeepSegments { .. }
            | Request::PageSums { .. }
            | Request::ApplyMirror { .. }
            | Request::Beacon { .. }
            | Request::ReadBytes { .. }
            | Request::FenceOff { .. }
            | Request::RemoveNode { .. }
            | Request::AddNode(_)
            | Request::MoveCopy { .. }
            | Request::HandOver { .. }
            | Request::TakeOver { .. }
            | Request::ReleaseSegments
            | Request::ShareUsage(_) => false,
        }
    }
}
