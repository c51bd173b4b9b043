//! An append to one inode's log that is staged, and what was taken for it: log pages, a data page.
//!
//! As with [`crate::staged_change`], either it happens, and then all of that is in use; or the guard gives it back when
//! it ends, on whichever path that is.

use crate::RegionError;
use crate::dram_inode::Inode;
use crate::layout::{AppendMemory, LogEnd};
use crate::origins::Done;
use crate::space::Run;
use crate::store::{Store, Urgency};
use polvo_format::{Entry, Record, UnitPlace};

const HAS_MEMORY: &str = "an append has memory until it ends";

/// An append before it has happened: [`StagedAppend::take_page`] if its bytes need a page, then
/// [`StagedAppend::commit`].
pub(crate) struct StagedAppend<'a> {
    pub store: &'a mut Store,
    /// there until the end
    memory: Option<Box<AppendMemory>>,
    page: Option<Run>,
    happened: bool,
}

impl Drop for StagedAppend<'_> {
    fn drop(&mut self) {
        // after a panic nobody knows whether it has happened
        if !self.happened && !std::thread::panicking() {
            if let Some(memory) = &self.memory {
                self.store.give_pages(&memory.layout.new_pages);
            }
            if let Some(page) = self.page {
                self.store.space.give(page);
            }
        }
        self.store.append_memory = self.memory.take();
    }
}

impl<'a> StagedAppend<'a> {
    /// Nothing is taken yet.
    #[inline]
    pub fn on(store: &'a mut Store) -> StagedAppend<'a> {
        let mut memory = store.append_memory.take().unwrap_or_default();
        memory.layout.new_pages.clear();
        StagedAppend {
            memory: Some(memory),
            page: None,
            happened: false,
            store,
        }
    }

    /// Takes a data page that the entries will map, right after another one (by its number) where that is free. Gives
    /// its offset.
    pub fn take_page(&mut self, after: Option<u64>) -> Result<u64, RegionError> {
        debug_assert!(self.page.is_none(), "one page is enough for a small write");
        let run = match after.and_then(|page| self.store.space.take_after(page)) {
            Some(run) => run,
            None => self.store.take_data(1)?,
        };
        debug_assert!(run.len == 1, "{run:?} is one page");
        debug_assert!(
            self.store.space.bitmap(run.segment).is_used(run.start),
            "{run:?} is taken"
        );
        self.page = Some(run);
        Ok(self.store.space.offset(run))
    }

    /// Appends entries, at least one, to an inode's log and moves its tail: durable on return, in DRAM and on the
    /// media. The request that asks for the next commit has got this one. On error (no space for a log page) nothing
    /// changed. `data` stores what the entries map, streaming or with flushes, once nothing can fail any more.
    pub fn commit(
        mut self,
        inode: &mut Inode,
        entries: &[Entry],
        urgency: Urgency,
        data: impl FnOnce(&Store),
    ) -> Result<(), RegionError> {
        debug_assert!(!entries.is_empty(), "a commit has an entry");
        debug_assert!(inode.slot == inode.attr.ino.slot() && inode.attr.ino.region() == self.store.region);
        let AppendMemory { layout, units } = self.memory.as_deref_mut().expect(HAS_MEMORY);
        units.clear();
        entries.iter().for_each(|entry| entry.encode(false, units));
        let origin = self.store.origin;
        if let Some(origin) = origin {
            Entry::add_origin(units, 0, origin).expect("entries were made by this crate");
        }
        let end = LogEnd {
            ino: inode.attr.ino,
            tail: inode.tail,
            pages: &inode.pages,
        };
        self.store.lay_out(end, units, urgency, layout)?;
        data(self.store);
        let records = at_places(inode.tail.units(), entries, origin.is_some());
        self.store.commit(inode, layout, records);
        debug_assert_eq!(inode.tail, layout.tail, "the log ends where it was laid out to");
        debug_assert!(
            inode.pages.ends_with(&layout.new_pages),
            "the log has the pages taken for it"
        );
        self.happened = true;
        if let (Some(origin), Some(first)) = (origin, entries.first()) {
            self.store
                .carried_out(Some((origin, Done::by(inode.inode_ref(), first))));
        }
        Ok(())
    }
}

impl Store {
    /// As [`StagedAppend::commit`], of entries for which no page was taken.
    pub fn append(
        &mut self,
        inode: &mut Inode,
        entries: &[Entry],
        urgency: Urgency,
        data: impl FnOnce(&Store),
    ) -> Result<(), RegionError> {
        StagedAppend::on(self).commit(inode, entries, urgency, data)
    }
}

/// Entries, of which the first may have an origin, at the places that [`Store::lay_out`] gives them behind a position:
/// none crosses the end of a page.
fn at_places<'a>(mut position: u64, entries: &'a [Entry<'a>], mut origin: bool) -> impl Iterator<Item = Record<'a>> {
    entries.iter().map(move |entry| {
        let (units, room) = match std::mem::take(&mut origin) {
            false => (entry.units(), UnitPlace::room(position)),
            true => (entry.units_with(true), UnitPlace::room(position)),
        };
        let at = if units > room { position + room } else { position };
        debug_assert!(units > 0 && units <= UnitPlace::room(at), "an entry lies in one page");
        position = at + units;
        Record {
            position: at,
            units,
            checkpoint: false,
            origin: None, // of no use where the entries are made
            entry: *entry,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, read_back};
    use crate::testing::*;
    use polvo_format::{Ino, Origin, PAGE_UNITS, SessionId, Tail};

    #[test]
    fn entries_are_applied_at_the_places_where_they_are_laid_out() {
        let mut r = region(8);
        let bytes = [7; 1000];
        let entry = |n: usize| Entry::Inline {
            offset: n as u64 * 1000,
            bytes: &bytes[..n % 5 * 200 + 1],
            time_ns: NOW,
        };
        let entries: Vec<_> = (0..40).map(entry).collect();
        let origin = Origin {
            session: SessionId(3),
            request: 4,
        };
        let mut units = Vec::new();
        entries.iter().for_each(|entry| entry.encode(false, &mut units));
        Entry::add_origin(&mut units, 0, origin).unwrap();
        for units_before in [0, 1, 2, 3, PAGE_UNITS, PAGE_UNITS + 1] {
            let pages = vec![0; UnitPlace::pages(units_before) as usize];
            let end = LogEnd {
                ino: Ino::ROOT,
                tail: Tail::new(1, units_before),
                pages: &pages,
            };
            let mut layout = Layout::default();
            r.store.lay_out(end, &units, Urgency::Normal, &mut layout).unwrap();
            let is_pad = |record: &Record| record.entry == Entry::Pad;
            let laid_out = read_back(units_before, &layout.bytes).filter(|record| !is_pad(record));
            let laid_out = laid_out.map(|record| Record { origin: None, ..record });
            assert!(
                at_places(units_before, &entries, true).eq(laid_out),
                "behind {units_before} units"
            );
            r.store.give_pages(&layout.new_pages);
        }
    }
}
