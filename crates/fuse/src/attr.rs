//! Attributes and times between our terms and the kernel's.

use crate::inodes::node_id_of;
use polvo_format::{Attr, FileKind};
use polvo_fusedev::abi::{self, SetTime, StatxOut, StatxTime};
use polvo_proto::TimeChange;
use zerocopy::FromZeros;

/// Preferred I/O size shown by `stat`. Files are read and written without the page cache, so buffered programs
/// (stdio, cp, tar) should come in larger steps than a page.
const IO_SIZE: u32 = 64 * 1024;

/// The `S_IFMT` bits of a mode.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File | FileKind::Object => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
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
pub(crate) fn file_attr(attr: &Attr) -> abi::Attr {
    let (atime, atimensec) = seconds(attr.atime_ns);
    let (mtime, mtimensec) = seconds(attr.mtime_ns);
    let (ctime, ctimensec) = seconds(attr.ctime_ns);
    abi::Attr {
        ino: node_id_of(attr),
        size: attr.size,
        blocks: attr.blocks,
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: type_bits(attr.kind) | attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel speaks 32-bit device numbers here (12 bits major, 20 minor), and gave us one.
        rdev: attr.rdev as u32,
        blksize: IO_SIZE,
        _flags: 0,
    }
}

/// The same and the time of birth, for `statx`.
pub(crate) fn statx(attr: &Attr) -> StatxOut {
    /// STATX_BASIC_STATS and STATX_BTIME.
    const ALL: u32 = 0xfff;
    let time = |ns| {
        let (seconds, nanoseconds) = seconds(ns);
        StatxTime {
            seconds,
            nanoseconds,
            _reserved: 0,
        }
    };
    let shown = file_attr(attr);
    StatxOut {
        mask: ALL,
        blksize: shown.blksize,
        nlink: shown.nlink,
        uid: shown.uid,
        gid: shown.gid,
        mode: shown.mode as u16,
        ino: shown.ino,
        size: shown.size,
        blocks: shown.blocks,
        atime: time(attr.atime_ns),
        btime: time(attr.btime_ns),
        ctime: time(attr.ctime_ns),
        mtime: time(attr.mtime_ns),
        // 12 bits of the major number between the lower 8 and the upper 12 of the minor one
        rdev_major: shown.rdev >> 8 & 0xfff,
        rdev_minor: shown.rdev & 0xff | shown.rdev >> 12 & 0xfff00,
        ..StatxOut::new_zeroed()
    }
}

const NS_PER_S: i64 = 1_000_000_000;

/// Nanoseconds since the UNIX epoch as the kernel has them: seconds, negative before the epoch, and nanoseconds forward from there.
fn seconds(ns: i64) -> (i64, u32) {
    (ns.div_euclid(NS_PER_S), ns.rem_euclid(NS_PER_S) as u32)
}

/// A time as `setattr` sets it; those that 64 bits of nanoseconds cannot hold (before 1677, after 2262) become the nearest one
/// they can.
pub(crate) fn time_change(time: SetTime) -> TimeChange {
    match time {
        SetTime::Now => TimeChange::Now,
        SetTime::To { seconds, nanoseconds } => {
            let ns = i128::from(seconds) * i128::from(NS_PER_S) + i128::from(nanoseconds);
            TimeChange::To(ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    fn nanoseconds(seconds: i64, nanoseconds: u32) -> i64 {
        match time_change(SetTime::To { seconds, nanoseconds }) {
            TimeChange::To(ns) => ns,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn times_on_both_sides_of_the_epoch() {
        for (ns, expected) in [
            (1_500_000_000, (1, 500_000_000)),
            (-1_750_000_000, (-2, 250_000_000)),
            (-2_000_000_000, (-2, 0)),
            (7, (0, 7)),
        ] {
            assert_eq!(seconds(ns), expected);
            assert_eq!(nanoseconds(expected.0, expected.1), ns);
        }
        let (earliest, rest) = seconds(i64::MIN);
        assert_eq!(nanoseconds(earliest, rest), i64::MIN);
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        assert_eq!(nanoseconds(1 << 40, 0), i64::MAX);
        assert_eq!(nanoseconds(-(1 << 40), 5), i64::MIN);
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
        assert_eq!((shown.ino.0, shown.mode), (3 << 40 | 5, libc::S_IFCHR | 0o4751));
        assert_eq!(
            (shown.rdev, shown.nlink, shown.size, shown.blocks),
            (0x0010_3203, 2, 9, 8)
        );
        assert_eq!((shown.mtime, shown.mtimensec), (-1, 999_999_998));
        let shown = statx(&attr);
        assert_eq!((shown.rdev_major, shown.rdev_minor), (0x32, 0x103));
        assert_eq!((shown.btime.seconds, shown.btime.nanoseconds), (0, 4));
        assert_eq!(u32::from(shown.mode), libc::S_IFCHR | 0o4751);
    }
}
