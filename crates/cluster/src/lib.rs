//! The cluster map and the connections along it. CONTRACT (signatures others build on; bodies to be written).
use polvo_fabric::*;
use polvo_format::*;
use polvo_proto::*;
use polvo_rpc::RpcClient;
use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

/// Limits of every wait, in one place.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts { /// connect and handshake
    pub connect: Duration, /// one RPC
    pub rpc: Duration, /// an inode held by a transaction
    pub held: Duration, /// session lease
    pub lease: Duration }

/// The newest cluster map known to this process; `Send + Sync`.
pub struct MapCell { _p: () }
impl MapCell { /// starts with a map
    pub fn new(_map: ClusterMap) -> Arc<MapCell> { todo!() } /// newest
    pub fn get(&self) -> Arc<ClusterMap> { todo!() } /// takes a newer one (older are ignored)
    pub fn offer(&self, _map: ClusterMap) { todo!() } }

/// One thread's connection to one node: RPC and one-sided access, attached to the session.
pub struct Link { /// node
    pub node: NodeId, /// rpc
    pub rpc: RpcClient, /// from `Attached`
    pub needs_sync: bool, _p: RefCell<()> }
impl Link {
    /// One request. Transport failures become `FsError::Unreachable`.
    pub async fn call(&self, _call: &Call) -> Answer { todo!() }
}

/// A thread's links to all nodes, made on first use, made anew after a loss (bounded by `Timeouts::connect`; a node that
/// just failed is not tried again for a short time). `!Send`.
pub struct Links { _p: Rc<()> }
impl Links {
    /// `name`, `home`: see `Request::Attach`.
    pub fn new(_map: Arc<MapCell>, _me: Identity, _session: SessionId, _name: String, _home: Option<NodeId>, _timeouts: Timeouts) -> Rc<Links> { todo!() }
    /// The link to a node.
    pub async fn to(&self, _node: NodeId) -> Result<Rc<Link>, FsError> { todo!() }
    /// Sends a request to the primary of a region; refreshes map on WrongEpoch.
    pub async fn call_region(&self, _region: RegionId, _cred: Cred, _request: Request) -> Answer { todo!() }
    /// Segment map of a region (cached; `refresh` fetches it anew).
    pub async fn segments(&self, _region: RegionId, _refresh: bool) -> Result<Rc<SegmentMap>, FsError> { todo!() }
    /// One batch of one-sided operations on one region, addressed by GPA; segments are looked up and the map refreshed on a miss.
    pub async fn one_sided(&self, _region: RegionId, _ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> { todo!() }
}
/// A one-sided operation addressed by GPA.
pub enum RegionVerb<'a> { /// read
    Read { /// from
        at: Gpa, /// into
        into: &'a mut [u8] }, /// write to delegated data space
    WriteData { /// to
        at: Gpa, /// bytes
        bytes: &'a [u8] }, /// dispatch write (node key)
    WriteAny { /// to
        at: Gpa, /// bytes
        bytes: &'a [u8] }, /// compare-and-swap (node key)
    CompareSwap { /// at
        at: Gpa, /// expected
        expect: u64, /// new
        new: u64, /// old
        found: &'a mut u64 } }
/// Two candidate regions of a name, by hash (placement by two choices).
pub fn candidates(_map: &ClusterMap, _dir: Ino, _name: &[u8]) -> [RegionId; 2] { todo!() }
/// Regions of a new cluster: `per_node` regions a node, region 0 on the first node.
pub fn initial_map(_cluster: [u8; 16], _nodes: Vec<NodeInfo>, _per_node: u16) -> ClusterMap { todo!() }
