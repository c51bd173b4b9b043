//! The cluster-wide lock under which directories change parents, as who renames one takes it (`rename_lock`: as it is granted).

use crate::names::rename_lock::Holder;
use crate::request::context::RequestContext;
use polvo_format::{Ino, RegionId, TxnId};
use polvo_proto::{FsError, ask};
use polvo_region::Region;

/// The cluster-wide lock under which directories change parents, as its holder has it.
pub(crate) struct RenameLease {
    holder: TxnId,
    grant: u64,
}

impl RenameLease {
    async fn ask(ctx: &RequestContext<'_>, holder: TxnId, release: bool) -> Result<u64, FsError> {
        let region = Ino::ROOT.region();
        if ctx.node.serves(region) {
            let holder = Holder {
                txn: holder,
                node: ctx.node.id(),
                epoch: ctx.node.map().epoch,
            };
            return ctx.node.grant_rename(holder, release);
        }
        ctx.ask_region(region, ask::RenameLock { txn: holder, release }).await
    }

    /// Takes it under a number of a region that is served here.
    pub async fn take(ctx: &RequestContext<'_>, of: RegionId) -> Result<RenameLease, FsError> {
        let holder = ctx.service(of)?.enter(Region::next_txn);
        let mut backoff = ctx.backoff();
        loop {
            match Self::ask(ctx, holder, false).await {
                Ok(grant) => return Ok(RenameLease { holder, grant }),
                Err(FsError::Retry) => backoff.wait().await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The lock has been ours all the time: what was seen of the tree's shape under it still holds.
    pub async fn verify(&self, ctx: &RequestContext<'_>) -> Result<(), FsError> {
        match Self::ask(ctx, self.holder, false).await? {
            grant if grant == self.grant => Ok(()),
            _ => Err(FsError::Retry),
        }
    }

    /// Best effort: a grant ends by itself.
    pub async fn release(self, ctx: &RequestContext<'_>) {
        if let Err(error) = Self::ask(ctx, self.holder, true).await {
            tracing::debug!(%error, "the rename lock was not given back");
        }
    }
}
