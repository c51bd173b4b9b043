//! The checksum of everything on the media but the segment table: CRC-32C.
//!
//! When fuzzed (`cfg(fuzzing)`) every checksum is 0, on writing and on reading: a fuzzer would otherwise hardly ever get
//! past it to the code that it is to try.

/// Bytes to be summed up in one go: short ones that do not begin at a word cost twice as much.
#[repr(align(8))]
pub(crate) struct Aligned<const N: usize>(pub [u8; N]);

/// Of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// Goes on from `crc` with more bytes.
pub(crate) fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        0
    } else {
        crc32c::crc32c_append(crc, bytes)
    }
}
