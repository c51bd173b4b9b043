//! Which open files programs may map, and which they read by way of the kernel's pages.
//!
//! The kernel does not ask when a file is mapped, so it is decided when the file is opened. A file that may not be mapped is
//! opened for passthrough to a file of sysfs, which cannot be mapped: reads and writes come to us nevertheless, since direct
//! I/O goes before passthrough, and `mmap` fails with ENODEV.
//!
//! The kernel wants all opens of an inode on a mount to agree: once one is for passthrough, all that follow have to be until
//! the last of those is closed; what was opened before is left alone, and cannot be mapped meanwhile. (Where such a file is
//! mapped shared already, the kernel refuses the open for passthrough with EIO.) An open that is answered otherwise while
//! another one brings the inode to passthrough would fail; so the first one for passthrough waits until those that were
//! answered just before have surely ended.
//!
//! A file that is opened for reading alone is read by way of pages ([`Opened::Cached`]; `pages`), unless it is being written on this
//! mount: something was written by way of an open file that nobody has closed since, or it is truncated. Where somebody begins to
//! write later, it is read by way of pages all the same, but then the kernel is told of no attributes that last, and so asks before
//! each read ([`Mappings::is_changed_beside_pages`]): what is written past its pages nobody tells it of.
//!
//! The kernel lets no file be opened for passthrough that it reads so, or that is opened with `O_DIRECT`. Who has no right to map it
//! then can do so ([`Opened::WithoutRight`]), but no page is read for him, and none that he has stored to is written back.

use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_fusedev::{BackingId, will_wait};
use polvo_proto::InodeRef;
use rustix::fs::fstatfs;
use std::collections::hash_map::Entry;
use std::fs::{File, read_to_string};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of locks; a power of two.
const SHARDS: usize = 16;
/// A program whose open was answered so long ago has its file; and how often that is looked at.
const OPENED: Duration = Duration::from_millis(50);
const OPENED_POLL: Duration = Duration::from_millis(5);
/// CAP_SYS_ADMIN of capabilities(7), as a bit of the masks in `/proc`.
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// All users of the machine, in `/proc/self/uid_map`.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
/// Type of sysfs in `statfs`.
const SYSFS_MAGIC: i64 = 0x6265_6572;
/// Files of sysfs that can be opened for reading and writing; the first that is there is used. Nothing is read or written.
const NEVER_MAPPED: [&str; 3] = [
    "/sys/module/fuse/parameters/max_user_bgreq",
    "/sys/kernel/rcu_normal",
    "/sys/kernel/profiling",
];

/// What programs may map shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedMappings {
    /// Files that no other client has open for writing; all that are opened read-only.
    One,
    /// Everything.
    All,
    /// Nothing.
    None,
}

/// One inode that is open on this mount.
struct OpenInode {
    /// Those among them that are read by way of pages included.
    mappable: usize,
    cached: usize,
    /// Open files by way of which it is written, and other changes of its bytes that are under way.
    writers: usize,
    unmappable: usize,
    /// Opens that may be mapped and whose answers are being sent; such a file may be closed before that is known here.
    answering: usize,
    /// When the last of those was sent.
    answered: Instant,
}

impl Default for OpenInode {
    fn default() -> OpenInode {
        OpenInode {
            mappable: 0,
            cached: 0,
            writers: 0,
            unmappable: 0,
            answering: 0,
            answered: Instant::now(),
        }
    }
}

impl OpenInode {
    /// Everybody who was told that the file may be mapped has it open.
    fn all_are_open(&self) -> bool {
        self.mappable == 0 || self.answering == 0 && self.answered.elapsed() >= OPENED
    }

    fn is_unused(&self) -> bool {
        self.mappable == 0 && self.unmappable == 0 && self.answering == 0 && self.writers == 0
    }
}

/// How a file is to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) may_be_mapped: bool,
    /// With `O_DIRECT`.
    pub(crate) direct: bool,
    /// By way of pages, if nothing is in the way.
    pub(crate) cached: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// It may be mapped, and is read by way of pages.
    Cached,
    Mappable,
    /// It may not be mapped, which nothing keeps a program from.
    WithoutRight,
    Unmappable,
    /// It would have to be unmappable, and with `O_DIRECT` nothing can be.
    NotDirectly,
}

/// A change of a file's bytes, other than by way of an open file.
pub(crate) struct Change<'a>(&'a Mappings, InodeRef);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.end_writing(self.1);
    }
}

/// All open inodes of a mount, as far as mappings and pages are concerned. All methods may be called from any thread.
pub(crate) struct Mappings {
    allowed: SharedMappings,
    /// Files may be read by way of pages.
    caches: bool,
    /// How many are.
    cached: AtomicUsize,
    /// What cannot be mapped, and what the kernel calls it.
    never_mapped: Option<File>,
    backing: OnceLock<Option<BackingId>>,
    inodes: [Mutex<HashMap<InodeRef, OpenInode>>; SHARDS],
}

impl Mappings {
    pub(crate) fn new(allowed: SharedMappings, caches: bool) -> Mappings {
        Mappings {
            allowed,
            caches,
            cached: AtomicUsize::new(0),
            never_mapped: None,
            backing: OnceLock::new(),
            inodes: std::array::from_fn(|_| Mutex::new(HashMap::default())),
        }
    }

    /// What programs may map.
    pub(crate) fn allowed(&self) -> SharedMappings {
        self.allowed
    }

    /// Makes ready to refuse mappings of single files.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub(crate) fn prepare(&mut self) -> Result<(), &'static str> {
        if !may_register_files() {
            return Err("this process lacks CAP_SYS_ADMIN in the first user namespace");
        }
        let file = NEVER_MAPPED.iter().find_map(|path| open_sysfs(path).ok());
        self.never_mapped = Some(file.ok_or("no file of sysfs can be opened for writing")?);
        Ok(())
    }

    /// Shared mappings are refused altogether.
    pub(crate) fn refuse_all(&mut self) {
        self.allowed = SharedMappings::None;
    }

    fn shard(&self, inode: InodeRef) -> &Mutex<HashMap<InodeRef, OpenInode>> {
        let folded = inode.ino.0 ^ inode.ino.0 >> 48 ^ inode.ino.0 >> 7;
        &self.inodes[folded as usize % SHARDS]
    }

    /// The backing file of what may not be mapped. `register`: gives it to the kernel, the first time. `None`: the kernel does not
    /// want it. Then such files are opened like others; what is stored to mappings of them is not written back.
    pub(crate) fn backing(&self, register: impl FnOnce(&File) -> io::Result<BackingId>) -> Option<&BackingId> {
        let registered = self.backing.get_or_init(|| {
            let registered = register(self.never_mapped.as_ref()?);
            registered
                .inspect_err(|error| tracing::error!(%error, "the kernel does not let shared mappings be refused"))
                .ok()
        });
        registered.as_ref()
    }

    /// Files may be read by way of pages.
    pub(crate) fn cache_pages(&self) -> bool {
        self.caches
    }

    fn are_counted(&self) -> bool {
        self.allowed == SharedMappings::One || self.caches
    }

    /// A file is about to be opened: how. Whoever opens it calls [`Mappings::answered`] after the answer, and
    /// [`Mappings::closed`] at the end. May wait a moment.
    pub(crate) fn open(&self, inode: InodeRef, wanted: Wanted) -> Opened {
        if !self.are_counted() {
            return Opened::Mappable;
        }
        let shard = self.shard(inode);
        let mut inodes = shard.lock();
        let open = inodes.entry(inode).or_default();
        if wanted.direct && open.unmappable > 0 {
            return Opened::NotDirectly;
        }
        let cached = wanted.cached && open.writers == 0 && open.unmappable == 0;
        if cached || open.unmappable == 0 && (wanted.may_be_mapped || wanted.direct || open.cached > 0) {
            open.mappable += 1;
            open.answering += 1;
            open.cached += usize::from(cached);
            self.cached.fetch_add(usize::from(cached), Ordering::SeqCst);
            return match wanted.may_be_mapped {
                _ if cached => Opened::Cached,
                true => Opened::Mappable,
                false => Opened::WithoutRight,
            };
        }
        open.unmappable += 1;
        will_wait();
        // from here on nobody is told that it may be mapped
        while inodes.get(&inode).is_some_and(|open| !open.all_are_open()) {
            drop(inodes);
            std::thread::sleep(OPENED_POLL);
            inodes = shard.lock();
        }
        Opened::Unmappable
    }

    /// A change of a file's bytes begins, which ends with what this returns.
    pub(crate) fn change(&self, inode: InodeRef) -> Change<'_> {
        self.begin_writing(inode);
        Change(self, inode)
    }

    /// From here on a file is written, until [`Mappings::end_writing`].
    pub(crate) fn begin_writing(&self, inode: InodeRef) {
        if self.caches {
            self.shard(inode).lock().entry(inode).or_default().writers += 1;
        }
    }

    /// It was written by way of an open file that a program has closed.
    pub(crate) fn end_writing(&self, inode: InodeRef) {
        if self.caches {
            self.count_down(inode, |open| &mut open.writers);
        }
    }

    /// The file is read by way of pages, and may be changed past them meanwhile.
    #[inline]
    pub(crate) fn is_changed_beside_pages(&self, inode: InodeRef) -> bool {
        if self.cached.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let inodes = self.shard(inode).lock();
        inodes
            .get(&inode)
            .is_some_and(|open| open.cached > 0 && open.writers > 0)
    }

    /// The kernel has been told so.
    pub(crate) fn answered(&self, inode: InodeRef, opened: Opened) {
        if matches!(opened, Opened::Cached | Opened::Mappable | Opened::WithoutRight) {
            self.count_down(inode, |open| {
                open.answered = Instant::now();
                &mut open.answering
            });
        }
    }

    /// The kernel has let go of a file that was opened so.
    pub(crate) fn closed(&self, inode: InodeRef, opened: Opened) {
        if opened == Opened::Cached {
            self.count_down(inode, |open| &mut open.cached);
            self.cached.fetch_sub(1, Ordering::SeqCst);
        }
        match opened {
            Opened::Cached | Opened::Mappable | Opened::WithoutRight => {
                self.count_down(inode, |open| &mut open.mappable);
            }
            Opened::Unmappable => self.count_down(inode, |open| &mut open.unmappable),
            Opened::NotDirectly => {}
        }
    }

    fn count_down(&self, inode: InodeRef, count: impl FnOnce(&mut OpenInode) -> &mut usize) {
        if let Entry::Occupied(mut open) = self.shard(inode).lock().entry(inode) {
            let counted = count(open.get_mut());
            debug_assert!(*counted > 0, "what is counted ends once");
            *counted = counted.saturating_sub(1);
            if open.get().is_unused() {
                open.remove();
            }
        }
    }
}

fn open_sysfs(path: &str) -> io::Result<File> {
    let file = File::options().read(true).write(true).open(path)?;
    match fstatfs(&file)?.f_type as i64 {
        SYSFS_MAGIC => Ok(file),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Whether the kernel lets this process register files for passthrough.
fn may_register_files() -> bool {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let users = read_to_string("/proc/self/uid_map").unwrap_or_default();
    has_sys_admin(&status) && users.split_whitespace().eq(ALL_USERS)
}

fn has_sys_admin(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_SYS_ADMIN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    const FILE: InodeRef = InodeRef {
        ino: Ino(7),
        generation: Generation(1),
    };

    fn wanted(may_be_mapped: bool, direct: bool) -> Wanted {
        Wanted {
            may_be_mapped,
            direct,
            cached: false,
        }
    }

    const TO_READ: Wanted = Wanted {
        may_be_mapped: true,
        direct: false,
        cached: true,
    };
    const TO_WRITE: Wanted = Wanted {
        may_be_mapped: false,
        direct: false,
        cached: false,
    };

    #[test]
    fn files_that_are_written_here_are_not_opened_to_be_read_by_way_of_pages() {
        let mappings = Mappings::new(SharedMappings::One, true);
        assert_eq!(mappings.open(FILE, TO_READ), Opened::Cached);
        mappings.answered(FILE, Opened::Cached);
        assert!(!mappings.is_changed_beside_pages(FILE));
        let writer = mappings.open(FILE, TO_WRITE);
        assert_eq!(writer, Opened::WithoutRight, "the kernel refuses passthrough");
        assert!(!mappings.is_changed_beside_pages(FILE));
        mappings.begin_writing(FILE);
        assert!(mappings.is_changed_beside_pages(FILE));
        assert_eq!(mappings.open(FILE, TO_READ), Opened::Mappable, "past the pages");
        mappings.answered(FILE, Opened::Mappable);
        mappings.answered(FILE, writer);
        mappings.closed(FILE, Opened::Mappable);
        mappings.closed(FILE, writer);
        mappings.end_writing(FILE);
        assert!(!mappings.is_changed_beside_pages(FILE));
        {
            let _truncated = mappings.change(FILE);
            assert!(mappings.is_changed_beside_pages(FILE));
            assert_eq!(mappings.open(FILE, TO_READ), Opened::Mappable);
            mappings.answered(FILE, Opened::Mappable);
            mappings.closed(FILE, Opened::Mappable);
        }
        mappings.closed(FILE, Opened::Cached);
        assert_eq!(mappings.open(FILE, TO_WRITE), Opened::Unmappable);
        assert_eq!(
            mappings.open(FILE, TO_READ),
            Opened::Unmappable,
            "as the kernel wants it"
        );
        mappings.closed(FILE, Opened::Unmappable);
        mappings.closed(FILE, Opened::Unmappable);
        assert!(mappings.inodes.iter().all(|shard| shard.lock().is_empty()));
        assert_eq!(mappings.cached.load(Ordering::SeqCst), 0);
    }

    fn opened_and_answered(mappings: &Mappings, may_be_mapped: bool) -> Opened {
        let opened = mappings.open(FILE, wanted(may_be_mapped, false));
        if opened == Opened::Mappable {
            mappings.answered(FILE, opened);
        }
        opened
    }

    #[test]
    fn what_is_unmappable_stays_so_until_the_last_such_file_is_closed() {
        let mappings = Mappings::new(SharedMappings::One, false);
        assert_eq!(opened_and_answered(&mappings, true), Opened::Mappable);
        assert_eq!(opened_and_answered(&mappings, false), Opened::Unmappable);
        assert_eq!(opened_and_answered(&mappings, true), Opened::Unmappable);
        assert_eq!(mappings.open(FILE, wanted(true, true)), Opened::NotDirectly);
        mappings.closed(FILE, Opened::Unmappable);
        assert_eq!(opened_and_answered(&mappings, true), Opened::Unmappable);
        mappings.closed(FILE, Opened::Unmappable);
        mappings.closed(FILE, Opened::Unmappable);
        assert_eq!(opened_and_answered(&mappings, true), Opened::Mappable);
        assert_eq!(
            mappings.open(FILE, wanted(false, true)),
            Opened::WithoutRight,
            "direct I/O maps nothing"
        );
        mappings.answered(FILE, Opened::Mappable);
        for _ in 0..3 {
            mappings.closed(FILE, Opened::Mappable);
        }
        assert!(mappings.inodes.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn an_unmappable_open_waits_for_mappable_ones_under_way() {
        let mappings = Mappings::new(SharedMappings::One, false);
        assert_eq!(mappings.open(FILE, wanted(true, false)), Opened::Mappable);
        std::thread::scope(|scope| {
            let unmappable = scope.spawn(|| mappings.open(FILE, wanted(false, false)));
            while mappings
                .shard(FILE)
                .lock()
                .get(&FILE)
                .is_none_or(|open| open.unmappable == 0)
            {
                std::thread::yield_now();
            }
            assert!(!unmappable.is_finished());
            mappings.answered(FILE, Opened::Mappable);
            assert_eq!(unmappable.join().expect("no panic"), Opened::Unmappable);
        });
    }

    #[test]
    fn a_file_may_be_closed_before_it_is_known_that_it_was_opened() {
        let mappings = Mappings::new(SharedMappings::One, false);
        assert_eq!(mappings.open(FILE, wanted(true, false)), Opened::Mappable);
        mappings.closed(FILE, Opened::Mappable);
        assert_eq!(mappings.open(FILE, wanted(true, false)), Opened::Mappable);
        for _ in 0..2 {
            mappings.answered(FILE, Opened::Mappable);
        }
        assert!(!mappings.shard(FILE).lock().is_empty(), "the second one has it open");
        mappings.closed(FILE, Opened::Mappable);
        assert!(mappings.shard(FILE).lock().is_empty());
    }

    #[test]
    fn nothing_is_counted_where_all_or_nothing_may_be_mapped() {
        for allowed in [SharedMappings::All, SharedMappings::None] {
            let mappings = Mappings::new(allowed, false);
            assert_eq!(mappings.open(FILE, wanted(false, false)), Opened::Mappable);
            assert!(mappings.inodes.iter().all(|shard| shard.lock().is_empty()));
        }
    }

    #[test]
    fn capabilities_of_this_process() {
        assert!(has_sys_admin("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_sys_admin("CapEff:\t00000000a80425fb\n"));
        assert!(!has_sys_admin(""));
    }
}
