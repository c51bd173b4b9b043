//! What a mount costs where the file system costs nothing: our way to the kernel, and the library it replaced.

use crate::BenchError;
use crate::null_mount::{Lasts, NullMount, Operation};
use crate::report::Target::AtLeast;
use crate::report::{Findings, Unit};
use crate::samples::in_turn;
use crate::suite::{Context, Experiment};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "null-mount",
    title: "A file system that does nothing",
    about: "One file that reads as zeros, mounted by way of `fusedev` and by way of fuser with 4 threads (the library that was used \
            before). Nothing may be kept by the kernel, so a stat is three requests (the root, the name, the file), open and close \
            are five or more. The jobs are threads, not bound to any CPU.",
    run,
};

/// Threads of the library: what a mount had on a small machine.
const FUSER_THREADS: usize = 4;

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    if !std::path::Path::new("/dev/fuse").exists() {
        found.note("Left out: there is no /dev/fuse.");
        return Ok(());
    }
    let peer = NullMount::on_fuser(&context.scratch.join("null-fuser"), FUSER_THREADS)?;
    let ours = NullMount::on_fusedev(&context.scratch.join("null-fusedev"), Lasts::NOT)?;
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    for (name, operation) in [
        ("4 KiB read", Operation::Read),
        ("4 KiB write", Operation::Write),
        ("stat", Operation::Stat),
        ("open and close", Operation::OpenClose),
    ] {
        for jobs in [1, 4] {
            let measured = in_turn(
                rounds,
                [&mut || peer.measure(operation, jobs, ops), &mut || {
                    ours.measure(operation, jobs, ops)
                }],
            );
            let [theirs, own] = measured?;
            let what = format!("{name}, {jobs} job{}", if jobs == 1 { "" } else { "s" });
            let base = format!("fuser {what}");
            found.figure(&base, Unit::PerS, &theirs);
            let target = matches!((operation, jobs), (Operation::Read, 1)).then_some(AtLeast(1.5));
            found.against(&format!("null mount {what}"), Unit::PerS, &own, &base, target);
        }
    }
    Ok(())
}
