//! A mounted client: what it knows between requests, and how a request is carried out.
//!
//! Every request runs on the thread that read it, with that thread's client. Where it has to wait, it says so to `fusedev`, which
//! has another thread read the next request.

use crate::attr::file_attr;
use crate::caller::Caller;
use crate::complaints::Complaints;
use crate::directory::{FETCH, ListError, Listed, OpenDirectory, Taken};
use crate::error::{errno, no_name};
use crate::flags::{Access, access, owner_may_open, without_privileges};
use crate::handles::Handles;
use crate::inodes::{Inodes, ino_of, node_id};
use crate::kernel_cache::{NAME_LASTS, Shared};
use crate::lock_owners::LockOwners;
use crate::lock_waits::LockWaits;
use crate::mappings::{Change, Mappings, Opened, SharedMappings, Wanted};
use crate::moved::Place;
use crate::open_file::OpenHandle;
use crate::{CacheMode, MountOptions};
use parking_lot::RwLockReadGuard;
use polvo_client::{AccessTimeRule, Client, Kept, LocalClient, OpenFile, Since};
use polvo_format::{Attr, FileKind};
use polvo_fusedev::abi::{EntryOut, FileHandle, INodeNo};
use polvo_fusedev::{BackingId, Errno, Listing, Reply, Upcalls, will_wait};
use polvo_proto::{FsError, InodeRef, NewFile, SetAttr};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What nothing is known of by a token the kernel may not keep: other mounts change names and attributes at any time.
pub(crate) const NO_CACHING: Duration = Duration::ZERO;

/// A mounted client.
pub(crate) struct PolvoFilesystem {
    pub(crate) client: Arc<Client>,
    pub(crate) kernel: Shared,
    pub(crate) files: Handles<OpenHandle>,
    pub(crate) directories: Handles<OpenDirectory>,
    pub(crate) complaints: Complaints,
    pub(crate) readdirplus: bool,
    /// Locks are those of the cluster.
    pub(crate) locks: bool,
    /// The kernel enforces access control lists.
    pub(crate) acl: bool,
    /// The kernel keeps where symbolic links lead, which never changes: what has been lost by an asynchronous region, too, is not
    /// followed by another one of its number and generation.
    pub(crate) keeps_links: bool,
    pub(crate) mappings: Mappings,
    pub(crate) lock_owners: Arc<LockOwners>,
    pub(crate) lock_waits: LockWaits,
    /// What the kernel has asked for so far.
    pub(crate) upcalls: Arc<Upcalls>,
    /// Cleared at the end of the session.
    alive: Arc<AtomicBool>,
}

impl Drop for PolvoFilesystem {
    fn drop(&mut self) {
        self.kernel.is_gone();
        self.alive.store(false, Ordering::Release);
    }
}

/// The inode a request names by number, with its generation.
pub(crate) async fn known(inodes: &Inodes, client: &LocalClient, node: INodeNo) -> Result<InodeRef, FsError> {
    if let Some(inode) = inodes.get(node) {
        return Ok(inode);
    }
    // Named before a reply has told of it: the root, or what a file handle names.
    let inode = client
        .resolve(ino_of(node))
        .await
        .map_err(|e| if e == FsError::NotFound { FsError::Stale } else { e })?;
    if node_id(inode) != node {
        return Err(FsError::Stale);
    }
    if node == INodeNo::ROOT {
        inodes.pin_root(inode);
    }
    Ok(inode)
}

/// What the kernel is told of an inode under a name, and for how long it may believe in the name, and in the attributes.
pub(crate) fn entry(attr: &Attr, name_valid: Duration, attr_valid: Duration) -> EntryOut {
    EntryOut::new(file_attr(attr), attr.generation.0.into(), name_valid, attr_valid)
}

/// Which inode attributes are of.
fn inode_of(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}

/// For how long the kernel may believe in a name and in attributes, by the tokens that are kept meanwhile.
pub(crate) fn valid_for(name: &Option<Kept<'_>>, attributes: &Option<Kept<'_>>) -> (Duration, Duration) {
    (
        name.as_ref().map_or(NO_CACHING, |_| NAME_LASTS),
        attributes.as_ref().map_or(NO_CACHING, Kept::lasts),
    )
}

/// An entry of a directory that is listed with its attributes.
pub(crate) struct Shown {
    pub(crate) name: Vec<u8>,
    /// Offset after it.
    pub(crate) next: u64,
    pub(crate) what: ShownAs,
}

/// What it is.
pub(crate) enum ShownAs {
    /// `.` or `..`, of which the kernel takes nothing but the number.
    Dot(INodeNo),
    Entry(Attr),
}

/// What is to be shown, before its attributes are known.
enum Entry {
    Dot(INodeNo),
    Inode(InodeRef),
}

async fn saying_when_it_waits<T>(calls: impl Future<Output = T>) -> T {
    let mut calls = pin!(calls);
    let mut said = false;
    std::future::poll_fn(|context| {
        let polled = calls.as_mut().poll(context);
        if polled.is_pending() && !std::mem::replace(&mut said, true) {
            will_wait();
        }
        polled
    })
    .await
}

impl PolvoFilesystem {
    pub(crate) fn new(
        client: Arc<Client>,
        options: &MountOptions,
        kernel: Shared,
        alive: Arc<AtomicBool>,
    ) -> PolvoFilesystem {
        if options.access_times && !options.read_only {
            client.keep_access_times(AccessTimeRule {
                of_directories: options.directory_access_times,
                strict: options.strict_access_times,
            });
        }
        let lock_owners = Arc::new(LockOwners::default());
        PolvoFilesystem {
            lock_waits: LockWaits::new(&client, &lock_owners),
            lock_owners,
            client,
            kernel,
            files: Handles::new(),
            directories: Handles::new(),
            complaints: Complaints::new(),
            readdirplus: options.readdirplus.unwrap_or(options.cache.keeps()),
            locks: options.locks,
            acl: options.acl,
            keeps_links: options.cache.keeps() && !options.strict_access_times,
            mappings: Mappings::new(
                options.shared_mappings,
                options.cache == CacheMode::Pages && !options.strict_access_times,
            ),
            upcalls: Arc::default(),
            alive,
        }
    }

    /// Runs client calls to their end on this thread. Where they have to wait, the kernel's next request is for another one.
    pub(crate) fn run<T, F: Future<Output = T>>(&self, calls: impl FnOnce(Rc<LocalClient>) -> F) -> T {
        self.client.run(|client| saying_when_it_waits(calls(client)))
    }

    /// Runs client calls about an inode to their end on this thread.
    pub(crate) fn with_inode<T, F>(
        &self,
        operation: &'static str,
        ino: INodeNo,
        calls: impl FnOnce(Rc<LocalClient>, InodeRef) -> F,
    ) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        let result = self.run(|client| async move {
            let inode = known(&self.kernel.inodes, &client, ino).await?;
            calls(client, inode).await
        });
        result.inspect_err(|error| self.complaints.failed(operation, ino, error))
    }

    /// As [`PolvoFilesystem::with_inode`], of calls that change the inode.
    pub(crate) fn changing_inode<T, F>(
        &self,
        operation: &'static str,
        ino: INodeNo,
        calls: impl FnOnce(Rc<LocalClient>, InodeRef) -> F,
    ) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        let result = self.with_inode(operation, ino, calls);
        self.changed_here(ino);
        result
    }

    /// A request has changed an inode that the kernel keeps attributes of.
    pub(crate) fn changed_here(&self, ino: INodeNo) {
        if let Some(inode) = self.kernel.inodes.get(ino) {
            self.kernel.changed_here(inode);
        }
    }

    /// Runs client calls about an open file to their end on this thread.
    pub(crate) fn with_file<T, F>(
        &self,
        operation: &'static str,
        handle: FileHandle,
        calls: impl FnOnce(Rc<LocalClient>, Arc<OpenFile>) -> F,
    ) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        self.with_handle(operation, handle, |client, handle| calls(client, handle.file.clone()))
    }

    /// The same, with what the kernel's handle says beside it.
    pub(crate) fn with_handle<T, F>(
        &self,
        operation: &'static str,
        handle: FileHandle,
        calls: impl FnOnce(Rc<LocalClient>, Arc<OpenHandle>) -> F,
    ) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        let handle = self.files.get(handle)?;
        let node = node_id(handle.file.inode());
        self.run(|client| calls(client, handle)).map_err(|error| {
            self.complaints.failed(operation, node, &error);
            errno(&error)
        })
    }

    /// As [`PolvoFilesystem::with_file`], of calls that change the file's bytes.
    pub(crate) fn writing_file<T, F>(
        &self,
        operation: &'static str,
        handle: FileHandle,
        calls: impl FnOnce(Rc<LocalClient>, Arc<OpenFile>) -> F,
    ) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        let open = self.files.get(handle)?;
        let _writing = self.begin_writing(&open);
        self.with_file(operation, handle, calls)
    }

    /// Tells the kernel of an inode under a directory that it has just got.
    pub(crate) fn reply_entry(
        &self,
        parent: INodeNo,
        name: &[u8],
        attr: Result<Attr, FsError>,
        reply: Reply<EntryOut>,
    ) {
        match attr {
            Ok(attr) => {
                self.kernel.inodes.remember(&attr, parent, name);
                reply.ok(&entry(&attr, NO_CACHING, NO_CACHING));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Tells the kernel what a lookup has found; it may keep what is known by tokens.
    pub(crate) fn reply_found(
        &self,
        parent: INodeNo,
        name: &[u8],
        found: Result<Attr, FsError>,
        reply: Reply<EntryOut>,
    ) {
        let attr = match found {
            Ok(attr) => attr,
            Err(FsError::NotFound) => {
                return match self.kept_name(parent, name, None) {
                    Some(_kept) => reply.ok(&EntryOut::absent(NAME_LASTS)),
                    None => reply.error(Errno::NOENT),
                };
            }
            Err(error) => return reply.error(errno(&error)),
        };
        let spelled = if matches!(name, b"." | b"..") { b"" } else { name };
        if let Some(before) = self.kernel.inodes.remember(&attr, parent, spelled) {
            self.has_moved(before, parent, name);
        }
        let (name, attributes) = self.kept_entry(parent, name, &attr);
        let (name_valid, attr_valid) = valid_for(&name, &attributes);
        reply.ok(&entry(&attr, name_valid, attr_valid));
    }

    /// The kernel knows a directory by a name by which it is not there any more. (In the same directory it moves it without any lock.)
    fn has_moved(&self, from: Place, parent: INodeNo, name: &[u8]) {
        if from.parent == parent {
            return;
        }
        let is_free = self.run(async |client| {
            let dir = self.kernel.inodes.get(from.parent)?;
            Some(client.lookup(dir, &from.name).await == Err(FsError::NotFound))
        });
        if is_free == Some(true) {
            let to = Place {
                parent,
                name: name.into(),
            };
            self.kernel.has_moved(from, to);
            self.kernel.moved.wait(parent, name);
        }
    }

    /// Keeps the token by which attributes are true, if there is one, and the kernel's pages are as of them; the kernel may be told
    /// so meanwhile.
    pub(crate) fn kept_attr(&self, attr: &Attr) -> Option<Kept<'_>> {
        let inode = inode_of(attr);
        // who has lost a lock is to be told when he reads
        if !self.kernel.is_there() || self.mappings.is_changed_beside_pages(inode) || !self.client.holds_all_locks() {
            return None;
        }
        let kept = self.client.keep_attr(attr)?;
        if attr.kind == FileKind::File {
            let pages = self.kernel.pages_as_of(inode);
            if pages.is_some() && pages != kept.tail() {
                return None;
            }
        }
        self.kernel.tells_attributes(attr.ino);
        Some(kept)
    }

    /// A change of a file's bytes begins, other than by way of an open file.
    pub(crate) fn begin_change(&self, inode: InodeRef) -> Change<'_> {
        let change = self.mappings.change(inode);
        self.no_attributes_last(inode);
        change
    }

    /// The same, by way of an open file; that is kept while it is changed.
    pub(crate) fn begin_writing<'h>(&self, handle: &'h OpenHandle) -> RwLockReadGuard<'h, bool> {
        let inode = handle.file.inode();
        handle.writes(|| {
            self.mappings.begin_writing(inode);
            self.no_attributes_last(inode);
        })
    }

    /// A file begins to be changed; if it is read by way of pages, the kernel asks before it reads from now on.
    fn no_attributes_last(&self, inode: InodeRef) {
        if self.mappings.is_changed_beside_pages(inode) {
            self.kernel.changes_here(inode);
        }
    }

    /// A program has closed an open file, or all have.
    pub(crate) fn end_writing(&self, handle: &OpenHandle) {
        if handle.ends_writing() {
            self.mappings.end_writing(handle.file.inode());
        }
    }

    /// Keeps the tokens by which a name stands for an inode, and by which its attributes are true, as far as there are any.
    pub(crate) fn kept_entry(&self, dir: INodeNo, name: &[u8], attr: &Attr) -> (Option<Kept<'_>>, Option<Kept<'_>>) {
        (self.kept_name(dir, name, Some(inode_of(attr))), self.kept_attr(attr))
    }

    /// The same for a name of a directory, which the kernel is going to be told of now.
    fn kept_name(&self, dir: INodeNo, name: &[u8], is: Option<InodeRef>) -> Option<Kept<'_>> {
        if !self.kernel.is_there() || matches!(name, b"." | b"..") {
            return None;
        }
        let dir = self.kernel.inodes.get(dir)?;
        if self.kernel.do_names_move(dir.ino) {
            return None;
        }
        let kept = self.client.keep_name(dir, name, is)?;
        if kept.lasts() < NAME_LASTS {
            return None;
        }
        self.kernel.tells_name(dir.ino);
        Some(kept)
    }

    /// A rename is about to be done: a token is taken of the directory to which the kernel takes a name along in which it believes. For
    /// those to come it believes in none.
    pub(crate) async fn name_will_move(&self, client: &LocalClient, from: InodeRef, to: InodeRef) -> Option<Since> {
        if from != to {
            self.kernel.names_move(from.ino);
            let left = self.kernel.names_last(from.ino);
            if !left.is_zero() && self.client.token_of(to).is_none() {
                // without one the rename waits for no longer than this
                drop(tokio::time::timeout(left, client.take_tokens(&[to])).await);
            }
        }
        self.client.token_of(to)
    }

    /// A rename is done: what the kernel believes of the name, and for how long, it takes along to the other directory. That is
    /// not given back before, if its token was there all the time; else nobody would be waited for, and that has to be over now.
    pub(crate) async fn name_moves(&self, from: InodeRef, to: InodeRef, since: Option<Since>) {
        let left = self.kernel.names_last(from.ino);
        if from == to || left.is_zero() {
            return;
        }
        let kept = since.and_then(|since| self.client.keep_since(to, since));
        match kept.filter(|kept| kept.lasts() >= left) {
            Some(_kept) => self.kernel.moves_names(from.ino, to.ino),
            None => tokio::time::sleep(left).await,
        }
    }

    /// Makes an inode and tells the kernel of it.
    pub(crate) fn make(
        &self,
        operation: &'static str,
        parent: INodeNo,
        name: &OsStr,
        file: NewFile,
        reply: Reply<EntryOut>,
    ) {
        let made = self.changing_inode(operation, parent, |client, dir| async move {
            client.create(dir, name.as_bytes(), file).await.map_err(no_name)
        });
        self.reply_entry(parent, name.as_bytes(), made, reply);
    }

    /// Takes privilege bits from a file whose contents this caller is about to change.
    /// (The kernel takes what the caller does for a change of size and times: it is told to ask for the rest, too.)
    pub(crate) async fn take_privileges(
        &self,
        client: &LocalClient,
        inode: InodeRef,
        caller: Caller,
    ) -> Result<(), FsError> {
        let attr = client.get_attr(inode).await?;
        let mode = without_privileges(&attr, || caller.keeps_set_gid(attr.gid));
        if mode.is_some() {
            let set = SetAttr {
                mode,
                ..SetAttr::default()
            };
            client.set_attr(inode, set).await?;
            self.kernel.forget_attributes(inode);
        }
        Ok(())
    }

    /// Opens a file. Who is going to write says so to the cluster, and who could map the file shared and writable asks for the right
    /// to do so. With `O_TRUNC` it is the kernel that truncates it, by `setattr`: only then may it still find that it must not, since
    /// a program is run from the file.
    pub(crate) async fn open_file(
        &self,
        client: &LocalClient,
        inode: InodeRef,
        flags: i32,
    ) -> Result<Arc<OpenFile>, FsError> {
        let one = self.mappings.allowed() == SharedMappings::One;
        match access(flags) {
            Access::Read => client.open(inode).await,
            Access::Write => client.open_to_write(inode, false).await,
            Access::ReadWrite => client.open_to_write(inode, one).await,
        }
    }

    /// Whether a file that was opened to be read may be read by way of pages.
    fn is_worth_pages(&self, file: &OpenFile) -> bool {
        let may_be = self.mappings.cache_pages() && self.kernel.is_there() && file.kind() == FileKind::File;
        let opened_at = file.opened_at().filter(|_| may_be);
        opened_at.is_some_and(|tail| self.kernel.begins_pages(file.inode(), tail))
    }

    /// How the kernel opens a file that was opened with those flags: whether programs may map it. EINVAL where they may not,
    /// and the flags keep that from being arranged. May wait a moment.
    pub(crate) fn begin_open(
        &self,
        file: &OpenFile,
        flags: i32,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Result<Opened, Errno> {
        let only_read_or_written = access(flags) != Access::ReadWrite;
        let may_be_mapped = only_read_or_written || file.may_map();
        let may_be_mapped = may_be_mapped || self.mappings.backing(register).is_none();
        let direct = flags & libc::O_DIRECT != 0;
        let reads = access(flags) == Access::Read;
        let wanted = Wanted {
            may_be_mapped,
            direct,
            cached: !direct && reads && self.is_worth_pages(file),
        };
        match self.mappings.open(file.inode(), wanted) {
            Opened::NotDirectly => Err(Errno::INVAL),
            opened => Ok(opened),
        }
    }

    /// Creates and opens a file, or opens the one that another mount has made under this name since the kernel looked.
    pub(crate) async fn create_or_open(
        &self,
        client: &LocalClient,
        dir: InodeRef,
        name: &[u8],
        file: NewFile,
        flags: i32,
        caller: Caller,
    ) -> Result<(Attr, Arc<OpenFile>), FsError> {
        match client.create_open(dir, name, file).await {
            Err(FsError::Exists) if flags & libc::O_EXCL == 0 => {}
            result => return result.map_err(no_name),
        }
        // The kernel has checked nothing of this file. Where the answer is not plain, ESTALE makes it look again
        // and open, and truncate, the file by itself.
        if flags & libc::O_TRUNC != 0 {
            return Err(FsError::Stale);
        }
        let attr = client.lookup(dir, name).await.map_err(|_| FsError::Stale)?;
        if !owner_may_open(&attr, caller.uid, flags) {
            return Err(FsError::Stale);
        }
        let inode = InodeRef {
            ino: attr.ino,
            generation: attr.generation,
        };
        let open = self.open_file(client, inode, flags).await;
        let open = open.map_err(|_| FsError::Stale)?;
        Ok((client.get_attr(inode).await?, open))
    }

    /// What of an open directory fits so many bytes together with the attributes, from an offset on. Tokens are taken of all of it:
    /// who lists so looks at each entry next.
    pub(crate) fn list_with_attributes(
        &self,
        handle: FileHandle,
        mut offset: u64,
        size: u32,
    ) -> Result<(InodeRef, Vec<Shown>), Errno> {
        let dir = self.directories.get(handle)?.inode;
        // before its entries come: what they say is known by it from then on
        self.run(|client| async move { client.take_tokens(&[dir]).await });
        loop {
            let mut room = size as usize;
            let mut entries: Vec<(Entry, Vec<u8>, u64)> = Vec::new();
            self.list(handle, offset, |listed, next| {
                let (entry, name) = match listed {
                    Listed::Dot(node, name) => (Entry::Dot(node), name.as_bytes()),
                    Listed::Entry(e) => (Entry::Inode(e.target), &e.name[..]),
                };
                let Some(left) = room.checked_sub(Listing::len_plus(name.len())) else {
                    return Ok(Taken::Full);
                };
                room = left;
                entries.push((entry, name.to_vec(), next));
                Ok(Taken::Yes)
            })?;
            let Some((_, _, last)) = entries.last() else {
                return Ok((dir, Vec::new()));
            };
            offset = *last;
            let shown = self.run(|client| async move { Self::attributes_of(&client, entries).await });
            match shown {
                // all were deleted since they were listed
                Ok(shown) if shown.is_empty() => {}
                Ok(shown) => return Ok((dir, shown)),
                Err(error) => {
                    self.complaints.failed("readdirplus", node_id(dir), &error);
                    return Err(errno(&error));
                }
            }
        }
    }

    async fn attributes_of(client: &LocalClient, entries: Vec<(Entry, Vec<u8>, u64)>) -> Result<Vec<Shown>, FsError> {
        let inode_of = |entry: &Entry| match entry {
            Entry::Dot(_) => None,
            Entry::Inode(inode) => Some(*inode),
        };
        let inodes: Vec<InodeRef> = entries.iter().filter_map(|(entry, ..)| inode_of(entry)).collect();
        client.take_tokens(&inodes).await;
        let mut shown = Vec::with_capacity(entries.len());
        for (entry, name, next) in entries {
            let what = match entry {
                Entry::Dot(node) => Ok(ShownAs::Dot(node)),
                Entry::Inode(inode) => client.get_attr(inode).await.map(ShownAs::Entry),
            };
            match what {
                Ok(what) => shown.push(Shown { name, next, what }),
                // deleted since it was listed
                Err(FsError::NotFound | FsError::Stale) => {}
                // the kernel comes back for the rest
                Err(_) if !shown.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(shown)
    }

    /// Lists an open directory into the kernel's buffer.
    pub(crate) fn list(
        &self,
        handle: FileHandle,
        offset: u64,
        take: impl FnMut(Listed<'_>, u64) -> Result<Taken, FsError>,
    ) -> Result<(), Errno> {
        let directory = self.directories.get(handle)?;
        let inode = directory.inode;
        let fetch = |after| self.run(|client| async move { client.read_dir(inode, after, FETCH).await });
        directory.list(offset, fetch, take).map_err(|error| {
            if let ListError::File(error) = &error {
                self.complaints.failed("readdir", node_id(inode), error);
            }
            error.errno()
        })
    }
}
