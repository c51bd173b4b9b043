//! Maps keyed by small numbers (slots, pages): a multiplicative hash, since SipHash would cost more than the lookup.
//! Nothing may depend on the order of such a map.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Map keyed by a number that nobody chooses to do harm.
pub(crate) type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Fibonacci hashing of one 64-bit number.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}
