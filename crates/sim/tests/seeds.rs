//! Seeds that have found bugs.

use polvo_sim::plan::{Limits, Plan};
use polvo_sim::simulation::simulate;

/// A rename that replaces was told EEXIST: twice the new name was made between its look and its attempt, and gone again at the
/// next look.
#[test]
fn who_replaces_is_not_told_that_the_name_exists() {
    as_promised(4600);
}

/// A rename was told that a directory cannot be moved into itself by what its name had stood for before the wait for the rename
/// lock.
#[test]
fn who_waited_for_the_rename_lock_looks_again() {
    as_promised(19545);
}

fn as_promised(seed: u64) {
    assert_eq!(simulate(&Plan::of(seed, &Limits::default())).failure, None);
}
