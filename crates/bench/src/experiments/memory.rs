//! What files cost that nobody uses, and the parts they are made of: persistent memory, and DRAM of the node.

use super::log_commits::ROOT;
use crate::BenchError;
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_client::LocalClient;
use polvo_pmem::Pmem;
use polvo_proto::{FsError, InodeRef};
use polvo_region::{PoolSpace, Region};
use polvo_testbed::cluster::{BenchNode, new_file, root, used_bytes};
use polvo_testbed::part::{self, resident_bytes};
use std::path::Path;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    title: "Memory of files, names and extents",
    about: "Empty files in one directory; names of a few files; extents of one file, pages that lie apart. Persistent memory: by how \
            much the space in use has grown, less the bytes of the pages themselves. DRAM: by how much the memory of a process \
            that opens the pool is larger with many than with a quarter of them, before anything is used, and then with the \
            directory, or the file, in use; and what opening takes in all. Each pool is filled by one process and opened by \
            another, so that nothing is left over.",
    run,
};

/// What is done in a process of its own.
pub const PART: &str = "memory";

const POOL_LEN: u64 = 2 << 30;
const PAGE: usize = 4096;

/// What a pool is filled with.
#[derive(Clone, Copy)]
enum Things {
    Files,
    Names,
    Extents,
}

const THINGS: [Things; 3] = [Things::Files, Things::Names, Things::Extents];

/// What is measured of a pool.
#[derive(Clone, Copy)]
enum Measure {
    /// Fills it: persistent memory that it takes, bytes.
    Fill,
    /// Opens it: DRAM.
    Open,
    /// Opens it and uses what holds the things: DRAM.
    Use,
}

const MEASURES: [Measure; 3] = [Measure::Fill, Measure::Open, Measure::Use];

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    // space is given out in segments: with fewer files one more or less would show
    let many = (context.effort.ops * 10).max(100_000);
    let few = many / 4;
    let apart = (many - few) as f64;
    let each = |few: f64, many: f64| Samples::exact((many - few).max(0.0) / apart);
    let exact = Samples::exact;

    let [_, few_open, few_used] = measured(context.scratch, Things::Files, few)?;
    let [pool, open, used] = measured(context.scratch, Things::Files, many)?;
    let name = "persistent memory of an empty file";
    found.bounded(name, Unit::Bytes, &exact(pool / many as f64), AtMost(400.0));
    let name = "DRAM of a file not open";
    found.bounded(name, Unit::Bytes, &each(few_open, open), AtMost(200.0));
    let name = "DRAM of a file in a directory in use";
    found.figure(name, Unit::Bytes, &each(few_used, used));
    let base = format!("DRAM after opening a pool of {few} files");
    found.figure(&base, Unit::Bytes, &exact(few_open));
    let name = format!("DRAM after opening a pool of {many} files");
    found.against(&name, Unit::Bytes, &exact(open), &base, Some(AtMost(1.1)));

    for (things, what) in [(Things::Names, "a name"), (Things::Extents, "an extent")] {
        let [few_pool, _, few_used] = measured(context.scratch, things, few)?;
        let [pool, _, used] = measured(context.scratch, things, many)?;
        let name = format!("persistent memory of {what}");
        found.figure(&name, Unit::Bytes, &each(few_pool, pool));
        let name = format!("DRAM of {what} in use");
        found.figure(&name, Unit::Bytes, &each(few_used, used));
    }
    Ok(())
}

/// Fills a pool and opens it, each in a process of its own: what [`Measure`] says.
fn measured(scratch: &Path, things: Things, count: usize) -> Result<[f64; 3], BenchError> {
    let mut figures = [0.0; MEASURES.len()];
    for (measure, figure) in MEASURES.iter().zip(&mut figures) {
        let done = part::command(scratch, PART, &[*measure as usize, things as usize, count])?.output()?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).trim().into());
        }
        *figure = String::from_utf8_lossy(&done.stdout).trim().parse()?;
    }
    std::fs::remove_file(scratch.join("pool"))?;
    Ok(figures)
}

/// The child's part.
pub fn part(scratch: &Path, values: &[String]) -> Result<(), BenchError> {
    let measure = MEASURES.get(part::number(values, 0)?).ok_or("no such measure")?;
    let things = *THINGS.get(part::number(values, 1)?).ok_or("no such things")?;
    let bytes = match measure {
        Measure::Fill => fill(scratch, things, part::number(values, 2)?)?,
        Measure::Open => open(scratch, None)?,
        Measure::Use => open(scratch, Some(things))?,
    };
    println!("{bytes}");
    Ok(())
}

/// Few enough for the limit of links, many enough for the files not to count.
const NAMES_OF_A_FILE: usize = 10_000;

/// The file that has all the extents.
const NAME: &[u8] = b"one";

fn fill(scratch: &Path, things: Things, count: usize) -> Result<u64, BenchError> {
    let node = BenchNode::start(scratch, POOL_LEN)?;
    let client = node.internal();
    let top = root(&client)?;
    let before = used_bytes(&client)?;
    client.run(|c| async move { make(&c, top, things, count).await })?;
    let data = match things {
        Things::Files | Things::Names => 0,
        Things::Extents => (count * PAGE) as u64,
    };
    let used = used_bytes(&client)? - before - data;
    client.shutdown();
    node.leave()?;
    Ok(used)
}

async fn make(c: &LocalClient, top: InodeRef, things: Things, count: usize) -> Result<(), FsError> {
    let name = |n: usize| format!("file-{n:07}").into_bytes();
    if let Things::Files = things {
        for n in 0..count {
            c.create(top, &name(n), new_file()).await?;
        }
        return Ok(());
    }
    if let Things::Extents = things {
        let (_, file) = c.create_open(top, NAME, new_file()).await?;
        for n in 0..count {
            c.write(&file, (n * 2 * PAGE) as u64, &[7; PAGE]).await?;
        }
        return Ok(());
    }
    let mut linked = None;
    for n in 0..count {
        match linked.filter(|_| n % NAMES_OF_A_FILE != 0) {
            Some(inode) => drop(c.link(inode, top, &name(n)).await?),
            None => {
                let made = c.create(top, &name(n), new_file()).await?;
                linked = Some(InodeRef {
                    ino: made.ino,
                    generation: made.generation,
                });
            }
        }
    }
    Ok(())
}

/// Bytes of memory that opening takes, and using what holds the things.
fn open(scratch: &Path, used: Option<Things>) -> Result<u64, BenchError> {
    let before = resident_bytes()?;
    let space = PoolSpace::open(Pmem::open(&scratch.join("pool"), None)?)?;
    let mut regions = Vec::new();
    for id in space.regions() {
        regions.push(Region::recover(&space, id, &mut |_, _| ())?.0);
    }
    if let Some(things) = used {
        let name: &[u8] = match things {
            Things::Files | Things::Names => b"file-0000000",
            Things::Extents => NAME,
        };
        let (entry, _) = regions[0].lookup(ROOT, name)?;
        regions[0].file_map(entry.target, 0)?;
    }
    let grown = resident_bytes()?.saturating_sub(before);
    drop(regions);
    Ok(grown)
}
