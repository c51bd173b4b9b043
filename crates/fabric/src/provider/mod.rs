//! What a provider implements. Everything here happens on the thread that owns the queue pair.

pub(crate) mod shm;
pub mod sim;
pub(crate) mod tcp;

use crate::wait::{OpId, Shared};
use crate::{FabricError, Verb};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// What its initiator wants to know of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Completion {
    /// How it ended.
    Signaled,
    /// Nothing: a failure at the target ends the connection.
    Unsignaled,
    /// Nothing, and a failure at the target ends the batch alone.
    Unreported,
}

/// What became of a batch that was to be posted.
pub(crate) enum Posted {
    /// It is complete.
    Done,
    /// Its completion will come to this operation.
    Pending(OpId),
    /// There is no room; try again when some is announced.
    Full,
}

/// What a round of progress left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Nothing to do for now.
    Idle,
    /// There is more to do, but others should have their turn.
    More,
}

/// A word in memory of a provider that is another one when an event has come. It may be for another reason too.
pub(crate) struct News {
    word: NonNull<AtomicU64>,
    nothing: u64,
}

impl News {
    /// `nothing`: what the word is while there is no event.
    pub(crate) fn new(word: &AtomicU64, nothing: u64) -> News {
        News {
            word: NonNull::from(word),
            nothing,
        }
    }

    /// True if one may have come.
    ///
    /// # Safety
    /// The provider that it came from still lives.
    pub(crate) unsafe fn are_there(&self) -> bool {
        // SAFETY: a provider keeps the memory of its words as long as it lives.
        unsafe { self.word.as_ref() }.load(Ordering::Relaxed) != self.nothing
    }
}

/// One end of a queue pair.
pub(crate) trait Provider {
    /// State common to all providers.
    fn shared(&self) -> &Shared;

    /// A message is to be posted in a moment: what it is written to can be fetched meanwhile.
    fn will_post(&self) {}

    /// Posts a batch. Unless it is signaled the caller's memory is not touched after the return.
    ///
    /// When it is pending, the provider keeps pointers to the caller's memory until the operation is complete or
    /// abandoned.
    fn post(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<Posted, FabricError>;

    /// Does what can be done without waiting: sends, receives, serves the peer, completes operations. A bounded amount.
    fn progress(&self) -> Progress;

    /// Where it shows that an event has come, for who polls many queue pairs; asked anew after each `progress`.
    fn news(&self) -> Option<News> {
        None
    }

    /// False if `progress` would find nothing new, where that is known by a load.
    fn may_have_come(&self) -> bool {
        true
    }

    /// As `progress`, and also notices that the peer has gone if that costs more.
    fn probe(&self) {
        self.progress();
    }

    /// Sends what was posted, and tells a peer that sleeps what it has to know of what was posted and received since it was told
    /// last. Before it is called a posted message may wait here, or for a peer that is not awake.
    fn flush(&self) {}

    /// Makes sure that the channel is woken when there is something to do; `More` if there is something already.
    fn arm(&self) -> Progress;

    /// The caller of a pending operation has gone: none of its memory is touched any more.
    fn abandon(&self, op: OpId);

    /// Ends the connection.
    fn close(&self, why: &str);

    /// True if one-sided operations are complete when they are posted: the initiator's processor does them.
    fn is_immediate(&self) -> bool {
        false
    }

    /// How it is found out whether something has come.
    fn polling(&self) -> Polling;
}

/// What [`Provider::progress`] costs when there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Polling {
    /// A load.
    Memory,
    /// A system call.
    Kernel,
    /// Nothing would come of it: what arrives announces itself.
    Never,
}
