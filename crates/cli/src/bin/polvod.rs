//! `polvod`: a node of PolvoFS.
#![forbid(unsafe_code)]

use clap::Parser;
use polvo_cli::config::Config;
use polvo_cli::config_template::TEMPLATE;
use polvo_cli::{CliError, Exit, daemon, detached, log_output, output};
use std::path::PathBuf;
use std::process::ExitCode;

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

A new node:
  polvod --print-config > /etc/polvo/polvod.toml     and edit it
  polvo format --config /etc/polvo/polvod.toml
  polvod --config /etc/polvo/polvod.toml";

/// A node of PolvoFS: one pool, the regions in it, and optionally a mount.
#[derive(Parser, Debug)]
#[command(name = "polvod", version, after_long_help = HELP, max_term_width = 100)]
struct Args {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/polvo/polvod.toml")]
    config: PathBuf,
    /// Print a configuration file with every key explained, and end
    #[arg(long)]
    print_config: bool,
    /// Check the configuration file and the secret, and end
    #[arg(long)]
    check_config: bool,
    /// Serve the pool although other nodes have seen a later copy of it (see Exit code 6)
    #[arg(long)]
    accept_older_pool: bool,
    /// Started in the background by `polvo up`
    #[arg(long, hide = true)]
    detached: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.print_config {
        output::say(TEMPLATE.trim_end());
        return ExitCode::SUCCESS;
    }
    if args.detached {
        detached::leave_session();
    }
    match run(&args) {
        Ok(()) => Exit::Success.into(),
        Err(e) => {
            eprintln!("polvod: {e}");
            e.exit().into()
        }
    }
}

fn run(args: &Args) -> Result<(), CliError> {
    let config = Config::read(&args.config)?;
    if args.check_config {
        let (cluster, _) = config.cluster_and_secret()?;
        output::say(format!(
            "{}: valid; node {} of cluster {cluster}",
            args.config.display(),
            config.node.0
        ));
        return Ok(());
    }
    let filter = tracing_subscriber::EnvFilter::new(&config.log_level);
    log_output::start(filter);
    daemon::run(&config, args.accept_older_pool)
}
