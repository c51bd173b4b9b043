//! Seeds that have found bugs.

use polvo_proto::Durability;
use polvo_region::planted::{Plant, Planted};
use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;

/// A rename that replaces was told EEXIST: twice the new name was made between its lookup and its attempt, and gone again at the
/// next lookup.
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

/// A client went on to use space of a session that a node had forgotten: the answer that said so was lost with its connection, and
/// the next said that the session was known.
#[test]
fn who_did_not_hear_that_its_session_is_new_is_told_again() {
    as_promised(1536);
}

/// A segment given back hid the one before it, which had not been entered in the map yet, from all clients.
#[test]
fn a_segment_that_goes_hides_no_other() {
    as_promised(8653);
}

/// A lookup in a directory that was gone, and with it the segment of its inode, was told that an address is invalid.
#[test]
fn a_directory_that_went_with_its_segment_is_stale() {
    let limits = Limits {
        operations: Some(300),
        faults: Some(0),
        ..Limits::default()
    };
    assert_eq!(simulate(&Schedule::of(373, &limits)).failure, None);
}

/// A client asked again as a new session, since its lease had ended while its node stood still, and was told that there is no such
/// name: what it had asked for first was under way there, and came to pass a moment later.
#[test]
fn what_an_ended_session_has_begun_is_waited_for() {
    let limits = Limits {
        replicas: Some(2),
        durability: Some(Durability::Sync),
        ..Limits::default()
    };
    assert_eq!(simulate(&Schedule::of(31_127_003_191, &limits)).failure, None);
}

/// A node that gave way in one region forgot what it had decided in another one, which was its own yet when it was started again.
#[test]
fn who_gives_way_goes_on_with_what_it_has_decided_elsewhere() {
    let limits = Limits {
        replicas: Some(2),
        ..Limits::default()
    };
    assert_eq!(simulate(&Schedule::of(11167, &limits)).failure, None);
}

/// A segment went back to the pool just when the scrub of a copy was about to ask the mirror for it.
#[test]
fn what_is_compared_takes_no_segment_that_has_gone() {
    let schedule = Schedule::of(93_227_001_482, &Limits::default());
    assert_eq!(simulate(&schedule).failure, None);
}

/// The lanes of copies were full of decisions for which their nodes' redo logs had no room, and what retired others could not come.
#[test]
fn a_copy_follows_again_that_had_no_room_for_what_is_decided() {
    follows_again(89_700_001_525);
}

/// A copy out of the set had no room for segments that its region had given back by then, and kept others that it had given back, too.
#[test]
fn a_copy_follows_again_that_had_no_room_for_segments_that_are_gone() {
    follows_again(89_730_002_946);
}

/// A copy that had been away for long got all it had missed at once, and everybody waited for that who waited for a mirror in the set.
#[test]
fn nobody_waits_for_a_copy_that_catches_up() {
    let schedule = Schedule::of(89_740_000_432, &Limits::default());
    assert_eq!(simulate(&schedule).failure, None);
}

/// A mirror that looked for room took a segment late, when its primary had given up waiting and the segment was gone.
#[test]
fn a_mirror_takes_no_segment_for_who_has_given_up() {
    let schedule = Schedule::of(1_904_982_998_016, &Limits::default());
    assert_eq!(simulate(&schedule).failure, None);
}

fn follows_again(seed: u64) {
    let schedule = Schedule::of(seed, &Limits::default());
    assert_eq!(simulate(&schedule).failure, None);
    let _plant = Plant::new(Planted::RetiredNotSought);
    assert!(
        simulate(&schedule).failure.is_some(),
        "seed {seed} shows nothing any more"
    );
}

/// As it ran then: no client kept access times, used tokens or only looked.
fn as_promised(seed: u64) {
    let mut schedule = Schedule::of(seed, &Limits::default());
    schedule.access_times.fill(None);
    schedule.tokens.fill(false);
    schedule.readers.fill(false);
    schedule.durability = Durability::Sync;
    schedule.cuts = 0;
    schedule.mounted.fill(false);
    schedule.is_crowded = false;
    schedule.stills = 0;
    schedule.failovers = 0;
    schedule.hand_overs = 0;
    schedule.moved_copies = 0;
    schedule.lane_max = None;
    schedule.backlog_max = None;
    schedule.redo_slots = None;
    schedule.drift.clear();
    schedule.is_locking = false;
    assert_eq!(simulate(&schedule).failure, None);
}
