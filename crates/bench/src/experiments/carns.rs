//! Carns et al., Fig. 4 and Fig. 5: server-directed transfers, the three ways they take, and where those cross.

use crate::BenchError;
use crate::baseline::memory::{DurableMemory, Memory};
use crate::baseline::socket;
use crate::crowd::{Access, Bytes, Crowd, ops_of, shown, touch};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Findings, Table, Unit, figure};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_client::{Thresholds, Transfers};
use polvo_proto::{EAGER_MAX, EAGER_READ_MAX};
use polvo_testbed::cluster::{BenchNode, pool_len};

/// Fig. 4.
pub const BANDWIDTH: Experiment = Experiment {
    name: "carns-fig4",
    title: "Aggregate bandwidth of server-directed transfers (Carns et al., Fig. 4)",
    about: "Clients that take turns on one thread, each with one 1 MiB read or write under way, moved by the node from and to \
            registered buffers of theirs (1 copy); over the number of clients, beside client-active transfers and the raw link.",
    run: bandwidth,
};

/// Fig. 5.
pub const LATENCY: Experiment = Experiment {
    name: "carns-fig5",
    title: "Latency of server-directed transfers over their size (Carns et al., Fig. 5)",
    about: "One client, one read or write at a time, moved by the node. Eager: the bytes travel in the request or its answer (6 \
            copies; as far as messages go). Pooled: the client copies them from or to a buffer that it registered once (2 \
            copies). Zero-copy: they lie in a buffer of the caller's, registered for the one request (1 copy). Automatic: as \
            a client chooses by size, from and to such a buffer. C1 is the smallest size from which on eager is not the \
            fastest, C2 that from which on zero-copy is ahead of pooled for good; the limits in the client's code \
            (`Thresholds`) are to be near them, so that automatic is never far behind the best.",
    run: latency,
};

const MIB: usize = 1 << 20;
const FILE: u64 = 64 << 20;
const SIZES: [usize; 12] = [
    64,
    256,
    1 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    MIB,
    4 * MIB,
    16 * MIB,
];

const EAGER: Thresholds = Thresholds {
    eager_write: EAGER_MAX,
    eager_read: EAGER_READ_MAX,
    pooled: usize::MAX,
};
const POOLED: Thresholds = Thresholds {
    eager_write: 0,
    eager_read: 0,
    pooled: usize::MAX,
};
const ZERO_COPY: Thresholds = Thresholds { pooled: 0, ..POOLED };

/// Its name, the sizes by which it is forced (`None`: as measured), and where the bytes are.
const WAYS: [(&str, Option<Thresholds>, Bytes); 4] = [
    ("eager", Some(EAGER), Bytes::Own),
    ("pooled", Some(POOLED), Bytes::Own),
    ("zero-copy", Some(ZERO_COPY), Bytes::Registered),
    ("automatic", None, Bytes::Registered),
];

fn latency(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let len = pool_len(4 * FILE);
    let node = BenchNode::start(context.scratch, len)?;
    touch(std::slice::from_ref(&node), len)?;
    for provider in ["shm", "tcp"] {
        let crowds = WAYS
            .iter()
            .map(|(_, sizes, _)| {
                let transfers = Transfers::Server(sizes.unwrap_or_default());
                Crowd::new(&node, provider, 1, transfers, FILE)
            })
            .collect::<Result<Vec<_>, _>>()?;
        for access in Access::BOTH {
            let curves = curves(context, access, &crowds)?;
            report(found, provider, access, &curves);
        }
        crowds.into_iter().try_for_each(Crowd::stop)?;
    }
    node.stop()
}

/// Of each way: sizes and what they took.
fn curves(context: &Context<'_>, access: Access, crowds: &[Crowd]) -> Result<Vec<Vec<(usize, Samples)>>, BenchError> {
    let effort = context.effort;
    let mut curves: Vec<Vec<(usize, Samples)>> = WAYS.iter().map(|_| Vec::new()).collect();
    for size in SIZES {
        let ops = ops_of(size, effort.ops / 8, effort.file_len / 4);
        let eager_max = match access {
            Access::Read => EAGER_READ_MAX,
            Access::Write => EAGER_MAX,
        };
        let taking_part: Vec<usize> = (0..WAYS.len()).filter(|way| *way > 0 || size <= eager_max).collect();
        let mut took: Vec<Vec<f64>> = WAYS.iter().map(|_| Vec::new()).collect();
        for _ in 0..effort.rounds {
            for way in &taking_part {
                took[*way].push(crowds[*way].run(access, WAYS[*way].2, size, ops)?.ns());
            }
        }
        for way in taking_part {
            curves[way].push((size, Samples::new(std::mem::take(&mut took[way]))));
        }
    }
    Ok(curves)
}

fn at(curve: &[(usize, Samples)], size: usize) -> Option<f64> {
    curve.iter().find(|(of, _)| *of == size).map(|(_, took)| took.median())
}

fn report(found: &mut Findings<'_>, provider: &str, access: Access, curves: &[Vec<(usize, Samples)>]) {
    let what = format!("{provider} {access}");
    let [eager, pooled, zero_copy, automatic] = curves else {
        unreachable!("one for each way")
    };
    let mut table = Table::new(
        format!("{what}s, ns"),
        &["bytes", "eager", "pooled", "zero-copy", "automatic", "of the best"],
    );
    for size in SIZES {
        let mut cells = vec![shown(size)];
        let mut best: Option<(f64, String)> = None;
        for ((way, ..), curve) in WAYS.iter().zip(curves).take(3) {
            let took = curve.iter().find(|(of, _)| *of == size).map(|(_, took)| took);
            cells.push(took.map_or("-".into(), |took| figure(took.median())));
            if let Some(took) = took {
                let name = format!("{what} {}, {way}", shown(size));
                found.figure(&name, Unit::Ns, took);
                if best.as_ref().is_none_or(|(ns, _)| took.median() < *ns) {
                    best = Some((took.median(), name));
                }
            }
        }
        if let (Some((_, took)), Some((_, best))) = (automatic.iter().find(|(of, _)| *of == size), best) {
            let name = format!("{what} {}, automatic", shown(size));
            let row = found.against(&name, Unit::Ns, took, &best, None);
            cells.extend([figure(took.median()), row.ratio_shown()]);
            table.line(cells);
        }
    }
    found.table(table);
    let faster = |a: &[(usize, Samples)], b: &[(usize, Samples)], size| at(a, size) < at(b, size);
    let c1 = SIZES
        .iter()
        .find(|size| at(eager, **size).is_none() || faster(pooled, eager, **size) || faster(zero_copy, eager, **size));
    let c2 = SIZES
        .iter()
        .rev()
        .take_while(|size| faster(zero_copy, pooled, **size))
        .last();
    for (name, size) in [("C1", c1), ("C2", c2)] {
        match size {
            Some(size) => {
                let name = format!("{what} crossover {name}");
                found.figure(&name, Unit::Bytes, &Samples::exact(*size as f64));
            }
            None => found.note(format!(
                "{what}: no crossover {name} up to {}",
                shown(SIZES[SIZES.len() - 1])
            )),
        }
    }
    found.plot(Plot::Lines {
        name: format!("carns-fig5-{provider}-{access}"),
        title: format!("Latency of server-directed {access}s over {provider}"),
        x: Axis::log("bytes"),
        y: Axis::log("ns"),
        series: WAYS
            .iter()
            .zip(curves)
            .map(|((way, ..), curve)| Series {
                name: (*way).into(),
                points: curve.iter().map(|(size, took)| (*size as f64, took.median())).collect(),
            })
            .collect(),
    });
}

fn bandwidth(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    const CLIENTS: [usize; 4] = [1, 2, 4, 8];
    /// A file of each client.
    const EACH: u64 = 16 << 20;
    let effort = context.effort;
    let len = pool_len(CLIENTS.iter().sum::<usize>() as u64 * EACH);
    let node = BenchNode::start(context.scratch, len)?;
    touch(std::slice::from_ref(&node), len)?;
    let (memory, durable) = (Memory::new(FILE), DurableMemory::new(context.scratch, FILE, None)?);
    let ops = ops_of(MIB, effort.ops, effort.file_len / 2);
    for provider in ["shm", "tcp"] {
        for access in Access::BOTH {
            let link = format!("{provider} link, {access}s");
            let mut raw = Vec::new();
            for _ in 0..effort.rounds {
                raw.push(match (provider, access) {
                    ("tcp", access) => socket::stream(effort.file_len, FILE, access == Access::Read)?,
                    (_, Access::Read) => memory.copy_from_sequentially(),
                    (_, Access::Write) => durable.copy_to_sequentially(),
                });
            }
            found.figure(&link, Unit::GbPerS, &Samples::new(raw));
            let mut series = Vec::new();
            for (way, transfers, bytes) in [
                (
                    "server-directed",
                    Transfers::Server(Thresholds::default()),
                    Bytes::Registered,
                ),
                ("client-active", Transfers::Client, Bytes::Own),
            ] {
                let mut points = Vec::new();
                for clients in CLIENTS {
                    let crowd = Crowd::new(&node, provider, clients, transfers, EACH)?;
                    let mut rates = Vec::new();
                    for _ in 0..effort.rounds {
                        rates.push(crowd.run(access, bytes, MIB, ops)?.gbps(MIB));
                    }
                    crowd.stop()?;
                    let rates = Samples::new(rates);
                    points.push((clients as f64, rates.median()));
                    let name = format!("{provider} {access}s, {clients} clients, {way}");
                    found.against(&name, Unit::GbPerS, &rates, &link, None);
                }
                series.push(Series {
                    name: way.into(),
                    points,
                });
            }
            found.plot(Plot::Lines {
                name: format!("carns-fig4-{provider}-{access}"),
                title: format!("Bandwidth of 1 MiB {access}s over {provider}"),
                x: Axis::linear("clients"),
                y: Axis::linear("GB/s"),
                series,
            });
        }
    }
    node.stop()
}
