//! One flipped bit, found by the checksum that it has made wrong.
//!
//! The checksums of the media keep any two valid contents at least four bits apart (`docs/media-format.md`), so the
//! contents at one bit from what is there, if there are any, are what was there: those at two or three bits never show up
//! here, and what was overwritten passes for a flipped bit as often as any checksum fails.

use polvo_pmem::Pmem;
use std::ops::Range;

/// The number of the bit among `bits` whose flip alone makes `bytes` valid; `None` when there is none, or more than one.
/// `bytes` are as they were in the end.
pub(crate) fn flipped_bit(bytes: &mut [u8], bits: Range<usize>, mut valid: impl FnMut(&[u8]) -> bool) -> Option<usize> {
    let mut found = None;
    for bit in bits {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let is_valid = valid(bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if is_valid && found.replace(bit).is_some() {
            return None;
        }
    }
    found
}

/// Flips bit number `bit` from pool offset `at` on, which is that of a word: one atomic store, durable on return.
pub(crate) fn flip_back(pmem: &Pmem, at: u64, bit: usize) {
    let word_at = at + (bit / 64 * 8) as u64;
    pmem.write_u64(word_at, pmem.read_u64(word_at) ^ 1 << (bit % 64));
    pmem.persist(word_at, 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_is_found_and_two_are_not() {
        let good: Vec<u8> = (0..200).collect();
        let crc = crc32c::crc32c(&good);
        let valid = |bytes: &[u8]| crc32c::crc32c(bytes) == crc;
        let all = 0..good.len() * 8;
        for bit in all.clone() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(&mut bad, all.clone(), valid), Some(bit));
            let other = (bit * 7 + 13) % (good.len() * 8);
            if other != bit {
                bad[other / 8] ^= 1 << (other % 8);
                assert_eq!(flipped_bit(&mut bad, all.clone(), valid), None);
            }
        }
    }

    #[test]
    fn a_bit_is_flipped_back_in_its_word() {
        let pmem = Pmem::simulated(4096);
        flip_back(&pmem, 16, 64 + 9);
        let mut bytes = [0; 16];
        pmem.read(16, &mut bytes);
        assert_eq!((bytes[9], bytes.iter().map(|&b| u32::from(b)).sum::<u32>()), (2, 2));
    }
}
