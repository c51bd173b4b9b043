//! Latency of a call and throughput of one-sided operations, beside what a raw socket does in the same run.
//!
//! ```text
//! cargo run --release -p polvo-rpc --example pingpong
//! ```

use polvo_fabric::{Access, Address, Buffer, Identity, Listener, Memory, MemoryRegions, Remote, Role, Verb, connect};
use polvo_rpc::{RpcClient, serve};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 20_000;
const MIB: usize = 1 << 20;
const TRANSFERS: usize = 4000;

fn identity(role: Role) -> Identity {
    Identity {
        cluster: [1; 16],
        secret: b"pingpong"[..].into(),
        role,
    }
}

fn block_on<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, what)
}

/// Median and 99th percentile in microseconds.
fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_nanos() as f64 / 1000.0;
    println!("{name:32} {:8.2} us median {:8.2} us p99", at(0.5), at(0.99));
}

fn rate(name: &str, bytes: usize, time: Duration) {
    println!("{name:32} {:8.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9);
}

fn raw() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a peer");
        stream.set_nodelay(true).expect("a socket");
        let mut bytes = [0; 64];
        for _ in 0..ROUNDS {
            stream.read_exact(&mut bytes).expect("a message");
            stream.write_all(&bytes).expect("a message");
        }
        // As a target of writes, it goes over 16 MiB of memory.
        let mut sink = vec![0; 16 * MIB];
        for round in 0..TRANSFERS {
            let start = round % 16 * MIB;
            stream.read_exact(&mut sink[start..start + MIB]).expect("a message");
        }
        stream.write_all(&[1]).expect("a message");
    });
    let mut stream = TcpStream::connect(addr).expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let mut bytes = [0; 64];
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(&bytes).expect("a message");
        stream.read_exact(&mut bytes).expect("a message");
        times.push(start.elapsed());
    }
    report("raw socket 64 B, blocking", times);
    let source = vec![7; MIB];
    let start = Instant::now();
    for _ in 0..TRANSFERS {
        stream.write_all(&source).expect("a message");
    }
    stream.read_exact(&mut bytes[..1]).expect("an end");
    rate("raw socket 1 MiB stream", TRANSFERS * MIB, start.elapsed());
    echo.join().expect("the echo");
}

fn provider(name: &str, listen: Address) {
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || {
        block_on(async {
            let regions = MemoryRegions::new();
            let memory = Memory::Buffer(Buffer::new(16 * MIB));
            let key = regions.register(memory, 0, 16 * MIB as u64, Access::ALL);
            let mut listener = Listener::bind(&listen, &identity(Role::Node(1)), &regions)
                .await
                .expect("bound");
            tell.send((listener.local_addr(), key)).expect("the client waits");
            let qp = listener.accept().await.expect("a peer");
            serve(qp, &regions, |request| async move { request })
                .await
                .expect("served");
        });
    });
    let (addr, key) = told.recv().expect("the server tells");
    block_on(async {
        let regions = MemoryRegions::new();
        let timeout = Duration::from_secs(10);
        let qp = connect(&addr, &identity(Role::Client), &regions, timeout)
            .await
            .expect("connected");
        let rpc = RpcClient::establish(qp.clone(), &regions, timeout)
            .await
            .expect("established");
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let reply = rpc.call(&[1; 64], timeout).await.expect("answered");
            times.push(start.elapsed());
            assert_eq!(reply.len(), 64);
        }
        report(&format!("{name} RPC 64 B"), times);
        for len in [8, 4096] {
            let mut into = vec![0; len];
            let mut times = Vec::new();
            for round in 0..ROUNDS {
                let from = Remote {
                    key,
                    offset: (round * 4096 % (16 * MIB)) as u64,
                };
                let start = Instant::now();
                qp.execute(&mut [Verb::Read { from, into: &mut into }])
                    .await
                    .expect("read");
                times.push(start.elapsed());
            }
            report(&format!("{name} one-sided read {len} B"), times);
        }
        let mut into = vec![0; MIB];
        let start = Instant::now();
        for round in 0..TRANSFERS {
            let from = Remote {
                key,
                offset: (round % 16 * MIB) as u64,
            };
            qp.execute(&mut [Verb::Read { from, into: &mut into }])
                .await
                .expect("read");
        }
        rate(
            &format!("{name} 1 MiB reads, one at a time"),
            TRANSFERS * MIB,
            start.elapsed(),
        );
        let start = Instant::now();
        for round in 0..TRANSFERS {
            let to = Remote {
                key,
                offset: (round % 16 * MIB) as u64,
            };
            qp.execute(&mut [Verb::Write { to, bytes: &into }])
                .await
                .expect("written");
        }
        rate(
            &format!("{name} 1 MiB writes, one at a time"),
            TRANSFERS * MIB,
            start.elapsed(),
        );
        let many = |write: bool| {
            let tasks: Vec<_> = (0..4)
                .map(|task| {
                    let qp = qp.clone();
                    tokio::task::spawn_local(async move {
                        let mut bytes = vec![0; MIB];
                        for round in 0..TRANSFERS / 4 {
                            let at = Remote {
                                key,
                                offset: ((round * 4 + task) % 16 * MIB) as u64,
                            };
                            let verb = if write {
                                Verb::Write { to: at, bytes: &bytes }
                            } else {
                                Verb::Read {
                                    from: at,
                                    into: &mut bytes,
                                }
                            };
                            qp.execute(&mut [verb]).await.expect("done");
                        }
                    })
                })
                .collect();
            async move {
                for task in tasks {
                    task.await.expect("no panic");
                }
            }
        };
        for (what, write) in [("reads", false), ("writes", true)] {
            let start = Instant::now();
            many(write).await;
            rate(
                &format!("{name} 1 MiB {what}, four at a time"),
                TRANSFERS * MIB,
                start.elapsed(),
            );
        }
        qp.close();
    });
    server.join().expect("the server");
}

fn main() {
    let which: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| which.is_empty() || which.iter().any(|w| w == name);
    if wanted("raw") {
        raw();
    }
    if wanted("tcp") {
        provider("tcp", "tcp://127.0.0.1:0".parse().expect("an address"));
    }
    if wanted("shm") {
        let path = std::env::temp_dir().join(format!("polvo-pingpong-{}.sock", std::process::id()));
        provider("shm", Address::Shm(Arc::<std::path::Path>::from(path).to_path_buf()));
    }
}
