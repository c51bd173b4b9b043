//! What an operation costs must not depend on how much there is.

use crate::BenchError;
use crate::baseline::memory::NamesAndInodes;
use crate::baseline::pages;
use crate::crowd::touch;
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::in_turn;
use crate::suite::{Context, Experiment};
use polvo_client::{Client, OpenFile};
use polvo_format::FileKind;
use polvo_proto::{FsError, InodeRef, NewFile};
use polvo_testbed::cluster::{BenchNode, new_file, root, tick, used_bytes};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "flat",
    title: "Cost over the amount that is there",
    about: "The same operations where there is little and where there is much, in turn in one run: in a directory of 1,000 files \
            and of 1,000,000 (100,000 in a quick run); on 256 written pages of a file of 1 MiB and of a sparse one of 64 GiB; at a \
            node with one session and with 1,000 that each hold a file and space; in an empty pool and in one that is 90 % full. \
            One thread with a colocated client. Costs may grow by a tenth; what grows more does so mostly because the \
            larger amount does not fit the processor's caches, which the smaller one does.",
    run,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Pages written of the files that are compared.
const WRITTEN: u64 = 256;
const SESSIONS: usize = 1000;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    directories(context, found)?;
    sparse_files(context, found)?;
    sessions(context, found)?;
    utilization(context, found)
}

/// A node with a pool of its own, and a colocated client.
struct Place {
    node: BenchNode,
    client: Arc<Client>,
    dir: PathBuf,
}

impl Place {
    fn new(context: &Context<'_>, name: &str, pool_len: u64) -> Result<Place, BenchError> {
        let dir = context.scratch.join(name);
        std::fs::create_dir(&dir)?;
        let node = BenchNode::start(&dir, pool_len)?;
        touch(std::slice::from_ref(&node), pool_len)?;
        let client = node.internal();
        client.start_maintenance();
        // once the session has been seen, what was freed before may be used again
        let served = node.node();
        client.run(|c| async move { tick(&c, served).await });
        if used_bytes(&client)? > pool_len / 2 {
            return Err("the space of a removed file does not come back".into());
        }
        Ok(Place { node, client, dir })
    }

    fn directory(&self, name: &'static str, files: usize) -> Result<InodeRef, BenchError> {
        let top = root(&self.client)?;
        Ok(self.client.run(|c| async move {
            let directory = NewFile {
                kind: FileKind::Directory,
                mode: 0o755,
                ..new_file()
            };
            let made = c.create(top, name.as_bytes(), directory).await?;
            let dir = InodeRef {
                ino: made.ino,
                generation: made.generation,
            };
            for n in 0..files {
                c.create(dir, &file_name(n), new_file()).await?;
            }
            Ok::<_, FsError>(dir)
        })?)
    }

    fn file(&self, name: &'static str) -> Result<Arc<OpenFile>, BenchError> {
        let top = root(&self.client)?;
        let (_, file) = self
            .client
            .run(|c| async move { c.create_open(top, name.as_bytes(), new_file()).await })?;
        Ok(file)
    }

    fn end(self) -> Result<(), BenchError> {
        self.client.shutdown();
        self.node.stop()?;
        Ok(std::fs::remove_dir_all(&self.dir)?)
    }
}

fn file_name(n: usize) -> Vec<u8> {
    format!("file-{n:07}").into_bytes()
}

/// `ns` a lookup of random names.
fn lookups(place: &Place, dir: InodeRef, files: usize, ops: usize) -> Result<f64, BenchError> {
    let names: Vec<Vec<u8>> = pages(files as u64 * 4096, ops)
        .map(|at| file_name((at / 4096) as usize))
        .collect();
    Ok(place.client.run(|c| async move {
        let start = Instant::now();
        for name in &names {
            std::hint::black_box(c.lookup(dir, name).await?);
        }
        Ok::<_, FsError>(start.elapsed().as_nanos() as f64 / names.len() as f64)
    })?)
}

/// `ns` an empty file that is made and removed.
fn comings_and_goings(place: &Place, dir: InodeRef, ops: usize) -> Result<f64, BenchError> {
    let names: Vec<Vec<u8>> = (0..ops).map(|n| format!("new-{n:07}").into_bytes()).collect();
    Ok(place.client.run(|c| async move {
        let start = Instant::now();
        for name in &names {
            c.create(dir, name, new_file()).await?;
        }
        for name in &names {
            c.unlink(dir, name).await?;
        }
        Ok::<_, FsError>(start.elapsed().as_nanos() as f64 / names.len() as f64)
    })?)
}

fn directories(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let (few, many) = (1000, 50 * ops);
    let place = Place::new(context, "flat-directories", 3 * GIB / 2)?;
    let small = place.directory("small", few)?;
    let large = place.directory("large", many)?;
    let few_touched = NamesAndInodes::new(&place.dir, few)?;
    let many_touched = NamesAndInodes::new(&place.dir, many)?;
    let [
        few_touches,
        many_touches,
        few_looks,
        many_looks,
        few_goings,
        many_goings,
    ] = in_turn(
        rounds,
        [
            &mut || Ok(few_touched.look_up(ops)),
            &mut || Ok(many_touched.look_up(ops)),
            &mut || lookups(&place, small, few, ops),
            &mut || lookups(&place, large, many, ops),
            &mut || comings_and_goings(&place, small, ops),
            &mut || comings_and_goings(&place, large, ops),
        ],
    )?;
    let base = format!("memory touched by a lookup in a directory of {few} files");
    found.figure(&base, Unit::Ns, &few_touches);
    let name = format!("memory touched by a lookup in a directory of {many} files");
    found.against(&name, Unit::Ns, &many_touches, &base, None);
    for (what, less, more) in [
        ("lookup", &few_looks, &many_looks),
        ("create and unlink", &few_goings, &many_goings),
    ] {
        let base = format!("{what} in a directory of {few} files");
        found.figure(&base, Unit::Ns, less);
        let name = format!("{what} in a directory of {many} files");
        found.against(&name, Unit::Ns, more, &base, Some(AtMost(1.1)));
    }
    place.end()
}

/// `ns` a 4 KiB read, or durable overwrite, of random ones of the written pages, which lie `stride` bytes apart.
fn at_pages(place: &Place, file: &Arc<OpenFile>, stride: u64, ops: usize, writing: bool) -> Result<f64, BenchError> {
    let file = file.clone();
    Ok(place.client.run(|c| async move {
        let mut page = [3u8; 4096];
        let start = Instant::now();
        for at in pages(WRITTEN * 4096, ops) {
            let at = at / 4096 * stride;
            if writing {
                c.write(&file, at, &page).await?;
            } else {
                c.read(&file, at, &mut page).await?;
            }
        }
        Ok::<_, FsError>(start.elapsed().as_nanos() as f64 / ops as f64)
    })?)
}

fn sparse_files(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let place = Place::new(context, "flat-files", 256 * MIB)?;
    let (dense, sparse) = (MIB / WRITTEN, 64 * GIB / WRITTEN);
    let (small, large) = (place.file("small")?, place.file("large")?);
    // every page of the pool is touched, every page of the files written
    for _ in 0..2 {
        at_pages(&place, &small, dense, 40_000, true)?;
        at_pages(&place, &large, sparse, 40_000, true)?;
    }
    let [few_reads, many_reads, few_writes, many_writes] = in_turn(
        rounds,
        [
            &mut || at_pages(&place, &small, dense, ops, false),
            &mut || at_pages(&place, &large, sparse, ops, false),
            &mut || at_pages(&place, &small, dense, ops, true),
            &mut || at_pages(&place, &large, sparse, ops, true),
        ],
    )?;
    for (what, less, more) in [
        ("4 KiB read", &few_reads, &many_reads),
        ("4 KiB durable overwrite", &few_writes, &many_writes),
    ] {
        let base = format!("{what} in a file of 1 MiB");
        found.figure(&base, Unit::Ns, less);
        let name = format!("{what} in a sparse file of 64 GiB");
        found.against(&name, Unit::Ns, more, &base, Some(AtMost(1.1)));
    }
    drop((small, large));
    place.end()
}

/// The operations that are compared where neither directories nor files differ.
fn everyday(
    less: (&Place, &str),
    more: (&Place, &str),
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let dirs = [less.0.directory("dir", 1000)?, more.0.directory("dir", 1000)?];
    let files = [less.0.file("file")?, more.0.file("file")?];
    for (place, file) in [(less.0, &files[0]), (more.0, &files[1])] {
        at_pages(place, file, 4096, 4096, true)?;
    }
    let [few_goings, many_goings, few_writes, many_writes] = in_turn(
        rounds,
        [
            &mut || comings_and_goings(less.0, dirs[0], ops),
            &mut || comings_and_goings(more.0, dirs[1], ops),
            &mut || at_pages(less.0, &files[0], 4096, ops, true),
            &mut || at_pages(more.0, &files[1], 4096, ops, true),
        ],
    )?;
    for (what, few, many) in [
        ("create and unlink", &few_goings, &many_goings),
        ("4 KiB durable overwrite", &few_writes, &many_writes),
    ] {
        let base = format!("{what}, {}", less.1);
        found.figure(&base, Unit::Ns, few);
        found.against(&format!("{what}, {}", more.1), Unit::Ns, many, &base, Some(AtMost(1.1)));
    }
    Ok(())
}

fn sessions(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let one = Place::new(context, "flat-one", GIB)?;
    let many = Place::new(context, "flat-many", GIB)?;
    let top = root(&many.client)?;
    let mut others = Vec::with_capacity(SESSIONS);
    for n in 1..SESSIONS {
        let client = many.node.internal();
        client.run(|c| async move {
            let name = format!("session-{n}");
            let (_, file) = c.create_open(top, name.as_bytes(), new_file()).await?;
            c.write(&file, 0, &[1; 8192]).await?;
            Ok::<_, FsError>(())
        })?;
        others.push(client);
    }
    everyday((&one, "1 session"), (&many, "1000 sessions"), context, found)?;
    others.iter().for_each(|client| client.shutdown());
    drop(others);
    one.end()?;
    many.end()
}

fn utilization(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    const POOL: u64 = GIB;
    let empty = Place::new(context, "flat-empty", POOL)?;
    let full = Place::new(context, "flat-full", POOL)?;
    let filler = full.file("filler")?;
    full.client.run(|c| async move {
        let chunk = vec![5u8; MIB as usize];
        for at in (0..POOL / 10 * 9).step_by(chunk.len()) {
            c.write(&filler, at, &chunk).await?;
        }
        Ok::<_, FsError>(())
    })?;
    everyday((&empty, "empty pool"), (&full, "pool 90 % full"), context, found)?;
    empty.end()?;
    full.end()
}
