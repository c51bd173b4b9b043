//! Which sessions have which inodes open, and which pages are delegated to them.

use crate::RegionError;
use crate::hash::NumberMap;
use crate::planted::{Planted, planted};
use crate::writers::Writers;
use polvo_format::{Generation, PAGE, SessionId};
use polvo_proto::{FsError, WriteRun};
use std::collections::BTreeMap;

const PAGE_BYTES: u64 = PAGE as u64;

/// What one session has here.
#[derive(Default)]
pub(crate) struct Session {
    /// inodes that it has open, by slot
    pub open: BTreeMap<u64, Generation>,
    /// data pages that it may write to before it commits them
    pub delegated: PageSet,
}

/// Inodes that were there when the region was recovered: any of them may be open somewhere, and nobody here knows it yet. So none goes
/// before whoever had it open could open it again, whenever it loses its last name.
pub(crate) struct Claims {
    /// in the name of this session, which ends when the time is over
    pub by: SessionId,
    /// a bit a slot
    pub slots: Vec<u64>,
}

impl Claims {
    pub fn new(by: SessionId) -> Claims {
        let slots = Vec::new();
        Claims { by, slots }
    }

    pub fn insert(&mut self, slot: u64) {
        let word = (slot / 64) as usize;
        if word >= self.slots.len() {
            self.slots.resize(word + 1, 0);
        }
        self.slots[word] |= 1 << (slot % 64);
    }

    fn contains(&self, slot: u64) -> bool {
        self.slots
            .get((slot / 64) as usize)
            .is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }
}

/// What all of them have.
#[derive(Default)]
pub(crate) struct Sessions {
    /// what may be open and nobody knows it
    pub claims: Option<Claims>,
    pub sessions: BTreeMap<SessionId, Session>,
    /// how many sessions hold a slot's inode
    pub holders: NumberMap<u32>,
    /// which of them have it open for writing
    pub writers: NumberMap<Writers>,
}

impl Sessions {
    /// Does anybody hold the inode of a slot open, or may somebody?
    pub fn is_held(&self, slot: u64) -> bool {
        let is_claimed = self.claims.as_ref().is_some_and(|claims| claims.contains(slot));
        self.holders.contains_key(&slot) || is_claimed && !planted(Planted::ClaimsForgotten)
    }

    /// May somebody hold the inode of a slot open, and nobody is known to?
    pub fn is_only_claimed(&self, slot: u64) -> bool {
        self.is_held(slot) && !self.holders.contains_key(&slot)
    }

    /// Takes the pages of write runs out of what is delegated to a session: all or, on error, none.
    pub fn consume<'a>(&'a mut self, session: SessionId, runs: &'a [WriteRun]) -> Result<Consumed<'a>, RegionError> {
        let held = self.sessions.get_mut(&session).ok_or_else(|| not_delegated(&runs[0]))?;
        let mut consumed = Consumed {
            delegated: &mut held.delegated,
            runs: &[],
        };
        if planted(Planted::CommittedPagesReturned) {
            return Ok(consumed);
        }
        for (n, run) in runs.iter().enumerate() {
            let (first, pages) = pages_of(run);
            if !consumed.delegated.remove(first, pages) {
                return Err(not_delegated(run));
            }
            consumed.runs = &runs[..=n];
        }
        Ok(consumed)
    }

    /// All delegated pages: (first page number, pages).
    pub fn delegated(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.sessions
            .values()
            .flat_map(|s| s.delegated.runs.iter().map(|(&first, &pages)| (first, pages)))
    }

    /// Nobody holds the inode of this slot any more (it never came to be).
    pub fn forget(&mut self, slot: u64) {
        if self.holders.remove(&slot).is_some() {
            self.writers.remove(&slot);
            for session in self.sessions.values_mut() {
                session.open.remove(&slot);
            }
        }
        self.check_slot(slot);
    }

    /// A slot is held by as many sessions as have it open, and only who has it open writes to it.
    pub fn check_slot(&self, slot: u64) {
        let open = self
            .sessions
            .values()
            .filter(|session| session.open.contains_key(&slot));
        debug_assert!(
            open.count() == self.holders.get(&slot).map_or(0, |holders| *holders as usize)
                || planted(Planted::HoldsDroppedForAll),
            "sessions that hold slot {slot} are counted"
        );
        debug_assert!(
            self.is_held(slot) || !self.writers.contains_key(&slot) || planted(Planted::HoldsDroppedForAll),
            "nobody writes to slot {slot} who does not hold it"
        );
    }

    /// A session writes to the inode of a slot no longer, unless it has said otherwise after that number.
    pub fn end_writing(&mut self, session: SessionId, slot: u64, number: u64) {
        if let Some(writers) = self.writers.get_mut(&slot)
            && writers.end(session, number)
        {
            self.writers.remove(&slot);
        }
    }

    pub fn drop_hold(&mut self, session: SessionId, slot: u64) {
        self.end_writing(session, slot, u64::MAX);
        if let Some(holders) = self.holders.get_mut(&slot) {
            *holders = holders.checked_sub(1).expect("a slot that nobody holds is not kept");
            if *holders == 0 || planted(Planted::HoldsDroppedForAll) {
                self.holders.remove(&slot);
            }
        }
        self.check_slot(slot);
    }
}

/// Pages taken out of what is delegated to a session, for a commit: they come back when this ends, unless it has
/// happened.
#[must_use]
pub(crate) struct Consumed<'a> {
    delegated: &'a mut PageSet,
    /// that lie in them
    runs: &'a [WriteRun],
}

impl Consumed<'_> {
    /// The pages are a file's.
    pub fn happened(mut self) {
        self.runs = &[];
    }
}

impl Drop for Consumed<'_> {
    fn drop(&mut self) {
        // after a panic nobody knows whether it has happened
        for run in self.runs.iter().filter(|_| !std::thread::panicking()) {
            let (first, pages) = pages_of(run);
            self.delegated.add(first, pages);
        }
    }
}

fn not_delegated(run: &WriteRun) -> RegionError {
    FsError::Invalid(format!(
        "{} bytes at {:?} are not delegated to this session",
        run.len, run.gpa
    ))
    .into()
}

fn pages_of(run: &WriteRun) -> (u64, u64) {
    let at = run.gpa.offset().0;
    let first = at / PAGE_BYTES;
    (first, (at + run.len).div_ceil(PAGE_BYTES) - first)
}

/// Pages by number, as runs.
#[derive(Default)]
pub(crate) struct PageSet {
    pub runs: BTreeMap<u64, u64>,
}

impl PageSet {
    pub fn add(&mut self, mut first: u64, mut pages: u64) {
        debug_assert!(pages > 0, "a run of no pages");
        debug_assert!(
            !self.overlaps(first, pages) || planted(Planted::CommittedPagesReturned),
            "{pages} pages from {first} on are there already"
        );
        if let Some((&before, &n)) = self.runs.range(..first).next_back().filter(|(b, n)| *b + *n == first) {
            first = before;
            pages += n;
        }
        if let Some(n) = self.runs.remove(&(first + pages)) {
            pages += n;
        }
        self.runs.insert(first, pages);
        debug_assert!(
            self.runs
                .range(first + 1..)
                .next()
                .is_none_or(|(next, _)| *next > first + pages),
            "neighbours are one run"
        );
    }

    pub fn overlaps(&self, first: u64, pages: u64) -> bool {
        let last_before = self.runs.range(..first + pages).next_back();
        last_before.is_some_and(|(start, n)| start + n > first)
    }

    /// Removes pages; false (and nothing happens) unless all are there.
    pub fn remove(&mut self, first: u64, pages: u64) -> bool {
        let Some((&start, &n)) = self.runs.range(..=first).next_back() else {
            return false;
        };
        let Some(end) = first.checked_add(pages).filter(|&end| end <= start + n) else {
            return false;
        };
        self.runs.remove(&start);
        if start < first {
            self.runs.insert(start, first - start);
        }
        if end < start + n {
            self.runs.insert(end, start + n - end);
        }
        debug_assert!(!self.overlaps(first, pages), "what is removed is gone");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::PageSet;

    #[test]
    fn page_sets_join_and_split() {
        let mut set = PageSet::default();
        set.add(10, 5);
        set.add(20, 5);
        set.add(15, 5);
        assert_eq!(set.runs.iter().collect::<Vec<_>>(), [(&10, &15)]);
        assert!(!set.remove(9, 2));
        assert!(!set.remove(24, 2));
        assert!(!set.remove(24, u64::MAX));
        assert!(set.remove(12, 3));
        assert!(!set.remove(12, 1));
        assert_eq!(set.runs.iter().collect::<Vec<_>>(), [(&10, &2), (&15, &10)]);
    }
}
