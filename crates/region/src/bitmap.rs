//! Which units (pages, inode slots) of one segment are in use.

/// Bits of one segment, 1 = in use, searched from where the last search ended.
pub(crate) struct Bitmap {
    words: Vec<u64>,
    len: u32,
    used: u32,
    hint: usize,
}

impl Bitmap {
    /// All free.
    pub fn new(len: u32) -> Bitmap {
        assert!(
            len > 0 && len.is_multiple_of(64),
            "segments hold a multiple of 64 units"
        );
        Bitmap {
            words: vec![0; len as usize / 64],
            len,
            used: 0,
            hint: 0,
        }
    }

    /// Units.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Units that are in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Units that are free.
    pub fn free(&self) -> u32 {
        debug_assert!(self.used <= self.len, "{} of {} units", self.used, self.len);
        self.len - self.used
    }

    /// Is this one in use?
    pub fn is_used(&self, at: u32) -> bool {
        debug_assert!(at < self.len, "unit {at} of {}", self.len);
        self.words[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// Takes any one.
    pub fn take_one(&mut self) -> Option<u32> {
        if self.used == self.len {
            return None;
        }
        let words = self.words.len();
        let word = (self.hint..words)
            .chain(0..self.hint)
            .find(|&w| self.words[w] != u64::MAX)?;
        self.hint = word;
        let at = word as u32 * 64 + self.words[word].trailing_ones();
        debug_assert!(!self.is_used(at), "unit {at} was found free");
        self.words[word] |= 1 << (at % 64);
        self.used += 1;
        debug_assert!(at < self.len && self.used <= self.len, "unit {at} of {}", self.len);
        debug_assert_eq!(self.used, self.count(), "units in use");
        Some(at)
    }

    /// First unit at or after `from` that is in use.
    pub fn next_used(&self, from: u32) -> Option<u32> {
        let found = self.find(from, true);
        debug_assert!(found.is_none_or(|at| at >= from && self.is_used(at)));
        found
    }

    /// Runs of units that are in use: (start, length).
    pub fn used_runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.find(from, true)?;
            from = self.find(start, false).unwrap_or(self.len);
            debug_assert!(start < from && from <= self.len);
            Some((start, from - start))
        })
    }

    /// First free run at or after `from`: (start, length up to `max`).
    fn next_run(&self, from: u32, max: u32) -> Option<(u32, u32)> {
        let start = self.find(from, false)?;
        let end = self.find(start, true).unwrap_or(self.len);
        debug_assert!(from <= start && start < end && end <= self.len);
        Some((start, (end - start).min(max)))
    }

    /// First unit at or after `from` that is in use (or not).
    fn find(&self, from: u32, used: bool) -> Option<u32> {
        let invert = if used { 0 } else { u64::MAX };
        let mut word = from as usize / 64;
        let mut bits = (self.words.get(word)? ^ invert) & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word as u32 * 64 + bits.trailing_zeros());
            }
            word += 1;
            bits = self.words.get(word)? ^ invert;
        }
    }

    /// The first free run of at least `max` units, cut to `max`; else the longest there is.
    pub fn best_run(&self, max: u32) -> Option<(u32, u32)> {
        assert!(max > 0, "a run of no units");
        let mut best: Option<(u32, u32)> = None;
        let mut from = 0;
        while let Some((start, len)) = self.next_run(from, max) {
            if best.is_none_or(|(_, longest)| len > longest) {
                best = Some((start, len));
            }
            if len == max {
                break;
            }
            from = start + len;
        }
        debug_assert!(best.is_none_or(|(start, len)| len <= max && self.free_at(start, len) == len));
        best
    }

    /// How many units from `at` on are free, at most `max`.
    pub fn free_at(&self, at: u32, max: u32) -> u32 {
        if at >= self.len {
            return 0;
        }
        (self.find(at, true).unwrap_or(self.len) - at).min(max)
    }

    /// Marks a run as in use; false (and nothing changes) when part of it is.
    pub fn take(&mut self, start: u32, n: u32) -> bool {
        debug_assert!(
            start < self.len && n <= self.len - start,
            "{n} units from {start} on, of {}",
            self.len
        );
        if self.find(start, true).is_some_and(|used| used < start + n) {
            return false;
        }
        self.each_word(start, n, |word, mask| *word |= mask);
        debug_assert_eq!(self.free_at(start, n), 0, "what was taken is in use");
        self.used += n;
        debug_assert_eq!(self.used, self.count(), "units in use");
        true
    }

    /// Marks a run as free.
    ///
    /// # Panics
    /// When part of it is free already: giving something back twice would hand it out twice.
    pub fn give(&mut self, start: u32, n: u32) {
        assert!(
            start < self.len && n <= self.len - start,
            "{n} units from {start} on, of {}",
            self.len
        );
        assert!(
            self.find(start, false).is_none_or(|free| free >= start + n),
            "unit freed twice"
        );
        self.each_word(start, n, |word, mask| *word &= !mask);
        debug_assert_eq!(self.free_at(start, n), n, "what was given back is free");
        self.used = self.used.checked_sub(n).expect("what is given back was in use");
        debug_assert_eq!(self.used, self.count(), "units in use");
    }

    /// Units in use, counted.
    fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    fn each_word(&mut self, start: u32, n: u32, mut change: impl FnMut(&mut u64, u64)) {
        let (mut at, end) = (start, start + n);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            debug_assert!((1..=64).contains(&bits));
            let mask = if bits == 64 {
                u64::MAX
            } else {
                ((1 << bits) - 1) << (at % 64)
            };
            change(&mut self.words[at as usize / 64], mask);
            at += bits;
        }
        debug_assert_eq!(at, end, "all {n} units from {start} on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_taken_and_given() {
        let mut map = Bitmap::new(256);
        assert_eq!(map.best_run(1000), Some((0, 256)));
        assert!(map.take(10, 100));
        assert!(!map.take(109, 2));
        assert!(map.take(110, 1));
        assert_eq!(map.best_run(10), Some((0, 10)));
        assert_eq!(map.best_run(200), Some((111, 145)));
        assert_eq!(map.free_at(111, 7), 7);
        assert_eq!(map.free_at(50, 7), 0);
        map.give(10, 101);
        assert_eq!(map.free(), 256);
    }

    #[test]
    fn one_after_the_other_fills_everything() {
        let mut map = Bitmap::new(128);
        let taken: Vec<u32> = std::iter::from_fn(|| map.take_one()).collect();
        assert_eq!(taken, (0..128).collect::<Vec<_>>());
        map.give(5, 1);
        assert_eq!((map.take_one(), map.take_one()), (Some(5), None));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_refused() {
        let mut map = Bitmap::new(64);
        map.take(0, 2);
        map.give(1, 1);
        map.give(0, 2);
    }
}
