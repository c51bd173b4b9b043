//! The identity of a cluster: 16 random bytes, written as a UUID.

use std::fmt;
use std::str::FromStr;

/// Identity of a cluster. Pools carry it; peers compare it before anything else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// A new one, drawn from the system's random numbers (UUID version 4).
    pub fn random() -> ClusterId {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes).expect("the system always has random numbers");
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        ClusterId(bytes)
    }

    /// The first eight hexadecimal digits: enough to name files after.
    pub fn short(&self) -> String {
        hex(&self.0[..4])
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let h = hex(&self.0);
        write!(
            f,
            "{}-{}-{}-{}-{}",
            &h[..8],
            &h[8..12],
            &h[12..16],
            &h[16..20],
            &h[20..]
        )
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
        let why = || {
            format!(
                "{text:?} is no cluster id; write a UUID such as {}",
                ClusterId([0x3f; 16])
            )
        };
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|g| g.len()).ne([8, 4, 4, 4, 12]) {
            return Err(why());
        }
        let digits = groups.concat();
        let mut bytes = [0u8; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let high = (pair[0] as char).to_digit(16).ok_or_else(why)?;
            let low = (pair[1] as char).to_digit(16).ok_or_else(why)?;
            *byte = (high << 4 | low) as u8;
        }
        Ok(ClusterId(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        let id = ClusterId::random();
        assert_eq!(id.to_string().parse::<ClusterId>(), Ok(id));
        assert_eq!(id.short().len(), 8);
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
