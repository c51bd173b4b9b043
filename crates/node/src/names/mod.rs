//! Names: services that make, remove and move them, and who may.

pub(crate) mod acl;
pub(crate) mod name_services;
pub(crate) mod permission;
mod rename;
pub(crate) mod rename_lease;
pub(crate) mod rename_lock;
pub(crate) mod rename_plan;
mod user;
pub(crate) mod valid_name;
