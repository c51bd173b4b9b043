//! Attributes and times between our terms and those of the FUSE library.

use crate::inodes::node_id_of;
use fuser::{FileAttr, FileType, TimeOrNow};
use polvo_format::{Attr, FileKind};
use polvo_proto::TimeChange;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Preferred I/O size shown by `stat`. Files are read and written without the page cache, so buffered programs
/// (stdio, cp, tar) should come in larger steps than a page.
const IO_SIZE: u32 = 64 * 1024;

/// The kernel's name of a type.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File | FileKind::Object => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The type that the `S_IFMT` bits of a mode ask for (none: a regular file, as `mknod` has it); `None` for bits that
/// are no type.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

/// Attributes for a reply.
pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: node_id_of(attr),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime_ns),
        mtime: system_time(attr.mtime_ns),
        ctime: system_time(attr.ctime_ns),
        crtime: system_time(attr.btime_ns),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel speaks 32-bit device numbers here (12 bits major, 20 minor), and gave us one.
        rdev: attr.rdev as u32,
        blksize: IO_SIZE,
        flags: 0,
    }
}

/// Nanoseconds since the UNIX epoch as a system time.
fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 {
        UNIX_EPOCH - distance
    } else {
        UNIX_EPOCH + distance
    }
}

/// A time that the FUSE library parsed from a request, in nanoseconds since the UNIX epoch; times that 64 bits cannot
/// hold (before 1677, after 2262) become the nearest one they can.
///
/// The library (0.18) takes a time before the epoch, which the kernel sends as negative seconds plus nanoseconds, as
/// seconds *minus* nanoseconds; this undoes it (`times_before_the_epoch` in `tests/` watches that it stays so).
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => {
            let before = before.duration();
            i128::from(before.subsec_nanos()) - i128::from(before.as_secs()) * 1_000_000_000
        }
    };
    ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// A time as `setattr` sets it.
pub(crate) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::To(nanoseconds(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    #[test]
    fn times_on_both_sides_of_the_epoch() {
        assert_eq!(system_time(1_500_000_000), UNIX_EPOCH + Duration::from_millis(1500));
        assert_eq!(system_time(-1_500_000_000), UNIX_EPOCH - Duration::from_millis(1500));
        assert_eq!(system_time(i64::MIN), UNIX_EPOCH - Duration::from_nanos(1 << 63));
        assert_eq!(nanoseconds(UNIX_EPOCH + Duration::from_nanos(7)), 7);
        // What the kernel means by -2 s + 0.25 s arrives as -(2 s + 0.25 s).
        assert_eq!(nanoseconds(UNIX_EPOCH - Duration::from_millis(2250)), -1_750_000_000);
        assert_eq!(nanoseconds(UNIX_EPOCH - Duration::from_secs(2)), -2_000_000_000);
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        assert_eq!(nanoseconds(UNIX_EPOCH + Duration::from_secs(1 << 40)), i64::MAX);
        assert_eq!(nanoseconds(UNIX_EPOCH - Duration::from_secs(1 << 40)), i64::MIN);
    }

    #[test]
    fn every_kind_survives_the_way_through_a_mode() {
        for (bits, kind) in [
            (libc::S_IFREG, FileKind::File),
            (libc::S_IFDIR, FileKind::Directory),
            (libc::S_IFLNK, FileKind::Symlink),
            (libc::S_IFIFO, FileKind::Fifo),
            (libc::S_IFSOCK, FileKind::Socket),
            (libc::S_IFCHR, FileKind::CharDevice),
            (libc::S_IFBLK, FileKind::BlockDevice),
        ] {
            assert_eq!(kind_of_mode(bits | 0o644), Some(kind));
        }
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(0o170000), None);
    }

    #[test]
    fn attributes_for_the_kernel() {
        let attr = Attr {
            ino: Ino(5),
            generation: Generation(3),
            kind: FileKind::CharDevice,
            mode: 0o4751,
            nlink: 2,
            uid: 10,
            gid: 11,
            rdev: 0x0010_3203,
            size: 9,
            blocks: 8,
            atime_ns: 1,
            mtime_ns: -2,
            ctime_ns: 3,
            btime_ns: 4,
        };
        let shown = file_attr(&attr);
        assert_eq!(
            (shown.ino.0, shown.kind, shown.perm),
            (3 << 40 | 5, FileType::CharDevice, 0o4751)
        );
        assert_eq!(
            (shown.rdev, shown.nlink, shown.size, shown.blocks),
            (0x0010_3203, 2, 9, 8)
        );
        assert_eq!(shown.mtime, UNIX_EPOCH - Duration::from_nanos(2));
    }
}
