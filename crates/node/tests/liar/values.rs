//! Names, attributes, offsets, lengths and counts that cannot be.

use super::scene::*;
use crate::common::*;
use polvo_format::{FileKind, NodeId, RegionId, Tail};
use polvo_node::sim::{ClusterOptions, run};
use polvo_proto::*;

#[test]
fn names_that_cannot_be() {
    refused(async |_, s| {
        let dir = s.dir;
        let long = vec![b'x'; 256];
        let cases: [(&[u8], Expected); 6] = [
            (b"", |e| *e == FsError::NotFound),
            (b".", |e| {
                matches!(
                    e,
                    FsError::Exists | FsError::NotFound | FsError::Busy | FsError::Invalid(_)
                )
            }),
            (b"..", |e| {
                matches!(
                    e,
                    FsError::Exists | FsError::NotFound | FsError::Busy | FsError::NotEmpty
                )
            }),
            (b"a/b", |e| matches!(e, FsError::Invalid(_))),
            (b"file\0", |e| matches!(e, FsError::Invalid(_))),
            (&long, |e| *e == FsError::NameTooLong),
        ];
        for (name, expected) in cases {
            let name = || name.to_vec();
            let rename = |old_name, new_name, mode| Request::Rename {
                old_dir: dir,
                old_name,
                new_dir: dir,
                new_name,
                mode,
            };
            let requests = [
                Request::Lookup { dir, name: name() },
                Request::Create {
                    dir,
                    name: name(),
                    file: new_file(FileKind::File, 0o644),
                    open: true,
                },
                Request::Create {
                    dir,
                    name: name(),
                    file: new_file(FileKind::Directory, 0o755),
                    open: false,
                },
                Request::Unlink { dir, name: name() },
                Request::Rmdir { dir, name: name() },
                Request::Link {
                    inode: s.file,
                    dir,
                    name: name(),
                },
                rename(name(), b"new".to_vec(), RenameMode::Replace),
                rename(b"file".to_vec(), name(), RenameMode::Replace),
                rename(b"file".to_vec(), name(), RenameMode::Exchange),
                rename(name(), b"file".to_vec(), RenameMode::Exchange),
            ];
            for request in requests {
                let answer = s.say(request.clone()).await;
                assert!(answer.as_ref().is_err_and(expected), "{request:?}: {answer:?}");
            }
        }
    });
}

#[test]
fn new_files_that_cannot_be() {
    refused(async |_, s| {
        let with = |kind, target: &[u8]| NewFile {
            target: target.to_vec(),
            ..new_file(kind, 0o644)
        };
        let long = vec![b't'; 4096];
        let cases: [(NewFile, Expected); 6] = [
            (with(FileKind::Symlink, b""), |e| *e == FsError::NotFound),
            (with(FileKind::Symlink, &long), |e| *e == FsError::NameTooLong),
            (with(FileKind::Symlink, b"a\0b"), |e| matches!(e, FsError::Invalid(_))),
            (with(FileKind::File, b"target"), |e| matches!(e, FsError::Invalid(_))),
            (with(FileKind::Directory, b"target"), |e| {
                matches!(e, FsError::Invalid(_))
            }),
            (with(FileKind::Object, b""), |e| matches!(e, FsError::Invalid(_))),
        ];
        for (file, expected) in cases {
            let (dir, name) = (s.dir, b"new".to_vec());
            let request = Request::Create {
                dir,
                name,
                file: file.clone(),
                open: false,
            };
            let answer = s.say(request).await;
            assert!(answer.as_ref().is_err_and(expected), "{file:?}: {answer:?}");
        }
        for kind in [
            FileKind::Directory,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
        ] {
            let (dir, file) = (s.dir, new_file(kind, 0o644));
            assert!(
                is_invalid(&s.say(Request::CreateUnnamed { dir, file }).await),
                "{kind:?}"
            );
        }
    });
}

#[test]
fn extended_attributes_that_cannot_be() {
    refused(async |_, s| {
        let inode = s.file;
        let set = |name: &[u8], len| Request::SetXattr {
            inode,
            name: name.to_vec(),
            value: vec![1; len],
            mode: XattrMode::Any,
        };
        for name in [&b""[..], b"user.\0", &[b'x'; 256]] {
            let answer = s.say(set(name, 1)).await;
            assert!(is_invalid(&answer), "{name:?}: {answer:?}");
            let name = name.to_vec();
            assert!(is_invalid(&s.say(Request::RemoveXattr { inode, name }).await));
        }
        assert_eq!(s.say(set(b"user.a", XATTR_VALUE_MAX + 1)).await, Err(FsError::TooBig));
        for name in [
            &b"system.posix_acl_access"[..],
            b"system.posix_acl_default",
            b"system.other",
        ] {
            let answer = s.say(set(name, 4)).await;
            assert!(matches!(answer, Err(FsError::NotSupported(_))), "{answer:?}");
        }
        // a list of owner, group and others, without a mask: somebody is named
        let mut list = 2u32.to_le_bytes().to_vec();
        for tag in [1u16, 2, 4, 32] {
            list.extend(tag.to_le_bytes());
            list.extend([7, 0, 9, 0, 0, 0]);
        }
        let request = Request::SetXattr {
            inode,
            name: b"system.posix_acl_access".to_vec(),
            value: list.clone(),
            mode: XattrMode::Any,
        };
        assert!(is_invalid(&s.say(request).await));
        let mut file = new_file(FileKind::File, 0o644);
        file.xattrs = vec![(b"system.posix_acl_access".to_vec().into(), list.into())];
        let request = Request::Create {
            dir: s.dir,
            name: b"with-attributes".to_vec(),
            file,
            open: false,
        };
        assert!(is_invalid(&s.say(request).await), "they are inherited, never sent");
        assert_eq!(s.say(set(b"polvo.placement", 4)).await, Err(FsError::NotDirectory));
        let inode = s.dir;
        let request = Request::SetXattr {
            inode,
            name: b"polvo.placement".to_vec(),
            value: b"mine".to_vec(),
            mode: XattrMode::Any,
        };
        assert!(is_invalid(&s.say(request).await));
    });
}

#[test]
fn offsets_and_lengths_that_no_file_has() {
    refused(async |_, s| {
        let inode = s.file;
        let last = i64::MAX as u64;
        for offset in [last, last - 1, 1 << 63, u64::MAX, u64::MAX - 2] {
            let (append, known, bytes) = (false, Tail::default(), b"lie".to_vec());
            let request = Request::Write {
                inode,
                offset,
                append,
                known,
                bytes,
            };
            assert_eq!(s.say(request).await, Err(FsError::FileTooLarge), "{offset}");
            for mode in [FallocateMode::PunchHole, FallocateMode::ZeroRange { keep_size: false }] {
                for (offset, len) in [(offset, 3), (3, offset)] {
                    let request = Request::Fallocate {
                        inode,
                        mode,
                        offset,
                        len,
                    };
                    assert_eq!(s.say(request).await, Err(FsError::FileTooLarge), "{offset} {len}");
                }
            }
        }
        for size in [last + 1, u64::MAX] {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            assert_eq!(s.say(Request::SetAttr { inode, set }).await, Err(FsError::FileTooLarge));
        }
        let (mode, offset, len) = (FallocateMode::PunchHole, 0, 0);
        let nothing = Request::Fallocate {
            inode,
            mode,
            offset,
            len,
        };
        assert!(is_invalid(&s.say(nothing).await));
        for (first, last) in [(1, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let range = LockRange { first, last };
            let lock = lock_of(3, LockMode::Shared, range);
            let wait = None;
            assert!(is_invalid(&s.say(Request::Lock { inode, lock, wait }).await));
            assert!(is_invalid(&s.say(Request::TestLock { inode, lock }).await));
            assert!(is_invalid(&s.say(Request::Unlock { inode, owner: 3, range }).await));
            assert!(is_invalid(&s.say(claims(inode, range, 1)).await));
        }
        assert!(is_invalid(
            &s.say(claims(inode, LockRange::ALL, LOCK_CLAIMS_MAX + 1)).await
        ));
        assert_eq!(
            s.say(claims(inode, LockRange::ALL, LOCK_CLAIMS_MAX)).await,
            Ok(Reply::Claimed(None))
        );
        let known = s.say(Request::Extents { inode, from: u64::MAX }).await;
        assert!(
            matches!(&known, Ok(Reply::FileMap(map)) if map.extents.is_empty()),
            "{known:?}"
        );
        let known = s
            .say(Request::ReadDir {
                dir: s.dir,
                after: u64::MAX,
                max: u32::MAX,
            })
            .await;
        assert!(
            matches!(&known, Ok(Reply::Entries(page)) if page.entries.is_empty()),
            "{known:?}"
        );
    });
}

#[test]
fn absurd_counts() {
    refused(async |_, s| {
        let inode = s.file;
        let over = [
            Request::Write {
                inode,
                offset: 0,
                append: true,
                known: Tail::default(),
                bytes: vec![1; EAGER_MAX + 1],
            },
            Request::Release {
                inodes: vec![inode; RELEASE_MAX + 1],
            },
            Request::ReturnSpace {
                runs: vec![s.ours; RELEASE_MAX + 1],
            },
            Request::Attach {
                version: PROTOCOL_VERSION,
                name: "x".repeat(CLIENT_NAME_MAX + 1),
                home: None,
                fence: 0,
                syncs: true,
            },
        ];
        for request in over {
            let answer = s.say(request).await;
            assert!(is_invalid(&answer), "{answer:?}");
        }
        let crowd = Cred::User {
            uid: 0,
            gid: 0,
            groups: vec![0; GROUPS_MAX + 1],
        };
        let answer = s.say_as(Request::Map, |call| call.cred = crowd).await;
        assert!(is_invalid(&answer), "{answer:?}");
        let region = s.region;
        let answer = s.say(Request::Segments { region, from: u32::MAX }).await;
        assert!(
            matches!(&answer, Ok(Reply::Segments(map)) if map.segments.is_empty()),
            "{answer:?}"
        );
        for page in [1, 2, u64::MAX] {
            let answer = s.say(Request::Check { region, page }).await;
            assert!(is_invalid(&answer), "{answer:?}");
        }
        let answer = s.say(Request::Heartbeat { tick: u64::MAX }).await;
        assert!(matches!(answer, Ok(Reply::Renewed { .. })), "{answer:?}");
        let home = Some(NodeId(u16::MAX));
        let (version, name, fence) = (PROTOCOL_VERSION, "liar".into(), u64::MAX);
        assert!(
            s.say(Request::Attach {
                version,
                name,
                home,
                fence,
                syncs: false,
            })
            .await
            .is_ok()
        );
    });
}

#[test]
fn an_absurd_wish_for_space_is_granted_in_part() {
    let options = ClusterOptions {
        seed: 63,
        nodes: 1,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let (liar, other) = (Caller::new(cluster, "liar"), Caller::new(cluster, "other"));
        let region = RegionId(0);
        let runs = liar.delegate(region, u32::MAX).await.unwrap();
        let pages: u32 = runs.iter().map(|run| run.pages).sum();
        let Ok(Reply::Usage(usage)) = liar.ask_node(0, Request::Usage).await else {
            panic!("no usage")
        };
        assert_eq!(usage.data_bytes, u64::from(pages) * 4096);
        assert!(
            u64::from(pages) * 4096 <= usage.total_bytes / 3,
            "others get some: {pages}"
        );
        let file = other.create(ROOT, "f").await.unwrap();
        other.write_active(file, 0, &pattern(200_000, 1)).await.unwrap();
        let request = Request::ReturnSpace { runs };
        assert_eq!(liar.ask(region, request).await, Ok(Reply::Done));
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

/// Pages of a check come in order; another one than the next is not handed out (nor is its number counted on).
#[test]
fn pages_of_a_check_that_were_not_named() {
    let options = ClusterOptions {
        seed: 62,
        nodes: 1,
        regions_per_node: 1,
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "liar");
        for i in 0..1600 {
            c.create(ROOT, &format!("f{i}")).await.unwrap();
        }
        let region = RegionId(0);
        let ask = |page| c.ask_node(0, Request::Check { region, page });
        let Ok(Reply::Facts(first)) = ask(0).await else {
            panic!("no facts")
        };
        assert_eq!(first.next, Some(1));
        for page in [2, 3, u64::MAX] {
            assert!(is_invalid(&ask(page).await), "{page}");
        }
        assert!(matches!(ask(1).await, Ok(Reply::Facts(_))));
        assert!(is_invalid(&ask(1).await), "handed out already");
    });
}

/// Claims so many locks that nobody has given.
fn claims(inode: InodeRef, range: LockRange, count: usize) -> Request {
    let locked = Locked {
        range,
        mode: LockMode::Shared,
        pid: 1,
    };
    Request::ClaimLocks {
        inode,
        owner: 3,
        term: LockTerm(1),
        ranges: vec![locked; count],
        whole: None,
    }
}
