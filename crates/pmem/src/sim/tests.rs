//! The simulated medium against its rules, by example and against a naive model.

use super::*;
use crate::Pmem;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn sim(pool: &Arc<Pmem>) -> &SimMedium {
    pool.sim().expect("simulated")
}

/// All values that the word at `offset` can have after a power cut, by going through many choices.
fn survivors(pool: &Arc<Pmem>, offset: u64) -> BTreeSet<u64> {
    (0..400)
        .map(|seed| {
            let mut word = [0; 8];
            sim(pool).image(&mut RandomLines::new(seed)).read(offset, &mut word);
            u64::from_ne_bytes(word)
        })
        .collect()
}

#[test]
fn a_store_without_flush_may_or_may_not_survive() {
    let pool = Pmem::simulated(1 << 20);
    pool.write_u64(4096, 7);
    pool.fence();
    assert_eq!(survivors(&pool, 4096), [0, 7].into());
}

#[test]
fn a_flush_without_fence_may_or_may_not_survive() {
    let pool = Pmem::simulated(1 << 20);
    pool.write_u64(64, 7);
    pool.flush(64, 8);
    assert_eq!(survivors(&pool, 64), [0, 7].into());
}

#[test]
fn what_was_flushed_and_fenced_survives() {
    let pool = Pmem::simulated(1 << 20);
    pool.write_u64(64, 7);
    pool.persist(64, 8);
    assert_eq!(survivors(&pool, 64), [7].into());
    assert_eq!(sim(&pool).pending_lines(), 0);
}

#[test]
fn a_streaming_store_survives_after_the_next_fence() {
    let pool = Pmem::simulated(1 << 20);
    pool.write_streaming(100, &[9; 8000]);
    assert!(survivors(&pool, 4096).len() > 1);
    pool.fence();
    let mut found = vec![0; 8000];
    sim(&pool).image(&mut LoseAll).read(100, &mut found);
    assert!(found.iter().all(|b| *b == 9));
    pool.zero_streaming(200, 7000);
    pool.fence();
    sim(&pool).image(&mut LoseAll).read(100, &mut found);
    assert!(
        found
            .iter()
            .enumerate()
            .all(|(i, b)| *b == if (100..7100).contains(&i) { 0 } else { 9 })
    );
}

#[test]
fn what_is_omitted_is_omitted_once() {
    let pool = Pmem::simulated(1 << 20);
    sim(&pool).omit(Some(Omission::WriteBack(1)));
    for line in 0..3 {
        pool.write_u64(line * 64, 7);
        pool.flush(line * 64, 8);
    }
    pool.fence();
    let lost = |line: u64| survivors(&pool, line * 64).contains(&0);
    assert_eq!([lost(0), lost(1), lost(2)], [false, true, false]);
    assert_eq!(sim(&pool).omitted(), Some((64, 8)));
    sim(&pool).omit(Some(Omission::Fence(0)));
    pool.write_streaming(640, &[7; 8]);
    pool.fence();
    assert!(survivors(&pool, 640).contains(&0));
    assert_eq!(sim(&pool).omitted(), Some((640, 8)));
    pool.fence();
    assert!(!survivors(&pool, 640).contains(&0));
    sim(&pool).omit(Some(Omission::WriteBack(0)));
    pool.write_streaming(704, &[7; 8]);
    pool.fence();
    assert!(survivors(&pool, 704).contains(&0) && sim(&pool).omitted().is_some());
}

#[test]
fn fingerprints_tell_images_apart() {
    let mut seen = BTreeSet::new();
    for at in (0..8192).step_by(8) {
        for value in [1u8, 2, 255] {
            let mut bytes = vec![0; 8192];
            bytes[at] = value;
            assert!(seen.insert(CrashImage::from_bytes(&bytes).fingerprint()));
        }
    }
    let zeros = CrashImage::zeroed(8192).fingerprint();
    assert!(!seen.contains(&zeros));
    assert_eq!(CrashImage::from_bytes(&[0; 8192]).fingerprint(), zeros);
}

#[test]
fn a_store_after_the_flush_is_not_covered_by_the_fence() {
    let pool = Pmem::simulated(1 << 20);
    pool.write_u64(64, 1);
    pool.flush(64, 8);
    pool.write_u64(64, 2);
    assert_eq!(survivors(&pool, 64), [0, 1, 2].into());
    pool.fence();
    assert_eq!(survivors(&pool, 64), [1, 2].into());
    pool.persist(64, 8);
    assert_eq!(survivors(&pool, 64), [2].into());
}

#[test]
fn an_overwritten_content_may_have_been_evicted() {
    let pool = Pmem::simulated(1 << 20);
    pool.write_u64(64, 1);
    pool.write_u64(64, 2);
    pool.write_u64(64, 3);
    assert_eq!(survivors(&pool, 64), [0, 1, 2, 3].into());
    for value in 4..100 {
        pool.write_u64(64, value);
        pool.flush(64, 8);
    }
    pool.write_u64(64, 100);
    assert!(survivors(&pool, 64).contains(&99));
    pool.fence();
    assert_eq!(survivors(&pool, 64), [99, 100].into());
}

#[test]
fn words_of_a_line_survive_apart_but_are_never_torn() {
    let pool = Pmem::simulated(1 << 20);
    pool.write(0, &[0xff; 64]);
    let mut states = BTreeSet::new();
    for seed in 0..2000 {
        let mut line = [0; 64];
        sim(&pool).image(&mut RandomLines::new(seed)).read(0, &mut line);
        for word in line.chunks(8) {
            assert!(word == [0; 8] || word == [0xff; 8], "seed {seed}: {word:?}");
        }
        states.insert(line);
    }
    assert!(states.len() > 100, "torn in only {} ways", states.len());
}

#[test]
fn lines_survive_in_any_subset() {
    let pool = Pmem::simulated(1 << 20);
    for line in 0..4 {
        pool.write_u64(4096 - 128 + line * 64, 1);
    }
    assert_eq!(sim(&pool).pending_lines(), 4);
    let mut seen = BTreeSet::new();
    for bits in 0..16 {
        let image = sim(&pool).image(&mut SomeLines::new(bits));
        let after = Pmem::simulated_from_image(&image);
        seen.insert(
            (0..4)
                .map(|line| after.read_u64(4096 - 128 + line * 64))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(seen.len(), 16);
    let mut random = BTreeSet::new();
    for seed in 0..1000 {
        let after = Pmem::simulated_from_image(&sim(&pool).image(&mut RandomLines::new(seed)));
        random.insert(
            (0..4)
                .map(|line| after.read_u64(4096 - 128 + line * 64))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(random, seen);
}

#[test]
fn atomics_are_stores() {
    let pool = Pmem::simulated(4096);
    assert_eq!(pool.cas_u64(8, 1, 5), 0);
    assert_eq!(sim(&pool).pending_lines(), 0, "a failed swap stores nothing");
    assert_eq!(pool.cas_u64(8, 0, 5), 0);
    assert_eq!(pool.faa_u64(8, u64::MAX), 5);
    assert_eq!(pool.read_u64(8), 4);
    assert_eq!(survivors(&pool, 8), [0, 4, 5].into());
    pool.persist(8, 8);
    assert_eq!(survivors(&pool, 8), [4].into());
}

#[test]
fn the_hook_sees_each_fence_before_it_takes_effect() {
    let pool = Pmem::simulated(4096);
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let into = seen.clone();
    sim(&pool).set_fence_hook(Box::new(move |point| {
        let mut word = [0; 8];
        point.image(&mut LoseAll).read(0, &mut word);
        into.lock()
            .push((point.number(), point.pending_lines(), u64::from_ne_bytes(word)));
    }));
    for value in 1..=3 {
        pool.write_u64(0, value);
        pool.persist(0, 8);
    }
    pool.fence();
    sim(&pool).clear_fence_hook();
    pool.fence();
    assert_eq!(*seen.lock(), [(1, 1, 0), (2, 1, 1), (3, 1, 2), (4, 0, 3)]);
    assert_eq!(sim(&pool).fences(), 5);
}

#[test]
fn a_power_cut_in_place_leaves_a_durable_state() {
    for seed in 0..64 {
        let pool = Pmem::simulated(1 << 16);
        pool.write_u64(0, 1);
        pool.persist(0, 8);
        pool.write_u64(64, 2);
        pool.flush(64, 8);
        let expected = sim(&pool).image(&mut RandomLines::new(seed)).to_vec();
        sim(&pool).power_cut(seed);
        assert_eq!(pool.read_u64(0), 1);
        assert_eq!(sim(&pool).pending_lines(), 0);
        let mut found = vec![0; 1 << 16];
        pool.read(0, &mut found);
        assert_eq!(found, expected);
        assert_eq!(survivors(&pool, 64).len(), 1, "what is left is durable");
    }
}

#[test]
fn images_do_not_change_afterwards() {
    let pool = Pmem::simulated(1 << 20);
    pool.write(0, &[1; 5000]);
    pool.persist(0, 5000);
    let image = sim(&pool).image(&mut KeepAll);
    pool.write(0, &[2; 5000]);
    pool.persist(0, 5000);
    let after = Pmem::simulated_from_image(&image);
    after.write(4999, &[3]);
    after.persist(4999, 1);
    let mut found = [0; 5000];
    image.read(0, &mut found);
    assert_eq!(found, [1; 5000]);
    pool.read(0, &mut found);
    assert_eq!(found, [2; 5000]);
    after.read(0, &mut found);
    assert_eq!((found[4998], found[4999]), (1, 3));
}

#[test]
fn contents_given_as_bytes_are_durable() {
    let bytes: Vec<u8> = (0..9001u32).map(|i| (i / 40) as u8).collect();
    let pool = Pmem::simulated_from(bytes.clone());
    assert_eq!(pool.len(), 9001);
    assert_eq!(sim(&pool).image(&mut LoseAll).to_vec(), bytes);
}

#[test]
fn needless_flushes_and_fences_are_counted() {
    let pool = Pmem::simulated(1 << 16);
    pool.write(0, &[1; 100]);
    pool.flush(0, 256);
    pool.flush(0, 64);
    pool.fence();
    pool.fence();
    let stats = sim(&pool).stats();
    assert_eq!(
        (
            stats.flushes,
            stats.needless_flushes,
            stats.fences,
            stats.needless_fences
        ),
        (2, 3, 2, 1)
    );
    assert_eq!(stats.bytes_stored, 100);
}

/// One step on the medium; offsets are in a small pool, so that lines meet.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Stream(usize, Vec<u8>),
    Zero(usize, usize),
    Add(usize, u64),
    Flush(usize, usize),
    Fence,
}

const POOL: usize = 3 * 4096 + 100;

fn step() -> impl Strategy<Value = Step> {
    // Around a page boundary, so that pieces and neighbours are met.
    let at = 4096 - 200..4096 + 200usize;
    let bytes = || prop::collection::vec(any::<u8>(), 1..200);
    prop_oneof![
        4 => (at.clone(), bytes()).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        2 => (at.clone(), bytes()).prop_map(|(at, bytes)| Step::Stream(at, bytes)),
        1 => (at.clone(), 1..5000usize).prop_map(|(at, len)| Step::Zero(at, len)),
        2 => (at.clone(), any::<u64>()).prop_map(|(at, add)| Step::Add(at / 8 * 8, add)),
        4 => (at, 1..300usize).prop_map(|(at, len)| Step::Flush(at, len)),
        3 => Just(Step::Fence),
    ]
}

/// The rules in their plainest form: for each word all the values it may have after a power cut.
struct Model {
    visible: Vec<u8>,
    /// What was flushed, by line.
    flushed: Vec<Option<[u8; 64]>>,
    /// Each line's durable content and every content since.
    history: Vec<Vec<[u8; 64]>>,
}

impl Model {
    fn new() -> Model {
        let lines = POOL.div_ceil(64);
        Model {
            visible: vec![0; lines * 64],
            flushed: vec![None; lines],
            history: vec![vec![[0; 64]]; lines],
        }
    }

    fn line(&self, line: usize) -> [u8; 64] {
        self.visible[line * 64..line * 64 + 64].try_into().unwrap()
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.visible[at..at + bytes.len()].copy_from_slice(bytes);
        for line in at / 64..(at + bytes.len()).div_ceil(64) {
            let now = self.line(line);
            self.history[line].push(now);
        }
    }

    fn flush(&mut self, at: usize, len: usize) {
        for line in at / 64..(at + len).div_ceil(64) {
            self.flushed[line] = Some(self.line(line));
        }
    }

    fn fence(&mut self) {
        for line in 0..self.flushed.len() {
            if let Some(durable) = self.flushed[line].take() {
                // From the flush on: the last time that the line looked like this.
                let from = self.history[line].iter().rposition(|h| *h == durable).unwrap();
                self.history[line].drain(..from);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn crash_images_hold_what_the_rules_allow(steps in prop::collection::vec(step(), 1..40), seed: u64) {
        let pool = Pmem::simulated(POOL as u64);
        let mut model = Model::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(at, bytes) => { pool.write(at as u64, &bytes); model.store(at, &bytes); }
                Step::Stream(at, bytes) => {
                    pool.write_streaming(at as u64, &bytes);
                    model.store(at, &bytes);
                    model.flush(at, bytes.len());
                }
                Step::Zero(at, len) => {
                    pool.zero_streaming(at as u64, len as u64);
                    model.store(at, &vec![0; len]);
                    model.flush(at, len);
                }
                Step::Add(at, add) => {
                    let found = pool.faa_u64(at as u64, add);
                    prop_assert_eq!(&found.to_ne_bytes()[..], &model.visible[at..at + 8]);
                    model.store(at, &found.wrapping_add(add).to_ne_bytes());
                }
                Step::Flush(at, len) => { pool.flush(at as u64, len as u64); model.flush(at, len); }
                Step::Fence => { pool.fence(); model.fence(); }
            }
            let mut visible = vec![0; POOL];
            pool.read(0, &mut visible);
            prop_assert_eq!(&visible, &model.visible[..POOL]);
            let kept = sim(&pool).image(&mut KeepAll);
            prop_assert_eq!(kept.fingerprint(), CrashImage::from_bytes(&visible).fingerprint());
            prop_assert_eq!(&kept.to_vec(), &visible);
            let lost = sim(&pool).image(&mut LoseAll).to_vec();
            for (line, history) in model.history.iter().enumerate() {
                let end = (line * 64 + 64).min(POOL);
                prop_assert_eq!(&lost[line * 64..end], &history[0][..end - line * 64], "durable line {}", line);
            }
            for choice in 0..4 {
                let image = sim(&pool).image(&mut RandomLines::new(seed ^ (number as u64) << 3 ^ choice));
                let fingerprint = image.fingerprint();
                let image = image.to_vec();
                prop_assert_eq!(fingerprint, CrashImage::from_bytes(&image).fingerprint());
                for word in 0..POOL / 8 {
                    let (line, at) = (word / 8, word % 8 * 8);
                    let found = &image[word * 8..word * 8 + 8];
                    prop_assert!(model.history[line].iter().any(|h| &h[at..at + 8] == found),
                        "word {:#x} has a value that was never there since it was durable", word * 8);
                }
            }
        }
    }
}
