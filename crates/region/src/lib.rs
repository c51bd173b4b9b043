//! One region as a log-structured file-tree shard. CONTRACT (signatures others build on; bodies to be written).
//! Synchronous and deterministic: no clock, no thread, no randomness of its own. Time comes in as `now_ns`.
use polvo_format::*;
use polvo_proto::*;
use std::sync::Arc;

mod error;
mod pool;

pub use error::RegionError;
pub use pool::{FormatParams, PoolIdentity, PoolSpace, PoolUsage, RedoId, RemotePart, Undispatched};

/// What recovery found.
#[derive(Clone, Debug, Default)]
pub struct Recovery { /// inodes in use
    pub inodes: u64, /// bytes read from the media
    pub bytes_read: u64, /// inodes without a name, freed
    pub orphans_freed: u64, /// transactions (by others) that hold inodes here
    pub held_by: Vec<TxnId> }

/// A finding of `check`.
#[derive(Clone, Debug)]
pub struct Finding { /// inode, if about one
    pub ino: Option<Ino>, /// structure and what is wrong with it
    pub what: String }
/// Result of `check`: local findings, and the cross-region facts for the caller to join.
#[derive(Clone, Debug, Default)]
pub struct CheckReport { /// local damage
    pub findings: Vec<Finding>, /// every inode: kind, nlink, generation
    pub inodes: Vec<(InodeRef, FileKind, u32)>, /// every name: (directory, target, kind)
    pub names: Vec<(Ino, InodeRef, FileKind)> }

/// A region served here. Guard it with one short lock.
pub struct Region { _p: () }

/// A coordinator's decision, durable: reply to the client after dispatch.
#[derive(Debug)]
#[must_use]
pub struct Decided { /// retire it when the remote part is dispatched; `None`: nothing remote, already retired
    pub record: Option<RedoId>, /// one an intent
    pub outcomes: Vec<Outcome> }

impl Region {
    /// Makes an empty region in the pool; region 0 gets the root directory (mode 0755, owner 0:0).
    pub fn create(_space: &Arc<PoolSpace>, _id: RegionId, _now_ns: i64) -> Result<Region, RegionError> { todo!() }
    /// Rebuilds the DRAM state from the media. `progress(done, total)` counts segments.
    pub fn recover(_space: &Arc<PoolSpace>, _id: RegionId, _progress: &mut dyn FnMut(u64, u64)) -> Result<(Region, Recovery), RegionError> { todo!() }
    /// Which.
    pub fn id(&self) -> RegionId { todo!() }
    /// Segments by index: (index, pool offset, class). Changes only by growing.
    pub fn segments(&self) -> &[(u32, u64, SegmentClass)] { todo!() }
    /// Inodes in use, bytes free in its own segments.
    pub fn usage(&self) -> Usage { todo!() }

    // ---- reading
    /// Attributes and tail; `generation` must match when given.
    pub fn attr(&mut self, _ino: Ino, _generation: Option<Generation>) -> Result<(Attr, Tail), RegionError> { todo!() }
    /// Finds a name.
    pub fn lookup(&mut self, _dir: InodeRef, _name: &[u8]) -> Result<(DirEntry, Tail), RegionError> { todo!() }
    /// Entries after a cookie, at most `max`, and at most ~48 KiB encoded.
    pub fn read_dir(&mut self, _dir: InodeRef, _after: u64, _max: u32) -> Result<Vec<DirEntry>, RegionError> { todo!() }
    /// Parent of a directory.
    pub fn parent(&mut self, _dir: InodeRef) -> Result<InodeRef, RegionError> { todo!() }
    /// Placement of a directory.
    pub fn placement(&mut self, _dir: InodeRef) -> Result<Placement, RegionError> { todo!() }
    /// Target of a symlink.
    pub fn read_link(&mut self, _inode: InodeRef) -> Result<Vec<u8>, RegionError> { todo!() }
    /// Mapping from a file offset on (at most ~1000 extents).
    pub fn file_map(&mut self, _inode: InodeRef, _from: u64) -> Result<FileMap, RegionError> { todo!() }
    /// Reads file bytes at the primary; short at end of file.
    pub fn read(&mut self, _inode: InodeRef, _offset: u64, _into: &mut [u8]) -> Result<usize, RegionError> { todo!() }
    /// xattr value.
    pub fn get_xattr(&mut self, _inode: InodeRef, _name: &[u8]) -> Result<Vec<u8>, RegionError> { todo!() }
    /// xattr names.
    pub fn list_xattr(&mut self, _inode: InodeRef) -> Result<Vec<Vec<u8>>, RegionError> { todo!() }

    // ---- changing one inode (durable on return)
    /// Changes attributes (size included).
    pub fn set_attr(&mut self, _inode: InodeRef, _set: &SetAttr, _now_ns: i64) -> Result<(Attr, Tail), RegionError> { todo!() }
    /// Small write, bytes copied here. `known`: entries after it are in the answer.
    pub fn write(&mut self, _inode: InodeRef, _offset: u64, _append: bool, _bytes: &[u8], _known: Tail, _now_ns: i64) -> Result<Written, RegionError> { todo!() }
    /// Log commit of runs that lie in space delegated to `session` (checked; consumed).
    pub fn commit(&mut self, _session: SessionId, _inode: InodeRef, _runs: &[WriteRun], _append: bool, _known: Tail, _now_ns: i64) -> Result<Written, RegionError> { todo!() }
    /// Changes the mapping of a range.
    pub fn fallocate(&mut self, _inode: InodeRef, _mode: FallocateMode, _offset: u64, _len: u64, _now_ns: i64) -> Result<(Attr, Tail), RegionError> { todo!() }
    /// Sets an xattr. `polvo.placement` (value `hash` or `local`) on a directory sets its placement.
    pub fn set_xattr(&mut self, _inode: InodeRef, _name: &[u8], _value: &[u8], _mode: XattrMode, _now_ns: i64) -> Result<(Attr, Tail), RegionError> { todo!() }
    /// Removes an xattr.
    pub fn remove_xattr(&mut self, _inode: InodeRef, _name: &[u8], _now_ns: i64) -> Result<(Attr, Tail), RegionError> { todo!() }

    // ---- transactions
    /// Participant: stages the intents, locks every inode they touch (durably, with the transaction's id) and returns
    /// the bytes for the coordinator to log and dispatch. Nothing visible changes. All or nothing.
    pub fn collect(&mut self, _txn: TxnId, _intents: &[Intent], _now_ns: i64) -> Result<Collected, RegionError> { todo!() }
    /// Coordinator (or a purely local change with `remote` empty): stages the intents on this region, checks them, logs
    /// one redo record with the remote parts, applies the local part. All of it is durable on return; on error nothing
    /// changed.
    pub fn decide(&mut self, _txn: TxnId, _intents: &[Intent], _remote: &[RemotePart], _now_ns: i64) -> Result<Decided, RegionError> { todo!() }
    /// Looks at the lock words of what was collected here: takes over what was dispatched, drops what was given up.
    /// (Also done whenever such an inode is touched.) Returns transactions that are still open.
    pub fn settle(&mut self) -> Vec<TxnId> { todo!() }
    /// The coordinator says it is aborted: lets go.
    pub fn abort(&mut self, _txn: TxnId) { todo!() }

    // ---- sessions
    /// Holds an inode open for a session (it outlives its last name).
    pub fn open(&mut self, _session: SessionId, _inode: InodeRef) -> Result<(), RegionError> { todo!() }
    /// Lets go; frees the inode if it is dead and nobody else holds it.
    pub fn release(&mut self, _session: SessionId, _inode: InodeRef) { todo!() }
    /// Dead inodes that this session holds open.
    pub fn dead_held(&self, _session: SessionId) -> Vec<InodeRef> { todo!() }
    /// Hands out space; fewer pages than asked when short, ENOSPC when none.
    pub fn delegate(&mut self, _session: SessionId, _pages: u32) -> Result<Vec<PageRun>, RegionError> { todo!() }
    /// Takes unused delegated space back (what is not this session's is ignored).
    pub fn return_space(&mut self, _session: SessionId, _runs: &[PageRun]) { todo!() }
    /// The session is gone: everything it held open and every page delegated to it comes back (pages via quarantine).
    pub fn end_session(&mut self, _session: SessionId) { todo!() }

    // ---- housekeeping
    /// Quarantine: what is freed from now on carries `tick`; what was freed at or before `safe` is free again.
    pub fn set_tick(&mut self, _tick: u64, _safe: u64) { todo!() }
    /// Does a bounded piece of log garbage collection; false when there is nothing to do.
    pub fn collect_garbage(&mut self, _now_ns: i64) -> bool { todo!() }
    /// Checks everything of this region on the media.
    pub fn check(&mut self, _progress: &mut dyn FnMut(u64, u64)) -> CheckReport { todo!() }
}
