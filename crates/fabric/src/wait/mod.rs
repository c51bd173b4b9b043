//! Waiting for what comes over a queue pair: completions, events, room to post.
//!
//! A queue pair has no task of its own: the futures that wait on it poll it. A wait polls as long as its busy-poll budget
//! lasts, and sleeps then; asleep it is notified through the [completion channel](channel). Where several waits of a thread
//! poll, they leave that to the thread's [poller].
//!
//! ```text
//!                 poll
//!                   |
//!             +-----v-----+  the budget lasts: polls again, and yields to other tasks at the end of a slice
//!             |  polling  |<---------------------------------------------------------------+
//!             +--+-----+--+                                                                 |
//!   other waits  |     |  the budget is spent                                               |
//!   poll as well |     +-----------------------------------------+                          |
//!          +-----v-----+                                         |                          |
//!          |  called   |  lets the poller have its turn          |                          |
//!          +-----+-----+                                         |                          |
//!    the poller  |                                               |                          |
//!    has polled  |                                               |                          |
//!          +-----v-----+   the poller's time   +-----------------v-----------------+        |
//!          |  shared   |---------------------->|               armed               |        |
//!          | (asleep)  |   is over: notifies   | (asleep, the descriptor notifies) |        |
//!          +-----+-----+   one, which arms     +-----------------+-----------------+        |
//!                |                                               |                          |
//!                +-- notified: completion, event, room, loss ----+--------------------------+
//! ```
//!
//! The invariant that keeps anybody from being forgotten: *while somebody sleeps, the channel is armed, or the thread's poller
//! polls the queue pair, or a sleeper has been notified and has not run yet.* Whoever is notified polls the queue pair, and
//! with that notifies those whose completions and events it finds; it arms the channel again before it sleeps, and hands
//! over to another sleeper when it leaves.
//!
//! | file | what it is |
//! |---|---|
//! | `budget` | the upper half of the picture: what a wait does after a poll that found nothing |
//! | `channel` | the lower half: who sleeps, who is notified, and how a channel is armed |
//! | `drive` | the loop of one wait, through both |
//! | `thread` | what the waits of a thread and its poller know of each other |
//! | `poller` | the task that polls for all waits of a thread |
//! | `completion_queue` | what is waited for: operations under way, events, the end |
//!
//! Transitions are functions over small states; clock, descriptors and wakers are at their edges. `explorer` (tests) goes
//! through every interleaving of waits, poller, peer and kernel up to a bound, and looks for one where somebody is forgotten.

mod budget;
mod channel;
mod completion_queue;
mod drive;
#[cfg(test)]
mod explorer;
mod poller;
mod thread;

pub(crate) use budget::serve_budget;
pub use budget::{busy_poll_budget, serve_busy_poll_budget, set_busy_poll_budget, set_serve_busy_poll_budget};
pub(crate) use channel::{Asked, CompletionChannel, Directions, Interest, Subscription, arm};
pub use completion_queue::Counters;
pub(crate) use completion_queue::{Lending, MAX_READING, NotOurs, OpId, Reach, Shared};
pub(crate) use drive::{Awaited, Wait, Waited};
pub(crate) use poller::flush_later;
pub use poller::{flush, poller};

use std::time::Instant;

/// The clock of all waits.
fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = explorer::now() {
        return now;
    }
    Instant::now()
}
