//! The machine itself: every baseline, in one table.

use crate::BenchError;
use crate::baseline::memory::{DurableMemory, Memory};
use crate::baseline::socket::Waits;
use crate::baseline::{files, ping_pong, socket};
use crate::report::{Findings, Unit};
use crate::samples::repeated;
use crate::suite::{Context, Experiment};
use polvo_pmem::Persistence;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "baselines",
    title: "What the machine gives",
    about: "Memory copies from and to pages that are in no cache, non-temporal copies that are made durable, the write-back \
            of a cache line (store, clwb or what there is, sfence), two threads that spin on shared memory, raw TCP sockets \
            on the loopback, and system calls. Nothing here is PolvoFS. The other experiments measure what they are compared \
            with once more, in turn with their own figures.",
    run,
};

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let effort = context.effort;
    let (n, ops, len) = (effort.rounds, effort.ops, effort.file_len);
    let mut timed = |name: &str, unit: Unit, measure: &mut dyn FnMut() -> Result<f64, BenchError>| {
        let samples = repeated(n, measure)?;
        found.figure(name, unit, &samples);
        Ok::<_, BenchError>(())
    };
    {
        let memory = Memory::new(len);
        timed("memcpy of random 4 KiB pages", Unit::Ns, &mut || {
            Ok(memory.copy_from_random_pages(ops))
        })?;
        timed("memcpy in 1 MiB pieces", Unit::GbPerS, &mut || {
            Ok(memory.copy_from_sequentially())
        })?;
        let durable = DurableMemory::new(context.scratch, len, Some(Persistence::best()))?;
        timed("durable copy to random 4 KiB pages", Unit::Ns, &mut || {
            Ok(durable.copy_to_random_pages(ops))
        })?;
        timed("durable copy in 1 MiB pieces", Unit::GbPerS, &mut || {
            Ok(durable.copy_to_sequentially())
        })?;
        timed("8-byte store, line written back, fence", Unit::Ns, &mut || {
            Ok(durable.flush_lines(ops))
        })?;
    }
    for (name, bytes) in [("64 B", 64), ("4 KiB", 4096)] {
        timed(&format!("shared-memory ping-pong {name}"), Unit::Ns, &mut || {
            ping_pong::shared_memory(bytes, ops)
        })?;
    }
    for waits in [Waits::BothSpin, Waits::ClientSpins, Waits::Blocking] {
        for (name, answer) in [("64 B", 64), ("64 B / 4 KiB", 4096)] {
            timed(&format!("socket ping-pong {name}, {waits}"), Unit::Ns, &mut || {
                socket::round_trip(64, answer, waits, ops)
            })?;
        }
    }
    for (name, reading) in [("writes", false), ("reads", true)] {
        timed(&format!("socket stream, 1 MiB {name}"), Unit::GbPerS, &mut || {
            socket::stream(len, len, reading)
        })?;
    }
    timed("system call", Unit::Ns, &mut || Ok(files::system_call(ops)))?;
    let file = files::BigFile::new(context.scratch, len)?;
    timed("tmpfs pread of random 4 KiB", Unit::Ns, &mut || {
        file.read_random_pages(ops)
    })?;
    timed("tmpfs pwrite of random 4 KiB", Unit::Ns, &mut || {
        file.write_random_pages(ops, false)
    })?;
    drop(file);
    let mut names = Vec::new();
    for _ in 0..n {
        names.push(files::names(context.scratch, ops)?);
    }
    for (which, what) in files::NAME_OPERATIONS.into_iter().enumerate() {
        let mut rounds = names.iter().map(|round| round[which]);
        timed(&format!("tmpfs {what}"), Unit::PerS, &mut || {
            Ok(rounds.next().expect("a figure a round"))
        })?;
    }
    Ok(())
}
