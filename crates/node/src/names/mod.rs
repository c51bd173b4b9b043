//! Names: services that make, remove and move them, and who may.

pub(crate) mod acl;
pub(crate) mod name_services;
pub(crate) mod permission;
pub(crate) mod rename;
pub(crate) mod rename_lock;
mod rename_plan;
pub(crate) mod valid_name;
