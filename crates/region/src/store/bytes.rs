//! All loads and stores of a region. Nothing else in this crate stores to segments of a region that is served, so that what
//! is stored here is what replicas are told ([`crate::capture`]).

use super::Store;
use crate::RemotePart;
use crate::capture::Capture;
use crate::flipped_bit::flip_back;
use crate::planted::{Planted, planted};
use crate::pool::encode_parts;
use polvo_format::{
    Change, INODE_ATTRIBUTES, INODE_CHECKSUMS, INODE_SIZE, INODE_TAIL, LINE, PAGE, PAGE_CHECKSUM_SIZE, RegionOffset,
    Tail, TxnId,
};
use polvo_proto::SegmentClass;
use std::cell::RefCell;

impl Store {
    // ---- what replicas are told

    pub fn set_capture(&mut self, capture: Option<Capture>) {
        self.capture = capture.map(|capture| Box::new(RefCell::new(capture)));
    }

    pub fn captured(&mut self) -> Option<&mut Capture> {
        Some(self.capture.as_mut()?.get_mut())
    }

    #[inline]
    pub fn last_record(&self) -> Option<polvo_format::Lsn> {
        Some(self.capture.as_ref()?.borrow().last())
    }

    #[inline]
    pub fn recorded_bytes(&self) -> u64 {
        self.capture
            .as_ref()
            .map_or(0, |capture| capture.borrow().recorded_bytes())
    }

    #[inline]
    pub fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    #[cold]
    pub fn note(&self, change: Change<'_>) {
        if let Some(capture) = &self.capture {
            capture.borrow_mut().note(change);
        }
    }

    #[cold]
    fn note_bytes(&self, offset: u64, bytes: &[u8]) {
        let at = RegionOffset(offset);
        self.note(Change::Bytes { at, bytes });
    }

    /// Others have stored bytes that the next record is about, and they are durable: file data, log pages.
    #[cold]
    pub fn note_run(&self, offset: u64, len: u64) {
        self.check_within(offset, len as usize);
        let at = RegionOffset(offset);
        let len = u32::try_from(len).expect("a run lies in a segment");
        self.note(Change::Run { at, len });
    }

    /// Parts elsewhere of what this record decides.
    #[cold]
    pub fn note_decision(&self, txn: TxnId, remote: &[RemotePart]) {
        let mut record = Vec::new();
        encode_parts(&mut record, self.region, txn, remote);
        self.note(Change::Decided { record: &record });
    }

    /// What was stored since the last commit point belongs together and is durable.
    #[inline]
    pub fn end_record(&self) {
        if self.is_captured() {
            self.end_captured();
        }
    }

    #[cold]
    fn end_captured(&self) {
        if let Some(capture) = &self.capture {
            capture.borrow_mut().end_record();
        }
    }

    // ---- bytes

    /// Neighbours in the region need not be neighbours in the pool: what is done at once lies in one segment.
    fn check_within(&self, offset: u64, len: usize) {
        debug_assert!(
            self.is_within(offset, len as u64, self.class(offset)),
            "{len} bytes at {offset:#x} lie in a segment of ours"
        );
    }

    /// Reads at a region offset of ours.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.check_within(offset, into.len());
        self.pmem.read(self.at(offset), into);
    }

    /// Reads a word.
    #[inline]
    pub fn read_word(&self, offset: u64) -> u64 {
        debug_assert!(offset.is_multiple_of(8), "word at {offset:#x}");
        self.pmem.read_u64(self.at(offset))
    }

    /// Stores and starts the write-back: durable after the next fence.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let at = self.put(offset, bytes);
        self.pmem.flush(at, bytes.len() as u64);
    }

    /// Stores what is flushed with something else in its line, or need not be durable.
    #[inline]
    pub fn write_unflushed(&self, offset: u64, bytes: &[u8]) {
        self.put(offset, bytes);
    }

    /// Stores; gives where that is in the pool.
    #[inline]
    fn put(&self, offset: u64, bytes: &[u8]) -> u64 {
        self.check_within(offset, bytes.len());
        debug_assert!(!bytes.is_empty(), "nothing is stored at {offset:#x}");
        if self.is_captured() {
            self.note_bytes(offset, bytes);
        }
        let at = self.at(offset);
        self.pmem.write(at, bytes);
        at
    }

    /// Stores a word and starts the write-back.
    #[inline]
    pub fn write_word(&self, offset: u64, word: u64) {
        let at = self.put_word(offset, word);
        self.pmem.flush(at, 8);
    }

    /// As [`Self::write_unflushed`], a word.
    #[inline]
    pub fn write_word_unflushed(&self, offset: u64, word: u64) {
        self.put_word(offset, word);
    }

    #[inline]
    fn put_word(&self, offset: u64, word: u64) -> u64 {
        debug_assert!(offset.is_multiple_of(8), "word at {offset:#x}");
        if self.is_captured() {
            self.note_bytes(offset, &word.to_le_bytes());
        }
        let at = self.at(offset);
        self.pmem.write_u64(at, word);
        at
    }

    /// Stores what a commit changes of an inode, the tail last, and starts the write-back of its first line. (The attributes lie
    /// in the second one: a cache, which recovery does not believe.)
    #[inline]
    pub fn write_head(&self, slot: u64, attributes: &[u8; LINE], checksums: u64, tail: Tail) {
        let offset = slot * INODE_SIZE as u64;
        if self.is_captured() {
            self.note_bytes(offset + INODE_ATTRIBUTES, attributes);
            self.note_bytes(offset + INODE_CHECKSUMS, &checksums.to_le_bytes());
            self.note_bytes(offset + INODE_TAIL, &tail.0.to_le_bytes());
        }
        let at = self.at(offset);
        self.pmem.write(at + INODE_ATTRIBUTES, attributes);
        self.pmem.write_u64(at + INODE_CHECKSUMS, checksums);
        self.pmem.write_u64(at + INODE_TAIL, tail.0);
        self.pmem.flush(at, LINE as u64);
    }

    /// Replicas get bytes of an inode or a log that lie here already.
    pub fn note_as_it_is(&self, offset: u64, bytes: &[u8]) {
        if self.is_captured() {
            self.note_bytes(offset, bytes);
        }
    }

    /// Replicas get a page of file data, and its checksum, as they are.
    pub fn note_page(&self, offset: u64) {
        if self.is_captured() {
            self.note_run(offset, PAGE as u64);
            if self.checksums {
                self.note_checksums(offset, 1);
            }
        }
    }

    /// Stores bytes of file data: durable after the next fence.
    #[inline]
    pub fn write_data(&self, offset: u64, bytes: &[u8]) {
        debug_assert_eq!(self.class(offset), SegmentClass::Data, "file data go to data pages");
        if planted(Planted::LastLineNotFlushed) {
            let at = self.at(offset);
            let whole_lines = bytes.len().saturating_sub((at as usize + bytes.len()) % LINE);
            self.pmem.write_streaming(at, &bytes[..whole_lines]);
            self.pmem.write(at + whole_lines as u64, &bytes[whole_lines..]);
            return;
        }
        self.write_run(offset, bytes);
    }

    /// Stores what replicas are sent from here: file data, and log pages to which nothing leads yet. Durable after the next
    /// fence.
    #[inline]
    pub fn write_run(&self, offset: u64, bytes: &[u8]) {
        self.check_within(offset, bytes.len());
        if self.is_captured() {
            self.note_run(offset, bytes.len() as u64);
        }
        self.pmem.write_streaming(self.at(offset), bytes);
    }

    /// Has the line of an offset fetched that will be written soon.
    #[inline]
    pub fn fetch_to_write(&self, offset: u64) {
        self.pmem.fetch_to_write(self.at(offset));
    }

    /// Lets go of a word that holds this, durable after the next fence. True if it did.
    pub fn clear_word(&self, offset: u64, holds: u64) -> bool {
        let at = self.at(offset);
        let found = self.pmem.cas_u64(at, holds, 0);
        self.pmem.flush(at, 8);
        found == holds
    }

    /// Zeroes all of a segment of ours, durably.
    pub fn zero_segment(&self, index: u32) {
        debug_assert!(!self.is_captured(), "only what is not served yet is zeroed");
        let at = self.at(u64::from(index) << self.shift);
        self.pmem.zero_streaming(at, 1 << self.shift);
        self.pmem.fence();
    }

    /// Flips bit number `bit` from a word on, durably.
    pub fn flip_back(&self, offset: u64, bit: usize) {
        debug_assert!(!self.is_captured(), "repairs are made offline");
        flip_back(&self.pmem, self.at(offset), bit);
    }

    /// What was stored before is durable, and what is stored after it comes after it.
    #[inline]
    pub fn fence(&self) {
        self.pmem.fence();
    }

    /// A fence with which a change has happened.
    #[inline]
    pub fn commit_point(&self) {
        self.pmem.fence();
        self.end_record();
    }

    // ---- checksums of file data, which lie outside of the region

    /// Where the checksum of a data page lies in the pool.
    #[inline]
    fn checksum_at(&self, offset: u64) -> u64 {
        debug_assert_eq!(
            self.class(offset),
            SegmentClass::Data,
            "only file data have such checksums"
        );
        let at = self.pool.layout().checksum_offset(self.at(offset));
        debug_assert!(
            at < self.pool.layout().segments_offset,
            "checksums lie before the segments"
        );
        at
    }

    /// The word of the page in which an offset lies.
    pub fn checksum_word(&self, offset: u64) -> u64 {
        self.pmem.read_u64(self.checksum_at(offset))
    }

    /// Stores the words of so many pages, from that on in which an offset lies: durable after the next fence.
    #[inline]
    pub fn write_checksums(&self, offset: u64, pages: u64, word: impl FnMut() -> u64) {
        self.write_own_checksums(offset, pages, word);
        if self.is_captured() {
            self.note_checksums(offset, pages);
        }
    }

    /// The same, where replicas were told before ([`Store::note_checksum`]).
    #[inline]
    pub fn write_own_checksums(&self, offset: u64, pages: u64, mut word: impl FnMut() -> u64) {
        let first = self.checksum_at(offset);
        let end = first + pages * PAGE_CHECKSUM_SIZE;
        for at in (first..end).step_by(PAGE_CHECKSUM_SIZE as usize) {
            self.pmem.write_u64(at, word());
        }
        if !planted(Planted::ChecksumsNotFlushed) {
            self.pmem.flush(first, end - first);
        }
    }

    #[cold]
    fn note_checksums(&self, offset: u64, pages: u64) {
        let first = self.checksum_at(offset);
        let word = |page| self.pmem.read_u64(first + page * PAGE_CHECKSUM_SIZE).to_le_bytes();
        let words: Vec<[u8; 8]> = (0..pages).map(word).collect();
        self.note_words(offset, &words);
    }

    /// Replicas get the word of the page in which an offset lies.
    #[inline]
    pub fn note_checksum(&self, offset: u64, word: u64) {
        if self.is_captured() {
            self.note_words(offset, &[word.to_le_bytes()]);
        }
    }

    #[cold]
    fn note_words(&self, offset: u64, words: &[[u8; 8]]) {
        let at = RegionOffset(offset / PAGE as u64 * PAGE as u64);
        self.note(Change::Checksums { at, words });
    }
}
