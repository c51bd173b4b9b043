//! Inodes the kernel knows: node id to inode with generation, and how many lookups it will forget.
//!
//! The kernel's node id is our inode number; requests carry no generation, so it is kept here from the reply that told
//! the kernel of the inode. A slot can be used again while the kernel still knows the file before it (deleted on another
//! mount): the reply then carries the new generation, the kernel drops its old inode by itself, and its forgets for
//! both arrive under the one number, so one entry counts both.

use parking_lot::Mutex;
use polvo_format::{Attr, FileKind, Generation, Ino};
use polvo_proto::InodeRef;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Number of locks; a power of two.
const SHARDS: usize = 16;

/// One inode the kernel knows.
struct Known {
    generation: Generation,
    /// Replies that told the kernel of it, less what it has forgotten.
    lookups: u64,
    /// For a directory: where and how it was last found.
    directory: Option<Box<FoundDirectory>>,
}

/// A directory as a reply has last shown it.
struct FoundDirectory {
    /// Shown as the number of `..`.
    parent: Ino,
    /// `None` for the root, which is never removed.
    attr: Option<Attr>,
}

/// The table. All methods may be called from any thread.
pub(crate) struct Inodes {
    shards: [Mutex<HashMap<Ino, Known>>; SHARDS],
}

impl Inodes {
    pub(crate) fn new() -> Inodes {
        Inodes {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Known>> {
        // Region and slot both vary; fold them.
        let folded = ino.0 ^ ino.0 >> 48 ^ ino.0 >> 7;
        &self.shards[folded as usize % SHARDS]
    }

    /// Notes that a reply tells the kernel of an inode. Call before sending the reply: a forget may follow at once.
    pub(crate) fn remember(&self, attr: &Attr, parent: Ino) {
        let directory = (attr.kind == FileKind::Directory).then(|| {
            let attr = Some(*attr);
            Box::new(FoundDirectory { parent, attr })
        });
        let mut shard = self.shard(attr.ino).lock();
        let known = shard.entry(attr.ino).or_insert(Known {
            generation: attr.generation,
            lookups: 0,
            directory: None,
        });
        known.lookups += 1;
        // Two replies may overtake each other: the later file of a slot has the greater generation.
        if (attr.generation.0.wrapping_sub(known.generation.0) as i32) >= 0 {
            known.generation = attr.generation;
            known.directory = directory;
        }
    }

    /// Notes the root, which the kernel knows from the start and never forgets.
    pub(crate) fn pin_root(&self, root: InodeRef) {
        let pinned = Known {
            generation: root.generation,
            lookups: u64::MAX / 2,
            directory: Some(Box::new(FoundDirectory {
                parent: root.ino,
                attr: None,
            })),
        };
        self.shard(root.ino).lock().entry(root.ino).or_insert(pinned);
    }

    /// The inode under a node id; `None` for one that no reply has told of.
    pub(crate) fn get(&self, ino: Ino) -> Option<InodeRef> {
        let shard = self.shard(ino).lock();
        shard.get(&ino).map(|known| InodeRef {
            ino,
            generation: known.generation,
        })
    }

    /// Where a directory was last found; itself when unknown.
    pub(crate) fn parent(&self, directory: Ino) -> Ino {
        let shard = self.shard(directory).lock();
        shard
            .get(&directory)
            .and_then(|known| known.directory.as_ref())
            .map_or(directory, |found| found.parent)
    }

    /// What a directory was when it was last found, without names: for programs that have it open, or work in it, when
    /// it has been removed by way of another mount. (Files are held by who has them open; directories are not.)
    pub(crate) fn removed_directory(&self, ino: Ino) -> Option<Attr> {
        let shard = self.shard(ino).lock();
        let attr = shard.get(&ino)?.directory.as_ref()?.attr?;
        Some(Attr { nlink: 0, ..attr })
    }

    /// The kernel forgets `lookups` replies.
    pub(crate) fn forget(&self, ino: Ino, lookups: u64) {
        if let Entry::Occupied(mut known) = self.shard(ino).lock().entry(ino) {
            let left = known.get().lookups.saturating_sub(lookups);
            if left == 0 {
                known.remove();
            } else {
                known.get_mut().lookups = left;
            }
        }
    }

    /// How many inodes are known.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(ino: u64, generation: u32, kind: FileKind) -> Attr {
        Attr {
            ino: Ino(ino),
            generation: Generation(generation),
            kind,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        }
    }

    #[test]
    fn known_until_every_lookup_is_forgotten() {
        let inodes = Inodes::new();
        inodes.remember(&attr(7, 2, FileKind::File), Ino::ROOT);
        inodes.remember(&attr(7, 2, FileKind::File), Ino::ROOT);
        inodes.forget(Ino(7), 1);
        assert_eq!(
            inodes.get(Ino(7)),
            Some(InodeRef {
                ino: Ino(7),
                generation: Generation(2)
            })
        );
        inodes.forget(Ino(7), 1);
        assert_eq!(inodes.get(Ino(7)), None);
        inodes.forget(Ino(7), 1);
        assert_eq!(inodes.len(), 0);
    }

    #[test]
    fn a_slot_used_again_shows_its_new_file_even_when_replies_overtake() {
        let inodes = Inodes::new();
        inodes.remember(&attr(7, 3, FileKind::File), Ino::ROOT);
        inodes.remember(&attr(7, 2, FileKind::Directory), Ino(9));
        assert_eq!(inodes.get(Ino(7)).map(|i| i.generation), Some(Generation(3)));
        inodes.remember(&attr(7, 4, FileKind::File), Ino::ROOT);
        assert_eq!(inodes.get(Ino(7)).map(|i| i.generation), Some(Generation(4)));
        inodes.forget(Ino(7), 2);
        assert!(inodes.get(Ino(7)).is_some(), "the third lookup is not forgotten yet");
    }

    #[test]
    fn directories_know_where_they_were_found() {
        let inodes = Inodes::new();
        inodes.remember(&attr(8, 1, FileKind::Directory), Ino(5));
        inodes.remember(&attr(9, 1, FileKind::File), Ino(5));
        assert_eq!(inodes.parent(Ino(8)), Ino(5));
        inodes.remember(&attr(8, 1, FileKind::Directory), Ino(6));
        assert_eq!(inodes.parent(Ino(8)), Ino(6), "it was renamed");
        assert_eq!(inodes.parent(Ino(9)), Ino(9));
        assert_eq!(inodes.parent(Ino(1000)), Ino(1000));
        assert_eq!(inodes.removed_directory(Ino(8)).map(|a| a.nlink), Some(0));
        assert_eq!(inodes.removed_directory(Ino(9)), None, "a file");
    }

    #[test]
    fn the_root_outlives_any_forget_a_kernel_sends() {
        let inodes = Inodes::new();
        let root = InodeRef {
            ino: Ino::ROOT,
            generation: Generation(1),
        };
        inodes.pin_root(root);
        inodes.forget(Ino::ROOT, 1 << 40);
        assert_eq!(inodes.get(Ino::ROOT), Some(root));
        assert_eq!(inodes.parent(Ino::ROOT), Ino::ROOT);
    }
}
