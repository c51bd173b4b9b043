//! Round trips on the critical path, counted exactly.

use crate::common::*;
use polvo_client::{Counters, LocalClient, OpenFile, Whence};
use polvo_node::sim::ClusterOptions;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// What an operation cost.
struct Cost {
    rpcs: u64,
    batches: u64,
    bytes: u64,
    eager: u64,
}

async fn cost<T>(client: &Rc<LocalClient>, operation: impl AsyncFnOnce() -> T) -> (T, Cost) {
    let before: Counters = client.client().counters();
    let result = operation().await;
    let after = client.client().counters();
    let cost = Cost {
        rpcs: after.rpcs - before.rpcs,
        batches: after.one_sided_batches - before.one_sided_batches,
        bytes: after.one_sided_bytes - before.one_sided_bytes,
        eager: after.eager_bytes - before.eager_bytes,
    };
    (result, cost)
}

fn roomy(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        pool_bytes: 256 << 20,
        ..ClusterOptions::default()
    }
}

#[test]
fn names_and_attributes() {
    with_cluster(60, async |cluster| {
        let client = external(cluster, "client");
        client.usage().await.expect("all nodes are met");
        let dir = inode(&client.create(ROOT, b"dir", directory()).await.expect("mkdir"));
        for n in 0..100u32 {
            client
                .create(dir, format!("file-{n}").as_bytes(), file())
                .await
                .expect("create");
        }
        // all nodes have been met and all segment maps fetched
        for n in 0..100u32 {
            client
                .lookup(dir, format!("file-{n}").as_bytes())
                .await
                .expect("lookup");
        }
        let (made, create) = cost(&client, async || client.create(dir, b"one", file()).await).await;
        let made = made.expect("create");
        assert_eq!((create.rpcs, create.batches), (1, 0), "create");
        let (found, lookup) = cost(&client, async || client.lookup(dir, b"one").await).await;
        assert_eq!(found, Ok(made));
        assert_eq!(lookup.rpcs, 0, "lookup of a name just made");
        let one_region = made.ino.region() == dir.ino.region();
        assert_eq!(
            lookup.batches,
            if one_region { 1 } else { 2 },
            "directory and inode, at the same time"
        );
        let (absent, miss) = cost(&client, async || client.lookup(dir, b"nothing").await).await;
        assert!(absent.is_err());
        assert_eq!(
            (miss.rpcs, miss.batches),
            (0, 1),
            "a directory of our own is known to its last name"
        );
        let (_, stat) = cost(&client, async || client.get_attr(inode(&made)).await.expect("stat")).await;
        assert_eq!((stat.rpcs, stat.batches, stat.bytes), (0, 1, 128), "stat");
        let (opened, open) = cost(&client, async || client.open(inode(&made)).await.expect("open")).await;
        assert_eq!(open.rpcs, 1, "first open");
        drop(opened);
        let (opened, open) = cost(&client, async || client.open(inode(&made)).await.expect("open")).await;
        assert_eq!((open.rpcs, open.batches, open.bytes), (0, 1, 128), "open again");
        drop(opened);
        let (_, unlink) = cost(&client, async || client.unlink(dir, b"one").await.expect("unlink")).await;
        assert_eq!((unlink.rpcs, unlink.batches), (1, 0), "unlink");
        let (gone, lookup) = cost(&client, async || client.lookup(dir, b"one").await).await;
        assert!(gone.is_err());
        assert_eq!(
            (lookup.rpcs, lookup.batches, lookup.bytes),
            (0, 1, 16),
            "what we have removed ourselves need not be pulled"
        );

        // another client's change costs the diff, not the cache
        let other = external(cluster, "other");
        other.create(dir, b"the first", file()).await.expect("create");
        client
            .lookup(dir, b"the first")
            .await
            .expect("the place of the log is known from now on");
        other.create(dir, b"by another", file()).await.expect("create");
        let (_, first) = cost(&client, async || client.lookup(dir, b"file-7").await.expect("lookup")).await;
        assert_eq!(first.rpcs, 0, "the new entries are pulled");
        let (_, again) = cost(&client, async || {
            client.lookup(dir, b"by another").await.expect("lookup")
        })
        .await;
        assert_eq!(again.rpcs, 0, "with them the new name");
    });
}

#[test]
fn data() {
    with_options(roomy(61), async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        let megabyte = pattern(1, 1 << 20);
        for n in 0..4u64 {
            client.write(&open, n << 20, &megabyte).await.expect("write");
        }
        let page = pattern(2, 4096);
        client.write(&open, 8192, &page).await.expect("write");
        let mut back = vec![0; 4096];
        client.read(&open, 8192, &mut back).await.expect("read");
        assert!(back == page);

        let (_, write) = cost(&client, async || client.write(&open, 8192, &page).await.expect("write")).await;
        assert_eq!(
            (write.rpcs, write.batches, write.eager),
            (1, 0, 4096),
            "overwrite of 4 KiB"
        );
        let (_, write) = cost(&client, async || {
            client.write(&open, 1 << 20, &megabyte).await.expect("write")
        })
        .await;
        assert_eq!(
            (write.rpcs, write.eager),
            (1, 0),
            "a write of 1 MiB: its data never passes through an RPC"
        );
        assert_eq!(
            (write.batches, write.bytes),
            (1, 1 << 20),
            "but one-sided, in one batch"
        );
        let (_, append) = cost(&client, async || client.append(&open, &megabyte).await.expect("append")).await;
        assert_eq!(
            (append.rpcs, append.batches, append.eager),
            (1, 1, 0),
            "append of 1 MiB"
        );
        let (_, read) = cost(&client, async || {
            client.read(&open, 8192, &mut back).await.expect("read")
        })
        .await;
        assert_eq!(
            (read.rpcs, read.batches, read.bytes),
            (0, 1, 4096 + 8),
            "read of 4 KiB: data and tail"
        );
        let mut large = vec![0; 1 << 20];
        let (_, read) = cost(&client, async || {
            client.read(&open, 1 << 20, &mut large).await.expect("read")
        })
        .await;
        assert_eq!(
            (read.rpcs, read.batches, read.bytes),
            (0, 1, (1 << 20) + 8),
            "read of 1 MiB"
        );
        assert!(large == megabyte);
    });
}

/// Data and commit go over one connection, one behind the other.
#[test]
fn a_large_write_takes_one_round_trip() {
    with_options(roomy(64), async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        let bytes = pattern(1, 4 << 20);
        for _ in 0..2 {
            client.write(&open, 0, &bytes).await.expect("write");
        }
        let delay = Duration::from_millis(1);
        cluster.network().set_delay(delay..=delay);
        for len in [8 << 10, 1 << 20, 4 << 20] {
            let start = Instant::now();
            client.write(&open, 0, &bytes[..len]).await.expect("write");
            assert_eq!(start.elapsed(), 2 * delay, "{len}");
        }
    });
}

/// Space is in hand before it is needed: of a long row of large writes only the first ones ask for it.
#[test]
fn a_row_of_large_writes_makes_one_rpc_each() {
    with_options(roomy(62), async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        let bytes = pattern(1, 1 << 20);
        // the first one makes the client known to the file's node, which has it open the file anew with the second
        for _ in 0..2 {
            client.write(&open, 0, &bytes).await.expect("write");
        }
        let writes = 40;
        let (_, row) = cost(&client, async || {
            for n in 1..=writes {
                client.write(&open, n << 20, &bytes).await.expect("write");
            }
        })
        .await;
        assert_eq!((row.rpcs, row.eager), (writes, 0));
    });
}

/// Reading a file of 1 GiB (most of it a hole here: the simulated machine is small) with a warm index.
#[test]
fn a_gibibyte_is_read_without_an_rpc() {
    with_options(roomy(63), async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        for n in 0..16u64 {
            client.write(&open, n << 26, &pattern(n, 1 << 20)).await.expect("write");
        }
        client.write(&open, (1 << 30) - 10, &[7; 10]).await.expect("write");
        let mut chunk = vec![0; 1 << 20];
        let (_, read) = cost(&client, async || {
            for n in 0..1024u64 {
                assert_eq!(client.read(&open, n << 20, &mut chunk).await, Ok(1 << 20));
                if n % 64 == 0 {
                    assert!(chunk == pattern(n / 64, 1 << 20));
                }
            }
        })
        .await;
        assert_eq!((read.rpcs, read.batches), (0, 1024));
    });
}

/// Writes a few bytes at so many places of a file, all over 1 TiB.
async fn scatter(client: &Rc<LocalClient>, file: &OpenFile, extents: u64) {
    for n in 0..extents {
        let at = n * ((1 << 40) / extents);
        client.write(file, at, &n.to_le_bytes()).await.expect("write");
    }
}

/// A far page of a file of very many extents: one round trip for its part of the map, one for the data.
#[test]
fn the_map_is_loaded_where_it_is_needed() {
    const EXTENTS: u64 = 70_000;
    with_options(roomy(65), async |cluster| {
        let client = external(cluster, "writer");
        let (made, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        scatter(&client, &open, EXTENTS).await;
        drop(open);
        let client = external(cluster, "reader");
        client.usage().await.expect("all nodes are met");
        let place = |n: u64| n * ((1 << 40) / EXTENTS);
        let (open, opened) = cost(&client, async || client.open(inode(&made)).await.expect("open")).await;
        assert_eq!(opened.rpcs, 1, "open");
        // the region's segments are known from here on
        client.read(&open, 0, &mut [0; 8]).await.expect("read");
        for n in [EXTENTS - 1, EXTENTS / 2, EXTENTS / 3] {
            let mut back = [0; 8];
            let (read, spent) = cost(&client, async || client.read(&open, place(n), &mut back).await).await;
            assert_eq!((read, back), (Ok(8), n.to_le_bytes()), "extent {n}");
            assert_eq!((spent.rpcs, spent.batches), (1, 1), "its part of the map, its bytes");
            let (read, spent) = cost(&client, async || client.read(&open, place(n), &mut back).await).await;
            assert_eq!((read, spent.rpcs, spent.batches), (Ok(8), 0, 1), "it is known now");
        }
        // what others write there is followed as it is elsewhere
        let other = external(cluster, "other");
        let theirs = other.open(inode(&made)).await.expect("open");
        for n in [EXTENTS / 2, 1, EXTENTS / 5] {
            other.write(&theirs, place(n), b"overlaid").await.expect("write");
        }
        let mut back = [0; 8];
        let (read, spent) = cost(&client, async || {
            client.read(&open, place(EXTENTS / 2), &mut back).await
        })
        .await;
        assert_eq!((read, &back, spent.rpcs), (Ok(8), b"overlaid", 0));
        client.read(&open, place(EXTENTS / 5), &mut back).await.expect("read");
        assert_eq!(&back, b"overlaid", "what came before its part of the map was known");
        assert_eq!(client.seek(&open, place(9) + 8, Whence::Data).await, Ok(place(10)));
        assert_eq!(
            client.seek(&open, place(EXTENTS - 9), Whence::Hole).await,
            Ok(place(EXTENTS - 9) + 8)
        );
    });
}

/// Inside a node nothing of the node's own goes over the fabric.
#[test]
fn inside_a_node_own_regions_cost_nothing() {
    with_cluster(64, async |cluster| {
        let client = internal(cluster, 0);
        client.lookup(ROOT, b"nothing").await.expect_err("empty");
        let mut own = 0;
        for n in 0..20u64 {
            let name = format!("f{n}");
            let (made, open) = client.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            if !cluster.node(0).serves(made.ino.region()) {
                continue;
            }
            own += 1;
            let bytes = pattern(n, 300_000);
            let (_, all) = cost(&client, async || {
                client.write(&open, 0, &bytes).await.expect("write");
                client.write(&open, 5, &bytes[..100]).await.expect("write");
                client.append(&open, &bytes[..10_000]).await.expect("append");
                assert_eq!(content(&client, &open).await.len(), 310_000);
                assert_eq!(
                    client.lookup(ROOT, name.as_bytes()).await.expect("lookup").ino,
                    made.ino
                );
                client.open(inode(&made)).await.expect("open");
            })
            .await;
            assert_eq!((all.rpcs, all.batches, all.eager), (0, 0, 0));
        }
        assert!(own > 0, "no file came to lie in the node");
    });
}
