//! One inode's attributes and bytes: what clients ask for, and transfers that the node directs.

pub(crate) mod directed_transfers;
pub(crate) mod file_services;
