//! A rename: what was asked for, what its names were found to stand for, and which intents it is made of.

use crate::transactions::coordinator::Plan;
use polvo_format::{FileKind, Tail};
use polvo_proto::{DirEntry, FsError, InodeRef, Intent, NewFile, Placement, RenameMode, reply};

/// A rename as asked for.
pub(crate) struct Rename {
    pub old_dir: InodeRef,
    pub old_name: Vec<u8>,
    pub new_dir: InodeRef,
    pub new_name: Vec<u8>,
    pub mode: RenameMode,
}

/// What was found of a rename's two names.
pub(crate) struct FoundNames {
    pub source: DirEntry,
    pub dest: Option<DirEntry>,
    /// What is left at the old name.
    pub whiteout: Option<NewFile>,
    /// The old directory's log when its name was looked up.
    pub source_tail: Tail,
    /// The new directory's log before its name was looked up.
    pub dest_tail: Tail,
}

impl FoundNames {
    /// Nothing is to be done whoever asks: by what the two names stand for it fails, or they are two names of one file.
    pub fn is_nothing(&self, mode: RenameMode) -> bool {
        match (mode, &self.dest) {
            (mode, Some(_)) if mode.must_be_new() => true,
            (RenameMode::Exchange, None) => true,
            (_, Some(dest)) => dest.target.ino == self.source.target.ino,
            _ => false,
        }
    }

    /// The rename's answer, if what the two names stand for decides it.
    pub fn verdict(&self, mode: RenameMode) -> Option<Result<(), FsError>> {
        match (mode, &self.dest) {
            (mode, Some(_)) if mode.must_be_new() => Some(Err(FsError::Exists)),
            (RenameMode::Exchange, None) => Some(Err(FsError::NotFound)),
            (_, Some(dest)) if dest.target.ino == self.source.target.ino => Some(Ok(())),
            (mode, Some(dest)) if mode.replaces() => match (self.source.kind, dest.kind) {
                (FileKind::Directory, FileKind::Directory) => None,
                (FileKind::Directory, _) => Some(Err(FsError::NotDirectory)),
                (_, FileKind::Directory) => Some(Err(FsError::IsDirectory)),
                _ => None,
            },
            _ => None,
        }
    }

    /// What the rename was about.
    pub fn answer(&self) -> reply::Renamed {
        reply::Renamed {
            moved: Some(self.source.target),
            other: self.dest.as_ref().map(|dest| dest.target),
        }
    }

    /// True when the rename gives a directory another parent.
    pub fn moves_directory(&self, rename: &Rename) -> bool {
        let moves = |entry: &DirEntry| entry.kind == FileKind::Directory;
        let swapped = rename.mode == RenameMode::Exchange && self.dest.as_ref().is_some_and(moves);
        rename.old_dir.ino != rename.new_dir.ino && (moves(&self.source) || swapped)
    }
}

/// Who changes what. The new directory's region coordinates.
pub(crate) fn plan(rename: &Rename, found: &FoundNames) -> Plan {
    debug_assert!(
        found.verdict(rename.mode).is_none(),
        "what the two names decide has no plan"
    );
    let plan = Plan::new(rename.new_dir.ino.region());
    let mut steps = Steps { rename, found, plan };
    match (&rename.mode, &found.dest) {
        (RenameMode::Exchange, Some(dest)) => steps.exchange(dest),
        (_, Some(dest)) => steps.replace(dest),
        (_, None) => steps.add(),
    }
    steps.reparent(&found.source, rename.new_dir);
    steps.plan
}

struct Steps<'a> {
    rename: &'a Rename,
    found: &'a FoundNames,
    plan: Plan,
}

impl Steps<'_> {
    /// Each of the two names stands for the other's inode.
    fn exchange(&mut self, dest: &DirEntry) {
        self.point_new_name_at_source(dest.target);
        let intent = Intent::ReplaceName {
            dir: self.rename.old_dir,
            name: self.rename.old_name.clone(),
            old: self.found.source.target,
            new: dest.target,
            kind: dest.kind,
        };
        self.plan.want(self.rename.old_dir.ino.region(), intent);
        self.reparent(dest, self.rename.old_dir);
    }

    /// The inode that the new name stood for loses it.
    fn replace(&mut self, dest: &DirEntry) {
        self.remove_old_name();
        self.point_new_name_at_source(dest.target);
        let inode = dest.target;
        let drop = match dest.kind {
            FileKind::Directory => Intent::DropDirectory { inode },
            _ => Intent::DropLink { inode },
        };
        self.plan.want(inode.ino.region(), drop);
    }

    /// The new name is new.
    fn add(&mut self) {
        self.remove_old_name();
        let intent = Intent::AddName {
            dir: self.rename.new_dir,
            name: self.rename.new_name.clone(),
            target: Some(self.found.source.target),
            kind: self.found.source.kind,
        };
        self.plan.want(self.rename.new_dir.ino.region(), intent);
    }

    fn point_new_name_at_source(&mut self, old: InodeRef) {
        let intent = Intent::ReplaceName {
            dir: self.rename.new_dir,
            name: self.rename.new_name.clone(),
            old,
            new: self.found.source.target,
            kind: self.found.source.kind,
        };
        self.plan.want(self.rename.new_dir.ino.region(), intent);
    }

    fn remove_old_name(&mut self) {
        let intent = Intent::RemoveName {
            dir: self.rename.old_dir,
            name: self.rename.old_name.clone(),
            target: self.found.source.target,
        };
        self.plan.want(self.rename.old_dir.ino.region(), intent);
        if let Some(file) = &self.found.whiteout {
            self.leave_whiteout(file);
        }
    }

    /// Beside its directory, so that the rename concerns no region more.
    fn leave_whiteout(&mut self, file: &NewFile) {
        let dir = self.rename.old_dir;
        let inode = Intent::NewInode {
            file: file.clone(),
            parent: dir,
            placement: Placement::default(),
            unnamed: false,
        };
        let name = Intent::AddName {
            dir,
            name: self.rename.old_name.clone(),
            target: None,
            kind: file.kind,
        };
        self.plan.want(dir.ino.region(), inode);
        self.plan.want(dir.ino.region(), name);
    }

    /// A moved inode changes its time; a directory that gets another parent changes that too.
    fn reparent(&mut self, entry: &DirEntry, parent: InodeRef) {
        let inode = entry.target;
        let changes_parent = entry.kind == FileKind::Directory && self.rename.old_dir.ino != self.rename.new_dir.ino;
        let intent = match changes_parent {
            true => Intent::SetParent { inode, parent },
            false => Intent::Touch { inode },
        };
        self.plan.want(inode.ino.region(), intent);
    }
}
