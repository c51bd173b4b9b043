//! The cluster-wide lock under which directories change parents, as its grantor (the primary of region 0) keeps it.
//!
//! A grant ends when it is given back, by itself after a while, and when another node serves the region of its holder: the one before
//! decides nothing any more that counts, and what it had decided holds what it is about locked until it is done. Before region 0 is handed
//! over it is granted to nobody, and who has it gives it back: what he sees under it he decides here.

use parking_lot::Mutex;
use polvo_cluster::Timeouts;
use polvo_format::{Epoch, NodeId, TxnId};
use polvo_proto::{ClusterMap, FsError};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Who asks for the lock, or has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub txn: TxnId,
    /// The node that serves the transaction's region,
    pub node: NodeId,
    /// by the map of this epoch.
    pub epoch: Epoch,
}

impl Holder {
    /// Does another node serve its region since, by this map?
    fn has_lost_its_region(&self, map: &ClusterMap) -> bool {
        map.epoch >= self.epoch && map.primary(self.txn.region()) != Some(self.node)
    }
}

struct Grant {
    holder: Holder,
    number: u64,
    until: Instant,
}

impl Grant {
    fn holds(&self, now: Instant, map: &ClusterMap) -> bool {
        self.until > now && !self.holder.has_lost_its_region(map)
    }
}

pub(crate) struct RenameLock {
    grant: Mutex<Option<Grant>>,
    quiet_until: Instant,
    /// It is granted to nobody who has not got it.
    closed: AtomicBool,
}

impl RenameLock {
    pub fn new() -> RenameLock {
        RenameLock {
            grant: Mutex::new(None),
            quiet_until: Instant::now() + Timeouts::RENAME_QUIET,
            closed: AtomicBool::new(false),
        }
    }

    /// It is granted to nobody from here on who has not got it, or (not `closed`) is again.
    pub fn set_closed(&self, closed: bool) {
        let _grant = self.grant.lock();
        self.closed.store(closed, Relaxed);
    }

    /// Nobody has it.
    pub fn is_free(&self, map: &ClusterMap) -> bool {
        let now = Instant::now();
        !self.grant.lock().as_ref().is_some_and(|grant| grant.holds(now, map))
    }

    /// Takes the lock for at most `hold_for`, or says under which number `holder` has it. `number` makes a number that
    /// was never used, not even by an earlier incarnation.
    pub fn take(
        &self,
        holder: Holder,
        hold_for: Duration,
        map: &ClusterMap,
        number: impl FnOnce() -> u64,
    ) -> Result<u64, FsError> {
        let now = Instant::now();
        let mut grant = self.grant.lock();
        match &*grant {
            Some(held) if held.holds(now, map) && held.holder.txn == holder.txn => return Ok(held.number),
            Some(held) if held.holds(now, map) => return Err(FsError::Retry),
            _ if now < self.quiet_until || self.closed.load(Relaxed) => return Err(FsError::Retry),
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
        if grant.as_ref().is_some_and(|held| held.holder.txn == holder) {
            *grant = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::RegionId;
    use polvo_proto::{RegionInfo, RegionSet, Replica, ReplicaRole};

    const SECOND: Duration = Duration::from_secs(1);

    /// Regions 1 and 2, each at the node of its number, or at node 3.
    fn map(epoch: u64, moved: &[u16]) -> ClusterMap {
        let region = |number: u16| RegionInfo {
            id: RegionId(number),
            set: RegionSet::default(),
            epoch: Epoch(1),
            replicas: vec![Replica {
                node: NodeId(if moved.contains(&number) { 3 } else { number }),
                role: ReplicaRole::Primary,
            }],
        };
        ClusterMap {
            cluster: [1; 16],
            epoch: Epoch(epoch),
            nodes: vec![],
            regions: vec![region(1), region(2)],
            voters: polvo_consensus::Voters::new([NodeId(1)]),
        }
    }

    fn holder(region: u16, node: u16, epoch: u64) -> Holder {
        Holder {
            txn: TxnId::new(RegionId(region), 7),
            node: NodeId(node),
            epoch: Epoch(epoch),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_it_keeps_it_when_it_is_closed_and_nobody_else_gets_it() {
        let lock = RenameLock::new();
        tokio::time::advance(Timeouts::RENAME_QUIET).await;
        let (a, b) = (holder(1, 1, 5), holder(2, 2, 5));
        let take = |holder, number| lock.take(holder, SECOND, &map(5, &[]), || number);
        assert!(lock.is_free(&map(5, &[])));
        assert_eq!(take(a, 1), Ok(1));
        lock.set_closed(true);
        assert_eq!((take(a, 2), take(b, 2)), (Ok(1), Err(FsError::Retry)));
        assert!(!lock.is_free(&map(5, &[])));
        lock.release(a.txn);
        assert!(lock.is_free(&map(5, &[])));
        assert_eq!(take(a, 2), Err(FsError::Retry));
        lock.set_closed(false);
        assert_eq!(take(b, 2), Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_for_a_bounded_time() {
        let lock = RenameLock::new();
        let (a, b) = (holder(1, 1, 5), holder(2, 2, 5));
        let take = |holder, number| lock.take(holder, SECOND, &map(5, &[]), || number);
        assert_eq!(take(a, 1), Err(FsError::Retry), "quiet after a start");
        tokio::time::advance(Timeouts::RENAME_QUIET).await;
        assert_eq!(take(a, 1), Ok(1));
        assert_eq!(take(a, 2), Ok(1), "asking again keeps the grant");
        assert_eq!(take(b, 2), Err(FsError::Retry));
        lock.release(b.txn);
        assert_eq!(take(b, 2), Err(FsError::Retry), "only the holder gives it back");
        lock.release(a.txn);
        assert_eq!(take(b, 2), Ok(2));
        tokio::time::advance(SECOND).await;
        assert_eq!(take(a, 3), Ok(3), "a grant ends by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_ends_when_its_holders_region_is_served_by_another_node() {
        let lock = RenameLock::new();
        tokio::time::advance(Timeouts::RENAME_QUIET).await;
        let (a, b) = (holder(1, 1, 5), holder(2, 2, 5));
        let take = |holder, map, number| lock.take(holder, SECOND, &map, || number);
        assert_eq!(take(a, map(5, &[]), 1), Ok(1));
        assert_eq!(
            take(b, map(6, &[2]), 2),
            Err(FsError::Retry),
            "another region's has moved"
        );
        assert_eq!(take(b, map(7, &[1]), 2), Ok(2));
        assert_eq!(take(a, map(7, &[1]), 3), Err(FsError::Retry), "it has to find out");
        // who has just begun to serve the region knows more than we do
        lock.release(b.txn);
        assert_eq!(take(holder(1, 3, 9), map(8, &[]), 3), Ok(3));
        assert_eq!(take(b, map(8, &[]), 4), Err(FsError::Retry));
        assert_eq!(take(b, map(9, &[1]), 4), Err(FsError::Retry));
        assert_eq!(take(b, map(10, &[]), 4), Ok(4));
    }
}
