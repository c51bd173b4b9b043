//! Checksums of file data: a word for each page of the pool's segments, all together in a zone of the pool
//! ([`crate::PoolLayout::checksum_offset`]).
//!
//! ```text
//! bits 0..32 CRC-32C | 32..44 first byte in the page | 44..56 bytes - 1 | 56..64 CRC-8 of the other seven bytes
//! ```
//!
//! It covers what was written to the page since that was last free: one range, which only ever grows at its end. A word of 0 says
//! that nothing is known. Words are believed for nothing but the bytes that they cover, so one that lags behind is still right.

use crate::{FormatError, PAGE, checksum};

const WHAT: &str = "checksum of a data page";
const PAGE_BYTES: u64 = PAGE as u64;

/// Bytes of a checksum on the media.
pub const PAGE_CHECKSUM_SIZE: u64 = 8;

/// Bytes of a CRC in the list that a writer makes.
pub const PAGE_CRC_SIZE: usize = 4;

/// What is known of the bytes of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageChecksum {
    start: u16,
    len: u16,
    crc: u32,
}

impl PageChecksum {
    /// Of `len` bytes from `start` on in a page, with this CRC-32C. `None` for a range that no page has.
    pub fn new(start: u64, len: u64, crc: u32) -> Option<PageChecksum> {
        let is_range = (1..=PAGE_BYTES).contains(&len) && start <= PAGE_BYTES - len;
        is_range.then_some(PageChecksum {
            start: start as u16,
            len: len as u16,
            crc,
        })
    }

    /// Of these bytes, from `start` on in a page. `None` where a page has no room for them, or there are none.
    pub fn of(start: u64, bytes: &[u8]) -> Option<PageChecksum> {
        PageChecksum::new(start, bytes.len() as u64, checksum::crc32c(bytes))
    }

    /// Behind the last byte that it covers, in the page.
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }

    /// The bytes that it covers, in the page.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.start.into()..self.end()
    }

    /// With more bytes, which follow those that it covers; `None` where the page has no room for them.
    pub fn with(&self, bytes: &[u8]) -> Option<PageChecksum> {
        let crc = checksum::crc32c_append(self.crc, bytes);
        let grown = PageChecksum::new(self.start.into(), u64::from(self.len) + bytes.len() as u64, crc);
        debug_assert!(
            grown.is_none_or(|grown| grown.start == self.start),
            "a range grows at its end"
        );
        grown
    }

    /// Whether a whole page has the bytes that it was made of.
    ///
    /// # Panics
    /// When `page` is shorter than a page.
    pub fn holds(&self, page: &[u8]) -> bool {
        debug_assert!(page.len() == PAGE, "a whole page");
        let bytes = &page[usize::from(self.start)..self.end() as usize];
        checksum::crc32c(bytes) == self.crc
    }

    /// The word for the media.
    pub fn encode(self) -> u64 {
        debug_assert!(
            self.len > 0 && self.end() <= PAGE_BYTES,
            "a word covers bytes of its page"
        );
        let low = u64::from(self.crc) | u64::from(self.start) << 32 | u64::from(self.len - 1) << 44;
        let word = low | u64::from(check(low)) << 56;
        debug_assert_eq!(
            PageChecksum::decode(word),
            Ok(Some(self)),
            "a word is read as it was written"
        );
        word
    }

    /// Reads a word; `None`: nothing is known of the page.
    ///
    /// # Errors
    /// `Checksum`, `Invalid`: the word is damaged.
    pub fn decode(word: u64) -> Result<Option<PageChecksum>, FormatError> {
        if word == 0 {
            return Ok(None);
        }
        let low = word & ((1 << 56) - 1);
        if u64::from(check(low)) != word >> 56 {
            return Err(FormatError::Checksum(WHAT));
        }
        let (start, len) = (low >> 32 & 0xfff, (low >> 44 & 0xfff) + 1);
        let known = PageChecksum::new(start, len, low as u32);
        known
            .map(Some)
            .ok_or_else(|| FormatError::invalid(WHAT, format!("{len} bytes from {start} on")))
    }
}

fn check(low: u64) -> u8 {
    let [bytes @ .., _] = low.to_le_bytes();
    checksum::crc8(bytes)
}

/// Appends the CRC-32C of what lies in each page, for bytes that begin at an offset: as the list of CRCs of a commit has them.
pub fn crcs_of_pages(offset: u64, mut bytes: &[u8], list: &mut Vec<u8>) {
    let (before, pages) = (
        list.len(),
        (offset % PAGE_BYTES + bytes.len() as u64).div_ceil(PAGE_BYTES),
    );
    let mut room = (PAGE_BYTES - offset % PAGE_BYTES) as usize;
    while !bytes.is_empty() {
        let (page, rest) = bytes.split_at(bytes.len().min(room));
        list.extend_from_slice(&checksum::crc32c(page).to_le_bytes());
        (bytes, room) = (rest, PAGE);
    }
    debug_assert_eq!(
        list.len() - before,
        pages as usize * PAGE_CRC_SIZE,
        "a CRC for each page"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Vec<u8> {
        (0..PAGE).map(|n| (n * n / 7) as u8).collect()
    }

    fn of(start: usize, len: usize) -> PageChecksum {
        PageChecksum::of(start as u64, &page()[start..start + len]).unwrap()
    }

    #[test]
    fn comes_back_as_written() {
        for (start, len) in [(0, 1), (0, PAGE), (1, PAGE - 1), (4095, 1), (100, 2000)] {
            let known = of(start, len);
            assert_eq!(PageChecksum::decode(known.encode()), Ok(Some(known)));
            assert!(known.holds(&page()));
        }
        assert_eq!(PageChecksum::decode(0), Ok(None));
        for (start, len) in [(0, 0), (0, 4097), (1, 4096), (4096, 1), (u64::MAX, 2)] {
            assert_eq!(PageChecksum::new(start, len, 0), None, "{start} {len}");
        }
    }

    #[test]
    fn any_flipped_bit_of_what_it_covers_is_noticed_and_no_other() {
        let known = of(1000, 96);
        for byte in 0..PAGE {
            let mut bad = page();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(known.holds(&bad), !(1000..1096).contains(&byte), "byte {byte}");
        }
    }

    #[test]
    fn up_to_three_flipped_bits_of_the_word_are_noticed() {
        let word = of(1000, 96).encode();
        for (a, b, c) in (0..64).flat_map(|a| (a..64).flat_map(move |b| (b..64).map(move |c| (a, b, c)))) {
            let bad = word ^ (1 << a | 1 << b | 1 << c);
            assert!(PageChecksum::decode(bad).is_err(), "bits {a} {b} {c}");
        }
    }

    #[test]
    fn grows_at_its_end() {
        let all = page();
        assert_eq!(of(10, 20).with(&all[30..500]), Some(of(10, 490)));
        assert_eq!(of(10, 20).with(&all[30..]), Some(of(10, PAGE - 10)));
        assert_eq!(of(10, 20).with(&[0; PAGE]), None);
        assert_eq!(of(10, 20).end(), 30);
    }

    #[test]
    fn a_list_has_one_crc_for_each_page() {
        let bytes = [page(), page()].concat();
        let mut list = Vec::new();
        crcs_of_pages(1000, &bytes[..5000], &mut list);
        let crc = |range: std::ops::Range<usize>| checksum::crc32c(&bytes[range]).to_le_bytes();
        assert_eq!(list, [crc(0..3096), crc(3096..5000)].concat());
        list.clear();
        crcs_of_pages(8192, &bytes, &mut list);
        assert_eq!(list, [crc(0..4096), crc(4096..8192)].concat());
    }
}
