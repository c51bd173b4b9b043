//! The serving side.

use crate::RpcError;
use crate::slot::{
    HEADER, Header, Immediate, MAX_REPLY, MAX_REQUEST, REPLY_STRIDE, REQUEST_STRIDE, SEPARATE, SLOTS, Setup,
};
use polvo_fabric::{
    Access, Buffer, Event, Events, FabricError, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Verb,
};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

/// Callers are numbered over the whole process.
static NEXT_CLIENT: AtomicU32 = AtomicU32::new(0);

/// What the server knows of a slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Sequence number of the last request.
    sequence: u32,
    /// It is being handled, or its reply is on the way.
    busy: bool,
}

/// Memory registered as long as this lives.
pub(crate) struct Registered {
    regions: Arc<MemoryRegions>,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) key: RemoteKey,
}

impl Registered {
    /// Registers a new buffer that the peer may write to.
    pub(crate) fn new(regions: &Arc<MemoryRegions>, len: usize) -> Registered {
        let buffer = Buffer::new(len);
        let key = regions.register(Memory::Buffer(buffer.clone()), 0, len as u64, Access::WRITE);
        debug_assert_eq!(buffer.len(), len, "all of it can be written to");
        Registered {
            regions: regions.clone(),
            buffer,
            key,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.regions.deregister(self.key);
    }
}

struct Connection {
    qp: QueuePair,
    pool: Registered,
    slots: RefCell<[Slot; SLOTS]>,
    replies: RemoteKey,
    client: u32,
    /// Buffers of earlier replies, for requests to come; at most one a slot.
    spare: RefCell<Vec<Vec<u8>>>,
}

/// Buffers that have grown larger are not kept.
const SPARE_CAPACITY: usize = 4 * SEPARATE;

/// Serves one queue pair until it is closed: each request is handed to `handler`, run as a task of its own on the
/// current `LocalSet` if it is not answered at once; replies go straight into the caller's memory, none waits for another that
/// takes its time. Requests that were received together are answered together. A reply of more than [`MAX_REPLY`] bytes is
/// the handler's bug and ends the connection.
///
/// A request that is answered at once costs no allocation where `handler` answers in the request's own buffer.
///
/// # Errors
/// [`RpcError::Malformed`] if the peer breaks the protocol. That it has gone is no error.
pub async fn serve<H, F>(qp: QueuePair, regions: &Arc<MemoryRegions>, handler: H) -> Result<(), RpcError>
where
    H: Fn(Vec<u8>) -> F + 'static,
    F: Future<Output = Vec<u8>> + 'static,
{
    let served = serve_open(&qp, regions, handler).await;
    match served {
        Err(RpcError::Malformed { peer, what }) => {
            tracing::warn!(%peer, %what, "peer breaks the RPC protocol; connection closed");
            qp.close_because(&format!("it sent {what}"));
            Err(RpcError::Malformed { peer, what })
        }
        Err(RpcError::Fabric(FabricError::Disconnected { .. })) => Ok(()),
        other => {
            qp.close();
            other
        }
    }
}

fn malformed(qp: &QueuePair, what: &str) -> RpcError {
    RpcError::Malformed {
        peer: qp.peer_name().to_owned(),
        what: what.to_owned(),
    }
}

/// Tells the client how to reach us, and how we reach it. `None`: it has gone.
async fn exchange(qp: &QueuePair, ours: Setup) -> Result<Option<Setup>, RpcError> {
    let bytes = &ours.to_bytes();
    qp.execute_unsignaled(&mut [Verb::Send { bytes }]).await?;
    match qp.next_event().await {
        None => Ok(None),
        Some(Event::Message(bytes)) => Setup::from_bytes(&bytes).map(Some).map_err(|what| malformed(qp, what)),
        Some(Event::Immediate(_)) => Err(malformed(qp, "a request before its setup")),
    }
}

async fn serve_open<H, F>(qp: &QueuePair, regions: &Arc<MemoryRegions>, handler: H) -> Result<(), RpcError>
where
    H: Fn(Vec<u8>) -> F + 'static,
    F: Future<Output = Vec<u8>> + 'static,
{
    let malformed = |what: &str| malformed(qp, what);
    let pool = Registered::new(regions, SLOTS * REQUEST_STRIDE);
    let client = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed) % Immediate::CLIENTS;
    let ours = Setup {
        key: pool.key.0,
        client,
    };
    let Some(theirs) = exchange(qp, ours).await? else {
        return Ok(());
    };
    let connection = Rc::new(Connection {
        qp: qp.clone(),
        pool,
        slots: RefCell::default(),
        replies: RemoteKey(theirs.key),
        client,
        spare: RefCell::default(),
    });
    let mut events = qp.requests();
    let mut burst = Burst::default();
    // where a handler that needs no waiting runs, again and again
    let mut place: Option<Pin<Box<F>>> = None;
    while let Some(first) = poll_fn(|cx| events.poll_next(cx)).await {
        connection.prefetch(&events);
        let mut next = Some(first);
        while let Some(event) = next {
            let Event::Immediate(word) = event else {
                return Err(malformed("a message where requests are expected"));
            };
            let (slot, request) = connection.request(Immediate::from_u32(word)).map_err(malformed)?;
            let handling = handler(request);
            let mut running = match place.take() {
                Some(mut place) => {
                    place.set(handling);
                    place
                }
                None => Box::pin(handling),
            };
            // Most requests are answered without waiting for anything; those need no task.
            match poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await {
                Poll::Ready(reply) => {
                    debug_assert!(
                        burst.replies.iter().all(|(other, _)| *other != slot),
                        "a slot has one reply"
                    );
                    burst.replies.push((slot, reply));
                    place = Some(running);
                }
                Poll::Pending => {
                    connection.answer(&mut burst).await;
                    let connection = connection.clone();
                    tokio::task::spawn_local(async move {
                        let reply = running.await;
                        let mut alone = Burst::default();
                        alone.replies.push((slot, reply));
                        connection.answer(&mut alone).await;
                        connection.qp.flush();
                    });
                }
            }
            next = if burst.replies.len() < SLOTS {
                events.received()
            } else {
                None
            };
        }
        connection.answer(&mut burst).await;
    }
    Ok(())
}

/// Replies that go out together.
#[derive(Default)]
struct Burst {
    /// Slot and reply.
    replies: Vec<(usize, Vec<u8>)>,
    /// What of them is posted from here: headers, and short replies behind theirs.
    bytes: Vec<u8>,
}

impl Connection {
    /// Has the requests of a burst come over from the client's cache all at once.
    fn prefetch(&self, events: &Events) {
        events.for_each_received(|event| {
            if let Event::Immediate(word) = event {
                let slot = Immediate::from_u32(*word).slot;
                self.pool.buffer.prefetch(slot.saturating_mul(REQUEST_STRIDE));
            }
        });
    }

    /// The request that an immediate announces, checked.
    fn request(&self, named: Immediate) -> Result<(usize, Vec<u8>), &'static str> {
        self.qp.will_post();
        if named.client != self.client {
            return Err("a request in the name of another client");
        }
        let mut slots = self.slots.borrow_mut();
        let slot = slots
            .get_mut(named.slot)
            .ok_or("a request in a slot that does not exist")?;
        if slot.busy {
            return Err("a request in a slot that is in use");
        }
        let at = named.slot * REQUEST_STRIDE;
        let mut header = [0; HEADER];
        self.pool.buffer.read(at, &mut header);
        let sequence = slot.sequence.wrapping_add(1);
        let len = Header::check(header, sequence, MAX_REQUEST)?;
        let mut request = self.spare.borrow_mut().pop().unwrap_or_default();
        self.pool.buffer.append_to(at + HEADER, len, &mut request);
        debug_assert_eq!(request.len(), len, "the request, and nothing before it");
        *slot = Slot { sequence, busy: true };
        Ok((named.slot, request))
    }

    /// Writes replies into the caller's slots, all in one batch; to be flushed. If that fails the connection is lost, and who needs to know
    /// knows.
    async fn answer(&self, burst: &mut Burst) {
        let Burst { replies, bytes } = burst;
        bytes.clear();
        for (slot, reply) in &*replies {
            if reply.len() > MAX_REPLY {
                tracing::error!(len = reply.len(), "reply over the limit; connection closed");
                self.qp.close_because("a reply over the limit");
                return;
            }
            let mut slots = self.slots.borrow_mut();
            // The caller may use the slot again as soon as it sees the reply.
            assert!(slots[*slot].busy, "a request is answered once");
            slots[*slot].busy = false;
            begin_message(bytes, reply, slots[*slot].sequence);
        }
        let mut rest = &bytes[..];
        let posted = match &replies[..] {
            [] => return,
            [(slot, reply)] if !is_separate(reply) => {
                let only = self.reply_verb(*slot, rest);
                self.qp.execute_quietly(&mut [only]).await
            }
            many => {
                let mut verbs = Vec::with_capacity(2 * many.len());
                for (slot, reply) in many {
                    let message;
                    (message, rest) = rest.split_at(posted_len(reply));
                    if is_separate(reply) {
                        let to = behind_header(self.reply_place(*slot));
                        verbs.push(Verb::Write { to, bytes: reply });
                    }
                    verbs.push(self.reply_verb(*slot, message));
                }
                assert!(rest.is_empty(), "all that was put together is sent");
                debug_assert!((many.len()..=2 * many.len()).contains(&verbs.len()));
                self.qp.execute_quietly(&mut verbs).await
            }
        };
        let mut spare = self.spare.borrow_mut();
        for (_, mut reply) in replies.drain(..) {
            if posted.is_ok() && spare.len() < SLOTS && reply.capacity() <= SPARE_CAPACITY {
                reply.clear();
                spare.push(reply);
            }
        }
        debug_assert!(
            spare.len() <= SLOTS && spare.iter().all(Vec::is_empty),
            "few buffers are kept, empty"
        );
        debug_assert!(replies.is_empty(), "all of the burst is answered");
    }

    fn reply_place(&self, slot: usize) -> Remote {
        debug_assert!(slot < SLOTS, "slot {slot}");
        Remote {
            key: self.replies,
            offset: (slot * REPLY_STRIDE) as u64,
        }
    }

    fn reply_verb<'a>(&self, slot: usize, bytes: &'a [u8]) -> Verb<'a> {
        Verb::WriteImm {
            to: self.reply_place(slot),
            bytes,
            imm: slot as u32,
        }
    }
}

/// Long bodies are written from where they are, the others behind their header.
pub(crate) fn is_separate(body: &[u8]) -> bool {
    body.len() >= SEPARATE
}

/// Bytes that [`begin_message`] adds.
fn posted_len(body: &[u8]) -> usize {
    HEADER + if is_separate(body) { 0 } else { body.len() }
}

/// Adds what is announced of a message: its header, and the body where that is not written by itself.
pub(crate) fn begin_message(to: &mut Vec<u8>, body: &[u8], sequence: u32) {
    let header = Header {
        len: body.len() as u32,
        sequence,
    };
    to.extend_from_slice(&header.to_bytes());
    let before = to.len() - HEADER;
    if !is_separate(body) {
        to.extend_from_slice(body);
    }
    debug_assert_eq!(
        to.len() - before,
        posted_len(body),
        "a message is as long as was reckoned"
    );
}

/// Where a body goes that is written by itself.
pub(crate) fn behind_header(at: Remote) -> Remote {
    Remote {
        offset: at.offset + HEADER as u64,
        ..at
    }
}
