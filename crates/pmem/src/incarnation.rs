//! The incarnations of a pool's daemon: which earlier one still has the pool mapped somewhere.
//!
//! An incarnation marks itself by a shared lock on one byte, far behind the pool's end, of the descriptor that is mapped and handed
//! to peers. Such a lock belongs to the open file (`F_OFD_SETLK`), and that lives as long as anybody has a copy of the
//! descriptor or a mapping made of it: when the daemon has died, it is gone as soon as the last peer has unmapped the pool
//! or ended, and no peer has to do anything for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Where the bytes that stand for incarnations begin.
const INCARNATIONS: i64 = 1 << 62;

fn lock(fd: BorrowedFd<'_>, command: i32, kind: i32, start: i64, len: i64) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0, // as these locks demand
    };
    // SAFETY: the descriptor is open, and the commands used here take a pointer to one `flock`, which lives until then.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(lock),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks the incarnation of that number (below 2^48), until the last copy of the descriptor and the last mapping are gone.
pub(crate) fn begin(fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
    assert!(number > 0 && number < 1 << 48, "incarnation {number}");
    lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK, INCARNATIONS + number as i64, 1).map(drop)
}

/// Whether one of a lower number has the pool open or mapped, by whatever process.
pub(crate) fn any_before(fd: BorrowedFd<'_>, number: u64) -> io::Result<bool> {
    if number == 0 {
        return Ok(false);
    }
    let found = lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK, INCARNATIONS, number as i64)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}
