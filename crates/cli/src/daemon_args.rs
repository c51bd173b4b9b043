//! The command line of `polvod`.

use clap::Parser;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The name under which `polvo` is a node.
pub const DAEMON: &str = "polvod";

const HELP: &str = "\
Runs in the foreground; logs to stderr. On stdout it says what it recovers and then, once, `ready` and the addresses at
which it listens; systemd is told as well (Type=notify). SIGTERM and SIGINT end it in good order.

Exit codes:
  0  ended in good order
  1  failed while it ran
  2  wrong command line, configuration or secret file
  3  an address cannot be listened at (in use?)
  4  the pool cannot be used (not there, in use, of another node or cluster, damaged)
  5  the mount failed
  6  the pool is an older copy of itself: other nodes have seen a later one, by the eras that a pool goes through at each
     start and each clean end. Restore the later copy. Where there is none, start once with --accept-older-pool: what was
     done since the copy is lost on this node; then stop all nodes and run `polvo fsck --repair`
  7  others serve what this node served before it was away (stopped, or cut off) for too long: start it again (nodes of
     `polvo up` start themselves again)
  9  the node was removed from the cluster (`polvo node remove`): do not start it again

A new node:
  polvod --print-config > /etc/polvo/polvod.toml     and edit it
  polvo format --config /etc/polvo/polvod.toml
  polvod --config /etc/polvo/polvod.toml";

/// Whether a program that was called like this is a node.
pub fn is_daemon(called: &OsStr) -> bool {
    Path::new(called).file_name() == Some(OsStr::new(DAEMON))
}

/// A node of PolvoFS: one pool, the regions in it, and optionally a mount.
#[derive(Parser, Debug)]
#[command(name = "polvod", version, after_long_help = HELP, max_term_width = 100)]
pub struct DaemonArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/polvo/polvod.toml")]
    pub config: PathBuf,
    /// Print a configuration file with every key explained, and end
    #[arg(long)]
    pub print_config: bool,
    /// Check the configuration file and the secret, and end
    #[arg(long)]
    pub check_config: bool,
    /// Serve the pool although other nodes have seen a later copy of it (see Exit code 6)
    #[arg(long)]
    pub accept_older_pool: bool,
    /// Started in the background by `polvo up`
    #[arg(long, hide = true)]
    pub detached: bool,
}
