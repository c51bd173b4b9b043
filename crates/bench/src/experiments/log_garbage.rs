//! What log garbage collection costs where it has most to do: small overwrites.

use crate::BenchError;
use crate::report::{Findings, Unit};
use crate::samples::{Samples, in_turn, rate};
use crate::suite::{Context, Experiment};
use polvo_format::{FileKind, Generation, Ino, NodeId, RegionId, Tail, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::{InodeRef, Intent, Placement, WriteAt};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace, Region};
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "log-garbage",
    title: "Log garbage collection",
    about: "64 bytes are overwritten again and again, at one place of a file after the other, in a region that nobody else uses: \
            each time two units of the file's log, of which the ones before are dead. With the collector, it looks for work \
            after every so many writes, and writes a log anew once more than half of it is dead; without, the log just grows.",
    run,
};

const POOL_LEN: u64 = 1 << 30;
const SMALL: usize = 64;
/// Places that are overwritten.
const PLACES: usize = 1024;
/// Writes between two runs of the collector.
const EVERY: usize = 512;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let path = context.scratch.join("pool");
    let pmem = Pmem::create(&path, POOL_LEN, None)?;
    let identity = PoolIdentity {
        cluster: [7; 16],
        pool: [7; 16],
        node: NodeId(0),
    };
    let params = FormatParams {
        identity,
        segment_shift: None,
        checksums: false,
    };
    PoolSpace::format(&pmem, &params)?;
    let space = PoolSpace::open(pmem)?;
    let mut region = Region::create(&space, RegionId(0), 0)?;
    let mut rewritten = Vec::new();
    let (mut files, ops) = (0u64, context.effort.ops * 5);
    let region = std::cell::RefCell::new((&mut region, &mut files));
    let [without, with] = in_turn(
        context.effort.rounds,
        [
            &mut || {
                let (region, files) = &mut *region.borrow_mut();
                Ok(overwrite(region, files, ops, None)?.0)
            },
            &mut || {
                let (region, files) = &mut *region.borrow_mut();
                let (writes, ratio) = overwrite(region, files, ops, Some(EVERY))?;
                rewritten.push(ratio);
                Ok(writes)
            },
        ],
    )?;
    let base = "overwrites of 64 B, without collector";
    found.figure(base, Unit::PerS, &without);
    let name = "overwrites of 64 B, with the collector at work";
    found.against(name, Unit::PerS, &with, base, None);
    let name = "log rewritten for a byte of log written";
    found.figure(name, Unit::Bytes, &Samples::new(rewritten));
    std::fs::remove_file(path)?;
    Ok(())
}

/// Overwrites a fresh file: writes a second, and bytes of log written by the collector for each byte that the writes took.
fn overwrite(
    region: &mut Region,
    files: &mut u64,
    ops: usize,
    collect_every: Option<usize>,
) -> Result<(f64, f64), BenchError> {
    let inode = make_file(region, files)?;
    let mut known = Tail::default();
    let (mut written, mut rewritten) = (0, 0);
    let start = Instant::now();
    for n in 0..ops {
        let offset = (n % PLACES * SMALL) as u64;
        let now = region
            .write(inode, WriteAt::Offset(offset), &[7; SMALL], known, n as i64)?
            .cursor
            .tail;
        written += now.units() - if n == 0 { 0 } else { known.units() };
        known = now;
        if collect_every.is_some_and(|every| n % every == 0) && region.collect_garbage(n as i64) {
            let now = region.attr(inode.ino, None)?.1;
            if now.version() != known.version() {
                rewritten += now.units();
            }
            known = now;
        }
    }
    let writes = rate(start.elapsed(), ops);
    Ok((writes, rewritten as f64 / written as f64))
}

fn make_file(region: &mut Region, files: &mut u64) -> Result<InodeRef, BenchError> {
    *files += 1;
    let dir = InodeRef {
        ino: Ino::ROOT,
        generation: Generation(1),
    };
    let intents = [
        Intent::NewInode {
            file: polvo_testbed::cluster::new_file(),
            parent: dir,
            placement: Placement::default(),
            unnamed: false,
        },
        Intent::AddName {
            dir,
            name: format!("file{files}").into_bytes(),
            target: None,
            kind: FileKind::File,
        },
    ];
    let attr = region
        .decide(TxnId::new(RegionId(0), *files), &intents, &[], 0)?
        .outcomes[0]
        .attr;
    Ok(InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    })
}
