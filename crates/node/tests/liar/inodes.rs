//! Requests about inodes that are of another kind, another generation, elsewhere or not there.

use super::scene::*;
use crate::common::*;
use polvo_format::{FileKind, Generation, Ino, NodeId, RegionId, Tail};
use polvo_proto::*;

/// Everything that can be asked of an inode, with the inode in each of its places.
fn about(s: &Scene, inode: InodeRef) -> Vec<Request> {
    let name = || b"lie".to_vec();
    let mut requests = about_directory(s, inode);
    requests.extend(about_data(s, inode));
    requests.extend([
        Request::GetAttr {
            ino: inode.ino,
            generation: Some(inode.generation),
        },
        Request::SetAttr {
            inode,
            set: SetAttr {
                mode: Some(0),
                ..SetAttr::default()
            },
        },
        Request::ReadLink { inode },
        Request::Open { inode },
        Request::OpenToWrite {
            inode,
            claim: MapClaim::Still,
            number: u64::MAX,
            want_map: true,
        },
        Request::Extents { inode, from: 0 },
        Request::GetXattr {
            inode,
            name: b"user.a".to_vec(),
        },
        Request::ListXattr { inode },
        Request::SetXattr {
            inode,
            name: b"user.lie".to_vec(),
            value: vec![1],
            mode: XattrMode::Any,
        },
        Request::RemoveXattr {
            inode,
            name: b"user.a".to_vec(),
        },
        Request::Lock {
            inode,
            lock: lock_of(7, LockMode::Shared, LockRange { first: 50, last: 60 }),
            wait: None,
        },
        Request::Link {
            inode,
            dir: s.dir,
            name: name(),
        },
    ]);
    requests
}

fn about_directory(s: &Scene, dir: InodeRef) -> Vec<Request> {
    let name = || b"lie".to_vec();
    let file = new_file(FileKind::File, 0o644);
    vec![
        Request::Lookup { dir, name: name() },
        Request::ReadDir { dir, after: 0, max: 9 },
        Request::FollowLog {
            dir,
            known: Tail(u64::MAX),
        },
        Request::Create {
            dir,
            name: name(),
            file: file.clone(),
            open: false,
        },
        Request::CreateUnnamed { dir, file },
        Request::Unlink { dir, name: name() },
        Request::Rmdir { dir, name: name() },
        Request::Link {
            inode: s.file,
            dir,
            name: name(),
        },
        Request::Rename {
            old_dir: dir,
            old_name: name(),
            new_dir: s.dir,
            new_name: b"other".to_vec(),
            mode: RenameMode::Replace,
        },
        Request::Rename {
            old_dir: s.dir,
            old_name: b"file".to_vec(),
            new_dir: dir,
            new_name: name(),
            mode: RenameMode::Replace,
        },
    ]
}

/// What only a file with bytes is asked.
fn about_data(s: &Scene, inode: InodeRef) -> Vec<Request> {
    vec![
        Request::Write {
            inode,
            offset: 0,
            append: false,
            known: Tail::default(),
            bytes: b"lie".to_vec(),
        },
        Request::Write {
            inode,
            offset: 0,
            append: true,
            known: Tail::default(),
            bytes: vec![7; EAGER_MAX],
        },
        s.commit(inode, vec![run_of(s.ours.gpa, 0, 4096)]),
        Request::Fallocate {
            inode,
            mode: FallocateMode::ZeroRange { keep_size: false },
            offset: 1 << 20,
            len: 1,
        },
        Request::Fallocate {
            inode,
            mode: FallocateMode::PunchHole,
            offset: 0,
            len: 1 << 20,
        },
        Request::SetAttr {
            inode,
            set: SetAttr {
                size: Some(1),
                ..SetAttr::default()
            },
        },
    ]
}

#[test]
fn a_directory_as_a_file() {
    refused(async |_, s| {
        for request in about_data(s, s.dir).into_iter().chain(about_data(s, s.dir)) {
            assert_eq!(s.say(request.clone()).await, Err(FsError::IsDirectory), "{request:?}");
        }
        let inode = s.dir;
        assert!(is_invalid(&s.say(Request::ReadLink { inode }).await));
        let (dir, name) = (s.dir, b"sub".to_vec());
        assert_eq!(s.say(Request::Unlink { dir, name }).await, Err(FsError::IsDirectory));
        let name = b"lie".to_vec();
        assert_eq!(
            s.say(Request::Link { inode, dir, name }).await,
            Err(FsError::NotPermitted)
        );
    });
}

#[test]
fn a_file_as_a_directory() {
    refused(async |_, s| {
        for inode in [s.file, s.link, s.pipe] {
            for request in about_directory(s, inode) {
                assert_eq!(s.say(request.clone()).await, Err(FsError::NotDirectory), "{request:?}");
            }
        }
        let (dir, name) = (s.dir, b"file".to_vec());
        assert_eq!(s.say(Request::Rmdir { dir, name }).await, Err(FsError::NotDirectory));
        let inode = s.file;
        assert!(is_invalid(&s.say(Request::ReadLink { inode }).await));
    });
}

#[test]
fn a_symbolic_link_and_a_pipe_as_a_file() {
    refused(async |_, s| {
        for inode in [s.link, s.pipe] {
            for request in about_data(s, inode) {
                let answer = s.say(request.clone()).await;
                assert!(is_invalid(&answer), "{request:?}: {answer:?}");
            }
        }
    });
}

#[test]
fn slots_that_are_free_hold_the_region_header_or_do_not_exist() {
    refused(async |_, s| {
        let at = |slot: u64| Ino(u64::from(s.region.0) << 48 | slot);
        let last = (1u64 << SHIFT) / 256;
        // free ones beside the last in use, the header, log pages and data taken for inodes, beyond the end
        for slot in [
            0,
            last - 1,
            last,
            2 * last,
            3 * last,
            1 << 30,
            (1 << 40) - 1,
            1 << 40,
            (1 << 48) - 1,
        ] {
            for generation in [0, 1, 2, u32::MAX] {
                let inode = InodeRef {
                    ino: at(slot),
                    generation: Generation(generation),
                };
                for request in about(s, inode) {
                    let answer = s.say(request.clone()).await;
                    assert_eq!(answer, Err(FsError::Stale), "slot {slot}: {request:?}");
                }
            }
            let (ino, generation) = (at(slot), None);
            assert_eq!(s.say(Request::GetAttr { ino, generation }).await, Err(FsError::Stale));
        }
    });
}

#[test]
fn a_wrong_generation() {
    refused(async |_, s| {
        for inode in [s.file, s.dir, s.link, s.pipe] {
            let right = inode.generation.0;
            for generation in [0, right - 1, right + 1, u32::MAX] {
                let inode = InodeRef {
                    generation: Generation(generation),
                    ..inode
                };
                for request in about(s, inode) {
                    assert_eq!(s.say(request.clone()).await, Err(FsError::Stale), "{request:?}");
                }
            }
        }
    });
}

#[test]
fn regions_of_another_node_and_regions_that_do_not_exist() {
    refused(async |cluster, s| {
        let elsewhere = cluster
            .map()
            .regions
            .iter()
            .filter(|r| r.primary() != Some(NodeId(s.node)));
        for region in elsewhere
            .map(|info| info.id)
            .chain([RegionId(60_000), RegionId(u16::MAX)])
        {
            let inode = InodeRef {
                ino: Ino::new(region, 1),
                generation: Generation(1),
            };
            let away = [
                Request::Segments { region, from: 0 },
                Request::Delegate { region, pages: 1 },
                Request::Check { region, page: 0 },
                Request::TestLock {
                    inode,
                    lock: lock_of(1, LockMode::Shared, LockRange::ALL),
                },
                Request::Unlock {
                    inode,
                    owner: 1,
                    range: LockRange::ALL,
                },
                Request::CancelLock { inode, ticket: 1 },
                Request::ClaimLocks {
                    inode,
                    owner: 1,
                    term: LockTerm(1),
                    ranges: Vec::new(),
                    whole: None,
                },
            ];
            for request in about_data(s, inode).into_iter().chain(away) {
                assert_eq!(s.say(request.clone()).await, Err(FsError::WrongEpoch), "{request:?}");
            }
            // some of these are for this node to pass on, and then another one refuses
            for request in about(s, inode).into_iter().filter(|_| region.0 >= 60_000) {
                assert!(s.say(request.clone()).await.is_err(), "{request:?}");
            }
        }
    });
}
