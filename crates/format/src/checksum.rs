//! The checksum of everything on the media but the segment table: CRC-32C.
//!
//! When fuzzed (`cfg(fuzzing)`) every checksum is 0, on writing and on reading: a fuzzer would otherwise hardly ever get
//! past it to the code that it is to try.

/// Of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// Goes on from `crc` with more bytes.
pub(crate) fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        0
    } else {
        polvo_pmem::crc32c_append(crc, bytes)
    }
}
