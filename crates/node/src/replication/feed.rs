//! The records of one region on their way from it to those that have copies.

use crate::region_service::RegionService;
use crate::replication::follower::{CATCH_UP, Follower, Standing};
use crate::replication::lane_feed::LaneFeed;
use polvo_cluster::{Links, join_all};
use polvo_format::{Lsn, MirrorRecord, NodeId};
use polvo_proto::{FsError, LanePlace};
use polvo_region::Region;
use polvo_region::planted::{Planted, planted};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::time::Instant;

/// Bytes of records that are kept for those that are behind. The copy of one that is further behind is compared with the region.
const BACKLOG_MAX: usize = 64 << 20;
/// Memory that held more bytes of records is not kept for others.
const SPARE_MAX: usize = 64 << 10;

#[cfg(feature = "testing")]
thread_local! {
    static BACKLOG_LIMIT: std::cell::Cell<usize> = const { std::cell::Cell::new(BACKLOG_MAX) };
}

/// Primaries of this thread keep so many bytes of records.
#[cfg(feature = "testing")]
pub(crate) fn limit_backlogs(bytes: Option<usize>) {
    BACKLOG_LIMIT.set(bytes.unwrap_or(BACKLOG_MAX));
}

#[cfg(feature = "testing")]
fn backlog_max() -> usize {
    BACKLOG_LIMIT.get()
}

#[cfg(not(feature = "testing"))]
const fn backlog_max() -> usize {
    BACKLOG_MAX
}

/// Records of a region that follow each other, sealed.
pub(crate) struct Records {
    last: Lsn,
    bytes: Vec<u8>,
}

impl Records {
    pub fn last(&self) -> Lsn {
        self.last
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What one region's records go through.
#[derive(Default)]
pub(crate) struct Feed {
    pub followers: Vec<Follower>,
    backlog: VecDeque<Records>,
    backlog_bytes: usize,
    /// Memory of records that nobody needs any more, for those to come.
    spare: Vec<u8>,
    /// The last record that was taken from the region.
    pub(super) taken: Lsn,
    /// Bytes of all records up to that one.
    pub(super) taken_bytes: u64,
    /// All that was recorded by then has been taken.
    pub(super) taken_at: Option<Instant>,
}

impl Feed {
    /// Of a region that has just been opened.
    pub fn new(followers: Vec<Follower>) -> Feed {
        Feed {
            followers,
            taken: Lsn(1),
            ..Feed::default()
        }
    }

    /// As [`Self::new`], of a region that was handed over: mirrors in the set have all up to that record.
    pub fn go_on_behind(&mut self, last: Lsn) {
        self.taken = last;
        for mirror in self.followers.iter_mut().filter(|follower| follower.in_sync) {
            mirror.has_all(last);
        }
    }

    /// Is any mirror in the set?
    pub fn has_mirror(&self) -> bool {
        self.followers.iter().any(|follower| follower.in_sync)
    }

    /// Whose lanes hold what is not put in place yet, as far as is known, and up to where.
    pub fn unapplied(&self) -> Vec<(NodeId, Lsn)> {
        let lanes = self
            .followers
            .iter()
            .filter_map(|follower| Some((follower.node, follower.lane.as_ref()?)));
        lanes
            .filter(|(_, lane)| !lane.is_empty())
            .map(|(node, lane)| (node, lane.sent()))
            .collect()
    }

    /// Is a mirror in the set away?
    pub fn lacks_mirror(&self) -> bool {
        let is_away = |follower: &Follower| follower.in_sync && follower.away_since.is_some();
        self.followers.iter().any(is_away)
    }

    /// Sends what was taken to those in the set, and (not `only_set`) to the others that follow.
    ///
    /// # Errors
    /// That of one in the set that did not take it.
    pub async fn send(&mut self, service: &RegionService, links: &Rc<Links>, only_set: bool) -> Result<(), FsError> {
        let (backlog, taken) = (&self.backlog, self.taken);
        let gets = |follower: &&mut Follower| follower.in_sync || !only_set && follower.lane.is_some();
        let mut getting = self.followers.iter_mut().filter(gets);
        let mut result = Ok(());
        match (getting.next(), getting.next()) {
            (None, _) => {}
            // nearly always, and nothing has to be moved to be waited for together
            (Some(only), None) => {
                let sent = only.send(service, links, backlog, taken).await;
                result = sent.or_else(|error| only.must_get(error));
            }
            (Some(first), second) => {
                let all = [first].into_iter().chain(second).chain(getting);
                let sent = all.map(|follower| async move {
                    let sent = follower.send(service, links, backlog, taken).await;
                    sent.or_else(|error| follower.must_get(error))
                });
                for sent in join_all(sent).await {
                    result = result.and(sent);
                }
            }
        }
        result
    }

    /// Takes what the region has recorded since the last time.
    pub fn take(&mut self, service: &RegionService) {
        let mut bytes = std::mem::take(&mut self.spare);
        self.taken_at = Some(Instant::now());
        let taken = service.enter(|region| Some((region.take_records(&mut bytes)?, region.recorded_bytes())));
        if let Some(taken) = taken {
            self.taken_up_to(taken, bytes, service);
        }
    }

    /// The same, with all that others have dispatched by then; and looks at the region as it is behind the last of these records.
    pub fn take_and<T>(&mut self, service: &RegionService, look: impl FnOnce(&mut Region) -> T) -> T {
        let mut bytes = Vec::new();
        self.taken_at = Some(Instant::now());
        let (taken, seen) = service.enter(|region| {
            region.reap();
            let taken = region
                .take_records(&mut bytes)
                .map(|last| (last, region.recorded_bytes()));
            (taken, look(region))
        });
        if let Some(taken) = taken {
            self.taken_up_to(taken, bytes, service);
        }
        seen
    }

    fn taken_up_to(&mut self, (last, recorded): (Lsn, u64), mut bytes: Vec<u8>, service: &RegionService) {
        (self.taken, self.taken_bytes) = (last, recorded);
        if bytes.is_empty() {
            self.spare = bytes;
            return;
        }
        MirrorRecord::seal(&mut bytes);
        self.backlog_bytes += bytes.len();
        self.backlog.push_back(Records { last, bytes });
        while self.backlog_bytes > backlog_max() {
            let Some(slowest) = self.slowest() else { break };
            tracing::warn!(
                region = service.id.0,
                node = slowest.node.0,
                "a copy is too far behind, and is made anew"
            );
            slowest.lose();
            self.trim();
        }
    }

    /// The one out of the set that is furthest behind.
    fn slowest(&mut self) -> Option<&mut Follower> {
        let behind = self
            .followers
            .iter_mut()
            .filter(|follower| !follower.in_sync && follower.needs().is_some());
        behind.min_by_key(|follower| follower.needs())
    }

    /// See [`LaneFeed::fills_up`]: does that come about for any?
    pub fn do_lanes_fill_up(&mut self) -> bool {
        let mut fill_up = false;
        for lane in self.followers.iter_mut().filter_map(|follower| follower.lane.as_mut()) {
            fill_up |= lane.fills_up();
        }
        fill_up
    }

    /// Lets go of records that everybody has.
    pub fn trim(&mut self) {
        let needed = self.followers.iter().filter_map(Follower::needs).min();
        while self
            .backlog
            .front()
            .is_some_and(|records| needed.is_none_or(|needed| records.last <= needed))
        {
            let records = self.backlog.pop_front().expect("there is a front");
            self.backlog_bytes -= records.bytes.len();
            if records.bytes.capacity() <= SPARE_MAX {
                self.spare = records.bytes;
            }
        }
    }

    /// A copy out of the set can be reached again: it gets what it has missed, unless it is not what it was.
    pub fn returned(&mut self, node: NodeId, place: LanePlace, service: &RegionService) -> Result<(), FsError> {
        let taken = self.taken;
        let is_waited_for = |follower: &&mut Follower| follower.standing == Standing::Whole && follower.lane.is_none();
        if let Some(follower) = self.follower(node).filter(is_waited_for) {
            follower.lane = Some(follower.follow_by(place, service, taken)?);
        }
        Ok(())
    }

    /// Is this a copy out of the set that cannot be reached, and would have to get only what it has missed?
    pub fn is_missed(&self, node: NodeId) -> bool {
        let missed =
            |follower: &Follower| !follower.in_sync && follower.standing == Standing::Whole && follower.lane.is_none();
        self.followers
            .iter()
            .any(|follower| follower.node == node && missed(follower))
    }

    /// As [`Self::is_missed`], and it cannot have what it has missed: it is made anew.
    pub fn lose_missed(&mut self, node: NodeId) {
        if self.is_missed(node)
            && let Some(follower) = self.follower(node)
        {
            follower.lose();
        }
    }

    /// A copy is begun behind the last record there is. The region is captured from here on.
    pub fn begin_fill(&mut self, node: NodeId, service: &RegionService) -> Lsn {
        let taken = self.taken;
        service.enter(|region| {
            if region.captured().is_none() {
                region.capture(taken);
            }
        });
        self.take(service);
        let from = self.taken;
        if !planted(Planted::EarlierDecisionsUnnoted) {
            service.enter(|region| region.note_decisions());
        }
        if let Some(follower) = self.follower(node) {
            follower.standing = Standing::Filling(from);
            follower.lane = None;
        }
        from
    }

    /// All that the region held has been copied. With the records that have come since then, the copy is whole: true. Or there are more
    /// than it gets at a time: it is to be called again.
    ///
    /// # Errors
    /// They could not be sent; or there are too many of them since.
    pub async fn filled(
        &mut self,
        node: NodeId,
        from: Lsn,
        lane: &mut Option<Box<LaneFeed>>,
        service: &RegionService,
        links: &Rc<Links>,
    ) -> Result<bool, FsError> {
        self.take(service);
        let is_filled = self
            .follower(node)
            .is_some_and(|follower| follower.standing == Standing::Filling(from));
        let Some(filled) = lane.as_mut().filter(|_| is_filled) else {
            return Err(FsError::Io("too much has changed meanwhile".into()));
        };
        let before = filled.sent();
        filled.send(node, service, links, &self.backlog, CATCH_UP).await?;
        match filled.sent() {
            sent if sent >= self.taken => {}
            sent if sent > before => return Ok(false),
            sent => return Err(FsError::Io(format!("no record is kept behind number {}", sent.0))),
        }
        filled.apply(node, service, links, true).await?;
        let has = filled.sent();
        if let Some(follower) = self.follower(node) {
            follower.standing = Standing::Whole;
            follower.has = has;
            follower.lane = lane.take();
            follower.away_since = None;
        }
        Ok(true)
    }

    /// Nobody follows: nothing is kept for anybody.
    pub fn rest_if_idle(&mut self, service: &RegionService) {
        if self
            .followers
            .iter()
            .all(|follower| follower.standing == Standing::Lost)
        {
            self.take(service);
            service.enter(|region| region.end_capture());
            self.trim();
        }
    }

    /// How far a copy has come that can be reached, and is getting what it has missed.
    pub fn catches_up(&self, node: NodeId) -> Option<Lsn> {
        let follower = self.followers.iter().find(|follower| follower.node == node)?;
        let is_behind = follower.standing == Standing::Whole && follower.lane.is_some() && follower.has < self.taken;
        is_behind.then_some(follower.has)
    }

    /// Has this copy all that was taken, as far as is known?
    pub fn is_current(&self, node: NodeId) -> bool {
        let follower = self.followers.iter().find(|follower| follower.node == node);
        follower.is_some_and(|follower| follower.lane.is_some() && follower.has == self.taken)
    }

    pub fn follower(&mut self, node: NodeId) -> Option<&mut Follower> {
        self.followers.iter_mut().find(|follower| follower.node == node)
    }
}
