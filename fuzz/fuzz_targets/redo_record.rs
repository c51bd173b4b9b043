//! A slot of the redo log.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{RedoRecord, RedoState};

fuzz_target!(|bytes: &[u8]| {
    if let Some(word) = bytes.first_chunk() {
        let _ = RedoState::decode(u64::from_le_bytes(*word));
    }
    let _ = RedoRecord::decode(bytes);
});
