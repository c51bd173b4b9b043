//! A client's many files without names, so that inodes fill more than a segment, and a segment of them goes back to its pool. Nobody
//! else sees them; that there is room, that no inode has two users and that the nodes go on is what they are for.

use crate::rng::Rng;
use polvo_client::{LocalClient, OpenFile};
use polvo_format::FileKind;
use polvo_proto::{FsError, InodeRef, NewFile};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Files that are made at a time, and most that there are: a segment holds 1024 inodes.
const SOME: usize = 400;
const MANY: usize = 1300;

/// The files.
#[derive(Default)]
pub struct Crowd {
    files: Vec<Arc<OpenFile>>,
    /// All that there were: no inode comes again.
    seen: BTreeSet<InodeRef>,
}

impl Crowd {
    /// Makes some more near a directory, or lets go of some. Gives what is wrong.
    pub async fn change(&mut self, client: &LocalClient, dir: InodeRef, rng: &mut Rng) -> Option<String> {
        if self.files.len() >= MANY || rng.percent(30) {
            let keep = if rng.percent(50) {
                0
            } else {
                rng.below(self.files.len() as u64 + 1)
            };
            self.files.truncate(keep as usize);
            return None;
        }
        for _ in 0..SOME {
            let new = NewFile {
                kind: FileKind::File,
                mode: 0o600,
                uid: 0,
                gid: 0,
                rdev: 0,
                target: Vec::new(),
                umask: 0,
                xattrs: Vec::new(),
            };
            match client.create_unnamed(dir, new).await {
                Ok((_, file)) if !self.seen.insert(file.inode()) => {
                    return Some(format!("{:?} was made before", file.inode()));
                }
                Ok((_, file)) => self.files.push(file),
                // it is full, its node is away, or the directory has been removed
                Err(
                    FsError::NoSpace
                    | FsError::NotFound
                    | FsError::Unreachable { .. }
                    | FsError::Stale
                    | FsError::Busy
                    | FsError::SessionExpired,
                ) => return None,
                Err(error) => return Some(format!("a file without a name: {error}")),
            }
        }
        None
    }
}
