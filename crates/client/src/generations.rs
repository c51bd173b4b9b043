//! Generations of inodes seen: for callers that know a file by its number only.

use foldhash::HashMap;
use parking_lot::RwLock;
use polvo_format::{Generation, Ino};
use polvo_proto::InodeRef;

const SHARDS: usize = 16;
/// Most inodes remembered in a shard; beyond, the shard starts anew.
const SHARD_MAX: usize = 1 << 16;

/// The generation last seen of each inode number. Bounded; what is forgotten is looked up again.
#[derive(Default)]
pub(crate) struct Generations {
    shards: [RwLock<HashMap<Ino, Generation>>; SHARDS],
}

impl Generations {
    fn shard(&self, ino: Ino) -> &RwLock<HashMap<Ino, Generation>> {
        &self.shards[(ino.0 ^ ino.0 >> 48) as usize % SHARDS]
    }

    pub(crate) fn note(&self, inode: InodeRef) {
        // most inodes are looked at again and again: nobody waits for that
        if self.get(inode.ino) == Some(inode) {
            return;
        }
        let mut shard = self.shard(inode.ino).write();
        if shard.len() >= SHARD_MAX && !shard.contains_key(&inode.ino) {
            shard.clear();
        }
        shard.insert(inode.ino, inode.generation);
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<InodeRef> {
        let generation = *self.shard(ino).read().get(&ino)?;
        Some(InodeRef { ino, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_seen_counts_and_memory_is_bounded() {
        let seen = Generations::default();
        for generation in [1, 2] {
            seen.note(InodeRef {
                ino: Ino(7),
                generation: Generation(generation),
            });
        }
        assert_eq!(seen.get(Ino(7)).map(|i| i.generation), Some(Generation(2)));
        for n in 0..(SHARD_MAX * SHARDS * 2) as u64 {
            seen.note(InodeRef {
                ino: Ino(n),
                generation: Generation(1),
            });
        }
        assert!(seen.shards.iter().all(|shard| shard.read().len() <= SHARD_MAX));
    }
}
