//! Processes of ours: a file that says which they are, and ending them within a bounded time.
//!
//! A process id alone may have been given to somebody else since, so the file also holds the process's start time, and
//! signals go through a pidfd that is opened before the start time is compared.

use crate::{CliError, Context};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// A process that was killed is gone after this time, or it hangs in the kernel.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// A process, told apart from later ones with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessId {
    /// Number.
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub started: u64,
}

impl ProcessId {
    /// This process.
    pub fn own() -> ProcessId {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        ProcessId {
            pid,
            started: start_time(pid).unwrap_or(0),
        }
    }

    /// Reads the first line of a file, as [`ProcessId::write`] writes it; `None` when it is not there or holds something
    /// else.
    pub fn read(file: &Path) -> Option<ProcessId> {
        let text = std::fs::read(file).ok()?;
        let line = std::str::from_utf8(text.split(|b| *b == b'\n').next()?).ok()?;
        let (pid, started) = line.trim().split_once(' ')?;
        Some(ProcessId {
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
        })
    }

    /// Writes `PID START-TIME` to a file.
    pub fn write(&self, file: &Path) -> Result<(), CliError> {
        std::fs::write(file, format!("{} {}\n", self.pid, self.started))
            .doing(|| format!("writing process id to {}", file.display()))
    }

    /// A handle to the process, if it still runs.
    pub fn open(&self) -> Option<RunningProcess> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Compared after the handle was opened: from here on the number cannot become another process's.
        (start_time(self.pid) == Some(self.started) && !is_zombie(self.pid)).then_some(RunningProcess { fd })
    }

    /// If the process has been killed but is not gone yet, waits until it is, at most `limit`.
    pub fn wait_if_ending(&self, limit: Duration) {
        if let Some(process) = self.open().filter(|_| is_ending(self.pid)) {
            process.wait(limit);
        }
    }
}

/// A handle to a process that ran when it was made.
#[derive(Debug)]
pub struct RunningProcess {
    fd: OwnedFd,
}

/// How a process came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// On request.
    Asked,
    /// It had to be killed.
    Killed,
    /// It did not go even so (a process stuck in the kernel).
    StillThere,
}

impl RunningProcess {
    /// Waits for the end; false when it still runs after `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&limit)), Ok(1..))
    }

    /// Sends a signal; a process that has ended is no error.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }

    /// Asks it to end (SIGTERM), waits up to `limit`, then kills it and waits again for a short time.
    pub fn end(&self, limit: Duration) -> Ended {
        self.signal(Signal::TERM);
        if self.wait(limit) {
            return Ended::Asked;
        }
        self.signal(Signal::KILL);
        if self.wait(KILLED_WITHIN) {
            Ended::Killed
        } else {
            Ended::StillThere
        }
    }
}

/// Fields of `/proc/PID/stat` after the command name (which may hold spaces): index 0 is the state.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_string).collect())
}

fn start_time(pid: i32) -> Option<u64> {
    stat_fields(pid)?.get(19)?.parse().ok()
}

/// True for a process that cannot go on: it was killed, or is on its way out, but its files are still open.
fn is_ending(pid: i32) -> bool {
    const PF_EXITING: u64 = 0x4;
    const SIGKILL_BIT: u64 = 1 << (9 - 1);
    let flags = stat_fields(pid)
        .and_then(|f| f.get(6)?.parse::<u64>().ok())
        .unwrap_or(0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    flags & PF_EXITING != 0 || status.lines().filter_map(pending).any(|mask| mask & SIGKILL_BIT != 0)
}

/// Only its parent has yet to hear of its end. A process of which other threads are still ending has its files open.
fn is_zombie(pid: i32) -> bool {
    const STATE: usize = 0;
    const THREADS: usize = 17;
    stat_fields(pid).is_some_and(|fields| {
        let is = |at: usize, values: &[&str]| fields.get(at).is_some_and(|field| values.contains(&field.as_str()));
        is(STATE, &["Z", "X"]) && is(THREADS, &["0", "1"])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn id_of(child: &std::process::Child) -> ProcessId {
        let pid = child.id() as i32;
        ProcessId {
            pid,
            started: start_time(pid).unwrap(),
        }
    }

    #[test]
    fn ends_a_process_on_request() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let running = id_of(&child).open().unwrap();
        assert!(!running.wait(Duration::from_millis(1)));
        assert_eq!(running.end(Duration::from_secs(10)), Ended::Asked);
        child.wait().unwrap();
        assert!(id_of_dead(&child).open().is_none());
    }

    fn id_of_dead(child: &std::process::Child) -> ProcessId {
        ProcessId {
            pid: child.id() as i32,
            started: 1,
        }
    }

    #[test]
    fn kills_what_does_not_listen() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo; while :; do read x; done"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0u8];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let running = id_of(&child).open().unwrap();
        assert_eq!(running.end(Duration::from_millis(50)), Ended::Killed);
        child.wait().unwrap();
    }

    #[test]
    fn a_killed_process_is_waited_for() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = id_of(&child);
        id.wait_if_ending(Duration::ZERO);
        assert!(id.open().is_some());
        id.open().unwrap().signal(Signal::KILL);
        id.wait_if_ending(Duration::from_secs(10));
        assert!(id.open().is_none(), "it is gone, or a zombie");
        child.wait().unwrap();
    }

    /// A child that does not outlive a test that fails.
    struct Bounded(Child);

    impl Drop for Bounded {
        fn drop(&mut self) {
            let _ended_already = self.0.kill();
            let _best_effort = self.0.wait();
        }
    }

    #[test]
    fn a_process_with_a_thread_left_is_there() {
        let program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[1000]).start(); \
                       ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Bounded(Command::new("python3").args(["-c", program]).spawn().unwrap());
        let id = id_of(&child.0);
        let state = || stat_fields(id.pid).unwrap().swap_remove(0);
        while state() != "Z" {
            assert!(child.0.try_wait().unwrap().is_none(), "the thread goes on");
            std::thread::yield_now();
        }
        let running = id.open().expect("it has its files open");
        running.signal(Signal::KILL);
        assert!(running.wait(Duration::from_secs(10)));
        assert!(id.open().is_none(), "it is a zombie");
    }

    #[test]
    fn another_process_with_the_same_number_is_not_ours() {
        let own = ProcessId::own();
        assert!(own.open().is_some());
        assert!(
            ProcessId {
                started: own.started + 1,
                ..own
            }
            .open()
            .is_none()
        );
    }

    #[test]
    fn survives_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        assert_eq!(ProcessId::read(&file), None);
        ProcessId::own().write(&file).unwrap();
        assert_eq!(ProcessId::read(&file), Some(ProcessId::own()));
        std::fs::write(&file, "nonsense").unwrap();
        assert_eq!(ProcessId::read(&file), None);
    }
}
