//! Access times, moved as Linux does by `relatime` (or, if asked, by `strictatime`), without a reader waiting for it.
//!
//! A read sends nothing. It notes the inode, and a moment later the maintenance tells the primaries of all inodes noted in
//! one request each; a primary applies the rule (`Region::accessed`). By `relatime` reads of an inode note it once for each state of its
//! log, so what does not change is not asked about again. The note says of which state, so that it cannot undo what
//! was set after the read. A request for the attributes of an inode that is noted sends
//! the note first, so this client sees its own reads at once; others see them within a moment.
//!
//! Times are a courtesy: a note that cannot be delivered is lost, and so are notes beyond [`NOTED_MAX`].

use crate::local_client::LocalClient;
use crate::open::OpenFile;
use parking_lot::Mutex;
use polvo_format::{RegionId, Tail};
use polvo_proto::{InodeRef, RELEASE_MAX, ask};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Most inodes noted at a time.
const NOTED_MAX: usize = 1 << 14;
/// Directories and links of which it is remembered as of when they were noted last; they share places.
const PLACES: usize = 4096;
/// A file that is read without being changed has its access time moved once in this time.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Which reads move access times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessTimeRule {
    /// Listing a directory moves its own (off: `nodiratime`).
    pub of_directories: bool,
    /// Every read does (`strictatime`); otherwise the first one after a change, and one a day (`relatime`).
    pub strict: bool,
}

/// A read that has not been told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note {
    /// Tells it from an earlier one of the same inode.
    number: u64,
    /// End of the inode's log when it was read.
    read_at: Tail,
}

/// Of directories and links: the state of the log, and the day, of which each was noted last. (Files have theirs in
/// [`OpenInode`](crate::open_table::OpenInode).)
struct Marks(Box<[AtomicU64]>);

impl Default for Marks {
    fn default() -> Marks {
        Marks((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Marks {
    /// Marks an inode. False: it has that mark already.
    fn set(&self, inode: InodeRef, mark: u64) -> bool {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let hash = (inode.ino.0 ^ u64::from(inode.generation.0) << 40).wrapping_mul(ODD);
        let mark = hash ^ mark | 1;
        self.0[(hash >> 52) as usize % PLACES].swap(mark, Ordering::Relaxed) != mark
    }
}

/// Inodes read, whose access time is to be moved.
#[derive(Default)]
pub(crate) struct AccessTimes {
    on: AtomicBool,
    of_directories: AtomicBool,
    strict: AtomicBool,
    noted: Mutex<BTreeMap<InodeRef, Note>>,
    /// How many are noted, to be read without the lock.
    count: AtomicUsize,
    numbers: AtomicU64,
    marks: Marks,
    /// Days since the first read.
    day: AtomicU64,
    day_began: Mutex<Option<Instant>>,
}

impl AccessTimes {
    /// Notes an inode. True when it is the first one.
    fn note(&self, inode: InodeRef, read_at: Tail) -> bool {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut noted = self.noted.lock();
        if noted.len() < NOTED_MAX || noted.contains_key(&inode) {
            let before = noted.insert(inode, Note { number, read_at });
            debug_assert!(
                before.is_none_or(|before| before.number != number),
                "a note has a number of its own"
            );
        }
        assert!(noted.len() <= NOTED_MAX, "notes have their limit");
        self.count.store(noted.len(), Ordering::Release);
        noted.len() == 1
    }

    fn is_noted(&self, inode: InodeRef) -> Option<Note> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.noted.lock().get(&inode).copied()
    }

    /// A read of it is to be told of.
    pub(crate) fn awaits(&self, inode: InodeRef) -> bool {
        self.is_noted(inode).is_some()
    }

    /// These have been delivered (or could not be); what was noted again meanwhile stays.
    fn forget(&self, delivered: &[(InodeRef, Note)]) {
        let mut noted = self.noted.lock();
        for (inode, note) in delivered {
            if noted.get(inode) == Some(note) {
                noted.remove(inode);
            }
        }
        self.count.store(noted.len(), Ordering::Release);
    }

    /// What a file is marked with when it was read with this tail: another one each day.
    fn mark(&self, tail: Tail) -> u64 {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        tail.0 ^ self.day.load(Ordering::Relaxed).wrapping_mul(ODD)
    }

    /// Begins another day when one is over. To be called now and then.
    pub(crate) fn begin_day_if_due(&self) {
        let mut began = self.day_began.lock();
        let now = Instant::now();
        if now.duration_since(*began.get_or_insert(now)) >= DAY {
            *began = Some(now);
            self.day.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl crate::Client {
    /// From now on [`LocalClient::accessed`] has an effect; without this call access times change only when set.
    pub fn keep_access_times(&self, rule: AccessTimeRule) {
        let times = &self.access_times;
        times.of_directories.store(rule.of_directories, Ordering::Release);
        times.strict.store(rule.strict, Ordering::Release);
        times.on.store(true, Ordering::Release);
    }
}

impl LocalClient {
    /// A program has read from a file: its access time moves by the rule, soon.
    pub fn accessed(&self, file: &OpenFile) {
        let times = &self.client.access_times;
        if !times.on.load(Ordering::Relaxed) {
            return;
        }
        let open_inode = &file.open_inode;
        let Some(tail) = open_inode.tail() else { return };
        let mark = times.mark(tail);
        if open_inode.marked.swap(mark, Ordering::Relaxed) != mark || times.strict.load(Ordering::Relaxed) {
            self.note_access(open_inode.inode, tail);
        }
    }

    /// A directory was listed: as [`LocalClient::accessed`], unless the times of directories are not kept.
    pub(crate) fn accessed_directory(&self, dir: InodeRef, read_at: Tail) {
        if self.client.access_times.of_directories.load(Ordering::Relaxed) {
            self.accessed_inode(dir, read_at);
        }
    }

    /// A symbolic link was read: as [`LocalClient::accessed`].
    pub(crate) fn accessed_inode(&self, inode: InodeRef, read_at: Tail) {
        let times = &self.client.access_times;
        if times.on.load(Ordering::Relaxed)
            && (times.marks.set(inode, times.mark(read_at)) || times.strict.load(Ordering::Relaxed))
        {
            self.note_access(inode, read_at);
        }
    }

    fn note_access(&self, inode: InodeRef, read_at: Tail) {
        if self.client.access_times.note(inode, read_at) {
            self.client.open_table.work.notify_one();
        }
    }

    /// Delivers the note of one inode, if there is one.
    pub(crate) async fn send_access(&self, inode: InodeRef) {
        if let Some(note) = self.client.access_times.is_noted(inode) {
            self.send_accesses_to(inode.ino.region(), &[(inode, note)]).await;
        }
    }

    /// Delivers what is noted.
    pub(crate) async fn send_accesses(&self) {
        if self.client.access_times.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let noted: Vec<(InodeRef, Note)> = {
            let noted = self.client.access_times.noted.lock();
            noted.iter().map(|(inode, note)| (*inode, *note)).collect()
        };
        let mut by_region: BTreeMap<RegionId, Vec<(InodeRef, Note)>> = BTreeMap::new();
        for one in noted {
            by_region.entry(one.0.ino.region()).or_default().push(one);
        }
        for (region, noted) in by_region {
            for some in noted.chunks(RELEASE_MAX) {
                self.send_accesses_to(region, some).await;
            }
        }
    }

    /// To whoever serves the region: an operation may wait for it, and a node be silent.
    async fn send_accesses_to(&self, region: RegionId, noted: &[(InodeRef, Note)]) {
        let times = &self.client.access_times;
        let accessed = ask::Accessed {
            inodes: noted.iter().map(|(inode, note)| (*inode, note.read_at)).collect(),
            strict: times.strict.load(Ordering::Relaxed),
        };
        let own: Vec<_> = noted
            .iter()
            .map(|(inode, _)| self.client.tokens.changing(inode.ino))
            .collect();
        let answer = self.call(region, accessed).await;
        drop(own);
        times.forget(noted);
        let tails = match answer {
            Ok(tails) => tails,
            Err(error) => {
                tracing::debug!(region = region.0, %error, "access times");
                return;
            }
        };
        // the tail that our own mark has moved needs no other one
        for ((inode, note), tail) in noted.iter().zip(tails) {
            if tail.0 != 0 && tail != note.read_at {
                self.client.tokens.was_only_read(*inode, note.read_at, tail);
            }
            if let Some(open_inode) = self.client.open_table.get(*inode).filter(|_| tail.0 != 0) {
                open_inode.marked.store(times.mark(tail), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    fn inode(n: u64) -> InodeRef {
        InodeRef {
            ino: Ino(n),
            generation: Generation(1),
        }
    }

    #[test]
    fn noted_again_while_it_is_delivered() {
        let times = AccessTimes::default();
        assert!(times.note(inode(1), Tail(0)), "the first one wakes the maintenance");
        assert!(!times.note(inode(2), Tail(0)));
        let first = times.is_noted(inode(1)).expect("noted");
        times.note(inode(1), Tail(0));
        times.forget(&[(inode(1), first)]);
        let second = times.is_noted(inode(1)).expect("read again since");
        times.forget(&[(inode(1), second)]);
        assert_eq!(times.is_noted(inode(1)), None);
        assert!(times.is_noted(inode(2)).is_some());
    }

    #[test]
    fn notes_are_bounded() {
        let times = AccessTimes::default();
        (0..NOTED_MAX as u64 + 10).for_each(|n| assert_eq!(times.note(inode(n), Tail(0)), n == 0));
        assert_eq!(times.count.load(Ordering::Relaxed), NOTED_MAX);
        times.note(inode(3), Tail(0));
        assert!(
            times.is_noted(inode(3)).is_some(),
            "one that is noted may be noted again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_day_marks_again() {
        let times = AccessTimes::default();
        times.begin_day_if_due();
        let before = times.mark(Tail(7));
        tokio::time::advance(DAY / 2).await;
        times.begin_day_if_due();
        assert_eq!(times.mark(Tail(7)), before);
        tokio::time::advance(DAY / 2).await;
        times.begin_day_if_due();
        assert_ne!(times.mark(Tail(7)), before);
    }
}
