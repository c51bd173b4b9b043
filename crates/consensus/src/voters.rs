//! Who votes.

use polvo_format::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The nodes that vote, and those that are to take their place.
///
/// A set is replaced by another one in two steps, each chosen by majorities of *both* sets (joint consensus: Ongaro and
/// Ousterhout, ATC 2014, section 6): first the next set comes to stand beside the present one, then it stands alone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Voters {
    now: BTreeSet<NodeId>,
    /// empty unless the voters are being replaced
    next: BTreeSet<NodeId>,
}

impl Voters {
    /// These alone; at least one.
    pub fn new(now: impl IntoIterator<Item = NodeId>) -> Voters {
        let now: BTreeSet<NodeId> = now.into_iter().collect();
        assert!(!now.is_empty(), "somebody votes");
        let next = BTreeSet::new();
        Voters { now, next }
    }

    /// With others who are to take their place. `None` while that is under way already, and where nothing would change.
    pub fn with_next(&self, next: impl IntoIterator<Item = NodeId>) -> Option<Voters> {
        let next: BTreeSet<NodeId> = next.into_iter().collect();
        let changes = self.next.is_empty() && !next.is_empty() && next != self.now;
        let now = self.now.clone();
        changes.then_some(Voters { now, next })
    }

    /// The others alone. `None` where there are none.
    pub fn finished(&self) -> Option<Voters> {
        (!self.next.is_empty()).then(|| Voters::new(self.next.iter().copied()))
    }

    /// Are they being replaced?
    pub fn is_joint(&self) -> bool {
        !self.next.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = NodeId> {
        self.now.union(&self.next).copied()
    }

    /// Those that vote now.
    pub fn now(&self) -> impl Iterator<Item = NodeId> {
        self.now.iter().copied()
    }

    /// Those that are to take their place; none unless they are being replaced.
    pub fn next(&self) -> impl Iterator<Item = NodeId> {
        self.next.iter().copied()
    }

    /// Is it one step from those to these? To the same ones is none, and as good.
    pub fn may_follow(&self, before: &Voters) -> bool {
        let begins = self.now == before.now && !before.is_joint();
        self == before || begins || before.finished().as_ref() == Some(self)
    }

    /// Are these a majority, of both sets where there are two?
    pub fn are_majority(&self, who: impl Fn(NodeId) -> bool) -> bool {
        let majority = |set: &BTreeSet<NodeId>| set.iter().filter(|node| who(**node)).count() > set.len() / 2;
        majority(&self.now) && (self.next.is_empty() || majority(&self.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u16]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn voters_are_replaced_in_two_steps_that_need_both_majorities() {
        let old = Voters::new(nodes(&[1, 2, 3]));
        assert!(old.are_majority(|node| node.0 <= 2) && !old.are_majority(|node| node.0 == 1));
        assert_eq!((old.with_next(nodes(&[3, 2, 1])), old.with_next([])), (None, None));
        assert_eq!(old.finished(), None);
        let joint = old.with_next(nodes(&[3, 4, 5])).unwrap();
        assert!(joint.is_joint() && joint.all().eq(nodes(&[1, 2, 3, 4, 5])));
        assert!(!joint.are_majority(|node| node.0 <= 3), "one of the next");
        assert!(!joint.are_majority(|node| node.0 >= 3), "one of the present");
        assert!(joint.are_majority(|node| [1, 3, 4].contains(&node.0)));
        assert_eq!(joint.with_next(nodes(&[6])), None);
        assert_eq!(joint.finished(), Some(Voters::new(nodes(&[3, 4, 5]))));
        assert!(
            !Voters::new(nodes(&[1, 2])).are_majority(|node| node.0 == 1),
            "half is none"
        );
        let alone = joint.finished().unwrap();
        let steps = [&old, &joint, &alone];
        for (before, step) in (0..).zip(steps) {
            for (after, voters) in (0..).zip(steps) {
                let one_step = after == before || after == before + 1;
                assert_eq!(voters.may_follow(step), one_step, "from {before} to {after}");
            }
        }
        assert!(!old.with_next(nodes(&[1])).unwrap().may_follow(&joint), "others");
    }
}
