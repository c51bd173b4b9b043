//! The byte ranges that one owner has locked in one file: sorted, apart from each other, neighbours of a kind joined.

use polvo_proto::{LockMode, LockRange, Locked};

fn continues(held: &Locked, next: &Locked) -> bool {
    held.mode == next.mode && held.pid == next.pid && held.range.last + 1 == next.range.first
}

/// What one owner has locked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeLocks(Vec<Locked>);

impl RangeLocks {
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is locked, in the order of bytes.
    pub fn iter(&self) -> impl Iterator<Item = &Locked> {
        self.0.iter()
    }

    /// Whether all of a range is locked in that mode.
    pub fn covers(&self, range: LockRange, mode: LockMode) -> bool {
        let first = self.0.partition_point(|held| held.range.last < range.first);
        let mut next = range.first;
        for held in &self.0[first..] {
            if held.range.first > next || held.mode != mode {
                return false;
            }
            if held.range.last >= range.last {
                return true;
            }
            next = held.range.last + 1;
        }
        false
    }

    /// Locks a range, whatever of it the owner had locked in any mode.
    pub fn set(&mut self, new: Locked) {
        debug_assert!(new.range.first <= new.range.last, "a range has bytes");
        let at = self.cut(new.range);
        self.0.insert(at, new);
        self.join(at);
        if at > 0 {
            self.join(at - 1);
        }
        self.check_around(at);
        debug_assert!(
            self.conflict(new.range, LockMode::Exclusive).is_some(),
            "what was locked is in the way of others"
        );
    }

    /// Ranges beside a place are sorted, apart from each other, and joined where they belong together.
    fn check_around(&self, at: usize) {
        for pair in self.0[at.saturating_sub(1)..self.0.len().min(at + 2)].windows(2) {
            debug_assert!(pair[0].range.last < pair[1].range.first, "ranges of one owner overlap");
            debug_assert!(!continues(&pair[0], &pair[1]), "neighbours of a kind are one range");
        }
    }

    /// Unlocks a range.
    pub fn clear(&mut self, range: LockRange) {
        let at = self.cut(range);
        self.check_around(at);
        debug_assert!(
            self.conflict(range, LockMode::Exclusive).is_none(),
            "what was unlocked is free"
        );
    }

    /// The first of the ranges that keeps somebody else from locking a range.
    pub fn conflict(&self, range: LockRange, mode: LockMode) -> Option<&Locked> {
        let first = self.0.partition_point(|held| held.range.last < range.first);
        self.0[first..]
            .iter()
            .take_while(|held| held.range.first <= range.last)
            .find(|held| held.mode.excludes(mode))
    }

    /// Takes a range out, splitting what reaches beyond it; returns where it was.
    fn cut(&mut self, range: LockRange) -> usize {
        let start = self.0.partition_point(|held| held.range.last < range.first);
        let end = self.0.partition_point(|held| held.range.first <= range.last);
        let part = |held: &Locked, first, last| Locked {
            range: LockRange { first, last },
            ..*held
        };
        let before = self.0[start..end]
            .first()
            .filter(|held| held.range.first < range.first)
            .map(|held| part(held, held.range.first, range.first - 1));
        let after = self.0[start..end]
            .last()
            .filter(|held| held.range.last > range.last)
            .map(|held| part(held, range.last + 1, held.range.last));
        debug_assert!(start <= end, "ranges of one owner are sorted");
        self.0.splice(start..end, before.into_iter().chain(after));
        start + usize::from(before.is_some())
    }

    /// Joins a range with the next one if they belong together.
    fn join(&mut self, at: usize) {
        if let [held, next, ..] = &mut self.0[at..]
            && continues(held, next)
        {
            debug_assert!(held.range.last < next.range.last, "the later one ends later");
            held.range.last = next.range.last;
            self.0.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 24;

    #[derive(Clone, Debug)]
    enum Step {
        Set(Locked),
        Clear(LockRange),
        Ask(LockRange, LockMode),
    }

    /// Small ranges, and some that reach to the end of all files.
    fn ranges() -> impl Strategy<Value = LockRange> {
        (0..BYTES, 0..BYTES, any::<bool>()).prop_map(|(a, b, to_end)| LockRange {
            first: a.min(b),
            last: if to_end { LockRange::END } else { a.max(b) },
        })
    }

    fn modes() -> impl Strategy<Value = LockMode> {
        prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)]
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            (ranges(), modes(), 1..3u32).prop_map(|(range, mode, pid)| Step::Set(Locked { range, mode, pid })),
            ranges().prop_map(Step::Clear),
            (ranges(), modes()).prop_map(|(range, mode)| Step::Ask(range, mode)),
        ]
    }

    /// A byte a place; the last one stands for all that follow.
    type Model = [Option<(LockMode, u32)>; BYTES as usize + 1];

    fn covered(range: LockRange) -> std::ops::RangeInclusive<usize> {
        range.first as usize..=range.last.min(BYTES) as usize
    }

    proptest! {
        #[test]
        fn as_a_model_that_has_every_byte_by_itself(steps in prop::collection::vec(steps(), 1..60)) {
            let mut locks = RangeLocks::default();
            let mut model: Model = [None; BYTES as usize + 1];
            for step in steps {
                match step {
                    Step::Set(new) => {
                        locks.set(new);
                        model[covered(new.range)].fill(Some((new.mode, new.pid)));
                    }
                    Step::Clear(range) => {
                        locks.clear(range);
                        model[covered(range)].fill(None);
                    }
                    Step::Ask(range, mode) => {
                        let in_the_way = model[covered(range)].iter().flatten().any(|(held, _)| held.excludes(mode));
                        prop_assert_eq!(locks.conflict(range, mode).is_some(), in_the_way);
                        let all = model[covered(range)].iter().all(|held| held.is_some_and(|(held, _)| held == mode));
                        prop_assert_eq!(locks.covers(range, mode), all);
                    }
                }
                let mut bytes: Model = [None; BYTES as usize + 1];
                for held in &locks.0 {
                    prop_assert!(held.range.is_sane());
                    bytes[covered(held.range)].fill(Some((held.mode, held.pid)));
                }
                prop_assert_eq!(&bytes, &model);
                for pair in locks.0.windows(2) {
                    prop_assert!(pair[0].range.last < pair[1].range.first, "sorted and apart");
                    prop_assert!(!continues(&pair[0], &pair[1]), "neighbours of a kind are one");
                }
            }
        }
    }
}
