//! What becomes of a file's extents when it is overwritten.

use crate::common::*;
use polvo_client::LocalClient;
use polvo_node::sim::ClusterOptions;
use polvo_proto::{InodeRef, Reply, Request};
use std::rc::Rc;

/// Extents of a file as its region has them.
async fn extents(client: &Rc<LocalClient>, inode: InodeRef) -> usize {
    let node = client.client().map().primary(inode.ino.region()).expect("it is served");
    let (mut from, mut count) = (0, 0);
    loop {
        let Ok(Reply::FileMap(map)) = client.ask(node, Request::Extents { inode, from }).await else {
            panic!("no map")
        };
        count += map.extents.len();
        match map.extents.last() {
            Some(last) if map.more => from = last.offset + last.len,
            _ => return count,
        }
    }
}

/// Extents of a file of `file_size` bytes when new, and after each round of overwriting it page by page all over (first), and
/// then twice from front to back (second).
fn count(pool_bytes: u64, file_size: u64) -> (usize, Vec<(usize, usize)>) {
    const MIB: u64 = 1 << 20;
    let options = ClusterOptions {
        seed: 71,
        pool_bytes,
        ..ClusterOptions::default()
    };
    let (mut fresh, mut counts) = (0, Vec::new());
    let (fresh_out, counts_out) = (&mut fresh, &mut counts);
    with_options(options, async move |cluster| {
        let client = external(cluster, "client");
        let (made, open) = client.create_open(ROOT, b"f", file()).await.expect("create");
        let sequentially = async |salt: u64| {
            for n in 0..file_size / MIB {
                let bytes = pattern(n + salt, MIB as usize);
                client.write(&open, n * MIB, &bytes).await.expect("write");
            }
            extents(&client, inode(&made)).await
        };
        *fresh_out = sequentially(0).await;
        let pages = file_size / 4096;
        for round in 0..2u64 {
            for n in 0..pages {
                let page = (n * 2_654_435_761 + round * 7919) % pages;
                let bytes = pattern(n, 4096);
                client.write(&open, page * 4096, &bytes).await.expect("write");
            }
            let scattered = extents(&client, inode(&made)).await;
            sequentially(round + 1).await;
            counts_out.push((scattered, sequentially(round + 5).await));
        }
    });
    println!("{file_size} bytes of {pool_bytes}: {fresh} extents when new, then {counts:?}");
    (fresh, counts)
}

/// A file that was overwritten page by page all over, and then from front to back, is read in as few batches as a new one:
/// its pieces are large again.
#[test]
fn a_file_written_anew_is_in_few_pieces_again() {
    for (pool_bytes, file_size) in [(256 << 20, 8 << 20), (64 << 20, 16 << 20)] {
        let (fresh, counts) = count(pool_bytes, file_size);
        for (scattered, rewritten) in counts {
            assert!(scattered as u64 > file_size / 4096 / 2, "the test scatters them");
            let few = fresh.max((file_size >> 18) as usize);
            assert!(rewritten <= few, "{rewritten} extents, {fresh} when new");
        }
    }
}
