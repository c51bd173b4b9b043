//! Bugs of [`polvo_region::planted`] that lie in this crate and that a random run meets too seldom: the test that has to fail with each.

#[allow(dead_code)] // one of several programs that share it
mod common;
mod moves;

use polvo_region::planted::{Plant, Planted};

#[test]
fn a_commit_where_its_data_is_not() {
    let plant = Plant::new(Planted::CommittedElsewhere);
    let result = std::panic::catch_unwind(moves::large_writes_are_done_once_though_their_primary_dies);
    assert!(plant.reached() > 0, "nothing is committed");
    result.expect_err("nobody notices the bug");
}
