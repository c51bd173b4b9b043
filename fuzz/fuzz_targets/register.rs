//! What a pool keeps of the cluster map: a copy with its header, and the value alone.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::RegisterSlot;
use polvo_proto::KeptMap;

fn value(bytes: &[u8]) {
    if let Ok(kept) = KeptMap::decode(bytes) {
        assert_eq!(
            KeptMap::decode(&kept.encode()),
            Ok(kept),
            "what was read comes back as written"
        );
    }
}

fuzz_target!(|bytes: &[u8]| {
    value(bytes);
    let owner = [7; 16];
    if let Ok(Some(slot)) = RegisterSlot::decode(bytes, &owner) {
        let again = slot.encode(&owner);
        assert_eq!(
            RegisterSlot::decode(&again, &owner),
            Ok(Some(slot)),
            "what was read comes back as written"
        );
        value(slot.value);
    }
});
