//! A server on a thread of its own: memory that its clients may reach, and RPC that answers with the request.

use crate::BenchError;
use crate::rpc_scheme::Scheme;
use polvo_fabric::{
    Access, Address, Buffer, Identity, Listener, Memory, MemoryRegions, QueuePair, RemoteKey, Role, Security, connect,
};
use polvo_testbed::cores::SERVING;
use polvo_testbed::on_thread::OnThread;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc as queue, watch};

/// Bytes that clients may reach.
pub const MEMORY: u64 = 16 << 20;

/// Bound of everything that waits for the other side.
pub const TIMEOUT: Duration = Duration::from_secs(10);

fn identity(role: Role, security: Security) -> Identity {
    Identity {
        cluster: *b"polvo-benchmark!",
        secret: Arc::from(&b"benchmark secret"[..]),
        role,
        security,
    }
}

/// The address at which an [`EchoServer`] listens over `tcp` or `shm`.
pub fn address(provider: &str, scratch: &Path) -> Address {
    match provider {
        "shm" => Address::Shm(scratch.join("echo.sock")),
        _ => Address::Tcp("127.0.0.1:0".into()),
    }
}

/// The server.
pub struct EchoServer<S> {
    scheme: PhantomData<S>,
    address: Address,
    security: Security,
    /// Key of its memory.
    pub memory: RemoteKey,
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<(), String>>,
}

impl<S: Scheme> EchoServer<S> {
    /// Listens at `address`; what travels over tcp is as it is.
    pub fn start(address: Address) -> Result<EchoServer<S>, BenchError> {
        Self::start_with(address, Security::None)
    }

    /// Listens at `address`, for clients that want this security.
    pub fn start_with(address: Address, security: Security) -> Result<EchoServer<S>, BenchError> {
        let (ready, bound) = mpsc::channel();
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::Builder::new().name("server".into()).spawn(move || {
            let on_thread = OnThread::on_core(Some(SERVING)).map_err(|why| why.to_string())?;
            on_thread.run(async move {
                let regions = MemoryRegions::new();
                let memory = Memory::Buffer(Buffer::new(MEMORY as usize));
                let key = regions.register(memory, 0, MEMORY, Access::ALL);
                let mut listener = Listener::bind(&address, &identity(Role::Node(0), security), &regions)
                    .await
                    .map_err(|why| why.to_string())?;
                let _ = ready.send((listener.local_addr(), key));
                let (arrive, arrivals) = queue::channel(1);
                let serving = S::serve_all(arrivals, regions, |request| async move { request });
                tokio::task::spawn_local(serving);
                loop {
                    tokio::select! {
                        accepted = listener.accept() => {
                            let pair = accepted.map_err(|why| why.to_string())?;
                            arrive.send(pair).await.map_err(|_| "nobody serves")?;
                        }
                        _ = stopped.changed() => return Ok(()),
                    }
                }
            })
        })?;
        let (address, memory) = bound.recv_timeout(TIMEOUT).map_err(|_| "the server did not start")?;
        Ok(EchoServer {
            scheme: PhantomData,
            address,
            security,
            memory,
            stop,
            thread,
        })
    }

    async fn connect(&self) -> Result<(QueuePair, Arc<MemoryRegions>), BenchError> {
        let regions = MemoryRegions::new();
        let pair = connect(&self.address, &identity(Role::Client, self.security), &regions, TIMEOUT).await?;
        Ok((pair, regions))
    }

    /// A connection, to be made on the thread that uses it.
    pub async fn client(&self) -> Result<S::Caller, BenchError> {
        let (pair, regions) = self.connect().await?;
        Ok(S::establish(pair, &regions, TIMEOUT).await?)
    }

    /// Ends it.
    pub fn stop(self) -> Result<(), BenchError> {
        self.stop.send_replace(true);
        self.thread.join().map_err(|_| "the server thread failed")??;
        Ok(())
    }
}
