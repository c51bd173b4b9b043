//! The files of a detached mount: `PLACE.STARTER.pid` (process, and mount point on the second line) and `PLACE.STARTER.log`.
//!
//! A process of a mount ends later than its mount, and the next one at the same place may have begun by then. So names are
//! never used twice: PLACE is the mount point, STARTER the number and start time of the process that ran `polvo mount`. Whoever
//! made a file removes it; what a killed process has left, the next mount at its place clears away.

use crate::connect::Reach;
use crate::process::ProcessId;
use crate::{CliError, Context};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// In a cluster's directory: where its mounts keep their files.
pub const MOUNTS_DIR: &str = "mounts";
/// Most bytes of a mount point in a file name, which has 255 with the rest of it.
const PLACE_BYTES: usize = 180;

/// Where a mount keeps its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountFiles {
    home: PathBuf,
    place: OsString,
    /// Process that ran `polvo mount`.
    starter: String,
}

/// A mount that has said who serves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisteredMount {
    /// Its process, which may have ended since.
    pub process: ProcessId,
    /// Mount point, without symbolic links.
    pub dir: PathBuf,
    file: PathBuf,
}

impl MountFiles {
    /// The files of a mount at `dir` that this process starts; makes the directory for them.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn of_this_process(reach: &Reach, dir: &Path) -> Result<MountFiles, CliError> {
        let home = match &reach.dir {
            Some(cluster) if cluster.is_writable() => {
                std::path::absolute(cluster.dir.join(MOUNTS_DIR)).doing(|| cluster.dir.display().to_string())?
            }
            _ => run_dir(),
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&home)
            .doing(|| format!("making directory {}", home.display()))?;
        let own = ProcessId::own();
        Ok(MountFiles {
            home,
            place: place(dir),
            starter: format!("{}-{}", own.pid, own.started),
        })
    }

    /// Those that another process has named by [`MountFiles::name`]; `None` when this is no such name.
    pub fn named(name: &Path) -> Option<MountFiles> {
        Some(MountFiles {
            home: name.parent()?.into(),
            place: name.file_stem()?.into(),
            starter: name.extension()?.to_str()?.into(),
        })
    }

    /// The name that all of them begin with.
    pub fn name(&self) -> PathBuf {
        self.with_ending("")
    }

    /// The log.
    pub fn log(&self) -> PathBuf {
        self.with_ending(".log")
    }

    fn with_ending(&self, ending: &str) -> PathBuf {
        let mut name = self.place.clone();
        name.push(format!(".{}{ending}", self.starter));
        self.home.join(name)
    }

    /// Says that this process serves the mount at `dir` (without symbolic links), until what is returned is dropped, which
    /// removes the log as well. Clears away what killed processes have left of mounts there; the log of the last of them
    /// stays as `PLACE.killed.log`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn register(self, dir: &Path) -> Result<Registration, CliError> {
        debug_assert!(dir.is_absolute(), "{} is where the mount is", dir.display());
        let own = ProcessId::own();
        let text = [
            format!("{} {}\n", own.pid, own.started).as_bytes(),
            dir.as_os_str().as_bytes(),
            b"\n",
        ]
        .concat();
        // Readers see the whole of it or nothing.
        let (unfinished, file) = (self.with_ending(".new"), self.with_ending(".pid"));
        let registration = Registration(self);
        std::fs::write(&unfinished, text)
            .and_then(|()| std::fs::rename(&unfinished, &file))
            .doing(|| format!("writing {}", file.display()))?;
        registration.0.clear_killed(dir);
        Ok(registration)
    }

    /// Removes all of them.
    pub fn remove(&self) {
        for ending in [".new", ".pid", ".log"] {
            let _ = std::fs::remove_file(self.with_ending(ending));
        }
    }

    fn clear_killed(&self, dir: &Path) {
        let mut killed_log = self.place.clone();
        killed_log.push(".killed.log");
        for mount in registered_in(&self.home) {
            if mount.dir == dir && mount.process.open().is_none() {
                let _ = std::fs::rename(mount.file.with_extension("log"), self.home.join(&killed_log));
                let _ = std::fs::remove_file(&mount.file);
            }
        }
    }
}

/// Keeps a mount registered.
#[derive(Debug)]
#[must_use]
pub struct Registration(MountFiles);

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// The mounts that keep their files in `home`. Where one process has not ended yet and the next has begun, both.
pub fn registered_in(home: &Path) -> Vec<RegisteredMount> {
    let Ok(listed) = std::fs::read_dir(home) else {
        return Vec::new();
    };
    let files = listed
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension() == Some(OsStr::new("pid")));
    let parse = |file: PathBuf| {
        let text = std::fs::read(&file).ok()?;
        let dir = text.split(|b| *b == b'\n').nth(1)?;
        Some(RegisteredMount {
            process: ProcessId::read(&file)?,
            dir: PathBuf::from(OsStr::from_bytes(dir)),
            file,
        })
    };
    files.filter_map(parse).collect()
}

/// A mount point as a part of a file name, as systemd does it; the end of a long one.
fn place(dir: &Path) -> OsString {
    let name: Vec<u8> = dir
        .as_os_str()
        .as_bytes()
        .iter()
        .map(|b| if *b == b'/' { b'-' } else { *b })
        .collect();
    let name = match name.strip_prefix(b"-") {
        Some(rest) if !rest.is_empty() => rest,
        _ => &name[..],
    };
    let end = &name[name.len().saturating_sub(PLACE_BYTES)..];
    assert!(!end.is_empty() && !end.contains(&b'/'), "{end:?} names a file");
    OsStr::from_bytes(end).to_os_string()
}

/// A directory for files that live as long as a process.
fn run_dir() -> PathBuf {
    let uid = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if uid.is_root() => "/run/polvo".into(),
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("polvo"),
        _ => std::env::temp_dir().join(format!("polvo-{}", uid.as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(home: &Path, starter: &str) -> MountFiles {
        MountFiles {
            home: home.into(),
            place: place(Path::new("/mnt/a.b")),
            starter: starter.into(),
        }
    }

    fn names(home: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(home)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_mount_that_ends_leaves_the_files_of_the_next_one() {
        let home = tempfile::tempdir().unwrap();
        let dir = Path::new("/mnt/a.b");
        let (before, after) = (files(home.path(), "1-10"), files(home.path(), "2-20"));
        let ending = before.clone().register(dir).unwrap();
        std::fs::write(after.log(), "").unwrap();
        let next = after.clone().register(dir).unwrap();
        assert_eq!(registered_in(home.path()).len(), 2);
        drop(ending);
        assert_eq!(names(home.path()), ["mnt-a.b.2-20.log", "mnt-a.b.2-20.pid"]);
        let [only] = <[RegisteredMount; 1]>::try_from(registered_in(home.path())).unwrap();
        assert_eq!((only.process, only.dir.as_path()), (ProcessId::own(), dir));
        drop(next);
        assert!(names(home.path()).is_empty());
    }

    #[test]
    fn what_a_killed_process_has_left_is_cleared_away() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
        write("mnt-a.b.1-1.pid", "1 18446744073709551615\n/mnt/a.b\n");
        write("mnt-a.b.1-1.log", "why");
        write("mnt-other.1-1.pid", "1 18446744073709551615\n/mnt/other\n");
        let registration = files(home.path(), "2-20").register(Path::new("/mnt/a.b")).unwrap();
        assert_eq!(
            names(home.path()),
            ["mnt-a.b.2-20.pid", "mnt-a.b.killed.log", "mnt-other.1-1.pid"]
        );
        assert_eq!(
            std::fs::read_to_string(home.path().join("mnt-a.b.killed.log")).unwrap(),
            "why"
        );
        drop(registration);
    }

    #[test]
    fn another_process_finds_them_by_their_name() {
        let ours = files(Path::new("/run/polvo"), "7-8");
        assert_eq!(MountFiles::named(&ours.name()), Some(ours.clone()));
        assert_eq!(ours.log(), Path::new("/run/polvo/mnt-a.b.7-8.log"));
        assert_eq!(MountFiles::named(Path::new("/run")), None);
    }

    #[test]
    fn every_mount_point_fits_into_a_name() {
        assert_eq!(
            (place(Path::new("/mnt/a")), place(Path::new("/"))),
            ("mnt-a".into(), "-".into())
        );
        let long = PathBuf::from(format!("/{}/end", "x".repeat(400)));
        let name = place(&long);
        assert!(name.len() == PLACE_BYTES && name.as_bytes().ends_with(b"x-end"));
    }
}
