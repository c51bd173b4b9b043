//! Bugs that a test can plant, to see that the tests notice them. Without the feature `planted` (which nothing but such
//! tests turns on) [`planted`] is a constant, and no site costs anything.
//!
//! The first group is the checklist of Chipmunk (LeBlanc, Taylor, Reid, Rossbach, Witchel et al.: Chipmunk: Investigating
//! Crash-Consistency in Persistent-Memory File Systems, EuroSys 2023): what real file systems for persistent memory got
//! wrong. `docs/testing.md` says which test notices which bug.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Planted {
    /// Log entries are stored, and not flushed before the tail moves.
    EntriesNotFlushed,
    /// No fence between the entries and the tail.
    NoFenceBeforeTail,
    /// A change returns when its tail is flushed, not fenced.
    TailNotFenced,
    /// Of bytes that do not end with a line the last line is not written back.
    LastLineNotFlushed,
    /// A change of several inodes is put in place without a redo record: the old name may go before the new one comes.
    NamesChangedInPlace,
    /// The entries of one change go to the inodes' logs one log after the other, the last one first.
    LogsOneAfterTheOther,
    /// Checksums of file data are stored, and not flushed before the tail moves.
    ChecksumsNotFlushed,
    /// Recovery takes pages that are partly live to be free.
    PartlyLivePagesForgotten,

    /// A record is durable before the participants' part of it is.
    DecidedWithoutRemotePart,
    /// A redo record is retired before its writes are durable.
    RetiredBeforeApplied,
    /// A record with a remote part is retired as soon as the local part is in place.
    RetiredBeforeDispatch,
    /// A participant's lock words are not durable when it says that it has collected.
    LocksNotDurable,
    /// A participant collects what another transaction holds already.
    CollectedTwice,
    /// A coordinator lets go of the participants' locks before it writes their bytes.
    LocksReleasedFirst,
    /// A coordinator forgets a transaction that is not in its log yet: it says "aborted" of one that will happen.
    ForgottenBeforeDecided,
    /// What is dispatched again is written although its locks were let go, over what came later.
    DispatchedTwice,

    /// Replicas are not told what a coordinator has written to a log.
    ReapedUnnoted,
    /// Replicas are told of each inode of a transaction by itself.
    ReapedOneByOne,
    /// Replicas are not told of file data that clients have written.
    RunsUnnoted,
    /// Replicas are not told of parts elsewhere of what a region has decided.
    DecisionsUnnoted,
    /// A copy for which the redo log or the pool has no room looks for nothing that has been retired or given back since: neither in its
    /// lane, nor in others, nor by beginning anew.
    RetiredNotSought,
    /// A primary answers before its mirrors have what it has done.
    MirrorNotAwaited,
    /// An asynchronous primary answers however far its mirrors are behind.
    BehindUnbounded,
    /// What an asynchronous region does in a transaction over several is said to be done before its mirrors have it.
    TransactionNotAwaited,
    /// Who asks an asynchronous region to make things durable is answered before its mirrors have them.
    SyncNotAwaited,
    /// Who takes an asynchronous primary's place gives new inodes generations that others may have had.
    LostGenerationsGiven,
    /// A region is handed over though sessions believe in tokens that they have of it.
    HandedOverTokensBelieved,
    /// Who takes over a region that is handed over is told that nobody has locks there.
    HandedOverLocksUntold,
    /// A copy that is moved leaves the set before the one that takes its place is whole.
    CopyMovedEarly,
    /// A primary goes on answering without a lease of its mirrors.
    LeaseForgotten,
    /// A primary's gate says that mirrors have all there is, whatever they have.
    GateLeftOpen,
    /// A primary tells clients of a lease that lasts for ever.
    LeaseToldForEver,
    /// A mirror takes over as soon as a lease has passed by its own clock.
    GraceAsLease,
    /// Who takes a dead primary's place takes its lease to be over when that is so by its own clock.
    DeadLeaseByOwnClock,
    /// A primary goes on giving and renewing tokens without a lease of its mirrors.
    TokensWithoutLease,
    /// A client is told the whole lease on tokens that the node goes by, as if both had one clock.
    TokenLeaseInFull,
    /// A participant says that it has collected before its mirrors know of the locks.
    CollectedUnmirrored,
    /// A coordinator is told that a part has arrived before the participant's mirrors have it.
    RetiredUnmirrored,
    /// A primary goes on without a mirror that is away, which the map still says to be one.
    SetShrunkUntold,
    /// The key under which a primary writes to its mirror is there as long as the mirror runs.
    LaneKeyKept,
    /// A lane's head says that a record is in place before it is.
    HeadBeforeRecord,
    /// What a record says is not durable when the lane's head says that it is in place.
    AppliedUnfenced,
    /// A copy that is made anew counts as whole meanwhile.
    WholeMeanwhile,
    /// A page is used again before the mirrors have the record that has freed it.
    ReusedUnmirrored,
    /// What another primary may have done is done when it is asked for again.
    RepeatedElsewhere,
    /// A commit goes to whoever serves the region, also if that is not where its data was written.
    CommittedElsewhere,
    /// A region whose pool was lost is served as it was created anew.
    LostPoolServed,
    /// A node that was started anew answers before a majority says that the region is still its own.
    UnconfirmedServed,
    /// A node answers who goes by a map in which the region was served by another one, or by this one once before.
    OldEpochServed,
    /// Who was replaced in the middle of a dispatch can still write.
    DeposedNotFenced,
    /// Who has taken another node's place gives locks at once, before holders have claimed back what they had.
    LockGraceForgotten,
    /// Locks are claimed back though somebody else may have had them.
    LateLockClaimed,
    /// What somebody may still have open goes with its last name, where its holders have not come yet.
    ClaimsForgotten,
    /// A copy that is made does not hear of what was decided before, and not dispatched.
    EarlierDecisionsUnnoted,
    /// A page of a copy differs from its region's, and is not sent.
    DifferenceUnsent,
    /// A primary counts the lease of one that goes by a newer map, before it knows what that says.
    LeaseByNewerMap,
    /// A mirror joins the set without what was answered while it was sent the last records.
    JoinedBehind,
    /// Beacons go over the connections of requests, and so wait for what those before had under way.
    BeaconsBehindRequests,
    /// A node that ends, and hears nobody any more, takes the place of those that it does not hear.
    PlaceTakenWhileEnding,
    /// Who votes alone from now on goes on from the map that it knows, as if nobody could have changed it since.
    ForcedMapNotAbove,
    /// A node gives back a copy by a map that no majority has confirmed.
    CopyFreedUnconfirmed,
    /// A page is taken from a mirror that may lack records.
    TakenFromBehind,
    /// A page of a region is damaged, and is sent to a copy that has it whole.
    DamageSent,

    /// A voter answers, and does not keep what it has answered in its pool.
    VoterForgets,

    /// Freed pages are free at once.
    NoQuarantine,
    /// Quarantine ends a tick early.
    QuarantineEndsEarly,
    /// When space is short, pages that a client which is gone may still write to are used as well.
    WrittenPagesReused,

    /// Pages that were delegated to a session are free as soon as it ends.
    DelegatedPagesFree,
    /// Committed pages still count as delegated, and come back with the session's end.
    CommittedPagesReturned,
    /// One session lets go, and nobody holds the inode any more.
    HoldsDroppedForAll,
    /// A session that has ended still gets what it was waiting for.
    EndedSessionServed,

    /// A token is given while somebody asks for those that there are.
    GivenWhileAsked,
    /// A node that was started anew changes what tokens of the previous incarnation are believed about.
    ChangedTooEarly,
    /// A session is asked for its own tokens before it changes something.
    OwnTokenAsked,
    /// What the client colocated with a node changes there nobody is asked for.
    ColocatedForgotten,

    /// A client answers for its tokens and goes on using them.
    AnsweredBeforeForgotten,
    /// A client believes in a token that a node has asked for, by another reactor, before the answer that gives it has come.
    OvertakenBelieved,
    /// A client believes what it knows by tokens after their lease.
    BelievedAfterLease,
    /// A client's own changes leave what it knows by tokens as it is.
    OwnChangesOverlooked,

    /// The tail is switched to a new log that is not durable yet.
    SwitchedBeforeDurable,
    /// A log's old pages are free before the new log is in place.
    OldPagesFreedEarly,
    /// Extended attributes do not make it into the new log.
    LiveEntriesDropped,
    /// Entries of a new log are not marked as a checkpoint, and change the attributes.
    NotACheckpoint,
    /// A log is written anew although a transaction holds its inode.
    HeldLogCompacted,
}

#[cfg(feature = "planted")]
mod active {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
        static REACHED: Cell<u64> = const { Cell::new(0) };
    }

    /// Plants a bug in this thread until it is dropped. One at a time.
    #[must_use]
    pub struct Plant(());

    impl Plant {
        /// Plants it.
        pub fn new(bug: Planted) -> Plant {
            assert_eq!(PLANTED.replace(Some(bug)), None, "one bug at a time");
            REACHED.set(0);
            Plant(())
        }

        /// How often the place was reached where the bug is.
        pub fn reached(&self) -> u64 {
            REACHED.get()
        }
    }

    impl Drop for Plant {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }

    /// Is this bug to be there?
    pub fn planted(bug: Planted) -> bool {
        let here = PLANTED.get() == Some(bug);
        if here {
            REACHED.set(REACHED.get() + 1);
        }
        here
    }
}

#[cfg(feature = "planted")]
pub use active::{Plant, planted};

/// Is this bug to be there?
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn planted(_: Planted) -> bool {
    false
}
