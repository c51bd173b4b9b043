//! Open files and the holds behind them.
//!
//! The first open of an inode asks its primary to hold it (it then outlives its last name); the hold is kept after the
//! last close, so that the next open costs one one-sided read. What is not open any more is let go of when there are
//! too many such inodes, when the node asks for it, or when this client has removed the inode's name.
//!
//! An inode is in one of the states of [`Slot`]. A hold is entered and left by RPC, and the two must not overtake each
//! other; so while one is under way others wait for the change.

use crate::cache::extent_index::FileIndex;
use crate::colocated::mapped_read::MappedFile;
use crate::io::sync::Unsynced;
use crate::io::writers::Writing;
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};
use polvo_format::{FileKind, Ino, NodeId, RegionId, Tail};
use polvo_proto::InodeRef;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

const SHARDS: usize = 16;
/// Most inodes held without being open.
pub(crate) const IDLE_MAX: usize = 4096;

/// Most extents of a file whose index is kept while it is not open.
const IDLE_EXTENTS_MAX: usize = 1024;

/// An inode that is open at its primary: a file of ours, or one that was and is kept for the next open.
pub(crate) struct OpenInode {
    /// Which.
    pub(crate) inode: InodeRef,
    /// Its type.
    pub(crate) kind: FileKind,
    /// The node that holds it, and which of our sessions there (see `attachment`).
    holder: AtomicU64,
    /// The file's mapping; `None` until loaded, and after it was found outdated beyond repair.
    pub(crate) index: RwLock<Option<FileIndex>>,
    /// The mapping as the region itself has it, where that is in the node around us; got by the first read.
    mapped: OnceLock<MappedFile>,
    /// Its region has moved since it was opened: a mapping from before is of no use, if the region is in the node around us again.
    has_moved: AtomicBool,
    opens: AtomicUsize,
    used: AtomicU64,
    doomed: AtomicBool,
    /// Tail up to which reads have marked the access time (see `access_times`).
    pub(crate) marked: AtomicU64,
    /// Number of losses (of sessions, anywhere) up to which the hold is known to be kept.
    kept: AtomicU64,
    /// Whether it is open for writing.
    pub(crate) writing: Mutex<Writing>,
    /// What may be lost of it with its primary.
    pub(crate) unsynced: Unsynced,
}

impl OpenInode {
    /// Nothing was lost since the hold was last known to be kept.
    pub(crate) fn is_kept(&self, losses: u64) -> bool {
        self.kept.load(Ordering::Acquire) == losses
    }

    /// The hold is known to be kept after so many losses.
    pub(crate) fn set_kept(&self, losses: u64) {
        self.kept.store(losses, Ordering::Release);
    }

    /// The mapping that the region has, if it is known here.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&MappedFile> {
        let known = self.mapped.get()?;
        (!self.has_moved.load(Ordering::Acquire)).then_some(known)
    }

    /// As [`Self::mapped`], which this may be from now on.
    pub(crate) fn mapped_or(&self, found: impl FnOnce() -> MappedFile) -> Option<&MappedFile> {
        if !self.has_moved.load(Ordering::Acquire) {
            self.mapped.get_or_init(found);
        }
        self.mapped()
    }

    /// Tail of the file's log when its mapping was last validated.
    pub(crate) fn tail(&self) -> Option<Tail> {
        match self.mapped() {
            Some(mapped) => Some(mapped.tail()),
            None => Some(self.index.read().as_ref()?.cursor().tail),
        }
    }

    /// The node that holds the inode, and the number of the session there.
    pub(crate) fn holder(&self) -> (NodeId, u64) {
        let packed = self.holder.load(Ordering::Acquire);
        (NodeId((packed >> 48) as u16), packed & ((1 << 48) - 1))
    }

    /// The hold was made anew.
    pub(crate) fn set_holder(&self, holder: (NodeId, u64)) {
        self.holder.store(pack(holder), Ordering::Release);
    }
}

fn pack((node, incarnation): (NodeId, u64)) -> u64 {
    assert!(incarnation < 1 << 48, "sessions at a node are counted");
    u64::from(node.0) << 48 | incarnation
}

enum Slot {
    /// An `Open` is under way.
    Opening(InodeRef),
    /// Open at its primary.
    Open(Arc<OpenInode>),
    /// A `Release` is under way.
    Releasing(InodeRef),
}

/// What a would-be opener finds.
pub(crate) enum Begin<'a> {
    /// It is there already; counted as open.
    Open(Arc<OpenInode>),
    /// Nobody holds it: the caller asks the primary and reports to the guard.
    Ask(Opening<'a>),
    /// Somebody is about to change that: wait and try again.
    Wait,
}

/// All inodes that a client has open at their primaries. Sharded short locks.
pub(crate) struct OpenTable {
    shards: [Mutex<HashMap<Ino, Slot>>; SHARDS],
    /// An opening or a release has ended.
    changed: Notify,
    /// There is something to release without delay.
    pub(crate) work: Notify,
    /// How many.
    inodes: AtomicUsize,
    clock: AtomicU64,
    doomed: Mutex<Vec<InodeRef>>,
    /// Inodes that were open for writing (see `writers`); each once.
    pub(crate) ended_writers: Mutex<Vec<Arc<OpenInode>>>,
    /// Numbers given to requests that open for writing.
    pub(crate) numbers: AtomicU64,
}

impl OpenTable {
    pub(crate) fn new() -> OpenTable {
        OpenTable {
            shards: Default::default(),
            changed: Notify::new(),
            work: Notify::new(),
            inodes: AtomicUsize::new(0),
            clock: AtomicU64::new(0),
            doomed: Mutex::default(),
            ended_writers: Mutex::default(),
            numbers: AtomicU64::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Slot>> {
        &self.shards[(ino.0 ^ ino.0 >> 48) as usize % SHARDS]
    }

    fn uncount(&self) {
        let inodes = self.inodes.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(inodes > 0, "an open inode is counted");
    }

    pub(crate) fn count_open(&self, open_inode: &Arc<OpenInode>) -> Arc<OpenInode> {
        open_inode.opens.fetch_add(1, Ordering::Relaxed);
        open_inode
            .used
            .store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        open_inode.clone()
    }

    /// Begins to open an inode.
    pub(crate) fn begin(&self, inode: InodeRef) -> Begin<'_> {
        let mut shard = self.shard(inode.ino).lock();
        match shard.get(&inode.ino) {
            Some(Slot::Open(open_inode)) if open_inode.inode == inode => {
                return Begin::Open(self.count_open(open_inode));
            }
            // of an earlier file in the slot, which is gone: nothing is held there any more; or of a later one
            Some(Slot::Open(_)) | None => {}
            Some(Slot::Opening(_) | Slot::Releasing(_)) => return Begin::Wait,
        }
        // a later file has the slot: the node will say that the one asked for is gone, and what is held stays known
        let is_gone =
            matches!(shard.get(&inode.ino), Some(Slot::Open(later)) if later.inode.generation > inode.generation);
        if !is_gone && let Some(Slot::Open(_)) = shard.insert(inode.ino, Slot::Opening(inode)) {
            self.uncount();
        }
        Begin::Ask(Opening {
            open_table: self,
            inode,
            done: false,
        })
    }

    /// Waits until an opening or release that was under way at the call has ended (or another one).
    pub(crate) async fn wait_changed(&self, inode: InodeRef) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if matches!(
            self.shard(inode.ino).lock().get(&inode.ino),
            Some(Slot::Opening(_) | Slot::Releasing(_))
        ) {
            changed.await;
        }
    }

    /// Enters an inode that a node holds for us without an `Open` (just made, with open). Counted as open.
    pub(crate) fn enter(
        &self,
        inode: InodeRef,
        kind: FileKind,
        holder: (NodeId, u64),
        index: Option<FileIndex>,
    ) -> Arc<OpenInode> {
        let open_inode = Arc::new(OpenInode {
            inode,
            kind,
            holder: AtomicU64::new(pack(holder)),
            index: RwLock::new(index),
            mapped: OnceLock::new(),
            has_moved: AtomicBool::new(false),
            opens: AtomicUsize::new(0),
            used: AtomicU64::new(0),
            doomed: AtomicBool::new(false),
            marked: AtomicU64::new(0),
            kept: AtomicU64::new(u64::MAX),
            writing: Mutex::default(),
            unsynced: Unsynced::default(),
        });
        let counted = self.count_open(&open_inode);
        if !matches!(
            self.shard(inode.ino).lock().insert(inode.ino, Slot::Open(open_inode)),
            Some(Slot::Open(_))
        ) {
            self.inodes.fetch_add(1, Ordering::Relaxed);
        }
        self.changed.notify_waiters();
        if self.inodes.load(Ordering::Relaxed) > IDLE_MAX + IDLE_MAX / 4 {
            self.work.notify_one();
        }
        counted
    }

    /// An open file was closed.
    pub(crate) fn closed(&self, open_inode: &OpenInode) {
        let opens = open_inode.opens.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(opens > 0, "an open file is counted");
        if opens > 1 {
            return;
        }
        if open_inode.doomed.load(Ordering::Acquire) {
            self.doom(open_inode.inode);
        }
        let large = |index: &FileIndex| index.extents() > IDLE_EXTENTS_MAX;
        if open_inode.index.read().as_ref().is_some_and(large) {
            *open_inode.index.write() = None; // loaded again when needed
        }
    }

    /// The inode held, if it is.
    pub(crate) fn get(&self, inode: InodeRef) -> Option<Arc<OpenInode>> {
        match self.shard(inode.ino).lock().get(&inode.ino) {
            Some(Slot::Open(open_inode)) if open_inode.inode == inode => Some(open_inode.clone()),
            _ => None,
        }
    }

    /// The inode has (or may have) lost its last name: it is released as soon as it is not open here.
    pub(crate) fn doom(&self, inode: InodeRef) {
        let Some(open_inode) = self.get(inode) else { return };
        open_inode.doomed.store(true, Ordering::Release);
        if open_inode.opens.load(Ordering::Acquire) == 0 {
            let mut doomed = self.doomed.lock();
            doomed.push(inode);
            if doomed.len() == 1 {
                self.work.notify_one();
            }
        }
    }

    /// The node says that the inode is dead and held by us. `true`: we know of no use, it is to be released.
    pub(crate) fn recalled(&self, inode: InodeRef) -> bool {
        match self.shard(inode.ino).lock().get(&inode.ino) {
            Some(Slot::Open(open_inode)) if open_inode.inode == inode => {
                open_inode.doomed.store(true, Ordering::Release)
            }
            Some(Slot::Opening(_) | Slot::Releasing(_)) => return false,
            // of another file in the slot, or not known at all (an answer that never reached us): let go
            Some(Slot::Open(_)) | None => return true,
        }
        self.doom(inode);
        false
    }

    /// Takes what is to be released: doomed inodes that are not open, and idle ones over the limit, oldest first.
    /// They stay `Releasing` until [`OpenTable::released`].
    pub(crate) fn take_releases(&self) -> Vec<InodeRef> {
        let mut wanted = std::mem::take(&mut *self.doomed.lock());
        let excess = self.inodes.load(Ordering::Relaxed).saturating_sub(IDLE_MAX);
        if excess > 0 {
            // a quarter more, so that the next open does not scan again
            let mut idle = self.idle();
            idle.sort_unstable_by_key(|(used, _)| *used);
            wanted.extend(idle.into_iter().take(excess + IDLE_MAX / 4).map(|(_, inode)| inode));
        }
        wanted.retain(|inode| self.begin_release(*inode));
        wanted
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.inodes.load(Ordering::Relaxed) == 0
    }

    fn idle(&self) -> Vec<(u64, InodeRef)> {
        let mut idle = Vec::new();
        for shard in &self.shards {
            idle.extend(shard.lock().values().filter_map(|slot| match slot {
                Slot::Open(open_inode) if open_inode.opens.load(Ordering::Acquire) == 0 => {
                    Some((open_inode.used.load(Ordering::Relaxed), open_inode.inode))
                }
                _ => None,
            }));
        }
        idle
    }

    /// What is open for writing, or open at all and wanted, in the order of numbers, so that a simulated run repeats.
    pub(crate) fn writers_and(&self, is_wanted: impl Fn(InodeRef) -> bool) -> Vec<Arc<OpenInode>> {
        let mut open = Vec::new();
        for shard in &self.shards {
            open.extend(shard.lock().values().filter_map(|slot| match slot {
                Slot::Open(open_inode)
                    if open_inode.is_written()
                        || open_inode.opens.load(Ordering::Acquire) > 0 && is_wanted(open_inode.inode) =>
                {
                    Some(open_inode.clone())
                }
                _ => None,
            }));
        }
        open.sort_unstable_by_key(|open_inode| open_inode.inode);
        debug_assert!(
            open.is_sorted_by(|a, b| a.inode < b.inode),
            "an inode is in one place of the table"
        );
        open
    }

    fn begin_release(&self, inode: InodeRef) -> bool {
        let mut shard = self.shard(inode.ino).lock();
        match shard.get(&inode.ino) {
            Some(Slot::Open(open_inode))
                if open_inode.inode == inode && open_inode.opens.load(Ordering::Acquire) == 0 =>
            {
                let before = shard.insert(inode.ino, Slot::Releasing(inode));
                debug_assert!(matches!(before, Some(Slot::Open(_))), "what is released was open");
                self.uncount();
                true
            }
            _ => false,
        }
    }

    /// The releases have been sent (or could not be: then the session's end lets go).
    pub(crate) fn released(&self, inodes: &[InodeRef]) {
        for inode in inodes {
            let mut shard = self.shard(inode.ino).lock();
            // else another file has got its slot since, and its place here
            if matches!(shard.get(&inode.ino), Some(Slot::Releasing(released)) if released == inode) {
                shard.remove(&inode.ino);
            }
        }
        self.changed.notify_waiters();
    }

    /// Another node has taken the place of the one that served these inodes, and may lack what it has done last.
    pub(crate) fn primary_lost(&self, of: impl Fn(Ino) -> bool) {
        for shard in &self.shards {
            for (_, slot) in shard.lock().iter().filter(|(ino, _)| of(**ino)) {
                if let Slot::Open(open_inode) = slot {
                    open_inode.unsynced.primary_lost();
                }
            }
        }
    }

    /// Regions have moved, perhaps to the node around us or from it: where their files lie in a pool is known no more, nor by a mapping that
    /// has not followed what was written there.
    pub(crate) fn moved(&self, has_moved: &dyn Fn(RegionId) -> bool) {
        for shard in &self.shards {
            for (inode, slot) in shard.lock().iter() {
                if let Slot::Open(open_inode) = slot
                    && has_moved(inode.region())
                {
                    open_inode.has_moved.store(true, Ordering::Release);
                    *open_inode.index.write() = None;
                }
            }
        }
    }

    /// The session at a node was lost: forgets what it held that is not open here. What is open is opened anew when it
    /// is next used.
    pub(crate) fn lost(&self, node: NodeId) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|_, slot| match slot {
                Slot::Open(open_inode) => open_inode.holder().0 != node || open_inode.opens.load(Ordering::Acquire) > 0,
                Slot::Opening(_) | Slot::Releasing(_) => true,
            });
            let gone = before - shard.len();
            let inodes = self.inodes.fetch_sub(gone, Ordering::Relaxed);
            debug_assert!(inodes >= gone, "every open inode is counted");
        }
    }
}

/// An `Open` under way; when dropped without success, the inode is not held.
pub(crate) struct Opening<'a> {
    open_table: &'a OpenTable,
    inode: InodeRef,
    done: bool,
}

impl Opening<'_> {
    /// The primary holds it now.
    pub(crate) fn opened(mut self, kind: FileKind, holder: (NodeId, u64), index: Option<FileIndex>) -> Arc<OpenInode> {
        assert!(!self.done, "an opening succeeds once");
        self.done = true;
        self.open_table.enter(self.inode, kind, holder, index)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.done {
            let mut shard = self.open_table.shard(self.inode.ino).lock();
            if matches!(shard.get(&self.inode.ino), Some(Slot::Opening(inode)) if *inode == self.inode) {
                shard.remove(&self.inode.ino);
            }
            drop(shard);
            self.open_table.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Generation;

    const HOLDER: (NodeId, u64) = (NodeId(1), 1);

    fn inode(n: u64) -> InodeRef {
        InodeRef {
            ino: Ino(n),
            generation: Generation(1),
        }
    }

    /// The node has let go of a file, and made another one in its slot, before its answer to the release has come.
    #[test]
    fn a_release_ends_nothing_of_a_later_file_in_the_slot() {
        let open_table = OpenTable::new();
        let of_slot = |generation| InodeRef {
            ino: Ino(1),
            generation: Generation(generation),
        };
        let enter = |generation| open_table.enter(of_slot(generation), FileKind::File, HOLDER, None);
        let release = |generation| {
            open_table.closed(&enter(generation));
            open_table.doom(of_slot(generation));
            assert_eq!(open_table.take_releases(), [of_slot(generation)]);
        };
        release(1);
        open_table.closed(&enter(2));
        let Begin::Ask(opening) = open_table.begin(of_slot(3)) else {
            panic!("nothing is known of the third")
        };
        open_table.released(&[of_slot(1)]);
        assert!(
            matches!(open_table.begin(of_slot(3)), Begin::Wait),
            "it is being opened"
        );
        open_table.closed(&opening.opened(FileKind::File, HOLDER, None));
        drop(open_table.begin(of_slot(2)));
        assert!(open_table.get(of_slot(3)).is_some(), "nor does a file that is gone");
        release(4);
        open_table.released(&[of_slot(3)]);
        assert!(
            matches!(open_table.begin(of_slot(4)), Begin::Wait),
            "it is being released"
        );
        open_table.released(&[of_slot(4)]);
        assert!(matches!(open_table.begin(of_slot(4)), Begin::Ask(_)));
    }

    fn open(open_table: &OpenTable, n: u64) -> Arc<OpenInode> {
        match open_table.begin(inode(n)) {
            Begin::Open(open_inode) => open_inode,
            Begin::Ask(opening) => opening.opened(FileKind::File, HOLDER, None),
            Begin::Wait => panic!("nothing is under way"),
        }
    }

    #[test]
    fn held_after_close_and_released_when_doomed() {
        let open_table = OpenTable::new();
        let first = open(&open_table, 1);
        let second = open(&open_table, 1);
        assert!(Arc::ptr_eq(&first, &second));
        open_table.doom(inode(1));
        open_table.closed(&first);
        assert!(open_table.take_releases().is_empty(), "still open");
        open_table.closed(&second);
        assert_eq!(open_table.take_releases(), [inode(1)]);
        assert!(
            matches!(open_table.begin(inode(1)), Begin::Wait),
            "a release is under way"
        );
        open_table.released(&[inode(1)]);
        assert!(open_table.is_empty());
        assert!(matches!(open_table.begin(inode(1)), Begin::Ask(_)));
    }

    #[test]
    fn reopened_before_the_release_is_kept() {
        let open_table = OpenTable::new();
        let file = open(&open_table, 1);
        open_table.closed(&file);
        open_table.doom(inode(1));
        let again = open(&open_table, 1);
        assert!(open_table.take_releases().is_empty());
        open_table.closed(&again);
        assert_eq!(open_table.take_releases(), [inode(1)]);
    }

    #[test]
    fn a_recall_of_what_is_not_known_is_released() {
        let open_table = OpenTable::new();
        assert!(open_table.recalled(inode(1)));
        let Begin::Ask(opening) = open_table.begin(inode(2)) else {
            panic!("first open")
        };
        assert!(
            !open_table.recalled(inode(2)),
            "the answer to its Open may be under way"
        );
        drop(opening);
        assert!(open_table.recalled(inode(2)));
        let file = open(&open_table, 3);
        assert!(!open_table.recalled(inode(3)));
        open_table.closed(&file);
        assert_eq!(open_table.take_releases(), [inode(3)]);
    }

    #[test]
    fn idle_holds_are_bounded_oldest_go_first() {
        let open_table = OpenTable::new();
        let keep = open(&open_table, 1);
        for n in 2..(IDLE_MAX + 102) as u64 {
            let open_inode = open(&open_table, n);
            open_table.closed(&open_inode);
        }
        let released = open_table.take_releases();
        assert_eq!(released.len(), 101 + IDLE_MAX / 4);
        assert!(
            released
                .iter()
                .all(|i| i.ino.0 >= 2 && i.ino.0 < 3 + released.len() as u64)
        );
        assert!(open_table.get(keep.inode).is_some());
        assert!(open_table.take_releases().is_empty());
    }

    #[test]
    fn a_new_file_in_the_slot_takes_the_place_of_the_old() {
        let open_table = OpenTable::new();
        let old = open(&open_table, 1);
        open_table.closed(&old);
        let new = InodeRef {
            generation: Generation(2),
            ..inode(1)
        };
        let Begin::Ask(opening) = open_table.begin(new) else {
            panic!("another file")
        };
        let open_inode = opening.opened(FileKind::File, HOLDER, None);
        assert_eq!(open_inode.inode, new);
        assert!(open_table.get(inode(1)).is_none());
        open_table.closed(&open_inode);
        open_table.doom(new);
        assert_eq!(open_table.take_releases(), [new]);
        open_table.released(&[new]);
        assert!(open_table.is_empty(), "counted once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_opener_waits_for_the_release_under_way() {
        let open_table = Arc::new(OpenTable::new());
        let file = open(&open_table, 1);
        open_table.closed(&file);
        open_table.doom(inode(1));
        let released = open_table.take_releases();
        let waiting = open_table.clone();
        let local = tokio::task::LocalSet::new();
        let waiter = local.spawn_local(async move {
            waiting.wait_changed(inode(1)).await;
            matches!(waiting.begin(inode(1)), Begin::Ask(_))
        });
        local
            .run_until(async {
                tokio::task::yield_now().await;
                open_table.released(&released);
                assert!(waiter.await.expect("waiter"));
            })
            .await;
    }
}
