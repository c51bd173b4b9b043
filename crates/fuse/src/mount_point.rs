//! The directory to mount at: what must be true of it before, and taking a mount away from it.

use crate::MountError;
use crate::mount_table::mounted_at;
use crate::options::FSTYPE;
use polvo_fusedev::find_helper;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks that a file system can be mounted at a directory, and resolves its path. A mount of ours whose process has died
/// is taken away.
///
/// # Errors
/// One variant a reason; see [`MountError`].
pub(crate) fn check(path: &Path) -> Result<PathBuf, MountError> {
    check_device(Path::new("/dev/fuse"))?;
    if !rustix::process::geteuid().is_root() && find_helper().is_none() {
        return Err(MountError::NoHelper);
    }
    let path = resolve(path)?;
    if let Some(entry) = table_entry(&path)?.filter(|entry| entry.fstype.starts_with("fuse")) {
        if entry.fstype == FSTYPE && is_dead(&path) {
            tracing::warn!(path = %path.display(), "the process that served this mount has died; taking the mount away");
            detach(&path, Detach::Lazily)?;
        } else {
            return Err(MountError::AlreadyMounted {
                path,
                source_name: entry.source,
            });
        }
    }
    let system = |what| {
        move |path: &Path, source| MountError::System {
            what,
            path: path.to_owned(),
            source,
        }
    };
    let metadata = fs::metadata(&path).map_err(|e| system("cannot examine")(&path, e))?;
    if !metadata.is_dir() {
        return Err(MountError::NotDirectory(path));
    }
    let mut entries = fs::read_dir(&path).map_err(|e| system("cannot list")(&path, e))?;
    if entries.next().is_some() {
        return Err(MountError::NotEmpty(path));
    }
    Ok(path)
}

/// Takes a PolvoFS mount away, whichever process serves it; that process's session ends. With `force`, programs
/// that still use it get errors from then on.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::Busy`] (without `force`), or what the system says.
pub fn unmount(path: &Path, force: bool) -> Result<(), MountError> {
    let path = resolve(path)?;
    match table_entry(&path)? {
        Some(entry) if entry.fstype == FSTYPE => {
            if force {
                return detach(&path, Detach::Forcibly);
            }
            match detach(&path, Detach::WhenUnused) {
                Err(MountError::Busy(_)) if is_dead(&path) => detach(&path, Detach::Forcibly),
                result => result,
            }
        }
        _ => Err(MountError::NotMounted(path)),
    }
}

/// How a mount goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detach {
    /// Only while nobody uses it.
    WhenUnused,
    /// Out of sight now, ended when nobody uses it any more.
    Lazily,
    /// Out of sight and ended now; requests under way and later ones fail.
    Forcibly,
}

/// Takes the topmost mount at a resolved path away.
pub(crate) fn detach(path: &Path, how: Detach) -> Result<(), MountError> {
    let flags = match how {
        Detach::WhenUnused => UnmountFlags::empty(),
        Detach::Lazily => UnmountFlags::DETACH,
        Detach::Forcibly => UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => detach_by_helper(path, how),
        Err(Errno::BUSY) => Err(MountError::Busy(path.to_owned())),
        Err(Errno::INVAL) => Err(MountError::NotMounted(path.to_owned())),
        Err(error) => Err(MountError::System {
            what: "cannot unmount",
            path: path.to_owned(),
            source: error.into(),
        }),
    }
}

/// The same for users, who may unmount only through the helper. It cannot force; it hides the mount instead.
fn detach_by_helper(path: &Path, how: Detach) -> Result<(), MountError> {
    let helper = find_helper().ok_or(MountError::NoHelper)?;
    let mut command = Command::new(helper);
    command.arg("-u");
    if how != Detach::WhenUnused {
        command.arg("-z");
    }
    let system = |source| MountError::System {
        what: "cannot unmount",
        path: path.to_owned(),
        source,
    };
    let output = command.arg("--").arg(path).output().map_err(system)?;
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if message.contains("busy") => Err(MountError::Busy(path.to_owned())),
        false => Err(system(io::Error::other(message.trim().to_owned()))),
    }
}

/// The FUSE device must be there; who is not root need not be able to open it (the helper does).
fn check_device(device: &Path) -> Result<(), MountError> {
    match fs::OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => Ok(()),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound) => Err(MountError::NoDevice),
        // No such device: the node is there, the module is not.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Err(MountError::NoDevice),
        Err(_) if !rustix::process::geteuid().is_root() => Ok(()),
        Err(_) => Err(MountError::DeviceDenied),
    }
}

/// Makes a path absolute and free of symbolic links, as the mount table has it. The last component is not looked at
/// itself: a dead mount there would be an error.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, MountError> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(e) if is_dead_error(&e) => {
            let absolute = std::path::absolute(path);
            let system = |source| MountError::System {
                what: "cannot resolve",
                path: path.to_owned(),
                source,
            };
            let absolute = absolute.map_err(system)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(system)?.join(name)),
                _ => Ok(absolute),
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(MountError::Missing(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Err(MountError::NotDirectory(path.to_owned())),
        Err(source) => Err(MountError::System {
            what: "cannot resolve",
            path: path.to_owned(),
            source,
        }),
    }
}

/// A FUSE mount whose process has died answers everything with these.
fn is_dead_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Asked by what does not depend on any one node: the root's attributes may have to be waited for.
fn is_dead(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_err_and(|e| is_dead_error(&e.into()))
}

pub(crate) fn table_entry(path: &Path) -> Result<Option<crate::mount_table::MountEntry>, MountError> {
    let system = |source| MountError::System {
        what: "cannot read the mount table for",
        path: path.to_owned(),
        source,
    };
    mounted_at(path).map_err(system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_mount_point_must_be_an_empty_directory() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let missing = dir.path().join("missing");
        assert!(matches!(resolve(&missing), Err(MountError::Missing(path)) if path == missing));
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("writable");
        assert!(matches!(resolve(&file.join("below")), Err(MountError::NotDirectory(_))));
        if !Path::new("/dev/fuse").exists() {
            return;
        }
        assert!(matches!(check(&file), Err(MountError::NotDirectory(_))));
        assert!(matches!(check(dir.path()), Err(MountError::NotEmpty(_))));
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).expect("writable");
        let link = dir.path().join("link");
        symlink(&empty, &link).expect("writable");
        let real = empty.canonicalize().expect("it exists");
        assert_eq!(check(&link).expect("empty"), real);
    }

    #[test]
    fn a_machine_without_fuse_says_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let error = check_device(&dir.path().join("fuse")).unwrap_err();
        assert!(matches!(error, MountError::NoDevice));
        assert!(error.to_string().contains("modprobe fuse"));
    }

    #[test]
    fn only_our_own_mounts_are_unmounted() {
        assert!(matches!(
            unmount(Path::new("/proc"), true),
            Err(MountError::NotMounted(_))
        ));
    }
}
