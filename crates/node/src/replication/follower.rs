//! A node that has, or is to get, a copy of a region, as the region's primary sees it.

use crate::region_service::RegionService;
use crate::replication::feed::Records;
use crate::replication::lane_feed::LaneFeed;
use polvo_cluster::{Links, Timeouts};
use polvo_format::{Lsn, NodeId};
use polvo_proto::{Cred, FsError, LanePlace, Replica, ReplicaRole, ask};
use polvo_region::planted::{Planted, planted};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::time::Instant;

/// A copy out of the set gets so many bytes of records at a time: mirrors in the set, and who waits for them, have their turn in between.
pub(super) const CATCH_UP: usize = 16 << 10;

/// How a copy stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has nothing that counts, and gets no records.
    Lost,
    /// It is being filled, and gets the records behind this one afterwards.
    Filling(Lsn),
    /// It has all that the region holds, but for records of the backlog.
    Whole,
}

/// A node that has, or is to get, a copy of the region.
pub(crate) struct Follower {
    pub node: NodeId,
    pub standing: Standing,
    /// The map says that it is a mirror, or may say so: nothing is answered without it.
    pub in_sync: bool,
    /// None while it is not connected, and while something is being sent: who gives up in the middle leaves none. (It is taken for each
    /// batch: the box is what moves.)
    pub lane: Option<Box<LaneFeed>>,
    /// Since when it has not been reached.
    pub away_since: Option<Instant>,
    /// The last record that it is known to have.
    pub(super) has: Lsn,
}

impl Follower {
    /// One that has nothing that counts.
    pub(super) fn of(replica: &Replica) -> Follower {
        Follower {
            node: replica.node,
            standing: Standing::Lost,
            in_sync: replica.role == ReplicaRole::Mirror,
            lane: None,
            away_since: None,
            has: Lsn(0),
        }
    }

    /// The last record that it does not need any more; `None`: it needs none.
    pub(super) fn needs(&self) -> Option<Lsn> {
        match self.standing {
            Standing::Lost => None,
            Standing::Filling(from) => Some(from),
            Standing::Whole => Some(self.has),
        }
    }

    /// It has a copy that is whole, up to that record.
    pub(super) fn has_all(&mut self, last: Lsn) {
        (self.standing, self.has) = (Standing::Whole, last);
    }

    /// What it has is good for nothing.
    pub fn lose(&mut self) {
        self.standing = Standing::Lost;
        self.lane = None;
    }

    pub(super) async fn send(
        &mut self,
        service: &RegionService,
        links: &Rc<Links>,
        backlog: &VecDeque<Records>,
        taken: Lsn,
    ) -> Result<(), FsError> {
        if self.standing != Standing::Whole {
            return Err(FsError::Unreachable {
                node: self.node.0,
                why: "its copy is not whole".into(),
            });
        }
        let mut lane = match self.lane.take() {
            Some(lane) => lane,
            None => self
                .attach(service, links, taken)
                .await
                .inspect_err(|_| self.is_away())?,
        };
        let bytes = if self.in_sync { usize::MAX } else { CATCH_UP };
        let sent = lane.send(self.node, service, links, backlog, bytes).await;
        match &sent {
            Ok(()) => {
                self.has = lane.sent();
                self.lane = Some(lane);
                self.away_since = None;
            }
            Err(error) => {
                self.is_away();
                tracing::debug!(region = service.id.0, node = self.node.0, %error, "a mirror did not take records");
                // segments that the region has given back since would come and go once more: made anew the copy gives them back first
                if *error == FsError::NoSpace && !self.in_sync && !planted(Planted::RetiredNotSought) {
                    self.lose();
                }
            }
        }
        sent
    }

    /// It did not get something: nothing goes on without one that is in the set.
    pub(super) fn must_get(&self, error: FsError) -> Result<(), FsError> {
        match self.in_sync {
            true => Err(error),
            false => Ok(()),
        }
    }

    fn is_away(&mut self) {
        self.away_since.get_or_insert_with(Instant::now);
    }

    /// Connects again to a lane that it has followed by.
    async fn attach(
        &mut self,
        service: &RegionService,
        links: &Rc<Links>,
        taken: Lsn,
    ) -> Result<Box<LaneFeed>, FsError> {
        let place = attach(self.node, service, links, None).await?;
        self.follow_by(place, service, taken)
    }

    /// It follows by the lane that it has followed by, if nothing of it is lost.
    ///
    /// # Errors
    /// It has lost its copy.
    pub(super) fn follow_by(
        &mut self,
        place: LanePlace,
        service: &RegionService,
        taken: Lsn,
    ) -> Result<Box<LaneFeed>, FsError> {
        if !place.whole || place.last < self.has || place.last > taken {
            tracing::warn!(
                region = service.id.0,
                node = self.node.0,
                "a copy is not what it was, and is made anew"
            );
            self.lose();
            return Err(FsError::Unreachable {
                node: self.node.0,
                why: "it has lost its copy".into(),
            });
        }
        self.has = place.last;
        Ok(Box::new(LaneFeed::new(place, service.segment_shift())))
    }
}

/// Asks a node for the lane to its copy.
pub(crate) async fn attach(
    node: NodeId,
    service: &RegionService,
    links: &Rc<Links>,
    fill_from: Option<Lsn>,
) -> Result<LanePlace, FsError> {
    let attach = ask::AttachMirror {
        region: service.id,
        segment_shift: service.segment_shift(),
        fill_from,
        locks: service.lock_term,
    };
    links
        .call_node_at_once_within(node, Cred::Kernel, attach, Timeouts::MIRROR)
        .await
}
