//! An inode slot: its identity, its attributes, the beginning of its log.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{INODE_SIZE, Ino, InodeHead, InodeView, LINE, LogEntries, RegionHeader, RegionId};

fuzz_target!(|bytes: &[u8]| {
    let ino = Ino::new(RegionId(1), 77);
    let _ = InodeHead::decode(bytes, ino);
    if let Some(line) = bytes.first_chunk::<LINE>() {
        let _ = RegionHeader::decode(line);
    }
    let Some(slot) = bytes.first_chunk::<INODE_SIZE>() else {
        return;
    };
    if let Ok(view) = InodeView::decode(slot, ino) {
        let version = view.tail.version();
        let _ = LogEntries::new(ino, version, 0, view.units.as_flattened()).count();
    }
});
