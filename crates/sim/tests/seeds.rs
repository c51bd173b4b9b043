//! Seeds that have found bugs.

use polvo_sim::plan::{Limits, Plan};
use polvo_sim::simulation::simulate;

/// A rename that replaces was told EEXIST: twice the new name was made between its look and its attempt, and gone again at the
/// next look.
#[test]
fn who_replaces_is_not_told_that_the_name_exists() {
    let report = simulate(&Plan::of(4600, &Limits::default()));
    assert_eq!(report.failure, None);
}
