//! What a peer that has the ring but not the manners can do: nothing.

use super::listen::exchange;
use super::*;
use crate::{Access, Buffer, Event, RemoteKey};
use polvo_pmem::Pmem;
use tokio::net::UnixStream;

const LEN: usize = 4096;

/// A queue pair whose peer writes into its ring what it likes.
struct Rude {
    peer: Shm,
    victim: Shm,
    regions: Arc<MemoryRegions>,
    buffer: Arc<Buffer>,
}

impl Rude {
    async fn new() -> Rude {
        let (near, far) = UnixStream::pair().unwrap();
        let (regions, theirs) = (MemoryRegions::new(), MemoryRegions::new());
        let (victim, peer) = tokio::join!(
            exchange(near, Role::Client, &regions),
            exchange(far, Role::Node(1), &theirs)
        );
        let (Ok(victim), Ok(peer)) = (victim, peer) else {
            panic!("they are of one version")
        };
        Rude {
            peer: Shm::new(peer, "peer".into(), theirs).unwrap(),
            victim: Shm::new(victim, "victim".into(), regions.clone()).unwrap(),
            regions,
            buffer: Buffer::new(3 * LEN),
        }
    }

    fn key(&self, access: Access) -> RemoteKey {
        let memory = Memory::Buffer(self.buffer.clone());
        self.regions.register(memory, LEN as u64, LEN as u64, access)
    }

    /// Has the victim take a write that travels in the ring. Its event, if it is alive after that.
    fn write(&self, key: u64, offset: u64, bytes: &[u8]) -> Option<Event> {
        self.peer.writer.borrow_mut().write(key, offset, bytes, 7);
        self.victim.progress();
        assert_eq!(self.victim.shared.is_closed(), !self.victim.shared.any_event());
        self.victim.shared.pop_event()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 3 * LEN];
        self.buffer.read(0, &mut bytes);
        bytes
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test);
}

#[test]
fn a_write_in_the_ring_lands_where_its_key_says() {
    run(async {
        let rude = Rude::new().await;
        let key = rude.key(Access::WRITE).0;
        for (offset, len) in [(0, 1), (LEN - 1, 1), (LEN - WRITE_MAX, WRITE_MAX), (LEN, 0), (8, 8)] {
            let bytes = vec![5; len];
            assert_eq!(rude.write(key, offset as u64, &bytes), Some(Event::Immediate(7)));
            assert_eq!(rude.bytes()[LEN + offset..][..len], bytes);
        }
    });
}

#[test]
fn a_write_in_the_ring_that_its_key_does_not_allow_ends_the_connection_and_touches_nothing() {
    run(async {
        let none = Access {
            read: false,
            ..Access::READ
        };
        for access in [Access::READ, none] {
            let rude = Rude::new().await;
            let key = rude.key(access).0;
            assert_eq!(rude.write(key, 0, &[1]), None);
            assert!(rude.bytes().iter().all(|&byte| byte == 0));
        }
        for (offset, len) in [
            (LEN as u64, 1),
            (LEN as u64 - 7, 8),
            (u64::MAX, 1),
            (u64::MAX - 3, 96),
            (1 << 63, 0),
        ] {
            let rude = Rude::new().await;
            let key = rude.key(Access::ALL).0;
            assert_eq!(rude.write(key, offset, &vec![1; len]), None, "{offset}+{len}");
            assert!(rude.bytes().iter().all(|&byte| byte == 0));
        }
        let keys: [&dyn Fn(u64) -> u64; 4] = [&|_| 0, &|key| key ^ 1, &|key| key ^ 1 << 63, &|_| u64::MAX];
        for invent in keys {
            let rude = Rude::new().await;
            let key = rude.key(Access::ALL).0;
            assert_eq!(rude.write(invent(key), 0, &[1]), None);
            assert!(rude.bytes().iter().all(|&byte| byte == 0));
        }
    });
}

#[test]
fn a_write_in_the_ring_finds_nothing_once_its_key_is_revoked() {
    run(async {
        let rude = Rude::new().await;
        let key = rude.key(Access::WRITE);
        assert_eq!(rude.write(key.0, 0, &[1]), Some(Event::Immediate(7)));
        rude.regions.deregister(key);
        assert_eq!(rude.write(key.0, 1, &[1]), None);
        assert_eq!(rude.bytes()[LEN..LEN + 2], [1, 0]);
    });
}

/// Another thread of the process has heard that the node was started anew, and this one not yet.
#[test]
fn a_store_into_a_pool_that_was_let_go_of_is_not_said_to_be_there() {
    run(async {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = Pmem::create(&dir.path().join("pool"), 1 << 20, None).unwrap();
        pool.begin_incarnation(1).unwrap();
        let Rude {
            peer, victim, regions, ..
        } = Rude::new().await;
        let key = regions.register(Memory::Pool(pool.clone()), 0, pool.len(), Access::ALL);
        let store = |bytes: &[u8]| {
            let to = Remote { key, offset: 0 };
            peer.post(&mut [Verb::Write { to, bytes }], Completion::Signaled)
        };
        while !matches!(store(b"there"), Ok(Posted::Done)) {
            victim.poll_socket();
            peer.poll_socket();
        }
        socket::retire_before(2, pool.fd().unwrap()).unwrap();
        // as if it had looked for its peer's life just now
        peer.last_probe.set(Tick::now());
        assert!(matches!(store(b"later"), Err(FabricError::Disconnected { .. })));
        let mut found = [0; 5];
        pool.read(0, &mut found);
        assert_eq!(&found, b"there");
    });
}
