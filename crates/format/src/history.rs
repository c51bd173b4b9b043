//! What a pool remembers of its own past, by which others tell an older copy of it from the pool that they know.
//!
//! The life of a pool is a row of *eras*: a new one begins at each start of its node and at each clean end. An era has a
//! number and a random mark. The pool keeps the marks of the last eras; each node keeps, in its own pool, the latest era that
//! it has seen of each other node. A copy that was taken earlier has not come to that era, or has come to one of the same
//! number with another mark.

use serde::{Deserialize, Serialize};

/// Eras of which a pool keeps the marks.
pub const ERAS_KEPT: u64 = 8;

/// Numbers above it are not believed.
const ERA_MAX: u64 = 1 << 47;

/// An era of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Era {
    /// From 1; 0 where none has begun.
    pub number: u64,
    /// Drawn at random.
    pub mark: u64,
}

/// The latest eras of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// Number of the era that counts now.
    pub era: u64,
    /// Mark of era `n` at `n % ERAS_KEPT`.
    pub marks: [u64; ERAS_KEPT as usize],
}

impl History {
    /// The era that counts now.
    pub fn latest(&self) -> Era {
        Era {
            number: self.era,
            mark: self.mark(self.era),
        }
    }

    /// The era that counts now, and the one before it; of number 0 where none was.
    pub fn latest_two(&self) -> [Era; 2] {
        let era = |number| Era {
            number,
            mark: if number == 0 { 0 } else { self.mark(number) },
        };
        [era(self.era), era(self.era.saturating_sub(1))]
    }

    fn mark(&self, era: u64) -> u64 {
        self.marks[(era % ERAS_KEPT) as usize]
    }

    /// A new era begins.
    pub fn begin(&mut self, mark: u64) {
        self.era += 1;
        self.marks[(self.era % ERAS_KEPT) as usize] = mark;
        debug_assert!(!self.is_behind(self.latest()), "a pool is not behind itself");
    }

    /// The pool is to be used although others have seen `known` of it, which is not in this history: the next era is so
    /// much later that nobody compares it with that one.
    pub fn leave_behind(&mut self, known: Era) {
        self.era = self.era.max(known.number).min(ERA_MAX) + ERAS_KEPT;
    }

    /// Whether this is the history of an older copy: somebody has seen the pool in an era that it has not come to, or that
    /// was another one.
    pub fn is_behind(&self, known: Era) -> bool {
        if known.number > self.era {
            return true;
        }
        known.number != 0 && self.era - known.number < ERAS_KEPT && self.mark(known.number) != known.mark
    }
}

/// Which pool, and its latest eras: what nodes show each other, and their clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolPast {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Its eras.
    pub history: History,
}

/// What somebody remembers of the pool of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownPool {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// The latest era seen of it.
    pub era: Era,
}

impl KnownPool {
    /// What is to be remembered from now on of the pool with this past. A pool that was made anew counts from the beginning.
    ///
    /// # Errors
    /// The era that is remembered, where the past is that of an older copy of the pool.
    pub fn learn(before: Option<KnownPool>, past: &PoolPast) -> Result<KnownPool, Era> {
        let now = KnownPool {
            pool: past.pool,
            era: past.history.latest(),
        };
        match before {
            Some(known) if known.pool == past.pool && past.history.is_behind(known.era) => Err(known.era),
            _ => Ok(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history of `eras` eras, with marks that follow from `line`.
    fn history(line: u64, eras: u64) -> History {
        let mut history = History::default();
        (1..=eras).for_each(|era| history.begin(line << 32 | era));
        history
    }

    #[test]
    fn a_pool_is_never_behind_itself() {
        let mut pool = History::default();
        let mut seen = vec![pool.latest()];
        for mark in 1..40 {
            pool.begin(mark);
            seen.push(pool.latest());
            assert!(seen.iter().all(|known| !pool.is_behind(*known)), "{pool:?}");
        }
    }

    #[test]
    fn a_copy_is_behind_until_it_has_gone_too_far() {
        for (copied, known_later, later) in (0..30)
            .flat_map(|copied| (1..20).map(move |known| (copied, known)))
            .flat_map(|(copied, known)| (0..40).map(move |later| (copied, known, later)))
        {
            let mut pool = history(1, copied);
            let mut copy = pool;
            (0..known_later).for_each(|n| pool.begin(1 << 33 | n));
            let known = pool.latest();
            (0..later).for_each(|n| copy.begin(1 << 34 | n));
            // started again and again in spite of everything, it has forgotten that era
            let noticed = later < known_later + ERAS_KEPT;
            assert_eq!(copy.is_behind(known), noticed, "{copied} {known_later} {later}");
            copy.leave_behind(known);
            copy.begin(1 << 35);
            assert!(!copy.is_behind(known) && !copy.is_behind(copy.latest()));
        }
    }

    #[test]
    fn another_pool_is_not_compared() {
        let past = |pool, eras| PoolPast {
            pool: [pool; 16],
            history: history(1, eras),
        };
        let known = KnownPool::learn(None, &past(1, 5)).unwrap();
        assert_eq!(known.era, history(1, 5).latest());
        assert_eq!(KnownPool::learn(Some(known), &past(1, 4)), Err(known.era));
        assert_eq!(KnownPool::learn(Some(known), &past(1, 6)).unwrap().era.number, 6);
        assert_eq!(KnownPool::learn(Some(known), &past(2, 1)).unwrap().pool, [2; 16]);
    }
}
