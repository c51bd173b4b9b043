//! Nodes and whoever asks them, on simulated pools: one program, since each would have the whole node in it. The bugs that are planted
//! are a program of their own.

mod common;

mod cluster_map;
mod late_stores;
mod liar;
mod replication;
mod set_back;
mod sim_cluster;
mod sim_faults;
