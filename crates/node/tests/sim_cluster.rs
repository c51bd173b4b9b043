//! Three nodes and a client in one thread, without sockets, files or real time: the operations of a file system at the
//! level of requests.

mod common;

use common::*;
use polvo_cluster::{MapCell, RegionVerb, SessionContext};
use polvo_format::{FileKind, Ino, NodeId, Tail};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;

fn with_cluster(test: impl AsyncFnOnce(&mut Cluster)) {
    run(
        ClusterOptions {
            seed: 7,
            ..ClusterOptions::default()
        },
        async |cluster| {
            test(cluster).await;
            cluster.rest().await;
            assert_eq!(cluster.check(), Vec::<String>::new());
        },
    );
}

#[test]
fn names_come_and_go() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let file = c.create(dir, "file").await.unwrap();
        assert_eq!(c.create(dir, "file").await, Err(FsError::Exists));
        assert_eq!(c.mkdir(dir, "file").await, Err(FsError::Exists));
        assert_eq!(c.find(dir, "file").await, Ok(file));
        assert_eq!(c.find(dir, "none").await, Err(FsError::NotFound));
        assert_eq!(c.attr(ROOT).await.unwrap().nlink, 3);
        assert_eq!(c.unlink(dir, "none").await, Err(FsError::NotFound));
        assert_eq!(c.unlink(ROOT, "dir").await, Err(FsError::IsDirectory));
        assert_eq!(c.rmdir(dir, "file").await, Err(FsError::NotDirectory));
        assert_eq!(c.rmdir(ROOT, "dir").await, Err(FsError::NotEmpty));
        assert_eq!(c.create(file, "below").await, Err(FsError::NotDirectory));
        c.unlink(dir, "file").await.unwrap();
        assert_eq!(c.attr(file).await, Err(FsError::Stale));
        c.rmdir(ROOT, "dir").await.unwrap();
        assert_eq!(c.attr(ROOT).await.unwrap().nlink, 2);
        assert_eq!(c.names(ROOT).await, Ok(vec![]));
        assert!(matches!(
            c.create(dir, "late").await,
            Err(FsError::Stale | FsError::NotFound)
        ));
    });
}

#[test]
fn names_as_long_and_as_strange_as_posix_allows() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let long = "x".repeat(255);
        let file = c.create(ROOT, &long).await.unwrap();
        assert_eq!(c.find(ROOT, &long).await, Ok(file));
        assert_eq!(c.create(ROOT, &"x".repeat(256)).await, Err(FsError::NameTooLong));
        assert_eq!(c.create(ROOT, "..").await, Err(FsError::Exists));
        assert!(matches!(c.create(ROOT, "a/b").await, Err(FsError::Invalid(_))));
        assert_eq!(c.create(ROOT, "").await, Err(FsError::NotFound));
        c.create(ROOT, "\u{1f419} \n\t*").await.unwrap();
        assert_eq!(c.names(ROOT).await.unwrap().len(), 2);
        assert!(matches!(c.rmdir(ROOT, ".").await, Err(FsError::Invalid(_))));
        assert_eq!(c.rmdir(ROOT, "..").await, Err(FsError::NotEmpty));
    });
}

#[test]
fn hard_links_count_and_directories_have_none() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let mut files = Vec::new();
        for node in 0..3 {
            let dir = c.directory_at(cluster, node, "d").await;
            for other in 0..3 {
                let (name, file) = c.file_at(cluster, ROOT, other, &format!("f{node}{other}-")).await;
                assert_eq!(c.link(file, dir, "linked").await.unwrap().nlink, 2);
                assert_eq!(c.link(file, dir, "linked").await, Err(FsError::Exists));
                c.unlink(ROOT, &name).await.unwrap();
                assert_eq!(c.attr(file).await.unwrap().nlink, 1);
                c.rename(dir, "linked", dir, &name).await.unwrap();
                files.push((dir, name, file));
            }
            assert_eq!(c.link(dir, ROOT, "no").await, Err(FsError::NotPermitted));
        }
        for (dir, name, file) in files {
            assert_eq!(c.find(dir, &name).await, Ok(file));
            c.unlink(dir, &name).await.unwrap();
            assert_eq!(c.attr(file).await, Err(FsError::Stale));
        }
    });
}

#[test]
fn rename_within_and_across_nodes() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        for from in 0..3 {
            for to in 0..3 {
                let a = c.directory_at(cluster, from, "a").await;
                let b = c.directory_at(cluster, to, "b").await;
                let (_, file) = c.file_at(cluster, a, (from + 1) % 3, "f").await;
                let name = c.names(a).await.unwrap().remove(0);
                c.rename(a, &name, b, "moved").await.unwrap();
                assert_eq!(c.find(a, &name).await, Err(FsError::NotFound));
                assert_eq!(c.find(b, "moved").await, Ok(file));
                // over an existing file, which dies
                let (_, victim) = c.file_at(cluster, a, (to + 2) % 3, "victim").await;
                let name = c.names(a).await.unwrap().remove(0);
                c.rename(b, "moved", a, &name).await.unwrap();
                assert_eq!(c.attr(victim).await, Err(FsError::Stale));
                assert_eq!(c.find(a, &name).await, Ok(file));
                // directories, into one another
                let sub = c.mkdir(a, "sub").await.unwrap();
                c.rename(a, "sub", b, "sub").await.unwrap();
                assert_eq!((c.attr(a).await.unwrap().nlink, c.attr(b).await.unwrap().nlink), (2, 3));
                let parent = cluster.node(0).new_links();
                let parent = parent
                    .call_region(sub.ino.region(), Cred::Kernel, Request::Parent { inode: sub })
                    .await;
                assert_eq!(parent, Ok(Reply::Parent(b)));
                assert!(matches!(
                    c.rename(ROOT, "nothing", b, "x").await,
                    Err(FsError::NotFound)
                ));
                c.rmdir(b, "sub").await.unwrap();
                c.unlink(a, &name).await.unwrap();
                for name in c.names(ROOT).await.unwrap() {
                    c.rmdir(ROOT, &name).await.unwrap();
                }
            }
        }
    });
}

#[test]
fn rename_refuses_what_linux_refuses() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let a = c.mkdir(ROOT, "a").await.unwrap();
        let b = c.mkdir(a, "b").await.unwrap();
        let d = c.mkdir(b, "d").await.unwrap();
        let file = c.create(ROOT, "file").await.unwrap();
        c.create(b, "inside").await.unwrap();
        let into_itself = |result| assert!(matches!(result, Err(FsError::Invalid(_))), "{result:?}");
        into_itself(c.rename(ROOT, "a", a, "x").await);
        into_itself(c.rename(ROOT, "a", b, "x").await);
        into_itself(c.rename(ROOT, "a", d, "x").await);
        into_itself(c.rename_with(b, "d", ROOT, "a", RenameMode::Exchange).await);
        assert_eq!(c.rename(b, "d", ROOT, "a").await, Err(FsError::NotEmpty));
        assert_eq!(c.rename(b, "d", a, "b").await, Err(FsError::NotEmpty));
        assert_eq!(c.rename(ROOT, "file", ROOT, "a").await, Err(FsError::IsDirectory));
        assert_eq!(c.rename(ROOT, "a", ROOT, "file").await, Err(FsError::NotDirectory));
        assert_eq!(c.rename(ROOT, "none", ROOT, "x").await, Err(FsError::NotFound));
        assert_eq!(c.rename(ROOT, "file", file, "x").await, Err(FsError::NotDirectory));
        let no_replace = RenameMode::NoReplace;
        assert_eq!(
            c.rename_with(ROOT, "file", b, "inside", no_replace).await,
            Err(FsError::Exists)
        );
        c.rename_with(ROOT, "file", b, "outside", no_replace).await.unwrap();
        assert_eq!(
            c.rename_with(b, "outside", ROOT, "none", RenameMode::Exchange).await,
            Err(FsError::NotFound)
        );
        // the same file under two names: nothing happens
        c.link(file, ROOT, "again").await.unwrap();
        c.rename(ROOT, "again", b, "outside").await.unwrap();
        assert_eq!(c.attr(file).await.unwrap().nlink, 2);
        c.rename(ROOT, "again", ROOT, "again").await.unwrap();
        assert_eq!(c.find(ROOT, "again").await, Ok(file));
        // an empty directory is replaced
        c.mkdir(ROOT, "empty").await.unwrap();
        c.rename(b, "d", ROOT, "empty").await.unwrap();
        assert_eq!(c.find(ROOT, "empty").await, Ok(d));
    });
}

#[test]
fn a_whiteout_is_left_at_the_old_name() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let kept = c.directory_at(cluster, 1, "a").await;
        let other = c.directory_at(cluster, 2, "b").await;
        let whiteout = |replace| RenameMode::Whiteout { replace, owner: (7, 8) };
        for (n, (from, to)) in [(kept, kept), (kept, other), (other, kept)].into_iter().enumerate() {
            for is_directory in [false, true] {
                let (old, new) = (format!("old{n}{is_directory}"), format!("new{n}{is_directory}"));
                let moved = match is_directory {
                    false => c.create(from, &old).await.unwrap(),
                    true => c.mkdir(from, &old).await.unwrap(),
                };
                c.rename_with(from, &old, to, &new, whiteout(false)).await.unwrap();
                assert_eq!(c.find(to, &new).await, Ok(moved));
                let left = c.find(from, &old).await.unwrap();
                let attr = c.attr(left).await.unwrap();
                assert_eq!((attr.kind, attr.rdev, attr.mode), (FileKind::CharDevice, 0, 0));
                assert_eq!((attr.nlink, attr.uid, attr.gid), (1, 7, 8));
                // the new name, which exists
                assert_eq!(
                    c.rename_with(from, &old, to, &new, whiteout(false)).await,
                    Err(FsError::Exists)
                );
                if !is_directory {
                    c.rename_with(from, &old, to, &new, whiteout(true)).await.unwrap();
                    assert_eq!(c.find(to, &new).await, Ok(left), "a whiteout is moved like a file");
                    assert_ne!(c.find(from, &old).await, Ok(left));
                    assert!(c.attr(moved).await.is_err(), "replaced");
                }
                c.unlink(from, &old).await.unwrap();
            }
        }
        assert_eq!(
            c.rename_with(kept, "none", other, "x", whiteout(true)).await,
            Err(FsError::NotFound)
        );
    });
}

#[test]
fn exchange_swaps_whatever_the_two_are() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let a = c.directory_at(cluster, 1, "a").await;
        let b = c.directory_at(cluster, 2, "b").await;
        let dir = c.mkdir(a, "x").await.unwrap();
        let file = c.create(b, "y").await.unwrap();
        c.rename_with(a, "x", b, "y", RenameMode::Exchange).await.unwrap();
        assert_eq!((c.find(a, "x").await, c.find(b, "y").await), (Ok(file), Ok(dir)));
        assert_eq!((c.attr(a).await.unwrap().nlink, c.attr(b).await.unwrap().nlink), (2, 3));
        c.rename_with(b, "y", a, "x", RenameMode::Exchange).await.unwrap();
        assert_eq!((c.find(a, "x").await, c.find(b, "y").await), (Ok(dir), Ok(file)));
        assert_eq!((c.attr(a).await.unwrap().nlink, c.attr(b).await.unwrap().nlink), (3, 2));
    });
}

#[test]
fn data_goes_by_message_or_one_sided_and_reads_the_same() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let file = c.create(ROOT, "file").await.unwrap();
        let big = pattern(300_000, 1);
        c.write_active(file, 0, &big).await.unwrap();
        let small = pattern(1000, 2);
        c.write(file, 5000, &small).await.unwrap();
        c.write_active(file, 400_000, &small).await.unwrap();
        let mut expected = big.clone();
        expected[5000..6000].copy_from_slice(&small);
        expected.resize(400_000, 0);
        expected.extend_from_slice(&small);
        assert_eq!(c.read(file).await.unwrap(), expected);
        let cut = SetAttr {
            size: Some(7000),
            ..SetAttr::default()
        };
        assert_eq!(c.set(file, cut).await.unwrap().size, 7000);
        expected.truncate(7000);
        assert_eq!(c.read(file).await.unwrap(), expected);
        let region = file.ino.region();
        let hole = Request::Fallocate {
            inode: file,
            mode: FallocateMode::PunchHole,
            offset: 100,
            len: 5000,
        };
        c.ask(region, hole).await.unwrap();
        expected[100..5100].fill(0);
        assert_eq!(c.read(file).await.unwrap(), expected);
    });
}

#[test]
fn two_clients_see_each_other_at_once() {
    with_cluster(async |cluster| {
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        let file = a.create(ROOT, "file").await.unwrap();
        assert_eq!(b.find(ROOT, "file").await, Ok(file));
        a.write(file, 0, b"one").await.unwrap();
        assert_eq!(b.read(file).await.unwrap(), b"one");
        let append = |bytes: &[u8]| Request::Write {
            inode: file,
            offset: 0,
            append: true,
            known: Tail::default(),
            bytes: bytes.to_vec(),
        };
        let region = file.ino.region();
        let (x, y) = tokio::join!(a.ask(region, append(b"AAA")), b.ask(region, append(b"BBB")));
        let at = |answer: Answer| match answer.unwrap() {
            Reply::Written(written) => written.offset,
            other => panic!("{other:?}"),
        };
        let mut places = [at(x), at(y)];
        places.sort();
        assert_eq!(places, [3, 6]);
        b.rename(ROOT, "file", ROOT, "other").await.unwrap();
        assert_eq!(a.find(ROOT, "file").await, Err(FsError::NotFound));
    });
}

#[test]
fn symbolic_links_and_special_files() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let target = vec![b't'; 4095];
        let link = NewFile {
            target: target.clone(),
            umask: 0,
            xattrs: Vec::new(),
            ..new_file(FileKind::Symlink, 0o777)
        };
        let link = c.make(ROOT, "link", link, false).await.unwrap();
        let read = c.ask(link.ino.region(), Request::ReadLink { inode: link }).await;
        assert!(
            matches!(&read, Ok(Reply::Target { target: read, .. }) if *read == target),
            "{read:?}"
        );
        let too_long = NewFile {
            target: vec![b't'; 4096],
            umask: 0,
            xattrs: Vec::new(),
            ..new_file(FileKind::Symlink, 0o777)
        };
        assert_eq!(c.make(ROOT, "long", too_long, false).await, Err(FsError::NameTooLong));
        let device = NewFile {
            rdev: 0x0103,
            ..new_file(FileKind::CharDevice, 0o666)
        };
        let device = c.make(ROOT, "null", device, false).await.unwrap();
        assert_eq!(c.attr(device).await.unwrap().rdev, 0x0103);
        for (name, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket)] {
            let inode = c.make(ROOT, name, new_file(kind, 0o600), false).await.unwrap();
            assert_eq!(c.attr(inode).await.unwrap().kind, kind);
        }
    });
}

#[test]
fn extended_attributes() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let inode = c.create(ROOT, "file").await.unwrap();
        let region = inode.ino.region();
        let set = |name: &str, value: Vec<u8>, mode| Request::SetXattr {
            inode,
            name: name.into(),
            value,
            mode,
        };
        c.ask(region, set("user.a", vec![1; XATTR_VALUE_MAX], XattrMode::Create))
            .await
            .unwrap();
        let again = c.ask(region, set("user.a", vec![2], XattrMode::Create)).await;
        assert_eq!(again, Err(FsError::Exists));
        assert_eq!(
            c.ask(region, set("user.b", vec![2], XattrMode::Replace)).await,
            Err(FsError::NoAttribute)
        );
        assert_eq!(
            c.ask(region, set("user.b", vec![0; XATTR_VALUE_MAX + 1], XattrMode::Any))
                .await,
            Err(FsError::TooBig)
        );
        let get = c
            .ask(
                region,
                Request::GetXattr {
                    inode,
                    name: b"user.a".to_vec(),
                },
            )
            .await;
        assert_eq!(get, Ok(Reply::Bytes(vec![1; XATTR_VALUE_MAX])));
        let user = c.as_user(user(9));
        assert_eq!(
            user.ask(region, set("user.c", vec![1], XattrMode::Any)).await,
            Err(FsError::Access)
        );
        assert_eq!(
            user.ask(region, set("trusted.c", vec![1], XattrMode::Any)).await,
            Err(FsError::NotPermitted)
        );
        c.ask(
            region,
            Request::RemoveXattr {
                inode,
                name: b"user.a".to_vec(),
            },
        )
        .await
        .unwrap();
        assert_eq!(
            c.ask(region, Request::ListXattr { inode }).await,
            Ok(Reply::Names(vec![]))
        );
    });
}

#[test]
fn a_file_lives_while_it_is_held_open() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        for node in 0..3 {
            let (name, file) = c.file_at(cluster, ROOT, node, "f").await;
            c.write(file, 0, b"still here").await.unwrap();
            c.open(file).await.unwrap();
            c.unlink(ROOT, &name).await.unwrap();
            assert_eq!(c.attr(file).await.unwrap().nlink, 0);
            assert_eq!(c.read(file).await.unwrap(), b"still here");
            let beat = c.ask_node(node, Request::Heartbeat { tick: 0 }).await.unwrap();
            assert!(matches!(beat, Reply::Renewed { recall, .. } if recall == [file]));
            assert_eq!(
                c.link(file, ROOT, "back").await,
                Err(FsError::NotFound),
                "what was unlinked stays so"
            );
            c.release(file).await.unwrap();
            assert_eq!(c.attr(file).await, Err(FsError::Stale));
        }
    });
}

#[test]
fn a_file_made_open_is_held_from_the_first_moment() {
    with_cluster(async |cluster| {
        let (c, other) = (Caller::new(cluster, "client"), Caller::new(cluster, "other"));
        for i in 0..12 {
            let name = format!("f{i}");
            let file = c
                .make(ROOT, &name, new_file(FileKind::File, 0o600), true)
                .await
                .unwrap();
            other.unlink(ROOT, &name).await.unwrap();
            assert_eq!(
                c.attr(file).await.unwrap().nlink,
                0,
                "on node {}",
                primary(cluster, file)
            );
            c.release(file).await.unwrap();
            assert_eq!(c.attr(file).await, Err(FsError::Stale));
        }
    });
}

#[test]
fn one_session_at_a_time_may_map_a_file_shared_and_writable() {
    use MapClaim::{IfAlone, No, Still};
    with_cluster(async |cluster| {
        let [a, b, reader] = ["a", "b", "reader"].map(|name| Caller::new(cluster, name));
        for node in 0..3 {
            let (_, file) = a.file_at(cluster, ROOT, node, &format!("f{node}")).await;
            reader.open(file).await.unwrap();
            assert_eq!(
                a.may_map(file, IfAlone, 1).await,
                Ok(true),
                "readers are not in the way"
            );
            assert_eq!(b.may_map(file, IfAlone, 1).await, Ok(false));
            a.end_writing(file, 0).await.unwrap();
            assert_eq!(
                b.may_map(file, IfAlone, 2).await,
                Ok(false),
                "the end was of an earlier open"
            );
            a.end_writing(file, 1).await.unwrap();
            assert_eq!(a.may_map(file, IfAlone, 2).await, Ok(false), "another writes");
            b.end_writing(file, 2).await.unwrap();
            assert_eq!(a.may_map(file, IfAlone, 3).await, Ok(true));
            // the hold goes, and the right with it
            a.release(file).await.unwrap();
            assert_eq!(b.may_map(file, IfAlone, 3).await, Ok(true));
            // the session goes
            b.links.detach().await;
            assert_eq!(a.may_map(file, No, 4).await, Ok(false), "it did not ask for it");
            assert_eq!(a.may_map(file, IfAlone, 5).await, Ok(true));
            // the node is started anew, and whoever only wrote is quicker
            cluster.crash(node).await;
            cluster.restart(node).await.unwrap();
            assert_eq!(b.may_map(file, No, 4).await, Ok(false));
            assert_eq!(a.may_map(file, Still, 6).await, Ok(true));
            assert_eq!(b.may_map(file, IfAlone, 5).await, Ok(false));
            b.end_writing(file, 5).await.unwrap();
            // somebody else is quicker
            cluster.crash(node).await;
            cluster.restart(node).await.unwrap();
            assert_eq!(b.may_map(file, IfAlone, 6).await, Ok(true));
            assert_eq!(a.may_map(file, Still, 7).await, Ok(false));
            // the session expires
            let silent = Caller::new(cluster, "silent");
            b.release(file).await.unwrap();
            a.release(file).await.unwrap();
            assert_eq!(silent.may_map(file, IfAlone, 1).await, Ok(true));
            drop(silent);
            cluster.sleep(cluster.timeouts().lease * 2).await;
            assert_eq!(a.may_map(file, IfAlone, 8).await, Ok(true));
            a.release(file).await.unwrap();
        }
    });
}

#[test]
fn who_makes_a_file_open_may_map_it() {
    with_cluster(async |cluster| {
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        for i in 0..8 {
            let file = a
                .make(ROOT, &format!("f{i}"), new_file(FileKind::File, 0o600), true)
                .await
                .unwrap();
            assert_eq!(b.may_map(file, MapClaim::IfAlone, 1).await, Ok(false));
            a.end_writing(file, 0).await.unwrap();
            assert_eq!(b.may_map(file, MapClaim::IfAlone, 2).await, Ok(true));
            assert_eq!(
                a.as_user(user(7)).may_map(file, MapClaim::No, 1).await,
                Err(FsError::Access),
                "who may not write is in nobody's way"
            );
        }
    });
}

#[test]
fn files_without_a_name_can_get_one() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let mut nodes = std::collections::BTreeSet::new();
        for i in 0..12 {
            let request = Request::CreateUnnamed {
                dir: ROOT,
                file: new_file(FileKind::File, 0o600),
            };
            let file = match c.ask(ROOT.ino.region(), request).await.unwrap() {
                Reply::Made(made) => inode_of(&made.attr),
                other => panic!("{other:?}"),
            };
            nodes.insert(primary(cluster, file));
            c.write(file, 0, b"unnamed").await.unwrap();
            assert_eq!(c.attr(file).await.unwrap().nlink, 0);
            if i % 2 == 0 {
                assert_eq!(c.link(file, ROOT, &format!("named{i}")).await.unwrap().nlink, 1);
            }
            c.release(file).await.unwrap();
            assert_eq!(c.attr(file).await.is_ok(), i % 2 == 0);
        }
        assert!(nodes.len() > 1, "spread over nodes");
        assert_eq!(c.names(ROOT).await.unwrap().len(), 6);
    });
}

#[test]
fn users_are_checked_and_mounts_are_not() {
    with_cluster(async |cluster| {
        let root = Caller::new(cluster, "client");
        let (alice, bob) = (root.as_user(user(1)), root.as_user(user(2)));
        assert_eq!(alice.create(ROOT, "x").await, Err(FsError::Access));
        let tmp = root
            .make(ROOT, "tmp", new_file(FileKind::Directory, 0o1777), false)
            .await
            .unwrap();
        let file = alice.create(tmp, "mine").await.unwrap();
        let attr = alice.attr(file).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode), (1, 1, 0o644));
        assert_eq!(bob.write(file, 0, b"x").await, Err(FsError::Access));
        assert_eq!(bob.unlink(tmp, "mine").await, Err(FsError::NotPermitted), "sticky");
        assert_eq!(bob.rename(tmp, "mine", tmp, "his").await, Err(FsError::NotPermitted));
        let chmod = |mode| SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        assert_eq!(bob.set(file, chmod(0o777)).await, Err(FsError::NotPermitted));
        alice.set(file, chmod(0o4766)).await.unwrap();
        bob.write(file, 0, b"x").await.unwrap();
        assert_eq!(
            alice.attr(file).await.unwrap().mode,
            0o766,
            "a write takes the set-user-id bit away"
        );
        let group = root
            .make(ROOT, "group", new_file(FileKind::Directory, 0o2777), false)
            .await
            .unwrap();
        root.set(
            group,
            SetAttr {
                gid: Some(50),
                ..SetAttr::default()
            },
        )
        .await
        .unwrap();
        let sub = alice.mkdir(group, "sub").await.unwrap();
        let attr = alice.attr(sub).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode), (1, 50, 0o2755));
        let closed = root
            .make(ROOT, "closed", new_file(FileKind::Directory, 0o700), false)
            .await
            .unwrap();
        assert_eq!(bob.find(closed, "x").await, Err(FsError::Access));
        assert_eq!(bob.names(closed).await, Err(FsError::Access));
        alice.unlink(tmp, "mine").await.unwrap();
    });
}

#[test]
fn two_choices_spread_inodes_evenly() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let mut dirs = vec![ROOT];
        for i in 0..20 {
            dirs.push(c.mkdir(dirs[i / 3], &format!("d{i}")).await.unwrap());
        }
        const FILES: usize = 2400;
        for i in 0..FILES {
            c.create(dirs[i % dirs.len()], &format!("file-{i}")).await.unwrap();
        }
        let mut total = 0;
        let mut of_node = Vec::new();
        for node in 0..3 {
            let Ok(Reply::Usage(usage)) = c.ask_node(node, Request::Usage).await else {
                panic!("usage")
            };
            total += usage.inodes;
            of_node.push(usage.inodes);
        }
        assert_eq!(total as usize, FILES + 21);
        for count in &of_node {
            let percent = count * 100 / total;
            assert!((20..=47).contains(&percent), "{of_node:?}");
        }
    });
}

#[test]
fn placement_local_keeps_files_at_the_creators_node() {
    with_cluster(async |cluster| {
        let c = Caller::at_home(cluster, "client", 2);
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let (name, value, mode) = (b"polvo.placement".to_vec(), b"local".to_vec(), XattrMode::Any);
        c.ask(
            dir.ino.region(),
            Request::SetXattr {
                inode: dir,
                name,
                value,
                mode,
            },
        )
        .await
        .unwrap();
        let sub = c.mkdir(dir, "sub").await.unwrap();
        for i in 0..10 {
            let file = c.create(sub, &format!("f{i}")).await.unwrap();
            assert_eq!(primary(cluster, file), 2, "inherited through {sub:?}");
        }
    });
}

#[test]
fn a_full_node_passes_new_files_on_and_a_full_cluster_says_so() {
    let options = ClusterOptions {
        seed: 3,
        regions_per_node: 1,
        pool_bytes: 6 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        let bytes = pattern(60_000, 1);
        let mut made = Vec::new();
        let full = loop {
            // a mapping of its own for each, so that data fills the pools
            let name = format!("f{}", made.len());
            let file = match c.create(ROOT, &name).await {
                Ok(file) => file,
                Err(error) => break error,
            };
            made.push(name);
            if made.len() % 100 == 0 {
                c.links.renew().await;
            }
            match c.write_active(file, 0, &bytes).await {
                Ok(_) => {}
                Err(FsError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(made.len() < 200_000);
        };
        assert_eq!(full, FsError::NoSpace);
        assert!(made.len() > 100 && made.len() < 20_000, "{}", made.len());
        for (i, name) in made.iter().enumerate() {
            if i % 100 == 0 {
                c.links.renew().await;
            }
            c.unlink(ROOT, name).await.unwrap();
        }
        c.links.renew().await;
        cluster.sleep(Duration::from_secs(20)).await;
        let file = c.create(ROOT, "again").await.unwrap();
        c.write_active(file, 0, &bytes).await.unwrap();
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

#[test]
fn status_is_json_that_tells_what_is_going_on() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "the client");
        let (_, file) = c.file_at(cluster, ROOT, 1, "f").await;
        c.open(file).await.unwrap();
        c.delegate(file.ino.region(), 10).await.unwrap();
        let Ok(Reply::Json(text)) = c.ask_node(1, Request::Status).await else {
            panic!("status")
        };
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["node"], 1);
        assert_eq!(status["listen"][0], "sim://node-1");
        let sessions = status["sessions"].as_array().unwrap();
        let ours = sessions.iter().find(|s| s["name"] == "the client").unwrap();
        assert_eq!((&ours["opens"], &ours["delegated_pages"]), (&1.into(), &10.into()));
        assert!(status["rpc"]["by_kind"]["Open"].as_u64() == Some(1), "{text}");
        assert_eq!(status["regions"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn the_online_check_pages_through_large_regions() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        for i in 0..2000 {
            c.create(ROOT, &format!("f{i}")).await.unwrap();
        }
        let mut steps = Vec::new();
        let findings = polvo_cluster::check_cluster(&c.links, &mut |done, total| steps.push((done, total))).await;
        assert_eq!(findings, Ok(vec![]));
        assert_eq!(steps, [(0, 6), (3, 6), (6, 6)]);
    });
}

#[test]
fn clients_may_not_do_what_nodes_do() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let txn = polvo_format::TxnId::new(NodeId(1), 1);
        let region = Ino::ROOT.region();
        let on_behalf = c.links.context().session();
        let refused = [
            Request::TxnState { txn },
            Request::RenameLock { txn, release: false },
            Request::Parent { inode: ROOT },
            Request::Collect {
                txn,
                region,
                on_behalf,
                open: false,
                intents: vec![],
            },
            Request::Prepare {
                txn,
                region,
                on_behalf,
                open: false,
                intents: vec![],
            },
            Request::Conclude {
                txn,
                region,
                commit: true,
            },
            Request::Fence,
        ];
        for request in refused {
            assert_eq!(
                c.ask_node(0, request.clone()).await,
                Err(FsError::NotPermitted),
                "{request:?}"
            );
        }
        assert_eq!(
            c.as_user(user(1)).ask_node(0, Request::Shutdown).await,
            Err(FsError::NotPermitted)
        );
        let map = c.links.segments(region, false).await.unwrap();
        assert_eq!(map.node_key, 0);
        let link = c.links.to(NodeId(0)).await.unwrap();
        let mut call = c.links.make_call(Cred::Kernel, Request::Map);
        call.session = polvo_format::SessionId(99);
        assert_eq!(
            link.call(&call).await,
            Err(FsError::NotPermitted),
            "a session that is not ours"
        );
        let garbage = link.rpc.call(&[0xff; 40], Duration::from_secs(1)).await.unwrap();
        assert!(matches!(decode_answer(&garbage), Ok(Err(FsError::Invalid(_)))));
    });
}

/// Space that was given in a session which is over may lie in a segment that is gone: that the session is over is what
/// counts, since whoever hears of it takes other space and goes on.
#[test]
fn space_of_a_session_that_is_over_is_not_looked_for() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "c");
        let region = ROOT.ino.region();
        let nowhere = polvo_format::Gpa::new(region, polvo_format::RegionOffset(1 << 40));
        for (is_ours, expected) in [(true, "invalid argument"), (false, "session expired")] {
            let mut write = [RegionVerb::WriteData {
                at: nowhere,
                bytes: &[7; 64],
            }];
            let error = c.links.one_sided_while(region, &mut write, || is_ours).await;
            let error = error.expect_err("there is nothing").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    });
}

#[test]
fn a_fence_ends_the_other_connections_of_a_node() {
    with_cluster(async |cluster| {
        let (reactor, thread) = (cluster.node(0).new_links(), cluster.node(0).new_links());
        let other_node = cluster.node(2).new_links();
        let to = NodeId(1);
        let (ours, theirs) = (reactor.to(to).await.unwrap(), thread.to(to).await.unwrap());
        let bystander = other_node.to(to).await.unwrap();
        assert_eq!(
            reactor.call_node(to, Cred::Kernel, Request::Fence).await,
            Ok(Reply::Done)
        );
        cluster.sleep(Duration::from_millis(100)).await;
        assert!(theirs.is_closed() && !ours.is_closed() && !bystander.is_closed());
        assert!(
            thread.call_node(to, Cred::Kernel, Request::Usage).await.is_ok(),
            "over a new one"
        );
    });
}

#[test]
fn a_request_repeated_is_done_once() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let file = new_file(FileKind::File, 0o600);
        let call = c.links.make_call(
            Cred::Kernel,
            Request::Create {
                dir: ROOT,
                name: b"f".into(),
                file,
                open: false,
            },
        );
        let link = c.links.to(NodeId(0)).await.unwrap();
        let (first, at_once) = tokio::join!(link.call(&call), link.call(&call));
        assert!(first.is_ok());
        assert_eq!(first, at_once);
        assert_eq!(link.call(&call).await, first);
        link.rpc.queue_pair().close();
        assert_eq!(
            c.links.send(NodeId(0), &call).await,
            first,
            "over another connection too"
        );
        assert_eq!(c.names(ROOT).await, Ok(vec!["f".to_string()]));
    });
}

/// A request that was sent over a connection that is lost: its answer if it was done, else it never will be.
#[test]
fn a_request_withdrawn_is_answered_or_never_done() {
    with_cluster(async |cluster| {
        let links = cluster.client("client");
        let thread = links.context().links();
        // the same set of links, connected anew before the node knows that it has lost anything
        let again = SessionContext::new(
            MapCell::new(cluster.map().clone()),
            cluster.client_identity(),
            links.context().session(),
            "client".into(),
            None,
            cluster.timeouts(),
            None,
        );
        cluster.network().place(again.memory(), "client again");
        let make = |name: &str| {
            let file = new_file(FileKind::File, 0o600);
            let name = name.into();
            links.make_call(
                Cred::Kernel,
                Request::Create {
                    dir: ROOT,
                    name,
                    file,
                    open: false,
                },
            )
        };
        let withdraw = |call: &polvo_proto::Call| polvo_proto::Call {
            request: Request::Withdraw,
            ..call.clone()
        };
        let (done, undone) = (make("done"), make("undone"));
        let old = links.to(NodeId(0)).await.unwrap();
        let bystander = thread.to(NodeId(0)).await.unwrap();
        let first = old.call(&done).await;
        assert!(first.is_ok());

        let slow = Duration::from_millis(500);
        cluster.network().set_delay_between("client", "node-0", slow..=slow);
        let late = tokio::task::spawn_local({
            let (old, undone) = (old.clone(), undone.clone());
            async move { old.call(&undone).await }
        });
        tokio::task::yield_now().await;
        let anew = again.links();
        let new = anew.to(NodeId(0)).await.unwrap();
        assert_eq!(new.call(&withdraw(&undone)).await, Ok(Reply::Withdrawn));
        assert_eq!(new.call(&withdraw(&done)).await, first);
        assert_eq!(new.call(&undone).await, Ok(Reply::Withdrawn), "it comes too late");
        let late = late.await.unwrap();
        assert!(matches!(late, Err(FsError::Unreachable { .. })), "{late:?}");
        assert!(old.is_closed() && !new.is_closed() && !bystander.is_closed());
        let names = Caller::new(cluster, "other").names(ROOT).await;
        assert_eq!(names, Ok(vec!["done".to_string()]));
    });
}

#[test]
fn a_client_inside_a_node_calls_it_directly() {
    with_cluster(async |cluster| {
        let node = cluster.node(1).clone();
        let context = node.client_context(cluster.next_session(), "mount".into());
        let links = context.links();
        let here = node.colocated();
        let ask = async |request| node.handle(&links, links.make_call(Cred::Kernel, request)).await;
        assert_eq!(ask(Request::Usage).await, Err(FsError::SessionExpired), "attach first");
        let attach = Request::Attach {
            version: PROTOCOL_VERSION,
            name: "mount".into(),
            home: Some(NodeId(1)),
            fence: 0,
        };
        assert!(matches!(ask(attach).await, Ok(Reply::Attached { node: NodeId(1), .. })));
        let elsewhere = ask(Request::GetAttr {
            ino: Ino::ROOT,
            generation: None,
        })
        .await;
        assert_eq!(
            elsewhere,
            Err(FsError::WrongEpoch),
            "the root is served by another node"
        );

        let c = Caller::new(cluster, "client");
        let dir = c.directory_at(cluster, 1, "d").await;
        let mut nodes = std::collections::BTreeSet::new();
        for i in 0..12 {
            let file = new_file(FileKind::File, 0o644);
            let create = Request::Create {
                dir,
                name: format!("f{i}").into_bytes(),
                file,
                open: true,
            };
            let file = match ask(create).await.unwrap() {
                Reply::Made(made) => inode_of(&made.attr),
                other => panic!("{other:?}"),
            };
            nodes.insert(primary(cluster, file));
            if primary(cluster, file) != 1 {
                continue;
            }
            let region = file.ino.region();
            let bytes = pattern(5000, i);
            let space = match ask(Request::Delegate { region, pages: 2 }).await.unwrap() {
                Reply::Space(space) => space,
                other => panic!("{other:?}"),
            };
            assert_eq!((space.len(), space[0].pages), (1, 2));
            let at = here.locate(space[0].gpa, bytes.len()).unwrap();
            here.pool().write_streaming(at, &bytes);
            here.pool().fence();
            let runs = vec![WriteRun {
                offset: 0,
                len: 5000,
                gpa: space[0].gpa,
            }];
            let commit = Request::Commit {
                inode: file,
                runs,
                append: false,
                crcs: Vec::new(),
                known: Tail::default(),
                want_pages: 0,
            };
            ask(commit).await.unwrap();
            let mut read = vec![0; 5000];
            here.pool().read(at, &mut read);
            assert_eq!(read, bytes);
            assert_eq!(c.read(file).await.unwrap(), bytes);
        }
        assert_eq!(nodes.len(), 3);
        ask(Request::Detach).await.unwrap();
        assert_eq!(ask(Request::Usage).await, Err(FsError::SessionExpired));
    });
}

#[test]
fn a_node_shuts_down_when_asked() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let (name, file) = c.file_at(cluster, ROOT, 1, "f").await;
        c.write(file, 0, b"kept").await.unwrap();
        c.ask_node(1, Request::Shutdown).await.unwrap();
        for _ in 0..100 {
            cluster.sleep(Duration::from_millis(50)).await;
        }
        assert!(!cluster.is_running(1));
        cluster.stop(1).await;
        assert!(matches!(c.attr(file).await, Err(FsError::Unreachable { .. })));
        cluster.restart(1).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(c.find(ROOT, &name).await, Ok(file));
        assert_eq!(c.read(file).await.unwrap(), b"kept");
    });
}

#[test]
fn the_same_seed_runs_the_same() {
    let trace = |seed| {
        run(
            ClusterOptions {
                seed,
                ..ClusterOptions::default()
            },
            async |cluster| {
                let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
                let work = async |c: &Caller, name: &str| {
                    for i in 0..30 {
                        let _ = c.create(ROOT, &format!("{}", i % 7)).await;
                        let _ = c
                            .rename(ROOT, &format!("{}", i % 5), ROOT, &format!("{name}{}", i % 3))
                            .await;
                    }
                };
                tokio::join!(work(&a, "x"), work(&b, "y"));
                (cluster.network().delivered(), c_names(&a).await)
            },
        )
    };
    assert_eq!(trace(5), trace(5));
}

async fn c_names(c: &Caller) -> Vec<String> {
    c.names(ROOT).await.unwrap()
}
