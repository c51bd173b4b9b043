//! What a caller may ask of a node, and by what each request is answered.
//!
//! One table defines [`Request`], which travels; [`RequestKind`], its kinds; and for each kind a struct of its own in
//! [`ask`], which names the type of its answer ([`Ask::Answer`]). Who asks and who serves speak in the structs, so that
//! an answer of another kind is refused in one place ([`Ask::answered`]).
//!
//! ```
//! use polvo_format::NodeId;
//! use polvo_proto::{Ask, FsError, Reply, Request, ask, reply};
//! # use polvo_format::Generation;
//! # use polvo_proto::{InodeRef, Usage};
//! # let inode = InodeRef { ino: polvo_format::Ino::ROOT, generation: Generation(1) };
//!
//! let request: Request = ask::Parent { inode }.into(); // to be sent
//! let answer = ask::Parent::reply(Ok(inode)); // what serves it has found `inode`
//! assert_eq!(answer, Ok(Reply::Parent(inode)));
//!
//! let parent: Result<InodeRef, FsError> = ask::Parent::answered(answer, NodeId(7));
//! assert_eq!(parent, Ok(inode));
//! let error = ask::Parent::answered(Ok(Reply::Done), NodeId(7)).unwrap_err();
//! assert_eq!(error.to_string(), "input/output error: node 7 did not answer what it was asked (Parent)");
//! ```

use crate::{
    Answer, CheckFacts, ClusterMap, Collected, CopyPlace, DirPage, FallocateMode, FileMap, Found, FsError, InodeRef,
    Intent, LanePlace, LockAsk, LockRange, LockSeen, LockTerm, LockTicket, LockWait, Locked, LockedBy, LogSequel, Made,
    MapClaim, NewFile, NodeInfo, Outcome, PageRun, RenameMode, Reply, ScrubPlace, Scrubbed, ScrubbedCopies, SegmentMap,
    TxnState, Usage, Window, WriteRun, XattrMode, reply,
};
use polvo_consensus::register;
use polvo_format::{Epoch, Generation, Ino, Lsn, NodeId, PoolPast, RegionId, RegionOffset, SessionId, Tail, TxnId};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// A request that names the type of its answer: a struct of [`ask`], or any [`Request`], which is answered by any
/// [`Reply`].
pub trait Ask: Into<Request> {
    /// What is answered when it succeeds.
    type Answer;

    /// The request's name, for messages.
    const NAME: &'static str;

    /// The answer that a reply holds; `None` for a reply of another kind.
    fn answer_of(reply: Reply) -> Option<Self::Answer>;

    /// The reply that holds an answer.
    fn reply_of(answer: Self::Answer) -> Reply;

    /// What a service has to say, as it travels.
    fn reply(result: Result<Self::Answer, FsError>) -> Answer {
        result.map(Self::reply_of)
    }

    /// What a node has answered.
    ///
    /// # Errors
    /// The node's own; EIO, with the node and the request named, when it has answered something else than it was asked.
    fn answered(answer: Answer, node: NodeId) -> Result<Self::Answer, FsError> {
        Self::answer_of(answer?).ok_or_else(|| strange_answer(node, Self::NAME))
    }
}

#[cold]
fn strange_answer(node: NodeId, request: &str) -> FsError {
    FsError::Io(format!("node {} did not answer what it was asked ({request})", node.0))
}

impl Ask for Request {
    type Answer = Reply;
    const NAME: &'static str = "Request";

    fn answer_of(reply: Reply) -> Option<Reply> {
        Some(reply)
    }

    fn reply_of(answer: Reply) -> Reply {
        answer
    }
}

/// The struct of a request.
macro_rules! request_struct {
    ($(#[doc = $about:literal])* $kind:ident) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub struct $kind;

        impl From<$kind> for Request {
            fn from(_: $kind) -> Request {
                Request::$kind
            }
        }
    };
    ($(#[doc = $about:literal])* $kind:ident ($only:ty)) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub struct $kind(pub $only);

        impl From<$kind> for Request {
            fn from(ask: $kind) -> Request {
                Request::$kind(ask.0)
            }
        }
    };
    ($(#[doc = $about:literal])* $kind:ident { $( $(#[doc = $doc:literal])* $field:ident: $ty:ty, )* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub struct $kind {
            $( $(#[doc = $doc])* pub $field: $ty, )*
        }

        impl From<$kind> for Request {
            fn from(ask: $kind) -> Request {
                let $kind { $($field),* } = ask;
                Request::$kind { $($field),* }
            }
        }
    };
}

/// Which replies hold the answer to a request: those of one kind, with what they wrap; or those that make a type of
/// [`reply`].
macro_rules! request_answer {
    ($kind:ident -> $reply:ident ($answer:ty)) => {
        impl Ask for ask::$kind {
            type Answer = $answer;
            const NAME: &'static str = stringify!($kind);

            fn answer_of(reply: Reply) -> Option<$answer> {
                match reply {
                    Reply::$reply(answer) => Some(answer),
                    _ => None,
                }
            }

            fn reply_of(answer: $answer) -> Reply {
                Reply::$reply(answer)
            }
        }
    };
    ($kind:ident -> $answer:ident) => {
        impl Ask for ask::$kind {
            type Answer = reply::$answer;
            const NAME: &'static str = stringify!($kind);

            fn answer_of(reply: Reply) -> Option<reply::$answer> {
                reply.try_into().ok()
            }

            fn reply_of(answer: reply::$answer) -> Reply {
                answer.into()
            }
        }
    };
}

macro_rules! requests {
    ($(
        $(#[doc = $about:literal])*
        $kind:ident
        $( { $( $(#[doc = $doc:literal])* $(#[serde($($how:tt)*)])? $field:ident: $ty:ty, )* } )?
        $( ($only:ty) )?
        -> $reply:ident $( ($answer:ty) )?,
    )*) => {
        /// What a caller may ask of a node. The number of a kind on the wire is its place.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum Request {
            $(
                $(#[doc = $about])*
                $kind
                $( { $( $(#[doc = $doc])* $(#[serde($($how)*)])? $field: $ty, )* } )?
                $( ($only) )?,
            )*
        }

        /// Kinds of requests.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum RequestKind {
            $( $(#[doc = $about])* $kind, )*
        }

        impl RequestKind {
            /// Their names, by their numbers.
            pub const NAMES: &[&str] = &[$( stringify!($kind) ),*];
        }

        impl Request {
            /// Which kind it is.
            pub fn kind(&self) -> RequestKind {
                match self {
                    $( Request::$kind { .. } => RequestKind::$kind, )*
                }
            }
        }

        /// A struct for each kind of request.
        pub mod ask {
            use super::*;

            $( request_struct!($(#[doc = $about])* $kind $( { $( $(#[doc = $doc])* $field: $ty, )* } )? $( ($only) )?); )*
        }

        $( request_answer!($kind -> $reply $( ($answer) )?); )*
    };
}

// At the end only: the places are the numbers on the wire.
requests! {
    /// First call on a connection: opens (or rejoins) the session at this node.
    Attach {
        /// [`crate::PROTOCOL_VERSION`]
        version: u32,
        /// shown in `polvo status`
        name: String,
        /// the node this client runs inside of or beside, for placement by [`crate::Placement::local`]
        home: Option<NodeId>,
        /// how often this session has reported operations at this node as failed that may still be on their way:
        /// connections that were attached with a smaller number, and older ones of the same set of links, are closed,
        /// and their requests have ended before this one is answered
        fence: u64,
        /// the session asks for `Sync` where that is needed; else the node makes each of its changes durable before it answers
        syncs: bool,
    } -> Attached,
    /// Renews the lease, and says that no one-sided read of this session that began before that tick is still under way
    /// (quarantine).
    Heartbeat {
        /// the newest tick seen
        tick: u64,
    } -> Renewed,
    /// Ends the session: everything it holds is returned.
    Detach -> Done,
    /// The cluster map.
    Map -> Map(ClusterMap),
    /// Where a region's segments lie, at most [`crate::SEGMENTS_PAGE`] of them: a full page says to ask on.
    Segments {
        /// which
        region: RegionId,
        /// smallest segment index wanted
        from: u32,
    } -> Segments(SegmentMap),
    /// Finds a name.
    Lookup {
        /// directory
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Found(Found),
    /// Attributes of an inode whose generation is not known (`None`) or must match.
    GetAttr {
        /// number
        ino: Ino,
        /// generation
        generation: Option<Generation>,
    } -> Attr,
    /// Changes attributes.
    SetAttr {
        /// inode
        inode: InodeRef,
        /// what
        set: crate::SetAttr,
    } -> Attr,
    /// Makes an inode and its name; EEXIST when the name exists. With `open`, the caller also holds it open.
    Create {
        /// directory
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// what
        file: NewFile,
        /// hold it open
        open: bool,
    } -> Made(Made),
    /// Makes a file without a name in the region of choice of `dir` and holds it open.
    CreateUnnamed {
        /// directory whose placement and group apply
        dir: InodeRef,
        /// what
        file: NewFile,
    } -> Made(Made),
    /// Removes a name of something that is no directory.
    Unlink {
        /// directory
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Removed,
    /// Removes an empty directory.
    Rmdir {
        /// its parent
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Removed,
    /// Adds a name.
    Link {
        /// inode (no directory)
        inode: InodeRef,
        /// directory
        dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Attr,
    /// Renames. Sent to the primary of `new_dir`, which coordinates.
    Rename {
        /// directory
        old_dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        old_name: Vec<u8>,
        /// directory
        new_dir: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        new_name: Vec<u8>,
        /// how
        mode: RenameMode,
    } -> Renamed,
    /// Target of a symbolic link.
    ReadLink {
        /// inode
        inode: InodeRef,
    } -> Target,
    /// Entries of a directory after a position.
    ReadDir {
        /// directory
        dir: InodeRef,
        /// 0, or the cookie of the last entry seen
        after: u64,
        /// how many at the most
        max: u32,
    } -> Entries(DirPage),
    /// Holds an inode open (it outlives its last name while held) and asks for its map.
    Open {
        /// inode
        inode: InodeRef,
    } -> FileMap(FileMap),
    /// Extents of a file from an offset on.
    Extents {
        /// inode
        inode: InodeRef,
        /// file offset
        from: u64,
    } -> FileMap(FileMap),
    /// Lets go of inodes held open.
    Release {
        /// which
        inodes: Vec<InodeRef>,
    } -> Done,
    /// Eager write: the bytes travel along.
    Write {
        /// inode
        inode: InodeRef,
        /// file offset (ignored in an append)
        offset: u64,
        /// write at the end of file, wherever that is
        append: bool,
        /// the log as the caller knows it
        known: Tail,
        /// at most [`crate::EAGER_MAX`]
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    } -> WriteAnswer,
    /// Log commit: the data lies in space delegated to the session already (client-active write).
    Commit {
        /// inode
        inode: InodeRef,
        /// where the bytes lie; in ascending, non-overlapping order of offset
        runs: Vec<WriteRun>,
        /// CRC-32C of what lies in each page that the runs touch, 4 bytes each; or none
        #[serde(with = "serde_bytes")]
        crcs: Vec<u8>,
        /// offsets are relative to the end of file
        append: bool,
        /// the log as the caller knows it
        known: Tail,
        /// pages to delegate in the reply
        want_pages: u32,
    } -> WriteAnswer,
    /// Changes the mapping of a range.
    Fallocate {
        /// inode
        inode: InodeRef,
        /// how
        mode: FallocateMode,
        /// file offset
        offset: u64,
        /// bytes
        len: u64,
    } -> Attr,
    /// Makes earlier operations durable against power loss where the medium needs it (plain files).
    Sync -> Done,
    /// Asks for space in a region to write to.
    Delegate {
        /// region
        region: RegionId,
        /// pages wanted; fewer may come
        pages: u32,
    } -> Space(Vec<PageRun>),
    /// Gives unused delegated space back.
    ReturnSpace {
        /// which
        runs: Vec<PageRun>,
    } -> Done,
    /// Value of an extended attribute.
    GetXattr {
        /// inode
        inode: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Bytes(Vec<u8>),
    /// Names of all extended attributes.
    ListXattr {
        /// inode
        inode: InodeRef,
    } -> Names(Vec<ByteBuf>),
    /// Sets an extended attribute.
    SetXattr {
        /// inode
        inode: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// value
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// how
        mode: XattrMode,
    } -> Attr,
    /// Removes an extended attribute.
    RemoveXattr {
        /// inode
        inode: InodeRef,
        /// name
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Attr,
    /// Space and inodes of this node.
    Usage -> Usage(Usage),
    /// Which eras the pool of the node that asks has had, and which the one that answers. Nodes only. EIO
    /// ([`FsError::SetBack`]) when the node that answers has seen a later copy.
    Past(PoolPast) -> Past(PoolPast),
    /// Everything `polvo status` shows of this node, as JSON.
    Status -> Json(String),
    /// Checks a region online. The facts come in pages of one and the same check; asking for page 0 runs a new one.
    Check {
        /// which
        region: RegionId,
        /// 0, or `next` of the page before
        page: u64,
    } -> Facts(CheckFacts),
    /// Compares some of a region's file data with its checksums.
    Scrub {
        /// which
        region: RegionId,
        /// `next` of the answer before; at first the default
        from: ScrubPlace,
    } -> Scrubbed(Scrubbed),
    /// Ends the daemon in good order (role node or administrator).
    Shutdown -> Done,

    /// Node to node: lock and stage a participant's part (collect).
    Collect {
        /// transaction
        txn: TxnId,
        /// region
        region: RegionId,
        /// session on whose behalf (it holds an unnamed inode open)
        on_behalf: SessionId,
        /// open the new inode for that session
        open: bool,
        /// what
        intents: Vec<Intent>,
    } -> Collected(Collected),
    /// Node to node: how did this transaction end?
    TxnState {
        /// transaction
        txn: TxnId,
    } -> TxnState(TxnState),
    /// Node to node: closes all other connections of the calling node, so that nothing it sent over them before
    /// takes effect after the answer (asked before something is dispatched again).
    Fence -> Done,
    /// Node to node: take (or give back) the cluster-wide lock under which directories change parents. Granted by
    /// the primary of region 0 for a bounded time; asking again tells whether the grant still holds.
    RenameLock {
        /// transaction that takes it
        txn: TxnId,
        /// give it back
        release: bool,
    } -> Granted(u64),
    /// Node to node: a directory's parent (for the check that a rename makes no loop).
    Parent {
        /// directory
        inode: InodeRef,
    } -> Parent(InodeRef),

    /// Takes an advisory lock; EAGAIN when somebody else's is in the way, unless `wait` says to queue for it. Asking
    /// again for what the owner has already changes nothing.
    Lock {
        /// inode
        inode: InodeRef,
        /// what is wanted
        lock: LockAsk,
        /// queue for it; repeated with the same ticket, the caller keeps its place
        wait: Option<LockTicket>,
    } -> LockAnswer,
    /// Lets go of what an owner has locked in a range; all of it: of everything, waits that nobody asks after included.
    Unlock {
        /// inode
        inode: InodeRef,
        /// who
        owner: u64,
        /// which bytes
        range: LockRange,
    } -> Done,
    /// Asks what is in the way of a lock.
    TestLock {
        /// inode
        inode: InodeRef,
        /// the lock
        lock: LockAsk,
    } -> LockSeen(Option<LockSeen>),
    /// Leaves the queue for a lock; who waits with that ticket gets EINTR. Nothing happens when it was granted before.
    CancelLock {
        /// inode
        inode: InodeRef,
        /// number of the ticket
        ticket: u64,
    } -> Done,
    /// Node to node: who waits for whom here (deadlock detection).
    LockWaits -> LockWaits(Vec<LockWait>),
    /// Inodes that were read: their access times move where the rule says so. At most [`crate::RELEASE_MAX`].
    Accessed {
        /// which, with the tail of each one's log when it was read: an access time that was set after that stays
        inodes: Vec<(InodeRef, Tail)>,
        /// `strictatime`: at each read; otherwise the rule of `relatime`
        strict: bool,
    } -> Tails(Vec<Tail>),
    /// Server-directed read: the node puts the bytes into the caller's memory, or into the answer.
    Read {
        /// inode
        inode: InodeRef,
        /// file offset
        offset: u64,
        /// at most [`crate::TRANSFER_MAX`], in the answer [`crate::EAGER_READ_MAX`]
        len: u64,
        /// where to; `None`: the answer
        into: Option<Window>,
        /// the node compares the bytes with their checksums
        verify: bool,
    } -> Read,
    /// Server-directed write: the node fetches the bytes from the caller's memory.
    WriteFrom {
        /// inode
        inode: InodeRef,
        /// file offset (ignored in an append)
        offset: u64,
        /// write at the end of file, wherever that is
        append: bool,
        /// the log as the caller knows it
        known: Tail,
        /// where they lie
        from: Window,
        /// at most [`crate::TRANSFER_MAX`], not 0
        len: u64,
    } -> WriteAnswer,
    /// Node to node: stage, lock and log a participant's part (two-phase commit, first phase).
    Prepare {
        /// transaction
        txn: TxnId,
        /// region
        region: RegionId,
        /// session on whose behalf (it holds an unnamed inode open)
        on_behalf: SessionId,
        /// open the new inode for that session
        open: bool,
        /// what
        intents: Vec<Intent>,
    } -> Prepared(Vec<Outcome>),
    /// Node to node: how a transaction ended that a region has prepared (two-phase commit, second phase).
    Conclude {
        /// transaction
        txn: TxnId,
        /// region
        region: RegionId,
        /// put it in place; else give it up
        commit: bool,
    } -> Done,
    /// Asks how a directory's log goes on: it was rewritten, or where its pages lie is not known.
    FollowLog {
        /// directory
        dir: InodeRef,
        /// the log as the caller knows it
        known: Tail,
    } -> LogSequel(Option<LogSequel>),
    /// Has the number of an earlier request about a region, which was sent over a connection that is lost, or was answered with an
    /// error that does not say whether it was done: its answer, if it was done. If not, it is withdrawn and never will be: `Attach`
    /// has closed the connection that it was sent over. Who does not serve the region cannot say.
    Withdraw {
        /// region
        region: RegionId,
    } -> Reply,
    /// As `Open`, and notes that the session has the file open for writing (`Create` and `CreateUnnamed` with `open` do
    /// so by themselves, and give the right to map it). Asking again changes nothing but the number.
    OpenToWrite {
        /// inode
        inode: InodeRef,
        /// the right to map it
        claim: MapClaim,
        /// grows with each of the session's requests of this kind, from 1 on
        number: u64,
        /// answer with the file's map
        want_map: bool,
    } -> OpenedToWrite,
    /// The session has files open for writing no longer; the right to map them goes too. At most
    /// [`crate::RELEASE_MAX`].
    EndWriting {
        /// which, with the number of the last `OpenToWrite` that counts: where a later one has come, nothing ends. 0:
        /// none came after the `Create`
        inodes: Vec<(InodeRef, u64)>,
    } -> Done,
    /// Takes tokens: nothing of these inodes changes from now on before the session was asked and has answered, for as long as
    /// its lease on tokens at this node lasts. That lease ends [`crate::reply::Taken::lease_ms`] after this request was
    /// received, or the last [`Request::Watch`]; who asks counts from when he sent it.
    TakeTokens {
        /// at most [`crate::TOKENS_PAGE`]
        inodes: Vec<InodeRef>,
    } -> Taken,
    /// Answers what was asked for, renews the lease on tokens (unless an answer is overdue), and waits a while for more to be asked
    /// for.
    Watch {
        /// what the answer to the request before said; 0: nothing is known of it
        term: u64,
        /// tokens that are given back, by number: nothing is believed by them any more. At most [`crate::TOKENS_PAGE`]
        answered: Vec<u64>,
        /// all others go back too, and nothing is waited for
        end: bool,
    } -> Asked,
    /// Node to node: the primary of a region asks for the lane by which the copy of the region here follows it. Whatever was posted to
    /// it before takes no effect any more.
    AttachMirror {
        /// which
        region: RegionId,
        /// log2 of the primary's segment size, which has to be that of all who have a copy
        segment_shift: u32,
        /// begin anew, behind the record of this number: what the copy has is no region any more, and is compared with what it is to have
        fill_from: Option<Lsn>,
        /// under which the primary gives locks
        locks: LockTerm,
    } -> Lane(LanePlace),
    /// Node to node: takes segments for a copy, unless it has them. At most [`crate::SEGMENTS_PAGE`]. ENOSPC when the pool has no more.
    /// Answered with where each one lies, and whether it was there.
    MirrorSegments {
        /// of which region
        region: RegionId,
        /// index in the region, and class
        segments: Vec<(u32, u8)>,
    } -> Places(Vec<(u64, bool)>),
    /// Node to node: of the segments in a range a copy that is being filled keeps only these, as far as it has them; others go back to
    /// the pool. At most [`crate::SEGMENTS_PAGE`].
    KeepSegments {
        /// of which region
        region: RegionId,
        /// of its lane, as it was attached to last: a request that is late would take away what has come since
        key: u64,
        /// the range: first and last index in the region
        range: (u32, u32),
        /// index in the region, and class
        segments: Vec<(u32, u8)>,
    } -> Done,
    /// Node to node: makes sums of pages of a copy that is being filled, of what is there now, and sees to it that this is durable.
    /// Answered with the 128-bit XXH3 of each page, 16 bytes, little-endian; the lane's key is their seed. EINVAL for pages that the copy
    /// does not have.
    PageSums {
        /// of which region
        region: RegionId,
        /// of its lane, as it was attached to last
        key: u64,
        /// index in the region
        segment: u32,
        /// the first page of the segment
        first: u32,
        /// how many, at most [`crate::SUMS_MAX`]
        count: u32,
        /// each with the word behind it that is its checksum ([`polvo_format::PageChecksum`])
        checksums: bool,
    } -> Bytes(Vec<u8>),
    /// Node to node: puts in place what has come to a copy's lane, which makes room there.
    ApplyMirror {
        /// of which region
        region: RegionId,
        /// the copy has got all that the region held when it was begun
        whole: bool,
    } -> Applied(Lsn),
    /// Node to node: the primary of regions that have a mirror here is there, and goes by the map of that epoch. Answered with that of
    /// the newest map here. `WrongEpoch`: its place is being taken, or was since that map.
    Beacon {
        /// of its map
        epoch: Epoch,
    } -> Heard(Epoch),
    /// Reads bytes of a region with copies, in order, as one-sided reads do, where those do not know whether others may have taken the
    /// primary's place, or not all mirrors have what they found. At most [`crate::EAGER_READ_MAX`], in at most [`crate::READS_MAX`] pieces.
    ReadBytes {
        /// which
        region: RegionId,
        /// offset and length of each
        pieces: Vec<(RegionOffset, u32)>,
    } -> Shown,
    /// Node to node: asks a voter of the register whose value the cluster map is. Asking again changes nothing.
    Register(Box<register::Ask<ClusterMap>>) -> Register(Box<register::Answer<ClusterMap>>),
    /// Node to node: this map was chosen.
    NewMap(Box<ClusterMap>) -> Done,
    /// Node to node: closes all connections of another node here, and takes away the key by which nodes write, so that nothing it sent
    /// before takes effect after the answer: it was taken for dead, and what it had decided is dispatched by who has taken its place.
    FenceOff {
        /// which
        node: NodeId,
    } -> Done,
    /// Claims locks back that an owner had of an inode when another node served it, or this one before it was started anew. Asking
    /// again changes nothing. Answered with the term under which they count from now on; none: somebody else may have had them since.
    ClaimLocks {
        /// inode
        inode: InodeRef,
        /// who
        owner: u64,
        /// under which they were had
        term: LockTerm,
        /// ranges; at most [`crate::LOCK_CLAIMS_MAX`]
        ranges: Vec<Locked>,
        /// the file as a whole (`flock`)
        whole: Option<Locked>,
    } -> Claimed(Option<LockTerm>),
    /// Takes a node out of the cluster, one step further: for administrators, of a node that stays. To be asked until nothing is left of
    /// it. Answered with the regions of which it has a copy yet; `None`: it is removed. EINVAL: it may not be, and why.
    RemoveNode {
        /// which
        node: NodeId,
        /// it is gone for good: nothing is waited for, and where no majority of the voters is left the node that is asked votes alone
        force: bool,
    } -> Remaining(Option<Vec<RegionId>>),
    /// Takes a node into the cluster: for administrators. It has no region, and does not vote, until others give it some and have it do so.
    /// Asking again changes nothing. Answered with a map that names it. EINVAL: it may not be, and why.
    AddNode(Box<NodeInfo>) -> Map(ClusterMap),
    /// Has another node keep a copy of a region, one step further: for administrators, of the region's primary. To be asked until it is so;
    /// `Retry`: it is not yet, the copy is being made. EINVAL: that cannot be, and why; ENOSPC: the node has no room; `WrongEpoch`: the
    /// region is served elsewhere.
    MoveCopy {
        /// which
        region: RegionId,
        /// who has a copy, and is to have none then; `None`: the region has fewer than it is to have
        from: Option<NodeId>,
        /// who is to have it
        to: NodeId,
    } -> Done,
    /// Has one of its mirrors serve a region from now on: for administrators, of the region's primary, which becomes a mirror. Asking again
    /// changes nothing. EINVAL: that node is no mirror in the set; `Retry`: requests of which the end is to be waited for take too long, or a
    /// copy is being made, or what is in use there may be claimed yet; ENOSPC: the pool has no room to be that of a mirror; `WrongEpoch`:
    /// the region is served elsewhere.
    HandOver {
        /// which
        region: RegionId,
        /// the mirror
        to: NodeId,
    } -> Done,
    /// Node to node: the map gives a region to the node that is asked, since who asks has handed it over and serves it no more.
    TakeOver {
        /// which
        region: RegionId,
        /// by this map, or a later one
        epoch: Epoch,
        /// who has locks there, which are claimed now; `None`: too many to say
        locked: Option<Vec<LockedBy>>,
    } -> Done,
    /// Compares some of a region with its mirrors, and puts right what differs.
    ScrubCopies {
        /// which
        region: RegionId,
        /// where; the default: from the beginning
        from: CopyPlace,
    } -> ScrubbedCopies(ScrubbedCopies),
    /// Node to node: where we are out of room there may be segments of the other's regions that hold nothing any more. It gives them
    /// back, and so do the mirrors of these regions, as far as they can be reached, before it is answered.
    /// [`crate::FsError::HeldBack`]: done, and more may come by itself, when removed files are not kept any longer for who may have them open.
    ReleaseSegments -> Done,
    /// Node to node: space and inodes of the node that asks. Answered with ours.
    ShareUsage(crate::Usage) -> Usage(Usage),
}
