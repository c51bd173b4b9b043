//! `polvod`: a node of PolvoFS.

use clap::Parser;
use polvo_cli::config::Config;
use polvo_cli::config_template::TEMPLATE;
use polvo_cli::daemon_args::{DAEMON, DaemonArgs};
use polvo_cli::{CliError, Exit, daemon, detached, log_output, output};
use std::process::ExitCode;

/// Runs a node to its end, as its command line says.
pub(crate) fn main() -> ExitCode {
    let args = DaemonArgs::parse();
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
            if args.detached && e.exit() == Exit::Deposed {
                // nobody watches over it
                eprintln!("polvod: starting anew: {}", detached::start_anew(DAEMON));
            }
            e.exit().into()
        }
    }
}

fn run(args: &DaemonArgs) -> Result<(), CliError> {
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
    daemon::run(&config, args.accept_older_pool, args.detached)
}
