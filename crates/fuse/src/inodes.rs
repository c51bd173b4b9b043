//! Inodes the kernel knows: node id to inode with generation, and how many lookups it will forget.
//!
//! A slot can be used again while the kernel still knows the file before it, which was deleted on another mount. So a node
//! id ([`node_id`]) is more than the slot's address: under the same id the kernel would find its old inode by a handle of
//! the new file, see another generation, and answer ESTALE without asking us.
//!
//! Requests carry no generation; it is kept here from the reply that told the kernel of the inode. Where two files do
//! share a node id, the reply carries the new generation, the kernel drops its old inode by itself, and its forgets for
//! both arrive under the one id, so one entry counts both.

use crate::moved::Place;
use crate::pages::Pages;
use foldhash::HashMap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use polvo_format::{Attr, FileKind, Generation, Ino};
use polvo_fusedev::abi::INodeNo;
use polvo_proto::InodeRef;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;

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
    /// What it is called there; empty where that was not said.
    name: Box<[u8]>,
    /// `None` for the root, which is never removed.
    attr: Option<Attr>,
}

/// The table. All methods may be called from any thread.
#[derive(Default)]
pub(crate) struct Inodes {
    shards: [Mutex<HashMap<INodeNo, Known>>; SHARDS],
    /// Directories by where they were found. Not locked together with a shard.
    places: Mutex<HashMap<PlaceKey, INodeNo>>,
    hasher: RandomState,
}

/// A directory, and the hash of a name of it.
type PlaceKey = (INodeNo, u64);

impl Inodes {
    fn shard(&self, node: INodeNo) -> &Mutex<HashMap<INodeNo, Known>> {
        // Region and slot both vary; fold them.
        let folded = node.0 ^ node.0 >> 48 ^ node.0 >> 7;
        &self.shards[folded as usize % SHARDS]
    }

    /// Notes that a reply tells the kernel of an inode. Call before sending the reply: a forget may follow at once. `name`: in `parent`, or
    /// empty. Gives where the kernel knows a directory that it is told of in another one now.
    pub(crate) fn remember(&self, attr: &Attr, parent: INodeNo, name: &[u8]) -> Option<Place> {
        let directory = (attr.kind == FileKind::Directory).then(|| {
            let (name, attr) = (name.into(), Some(*attr));
            Box::new(FoundDirectory { parent, name, attr })
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
        let (mut before, mut is_other) = (None, false);
        // Two replies may overtake each other: the later file of a slot has the greater generation.
        let is_latest = (attr.generation.0.wrapping_sub(known.generation.0) as i32) >= 0;
        if is_latest {
            is_other = known.generation != attr.generation;
            if is_other {
                known.pages = None;
            }
            known.generation = attr.generation;
            before = std::mem::replace(&mut known.directory, directory);
        }
        debug_assert!(known.lookups > 0, "what the kernel was told of is known");
        drop(shard);
        let before = before.filter(|before| !before.name.is_empty()).map(|before| Place {
            parent: before.parent,
            name: before.name,
        });
        let is_named = is_latest && attr.kind == FileKind::Directory && !name.is_empty();
        if before.is_some() || is_named {
            let mut places = self.places.lock();
            if let Some(before) = &before {
                self.leave(&mut places, node, before);
            }
            if is_named {
                places.insert(self.key(parent, name), node);
            }
        }
        before.filter(|before| is_named && !is_other && before.parent != parent)
    }

    fn key(&self, parent: INodeNo, name: &[u8]) -> PlaceKey {
        (parent, self.hasher.hash_one(name))
    }

    fn leave(&self, places: &mut HashMap<PlaceKey, INodeNo>, node: INodeNo, place: &Place) {
        let key = self.key(place.parent, &place.name);
        if places.get(&key) == Some(&node) {
            places.remove(&key);
        }
    }

    /// This mount has renamed, and so the kernel knows a directory by its new name, if it is one; `exchanged`: and the other way.
    pub(crate) fn renamed(&self, from: (INodeNo, &[u8]), to: (INodeNo, &[u8]), exchanged: bool) {
        let mut moved = Vec::new();
        {
            let mut places = self.places.lock();
            let mut take = |(parent, name)| places.remove(&self.key(parent, name));
            moved.extend(take(from).map(|node| (node, from, to)));
            let replaced = take(to).filter(|_| exchanged);
            moved.extend(replaced.map(|node| (node, to, from)));
            for &(node, _, (parent, name)) in &moved {
                places.insert(self.key(parent, name), node);
            }
        }
        for (node, from, to) in moved {
            let mut shard = self.shard(node).lock();
            let found = shard.get_mut(&node).and_then(|known| known.directory.as_mut());
            if let Some(found) = found.filter(|found| (found.parent, &found.name[..]) == from) {
                (found.parent, found.name) = (to.0, to.1.into());
            }
        }
    }

    /// Notes the root, which the kernel knows from the start and never forgets.
    pub(crate) fn pin_root(&self, root: InodeRef) {
        let pinned = Known {
            generation: root.generation,
            lookups: u64::MAX / 2,
            pages: None,
            directory: Some(Box::new(FoundDirectory {
                parent: INodeNo::ROOT,
                name: Box::default(),
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
        let mut gone = None;
        if let Entry::Occupied(mut known) = self.shard(node).lock().entry(node) {
            debug_assert!(known.get().lookups > 0, "what the kernel was told of is known");
            let left = known.get().lookups.saturating_sub(lookups);
            if left == 0 {
                gone = known.remove().directory;
            } else {
                known.get_mut().lookups = left;
            }
        }
        if let Some(FoundDirectory { parent, name, .. }) = gone.map(|found| *found) {
            self.leave(&mut self.places.lock(), node, &Place { parent, name });
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
        inodes.remember(&attr(7, 2, FileKind::File), INodeNo::ROOT, b"name");
        inodes.remember(&attr(7, 2, FileKind::File), INodeNo::ROOT, b"name");
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
        inodes.remember(&attr(7, 258, FileKind::File), INodeNo::ROOT, b"name");
        inodes.remember(&attr(7, 2, FileKind::Directory), INodeNo(9), b"name");
        assert_eq!(generation_of_7(), Some(Generation(258)));
        inodes.remember(&attr(7, 514, FileKind::File), INodeNo::ROOT, b"name");
        assert_eq!(generation_of_7(), Some(Generation(514)));
        inodes.forget(node(7, 2), 2);
        assert!(generation_of_7().is_some(), "the third lookup is not forgotten yet");
    }

    #[test]
    fn directories_know_where_they_were_found() {
        let inodes = Inodes::default();
        let (eight, nine, unknown) = (node(8, 1), node(9, 1), INodeNo(1000));
        inodes.remember(&attr(8, 1, FileKind::Directory), INodeNo(5), b"name");
        inodes.remember(&attr(9, 1, FileKind::File), INodeNo(5), b"name");
        assert_eq!(inodes.parent(eight), INodeNo(5));
        inodes.remember(&attr(8, 1, FileKind::Directory), INodeNo(6), b"name");
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

    #[test]
    fn a_directory_that_is_told_of_elsewhere_was_known_where_it_was() {
        let inodes = Inodes::default();
        let dir = attr(8, 1, FileKind::Directory);
        let was = |place: Option<Place>| place.map(|place| (place.parent, place.name));
        assert_eq!(was(inodes.remember(&dir, INodeNo(5), b"a")), None);
        assert_eq!(was(inodes.remember(&dir, INodeNo(5), b"b")), None, "no lock is needed");
        assert_eq!(
            was(inodes.remember(&dir, INodeNo(6), b"c")),
            Some((INodeNo(5), (*b"b").into()))
        );
        // by a handle: no name is said
        assert_eq!(was(inodes.remember(&dir, INodeNo(7), b"")), None);
        assert_eq!(was(inodes.remember(&dir, INodeNo(6), b"c")), None);
        // another one, in the same slot
        let next = attr(8, 2, FileKind::Directory);
        assert_eq!(was(inodes.remember(&next, INodeNo(5), b"a")), None);
        // this mount has renamed it
        inodes.renamed((INodeNo(5), b"a"), (INodeNo(6), b"b"), false);
        assert_eq!(was(inodes.remember(&next, INodeNo(6), b"b")), None, "that is known");
        let other = attr(10, 1, FileKind::Directory);
        assert_eq!(was(inodes.remember(&other, INodeNo(5), b"o")), None);
        inodes.renamed((INodeNo(5), b"o"), (INodeNo(6), b"b"), true);
        assert_eq!(
            was(inodes.remember(&other, INodeNo(7), b"x")),
            Some((INodeNo(6), (*b"b").into()))
        );
        assert_eq!(
            was(inodes.remember(&next, INodeNo(7), b"y")),
            Some((INodeNo(5), (*b"o").into()))
        );
        // found by a handle last, and so by no name; of a slot that a later file has; that is a file now
        assert_eq!(was(inodes.remember(&dir, INodeNo(7), b"")), None);
        let [old, new] = [1, 257].map(|generation| attr(11, generation, FileKind::Directory));
        assert_eq!(was(inodes.remember(&new, INodeNo(5), b"new")), None);
        assert_eq!(was(inodes.remember(&old, INodeNo(6), b"old")), None);
        let later = attr(11, 513, FileKind::File);
        assert_eq!(was(inodes.remember(&later, INodeNo(6), b"later")), None);
        for (attr, lookups) in [(&dir, 6), (&next, 3), (&other, 2), (&later, 3)] {
            inodes.forget(node_id_of(attr), lookups);
        }
        assert_eq!((inodes.len(), inodes.places.lock().len()), (0, 0), "nothing is left");
        let file = attr(9, 1, FileKind::File);
        assert_eq!(was(inodes.remember(&file, INodeNo(5), b"f")), None);
        assert_eq!(was(inodes.remember(&file, INodeNo(6), b"f")), None);
    }
}
