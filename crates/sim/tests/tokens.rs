//! What goes wrong with tokens is found: each bug, planted, within so many seeds.

use polvo_region::planted::{Plant, Planted};
use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;

/// Seeds within which each must be found.
const SEEDS: u64 = 1000;

fn is_found(bug: Planted) {
    let _plant = Plant::new(bug);
    let mut failed = (0..SEEDS).filter(|seed| simulate(&Schedule::of(*seed, &Limits::default())).failure.is_some());
    let seed = failed
        .next()
        .unwrap_or_else(|| panic!("{bug:?} is not found within {SEEDS} seeds"));
    println!("{bug:?} is found by seed {seed}");
}

#[test]
fn a_token_that_is_given_while_it_is_asked_for() {
    is_found(Planted::GivenWhileAsked);
}

#[test]
fn a_change_too_early_after_a_start() {
    is_found(Planted::ChangedTooEarly);
}

#[test]
fn a_client_that_answers_and_goes_on_believing() {
    is_found(Planted::AnsweredBeforeForgotten);
}

#[test]
fn a_client_that_believes_after_the_lease() {
    is_found(Planted::BelievedAfterLease);
}

#[test]
fn a_client_that_overlooks_its_own_changes() {
    is_found(Planted::OwnChangesOverlooked);
}
