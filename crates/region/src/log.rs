//! Appending to an inode's log: laying entries out behind the tail, writing them, and moving the tail.
//!
//! The commit of one inode takes two fences. Entries (and headers and links of new log pages, and whatever data the
//! entries speak of) go out with the first; nobody can see them. Then attributes, checksums and the tail are stored and
//! the tail's line goes out with the second. A link to a page whose header did not make it is recognised as none. What
//! is to be done in DRAM is done while stores are on their way, that is, before the fence that waits for them.

use crate::RegionError;
use crate::dram_inode::{Inode, unit_offset};
use crate::extents::Mapped;
use crate::layout::{Layout, LogEnd, UNIT};
use crate::planted::{Planted, planted};
use crate::store::{Store, Urgency};
use polvo_format::{
    Change, Entry, INLINE_UNITS, INODE_ATTRIBUTES, INODE_CHECKSUMS, INODE_LOCK, INODE_LOG_PAGE, INODE_SIZE, Ino,
    InodeHead, LINE, Record, RegionOffset, Tail, UnitPlace, encode_attributes, entry_units, seal,
};

impl Store {
    /// Lays whole unsealed entries out behind a log's end, into `layout`. Takes log pages as needed: they are in the
    /// layout, after an error too, and come back with the guard that has it.
    pub fn lay_out(
        &mut self,
        end: LogEnd,
        entries: &[u8],
        urgency: Urgency,
        layout: &mut Layout,
    ) -> Result<(), RegionError> {
        debug_assert!(entries.len().is_multiple_of(UNIT), "entries are whole");
        debug_assert!(
            end.pages.len() as u64 >= UnitPlace::pages(end.tail.units()),
            "the log has the pages up to its tail"
        );
        debug_assert!(end.ino.region() == self.region && end.tail.is_sound());
        layout.clear();
        layout.bytes.reserve(entries.len());
        let (slot, version) = (end.ino.slot(), end.tail.version());
        let mut position = end.tail.units();
        let mut rest = entries;
        while !rest.is_empty() {
            let units = entry_units(rest).expect("entries were encoded by this crate");
            let (entry, others) = rest.split_at(units as usize * UNIT);
            let room = UnitPlace::room(position);
            let padding = if units > room { room } else { 0 };
            for pad in [true, false] {
                let units = if pad { padding } else { units };
                if units == 0 {
                    continue;
                }
                let start = layout.bytes.len();
                if pad {
                    Entry::encode_pad(units, &mut layout.bytes);
                } else {
                    layout.bytes.extend_from_slice(entry);
                }
                if let UnitPlace::Page { page, .. } = UnitPlace::of(position) {
                    let have = end.pages.len() + layout.new_pages.len();
                    if page as usize >= have {
                        let page = self.take_log_page(urgency)?;
                        layout.new_pages.push(page);
                    }
                }
                let offset = match UnitPlace::of(position) {
                    UnitPlace::Page { page, at } if page as usize >= end.pages.len() => {
                        layout.new_pages[page as usize - end.pages.len()] + at
                    }
                    _ => unit_offset(slot, end.pages, position),
                };
                debug_assert!(units <= UnitPlace::room(position), "an entry lies in one page");
                debug_assert!(offset.is_multiple_of(UNIT as u64), "entry at {offset:#x}");
                seal(&mut layout.bytes[start..], end.ino, version, position);
                let bytes = start..layout.bytes.len();
                match layout.pieces.last_mut() {
                    Some((at, range)) if *at + range.len() as u64 == offset && UnitPlace::room(position) > 0 => {
                        range.end = bytes.end;
                    }
                    _ => layout.pieces.push((offset, bytes)),
                }
                position += units;
            }
            rest = others;
        }
        layout.tail = Tail::new(version, position);
        debug_assert!(layout.tail >= end.tail, "a log does not get shorter");
        layout.check(end);
        Ok(())
    }

    /// To be called some time before an inode's log is appended to.
    pub fn fetch_log_end(&self, inode: &Inode) {
        if let UnitPlace::Page { page, at } = UnitPlace::of(inode.tail.units())
            && let Some(offset) = inode.pages.get(page as usize)
        {
            self.fetch_to_write(offset + at);
        }
    }

    /// Writes what [`Self::lay_out`] has laid out behind this inode's tail, and moves the tail. `records`: the same
    /// entries.
    pub fn commit<'a>(&mut self, inode: &mut Inode, layout: &Layout, records: impl Iterator<Item = Record<'a>>) {
        let end = LogEnd {
            ino: inode.attr.ino,
            tail: inode.tail,
            pages: &inode.pages,
        };
        layout.check(end);
        debug_assert!(layout.tail > inode.tail, "a commit makes the log longer");
        for (offset, range) in &layout.pieces {
            if planted(Planted::EntriesNotFlushed) {
                self.write_unflushed(*offset, &layout.bytes[range.clone()]);
                continue;
            }
            self.write(*offset, &layout.bytes[range.clone()]);
        }
        if !layout.new_pages.is_empty() {
            for (offset, header) in layout.headers(end) {
                self.write(offset, &header);
            }
            if let Some((offset, next)) = layout.link(end) {
                self.write_word(offset, next);
            }
        }
        // what is on its way is waited for no sooner than it has to be there: when others may see the mapping
        let mut hidden = std::mem::take(&mut self.hidden);
        self.take_over(inode, layout, records, &mut hidden, |store| {
            if !planted(Planted::NoFenceBeforeTail) {
                store.fence();
            }
        });
        debug_assert_eq!(inode.tail, layout.tail, "DRAM has what the media are about to say");
        let attributes = encode_attributes(&inode.attr);
        let head = inode.head();
        debug_assert!(
            head.log_page.0 != 0 || inode.tail.units() <= INLINE_UNITS,
            "a long log has a page"
        );
        let checksums = head.checksums(inode.attr.ino, &attributes);
        self.write_head(inode.slot, &attributes, checksums, head.tail);
        // while the line is on its way: the region is entered, so nobody takes what this frees before
        self.unmap(&hidden);
        hidden.clear();
        self.hidden = hidden;
        if !planted(Planted::TailNotFenced) {
            self.fence();
        }
        self.end_record();
    }

    /// The DRAM side of a commit; `before_seen` as in [`Inode::apply_all`].
    pub fn take_over<'a>(
        &mut self,
        inode: &mut Inode,
        layout: &Layout,
        records: impl Iterator<Item = Record<'a>>,
        hidden: &mut Vec<Mapped>,
        before_seen: impl FnOnce(&Store),
    ) {
        debug_assert!(
            layout.new_pages.iter().all(|page| self.log_page_from_media(*page)),
            "log pages are our own"
        );
        debug_assert!(
            layout.new_pages.iter().all(|page| !inode.pages.contains(page)),
            "new pages are new"
        );
        self.log_resized(inode.pages.len(), inode.pages.len() + layout.new_pages.len());
        inode.pages.extend_from_slice(&layout.new_pages);
        self.apply(inode, records, layout.tail, hidden, before_seen);
    }

    /// Applies entries behind the tail to the inode in DRAM; `before_seen` as in [`Inode::apply_all`].
    pub fn apply<'a>(
        &mut self,
        inode: &mut Inode,
        records: impl Iterator<Item = Record<'a>>,
        tail: Tail,
        hidden: &mut Vec<Mapped>,
        before_seen: impl FnOnce(&Store),
    ) {
        debug_assert!(
            inode.pages.len() as u64 >= UnitPlace::pages(tail.units()) || planted(Planted::HeldLogCompacted),
            "the log has its pages"
        );
        let store = &*self;
        inode
            .apply_all(self.region, self.segment_shift(), tail, records, hidden, || {
                before_seen(store)
            })
            .expect("entries were checked before they were made");
        debug_assert_eq!(inode.tail, tail, "the inode is as of the tail");
        if inode.is_garbage() {
            self.garbage.insert(inode.slot);
        }
    }

    /// Bytes that a file no longer maps: their pages are freed with the last live byte.
    pub fn unmap(&mut self, hidden: &[Mapped]) {
        for extent in hidden.iter().filter(|e| !e.inline) {
            self.space.unmap(extent.gpa.offset().0, extent.len);
        }
    }

    /// Writes attributes (a cache of what the log says) and their checksum anew, after a power cut or damage. Durable
    /// after the next fence.
    pub fn refresh(&self, ino: Ino, head: &InodeHead, attributes: &[u8; LINE]) {
        assert!(
            self.slot_of(ino).is_some() && head.kind.is_some(),
            "{ino:?} is in use here"
        );
        let offset = ino.slot() * INODE_SIZE as u64;
        self.write(offset + INODE_ATTRIBUTES, attributes);
        // a link to a page that never became one goes
        self.write_word(offset + INODE_LOG_PAGE, head.log_page.0);
        self.write_word(offset + INODE_CHECKSUMS, head.checksums(ino, attributes));
    }

    /// Copies the log units from position `from` to the tail, page headers left out.
    pub fn read_units(&self, inode: &Inode, from: u64) -> Vec<u8> {
        let to = inode.tail.units();
        assert!(from <= to, "from {from} on of a log of {to} units");
        let mut units = vec![0; (to - from) as usize * UNIT];
        let mut position = from;
        let mut rest = &mut units[..];
        while position < to {
            let n = UnitPlace::room(position).min(to - position);
            let (part, others) = rest.split_at_mut(n as usize * UNIT);
            self.read(inode.unit_offset(position), part);
            position += n;
            rest = others;
        }
        debug_assert!(rest.is_empty() && position == to);
        units
    }

    /// Others have written to a slot: replicas get it as it is.
    #[cold]
    pub fn note_slot(&self, slot: u64) {
        let bytes = self.read_slot(slot);
        let at = RegionOffset(slot * INODE_SIZE as u64);
        self.note(Change::Bytes { at, bytes: &bytes });
    }

    /// Others have written to an inode's log: replicas get its units from position `begin` to the tail. (Those that lie in the
    /// inode come with its slot, and headers and links of pages are noted when the region stores them.)
    #[cold]
    pub fn note_units(&self, inode: &Inode, begin: u64) {
        let mut position = begin.max(INLINE_UNITS);
        while position < inode.tail.units() {
            let n = UnitPlace::room(position).min(inode.tail.units() - position);
            let mut units = vec![0; n as usize * UNIT];
            let offset = inode.unit_offset(position);
            self.read(offset, &mut units);
            let at = RegionOffset(offset);
            self.note(Change::Bytes { at, bytes: &units });
            position += n;
        }
    }

    /// The lock word of a slot.
    pub fn lock_word(&self, slot: u64) -> u64 {
        self.read_word(Store::lock_offset(slot))
    }

    /// Region offset of a slot's lock word.
    pub fn lock_offset(slot: u64) -> u64 {
        slot * INODE_SIZE as u64 + INODE_LOCK
    }
}
