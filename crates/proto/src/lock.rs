//! Advisory locks: what is asked for, by whom, and who waits for whom.

use crate::InodeRef;
use polvo_format::SessionId;
use serde::{Deserialize, Serialize};

/// What a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// Ranges of bytes (`fcntl`).
    Range,
    /// The file as a whole (`flock`); has nothing to do with those of ranges.
    Whole,
    /// The caller cannot tell which of the two: it is both.
    Unknown,
}

impl LockKind {
    /// Concerns ranges.
    pub fn on_ranges(self) -> bool {
        self != LockKind::Whole
    }

    /// Concerns the file as a whole.
    pub fn on_whole(self) -> bool {
        self != LockKind::Range
    }
}

/// With whom a lock can be shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// With others of its mode (read lock).
    Shared,
    /// With nobody (write lock).
    Exclusive,
}

impl LockMode {
    /// Two owners cannot have both.
    pub fn excludes(self, other: LockMode) -> bool {
        self == LockMode::Exclusive || other == LockMode::Exclusive
    }
}

/// Bytes of a file, first and last included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub first: u64,
    /// Last byte; [`LockRange::END`] for all that follow, however long the file gets.
    pub last: u64,
}

impl LockRange {
    /// The last byte that a file can have.
    pub const END: u64 = i64::MAX as u64;
    /// All of a file.
    pub const ALL: LockRange = LockRange {
        first: 0,
        last: LockRange::END,
    };

    /// Not empty, and within what a file can have.
    pub fn is_sane(self) -> bool {
        self.first <= self.last && self.last <= LockRange::END
    }
}

/// A lock that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockAsk {
    /// Who, among the owners of the session: a process, or an open file.
    pub owner: u64,
    /// What it is to exclude.
    pub kind: LockKind,
    /// With whom it can be shared.
    pub mode: LockMode,
    /// Bytes (`LockRange::ALL` unless `kind` is `Range`).
    pub range: LockRange,
    /// Number of the process, shown to who asks what is in the way.
    pub pid: u32,
}

/// A place in the queue for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockTicket {
    /// Drawn by the caller, once for a wait however often it asks; its own in the session.
    pub number: u64,
    /// How long to wait for the lock before the answer `LockQueued`; at most [`crate::LOCK_WAIT_MAX_MS`].
    pub wait_ms: u32,
}

/// Who holds, or waits for, a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockHolder {
    /// Client.
    pub session: SessionId,
    /// Owner in it.
    pub owner: u64,
}

/// Somebody has locks of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockedBy {
    /// Which.
    pub inode: InodeRef,
    /// Who.
    pub holder: LockHolder,
    /// Ranges, and the whole file as one more.
    pub locks: u32,
}

/// A range that somebody has locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Locked {
    /// Bytes.
    pub range: LockRange,
    /// With whom it can be shared.
    pub mode: LockMode,
    /// Number of the process that asked for it, on its machine.
    pub pid: u32,
}

/// Under what a node gives locks: drawn at random at each of its starts. It keeps them in memory, so whoever serves the inode
/// later is told by their holders what they had, and under which term.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LockTerm(pub u64);

/// A lock that is in the way. Whose session it belongs to is not told: who knows a session's id can speak for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockSeen {
    /// With whom it can be shared.
    pub mode: LockMode,
    /// Which bytes.
    pub range: LockRange,
    /// Number of the process that asked for it, on its machine.
    pub pid: u32,
}

/// Somebody waits for a range, and for whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWait {
    /// Who.
    pub waiter: LockHolder,
    /// Which of its waits.
    pub ticket: u64,
    /// Since when, in milliseconds before the answer.
    pub age_ms: u64,
    /// Who has locks that are in the way.
    pub blockers: Vec<LockHolder>,
}
