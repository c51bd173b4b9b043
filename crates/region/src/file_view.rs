//! A file's mapping as its region has it, shared with readers inside the node: they find bytes by it without entering the
//! region, and without an index of their own that would have to follow the log.
//!
//! It changes with the inode's DRAM state, all of a commit at once, before the commit's tail is stored. So a reader looks up
//! ([`FileView::plan`]), copies, and then looks at the tail on the media: if that is the plan's, the bytes were the file's.
//! If not, somebody has just committed, or a transaction elsewhere has written the inode: entering the region
//! ([`crate::Region::file_view`]) brings the view up to date.

use crate::file_index::FileIndex;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use polvo_format::{RegionOffset, Tail};

/// Least extent that readers may remember, bytes: smaller ones are too many, and displace each other.
const LARGE: u64 = 1 << 16;

/// A mapping and the state of the log that it is of.
#[derive(Default)]
pub(crate) struct Mapping {
    pub index: FileIndex,
    pub tail: Tail,
    /// bytes
    pub size: u64,
}

/// A file's mapping, shared. An inode keeps its view as long as somebody else has it too.
#[derive(Default)]
pub struct FileView(RwLock<Mapping>);

/// Part of a planned read; lies in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// bytes
    pub len: usize,
    /// where they lie in the region; `None`: zeros
    pub at: Option<RegionOffset>,
}

/// Bytes of a file that lie together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// file offset
    pub start: u64,
    /// file offset; not after the file's end
    pub end: u64,
    /// where they lie in the region
    pub at: RegionOffset,
}

/// What a read will find, if the log's tail is still `tail` when it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadPlan {
    /// the log's
    pub tail: Tail,
    /// bytes that the parts have together; short at the end of the file, and where there are too many parts
    pub len: usize,
    /// there are more parts
    pub cut: bool,
    /// in which all of it lies, if it is one and worth remembering
    pub extent: Option<Extent>,
}

/// While it lives, the mapping stays as it is: writers of the file wait.
#[must_use]
pub struct Unchanged<'a>(#[expect(dead_code, reason = "held, not looked at")] RwLockReadGuard<'a, Mapping>);

impl FileView {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Mapping> {
        self.0.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Mapping> {
        self.0.write()
    }

    /// Tail of the log that the mapping is of.
    pub fn tail(&self) -> Tail {
        self.0.read().tail
    }

    /// Where the bytes of a read lie: at most `max` parts, in order. What was in `parts` goes.
    pub fn plan(&self, offset: u64, len: usize, max: usize, parts: &mut Vec<Part>) -> (ReadPlan, Unchanged<'_>) {
        parts.clear();
        let mapping = self.0.read();
        let end = offset.saturating_add(len as u64).min(mapping.size);
        let mut plan = ReadPlan {
            tail: mapping.tail,
            len: 0,
            cut: false,
            extent: None,
        };
        if offset >= end {
            return (plan, Unchanged(mapping));
        }
        let mut at = offset;
        for (start, extent) in mapping.index.from(offset) {
            if start >= end || parts.len() + 2 > max {
                plan.cut = start < end;
                break;
            }
            if start > at {
                let len = (start - at) as usize;
                parts.push(Part { len, at: None });
                at = start;
            }
            let stop = (start + extent.len).min(end);
            if extent.len >= LARGE && start <= offset && stop - offset == len as u64 {
                plan.extent = Some(Extent {
                    start,
                    end: (start + extent.len).min(mapping.size),
                    at: extent.gpa.offset(),
                });
            }
            parts.push(Part {
                len: (stop - at) as usize,
                at: Some(RegionOffset(extent.gpa.offset().0 + (at - start))),
            });
            at = stop;
            if at == end {
                break;
            }
        }
        if at < end && !plan.cut {
            let len = (end - at) as usize;
            parts.push(Part { len, at: None });
            at = end;
        }
        plan.len = (at - offset) as usize;
        debug_assert!(
            plan.len <= len && parts.len() <= max.max(1),
            "no more than was asked for"
        );
        debug_assert_eq!(
            plan.len,
            parts.iter().map(|part| part.len).sum::<usize>(),
            "parts have all bytes"
        );
        (plan, Unchanged(mapping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::Mapped;
    use polvo_format::{Gpa, RegionId};

    fn view(extents: &[(u64, u64, u64)], size: u64) -> FileView {
        let view = FileView::default();
        let mut mapping = view.write();
        mapping.size = size;
        mapping.tail = Tail::new(1, 5);
        for (offset, len, at) in extents {
            let gpa = Gpa::new(RegionId(7), RegionOffset(*at));
            let new = Mapped {
                len: *len,
                gpa,
                inline: false,
            };
            mapping.index.insert(*offset, new, 21, &mut Vec::new());
        }
        drop(mapping);
        view
    }

    fn plan(view: &FileView, offset: u64, len: usize, max: usize) -> (usize, bool, Vec<(usize, Option<u64>)>) {
        let mut parts = Vec::new();
        let (plan, _) = view.plan(offset, len, max, &mut parts);
        assert_eq!(plan.tail, Tail::new(1, 5));
        assert_eq!(plan.len, parts.iter().map(|part| part.len).sum::<usize>());
        let parts = parts.into_iter().map(|part| (part.len, part.at.map(|at| at.0)));
        (plan.len, plan.cut, parts.collect())
    }

    #[test]
    fn extents_and_holes_up_to_the_end_of_the_file() {
        let view = view(&[(100, 50, 4096), (200, 100, 9000)], 400);
        assert_eq!(plan(&view, 0, 50, 9), (50, false, vec![(50, None)]));
        assert_eq!(plan(&view, 110, 20, 9), (20, false, vec![(20, Some(4106))]));
        let all = vec![
            (100, None),
            (50, Some(4096)),
            (50, None),
            (100, Some(9000)),
            (100, None),
        ];
        assert_eq!(plan(&view, 0, 1000, 9), (400, false, all));
        assert_eq!(plan(&view, 400, 10, 9), (0, false, vec![]));
        assert_eq!(plan(&view, u64::MAX, 10, 9), (0, false, vec![]));
    }

    #[test]
    fn the_large_extent_that_a_read_lies_in() {
        let (first, second, small) = (
            (LARGE, LARGE, 4096),
            (2 * LARGE, 2 * LARGE, 9 * LARGE),
            (9 * LARGE, 4096, 0),
        );
        let size = 3 * LARGE + 10;
        let extent = |offset, len| {
            view(&[first, second], size)
                .plan(offset, len, 9, &mut Vec::new())
                .0
                .extent
        };
        let whole = Extent {
            start: LARGE,
            end: 2 * LARGE,
            at: RegionOffset(4096),
        };
        assert_eq!(extent(LARGE, LARGE as usize), Some(whole));
        assert_eq!(extent(2 * LARGE - 1, 1), Some(whole));
        let last = Extent {
            start: 2 * LARGE,
            end: size,
            at: RegionOffset(9 * LARGE),
        };
        assert_eq!(extent(size - 5, 5), Some(last), "no further than the end of the file");
        for (offset, len) in [
            (LARGE - 1, 2),
            (0, 5),
            (2 * LARGE - 1, 2),
            (size - 5, 6),
            (size, 1),
            (u64::MAX, 9),
        ] {
            assert_eq!(extent(offset, len), None, "{offset}, {len}");
        }
        let (plan, _) = view(&[small], 10 * LARGE).plan(9 * LARGE, 4096, 9, &mut Vec::new());
        assert_eq!(plan.extent, None, "not worth it");
    }

    #[test]
    fn no_more_pieces_than_asked_for() {
        let extents: Vec<_> = (0..20).map(|n| (n * 10, 5, n * 64)).collect();
        let view = view(&extents, 200);
        let (len, cut, parts) = plan(&view, 0, 200, 8);
        assert!(cut && parts.len() <= 8 && len >= 35);
        let (rest, _, _) = plan(&view, len as u64, 200, 100);
        assert_eq!(len + rest, 200);
    }
}
