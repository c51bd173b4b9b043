//! The calling side.

use crate::RpcError;
use crate::server::{Registered, begin_message, behind_header, is_separate};
use crate::slot::{HEADER, Header, Immediate, MAX_REPLY, MAX_REQUEST, REPLY_STRIDE, REQUEST_STRIDE, SLOTS, Setup};
use polvo_fabric::{Event, Events, FabricError, MemoryRegions, QueuePair, Remote, RemoteKey, Verb, busy_poll_budget};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A connection that was silent for so long is looked at before it is used, so that a peer that has gone meanwhile is
/// noticed before the request is sent.
const PROBE_AFTER: Duration = Duration::from_millis(50);

/// The calling side; many calls may be in flight (bounded by the slots; further ones wait). Whoever waits for a reply
/// drives the queue pair and passes other calls' replies on to them.
#[derive(Clone)]
pub struct RpcClient {
    inner: Rc<Inner>,
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    /// A call waits for the reply.
    Calling(Option<Waker>),
    /// The reply is in the slot's memory: so many bytes.
    Answered(usize),
    /// The call was given up; the slot is free when the reply has come.
    GivenUp(#[allow(dead_code)] OwnedSemaphorePermit),
}

#[derive(Default)]
struct Slot {
    state: State,
    /// Sequence number of the last request.
    sequence: u32,
}

struct Inner {
    qp: QueuePair,
    replies: Registered,
    requests: RemoteKey,
    client: u32,
    slots: RefCell<[Slot; SLOTS]>,
    permits: Arc<Semaphore>,
    broken: RefCell<Option<RpcError>>,
    last_used: Cell<Instant>,
    /// Where requests are put together.
    message: Cell<Vec<u8>>,
}

impl RpcClient {
    /// Sets up slots and reply memory over a fresh queue pair, which is ours from now on: nobody else may take its events.
    /// One-sided operations by others on the thread are welcome. Bounded by `timeout`.
    pub async fn establish(
        qp: QueuePair,
        regions: &Arc<MemoryRegions>,
        timeout: Duration,
    ) -> Result<RpcClient, RpcError> {
        let replies = Registered::new(regions, SLOTS * REPLY_STRIDE);
        let setup = async {
            let malformed = |what: &str| {
                qp.close_because(&format!("it sent {what}"));
                RpcError::Malformed {
                    peer: qp.peer_name().to_owned(),
                    what: what.to_owned(),
                }
            };
            let theirs = match qp.next_event().await {
                None => return Err(lost(&qp)),
                Some(Event::Message(bytes)) => Setup::from_bytes(&bytes).map_err(malformed)?,
                Some(Event::Immediate(_)) => return Err(malformed("a reply before its setup")),
            };
            let ours = Setup {
                key: replies.key.0,
                client: theirs.client,
            };
            qp.execute_unsignaled(&mut [Verb::Send {
                bytes: &ours.to_bytes(),
            }])
            .await?;
            Ok(theirs)
        };
        let theirs = bounded(&qp, Instant::now(), timeout, pin!(setup)).await?;
        Ok(RpcClient {
            inner: Rc::new(Inner {
                qp,
                replies,
                requests: RemoteKey(theirs.key),
                client: theirs.client,
                slots: RefCell::default(),
                permits: Arc::new(Semaphore::new(SLOTS)),
                broken: RefCell::new(None),
                last_used: Cell::new(Instant::now()),
                message: Cell::default(),
            }),
        })
    }

    /// One request, one reply. Bounded by `timeout`. If it fails after the request was sent, whether it was handled is
    /// unknown. Dropping the future gives the call up.
    pub async fn call(&self, request: &[u8], timeout: Duration) -> Result<Vec<u8>, RpcError> {
        let mut reply = Vec::new();
        self.call_into(request, &mut reply, timeout).await?;
        Ok(reply)
    }

    /// As [`RpcClient::call`], with the reply in a buffer of the caller's, which is cleared first: costs no allocation where
    /// that is large enough.
    pub async fn call_into(&self, request: &[u8], reply: &mut Vec<u8>, timeout: Duration) -> Result<(), RpcError> {
        if request.len() > MAX_REQUEST {
            return Err(RpcError::TooLarge(request.len()));
        }
        reply.clear();
        self.inner.qp.will_post();
        let now = Instant::now();
        self.inner.probe_if_silent(now);
        let call = async {
            let mut call = InFlight::begin(&self.inner).await?;
            // Until this returns, nothing was posted.
            call.send(request).await.map_err(|error| self.inner.error_or(error))?;
            call.sent = true;
            call.reply(reply).await
        };
        bounded(&self.inner.qp, now, timeout, pin!(call)).await
    }

    /// The queue pair below, for one-sided verbs.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.inner.qp
    }

    /// True once unusable. A connection that was silent for a while is looked at first.
    pub fn is_closed(&self) -> bool {
        self.inner.probe_if_silent(Instant::now());
        self.inner.qp.is_closed()
    }
}

fn lost(qp: &QueuePair) -> RpcError {
    let gone = || FabricError::Disconnected {
        peer: qp.peer_name().to_owned(),
        why: "it has gone".into(),
    };
    RpcError::Fabric(qp.lost().unwrap_or_else(gone))
}

/// Runs `what` for at most `timeout` from `now` on. The timer is made only if it is not done at once.
async fn bounded<T>(
    qp: &QueuePair,
    now: Instant,
    timeout: Duration,
    mut what: Pin<&mut impl Future<Output = Result<T, RpcError>>>,
) -> Result<T, RpcError> {
    let end = now + timeout;
    let mut sleep: Option<Pin<Box<tokio::time::Sleep>>> = None;
    poll_fn(|cx| {
        if let Poll::Ready(result) = what.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        sleep.as_mut().poll(cx).map(|()| {
            let ms = timeout.as_millis() as u64;
            Err(FabricError::TimedOut {
                peer: qp.peer_name().to_owned(),
                ms,
            }
            .into())
        })
    })
    .await
}

impl Inner {
    fn probe_if_silent(&self, now: Instant) {
        if now.duration_since(self.last_used.replace(now)) > PROBE_AFTER {
            self.qp.progress();
        }
    }

    /// Takes an event; a peer that breaks the protocol is closed.
    fn dispatch(&self, event: Event) {
        if let Err(what) = self.try_dispatch(event) {
            let peer = self.qp.peer_name().to_owned();
            tracing::warn!(%peer, what, "peer breaks the RPC protocol; connection closed");
            *self.broken.borrow_mut() = Some(RpcError::Malformed {
                peer,
                what: what.to_owned(),
            });
            self.qp.close_because(&format!("it sent {what}"));
        }
    }

    fn try_dispatch(&self, event: Event) -> Result<(), &'static str> {
        let Event::Immediate(slot) = event else {
            return Err("a message where replies are expected");
        };
        let at = slot as usize;
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(at).ok_or("a reply in a slot that does not exist")?;
        if !matches!(slot.state, State::Calling(_) | State::GivenUp(_)) {
            return Err("a reply to nothing that was asked");
        }
        let mut header = [0; HEADER];
        self.replies.buffer.read(at * REPLY_STRIDE, &mut header);
        let len = Header::check(header, slot.sequence, MAX_REPLY)?;
        match std::mem::take(&mut slot.state) {
            State::Calling(waker) => {
                debug_assert!(len <= MAX_REPLY, "a reply of {len} bytes");
                slot.state = State::Answered(len);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            // The permit goes back.
            _given_up => {}
        }
        Ok(())
    }

    /// Why the connection is lost.
    fn error(&self) -> RpcError {
        self.broken.borrow().clone().unwrap_or_else(|| lost(&self.qp))
    }

    /// The error of an operation, or what lies behind it.
    fn error_or(&self, error: FabricError) -> RpcError {
        self.broken.borrow().clone().unwrap_or(RpcError::Fabric(error))
    }

    /// Takes events until `done`, and those that were received along with the last one; pending when there are no more for
    /// now. False if the connection is lost.
    fn poll_events(&self, events: &mut Events, cx: &mut Context<'_>, done: impl Fn() -> bool) -> Poll<bool> {
        while !done() {
            let Some(event) = ready!(events.poll_next(cx)) else {
                return Poll::Ready(false);
            };
            // the replies of a burst come over from the server's cache all at once
            events.for_each_received(|event| {
                if let Event::Immediate(slot) = event {
                    self.replies
                        .buffer
                        .prefetch((*slot as usize).saturating_mul(REPLY_STRIDE));
                }
            });
            self.dispatch(event);
            while let Some(event) = events.received() {
                self.dispatch(event);
            }
        }
        Poll::Ready(true)
    }
}

/// A call that holds a slot.
struct InFlight<'a> {
    inner: &'a Inner,
    slot: usize,
    sequence: u32,
    sent: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl<'a> InFlight<'a> {
    /// Waits for a free slot.
    async fn begin(inner: &'a Inner) -> Result<InFlight<'a>, RpcError> {
        let permit = match inner.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // Late replies of calls that were given up free slots too, so events are looked at meanwhile.
                let mut events = inner.qp.events(Duration::ZERO);
                let mut acquire = pin!(inner.permits.clone().acquire_owned());
                poll_fn(|cx| {
                    loop {
                        if let Poll::Ready(permit) = acquire.as_mut().poll(cx) {
                            return Poll::Ready(Ok(permit.expect("the semaphore is never closed")));
                        }
                        let free = inner.permits.available_permits();
                        let is_freed = || inner.permits.available_permits() != free;
                        if !ready!(inner.poll_events(&mut events, cx, is_freed)) {
                            return Poll::Ready(Err(inner.error()));
                        }
                    }
                })
                .await?
            }
        };
        let mut slots = inner.slots.borrow_mut();
        let is_free = |slot: &Slot| matches!(slot.state, State::Free);
        let at = slots
            .iter()
            .position(is_free)
            .expect("there is a free slot for every permit");
        let slot = &mut slots[at];
        slot.sequence = slot.sequence.wrapping_add(1);
        slot.state = State::Calling(None);
        let sequence = slot.sequence;
        debug_assert!(
            slots.iter().filter(|slot| !is_free(slot)).count() + inner.permits.available_permits() <= SLOTS,
            "a slot in use has a permit"
        );
        Ok(InFlight {
            inner,
            slot: at,
            sequence,
            sent: false,
            permit: Some(permit),
        })
    }

    /// Writes the request into its slot at the server.
    async fn send(&self, request: &[u8]) -> Result<(), FabricError> {
        let inner = self.inner;
        let to = Remote {
            key: inner.requests,
            offset: (self.slot * REQUEST_STRIDE) as u64,
        };
        let imm = Immediate {
            client: inner.client,
            slot: self.slot,
        }
        .to_u32();
        {
            let slot = &inner.slots.borrow()[self.slot];
            assert!(
                slot.sequence == self.sequence && matches!(slot.state, State::Calling(_)),
                "the slot is this call's"
            );
        }
        let mut message = inner.message.take();
        message.clear();
        begin_message(&mut message, request, self.sequence);
        let bytes = &message[..];
        let announced = Verb::WriteImm { to, bytes, imm };
        let posted = if is_separate(request) {
            let body = Verb::Write {
                to: behind_header(to),
                bytes: request,
            };
            inner.qp.execute_quietly(&mut [body, announced]).await
        } else {
            inner.qp.execute_quietly(&mut [announced]).await
        };
        inner.message.set(message);
        posted
    }

    /// Waits for the reply, and takes it.
    async fn reply(&mut self, into: &mut Vec<u8>) -> Result<(), RpcError> {
        let inner = self.inner;
        let mut events = inner.qp.events(busy_poll_budget());
        poll_fn(|cx| {
            let is_answered = || matches!(inner.slots.borrow()[self.slot].state, State::Answered(_));
            let polled = inner.poll_events(&mut events, cx, is_answered);
            let mut slots = inner.slots.borrow_mut();
            let slot = &mut slots[self.slot];
            match &mut slot.state {
                State::Answered(len) => {
                    let at = self.slot * REPLY_STRIDE + HEADER;
                    assert!(
                        *len <= MAX_REPLY && slot.sequence == self.sequence,
                        "the reply to this call"
                    );
                    debug_assert!(into.is_empty(), "a reply is taken once");
                    inner.replies.buffer.append_to(at, *len, into);
                    slot.state = State::Free;
                    Poll::Ready(Ok(()))
                }
                _ if polled.is_ready() => {
                    drop(slots);
                    Poll::Ready(Err(inner.error()))
                }
                State::Calling(waker) => {
                    match waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    Poll::Pending
                }
                State::Free | State::GivenUp(_) => unreachable!("the slot is held by this call"),
            }
        })
        .await
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut slots = self.inner.slots.borrow_mut();
        let slot = &mut slots[self.slot];
        match slot.state {
            State::Calling(_) if self.sent => {
                if let Some(permit) = self.permit.take() {
                    slot.state = State::GivenUp(permit);
                }
                drop(slots);
                self.inner.qp.flush();
            }
            State::Calling(_) => {
                // Nothing was sent: the number is used for the next one.
                debug_assert_eq!(slot.sequence, self.sequence, "nobody else has used the slot");
                slot.sequence = slot.sequence.wrapping_sub(1);
                slot.state = State::Free;
            }
            _ => slot.state = State::Free,
        }
    }
}
