//! One method a request of the kernel: a client call and a reply.

use crate::attr::{file_attr, kind_of_mode, statx, time_change};
use crate::caller::Caller;
use crate::directory::{Listed, OpenDirectory, Taken};
use crate::error::{errno, errno_of_inode, no_name};
use crate::filesystem::{NO_CACHING, PolvoFilesystem, Shown, ShownAs, entry, known, valid_for};
use crate::flags::{SGID, fallocate_mode, rename_mode, without_privileges};
use crate::inodes::{node_id, node_id_of};
use crate::mappings::{Opened, SharedMappings};
use crate::open_file::OpenHandle;
use crate::xattr;
use polvo_client::{Kept, OpenFile, ShownFile, Whence};
use polvo_format::{Attr, FileKind, NAME_MAX, PAGE};
use polvo_fusedev::abi::*;
use polvo_fusedev::{BackingId, Connection, Errno, FileSystem, Listing, Reply};
use polvo_proto::{FsError, InodeRef, NewFile, RegionInfo, RenameMode, Room, SetAttr, Usage, WriteAt, XattrMode};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// Largest write the kernel sends at once, in bytes; what it allows without a changed `fs.fuse.max_pages_limit`.
const MAX_WRITE: u32 = 1 << 20;
/// Requests the kernel may send without waiting for an answer (readahead of mappings, asynchronous I/O).
const MAX_BACKGROUND: u16 = 64;
/// Most bytes copied by one `copy_file_range`; the caller comes back for the rest.
const MAX_COPY: u64 = 1 << 30;

/// How regular files are opened, but for those that are only read: past the page cache, writers of one file side by side.
const OPEN_FLAGS: u32 = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;

impl PolvoFilesystem {
    /// Makes ready to decide file by file which ones may be mapped shared.
    fn prepare_mappings(&mut self, connection: &mut Connection) -> Result<(), &'static str> {
        self.mappings.prepare()?;
        let wanted = init::PASSTHROUGH | init::DIRECT_IO_ALLOW_MMAP;
        if connection.offers(wanted) {
            connection.want(wanted);
            connection.max_stack_depth = 1;
            Ok(())
        } else {
            Err("this kernel (older than 6.9, or built without FUSE_PASSTHROUGH) cannot refuse those of single files")
        }
    }

    fn attributes(&self, node: INodeNo) -> Result<Attr, Errno> {
        let got = self.with_inode(
            "getattr",
            node,
            |client, inode| async move { client.get_attr(inode).await },
        );
        got.or_else(|error| match self.kernel.inodes.removed_directory(node) {
            Some(attr) if error == FsError::Stale => Ok(attr),
            _ => Err(errno_of_inode(&error)),
        })
    }

    /// Attributes of a file that is going to be read by way of pages, and for how long the kernel may believe in them. Nothing else
    /// comes here of that read.
    fn before_read(&self, node: INodeNo, handle: FileHandle) -> Result<AttrOut, Errno> {
        if self.has_lost_locks(handle, None) {
            return Err(Errno::IO);
        }
        let (mut attr, tail) = self.with_file("getattr", handle, |client, file| async move {
            client.get_attr_as_of(file.inode()).await
        })?;
        let inode = self.kernel.inodes.get(node).ok_or(Errno::STALE)?;
        if let Some(other_time) = self.kernel.before_read(inode, tail)? {
            attr.mtime_ns = other_time;
            return Ok(AttrOut::new(file_attr(&attr), NO_CACHING));
        }
        let kept = self.kept_attr(&attr);
        let lasts = kept.as_ref().map_or(NO_CACHING, Kept::lasts);
        Ok(AttrOut::new(file_attr(&attr), lasts))
    }

    /// Tells the kernel of a file that was made for it, and is open.
    fn reply_made(
        &self,
        parent: INodeNo,
        made: Result<(Attr, Arc<OpenFile>), FsError>,
        flags: i32,
        reply: Reply<CreateOut>,
    ) {
        let (attr, file) = match made {
            Ok(made) => made,
            Err(error) => return reply.error(errno(&error)),
        };
        let (inode, opened) = match self.begin_open(&file, flags, |backing| reply.register(backing)) {
            Ok(opened) => (file.inode(), opened),
            Err(errno) => return reply.error(errno),
        };
        self.kernel.inodes.remember(&attr, parent, b""); // a file
        let handle = self.files.insert(OpenHandle::new(file, flags, opened));
        reply.ok(&CreateOut {
            entry: entry(&attr, NO_CACHING, NO_CACHING),
            open: self.open_out(handle, opened),
        });
        self.mappings.answered(inode, opened);
    }

    /// How the kernel opens a file: one that may not be mapped for passthrough to something that cannot be.
    fn open_out(&self, handle: FileHandle, opened: Opened) -> OpenOut {
        let backing: Option<&BackingId> = match opened {
            Opened::Unmappable => self.mappings.backing(|_| Err(io::ErrorKind::NotFound.into())),
            Opened::Cached => return OpenOut::new(handle, fopen::KEEP_CACHE),
            Opened::Mappable | Opened::WithoutRight | Opened::NotDirectly => None,
        };
        let plain = OpenOut::new(handle, OPEN_FLAGS);
        match backing {
            Some(backing) => OpenOut {
                open_flags: OPEN_FLAGS | fopen::PASSTHROUGH,
                backing_id: backing.id(),
                ..plain
            },
            None => plain,
        }
    }
}

/// Reads from here on are answered from where the bytes lie, if they do in this process: what that takes more than a copy of
/// fewer bytes is two times the region's lock, and some allocations.
const SHOWN_MIN: usize = 64 << 10;

/// What a read has come to.
enum Read<'b> {
    /// Bytes that lie in the pool.
    Shown(ShownFile),
    Copied(&'b [u8]),
}

thread_local! {
    /// Where this thread reads file data and lists directories into before it goes to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers with bytes.
fn reply_bytes(result: Result<impl AsRef<[u8]>, Errno>, reply: Reply<[u8]>) {
    match result {
        Ok(bytes) => reply.ok(bytes.as_ref()),
        Err(errno) => reply.error(errno),
    }
}

/// Answers `getxattr` and `listxattr`: the length when the caller asked with no room, else the bytes if they fit.
fn reply_xattr(result: Result<Vec<u8>, Errno>, room: u32, reply: Reply<[u8]>) {
    match result {
        Ok(bytes) if room == 0 => reply.ok(GetxattrOut::new(bytes.len() as u32).as_bytes()),
        Ok(bytes) if bytes.len() > room as usize => reply.error(Errno::RANGE),
        result => reply_bytes(result, reply),
    }
}

impl FileSystem for PolvoFilesystem {
    fn init(&mut self, connection: &mut Connection) {
        // not ATOMIC_O_TRUNC: a program's file would be empty before the kernel finds that it must not be written to
        let mut wanted = init::AUTO_INVAL_DATA | init::PARALLEL_DIROPS | init::EXPORT_SUPPORT | init::DONT_MASK;
        if self.mappings.allowed() == SharedMappings::One
            && let Err(why) = self.prepare_mappings(connection)
        {
            tracing::warn!("shared memory mappings are refused on this mount (`mmap=private`): {why}");
            self.mappings.refuse_all();
        }
        if self.mappings.allowed() != SharedMappings::None {
            wanted |= init::DIRECT_IO_ALLOW_MMAP;
        }
        if self.locks {
            wanted |= init::POSIX_LOCKS | init::FLOCK_LOCKS;
        }
        if self.acl {
            wanted |= init::POSIX_ACL;
        }
        if self.keeps_links {
            wanted |= init::CACHE_SYMLINKS;
        }
        if self.readdirplus {
            wanted |= init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;
        }
        if connection.want(wanted) & init::DIRECT_IO_ALLOW_MMAP != 0 {
            tracing::warn!("this kernel (older than 6.6) refuses shared memory mappings of files on this mount");
        }
        self.upcalls = connection.upcalls.clone();
        connection.max_write = MAX_WRITE;
        connection.max_readahead = MAX_WRITE;
        connection.max_background = MAX_BACKGROUND;
    }

    fn lookup(&self, req: &Header, name: &OsStr, reply: Reply<EntryOut>) {
        let name = name.as_bytes();
        self.kernel.moved.wait(req.node, name);
        let found = self.with_inode("lookup", req.node, |client, dir| async move {
            let attr = match name {
                b"." | b".." => client.lookup(dir, name).await?,
                name => client.lookup(dir, name).await.map_err(no_name)?,
            };
            // how the kernel finds what a file handle names: by number, then from a directory upwards
            let parent = match (name, attr.kind) {
                (b"." | b"..", FileKind::Directory) => {
                    let found = InodeRef {
                        ino: attr.ino,
                        generation: attr.generation,
                    };
                    node_id_of(&client.lookup(found, b"..").await?)
                }
                _ => req.node,
            };
            Ok((attr, parent))
        });
        match found {
            Ok((attr, parent)) => self.reply_found(parent, name, Ok(attr), reply),
            Err(error) => self.reply_found(req.node, name, Err(error), reply),
        }
    }

    fn forget(&self, node: INodeNo, lookups: u64) {
        self.kernel.inodes.forget(node, lookups);
    }

    fn interrupt(&self, unique: u64) {
        self.lock_waits.interrupt(unique);
    }

    fn getattr(&self, req: &Header, asked: &GetattrIn, reply: Reply<AttrOut>) {
        let cached = |handle: &FileHandle| self.files.get(*handle).is_ok_and(|open| open.opened == Opened::Cached);
        if let Some(handle) = asked.handle().filter(cached) {
            return reply.give(self.before_read(req.node, handle));
        }
        let attr = match self.attributes(req.node) {
            Ok(attr) => attr,
            Err(errno) => return reply.error(errno),
        };
        let kept = self.kept_attr(&attr);
        reply.ok(&AttrOut::new(
            file_attr(&attr),
            kept.as_ref().map_or(NO_CACHING, Kept::lasts),
        ));
    }

    /// The kernel asks so where a program wants to know the time of birth.
    fn statx(&self, req: &Header, _asked: &StatxIn, reply: Reply<StatxOut>) {
        reply.give(self.attributes(req.node).map(|attr| statx(&attr)));
    }

    fn setattr(&self, req: &Header, asked: &SetattrIn, reply: Reply<AttrOut>) {
        let mut set = SetAttr {
            mode: asked.mode().map(|mode| mode & 0o7777),
            uid: asked.uid(),
            gid: asked.gid(),
            size: asked.size(),
            atime: asked.atime().map(time_change),
            mtime: asked.mtime().map(time_change),
        };
        let caller = Caller::from(req);
        // the kernel's part of this goes by the execute bits alone
        let takes_privileges = caller.uid != 0 && (set.size.is_some() || set.uid.is_some() || set.gid.is_some());
        let done = self.with_inode("setattr", req.node, |client, inode| async move {
            if takes_privileges {
                let mut attr = client.get_attr(inode).await?;
                attr.mode = set.mode.unwrap_or(attr.mode);
                set.mode = without_privileges(&attr, || caller.keeps_set_gid(attr.gid)).or(set.mode);
            }
            let _change = set.size.map(|_| self.begin_change(inode));
            client.set_attr(inode, set).await
        });
        let done = done.map(|attr| AttrOut::new(file_attr(&attr), NO_CACHING));
        reply.give(done.map_err(|error| errno_of_inode(&error)));
    }

    fn readlink(&self, req: &Header, reply: Reply<[u8]>) {
        let target = self.with_inode("readlink", req.node, |client, inode| async move {
            client.read_link(inode).await
        });
        reply_bytes(target.map_err(|error| errno_of_inode(&error)), reply);
    }

    fn mknod(&self, req: &Header, asked: &MknodIn, name: &OsStr, reply: Reply<EntryOut>) {
        match kind_of_mode(asked.mode) {
            Some(FileKind::Directory | FileKind::Symlink) | None => reply.error(Errno::INVAL),
            Some(kind) => {
                let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
                let mut file = new_file(req, kind, asked.mode, asked.umask);
                file.rdev = if device { asked.rdev.into() } else { 0 };
                self.make("mknod", req.node, name, file, reply);
            }
        }
    }

    fn mkdir(&self, req: &Header, asked: &MkdirIn, name: &OsStr, reply: Reply<EntryOut>) {
        let file = new_file(req, FileKind::Directory, asked.mode, asked.umask);
        self.make("mkdir", req.node, name, file, reply);
    }

    fn unlink(&self, req: &Header, name: &OsStr, reply: Reply<()>) {
        let done = self.changing_inode("unlink", req.node, |client, dir| async move {
            client.unlink(dir, name.as_bytes()).await.map_err(no_name)
        });
        reply.give(done.map_err(|error| errno(&error)));
    }

    fn rmdir(&self, req: &Header, name: &OsStr, reply: Reply<()>) {
        let done = self.changing_inode("rmdir", req.node, |client, dir| async move {
            client.rmdir(dir, name.as_bytes()).await.map_err(no_name)
        });
        reply.give(done.map_err(|error| errno(&error)));
    }

    fn symlink(&self, req: &Header, name: &OsStr, target: &[u8], reply: Reply<EntryOut>) {
        let mut file = new_file(req, FileKind::Symlink, 0o777, 0);
        file.target = target.to_vec();
        self.make("symlink", req.node, name, file, reply);
    }

    fn rename(&self, req: &Header, name: &OsStr, new_parent: INodeNo, new_name: &OsStr, flags: u32, reply: Reply<()>) {
        let Some(mode) = rename_mode(flags, (req.uid, req.gid)) else {
            return reply.error(Errno::INVAL);
        };
        let (old, new) = (name.as_bytes(), new_name.as_bytes());
        let done = self.changing_inode("rename", req.node, |client, old_dir| async move {
            let new_dir = known(&self.kernel.inodes, &client, new_parent).await?;
            let new_since = self.name_will_move(&client, old_dir, new_dir).await;
            let old_since = match mode {
                RenameMode::Exchange => self.name_will_move(&client, new_dir, old_dir).await,
                _ => None,
            };
            client.rename(old_dir, old, new_dir, new, mode).await.map_err(no_name)?;
            self.name_moves(old_dir, new_dir, new_since).await;
            if mode == RenameMode::Exchange {
                self.name_moves(new_dir, old_dir, old_since).await;
            }
            Ok(())
        });
        if done.is_ok() {
            let exchanged = mode == RenameMode::Exchange;
            self.kernel
                .inodes
                .renamed((req.node, old), (new_parent, new), exchanged);
        }
        self.changed_here(new_parent);
        reply.give(done.map_err(|error| errno(&error)));
    }

    fn link(&self, req: &Header, node: INodeNo, name: &OsStr, reply: Reply<EntryOut>) {
        let linked = self.with_inode("link", node, |client, inode| async move {
            let dir = known(&self.kernel.inodes, &client, req.node).await?;
            match client.link(inode, dir, name.as_bytes()).await {
                // what is gone, the inode or the directory?
                Err(FsError::Stale) if client.get_attr(inode).await.is_ok() => Err(FsError::NotFound),
                Err(FsError::NotFound) => Err(FsError::Stale),
                linked => linked,
            }
        });
        self.changed_here(req.node);
        self.reply_entry(req.node, name.as_bytes(), linked, reply);
    }

    fn open(&self, req: &Header, asked: &OpenIn, reply: Reply<OpenOut>) {
        let flags = asked.flags;
        let file = self.with_inode("open", req.node, |client, inode| async move {
            self.open_file(&client, inode, flags).await
        });
        let file = match file {
            Ok(file) => file,
            Err(error) => return reply.error(errno_of_inode(&error)),
        };
        let (inode, opened) = match self.begin_open(&file, flags, |backing| reply.register(backing)) {
            Ok(opened) => (file.inode(), opened),
            Err(errno) => return reply.error(errno),
        };
        let handle = self.files.insert(OpenHandle::new(file, flags, opened));
        reply.ok(&self.open_out(handle, opened));
        self.mappings.answered(inode, opened);
    }

    fn create(&self, req: &Header, asked: &CreateIn, name: &OsStr, reply: Reply<CreateOut>) {
        let file = new_file(req, FileKind::File, asked.mode, asked.umask);
        let (name, flags, caller) = (name.as_bytes(), asked.flags, Caller::from(req));
        let made = self.changing_inode("create", req.node, |client, dir| async move {
            self.create_or_open(&client, dir, name, file, flags, caller).await
        });
        self.reply_made(req.node, made, flags, reply);
    }

    fn tmpfile(&self, req: &Header, asked: &CreateIn, reply: Reply<CreateOut>) {
        let file = new_file(req, FileKind::File, asked.mode, asked.umask);
        let made = self.with_inode("tmpfile", req.node, |client, dir| async move {
            client.create_unnamed(dir, file).await
        });
        self.reply_made(req.node, made, asked.flags, reply);
    }

    fn read(&self, _req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        let size = asked.size as usize;
        BUFFER.with_borrow_mut(|buffer| {
            let read = self.with_handle("read", asked.handle, |client, handle| async move {
                // a program's read says whose it is; a page that a mapping lacks is nobody's
                if handle.opened == Opened::WithoutRight && asked.owner().is_none() {
                    return Err(FsError::Access);
                }
                let shown = match size >= SHOWN_MIN {
                    true => client.show(&handle.file, asked.offset, size).await?,
                    false => None,
                };
                let read = match shown {
                    Some(shown) => Read::Shown(shown),
                    None => {
                        if buffer.len() < size {
                            buffer.resize(size, 0);
                        }
                        let into = &mut buffer[..size];
                        let read = client.read(&handle.file, asked.offset, into).await?;
                        Read::Copied(&into[..read])
                    }
                };
                if !handle.leaves_access_time {
                    client.accessed(&handle.file);
                }
                Ok(read)
            });
            match read {
                Ok(_) if self.has_lost_locks(asked.handle, asked.owner()) => reply.error(Errno::IO),
                Ok(Read::Copied(bytes)) => reply.ok(bytes),
                Ok(Read::Shown(shown)) => reply.ok_parts(&shown.parts()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(&self, req: &Header, asked: &WriteIn, data: &[u8], reply: Reply<WriteOut>) {
        if self.has_lost_locks(asked.handle, asked.owner()) {
            return reply.error(Errno::IO);
        }
        let of_mapping = asked.has(write_flags::CACHE);
        // Pages of a mapping are written where they belong, however the file was opened.
        let at = match asked.flags & libc::O_APPEND != 0 && !of_mapping {
            true => WriteAt::End,
            false => WriteAt::Offset(asked.offset),
        };
        let caller = Caller::from(req);
        let one = self.mappings.allowed() == SharedMappings::One;
        let written = self.writing_file("write", asked.handle, |client, file| async move {
            if asked.has(write_flags::KILL_SUIDGID) {
                self.take_privileges(&client, file.inode(), caller).await?;
            }
            if one && of_mapping {
                return client.write_pages(&file, asked.offset, data).await;
            }
            client.write_at(&file, at, data).await.map(|(_, written)| written)
        });
        match written {
            Err(errno) if of_mapping => {
                // the kernel takes the page for written
                self.kernel.has_refused(req.node);
                reply.error(errno);
            }
            // they were lost on the way: the bytes may be there, but were not written under the lock
            Ok(_) if self.has_lost_locks(asked.handle, asked.owner()) => reply.error(Errno::IO),
            written => reply.give(written.map(|bytes| WriteOut::new(bytes as u32))),
        }
    }

    /// Nothing is ever kept back, so all that a close does is letting go of the process's locks. Without locks, ENOSYS
    /// keeps the kernel from asking again.
    fn flush(&self, _req: &Header, asked: &FlushIn, reply: Reply<()>) {
        if !self.locks {
            return reply.error(Errno::NOSYS);
        }
        if let Ok(handle) = self.files.get(asked.handle) {
            self.end_writing(&handle);
        }
        reply.give(self.close_locks(asked.handle, asked.lock_owner));
    }

    fn release(&self, req: &Header, asked: &ReleaseIn, reply: Reply<()>) {
        let ended = self.files.get(asked.handle).and_then(|handle| {
            self.end_locks(asked.handle, &handle);
            self.end_writing(&handle);
            self.mappings.closed(handle.file.inode(), handle.opened);
            if self.locks && handle.was_refused() {
                let why = "it is mapped shared on this mount, and another client has the right to map it";
                self.complaints.failed("open", req.node, &FsError::Io(why.into()));
            }
            self.files.remove(asked.handle)
        });
        reply.give(ended.map(drop));
    }

    fn getlk(&self, _req: &Header, asked: &LkIn, reply: Reply<FileLock>) {
        let unlocked = FileLock {
            start: 0,
            end: 0,
            kind: libc::F_UNLCK as u32,
            pid: 0,
        };
        let found = self.test_lock(asked.handle, asked.owner, &asked.lock);
        reply.give(found.map(|found| found.unwrap_or(unlocked)));
    }

    fn setlk(&self, req: &Header, asked: &LkIn, wait: bool, reply: Reply<()>) {
        self.set_lock(req.pid, asked, wait, reply);
    }

    /// Where nothing has to be made durable, ENOSYS keeps the kernel from asking again.
    fn fsync(&self, _req: &Header, asked: &FsyncIn, reply: Reply<()>) {
        if self.run(|client| async move { client.needs_no_sync().await }) {
            return reply.error(Errno::NOSYS);
        }
        let done = self.with_file("fsync", asked.handle, |client, file| async move {
            client.sync(Some(&file)).await.map(drop)
        });
        reply.give(done);
    }

    fn opendir(&self, req: &Header, _asked: &OpenIn, reply: Reply<OpenOut>) {
        let inode = self.with_inode("opendir", req.node, |_, inode| async move { Ok(inode) });
        let opened = inode.map(|inode| {
            let directory = OpenDirectory::new(inode, self.kernel.inodes.parent(node_id(inode)));
            OpenOut::new(self.directories.insert(Arc::new(directory)), 0)
        });
        reply.give(opened.map_err(|error| errno_of_inode(&error)));
    }

    fn readdir(&self, _req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        BUFFER.with_borrow_mut(|buffer| {
            let mut listing = Listing::new(buffer, asked.size);
            let listed = self.list(asked.handle, asked.offset, |listed, next| {
                let bits = listed.type_bits();
                let fits = match listed {
                    Listed::Dot(node, name) => listing.add(node, next, bits, name.as_bytes()),
                    Listed::Entry(e) => listing.add(node_id(e.target), next, bits, &e.name),
                };
                Ok(if fits { Taken::Yes } else { Taken::Full })
            });
            reply_bytes(listed.map(|()| listing.bytes()), reply);
        });
    }

    fn readdirplus(&self, _req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        let (dir, shown) = match self.list_with_attributes(asked.handle, asked.offset, asked.size) {
            Ok(listed) => listed,
            Err(errno) => return reply.error(errno),
        };
        BUFFER.with_borrow_mut(|buffer| {
            let mut listing = Listing::new(buffer, asked.size);
            let mut kept = Vec::new();
            for Shown { name, next, what } in &shown {
                let entry = match what {
                    ShownAs::Dot(node) => EntryOut::bare_directory(*node),
                    ShownAs::Entry(attr) => {
                        // it lists no directories while it renames any, and moves what it finds elsewhere by itself
                        self.kernel.inodes.remember(attr, node_id(dir), name);
                        let (name, attributes) = self.kept_entry(node_id(dir), name, attr);
                        let (name_valid, attr_valid) = valid_for(&name, &attributes);
                        kept.extend([name, attributes].into_iter().flatten());
                        entry(attr, name_valid, attr_valid)
                    }
                };
                let fits = listing.add_plus(&entry, *next, name);
                assert!(fits, "it was counted before");
            }
            reply.ok(listing.bytes());
        });
    }

    fn releasedir(&self, _req: &Header, asked: &ReleaseIn, reply: Reply<()>) {
        reply.give(self.directories.remove(asked.handle).map(drop));
    }

    fn fsyncdir(&self, req: &Header, _asked: &FsyncIn, reply: Reply<()>) {
        if self.run(|client| async move { client.needs_no_sync().await }) {
            return reply.error(Errno::NOSYS);
        }
        let done = self.with_inode("fsyncdir", req.node, |client, _| async move { client.sync(None).await });
        reply.give(done.map_err(|error| errno(&error)));
    }

    fn statfs(&self, req: &Header, reply: Reply<StatfsOut>) {
        let usage = self.run(|client| async move { client.usage().await });
        let nodes = match usage {
            Ok((nodes, _unreachable)) => nodes,
            Err(error) => {
                self.complaints.failed("statfs", req.node, &error);
                return reply.error(errno(&error));
            }
        };
        let nodes: Vec<Usage> = nodes.into_iter().map(|(_, usage)| usage).collect();
        // as files are by default
        let set = self.client.map().of_set(None).first().map(RegionInfo::region_set);
        let room = Room::of(&nodes, set.unwrap_or_default().replicas);
        let free = room.free_bytes / PAGE as u64;
        reply.ok(&StatfsOut {
            blocks: room.total_bytes / PAGE as u64,
            bfree: free,
            bavail: free,
            files: nodes.iter().map(|node| node.inodes).sum::<u64>() + room.free_inodes,
            ffree: room.free_inodes,
            bsize: PAGE as u32,
            namelen: NAME_MAX as u32,
            frsize: PAGE as u32,
            ..StatfsOut::new_zeroed()
        });
    }

    fn setxattr(&self, req: &Header, name: &OsStr, value: &[u8], flags: i32, reply: Reply<()>) {
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::INVAL),
        };
        let Some(name) = xattr::stored_name(name.as_bytes(), self.acl) else {
            return reply.error(Errno::OPNOTSUPP);
        };
        let caller = Caller::from(req);
        let done = self.changing_inode("setxattr", req.node, |client, inode| async move {
            // the permission bits follow a list; chmod would take the bit from who is not of the group
            if name == xattr::ACCESS_LIST {
                let attr = client.get_attr(inode).await?;
                if attr.mode & SGID != 0 && !caller.keeps_set_gid(attr.gid) {
                    let set = SetAttr {
                        mode: Some(attr.mode & !SGID),
                        ..SetAttr::default()
                    };
                    client.set_attr(inode, set).await?;
                }
            }
            client.set_xattr(inode, name, value, mode).await
        });
        reply.give(done.map_err(|error| errno_of_inode(&error)));
    }

    fn getxattr(&self, req: &Header, name: &OsStr, room: u32, reply: Reply<[u8]>) {
        let Some(name) = xattr::stored_name(name.as_bytes(), self.acl) else {
            return reply.error(Errno::OPNOTSUPP);
        };
        if name == xattr::COUNTERS && req.node == INodeNo::ROOT {
            let counters = xattr::counters(&self.client.counters(), self.upcalls.counts());
            return reply_xattr(Ok(counters.into_bytes()), room, reply);
        }
        let value = self.with_inode("getxattr", req.node, |client, inode| async move {
            client.get_xattr(inode, name).await
        });
        reply_xattr(value.map_err(|error| errno_of_inode(&error)), room, reply);
    }

    fn listxattr(&self, req: &Header, room: u32, reply: Reply<[u8]>) {
        let names = self.with_inode("listxattr", req.node, |client, inode| async move {
            client.list_xattr(inode).await
        });
        let list = names.map(|names| xattr::list(names.iter().map(Vec::as_slice), req.uid == 0, self.acl));
        reply_xattr(list.map_err(|error| errno_of_inode(&error)), room, reply);
    }

    fn removexattr(&self, req: &Header, name: &OsStr, reply: Reply<()>) {
        let Some(name) = xattr::stored_name(name.as_bytes(), self.acl) else {
            return reply.error(Errno::OPNOTSUPP);
        };
        let done = self.changing_inode("removexattr", req.node, |client, inode| async move {
            client.remove_xattr(inode, name).await
        });
        reply.give(done.map_err(|error| errno_of_inode(&error)));
    }

    fn fallocate(&self, req: &Header, asked: &FallocateIn, reply: Reply<()>) {
        let Some(mode) = fallocate_mode(asked.mode) else {
            return reply.error(Errno::OPNOTSUPP);
        };
        let caller = Caller::from(req);
        let done = self.writing_file("fallocate", asked.handle, |client, file| async move {
            if caller.uid != 0 {
                self.take_privileges(&client, file.inode(), caller).await?;
            }
            client.fallocate(&file, mode, asked.offset, asked.length).await
        });
        self.changed_here(req.node);
        reply.give(done);
    }

    fn lseek(&self, _req: &Header, asked: &LseekIn, reply: Reply<LseekOut>) {
        let whence = match asked.whence as i32 {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        if i64::try_from(asked.offset).is_err() {
            return reply.error(Errno::NXIO);
        }
        let found = self.with_file("lseek", asked.handle, |client, file| async move {
            client.seek(&file, asked.offset, whence).await
        });
        match found {
            Ok(offset) if i64::try_from(offset).is_err() => reply.error(Errno::OVERFLOW),
            found => reply.give(found.map(|offset| LseekOut { offset })),
        }
    }

    fn copy_file_range(&self, _req: &Header, asked: &CopyFileRangeIn, reply: Reply<CopyFileRangeOut>) {
        if asked.flags != 0 {
            return reply.error(Errno::INVAL);
        }
        let to = match self.files.get(asked.handle_out) {
            Ok(to) => to,
            Err(errno) => return reply.error(errno),
        };
        let (_writing, to) = (self.begin_writing(&to), &to.file);
        let copied = self.with_file("copy_file_range", asked.handle_in, |client, from| async move {
            let len = asked.len.min(MAX_COPY);
            client
                .copy_range(&from, asked.offset_in, to, asked.offset_out, len)
                .await
        });
        reply.give(copied.map(|copied| CopyFileRangeOut { copied }));
    }
}

/// An inode to be made for whoever sent a request.
fn new_file(req: &Header, kind: FileKind, mode: u32, umask: u32) -> NewFile {
    NewFile {
        kind,
        mode: mode & 0o7777,
        umask: umask & 0o777,
        uid: req.uid,
        gid: req.gid,
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
    }
}
