//! Operations on names: create, unlink, rmdir, link.

use crate::names::acl::{self, Acl};
use crate::names::permission::{self, EXECUTE, WRITE};
use crate::names::valid_name;
use crate::request::context::RequestContext;
use crate::transactions::coordinator::{Failure, Outcomes, Plan, transact};
use polvo_format::{Attr, FileKind, NodeId, RegionId, SYMLINK_MAX, Tail};
use polvo_proto::{DirEntry, FsError, InodeRef, Intent, Made, NewFile, Outcome, Placement, reply};
use polvo_region::{Region, RegionError};

/// Decides about an operation whose transaction failed on what was looked up before it. The failure is its answer if nothing
/// has changed from that lookup to the next one: the logs of its directories end where they did. That they say the same is not
/// enough, since names go away and come back.
#[derive(Default)]
pub(crate) struct Revalidation<T> {
    last: Option<(T, FsError)>,
}

impl<T: PartialEq> Revalidation<T> {
    /// A lookup has found the logs to end there: the operation's answer, if the attempt before decides it.
    pub fn found(&mut self, tails: &T) -> Result<(), FsError> {
        match self.last.take() {
            Some((before, error)) if before == *tails => Err(error),
            _ => Ok(()),
        }
    }

    /// The attempt after a lookup has failed. `Ok`: look up again.
    pub fn failed(&mut self, tails: T, error: FsError) -> Result<(), FsError> {
        let is_about_what_was_found = matches!(
            error,
            FsError::NotFound
                | FsError::Stale
                | FsError::Exists
                | FsError::NotEmpty
                | FsError::NotDirectory
                | FsError::IsDirectory
                | FsError::NotPermitted
                | FsError::TooManyLinks
        );
        if !is_about_what_was_found {
            return Err(error);
        }
        self.last = Some((tails, error));
        Ok(())
    }
}

/// A directory and one of its names as they were at one moment.
struct Seen {
    attr: Attr,
    /// Where its log ended.
    tail: Tail,
    acl: Option<Acl>,
    /// Access control list that new inodes begin with.
    default_acl: Option<Vec<u8>>,
    placement: Placement,
    entry: Option<DirEntry>,
}

/// What a directory gives to a new inode.
struct Parent {
    attr: Attr,
    placement: Placement,
    default_acl: Option<Vec<u8>>,
}

fn default_acl(region: &mut Region, dir: InodeRef) -> Result<Option<Vec<u8>>, RegionError> {
    match region.has_xattr(dir, acl::DEFAULT)? {
        true => region.get_xattr(dir, acl::DEFAULT).map(Some),
        false => Ok(None),
    }
}

fn check_new_file(file: &NewFile) -> Result<(), FsError> {
    if !file.xattrs.is_empty() {
        return Err(FsError::Invalid(
            "extended attributes of a new inode are inherited".into(),
        ));
    }
    match file.kind {
        FileKind::Symlink if file.target.is_empty() => Err(FsError::NotFound),
        FileKind::Symlink if file.target.len() > SYMLINK_MAX => Err(FsError::NameTooLong),
        FileKind::Symlink => Ok(()),
        FileKind::Object => Err(FsError::Invalid("an object has no name".into())),
        _ if !file.target.is_empty() => Err(FsError::Invalid("only a symbolic link has a target".into())),
        _ => Ok(()),
    }
}

pub(crate) fn must_be_directory(attr: &Attr) -> Result<(), FsError> {
    if attr.kind == FileKind::Directory {
        Ok(())
    } else {
        Err(FsError::NotDirectory)
    }
}

impl RequestContext<'_> {
    /// A directory of ours, and what it says of a name, seen at one moment. The caller may search the directory.
    async fn directory_and_name(&self, dir: InodeRef, name: &[u8]) -> Result<Seen, FsError> {
        self.on(dir.ino.region(), |r| {
            let (attr, tail) = r.attr(dir.ino, Some(dir.generation))?;
            must_be_directory(&attr)?;
            let acl = self.acl_here(r, dir)?;
            permission::access(self.cred, &attr, acl.as_ref(), EXECUTE)?;
            let entry = match r.lookup(dir, name) {
                Ok((entry, _)) => Some(entry),
                Err(RegionError::Fs(FsError::NotFound)) => None,
                Err(error) => return Err(error),
            };
            Ok(Seen {
                attr,
                tail,
                acl,
                default_acl: default_acl(r, dir)?,
                placement: r.placement(dir)?,
                entry,
            })
        })
        .await
    }

    /// As above, where the caller is to make that name: it must not exist (EEXIST comes before EACCES, as on Linux).
    async fn directory_without(&self, dir: InodeRef, name: &[u8]) -> Result<Seen, FsError> {
        let seen = self.directory_and_name(dir, name).await?;
        if seen.entry.is_some() {
            return Err(FsError::Exists);
        }
        permission::access(self.cred, &seen.attr, seen.acl.as_ref(), WRITE)?;
        Ok(seen)
    }

    /// The region for a new inode: by the directory's placement, but not on a node that is `full`, nor on one that does not answer
    /// just now while there are others. What is no directory itself goes to the directory's region if it is on the node that was chosen,
    /// and its mirrors' nodes are not much fuller: to make and to remove it is no transaction of two regions then.
    fn choose_region(
        &self,
        dir: InodeRef,
        name: &[u8],
        kind: FileKind,
        placement: Placement,
        full: &[NodeId],
    ) -> Option<RegionId> {
        let map = self.node.map();
        let home = self.session.home;
        let of_dir = dir.ino.region();
        let set = map.of_set(placement.set).first().map(|info| info.set);
        let dirs = map
            .region(of_dir)
            .filter(|dirs| kind != FileKind::Directory && Some(dirs.set) == set);
        let choose = |rejected: &[NodeId]| {
            let utilization = &self.node.utilization;
            utilization.choose(&map, placement, home, dir.ino, name, rejected)
        };
        let mut rejected = full.to_vec();
        let region = loop {
            match choose(&rejected) {
                // all that are of the kind seem to be away, and nobody has said that there is no room
                None if full.is_empty() => break choose(full)?,
                None => return None,
                Some(region) => match map.primary(region) {
                    Some(node) if node != self.node.id() && self.links.is_suspect(node) => rejected.push(node),
                    _ => break region,
                },
            }
        };
        let (Some(info), Some(dirs)) = (map.region(region), dirs) else {
            return Some(region);
        };
        let is_dirs_node = info.primary() == dirs.primary() && region != of_dir;
        Some(match is_dirs_node && self.node.utilization.is_as_good(dirs, info) {
            true => of_dir,
            false => region,
        })
    }

    pub async fn create(&self, dir: InodeRef, name: Vec<u8>, file: NewFile, open: bool) -> Result<Made, FsError> {
        valid_name::check_new(&name)?;
        check_new_file(&file)?;
        let kind = file.kind;
        let lookup = async || {
            let seen = self.directory_without(dir, &name).await?;
            Ok(Parent {
                attr: seen.attr,
                placement: seen.placement,
                default_acl: seen.default_acl,
            })
        };
        let plan = |plan: &mut Plan, _| {
            let (name, target) = (name.clone(), None);
            let intent = Intent::AddName {
                dir,
                name,
                target,
                kind,
            };
            plan.want(dir.ino.region(), intent);
        };
        let (made, outcomes) = self.make_inode(dir, &name, file, false, open, lookup, plan).await?;
        Ok(Made {
            attr: made.attr,
            tail: made.tail,
            dir_tail: outcomes.of(dir.ino)?.tail,
            before: false,
        })
    }

    pub async fn create_unnamed(&self, dir: InodeRef, file: NewFile) -> Result<Made, FsError> {
        check_new_file(&file)?;
        if file.kind != FileKind::File {
            return Err(FsError::Invalid("only a file can be without a name".into()));
        }
        let own = dir.ino.region();
        let seed = self.node.next_jitter().to_le_bytes();
        let lookup = async || {
            self.on(own, |r| {
                let (attr, _) = r.attr(dir.ino, Some(dir.generation))?;
                must_be_directory(&attr)?;
                permission::access(self.cred, &attr, self.acl_here(r, dir)?.as_ref(), WRITE | EXECUTE)?;
                Ok(Parent {
                    attr,
                    placement: r.placement(dir)?,
                    default_acl: default_acl(r, dir)?,
                })
            })
            .await
        };
        let plan = |plan: &mut Plan, region| {
            if region != own {
                plan.want(own, Intent::Pin { inode: dir });
            }
        };
        let (made, _) = self.make_inode(dir, &seed, file, true, true, lookup, plan).await?;
        let dir_tail = self.on(own, |r| r.attr(dir.ino, Some(dir.generation))).await?.1;
        Ok(Made {
            attr: made.attr,
            tail: made.tail,
            dir_tail,
            before: false,
        })
    }

    /// Makes an inode in a region that is chosen by `seed`, of those that have room. `lookup` looks at the directory (anew
    /// for each attempt), `plan` adds what is to happen together with it.
    #[expect(clippy::too_many_arguments, reason = "two callers, which differ in each of them")]
    async fn make_inode(
        &self,
        dir: InodeRef,
        seed: &[u8],
        file: NewFile,
        unnamed: bool,
        open: bool,
        lookup: impl AsyncFn() -> Result<Parent, FsError>,
        plan: impl Fn(&mut Plan, RegionId),
    ) -> Result<(Outcome, Outcomes), FsError> {
        let mut full = Vec::new();
        let mut no_room = FsError::NoSpace;
        let mut backoff = self.backoff();
        let mut room_sought = None;
        loop {
            let parent = lookup().await?;
            let placement = parent.placement;
            let Some(region) = self.choose_region(dir, seed, file.kind, placement, &full) else {
                if !full.is_empty() {
                    self.find_room(&mut room_sought, &no_room).await?;
                    full.clear();
                    continue;
                }
                return Err(match placement.set.filter(|_| full.is_empty()) {
                    Some(set) => FsError::Io(format!(
                        "the cluster has no regions with {set}, as this directory's are to be"
                    )),
                    None => no_room,
                });
            };
            let mut new = permission::new_file(self.cred, &parent.attr, file.clone());
            acl::inherit(parent.default_acl.as_deref(), &mut new);
            let mut all = Plan::new(dir.ino.region());
            all.want(
                region,
                Intent::NewInode {
                    file: new,
                    parent: dir,
                    placement,
                    unnamed,
                },
            );
            plan(&mut all, region);
            match transact(self, &all, open, None).await {
                Ok(mut outcomes) => {
                    let made = outcomes.made.take();
                    let made = made.ok_or_else(|| FsError::Io("a transaction made no inode".into()))?;
                    self.note_placed(region);
                    return Ok((made, outcomes));
                }
                Err(Failure::Conflict) => backoff.wait().await?,
                Err(Failure::NoRoom(node, error)) => {
                    self.node.utilization.note_full(node);
                    full.push(node);
                    // room that is held back comes if one waits for it
                    if no_room != FsError::HeldBack {
                        no_room = error;
                    }
                }
                Err(Failure::Fs(error)) => return Err(error),
            }
        }
    }

    fn note_placed(&self, region: RegionId) {
        if let Ok(node) = self.links.primary(region) {
            self.node.utilization.note_placed(node);
        }
    }

    pub async fn unlink(&self, dir: InodeRef, name: Vec<u8>) -> Result<reply::Removed, FsError> {
        self.remove(dir, name, false).await
    }

    pub async fn rmdir(&self, dir: InodeRef, name: Vec<u8>) -> Result<reply::Removed, FsError> {
        match &name[..] {
            b"." => return Err(FsError::Invalid("the last component is .".into())),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.remove(dir, name, true).await
    }

    async fn remove(&self, dir: InodeRef, name: Vec<u8>, directory: bool) -> Result<reply::Removed, FsError> {
        valid_name::check(&name)?;
        let own = dir.ino.region();
        let mut revalidation = Revalidation::default();
        let mut backoff = self.backoff();
        loop {
            let Seen {
                attr: parent,
                tail,
                acl,
                entry,
                ..
            } = self.directory_and_name(dir, &name).await?;
            revalidation.found(&tail)?;
            let entry = entry.ok_or(FsError::NotFound)?;
            let inode = entry.target;
            permission::access(self.cred, &parent, acl.as_ref(), WRITE)?;
            if permission::sticky_matters(self.cred, &parent) {
                permission::remove_sticky(self.cred, &parent, &self.attr_of(inode).await?)?;
            }
            match (directory, entry.kind == FileKind::Directory) {
                (false, true) => return Err(FsError::IsDirectory),
                (true, false) => return Err(FsError::NotDirectory),
                _ => {}
            }
            let mut plan = Plan::new(own);
            plan.want(
                own,
                Intent::RemoveName {
                    dir,
                    name: name.clone(),
                    target: inode,
                },
            );
            let drop = if directory {
                Intent::DropDirectory { inode }
            } else {
                Intent::DropLink { inode }
            };
            plan.want(inode.ino.region(), drop);
            match transact(self, &plan, false, None).await {
                Ok(outcomes) => {
                    let Outcome { tail, .. } = outcomes.of(dir.ino)?;
                    let target = Some(inode);
                    return Ok(reply::Removed { tail, target });
                }
                Err(Failure::Conflict) => backoff.wait().await?,
                Err(Failure::Fs(error) | Failure::NoRoom(_, error)) => {
                    revalidation.failed(tail, error)?;
                    backoff.wait().await?;
                }
            }
        }
    }

    pub async fn link(&self, inode: InodeRef, dir: InodeRef, name: Vec<u8>) -> Result<reply::Attr, FsError> {
        valid_name::check_new(&name)?;
        let own = dir.ino.region();
        let mut backoff = self.backoff();
        loop {
            self.directory_without(dir, &name).await?;
            // elsewhere, collecting tells the type
            let kind = match inode.ino.region() == own {
                true => {
                    self.on(own, |r| r.attr(inode.ino, Some(inode.generation)))
                        .await?
                        .0
                        .kind
                }
                false => FileKind::File,
            };
            if kind == FileKind::Directory {
                return Err(FsError::NotPermitted);
            }
            let mut plan = Plan::new(own);
            plan.want(
                own,
                Intent::AddName {
                    dir,
                    name: name.clone(),
                    target: Some(inode),
                    kind,
                },
            );
            plan.want(inode.ino.region(), Intent::AddLink { inode });
            match transact(self, &plan, false, None).await {
                Ok(outcomes) => {
                    let Outcome { attr, tail } = outcomes.of(inode.ino)?;
                    return Ok(reply::Attr { attr, tail });
                }
                Err(Failure::Conflict) => backoff.wait().await?,
                Err(Failure::Fs(error) | Failure::NoRoom(_, error)) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_believed_only_if_nothing_has_changed_meanwhile() {
        let mut revalidation = Revalidation::default();
        assert_eq!(revalidation.found(&7), Ok(()));
        assert_eq!(revalidation.failed(7, FsError::NotFound), Ok(()));
        assert_eq!(
            revalidation.found(&8),
            Ok(()),
            "it may say the same as before, but it has changed"
        );
        assert_eq!(revalidation.failed(8, FsError::Stale), Ok(()));
        assert_eq!(revalidation.found(&8), Err(FsError::Stale));
    }

    #[test]
    fn an_attempt_that_ends_otherwise_leaves_nothing_to_believe() {
        let mut revalidation = Revalidation::default();
        assert_eq!(revalidation.failed(7, FsError::Exists), Ok(()));
        assert_eq!(revalidation.found(&8), Ok(()));
        // another transaction was in the way
        assert_eq!(revalidation.found(&7), Ok(()));
        assert_eq!(
            revalidation.failed(7, FsError::NotEmpty),
            Ok(()),
            "the directory, but is that name still its?"
        );
        assert_eq!(revalidation.found(&7), Err(FsError::NotEmpty));
        assert_eq!(revalidation.failed(7, FsError::NoSpace), Err(FsError::NoSpace));
    }
}
