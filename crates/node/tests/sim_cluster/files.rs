//! What is in files: their bytes and attributes, and who has them open.

use super::with_cluster;
use crate::common::*;
use polvo_format::{FileKind, Tail};
use polvo_proto::*;

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
