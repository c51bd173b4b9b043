//! The experiments: each says what it measures and puts what it finds into the report.

pub mod baselines;
pub mod carns;
pub mod checksums;
pub mod compare;
pub mod flat;
pub mod library;
pub mod log_garbage;
pub mod memory;
pub mod mount;
pub mod mount_programs;
pub mod mount_requests;
pub mod mount_tokens;
pub mod network;
pub mod null_mount;
pub mod octopus_fig12;
pub mod octopus_fig13;
#[cfg(feature = "two-phase")]
pub mod octopus_fig15;
pub mod octopus_fig7;
pub mod orion_fig4_10;
pub mod orion_fig4_7;
pub mod replication;
pub mod scaling;
pub mod thresholds;

mod log_commits;
mod system_calls;
