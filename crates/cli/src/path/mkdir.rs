//! `polvo mkdir`

use super::{inode_of, shown};
use crate::args::MkdirArgs;
use crate::connect::{Location, with_client};
use crate::{CliError, Context};
use polvo_client::LocalClient;
use polvo_format::FileKind;
use polvo_proto::{FsError, InodeRef, NewFile};

/// Runs the command.
pub fn mkdir(args: &MkdirArgs) -> Result<(), CliError> {
    let places = Location::parse_all(&args.paths)?;
    let mode = 0o777 & !umask();
    with_client(
        &args.cluster,
        places[0].authority.clone(),
        "mkdir",
        |_, client| async move {
            for place in &places {
                if args.parents {
                    with_parents(&client, &place.path, mode).await?;
                } else {
                    let what = || format!("making directory {}", place.shown());
                    let (dir, name) = client.walk_parent(&place.path).await.doing(what)?;
                    client.create(dir, name, new_directory(mode)).await.doing(what)?;
                }
            }
            Ok(())
        },
    )
}

/// The process's file mode creation mask.
pub(super) fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(old);
    old.bits()
}

/// A directory of the caller's.
pub(super) fn new_directory(mode: u32) -> NewFile {
    NewFile {
        kind: FileKind::Directory,
        ..new_file(mode)
    }
}

/// A file of the caller's.
pub(super) fn new_file(mode: u32) -> NewFile {
    NewFile {
        kind: FileKind::File,
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

/// Makes a directory and what is missing above it.
async fn with_parents(client: &LocalClient, path: &[u8], mode: u32) -> Result<(), CliError> {
    let what = |at: usize| format!("making directory {}", shown(&path[..at]));
    for (at, _) in path
        .iter()
        .enumerate()
        .filter(|(at, b)| *at > 0 && **b == b'/')
        .chain([(path.len(), &b'/')])
    {
        let so_far = &path[..at];
        if so_far.ends_with(b"/") {
            continue;
        }
        match client.walk(so_far, true).await {
            Ok(attr) if attr.kind == FileKind::Directory => continue,
            Ok(_) => return Err(FsError::NotDirectory).doing(|| what(at)),
            Err(FsError::NotFound) => {}
            Err(e) => return Err(e).doing(|| what(at)),
        }
        let (dir, name) = client.walk_parent(so_far).await.doing(|| what(at))?;
        make_or_find(client, dir, name, mode).await.doing(|| what(at))?;
    }
    Ok(())
}

/// Makes a directory, or finds the one that somebody else has made.
pub(super) async fn make_or_find(
    client: &LocalClient,
    dir: InodeRef,
    name: &[u8],
    mode: u32,
) -> Result<InodeRef, FsError> {
    match client.create(dir, name, new_directory(mode)).await {
        Ok(attr) => Ok(inode_of(&attr)),
        Err(FsError::Exists) => match client.lookup(dir, name).await? {
            attr if attr.kind == FileKind::Directory => Ok(inode_of(&attr)),
            _ => Err(FsError::Exists),
        },
        Err(e) => Err(e),
    }
}
