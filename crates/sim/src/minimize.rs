//! Makes a failing run smaller, where that is cheap: fewer operations, then fewer faults, then fewer clients.
//!
//! The parts of a run draw from numbers of their own, so that a run with fewer operations begins as the longer one did.
//! A smaller run that fails may fail for another reason; it is shown with its own.

use crate::report::Report;
use crate::schedule::{Limits, Schedule};
use crate::simulation::simulate;

/// Runs that are tried at the most.
const TRIES: u32 = 24;

/// The smallest failing run found, with its report.
pub fn minimize(report: Report) -> Report {
    let mut best = report;
    let mut tries = TRIES;
    let seed = best.schedule.seed;
    let mut fails = |limits: Limits, best: &mut Report| {
        if tries == 0 {
            return false;
        }
        tries -= 1;
        let report = simulate(&Schedule::of(seed, &limits));
        let fails = report.failure.is_some();
        if fails {
            *best = report;
        }
        fails
    };
    let (mut low, mut high) = (0, best.schedule.operations);
    while low + 1 < high {
        let operations = low + (high - low) / 2;
        let limits = Limits {
            operations: Some(operations),
            ..best.schedule.limits.clone()
        };
        if fails(limits, &mut best) {
            high = operations;
        } else {
            low = operations;
        }
    }
    while best.schedule.faults > 0 {
        let limits = Limits {
            faults: Some(best.schedule.faults - 1),
            ..best.schedule.limits.clone()
        };
        if !fails(limits, &mut best) {
            break;
        }
    }
    while best.schedule.clients.len() > 1 {
        let limits = Limits {
            clients: Some(best.schedule.clients.len() - 1),
            ..best.schedule.limits.clone()
        };
        if !fails(limits, &mut best) {
            break;
        }
    }
    best
}
