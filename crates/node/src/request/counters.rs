//! How many requests of each kind were served.

use polvo_proto::Request;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Clone, Copy)]
        enum Kind { $($kind),* }
        const NAMES: &[&str] = &[$(stringify!($kind)),*];
        fn kind_of(request: &Request) -> Kind {
            match request { $(Request::$kind { .. } => Kind::$kind),* }
        }
    };
}

kinds!(
    Attach,
    Heartbeat,
    Detach,
    Map,
    Segments,
    Lookup,
    GetAttr,
    SetAttr,
    Create,
    CreateUnnamed,
    Unlink,
    Rmdir,
    Link,
    Rename,
    ReadLink,
    ReadDir,
    Open,
    Extents,
    Release,
    Write,
    Commit,
    Fallocate,
    Sync,
    Delegate,
    ReturnSpace,
    GetXattr,
    ListXattr,
    SetXattr,
    RemoveXattr,
    Usage,
    Past,
    Status,
    Check,
    Scrub,
    Shutdown,
    Collect,
    TxnState,
    Fence,
    RenameLock,
    Parent,
    Lock,
    Unlock,
    TestLock,
    CancelLock,
    LockWaits,
    Accessed,
    Read,
    WriteFrom,
    Prepare,
    Conclude,
    FollowLog,
    Withdraw,
    OpenToWrite,
    EndWriting,
);

/// Requests by kind.
pub(crate) struct RequestCounters {
    counts: [AtomicU64; NAMES.len()],
}

impl Default for RequestCounters {
    fn default() -> Self {
        RequestCounters {
            counts: [const { AtomicU64::new(0) }; NAMES.len()],
        }
    }
}

impl RequestCounters {
    pub fn count(&self, request: &Request) {
        self.counts[kind_of(request) as usize].fetch_add(1, Relaxed);
    }

    /// A write by somebody inside the process, who makes no request of it.
    pub fn count_write(&self) {
        self.counts[Kind::Write as usize].fetch_add(1, Relaxed);
    }

    /// Kinds that occurred, with their counts.
    pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
        let all = NAMES
            .iter()
            .zip(&self.counts)
            .map(|(name, count)| (*name, count.load(Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }
}
