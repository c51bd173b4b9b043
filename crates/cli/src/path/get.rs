//! `polvo get`

use super::cat::write_out;
use super::jobs::Jobs;
use super::tree::{RemoteEntry, remote_tree};
use super::{inode_of, last_component, shown};
use crate::args::GetArgs;
use crate::connect::{Location, with_client};
use crate::size::Size;
use crate::{CliError, Context, progress};
use indicatif::ProgressBar;
use polvo_client::{LocalClient, Whence};
use polvo_format::{Attr, FileKind};
use polvo_proto::FsError;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Runs the command.
pub fn get(args: &GetArgs) -> Result<(), CliError> {
    let (to, from) = args.paths.split_last().expect("clap asks for two paths at least");
    let places = Location::parse_all(from)?;
    let to = PathBuf::from(to);
    with_client(
        &args.cluster,
        places[0].authority.clone(),
        "get",
        |_, client| async move {
            if to.as_os_str() == "-" {
                for place in &places {
                    write_out(&client, place).await?;
                }
                return Ok(());
            }
            let bar = progress::bytes(0, args.quiet);
            let jobs = Rc::new(Jobs::new(bar.clone()));
            for place in &places {
                if let Err(e) = get_source(&client, &jobs, &bar, place, &to, args, places.len() > 1).await {
                    jobs.fail(&e);
                }
            }
            jobs.finish().await;
            let result = jobs.result();
            if !args.quiet && bar.position() > 0 {
                say_rate(&bar);
            }
            result
        },
    )
}

/// The last word of a copy, on stderr.
pub(super) fn say_rate(bar: &ProgressBar) {
    let (bytes, took) = (bar.position(), bar.elapsed());
    let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
    eprintln!(
        "{} in {:.2} s, {}/s",
        Size(bytes),
        took.as_secs_f64(),
        Size(rate as u64)
    );
}

async fn get_source(
    client: &Rc<LocalClient>,
    jobs: &Rc<Jobs>,
    bar: &ProgressBar,
    place: &Location,
    to: &Path,
    args: &GetArgs,
    several: bool,
) -> Result<(), CliError> {
    let attr = client
        .walk(&place.path, !args.recursive)
        .await
        .doing(|| place.shown())?;
    if attr.kind == FileKind::Directory && !args.recursive {
        return Err(CliError::Usage(format!(
            "{} is a directory; -r copies directories",
            place.shown()
        )));
    }
    let target = if to.is_dir() {
        match last_component(&place.path) {
            Some(name) => to.join(OsStr::from_bytes(name)),
            // The root has no name: its files go into the destination itself.
            None => to.to_path_buf(),
        }
    } else if several {
        return Err(CliError::Usage(format!(
            "{} is not a directory; several files need one",
            to.display()
        )));
    } else {
        to.to_path_buf()
    };
    let name = last_component(&place.path).unwrap_or_default().to_vec();
    let tree = remote_tree(client, place.path.clone(), name, attr, jobs).await;
    bar.inc_length(
        tree.iter()
            .filter(|e| e.attr.kind == FileKind::File)
            .map(|e| e.attr.size)
            .sum(),
    );

    let mut made: Vec<Option<PathBuf>> = Vec::with_capacity(tree.len());
    for entry in &tree {
        let path = match entry.parent {
            None => Some(target.clone()),
            Some(parent) => made[parent]
                .as_ref()
                .map(|dir| dir.join(OsStr::from_bytes(&entry.name))),
        };
        // A directory that could not be made was told; what it holds has nowhere to go.
        let Some(path) = path else {
            made.push(None);
            continue;
        };
        if entry.attr.kind == FileKind::Directory {
            made.push(make_directory(path, jobs));
            continue;
        }
        made.push(None);
        get_entry(client, jobs, bar, entry, path).await;
    }
    jobs.finish().await;
    assert_eq!(made.len(), tree.len(), "each entry was made, or is told to be left out");
    // Directories get their modes and times when nothing more goes into them.
    for (entry, path) in tree.iter().zip(&made).rev() {
        if let Some(path) = path
            && let Err(e) = keep_attributes(path, &entry.attr)
        {
            jobs.fail(&e);
        }
    }
    Ok(())
}

/// The directory, if it is there now.
fn make_directory(path: PathBuf, jobs: &Rc<Jobs>) -> Option<PathBuf> {
    match std::fs::create_dir(&path) {
        Err(e) if !(e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir()) => {
            jobs.fail(&CliError::Os {
                what: format!("making directory {}", path.display()),
                source: e,
            });
            None
        }
        _ => Some(path),
    }
}

/// Starts the copy of something that is no directory.
async fn get_entry(client: &Rc<LocalClient>, jobs: &Rc<Jobs>, bar: &ProgressBar, entry: &RemoteEntry, path: PathBuf) {
    let (client, bar, attr, source) = (client.clone(), bar.clone(), entry.attr, entry.path.clone());
    match attr.kind {
        FileKind::File => {
            jobs.start(async move { get_file(&client, &bar, attr, &source, &path).await })
                .await
        }
        FileKind::Symlink => {
            jobs.start(async move { get_symlink(&client, attr, &source, &path).await })
                .await
        }
        kind => {
            let kind = super::show::kind(kind);
            jobs.fail(&CliError::Other(format!(
                "{}: left out, it is a {kind}",
                shown(&source)
            )));
        }
    }
}

async fn get_symlink(client: &LocalClient, attr: Attr, source: &[u8], path: &Path) -> Result<(), CliError> {
    let target = client.read_link(inode_of(&attr)).await.doing(|| shown(source))?;
    let what = || format!("making link {}", path.display());
    if path.is_symlink() {
        std::fs::remove_file(path).doing(what)?;
    }
    symlink(OsStr::from_bytes(&target), path).doing(what)?;
    keep_attributes(path, &attr)
}

async fn get_file(
    client: &LocalClient,
    bar: &ProgressBar,
    attr: Attr,
    source: &[u8],
    path: &Path,
) -> Result<(), CliError> {
    let reading = || format!("reading {}", shown(source));
    let writing = || format!("writing {}", path.display());
    let file = client.open(inode_of(&attr)).await.doing(reading)?;
    let out = File::create(path).doing(writing)?;
    let mut offset = 0;
    while offset < attr.size {
        let data = match client.seek(&file, offset, Whence::Data).await {
            Ok(data) => data,
            // Nothing but a hole up to the end.
            Err(FsError::NoSuchOffset) => break,
            Err(e) => return Err(e).doing(reading),
        };
        let hole = client
            .seek(&file, data, Whence::Hole)
            .await
            .doing(reading)?
            .min(attr.size);
        bar.inc(data.min(attr.size) - offset);
        offset = data;
        let mut bytes = client.stream(&file, offset..hole);
        while let Some(part) = bytes.next().await.doing(reading)? {
            out.write_all_at(part, offset).doing(writing)?;
            offset += part.len() as u64;
            bar.inc(part.len() as u64);
        }
        if offset < hole {
            // Shorter than it was when it was listed.
            return keep_attributes(path, &attr);
        }
    }
    bar.inc(attr.size.saturating_sub(offset));
    out.set_len(attr.size).doing(writing)?;
    keep_attributes(path, &attr)
}

/// Owner (where root copies), mode and times of a copy.
fn keep_attributes(path: &Path, attr: &Attr) -> Result<(), CliError> {
    let what = || format!("attributes of {}", path.display());
    if rustix::process::geteuid().is_root() {
        lchown(path, Some(attr.uid), Some(attr.gid)).doing(what)?;
    }
    if attr.kind != FileKind::Symlink {
        std::fs::set_permissions(path, Permissions::from_mode(attr.mode & 0o7777)).doing(what)?;
    }
    let time = |ns: i64| Timespec {
        tv_sec: ns.div_euclid(1_000_000_000),
        tv_nsec: ns.rem_euclid(1_000_000_000) as _,
    };
    let times = Timestamps {
        last_access: time(attr.atime_ns),
        last_modification: time(attr.mtime_ns),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).doing(what)
}
