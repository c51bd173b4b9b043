//! A name as a key of the name cache. Nearly all names are short and lie in the key itself: a lookup in a large directory,
//! where nothing is in the CPU's caches, reads what it compares with from the place it has just found.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

/// Longest name that lies in the key, in bytes: the key is then as large as for a longer one.
const SHORT_MAX: usize = 22;

/// A name. Equal, and hashed, as its bytes are.
#[derive(Debug)]
pub(crate) enum CachedName {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<CachedName>() == 24);

impl From<&[u8]> for CachedName {
    fn from(name: &[u8]) -> CachedName {
        let mut bytes = [0; SHORT_MAX];
        match bytes.get_mut(..name.len()) {
            Some(place) => {
                place.copy_from_slice(name);
                let len = name.len() as u8;
                CachedName::Short { len, bytes }
            }
            None => CachedName::Long(name.into()),
        }
    }
}

impl Borrow<[u8]> for CachedName {
    fn borrow(&self) -> &[u8] {
        match self {
            CachedName::Short { len, bytes } => &bytes[..usize::from(*len)],
            CachedName::Long(name) => name,
        }
    }
}

impl PartialEq for CachedName {
    fn eq(&self, other: &CachedName) -> bool {
        let (one, other): (&[u8], &[u8]) = (self.borrow(), other.borrow());
        one == other
    }
}

impl Eq for CachedName {}

impl Hash for CachedName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bytes: &[u8] = self.borrow();
        bytes.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldhash::HashMap;

    #[test]
    fn names_of_all_lengths_are_found_and_told_apart() {
        let name = |len: usize| (0..len).map(|n| n as u8).collect::<Vec<u8>>();
        let names: HashMap<CachedName, usize> = (0..256).map(|len| (name(len)[..].into(), len)).collect();
        assert_eq!(names.len(), 256);
        for len in 0..256 {
            let mut other = name(len);
            assert_eq!(names.get(&other[..]), Some(&len));
            if let Some(last) = other.last_mut() {
                *last ^= 0x80;
                assert_eq!(names.get(&other[..]), None);
            }
        }
    }
}
