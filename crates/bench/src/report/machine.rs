//! What was measured on, as far as it matters to who reads the figures.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// At the end of a commit's name: the tree had changes that are not in it.
pub const DIRTY: &str = "-dirty";

/// The machine, the program and the time.
#[derive(Serialize, Deserialize, Debug)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Processors that this program may use.
    pub cpus: usize,
    /// Memory, bytes.
    pub memory: u64,
    /// The kernel's name and version.
    pub kernel: String,
    /// Runnable threads in the last minute, when the run began: figures of a busy machine are no figures.
    pub load: f64,
    /// The file system on which pools and baselines lie.
    pub scratch: String,
    /// Version of this program.
    pub version: Cow<'static, str>,
    /// Commit of the tree it was started in, where it is one of PolvoFS; with [`DIRTY`] where that does not say all.
    pub commit: Option<String>,
    /// Begin of the run, UTC, to the minute.
    pub date: String,
}

impl Machine {
    /// This one, now; `scratch` is where pools lie.
    pub fn this(scratch: &std::path::Path) -> Machine {
        Machine {
            cpu: line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: line_of("/proc/meminfo", "MemTotal")
                .and_then(|line| line.split(' ').next()?.parse().ok())
                .map_or(0, |kib: u64| kib << 10),
            kernel: ["ostype", "osrelease"]
                .map(|what| std::fs::read_to_string(format!("/proc/sys/kernel/{what}")).unwrap_or_default())
                .each_ref()
                .map(|text| text.trim())
                .join(" "),
            load: std::fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|line| line.split(' ').next()?.parse().ok())
                .unwrap_or(f64::NAN),
            scratch: output(Command::new("stat").args(["-f", "-c", "%T"]).arg(scratch)).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: std::path::Path::new("crates/bench")
                .exists()
                .then(|| output(Command::new("git").args(["describe", "--always", "--dirty"])))
                .flatten(),
            date: utc(SystemTime::now()),
        }
    }

    /// True if something else was running when the measurements began.
    pub fn was_busy(&self) -> bool {
        self.load > 0.5 * self.cpus as f64
    }
}

fn output(command: &mut Command) -> Option<String> {
    let done = command.output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// The value of the first line of a file that begins with `key`.
fn line_of(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Year, month, day, hour and minute (civil from days: Howard Hinnant, *chrono-compatible low-level date algorithms*).
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds % 86_400 / 60);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn this_machine_says_what_it_is() {
        let machine = Machine::this(std::path::Path::new("/"));
        assert!(machine.cpus > 0 && machine.memory > 0 && machine.kernel.starts_with("Linux"));
    }
}
