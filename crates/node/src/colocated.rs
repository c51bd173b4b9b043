//! Callers in this process: clients that call a node instead of sending requests to it.

use crate::node::Node;
use crate::replication::{Replication, Until};
use crate::request::context::RequestContext;
use crate::request::sessions::{Party, Session};
use polvo_cluster::{
    Colocated, ColocatedCaller, ColocatedSession, Links, LocalFuture, SessionContext, ShownBytes, WrittenAtOnce,
};
use polvo_format::{Epoch, Gpa, NodeId, RegionId, SessionId};
use polvo_pmem::Pmem;
use polvo_proto::{Answer, Ask, Call, Cred, FsError, InodeRef, Request, WriteAt, ask};
use polvo_region::FileView;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// A caller in this process shares the node's map, which is as new as what is served by it.
const EPOCH: Epoch = Epoch(u64::MAX);

impl Node {
    /// This node, as clients in this process know it.
    pub fn colocated(self: &Arc<Self>) -> Arc<dyn Colocated> {
        Arc::new(ThisNode(self.clone()))
    }

    /// One request of a caller in this process. `links`: the calling thread's links to the other nodes. (Boxed: see [`Node::serve`].)
    pub fn handle<'a>(self: &'a Arc<Self>, links: &'a Rc<Links>, call: Call) -> LocalFuture<'a, Answer> {
        Box::pin(self.handle_boxed(links, Box::new(call)))
    }

    async fn handle_boxed(self: &Arc<Self>, links: &Rc<Links>, call: Box<Call>) -> Answer {
        self.counters.count(&call.request);
        if let Request::Attach {
            version, name, home, ..
        } = call.request
        {
            let party = Party::Node(self.id());
            let attached = self.attach(call.session, party, version, name, home);
            return ask::Attach::reply(attached.map(|(_, reply)| reply));
        }
        let session = self.sessions.get(call.session)?;
        let ctx = RequestContext::new(self, links, &session, call.epoch, &call.cred);
        ctx.perform(call.request).await
    }
}

/// One future serves all requests of a caller, so that none of them has to be allocated or moved.
struct Caller<F> {
    exchange: Rc<Exchange>,
    serving: Pin<Box<F>>,
}

#[derive(Default)]
struct Exchange {
    call: Cell<Option<Box<Call>>>,
    answer: Cell<Option<Answer>>,
}

impl Exchange {
    async fn serve(&self, node: &Arc<Node>, links: &Rc<Links>) {
        loop {
            let next = poll_fn(|_| self.call.take().map_or(Poll::Pending, Poll::Ready));
            let answer = node.handle_boxed(links, next.await).await;
            self.answer.set(Some(answer));
        }
    }
}

impl<F: Future> ColocatedCaller for Caller<F> {
    fn begin(&mut self, call: Box<Call>) {
        let before = self.exchange.call.replace(Some(call));
        assert!(before.is_none(), "one request at a time");
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        let served = self.serving.as_mut().poll(cx);
        assert!(served.is_pending(), "there is always a next request");
        self.exchange.answer.take().map_or(Poll::Pending, Poll::Ready)
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

    fn may_tell(&self, region: RegionId) -> bool {
        let service = self.0.service(region);
        service.is_some_and(|service| service.replication().is_none_or(Replication::may_answer))
    }

    fn until_may_tell<'a>(&'a self, links: &'a Rc<Links>, region: RegionId) -> LocalFuture<'a, Result<(), FsError>> {
        Box::pin(async move {
            let service = self.0.service(region).ok_or(FsError::WrongEpoch)?;
            let Some(replication) = service.replication() else {
                return Ok(());
            };
            let deadline = Instant::now() + self.0.config.timeouts.held;
            replication.wait(service, links, Until::MayAnswer, deadline).await
        })
    }

    fn until_write_may_be_told<'a>(
        &'a self,
        links: &'a Rc<Links>,
        region: RegionId,
    ) -> LocalFuture<'a, Result<(), FsError>> {
        match self.0.regions.last(region) {
            // its mirrors had all that was done here
            Some(service) if service.was_given_up() => Box::pin(std::future::ready(Ok(()))),
            _ => self.until_may_tell(links, region),
        }
    }

    fn client_context(&self, session: SessionId, name: String) -> Arc<SessionContext> {
        self.0.client_context(session, name)
    }

    fn needs_sync(&self) -> bool {
        self.0.needs_sync()
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
        let exchange = Rc::new(Exchange::default());
        let served = exchange.clone();
        Box::new(Caller {
            exchange,
            serving: Box::pin(async move { served.serve(&node, &links).await }),
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

    fn write_at_once(
        &self,
        links: &Rc<Links>,
        cred: &Cred,
        inode: InodeRef,
        at: WriteAt,
        bytes: &[u8],
    ) -> Option<WrittenAtOnce> {
        if self.session.is_ended() {
            return None;
        }
        let ctx = RequestContext::new(&self.node, links, &self.session, EPOCH, cred);
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

    fn show<'a>(
        &'a self,
        links: &'a Rc<Links>,
        cred: &'a Cred,
        inode: InodeRef,
        offset: u64,
        len: u64,
    ) -> LocalFuture<'a, Result<Box<dyn ShownBytes>, FsError>> {
        Box::pin(async move {
            let ctx = self.request(links, cred)?;
            let shown = ctx.show(inode, offset, len, |_| Ok(())).await?;
            Ok(Box::new(shown) as Box<dyn ShownBytes>)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<'a, F: Future>(_: impl FnOnce(&'a Arc<Node>, &'a Rc<Links>, Box<Call>) -> F) -> usize {
        size_of::<F>()
    }

    /// Every caller has one, and each request writes to it: what is rare has a box of its own.
    #[test]
    fn the_future_that_serves_a_request_stays_small() {
        let size = size_of_future(|node, links, call| node.handle_boxed(links, call));
        assert!(size <= 2048, "{size} bytes");
    }
}
