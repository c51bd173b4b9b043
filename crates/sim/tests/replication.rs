//! What goes wrong with replicas is found: each bug, planted, within so many seeds. `crates/node/tests/planted`, `crates/client/tests/planted.rs`
//! and `crates/region/tests/planted` have a scenario of its own for each that a random run meets too seldom.

mod common;

use common::first_that_fails;
use polvo_proto::Durability;
use polvo_region::planted::{Plant, Planted};
use polvo_sim::schedule::Limits;
use std::ops::Range;

/// Looks for a bug where each region has a mirror.
fn is_found(bug: Planted, seeds: Range<u64>) {
    is_found_where(Durability::Sync, bug, seeds);
}

/// The same, where changes are answered then.
fn is_found_where(durability: Durability, bug: Planted, seeds: Range<u64>) {
    let _plant = Plant::new(bug);
    let limits = Limits {
        replicas: Some(2),
        durability: Some(durability),
        ..Limits::default()
    };
    let failed = first_that_fails(&format!("{bug:?}"), seeds, &limits);
    println!("{}", failed.failure.unwrap_or_default());
}

#[test]
fn an_answer_before_the_mirrors_have_what_was_done() {
    is_found(Planted::MirrorNotAwaited, 0..100);
}

#[test]
fn a_mirror_left_out_that_may_take_over() {
    is_found(Planted::SetShrunkUntold, 0..100);
}

#[test]
fn a_request_done_by_each_of_two_primaries() {
    is_found(Planted::RepeatedElsewhere, 0..300);
}

#[test]
fn a_transaction_that_is_not_awaited_by_who_waits_for_nothing_else() {
    is_found_where(Durability::Async, Planted::TransactionNotAwaited, 900..1200);
}

#[test]
fn a_mirror_that_joins_without_what_was_answered_meanwhile() {
    is_found(Planted::JoinedBehind, 300..500);
}

#[test]
fn a_copy_that_stays_out_since_there_is_no_room_for_what_is_decided() {
    is_found(Planted::RetiredNotSought, 100..400);
}
