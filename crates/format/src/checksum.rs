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

/// CRC-8 (polynomial 0x07, initial 0) of the other seven bytes of a word that checks itself: any two such words differ in four bits.
pub(crate) fn crc8(bytes: [u8; 7]) -> u8 {
    if cfg!(fuzzing) {
        return 0;
    }
    const TABLE: [u8; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x80 != 0 { crc << 1 ^ 0x07 } else { crc << 1 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| TABLE[usize::from(crc ^ byte)])
}
