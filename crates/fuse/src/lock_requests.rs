//! Requests of the kernel about locks.

use crate::caller::locks_open_file;
use crate::error::errno;
use crate::filesystem::PolvoFilesystem;
use crate::inodes::node_id;
use crate::lock_owners::Entered;
use crate::lock_waits::{LockWait, keep_for_owner};
use crate::open_file::OpenHandle;
use polvo_client::LockAnswer;
use polvo_fusedev::abi::{FileHandle, FileLock, LkIn, LockOwner};
use polvo_fusedev::{Errno, Reply, will_wait};
use polvo_proto::{FsError, InodeRef, LockAsk, LockKind, LockMode, LockRange, LockTicket};
use std::time::Duration;

/// The kernel tells of the last close of an open file when `close` returns, and does not wait for the answer; an open file's own locks end
/// then. Who asks for such a lock without waiting for it, and finds it held, asks again for so long before he is told.
const RELEASED_WITHIN: Duration = Duration::from_millis(30);
/// He asks again after so long, and then after twice as long each time.
const RELEASED_SOON: Duration = Duration::from_millis(1);

fn range_of(lock: &FileLock) -> LockRange {
    LockRange {
        first: lock.start,
        last: lock.end,
    }
}

/// `None` for what is no lock.
fn mode_of(typ: u32) -> Option<LockMode> {
    match typ as i32 {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        _ => None,
    }
}

impl PolvoFilesystem {
    /// Takes a lock, or lets go of it. When it is to be waited for, somebody else does that. `thread`: who waits for the answer.
    pub(crate) fn set_lock(&self, thread: u32, asked: &LkIn, wait: bool, reply: Reply<()>) {
        let (fh, lock) = (asked.handle, &asked.lock);
        let handle = match self.files.get(fh) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        let (inode, name, range) = (handle.file.inode(), asked.owner.0, range_of(lock));
        let complain = |error: &FsError| self.complaints.failed("lock", node_id(inode), error);
        if lock.kind == libc::F_UNLCK as u32 {
            let Some(owner) = self.lock_owners.key(inode, name) else {
                return reply.ok(&());
            };
            let unlocked = self.run(|client| async move { client.unlock(inode, owner, range).await });
            return match unlocked {
                Ok(()) => reply.ok(&()),
                Err(error) => {
                    complain(&error);
                    reply.error(errno(&error));
                }
            };
        }
        let Some(mode) = mode_of(lock.kind) else {
            return reply.error(Errno::INVAL);
        };
        handle.note_locker(name);
        let is_open_file = || asked.is_flock() || locks_open_file(thread);
        let Entered { key: owner, ended } = self.lock_owners.enter(inode, name, fh, is_open_file);
        if let Some(ended) = ended {
            self.let_go(inode, ended);
        }
        let ask = LockAsk {
            owner,
            kind: if asked.is_flock() {
                LockKind::Whole
            } else {
                LockKind::Range
            },
            mode,
            range,
            pid: lock.pid,
        };
        let ticket = wait.then(|| LockTicket {
            number: self.client.next_lock_ticket(),
            wait_ms: 0,
        });
        let asked = self.run(async |client| {
            let mut pause = RELEASED_SOON;
            let answer = loop {
                match client.lock(inode, ask, ticket).await {
                    Err(FsError::WouldBlock) if pause < RELEASED_WITHIN && is_open_file() => {
                        will_wait();
                        tokio::time::sleep(pause).await;
                        pause *= 2;
                    }
                    answer => break answer?,
                }
            };
            if matches!(answer, LockAnswer::Granted(_)) {
                keep_for_owner(&client, &self.lock_owners, &ask, inode, name).await?;
            }
            Ok(answer)
        });
        match (asked, ticket) {
            (Ok(LockAnswer::Granted(_)), _) => reply.ok(&()),
            (Ok(LockAnswer::Queued), Some(ticket)) => self.lock_waits.begin(LockWait {
                file: handle.file.clone(),
                ask,
                owner: name,
                ticket: ticket.number,
                reply,
            }),
            (Ok(LockAnswer::Queued), None) => reply.error(Errno::IO),
            (Err(error), _) => {
                complain(&error);
                reply.error(errno(&error));
            }
        }
    }

    /// The first lock in the way of another.
    pub(crate) fn test_lock(
        &self,
        fh: FileHandle,
        owner: LockOwner,
        lock: &FileLock,
    ) -> Result<Option<FileLock>, Errno> {
        let inode = self.files.get(fh)?.file.inode();
        let ask = LockAsk {
            owner: self.lock_owners.key(inode, owner.0).unwrap_or(owner.0),
            kind: LockKind::Range,
            mode: mode_of(lock.kind).ok_or(Errno::INVAL)?,
            range: range_of(lock),
            pid: lock.pid,
        };
        let seen = self.with_file("getlk", fh, |client, file| async move {
            client.test_lock(file.inode(), ask).await
        })?;
        Ok(seen.map(|seen| FileLock {
            start: seen.range.first,
            end: seen.range.last,
            kind: match seen.mode {
                LockMode::Shared => libc::F_RDLCK as u32,
                LockMode::Exclusive => libc::F_WRLCK as u32,
            },
            pid: seen.pid,
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
        let released = self.run(|client| async move { client.release_locks(inode, owner).await });
        if let Err(error) = released {
            self.complaints.failed("release", node_id(inode), &error);
        }
    }

    /// Somebody else may have had locks under which the caller believes to read or write: the node that gave them keeps them no longer,
    /// and they could not be claimed back.
    pub(crate) fn has_lost_locks(&self, fh: FileHandle, owner: Option<LockOwner>) -> bool {
        if self.client.holds_all_locks() {
            return false;
        }
        let Ok(handle) = self.files.get(fh) else { return false };
        let of_handle = handle.lockers().into_iter();
        let inode = handle.file.inode();
        of_handle
            .chain(owner.map(|owner| owner.0))
            .filter_map(|name| self.lock_owners.key(inode, name))
            .any(|owner| {
                let held = self.run(|client| async move { client.hold_locks(inode, owner).await });
                held.inspect_err(|error| self.complaints.failed("lock", node_id(inode), error))
                    .is_err()
            })
    }
}
