//! Which parts of a file an index knows: ranges of offsets that neither overlap nor touch.

use std::ops::Range;

/// Ranges of offsets, ascending. Nearly always one; each further one has come with an answer of the primary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KnownRanges(Vec<Range<u64>>);

impl KnownRanges {
    /// One range; `u64::MAX` ends one without an end.
    pub(crate) fn one(range: Range<u64>) -> KnownRanges {
        debug_assert!(range.start < range.end, "a range has offsets");
        KnownRanges(vec![range])
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Up to where all is known from an offset on; the offset itself if it is not known.
    pub(crate) fn known_from(&self, offset: u64) -> u64 {
        let at = self.0.partition_point(|known| known.end <= offset);
        let to = match self.0.get(at) {
            Some(known) if known.start <= offset => known.end,
            _ => offset,
        };
        debug_assert!(to >= offset, "what is known from an offset on does not lie before it");
        to
    }

    /// The parts of a range that are known, ascending.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|known| known.end <= range.start);
        let overlapping = self.0[first..].iter().take_while(move |known| known.start < range.end);
        overlapping.map(move |known| known.start.max(range.start)..known.end.min(range.end))
    }

    /// The parts of a range that are not known, ascending.
    pub(crate) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for known in self.within(range.clone()) {
            if at < known.start {
                gaps.push(at..known.start);
            }
            at = known.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        debug_assert!(
            gaps.iter().all(|gap| gap.start < gap.end) && gaps.is_sorted_by(|a, b| a.end < b.start),
            "gaps have offsets, and what is known lies between them"
        );
        gaps
    }

    /// A range is known from now on.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|known| known.end < range.start);
        let behind = first + self.0[first..].partition_point(|known| known.start <= range.end);
        let joined = &self.0[first..behind];
        let start = joined.first().map_or(range.start, |known| known.start.min(range.start));
        let end = joined.last().map_or(range.end, |known| known.end.max(range.end));
        debug_assert!(start <= range.start && end >= range.end, "what was added is known");
        self.0.splice(first..behind, std::iter::once(start..end));
        let beside = &self.0[first.saturating_sub(1)..self.0.len().min(first + 2)];
        debug_assert!(
            beside.is_sorted_by(|a, b| a.end < b.start),
            "ranges neither overlap nor touch"
        );
    }

    /// Nothing is known any more.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_equal_a_set_of_offsets(
            added in prop::collection::vec((0..200u64, 0..40u64), 0..30), from in 0..240u64, len in 0..100u64,
        ) {
            let mut ranges = KnownRanges::default();
            let mut model = vec![false; 400];
            for (start, len) in added {
                ranges.add(start..start + len);
                model[start as usize..(start + len) as usize].fill(true);
            }
            prop_assert!(ranges.0.is_sorted_by(|a, b| a.end < b.start), "apart: {ranges:?}");
            let asked = from..from + len;
            let is_in = |parts: &[Range<u64>], at: u64| parts.iter().any(|part| part.contains(&at));
            let (within, gaps): (Vec<_>, _) = (ranges.within(asked.clone()).collect(), ranges.gaps(asked.clone()));
            for at in 0..400u64 {
                let known = model[at as usize];
                prop_assert_eq!(is_in(&within, at), known && asked.contains(&at));
                prop_assert_eq!(is_in(&gaps, at), !known && asked.contains(&at));
            }
            let known = (from..400).take_while(|at| model[*at as usize]).count() as u64;
            prop_assert_eq!(ranges.known_from(from), from + known);
        }
    }

    #[test]
    fn a_range_without_an_end_takes_what_follows() {
        let mut ranges = KnownRanges::one(10..20);
        ranges.add(30..u64::MAX);
        assert_eq!(
            (ranges.len(), ranges.known_from(15), ranges.known_from(20)),
            (2, 20, 20)
        );
        ranges.add(20..30);
        assert_eq!((ranges.len(), ranges.known_from(15)), (1, u64::MAX));
        ranges.clear();
        assert_eq!(ranges.known_from(15), 15);
    }
}
