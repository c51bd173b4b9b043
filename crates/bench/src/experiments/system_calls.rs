//! The operations on files that any mounted file system has, beside those of tmpfs, in turn.

use crate::BenchError;
use crate::baseline::files::{self, BigFile};
use crate::report::{Findings, Unit};
use crate::samples::{Samples, in_turn};
use crate::suite::Context;
use std::path::Path;

/// Measures below `dir`; rows are called `what ...`. `library` says which figure of the library's a row is beside too, for
/// what has one.
pub fn measure(
    what: &str,
    dir: &Path,
    library: impl Fn(&str) -> Option<&'static str>,
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let effort = context.effort;
    let (n, ops) = (effort.rounds, effort.ops);
    let mut row = |operation: &str, unit: Unit, base: &Samples, value: &Samples| {
        let (name, tmpfs) = (format!("{what} {operation}"), format!("tmpfs {operation}"));
        found.figure(&tmpfs, unit, base);
        found.against(&name, unit, value, &tmpfs, None);
        if let Some(library) = library(operation) {
            found.against(&name, unit, value, library, None);
        }
    };
    {
        let (base, ours) = (
            BigFile::new(context.scratch, effort.file_len)?,
            BigFile::new(dir, effort.file_len)?,
        );
        type Measure = fn(&BigFile, usize) -> Result<f64, BenchError>;
        let operations: [(&str, Unit, Measure); 5] = [
            ("4 KiB random read", Unit::Ns, |file, ops| file.read_random_pages(ops)),
            ("4 KiB random write", Unit::Ns, |file, ops| {
                file.write_random_pages(ops, false)
            }),
            ("4 KiB random write and fdatasync", Unit::Ns, |file, ops| {
                file.write_random_pages(ops, true)
            }),
            ("1 MiB reads", Unit::GbPerS, |file, _| file.read_sequentially()),
            ("1 MiB writes and fdatasync", Unit::GbPerS, |file, _| {
                file.write_sequentially()
            }),
        ];
        for (name, unit, measure) in operations {
            let [base, value] = in_turn(n, [&mut || measure(&base, ops), &mut || measure(&ours, ops)])?;
            row(name, unit, &base, &value);
        }
    }
    let (mut base, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..n {
        base.push(files::names(context.scratch, ops)?);
        ours.push(files::names(dir, ops)?);
    }
    for (which, name) in files::NAME_OPERATIONS.into_iter().enumerate() {
        let of = |rounds: &[[f64; 3]]| Samples::new(rounds.iter().map(|round| round[which]).collect());
        row(name, Unit::PerS, &of(&base), &of(&ours));
    }
    Ok(())
}
