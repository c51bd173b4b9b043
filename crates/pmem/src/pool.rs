//! One pool, whatever it lies on.

use crate::fetch::fetch_to_write;
use crate::incarnation;
use crate::mapping::Mapping;
use crate::sim::{CrashImage, SimMedium};
use crate::{Medium, Persistence, PmemError, persistence};
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};

/// One mapped pool. All access goes through it; offsets out of range are a caller's bug and panic
/// (callers validate what came from media or wire first). Concurrent access is defined: aligned 8-byte words are never
/// torn, larger copies may be.
pub struct Pmem {
    backing: Backing,
    len: u64,
    /// Number of this incarnation, once it has begun; 0 before.
    incarnation: AtomicU64,
    /// See [`Pmem::retire`].
    retired: AtomicBool,
}

enum Backing {
    Mapped(Mapping),
    Sim(Box<SimMedium>),
}

impl std::fmt::Debug for Pmem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pmem")
            .field("path", &self.path())
            .field("len", &self.len)
            .field("medium", &self.medium())
            .field("persistence", &self.persistence())
            .finish()
    }
}

impl Pmem {
    fn mapped(mapping: Mapping) -> Arc<Pmem> {
        Arc::new(Pmem {
            len: mapping.len() as u64,
            backing: Backing::Mapped(mapping),
            incarnation: AtomicU64::new(0),
            retired: AtomicBool::new(false),
        })
    }

    fn sim_backed(sim: SimMedium) -> Arc<Pmem> {
        Arc::new(Pmem {
            len: sim.len(),
            backing: Backing::Sim(Box::new(sim)),
            incarnation: AtomicU64::new(0),
            retired: AtomicBool::new(false),
        })
    }

    /// Maps an existing file or device and locks it against a second `open` or `create`, in this process or another.
    ///
    /// `persistence`: `None` = what the medium needs (nothing on tmpfs and plain files or where the caches are
    /// persistent, else the best flush instruction of the CPU).
    ///
    /// # Errors
    /// [`PmemError::Locked`] when it is open elsewhere; [`PmemError::Unusable`] for empty files, directories and devices
    /// that are no DAX device; [`PmemError::NoSpace`] when a sparse file cannot be filled;
    /// [`PmemError::NotSupported`] when the CPU lacks the instruction asked for.
    pub fn open(path: &Path, persistence: Option<Persistence>) -> Result<Arc<Pmem>, PmemError> {
        Mapping::open(path, persistence).map(Pmem::mapped)
    }

    /// Maps and locks a copy of an existing pool file, for trying things out: what is written goes to memory of this
    /// process and is gone with it. It shows as tmpfs, whatever the file lies on. `None` for a DAX device, which cannot be
    /// mapped that way.
    ///
    /// # Errors
    /// As [`Pmem::open`].
    pub fn open_private(path: &Path) -> Result<Option<Arc<Pmem>>, PmemError> {
        Ok(Mapping::open_private(path)?.map(Pmem::mapped))
    }

    /// Creates a pool file of `len` bytes (an existing one is emptied first), allocates all its space, maps and locks
    /// it. The file reads as zeros. A device is mapped whole, keeps its contents, and must have at least `len` bytes.
    ///
    /// # Errors
    /// As [`Pmem::open`]; with [`PmemError::NoSpace`] a file that did not exist before is gone again.
    pub fn create(path: &Path, len: u64, persistence: Option<Persistence>) -> Result<Arc<Pmem>, PmemError> {
        Mapping::create(path, len, persistence).map(Pmem::mapped)
    }

    /// Maps the first `len` bytes of a pool that a process on this host has open and whose [`Pmem::fd`] it has sent. No
    /// lock is taken: the process that opened the pool by its path has it. `persistence` and `medium` are the sender's.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] when the descriptor is shorter than announced or lies on another medium.
    pub fn from_fd(fd: OwnedFd, len: u64, persistence: Persistence, medium: Medium) -> Result<Arc<Pmem>, PmemError> {
        Mapping::from_fd(fd, len, persistence, medium).map(Pmem::mapped)
    }

    /// Simulated medium of `len` zero bytes, see [`crate::sim`]. Memory is used as it is written.
    pub fn simulated(len: u64) -> Arc<Pmem> {
        Pmem::sim_backed(SimMedium::new(CrashImage::zeroed(len)))
    }

    /// Simulated medium with these contents, all of them durable.
    pub fn simulated_from(contents: Vec<u8>) -> Arc<Pmem> {
        Pmem::sim_backed(SimMedium::new(CrashImage::from_bytes(&contents)))
    }

    /// Simulated medium that starts with what a power cut has left. Cheap: pages are shared until written.
    pub fn simulated_from_image(image: &CrashImage) -> Arc<Pmem> {
        Pmem::sim_backed(SimMedium::new(image.clone()))
    }

    /// Bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What it lies on.
    pub fn medium(&self) -> Medium {
        match &self.backing {
            Backing::Mapped(m) => m.medium,
            Backing::Sim(_) => Medium::Sim,
        }
    }

    /// How stores become durable here.
    pub fn persistence(&self) -> Persistence {
        match &self.backing {
            Backing::Mapped(m) => m.persistence,
            Backing::Sim(_) => Persistence::Clwb,
        }
    }

    /// True when durability against power loss needs `sync` (plain file).
    #[inline]
    pub fn needs_sync(&self) -> bool {
        match &self.backing {
            Backing::Mapped(m) => m.medium == Medium::File,
            Backing::Sim(sim) => sim.needs_sync(),
        }
    }

    /// Where it was opened; `None` for sim.
    pub fn path(&self) -> Option<&Path> {
        match &self.backing {
            Backing::Mapped(m) => Some(m.path()),
            Backing::Sim(_) => None,
        }
    }

    /// File descriptor to hand to peers on the same host (shm provider); `None` for sim. It does not carry the lock: a
    /// peer that keeps it open does not keep the pool from being opened again after our end.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Mapped(m) => Some(m.fd()),
            Backing::Sim(_) => None,
        }
    }

    /// Marks this incarnation of the pool's daemon, for those that follow: its number grows from one to the next (and is below 2^48). The
    /// mark lasts as long as anybody has what [`Pmem::fd`] gives, or a mapping of it. Nothing to do for sim.
    ///
    /// # Errors
    /// [`PmemError::Os`] when the medium knows no locks.
    pub fn begin_incarnation(&self, number: u64) -> Result<(), PmemError> {
        match &self.backing {
            Backing::Mapped(m) => {
                incarnation::begin(m.fd(), number).map_err(|error| incarnation_error(m.path(), error))?
            }
            Backing::Sim(_) => {}
        }
        self.incarnation.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Number of the incarnation that has begun with [`Pmem::begin_incarnation`]; 0 when none has.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Relaxed)
    }

    /// Lets go of the pool, in a process that was given it ([`Pmem::from_fd`]) by an incarnation of its daemon that has ended: the mark of
    /// that incarnation is gone with the last such mapping ([`Pmem::is_mapped_since_before`]). `newer` is a descriptor of the same pool
    /// from the one after it. From now on what is stored here reaches nobody; what is read is the pool's. Threads may be at it
    /// meanwhile: who finds after a store that the pool [is retired](Pmem::is_retired) cannot know whether it has reached the pool;
    /// else it has.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] for a DAX device, which the kernel does not map so; [`PmemError::Os`] when there is no room for
    /// another mapping. The mapping is as before then, though it may count as retired.
    pub fn retire(&self, newer: BorrowedFd<'_>) -> Result<(), PmemError> {
        match &self.backing {
            Backing::Mapped(m) => m.retire(newer, || self.retired.store(true, Ordering::SeqCst)),
            Backing::Sim(_) => Ok(()),
        }
    }

    /// Whether another incarnation of the daemon is known to have begun, so that nothing stored here reaches the pool, or soon nothing will.
    #[inline]
    pub fn is_retired(&self) -> bool {
        // Not before the stores of this thread. The kernel changes a mapping while x86 processors are interrupted for it, so a
        // store that goes to the new one is begun after the mark was set; others are only told to forget the old one.
        match cfg!(target_arch = "x86_64") {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        self.retired.load(Ordering::Acquire)
    }

    /// True while a process still has the pool mapped that was given it by an earlier incarnation than that of this number, and
    /// so may still be storing to it.
    ///
    /// # Errors
    /// [`PmemError::Os`] when the medium knows no locks.
    pub fn is_mapped_since_before(&self, number: u64) -> Result<bool, PmemError> {
        match &self.backing {
            Backing::Mapped(m) => {
                incarnation::any_before(m.fd(), number).map_err(|error| incarnation_error(m.path(), error))
            }
            Backing::Sim(_) => Ok(false),
        }
    }

    /// First byte of the mapping, for providers that read from or write to sockets without a copy in between; `None` for
    /// sim. Getting it is safe, using it is not: keep the `Pmem` alive, stay within `len`, make no references into it
    /// (other processes write to it at any time), and flush what you store.
    pub fn as_mut_ptr(&self) -> Option<*mut u8> {
        match &self.backing {
            Backing::Mapped(m) => Some(m.base()),
            Backing::Sim(_) => None,
        }
    }

    /// The simulated medium, for tests that cut its power.
    pub fn sim(&self) -> Option<&SimMedium> {
        match &self.backing {
            Backing::Mapped(_) => None,
            Backing::Sim(sim) => Some(sim),
        }
    }

    /// Panics unless `len` bytes at `offset` lie in the pool. Every access below starts with it.
    #[inline(always)]
    fn check(&self, offset: u64, len: u64) {
        if len > self.len || offset > self.len - len {
            out_of_range(offset, len, self.len);
        }
    }

    #[inline(always)]
    fn check_word(&self, offset: u64) {
        self.check(offset, 8);
        assert!(
            offset.is_multiple_of(8),
            "8-byte access at {offset:#x}, which is no multiple of 8"
        );
    }

    /// The word at `offset`, checked before.
    #[inline(always)]
    fn word(mapping: &Mapping, offset: u64) -> &AtomicU64 {
        // SAFETY: in range and aligned (`check_word`; mappings start at a page), alive as long as the mapping, and only
        // ever accessed atomically or by the copies of `copy`.
        unsafe { AtomicU64::from_ptr(mapping.base().add(offset as usize).cast()) }
    }

    /// Copies `into.len()` bytes at `offset` out.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.check(offset, into.len() as u64);
        match &self.backing {
            // SAFETY: in range; `into` is ours alone, so they do not overlap.
            Backing::Mapped(m) => unsafe {
                m.vector
                    .copy_out(into.as_mut_ptr(), m.base().add(offset as usize), into.len());
            },
            Backing::Sim(sim) => sim.read(offset, into),
        }
    }

    /// Bytes of the mapping, for a system call to read from; `None`: the medium is simulated. They are nothing to look at here:
    /// whoever maps the pool may store there meanwhile.
    pub fn for_kernel(&self, offset: u64, len: u64) -> Option<IoSlice<'_>> {
        self.check(offset, len);
        match &self.backing {
            // SAFETY: in range, and mapped as long as `self`. The kernel copies from it as any reader does, and no other code
            // is given the bytes.
            Backing::Mapped(m) => Some(IoSlice::new(unsafe {
                std::slice::from_raw_parts(m.base().add(offset as usize), len as usize)
            })),
            Backing::Sim(_) => None,
        }
    }

    /// Atomic 8-byte load (acquire); `offset` is a multiple of 8.
    #[inline]
    pub fn read_u64(&self, offset: u64) -> u64 {
        self.check_word(offset);
        match &self.backing {
            Backing::Mapped(m) => Pmem::word(m, offset).load(Ordering::Acquire),
            Backing::Sim(sim) => sim.read_u64(offset),
        }
    }

    /// Stores `bytes` at `offset`; not durable before flush + fence.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        match &self.backing {
            // SAFETY: in range; a slice cannot lie in the mapping, so they do not overlap.
            Backing::Mapped(m) => unsafe {
                m.vector
                    .copy_in(m.base().add(offset as usize), bytes.as_ptr(), bytes.len());
            },
            Backing::Sim(sim) => sim.write(offset, bytes),
        }
    }

    /// Atomic 8-byte store (release); `offset` is a multiple of 8. Not durable before flush + fence.
    #[inline]
    pub fn write_u64(&self, offset: u64, value: u64) {
        self.check_word(offset);
        match &self.backing {
            Backing::Mapped(m) => Pmem::word(m, offset).store(value, Ordering::Release),
            Backing::Sim(sim) => sim.write(offset, &value.to_ne_bytes()),
        }
    }

    /// Atomic compare-and-swap; returns the value found (equal to `expect` when it was swapped).
    #[inline]
    pub fn cas_u64(&self, offset: u64, expect: u64, new: u64) -> u64 {
        self.check_word(offset);
        match &self.backing {
            Backing::Mapped(m) => {
                match Pmem::word(m, offset).compare_exchange(expect, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(found) | Err(found) => found,
                }
            }
            Backing::Sim(sim) => sim.update_u64(offset, |found| (found == expect).then_some(new)),
        }
    }

    /// Atomic add (wrapping); returns the value found.
    #[inline]
    pub fn faa_u64(&self, offset: u64, add: u64) -> u64 {
        self.check_word(offset);
        match &self.backing {
            Backing::Mapped(m) => Pmem::word(m, offset).fetch_add(add, Ordering::AcqRel),
            Backing::Sim(sim) => sim.update_u64(offset, |found| Some(found.wrapping_add(add))),
        }
    }

    /// To be called before stores to many pages that may be the first (of this process): has them entered many at a time,
    /// where that is faster. Bulk stores do it themselves.
    pub fn enter_pages(&self, offset: u64, len: u64) {
        self.check(offset, len);
        if let Backing::Mapped(m) = &self.backing {
            // SAFETY: in range.
            unsafe { m.enter_pages(offset as usize, len as usize) };
        }
    }

    /// Bulk store that is durable after the next `fence` without a flush (non-temporal where that wins). Also weakly
    /// ordered: before the fence other threads may see later stores first.
    pub fn write_streaming(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        match &self.backing {
            Backing::Mapped(m) => {
                // SAFETY: in range and no overlap, as in `write`; the instructions were detected when mapped.
                unsafe {
                    let (dst, src, len) = (m.base().add(offset as usize), bytes.as_ptr(), bytes.len());
                    m.enter_pages(offset as usize, len);
                    if len < m.streaming_from {
                        m.vector.copy_in(dst, src, len);
                        m.persistence.flush(dst, len);
                    } else {
                        let (head, tail) = m.vector.stream_in(dst, src, len);
                        m.persistence.flush(dst, head);
                        m.persistence.flush(dst.add(len - tail), tail);
                    }
                }
            }
            Backing::Sim(sim) => sim.write_streaming(offset, bytes),
        }
    }

    /// Zeroes a range, otherwise as `write_streaming`.
    pub fn zero_streaming(&self, offset: u64, len: u64) {
        self.check(offset, len);
        match &self.backing {
            Backing::Mapped(m) => {
                // SAFETY: in range; the instructions were detected when mapped.
                unsafe {
                    let (dst, len) = (m.base().add(offset as usize), len as usize);
                    let (head, tail) = m.vector.stream_zeros(dst, len);
                    m.persistence.flush(dst, head);
                    m.persistence.flush(dst.add(len - tail), tail);
                }
            }
            Backing::Sim(sim) => sim.zero_streaming(offset, len),
        }
    }

    /// Has the line at `offset` fetched: it will be written soon, but not at once.
    #[inline]
    pub fn fetch_to_write(&self, offset: u64) {
        self.check(offset, 1);
        if let Backing::Mapped(m) = &self.backing {
            // SAFETY: in range.
            unsafe { fetch_to_write(m.base().add(offset as usize)) };
        }
    }

    /// Starts write-back of the range's cache lines (no-op with `Persistence::None`).
    #[inline]
    pub fn flush(&self, offset: u64, len: u64) {
        self.check(offset, len);
        match &self.backing {
            // SAFETY: in range; the instruction was checked when mapped.
            Backing::Mapped(m) => unsafe { m.persistence.flush(m.base().add(offset as usize), len as usize) },
            Backing::Sim(sim) => sim.flush(offset, len),
        }
    }

    /// Orders and completes write-backs: what this thread flushed (or streamed) before is durable after.
    #[inline]
    pub fn fence(&self) {
        match &self.backing {
            Backing::Mapped(_) => persistence::fence(),
            Backing::Sim(sim) => sim.fence(),
        }
    }

    /// flush + fence.
    #[inline]
    pub fn persist(&self, offset: u64, len: u64) {
        self.flush(offset, len);
        self.fence();
    }

    /// msync for plain files: bounded by the device below, so milliseconds and more. No-op elsewhere.
    ///
    /// # Errors
    /// [`PmemError::Os`] when the device failed; contents on it are then unknown.
    pub fn sync(&self) -> Result<(), PmemError> {
        match &self.backing {
            Backing::Mapped(m) if m.medium == Medium::File => m.msync()?,
            Backing::Sim(sim) if sim.needs_sync() => sim.sync(),
            _ => {}
        }
        Ok(())
    }
}

fn incarnation_error(path: &Path, source: std::io::Error) -> PmemError {
    PmemError::Os {
        path: path.display().to_string(),
        what: "lock",
        source,
    }
}

#[cold]
#[inline(never)]
fn out_of_range(offset: u64, len: u64, pool: u64) -> ! {
    panic!("range {offset:#x}+{len:#x} lies outside the pool of {pool:#x} bytes");
}
