//! The fabric and RPC against what the machine does without them.

use crate::BenchError;
use crate::baseline::socket::{self, Waits};
use crate::baseline::{libfabric, ping_pong};
use crate::busy_polling::BusyPolling;
use crate::echo::{self, EchoServer, TIMEOUT};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Findings, Unit};
use crate::rpc_scheme::SelfIdentified;
use crate::samples::{Samples, Timed, gbps, in_turn, rate, repeated};
use crate::suite::{Context, Effort, Experiment};
use polvo_fabric::{QueuePair, Remote, RemoteKey, Security, Verb};
use polvo_rpc::{RpcClient, SLOTS};
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "network",
    title: "The fabric and RPC",
    about: "One-sided operations and calls between two threads, over shared memory and over tcp on the loopback, beside two \
            threads that spin on a cache line, raw sockets that carry the same bytes and wait the same way, and libfabric's tcp \
            provider where it is installed (fi_pingpong).\n\n\
            Awake: the server polls for the next request, as a busy one does. Asleep: it waits in the kernel, as an idle one \
            does. The client always polls for its answer. Both sides keep to a core each, as those of the baselines do.",
    run,
};

/// Clients that keep all their slots filled.
const CLIENTS: usize = 8;
const MIB: usize = 1 << 20;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    shm(context, found)?;
    tcp(context, found)
}

/// A client of a server that waits as it is told, both there for the time of the measurement.
struct Peers {
    _waits: BusyPolling,
    server: EchoServer<SelfIdentified>,
    here: OnThread,
    client: RpcClient,
}

impl Peers {
    fn new(provider: &str, context: &Context<'_>, waits: BusyPolling) -> Result<Peers, BenchError> {
        Peers::with(Security::None, provider, context, waits)
    }

    fn with(
        security: Security,
        provider: &str,
        context: &Context<'_>,
        waits: BusyPolling,
    ) -> Result<Peers, BenchError> {
        let server = EchoServer::start_with(echo::address(provider, context.scratch), security)?;
        let here = OnThread::on_core(Some(MEASURING))?;
        let client = here.run(server.client())?;
        Ok(Peers {
            _waits: waits,
            server,
            here,
            client,
        })
    }

    fn pair(&self) -> &QueuePair {
        self.client.queue_pair()
    }

    fn stop(self) -> Result<(), BenchError> {
        let Peers {
            server, here, client, ..
        } = self;
        here.run(async { client.queue_pair().close() });
        drop(client);
        server.stop()
    }

    /// `ns` a call with 64 bytes each way.
    fn calls(&self, ops: usize) -> Result<f64, BenchError> {
        self.here.run(async {
            let (request, mut reply) = ([7u8; 64], Vec::new());
            let mut timed = Timed::new(ops);
            for _ in timed.by_ref() {
                self.client.call_into(&request, &mut reply, TIMEOUT).await?;
            }
            Ok(timed.ns_per_op())
        })
    }

    /// `ns` a one-sided read of `len` bytes, from one place after the other.
    fn reads(&self, len: usize, ops: usize) -> Result<f64, BenchError> {
        self.here.run(async {
            let mut into = vec![0u8; len];
            let mut timed = Timed::new(ops);
            for op in timed.by_ref() {
                let from = at(self.server.memory, op * 4096);
                self.pair().execute(&mut [Verb::Read { from, into: &mut into }]).await?;
            }
            Ok(timed.ns_per_op())
        })
    }

    /// `ns` a compare-and-swap that succeeds.
    fn swaps(&self, ops: usize) -> Result<f64, BenchError> {
        self.here.run(async {
            let at = at(self.server.memory, 0);
            let mut value = 0;
            self.pair()
                .execute(&mut [Verb::FetchAdd {
                    at,
                    add: 0,
                    found: &mut value,
                }])
                .await?;
            let mut timed = Timed::new(ops);
            for _ in timed.by_ref() {
                let (expect, new) = (value, value.wrapping_add(1));
                let mut found = 0;
                let swap = Verb::CompareSwap {
                    at,
                    expect,
                    new,
                    found: &mut found,
                };
                self.pair().execute(&mut [swap]).await?;
                if found != expect {
                    return Err("nobody else swaps this word".into());
                }
                value = new;
            }
            Ok(timed.ns_per_op())
        })
    }

    /// GB/s of one-sided operations of 1 MiB, one at a time.
    fn stream(&self, effort: Effort, writing: bool) -> Result<f64, BenchError> {
        self.here.run(async {
            let mut bytes = vec![1u8; MIB];
            let messages = (effort.file_len as usize / MIB).max(1);
            let start = Instant::now();
            for message in 0..messages {
                let place = at(self.server.memory, message * MIB);
                let verb = if writing {
                    Verb::Write {
                        to: place,
                        bytes: &bytes,
                    }
                } else {
                    Verb::Read {
                        from: place,
                        into: &mut bytes,
                    }
                };
                self.pair().execute(&mut [verb]).await?;
            }
            Ok(gbps(start.elapsed(), (messages * MIB) as u64))
        })
    }

    /// Calls a second of several clients that keep all their slots filled.
    fn batched_calls(&self, ops: usize) -> Result<f64, BenchError> {
        self.here.run(async {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                clients.push(self.server.client().await?);
            }
            let each = ops.div_ceil(CLIENTS * SLOTS).max(1);
            let start = Instant::now();
            let calling: Vec<_> = clients
                .iter()
                .flat_map(|client| (0..SLOTS).map(move |_| client.clone()))
                .map(|client| {
                    tokio::task::spawn_local(async move {
                        let (mut timed, mut reply) = (Timed::new(each), Vec::new());
                        for _ in timed.by_ref() {
                            client.call_into(&[7u8; 64], &mut reply, TIMEOUT).await?;
                        }
                        Ok::<_, polvo_rpc::RpcError>(timed.done())
                    })
                })
                .collect();
            let mut done = 0;
            for caller in calling {
                done += caller.await??;
            }
            let took = start.elapsed();
            clients.iter().for_each(|client| client.queue_pair().close());
            Ok(rate(took, done))
        })
    }
}

fn at(key: RemoteKey, offset: usize) -> Remote {
    Remote {
        key,
        offset: offset as u64 % echo::MEMORY,
    }
}

fn shm(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (n, ops) = (context.effort.rounds, context.effort.ops);
    let peers = Peers::new("shm", context, BusyPolling::by_clients())?;
    let asleep = repeated(n, || peers.calls(ops))?;
    let [word, page, swap] = in_turn(
        n,
        [
            &mut || peers.reads(8, ops * 10),
            &mut || peers.reads(4096, ops),
            &mut || peers.swaps(ops * 10),
        ],
    )?;
    peers.stop()?;
    let peers = Peers::new("shm", context, BusyPolling::by_servers())?;
    let [ping_pong, awake] = in_turn(n, [&mut || ping_pong::shared_memory(64, ops), &mut || peers.calls(ops)])?;
    let many = repeated(n, || peers.batched_calls(ops * 10))?;
    peers.stop()?;
    found.bounded("shm one-sided read 8 B", Unit::Ns, &word, AtMost(100.0));
    found.bounded("shm compare-and-swap", Unit::Ns, &swap, AtMost(100.0));
    found.figure("shm one-sided read 4 KiB", Unit::Ns, &page);
    let base = "shared-memory ping-pong 64 B";
    found.figure(base, Unit::Ns, &ping_pong);
    found.against("shm RPC 64 B, awake", Unit::Ns, &awake, base, Some(AtMost(2.5)));
    found.figure("shm RPC 64 B, asleep", Unit::Ns, &asleep);
    let name = "shm RPC 64 B, 8 clients with all slots filled";
    found.bounded(name, Unit::PerS, &many, AtLeast(1e6));
    Ok(())
}

fn tcp(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (n, ops) = (context.effort.rounds, context.effort.ops);
    for (waits, server, state) in [
        (Waits::BothSpin, BusyPolling::by_servers as fn() -> BusyPolling, "awake"),
        (Waits::ClientSpins, BusyPolling::by_clients, "asleep"),
    ] {
        let peers = Peers::new("tcp", context, server())?;
        let [small, call, large, read] = in_turn(
            n,
            [
                &mut || socket::round_trip(64, 64, waits, ops),
                &mut || peers.calls(ops),
                &mut || socket::round_trip(64, 4096, waits, ops),
                &mut || peers.reads(4096, ops),
            ],
        )?;
        peers.stop()?;
        let mut pair = |what: &str, bytes: &str, base: &Samples, value: &Samples| {
            let baseline = format!("socket ping-pong {bytes}, {waits}");
            found.figure(&baseline, Unit::Ns, base);
            let name = format!("tcp {what}, {state}");
            found.against(&name, Unit::Ns, value, &baseline, Some(AtMost(1.25)));
        };
        pair("RPC 64 B", "64 B", &small, &call);
        pair("one-sided read 4 KiB", "64 B / 4 KiB", &large, &read);
    }
    let peers = Peers::new("tcp", context, BusyPolling::by_clients())?;
    for (what, writing) in [("reads", false), ("writes", true)] {
        let [base, value] = in_turn(
            n,
            [
                &mut || socket::stream(context.effort.file_len, echo::MEMORY, !writing),
                &mut || peers.stream(context.effort, writing),
            ],
        )?;
        let (name, baseline) = (format!("tcp 1 MiB {what}"), format!("socket stream, 1 MiB {what}"));
        found.figure(&baseline, Unit::GbPerS, &base);
        found.against(&name, Unit::GbPerS, &value, &baseline, Some(AtLeast(0.95)));
        match libfabric::stream(n, context.effort.file_len) {
            Ok(other) => {
                let baseline = format!("libfabric tcp, 1 MiB {what}");
                found.figure(&baseline, Unit::GbPerS, &other);
                found.against(&name, Unit::GbPerS, &value, &baseline, Some(AtLeast(1.0)));
            }
            Err(why) => found.note(format!("Without libfabric's tcp provider beside 1 MiB {what}: {why}")),
        }
    }
    let word = repeated(n, || peers.reads(8, ops))?;
    found.figure("tcp one-sided read 8 B, asleep", Unit::Ns, &word);
    security(&peers, context, found)?;
    peers.stop()
}

type Measure<'a> = &'a dyn Fn(&Peers) -> Result<f64, BenchError>;

/// The same with and without records, in turn.
fn security(plain: &Peers, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (n, ops) = (context.effort.rounds, context.effort.ops);
    let sealed = Peers::with(Security::Auth, "tcp", context, BusyPolling::by_clients())?;
    let measures: [(&str, Unit, Measure<'_>); 4] = [
        ("RPC 64 B, asleep", Unit::Ns, &|peers| peers.calls(ops)),
        ("one-sided read 4 KiB, asleep", Unit::Ns, &|peers| {
            peers.reads(4096, ops)
        }),
        ("1 MiB reads", Unit::GbPerS, &|peers| {
            peers.stream(context.effort, false)
        }),
        ("1 MiB writes", Unit::GbPerS, &|peers| {
            peers.stream(context.effort, true)
        }),
    ];
    for (what, unit, measure) in measures {
        let [without, with] = in_turn(n, [&mut || measure(plain), &mut || measure(&sealed)])?;
        let base = format!("tcp {what}, security none");
        found.figure(&base, unit, &without);
        found.against(&format!("tcp {what}, security auth"), unit, &with, &base, None);
    }
    sealed.stop()
}
