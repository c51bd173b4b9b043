//! Whole clusters under faults, from one seed each: real nodes and real clients in one thread, on simulated pools, a
//! simulated network and a paused clock.
//!
//! [`schedule::Schedule::of`] draws everything about a run from its seed; [`simulation::simulate`] runs it and says what it found
//! ([`report::Report`]); [`campaign`] runs many. What clients asked and were told is a [`history::History`], which
//! [`judgement`] compares with what the file system promises ([`contents_model`], [`names_model`], [`attributes`]) by searching
//! for an order that explains it ([`linearizability`]); and nobody waits in vain ([`promptness`]).
//!
//! ```
//! use polvo_sim::schedule::{Limits, Schedule};
//! use polvo_sim::simulation::simulate;
//!
//! let report = simulate(&Schedule::of(3, &Limits::default()));
//! assert!(report.failure.is_none(), "{:?}", report.failure);
//! ```
#![forbid(unsafe_code)]

pub mod actor;
pub mod attributes;
pub mod audit;
pub mod campaign;
pub mod contents_model;
pub mod crowd;
pub mod faults;
pub mod history;
pub mod judgement;
pub mod kernel;
pub mod linearizability;
pub mod locker;
pub mod minimize;
pub mod names_model;
pub mod operation;
pub mod panics;
pub mod pattern;
pub mod plant;
pub mod promptness;
pub mod reader;
pub mod report;
pub mod rng;
pub mod schedule;
pub mod simulation;
pub mod space_hog;
pub mod workload;
