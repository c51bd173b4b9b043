//! A superblock, in both of its places.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{PAGE, Superblock};

fuzz_target!(|bytes: &[u8]| {
    for at in [0, PAGE as u64] {
        if let Ok(superblock) = Superblock::decode(bytes, at) {
            let again = Superblock::decode(&superblock.encode(), at);
            assert_eq!(again.as_ref(), Ok(&superblock), "what was read comes back as written");
        }
    }
});
