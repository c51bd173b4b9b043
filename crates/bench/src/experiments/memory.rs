//! What files cost that nobody uses: persistent memory, and DRAM of the node.

use crate::BenchError;
use crate::cluster::{BenchNode, LEASE, new_file, root, used_bytes};
use crate::part::{self, resident_bytes};
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_pmem::Pmem;
use polvo_proto::FsError;
use polvo_region::{PoolSpace, Region};
use std::path::Path;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    title: "Memory of files that nobody uses",
    about: "Empty files in one directory. Persistent memory: by how much the space in use has grown. DRAM: by how much the \
            memory of a process that opens the pool is larger with many files than with a quarter of them, and what it takes \
            in all. Each pool is filled by one process and opened by another, so that nothing is left over.",
    run,
};

/// What is done in a process of its own.
pub const PART: &str = "memory";

const POOL_LEN: u64 = 1 << 30;
const FILL: usize = 0;
const OPEN: usize = 1;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    // space is given out in segments: with fewer files one more or less would show
    let many = (context.effort.ops * 10).max(100_000);
    let few = many / 4;
    let (_, few_open) = measured(context.scratch, few)?;
    let (pool, open) = measured(context.scratch, many)?;
    let name = "persistent memory of an empty file";
    found.bounded(name, Unit::Bytes, &Samples::exact(pool / many as f64), AtMost(400.0));
    let each = (open - few_open).max(0.0) / (many - few) as f64;
    found.bounded(
        "DRAM of a file not open",
        Unit::Bytes,
        &Samples::exact(each),
        AtMost(200.0),
    );
    let base = format!("DRAM after opening a pool of {few} files");
    found.figure(&base, Unit::Bytes, &Samples::exact(few_open));
    let name = format!("DRAM after opening a pool of {many} files");
    found.against(&name, Unit::Bytes, &Samples::exact(open), &base, Some(AtMost(1.1)));
    Ok(())
}

/// Bytes of the pool that so many files take, and of memory after it was opened by another process.
fn measured(scratch: &Path, files: usize) -> Result<(f64, f64), BenchError> {
    let figures = [FILL, OPEN].map(|what| {
        let done = part::command(scratch, PART, &[what, files])?.output()?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).trim().into());
        }
        Ok::<f64, BenchError>(String::from_utf8_lossy(&done.stdout).trim().parse()?)
    });
    std::fs::remove_file(scratch.join("pool"))?;
    let [fill, open] = figures;
    Ok((fill?, open?))
}

/// The child's part.
pub fn part(scratch: &Path, values: &[String]) -> Result<(), BenchError> {
    match part::number(values, 0)? {
        FILL => fill(scratch, part::number(values, 1)?),
        _ => open(scratch),
    }
}

fn fill(scratch: &Path, files: usize) -> Result<(), BenchError> {
    let node = BenchNode::start(scratch, POOL_LEN, LEASE)?;
    let client = node.internal();
    let top = root(&client)?;
    let before = used_bytes(&client)?;
    client.run(|c| async move {
        for n in 0..files {
            c.create(top, format!("file-{n:07}").as_bytes(), new_file()).await?;
        }
        Ok::<_, FsError>(())
    })?;
    println!("{}", used_bytes(&client)? - before);
    client.shutdown();
    node.leave()
}

fn open(scratch: &Path) -> Result<(), BenchError> {
    let before = resident_bytes()?;
    let space = PoolSpace::open(Pmem::open(&scratch.join("pool"), None)?)?;
    let mut regions = Vec::new();
    for id in space.regions() {
        regions.push(Region::recover(&space, id, &mut |_, _| ())?.0);
    }
    println!("{}", resident_bytes()?.saturating_sub(before));
    drop(regions);
    Ok(())
}
