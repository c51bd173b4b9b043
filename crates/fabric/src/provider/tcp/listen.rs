//! Connecting and accepting over TCP.

use super::Tcp;
use crate::handshake::{self, ACCEPT_PAUSE, HANDSHAKE_TIMEOUT, Shaken};
use crate::provider::Provider;
use crate::strangers::{Sparing, Strangers};
use crate::{Address, FabricError, Identity, MemoryRegions, Role};
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Unacknowledged data for this long: the peer's host is gone.
const USER_TIMEOUT_MS: u32 = 15_000;

/// An idle connection is probed after `KEEP_IDLE`, then every `KEEP_INTERVAL`, and given up after `KEEP_PROBES`.
const KEEP_IDLE: Duration = Duration::from_secs(10);
const KEEP_INTERVAL: Duration = Duration::from_secs(3);
const KEEP_PROBES: u32 = 3;

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_PROBES)?;
    Ok(())
}

/// A connected peer that has proved who it is.
pub(crate) struct Arrived {
    socket: OwnedFd,
    shaken: Shaken,
    name: String,
    regions: Arc<MemoryRegions>,
}

impl Arrived {
    fn new(stream: TcpStream, shaken: Shaken, name: String, regions: &Arc<MemoryRegions>) -> io::Result<Arrived> {
        Ok(Arrived {
            socket: stream.into_std()?.into(),
            shaken,
            name,
            regions: regions.clone(),
        })
    }

    pub(crate) fn role(&self) -> &Role {
        &self.shaken.role
    }

    /// Served by this thread from now on.
    pub(crate) fn provider(self) -> Result<Rc<dyn Provider>, FabricError> {
        let peer = self.name.clone();
        let failed = |e: io::Error| FabricError::Connect {
            peer,
            why: e.to_string(),
        };
        let tcp = Tcp::new(self.socket, self.shaken, self.name, self.regions).map_err(failed)?;
        Ok(Rc::new(tcp))
    }
}

/// Connects to `host:port`; the caller bounds the time.
pub(crate) async fn connect(
    host_port: &str,
    me: &Identity,
    regions: &Arc<MemoryRegions>,
) -> Result<Rc<dyn Provider>, FabricError> {
    let peer = Address::Tcp(host_port.to_owned()).to_string();
    let failed = |e: io::Error| FabricError::Connect {
        peer: peer.clone(),
        why: e.to_string(),
    };
    let mut stream = TcpStream::connect(host_port).await.map_err(failed)?;
    prepare(&stream).map_err(failed)?;
    let shaken = handshake::initiate(me, &mut stream).await.map_err(|failure| {
        let why = failure.to_string();
        if failure.is_refusal() {
            FabricError::Refused {
                peer: peer.clone(),
                why,
            }
        } else {
            FabricError::Connect {
                peer: peer.clone(),
                why,
            }
        }
    })?;
    let arrived = Arrived::new(stream, shaken, peer.clone(), regions).map_err(failed)?;
    arrived.provider()
}

type Met = (Result<(TcpStream, Shaken), handshake::Failure>, SocketAddr);

/// A bound TCP port.
pub(crate) struct TcpListening {
    listener: TcpListener,
    me: Identity,
    regions: Arc<MemoryRegions>,
    handshakes: Strangers<IpAddr, Met>,
    warnings: Sparing,
    local: Address,
}

impl TcpListening {
    pub(crate) async fn bind(
        host_port: &str,
        me: &Identity,
        regions: &Arc<MemoryRegions>,
    ) -> Result<TcpListening, FabricError> {
        let wrong = |e: io::Error| FabricError::Address {
            addr: Address::Tcp(host_port.to_owned()).to_string(),
            why: if e.kind() == io::ErrorKind::AddrInUse {
                "already in use".into()
            } else {
                e.to_string()
            },
        };
        let listener = TcpListener::bind(host_port).await.map_err(wrong)?;
        let port = listener.local_addr().map_err(wrong)?.port();
        let host = host_port.rsplit_once(':').map_or(host_port, |(host, _)| host);
        Ok(TcpListening {
            listener,
            me: me.clone(),
            regions: regions.clone(),
            handshakes: Strangers::default(),
            warnings: Sparing::default(),
            local: Address::Tcp(format!("{host}:{port}")),
        })
    }

    pub(crate) fn local_addr(&self) -> Address {
        self.local.clone()
    }

    /// Next peer that proved who it is. Dropping the future loses nothing.
    pub(crate) async fn accept(&mut self) -> Arrived {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let me = self.me.clone();
                        self.handshakes.begin(from.ip(), shake(stream, from, me));
                        // a crowd in the queue does not put out whom it came before unheard
                        tokio::task::yield_now().await;
                    }
                    Err(error) => {
                        if let Some(more) = self.warnings.may_say() {
                            tracing::warn!(listener = %self.local, %error, more, "cannot accept");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(done) = self.handshakes.next() => match done {
                    Ok((place, (Ok((stream, shaken)), from))) => {
                        self.handshakes.proved(place);
                        let name = format!("{} at {from}", shaken.role);
                        match Arrived::new(stream, shaken, name, &self.regions) {
                            Ok(arrived) => return arrived,
                            Err(error) => tracing::warn!(%from, %error, "connection dropped"),
                        }
                    }
                    Ok((_, (Err(failure), from))) => {
                        if let Some(more) = self.warnings.may_say() {
                            tracing::warn!(listener = %self.local, %from, why = %failure, more, "peer refused");
                        }
                    }
                    Err(error) => tracing::error!(%error, "handshake task failed"),
                },
            }
        }
    }
}

async fn shake(mut stream: TcpStream, from: SocketAddr, me: Identity) -> Met {
    let shaken = async {
        prepare(&stream)?;
        handshake::accept(&me, &mut stream).await
    };
    let shaken = match tokio::time::timeout(HANDSHAKE_TIMEOUT, shaken).await {
        Ok(shaken) => shaken,
        Err(_) => Err(handshake::Failure::Io("its handshake took too long".into())),
    };
    (shaken.map(|shaken| (stream, shaken)), from)
}
