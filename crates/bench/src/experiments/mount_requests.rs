//! The mount beside what it could at best equal: the file system that does nothing, and what needs no request at all.

use crate::BenchError;
use crate::baseline::files::{self, BigFile, FilesInUse};
use crate::mounted::{Cache, Counters, Mounts, Server};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Findings, Target, Unit};
use crate::samples::{Samples, each_in_turn};
use crate::suite::{Context, Experiment};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mount-requests",
    title: "Requests of the mount",
    about: "The mount colocated with the node whose pool has the file (inside), and those of clients over shm and over tcp \
            (loopback), each served by a process of its own, with the time limits that a cluster has if nothing else is said. \
            Null: the file system that does nothing, mounted and served the same way. Reads and writes of data without the kernel keeping anything (cache=none), \
            beside null; names as by default (cache=strict), beside a null file system of which the kernel may keep as much as if \
            there were tokens of everything; what the kernel keeps, beside tmpfs. Targets of data and of names are for the colocated \
            mount.\n\n\
            Files in use are 16, looked at in turn; the kernel asks for each name 50 times a second. The requests that it makes for \
            one thing are counted: all but those that say what it has forgotten.",
    run,
};

/// Most bytes of a file.
const LEN: u64 = 256 << 20;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    if !Path::new("/dev/fuse").exists() {
        found.note("Left out: there is no /dev/fuse.");
        return Ok(());
    }
    let len = context.effort.file_len.min(LEN);
    let mounts = Mounts::start(context.scratch, 2 * len)?;
    data(&mounts, len, context, found)?;
    durable(&mounts, len, context, found)?;
    names(&mounts, context, found)?;
    kept(&mounts, context, found)?;
    upcalls(&mounts, found)
}

/// What is compared, by name: the first is what the others are set beside.
type Side<T> = (&'static str, T);

/// The file system that does nothing, and ours.
fn beside_null<T>(
    mounts: &Mounts,
    cache: Cache,
    make: impl Fn(&Path) -> Result<T, BenchError>,
) -> Result<Vec<Side<T>>, BenchError> {
    let null = (Server::Null.name(), mounts.own(Server::Null, cache));
    sides([null].into_iter().chain(mounts.ours(cache)), make)
}

fn sides<T>(
    dirs: impl Iterator<Item = Side<PathBuf>>,
    make: impl Fn(&Path) -> Result<T, BenchError>,
) -> Result<Vec<Side<T>>, BenchError> {
    dirs.map(|(name, dir)| Ok((name, make(&dir)?))).collect()
}

/// A row of each side; the target is for those that `judged` names.
fn rows<'a, T>(
    found: &mut Findings<'_>,
    what: &str,
    unit: Unit,
    sides: &[Side<T>],
    samples: impl IntoIterator<Item = &'a Samples>,
    (target, judged): (Target, &[Server]),
) {
    let base = format!("{} {what}", sides[0].0);
    for ((side, _), samples) in sides.iter().zip(samples) {
        let name = format!("{side} {what}");
        let target = judged.iter().any(|judged| judged.name() == *side).then_some(target);
        match name == base {
            true => found.figure(&name, unit, samples),
            false => found.against(&name, unit, samples, &base, target),
        };
    }
}

const INSIDE: &[Server] = &[Server::Inside];
const ALL: &[Server] = &[Server::Inside, Server::Shm, Server::Tcp];

fn data(mounts: &Mounts, len: u64, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let mut sides = beside_null(mounts, Cache::None, |dir| BigFile::new(dir, len))?;
    for (what, writing) in [("4 KiB random read", false), ("4 KiB random write", true)] {
        let samples = each_in_turn(rounds, &mut sides, |(_, file)| match writing {
            true => Ok([file.write_random_pages(ops, false)?]),
            false => Ok([file.read_random_pages(ops)?]),
        })?;
        let samples: Vec<_> = samples.iter().map(|[ns]| ns.as_rates()).collect();
        rows(found, what, Unit::PerS, &sides, &samples, (AtLeast(0.85), INSIDE));
    }
    for (what, writing, jobs) in [
        ("1 MiB reads, 1 job", false, 1),
        ("1 MiB reads, 4 jobs", false, 4),
        ("1 MiB writes, 1 job", true, 1),
        ("1 MiB writes, 4 jobs", true, 4),
    ] {
        let samples = each_in_turn(rounds, &mut sides, |(_, file)| Ok([file.in_parts(writing, jobs)?]))?;
        let samples = samples.iter().flatten();
        rows(found, what, Unit::GbPerS, &sides, samples, (AtLeast(0.9), INSIDE));
    }
    Ok(())
}

/// What it takes to make a write durable, which every write is when it returns.
fn durable(mounts: &Mounts, len: u64, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let mut sides = sides(mounts.ours(Cache::Strict), |dir| BigFile::new(dir, len))?;
    let samples = each_in_turn(rounds, &mut sides, |(_, file)| {
        Ok([
            file.write_random_pages(ops, false)?,
            file.write_random_pages(ops, true)?,
        ])
    })?;
    for ((side, _), [alone, durable]) in sides.iter().zip(&samples) {
        let base = format!("{side} 4 KiB write alone");
        found.figure(&base, Unit::Ns, alone);
        let target = (*side == Server::Inside.name()).then_some(AtMost(1.1));
        let name = format!("{side} 4 KiB write and fdatasync");
        found.against(&name, Unit::Ns, durable, &base, target);
    }
    Ok(())
}

fn names(mounts: &Mounts, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let target = (AtLeast(0.8), INSIDE);
    let mut sides = beside_null(mounts, Cache::Strict, |dir| Ok((dir.to_owned(), FilesInUse::new(dir)?)))?;
    let samples = each_in_turn(rounds, &mut sides, |(_, (dir, in_use))| {
        let [create, _, unlink] = files::names(dir, ops)?;
        Ok([create, unlink, 1e9 / in_use.open_and_close(ops)?])
    })?;
    for (which, what) in ["create and close", "unlink", "open and close of an open file"]
        .iter()
        .enumerate()
    {
        let samples = samples.iter().map(|samples| &samples[which]);
        rows(found, what, Unit::PerS, &sides, samples, target);
    }
    Ok(())
}

/// What needs no request.
fn kept(mounts: &Mounts, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    // a look takes a microsecond: names are over a few times meanwhile
    let (rounds, ops) = (context.effort.rounds, context.effort.ops * 5);
    let tmpfs = ("tmpfs", mounts.tmpfs());
    let mut sides = sides([tmpfs].into_iter().chain(mounts.ours(Cache::Strict)), FilesInUse::new)?;
    let samples = each_in_turn(rounds, &mut sides, |(_, files)| {
        Ok([files.stat(ops)?, files.read_pages(ops)?].map(|ns| 1e9 / ns))
    })?;
    for (which, (what, target)) in [
        ("stat of files in use", AtLeast(0.8)),
        ("4 KiB read of a file open for reading", AtLeast(0.85)),
    ]
    .into_iter()
    .enumerate()
    {
        let samples = samples.iter().map(|samples| &samples[which]);
        rows(found, what, Unit::PerS, &sides, samples, (target, ALL));
    }
    Ok(())
}

/// How often each thing is done while requests are counted, and how often what should take none.
const COUNTED: usize = 200;
const LOOKS: usize = 20_000;

/// Requests for one thing, where everything that can be is known.
fn upcalls(mounts: &Mounts, found: &mut Findings<'_>) -> Result<(), BenchError> {
    for server in [Server::Null, Server::Inside] {
        let (root, dir) = (mounts.root(server, Cache::Strict), mounts.own(server, Cache::Strict));
        let in_use = FilesInUse::new(&dir)?;
        let new: Vec<_> = (0..COUNTED).map(|n| dir.join(format!("new{n}"))).collect();
        in_use.stat(COUNTED)?;
        let mut used = in_use.paths().iter().cycle();
        let stat = counted(&root, used.by_ref().take(LOOKS), |path| {
            path.symlink_metadata().map(drop)
        })?;
        let open = counted(&root, used.take(COUNTED), |path| File::open(path).map(drop))?;
        let create = counted(&root, new.iter(), |path| File::create_new(path).map(drop))?;
        new.iter().try_for_each(|path| path.symlink_metadata().map(drop))?;
        let unlink = counted(&root, new.iter(), |path| std::fs::remove_file(path))?;
        for (what, counted, bound) in [
            ("a stat in use", stat, 0.0),
            ("open+close", open, 3.0),
            ("create+close", create, 5.0),
            ("unlink", unlink, 2.0),
        ] {
            let name = format!("{} requests for {what}", server.name());
            let total = Samples::exact(counted.values().sum());
            // the kernel may ask more often now and then
            let bound = AtMost(bound * 1.05 + 0.05);
            match server {
                Server::Null => found.figure(&name, Unit::Requests, &total),
                _ => found.bounded(&name, Unit::Requests, &total, bound),
            };
            let each = counted.iter().filter(|(_, count)| **count >= 0.05);
            let each: Vec<_> = each.map(|(name, count)| format!("{name} {count:.1}")).collect();
            if !each.is_empty() {
                found.note(format!("{name}: {}", each.join(", ")));
            }
        }
    }
    Ok(())
}

/// Requests of the kernel, by name, for each time that something is done.
fn counted<'a>(
    root: &Path,
    mut paths: impl Iterator<Item = &'a PathBuf>,
    done: impl Fn(&Path) -> std::io::Result<()>,
) -> Result<BTreeMap<String, f64>, BenchError> {
    let counts = || Ok::<_, BenchError>(Counters::of(root)?.upcalls);
    let (first, before) = (counts()?, counts()?);
    let mut times = 0.0;
    paths.try_for_each(|path| {
        times += 1.0;
        done(path)
    })?;
    let after = counts()?;
    let each = after
        .into_iter()
        .filter(|(name, _)| !name.contains("FORGET"))
        .map(|(name, after)| {
            let of = |counts: &BTreeMap<String, u64>| counts.get(&name).copied().unwrap_or(0);
            let own = of(&before) - of(&first);
            let each = (after - of(&before)).saturating_sub(own) as f64 / times;
            (name, each)
        });
    Ok(each.collect())
}
