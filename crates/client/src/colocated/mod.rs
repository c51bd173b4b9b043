//! The node around this client: called, not sent requests; and files of regions that it serves are read by the region's own
//! mapping, with loads.

pub(crate) mod extent_cache;
pub(crate) mod mapped_read;
pub(crate) mod shown;

use crate::colocated::extent_cache::ExtentCache;
use crate::local_client::LocalClient;
use polvo_cluster::{Colocated, ColocatedCaller, ColocatedSession};
use polvo_format::RegionId;
use polvo_pmem::Pmem;
use polvo_proto::{Answer, Ask, FsError, InodeRef, PROTOCOL_VERSION, Request, ask, reply};
use polvo_region::{FileView, Part};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

/// The node that a client lives in.
pub(crate) struct ColocatedNode {
    pub(crate) node: Arc<dyn Colocated>,
    /// Its pool.
    pub(crate) pool: Arc<Pmem>,
    /// The session is known to it.
    attached: AtomicBool,
    /// The session's number there.
    number: AtomicU64,
    /// Grace tick that it said at the last renewal: by the next one no read begun before is still under way.
    tick: AtomicU64,
}

/// What one thread knows of that node.
#[derive(Default)]
pub(crate) struct Nearby {
    /// As of so many losses: where things lie is another matter once a region has gone elsewhere and come back.
    losses: Cell<u64>,
    /// Where each 2 MiB of its regions (of which there are few) begin in its pool.
    pub(crate) bases: RefCell<Vec<(RegionId, Vec<Option<u64>>)>>,
    /// Ways to call it that are not in use.
    callers: RefCell<Vec<Box<dyn ColocatedCaller>>>,
    /// Our session there, between two uses.
    pub(crate) session: Cell<Option<Arc<dyn ColocatedSession>>>,
    /// Scratch of whoever plans a read.
    pub(crate) parts: RefCell<Vec<Part>>,
    /// What this thread remembers of files there.
    pub(crate) extents: ExtentCache,
}

/// A call that was begun.
struct Calling<'a> {
    caller: Option<Box<dyn ColocatedCaller>>,
    /// Where the caller goes when it has its answer.
    free: &'a RefCell<Vec<Box<dyn ColocatedCaller>>>,
}

impl Future for Calling<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut caller = self.caller.take().expect("a call is answered once");
        let polled = caller.poll(cx);
        match polled.is_ready() {
            true => self.free.borrow_mut().push(caller),
            false => self.caller = Some(caller),
        }
        polled
    }
}

impl Nearby {
    /// Forgets where things lie if anything was lost since.
    #[inline]
    pub(crate) fn follow(&self, losses: u64) {
        if self.losses.get() != losses {
            self.forget(losses);
        }
    }

    #[cold]
    fn forget(&self, losses: u64) {
        self.losses.set(losses);
        self.bases.borrow_mut().clear();
        self.extents.forget();
    }
}

impl ColocatedNode {
    pub(crate) fn new(node: Arc<dyn Colocated>) -> ColocatedNode {
        ColocatedNode {
            pool: node.pool().clone(),
            node,
            attached: AtomicBool::new(false),
            number: AtomicU64::new(0),
            tick: AtomicU64::new(0),
        }
    }

    pub(crate) fn serves(&self, region: RegionId) -> bool {
        self.node.serves(region)
    }

    /// The session has that number here. True: not the one that was known.
    pub(crate) fn is_news(&self, number: u64) -> bool {
        self.number.swap(number, Ordering::AcqRel) != number
    }

    fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }
}

impl LocalClient {
    /// Asks the node around us.
    pub(crate) async fn call_colocated<A: Ask>(&self, here: &ColocatedNode, ask: A) -> Result<A::Answer, FsError> {
        let request = ask.into();
        // writes are repeated by those who make them, with other space; no need to keep a copy of the bytes
        let copy = match &request {
            Request::Write { .. } | Request::Commit { .. } | Request::WriteFrom { .. } => None,
            other => Some(other.clone()),
        };
        let answer = self.request_colocated(here, request, || copy.clone()).await;
        A::answered(answer, here.node.id())
    }

    /// A request to the node around us, and if it was refused and can be repeated (`again`), once more: the refused one did
    /// nothing.
    pub(crate) async fn request_colocated(
        &self,
        here: &ColocatedNode,
        request: Request,
        again: impl Fn() -> Option<Request>,
    ) -> Answer {
        if !here.is_attached() {
            Box::pin(self.attach(here)).await?;
        }
        match self.call_once(here, request).await {
            answer @ Err(FsError::SessionExpired | FsError::HeldBack) => {
                Box::pin(self.request_again(here, again, answer)).await
            }
            answer => answer,
        }
    }

    /// After a request was refused: because the node had forgotten the session (a lease that ended while the machine was
    /// suspended, say), which is attached anew; or because it holds space back for a while.
    #[cold]
    async fn request_again(
        &self,
        here: &ColocatedNode,
        again: impl Fn() -> Option<Request>,
        mut answer: Answer,
    ) -> Answer {
        let (mut attached, mut short_since) = (false, None);
        loop {
            match &answer {
                Err(FsError::SessionExpired) if !std::mem::replace(&mut attached, true) => self.attach(here).await?,
                Err(FsError::HeldBack) if self.links.room_may_come(&mut short_since).await => {}
                _ => return answer,
            }
            let Some(request) = again() else { return answer };
            answer = self.call_once(here, request).await;
        }
    }

    fn call_once<'a>(&'a self, here: &ColocatedNode, request: impl Into<Request>) -> Calling<'a> {
        let free = self.nearby.callers.borrow_mut().pop();
        let mut caller = free.unwrap_or_else(|| here.node.caller(&self.links));
        caller.begin(Box::new(self.links.make_call(self.client.cred.clone(), request)));
        Calling {
            caller: Some(caller),
            free: &self.nearby.callers,
        }
    }

    /// A file's mapping, up to date, from the node around us.
    pub(crate) async fn file_view(&self, here: &ColocatedNode, inode: InodeRef) -> Result<Arc<FileView>, FsError> {
        match self.try_file_view(here, inode).await {
            Err(FsError::SessionExpired) => self.try_file_view(here, inode).await,
            view => view,
        }
    }

    async fn try_file_view(&self, here: &ColocatedNode, inode: InodeRef) -> Result<Arc<FileView>, FsError> {
        self.attach_once(here).await?;
        let session = self.session_of(here);
        let view = match &session {
            Ok(session) => session.file_view(&self.links, &self.client.cred, inode).await,
            Err(error) => Err(error.clone()),
        };
        self.after_use(here, session, view).await
    }

    /// Our session there, for one use; who comes while it is in use finds it by its number.
    pub(crate) fn session_of(&self, here: &ColocatedNode) -> Result<Arc<dyn ColocatedSession>, FsError> {
        match self.nearby.session.take() {
            Some(session) if !session.is_ended() => Ok(session),
            _ => here.node.session(self.client.session()),
        }
    }

    /// Keeps the session for the next use; if it has ended, there is a new one when this returns.
    pub(crate) async fn after_use<T>(
        &self,
        here: &ColocatedNode,
        session: Result<Arc<dyn ColocatedSession>, FsError>,
        result: Result<T, FsError>,
    ) -> Result<T, FsError> {
        match result {
            Err(FsError::SessionExpired) => self.attach(here).await?,
            _ => self.nearby.session.set(session.ok()),
        }
        result
    }

    /// Makes sure that the node around us knows the session.
    pub(crate) async fn attach_once(&self, here: &ColocatedNode) -> Result<(), FsError> {
        match here.is_attached() {
            true => Ok(()),
            false => Box::pin(self.attach(here)).await,
        }
    }

    async fn attach(&self, here: &ColocatedNode) -> Result<(), FsError> {
        let attach = ask::Attach {
            version: PROTOCOL_VERSION,
            name: self.client.context.name().to_string(),
            home: Some(here.node.id()),
            fence: 0,    // nothing is ever on its way to the node one is in
            syncs: true, // where that is needed here, it always was
        };
        let attached = ask::Attach::answered(self.call_once(here, attach).await, here.node.id())?;
        self.client.context.map().offer(*attached.map);
        self.client.is_known_as(here.node.id(), attached.number);
        here.attached.store(true, Ordering::Release);
        Ok(())
    }

    /// Renews the lease at the node around us, if there is one there.
    pub(crate) async fn renew_colocated(&self, here: &ColocatedNode) -> Option<Result<reply::Renewed, FsError>> {
        if !here.is_attached() {
            return None;
        }
        let tick = here.tick.load(Ordering::Relaxed);
        let answer = self.call_colocated(here, ask::Heartbeat { tick }).await;
        if let Ok(renewed) = &answer {
            here.tick.store(renewed.tick, Ordering::Relaxed);
        }
        Some(answer)
    }

    /// Ends the session there.
    pub(crate) async fn detach_colocated(&self, here: &ColocatedNode) {
        if here.attached.swap(false, Ordering::AcqRel)
            && let Err(error) = self.call_once(here, ask::Detach).await
        {
            tracing::debug!(%error, "detach from the node around");
        }
    }
}
