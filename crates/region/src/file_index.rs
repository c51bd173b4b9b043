//! Where the bytes of a file lie: extents by file offset, byte-granular, never overlapping.

use crate::extents::{Extents, Mapped, Place};
use polvo_format::Gpa;

#[derive(Default)]
pub(crate) struct FileIndex {
    extents: Extents,
    mapped: u64,
    inline: u64,
}

impl FileIndex {
    /// Extents.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Bytes that are mapped.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Bytes that lie in log entries.
    pub fn inline(&self) -> u64 {
        self.inline
    }

    /// Log units (about) that a compact log of this mapping would take.
    pub fn live_units(&self) -> u64 {
        self.extents.len() as u64 + self.inline / 64
    }

    /// All extents by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        self.extents.iter()
    }

    /// Extents from the one that covers `offset` (or is the next after it) on; the first is not cut.
    pub fn from(&self, offset: u64) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        self.extents.iter_from(self.extents.find_covering(offset))
    }

    /// To be called some time before extents at an offset are looked up or changed.
    pub fn fetch(&self, offset: u64) {
        self.extents.fetch(offset);
    }

    /// The last extent.
    pub fn last(&self) -> Option<(u64, Mapped)> {
        self.extents.last()
    }

    /// Maps a range; what it hides is appended to `hidden`. Extents of the same segment that continue each other are
    /// joined (`shift`: log2 of the segment size).
    pub fn insert(&mut self, mut offset: u64, mut new: Mapped, shift: u32, hidden: &mut Vec<Mapped>) {
        let joins = |a: &Mapped, b: &Mapped| {
            !a.inline && !b.inline && a.gpa.checked_add(a.len) == Some(b.gpa) && a.gpa.0 >> shift == b.gpa.0 >> shift
        };
        debug_assert!(new.len > 0, "no bytes are mapped");
        let (mapped, len, first) = (self.mapped, new.len, hidden.len());
        self.count(&new, true);
        let end = offset + new.len;
        let mut place = self.extents.find(offset);
        let exact = self
            .extents
            .at(place)
            .filter(|(at, old)| *at == offset && old.len == new.len);
        if exact.is_none() {
            if self.insert_within(place, offset, new, hidden) {
                return;
            }
            self.remove(offset, new.len, hidden);
            place = self.extents.find(offset);
        }
        let before = self
            .extents
            .before(place)
            .filter(|(at, e)| at + e.len == offset && joins(e, &new));
        let after = match exact {
            Some(_) => self.extents.after(place),
            None => self.extents.at(place),
        };
        let after = after.filter(|(at, e)| *at == end && joins(&new, e));
        if let Some((_, old)) = exact {
            self.count(&old, false);
            hidden.push(old);
            if before.is_none() && after.is_none() {
                // an overwrite of what was written in one piece
                self.extents.set(place, new);
                debug_assert_eq!(self.mapped, mapped, "as many bytes are mapped as were");
                return;
            }
            self.extents.take(offset);
        }
        if let Some((at, after)) = after {
            self.extents.take(at);
            new.len += after.len;
        }
        if let Some((at, extent)) = before {
            self.extents.take(at);
            (offset, new.len, new.gpa) = (at, extent.len + new.len, extent.gpa);
        }
        self.extents.insert(offset, new);
        debug_assert_eq!(
            self.mapped + hidden[first..].iter().map(|old| old.len).sum::<u64>(),
            mapped + len,
            "what is mapped no more was mapped"
        );
        debug_assert!(
            self.from(offset)
                .next()
                .is_some_and(|(at, e)| at == offset && at + e.len >= end),
            "the range is mapped"
        );
    }

    /// Maps a range in the midst of one extent, of which something is left on both sides; false if there is no such extent.
    fn insert_within(&mut self, place: Place, offset: u64, new: Mapped, hidden: &mut Vec<Mapped>) -> bool {
        let end = offset + new.len;
        let within = self.extents.before(place).filter(|(at, old)| at + old.len > end);
        let Some((at, old)) = within else { return false };
        debug_assert!(at < offset, "the extent begins before");
        let cut = part(&old, offset - at, new.len);
        let behind = part(&old, end - at, at + old.len - end);
        if new.gpa == cut.gpa || !self.extents.belong_together(place, end) {
            return false;
        }
        self.extents.set_before(place, part(&old, 0, offset - at));
        self.extents.insert_two(place, (offset, new), (end, behind));
        self.count(&cut, false);
        hidden.push(cut);
        true
    }

    /// Unmaps a range; what was mapped there is appended to `hidden`.
    pub fn remove(&mut self, offset: u64, len: u64, hidden: &mut Vec<Mapped>) {
        let end = offset.saturating_add(len);
        let (mapped, hidden_before) = (self.mapped, hidden.len());
        let mut place = self.extents.find(offset);
        if let Some((at, old)) = self.extents.before(place).filter(|(at, e)| at + e.len > offset) {
            let old_end = at + old.len;
            let cut = part(&old, offset - at, old_end.min(end) - offset);
            self.extents.set_before(place, part(&old, 0, offset - at));
            self.count(&cut, false);
            hidden.push(cut);
            if old_end > end {
                self.extents.insert(end, part(&old, end - at, old_end - end));
                return;
            }
        }
        let first = hidden.len();
        place = self.extents.take_until(place, end, |extent| hidden.push(extent));
        if let Some((at, extent)) = self.extents.at(place).filter(|(at, _)| *at < end) {
            self.extents.take(at);
            self.extents
                .insert(end, part(&extent, end - at, extent.len - (end - at)));
            hidden.push(part(&extent, 0, end - at));
        }
        for extent in &hidden[first..] {
            self.count(extent, false);
        }
        debug_assert_eq!(
            self.mapped + hidden[hidden_before..].iter().map(|old| old.len).sum::<u64>(),
            mapped,
            "what is mapped no more was mapped"
        );
        debug_assert!(
            self.extents
                .at(self.extents.find(offset))
                .is_none_or(|(at, _)| at >= end),
            "nothing is left"
        );
    }

    fn count(&mut self, extent: &Mapped, add: bool) {
        let change = |total: &mut u64| {
            *total = match add {
                true => *total + extent.len,
                false => total.checked_sub(extent.len).expect("what is mapped is counted"),
            };
        };
        change(&mut self.mapped);
        if extent.inline {
            change(&mut self.inline);
        }
        debug_assert!(self.inline <= self.mapped, "bytes in log entries are mapped");
    }

    /// The same extents, inline ones at new places (after garbage collection), in order of offset.
    pub fn move_inline(&mut self, places: impl IntoIterator<Item = Gpa>) {
        let mut places = places.into_iter();
        self.extents
            .each_inline(|gpa| *gpa = places.next().expect("one place for each inline extent"));
        assert!(places.next().is_none(), "one inline extent for each place");
    }
}

fn part(extent: &Mapped, skip: u64, len: u64) -> Mapped {
    debug_assert!(
        len > 0 && skip + len <= extent.len,
        "{len} bytes after {skip} of {}",
        extent.len
    );
    Mapped {
        len,
        gpa: Gpa(extent.gpa.0 + skip),
        inline: extent.inline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(gpa: u64, len: u64) -> Mapped {
        Mapped {
            len,
            gpa: Gpa(gpa),
            inline: false,
        }
    }

    fn insert(index: &mut FileIndex, offset: u64, new: Mapped) -> Vec<Mapped> {
        let mut hidden = Vec::new();
        index.insert(offset, new, 21, &mut hidden);
        hidden
    }

    fn all(index: &FileIndex) -> Vec<(u64, u64, u64)> {
        index.iter().map(|(o, e)| (o, e.len, e.gpa.0)).collect()
    }

    #[test]
    fn neighbours_join_within_a_segment() {
        let mut index = FileIndex::default();
        let segment = 1 << 21;
        insert(&mut index, 0, data(segment - 8192, 4096));
        insert(&mut index, 8192, data(segment, 4096));
        insert(&mut index, 4096, data(segment - 4096, 4096));
        assert_eq!(all(&index), [(0, 8192, segment - 8192), (8192, 4096, segment)]);
        assert_eq!(index.mapped(), 12288);
    }

    #[test]
    fn an_overwrite_in_the_middle_splits() {
        let mut index = FileIndex::default();
        insert(&mut index, 0, data(10_000, 100));
        let hidden = insert(&mut index, 40, data(50_000, 20));
        assert_eq!(hidden, [data(10_040, 20)]);
        assert_eq!(all(&index), [(0, 40, 10_000), (40, 20, 50_000), (60, 40, 10_060)]);
        let mut hidden = Vec::new();
        index.remove(30, 40, &mut hidden);
        assert_eq!(hidden, [data(10_030, 10), data(50_000, 20), data(10_060, 10)]);
        assert_eq!(all(&index), [(0, 30, 10_000), (70, 30, 10_070)]);
        assert_eq!(index.from(10).count(), 2);
        assert_eq!(index.from(30).next().unwrap().0, 70);
    }

    #[test]
    fn a_large_extent_is_overwritten_piece_by_piece() {
        const PIECES: u64 = 5000;
        let mut index = FileIndex::default();
        insert(&mut index, 0, data(1 << 30, PIECES * 10));
        let mut model: Vec<u64> = (0..PIECES).map(|n| (1 << 30) + n * 10).collect();
        for n in 0..PIECES * 2 {
            let (piece, gpa) = (n * 7919 % PIECES, (1 << 20) + n * 11);
            // every now and then something goes that others begin or end with
            if n % 97 == 96 {
                let gone = piece.min(PIECES - 3);
                index.remove(gone * 10, 30, &mut Vec::new());
                for (n, gpa) in (gone..).zip(&mut model[gone as usize..][..3]) {
                    *gpa = (1 << 40) + n * 10;
                }
                insert(&mut index, gone * 10, data((1 << 40) + gone * 10, 30));
            }
            let hidden = insert(&mut index, piece * 10, data(gpa, 10));
            assert_eq!(hidden, [data(std::mem::replace(&mut model[piece as usize], gpa), 10)]);
        }
        assert_eq!(index.mapped(), PIECES * 10);
        for (n, gpa) in (0..).zip(&model) {
            let (at, extent) = index.from(n * 10).next().unwrap();
            assert_eq!(extent.gpa.0 + n * 10 - at, *gpa, "piece {n}");
        }
        assert!(index.iter().is_sorted_by(|(a, e), (b, _)| a + e.len == *b));
    }

    #[test]
    fn it_agrees_with_a_byte_by_byte_model() {
        let mut index = FileIndex::default();
        let mut model = vec![0u64; 300];
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let mut fresh = 1 << 22;
        for _ in 0..5000 {
            // every other one where another one was before: those are exchanged in place
            let (offset, len) = match next(2) {
                0 => (next(10) * 20, 20),
                _ => (next(200), 1 + next(90)),
            };
            let mut hidden = Vec::new();
            let inline = next(4) == 0;
            let before: u64 = model.iter().filter(|&&g| g != 0).count() as u64;
            let range = offset as usize..(offset + len) as usize;
            let hidden_model = model[range.clone()].iter().filter(|&&g| g != 0).count() as u64;
            if next(3) == 0 {
                index.remove(offset, len, &mut hidden);
                model[range].fill(0);
            } else {
                index.insert(
                    offset,
                    Mapped {
                        len,
                        gpa: Gpa(fresh),
                        inline,
                    },
                    30,
                    &mut hidden,
                );
                for (i, byte) in model[range].iter_mut().enumerate() {
                    *byte = fresh + i as u64;
                }
                fresh += len + next(2);
            }
            assert_eq!(hidden.iter().map(|h| h.len).sum::<u64>(), hidden_model);
            let _ = before;
            assert_eq!(index.mapped(), model.iter().filter(|&&g| g != 0).count() as u64);
            let mut read = vec![0u64; 300];
            for (offset, e) in index.iter() {
                for i in 0..e.len {
                    assert_eq!(read[(offset + i) as usize], 0);
                    read[(offset + i) as usize] = e.gpa.0 + i;
                }
            }
            assert_eq!(read, model);
        }
    }
}
