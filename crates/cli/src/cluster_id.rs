//! The identity of a cluster: 16 random bytes, written as a UUID.

use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// Identity of a cluster. Pools carry it; peers compare it before anything else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// A new one, drawn from the system's random numbers (UUID version 4).
    pub fn random() -> ClusterId {
        ClusterId(Uuid::new_v4().into_bytes())
    }

    /// The first eight hexadecimal digits: enough to name files after.
    pub fn short(&self) -> String {
        let [a, b, c, d, ..] = self.0;
        format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClusterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |_| {
            format!(
                "{text:?} is no cluster id; write a UUID such as {}",
                ClusterId([0x3f; 16])
            )
        };
        Ok(ClusterId(Uuid::try_parse(text).map_err(refused)?.into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        let id = ClusterId::random();
        assert_eq!(id.to_string().parse::<ClusterId>(), Ok(id));
        assert!(id.to_string().starts_with(&id.short()) && id.short().len() == 8);
    }

    #[test]
    fn refuses_what_is_no_uuid() {
        for bad in [
            "",
            "12",
            "zzzzzzzz-0000-0000-0000-000000000000",
            "00000000-0000-0000-0000-00000000000é",
        ] {
            assert!(bad.parse::<ClusterId>().is_err(), "{bad:?}");
        }
    }
}
