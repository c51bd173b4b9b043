//! Who has a region's copies, and who may change that: the configurations of PacificA (Lin, Yang, Zhang, Zhou: PacificA: Replication
//! in log-based distributed storage systems, 2008), kept in the register.
//!
//! - The primary alone drops a mirror, and adds one that has everything.
//! - A mirror alone takes the primary's place.
//! - Each change is made from the set that its author has seen, or not at all: of two, one happens.
//!
//! The primary answers when every mirror of the set has what it answers. So a set is shrunk first, by the register, and only then
//! answers come without the lost mirror; and any mirror has all that was ever answered.
//!
//! [`crate::lease`] keeps the primary of an older set from answering.

use polvo_format::{Epoch, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A region's replicas.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ReplicaSet {
    epoch: Epoch,
    primary: NodeId,
    mirrors: BTreeSet<NodeId>,
}

/// Why a change is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The set has been changed since the author saw it.
    #[error("the region's replicas have changed since: they are of epoch {0} now")]
    Changed(Epoch),
    /// Only the primary may do that.
    #[error("node {0} is not the region's primary")]
    NotPrimary(NodeId),
    /// Only a mirror may do that, and that may be done to a mirror alone.
    #[error("node {0} is no mirror of the region")]
    NoMirror(NodeId),
    /// It has a copy already.
    #[error("node {0} has a copy of the region already")]
    HasCopy(NodeId),
}

impl ReplicaSet {
    /// The first set of a region.
    ///
    /// # Panics
    /// When the primary is among its mirrors.
    pub fn new(epoch: Epoch, primary: NodeId, mirrors: impl IntoIterator<Item = NodeId>) -> ReplicaSet {
        let mirrors: BTreeSet<NodeId> = mirrors.into_iter().collect();
        assert!(!mirrors.contains(&primary), "a node has one copy");
        ReplicaSet {
            epoch,
            primary,
            mirrors,
        }
    }

    /// Grows with each change.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Who serves the region.
    pub fn primary(&self) -> NodeId {
        self.primary
    }

    /// Who has all that was ever answered, beside the primary.
    pub fn mirrors(&self) -> impl Iterator<Item = NodeId> {
        self.mirrors.iter().copied()
    }

    fn may_change(&self, seen: Epoch) -> Result<(), Refused> {
        match seen == self.epoch {
            true => Ok(()),
            false => Err(Refused::Changed(self.epoch)),
        }
    }

    fn by_primary(&self, seen: Epoch, author: NodeId) -> Result<(), Refused> {
        self.may_change(seen)?;
        match author == self.primary {
            true => Ok(()),
            false => Err(Refused::NotPrimary(author)),
        }
    }

    fn next(&self, primary: NodeId, mirrors: BTreeSet<NodeId>) -> ReplicaSet {
        debug_assert!(!mirrors.contains(&primary), "a node has one copy");
        ReplicaSet {
            epoch: Epoch(self.epoch.0 + 1),
            primary,
            mirrors,
        }
    }

    /// The primary, who has seen the set of an epoch, goes on without a mirror.
    ///
    /// # Errors
    /// As the variants of [`Refused`] say.
    pub fn without_mirror(&self, seen: Epoch, author: NodeId, mirror: NodeId) -> Result<ReplicaSet, Refused> {
        self.by_primary(seen, author)?;
        let mut mirrors = self.mirrors.clone();
        match mirrors.remove(&mirror) {
            true => Ok(self.next(self.primary, mirrors)),
            false => Err(Refused::NoMirror(mirror)),
        }
    }

    /// The primary, who has seen the set of an epoch, has seen to it that another node has all that was answered, and will answer
    /// nothing more without it.
    ///
    /// # Errors
    /// As the variants of [`Refused`] say.
    pub fn with_mirror(&self, seen: Epoch, author: NodeId, mirror: NodeId) -> Result<ReplicaSet, Refused> {
        self.by_primary(seen, author)?;
        let mut mirrors = self.mirrors.clone();
        match mirror != self.primary && mirrors.insert(mirror) {
            true => Ok(self.next(self.primary, mirrors)),
            false => Err(Refused::HasCopy(mirror)),
        }
    }

    /// A mirror, who has seen the set of an epoch, takes the place of the primary, which has no copy that counts from here on.
    ///
    /// # Errors
    /// As the variants of [`Refused`] say.
    pub fn taken_over(&self, seen: Epoch, author: NodeId) -> Result<ReplicaSet, Refused> {
        self.may_change(seen)?;
        let mut mirrors = self.mirrors.clone();
        match mirrors.remove(&author) {
            true => Ok(self.next(author, mirrors)),
            false => Err(Refused::NoMirror(author)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_its_author_and_is_made_from_what_he_has_seen() {
        let [one, two, three, four] = [1, 2, 3, 4].map(NodeId);
        let first = ReplicaSet::new(Epoch(7), one, [two, three]);
        let smaller = first.without_mirror(Epoch(7), one, three).unwrap();
        assert_eq!(smaller, ReplicaSet::new(Epoch(8), one, [two]));
        assert_eq!(
            smaller.with_mirror(Epoch(8), one, four).unwrap(),
            ReplicaSet::new(Epoch(9), one, [two, four])
        );
        assert_eq!(
            first.taken_over(Epoch(7), three).unwrap(),
            ReplicaSet::new(Epoch(8), three, [two])
        );

        // of two who have seen the same set the second one is refused
        assert_eq!(smaller.taken_over(Epoch(7), two), Err(Refused::Changed(Epoch(8))));
        assert_eq!(
            smaller.without_mirror(Epoch(7), one, two),
            Err(Refused::Changed(Epoch(8)))
        );
        assert_eq!(
            smaller.taken_over(Epoch(8), three),
            Err(Refused::NoMirror(three)),
            "it was dropped"
        );
        assert_eq!(first.taken_over(Epoch(7), one), Err(Refused::NoMirror(one)));
        assert_eq!(
            first.without_mirror(Epoch(7), two, three),
            Err(Refused::NotPrimary(two))
        );
        assert_eq!(first.without_mirror(Epoch(7), one, four), Err(Refused::NoMirror(four)));
        assert_eq!(first.with_mirror(Epoch(7), two, four), Err(Refused::NotPrimary(two)));
        assert_eq!(first.with_mirror(Epoch(7), one, one), Err(Refused::HasCopy(one)));
        assert_eq!(first.with_mirror(Epoch(7), one, two), Err(Refused::HasCopy(two)));
    }
}
