//! One thread's client: how it reaches a region.
//!
//! The node that this client lives in is called, and its pool read with loads (`colocated`); other nodes are reached over the
//! fabric. Everything above is written once for both.

use crate::Client;
use crate::colocated::{ColocatedNode, Nearby};
use crate::io::transfers::Pooled;
use foldhash::HashMap;
use polvo_cluster::{Links, RegionVerb};
use polvo_format::{Gpa, NodeId, RegionId, SEGMENT_SHIFT_MIN};
use polvo_proto::{Ask, FsError, Request};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// One thread's client. All operations validate what they use of the caches, so that completed operations of
/// others are seen at once.
pub struct LocalClient {
    pub(crate) client: Arc<Client>,
    pub(crate) links: Rc<Links>,
    pub(crate) pooled: Pooled,
    /// How many of the segments named along with space these links have taken note of, in which session at the region's
    /// primary.
    learnt: RefCell<HashMap<RegionId, (u64, usize)>>,
    /// What this thread knows of the node around us.
    pub(crate) nearby: Nearby,
}

impl LocalClient {
    pub(crate) fn new(client: &Arc<Client>) -> Rc<LocalClient> {
        Rc::new(LocalClient {
            client: client.clone(),
            links: client.context.links(),
            pooled: Pooled::default(),
            learnt: RefCell::default(),
            nearby: Nearby::default(),
        })
    }

    /// What all threads share.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The node around us, if it serves the region.
    pub(crate) fn colocated(&self, region: RegionId) -> Option<&ColocatedNode> {
        self.client.colocated.as_ref().filter(|here| here.serves(region))
    }

    /// The node around us, if it is this one.
    pub(crate) fn colocated_in(&self, node: NodeId) -> Option<&ColocatedNode> {
        self.client.colocated.as_ref().filter(|here| here.node.id() == node)
    }

    /// Asks whoever serves the region.
    pub(crate) async fn call<A: Ask>(&self, region: RegionId, ask: A) -> Result<A::Answer, FsError> {
        let cred = || self.client.cred.clone();
        let Some(here) = self.colocated(region) else {
            return self.links.call_region(region, cred(), ask).await;
        };
        if !self.links.has_copies(region) {
            return self.call_colocated(here, ask).await;
        }
        let request: Request = ask.into();
        match self.call_colocated(here, request.clone()).await {
            // another node serves it now, and nothing was done here
            Err(FsError::WrongEpoch) => {
                let reply = self.links.call_region(region, cred(), request).await?;
                A::answered(Ok(reply), self.client.primary(region)?)
            }
            answer => A::answered(answer, here.node.id()),
        }
    }

    /// As [`LocalClient::call`], of what can be asked anew: nobody has to keep a copy of it.
    pub(crate) async fn call_anew<A: Ask>(&self, region: RegionId, ask: impl Fn() -> A) -> Result<A::Answer, FsError> {
        match self.colocated(region) {
            Some(here) => {
                match self.request_colocated(here, ask().into(), || Some(ask().into())).await {
                    // another node serves it now, and nothing was done here
                    Err(FsError::WrongEpoch) if self.links.has_copies(region) => {
                        self.links.call_region(region, self.client.cred.clone(), ask()).await
                    }
                    answer => A::answered(answer, here.node.id()),
                }
            }
            None => self.links.call_region(region, self.client.cred.clone(), ask()).await,
        }
    }

    /// Asks a node.
    pub(crate) async fn call_node<A: Ask>(&self, node: NodeId, ask: A) -> Result<A::Answer, FsError> {
        match self.colocated_in(node) {
            Some(here) => self.call_colocated(here, ask).await,
            None => self.links.call_node(node, self.client.cred.clone(), ask).await,
        }
    }

    /// Makes sure that the node which serves the region knows the session; returns the node and the number of the
    /// session there, which is what things obtained from now on belong to.
    pub(crate) async fn session_at(&self, region: RegionId) -> Result<(NodeId, u64), FsError> {
        let node = match self.colocated(region) {
            Some(here) => {
                self.attach_once(here).await?;
                here.node.id()
            }
            None => self.links.to_primary(region).await?.node,
        };
        Ok((node, self.client.incarnation(node, region)))
    }

    /// Tells this thread's links about the segments that space in hand lies in.
    pub(crate) fn learn_segments(&self, region: RegionId, session: u64) {
        let mut learnt = self.learnt.borrow_mut();
        let known = learnt.entry(region).or_insert((session, 0));
        if known.0 != session {
            *known = (session, 0);
        }
        let places = self.client.extent_pool.places(region, session, known.1);
        if !places.is_empty() {
            known.1 += places.len();
            debug_assert!(known.0 == session, "what was learnt is of this session");
            self.links.learn_segments(region, &places);
        }
    }

    /// One batch of one-sided reads of one region, in order. (To the node around us
    /// there are no others: `write_colocated`.)
    pub(crate) async fn one_sided(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        let Some(here) = self.colocated(region) else {
            return self.links.read(region, ops).await;
        };
        match self.read_here(here, region, ops).await {
            // another node serves it now
            Err(FsError::WrongEpoch) if self.links.has_copies(region) => self.links.read(region, ops).await,
            read => read,
        }
    }

    async fn read_here(
        &self,
        here: &ColocatedNode,
        region: RegionId,
        ops: &mut [RegionVerb<'_>],
    ) -> Result<(), FsError> {
        for op in ops {
            let RegionVerb::Read { at, into } = op else {
                return Err(FsError::NotPermitted);
            };
            let mut rest = &mut **into;
            let mut at = *at;
            while !rest.is_empty() {
                let (now, later) = rest.split_at_mut(room(at).min(rest.len()));
                here.pool.read(self.pool_offset(here, at)?, now);
                at = Gpa(at.0 + now.len() as u64);
                rest = later;
            }
        }
        self.may_tell(region).await
    }

    /// What was just read here of a region of the node around us may be told, or is once this returns.
    #[inline]
    pub(crate) async fn may_tell(&self, region: RegionId) -> Result<(), FsError> {
        let here = match self.links.has_copies(region) {
            true => self
                .client
                .colocated
                .as_ref()
                .filter(|here| !here.node.may_tell(region)),
            false => None,
        };
        match here {
            None => Ok(()),
            Some(here) => here.node.until_may_tell(&self.links, region).await,
        }
    }

    /// A request to one node (status, usage, shutdown), as it is. A node that is away is not waited for.
    pub async fn ask<A: Ask>(&self, node: NodeId, ask: A) -> Result<A::Answer, FsError> {
        match self.colocated_in(node) {
            Some(here) => self.call_colocated(here, ask).await,
            None => {
                let cred = self.client.cred.clone();
                self.links.call_node_at_once(node, cred, ask).await
            }
        }
    }

    /// Ends the session at all nodes; what it holds is returned. Later operations would begin a new one.
    pub async fn end(&self) {
        self.client.stop.ask();
        self.client.tokens.end();
        if let Some(here) = &self.client.colocated {
            self.detach_colocated(here).await;
        }
        self.links.detach().await;
    }
}

/// Bytes from an address to where a segment may end: neighbours in a file may lie in several, and memory is accessed
/// in one at a time. (All segments are multiples of the smallest.)
fn room(at: Gpa) -> usize {
    const SMALLEST: u64 = 1 << SEGMENT_SHIFT_MIN;
    (SMALLEST - at.0 % SMALLEST) as usize
}
