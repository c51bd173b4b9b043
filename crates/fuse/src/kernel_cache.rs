//! What the kernel may keep, and how it is made to let go of it.
//!
//! The kernel is told of attributes and names with the time for which it may believe them: none, unless this client has a token by
//! which they are true ([`polvo_client::Kept`]). An answer that says so is written while the token is kept, and whoever calls the
//! token back waits for that: so the kernel is told to forget after it was told.
//!
//! - **Attributes** last no longer than the token's lease, less a quarter: a mount whose process stands still serves nothing stale,
//!   since by the time a change elsewhere no longer waits for its answer, the kernel asks again. Called back, they are invalidated.
//!   What comes in with an answer from before that, the kernel drops by itself: it counts versions of attributes. As long as it does
//!   not know an inode of which it was told (`inodes` knows), it has not taken in the answer yet, and is told again.
//! - **Names** last for [`NAME_LASTS`], and a directory is given back only when that is over for the last one that was told. There
//!   is no other way that is right: to expire a name the kernel takes the directory's lock, which a request may hold that waits for
//!   the very change that waits for us, and does not reach an answer that is not taken in yet; a new epoch (Linux 6.16) detaches
//!   whatever is mounted below, in all containers. A name that is used all the time is asked for 50 times a second.
//!
//!   A rename takes a name along with the time for which it is believed ([`KernelCache::moves_names`]). Directories from which names
//!   are taken to others (of queues, for files that are not complete) tell of none that lasts for a while ([`NAMES_MOVE`]).
//! - **Pages** of files that are open for reading alone are as good as the attributes are ([`Pages`]): they are dropped when those
//!   are called back, and where a look finds that the file has changed since they were read.
//!
//! What this mount changes itself the kernel knows to be changed, but for one thing: an answer from before that it takes in only
//! after it would make it believe again in the attributes of a directory from before. So they are invalidated once more
//! ([`KernelCache::changed_here`]), which the kernel counts.
//!
//! All else of this is done by the thread that answers for the tokens, which serves no requests.

use crate::inodes::{Inodes, node_id};
use crate::moved::{Moved, Place};
use crate::pages::Pages;
use parking_lot::RwLock;
use polvo_client::Keeper;
use polvo_format::{Ino, Tail};
use polvo_fusedev::abi::INodeNo;
use polvo_fusedev::{Errno, Notifier, will_wait};
use polvo_proto::InodeRef;
use rustix::time::{ClockId, clock_getres};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The kernel is told that a name lasts for so long,
pub(crate) const NAME_LASTS: Duration = Duration::from_millis(20);
/// and may believe so for this much longer, since it counts from when it takes in the answer; and for two of its ticks, to which it
/// rounds up.
const NAME_MARGIN: Duration = Duration::from_millis(30);
/// For so long after a rename took a name of a directory to another one no name of it is passed on: more are likely to go.
const NAMES_MOVE: Duration = Duration::from_secs(1);
/// An answer that was written so long ago the kernel has taken in.
const TAKEN_IN: Duration = Duration::from_secs(1);
/// The kernel is told so often to forget an inode of which it was told and that it does not know yet.
const NOT_YET: Duration = Duration::from_millis(1);

/// From the first one on, to the end.
const ALL_BYTES: (u64, u64) = (0, 0);

/// A tick is not shorter, whatever the clock says.
const TICK_MIN_NS: u64 = 1_000_000;

/// Directories share a place by number.
const PLACES: usize = 1024;

/// The kernel's caches.
pub(crate) struct KernelCache {
    pub(crate) inodes: Inodes,
    pub(crate) moved: Moved,
    /// There once the mount is.
    notifier: RwLock<Option<Notifier>>,
    began: Instant,
    /// Of the kernel's clock by which names are over.
    tick: Duration,
    /// Until when the kernel may believe in names of directories, in microseconds from then.
    names: Box<[AtomicU64]>,
    /// Until when they are not to be passed on, in the same way.
    moving: Box<[AtomicU64]>,
    /// When it was last told of attributes that last, in the same way.
    attributes: Box<[AtomicU64]>,
}

impl Default for KernelCache {
    fn default() -> KernelCache {
        KernelCache {
            inodes: Inodes::default(),
            moved: Moved::default(),
            notifier: RwLock::default(),
            began: Instant::now(),
            tick: tick(),
            names: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            moving: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            attributes: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl KernelCache {
    /// The mount is there: from now on it can be told.
    pub(crate) fn is_reached_by(&self, notifier: Notifier) {
        *self.notifier.write() = Some(notifier);
    }

    /// The mount is no more, and with it all that was kept.
    pub(crate) fn is_gone(&self) {
        *self.notifier.write() = None;
    }

    /// Whether something may be passed on that can be called back.
    pub(crate) fn is_there(&self) -> bool {
        self.notifier.read().is_some()
    }

    fn names_of(&self, dir: Ino) -> &AtomicU64 {
        &self.names[place_of(dir)]
    }

    /// The kernel is about to be told of attributes that it may keep.
    pub(crate) fn tells_attributes(&self, of: Ino) {
        let now = self.began.elapsed().as_micros() as u64;
        self.attributes[place_of(of)].fetch_max(now.max(1), SeqCst);
    }

    /// This mount has changed an inode, and is about to say so: what the kernel was told of its attributes before, and has not
    /// taken in yet, is not to be believed.
    pub(crate) fn changed_here(&self, inode: InodeRef) {
        let told = self.attributes[place_of(inode.ino)].load(SeqCst);
        if told > 0 && self.began.elapsed() < Duration::from_micros(told) + TAKEN_IN {
            // it need not know the inode: then it keeps nothing of it, and asks for it anew
            self.forget_attributes(inode);
        }
    }

    /// This mount is about to change a file that it also reads by way of pages, and tells of no attributes that last while it does:
    /// from now on the kernel asks before it reads from them.
    pub(crate) fn changes_here(&self, inode: InodeRef) {
        self.forget_attributes(inode);
    }

    /// As of when the kernel's pages of a file are, or later; `None`: it is not read by way of them.
    pub(crate) fn pages_as_of(&self, file: InodeRef) -> Option<Tail> {
        self.inodes.pages(file, |pages| pages.map(|pages| pages.as_of()))?
    }

    /// The question before a read of pages has found the file's log at this tail. Where they may be older, the kernel drops them: by
    /// itself, if it is told what this returns, as time of change, or because it was told to. May wait for reads that are under way.
    ///
    /// # Errors
    /// IO: it could not be told.
    pub(crate) fn before_read(&self, file: InodeRef, tail: Tail) -> Result<Option<i64>, Errno> {
        let is_new = |pages: &mut Option<Pages>| match pages {
            Some(pages) if pages.as_of() != tail => Some(pages.is_new(tail)),
            _ => None,
        };
        match self.inodes.pages(file, is_new).flatten() {
            None => Ok(None),
            Some(true) => Ok(Some(Pages::other_time())),
            Some(false) => {
                will_wait();
                let are_dropped = self.drops_older_pages(file, tail);
                are_dropped.then_some(None).ok_or(Errno::IO)
            }
        }
    }

    /// A file was found at this tail, and may be read by way of pages from now on. False: that is not worth it, or cannot be.
    pub(crate) fn begins_pages(&self, file: InodeRef, tail: Tail) -> bool {
        match self.inodes.pages(file, |pages| *pages) {
            Some(Some(pages)) if pages.are_contended() => false,
            Some(Some(pages)) if pages.as_of() == tail => true,
            Some(Some(_)) => {
                will_wait();
                self.drops_older_pages(file, tail)
            }
            // those of mappings, if there are any
            Some(None) => self.drops_older_pages(file, tail),
            None => false,
        }
    }

    /// What a program has stored to a mapping was not written: pages of the file are not what it is.
    pub(crate) fn has_refused(&self, file: INodeNo) {
        if let Some(file) = self.inodes.get(file) {
            self.inodes.pages(file, |pages| *pages = pages.map(Pages::spoilt));
        }
    }

    fn drops_older_pages(&self, file: InodeRef, tail: Tail) -> bool {
        // what the kernel does not know it has no pages of
        let are_dropped = self.invalidate(file, Some(ALL_BYTES)).is_some();
        let note = |pages: &mut Option<Pages>| match pages {
            Some(pages) => pages.are_as_of(tail),
            None => *pages = Some(Pages::read_since(tail)),
        };
        are_dropped && self.inodes.pages(file, note).is_some()
    }

    /// Somebody else's change waits for attributes to be forgotten, and pages. False: the kernel does not know the inode, of which it
    /// was told.
    fn recalls(&self, inode: InodeRef) -> bool {
        let recalled = |pages: &mut Option<Pages>| pages.as_mut().map(Pages::recalled).is_some();
        let has_pages = self.inodes.pages(inode, recalled).unwrap_or(false);
        let is_known = self.invalidate(inode, has_pages.then_some(ALL_BYTES));
        is_known.is_some_and(|is_known| is_known || self.inodes.get(node_id(inode)).is_none())
    }

    /// The kernel is about to be told of a name of a directory.
    pub(crate) fn tells_name(&self, dir: Ino) {
        let until = self.began.elapsed() + NAME_LASTS + NAME_MARGIN + 2 * self.tick;
        self.names_of(dir).fetch_max(until.as_micros() as u64, SeqCst);
    }

    /// A name of a directory is taken to another one.
    pub(crate) fn names_move(&self, from: Ino) {
        let until = self.began.elapsed() + NAMES_MOVE;
        self.moving[place_of(from)].store(until.as_micros() as u64, SeqCst);
    }

    /// Whether that was so a moment ago.
    pub(crate) fn do_names_move(&self, dir: Ino) -> bool {
        let until = self.moving[place_of(dir)].load(SeqCst);
        until > 0 && self.began.elapsed() < Duration::from_micros(until)
    }

    /// What it believes in names of one directory it may believe in names of another.
    pub(crate) fn moves_names(&self, from: Ino, to: Ino) {
        let until = self.names_of(from).load(SeqCst);
        self.names_of(to).fetch_max(until, SeqCst);
    }

    /// For how much longer it may believe in names of a directory.
    pub(crate) fn names_last(&self, dir: Ino) -> Duration {
        let until = Duration::from_micros(self.names_of(dir).load(SeqCst));
        until.saturating_sub(self.began.elapsed())
    }

    /// A directory is not where the kernel knows it, and nothing else is there.
    pub(crate) fn has_moved(&self, from: Place, to: Place) {
        if let Some(notifier) = self.notifier.read().clone() {
            self.moved.drop_name(notifier, from, to);
        }
    }

    /// It asks for them anew.
    pub(crate) fn forget_attributes(&self, inode: InodeRef) {
        self.invalidate(inode, None);
    }

    /// Invalidates attributes, and pages with these bytes. Says whether the kernel knows the inode; `None`: it could not be told.
    fn invalidate(&self, inode: InodeRef, bytes: Option<(u64, u64)>) -> Option<bool> {
        let Some(notifier) = self.notifier.read().clone() else {
            return Some(true); // nothing was passed on
        };
        match notifier.inval_inode(node_id(inode), bytes) {
            Ok(is_known) => Some(is_known),
            // it is not mounted any more
            Err(Errno::NODEV | Errno::NOTCONN | Errno::BADF) => Some(true),
            Err(error) => {
                tracing::warn!(%error, "the kernel could not be told what has changed");
                None
            }
        }
    }
}

impl Keeper for KernelCache {
    fn forget(&self, inode: InodeRef) -> Result<(), Duration> {
        if !self.recalls(inode) {
            return Err(NOT_YET);
        }
        match self.names_last(inode.ino) {
            Duration::ZERO => Ok(()),
            left => Err(left),
        }
    }

    fn may_go_back(&self, of: &dyn Fn(Ino) -> bool) {
        self.inodes.all_pages(|ino, pages| {
            if of(ino) {
                *pages = pages.map(Pages::spoilt);
            }
        });
    }

    fn was_only_read(&self, file: InodeRef, from: Tail, to: Tail) {
        self.inodes.pages(file, |pages| {
            if let Some(pages) = pages.as_mut().filter(|pages| pages.as_of() == from) {
                pages.are_as_of(to);
            }
        });
    }
}

/// Length of a tick (1 to 10 ms): the coarse clock moves with it.
fn tick() -> Duration {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    let nanos = u64::try_from(resolution.tv_nsec).unwrap_or(0).max(TICK_MIN_NS);
    Duration::from_nanos(nanos)
}

fn place_of(ino: Ino) -> usize {
    (ino.0 ^ ino.0 >> 48) as usize % PLACES
}

/// A mount's file system, and who tells its kernel, share it.
pub(crate) type Shared = Arc<KernelCache>;

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Generation;

    #[test]
    fn a_name_is_believed_for_as_long_where_it_was_renamed_to() {
        let cache = KernelCache::default();
        cache.tells_name(Ino(7));
        assert_eq!(cache.names_last(Ino(8)), Duration::ZERO);
        cache.moves_names(Ino(7), Ino(8));
        let (old, new) = (cache.names_last(Ino(7)), cache.names_last(Ino(8)));
        assert!(new > Duration::ZERO && new <= old, "{new:?} of {old:?}");
        cache.moves_names(Ino(9), Ino(8));
        assert!(
            cache.names_last(Ino(8)) > Duration::ZERO,
            "another one lasted no longer"
        );
    }

    #[test]
    fn a_directory_from_which_a_name_was_taken_tells_of_none_for_a_while() {
        let cache = KernelCache::default();
        assert!(!cache.do_names_move(Ino(7)));
        cache.names_move(Ino(7));
        assert!(cache.do_names_move(Ino(7)) && !cache.do_names_move(Ino(8)));
    }

    #[test]
    fn a_directory_is_given_back_when_its_last_name_is_over() {
        let cache = KernelCache::default();
        let dir = |n| InodeRef {
            ino: Ino(n),
            generation: Generation(1),
        };
        cache.tells_name(Ino(7));
        assert_eq!(cache.forget(dir(8)), Ok(()), "another directory");
        let left = cache.forget(dir(7)).expect_err("a name was just told");
        assert!(left > NAME_LASTS && left <= NAME_LASTS + NAME_MARGIN + 2 * cache.tick);
        std::thread::sleep(left);
        assert_eq!(cache.forget(dir(7)), Ok(()));
    }
}
