//! Opening files, and keeping their indexes.

use crate::client::Client;
use crate::holds::{Begin, Held};
use crate::index::{FileIndex, MapChange};
use crate::inode::unexpected;
use crate::local::LocalClient;
use crate::pull::Units;
use polvo_format::{FileKind, NodeId, RegionId, Tail};
use polvo_proto::{Extent, FileMap, FsError, InodeRef, LogCursor, Reply, Request, Written};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often loading a part of an index is tried again because the file changes meanwhile.
const LOAD_TRIES: u32 = 64;

/// An open file; the inode is held while any clone of its `Arc` lives (and released lazily).
pub struct OpenFile {
    pub(crate) held: Arc<Held>,
    client: Arc<Client>,
}

impl OpenFile {
    /// Which inode.
    pub fn inode(&self) -> InodeRef {
        self.held.inode
    }

    /// Its type.
    pub fn kind(&self) -> FileKind {
        self.held.kind
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.client.holds.closed(&self.held);
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
        let holds = &self.client.holds;
        let context = &self.client.context;
        let limit = context.timeouts().rpc * 3 + context.patience();
        let outside = self.inside(inode.ino.region()).is_none();
        let open = async {
            loop {
                match holds.begin(inode) {
                    Begin::Held(held) => {
                        let file = self.file(held);
                        self.keep(&file.held).await?;
                        self.current(inode.ino, Some(inode.generation)).await?;
                        return Ok(file);
                    }
                    Begin::Ask(opening) => {
                        let (holder, map) = self.ask_open(inode).await?;
                        let index = (map.attr.kind == FileKind::File && outside).then(|| index_of(&map, 0));
                        return Ok(self.file(opening.opened(map.attr.kind, holder, index)));
                    }
                    Begin::Wait => holds.wait_changed(inode).await,
                }
            }
        };
        // an RPC has its own limit; this bounds the wait for those of other threads
        match tokio::time::timeout(limit, open).await {
            Ok(opened) => opened,
            Err(_) => Err(FsError::Busy),
        }
    }

    fn file(&self, held: Arc<Held>) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            held,
            client: self.client.clone(),
        })
    }

    async fn ask_open(&self, inode: InodeRef) -> Result<((NodeId, u64), FileMap), FsError> {
        let holder = self.session_at(inode.ino.region()).await?;
        match self.call(inode.ino.region(), Request::Open { inode }).await? {
            Reply::FileMap(map) => Ok((holder, sane(map, inode)?)),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a file that was made just now with `open`, so that its primary holds it already.
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
        let holder = (primary, self.client.incarnation(primary));
        let fresh = kind == FileKind::File && size == 0 && self.inside(region).is_none();
        let index = fresh.then(|| FileIndex::empty(cursor));
        Ok(self.file(self.client.holds.enter(inode, kind, holder, index)))
    }

    /// Makes sure that an open inode is still held: after the loss of the session at its primary it is opened anew.
    pub(crate) async fn keep(&self, held: &Held) -> Result<(), FsError> {
        let losses = self.client.losses();
        if held.is_kept(losses) {
            return Ok(());
        }
        let (node, incarnation) = held.holder();
        if self.client.incarnation(node) != incarnation {
            let (holder, map) = self.ask_open(held.inode).await?;
            held.set_holder(holder);
            if held.index.read().is_some() {
                *held.index.write() = Some(index_of(&map, 0));
            }
        }
        held.set_kept(losses);
        Ok(())
    }

    /// Loads a page of a file's index from the primary: from offset `at` on, as far as one answer reaches.
    pub(crate) async fn load_index(&self, held: &Held, at: u64) -> Result<(), FsError> {
        for _ in 0..LOAD_TRIES {
            let map = self.ask_extents(held.inode, at).await?;
            let mut page = index_of(&map, at);
            // whichever is older catches up with the other
            let known = held.index.read().as_ref().map(|index| index.cursor().tail);
            if let Some(known) = known {
                let (is_older, is_newer) = (page.cursor().tail < known, page.cursor().tail > known);
                if is_older && !self.advance_page(held.inode, &mut page, known).await? {
                    continue;
                }
                if is_newer {
                    self.catch_up(held, page.cursor().tail).await?;
                }
            }
            let mut index = held.index.write();
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
        match self.call(inode.ino.region(), Request::Extents { inode, from }).await? {
            Reply::FileMap(map) => sane(map, inode),
            other => Err(unexpected(&other)),
        }
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
    pub(crate) async fn catch_up(&self, held: &Held, to: Tail) -> Result<Option<Step>, FsError> {
        let Some(cursor) = held.index.read().as_ref().map(FileIndex::cursor) else {
            return Ok(None);
        };
        if cursor.tail.version() == to.version() && cursor.tail.units() >= to.units() {
            return Ok(None); // another thread was faster
        }
        let units = self.pull(held.inode.ino, cursor, to).await?;
        let changes = units.as_ref().and_then(|u| u.map_changes(cursor.tail.units()).ok());
        let mut guard = held.index.write();
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
    pub(crate) fn apply_written(&self, held: &Held, known: LogCursor, written: Written) {
        let mut guard = held.index.write();
        let Some(index) = guard.as_mut() else { return };
        let (now, then) = (index.cursor().tail, written.cursor.tail);
        if now.version() == then.version() && now.units() >= then.units() {
            return; // another thread has pulled our entry already
        }
        let size = written.attr.size;
        let applied = now.version() == then.version() && now.units() >= known.tail.units() && {
            let units = Units::of_answer(held.inode.ino, known, written);
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
        let inodes = self.client.holds.take_releases();
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
            self.client.holds.released(&inodes);
        }
        true
    }

    pub(crate) async fn release_at(&self, node: NodeId, inodes: &[InodeRef]) {
        for inodes in inodes.chunks(polvo_proto::RELEASE_MAX / 2) {
            let request = Request::Release {
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
pub(crate) fn data_region(held: &Held) -> RegionId {
    held.inode.ino.region()
}
