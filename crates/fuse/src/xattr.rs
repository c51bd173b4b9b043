//! Names of extended attributes, between the kernel's name spaces and the file system's.
//!
//! `user.`, `trusted.` and `security.` are stored as they come (the kernel has checked who may). The file system's own
//! attributes are called `polvo.` something; they can be named directly, and as `user.polvo.` something for tools that
//! insist on a known name space. They are not listed, so that copying a tree with its attributes does not copy its
//! placement. Of `system.` there are POSIX access control lists, on mounts that enforce them.

use polvo_client::Counters;

/// What this mount's client has done so far, as an attribute of the root directory that exists in this mount only:
/// asking for it makes no request, so that reading it does not change it.
pub(crate) const COUNTERS: &[u8] = b"polvo.counters";
/// Our own attributes.
const OWN: &[u8] = b"polvo.";
/// The same, behind a name space that every tool accepts.
const OWN_AS_USER: &[u8] = b"user.polvo.";
/// Name spaces whose attributes are stored.
const STORED: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Access control lists.
const LISTS: [&[u8]; 2] = [ACCESS_LIST, b"system.posix_acl_default"];
/// The one that says who may do what with the inode itself.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The name under which an attribute is stored; `None` for a name space that is not supported. `acl`: the kernel enforces
/// access control lists.
pub(crate) fn stored_name(name: &[u8], acl: bool) -> Option<&[u8]> {
    if LISTS.contains(&name) {
        return Some(name).filter(|_| acl);
    }
    if name.len() > OWN_AS_USER.len() && name.starts_with(OWN_AS_USER) {
        return Some(&name[b"user.".len()..]);
    }
    let known = STORED
        .iter()
        .chain([&OWN])
        .any(|space| name.len() > space.len() && name.starts_with(space));
    known.then_some(name)
}

/// The reply to `listxattr`: names with a NUL after each. `trusted.` names are shown to root only, access control lists on
/// mounts that enforce them.
pub(crate) fn list<'n>(names: impl IntoIterator<Item = &'n [u8]>, root: bool, acl: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        let hidden = name.starts_with(OWN) || name.starts_with(b"trusted.") && !root || LISTS.contains(&name) && !acl;
        if hidden {
            continue;
        }
        list.extend_from_slice(name);
        list.push(0);
    }
    list
}

/// The value of [`COUNTERS`]: a JSON object. `upcalls`: requests of the kernel by name.
pub(crate) fn counters(counters: &Counters, upcalls: impl Iterator<Item = (&'static str, u64)>) -> String {
    let upcalls: Vec<_> = upcalls.map(|(name, count)| format!("\"{name}\":{count}")).collect();
    let upcalls = upcalls.join(",");
    let Counters {
        rpcs,
        renewals,
        one_sided_batches,
        one_sided_bytes,
        eager_bytes,
        tokens,
        recalls,
    } = counters;
    format!(
        "{{\"rpcs\":{rpcs},\"renewals\":{renewals},\"one_sided_batches\":{one_sided_batches},\"one_sided_bytes\":{one_sided_bytes},\
         \"eager_bytes\":{eager_bytes},\"tokens\":{tokens},\"recalls\":{recalls},\"upcalls\":{{{upcalls}}}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_spaces() {
        for name in ["user.a", "trusted.a", "security.capability", "polvo.placement"] {
            assert_eq!(stored_name(name.as_bytes(), false), Some(name.as_bytes()));
        }
        assert_eq!(
            stored_name(b"user.polvo.placement", false),
            Some(&b"polvo.placement"[..])
        );
        for name in ["user.", "system.posix_acl_access", "os2.x", "user", "", "polvo."] {
            assert_eq!(stored_name(name.as_bytes(), false), None, "{name}");
        }
        assert_eq!(stored_name(LISTS[0], true), Some(LISTS[0]));
        assert_eq!(stored_name(b"system.other", true), None);
    }

    #[test]
    fn lists_hide_what_is_ours_and_what_is_roots() {
        let names: [&[u8]; 4] = [b"user.a", b"polvo.placement", b"trusted.t", LISTS[1]];
        assert_eq!(list(names, true, false), b"user.a\0trusted.t\0");
        assert_eq!(list(names, false, true), b"user.a\0system.posix_acl_default\0");
        assert_eq!(list([], true, true), b"");
    }

    #[test]
    fn counters_are_json() {
        let counted = Counters {
            rpcs: 1,
            renewals: 9,
            one_sided_batches: 2,
            one_sided_bytes: 3,
            eager_bytes: 4,
            tokens: 7,
            recalls: 8,
        };
        let expected = r#"{"rpcs":1,"renewals":9,"one_sided_batches":2,"one_sided_bytes":3,"eager_bytes":4,"tokens":7,"recalls":8,"upcalls":{"LOOKUP":5,"READ":6}}"#;
        let upcalls = [("LOOKUP", 5), ("READ", 6)];
        assert_eq!(counters(&counted, upcalls.into_iter()), expected);
    }
}
