//! Reading an inode from the media: its first line, its log page by page, its mapping. Nothing is believed that is not
//! checked: every page says whose it is and which, so a chain of pages cannot loop or stray into another log.

use crate::RegionError;
use crate::dram_inode::{Body, Inode, XATTR_BROKEN_OFF};
use crate::layout::UNIT;
use crate::origins::Origins;
use crate::store::Store;
use polvo_format::{
    FileKind, Floor, FormatError, INLINE_UNITS, INODE_SIZE, INODE_UNITS, Ino, InodeHead, LINE, LogEntries, LogPage,
    PAGE, PAGE_UNITS, REGION_FLOOR, REGION_SEQUENCE, SequenceLimit, Tail, UnitPlace,
};
use polvo_proto::{FsError, SegmentClass};

/// Slots read at a time.
const SLOTS_AT_ONCE: usize = 256;

/// Longest log of a directory, in pages, whose names are kept even where counting them would do.
const COUNTED_PAGES_MIN: u64 = 16;

/// What becomes of the names of directories.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// kept
    Kept,
    /// counted where there are many, so that reading them all takes no memory
    Counted,
}

/// How much of a log must be readable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whole {
    /// all of it
    Must,
    /// a transaction is just appending names or links to it (never mappings): what comes before that
    AsFarAsItGoes,
}

/// What reading from the media brings besides inodes.
#[derive(Default)]
pub(crate) struct Reading {
    /// bytes read
    pub bytes: u64,
    /// the requests that the logs name, if they are wanted
    pub origins: Option<Origins>,
}

impl Store {
    /// Reads a slot's first line and the rest of its inode.
    pub fn read_slot(&self, slot: u64) -> [u8; INODE_SIZE] {
        let mut bytes = [0; INODE_SIZE];
        self.read(slot * INODE_SIZE as u64, &mut bytes);
        bytes
    }

    /// The floor of a region whose first segment is here.
    pub fn read_floor(&self) -> Result<Floor, FormatError> {
        Floor::decode(self.read_word(REGION_FLOOR))
    }

    /// Where the numbers of its transactions end that may have been used.
    pub fn read_sequence(&self) -> Result<SequenceLimit, FormatError> {
        SequenceLimit::decode(self.read_word(REGION_SEQUENCE))
    }

    /// Calls with each inode slot that is not all zeros, in order, and its bytes.
    pub fn each_slot(&self, with: &mut dyn FnMut(u64, &[u8; INODE_SIZE])) {
        for (index, _, _) in self.segments().filter(|s| s.2 == SegmentClass::Inodes) {
            self.each_slot_of(index, with);
        }
    }

    /// As [`Self::each_slot`], in one segment.
    pub fn each_slot_of(&self, index: u32, with: &mut dyn FnMut(u64, &[u8; INODE_SIZE])) {
        let mut bytes = vec![0; SLOTS_AT_ONCE * INODE_SIZE];
        let in_segment = (1u64 << self.segment_shift()) / INODE_SIZE as u64;
        let first = u64::from(index) * in_segment;
        for chunk in (first..first + in_segment).step_by(SLOTS_AT_ONCE) {
            self.read(chunk * INODE_SIZE as u64, &mut bytes);
            for (slot, bytes) in (chunk..).zip(bytes.as_chunks::<INODE_SIZE>().0) {
                // slot 0 is the region's header
                if slot != 0 && *bytes != [0; INODE_SIZE] {
                    with(slot, bytes);
                }
            }
        }
    }

    /// Loads the inode of a slot. ESTALE when it is free; damage is an error that names the place.
    pub fn load(&self, slot: u64) -> Result<Inode, RegionError> {
        let bytes = self.read_slot(slot);
        let ino = self.ino(slot);
        let offset = slot * INODE_SIZE as u64;
        let head = InodeHead::decode(&bytes, ino).map_err(|e| self.corrupt("inode", offset, e))?;
        let reading = &mut Reading::default();
        self.load_from(ino, &head, &bytes, Whole::Must, Names::Kept, reading)
    }

    /// As [`Self::load`], from an inode's bytes.
    pub fn load_from(
        &self,
        ino: Ino,
        head: &InodeHead,
        bytes: &[u8; INODE_SIZE],
        whole: Whole,
        names: Names,
        reading: &mut Reading,
    ) -> Result<Inode, RegionError> {
        let kind = head.kind.ok_or(FsError::Stale)?;
        let mut inode = Inode::new(ino, kind, head);
        let slot_offset = ino.slot() * INODE_SIZE as u64;
        let units = head.tail.units();
        if units == 0 && whole == Whole::Must {
            return Err(self.corrupt("inode", slot_offset, "log without a checkpoint"));
        }
        let needed = UnitPlace::pages(units);
        if names == Names::Counted && needed > COUNTED_PAGES_MIN && kind == FileKind::Directory {
            inode.body = Body::Counted(Box::default());
        }
        inode.pages = match self.follow_pages(ino, head, needed) {
            Err(_) if whole == Whole::AsFarAsItGoes => self.follow_pages(ino, head, 0)?,
            pages => pages?,
        };
        assert!(
            inode.pages.len() as u64 >= needed || whole == Whole::AsFarAsItGoes,
            "the log has the pages up to its tail"
        );
        reading.bytes += (INODE_SIZE + inode.pages.len() * PAGE) as u64;

        let here = INODE_UNITS as usize..INODE_UNITS as usize + units.min(INLINE_UNITS) as usize * UNIT;
        let mut applied = self.apply_units(&mut inode, head.tail, 0, &bytes[here], slot_offset, reading);
        let mut page = Vec::new();
        for n in 0..needed.min(inode.pages.len() as u64) {
            if applied.is_err() {
                break;
            }
            let offset = inode.pages[n as usize];
            page.resize(PAGE, 0);
            self.read(offset, &mut page);
            let start = INLINE_UNITS + n * PAGE_UNITS;
            let end = (units - start).min(PAGE_UNITS) as usize;
            let units = &page[LINE..LINE + end * UNIT];
            applied = self.apply_units(&mut inode, head.tail, start, units, offset, reading);
        }
        assert!(
            inode.slot == ino.slot() && inode.attr.ino == ino,
            "an inode lies in its slot"
        );
        let is_broken_off = inode.drop_partial_xattr();
        if whole == Whole::Must {
            applied?;
            if is_broken_off {
                return Err(self.corrupt("log", slot_offset, XATTR_BROKEN_OFF));
            }
        }
        self.check_mapping(&inode)?;
        Ok(inode)
    }

    fn apply_units(
        &self,
        inode: &mut Inode,
        tail: Tail,
        start: u64,
        units: &[u8],
        offset: u64,
        reading: &mut Reading,
    ) -> Result<(), RegionError> {
        let mut hidden = Vec::new();
        let (ino, shift) = (inode.attr.ino, self.segment_shift());
        inode.change(tail, |inode, mut index| {
            for record in LogEntries::new(ino, tail.version(), start, units) {
                let record = record.map_err(|e| self.corrupt("log", offset, e))?;
                if (record.position == 0) != matches!(record.entry, polvo_format::Entry::Init(_)) {
                    return Err(self.corrupt("log", offset, "checkpoint is not the first entry"));
                }
                inode
                    .apply(self.region, shift, &record, index.as_deref_mut(), &mut hidden)
                    .map_err(|e| self.corrupt("log", offset, format!("{e} at position {}", record.position)))?;
                hidden.clear();
                if let Some(origins) = &mut reading.origins {
                    origins.note_record(inode.inode_ref(), &record);
                }
            }
            Ok(())
        })
    }

    /// The pages of a log: the first `needed` must be there; what is linked behind them is taken along.
    pub fn follow_pages(&self, ino: Ino, head: &InodeHead, needed: u64) -> Result<Vec<u64>, RegionError> {
        let mut pages = Vec::new();
        let mut from = ino.slot() * INODE_SIZE as u64;
        let mut next = head.log_page.0;
        loop {
            let number = pages.len() as u64;
            let must = number < needed;
            if next == 0 && !must {
                return Ok(pages);
            }
            let header = self.log_page_from_media(next).then(|| {
                let mut bytes = [0; LINE];
                self.read(next, &mut bytes);
                LogPage::decode(&bytes)
            });
            match header {
                Some(Ok(page)) if page.belongs(ino, head.tail.version(), number) => {
                    pages.push(next);
                    from = next;
                    next = page.next.0;
                }
                _ if !must => return Ok(pages),
                None => return Err(self.corrupt("log", from, format!("link to +{next:#x}, which is no log page"))),
                Some(Err(e)) => return Err(self.corrupt("log", next, e)),
                Some(Ok(page)) => {
                    let why = format!(
                        "page {} of {:?} where page {number} of {ino:?} belongs",
                        page.page, page.ino
                    );
                    return Err(self.corrupt("log", next, why));
                }
            }
        }
    }

    fn check_mapping(&self, inode: &Inode) -> Result<(), RegionError> {
        let Body::File(view) = &inode.body else {
            return Ok(());
        };
        for (offset, extent) in view.read().index.iter().filter(|(_, e)| !e.inline) {
            if self.data_from_media(extent.gpa, extent.len).is_none() {
                let why = format!(
                    "{} bytes at offset {offset} mapped to {:?}, which holds no data",
                    extent.len, extent.gpa
                );
                return Err(self.corrupt("mapping", inode.slot * INODE_SIZE as u64, why));
            }
        }
        Ok(())
    }
}
