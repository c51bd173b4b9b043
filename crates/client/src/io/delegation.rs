//! Space that regions delegate to this session: asked for when a write needs more than the extent pool has, and given
//! back.

use crate::io::extent_pool::{Surplus, Taken};
use crate::local_client::LocalClient;
use polvo_format::RegionId;
use polvo_proto::{FsError, PageRun, RELEASE_MAX, ask};

/// How often space is asked for while the answers bring less than is missing.
const DELEGATE_TRIES: u32 = 16;

impl LocalClient {
    /// Takes space of a region, asking for more when there is too little in hand.
    pub(crate) async fn obtain(&self, region: RegionId, session: u64, pages: u64) -> Result<Vec<PageRun>, FsError> {
        let lease = self.client.context.timeouts().lease * 2 / 3;
        let mut reclaimed = false;
        for _ in 0..DELEGATE_TRIES {
            let (missing, want) = match self.client.extent_pool.take(region, session, pages, lease) {
                Taken::Runs(runs) => {
                    debug_assert!(runs.iter().map(|run| u64::from(run.pages)).sum::<u64>() == pages);
                    return Ok(runs);
                }
                Taken::Short { missing, want } => (missing, want),
                Taken::Unconfirmed => {
                    self.renew().await;
                    if self.client.incarnation(self.client.primary(region)?, region) != session {
                        return Err(FsError::SessionExpired);
                    }
                    continue;
                }
            };
            let wanted = if reclaimed { missing } else { want };
            let pages = u32::try_from(wanted).unwrap_or(u32::MAX);
            match self.call(region, ask::Delegate { region, pages }).await {
                // where the region has moved meanwhile, by whoever serves it now: then this is nobody's until the session ends there
                Ok(runs) => self.client.extent_pool.receive(region, session, runs, Vec::new()),
                Err(error @ (FsError::NoSpace | FsError::HeldBack)) if !std::mem::replace(&mut reclaimed, true) => {
                    if !self.give_back_at(region, Some(region)).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::NoSpace)
    }

    /// Gives back what we have in hand where `region` and its copies are (that of a region takes room where its copies are, too), and
    /// what we hold there for no use. What is in hand of region `keep` stays. False when there was nothing to give.
    pub(crate) async fn give_back_at(&self, region: RegionId, keep: Option<RegionId>) -> bool {
        let map = self.client.map();
        let nodes_of = |r| {
            map.region(r)
                .into_iter()
                .flat_map(|info| &info.replicas)
                .map(|replica| replica.node)
        };
        let is_there = |r| nodes_of(r).any(|node| nodes_of(region).any(|other| other == node));
        let drained = self.client.extent_pool.drain_where(|r| is_there(r) && Some(r) != keep);
        self.give_back(drained).await
    }

    /// Gives back all that is in hand anywhere. False when there was nothing to give.
    pub(crate) async fn give_back_all(&self) -> bool {
        let drained = self.client.extent_pool.drain_where(|_| true);
        self.give_back(drained).await
    }

    async fn give_back(&self, drained: Vec<Surplus>) -> bool {
        let released = self.release_some().await;
        let returned = !drained.is_empty();
        self.return_space(drained).await;
        released || returned
    }

    /// Gives pages back to the session that they were given to, and to no later one: that may have been given the same
    /// pages anew, and be writing to them.
    pub(crate) async fn return_space(&self, drained: Vec<Surplus>) {
        for Surplus { region, session, runs } in drained {
            for runs in runs.chunks(RELEASE_MAX / 2) {
                if let Err(error) = self.return_runs(region, session, runs).await {
                    // it comes back when the session ends
                    tracing::debug!(%region, %error, "return of space");
                }
            }
        }
    }

    async fn return_runs(&self, region: RegionId, session: u64, runs: &[PageRun]) -> Result<(), FsError> {
        let node = self.client.primary(region)?;
        let link = self.links.to(node).await?;
        // over this connection alone: one made later may belong to another session
        match self.client.incarnation(node, region) == session {
            true => {
                let request = ask::ReturnSpace { runs: runs.to_vec() };
                let call = self.links.make_call(self.client.cred.clone(), request);
                link.call(&call).await.map(drop)
            }
            false => Ok(()),
        }
    }
}
