//! Standard output that may go away: `polvo ls | head` must not end in a panic.

use crate::{CliError, Context};
use std::io::Write;

/// Writes what a command was asked for.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_ref())
        .and_then(|()| out.flush())
        .doing(|| "writing to standard output".into())
}

/// Writes a line that is good to know but not what the command is for; if nobody reads it, the command goes on.
pub fn say(line: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", line.as_ref()).and_then(|()| out.flush());
}
