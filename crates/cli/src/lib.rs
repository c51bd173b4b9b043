//! What the programs `polvo`, `polvod` and `mount.polvo` are made of. Thin: each module turns one command or one file
//! into calls of the crates below.
//!
//! | module | what it is |
//! |---|---|
//! | `args`, `daemon_args` | the command lines of `polvo` and `polvod` |
//! | `completions`, `man` | what is made of them: shell completions and manual pages |
//! | `config`, `config_template` | the daemon's configuration file |
//! | `secret`, `cluster_id`, `size`, `url` | the words that users write |
//! | `cluster_dir` | what a client needs to reach a cluster, in one directory |
//! | `connect` | from a command line to a connected client |
//! | `daemon` | the life of `polvod` |
//! | `detached`, `process` | starting, finding and ending processes |
//! | `log_output` | the log of a process |
//! | `dev` | `polvo up` and `polvo down` |
//! | `mount`, `mount_files` | `polvo mount`, `umount`; the files by which a mount is found |
//! | `mount_helper` | `mount.polvo` and `mount.fuse.polvo`, as mount(8) calls them |
//! | `status`, `replica_sets`, `df` | what a cluster looks like |
//! | `fsck` | offline and online check, offline repair |
//! | `path` | `ls`, `cat`, `put`, `get`, `rm`, `mkdir`, `mv`, `stat` |
//! | `bench` | hands over to the benchmark suite |
#![forbid(unsafe_code)]

pub mod args;
pub mod balance;
pub mod bench;
pub mod cluster_dir;
pub mod cluster_id;
pub mod cluster_map;
pub mod completions;
pub mod config;
pub mod config_template;
pub mod connect;
pub mod daemon;
pub mod daemon_args;
pub mod descriptors;
pub mod detached;
pub mod dev;
pub mod df;
mod error;
pub mod format;
pub mod fsck;
pub mod log_output;
pub mod man;
pub mod mount;
pub mod mount_files;
pub mod mount_helper;
pub mod node_add;
pub mod node_remove;
mod on_thread;
pub mod output;
pub mod path;
pub mod process;
pub mod progress;
mod replica_sets;
pub mod scrub;
pub mod secret;
pub mod size;
pub mod status;
mod table;
pub mod text_position;
pub mod url;

pub use cluster_id::ClusterId;
pub use error::{CliError, ConfigProblem, Context, Exit};
