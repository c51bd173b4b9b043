//! The kernel's FUSE interface (`include/uapi/linux/fuse.h`, version 7.45), as bytes.
//!
//! Structs have the kernel's layout; their sizes are checked at compile time. Fields that are padding, or of no use here, begin
//! with `_`. What the kernel calls `nodeid`, `fh` and `lock_owner` are types of their own: [`INodeNo`], [`FileHandle`],
//! [`LockOwner`].

use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Version of the interface that is spoken here.
pub const MAJOR: u32 = 7;
/// The newest minor version that is known here. The kernel speaks the smaller of both.
pub const MINOR: u32 = 45;
/// The oldest minor version that is understood: Linux 4.20.
pub const OLDEST_MINOR: u32 = 28;

/// What the kernel and a file system call an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct INodeNo(pub u64);

impl INodeNo {
    /// The root directory.
    pub const ROOT: INodeNo = INodeNo(1);
}

/// What a file system calls something that is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct FileHandle(pub u64);

/// What the kernel calls an owner of locks: a process, or an open file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct LockOwner(pub u64);

/// Opcodes, and what they are called.
macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// What a request asks for (`enum fuse_opcode`).
        #[allow(missing_docs)]
        pub mod opcode {
            $(pub const $name: u32 = $number;)*

            /// What the kernel's header calls an opcode; `None` for one that is not known here.
            pub fn name(opcode: u32) -> Option<&'static str> {
                match opcode {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    DESTROY = 38,
    IOCTL = 39,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    TMPFILE = 51,
    STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}

/// What a notification says (`enum fuse_notify_code`).
#[allow(missing_docs)]
pub mod notify_code {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const INC_EPOCH: i32 = 8;
}

/// Capabilities of INIT: what the kernel offers, and what a file system takes.
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// `InitIn::flags2` and `InitOut::flags2` have the upper half.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
}

/// How a file was opened, in [`OpenOut`].
#[allow(missing_docs)]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Pages that the kernel has of the file are good.
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Bits of [`WriteIn::write_flags`].
pub mod write_flags {
    /// A page of a mapping is written back; the handle is one of those that are open for writing.
    pub const CACHE: u32 = 1 << 0;
    /// [`WriteIn::lock_owner`](super::WriteIn::lock_owner) says something.
    pub const LOCKOWNER: u32 = 1 << 1;
    /// The caller may not keep set-user-id and set-group-id bits.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Bits of [`SetattrIn::valid`].
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

const READ_LOCKOWNER: u32 = 1 << 1;
const LK_FLOCK: u32 = 1 << 0;
const OPEN_KILL_SUIDGID: u32 = 1 << 0;
const FSYNC_FDATASYNC: u32 = 1 << 0;
/// [`InvalEntryOut::flags`]: the name is asked for anew at its next use, and stays until then.
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;

/// Structs of the kernel's layout; each with its size in bytes.
macro_rules! structs {
    ($($(#[$about:meta])* $name:ident = $size:literal {
        $($(#[$of_field:meta])* $field:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $($(#[$of_field])* pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structs! {
    /// What every request begins with.
    Header = 40 {
        /// of the whole request, this header included, bytes
        len: u32,
        opcode: u32,
        /// by which the answer names the request; even
        unique: u64,
        /// what the request is about
        node: INodeNo,
        uid: u32,
        gid: u32,
        /// the thread that waits for the answer; 0: in a pid namespace that cannot be seen from here
        pid: u32,
        _total_extlen: u16,
        _padding: u16,
    }
    /// What every answer and notification begins with.
    OutHeader = 16 {
        len: u32,
        /// 0, a negative errno, or the code of a notification
        error: i32,
        /// 0 for a notification
        unique: u64,
    }
    InitIn = 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        _unused: [u32; 11],
    }
    InitOut = 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        /// ns
        time_gran: u32,
        max_pages: u16,
        _map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        _unused: [u32; 6],
    }
    /// Attributes of an inode.
    Attr = 88 {
        ino: INodeNo,
        size: u64,
        /// of 512 bytes
        blocks: u64,
        /// seconds since the epoch; those before it are negative
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        /// type and permissions
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        _flags: u32,
    }
    AttrOut = 104 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        _dummy: u32,
        attr: Attr,
    }
    /// An inode under a name.
    EntryOut = 128 {
        /// 0: there is none
        node: INodeNo,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    OpenOut = 16 {
        handle: FileHandle,
        /// see [`fopen`]
        open_flags: u32,
        /// with [`fopen::PASSTHROUGH`]
        backing_id: i32,
    }
    CreateOut = 144 {
        entry: EntryOut,
        open: OpenOut,
    }
    ForgetIn = 8 {
        lookups: u64,
    }
    ForgetOne = 16 {
        node: INodeNo,
        lookups: u64,
    }
    BatchForgetIn = 8 {
        count: u32,
        _dummy: u32,
    }
    GetattrIn = 16 {
        flags: u32,
        _dummy: u32,
        handle: u64,
    }
    SetattrIn = 88 {
        /// see [`fattr`]
        valid: u32,
        _padding: u32,
        _handle: u64,
        size: u64,
        _lock_owner: u64,
        atime: i64,
        mtime: i64,
        _ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        _ctimensec: u32,
        mode: u32,
        _unused4: u32,
        uid: u32,
        gid: u32,
        _unused5: u32,
    }
    MknodIn = 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        _padding: u32,
    }
    MkdirIn = 8 {
        mode: u32,
        umask: u32,
    }
    RenameIn = 8 {
        new_parent: INodeNo,
    }
    Rename2In = 16 {
        new_parent: INodeNo,
        /// of `renameat2`
        flags: u32,
        _padding: u32,
    }
    LinkIn = 8 {
        /// what gets another name
        node: INodeNo,
    }
    OpenIn = 8 {
        /// of `open`
        flags: i32,
        open_flags: u32,
    }
    CreateIn = 16 {
        /// of `open`
        flags: i32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    ReadIn = 40 {
        handle: FileHandle,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: LockOwner,
        /// of `open`
        flags: i32,
        _padding: u32,
    }
    WriteIn = 40 {
        handle: FileHandle,
        offset: u64,
        size: u32,
        /// see [`write_flags`]
        write_flags: u32,
        lock_owner: LockOwner,
        /// of `open`
        flags: i32,
        _padding: u32,
    }
    WriteOut = 8 {
        size: u32,
        _padding: u32,
    }
    StatfsOut = 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        _padding: u32,
        _spare: [u32; 6],
    }
    ReleaseIn = 24 {
        handle: FileHandle,
        flags: i32,
        _release_flags: u32,
        lock_owner: LockOwner,
    }
    FsyncIn = 16 {
        handle: FileHandle,
        flags: u32,
        _padding: u32,
    }
    FlushIn = 24 {
        handle: FileHandle,
        _unused: u32,
        _padding: u32,
        lock_owner: LockOwner,
    }
    /// Without FUSE_SETXATTR_EXT.
    SetxattrIn = 8 {
        size: u32,
        /// of `setxattr`
        flags: i32,
    }
    GetxattrIn = 8 {
        /// room for the answer, bytes; 0: how much would it be?
        size: u32,
        _padding: u32,
    }
    GetxattrOut = 8 {
        size: u32,
        _padding: u32,
    }
    /// A lock on bytes `start` to `end`, both included.
    FileLock = 24 {
        start: u64,
        end: u64,
        /// F_RDLCK, F_WRLCK or F_UNLCK
        kind: u32,
        /// the process
        pid: u32,
    }
    LkIn = 48 {
        handle: FileHandle,
        owner: LockOwner,
        lock: FileLock,
        flags: u32,
        _padding: u32,
    }
    InterruptIn = 8 {
        /// of the request to be given up
        unique: u64,
    }
    FallocateIn = 32 {
        handle: FileHandle,
        offset: u64,
        length: u64,
        /// of `fallocate`
        mode: u32,
        _padding: u32,
    }
    LseekIn = 24 {
        handle: FileHandle,
        offset: u64,
        /// of `lseek`
        whence: u32,
        _padding: u32,
    }
    LseekOut = 8 {
        offset: u64,
    }
    CopyFileRangeIn = 56 {
        handle_in: FileHandle,
        offset_in: u64,
        _node_out: u64,
        handle_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: u64,
    }
    /// Of COPY_FILE_RANGE_64.
    CopyFileRangeOut = 8 {
        copied: u64,
    }
    StatxIn = 24 {
        _getattr_flags: u32,
        _reserved: u32,
        _handle: u64,
        sx_flags: u32,
        sx_mask: u32,
    }
    StatxTime = 16 {
        seconds: i64,
        nanoseconds: u32,
        _reserved: u32,
    }
    StatxOut = 288 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        _flags: u32,
        _spare: [u64; 2],
        /// of `statx`
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        _spare0: u16,
        ino: INodeNo,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        _spare2: [u64; 14],
    }
    /// An entry of a directory; its name follows, and zeros up to a multiple of 8 bytes.
    Dirent = 24 {
        ino: INodeNo,
        /// of the entry after it
        offset: u64,
        namelen: u32,
        /// upper bits of a mode, shifted down
        kind: u32,
    }
    Direntplus = 152 {
        entry: EntryOut,
        dirent: Dirent,
    }
    InvalInodeOut = 24 {
        node: INodeNo,
        /// negative: attributes only
        offset: i64,
        /// 0: up to the end
        len: i64,
    }
    InvalEntryOut = 16 {
        parent: INodeNo,
        namelen: u32,
        flags: u32,
    }
}

/// A time in a request to change attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The file system's clock.
    Now,
    /// That time since the epoch; nanoseconds are below 10^9 and count forward, before the epoch too.
    To {
        /// negative before the epoch
        seconds: i64,
        /// forward from `seconds`
        nanoseconds: u32,
    },
}

impl GetattrIn {
    const FH: u32 = 1 << 0;

    /// By way of which open file: the kernel asks before it reads from its pages.
    pub fn handle(&self) -> Option<FileHandle> {
        (self.flags & Self::FH != 0).then_some(FileHandle(self.handle))
    }
}

impl SetattrIn {
    fn has(&self, bit: u32) -> bool {
        self.valid & bit != 0
    }

    /// The permission bits to set.
    pub fn mode(&self) -> Option<u32> {
        self.has(fattr::MODE).then_some(self.mode)
    }

    /// The user to give it to.
    pub fn uid(&self) -> Option<u32> {
        self.has(fattr::UID).then_some(self.uid)
    }

    /// The group to give it to.
    pub fn gid(&self) -> Option<u32> {
        self.has(fattr::GID).then_some(self.gid)
    }

    /// The size to set, bytes.
    pub fn size(&self) -> Option<u64> {
        self.has(fattr::SIZE).then_some(self.size)
    }

    /// The access time to set.
    pub fn atime(&self) -> Option<SetTime> {
        self.time(fattr::ATIME, fattr::ATIME_NOW, self.atime, self.atimensec)
    }

    /// The modification time to set.
    pub fn mtime(&self) -> Option<SetTime> {
        self.time(fattr::MTIME, fattr::MTIME_NOW, self.mtime, self.mtimensec)
    }

    /// The caller may not keep set-user-id and set-group-id bits ([`init::HANDLE_KILLPRIV_V2`]).
    pub fn kills_privileges(&self) -> bool {
        self.has(fattr::KILL_SUIDGID)
    }

    fn time(&self, bit: u32, now: u32, seconds: i64, nanoseconds: u32) -> Option<SetTime> {
        if !self.has(bit) {
            None
        } else if self.has(now) {
            Some(SetTime::Now)
        } else {
            Some(SetTime::To { seconds, nanoseconds })
        }
    }
}

impl ReadIn {
    /// Under whose locks it reads.
    pub fn owner(&self) -> Option<LockOwner> {
        (self.read_flags & READ_LOCKOWNER != 0).then_some(self.lock_owner)
    }
}

impl WriteIn {
    /// Under whose locks it writes.
    pub fn owner(&self) -> Option<LockOwner> {
        (self.write_flags & write_flags::LOCKOWNER != 0).then_some(self.lock_owner)
    }

    /// Whether one of [`write_flags`] is set.
    pub fn has(&self, bit: u32) -> bool {
        self.write_flags & bit != 0
    }
}

impl LkIn {
    /// `flock` asks, not `fcntl`.
    pub fn is_flock(&self) -> bool {
        self.flags & LK_FLOCK != 0
    }
}

impl OpenIn {
    /// With O_TRUNC: the caller may not keep set-user-id and set-group-id bits ([`init::HANDLE_KILLPRIV_V2`]).
    pub fn kills_privileges(&self) -> bool {
        self.open_flags & OPEN_KILL_SUIDGID != 0
    }
}

impl CreateIn {
    /// The same, where the file turns out to be there.
    pub fn kills_privileges(&self) -> bool {
        self.open_flags & OPEN_KILL_SUIDGID != 0
    }
}

impl FsyncIn {
    /// `fdatasync`.
    pub fn is_data_only(&self) -> bool {
        self.flags & FSYNC_FDATASYNC != 0
    }
}

impl AttrOut {
    /// Attributes that the kernel may keep for a while.
    pub fn new(attr: Attr, valid: Duration) -> AttrOut {
        AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            _dummy: 0,
            attr,
        }
    }
}

impl EntryOut {
    /// A name and attributes, and for how long the kernel may keep either.
    pub fn new(attr: Attr, generation: u64, name_valid: Duration, attr_valid: Duration) -> EntryOut {
        EntryOut {
            node: attr.ino,
            generation,
            entry_valid: name_valid.as_secs(),
            attr_valid: attr_valid.as_secs(),
            entry_valid_nsec: name_valid.subsec_nanos(),
            attr_valid_nsec: attr_valid.subsec_nanos(),
            attr,
        }
    }

    /// In a listing: a directory of which nothing is said but its number.
    pub fn bare_directory(ino: INodeNo) -> EntryOut {
        let mut entry = EntryOut::new_zeroed();
        entry.attr.ino = ino;
        entry.attr.mode = 0o040000;
        entry
    }

    /// There is no such name, which the kernel may keep for so long.
    pub fn absent(valid: Duration) -> EntryOut {
        EntryOut {
            entry_valid: valid.as_secs(),
            entry_valid_nsec: valid.subsec_nanos(),
            ..EntryOut::new_zeroed()
        }
    }
}

impl OpenOut {
    /// A file that the file system serves itself.
    pub fn new(handle: FileHandle, open_flags: u32) -> OpenOut {
        OpenOut {
            handle,
            open_flags,
            backing_id: 0,
        }
    }
}

impl WriteOut {
    /// So many bytes were written.
    pub fn new(size: u32) -> WriteOut {
        WriteOut { size, _padding: 0 }
    }
}

impl GetxattrOut {
    /// It would be so many bytes.
    pub fn new(size: u32) -> GetxattrOut {
        GetxattrOut { size, _padding: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn what_is_not_marked_valid_is_not_set() {
        let mut set = SetattrIn::new_zeroed();
        assert_eq!((set.mode(), set.uid(), set.gid(), set.size()), (None, None, None, None));
        assert_eq!((set.atime(), set.mtime()), (None, None));
        (set.size, set.atime, set.atimensec) = (9, -2, 250_000_000);
        set.valid = fattr::SIZE | fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW;
        assert_eq!(set.size(), Some(9));
        let before = SetTime::To {
            seconds: -2,
            nanoseconds: 250_000_000,
        };
        assert_eq!((set.atime(), set.mtime()), (Some(before), Some(SetTime::Now)));
    }
}
