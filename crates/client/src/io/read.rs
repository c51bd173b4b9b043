//! Reading, client-active: one batch of one-sided reads, the data first and the log's tail last. An unmoved tail
//! proves that what was read was the file's when it was read; when it has moved, the new entries are pulled and what
//! they overlap is read again. The server's CPU does nothing.

use crate::cache::extent_index::Plan;
use crate::io::transfers::Transfers;
use crate::io::verify::damaged_at;
use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use crate::open_table::OpenInode;
use crate::remote_inode::tail_at;
use polvo_cluster::{InFlight, RegionVerb};
use polvo_format::{FileKind, Tail};
use polvo_proto::{FILE_SIZE_MAX, FallocateMode, FsError, ask};
use tokio::time::Instant;

/// Bytes of one batch; larger reads are several batches, [`BATCHES`] of them at a time.
pub(crate) const BATCH_BYTES: usize = 1 << 20;
/// Batches of one reader under way at a time.
pub(crate) const BATCHES: usize = 4;
/// Most data reads in one batch; a read of a file in smaller pieces is cut short of its length and goes on.
const BATCH_PIECES: usize = 256;
/// The same, where checksums are read along with them.
const VERIFIED_PIECES: usize = BATCH_PIECES / 2;
/// Reads of a range that changes under the reader before it reads the clock.
const QUICK_TRIES: u32 = 16;

/// Pages of the file's map that one batch may need, those included that others have forgotten meanwhile: one has more
/// extents than a batch has pieces.
const LOADS_MAX: u32 = 1 << 10;

/// `SEEK_DATA` / `SEEK_HOLE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// Next mapped byte.
    Data,
    /// Next byte that is not mapped; the end of the file counts as one.
    Hole,
}

impl LocalClient {
    /// Reads at an offset; short at the end of the file only.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the file is gone, [`FsError::IsDirectory`], [`FsError::Busy`] when the range is
    /// overwritten faster than it can be read for as long as `Timeouts::open_inode`.
    pub async fn read(&self, file: &OpenFile, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let open_inode = &*file.open_inode;
        let at_once = into.len() <= BATCH_BYTES && open_inode.is_kept(self.client.losses()) && !self.client.verifies();
        let read = if at_once {
            self.read_at_once(open_inode, offset, into)
        } else {
            None
        };
        match read {
            Some((read, false)) => match self.may_tell(data_region(open_inode)).await {
                // another node serves it now
                Err(FsError::WrongEpoch) => self.read_waiting(open_inode, offset, into).await,
                told => told.map(|()| read),
            },
            read => {
                let done = read.map_or(0, |(done, _)| done);
                let rest = offset.saturating_add(done as u64);
                Ok(done + self.read_waiting(open_inode, rest, &mut into[done..]).await?)
            }
        }
    }

    async fn read_waiting(&self, open_inode: &OpenInode, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        self.check_file(open_inode).await?;
        let transfers = self.transfers(data_region(open_inode)).await?;
        if into.len() <= BATCH_BYTES {
            return self.read_some(open_inode, offset, into, transfers).await;
        }
        let mut parts = into.chunks_mut(BATCH_BYTES).enumerate();
        let mut window = InFlight::new();
        let (mut done, mut ended) = (0, None);
        loop {
            while ended.is_none()
                && window.len() < BATCHES
                && let Some((n, part)) = parts.next()
            {
                let (at, len) = (offset.saturating_add((n * BATCH_BYTES) as u64), part.len());
                window.push(async move { (self.read_some(open_inode, at, part, transfers).await, len) });
            }
            let Some((read, len)) = window.next().await else {
                return ended.unwrap_or(Ok(done));
            };
            match read {
                // after the end: waited for only since it was under way
                _ if ended.is_some() => {}
                Err(error) => ended = Some(Err(error)),
                Ok(read) => {
                    done += read;
                    ended = (read < len).then_some(Ok(done));
                }
            }
        }
    }

    /// The file is one that has bytes, and is held.
    pub(crate) async fn check_file(&self, open_inode: &OpenInode) -> Result<(), FsError> {
        match open_inode.kind {
            FileKind::File | FileKind::Object => self.keep(open_inode).await,
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file".into())),
        }
    }

    async fn read_some(
        &self,
        open_inode: &OpenInode,
        offset: u64,
        into: &mut [u8],
        transfers: Transfers,
    ) -> Result<usize, FsError> {
        let mut done = 0;
        // more than one round only where a file is scattered over very many pieces
        while done < into.len() {
            let (at, rest) = (offset.saturating_add(done as u64), &mut into[done..]);
            let (read, more) = match transfers {
                Transfers::Client => self.read_batch(open_inode, at, rest).await?,
                Transfers::Server(sizes) => self.read_directed(open_inode, at, rest, sizes).await?,
            };
            done += read;
            assert!(done <= into.len(), "no more is read than was asked for");
            if !more {
                break;
            }
        }
        Ok(done)
    }

    /// Reads as many bytes as fit one batch. Says whether there may be more before the end of the file.
    async fn read_batch(&self, open_inode: &OpenInode, offset: u64, into: &mut [u8]) -> Result<(usize, bool), FsError> {
        if let Some(here) = self.colocated(data_region(open_inode)) {
            match self.read_mapped(here, open_inode, offset, into).await {
                // another node serves it now
                Err(FsError::WrongEpoch) => {}
                read => return read,
            }
        }
        let (mut tries, mut loads) = (0, 0);
        let mut deadline = None;
        let verify = self.verifies_at(data_region(open_inode)).await?;
        let most = if verify { VERIFIED_PIECES } else { BATCH_PIECES };
        loop {
            let losses = self.client.losses();
            let plan = match open_inode.index.read().as_ref() {
                Some(index) => index.plan(offset, into.len(), most).map_err(|missed| missed.at),
                None => Err(offset),
            };
            let plan = match plan {
                Ok(plan) => plan,
                Err(at) => {
                    self.load_index(open_inode, at).await?;
                    loads += 1;
                    if loads < LOADS_MAX {
                        continue;
                    }
                    return Err(FsError::Busy);
                }
            };
            let read = match verify {
                true => self.read_verified(open_inode, &plan, into).await,
                false => self
                    .read_planned(open_inode, &plan, into)
                    .await
                    .map(|tail| (tail, None)),
            };
            let (tail, read) = match read {
                Ok((tail, damaged)) => (
                    tail,
                    damaged.map_or(Ok(()), |damaged| Err(damaged_at(open_inode, damaged))),
                ),
                // nothing lies there: a segment may have been given back since the file moved on
                Err(error @ FsError::Invalid(_)) => (self.log_state(open_inode.inode.ino).await?.tail, Err(error)),
                Err(error) => return Err(error),
            };
            // of a node that was behind another it may be the tail of another log
            let is_same_log = self.client.losses() == losses;
            if tail == plan.tail && is_same_log {
                return read.map(|()| (plan.len, plan.cut));
            }
            if !is_same_log {
                self.keep(open_inode).await?;
            }
            // an extension matters to a read that was cut off at the end of the file
            let len = if plan.cut { plan.len } else { into.len() } as u64;
            if let Some(step) = self.catch_up(open_inode, tail).await?
                && step.from == plan.tail
                && !step.touches(offset, len)
                && read.is_ok()
                && is_same_log
            {
                return Ok((plan.len, plan.cut));
            }
            tries += 1;
            if tries >= QUICK_TRIES {
                let held_max = self.client.context.timeouts().held;
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + held_max);
                if Instant::now() >= deadline {
                    return Err(FsError::Busy);
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Fetches what a plan names, and then the tail, in one batch.
    async fn read_planned(&self, open_inode: &OpenInode, plan: &Plan, into: &mut [u8]) -> Result<Tail, FsError> {
        let mut tail = [0; 8];
        let mut ops = Vec::with_capacity(plan.pieces.len() + 1);
        let mut rest = &mut into[..plan.len];
        for piece in &plan.pieces {
            let (part, later) = rest.split_at_mut(piece.len);
            rest = later;
            match piece.gpa {
                Some(at) => ops.push(RegionVerb::Read { at, into: part }),
                None => part.fill(0),
            }
        }
        debug_assert!(rest.is_empty(), "the pieces of a plan are its whole length");
        let at = tail_at(open_inode.inode.ino).ok_or(FsError::Stale)?;
        ops.push(RegionVerb::Read { at, into: &mut tail });
        self.one_sided(data_region(open_inode), &mut ops).await?;
        Ok(Tail(u64::from_le_bytes(tail)))
    }

    /// Makes the index that of now: reads the tail, pulls what is new. Where there is none, it is loaded from an offset on.
    async fn validate_index(&self, open_inode: &OpenInode, offset: u64) -> Result<(), FsError> {
        if open_inode.index.read().is_none() {
            // loading it from the primary is as good as validating it
            return self.load_index(open_inode, offset).await;
        }
        let state = self.log_state(open_inode.inode.ino).await?;
        let known = open_inode.index.read().as_ref().map(|index| index.cursor().tail);
        if known != Some(state.tail) {
            self.catch_up(open_inode, state.tail).await?;
        }
        Ok(())
    }

    /// Next data or hole at or after an offset.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`] (ENXIO) at or past the end of the file, and when no data follows.
    pub async fn seek(&self, file: &OpenFile, offset: u64, whence: Whence) -> Result<u64, FsError> {
        let open_inode = &*file.open_inode;
        self.check_file(open_inode).await?;
        self.validate_index(open_inode, offset).await?;
        // up to here all is data, or all is hole: of very many extents, the first may be forgotten before the last is known
        let mut at = offset;
        loop {
            let found = match open_inode.index.read().as_ref() {
                Some(index) => match whence {
                    Whence::Data => index.next_data(at),
                    Whence::Hole => index.next_hole(at),
                }
                .map_err(|missed| missed.at),
                None => Err(at),
            };
            match found {
                Ok(found) => return found.ok_or(FsError::NoSuchOffset),
                Err(missed) => at = missed,
            }
            self.load_index(open_inode, at).await?;
        }
    }

    /// Copies bytes between files (or inside one), at most to the end of the first; returns how many.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the ranges overlap in one file; as reads and writes.
    pub async fn copy_range(
        &self,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, FsError> {
        let apart = from_offset.abs_diff(to_offset);
        if from.inode() == to.inode() && apart < len {
            return Err(FsError::Invalid("the ranges overlap".into()));
        }
        let mut bytes = self.stream(from, from_offset..from_offset.saturating_add(len));
        let mut done = 0;
        loop {
            let copied = match bytes.next().await {
                Ok(Some(part)) => {
                    let at = to_offset.saturating_add(done);
                    self.write(to, at, part).await.map(|written| (written, part.len()))
                }
                Ok(None) => return Ok(done),
                Err(error) => Err(error),
            };
            match copied {
                Ok((written, len)) => {
                    done += written as u64;
                    if written < len {
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes the mapping of a range: reserves, punches a hole, zeroes.
    ///
    /// # Errors
    /// [`FsError::FileTooLarge`], [`FsError::NoSpace`], [`FsError::Invalid`] for an empty range.
    pub async fn fallocate(&self, file: &OpenFile, mode: FallocateMode, offset: u64, len: u64) -> Result<(), FsError> {
        if len == 0 {
            return Err(FsError::Invalid("an empty range".into()));
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(FsError::FileTooLarge);
        }
        let open_inode = &*file.open_inode;
        self.check_file(open_inode).await?;
        let _own = self.client.tokens.changing(open_inode.inode.ino);
        let fallocate = ask::Fallocate {
            inode: open_inode.inode,
            mode,
            offset,
            len,
        };
        self.attr_of(data_region(open_inode), fallocate).await.map(drop)
    }
}
