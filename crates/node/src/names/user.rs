//! Who asks, where that matters.

use polvo_format::Attr;
use polvo_proto::Cred;

/// A caller that is not all-powerful.
pub(crate) struct User<'a> {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
}

impl User<'_> {
    /// The caller, if there is anything to check.
    pub fn of(cred: &Cred) -> Option<User<'_>> {
        match cred {
            Cred::Kernel | Cred::User { uid: 0, .. } => None,
            Cred::User { uid, gid, groups } => Some(User {
                uid: *uid,
                gid: *gid,
                groups,
            }),
        }
    }

    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub fn owns(&self, attr: &Attr) -> bool {
        self.uid == attr.uid
    }
}
