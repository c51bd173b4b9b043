//! Self-identified RPC (Octopus 3.3.1). CONTRACT (signatures others build on; bodies to be written).
use polvo_fabric::{FabricError, MemoryRegions, QueuePair};
use std::{future::Future, rc::Rc, sync::Arc, time::Duration};

/// Largest request, bytes.
pub const MAX_REQUEST: usize = 16 * 1024;
/// Largest reply, bytes.
pub const MAX_REPLY: usize = 64 * 1024;

/// Error of a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RpcError {
    /// fabric
    #[error(transparent)] Fabric(#[from] FabricError),
    /// too large
    #[error("request of {0} bytes is over the limit")] TooLarge(usize),
    /// broken peer
    #[error("malformed message from {peer}: {what}")] Malformed { /// who
        peer: String, /// what
        what: String },
}

/// The calling side; many calls may be in flight (bounded by the slots; further ones wait).
#[derive(Clone)]
pub struct RpcClient { _p: Rc<()> }
impl RpcClient {
    /// Sets up slots and reply memory over a fresh queue pair.
    pub async fn establish(_qp: QueuePair, _regions: &Arc<MemoryRegions>, _timeout: Duration) -> Result<RpcClient, RpcError> { todo!() }
    /// One request, one reply. Bounded by `timeout`.
    pub async fn call(&self, _request: &[u8], _timeout: Duration) -> Result<Vec<u8>, RpcError> { todo!() }
    /// The queue pair below, for one-sided verbs.
    pub fn queue_pair(&self) -> &QueuePair { todo!() }
    /// True once unusable.
    pub fn is_closed(&self) -> bool { todo!() }
}

/// Serves one queue pair until it is closed: each request is handed to `handler`, run as a task of its own on the
/// current `LocalSet`; replies go straight into the caller's memory. Returns when the peer is gone.
pub async fn serve<H, F>(_qp: QueuePair, _regions: &Arc<MemoryRegions>, _handler: H) -> Result<(), RpcError>
where H: Fn(Vec<u8>) -> F + 'static, F: Future<Output = Vec<u8>> + 'static { todo!() }
