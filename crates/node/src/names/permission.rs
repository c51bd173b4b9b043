//! What a library user may do. A mount's requests come with `Cred::Kernel`: there the kernel has checked already.

use crate::names::acl::Acl;
use crate::names::user::User;
use polvo_format::{Attr, FileKind};
use polvo_proto::{Cred, FsError, NewFile, SetAttr, TimeChange};

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

/// What the list says, or where there is none the mode.
fn may(user: &User<'_>, attr: &Attr, acl: Option<&Acl>, want: u32) -> bool {
    if let Some(acl) = acl {
        return acl.may(user, attr, want);
    }
    let shift = match () {
        () if user.owns(attr) => 6,
        () if user.is_member(attr.gid) => 3,
        () => 0,
    };
    attr.mode >> shift & want == want
}

/// True when nothing has to be checked for this caller.
pub(crate) fn is_trusted(cred: &Cred) -> bool {
    User::of(cred).is_none()
}

/// Root or a mount.
pub(crate) fn is_administrator(cred: &Cred) -> bool {
    is_trusted(cred)
}

/// All of `want` on an inode with this access control list, else EACCES.
pub(crate) fn access(cred: &Cred, attr: &Attr, acl: Option<&Acl>, want: u32) -> Result<(), FsError> {
    match User::of(cred) {
        Some(user) if !may(&user, attr, acl, want) => Err(FsError::Access),
        _ => Ok(()),
    }
}

/// Reading or writing, whichever the caller is up to: asked at open and for the map of a file.
pub(crate) fn access_data(cred: &Cred, attr: &Attr, acl: Option<&Acl>) -> Result<(), FsError> {
    access(cred, attr, acl, READ).or_else(|_| access(cred, attr, acl, WRITE))
}

/// Owner only, else EPERM.
pub(crate) fn owner(cred: &Cred, attr: &Attr) -> Result<(), FsError> {
    match User::of(cred) {
        Some(user) if !user.owns(attr) => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

/// True when the sticky bit of a directory may forbid this caller to remove a name of others from it.
pub(crate) fn sticky_matters(cred: &Cred, dir: &Attr) -> bool {
    User::of(cred).is_some_and(|user| dir.mode & STICKY != 0 && !user.owns(dir))
}

/// Removing a name from a directory with the sticky bit.
pub(crate) fn remove_sticky(cred: &Cred, dir: &Attr, target: &Attr) -> Result<(), FsError> {
    if sticky_matters(cred, dir) {
        owner(cred, target)
    } else {
        Ok(())
    }
}

/// What `set_attr` is to become for this caller: checked, and with the bits cleared that Linux clears.
pub(crate) fn set_attr(cred: &Cred, attr: &Attr, acl: Option<&Acl>, set: &SetAttr) -> Result<SetAttr, FsError> {
    if set.size.is_some() {
        match attr.kind {
            FileKind::File | FileKind::Object => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid("only a file has a length to set".into())),
        }
    }
    if let Some(user) = User::of(cred) {
        may_set(cred, &user, attr, acl, set)?;
    }
    let mut set = *set;
    if let Cred::User { .. } = cred {
        clear_privileges(cred, attr, &mut set);
    }
    Ok(set)
}

fn may_set(cred: &Cred, user: &User<'_>, attr: &Attr, acl: Option<&Acl>, set: &SetAttr) -> Result<(), FsError> {
    if set.size.is_some() {
        access(cred, attr, acl, WRITE)?;
    }
    let to_others = set.uid.is_some_and(|uid| uid != attr.uid);
    let to_strangers = set.gid.is_some_and(|gid| gid != attr.gid && !user.is_member(gid));
    if to_others || to_strangers {
        return Err(FsError::NotPermitted);
    }
    if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
        owner(cred, attr)?;
    }
    for time in [set.atime, set.mtime].into_iter().flatten() {
        match time {
            TimeChange::To(_) => owner(cred, attr)?,
            TimeChange::Now if user.owns(attr) => {}
            TimeChange::Now => access(cred, attr, acl, WRITE)?,
        }
    }
    Ok(())
}

fn clear_privileges(cred: &Cred, attr: &Attr, set: &mut SetAttr) {
    let gid = set.gid.unwrap_or(attr.gid);
    if let (Some(mode), Some(user)) = (set.mode, User::of(cred))
        && !user.is_member(gid)
    {
        set.mode = Some(mode & !SET_GID);
    }
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    let truncates = set.size.is_some() && User::of(cred).is_some();
    if attr.kind != FileKind::Directory && (changes_owner || truncates) && set.mode.is_none() {
        set.mode = without_privileges(cred, attr);
    }
}

/// The mode after a change of owner or contents by this caller; `None` when it stays. Set-group-id without the group's
/// execute bit goes where the caller is not of the group.
fn without_privileges(cred: &Cred, attr: &Attr) -> Option<u32> {
    let is_stranger = User::of(cred).is_some_and(|user| !user.is_member(attr.gid));
    let mut cleared = attr.mode & !SET_UID;
    if attr.mode & GROUP_EXECUTE != 0 || is_stranger {
        cleared &= !SET_GID;
    }
    (cleared != attr.mode).then_some(cleared)
}

/// The change of mode that comes with a write by this caller, if any.
pub(crate) fn mode_after_write(cred: &Cred, attr: &Attr) -> Option<SetAttr> {
    User::of(cred)?;
    without_privileges(cred, attr).map(|mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    })
}

/// A new inode as this caller may make it in that directory: with its own ids, and with what it inherits.
pub(crate) fn new_file(cred: &Cred, parent: &Attr, mut file: NewFile) -> NewFile {
    if let Some(user) = User::of(cred) {
        file.uid = user.uid;
        if !user.is_member(file.gid) {
            file.gid = user.gid;
        }
    }
    file.mode &= 0o7777;
    if parent.mode & SET_GID != 0 {
        file.gid = parent.gid;
        if file.kind == FileKind::Directory {
            file.mode |= SET_GID;
        } else if User::of(cred).is_some_and(|user| !user.is_member(parent.gid)) && file.mode & GROUP_EXECUTE != 0 {
            file.mode &= !SET_GID;
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    fn attr(kind: FileKind, mode: u32, uid: u32, gid: u32) -> Attr {
        Attr {
            ino: Ino(5),
            generation: Generation(1),
            kind,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        }
    }

    // without a list
    fn access(cred: &Cred, attr: &Attr, want: u32) -> Result<(), FsError> {
        super::access(cred, attr, None, want)
    }

    fn set_attr(cred: &Cred, attr: &Attr, set: &SetAttr) -> Result<SetAttr, FsError> {
        super::set_attr(cred, attr, None, set)
    }

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred::User {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    fn mode(mode: u32) -> SetAttr {
        SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = attr(FileKind::File, 0o047, 1, 2);
        assert_eq!(
            access(&user(1, 9, &[]), &file, READ),
            Err(FsError::Access),
            "the owner has no rights"
        );
        assert_eq!(
            access(&user(3, 9, &[2]), &file, READ),
            Ok(()),
            "by a supplementary group"
        );
        assert_eq!(access(&user(3, 2, &[]), &file, WRITE), Err(FsError::Access));
        assert_eq!(access(&user(3, 9, &[]), &file, READ | WRITE | EXECUTE), Ok(()));
        assert_eq!(
            access(&user(0, 0, &[]), &attr(FileKind::File, 0, 1, 1), WRITE),
            Ok(()),
            "root"
        );
    }

    #[test]
    fn changing_mode_and_owner() {
        let file = attr(FileKind::File, 0o644, 1, 2);
        let chown = |uid, gid| SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        assert_eq!(
            set_attr(&user(3, 2, &[]), &file, &mode(0o600)),
            Err(FsError::NotPermitted)
        );
        assert_eq!(
            set_attr(&user(1, 2, &[]), &file, &mode(0o2755)).unwrap().mode,
            Some(0o2755)
        );
        assert_eq!(
            set_attr(&user(1, 9, &[]), &file, &mode(0o2755)).unwrap().mode,
            Some(0o755),
            "no member"
        );
        assert_eq!(
            set_attr(&user(1, 2, &[]), &file, &chown(Some(3), None)),
            Err(FsError::NotPermitted)
        );
        assert_eq!(
            set_attr(&user(1, 2, &[]), &file, &chown(None, Some(7))),
            Err(FsError::NotPermitted)
        );
        assert!(set_attr(&user(1, 2, &[7]), &file, &chown(None, Some(7))).is_ok());
        assert_eq!(
            set_attr(&user(3, 7, &[]), &file, &chown(None, Some(7))),
            Err(FsError::NotPermitted)
        );
        let program = attr(FileKind::File, 0o6755, 1, 2);
        assert_eq!(
            set_attr(&user(1, 2, &[7]), &program, &chown(None, Some(7)))
                .unwrap()
                .mode,
            Some(0o755)
        );
        let marked = attr(FileKind::File, 0o2664, 1, 2);
        let written_by = |user: Cred| mode_after_write(&user, &marked).and_then(|set| set.mode);
        assert_eq!(written_by(user(1, 2, &[])), None, "a member of the group");
        assert_eq!(written_by(user(1, 9, &[7])), Some(0o664), "a stranger to it");
        assert_eq!(written_by(user(0, 0, &[])), None, "root");
        assert_eq!(
            set_attr(&user(0, 0, &[]), &program, &chown(Some(4), None))
                .unwrap()
                .mode,
            Some(0o755)
        );
        assert_eq!(
            set_attr(&Cred::Kernel, &program, &chown(Some(4), None)).unwrap().mode,
            None,
            "the kernel does it"
        );
    }

    #[test]
    fn lengths_and_times() {
        let length = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        let program = attr(FileKind::File, 0o4666, 1, 2);
        assert_eq!(set_attr(&user(3, 3, &[]), &program, &length).unwrap().mode, Some(0o666));
        assert_eq!(
            set_attr(&Cred::Kernel, &attr(FileKind::Directory, 0o777, 1, 1), &length),
            Err(FsError::IsDirectory)
        );
        let touch = |t| SetAttr {
            mtime: Some(t),
            ..SetAttr::default()
        };
        assert_eq!(
            set_attr(&user(3, 3, &[]), &program, &touch(TimeChange::To(0))),
            Err(FsError::NotPermitted)
        );
        assert!(set_attr(&user(3, 3, &[]), &program, &touch(TimeChange::Now)).is_ok());
        let closed = attr(FileKind::File, 0o600, 1, 1);
        assert_eq!(
            set_attr(&user(3, 3, &[]), &closed, &touch(TimeChange::Now)),
            Err(FsError::Access)
        );
    }

    #[test]
    fn a_new_file_takes_the_group_of_a_set_gid_directory() {
        let file = |kind| NewFile {
            kind,
            mode: 0o2755,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: vec![],
            umask: 0,
            xattrs: Vec::new(),
        };
        let dir = attr(FileKind::Directory, 0o2777, 1, 50);
        let made = new_file(&user(3, 4, &[]), &dir, file(FileKind::Directory));
        assert_eq!((made.uid, made.gid, made.mode), (3, 50, 0o2755));
        let made = new_file(&user(3, 4, &[]), &dir, file(FileKind::File));
        assert_eq!((made.uid, made.gid, made.mode), (3, 50, 0o755));
        let made = new_file(
            &Cred::Kernel,
            &attr(FileKind::Directory, 0o777, 1, 50),
            file(FileKind::File),
        );
        assert_eq!((made.uid, made.gid, made.mode), (0, 0, 0o2755));
    }

    #[test]
    fn sticky_directories_protect_the_files_of_others() {
        let tmp = attr(FileKind::Directory, 0o1777, 0, 0);
        let file = attr(FileKind::File, 0o666, 7, 7);
        assert_eq!(remove_sticky(&user(3, 3, &[]), &tmp, &file), Err(FsError::NotPermitted));
        assert_eq!(remove_sticky(&user(7, 3, &[]), &tmp, &file), Ok(()));
        assert_eq!(
            remove_sticky(&user(3, 3, &[]), &attr(FileKind::Directory, 0o777, 0, 0), &file),
            Ok(())
        );
    }
}
