//! The serving side.

use crate::RpcError;
use crate::slot::{
    HEADER, Header, Immediate, MAX_REPLY, MAX_REQUEST, REPLY_STRIDE, REQUEST_STRIDE, SEPARATE, SLOTS, Setup,
};
use polvo_fabric::{
    Access, Buffer, Event, FabricError, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Verb, serve_spin_limit,
};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
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
}

/// Serves one queue pair until it is closed: each request is handed to `handler`, run as a task of its own on the
/// current `LocalSet` if it is not answered at once; replies go straight into the caller's memory, none waits for another. A reply of more than
/// [`MAX_REPLY`] bytes is the handler's bug and ends the connection.
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

async fn serve_open<H, F>(qp: &QueuePair, regions: &Arc<MemoryRegions>, handler: H) -> Result<(), RpcError>
where
    H: Fn(Vec<u8>) -> F + 'static,
    F: Future<Output = Vec<u8>> + 'static,
{
    let malformed = |what: &str| RpcError::Malformed {
        peer: qp.peer_name().to_owned(),
        what: what.to_owned(),
    };
    let pool = Registered::new(regions, SLOTS * REQUEST_STRIDE);
    let client = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed) % Immediate::CLIENTS;
    let setup = Setup {
        key: pool.key.0,
        client,
    };
    qp.execute_unsignaled(&mut [Verb::Send {
        bytes: &setup.to_bytes(),
    }])
    .await?;
    let theirs = match qp.next_event().await {
        None => return Ok(()),
        Some(Event::Message(bytes)) => Setup::from_bytes(&bytes).map_err(malformed)?,
        Some(Event::Immediate(_)) => return Err(malformed("a request before its setup")),
    };
    let connection = Rc::new(Connection {
        qp: qp.clone(),
        pool,
        slots: RefCell::default(),
        replies: RemoteKey(theirs.key),
        client,
    });
    let mut events = qp.events(serve_spin_limit());
    while let Some(event) = poll_fn(|cx| events.poll_next(cx)).await {
        let Event::Immediate(word) = event else {
            return Err(malformed("a message where requests are expected"));
        };
        let (slot, request) = connection.request(Immediate::from_u32(word)).map_err(malformed)?;
        let (connection, handling) = (connection.clone(), handler(request));
        let mut answering = Box::pin(async move {
            let reply = handling.await;
            connection.reply(slot, &reply).await;
        });
        // Most requests are answered without waiting for anything; those need no task.
        if poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx)))
            .await
            .is_pending()
        {
            tokio::task::spawn_local(answering);
        }
    }
    Ok(())
}

impl Connection {
    /// The request that an immediate announces, checked.
    fn request(&self, named: Immediate) -> Result<(usize, Vec<u8>), &'static str> {
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
        let mut request = vec![0; len];
        self.pool.buffer.read(at + HEADER, &mut request);
        *slot = Slot { sequence, busy: true };
        Ok((named.slot, request))
    }

    /// Writes the reply into the caller's slot. If that fails the connection is lost, and who needs to know knows.
    async fn reply(&self, slot: usize, reply: &[u8]) {
        if reply.len() > MAX_REPLY {
            tracing::error!(len = reply.len(), "reply over the limit; connection closed");
            self.qp.close_because("a reply over the limit");
            return;
        }
        let sequence = {
            let mut slots = self.slots.borrow_mut();
            // The caller may use the slot again as soon as it sees the reply.
            slots[slot].busy = false;
            slots[slot].sequence
        };
        let at = Remote {
            key: self.replies,
            offset: (slot * REPLY_STRIDE) as u64,
        };
        let _ = write_message(&self.qp, at, reply, sequence, slot as u32).await;
    }
}

/// Writes a message into a slot of the peer and announces it.
pub(crate) async fn write_message(
    qp: &QueuePair,
    to: Remote,
    body: &[u8],
    sequence: u32,
    imm: u32,
) -> Result<(), FabricError> {
    let header = Header {
        len: body.len() as u32,
        sequence,
    }
    .to_bytes();
    if body.len() >= SEPARATE {
        let behind = Remote {
            offset: to.offset + HEADER as u64,
            ..to
        };
        let mut batch = [
            Verb::Write {
                to: behind,
                bytes: body,
            },
            Verb::WriteImm {
                to,
                bytes: &header,
                imm,
            },
        ];
        qp.execute_unsignaled(&mut batch).await
    } else {
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&header);
        message.extend_from_slice(body);
        qp.execute_unsignaled(&mut [Verb::WriteImm {
            to,
            bytes: &message,
            imm,
        }])
        .await
    }
}
