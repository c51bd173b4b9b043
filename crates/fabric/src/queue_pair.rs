//! A connected queue pair, whatever the provider.

use crate::completion::{Counters, Lending, OpId};
use crate::poller;
use crate::provider::{Completion, Look, Posted, Progress, Provider};
use crate::spin::{Next, Spin, serve_limit, spin_limit};
use crate::waiters::{Hub, Place};
use crate::{Event, FabricError, MAX_SEND, Role, Verb};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
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

    /// Posts the batch and waits for its single completion. Drives the queue pair's own progress: spins for a bounded
    /// time where that pays, then waits in the runtime. Dropping the future is safe: late results are discarded (whether
    /// the verbs have taken effect is then unknown).
    ///
    /// The borrowed memory is touched only while the future is being polled. One that is neither polled when it is woken nor
    /// dropped therefore holds up large writes behind its own, until the connection is given up.
    ///
    /// Many may be under way on a queue pair; beyond 256 they wait in line. When a batch is under way and nothing
    /// moves between the peers for 30 s, the connection is lost.
    pub async fn execute(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        Execute::new(self, verbs, Completion::Signaled).await
    }

    /// Posts the batch and returns as soon as its memory is no longer needed, without waiting for a completion
    /// ("unsignaled"): one message instead of two. For what is answered by other means, such as a request by its reply. A
    /// failure at the target ends the connection, there too: nothing that was posted behind it takes effect. The batch must
    /// not read.
    pub async fn execute_unsignaled(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_quietly(verbs).await?;
        self.settle();
        Ok(())
    }

    /// As [`QueuePair::execute_unsignaled`], but it may be on its way, and a peer that sleeps learn of it, only when a wait for
    /// events of this queue pair begins, or by [`QueuePair::settle`]: several batches then cost one look at the peer, or one
    /// system call.
    pub async fn execute_quietly(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_unawaited(verbs, Completion::Unsignaled).await
    }

    /// As [`QueuePair::execute_unsignaled`], for what nobody waits for: where sending is a system call, it goes along with what
    /// this thread posts next here, at the latest when the tasks that are ready have had their turn. Whoever stops running
    /// them calls [`crate::settle`].
    pub async fn execute_deferred(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_quietly(verbs).await?;
        match self.provider.looks() {
            Look::AtKernel => poller::settle_later(&self.provider),
            Look::AtMemory | Look::Never => self.settle(),
        }
        Ok(())
    }

    /// As [`QueuePair::execute_unsignaled`], for memory that the peer may take back at any time: a failure at the target ends
    /// the batch, and the connection goes on. Where the initiator does the work itself it is told of the failure.
    pub async fn execute_unreported(&self, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.execute_unawaited(verbs, Completion::Unreported).await?;
        self.settle();
        Ok(())
    }

    async fn execute_unawaited(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<(), FabricError> {
        assert!(
            !verbs.iter().any(Verb::is_answered),
            "whoever reads waits for the completion"
        );
        Execute::new(self, verbs, completion).await
    }

    /// Says that a message is about to be posted, after some tenths of a microsecond: where it costs time to get hold of the memory
    /// that it is written to, that begins now.
    pub fn will_post(&self) {
        self.provider.will_post();
    }

    /// Sees to it that what was executed quietly is on its way, and that a peer that sleeps learns of it.
    pub fn settle(&self) {
        self.provider.settle();
    }

    /// Next event from the peer; `None` once disconnected. Served one-sided operations never show here.
    pub async fn next_event(&self) -> Option<Event> {
        let mut events = self.events(Duration::ZERO);
        poll_fn(|cx| events.poll_next(cx)).await
    }

    /// As [`QueuePair::events`], for a server: polls as [`crate::set_serve_spin_limit`] says.
    pub fn requests(&self) -> Events {
        self.events(serve_limit(self.provider.looks()))
    }

    /// The queue pair's events for a future that is polled by hand. Several may wait at once; each event goes to one of
    /// them.
    ///
    /// Each wait begins with polling for at most `spin`, such as [`crate::spin_limit`] by who awaits an answer, unless the one
    /// before took longer.
    pub fn events(&self, spin: Duration) -> Events {
        Events {
            place: Place::new(self.provider.shared().hub.clone()),
            activity: self.provider.shared().activity(),
            qp: self.clone(),
            limit: spin,
            spin: Spin::new(spin),
        }
    }

    /// Waits until the connection is lost, and takes no event: for who does not use it for the time being.
    pub async fn closed(&self) {
        let mut place = Place::new(self.provider.shared().hub.clone());
        poll_fn(|cx| self.poll_closed(&mut place, cx)).await;
    }

    fn poll_closed(&self, place: &mut Place<Arc<Hub>>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = self.provider.shared();
        place.awake();
        self.provider.look();
        if shared.is_closed() {
            return Poll::Ready(());
        }
        place.sleep(cx.waker(), false);
        if shared.hub.is_polled() {
            return Poll::Pending;
        }
        if self.provider.arm() == Progress::More {
            cx.waker().wake_by_ref();
        }
        match shared.is_closed() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Does what can be done without waiting, for example noticing that the peer has gone.
    pub fn progress(&self) {
        self.provider.look();
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

/// See [`QueuePair::events`].
pub struct Events {
    place: Place<Arc<Hub>>,
    qp: QueuePair,
    limit: Duration,
    spin: Spin,
    /// What has moved when the spinning began.
    activity: u64,
}

impl Events {
    /// Events that have been received already, to be looked at before they are taken.
    pub fn for_each_received(&self, what: impl FnMut(&Event)) {
        self.qp.provider.shared().for_each_event(what);
    }

    /// An event that has been received already, without looking for more: what came together can be handled together.
    pub fn received(&mut self) -> Option<Event> {
        self.qp.provider.shared().pop_event()
    }

    /// Next event; `None` once disconnected.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let provider = &*self.qp.provider;
        let shared = provider.shared();
        self.place.awake();
        let mut armed = false;
        loop {
            if let Some(event) = shared.pop_event() {
                if shared.any_event() {
                    shared.hub.wake_for_event();
                }
                self.spin = self.spin.next_wait(self.limit);
                return Poll::Ready(Some(event));
            }
            if shared.is_closed() {
                return Poll::Ready(None);
            }
            if armed {
                return Poll::Pending;
            }
            let progress = provider.progress();
            if shared.any_event() || shared.is_closed() {
                continue;
            }
            // one-sided operations of the peer show that it is busy as well as events do
            if self.activity != shared.activity() {
                self.activity = shared.activity();
                self.spin.renew(self.limit);
            }
            match rest(&self.qp.provider, &mut self.spin, progress) {
                Rest::Not => continue,
                Rest::Turn => return let_others(cx),
                Rest::Polled => {
                    self.place.sleep(cx.waker(), true);
                    return Poll::Pending;
                }
                Rest::Armed => {}
            }
            self.place.sleep(cx.waker(), true);
            if provider.arm() == Progress::More {
                cx.waker().wake_by_ref();
            }
            armed = true;
        }
    }
}

/// Loads between two looks at everything, the clock included.
const LOADS: usize = 16;

/// What a wait does after a look that found nothing for it.
enum Rest {
    /// Looks again.
    Not,
    /// Looks again when others had their turn.
    Turn,
    /// Sleeps; the poller looks meanwhile.
    Polled,
    /// Arms, looks once more, and sleeps.
    Armed,
}

fn rest(provider: &Rc<dyn Provider>, spin: &mut Spin, progress: Progress) -> Rest {
    if progress == Progress::More {
        return Rest::Turn;
    }
    if provider.looks() == Look::Never {
        return Rest::Armed;
    }
    let is_polled = || provider.shared().hub.is_polled();
    let next = spin.next(poller::shared_since(provider));
    // the poller settles for all who leave the looking to it
    if !matches!(next, Next::Call | Next::Share(_)) {
        provider.settle();
    }
    match next {
        Next::Look => {
            for _ in 0..LOADS {
                if provider.may_have_come() {
                    break;
                }
                std::hint::spin_loop();
            }
            Rest::Not
        }
        Next::Yield => Rest::Turn,
        Next::Call => {
            poller::call(provider);
            Rest::Turn
        }
        Next::Share(until) => {
            poller::share(provider, until);
            if is_polled() { Rest::Polled } else { Rest::Armed }
        }
        Next::Sleep if is_polled() => Rest::Polled,
        Next::Sleep => Rest::Armed,
    }
}

/// Lets the other tasks of the thread have their turn.
fn let_others<T>(cx: &mut Context<'_>) -> Poll<T> {
    poller::let_others(cx, Instant::now());
    Poll::Pending
}

impl Drop for Events {
    fn drop(&mut self) {
        self.place.leave();
        let shared = self.qp.provider.shared();
        if shared.any_event() {
            shared.hub.wake_for_event();
        }
    }
}

enum Stage {
    Unposted,
    Posted(OpId),
    Over,
}

struct Execute<'a, 'v, 'b> {
    qp: &'a QueuePair,
    verbs: &'v mut [Verb<'b>],
    completion: Completion,
    stage: Stage,
    place: Place<&'a Hub>,
    spin: Spin,
    /// What has moved when the spinning began.
    activity: u64,
    /// When the peer is given up, unless its activity is another one by then.
    timeout: Option<(Pin<Box<Sleep>>, u64)>,
}

impl<'a, 'v, 'b> Execute<'a, 'v, 'b> {
    fn new(qp: &'a QueuePair, verbs: &'v mut [Verb<'b>], completion: Completion) -> Self {
        let place = Place::new(&*qp.provider.shared().hub);
        Execute {
            qp,
            verbs,
            completion,
            stage: Stage::Unposted,
            place,
            spin: Spin::new(spin_limit()),
            activity: qp.provider.shared().activity(),
            timeout: None,
        }
    }

    /// Posts if there is room and nobody was here before.
    fn try_post(&mut self, lending: &Lending<'_>) -> Poll<Result<(), FabricError>> {
        let shared = self.qp.provider.shared();
        if let Some(error) = shared.lost() {
            return Poll::Ready(Err(error));
        }
        if !self.place.is_first_in_line() {
            return Poll::Pending;
        }
        let provider = &self.qp.provider;
        let posted = provider.post(self.verbs, self.completion);
        if let Ok(Posted::Pending(op)) = posted {
            self.stage = Stage::Posted(op);
            self.lend(lending);
        }
        if self.completion == Completion::Signaled {
            provider.settle();
        }
        match posted? {
            Posted::Full => return Poll::Pending,
            Posted::Pending(_) => {
                shared.count(self.verbs);
                self.place.leave_line();
            }
            Posted::Done => {
                shared.count(self.verbs);
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// The batch's memory may be touched from now on, if it has been posted.
    fn lend(&self, lending: &Lending<'_>) {
        if let Stage::Posted(op) = self.stage {
            // SAFETY: `verbs` borrows the memory for longer than `poll` takes, at whose end `lending` is dropped.
            unsafe { lending.lend(op) };
        }
    }

    fn look(&mut self, lending: &Lending<'_>) -> Poll<Result<(), FabricError>> {
        if let Stage::Unposted = self.stage
            && let Poll::Ready(result) = self.try_post(lending)
        {
            return Poll::Ready(result);
        }
        match self.stage {
            Stage::Posted(op) => match self.qp.provider.shared().take(op) {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let provider = &*self.qp.provider;
        let shared = provider.shared();
        let lending = &shared.lending();
        self.lend(lending);
        self.place.awake();
        loop {
            if let Poll::Ready(result) = self.look(lending) {
                return Poll::Ready(result);
            }
            let progress = provider.progress();
            if let Poll::Ready(result) = self.look(lending) {
                return Poll::Ready(result);
            }
            // a long transfer is waited for as long as parts of it keep coming
            if self.activity != shared.activity() {
                self.activity = shared.activity();
                self.spin.renew(spin_limit());
            }
            let rests = rest(&self.qp.provider, &mut self.spin, progress);
            match rests {
                Rest::Not => continue,
                Rest::Turn => return let_others(cx),
                Rest::Polled | Rest::Armed => {}
            }
            let sleeper = self.place.sleep(cx.waker(), false);
            match self.stage {
                Stage::Posted(op) => shared.sleep(op, sleeper),
                _ => self.place.queue_for_room(),
            }
            if matches!(rests, Rest::Armed) && provider.arm() == Progress::More {
                cx.waker().wake_by_ref();
            }
            if let Poll::Ready(result) = self.look(lending) {
                return Poll::Ready(result);
            }
            let activity = shared.activity();
            let timeout = || (Box::pin(tokio::time::sleep(OP_TIMEOUT)), activity);
            let (timeout, seen) = self.timeout.get_or_insert_with(timeout);
            ready!(timeout.as_mut().poll(cx));
            if *seen != activity {
                self.timeout = None;
                continue;
            }
            provider.close(&format!("nothing heard of it for {} s", OP_TIMEOUT.as_secs()));
        }
    }
}

impl Future for Execute<'_, '_, '_> {
    type Output = Result<(), FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = this.poll_inner(cx);
        if polled.is_ready() {
            this.stage = Stage::Over;
        }
        polled
    }
}

impl Drop for Execute<'_, '_, '_> {
    fn drop(&mut self) {
        if let Stage::Posted(op) = self.stage {
            self.qp.provider.abandon(op);
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
