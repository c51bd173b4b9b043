//! Answers.
//!
//! One table defines [`Reply`], which travels, and for each kind that has fields a struct of its own in [`reply`].
//! Which request is answered by which stands with the requests ([`crate::Ask`]).

use crate::{
    CheckFacts, ClusterMap, Collected, DirPage, FileMap, Found, InodeRef, LanePlace, LockSeen, LockTerm, LockWait,
    LogSequel, Made, Outcome, PageRun, Scrubbed, ScrubbedCopies, SegmentMap, Token, TxnState, Usage, Written,
};
use polvo_consensus::register;
use polvo_format::{Epoch, Lsn, NodeId, PoolPast, RegionId, Tail};
use serde::{Deserialize, Serialize};

/// A reply of another kind than the one wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherReply;

/// The struct of a reply that has fields.
macro_rules! reply_struct {
    ($(#[doc = $about:literal])* $kind:ident { $( $(#[doc = $doc:literal])* $field:ident: $ty:ty, )* }) => {
        $(#[doc = $about])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $kind {
            $( $(#[doc = $doc])* pub $field: $ty, )*
        }

        impl From<$kind> for Reply {
            fn from(reply: $kind) -> Reply {
                let $kind { $($field),* } = reply;
                Reply::$kind { $($field),* }
            }
        }

        impl TryFrom<Reply> for $kind {
            type Error = OtherReply;

            fn try_from(reply: Reply) -> Result<$kind, OtherReply> {
                match reply {
                    Reply::$kind { $($field),* } => Ok($kind { $($field),* }),
                    _ => Err(OtherReply),
                }
            }
        }
    };
    ($($unit_or_wrapper:tt)*) => {};
}

macro_rules! replies {
    ($(
        $(#[doc = $about:literal])*
        $kind:ident
        $( { $( $(#[doc = $doc:literal])* $(#[serde($($how:tt)*)])? $field:ident: $ty:ty, )* } )?
        $( ( $(#[$wrapped_how:meta])? $wrapped:ty ) )?,
    )*) => {
        /// Answers. The number of a kind on the wire is its place.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum Reply {
            $(
                $(#[doc = $about])*
                $kind
                $( { $( $(#[doc = $doc])* $(#[serde($($how)*)])? $field: $ty, )* } )?
                $( ( $(#[$wrapped_how])? $wrapped ) )?,
            )*
        }

        /// A struct for each kind of reply that has fields, and what else requests are answered by.
        pub mod reply {
            use super::*;
            pub use super::{LockAnswer, Reply, WriteAnswer};

            /// Nothing to say.
            pub type Done = ();

            $( reply_struct!($(#[doc = $about])* $kind $( { $( $(#[doc = $doc])* $field: $ty, )* } )? $( ($wrapped) )?); )*
        }
    };
}

// At the end only: the places are the numbers on the wire.
replies! {
    /// Nothing to say.
    Done,
    /// To `Attach`.
    Attached {
        /// lease in milliseconds; renew well before
        lease_ms: u64,
        /// grace tick now
        tick: u64,
        /// the map
        map: Box<ClusterMap>,
        /// the node that answers
        node: NodeId,
        /// the session's number at this node, never 0; another than before: anything held here before is gone
        number: u64,
        /// `Sync` is needed for durability against power loss
        needs_sync: bool,
        /// the caller may read and write file data one-sided; else the node moves it (`Read`, `WriteFrom`)
        one_sided: bool,
        /// file data has checksums here: who writes makes them
        checksums: bool,
        /// which pool the node serves, and its eras
        past: PoolPast,
    },
    /// To `Heartbeat`.
    Renewed {
        /// grace tick now
        tick: u64,
        /// inodes that died while this session held them open: release those not in use
        recall: Vec<InodeRef>,
        /// newest map epoch
        epoch: Epoch,
        /// nobody can have taken the node's place in a region that it serves
        serves: bool,
    },
    /// To `Map`, `AddNode`.
    Map(ClusterMap),
    /// To `Segments`.
    Segments(SegmentMap),
    /// To `Lookup`.
    Found(Found),
    /// To `GetAttr`, `SetAttr`, `Fallocate`, `SetXattr`, `RemoveXattr`, `Link`: the inode now.
    Attr {
        /// attributes
        attr: polvo_format::Attr,
        /// log
        tail: Tail,
    },
    /// To `Create`, `CreateUnnamed`.
    Made(Made),
    /// To `ReadLink`.
    Target {
        /// where the link leads
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
        /// log
        tail: Tail,
    },
    /// To `GetXattr`.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// To `ListXattr`.
    Names(Vec<serde_bytes::ByteBuf>),
    /// To `ReadDir`.
    Entries(DirPage),
    /// To `Open`, `Extents`.
    FileMap(FileMap),
    /// To `Write`, `Commit`, `WriteFrom`.
    Written(Written),
    /// To `Delegate`.
    Space(Vec<PageRun>),
    /// To `Usage`.
    Usage(Usage),
    /// To `Past`.
    Past(PoolPast),
    /// To `Status`.
    Json(String),
    /// To `Check`.
    Facts(CheckFacts),
    /// To `Collect`.
    Collected(Collected),
    /// To `TxnState`.
    TxnState(TxnState),
    /// To `RenameLock`: number of the grant. Another number than before: the lock was lost in between.
    Granted(u64),
    /// To `Parent`.
    Parent(InodeRef),
    /// To `Lock`: not granted yet, ask again soon to keep the place in the queue.
    LockQueued,
    /// To `TestLock`: the first lock that is in the way.
    LockSeen(Option<LockSeen>),
    /// To `LockWaits`.
    LockWaits(Vec<LockWait>),
    /// To `Accessed`: the inodes' tails, in the order of the request, where nothing but this has moved them since they were read;
    /// else 0, as where one is gone or may not be read.
    Tails(Vec<Tail>),
    /// To `Read`.
    Read {
        /// bytes read
        len: u64,
        /// there is more of what was asked for
        more: bool,
        /// they, unless they were put elsewhere
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// To `Scrub`.
    Scrubbed(Scrubbed),
    /// To `Prepare`: one result an intent; a vote for the transaction.
    Prepared(Vec<Outcome>),
    /// To `FollowLog`; `None`: what is known is of no use any more, as far as is remembered.
    LogSequel(Option<LogSequel>),
    /// To `Withdraw`: the request was not done and never will be.
    Withdrawn,
    /// To a write sent again, or its `Withdraw`: it was done some time ago.
    WrittenBefore {
        /// Where its bytes went.
        offset: u64,
    },
    /// To `OpenToWrite`.
    OpenedToWrite {
        /// the session has the right to map the file shared and writable
        may_map: bool,
        /// the file's map, if it was asked for
        map: Option<FileMap>,
    },
    /// To `TakeTokens`.
    Taken {
        /// the lease on tokens, in milliseconds
        lease_ms: u64,
        /// another than before: tokens of the one before are no more
        term: u64,
        /// one for each inode that was named; `None`: not now
        tokens: Vec<Option<Token>>,
    },
    /// To `Watch`.
    Asked {
        /// another than before: tokens of the one before are no more
        term: u64,
        /// the lease is; not where an answer is overdue
        renewed: bool,
        /// tokens that somebody else's change waits for: whatever is believed by them is to go, then they are to be given back.
        /// At most [`crate::TOKENS_PAGE`], the others later
        asked: Vec<(InodeRef, u64)>,
    },
    /// To `Unlink` and `Rmdir`. What was done before the node was started anew, it does not know all of.
    Removed {
        /// the directory's log
        tail: Tail,
        /// what has lost a name, if that is known
        target: Option<InodeRef>,
    },
    /// To `Rename`, as the one before.
    Renamed {
        /// what has the new name, if that is known
        moved: Option<InodeRef>,
        /// what had it before; in an exchange, what has the old one now
        other: Option<InodeRef>,
    },
    /// To `AttachMirror`.
    Lane(LanePlace),
    /// To `MirrorSegments`: where each one begins in the pool, and whether it was there.
    Places(Vec<(u64, bool)>),
    /// To `ApplyMirror`: number of the last record that is in place.
    Applied(Lsn),
    /// To `Beacon`.
    Heard(Epoch),
    /// To `Register`: what the voter has to say, which it will not forget.
    Register(Box<register::Answer<ClusterMap>>),
    /// To `Lock`: it is there.
    LockGranted(LockTerm),
    /// To `ClaimLocks`: they are there; none: somebody else may have had them since.
    Claimed(Option<LockTerm>),
    /// To `ReadBytes`.
    Shown {
        /// one piece after the other
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// nobody takes the primary's place for so long, in milliseconds by the fastest clock: what is read meanwhile is the region's,
        /// if its gate says so
        lease_ms: u16,
    },
    /// To `RemoveNode`: regions of which the node has a copy yet; `None`: it is removed.
    Remaining(Option<Vec<RegionId>>),
    /// To `ScrubCopies`.
    ScrubbedCopies(ScrubbedCopies),
}

impl From<()> for Reply {
    fn from((): ()) -> Reply {
        Reply::Done
    }
}

impl TryFrom<Reply> for () {
    type Error = OtherReply;

    fn try_from(reply: Reply) -> Result<(), OtherReply> {
        match reply {
            Reply::Done => Ok(()),
            _ => Err(OtherReply),
        }
    }
}

/// What became of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    /// It is there, given under this term.
    Granted(LockTerm),
    /// Queued: ask again with the same ticket, soon.
    Queued,
}

impl From<LockAnswer> for Reply {
    fn from(answer: LockAnswer) -> Reply {
        match answer {
            LockAnswer::Granted(term) => Reply::LockGranted(term),
            LockAnswer::Queued => Reply::LockQueued,
        }
    }
}

impl TryFrom<Reply> for LockAnswer {
    type Error = OtherReply;

    fn try_from(reply: Reply) -> Result<LockAnswer, OtherReply> {
        match reply {
            Reply::LockGranted(term) => Ok(LockAnswer::Granted(term)),
            Reply::LockQueued => Ok(LockAnswer::Queued),
            _ => Err(OtherReply),
        }
    }
}

/// What became of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriteAnswer {
    /// It is done.
    Written(Written),
    /// It was sent again, and was done some time ago.
    Before {
        /// where its bytes went
        offset: u64,
    },
}

impl From<WriteAnswer> for Reply {
    fn from(answer: WriteAnswer) -> Reply {
        match answer {
            WriteAnswer::Written(written) => Reply::Written(written),
            WriteAnswer::Before { offset } => Reply::WrittenBefore { offset },
        }
    }
}

impl TryFrom<Reply> for WriteAnswer {
    type Error = OtherReply;

    fn try_from(reply: Reply) -> Result<WriteAnswer, OtherReply> {
        match reply {
            Reply::Written(written) => Ok(WriteAnswer::Written(written)),
            Reply::WrittenBefore { offset } => Ok(WriteAnswer::Before { offset }),
            _ => Err(OtherReply),
        }
    }
}
