//! Which names a directory takes.

use polvo_format::NAME_MAX;
use polvo_proto::FsError;

/// Checks a name that is to be looked up or removed: only what no entry can have is refused.
pub(crate) fn check(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] => Err(FsError::NotFound),
        _ if name.len() > NAME_MAX => Err(FsError::NameTooLong),
        _ if name.iter().any(|b| matches!(b, b'/' | 0)) => {
            Err(FsError::Invalid("a name holds neither / nor NUL".into()))
        }
        _ => Ok(()),
    }
}

/// Checks a name that is to be made.
pub(crate) fn check_new(name: &[u8]) -> Result<(), FsError> {
    check(name)?;
    match name {
        b"." | b".." => Err(FsError::Exists),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_linux_takes_them() {
        assert_eq!(check_new(&[b'x'; 255]), Ok(()));
        assert_eq!(check_new(&[b'x'; 256]), Err(FsError::NameTooLong));
        assert_eq!(check_new(b""), Err(FsError::NotFound));
        assert_eq!(check_new(b".."), Err(FsError::Exists));
        assert_eq!(check_new("naïve\n\u{1f419}".as_bytes()), Ok(()));
        assert_eq!(check_new(b"\xff\xfe"), Ok(()), "names are bytes");
        assert!(check(b"a/b").is_err() && check(b"a\0").is_err());
    }
}
