//! What a client sends to a node.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_proto::Call;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(call) = Call::decode(bytes) {
        assert_eq!(
            Call::decode(&call.encode()),
            Ok(call),
            "what was read comes back as written"
        );
    }
});
