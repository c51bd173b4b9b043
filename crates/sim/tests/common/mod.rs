//! What tests of planted bugs share.

use polvo_sim::report::Report;
use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;
use std::ops::Range;

/// The first of these seeds that fails.
///
/// # Panics
/// None does: `bug` is not found.
pub fn first_that_fails(bug: &str, seeds: Range<u64>, limits: &Limits) -> Report {
    let mut reports = seeds.clone().map(|seed| simulate(&Schedule::of(seed, limits)));
    let failed = reports.find(|report| report.failure.is_some());
    let failed = failed.unwrap_or_else(|| panic!("{bug} is not found by seeds {seeds:?}"));
    println!("{bug} is found by seed {}", failed.schedule.seed);
    failed
}
