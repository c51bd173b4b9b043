//! What is written: bytes that tell which write they come from, and from where in it.

/// Identifies a write in a run; 0 stands for bytes nobody has written (zeros).
pub type Tag = u32;

/// Byte `at` of write `tag`.
pub fn byte(tag: Tag, at: u64) -> u8 {
    if tag == 0 {
        return 0;
    }
    let mixed = (u64::from(tag) << 20 ^ (at >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (8 * (at & 7))) as u8
}

/// The bytes of a write.
pub fn bytes(tag: Tag, len: u64) -> Vec<u8> {
    (0..len).map(|at| byte(tag, at)).collect()
}
