//! All operations through clients of three simulated nodes, in one thread.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile, Whence};
use polvo_format::FileKind;
use polvo_proto::{FallocateMode, FsError, NewFile, RenameMode, SetAttr, TimeChange, XattrMode};
use std::rc::Rc;

/// The same operations through a client of its own and through a colocated one.
async fn all_operations(client: &Rc<LocalClient>) {
    let home = inode(&client.create(ROOT, b"home", directory()).await.expect("mkdir"));
    names(client, home).await;
    renames(client, home).await;
    links(client, home).await;
    data(client, home).await;
    attributes(client, home).await;
    paths(client).await;
    let (usage, missing) = client.usage().await.expect("usage");
    assert_eq!((usage.len(), missing.len()), (3, 0));
    client.sync(None).await.expect("sync");
}

async fn names(client: &LocalClient, home: polvo_proto::InodeRef) {
    let made = client.create(home, b"a", file()).await.expect("create");
    assert_eq!(made.kind, FileKind::File);
    assert_eq!(client.create(home, b"a", file()).await, Err(FsError::Exists));
    assert_eq!(client.lookup(home, b"a").await.expect("lookup"), made);
    assert_eq!(client.lookup(home, b"b").await, Err(FsError::NotFound));
    assert_eq!(client.resolve(made.ino).await, Ok(inode(&made)));
    assert_eq!(
        client.create(home, &[b'n'; 256], file()).await,
        Err(FsError::NameTooLong)
    );
    client
        .create(home, &[b'n'; 255], file())
        .await
        .expect("the longest name");
    for n in 0..300u32 {
        client
            .create(home, format!("many-{n}").as_bytes(), file())
            .await
            .expect("create");
    }
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let page = client.read_dir(home, after, 50).await.expect("read_dir").entries;
        let Some(last) = page.last() else { break };
        after = last.cookie;
        names.extend(page.into_iter().map(|entry| entry.name));
    }
    assert_eq!(names.len(), 302);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 302, "no entry comes twice");
    for n in 0..300u32 {
        let name = format!("many-{n}");
        client.lookup(home, name.as_bytes()).await.expect("lookup");
        client.unlink(home, name.as_bytes()).await.expect("unlink");
        assert_eq!(client.lookup(home, name.as_bytes()).await, Err(FsError::NotFound));
    }
    client.unlink(home, &[b'n'; 255]).await.expect("unlink");
    assert_eq!(client.unlink(home, b"nothing").await, Err(FsError::NotFound));
    assert_eq!(client.rmdir(home, b"a").await, Err(FsError::NotDirectory));
    let sub = inode(&client.create(home, b"sub", directory()).await.expect("mkdir"));
    assert_eq!(client.get_attr(home).await.expect("attr").nlink, 3);
    client.create(sub, b"x", file()).await.expect("create");
    assert_eq!(client.rmdir(home, b"sub").await, Err(FsError::NotEmpty));
    assert_eq!(client.unlink(home, b"sub").await, Err(FsError::IsDirectory));
    assert_eq!(client.lookup(sub, b"..").await.map(|a| a.ino), Ok(home.ino));
    client.unlink(sub, b"x").await.expect("unlink");
    client.rmdir(home, b"sub").await.expect("rmdir");
    assert_eq!(client.get_attr(sub).await, Err(FsError::Stale));
    assert_eq!(client.create(sub, b"x", file()).await, Err(FsError::Stale));
    client.unlink(home, b"a").await.expect("unlink");
    assert_eq!(client.get_attr(inode(&made)).await, Err(FsError::Stale));
}

async fn renames(client: &LocalClient, home: polvo_proto::InodeRef) {
    let one = inode(&client.create(home, b"one", directory()).await.expect("mkdir"));
    let two = inode(&client.create(home, b"two", directory()).await.expect("mkdir"));
    let a = client.create(one, b"a", file()).await.expect("create");
    client
        .rename(one, b"a", two, b"b", RenameMode::Replace)
        .await
        .expect("rename");
    assert_eq!(client.lookup(one, b"a").await, Err(FsError::NotFound));
    assert_eq!(client.lookup(two, b"b").await.map(|x| x.ino), Ok(a.ino));
    let c = client.create(one, b"c", file()).await.expect("create");
    assert_eq!(
        client.rename(one, b"c", two, b"b", RenameMode::NoReplace).await,
        Err(FsError::Exists)
    );
    client
        .rename(one, b"c", two, b"b", RenameMode::Exchange)
        .await
        .expect("exchange");
    assert_eq!(client.lookup(one, b"c").await.map(|x| x.ino), Ok(a.ino));
    assert_eq!(client.lookup(two, b"b").await.map(|x| x.ino), Ok(c.ino));
    client
        .rename(one, b"c", two, b"b", RenameMode::Replace)
        .await
        .expect("replace");
    assert_eq!(client.lookup(two, b"b").await.map(|x| x.ino), Ok(a.ino));
    assert_eq!(client.get_attr(inode(&c)).await, Err(FsError::Stale));
    client.link(inode(&a), two, b"twin").await.expect("link");
    client
        .rename(two, b"twin", two, b"b", RenameMode::Replace)
        .await
        .expect("a rename between names of one inode does nothing");
    assert_eq!(
        client.lookup(two, b"twin").await.map(|x| (x.ino, x.nlink)),
        Ok((a.ino, 2))
    );
    client.unlink(two, b"twin").await.expect("unlink");
    client
        .rename(home, b"one", two, b"inner", RenameMode::Replace)
        .await
        .expect("directory");
    assert_eq!(client.lookup(one, b"..").await.map(|x| x.ino), Ok(two.ino));
    let loop_made = client.rename(home, b"two", one, b"loop", RenameMode::Replace).await;
    assert!(matches!(loop_made, Err(FsError::Invalid(_))), "{loop_made:?}");
    client.rmdir(two, b"inner").await.expect("rmdir");
    client.unlink(two, b"b").await.expect("unlink");
    client.rmdir(home, b"two").await.expect("rmdir");
}

async fn links(client: &LocalClient, home: polvo_proto::InodeRef) {
    let a = client.create(home, b"a", file()).await.expect("create");
    assert_eq!(client.link(inode(&a), home, b"hard").await.map(|x| x.nlink), Ok(2));
    assert_eq!(
        client.lookup(home, b"hard").await.map(|x| (x.ino, x.nlink)),
        Ok((a.ino, 2))
    );
    assert_eq!(client.link(inode(&a), home, b"hard").await, Err(FsError::Exists));
    client.unlink(home, b"a").await.expect("unlink");
    assert_eq!(client.get_attr(inode(&a)).await.map(|x| x.nlink), Ok(1));
    client.unlink(home, b"hard").await.expect("unlink");
    let target = [b'/'; 4095];
    let soft = client.create(home, b"soft", symlink(&target)).await.expect("symlink");
    assert_eq!(client.read_link(inode(&soft)).await, Ok(target.to_vec()));
    assert_eq!(
        client.create(home, b"x", symlink(&[b'y'; 4096])).await,
        Err(FsError::NameTooLong)
    );
    client.unlink(home, b"soft").await.expect("unlink");
    let device = NewFile {
        rdev: 0x0103,
        ..new_file(FileKind::CharDevice, 0o600)
    };
    let null = client.create(home, b"null", device).await.expect("mknod");
    assert_eq!(
        client.lookup(home, b"null").await.map(|x| (x.kind, x.rdev)),
        Ok((FileKind::CharDevice, 0x0103))
    );
    assert_eq!(null.mode, 0o600);
    client.unlink(home, b"null").await.expect("unlink");
}

async fn data(client: &LocalClient, home: polvo_proto::InodeRef) {
    let (attr, open) = client.create_open(home, b"data", file()).await.expect("create");
    let model = written(client, &open).await;
    let model = reshaped(client, &open, model).await;
    copied_and_unlinked(client, home, inode(&attr), &open, &model).await;
}

/// Writes and appends; what is there then.
async fn written(client: &LocalClient, open: &OpenFile) -> Vec<u8> {
    let mut model = Vec::new();
    for (n, (offset, len)) in [
        (0, 10),
        (5, 100),
        (90_000, 1),
        (4000, 4096),
        (8192, 4096),
        (10_000, 70_000),
        (0, 3 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = pattern(n as u64, len);
        assert_eq!(client.write(open, offset as u64, &bytes).await, Ok(len));
        model.resize(model.len().max(offset + len), 0);
        model[offset..offset + len].copy_from_slice(&bytes);
        assert!(content(client, open).await == model, "after write {n}");
    }
    let bytes = pattern(99, 5000);
    assert_eq!(client.append(open, &bytes).await, Ok((model.len() as u64, bytes.len())));
    model.extend(&bytes);
    assert!(content(client, open).await == model);
    model
}

/// Truncated, with holes, extended.
async fn reshaped(client: &LocalClient, open: &OpenFile, mut model: Vec<u8>) -> Vec<u8> {
    let set = SetAttr {
        size: Some(1_000_000),
        ..SetAttr::default()
    };
    assert_eq!(client.set_attr(open.inode(), set).await.map(|a| a.size), Ok(1_000_000));
    model.truncate(1_000_000);
    assert!(content(client, open).await == model);
    client
        .fallocate(open, FallocateMode::PunchHole, 4096, 8192)
        .await
        .expect("punch");
    model[4096..12288].fill(0);
    assert!(content(client, open).await == model);
    assert_eq!(client.seek(open, 0, Whence::Hole).await, Ok(4096));
    assert_eq!(client.seek(open, 5000, Whence::Data).await, Ok(12288));
    assert_eq!(client.seek(open, 12288, Whence::Hole).await, Ok(1_000_000));
    assert_eq!(
        client.seek(open, 1_000_000, Whence::Data).await,
        Err(FsError::NoSuchOffset)
    );
    client
        .fallocate(open, FallocateMode::ZeroRange { keep_size: false }, 1_000_000, 200_000)
        .await
        .expect("extend");
    model.resize(1_200_000, 0);
    assert!(content(client, open).await == model);
    assert_eq!(
        client.seek(open, 1_100_000, Whence::Data).await,
        Err(FsError::NoSuchOffset)
    );
    client
        .fallocate(open, FallocateMode::ZeroRange { keep_size: true }, 500_000, 1000)
        .await
        .expect("zero");
    model[500_000..501_000].fill(0);
    model
}

async fn copied_and_unlinked(
    client: &LocalClient,
    home: polvo_proto::InodeRef,
    data: polvo_proto::InodeRef,
    open: &OpenFile,
    model: &[u8],
) {
    let (_, copy) = client.create_unnamed(home, file()).await.expect("unnamed");
    assert_eq!(client.copy_range(open, 0, &copy, 7, 2_000_000).await, Ok(1_200_000));
    assert_eq!(&content(client, &copy).await[7..], model);
    assert!(matches!(
        client.copy_range(&copy, 0, &copy, 10, 11).await,
        Err(FsError::Invalid(_))
    ));
    assert_eq!(
        client.write(open, i64::MAX as u64, b"xx").await,
        Err(FsError::FileTooLarge)
    );
    client.sync(Some(open)).await.expect("fsync");

    client.unlink(home, b"data").await.expect("unlink");
    assert_eq!(client.get_attr(data).await.map(|a| a.nlink), Ok(0), "held open");
    assert!(content(client, open).await == model, "unlinked while open");
    assert_eq!(client.get_attr(copy.inode()).await.map(|a| a.nlink), Ok(0));
    client
        .link(copy.inode(), home, b"named")
        .await
        .expect("a name for the unnamed");
    assert_eq!(&content(client, &copy).await[7..], model);
    client.unlink(home, b"named").await.expect("unlink");
    let mut small = [0; 16];
    let directory = client.open(home).await.expect("open of a directory");
    assert_eq!(client.read(&directory, 0, &mut small).await, Err(FsError::IsDirectory));
}

async fn attributes(client: &LocalClient, home: polvo_proto::InodeRef) {
    let a = inode(&client.create(home, b"a", file()).await.expect("create"));
    let set = SetAttr {
        mode: Some(0o4711),
        uid: Some(7),
        gid: Some(8),
        atime: Some(TimeChange::To(-5)),
        mtime: Some(TimeChange::To(1_000_000_007)),
        size: None,
    };
    let changed = client.set_attr(a, set).await.expect("set_attr");
    assert_eq!((changed.mode, changed.uid, changed.gid), (0o4711, 7, 8));
    assert_eq!((changed.atime_ns, changed.mtime_ns), (-5, 1_000_000_007));
    assert_eq!(client.get_attr(a).await, Ok(changed));
    assert_eq!(client.get_xattr(a, b"user.x").await, Err(FsError::NoAttribute));
    client
        .set_xattr(a, b"user.x", &[3; 65_536], XattrMode::Create)
        .await
        .expect("setxattr");
    assert_eq!(
        client.set_xattr(a, b"user.x", b"", XattrMode::Create).await,
        Err(FsError::Exists)
    );
    assert_eq!(
        client.set_xattr(a, b"user.y", b"", XattrMode::Replace).await,
        Err(FsError::NoAttribute)
    );
    assert_eq!(
        client.set_xattr(a, b"user.y", &[0; 65_537], XattrMode::Any).await,
        Err(FsError::TooBig)
    );
    assert_eq!(client.get_xattr(a, b"user.x").await, Ok(vec![3; 65_536]));
    assert_eq!(client.list_xattr(a).await, Ok(vec![b"user.x".to_vec()]));
    client.remove_xattr(a, b"user.x").await.expect("removexattr");
    assert_eq!(client.list_xattr(a).await, Ok(vec![]));
    client.unlink(home, b"a").await.expect("unlink");
}

async fn paths(client: &LocalClient) {
    let top = inode(&client.create(ROOT, b"top", directory()).await.expect("mkdir"));
    let deep = inode(&client.create(top, b"deep", directory()).await.expect("mkdir"));
    let a = client.create(deep, b"a", file()).await.expect("create");
    client.create(top, b"to-deep", symlink(b"deep")).await.expect("symlink");
    client
        .create(deep, b"up", symlink(b"../deep//./a"))
        .await
        .expect("symlink");
    client
        .create(deep, b"abs", symlink(b"/top/to-deep/"))
        .await
        .expect("symlink");
    client.create(deep, b"round", symlink(b"round")).await.expect("symlink");
    client
        .create(deep, b"dangling", symlink(b"nowhere"))
        .await
        .expect("symlink");
    for path in [
        "/top/deep/a",
        "top/to-deep/a",
        "//top/../top/./deep/abs/up",
        "/top/to-deep/up",
        "/../top/deep/a",
    ] {
        assert_eq!(
            client.walk(path.as_bytes(), true).await.map(|x| x.ino),
            Ok(a.ino),
            "{path}"
        );
    }
    assert_eq!(client.walk(b"/", true).await.map(|x| x.ino), Ok(ROOT.ino));
    assert_eq!(client.walk(b"", true).await.map(|x| x.ino), Ok(ROOT.ino));
    assert_eq!(
        client.walk(b"/top/to-deep", false).await.map(|x| x.kind),
        Ok(FileKind::Symlink)
    );
    assert_eq!(client.walk(b"/top/to-deep/", false).await.map(|x| x.ino), Ok(deep.ino));
    assert_eq!(client.walk(b"/top/deep/round", true).await, Err(FsError::Loop));
    assert_eq!(client.walk(b"/top/deep/dangling", true).await, Err(FsError::NotFound));
    for path in ["/top/deep/a/", "/top/deep/a/x", "/top/deep/a/.", "/top/deep/a/.."] {
        assert_eq!(
            client.walk(path.as_bytes(), true).await,
            Err(FsError::NotDirectory),
            "{path}"
        );
    }
    assert_eq!(client.walk_parent(b"/top/to-deep/new/").await, Ok((deep, &b"new"[..])));
    assert_eq!(client.walk_parent(b"new").await, Ok((ROOT, &b"new"[..])));
    for path in ["/", "", "/top/.", "/top/.."] {
        assert!(
            matches!(client.walk_parent(path.as_bytes()).await, Err(FsError::Invalid(_))),
            "{path}"
        );
    }
}

#[test]
fn external_client() {
    with_cluster(1, async |cluster| all_operations(&external(cluster, "client")).await);
}

#[test]
fn client_inside_a_node() {
    with_cluster(2, async |cluster| all_operations(&internal(cluster, 1)).await);
}

/// A directory that was removed, and is held open, is below no other one: who moves its former parent into it finds that it is gone.
#[test]
fn nothing_is_moved_into_a_directory_that_was_removed() {
    with_cluster(101, async |cluster| {
        let client = external(cluster, "client");
        let outer = inode(&client.create(ROOT, b"outer", directory()).await.unwrap());
        let inner = inode(&client.create(outer, b"inner", directory()).await.unwrap());
        let into = async || client.rename(ROOT, b"outer", inner, b"n", RenameMode::Replace).await;
        assert!(matches!(into().await, Err(FsError::Invalid(_))), "it is below");
        let held = client.open(inner).await.unwrap();
        external(cluster, "other").rmdir(outer, b"inner").await.unwrap();
        assert_eq!(client.get_attr(inner).await.unwrap().nlink, 0);
        let moved = into().await;
        assert!(matches!(moved, Err(FsError::NotFound | FsError::Stale)), "{moved:?}");
        drop(held);
    });
}
