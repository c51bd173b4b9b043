//! Memory that a caller names in a request, read and written by one-sided operations of the node, in batches.
//!
//! A caller can lie about its memory, take it away, or let the node wait: then the request fails within its time, and
//! others are served meanwhile. Transfers of a connection are limited by its slots for requests, and each by
//! [`polvo_proto::TRANSFER_MAX`].

use crate::request::context::RequestContext;
use polvo_cluster::within;
use polvo_fabric::{FabricError, QueuePair, Verb};
use polvo_proto::FsError;

/// Bytes moved before others get their turn.
pub(crate) const BATCH_BYTES: u64 = 1 << 20;
/// Most verbs of a batch.
const BATCH_VERBS: usize = 256;

/// Verbs on a caller's memory, in batches.
pub(crate) struct Batches<'t, 'r, 'v> {
    ctx: &'t RequestContext<'r>,
    pair: &'t QueuePair,
    signaled: bool,
    verbs: Vec<Verb<'v>>,
    bytes: u64,
    executed: bool,
}

impl<'t, 'r, 'v> Batches<'t, 'r, 'v> {
    pub(crate) fn new(ctx: &'t RequestContext<'r>, signaled: bool) -> Result<Self, FsError> {
        let pair = ctx
            .pair
            .ok_or_else(|| FsError::Invalid("a transfer without a connection".into()))?;
        Ok(Batches {
            ctx,
            pair,
            signaled,
            verbs: Vec::new(),
            bytes: 0,
            executed: false,
        })
    }

    pub(crate) async fn add(&mut self, verb: Verb<'v>, len: u64) -> Result<(), FsError> {
        if self.verbs.len() == BATCH_VERBS || self.bytes + len > BATCH_BYTES {
            self.execute().await?;
        }
        self.verbs.push(verb);
        self.bytes += len;
        debug_assert!(
            self.bytes <= BATCH_BYTES && self.verbs.len() <= BATCH_VERBS,
            "a batch of {} bytes, {} verbs",
            self.bytes,
            self.verbs.len()
        );
        Ok(())
    }

    pub(crate) async fn execute(&mut self) -> Result<(), FsError> {
        if self.verbs.is_empty() {
            return Ok(());
        }
        if std::mem::replace(&mut self.executed, true) {
            tokio::task::yield_now().await;
        }
        let limit = self.ctx.call_limit();
        let moved = match self.signaled {
            true => within(self.pair, limit, self.pair.execute(&mut self.verbs)).await,
            false => within(self.pair, limit, self.pair.execute_unreported(&mut self.verbs)).await,
        };
        self.verbs.clear();
        self.bytes = 0;
        moved.map_err(|error| match error {
            FabricError::BadKey { .. } | FabricError::Denied { .. } | FabricError::OutOfRange { .. } => {
                FsError::Invalid(format!("memory named in the request: {error}"))
            }
            other => FsError::Unreachable {
                node: self.ctx.node.id().0,
                why: other.to_string(),
            },
        })
    }
}

/// Start and length of the parts that a range is moved in.
pub(crate) fn parts(len: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len)
        .step_by(most as usize)
        .map(move |start| (start, most.min(len - start)))
}
