//! A node gets a region's copy, as an operator says, and another one, which has one, has none then: so a node that is new gets its share.
//!
//! ```text
//! primary    names the new one, as a backup | fills it; it is a mirror (keeper) | the other one leaves the set | and the list
//! the other  ............................................................................................ gives its segments back
//! ```
//!
//! Invariants:
//!
//! - No moment with a copy fewer: the other one leaves the set when the new one is in it, has all that was answered, and can be reached.
//! - What has been done is found in the map: whoever serves the region by then can take the next step, and an operator who has gone away
//!   leaves a copy more, never one less.
//! - The list is changed as in [`replace`](super::replace): by the primary, when it follows the one that there is, and only a backup is
//!   taken off it, which may not write any more what it has decided as a primary of before.

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use crate::replication::follower::{Follower, Standing};
use crate::replication::keeper::{must_be, with_role};
use polvo_cluster::{CopyMove, Links, MovedCopy, Timeouts, next_of_move, with_copy, without_copy};
use polvo_format::{NodeId, RegionId};
use polvo_proto::{ClusterMap, Cred, FsError, ReplicaRole, ask};
use polvo_region::planted::{Planted, planted};
use std::rc::Rc;
use std::sync::Arc;

impl Node {
    /// See [`polvo_proto::Request::MoveCopy`].
    ///
    /// # Errors
    /// As there; as [`Node::change_map`].
    pub(crate) async fn move_copy(self: &Arc<Self>, links: &Rc<Links>, moved: MovedCopy) -> Result<(), FsError> {
        let MovedCopy { region, from, to } = moved;
        // nor is it handed over meanwhile
        let _turn = self.handing_over.try_lock().map_err(|_| FsError::Retry)?;
        let map = self.map();
        let info = map.region(region).filter(|info| info.primary() == Some(self.id()));
        let (Some(service), Some(info)) = (self.service(region), info) else {
            return Err(FsError::WrongEpoch);
        };
        let invalid = |why: String| FsError::Invalid(format!("region {}: {why}", region.0));
        let replication = service
            .replication()
            .ok_or_else(|| invalid("it has no copies".into()))?;
        let next = next_of_move(&map, moved).map_err(invalid)?;
        if next == CopyMove::Done {
            return Ok(());
        }
        let is_unfenced = from.is_some_and(|from| replication.is_unfenced(from));
        if !replication.is_confirmed() || !replication.follows(info) || is_unfenced || self.is_stopping() {
            return Err(FsError::Retry);
        }
        match (next, from) {
            (CopyMove::Begin, _) => {
                self.seek_room_at(links, region, to).await?;
                let begin = |map: &ClusterMap| match next_of_move(map, moved) {
                    Ok(CopyMove::Begin) => with_copy(map, self.id(), region, to),
                    _ => None,
                };
                self.change_map(links, begin).await?;
                replication.look_after_all();
            }
            (CopyMove::Waits, Some(from)) if planted(Planted::CopyMovedEarly) => {
                return self.end_move(links, service, replication, from, to).await;
            }
            (CopyMove::End, Some(from)) => return self.end_move(links, service, replication, from, to).await,
            _ => {}
        }
        Err(FsError::Retry)
    }

    /// Has a node the room for a copy of a region, and its lane?
    ///
    /// # Errors
    /// ENOSPC: it has not; or it does not answer.
    async fn seek_room_at(&self, links: &Rc<Links>, region: RegionId, to: NodeId) -> Result<(), FsError> {
        let needed = (self.space.segments_of(region).len() as u64 + 1) * self.space.usage().segment_size;
        let usage = links
            .call_node_at_once_within(to, Cred::Kernel, ask::Usage, Timeouts::ASIDE)
            .await?;
        match usage.free_bytes >= needed {
            true => Ok(()),
            false => Err(FsError::NoSpace),
        }
    }

    /// Both nodes have the copy: one goes.
    async fn end_move(
        self: &Arc<Self>,
        links: &Rc<Links>,
        service: &Arc<RegionService>,
        replication: &Replication,
        from: NodeId,
        to: NodeId,
    ) -> Result<(), FsError> {
        let (us, region) = (self.id(), service.id);
        // a majority answers: who waits for mirrors does not wait below for one
        self.confirm_map(links).await?;
        let mut feed = replication.feed().lock().await;
        let has_all = |follower: &mut Follower| {
            follower.standing == Standing::Whole && follower.in_sync && follower.away_since.is_none()
        };
        if !feed.follower(to).is_some_and(has_all) && !planted(Planted::CopyMovedEarly) {
            return Err(FsError::Retry);
        }
        let leave = |map: &ClusterMap| with_role(map, us, from, ReplicaRole::Backup, |id| id == region);
        let map = self.change_map(links, leave).await?;
        must_be(&map, region, us, from, ReplicaRole::Backup)?;
        if let Some(follower) = feed.follower(from) {
            follower.in_sync = false;
        }
        replication.set_changed(&feed, &self.leases);
        let map = self
            .change_map(links, |map| without_copy(map, us, region, from))
            .await?;
        let info = map.region(region).filter(|info| info.primary() == Some(us));
        let info = info.ok_or(FsError::WrongEpoch)?;
        replication.follow(&mut feed, info, &self.leases);
        match info.role(from) {
            None => {
                tracing::info!(region = region.0, from = from.0, to = to.0, "a copy has moved");
                Ok(())
            }
            Some(_) => Err(FsError::Retry),
        }
    }
}
