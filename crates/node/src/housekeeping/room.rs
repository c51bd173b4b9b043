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
use crate::replication::keeper;
use crate::request::context::RequestContext;
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_format::NodeId;
use polvo_proto::{Cred, FsError, ask};
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::{Instant, timeout};

impl Node {
    /// Has all nodes give back segments that hold nothing, and looks at what their pools have then. Those who come while that is under way
    /// share the next time. Nodes that are away are not waited for.
    pub(crate) async fn seek_room(self: &Arc<Node>, links: &Rc<Links>) {
        let came = Instant::now();
        let mut sought = self.room_sought.lock().await;
        if sought.is_some_and(|begun| begun > came) {
            return;
        }
        let begun = Instant::now();
        let map = self.map();
        let others = map.nodes.iter().map(|info| info.id).filter(|id| *id != self.id());
        let ask = async |other: NodeId| {
            let asked = links.call_node_at_once_within(other, Cred::Kernel, ask::ReleaseSegments, Timeouts::ASIDE);
            if let Err(error) = asked.await {
                tracing::debug!(node = other.0, %error, "gives nothing back");
            }
        };
        tokio::join!(self.release_segments(links), join_all(others.map(ask)));
        exchange_usage(self, links).await;
        self.let_regions_grow();
        *sought = Some(begun);
    }

    /// All regions here give back segments that hold nothing, and their mirrors, as far as they can be reached.
    async fn release_segments(&self, links: &Rc<Links>) {
        self.collect_segments();
        let replicated = self.regions.all().filter(|service| service.has_given_back());
        // a mirror that has no room is one of those that are asked for some here, and takes nothing else meanwhile
        let applied = replicated.map(|service| timeout(Timeouts::RELEASE, keeper::apply_all(service, links)));
        join_all(applied).await;
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
        self.node.release_segments(self.links).await;
        Ok(())
    }

    /// There was no room: true, once, where there may be some now, since others have been asked to give some back.
    pub async fn room_may_have_come(&self, sought: &mut bool) -> bool {
        if std::mem::replace(sought, true) || !self.node.map().is_replicated() {
            return false;
        }
        let deadline = self.deadline();
        tokio::time::timeout_at(deadline, self.node.seek_room(self.links))
            .await
            .is_ok()
    }
}
