//! `polvo`: the command line of PolvoFS. Called as `polvod` it is a node, as `mount.polvo` or `mount.fuse.polvo` a helper of mount(8).
#![forbid(unsafe_code)]

mod polvod;

use clap::Parser;
use polvo_cli::args::{Cli, Command, MountArgs, NodeCommand};
use polvo_cli::daemon_args;
use polvo_cli::mount_helper::{self, HelperCall};
use polvo_cli::{
    CliError, Exit, balance, bench, completions, dev, df, format, fsck, log_output, man, mount, node_add, node_remove,
    path, scrub, status,
};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    if daemon_args::is_daemon(&called) {
        return polvod::main();
    }
    let line: Vec<OsString> = if mount_helper::is_helper(&called) {
        let as_root = rustix::process::geteuid().is_root();
        match mount_helper::parse(std::env::args_os(), as_root) {
            Ok(HelperCall::Mount(line)) => line,
            Ok(HelperCall::Nothing) => return ExitCode::SUCCESS,
            Ok(HelperCall::Remount { dir, options }) => {
                return match mount::remount(&dir, &options) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(e) => fail(&e),
                };
            }
            Err(e) => return fail(&e),
        }
    } else {
        std::env::args_os().collect()
    };
    let cli = Cli::parse_from(line);
    start_log(&cli.command);
    match run(&cli.command) {
        Ok(code) => code,
        Err(e) => fail(&e),
    }
}

/// Warnings go to stderr, and more where `POLVO_LOG` (or, for a mount, `--log-level`) asks for it.
fn start_log(command: &Command) {
    let level = match command {
        Command::Mount(MountArgs { log_level, .. }) => log_level.as_str(),
        _ => "warn",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("POLVO_LOG")
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(level))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    log_output::start(filter);
}

fn run(command: &Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Up(args) => dev::up(args)?,
        Command::Down(args) => dev::down(args)?,
        Command::Format(args) => format::run(args)?,
        Command::Mount(args) => mount::mount(args)?,
        Command::Umount(args) => mount::umount(args)?,
        Command::Status(args) => return status::status(args).map(ExitCode::from),
        Command::Df(args) => return df::df(args).map(ExitCode::from),
        Command::Scrub(args) => return scrub::scrub(args).map(ExitCode::from),
        Command::Balance(args) => return balance::balance(args).map(ExitCode::from),
        Command::Node(NodeCommand::Add(args)) => return node_add::add(args).map(ExitCode::from),
        Command::Node(NodeCommand::Remove(args)) => return node_remove::remove(args).map(ExitCode::from),
        Command::Fsck(args) => return Ok(ExitCode::from(fsck::fsck(args) as u8)),
        Command::Ls(args) => path::ls(args)?,
        Command::Cat(args) => path::cat(args)?,
        Command::Put(args) => path::put(args)?,
        Command::Get(args) => path::get(args)?,
        Command::Rm(args) => path::rm(args)?,
        Command::Mkdir(args) => path::mkdir(args)?,
        Command::Set(args) => path::set(args)?,
        Command::Mv(args) => path::mv(args)?,
        Command::Stat(args) => path::stat(args)?,
        Command::Bench(args) => return Err(bench::bench(args)),
        Command::Completions(args) => completions::completions(args)?,
        Command::Man(args) => man::man(args)?,
    }
    Ok(Exit::Success.into())
}

fn fail(error: &CliError) -> ExitCode {
    // The reader of a pipe has had enough: no failure of ours.
    if let CliError::Os { source, .. } = error
        && source.kind() == std::io::ErrorKind::BrokenPipe
    {
        return ExitCode::SUCCESS;
    }
    eprintln!("polvo: {error}");
    match error.exit() {
        Exit::Usage => Exit::Usage.into(),
        // The finer codes are those of the daemon.
        _ => Exit::Failure.into(),
    }
}
