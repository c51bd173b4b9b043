//! What goes wrong between a mount and its kernel is found: each misbehaviour, planted, within so many seeds.

mod common;

use common::first_that_fails;
use polvo_sim::plant::Plant;
use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;
use std::ops::Range;

/// Seeds within which each must be found.
const SEEDS: u64 = 1000;

fn is_found(plant: Plant) {
    is_found_within(plant, 0..SEEDS, Limits::default());
}

fn is_found_within(plant: Plant, seeds: Range<u64>, limits: Limits) {
    let limits = Limits {
        plant: Some(plant),
        ..limits
    };
    let failed = first_that_fails(&plant.to_string(), seeds, &limits);
    let failure = failed.failure.as_deref().unwrap_or_default();
    assert!(
        failure.contains("no order explains"),
        "{plant} is found for another reason: {failure}"
    );
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
    // one in some thousands of seeds shows it
    let limits = Limits {
        replicas: Some(1),
        ..Limits::default()
    };
    is_found_within(Plant::UnknownIsForgotten, 7200..7250, limits);
}

#[test]
fn a_kernel_that_believes_in_an_absent_name_without_a_token() {
    is_found(Plant::AbsentBelieved);
}

#[test]
fn a_renamed_name_that_the_kernel_believes_in_although_nobody_would_wait_for_it() {
    // one in some thousands of seeds shows it: this one, where nobody reads by way of pages
    let limits = Limits {
        plant: Some(Plant::RenamedBelieved),
        ..Limits::default()
    };
    let mut schedule = Schedule::of(90_013_011, &limits);
    schedule.by_pages.fill(false);
    schedule.failovers = 0;
    schedule.hand_overs = 0;
    schedule.moved_copies = 0;
    schedule.lane_max = None;
    schedule.backlog_max = None;
    schedule.redo_slots = None;
    schedule.drift.clear();
    schedule.is_locking = false;
    let failure = simulate(&schedule).failure.expect("it is found");
    assert!(failure.contains("no order explains"), "{failure}");
}

#[test]
fn pages_that_are_older_than_what_a_look_has_found() {
    is_found(Plant::OldPagesKept);
}

#[test]
fn attributes_that_the_kernel_believes_in_beside_older_pages() {
    is_found(Plant::OldPagesBelieved);
}

#[test]
fn names_that_are_given_back_while_the_kernel_believes_in_them() {
    is_found(Plant::NamesGivenBackEarly);
}
