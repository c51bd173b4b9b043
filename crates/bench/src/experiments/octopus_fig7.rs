//! Octopus, Fig. 7(b) and Fig. 11: how near one client comes to the raw link, and what one more copy costs.

use crate::BenchError;
use crate::baseline::memory::{DurableMemory, Memory};
use crate::baseline::socket;
use crate::crowd::{Access, Bytes, Crowd, Taken, in_turn, ops_of, shown, touch};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Findings, Unit};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_client::{Thresholds, Transfers};
use polvo_testbed::cluster::{BenchNode, pool_len};

/// Fig. 7.
pub const BANDWIDTH: Experiment = Experiment {
    name: "octopus-fig7",
    title: "Bandwidth of one client against the raw link (Octopus, Fig. 7b)",
    about: "One client reads and writes 1 MiB at a time, client-active. The raw link is for shm a copy between memories (a \
            durable one for writes), for tcp a socket that carries the same bytes one way from and to as much memory. Octopus reaches 96 % of the link \
            for reads and 89 % for writes. One copy by a CPU over shm; the kernel's two over tcp.",
    run: bandwidth,
};

/// Fig. 11.
pub const COPY: Experiment = Experiment {
    name: "octopus-fig11",
    title: "What a copy costs (Octopus, Fig. 11)",
    about: "One client, client-active, as in octopus-fig7 (1 copy), and with one more copy of what it reads or writes, as a buffer \
            between program and file system would make it (2 copies). And server-directed: from and to the caller's registered \
            buffer (1 copy), and through a pooled one (2 copies).",
    run: copy,
};

const MIB: usize = 1 << 20;
const FILE: u64 = 64 << 20;

fn with_node(
    context: &Context<'_>,
    measure: impl FnOnce(&BenchNode) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let len = pool_len(FILE);
    let node = BenchNode::start(context.scratch, len)?;
    touch(std::slice::from_ref(&node), len)?;
    measure(&node)?;
    node.stop()
}

fn bandwidth(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let total = context.effort.file_len;
    let ops = ops_of(MIB, context.effort.ops, total);
    with_node(context, |node| {
        let (memory, durable) = (Memory::new(FILE), DurableMemory::new(context.scratch, FILE, None)?);
        for provider in ["shm", "tcp"] {
            let crowd = Crowd::new(node, provider, 1, Transfers::Client, FILE)?;
            if let Some(entering) = &crowd.entering {
                let what = format!("{provider} 1 MiB writes, one client, each page stored to for the first time");
                found.figure(&what, Unit::GbPerS, &Samples::exact(entering.gbps(MIB)));
            }
            for access in Access::BOTH {
                let (mut link, mut ours) = (Vec::new(), Vec::new());
                for _ in 0..context.effort.rounds {
                    link.push(match (provider, access) {
                        ("tcp", access) => socket::stream(total, FILE, access == Access::Read)?,
                        (_, Access::Read) => memory.copy_from_sequentially(),
                        (_, Access::Write) => durable.copy_to_sequentially(),
                    });
                    ours.push(crowd.run(access, Bytes::Own, MIB, ops)?.gbps(MIB));
                }
                let name = format!("{provider} link, 1 MiB {access}s");
                found.figure(&name, Unit::GbPerS, &Samples::new(link));
                let target = match access {
                    Access::Read => AtLeast(0.96),
                    Access::Write => AtLeast(0.89),
                };
                let what = format!("{provider} 1 MiB {access}s, one client");
                found.against(&what, Unit::GbPerS, &Samples::new(ours), &name, Some(target));
            }
            crowd.stop()?;
        }
        Ok(())
    })
}

fn copy(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    const DIRECTED: Thresholds = Thresholds {
        eager_write: 0,
        eager_read: 0,
        pooled: 0,
    };
    with_node(context, |node| {
        for provider in ["shm", "tcp"] {
            let active = Crowd::new(node, provider, 1, Transfers::Client, FILE)?;
            let directed = Crowd::new(node, provider, 1, Transfers::Server(DIRECTED), FILE)?;
            for access in Access::BOTH {
                for size in [16 << 10, 128 << 10, MIB] {
                    let ops = ops_of(size, context.effort.ops, context.effort.file_len);
                    let [one, two, zero_copy, pooled] = in_turn(
                        context,
                        [
                            &|| active.run(access, Bytes::Own, size, ops),
                            &|| active.run(access, Bytes::OwnAndCopied, size, ops),
                            &|| directed.run(access, Bytes::Registered, size, ops),
                            &|| directed.run(access, Bytes::Own, size, ops),
                        ],
                        |taken: &Taken| taken.gbps(size),
                    )?;
                    let what = format!("{provider} {access} {}", shown(size));
                    let target = (size == MIB).then_some(AtMost(0.97));
                    for (base, with, names) in [
                        (&one, &two, ["client-active", "client-active and a copy"]),
                        (&zero_copy, &pooled, ["zero-copy", "pooled"]),
                    ] {
                        let [plain, copied] = names.map(|way| format!("{what}, {way}"));
                        found.figure(&plain, Unit::GbPerS, base);
                        found.against(&copied, Unit::GbPerS, with, &plain, target);
                    }
                }
            }
            active.stop()?;
            directed.stop()?;
        }
        Ok(())
    })
}
