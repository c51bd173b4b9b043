//! Nobody waits for what he need not wait for: in a run without faults each operation ends within what the schedule explains, and in one
//! where a node falls silent, and nothing else goes wrong, within [`SUCCEEDED`] more.
//!
//! A history says nothing of that: whoever waits for his own token, or for one that nobody has any more, is told the truth, late.
//! What an operation may wait for, one after the other:
//!
//! - messages, and the other clients' operations that are in its way, which wait for messages themselves;
//! - where there are others, kernels of mounts, until they no longer believe in names of directories that change;
//! - its own mount's kernel, until that has taken in what it was told on the way; where it reads a page that others change, again and
//!   again;
//! - where the pools are full and another node has become silent, for files that were removed since, which are kept for as long as a lease
//!   for who may have had them open;
//! - a rename, for the rename lock, which nobody gets right after the nodes have started, and on a mount where there
//!   are others until the kernel does not believe any more in the names that it takes along to another directory: it gets no token of
//!   that one right after somebody else has changed it.

use crate::history::Record;
use crate::kernel::daemon::{NAME_LASTS, NAME_MARGIN};
use crate::kernel::mount::{FILLED_MAX, TAKING_IN, TICK_MAX};
use crate::operation::Operation;
use crate::schedule::{Home, Schedule};
use polvo_cluster::Timeouts;
use polvo_proto::FsError;
use std::time::Duration;

/// Messages that an operation waits for, one after the other,
const MESSAGES: u32 = 20;
/// and so many more for each other client.
const FOR_OTHERS: u32 = 6;
/// Directories of which names may have to be over, one after the other.
const DIRECTORIES: u32 = 4;
/// Answers that the kernel takes in.
const TAKEN_IN: u32 = 4;
/// For so long a mount's kernel may believe in names that it is told of now.
const NAMES_LAST: Duration =
    Duration::from_millis((NAME_LASTS.as_millis() + NAME_MARGIN.as_millis() + 2 * TICK_MAX.as_millis()) as u64);
/// A mirror joins the set within so long, in which answers wait: the map changes, and the mirror has to have heard of the primary.
const JOINING: Duration = Duration::from_secs(2);
/// What tokio's timers are late.
const TIMER: Duration = Duration::from_millis(1);
/// A node is silent, and others take its place.
const SUCCEEDED: Duration = Duration::from_secs(3);

/// What an operation that took longer than the schedule explains was allowed; `None`: all were in time, or there were faults.
pub fn too_slow(records: &[Record], schedule: &Schedule) -> Option<String> {
    let operators = schedule.hand_overs + schedule.moved_copies;
    let faults = schedule.faults + schedule.cuts + schedule.stills + schedule.failovers + operators;
    if faults > u32::from(schedule.falls_silent.is_some()) || schedule.loses.is_some() {
        return None;
    }
    // each record has the mirrors put in place what has come before, of which there may be much while a copy is made
    if schedule.replicas > 1 && schedule.lane_max.is_some() {
        return None;
    }
    // a program inside of a silent node is silent with it
    let silent = schedule.falls_silent.map(Home::Colocated);
    let is_heard = |record: &&Record| silent.is_none() || home(record, schedule) != silent;
    let slow = records.iter().filter(is_heard);
    // who waits for room need not be told in the end that there is none
    let is_told = |record: &Record| matches!(record.outcome, Some(Err(FsError::NoSpace)));
    let is_full = schedule.is_small || records.iter().any(is_told);
    let for_room = match silent.is_some() && is_full {
        true => schedule.lease,
        false => Duration::ZERO,
    };
    let slow = slow.map(|record| (record, allowed(record, schedule) + for_room));
    let (record, allowed) = slow.max_by_key(|(record, allowed)| record.took.saturating_sub(*allowed))?;
    (record.took > allowed).then(|| format!("took {:?}, and {allowed:?} is explained: {record}", record.took))
}

/// How long an operation may take.
fn allowed(record: &Record, schedule: &Schedule) -> Duration {
    let clients = schedule.clients.len() as u32;
    let is_any_mounted = schedule.mounted[..schedule.clients.len()].contains(&true);
    let is_mounted = is_mounted(record, schedule);
    let messages = (schedule.longest_delay() + TIMER) * (MESSAGES + FOR_OTHERS * (clients - 1));
    // also its own: of another client's operation that waits for that, and is in the way
    let names = match is_any_mounted && clients > 1 {
        true => NAMES_LAST * DIRECTORIES,
        false => Duration::ZERO,
    };
    let lock = Timeouts::RENAME_QUIET.saturating_sub(record.began);
    let own_kernel = match is_mounted {
        true => (TAKING_IN + TIMER) * TAKEN_IN,
        false => Duration::ZERO,
    };
    let renaming = match (&record.operation, is_mounted) {
        // who is alone has a token of the other directory
        (Operation::Rename { .. }, true) if clients > 1 => lock + NAMES_LAST * 2,
        (Operation::Rename { .. }, _) => lock,
        _ => Duration::ZERO,
    };
    // each step has the mirrors hear of it, and while one joins them the map changes
    let mirrors = match schedule.replicas > 1 {
        true => messages * 3 + JOINING,
        false => Duration::ZERO,
    };
    // each time that it finds the page that it has filled no longer good
    let refilling = match (&record.operation, is_mounted) {
        (Operation::Read { .. }, true) => (messages + own_kernel) * FILLED_MAX,
        _ => Duration::ZERO,
    };
    let succession = match schedule.falls_silent {
        Some(_) => SUCCEEDED,
        None => Duration::ZERO,
    };
    messages + names + own_kernel + renaming + refilling + mirrors + succession
}

/// Has the client of an operation a kernel?
fn is_mounted(record: &Record, schedule: &Schedule) -> bool {
    number(record).is_some_and(|number| schedule.mounted[number])
}

/// Where the client of an operation lives.
fn home(record: &Record, schedule: &Schedule) -> Option<Home> {
    number(record).map(|number| schedule.clients[number])
}

/// The number of an operation's client.
fn number(record: &Record) -> Option<usize> {
    let rest = record.client.strip_prefix("client-")?;
    rest.split('-').next()?.parse().ok()
}
