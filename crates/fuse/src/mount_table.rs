//! What is mounted where: `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MountEntry {
    /// Where.
    pub(crate) path: PathBuf,
    /// The kernel's own options of this mount (`rw,nosuid,relatime`).
    pub(crate) options: String,
    /// Type, with subtype (`fuse.polvo`).
    pub(crate) fstype: String,
    /// Source.
    pub(crate) source: String,
}

/// The topmost mount at exactly this path (absolute, without symbolic links); `None` when nothing is mounted there.
///
/// # Errors
/// When the kernel's table cannot be read.
pub(crate) fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table
        .split(|b| *b == b'\n')
        .filter_map(parse_line)
        .rfind(|entry| entry.path == path))
}

/// Parses a line: `36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let path = fields.nth(4)?;
    let options = fields.next()?;
    let mut after_dash = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = after_dash.next()?;
    let source = after_dash.next()?;
    Some(MountEntry {
        path: PathBuf::from(OsString::from_vec(unescape(path))),
        options: String::from_utf8_lossy(options).into_owned(),
        fstype: String::from_utf8_lossy(fstype).into_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
    })
}

/// Undoes the kernel's escapes: space, tab, newline and backslash are a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table() {
        let entry = parse_line(br"36 35 0:98 / /mnt/a\040b rw,noatime - fuse.polvo polvo://h:1/ rw,user_id=0")
            .expect("a mount");
        assert_eq!(
            (entry.path.as_path(), entry.options.as_str()),
            (Path::new("/mnt/a b"), "rw,noatime")
        );
        assert_eq!(
            (entry.fstype.as_str(), entry.source.as_str()),
            ("fuse.polvo", "polvo://h:1/")
        );
        let entry = parse_line(b"25 30 0:23 / /sys rw shared:7 master:1 - sysfs none rw").expect("a mount");
        assert_eq!(
            (entry.path.as_path(), entry.fstype.as_str()),
            (Path::new("/sys"), "sysfs")
        );
    }

    #[test]
    fn lines_that_are_none() {
        for line in [
            &b""[..],
            b"36 35",
            b"36 35 0:98 / /mnt rw,noatime",
            b"36 35 0:98 / /mnt rw -",
            b"1 2 3 4 5 - ext4",
        ] {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn this_machine_has_a_proc() {
        let entry = mounted_at(Path::new("/proc"))
            .expect("the table can be read")
            .expect("/proc is mounted");
        assert_eq!(entry.fstype, "proc");
        assert_eq!(
            mounted_at(Path::new("/proc/self/no/such/mount")).expect("the table can be read"),
            None
        );
    }
}
