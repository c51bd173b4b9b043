//! The daemon's inside. CONTRACT (signatures others build on; bodies to be written).
use polvo_cluster::*;
use polvo_fabric::*;
use polvo_format::*;
use polvo_proto::*;
use polvo_region::*;
use std::{rc::Rc, sync::Arc};

/// Wall clock, so that the simulator can replace it.
pub trait Clock: Send + Sync { /// nanoseconds since the UNIX epoch
    fn now_ns(&self) -> i64; }
/// The system's clock.
pub struct SystemClock;
impl Clock for SystemClock { fn now_ns(&self) -> i64 { todo!() } }

/// What a node is started with.
#[derive(Clone)]
pub struct NodeConfig { /// who
    pub id: NodeId, /// handshake
    pub identity: Identity, /// where to listen
    pub listen: Vec<Address>, /// static map
    pub map: ClusterMap, /// limits
    pub timeouts: Timeouts, /// provider name etc. shown in status
    pub name: String }

/// One node: its pool, its regions, its sessions. `Send + Sync`: entered by whichever thread needs it.
pub struct Node { _p: () }
impl Node {
    /// Opens the pool, recovers its regions (creates those that the map assigns to us and that are not there yet).
    pub fn open(_space: Arc<PoolSpace>, _config: NodeConfig, _clock: Arc<dyn Clock>, _progress: &mut dyn FnMut(&str, u64, u64)) -> Result<Arc<Node>, FsError> { todo!() }
    /// Serves until `Shutdown` or `stop()`: listens, accepts, housekeeping (leases, ticks, settle, re-dispatch, log GC).
    /// Runs on the current LocalSet. `ready` is called once every listener is bound, with the bound addresses.
    pub async fn serve(self: Arc<Self>, _ready: impl FnOnce(&[Address])) -> Result<(), FsError> { todo!() }
    /// Asks `serve` to return.
    pub fn stop(&self) { todo!() }
    /// One request of a local or remote caller. `links`: the calling thread's links to the other nodes.
    pub async fn handle(self: &Arc<Self>, _links: &Rc<Links>, _call: Call) -> Answer { todo!() }
    /// The links that a thread inside this process uses for calls from this node (`Role::Node`).
    pub fn new_links(self: &Arc<Self>) -> Rc<Links> { todo!() }
    /// Direct access for internal clients: reads bytes of a region served here.
    pub fn read_gpa(&self, _at: Gpa, _into: &mut [u8]) -> Result<(), FsError> { todo!() }
    /// Direct access for internal clients: writes to delegated space of a region served here, durably.
    pub fn write_gpa(&self, _at: Gpa, _bytes: &[u8]) -> Result<(), FsError> { todo!() }
    /// Regions served here?
    pub fn serves(&self, _region: RegionId) -> bool { todo!() }
    /// Which.
    pub fn id(&self) -> NodeId { todo!() }
    /// The map.
    pub fn map(&self) -> Arc<ClusterMap> { todo!() }
}
