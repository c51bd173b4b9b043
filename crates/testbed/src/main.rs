//! The testbed's command line: see the library beside it.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use polvo_testbed::{Failure, hot_operations, limits};
use std::path::PathBuf;
use std::process::ExitCode;

/// Tries out clusters that live in this process
#[derive(Parser)]
#[command(name = "polvo-testbed", version, max_term_width = 100, arg_required_else_help = true)]
struct Args {
    /// Directory for pools
    #[arg(long, global = true, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
    /// What a part of this program does in a process of its own
    #[arg(long, hide = true, value_name = "WHAT", num_args = 1..)]
    part: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Repeat one of the hottest operations; what is to be counted is the function `hot_operations::measured`
    HotOperation {
        /// Which
        operation: hot_operations::Operation,
        /// How often
        times: u64,
        /// Replicas of the region
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
        replicas: u8,
    },
    /// Reach the limits that are promised, with that many files in one directory; say what each took
    Limits {
        /// How many
        #[arg(default_value_t = 1_000_000)]
        files: usize,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("polvo-testbed: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let scratch = &args.scratch;
    match (&args.command, args.part.split_first()) {
        (_, Some((what, values))) if what == limits::PART => limits::fill(scratch, values),
        (_, Some((what, _))) => Err(format!("{what} is no part of this program").into()),
        (
            Some(Command::HotOperation {
                operation,
                times,
                replicas,
            }),
            None,
        ) => hot_operations::run(scratch, *operation, *times, *replicas),
        (Some(Command::Limits { files }), None) => limits::run(scratch, *files, &mut std::io::stdout()),
        (None, None) => Err("what is to be tried? --help shows what there is".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
