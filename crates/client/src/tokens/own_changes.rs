//! What this client itself changes: nobody asks it for its own tokens, so what it knows by one holds only if nothing of its
//! own has come in between.
//!
//! Of some changes it is known which inodes they are about only when they have been answered: whose name a removal takes away, say.
//! While one of these is under way nothing holds; when it ends, what it was not about holds again ([`OwnChange::was_of`]). Where
//! nobody can say what it was about, nothing that was found out before holds any more.

use polvo_format::Ino;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SHARDS: usize = 4096;
/// One that has begun, and is under way.
const BEGUN: u64 = PASSED | 1;
/// One that is not under way any more, or has not been noticed before.
const PASSED: u64 = 1 << 32;
const UNDER_WAY: u64 = 0xffff_ffff;

/// Changes of this client. An inode shares its word with others.
pub(super) struct OwnChanges {
    /// Of known inodes: in the upper half of a word how many have begun, in the lower how many are under way.
    shards: Box<[AtomicU64]>,
    /// Of others: in the upper half how many have ended without its being known what they were about, in the lower how many are under
    /// way.
    any: AtomicU64,
}

/// The changes that had begun and ended when something was found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seal {
    shard: u64,
    any: u64,
}

enum Of<'a> {
    Nobody,
    Inode(&'a AtomicU64),
    Any(&'a OwnChanges),
}

/// A change of this client's, until its end is known.
pub(crate) struct OwnChange<'a>(Of<'a>);

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        let before = match self.0 {
            Of::Nobody => return,
            Of::Inode(word) => word.fetch_sub(1, SeqCst),
            Of::Any(own) => own.any.fetch_add(PASSED - 1, SeqCst),
        };
        debug_assert!(before & UNDER_WAY > 0, "a change ends once");
    }
}

impl OwnChanges {
    pub fn new() -> OwnChanges {
        OwnChanges {
            shards: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            any: AtomicU64::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &AtomicU64 {
        // neighbours, of one region and of several, are changed and looked at together
        let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> (u64::BITS - SHARDS.ilog2())) as usize]
    }

    /// One of an inode begins.
    pub fn begin(&self, of: Ino) -> OwnChange<'_> {
        let word = self.shard(of);
        word.fetch_add(BEGUN, SeqCst);
        OwnChange(Of::Inode(word))
    }

    /// One of inodes that are not known begins.
    pub fn begin_any(&self) -> OwnChange<'_> {
        self.any.fetch_add(1, SeqCst);
        OwnChange(Of::Any(self))
    }

    // Below, `any` is always loaded first: a change of which it says that it is not under way any more has left its mark in the words
    // of its inodes before.

    /// Before something is found out of an inode; `None` while something of our own may change it.
    pub fn seal(&self, ino: Ino) -> Option<Seal> {
        let any = self.any.load(SeqCst);
        let shard = self.shard(ino).load(SeqCst);
        (shard & UNDER_WAY == 0 && any & UNDER_WAY == 0).then_some(Seal { shard, any })
    }

    /// Has nothing of our own begun since that may be about this inode?
    pub fn holds(&self, ino: Ino, seal: Seal) -> bool {
        self.any.load(SeqCst) == seal.any && self.shard(ino).load(SeqCst) == seal.shard
    }
}

impl OwnChange<'_> {
    /// Nobody has to know.
    pub fn unnoted() -> OwnChange<'static> {
        OwnChange(Of::Nobody)
    }

    /// It has ended, and was about these inodes.
    pub fn was_of(mut self, inodes: impl IntoIterator<Item = Ino>) {
        if let Of::Any(own) = self.0 {
            for ino in inodes {
                own.shard(ino).fetch_add(PASSED, SeqCst);
            }
            let before = own.any.fetch_sub(1, SeqCst);
            debug_assert!(before & UNDER_WAY > 0, "a change ends once");
            self.0 = Of::Nobody;
        }
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
        let change = own.begin(Ino(8));
        assert!(own.holds(ino, seal), "of another inode");
        let of_it = own.begin(ino);
        assert!(!own.holds(ino, seal) && own.seal(ino).is_none());
        drop((change, of_it));
        assert!(!own.holds(ino, seal), "it has ended, and has happened");
        let seal = own.seal(ino).expect("nothing is under way");
        drop(own.begin_any());
        assert!(!own.holds(ino, seal));
    }

    #[test]
    fn what_a_change_was_not_about_holds_again_when_it_has_ended() {
        let own = OwnChanges::new();
        let (ino, other) = (Ino(7), Ino(8));
        let seals = [ino, other].map(|ino| own.seal(ino).expect("nothing is under way"));
        let change = own.begin_any();
        assert!(!own.holds(ino, seals[0]) && !own.holds(other, seals[1]));
        assert!(own.seal(ino).is_none());
        change.was_of([other]);
        assert!(own.holds(ino, seals[0]) && !own.holds(other, seals[1]));
        let seal = own.seal(other).expect("nothing is under way");
        let (one, two) = (own.begin_any(), own.begin_any());
        one.was_of([ino]);
        assert!(!own.holds(other, seal), "one is still under way");
        drop(two);
        assert!(!own.holds(other, seal), "nobody knows what it was about");
    }
}
