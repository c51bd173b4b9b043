//! Who waits for the answer to a request, and what the system tells of that thread.
//!
//! Supplementary groups and capabilities are no part of a request, nor whether an owner of `fcntl` locks is a process or an open
//! file. These can be seen from outside: the thread sleeps in a system call until it is answered, and `/proc` shows which one.
//! Where `/proc` does not know the thread (another pid namespace), the questions stay open.

use polvo_fusedev::abi::Header;
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

/// Whether a thread that waits for a `fcntl` lock wants it for the open file, not for its process. False where that cannot be seen.
pub(crate) fn locks_open_file(thread: u32) -> bool {
    for _ in 0..ASLEEP_TRIES {
        let Ok(call) = std::fs::read_to_string(format!("/proc/{thread}/syscall")) else {
            return false;
        };
        match parse_call(&call) {
            Some(is_of_file) => return is_of_file,
            None => std::thread::sleep(ASLEEP_PAUSE),
        }
    }
    false
}

/// Number and arguments of a system call; `None` while the thread runs.
fn parse_call(call: &str) -> Option<bool> {
    let mut words = call.split_whitespace();
    let number = words.next()?;
    if number == "running" {
        return None;
    }
    let command = words.nth(1).and_then(|word| word.strip_prefix("0x"));
    let command = command.and_then(|digits| i32::from_str_radix(digits, 16).ok());
    let is_fcntl = number.parse() == Ok(libc::SYS_fcntl);
    // else it is for the process; or a program for another word size, or one that has somebody else lock for it
    Some(is_fcntl && matches!(command, Some(libc::F_OFD_SETLK | libc::F_OFD_SETLKW)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_a_thread_sleeps_in() {
        let (flock, fcntl) = (libc::SYS_flock, libc::SYS_fcntl);
        assert_eq!(parse_call(&format!("{flock} 0x3 0x2 0x0\n")), Some(false));
        assert_eq!(parse_call(&format!("{fcntl} 0x3 0x7 0x0\n")), Some(false));
        assert_eq!(parse_call(&format!("{fcntl} 0x3 0x26 0x0\n")), Some(true));
        assert_eq!(parse_call("running\n"), None);
        assert_eq!(parse_call("-1 0x0 0x0\n"), Some(false));
        assert!(!locks_open_file(0));
    }

    #[test]
    fn groups_and_capabilities_keep_the_set_gid_bit() {
        let status = |groups: &str, mask: &str| format!("Name:\tx\nGroups:\t{groups} \nCapEff:\t{mask}\n");
        assert!(keeps_set_gid(&status("4 20 1000", "0"), 20));
        assert!(!keeps_set_gid(&status("4 20 1000", "ffffffef"), 2));
        assert!(keeps_set_gid(&status("", "000001ffffffffff"), 2));
        assert!(!keeps_set_gid("", 0));
    }
}
