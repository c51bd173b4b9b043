//! Making and opening a pool.

use super::redo_log::RedoLog;
use super::segment_table::SegmentTable;
use super::sequence::{STRIDE, Sequence, write_superblock};
use super::{FormatParams, PoolIdentity, PoolSpace};
use crate::{Finding, RegionError};
use polvo_format::{FormatError, History, PoolLayout, SUPERBLOCK_SIZE, SUPERBLOCK_USED, SUPERBLOCKS, Superblock};
use polvo_pmem::Pmem;
use std::sync::Arc;

/// Fewest bytes of a pool whose segment size is not asked for expressly.
const POOL_MIN: u64 = 16 << 20;

/// What to do about damage: an error for whoever wants to work with the pool, a finding for whoever checks it.
struct Damage<'a> {
    findings: Option<&'a mut Vec<Finding>>,
}

impl Damage<'_> {
    fn at(&mut self, what: &'static str, at: u64, why: String) -> Result<(), RegionError> {
        let error = RegionError::Corrupt { what, at, why };
        match &mut self.findings {
            Some(findings) => {
                findings.push(Finding {
                    ino: None,
                    what: error.to_string(),
                });
                Ok(())
            }
            None => Err(error),
        }
    }
}

impl PoolSpace {
    /// Writes an empty pool over whatever the medium holds. A power cut meanwhile leaves no pool, or the empty one.
    ///
    /// # Errors
    /// [`RegionError::Pool`] when the medium is too small (16 MiB, less with an explicit segment size) or the segment
    /// size is out of range.
    pub fn format(pmem: &Arc<Pmem>, params: &FormatParams) -> Result<(), RegionError> {
        let len = pmem.len();
        if params.segment_shift.is_none() && len < POOL_MIN {
            return Err(RegionError::Pool(format!(
                "a pool of {len} bytes is too small: it takes {POOL_MIN} or more"
            )));
        }
        let layout = PoolLayout::plan(len, params.segment_shift, params.checksums)
            .map_err(|why| RegionError::Pool(why.to_string()))?;
        pmem.zero_streaming(0, SUPERBLOCKS * SUPERBLOCK_SIZE as u64);
        pmem.fence();
        SegmentTable::format(pmem, &layout);
        RedoLog::format(pmem, &layout);
        pmem.fence();
        let PoolIdentity { cluster, pool, node } = params.identity;
        let mut superblock = Superblock {
            generation: 1,
            cluster,
            pool,
            node,
            layout,
            sequence: 1,
            history: History::default(),
            tokens_given: false,
        };
        write_superblock(pmem, &superblock);
        superblock.generation = 2;
        write_superblock(pmem, &superblock);
        debug_assert!(
            find_superblock(pmem).is_ok_and(|found| found.superblock == superblock && found.damaged.is_none()),
            "both copies say the same, and the second one counts"
        );
        Ok(())
    }

    /// Opens a pool: checks superblocks, reads the segment table, replays the local part of redo records.
    ///
    /// # Errors
    /// [`RegionError::Pool`] for what is no pool, or one of a later version, or shorter than it was;
    /// [`RegionError::Corrupt`] for damage. Both say what is wrong and what to do.
    pub fn open(pmem: Arc<Pmem>) -> Result<Arc<PoolSpace>, RegionError> {
        Self::open_with(pmem, Damage { findings: None })
    }

    /// As [`Self::open`], but goes on after damage as far as possible and returns what it found. For checking, not
    /// for serving: segments whose table entry is damaged and records that are damaged are left out.
    pub fn open_for_check(pmem: Arc<Pmem>) -> Result<(Arc<PoolSpace>, Vec<Finding>), RegionError> {
        let mut findings = Vec::new();
        let space = Self::open_with(
            pmem,
            Damage {
                findings: Some(&mut findings),
            },
        )?;
        Ok((space, findings))
    }

    fn open_with(pmem: Arc<Pmem>, mut damage: Damage) -> Result<Arc<PoolSpace>, RegionError> {
        let superblock = read_superblock(&pmem, &mut damage)?;
        let Superblock {
            cluster,
            pool,
            node,
            layout,
            ..
        } = superblock;
        let table = SegmentTable::read(&pmem, &layout, |at, why| damage.at("segment table", at, why))?;
        let redo = RedoLog::recover(&pmem, &layout, &table, |at, why| damage.at("redo log", at, why))?;
        Ok(Arc::new(PoolSpace {
            identity: PoolIdentity { cluster, pool, node },
            layout,
            table,
            redo,
            sequence: Sequence::new(superblock),
            pmem,
        }))
    }
}

/// The superblock that counts, and what is wrong with the other copy, if anything.
pub(super) struct Found {
    /// With a generation and a sequence that are ready to be written over the damaged copy, if there is one.
    pub superblock: Superblock,
    /// Of the other copy: its offset, what is wrong.
    pub damaged: Option<(u64, FormatError)>,
}

/// Finds the superblock that counts for whoever opens the pool: to serve, the other one is written anew if it is damaged;
/// to check, it is a finding.
fn read_superblock(pmem: &Pmem, damage: &mut Damage) -> Result<Superblock, RegionError> {
    let Found { superblock, damaged } = find_superblock(pmem)?;
    if let Some((copy, why)) = damaged {
        let number = copy / SUPERBLOCK_SIZE as u64;
        if damage.findings.is_some() {
            damage.at(
                "superblock",
                copy,
                format!("copy {number} of 2: {why}; the other one is whole"),
            )?;
        } else {
            tracing::warn!(copy, %why, "one superblock was damaged or torn; written anew");
            write_superblock(pmem, &superblock);
        }
    }
    Ok(superblock)
}

/// Reads both copies of the superblock.
///
/// # Errors
/// [`RegionError::Pool`] when there is none that can be used, or the pool is shorter than it says.
pub(super) fn find_superblock(pmem: &Pmem) -> Result<Found, RegionError> {
    let pool = |why: String| Err(RegionError::Pool(why));
    if pmem.len() < SUPERBLOCKS * SUPERBLOCK_SIZE as u64 {
        let len = pmem.len();
        return pool(format!(
            "not a PolvoFS pool: {len} bytes do not hold a superblock; make one with `polvo format`"
        ));
    }
    let read = |copy: u64| {
        let offset = copy * SUPERBLOCK_SIZE as u64;
        let mut bytes = [0; SUPERBLOCK_USED];
        pmem.read(offset, &mut bytes);
        Superblock::decode(&bytes, offset)
    };
    let found = match (read(0), read(1)) {
        (Err(FormatError::Version { found, known, .. }), _) | (_, Err(FormatError::Version { found, known, .. })) => {
            let cure = match found > known {
                true => "use a later PolvoFS",
                false => "copy its files with the PolvoFS that made it",
            };
            return pool(format!(
                "the pool has media format {found}, this program knows format {known}: {cure}"
            ));
        }
        (Err(FormatError::Magic(_)), Err(FormatError::Magic(_))) => {
            return pool("not a PolvoFS pool: no superblock; make one with `polvo format`".into());
        }
        (Err(first), Err(second)) => {
            return pool(format!(
                "both superblocks of the pool are damaged (at 0: {first}; at {SUPERBLOCK_SIZE}: {second}): \
                 restore the pool from a copy, or make a new one with `polvo format`"
            ));
        }
        (Ok(one), Ok(other)) => {
            let newer = if one.generation > other.generation { one } else { other };
            let same =
                (one.cluster, one.pool, one.node, one.layout) == (other.cluster, other.pool, other.node, other.layout);
            if !same {
                return pool(
                    "the two superblocks belong to different pools: restore the pool from a copy, or make a new one \
                     with `polvo format`"
                        .into(),
                );
            }
            Found {
                superblock: newer,
                damaged: None,
            }
        }
        (Ok(mut whole), Err(why)) | (Err(why), Ok(mut whole)) => {
            whole.generation += 1;
            // the lost copy may have been the newer one, which had reserved one stride more
            whole.sequence = (whole.sequence + STRIDE).min((1 << 48) - 1);
            Found {
                damaged: Some((whole.offset(), why)),
                superblock: whole,
            }
        }
    };
    if found.superblock.layout.pool_len > pmem.len() {
        return pool(format!(
            "the pool is truncated: it was made with {} bytes and has {}: restore its length and content",
            found.superblock.layout.pool_len,
            pmem.len()
        ));
    }
    Ok(found)
}
