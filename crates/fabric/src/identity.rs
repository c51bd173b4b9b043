//! Who talks to whom.

use std::fmt;
use std::sync::Arc;

/// Who a peer has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Node of the cluster.
    Node(u16),
    /// Client.
    Client,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Node(id) => write!(f, "node {id}"),
            Role::Client => write!(f, "client"),
        }
    }
}

/// Our side of the handshake.
#[derive(Clone)]
pub struct Identity {
    /// Cluster uuid.
    pub cluster: [u8; 16],
    /// Shared secret; both sides prove that they know it by HMAC over both nonces. It never travels.
    pub secret: Arc<[u8]>,
    /// Who we are.
    pub role: Role,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}
