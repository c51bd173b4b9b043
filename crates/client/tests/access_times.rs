//! Reading moves access times by the rule of `relatime` or `strictatime`, a moment later; never over one that was set since.

use crate::common::*;
use polvo_client::{AccessTimeRule, LocalClient};
use polvo_proto::{InodeRef, SetAttr, TimeChange};
use std::rc::Rc;
use std::time::Duration;

const RELATIVE: AccessTimeRule = AccessTimeRule {
    of_directories: true,
    strict: false,
};

/// Long after what was noted has been delivered.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(120)).await;
}

async fn atime(client: &LocalClient, inode: InodeRef) -> i64 {
    client.get_attr(inode).await.expect("attributes").atime_ns
}

async fn set_atime(client: &LocalClient, inode: InodeRef, ns: i64) {
    let set = SetAttr {
        atime: Some(TimeChange::To(ns)),
        ..SetAttr::default()
    };
    client.set_attr(inode, set).await.expect("set");
}

/// A file, a directory and a symbolic link.
async fn some(client: &LocalClient, name: &str) -> [InodeRef; 3] {
    let named = |what: &str| format!("{name}-{what}").into_bytes();
    let (file, open) = client.create_open(ROOT, &named("file"), file()).await.expect("made");
    client.write(&open, 0, b"bytes").await.expect("written");
    let dir = client.create(ROOT, &named("dir"), directory()).await.expect("made");
    let link = client
        .create(ROOT, &named("link"), symlink(b"target"))
        .await
        .expect("made");
    [inode(&file), inode(&dir), inode(&link)]
}

async fn read(client: &Rc<LocalClient>, [file, dir, link]: [InodeRef; 3]) {
    let open = client.open(file).await.expect("open");
    assert_eq!(content(client, &open).await, b"bytes");
    client.accessed(&open);
    client.read_dir(dir, 0, 10).await.expect("listed");
    client.read_link(link).await.expect("read");
}

#[test]
fn a_time_that_is_set_after_a_read_stays() {
    with_cluster(1, async |cluster| {
        let clients = [external(cluster, "a"), internal(cluster, 0), external(cluster, "b")];
        for client in &clients {
            client.client().keep_access_times(RELATIVE);
        }
        for (n, (reader, setter)) in [(0, 0), (1, 1), (0, 2), (2, 1), (1, 0)].into_iter().enumerate() {
            let (reader, setter) = (&clients[reader], &clients[setter]);
            let inodes = some(setter, &format!("case-{n}")).await;
            read(reader, inodes).await;
            for inode in inodes {
                set_atime(setter, inode, 1000).await;
            }
            a_while().await;
            for inode in inodes {
                assert_eq!(atime(setter, inode).await, 1000, "case {n}: {inode:?}");
            }
            // what is read after that counts
            read(reader, inodes).await;
            a_while().await;
            for inode in inodes {
                assert_ne!(atime(setter, inode).await, 1000, "case {n}: {inode:?}");
            }
        }
    });
}

#[test]
fn a_read_counts_whatever_else_is_changed_after_it() {
    with_cluster(2, async |cluster| {
        let (a, b) = (external(cluster, "a"), external(cluster, "b"));
        a.client().keep_access_times(RELATIVE);
        let inodes = some(&b, "f").await;
        for inode in inodes {
            set_atime(&b, inode, 1000).await;
        }
        read(&a, inodes).await;
        for inode in inodes {
            let set = SetAttr {
                uid: Some(5),
                ..SetAttr::default()
            };
            b.set_attr(inode, set).await.expect("set");
        }
        a_while().await;
        for inode in inodes {
            assert_ne!(atime(&b, inode).await, 1000, "{inode:?}");
        }
    });
}

#[test]
fn those_of_directories_may_be_left_alone() {
    with_cluster(1, async |cluster| {
        let client = external(cluster, "a");
        client.client().keep_access_times(AccessTimeRule {
            of_directories: false,
            ..RELATIVE
        });
        let inodes = some(&client, "f").await;
        for inode in inodes {
            set_atime(&client, inode, 1000).await;
        }
        read(&client, inodes).await;
        a_while().await;
        let [file, dir, link] = inodes;
        assert_ne!(atime(&client, file).await, 1000);
        assert_eq!(atime(&client, dir).await, 1000);
        assert_ne!(atime(&client, link).await, 1000);
    });
}

#[test]
fn strictly_each_read_counts() {
    for strict in [false, true] {
        with_cluster(1, async |cluster| {
            let clients = [external(cluster, "a"), internal(cluster, 0)];
            for (n, client) in clients.iter().enumerate() {
                client.client().keep_access_times(AccessTimeRule { strict, ..RELATIVE });
                let inodes = some(client, &format!("f{n}")).await;
                let mut before = [i64::MIN; 3];
                for round in 0..3 {
                    read(client, inodes).await;
                    a_while().await;
                    for (inode, before) in inodes.into_iter().zip(&mut before) {
                        let now = atime(client, inode).await;
                        assert_eq!(
                            now > *before,
                            strict || round == 0,
                            "client {n}, round {round}: {inode:?}"
                        );
                        *before = now;
                    }
                }
            }
        });
    }
}
