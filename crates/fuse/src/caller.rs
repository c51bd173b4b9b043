//! Who waits for the answer to a request, and what the system tells of that thread.
//!
//! Two things that the kernel sends do not get through the library: interrupts (`FUSE_INTERRUPT` is answered with
//! ENOSYS before a file system hears of it) and which of `flock` and `fcntl` asks for a lock. Both can be seen from
//! outside: the thread sleeps in a system call until it is answered, and `/proc` shows which one, and the signals that
//! are waiting for it. Supplementary groups and capabilities are no part of a request either. Where `/proc` does not know the thread (another pid namespace), the questions stay open.

use polvo_fusedev::abi::Header;
use polvo_proto::LockKind;
use std::time::Duration;

/// CAP_FSETID of capabilities(7), as a bit of the masks in `/proc`.
const CAP_FSETID: u64 = 1 << 4;

/// Who sent a request.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub uid: u32,
    gid: u32,
    thread: u32,
}

impl From<&Header> for Caller {
    fn from(request: &Header) -> Caller {
        Caller {
            uid: request.uid,
            gid: request.gid,
            thread: request.pid,
        }
    }
}

impl Caller {
    /// Whether the set-group-id bit of a file of this group may stay when the caller changes the file.
    pub fn keeps_set_gid(&self, group: u32) -> bool {
        if self.gid == group {
            return true;
        }
        match std::fs::read_to_string(format!("/proc/{}/status", self.thread)) {
            Ok(status) => keeps_set_gid(&status, group),
            Err(_) => self.uid == 0,
        }
    }
}

fn keeps_set_gid(status: &str, group: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let may_anything = u64::from_str_radix(field("CapEff:").trim(), 16).is_ok_and(|mask| mask & CAP_FSETID != 0);
    may_anything || field("Groups:").split_whitespace().any(|id| id.parse() == Ok(group))
}

/// A thread that has just sent its request may not be asleep yet; on a busy machine it takes a while (up to 0.5 s).
const ASLEEP_TRIES: u32 = 1000;
const ASLEEP_PAUSE: Duration = Duration::from_micros(500);

/// The system call by which a thread asks for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockCall {
    /// `flock`.
    Flock,
    /// `fcntl`, for the process.
    Process,
    /// `fcntl`, for the open file.
    OpenFile,
    Unknown,
}

impl LockCall {
    /// What it says of a lock on all of a file.
    pub(crate) fn kind(self) -> LockKind {
        match self {
            LockCall::Flock => LockKind::Whole,
            LockCall::Process | LockCall::OpenFile => LockKind::Range,
            LockCall::Unknown => LockKind::Unknown,
        }
    }

    /// The owner is surely an open file.
    pub(crate) fn is_open_file(self) -> bool {
        matches!(self, LockCall::Flock | LockCall::OpenFile)
    }
}

/// Which system call a thread that waits for a lock is in.
pub(crate) fn lock_call(thread: u32) -> LockCall {
    for _ in 0..ASLEEP_TRIES {
        let Ok(call) = std::fs::read_to_string(format!("/proc/{thread}/syscall")) else {
            return LockCall::Unknown;
        };
        match parse_call(&call) {
            Some(call) => return call,
            None => std::thread::sleep(ASLEEP_PAUSE),
        }
    }
    LockCall::Unknown
}

/// Number and arguments of a system call; `None` while the thread runs.
fn parse_call(call: &str) -> Option<LockCall> {
    let mut words = call.split_whitespace();
    let number = words.next()?;
    if number == "running" {
        return None;
    }
    let command = words.nth(1).and_then(|word| word.strip_prefix("0x"));
    let command = command.and_then(|digits| i32::from_str_radix(digits, 16).ok());
    Some(match (number.parse::<i64>(), command) {
        (Ok(libc::SYS_flock), _) => LockCall::Flock,
        (Ok(libc::SYS_fcntl), Some(libc::F_SETLK | libc::F_SETLKW)) => LockCall::Process,
        (Ok(libc::SYS_fcntl), Some(libc::F_OFD_SETLK | libc::F_OFD_SETLKW)) => LockCall::OpenFile,
        // a program for another word size, or one that has somebody else lock for it
        _ => LockCall::Unknown,
    })
}

/// True when a signal waits for the thread which it does not block: it wants to be woken.
pub(crate) fn is_signalled(thread: u32) -> bool {
    thread != 0
        && std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| has_open_signal(&status))
}

fn has_open_signal(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_a_thread_sleeps_in() {
        let (flock, fcntl) = (libc::SYS_flock, libc::SYS_fcntl);
        assert_eq!(parse_call(&format!("{flock} 0x3 0x2 0x0\n")), Some(LockCall::Flock));
        assert_eq!(parse_call(&format!("{fcntl} 0x3 0x7 0x0\n")), Some(LockCall::Process));
        assert_eq!(parse_call(&format!("{fcntl} 0x3 0x26 0x0\n")), Some(LockCall::OpenFile));
        assert_eq!(parse_call("running\n"), None);
        assert_eq!(parse_call("-1 0x0 0x0\n"), Some(LockCall::Unknown));
        assert_eq!(lock_call(0), LockCall::Unknown);
    }

    #[test]
    fn groups_and_capabilities_keep_the_set_gid_bit() {
        let status = |groups: &str, mask: &str| format!("Name:\tx\nGroups:\t{groups} \nCapEff:\t{mask}\n");
        assert!(keeps_set_gid(&status("4 20 1000", "0"), 20));
        assert!(!keeps_set_gid(&status("4 20 1000", "ffffffef"), 2));
        assert!(keeps_set_gid(&status("", "000001ffffffffff"), 2));
        assert!(!keeps_set_gid("", 0));
    }

    #[test]
    fn signals_that_are_not_blocked_count() {
        let status = |thread: &str, process: &str, blocked: &str| {
            format!("Name:\tx\nSigQ:\t1/2\nSigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\t{blocked}\n")
        };
        assert!(!has_open_signal(&status("0", "0", "0")));
        assert!(has_open_signal(&status("0000000000000100", "0", "0")));
        assert!(has_open_signal(&status("0", "0000000000000002", "4")));
        assert!(!has_open_signal(&status("0", "2", "2")));
        assert!(!is_signalled(0) && !is_signalled(std::process::id()));
    }
}
