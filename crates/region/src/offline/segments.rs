//! Damaged entries of the segment table: what the segments themselves say.
//!
//! A flipped bit is put right by the entry's checksum. Else inodes and log pages know whose they are: the identity of an
//! inode covers its number, which says where its segment lies, and log pages are found where links lead. File data says
//! nothing; but a segment that logs lead to and that no entry has is known to be among the damaged ones.

use super::salvage::{Length, LogPages, read_log};
use crate::PoolSpace;
use crate::store::Store;
use polvo_format::{
    INODE_SIZE, Ino, InodeHead, LINE, LogPage, PAGE, REGISTER_OWNER, RegionHeader, RegionId, SegmentEntry,
    SegmentIndex, SegmentOwner,
};
use polvo_proto::SegmentClass;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Indexes behind a region's last segment that a lost one may have had.
const BEHIND_MAX: u32 = 64;
/// Inodes of a segment that are looked at.
const INODES_LOOKED_AT: usize = 16;

/// Stores the entries that are known again; says which. Open the pool anew then.
pub(super) fn mend(space: &Arc<PoolSpace>) -> Vec<String> {
    let mut done = Vec::new();
    let mut unknown = Vec::new();
    for at in space.damaged_segments() {
        let flipped = space
            .segment_entry_before_flip(at)
            .filter(|entry| fits(space, at, *entry));
        match flipped
            .or_else(|| register_says(space, at))
            .or_else(|| inodes_say(space, at))
        {
            Some(entry) => done.push(store(space, at, entry)),
            None => unknown.push(at),
        }
    }
    if unknown.is_empty() {
        return done;
    }
    if !done.is_empty() {
        // what follows goes by the segments that are known
        return match PoolSpace::open_for_check(space.pmem().clone()) {
            Ok((space, _)) => done.into_iter().chain(mend(&space)).collect(),
            Err(_) => done,
        };
    }
    let known = Known::of(space);
    let mut left = Vec::new();
    for at in unknown {
        match known.links_say(space, at) {
            Some(entry) => done.push(store(space, at, entry)),
            None => left.push(at),
        }
    }
    if !done.is_empty() {
        return match PoolSpace::open_for_check(space.pmem().clone()) {
            Ok((space, _)) => done.into_iter().chain(mend(&space)).collect(),
            Err(_) => done,
        };
    }
    // what remains holds data, or nothing; or it is a copy's, of which nothing here tells
    let missing: Vec<_> = known.missing.iter().copied().collect();
    match (left.as_slice(), missing.as_slice()) {
        (left, []) if known.complete && space.lanes().is_empty() => {
            done.extend(left.iter().map(|at| store(space, *at, SegmentEntry::Free)));
        }
        ([at], [(region, index, class)]) if known.complete => {
            let owner = SegmentOwner {
                region: *region,
                index: *index,
                class: *class as u8,
            };
            done.push(store(space, *at, SegmentEntry::Owned(owner)));
        }
        _ => {} // nobody can tell; the check goes on naming them
    }
    done
}

fn store(space: &PoolSpace, at: SegmentIndex, entry: SegmentEntry) -> String {
    space.store_segment_entry(at, entry);
    match entry {
        SegmentEntry::Free => format!("segment table: {at}: free"),
        SegmentEntry::Owned(owner) if owner.region == REGISTER_OWNER => {
            format!("segment table: {at}: the register of the cluster map")
        }
        SegmentEntry::Owned(owner) => {
            format!(
                "segment table: {at}: segment {} of region {}",
                owner.index, owner.region.0
            )
        }
    }
}

/// Does an entry contradict what its segment holds?
fn fits(space: &PoolSpace, at: SegmentIndex, entry: SegmentEntry) -> bool {
    match entry {
        SegmentEntry::Owned(owner) if owner.class == SegmentClass::Inodes as u8 => {
            let used = used_slots(space, at);
            used.is_empty() || used.iter().any(|slot| slot.is_of(space, owner.region, owner.index))
        }
        _ => true,
    }
}

/// The entry of the segment that holds what the node has to remember of the cluster map.
fn register_says(space: &PoolSpace, at: SegmentIndex) -> Option<SegmentEntry> {
    let holds_it = !space.has_register() && space.holds_register(space.layout().segment_offset(at));
    holds_it.then_some(SegmentEntry::Owned(SegmentOwner {
        region: REGISTER_OWNER,
        index: 0,
        class: SegmentClass::Register as u8,
    }))
}

/// A slot of a segment that is not all zeros.
struct Used {
    number: u64,
    bytes: [u8; INODE_SIZE],
}

impl Used {
    /// Is it the slot of this number in this segment of a region?
    fn is_of(&self, space: &PoolSpace, region: RegionId, index: u32) -> bool {
        let slots = space.usage().segment_size / INODE_SIZE as u64;
        let slot = u64::from(index) * slots + self.number;
        if slot == 0 {
            let line = self.bytes[..LINE].try_into().expect("a line is 64 bytes");
            return matches!(RegionHeader::decode(line), Ok(Some(header)) if header.region == region);
        }
        // the mark first: a slot that reads as never used says nothing
        slot >> 40 == 0 && self.bytes[0] != 0 && InodeHead::decode(&self.bytes, Ino::new(region, slot)).is_ok()
    }
}

fn used_slots(space: &PoolSpace, at: SegmentIndex) -> Vec<Used> {
    let layout = space.layout();
    let first = layout.segment_offset(at);
    let mut used = Vec::new();
    for number in 0..layout.segment_size() / INODE_SIZE as u64 {
        let mut bytes = [0; INODE_SIZE];
        space.pmem().read(first + number * INODE_SIZE as u64, &mut bytes);
        if bytes != [0; INODE_SIZE] {
            used.push(Used { number, bytes });
            if used.len() == INODES_LOOKED_AT {
                break;
            }
        }
    }
    used
}

/// Segments that a region might have lost: the gaps between those it has, and some behind.
fn gaps(space: &PoolSpace, region: RegionId) -> Vec<u32> {
    let has: BTreeSet<u32> = space.segments_of(region).iter().map(|s| s.0).collect();
    let last = has.last().copied().unwrap_or(0);
    (0..=last.saturating_add(BEHIND_MAX))
        .filter(|index| !has.contains(index))
        .collect()
}

/// The entry of a segment that holds inodes, from their identities.
fn inodes_say(space: &PoolSpace, at: SegmentIndex) -> Option<SegmentEntry> {
    let used = used_slots(space, at);
    let owned = |region, index| {
        SegmentEntry::Owned(SegmentOwner {
            region,
            index,
            class: SegmentClass::Inodes as u8,
        })
    };
    if let Some(first) = used.first().filter(|slot| slot.number == 0) {
        let line = first.bytes[..LINE].try_into().expect("a line is 64 bytes");
        if let Ok(Some(header)) = RegionHeader::decode(line) {
            let has_first = space.segments_of(header.region).first().is_some_and(|s| s.0 == 0);
            return (!has_first).then(|| owned(header.region, 0));
        }
    }
    let mut found = BTreeSet::new();
    for region in space.regions() {
        let of_region = gaps(space, region).into_iter();
        found.extend(
            of_region
                .filter(|index| used.iter().any(|slot| slot.is_of(space, region, *index)))
                .map(|index| (region, index)),
        );
    }
    match found.into_iter().collect::<Vec<_>>()[..] {
        [(region, index)] => Some(owned(region, index)),
        _ => None,
    }
}

/// What the known segments of a pool lead to.
struct Known {
    /// where pages of logs are said to lie: inode, version, number of the page
    links: BTreeMap<(Ino, u32, u64), u64>,
    /// segments that logs lead to and no entry has
    missing: BTreeSet<(RegionId, u32, SegmentClass)>,
    /// every log could be read, but for what leads to missing segments
    complete: bool,
}

impl Known {
    fn of(space: &Arc<PoolSpace>) -> Known {
        let mut known = Known {
            links: BTreeMap::new(),
            missing: BTreeSet::new(),
            complete: true,
        };
        for region in space.regions() {
            let Ok(store) = Store::new(space, region) else {
                known.complete = false;
                continue;
            };
            known.complete &= store.segments().next().is_some_and(|s| s.0 == 0);
            known.links_of_pages(&store);
            let pages = LogPages::of(&store);
            store.each_slot(&mut |slot, bytes| {
                let ino = store.ino(slot);
                let Ok(head) = InodeHead::decode(bytes, ino) else {
                    known.complete = false;
                    return;
                };
                if head.kind.is_none() {
                    return;
                }
                known.links.insert((ino, head.tail.version(), 0), head.log_page.0);
                let reading = read_log(&store, &pages, ino, &head, bytes, Length::Known);
                let strays = reading.stray.iter().map(|(index, class)| (region, *index, *class));
                known.missing.extend(strays);
                known.complete &= reading.lost == 0 || !reading.stray.is_empty();
            });
        }
        known
    }

    fn links_of_pages(&mut self, store: &Store) {
        let size = 1u64 << store.segment_shift();
        let mut header = [0; LINE];
        for (index, _, _) in store.segments().filter(|s| s.2 == SegmentClass::Logs) {
            let first = u64::from(index) * size;
            for offset in (first..first + size).step_by(PAGE) {
                store.read(offset, &mut header);
                if let Ok(page) = LogPage::decode(&header) {
                    self.links
                        .insert((page.ino, page.version, page.page.wrapping_add(1)), page.next.0);
                }
            }
        }
    }

    /// The entry of a segment that holds log pages, from where links to them lead.
    fn links_say(&self, space: &PoolSpace, at: SegmentIndex) -> Option<SegmentEntry> {
        let layout = space.layout();
        let first = layout.segment_offset(at);
        let mut header = [0; LINE];
        let mut said = BTreeSet::new();
        for within in (0..layout.segment_size()).step_by(PAGE) {
            space.pmem().read(first + within, &mut header);
            let Ok(page) = LogPage::decode(&header) else { continue };
            let Some(link) = self.links.get(&(page.ino, page.version, page.page)) else {
                continue;
            };
            let index = link >> layout.segment_shift;
            if link & (layout.segment_size() - 1) == within && index <= u64::from(u32::MAX) {
                said.insert((page.ino.region(), index as u32));
            }
        }
        let class = SegmentClass::Logs;
        match said.into_iter().collect::<Vec<_>>()[..] {
            [(region, index)] if self.missing.contains(&(region, index, class)) => {
                let class = class as u8;
                Some(SegmentEntry::Owned(SegmentOwner { region, index, class }))
            }
            _ => None,
        }
    }
}
