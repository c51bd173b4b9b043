//! Rename: up to four inodes in up to four regions, in one transaction.

use crate::names::acl::{self, Acl};
use crate::names::name_services::{Revalidation, must_be_directory};
use crate::names::permission::{self, EXECUTE, WRITE};
use crate::names::rename_lease::RenameLease;
use crate::names::rename_plan::{self, FoundNames, Rename};
use crate::names::valid_name;
use crate::request::context::RequestContext;
use crate::transactions::coordinator::{Failure, transact};
use polvo_format::{Attr, FileKind, Ino};
use polvo_proto::{DirEntry, FsError, InodeRef, NewFile, RenameMode, ask, reply};

/// Deepest chain of parents that is walked.
const DEPTH_MAX: u32 = 1 << 16;

/// Why an attempt did not succeed.
enum Missed {
    /// Before there was a transaction.
    Before(Failure),
    /// The transaction failed.
    Transaction(Failure),
}

impl RequestContext<'_> {
    pub async fn rename(&self, rename: Rename) -> Result<reply::Renamed, FsError> {
        valid_name::check(&rename.old_name)?;
        valid_name::check_new(&rename.new_name).map_err(|error| match error {
            FsError::Exists => FsError::Busy, // "." and "..": EBUSY
            error => error,
        })?;
        let mut revalidation = Revalidation::default();
        let mut backoff = self.backoff();
        loop {
            let found = self.find_names(&rename).await?;
            let tails = (found.source_tail, found.dest_tail);
            revalidation.found(&tails)?;
            if let Some(verdict) = found.verdict(rename.mode) {
                // the names were looked up one after the other: together they were so only if the first did not change
                let now = self.find(rename.old_dir, &rename.old_name).await?;
                if now.is_some_and(|(_, tail)| tail == found.source_tail) {
                    return verdict.map(|()| found.answer());
                }
                backoff.wait().await?;
                continue;
            }
            let lease = match found.moves_directory(&rename) {
                true => Some(RenameLease::take(self, rename.new_dir.ino.region()).await?),
                false => None,
            };
            let result = self.attempt(&rename, &found, lease.as_ref()).await;
            if let Some(lease) = lease {
                lease.release(self).await;
            }
            match result {
                Ok(()) => return Ok(found.answer()),
                Err(Missed::Before(Failure::Conflict) | Missed::Transaction(Failure::Conflict)) => {
                    backoff.wait().await?
                }
                // the new name was made since it was looked up; that it is there is no answer to who would replace it
                Err(Missed::Transaction(Failure::Fs(FsError::Exists))) if !rename.mode.must_be_new() => {
                    backoff.wait().await?;
                }
                Err(Missed::Transaction(Failure::Fs(error) | Failure::NoRoom(_, error))) => {
                    revalidation.failed(tails, error)?;
                    backoff.wait().await?;
                }
                Err(Missed::Before(Failure::Fs(error) | Failure::NoRoom(_, error))) => return Err(error),
            }
        }
    }

    /// Looks up both names, one after the other, and checks what the caller may do with them.
    async fn find_names(&self, rename: &Rename) -> Result<FoundNames, FsError> {
        let Rename {
            old_dir,
            old_name,
            new_dir,
            new_name,
            mode,
        } = rename;
        let (new_parent, dest_tail) = self
            .on(new_dir.ino.region(), |r| {
                let (attr, tail) = r.attr(new_dir.ino, Some(new_dir.generation))?;
                must_be_directory(&attr)?;
                Ok((attr, tail))
            })
            .await?;
        let is_asked_about = !permission::is_trusted(self.cred) || matches!(mode, RenameMode::Whiteout { .. });
        let old_parent = match is_asked_about && old_dir != new_dir {
            true => self.attr_of(*old_dir).await?,
            false => new_parent,
        };
        self.may(&old_parent, EXECUTE).await?;
        self.may(&new_parent, EXECUTE).await?;
        let (source, source_tail) = self.find(*old_dir, old_name).await?.ok_or(FsError::NotFound)?;
        let dest = self.find(*new_dir, new_name).await?.map(|(entry, _)| entry);
        let whiteout = match mode {
            RenameMode::Whiteout { owner, .. } => Some(permission::new_file(self.cred, &old_parent, whiteout(*owner))),
            _ => None,
        };
        let found = FoundNames {
            source,
            dest,
            whiteout,
            source_tail,
            dest_tail,
        };
        if found.is_nothing(*mode) {
            return Ok(found);
        }
        let FoundNames { source, dest, .. } = &found;
        if !permission::is_trusted(self.cred) {
            let changes_parent = old_dir != new_dir;
            self.may_move(&old_parent, source, changes_parent).await?;
            self.may(&new_parent, WRITE).await?;
            if let Some(dest) = dest {
                self.may_move(&new_parent, dest, changes_parent && *mode == RenameMode::Exchange)
                    .await?;
            }
        }
        Ok(found)
    }

    /// All of `want` on an inode, wherever it lies, else EACCES.
    async fn may(&self, attr: &Attr, want: u32) -> Result<(), FsError> {
        if permission::is_trusted(self.cred) {
            return Ok(());
        }
        let inode = InodeRef {
            ino: attr.ino,
            generation: attr.generation,
        };
        let region = attr.ino.region();
        let acl = if self.node.serves(region) {
            self.on(region, |r| self.acl_here(r, inode)).await?
        } else {
            let name = acl::ACCESS.to_vec();
            match self.ask_region(region, ask::GetXattr { inode, name }).await {
                Ok(value) => Some(Acl::decode(&value)?),
                Err(FsError::NoAttribute) => None,
                Err(error) => return Err(error),
            }
        };
        permission::access(self.cred, attr, acl.as_ref(), want)
    }

    /// The caller may take a name out of a directory; a directory that gets another parent changes itself.
    async fn may_move(&self, parent: &Attr, entry: &DirEntry, changes_parent: bool) -> Result<(), FsError> {
        self.may(parent, WRITE).await?;
        let attr = self.attr_of(entry.target).await?;
        permission::remove_sticky(self.cred, parent, &attr)?;
        match changes_parent && entry.kind == FileKind::Directory {
            true => self.may(&attr, WRITE).await,
            false => Ok(()),
        }
    }

    /// True when `dir` is `ancestor` or lies below it.
    async fn is_within(&self, dir: InodeRef, ancestor: InodeRef) -> Result<bool, FsError> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at.ino == ancestor.ino {
                return Ok(true);
            }
            if at.ino == Ino::ROOT {
                return Ok(false);
            }
            at = self.parent_of(at).await?;
        }
        Err(FsError::Io(format!(
            "the parents of directory {:?} do not end at the root",
            dir.ino
        )))
    }

    /// An answer that follows from what the names stood for when they were looked up, which may be long ago: the wait for the
    /// rename lock comes in between. If they stand for something else by now, look up again.
    async fn if_still(&self, rename: &Rename, found: &FoundNames, answer: FsError) -> Missed {
        let names = async {
            // a directory that was removed is in no other one, if somebody holds it open
            for dir in [rename.old_dir, rename.new_dir] {
                if self.attr_of(dir).await?.nlink == 0 {
                    return Err(FsError::NotFound);
                }
            }
            let source = self.find(rename.old_dir, &rename.old_name).await?;
            let dest = self.find(rename.new_dir, &rename.new_name).await?;
            Ok::<_, FsError>((source.map(|(entry, _)| entry), dest.map(|(entry, _)| entry)))
        };
        match names.await {
            Ok((Some(source), dest)) if source == found.source && dest == found.dest => {
                Missed::Before(Failure::Fs(answer))
            }
            Ok(_) => Missed::Before(Failure::Conflict),
            Err(error) => Missed::Before(Failure::from(error)),
        }
    }

    async fn attempt(&self, rename: &Rename, found: &FoundNames, lease: Option<&RenameLease>) -> Result<(), Missed> {
        let early = |error: FsError| Missed::Before(Failure::from(error));
        let exchange = rename.mode == RenameMode::Exchange;
        let own_subtree = "a directory cannot be moved into itself";
        let is_directory = |entry: &DirEntry| entry.kind == FileKind::Directory;
        if lease.is_some() {
            if is_directory(&found.source)
                && self
                    .is_within(rename.new_dir, found.source.target)
                    .await
                    .map_err(early)?
            {
                return Err(self.if_still(rename, found, FsError::Invalid(own_subtree.into())).await);
            }
            if let Some(dest) = found.dest.as_ref().filter(|dest| exchange && is_directory(dest))
                && self.is_within(rename.old_dir, dest.target).await.map_err(early)?
            {
                return Err(self.if_still(rename, found, FsError::Invalid(own_subtree.into())).await);
            }
        }
        if !exchange
            && found
                .dest
                .as_ref()
                .is_some_and(|dest| dest.target.ino == rename.old_dir.ino)
        {
            // it holds at least the source
            return Err(self.if_still(rename, found, FsError::NotEmpty).await);
        }
        let plan = rename_plan::plan(rename, found);
        let done = transact(self, &plan, false, lease).await;
        done.map(drop).map_err(Missed::Transaction)
    }
}

/// What overlay file systems take for a name that is no more: the character device 0/0, open to nobody.
fn whiteout((uid, gid): (u32, u32)) -> NewFile {
    NewFile {
        kind: FileKind::CharDevice,
        mode: 0,
        uid,
        gid,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}
