//! Reading a damaged log as far as it can be read.
//!
//! Every log page says whose it is and which, and the checksum of every entry covers inode, log version and position. So
//! what is found at some place is known to belong there, or not to: pages are found again without their links, entries
//! without those before them.

use crate::directory::Dentry;
use crate::dram_inode::{Body, Inode};
use crate::extents::Mapped;
use crate::flipped_bit::flipped_bit;
use crate::layout::UNIT;
use crate::store::Store;
use polvo_format::{
    Entry, INLINE_UNITS, INODE_LOG_PAGE, INODE_SIZE, INODE_UNITS, Ino, InodeHead, InodeView, LINE, LOG_PAGE_NEXT,
    LogEntries, LogPage, PAGE, PAGE_UNITS, Record, UnitPlace, entry_units,
};
use polvo_proto::{InodeRef, SegmentClass};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a log page's header that its checksum covers, with the checksum.
const HEADER_CHECKED: usize = 32;

/// Bytes of a log entry before its checksum: type, length, flags.
const ENTRY_BEGIN: usize = 4;

/// Where log pages lie that say whose they are.
pub(super) struct LogPages {
    /// by inode, version, number in the log
    at: BTreeMap<(Ino, u32, u64), Vec<u64>>,
    /// log pages that the region has, used or not
    count: u64,
}

impl LogPages {
    /// Reads the headers of all log pages of a region.
    pub fn of(store: &Store) -> LogPages {
        let mut at: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        let mut count = 0;
        let size = 1u64 << store.segment_shift();
        let mut header = [0; LINE];
        for (index, _, _) in store.segments().filter(|s| s.2 == SegmentClass::Logs) {
            let first = u64::from(index) * size;
            for offset in (first..first + size).step_by(PAGE) {
                store.read(offset, &mut header);
                count += 1;
                if let Ok(page) = LogPage::decode(&header) {
                    at.entry((page.ino, page.version, page.page)).or_default().push(offset);
                }
            }
        }
        LogPages { at, count }
    }

    /// The one page that says to be this one.
    fn only(&self, ino: Ino, version: u32, number: u64) -> Option<u64> {
        match self.at.get(&(ino, version, number)).map(Vec::as_slice) {
            Some([offset]) => Some(*offset),
            _ => None,
        }
    }

    /// Versions of an inode's log of which there are pages, the newest first.
    pub fn versions(&self, ino: Ino) -> BTreeSet<u32> {
        let of_inode = self.at.range((ino, 0, 0)..=(ino, u32::MAX, u64::MAX));
        of_inode.map(|((_, version, _), _)| *version).collect()
    }
}

/// A bit on the media that is to be flipped back: region offset of a word, bit from there on.
#[derive(Clone, Copy)]
pub(super) struct Flip {
    pub at: u64,
    pub bit: usize,
}

/// What a log says as far as it can be read.
pub(super) struct Reading {
    /// with what was read applied; its pages are those that were found (0: lost)
    pub inode: Inode,
    /// what it takes to have the log whole again, when nothing is `lost`
    pub flips: Vec<Flip>,
    /// units that could not be read, entries that contradict others, links that lead nowhere
    pub lost: u64,
    /// entries that could be read
    pub read: u64,
    /// segments (index, class) that it leads to and the region does not have
    pub stray: BTreeSet<(u32, SegmentClass)>,
}

/// How far a log goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// as the tail says
    Known,
    /// the tail is lost: as far as there are entries
    Unknown,
}

/// Reads the log of an inode whose identity is known (`head` has a kind); `bytes` are those of its slot.
pub(super) fn read_log(
    store: &Store,
    pages: &LogPages,
    ino: Ino,
    head: &InodeHead,
    bytes: &[u8; INODE_SIZE],
    length: Length,
) -> Reading {
    let kind = head.kind.expect("the inode is in use");
    let mut reading = Reading {
        inode: Inode::new(ino, kind, head),
        flips: Vec::new(),
        lost: 0,
        read: 0,
        stray: BTreeSet::new(),
    };
    let units = match length {
        Length::Known => head.tail.units(),
        Length::Unknown => u64::MAX,
    };
    let slot_offset = ino.slot() * INODE_SIZE as u64;
    let here = INODE_UNITS as usize..INODE_UNITS as usize + units.min(INLINE_UNITS) as usize * UNIT;
    reading.area(store, head, 0, &bytes[here], slot_offset + INODE_UNITS, length);

    let needed = match length {
        Length::Known => UnitPlace::pages(units),
        Length::Unknown => u64::MAX,
    };
    let mut link_at = Some(slot_offset + INODE_LOG_PAGE);
    let mut number = 0;
    // what a tail claims is believed as far as there are pages
    let last_known = pages
        .at
        .range((ino, head.tail.version(), 0)..=(ino, head.tail.version(), u64::MAX))
        .next_back()
        .map(|((_, _, number), _)| *number);
    // no log has more pages than there are; one more, to see where a link leads that is in a segment nobody knows
    while number < needed.min(pages.count + 1) {
        let found = reading.find_page(store, pages, head, number, link_at);
        let start = INLINE_UNITS + number * PAGE_UNITS;
        match found {
            Some(offset) => {
                reading.inode.pages.push(offset);
                let mut page = [0; PAGE];
                store.read(offset, &mut page);
                let end = LINE + units.saturating_sub(start).min(PAGE_UNITS) as usize * UNIT;
                reading.area(store, head, start, &page[LINE..end], offset + LINE as u64, length);
                link_at = Some(offset + LOG_PAGE_NEXT);
            }
            None if last_known.is_none_or(|last| number > last) => {
                // nothing follows, as far as anybody knows
                if length == Length::Known {
                    reading.lost += units - start;
                }
                break;
            }
            None => {
                reading.inode.pages.push(0);
                reading.lost += PAGE_UNITS;
                link_at = None;
            }
        }
        number += 1;
    }
    if length == Length::Known && needed > pages.count {
        reading.lost += 1;
    }
    // behind a tail that is lost there may be the beginning of a change that was never committed
    if reading.inode.drop_partial_xattr() && length == Length::Known {
        reading.lost += 1;
    }
    reading.inode.tail = head.tail;
    if let Ok(view) = InodeView::decode(bytes, ino) {
        // as of the tail, whatever became of the log
        reading.inode.attr = view.attr;
    }
    reading.drop_strays(store);
    reading.inode.derive();
    reading
}

impl Reading {
    /// The log page of this number: where the link leads, perhaps with one bit flipped back, or where there is the only
    /// page that says to be it.
    fn find_page(
        &mut self,
        store: &Store,
        pages: &LogPages,
        head: &InodeHead,
        number: u64,
        link_at: Option<u64>,
    ) -> Option<u64> {
        let (ino, version) = (self.inode.attr.ino, head.tail.version());
        let belongs = |header: &[u8]| LogPage::decode(header).is_ok_and(|page| page.belongs(ino, version, number));
        let header_at = |offset: u64| {
            let mut header = [0; LINE];
            store.log_page_from_media(offset).then(|| {
                store.read(offset, &mut header);
                header
            })
        };
        if let Some(link_at) = link_at {
            let mut link = [0; 8];
            store.read(link_at, &mut link);
            let next = u64::from_le_bytes(link);
            if let Some(mut header) = header_at(next) {
                if belongs(&header) {
                    return Some(next);
                }
                // `next`, which follows in the header, is covered by no checksum
                if let Some(bit) = flipped_bit(&mut header, 0..HEADER_CHECKED * 8, belongs) {
                    self.flips.push(Flip { at: next, bit });
                    return Some(next);
                }
            }
            let leads = |link: &[u8]| {
                let next = u64::from_le_bytes(link.try_into().expect("a word is 8 bytes"));
                header_at(next).is_some_and(|header| belongs(&header))
            };
            if let Some(bit) = flipped_bit(&mut link, 0..64, leads) {
                self.flips.push(Flip { at: link_at, bit });
                return Some(next ^ 1 << bit);
            }
            if next != 0 && !store.has_segment(next) {
                self.stray
                    .insert(((next >> store.segment_shift()) as u32, SegmentClass::Logs));
            }
        }
        let only = pages.only(ino, version, number)?;
        self.lost += 1; // the link
        Some(only)
    }

    /// Applies the entries of one page (or of the inode), which begin at position `start` and lie at region offset
    /// `offset`.
    fn area(&mut self, store: &Store, head: &InodeHead, start: u64, units: &[u8], offset: u64, length: Length) {
        let (ino, version) = (self.inode.attr.ino, head.tail.version());
        let mut units = units.to_vec();
        let all = (units.len() / UNIT) as u64;
        let mut at = 0;
        while at < all {
            let position = start + at;
            let rest = &mut units[at as usize * UNIT..];
            let read = |bytes: &[u8]| {
                LogEntries::new(ino, version, position, bytes)
                    .next()
                    .is_some_and(|r| r.is_ok())
            };
            if !read(rest) {
                let flipped = flipped_bit_of_entry(rest, read);
                match flipped {
                    Some(bit) => {
                        rest[bit / 8] ^= 1 << (bit % 8);
                        let at = offset + at * UNIT as u64;
                        self.flips.push(Flip { at, bit });
                    }
                    None => {
                        self.lost += u64::from(length == Length::Known);
                        at += 1;
                        continue;
                    }
                }
            }
            let record = LogEntries::new(ino, version, position, rest).next();
            let record = record.expect("there are units").expect("it was just read");
            at += record.units;
            self.read += 1;
            self.apply(store, &record);
        }
    }

    fn apply(&mut self, store: &Store, record: &Record) {
        if (record.position == 0) != matches!(record.entry, Entry::Init(_)) {
            self.lost += 1;
            return;
        }
        let mut hidden: Vec<Mapped> = Vec::new();
        let shift = store.segment_shift();
        let mut apply = |inode: &mut Inode| {
            inode.change(inode.tail, |inode, index| {
                inode.apply(store.region, shift, record, index, &mut hidden)
            })
        };
        if apply(&mut self.inode).is_ok() {
            return;
        }
        self.lost += 1;
        // a value of which a part is lost is lost; what comes behind it counts
        if self.inode.drop_partial_xattr() && apply(&mut self.inode).is_ok() {
            return;
        }
        // a name that is there already has lost its end: the newer one counts
        if let (
            Entry::DentryAdd {
                name,
                target,
                generation,
                kind,
                cookie,
                ..
            },
            Body::Directory(directory),
        ) = (&record.entry, &mut self.inode.body)
            && let Some(old) = directory.get(name)
        {
            let target = InodeRef {
                ino: *target,
                generation: *generation,
            };
            let new = Dentry {
                cookie: *cookie,
                target,
                kind: *kind,
            };
            let _ = directory.remove(name, old.cookie);
            let _ = directory.add(name, new);
        }
    }

    /// Mappings of what is no data space of the region go.
    fn drop_strays(&mut self, store: &Store) {
        let Body::File(view) = &self.inode.body else {
            return;
        };
        let index = &mut view.write().index;
        let strays: Vec<(u64, Mapped)> = index
            .iter()
            .filter(|(_, e)| !e.inline && store.data_from_media(e.gpa, e.len).is_none())
            .collect();
        for (offset, extent) in strays {
            let at = extent.gpa.offset().0;
            if extent.gpa.region() == store.region && !store.has_segment(at) {
                self.stray
                    .insert(((at >> store.segment_shift()) as u32, SegmentClass::Data));
            }
            index.remove(offset, extent.len, &mut Vec::new());
            self.lost += 1;
        }
    }
}

/// The bit whose flip alone makes the entry at the start of `units` one that `reads`.
fn flipped_bit_of_entry(units: &mut [u8], reads: impl Fn(&[u8]) -> bool) -> Option<usize> {
    // what an entry begins with is covered by few bits: noise is told from an entry by it
    if let Some(bit) = flipped_bit(units, 0..ENTRY_BEGIN * 8, &reads) {
        return Some(bit);
    }
    let claimed = entry_units(units)? as usize * UNIT;
    Entry::could_begin(units).then(|| flipped_bit(&mut units[..claimed], ENTRY_BEGIN * 8..claimed * 8, reads))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use polvo_format::{FileKind, seal};
    use polvo_proto::XattrMode;

    /// Puts a pad in the place of a log entry.
    fn lose(store: &Store, inode: &Inode, position: u64, units: u64) {
        let mut pad = Vec::new();
        Entry::encode_pad(units, &mut pad);
        seal(&mut pad, inode.attr.ino, inode.tail.version(), position);
        store.write_unflushed(inode.unit_offset(position), &pad);
    }

    #[test]
    fn a_value_that_lacks_a_part_is_lost_and_nothing_else() {
        for lost in 0..3 {
            let mut r = region(8);
            let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
            for (name, len) in [
                (&b"user.before"[..], 10),
                (b"user.parts", 10_000),
                (b"user.after", 9_000),
            ] {
                r.set_xattr(file, name, &vec![7; len], XattrMode::Any, NOW).unwrap();
            }
            let slot = file.ino.slot();
            let inode = r.store.load(slot).unwrap();
            let units = r.store.read_units(&inode, 0);
            let parts: Vec<(u64, u64)> = LogEntries::new(file.ino, inode.tail.version(), 0, &units)
                .map(|record| record.unwrap())
                .filter(|record| {
                    matches!(
                        record.entry,
                        Entry::SetXattr {
                            name: b"user.parts",
                            ..
                        }
                    )
                })
                .map(|record| (record.position, record.units))
                .collect();
            assert_eq!(parts.len(), 3);
            lose(&r.store, &inode, parts[lost].0, parts[lost].1);

            let damage = r.store.load(slot).err().expect("damage").to_string();
            assert!(damage.contains("part of an extended attribute is missing"), "{damage}");
            let bytes = r.store.read_slot(slot);
            let head = InodeHead::decode(&bytes, file.ino).unwrap();
            let pages = LogPages::of(&r.store);
            let reading = read_log(&r.store, &pages, file.ino, &head, &bytes, Length::Known);
            assert!(reading.lost > 0);
            let names: Vec<&[u8]> = reading.inode.xattrs.keys().map(|name| &**name).collect();
            assert_eq!(names, [&b"user.after"[..], b"user.before"], "without part {lost}");
        }
    }
}
