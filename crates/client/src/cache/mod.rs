//! What a client remembers, each as of a log's tail: names of a directory, extents of a file; and how it catches up.

pub(crate) mod cached_name;
pub(crate) mod extent_index;
pub(crate) mod known_ranges;
pub(crate) mod listings;
pub(crate) mod name_cache;
pub(crate) mod pull;
