//! The node that a client is colocated with, as the client sees it: what it reaches there by calls and loads instead of
//! requests and one-sided operations. Nodes implement it; clients know no more of them, so that a remote client has nothing of
//! a daemon in it.

use crate::{Links, SessionContext};
use polvo_format::{Gpa, NodeId, RegionId, SessionId};
use polvo_pmem::Pmem;
use polvo_proto::{Answer, Call, Cred, FsError, InodeRef, WriteAt};
use polvo_region::{FileView, Snapshot};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What a call that may wait returns.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A node in this process.
pub trait Colocated: Send + Sync {
    /// Which.
    fn id(&self) -> NodeId;

    /// Is it the primary of this region?
    fn serves(&self, region: RegionId) -> bool;

    /// May be told at once what was seen of a region here? It is, unless mirrors have to hear of something first.
    fn may_tell(&self, region: RegionId) -> bool;

    /// Waits until it may.
    ///
    /// # Errors
    /// A mirror does not answer, or the region is served elsewhere.
    fn until_may_tell<'a>(&'a self, links: &'a Rc<Links>, region: RegionId) -> LocalFuture<'a, Result<(), FsError>>;

    /// As [`Colocated::until_may_tell`], of what was written here ([`ColocatedSession::write_at_once`]): also once another node serves the
    /// region, if this one has handed it over with the write.
    ///
    /// # Errors
    /// A mirror does not answer, or the region was taken over.
    fn until_write_may_be_told<'a>(
        &'a self,
        links: &'a Rc<Links>,
        region: RegionId,
    ) -> LocalFuture<'a, Result<(), FsError>>;

    /// What the threads of a client in this process share: a session of its own, at home here. Its own node is called through
    /// [`Colocated::caller`], beginning with `Attach`.
    fn client_context(&self, session: SessionId, name: String) -> Arc<SessionContext>;

    /// True when durability against power loss needs `Sync`; it stays as it is while the node runs.
    fn needs_sync(&self) -> bool;

    /// The pool, to read what was located: as with a one-sided read, the file's tail tells whether the bytes were its.
    fn pool(&self) -> &Arc<Pmem>;

    /// Where bytes of a region served here lie in the pool. They may not cross a segment. While the node runs, a segment's
    /// bytes lie nowhere else, and no other segment of the region gets its offsets.
    ///
    /// # Errors
    /// EIO when they lie in no segment.
    fn locate(&self, at: Gpa, len: usize) -> Result<u64, FsError>;

    /// Do the bytes differ from their checksums? Where there are none: no.
    ///
    /// # Errors
    /// As [`Colocated::locate`].
    fn is_damaged(&self, at: Gpa, len: usize) -> Result<bool, FsError>;

    /// A thread's way to call the node. `links`: the thread's to the other nodes.
    fn caller(&self, links: &Rc<Links>) -> Box<dyn ColocatedCaller>;

    /// A session that is attached here, for who comes back with it again and again.
    ///
    /// # Errors
    /// [`FsError::SessionExpired`] when there is none of that number.
    fn session(&self, id: SessionId) -> Result<Arc<dyn ColocatedSession>, FsError>;
}

/// Calls the node in this process: one request at a time, all in the same piece of memory. Dropped, it gives up the request that
/// is under way.
pub trait ColocatedCaller {
    /// Begins a request. The one before has been answered. (It is boxed because it changes hands several times.)
    fn begin(&mut self, call: Box<Call>);

    /// The answer to the request that was begun, once.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer>;
}

/// What a write has come to that did not wait.
pub struct WrittenAtOnce {
    /// Where in the file the bytes are.
    pub offset: u64,
    /// Nobody need wait before he is told; else he is told once [`Colocated::until_may_tell`] has returned.
    pub may_be_told: bool,
}

/// A session at the node in this process. All of it fails with [`FsError::SessionExpired`] when it has ended.
pub trait ColocatedSession: Send + Sync {
    /// It is of no more use.
    fn is_ended(&self) -> bool;

    /// Copies bytes to where they are to stay in the file. All of them, or nothing. Returns where in the file they are.
    ///
    /// # Errors
    /// Those of a request to write.
    fn write<'a>(
        &'a self,
        links: &'a Rc<Links>,
        cred: &'a Cred,
        inode: InodeRef,
        at: WriteAt,
        bytes: &'a [u8],
    ) -> LocalFuture<'a, Result<u64, FsError>>;

    /// As [`ColocatedSession::write`], of at most `EAGER_MAX` bytes and without a future. `None`: something is to be waited
    /// for before or to be refused, as that call will tell, and nothing was done.
    fn write_at_once(
        &self,
        links: &Rc<Links>,
        cred: &Cred,
        inode: InodeRef,
        at: WriteAt,
        bytes: &[u8],
    ) -> Option<WrittenAtOnce>;

    /// The mapping, up to date, of a file that the session has open.
    ///
    /// # Errors
    /// ESTALE when the file is gone; EBUSY when a transaction has it locked for longer than requests wait.
    fn file_view<'a>(
        &'a self,
        links: &'a Rc<Links>,
        cred: &'a Cred,
        inode: InodeRef,
    ) -> LocalFuture<'a, Result<Arc<FileView>, FsError>>;

    /// Bytes of a file that the session has open, at most `len` from an offset on, where they lie in the pool.
    ///
    /// # Errors
    /// As [`ColocatedSession::file_view`].
    fn show<'a>(
        &'a self,
        links: &'a Rc<Links>,
        cred: &'a Cred,
        inode: InodeRef,
        offset: u64,
        len: u64,
    ) -> LocalFuture<'a, Result<Box<dyn ShownBytes>, FsError>>;
}

/// Bytes of a file that stay where they are, and as they are, until this is dropped, whatever becomes of the file. It is not to be
/// kept for long: what is freed meanwhile cannot be used again.
pub trait ShownBytes {
    /// Where they are.
    fn snapshot(&self) -> &Snapshot;
}
