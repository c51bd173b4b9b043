//! The experiments: each says what it measures and puts what it finds into the report.

pub mod baselines;
pub mod compare;
pub mod flat;
pub mod library;
pub mod memory;
pub mod mount;
pub mod network;
pub mod octopus_fig13;

mod system_calls;
