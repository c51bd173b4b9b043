//! What this client itself changes: nobody asks it for its own tokens, so what it knows by one holds only if nothing of its
//! own has come in between.

use polvo_format::Ino;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SHARDS: usize = 256;
/// One that has begun, and is under way.
const BEGUN: u64 = 1 << 32 | 1;
const UNDER_WAY: u64 = 0xffff_ffff;

/// Changes of this client: in the upper half of a word how many have begun, in the lower how many are under way. An inode shares
/// its word with others.
pub(super) struct OwnChanges {
    shards: [AtomicU64; SHARDS],
    /// Changes of which it is not known which inodes they are about.
    any: AtomicU64,
}

/// The changes that had begun and ended when something was found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seal {
    shard: u64,
    any: u64,
}

/// A change of this client's, until its end is known.
pub(crate) struct OwnChange<'a>(Option<&'a AtomicU64>);

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            let before = word.fetch_sub(1, SeqCst);
            debug_assert!(before & UNDER_WAY > 0, "a change ends once");
        }
    }
}

impl OwnChanges {
    pub fn new() -> OwnChanges {
        OwnChanges {
            shards: std::array::from_fn(|_| AtomicU64::new(0)),
            any: AtomicU64::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &AtomicU64 {
        let folded = ino.0 ^ ino.0 >> 48 ^ ino.0 >> 8;
        &self.shards[folded as usize % SHARDS]
    }

    /// One of an inode, or of inodes that are not known, begins.
    pub fn begin(&self, of: Option<Ino>) -> OwnChange<'_> {
        let word = of.map_or(&self.any, |ino| self.shard(ino));
        word.fetch_add(BEGUN, SeqCst);
        OwnChange(Some(word))
    }

    /// Before something is found out of an inode; `None` while something of our own may change it.
    pub fn seal(&self, ino: Ino) -> Option<Seal> {
        let seal = Seal {
            shard: self.shard(ino).load(SeqCst),
            any: self.any.load(SeqCst),
        };
        (seal.shard & UNDER_WAY == 0 && seal.any & UNDER_WAY == 0).then_some(seal)
    }

    /// Has nothing of our own begun since?
    pub fn holds(&self, ino: Ino, seal: Seal) -> bool {
        self.shard(ino).load(SeqCst) == seal.shard && self.any.load(SeqCst) == seal.any
    }
}

impl OwnChange<'_> {
    /// Nobody has to know.
    pub fn unnoted() -> OwnChange<'static> {
        OwnChange(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_out_holds_until_the_next_change_begins() {
        let own = OwnChanges::new();
        let ino = Ino(7);
        let seal = own.seal(ino).expect("nothing is under way");
        assert!(own.holds(ino, seal));
        let change = own.begin(Some(Ino(8)));
        assert!(own.holds(ino, seal), "of another inode");
        let of_it = own.begin(Some(ino));
        assert!(!own.holds(ino, seal) && own.seal(ino).is_none());
        drop((change, of_it));
        assert!(!own.holds(ino, seal), "it has ended, and has happened");
        let seal = own.seal(ino).expect("nothing is under way");
        drop(own.begin(None));
        assert!(!own.holds(ino, seal));
    }
}
