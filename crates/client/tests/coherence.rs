//! Completed operations of one client are seen by another at once, whatever both have cached.

use crate::common::*;
use polvo_client::LocalClient;
use polvo_format::FileKind;
use polvo_proto::{FallocateMode, FsError, InodeRef, RenameMode, SetAttr};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Has the directory's names, the file's extents and attributes in its caches.
async fn warm(client: &LocalClient, dir: InodeRef, names: &[&[u8]]) {
    for name in names {
        match client.lookup(dir, name).await {
            Ok(attr) if attr.kind == FileKind::File => {
                let file = client.open(inode(&attr)).await.expect("open");
                content(client, &file).await;
            }
            Ok(_) | Err(FsError::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn sees_at_once(a: &Rc<LocalClient>, b: &Rc<LocalClient>, name: &str) {
    let dir = inode(&a.create(ROOT, name.as_bytes(), directory()).await.expect("mkdir"));
    let other = inode(&a.create(dir, b"other", directory()).await.expect("mkdir"));
    for (one, two) in [(a, b), (b, a), (a, b)] {
        warm(two, dir, &[b"f", b"g", b"other"]).await;
        warm(two, other, &[b"f", b"g"]).await;

        // create
        let (made, file) = one.create_open(dir, b"f", file()).await.expect("create");
        assert_eq!(two.lookup(dir, b"f").await, Ok(made));
        let seen = two.open(inode(&made)).await.expect("open");
        assert_eq!(content(two, &seen).await, b"");

        // write, small and large, append, in turns
        let mut model = Vec::new();
        for round in 0..6u64 {
            let (writer, reader, open, other_open) = if round % 2 == 0 {
                (one, two, &file, &seen)
            } else {
                (two, one, &seen, &file)
            };
            for (offset, len) in [(7, 5), (3000, 3000), (40_000, 30_000), (1, 100_000)] {
                let bytes = pattern(round * 100 + offset, len);
                writer.write(open, offset, &bytes).await.expect("write");
                model.resize(model.len().max(offset as usize + len), 0);
                model[offset as usize..offset as usize + len].copy_from_slice(&bytes);
                assert!(
                    content(reader, other_open).await == model,
                    "round {round}, write at {offset}"
                );
            }
            for len in [10, 20_000] {
                let bytes = pattern(round, len);
                assert_eq!(writer.append(open, &bytes).await, Ok((model.len() as u64, len)));
                model.extend_from_slice(&bytes);
                assert!(
                    content(reader, other_open).await == model,
                    "round {round}, append of {len}"
                );
            }
        }

        // truncate, punch
        let set = SetAttr {
            size: Some(50_000),
            ..SetAttr::default()
        };
        one.set_attr(file.inode(), set).await.expect("truncate");
        model.truncate(50_000);
        assert_eq!(two.get_attr(file.inode()).await.map(|x| x.size), Ok(50_000));
        assert!(content(two, &seen).await == model, "truncated");
        let set = SetAttr {
            size: Some(60_000),
            ..SetAttr::default()
        };
        two.set_attr(file.inode(), set).await.expect("extend");
        model.resize(60_000, 0);
        assert!(content(one, &file).await == model, "extended");
        one.fallocate(&file, FallocateMode::PunchHole, 1000, 30_000)
            .await
            .expect("punch");
        model[1000..31_000].fill(0);
        assert!(content(two, &seen).await == model, "punched");

        // chmod
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        one.set_attr(file.inode(), set).await.expect("chmod");
        assert_eq!(two.lookup(dir, b"f").await.map(|x| x.mode), Ok(0o600));

        // rename, in the directory and across directories
        one.rename(dir, b"f", dir, b"g", RenameMode::Replace)
            .await
            .expect("rename");
        assert_eq!(two.lookup(dir, b"f").await, Err(FsError::NotFound));
        assert_eq!(two.lookup(dir, b"g").await.map(|x| x.ino), Ok(made.ino));
        two.rename(dir, b"g", other, b"f", RenameMode::Replace)
            .await
            .expect("rename");
        assert_eq!(one.lookup(dir, b"g").await, Err(FsError::NotFound));
        assert_eq!(one.lookup(other, b"f").await.map(|x| x.ino), Ok(made.ino));

        // a link, and unlink
        two.link(inode(&made), dir, b"g").await.expect("link");
        assert_eq!(one.lookup(dir, b"g").await.map(|x| x.nlink), Ok(2));
        one.unlink(dir, b"g").await.expect("unlink");
        assert_eq!(two.lookup(dir, b"g").await, Err(FsError::NotFound));
        assert_eq!(two.lookup(other, b"f").await.map(|x| x.nlink), Ok(1));
        one.unlink(other, b"f").await.expect("unlink");
        assert_eq!(two.lookup(other, b"f").await, Err(FsError::NotFound));
        assert!(content(two, &seen).await == model, "held open");

        // many names by both, more than a few log pages
        for n in 0..400u32 {
            let name = format!("a name of some length, number {n}");
            let made = one.create(dir, name.as_bytes(), file_of(n)).await.expect("create");
            if n % 50 == 0 {
                assert_eq!(two.lookup(dir, name.as_bytes()).await, Ok(made));
                let late = format!("by the other, {n}");
                two.create(dir, late.as_bytes(), file_of(n)).await.expect("create");
                one.lookup(dir, late.as_bytes()).await.expect("seen");
            }
        }
        for n in 0..400u32 {
            let name = format!("a name of some length, number {n}");
            two.unlink(dir, name.as_bytes()).await.expect("unlink");
            if n % 50 == 0 {
                assert_eq!(one.lookup(dir, name.as_bytes()).await, Err(FsError::NotFound));
                two.unlink(dir, format!("by the other, {n}").as_bytes())
                    .await
                    .expect("unlink");
            }
        }
        assert_eq!(
            one.read_dir(dir, 0, 10).await.map(|page| page.entries.len()),
            Ok(1),
            "`other` is left"
        );
    }
    b.rmdir(dir, b"other").await.expect("rmdir");
    assert_eq!(a.lookup(dir, b"other").await, Err(FsError::NotFound));
    b.rmdir(ROOT, name.as_bytes()).await.expect("rmdir");
    assert_eq!(a.lookup(ROOT, name.as_bytes()).await, Err(FsError::NotFound));
    assert_eq!(a.lookup(dir, b"x").await, Err(FsError::Stale));
}

fn file_of(n: u32) -> polvo_proto::NewFile {
    new_file(FileKind::File, 0o600 | n & 7)
}

#[test]
fn two_external_clients() {
    with_cluster(11, async |cluster| {
        sees_at_once(&external(cluster, "one"), &external(cluster, "two"), "dir").await;
    });
}

#[test]
fn a_client_inside_a_node_and_others() {
    with_cluster(12, async |cluster| {
        let (colocated, also_colocated, remote) =
            (internal(cluster, 0), internal(cluster, 2), external(cluster, "out"));
        sees_at_once(&colocated, &remote, "one").await;
        sees_at_once(&also_colocated, &colocated, "two").await;
    });
}

/// A colocated thread remembers where large extents lie: what others change of the file is seen nevertheless, whether it
/// moves bytes, cuts the file or makes it longer.
#[test]
fn large_extents_inside_a_node_and_others() {
    const LEN: u64 = 3 << 20;
    with_cluster(14, async |cluster| {
        let remote = external(cluster, "out");
        let (made, theirs) = remote.create_open(ROOT, b"f", file()).await.expect("create");
        let colocated = internal(cluster, made.ino.region().0 % 3);
        let file = colocated.open(inode(&made)).await.expect("open");
        let mut model = pattern(1, LEN as usize);
        colocated.write(&file, 0, &model).await.expect("write");
        let check = async |model: &[u8]| {
            for _ in 0..2 {
                for offset in (0..LEN + 5000).step_by(250_007) {
                    let mut found = vec![0xaa; 5000];
                    let read = colocated.read(&file, offset, &mut found).await.expect("read");
                    let expected = model.get(offset as usize..).unwrap_or_default();
                    assert_eq!(read, expected.len().min(5000), "at {offset}");
                    assert!(found[..read] == expected[..read], "at {offset}");
                }
            }
        };
        check(&model).await;
        for (round, (offset, len)) in [(250_007, 4096), (0, 1 << 20), (500_000, 10), (LEN - 5, 3)]
            .into_iter()
            .enumerate()
        {
            let bytes = pattern(round as u64 + 2, len);
            remote.write(&theirs, offset, &bytes).await.expect("write");
            model[offset as usize..][..len].copy_from_slice(&bytes);
            check(&model).await;
        }
        for size in [2 * LEN / 3 + 100, LEN + 100] {
            let cut = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            remote.set_attr(inode(&made), cut).await.expect("truncate");
            model.resize(size as usize, 0);
            check(&model).await;
        }
    });
}

/// A file that another client removed and whose slot holds a new one is not mistaken for the new one.
#[test]
fn a_slot_used_again_is_another_file() {
    with_cluster(13, async |cluster| {
        let (one, two) = (external(cluster, "one"), internal(cluster, 1));
        let mut seen = Vec::new();
        for round in 0..40u64 {
            let (made, open) = one.create_open(ROOT, b"f", file()).await.expect("create");
            one.write(&open, 0, &round.to_le_bytes()).await.expect("write");
            let theirs = two
                .open(inode(&two.lookup(ROOT, b"f").await.expect("lookup")))
                .await
                .expect("open");
            assert_eq!(content(&two, &theirs).await, round.to_le_bytes());
            seen.push(made);
            drop((open, theirs));
            two.unlink(ROOT, b"f").await.expect("unlink");
            assert_eq!(one.lookup(ROOT, b"f").await, Err(FsError::NotFound));
            cluster.sleep(cluster.timeouts().renew_every()).await; // holds are recalled
        }
        for made in &seen {
            assert_eq!(one.get_attr(inode(made)).await, Err(FsError::Stale));
            assert!(two.open(inode(made)).await.is_err());
        }
        let slots: std::collections::HashSet<_> = seen.iter().map(|made| made.ino).collect();
        assert!(
            slots.len() < seen.len(),
            "no slot was used again: the test shows nothing"
        );
    });
}

/// A name that stands for another inode whenever the reader has come to the one before is never said not to exist.
#[test]
fn a_name_that_is_replaced_all_the_time_exists() {
    with_cluster(52, async |cluster| {
        let writer = internal(cluster, 0);
        let far = Duration::from_millis(20);
        for node in ["node-0", "node-1", "node-2"] {
            cluster.network().set_delay_between("reader", node, far..=far);
            cluster.network().set_delay_between(node, "reader", far..=far);
        }
        let dir = inode(&writer.create(ROOT, b"dir", directory()).await.expect("mkdir"));
        writer.create(dir, b"name", file()).await.expect("create");
        let reader = external(cluster, "reader");
        reader.lookup(ROOT, b"dir").await.expect("the nodes are met");
        let until = Instant::now() + Duration::from_secs(1);
        let replacing = async {
            let mut replaced = 0;
            while Instant::now() < until {
                writer.create(dir, b"next", file()).await.expect("create");
                let renamed = writer.rename(dir, b"next", dir, b"name", RenameMode::Replace);
                renamed.await.expect("rename");
                replaced += 1;
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            replaced
        };
        let reading = async {
            let mut found = 0;
            while Instant::now() < until {
                let looked_up = reader.lookup(dir, b"name").await;
                assert!(looked_up.is_ok(), "{looked_up:?}");
                found += 1;
            }
            found
        };
        let (replaced, found) = tokio::join!(replacing, reading);
        assert!(replaced > 30 && found > 0, "{replaced} {found}");
    });
}

/// What somebody else has changed in a directory is seen by who changes it too, wherever the two entries come to lie in the log's
/// pages: an entry that does not fit its page leaves a gap that the other one may fill exactly.
#[test]
fn a_change_between_two_of_ours_is_not_taken_for_a_gap() {
    with_cluster(87, async |cluster| {
        let (one, other) = (external(cluster, "one"), external(cluster, "other"));
        let make = async |name: String| inode(&one.create(ROOT, name.as_bytes(), directory()).await.expect("mkdir"));
        let node_of = |dir: InodeRef| cluster.map().primary(dir.ino.region());
        for shift in 0..4 {
            let home = make(format!("home-{shift}")).await;
            let mut elsewhere = make(format!("away-{shift}")).await;
            for n in 0.. {
                if node_of(elsewhere) != node_of(home) {
                    break;
                }
                elsewhere = make(format!("away-{shift}-{n}")).await;
            }
            for n in 0..shift {
                one.create(home, &[b'0' + n], file()).await.expect("create");
            }
            for n in 0..70u32 {
                // a short name and a long one: entries of one unit and of two
                let token = format!("t{n}").into_bytes();
                other.create(home, &token, file()).await.expect("create");
                one.lookup(home, &token).await.expect("it is there");
                let gone = other.rename(home, &token, elsewhere, &token, RenameMode::Replace).await;
                gone.expect("renamed");
                let name = format!("a-name-of-two-units-{n}");
                one.create(home, name.as_bytes(), file()).await.expect("create");
                let found = one.lookup(home, &token).await.map(drop);
                assert_eq!(found, Err(FsError::NotFound), "shift {shift}, round {n}");
            }
        }
    });
}
