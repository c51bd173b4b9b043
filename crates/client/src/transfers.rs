//! Who moves file data between this client's memory and a node's pool, and by which way.
//!
//! | | small | larger | largest |
//! |---|---|---|---|
//! | client-active (`read`, `write`) | writes in the request | one-sided, from and to the caller's memory | |
//! | server-directed (here) | eager: in the request or answer | pooled: one-sided by the node, from and to a buffer that is registered once | zero-copy: the caller's own [`Buffer`], registered for the request |
//!
//! Client-active is what a client does unless it is asked for the other, or a node gives it no one-sided access to data.
//! Server-directed transfers are those of Carns et al. (2.1, 2.3); Octopus (3.2.2) calls them server-active. A caller's plain
//! bytes are not registered: only memory that shared mappings can reach is, which is what a [`Buffer`] is made of.

use crate::holds::Held;
use crate::inode::unexpected;
use crate::local::LocalClient;
use crate::open::{OpenFile, data_region};
use crate::write::{At, SESSION_TRIES};
use polvo_cluster::Link;
use polvo_fabric::{Access, Buffer, Memory, MemoryRegions, RemoteKey};
use polvo_format::RegionId;
use polvo_proto::{Answer, EAGER_MAX, EAGER_READ_MAX, FsError, Reply, Request, TRANSFER_MAX, Window};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of a pooled buffer: the largest transfer. Only what has been used of it takes memory.
const POOLED_BYTES: usize = TRANSFER_MAX as usize;
/// Pooled buffers that a thread keeps.
const POOLED_KEPT: usize = 4;

/// Who moves file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transfers {
    /// The client, by one-sided operations, at nodes that let it; else the node.
    #[default]
    Client,
    /// The node, by these sizes.
    Server(Thresholds),
}

/// Which way a server-directed transfer takes, by its size in bytes.
///
/// Measured by the experiment `carns-fig5` of `polvo-bench`; where two ways cost the same the one with fewer round trips is
/// taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Writes up to here travel in the request (at most [`EAGER_MAX`]).
    pub eager_write: usize,
    /// Reads up to here travel in the answer (at most [`EAGER_READ_MAX`]).
    pub eager_read: usize,
    /// Transfers from and to a [`Buffer`] up to here go by a pooled one.
    pub pooled: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            eager_write: EAGER_MAX,
            eager_read: 16 << 10,
            pooled: 16 << 10,
        }
    }
}

/// Where the bytes of a write are.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Buffer {
        buffer: &'a Arc<Buffer>,
        at: usize,
        len: usize,
    },
}

impl<'a> Source<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Buffer { len, .. } => len,
        }
    }

    /// What begins `start` bytes on, at most `most` bytes.
    pub(crate) fn part(self, start: usize, most: usize) -> Source<'a> {
        let len = (self.len() - start).min(most);
        match self {
            Source::Bytes(bytes) => Source::Bytes(&bytes[start..start + len]),
            Source::Buffer { buffer, at, .. } => Source::Buffer {
                buffer,
                at: at + start,
                len,
            },
        }
    }

    /// They, copied where they are in a buffer.
    pub(crate) fn bytes(self) -> Cow<'a, [u8]> {
        match self {
            Source::Bytes(bytes) => Cow::Borrowed(bytes),
            Source::Buffer { buffer, at, len } => {
                let mut bytes = Vec::new();
                buffer.append_to(at, len, &mut bytes);
                Cow::Owned(bytes)
            }
        }
    }
}

/// A buffer that nodes can reach, as long as this lives.
struct Registered {
    buffer: Arc<Buffer>,
    regions: Arc<MemoryRegions>,
    key: RemoteKey,
}

impl Registered {
    /// Makes part of a buffer reachable.
    fn new(regions: &Arc<MemoryRegions>, buffer: &Arc<Buffer>, at: usize, len: usize, access: Access) -> Registered {
        Registered {
            key: regions.register(Memory::Buffer(buffer.clone()), at as u64, len as u64, access),
            buffer: buffer.clone(),
            regions: regions.clone(),
        }
    }

    fn window(&self) -> Window {
        Window {
            key: self.key.0,
            offset: 0,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.regions.deregister(self.key);
    }
}

/// The pooled buffers of a thread.
#[derive(Default)]
pub(crate) struct Pooled {
    free: RefCell<Vec<Registered>>,
}

/// A pooled buffer in use for one request.
struct Lent<'a> {
    pool: &'a Pooled,
    link: Rc<Link>,
    registered: Registered,
}

impl Lent<'_> {
    /// The request is over. The buffer is used again if the node is certain to be done with it: it has answered, and over
    /// the connection that it was asked over. Else its key ends here, and what comes late finds nothing.
    fn over(self, answer: &Answer) {
        let answered = !matches!(answer, Err(FsError::Unreachable { .. })) && !self.link.is_closed();
        let mut free = self.pool.free.borrow_mut();
        if answered && free.len() < POOLED_KEPT {
            free.push(self.registered);
        }
    }
}

impl LocalClient {
    /// Who moves the data of a region.
    pub(crate) async fn transfers(&self, region: RegionId) -> Result<Transfers, FsError> {
        if self.inside(region).is_some() {
            return Ok(Transfers::Client); // memory on both sides
        }
        match self.client.transfers {
            Transfers::Client if !self.links.to(self.client.primary(region)?).await?.one_sided => {
                Ok(Transfers::Server(Thresholds::default()))
            }
            chosen => Ok(chosen),
        }
    }

    async fn lend(&self, region: RegionId) -> Result<Lent<'_>, FsError> {
        let link = self.links.to(self.client.primary(region)?).await?;
        let free = self.pooled.free.borrow_mut().pop();
        let registered = match free {
            Some(registered) => registered,
            None => {
                let buffer = Buffer::try_new(POOLED_BYTES).map_err(|e| FsError::Io(format!("no buffer: {e}")))?;
                let access = Access {
                    atomic: false,
                    ..Access::ALL
                };
                let regions = self.client.context.memory();
                Registered::new(regions, &Arc::new(buffer), 0, POOLED_BYTES, access)
            }
        };
        Ok(Lent {
            pool: &self.pooled,
            link,
            registered,
        })
    }

    /// Reads into a buffer of the caller's: where the node moves the data, and there is much of it, without a copy on this
    /// side. Otherwise as [`LocalClient::read`]. Panics if the range does not lie within the buffer.
    ///
    /// # Errors
    /// As [`LocalClient::read`].
    pub async fn read_into(
        &self,
        file: &OpenFile,
        offset: u64,
        into: &Arc<Buffer>,
        at: usize,
        len: usize,
    ) -> Result<usize, FsError> {
        assert!(at <= into.len() && len <= into.len() - at, "outside the buffer");
        let held = &*file.held;
        let mut done = 0;
        while done < len {
            let most = (len - done).min(POOLED_BYTES);
            let (place, from) = (at + done, offset.saturating_add(done as u64));
            let (read, more) = match self.transfers(data_region(held)).await? {
                Transfers::Server(sizes) if most > sizes.eager_read => {
                    self.check_file(held).await?;
                    self.read_to_buffer(held, from, into, place, most, sizes).await?
                }
                _ => {
                    let mut bytes = vec![0; most];
                    let read = self.read(file, from, &mut bytes).await?;
                    into.write(place, &bytes[..read]);
                    (read, false)
                }
            };
            done += read;
            if read < most && !more {
                break;
            }
        }
        Ok(done)
    }

    async fn read_to_buffer(
        &self,
        held: &Held,
        offset: u64,
        into: &Arc<Buffer>,
        at: usize,
        len: usize,
        sizes: Thresholds,
    ) -> Result<(usize, bool), FsError> {
        if len > sizes.pooled {
            let regions = self.client.context.memory();
            let registered = Registered::new(regions, into, at, len, Access::WRITE);
            let answer = self.ask_to_read(held, offset, len, Some(registered.window())).await;
            return read_of(answer, len).map(|(read, more, _)| (read, more));
        }
        let lent = self.lend(data_region(held)).await?;
        let window = Some(lent.registered.window());
        let answer = self.ask_to_read(held, offset, len, window).await;
        if let Ok((read, ..)) = read_of(answer.clone(), len) {
            into.copy_from(at, &lent.registered.buffer, 0, read);
        }
        lent.over(&answer);
        read_of(answer, len).map(|(read, more, _)| (read, more))
    }

    /// Has the node read: eager, or by a pooled buffer. Says whether there may be more of what was asked for.
    pub(crate) async fn read_directed(
        &self,
        held: &Held,
        offset: u64,
        into: &mut [u8],
        sizes: Thresholds,
    ) -> Result<(usize, bool), FsError> {
        let len = into.len();
        if len <= sizes.eager_read.min(EAGER_READ_MAX) {
            let (read, more, bytes) = read_of(self.ask_to_read(held, offset, len, None).await, len)?;
            let bytes = bytes.get(..read).ok_or_else(not_what_was_asked)?;
            into[..read].copy_from_slice(bytes);
            return Ok((read, more));
        }
        let lent = self.lend(data_region(held)).await?;
        let window = Some(lent.registered.window());
        let answer = self.ask_to_read(held, offset, len, window).await;
        if let Ok(Reply::Read { len: read, .. }) = &answer
            && *read <= len as u64
        {
            lent.registered.buffer.read(0, &mut into[..*read as usize]);
        }
        lent.over(&answer);
        read_of(answer, len).map(|(read, more, _)| (read, more))
    }

    async fn ask_to_read(&self, held: &Held, offset: u64, len: usize, into: Option<Window>) -> Answer {
        let request = Request::Read {
            inode: held.inode,
            offset,
            len: len as u64,
            into,
        };
        self.call(data_region(held), request).await
    }

    /// Writes from a buffer of the caller's: where the node moves the data, and there is much of it, without a copy on this
    /// side. Otherwise as [`LocalClient::write`]. Panics if the range does not lie within the buffer.
    ///
    /// # Errors
    /// As [`LocalClient::write`].
    pub async fn write_from(
        &self,
        file: &OpenFile,
        offset: u64,
        from: &Arc<Buffer>,
        at: usize,
        len: usize,
    ) -> Result<usize, FsError> {
        assert!(at <= from.len() && len <= from.len() - at, "outside the buffer");
        let buffer = from;
        self.write_at(file, offset, Source::Buffer { buffer, at, len }).await
    }

    /// Has the node fetch the bytes: from a pooled buffer, or where they are. Writes as many as fit a transfer.
    pub(crate) async fn write_directed(
        &self,
        held: &Held,
        at: At,
        bytes: Source<'_>,
        sizes: Thresholds,
    ) -> Result<(u64, usize), FsError> {
        let bytes = bytes.part(0, POOLED_BYTES);
        let region = data_region(held);
        for _ in 0..SESSION_TRIES {
            self.keep(held).await?;
            let known = self.known_log(held);
            let request = |from: Window| Request::WriteFrom {
                inode: held.inode,
                offset: at.offset(),
                append: at == At::End,
                known: known.tail,
                from,
                len: bytes.len() as u64,
            };
            let answer = match bytes {
                Source::Buffer { buffer, at, len } if len > sizes.pooled => {
                    let registered = Registered::new(self.client.context.memory(), buffer, at, len, Access::READ);
                    self.call(region, request(registered.window())).await
                }
                bytes => {
                    let lent = self.lend(region).await?;
                    let pooled = &lent.registered.buffer;
                    match bytes {
                        Source::Bytes(bytes) => pooled.write(0, bytes),
                        Source::Buffer { buffer, at, len } => pooled.copy_from(0, buffer, at, len),
                    }
                    let answer = self.call(region, request(lent.registered.window())).await;
                    lent.over(&answer);
                    answer
                }
            };
            match answer {
                Ok(Reply::Written(written)) => {
                    let first = written.offset;
                    self.apply_written(held, known, written);
                    return Ok((first, bytes.len()));
                }
                Ok(other) => return Err(unexpected(&other)),
                Err(FsError::SessionExpired) => {}
                Err(error) => return Err(error),
            }
        }
        Err(FsError::SessionExpired)
    }
}

fn not_what_was_asked() -> FsError {
    FsError::Io("a node answered with other bytes than it was asked for".into())
}

/// What an answer to a read of `len` bytes says: how many were read, whether there may be more, and they if it has them.
fn read_of(answer: Answer, len: usize) -> Result<(usize, bool, Vec<u8>), FsError> {
    match answer? {
        Reply::Read { len: read, .. } if read > len as u64 => Err(not_what_was_asked()),
        // nothing read although there is more: that would go on for ever
        Reply::Read { len: read, more, bytes } => Ok((read as usize, more && read > 0, bytes)),
        other => Err(unexpected(&other)),
    }
}
