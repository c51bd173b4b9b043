//! Mutual proof of the cluster secret, before anything else is accepted. Pure: bytes in, bytes out; `run_*` drives it
//! over a byte stream.
//!
//! ```text
//! initiator                         acceptor
//!   hello: magic, version, cluster, role, security, nonce   ->
//!   <-                              hello (its own)
//!   proof: HMAC-SHA256(secret, "initiator", both hellos)   ->
//!   <-                              verdict: 0 + HMAC-SHA256(secret, "acceptor", both hellos), or why not
//! ```
//!
//! The nonce is the public part of an X25519 key drawn for this connection. From the secret that the two keys make, the cluster's
//! and both hellos come the keys for what follows ([`Shaken`]), one for each direction: who learns the cluster's secret later
//! cannot read what was sent before. The proofs cover what each side wants of security, so nobody in between can talk them down.
//!
//! A reason for refusal is told to the other side, so both can name it. The acceptor sends its hello in any case, so
//! that either side sees what the other one is.

use crate::{Identity, Role, Security};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::hmac;
use ring::rand::SystemRandom;
use std::time::Duration;
use strum::VariantArray;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Raised whenever anything on the wire changes its meaning.
pub(crate) const VERSION: u32 = 5;

/// A handshake that is not through after this time is given up, so that strangers cannot hold the places.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// After an error of `accept` itself (no descriptors left, say), before the next attempt.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const MAGIC: [u8; 8] = *b"PolvoFab";
const HELLO: usize = 64;
/// Where the nonce lies in a hello.
const NONCE: usize = 32;
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

/// What a handshake has brought.
pub(crate) struct Shaken {
    /// Who the peer is.
    pub(crate) role: Role,
    /// What the two have agreed on.
    pub(crate) security: Security,
    /// Secret for what we send.
    pub(crate) sending: Prk,
    /// Secret for what we receive.
    pub(crate) receiving: Prk,
}

#[cfg(fuzzing)]
impl Shaken {
    /// Of a handshake that was never made.
    pub(crate) fn pretended(role: Role, security: Security) -> Shaken {
        Shaken {
            role,
            security,
            sending: Prk::new_less_safe(HKDF_SHA256, &[1; 32]),
            receiving: Prk::new_less_safe(HKDF_SHA256, &[2; 32]),
        }
    }
}

/// Half of a key agreement.
struct Nonce {
    private: EphemeralPrivateKey,
    public: [u8; 32],
}

impl Nonce {
    fn draw() -> Result<Nonce, Failure> {
        let failed = |_| Failure::Io("no random numbers".into());
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
        let public = private.compute_public_key().map_err(failed)?;
        let public = public.as_ref().try_into().expect("a public key is 32 bytes");
        Ok(Nonce { private, public })
    }
}

/// The secrets for what the initiator and what the acceptor sends.
fn secrets(
    me: &Identity,
    private: EphemeralPrivateKey,
    (initiator, acceptor): (&[u8; HELLO], &[u8; HELLO]),
    theirs: &[u8; HELLO],
) -> Result<[Prk; 2], Failure> {
    let public = UnparsedPublicKey::new(&X25519, &theirs[NONCE..]);
    agree_ephemeral(private, &public, |shared| {
        let secret = Salt::new(HKDF_SHA256, &me.secret).extract(shared);
        [&b"initiator"[..], b"acceptor"].map(|direction| {
            let about = [direction, initiator, acceptor];
            let okm = secret.expand(&about, HKDF_SHA256).expect("32 bytes are not too many");
            Prk::from(okm)
        })
    })
    .map_err(|_| Failure::Garbled)
}

fn hello(me: &Identity, nonce: &[u8; 32]) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let (kind, id) = match me.role {
        Role::Client => (0, 0),
        Role::Node(id) => (1, id),
    };
    bytes[12] = kind;
    bytes[13] = me.security as u8;
    bytes[14..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..32].copy_from_slice(&me.cluster);
    bytes[NONCE..].copy_from_slice(nonce);
    bytes
}

/// The peer's role and the security to be used, if its hello fits us.
fn check_hello(me: &Identity, theirs: &[u8; HELLO]) -> Result<(Role, Security), Failure> {
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
    let security = Security::VARIANTS
        .get(usize::from(theirs[13]))
        .ok_or(Failure::Garbled)?;
    let role = match (theirs[12], u16::from_le_bytes([theirs[14], theirs[15]])) {
        (0, 0) => Role::Client,
        (1, id) => Role::Node(id),
        _ => return Err(Failure::Garbled),
    };
    Ok((role, me.security.max(*security)))
}

fn signed(label: &str, initiator: &[u8; HELLO], acceptor: &[u8; HELLO]) -> Vec<u8> {
    [label.as_bytes(), initiator, acceptor].concat()
}

fn prove(me: &Identity, label: &str, initiator: &[u8; HELLO], acceptor: &[u8; HELLO]) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &me.secret);
    hmac::sign(&key, &signed(label, initiator, acceptor))
}

fn is_proof(me: &Identity, label: &str, initiator: &[u8; HELLO], acceptor: &[u8; HELLO], proof: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &me.secret);
    hmac::verify(&key, &signed(label, initiator, acceptor), proof).is_ok()
}

/// The initiator's side; returns who the acceptor is.
pub(crate) async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    me: &Identity,
    stream: &mut S,
) -> Result<Shaken, Failure> {
    let nonce = Nonce::draw()?;
    let ours = hello(me, &nonce.public);
    stream.write_all(&ours).await?;
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).await?;
    let (role, security) = check_hello(me, &theirs)?;
    stream
        .write_all(prove(me, "initiator", &ours, &theirs).as_ref())
        .await?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict).await?;
    match verdict[0] {
        WELCOME if is_proof(me, "acceptor", &ours, &theirs, &verdict[1..]) => {
            let [sending, receiving] = secrets(me, nonce.private, (&ours, &theirs), &theirs)?;
            Ok(Shaken {
                role,
                security,
                sending,
                receiving,
            })
        }
        WELCOME | WRONG_SECRET => Err(Failure::Secret),
        WRONG_CLUSTER => Err(Failure::Cluster),
        BUSY => Err(Failure::Busy),
        _ => Err(Failure::Garbled),
    }
}

/// The acceptor's side; returns who the initiator is.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    me: &Identity,
    stream: &mut S,
) -> Result<Shaken, Failure> {
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).await?;
    let checked = check_hello(me, &theirs);
    if let Err(failure @ Failure::NotPolvo) = checked {
        return Err(failure); // nothing is said to strangers
    }
    let nonce = Nonce::draw()?;
    let ours = hello(me, &nonce.public);
    let mut verdict = [0; VERDICT];
    let (role, security) = match checked {
        Err(failure) => {
            verdict[0] = if failure == Failure::Cluster {
                WRONG_CLUSTER
            } else {
                WRONG_VERSION
            };
            let mut answer = Vec::with_capacity(HELLO + VERDICT);
            answer.extend_from_slice(&ours);
            answer.extend_from_slice(&verdict);
            stream.write_all(&answer).await?;
            return Err(failure);
        }
        Ok(fits) => fits,
    };
    stream.write_all(&ours).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    let known = is_proof(me, "initiator", &theirs, &ours, &proof);
    if known {
        verdict[1..].copy_from_slice(prove(me, "acceptor", &theirs, &ours).as_ref());
    } else {
        verdict[0] = WRONG_SECRET;
    }
    stream.write_all(&verdict).await?;
    if !known {
        return Err(Failure::Secret);
    }
    let [receiving, sending] = secrets(me, nonce.private, (&theirs, &ours), &theirs)?;
    Ok(Shaken {
        role,
        security,
        sending,
        receiving,
    })
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
            security: Security::Auth,
        }
    }

    type Roles = (Result<Role, Failure>, Result<Role, Failure>);

    async fn shake(a: Identity, b: Identity) -> Roles {
        let (a, b) = shaken(a, b).await;
        (a.map(|shaken| shaken.role), b.map(|shaken| shaken.role))
    }

    async fn shaken(a: Identity, b: Identity) -> (Result<Shaken, Failure>, Result<Shaken, Failure>) {
        let (mut left, mut right) = duplex(1024);
        tokio::join!(async move { initiate(&a, &mut left).await }, async move {
            accept(&b, &mut right).await
        })
    }

    /// A key made of the secret, to compare it by.
    fn bytes(secret: &Prk) -> [u8; 32] {
        let mut bytes = [0; 32];
        secret
            .expand(&[b"test"], HKDF_SHA256)
            .unwrap()
            .fill(&mut bytes)
            .unwrap();
        bytes
    }

    #[tokio::test]
    async fn both_have_the_same_secrets_one_for_each_direction_and_each_time_others() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let (a, b) = shaken(identity(1, "s", Role::Client), identity(1, "s", Role::Node(7))).await;
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!(
                (bytes(&a.sending), bytes(&a.receiving)),
                (bytes(&b.receiving), bytes(&b.sending))
            );
            assert!(seen.insert(bytes(&a.sending)) && seen.insert(bytes(&a.receiving)));
        }
    }

    #[tokio::test]
    async fn the_stronger_security_is_used_and_nobody_in_between_can_talk_it_down() {
        use Security::{Auth, Encrypt, None};
        let with = |role, security| Identity {
            security,
            ..identity(1, "s", role)
        };
        for (ours, theirs, used) in [
            (None, None, None),
            (None, Auth, Auth),
            (Encrypt, Auth, Encrypt),
            (Auth, None, Auth),
        ] {
            let (a, b) = shaken(with(Role::Client, ours), with(Role::Node(7), theirs)).await;
            assert_eq!((a.unwrap().security, b.unwrap().security), (used, used));
        }
        for from_initiator in [true, false] {
            let (mut left, mut near) = duplex(1024);
            let (mut far, mut right) = duplex(1024);
            let (a, b) = (with(Role::Client, Auth), with(Role::Node(7), Auth));
            let relay = async {
                let mut bytes = [0; HELLO];
                near.read_exact(&mut bytes).await.unwrap();
                bytes[13] = if from_initiator { 0 } else { bytes[13] };
                far.write_all(&bytes).await.unwrap();
                far.read_exact(&mut bytes).await.unwrap();
                bytes[13] = if from_initiator { bytes[13] } else { 0 };
                near.write_all(&bytes).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            };
            let ends = async {
                let initiating = async {
                    let shaken = initiate(&a, &mut left).await;
                    drop(left);
                    shaken
                };
                let accepting = async {
                    let shaken = accept(&b, &mut right).await;
                    drop(right);
                    shaken
                };
                let (a, b) = tokio::join!(initiating, accepting);
                assert_eq!((a.err(), b.err()), (Some(Failure::Secret), Some(Failure::Secret)));
            };
            tokio::join!(relay, ends);
        }
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
        let mut bytes = hello(&me, &[0; 32]);
        bytes[8] = 99;
        left.write_all(&bytes).await.unwrap();
        assert_eq!(
            accept(&me, &mut right).await.err(),
            Some(Failure::Version {
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
        let mut bytes = hello(&me, &[0; 32]);
        bytes[8] = 99;
        right.write_all(&bytes).await.unwrap();
        assert_eq!(
            initiate(&me, &mut left).await.err(),
            Some(Failure::Version {
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
            .write_all(&hello(&identity(1, "?", Role::Node(3)), &[9; 32]))
            .await
            .unwrap();
        right.write_all(&[0; VERDICT]).await.unwrap();
        assert_eq!(initiate(&me, &mut left).await.err(), Some(Failure::Secret));
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
        assert_eq!(shaken.err(), Some(Failure::Secret));
    }
}
