//! Power cuts at every fence of every operation of the crate: recovery gives the state before the operation or the one
//! after it, never another; then a check finds nothing and work goes on.
//!
//! Without libtest, since each scenario uses all CPUs by itself and the figures come last. Arguments: parts of names of
//! scenarios to run (all without). `POLVO_SEED` sets another seed for what survives, `ROUNDS` multiplies the number of
//! random states.

mod data;
mod failures;
#[path = "../harness/mod.rs"]
mod harness;
mod life;
mod names;

use harness::power::{STATES, counted, seed};
use harness::world::new_file;
use polvo_format::{FileKind, RegionId};
use polvo_proto::NewFile;
use std::sync::atomic::Ordering::Relaxed;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);

/// Bytes that tell where they were meant to go.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(seed * 2 + 7).wrapping_add(i >> 8) ^ seed) as u8 | 1)
        .collect()
}

fn file() -> NewFile {
    new_file(FileKind::File, 0o644)
}

fn directory() -> NewFile {
    new_file(FileKind::Directory, 0o755)
}

fn name(n: u64, len: usize) -> Vec<u8> {
    format!("{n:0len$}").into_bytes()
}
const SCENARIOS: &[(&str, fn())] = &[
    ("names in one region", names::names_in_one_region),
    ("names across two pools", names::names_across_two_pools),
    (
        "names across two regions of a pool",
        names::names_across_two_regions_of_a_pool,
    ),
    ("a directory that grows", names::a_directory_that_grows),
    ("data", data::data),
    ("attributes", data::attributes),
    ("garbage collection", data::garbage_collection),
    ("sessions and space", data::sessions_and_space),
    ("a full pool", data::a_full_pool),
    ("segments change hands", data::segments_change_hands),
    (
        "segments of inodes and logs go back",
        data::segments_of_inodes_and_logs_go_back,
    ),
    ("making a region", failures::making_a_region),
    ("recovery cut short", failures::recovery_cut_short),
    (
        "one side of a transaction fails",
        failures::one_side_of_a_transaction_fails,
    ),
    ("a random life", life::a_random_life),
    ("a third state is noticed", life::a_third_state_is_noticed),
];

/// Fewest crash states of a whole run: fewer would mean that scenarios have lost their power cuts.
const STATES_MIN: u64 = 20_000;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let start = std::time::Instant::now();
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS {
        if !arguments.is_empty()
            && !arguments
                .iter()
                .any(|argument| name.contains(&argument.replace('_', " ")))
        {
            continue;
        }
        let (before, begin) = (STATES.load(Relaxed), start.elapsed());
        let result = std::panic::catch_unwind(scenario);
        let (states, time) = (STATES.load(Relaxed) - before, start.elapsed() - begin);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{name}: {verdict}, {states} crash states, {:.1} s", time.as_secs_f64());
        if result.is_err() {
            failed.push(*name);
        }
    }
    let states = STATES.load(Relaxed);
    println!(
        "power cuts: {}, {:.1} s, seed {}",
        counted(),
        start.elapsed().as_secs_f64(),
        seed()
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
    assert!(
        !arguments.is_empty() || states >= STATES_MIN,
        "{states} crash states, {STATES_MIN} are needed"
    );
}
