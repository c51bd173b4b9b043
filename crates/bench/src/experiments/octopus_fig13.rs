//! Octopus, Fig. 13: raw RPC performance, over the number of clients and the size of messages.

use crate::BenchError;
use crate::echo::{self, EchoServer, OnThread, TIMEOUT};
use crate::report::Target::AtLeast;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Findings, Unit};
use crate::samples::{Samples, Timed, rate, repeated};
use crate::suite::{Context, Experiment};
use polvo_fabric::{serve_spin_limit, set_serve_spin_limit};
use polvo_rpc::RpcClient;
use std::time::{Duration, Instant};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "octopus-fig13",
    title: "Raw RPC performance (Octopus, Fig. 13)",
    about: "Calls that are answered with the request, from many clients to one reactor. The clients, each with a connection of \
            its own, take turns on one thread so that the load is the same however many there are: eight calls are under way \
            at any time (for throughput) or one (for latency). The server is awake.",
    run,
};

/// Calls under way at a time, for throughput.
const UNDER_WAY: usize = 8;
const AWAKE: Duration = Duration::from_millis(5);
/// Size of messages where the number of clients varies, bytes.
const SIZE: usize = 64;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let before = serve_spin_limit();
    set_serve_spin_limit(AWAKE);
    let measured = ["shm", "tcp"]
        .into_iter()
        .try_for_each(|provider| over(provider, context, found));
    set_serve_spin_limit(before);
    measured
}

/// A server and its clients.
struct Crowd {
    server: EchoServer,
    here: OnThread,
    clients: Vec<RpcClient>,
}

impl Crowd {
    fn new(provider: &str, clients: usize, context: &Context<'_>) -> Result<Crowd, BenchError> {
        let server = EchoServer::start(echo::address(provider, context.scratch))?;
        let here = OnThread::new()?;
        let clients = here.run(async {
            let mut all = Vec::with_capacity(clients);
            for _ in 0..clients {
                all.push(server.client().await?);
            }
            Ok::<_, BenchError>(all)
        })?;
        Ok(Crowd { server, here, clients })
    }

    /// Calls a second with so many under way.
    fn calls(&self, size: usize, under_way: usize, ops: usize) -> Result<f64, BenchError> {
        self.here.run(async {
            let each = ops.div_ceil(under_way);
            let start = Instant::now();
            let calling: Vec<_> = (0..under_way)
                .map(|caller| {
                    let clients = self.clients.clone();
                    tokio::task::spawn_local(async move {
                        let request = vec![7u8; size];
                        let mut timed = Timed::new(each);
                        for call in timed.by_ref() {
                            let client = &clients[(caller + call * under_way) % clients.len()];
                            client.call(&request, TIMEOUT).await?;
                        }
                        Ok::<_, polvo_rpc::RpcError>(timed.done())
                    })
                })
                .collect();
            let mut done = 0;
            for caller in calling {
                done += caller.await??;
            }
            Ok(rate(start.elapsed(), done))
        })
    }

    fn throughput(&self, size: usize, context: &Context<'_>) -> Result<Samples, BenchError> {
        let effort = context.effort;
        repeated(effort.rounds, || self.calls(size, UNDER_WAY, effort.ops))
    }

    fn latency(&self, size: usize, context: &Context<'_>) -> Result<Samples, BenchError> {
        let effort = context.effort;
        repeated(effort.rounds, || Ok(1e9 / self.calls(size, 1, effort.ops / 4)?))
    }

    fn stop(self) -> Result<(), BenchError> {
        let Crowd { server, here, clients } = self;
        here.run(async { clients.iter().for_each(|client| client.queue_pair().close()) });
        drop(clients);
        server.stop()
    }
}

fn over(provider: &'static str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let mut over_clients = Vec::new();
    let mut first: Option<String> = None;
    for clients in context.clients {
        let crowd = Crowd::new(provider, *clients, context)?;
        let calls = crowd.throughput(SIZE, context)?;
        crowd.stop()?;
        let name = format!("{provider} self-identified {SIZE} B, {clients} clients");
        match &first {
            None => {
                found.figure(&name, Unit::PerS, &calls);
                first = Some(name);
            }
            Some(first) => found.against(&name, Unit::PerS, &calls, first, Some(AtLeast(0.9))),
        }
        over_clients.push((*clients as f64, calls.median()));
    }
    let most = context.clients.iter().copied().max().unwrap_or(1);
    let (mut throughput, mut latency) = (Vec::new(), Vec::new());
    let crowd = Crowd::new(provider, most, context)?;
    for size in context.sizes {
        throughput.push((*size as f64, crowd.throughput(*size, context)?.median()));
        latency.push((*size as f64, crowd.latency(*size, context)?.median()));
    }
    crowd.stop()?;
    let mut plot = |which: &str, title: &str, x: &str, y: &str, points: Vec<(f64, f64)>| {
        found.plot(Plot::Lines {
            name: format!("octopus-fig13-{provider}-{which}"),
            title: format!("{title} over {provider}"),
            x: Axis::log(x),
            y: Axis::linear(y),
            series: vec![Series {
                name: "self-identified".into(),
                points,
            }],
        });
    };
    plot("clients", "Throughput, 64 B", "clients", "calls a second", over_clients);
    let of_size = format!("Throughput of {most} clients");
    plot("throughput", &of_size, "bytes", "calls a second", throughput);
    plot(
        "latency",
        &format!("Latency, {most} clients"),
        "bytes",
        "ns a call",
        latency,
    );
    Ok(())
}
