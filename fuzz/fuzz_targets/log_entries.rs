//! Units of a log, with and without a place, and a log page.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{Ino, LogEntries, LogPage, RegionId};

fuzz_target!(|bytes: &[u8]| {
    let ino = Ino::new(RegionId(1), 77);
    let _ = LogPage::decode(bytes);
    for position in [0, 2, 65] {
        let entries = LogEntries::new(ino, 3, position, bytes);
        assert!(
            entries.count() <= bytes.len() / 64 + 1,
            "each entry takes a unit or more"
        );
    }
    let _ = LogEntries::unsealed(position_of(bytes), bytes).count();
});

fn position_of(bytes: &[u8]) -> u64 {
    u64::from(bytes.first().copied().unwrap_or(0))
}
