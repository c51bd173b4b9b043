//! Persistent memory: map a pool; store, flush, fence. CONTRACT (signatures others build on; bodies to be written).
use std::path::Path;
use std::sync::Arc;

/// What a pool lies on; decides how bytes become durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium { /// `/dev/dax*`
    DevDax, /// file on a DAX mount, mapped with MAP_SYNC
    FsDax, /// tmpfs: survives the process, not the machine
    Tmpfs, /// plain file: page cache; `sync` = msync
    File, /// simulated
    Sim }

/// How stores become durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence { /// nothing to do (eADR, volatile media): stores need no flush
    None, /// clwb + sfence
    Clwb, /// clflushopt + sfence
    Clflushopt, /// clflush
    Clflush }

/// Error of mapping or syncing a pool.
#[derive(Debug, thiserror::Error)]
pub enum PmemError { /// operating system
    #[error("{path}: {what}: {source}")] Os { path: String, what: &'static str, source: std::io::Error } }

/// One mapped pool. All access goes through it; offsets out of range are a caller's bug and panic
/// (callers validate what came from media or wire first). `Send + Sync`; concurrent access is defined (atomics/volatile).
pub struct Pmem { _p: () }
impl Pmem {
    /// Maps an existing file or device.
    pub fn open(_path: &Path, _persistence: Option<Persistence>) -> Result<Arc<Pmem>, PmemError> { todo!() }
    /// Creates (or truncates to `len`) a pool file and maps it.
    pub fn create(_path: &Path, _len: u64, _persistence: Option<Persistence>) -> Result<Arc<Pmem>, PmemError> { todo!() }
    /// Simulated medium of `len` bytes, see `sim`.
    pub fn simulated(_len: u64) -> Arc<Pmem> { todo!() }
    /// Bytes.
    pub fn len(&self) -> u64 { todo!() }
    /// What it lies on.
    pub fn medium(&self) -> Medium { todo!() }
    /// How stores become durable here.
    pub fn persistence(&self) -> Persistence { todo!() }
    /// True when durability against power loss needs `sync` (plain file).
    pub fn needs_sync(&self) -> bool { todo!() }
    /// File descriptor to hand to peers on the same host (shm provider); None for sim.
    pub fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> { todo!() }
    /// Copies out.
    pub fn read(&self, _offset: u64, _into: &mut [u8]) { todo!() }
    /// Atomic 8-byte load (acquire); offset multiple of 8.
    pub fn read_u64(&self, _offset: u64) -> u64 { todo!() }
    /// Stores; not durable before flush + fence.
    pub fn write(&self, _offset: u64, _bytes: &[u8]) { todo!() }
    /// Atomic 8-byte store (release).
    pub fn write_u64(&self, _offset: u64, _value: u64) { todo!() }
    /// Atomic compare-and-swap; returns the value found.
    pub fn cas_u64(&self, _offset: u64, _expect: u64, _new: u64) -> u64 { todo!() }
    /// Atomic add; returns the value found.
    pub fn faa_u64(&self, _offset: u64, _add: u64) -> u64 { todo!() }
    /// Bulk store that is durable after the next `fence` without a flush (non-temporal where that wins).
    pub fn write_streaming(&self, _offset: u64, _bytes: &[u8]) { todo!() }
    /// Zeroes a range, as `write_streaming`.
    pub fn zero_streaming(&self, _offset: u64, _len: u64) { todo!() }
    /// Starts write-back of the range's cache lines (no-op with `Persistence::None`).
    pub fn flush(&self, _offset: u64, _len: u64) { todo!() }
    /// Orders and completes write-backs: what was flushed before is durable after.
    pub fn fence(&self) { todo!() }
    /// flush + fence.
    pub fn persist(&self, _offset: u64, _len: u64) { todo!() }
    /// msync for plain files; no-op elsewhere.
    pub fn sync(&self) -> Result<(), PmemError> { todo!() }
}
