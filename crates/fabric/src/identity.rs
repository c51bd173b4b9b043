//! Who talks to whom.

use std::fmt;
use std::sync::Arc;
use strum::{Display, EnumString, VariantArray};

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

/// What becomes of the bytes that travel between machines. Of what the two sides of a connection want, the stronger is used. Peers on
/// one host share memory, and need none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Display, EnumString, VariantArray)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown_security)]
pub enum Security {
    /// They are as they are: for networks that nobody else can reach.
    None,
    /// Whoever changes, repeats, leaves out or swaps any of them ends the connection.
    #[default]
    Auth,
    /// Nobody else can read them either.
    Encrypt,
}

fn unknown_security(name: &str) -> String {
    format!("{name:?} must be none, auth or encrypt")
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
    /// What we want at least.
    pub security: Security,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}
