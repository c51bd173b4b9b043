//! Limits of every wait, in one place: those that are configured, and those that follow from them or need no change. Pauses
//! between two polls stay with who polls. docs/operations.md ("Waits") says what happens after each.

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
    /// Lease on tokens: how long a change waits for a session that has one and does not answer. Less than `held`.
    pub token: Duration,
    /// How long the operations of a client wait for a node that is away, from when that was first noticed.
    pub away: Duration,
}

impl Timeouts {
    /// A node has so long for answering what another one asks beside its requests: its utilization, how a transaction
    /// stands, who waits for locks. Who gets no answer goes on without.
    pub const ASIDE: Duration = Duration::from_secs(1);
    /// A call from node to node gets so much more than what is left of the request's own time, so that its error arrives.
    pub const CALL_SLACK: Duration = Duration::from_millis(500);
    /// Reading or changing the cluster map, in all: attempts above those of others, and until a majority of its voters answers.
    pub const MAP_CHANGE: Duration = Duration::from_secs(5);
    /// One attempt in the background at a transaction that is decided; others follow.
    pub const DISPATCH: Duration = Duration::from_secs(5);
    /// A node that has a copy of a region answers its primary within so long, or counts as away.
    pub const MIRROR: Duration = Duration::from_secs(1);
    /// A mirror puts in place what has come so soon, where a node that is full asks for segments that hold nothing.
    pub const RELEASE: Duration = Duration::from_millis(200);
    /// Requests under way when a node is stopped.
    pub const DRAIN: Duration = Duration::from_secs(2);
    /// After a start the node of region 0 grants no rename lock for so long: whoever got it from the previous incarnation has
    /// decided by then or finds out, when it asks again just before deciding, that its grant is gone.
    pub const RENAME_QUIET: Duration = Duration::from_secs(1);
    /// When the node that gave locks can give none any more, nobody is given others for so long: their holders claim them back
    /// meanwhile. What it has said of a lock counts for so long from when it was asked.
    pub const LOCK_GRACE: Duration = Duration::from_secs(2);
    /// Who has locks asks the nodes that keep them so often whether they are there, four times in their grace.
    pub const LOCKS_WATCHED: Duration = Duration::from_millis(500);
    /// A wait for a lock that its program has not asked after for so long is forgotten (it asks every second).
    pub const LOCK_FORGOTTEN: Duration = Duration::from_secs(10);

    /// A node that dies is succeeded within so long, all that depends on it included: operations wait at least so long for it.
    pub const SUCCESSION: Duration = Duration::from_secs(6);

    /// A session that has tokens asks so often what is asked of it, and so renews their lease.
    pub const WATCH: Duration = Duration::from_millis(500);

    /// The rename lock of the cluster is granted for so long: its holder waits for at most `held` in all.
    pub fn rename_grant(&self) -> Duration {
        self.held + Duration::from_secs(1)
    }

    /// For a cluster whose regions have copies: what holds an inode may be waiting for a node's successor.
    pub fn with_copies(self) -> Timeouts {
        let held = Self::SUCCESSION
            .min(self.rpc.saturating_sub(Self::ASIDE))
            .max(self.held);
        Timeouts { held, ..self }
    }

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
            token: Duration::from_millis(1500),
            away: Duration::from_secs(10),
        }
    }
}
