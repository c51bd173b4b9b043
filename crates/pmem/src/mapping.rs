//! A pool in our address space: a DAX device or a file, mapped whole, shared, read-write.
//!
//! Two descriptors of the pool are kept, from two `open` calls, because an advisory lock belongs to what `open` made and
//! lives as long as any copy of it: the *shared* one is mapped and handed to peers on the host, the *lock* one never
//! leaves this process. So a client that outlives a killed daemon does not keep the pool locked.

use crate::copy::Vector;
use crate::first_touch::FirstTouch;
use crate::{Persistence, PmemError, UnknownName};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use strum::{Display, EnumString};

/// What a pool lies on; decides how bytes become durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Display, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown_medium)]
pub enum Medium {
    /// `/dev/dax*`
    DevDax,
    /// File on a DAX mount, mapped with MAP_SYNC.
    FsDax,
    /// tmpfs: survives the process, not the machine.
    Tmpfs,
    /// Plain file: page cache; `sync` = msync.
    File,
    /// Simulated.
    Sim,
}

fn unknown_medium(name: &str) -> UnknownName {
    UnknownName {
        kind: "medium",
        given: name.into(),
        known: "devdax, fsdax, tmpfs, file, sim",
    }
}

/// A mapped pool. Bounds are checked by `Pmem`.
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
    pub(crate) medium: Medium,
    pub(crate) persistence: Persistence,
    pub(crate) vector: Vector,
    /// Shortest `write_streaming` that goes past the cache, bytes.
    pub(crate) streaming_from: usize,
    /// Where it helps.
    first_touch: Option<FirstTouch>,
    shared: OwnedFd,
    /// Held for its lock; `None` for mappings of a received descriptor.
    lock: Option<OwnedFd>,
    path: PathBuf,
}

// SAFETY: the mapping lives as long as the value and is not tied to a thread; it is only accessed by the copies of
// `copy` and by atomics, which are defined for concurrent use as far as the hardware goes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Non-temporal stores beat the cache for durable media from the first line on (no read for ownership, no flush
/// afterwards); where nothing has to be flushed they only pay for what is too big to be read again soon.
const STREAMING_FROM_DURABLE: usize = 64;
const STREAMING_FROM_VOLATILE: usize = 4096;

/// Words of a mapping are aligned because it begins at a multiple of this.
const PAGE: usize = 4096;

/// Bytes that tmpfs gives at a time where it gives more than a page.
const HUGE_PAGE: usize = 2 << 20;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

impl Mapping {
    /// Maps an existing pool.
    pub(crate) fn open(path: &Path, persistence: Option<Persistence>) -> Result<Mapping, PmemError> {
        let (shared, stat) = open_pool(path, OFlags::empty())?;
        let lock = lock(path, &stat)?;
        let len = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => DaxDevice::of(path, &stat)?.size,
            _ => {
                // The size is taken after the lock: a `create` in another process may just have changed it.
                let stat = rustix::fs::fstat(&shared).map_err(|e| os(path, "stat", e))?;
                let len = stat.st_size as u64;
                if len == 0 {
                    return Err(unusable(path, "the file is empty (has it been formatted?)"));
                }
                // Holes would become SIGBUS when the file system is full at the time of a store.
                if (stat.st_blocks as u64) * 512 < len {
                    allocate(path, &shared, len)?;
                }
                len
            }
        };
        Mapping::map(path, shared, Some(lock), len, persistence, None)
    }

    /// Maps a copy of an existing pool: pages are copied as they are written to, the pool stays as it is. `None` for a DAX
    /// device, which the kernel does not map that way.
    pub(crate) fn open_private(path: &Path) -> Result<Option<Mapping>, PmemError> {
        let (shared, stat) = open_pool(path, OFlags::empty())?;
        let lock = lock(path, &stat)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(&shared).map_err(|e| os(path, "stat", e))?;
        let len = usize::try_from(stat.st_size).map_err(|_| unusable(path, "it does not fit in the address space"))?;
        if len == 0 {
            return Err(unusable(path, "the file is empty (has it been formatted?)"));
        }
        // NORESERVE: few pages will be written to, and memory for all of them need not be there
        let base = mmap(&shared, len, MapFlags::PRIVATE | MapFlags::NORESERVE).map_err(|e| os(path, "map", e))?;
        assert!((base as usize).is_multiple_of(PAGE), "the kernel maps at pages");
        Ok(Some(Mapping {
            base,
            len,
            medium: Medium::Tmpfs,
            persistence: Persistence::None,
            vector: Vector::detect(),
            streaming_from: STREAMING_FROM_VOLATILE,
            first_touch: None,
            shared,
            lock: Some(lock),
            path: path.to_owned(),
        }))
    }

    /// Makes the pool and maps it.
    pub(crate) fn create(path: &Path, len: u64, persistence: Option<Persistence>) -> Result<Mapping, PmemError> {
        if len == 0 || len > i64::MAX as u64 {
            return Err(unusable(path, format!("{len} bytes is no size for a pool")));
        }
        let existed = path.symlink_metadata().is_ok();
        let (shared, stat) = open_pool(path, OFlags::CREATE)?;
        let lock = lock(path, &stat)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
            let size = DaxDevice::of(path, &stat)?.size;
            if len > size {
                return Err(unusable(
                    path,
                    format!("the device has {size} bytes, {len} were asked for"),
                ));
            }
            return Mapping::map(path, shared, Some(lock), size, persistence, None);
        }
        // Down to nothing first: a pool starts as zeros.
        let sized = rustix::fs::ftruncate(&shared, 0)
            .and_then(|()| rustix::fs::ftruncate(&shared, len))
            .map_err(|e| os(path, "set size", e))
            .and_then(|()| {
                take_huge_pages(&shared, len);
                // What could be had of the space is given back.
                allocate(path, &shared, len).inspect_err(|_| {
                    let _ = rustix::fs::ftruncate(&shared, 0);
                })
            });
        let mapped = sized.and_then(|()| Mapping::map(path, shared, Some(lock), len, persistence, None));
        if mapped.is_err() && !existed {
            // Ours and useless. The error that is returned says more than one of this removal could.
            let _ = fs::remove_file(path);
        }
        mapped
    }

    /// Maps a descriptor that another process on this host has sent.
    pub(crate) fn from_fd(
        fd: OwnedFd,
        len: u64,
        persistence: Persistence,
        medium: Medium,
    ) -> Result<Mapping, PmemError> {
        let path = Path::new("received descriptor");
        let stat = rustix::fs::fstat(&fd).map_err(|e| os(path, "stat", e))?;
        let size = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => DaxDevice::of(path, &stat)?.size,
            FileType::RegularFile => stat.st_size as u64,
            _ => return Err(unusable(path, "it is neither a file nor a DAX device")),
        };
        if len == 0 || len > size {
            return Err(unusable(path, format!("it has {size} bytes, {len} were announced")));
        }
        Mapping::map(path, fd, None, len, Some(persistence), Some(medium))
    }

    /// `medium`: what the peer says; a DAX file is still mapped with MAP_SYNC, or not at all.
    fn map(
        path: &Path,
        shared: OwnedFd,
        lock: Option<OwnedFd>,
        len: u64,
        persistence: Option<Persistence>,
        medium: Option<Medium>,
    ) -> Result<Mapping, PmemError> {
        let len = usize::try_from(len).map_err(|_| unusable(path, "it does not fit in the address space"))?;
        let stat = rustix::fs::fstat(&shared).map_err(|e| os(path, "stat", e))?;
        let (base, found) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => (mmap(&shared, len, MapFlags::SHARED), Medium::DevDax),
            _ if is_tmpfs(path, &shared)? => (mmap(&shared, len, MapFlags::SHARED), Medium::Tmpfs),
            _ => match mmap(&shared, len, MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
                Err(Errno::OPNOTSUPP | Errno::INVAL) => (mmap(&shared, len, MapFlags::SHARED), Medium::File),
                mapped => (mapped, Medium::FsDax),
            },
        };
        let base = base.map_err(|e| os(path, "map", e))?;
        assert!((base as usize).is_multiple_of(PAGE), "the kernel maps at pages");
        // From here on `mapping` unmaps when dropped.
        let mut mapping = Mapping {
            base,
            len,
            medium: found,
            persistence: Persistence::None,
            vector: Vector::detect(),
            streaming_from: STREAMING_FROM_VOLATILE,
            first_touch: None,
            shared,
            lock,
            path: path.to_owned(),
        };
        if let Some(medium) = medium
            && medium != found
        {
            return Err(unusable(path, format!("announced as {medium}, but it is {found} here")));
        }
        mapping.persistence = match persistence {
            Some(chosen) => chosen,
            None => default_persistence(path, found, &stat)?,
        };
        // a wrong configuration is an error, and no illegal instruction
        if !mapping.persistence.is_supported() {
            return Err(PmemError::NotSupported(mapping.persistence));
        }
        if mapping.persistence != Persistence::None {
            mapping.streaming_from = STREAMING_FROM_DURABLE;
        }
        if found == Medium::Tmpfs {
            mapping.first_touch = Some(FirstTouch::new(len));
            // Advice only: where the administrator lets tmpfs have huge pages, fewer faults and TLB misses.
            // SAFETY: exactly the range mapped above; the advice changes no contents.
            let _ = unsafe { madvise(base.cast(), len, Advice::LinuxHugepage) };
        }
        tracing::debug!(path = %path.display(), len, medium = %found, persistence = %mapping.persistence, "pool mapped");
        Ok(mapping)
    }

    /// First byte.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has pages entered that are about to be stored to, many at a time, where that is faster than one by one.
    ///
    /// # Safety
    /// `len` bytes at `at` lie within the mapping.
    #[inline(always)]
    pub(crate) unsafe fn enter_pages(&self, at: usize, len: usize) {
        if let Some(first_touch) = &self.first_touch {
            // SAFETY: the caller's; there is one for tmpfs only.
            unsafe { first_touch.before_store(self.base, self.len, at, len) };
        }
    }

    /// Descriptor without the lock.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// Puts a private mapping of the newer descriptor in the place of this one, and that descriptor in the place of ours. The
    /// kernel does each in one step: at every moment there is something behind the addresses and the number. `announce` is called
    /// before that, once nothing but the exchange itself can fail.
    pub(crate) fn retire(&self, newer: BorrowedFd<'_>, announce: impl FnOnce()) -> Result<(), PmemError> {
        if self.medium == Medium::DevDax {
            return Err(unusable(&self.path, "a DAX device cannot be mapped privately"));
        }
        let failed = |e| os(&self.path, "map anew", e);
        // NORESERVE: no page of it will be written to but by who is in the middle of it
        let private = mmap(newer, self.len, MapFlags::PRIVATE | MapFlags::NORESERVE).map_err(failed)?;
        debug_assert!(private != self.base, "a mapping of its own");
        announce();
        // SAFETY: the new mapping has been made just now, is as long, and is known to nobody; the old one is ours, of the same
        // addresses after that, and only accessed by copies and atomics that do not mind what lies behind.
        let moved = unsafe {
            let to = self.base.cast();
            rustix::mm::mremap_fixed(private.cast(), self.len, self.len, rustix::mm::MremapFlags::MAYMOVE, to)
        };
        if let Err(error) = moved {
            // SAFETY: made here, and still where it was.
            let _ = unsafe { rustix::mm::munmap(private.cast(), self.len) };
            return Err(failed(error));
        }
        // SAFETY: both descriptors are open; ours stays open, with another file behind it, and nobody closes it but its owner.
        match unsafe { libc::dup3(newer.as_raw_fd(), self.shared.as_raw_fd(), libc::O_CLOEXEC) } {
            -1 => Err(PmemError::Os {
                path: self.path.display().to_string(),
                what: "replace the descriptor",
                source: std::io::Error::last_os_error(),
            }),
            _ => Ok(()),
        }
    }

    /// Where it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes dirty pages of the page cache to the file.
    pub(crate) fn msync(&self) -> Result<(), PmemError> {
        // SAFETY: exactly our mapping.
        unsafe { rustix::mm::msync(self.base.cast(), self.len, MsyncFlags::SYNC) }
            .map_err(|e| os(&self.path, "msync", e))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `mmap` gave us; nobody can hold a reference into it, `Pmem` hands out copies only, and
        // users of `as_mut_ptr` keep the pool alive (its contract).
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.cast(), self.len) } {
            tracing::error!(path = %self.path.display(), %error, "munmap");
        }
        // Closing alone would leave the pool locked as long as a process that is being started has a copy of the descriptor.
        if let Some(lock) = &self.lock
            && let Err(error) = rustix::fs::flock(lock, FlockOperation::Unlock)
        {
            tracing::error!(path = %self.path.display(), %error, "unlock");
        }
    }
}

fn mmap(fd: impl AsFd, len: usize, flags: MapFlags) -> Result<*mut u8, Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses; it aliases no Rust object.
    unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
            fd,
            0,
        )
        .map(|p| p.cast())
    }
}

fn os(path: &Path, what: &'static str, errno: Errno) -> PmemError {
    PmemError::Os {
        path: path.display().to_string(),
        what,
        source: errno.into(),
    }
}

fn unusable(path: &Path, why: impl Into<String>) -> PmemError {
    PmemError::Unusable {
        path: path.display().to_string(),
        why: why.into(),
    }
}

/// Opens a regular file or character device, anything else is refused.
fn open_pool(path: &Path, flags: OFlags) -> Result<(OwnedFd, Stat), PmemError> {
    // NONBLOCK: opening a FIFO must not hang. It means nothing for files and DAX devices.
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| match e {
        Errno::ISDIR => unusable(path, "it is a directory"),
        e => os(path, "open", e),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| os(path, "stat", e))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::CharacterDevice => Ok((fd, stat)),
        FileType::Directory => Err(unusable(path, "it is a directory")),
        FileType::BlockDevice => Err(unusable(
            path,
            "it is a block device; use /dev/dax* or a file on a file system mounted with dax",
        )),
        _ => Err(unusable(path, "it is neither a file nor a DAX device")),
    }
}

/// Takes the lock that keeps a second process (or a second `open` in this one) off the pool.
fn lock(path: &Path, pool: &Stat) -> Result<OwnedFd, PmemError> {
    let (fd, stat) = open_pool(path, OFlags::empty())?;
    if (stat.st_dev, stat.st_ino) != (pool.st_dev, pool.st_ino) {
        return Err(unusable(path, "it was replaced while it was being opened; try again"));
    }
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(fd),
        Err(Errno::WOULDBLOCK) => Err(PmemError::Locked {
            path: path.display().to_string(),
        }),
        Err(e) => Err(os(path, "lock", e)),
    }
}

/// Gives every byte of the file its space, so that no later store can fail (as SIGBUS) for want of it.
fn allocate(path: &Path, fd: &OwnedFd, len: u64) -> Result<(), PmemError> {
    const ATTEMPTS: u32 = 100;
    for _ in 0..ATTEMPTS {
        // SAFETY: a plain system call on a descriptor that we own; `len` fits (checked by the callers against i64).
        match unsafe { libc::posix_fallocate(fd.as_raw_fd(), 0, len as libc::off_t) } {
            0 => return Ok(()),
            libc::EINTR => continue,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => {
                return Err(PmemError::NoSpace {
                    path: path.display().to_string(),
                    len,
                });
            }
            e => return Err(os(path, "allocate", Errno::from_raw_os_error(e))),
        }
    }
    Err(os(path, "allocate", Errno::INTR))
}

/// Takes a new pool's space in huge pages where tmpfs gives them to who asks for them (`huge=advise`): by a mapping, since
/// with [`allocate`] there is nobody to ask, and what it has taken stays in small pages. That takes what is left, too: here
/// nothing fails.
fn take_huge_pages(fd: &OwnedFd, len: u64) {
    let Ok(len) = usize::try_from(len) else { return };
    if len < HUGE_PAGE || !gives_huge_pages(fd) {
        return;
    }
    let Ok(base) = mmap(fd, len, MapFlags::SHARED) else {
        return;
    };
    // SAFETY: exactly the range that was just mapped; the advice changes no contents.
    let advised = unsafe { madvise(base.cast(), len, Advice::LinuxHugepage) };
    let mut at = 0;
    while advised.is_ok() && at + HUGE_PAGE <= len {
        // SAFETY: within the range; entering pages changes no byte.
        if unsafe { madvise(base.add(at).cast(), HUGE_PAGE, Advice::LinuxPopulateWrite) }.is_err() {
            break;
        }
        at += HUGE_PAGE;
    }
    // SAFETY: our own mapping, to which nothing points any more.
    let _ = unsafe { rustix::mm::munmap(base.cast(), len) };
}

/// Is that a file of a tmpfs that is mounted with `huge=advise`?
fn gives_huge_pages(fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let device = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|mount| {
        let is_it = mount.split(' ').nth(2) == Some(&device);
        let options = mount.rsplit(' ').next().unwrap_or_default();
        is_it && mount.contains(" - tmpfs ") && options.split(',').any(|option| option == "huge=advise")
    })
}

fn is_tmpfs(path: &Path, fd: &OwnedFd) -> Result<bool, PmemError> {
    let kind = rustix::fs::fstatfs(fd).map_err(|e| os(path, "statfs", e))?.f_type as u64 & 0xffff_ffff;
    Ok([TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind))
}

/// What sysfs says about a DAX character device.
struct DaxDevice {
    /// Bytes, a multiple of the device's alignment.
    size: u64,
}

impl DaxDevice {
    fn of(path: &Path, stat: &Stat) -> Result<DaxDevice, PmemError> {
        let sys = sysfs("char", stat.st_rdev);
        let is_dax = fs::canonicalize(sys.join("subsystem")).is_ok_and(|s| s.ends_with("dax"));
        if !is_dax {
            return Err(unusable(path, "it is a character device, but no DAX device"));
        }
        let number = |name: &str| -> Option<u64> { fs::read_to_string(sys.join(name)).ok()?.trim().parse().ok() };
        let size = number("size").ok_or_else(|| unusable(path, "sysfs does not tell the size of the device"))?;
        // Mappings have to be whole multiples of the alignment; older kernels do not tell it, 2 MiB is their default.
        let align = number("align").filter(|a| a.is_power_of_two()).unwrap_or(2 << 20);
        match size & !(align - 1) {
            0 => Err(unusable(
                path,
                format!("the device has {size} bytes, less than its alignment of {align}"),
            )),
            size => Ok(DaxDevice { size }),
        }
    }
}

fn sysfs(class: &str, device: u64) -> PathBuf {
    PathBuf::from(format!(
        "/sys/dev/{class}/{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    ))
}

/// What the medium needs here when the configuration does not say.
fn default_persistence(path: &Path, medium: Medium, stat: &Stat) -> Result<Persistence, PmemError> {
    let device = match medium {
        Medium::Tmpfs | Medium::File | Medium::Sim => return Ok(Persistence::None),
        Medium::DevDax => sysfs("char", stat.st_rdev),
        Medium::FsDax => sysfs("block", stat.st_dev),
    };
    if caches_are_persistent(&device) {
        return Ok(Persistence::None);
    }
    match Persistence::best() {
        Persistence::None => Err(unusable(
            path,
            "this CPU has no cache flush that we know; say `none` if its caches are persistent",
        )),
        best => Ok(best),
    }
}

/// eADR: the NVDIMM region above the device says that what is in the CPU's caches survives.
fn caches_are_persistent(device: &Path) -> bool {
    fs::canonicalize(device).is_ok_and(|device| {
        device
            .ancestors()
            .find_map(|above| fs::read_to_string(above.join("persistence_domain")).ok())
            .is_some_and(|domain| domain.trim() == "cpu_cache")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_media_are_read_back() {
        for m in [Medium::DevDax, Medium::FsDax, Medium::Tmpfs, Medium::File, Medium::Sim] {
            assert_eq!(m.to_string().parse::<Medium>().unwrap(), m);
        }
        assert!("ramdisk".parse::<Medium>().is_err());
    }

    #[test]
    fn persistent_caches_are_found_above_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("region0/namespace0.0/block/pmem0");
        fs::create_dir_all(&device).unwrap();
        assert!(!caches_are_persistent(&device));
        fs::write(dir.path().join("region0/persistence_domain"), "memory_controller\n").unwrap();
        assert!(!caches_are_persistent(&device));
        fs::write(dir.path().join("region0/persistence_domain"), "cpu_cache\n").unwrap();
        assert!(caches_are_persistent(&device));
        assert!(!caches_are_persistent(&dir.path().join("absent")));
    }
}
