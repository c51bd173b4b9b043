//! Memory-based RPC: requests are written into the server's message pool and nobody is told; the server goes over all slots of
//! all clients again and again (Octopus 3.3.1 (2), as in FaRM). So does a caller over its own slot.
//!
//! A message is announced by its first word, stored last: length and sequence number. What has come over tcp gets into memory
//! by a task for each connection, which stands for the card.

use super::{Caller, Scheme, bounded, lost, malformed};
use polvo_fabric::{Access, Buffer, Event, FabricError, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Verb};
use polvo_rpc::{MAX_REPLY, MAX_REQUEST, RpcError, SLOTS};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinSet, yield_now};

/// The word before a body, bytes.
const WORD: usize = 8;
const REQUEST_STRIDE: usize = WORD + MAX_REQUEST;
const REPLY_STRIDE: usize = WORD + MAX_REPLY;
/// A caller polls so often before others on its thread get their turn.
const POLLS: usize = 64;

/// See the module.
pub struct Polled;

/// The calling side.
#[derive(Clone)]
pub struct PolledCaller {
    inner: Rc<Inner>,
}

struct Inner {
    pair: QueuePair,
    replies: Registered,
    requests: RemoteKey,
    permits: Semaphore,
    /// Free slots, each with the sequence number of its last request. One whose call was given up never comes back.
    free: RefCell<Vec<(usize, u32)>>,
    /// Drives the queue pair.
    _card: JoinSet<()>,
}

/// A buffer that the peer may write to, as long as this lives.
struct Registered {
    regions: Arc<MemoryRegions>,
    buffer: Arc<Buffer>,
    key: RemoteKey,
}

impl Registered {
    fn new(regions: &Arc<MemoryRegions>, len: usize) -> Registered {
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

fn announcement(len: usize, sequence: u32) -> u64 {
    u64::from(sequence) << 32 | len as u64
}

/// Length of the message with that number, if it is there.
fn announced(word: u64, sequence: u32, max: usize) -> Option<Result<usize, &'static str>> {
    if (word >> 32) as u32 != sequence {
        return None;
    }
    let len = word as u32 as usize;
    Some(if len <= max {
        Ok(len)
    } else {
        Err("a message over the limit")
    })
}

async fn write(pair: &QueuePair, key: RemoteKey, at: usize, body: &[u8], sequence: u32) -> Result<(), FabricError> {
    let word = announcement(body.len(), sequence).to_ne_bytes();
    let to = |offset: usize| Remote {
        key,
        offset: offset as u64,
    };
    let mut batch = [
        Verb::Write {
            to: to(at + WORD),
            bytes: body,
        },
        Verb::Write {
            to: to(at),
            bytes: &word,
        },
    ];
    pair.execute_unsignaled(&mut batch).await
}

/// Tells the other side where to write to, and learns it of the other side.
async fn exchange(pair: &QueuePair, ours: RemoteKey) -> Result<RemoteKey, RpcError> {
    let key = ours.0.to_le_bytes();
    pair.execute_unsignaled(&mut [Verb::Send { bytes: &key }]).await?;
    match pair.next_event().await {
        None => Err(lost(pair)),
        Some(Event::Message(bytes)) => match bytes.try_into() {
            Ok(key) => Ok(RemoteKey(u64::from_le_bytes(key))),
            Err(_) => Err(malformed(pair, "something else than a key")),
        },
        Some(Event::Immediate(_)) => Err(malformed(pair, "an immediate where a key is expected")),
    }
}

/// A task that gets into memory what comes.
fn card(pair: &QueuePair) -> JoinSet<()> {
    let (pair, mut card) = (pair.clone(), JoinSet::new());
    card.spawn_local(async move { while pair.next_event().await.is_some() {} });
    card
}

impl Caller for PolledCaller {
    async fn call_into(&self, request: &[u8], reply: &mut Vec<u8>, timeout: Duration) -> Result<(), RpcError> {
        let inner = &*self.inner;
        if request.len() > MAX_REQUEST {
            return Err(RpcError::TooLarge(request.len()));
        }
        reply.clear();
        let call = async {
            let permit = inner.permits.acquire().await.expect("it is never closed");
            permit.forget();
            let (slot, last) = inner
                .free
                .borrow_mut()
                .pop()
                .expect("there is a free slot for every permit");
            let sequence = last.wrapping_add(1);
            write(&inner.pair, inner.requests, slot * REQUEST_STRIDE, request, sequence).await?;
            let at = slot * REPLY_STRIDE;
            let len = loop {
                let probe = || announced(inner.replies.buffer.read_word(at), sequence, MAX_REPLY);
                let found = (0..POLLS).find_map(|_| {
                    probe().or_else(|| {
                        std::hint::spin_loop();
                        None
                    })
                });
                match found {
                    Some(Ok(len)) => break len,
                    Some(Err(what)) => return Err(malformed(&inner.pair, what)),
                    None if inner.pair.is_closed() => return Err(lost(&inner.pair)),
                    None => yield_now().await,
                }
            };
            inner.replies.buffer.append_to(at + WORD, len, reply);
            debug_assert!(
                inner.free.borrow().iter().all(|(free, _)| *free != slot),
                "slot {slot} was taken"
            );
            inner.free.borrow_mut().push((slot, sequence));
            inner.permits.add_permits(1);
            Ok(())
        };
        bounded(&inner.pair, timeout, call).await
    }

    fn queue_pair(&self) -> &QueuePair {
        &self.inner.pair
    }
}

/// A client as the server knows it.
struct Served {
    pair: QueuePair,
    pool: Registered,
    replies: RemoteKey,
    /// Sequence number of each slot's last request.
    sequences: [u32; SLOTS],
    _card: JoinSet<()>,
}

impl Served {
    async fn new(pair: QueuePair, regions: Arc<MemoryRegions>) -> Result<Served, RpcError> {
        let pool = Registered::new(&regions, SLOTS * REQUEST_STRIDE);
        let replies = exchange(&pair, pool.key).await?;
        Ok(Served {
            _card: card(&pair),
            pair,
            pool,
            replies,
            sequences: [0; SLOTS],
        })
    }

    /// Goes over its slots, and answers what it finds.
    async fn poll<H, F>(&mut self, handler: &H) -> Result<(), RpcError>
    where
        H: Fn(Vec<u8>) -> F,
        F: Future<Output = Vec<u8>>,
    {
        for (slot, last) in self.sequences.iter_mut().enumerate() {
            let (at, sequence) = (slot * REQUEST_STRIDE, last.wrapping_add(1));
            let Some(found) = announced(self.pool.buffer.read_word(at), sequence, MAX_REQUEST) else {
                continue;
            };
            let len = found.map_err(|what| malformed(&self.pair, what))?;
            *last = sequence;
            let mut request = Vec::new();
            self.pool.buffer.append_to(at + WORD, len, &mut request);
            let reply = handler(request).await;
            assert!(reply.len() <= MAX_REPLY, "replies of a comparison are short");
            write(&self.pair, self.replies, slot * REPLY_STRIDE, &reply, sequence).await?;
        }
        Ok(())
    }
}

impl Scheme for Polled {
    const NAME: &'static str = "polled";
    type Caller = PolledCaller;

    async fn establish(
        pair: QueuePair,
        regions: &Arc<MemoryRegions>,
        timeout: Duration,
    ) -> Result<PolledCaller, RpcError> {
        let replies = Registered::new(regions, SLOTS * REPLY_STRIDE);
        let requests = bounded(&pair, timeout, exchange(&pair, replies.key)).await?;
        let inner = Rc::new(Inner {
            _card: card(&pair),
            pair,
            replies,
            requests,
            permits: Semaphore::new(SLOTS),
            free: RefCell::new((0..SLOTS).map(|slot| (slot, 0)).collect()),
        });
        Ok(PolledCaller { inner })
    }

    async fn serve_all<H, F>(mut arrivals: mpsc::Receiver<QueuePair>, regions: Arc<MemoryRegions>, handler: H)
    where
        H: Fn(Vec<u8>) -> F + Clone + 'static,
        F: Future<Output = Vec<u8>> + 'static,
    {
        let mut meeting = JoinSet::new();
        let mut served: Vec<Served> = Vec::new();
        while !(arrivals.is_closed() && arrivals.is_empty() && served.is_empty() && meeting.is_empty()) {
            while let Ok(pair) = arrivals.try_recv() {
                meeting.spawn_local(Served::new(pair, regions.clone()));
            }
            while let Some(met) = meeting.try_join_next() {
                // one that has failed is closed, and its peer knows
                if let Ok(Ok(client)) = met {
                    served.push(client);
                }
            }
            for client in &mut served {
                // the end of a connection shows below
                let _ = client.poll(&handler).await;
            }
            served.retain(|client| !client.pair.is_closed());
            yield_now().await;
        }
    }
}
