//! Whole clusters under faults, from one seed each: real nodes and real clients in one thread, on simulated pools, a
//! simulated network and a paused clock.
//!
//! [`plan::Plan::of`] draws everything about a run from its seed; [`simulation::simulate`] runs it and says what it found
//! ([`report::Report`]); [`campaign`] runs many. What clients asked and were told is a [`history::History`], which
//! [`judgement`] compares with what the file system promises ([`contents`], [`names`], [`attributes`]) by searching
//! for an order that explains it ([`linearizability`]).
//!
//! ```
//! use polvo_sim::plan::{Limits, Plan};
//! use polvo_sim::simulation::simulate;
//!
//! let report = simulate(&Plan::of(3, &Limits::default()));
//! assert!(report.failure.is_none(), "{:?}", report.failure);
//! ```
#![forbid(unsafe_code)]

pub mod actor;
pub mod attributes;
pub mod audit;
pub mod campaign;
pub mod contents;
pub mod crew;
pub mod dice;
pub mod faults;
pub mod history;
pub mod hog;
pub mod judgement;
pub mod linearizability;
pub mod names;
pub mod operation;
pub mod panics;
pub mod pattern;
pub mod plan;
pub mod plant;
pub mod report;
pub mod shrink;
pub mod simulation;
