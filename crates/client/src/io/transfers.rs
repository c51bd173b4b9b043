//! Who moves file data between this client's memory and a node's pool, and by which way.
//!
//! | | small | larger | largest |
//! |---|---|---|---|
//! | client-active (`read`, `write`) | writes in the request | one-sided, from and to the caller's memory | |
//! | server-directed (here) | eager: in the request or answer | pooled: one-sided by the node, from and to a buffer that is registered once | zero-copy: the caller's own [`Buffer`], registered for the request |
//!
//! Client-active is what a client does unless it is asked for the other, or a node gives it no one-sided access to data. Regions with
//! copies are read server-directed: their primary alone can say whether all mirrors have what is read.
//! Server-directed transfers are those of Carns et al. (2.1, 2.3); Octopus (3.2.2) calls them server-active. A caller's plain
//! bytes are not registered: only memory that shared mappings can reach is, which is what a [`Buffer`] is made of.

use crate::client::Client;
use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use crate::open_table::OpenInode;
use polvo_cluster::Link;
use polvo_fabric as fabric;
use polvo_fabric::{Access, Memory, MemoryRegions, RemoteKey};
use polvo_format::RegionId;
use polvo_proto::{Ask, EAGER_MAX, EAGER_READ_MAX, FsError, TRANSFER_MAX, Window, ask, reply};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of a pooled buffer: the largest transfer. Only what has been used of it takes memory.
pub(crate) const POOLED_BYTES: usize = TRANSFER_MAX as usize;
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
/// Measured by the experiment `carns-fig5` of `polvo-bench` (two CPUs that had other work too; microseconds):
///
/// | read | eager | pooled | | write over shm | pooled | zero-copy |
/// |---|---|---|---|---|---|---|
/// | 16 KiB over shm | 33.0 | 38.1 | | 4 KiB | 24.4 | 25.7 |
/// | 32 KiB over shm | 40.2 | 39.6 | | 8 KiB | 25.4 | 27.0 |
/// | 16 KiB over tcp | 71.8 | 83.2 | | 16 KiB | 28.6 | 27.6 |
/// | 32 KiB over tcp | 95.2 | 101.9 | | | | |
///
/// Eager writes are as large as a request may carry: the node's fetching costs a round trip more.
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
            pooled: 8 << 10,
        }
    }
}

/// Where the bytes of a write are.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Buffer { buffer: &'a Buffer, at: usize, len: usize },
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
        assert!(start <= self.len(), "a part begins within the whole");
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
                buffer.0.buffer.append_to(at, len, &mut bytes);
                Cow::Owned(bytes)
            }
        }
    }
}

/// Memory of a caller's that nodes can reach while it takes part in a transfer; made by [`Client::buffer`]. Access is by copy.
///
/// It is registered for the client's nodes as long as it lives, without rights, so that one on the same host maps it once; a
/// key that opens part of it is made for each transfer.
pub struct Buffer(Registered);

impl Buffer {
    /// Copies out; panics if out of range.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.buffer.read(offset, into);
    }

    /// Copies in; panics if out of range.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.buffer.write(offset, bytes);
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.buffer.len()
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A key to part of it.
    pub(crate) fn opened(&self, at: usize, len: usize, access: Access) -> Registered {
        Registered::new(&self.0.regions, &self.0.buffer, at, len, access)
    }
}

impl Client {
    /// Memory for [`LocalClient::read_into`] and [`LocalClient::write_from`], zeroed.
    ///
    /// # Errors
    /// [`FsError::Io`] when the operating system has no memory or descriptor left.
    pub fn buffer(&self, len: usize) -> Result<Buffer, FsError> {
        let nothing = Access {
            read: false,
            ..Access::READ
        };
        self.register(len, nothing).map(Buffer)
    }

    fn register(&self, len: usize, access: Access) -> Result<Registered, FsError> {
        let buffer = fabric::Buffer::try_new(len).map_err(|e| FsError::Io(format!("no buffer: {e}")))?;
        Ok(Registered::new(
            self.context.memory(),
            &Arc::new(buffer),
            0,
            len,
            access,
        ))
    }
}

/// A buffer that nodes can reach, as long as this lives.
pub(crate) struct Registered {
    buffer: Arc<fabric::Buffer>,
    regions: Arc<MemoryRegions>,
    key: RemoteKey,
}

impl Registered {
    /// Makes part of a buffer reachable.
    fn new(
        regions: &Arc<MemoryRegions>,
        buffer: &Arc<fabric::Buffer>,
        at: usize,
        len: usize,
        access: Access,
    ) -> Registered {
        Registered {
            key: regions.register(Memory::Buffer(buffer.clone()), at as u64, len as u64, access),
            buffer: buffer.clone(),
            regions: regions.clone(),
        }
    }

    pub(crate) fn window(&self) -> Window {
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
pub(crate) struct Lent<'a> {
    pool: &'a Pooled,
    link: Rc<Link>,
    registered: Registered,
}

impl Lent<'_> {
    /// Copies in what is to be written.
    pub(crate) fn fill(&self, source: Source<'_>) {
        let pooled = &self.registered.buffer;
        match source {
            Source::Bytes(bytes) => pooled.write(0, bytes),
            Source::Buffer { buffer, at, len } => pooled.copy_from(0, &buffer.0.buffer, at, len),
        }
    }

    pub(crate) fn window(&self) -> Window {
        self.registered.window()
    }

    /// The request is over. The buffer is used again if the node is certain to be done with it: it has answered, and over
    /// the connection that it was asked over. Else its key ends here, and what comes late finds nothing.
    pub(crate) fn over<T>(self, answer: &Result<T, FsError>) {
        let answered = !matches!(answer, Err(FsError::Unreachable { .. })) && !self.link.is_closed();
        let mut free = self.pool.free.borrow_mut();
        if answered && free.len() < POOLED_KEPT {
            free.push(self.registered);
            debug_assert!(free.len() <= POOLED_KEPT, "no more are kept");
        }
    }
}

impl LocalClient {
    /// Who moves the data of a region.
    pub(crate) async fn transfers(&self, region: RegionId) -> Result<Transfers, FsError> {
        if self.colocated(region).is_some() {
            return Ok(Transfers::Client); // memory on both sides
        }
        match self.client.transfers {
            Transfers::Client if !self.links.to_primary(region).await?.one_sided => {
                Ok(Transfers::Server(Thresholds::default()))
            }
            chosen => Ok(chosen),
        }
    }

    pub(crate) async fn lend(&self, region: RegionId) -> Result<Lent<'_>, FsError> {
        let link = self.links.to_primary(region).await?;
        let free = self.pooled.free.borrow_mut().pop();
        let registered = match free {
            Some(registered) => registered,
            None => {
                let access = Access {
                    atomic: false,
                    ..Access::ALL
                };
                self.client.register(POOLED_BYTES, access)?
            }
        };
        Ok(Lent {
            pool: &self.pooled,
            link,
            registered,
        })
    }

    /// As [`LocalClient::call`], of what names memory of ours. That is reached over a connection, also by the node around us, which may have
    /// come to serve the region only now.
    pub(crate) async fn call_over_connection<A: Ask>(&self, region: RegionId, ask: A) -> Result<A::Answer, FsError> {
        self.links.call_region(region, self.client.cred.clone(), ask).await
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
        into: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<usize, FsError> {
        assert!(at <= into.len() && len <= into.len() - at, "outside the buffer");
        let open_inode = &*file.open_inode;
        let mut done = 0;
        while done < len {
            let most = (len - done).min(POOLED_BYTES);
            let (place, from) = (at + done, offset.saturating_add(done as u64));
            let (read, more) = match self.transfers(data_region(open_inode)).await? {
                Transfers::Server(sizes) if most > sizes.eager_read => {
                    self.check_file(open_inode).await?;
                    self.read_to_buffer(open_inode, from, into, place, most, sizes).await?
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
        open_inode: &OpenInode,
        offset: u64,
        into: &Buffer,
        at: usize,
        len: usize,
        sizes: Thresholds,
    ) -> Result<(usize, bool), FsError> {
        if len > sizes.pooled {
            let registered = into.opened(at, len, Access::WRITE);
            let answer = self
                .ask_to_read(open_inode, offset, len, Some(registered.window()))
                .await;
            return answer.map(|(read, more, _)| (read, more));
        }
        let lent = self.lend(data_region(open_inode)).await?;
        let window = Some(lent.window());
        let answer = self.ask_to_read(open_inode, offset, len, window).await;
        if let Ok((read, ..)) = &answer {
            into.0.buffer.copy_from(at, &lent.registered.buffer, 0, *read);
        }
        lent.over(&answer);
        answer.map(|(read, more, _)| (read, more))
    }

    /// Has the node read: eager, or by a pooled buffer. Says whether there may be more of what was asked for.
    pub(crate) async fn read_directed(
        &self,
        open_inode: &OpenInode,
        offset: u64,
        into: &mut [u8],
        sizes: Thresholds,
    ) -> Result<(usize, bool), FsError> {
        let len = into.len();
        if len <= sizes.eager_read.min(EAGER_READ_MAX) {
            let (read, more, bytes) = self.ask_to_read(open_inode, offset, len, None).await?;
            let bytes = bytes.get(..read).ok_or_else(not_what_was_asked)?;
            into[..read].copy_from_slice(bytes);
            return Ok((read, more));
        }
        let lent = self.lend(data_region(open_inode)).await?;
        let window = Some(lent.window());
        let answer = self.ask_to_read(open_inode, offset, len, window).await;
        if let Ok((read, ..)) = &answer {
            lent.registered.buffer.read(0, &mut into[..*read]);
        }
        lent.over(&answer);
        answer.map(|(read, more, _)| (read, more))
    }

    /// Has the node read. Returns how many bytes, whether there may be more of what was asked for, and they unless they were put
    /// elsewhere.
    async fn ask_to_read(
        &self,
        open_inode: &OpenInode,
        offset: u64,
        len: usize,
        into: Option<Window>,
    ) -> Result<(usize, bool, Vec<u8>), FsError> {
        let read = ask::Read {
            inode: open_inode.inode,
            offset,
            len: len as u64,
            into,
            verify: self.client.verifies(),
        };
        match self.call_over_connection(data_region(open_inode), read).await? {
            reply::Read { len: read, .. } if read > len as u64 => Err(not_what_was_asked()),
            // nothing read although there is more: that would go on for ever
            reply::Read { len: read, more, bytes } => Ok((read as usize, more && read > 0, bytes)),
        }
    }
}

fn not_what_was_asked() -> FsError {
    FsError::Io("a node answered with other bytes than it was asked for".into())
}
