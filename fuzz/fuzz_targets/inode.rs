//! An inode slot: its identity, its attributes, the beginning of its log.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_format::{INODE_SIZE, INODE_VIEW_SIZE, Ino, InodeHead, InodeView, LINE, LogEntries, RegionHeader, RegionId};

fuzz_target!(|bytes: &[u8]| {
    let ino = Ino::new(RegionId(1), 77);
    let _ = InodeHead::decode(bytes, ino);
    if let Some(line) = bytes.first_chunk::<LINE>() {
        let _ = RegionHeader::decode(line);
    }
    if let (Ok(view), Some(units)) = (InodeView::decode(bytes, ino), bytes.get(INODE_VIEW_SIZE..INODE_SIZE)) {
        let _ = LogEntries::new(ino, view.tail.version(), 0, units).count();
    }
});
