//! One thread's connection to one node.

use crate::LinkCounters;
use polvo_format::NodeId;
use polvo_proto::{Answer, Call, FsError, decode_answer};
use polvo_rpc::{RpcClient, RpcError};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One thread's connection to one node: RPC and one-sided access, attached to the session.
pub struct Link {
    /// The node.
    pub node: NodeId,
    /// RPC, and the queue pair below it.
    pub rpc: RpcClient,
    /// `Sync` is needed for durability against power loss at this node.
    pub needs_sync: bool,
    /// We may read and write file data one-sided; else the node moves it.
    pub one_sided: bool,
    /// File data has checksums there: who writes makes them.
    pub checksums: bool,
    /// Tells connections of one thread apart: keys handed out over another one are not used over this one.
    pub(crate) serial: u64,
    /// Grace tick to report: learnt so long ago that no read begun before it can still be under way.
    pub(crate) tick: Cell<u64>,
    pub(crate) timeout: Duration,
    pub(crate) counters: Arc<LinkCounters>,
    /// How often the node had turned out not to know the session when it was last greeted.
    pub(crate) resets: Cell<u64>,
    /// Operations that the session has given up at the node: when this connection was made, and now.
    pub(crate) fence: u64,
    pub(crate) given_up: Arc<AtomicU64>,
}

impl Link {
    /// One request, bounded by `Timeouts::rpc`. Transport failures become `FsError::Unreachable`.
    pub async fn call(&self, call: &Call) -> Answer {
        self.call_within(call, self.timeout).await
    }

    /// One request, bounded by `limit`.
    pub async fn call_within(&self, call: &Call, limit: Duration) -> Answer {
        self.exchange(call, limit).await?
    }

    /// One request. The outer error is the connection's, the inner one the node's answer (which may well be that it
    /// could not reach another node).
    pub(crate) async fn exchange(&self, call: &Call, limit: Duration) -> Result<Answer, FsError> {
        let request = call.encode();
        match self.rpc.call(&request, limit).await {
            Ok(reply) => {
                self.counters.count_rpc(&call.request, request.len() + reply.len());
                let garbage = |e| FsError::Io(format!("answer of node {}: {e}", self.node.0));
                Ok(decode_answer(&reply).unwrap_or_else(|e| Err(garbage(e))))
            }
            Err(error) => {
                self.counters.count_rpc(&call.request, request.len());
                Err(rpc_error(self.node, error))
            }
        }
    }

    /// True once the connection is lost, or the session has given an operation up at this node: what comes after that goes
    /// over a new one, which fences it off.
    pub fn is_closed(&self) -> bool {
        self.rpc.is_closed() || self.given_up.load(Ordering::Acquire) != self.fence
    }
}

pub(crate) fn rpc_error(node: NodeId, error: RpcError) -> FsError {
    match error {
        RpcError::TooLarge(bytes) => FsError::Invalid(format!("a request of {bytes} bytes is over the limit")),
        other => FsError::Unreachable {
            node: node.0,
            why: other.to_string(),
        },
    }
}
