//! Who decides what of the lines that were not durable survives a power cut.

/// A line that is not durable when the power goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingLine {
    /// Its offset in the pool, bytes.
    pub offset: u64,
    /// How many contents it may have: number 0 is the durable one, the last is the present one, those between were
    /// there before they were overwritten. At least 2.
    pub contents: usize,
    /// Its present content is on its way (flushed, not fenced).
    pub flushed: bool,
}

/// What becomes of it. Numbers that are too large mean the present content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// All of it has this content.
    Content(usize),
    /// Each of its eight words has that of its own.
    Words([usize; 8]),
}

impl Fate {
    /// Nothing of it has reached the medium.
    pub const LOST: Fate = Fate::Content(0);
    /// All of it has.
    pub const KEPT: Fate = Fate::Content(usize::MAX);
}

/// Decides for each line, in order of offset.
pub trait Chooser {
    /// What becomes of `line`.
    fn choose(&mut self, line: PendingLine) -> Fate;
}

impl<F: FnMut(PendingLine) -> Fate> Chooser for F {
    fn choose(&mut self, line: PendingLine) -> Fate {
        self(line)
    }
}

/// The caches are lost: exactly what was fenced survives.
#[derive(Clone, Copy, Debug)]
pub struct LoseAll;

impl Chooser for LoseAll {
    fn choose(&mut self, _: PendingLine) -> Fate {
        Fate::LOST
    }
}

/// Every store has reached the medium: the end of the process (`kill -9`), or of a machine with persistent caches.
#[derive(Clone, Copy, Debug)]
pub struct KeepAll;

impl Chooser for KeepAll {
    fn choose(&mut self, _: PendingLine) -> Fate {
        Fate::KEPT
    }
}

/// The n-th pending line survives whole when bit n is set, the rest is lost: for going through all subsets of few lines.
/// Lines beyond the 64th are lost.
#[derive(Clone, Copy, Debug)]
pub struct SomeLines {
    bits: u64,
}

impl SomeLines {
    /// `bits`: the subset.
    pub fn new(bits: u64) -> SomeLines {
        SomeLines { bits }
    }
}

impl Chooser for SomeLines {
    fn choose(&mut self, _: PendingLine) -> Fate {
        let keep = self.bits & 1 == 1;
        self.bits >>= 1;
        if keep { Fate::KEPT } else { Fate::LOST }
    }
}

/// A random subset, with torn lines among it. One seed is one subset. How much survives differs from seed to seed (from
/// nearly nothing to nearly everything), so that both "one line is missing" and "one line came early" turn up often.
#[derive(Clone, Debug)]
pub struct RandomLines {
    random: u64,
    /// Of 256 lines so many survive whole.
    kept: u64,
    /// Of 256 lines so many are torn or have a content from in between.
    torn: u64,
}

impl RandomLines {
    /// Equal seeds choose equally for equal lines.
    pub fn new(seed: u64) -> RandomLines {
        let mut chooser = RandomLines {
            random: seed,
            kept: 0,
            torn: 0,
        };
        chooser.kept = [8, 64, 128, 192, 248][(chooser.next() % 5) as usize];
        chooser.torn = [0, 16, 64, 256][(chooser.next() % 4) as usize];
        chooser
    }

    /// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Chooser for RandomLines {
    fn choose(&mut self, line: PendingLine) -> Fate {
        let bits = self.next();
        if bits & 0xff < self.torn {
            let contents = line.contents as u64;
            let mut words = [0; 8];
            for word in &mut words {
                *word = (self.next() % contents) as usize;
            }
            // Half of them whole, with a content of any age.
            if bits & 0x1_0000 == 0 {
                Fate::Content(words[0])
            } else {
                Fate::Words(words)
            }
        } else if bits >> 8 & 0xff < self.kept {
            Fate::KEPT
        } else {
            Fate::LOST
        }
    }
}
