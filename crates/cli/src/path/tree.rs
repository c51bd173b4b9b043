//! What a recursive copy will copy, listed before it begins, so that the progress bar knows the end.

use super::{entries, join, shown};
use crate::path::jobs::Jobs;
use crate::{CliError, Context};
use polvo_client::LocalClient;
use polvo_format::{Attr, FileKind};
use std::fs::Metadata;
use std::path::PathBuf;
use std::rc::Rc;

/// Attributes asked for at once.
const AT_ONCE: usize = 64;

/// A local file or directory below a source.
pub(super) struct LocalEntry {
    /// Where it is.
    pub(super) path: PathBuf,
    /// What it is (of a symbolic link itself, except for a source that is copied without -r).
    pub(super) meta: Metadata,
    /// Index in the list of the directory that holds it; `None` for the source itself.
    pub(super) parent: Option<usize>,
}

/// Lists a local source and all below it; parents come before their children. What cannot be read is told and left
/// out.
pub(super) fn local_tree(source: PathBuf, recursive: bool, jobs: &Jobs) -> Result<Vec<LocalEntry>, CliError> {
    let what = |path: &PathBuf| format!("{}", path.display());
    let meta = if recursive {
        std::fs::symlink_metadata(&source)
    } else {
        std::fs::metadata(&source)
    };
    let meta = meta.doing(|| what(&source))?;
    if meta.is_dir() && !recursive {
        return Err(CliError::Usage(format!(
            "{} is a directory; -r copies directories",
            source.display()
        )));
    }
    let mut all = vec![LocalEntry {
        path: source,
        meta,
        parent: None,
    }];
    let mut next = 0;
    while next < all.len() {
        let at = next;
        next += 1;
        if !all[at].meta.is_dir() {
            continue;
        }
        let listed = std::fs::read_dir(&all[at].path).and_then(|d| d.collect::<Result<Vec<_>, _>>());
        match listed.doing(|| what(&all[at].path)) {
            Err(e) => jobs.fail(&e),
            Ok(listed) => {
                for entry in listed {
                    match entry.metadata().doing(|| what(&entry.path())) {
                        Err(e) => jobs.fail(&e),
                        Ok(meta) => all.push(LocalEntry {
                            path: entry.path(),
                            meta,
                            parent: Some(at),
                        }),
                    }
                }
            }
        }
    }
    Ok(all)
}

/// A file or directory of the cluster below a source.
pub(super) struct RemoteEntry {
    /// Its path, for messages.
    pub(super) path: Vec<u8>,
    /// Its last component.
    pub(super) name: Vec<u8>,
    /// What it is.
    pub(super) attr: Attr,
    /// Index in the list of the directory that holds it; `None` for the source itself.
    pub(super) parent: Option<usize>,
}

/// Lists a source in the cluster and all below it; parents come before their children.
pub(super) async fn remote_tree(
    client: &Rc<LocalClient>,
    path: Vec<u8>,
    name: Vec<u8>,
    attr: Attr,
    jobs: &Jobs,
) -> Vec<RemoteEntry> {
    let mut all = vec![RemoteEntry {
        path,
        name,
        attr,
        parent: None,
    }];
    let mut next = 0;
    while next < all.len() {
        let at = next;
        next += 1;
        if all[at].attr.kind != FileKind::Directory {
            continue;
        }
        let path = all[at].path.clone();
        let listed = match entries(client, super::inode_of(&all[at].attr))
            .await
            .doing(|| shown(&path))
        {
            Ok(listed) => listed,
            Err(e) => {
                jobs.fail(&e);
                continue;
            }
        };
        for chunk in listed.chunks(AT_ONCE) {
            let asked: Vec<_> = chunk
                .iter()
                .map(|entry| {
                    let (client, target) = (client.clone(), entry.target);
                    tokio::task::spawn_local(async move { client.get_attr(target).await })
                })
                .collect();
            for (entry, asked) in chunk.iter().zip(asked) {
                let path = join(&path, &entry.name);
                // A name goes into a local path: one that leads elsewhere is damage, or malice.
                if entry.name.is_empty() || entry.name.contains(&b'/') || entry.name == b"." || entry.name == b".." {
                    jobs.fail(&CliError::Other(format!("{}: not a file name", shown(&path))));
                    continue;
                }
                let found = asked.await.map_err(|e| CliError::Other(e.to_string()));
                match found.and_then(|attr| attr.doing(|| shown(&path))) {
                    Err(e) => jobs.fail(&e),
                    Ok(attr) => {
                        all.push(RemoteEntry {
                            path,
                            name: entry.name.clone(),
                            attr,
                            parent: Some(at),
                        });
                    }
                }
            }
        }
    }
    all
}
