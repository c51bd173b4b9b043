//! What a run has found.

use crate::schedule::{Fault, Schedule};
use std::collections::BTreeMap;

/// What happened in a run, or in many.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Runs.
    pub seeds: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Those of which the outcome stayed unknown.
    pub unknown: u64,
    /// Faults of each kind.
    pub faults: BTreeMap<Fault, u64>,
    /// Histories that were found to be as promised.
    pub checked: u64,
    /// Histories that took more effort than allowed.
    pub undecided: u64,
    /// Runs of which the histories were not looked at: changes may have been lost.
    pub lossy: u64,
    /// Largest number of operations in one history.
    pub longest: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.checked += other.checked;
        self.undecided += other.undecided;
        self.lossy += other.lossy;
        self.longest = self.longest.max(other.longest);
        self.simulated_ms += other.simulated_ms;
        for (fault, times) in &other.faults {
            *self.faults.entry(*fault).or_default() += times;
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was run.
    pub schedule: Schedule,
    /// What happened.
    pub counts: Counts,
    /// What is wrong; `None`: nothing.
    pub failure: Option<String>,
    /// Operations and faults in order, a line each.
    pub trace: Vec<String>,
}
