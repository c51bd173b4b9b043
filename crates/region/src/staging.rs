//! Staging: what a list of intents would do to this region's inodes, worked out without changing anything.
//!
//! Checks look at each inode as it would be after the intents before. Slots of new inodes are taken;
//! [`crate::staged_change`] gives them back when nothing comes of it.

use crate::change::check_xattrs;
use crate::directory::Dentry;
use crate::layout::read_back;
use crate::region::is_worn;
use crate::stage::{Stage, Staged, rdev};
use crate::store::Urgency;
use crate::{Region, RegionError};
use polvo_format::{
    Entry, FileKind, Generation, INLINE_ENTRY_MAX, INODE_SIZE, Init, Ino, InodeHead, NAME_MAX, SYMLINK_MAX,
};
use polvo_proto::{FsError, InodeRef, Intent, NewFile, Placement};

/// Most names of an inode that is no directory.
const LINKS_MAX: u32 = 65_000;

fn is_directory(kind: FileKind) -> i64 {
    i64::from(kind == FileKind::Directory)
}

fn check_name(name: &[u8]) -> Result<(), RegionError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong.into());
    }
    if matches!(name, b"" | b"." | b"..") || polvo_format::has_slash_or_nul(name) {
        return Err(FsError::Invalid("file name".into()).into());
    }
    Ok(())
}

impl Region {
    /// Gives the slots of new inodes back, which nobody knows of.
    pub(crate) fn give_slots(&mut self, stage: &Stage) {
        for fresh in stage.inodes.iter().filter(|s| s.fresh) {
            debug_assert!(
                self.cache.known(fresh.slot()).is_none(),
                "nobody knows of slot {}",
                fresh.slot()
            );
            let run = self.store.slot_run(fresh.slot());
            self.store.space.give(run);
        }
    }

    /// May this list of intents dig into the reserve? It may when it only takes away.
    pub(crate) fn urgency(intents: &[Intent]) -> Urgency {
        let frees = intents.iter().all(|intent| {
            matches!(
                intent,
                Intent::RemoveName { .. }
                    | Intent::DropLink { .. }
                    | Intent::DropDirectory { .. }
                    | Intent::Touch { .. }
                    | Intent::Pin { .. }
            )
        });
        if frees { Urgency::Frees } else { Urgency::Normal }
    }

    /// Stages one more of the intents. Gives which of the staged inodes it is about.
    pub(crate) fn stage_one(
        &mut self,
        stage: &mut Stage,
        intents: &[Intent],
        number: usize,
        now_ns: i64,
    ) -> Result<usize, RegionError> {
        match &intents[number] {
            Intent::NewInode {
                file,
                parent,
                placement,
                unnamed,
            } => self.stage_new(stage, file, *parent, *placement, *unnamed, now_ns),
            Intent::AddName { .. } | Intent::RemoveName { .. } | Intent::ReplaceName { .. } => {
                self.stage_name(stage, intents, number, now_ns)
            }
            Intent::AddLink { inode } => {
                let at = self.stage_inode(stage, *inode)?;
                let staged = &mut stage.inodes[at];
                match staged.attr.nlink {
                    _ if staged.attr.kind == FileKind::Directory => return Err(FsError::NotPermitted.into()),
                    0 if !staged.linkable => return Err(FsError::NotFound.into()),
                    LINKS_MAX.. => return Err(FsError::TooManyLinks.into()),
                    nlink => staged.set_nlink(nlink + 1, now_ns),
                }
                Ok(at)
            }
            Intent::DropLink { inode } => {
                let at = self.stage_inode(stage, *inode)?;
                let staged = &mut stage.inodes[at];
                if staged.attr.kind == FileKind::Directory {
                    return Err(FsError::IsDirectory.into());
                }
                let nlink = staged.attr.nlink.checked_sub(1).ok_or(FsError::NotFound)?;
                staged.set_nlink(nlink, now_ns);
                Ok(at)
            }
            Intent::DropDirectory { inode } => {
                let at = self.stage_directory(stage, *inode)?;
                let staged = &mut stage.inodes[at];
                if staged.attr.size != 0 {
                    return Err(FsError::NotEmpty.into());
                }
                if staged.inode.ino == Ino::ROOT {
                    return Err(FsError::Busy.into());
                }
                staged.set_nlink(0, now_ns);
                Ok(at)
            }
            Intent::SetParent { inode, parent } => {
                let at = self.stage_directory(stage, *inode)?;
                stage.inodes[at].set_parent(*parent, now_ns);
                Ok(at)
            }
            Intent::Touch { inode } => {
                let at = self.stage_inode(stage, *inode)?;
                stage.inodes[at].touch(now_ns);
                Ok(at)
            }
            Intent::Pin { inode } => self.stage_directory(stage, *inode),
        }
    }

    /// The same for an intent about a name.
    fn stage_name(
        &mut self,
        stage: &mut Stage,
        intents: &[Intent],
        number: usize,
        now_ns: i64,
    ) -> Result<usize, RegionError> {
        match &intents[number] {
            Intent::AddName {
                dir,
                name,
                target,
                kind,
            } => {
                check_name(name)?;
                let target = target.or(stage.made);
                let target = target.ok_or_else(|| FsError::Invalid("name of nothing".into()))?;
                let at = self.stage_directory(stage, *dir)?;
                if self.staged_name(stage, intents, at, name)?.is_some() {
                    return Err(FsError::Exists.into());
                }
                let staged = &mut stage.inodes[at];
                let cookie = staged.next_cookie;
                if cookie == u64::MAX {
                    return Err(FsError::NoSpace.into());
                }
                staged.next_cookie += 1;
                let new = Dentry {
                    cookie,
                    target,
                    kind: *kind,
                };
                staged.point_name(number, name, new, now_ns);
                staged.names_changed(1, is_directory(*kind), now_ns);
                Ok(at)
            }
            Intent::RemoveName { dir, name, target } => {
                let (at, old) = self.stage_known_name(stage, intents, *dir, name, *target)?;
                let staged = &mut stage.inodes[at];
                staged.remove_name(number, name, old, now_ns);
                staged.names_changed(-1, -is_directory(old.kind), now_ns);
                Ok(at)
            }
            Intent::ReplaceName {
                dir,
                name,
                old,
                new,
                kind,
            } => {
                let (at, known) = self.stage_known_name(stage, intents, *dir, name, *old)?;
                let staged = &mut stage.inodes[at];
                let new = Dentry {
                    cookie: known.cookie,
                    target: *new,
                    kind: *kind,
                };
                staged.point_name(number, name, new, now_ns);
                staged.names_changed(0, is_directory(*kind) - is_directory(known.kind), now_ns);
                Ok(at)
            }
            _ => unreachable!("the other intents are about no name"),
        }
    }

    /// The directory of a name that is there and stands for `target`, and what is known of the name.
    fn stage_known_name(
        &mut self,
        stage: &mut Stage,
        intents: &[Intent],
        dir: InodeRef,
        name: &[u8],
        target: InodeRef,
    ) -> Result<(usize, Dentry), RegionError> {
        let at = self.stage_directory(stage, dir)?;
        let known = self.staged_name(stage, intents, at, name)?;
        let known = known.filter(|known| known.target == target).ok_or(FsError::NotFound)?;
        Ok((at, known))
    }

    /// The staged state of an inode, from its present state if this is the first intent about it.
    fn stage_inode(&mut self, stage: &mut Stage, inode: InodeRef) -> Result<usize, RegionError> {
        if let Some(at) = stage.inodes.iter().position(|s| s.inode.ino == inode.ino) {
            let known = stage.inodes[at].inode == inode;
            return if known { Ok(at) } else { Err(FsError::Stale.into()) };
        }
        let (_, found) = self.inode_to_change(inode)?;
        debug_assert_eq!(found.inode_ref(), inode, "the inode that was meant");
        let buffers = stage.spare.pop().unwrap_or_default();
        stage.inodes.push(Staged::of(found, buffers));
        Ok(stage.inodes.len() - 1)
    }

    /// The same for a directory that is alive.
    fn stage_directory(&mut self, stage: &mut Stage, dir: InodeRef) -> Result<usize, RegionError> {
        let at = self.stage_inode(stage, dir)?;
        match &stage.inodes[at].attr {
            attr if attr.kind != FileKind::Directory => Err(FsError::NotDirectory.into()),
            attr if attr.nlink == 0 => Err(FsError::NotFound.into()),
            _ => Ok(at),
        }
    }

    /// What a name stands for after the intents so far.
    fn staged_name(
        &mut self,
        stage: &Stage,
        intents: &[Intent],
        at: usize,
        name: &[u8],
    ) -> Result<Option<Dentry>, RegionError> {
        let staged = &stage.inodes[at];
        let is_about = |(number, _): &&(usize, _)| intents[*number].name() == Some(name);
        if let Some((_, known)) = staged.names.iter().rev().find(is_about) {
            return Ok(*known);
        }
        if staged.fresh {
            return Ok(None);
        }
        let inode = self.cache.get(&self.store, staged.slot())?;
        Ok(inode.directory_body()?.get(name))
    }

    /// Stages a new inode in a slot that it takes.
    fn stage_new(
        &mut self,
        stage: &mut Stage,
        file: &NewFile,
        parent: InodeRef,
        placement: Placement,
        unnamed: bool,
        now_ns: i64,
    ) -> Result<usize, RegionError> {
        check_new_file(file, unnamed)?;
        let (inode, version) = self.new_inode()?;
        let init = first_entry(file, placement, unnamed, now_ns);
        let buffers = stage.spare.pop().unwrap_or_default();
        let mut staged = Staged::new(inode, version, file, &init, buffers);
        if file.kind == FileKind::Directory {
            staged.parent = parent;
        }
        staged.linkable = unnamed;
        staged.push(&Entry::Init(init));
        for (n, bytes) in file.target.chunks(INLINE_ENTRY_MAX).enumerate() {
            let offset = (n * INLINE_ENTRY_MAX) as u64;
            Entry::Inline {
                offset,
                bytes,
                time_ns: now_ns,
            }
            .encode(true, &mut staged.entries);
        }
        for (name, value) in &file.xattrs {
            Entry::set_xattr(name, value, now_ns).for_each(|part| staged.push(&part));
        }
        assert!(
            stage.inodes.iter().all(|other| other.inode.ino != inode.ino),
            "slot {} is taken once",
            inode.ino.slot()
        );
        debug_assert!(
            read_back(0, &staged.entries)
                .next()
                .is_some_and(|first| first.entry == Entry::Init(init)),
            "a log begins with a checkpoint"
        );
        stage.made = Some(inode);
        stage.inodes.push(staged);
        Ok(stage.inodes.len() - 1)
    }

    /// Takes a slot. Gives the inode that it is to hold, of a generation that it has not had, and the version of its
    /// log.
    fn new_inode(&mut self) -> Result<(InodeRef, u32), RegionError> {
        let slot = self.store.take_slot()?;
        let ino = self.store.ino(slot);
        let head = match InodeHead::decode(&self.store.read_slot(slot), ino) {
            Ok(head) => head,
            // left in use, so that nobody gets it again
            Err(e) => return Err(self.store.corrupt("inode", slot * INODE_SIZE as u64, e)),
        };
        assert!(
            head.kind.is_none() && !is_worn(head.generation, head.tail),
            "slot {slot} of {} was free",
            self.store.region
        );
        // The floor is for a slot that nobody has used since its segment came, and for one whose last users are lost. A log's version
        // is that of its slot's own past, where it has one.
        let floor = self.store.floor;
        let (before, version) = match head.generation {
            Generation(0) => (floor.generation, floor.version),
            before => (before.max(floor.generation), head.tail.version()),
        };
        assert!(
            !self.locked.contains(slot) && !self.sessions.is_held(slot),
            "nobody has slot {slot}"
        );
        let generation = Generation(before.0 + 1);
        debug_assert!(
            self.cache.known(slot).is_none() && !self.dead.contains(&slot),
            "slot {slot} is empty"
        );
        Ok((InodeRef { ino, generation }, version))
    }
}

fn check_new_file(file: &NewFile, unnamed: bool) -> Result<(), RegionError> {
    let symlink = file.kind == FileKind::Symlink;
    if file.kind == FileKind::Directory && unnamed {
        return Err(FsError::Invalid("directory without a name".into()).into());
    }
    if symlink && file.target.is_empty() || !symlink && !file.target.is_empty() || file.target.contains(&0) {
        return Err(FsError::Invalid("target of a symbolic link".into()).into());
    }
    if file.target.len() > SYMLINK_MAX {
        return Err(FsError::NameTooLong.into());
    }
    check_xattrs(&file.xattrs)
}

/// What the log of a new inode begins with.
fn first_entry(file: &NewFile, placement: Placement, unnamed: bool, now_ns: i64) -> Init {
    let directory = file.kind == FileKind::Directory;
    Init {
        mode: file.mode & 0o7777,
        nlink: match (unnamed, directory) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        },
        uid: file.uid,
        gid: file.gid,
        size: file.target.len() as u64,
        mtime_ns: now_ns,
        ctime_ns: now_ns,
        atime_ns: now_ns,
        rdev_or_cookie: match directory {
            true => 1,
            false => rdev(file),
        },
        placement: if directory { placement.into() } else { 0 },
    }
}
