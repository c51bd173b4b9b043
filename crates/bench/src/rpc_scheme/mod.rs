//! The three ways of RPC that Octopus compares (3.3.1, Fig. 13), behind one trait. PolvoFS uses [`SelfIdentified`]
//! (`polvo-rpc`); the others are here to be compared with it, and are no more than the comparison needs.

mod message_based;
mod polled;

pub use message_based::{MessageBased, MessageCaller};
pub use polled::{Polled, PolledCaller};

use polvo_fabric::{FabricError, MemoryRegions, QueuePair};
use polvo_rpc::{MAX_REQUEST, RpcClient, RpcError, serve};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A way to bring requests to a server and replies back.
pub trait Scheme: 'static {
    /// As it appears in figures.
    const NAME: &'static str;
    /// Largest request, in bytes.
    const REQUEST_MAX: usize = MAX_REQUEST;
    /// The calling side.
    type Caller: Caller;

    /// The calling side of a fresh queue pair whose other end is being served. Bounded by `timeout`.
    fn establish(
        pair: QueuePair,
        regions: &Arc<MemoryRegions>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Self::Caller, RpcError>>;

    /// Serves every queue pair that arrives, on the current `LocalSet`, until the future is dropped. A peer that breaks the
    /// protocol loses its connection.
    fn serve_all<H, F>(
        arrivals: mpsc::Receiver<QueuePair>,
        regions: Arc<MemoryRegions>,
        handler: H,
    ) -> impl Future<Output = ()>
    where
        H: Fn(Vec<u8>) -> F + Clone + 'static,
        F: Future<Output = Vec<u8>> + 'static;
}

/// The calling side of a [`Scheme`].
pub trait Caller: Clone + 'static {
    /// One request, one reply, which replaces what is in `reply`. Bounded by `timeout`.
    fn call_into(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        timeout: Duration,
    ) -> impl Future<Output = Result<(), RpcError>>;

    /// The queue pair below.
    fn queue_pair(&self) -> &QueuePair;
}

/// Requests are written into the server's memory, each announced by an immediate that says where it lies: [`RpcClient`] and
/// [`serve`].
pub struct SelfIdentified;

impl Caller for RpcClient {
    async fn call_into(&self, request: &[u8], reply: &mut Vec<u8>, timeout: Duration) -> Result<(), RpcError> {
        RpcClient::call_into(self, request, reply, timeout).await
    }

    fn queue_pair(&self) -> &QueuePair {
        RpcClient::queue_pair(self)
    }
}

impl Scheme for SelfIdentified {
    const NAME: &'static str = "self-identified";
    type Caller = RpcClient;

    async fn establish(
        pair: QueuePair,
        regions: &Arc<MemoryRegions>,
        timeout: Duration,
    ) -> Result<RpcClient, RpcError> {
        RpcClient::establish(pair, regions, timeout).await
    }

    async fn serve_all<H, F>(mut arrivals: mpsc::Receiver<QueuePair>, regions: Arc<MemoryRegions>, handler: H)
    where
        H: Fn(Vec<u8>) -> F + Clone + 'static,
        F: Future<Output = Vec<u8>> + 'static,
    {
        let mut serving = JoinSet::new();
        while let Some(pair) = arrivals.recv().await {
            let (regions, handler) = (regions.clone(), handler.clone());
            serving.spawn_local(async move { serve(pair, &regions, handler).await });
            while serving.try_join_next().is_some() {}
        }
        while serving.join_next().await.is_some() {}
    }
}

/// Runs `call` for at most `timeout`.
async fn bounded<T>(
    pair: &QueuePair,
    timeout: Duration,
    call: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| {
        let (peer, ms) = (pair.peer_name().to_owned(), timeout.as_millis() as u64);
        Err(FabricError::TimedOut { peer, ms }.into())
    })
}

/// Why the connection has ended.
fn lost(pair: &QueuePair) -> RpcError {
    let gone = || FabricError::Disconnected {
        peer: pair.peer_name().to_owned(),
        why: "it has gone".into(),
    };
    pair.lost().unwrap_or_else(gone).into()
}

/// Ends the connection to a peer that breaks the protocol.
fn malformed(pair: &QueuePair, what: &str) -> RpcError {
    pair.close_because(&format!("it sent {what}"));
    RpcError::Malformed {
        peer: pair.peer_name().to_owned(),
        what: what.to_owned(),
    }
}
