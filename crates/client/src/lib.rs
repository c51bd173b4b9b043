//! The client library. CONTRACT (signatures others build on; bodies to be written).
use polvo_cluster::*;
use polvo_fabric::*;
use polvo_format::*;
use polvo_node::Node;
use polvo_proto::*;
use std::{future::Future, rc::Rc, sync::Arc};

/// How to reach a cluster.
#[derive(Clone)]
pub struct ClientConfig { /// bootstrap addresses (any node)
    pub addresses: Vec<Address>, /// role Client
    pub identity: Identity, /// shown in status
    pub name: String, /// force `tcp` or `shm`; None = shm on the same host, else tcp
    pub provider: Option<String>, /// limits
    pub timeouts: Timeouts, /// default credentials (a mount passes Cred::Kernel)
    pub cred: Cred }

/// Counters, also in `polvo status --json` of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters { /// RPCs made
    pub rpcs: u64, /// one-sided batches
    pub one_sided_batches: u64, /// bytes
    pub one_sided_bytes: u64 , /// bytes that travelled inside an RPC
    pub eager_bytes: u64 }

/// State shared by all threads of a client: session, caches, holds, delegated space. `Send + Sync`.
pub struct Client { _p: () }
impl Client {
    /// Connects, opens a session. Call inside a tokio current-thread runtime with LocalSet.
    pub async fn connect(_config: ClientConfig) -> Result<Arc<Client>, FsError> { todo!() }
    /// A client inside a node: local regions are called directly.
    pub fn internal(_node: &Arc<Node>, _name: String, _cred: Cred) -> Arc<Client> { todo!() }
    /// This thread's face. One per thread; heartbeats are sent by whichever face runs `maintain`.
    pub fn local(self: &Arc<Self>) -> Rc<LocalClient> { todo!() }
    /// Runs an operation to its end on the calling thread (thread-local runtime and face): the blocking face.
    pub fn run<T, F>(self: &Arc<Self>, _f: impl FnOnce(Rc<LocalClient>) -> F) -> T where F: Future<Output = T> { todo!() }
    /// Starts the maintenance thread (heartbeats, recalls). Not used in the simulator, which spawns `LocalClient::maintain`.
    pub fn start_maintenance(self: &Arc<Self>) { todo!() }
    /// Ends the session; everything is returned.
    pub fn shutdown(self: &Arc<Self>) { todo!() }
    /// Counters.
    pub fn counters(&self) -> Counters { todo!() }
    /// The map.
    pub fn map(&self) -> Arc<ClusterMap> { todo!() }
}
/// An open file; clone freely; the inode is held while any clone lives (released lazily).
pub struct OpenFile { _p: () }
impl OpenFile { /// which
    pub fn inode(&self) -> InodeRef { todo!() } }
/// `SEEK_DATA` / `SEEK_HOLE`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence { /// data
    Data, /// hole
    Hole }

/// One thread's face of a client. All operations validate what they use of the caches, so that completed operations of
/// others are seen at once.
pub struct LocalClient { _p: () }
#[allow(missing_docs)]
impl LocalClient {
    pub async fn maintain(self: Rc<Self>) { todo!() }
    pub async fn lookup(&self, _dir: InodeRef, _name: &[u8]) -> Result<Attr, FsError> { todo!() }
    pub async fn get_attr(&self, _inode: InodeRef) -> Result<Attr, FsError> { todo!() }
    /// by number (FUSE knows no generation): from the cache, or asked
    pub async fn resolve(&self, _ino: Ino) -> Result<InodeRef, FsError> { todo!() }
    pub async fn set_attr(&self, _inode: InodeRef, _set: SetAttr) -> Result<Attr, FsError> { todo!() }
    pub async fn create(&self, _dir: InodeRef, _name: &[u8], _file: NewFile) -> Result<Attr, FsError> { todo!() }
    pub async fn create_open(&self, _dir: InodeRef, _name: &[u8], _file: NewFile) -> Result<(Attr, Arc<OpenFile>), FsError> { todo!() }
    pub async fn create_unnamed(&self, _dir: InodeRef, _file: NewFile) -> Result<(Attr, Arc<OpenFile>), FsError> { todo!() }
    pub async fn unlink(&self, _dir: InodeRef, _name: &[u8]) -> Result<(), FsError> { todo!() }
    pub async fn rmdir(&self, _dir: InodeRef, _name: &[u8]) -> Result<(), FsError> { todo!() }
    pub async fn link(&self, _inode: InodeRef, _dir: InodeRef, _name: &[u8]) -> Result<Attr, FsError> { todo!() }
    pub async fn rename(&self, _old_dir: InodeRef, _old: &[u8], _new_dir: InodeRef, _new: &[u8], _mode: RenameMode) -> Result<(), FsError> { todo!() }
    pub async fn read_link(&self, _inode: InodeRef) -> Result<Vec<u8>, FsError> { todo!() }
    pub async fn read_dir(&self, _dir: InodeRef, _after: u64, _max: u32) -> Result<Vec<DirEntry>, FsError> { todo!() }
    pub async fn open(&self, _inode: InodeRef) -> Result<Arc<OpenFile>, FsError> { todo!() }
    pub async fn read(&self, _file: &OpenFile, _offset: u64, _into: &mut [u8]) -> Result<usize, FsError> { todo!() }
    pub async fn write(&self, _file: &OpenFile, _offset: u64, _bytes: &[u8]) -> Result<usize, FsError> { todo!() }
    /// returns where the bytes went
    pub async fn append(&self, _file: &OpenFile, _bytes: &[u8]) -> Result<u64, FsError> { todo!() }
    pub async fn fallocate(&self, _file: &OpenFile, _mode: FallocateMode, _offset: u64, _len: u64) -> Result<(), FsError> { todo!() }
    pub async fn seek(&self, _file: &OpenFile, _offset: u64, _whence: Whence) -> Result<u64, FsError> { todo!() }
    pub async fn copy_range(&self, _from: &OpenFile, _from_offset: u64, _to: &OpenFile, _to_offset: u64, _len: u64) -> Result<u64, FsError> { todo!() }
    pub async fn sync(&self, _file: Option<&OpenFile>) -> Result<(), FsError> { todo!() }
    pub async fn get_xattr(&self, _inode: InodeRef, _name: &[u8]) -> Result<Vec<u8>, FsError> { todo!() }
    pub async fn list_xattr(&self, _inode: InodeRef) -> Result<Vec<Vec<u8>>, FsError> { todo!() }
    pub async fn set_xattr(&self, _inode: InodeRef, _name: &[u8], _value: &[u8], _mode: XattrMode) -> Result<(), FsError> { todo!() }
    pub async fn remove_xattr(&self, _inode: InodeRef, _name: &[u8]) -> Result<(), FsError> { todo!() }
    /// of all nodes; unreachable ones are left out and named
    pub async fn usage(&self) -> Result<(Vec<(NodeId, Usage)>, Vec<NodeId>), FsError> { todo!() }
    /// path walk from the root, `/`-separated; follows symlinks (at most 40) except in the last component unless `follow`
    pub async fn walk(&self, _path: &[u8], _follow: bool) -> Result<Attr, FsError> { todo!() }
    /// parent directory and last component of a path
    pub async fn walk_parent<'p>(&self, _path: &'p [u8]) -> Result<(InodeRef, &'p [u8]), FsError> { todo!() }
    /// a request to one node (status, check, shutdown)
    pub async fn ask(&self, _node: NodeId, _request: Request) -> Answer { todo!() }
}
