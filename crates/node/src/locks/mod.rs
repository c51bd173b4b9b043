//! Advisory locks: the table of this node, its services, and deadlocks over several nodes.

pub(crate) mod deadlocks;
pub(crate) mod lock_services;
pub(crate) mod lock_table;
pub(crate) mod succession;
