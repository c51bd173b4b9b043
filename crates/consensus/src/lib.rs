//! How nodes are to agree on what changes when some of them die: a register that a majority of voters keeps ([`register`],
//! CASPaxos), with the voters in its value, which can be replaced; in the register, who has a region's copies and who may change
//! that ([`replica_set`], PacificA); and by which leases the primary of an older set stops answering ([`lease`]).
//!
//! Pure state machines: messages in, messages out, no clock, no thread, no I/O. Who uses them sends the messages, keeps
//! what a voter keeps (durably, before it answers) and counts time. A model checker tries all orders of messages, with losses and
//! repetitions (`tests/register.rs`), and writes and fail-overs as time passes (`tests/replicas.rs`).
//!
//! No leader, no log, no lease of a leader: whoever wants the value changed does it, and starts anew with a higher ballot where
//! somebody else is at it. What is kept so is small, and changes when nodes come, go and die.
#![forbid(unsafe_code)]

pub mod lease;
pub mod register;
pub mod replica_set;
mod voters;

pub use voters::Voters;
