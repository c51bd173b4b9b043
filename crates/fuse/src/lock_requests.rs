//! Requests of the kernel about locks.

use crate::caller::lock_call;
use crate::error::errno;
use crate::filesystem::PolvoFilesystem;
use crate::inodes::node_id;
use crate::lock_owners::Entered;
use crate::lock_waits::{LockWait, keep_for_owner};
use crate::open_file::OpenHandle;
use fuser::{Errno, FileHandle, LockOwner, ReplyEmpty};
use polvo_client::LockAnswer;
use polvo_proto::{FsError, InodeRef, LockAsk, LockKind, LockMode, LockRange, LockTicket};
use std::cell::LazyCell;
use std::ops::RangeInclusive;

/// Who asks for a lock.
pub(crate) struct LockCaller {
    /// A process, or an open file.
    pub(crate) owner: LockOwner,
    /// The process, as others are told.
    pub(crate) pid: u32,
    /// The thread that waits for the answer.
    pub(crate) thread: u32,
}

fn range_of(bytes: &RangeInclusive<u64>) -> LockRange {
    LockRange {
        first: *bytes.start(),
        last: *bytes.end(),
    }
}

/// `None` for what is no lock.
fn mode_of(typ: i32) -> Option<LockMode> {
    match typ {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        _ => None,
    }
}

impl PolvoFilesystem {
    /// Takes a lock, or lets go of it. When it is to be waited for, somebody else does that.
    pub(crate) fn set_lock(
        &self,
        fh: FileHandle,
        caller: LockCaller,
        bytes: RangeInclusive<u64>,
        typ: i32,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let handle = match self.files.get(fh) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        let (inode, name, range) = (handle.file.inode(), caller.owner.0, range_of(&bytes));
        let complain = |error: &FsError| self.complaints.failed("lock", node_id(inode), error);
        if typ == libc::F_UNLCK {
            let Some(owner) = self.lock_owners.key(inode, name) else {
                return reply.ok();
            };
            let unlocked = self
                .client
                .run(|client| async move { client.unlock(inode, owner, range).await });
            return match unlocked {
                Ok(()) => reply.ok(),
                Err(error) => {
                    complain(&error);
                    reply.error(errno(&error));
                }
            };
        }
        let Some(mode) = mode_of(typ) else {
            return reply.error(Errno::EINVAL);
        };
        let call = LazyCell::new(|| lock_call(caller.thread));
        let kind = if range == LockRange::ALL {
            call.kind()
        } else {
            LockKind::Range
        };
        handle.note_locker(name);
        let Entered { key: owner, ended } = self.lock_owners.enter(inode, name, fh, || call.is_open_file());
        if let Some(ended) = ended {
            self.let_go(inode, ended);
        }
        let ask = LockAsk {
            owner,
            kind,
            mode,
            range,
            pid: caller.pid,
        };
        let ticket = wait.then(|| LockTicket {
            number: self.client.next_lock_ticket(),
            wait_ms: 0,
        });
        let asked = self.client.run(|client| async move {
            let answer = client.lock(inode, ask, ticket).await?;
            if answer == LockAnswer::Granted {
                keep_for_owner(&client, &self.lock_owners, &ask, inode, name).await?;
            }
            Ok(answer)
        });
        match (asked, ticket) {
            (Ok(LockAnswer::Granted), _) => reply.ok(),
            (Ok(LockAnswer::Queued), Some(ticket)) => self.lock_waits.begin(LockWait {
                file: handle.file.clone(),
                ask,
                owner: name,
                ticket: ticket.number,
                thread: caller.thread,
                reply,
            }),
            (Ok(LockAnswer::Queued), None) => reply.error(Errno::EIO),
            (Err(error), _) => {
                complain(&error);
                reply.error(errno(&error));
            }
        }
    }

    /// The first lock in the way of another: bytes, type and process.
    pub(crate) fn test_lock(
        &self,
        fh: FileHandle,
        owner: LockOwner,
        bytes: RangeInclusive<u64>,
        typ: i32,
        pid: u32,
    ) -> Result<Option<(RangeInclusive<u64>, i32, u32)>, Errno> {
        let inode = self.files.get(fh)?.file.inode();
        let ask = LockAsk {
            owner: self.lock_owners.key(inode, owner.0).unwrap_or(owner.0),
            kind: LockKind::Range,
            mode: mode_of(typ).ok_or(Errno::EINVAL)?,
            range: range_of(&bytes),
            pid,
        };
        let seen = self.with_file("getlk", fh, |client, file| async move {
            client.test_lock(file.inode(), ask).await
        })?;
        Ok(seen.map(|seen| {
            let typ = match seen.mode {
                LockMode::Shared => libc::F_RDLCK,
                LockMode::Exclusive => libc::F_WRLCK,
            };
            (seen.range.first..=seen.range.last, typ, seen.pid)
        }))
    }

    /// A process closes a file (one of its descriptors of it): its locks end.
    pub(crate) fn close_locks(&self, fh: FileHandle, owner: LockOwner) -> Result<(), Errno> {
        let handle = self.files.get(fh)?;
        handle.note_flush();
        handle.forget_locker(owner.0);
        let Some(owner) = self.lock_owners.closed(handle.file.inode(), owner.0) else {
            return Ok(());
        };
        self.with_file("flush", fh, |client, file| async move {
            client.release_locks(file.inode(), owner).await
        })
    }

    /// An open file ends, whose number nobody else may have yet: its own locks do, too. (Those of processes have ended when
    /// these closed it.)
    pub(crate) fn end_locks(&self, fh: FileHandle, handle: &OpenHandle) {
        let inode = handle.file.inode();
        for name in handle.lockers() {
            if let Some(owner) = self.lock_owners.ended(inode, name, fh) {
                self.let_go(inode, owner);
                self.lock_owners.told(inode, name, owner);
            }
        }
    }

    /// Lets go of all locks of an open file that has ended.
    fn let_go(&self, inode: InodeRef, owner: u64) {
        let released = self
            .client
            .run(|client| async move { client.release_locks(inode, owner).await });
        if let Err(error) = released {
            self.complaints.failed("release", node_id(inode), &error);
        }
    }

    /// The node has forgotten locks under which the caller believes to read or write.
    pub(crate) fn has_lost_locks(&self, fh: FileHandle, owner: Option<LockOwner>) -> bool {
        if !self.client.has_lost_any_locks() {
            return false;
        }
        let Ok(handle) = self.files.get(fh) else { return false };
        let of_handle = handle.lockers().into_iter();
        let inode = handle.file.inode();
        of_handle
            .chain(owner.map(|owner| owner.0))
            .filter_map(|name| self.lock_owners.key(inode, name))
            .any(|owner| self.client.has_lost_locks(inode, owner))
    }
}
