//! Files of regions that the node around this client serves: read by the region's own mapping, with loads.

pub(crate) mod extent_cache;
pub(crate) mod mapped_read;
