//! A connected queue pair, whatever the provider.

use crate::provider::{Completion, Polling, Posted, Provider};
use crate::wait::{
    self, Awaited, CompletionChannel, Counters, Interest, Lending, OpId, Shared, Subscription, Wait, Waited,
    busy_poll_budget,
};
use crate::{Event, FabricError, MAX_SEND, Role, Verb};
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// A batch that is not complete when nothing has moved between the peers for this time has lost its peer; the queue pair is
/// closed.
const OP_TIMEOUT: Duration = Duration::from_secs(30);

/// A connected queue pair (reliable, ordered). Cheap to clone (`Rc`). Both sides may initiate.
///
/// It belongs to the thread that made it and has no task of its own: whoever waits on it drives it. To serve the peer's
/// one-sided operations while nobody executes, keep a task in [`QueuePair::next_event`] (with `shm` the peer serves itself).
#[derive(Clone)]
pub struct QueuePair {
    provider: Rc<dyn Provider>,
}

impl QueuePair {
    pub(crate) fn new(provider: Rc<dyn Provider>) -> QueuePair {
        QueuePair { provider }
    }

    /// Posts the batch and waits for its single completion. Drives the queue pair's own progress: polls for a bounded
    /// time where that pays, then waits in the runtime. Dropping the future is safe: late results are discarded (whether
    /// the verbs have taken effect is then unknown).
    ///
    /// The borrowed memory is touched only while the future is being polled. One that is neither polled when it is woken nor
    /// dropped therefore holds up large writes behind its own, until the connection is given up.
    ///
    /// Many may be under way on a queue pair; beyond 256 they wait in line. When a batch is under way and nothing
    /// moves between the peers for 30 s, the connection is lost.
    pub async fn execute(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        Execute::new(self, verbs, Completion::Signaled, busy_poll_budget()).await
    }

    /// Posts the batch and returns as soon as its memory is no longer needed, without waiting for a completion
    /// ("unsignaled"): one message instead of two. For what is answered by other means, such as a request by its reply. A
    /// failure at the target ends the connection, there too: nothing that was posted behind it takes effect. The batch must
    /// not read.
    pub async fn execute_unsignaled(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_quietly(verbs).await?;
        self.flush();
        Ok(())
    }

    /// As [`QueuePair::execute_unsignaled`], but it may be on its way, and a peer that sleeps learn of it, only when a wait for
    /// events of this queue pair begins, or by [`QueuePair::flush`]: several batches then cost one flush to the peer, or one
    /// system call.
    pub async fn execute_quietly(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_unawaited(verbs, Completion::Unsignaled).await
    }

    /// As [`QueuePair::execute_unsignaled`], for what nobody waits for: where sending is a system call, it goes along with what
    /// this thread posts next here, at the latest when the tasks that are ready have had their turn. Whoever stops running
    /// them calls [`crate::flush`].
    pub async fn execute_deferred(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_quietly(verbs).await?;
        match self.provider.polling() {
            Polling::Kernel => wait::flush_later(&self.provider),
            Polling::Memory | Polling::Never => self.flush(),
        }
        Ok(())
    }

    /// As [`QueuePair::execute_unsignaled`], for memory that the peer may take back at any time: a failure at the target ends
    /// the batch, and the connection goes on. Where the initiator does the work itself it is told of the failure.
    pub async fn execute_unreported(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_unawaited(verbs, Completion::Unreported).await?;
        self.flush();
        Ok(())
    }

    async fn execute_unawaited(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<(), FabricError> {
        assert!(
            !verbs.iter().any(Verb::is_answered),
            "whoever reads waits for the completion"
        );
        Execute::new(self, verbs, completion, busy_poll_budget()).await
    }

    /// Says that a message is about to be posted, after some tenths of a microsecond: where it costs time to get hold of the memory
    /// that it is written to, that begins now.
    pub fn will_post(&self) {
        self.provider.will_post();
    }

    /// Sees to it that what was executed quietly is on its way, and that a peer that sleeps learns of it.
    pub fn flush(&self) {
        self.provider.flush();
    }

    /// Next event from the peer; `None` once disconnected. Served one-sided operations never show here.
    pub async fn next_event(&self) -> Option<Event> {
        let mut events = self.events(Duration::ZERO);
        poll_fn(|cx| events.poll_next(cx)).await
    }

    /// As [`QueuePair::events`], for a server: polls as [`crate::set_serve_busy_poll_budget`] says.
    pub fn requests(&self) -> Events {
        self.events(wait::serve_budget(self.provider.polling()))
    }

    /// The queue pair's events for a future that is polled by hand. Several may wait at once; each event goes to one of
    /// them.
    ///
    /// Each wait begins with polling for at most `budget`, such as [`crate::busy_poll_budget`] by who awaits an answer, unless the
    /// one before took longer.
    pub fn events(&self, budget: Duration) -> Events {
        Events {
            wait: self.wait(budget),
            qp: self.clone(),
        }
    }

    fn wait(&self, budget: Duration) -> Wait<Arc<CompletionChannel>> {
        Wait::new(self.provider.shared().channel.clone(), &*self.provider, budget)
    }

    /// Waits until the connection is lost, and takes no event: for who does not use it for the time being.
    pub async fn closed(&self) {
        let mut wait = self.wait(Duration::ZERO);
        poll_fn(|cx| {
            self.provider.probe();
            match wait.poll(&self.provider, &mut Loss(self.provider.shared()), cx) {
                Waited::Ready(()) => Poll::Ready(()),
                Waited::Yielded | Waited::Asleep => Poll::Pending,
            }
        })
        .await;
    }

    /// Does what can be done without waiting, for example noticing that the peer has gone.
    pub fn progress(&self) {
        self.provider.probe();
    }

    /// True if one-sided operations take effect while they are posted (`shm`), so that nobody has to wait for them.
    pub fn is_immediate(&self) -> bool {
        self.provider.is_immediate()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Role {
        self.provider.shared().peer.clone()
    }

    /// The other end as it appears in messages: its address or role.
    pub fn peer_name(&self) -> &str {
        &self.provider.shared().peer_name
    }

    /// True once the connection is lost.
    pub fn is_closed(&self) -> bool {
        self.provider.shared().is_closed()
    }

    /// Why the connection was lost, once it is.
    pub fn lost(&self) -> Option<FabricError> {
        self.provider.shared().lost()
    }

    /// Closes it; what was posted and is not complete fails at both ends.
    pub fn close(&self) {
        self.provider.close("closed here");
    }

    /// Closes it because of what the peer did; shows in later errors.
    pub fn close_because(&self, why: &str) {
        self.provider.close(why);
    }

    /// What went over it so far.
    pub fn counters(&self) -> Counters {
        self.provider.shared().counters.get()
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("peer", &self.peer_name())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// The loss of the connection, waited for.
struct Loss<'a>(&'a Shared);

impl Awaited for Loss<'_> {
    type Output = ();
    const INTEREST: Interest = Interest::Own;

    fn take<C: Deref<Target = CompletionChannel>>(&mut self, _at: &mut Subscription<C>) -> Poll<()> {
        match self.0.is_closed() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// See [`QueuePair::events`].
pub struct Events {
    wait: Wait<Arc<CompletionChannel>>,
    qp: QueuePair,
}

impl Events {
    /// Events that have been received already, to be seen before they are taken.
    pub fn for_each_received(&self, what: impl FnMut(&Event)) {
        self.qp.provider.shared().for_each_event(what);
    }

    /// An event that has been received already, without polling for more: what came together can be handled together.
    pub fn received(&mut self) -> Option<Event> {
        self.qp.provider.shared().pop_event()
    }

    /// Next event; `None` once disconnected.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let provider = &self.qp.provider;
        match self.wait.poll(provider, &mut NextEvent(provider.shared()), cx) {
            Waited::Ready(event) => {
                if event.is_some() {
                    self.wait.begin_next();
                }
                Poll::Ready(event)
            }
            Waited::Yielded | Waited::Asleep => Poll::Pending,
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.wait.end();
        self.qp.provider.shared().pass_events_on();
    }
}

/// The next event, waited for; `None` once the connection is lost.
pub(crate) struct NextEvent<'a>(pub(crate) &'a Shared);

impl Awaited for NextEvent<'_> {
    type Output = Option<Event>;
    const INTEREST: Interest = Interest::Events;

    fn take<C: Deref<Target = CompletionChannel>>(&mut self, _at: &mut Subscription<C>) -> Poll<Option<Event>> {
        if let Some(event) = self.0.pop_event() {
            self.0.pass_events_on();
            return Poll::Ready(Some(event));
        }
        match self.0.is_closed() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}

/// How far a batch has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Unposted,
    Posted(OpId),
    Over,
}

/// A batch, posted and waited for.
struct Batch<'a, 'v, 'b> {
    qp: &'a QueuePair,
    verbs: &'v mut [Verb<'b>],
    completion: Completion,
    stage: Stage,
}

impl Batch<'_, '_, '_> {
    /// Its memory may be touched from now on, if it has been posted.
    fn lend(&self, lending: &Lending<'_>) {
        if let Stage::Posted(op) = self.stage {
            // SAFETY: `verbs` borrows the memory for longer than `Execute::poll` takes, at whose end `lending` is dropped.
            unsafe { lending.lend(op) };
        }
    }

    /// Posts if there is room and nobody was here before.
    fn try_post<C: Deref<Target = CompletionChannel>>(
        &mut self,
        at: &mut Subscription<C>,
        lending: &Lending<'_>,
    ) -> Poll<Result<(), FabricError>> {
        assert_eq!(self.stage, Stage::Unposted, "a batch is posted once");
        let provider = &self.qp.provider;
        let shared = provider.shared();
        if let Some(error) = shared.lost() {
            return Poll::Ready(Err(error));
        }
        if !at.is_first_in_line() {
            return Poll::Pending;
        }
        let posted = provider.post(self.verbs, self.completion);
        if let Ok(Posted::Pending(op)) = posted {
            assert_eq!(
                self.completion,
                Completion::Signaled,
                "others complete when they are posted"
            );
            self.stage = Stage::Posted(op);
            self.lend(lending);
        }
        if self.completion == Completion::Signaled {
            provider.flush();
        }
        match posted? {
            Posted::Full => Poll::Pending,
            Posted::Pending(_) => {
                shared.count(self.verbs);
                at.leave_line();
                Poll::Pending
            }
            Posted::Done => {
                shared.count(self.verbs);
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// A batch that is being polled.
struct Lent<'p, 'a, 'v, 'b> {
    batch: &'p mut Batch<'a, 'v, 'b>,
    lending: Lending<'p>,
}

impl Awaited for Lent<'_, '_, '_, '_> {
    type Output = Result<(), FabricError>;
    const INTEREST: Interest = Interest::Own;

    fn take<C: Deref<Target = CompletionChannel>>(&mut self, at: &mut Subscription<C>) -> Poll<Self::Output> {
        if self.batch.stage == Stage::Unposted
            && let Poll::Ready(result) = self.batch.try_post(at, &self.lending)
        {
            return Poll::Ready(result);
        }
        match self.batch.stage {
            Stage::Posted(op) => match self.batch.qp.provider.shared().take(op) {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            },
            Stage::Unposted | Stage::Over => Poll::Pending,
        }
    }

    fn subscribed<C: Deref<Target = CompletionChannel>>(&mut self, at: &mut Subscription<C>, slot: usize) {
        match self.batch.stage {
            Stage::Posted(op) => self.batch.qp.provider.shared().sleep(op, slot),
            Stage::Unposted | Stage::Over => at.queue_for_room(),
        }
    }
}

pub(crate) struct Execute<'a, 'v, 'b> {
    batch: Batch<'a, 'v, 'b>,
    wait: Wait<&'a CompletionChannel>,
    /// When the peer is given up, unless its activity is another one by then.
    timeout: Option<(Pin<Box<Sleep>>, u64)>,
}

impl<'a, 'v, 'b> Execute<'a, 'v, 'b> {
    pub(crate) fn new(qp: &'a QueuePair, verbs: &'v mut [Verb<'b>], completion: Completion, budget: Duration) -> Self {
        Execute {
            batch: Batch {
                qp,
                verbs,
                completion,
                stage: Stage::Unposted,
            },
            wait: Wait::new(&*qp.provider.shared().channel, &*qp.provider, budget),
            timeout: None,
        }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let qp = self.batch.qp;
        let provider = &qp.provider;
        let shared = provider.shared();
        let lending = shared.lending();
        self.batch.lend(&lending);
        let mut lent = Lent {
            batch: &mut self.batch,
            lending,
        };
        loop {
            match self.wait.poll(provider, &mut lent, cx) {
                Waited::Ready(result) => return Poll::Ready(result),
                Waited::Yielded => return Poll::Pending,
                Waited::Asleep => {}
            }
            let activity = shared.activity();
            let timeout = || (Box::pin(tokio::time::sleep(OP_TIMEOUT)), activity);
            let (timeout, seen) = self.timeout.get_or_insert_with(timeout);
            ready!(timeout.as_mut().poll(cx));
            if *seen == activity {
                provider.close(&format!("nothing heard of it for {} s", OP_TIMEOUT.as_secs()));
            }
            self.timeout = None;
        }
    }
}

#[cfg(test)]
impl Execute<'_, '_, '_> {
    pub(crate) fn describe(&self, at: impl Fn(Option<std::time::Instant>) -> String) -> String {
        format!("{:?} {}", self.batch.stage, self.wait.describe(at))
    }
}

impl Future for Execute<'_, '_, '_> {
    type Output = Result<(), FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert_ne!(this.batch.stage, Stage::Over, "a future is not polled when it is over");
        let polled = this.poll_inner(cx);
        if polled.is_ready() {
            this.batch.stage = Stage::Over;
        }
        polled
    }
}

impl Drop for Execute<'_, '_, '_> {
    fn drop(&mut self) {
        if let Stage::Posted(op) = self.batch.stage {
            self.batch.qp.provider.abandon(op);
        }
    }
}

/// Checks what every provider requires of a batch.
pub(crate) fn check_batch(verbs: &[Verb<'_>]) -> Result<(), FabricError> {
    for verb in verbs {
        match verb {
            Verb::Send { bytes } if bytes.len() > MAX_SEND => {
                return Err(FabricError::TooLarge {
                    what: "a message",
                    len: bytes.len() as u64,
                    max: MAX_SEND as u64,
                });
            }
            Verb::ReadInto { into: local, .. } | Verb::WriteFrom { from: local, .. } => {
                let len = local.memory.len();
                let inside = local.offset <= len && local.len <= len - local.offset;
                assert!(inside, "a local range lies within its memory");
            }
            _ => {}
        }
    }
    Ok(())
}
