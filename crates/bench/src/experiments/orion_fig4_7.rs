//! Orion, Fig. 4.7 (a): latency of a log commit, beside an RPC and a round trip of the network.

use super::log_commits::{Committer, ns_per_op};
use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::echo::{self, EchoServer, TIMEOUT};
use crate::report::{Findings, Unit};
use crate::requester::Requester;
use crate::rpc_scheme::{Caller, MessageBased};
use crate::samples::{Timed, in_turn};
use crate::suite::{Context, Experiment};
use polvo_format::PAGE;
use polvo_testbed::cluster::BenchNode;
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "orion-fig4.7",
    title: "Latency of a log commit (Orion, Fig. 4.7a)",
    about: "From outside one node, which is awake. Round trip: a send each way, 64 bytes. RPC: the attributes of an inode, and \
            the making of a file. Log commit: 64 bytes that travel in the commit, appended or overwriting; and a 4 KiB page, \
            with the one-sided write that put it there.\n\n\
            Orion's commit is over when the network card has the message, before the server has looked at it; here it is over \
            when the entry is durable, in its order, and the client knows the log that it has become part of. So less than half \
            a round trip, as Orion has it, cannot be the target.",
    run,
};

/// Pages that are overwritten, one after the other.
const FILE_PAGES: usize = 1024;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let _awake = BusyPolling::by_servers();
    ["shm", "tcp"]
        .into_iter()
        .try_for_each(|provider| over(provider, context, found))
}

/// `ns` a message of 64 bytes that comes back.
async fn round_trip(client: &impl Caller, ops: usize) -> Result<f64, BenchError> {
    let mut reply = Vec::new();
    let mut timed = Timed::new(ops);
    for _ in timed.by_ref() {
        client.call_into(&[7; 64], &mut reply, TIMEOUT).await?;
    }
    Ok(timed.ns_per_op())
}

fn over(provider: &str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let server = EchoServer::<MessageBased>::start(echo::address(provider, context.scratch))?;
    let node = BenchNode::start(context.scratch, 1 << 30)?;
    let here = OnThread::on_core(Some(MEASURING))?;
    let peer = here.run(server.client())?;
    let [end, middle, pages] = ["appended", "overwritten", "pages"]
        .map(|name| here.run(Committer::new(Requester::remote(&node, provider), name)));
    let (end, middle, pages) = (end?, middle?, pages?);
    let mut made = 0;
    let [raw, attributes, make, append, overwrite, page] = in_turn(
        rounds,
        [
            &mut || here.run(round_trip(&peer, ops)),
            &mut || here.run(ns_per_op(ops, async |_| end.attributes().await)),
            &mut || {
                made += 1;
                here.run(ns_per_op(ops / 4, async |n| {
                    end.make(&format!("file-{made}-{n}")).await
                }))
            },
            &mut || here.run(ns_per_op(ops, async |_| end.small(0, true).await)),
            &mut || {
                here.run(ns_per_op(ops, async |n| {
                    middle.small((n % 64 * 64) as u64, false).await
                }))
            },
            &mut || {
                here.run(async {
                    for committer in [&end, &middle, &pages] {
                        committer.renew().await;
                    }
                    ns_per_op(ops, async |n| pages.page((n % FILE_PAGES * PAGE) as u64).await).await
                })
            },
        ],
    )?;
    let row = |what: &str| format!("{provider} {what}");
    let (base, rpc) = (row("round trip of messages, 64 B"), row("RPC that makes a file"));
    found.figure(&base, Unit::Ns, &raw);
    found.against(&rpc, Unit::Ns, &make, &base, None);
    found.against(&row("RPC for attributes"), Unit::Ns, &attributes, &base, None);
    for (what, samples) in [
        ("log commit, 64 B appended", &append),
        ("log commit, 64 B overwritten", &overwrite),
        ("log commit, 4 KiB page", &page),
    ] {
        found.against(&row(what), Unit::Ns, samples, &base, None);
        found.against(&row(what), Unit::Ns, samples, &rpc, None);
    }
    here.run(async {
        peer.queue_pair().close();
        for committer in [&end, &middle, &pages] {
            committer.close();
        }
    });
    drop(peer);
    server.stop()?;
    node.stop()
}
