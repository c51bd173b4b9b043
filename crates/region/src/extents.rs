//! Extents by file offset, in order: sorted leaves under one array of where each begins. A file that was overwritten page by
//! page has very many of them, and finding one costs what is read from memory: here a line or two of a leaf, where a tree of
//! small nodes reads several of each.

use polvo_format::Gpa;
use polvo_pmem::fetch;

/// Most extents of a leaf.
const LEAF_MAX: usize = 128;
/// Marks the length of an extent whose bytes lie in a log entry. No file is so long.
const INLINE: u64 = 1 << 63;

/// A mapped range of a file. In the index it is found by its offset in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapped {
    pub len: u64,
    pub gpa: Gpa,
    /// the bytes lie in a log entry, not in a data page
    pub inline: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    offset: u64,
    /// with [`INLINE`]
    len: u64,
    gpa: Gpa,
}

impl Slot {
    fn new(offset: u64, mapped: Mapped) -> Slot {
        Slot {
            offset,
            len: mapped.len | if mapped.inline { INLINE } else { 0 },
            gpa: mapped.gpa,
        }
    }

    fn mapped(&self) -> Mapped {
        Mapped {
            len: self.len & !INLINE,
            gpa: self.gpa,
            inline: self.len & INLINE != 0,
        }
    }

    fn get(&self) -> (u64, Mapped) {
        (self.offset, self.mapped())
    }
}

/// A place in the order of extents. Changes make it meaningless.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    leaf: usize,
    at: usize,
}

/// Extents in order of their offsets.
pub(crate) struct Extents {
    /// Least offset that belongs into each leaf; ascending, 0 first.
    starts: Vec<u64>,
    /// None is empty but the only one.
    leaves: Vec<Vec<Slot>>,
    len: usize,
}

impl Default for Extents {
    fn default() -> Extents {
        Extents {
            starts: vec![0],
            leaves: vec![Vec::new()],
            len: 0,
        }
    }
}

impl Extents {
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The place of the first extent at or after an offset, or behind the last one of its leaf.
    pub fn find(&self, offset: u64) -> Place {
        let (leaf, guess) = self.guess(offset);
        let place = Place {
            leaf,
            at: search_from(&self.leaves[leaf], guess, offset),
        };
        debug_assert!(
            self.at(place).is_none_or(|(at, _)| at >= offset),
            "the first at or after {offset}"
        );
        debug_assert!(
            self.before(place).is_none_or(|(at, _)| at < offset),
            "the first at or after {offset}"
        );
        place
    }

    /// The place of the extent that covers an offset, or else as [`Self::find`].
    pub fn find_covering(&self, offset: u64) -> Place {
        let place = self.find(offset);
        if self.at(place).is_some_and(|(at, _)| at == offset) {
            return place;
        }
        let covers = |before: &Place| self.at(*before).is_some_and(|(at, e)| at + e.len > offset);
        self.place_before(place).filter(covers).unwrap_or(place)
    }

    /// Has what [`Self::find`] reads first fetched, which is in no cache where there are many extents.
    pub fn fetch(&self, offset: u64) {
        let (leaf, guess) = self.guess(offset);
        if let Some(slot) = self.leaves[leaf].get(guess) {
            fetch(slot);
        }
    }

    /// The leaf that an offset belongs into, and where in it an extent is likely to be that begins there.
    fn guess(&self, offset: u64) -> (usize, usize) {
        let leaf = match self.starts.len() {
            1 => 0,
            _ => self.starts.partition_point(|start| *start <= offset) - 1,
        };
        let len = self.leaves[leaf].len();
        let guess = match self.starts.get(leaf + 1) {
            Some(next) => guess(len, offset - self.starts[leaf], next - self.starts[leaf]),
            None => len / 2,
        };
        (leaf, guess)
    }

    /// The extent at a place; `None` behind the last one.
    pub fn at(&self, place: Place) -> Option<(u64, Mapped)> {
        let slot = self.leaves[place.leaf].get(place.at);
        // no leaf but the only one is empty
        let slot = slot.or_else(|| self.leaves.get(place.leaf + 1)?.first());
        slot.map(Slot::get)
    }

    fn place_before(&self, place: Place) -> Option<Place> {
        if place.at > 0 {
            return Some(Place {
                at: place.at - 1,
                ..place
            });
        }
        let leaf = place.leaf.checked_sub(1)?;
        let at = self.leaves[leaf].len() - 1;
        Some(Place { leaf, at })
    }

    /// The extent before a place.
    pub fn before(&self, place: Place) -> Option<(u64, Mapped)> {
        self.at(self.place_before(place)?)
    }

    /// The extent after the one at a place.
    pub fn after(&self, place: Place) -> Option<(u64, Mapped)> {
        self.at(Place {
            at: place.at + 1,
            ..place
        })
    }

    /// Changes the extent at a place, which begins where it did.
    pub fn set(&mut self, place: Place, mapped: Mapped) {
        debug_assert!(mapped.len > 0 && mapped.len & INLINE == 0, "an extent has bytes");
        let next = self.after(place).map(|(at, _)| at);
        let slot = &mut self.leaves[place.leaf][place.at];
        debug_assert!(
            next.is_none_or(|next| slot.offset + mapped.len <= next),
            "extents do not overlap"
        );
        *slot = Slot::new(slot.offset, mapped);
    }

    /// Changes the extent before a place.
    pub fn set_before(&mut self, place: Place, mapped: Mapped) {
        let before = self.place_before(place).expect("there is one before");
        self.set(before, mapped);
    }

    /// Enters an extent at an offset where none begins.
    pub fn insert(&mut self, offset: u64, mapped: Mapped) {
        debug_assert!(mapped.len > 0 && mapped.len & INLINE == 0, "an extent has bytes");
        let mut place = self.find(offset);
        debug_assert!(
            self.before(place).is_none_or(|(at, e)| at + e.len <= offset),
            "extents do not overlap"
        );
        debug_assert!(
            self.at(place).is_none_or(|(at, _)| offset + mapped.len <= at),
            "extents do not overlap"
        );
        if self.leaves[place.leaf].len() == LEAF_MAX {
            place = self.split(place);
        }
        debug_assert!(self.belongs(place, offset), "{offset} belongs into leaf {}", place.leaf);
        self.leaves[place.leaf].insert(place.at, Slot::new(offset, mapped));
        self.len += 1;
        debug_assert!(self.leaves[place.leaf].len() <= LEAF_MAX);
    }

    /// Whether an extent that begins at `offset` would go to the leaf of a place before it.
    pub fn belong_together(&self, place: Place, offset: u64) -> bool {
        self.starts.get(place.leaf + 1).is_none_or(|next| offset < *next)
    }

    /// Whether an extent that begins at `offset` belongs into the leaf of a place.
    fn belongs(&self, place: Place, offset: u64) -> bool {
        self.starts[place.leaf] <= offset && self.belong_together(place, offset)
    }

    /// Enters two extents that follow each other at the place of the first, to whose leaf both belong.
    pub fn insert_two(&mut self, mut place: Place, first: (u64, Mapped), second: (u64, Mapped)) {
        if self.leaves[place.leaf].len() + 2 > LEAF_MAX {
            place = self.split(place);
        }
        debug_assert!(first.0 + first.1.len == second.0, "the second follows the first");
        debug_assert!(
            self.belongs(place, first.0) && self.belongs(place, second.0),
            "both belong into leaf {}",
            place.leaf
        );
        debug_assert!(
            self.before(place).is_none_or(|(at, e)| at + e.len <= first.0),
            "extents do not overlap"
        );
        let leaf = &mut self.leaves[place.leaf];
        leaf.extend([first, second].map(|(offset, mapped)| Slot::new(offset, mapped)));
        leaf[place.at..].rotate_right(2);
        debug_assert!(
            leaf.len() <= LEAF_MAX && leaf.is_sorted_by_key(|slot| slot.offset),
            "extents are in order"
        );
        self.len += 2;
    }

    /// Makes room in a leaf that is full or nearly so; the place goes where it has moved to. Files are mostly written from front to back: what
    /// is entered at the end leaves the leaf full.
    fn split(&mut self, place: Place) -> Place {
        let (leaf, at) = (place.leaf, place.at);
        let keep = if at == LEAF_MAX { LEAF_MAX - 1 } else { LEAF_MAX / 2 };
        debug_assert!(
            self.leaves[leaf].len() > keep,
            "what moves to the new leaf is not nothing"
        );
        let mut right = Vec::with_capacity(LEAF_MAX);
        right.extend(self.leaves[leaf].drain(keep..));
        self.starts.insert(leaf + 1, right[0].offset);
        self.leaves.insert(leaf + 1, right);
        debug_assert!(self.starts.len() == self.leaves.len() && self.starts[0] == 0);
        debug_assert!(self.starts.is_sorted(), "leaves are in order");
        debug_assert_eq!(
            self.leaves.iter().map(Vec::len).sum::<usize>(),
            self.len,
            "extents in leaves are counted"
        );
        match at.checked_sub(keep) {
            Some(at) if at > 0 => Place { leaf: leaf + 1, at },
            _ => place,
        }
    }

    /// Takes out the extent that begins at an offset.
    pub fn take(&mut self, offset: u64) {
        let place = self.find(offset);
        debug_assert!(
            self.at(place).is_some_and(|(at, _)| at == offset),
            "an extent begins at {offset}"
        );
        self.take_some(place, 1);
    }

    /// Takes extents out of one leaf; gives the place of what follows them.
    fn take_some(&mut self, place: Place, n: usize) -> Place {
        debug_assert!(
            n > 0 && place.at + n <= self.leaves[place.leaf].len(),
            "{n} extents of one leaf"
        );
        let leaf = &mut self.leaves[place.leaf];
        leaf.drain(place.at..place.at + n);
        self.len = self.len.checked_sub(n).expect("extents in leaves are counted");
        if leaf.is_empty() && self.leaves.len() > 1 {
            self.leaves.remove(place.leaf);
            self.starts.remove(place.leaf);
            self.starts[0] = 0;
            debug_assert!(
                self.leaves.iter().all(|leaf| !leaf.is_empty()),
                "no leaf but the only one is empty"
            );
            let leaf = place.leaf.min(self.leaves.len() - 1);
            let at = if leaf == place.leaf { 0 } else { self.leaves[leaf].len() };
            return Place { leaf, at };
        }
        place
    }

    /// Takes out all extents that begin at the place or after it and end at or before `end`; calls with each.
    pub fn take_until(&mut self, mut place: Place, end: u64, mut with: impl FnMut(Mapped)) -> Place {
        loop {
            let slots = &self.leaves[place.leaf][place.at..];
            let ends_by = |slot: &&Slot| slot.offset + slot.mapped().len <= end;
            let n = slots
                .iter()
                .take_while(ends_by)
                .inspect(|slot| with(slot.mapped()))
                .count();
            let all = n == slots.len();
            debug_assert!(slots.first().is_none_or(|slot| slot.offset < end) || n == 0);
            if n > 0 {
                place = self.take_some(place, n);
            }
            if !all {
                return place;
            }
            // behind the last one of its leaf: go on with the next leaf, if the place is not in it already
            if place.at == self.leaves[place.leaf].len() {
                if place.leaf + 1 == self.leaves.len() {
                    return place;
                }
                place = Place {
                    leaf: place.leaf + 1,
                    at: 0,
                };
            }
        }
    }

    /// All of them from a place on.
    pub fn iter_from(&self, place: Place) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        let first = self.leaves[place.leaf][place.at..].iter();
        first
            .chain(self.leaves[place.leaf + 1..].iter().flatten())
            .map(Slot::get)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        self.leaves.iter().flatten().map(Slot::get)
    }

    /// The last one.
    pub fn last(&self) -> Option<(u64, Mapped)> {
        self.leaves.last()?.last().map(Slot::get)
    }

    /// Calls with each whose bytes lie in log entries: where they lie may change.
    pub fn each_inline(&mut self, mut with: impl FnMut(&mut Gpa)) {
        for slot in self.leaves.iter_mut().flatten().filter(|slot| slot.len & INLINE != 0) {
            let region = slot.gpa.region();
            with(&mut slot.gpa);
            debug_assert_eq!(slot.gpa.region(), region, "a log lies in one region");
        }
    }
}

/// Where in a leaf of `len` extents, which spans `span` bytes, one should be that begins `offset` bytes from its start, if
/// all were of one size.
fn guess(len: usize, offset: u64, span: u64) -> usize {
    match span.checked_mul(LEAF_MAX as u64) {
        Some(_) => (offset * len as u64 / span) as usize,
        None => len / 2,
    }
}

/// First of the slots at or after an offset: looks around the guess, ever farther away.
fn search_from(slots: &[Slot], guess: usize, offset: u64) -> usize {
    let guess = guess.min(slots.len());
    let mut step = 1;
    if slots.get(guess).is_some_and(|slot| slot.offset < offset) {
        let mut low = guess + 1;
        while slots.get(low + step - 1).is_some_and(|slot| slot.offset < offset) {
            low += step;
            step *= 2;
        }
        let high = (low + step - 1).min(slots.len());
        return low + slots[low..high].partition_point(|slot| slot.offset < offset);
    }
    let mut high = guess;
    while high >= step && slots[high - step].offset >= offset {
        high -= step;
        step *= 2;
    }
    let low = high.saturating_sub(step);
    debug_assert!(low <= high && high <= slots.len());
    low + slots[low..high].partition_point(|slot| slot.offset < offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn mapped(n: u64) -> Mapped {
        Mapped {
            len: 1 + n % 7,
            gpa: Gpa(n),
            inline: n.is_multiple_of(3),
        }
    }

    #[test]
    fn they_are_found_where_a_map_finds_them() {
        let (mut extents, mut model) = (Extents::default(), BTreeMap::new());
        let mut seed = 11u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..20_000u64 {
            // grows, then shrinks, then grows again; many leaves, of sizes that differ
            let shrinking = round / 5000 % 2 == 1;
            let offset = 10 * if next(2) == 0 { next(4000) } else { next(40) * next(100) };
            if model.contains_key(&offset) && (shrinking || next(3) == 0) {
                extents.take(offset);
                model.remove(&offset);
            } else if shrinking && next(50) == 0 {
                let end = offset + 10 * next(300);
                let mut taken = Vec::new();
                let place = extents.find(offset);
                extents.take_until(place, end, |extent| taken.push(extent.gpa.0));
                let gone: Vec<u64> = model
                    .range(offset..)
                    .take_while(|(at, e): &(&u64, &Mapped)| **at + e.len <= end)
                    .map(|(at, _)| *at)
                    .collect();
                let expected: Vec<u64> = gone
                    .iter()
                    .map(|at| model.remove(at).expect("in the model").gpa.0)
                    .collect();
                assert_eq!(taken, expected);
            } else if !model.contains_key(&offset) && !shrinking {
                extents.insert(offset, mapped(round));
                model.insert(offset, mapped(round));
            }
            let at = next(40_100);
            let place = extents.find(at);
            let entry = |(offset, mapped): (&u64, &Mapped)| (*offset, *mapped);
            assert_eq!(
                extents.at(place),
                model.range(at..).next().map(entry),
                "{at} in round {round}"
            );
            assert_eq!(extents.before(place), model.range(..at).next_back().map(entry));
            assert_eq!(extents.len(), model.len());
            assert_eq!(extents.last(), model.last_key_value().map(entry));
            if round % 500 == 0 {
                assert!(extents.iter().eq(model.iter().map(entry)));
                assert!(extents.iter_from(place).eq(model.range(at..).map(entry)));
            }
        }
    }

    #[test]
    fn what_is_written_from_front_to_back_fills_its_leaves() {
        let mut extents = Extents::default();
        for n in 0..10_000 {
            extents.insert(n * 10, mapped(n));
        }
        assert!(extents.leaves.len() <= 10_000 / (LEAF_MAX - 1) + 1);
        assert!((0..10_000).all(|n| extents.at(extents.find(n * 10)) == Some((n * 10, mapped(n)))));
    }
}
