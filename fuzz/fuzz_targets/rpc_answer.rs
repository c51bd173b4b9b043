//! What a node answers.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_proto::{decode_answer, encode_answer};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(answer) = decode_answer(bytes) {
        assert_eq!(
            decode_answer(&encode_answer(&answer)),
            Ok(answer),
            "what was read comes back as written"
        );
    }
});
