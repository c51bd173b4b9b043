//! The benchmark suite (`make bench`, `polvo bench`): every figure is measured beside the baseline that it could at best
//! equal, in one run, and reported as a ratio, since absolute values drift from machine to machine and from hour to hour.
//!
//! A run (`suite`) goes through experiments (`experiments`), which put rows, plots and notes into a report (`report`): a
//! JSON file whose rows are `name, value, unit, baseline, ratio, target, met`, and a document to be read. A further experiment
//! is a file in `experiments` and a line in `suite`.
//!
//! `polvo-bench` is the suite's command line, and what it does of this in processes of its own. The clusters that it measures are those
//! of `testbed`.
#![forbid(unsafe_code)]

pub mod experiments;
pub mod mounted;
pub mod report;
pub mod rpc_scheme;
pub mod suite;

mod baseline;
mod busy_polling;
mod crowd;
mod echo;
mod null_mount;
mod requester;
mod samples;

/// Any failure of a measurement.
pub type BenchError = Box<dyn std::error::Error>;
