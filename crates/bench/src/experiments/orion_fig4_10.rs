//! Orion, Fig. 4.10: throughput of one-sided reads, log commits and RPCs over the number of clients.

use super::log_commits::Committer;
use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::report::Target::AtLeast;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Findings, Unit};
use crate::requester::Requester;
use crate::samples::{Samples, rate, repeated};
use crate::suite::{Context, Experiment};
use polvo_proto::FsError;
use polvo_testbed::cluster::BenchNode;
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::rc::Rc;
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "orion-fig4.10",
    title: "Metadata over the number of clients (Orion, Fig. 4.10)",
    about: "Clients outside one node, each with a connection and one operation under way, all on one thread, so that the machine \
            does the same work for each number of them: reads of the 8-byte tail of an inode's log by a one-sided read, log \
            commits of 64 bytes, and RPCs for attributes. Commits go to one inode (no client takes a lock for that: the server's \
            order decides, and each learns in its answer what came in between) or each client's to one of its own. The server is \
            awake.",
    run,
};

const CLIENTS: [usize; 4] = [1, 2, 4, 8];
/// More clients must not mean less throughput of what goes without the server, or to its log (Orion, Fig. 4.10).
const NOT_LESS: f64 = 0.9;

#[derive(Clone, Copy)]
enum Operation {
    TailRead,
    CommitToOne,
    CommitToOwn,
    Rpc,
}

const OPERATIONS: [(Operation, &str); 4] = [
    (Operation::TailRead, "one-sided reads of a tail"),
    (Operation::CommitToOne, "log commits to one inode"),
    (Operation::CommitToOwn, "log commits to inodes of their own"),
    (Operation::Rpc, "RPCs for attributes"),
];

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let _awake = BusyPolling::by_servers();
    ["shm", "tcp"]
        .into_iter()
        .try_for_each(|provider| over(provider, context, found))
}

/// A client.
struct Client {
    shared: Committer,
    own: Committer,
    /// Where it writes in the shared file.
    offset: u64,
}

impl Client {
    async fn perform(&self, operation: Operation) -> Result<(), FsError> {
        match operation {
            Operation::TailRead => self.shared.tail().await,
            Operation::CommitToOne => self.shared.small(self.offset, false).await,
            Operation::CommitToOwn => self.own.small(0, false).await,
            Operation::Rpc => self.shared.attributes().await,
        }
    }
}

async fn clients(node: &BenchNode, provider: &str) -> Result<Vec<Rc<Client>>, BenchError> {
    let remote = || Requester::remote(node, provider);
    let mut clients: Vec<Rc<Client>> = Vec::new();
    for n in 0..CLIENTS[CLIENTS.len() - 1] {
        let own = Committer::new(remote(), &format!("own{n}")).await?;
        let shared = match clients.first() {
            None => Committer::new(remote(), "shared").await?,
            Some(first) => Committer::to(remote(), first.shared.inode()),
        };
        let offset = n as u64 * 64;
        clients.push(Rc::new(Client { shared, own, offset }));
    }
    Ok(clients)
}

/// Operations a second of all clients together.
async fn throughput(clients: &[Rc<Client>], operation: Operation, ops: usize) -> Result<f64, BenchError> {
    for client in clients {
        client.shared.renew().await;
        client.own.renew().await;
    }
    let each = ops.div_ceil(clients.len());
    let start = Instant::now();
    let working = clients.iter().cloned().map(|client| {
        tokio::task::spawn_local(async move {
            for _ in 0..each {
                client.perform(operation).await?;
            }
            Ok::<_, FsError>(())
        })
    });
    for client in working.collect::<Vec<_>>() {
        client.await??;
    }
    Ok(rate(start.elapsed(), each * clients.len()))
}

fn over(provider: &str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let effort = context.effort;
    let node = BenchNode::start(context.scratch, 1 << 30)?;
    let here = OnThread::on_core(Some(MEASURING))?;
    let all = here.run(clients(&node, provider))?;
    let mut series = Vec::new();
    for (operation, what) in OPERATIONS {
        let target = (!matches!(operation, Operation::Rpc)).then_some(AtLeast(NOT_LESS));
        let row = |clients: usize| format!("{provider} {what}, {clients} clients");
        let mut points = Vec::new();
        for n in CLIENTS {
            let calls: Samples = repeated(effort.rounds, || here.run(throughput(&all[..n], operation, effort.ops)))?;
            match n {
                1 => found.figure(&row(n), Unit::PerS, &calls),
                _ => found.against(&row(n), Unit::PerS, &calls, &row(1), target),
            };
            points.push((n as f64, calls.median()));
        }
        series.push(Series {
            name: what.into(),
            points,
        });
    }
    found.plot(Plot::Lines {
        name: format!("orion-fig4.10-{provider}"),
        title: format!("Operations on metadata over {provider}"),
        x: Axis::log("clients"),
        y: Axis::log("operations a second"),
        series,
    });
    here.run(async {
        for client in &all {
            client.shared.close();
            client.own.close();
        }
    });
    drop(all);
    node.stop()
}
