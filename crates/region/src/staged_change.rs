//! A change that is staged on a region, and what was taken for it: slots of new inodes, log pages.
//!
//! Either it happens, and then all of that is in use ([`StagedChange::happened`] is set once the media say so); or the
//! guard gives it back when it ends, on whichever path that is.

use crate::layout::{Layout, LogEnd, read_back};
use crate::region::{freed_head, raised};
use crate::stage::{Stage, Staged};
use crate::store::Urgency;
use crate::writes::Writes;
use crate::{RedoId, Region, RegionError, RemotePart};
use polvo_format::{INODE_ATTRIBUTES, INODE_HEAD_SIZE, INODE_SIZE, INODE_TAIL, PAGE, Tail, TxnId, encode_attributes};
use polvo_proto::{Intent, Outcome};

/// First lines of inodes, which come last in a redo record: region offset, bytes.
type Heads = Vec<(u64, [u8; INODE_HEAD_SIZE])>;

/// Intents staged on a region and laid out. In this order: [`StagedChange::of`], [`StagedChange::lay_out`], then one of
/// [`StagedChange::commit_single`], [`StagedChange::commit_logged`], or what a participant does. A log that is written
/// anew is one without intents: [`StagedChange::nothing`], [`StagedChange::lay_out_log`],
/// [`StagedChange::replace_log`].
pub(crate) struct StagedChange<'a> {
    pub region: &'a mut Region,
    pub stage: Stage,
    /// one an inode of the stage, and perhaps more
    pub layouts: Vec<Layout>,
    /// It has happened, or a participant holds it: nothing is to be given back.
    pub happened: bool,
}

impl Drop for StagedChange<'_> {
    fn drop(&mut self) {
        // after a panic nobody knows whether it has happened: what is lost to this process comes back with recovery
        if !self.happened && !std::thread::panicking() {
            for layout in &self.layouts {
                self.region.store.give_pages(&layout.new_pages);
            }
            self.region.give_slots(&self.stage);
        }
        // memory for the next one
        self.stage.clear();
        self.region.stage = std::mem::take(&mut self.stage);
        self.region.store.layouts = std::mem::take(&mut self.layouts);
    }
}

impl<'a> StagedChange<'a> {
    /// Nothing is staged yet.
    pub fn nothing(region: &'a mut Region) -> StagedChange<'a> {
        let mut change = StagedChange {
            stage: std::mem::take(&mut region.stage),
            layouts: std::mem::take(&mut region.store.layouts),
            happened: false,
            region,
        };
        assert!(
            change.stage.inodes.is_empty() && change.stage.about.is_empty(),
            "nothing is left of what was staged before"
        );
        change.layouts.iter_mut().for_each(Layout::clear);
        change
    }

    /// Works out what the intents would do.
    pub fn of(region: &'a mut Region, intents: &[Intent], now_ns: i64) -> Result<StagedChange<'a>, RegionError> {
        let mut change = StagedChange::nothing(region);
        for number in 0..intents.len() {
            let about = change.region.stage_one(&mut change.stage, intents, number, now_ns)?;
            assert!(about < change.stage.inodes.len(), "an intent is about something");
            change.stage.about.push(about);
        }
        debug_assert_eq!(change.stage.about.len(), intents.len());
        debug_assert!(change.layouts.iter().all(|layout| layout.new_pages.is_empty()));
        Ok(change)
    }

    /// Lays out the entries of every staged inode.
    pub fn lay_out(&mut self, intents: &[Intent]) -> Result<(), RegionError> {
        let urgency = Region::urgency(intents);
        let inodes = &self.stage.inodes;
        if self.layouts.len() < inodes.len() {
            self.layouts.resize_with(inodes.len(), Layout::default);
        }
        let Region { store, cache, .. } = &mut *self.region;
        for (staged, layout) in inodes.iter().zip(&mut self.layouts) {
            let pages = match staged.fresh {
                true => &[][..],
                false => &cache.get(store, staged.slot())?.pages,
            };
            store.lay_out(staged.log_end(pages), &staged.entries, urgency, layout)?;
            debug_assert!(layout.tail >= staged.tail && layout.tail.version() == staged.tail.version());
        }
        assert!(self.layouts.len() >= self.stage.inodes.len(), "a layout for each inode");
        Ok(())
    }

    /// Lays out the entries of a log that is to take the place of another one. A repair or a collection of garbage is
    /// what asks for it: it frees in the end.
    pub fn lay_out_log(&mut self, end: LogEnd<'_>, entries: &[u8]) -> Result<(), RegionError> {
        assert!(self.stage.inodes.is_empty() && end.pages.is_empty(), "a log by itself");
        if self.layouts.is_empty() {
            self.layouts.push(Layout::default());
        }
        self.region
            .store
            .lay_out(end, entries, Urgency::Frees, &mut self.layouts[0])
    }

    /// What was laid out so.
    pub fn log(&self) -> &Layout {
        &self.layouts[0]
    }

    /// Logs a redo record with these writes, which put that log in place; gives its layout.
    pub fn replace_log(mut self, writes: &Writes) -> Result<Layout, RegionError> {
        self.region.redo(TxnId::default(), writes, &[])?;
        self.happened = true;
        debug_assert!(!self.layouts[0].pieces.is_empty(), "a log was laid out");
        Ok(std::mem::take(&mut self.layouts[0]))
    }

    /// The results, one an intent: each inode as it is after all of them.
    pub fn outcomes(&self) -> Vec<Outcome> {
        debug_assert!(self.layouts.len() >= self.stage.inodes.len(), "all is laid out");
        let outcome = |&at: &usize| Outcome {
            attr: self.stage.inodes[at].attr,
            tail: self.layouts[at].tail,
        };
        debug_assert!(self.stage.about.iter().all(|at| *at < self.stage.inodes.len()));
        self.stage.about.iter().map(outcome).collect()
    }

    /// A change of one inode needs no redo record. True when this was one and is done.
    pub fn commit_single(&mut self) -> bool {
        let ([staged], [layout, ..]) = (&self.stage.inodes[..], &self.layouts[..]) else {
            self.happened = self.stage.inodes.iter().all(|s| s.entries.is_empty());
            return self.happened;
        };
        if staged.entries.is_empty() {
            self.happened = true;
            return true;
        }
        if staged.fresh || staged.moved || staged.dies {
            return false;
        }
        let Region { store, cache, dead, .. } = &mut *self.region;
        let Some(inode) = cache.known(staged.slot()) else {
            return false;
        };
        assert_eq!(inode.tail, staged.tail, "nobody has changed what was staged");
        let records = read_back(inode.tail.units(), &layout.bytes);
        store.commit(inode, layout, records);
        self.happened = true;
        assert_eq!(inode.tail, layout.tail, "the log ends where it was laid out to");
        debug_assert_eq!(inode.attr, staged.attr, "it is as it was staged");
        if staged.attr.nlink != 0 {
            dead.remove(&staged.slot());
        }
        true
    }

    /// Logs a redo record with this and the remote parts, and puts this in place, on the media and in DRAM. Gives the
    /// record when a remote part remains.
    pub fn commit_logged(&mut self, txn: TxnId, remote: &[RemotePart]) -> Result<Option<RedoId>, RegionError> {
        assert!(!self.happened, "a change happens once");
        let mut writes = std::mem::take(&mut self.region.store.writes);
        let mut heads = std::mem::take(&mut self.region.store.heads);
        writes.clear();
        heads.clear();
        let gathered = self.gather(&mut writes, &mut heads);
        debug_assert!(
            heads.len() <= self.stage.inodes.len(),
            "a head for each inode that changes"
        );
        for (offset, head) in &heads {
            writes.push(*offset, head);
        }
        self.region.store.heads = heads;
        let logged = gathered.and_then(|()| self.region.redo(txn, &writes, remote));
        self.region.store.writes = writes;
        let record = logged?;
        self.happened = true;
        for (staged, layout) in self.stage.inodes.iter().zip(&self.layouts) {
            match self.region.goes_at_once(staged) {
                true => self.region.forget(staged.slot()),
                false => self.region.take_over(staged, layout),
            }
            debug_assert!(
                staged.entries.is_empty() || self.region.tail_on_media(staged.slot()) == layout.tail,
                "the tail is as it was laid out"
            );
        }
        Ok(record)
    }

    /// What the redo record writes here.
    fn gather(&mut self, writes: &mut Writes, heads: &mut Heads) -> Result<(), RegionError> {
        for (staged, layout) in self.stage.inodes.iter().zip(&mut self.layouts) {
            let slot = staged.slot();
            if staged.entries.is_empty() {
                continue;
            }
            if self.region.goes_at_once(staged) {
                self.region.store.give_pages(&layout.new_pages);
                layout.new_pages.clear();
                layout.tail = raised(staged.tail);
                let Region {
                    store, cache, locked, ..
                } = &mut *self.region;
                // from here on it is among the last that were used, and so at hand when it has happened
                let inode = cache.get(store, slot)?;
                assert_eq!(inode.inode_ref(), staged.inode, "what is freed is what was staged");
                assert_eq!(inode.tail, staged.tail, "nobody has changed what was staged");
                assert!(!locked.contains(slot), "no transaction has what is freed");
                heads.push((slot * INODE_SIZE as u64, freed_head(inode)));
                continue;
            }
            let pages = self.region.cache.known(slot).map_or(&[][..], |inode| &inode.pages);
            heads.push(gather_inode(staged, layout, pages, writes));
        }
        Ok(())
    }
}

impl Region {
    /// What the tail word of a slot says.
    fn tail_on_media(&self, slot: u64) -> Tail {
        Tail(self.store.read_word(slot * INODE_SIZE as u64 + INODE_TAIL))
    }

    /// A staged inode that loses its last name, and that nobody holds, is freed by the same record.
    fn goes_at_once(&self, staged: &Staged) -> bool {
        staged.dies && !staged.fresh && !self.sessions.is_held(staged.slot())
    }
}

/// What a redo record writes of an inode that stays: entries, log pages, attributes. Gives its head, which comes last.
fn gather_inode(staged: &Staged, layout: &Layout, pages: &[u64], writes: &mut Writes) -> (u64, [u8; INODE_HEAD_SIZE]) {
    let end: LogEnd = staged.log_end(pages);
    assert!(
        layout.tail > staged.tail && !layout.pieces.is_empty(),
        "entries make a log longer"
    );
    debug_assert_eq!(
        layout.pieces.iter().map(|(_, range)| range.len()).sum::<usize>(),
        layout.bytes.len()
    );
    for (at, range) in &layout.pieces {
        writes.push(*at, &layout.bytes[range.clone()]);
    }
    for (at, header) in layout.headers(end) {
        writes.push(at, &header);
    }
    if let Some((at, next)) = layout.link(end).filter(|_| !pages.is_empty()) {
        writes.push(at, &next.to_le_bytes());
    }
    let first_page = pages.first().or(layout.new_pages.first()).copied().unwrap_or(0);
    debug_assert!(first_page.is_multiple_of(PAGE as u64), "log page at {first_page:#x}");
    let attributes = encode_attributes(&staged.attr);
    let offset = staged.slot() * INODE_SIZE as u64;
    writes.push(offset + INODE_ATTRIBUTES, &attributes);
    let head = staged.head(first_page, layout.tail);
    (offset, head.encode(staged.inode.ino, &attributes))
}
