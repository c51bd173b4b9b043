//! Programs that go on in the background: started, watched until they say that they are ready, then left alone.
//!
//! The child says so by a line on its stdout; its log goes to a file, whose last lines explain a failure. Nothing is
//! polled: the wait ends with the line, with the child's end, or with the deadline.

use crate::{CliError, Context};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Lines of a log that explain a failure.
const LOG_LINES: usize = 15;
/// Most bytes searched for them.
const LOG_BYTES: u64 = 64 * 1024;

/// A child that was started and has not said yet that it is ready.
#[derive(Debug)]
pub struct Detached {
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
    /// Where this run's part of the log begins.
    log_start: u64,
}

/// Why a child did not become ready.
#[derive(Debug)]
pub struct NotReady {
    /// How it ended; `None`: it had to be killed, as it said nothing in time.
    pub status: Option<ExitStatus>,
    /// The last lines of its log.
    pub log_tail: String,
}

impl Detached {
    /// Starts a program in a session of its own (it is told `--detached`), with `/` as its directory, its log appended
    /// to `log`.
    pub fn start(mut program: Command, log: &Path) -> Result<Detached, CliError> {
        let what = || format!("log file {}", log.display());
        let mut file = OpenOptions::new().create(true).append(true).open(log).doing(what)?;
        let log_start = file.seek(SeekFrom::End(0)).doing(what)?;
        program.arg("--detached").current_dir("/");
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let mut child = program
            .spawn()
            .doing(|| format!("starting {}", program.get_program().display()))?;
        let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
        Ok(Detached {
            child,
            lines: lines_of(stdout),
            log: log.into(),
            log_start,
        })
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the child prints a line that begins with `word`, and returns it; other lines go to `other`. A child
    /// that has not said it at the deadline is killed.
    pub fn wait_for(&mut self, word: &str, deadline: Instant, mut other: impl FnMut(&str)) -> Result<String, NotReady> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.split(' ').next() == Some(word) => return Ok(line),
                Ok(line) => other(&line),
                Err(RecvTimeoutError::Disconnected) => {
                    // It closed its stdout: it is about to end, or has ended.
                    let status = self.child.wait().ok();
                    return Err(self.not_ready(status));
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Err(self.not_ready(None));
                }
            }
        }
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn not_ready(&self, status: Option<ExitStatus>) -> NotReady {
        NotReady {
            status,
            log_tail: log_tail(&self.log, self.log_start),
        }
    }
}

fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// The last lines of a log from `start` on.
fn log_tail(log: &Path, start: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(LOG_BYTES))))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let text = read().unwrap_or_else(|e| format!("(no log: {e})"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

impl NotReady {
    /// The failure in words, with the log's last lines. `what` did not become ready.
    pub fn explain(&self, what: &str, waited: Duration) -> String {
        let how = match self.status {
            Some(status) => match status.code() {
                Some(code) => format!("ended with exit code {code}"),
                None => format!("ended by {status}"),
            },
            None => format!("was not ready after {} s and was killed", waited.as_secs()),
        };
        match self.log_tail.is_empty() {
            true => format!("{what} {how}; its log is empty"),
            false => format!("{what} {how}; its log ends with:\n{}", self.log_tail),
        }
    }
}

/// The file of this program, to be started anew.
pub fn this_program() -> Result<PathBuf, CliError> {
    std::env::current_exe().doing(|| "finding this program".into())
}

/// This process becomes a new run of its program, called by that name, with the same arguments; who has started it may be gone. On return
/// it could not.
pub fn start_anew(name: &str) -> std::io::Error {
    let mut program = Command::new("/proc/self/exe"); // also when another one has taken its place
    program.arg0(name).args(std::env::args_os().skip(1));
    program.stdin(Stdio::null()).stdout(Stdio::null()).exec()
}

/// Leaves the session of whoever started this process, when it was started by [`Detached::start`].
pub fn leave_session() {
    // It fails for a process that leads a group already, which has no terminal to lose then.
    let _ = rustix::process::setsid();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path) -> Detached {
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", script, "sh"]);
        Detached::start(sh, log).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn waits_for_the_word() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = shell("echo one; echo ready a b; exec sleep 1000", &dir.path().join("log"));
        let mut others = Vec::new();
        assert_eq!(
            child.wait_for("ready", soon(), |l| others.push(l.to_string())).unwrap(),
            "ready a b"
        );
        assert_eq!(others, ["one"]);
        child.kill();
    }

    #[test]
    fn a_failure_shows_the_log_of_this_run_only() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "from before\n").unwrap();
        let mut child = shell("echo bad >&2; exit 3", &log);
        let failure = child.wait_for("ready", soon(), |_| ()).unwrap_err();
        let why = failure.explain("node 7", Duration::from_secs(1));
        assert!(
            why.contains("node 7 ended with exit code 3") && why.ends_with("bad"),
            "{why}"
        );
    }

    #[test]
    fn a_silent_child_is_killed_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = shell("exec sleep 1000", &dir.path().join("log"));
        let failure = child.wait_for("ready", Instant::now(), |_| ()).unwrap_err();
        assert!(failure.status.is_none());
    }
}
