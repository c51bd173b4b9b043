//! Errors that a user of the mount sees as EIO, for the log: with their reason, but not by the thousand.

use polvo_fusedev::abi::INodeNo;
use polvo_proto::FsError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Least time between two lines, in milliseconds.
const PAUSE_MS: u64 = 1000;

/// Writes at most one line a second, and says how many it left out.
pub(crate) struct Complaints {
    start: Instant,
    /// When the next line may be written, in milliseconds since `start`.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Complaints {
    pub(crate) fn new() -> Complaints {
        Complaints {
            start: Instant::now(),
            next_ms: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// An operation about an inode failed. Errors that are the user's own (a name that is not there) are not worth a line.
    pub(crate) fn failed(&self, operation: &'static str, node: INodeNo, error: &FsError) {
        if !matches!(
            error,
            FsError::Io(_)
                | FsError::Unreachable { .. }
                | FsError::WrongEpoch
                | FsError::SessionExpired
                | FsError::SetBack { .. }
                | FsError::Deposed { .. }
                | FsError::Removed { .. }
        ) {
            return;
        }
        if let Some(left_out) = self.may_write(self.start.elapsed().as_millis() as u64) {
            tracing::warn!(operation, inode = node.0, %error, left_out, "operation failed");
        }
    }

    /// How many lines were left out before this one; `None` when this one is left out too.
    fn may_write(&self, now_ms: u64) -> Option<u64> {
        let next = self.next_ms.load(Ordering::Relaxed);
        let mine = now_ms >= next
            && self
                .next_ms
                .compare_exchange(next, now_ms + PAUSE_MS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !mine {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_a_count_of_the_rest() {
        let complaints = Complaints::new();
        assert_eq!(complaints.may_write(5), Some(0));
        assert_eq!(complaints.may_write(6), None);
        assert_eq!(complaints.may_write(1004), None);
        assert_eq!(complaints.may_write(1005), Some(2));
    }
}
