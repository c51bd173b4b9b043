//! What goes wrong with replicas is found: each bug, planted, within so many seeds. `crates/node/tests/planted.rs` has those that a
//! random run meets too seldom.

mod common;

use common::first_that_fails;
use polvo_region::planted::{Plant, Planted};
use polvo_sim::schedule::Limits;

/// Looks for a bug where each region has a mirror.
fn is_found(bug: Planted, seeds: u64) {
    let _plant = Plant::new(bug);
    let limits = Limits {
        replicas: Some(2),
        ..Limits::default()
    };
    let failed = first_that_fails(&format!("{bug:?}"), 0..seeds, &limits);
    println!("{}", failed.failure.unwrap_or_default());
}

#[test]
fn an_answer_before_the_mirrors_have_what_was_done() {
    is_found(Planted::MirrorNotAwaited, 3000);
}

#[test]
fn a_primary_that_answers_without_a_lease() {
    is_found(Planted::LeaseForgotten, 3000);
}

#[test]
fn a_decision_that_no_mirror_knows_of() {
    is_found(Planted::DecisionsUnnoted, 3000);
}

#[test]
fn locks_that_no_mirror_knows_of() {
    is_found(Planted::CollectedUnmirrored, 3000);
}

#[test]
fn a_part_that_no_mirror_has_when_its_decision_is_retired() {
    is_found(Planted::RetiredUnmirrored, 3000);
}

#[test]
fn a_mirror_left_out_that_may_take_over() {
    is_found(Planted::SetShrunkUntold, 3000);
}

#[test]
fn records_that_come_when_a_mirror_has_taken_over() {
    is_found(Planted::LaneKeyKept, 3000);
}

#[test]
fn pages_reused_that_mirrors_lack() {
    is_found(Planted::ReusedUnmirrored, 3000);
}

#[test]
fn a_request_done_by_each_of_two_primaries() {
    is_found(Planted::RepeatedElsewhere, 3000);
}

#[test]
fn a_node_that_answers_before_it_has_heard_of_the_others() {
    is_found(Planted::UnconfirmedServed, 3000);
}

#[test]
fn a_request_by_an_old_map_that_is_carried_out() {
    is_found(Planted::OldEpochServed, 3000);
}

#[test]
fn a_client_that_keeps_what_a_former_primary_has_given() {
    is_found(Planted::KeptThroughMove, 3000);
}

#[test]
fn a_log_sent_over_what_is_to_be_put_in_place() {
    is_found(Planted::SentOverLane, 3000);
}

#[test]
fn a_replaced_coordinator_that_can_still_write() {
    is_found(Planted::DeposedNotFenced, 3000);
}

#[test]
fn a_copy_that_has_not_heard_of_earlier_decisions() {
    is_found(Planted::EarlierDecisionsUnnoted, 3000);
}
