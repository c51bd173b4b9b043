//! Primary and mirrors watch each other: a primary answers as long as it has a lease of each of its mirrors, and a mirror takes over
//! when it has heard nothing for longer than any lease lasts.
//!
//! A *beacon* is a word that the primary stores in the mirror's memory by a one-sided write, without the mirror's CPU. It gives the
//! primary a lease from when it was posted, once the completion says that it has landed. The mirror counts from when it has
//! noticed, which is later.
//!
//! ```text
//! primary     post --------------------- lease ----------------------|
//!                \          / completed
//! mirror          landed --- noticed ------------------ grace ---------------------| revoke, look again, take over
//! ```
//!
//! Before a mirror takes over it *revokes* the beacon's key, so that none lands any more, and looks once more: had it looked before, a
//! beacon that lands in between would give a lease of which it does not know.
//!
//! Clocks need not agree, only run alike: the grace is longer than the lease by what they may drift apart ([`Terms::new`]).

use crate::replica_set::ReplicaSet;
use polvo_format::NodeId;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long leases last. Times are of a node's own clock, from any beginning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Terms {
    lease: Duration,
    grace: Duration,
}

impl Terms {
    /// `drift`: by how many in a thousand a clock may run too fast or too slow. `None` where that leaves no time between the
    /// longest lease and the shortest grace.
    pub fn new(lease: Duration, grace: Duration, drift: u32) -> Option<Terms> {
        let longest = lease * (1000 + drift);
        let shortest = grace * 1000u32.checked_sub(drift)?;
        (longest < shortest).then_some(Terms { lease, grace })
    }
}

/// What a primary knows of its mirrors.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Leases {
    /// when the last beacon was posted that has landed
    posted: BTreeMap<NodeId, Duration>,
}

impl Leases {
    /// A beacon that was posted then has landed.
    pub fn landed(&mut self, mirror: NodeId, posted: Duration) {
        let known = self.posted.entry(mirror).or_default();
        *known = (*known).max(posted);
    }

    fn has(&self, terms: Terms, mirror: NodeId, now: Duration) -> bool {
        self.posted
            .get(&mirror)
            .is_some_and(|posted| now < *posted + terms.lease)
    }

    /// May the primary of this set answer?
    pub fn may_answer(&self, terms: Terms, set: &ReplicaSet, now: Duration) -> bool {
        set.mirrors().all(|mirror| self.has(terms, mirror, now))
    }

    /// Mirrors that have not been reached for so long that answers wait: to be dropped from the set.
    pub fn lost(&self, terms: Terms, set: &ReplicaSet, now: Duration) -> impl Iterator<Item = NodeId> {
        set.mirrors().filter(move |mirror| !self.has(terms, *mirror, now))
    }
}

/// What a mirror knows of its primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Watch {
    beacon: u64,
    heard: Duration,
}

impl Watch {
    /// From here on; what the beacon's word holds.
    pub fn begin(beacon: u64, now: Duration) -> Watch {
        Watch { beacon, heard: now }
    }

    /// Looks at the beacon. True: it has changed.
    pub fn look(&mut self, beacon: u64, now: Duration) -> bool {
        let changed = beacon != self.beacon;
        if changed {
            *self = Watch::begin(beacon, now);
        }
        changed
    }

    /// Has nothing been heard for so long that no lease can last? Then the beacon's key is revoked, and after that it is looked
    /// at again ([`Self::look`]): if it has changed, the mirror goes on watching; if not, it may take over.
    pub fn is_over(&self, terms: Terms, now: Duration) -> bool {
        now >= self.heard + terms.grace
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Epoch;

    const S: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_grace_is_longer_than_a_lease_by_what_clocks_drift() {
        assert!(Terms::new(S(1000), S(1500), 10).is_some());
        assert!(Terms::new(S(1000), S(1000), 0).is_none());
        assert!(
            Terms::new(S(1000), S(1020), 10).is_none(),
            "1010 by the fast clock, 1009.8 by the slow one"
        );
        assert!(Terms::new(S(1000), S(1021), 10).is_some());
        assert!(Terms::new(S(1), S(1_000_000), 1000).is_none() && Terms::new(S(1), S(1_000_000), 2000).is_none());
    }

    #[test]
    fn leases_count_from_posting_and_watches_from_noticing() {
        let terms = Terms::new(S(1000), S(1500), 10).unwrap();
        let (mirror, other) = (NodeId(2), NodeId(3));
        let set = ReplicaSet::new(Epoch(1), NodeId(1), [mirror, other]);
        let mut leases = Leases::default();
        leases.landed(mirror, S(500));
        leases.landed(mirror, S(200)); // late
        assert!(!leases.may_answer(terms, &set, S(600)) && leases.lost(terms, &set, S(600)).eq([other]));
        leases.landed(other, S(600));
        assert!(leases.may_answer(terms, &set, S(1499)) && !leases.may_answer(terms, &set, S(1500)));
        assert!(leases.lost(terms, &set, S(1500)).eq([mirror]));
        assert!(
            Leases::default().may_answer(terms, &ReplicaSet::new(Epoch(1), mirror, []), S(9)),
            "alone"
        );

        let mut watch = Watch::begin(7, S(100));
        assert!(!watch.is_over(terms, S(1599)) && watch.is_over(terms, S(1600)));
        assert!(watch.look(8, S(1600)) && !watch.look(8, S(1700)));
        assert!(!watch.is_over(terms, S(3099)) && watch.is_over(terms, S(3100)));
    }
}
