//! The path commands: files of a cluster without a mount.

mod cat;
mod get;
mod jobs;
mod list;
mod mkdir;
mod mv;
mod put;
mod remove;
mod set;
mod show;
mod stat;
mod tree;

pub use cat::cat;
pub use get::get;
pub use list::ls;
pub use mkdir::mkdir;
pub use mv::mv;
pub use put::put;
pub use remove::rm;
pub use set::set;
pub use stat::stat;

use crate::{CliError, Context};
use polvo_client::LocalClient;
use polvo_format::{Attr, FileKind, Ino};
use polvo_proto::{DirEntry, FsError, InodeRef};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;
/// Entries asked for at a time.
const ENTRIES: u32 = 1024;

/// The inode that attributes are of.
fn inode_of(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}

/// A path for messages.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// `dir/name`.
fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last component of a path, if it has one that is a name.
fn last_component(path: &[u8]) -> Option<&[u8]> {
    let name = path.split(|b| *b == b'/').rfind(|part| !part.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

/// The entries of a directory, but for those made since the listing began.
async fn entries(client: &LocalClient, dir: InodeRef) -> Result<Vec<DirEntry>, FsError> {
    let mut all: Vec<DirEntry> = Vec::new();
    let mut end = None;
    loop {
        let after = all.last().map_or(0, |e| e.cookie);
        let page = client.read_dir(dir, after, ENTRIES).await?;
        let end = *end.get_or_insert(page.next_cookie);
        let Some(last) = page.entries.last().map(|e| e.cookie) else {
            return Ok(all);
        };
        // A cookie that does not grow would make this loop endless.
        if last <= after {
            return Err(FsError::Io("directory listing does not advance".into()));
        }
        all.extend(page.entries.into_iter().take_while(|e| e.cookie < end));
        if last >= end {
            return Ok(all);
        }
    }
}

/// The paths of inodes, found by listing the whole cluster; what cannot be listed is left out.
pub(crate) async fn names_of(client: &LocalClient, wanted: &BTreeSet<Ino>) -> BTreeMap<Ino, Vec<String>> {
    let mut found: BTreeMap<Ino, Vec<String>> = BTreeMap::new();
    let mut dirs = match client.walk(b"/", true).await {
        Ok(root) => vec![(inode_of(&root), b"/".to_vec())],
        Err(_) => Vec::new(),
    };
    while let Some((dir, path)) = dirs.pop() {
        for entry in entries(client, dir).await.unwrap_or_default() {
            let path = join(&path, &entry.name);
            if wanted.contains(&entry.target.ino) {
                found.entry(entry.target.ino).or_default().push(shown(&path));
            }
            if entry.kind == FileKind::Directory {
                dirs.push((entry.target, path));
            }
        }
    }
    found
}

/// Where copies and moves go: an existing directory, into which they go by their own names, or a path of its own.
enum Destination {
    /// Into this directory.
    Into { dir: InodeRef, path: Vec<u8> },
    /// To this name.
    As {
        dir: InodeRef,
        name: Vec<u8>,
        path: Vec<u8>,
    },
}

impl Destination {
    async fn find(client: &LocalClient, path: &[u8]) -> Result<Destination, CliError> {
        match client.walk(path, true).await {
            Ok(attr) if attr.kind == polvo_format::FileKind::Directory => {
                return Ok(Destination::Into {
                    dir: inode_of(&attr),
                    path: path.into(),
                });
            }
            Ok(_) | Err(FsError::NotFound) => {}
            Err(e) => return Err(e).doing(|| shown(path)),
        }
        if path.ends_with(b"/") {
            return Err(FsError::NotDirectory).doing(|| shown(path));
        }
        let (dir, name) = client.walk_parent(path).await.doing(|| shown(path))?;
        Ok(Destination::As {
            dir,
            name: name.to_vec(),
            path: path.into(),
        })
    }

    /// Directory, name and shown path for one source; `several` sources need a directory.
    fn of(&self, source: Option<&[u8]>, several: bool) -> Result<(InodeRef, Vec<u8>, Vec<u8>), CliError> {
        match (self, source) {
            (Destination::Into { dir, path }, Some(name)) => Ok((*dir, name.to_vec(), join(path, name))),
            (Destination::Into { path, .. }, None) => {
                Err(FsError::IsDirectory).doing(|| format!("{}: give the name of a file", shown(path)))
            }
            (Destination::As { path, .. }, _) if several => Err(FsError::NotDirectory).doing(|| shown(path)),
            (Destination::As { dir, name, path }, _) => Ok((*dir, name.clone(), path.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_components() {
        for (path, name) in [
            ("/a/b", Some("b")),
            ("a", Some("a")),
            ("/a/", Some("a")),
            ("/", None),
            ("/a/..", None),
        ] {
            assert_eq!(last_component(path.as_bytes()), name.map(str::as_bytes), "{path}");
        }
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
    }
}
