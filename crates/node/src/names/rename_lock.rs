//! The cluster-wide lock under which directories change parents, as its grantor (the primary of region 0) keeps it.

use parking_lot::Mutex;
use polvo_cluster::Timeouts;
use polvo_format::TxnId;
use polvo_proto::FsError;
use std::time::Duration;
use tokio::time::Instant;

struct Grant {
    holder: TxnId,
    number: u64,
    until: Instant,
}

pub(crate) struct RenameLock {
    grant: Mutex<Option<Grant>>,
    quiet_until: Instant,
}

impl RenameLock {
    pub fn new() -> RenameLock {
        RenameLock {
            grant: Mutex::new(None),
            quiet_until: Instant::now() + Timeouts::RENAME_QUIET,
        }
    }

    /// Takes the lock for at most `hold_for`, or says under which number `holder` has it. `number` makes a number that
    /// was never used, not even by an earlier incarnation.
    pub fn take(&self, holder: TxnId, hold_for: Duration, number: impl FnOnce() -> u64) -> Result<u64, FsError> {
        let now = Instant::now();
        let mut grant = self.grant.lock();
        match &*grant {
            Some(held) if held.until > now && held.holder == holder => return Ok(held.number),
            Some(held) if held.until > now => return Err(FsError::Retry),
            _ if now < self.quiet_until => return Err(FsError::Retry),
            _ => {}
        }
        let number = number();
        let before = grant.as_ref().map_or(0, |before| before.number);
        assert!(number > before, "grants have numbers of their own");
        debug_assert!(
            now >= self.quiet_until,
            "grants of the previous incarnation may not have ended"
        );
        *grant = Some(Grant {
            holder,
            number,
            until: now + hold_for,
        });
        Ok(number)
    }

    /// Gives it back; ignored when `holder` does not have it.
    pub fn release(&self, holder: TxnId) {
        let mut grant = self.grant.lock();
        if grant.as_ref().is_some_and(|held| held.holder == holder) {
            *grant = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_for_a_bounded_time() {
        let lock = RenameLock::new();
        let (a, b) = (TxnId(1), TxnId(2));
        let second = Duration::from_secs(1);
        assert_eq!(lock.take(a, second, || 1), Err(FsError::Retry), "quiet after a start");
        tokio::time::advance(Timeouts::RENAME_QUIET).await;
        assert_eq!(lock.take(a, second, || 1), Ok(1));
        assert_eq!(lock.take(a, second, || 2), Ok(1), "asking again keeps the grant");
        assert_eq!(lock.take(b, second, || 2), Err(FsError::Retry));
        lock.release(b);
        assert_eq!(
            lock.take(b, second, || 2),
            Err(FsError::Retry),
            "only the holder gives it back"
        );
        lock.release(a);
        assert_eq!(lock.take(b, second, || 2), Ok(2));
        tokio::time::advance(second).await;
        assert_eq!(lock.take(a, second, || 3), Ok(3), "a grant ends by itself");
    }
}
