//! Callers in this process: clients that call a node instead of sending requests to it.

use crate::node::Node;
use crate::request::context::RequestContext;
use crate::request::sessions::{Party, Session};
use polvo_cluster::{Colocated, ColocatedCaller, ColocatedSession, Links, LocalFuture, SessionContext};
use polvo_format::{Epoch, Gpa, NodeId, RegionId, SessionId};
use polvo_pmem::Pmem;
use polvo_proto::{Answer, Ask, Call, Cred, FsError, InodeRef, Request, WriteAt, ask};
use polvo_region::FileView;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A caller in this process shares the node's map, which is as new as what is served by it.
const EPOCH: Epoch = Epoch(u64::MAX);

impl Node {
    /// This node, as clients in this process know it.
    pub fn colocated(self: &Arc<Self>) -> Arc<dyn Colocated> {
        Arc::new(ThisNode(self.clone()))
    }

    /// One request of a caller in this process. `links`: the calling thread's links to the other nodes.
    pub async fn handle(self: &Arc<Self>, links: &Rc<Links>, call: Call) -> Answer {
        handle(self.clone(), links.clone(), call).await
    }
}

async fn handle(node: Arc<Node>, links: Rc<Links>, call: Call) -> Answer {
    node.counters.count(&call.request);
    if let Request::Attach {
        version, name, home, ..
    } = call.request
    {
        let party = Party::Node(node.id());
        let attached = node.attach(call.session, party, version, name, home);
        return ask::Attach::reply(attached.map(|(_, reply)| reply));
    }
    let session = node.sessions.get(call.session)?;
    let ctx = RequestContext::new(&node, &links, &session, call.epoch, &call.cred);
    ctx.perform(call.request).await
}

/// A request's future lies in the place of the one before.
struct Caller<M, F> {
    make: M,
    running: Pin<Box<Option<F>>>,
}

impl<M: Fn(Call) -> F, F: Future<Output = Answer>> ColocatedCaller for Caller<M, F> {
    fn begin(&mut self, call: Call) {
        self.running.set(Some((self.make)(call)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        let running = self.running.as_mut().as_pin_mut();
        let answer = ready!(running.expect("a request was begun").poll(cx));
        self.running.set(None);
        Poll::Ready(answer)
    }
}

struct ThisNode(Arc<Node>);

impl Colocated for ThisNode {
    fn id(&self) -> NodeId {
        self.0.id()
    }

    fn serves(&self, region: RegionId) -> bool {
        self.0.serves(region)
    }

    fn client_context(&self, session: SessionId, name: String) -> Arc<SessionContext> {
        self.0.client_context(session, name)
    }

    fn pool(&self) -> &Arc<Pmem> {
        &self.0.pmem
    }

    fn locate(&self, at: Gpa, len: usize) -> Result<u64, FsError> {
        let service = self.0.service(at.region()).ok_or(FsError::WrongEpoch)?;
        Ok(service.locate(at, len)?.0)
    }

    fn is_damaged(&self, at: Gpa, len: usize) -> Result<bool, FsError> {
        self.0.is_damaged(at, len)
    }

    fn caller(&self, links: &Rc<Links>) -> Box<dyn ColocatedCaller> {
        let (node, links) = (self.0.clone(), links.clone());
        Box::new(Caller {
            make: move |call| handle(node.clone(), links.clone(), call),
            running: Box::pin(None),
        })
    }

    fn session(&self, id: SessionId) -> Result<Arc<dyn ColocatedSession>, FsError> {
        let session = self.0.sessions.get(id)?;
        let node = self.0.clone();
        Ok(Arc::new(SessionHere { node, session }))
    }
}

struct SessionHere {
    node: Arc<Node>,
    session: Arc<Session>,
}

impl SessionHere {
    fn request<'a>(&'a self, links: &'a Rc<Links>, cred: &'a Cred) -> Result<RequestContext<'a>, FsError> {
        match self.session.is_ended() {
            true => Err(FsError::SessionExpired),
            false => Ok(RequestContext::new(&self.node, links, &self.session, EPOCH, cred)),
        }
    }
}

impl ColocatedSession for SessionHere {
    fn is_ended(&self) -> bool {
        self.session.is_ended()
    }

    fn write<'a>(
        &'a self,
        links: &'a Rc<Links>,
        cred: &'a Cred,
        inode: InodeRef,
        at: WriteAt,
        bytes: &'a [u8],
    ) -> LocalFuture<'a, Result<u64, FsError>> {
        Box::pin(async move {
            let ctx = self.request(links, cred)?;
            self.node.counters.count_write();
            ctx.write_colocated(inode, at, bytes).await
        })
    }

    fn write_at_once(&self, links: &Rc<Links>, cred: &Cred, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Option<u64> {
        let ctx = self.request(links, cred).ok()?;
        let written = ctx.write_colocated_at_once(inode, at, bytes)?;
        self.node.counters.count_write();
        Some(written)
    }

    fn file_view<'a>(
        &'a self,
        links: &'a Rc<Links>,
        cred: &'a Cred,
        inode: InodeRef,
    ) -> LocalFuture<'a, Result<Arc<FileView>, FsError>> {
        Box::pin(async move {
            let ctx = self.request(links, cred)?;
            ctx.on(inode.ino.region(), |region| region.file_view(inode)).await
        })
    }
}
