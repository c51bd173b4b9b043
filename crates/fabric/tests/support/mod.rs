//! Runs one test body over every provider.
#![allow(dead_code)] // tests of `bench` use a part

use polvo_fabric::sim::Network;
use polvo_fabric::{
    Access, Address, Buffer, Event, Identity, Listener, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Role,
    Security, connect,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

pub const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub enum Provider {
    Tcp,
    /// TCP whose bytes travel in records.
    Sealed,
    Shm,
    Sim(u64),
}

impl Provider {
    /// Who we are to peers that we reach so.
    pub fn identity(&self, role: Role) -> Identity {
        Identity {
            security: match self {
                Provider::Sealed => Security::Auth,
                _ => Security::None,
            },
            ..identity(role)
        }
    }
}

pub fn identity(role: Role) -> Identity {
    Identity {
        cluster: [7; 16],
        secret: b"secret of the tests"[..].into(),
        role,
        security: Security::default(),
    }
}

/// A connected pair on one thread. The server's end is driven by a task that collects its events.
pub struct Pair {
    pub client: QueuePair,
    pub client_regions: Arc<MemoryRegions>,
    pub server: QueuePair,
    pub server_regions: Arc<MemoryRegions>,
    pub events: Rc<Events>,
    pub is_simulated: bool,
}

#[derive(Default)]
pub struct Events {
    queue: RefCell<VecDeque<Option<Event>>>,
    more: Notify,
}

impl Events {
    /// The next event at the server's end; `None` when the connection is lost there.
    pub async fn next(&self) -> Option<Event> {
        loop {
            if let Some(event) = self.queue.borrow_mut().pop_front() {
                return event;
            }
            self.more.notified().await;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    pub fn drive(qp: &QueuePair) -> Rc<Events> {
        let events = Rc::new(Events::default());
        let (qp, to) = (qp.clone(), events.clone());
        tokio::task::spawn_local(async move {
            loop {
                let event = qp.next_event().await;
                let is_over = event.is_none();
                to.queue.borrow_mut().push_back(event);
                to.more.notify_one();
                if is_over {
                    return;
                }
            }
        });
        events
    }
}

impl Pair {
    /// Memory at the server that the client may reach.
    pub fn buffer(&self, len: usize, access: Access) -> (Arc<Buffer>, RemoteKey) {
        let buffer = Buffer::new(len);
        let key = self
            .server_regions
            .register(Memory::Buffer(buffer.clone()), 0, len as u64, access);
        (buffer, key)
    }
}

pub fn at(key: RemoteKey, offset: u64) -> Remote {
    Remote { key, offset }
}

pub fn bytes_of(buffer: &Buffer, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.read(offset, &mut bytes);
    bytes
}

/// A pattern that shows where bytes come from.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes()[..word.len()]);
    }
    bytes
}

pub fn runtime(paused: bool) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .unwrap()
}

pub fn block_on<T>(what: impl Future<Output = T>) -> T {
    let runtime = runtime(false);
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(60), what)
            .await
            .expect("the test takes too long")
    })
}

pub struct Place {
    pub address: Address,
    _dir: Option<tempfile::TempDir>,
}

pub fn place(provider: &Provider) -> Place {
    match provider {
        Provider::Tcp | Provider::Sealed => Place {
            address: Address::Tcp("127.0.0.1:0".into()),
            _dir: None,
        },
        Provider::Shm => {
            let dir = tempfile::tempdir().unwrap();
            let path: PathBuf = dir.path().join("node.sock");
            Place {
                address: Address::Shm(path),
                _dir: Some(dir),
            }
        }
        Provider::Sim(_) => Place {
            address: Address::Sim("node-1".into()),
            _dir: None,
        },
    }
}

pub async fn pair(provider: &Provider) -> Pair {
    let place = place(provider);
    let (client_regions, server_regions) = (MemoryRegions::new(), MemoryRegions::new());
    let mut listener = Listener::bind(&place.address, &provider.identity(Role::Node(1)), &server_regions)
        .await
        .unwrap();
    let addr = listener.local_addr();
    let me = provider.identity(Role::Client);
    let (client, server) = tokio::join!(connect(&addr, &me, &client_regions, TIMEOUT), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!((client.peer(), server.peer()), (Role::Node(1), Role::Client));
    let events = Events::drive(&server);
    Pair {
        client,
        client_regions,
        server,
        server_regions,
        events,
        is_simulated: matches!(provider, Provider::Sim(_)),
    }
}

/// Runs the body with each provider (the simulated one with several seeds), in a runtime that suits it.
pub fn on_each_provider(body: impl AsyncFn(Provider)) {
    let providers = [
        Provider::Tcp,
        Provider::Sealed,
        Provider::Shm,
        Provider::Sim(1),
        Provider::Sim(2),
        Provider::Sim(3),
    ];
    for provider in providers {
        println!("provider: {provider:?}");
        let seed = if let Provider::Sim(seed) = provider {
            Some(seed)
        } else {
            None
        };
        let _entered = seed.map(|seed| Network::new(seed).enter());
        let runtime = runtime(seed.is_some());
        tokio::task::LocalSet::new().block_on(&runtime, async {
            tokio::time::timeout(Duration::from_secs(120), body(provider))
                .await
                .expect("the test takes too long");
        });
    }
}

/// Runs the body with a fresh pair of each provider.
pub fn on_every_provider(body: impl AsyncFn(Pair)) {
    on_each_provider(async |provider| body(pair(&provider).await).await);
}
