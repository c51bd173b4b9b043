//! Regions with copies at other nodes: what they hold, and what requests wait for.

mod added;
mod failover;
mod fills;
mod handed_over;
mod mirrors;
mod removed;
mod replaced;
mod room;
mod scrubs;
mod sets;
