//! From a region's errors to the caller's.

use polvo_proto::FsError;
use polvo_region::RegionError;

/// What the caller of an operation gets to see. A locked inode is for the caller to wait for. Damage is logged
/// here, where it is found.
pub(crate) fn to_fs(error: RegionError) -> FsError {
    match error {
        RegionError::Fs(error) => error,
        RegionError::Locked { .. } | RegionError::Watched(_) => FsError::Retry,
        damage @ (RegionError::Corrupt { .. } | RegionError::Pool(_)) => {
            tracing::error!(%damage, "damaged pool");
            FsError::Io(damage.to_string())
        }
    }
}
