//! What a provider implements. Everything here happens on the thread that owns the queue pair.

pub(crate) mod shm;
pub mod sim;
pub(crate) mod tcp;

use crate::completion::{OpId, Shared};
use crate::{FabricError, Verb};

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

/// One end of a queue pair.
pub(crate) trait Provider {
    /// State common to all providers.
    fn shared(&self) -> &Shared;

    /// Posts a batch. With `signaled` false nobody waits for its completion and the caller's memory is not touched after
    /// the return; a failure at the target then ends the connection.
    ///
    /// When it is pending, the provider keeps pointers to the caller's memory until the operation is complete or
    /// abandoned.
    fn post(&self, verbs: &mut [Verb<'_>], signaled: bool) -> Result<Posted, FabricError>;

    /// Does what can be done without waiting: sends, receives, serves the peer, completes operations. A bounded amount.
    fn progress(&self) -> Progress;

    /// As `progress`, and also notices that the peer has gone if that costs more.
    fn look(&self) {
        self.progress();
    }

    /// Makes sure that the hub is woken when there is something to do; `More` if there is something already.
    fn arm(&self) -> Progress;

    /// The caller of a pending operation has gone: none of its memory is touched any more.
    fn abandon(&self, op: OpId);

    /// Ends the connection.
    fn close(&self, why: &str);

    /// False where time is virtual.
    fn spins(&self) -> bool;
}
