//! Checksums of file data: made by whoever writes, where it copies the bytes anyway, stored by the region, verified by scrubbing and,
//! by whoever wants that, at each read. What lies in the log has checksums of its own.
//!
//! Invariant: *the word of a page that is in use covers bytes of which none has changed since.* Data is copy-on-write, so there are
//! two times at which a word changes. When fresh pages are committed their words are stored before the tail moves, durable with the
//! data. When bytes are added in place behind the last ones of a page, its word is stored after the tail has moved: a word that is
//! lost in a power cut covers less than the file has there, and is right. Bytes are added in place only where the word ends.
//! A writer that made no checksums leaves words of 0.

use crate::dram_inode::Body;
use crate::space::each_page;
use crate::store::Store;
use crate::{PoolSpace, Region};
use polvo_format::{FileKind, LINE, PAGE, PAGE_CRC_SIZE, PageChecksum, PoolLayout};
use polvo_pmem::Pmem;
use polvo_proto::{DamagedData, FsError, ScrubPlace, Scrubbed, WriteRun};

const PAGE_BYTES: u64 = PAGE as u64;

/// What a page was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Sound,
    Unknown,
    Damaged,
}

/// Looks at the page that an offset in the pool lies in. The word is read first: it covers nothing that is stored after it.
fn verify_page(pmem: &Pmem, layout: &PoolLayout, at: u64, page: &mut [u8; PAGE]) -> State {
    let word = pmem.read_u64(layout.checksum_offset(at));
    match PageChecksum::decode(word) {
        Ok(None) => State::Unknown,
        Ok(Some(known)) => {
            pmem.read(at / PAGE_BYTES * PAGE_BYTES, page);
            match known.holds(page) {
                true => State::Sound,
                false => State::Damaged,
            }
        }
        Err(_) => State::Damaged,
    }
}

impl PoolSpace {
    /// The offset of the first damaged page of data among those that bytes at an offset of the pool lie in. They lie in one segment
    /// of data, and stay the file's meanwhile.
    pub fn damaged_page(&self, at: u64, len: u64) -> Option<u64> {
        let layout = self.layout();
        if !layout.has_checksums() {
            return None;
        }
        debug_assert!(
            at >= layout.segments_offset && at + len <= layout.pool_len,
            "data lie in segments"
        );
        let mut page = [0; PAGE];
        let mut damaged = None;
        each_page(at, len, |number, _| {
            let at = number * PAGE_BYTES;
            if damaged.is_none() && verify_page(self.pmem(), layout, at, &mut page) == State::Damaged {
                damaged = Some(at);
            }
        });
        damaged
    }
}

impl Store {
    /// What is known of a data page in use.
    fn page_checksum(&self, offset: u64) -> Option<PageChecksum> {
        PageChecksum::decode(self.checksum_word(offset)).ok().flatten()
    }

    /// Whether bytes may be added in place at an offset behind others in a page that is in use.
    pub fn may_fill(&self, offset: u64) -> bool {
        if !self.checksums {
            return true;
        }
        match PageChecksum::decode(self.checksum_word(offset)) {
            Ok(known) => known.is_none_or(|known| known.end() == offset % PAGE_BYTES),
            Err(_) => false,
        }
    }

    /// Stores the words of the pages that fresh bytes touch; `known` gets where the bytes of a page begin among them, where in the
    /// page, and how many they are. Durable after the next fence.
    fn put_words(&self, offset: u64, len: u64, mut known: impl FnMut(u64, u64, u64) -> Option<PageChecksum>) {
        if !self.checksums || len == 0 {
            return;
        }
        let pages = (offset % PAGE_BYTES + len).div_ceil(PAGE_BYTES);
        let mut done = 0;
        self.write_checksums(offset, pages, || {
            let at = (offset + done) % PAGE_BYTES;
            let bytes = (PAGE_BYTES - at).min(len - done);
            let known = known(done, at, bytes);
            debug_assert!(
                known.is_none_or(|known| known.end() <= PAGE_BYTES),
                "a word covers its page"
            );
            done += bytes;
            known.map_or(0, PageChecksum::encode)
        });
        debug_assert_eq!(done, len, "all bytes are covered");
    }

    /// Stores the checksums of bytes that are stored in fresh pages at an offset. Durable after the next fence.
    pub fn put_checksums_of(&self, offset: u64, bytes: &[u8]) {
        self.put_words(offset, bytes.len() as u64, |from, at, len| {
            PageChecksum::of(at, &bytes[from as usize..][..len as usize])
        });
    }

    /// What becomes of the checksum of a page when bytes are added in place at an offset.
    pub fn filled_checksum(&self, offset: u64, bytes: &[u8]) -> Option<PageChecksum> {
        if !self.checksums {
            return None;
        }
        let known = self.page_checksum(offset)?;
        debug_assert_eq!(known.end(), offset % PAGE_BYTES, "bytes are added where the word ends");
        let grown = known.with(bytes);
        debug_assert!(grown.is_none_or(|grown| grown.end() == known.end() + bytes.len() as u64));
        grown
    }

    /// Stores it, the tail having moved. (A replica has got it with the tail: it puts both in place, or neither.)
    pub fn put_checksum(&self, offset: u64, known: PageChecksum) {
        debug_assert!(known.end() > offset % PAGE_BYTES, "the word covers what was added");
        self.write_own_checksums(offset, 1, || known.encode());
        debug_assert_eq!(self.page_checksum(offset), Some(known), "it is read as it was written");
    }

    /// A commit brings either one CRC for each page that its runs touch, or none.
    pub fn check_crcs(&self, runs: &[WriteRun], crcs: &[u8]) -> Result<(), FsError> {
        let mut pages = 0;
        runs.iter()
            .for_each(|run| each_page(run.gpa.offset().0, run.len, |_, _| pages += 1));
        match crcs.is_empty() || crcs.len() == pages * PAGE_CRC_SIZE {
            true => Ok(()),
            false => Err(FsError::Invalid(format!(
                "{} bytes of checksums for {pages} pages",
                crcs.len()
            ))),
        }
    }

    /// Stores the checksums of a commit's runs; a writer that made none leaves pages of which nothing is known. Durable after the
    /// next fence.
    pub fn put_checksums_of_runs(&self, runs: &[WriteRun], crcs: &[u8]) {
        let mut crcs = crcs.as_chunks::<PAGE_CRC_SIZE>().0.iter();
        for run in runs {
            self.put_words(run.gpa.offset().0, run.len, |_, at, len| {
                PageChecksum::new(at, len, u32::from_le_bytes(*crcs.next()?))
            });
        }
        debug_assert!(crcs.next().is_none() || !self.checksums, "each CRC is of a page");
    }
}

impl Region {
    /// Verifies about `budget` bytes of file data, from a place on ([`ScrubPlace::default`]: from the beginning). Files that are
    /// damaged otherwise, or held by a transaction, are passed over.
    pub fn scrub(&mut self, from: ScrubPlace, budget: u64) -> Scrubbed {
        let mut done = Scrubbed::default();
        if !self.store.checksums {
            return done;
        }
        let mut place = from;
        let mut looked = 0;
        while let Some(slot) = self.store.space.next_slot(place.slot) {
            if slot != place.slot {
                place = ScrubPlace { slot, offset: 0 };
            }
            debug_assert!(
                (place.slot, place.offset) >= (from.slot, from.offset),
                "a scrub goes on"
            );
            if looked >= budget {
                done.next = Some(place);
                break;
            }
            // an inode costs something, too
            looked += PAGE_BYTES;
            match self.scrub_file(&mut place, budget.saturating_sub(looked), &mut done) {
                Some(bytes) => looked += bytes,
                None => {
                    place = ScrubPlace {
                        slot: slot + 1,
                        offset: 0,
                    }
                }
            }
        }
        done
    }

    /// Verifies about `budget` bytes of a file, and more than none; `None`: there are no more.
    fn scrub_file(&mut self, place: &mut ScrubPlace, budget: u64, done: &mut Scrubbed) -> Option<u64> {
        let ino = self.store.ino(place.slot);
        if self.locked.contains(place.slot) || self.reach(ino).is_err() {
            return None;
        }
        let inode = self.cache.get(&self.store, place.slot).ok()?;
        let (reference, Body::File(view)) = (inode.inode_ref(), &inode.body) else {
            return None;
        };
        if inode.attr.kind == FileKind::Symlink {
            return None;
        }
        let (view, store) = (view.clone(), &self.store);
        let mapping = view.read();
        let mut page = [0; PAGE];
        let (mut looked, mut last) = (0, (u64::MAX, State::Unknown));
        for (start, extent) in mapping.index.from(place.offset) {
            if extent.inline {
                if looked > budget {
                    return Some(looked);
                }
                looked += LINE as u64;
                place.offset = start + extent.len;
                continue;
            }
            let skipped = place.offset.saturating_sub(start);
            let mut at = extent.gpa.offset().0 + skipped;
            let end = extent.gpa.offset().0 + extent.len;
            while at < end {
                if looked > budget {
                    return Some(looked);
                }
                let len = (PAGE_BYTES - at % PAGE_BYTES).min(end - at);
                if last.0 != at / PAGE_BYTES {
                    last = (
                        at / PAGE_BYTES,
                        verify_page(store.pool.pmem(), store.pool.layout(), store.at(at), &mut page),
                    );
                    looked += PAGE_BYTES;
                }
                let offset = start + (at - extent.gpa.offset().0);
                match last.1 {
                    State::Sound => done.bytes += len,
                    State::Unknown => done.unknown += len,
                    State::Damaged => done.damaged.push(DamagedData {
                        inode: reference,
                        offset,
                        len,
                    }),
                }
                debug_assert!(place.offset <= offset, "a scrub goes on");
                at += len;
                place.offset = offset + len;
            }
        }
        None
    }

    /// All damaged data of the region at once: for a pool that nobody serves.
    pub fn scrub_all(&mut self) -> Vec<DamagedData> {
        let (mut from, mut damaged) = (ScrubPlace::default(), Vec::new());
        loop {
            let step = self.scrub(from, 1 << 24);
            damaged.extend(step.damaged);
            match step.next {
                Some(next) => from = next,
                None => return damaged,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewData;
    use crate::testing::*;
    use polvo_format::Tail;
    use polvo_proto::{InodeRef, SetAttr, WriteAt};

    fn scrub(r: &mut Region) -> Scrubbed {
        r.scrub(ScrubPlace::default(), u64::MAX)
    }

    fn file(r: &mut Region, name: &[u8]) -> InodeRef {
        make(r, ROOT, name, FileKind::File).unwrap()
    }

    fn flip(r: &Region, at: u64) {
        let mut byte = [0];
        let at = r.store.at(at);
        r.store.pool.pmem().read(at, &mut byte);
        r.store.pool.pmem().write(at, &[byte[0] ^ 4]);
    }

    /// Where a byte of a file lies in the region.
    fn place(r: &mut Region, inode: InodeRef, offset: u64) -> u64 {
        let inode = r.cache.get(&r.store, inode.ino.slot()).unwrap();
        let Body::File(view) = &inode.body else { unreachable!() };
        let (start, extent) = view.read().index.from(offset).next().unwrap();
        extent.gpa.offset().0 + offset - start
    }

    #[test]
    fn whatever_is_written_is_verified() {
        let mut r = region(8);
        let (small, large) = (file(&mut r, b"small"), file(&mut r, b"large"));
        let mut size = 0;
        // in pages begun before and in fresh ones
        for len in [100, 4000, 1, 4096, 3000] {
            r.write(small, WriteAt::End, &vec![len as u8; len], Tail(0), NOW)
                .unwrap();
            size += len as u64;
        }
        commit(&mut r, large, 10, 500, &[9; 20_000], true).unwrap();
        let done = scrub(&mut r);
        assert_eq!((done.bytes, done.unknown, done.damaged), (size + 20_000, 0, vec![]));
        for (inode, offset) in [
            (small, 0),
            (small, 99),
            (small, 4100),
            (small, size - 1),
            (large, 10),
            (large, 20_009),
        ] {
            let at = place(&mut r, inode, offset);
            flip(&r, at);
            let done = scrub(&mut r).damaged;
            assert!(!done.is_empty(), "{offset}");
            for found in &done {
                assert_eq!(found.inode, inode);
            }
            assert!(
                done.iter().any(|d| (d.offset..d.offset + d.len).contains(&offset)),
                "{offset}: {done:?}"
            );
            flip(&r, at);
        }
        assert_eq!(findings(&mut r), [""; 0]);
        assert_eq!(findings(&mut recovered(&r).0), [""; 0]);
    }

    #[test]
    fn a_damaged_word_is_damage() {
        let mut r = region(8);
        let file = file(&mut r, b"f");
        r.write(file, WriteAt::Offset(0), &[3; 4096], Tail(0), NOW).unwrap();
        let at = place(&mut r, file, 0);
        let word = r.store.pool.layout().checksum_offset(r.store.at(at));
        r.store
            .pool
            .pmem()
            .write_u64(word, r.store.pool.pmem().read_u64(word) ^ 1 << 40);
        assert_eq!(
            scrub(&mut r).damaged,
            [DamagedData {
                inode: file,
                offset: 0,
                len: 4096
            }]
        );
        assert_eq!(r.store.pool.damaged_page(r.store.at(at), 10), Some(r.store.at(at)));
    }

    #[test]
    fn what_is_written_without_checksums_is_unknown_and_not_damaged() {
        let mut r = region(8);
        let (one, other) = (file(&mut r, b"one"), file(&mut r, b"other"));
        commit(&mut r, one, 0, 0, &[1; 10_000], true).unwrap();
        let gone = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        r.set_attr(one, &gone, NOW).unwrap();
        r.set_tick(5, 4);
        r.store.space.empty_quarantine();
        // to the same pages
        commit(&mut r, other, 0, 0, &[2; 10_000], false).unwrap();
        let done = scrub(&mut r);
        assert_eq!((done.bytes, done.unknown, done.damaged), (0, 10_000, vec![]));
    }

    #[test]
    fn nothing_is_added_in_place_but_where_the_word_ends() {
        let mut r = region(8);
        let file = file(&mut r, b"f");
        r.write(file, WriteAt::End, &[1; 3000], Tail(0), NOW).unwrap();
        let shorter = SetAttr {
            size: Some(1000),
            ..SetAttr::default()
        };
        r.set_attr(file, &shorter, NOW).unwrap();
        r.write(file, WriteAt::End, &[2; 500], Tail(0), NOW).unwrap();
        let done = scrub(&mut r);
        assert_eq!((done.bytes, done.damaged), (1500, vec![]));
        // a power cut took the word that was stored after the tail
        let at = place(&mut r, file, 1499);
        let before = r.store.page_checksum(at).unwrap();
        r.write(file, WriteAt::End, &[3; 10], Tail(0), NOW).unwrap();
        r.store.put_checksum(at, before);
        r.write(file, WriteAt::End, &[4; 10], Tail(0), NOW).unwrap();
        assert_ne!(place(&mut r, file, 1510) / PAGE_BYTES, at / PAGE_BYTES);
        assert_eq!(findings(&mut r), [""; 0]);
    }

    #[test]
    fn a_list_of_another_length_is_refused_and_changes_nothing() {
        let mut r = region(8);
        let file = file(&mut r, b"f");
        let given = r.delegate(SESSION, 2).unwrap();
        let run = WriteRun {
            offset: 0,
            len: 5000,
            gpa: given[0].gpa,
        };
        for len in [4, 7, 9, 12] {
            let refused = r.commit(
                SESSION,
                file,
                NewData {
                    runs: &[run],
                    crcs: &vec![0; len],
                },
                WriteAt::Offset(0),
                Tail(0),
                NOW,
            );
            assert!(
                matches!(refused, Err(crate::RegionError::Fs(FsError::Invalid(_)))),
                "{len}"
            );
        }
        r.commit(
            SESSION,
            file,
            NewData {
                runs: &[run],
                crcs: &[0; 8],
            },
            WriteAt::Offset(0),
            Tail(0),
            NOW,
        )
        .unwrap();
        assert_eq!(scrub(&mut r).damaged.len(), 2, "a lie about the bytes is found");
    }

    #[test]
    fn a_scrub_in_steps_sees_the_same() {
        let mut r = region(16);
        for n in 0..20 {
            let file = file(&mut r, format!("f{n}").as_bytes());
            for piece in 0..n {
                commit(&mut r, file, piece * 9000, 0, &[n as u8; 9000], true).unwrap();
            }
            if n % 3 == 0 && n > 0 {
                let at = place(&mut r, file, n * 1000);
                flip(&r, at);
            }
        }
        let all = scrub(&mut r);
        assert_eq!(all.damaged.len(), 6);
        let (mut from, mut sum, mut steps) = (ScrubPlace::default(), Scrubbed::default(), 0);
        loop {
            let step = r.scrub(from, 8192);
            sum.bytes += step.bytes;
            sum.damaged.extend(step.damaged);
            steps += 1;
            match step.next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!((sum.bytes, sum.damaged), (all.bytes, all.damaged));
        assert!(steps > 50, "{steps}");
    }

    #[test]
    fn without_room_for_them_nothing_is_verified() {
        let mut r = region_without_checksums(8);
        let file = file(&mut r, b"f");
        r.write(file, WriteAt::End, &[1; 3000], Tail(0), NOW).unwrap();
        commit(&mut r, file, 4096, 0, &[2; 9000], true).unwrap();
        let at = place(&mut r, file, 5000);
        flip(&r, at);
        assert_eq!(scrub(&mut r), Scrubbed::default());
        assert_eq!(findings(&mut r), [""; 0]);
    }
}
