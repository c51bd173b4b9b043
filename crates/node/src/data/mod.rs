//! One inode's attributes and bytes: what clients ask for, and how bytes come and go.

pub(crate) mod caller_memory;
pub(crate) mod file_services;
mod placement_attributes;
pub(crate) mod read;
pub(crate) mod write;
