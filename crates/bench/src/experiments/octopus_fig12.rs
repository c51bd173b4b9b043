//! Octopus, Fig. 9 and Fig. 12: throughput of data operations over their size, client-active and server-active.

use crate::BenchError;
use crate::crowd::{Access, Bytes, Crowd, Taken, ops_of, shown, touch};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Findings, Table, Unit, figure};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_client::{Thresholds, Transfers};
use polvo_proto::EAGER_MAX;
use polvo_testbed::cluster::{BenchNode, pool_len};

/// Fig. 9.
pub const THROUGHPUT: Experiment = Experiment {
    name: "octopus-fig9",
    title: "Data operations a second, many clients (Octopus, Fig. 9)",
    about: "Reads and writes of eight clients at one node, over their size. The clients take turns on one thread, each with a \
            connection and a file of its own; each has one operation under way. Client-active: reads are one-sided, writes \
            above the eager limit are a one-sided write and a commit. Every write is durable.",
    run: |context, found| run(context, found, "octopus-fig9", &[8], false),
};

/// Fig. 12.
pub const COMPARED: Experiment = Experiment {
    name: "octopus-fig12",
    title: "Client-active against server-active data operations (Octopus, Fig. 12)",
    about: "The same reads and writes, moved by the client (one-sided operations; the node's reactor takes part in none over \
            shm, and over tcp only as the network card that it stands for) or by the node (asked by an RPC; small ones in the \
            message, larger ones by one-sided operations of the node). By one client and by eight, which take turns on one \
            thread. Writes up to 4 KiB travel in the request either way. Beside the throughput: the time of a processor that the \
            node's thread used for an operation, its waiting for transfers of its own included.\n\n\
            Copies of the data: client-active 1; server-active 6 where it travels in the message, else 2 (through a \
            pre-registered buffer).",
    run: |context, found| run(context, found, "octopus-fig12", &[1, 8], true),
};

const SIZES: [usize; 8] = [64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Up to here client-active transfers have to be ahead with eight clients (Octopus, 4.3.2).
const AHEAD_TO: usize = 16 << 10;
/// A file of each client.
const FILE: u64 = 8 << 20;
/// None, of the time of the reactor's processor for an operation: a tick that falls into the measurement shows.
const NONE_NS: f64 = 10.0;

/// A line for each size.
fn table(title: String, compared: bool) -> Table {
    match compared {
        false => Table::new(title, &["bytes", "1/s"]),
        true => Table::new(
            title,
            &[
                "bytes",
                "server-active 1/s",
                "client-active 1/s",
                "ratio",
                "",
                "node's ns: server-active",
                "client-active",
                "",
            ],
        ),
    }
}

fn run(
    context: &Context<'_>,
    found: &mut Findings<'_>,
    name: &str,
    crowds: &[usize],
    compared: bool,
) -> Result<(), BenchError> {
    let len = pool_len(8 * FILE);
    let node = BenchNode::start(context.scratch, len)?;
    touch(std::slice::from_ref(&node), len)?;
    for provider in ["shm", "tcp"] {
        for clients in crowds {
            of_crowd(context, found, name, &node, provider, *clients, compared)?;
        }
    }
    node.stop()
}

/// Operations a second, and the node's ns an operation.
type Measured = (Vec<f64>, Vec<f64>);

/// Has the crowds that there are work in turn.
fn in_turn(
    crowds: [Option<&Crowd>; 2],
    rounds: usize,
    run: impl Fn(&Crowd) -> Result<Taken, BenchError>,
) -> Result<[Measured; 2], BenchError> {
    let mut measured: [Measured; 2] = Default::default();
    for _ in 0..rounds {
        for (crowd, (rates, servers)) in crowds.iter().zip(&mut measured) {
            if let Some(crowd) = crowd {
                let taken = run(crowd)?;
                rates.push(taken.rate());
                servers.push(taken.server_ns_per_op());
            }
        }
    }
    Ok(measured)
}

/// One access of one size.
struct Point<'a> {
    provider: &'a str,
    clients: usize,
    access: Access,
    size: usize,
}

impl Point<'_> {
    fn name(&self) -> String {
        let (provider, access, size) = (self.provider, self.access, shown(self.size));
        format!("{provider} {access} {size}, {} clients", self.clients)
    }

    /// The names of the two that are compared.
    fn names(&self) -> (String, String) {
        let name = self.name();
        (format!("{name}, client-active"), format!("{name}, server-active"))
    }

    /// Cells: operations a second, server-active and client-active.
    fn rates(&self, found: &mut Findings<'_>, active: &Samples, directed: &Samples) -> [String; 4] {
        // small writes travel in the request either way
        let differs = self.access == Access::Read || self.size > EAGER_MAX;
        let target = (differs && self.clients > 1 && self.size <= AHEAD_TO).then_some(AtLeast(1.0));
        let (client, server) = self.names();
        found.figure(&server, Unit::PerS, directed);
        let row = found.against(&client, Unit::PerS, active, &server, target);
        [
            figure(directed.median()),
            figure(active.median()),
            row.ratio_shown(),
            row.met_shown(),
        ]
    }

    /// Cells: the node's ns an operation, server-active and client-active.
    fn times(&self, found: &mut Findings<'_>, active: &Samples, directed: &Samples) -> [String; 3] {
        let (client, server) = self.names();
        found.figure(&format!("{server}: node's CPU"), Unit::Ns, directed);
        let cpu = format!("{client}: node's CPU");
        let row = match (self.provider, self.access) {
            ("shm", Access::Read) => found.bounded(&cpu, Unit::Ns, active, AtMost(NONE_NS)),
            _ => found.figure(&cpu, Unit::Ns, active),
        };
        [figure(directed.median()), figure(active.median()), row.met_shown()]
    }
}

fn of_crowd(
    context: &Context<'_>,
    found: &mut Findings<'_>,
    name: &str,
    node: &BenchNode,
    provider: &str,
    clients: usize,
    compared: bool,
) -> Result<(), BenchError> {
    let effort = context.effort;
    let active = Crowd::new(node, provider, clients, Transfers::Client, FILE)?;
    let by_node = Transfers::Server(Thresholds::default());
    let directed = compared
        .then(|| Crowd::new(node, provider, clients, by_node, FILE))
        .transpose()?;
    let mut series = Vec::new();
    for access in Access::BOTH {
        let mut table = table(format!("{provider} {access}s, {clients} clients"), compared);
        let (mut of_active, mut of_directed) = (Vec::new(), Vec::new());
        for size in SIZES {
            let ops = ops_of(size, effort.ops / 4, effort.file_len / 4);
            let crowds = [Some(&active), directed.as_ref()];
            let [(rates_active, server_active), (rates_directed, server_directed)] =
                in_turn(crowds, effort.rounds, |crowd| crowd.run(access, Bytes::Own, size, ops))?;
            let point = Point {
                provider,
                clients,
                access,
                size,
            };
            let rate = Samples::new(rates_active);
            of_active.push((size as f64, rate.median()));
            if rates_directed.is_empty() {
                found.figure(&point.name(), Unit::PerS, &rate);
                table.line(vec![shown(size), figure(rate.median())]);
                continue;
            }
            let base = Samples::new(rates_directed);
            of_directed.push((size as f64, base.median()));
            let mut cells = vec![shown(size)];
            cells.extend(point.rates(found, &rate, &base));
            cells.extend(point.times(found, &Samples::new(server_active), &Samples::new(server_directed)));
            table.line(cells);
        }
        found.table(table);
        for (way, points) in [("client-active", of_active), ("server-active", of_directed)] {
            if !points.is_empty() {
                series.push(Series {
                    name: format!("{access} {way}"),
                    points,
                });
            }
        }
    }
    found.plot(Plot::Lines {
        name: format!("{name}-{provider}-{clients}"),
        title: format!("Operations a second of {clients} clients over {provider}"),
        x: Axis::log("bytes"),
        y: Axis::log("operations a second"),
        series,
    });
    active.stop()?;
    directed.map_or(Ok(()), Crowd::stop)
}
