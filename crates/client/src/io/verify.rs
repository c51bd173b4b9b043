//! Reads that are compared with the checksums of the data: whole pages are read where part of them was asked for, and the words that
//! say what is known of them in the same batch, before the data. A word covers nothing that is stored after it, so a sound page is
//! never taken for a damaged one as long as the log's tail stands still.

use crate::cache::extent_index::Plan;
use crate::local_client::LocalClient;
use crate::open::data_region;
use crate::open_table::OpenInode;
use crate::remote_inode::tail_at;
use polvo_cluster::RegionVerb;
use polvo_format::{Gpa, PAGE, PAGE_CHECKSUM_SIZE, PageChecksum, RegionId, Tail};
use polvo_proto::{CopyPlace, FsError, ScrubPlace, Scrubbed, ScrubbedCopies, SegmentClass, SegmentMap, ask};
use std::rc::Rc;

const WORD: usize = PAGE_CHECKSUM_SIZE as usize;

/// Whole pages of data, and their words.
struct Pages {
    /// of the first one
    at: Gpa,
    bytes: Vec<u8>,
    words: Vec<u8>,
    /// where what was asked for begins in them
    skip: usize,
}

impl Pages {
    /// The first one that is damaged.
    fn damaged(&self) -> Option<Gpa> {
        let pages = self.bytes.chunks_exact(PAGE).zip(self.words.as_chunks::<WORD>().0);
        let is_damaged = |(page, word): (&[u8], &[u8; WORD])| match PageChecksum::decode(u64::from_le_bytes(*word)) {
            Ok(known) => known.is_some_and(|known| !known.holds(page)),
            Err(_) => true,
        };
        let first = pages.into_iter().position(is_damaged)?;
        Some(Gpa(self.at.0 + (first * PAGE) as u64))
    }
}

impl LocalClient {
    /// Whether reads of data of a region are to be compared with checksums, which are there.
    pub(crate) async fn verifies_at(&self, region: RegionId) -> Result<bool, FsError> {
        Ok(self.client.verifies() && self.links.to_primary(region).await?.checksums)
    }

    /// The regions of the cluster.
    pub fn regions(&self) -> Vec<RegionId> {
        self.client.map().regions.iter().map(|region| region.id).collect()
    }

    /// Has the primary of a region compare some of its file data with the checksums, from a place on: [`ScrubPlace::default`], then
    /// `next` of the answer before.
    ///
    /// # Errors
    /// [`FsError::Unreachable`].
    pub async fn scrub(&self, region: RegionId, from: ScrubPlace) -> Result<Scrubbed, FsError> {
        self.call(region, ask::Scrub { region, from }).await
    }

    /// Has the primary of a region compare some of it with its mirrors, as [`Self::scrub`].
    ///
    /// # Errors
    /// [`FsError::Unreachable`].
    pub async fn scrub_copies(&self, region: RegionId, from: CopyPlace) -> Result<ScrubbedCopies, FsError> {
        self.call(region, ask::ScrubCopies { region, from }).await
    }

    /// Fetches what a plan names, whole pages of it with their checksums, and then the log's tail, in one batch. Also gives the
    /// first page that is damaged if the tail is the plan's.
    pub(crate) async fn read_verified(
        &self,
        open_inode: &OpenInode,
        plan: &Plan,
        into: &mut [u8],
    ) -> Result<(Tail, Option<Gpa>), FsError> {
        let region = data_region(open_inode);
        let map = self.segments_with(region, plan).await?;
        let tail_at = tail_at(open_inode.inode.ino).ok_or(FsError::Stale)?;
        let mut tail = [0; 8];
        let mut whole: Vec<Option<Pages>> = plan
            .pieces
            .iter()
            .map(|piece| piece.gpa.and_then(|at| pages_of(&map, at, piece.len)))
            .collect();
        let mut ops = Vec::with_capacity(2 * plan.pieces.len() + 1);
        let mut data = Vec::with_capacity(plan.pieces.len());
        let mut rest = &mut into[..plan.len];
        for (piece, whole) in plan.pieces.iter().zip(&mut whole) {
            let (part, later) = rest.split_at_mut(piece.len);
            rest = later;
            match (piece.gpa, whole) {
                (None, _) => part.fill(0),
                (Some(at), None) => data.push(RegionVerb::Read { at, into: part }),
                (Some(_), Some(pages)) => {
                    let (at, into) = (pages.at, &mut pages.words);
                    ops.push(RegionVerb::ReadChecksums { at, into });
                    let (at, into) = (pages.at, &mut pages.bytes);
                    data.push(RegionVerb::Read { at, into });
                }
            }
        }
        ops.append(&mut data);
        ops.push(RegionVerb::Read {
            at: tail_at,
            into: &mut tail,
        });
        // of whoever serves the region by now, be it the node around us: over a link, pages and words are one batch
        self.links.read(region, &mut ops).await?;
        drop(ops);
        let mut damaged = None;
        let mut done = 0;
        for (piece, whole) in plan.pieces.iter().zip(&whole) {
            if let Some(pages) = whole {
                damaged = damaged.or(pages.damaged());
                into[done..][..piece.len].copy_from_slice(&pages.bytes[pages.skip..][..piece.len]);
            }
            done += piece.len;
        }
        Ok((Tail(u64::from_le_bytes(tail)), damaged))
    }

    /// A segment map that knows what lies where a plan reads.
    async fn segments_with(&self, region: RegionId, plan: &Plan) -> Result<Rc<SegmentMap>, FsError> {
        let map = self.links.segments(region, false).await?;
        let is_known = |at: Gpa| map.locate(at.offset()).is_some();
        match plan.pieces.iter().filter_map(|piece| piece.gpa).all(is_known) {
            true => Ok(map),
            false => self.links.segments(region, true).await,
        }
    }
}

/// The whole pages that data lies in; `None` for what is no data, or lies nowhere.
fn pages_of(map: &SegmentMap, at: Gpa, len: usize) -> Option<Pages> {
    let (place, inner) = map.locate(at.offset())?;
    if place.class != SegmentClass::Data {
        return None;
    }
    let skip = (inner % PAGE as u64) as usize;
    let pages = (skip + len).div_ceil(PAGE);
    Some(Pages {
        at: Gpa(at.0 - skip as u64),
        bytes: vec![0; pages * PAGE],
        words: vec![0; pages * WORD],
        skip,
    })
}

/// What is said of a page that is not what was written.
pub(crate) fn damaged_at(open_inode: &OpenInode, at: Gpa) -> FsError {
    FsError::Io(format!(
        "data of inode {:?} is damaged, in the page at {at:?}",
        open_inode.inode.ino
    ))
}
