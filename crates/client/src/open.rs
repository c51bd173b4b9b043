//! Opening files, and keeping their indexes.

use crate::cache::extent_index::{FileIndex, MapChange};
use crate::cache::pull::Units;
use crate::client::Client;
use crate::io::writers::BeginWriting;
use crate::local_client::LocalClient;
use crate::open_table::{Begin, OpenInode, Opening};
use polvo_format::{FileKind, NodeId, RegionId, Tail};
use polvo_proto::{Extent, FileMap, FsError, InodeRef, LogCursor, MapClaim, Written, ask};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How often loading a part of an index is tried again because the file changes meanwhile.
const LOAD_TRIES: u32 = 64;

/// An open file; the inode is held while any clone of its `Arc` lives (and released lazily).
pub struct OpenFile {
    pub(crate) open_inode: Arc<OpenInode>,
    client: Arc<Client>,
    /// It counts as one that writes.
    writes: bool,
    opened_at: Option<Tail>,
    /// How many losses of what was not synced who has it open has been told of.
    pub(crate) losses_told: AtomicU64,
}

impl OpenFile {
    /// Which inode.
    pub fn inode(&self) -> InodeRef {
        self.open_inode.inode
    }

    /// Its type.
    pub fn kind(&self) -> FileKind {
        self.open_inode.kind
    }

    /// The tail of its log when it was opened, where that is known: as it is of all that are not opened to write. As long as it
    /// stays where it is, nothing of the file changes.
    pub fn opened_at(&self) -> Option<Tail> {
        self.opened_at
    }

    /// Whether this client has the right to map the file shared and writable, as far as it knows. Lost when the node forgets
    /// the session and gives the right to another one.
    pub fn may_map(&self) -> bool {
        self.writes && self.open_inode.may_map()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.writes {
            self.client.open_table.closed_writer(&self.open_inode);
        }
        self.client.open_table.closed(&self.open_inode);
    }
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFile").field("inode", &self.inode()).finish()
    }
}

/// What an index has taken in, all at once.
pub(crate) struct Step {
    /// The tail before.
    pub(crate) from: Tail,
    changes: Vec<MapChange>,
    size_before: u64,
    size_after: u64,
}

impl Step {
    /// Whether a read of `offset..offset + len` planned before may see something else after.
    pub(crate) fn touches(&self, offset: u64, len: u64) -> bool {
        let end_moved = self.size_after != self.size_before && self.size_before < offset.saturating_add(len);
        end_moved || self.changes.iter().any(|change| change.touches(offset, len))
    }
}

/// The index that an answer makes which was asked for from an offset on.
fn index_of(map: &FileMap, from: u64) -> FileIndex {
    let mut index = FileIndex::new(map.cursor, map.attr.size);
    // the extent that covers the offset comes as a whole
    let start = map.extents.first().map_or(from, |first| first.offset.min(from));
    index.add_page(&map.extents, start..page_end(map).max(start));
    index
}

/// Refuses a map whose extents lead nowhere.
fn sane(map: FileMap, inode: InodeRef) -> Result<FileMap, FsError> {
    let leads_somewhere = |extent: &Extent| {
        extent.gpa.region() == inode.ino.region()
            && extent.gpa.checked_add(extent.len).is_some()
            && extent.offset.checked_add(extent.len).is_some()
    };
    if map.extents.iter().all(leads_somewhere) {
        Ok(map)
    } else {
        Err(FsError::Io(format!("the map of inode {:?} makes no sense", inode.ino)))
    }
}

fn page_end(map: &FileMap) -> u64 {
    match map.extents.last() {
        Some(last) if map.more => last.offset.saturating_add(last.len),
        _ => u64::MAX,
    }
}

impl LocalClient {
    /// Opens an inode. The first time one RPC, which also brings the file's map; one one-sided read while it is held.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the inode is gone.
    pub async fn open(&self, inode: InodeRef) -> Result<Arc<OpenFile>, FsError> {
        self.open_as(inode, None).await
    }

    /// The same, for who is going to write: no other client gets the right to map the file shared and writable meanwhile. One
    /// RPC, or a one-sided read while others here write to it. `map`: ask for that right; [`OpenFile::may_map`] tells whether
    /// it was given.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the inode is gone, [`FsError::Access`].
    pub async fn open_to_write(&self, inode: InodeRef, map: bool) -> Result<Arc<OpenFile>, FsError> {
        let claim = if map { MapClaim::IfAlone } else { MapClaim::No };
        self.open_as(inode, Some(claim)).await
    }

    async fn open_as(&self, inode: InodeRef, claim: Option<MapClaim>) -> Result<Arc<OpenFile>, FsError> {
        let open_table = &self.client.open_table;
        let context = &self.client.context;
        let limit = context.timeouts().rpc * 3 + context.patience();
        let open = async {
            loop {
                match open_table.begin(inode) {
                    Begin::Open(open_inode) => {
                        let mut file = self.file(open_inode, false, None);
                        self.keep(&file.open_inode).await?;
                        let Some(claim) = claim else {
                            let current = self.current(inode.ino, Some(inode.generation)).await?;
                            file.opened_at = Some(current.log.tail);
                            return Ok(Arc::new(file));
                        };
                        return Box::pin(self.begin_to_write(&file, claim)).await;
                    }
                    // seldom, and large
                    Begin::Ask(opening) => return Box::pin(self.open_anew(inode, opening, claim)).await,
                    Begin::Wait => open_table.wait_changed(inode).await,
                }
            }
        };
        // an RPC has its own limit; this bounds the wait for those of other threads
        match tokio::time::timeout(limit, open).await {
            Ok(opened) => opened,
            Err(_) => Err(FsError::Busy),
        }
    }

    /// What is open here is opened to write, too.
    async fn begin_to_write(&self, file: &OpenFile, claim: MapClaim) -> Result<Arc<OpenFile>, FsError> {
        let (open_table, inode) = (&self.client.open_table, file.open_inode.inode);
        let begun = open_table.begin_writing(&file.open_inode, claim);
        // counted: from here on its end is told
        let writer = Arc::new(self.file(open_table.count_open(&file.open_inode), true, None));
        match begun {
            BeginWriting::Noted => drop(self.current(inode.ino, Some(inode.generation)).await?),
            BeginWriting::Tell(number) => self.tell_writing(&writer.open_inode, claim, number).await?,
        }
        Ok(writer)
    }

    /// What is not open here is opened at its primary.
    async fn open_anew(
        &self,
        inode: InodeRef,
        opening: Opening<'_>,
        claim: Option<MapClaim>,
    ) -> Result<Arc<OpenFile>, FsError> {
        let number = self.client.open_table.next_number();
        let (holder, map, may_map) = match claim {
            Some(claim) => self.ask_open_to_write(inode, claim, number).await?,
            None => {
                let (holder, map) = self.ask_open(inode).await?;
                (holder, map, false)
            }
        };
        let is_remote = self.colocated(inode.ino.region()).is_none();
        let tail = map.cursor.tail;
        let index = (map.attr.kind == FileKind::File && is_remote).then(|| index_of(&map, 0));
        let open_inode = opening.opened(map.attr.kind, holder, index);
        if claim.is_some() {
            open_inode.opened_to_write(number, may_map);
        }
        Ok(Arc::new(self.file(open_inode, claim.is_some(), Some(tail))))
    }

    fn file(&self, open_inode: Arc<OpenInode>, writes: bool, opened_at: Option<Tail>) -> OpenFile {
        OpenFile {
            losses_told: AtomicU64::new(open_inode.unsynced.losses()),
            open_inode,
            client: self.client.clone(),
            writes,
            opened_at,
        }
    }

    pub(crate) async fn ask_open(&self, inode: InodeRef) -> Result<((NodeId, u64), FileMap), FsError> {
        let holder = self.session_at(inode.ino.region()).await?;
        let map = self.call(inode.ino.region(), ask::Open { inode }).await?;
        Ok((holder, sane(map, inode)?))
    }

    /// As `ask_open`, to write; says also whether we have the right to map the file.
    pub(crate) async fn ask_open_to_write(
        &self,
        inode: InodeRef,
        claim: MapClaim,
        number: u64,
    ) -> Result<((NodeId, u64), FileMap, bool), FsError> {
        let holder = self.session_at(inode.ino.region()).await?;
        let open = ask::OpenToWrite {
            inode,
            claim,
            number,
            want_map: true,
        };
        let opened = self.call(inode.ino.region(), open).await?;
        let no_map = || FsError::Io(format!("the map of inode {:?} did not come", inode.ino));
        let map = sane(opened.map.ok_or_else(no_map)?, inode)?;
        Ok((holder, map, opened.may_map))
    }

    /// Opens a file that was made just now with `open`, so that its primary holds it already, and knows that we write to it.
    pub(crate) async fn open_held(
        &self,
        inode: InodeRef,
        kind: FileKind,
        cursor: LogCursor,
        size: u64,
    ) -> Result<Arc<OpenFile>, FsError> {
        let region = inode.ino.region();
        let primary = self.client.primary(region)?;
        // its lease there is to be renewed, although nothing of ours may have talked to it yet
        self.client.context.note_attached(primary);
        let holder = (primary, self.client.incarnation(primary, region));
        let fresh = kind == FileKind::File && size == 0 && self.colocated(region).is_none();
        let (index, tail) = (fresh.then(|| FileIndex::empty(cursor)), cursor.tail);
        let open_inode = self.client.open_table.enter(inode, kind, holder, index);
        open_inode.made_open();
        Ok(Arc::new(self.file(open_inode, true, Some(tail))))
    }

    /// Makes sure that an open inode is still held: after the loss of the session at its primary it is opened anew.
    pub(crate) async fn keep(&self, open_inode: &OpenInode) -> Result<(), FsError> {
        let losses = self.client.losses();
        if open_inode.is_kept(losses) {
            return Ok(());
        }
        let (node, incarnation) = open_inode.holder();
        if self.client.incarnation(node, open_inode.inode.ino.region()) != incarnation {
            // seldom, and large
            let (holder, map) = Box::pin(self.claim_again(open_inode)).await?;
            open_inode.set_holder(holder);
            if open_inode.index.read().is_some() {
                *open_inode.index.write() = Some(index_of(&map, 0));
            }
        }
        open_inode.set_kept(losses);
        Ok(())
    }

    /// Loads a page of a file's index from the primary: from offset `at` on, as far as one answer reaches.
    pub(crate) async fn load_index(&self, open_inode: &OpenInode, at: u64) -> Result<(), FsError> {
        for _ in 0..LOAD_TRIES {
            let map = self.ask_extents(open_inode.inode, at).await?;
            let mut page = index_of(&map, at);
            // whichever is older catches up with the other
            let known = open_inode.index.read().as_ref().map(|index| index.cursor().tail);
            if let Some(known) = known {
                let (is_older, is_newer) = (page.cursor().tail < known, page.cursor().tail > known);
                if is_older && !self.advance_page(open_inode.inode, &mut page, known).await? {
                    continue;
                }
                if is_newer {
                    self.catch_up(open_inode, page.cursor().tail).await?;
                }
            }
            let mut index = open_inode.index.write();
            match index.as_mut() {
                Some(index) if index.cursor().tail == page.cursor().tail => index.join(&page),
                // somebody has brought it further
                Some(index) if index.cursor().tail > page.cursor().tail => continue,
                // there is none, or it cannot follow
                _ => *index = Some(page),
            }
            return Ok(());
        }
        Err(FsError::Busy)
    }

    async fn ask_extents(&self, inode: InodeRef, from: u64) -> Result<FileMap, FsError> {
        sane(
            self.call(inode.ino.region(), ask::Extents { inode, from }).await?,
            inode,
        )
    }

    async fn advance_page(&self, inode: InodeRef, page: &mut FileIndex, to: Tail) -> Result<bool, FsError> {
        let Some(units) = self.pull(inode.ino, page.cursor(), to).await? else {
            return Ok(false);
        };
        let Ok(changes) = units.map_changes(page.cursor().tail.units()) else {
            return Ok(false);
        };
        changes.iter().for_each(|change| page.apply(change));
        page.set_cursor(units.cursor);
        Ok(true)
    }

    /// Brings a file's index to (at least) the tail `to`, which was just read. Returns what was applied; `None` when the
    /// index was changed otherwise (by another thread, or dropped because it cannot follow).
    pub(crate) async fn catch_up(&self, open_inode: &OpenInode, to: Tail) -> Result<Option<Step>, FsError> {
        let Some(cursor) = open_inode.index.read().as_ref().map(FileIndex::cursor) else {
            return Ok(None);
        };
        if cursor.tail.version() == to.version() && cursor.tail.units() >= to.units() {
            return Ok(None); // another thread was faster
        }
        let units = self.pull(open_inode.inode.ino, cursor, to).await?;
        let changes = units.as_ref().and_then(|u| u.map_changes(cursor.tail.units()).ok());
        let mut guard = open_inode.index.write();
        match (units, changes, guard.as_mut()) {
            (_, _, Some(index)) if index.cursor().tail != cursor.tail => Ok(None),
            (Some(units), Some(changes), Some(index)) => {
                let size_before = index.size();
                changes.iter().for_each(|change| index.apply(change));
                index.set_cursor(units.cursor);
                Ok(Some(Step {
                    from: cursor.tail,
                    changes,
                    size_before,
                    size_after: index.size(),
                }))
            }
            _ => {
                *guard = None;
                Ok(None)
            }
        }
    }

    /// Applies the answer to a write of our own, made when the log was known as `known`.
    pub(crate) fn apply_written(&self, open_inode: &OpenInode, known: LogCursor, written: Written) {
        let mut guard = open_inode.index.write();
        let Some(index) = guard.as_mut() else { return };
        let (now, then) = (index.cursor().tail, written.cursor.tail);
        if now.version() == then.version() && now.units() >= then.units() {
            return; // another thread has pulled our entry already
        }
        let size = written.attr.size;
        let applied = now.version() == then.version() && now.units() >= known.tail.units() && {
            let units = Units::of_answer(open_inode.inode.ino, known, written);
            units.is_some_and(|units| match units.map_changes(now.units()) {
                Ok(changes) => {
                    changes.iter().for_each(|change| index.apply(change));
                    index.set_cursor(units.cursor);
                    true
                }
                Err(_) => false,
            })
        };
        if applied {
            debug_assert_eq!(index.size(), size, "the entries say the same as the attributes");
        } else if now.version() != then.version() {
            // rewritten: loaded anew when needed. Else the next reader pulls what is missing
            *guard = None;
        }
    }

    /// Lets go of what is held for no use. False when there was nothing.
    pub(crate) async fn release_some(&self) -> bool {
        let inodes = self.client.open_table.take_releases();
        if inodes.is_empty() {
            return false;
        }
        let mut by_node: BTreeMap<Option<NodeId>, Vec<InodeRef>> = BTreeMap::new();
        for inode in &inodes {
            by_node
                .entry(self.client.primary(inode.ino.region()).ok())
                .or_default()
                .push(*inode);
        }
        for (node, inodes) in by_node {
            if let Some(node) = node {
                self.release_at(node, &inodes).await;
            }
            self.client.open_table.released(&inodes);
        }
        true
    }

    pub(crate) async fn release_at(&self, node: NodeId, inodes: &[InodeRef]) {
        for inodes in inodes.chunks(polvo_proto::RELEASE_MAX / 2) {
            let request = ask::Release {
                inodes: inodes.to_vec(),
            };
            if let Err(error) = self.call_node(node, request).await {
                // not lost for good: the node asks for what is dead, and the session's end returns all
                tracing::debug!(%node, %error, "release");
            }
        }
    }
}

/// The region a file's data lies in: that of its inode.
pub(crate) fn data_region(open_inode: &OpenInode) -> RegionId {
    open_inode.inode.ino.region()
}
