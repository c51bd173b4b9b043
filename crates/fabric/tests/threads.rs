//! A server on a thread of its own, clients on others, and what it costs when nothing happens.

use crate::support::{Provider, TIMEOUT, at, block_on, bytes_of, identity, pattern, place};
use polvo_fabric::{Access, Address, Buffer, Listener, Memory, MemoryRegions, Role, Verb, connect};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Serves `clients` queue pairs until all are closed.
fn server(address: Address, clients: usize, regions: Arc<MemoryRegions>, tell: mpsc::Sender<Address>) {
    block_on(async {
        let mut listener = Listener::bind(&address, &identity(Role::Node(1)), &regions)
            .await
            .unwrap();
        tell.send(listener.local_addr()).unwrap();
        let mut serving = Vec::new();
        for _ in 0..clients {
            let qp = listener.accept().await.unwrap();
            serving.push(tokio::task::spawn_local(async move {
                while qp.next_event().await.is_some() {}
            }));
        }
        for task in serving {
            task.await.unwrap();
        }
    });
}

#[test]
fn clients_on_other_threads_share_the_memory_of_a_server() {
    for provider in [Provider::Tcp, Provider::Shm] {
        println!("provider: {provider:?}");
        let place = place(&provider);
        let regions = MemoryRegions::new();
        let buffer = Buffer::new(1 << 20);
        let key = regions.register(Memory::Buffer(buffer.clone()), 0, 1 << 20, Access::ALL);
        let (tell, told) = mpsc::channel();
        let (address, served) = (place.address.clone(), regions.clone());
        let server = std::thread::spawn(move || server(address, 3, served, tell));
        let addr = told.recv().unwrap();
        let clients: Vec<_> = (0..3u64)
            .map(|client| {
                let addr = addr.clone();
                std::thread::spawn(move || {
                    block_on(async {
                        let regions = MemoryRegions::new();
                        let qp = connect(&addr, &identity(Role::Client), &regions, TIMEOUT)
                            .await
                            .unwrap();
                        let mut sum = 0;
                        for round in 0..300 {
                            let len = 10 + (round as usize * 977) % 100_000;
                            let bytes = pattern(len, client * 1000 + round);
                            let mut found = vec![0; len];
                            let place = at(key, 64 + client * 200_000);
                            let mut batch = [
                                Verb::Write {
                                    to: place,
                                    bytes: &bytes,
                                },
                                Verb::FetchAdd {
                                    at: at(key, 0),
                                    add: 1,
                                    found: &mut sum,
                                },
                                Verb::Read {
                                    from: place,
                                    into: &mut found,
                                },
                            ];
                            qp.execute(&mut batch).await.unwrap();
                            assert!(found == bytes, "client {client} round {round}");
                        }
                        qp.close();
                    });
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        server.join().unwrap();
        assert_eq!(bytes_of(&buffer, 0, 8), 900u64.to_ne_bytes());
    }
}

#[test]
fn an_idle_pair_uses_no_cpu() {
    const QUIET: Duration = Duration::from_millis(400);
    for provider in [Provider::Tcp, Provider::Shm] {
        println!("provider: {provider:?}");
        block_on(async {
            let pair = crate::support::pair(&provider).await;
            let (_, key) = pair.buffer(4096, Access::ALL);
            let listener = pair.client.clone();
            let waiting = tokio::task::spawn_local(async move { listener.next_event().await });
            for _ in 0..20 {
                pair.client
                    .execute(&mut [Verb::Write {
                        to: at(key, 0),
                        bytes: b"busy",
                    }])
                    .await
                    .unwrap();
                pair.server
                    .execute(&mut [Verb::Flush { at: at(key, 0), len: 0 }])
                    .await
                    .unwrap_err();
            }
            let before = cpu_time();
            tokio::time::sleep(QUIET).await;
            let used = cpu_time() - before;
            assert!(used < QUIET / 20, "{used:?} of CPU in {QUIET:?} of silence");
            pair.client.close();
            assert_eq!(waiting.await.unwrap(), None);
        });
    }
}
