//! The verbs. CONTRACT (signatures others build on; bodies to be written).
//! A queue pair belongs to the thread (tokio current-thread runtime) that made it; everything here is `!Send` unless said.
use polvo_pmem::Pmem;
use std::rc::Rc;
use std::sync::Arc;

/// Error of a fabric operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FabricError {
    /// the connection is gone; every outstanding and later operation gets this
    #[error("connection to {peer} lost: {why}")] Disconnected { peer: String, why: String },
    /// unknown or revoked key
    #[error("remote key {key:#x} is not valid at the target")] BadKey { key: u64 },
    /// access right missing
    #[error("remote key {key:#x} does not allow this operation")] Denied { key: u64 },
    /// outside the memory region, or misaligned atomic
    #[error("range {offset:#x}+{len:#x} lies outside memory region {key:#x}")] OutOfRange { key: u64, offset: u64, len: u64 },
    /// connect/accept failed
    #[error("cannot connect to {peer}: {why}")] Connect { peer: String, why: String },
    /// secret, version or cluster do not match
    #[error("{peer} refused us: {why}")] Refused { peer: String, why: String },
    /// address could not be parsed or bound
    #[error("address {addr}: {why}")] Address { addr: String, why: String },
    /// deadline passed
    #[error("{peer} did not answer within {ms} ms")] TimedOut { peer: String, ms: u64 },
}

/// Access rights of a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access { /// remote read
    pub read: bool, /// remote write
    pub write: bool, /// remote atomics
    pub atomic: bool }

/// Key of a memory region, valid at the endpoint that registered it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RemoteKey(pub u64);

/// Address at the peer: key and byte offset in that memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote { /// key
    pub key: RemoteKey, /// offset in the MR
    pub offset: u64 }

/// DRAM that peers may reach (memfd, so that peers on the host can map it). Access by copy.
pub struct Buffer { _p: () }
impl Buffer {
    /// Zeroed buffer of `len` bytes.
    pub fn new(_len: usize) -> Arc<Buffer> { todo!() }
    /// Copies out.
    pub fn read(&self, _offset: usize, _into: &mut [u8]) { todo!() }
    /// Copies in.
    pub fn write(&self, _offset: usize, _bytes: &[u8]) { todo!() }
    /// Bytes.
    pub fn len(&self) -> usize { todo!() }
}

/// What a memory region is made of.
#[derive(Clone)]
pub enum Memory { /// a pool; a completed remote write to it is durable (providers persist before they complete)
    Pool(Arc<Pmem>), /// DRAM
    Buffer(Arc<Buffer>) }

/// The memory regions of one process (node or client). `Send + Sync`, shared by all its queue pairs.
pub struct MemoryRegions { _p: () }
impl MemoryRegions {
    /// Empty table.
    pub fn new() -> Arc<MemoryRegions> { todo!() }
    /// Registers `len` bytes at `offset` of `memory`; MR offset 0 is `offset`. Keys are never used again.
    pub fn register(&self, _memory: Memory, _offset: u64, _len: u64, _access: Access) -> RemoteKey { todo!() }
    /// Revokes; later operations with it fail with BadKey.
    pub fn deregister(&self, _key: RemoteKey) { todo!() }
}

/// One verb of a batch. Verbs of a batch take effect at the target in order; the batch stops at the first that fails.
pub enum Verb<'a> {
    /// one-sided read
    Read { /// where
        from: Remote, /// to
        into: &'a mut [u8] },
    /// one-sided write
    Write { /// where
        to: Remote, /// what
        bytes: &'a [u8] },
    /// write, then an event with `imm` at the peer. `to.key == RemoteKey(0)` with empty bytes sends the immediate alone
    WriteImm { /// where
        to: Remote, /// what
        bytes: &'a [u8], /// immediate
        imm: u32 },
    /// 64-bit compare-and-swap, `found` gets the old value
    CompareSwap { /// where
        at: Remote, /// expected
        expect: u64, /// new
        new: u64, /// old value
        found: &'a mut u64 },
    /// 64-bit fetch-and-add
    FetchAdd { /// where
        at: Remote, /// addend
        add: u64, /// old value
        found: &'a mut u64 },
    /// what was written to the range before is durable when this completes
    Flush { /// where
        at: Remote, /// bytes
        len: u64 },
    /// two-sided message (at most `MAX_SEND`), an `Event::Message` at the peer
    Send { /// payload
        bytes: &'a [u8] },
}
/// Largest `Verb::Send`, bytes.
pub const MAX_SEND: usize = 64 * 1024;

/// What arrives at the target side of a queue pair.
#[derive(Debug)]
pub enum Event { /// a write-with-immediate landed
    Immediate(u32), /// a `Send`
    Message(Vec<u8>) }

/// Who the peer has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role { /// node of the cluster
    Node(u16), /// client
    Client }

/// Our side of the handshake.
#[derive(Clone)]
pub struct Identity { /// cluster uuid
    pub cluster: [u8; 16], /// shared secret; both sides prove it by HMAC over nonces
    pub secret: Arc<[u8]>, /// who we are
    pub role: Role }

/// Address of a listener: `tcp://host:port`, `shm:///path/to.sock`, `sim://name`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address { /// host:port
    Tcp(String), /// path of the UNIX socket by which shm peers meet
    Shm(std::path::PathBuf), /// simulated host name
    Sim(String) }
impl std::str::FromStr for Address { type Err = FabricError; fn from_str(_: &str) -> Result<Self, FabricError> { todo!() } }
impl std::fmt::Display for Address { fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { todo!() } }

/// A connected queue pair (reliable, ordered). Cheap to clone (`Rc`). Both sides may initiate.
#[derive(Clone)]
pub struct QueuePair { _p: Rc<()> }
impl QueuePair {
    /// Posts the batch and waits for its single completion. Drives the queue pair's own progress: spins for a bounded
    /// time where that pays, then waits in the runtime. Dropping the future is safe: late results are discarded.
    pub async fn execute(&self, _verbs: &mut [Verb<'_>]) -> Result<(), FabricError> { todo!() }
    /// Next event from the peer; `None` once disconnected. Served one-sided operations never show here.
    pub async fn next_event(&self) -> Option<Event> { todo!() }
    /// Who is at the other end.
    pub fn peer(&self) -> Role { todo!() }
    /// True once the connection is lost.
    pub fn is_closed(&self) -> bool { todo!() }
    /// Closes it.
    pub fn close(&self) { todo!() }
}

/// Connects to `addr`; `regions` are ours that the peer may reach. Bounded by `timeout`.
pub async fn connect(_addr: &Address, _me: &Identity, _regions: &Arc<MemoryRegions>, _timeout: std::time::Duration) -> Result<QueuePair, FabricError> { todo!() }

/// Accepts queue pairs at an address.
pub struct Listener { _p: () }
impl Listener {
    /// Binds. Address in use is an error that names it.
    pub async fn bind(_addr: &Address, _me: &Identity, _regions: &Arc<MemoryRegions>) -> Result<Listener, FabricError> { todo!() }
    /// Next peer that proved the secret. Handshakes run concurrently and are bounded in time; failed ones are logged and dropped.
    pub async fn accept(&mut self) -> Result<QueuePair, FabricError> { todo!() }
    /// Where it listens (the port when bound to port 0).
    pub fn local_addr(&self) -> Address { todo!() }
}
// sim: `fabric::sim::Network::new(seed)` is entered with `network.enter()` (thread-local) so that `Address::Sim` resolves in it.
