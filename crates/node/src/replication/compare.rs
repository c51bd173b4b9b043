//! Copies in the set compared with their region while that is served, for scrubs: what differs is put right.
//!
//! ```text
//! sums of some pages, as for a fill                      nobody waits; what is under way differs, too
//! of those that differ, under the feed's lock:
//!   records taken, the pages read                        as they are behind the last record
//!   records sent and put in place, the copy's read       as they were then: what differs now is wrong on one side
//!   the region says which (`Region::reconcile`)          ours: stored here. The copy's: it gets ours with a record
//! ```
//!
//! Invariant: a page is taken only from a mirror that had all records when it was read, and only where it has not changed here since.

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use crate::replication::feed::Feed;
use crate::replication::fill::{Filling, Segment};
use crate::replication::lane_feed::{LaneFeed, not_reached};
use polvo_cluster::{Links, Timeouts, within};
use polvo_fabric::Verb;
use polvo_format::{Gpa, NodeId, PAGE, PAGE_CHECKSUM_SIZE, RegionOffset};
use polvo_proto::{CopyPlace, FsError, SUMS_MAX, ScrubbedCopies, SegmentClass};
use polvo_region::planted::{Planted, planted};
use polvo_region::{PageImage, Reconciled, ToCopy};
use std::rc::Rc;

const PAGE_BYTES: u64 = PAGE as u64;
/// Pages put right at a time: so long do records wait.
const AT_ONCE: usize = 32;

impl Node {
    /// Compares some of a region with its mirrors, from a place on.
    ///
    /// # Errors
    /// The region is not served here any more.
    pub(crate) async fn scrub_copies(
        &self,
        links: &Rc<Links>,
        service: &RegionService,
        from: CopyPlace,
    ) -> Result<ScrubbedCopies, FsError> {
        let mut done = ScrubbedCopies::default();
        let Some(replication) = service.replication().filter(|replication| replication.is_confirmed()) else {
            return Ok(done);
        };
        let Some((part, next)) = next_part(service, from) else {
            return Ok(done);
        };
        done.next = next;
        let filling = Filling::begin(&self.scrubbed.copies);
        let mirrors = replication.feed().lock().await.mirrors();
        for mirror in mirrors {
            let mut compared = replication
                .compare(mirror, links, service, &part, &filling, &mut done)
                .await;
            if compared.is_err() {
                replication.reconnect(mirror, links, service).await;
                compared = replication
                    .compare(mirror, links, service, &part, &filling, &mut done)
                    .await;
            }
            if let Err(error) = compared {
                done.missing.push((mirror, error.to_string()));
            }
        }
        (done.bytes, _) = filling.bytes();
        self.scrubbed.note_copies(service, &done);
        match service.has_ended() {
            true => Err(FsError::WrongEpoch),
            false => Ok(done),
        }
    }
}

/// Pages of a segment.
struct Part {
    index: u32,
    at: u64,
    class: SegmentClass,
    first: u32,
    count: u32,
}

/// What is to be compared next, and where it goes on behind that.
fn next_part(service: &RegionService, from: CopyPlace) -> Option<(Part, Option<CopyPlace>)> {
    let in_segment = (1u64 << service.segment_shift()) / PAGE_BYTES;
    service.enter(|region| {
        let mut segments: Vec<u32> = region.segments().map(|(index, ..)| index).collect();
        segments.retain(|index| *index >= from.segment);
        let mut rest = segments.iter().copied().peekable();
        while let Some(index) = rest.next() {
            let begin = if index == from.segment { from.page } else { 0 };
            let Some(ToCopy { at, class, pages }) = region.to_copy(index) else {
                continue;
            };
            let pages = match class {
                SegmentClass::Data => pages,
                _ => vec![(0, in_segment as u32)],
            };
            let run = pages.into_iter().find(|(first, count)| first + count > begin);
            let Some((first, count)) = run else { continue };
            let (first, end) = (first.max(begin), first + count);
            let count = (end - first).min(SUMS_MAX);
            let page = first + count;
            let part = Part {
                index,
                at,
                class,
                first,
                count,
            };
            let next = match u64::from(page) < in_segment {
                true => Some(CopyPlace { segment: index, page }),
                false => rest.peek().map(|index| CopyPlace {
                    segment: *index,
                    page: 0,
                }),
            };
            return Some((part, next));
        }
        None
    })
}

impl Replication {
    /// Compares pages with those of one mirror, and puts right what differs.
    async fn compare(
        &self,
        mirror: NodeId,
        links: &Rc<Links>,
        service: &RegionService,
        part: &Part,
        filling: &Filling<'_>,
        done: &mut ScrubbedCopies,
    ) -> Result<(), FsError> {
        // who attaches anew takes the key away, and what is asked for under it is refused
        let mut feed = self.feed().lock().await;
        let mut lane = feed.lane_of(mirror, service)?;
        let base = u64::from(part.index) << service.segment_shift();
        // of one that has gone meanwhile the mirror would take another; while we have the feed it hears of none that goes
        if service.locate(Gpa::new(service.id, RegionOffset(base)), PAGE).is_err() {
            return Ok(());
        }
        let there = lane.segment(mirror, links, service, part.index, part.class).await?;
        drop(feed);
        let has_words = |lane: &LaneFeed| service.checksum_of(part.at).is_some() && lane.checksum_of(there).is_some();
        let segment = Segment {
            index: part.index,
            at: part.at,
            there,
            has_checksums: part.class == SegmentClass::Data && has_words(&lane),
            is_compared: true,
        };
        let runs = lane
            .differing(mirror, service, links, &segment, (part.first, part.count), filling)
            .await?;
        let pages = runs.iter().flat_map(|&(first, count)| first..first + count);
        let pages: Vec<RegionOffset> = pages
            .map(|page| RegionOffset(base + u64::from(page) * PAGE_BYTES))
            .collect();
        for pages in pages.chunks(AT_ONCE) {
            for reconciled in self.reconcile(mirror, links, service, pages).await? {
                match reconciled {
                    Reconciled::Unused => {}
                    Reconciled::Sent => done.sent += 1,
                    Reconciled::Taken(ino) => done.mended.push((ino, mirror)),
                    Reconciled::Left => done.left += 1,
                }
            }
        }
        Ok(())
    }

    /// Asks a mirror for its lane anew: where nothing was sent for a while nobody has noticed that the key is another one.
    pub(crate) async fn reconnect(&self, mirror: NodeId, links: &Rc<Links>, service: &RegionService) {
        let mut feed = self.feed().lock().await;
        if let Some(follower) = feed.follower(mirror) {
            follower.lane = None;
        }
        // what fails is seen by who looks after the mirror
        let _ = self.send(&mut feed, service, links, true).await;
    }

    /// Has the region look at pages beside those of a mirror which has all that was done by then. Gives what became of those that differ.
    ///
    /// # Errors
    /// The mirror is in the set no more, or was not reached.
    pub(crate) async fn reconcile(
        &self,
        mirror: NodeId,
        links: &Rc<Links>,
        service: &RegionService,
        pages: &[RegionOffset],
    ) -> Result<Vec<Reconciled>, FsError> {
        let mut feed = self.feed().lock().await;
        let ours: Vec<Option<PageImage>> = feed.take_and(service, |region| {
            pages.iter().map(|page| region.read_page(*page)).collect()
        });
        if !planted(Planted::TakenFromBehind) {
            self.send_taken(&mut feed, service, links, true).await?;
            feed.apply(mirror, service, links).await?;
        }
        let mut lane = feed.lane_of(mirror, service)?;
        let mut found = Vec::new();
        for (page, ours) in pages.iter().zip(ours) {
            let Some(ours) = ours else { continue };
            let mut theirs = lane.read_page(mirror, links, service, *page).await?;
            let (at, _) = service.locate(Gpa::new(service.id, *page), PAGE)?;
            if lane.place.checksums.0 == 0 || service.checksum_of(at).is_none() {
                theirs.word = ours.word; // one pool has no checksums: the page alone is compared
            }
            if ours == theirs {
                continue;
            }
            found.push(service.enter(|region| region.reconcile(*page, Some(&ours), &theirs)));
        }
        // it has what it lacked when this is answered
        self.send(&mut feed, service, links, true).await?;
        Ok(found)
    }
}

impl LaneFeed {
    /// Where a segment of the copy begins.
    async fn segment(
        &mut self,
        mirror: NodeId,
        links: &Rc<Links>,
        service: &RegionService,
        index: u32,
        class: SegmentClass,
    ) -> Result<u64, FsError> {
        if !self.segments.contains_key(&index) {
            self.learn_segments(mirror, service, links, &[(index, class as u8)])
                .await?;
        }
        Ok(self.segments[&index])
    }

    /// A page of the copy, as it is now.
    async fn read_page(
        &mut self,
        mirror: NodeId,
        links: &Rc<Links>,
        service: &RegionService,
        page: RegionOffset,
    ) -> Result<PageImage, FsError> {
        let (_, class) = service.locate(Gpa::new(service.id, page), PAGE)?;
        let (index, rest) = (
            page.0 >> service.segment_shift(),
            page.0 % (1 << service.segment_shift()),
        );
        let there = self.segment(mirror, links, service, index as u32, class).await? + rest;
        self.read_page_at(mirror, links, there, class == SegmentClass::Data)
            .await
    }

    /// A page of the copy's pool, with its checksum where it is to have one.
    pub(super) async fn read_page_at(
        &self,
        mirror: NodeId,
        links: &Rc<Links>,
        there: u64,
        is_data: bool,
    ) -> Result<PageImage, FsError> {
        let (mut bytes, mut word) = (Box::new([0; PAGE]), [0; PAGE_CHECKSUM_SIZE as usize]);
        let mut verbs = Vec::new();
        if let Some(at) = self.checksum_of(there).filter(|_| is_data) {
            verbs.push(Verb::Read {
                from: self.remote(at),
                into: &mut word,
            });
        }
        verbs.push(Verb::Read {
            from: self.remote(there),
            into: &mut bytes[..],
        });
        let link = links.at_once_within(mirror, Timeouts::MIRROR).await?;
        let pair = link.rpc.queue_pair();
        let read = within(pair, Timeouts::MIRROR, pair.execute(&mut verbs)).await;
        drop(verbs);
        read.map_err(|error| not_reached(mirror, &error))?;
        let word = u64::from_le_bytes(word);
        Ok(PageImage { bytes, word })
    }
}

impl Feed {
    /// Those in the set that follow.
    pub fn mirrors(&self) -> Vec<NodeId> {
        let followers = self.followers.iter().filter(|follower| follower.in_sync);
        followers.map(|follower| follower.node).collect()
    }

    /// The lane of a mirror in the set, to look at its copy by.
    fn lane_of(&mut self, mirror: NodeId, service: &RegionService) -> Result<LaneFeed, FsError> {
        let follower = self.follower(mirror).filter(|follower| follower.in_sync);
        let lane = follower.and_then(|follower| follower.lane.as_ref());
        let lane = lane.map(|lane| LaneFeed::new(lane.place.clone(), service.segment_shift()));
        lane.ok_or_else(|| FsError::Unreachable {
            node: mirror.0,
            why: "it has no copy that follows".into(),
        })
    }

    /// A mirror puts in place what has come.
    async fn apply(&mut self, mirror: NodeId, service: &RegionService, links: &Links) -> Result<(), FsError> {
        match self.follower(mirror).and_then(|follower| follower.lane.as_mut()) {
            Some(lane) => lane.apply(mirror, service, links, false).await,
            None => Err(FsError::Unreachable {
                node: mirror.0,
                why: "it has no copy that follows".into(),
            }),
        }
    }
}
