//! Transactions over several regions: collect and decide, then dispatch (Octopus 3.3.2).

pub(crate) mod commit_protocol;
pub(crate) mod coordinator;
pub(crate) mod dispatch;
pub(crate) mod probe;
#[cfg(feature = "two-phase")]
pub(crate) mod two_phase;
