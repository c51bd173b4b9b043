//! Development clusters: nodes, pools and a mount on this machine, in one command.
//!
//! Everything of a cluster lies in its directory, but for the pools (on tmpfs by default) and the mount:
//!
//! | file | what it is |
//! |---|---|
//! | `dev.toml` | what `up` was asked for and has made; written first, so that `down` can always clean up |
//! | `cluster.toml`, `secret` | how clients reach it (see [`crate::cluster_dir`]) |
//! | `nodeN/polvod.toml`, `.log`, `.pid` | configuration, log and process of a node |
//! | `nodeN/shm.sock` | where shm peers meet the node |
//! | `mounts/` | processes of external mounts made with `--cluster-dir` |

mod down;
mod layout;
mod ports;
mod up;

pub use down::down;
pub use layout::DevCluster;
pub use up::up;
