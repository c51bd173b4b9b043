//! A page of a region beside the same page of a whole copy, where they differ: which of the two is right, and the other one is put right.
//!
//! What the region has is right, unless its checksums say that it is damaged; then the copy's bytes are, if they make it sound. Invariants:
//!
//! - bytes are taken from a copy that had all that was done in the region when the page was read ([`Region::read_page`]), and only where
//!   the page has not changed since;
//! - nothing that is damaged is sent to a copy;
//! - what is stored here is stored as by any other change, and what a copy is to get goes with a record: other copies follow, too.
//!
//! Inodes that recovery found damaged are left to `polvo fsck`: what they use is not known, and may have been given to others.

use crate::Region;
use crate::load::{Names, Reading, Whole};
use crate::planted::{Planted, planted};
use crate::store::Store;
use polvo_format::{
    FormatError, INODE_LOCK, INODE_SIZE, Ino, InodeHead, InodeView, LINE, LogPage, PAGE, PageChecksum, REGION_FLOOR,
    REGION_SEQUENCE, RegionHeader, RegionOffset, SequenceLimit,
};
use polvo_proto::{DamagedData, SegmentClass};

const PAGE_BYTES: u64 = PAGE as u64;

/// A page, with the word that is its checksum where it holds file data (else 0).
#[derive(Clone, PartialEq, Eq)]
pub struct PageImage {
    /// what it holds
    pub bytes: Box<[u8; PAGE]>,
    /// as on the media
    pub word: u64,
}

/// What became of a page that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reconciled {
    /// nothing leads to what differs
    Unused,
    /// the copy gets it with the next record
    Sent,
    /// the region's page was damaged, and is what the copy's is; whose it is, if it is an inode's
    Taken(Option<Ino>),
    /// the region's page is damaged, or is just being changed, and the copy's does not help
    Left,
}

impl Region {
    /// Where in the region the page of file data lies that was found damaged, as far as it is still the file's.
    pub fn page_of(&mut self, damaged: &DamagedData) -> Option<RegionOffset> {
        let mut parts = Vec::new();
        let view = self.file_view(damaged.inode).ok()?;
        let (_, unchanged) = view.plan(damaged.offset, 1, 2, &mut parts);
        drop(unchanged);
        let at = parts.first()?.at?;
        Some(RegionOffset(at.0 / PAGE_BYTES * PAGE_BYTES))
    }

    /// A page as it is now; `None` where the region has none.
    pub fn read_page(&self, at: RegionOffset) -> Option<PageImage> {
        let is_page = at.0.is_multiple_of(PAGE_BYTES) && self.store.has_segment(at.0);
        is_page.then(|| {
            let is_summed = self.store.checksums && self.store.class(at.0) == SegmentClass::Data;
            // the word first: it covers nothing that is stored after it
            let word = if is_summed { self.store.checksum_word(at.0) } else { 0 };
            let mut bytes = Box::new([0; PAGE]);
            self.store.read(at.0, &mut bytes[..]);
            PageImage { bytes, word }
        })
    }

    /// Is this a page of file data whose checksum is not that of what it holds?
    pub fn is_page_damaged(&self, at: RegionOffset) -> bool {
        let image = self
            .read_page(at)
            .filter(|_| self.store.class(at.0) == SegmentClass::Data);
        image.is_some_and(|image| match PageChecksum::decode(image.word) {
            Ok(known) => known.is_some_and(|known| !known.holds(&image.bytes[..])),
            Err(_) => true,
        })
    }

    /// Puts right what differs in a page: `ours` is what it was when the copy had all that was done here, and `theirs` is the copy's.
    /// `None`: the copy may lack records; then only file data is taken that our own checksum is of.
    pub fn reconcile(&mut self, at: RegionOffset, ours: Option<&PageImage>, theirs: &PageImage) -> Reconciled {
        self.reap();
        let Some(now) = self.read_page(at) else {
            return Reconciled::Unused;
        };
        let may_take = ours == Some(&now);
        let reconciled = match self.store.class(at.0) {
            SegmentClass::Data => self.reconcile_data(at.0, &now, theirs, may_take),
            SegmentClass::Inodes => self.reconcile_slots(at.0, &now, theirs, may_take),
            SegmentClass::Logs => self.reconcile_log(at.0, &now, theirs, may_take),
            SegmentClass::Register => Reconciled::Unused,
        };
        self.store.commit_point();
        reconciled
    }

    fn reconcile_data(&mut self, at: u64, ours: &PageImage, theirs: &PageImage, may_take: bool) -> Reconciled {
        let page = at / PAGE_BYTES;
        let is_delegated = || {
            let mut delegated = self.sessions.delegated();
            delegated.any(|(first, pages)| (first..first + pages).contains(&page))
        };
        let run = self.store.space.page_run(at, 1);
        let mut quarantined = self.store.space.quarantined_runs();
        let is_freed = quarantined
            .any(|freed| freed.segment == run.segment && (freed.start..freed.start + freed.len).contains(&run.start));
        drop(quarantined);
        if !self.store.space.is_in_use(at, PAGE_BYTES) || is_freed || is_delegated() {
            return Reconciled::Unused;
        }
        let known = PageChecksum::decode(ours.word);
        let is_sound = matches!(&known, Ok(known) if known.is_none_or(|known| known.holds(&ours.bytes[..])));
        if is_sound || planted(Planted::DamageSent) {
            self.store.note_page(at);
            // the rest of a page that was used before may hold anything: it is made the same, and is nothing to complain about
            let is_rest =
                matches!(&known, Ok(Some(known)) if ours.word == theirs.word && known.holds(&theirs.bytes[..]));
            return if is_rest { Reconciled::Unused } else { Reconciled::Sent };
        }
        let Ok(Some(right)) = PageChecksum::decode(theirs.word) else {
            return Reconciled::Left;
        };
        let is_same = known.is_err() && may_take || ours.word == theirs.word;
        if !is_same || !right.holds(&theirs.bytes[..]) {
            return Reconciled::Left;
        }
        let covered = right.range();
        let bytes = &theirs.bytes[covered.start as usize..covered.end as usize];
        self.store.write_data(at + covered.start, bytes);
        self.store.write_checksums(at, 1, || theirs.word);
        Reconciled::Taken(None)
    }

    fn reconcile_slots(&mut self, at: u64, ours: &PageImage, theirs: &PageImage, may_take: bool) -> Reconciled {
        let mut reconciled = Reconciled::Unused;
        let slots = ours.bytes.as_chunks::<INODE_SIZE>().0.iter();
        for (slot, (ours, theirs)) in
            (at / INODE_SIZE as u64..).zip(slots.zip(theirs.bytes.as_chunks::<INODE_SIZE>().0))
        {
            if ours == theirs {
                continue;
            }
            let offset = slot * INODE_SIZE as u64;
            let ino = self.store.ino(slot);
            let one = if self.locked.contains(slot) || is_held(ours) || self.store.damaged.contains_key(&slot) {
                Reconciled::Left
            } else if self.store.is_sound(slot, ours) && !self.store.is_staler(slot, ours, theirs) {
                self.store.note_as_it_is(offset, ours);
                Reconciled::Sent
            } else if may_take && !is_held(theirs) && self.store.is_sound(slot, theirs) {
                self.store.write(offset, theirs);
                Reconciled::Taken((slot != 0).then_some(ino))
            } else {
                Reconciled::Left
            };
            reconciled = reconciled.worse(one);
        }
        reconciled
    }

    fn reconcile_log(&mut self, at: u64, ours: &PageImage, theirs: &PageImage, may_take: bool) -> Reconciled {
        let owner = |page: &PageImage| LogPage::decode(&page.bytes[..]).ok().map(|page| page.ino);
        let Some(slot) = owner(ours)
            .or_else(|| owner(theirs))
            .and_then(|ino| self.store.slot_of(ino))
        else {
            return Reconciled::Unused;
        };
        if self.locked.contains(slot) || self.store.damaged.contains_key(&slot) {
            return Reconciled::Left;
        }
        match self.store.load(slot) {
            // what is linked behind the tail comes with the next commit
            Ok(inode) if !inode.pages.contains(&at) => Reconciled::Unused,
            Ok(_) => {
                self.store.note_as_it_is(at, &ours.bytes[..]);
                Reconciled::Sent
            }
            Err(_) if !may_take => Reconciled::Left,
            Err(_) => {
                self.store.write(at, &theirs.bytes[..]);
                match self.store.load(slot) {
                    Ok(inode) if inode.pages.contains(&at) => Reconciled::Taken(Some(inode.attr.ino)),
                    _ => {
                        self.store.write(at, &ours.bytes[..]);
                        Reconciled::Left
                    }
                }
            }
        }
    }
}

/// Does a transaction have the inode locked?
fn is_held(bytes: &[u8; INODE_SIZE]) -> bool {
    bytes[INODE_LOCK as usize..][..8] != [0; 8]
}

impl Reconciled {
    /// What is to be told of two parts of a page.
    fn worse(self, other: Reconciled) -> Reconciled {
        let rank = |one| match one {
            Reconciled::Unused => 0,
            Reconciled::Sent => 1,
            Reconciled::Taken(_) => 2,
            Reconciled::Left => 3,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

impl Store {
    /// Can an inode be read that has these bytes in its slot, and the log that they lead to? Slot 0 is the region's header.
    fn is_sound(&self, slot: u64, bytes: &[u8; INODE_SIZE]) -> bool {
        if slot == 0 {
            return self.is_header(bytes);
        }
        let ino = self.ino(slot);
        let Ok(head) = InodeHead::decode(bytes, ino) else {
            return false;
        };
        if head.kind.is_none() {
            return true;
        }
        let reading = &mut Reading::default();
        let loaded = self.load_from(ino, &head, bytes, Whole::Must, Names::Counted, reading);
        loaded.is_ok()
    }

    /// Are the attributes of these bytes damaged, and those of the others not, which are of the same log?
    fn is_staler(&self, slot: u64, ours: &[u8; INODE_SIZE], theirs: &[u8; INODE_SIZE]) -> bool {
        let ino = self.ino(slot);
        let is_torn = |bytes| matches!(InodeView::decode(bytes, ino), Err(FormatError::Torn));
        let heads = [ours, theirs].map(|bytes| InodeHead::decode(bytes, ino).ok());
        slot != 0 && heads[0] == heads[1] && is_torn(ours) && !is_torn(theirs)
    }

    fn is_header(&self, bytes: &[u8; INODE_SIZE]) -> bool {
        let line = bytes[..LINE].try_into().expect("a line is 64 bytes");
        let word = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().expect("a word is 8 bytes"));
        matches!(RegionHeader::decode(line), Ok(Some(header)) if header.region == self.region)
            && polvo_format::Floor::decode(word(REGION_FLOOR)).is_ok()
            && SequenceLimit::decode(word(REGION_SEQUENCE)).is_ok()
    }
}
