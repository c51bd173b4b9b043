//! One method a request of the kernel: a client call and a reply.

use crate::attr::{file_attr, kind_of_mode, time_change};
use crate::caller::Caller;
use crate::directory::{Listed, OpenDirectory, Taken};
use crate::error::{errno, errno_of_inode};
use crate::filesystem::{NO_CACHING, PolvoFilesystem, known};
use crate::flags::{SGID, fallocate_mode, rename_mode, without_privileges};
use crate::inodes::{node_id, node_id_of};
use crate::lock_requests::LockCaller;
use crate::mappings::{Opened, SharedMappings};
use crate::open_file::OpenHandle;
use crate::xattr;
use fuser::*;
use polvo_client::Whence;
use polvo_format::{FileKind, NAME_MAX, PAGE};
use polvo_proto::{FsError, InodeRef, NewFile, SetAttr, TimeChange, WriteAt, XattrMode};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Largest write the kernel sends at once, in bytes; what it allows without a changed `fs.fuse.max_pages_limit`.
const MAX_WRITE: u32 = 1 << 20;
/// Requests the kernel may send without waiting for an answer (readahead of mappings, asynchronous I/O).
const MAX_BACKGROUND: u16 = 64;
/// Most bytes copied by one `copy_file_range`; the caller comes back for the rest.
const MAX_COPY: u64 = 1 << 30;

/// How regular files are opened: past the page cache, writers of one file side by side.
fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl PolvoFilesystem {
    /// Makes ready to decide file by file which ones may be mapped shared.
    fn prepare_mappings(&mut self, config: &mut KernelConfig) -> Result<(), &'static str> {
        self.mappings.prepare()?;
        let wanted = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if config.capabilities().contains(wanted) {
            config.add_capabilities(wanted).expect("they are there");
            config.set_max_stack_depth(1).expect("less than the most");
            Ok(())
        } else {
            Err("this kernel (older than 6.9, or built without FUSE_PASSTHROUGH) cannot refuse those of single files")
        }
    }

    /// What a file that may not be mapped is opened for passthrough to.
    fn passthrough(&self, opened: Opened) -> Option<&BackingId> {
        match opened {
            Opened::Unmappable => self.mappings.backing(|_| Err(io::ErrorKind::NotFound.into())),
            Opened::Mappable | Opened::NotDirectly => None,
        }
    }
}

thread_local! {
    /// Where this thread reads file data into before it goes to the kernel.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers with nothing but success.
fn reply_empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Answers `getxattr` and `listxattr`: the length when the caller asked with no room, else the bytes if they fit.
fn reply_xattr(result: Result<Vec<u8>, Errno>, room: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > room as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for PolvoFilesystem {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DONT_MASK;
        if self.mappings.allowed() == SharedMappings::One
            && let Err(why) = self.prepare_mappings(config)
        {
            tracing::warn!("shared memory mappings are refused on this mount (`mmap=private`): {why}");
            self.mappings.refuse_all();
        }
        if self.mappings.allowed() != SharedMappings::None {
            wanted |= InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        }
        if self.locks {
            wanted |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        }
        if self.acl {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if self.readdirplus {
            wanted |= InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO;
        }
        if let Err(missing) = config.add_capabilities(wanted) {
            if missing.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP) {
                tracing::warn!("this kernel (older than 6.6) refuses shared memory mappings of files on this mount");
            }
            config
                .add_capabilities(wanted & !missing)
                .expect("what is missing was taken out");
        }
        config.set_max_write(MAX_WRITE).expect("the library's buffer is larger");
        if let Err(most) = config.set_max_readahead(MAX_WRITE) {
            config.set_max_readahead(most).expect("the most the kernel takes");
        }
        config.set_max_background(MAX_BACKGROUND).expect("not 0");
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.guard("lookup", || {
            let name = name.as_bytes();
            let found = self.with_inode("lookup", parent, |client, dir| async move {
                let attr = client.lookup(dir, name).await?;
                // how the kernel finds what a file handle names: by number, then from a directory upwards
                let parent = match (name, attr.kind) {
                    (b"." | b"..", FileKind::Directory) => {
                        let found = InodeRef {
                            ino: attr.ino,
                            generation: attr.generation,
                        };
                        node_id_of(&client.lookup(found, b"..").await?)
                    }
                    _ => parent,
                };
                Ok((attr, parent))
            });
            match found {
                Ok((attr, parent)) => self.reply_entry(parent, Ok(attr), reply),
                Err(error) => self.reply_entry(parent, Err(error), reply),
            }
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.inodes.forget(ino, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.guard("getattr", || {
            match self.with_inode(
                "getattr",
                ino,
                |client, inode| async move { client.get_attr(inode).await },
            ) {
                Ok(attr) => reply.attr(&NO_CACHING, &file_attr(&attr)),
                Err(error) => match self.inodes.removed_directory(ino) {
                    Some(attr) if error == FsError::Stale => reply.attr(&NO_CACHING, &file_attr(&attr)),
                    _ => reply.error(errno_of_inode(&error)),
                },
            }
        });
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.guard("setattr", || {
            let (atime, mtime): (Option<TimeChange>, Option<TimeChange>) =
                (atime.map(time_change), mtime.map(time_change));
            let mut set = SetAttr {
                mode: mode.map(|mode| mode & 0o7777),
                uid,
                gid,
                size,
                atime,
                mtime,
            };
            let caller = Caller::from(req);
            // the kernel's part of this goes by the execute bits alone
            let takes_privileges = caller.uid != 0 && (size.is_some() || uid.is_some() || gid.is_some());
            match self.with_inode("setattr", ino, |client, inode| async move {
                if takes_privileges {
                    let mut attr = client.get_attr(inode).await?;
                    attr.mode = set.mode.unwrap_or(attr.mode);
                    set.mode = without_privileges(&attr, || caller.keeps_set_gid(attr.gid)).or(set.mode);
                }
                client.set_attr(inode, set).await
            }) {
                Ok(attr) => reply.attr(&NO_CACHING, &file_attr(&attr)),
                Err(error) => reply.error(errno_of_inode(&error)),
            }
        });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.guard("readlink", || {
            match self.with_inode(
                "readlink",
                ino,
                |client, inode| async move { client.read_link(inode).await },
            ) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno_of_inode(&error)),
            }
        });
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        self.guard("mknod", || match kind_of_mode(mode) {
            Some(FileKind::Directory | FileKind::Symlink) | None => reply.error(Errno::EINVAL),
            Some(kind) => {
                let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
                let mut file = new_file(req, kind, mode, umask);
                file.rdev = if device { rdev.into() } else { 0 };
                self.make("mknod", parent, name, file, reply);
            }
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.guard("mkdir", || {
            self.make(
                "mkdir",
                parent,
                name,
                new_file(req, FileKind::Directory, mode, umask),
                reply,
            );
        });
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guard("unlink", || {
            let name = name.as_bytes();
            let done = self.with_inode(
                "unlink",
                parent,
                |client, dir| async move { client.unlink(dir, name).await },
            );
            reply_empty(done.map_err(|error| errno(&error)), reply);
        });
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guard("rmdir", || {
            let name = name.as_bytes();
            let done = self.with_inode(
                "rmdir",
                parent,
                |client, dir| async move { client.rmdir(dir, name).await },
            );
            reply_empty(done.map_err(|error| errno(&error)), reply);
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.guard("symlink", || {
            let mut file = new_file(req, FileKind::Symlink, 0o777, 0);
            file.target = target.as_os_str().as_bytes().to_vec();
            self.make("symlink", parent, link_name, file, reply);
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.guard("rename", || {
            let Some(mode) = rename_mode(flags, (req.uid(), req.gid())) else {
                return reply.error(Errno::EINVAL);
            };
            let (old, new) = (name.as_bytes(), newname.as_bytes());
            let done = self.with_inode("rename", parent, |client, old_dir| async move {
                let new_dir = known(&self.inodes, &client, newparent).await?;
                client.rename(old_dir, old, new_dir, new, mode).await
            });
            reply_empty(done.map_err(|error| errno(&error)), reply);
        });
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.guard("link", || {
            let name = newname.as_bytes();
            let linked = self.with_inode("link", ino, |client, inode| async move {
                let dir = known(&self.inodes, &client, newparent).await?;
                client.link(inode, dir, name).await
            });
            match linked {
                Err(FsError::NotFound) => reply.error(Errno::ESTALE),
                linked => self.reply_entry(newparent, linked, reply),
            }
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.guard("open", || {
            let (caller, allowed) = (Caller::from(req), self.mappings.allowed());
            let file = self.with_inode("open", ino, |client, inode| async move {
                let file = Self::open_file(&client, inode, flags, allowed).await?;
                if flags.0 & libc::O_TRUNC != 0 {
                    Self::truncate_at_open(&client, inode, caller).await?;
                }
                Ok(file)
            });
            let file = match file {
                Ok(file) => file,
                Err(error) => return reply.error(errno_of_inode(&error)),
            };
            let (inode, opened) = match self.begin_open(&file, flags, |backing| reply.open_backing(backing)) {
                Ok(opened) => (file.inode(), opened),
                Err(errno) => return reply.error(errno),
            };
            let handle = self.files.insert(OpenHandle::new(file, flags, opened));
            match self.passthrough(opened) {
                Some(backing) => reply.opened_passthrough(handle, open_flags(), backing),
                None => {
                    reply.opened(handle, open_flags());
                    self.mappings.answered(inode);
                }
            }
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.guard("create", || {
            let file = new_file(req, FileKind::File, mode, umask);
            let (name, flags, caller) = (name.as_bytes(), OpenFlags(flags), Caller::from(req));
            let allowed = self.mappings.allowed();
            let made = self.with_inode("create", parent, |client, dir| async move {
                Self::create_or_open(&client, dir, name, file, flags, caller, allowed).await
            });
            let (attr, file) = match made {
                Ok(made) => made,
                Err(error) => return reply.error(errno(&error)),
            };
            let (inode, opened) = match self.begin_open(&file, flags, |backing| reply.open_backing(backing)) {
                Ok(opened) => (file.inode(), opened),
                Err(errno) => return reply.error(errno),
            };
            self.inodes.remember(&attr, parent);
            let generation = Generation(attr.generation.0.into());
            let handle = self.files.insert(OpenHandle::new(file, flags, opened));
            let attr = file_attr(&attr);
            match self.passthrough(opened) {
                Some(backing) => {
                    reply.created_passthrough(&NO_CACHING, &attr, generation, handle, open_flags(), backing);
                }
                None => {
                    reply.created(&NO_CACHING, &attr, generation, handle, open_flags());
                    self.mappings.answered(inode);
                }
            }
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.guard("read", || {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let size = size as usize;
                if buffer.len() < size {
                    buffer.resize(size, 0);
                }
                let into = &mut buffer[..size];
                let read = self.with_handle("read", fh, |client, handle| async move {
                    let read = client.read(&handle.file, offset, into).await?;
                    if !handle.leaves_access_time {
                        client.accessed(&handle.file);
                    }
                    Ok(&into[..read])
                });
                match read {
                    Ok(_) if self.has_lost_locks(fh, lock_owner) => reply.error(Errno::EIO),
                    Ok(bytes) => reply.data(bytes),
                    Err(errno) => reply.error(errno),
                }
            });
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.guard("write", || {
            if self.has_lost_locks(fh, lock_owner) {
                return reply.error(Errno::EIO);
            }
            // Pages of a mapping are written where they belong, however the file was opened.
            let at = match flags.0 & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                true => WriteAt::End,
                false => WriteAt::Offset(offset),
            };
            let caller = Caller::from(req);
            let one = self.mappings.allowed() == SharedMappings::One;
            let written = self.with_file("write", fh, |client, file| async move {
                if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                    Self::take_privileges(&client, file.inode(), caller).await?;
                }
                if one && write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                    return client.write_pages(&file, offset, data).await;
                }
                client.write_at(&file, at, data).await.map(|(_, written)| written)
            });
            match written {
                // they were lost on the way: the bytes may be there, but were not written under the lock
                Ok(_) if self.has_lost_locks(fh, lock_owner) => reply.error(Errno::EIO),
                Ok(bytes) => reply.written(bytes as u32),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Nothing is ever kept back, so all that a close does is letting go of the process's locks. Without locks, ENOSYS
    /// keeps the kernel from asking again.
    fn flush(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        if !self.locks {
            return reply.error(Errno::ENOSYS);
        }
        self.guard("flush", || reply_empty(self.close_locks(fh, lock_owner), reply));
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.guard("release", || {
            let ended = self.files.get(fh).and_then(|handle| {
                self.end_locks(fh, &handle);
                self.mappings.closed(handle.file.inode(), handle.opened);
                if self.locks && handle.was_refused() {
                    let why = "it is mapped shared on this mount, and another client has the right to map it";
                    self.complaints.failed("open", ino, &FsError::Io(why.into()));
                }
                self.files.remove(fh)
            });
            reply_empty(ended.map(drop), reply);
        });
    }

    fn getlk(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        self.guard("getlk", || {
            match self.test_lock(fh, lock_owner, start..=end, typ, pid) {
                Ok(Some((range, typ, pid))) => reply.locked(*range.start(), *range.end(), typ, pid),
                Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setlk(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.guard("setlk", || {
            let caller = LockCaller {
                owner: lock_owner,
                pid,
                thread: req.pid(),
            };
            self.set_lock(fh, caller, start..=end, typ, sleep, reply);
        });
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.guard("fsync", || {
            let done = self.with_file("fsync", fh, |client, file| async move {
                client.sync(Some(&file)).await.map(drop)
            });
            reply_empty(done, reply);
        });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.guard("opendir", || {
            match self.with_inode("opendir", ino, |_, inode| async move { Ok(inode) }) {
                Ok(inode) => {
                    let directory = OpenDirectory::new(inode, self.inodes.parent(node_id(inode)));
                    reply.opened(self.directories.insert(Arc::new(directory)), FopenFlags::empty());
                }
                Err(error) => reply.error(errno_of_inode(&error)),
            }
        });
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.guard("readdir", || {
            let listed = self.list(fh, offset, |listed, next| {
                let kind = listed.file_type();
                let full = match listed {
                    Listed::Dot(node, name) => reply.add(node, next, kind, name),
                    Listed::Entry(e) => reply.add(node_id(e.target), next, kind, OsStr::from_bytes(&e.name)),
                };
                Ok(if full { Taken::Full } else { Taken::Yes })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdirplus(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.guard("readdirplus", || {
            let get_attr = |inode| self.client.run(|client| async move { client.get_attr(inode).await });
            let directory = self.directories.get(fh).map(|directory| directory.inode);
            let listed = directory.and_then(|dir| {
                self.list(fh, offset, |listed, next| {
                    // The kernel does not count `.` and `..` as looked up, nor use their attributes.
                    let (inode, name, counted) = match listed {
                        Listed::Dot(_, name) => (dir, OsStr::new(name), false),
                        Listed::Entry(e) => (e.target, OsStr::from_bytes(&e.name), true),
                    };
                    let attr = match get_attr(inode) {
                        Ok(attr) => attr,
                        // Deleted since it was listed.
                        Err(FsError::NotFound | FsError::Stale) => return Ok(Taken::Yes),
                        Err(error) => return Err(error),
                    };
                    let shown = file_attr(&attr);
                    let generation = Generation(attr.generation.0.into());
                    if reply.add(shown.ino, next, name, &NO_CACHING, &shown, generation) {
                        return Ok(Taken::Full);
                    }
                    if counted {
                        self.inodes.remember(&attr, node_id(dir));
                    }
                    Ok(Taken::Yes)
                })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.guard("releasedir", || {
            reply_empty(self.directories.remove(fh).map(drop), reply)
        });
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.guard("fsyncdir", || {
            let done = self.with_inode("fsyncdir", ino, |client, _| async move { client.sync(None).await });
            reply_empty(done.map_err(|error| errno(&error)), reply);
        });
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.guard("statfs", || {
            let usage = self.client.run(|client| async move { client.usage().await });
            let nodes = match usage {
                Ok((nodes, _unreachable)) => nodes,
                Err(error) => {
                    self.complaints.failed("statfs", ino, &error);
                    return reply.error(errno(&error));
                }
            };
            let sum = |part: fn(&polvo_proto::Usage) -> u64| nodes.iter().map(|(_, usage)| part(usage)).sum::<u64>();
            let page = PAGE as u64;
            let (total, free) = (sum(|u| u.total_bytes) / page, sum(|u| u.free_bytes) / page);
            let (used_inodes, free_inodes) = (sum(|u| u.inodes), sum(|u| u.free_inodes));
            let page = PAGE as u32;
            reply.statfs(
                total,
                free,
                free,
                used_inodes + free_inodes,
                free_inodes,
                page,
                NAME_MAX as u32,
                page,
            );
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.guard("setxattr", || {
            let mode = match flags {
                0 => XattrMode::Any,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => return reply.error(Errno::EINVAL),
            };
            let Some(name) = xattr::stored_name(name.as_bytes(), self.acl) else {
                return reply.error(Errno::EOPNOTSUPP);
            };
            let caller = Caller::from(req);
            let done = self.with_inode("setxattr", ino, |client, inode| async move {
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
            reply_empty(done.map_err(|error| errno_of_inode(&error)), reply);
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.guard("getxattr", || {
            let Some(name) = xattr::stored_name(name.as_bytes(), self.acl) else {
                return reply.error(Errno::EOPNOTSUPP);
            };
            if name == xattr::COUNTERS && ino == INodeNo::ROOT {
                let counters = xattr::counters(&self.client.counters());
                return reply_xattr(Ok(counters.into_bytes()), size, reply);
            }
            let value = self.with_inode("getxattr", ino, |client, inode| async move {
                client.get_xattr(inode, name).await
            });
            reply_xattr(value.map_err(|error| errno_of_inode(&error)), size, reply);
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.guard("listxattr", || {
            let names = self.with_inode("listxattr", ino, |client, inode| async move {
                client.list_xattr(inode).await
            });
            let list = names.map(|names| xattr::list(names.iter().map(Vec::as_slice), req.uid() == 0, self.acl));
            reply_xattr(list.map_err(|error| errno_of_inode(&error)), size, reply);
        });
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guard("removexattr", || {
            let Some(name) = xattr::stored_name(name.as_bytes(), self.acl) else {
                return reply.error(Errno::EOPNOTSUPP);
            };
            let done = self.with_inode("removexattr", ino, |client, inode| async move {
                client.remove_xattr(inode, name).await
            });
            reply_empty(done.map_err(|error| errno_of_inode(&error)), reply);
        });
    }

    /// The kernel checks permissions itself (`default_permissions`) and never asks; ENOSYS in case it does.
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.guard("fallocate", || {
            let Some(mode) = fallocate_mode(mode) else {
                return reply.error(Errno::EOPNOTSUPP);
            };
            let caller = Caller::from(req);
            let done = self.with_file("fallocate", fh, |client, file| async move {
                if caller.uid != 0 {
                    Self::take_privileges(&client, file.inode(), caller).await?;
                }
                client.fallocate(&file, mode, offset, length).await
            });
            reply_empty(done, reply);
        });
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.guard("lseek", || {
            let whence = match whence {
                libc::SEEK_DATA => Whence::Data,
                libc::SEEK_HOLE => Whence::Hole,
                _ => return reply.error(Errno::EINVAL),
            };
            let Ok(offset) = u64::try_from(offset) else {
                return reply.error(Errno::ENXIO);
            };
            let found = self.with_file("lseek", fh, |client, file| async move {
                client.seek(&file, offset, whence).await
            });
            match found.map(i64::try_from) {
                Ok(Ok(offset)) => reply.offset(offset),
                Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.guard("copy_file_range", || {
            if !flags.is_empty() {
                return reply.error(Errno::EINVAL);
            }
            let to = match self.files.get(fh_out) {
                Ok(to) => to.file.clone(),
                Err(errno) => return reply.error(errno),
            };
            let copied = self.with_file("copy_file_range", fh_in, |client, from| async move {
                client
                    .copy_range(&from, offset_in, &to, offset_out, len.min(MAX_COPY))
                    .await
            });
            match copied {
                Ok(bytes) => reply.written(bytes as u32),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// No file has settings of its own. (The library's default would log each call.)
    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// Files are always ready; ENOSYS tells the kernel so once and for all.
    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// There is no block device below.
    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }
}

/// An inode to be made for whoever sent a request.
fn new_file(req: &Request, kind: FileKind, mode: u32, umask: u32) -> NewFile {
    NewFile {
        kind,
        mode: mode & 0o7777,
        umask: umask & 0o777,
        uid: req.uid(),
        gid: req.gid(),
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
    }
}
