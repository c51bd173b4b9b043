//! `polvo put`

use super::jobs::Jobs;
use super::mkdir::{make_or_find, new_file, umask};
use super::tree::{LocalEntry, local_tree};
use super::{CHUNK, Destination, inode_of, join, shown};
use crate::args::PutArgs;
use crate::connect::{Location, with_client};
use crate::{CliError, Context, progress};
use indicatif::ProgressBar;
use polvo_client::{LocalClient, OpenFile};
use polvo_format::{Attr, FileKind};
use polvo_proto::{FsError, InodeRef, NewFile, SetAttr, TimeChange};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Runs the command.
pub fn put(args: &PutArgs) -> Result<(), CliError> {
    let (to, from) = args.paths.split_last().expect("clap asks for two paths at least");
    let to = Location::parse(to)?;
    with_client(&args.cluster, to.authority.clone(), "put", |_, client| async move {
        let destination = Destination::find(&client, &to.path).await?;
        let bar = progress::bytes(0, args.quiet);
        let jobs = Rc::new(Jobs::new(bar.clone()));
        for source in from {
            if let Err(e) = put_source(&client, &jobs, &bar, source, &destination, args, from.len() > 1).await {
                jobs.fail(&e);
            }
        }
        jobs.finish().await;
        let result = jobs.result();
        if !args.quiet && bar.position() > 0 {
            super::get::say_rate(&bar);
        }
        result
    })
}

async fn put_source(
    client: &Rc<LocalClient>,
    jobs: &Rc<Jobs>,
    bar: &ProgressBar,
    source: &OsString,
    destination: &Destination,
    args: &PutArgs,
    several: bool,
) -> Result<(), CliError> {
    if source == "-" {
        let (dir, name, path) = destination.of(None, several)?;
        return put_stdin(client, bar, dir, &name, &path).await;
    }
    let source = PathBuf::from(source);
    // The name of `.` or `..` is that of the directory itself.
    let name = match source.file_name() {
        Some(name) => name.as_bytes().to_vec(),
        None => {
            let full = source.canonicalize().doing(|| source.display().to_string())?;
            full.file_name().map(|n| n.as_bytes().to_vec()).unwrap_or_default()
        }
    };
    let (dir, name, path) = destination.of((!name.is_empty()).then_some(&name), several)?;
    let tree = local_tree(source, args.recursive, jobs)?;
    bar.inc_length(tree.iter().filter(|e| e.meta.is_file()).map(|e| e.meta.len()).sum());

    // The directory and path in the cluster of each entry of the tree that is a directory.
    let mut made: Vec<Option<(InodeRef, Vec<u8>)>> = Vec::with_capacity(tree.len());
    for entry in &tree {
        let place = match entry.parent {
            None => Some((dir, name.clone(), path.clone())),
            Some(parent) => made[parent].as_ref().map(|(dir, path)| {
                let name = entry
                    .path
                    .file_name()
                    .map(|n| n.as_bytes().to_vec())
                    .unwrap_or_default();
                (*dir, name.clone(), join(path, &name))
            }),
        };
        // A directory that could not be made was told; what it holds has nowhere to go.
        let Some((dir, name, path)) = place else {
            made.push(None);
            continue;
        };
        if entry.meta.is_dir() {
            // Owner's access until the end, whatever the mode: files have to go in.
            let mode = (entry.meta.mode() | 0o700) & 0o7777;
            match make_or_find(client, dir, &name, mode)
                .await
                .doing(|| format!("making directory {}", shown(&path)))
            {
                Ok(inode) => made.push(Some((inode, path))),
                Err(e) => {
                    jobs.fail(&e);
                    made.push(None);
                }
            }
            continue;
        }
        made.push(None);
        put_entry(client, jobs, bar, entry, dir, name, path).await;
    }
    jobs.finish().await;
    assert_eq!(made.len(), tree.len(), "each entry was made, or is told to be left out");
    // Directories get their times and modes when nothing more goes into them.
    for (entry, made) in tree.iter().zip(&made).rev() {
        if let Some((inode, path)) = made
            && let Err(e) = client
                .set_attr(*inode, attributes_of(&entry.meta))
                .await
                .doing(|| shown(path))
        {
            jobs.fail(&e);
        }
    }
    Ok(())
}

/// Starts the copy of something that is no directory.
async fn put_entry(
    client: &Rc<LocalClient>,
    jobs: &Rc<Jobs>,
    bar: &ProgressBar,
    entry: &LocalEntry,
    dir: InodeRef,
    name: Vec<u8>,
    path: Vec<u8>,
) {
    let (client, bar, source, meta) = (client.clone(), bar.clone(), entry.path.clone(), entry.meta.clone());
    if meta.is_symlink() {
        jobs.start(async move { put_symlink(&client, &source, &meta, dir, &name, &path).await })
            .await;
    } else if meta.is_file() {
        jobs.start(async move { put_file(&client, &bar, &source, &meta, dir, &name, &path).await })
            .await;
    } else {
        let kind = match meta.file_type() {
            t if t.is_fifo() => "fifo",
            t if t.is_socket() => "socket",
            _ => "device",
        };
        jobs.fail(&CliError::Other(format!(
            "{}: left out, it is a {kind}",
            source.display()
        )));
    }
}

/// What a copy keeps: mode and times, and the owner where root copies.
fn attributes_of(meta: &Metadata) -> SetAttr {
    let root = rustix::process::geteuid().is_root();
    SetAttr {
        mode: Some(meta.mode() & 0o7777),
        uid: root.then(|| meta.uid()),
        gid: root.then(|| meta.gid()),
        size: None,
        atime: Some(TimeChange::To(nanoseconds(meta.atime(), meta.atime_nsec()))),
        mtime: Some(TimeChange::To(nanoseconds(meta.mtime(), meta.mtime_nsec()))),
    }
}

/// A time since the UNIX epoch; one that 64 bits cannot hold (before 1677, after 2262) becomes the nearest that they can.
fn nanoseconds(seconds: i64, ns: i64) -> i64 {
    let time = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    time.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

async fn put_symlink(
    client: &LocalClient,
    source: &Path,
    meta: &Metadata,
    dir: InodeRef,
    name: &[u8],
    path: &[u8],
) -> Result<(), CliError> {
    let target = std::fs::read_link(source).doing(|| source.display().to_string())?;
    let file = NewFile {
        kind: FileKind::Symlink,
        target: target.as_os_str().as_bytes().to_vec(),
        umask: 0,
        xattrs: Vec::new(),
        ..new_file(0o777)
    };
    let what = || format!("making link {}", shown(path));
    let attr = match client.create(dir, name, file.clone()).await {
        Err(FsError::Exists) => {
            client.unlink(dir, name).await.doing(what)?;
            client.create(dir, name, file).await.doing(what)?
        }
        other => other.doing(what)?,
    };
    let set = SetAttr {
        mode: None,
        ..attributes_of(meta)
    };
    client.set_attr(inode_of(&attr), set).await.doing(what).map(drop)
}

/// Makes a file, or empties the one that is there.
async fn create_or_truncate(
    client: &LocalClient,
    dir: InodeRef,
    name: &[u8],
    mode: u32,
) -> Result<(Attr, Arc<OpenFile>), FsError> {
    match client.create_open(dir, name, new_file(mode)).await {
        Err(FsError::Exists) => {}
        other => return other,
    }
    let attr = client.lookup(dir, name).await?;
    match attr.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(FsError::IsDirectory),
        _ => return Err(FsError::Exists),
    }
    let file = client.open_to_write(inode_of(&attr), false).await?;
    let attr = client
        .set_attr(
            inode_of(&attr),
            SetAttr {
                size: Some(0),
                ..SetAttr::default()
            },
        )
        .await?;
    Ok((attr, file))
}

async fn put_file(
    client: &LocalClient,
    bar: &ProgressBar,
    source: &Path,
    meta: &Metadata,
    dir: InodeRef,
    name: &[u8],
    path: &[u8],
) -> Result<(), CliError> {
    let from = std::fs::File::open(source).doing(|| source.display().to_string())?;
    let making = create_or_truncate(client, dir, name, meta.mode() & 0o7777 | 0o600).await;
    let (attr, file) = making.doing(|| format!("making {}", shown(path)))?;
    let end = copy_data(client, bar, &from, source, meta.len(), &file, path).await?;
    let mut set = attributes_of(meta);
    // A hole at the end leaves no data behind.
    set.size = (end < meta.len()).then_some(meta.len());
    client
        .set_attr(inode_of(&attr), set)
        .await
        .doing(|| format!("attributes of {}", shown(path)))?;
    Ok(())
}

/// Copies the data between the holes; returns where the last byte went.
async fn copy_data(
    client: &LocalClient,
    bar: &ProgressBar,
    from: &std::fs::File,
    source: &Path,
    len: u64,
    to: &OpenFile,
    path: &[u8],
) -> Result<u64, CliError> {
    use rustix::fs::{SeekFrom, seek};
    use std::os::unix::fs::FileExt;
    let reading = || format!("reading {}", source.display());
    let mut chunk = vec![0u8; CHUNK.min(len.max(1) as usize)];
    let mut offset = 0u64;
    let mut written_to = 0u64;
    while offset < len {
        // A file system that knows no holes says so by an error: all of it is data then.
        let (data, hole) = match seek(from, SeekFrom::Data(offset)) {
            Ok(data) => (data, seek(from, SeekFrom::Hole(data)).unwrap_or(len)),
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => (offset, len),
        };
        bar.inc(data.min(len) - offset);
        offset = data;
        while offset < hole.min(len) {
            let want = chunk.len().min((hole.min(len) - offset) as usize);
            let got = from.read_at(&mut chunk[..want], offset).doing(reading)?;
            if got == 0 {
                // Shorter than it was when it was listed.
                return Ok(written_to);
            }
            write_all(client, to, offset, &chunk[..got])
                .await
                .doing(|| format!("writing {}", shown(path)))?;
            offset += got as u64;
            written_to = offset;
            bar.inc(got as u64);
        }
    }
    bar.inc(len.saturating_sub(offset));
    Ok(written_to)
}

async fn write_all(client: &LocalClient, file: &OpenFile, mut offset: u64, mut bytes: &[u8]) -> Result<(), FsError> {
    while !bytes.is_empty() {
        let n = client.write(file, offset, bytes).await?;
        if n == 0 {
            return Err(FsError::Io("a write took no bytes".into()));
        }
        bytes = &bytes[n..];
        offset += n as u64;
    }
    Ok(())
}

async fn put_stdin(
    client: &LocalClient,
    bar: &ProgressBar,
    dir: InodeRef,
    name: &[u8],
    path: &[u8],
) -> Result<(), CliError> {
    let making = create_or_truncate(client, dir, name, 0o666 & !umask()).await;
    let (_, file) = making.doing(|| format!("making {}", shown(path)))?;
    let mut from = std::io::stdin().lock();
    let mut chunk = vec![0u8; CHUNK];
    let mut offset = 0;
    loop {
        let mut filled = 0;
        while filled < chunk.len() {
            match from.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e).doing(|| "reading standard input".into()),
            }
        }
        if filled == 0 {
            return Ok(());
        }
        write_all(client, &file, offset, &chunk[..filled])
            .await
            .doing(|| format!("writing {}", shown(path)))?;
        offset += filled as u64;
        bar.inc_length(filled as u64);
        bar.inc(filled as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_64_bits_cannot_hold_become_the_nearest() {
        assert_eq!(nanoseconds(-2, 5), -1_999_999_995);
        assert_eq!(
            (nanoseconds(10_413_792_000, 0), nanoseconds(i64::MIN, 0)),
            (i64::MAX, i64::MIN)
        );
    }
}
