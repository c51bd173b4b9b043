//! How a copy is made while its region is served: of the pages that the copy has already, those are sent that differ.
//!
//! ```text
//! primary                                                      copy
//! begin_fill: records are kept from here on
//! attach, behind the last one   ----- request ------------->   whole no more; what its lane held is in place; a new key
//! keep and take segments        ----- requests ------------>   has the region's segments, and no others
//! sums of pages                 ----- several at a time --->   made of what is there, which is made durable
//! pages that differ             ----- one-sided writes ---->
//! filled: the records since     ----- lane, request ------->   in place; whole
//! ```
//!
//! Invariants:
//!
//! - When a page is done, the copy has it as it was in the region at one time since `begin_fill`: it was sent then, or its sum at that
//!   time was that of what the copy has. All that has changed since comes with records. So the end is that of sending every page.
//! - Nobody but the fill writes to the copy: who did before lost its key when we attached, and records follow when the pages are done.
//! - What a sum is made of is durable when it is answered: a process that has died may have stored it, and not flushed it.
//! - Sums are made of what lies there now, and never kept: bits that have flipped on the media differ. They cover a page of file data
//!   together with its checksum.
//! - The copy is not whole from the attachment to the end, whatever happens: it takes nobody's place. A fill that has broken off begins
//!   anew, and finds what was sent before.
//! - Pages that clients write to without a record (delegated ones) may differ at the end. Nothing leads to them before a commit, and its
//!   record brings them.
//! - A page of file data that is damaged here is not sent over one of the copy that is what our checksum says: that one is taken.
//! - Neither side works on for more than [`SLICE`] pages without letting others work.
//!
//! A segment that the copy has not had is sent without asking. Sums are 128-bit XXH3, seeded with the lane's key, which nobody can guess: two
//! pages that differ and have one sum do not come about, and nobody who writes files can make them.

use crate::region_service::RegionService;
use crate::replication::lane_feed::{Batch, LaneFeed};
use polvo_cluster::{InFlight, Links, Timeouts};
use polvo_fabric::{Local, Memory, Verb};
use polvo_format::{NodeId, PAGE, PAGE_CHECKSUM_SIZE, RegionOffset};
use polvo_pmem::Pmem;
use polvo_proto::{Cred, FsError, SEGMENTS_PAGE, SUMS_MAX, SegmentClass, ask};
use polvo_region::planted::{Planted, planted};
use polvo_region::{Reconciled, ToCopy};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use twox_hash::XxHash3_128;

const PAGE_BYTES: u64 = PAGE as u64;
const SUM_SIZE: usize = size_of::<u128>();
/// Sums asked for at a time, of [`SUMS_MAX`] pages each.
const WINDOW: usize = 4;
/// Pages of which sums are made at a stretch: some ten microseconds.
const SLICE: usize = 16;

/// What this node has done to make copies elsewhere since it was started.
#[derive(Default)]
pub(crate) struct FillCounters {
    pub under_way: AtomicU64,
    pub made: AtomicU64,
    /// Of pages that were there.
    pub compared_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
}

/// One copy that is being made, in these counters.
pub(crate) struct Filling<'a> {
    counters: &'a FillCounters,
    compared: Cell<u64>,
    sent: Cell<u64>,
}

impl<'a> Filling<'a> {
    pub fn begin(counters: &'a FillCounters) -> Filling<'a> {
        counters.under_way.fetch_add(1, Relaxed);
        Filling {
            counters,
            compared: Cell::new(0),
            sent: Cell::new(0),
        }
    }

    /// Bytes compared and bytes sent so far.
    pub fn bytes(&self) -> (u64, u64) {
        (self.compared.get(), self.sent.get())
    }

    /// The copy is made.
    pub fn made(&self) {
        self.counters.made.fetch_add(1, Relaxed);
    }

    fn compared(&self, bytes: u64) {
        self.compared.set(self.compared.get() + bytes);
        self.counters.compared_bytes.fetch_add(bytes, Relaxed);
    }

    fn sent(&self, bytes: u64) {
        self.sent.set(self.sent.get() + bytes);
        self.counters.sent_bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.counters.under_way.fetch_sub(1, Relaxed);
    }
}

/// Pages of a pool that follow each other.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    /// Where the first one begins.
    pub at: u64,
    /// Where its checksum lies, if theirs count.
    pub checksums: Option<u64>,
    pub count: u32,
}

impl Pages {
    /// Their sums, one after the other. Others work in between.
    pub async fn sums(self, pmem: &Pmem, seed: u64) -> Vec<u8> {
        let mut sums = Vec::with_capacity(self.count as usize * SUM_SIZE);
        let mut page = [0; PAGE + PAGE_CHECKSUM_SIZE as usize];
        for number in 0..u64::from(self.count) {
            let (bytes, checksum) = page.split_at_mut(PAGE);
            pmem.read(self.at + number * PAGE_BYTES, bytes);
            if let Some(first) = self.checksums {
                pmem.read(first + number * PAGE_CHECKSUM_SIZE, checksum);
            }
            let sum = XxHash3_128::oneshot_with_seed(seed, &page);
            sums.extend_from_slice(&sum.to_le_bytes());
            if (number + 1).is_multiple_of(SLICE as u64) {
                tokio::task::yield_now().await;
            }
        }
        sums
    }

    /// Makes what is there durable.
    pub fn persist(self, pmem: &Pmem) {
        pmem.flush(self.at, u64::from(self.count) * PAGE_BYTES);
        if let Some(first) = self.checksums {
            pmem.flush(first, u64::from(self.count) * PAGE_CHECKSUM_SIZE);
        }
        pmem.fence();
    }
}

/// A segment of the region, here and in the copy.
pub(super) struct Segment {
    pub index: u32,
    /// where it begins in our pool
    pub at: u64,
    /// and in that of the copy
    pub there: u64,
    /// Both pools have checksums of its pages.
    pub has_checksums: bool,
    /// The copy has had it before.
    pub is_compared: bool,
}

impl LaneFeed {
    /// Has the copy hold all that the region holds, but for what comes with records.
    ///
    /// # Errors
    /// The node cannot be reached, or has no more space. The lane is not to be used any more.
    pub async fn fill(
        &mut self,
        to: NodeId,
        service: &RegionService,
        links: &Rc<Links>,
        filling: &Filling<'_>,
    ) -> Result<(), FsError> {
        let of_region = |(index, _, class): (u32, u64, SegmentClass)| (index, class as u8);
        let segments: Vec<(u32, u8)> = service.enter(|region| region.segments().map(of_region).collect());
        self.keep_segments(to, service, links, &segments).await?;
        let were_there = self.learn_segments(to, service, links, &segments).await?;
        for (index, _) in segments {
            // one that has gone since goes with a record
            let Some(ToCopy { at, class, pages }) = service.enter(|region| region.to_copy(index)) else {
                continue;
            };
            let (there, is_data) = (self.segments[&index], class == SegmentClass::Data);
            let segment = Segment {
                index,
                at,
                there,
                has_checksums: is_data && service.checksum_of(at).is_some() && self.checksum_of(there).is_some(),
                is_compared: were_there.contains(&index),
            };
            let pages = match is_data {
                true => pages,
                false => vec![(0, (1 << service.segment_shift()) / PAGE as u32)],
            };
            self.fill_segment(to, service, links, &segment, &pages, filling).await?;
        }
        Ok(())
    }

    /// The copy gives back what it has of segments that the region has not, or for something else.
    async fn keep_segments(
        &self,
        to: NodeId,
        service: &RegionService,
        links: &Links,
        segments: &[(u32, u8)],
    ) -> Result<(), FsError> {
        let mut first = 0;
        let mut parts = segments.chunks(SEGMENTS_PAGE).peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().map_or(u32::MAX, |next| next[0].0 - 1);
            let keep = ask::KeepSegments {
                region: service.id,
                key: self.place.key,
                range: (first, last),
                segments: part.to_vec(),
            };
            links.call_node_within(to, Cred::Kernel, keep, Timeouts::MIRROR).await?;
            first = last.wrapping_add(1);
        }
        Ok(())
    }

    /// Sends these runs of pages of a segment, as far as they differ.
    async fn fill_segment(
        &self,
        to: NodeId,
        service: &RegionService,
        links: &Rc<Links>,
        segment: &Segment,
        pages: &[(u32, u32)],
        filling: &Filling<'_>,
    ) -> Result<(), FsError> {
        let mut parts = pages.iter().flat_map(|&(first, count)| {
            let end = first + count;
            (first..end)
                .step_by(SUMS_MAX as usize)
                .map(move |first| (first, SUMS_MAX.min(end - first)))
        });
        let link = links.at_once_within(to, Timeouts::MIRROR).await?;
        let memory = Memory::Pool(service.pmem().clone());
        let mut batch = Batch::default();
        let mut window = InFlight::new();
        loop {
            while window.len() < WINDOW
                && let Some(part) = parts.next()
            {
                window.push(self.differing(to, service, links, segment, part, filling));
            }
            let Some(differing) = window.next().await else { break };
            for (first, count) in differing? {
                if segment.has_checksums {
                    self.rescue(to, service, links, segment, (first, count)).await?;
                }
                let start = u64::from(first) * PAGE_BYTES;
                let (at, there) = (segment.at + start, segment.there + start);
                let mut moves = vec![(at, there, u64::from(count) * PAGE_BYTES)];
                if segment.has_checksums
                    && let (Some(at), Some(there)) = (service.checksum_of(at), self.checksum_of(there))
                {
                    moves.push((at, there, u64::from(count) * PAGE_CHECKSUM_SIZE));
                }
                for (offset, there, len) in moves {
                    if batch.is_full(len) {
                        batch.execute(link.rpc.queue_pair(), to).await?;
                        tokio::task::yield_now().await;
                    }
                    let from = Local {
                        memory: &memory,
                        offset,
                        len,
                    };
                    let to = self.remote(there);
                    batch.push(Verb::WriteFrom { to, from }, len);
                    filling.sent(len);
                }
            }
        }
        batch.execute(link.rpc.queue_pair(), to).await
    }

    /// Of these pages of file data, which the copy has otherwise: one that is damaged here, and that the copy has as its checksum says, is
    /// taken from there before it is sent.
    async fn rescue(
        &self,
        to: NodeId,
        service: &RegionService,
        links: &Rc<Links>,
        segment: &Segment,
        (first, count): (u32, u32),
    ) -> Result<(), FsError> {
        let base = u64::from(segment.index) << service.segment_shift();
        for page in (first..first + count).map(|page| RegionOffset(base + u64::from(page) * PAGE_BYTES)) {
            if planted(Planted::DamageSent) || !service.enter(|region| region.is_page_damaged(page)) {
                continue;
            }
            let there = segment.there + (page.0 - base);
            let theirs = self.read_page_at(to, links, there, true).await?;
            if let Reconciled::Taken(_) = service.enter(|region| region.reconcile(page, None, &theirs)) {
                tracing::warn!(
                    region = service.id.0,
                    ?page,
                    node = to.0,
                    "damaged file data is repaired from a copy"
                );
            }
        }
        Ok(())
    }

    /// Which of these pages of a segment the copy has otherwise, or not at all: first one and how many of each run.
    pub(super) async fn differing(
        &self,
        to: NodeId,
        service: &RegionService,
        links: &Links,
        segment: &Segment,
        (first, count): (u32, u32),
        filling: &Filling<'_>,
    ) -> Result<Vec<(u32, u32)>, FsError> {
        if !segment.is_compared {
            return Ok(vec![(first, count)]);
        }
        let seed = self.place.key;
        let ask = ask::PageSums {
            region: service.id,
            key: seed,
            segment: segment.index,
            first,
            count,
            checksums: segment.has_checksums,
        };
        let theirs = links.call_node_within(to, Cred::Kernel, ask, Timeouts::MIRROR).await?;
        let at = segment.at + u64::from(first) * PAGE_BYTES;
        let checksums = segment.has_checksums.then(|| service.checksum_of(at)).flatten();
        let pages = Pages { at, checksums, count };
        let ours = pages.sums(service.pmem(), seed).await;
        if ours.len() != theirs.len() {
            return Err(FsError::Io(format!(
                "node {} has made sums of other pages than it was asked for",
                to.0
            )));
        }
        filling.compared(u64::from(count) * PAGE_BYTES);
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let sums = ours.chunks_exact(SUM_SIZE).zip(theirs.chunks_exact(SUM_SIZE));
        for (page, _) in (first..).zip(sums).filter(|(_, (ours, theirs))| ours != theirs) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => runs.push((page, 1)),
            }
        }
        if !runs.is_empty() && planted(Planted::DifferenceUnsent) {
            runs.pop();
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_pmem::sim::LoseAll;

    fn sums(pmem: &Pmem, checksums: Option<u64>) -> Vec<Vec<u8>> {
        let pages = Pages {
            at: 1 << 16,
            checksums,
            count: 20,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sums = runtime.block_on(pages.sums(pmem, 7));
        pages.persist(pmem);
        sums.chunks_exact(SUM_SIZE).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn a_sum_tells_a_page_with_its_checksum_from_all_others() {
        let pmem = Pmem::simulated(1 << 18);
        let before = sums(&pmem, Some(4096));
        let differ = |after: &[Vec<u8>]| (0..20).filter(|page| before[*page] != after[*page]).collect::<Vec<_>>();
        pmem.write((1 << 16) + 3 * PAGE_BYTES + 4095, &[1]);
        pmem.write(4096 + 19 * PAGE_CHECKSUM_SIZE, &[1]);
        assert_eq!(differ(&sums(&pmem, Some(4096))), [3, 19]);
        assert_eq!(
            differ(&sums(&pmem, None)),
            [3],
            "no checksums are as if they were zeros"
        );
        // next to the pages, and to their checksums
        pmem.write((1 << 16) + 20 * PAGE_BYTES, &[1]);
        pmem.write(4096 + 20 * PAGE_CHECKSUM_SIZE, &[1]);
        assert_eq!(differ(&sums(&pmem, Some(4096))), [3, 19]);
    }

    #[test]
    fn what_has_been_compared_is_durable() {
        let pmem = Pmem::simulated(1 << 18);
        pmem.write((1 << 16) + PAGE_BYTES, &[5; 900]);
        pmem.write(4096 + PAGE_CHECKSUM_SIZE, &[6; 8]);
        let before = sums(&pmem, Some(4096));
        pmem.sim().unwrap().power_cut_with(&mut LoseAll);
        assert_eq!(sums(&pmem, Some(4096)), before);
    }
}
