//! Names: made, removed, linked, renamed, without one.

use super::with_cluster;
use crate::common::*;
use polvo_format::FileKind;
use polvo_proto::*;

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
