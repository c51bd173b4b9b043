//! Who talks to whom.

use std::fmt;
use std::str::FromStr;
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

/// What becomes of the bytes that travel between machines. Of what the two sides of a connection want, the stronger is used. Peers on
/// one host share memory, and need none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Security {
    /// They are as they are: for networks that nobody else can reach.
    None,
    /// Whoever changes, repeats, leaves out or swaps any of them ends the connection.
    #[default]
    Auth,
    /// Nobody else can read them either.
    Encrypt,
}

impl Security {
    /// All, the weakest first.
    pub(crate) const ALL: [Security; 3] = [Security::None, Security::Auth, Security::Encrypt];

    /// As settings call it.
    pub fn name(self) -> &'static str {
        match self {
            Security::None => "none",
            Security::Auth => "auth",
            Security::Encrypt => "encrypt",
        }
    }
}

impl FromStr for Security {
    type Err = String;

    fn from_str(name: &str) -> Result<Security, String> {
        let found = Security::ALL.into_iter().find(|security| security.name() == name);
        found.ok_or_else(|| format!("{name:?} must be none, auth or encrypt"))
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
