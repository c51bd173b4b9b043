//! Reading a file of a region that the node around us serves: with loads, by the mapping that the region itself has
//! ([`FileView`]). There is no index here to follow the log, and readers wait for nobody.
//!
//! As with a one-sided read, the log's tail is read again after the copy: unmoved, it proves that the bytes were the file's.
//! Where writers are too quick for that, the copy is made with the mapping held, for which a writer has to wait a moment;
//! then entering the region once shows that what was read is durable.

use crate::colocated::ColocatedNode;
use crate::io::verify::damaged_at;
use crate::local_client::LocalClient;
use crate::open_table::OpenInode;
use crate::remote_inode::tail_at;
use polvo_format::{Gpa, RegionId, SEGMENT_SHIFT_MIN, Tail};
use polvo_proto::FsError;
use polvo_region::{FileView, Part};
use std::sync::Arc;

/// Most parts of one copy: as many reads go on in one batch elsewhere.
const PARTS: usize = 256;
/// Copies that writers may spoil before one is made with the mapping held.
const QUICK_TRIES: u32 = 3;

/// A file that lies in the node around us.
pub(crate) struct MappedFile {
    view: Arc<FileView>,
    /// Pool offset of the log's tail.
    tail_at: u64,
}

impl MappedFile {
    /// The log's tail as of the last change.
    pub(crate) fn tail(&self) -> Tail {
        self.view.tail()
    }
}

/// How a copy went.
enum Copied {
    /// Bytes, and whether there may be more before the end of the file.
    Valid(usize, bool),
    /// The same, made with the mapping held: valid if the file is still there.
    IfThere(usize, bool),
    Spoiled,
}

impl LocalClient {
    /// Reads as many bytes as one copy may have parts for. Says whether there may be more before the end of the file.
    pub(crate) async fn read_mapped(
        &self,
        here: &ColocatedNode,
        open_inode: &OpenInode,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(usize, bool), FsError> {
        let read = match self.read_at_once(open_inode, offset, into) {
            Some(read) => read,
            None => self.read_mapped_slowly(here, open_inode, offset, into).await?,
        };
        self.may_tell(open_inode.inode.ino.region()).await?;
        Ok(read)
    }

    /// As [`LocalClient::read_mapped`], by the mapping in hand and without a future. `None`: there is none, or a writer has
    /// spoilt the copy.
    pub(crate) fn read_at_once(&self, open_inode: &OpenInode, offset: u64, into: &mut [u8]) -> Option<(usize, bool)> {
        let file = open_inode.mapped()?;
        if !self.client.verifies() && self.copy_known(open_inode, file, offset, into) {
            return Some((into.len(), false));
        }
        let here = self.colocated(open_inode.inode.ino.region())?;
        match self.copy(here, open_inode, file, offset, into, false) {
            Ok(Copied::Valid(len, more)) => Some((len, more)),
            _ => None,
        }
    }

    #[cold]
    async fn read_mapped_slowly(
        &self,
        here: &ColocatedNode,
        open_inode: &OpenInode,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(usize, bool), FsError> {
        let mut file = self.mapped_file(here, open_inode).await?;
        for tries in 0.. {
            let copied = self.copy(here, open_inode, &file, offset, into, tries >= QUICK_TRIES)?;
            if let Copied::Valid(len, more) = copied {
                return Ok((len, more));
            }
            let now = self.mapped_file(here, open_inode).await?;
            let same = Arc::ptr_eq(&now.view, &file.view);
            if let (Copied::IfThere(len, more), true) = (copied, same) {
                return Ok((len, more));
            }
            file = now;
        }
        unreachable!("a mapping that is held is read at the last try")
    }

    /// Gets a file's mapping, or brings it up to date.
    async fn mapped_file(&self, here: &ColocatedNode, open_inode: &OpenInode) -> Result<MappedFile, FsError> {
        let at = tail_at(open_inode.inode.ino).ok_or(FsError::Stale)?;
        let file = MappedFile {
            view: self.file_view(here, open_inode.inode).await?,
            tail_at: self.pool_offset(here, at)?,
        };
        let known = open_inode.mapped_or(|| MappedFile {
            view: file.view.clone(),
            ..file
        });
        debug_assert!(
            known.is_none_or(|known| Arc::ptr_eq(&known.view, &file.view)),
            "a region keeps a view that is shared"
        );
        Ok(file)
    }

    /// Copies what lies in an extent that this thread knows. False: it does not, or no longer.
    fn copy_known(&self, open_inode: &OpenInode, file: &MappedFile, offset: u64, into: &mut [u8]) -> bool {
        self.nearby.follow(self.client.losses());
        let Some((at, tail)) = self.nearby.extents.find(open_inode.inode, offset, into.len()) else {
            return false;
        };
        let Some(here) = &self.client.colocated else {
            return false;
        };
        let is_current = || Tail(here.pool.read_u64(file.tail_at)) == tail;
        if !is_current() {
            return false;
        }
        here.pool.read(at, into);
        is_current()
    }

    fn copy(
        &self,
        here: &ColocatedNode,
        open_inode: &OpenInode,
        file: &MappedFile,
        offset: u64,
        into: &mut [u8],
        hold: bool,
    ) -> Result<Copied, FsError> {
        let parts = &mut *self.nearby.parts.borrow_mut();
        let (plan, unchanged) = file.view.plan(offset, into.len(), PARTS, parts);
        let unchanged = hold.then_some(unchanged);
        let region = open_inode.inode.ino.region();
        let mut rest = &mut into[..plan.len];
        for Part { len, at } in parts.iter() {
            let (now, later) = rest.split_at_mut(*len);
            rest = later;
            match at {
                Some(at) => here.pool.read(self.pool_offset(here, Gpa::new(region, *at))?, now),
                None => now.fill(0),
            }
        }
        let is_current = || Tail(here.pool.read_u64(file.tail_at)) == plan.tail;
        if self.client.verifies()
            && let Some(damaged) = first_damaged(here, region, parts)?
        {
            // what is no longer the file's may be anything
            if unchanged.is_some() || is_current() {
                return Err(damaged_at(open_inode, damaged));
            }
            return Ok(Copied::Spoiled);
        }
        let is_current = is_current();
        if is_current && let Some(extent) = plan.extent {
            let at = self.pool_offset(here, Gpa::new(region, extent.at))?;
            self.nearby
                .extents
                .keep(open_inode.inode, plan.tail, offset, extent.start..extent.end, at);
        }
        Ok(match unchanged {
            _ if is_current => Copied::Valid(plan.len, plan.cut),
            Some(_) => Copied::IfThere(plan.len, plan.cut),
            None => Copied::Spoiled,
        })
    }

    /// Where an address in the node around us lies in its pool. Remembered by this thread, so that threads do not meet at
    /// a lock: what a region's offsets stand for never changes while the node serves it.
    pub(crate) fn pool_offset(&self, here: &ColocatedNode, at: Gpa) -> Result<u64, FsError> {
        let (unit, within) = (
            at.offset().0 >> SEGMENT_SHIFT_MIN,
            at.offset().0 & ((1 << SEGMENT_SHIFT_MIN) - 1),
        );
        self.nearby.follow(self.client.losses());
        let mut bases = self.nearby.bases.borrow_mut();
        let of_region = match bases.iter().position(|(region, _)| *region == at.region()) {
            Some(known) => known,
            None => {
                bases.push((at.region(), Vec::new()));
                bases.len() - 1
            }
        };
        let of_region = &mut bases[of_region].1;
        match of_region.get(unit as usize) {
            Some(Some(base)) => Ok(base + within),
            _ => Ok(locate(here, of_region, at.region(), unit)? + within),
        }
    }
}

/// The first of the parts of a read that is damaged.
fn first_damaged(here: &ColocatedNode, region: RegionId, parts: &[Part]) -> Result<Option<Gpa>, FsError> {
    for Part { len, at } in parts {
        let Some(at) = at.map(|at| Gpa::new(region, at)) else {
            continue;
        };
        if here.node.is_damaged(at, *len)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

#[cold]
fn locate(here: &ColocatedNode, bases: &mut Vec<Option<u64>>, region: RegionId, unit: u64) -> Result<u64, FsError> {
    let base = here.node.locate(
        Gpa(Gpa::new(region, Default::default()).0 + (unit << SEGMENT_SHIFT_MIN)),
        1,
    )?;
    // it is a segment of the region, so there are not many more
    let unit = unit as usize;
    if bases.len() <= unit {
        bases.resize(unit + 1, None);
    }
    bases[unit] = Some(base);
    Ok(base)
}
