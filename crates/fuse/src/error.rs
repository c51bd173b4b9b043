//! Why something could not be mounted or unmounted, and the errno of a file operation that failed.

use polvo_fusedev::Errno;
use polvo_proto::FsError;
use std::path::PathBuf;

/// Why a mount or unmount failed. Messages say what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is nothing at the path.
    #[error("mount point {0} does not exist; create the directory first")]
    Missing(PathBuf),
    /// There is something else than a directory.
    #[error("mount point {0} is not a directory")]
    NotDirectory(PathBuf),
    /// The directory has entries, which a mount would hide.
    #[error("mount point {0} is not empty; choose an empty directory")]
    NotEmpty(PathBuf),
    /// A FUSE file system is mounted there.
    #[error("{source_name} is already mounted at {path}; unmount it first (polvo umount {path})")]
    AlreadyMounted {
        /// mount point
        path: PathBuf,
        /// source of the mount that is there, as /proc/self/mountinfo shows it
        source_name: String,
    },
    /// The kernel has no FUSE, or this container does not show it.
    #[error("/dev/fuse is missing; load the fuse module (modprobe fuse) or give this container the device")]
    NoDevice,
    /// /dev/fuse may not be opened.
    #[error("/dev/fuse may not be opened for reading and writing; run as root or ask for access to the device")]
    DeviceDenied,
    /// Not root, and there is no program that mounts on behalf of users.
    #[error("only root may mount without fusermount3, and it was not found; install the package fuse3 or run as root")]
    NoHelper,
    /// Files of the mount are in use.
    #[error("{0} is in use; close the files (fuser -m {0} shows who has them) or unmount with force")]
    Busy(PathBuf),
    /// Nothing of ours is mounted there.
    #[error("no PolvoFS is mounted at {0}")]
    NotMounted(PathBuf),
    /// An option that mount options know not.
    #[error("unknown mount option {0:?}")]
    UnknownOption(String),
    /// A known option with a value it cannot have.
    #[error("mount option {option}: {why}")]
    BadOption {
        /// its name
        option: String,
        /// what is wrong with the value
        why: String,
    },
    /// Anything else the system said.
    #[error("{what} {path}: {source}")]
    System {
        /// what was tried
        what: &'static str,
        /// mount point
        path: PathBuf,
        /// what the system answered
        source: std::io::Error,
    },
}

/// The errno the kernel is told.
pub(crate) fn errno(error: &FsError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// An error of an operation addressed by inode number alone. "Not found" then means that the inode is gone, not a
/// name: ESTALE makes the kernel walk the path once more, so that a file replaced by `rename` on another mount between
/// the kernel's lookup and this request is found under its name again.
pub(crate) fn errno_of_inode(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::STALE,
        other => errno(other),
    }
}

/// An error of an operation addressed by a name in a directory: one that is gone has none. (The kernel believes in no directory after it
/// has been removed elsewhere, so who comes here has it open, or works in it.)
pub(crate) fn no_name(error: FsError) -> FsError {
    match error {
        FsError::Stale => FsError::NotFound,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vanished_inode_is_stale_but_a_missing_name_is_not_found() {
        assert_eq!(errno(&FsError::NotFound).raw_os_error(), libc::ENOENT);
        assert_eq!(errno_of_inode(&FsError::NotFound).raw_os_error(), libc::ESTALE);
        assert_eq!(errno_of_inode(&FsError::NoSpace).raw_os_error(), libc::ENOSPC);
    }
}
