//! How many descriptors a process may have open: a connection takes one over TCP and several over shared memory.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// A node that may have fewer than so many open serves fewer clients than it could.
pub const NODE_WANTS: u64 = 16_384;
/// A mount that may have fewer than so many open cannot reach many nodes with all its threads.
pub const MOUNT_WANTS: u64 = 4096;

/// Raises the limit to what the process may have at all, and says so in the log if that is less than `wanted`.
pub fn raise_limit(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        warn!(%error, "the limit of open files could not be raised");
    }
    // `None`: no limit
    if let Some(open) = getrlimit(Resource::Nofile).current.filter(|open| *open < wanted) {
        warn!("{open} open files at most (RLIMIT_NOFILE), {wanted} are recommended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_may_be() {
        let before = getrlimit(Resource::Nofile);
        raise_limit(0);
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
