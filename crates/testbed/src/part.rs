//! Parts of measurements that need a process of their own: to be killed, or to have a memory of their own.

use crate::Failure;
use std::path::Path;
use std::process::Command;

/// This program, told to do the part `what` with those numbers in the directory `scratch`: its command line has `--scratch` and
/// `--part` for it.
pub fn command(scratch: &Path, what: &str, values: &[usize]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--scratch").arg(scratch).args(["--part", what]);
    command.args(values.iter().map(usize::to_string));
    Ok(command)
}

/// One of the numbers given to a part.
pub fn number(values: &[String], which: usize) -> Result<usize, Failure> {
    let value = values.get(which).ok_or("a part of the program lacks a number")?;
    Ok(value.parse()?)
}

/// Memory of this process that is its own (not the mapped pool), bytes.
pub fn resident_bytes() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .ok_or("no RssAnon in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kib << 10)
}
