//! POSIX access control lists (POSIX.1e draft 17, as Linux has them): what they allow, what a new inode inherits, and how
//! they and the permission bits follow each other.
//!
//! A list is stored as the extended attribute under which Linux shows it, in the format of `linux/posix_acl_xattr.h`: a
//! version, then entries of tag, permissions and id, little-endian. On a mount the kernel enforces them (option `acl`);
//! this module does for other callers, and keeps lists and permission bits in step for all.

use crate::names::user::User;
use polvo_format::{Attr, FileKind};
use polvo_proto::{FsError, NewFile};

/// Who may do what with an inode.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// What new inodes of a directory begin with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A list without entries, which is none: its version alone.
pub(crate) const NONE: &[u8] = &VERSION.to_le_bytes();

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// In entries that name nobody.
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about; in the order in which a list has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    /// The most that named users and all groups get.
    Mask,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    /// `rwx`, three bits.
    allows: u32,
}

/// A list that is in order: one entry each for owner, owning group and others; a mask if anybody is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Entry>);

fn invalid(why: &str) -> FsError {
    FsError::Invalid(format!("access control list: {why}"))
}

impl Acl {
    /// Parses the value of the attribute.
    pub fn decode(value: &[u8]) -> Result<Acl, FsError> {
        let Some((version, entries)) = value.split_first_chunk::<HEADER>() else {
            return Err(invalid("too short"));
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::NotSupported("access control lists of this version".into()));
        }
        if !entries.len().is_multiple_of(ENTRY) {
            return Err(invalid("half an entry"));
        }
        let entries: Vec<Entry> = entries
            .chunks_exact(ENTRY)
            .map(decode_entry)
            .collect::<Result<_, _>>()?;
        let acl = Acl(entries);
        acl.check()?;
        Ok(acl)
    }

    fn check(&self) -> Result<(), FsError> {
        let rank = |tag: Tag| match tag {
            Tag::Owner => 0,
            Tag::User(_) => 1,
            Tag::OwningGroup => 2,
            Tag::Group(_) => 3,
            Tag::Mask => 4,
            Tag::Other => 5,
        };
        if !self.0.is_sorted_by_key(|entry| rank(entry.tag)) {
            return Err(invalid("entries out of order"));
        }
        let count = |of: u8| self.0.iter().filter(|entry| rank(entry.tag) == of).count();
        let names_somebody = count(1) + count(3) > 0;
        match (count(0), count(2), count(5), count(4)) {
            (1, 1, 1, 1) => Ok(()),
            (1, 1, 1, 0) if !names_somebody => Ok(()),
            (1, 1, 1, 0) => Err(invalid("somebody is named, but there is no mask")),
            _ => Err(invalid("needs one entry each for owner, owning group and others")),
        }
    }

    /// The value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let (tag, id) = match entry.tag {
                Tag::Owner => (0x01u16, NO_ID),
                Tag::User(id) => (0x02, id),
                Tag::OwningGroup => (0x04, NO_ID),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, NO_ID),
                Tag::Other => (0x20, NO_ID),
            };
            value.extend(tag.to_le_bytes());
            value.extend((entry.allows as u16).to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn allows(&self, tag: Tag) -> Option<u32> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.allows)
    }

    /// The permission bits of an inode with this list: the group's are the mask's, where there is one.
    pub fn mode(&self) -> u32 {
        let allows = |tag| self.allows(tag).unwrap_or(0);
        let group = self.allows(Tag::Mask).unwrap_or(allows(Tag::OwningGroup));
        allows(Tag::Owner) << 6 | group << 3 | allows(Tag::Other)
    }

    /// The list says no more than the permission bits do.
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Follows a change of the permission bits.
    pub fn set_mode(&mut self, mode: u32) {
        let has_mask = self.allows(Tag::Mask).is_some();
        for entry in &mut self.0 {
            match entry.tag {
                Tag::Owner => entry.allows = mode >> 6 & 7,
                Tag::Other => entry.allows = mode & 7,
                Tag::Mask => entry.allows = mode >> 3 & 7,
                Tag::OwningGroup if !has_mask => entry.allows = mode >> 3 & 7,
                _ => {}
            }
        }
    }

    /// Whether a user may do all of `want`.
    pub fn may(&self, user: &User<'_>, attr: &Attr, want: u32) -> bool {
        let mask = self.allows(Tag::Mask).unwrap_or(7);
        let mut is_member = false;
        for entry in &self.0 {
            let masked = entry.allows & mask & want == want;
            match entry.tag {
                Tag::Owner if user.owns(attr) => return entry.allows & want == want,
                Tag::User(uid) if uid == user.uid => return masked,
                Tag::OwningGroup if user.is_member(attr.gid) => is_member = true,
                Tag::Group(gid) if user.is_member(gid) => is_member = true,
                Tag::Other => return !is_member && entry.allows & want == want,
                _ => continue,
            }
            // the first group that allows it decides it; one that does not leaves it to the next
            if masked {
                return true;
            }
        }
        false
    }
}

fn decode_entry(bytes: &[u8]) -> Result<Entry, FsError> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let allows = u32::from(half(2));
    let tag = match half(0) {
        0x01 => Tag::Owner,
        0x02 => Tag::User(id),
        0x04 => Tag::OwningGroup,
        0x08 => Tag::Group(id),
        0x10 => Tag::Mask,
        0x20 => Tag::Other,
        _ => return Err(invalid("an entry about nobody")),
    };
    if allows > 7 || matches!(tag, Tag::User(NO_ID) | Tag::Group(NO_ID)) {
        return Err(invalid("an entry that makes no sense"));
    }
    Ok(Entry { tag, allows })
}

/// Settles the permission bits of a new inode: by the default list of its directory, or by the umask.
pub(crate) fn inherit(default: Option<&[u8]>, file: &mut NewFile) {
    let umask = std::mem::take(&mut file.umask);
    if file.kind == FileKind::Symlink {
        return;
    }
    let Some((value, mut acl)) = default.and_then(|value| Some((value, Acl::decode(value).ok()?))) else {
        file.mode &= !umask;
        return;
    };
    let allowed = acl.mode() | !0o777;
    file.mode &= allowed;
    acl.set_mode(file.mode);
    if !acl.is_mode() {
        file.xattrs.push((ACCESS.to_vec().into(), acl.encode().into()));
    }
    if file.kind == FileKind::Directory {
        file.xattrs.push((DEFAULT.to_vec().into(), value.to_vec().into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};
    use proptest::prelude::*;

    fn acl(entries: &[(Tag, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, allows)| Entry { tag, allows }).collect())
    }

    fn attr(uid: u32, gid: u32) -> Attr {
        Attr {
            ino: Ino(5),
            generation: Generation(1),
            kind: FileKind::File,
            mode: 0o600,
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

    fn named() -> Acl {
        acl(&[
            (Tag::Owner, 7),
            (Tag::User(10), 6),
            (Tag::OwningGroup, 4),
            (Tag::Group(20), 6),
            (Tag::Group(21), 1),
            (Tag::Mask, 5),
            (Tag::Other, 2),
        ])
    }

    #[test]
    fn who_may_what() {
        let (acl, attr) = (named(), attr(1, 2));
        let may = |uid, gid, groups: &[u32], want| acl.may(&User { uid, gid, groups }, &attr, want);
        assert!(may(1, 9, &[], 7), "the owner, whatever the mask");
        assert!(may(10, 9, &[], 4) && !may(10, 9, &[], 2), "a named user, masked");
        assert!(!may(10, 20, &[2], 1), "one who is named is no member of groups");
        assert!(may(3, 2, &[], 4) && !may(3, 2, &[], 1), "the owning group");
        assert!(may(3, 20, &[21], 4) && may(3, 20, &[21], 1), "any group that allows it");
        assert!(!may(3, 20, &[21], 5), "but not two together");
        assert!(may(3, 9, &[], 2) && !may(3, 9, &[], 4), "the others");
        assert!(!may(3, 2, &[], 2), "a member is no other");
    }

    #[test]
    fn lists_and_permission_bits_follow_each_other() {
        let mut acl = named();
        assert_eq!(acl.mode(), 0o752);
        acl.set_mode(0o640);
        assert_eq!(acl.mode(), 0o640);
        assert_eq!(acl.allows(Tag::OwningGroup), Some(4), "the mask has changed instead");
        let mut plain = super::tests::acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)]);
        assert!(plain.is_mode());
        plain.set_mode(0o751);
        assert_eq!(plain.mode(), 0o751);
    }

    #[test]
    fn what_is_inherited() {
        let new = |kind| NewFile {
            kind,
            mode: 0o2666,
            umask: 0o077,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            xattrs: Vec::new(),
        };
        let mut file = new(FileKind::File);
        inherit(None, &mut file);
        assert_eq!((file.mode, file.xattrs.len()), (0o2600, 0), "the umask");
        let default = named().encode();
        let mut file = new(FileKind::File);
        inherit(Some(&default), &mut file);
        assert_eq!(file.mode, 0o2642, "the default list in place of the umask");
        let access = Acl::decode(&file.xattrs[0].1).expect("a list");
        assert_eq!((access.mode(), access.allows(Tag::User(10))), (0o642, Some(6)));
        assert_eq!(file.xattrs.len(), 1);
        let mut directory = new(FileKind::Directory);
        inherit(Some(&default), &mut directory);
        assert_eq!(directory.xattrs[1], (DEFAULT.to_vec().into(), default.clone().into()));
        let plain = acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)]).encode();
        let mut file = new(FileKind::File);
        inherit(Some(&plain), &mut file);
        assert_eq!(
            (file.mode, file.xattrs.len()),
            (0o2640, 0),
            "no more than permission bits"
        );
    }

    #[test]
    fn what_is_no_list() {
        let good = named().encode();
        assert_eq!(Acl::decode(&good), Ok(named()));
        for len in 0..good.len() {
            let short = Acl::decode(&good[..len]);
            assert!(short.is_err(), "{len} bytes of {}", good.len());
        }
        for entries in [
            &[(Tag::Owner, 7), (Tag::Other, 7)][..],
            &[(Tag::OwningGroup, 7), (Tag::Owner, 7), (Tag::Other, 7)],
            &[
                (Tag::Owner, 7),
                (Tag::User(1), 7),
                (Tag::OwningGroup, 7),
                (Tag::Other, 7),
            ],
            &[(Tag::Owner, 7), (Tag::Owner, 7), (Tag::OwningGroup, 7), (Tag::Other, 7)],
            &[(Tag::Owner, 8), (Tag::OwningGroup, 7), (Tag::Other, 7)],
        ] {
            assert!(Acl::decode(&acl(entries).encode()).is_err(), "{entries:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(acl) = Acl::decode(&bytes) {
                prop_assert_eq!(acl.encode().len(), bytes.len());
                prop_assert!(acl.mode() <= 0o777);
            }
        }
    }
}
