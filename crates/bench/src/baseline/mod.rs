//! What the machine gives: the floor under every figure. Each baseline is measured in the same run, in turn with what is
//! compared with it.

pub mod files;
pub mod libfabric;
pub mod memory;
pub mod ping_pong;
pub mod socket;

/// Offsets of random 4 KiB pages in `len` bytes; a fixed linear congruential sequence, so that both sides of a ratio touch
/// the same pages.
pub fn pages(len: u64, ops: usize) -> impl Iterator<Item = u64> {
    let pages = (len / 4096).max(1);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..ops).map(move |_| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % pages * 4096
    })
}
