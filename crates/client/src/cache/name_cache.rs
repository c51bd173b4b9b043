//! The name cache: what names of a directory mean, as of a tail of the directory's log.
//!
//! Nothing here is believed without validation: a caller compares the directory's tail, freshly read, with the tail of
//! the cached names. Equal tails mean equal directories. When the tail has moved, the caller pulls the new log entries and
//! [`NameCache::apply`]s them. When the log was rewritten, it asks where the new log says what the old one said at its end,
//! and goes on from there ([`NameCache::advance`]). Where that does not work, the directory is forgotten.
//!
//! **Basis.** What an RPC answers may be entered at the tail that the cache had *before* the call (the basis), as long
//! as the cache is still there when the answer comes: the answer was computed at that tail or at a later one, and if a
//! later one, then replaying the entries in between over it ends in the right state (of a log that was rewritten: those up
//! to the end of the old one, then those that the new one has got since). This is why negative answers and pages of a
//! listing, which carry no tail, can be cached.

use crate::cache::cached_name::CachedName;
use foldhash::HashMap;
use parking_lot::RwLock;
use polvo_format::{FileKind, Generation, Ino, RegionOffset, Tail};
use polvo_proto::{InodeRef, LogCursor};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 8;
/// Most names kept in all: of one directory, as many as a hash table of 2^21 places (86 MB) has. Beyond, the directories used
/// longest ago are forgotten, in shards that have more than their share. (So there are less than twice as many, whichever
/// shards they are in.)
const NAMES_MAX: usize = 7 << 18;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    ino: Ino,
    generation: Generation,
    /// Its type.
    pub(crate) kind: FileKind,
}

// a place of the table is one and a half lines where they are cut like this, and there are many
const _: () = assert!(size_of::<(CachedName, Option<Child>)>() == 40);

impl Child {
    pub(crate) fn new(target: InodeRef, kind: FileKind) -> Child {
        let InodeRef { ino, generation } = target;
        Child { ino, generation, kind }
    }

    /// Which inode.
    pub(crate) fn target(&self) -> InodeRef {
        let (ino, generation) = (self.ino, self.generation);
        InodeRef { ino, generation }
    }
}

/// What the cache knows of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// It names this inode.
    Child(Child),
    /// There is no such name.
    Absent,
    /// Nothing is known.
    Nothing,
}

/// One effect of a directory's log entry.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum NameChange {
    /// The name now stands for this.
    Set(CachedName, Child),
    /// The name is gone.
    Gone(CachedName),
}

/// The directory's log as of which its names are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirLog {
    /// Tail.
    pub(crate) tail: Tail,
    /// The log page that holds the position `tail` or the one before it; `None` when not known.
    pub(crate) page: Option<RegionOffset>,
}

impl From<LogCursor> for DirLog {
    fn from(cursor: LogCursor) -> DirLog {
        DirLog {
            tail: cursor.tail,
            page: (cursor.page != RegionOffset(0)).then_some(cursor.page),
        }
    }
}

impl From<DirLog> for LogCursor {
    fn from(log: DirLog) -> LogCursor {
        LogCursor {
            tail: log.tail,
            page: log.page.unwrap_or_default(),
        }
    }
}

struct DirNames {
    log: DirLog,
    names: HashMap<CachedName, Option<Child>>,
    /// All names up to this listing position are in `names`; `u64::MAX` when the listing was seen to its end.
    listed_to: u64,
    /// The shard's clock when it was last used.
    used: AtomicU64,
}

#[derive(Default)]
struct Shard {
    dirs: HashMap<InodeRef, DirNames>,
    names: usize,
    /// Directories that were begun to be cached.
    clock: u64,
}

/// Names of directories. Sharded short locks; bounded.
pub(crate) struct NameCache {
    shards: [RwLock<Shard>; SHARDS],
    /// In all shards.
    names: AtomicUsize,
    max: usize,
}

impl NameCache {
    pub(crate) fn new() -> NameCache {
        NameCache::with_limit(NAMES_MAX)
    }

    fn with_limit(names: usize) -> NameCache {
        NameCache {
            shards: Default::default(),
            names: AtomicUsize::new(0),
            max: names,
        }
    }

    fn shard(&self, dir: InodeRef) -> &RwLock<Shard> {
        let Ino(number) = dir.ino;
        &self.shards[(number ^ number >> 48) as usize % SHARDS]
    }

    /// Changes the shard of a directory and keeps within the limit; that directory is forgotten last.
    fn change(&self, dir: InodeRef, with: impl FnOnce(&mut Shard)) {
        let mut shard = self.shard(dir).write();
        let before = shard.names;
        with(&mut shard);
        let elsewhere = self.names.load(Relaxed).saturating_sub(before);
        shard.bound(dir, self.max.saturating_sub(elsewhere).max(self.max / SHARDS));
        if shard.names >= before {
            self.names.fetch_add(shard.names - before, Relaxed);
        } else {
            let gone = before - shard.names;
            let all = self.names.fetch_sub(gone, Relaxed);
            debug_assert!(all >= gone, "the names of a shard are among all");
        }
    }

    /// The log as of which the directory is known, and what is known of the name. `None`: the directory is not cached.
    pub(crate) fn find(&self, dir: InodeRef, name: &[u8]) -> Option<(DirLog, Known)> {
        let shard = self.shard(dir).read();
        let names = shard.dirs.get(&dir)?;
        // a lookup changes nothing that other lookups read
        if names.used.load(Relaxed) != shard.clock {
            names.used.store(shard.clock, Relaxed);
        }
        let known = match names.names.get(name) {
            Some(Some(child)) => Known::Child(*child),
            Some(None) => Known::Absent,
            None if names.listed_to == u64::MAX => Known::Absent,
            None => Known::Nothing,
        };
        Some((names.log, known))
    }

    /// The log as of which the directory is known: the basis of what is about to be asked.
    pub(crate) fn basis(&self, dir: InodeRef) -> Option<DirLog> {
        self.shard(dir).read().dirs.get(&dir).map(|names| names.log)
    }

    /// How many names of the directory are known.
    pub(crate) fn known(&self, dir: InodeRef) -> usize {
        self.shard(dir)
            .read()
            .dirs
            .get(&dir)
            .map_or(0, |names| names.names.len())
    }

    /// Starts caching a directory whose log is known to be at `log`; keeps what is there, which is for the next lookup to
    /// follow.
    pub(crate) fn seed(&self, dir: InodeRef, log: DirLog) {
        let adds = |known: DirLog| known.tail == log.tail && known.page.is_none() && log.page.is_some();
        // most directories are searched again and again: nobody waits for that
        if !self.basis(dir).is_none_or(adds) {
            return;
        }
        self.change(dir, |shard| match shard.dirs.get_mut(&dir) {
            Some(names) if adds(names.log) => names.log = log,
            Some(_) => {}
            None => shard.reset(dir, log),
        });
    }

    /// What is known cannot be brought up to `log`: forgets it and starts anew there.
    pub(crate) fn restart(&self, dir: InodeRef, log: DirLog) {
        self.change(dir, |shard| shard.reset(dir, log));
    }

    /// A directory that this client has just made: known to be empty.
    pub(crate) fn seed_empty(&self, dir: InodeRef, log: DirLog) {
        self.change(dir, |shard| {
            shard.reset(dir, log);
            if let Some(names) = shard.dirs.get_mut(&dir) {
                names.listed_to = u64::MAX;
            }
        });
    }

    /// Enters what a call answered about a name (`None`: it does not exist), if the directory is still known as of the
    /// basis, the tail it was known at before the call.
    pub(crate) fn enter(&self, dir: InodeRef, basis: Tail, name: &[u8], child: Option<Child>) {
        self.change(dir, |shard| {
            if shard.at(dir, basis).is_some() {
                shard.set(dir, name.into(), child);
            }
        });
    }

    /// All that the directory's log says up to `to` has been entered; or another log says it, up to there.
    pub(crate) fn advance(&self, dir: InodeRef, basis: Tail, to: DirLog) {
        if let Some(names) = self.shard(dir).write().at(dir, basis) {
            names.log = to;
        }
    }

    /// Applies what the directory's log says between the basis and `to`.
    pub(crate) fn apply(&self, dir: InodeRef, basis: Tail, changes: Vec<NameChange>, to: DirLog) {
        self.change(dir, |shard| {
            if shard.at(dir, basis).is_none() {
                return;
            }
            for change in changes {
                match change {
                    NameChange::Set(name, child) => shard.set(dir, name, Some(child)),
                    NameChange::Gone(name) => shard.set(dir, name, None),
                }
            }
            if let Some(names) = shard.dirs.get_mut(&dir) {
                names.log = to;
            }
        });
    }

    /// Enters a page of a listing: the entries that follow position `after`, up to position `to` (`u64::MAX` when there
    /// are no more). Basis as with [`NameCache::enter`].
    pub(crate) fn enter_page<'a>(
        &self,
        dir: InodeRef,
        basis: Tail,
        after: u64,
        to: u64,
        entries: impl Iterator<Item = (&'a [u8], Child)>,
    ) {
        self.change(dir, |shard| {
            if shard.at(dir, basis).is_none() {
                return;
            }
            for (name, child) in entries {
                shard.set(dir, name.into(), Some(child));
            }
            if let Some(names) = shard.dirs.get_mut(&dir)
                && after <= names.listed_to
            {
                names.listed_to = names.listed_to.max(to);
            }
        });
    }

    /// Drops all names of a directory.
    pub(crate) fn forget(&self, dir: InodeRef) {
        self.change(dir, |shard| shard.remove(dir));
    }

    /// Drops everything in directories for which `gone` says so.
    pub(crate) fn forget_where(&self, gone: impl Fn(InodeRef) -> bool) {
        for shard in &self.shards {
            let dirs: Vec<InodeRef> = shard.read().dirs.keys().copied().filter(|dir| gone(*dir)).collect();
            for dir in dirs {
                self.forget(dir);
            }
        }
    }
}

impl Shard {
    fn at(&mut self, dir: InodeRef, basis: Tail) -> Option<&mut DirNames> {
        self.dirs.get_mut(&dir).filter(|names| names.log.tail == basis)
    }

    fn set(&mut self, dir: InodeRef, name: CachedName, child: Option<Child>) {
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        let others = self.names.checked_sub(names.names.len());
        // where all names are known, one that is not among them is absent
        if child.is_some() || names.listed_to != u64::MAX {
            names.names.insert(name, child);
        } else {
            names.names.remove(&name);
        }
        self.names = others.expect("a shard counts the names of each of its directories") + names.names.len();
        debug_assert!(self.names >= self.dirs.len(), "each directory counts as one more");
    }

    fn reset(&mut self, dir: InodeRef, log: DirLog) {
        self.remove(dir);
        self.clock += 1;
        let used = self.clock;
        self.names += 1;
        let before = self.dirs.insert(
            dir,
            DirNames {
                log,
                names: HashMap::default(),
                listed_to: 0,
                used: AtomicU64::new(used),
            },
        );
        assert!(
            before.is_none(),
            "what was known of it was removed, and is counted no more"
        );
    }

    /// Keeps the shard within a limit: forgets directories used longest ago, `keep` last.
    fn bound(&mut self, keep: InodeRef, max: usize) {
        while self.names > max {
            let others = self.dirs.iter().filter(|(dir, _)| **dir != keep);
            let oldest = others.min_by_key(|(dir, names)| (names.used.load(Relaxed), **dir));
            match oldest.map(|(dir, _)| *dir) {
                Some(dir) => self.remove(dir),
                None => {
                    // it is all that is left in this shard, and keeps every second name
                    let Some(names) = self.dirs.get_mut(&keep) else { return };
                    let mut keeps = true;
                    names.names.retain(|_, _| {
                        keeps = !keeps;
                        keeps
                    });
                    names.listed_to = 0;
                    self.names = 1 + names.names.len();
                }
            }
        }
    }

    /// A directory counts as one name itself, so that empty ones are bounded too.
    fn remove(&mut self, dir: InodeRef) {
        if let Some(names) = self.dirs.remove(&dir) {
            let others = self.names.checked_sub(names.names.len() + 1);
            self.names = others.expect("a shard counts the names of each of its directories");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Generation;

    fn inode(n: u64) -> InodeRef {
        InodeRef {
            ino: Ino(n),
            generation: Generation(1),
        }
    }

    fn child(n: u64) -> Child {
        Child::new(inode(n), FileKind::File)
    }

    fn log(units: u64) -> DirLog {
        DirLog {
            tail: Tail::new(1, units),
            page: None,
        }
    }

    #[test]
    fn answers_enter_only_at_their_basis() {
        let cache = NameCache::new();
        cache.enter(inode(1), log(1).tail, b"a", Some(child(2)));
        assert_eq!(cache.find(inode(1), b"a"), None);
        cache.seed(inode(1), log(1));
        cache.enter(inode(1), log(1).tail, b"a", Some(child(2)));
        cache.enter(inode(1), log(1).tail, b"b", None);
        assert_eq!(cache.find(inode(1), b"a"), Some((log(1), Known::Child(child(2)))));
        assert_eq!(cache.find(inode(1), b"b"), Some((log(1), Known::Absent)));
        assert_eq!(cache.find(inode(1), b"c"), Some((log(1), Known::Nothing)));
        cache.apply(
            inode(1),
            log(1).tail,
            vec![NameChange::Gone((&b"a"[..]).into())],
            log(2),
        );
        cache.enter(inode(1), log(1).tail, b"a", Some(child(2)));
        assert_eq!(cache.find(inode(1), b"a"), Some((log(2), Known::Absent)));
    }

    #[test]
    fn complete_listing_knows_what_is_absent() {
        let cache = NameCache::new();
        cache.seed(inode(1), log(1));
        let page = |after, to, names: &[(&[u8], u64)]| {
            cache.enter_page(
                inode(1),
                log(1).tail,
                after,
                to,
                names.iter().map(|(n, i)| (*n, child(*i))),
            )
        };
        page(0, 7, &[(b"a", 2)]);
        page(9, u64::MAX, &[]);
        assert_eq!(
            cache.find(inode(1), b"z").map(|f| f.1),
            Some(Known::Nothing),
            "a page is missing"
        );
        page(7, 9, &[(b"b", 3)]);
        page(9, u64::MAX, &[]);
        assert_eq!(cache.find(inode(1), b"z").map(|f| f.1), Some(Known::Absent));
        cache.apply(
            inode(1),
            log(1).tail,
            vec![NameChange::Set((&b"z"[..]).into(), child(4))],
            log(2),
        );
        assert_eq!(cache.find(inode(1), b"z").map(|f| f.1), Some(Known::Child(child(4))));
        let names = || cache.shard(inode(1)).read().names;
        let with = names();
        cache.enter(inode(1), log(2).tail, b"z", None);
        assert_eq!(cache.find(inode(1), b"z").map(|f| f.1), Some(Known::Absent));
        assert_eq!(names(), with - 1, "that takes no place");
    }

    #[test]
    fn a_rewritten_log_is_followed_or_all_is_forgotten() {
        let cache = NameCache::new();
        let rewritten = DirLog {
            tail: Tail::new(2, 1),
            page: None,
        };
        let absent = || cache.find(inode(1), b"a");
        cache.seed_empty(inode(1), log(1));
        cache.seed(inode(1), rewritten);
        assert_eq!(absent(), Some((log(1), Known::Absent)), "what is there is kept");
        cache.advance(inode(1), log(1).tail, rewritten);
        assert_eq!(absent(), Some((rewritten, Known::Absent)), "the same in another log");
        cache.seed(inode(1), log(9));
        assert_eq!(
            absent(),
            Some((rewritten, Known::Absent)),
            "an older version never comes back"
        );
        cache.restart(inode(1), log(9));
        assert_eq!(absent(), Some((log(9), Known::Nothing)));
    }

    #[test]
    fn bounded() {
        let cache = NameCache::with_limit(100);
        for dir in 0..40 {
            cache.seed(inode(8 * dir), log(1));
            for n in 0..30u64 {
                cache.enter(inode(8 * dir), log(1).tail, &n.to_le_bytes(), Some(child(n)));
            }
        }
        let shard = cache.shards[0].read();
        assert!(shard.names <= 100);
        assert_eq!(
            shard.names,
            shard.dirs.values().map(|d| d.names.len() + 1).sum::<usize>()
        );
        assert!(shard.dirs.contains_key(&inode(8 * 39)), "the newest stays");
        drop(shard);
        cache.seed_empty(inode(8), log(1));
        for n in 0..1000u64 {
            cache.enter(inode(8), log(1).tail, &n.to_le_bytes(), Some(child(n)));
        }
        let known = |n: u64| cache.find(inode(8), &n.to_le_bytes()).map(|f| f.1);
        let kept = (0..1000).filter(|n| known(*n) == Some(Known::Child(child(*n)))).count();
        assert!((49..100).contains(&kept), "{kept}");
        let unknown = (0..1000).filter(|n| known(*n) == Some(Known::Nothing)).count();
        assert_eq!(kept + unknown, 1000, "what was cut is unknown, not absent");
        assert!(cache.shards[0].read().names <= 100);
        assert_eq!(cache.names.load(Relaxed), cache.shards[0].read().names);
        cache.forget_where(|_| true);
        assert_eq!(cache.names.load(Relaxed), 0);
    }

    #[test]
    fn one_directory_may_have_what_others_leave() {
        let cache = NameCache::with_limit(800);
        cache.seed_empty(inode(8), log(1));
        let enter = |dir, n: u64| cache.enter(inode(dir), log(1).tail, &n.to_le_bytes(), Some(child(n)));
        (0..700).for_each(|n| enter(8, n));
        assert_eq!(
            cache.find(inode(8), &0u64.to_le_bytes()).map(|f| f.1),
            Some(Known::Child(child(0)))
        );
        // another shard keeps its share whatever the first one has, and no more
        cache.seed_empty(inode(1), log(1));
        (0..99).for_each(|n| enter(1, n));
        assert_eq!(cache.shards[1].read().names, 100);
        (99..200).for_each(|n| enter(1, n));
        assert!(cache.shards[1].read().names <= 100);
        assert!(cache.names.load(Relaxed) <= 900);
    }
}
