//! The operations on files that any file system has, below several directories in turn.

use crate::BenchError;
use crate::baseline::files::{self, BigFile, FilesInUse};
use crate::report::Unit;
use crate::samples::{Samples, each_in_turn};
use crate::suite::Context;
use std::path::PathBuf;

/// What was measured of an operation.
pub struct Measured {
    /// Which.
    pub operation: &'static str,
    /// Of the samples.
    pub unit: Unit,
    /// Of each directory.
    pub samples: Vec<Samples>,
}

/// Measures below each directory; files are of `file_len` bytes.
pub fn measure(dirs: &[PathBuf], file_len: u64, context: &Context<'_>) -> Result<Vec<Measured>, BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    let mut all = Vec::new();
    let mut measured = |operation, unit, samples| {
        all.push(Measured {
            operation,
            unit,
            samples,
        });
    };
    {
        let big = dirs.iter().map(|dir| BigFile::new(dir, file_len));
        let mut big = big.collect::<Result<Vec<_>, _>>()?;
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
            let samples = each_in_turn(rounds, &mut big, |file| Ok([measure(file, ops)?]))?;
            measured(name, unit, samples.into_iter().flatten().collect());
        }
    }
    let mut names = dirs.to_vec();
    let samples = each_in_turn(rounds, &mut names, |dir| files::names(dir, ops))?;
    for (which, name) in files::NAME_OPERATIONS.into_iter().enumerate() {
        measured(name, Unit::PerS, samples.iter().map(|of| of[which].clone()).collect());
    }
    let in_use = dirs.iter().map(|dir| FilesInUse::new(dir));
    let mut in_use = in_use.collect::<Result<Vec<_>, _>>()?;
    let samples = each_in_turn(rounds, &mut in_use, |files| Ok([1e9 / files.stat(ops)?]))?;
    measured("repeated stat", Unit::PerS, samples.into_iter().flatten().collect());
    Ok(all)
}
