//! Meeting at a UNIX socket.

use super::Shm;
use super::ring::{Reader, Writer};
use super::socket::{self, Ended, Incoming, Message};
use crate::handshake::{self, ACCEPT_PAUSE, Failure, HANDSHAKE_TIMEOUT};
use crate::key_table::PeerKeys;
use crate::provider::Provider;
use crate::strangers::{Sparing, Strangers};
use crate::{Address, FabricError, Identity, MemoryRegions, Role};
use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

/// What two peers have of each other when they have met.
pub(super) struct Meeting {
    pub(super) role: Role,
    pub(super) socket: OwnedFd,
    pub(super) incoming: Incoming,
    pub(super) reader: Reader,
    pub(super) doorbell: OwnedFd,
    pub(super) writer: Writer,
    pub(super) peer_doorbell: OwnedFd,
    pub(super) keys: PeerKeys,
}

/// Pools that a peer may have.
const MAX_POOLS: u64 = 16;
/// Between two attempts to get into a queue that is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// Exchanges rings, doorbells and key tables with a peer that has proved who it is. A node tells its pools, too: of what its runs
/// before this one have given, nothing is kept.
pub(super) async fn exchange(stream: UnixStream, role: Role, regions: &MemoryRegions) -> Result<Meeting, Failure> {
    let reader = Reader::new()?;
    let doorbell =
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
    let fds = [reader.fd(), doorbell.as_fd(), regions.share()?.fd()];
    let pools = regions.pools();
    socket::send(
        stream.as_fd(),
        Message::Setup {
            pools: pools.len() as u64,
        },
        &fds,
    )?;
    for (number, pool) in &pools {
        let fd = pool.fd().ok_or(Failure::Garbled)?;
        socket::send(stream.as_fd(), socket::pool_message(*number, pool), &[fd])?;
    }
    let mut incoming = Incoming::default();
    let (Message::Setup { pools }, fds) = next_message(&stream, &mut incoming).await? else {
        return Err(Failure::Garbled);
    };
    if pools > MAX_POOLS {
        return Err(Failure::Garbled);
    }
    for _ in 0..pools {
        let (Message::Pool { incarnation, .. }, fds) = next_message(&stream, &mut incoming).await? else {
            return Err(Failure::Garbled);
        };
        if let (Role::Node(_), [fd]) = (&role, &fds[..]) {
            socket::retire_before(incarnation, fd.as_fd())?;
        }
    }
    let [ring, peer_doorbell, keys]: [OwnedFd; 3] = fds.try_into().map_err(|_| Failure::Garbled)?;
    // Whatever it is that we were given, ringing must not block.
    let flags = rustix::fs::fcntl_getfl(&peer_doorbell).map_err(io::Error::from)?;
    rustix::fs::fcntl_setfl(&peer_doorbell, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(Meeting {
        role,
        writer: Writer::new(ring.as_fd())?,
        keys: PeerKeys::new(keys.as_fd())?,
        socket: stream.into_std()?.into(),
        incoming,
        reader,
        doorbell,
        peer_doorbell,
    })
}

/// The next message of a peer that has not said all yet.
async fn next_message(stream: &UnixStream, incoming: &mut Incoming) -> Result<(Message, Vec<OwnedFd>), Failure> {
    loop {
        stream.readable().await?;
        let next = stream.try_io(Interest::READABLE, || match incoming.next(stream.as_fd()) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
            Err(Ended::Lost(why)) => Err(io::Error::other(why)),
            Err(Ended::Broken(what)) => Err(io::Error::new(io::ErrorKind::InvalidData, what)),
        });
        match next {
            Ok(message) => return Ok(message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(Failure::Garbled),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Connects to the socket at `path`; the caller bounds the time.
pub(crate) async fn connect(
    path: &Path,
    me: &Identity,
    regions: &Arc<MemoryRegions>,
) -> Result<Rc<dyn Provider>, FabricError> {
    let peer = Address::Shm(path.to_owned()).to_string();
    let failed = |why: String| FabricError::Connect {
        peer: peer.clone(),
        why,
    };
    let mut stream = queue_up(path).await.map_err(|e| failed(e.to_string()))?;
    let met = async {
        let role = handshake::initiate(me, &mut stream).await?.role;
        exchange(stream, role, regions).await
    };
    let meeting = met.await.map_err(|failure| {
        let why = failure.to_string();
        if failure.is_refusal() {
            FabricError::Refused {
                peer: peer.clone(),
                why,
            }
        } else {
            failed(why)
        }
    })?;
    let arrived = Arrived {
        meeting,
        name: peer.clone(),
        regions: regions.clone(),
    };
    arrived.provider()
}

/// Connects; where the listener's queue is full (EAGAIN, at once), waits for a place in it.
async fn queue_up(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(QUEUE_PAUSE).await,
            connected => return connected,
        }
    }
}

type Met = Result<Meeting, Failure>;

/// A peer on this host that has proved who it is.
pub(crate) struct Arrived {
    meeting: Meeting,
    name: String,
    regions: Arc<MemoryRegions>,
}

impl Arrived {
    pub(crate) fn role(&self) -> &Role {
        &self.meeting.role
    }

    /// Served by this thread from now on.
    pub(crate) fn provider(self) -> Result<Rc<dyn Provider>, FabricError> {
        let peer = self.name.clone();
        let failed = |e: io::Error| FabricError::Connect {
            peer,
            why: e.to_string(),
        };
        let shm = Shm::new(self.meeting, self.name, self.regions).map_err(failed)?;
        Ok(Rc::new(shm))
    }
}

/// A bound socket; removed when dropped.
pub(crate) struct ShmListening {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, so that only our own is removed.
    file: (u64, u64),
    me: Identity,
    regions: Arc<MemoryRegions>,
    /// by process
    meetings: Strangers<Option<i32>, Met>,
    warnings: Sparing,
}

impl ShmListening {
    pub(crate) async fn bind(
        path: &Path,
        me: &Identity,
        regions: &Arc<MemoryRegions>,
    ) -> Result<ShmListening, FabricError> {
        let wrong = |why: String| FabricError::Address {
            addr: Address::Shm(path.to_owned()).to_string(),
            why,
        };
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(wrong("there is a file in its place that is no socket".into()));
            }
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    // Left behind by somebody who was killed.
                    std::fs::remove_file(path).map_err(|e| wrong(format!("cannot remove the stale socket: {e}")))?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => return Err(wrong("already in use".into())),
            }
        }
        let listener = UnixListener::bind(path).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => wrong("already in use".into()),
            io::ErrorKind::InvalidInput => wrong("the path is too long for a socket (at most 107 bytes)".into()),
            _ => wrong(e.to_string()),
        })?;
        let file = std::fs::symlink_metadata(path).map_err(|e| wrong(e.to_string()))?;
        Ok(ShmListening {
            listener,
            path: path.to_owned(),
            file: (file.dev(), file.ino()),
            me: me.clone(),
            regions: regions.clone(),
            meetings: Strangers::default(),
            warnings: Sparing::default(),
        })
    }

    pub(crate) fn local_addr(&self) -> Address {
        Address::Shm(self.path.clone())
    }

    /// Next peer that proved who it is. Dropping the future loses nothing.
    pub(crate) async fn accept(&mut self) -> Arrived {
        let path = self.path.display();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (me, regions) = (self.me.clone(), self.regions.clone());
                        let process = stream.peer_cred().ok().and_then(|cred| cred.pid());
                        self.meetings.begin(process, meet(stream, me, regions));
                        // a crowd in the queue does not put out whom it came before unheard
                        tokio::task::yield_now().await;
                    }
                    Err(error) => {
                        if let Some(more) = self.warnings.may_say() {
                            tracing::warn!(listener = %path, %error, more, "cannot accept");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(done) = self.meetings.next() => match done {
                    Ok((process, Ok(meeting))) => {
                        self.meetings.proved(process);
                        let name = format!("{} {}", meeting.role, place(process));
                        return Arrived {
                            meeting,
                            name,
                            regions: self.regions.clone(),
                        };
                    }
                    Ok((process, Err(failure))) => {
                        if let Some(more) = self.warnings.may_say() {
                            tracing::warn!(listener = %path, from = place(process), why = %failure, more, "peer refused");
                        }
                    }
                    Err(error) => tracing::error!(%error, "handshake task failed"),
                },
            }
        }
    }
}

impl Drop for ShmListening {
    fn drop(&mut self) {
        if let Ok(found) = std::fs::symlink_metadata(&self.path)
            && (found.dev(), found.ino()) == self.file
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn place(process: Option<i32>) -> String {
    match process {
        Some(pid) => format!("in process {pid}"),
        None => "on this host".into(),
    }
}

async fn meet(mut stream: UnixStream, me: Identity, regions: Arc<MemoryRegions>) -> Met {
    let met = async {
        let role = handshake::accept(&me, &mut stream).await?.role;
        exchange(stream, role, &regions).await
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, met).await {
        Ok(met) => met,
        Err(_) => Err(Failure::Io("its handshake took too long".into())),
    }
}
