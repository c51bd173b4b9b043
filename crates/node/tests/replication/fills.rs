//! A copy that is made again costs what it lacks: of what it has, that which differs is sent, and nothing else is.

use crate::common::*;
use polvo_format::RegionId;
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// Bytes of a file.
const FILE: usize = 128 << 10;
const FILES: u64 = 96;

/// Primaries keep next to no records: who has been away for a moment gets its copies by difference.
fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        replicas: 2,
        pool_bytes: 64 << 20,
        segment_shift: Some(18),
        backlog_max: Some(200),
        ..ClusterOptions::default()
    }
}

/// Files and what they hold: 12 MiB over all regions.
struct Files(Vec<(InodeRef, Vec<u8>)>);

impl Files {
    async fn new(c: &Caller) -> Files {
        let mut files = Vec::new();
        for i in 0..FILES {
            let file = c.create(ROOT, &format!("big{i}")).await.unwrap();
            let contents = pattern(FILE, i + 1);
            c.write_active(file, 0, &contents).await.unwrap();
            // of this one the node has made checksums
            c.write(file, 0, &contents[..4096]).await.unwrap();
            files.push((file, contents));
        }
        Files(files)
    }

    /// Writes these bytes of a file anew.
    async fn change(&mut self, c: &Caller, i: usize, range: Range<usize>, seed: u64) {
        let (file, contents) = &mut self.0[i];
        contents[range.clone()].copy_from_slice(&pattern(range.len(), seed));
        for page in contents[range.clone()].chunks(4096).zip(0..) {
            let (bytes, number) = page;
            c.write(*file, (range.start + number * 4096) as u64, bytes)
                .await
                .unwrap();
        }
    }

    /// One file of each region.
    fn one_of_each_region(&self) -> Vec<usize> {
        let mut regions = BTreeSet::new();
        let is_first = |i: &usize| regions.insert(self.0[*i].0.ino.region());
        (0..self.0.len()).filter(is_first).collect()
    }

    async fn are_there(&self, c: &Caller) {
        for (i, (file, contents)) in self.0.iter().enumerate() {
            assert!(&c.read(*file).await.unwrap() == contents, "file {i} is another one");
        }
    }
}

/// What was moved for copies meanwhile: how many were made, bytes compared, bytes sent with those of the sums.
struct Moved {
    made: u64,
    compared: u64,
    bytes: u64,
}

/// By `nodes`, some of which may be started anew during it.
async fn moved(cluster: &mut Cluster, nodes: &[(u16, bool)], during: impl AsyncFnOnce(&mut Cluster)) -> Moved {
    let sum = |cluster: &Cluster, of: &dyn Fn(bool) -> bool| {
        let counted = nodes.iter().filter(|(_, anew)| of(*anew));
        let fills = counted.map(|(node, _)| cluster.fills(*node));
        fills.fold([0; 3], |sum, of| std::array::from_fn(|i| sum[i] + of[i]))
    };
    let before = sum(cluster, &|anew| !anew);
    during(cluster).await;
    let after = sum(cluster, &|_| true);
    let [made, compared, sent] = std::array::from_fn(|i| after[i] - before[i]);
    let bytes = sent + compared / 4096 * 16;
    println!("{made} copies: of {compared} bytes {bytes} were moved");
    Moved { made, compared, bytes }
}

async fn settled(cluster: &Cluster) {
    cluster.rest().await;
    cluster.sleep(Duration::from_secs(5)).await;
    cluster.mirrored().await;
    cluster.sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.check(), Vec::<String>::new());
    cluster.compare_mirrors().unwrap();
}

/// Whatever a node's copies are asked for when its primaries are gone is as it was.
async fn succeeds_the_others(cluster: &mut Cluster, c: &Caller, files: &Files) {
    for dead in 0..3 {
        cluster.crash(dead).await;
        files.are_there(c).await;
        cluster.restart(dead).await.unwrap();
        settled(cluster).await;
    }
}

/// Files in a cluster whose copies are all there.
fn with_files(options: ClusterOptions, test: impl AsyncFnOnce(&mut Cluster, &Caller, Files)) {
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let files = Files::new(&c).await;
        settled(cluster).await;
        test(cluster, &c, files).await;
    });
}

#[test]
fn who_was_away_for_too_long_gets_what_has_changed() {
    with_files(options(1), async |cluster, c, mut files| {
        cluster.crash(2).await;
        cluster.sleep(Duration::from_secs(3)).await;
        // one in a hundred, everywhere
        for i in files.one_of_each_region() {
            files.change(c, i, 0..20480, 1000).await;
        }
        let moved = moved(cluster, &[(0, false), (1, false)], async |cluster| {
            cluster.restart(2).await.unwrap();
            settled(cluster).await;
        });
        let Moved { made, compared, bytes } = moved.await;
        // node 2 has lost what it served to others
        assert!(made >= 3 && compared > 7 << 20, "{made} copies, {compared} bytes");
        assert!(bytes * 100 < compared * 3, "{bytes} of {compared}");
        files.are_there(c).await;
        succeeds_the_others(cluster, c, &files).await;
    });
}

#[test]
fn a_primary_that_was_started_anew_sends_next_to_nothing() {
    with_files(options(2), async |cluster, c, files| {
        let moved = moved(cluster, &[(1, true)], async |cluster| {
            // before anybody takes its place
            cluster.crash(1).await;
            cluster.restart(1).await.unwrap();
            settled(cluster).await;
        });
        let Moved { made, compared, bytes } = moved.await;
        assert!(made >= 2 && compared > 2 << 20, "{made} copies, {compared} bytes");
        assert!(bytes * 100 < compared, "{bytes} of {compared}");
        succeeds_the_others(cluster, c, &files).await;
    });
}

#[test]
fn an_empty_copy_is_not_compared() {
    with_files(options(3), async |cluster, c, files| {
        cluster.crash(2).await;
        cluster.sleep(Duration::from_secs(3)).await;
        cluster.new_pool(2);
        let moved = moved(cluster, &[(0, false), (1, false)], async |cluster| {
            cluster.restart(2).await.unwrap();
            settled(cluster).await;
        });
        let Moved { made, compared, bytes } = moved.await;
        assert!(made >= 4 && bytes > 7 << 20, "{made} copies, {bytes} bytes");
        // the regions that it has served it has begun anew, with a segment of inodes and one of logs
        assert!(compared <= 4 << 18, "{compared} bytes");
        succeeds_the_others(cluster, c, &files).await;
    });
}

#[test]
fn bits_that_have_flipped_in_a_copy_are_sent_again() {
    with_files(options(4), async |cluster, c, files| {
        // the copies are at nodes that go on: only their media change, and nobody knows
        let mut flipped = 0;
        for node in 0..3 {
            let copies: Vec<RegionId> = cluster.copies(node);
            for region in copies {
                for data in [false, true] {
                    for (at, len) in cluster.segments(node, region, data) {
                        for place in [at + 3 * len / 8 + 104, at + len / 16 + 8] {
                            let pmem = cluster.pmem(node);
                            pmem.write_u64(place, pmem.read_u64(place) ^ (1 << 17));
                            flipped += 1;
                        }
                    }
                }
            }
        }
        assert!(flipped > 100);
        let moved = moved(cluster, &[(0, true), (1, true), (2, true)], async |cluster| {
            for node in 0..3 {
                cluster.crash(node).await;
                cluster.restart(node).await.unwrap();
                cluster.sleep(Duration::from_secs(5)).await;
                cluster.mirrored().await;
            }
            settled(cluster).await;
        });
        let Moved { compared, bytes, .. } = moved.await;
        assert!(bytes * 100 < compared * 15, "{bytes} of {compared}");
        succeeds_the_others(cluster, c, &files).await;
    });
}

#[test]
fn a_copy_gives_back_segments_that_its_region_has_not_and_takes_those_that_it_lacks() {
    with_files(options(5), async |cluster, c, mut files| {
        cluster.crash(2).await;
        cluster.sleep(Duration::from_secs(3)).await;
        let segments = |cluster: &Cluster| {
            let of = |(node, region)| cluster.segments(node, RegionId(region), true).len();
            (0..6)
                .flat_map(|region| [(0, region), (1, region)])
                .map(of)
                .sum::<usize>()
        };
        let before = segments(cluster);
        // names and data go, and so do segments
        files.0.truncate(20);
        for i in 20..FILES {
            c.unlink(ROOT, &format!("big{i}")).await.unwrap();
        }
        cluster.sleep(Duration::from_secs(60)).await;
        assert!(segments(cluster) + 20 < before, "{} of {before}", segments(cluster));
        cluster.restart(2).await.unwrap();
        settled(cluster).await;
        succeeds_the_others(cluster, c, &files).await;
        cluster.crash(1).await;
        cluster.sleep(Duration::from_secs(3)).await;
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        for i in 0..60 {
            let file = c.create(dir, &format!("new{i}")).await.unwrap();
            files.0.push((file, pattern(FILE, 2000 + i)));
            c.write_active(file, 0, &files.0.last().unwrap().1).await.unwrap();
        }
        cluster.restart(1).await.unwrap();
        settled(cluster).await;
        succeeds_the_others(cluster, c, &files).await;
    });
}

#[test]
fn what_is_written_while_a_copy_is_made_is_there() {
    let mut options = options(6);
    // so many that a fill does not begin anew for ever
    options.backlog_max = Some(1 << 20);
    with_files(options, async |cluster, c, mut files| {
        for (round, node) in [2, 0, 1].into_iter().enumerate() {
            cluster.crash(node).await;
            if round > 0 {
                cluster.sleep(Duration::from_secs(3)).await;
            }
            cluster.restart(node).await.unwrap();
            let made = |cluster: &Cluster| (0..3).map(|node| cluster.fills(node)[0]).sum::<u64>();
            let before = made(cluster);
            let mut during = 0;
            for i in 0..200 {
                let n = round as u64 * 1000 + i;
                files.change(c, (n * 31 % FILES) as usize, 0..12288, 5000 + n).await;
                let file = c.create(ROOT, &format!("n{n}")).await.unwrap();
                c.write(file, 0, &pattern(700, n)).await.unwrap();
                during += u64::from(made(cluster) > before);
                if during > 20 {
                    break;
                }
            }
            assert!(during > 20, "copies were made while files changed");
            settled(cluster).await;
            files.are_there(c).await;
        }
        succeeds_the_others(cluster, c, &files).await;
    });
}

#[test]
fn a_fill_that_breaks_off_begins_anew_with_what_was_sent() {
    // either side loses power after so many milliseconds of it
    for (node, after) in [(2, 1), (2, 40), (0, 5), (1, 20)] {
        with_files(options(7 + after), async |cluster, c, mut files| {
            cluster.crash(2).await;
            cluster.sleep(Duration::from_secs(3)).await;
            for i in 0..10 {
                files.change(c, i * 9, 0..FILE / 2, 3000 + i as u64).await;
            }
            cluster.restart(2).await.unwrap();
            for _ in 0..1000 {
                if cluster.filling() > 0 {
                    break;
                }
                cluster.sleep(Duration::from_millis(1)).await;
            }
            assert!(cluster.filling() > 0);
            cluster.sleep(Duration::from_millis(after)).await;
            cluster.power_cut(node, after).await;
            cluster.restart(node).await.unwrap();
            settled(cluster).await;
            files.are_there(c).await;
            // what it says it has it has after another power cut
            cluster.power_cut(2, after + 1).await;
            cluster.restart(2).await.unwrap();
            settled(cluster).await;
            succeeds_the_others(cluster, c, &files).await;
        });
    }
}
