//! The file system that does nothing: files read as zeros and take what is written. What a mount costs where the file system costs
//! nothing, by our own way to the kernel and by the library that it replaced (which has one file).

mod on_fusedev;
mod on_fuser;

pub use on_fusedev::Lasts;

use crate::BenchError;
use crate::samples::{ns_per_op, rate};
use rustix::mount::{UnmountFlags, unmount};
use std::any::Any;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Files' size, bytes.
const SIZE: u64 = 1 << 30;
/// The inode of the file that is there from the beginning.
const FILE: u64 = 2;
/// What is read.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// One such file system, mounted. Unmounted when it is dropped.
pub struct NullMount {
    dir: PathBuf,
    /// Serves it, until it is dropped.
    _session: Box<dyn Any>,
}

impl NullMount {
    /// On `fusedev`, at a new directory.
    pub fn on_fusedev(dir: &Path, lasts: Lasts) -> Result<NullMount, BenchError> {
        std::fs::create_dir(dir)?;
        Ok(NullMount {
            dir: dir.to_owned(),
            _session: Box::new(on_fusedev::mount(dir, lasts)?),
        })
    }

    /// On fuser with so many threads, at a new directory.
    pub fn on_fuser(dir: &Path, threads: usize) -> Result<NullMount, BenchError> {
        std::fs::create_dir(dir)?;
        Ok(NullMount {
            dir: dir.to_owned(),
            _session: Box::new(on_fuser::mount(dir, threads)?),
        })
    }

    /// How often a second `jobs` threads do something with the file.
    pub fn measure(&self, operation: Operation, jobs: usize, ops: usize) -> Result<f64, BenchError> {
        let path = self.dir.join("file");
        let job = || -> std::io::Result<usize> {
            let file = File::options().read(true).write(true).open(&path)?;
            let mut page = [0; 4096];
            let mut done = 0;
            ns_per_op(ops, |n| {
                done = n + 1;
                let at = (n as u64 * 4096) % SIZE;
                match operation {
                    Operation::Read => file.read_exact_at(&mut page, at),
                    Operation::Write => file.write_all_at(&page, at),
                    Operation::Stat => std::fs::symlink_metadata(&path).map(drop),
                    Operation::OpenClose => File::open(&path).map(drop),
                }
            })?;
            Ok(done)
        };
        let start = Instant::now();
        let done = std::thread::scope(|scope| {
            let running: Vec<_> = (0..jobs).map(|_| scope.spawn(job)).collect();
            let done = running.into_iter().map(|job| job.join().expect("a job does not panic"));
            done.sum::<std::io::Result<usize>>()
        })?;
        Ok(rate(start.elapsed(), done))
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        let unmounted = unmount(&self.dir, UnmountFlags::DETACH);
        debug_assert!(unmounted.is_ok(), "{unmounted:?}");
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// What is done with the file.
#[derive(Clone, Copy)]
pub enum Operation {
    /// Reads 4 KiB.
    Read,
    /// Writes 4 KiB.
    Write,
    /// Asks for its attributes.
    Stat,
    /// Opens and closes it.
    OpenClose,
}
