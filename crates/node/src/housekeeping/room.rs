//! Room for a region that has none.
//!
//! A region takes segments from its node's pool, and its copies take as many from theirs. What fills these may be segments of other
//! regions, or copies of such, that hold nothing any more: who serves them gives them back now and then ([`Region::shrink`]), but not what
//! somebody may still be reading (quarantine). So before a region is said to be full all nodes are asked to give back what they can;
//! only where that does not help there is no room.
//!
//! [`Region::shrink`]: polvo_region::Region::shrink

use crate::housekeeping::exchange_usage;
use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::keeper;
use crate::request::context::RequestContext;
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_format::NodeId;
use polvo_proto::{Cred, FsError, ask};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Where some room may come by itself, those who find none ask again and again: all nodes are asked no more often than this.
const SOUGHT_LATELY: Duration = Duration::from_millis(100);

/// The last time all nodes were asked.
#[derive(Clone, Copy)]
pub(crate) struct Sought {
    begun: Instant,
    may_come: bool,
}

impl Node {
    /// Has all nodes give back segments that hold nothing, and looks at what their pools have then. Those who come while that is under way
    /// share the next time, if that begins within `patience`. Nodes that are away are not waited for, the others for so long. True: more may
    /// come by itself, since somewhere removed files are kept for who may have had them open when another node served them.
    ///
    /// Not to be dropped half-way: it sends records to mirrors.
    pub(crate) async fn seek_room(self: &Arc<Node>, links: &Rc<Links>, patience: Duration) -> bool {
        let came = Instant::now();
        let Ok(mut last) = timeout(patience, self.room_sought.lock()).await else {
            return false;
        };
        if let Some(Sought { begun, may_come }) = *last
            && (begun > came || (may_come || self.holds_back()) && begun.elapsed() < SOUGHT_LATELY)
        {
            return may_come;
        }
        let begun = Instant::now();
        let map = self.map();
        let others = map.nodes.iter().map(|info| info.id).filter(|id| *id != self.id());
        let ask = async |other: NodeId| {
            let asked = links.call_node_at_once_within(other, Cred::Kernel, ask::ReleaseSegments, patience);
            asked.await
        };
        let (ours, theirs) = tokio::join!(self.release_segments(links), join_all(others.map(ask)));
        exchange_usage(self, links).await;
        self.let_regions_grow();
        let may_come = ours == Err(FsError::HeldBack) || theirs.contains(&Err(FsError::HeldBack));
        *last = Some(Sought { begun, may_come });
        may_come
    }

    /// All regions here give back segments that hold nothing, and their mirrors, as far as they can be reached.
    ///
    /// # Errors
    /// [`FsError::HeldBack`]: done; and more may come by itself.
    async fn release_segments(&self, links: &Rc<Links>) -> Result<(), FsError> {
        // what was freed is of use when mirrors know it
        let behind = self.regions.all();
        let behind = behind.filter(|service| service.enter(|region| region.frees_when_mirrored()));
        let deadline = || Instant::now() + Timeouts::RELEASE;
        join_all(behind.map(|service| service.mirrored(links, deadline))).await;
        self.collect_segments();
        let replicated = self.regions.all().filter(|service| service.take_given_back());
        join_all(replicated.map(|service| keeper::apply_all(service, links))).await;
        let awaits_claims = |service: &Arc<RegionService>| service.enter(|region| region.keeps_for_claims());
        match self.regions.all().any(awaits_claims) {
            true => Err(FsError::HeldBack),
            false => Ok(()),
        }
    }

    /// Regions take segments for data as long as the nodes of their mirrors have some, by what these have said.
    pub(crate) fn let_regions_grow(&self) {
        let map = self.map();
        for service in self.regions.all() {
            let has_room = map
                .region(service.id)
                .is_none_or(|info| self.utilization.has_room_for_copies(info));
            service.enter(|region| region.set_may_grow(has_room));
        }
    }
}

impl RequestContext<'_> {
    /// See [`polvo_proto::Request::ReleaseSegments`].
    pub async fn release_segments(&self) -> Result<(), FsError> {
        self.asking_node()?;
        self.node.release_segments(self.links).await
    }

    /// There was no room. The first time (`sought`: none) others are asked to give some back: there may be some now.
    ///
    /// # Errors
    /// [`FsError::HeldBack`]: there is none, but some may come by itself; else `no_room`.
    pub async fn find_room(&self, sought: &mut Option<bool>, no_room: &FsError) -> Result<(), FsError> {
        if let Some(may_come) = *sought {
            return Err(if may_come { FsError::HeldBack } else { no_room.clone() });
        }
        if !self.node.map().is_replicated() {
            return Err(no_room.clone());
        }
        *sought = Some(self.node.seek_room(self.links, Timeouts::ASIDE).await);
        Ok(())
    }
}
