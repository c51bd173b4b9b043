//! Makes a failing run smaller, where that is cheap: fewer operations, then fewer faults, then fewer clients.
//!
//! The parts of a run draw from numbers of their own, so that a run with fewer operations begins as the longer one did.
//! A smaller run that fails may fail for another reason; it is shown with its own.

use crate::plan::{Limits, Plan};
use crate::report::Report;
use crate::simulation::simulate;

/// Runs that are tried at the most.
const TRIES: u32 = 24;

/// The smallest failing run found, with its report.
pub fn shrink(report: Report) -> Report {
    let mut best = report;
    let mut tries = TRIES;
    let seed = best.plan.seed;
    let mut fails = |limits: Limits, best: &mut Report| {
        if tries == 0 {
            return false;
        }
        tries -= 1;
        let report = simulate(&Plan::of(seed, &limits));
        let fails = report.failure.is_some();
        if fails {
            *best = report;
        }
        fails
    };
    let (mut low, mut high) = (0, best.plan.operations);
    while low + 1 < high {
        let operations = low + (high - low) / 2;
        let limits = Limits {
            operations: Some(operations),
            ..best.plan.limits.clone()
        };
        if fails(limits, &mut best) {
            high = operations;
        } else {
            low = operations;
        }
    }
    while best.plan.faults > 0 {
        let limits = Limits {
            faults: Some(best.plan.faults - 1),
            ..best.plan.limits.clone()
        };
        if !fails(limits, &mut best) {
            break;
        }
    }
    while best.plan.clients.len() > 1 {
        let limits = Limits {
            clients: Some(best.plan.clients.len() - 1),
            ..best.plan.limits.clone()
        };
        if !fails(limits, &mut best) {
            break;
        }
    }
    best
}
