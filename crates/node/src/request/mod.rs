//! One request on its way through the node: who asks, whether it was answered before, what it may wait for, which service does it.

pub(crate) mod connections;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod peer_services;
pub(crate) mod replay;
pub(crate) mod session_services;
pub(crate) mod sessions;
