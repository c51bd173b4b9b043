//! Mutual proof of the cluster secret, before anything else is accepted. Pure: bytes in, bytes out; `run_*` drives it
//! over a byte stream.
//!
//! ```text
//! initiator                         acceptor
//!   hello: magic, version, cluster, role, nonce   ->
//!   <-                              hello (its own)
//!   proof: HMAC-SHA256(secret, "initiator", both hellos)   ->
//!   <-                              verdict: 0 + HMAC-SHA256(secret, "acceptor", both hellos), or why not
//! ```
//!
//! A reason for refusal is told to the other side, so both can name it. The acceptor sends its hello in any case, so
//! that either side sees what the other one is.

use crate::{Identity, Role};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Raised whenever anything on the wire changes its meaning.
pub(crate) const VERSION: u32 = 3;

/// A handshake that is not through after this time is given up, so that strangers cannot hold the places.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// After an error of `accept` itself (no descriptors left, say), before the next attempt.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const MAGIC: [u8; 8] = *b"PolvoFab";
const HELLO: usize = 64;
const PROOF: usize = 32;
const VERDICT: usize = 1 + PROOF;

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    NotPolvo,
    Version { ours: u32, theirs: u32 },
    Cluster,
    Secret,
    Busy,
    Garbled,
    Io(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::NotPolvo => write!(f, "it does not speak this protocol"),
            Failure::Version { ours, theirs } => {
                write!(f, "protocol version {theirs} at the other side, {ours} here")
            }
            Failure::Cluster => write!(f, "it belongs to another cluster"),
            Failure::Secret => write!(f, "the cluster secrets differ"),
            Failure::Busy => write!(f, "it is busy"),
            Failure::Garbled => write!(f, "its handshake makes no sense"),
            Failure::Io(why) => write!(f, "{why}"),
        }
    }
}

impl Failure {
    /// True when the peers do not belong together, as opposed to a transport that failed.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Failure::NotPolvo | Failure::Version { .. } | Failure::Cluster | Failure::Secret
        )
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Failure::Io("it closed the connection during the handshake".into()),
            _ => Failure::Io(error.to_string()),
        }
    }
}

/// Codes of the verdict.
const WELCOME: u8 = 0;
const WRONG_VERSION: u8 = 1;
const WRONG_CLUSTER: u8 = 2;
const WRONG_SECRET: u8 = 3;
const BUSY: u8 = 4;

fn hello(me: &Identity, nonce: [u8; 32]) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let (kind, id) = match me.role {
        Role::Client => (0, 0),
        Role::Node(id) => (1, id),
    };
    bytes[12] = kind;
    bytes[14..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..32].copy_from_slice(&me.cluster);
    bytes[32..].copy_from_slice(&nonce);
    bytes
}

/// The peer's role, if its hello fits us.
fn check_hello(me: &Identity, theirs: &[u8; HELLO]) -> Result<Role, Failure> {
    if theirs[..8] != MAGIC {
        return Err(Failure::NotPolvo);
    }
    let version = u32::from_le_bytes(theirs[8..12].try_into().expect("4 bytes"));
    if version != VERSION {
        return Err(Failure::Version {
            ours: VERSION,
            theirs: version,
        });
    }
    if theirs[16..32] != me.cluster {
        return Err(Failure::Cluster);
    }
    match (theirs[12], u16::from_le_bytes([theirs[14], theirs[15]])) {
        (0, 0) => Ok(Role::Client),
        (1, id) => Ok(Role::Node(id)),
        _ => Err(Failure::Garbled),
    }
}

fn mac(me: &Identity, label: &str, initiator: &[u8; HELLO], acceptor: &[u8; HELLO]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&me.secret).expect("HMAC takes keys of any length");
    mac.update(label.as_bytes());
    mac.update(initiator);
    mac.update(acceptor);
    mac
}

fn nonce() -> Result<[u8; 32], Failure> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|e| Failure::Io(format!("no random numbers: {e}")))?;
    Ok(nonce)
}

/// The initiator's side; returns who the acceptor is.
pub(crate) async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    me: &Identity,
    stream: &mut S,
) -> Result<Role, Failure> {
    let ours = hello(me, nonce()?);
    stream.write_all(&ours).await?;
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).await?;
    let role = check_hello(me, &theirs)?;
    let proof = mac(me, "initiator", &ours, &theirs).finalize().into_bytes();
    stream.write_all(&proof).await?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict).await?;
    match verdict[0] {
        WELCOME => mac(me, "acceptor", &ours, &theirs)
            .verify_slice(&verdict[1..])
            .map(|()| role)
            .map_err(|_| Failure::Secret),
        WRONG_SECRET => Err(Failure::Secret),
        WRONG_CLUSTER => Err(Failure::Cluster),
        BUSY => Err(Failure::Busy),
        _ => Err(Failure::Garbled),
    }
}

/// The acceptor's side; returns who the initiator is.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(me: &Identity, stream: &mut S) -> Result<Role, Failure> {
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).await?;
    let ours = hello(me, nonce()?);
    let mut answer = Vec::with_capacity(HELLO + VERDICT);
    let mut verdict = [0; VERDICT];
    let role = match check_hello(me, &theirs) {
        // Nothing is said to strangers.
        Err(failure @ Failure::NotPolvo) => return Err(failure),
        Err(failure) => {
            verdict[0] = if failure == Failure::Cluster {
                WRONG_CLUSTER
            } else {
                WRONG_VERSION
            };
            answer.extend_from_slice(&ours);
            answer.extend_from_slice(&verdict);
            stream.write_all(&answer).await?;
            return Err(failure);
        }
        Ok(role) => role,
    };
    stream.write_all(&ours).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    let known = mac(me, "initiator", &theirs, &ours).verify_slice(&proof).is_ok();
    if known {
        verdict[1..].copy_from_slice(&mac(me, "acceptor", &theirs, &ours).finalize().into_bytes());
    } else {
        verdict[0] = WRONG_SECRET;
    }
    stream.write_all(&verdict).await?;
    if known { Ok(role) } else { Err(Failure::Secret) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn identity(cluster: u8, secret: &str, role: Role) -> Identity {
        Identity {
            cluster: [cluster; 16],
            secret: secret.as_bytes().into(),
            role,
        }
    }

    async fn shake(a: Identity, b: Identity) -> (Result<Role, Failure>, Result<Role, Failure>) {
        let (mut left, mut right) = duplex(1024);
        tokio::join!(async move { initiate(&a, &mut left).await }, async move {
            accept(&b, &mut right).await
        })
    }

    #[tokio::test]
    async fn both_learn_who_the_other_is() {
        let (a, b) = shake(identity(1, "s", Role::Client), identity(1, "s", Role::Node(7))).await;
        assert_eq!((a, b), (Ok(Role::Node(7)), Ok(Role::Client)));
    }

    #[tokio::test]
    async fn both_learn_why_they_do_not_match() {
        let (a, b) = shake(identity(1, "s", Role::Client), identity(2, "s", Role::Node(7))).await;
        assert_eq!((a, b), (Err(Failure::Cluster), Err(Failure::Cluster)));
        let (a, b) = shake(identity(1, "s", Role::Client), identity(1, "t", Role::Node(7))).await;
        assert_eq!((a, b), (Err(Failure::Secret), Err(Failure::Secret)));
    }

    #[tokio::test]
    async fn another_version_is_named_at_the_acceptor() {
        let me = identity(1, "s", Role::Node(1));
        let (mut left, mut right) = duplex(1024);
        let mut bytes = hello(&me, [0; 32]);
        bytes[8] = 99;
        left.write_all(&bytes).await.unwrap();
        assert_eq!(
            accept(&me, &mut right).await,
            Err(Failure::Version {
                ours: VERSION,
                theirs: 99
            })
        );
        let mut answer = [0; HELLO + VERDICT];
        left.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[HELLO], WRONG_VERSION);
    }

    #[tokio::test]
    async fn another_version_is_named_at_the_initiator() {
        let me = identity(1, "s", Role::Node(1));
        let (mut left, mut right) = duplex(1024);
        let mut bytes = hello(&me, [0; 32]);
        bytes[8] = 99;
        right.write_all(&bytes).await.unwrap();
        assert_eq!(
            initiate(&me, &mut left).await,
            Err(Failure::Version {
                ours: VERSION,
                theirs: 99
            })
        );
    }

    #[tokio::test]
    async fn an_acceptor_that_says_welcome_without_knowing_the_secret_is_noticed() {
        let me = identity(1, "s", Role::Client);
        let (mut left, mut right) = duplex(1024);
        right
            .write_all(&hello(&identity(1, "?", Role::Node(3)), [9; 32]))
            .await
            .unwrap();
        right.write_all(&[0; VERDICT]).await.unwrap();
        assert_eq!(initiate(&me, &mut left).await, Err(Failure::Secret));
    }

    #[tokio::test]
    async fn our_own_proof_sent_back_proves_nothing() {
        let me = identity(1, "s", Role::Node(1));
        let (mut left, mut right) = duplex(1024);
        let mirror = async {
            let mut hello = [0; HELLO];
            right.read_exact(&mut hello).await.unwrap();
            right.write_all(&hello).await.unwrap();
            let mut proof = [0; PROOF];
            right.read_exact(&mut proof).await.unwrap();
            right.write_all(&[WELCOME]).await.unwrap();
            right.write_all(&proof).await.unwrap();
        };
        let (shaken, ()) = tokio::join!(initiate(&me, &mut left), mirror);
        assert_eq!(shaken, Err(Failure::Secret));
    }
}
