//! What goes wrong with tokens is found: each bug, planted, within so many seeds.

mod common;

use common::first_that_fails;
use polvo_region::planted::{Plant, Planted};
use polvo_sim::schedule::Limits;

/// Seeds within which each must be found.
const SEEDS: u64 = 1000;

/// Gives what was said of it.
fn is_found(bug: Planted) -> String {
    is_found_with(bug, None)
}

/// The same with at most so many faults. Where regions have mirrors, much else explains that something takes long.
fn is_found_with(bug: Planted, faults: Option<u32>) -> String {
    let _plant = Plant::new(bug);
    let limits = Limits {
        replicas: Some(1),
        faults,
        ..Limits::default()
    };
    let failed = first_that_fails(&format!("{bug:?}"), 0..SEEDS, &limits);
    failed.failure.unwrap_or_default()
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
fn a_session_that_is_asked_for_its_own_tokens() {
    // it shows by the time that an operation takes, and where there are faults much explains that
    let failure = is_found_with(Planted::OwnTokenAsked, Some(0));
    assert!(
        failure.contains("is explained"),
        "nothing is wrong but that it takes long: {failure}"
    );
}

#[test]
fn a_colocated_client_whose_changes_nobody_is_asked_for() {
    is_found(Planted::ColocatedForgotten);
}

#[test]
fn a_client_that_answers_and_goes_on_believing() {
    is_found(Planted::AnsweredBeforeForgotten);
}

#[test]
fn an_answer_of_one_reactor_that_is_overtaken_by_another_s_change() {
    is_found(Planted::OvertakenBelieved);
}

#[test]
fn a_client_that_believes_after_the_lease() {
    is_found(Planted::BelievedAfterLease);
}

#[test]
fn a_client_that_overlooks_its_own_changes() {
    is_found(Planted::OwnChangesOverlooked);
}
