//! A damaged region is put back from a mirror, as if that had taken its place: all that was answered is there, and nothing of the region
//! is salvaged with loss.
//!
//! ```text
//! a region ... a copy that is not whole ... has what the mirror has ... whole ... the region
//! ```
//!
//! Invariants:
//!
//! - nothing is taken but from a mirror in the set that is whole, has the last record of all mirrors, is sound with all that its files hold,
//!   and is older than the region in no inode that can be read;
//! - the region is a copy that is not whole from before the first byte changes until the last one is durable: a repair that is cut short
//!   leaves no mixture that passes for a region, and the next one begins anew;
//! - what the region has decided is what the mirror knows of it: what it does not know nobody was told.

use super::copies::{Copy, compare, furthest, wrong_with};
use super::repair::{Repaired, mend_exactly};
use super::{Cluster, in_words};
use crate::planted::{Planted, planted};
use crate::pool::encode_parts;
use crate::{Lane, PoolSpace, Region, RegionError, ToCopy};
use polvo_format::{Lsn, PAGE, PAGE_CHECKSUM_SIZE, RegionId, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::SegmentClass;
use std::sync::Arc;

const PAGE_BYTES: u64 = PAGE as u64;
/// Damaged things of one region that are named.
const NAMED_MAX: usize = 20;

impl Cluster {
    /// Puts regions back that are damaged, and whole in a mirror; with `data` also where only what files hold is. A copy that is damaged, or
    /// differs, counts as whole no more where its region is sound. True when a pool has changed.
    ///
    /// # Errors
    /// A region could not be put back; it is left for the next repair.
    pub fn restore(&self, data: bool, report: &mut Repaired) -> Result<bool, RegionError> {
        let mut copies = self.copies();
        let (mut changed, furthest) = (false, furthest(&copies));
        let regions: Vec<RegionId> = match copies.is_empty() {
            true => Vec::new(),
            false => self.of_region.keys().copied().chain(self.half_restored()).collect(),
        };
        for id in regions {
            if !copies.iter().any(|copy| copy.region == id && copy.whole) {
                continue;
            }
            let mut wrong = self.wrong_with(id, data);
            if !wrong.is_empty() && self.of_region.contains_key(&id) {
                mend_exactly(id, &self.pools[self.of_region[&id]].1, report)?;
                wrong = self.wrong_with(id, data);
            }
            let of_region = copies.iter_mut().filter(|copy| copy.region == id && copy.whole);
            if wrong.is_empty() {
                for copy in of_region {
                    changed |= self.distrust(copy, data, report)?;
                }
                continue;
            }
            let mut able: Vec<&mut Copy> = of_region.filter(|copy| copy.is_able()).collect();
            able.retain(|copy| furthest.get(&id) == Some(&copy.last) || planted(Planted::TakenFromBehind));
            for copy in able {
                match self.why_not(copy) {
                    Some(why) => report.notes.push(why),
                    None => {
                        self.put_back(copy, &wrong, report)?;
                        changed = true;
                        break;
                    }
                }
            }
        }
        Ok(changed)
    }

    /// Regions that an earlier repair was putting back when it was cut short.
    fn half_restored(&self) -> Vec<RegionId> {
        let lost = self.roles.regions().filter(|id| !self.of_region.contains_key(id));
        lost.filter(|id| self.home(*id).is_some_and(|at| self.pools[at].1.has_copy(*id)))
            .collect()
    }

    /// The pool in which a region belongs.
    fn home(&self, id: RegionId) -> Option<usize> {
        let named = self.roles.primary(id).and_then(|node| self.pool_of(node));
        self.of_region.get(&id).copied().or(named)
    }

    fn wrong_with(&self, id: RegionId, data: bool) -> Vec<String> {
        let Some(at) = self.of_region.get(&id) else {
            return vec!["was being put back when a repair was cut short".into()];
        };
        match Region::look(&self.pools[*at].1, id) {
            Ok((mut region, recovery)) => {
                let mut wrong = wrong_with(&mut region, data);
                if wrong.is_empty() {
                    wrong.extend(recovery.damaged.into_iter().map(in_words));
                }
                wrong.extend(self.strange(&recovery.held_by));
                wrong
            }
            Err(e) => vec![e.to_string()],
        }
    }

    /// Transactions that nobody can have begun, and that lock words name all the same.
    fn strange(&self, held_by: &[TxnId]) -> Vec<String> {
        let is_strange = |txn: &&TxnId| {
            self.was_begun(**txn) == Some(false) || self.roles.regions().all(|region| region != txn.region())
        };
        let strange = held_by.iter().filter(is_strange);
        strange
            .map(|txn| format!("lock words name transaction {txn:?}, which nobody has begun"))
            .collect()
    }

    /// A copy that is damaged, or another than its region, does not take its place: it is compared when the nodes start.
    fn distrust(&self, copy: &mut Copy, data: bool, report: &mut Repaired) -> Result<bool, RegionError> {
        let (space, id) = (&self.pools[copy.at].1, copy.region);
        copy.examine(space, data);
        if let (true, Some(at)) = (copy.findings.is_empty(), self.of_region.get(&id)) {
            copy.findings = compare(&self.pools[*at].1, space, id, data).differing;
        }
        let Some(first) = copy.findings.first() else {
            return Ok(false);
        };
        let node = space.identity().node.0;
        report.done.push(format!(
            "copy of region {} at node {node}: {first}: counts as whole no more, and gets what differs when the nodes start",
            id.0
        ));
        lane_in(space, id)?.restart(copy.last);
        Ok(true)
    }

    /// Why a region is not put back from a copy; `None`: it may be.
    fn why_not(&self, copy: &mut Copy) -> Option<String> {
        let (space, id) = (&self.pools[copy.at].1, copy.region);
        let node = space.identity().node.0;
        let not = |why: String| {
            Some(format!(
                "region {}: nothing is taken from its copy at node {node}: {why}",
                id.0
            ))
        };
        let held_by = copy.examine(space, true);
        copy.findings.extend(self.strange(&held_by));
        if let Some(first) = copy.findings.first() {
            return not(first.clone());
        }
        let home = &self.pools[self.home(id)?].1;
        if self.of_region.contains_key(&id) {
            let compared = compare(home, space, id, false);
            if compared.ahead > 0 && !planted(Planted::TakenFromBehind) {
                return not(format!("it lacks what was done last, in {} inodes", compared.ahead));
            }
        }
        let has = |index: u32| home.class_of_segment(id, index).is_some();
        let lacking = space.segments_of(id).iter().filter(|(index, ..)| !has(*index)).count() as u32;
        let lane = u32::from(!home.has_copy(id));
        let free = home.usage().free_segments;
        match free < lacking + lane {
            true => not(format!(
                "the pool has {free} free segments, and {} are needed",
                lacking + lane
            )),
            false => None,
        }
    }

    /// The region becomes what the copy has.
    fn put_back(&self, copy: &Copy, wrong: &[String], report: &mut Repaired) -> Result<(), RegionError> {
        let (from, id) = (&self.pools[copy.at].1, copy.region);
        let to = &self.pools[self.home(id).expect("it was looked up")].1;
        let (region, _) = Region::look(from, id)?;
        let mut lane = match to.has_copy(id) {
            true => lane_in(to, id)?,
            false => Lane::create(to, id)?,
        };
        lane.restart(Lsn(0));
        let segments: Vec<(u32, u8)> = region
            .segments()
            .map(|(index, _, class)| (index, class as u8))
            .collect();
        lane.keep_only(0..=u32::MAX, &segments)?;
        let mut pages = 0;
        for ((index, class), (there, _)) in segments.iter().zip(lane.take_segments(&segments)?) {
            let ToCopy { at, pages: used, .. } = region.to_copy(*index).expect("the copy has the segment");
            let all = [(0, (to.usage().segment_size / PAGE_BYTES) as u32)];
            let is_data = *class == SegmentClass::Data as u8;
            let runs = if is_data { &used[..] } else { &all };
            for page in runs.iter().flat_map(|(first, count)| *first..first + count) {
                let start = u64::from(page) * PAGE_BYTES;
                let moved = copy_page(from, at + start, to, there + start, is_data);
                pages += u64::from(moved);
            }
        }
        to.pmem().fence();
        for (txn, parts) in from.decided_by(id) {
            let mut record = Vec::new();
            encode_parts(&mut record, id, txn, &parts);
            to.adopt(id, &record, |_| false)?;
        }
        lane.finish();
        lane.promote()?;
        let node = from.identity().node.0;
        for what in wrong.iter().take(NAMED_MAX) {
            let line = format!("region {}: {what}: taken from the copy at node {node}", id.0);
            report.done.push(line);
        }
        let more = wrong.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 {
            format!(", for {more} more findings, too")
        } else {
            String::new()
        };
        report.done.push(format!(
            "region {}: {pages} pages taken from the copy at node {node}{more}",
            id.0
        ));
        Ok(())
    }
}

fn lane_in(space: &Arc<PoolSpace>, id: RegionId) -> Result<Lane, RegionError> {
    let lane = space.lanes().into_iter().find(|(region, _)| *region == id);
    let (_, at) = lane.ok_or_else(|| RegionError::Pool(format!("there is no copy of region {id}")))?;
    Lane::open(space, id, at)
}

/// Copies a page that differs, with its checksum; true if it did. Durable after the next fence.
fn copy_page(from: &PoolSpace, at: u64, to: &PoolSpace, there: u64, is_data: bool) -> bool {
    let mut moved = copy_bytes::<PAGE>(from.pmem(), at, to.pmem(), there);
    if is_data && to.layout().has_checksums() {
        let place = to.layout().checksum_offset(there);
        match from.layout().has_checksums() {
            true => {
                let at = from.layout().checksum_offset(at);
                moved |= copy_bytes::<{ PAGE_CHECKSUM_SIZE as usize }>(from.pmem(), at, to.pmem(), place);
            }
            false => {
                to.pmem().write_u64(place, 0);
                to.pmem().flush(place, PAGE_CHECKSUM_SIZE);
            }
        }
    }
    moved
}

fn copy_bytes<const N: usize>(from: &Pmem, at: u64, to: &Pmem, there: u64) -> bool {
    let (mut right, mut found) = ([0; N], [0; N]);
    from.read(at, &mut right);
    to.read(there, &mut found);
    if right != found {
        to.write(there, &right);
    }
    // what is equal may not be durable: who died may have stored it, and not flushed it
    to.flush(there, N as u64);
    right != found
}
