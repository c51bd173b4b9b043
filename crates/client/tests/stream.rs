//! Reading a file from front to back with several parts on their way.

use crate::common::*;
use polvo_client::{LocalClient, OpenFile};
use polvo_node::sim::ClusterOptions;
use polvo_proto::{FsError, SetAttr};
use std::ops::Range;
use tokio::time::Instant;

const MIB: usize = 1 << 20;

fn roomy() -> ClusterOptions {
    ClusterOptions {
        seed: 83,
        pool_bytes: 128 << 20,
        ..ClusterOptions::default()
    }
}

async fn streamed(client: &LocalClient, file: &OpenFile, range: Range<u64>) -> Result<Vec<u8>, FsError> {
    let mut stream = client.stream(file, range);
    let mut bytes = Vec::new();
    while let Some(part) = stream.next().await? {
        assert!(!part.is_empty(), "a part has bytes");
        bytes.extend_from_slice(part);
    }
    assert_eq!(stream.next().await, Ok(None), "the end stays the end");
    Ok(bytes)
}

#[test]
fn a_stream_brings_what_a_read_brings_in_less_time() {
    with_options(roomy(), async |cluster| {
        for (name, client) in [
            ("remote", external(cluster, "remote")),
            ("colocated", internal(cluster, 1)),
        ] {
            let (attr, file) = client.create_open(ROOT, name.as_bytes(), file()).await.expect("create");
            assert_eq!(
                streamed(&client, &file, 0..u64::MAX).await,
                Ok(Vec::new()),
                "an empty file"
            );
            let mut model = pattern(5, 9 * MIB + 77);
            client.write(&file, 0, &model).await.expect("write");
            // a hole over the border of two parts
            client.write(&file, 12 * MIB as u64, b"end").await.expect("write");
            model.resize(12 * MIB, 0);
            model.extend_from_slice(b"end");

            let begun = Instant::now();
            let whole = streamed(&client, &file, 0..u64::MAX).await;
            let took = begun.elapsed();
            assert!(whole == Ok(model.clone()));
            let begun = Instant::now();
            for at in (0..model.len()).step_by(MIB) {
                let mut part = vec![0; MIB];
                let read = client.read(&file, at as u64, &mut part).await.expect("read");
                assert!(part[..read] == model[at..at + read]);
            }
            let one_by_one = begun.elapsed();
            assert!(
                name == "colocated" || took * 2 < one_by_one,
                "several are on their way at a time: {took:?}, one after the other: {one_by_one:?}"
            );

            for range in [1..2, 5..5, MIB - 1..3 * MIB + 1, 11 * MIB..99 * MIB, 50 * MIB..51 * MIB] {
                let end = range.end.min(model.len());
                let expected = model.get(range.start..end).unwrap_or_default();
                let got = streamed(&client, &file, range.start as u64..range.end as u64).await;
                assert!(got.as_deref() == Ok(expected), "{range:?}");
            }

            // cut short on the way: what comes after is not there any more
            let mut stream = client.stream(&file, 0..u64::MAX);
            assert_eq!(stream.next().await.map(|part| part.map(<[u8]>::len)), Ok(Some(MIB)));
            let cut = SetAttr {
                size: Some(6 * MIB as u64 + 1),
                ..SetAttr::default()
            };
            client.set_attr(inode(&attr), cut).await.expect("truncate");
            let mut read = MIB;
            while let Some(part) = stream.next().await.expect("read") {
                assert!(*part == model[read..read + part.len()]);
                read += part.len();
            }
            assert_eq!(read, 6 * MIB + 1);
        }
    });
}

#[test]
fn an_error_ends_a_stream() {
    with_options(roomy(), async |cluster| {
        let client = external(cluster, "client");
        let made = client.create(ROOT, b"dir", directory()).await.expect("mkdir");
        let dir = client.open(inode(&made)).await.expect("open");
        let mut stream = client.stream(&dir, 0..u64::MAX);
        assert_eq!(stream.next().await, Err(FsError::IsDirectory));
        assert_eq!(stream.next().await, Ok(None));
    });
}
