//! What the bits of a request mean: open, fallocate and rename flags, and the privilege bits of modes.

use polvo_format::{Attr, FileKind};
use polvo_proto::{FallocateMode, RenameMode};

/// Set-user-id bit of a mode.
const SUID: u32 = 0o4000;
/// Set-group-id bit of a mode.
pub(crate) const SGID: u32 = 0o2000;
/// The group's execute bit.
const GROUP_EXECUTE: u32 = 0o010;

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    ReadWrite,
}

/// What the flags of `open(2)` ask for. (Both bits of `O_ACCMODE`, which Linux takes too, are for the right to do both.)
pub(crate) fn access(flags: i32) -> Access {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        _ => Access::ReadWrite,
    }
}

/// Mode of a file after someone without the right to keep them has changed its contents; `None` when it stays. Without the
/// group's execute bit set-group-id goes as well, unless the caller is of the file's group; `is_member` is asked only then.
pub(crate) fn without_privileges(attr: &Attr, is_member: impl FnOnce() -> bool) -> Option<u32> {
    let mut mode = attr.mode & !SUID;
    if mode & SGID != 0 && (mode & GROUP_EXECUTE != 0 || !is_member()) {
        mode &= !SGID;
    }
    (attr.kind == FileKind::File && mode != attr.mode).then_some(mode)
}

/// Whether the owner of an existing file may surely open it as asked; for anybody else the kernel has to look.
pub(crate) fn owner_may_open(attr: &Attr, uid: u32, flags: i32) -> bool {
    let wanted = match access(flags) {
        Access::Read => 0o400,
        Access::Write => 0o200,
        Access::ReadWrite => 0o600,
    };
    let truncates = if flags & libc::O_TRUNC != 0 { 0o200 } else { 0 };
    let wanted = wanted | truncates;
    attr.kind == FileKind::File && attr.uid == uid && (uid == 0 || attr.mode & wanted == wanted)
}

/// What `fallocate(2)` asks for; `None` for modes that are not supported. To reserve space is none of ours: who is told so writes
/// zeros, as `posix_fallocate(3)` does, and finds out whether there is room.
pub(crate) fn fallocate_mode(mode: u32) -> Option<FallocateMode> {
    const PUNCH_KEEP: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    Some(match mode as i32 {
        PUNCH_KEEP => FallocateMode::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange { keep_size: false },
        ZERO_KEEP => FallocateMode::ZeroRange { keep_size: true },
        _ => return None,
    })
}

/// What `renameat2(2)` asks for; `None` for flags that are not supported or contradict each other.
/// `owner`: user and group of the caller, whose a whiteout is.
pub(crate) fn rename_mode(flags: u32, owner: (u32, u32)) -> Option<RenameMode> {
    const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    Some(match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        libc::RENAME_WHITEOUT => RenameMode::Whiteout { replace: true, owner },
        WHITEOUT_NOREPLACE => RenameMode::Whiteout { replace: false, owner },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Ino;

    fn attr(kind: FileKind, mode: u32, uid: u32) -> Attr {
        Attr {
            ino: Ino(3),
            generation: polvo_format::Generation(1),
            kind,
            mode,
            nlink: 1,
            uid,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        }
    }

    #[test]
    fn writing_takes_privileges_from_files() {
        let after = |mode| without_privileges(&attr(FileKind::File, mode, 0), || true);
        assert_eq!(after(0o4755), Some(0o0755));
        assert_eq!(after(0o6755), Some(0o0755));
        assert_eq!(after(0o2755), Some(0o0755));
        assert_eq!(after(0o2745), None, "a member of the group, and nothing to execute");
        let stranger = |mode| without_privileges(&attr(FileKind::File, mode, 0), || false);
        assert_eq!(stranger(0o2745), Some(0o0745));
        assert_eq!(stranger(0o0745), None);
        assert_eq!(after(0o6745), Some(0o2745));
        assert_eq!(after(0o1644), None);
        assert_eq!(without_privileges(&attr(FileKind::Directory, 0o2775, 0), || true), None);
    }

    #[test]
    fn only_the_plain_cases_of_a_lost_race_to_create_are_opened_here() {
        let file = |mode, uid| attr(FileKind::File, mode, uid);
        assert!(owner_may_open(&file(0o600, 5), 5, libc::O_RDWR));
        assert!(!owner_may_open(&file(0o400, 5), 5, libc::O_RDWR));
        assert!(!owner_may_open(&file(0o400, 5), 5, libc::O_RDONLY | libc::O_TRUNC));
        assert!(!owner_may_open(&file(0o666, 5), 6, libc::O_RDONLY));
        assert!(owner_may_open(&file(0o000, 0), 0, libc::O_WRONLY));
        assert!(!owner_may_open(&attr(FileKind::Symlink, 0o777, 5), 5, libc::O_RDONLY));
    }

    #[test]
    fn modes_of_fallocate_and_rename() {
        assert_eq!(fallocate_mode(3), Some(FallocateMode::PunchHole));
        assert_eq!(fallocate_mode(16), Some(FallocateMode::ZeroRange { keep_size: false }));
        assert_eq!(fallocate_mode(17), Some(FallocateMode::ZeroRange { keep_size: true }));
        for unsupported in [0, 1, 2, 8, 32, 64, 18] {
            assert_eq!(fallocate_mode(unsupported), None);
        }
        let (owner, whiteout) = ((5, 6), libc::RENAME_WHITEOUT);
        let rename_mode = |flags| rename_mode(flags, owner);
        assert_eq!(rename_mode(0), Some(RenameMode::Replace));
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE), Some(RenameMode::NoReplace));
        assert_eq!(rename_mode(libc::RENAME_EXCHANGE), Some(RenameMode::Exchange));
        for (flags, replace) in [(whiteout, true), (whiteout | libc::RENAME_NOREPLACE, false)] {
            assert_eq!(rename_mode(flags), Some(RenameMode::Whiteout { replace, owner }));
        }
        assert_eq!(rename_mode(whiteout | libc::RENAME_EXCHANGE), None);
        assert_eq!(rename_mode(libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE), None);
    }
}
