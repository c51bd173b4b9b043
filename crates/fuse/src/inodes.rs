//! Inodes the kernel knows: node id to inode with generation, and how many lookups it will forget.
//!
//! A slot can be used again while the kernel still knows the file before it, which was deleted on another mount. So a node
//! id ([`node_id`]) is more than the slot's address: under the same id the kernel would find its old inode by a handle of
//! the new file, see another generation, and answer ESTALE without asking us.
//!
//! Requests carry no generation; it is kept here from the reply that told the kernel of the inode. Where two files do
//! share a node id, the reply carries the new generation, the kernel drops its old inode by itself, and its forgets for
//! both arrive under the one id, so one entry counts both.

use crate::pages::Pages;
use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_format::{Attr, FileKind, Generation, Ino};
use polvo_fusedev::abi::INodeNo;
use polvo_proto::InodeRef;
use std::collections::hash_map::Entry;

/// Where the low bits of the generation stand in a node id: between the slot (40 bits) and the region.
const GENERATION_SHIFT: u32 = 40;
const GENERATION_MASK: u64 = 0xff;

/// What the kernel, and with it programs (`st_ino`), call an inode: its number, and the low 8 bits of its generation
/// between slot and region. The same on every mount. Files that follow each other in a slot have different ones; only
/// every 256th has the same.
pub(crate) fn node_id(inode: InodeRef) -> INodeNo {
    if inode.ino == Ino::ROOT {
        return INodeNo::ROOT;
    }
    let generation = u64::from(inode.generation.0) & GENERATION_MASK;
    INodeNo(inode.ino.0 | generation << GENERATION_SHIFT)
}

/// [`node_id`] of an inode by its attributes.
pub(crate) fn node_id_of(attr: &Attr) -> INodeNo {
    node_id(InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    })
}

/// The inode number in a node id.
pub(crate) fn ino_of(node: INodeNo) -> Ino {
    Ino(node.0 & !(GENERATION_MASK << GENERATION_SHIFT))
}

/// Number of locks; a power of two.
const SHARDS: usize = 16;

/// One inode the kernel knows.
struct Known {
    generation: Generation,
    /// Replies that told the kernel of it, less what it has forgotten.
    lookups: u64,
    /// Of a file: what it has of its pages, which it loses with the inode.
    pages: Option<Pages>,
    /// For a directory: where and how it was last found.
    directory: Option<Box<FoundDirectory>>,
}

/// A directory as a reply has last shown it.
struct FoundDirectory {
    /// Shown as the number of `..`.
    parent: INodeNo,
    /// `None` for the root, which is never removed.
    attr: Option<Attr>,
}

/// The table. All methods may be called from any thread.
#[derive(Default)]
pub(crate) struct Inodes {
    shards: [Mutex<HashMap<INodeNo, Known>>; SHARDS],
}

impl Inodes {
    fn shard(&self, node: INodeNo) -> &Mutex<HashMap<INodeNo, Known>> {
        // Region and slot both vary; fold them.
        let folded = node.0 ^ node.0 >> 48 ^ node.0 >> 7;
        &self.shards[folded as usize % SHARDS]
    }

    /// Notes that a reply tells the kernel of an inode. Call before sending the reply: a forget may follow at once.
    pub(crate) fn remember(&self, attr: &Attr, parent: INodeNo) {
        let directory = (attr.kind == FileKind::Directory).then(|| {
            let attr = Some(*attr);
            Box::new(FoundDirectory { parent, attr })
        });
        let node = node_id_of(attr);
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_insert(Known {
            generation: attr.generation,
            lookups: 0,
            pages: None,
            directory: None,
        });
        known.lookups += 1;
        // Two replies may overtake each other: the later file of a slot has the greater generation.
        if (attr.generation.0.wrapping_sub(known.generation.0) as i32) >= 0 {
            if known.generation != attr.generation {
                known.pages = None;
            }
            known.generation = attr.generation;
            known.directory = directory;
        }
        debug_assert!(known.lookups > 0, "what the kernel was told of is known");
    }

    /// Notes the root, which the kernel knows from the start and never forgets.
    pub(crate) fn pin_root(&self, root: InodeRef) {
        let pinned = Known {
            generation: root.generation,
            lookups: u64::MAX / 2,
            pages: None,
            directory: Some(Box::new(FoundDirectory {
                parent: INodeNo::ROOT,
                attr: None,
            })),
        };
        self.shard(INodeNo::ROOT).lock().entry(INodeNo::ROOT).or_insert(pinned);
    }

    /// The inode under a node id; `None` for one that no reply has told of.
    pub(crate) fn get(&self, node: INodeNo) -> Option<InodeRef> {
        let shard = self.shard(node).lock();
        shard.get(&node).map(|known| InodeRef {
            ino: ino_of(node),
            generation: known.generation,
        })
    }

    /// Where a directory was last found; itself when unknown.
    pub(crate) fn parent(&self, directory: INodeNo) -> INodeNo {
        let shard = self.shard(directory).lock();
        shard
            .get(&directory)
            .and_then(|known| known.directory.as_ref())
            .map_or(directory, |found| found.parent)
    }

    /// What a directory was when it was last found, without names: for programs that have it open, or work in it, when
    /// it has been removed by way of another mount. (Files are held by who has them open; directories are not.)
    pub(crate) fn removed_directory(&self, node: INodeNo) -> Option<Attr> {
        let shard = self.shard(node).lock();
        let attr = shard.get(&node)?.directory.as_ref()?.attr?;
        Some(Attr { nlink: 0, ..attr })
    }

    /// The kernel forgets `lookups` replies.
    pub(crate) fn forget(&self, node: INodeNo, lookups: u64) {
        if let Entry::Occupied(mut known) = self.shard(node).lock().entry(node) {
            debug_assert!(known.get().lookups > 0, "what the kernel was told of is known");
            let left = known.get().lookups.saturating_sub(lookups);
            if left == 0 {
                known.remove();
            } else {
                known.get_mut().lookups = left;
            }
        }
    }

    /// What the kernel has of a file's pages, to be looked at or changed. `None`: it does not know the file.
    pub(crate) fn pages<T>(&self, file: InodeRef, f: impl FnOnce(&mut Option<Pages>) -> T) -> Option<T> {
        let node = node_id(file);
        let mut shard = self.shard(node).lock();
        let known = shard.get_mut(&node)?;
        (known.generation == file.generation).then(|| f(&mut known.pages))
    }

    /// What the kernel has of all files' pages, to be looked at or changed.
    pub(crate) fn all_pages(&self, mut f: impl FnMut(Ino, &mut Option<Pages>)) {
        for shard in &self.shards {
            for (node, known) in shard.lock().iter_mut() {
                f(ino_of(*node), &mut known.pages);
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

    /// The node id of generation `generation` in slot `slot` of region 0.
    fn node(slot: u64, generation: u32) -> INodeNo {
        node_id_of(&attr(slot, generation, FileKind::File))
    }

    #[test]
    fn files_that_follow_each_other_in_a_slot_have_different_node_ids() {
        let region = polvo_format::RegionId(0xabcd);
        for slot in [2, 1 << 20, (1 << 40) - 1] {
            let ino = Ino::new(region, slot);
            let ids = [1, 2, 255, 256, u32::MAX].map(|generation| node(ino.0, generation));
            assert!(ids.iter().all(|id| ino_of(*id) == ino && id.0 >> 48 == 0xabcd));
            for (n, id) in ids.iter().enumerate() {
                assert_eq!(
                    ids.iter().filter(|other| *other == id).count(),
                    if n == 2 || n == 4 { 2 } else { 1 }
                );
            }
        }
        assert_eq!(node(1, 7), INodeNo::ROOT, "the kernel knows no other number of it");
        assert_eq!(ino_of(INodeNo::ROOT), Ino::ROOT);
    }

    #[test]
    fn known_until_every_lookup_is_forgotten() {
        let inodes = Inodes::default();
        inodes.remember(&attr(7, 2, FileKind::File), INodeNo::ROOT);
        inodes.remember(&attr(7, 2, FileKind::File), INodeNo::ROOT);
        inodes.forget(node(7, 2), 1);
        assert_eq!(
            inodes.get(node(7, 2)),
            Some(InodeRef {
                ino: Ino(7),
                generation: Generation(2)
            })
        );
        inodes.forget(node(7, 2), 1);
        assert_eq!(inodes.get(node(7, 2)), None);
        inodes.forget(node(7, 2), 1);
        assert_eq!(inodes.len(), 0);
    }

    #[test]
    fn a_node_id_used_again_shows_its_new_file_even_when_replies_overtake() {
        let inodes = Inodes::default();
        let generation_of_7 = || inodes.get(node(7, 2)).map(|i| i.generation);
        inodes.remember(&attr(7, 258, FileKind::File), INodeNo::ROOT);
        inodes.remember(&attr(7, 2, FileKind::Directory), INodeNo(9));
        assert_eq!(generation_of_7(), Some(Generation(258)));
        inodes.remember(&attr(7, 514, FileKind::File), INodeNo::ROOT);
        assert_eq!(generation_of_7(), Some(Generation(514)));
        inodes.forget(node(7, 2), 2);
        assert!(generation_of_7().is_some(), "the third lookup is not forgotten yet");
    }

    #[test]
    fn directories_know_where_they_were_found() {
        let inodes = Inodes::default();
        let (eight, nine, unknown) = (node(8, 1), node(9, 1), INodeNo(1000));
        inodes.remember(&attr(8, 1, FileKind::Directory), INodeNo(5));
        inodes.remember(&attr(9, 1, FileKind::File), INodeNo(5));
        assert_eq!(inodes.parent(eight), INodeNo(5));
        inodes.remember(&attr(8, 1, FileKind::Directory), INodeNo(6));
        assert_eq!(inodes.parent(eight), INodeNo(6), "it was renamed");
        assert_eq!(inodes.parent(nine), nine);
        assert_eq!(inodes.parent(unknown), unknown);
        assert_eq!(inodes.removed_directory(eight).map(|a| a.nlink), Some(0));
        assert_eq!(inodes.removed_directory(nine), None, "a file");
    }

    #[test]
    fn the_root_outlives_any_forget_a_kernel_sends() {
        let inodes = Inodes::default();
        let root = InodeRef {
            ino: Ino::ROOT,
            generation: Generation(1),
        };
        inodes.pin_root(root);
        inodes.forget(INodeNo::ROOT, 1 << 40);
        assert_eq!(inodes.get(INodeNo::ROOT), Some(root));
        assert_eq!(inodes.parent(INodeNo::ROOT), INodeNo::ROOT);
    }
}
