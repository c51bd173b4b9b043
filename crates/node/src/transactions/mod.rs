//! Transactions over several regions: collect and decide, then dispatch (Octopus 3.3.2); two-phase commit for comparison.

pub(crate) mod coordinator;
pub(crate) mod dispatch;
pub(crate) mod probe;
pub(crate) mod two_phase;
