//! Steps of opening a node: whose pool it is, its regions recovered, what it left undispatched, who it is to others.

use crate::config::NodeConfig;
use crate::error::to_fs;
use crate::map::MapRegister;
use crate::node::CLAIMS;
use crate::region_service::RegionService;
use crate::regions::Regions;
use crate::replication::gate::Gates;
use crate::replication::leases;
use crate::transactions::dispatch::Dispatch;
use polvo_cluster::{MapCell, SessionContext};
use polvo_fabric::MemoryRegions;
use polvo_format::{Epoch, NodeId, RegionId, SessionId};
use polvo_pmem::Pmem;
use polvo_proto::{ClusterMap, FsError, LockTerm, MAP_BYTES_MAX, RegionInfo};
use polvo_region::{Lane, PoolSpace, Region};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What a node is made of while it is being opened.
pub(crate) struct Opening<'a> {
    pub space: &'a Arc<PoolSpace>,
    pub config: &'a NodeConfig,
    pub map: &'a ClusterMap,
    pub memory: &'a Arc<MemoryRegions>,
    pub gates: &'a Gates,
    pub held_back: bool,
    pub lock_term: LockTerm,
}

impl Opening<'_> {
    /// Recovers the regions that the map assigns to this node; creates those that are not there yet.
    pub fn regions(&self, now_ns: i64, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<Regions, FsError> {
        let Opening { space, config, .. } = self;
        let present = space.regions();
        let regions = Regions::new(self.map.regions.len());
        let assigned = self.map.regions.iter();
        for info in assigned.filter(|region| region.primary() == Some(config.id)) {
            // the node had taken its place when it died
            let was_copy = space.has_copy(info.id);
            if was_copy {
                Lane::promote_in(space, info.id).map_err(to_fs)?;
            }
            let is_here = was_copy || present.contains(&info.id);
            let region = match is_here {
                true => self.recover(info, progress)?,
                false => Region::create(space, info.id, now_ns).map_err(to_fs)?,
            };
            let (layout, pmem) = (space.layout(), space.pmem());
            let service = RegionService::new(
                region,
                info,
                self.gates.gate(info.id),
                layout,
                pmem,
                self.memory,
                config.one_sided,
                self.lock_term,
            );
            assert!(service.id == info.id, "a region is opened by its number");
            match service.replication() {
                Some(replication) if was_copy => replication.set_successor(),
                Some(replication) if !is_here => replication.set_new(),
                _ => {}
            }
            regions.begin(Arc::new(service));
        }
        for stranger in present.iter().filter(|id| regions.get(**id).is_none()) {
            tracing::warn!(
                region = stranger.0,
                "the pool holds a region that the cluster map gives to another node"
            );
        }
        Ok(regions)
    }

    fn recover(&self, info: &RegionInfo, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<Region, FsError> {
        let id = info.id;
        let what = format!("recovering region {}", id.0);
        let mut report = |done, total| progress(&what, done, total);
        let recovered = match info.replicas.len() {
            0 | 1 => Region::recover(self.space, id, &mut report),
            _ => Region::recover_to_claim(self.space, id, CLAIMS, &mut report),
        };
        let (mut region, recovery) = recovered.map_err(to_fs)?;
        tracing::info!(
            region = id.0,
            inodes = recovery.inodes,
            bytes_read = recovery.bytes_read,
            orphans_freed = recovery.orphans_freed,
            held_by = ?recovery.held_by,
            damaged = ?recovery.damaged,
            mended = recovery.mended.len(),
            "region recovered"
        );
        if self.held_back {
            region.hold_back_free_data();
        }
        Ok(region)
    }

    /// In a cluster of several nodes each keeps the map: its segment is taken before others fill the pool.
    pub fn set_register_aside(&self) {
        if self.map.nodes.len() > 1
            && let Err(error) = self.space.set_register_aside()
        {
            tracing::warn!(%error, "the pool has no room for the cluster map: this node does not vote on it");
        }
    }

    pub fn undispatched(&self) -> Vec<Dispatch> {
        // what a region elsewhere has decided, of which there is a copy here, that region dispatches
        let found = self.space.undispatched().into_iter();
        let ours = found.filter(|found| self.map.primary(found.region) == Some(self.config.id));
        let found: Vec<Dispatch> = ours.map(Dispatch::found).collect();
        if !found.is_empty() {
            tracing::info!(
                count = found.len(),
                "transactions of the previous incarnation are to be dispatched"
            );
        }
        found
    }

    /// What the threads of this process share to call other nodes as this node.
    pub fn context(&self, map: &Arc<MapCell>, incarnation: u64) -> Arc<SessionContext> {
        let Opening { space, config, .. } = self;
        let context = SessionContext::over(
            self.memory.clone(),
            map.clone(),
            config.identity.clone(),
            session_of(config.id, incarnation, Purpose::Requests),
            config.name.clone(),
            Some(config.id),
            config.timeouts,
            None,
        );
        // a transaction waits for its participants only as long as others can wait for it
        context.set_patience(config.timeouts.connect);
        let nodes = map.get();
        let others = nodes.nodes.iter().map(|node| node.id).filter(|id| *id != config.id);
        let seen: Vec<_> = others.filter_map(|id| Some((id, space.peer(id)?))).collect();
        let keep = Arc::clone(space);
        context
            .pools()
            .remember(seen, move |peer, known| keep.remember_peer(peer, known));
        context
    }

    /// By which this node and others watch each other ([`crate::replication::leases`]): a session of its own, so that a new connection
    /// never waits for requests of the one before.
    pub fn watch_context(&self, map: &Arc<MapCell>, incarnation: u64) -> Arc<SessionContext> {
        let Opening { config, .. } = self;
        let (memory, me) = (self.memory.clone(), config.identity.clone());
        let session = session_of(config.id, incarnation, Purpose::Watching);
        let (name, timeouts) = (format!("{} (leases)", config.name), leases::timeouts(&config.timeouts));
        SessionContext::over(memory, map.clone(), me, session, name, Some(config.id), timeouts, None)
    }
}

/// What the pool keeps of the cluster map, and the map to go by: that one where the map was ever changed, else the configured one.
///
/// # Errors
/// EINVAL when the configured one does not fit a message; [`FsError::Removed`].
pub(crate) fn kept_map(space: &PoolSpace, config: &NodeConfig) -> Result<(MapRegister, Arc<MapCell>), FsError> {
    let len = config.map.encoded_len();
    if len > MAP_BYTES_MAX {
        let (nodes, regions) = (config.map.nodes.len(), config.map.regions.len());
        return Err(FsError::Invalid(format!(
            "the cluster map of {nodes} nodes and {regions} regions takes {len} bytes, and at most {MAP_BYTES_MAX} fit a message: \
             configure fewer regions a node"
        )));
    }
    let register = MapRegister::open(space, &config.map, config.id);
    let map = MapCell::new(config.map.clone());
    if let Some(known) = register.known() {
        map.offer(known);
    }
    let now = map.get();
    if now.epoch > Epoch(1) && now.node(config.id).is_none() {
        return Err(FsError::Removed { node: config.id.0 });
    }
    Ok((register, map))
}

pub(crate) fn check_owner(space: &PoolSpace, config: &NodeConfig) -> Result<(), FsError> {
    let owner = space.identity();
    if owner.cluster != config.identity.cluster || owner.cluster != config.map.cluster {
        return Err(FsError::Invalid(
            "the pool belongs to another cluster; check the configuration".into(),
        ));
    }
    if owner.node != config.id {
        let (owner, us) = (owner.node.0, config.id.0);
        return Err(FsError::Invalid(format!(
            "the pool belongs to node {owner}, but this is node {us}"
        )));
    }
    Ok(())
}

/// Marks this incarnation of the pool; says whether peers of an earlier one still have it mapped. In doubt they do.
pub(crate) fn begin_incarnation(pmem: &Pmem, incarnation: u64) -> bool {
    let begun = pmem.is_mapped_since_before(incarnation);
    match begun.and_then(|mapped| pmem.begin_incarnation(incarnation).map(|()| mapped)) {
        Ok(false) => false,
        Ok(true) => {
            tracing::info!(
                "clients of the previous incarnation have the pool mapped: space that was free is held back"
            );
            true
        }
        Err(error) => {
            tracing::warn!(%error, "who has the pool mapped cannot be told: space that was free is held back");
            true
        }
    }
}

/// What a node calls others for.
#[derive(Clone, Copy)]
enum Purpose {
    Requests = 0,
    Watching = 1,
}

/// A session of a node's own links: another one after every start, since what the one before held is gone.
fn session_of(node: NodeId, start_number: u64, purpose: Purpose) -> SessionId {
    let seed = u64::from(node.0) << 48 ^ (purpose as u64) << 47 | start_number;
    let mut h = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    SessionId((h ^ (h >> 31)).max(1))
}

/// Until when files without a name may be claimed that are open, by region: where there are copies, and the region was there before.
pub(crate) fn claims(regions: &Regions, lease: Duration) -> BTreeMap<RegionId, Instant> {
    let until = Instant::now() + lease;
    let was_there =
        |service: &&Arc<RegionService>| service.replication().is_some_and(|replication| !replication.is_new());
    let replicated = regions.all().filter(was_there);
    replicated.map(|service| (service.id, until)).collect()
}
