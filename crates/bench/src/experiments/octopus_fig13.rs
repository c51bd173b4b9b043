//! Octopus, Fig. 13: raw RPC performance, over the number of clients and the size of messages.

use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::echo::{self, EchoServer, TIMEOUT};
use crate::report::Target::{self, AtLeast};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Findings, Unit};
use crate::rpc_scheme::{Caller, MessageBased, Polled, Scheme, SelfIdentified};
use crate::samples::{Samples, Timed, rate, repeated};
use crate::suite::{Context, Experiment};
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "octopus-fig13",
    title: "Raw RPC performance (Octopus, Fig. 13)",
    about: "Calls that are answered with the request, from many clients to one reactor, in the three ways that Octopus compares: \
            self-identified (written into the server's memory and announced by an immediate; what PolvoFS uses), \
            message-based (send and receive) and polled (written into the server's memory, all slots of which the server goes \
            over again and again). The clients, each with a connection of its own, take turns on one thread, so that the load \
            is the same however many there are: eight calls are under way at any time (for throughput) or one (for latency). \
            The server is awake.",
    run,
};

/// Calls under way at a time, for throughput.
const UNDER_WAY: usize = 8;
/// Size of messages where the number of clients varies, bytes.
const SIZE: usize = 64;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let _awake = BusyPolling::by_servers();
    ["shm", "tcp"]
        .into_iter()
        .try_for_each(|provider| over(provider, context, found))
}

/// A server and its clients.
struct Crowd<S: Scheme> {
    server: EchoServer<S>,
    here: OnThread,
    clients: Vec<S::Caller>,
}

impl<S: Scheme> Crowd<S> {
    fn new(provider: &str, clients: usize, context: &Context<'_>) -> Result<Crowd<S>, BenchError> {
        let server = EchoServer::start(echo::address(provider, context.scratch))?;
        let here = OnThread::on_core(Some(MEASURING))?;
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
                        let (request, mut reply) = (vec![7u8; size], Vec::new());
                        let mut timed = Timed::new(each);
                        for call in timed.by_ref() {
                            let client = &clients[(caller + call * under_way) % clients.len()];
                            client.call_into(&request, &mut reply, TIMEOUT).await?;
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

/// What one way of RPC gives: points of plots.
struct Curves {
    name: &'static str,
    over_clients: Vec<(f64, f64)>,
    throughput: Vec<(f64, f64)>,
    latency: Vec<(f64, f64)>,
}

fn curves<S: Scheme>(
    provider: &str,
    flat: Option<Target>,
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<Curves, BenchError> {
    let mut curves = Curves {
        name: S::NAME,
        over_clients: Vec::new(),
        throughput: Vec::new(),
        latency: Vec::new(),
    };
    let name = |clients: usize| format!("{provider} {} {SIZE} B, {clients} clients", S::NAME);
    for (index, clients) in context.clients.iter().copied().enumerate() {
        let crowd = Crowd::<S>::new(provider, clients, context)?;
        let calls = crowd.throughput(SIZE, context)?;
        crowd.stop()?;
        match index {
            0 => found.figure(&name(clients), Unit::PerS, &calls),
            _ => found.against(&name(clients), Unit::PerS, &calls, &name(context.clients[0]), flat),
        };
        curves.over_clients.push((clients as f64, calls.median()));
    }
    let crowd = Crowd::<S>::new(provider, most(context), context)?;
    for size in context.sizes.iter().copied() {
        let (calls, took) = (crowd.throughput(size, context)?, crowd.latency(size, context)?);
        curves.throughput.push((size as f64, calls.median()));
        curves.latency.push((size as f64, took.median()));
    }
    crowd.stop()?;
    Ok(curves)
}

fn most(context: &Context<'_>) -> usize {
    context.clients.iter().copied().max().unwrap_or(1)
}

fn over(provider: &'static str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let all = [
        curves::<SelfIdentified>(provider, Some(AtLeast(0.9)), context, found)?,
        curves::<MessageBased>(provider, None, context, found)?,
        curves::<Polled>(provider, None, context, found)?,
    ];
    let mut plot = |which: &str, title: String, x: &str, y: &str, points: fn(&Curves) -> &Vec<(f64, f64)>| {
        found.plot(Plot::Lines {
            name: format!("octopus-fig13-{provider}-{which}"),
            title: format!("{title} over {provider}"),
            x: Axis::log(x),
            y: Axis::linear(y),
            series: all
                .iter()
                .map(|curves| Series {
                    name: curves.name.into(),
                    points: points(curves).clone(),
                })
                .collect(),
        });
    };
    let (calls, clients) = ("calls a second", most(context));
    plot("clients", format!("Throughput, {SIZE} B"), "clients", calls, |c| {
        &c.over_clients
    });
    plot(
        "throughput",
        format!("Throughput of {clients} clients"),
        "bytes",
        calls,
        |c| &c.throughput,
    );
    plot(
        "latency",
        format!("Latency, {clients} clients"),
        "bytes",
        "ns a call",
        |c| &c.latency,
    );
    Ok(())
}
