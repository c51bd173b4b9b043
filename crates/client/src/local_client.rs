//! One thread's client: how it reaches a region.
//!
//! A region is reached *inside* (the node this client lives in serves it: requests are function calls, one-sided
//! operations are memory accesses) or over the fabric. Everything above is written once for both.

use crate::colocated::extent_cache::ExtentCache;
use crate::io::transfers::Pooled;
use crate::open_table::OpenInode;
use crate::{Client, remote_inode::unexpected};
use polvo_cluster::{Links, RegionVerb};
use polvo_format::{Gpa, NodeId, RegionId, SEGMENT_SHIFT_MIN};
use polvo_node::{FileView, Node, Part, Session};
use polvo_proto::{Answer, EAGER_MAX, FsError, InodeRef, PROTOCOL_VERSION, Reply, Request};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One thread's client. All operations validate what they use of the caches, so that completed operations of
/// others are seen at once.
pub struct LocalClient {
    pub(crate) client: Arc<Client>,
    pub(crate) links: Rc<Links>,
    pub(crate) pooled: Pooled,
    /// How many of the segments named along with space these links have taken note of, in which session at the region's
    /// primary.
    learnt: RefCell<HashMap<RegionId, (u64, usize)>>,
    /// Where each 2 MiB of the regions of the node around us (of which there are few) begin in its pool.
    pub(crate) bases: RefCell<Vec<(RegionId, Vec<Option<u64>>)>>,
    /// Our session at the node around us, between two uses.
    session_inside: Cell<Option<Arc<Session>>>,
    /// Scratch of whoever plans a read there.
    pub(crate) parts: RefCell<Vec<Part>>,
    /// What this thread remembers of files there.
    pub(crate) extents: ExtentCache,
}

impl LocalClient {
    pub(crate) fn new(client: &Arc<Client>) -> Rc<LocalClient> {
        Rc::new(LocalClient {
            client: client.clone(),
            links: client.context.links(),
            pooled: Pooled::default(),
            learnt: RefCell::default(),
            bases: RefCell::default(),
            session_inside: Cell::default(),
            parts: RefCell::default(),
            extents: ExtentCache::default(),
        })
    }

    /// What all threads share.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The node around us, if it serves the region.
    pub(crate) fn inside(&self, region: RegionId) -> Option<&Arc<Node>> {
        self.client.node.as_ref().filter(|node| node.serves(region))
    }

    /// Sends a request to whoever serves the region.
    pub(crate) async fn call(&self, region: RegionId, request: Request) -> Answer {
        match self.inside(region) {
            Some(node) => self.call_inside(node, request).await,
            None => self.links.call_region(region, self.client.cred.clone(), request).await,
        }
    }

    /// Sends a request to a node.
    pub(crate) async fn call_node(&self, node: NodeId, request: Request) -> Answer {
        match &self.client.node {
            Some(inside) if inside.id() == node => self.call_inside(inside, request).await,
            _ => self.links.call_node(node, self.client.cred.clone(), request).await,
        }
    }

    /// A request to the node around us. When it has forgotten the session (a lease that ended while the machine was
    /// suspended, say), the session is attached anew and the request repeated: the refused one did nothing.
    async fn call_inside(&self, node: &Arc<Node>, request: Request) -> Answer {
        if !self.client.attached_inside.load(Ordering::Acquire) {
            self.attach_inside(node).await?;
        }
        // writes are repeated by those who make them, with other space; no need to keep a copy of the bytes
        let again = match &request {
            Request::Write { .. } | Request::Commit { .. } | Request::WriteFrom { .. } => None,
            other => Some(other.clone()),
        };
        let make_call = |request| self.links.make_call(self.client.cred.clone(), request);
        let mut answer = node.handle(&self.links, make_call(request)).await;
        let (mut attached, mut short_since) = (false, None);
        loop {
            match &answer {
                Err(FsError::SessionExpired) if !std::mem::replace(&mut attached, true) => {
                    self.attach_inside(node).await?
                }
                Err(FsError::HeldBack) if self.links.room_may_come(&mut short_since).await => {}
                _ => return answer,
            }
            let Some(request) = &again else { return answer };
            answer = node.handle(&self.links, make_call(request.clone())).await;
        }
    }

    /// A write to a region of the node around us, at an offset or (`None`) the end of the file; returns where the bytes are. No
    /// request is made of it, the bytes are not copied but to where they go. `SessionExpired`: there is a new session, and
    /// the write is to be repeated.
    pub(crate) async fn write_inside(
        &self,
        node: &Arc<Node>,
        inode: InodeRef,
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<u64, FsError> {
        if !self.client.attached_inside.load(Ordering::Acquire) {
            self.attach_inside(node).await?;
        }
        // whoever comes while it is in use looks it up for himself
        let session = match self.session_inside.take() {
            Some(session) if !session.is_ended() => Ok(session),
            _ => node.session(self.client.session()),
        };
        let written = match &session {
            Ok(session) => {
                let cred = &self.client.cred;
                node.write(&self.links, session, cred, inode, offset, bytes).await
            }
            Err(error) => Err(error.clone()),
        };
        if let Err(FsError::SessionExpired) = written {
            self.attach_inside(node).await?;
        } else {
            self.session_inside.set(session.ok());
        }
        written
    }

    /// As [`LocalClient::write_inside`], of at most `EAGER_MAX` bytes and without a future. `None`: something is in the way,
    /// and nothing was done.
    pub(crate) fn write_at_once(&self, open_inode: &OpenInode, offset: Option<u64>, bytes: &[u8]) -> Option<u64> {
        let node = self.inside(open_inode.inode.ino.region())?;
        if bytes.is_empty() || bytes.len() > EAGER_MAX || !open_inode.is_kept(self.client.losses()) {
            return None;
        }
        let session = self.session_inside.take()?;
        let cred = &self.client.cred;
        let written = node.write_at_once(&self.links, &session, cred, open_inode.inode, offset, bytes);
        self.session_inside.set(Some(session));
        written
    }

    /// A file's mapping, up to date, from the node around us.
    pub(crate) async fn file_view(&self, node: &Arc<Node>, inode: InodeRef) -> Result<Arc<FileView>, FsError> {
        let look = || node.file_view(&self.links, self.client.session(), &self.client.cred, inode);
        if self.client.attached_inside.load(Ordering::Acquire) {
            match look().await {
                Err(FsError::SessionExpired) => {}
                view => return view,
            }
        }
        self.attach_inside(node).await?;
        look().await
    }

    async fn attach_inside(&self, node: &Arc<Node>) -> Result<(), FsError> {
        let request = Request::Attach {
            version: PROTOCOL_VERSION,
            name: self.client.context.name().to_string(),
            home: Some(node.id()),
            fence: 0, // nothing is ever on its way to the node one is in
        };
        let call = self.links.make_call(self.client.cred.clone(), request);
        match node.handle(&self.links, call).await? {
            Reply::Attached { number, map, .. } => {
                self.client.context.map().offer(map);
                if self.client.number_inside.swap(number, Ordering::AcqRel) != number {
                    self.client.lost(node.id());
                }
                self.client.attached_inside.store(true, Ordering::Release);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Makes sure that the node which serves the region knows the session; returns the node and the number of the
    /// session there, which is what things obtained from now on belong to.
    pub(crate) async fn session_at(&self, region: RegionId) -> Result<(NodeId, u64), FsError> {
        let node = match self.inside(region) {
            Some(node) => {
                if !self.client.attached_inside.load(Ordering::Acquire) {
                    self.attach_inside(node).await?;
                }
                node.id()
            }
            None => {
                let node = self.client.primary(region)?;
                self.links.to(node).await?;
                node
            }
        };
        Ok((node, self.client.incarnation(node)))
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
            self.links.learn_segments(region, &places);
        }
    }

    /// One batch of one-sided reads of one region, in order. (Inside there are no others: [`LocalClient::write_inside`].)
    pub(crate) async fn one_sided(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        let Some(node) = self.inside(region) else {
            return self.links.one_sided(region, ops).await;
        };
        for op in ops {
            let RegionVerb::Read { at, into } = op else {
                return Err(FsError::NotPermitted);
            };
            let mut rest = &mut **into;
            let mut at = *at;
            while !rest.is_empty() {
                let (now, later) = rest.split_at_mut(room(at).min(rest.len()));
                node.pool().read(self.pool_offset(node, at)?, now);
                at = Gpa(at.0 + now.len() as u64);
                rest = later;
            }
        }
        Ok(())
    }

    /// A request to one node (status, usage, shutdown), as it is. A node that is away is not waited for.
    pub async fn ask(&self, node: NodeId, request: Request) -> Answer {
        match &self.client.node {
            Some(inside) if inside.id() == node => self.call_inside(inside, request).await,
            _ => {
                let cred = self.client.cred.clone();
                self.links.call_node_at_once(node, cred, request).await
            }
        }
    }

    /// Ends the session at all nodes; what it holds is returned. Later operations would begin a new one.
    pub async fn end(&self) {
        self.client.stop.ask();
        if let Some(node) = &self.client.node
            && self.client.attached_inside.swap(false, Ordering::AcqRel)
        {
            let call = self.links.make_call(self.client.cred.clone(), Request::Detach);
            if let Err(error) = node.handle(&self.links, call).await {
                tracing::debug!(%error, "detach inside the node");
            }
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
