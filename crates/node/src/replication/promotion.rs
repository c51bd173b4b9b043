//! A copy takes the place of its region: it is recovered as after a restart, and served from then on.

use crate::clock::outlasting;
use crate::error::to_fs;
use crate::locks::succession::Succession;
use crate::node::{CLAIMS, Node};
use crate::region_service::RegionService;
use crate::replication::leases::LEASE;
use crate::transactions::dispatch::Dispatch;
use polvo_cluster::Timeouts;
use polvo_format::{NodeId, RegionId};
use polvo_proto::{ClusterMap, FsError};
use polvo_region::Region;
use polvo_region::planted::{Planted, planted};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Node {
    /// Serves a region from its copy here. `map` says so, and its former primary was last `heard` of then.
    ///
    /// # Errors
    /// There is no copy, or it cannot be recovered.
    pub(crate) fn promote(&self, region: RegionId, map: &ClusterMap, heard: Instant) -> Result<(), FsError> {
        let info = map.region(region).ok_or(FsError::WrongEpoch)?;
        let locks_before = self.copies.promote(region)?;
        let recovered = Region::recover_to_claim(&self.space, region, CLAIMS, &mut |_, _| {});
        let (mut recovered, found) = recovered.map_err(to_fs)?;
        tracing::info!(
            region = region.0,
            inodes = found.inodes,
            held_by = ?found.held_by,
            damaged = ?found.damaged,
            "copy recovered"
        );
        if info.is_async() {
            recovered.outgrow_lost(found.highest);
        }
        let lease = match planted(Planted::DeadLeaseByOwnClock) {
            true => LEASE,
            false => outlasting(LEASE),
        };
        // what the one before has given and said is believed for so long at the most
        let believed_until = |what: Duration| heard + self.clock.lasts(lease + what);
        self.mistrust_tokens_until(believed_until(self.config.timeouts.token), &mut recovered);
        let grace = believed_until(outlasting(Timeouts::LOCK_GRACE));
        let ends = Instant::now() + self.config.timeouts.lease;
        self.locks.succeed(region, Succession::new(locks_before, grace, ends));
        let (layout, one_sided) = (self.space.layout(), self.config.one_sided);
        let term = self.locks.term();
        let gate = self.gates.gate(region);
        let service = RegionService::new(recovered, info, gate, layout, &self.pmem, &self.memory, one_sided, term);
        if let Some(replication) = service.replication() {
            replication.confirm_new();
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
