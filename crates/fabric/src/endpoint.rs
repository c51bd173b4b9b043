//! Connecting and listening, whatever the provider.

use crate::provider::{shm, sim, tcp};
use crate::queue_pair::QueuePair;
use crate::{Address, FabricError, Identity, MemoryRegions, Role};
use std::sync::Arc;
use std::time::Duration;

/// Connects to `addr`; `regions` are ours that the peer may reach. Bounded by `timeout`.
///
/// # Errors
/// [`FabricError::Refused`] if secret, version or cluster do not match, [`FabricError::Connect`] if nobody is there,
/// [`FabricError::TimedOut`].
pub async fn connect(
    addr: &Address,
    me: &Identity,
    regions: &Arc<MemoryRegions>,
    timeout: Duration,
) -> Result<QueuePair, FabricError> {
    let connecting = async {
        match addr {
            Address::Tcp(host_port) => tcp::connect(host_port, me, regions).await,
            Address::Sim(name) => sim::connect(name, me, regions).await,
            Address::Shm(path) => shm::connect(path, me, regions).await,
        }
    };
    let timed_out = |_| FabricError::TimedOut {
        peer: addr.to_string(),
        ms: timeout.as_millis() as u64,
    };
    let provider = tokio::time::timeout(timeout, connecting).await.map_err(timed_out)??;
    Ok(QueuePair::new(provider))
}

enum Listening {
    Tcp(tcp::TcpListening),
    Shm(shm::ShmListening),
    Sim(sim::SimListening),
}

enum From {
    Tcp(tcp::Arrived),
    Shm(shm::Arrived),
    Sim(sim::Arrived),
}

/// A peer that has proved who it is, and that no thread serves yet. One that is dropped is hung up on.
pub struct Accepted {
    from: From,
}

impl Accepted {
    /// Who it is.
    pub fn peer(&self) -> &Role {
        match &self.from {
            From::Tcp(arrived) => arrived.role(),
            From::Shm(arrived) => arrived.role(),
            From::Sim(arrived) => arrived.role(),
        }
    }

    /// The queue pair to it, which belongs to the calling thread and its runtime.
    ///
    /// # Errors
    /// [`FabricError::Connect`]: the system has no descriptor or memory for it.
    pub fn queue_pair(self) -> Result<QueuePair, FabricError> {
        let provider = match self.from {
            From::Tcp(arrived) => arrived.provider()?,
            From::Shm(arrived) => arrived.provider()?,
            From::Sim(arrived) => arrived.provider(),
        };
        Ok(QueuePair::new(provider))
    }
}

/// Accepts peers at an address.
pub struct Listener {
    listening: Listening,
}

impl Listener {
    /// Binds. An address in use is an error that names it.
    pub async fn bind(addr: &Address, me: &Identity, regions: &Arc<MemoryRegions>) -> Result<Listener, FabricError> {
        let listening = match addr {
            Address::Tcp(host_port) => Listening::Tcp(tcp::TcpListening::bind(host_port, me, regions).await?),
            Address::Sim(name) => Listening::Sim(sim::SimListening::bind(name, me, regions)?),
            Address::Shm(path) => Listening::Shm(shm::ShmListening::bind(path, me, regions).await?),
        };
        Ok(Listener { listening })
    }

    /// Next peer that proved the secret. Handshakes run concurrently and are bounded in number and time; failed ones are
    /// logged and dropped. Dropping the future loses no peer.
    pub async fn accept_peer(&mut self) -> Accepted {
        let from = match &mut self.listening {
            Listening::Tcp(listening) => From::Tcp(listening.accept().await),
            Listening::Shm(listening) => From::Shm(listening.accept().await),
            Listening::Sim(listening) => From::Sim(listening.accept().await),
        };
        Accepted { from }
    }

    /// The same, and the queue pair to it, for this thread.
    ///
    /// # Errors
    /// As [`Accepted::queue_pair`].
    pub async fn accept(&mut self) -> Result<QueuePair, FabricError> {
        self.accept_peer().await.queue_pair()
    }

    /// Where it listens (with the port that was given when bound to port 0).
    pub fn local_addr(&self) -> Address {
        match &self.listening {
            Listening::Tcp(listening) => listening.local_addr(),
            Listening::Shm(listening) => listening.local_addr(),
            Listening::Sim(listening) => listening.local_addr(),
        }
    }
}
