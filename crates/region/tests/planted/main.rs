//! Each bug of [`polvo_region::planted`] that lies in this crate, planted once: a test of its name, in which what is
//! there to notice it does. The same scenario passes without the bug.
//!
//! `media` needs no feature: flushes and fences left out one by one, by the simulated medium.

#[path = "../harness/mod.rs"]
mod harness;
mod media;
mod scenario;

use polvo_format::{FileKind, RegionId};
use polvo_proto::NewFile;
use polvo_region::planted::{Plant, Planted};
use scenario::*;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);

fn file() -> NewFile {
    harness::world::new_file(FileKind::File, 0o644)
}

fn directory() -> NewFile {
    harness::world::new_file(FileKind::Directory, 0o755)
}

/// Bytes that tell where they were meant to go.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(seed * 2 + 7).wrapping_add(i >> 8) ^ seed) as u8 | 1)
        .collect()
}

/// The scenario passes, and fails with the bug, which it has got to, with these words in what is said about it.
fn caught(bug: Planted, scenario: fn(), words: &str) {
    scenario();
    let plant = Plant::new(bug);
    let result = std::panic::catch_unwind(scenario);
    assert!(plant.reached() > 0, "the scenario does not get to {bug:?}");
    let panic = result.expect_err("nobody notices the bug");
    let said = panic
        .downcast_ref::<String>()
        .cloned()
        .or(panic.downcast_ref::<&str>().map(|said| said.to_string()))
        .unwrap_or_default();
    println!("{bug:?} is noticed:\n{said}");
    assert!(said.contains(words), "{bug:?} is noticed, but by other words: {said}");
}

macro_rules! bugs {
    ($($test:ident: $bug:ident, $scenario:ident, $words:literal;)*) => {
        $(#[test]
        fn $test() {
            caught(Planted::$bug, $scenario, $words);
        })*
    };
}

bugs! {
    // Chipmunk's checklist
    log_entries_not_flushed: EntriesNotFlushed, small_writes, "states are wrong";
    no_fence_between_entries_and_tail: NoFenceBeforeTail, small_writes, "states are wrong";
    a_change_that_returns_before_its_fence: TailNotFenced, small_writes, "not the state after it";
    last_line_not_flushed: LastLineNotFlushed, small_writes, "bytes differ";
    names_changed_in_place: NamesChangedInPlace, renames, "states are wrong";
    one_log_after_the_other: LogsOneAfterTheOther, renames, "states are wrong";
    checksums_not_flushed: ChecksumsNotFlushed, pages_used_again, "DamagedData";
    partly_live_pages_forgotten_by_recovery: PartlyLivePagesForgotten, small_writes, "going on";
    // transactions
    decided_before_the_remote_part_is_logged: DecidedWithoutRemotePart, renames_across, "states are wrong";
    redo_record_retired_before_it_is_applied: RetiredBeforeApplied, renames, "states are wrong";
    redo_record_retired_before_it_is_dispatched: RetiredBeforeDispatch, renames_across, "states are wrong";
    lock_words_not_durable: LocksNotDurable, renames_across, "states are wrong";
    an_inode_collected_twice: CollectedTwice, two_coordinators, "the second one waits";
    // replicas
    dispatched_units_that_replicas_lack: ReapedUnnoted, renames_between_long_logs, "replicas differ";
    file_data_that_replicas_lack: RunsUnnoted, pages_used_again, "replicas differ";
    pages_reused_that_mirrors_lack: ReusedUnmirrored, a_slow_mirror, "the mirror is sent others' bytes";
    inodes_of_a_transaction_taken_over_one_by_one: ReapedOneByOne, mirrors_lose_power, "neither the state before it";
    a_lanes_head_before_its_record_is_in_place: HeadBeforeRecord, mirrors_lose_power, "while it is put in place";
    a_lanes_head_before_its_record_is_durable: AppliedUnfenced, mirrors_lose_power, "while it is put in place";
    a_copy_that_counts_while_it_is_made_anew: WholeMeanwhile, mirrors_lose_power, "while a copy is made anew";
    // quarantine
    freed_pages_reused_at_once: NoQuarantine, a_slow_reader, "the reader sees others' bytes";
    quarantine_ends_a_tick_early: QuarantineEndsEarly, a_slow_reader, "the reader sees others' bytes";
    pages_of_a_client_that_is_gone_reused: WrittenPagesReused, a_late_writer_when_space_is_short, "the late writer hits another file";
    // sessions
    delegated_pages_free_when_the_session_ends: DelegatedPagesFree, a_late_writer, "the late writer hits another file";
    committed_pages_returned_with_the_session: CommittedPagesReturned, a_session_ends, "delegated to a session";
    holds_dropped_for_all: HoldsDroppedForAll, two_holders, "the other one still holds it";
    // log garbage collection
    switched_before_the_new_log_is_durable: SwitchedBeforeDurable, garbage, "states are wrong";
    old_log_pages_freed_too_early: OldPagesFreedEarly, garbage, "states are wrong";
    live_entries_dropped: LiveEntriesDropped, garbage, "attributes differ";
    a_new_log_that_is_no_checkpoint: NotACheckpoint, garbage, "states are wrong";
    a_held_log_compacted: HeldLogCompacted, garbage_of_what_is_held, "after the transaction";
}
