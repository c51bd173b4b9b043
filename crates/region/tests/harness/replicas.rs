//! Copies of all regions in pools of their own, which follow by records. Whatever is done to the regions, the copies then hold
//! the same in every byte of inodes and logs and in the checksums of file data, and recover to the same tree: nothing is stored that
//! replicas are not told.

use super::snapshot::{Snapshot, difference, snapshot};
use super::world::World;
use polvo_format::{Change, Lsn, MirrorRecord, PAGE, PAGE_CHECKSUM_SIZE, RegionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll};
use polvo_proto::SegmentClass;
use polvo_region::{PoolSpace, Replica};
use std::sync::Arc;

pub struct Replicas {
    pools: Vec<Arc<PoolSpace>>,
    /// by region
    copies: Vec<Replica>,
    records: Vec<u8>,
}

fn image(pmem: &Pmem) -> CrashImage {
    pmem.sim().expect("pools are simulated").image(&mut KeepAll)
}

impl Replicas {
    /// Of a world as it is now, in which no transaction holds anything.
    pub fn of(world: &mut World) -> Replicas {
        for region in &mut world.regions {
            assert_eq!(region.reap(), [], "no transaction is under way");
            region.capture(Lsn(0));
        }
        let copy = |pool: &Arc<PoolSpace>| PoolSpace::open(Pmem::simulated_from_image(&image(pool.pmem())));
        let pools: Vec<_> = world
            .pools
            .iter()
            .map(|pool| copy(pool).expect("a whole pool"))
            .collect();
        let home = world.shape.home.iter().enumerate();
        let copies = home.map(|(region, pool)| Replica::new(&pools[*pool], RegionId(region as u16), Lsn(0)));
        Replicas {
            copies: copies.collect(),
            pools,
            records: Vec::new(),
        }
    }

    /// The copies take over what has been done since the last time. False when the regions were started anew since, and so
    /// tell nobody.
    pub fn follow(&mut self, world: &mut World) -> bool {
        (0..self.copies.len()).all(|region| self.follow_one(world, region))
    }

    fn follow_one(&mut self, world: &mut World, number: usize) -> bool {
        let region = &mut world.regions[number];
        assert_eq!(region.reap(), [], "no transaction is under way");
        let Some(last) = region.take_records(&mut self.records) else {
            return false;
        };
        MirrorRecord::seal(&mut self.records);
        let (copy, mut rest) = (&mut self.copies[number], &self.records[..]);
        while !rest.is_empty() {
            let (record, len) = MirrorRecord::decode(rest).expect("records of ours");
            rest = &rest[len..];
            copy.prepare(&record).expect("a copy's pool is as large");
            for change in record.changes() {
                if let Change::Run { at, len } = change {
                    let mut bytes = vec![0; len as usize];
                    let (from, offset) = world.locate(polvo_format::Gpa::new(record.region, at));
                    from.read(offset, &mut bytes);
                    let to = self.pools[world.shape.home[number]].pmem();
                    to.write_streaming(copy.place(at, len.into()).expect("runs have a place"), &bytes);
                }
            }
            copy.apply(&record).expect("records of ours");
        }
        assert_eq!(copy.applied(), last, "no record is left out");
        world.regions[number].set_mirrored(last);
        true
    }

    /// Looks for differences; `expected`: the world as it is.
    pub fn compare(&self, world: &World, expected: &Snapshot) -> Result<(), String> {
        for (region, home) in world.shape.home.iter().enumerate() {
            compare_bytes(world, RegionId(region as u16), &self.pools[*home])?;
        }
        let images: Vec<CrashImage> = self.pools.iter().map(|pool| image(pool.pmem())).collect();
        let mut copy = World::open_images(&world.shape, &images, world.now).map_err(|why| format!("copy: {why}"))?;
        let found = snapshot(&mut copy).map_err(|why| format!("reading a copy: {why}"))?;
        if found != *expected {
            return Err(format!("the copy is something else:\n{}", difference(expected, &found)));
        }
        match copy.check() {
            findings if findings.is_empty() => Ok(()),
            findings => Err(format!("check of a copy: {findings:?}")),
        }
    }
}

/// All segments of a region are there in the pool of its copy, those of inodes and logs are the same, and so is what is known of file
/// data by their checksums.
pub fn compare_bytes(world: &World, region: RegionId, copy: &PoolSpace) -> Result<(), String> {
    let original = world.pool_of(region);
    let (ours, theirs) = (original.segments_of(region), copy.segments_of(region));
    let what = |segments: &[(u32, u64, SegmentClass)]| -> Vec<_> { segments.iter().map(|s| (s.0, s.2)).collect() };
    if what(&ours) != what(&theirs) {
        return Err(format!(
            "segments {:?}, and the copy has {:?}",
            what(&ours),
            what(&theirs)
        ));
    }
    let size = original.usage().segment_size as usize;
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let have_checksums = original.layout().has_checksums() && copy.layout().has_checksums();
    for ((index, from, class), (_, to, _)) in ours.iter().zip(&theirs) {
        let (from, to, len) = match class {
            SegmentClass::Data if !have_checksums => continue,
            SegmentClass::Data => {
                let words = |pool: &PoolSpace, segment| pool.layout().checksum_offset(segment);
                let len = size / PAGE * PAGE_CHECKSUM_SIZE as usize;
                (words(original, *from), words(copy, *to), len)
            }
            _ => (*from, *to, size),
        };
        here.resize(len, 0);
        there.resize(len, 0);
        original.pmem().read(from, &mut here);
        copy.pmem().read(to, &mut there);
        if here != there {
            let at = (0..len).find(|at| here[*at] != there[*at]).expect("they differ");
            return Err(format!(
                "segment {index} of region {region} ({class:?}) differs at {at:#x} in the copy"
            ));
        }
    }
    Ok(())
}
