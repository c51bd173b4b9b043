//! What a client asks, and what it is told.

use crate::pattern::Tag;
use polvo_format::FileKind;
use polvo_proto::{FallocateMode, FsError, InodeRef, RenameMode, XattrMode};
use std::fmt;

/// A name in a directory: names are few, so that clients meet.
pub type Name = u8;

/// Bytes of a name. The numbers differ in how many: entries of logs take one to three units for them.
pub fn spelled(name: Name) -> Vec<u8> {
    let rest = [0, 8, 23, 80][usize::from(name % 4)];
    format!("n{name}{:_<rest$}", "").into_bytes()
}

/// The number of a name that [`spelled`] made.
pub fn read_name(bytes: &[u8]) -> Option<Name> {
    let number = std::str::from_utf8(bytes).ok()?.strip_prefix('n')?;
    number.trim_end_matches('_').parse().ok()
}

/// An operation of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Operation {
    Lookup {
        dir: InodeRef,
        name: Name,
    },
    Create {
        dir: InodeRef,
        name: Name,
        kind: FileKind,
    },
    Open {
        inode: InodeRef,
    },
    Close {
        inode: InodeRef,
    },
    Read {
        inode: InodeRef,
        offset: u64,
        len: u64,
    },
    Write {
        inode: InodeRef,
        offset: u64,
        len: u64,
        tag: Tag,
    },
    Append {
        inode: InodeRef,
        len: u64,
        tag: Tag,
    },
    Truncate {
        inode: InodeRef,
        size: u64,
    },
    Fallocate {
        inode: InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    Unlink {
        dir: InodeRef,
        name: Name,
    },
    Rmdir {
        dir: InodeRef,
        name: Name,
    },
    Rename {
        old_dir: InodeRef,
        old: Name,
        new_dir: InodeRef,
        new: Name,
        mode: RenameMode,
    },
    Link {
        inode: InodeRef,
        dir: InodeRef,
        name: Name,
    },
    ReadDir {
        dir: InodeRef,
    },
    GetAttr {
        inode: InodeRef,
    },
    SetMode {
        inode: InodeRef,
        mode: u32,
    },
    SetXattr {
        inode: InodeRef,
        name: Name,
        value: u32,
        mode: XattrMode,
    },
    GetXattr {
        inode: InodeRef,
        name: Name,
    },
    RemoveXattr {
        inode: InodeRef,
        name: Name,
    },
    ListXattr {
        inode: InodeRef,
    },
    /// Of a file, or of all names and attributes.
    Sync {
        inode: Option<InodeRef>,
    },
}

/// What a client is told when an operation has succeeded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was done.
    Done,
    /// This inode.
    Inode(InodeRef, FileKind),
    /// These bytes.
    Bytes(Vec<u8>),
    /// The bytes went there.
    At(u64),
    /// All entries of a directory.
    Entries(Vec<(Name, InodeRef, FileKind)>),
    /// Attributes.
    Attr {
        /// Bytes.
        size: u64,
        /// Names.
        nlink: u32,
        /// Permission bits.
        mode: u32,
        /// Type.
        kind: FileKind,
    },
    /// Value of an extended attribute.
    Value(u32),
    /// Names of all extended attributes, ascending.
    Names(Vec<Name>),
}

/// How an operation ended.
pub type Outcome = Result<Answer, FsError>;

/// True for the errors after which a client does not know whether the operation was, or will be, done.
pub fn leaves_open(error: &FsError) -> bool {
    matches!(error, FsError::Unreachable { .. })
}

impl Operation {
    /// True when it changes nothing, so that one of unknown outcome means nothing.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Operation::Lookup { .. }
                | Operation::Open { .. }
                | Operation::Close { .. }
                | Operation::Read { .. }
                | Operation::ReadDir { .. }
                | Operation::GetAttr { .. }
                | Operation::GetXattr { .. }
                | Operation::ListXattr { .. }
                | Operation::Sync { .. }
        )
    }
}

/// An inode as the trace shows it.
pub struct Shown(pub InodeRef);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ino = self.0.ino;
        write!(
            f,
            "<{}:{}.{}>",
            ino.region().0,
            ino.0 & 0xffff_ffff,
            self.0.generation.0
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |dir: &InodeRef, name: &Name| format!("{}/n{name}", Shown(*dir));
        match self {
            Operation::Lookup { dir, name } => write!(f, "lookup {}", at(dir, name)),
            Operation::Create {
                dir,
                name,
                kind: FileKind::Directory,
            } => write!(f, "mkdir {}", at(dir, name)),
            Operation::Create { dir, name, .. } => write!(f, "create {}", at(dir, name)),
            Operation::Open { inode } => write!(f, "open {}", Shown(*inode)),
            Operation::Close { inode } => write!(f, "close {}", Shown(*inode)),
            Operation::Read { inode, offset, len } => write!(f, "read {} {offset}+{len}", Shown(*inode)),
            Operation::Write {
                inode,
                offset,
                len,
                tag,
            } => {
                write!(f, "write {} {offset}+{len} tag {tag}", Shown(*inode))
            }
            Operation::Append { inode, len, tag } => write!(f, "append {} {len} tag {tag}", Shown(*inode)),
            Operation::Truncate { inode, size } => write!(f, "truncate {} to {size}", Shown(*inode)),
            Operation::Fallocate {
                inode,
                mode,
                offset,
                len,
            } => {
                write!(f, "fallocate {} {mode:?} {offset}+{len}", Shown(*inode))
            }
            Operation::Unlink { dir, name } => write!(f, "unlink {}", at(dir, name)),
            Operation::Rmdir { dir, name } => write!(f, "rmdir {}", at(dir, name)),
            Operation::Rename {
                old_dir,
                old,
                new_dir,
                new,
                mode,
            } => {
                write!(f, "rename {} to {} ({mode:?})", at(old_dir, old), at(new_dir, new))
            }
            Operation::Link { inode, dir, name } => write!(f, "link {} as {}", Shown(*inode), at(dir, name)),
            Operation::ReadDir { dir } => write!(f, "readdir {}", Shown(*dir)),
            Operation::GetAttr { inode } => write!(f, "getattr {}", Shown(*inode)),
            Operation::SetMode { inode, mode } => write!(f, "chmod {} {mode:o}", Shown(*inode)),
            Operation::SetXattr {
                inode,
                name,
                value,
                mode,
            } => {
                write!(f, "setxattr {} n{name} {value} ({mode:?})", Shown(*inode))
            }
            Operation::GetXattr { inode, name } => write!(f, "getxattr {} n{name}", Shown(*inode)),
            Operation::RemoveXattr { inode, name } => write!(f, "removexattr {} n{name}", Shown(*inode)),
            Operation::ListXattr { inode } => write!(f, "listxattr {}", Shown(*inode)),
            Operation::Sync { inode: Some(inode) } => write!(f, "fsync {}", Shown(*inode)),
            Operation::Sync { inode: None } => write!(f, "sync"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Inode(inode, kind) => write!(f, "{} {kind:?}", Shown(*inode)),
            Answer::Bytes(bytes) => {
                let sum = bytes
                    .iter()
                    .fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
                write!(f, "{} bytes (sum {sum:08x})", bytes.len())
            }
            Answer::At(offset) => write!(f, "at {offset}"),
            Answer::Entries(entries) => {
                write!(f, "[")?;
                for (n, (name, inode, _)) in entries.iter().enumerate() {
                    write!(f, "{}n{name} {}", if n > 0 { ", " } else { "" }, Shown(*inode))?;
                }
                write!(f, "]")
            }
            Answer::Attr {
                size,
                nlink,
                mode,
                kind,
            } => write!(f, "{kind:?} size {size} nlink {nlink} mode {mode:o}"),
            Answer::Value(value) => write!(f, "{value}"),
            Answer::Names(names) => write!(f, "{names:?}"),
        }
    }
}
