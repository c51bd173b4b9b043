//! A record for a region's copy, as it comes and with the checksum put right, and what the copy makes of it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{Lsn, MirrorRecord, NodeId, RegionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace, Region, Replica};
use std::sync::LazyLock;

static POOL: LazyLock<CrashImage> = LazyLock::new(|| {
    let pmem = Pmem::simulated(2 << 20);
    let params = FormatParams {
        identity: PoolIdentity {
            cluster: [1; 16],
            pool: [2; 16],
            node: NodeId(1),
        },
        segment_shift: Some(18),
        checksums: true,
    };
    PoolSpace::format(&pmem, &params).expect("the pool is large enough");
    let space = PoolSpace::open(pmem.clone()).expect("just formatted");
    Region::create(&space, RegionId(0), 1).expect("there is room");
    pmem.sim().expect("simulated").image(&mut KeepAll)
});

fuzz_target!(|bytes: &[u8]| {
    let _ = MirrorRecord::decode(bytes);
    if bytes.len() <= 32 || !bytes.len().is_multiple_of(8) {
        return;
    }
    let mut record = bytes.to_vec();
    record[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    record[12..16].fill(0); // checksums are, in this build
    let Ok((record, _)) = MirrorRecord::decode(&record) else { return };
    let space = PoolSpace::open(Pmem::simulated_from_image(&POOL)).expect("a whole pool");
    let mut replica = Replica::new(&space, record.region, Lsn(record.lsn.0.saturating_sub(1)));
    let _ = replica.prepare(&record);
    let _ = replica.apply(&record);
});
