//! Sizes as users write and read them: `1G`, `512M`, `4096`; multiples of 1024.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = || format!("{text:?} is no size; write bytes or a number with K, M, G or T, such as 512M");
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| why())?;
        let unit = text[digits..].trim().to_ascii_uppercase();
        let unit = unit
            .strip_suffix("IB")
            .or_else(|| unit.strip_suffix('B'))
            .unwrap_or(&unit);
        let shift = match unit {
            "" => 0,
            _ => {
                let at = UNITS
                    .iter()
                    .position(|u| unit.len() == 1 && unit.starts_with(*u))
                    .ok_or_else(why)?;
                10 * (at as u32 + 1)
            }
        };
        number
            .checked_mul(1 << shift)
            .map(Size)
            .ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
    }
}

impl fmt::Display for Size {
    /// Three digits at the most: `512 B`, `1.5 KiB`, `1 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64;
        let mut unit = ' ';
        for u in UNITS {
            if value < 1023.5 {
                break;
            }
            value /= 1024.0;
            unit = u;
        }
        debug_assert!((0.99..1023.5).contains(&value) && unit != ' ', "{} bytes", self.0);
        let text = if value >= 99.95 {
            format!("{value:.0}")
        } else {
            format!("{value:.1}")
        };
        write!(f, "{} {unit}iB", text.strip_suffix(".0").unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_users_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1024),
            ("512M", 512 << 20),
            ("1G", 1 << 30),
            ("1g", 1 << 30),
            ("2GiB", 2 << 30),
            ("3TB", 3 << 40),
            ("1 M", 1 << 20),
            ("10B", 10),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in ["", "G", "1X", "-1", "1.5G", "1GG", "99999999E", "18446744073709551616"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn prints_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((45 << 20) - 1000, "45 MiB"),
            (1 << 30, "1 GiB"),
            (500 << 20, "500 MiB"),
            (1023 << 20, "1023 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
