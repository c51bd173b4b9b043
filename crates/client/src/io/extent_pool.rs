//! Space that a region has delegated to this session: where client-active writes put their data before they commit.
//!
//! Pure bookkeeping. How much to keep in hand follows the writes: twice the largest recent one,
//! between [`TARGET_MIN`] and [`TARGET_MAX`] pages, so that the commit of a write brings the space of the next and
//! small writers do not hoard.

use crate::client::is_at_same_node;
use parking_lot::Mutex;
use polvo_format::{Gpa, PAGE, RegionId};
use polvo_proto::{PageRun, SegmentPlace};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Least pages to keep in hand once a region is written to.
pub(crate) const TARGET_MIN: u64 = 64;
/// Most pages to keep in hand.
pub(crate) const TARGET_MAX: u64 = 2048;

/// Pages of one region in hand.
#[derive(Debug, Default)]
pub(crate) struct RegionSpace {
    runs: Vec<PageRun>,
    pages: u64,
    target: u64,
    used: bool,
}

impl RegionSpace {
    /// Pages in hand.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes `need` pages, in as few runs as can be found quickly; `None` (and nothing taken) when there are too few.
    pub(crate) fn take(&mut self, need: u64) -> Option<Vec<PageRun>> {
        self.used = true;
        if need > self.pages && self.target > 0 {
            self.target *= 2; // several writers at a time: the commits of one do not bring enough for all
        }
        self.target = self.target.max(2 * need).clamp(TARGET_MIN, TARGET_MAX);
        if need > self.pages {
            return None;
        }
        debug_assert!(self.counts_its_runs());
        self.pages -= need;
        let fits = self
            .runs
            .iter()
            .enumerate()
            .filter(|(_, run)| u64::from(run.pages) >= need);
        if let Some((at, _)) = fits.min_by_key(|(_, run)| run.pages) {
            let run = self.take_from(at, need);
            debug_assert!(u64::from(run.pages) == need && self.counts_its_runs());
            return Some(vec![run]);
        }
        let mut taken = Vec::new();
        let mut missing = need;
        while missing > 0 {
            let largest = (0..self.runs.len()).max_by_key(|&at| self.runs[at].pages);
            let at = largest.expect("the pages counted are in the runs");
            let run = self.take_from(at, missing.min(u64::from(self.runs[at].pages)));
            missing -= u64::from(run.pages);
            taken.push(run);
        }
        debug_assert!(self.counts_its_runs());
        debug_assert_eq!(taken.iter().map(|run| u64::from(run.pages)).sum::<u64>(), need);
        Some(taken)
    }

    /// Pages in hand are those of the runs, each of which has some.
    fn counts_its_runs(&self) -> bool {
        self.runs.iter().map(|run| u64::from(run.pages)).sum::<u64>() == self.pages
            && self.runs.iter().all(|run| run.pages > 0)
    }

    /// Takes everything.
    pub(crate) fn take_all(&mut self) -> Vec<PageRun> {
        debug_assert!(self.counts_its_runs());
        self.pages = 0;
        std::mem::take(&mut self.runs)
    }

    /// Adds runs: new ones, or ones that were taken and not used.
    pub(crate) fn put(&mut self, runs: impl IntoIterator<Item = PageRun>) {
        for run in runs {
            if run.pages > 0 {
                self.pages += u64::from(run.pages);
                self.runs.push(run);
            }
        }
        debug_assert!(self.counts_its_runs());
    }

    /// Pages to ask for along with a commit, so that the next writes need not ask.
    pub(crate) fn want(&self) -> u32 {
        debug_assert!(self.target <= TARGET_MAX, "no more is kept in hand");
        if self.pages >= self.target * 3 / 4 {
            0
        } else {
            (self.target - self.pages) as u32
        }
    }

    /// Called now and then: what is in excess. A region not written to since the last call gives back everything, and
    /// forgets how much it wanted.
    pub(crate) fn excess(&mut self) -> Vec<PageRun> {
        if std::mem::take(&mut self.used) {
            return Vec::new();
        }
        self.target = 0;
        self.take_all()
    }

    fn take_from(&mut self, at: usize, pages: u64) -> PageRun {
        let run = &mut self.runs[at];
        assert!(
            pages > 0 && pages <= u64::from(run.pages),
            "a run has the pages that are taken"
        );
        if u64::from(run.pages) == pages {
            return self.runs.swap_remove(at);
        }
        let taken = PageRun {
            gpa: run.gpa,
            pages: pages as u32,
        };
        run.gpa = Gpa(run.gpa.0 + pages * PAGE as u64);
        run.pages -= pages as u32;
        taken
    }
}

/// Pages that lie in the region as a whole.
fn sane(region: RegionId, run: &PageRun) -> bool {
    let page = PAGE as u64;
    let end = run.gpa.checked_add(u64::from(run.pages) * page);
    run.gpa.region() == region && run.gpa.0.is_multiple_of(page) && end.is_some()
}

/// Space in hand in all regions, each by the number of the session at its primary that it was given to: a region may move to another
/// node. They are gone through in order, so that a simulated run repeats. One short lock.
#[derive(Default)]
pub(crate) struct ExtentPool {
    regions: Mutex<Delegated>,
}

type Delegated = BTreeMap<(RegionId, u64), DelegatedExtents>;

struct DelegatedExtents {
    space: RegionSpace,
    /// When the primary last showed that it knows the session.
    confirmed: Instant,
    /// Segments that space was given in, as the answers named them. Only grows: each thread takes in what is new to it.
    places: Vec<SegmentPlace>,
}

/// Pages to be given back.
pub(crate) struct Surplus {
    pub region: RegionId,
    /// number of the session at the primary that they were given to
    pub session: u64,
    pub runs: Vec<PageRun>,
}

/// What there is of a region.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// The pages asked for.
    Runs(Vec<PageRun>),
    /// So many pages are missing, and so many are worth asking for.
    Short {
        /// pages
        missing: u64,
        /// pages
        want: u64,
    },
    /// The lease may have ended since the primary was last heard of: the space may be somebody else's by now.
    Unconfirmed,
}

impl ExtentPool {
    /// Takes pages of a region, obtained by the session of that number and confirmed within `lease`.
    pub(crate) fn take(&self, region: RegionId, incarnation: u64, need: u64, lease: Duration) -> Taken {
        let mut regions = self.regions.lock();
        let delegated = Self::delegated(&mut regions, region, incarnation);
        if delegated.space.pages() > 0 && delegated.confirmed.elapsed() >= lease {
            return Taken::Unconfirmed;
        }
        match delegated.space.take(need) {
            Some(runs) => Taken::Runs(runs),
            None => {
                let missing = need.checked_sub(delegated.space.pages());
                let missing = missing.expect("what is in hand was too little");
                assert!(missing > 0, "what was enough was taken");
                Taken::Short {
                    missing,
                    want: missing.max(u64::from(delegated.space.want())),
                }
            }
        }
    }

    /// The primary has just answered the session of that number, and given it these pages, which lie in these segments.
    pub(crate) fn receive(&self, region: RegionId, incarnation: u64, runs: Vec<PageRun>, places: Vec<SegmentPlace>) {
        let mut regions = self.regions.lock();
        let delegated = Self::delegated(&mut regions, region, incarnation);
        delegated.confirmed = Instant::now();
        delegated.space.put(runs.into_iter().filter(|run| sane(region, run)));
        for place in places {
            if !delegated.places.iter().rev().take(16).any(|known| *known == place) {
                delegated.places.push(place);
            }
        }
    }

    /// Segments named since the first `known` ones.
    pub(crate) fn places(&self, region: RegionId, incarnation: u64, known: usize) -> Vec<SegmentPlace> {
        let regions = self.regions.lock();
        let delegated = regions.get(&(region, incarnation));
        delegated
            .and_then(|delegated| delegated.places.get(known..))
            .unwrap_or_default()
            .to_vec()
    }

    /// Puts pages back that were taken and not used, unless they were lost meanwhile.
    pub(crate) fn put_back(&self, region: RegionId, incarnation: u64, runs: impl IntoIterator<Item = PageRun>) {
        if let Some(delegated) = self.regions.lock().get_mut(&(region, incarnation)) {
            delegated
                .space
                .put(runs.into_iter().inspect(|run| debug_assert!(sane(region, run))));
        }
    }

    /// Pages to ask for along with a commit.
    pub(crate) fn want(&self, region: RegionId, incarnation: u64) -> u32 {
        let regions = self.regions.lock();
        let delegated = regions.get(&(region, incarnation));
        delegated.map_or(0, |delegated| delegated.space.want())
    }

    /// The primary of the regions for which `there` holds has shown that it knows the session.
    pub(crate) fn confirm_where(&self, there: impl Fn(RegionId) -> bool) {
        let now = Instant::now();
        for ((region, _), delegated) in self.regions.lock().iter_mut() {
            if there(*region) {
                delegated.confirmed = now;
            }
        }
    }

    /// Takes everything of the regions for which `there` holds, to give it back.
    pub(crate) fn drain_where(&self, there: impl Fn(RegionId) -> bool) -> Vec<Surplus> {
        self.surplus(there, RegionSpace::take_all)
    }

    /// What regions not written to since the last call have in hand.
    pub(crate) fn excess(&self) -> Vec<Surplus> {
        self.surplus(|_| true, RegionSpace::excess)
    }

    fn surplus(
        &self,
        there: impl Fn(RegionId) -> bool,
        take: impl Fn(&mut RegionSpace) -> Vec<PageRun>,
    ) -> Vec<Surplus> {
        let mut regions = self.regions.lock();
        let extent_pool = regions.iter_mut().filter(|((region, _), _)| there(*region));
        let all = extent_pool.map(|((region, session), delegated)| Surplus {
            region: *region,
            session: *session,
            runs: take(&mut delegated.space),
        });
        all.filter(|surplus| !surplus.runs.is_empty()).collect()
    }

    /// The session at the primary of these regions was lost, and all that was given to it.
    pub(crate) fn forget_where(&self, there: impl Fn(RegionId) -> bool) {
        self.regions.lock().retain(|(region, _), _| !there(*region));
    }

    /// Pages in hand.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> u64 {
        self.regions
            .lock()
            .values()
            .map(|delegated| delegated.space.pages())
            .sum()
    }

    /// What there is of a region by that session; an older one at the same node is over.
    fn delegated(regions: &mut Delegated, region: RegionId, incarnation: u64) -> &mut DelegatedExtents {
        let key = (region, incarnation);
        if !regions.contains_key(&key) {
            regions.retain(|(of, session), _| {
                *of != region || *session > incarnation || !is_at_same_node(*session, incarnation)
            });
            let begun = DelegatedExtents {
                space: RegionSpace::default(),
                confirmed: Instant::now(),
                places: Vec::new(),
            };
            regions.insert(key, begun);
        }
        regions.get_mut(&key).expect("it is there, or was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn pages(runs: &[PageRun]) -> Vec<u64> {
        runs.iter()
            .flat_map(|r| (0..u64::from(r.pages)).map(|p| r.gpa.0 + p * PAGE as u64))
            .collect()
    }

    proptest! {
        /// No page is handed out twice and none is lost, whatever is taken and put back.
        #[test]
        fn pages_are_conserved(steps in prop::collection::vec((0u8..4, 1u64..40), 1..80)) {
            let mut space = RegionSpace::default();
            let mut out: Vec<PageRun> = Vec::new();
            let mut given = 0u64;
            for (what, n) in steps {
                match what {
                    0 => {
                        space.put([PageRun { gpa: Gpa(given * PAGE as u64), pages: n as u32 }]);
                        given += n;
                    }
                    1 | 2 => match space.take(n) {
                        Some(runs) => {
                            prop_assert_eq!(pages(&runs).len() as u64, n);
                            out.extend(runs);
                        }
                        None => prop_assert!(space.pages() < n),
                    },
                    _ => space.put(out.drain(..)),
                }
            }
            let mut all = pages(&out);
            prop_assert_eq!(all.len() as u64 + space.pages(), given);
            all.extend(pages(&space.take_all()));
            prop_assert_eq!(all.iter().collect::<HashSet<_>>().len() as u64, given);
        }
    }

    #[test]
    fn one_run_when_one_fits() {
        let mut space = RegionSpace::default();
        space.put([
            PageRun {
                gpa: Gpa(0),
                pages: 100,
            },
            PageRun {
                gpa: Gpa(1 << 20),
                pages: 10,
            },
        ]);
        assert_eq!(
            space.take(8),
            Some(vec![PageRun {
                gpa: Gpa(1 << 20),
                pages: 8
            }])
        );
        assert_eq!(space.take(103), None);
        assert_eq!(space.pages(), 102);
    }

    #[test]
    fn wants_follow_the_writes_and_idleness_returns_all() {
        let mut space = RegionSpace::default();
        assert_eq!(space.want(), 0);
        assert_eq!(space.take(256), None);
        assert_eq!(space.want(), 512);
        space.put([PageRun {
            gpa: Gpa(0),
            pages: 512,
        }]);
        assert_eq!(space.want(), 0);
        assert!(space.take(256).is_some());
        assert_eq!(space.want(), 256);
        assert!(space.excess().is_empty());
        assert_eq!(pages(&space.excess()).len(), 256);
        assert_eq!((space.pages(), space.want()), (0, 0));
    }

    const REGION: RegionId = RegionId(3);
    const LEASE: Duration = Duration::from_secs(20);

    fn run(pages: u32) -> PageRun {
        PageRun {
            gpa: Gpa::new(REGION, polvo_format::RegionOffset(1 << 20)),
            pages,
        }
    }

    #[test]
    fn space_of_a_lost_session_is_never_handed_out() {
        let extent_pool = ExtentPool::default();
        extent_pool.receive(REGION, 1, vec![run(100)], vec![]);
        assert!(matches!(extent_pool.take(REGION, 1, 10, LEASE), Taken::Runs(_)));
        assert!(matches!(
            extent_pool.take(REGION, 2, 10, LEASE),
            Taken::Short { missing: 10, .. }
        ));
        extent_pool.put_back(REGION, 1, [run(10)]);
        assert_eq!(extent_pool.pages(), 0, "given to a session that is gone");
        extent_pool.receive(REGION, 2, vec![run(10)], vec![]);
        extent_pool.forget_where(|region| region == REGION);
        assert_eq!(extent_pool.pages(), 0);
        extent_pool.put_back(REGION, 2, [run(10)]);
        assert_eq!(extent_pool.pages(), 0, "the node may have given them to somebody since");
        assert!(extent_pool.excess().is_empty());
    }

    /// Numbers of sessions grow at each node, not from one node to the other.
    #[test]
    fn a_region_may_move_to_any_node() {
        let extent_pool = ExtentPool::default();
        let at = |node: u64, lost| node << 32 | lost;
        for session in [at(3, 1), at(0, 1), at(1, 7), at(0, 2)] {
            extent_pool.receive(REGION, session, vec![run(100)], vec![]);
            let all = extent_pool.take(REGION, session, 100, LEASE);
            assert_eq!(all, Taken::Runs(vec![run(100)]), "given to session {session:x}");
            extent_pool.put_back(REGION, session, [run(1)]);
        }
        assert_eq!(extent_pool.pages(), 3, "of each node's last session");
        let surplus = extent_pool.drain_where(|_| true);
        let sessions: Vec<u64> = surplus.iter().map(|surplus| surplus.session).collect();
        assert_eq!(sessions, [at(0, 2), at(1, 7), at(3, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn space_is_used_only_while_the_lease_surely_lasts() {
        let extent_pool = ExtentPool::default();
        extent_pool.receive(REGION, 1, vec![run(100)], vec![]);
        tokio::time::advance(LEASE).await;
        assert_eq!(extent_pool.take(REGION, 1, 10, LEASE), Taken::Unconfirmed);
        extent_pool.confirm_where(|region| region == REGION);
        assert!(matches!(extent_pool.take(REGION, 1, 10, LEASE), Taken::Runs(_)));
        assert_eq!(extent_pool.drain_where(|_| true).len(), 1);
        assert!(extent_pool.drain_where(|_| true).is_empty());
    }
}
