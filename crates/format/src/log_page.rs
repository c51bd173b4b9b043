//! Where log positions lie: a log is counted in units of 64 bytes; the first two lie in the inode, then 63 in each
//! 4 KiB log page, whose first 64 bytes are its header.

use crate::{FormatError, INODE_UNITS, Ino, LINE, PAGE, RegionOffset, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "log page";
const MAGIC: [u8; 4] = *b"PLog";
const VERSION: u16 = 1;

/// Units in the inode itself.
pub const INLINE_UNITS: u64 = 2;
/// Units in a log page.
pub const PAGE_UNITS: u64 = (PAGE / LINE - 1) as u64;
/// Offset of the word in a log page's header that holds the next page's region offset (0: none).
pub const LOG_PAGE_NEXT: u64 = 32;

/// Place of a log position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitPlace {
    /// In the inode, at this offset.
    Inode(u64),
    /// In the log's n-th page, at this offset.
    Page {
        /// n, from 0
        page: u64,
        /// offset in the page
        at: u64,
    },
}

impl UnitPlace {
    /// Where a position lies.
    pub fn of(position: u64) -> UnitPlace {
        match position.checked_sub(INLINE_UNITS) {
            None => UnitPlace::Inode(INODE_UNITS + position * LINE as u64),
            Some(p) => UnitPlace::Page {
                page: p / PAGE_UNITS,
                at: (1 + p % PAGE_UNITS) * LINE as u64,
            },
        }
    }

    /// Units from a position to the end of its page (or of the inode). An entry never crosses that.
    pub fn room(position: u64) -> u64 {
        match position.checked_sub(INLINE_UNITS) {
            None => INLINE_UNITS - position,
            Some(p) => PAGE_UNITS - p % PAGE_UNITS,
        }
    }

    /// Log pages that a log of this many units fills or begins.
    pub fn pages(units: u64) -> u64 {
        units.saturating_sub(INLINE_UNITS).div_ceil(PAGE_UNITS)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPage {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    ino: U64,
    page: U64,
    log_version: U32,
    crc: U32,
    next: U64,
    reserved2: [u8; 24],
}
const _: () = assert!(size_of::<RawPage>() == LINE);
const _: () = assert!(std::mem::offset_of!(RawPage, next) as u64 == LOG_PAGE_NEXT);

/// Header of a log page. All but `next` never changes while the page is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPage {
    /// Whose log.
    pub ino: Ino,
    /// Which page of it, from 0.
    pub page: u64,
    /// Version of the log.
    pub version: u32,
    /// Next page; 0 at the end. A next page whose header does not say the right things is no page of this log.
    pub next: RegionOffset,
}

impl LogPage {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; LINE] {
        debug_assert!(self.next.0.is_multiple_of(PAGE as u64), "a link leads to a page");
        let mut raw = RawPage {
            magic: MAGIC,
            version: U16::new(VERSION),
            reserved: U16::ZERO,
            ino: U64::new(self.ino.0),
            page: U64::new(self.page),
            log_version: U32::new(self.version),
            crc: U32::ZERO,
            next: U64::new(self.next.0),
            reserved2: [0; 24],
        };
        raw.crc = U32::new(checksum(&raw));
        let bytes: [u8; LINE] = zerocopy::transmute!(raw);
        debug_assert_eq!(LogPage::decode(&bytes), Ok(*self), "a header is read as it was written");
        bytes
    }

    /// Reads the header of a log page (its first 64 bytes).
    pub fn decode(bytes: &[u8]) -> Result<LogPage, FormatError> {
        let (raw, _) = RawPage::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need: LINE,
        })?;
        if raw.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if checksum(&raw) != raw.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        if raw.version.get() != VERSION {
            return Err(FormatError::Version {
                structure: WHAT,
                found: u32::from(raw.version.get()),
                known: u32::from(VERSION),
            });
        }
        Ok(LogPage {
            ino: Ino(raw.ino.get()),
            page: raw.page.get(),
            version: raw.log_version.get(),
            next: RegionOffset(raw.next.get()),
        })
    }

    /// True when the page is page `page` of version `version` of this inode's log.
    pub fn belongs(&self, ino: Ino, version: u32, page: u64) -> bool {
        self.ino == ino && self.version == version && self.page == page
    }
}

fn checksum(raw: &RawPage) -> u32 {
    checksum::crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawPage, crc)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_fill_the_inode_then_pages() {
        assert_eq!(UnitPlace::of(0), UnitPlace::Inode(128));
        assert_eq!(UnitPlace::of(1), UnitPlace::Inode(192));
        assert_eq!(UnitPlace::of(2), UnitPlace::Page { page: 0, at: 64 });
        assert_eq!(UnitPlace::of(64), UnitPlace::Page { page: 0, at: 4032 });
        assert_eq!(UnitPlace::of(65), UnitPlace::Page { page: 1, at: 64 });
        assert_eq!([0, 1, 2, 64, 65].map(UnitPlace::room), [2, 1, 63, 1, 63]);
        assert_eq!([0, 2, 3, 65, 66].map(UnitPlace::pages), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn a_header_round_trips_and_damage_is_noticed() {
        let page = LogPage {
            ino: Ino(7),
            page: 3,
            version: 9,
            next: RegionOffset(0x1000),
        };
        let bytes = page.encode();
        assert_eq!(LogPage::decode(&bytes), Ok(page));
        for bit in 0..32 * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(LogPage::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(LogPage::decode(&bytes[..63]).is_err());
    }
}
