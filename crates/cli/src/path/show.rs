//! Attributes as people read them.

use polvo_format::{Attr, FileKind};

/// `drwxr-xr-x`
pub(super) fn mode(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::File | FileKind::Object => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut text = String::from(kind);
    for (shift, special, set) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => set,
            (true, false) => set.to_ascii_uppercase(),
        });
    }
    text
}

/// The kind in words.
pub(super) fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Object => "object",
    }
}

/// Year, month, day, and the nanoseconds of that day, in UTC.
fn date(ns: i64) -> (i64, u32, u32, i64) {
    const DAY_NS: i64 = 86_400 * 1_000_000_000;
    // Days since 0000-03-01, so that the leap day is the last of a year; 400-year cycles of 146097 days.
    let day = ns.div_euclid(DAY_NS) + 719_468;
    let (cycle, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (
        year + cycle * 400 + i64::from(month <= 2),
        month as u32,
        of_month as u32,
        ns.rem_euclid(DAY_NS),
    )
}

/// `2026-11-21 21:46` (UTC)
pub(super) fn minute(ns: i64) -> String {
    let (year, month, day, rest) = date(ns);
    let minutes = rest / 60_000_000_000;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

/// `2026-11-21 21:46:05.123456789 UTC`
pub(super) fn nanosecond(ns: i64) -> String {
    let second = ns.rem_euclid(60_000_000_000);
    format!(
        "{}:{:02}.{:09} UTC",
        minute(ns),
        second / 1_000_000_000,
        second % 1_000_000_000
    )
}

/// A name for a terminal: control characters, which could do anything there, become `?`.
pub(super) fn name(bytes: &[u8], terminal: bool) -> Vec<u8> {
    match terminal {
        false => bytes.to_vec(),
        true => {
            let safe = |c: char| if c.is_control() { '?' } else { c };
            String::from_utf8_lossy(bytes)
                .chars()
                .map(safe)
                .collect::<String>()
                .into_bytes()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_795_297_560, "2026-11-21 21:46"),
            (4_107_542_400, "2100-03-01 00:00"),
            (-2_208_988_800, "1900-01-01 00:00"),
        ] {
            assert_eq!(minute(seconds * 1_000_000_000), text);
        }
        assert_eq!(nanosecond(1_000_000_007), "1970-01-01 00:00:01.000000007 UTC");
        assert_eq!(minute(i64::MIN), "1677-09-21 00:12");
    }

    #[test]
    fn modes() {
        let attr = |kind, mode| Attr {
            ino: Ino::ROOT,
            generation: Generation(1),
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        };
        for (kind, bits, text) in [
            (FileKind::Directory, 0o755, "drwxr-xr-x"),
            (FileKind::File, 0o4755, "-rwsr-xr-x"),
            (FileKind::File, 0o2644, "-rw-r-Sr--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::Directory, 0o1776, "drwxrwxrwT"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode(&attr(kind, bits)), text);
        }
    }

    #[test]
    fn terminals_get_no_control_characters() {
        assert_eq!(name(b"a\x1b[2Jb\n", true), b"a?[2Jb?");
        assert_eq!(name(b"a\n\xff", false), b"a\n\xff");
    }
}
