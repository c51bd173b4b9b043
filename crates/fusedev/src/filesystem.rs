//! What a file system does: a method a request.
//!
//! A method is called on the thread that has read the request, with what was decoded in that thread's buffer. It answers by its
//! [`Reply`] before it returns, or gives the reply to another thread. Before it waits for something that takes longer than a
//! computation, it says so ([`will_wait`](crate::will_wait)). One that is not written answers ENOSYS, which the kernel takes as
//! *never ask again* for most requests, and for the others as an error.

use crate::abi::*;
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::transport::Transport;
use crate::upcalls::Upcalls;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::sync::Arc;

/// What the kernel offers at the beginning, and what is taken of it.
#[derive(Debug)]
pub struct Connection {
    offered: u64,
    wanted: u64,

    /// Counts the requests that come.
    pub upcalls: Arc<Upcalls>,
    /// Largest write at once, bytes: a multiple of the page size, at most [`MOST_WRITTEN`].
    pub max_write: u32,
    /// Most bytes read ahead; the kernel's own limit holds, too.
    pub max_readahead: u32,
    /// Requests that nobody waits for which the kernel may have under way at a time.
    pub max_background: u16,
    /// With [`init::PASSTHROUGH`]: how deep the file systems of backing files are stacked at most; 1: not at all.
    pub max_stack_depth: u32,
}

/// The largest write that a reader has room for, bytes.
pub const MOST_WRITTEN: u32 = 1 << 20;

impl Connection {
    /// What is taken wherever it is offered: it has no bad side.
    const BASE: u64 = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT;

    pub(crate) fn offered(init: &InitIn) -> Connection {
        let upper = if u64::from(init.flags) & init::INIT_EXT != 0 {
            init.flags2
        } else {
            0
        };
        let offered = u64::from(init.flags) | u64::from(upper) << 32;
        Connection {
            offered,
            wanted: offered & Connection::BASE,
            upcalls: Arc::default(),
            max_write: MOST_WRITTEN,
            max_readahead: init.max_readahead,
            max_background: 16,
            max_stack_depth: 0,
        }
    }

    /// Whether the kernel offers all of these capabilities (see [`init`]).
    pub fn offers(&self, capabilities: u64) -> bool {
        self.offered & capabilities == capabilities
    }

    /// Takes those capabilities which the kernel offers. Says which it does not.
    pub fn want(&mut self, capabilities: u64) -> u64 {
        self.wanted |= capabilities & self.offered;
        capabilities & !self.offered
    }

    /// The answer to INIT.
    pub(crate) fn answer(&self, init: &InitIn) -> InitOut {
        const PAGE: u32 = 4096;
        assert_eq!(self.wanted & !self.offered, 0, "nothing is taken that is not offered");
        assert!(
            self.max_write.is_multiple_of(PAGE),
            "writes of {} bytes",
            self.max_write
        );
        let max_write = self.max_write.clamp(PAGE, MOST_WRITTEN);
        InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: self.max_readahead.min(init.max_readahead),
            flags: self.wanted as u32,
            max_background: self.max_background.max(1),
            congestion_threshold: (self.max_background / 4 * 3).max(1),
            max_write,
            time_gran: 1,
            max_pages: max_write.div_ceil(PAGE) as u16,
            _map_alignment: 0,
            flags2: (self.wanted >> 32) as u32,
            max_stack_depth: self.max_stack_depth,
            _unused: [0; 6],
        }
    }
}

/// The methods that answer.
macro_rules! requests {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        $(#[$about])*
        #[allow(unused_variables)]
        fn $name(&self, req: &Header, $($argument: $type,)* reply: Reply<$answer>) {
            reply.error(Errno::NOSYS);
        }
    )*};
}

/// A file system. Where nothing else is said, a request is about the inode `req.node`, which for names is the directory.
pub trait FileSystem: Send + Sync + 'static {
    /// Before all requests: takes what it wants of what the kernel offers.
    fn init(&mut self, _connection: &mut Connection) {}

    /// The kernel forgets so many of the answers that have told it of an inode. Nobody waits for an answer.
    fn forget(&self, _node: INodeNo, _lookups: u64) {}

    /// Whoever asked for a request that is still to be answered wants to give up: it is to be answered soon, INTR if nothing was
    /// done. May come while the request's method is about to put its reply away, and after the answer. `unique`: [`Reply::unique`].
    fn interrupt(&self, _unique: u64) {}

    requests! {
        /// The inode under a name.
        lookup(name: &OsStr) -> EntryOut;
        /// Attributes.
        getattr(asked: &GetattrIn) -> AttrOut;
        /// Changes attributes.
        setattr(set: &SetattrIn) -> AttrOut;
        /// Attributes, and the time of birth.
        statx(asked: &StatxIn) -> StatxOut;
        /// A symbolic link's target.
        readlink() -> [u8];
        /// Makes a symbolic link.
        symlink(name: &OsStr, target: &[u8]) -> EntryOut;
        /// Makes a file, a device, a pipe or a socket.
        mknod(asked: &MknodIn, name: &OsStr) -> EntryOut;
        /// Makes a directory.
        mkdir(asked: &MkdirIn, name: &OsStr) -> EntryOut;
        /// Removes a name of something else than a directory.
        unlink(name: &OsStr) -> ();
        /// Removes an empty directory.
        rmdir(name: &OsStr) -> ();
        /// Renames; `flags`: of `renameat2`.
        rename(name: &OsStr, new_parent: INodeNo, new_name: &OsStr, flags: u32) -> ();
        /// Gives another inode a name in this directory.
        link(node: INodeNo, name: &OsStr) -> EntryOut;
        /// Opens a file.
        open(asked: &OpenIn) -> OpenOut;
        /// Makes a file and opens it.
        create(asked: &CreateIn, name: &OsStr) -> CreateOut;
        /// Makes and opens a file without a name.
        tmpfile(asked: &CreateIn) -> CreateOut;
        /// Reads; fewer bytes than asked for are the end of the file.
        read(asked: &ReadIn) -> [u8];
        /// Writes.
        write(asked: &WriteIn, data: &[u8]) -> WriteOut;
        /// Sizes of the file system.
        statfs() -> StatfsOut;
        /// The last reference to an open file has gone. Nobody waits for it.
        release(asked: &ReleaseIn) -> ();
        /// What was written becomes durable.
        fsync(asked: &FsyncIn) -> ();
        /// A descriptor of an open file is closed.
        flush(asked: &FlushIn) -> ();
        /// Sets an extended attribute; `flags`: of `setxattr`.
        setxattr(name: &OsStr, value: &[u8], flags: i32) -> ();
        /// An extended attribute, if there is `room` bytes for it; with room 0 its length ([`GetxattrOut`]).
        getxattr(name: &OsStr, room: u32) -> [u8];
        /// The names of extended attributes, the same way, each with a NUL after it.
        listxattr(room: u32) -> [u8];
        /// Removes an extended attribute.
        removexattr(name: &OsStr) -> ();
        /// Opens a directory.
        opendir(asked: &OpenIn) -> OpenOut;
        /// Entries from an offset on; see [`Listing`](crate::Listing).
        readdir(asked: &ReadIn) -> [u8];
        /// The same, with what [`FileSystem::lookup`] would say of each.
        readdirplus(asked: &ReadIn) -> [u8];
        /// The last reference to an open directory has gone. Nobody waits for it.
        releasedir(asked: &ReleaseIn) -> ();
        /// A directory's names become durable.
        fsyncdir(asked: &FsyncIn) -> ();
        /// The first lock that is in the way of another.
        getlk(asked: &LkIn) -> FileLock;
        /// Locks or unlocks; `wait`: until it can be had.
        setlk(asked: &LkIn, wait: bool) -> ();
        /// Makes room or holes.
        fallocate(asked: &FallocateIn) -> ();
        /// The next data, or the next hole.
        lseek(asked: &LseekIn) -> LseekOut;
        /// Copies from one open file to another.
        copy_file_range(asked: &CopyFileRangeIn) -> CopyFileRangeOut;
    }
}

/// Calls the method that a request is for.
pub(crate) fn serve(filesystem: &impl FileSystem, request: Request<'_>, transport: &Arc<dyn Transport>) {
    let Request { header, operation } = request;
    let req = header;
    fn reply<T: ?Sized>(req: &Header, transport: &Arc<dyn Transport>) -> Reply<T> {
        Reply::new(transport, req.unique)
    }
    /// `call!(method, argument...)`: with the header before and the reply behind.
    macro_rules! call {
        ($method:ident $(, $argument:expr)*) => {
            filesystem.$method(req, $($argument,)* reply(req, transport))
        };
    }
    match operation {
        Operation::Forget(lookups) => filesystem.forget(req.node, lookups),
        Operation::BatchForget(all) => all.iter().for_each(|one| filesystem.forget(one.node, one.lookups)),
        Operation::Interrupt(of) => filesystem.interrupt(of.unique),
        Operation::Destroy => reply::<()>(req, transport).ok(&()),
        Operation::Ioctl => reply::<()>(req, transport).error(Errno::NOTTY),
        Operation::Init(_) | Operation::Unknown => reply::<()>(req, transport).error(Errno::NOSYS),
        Operation::Lookup(name) => call!(lookup, name),
        Operation::GetAttr(asked) => call!(getattr, asked),
        Operation::SetAttr(set) => call!(setattr, set),
        Operation::Statx(asked) => call!(statx, asked),
        Operation::ReadLink => call!(readlink),
        Operation::Symlink(name, target) => call!(symlink, name, target),
        Operation::Mknod(asked, name) => call!(mknod, asked, name),
        Operation::Mkdir(asked, name) => call!(mkdir, asked, name),
        Operation::Unlink(name) => call!(unlink, name),
        Operation::Rmdir(name) => call!(rmdir, name),
        Operation::Rename {
            name,
            new_parent,
            new_name,
            flags,
        } => call!(rename, name, new_parent, new_name, flags),
        Operation::Link(node, name) => call!(link, node, name),
        Operation::Open(asked) => call!(open, asked),
        Operation::Create(asked, name) => call!(create, asked, name),
        Operation::TmpFile(asked) => call!(tmpfile, asked),
        Operation::Read(asked) => call!(read, asked),
        Operation::Write(asked, data) => call!(write, asked, data),
        Operation::Statfs => call!(statfs),
        Operation::Release(asked) => call!(release, asked),
        Operation::Fsync(asked) => call!(fsync, asked),
        Operation::Flush(asked) => call!(flush, asked),
        Operation::SetXattr(name, value, flags) => call!(setxattr, name, value, flags),
        Operation::GetXattr(name, room) => call!(getxattr, name, room),
        Operation::ListXattr(room) => call!(listxattr, room),
        Operation::RemoveXattr(name) => call!(removexattr, name),
        Operation::OpenDir(asked) => call!(opendir, asked),
        Operation::ReadDir(asked) => call!(readdir, asked),
        Operation::ReadDirPlus(asked) => call!(readdirplus, asked),
        Operation::ReleaseDir(asked) => call!(releasedir, asked),
        Operation::FsyncDir(asked) => call!(fsyncdir, asked),
        Operation::GetLock(asked) => call!(getlk, asked),
        Operation::SetLock(asked, wait) => call!(setlk, asked, wait),
        Operation::Fallocate(asked) => call!(fallocate, asked),
        Operation::Lseek(asked) => call!(lseek, asked),
        // COPY_FILE_RANGE's answer has 32 bits for what COPY_FILE_RANGE_64's has 64 for; little-endian both are the same bytes
        // up to 4 GiB.
        Operation::CopyFileRange(asked, true) => call!(copy_file_range, asked),
        Operation::CopyFileRange(asked, false) => {
            let most = asked.len.min(MOST_COPIED);
            call!(copy_file_range, &CopyFileRangeIn { len: most, ..*asked });
        }
    }
}

/// Most bytes that an answer to COPY_FILE_RANGE can say were copied, in whole pages.
const MOST_COPIED: u64 = u32::MAX as u64 & !0xfff;
