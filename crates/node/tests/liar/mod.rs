//! Clients that lie: what no client of ours would send, over raw requests and raw one-sided operations. Each lie gets an
//! error (or is plainly ignored, where an honest client that has missed something says the same), and changes nothing:
//! the whole tree, the space of every node, what sessions hold and the check are compared, and the tree once more after
//! a restart of all nodes.
//!
//! What is not refused, because nothing could tell it from honest work: whoever has the cluster's secret may write to any
//! data segment, and may call itself a node (see *Trust* in docs/operations.md).

mod inodes;
mod keys;
mod nodes;
mod scene;
mod sessions;
mod space;
mod tokens;
mod transfers;
mod values;
