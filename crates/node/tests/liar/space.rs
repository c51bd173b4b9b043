//! Commits and returns of space and inodes that the liar was not given.

use super::scene::*;
use crate::common::*;
use polvo_format::{Generation, Gpa, Ino, RegionId, RegionOffset};
use polvo_proto::*;

#[test]
fn a_commit_of_pages_that_were_never_given() {
    refused(async |_, s| {
        let Ok(Reply::FileMap(map)) = s.say(Request::Extents { inode: s.file, from: 0 }).await else {
            panic!("no map")
        };
        let of_file = map.extents.iter().find(|extent| extent.len >= 4096).unwrap().gpa;
        s.refuses_commit("pages of the file", vec![run_of(of_file, 0, 4096)])
            .await;
        let free = s.ours.gpa.checked_add(u64::from(s.ours.pages) * 4096).unwrap();
        s.refuses_commit("free pages", vec![run_of(free, 0, 4096)]).await;
    });
}

#[test]
fn a_commit_of_pages_given_to_another_session() {
    refused(async |_, s| {
        s.refuses_commit("theirs", vec![run_of(s.theirs.gpa, 0, 4096)]).await;
        let both = vec![run_of(s.ours.gpa, 0, 4096), run_of(s.theirs.gpa, 4096, 4096)];
        s.refuses_commit("ours, then theirs", both).await;
        let last = s.theirs.gpa.checked_add(7 * 4096 + 100).unwrap();
        s.refuses_commit("from theirs into ours", vec![run_of(last, 0, 8000)])
            .await;
    });
}

#[test]
fn a_commit_of_the_same_pages_twice() {
    refused(async |_, s| {
        let twice = vec![run_of(s.ours.gpa, 0, 4096), run_of(s.ours.gpa, 4096, 4096)];
        s.refuses_commit("the same page", twice).await;
        let second = s.ours.gpa.checked_add(2000).unwrap();
        let halves = vec![run_of(s.ours.gpa, 0, 2000), run_of(second, 2000, 2000)];
        s.refuses_commit("two parts of one page", halves).await;
        let second = s.ours.gpa.checked_add(4096).unwrap();
        let overlap = vec![run_of(s.ours.gpa, 0, 3 * 4096), run_of(second, 3 * 4096, 4096)];
        s.refuses_commit("a page within a run", overlap).await;
    });
}

#[test]
fn a_commit_of_more_bytes_than_were_given() {
    refused(async |_, s| {
        let given = u64::from(s.ours.pages) * 4096;
        for len in [
            given + 1,
            given + 4096,
            1 << SHIFT,
            (1 << SHIFT) + 1,
            1 << 47,
            i64::MAX as u64,
        ] {
            s.refuses_commit("too long", vec![run_of(s.ours.gpa, 0, len)]).await;
        }
        let inside = s.ours.gpa.checked_add(1).unwrap();
        s.refuses_commit("misaligned, over the end", vec![run_of(inside, 0, given)])
            .await;
        for len in [u64::MAX, u64::MAX - 4095, 1 << 63] {
            s.refuses_commit("longer than any file", vec![run_of(s.ours.gpa, 0, len)])
                .await;
        }
    });
}

#[test]
fn a_commit_of_runs_that_overlap_in_the_file_are_out_of_order_or_empty() {
    refused(async |_, s| {
        let page = |n: u64| s.ours.gpa.checked_add(n * 4096).unwrap();
        let overlap = vec![run_of(page(0), 0, 4096), run_of(page(1), 4095, 4096)];
        s.refuses_commit("overlapping", overlap).await;
        let order = vec![run_of(page(0), 4096, 4096), run_of(page(1), 0, 4096)];
        s.refuses_commit("out of order", order).await;
        s.refuses_commit("empty", vec![run_of(page(0), 0, 0)]).await;
        s.refuses_commit(
            "an empty one behind",
            vec![run_of(page(0), 0, 10), run_of(page(1), 10, 0)],
        )
        .await;
        s.refuses_commit("none", vec![]).await;
        s.refuses_commit("very many", vec![run_of(page(0), 0, 1); RUNS_MAX + 1])
            .await;
    });
}

#[test]
fn a_commit_of_addresses_outside_the_data_of_the_region() {
    refused(async |cluster, s| {
        let map = s.segments().await;
        let at = |region, offset| Gpa::new(region, RegionOffset(offset));
        for place in map.segments.iter().filter(|place| place.class != SegmentClass::Data) {
            let start = u64::from(place.index) << SHIFT;
            s.refuses_commit("metadata", vec![run_of(at(s.region, start), 0, 4096)])
                .await;
        }
        let beyond = u64::from(map.segments.last().unwrap().index + 1) << SHIFT;
        for offset in [beyond, beyond - 1, (1 << 48) - 4096, (1 << 48) - 1] {
            s.refuses_commit("no segment", vec![run_of(at(s.region, offset), 0, 4096)])
                .await;
        }
        let other = cluster.map().regions.iter().map(|info| info.id);
        for region in other.filter(|region| *region != s.region).chain([RegionId(60_000)]) {
            let run = run_of(at(region, s.ours.gpa.offset().0), 0, 4096);
            s.refuses_commit("another region", vec![run]).await;
        }
    });
}

#[test]
fn a_commit_to_offsets_that_no_file_has() {
    refused(async |_, s| {
        let last = i64::MAX as u64;
        for offset in [last, last - 4095, u64::MAX, u64::MAX - 4095, 1 << 63] {
            let request = s.commit(s.file, vec![run_of(s.ours.gpa, offset, 4096)]);
            assert_eq!(s.say(request).await, Err(FsError::FileTooLarge), "{offset}");
        }
    });
}

/// An honest client that has missed its session's end says the same; so it is ignored.
#[test]
fn the_return_of_space_and_the_release_of_inodes_of_others() {
    refused(async |_, s| {
        let Ok(Reply::FileMap(map)) = s.say(Request::Extents { inode: s.file, from: 0 }).await else {
            panic!("no map")
        };
        let run = |gpa, pages| PageRun { gpa, pages };
        let beyond = s.ours.gpa.checked_add(u64::from(s.ours.pages) * 4096).unwrap();
        let runs = vec![
            s.theirs,
            run(map.extents.last().unwrap().gpa, 1),
            run(s.ours.gpa, 0),
            run(s.ours.gpa, s.ours.pages + 1),
            run(s.ours.gpa, u32::MAX),
            run(s.ours.gpa.checked_add(1).unwrap(), 1),
            run(beyond, 1),
            run(Gpa(u64::MAX), u32::MAX),
            run(Gpa(0), 1),
            run(Gpa::new(RegionId(60_000), RegionOffset(0)), 1),
        ];
        assert_eq!(s.say(Request::ReturnSpace { runs }).await, Ok(Reply::Done));
        let inodes = vec![
            s.file,
            s.dir,
            ROOT,
            InodeRef {
                ino: Ino(u64::MAX),
                generation: Generation(0),
            },
        ];
        assert_eq!(s.say(Request::Release { inodes }).await, Ok(Reply::Done));
        let (inode, range) = (s.file, LockRange::ALL);
        assert_eq!(s.say(Request::Unlock { inode, owner: 1, range }).await, Ok(Reply::Done));
        assert_eq!(s.say(Request::CancelLock { inode, ticket: 0 }).await, Ok(Reply::Done));
    });
}
