//! A file's kind and attributes, as the whole system speaks of them.

use crate::{Generation, Ino};
use serde::{Deserialize, Serialize};

/// Type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// UNIX socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
    /// Object: data without a name.
    Object = 8,
}

impl FileKind {
    /// Decodes the byte on the media; `None` for a byte that is no kind.
    pub fn from_u8(byte: u8) -> Option<FileKind> {
        use FileKind::*;
        [File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice, Object]
            .into_iter()
            .find(|k| *k as u8 == byte)
    }
}

/// Attributes of an inode. Times are nanoseconds since the UNIX epoch (negative before it).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Generation of the slot.
    pub generation: Generation,
    /// Type.
    pub kind: FileKind,
    /// Permission bits, `0..=0o7777`.
    pub mode: u32,
    /// Number of names (for a directory: 2 + subdirectories); 0 once unlinked and only held open.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, else 0.
    pub rdev: u64,
    /// Length in bytes. A directory's size is 64 bytes an entry.
    pub size: u64,
    /// Space taken, in 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime_ns: i64,
    /// Last change of the data.
    pub mtime_ns: i64,
    /// Last change of the inode.
    pub ctime_ns: i64,
    /// Creation.
    pub btime_ns: i64,
}
