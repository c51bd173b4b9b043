//! Message-based RPC: requests and replies are messages that the other side receives (Octopus 3.3.1 (1)).

use super::{Caller, Scheme, bounded, lost, malformed};
use polvo_fabric::{Event, Events, MAX_SEND, MemoryRegions, QueuePair, Verb, busy_poll_budget};
use polvo_rpc::{MAX_REPLY, RpcError, SLOTS};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Before the body: number of the call and length of the body, a word each; as long as that of the self-identified messages.
const HEADER: usize = 16;
/// Largest request, in bytes: it is one message.
const REQUEST_MAX: usize = MAX_SEND - HEADER;

/// See the module.
pub struct MessageBased;

/// The calling side.
#[derive(Clone)]
pub struct MessageCaller {
    inner: Rc<Inner>,
}

struct Inner {
    pair: QueuePair,
    permits: Semaphore,
    /// Of the last call.
    number: Cell<u32>,
    calls: RefCell<Vec<Call>>,
}

struct Call {
    number: u32,
    reply: Option<Vec<u8>>,
    waker: Option<Waker>,
}

/// A call is forgotten when its caller goes.
struct UnderWay<'a> {
    inner: &'a Inner,
    number: u32,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.inner.calls.borrow_mut().retain(|call| call.number != self.number);
    }
}

impl<'a> UnderWay<'a> {
    fn begin(inner: &'a Inner) -> UnderWay<'a> {
        let number = inner.number.get().wrapping_add(1);
        inner.number.set(number);
        inner.calls.borrow_mut().push(Call {
            number,
            reply: None,
            waker: None,
        });
        UnderWay { inner, number }
    }

    /// The reply, if it has come.
    fn poll_reply(&self, events: &mut Events, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, RpcError>> {
        let inner = self.inner;
        let has_come = || {
            inner
                .calls
                .borrow()
                .iter()
                .any(|c| c.number == self.number && c.reply.is_some())
        };
        let mut is_over = false;
        while !is_over && !has_come() {
            match events.poll_next(cx) {
                Poll::Ready(Some(event)) => inner.dispatch(event)?,
                Poll::Ready(None) => is_over = true,
                Poll::Pending => break,
            }
            while let Some(event) = events.received() {
                inner.dispatch(event)?;
            }
        }
        let mut calls = inner.calls.borrow_mut();
        let call = calls.iter_mut().find(|call| call.number == self.number);
        let call = call.expect("a call is known until its caller goes");
        match call.reply.take() {
            Some(reply) => Poll::Ready(Ok(reply)),
            None if is_over => Poll::Ready(Err(lost(&inner.pair))),
            None => {
                call.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Inner {
    /// Brings a reply to its call; that of a call that was given up to nobody.
    fn dispatch(&self, event: Event) -> Result<(), RpcError> {
        let (number, reply) = parse(event, MAX_REPLY).map_err(|what| malformed(&self.pair, what))?;
        let mut calls = self.calls.borrow_mut();
        if let Some(call) = calls.iter_mut().find(|call| call.number == number) {
            call.reply = Some(reply);
            if let Some(waker) = call.waker.take() {
                waker.wake();
            }
        }
        Ok(())
    }
}

impl Caller for MessageCaller {
    async fn call_into(&self, request: &[u8], reply: &mut Vec<u8>, timeout: Duration) -> Result<(), RpcError> {
        let inner = &*self.inner;
        if request.len() > REQUEST_MAX {
            return Err(RpcError::TooLarge(request.len()));
        }
        let call = async {
            let _permit = inner.permits.acquire().await.expect("it is never closed");
            let call = UnderWay::begin(inner);
            let message = message(call.number, request);
            inner
                .pair
                .execute_quietly(&mut [Verb::Send { bytes: &message }])
                .await?;
            let mut events = inner.pair.events(busy_poll_budget());
            *reply = poll_fn(|cx| call.poll_reply(&mut events, cx)).await?;
            Ok(())
        };
        bounded(&inner.pair, timeout, call).await
    }

    fn queue_pair(&self) -> &QueuePair {
        &self.inner.pair
    }
}

impl Scheme for MessageBased {
    const NAME: &'static str = "message-based";
    const REQUEST_MAX: usize = REQUEST_MAX;
    type Caller = MessageCaller;

    async fn establish(pair: QueuePair, _: &Arc<MemoryRegions>, _: Duration) -> Result<MessageCaller, RpcError> {
        let inner = Rc::new(Inner {
            pair,
            permits: Semaphore::new(SLOTS),
            number: Cell::new(0),
            calls: RefCell::default(),
        });
        Ok(MessageCaller { inner })
    }

    async fn serve_all<H, F>(mut arrivals: mpsc::Receiver<QueuePair>, _: Arc<MemoryRegions>, handler: H)
    where
        H: Fn(Vec<u8>) -> F + Clone + 'static,
        F: Future<Output = Vec<u8>> + 'static,
    {
        let mut serving = JoinSet::new();
        while let Some(pair) = arrivals.recv().await {
            let handler = handler.clone();
            serving.spawn_local(async move { serve(&pair, handler).await });
            while serving.try_join_next().is_some() {}
        }
        while serving.join_next().await.is_some() {}
    }
}

/// Serves one queue pair until its end: one request after the other.
async fn serve<H, F>(pair: &QueuePair, handler: H) -> Result<(), RpcError>
where
    H: Fn(Vec<u8>) -> F,
    F: Future<Output = Vec<u8>>,
{
    let mut events = pair.requests();
    while let Some(event) = poll_fn(|cx| events.poll_next(cx)).await {
        let (number, request) = parse(event, REQUEST_MAX).map_err(|what| malformed(pair, what))?;
        let reply = handler(request).await;
        let message = message(number, &reply);
        assert!(message.len() <= MAX_SEND, "replies of a comparison are short");
        pair.execute_quietly(&mut [Verb::Send { bytes: &message }]).await?;
    }
    Ok(())
}

fn message(number: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&u64::from(number).to_le_bytes());
    message.extend_from_slice(&(body.len() as u64).to_le_bytes());
    message.extend_from_slice(body);
    message
}

fn parse(event: Event, max: usize) -> Result<(u32, Vec<u8>), &'static str> {
    let Event::Message(mut message) = event else {
        return Err("an immediate where messages are expected");
    };
    let (words, _) = message.as_chunks::<8>();
    let &[number, len, ..] = words else {
        return Err("a message without a header");
    };
    let (number, len) = (u64::from_le_bytes(number) as u32, u64::from_le_bytes(len));
    message.drain(..HEADER);
    if message.len() > max {
        return Err("a message over the limit");
    }
    if message.len() as u64 != len {
        return Err("a message of another length than it says");
    }
    Ok((number, message))
}
