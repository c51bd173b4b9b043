//! Planted misbehaviour is found, and nothing is where nothing was planted.

mod common;

use common::first_that_fails;
use polvo_sim::minimize::minimize;
use polvo_sim::plant::Plant;
use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;

/// Seeds within which each must be found.
const SEEDS: u64 = 12;

fn is_found(plant: Plant, word: &str) {
    let limits = Limits {
        plant: Some(plant),
        ..Limits::default()
    };
    let failed = first_that_fails(&plant.to_string(), 0..SEEDS, &limits);
    let failure = failed.failure.as_deref().unwrap_or_default();
    assert!(failure.contains(word), "{plant} is found for another reason: {failure}");
    assert!(failed.schedule.command().contains(&format!("--plant {plant}")));
}

#[test]
fn a_lost_write_is_found() {
    is_found(Plant::LostWrite, "the bytes of");
}

#[test]
fn a_stale_read_is_found() {
    is_found(Plant::StaleRead, "the bytes of");
}

#[test]
fn a_write_done_after_it_was_acknowledged_is_found() {
    is_found(Plant::LateWrite, "the bytes of");
}

#[test]
fn an_append_done_twice_is_found() {
    is_found(Plant::DoubleAppend, "the bytes of");
}

#[test]
fn a_name_that_was_not_removed_is_found() {
    is_found(Plant::LostUnlink, "of names");
}

#[test]
fn a_read_of_parts_of_two_versions_is_found() {
    is_found(Plant::TornRead, "the bytes of");
}

#[test]
fn a_failing_run_is_made_smaller_and_still_fails() {
    let limits = Limits {
        plant: Some(Plant::LostUnlink),
        ..Limits::default()
    };
    let failing = (0..SEEDS)
        .map(|seed| simulate(&Schedule::of(seed, &limits)))
        .find(|r| r.failure.is_some());
    let failing = failing.expect("found by another test");
    let operations = failing.schedule.operations;
    let smaller = minimize(failing);
    assert!(smaller.failure.is_some());
    assert!(smaller.schedule.operations <= operations);
    assert!(simulate(&smaller.schedule).failure.is_some(), "it repeats");
}
