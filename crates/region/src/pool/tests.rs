//! Pools under power cuts, damage and full tables.

use super::redo_log::check_prepared;
use super::*;
use parking_lot::Mutex;
use polvo_format::{
    ERAS_KEPT, FORMAT_VERSION, KnownPool, LINE, REDO_RECORD_MAX, REDO_SLOTS_OWN, RedoEncoder, RedoRecord, RedoState,
    RegionOffset, SUPERBLOCK_SIZE, SUPERBLOCK_USED, SegmentEntry, SegmentIndex, SegmentOwner,
};
use polvo_pmem::sim::{CrashImage, KeepAll, LoseAll, RandomLines};
use polvo_proto::FsError;
use std::collections::BTreeSet;

const LEN: u64 = 4 << 20;
const SHIFT: u32 = 18;
const R1: RegionId = RegionId(1);
const R2: RegionId = RegionId(2);

const IDENTITY: PoolIdentity = PoolIdentity {
    cluster: [1; 16],
    pool: [2; 16],
    node: NodeId(3),
};

fn params() -> FormatParams {
    FormatParams {
        identity: IDENTITY,
        segment_shift: Some(SHIFT),
        checksums: true,
    }
}

fn fresh() -> Arc<PoolSpace> {
    let pmem = Pmem::simulated(LEN);
    PoolSpace::format(&pmem, &params()).unwrap();
    PoolSpace::open(pmem).unwrap()
}

fn txn(number: u64) -> TxnId {
    TxnId::new(R1, number)
}

fn gpa(region: RegionId, offset: u64) -> Gpa {
    Gpa::new(region, RegionOffset(offset))
}

fn error_of<T>(result: Result<T, RegionError>) -> String {
    result.err().expect("this fails").to_string()
}

/// Runs `change` and returns what power cuts before each of its fences, and one after it, may leave.
fn power_cuts(pmem: &Pmem, change: impl FnOnce()) -> Vec<CrashImage> {
    let images = Arc::new(Mutex::new(Vec::new()));
    let into = images.clone();
    let sim = pmem.sim().unwrap();
    sim.set_fence_hook(Box::new(move |point| {
        let mut images = into.lock();
        images.push(point.image(&mut LoseAll));
        images.push(point.image(&mut KeepAll));
        for seed in 0..30 {
            images.push(point.image(&mut RandomLines::new(point.number() << 8 | seed)));
        }
    }));
    change();
    sim.clear_fence_hook();
    let mut images = std::mem::take(&mut *images.lock());
    images.push(sim.image(&mut LoseAll));
    assert!(images.len() > 1, "nothing was made durable");
    images
}

fn reopened(image: &CrashImage) -> Arc<PoolSpace> {
    PoolSpace::open(Pmem::simulated_from_image(image)).unwrap()
}

fn now(space: &PoolSpace) -> CrashImage {
    space.pmem().sim().unwrap().image(&mut LoseAll)
}

#[test]
fn a_formatted_pool_is_empty_and_knows_its_owner() {
    let space = fresh();
    assert_eq!(space.identity(), IDENTITY);
    assert_eq!(space.regions(), []);
    let usage = space.usage();
    assert_eq!(usage.segment_size, 1 << SHIFT);
    assert_eq!(usage.segments, usage.free_segments);
    assert!(u64::from(usage.segments) * usage.segment_size > LEN / 2);
    assert!(space.undispatched().is_empty());
}

#[test]
fn media_that_are_no_pool_are_refused_with_a_cure() {
    for len in [1, 4096, LEN] {
        let why = error_of(PoolSpace::open(Pmem::simulated(len)));
        assert!(
            why.contains("not a PolvoFS pool") && why.contains("polvo format"),
            "{why}"
        );
    }
    let why = error_of(PoolSpace::open(Pmem::simulated_from(vec![0xa5; LEN as usize])));
    assert!(why.contains("not a PolvoFS pool"), "{why}");
    let why = error_of(PoolSpace::format(
        &Pmem::simulated(15 << 20),
        &FormatParams {
            segment_shift: None,
            checksums: true,
            ..params()
        },
    ));
    assert!(why.contains("too small"), "{why}");
    let why = error_of(PoolSpace::format(&Pmem::simulated(100), &params()));
    assert!(why.contains("too few"), "{why}");
    let why = error_of(PoolSpace::format(
        &Pmem::simulated(LEN),
        &FormatParams {
            segment_shift: Some(3),
            checksums: true,
            ..params()
        },
    ));
    assert!(why.contains("segment shift"), "{why}");
}

#[test]
fn a_truncated_pool_is_refused() {
    let mut bytes = now(&fresh()).to_vec();
    bytes.pop();
    let why = error_of(PoolSpace::open(Pmem::simulated_from(bytes.clone())));
    assert!(why.contains("truncated"), "{why}");
    bytes.truncate(SUPERBLOCK_SIZE * 2);
    let why = error_of(PoolSpace::open(Pmem::simulated_from(bytes)));
    assert!(why.contains("truncated"), "{why}");
}

#[test]
fn a_pool_of_another_version_is_refused() {
    let later = FORMAT_VERSION as u8 + 1;
    let (later, earlier) = ((later, "later PolvoFS"), (6, "the PolvoFS that made it"));
    let copies = [&[0][..], &[1], &[0, 1]].into_iter();
    for (copies, (version, cure)) in copies.flat_map(|copies| [(copies, later), (copies, earlier)]) {
        let pmem = Pmem::simulated_from_image(&now(&fresh()));
        for copy in copies {
            let offset = copy * SUPERBLOCK_SIZE as u64;
            let mut bytes = [0; SUPERBLOCK_USED];
            pmem.read(offset, &mut bytes);
            bytes[8] = version;
            let crc = crc32c::crc32c(&bytes[..SUPERBLOCK_USED - 4]).to_le_bytes();
            bytes[SUPERBLOCK_USED - 4..].copy_from_slice(&crc);
            pmem.write(offset, &bytes);
        }
        let why = error_of(PoolSpace::open(pmem));
        assert!(why.contains(cure), "{why}");
    }
}

#[test]
fn one_damaged_superblock_is_written_anew_and_two_are_an_error() {
    for copy in [0, SUPERBLOCK_SIZE as u64] {
        let space = fresh();
        let used: BTreeSet<u64> = (0..10).map(|_| space.next_sequence()).collect();
        let pmem = Pmem::simulated_from_image(&now(&space));
        pmem.write(copy + 40, &[0xff; 8]);
        let space = PoolSpace::open(pmem.clone()).unwrap();
        assert!(!used.contains(&space.next_sequence()), "numbers are not used again");
        let other = SUPERBLOCK_SIZE as u64 - copy;
        pmem.write(other, &[0xff; 64]);
        let space = PoolSpace::open(pmem.clone()).unwrap();
        assert_eq!(space.identity(), IDENTITY, "the repaired copy serves alone");
        pmem.write(copy + 40, &[0xff; 8]);
        pmem.write(other + 40, &[0xff; 8]);
        let why = error_of(PoolSpace::open(pmem));
        assert!(why.contains("both superblocks") && why.contains("restore"), "{why}");
    }
}

#[test]
fn format_cut_short_leaves_no_pool_or_the_empty_one() {
    let old = fresh();
    old.take_segment(R1, 0, SegmentClass::Data).unwrap();
    old.log(R1, txn(1), [(gpa(R1, 0), &b"before"[..])], &[]).unwrap();
    let before = [
        CrashImage::zeroed(LEN),
        CrashImage::from_bytes(&vec![0xff; LEN as usize]),
        now(&old),
    ];
    for (i, before) in before.iter().enumerate() {
        let pmem = Pmem::simulated_from_image(before);
        let identity = PoolIdentity {
            cluster: [9; 16],
            ..IDENTITY
        };
        let mut made = 0;
        let images = power_cuts(&pmem, || {
            PoolSpace::format(
                &pmem,
                &FormatParams {
                    identity,
                    segment_shift: Some(SHIFT),
                    checksums: true,
                },
            )
            .unwrap()
        });
        for image in &images {
            match PoolSpace::open(Pmem::simulated_from_image(image)) {
                Ok(space) if space.identity() == identity => {
                    assert_eq!(space.usage().segments, space.usage().free_segments);
                    assert!(!space.is_logged(txn(1)));
                    made += 1;
                }
                Ok(space) => assert!(i == 2 && space.identity() == IDENTITY && space.regions() == [R1]),
                Err(RegionError::Pool(_)) => (),
                Err(why) => panic!("{why}"),
            }
        }
        assert!(made > 30 && made < images.len(), "{made} of {}", images.len());
    }
}

#[test]
fn sequence_numbers_are_never_used_twice() {
    let space = fresh();
    let mut used = BTreeSet::new();
    for _ in 0..5 {
        assert!(used.insert(space.next_sequence()));
    }
    let pmem = space.pmem().clone();
    // the power may fail while the next stride is reserved
    let again = PoolSpace::open(Pmem::simulated_from_image(&now(&space))).unwrap();
    let images = power_cuts(again.pmem(), || {
        assert!(used.insert(again.next_sequence()));
    });
    used.pop_last(); // it was not handed out before the last of these power cuts
    for image in &images[..images.len() - 1] {
        let number = reopened(image).next_sequence();
        assert!(!used.contains(&number), "{number}");
    }
    drop(space);
    for _ in 0..5 {
        let space = PoolSpace::open(pmem.clone()).unwrap();
        for _ in 0..3 {
            assert!(used.insert(space.next_sequence()));
        }
    }
    assert!(used.iter().all(|&number| number >= 1));
}

#[test]
fn sequence_numbers_differ_between_threads() {
    let space = fresh();
    let all: Vec<u64> = std::thread::scope(|scope| {
        let one = || (0..1000).map(|_| space.next_sequence()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4000);
}

#[test]
fn a_segment_is_taken_whole_or_not_at_all() {
    for class in [SegmentClass::Inodes, SegmentClass::Logs, SegmentClass::Data] {
        let space = fresh();
        // its next owner must not see what was there before
        let layout = *space.layout();
        space.pmem().write(
            layout.segments_offset,
            &vec![0xee; LEN as usize - layout.segments_offset as usize],
        );
        space
            .pmem()
            .persist(layout.segments_offset, LEN - layout.segments_offset);
        let mut given = 0;
        let images = power_cuts(space.pmem(), || {
            given = space.take_segment(R1, 0, SegmentClass::Inodes).unwrap();
            let offset = space.take_segment(R1, 7, class).unwrap();
            assert_ne!(offset, given);
        });
        let mut seen = BTreeSet::new();
        for image in &images {
            let space = reopened(image);
            let segments = space.segments_of(R1);
            assert_eq!(
                space.usage().free_segments,
                space.usage().segments - segments.len() as u32
            );
            for &(index, offset, class_now) in &segments {
                assert_eq!(class_now, if index == 0 { SegmentClass::Inodes } else { class });
                let mut content = vec![1; 1 << SHIFT];
                space.pmem().read(offset, &mut content);
                let expected = if class_now == SegmentClass::Data { 0xee } else { 0 };
                assert!(content.iter().all(|&byte| byte == expected));
            }
            seen.insert(segments.iter().map(|s| s.0).collect::<Vec<_>>());
        }
        assert_eq!(seen, [vec![], vec![0], vec![0, 7]].into());
    }
}

#[test]
fn a_full_pool_says_so_and_goes_on_when_a_segment_comes_back() {
    let space = fresh();
    let all = space.usage().segments;
    let mut places = BTreeSet::new();
    for index in 0..all {
        places.insert(space.take_segment(R1, index, SegmentClass::Data).unwrap());
    }
    assert_eq!(places.len() as u32, all);
    let full = space.take_segment(R2, 0, SegmentClass::Data);
    assert!(matches!(full, Err(RegionError::Fs(FsError::NoSpace))));
    let images = power_cuts(space.pmem(), || space.give_back_segment(R1, 3));
    let counts: BTreeSet<u32> = images
        .iter()
        .map(|image| reopened(image).usage().free_segments)
        .collect();
    assert_eq!(counts, [0, 1].into());
    space.take_segment(R2, 0, SegmentClass::Logs).unwrap();
    assert_eq!(reopened(&now(&space)).regions(), [R1, R2]);
    let outside = space.take_segment(R2, u32::MAX, SegmentClass::Logs);
    assert!(matches!(outside, Err(RegionError::Fs(FsError::NoSpace))));
}

/// A pool with a data segment for R1 and R2, whose first words are 1.
fn with_words() -> (Arc<PoolSpace>, u64, u64) {
    let space = fresh();
    let one = space.take_segment(R1, 5, SegmentClass::Data).unwrap();
    let other = space.take_segment(R2, 0, SegmentClass::Data).unwrap();
    for place in [one, one + 4096, other] {
        space.pmem().write_u64(place, 1);
        space.pmem().persist(place, 8);
    }
    (space, one, other)
}

/// Address of the words in R1.
fn word_of_r1(at: u64) -> Gpa {
    gpa(R1, (5 << SHIFT) + at)
}

fn part() -> RemotePart {
    let region = RegionId(9);
    RemotePart::Collected(CollectedPart {
        region,
        writes: vec![(gpa(region, 512), vec![5; 300])],
        locks: vec![gpa(region, 1024)],
    })
}

/// What R1 has prepared for a transaction of another region.
fn prepared_here() -> CollectedPart {
    CollectedPart {
        region: R1,
        writes: vec![(word_of_r1(512), vec![5; 300])],
        locks: vec![word_of_r1(1024)],
    }
}

fn txn_of_others(number: u64) -> TxnId {
    TxnId::new(RegionId(4), number)
}

/// Logs and applies one record as a region does.
fn run_record(space: &PoolSpace, number: u64, places: [u64; 2], value: u64, remote: &[RemotePart]) -> Option<RedoId> {
    let bytes = value.to_le_bytes();
    let local = [(word_of_r1(0), &bytes[..]), (word_of_r1(4096), &bytes[..])];
    let record = space.log(R1, txn(number), local.iter().copied(), remote).unwrap();
    assert!(space.is_logged(txn(number)));
    for place in places {
        space.pmem().write(place, &bytes);
        space.pmem().flush(place, 8);
    }
    space.pmem().fence();
    space.applied(record)
}

#[test]
fn a_record_happens_whole_or_not_at_all() {
    for remote in [vec![], vec![part()]] {
        let (space, one, _) = with_words();
        let mut records = Vec::new();
        let images = power_cuts(space.pmem(), || {
            for round in 2..5 {
                // the same slot is used again by the next record when nothing is to be dispatched
                records.extend(run_record(&space, round, [one, one + 4096], round, &remote));
            }
        });
        assert_eq!(records.len(), remote.len() * 3);
        let mut seen = BTreeSet::new();
        for image in &images {
            let space = reopened(image);
            let value = space.pmem().read_u64(one);
            assert_eq!(value, space.pmem().read_u64(one + 4096), "half a record is in place");
            seen.insert(value);
            let found = space.undispatched();
            let txns: BTreeSet<u64> = found.iter().map(|u| u.txn.sequence()).collect();
            if remote.is_empty() {
                assert!(found.is_empty());
            } else {
                assert_eq!(
                    txns,
                    (2..=value).collect(),
                    "what happened is to be dispatched, and nothing else"
                );
                assert!(found.iter().all(|u| u.remote == remote));
            }
            for number in 2..6 {
                assert_eq!(space.is_logged(txn(number)), txns.contains(&number));
            }
            // opening again finds the same
            assert_eq!(reopened(&now(&space)).undispatched().len(), found.len());
            for u in found {
                space.retire(u.record);
                space.retire(u.record);
                assert!(!space.is_logged(u.txn));
            }
            assert!(space.undispatched().is_empty() && reopened(&now(&space)).undispatched().is_empty());
        }
        assert_eq!(seen, [1, 2, 3, 4].into());
    }
}

#[test]
fn recovery_can_be_cut_short_too() {
    let (space, one, _) = with_words();
    let local = [(word_of_r1(0), &[7; 8][..]), (word_of_r1(4096), &[7; 8])];
    space.log(R1, txn(1), local.iter().copied(), &[part()]).unwrap();
    space.log(R2, txn(2), [(gpa(R2, 0), &[8; 8][..])], &[]).unwrap();
    let pmem = Pmem::simulated_from_image(&now(&space));
    let images = power_cuts(&pmem, || drop(PoolSpace::open(pmem.clone()).unwrap()));
    for image in images {
        let space = reopened(&image);
        assert_eq!(space.pmem().read_u64(one), u64::from_le_bytes([7; 8]));
        assert_eq!(space.pmem().read_u64(one + 4096), u64::from_le_bytes([7; 8]));
        assert_eq!(space.undispatched().len(), 1);
        assert!(space.is_logged(txn(1)) && !space.is_logged(txn(2)));
    }
}

#[test]
fn retiring_cut_short_leaves_the_record_or_not() {
    let (space, one, _) = with_words();
    let record = run_record(&space, 2, [one, one + 4096], 2, &[part()]).unwrap();
    let images = power_cuts(space.pmem(), || space.retire(record));
    let counts: BTreeSet<usize> = images
        .iter()
        .map(|image| reopened(image).undispatched().len())
        .collect();
    assert_eq!(counts, [0, 1].into());
}

#[cfg(feature = "two-phase")]
#[test]
fn a_prepared_part_is_found_until_it_is_retired() {
    let (space, ..) = with_words();
    let images = power_cuts(space.pmem(), || {
        let prepared = space.log_prepared(txn_of_others(2), prepared_here()).unwrap();
        assert!(space.is_logged(txn_of_others(2)));
        space.retire(prepared.record);
        assert!(!space.is_logged(txn_of_others(2)));
    });
    let counts: BTreeSet<usize> = images
        .iter()
        .map(|image| {
            let again = reopened(image);
            assert!(again.undispatched().is_empty(), "no decision of ours");
            let found = again.prepared();
            assert!(
                found
                    .iter()
                    .all(|p| p.txn == txn_of_others(2) && p.part == prepared_here())
            );
            found.len()
        })
        .collect();
    assert_eq!(counts, [0, 1].into());
    let prepared = space.log_prepared(txn_of_others(3), prepared_here()).unwrap();
    assert_eq!(reopened(&now(&space)).prepared()[0].part, prepared.part);
}

#[cfg(feature = "two-phase")]
#[test]
fn a_record_of_another_region_that_is_nothing_prepared_is_damage() {
    let here = || RemotePart::Collected(prepared_here());
    let word = [7; 8];
    let local = [(word_of_r1(0), &word[..])];
    for (local, remote) in [
        (&local[..0], vec![part()]),
        (&local[..0], vec![RemotePart::Prepared(R1)]),
        (&local[..0], vec![here(), RemotePart::Prepared(RegionId(9))]),
        (&local[..], vec![here()]),
    ] {
        let (space, one, _) = with_words();
        let local = local.iter().copied();
        space.log(R1, txn_of_others(1), local, &remote).unwrap();
        let image = now(&space);
        let why = error_of(PoolSpace::open(Pmem::simulated_from_image(&image)));
        assert!(why.contains("redo log") && why.contains("another region's"), "{why}");
        assert_eq!(space.pmem().read_u64(one), 1, "nothing is written");
    }
}

#[test]
fn a_node_that_does_no_two_phase_commit_refuses_its_records() {
    let (space, ..) = with_words();
    let part = prepared_here();
    let mut buffer = Vec::new();
    let mut encoder = RedoEncoder::new(&mut buffer, 1, 1, R1, txn_of_others(2));
    let writes = part.writes.iter().map(|(at, bytes)| (*at, bytes.as_slice()));
    encoder.collected(R1, writes, &part.locks);
    let slot = encoder.finish().to_vec();
    let record = RedoRecord::decode(&slot).unwrap();
    assert_eq!(check_prepared(&space.table, &record, true), Ok(()));
    let why = check_prepared(&space.table, &record, false).unwrap_err();
    assert!(why.contains("two-phase commit"), "{why}");
}

#[test]
fn records_to_dispatch_leave_slots_for_local_ones() {
    let (space, one, _) = with_words();
    let mut waiting = Vec::new();
    let mut number = 1;
    loop {
        let record = match space.log(R1, txn(number), [], &[part()]) {
            Ok(record) => record,
            Err(RegionError::Fs(FsError::Retry)) => break,
            Err(why) => panic!("{why}"),
        };
        waiting.push(space.applied(record).unwrap());
        number += 1;
    }
    assert!(waiting.len() >= 4 && waiting.len() < space.layout().redo_slots as usize);
    for value in 100..200 {
        assert_eq!(run_record(&space, value, [one, one + 4096], value, &[]), None);
    }
    space.retire(waiting[0]);
    let record = space.log(R1, txn(500), [], &[part()]).unwrap();
    space.retire(waiting[0]); // late: its slot has another record now
    assert!(space.is_logged(txn(500)));
    space.applied(record).unwrap();
    assert_eq!(reopened(&now(&space)).undispatched().len(), waiting.len());
}

/// Copies cannot follow their primaries without it.
#[test]
fn what_is_decided_here_leaves_slots_for_what_is_decided_elsewhere() {
    let pmem = Pmem::simulated(512 << 20);
    PoolSpace::format(&pmem, &params()).unwrap();
    let space = PoolSpace::open(pmem).unwrap();
    let slots = space.layout().redo_slots as usize;
    assert!(slots >= 2 * REDO_SLOTS_OWN as usize, "{slots}");
    let decide = |number| space.log(R1, txn(number), [], &[part()]);
    let mut own: Vec<_> = (1..).map_while(|number| decide(number).ok()).collect();
    assert_eq!(own.len(), space.decisions_max());
    let mut adopted = 0;
    loop {
        let mut record = Vec::new();
        encode_parts(&mut record, R2, TxnId::new(R2, 1 + adopted), &[part()]);
        match space.adopt(R2, &record, |_| false) {
            Ok(()) => adopted += 1,
            Err(why) => {
                assert_eq!(why, FsError::Retry.into());
                break;
            }
        }
    }
    assert!(
        adopted as usize + own.len() + REDO_SLOTS_OWN as usize / 8 >= slots,
        "{adopted}"
    );
    // and what has been retired makes room for as much
    let record = own.pop().unwrap();
    space.applied(record).unwrap();
    assert_eq!(decide(900).map(drop), Err(FsError::Retry.into()));
    space.retire(record);
    decide(900).unwrap();
    assert_eq!(decide(901).map(drop), Err(FsError::Retry.into()));
}

#[test]
fn a_record_too_large_for_a_slot_is_refused() {
    let (space, ..) = with_words();
    let overhead = LINE + 16;
    let fits = vec![3; REDO_RECORD_MAX - overhead];
    let record = space.log(R1, txn(1), [(word_of_r1(0), &fits[..])], &[]).unwrap();
    assert_eq!(
        reopened(&now(&space)).pmem().read_u64(space.segments_of(R1)[0].1),
        u64::from_le_bytes([3; 8])
    );
    space.applied(record);
    let too_large = vec![3; REDO_RECORD_MAX - overhead + 1];
    let why = error_of(space.log(R1, txn(2), [(word_of_r1(0), &too_large[..])], &[]));
    assert!(why.contains("redo record"), "{why}");
    let mut remote = prepared_here();
    remote.writes[0].1 = too_large;
    let why = error_of(space.log(R1, txn(2), [], &[RemotePart::Collected(remote)]));
    assert!(why.contains("redo record"), "{why}");
    assert!(!space.is_logged(txn(2)));
}

#[test]
fn a_record_that_leaves_its_region_is_damage_and_nothing_is_written() {
    let segment = 1 << SHIFT;
    for bad in [
        gpa(RegionId(7), 0),
        gpa(R1, 0),
        word_of_r1(segment - 4),
        gpa(R1, (1 << 48) - 8),
        gpa(R2, segment),
    ] {
        let (space, one, _) = with_words();
        let first = gpa(bad.region(), 0);
        let first = if first == bad { gpa(bad.region(), 4096) } else { first };
        let writes = [(first, &[7; 8][..]), (bad, &[7; 8][..])];
        space.log(bad.region(), txn(1), writes, &[]).unwrap();
        let image = now(&space);
        let why = error_of(PoolSpace::open(Pmem::simulated_from_image(&image)));
        assert!(
            why.contains("redo log") && why.contains("no segment of this pool"),
            "{why}"
        );
        let (space, findings) = PoolSpace::open_for_check(Pmem::simulated_from_image(&image)).unwrap();
        assert_eq!(findings.len(), 1);
        assert_eq!(space.pmem().read_u64(one), 1);
    }
}

#[test]
fn unapplied_records_of_a_region_are_put_in_place_in_order() {
    let (space, one, _) = with_words();
    let log = |number: u64, value: &[u8; 8]| {
        let writes = [(word_of_r1(0), &value[..])];
        space.log(R1, txn(number), writes, &[]).unwrap()
    };
    let first = log(1, &[7; 8]);
    log(2, &[8; 8]);
    space.applied(first);
    // in the slot of the first one, and so before the second one
    log(3, &[9; 8]);
    let again = reopened(&now(&space));
    assert_eq!(again.pmem().read_u64(one), u64::from_le_bytes([9; 8]));
    let damaged = |slots: &[u32]| {
        let pmem = Pmem::simulated_from_image(&now(&space));
        for slot in slots {
            let at = space.layout().slot_offset(*slot);
            let mut record = vec![0; REDO_RECORD_MAX];
            pmem.read(at, &mut record);
            let (_, number) = RedoState::decode(u64::from_le_bytes(record[..8].try_into().unwrap())).unwrap();
            let mut buffer = Vec::new();
            let mut encoder = RedoEncoder::new(&mut buffer, number, 5, R1, txn(4));
            encoder.local(word_of_r1(0), &[5; 8]);
            pmem.write(at, encoder.finish());
        }
        error_of(PoolSpace::open(pmem))
    };
    let why = damaged(&[0, 1]);
    assert!(why.contains("two records with one number"), "{why}");
}

#[test]
fn a_damaged_record_that_was_applied_is_an_error_not_a_torn_one() {
    let (space, one, _) = with_words();
    run_record(&space, 2, [one, one + 4096], 2, &[part()]).unwrap();
    let image = now(&space);
    let slot = (0..space.layout().redo_slots)
        .map(|slot| space.layout().slot_offset(slot))
        .find(|&slot| space.pmem().read_u64(slot) & 0xff == RedoState::AppliedToDispatch as u64)
        .unwrap();
    let flipped = |bit: u64| {
        let pmem = Pmem::simulated_from_image(&image);
        let mut byte = [0];
        pmem.read(slot + bit / 8, &mut byte);
        pmem.write(slot + bit / 8, &[byte[0] ^ 1 << (bit % 8)]);
        pmem
    };
    for bit in 0..LINE as u64 * 8 * 2 {
        let why = error_of(PoolSpace::open(flipped(bit)));
        assert!(why.contains("redo log"), "bit {bit}: {why}");
        let (space, findings) = PoolSpace::open_for_check(flipped(bit)).unwrap();
        assert_eq!(findings.len(), 1, "bit {bit}");
        run_record(&space, 9, [one, one + 4096], 9, &[]);
    }
}

#[test]
fn every_flipped_bit_of_the_segment_table_is_noticed() {
    let (space, ..) = with_words();
    let image = now(&space);
    let layout = *space.layout();
    for bit in 0..u64::from(layout.segments) * 64 {
        let pmem = Pmem::simulated_from_image(&image);
        let offset = layout.table_offset + bit / 64 * 8;
        pmem.write_u64(offset, pmem.read_u64(offset) ^ 1 << (bit % 64));
        let (space, findings) = PoolSpace::open_for_check(Pmem::simulated_from_image(&{
            pmem.persist(offset, 8);
            pmem.sim().unwrap().image(&mut LoseAll)
        }))
        .unwrap();
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].what.contains(&SegmentIndex((bit / 64) as u32).to_string()),
            "{}",
            findings[0].what
        );
        let owned: usize = space.regions().iter().map(|&r| space.segments_of(r).len()).sum();
        assert_eq!(space.usage().free_segments + owned as u32, layout.segments - 1);
        let why = error_of(PoolSpace::open(pmem));
        assert!(why.contains("segment table"), "{why}");
    }
}

#[test]
fn a_segment_claimed_twice_or_of_no_class_is_damage() {
    for class in [SegmentClass::Data as u8, 9] {
        let (space, ..) = with_words();
        let last = SegmentIndex(space.layout().segments - 1);
        let entry = SegmentEntry::Owned(SegmentOwner {
            region: R1,
            index: 5,
            class,
        });
        space
            .pmem()
            .write_u64(space.layout().entry_offset(last), entry.encode(last));
        let why = error_of(PoolSpace::open(space.pmem().clone()));
        assert!(why.contains(if class == 9 { "class 9" } else { "both claim" }), "{why}");
    }
}

/// Regions log at the same time: slots are apart, and all of it is found.
#[test]
fn threads_log_side_by_side() {
    let space = fresh();
    let threads = 6;
    for region in 0..threads {
        space.take_segment(RegionId(region), 0, SegmentClass::Data).unwrap();
    }
    std::thread::scope(|scope| {
        for region in (0..threads).map(RegionId) {
            let space = &space;
            scope.spawn(move || {
                let offset = space.segments_of(region)[0].1;
                for round in 1..=200u64 {
                    let id = TxnId::new(region, round);
                    let local = [(gpa(region, 0), &round.to_le_bytes()[..])];
                    let record = space.log(region, id, local.iter().copied(), &[]).unwrap();
                    space.pmem().write_u64(offset, round);
                    space.pmem().persist(offset, 8);
                    assert_eq!(space.applied(record), None);
                    assert!(!space.is_logged(id));
                }
            });
        }
    });
    let space = reopened(&now(&space));
    for region in space.regions() {
        assert_eq!(space.pmem().read_u64(space.segments_of(region)[0].1), 200);
    }
}

#[test]
fn an_era_begins_or_does_not_and_either_superblock_knows_of_it() {
    let space = fresh();
    for mark in 1..20 {
        let before = space.past().history;
        let images = power_cuts(space.pmem(), || space.begin_era(mark, None));
        let after = space.past().history;
        assert_eq!(after.latest(), Era { number: mark, mark });
        for image in &images {
            let found = reopened(image).past().history;
            assert!(found == before || found == after, "{found:?}");
        }
        // numbers are reserved between two starts, by one superblock only
        if mark % 3 == 0 {
            let limit = space.sequence.limit();
            while space.next_sequence() < limit {}
        }
        for copy in 0..2 {
            let mut bytes = now(&space).to_vec();
            bytes[copy * SUPERBLOCK_SIZE + 40] ^= 1;
            let space = PoolSpace::open(Pmem::simulated_from(bytes)).unwrap();
            assert_eq!(space.past().history, after, "without copy {copy}");
        }
    }
    space.begin_era(1, Some(Era { number: 1000, mark: 0 }));
    assert!(space.past().history.era > 1000 + ERAS_KEPT);
    space.begin_era(
        2,
        Some(Era {
            number: u64::MAX,
            mark: 0,
        }),
    );
    assert!(
        !reopened(&now(&space))
            .past()
            .history
            .is_behind(space.past().history.latest())
    );
}

#[test]
fn peers_are_remembered_over_power_cuts_by_this_pool_alone() {
    let space = fresh();
    let known = |number| KnownPool {
        pool: [number as u8; 16],
        era: Era {
            number,
            mark: number * 77,
        },
    };
    let (peer, other) = (NodeId(5), NodeId(1023));
    assert_eq!((space.peer(peer), space.peer(NodeId(0))), (None, None));
    space.remember_peer(other, known(9));
    for number in 1..20 {
        let before = space.peer(peer);
        for image in power_cuts(space.pmem(), || space.remember_peer(peer, known(number))) {
            let space = reopened(&image);
            let found = space.peer(peer);
            assert!(found == before || found == Some(known(number)), "{found:?}");
            assert_eq!(space.peer(other), Some(known(9)));
        }
        assert_eq!(reopened(&now(&space)).peer(peer), Some(known(number)));
    }
    // there is room for so many
    let before = now(&space).to_vec();
    space.remember_peer(NodeId(1024), known(1));
    space.remember_peer(NodeId(u16::MAX), known(1));
    assert_eq!(space.peer(NodeId(1024)), None);
    assert!(now(&space).to_vec() == before);
    // what lies there is no record of a pool that is made anew on the same medium
    let made_anew = FormatParams {
        identity: PoolIdentity {
            pool: [9; 16],
            ..IDENTITY
        },
        ..params()
    };
    PoolSpace::format(space.pmem(), &made_anew).unwrap();
    assert_eq!(PoolSpace::open(space.pmem().clone()).unwrap().peer(peer), None);
}

#[test]
fn records_of_peers_lie_between_the_redo_log_and_the_segments() {
    for (len, shift) in [
        (2 << 20, Some(18)),
        (LEN, Some(18)),
        (16 << 20, None),
        (100 << 30, None),
        (3 << 40, None),
    ] {
        let layout = PoolLayout::plan(len, shift, true).unwrap();
        let (offset, room) = layout.peers();
        assert!(offset >= layout.slot_offset(layout.redo_slots - 1) + u64::from(polvo_format::REDO_SLOT_SIZE));
        assert!(offset + room * polvo_format::PEER_PLACE <= layout.segments_offset);
        assert!(room >= if len < 16 << 20 { 30 } else { 1024 }, "{len}: room for {room}");
    }
}

#[test]
fn what_is_no_part_is_refused_when_it_is_collected() {
    let region = RegionId(9);
    let collected = || Collected {
        writes: vec![(gpa(region, 512), vec![5; 3].into())],
        locks: vec![gpa(region, 1024)],
        outcomes: Vec::new(),
    };
    let (part, _) = CollectedPart::new(region, collected(), 0).expect("a part");
    assert_eq!((part.writes.len(), part.locks.len()), (1, 1));
    for (what, bad) in [
        (
            "no lock",
            Collected {
                locks: Vec::new(),
                ..collected()
            },
        ),
        (
            "a lock elsewhere",
            Collected {
                locks: vec![gpa(region, 8), gpa(R1, 8)],
                ..collected()
            },
        ),
        (
            "a write elsewhere",
            Collected {
                writes: vec![(gpa(R1, 512), vec![5; 3].into())],
                ..collected()
            },
        ),
    ] {
        let refused = CollectedPart::new(region, bad, 0);
        assert!(matches!(refused, Err(FsError::Io(_))), "{what}");
    }
    let refused = CollectedPart::new(region, collected(), 1);
    assert!(matches!(refused, Err(FsError::Io(_))), "outcomes of something else");
}

#[test]
fn a_register_is_what_was_kept_last_whenever_the_power_goes() {
    let space = fresh();
    assert_eq!(space.register().unwrap(), None);
    let mut before: Option<Vec<u8>> = None;
    for round in 1..=6u8 {
        // of several lines, growing and shrinking
        let value = vec![round; 100 + usize::from(round % 3) * 700];
        for image in power_cuts(space.pmem(), || space.keep_register(&value).unwrap()) {
            let found = reopened(&image).register().unwrap();
            assert!(
                found == before || found.as_ref() == Some(&value),
                "round {round}: {found:?}"
            );
        }
        assert_eq!(reopened(&now(&space)).register().unwrap().as_ref(), Some(&value));
        before = Some(value);
    }
    assert_eq!(space.regions(), [], "it belongs to no region");
    assert_eq!(space.usage().free_segments, space.usage().segments - 1);
}

#[test]
fn a_register_is_in_two_places_and_any_damage_of_one_is_made_up_for_by_the_other() {
    let space = fresh();
    let value: Vec<u8> = (0..200).collect();
    space.keep_register(&[1; 300]).unwrap();
    space.keep_register(&value).unwrap();
    let segment = space.table.register().unwrap();
    let flipped = |space: &PoolSpace, at: u64| {
        let word = space.pmem().read_u64(at);
        space.pmem().write_u64(at, word ^ 1 << (at % 61));
        space.pmem().persist(at, 8);
    };
    let place = polvo_format::REGISTER_PLACE as u64;
    for at in (0..264).step_by(8) {
        for one in [segment, segment + place] {
            let damaged = reopened(&now(&space));
            flipped(&damaged, one + at);
            assert_eq!(damaged.register().unwrap().as_ref(), Some(&value), "{at}");
            flipped(&damaged, 2 * segment + place - one + at);
            let why = error_of(damaged.register());
            assert!(why.contains("register"), "{why}");
            // it is no register that was never written
            let why = error_of(damaged.keep_register(&[1]));
            assert!(why.contains("register"), "{why}");
        }
    }
    // what is kept next is in both again
    let damaged = reopened(&now(&space));
    flipped(&damaged, segment + 8);
    damaged.keep_register(&[7; 20]).unwrap();
    flipped(&damaged, segment + place + 8);
    assert_eq!(damaged.register().unwrap(), Some(vec![7; 20]));
}

#[test]
fn a_register_needs_a_segment_that_no_region_gets() {
    let space = fresh();
    let free = space.usage().free_segments;
    for index in 0..free {
        space.take_segment(R1, index, SegmentClass::Data).unwrap();
    }
    assert_eq!(
        error_of(space.keep_register(&[1])),
        RegionError::from(FsError::NoSpace).to_string()
    );
    assert_eq!(space.register().unwrap(), None);
    space.give_back_segment(R1, 3);
    space.set_register_aside().unwrap();
    space.set_register_aside().unwrap();
    assert_eq!(space.usage().free_segments, 0);
    assert_eq!(space.register().unwrap(), None, "nothing was kept");
    space.keep_register(&[1]).unwrap();
    let space = reopened(&now(&space));
    assert_eq!(space.register().unwrap(), Some(vec![1]));
    assert_eq!(space.regions(), [R1]);
    // another segment of its owner, or one of its class, is damage
    for (region, index, class) in [
        (polvo_format::REGISTER_OWNER, 1, SegmentClass::Register),
        (polvo_format::REGISTER_OWNER, 1, SegmentClass::Data),
        (R2, 0, SegmentClass::Register),
    ] {
        let pmem = Pmem::simulated_from_image(&now(&space));
        let class = class as u8;
        let entry = SegmentEntry::Owned(SegmentOwner { region, index, class });
        let at = SegmentIndex(0);
        pmem.write_u64(space.layout().entry_offset(at), entry.encode(at));
        let why = error_of(PoolSpace::open(pmem));
        assert!(why.contains("segment table"), "{why}");
    }
}
