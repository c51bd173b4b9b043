//! Limits of every wait, in one place.

use std::time::Duration;

/// Limits of every wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Connect and handshake.
    pub connect: Duration,
    /// One RPC. Longer than `held`, so that a node that waits for an inode can still say so.
    pub rpc: Duration,
    /// How long an operation waits in all for inodes that transactions hold, and for participants of its own.
    pub held: Duration,
    /// Session lease.
    pub lease: Duration,
    /// How long the operations of a client wait for a node that is away, from when that was first noticed.
    pub away: Duration,
}

impl Timeouts {
    /// How often a session renews its lease: three times in a lease.
    pub fn renew_every(&self) -> Duration {
        self.lease / 3
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(2),
            rpc: Duration::from_secs(8),
            held: Duration::from_secs(4),
            lease: Duration::from_secs(30),
            away: Duration::from_secs(10),
        }
    }
}
