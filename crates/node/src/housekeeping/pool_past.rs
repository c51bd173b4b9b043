//! Whether pools are those that were seen last: the eras of this one are shown to the other nodes before it serves anything,
//! then every ten seconds and at a clean end, and theirs are checked in return. A node whose pool was set back to an older
//! copy of itself would give numbers to new files by which names elsewhere mean others, and lack what others take for done.

use crate::node::Node;
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_format::{Era, NodeId, PoolPast};
use polvo_proto::{Cred, FsError, LockTerm, ask};
use std::rc::Rc;

impl Node {
    /// Before anything is served: the other nodes that can be reached check what this pool is, then a new era of it begins, and
    /// they know.
    ///
    /// # Errors
    /// [`FsError::SetBack`] when one of them has seen a later copy, unless the configuration accepts that; [`FsError::Removed`].
    pub(crate) async fn begin_era(&self, links: &Rc<Links>) -> Result<(), FsError> {
        let known = match self.show_past(links).await {
            Ok(()) => None,
            Err(error @ FsError::SetBack { seen, .. }) if self.config.accept_older_pool => {
                tracing::warn!(%error, "accepted, as asked");
                Some(Era { number: seen, mark: 0 })
            }
            Err(error) => return Err(error),
        };
        // those that were reached have told what they know of the map
        if self.is_removed() {
            self.learn_map(&self.map());
            return Err(FsError::Removed { node: self.id().0 });
        }
        self.space.begin_era(self.locks.term().0, known);
        // an era that others have seen is not to be lost with the power
        self.sync()?;
        // whoever can be reached knows of the new era before anything is done in it
        self.show_past(links).await
    }

    /// At a clean end: a copy of the pool that was made before can be told from it.
    pub(crate) async fn end_era(&self, links: &Rc<Links>) {
        self.space.begin_era(random_mark() & !RUN, None);
        let shown = match self.sync() {
            Ok(()) => self.show_past(links).await,
            Err(error) => Err(error),
        };
        if let Err(error) = shown {
            tracing::error!(%error, "this node stops");
        }
    }

    /// Shows what this pool has been to the nodes that can be reached, and sees what theirs are.
    ///
    /// # Errors
    /// [`FsError::SetBack`] when one of them has seen a later copy of this one; of several the latest.
    pub(crate) async fn show_past(&self, links: &Rc<Links>) -> Result<(), FsError> {
        let map = self.map();
        let others = map.nodes.iter().map(|node| node.id).filter(|id| *id != self.id());
        let refused = join_all(others.map(|other| async move {
            let known = self.context.pools().known(other);
            let shown = links.call_node_at_once(other, Cred::Kernel, ask::Past(self.space.past()));
            match tokio::time::timeout(Timeouts::ASIDE, shown).await.ok()? {
                Ok(past) => {
                    if let Err(error @ FsError::SetBack { .. }) = self.context.pools().see_answer(other, known, &past) {
                        tracing::error!(%error, "another node");
                    }
                    None
                }
                Err(FsError::SetBack { node, seen, found }) if NodeId(node) == self.id() => Some((seen, found)),
                _ => None,
            }
        }))
        .await;
        match refused.into_iter().flatten().max() {
            Some((seen, found)) => Err(FsError::SetBack {
                node: self.id().0,
                seen,
                found,
            }),
            None => Ok(()),
        }
    }
}

/// Set in the marks of eras in which the pool is served, and not in those that clean ends begin.
const RUN: u64 = 1;

/// The term under which a node that is being started gives locks: the mark of the era that it begins.
pub(crate) fn draw_lock_term() -> LockTerm {
    LockTerm(random_mark() | RUN)
}

/// The term under which the node gave locks when its pool was served last; none: it never was, or that is not known.
pub(crate) fn lock_term_before(past: &PoolPast) -> Option<LockTerm> {
    let [latest, before] = past.history.latest_two();
    [latest, before]
        .into_iter()
        .find(|era| era.mark & RUN != 0)
        .map(|era| LockTerm(era.mark))
}

/// Tells an era from those of other copies with the same number.
fn random_mark() -> u64 {
    let mut mark = [0; 8];
    getrandom::fill(&mut mark).expect("the system has random numbers");
    u64::from_le_bytes(mark)
}
