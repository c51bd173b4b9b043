//! A copy takes the place of its region: it is recovered as after a restart, and served from then on.

use crate::clock::outlasting;
use crate::error::to_fs;
use crate::locks::succession::Succession;
use crate::node::{CLAIMS, Node};
use crate::region_service::RegionService;
use crate::replication::leases::LEASE;
use crate::transactions::dispatch::Dispatch;
use polvo_cluster::Timeouts;
use polvo_format::{Ino, NodeId, RegionId};
use polvo_proto::{ClusterMap, FsError, LockedBy};
use polvo_region::Region;
use polvo_region::planted::{Planted, planted};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What became of who has served a region before.
pub(crate) enum Before {
    /// It was last heard of then.
    Heard(Instant),
    /// It has handed the region over, and nobody believes in what it has told any more, but for these locks (`None`: not known).
    GaveUp(Option<Vec<LockedBy>>),
}

impl Node {
    /// Serves a region from its copy here. `map` says so.
    ///
    /// # Errors
    /// There is no copy, or it cannot be recovered.
    pub(crate) fn promote(&self, region: RegionId, map: &ClusterMap, before: Before) -> Result<(), FsError> {
        let info = map.region(region).ok_or(FsError::WrongEpoch)?;
        let (last, locks_before) = self.copies.promote(region)?;
        let recovered = Region::recover_to_claim(&self.space, region, CLAIMS, &mut |_, _| {});
        let (mut recovered, found) = recovered.map_err(to_fs)?;
        tracing::info!(
            region = region.0,
            inodes = found.inodes,
            held_by = ?found.held_by,
            damaged = ?found.damaged,
            "copy recovered"
        );
        if info.is_async() && matches!(before, Before::Heard(_)) {
            recovered.outgrow_lost(found.highest);
        }
        let lease = match planted(Planted::DeadLeaseByOwnClock) {
            true => LEASE,
            false => outlasting(LEASE),
        };
        // what the one before has given and said is believed for so long at the most
        let believed_until = |what: Duration| match before {
            Before::Heard(heard) => heard + self.clock.lasts(lease + what),
            Before::GaveUp(_) => Instant::now() + self.clock.lasts(what),
        };
        match before {
            Before::Heard(_) => self.mistrust_tokens_until(believed_until(self.config.timeouts.token), &mut recovered),
            // its pool, which is that of a mirror now, may be stored to where pages were free
            Before::GaveUp(_) => self.hold_back_free_data(&mut recovered),
        }
        let grace = believed_until(outlasting(Timeouts::LOCK_GRACE));
        let ends = Instant::now() + self.config.timeouts.lease;
        let succession = Succession::new(locks_before, grace, ends);
        let succession = match &before {
            Before::GaveUp(Some(locked)) => succession.of(locked),
            _ => succession,
        };
        self.locks.succeed(region, succession);
        let (layout, one_sided) = (self.space.layout(), self.config.one_sided);
        let term = self.locks.term();
        let gate = self.gates.gate(region);
        let service = RegionService::new(recovered, info, gate, layout, &self.pmem, &self.memory, one_sided, term);
        if let Some(replication) = service.replication() {
            if let Before::GaveUp(_) = before {
                service.enter(|region| region.capture(last));
                replication.go_on_behind(last, &self.leases);
            }
            replication.confirm_new();
        }
        if region == Ino::ROOT.region() {
            self.rename_lock.set_closed(false);
        }
        self.regions.begin(Arc::new(service));
        self.claims
            .lock()
            .insert(region, Instant::now() + self.config.timeouts.lease);
        // what it has decided, and not all participants may have
        let decided = self
            .space
            .undispatched()
            .into_iter()
            .filter(|decided| decided.region == region);
        let others = info
            .replicas
            .iter()
            .map(|replica| replica.node)
            .filter(|node| *node != self.id());
        let deposed: Arc<[NodeId]> = others.collect();
        if let Some(replication) = self.service(region).and_then(|service| service.replication()) {
            replication.set_undispatched(&deposed);
        }
        let dispatches = decided.map(|decided| Dispatch::succeeded(decided, deposed.clone()));
        self.undispatched.lock().extend(dispatches);
        Ok(())
    }
}
