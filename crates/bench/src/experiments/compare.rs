//! Any mounted file system, and our mounts, by the same program.

use super::system_calls::{self, Measured};
use crate::BenchError;
use crate::mounted::{Cache, Mounts, Server};
use crate::report::Target::AtLeast;
use crate::report::{Findings, Target, Unit};
use crate::suite::{Context, Experiment};
use std::path::{Path, PathBuf};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "compare",
    title: "Other file systems",
    about: "System calls on files and names below a directory of another file system, beside the same calls on tmpfs and on our mounts \
            as they are by default (colocated with the node whose pool has everything, over shm and over tcp), in turn: 4 KiB reads \
            and writes of random pages, with and without fdatasync, 1 MiB reads and writes from one end to the other, the creation, the \
            attributes and the removal of empty files, and the attributes of 16 files again and again. Reads of a file system that \
            keeps pages in the kernel come from there. Where there are several directories, ours is set beside each.",
    run,
};

/// Most bytes of a file.
const LEN: u64 = 256 << 20;
/// How the system calls it that the targets are about.
const GLUSTERFS: &str = "fuse.glusterfs";

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let peers = context.compared;
    if peers.is_empty() {
        return Err("there is no directory to measure".into());
    }
    let len = context.effort.file_len.min(LEN);
    let mut sides = vec![("tmpfs".to_owned(), context.scratch.to_owned())];
    let mut made = Vec::new();
    for (number, dir) in peers.iter().enumerate() {
        let (kind, name) = (
            kind_of(dir)?,
            dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy(),
        );
        found.note(format!("{name}: {kind} at {}", dir.display()));
        made.push(Made::new(
            dir.join(format!("polvo-bench-{}-{number}", std::process::id())),
        )?);
        sides.push((name.into_owned(), made[number].0.clone()));
    }
    let mounts = match Path::new("/dev/fuse").exists() {
        true => Some(Mounts::start(context.scratch, 2 * len)?),
        false => None,
    };
    let ours = mounts.iter().flat_map(|mounts| mounts.ours(Cache::Strict));
    sides.extend(ours.map(|(name, dir)| (name.to_owned(), dir)));
    let dirs: Vec<PathBuf> = sides.iter().map(|(_, dir)| dir.clone()).collect();
    let is_judged = kind_of(&peers[0])? == GLUSTERFS;
    for measured in system_calls::measure(&dirs, len, context)? {
        rows(&measured, &sides, peers.len(), is_judged, found);
    }
    Ok(())
}

fn rows(measured: &Measured, sides: &[(String, PathBuf)], peers: usize, is_judged: bool, found: &mut Findings<'_>) {
    let operation = measured.operation;
    let row = |side: usize| format!("{} {operation}", sides[side].0);
    for (side, samples) in measured.samples.iter().enumerate() {
        let (unit, samples) = match measured.unit {
            Unit::Ns => (Unit::PerS, samples.as_rates()),
            unit => (unit, samples.clone()),
        };
        match side {
            0 => drop(found.figure(&row(0), unit, &samples)),
            _ if side <= peers => drop(found.against(&row(side), unit, &samples, &row(0), None)),
            _ => {
                for peer in 1..=peers {
                    let target = is_judged.then(|| target(operation, &sides[side].0, peer)).flatten();
                    found.against(&row(side), unit, &samples, &row(peer), target);
                }
            }
        }
    }
}

/// What a mount of ours has to reach beside GlusterFS: the first as it comes; if there is a second, its kernel keeps nothing that may
/// have changed, as ours does. The first reads and looks again at what its own kernel has, which may be old.
fn target(operation: &str, ours: &str, peer: usize) -> Option<Target> {
    let over_tcp = ours == Server::Tcp.name();
    let (factor, factor_over_tcp) = match (operation, peer) {
        ("stat", 1) | ("repeated stat", 2) => (50.0, 50.0),
        ("create", 1) => (10.0, 3.0),
        ("unlink", 1) => (5.0, 2.0),
        ("4 KiB random read", 2) | ("4 KiB random write and fdatasync", 1) => (10.0, 3.0),
        ("1 MiB reads", 2) | ("1 MiB writes and fdatasync", 1) => (4.0, 2.0),
        _ => return None,
    };
    Some(AtLeast(if over_tcp { factor_over_tcp } else { factor }))
}

/// A directory that is removed at the end.
struct Made(PathBuf);

impl Made {
    fn new(dir: PathBuf) -> Result<Made, BenchError> {
        std::fs::create_dir(&dir)?;
        Ok(Made(dir))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The type of the file system at a directory, as in `/proc/mounts`.
fn kind_of(dir: &Path) -> Result<String, BenchError> {
    let dir = dir.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let above = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        dir.starts_with(point).then_some((point.len(), kind))
    });
    let (_, kind) = above.max_by_key(|(len, _)| *len).ok_or("it is not mounted")?;
    Ok(kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_at_a_directory() {
        assert_eq!(kind_of(Path::new("/proc/self")).unwrap(), "proc");
        assert!(kind_of(Path::new("/is/not/there")).is_err());
    }
}
