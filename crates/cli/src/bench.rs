//! `polvo bench`: hands over to `polvo-bench`, the benchmark suite, which is a program of its own.

use crate::CliError;
use crate::args::BenchArgs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "polvo-bench";

/// Becomes the suite, with the same arguments. Returns only when that fails.
pub fn bench(args: &BenchArgs) -> CliError {
    // beside this program, as both are built and installed; otherwise wherever the shell would find it
    let beside = std::env::current_exe()
        .ok()
        .map(|polvo| polvo.with_file_name(PROGRAM))
        .filter(|beside| beside.exists());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let source = Command::new(&program).args(&args.arguments).exec();
    match source.kind() {
        ErrorKind::NotFound => CliError::Other(format!(
            "{PROGRAM} is neither beside polvo nor in the path: it is installed with polvo, and `make bench-program` builds it in a source tree"
        )),
        _ => CliError::Os {
            what: format!("starting {}", program.display()),
            source,
        },
    }
}
