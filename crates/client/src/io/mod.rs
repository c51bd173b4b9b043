//! File data on its way: reads, writes, and the space and transfers that they use.

pub(crate) mod delegation;
pub(crate) mod extent_pool;
pub(crate) mod read;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod transfers;
pub(crate) mod verify;
pub(crate) mod write;
pub(crate) mod writers;
