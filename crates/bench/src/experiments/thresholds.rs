//! The sizes at which a client-active transfer takes another way, beside what the other way takes.

use super::log_commits::{Committer, ns_per_op};
use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::crowd::{Access, Bytes, Crowd, ops_of, shown, touch};
use crate::report::{Findings, Table, Unit, figure};
use crate::requester::Requester;
use crate::samples::{Samples, in_turn};
use crate::suite::{Context, Experiment};
use polvo_client::Transfers;
use polvo_format::PAGE;
use polvo_proto::EAGER_MAX;
use polvo_testbed::cluster::{BenchNode, pool_len};
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "thresholds",
    title: "Where client-active transfers change their way",
    about: "Writes up to `EAGER_MAX` (4 KiB, the size of a message) travel in the request that commits them; larger ones are \
            written one-sided, with the commit behind them. Both ways are measured up to that size, beyond which there is but one: the limit \
            is right as long as the eager way is ahead at it. Reads and writes above `BATCH_BYTES` (1 MiB) are several batches \
            of one-sided operations, some of which are under way at a time: the limit is right as long as bandwidth does not \
            fall beyond it. The node is awake; one client.\n\n\
            What the sizes of server-directed transfers are worth, `carns-fig5` shows.",
    run,
};

const MIB: usize = 1 << 20;
const FILE: u64 = 64 << 20;
const SMALL: [usize; 5] = [64, 512, 1 << 10, 2 << 10, EAGER_MAX];
/// The one that is a single batch, which the others are set beside, comes first.
const LARGE: [usize; 6] = [MIB, MIB / 4, MIB / 2, 2 * MIB, 4 * MIB, 8 * MIB];
/// Pages that are overwritten, one after the other.
const PAGES: usize = 1024;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let _awake = BusyPolling::by_servers();
    let len = pool_len(2 * FILE);
    let node = BenchNode::start(context.scratch, len)?;
    touch(std::slice::from_ref(&node), len)?;
    for provider in ["shm", "tcp"] {
        eager(&node, provider, context, found)?;
        batches(&node, provider, context, found)?;
    }
    node.stop()
}

fn eager(node: &BenchNode, provider: &str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops / 4);
    let here = OnThread::on_core(Some(MEASURING))?;
    let committer = |way: &str| {
        let requester = Requester::remote(node, provider);
        here.run(Committer::new(requester, &format!("{provider}-{way}")))
    };
    let (carried, placed) = (committer("eager")?, committer("placed")?);
    let columns = ["bytes", "one-sided write and commit, ns", "eager, ns", "ratio"];
    let mut table = Table::new(format!("{provider} writes up to EAGER_MAX"), &columns);
    for size in SMALL {
        let at = |n: usize| (n % PAGES * PAGE) as u64;
        let [theirs, ours] = in_turn(
            rounds,
            [
                &mut || {
                    here.run(async {
                        placed.renew().await;
                        ns_per_op(ops, async |n| placed.placed(at(n), size).await).await
                    })
                },
                &mut || {
                    here.run(async {
                        carried.renew().await;
                        ns_per_op(ops, async |n| carried.eager(at(n), size, false).await).await
                    })
                },
            ],
        )?;
        let row = |way: &str| format!("{provider} write {}, {way}", shown(size));
        let baseline = row("one-sided write and commit");
        found.figure(&baseline, Unit::Ns, &theirs);
        let ratio = found
            .against(&row("eager"), Unit::Ns, &ours, &baseline, None)
            .ratio_shown();
        let cells = [shown(size), figure(theirs.median()), figure(ours.median()), ratio];
        table.line(cells.to_vec());
    }
    found.table(table);
    here.run(async { [&carried, &placed].map(Committer::close) });
    Ok(())
}

fn batches(
    node: &BenchNode,
    provider: &str,
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let crowd = Crowd::new(node, provider, 1, Transfers::Client, FILE)?;
    for access in Access::BOTH {
        let columns = ["bytes", "GB/s", "beside one batch"];
        let mut table = Table::new(format!("{provider} {access}s around BATCH_BYTES"), &columns);
        let mut figures = LARGE.map(|_| Vec::new());
        for _ in 0..context.effort.rounds {
            for (size, figures) in LARGE.into_iter().zip(&mut figures) {
                let ops = ops_of(size, context.effort.ops, context.effort.file_len / 2);
                figures.push(crowd.run(access, Bytes::Own, size, ops)?.gbps(size));
            }
        }
        let row = |size: usize| format!("{provider} {access} {}", shown(size));
        let mut lines = Vec::new();
        for (size, figures) in LARGE.into_iter().zip(figures) {
            let samples = Samples::new(figures);
            let ratio = match size {
                MIB => {
                    found.figure(&row(size), Unit::GbPerS, &samples);
                    "1.00x".to_owned()
                }
                _ => found
                    .against(&row(size), Unit::GbPerS, &samples, &row(MIB), None)
                    .ratio_shown(),
            };
            lines.push((size, vec![shown(size), figure(samples.median()), ratio]));
        }
        lines.sort_by_key(|(size, _)| *size);
        lines.into_iter().for_each(|(_, cells)| table.line(cells));
        found.table(table);
    }
    crowd.stop()
}
