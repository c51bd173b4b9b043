//! What names stand for what: one model for all directories of a run, as a rename touches two.
//!
//! Promised (ARCHITECTURE.md, *Collect-dispatch*, *Coherence between clients*) and checked here: create, unlink, rmdir,
//! rename, link, lookup, the listing of a directory that fits one answer, and the number of an inode's names are
//! linearizable, across directories and nodes. An inode that is said to be gone has no name any more.
//!
//! An operation of unknown outcome that makes an inode leaves a *placeholder* in the model: which inode it is shows when
//! somebody first sees one there that no acknowledged operation has made.

use crate::linearizability::Model;
use crate::operation::Name;
use polvo_proto::{FsError, RenameMode};

/// An inode of the run. [`ROOT`] is the root directory.
pub type Id = u16;

/// The root directory.
pub const ROOT: Id = 0;

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Ask {
    Lookup {
        dir: Id,
        name: Name,
    },
    /// `id`: what was made, or a placeholder for it.
    Create {
        dir: Id,
        name: Name,
        id: Id,
    },
    Unlink {
        dir: Id,
        name: Name,
    },
    Rmdir {
        dir: Id,
        name: Name,
    },
    Rename {
        old_dir: Id,
        old: Name,
        new_dir: Id,
        new: Name,
        mode: RenameMode,
    },
    Link {
        id: Id,
        dir: Id,
        name: Name,
    },
    List {
        dir: Id,
    },
    Links {
        id: Id,
    },
    /// Anything that needs the inode.
    Use {
        id: Id,
    },
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Told {
    Done,
    Found(Id),
    Entries(Vec<(Name, Id)>),
    Links(u32),
    Refused(FsError),
}

/// All names: directory, name, inode; ascending.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tree {
    entries: Vec<(Id, Name, Id)>,
}

impl Tree {
    fn find(&self, dir: Id, name: Name) -> Option<Id> {
        let at = self.entries.partition_point(|entry| (entry.0, entry.1) < (dir, name));
        self.entries
            .get(at)
            .filter(|entry| (entry.0, entry.1) == (dir, name))
            .map(|entry| entry.2)
    }

    fn names_of(&self, id: Id) -> usize {
        self.entries.iter().filter(|entry| entry.2 == id).count()
    }

    fn is_alive(&self, id: Id) -> bool {
        id == ROOT || self.entries.iter().any(|entry| entry.2 == id)
    }

    fn is_empty(&self, dir: Id) -> bool {
        !self.entries.iter().any(|entry| entry.0 == dir)
    }

    /// True when `dir` is `top` or below it.
    fn is_within(&self, dir: Id, top: Id) -> bool {
        let mut at = dir;
        for _ in 0..=self.entries.len() {
            if at == top {
                return true;
            }
            match self.entries.iter().find(|entry| entry.2 == at) {
                Some(entry) => at = entry.0,
                None => return false,
            }
        }
        true // a loop: nothing good
    }

    fn set(&mut self, dir: Id, name: Name, id: Option<Id>) {
        self.entries.retain(|entry| (entry.0, entry.1) != (dir, name));
        if let Some(id) = id {
            self.entries.push((dir, name, id));
            self.entries.sort_unstable();
        }
    }

    fn replace_id(&mut self, old: Id, new: Id) {
        for entry in &mut self.entries {
            if entry.0 == old {
                entry.0 = new;
            }
            if entry.2 == old {
                entry.2 = new;
            }
        }
        self.entries.sort_unstable();
    }
}

/// What is known of an inode before the search begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// It is a directory.
    pub is_directory: bool,
    /// How it came to be.
    pub origin: Origin,
}

/// How an inode came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// By an operation that was acknowledged (or it is the root).
    Acknowledged,
    /// Nobody was told: by one of those of unknown outcome.
    Unclear,
    /// It stands for what an operation of unknown outcome may have made.
    Placeholder,
}

/// The directories of a run; inodes by their number in here.
pub struct Names {
    /// All inodes of the run, the root first.
    pub inodes: Vec<Known>,
}

impl Names {
    fn is_directory(&self, id: Id) -> bool {
        self.inodes[usize::from(id)].is_directory
    }

    /// What stands in the tree at a place turns out to be `seen`. False when it cannot be.
    fn reveal(&self, tree: &mut Tree, there: Option<Id>, seen: Id) -> bool {
        let Some(there) = there else { return false };
        if there == seen {
            return true;
        }
        let (known, now) = (self.inodes[usize::from(there)], self.inodes[usize::from(seen)]);
        let fits = known.origin == Origin::Placeholder
            && now.origin == Origin::Unclear
            && known.is_directory == now.is_directory
            && !tree.is_alive(seen);
        if fits {
            tree.replace_id(there, seen);
        }
        fits
    }

    /// The tree after a rename; or the errors of which it gives one.
    fn rename(&self, tree: &Tree, from: (Id, Name), to: (Id, Name), mode: RenameMode) -> Result<Tree, Vec<FsError>> {
        let mut errors = Vec::new();
        if !tree.is_alive(from.0) || !tree.is_alive(to.0) {
            errors.extend([FsError::NotFound, FsError::Stale]);
        }
        let (moved, target) = (tree.find(from.0, from.1), tree.find(to.0, to.1));
        let Some(moved) = moved else {
            errors.push(FsError::NotFound);
            return Err(errors);
        };
        let loops = |id: Id, dir: Id| self.is_directory(id) && tree.is_within(dir, id);
        if loops(moved, to.0) {
            errors.push(FsError::Invalid(String::new()));
        }
        let mut after = tree.clone();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => errors.push(FsError::Exists),
            (RenameMode::Exchange, None) => errors.push(FsError::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                if loops(target, from.0) {
                    errors.push(FsError::Invalid(String::new()));
                }
                after.set(from.0, from.1, Some(target));
                after.set(to.0, to.1, Some(moved));
            }
            (RenameMode::Replace, Some(target)) if target == moved => {}
            // drawn by nobody: a rename is not told which inode it leaves
            (RenameMode::Whiteout { .. }, _) => errors.push(FsError::NotSupported(String::new())),
            (RenameMode::Replace | RenameMode::NoReplace, target) => {
                if let Some(target) = target {
                    match (self.is_directory(moved), self.is_directory(target)) {
                        (true, false) => errors.push(FsError::NotDirectory),
                        (false, true) => errors.push(FsError::IsDirectory),
                        _ => {}
                    }
                    if self.is_directory(target) && !tree.is_empty(target) {
                        errors.push(FsError::NotEmpty);
                    }
                }
                after.set(from.0, from.1, None);
                after.set(to.0, to.1, Some(moved));
            }
        }
        if errors.is_empty() { Ok(after) } else { Err(errors) }
    }

    /// The tree after what is answered with `Done`; or the errors of which it gives one.
    fn change(&self, tree: &Tree, ask: &Ask) -> Result<Tree, Vec<FsError>> {
        let mut errors = Vec::new();
        let mut after = tree.clone();
        let gone = [FsError::NotFound, FsError::Stale];
        match ask {
            Ask::Create { dir, name, id } => {
                if !tree.is_alive(*dir) {
                    errors.extend(gone);
                }
                if tree.find(*dir, *name).is_some() {
                    errors.push(FsError::Exists);
                }
                after.set(*dir, *name, Some(*id));
            }
            Ask::Link { id, dir, name } => {
                if !tree.is_alive(*dir) || !tree.is_alive(*id) {
                    errors.extend(gone);
                }
                if tree.find(*dir, *name).is_some() {
                    errors.push(FsError::Exists);
                }
                if self.is_directory(*id) {
                    errors.push(FsError::NotPermitted);
                }
                after.set(*dir, *name, Some(*id));
            }
            Ask::Unlink { dir, name } | Ask::Rmdir { dir, name } => {
                let directory = matches!(ask, Ask::Rmdir { .. });
                if !tree.is_alive(*dir) {
                    errors.extend(gone);
                }
                match tree.find(*dir, *name) {
                    None => errors.push(FsError::NotFound),
                    Some(id) if self.is_directory(id) && !directory => errors.push(FsError::IsDirectory),
                    Some(id) if !self.is_directory(id) && directory => errors.push(FsError::NotDirectory),
                    Some(id) if directory && !tree.is_empty(id) => errors.push(FsError::NotEmpty),
                    Some(_) => {}
                }
                after.set(*dir, *name, None);
            }
            Ask::Rename {
                old_dir,
                old,
                new_dir,
                new,
                mode,
            } => return self.rename(tree, (*old_dir, *old), (*new_dir, *new), *mode),
            Ask::Lookup { .. } | Ask::List { .. } | Ask::Links { .. } | Ask::Use { .. } => {}
        }
        if errors.is_empty() { Ok(after) } else { Err(errors) }
    }

    /// What was seen is as told.
    fn seen(&self, tree: &Tree, ask: &Ask, told: &Told) -> Option<Tree> {
        let mut after = tree.clone();
        let is_so = match (ask, told) {
            (Ask::Lookup { dir, name }, Told::Found(id)) => self.reveal(&mut after, tree.find(*dir, *name), *id),
            (Ask::Lookup { dir, name }, Told::Refused(FsError::NotFound)) => tree.find(*dir, *name).is_none(),
            (Ask::List { dir }, Told::Entries(entries)) => {
                let count = tree.entries.iter().filter(|entry| entry.0 == *dir).count();
                // a directory that was removed may be listed while somebody has it open: it is empty
                count == entries.len()
                    && entries.iter().all(|(name, id)| {
                        let there = after.find(*dir, *name);
                        self.reveal(&mut after, there, *id)
                    })
            }
            (Ask::List { dir } | Ask::Lookup { dir, .. }, Told::Refused(FsError::Stale | FsError::NotFound)) => {
                !tree.is_alive(*dir)
            }
            (Ask::Links { id }, Told::Links(links)) => {
                let names = if !self.is_directory(*id) {
                    tree.names_of(*id)
                } else if tree.is_alive(*id) {
                    let below = tree.entries.iter().filter(|entry| entry.0 == *id);
                    2 + below.filter(|entry| self.is_directory(entry.2)).count()
                } else {
                    0
                };
                names == *links as usize
            }
            (Ask::Links { id } | Ask::Use { id }, Told::Refused(FsError::Stale | FsError::NotFound)) => {
                !tree.is_alive(*id)
            }
            _ => false,
        };
        is_so.then_some(after)
    }
}

/// The same error, whatever it says in addition.
fn same(a: &FsError, b: &FsError) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

impl Model for Names {
    type State = Tree;
    type Op = Ask;
    type Answer = Told;

    fn start(&self) -> Tree {
        Tree::default()
    }

    fn step(&self, tree: &Tree, ask: &Ask, answer: Option<&Told>) -> Option<Tree> {
        match (ask, answer) {
            (Ask::Lookup { .. } | Ask::List { .. } | Ask::Links { .. } | Ask::Use { .. }, Some(told)) => {
                self.seen(tree, ask, told)
            }
            (_, None | Some(Told::Done)) => self.change(tree, ask).ok(),
            (_, Some(Told::Refused(error))) => {
                let possible = self.change(tree, ask).err()?;
                possible.iter().any(|may| same(may, error)).then(|| tree.clone())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linearizability::{Event, Verdict, check};

    const FILE: Known = Known {
        is_directory: false,
        origin: Origin::Acknowledged,
    };
    const DIRECTORY: Known = Known {
        is_directory: true,
        origin: Origin::Acknowledged,
    };

    /// Inodes: the root, directories 1 and 2, files 3 and 4, 5 of unclear origin, 6 a placeholder.
    fn names() -> Names {
        let unclear = Known {
            origin: Origin::Unclear,
            ..FILE
        };
        let placeholder = Known {
            origin: Origin::Placeholder,
            ..FILE
        };
        Names {
            inodes: vec![DIRECTORY, DIRECTORY, DIRECTORY, FILE, FILE, unclear, placeholder],
        }
    }

    /// One after the other.
    fn in_order(asks: &[(Ask, Option<Told>)]) -> bool {
        let events: Vec<_> = (1..)
            .zip(asks)
            .map(|(n, (op, told))| Event {
                op: op.clone(),
                invoked: 2 * n,
                returned: told.clone().map(|told| (2 * n + 1, told)),
            })
            .collect();
        check(&names(), &events, 10_000) == Verdict::Linearizable
    }

    fn make(dir: Id, name: Name, id: Id) -> (Ask, Option<Told>) {
        (Ask::Create { dir, name, id }, Some(Told::Done))
    }

    fn rename(from: (Id, Name), to: (Id, Name), mode: RenameMode) -> Ask {
        Ask::Rename {
            old_dir: from.0,
            old: from.1,
            new_dir: to.0,
            new: to.1,
            mode,
        }
    }

    #[test]
    fn renames_across_directories_and_what_they_refuse() {
        let lookup = |dir, name, told| (Ask::Lookup { dir, name }, Some(told));
        let refused = |error| Some(Told::Refused(error));
        let mut asks = vec![make(ROOT, 1, 1), make(1, 2, 2), make(ROOT, 3, 3), make(2, 4, 4)];
        asks.push((
            rename((ROOT, 1), (2, 1), RenameMode::Replace),
            refused(FsError::Invalid("a loop".into())),
        ));
        asks.push((
            rename((ROOT, 3), (2, 4), RenameMode::NoReplace),
            refused(FsError::Exists),
        ));
        asks.push((rename((ROOT, 3), (2, 4), RenameMode::Exchange), Some(Told::Done)));
        asks.push(lookup(ROOT, 3, Told::Found(4)));
        asks.push((rename((ROOT, 3), (2, 4), RenameMode::Replace), Some(Told::Done)));
        asks.push((Ask::Links { id: 3 }, Some(Told::Links(0))));
        asks.push((Ask::Links { id: 1 }, Some(Told::Links(3))));
        asks.push(lookup(ROOT, 3, Told::Refused(FsError::NotFound)));
        assert!(in_order(&asks));
        asks.push(lookup(2, 4, Told::Found(3)));
        assert!(!in_order(&asks), "what was replaced is not there");
    }

    #[test]
    fn a_moved_file_is_in_one_place_at_any_time() {
        let mut events = vec![(
            Ask::Create {
                dir: ROOT,
                name: 1,
                id: 1,
            },
            1,
            2,
            Told::Done,
        )];
        events.push((
            Ask::Create {
                dir: ROOT,
                name: 3,
                id: 3,
            },
            3,
            4,
            Told::Done,
        ));
        events.push((rename((ROOT, 3), (1, 3), RenameMode::Replace), 5, 20, Told::Done));
        let absent = Told::Refused(FsError::NotFound);
        let mut both = events.clone();
        both.push((Ask::Lookup { dir: 1, name: 3 }, 6, 7, Told::Found(3)));
        both.push((Ask::Lookup { dir: ROOT, name: 3 }, 8, 9, Told::Found(3)));
        let mut none = events.clone();
        none.push((Ask::Lookup { dir: ROOT, name: 3 }, 6, 7, absent.clone()));
        none.push((Ask::Lookup { dir: 1, name: 3 }, 8, 9, absent));
        for events in [both, none] {
            let events: Vec<_> = events
                .into_iter()
                .map(|(op, invoked, returned, told)| Event {
                    op,
                    invoked,
                    returned: Some((returned, told)),
                })
                .collect();
            assert!(matches!(check(&names(), &events, 10_000), Verdict::Impossible { .. }));
        }
    }

    #[test]
    fn what_an_operation_of_unknown_outcome_made_shows_later() {
        let lost = (
            Ask::Create {
                dir: ROOT,
                name: 1,
                id: 6,
            },
            None,
        );
        let seen = |id| (Ask::Lookup { dir: ROOT, name: 1 }, Some(Told::Found(id)));
        assert!(in_order(&[lost.clone(), seen(5), seen(5)]));
        assert!(
            in_order(&[lost.clone(), make(ROOT, 1, 3), seen(3)]),
            "it never happened"
        );
        assert!(
            !in_order(&[lost.clone(), seen(3)]),
            "that one was made by another operation"
        );
        assert!(!in_order(&[seen(5)]), "nobody made that");
        let exists = (
            Ask::Create {
                dir: ROOT,
                name: 1,
                id: 3,
            },
            Some(Told::Refused(FsError::Exists)),
        );
        assert!(in_order(&[lost, exists, seen(5)]));
    }

    #[test]
    fn an_inode_that_has_a_name_is_not_gone() {
        let gone = (Ask::Use { id: 3 }, Some(Told::Refused(FsError::Stale)));
        assert!(!in_order(&[make(ROOT, 1, 3), gone.clone()]));
        let unlink = (Ask::Unlink { dir: ROOT, name: 1 }, Some(Told::Done));
        assert!(in_order(&[make(ROOT, 1, 3), unlink, gone]));
    }
}
