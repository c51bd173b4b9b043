//! Copies of regions, as those see them who might take their place: what has come to their lanes is in place, nothing else is changed.
//!
//! A copy is compared with its region inode by inode. The number of the last record stands in no primary's pool, but logs tell as much:
//! *an inode with one generation, log version and tail in both has the same log, and the same bytes of the file.* One with another tail
//! has changed since the copy last heard of it, which is no damage: nothing of it was answered, or the copy has left the set.

use super::{Cluster, in_words};
use crate::dram_inode::Body;
use crate::load::{Names, Reading, Whole};
use crate::region_check::STALE;
use crate::store::Store;
use crate::{Lane, PoolSpace, Region};
use polvo_format::{
    INLINE_UNITS, INODE_LOCK, INODE_SIZE, INODE_UNITS, Ino, InodeHead, LINE, Lsn, PAGE, PAGE_UNITS, RegionId, TxnId,
    UnitPlace,
};
use polvo_proto::SegmentClass;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Places named in which one copy differs from its region.
const DIFFERENCES_MAX: usize = 20;
/// Bytes of file data compared at a time.
const COMPARED_AT_ONCE: u64 = 1 << 16;

/// A copy in one of the pools.
pub(super) struct Copy {
    /// which pool
    pub at: usize,
    pub region: RegionId,
    /// all that the region held was copied, and all that has come can be read
    pub whole: bool,
    /// a mirror in the set: it has all that was answered
    pub in_set: bool,
    /// the last record that is in place
    pub last: Lsn,
    /// records that had come and were not in place
    pub came: u64,
    /// what is wrong with it
    pub findings: Vec<String>,
}

impl Cluster {
    /// All copies, with what has come to their lanes put in place, as their nodes would do at their start.
    pub fn copies(&self) -> Vec<Copy> {
        let mut copies = Vec::new();
        for (at, (_, space)) in self.pools.iter().enumerate() {
            for (region, lane) in space.lanes() {
                let mut copy = Copy {
                    at,
                    region,
                    whole: false,
                    in_set: self.roles.is_mirror(region, space.identity().node),
                    last: Lsn(0),
                    came: 0,
                    findings: Vec::new(),
                };
                match Lane::open(space, region, lane) {
                    Ok(mut lane) => copy.open(&mut lane),
                    Err(e) => copy.findings.push(e.to_string()),
                }
                copies.push(copy);
            }
        }
        copies
    }

    /// Which copy a region is whose node is not here, and as which its regions are served when the nodes start.
    pub fn heir<'a>(&self, copies: &'a [Copy], region: RegionId) -> Option<&'a Copy> {
        let able = copies.iter().filter(|copy| copy.region == region && copy.is_able());
        able.max_by_key(|copy| copy.last)
    }

    /// Says how all copies stand, a line for each region that has some; damaged ones, and what differs, are findings.
    pub fn check_copies(&self, copies: &mut [Copy], data: bool, progress: &mut dyn FnMut(u64, u64)) -> Vec<String> {
        let total = copies.len() as u64;
        let furthest = furthest(copies);
        let mut said: BTreeMap<RegionId, Vec<String>> = BTreeMap::new();
        for (done, copy) in (0..).zip(copies.iter_mut()) {
            progress(done, total);
            let behind = furthest
                .get(&copy.region)
                .map_or(0, |last| last.0.saturating_sub(copy.last.0));
            let standing = self.standing(copy, behind, data);
            let node = self.pools[copy.at].1.identity().node.0;
            let came = match copy.came {
                0 => String::new(),
                came => format!(", {came} of them not in place yet"),
            };
            let set = if copy.in_set { "" } else { ", not in the set" };
            let last = copy.last.0;
            said.entry(copy.region)
                .or_default()
                .push(format!("node {node} has records up to {last}{came}{set}: {standing}"));
        }
        let line = |(region, copies): (RegionId, Vec<String>)| {
            let primary = match self.of_region.get(&region) {
                Some(at) => format!("node {} serves it", self.pools[*at].1.identity().node.0),
                None => "its node is not here".into(),
            };
            format!("region {}: {primary}; {}", region.0, copies.join("; "))
        };
        said.into_iter().map(line).collect()
    }

    /// How one copy stands, in words.
    fn standing(&self, copy: &mut Copy, behind: u64, data: bool) -> String {
        if !copy.findings.is_empty() {
            return "cannot be read".into();
        }
        if !copy.whole {
            return "not whole".into();
        }
        let space = &self.pools[copy.at].1;
        copy.examine(space, data);
        if !copy.findings.is_empty() {
            return "damaged".into();
        }
        let records = match behind {
            0 => String::new(),
            n if copy.in_set => format!("{n} records behind another mirror, "),
            _ => String::new(),
        };
        let Some(primary) = self.of_region.get(&copy.region).map(|at| &self.pools[*at].1) else {
            return format!("{records}whole");
        };
        match compare(primary, space, copy.region, data) {
            Compared { differing, .. } if !differing.is_empty() => {
                copy.findings = differing;
                "differs".into()
            }
            Compared { changed: 0, .. } => format!("{records}equal"),
            Compared { changed, .. } => format!("{records}behind in {changed} inodes"),
        }
    }
}

/// Of each region, the last record that a mirror in the set has.
pub(super) fn furthest(copies: &[Copy]) -> BTreeMap<RegionId, Lsn> {
    let mut furthest = BTreeMap::new();
    for copy in copies.iter().filter(|copy| copy.is_able()) {
        let last = furthest.entry(copy.region).or_insert(copy.last);
        *last = (*last).max(copy.last);
    }
    furthest
}

impl Copy {
    fn open(&mut self, lane: &mut Lane) {
        let before = lane.state().1.applied;
        let applied = lane.apply();
        let (_, head) = lane.state();
        (self.whole, self.last) = (head.whole, head.applied);
        self.came = head.applied.0 - before.0;
        if let Err(e) = applied {
            self.whole = false;
            self.findings.push(e.to_string());
        }
    }

    /// May it take its region's place?
    pub fn is_able(&self) -> bool {
        self.whole && self.in_set
    }

    /// Looks whether it would do as the region: everything of it is read, with `data` also what files hold. What is wrong is in its
    /// findings then. Gives the transactions that hold something of it.
    pub fn examine(&mut self, space: &Arc<PoolSpace>, data: bool) -> Vec<TxnId> {
        match Region::look(space, self.region) {
            Ok((mut region, recovery)) => {
                self.findings.extend(wrong_with(&mut region, data));
                recovery.held_by
            }
            Err(e) => {
                self.findings.push(e.to_string());
                Vec::new()
            }
        }
    }
}

/// What a check of a region finds that a start of its node does not put right, a line each.
pub(super) fn wrong_with(region: &mut Region, data: bool) -> Vec<String> {
    let found = region.check(&mut |_, _| ()).findings.into_iter();
    let mut wrong: Vec<String> = found.filter(|found| found.what != STALE).map(in_words).collect();
    if data {
        wrong.extend(region.scrub_all().iter().map(|damaged| {
            let (ino, end) = (damaged.inode.ino, damaged.offset + damaged.len);
            format!(
                "inode {ino:?}: bytes {} to {end} of the file are damaged",
                damaged.offset
            )
        }));
    }
    wrong
}

/// A region beside a copy.
#[derive(Default)]
pub(super) struct Compared {
    /// inodes that have another tail in one of them, or cannot be read
    pub changed: u64,
    /// of these, inodes that are not newer in the copy
    pub ahead: u64,
    /// what differs where nothing has changed
    pub differing: Vec<String>,
}

/// Compares a region with its copy in another pool.
pub(super) fn compare(primary: &Arc<PoolSpace>, copy: &Arc<PoolSpace>, region: RegionId, data: bool) -> Compared {
    let mut compared = Compared::default();
    let (Ok(ours), Ok(theirs)) = (Store::new(primary, region), Store::new(copy, region)) else {
        return compared; // a region without segments is a finding of its own
    };
    let mut slots = BTreeSet::new();
    for store in [&ours, &theirs] {
        store.each_slot(&mut |slot, _| _ = slots.insert(slot));
    }
    let mut pair = Pair {
        stores: [&ours, &theirs],
        data,
    };
    for slot in slots {
        match pair.slot(slot) {
            Same::Yes => {}
            Same::Changed => compared.changed += 1,
            Same::Ahead => {
                compared.changed += 1;
                compared.ahead += 1;
            }
            Same::No(what) if compared.differing.len() < DIFFERENCES_MAX => {
                compared
                    .differing
                    .push(format!("inode {:?}: {what}", Ino::new(region, slot)));
            }
            Same::No(_) => {}
        }
    }
    compared
}

/// What an inode is beside its copy.
enum Same {
    Yes,
    /// the copy's is newer, or one of them cannot be read, which the check of either says
    Changed,
    /// the copy's is older
    Ahead,
    No(String),
}

struct Pair<'a> {
    stores: [&'a Store; 2],
    data: bool,
}

impl Pair<'_> {
    fn slot(&mut self, slot: u64) -> Same {
        let bytes = self.stores.map(|store| {
            let at = slot * INODE_SIZE as u64;
            let is_there = store.is_within(at, INODE_SIZE as u64, SegmentClass::Inodes);
            if is_there {
                store.read_slot(slot)
            } else {
                [0; INODE_SIZE]
            }
        });
        let ino = self.stores[0].ino(slot);
        let [Ok(ours), Ok(theirs)] = [0, 1].map(|n| InodeHead::decode(&bytes[n], ino)) else {
            return Same::Changed;
        };
        let is_locked = |bytes: &[u8; INODE_SIZE]| bytes[INODE_LOCK as usize..][..8] != [0; 8];
        // in the order in which an inode has them: used, freed with the same generation, used again with another one
        let age = |head: &InodeHead| {
            (
                head.generation,
                head.kind.is_none(),
                head.tail.version(),
                head.tail.units(),
            )
        };
        if age(&ours) != age(&theirs) || ours.kind != theirs.kind {
            return if age(&theirs) > age(&ours) {
                Same::Changed
            } else {
                Same::Ahead
            };
        }
        if bytes.iter().any(is_locked) {
            return Same::Changed;
        }
        if ours.kind.is_none() {
            return Same::Yes;
        }
        let load = |n: usize, head| {
            let reading = &mut Reading::default();
            self.stores[n].load_from(ino, head, &bytes[n], Whole::Must, Names::Kept, reading)
        };
        let (Ok(inode), Ok(copy)) = (load(0, &ours), load(1, &theirs)) else {
            return Same::Changed;
        };
        let units = ours.tail.units();
        let needed = UnitPlace::pages(units) as usize;
        let identity = |head: &InodeHead| (head.parent, head.parent_generation, head.btime_ns);
        if identity(&ours) != identity(&theirs) || inode.pages[..needed] != copy.pages[..needed] {
            return Same::No("its identity, or where its log lies, is another one in the copy".into());
        }
        let here = INODE_UNITS as usize..INODE_UNITS as usize + units.min(INLINE_UNITS) as usize * LINE;
        if let Some(at) = first_difference(&bytes[0][here.clone()], &bytes[1][here]) {
            return Same::No(format!("byte {at} of its log is another one in the copy"));
        }
        for (n, page) in (0..).zip(&inode.pages[..needed]) {
            let first = INLINE_UNITS + n * PAGE_UNITS;
            let len = (units - first).min(PAGE_UNITS) * LINE as u64;
            if let Some(at) = self.range(page + LINE as u64, len) {
                let at = first * LINE as u64 + at;
                return Same::No(format!("byte {at} of its log is another one in the copy"));
            }
        }
        match (&inode.body, self.data) {
            (Body::File(view), true) => self.file(view.read().index.iter()),
            _ => Same::Yes,
        }
    }

    fn file(&self, extents: impl Iterator<Item = (u64, crate::extents::Mapped)>) -> Same {
        for (start, extent) in extents.filter(|(_, extent)| !extent.inline) {
            if self.stores[1].data_from_media(extent.gpa, extent.len).is_none() {
                return Same::No(format!("the copy has no place for byte {start} of the file"));
            }
            if let Some(at) = self.range(extent.gpa.offset().0, extent.len) {
                return Same::No(format!("byte {} of the file is another one in the copy", start + at));
            }
        }
        Same::Yes
    }

    /// Where bytes that lie in one segment differ first.
    fn range(&self, offset: u64, len: u64) -> Option<u64> {
        let (mut ours, mut theirs) = (vec![0; PAGE], vec![0; PAGE]);
        for done in (0..len).step_by(COMPARED_AT_ONCE as usize) {
            let part = COMPARED_AT_ONCE.min(len - done) as usize;
            ours.resize(part, 0);
            theirs.resize(part, 0);
            self.stores[0].read(offset + done, &mut ours);
            self.stores[1].read(offset + done, &mut theirs);
            if let Some(at) = first_difference(&ours, &theirs) {
                return Some(done + at as u64);
            }
        }
        None
    }
}

fn first_difference(ours: &[u8], theirs: &[u8]) -> Option<usize> {
    (0..ours.len()).find(|at| ours[*at] != theirs[*at])
}
