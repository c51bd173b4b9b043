//! What becomes of a node's pool in a process that has it mapped when the node is started anew.

use crate::support::{Place, Provider, TIMEOUT, at, block_on, identity, place};
use polvo_fabric::{Access, Listener, Memory, MemoryRegions, QueuePair, RemoteKey, Role, Verb, connect};
use polvo_pmem::Pmem;
use std::path::Path;
use std::sync::Arc;

/// One incarnation of a node, with a pool that clients may write to.
struct Run {
    pool: Arc<Pmem>,
    key: RemoteKey,
    listener: Listener,
    served: Vec<QueuePair>,
}

impl Run {
    async fn begin(place: &Place, path: &Path, number: u64) -> Run {
        let pool = Pmem::open(path, None).unwrap();
        pool.begin_incarnation(number).unwrap();
        let regions = MemoryRegions::new();
        let key = regions.register(Memory::Pool(pool.clone()), 0, pool.len(), Access::ALL);
        Run {
            key,
            listener: Listener::bind(&place.address, &identity(Role::Node(1)), &regions)
                .await
                .unwrap(),
            pool,
            served: Vec::new(),
        }
    }

    async fn client(&mut self) -> QueuePair {
        let (me, regions, address) = (identity(Role::Client), MemoryRegions::new(), self.listener.local_addr());
        let (client, server) = tokio::join!(connect(&address, &me, &regions, TIMEOUT), self.listener.accept());
        self.served.push(server.unwrap());
        client.unwrap()
    }

    /// The server gives the client the pool when it first asks for it.
    async fn write(&self, client: &QueuePair, offset: u64, bytes: &[u8]) {
        let mut batch = [Verb::Write {
            to: at(self.key, offset),
            bytes,
        }];
        let serving = async {
            loop {
                for server in &self.served {
                    server.progress();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            written = client.execute(&mut batch) => written.unwrap(),
            () = serving => {}
        }
    }

    fn bytes(&self, offset: u64) -> [u8; 4] {
        let mut bytes = [0; 4];
        self.pool.read(offset, &mut bytes);
        bytes
    }
}

#[test]
fn a_thread_that_does_nothing_does_not_keep_the_pool_of_a_run_that_has_ended() {
    block_on(async {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("pool");
        drop(Pmem::create(&path, 1 << 20, None).unwrap());
        let place = place(&Provider::Shm);

        let mut first = Run::begin(&place, &path, 1).await;
        let idle = first.client().await;
        first.write(&idle, 0, b"one.").await;
        assert_eq!(first.bytes(0), *b"one.");
        let key = first.key;
        drop(first);

        let mut second = Run::begin(&place, &path, 2).await;
        assert!(
            second.pool.is_mapped_since_before(2).unwrap(),
            "nobody has heard of the new incarnation"
        );
        let busy = second.client().await;
        assert!(
            !second.pool.is_mapped_since_before(2).unwrap(),
            "the process has heard of it, and still has the pool as the previous incarnation gave it"
        );
        second.write(&busy, 4, b"two.").await;
        assert!(!second.pool.is_mapped_since_before(2).unwrap());
        let late = idle
            .execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: b"late",
            }])
            .await;
        assert!(late.is_err(), "a store that has reached nobody: {late:?}");
        assert_eq!((second.bytes(0), second.bytes(4)), (*b"one.", *b"two."));
    });
}
