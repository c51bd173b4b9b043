//! Any mounted file system, by the same program.

use super::system_calls;
use crate::BenchError;
use crate::report::Findings;
use crate::suite::{Context, Experiment};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "compare",
    title: "A mounted file system",
    about: "System calls on files and names below a directory, beside the same calls on tmpfs, in turn: 4 KiB reads and writes \
            of random pages, with and without fdatasync, 1 MiB reads and writes from one end to the other, and the creation, \
            the attributes and the removal of empty files. Reads of a file system that keeps pages in the kernel come from \
            there.",
    run,
};

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let dir = context.compared.ok_or("there is no directory to measure")?;
    found.note(format!("Measured: {}", dir.display()));
    system_calls::measure("files", dir, |_| None, context, found)
}
