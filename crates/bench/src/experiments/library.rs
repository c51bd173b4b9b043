//! The client library against memory, tmpfs and raw sockets.

use crate::BenchError;
use crate::baseline::files::{self, BigFile};
use crate::baseline::memory::{DurableMemory, Memory};
use crate::baseline::pages;
use crate::baseline::socket::{self, Waits};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Findings, Unit};
use crate::samples::{Samples, gbps, in_turn, rate};
use crate::suite::{Context, Effort, Experiment};
use polvo_client::{Client, OpenFile};
use polvo_proto::FsError;
use polvo_testbed::cluster::{BenchNode, new_file, pool_len, root};
use std::sync::Arc;
use std::time::Instant;

const MIB: usize = 1 << 20;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "library",
    title: "The client library",
    about: "One thread with the client library, on one node. Internal: the client is colocated with the node and maps its pool; its \
            reads are set beside plain copies of pages that are in no cache, its durable writes beside non-temporal copies and \
            flushed log lines, its names beside system calls on tmpfs. External: a client over tcp (loopback) or shm, beside a \
            raw socket that carries the same bytes and waits the same way. Every write is durable when it returns.",
    run,
};

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let node = BenchNode::start(context.scratch, pool_len(context.effort.file_len))?;
    // the first touch of a page is a fault of the operating system, which the baselines have behind them too
    node.node()
        .colocated()
        .pool()
        .enter_pages(0, pool_len(context.effort.file_len));
    let client = node.internal();
    client.start_maintenance();
    internal(&client, context, found)?;
    names(&client, context, found)?;
    client.shutdown();
    external(&node, context.effort, found)?;
    node.stop()
}

/// A file of `len` bytes, overwritten until every page of the pool has been touched: a mapping's first touch of a page is
/// a fault of the operating system, which is not what is measured.
fn big_file(client: &Arc<Client>, name: &'static str, len: u64) -> Result<Arc<OpenFile>, FsError> {
    let root = root(client)?;
    client.run(|c| async move {
        let (_, file) = c.create_open(root, name.as_bytes(), new_file()).await?;
        let chunk = vec![1u8; MIB];
        for at in (0..pool_len(len)).step_by(chunk.len()) {
            c.write(&file, at % len, &chunk).await?;
        }
        Ok(file)
    })
}

fn remove(client: &Arc<Client>, name: &'static str) -> Result<(), FsError> {
    let root = root(client)?;
    client.run(|c| async move { c.unlink(root, name.as_bytes()).await })
}

/// `ns` a 4 KiB read of random pages.
fn random_read(client: &Arc<Client>, file: &Arc<OpenFile>, effort: Effort) -> Result<f64, BenchError> {
    let took = client.run(|c| async move {
        let mut page = [0u8; 4096];
        let start = Instant::now();
        for at in pages(effort.file_len, effort.ops) {
            c.read(file, at, &mut page).await?;
        }
        Ok::<_, FsError>(start.elapsed())
    })?;
    Ok(took.as_nanos() as f64 / effort.ops as f64)
}

/// `ns` a durable 4 KiB overwrite of random pages.
fn random_write(client: &Arc<Client>, file: &Arc<OpenFile>, effort: Effort) -> Result<f64, BenchError> {
    let took = client.run(|c| async move {
        let page = [9u8; 4096];
        let start = Instant::now();
        for at in pages(effort.file_len, effort.ops) {
            c.write(file, at, &page).await?;
        }
        Ok::<_, FsError>(start.elapsed())
    })?;
    Ok(took.as_nanos() as f64 / effort.ops as f64)
}

/// GB/s of a pass over it in pieces of 1 MiB.
fn stream(client: &Arc<Client>, file: &Arc<OpenFile>, effort: Effort, write: bool) -> Result<f64, BenchError> {
    let took = client.run(|c| async move {
        let mut chunk = vec![4u8; MIB];
        let start = Instant::now();
        for at in (0..effort.file_len).step_by(chunk.len()) {
            if write {
                c.write(file, at, &chunk).await?;
            } else {
                c.read(file, at, &mut chunk).await?;
            }
        }
        Ok::<_, FsError>(start.elapsed())
    })?;
    Ok(gbps(took, effort.file_len))
}

fn internal(client: &Arc<Client>, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let effort = context.effort;
    let (len, ops, n) = (effort.file_len, effort.ops, effort.rounds);
    let file = big_file(client, "internal", len)?;
    let memory = Memory::new(len);
    let durable = DurableMemory::new(context.scratch, len, None)?;
    let tmpfs = BigFile::new(context.scratch, len)?;

    let [copy, read, durably, write] = in_turn(
        n,
        [
            &mut || Ok(memory.copy_from_sequentially()),
            &mut || stream(client, &file, effort, false),
            &mut || Ok(durable.copy_to_sequentially()),
            &mut || stream(client, &file, effort, true),
        ],
    )?;
    found.figure("memcpy in 1 MiB pieces", Unit::GbPerS, &copy);
    found.figure("durable copy in 1 MiB pieces", Unit::GbPerS, &durably);
    let of = "memcpy in 1 MiB pieces";
    found.against(
        "library internal 1 MiB reads",
        Unit::GbPerS,
        &read,
        of,
        Some(AtLeast(0.9)),
    );
    let of = "durable copy in 1 MiB pieces";
    found.against(
        "library internal 1 MiB writes",
        Unit::GbPerS,
        &write,
        of,
        Some(AtLeast(0.9)),
    );

    let [copy, pread, read] = in_turn(
        n,
        [
            &mut || Ok(memory.copy_from_random_pages(ops)),
            &mut || tmpfs.read_random_pages(ops),
            &mut || random_read(client, &file, effort),
        ],
    )?;
    found.figure("memcpy of random 4 KiB pages", Unit::Ns, &copy);
    found.figure("tmpfs pread of random 4 KiB", Unit::Ns, &pread);
    let name = "library internal 4 KiB random read";
    found.against(name, Unit::Ns, &read, "memcpy of random 4 KiB pages", Some(AtMost(1.5)));
    found.against(name, Unit::Ns, &read, "tmpfs pread of random 4 KiB", Some(AtMost(0.5)));

    overwrites(client, &file, effort, &durable, &tmpfs, found)?;

    // what was overwritten page by page lies in pages here and there
    let [copy, read] = in_turn(
        n,
        [&mut || Ok(memory.copy_from_sequentially()), &mut || {
            stream(client, &file, effort, false)
        }],
    )?;
    found.figure("memcpy in 1 MiB pieces, again", Unit::GbPerS, &copy);
    found.against(
        "library internal 1 MiB reads of a file overwritten at random",
        Unit::GbPerS,
        &read,
        "memcpy in 1 MiB pieces, again",
        None,
    );
    drop(file);
    Ok(remove(client, "internal")?)
}

/// Durable overwrites of 4 KiB at random, beside what they could at best equal.
fn overwrites(
    client: &Arc<Client>,
    file: &Arc<OpenFile>,
    effort: Effort,
    durable: &DurableMemory,
    tmpfs: &BigFile,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let [copy, touched, pwrite, write] = in_turn(
        effort.rounds,
        [
            &mut || Ok(durable.copy_to_random_pages(effort.ops)),
            &mut || Ok(durable.overwrite_random_pages(effort.ops)),
            &mut || tmpfs.write_random_pages(effort.ops, false),
            &mut || random_write(client, file, effort),
        ],
    )?;
    found.figure("durable copy to random 4 KiB pages", Unit::Ns, &copy);
    found.figure("memory touched by a durable 4 KiB overwrite", Unit::Ns, &touched);
    found.figure("tmpfs pwrite of random 4 KiB", Unit::Ns, &pwrite);
    let name = "library internal 4 KiB durable overwrite";
    let touched = "memory touched by a durable 4 KiB overwrite";
    found.against(name, Unit::Ns, &write, touched, None);
    let baseline = "durable copy to random 4 KiB pages";
    found.against(name, Unit::Ns, &write, baseline, Some(AtMost(2.0)));
    found.against(
        name,
        Unit::Ns,
        &write,
        "tmpfs pwrite of random 4 KiB",
        Some(AtMost(1.0)),
    );
    Ok(())
}

/// Creates, looks up and unlinks empty files; operations a second.
fn names_of(client: &Arc<Client>, names: &Arc<Vec<Vec<u8>>>) -> Result<[f64; 3], BenchError> {
    let (dir, names) = (root(client)?, names.clone());
    Ok(client.run(|c| async move {
        let ops = names.len();
        let start = Instant::now();
        for name in names.iter() {
            c.create(dir, name, new_file()).await?;
        }
        let create = rate(start.elapsed(), ops);
        let start = Instant::now();
        for name in names.iter() {
            std::hint::black_box(c.lookup(dir, name).await?);
        }
        let stat = rate(start.elapsed(), ops);
        let start = Instant::now();
        for name in names.iter() {
            c.unlink(dir, name).await?;
        }
        Ok::<_, FsError>([create, stat, rate(start.elapsed(), ops)])
    })?)
}

fn names(client: &Arc<Client>, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let ops = context.effort.ops;
    let names: Arc<Vec<Vec<u8>>> = Arc::new((0..ops).map(|i| format!("f{i}").into_bytes()).collect());
    let (mut tmpfs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..context.effort.rounds {
        tmpfs.push(files::names(context.scratch, ops)?);
        ours.push(names_of(client, &names)?);
    }
    for (which, what) in files::NAME_OPERATIONS.into_iter().enumerate() {
        let of = |rounds: &[[f64; 3]]| Samples::new(rounds.iter().map(|round| round[which]).collect());
        let baseline = format!("tmpfs {what}");
        found.figure(&baseline, Unit::PerS, &of(&tmpfs));
        let name = format!("library internal {what}");
        found.against(&name, Unit::PerS, &of(&ours), &baseline, Some(AtLeast(2.0)));
    }
    Ok(())
}

fn external(node: &BenchNode, effort: Effort, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (n, ops) = (effort.rounds, effort.ops);
    let waits = Waits::ClientSpins;
    let page = format!("socket ping-pong 64 B / 4 KiB, {waits}");
    for (provider, name) in [("tcp", "over-tcp"), ("shm", "over-shm")] {
        let client = node.external(provider)?;
        let file = big_file(&client, name, effort.file_len)?;
        let [round_trip, read, write] = in_turn(
            n,
            [
                &mut || socket::round_trip(64, 4096, waits, ops),
                &mut || random_read(&client, &file, effort),
                &mut || random_write(&client, &file, effort),
            ],
        )?;
        let [reads, read_stream, writes, write_stream] = in_turn(
            n,
            [
                &mut || socket::stream(effort.file_len, effort.file_len, true),
                &mut || stream(&client, &file, effort, false),
                &mut || socket::stream(effort.file_len, effort.file_len, false),
                &mut || stream(&client, &file, effort, true),
            ],
        )?;
        if provider == "tcp" {
            found.figure(&page, Unit::Ns, &round_trip);
            found.figure("socket stream, 1 MiB reads", Unit::GbPerS, &reads);
            found.figure("socket stream, 1 MiB writes", Unit::GbPerS, &writes);
        }
        for (what, value, unit, baseline) in [
            ("4 KiB random read", &read, Unit::Ns, &*page),
            ("4 KiB durable overwrite", &write, Unit::Ns, &page),
            ("1 MiB reads", &read_stream, Unit::GbPerS, "socket stream, 1 MiB reads"),
            (
                "1 MiB writes",
                &write_stream,
                Unit::GbPerS,
                "socket stream, 1 MiB writes",
            ),
        ] {
            found.against(&format!("library {provider} {what}"), unit, value, baseline, None);
        }
        drop(file);
        remove(&client, name)?;
        client.shutdown();
    }
    Ok(())
}
