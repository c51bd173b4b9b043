//! The envelope of requests, what requests and replies are made of, and how they are encoded.

use crate::{FsError, Placement, Reply, Request, SegmentPlace};
use polvo_format::{Attr, Epoch, FileKind, Generation, Gpa, INODE_SIZE, Ino, RegionOffset, SessionId, Tail};
use serde::{Deserialize, Serialize};
use std::iter::Sum;

/// An inode and which of the files that used its slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct InodeRef {
    /// Number.
    pub ino: Ino,
    /// Generation.
    pub generation: Generation,
}

/// On whose behalf a request is made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cred {
    /// A mount: the kernel has checked permissions already.
    Kernel,
    /// A library user; the node checks.
    User {
        /// effective user
        uid: u32,
        /// effective group
        gid: u32,
        /// supplementary groups (at most 64)
        groups: Vec<u32>,
    },
}

/// Envelope of every request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Who calls.
    pub session: SessionId,
    /// Grows by one with each request of one of the session's sets of links (a thread's), which the upper bits number
    /// ([`Call::link_set`]); a retry repeats it.
    pub request_id: u64,
    /// It was sent before, over a connection that is lost, perhaps to an earlier incarnation of the node: whether it was done is to
    /// be looked up in the logs.
    pub again: bool,
    /// Epoch of the caller's cluster map.
    pub epoch: Epoch,
    /// On whose behalf.
    pub cred: Cred,
    /// What.
    pub request: Request,
}

/// Answer to a [`Call`].
pub type Answer = Result<Reply, FsError>;

/// What a new inode is to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewFile {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Bits taken away from them unless the directory has a default access control list.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group (the parent's is used instead when the parent has its set-group-id bit).
    pub gid: u32,
    /// Device number of device files.
    pub rdev: u64,
    /// Target of a symbolic link.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// Extended attributes that it begins with, names and values. Between nodes; what a client sends here is refused.
    pub xattrs: Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>,
}

/// Change of attributes; `None` leaves one as it is. The change time moves always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length (truncate or extend).
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeChange>,
    /// Modification time.
    pub mtime: Option<TimeChange>,
}

/// New value of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeChange {
    /// The node's clock.
    Now,
    /// Nanoseconds since the epoch.
    To(i64),
}

/// Where in a file a write goes. (What travels has an offset, and says beside it whether it is ignored.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAt {
    /// At an offset.
    Offset(u64),
    /// At the end of the file, wherever that is by then.
    End,
}

impl WriteAt {
    /// As requests say it: an offset, and whether it is an append, which ignores it.
    pub fn from_wire(offset: u64, append: bool) -> WriteAt {
        match append {
            true => WriteAt::End,
            false => WriteAt::Offset(offset),
        }
    }

    /// The `offset` and `append` of a request.
    pub fn on_wire(self) -> (u64, bool) {
        (self.in_file(0), self == WriteAt::End)
    }

    /// The offset, in a file of so many bytes.
    pub fn in_file(self, size: u64) -> u64 {
        match self {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => size,
        }
    }
}

/// Bytes of a file that the client has put into space delegated to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WriteRun {
    /// Where in the file (in an append: relative to the end of file).
    pub offset: u64,
    /// Bytes; never 0, never past the delegated pages.
    pub len: u64,
    /// Where the bytes lie.
    pub gpa: Gpa,
}

/// Memory of a caller that the node reads or writes while it serves a request (server-directed transfer). The node moves
/// nothing after its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Key of a memory region of the caller's.
    pub key: u64,
    /// First byte in it.
    pub offset: u64,
}

/// Mapped part of a file; what is not covered reads as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// Where in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where they lie (data page, or log entry for inline bytes). Never crosses a segment.
    pub gpa: Gpa,
}

/// Consecutive free pages handed to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageRun {
    /// First byte; page-aligned.
    pub gpa: Gpa,
    /// Number of pages; a run never crosses a segment.
    pub pages: u32,
}

/// Where the log goes on: enough for a client to pull later entries with one-sided reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogCursor {
    /// The log as known.
    pub tail: Tail,
    /// The log page that holds position `tail`, or the one before it when `tail` lies on a page boundary whose
    /// page is not linked yet; 0 while the log fits the inode.
    pub page: RegionOffset,
}

/// How a directory's log goes on for somebody who knows it as of a tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogSequel {
    /// What is known.
    pub known: LogCursor,
    /// The log was rewritten since: where it ended, and the new log, which says the same up to there.
    pub rewritten: Option<(Tail, LogCursor)>,
}

/// A file's mapping as of a tail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileMap {
    /// Attributes as of `cursor.tail`.
    pub attr: Attr,
    /// The log.
    pub cursor: LogCursor,
    /// Extents by offset, from the asked offset on.
    pub extents: Vec<Extent>,
    /// More extents follow: ask again from the end of the last one.
    pub more: bool,
}

/// Result of a write: the log as it is now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Written {
    /// Where the first byte went.
    pub offset: u64,
    /// Attributes now.
    pub attr: Attr,
    /// The log now.
    pub cursor: LogCursor,
    /// The log entries (whole 64-byte units) after the tail that the caller knew, this write's own included;
    /// `None` when they are too many or the log was rewritten: the caller fetches the map anew.
    #[serde(with = "serde_bytes")]
    pub entries: Option<Vec<u8>>,
    /// Space delegated in addition, as far as asked for and there is any.
    pub space: Vec<PageRun>,
    /// The segments that hold `space`, so that whoever writes there need not ask where they lie.
    pub places: Vec<SegmentPlace>,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirEntry {
    /// Position: give the last one seen to go on. Stable for the life of the entry.
    pub cookie: u64,
    /// Which inode.
    pub target: InodeRef,
    /// Its type.
    pub kind: FileKind,
    /// Name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
}

/// A part of a directory's listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirPage {
    /// Names in the order of their cookies; none at the end.
    pub entries: Vec<DirEntry>,
    /// Cookie that the next new name gets. Names made later have this one or a greater one, so a listing that ends at what its
    /// first page says here ends, however busy the directory is.
    pub next_cookie: u64,
    /// The directory's log.
    pub tail: Tail,
}

impl DirPage {
    /// Does it have the last of the names with cookies below this one? Not known where that was removed; then the next page is empty.
    pub fn reaches(&self, cookie: u64) -> bool {
        let last = self.entries.last();
        last.is_none_or(|last| last.cookie.saturating_add(1) >= cookie)
    }
}

/// A name's inode, found in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Which inode.
    pub target: InodeRef,
    /// Its type.
    pub kind: FileKind,
    /// The directory's log as of this answer.
    pub dir_tail: Tail,
    /// The inode's attributes and tail, when its region is served by the answering node.
    pub attr: Option<(Attr, Tail)>,
}

/// A new or changed inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Attributes.
    pub attr: Attr,
    /// Its log.
    pub tail: Tail,
    /// The log of the directory that got the name (after the operation).
    pub dir_tail: Tail,
    /// All of that is as of now, and it was made some time ago, by the same request: others may have changed it since.
    pub before: bool,
}

/// What `rename` is to do when the new name exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it (POSIX).
    Replace,
    /// Fail with EEXIST.
    NoReplace,
    /// Swap the two.
    Exchange,
    /// As `Replace` or `NoReplace`, with a whiteout left at the old name: a character device 0/0, by which an overlay file
    /// system knows that the name is no more.
    Whiteout {
        /// the new name may exist
        replace: bool,
        /// owner and group of the whiteout, as for a new file
        owner: (u32, u32),
    },
}

impl RenameMode {
    /// What the new name stands for loses it.
    pub fn replaces(self) -> bool {
        matches!(self, RenameMode::Replace | RenameMode::Whiteout { replace: true, .. })
    }

    /// The new name must not exist.
    pub fn must_be_new(self) -> bool {
        matches!(
            self,
            RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. }
        )
    }
}

/// What `setxattr` is to do about an attribute that exists, or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// Fail with EEXIST when it exists.
    Create,
    /// Fail with ENODATA when it does not.
    Replace,
}

/// What `fallocate` is to do. Space is never reserved: data is copied on write, so that a page taken for a range today is not the
/// page that a write to it will need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FallocateMode {
    /// Free the range (the size stays).
    PunchHole,
    /// Zero the range; the flag says whether the size stays.
    ZeroRange {
        /// leave the size alone
        keep_size: bool,
    },
}

/// A participant's part of a transaction, as collected: the coordinator logs and dispatches it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collected {
    /// Bytes to write, in order; addresses in the participant's region.
    pub writes: Vec<(Gpa, serde_bytes::ByteBuf)>,
    /// Lock words (of the inodes involved) that hold the transaction's id and are to be swapped to 0 at the end.
    pub locks: Vec<Gpa>,
    /// One result an intent.
    pub outcomes: Vec<Outcome>,
}

/// One change that a transaction wants of a region. Names are checked again when staged, so that a decision taken
/// on an old view fails instead of doing harm.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Intent {
    /// A fresh inode with one name (directories: nlink 2, `parent` as parent).
    NewInode {
        /// what
        file: NewFile,
        /// the directory that will name it
        parent: InodeRef,
        /// inherit this placement attribute (directories)
        placement: Placement,
        /// nlink 0: a temporary file without a name, held open by the asking session
        unnamed: bool,
    },
    /// Enter a name; fails when it exists.
    AddName {
        /// where
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// inode to name; `None`: the inode that the `NewInode` before it in this list made
        target: Option<InodeRef>,
        /// its type
        kind: FileKind,
    },
    /// Remove a name; fails unless it names `target`.
    RemoveName {
        /// where
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// what it must name
        target: InodeRef,
    },
    /// Point an existing name at another inode; fails unless it names `old`.
    ReplaceName {
        /// where
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// what it must name
        old: InodeRef,
        /// what it names then
        new: InodeRef,
        /// its type
        kind: FileKind,
    },
    /// One name more.
    AddLink {
        /// inode (no directory)
        inode: InodeRef,
    },
    /// One name less; at 0 the inode dies (freed once nobody holds it open).
    DropLink {
        /// inode (no directory)
        inode: InodeRef,
    },
    /// Kill a directory; fails unless it is empty.
    DropDirectory {
        /// directory
        inode: InodeRef,
    },
    /// A directory was renamed into another parent.
    SetParent {
        /// directory
        inode: InodeRef,
        /// new parent
        parent: InodeRef,
    },
    /// Move the change time only (a renamed file).
    Touch {
        /// inode
        inode: InodeRef,
    },
    /// Check that a directory is alive and hold it still (the target directory of a link or rename).
    Pin {
        /// directory
        inode: InodeRef,
    },
}

/// A token of an inode, and what the inode is as of when it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Token {
    /// No other one of this node has it; later ones have greater ones.
    pub number: u64,
    /// Attributes.
    pub attr: Attr,
    /// Where the log ends.
    pub tail: Tail,
    /// It has no extended attributes.
    pub is_bare: bool,
}

/// Result of one intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The inode after the change.
    pub attr: Attr,
    /// Its tail after the change.
    pub tail: Tail,
}

/// What a session that opens a file for writing asks for beside it: the right to map the file shared and writable, which one
/// session at a time has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapClaim {
    /// Nothing: it only writes.
    No,
    /// The right, unless another session has it or has the file open for writing.
    IfAlone,
    /// The right that it had before the node forgot its session, unless another session has it by now.
    Still,
}

/// State of a transaction as its coordinator knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TxnState {
    /// Not decided yet.
    Undecided,
    /// Decided; the coordinator dispatches until it succeeds.
    Committed,
    /// Unknown or given up: the participant lets go.
    Aborted,
}

/// Space and inodes of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of the pool's segments.
    pub total_bytes: u64,
    /// Bytes free for data (free segments and free pages of the regions that are served there).
    pub free_bytes: u64,
    /// Those of them that no region has yet.
    pub free_segment_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub free_inodes: u64,
    /// Bytes of pages that hold file data (or are delegated to be written to).
    pub data_bytes: u64,
}

/// Room for files that have some number of replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// With what is there already.
    pub total_bytes: u64,
    /// As it is now.
    pub free_bytes: u64,
    /// Inodes that could still be made, if nothing else was.
    pub free_inodes: u64,
}

impl Room {
    /// What a cluster of these nodes has room for, if each byte is kept at so many of them. A free page of a region has its copies already,
    /// where no others can have theirs; free segments are divided.
    pub fn of(nodes: &[Usage], replicas: u8) -> Room {
        let replicas = usize::from(replicas).clamp(1, nodes.len().max(1));
        let of_all = |what: fn(&Usage) -> u64| divided(nodes.iter().map(what).collect(), replicas);
        let all: Usage = nodes.iter().copied().sum();
        let (total_bytes, segments) = (of_all(|node| node.total_bytes), of_all(|node| node.free_segment_bytes));
        let pages = all.free_bytes.saturating_sub(all.free_segment_bytes);
        let inodes = |bytes: u64| bytes / INODE_SIZE as u64;
        Room {
            total_bytes,
            free_bytes: (segments + pages).min(total_bytes),
            free_inodes: inodes(segments) + all.free_inodes.saturating_sub(inodes(all.free_segment_bytes)),
        }
    }
}

/// How much fits where these have so much room each, if it is kept at so many of them: those with most have no more of it than there is.
fn divided(mut room: Vec<u64>, replicas: usize) -> u64 {
    room.sort_unstable_by(|a, b| b.cmp(a));
    let with_all_of_the_largest = |whole: usize| room.iter().skip(whole).sum::<u64>() / (replicas - whole) as u64;
    (0..replicas).map(with_all_of_the_largest).min().unwrap_or(0)
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(usages: I) -> Usage {
        usages.fold(Usage::default(), |sum, node| Usage {
            total_bytes: sum.total_bytes + node.total_bytes,
            free_bytes: sum.free_bytes + node.free_bytes,
            free_segment_bytes: sum.free_segment_bytes + node.free_segment_bytes,
            inodes: sum.inodes + node.inodes,
            free_inodes: sum.free_inodes + node.free_inodes,
            data_bytes: sum.data_bytes + node.data_bytes,
        })
    }
}

/// Why bytes were no message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct DecodeError(pub String);

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(DecodeError(format!("{} bytes after the end", rest.len()))),
        Err(e) => Err(DecodeError(e.to_string())),
    }
}

pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    // most fit, so that memory is asked for once
    postcard::to_extend(message, Vec::with_capacity(512)).expect("messages hold nothing that postcard cannot encode")
}

impl Call {
    /// Bits of a request's number that count the requests of one set of links.
    const COUNT_BITS: u32 = 40;

    /// Number of the `n`th request over a set of links.
    pub fn request_id(link_set: u64, n: u64) -> u64 {
        link_set << Call::COUNT_BITS | n
    }

    /// Number of the set of links, among those of the session, over which the request came.
    pub fn link_set(request_id: u64) -> u64 {
        request_id >> Call::COUNT_BITS
    }

    /// Bytes for the wire.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The same, sent again.
    pub fn again(&self) -> Call {
        Call {
            again: true,
            ..self.clone()
        }
    }

    /// Parses bytes from the wire and checks all lengths against the limits of this crate.
    pub fn decode(bytes: &[u8]) -> Result<Call, DecodeError> {
        let call: Call = decode(bytes)?;
        call.check_limits()?;
        Ok(call)
    }
}

/// Bytes of an answer for the wire.
pub fn encode_answer(answer: &Answer) -> Vec<u8> {
    encode(answer)
}

/// Parses an answer from the wire.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, DecodeError> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn free_pages_have_their_copies_already_and_free_segments_are_divided() {
        // of 6 MiB 3 are free; each of two regions has a segment of which half is free, and its copy
        let usage = Usage {
            total_bytes: 6 * MIB,
            free_bytes: 4 * MIB,
            free_segment_bytes: 3 * MIB,
            free_inodes: 3 * MIB / INODE_SIZE as u64 + 50,
            ..Usage::default()
        };
        let nodes = [usage; 2];
        let room = Room::of(&nodes, 2);
        assert_eq!((room.total_bytes, room.free_bytes), (6 * MIB, 5 * MIB));
        assert_eq!(room.free_inodes, 3 * MIB / INODE_SIZE as u64 + 100);
        let once = Room::of(&nodes, 1);
        assert_eq!(
            (once.total_bytes, once.free_bytes, once.free_inodes),
            (12 * MIB, 8 * MIB, 2 * usage.free_inodes)
        );
        assert_eq!(Room::of(&nodes, 0), once, "no number is one");
        assert_eq!(Room::of(&nodes, 3), room, "no more than there are nodes");
        assert_eq!(Room::of(&[], 2).total_bytes, 0);
    }

    /// Copies lie at different nodes: what one node has more than all others can have no copies.
    #[test]
    fn there_is_no_room_for_copies_at_one_node_alone() {
        for (room, replicas, fits) in [
            (vec![2300, 56, 92], 2, 148),
            (vec![100, 100, 100], 2, 150),
            (vec![100, 0, 0], 2, 0),
            (vec![100, 0, 0], 1, 100),
            (vec![300, 200, 10, 10], 3, 20),
            (vec![30, 30, 30, 30, 30], 3, 50),
        ] {
            assert_eq!(divided(room.clone(), replicas), fits, "{room:?} for {replicas}");
        }
    }
}
