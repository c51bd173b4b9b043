//! The names of a directory: by name for lookups, by cookie for listing. Cookies grow with every new entry and stay
//! with it for life, so that a listing goes on where it stopped whatever happened in between.

use foldhash::{HashMap, HashSet};
use polvo_format::{Entry, FileKind, Tail};
use polvo_proto::{InodeRef, LogCursor};
use std::collections::BTreeMap;
use std::sync::Arc;

const COUNTED: &str = "names that are there are counted";

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dentry {
    pub cookie: u64,
    pub target: InodeRef,
    pub kind: FileKind,
}

#[derive(Default)]
pub(crate) struct Directory {
    names: HashMap<Arc<[u8]>, Dentry>,
    order: BTreeMap<u64, Arc<[u8]>>,
    next_cookie: u64,
    subdirectories: u32,
    live_units: u64,
    rewritten: Option<Rewritten>,
}

/// The last rewriting of a directory's log: both logs name the same.
pub(crate) struct Rewritten {
    /// End of the log before.
    pub before: Tail,
    /// Its pages, as far as nobody has used them again.
    pub pages: Vec<u64>,
    /// End of the log after.
    pub after: LogCursor,
}

impl Directory {
    /// The last rewriting of the log since the directory was loaded.
    pub fn rewritten(&self) -> Option<&Rewritten> {
        self.rewritten.as_ref()
    }

    /// The log was rewritten.
    pub fn set_rewritten(&mut self, rewritten: Rewritten) {
        debug_assert!(
            rewritten.after.tail > rewritten.before,
            "the new log is of the next version"
        );
        self.rewritten = Some(rewritten);
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Entries that are directories.
    pub fn subdirectories(&self) -> u32 {
        self.subdirectories
    }

    /// Cookie of the next new entry.
    pub fn next_cookie(&self) -> u64 {
        // a rebuilt log may have lost the checkpoint that says so
        self.next_cookie.max(1)
    }

    /// A checkpoint says which cookie comes next.
    pub fn set_next_cookie(&mut self, cookie: u64) {
        self.next_cookie = self.next_cookie.max(cookie);
    }

    /// Log units that a compact log of these names would take.
    pub fn live_units(&self) -> u64 {
        self.live_units
    }

    pub fn get(&self, name: &[u8]) -> Option<Dentry> {
        self.names.get(name).copied()
    }

    /// Entries with cookies over `after`, in order.
    pub fn after(&self, after: u64) -> impl Iterator<Item = (&[u8], Dentry)> + '_ {
        let from = after.saturating_add(1);
        self.order.range(from..).map(|(_, name)| (&name[..], self.names[name]))
    }

    /// Enters a name, or points it at another inode. Why not, when the log contradicts itself.
    pub fn add(&mut self, name: &[u8], new: Dentry) -> Result<(), &'static str> {
        if new.cookie == 0 || new.cookie == u64::MAX {
            return Err("cookie out of range");
        }
        let directory = new.kind == FileKind::Directory;
        match self.order.get(&new.cookie) {
            Some(known) if **known == *name => {
                let old = self.names.get_mut(name).expect("both maps hold the same names");
                let was = u32::from(old.kind == FileKind::Directory);
                *old = new;
                self.subdirectories = self.subdirectories.checked_sub(was).expect(COUNTED);
            }
            Some(_) => return Err("cookie of another name"),
            None if self.names.contains_key(name) => return Err("name is there already"),
            None => {
                let name: Arc<[u8]> = name.into();
                self.live_units += units(&name);
                self.order.insert(new.cookie, name.clone());
                self.names.insert(name, new);
                self.next_cookie = self.next_cookie.max(new.cookie + 1);
            }
        }
        self.subdirectories += u32::from(directory);
        debug_assert_eq!(self.get(name), Some(new), "the name stands for what was entered");
        debug_assert!(self.next_cookie > new.cookie, "the next name gets another cookie");
        self.check();
        Ok(())
    }

    /// Removes a name. Why not, when the log contradicts itself.
    pub fn remove(&mut self, name: &[u8], cookie: u64) -> Result<(), &'static str> {
        if self.names.get(name).is_none_or(|d| d.cookie != cookie) {
            return Err("removed name is not there");
        }
        let old = self.names.remove(name).expect("just seen");
        let by_cookie = self.order.remove(&cookie);
        debug_assert_eq!(by_cookie.as_deref(), Some(name), "both maps hold the same names");
        let was = u32::from(old.kind == FileKind::Directory);
        self.subdirectories = self.subdirectories.checked_sub(was).expect(COUNTED);
        self.live_units = self.live_units.checked_sub(units(name)).expect(COUNTED);
        self.check();
        debug_assert!(!self.names.contains_key(name) && !self.order.contains_key(&cookie));
        Ok(())
    }

    /// Both maps hold the same names, and the counts are theirs.
    fn check(&self) {
        debug_assert_eq!(self.names.len(), self.order.len(), "names by name and by cookie");
        debug_assert!(
            self.subdirectories as usize <= self.names.len(),
            "subdirectories are among the names"
        );
        debug_assert!(
            self.live_units >= self.names.len() as u64,
            "a name takes a unit or more"
        );
        debug_assert!(
            self.order
                .last_key_value()
                .is_none_or(|(last, _)| *last < self.next_cookie),
            "the next cookie is above all"
        );
    }
}

/// The names of a directory counted, not kept: all that recovery needs to know of a large one. The log is believed where it
/// could only contradict itself by names; that shows when the directory is first used.
#[derive(Default)]
pub(crate) struct Tally {
    names: u64,
    live_units: u64,
    /// of the newest name: cookies of new names grow
    newest_cookie: u64,
    /// cookies of entries that are directories
    subdirectories: HashSet<u64>,
}

impl Tally {
    /// Entries.
    pub fn len(&self) -> u64 {
        self.names
    }

    /// Entries that are directories.
    pub fn subdirectories(&self) -> u32 {
        self.subdirectories.len() as u32
    }

    /// See [`Directory::live_units`].
    pub fn live_units(&self) -> u64 {
        self.live_units
    }

    /// See [`Directory::add`].
    pub fn add(&mut self, name: &[u8], new: Dentry) -> Result<(), &'static str> {
        if new.cookie == 0 || new.cookie == u64::MAX {
            return Err("cookie out of range");
        }
        if new.cookie > self.newest_cookie {
            self.newest_cookie = new.cookie;
            self.names += 1;
            self.live_units += units(name);
        }
        match new.kind {
            FileKind::Directory => self.subdirectories.insert(new.cookie),
            _ => self.subdirectories.remove(&new.cookie),
        };
        Ok(())
    }

    /// See [`Directory::remove`].
    pub fn remove(&mut self, name: &[u8], cookie: u64) -> Result<(), &'static str> {
        let gone = || "removed name is not there";
        self.names = self.names.checked_sub(1).ok_or_else(gone)?;
        self.live_units = self.live_units.checked_sub(units(name)).ok_or_else(gone)?;
        self.subdirectories.remove(&cookie);
        Ok(())
    }
}

fn units(name: &[u8]) -> u64 {
    dentry_entry(name, Dentry::NOWHERE, 0).units()
}

impl Dentry {
    const NOWHERE: Dentry = Dentry {
        cookie: 0,
        target: InodeRef {
            ino: polvo_format::Ino(0),
            generation: polvo_format::Generation(0),
        },
        kind: FileKind::File,
    };
}

/// The log entry for a name.
pub(crate) fn dentry_entry(name: &[u8], dentry: Dentry, time_ns: i64) -> Entry<'_> {
    Entry::DentryAdd {
        name,
        target: dentry.target.ino,
        generation: dentry.target.generation,
        kind: dentry.kind,
        cookie: dentry.cookie,
        time_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    fn dentry(cookie: u64, ino: u64, kind: FileKind) -> Dentry {
        let target = InodeRef {
            ino: Ino(ino),
            generation: Generation(1),
        };
        Dentry { cookie, target, kind }
    }

    #[test]
    fn names_come_and_go() {
        let mut d = Directory::default();
        d.add(b"a", dentry(1, 10, FileKind::File)).unwrap();
        d.add(b"b", dentry(2, 11, FileKind::Directory)).unwrap();
        d.add(&[b'c'; 255], dentry(3, 12, FileKind::Directory)).unwrap();
        assert_eq!(
            (d.len(), d.subdirectories(), d.next_cookie(), d.live_units()),
            (3, 2, 4, 1 + 1 + 5)
        );
        d.add(b"b", dentry(2, 13, FileKind::File)).unwrap();
        assert_eq!((d.subdirectories(), d.get(b"b").unwrap().target.ino), (1, Ino(13)));
        d.remove(b"a", 1).unwrap();
        assert_eq!(d.after(0).map(|(n, _)| n.len()).collect::<Vec<_>>(), [1, 255]);
        assert_eq!(d.after(2).count(), 1);
        assert_eq!(d.next_cookie(), 4);
    }

    /// A life of renames (which keep a name's cookie), removals and checkpoints comes to the same.
    #[test]
    fn a_tally_counts_what_a_directory_holds() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut directory, mut tally) = (Directory::default(), Tally::default());
        directory.set_next_cookie(1);
        for round in 0..5_000 {
            let name = vec![b'n'; 1 + random(200) as usize];
            let kind = [FileKind::File, FileKind::Directory][random(2) as usize];
            let known = directory.get(&name);
            match known {
                Some(old) if random(3) == 0 => {
                    directory.remove(&name, old.cookie).unwrap();
                    tally.remove(&name, old.cookie).unwrap();
                }
                known => {
                    let cookie = known.map_or(directory.next_cookie(), |old| old.cookie);
                    let new = dentry(cookie, round, kind);
                    directory.add(&name, new).unwrap();
                    tally.add(&name, new).unwrap();
                }
            }
            if random(500) == 0 {
                // a compact log: live names in order of their cookies
                tally = Tally::default();
                directory
                    .after(0)
                    .for_each(|(name, dentry)| tally.add(name, dentry).unwrap());
            }
            assert_eq!(
                (tally.len(), tally.subdirectories(), tally.live_units()),
                (
                    directory.len() as u64,
                    directory.subdirectories(),
                    directory.live_units()
                )
            );
        }
        assert!(Tally::default().remove(b"x", 1).is_err());
    }

    #[test]
    fn contradictions_are_refused() {
        let mut d = Directory::default();
        d.add(b"a", dentry(1, 10, FileKind::File)).unwrap();
        assert!(d.add(b"a", dentry(2, 10, FileKind::File)).is_err());
        assert!(d.add(b"b", dentry(1, 10, FileKind::File)).is_err());
        assert!(d.add(b"b", dentry(0, 10, FileKind::File)).is_err());
        assert!(d.add(b"b", dentry(u64::MAX, 10, FileKind::File)).is_err());
        assert!(d.remove(b"a", 2).is_err());
        assert!(d.remove(b"x", 1).is_err());
        assert_eq!(d.len(), 1);
    }
}
