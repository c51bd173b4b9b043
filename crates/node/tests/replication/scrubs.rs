//! Scrubs of regions with copies: what is damaged on one side is taken from the other, whichever it is.

use crate::common::*;
use polvo_format::{Gpa, INODE_SIZE, RegionId, RegionOffset};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;

const FILES: u64 = 12;
/// Bytes of a file.
const FILE: usize = 40_000;

fn options(seed: u64) -> ClusterOptions {
    ClusterOptions {
        seed,
        replicas: 2,
        pool_bytes: 32 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    }
}

struct Fixture {
    c: Caller,
    /// files, and what they hold
    files: Vec<(InodeRef, Vec<u8>)>,
}

/// Files in a cluster whose copies are all there, and still.
fn with_files(seed: u64, test: impl AsyncFnOnce(&mut Cluster, &Fixture)) {
    run(options(seed), async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        let mut files = Vec::new();
        for i in 0..FILES {
            let file = c.create(ROOT, &format!("f{i}")).await.unwrap();
            let contents = pattern(FILE, i + 1);
            // by the node, which makes checksums
            for (n, part) in contents.chunks(4096).enumerate() {
                c.write(file, n as u64 * 4096, part).await.unwrap();
            }
            files.push((file, contents));
        }
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(3)).await;
        let fixture = Fixture { c, files };
        assert_eq!(fixture.scrub().await, Done::default(), "sound");
        test(cluster, &fixture).await;
    });
}

/// What scrubs of all regions have found.
#[derive(PartialEq, Eq, Default, Debug)]
struct Done {
    damaged: Vec<InodeRef>,
    mended: Vec<InodeRef>,
    sent: u64,
    /// pages that were found by their copies
    taken: usize,
    left: u64,
}

impl Fixture {
    async fn scrub(&self) -> Done {
        let mut done = Done::default();
        for region in (0..6).map(RegionId) {
            let mut place = Some(ScrubPlace::default());
            while let Some(from) = place {
                let step = self.c.ask(region, ask::Scrub { region, from }).await.unwrap();
                done.damaged.extend(step.damaged.iter().map(|damaged| damaged.inode));
                done.mended.extend(step.mended.iter().map(|(damaged, _)| damaged.inode));
                place = step.next;
            }
            self.compare(region, &mut done).await;
        }
        done
    }

    async fn compare(&self, region: RegionId, done: &mut Done) {
        let mut place = Some(CopyPlace::default());
        while let Some(from) = place {
            let step = self.c.ask(region, ask::ScrubCopies { region, from }).await.unwrap();
            assert_eq!(step.missing, [], "all copies are there");
            done.sent += step.sent;
            done.taken += step.mended.len();
            done.left += step.left;
            assert!(step.next.is_none_or(|next| next != from), "it goes on");
            place = step.next;
        }
    }

    async fn are_there(&self) {
        for (i, (file, contents)) in self.files.iter().enumerate() {
            assert!(
                &self.c.read(*file).await.unwrap() == contents,
                "file {i} is another one"
            );
        }
    }
}

/// Nodes that have the region: the primary, then its mirror.
fn nodes(cluster: &Cluster, region: RegionId) -> [u16; 2] {
    let map = cluster.node(0).map();
    let info = map.region(region).unwrap();
    let of = |role| {
        info.replicas
            .iter()
            .find(|replica| replica.role == role)
            .unwrap()
            .node
            .0
    };
    [of(ReplicaRole::Primary), of(ReplicaRole::Mirror)]
}

/// Where a page of a node's pool begins that holds these bytes.
fn place_of(cluster: &Cluster, node: u16, region: RegionId, data: bool, bytes: &[u8]) -> u64 {
    let pmem = cluster.pmem(node);
    let mut found = vec![0; bytes.len()];
    let segments = cluster.segments(node, region, data).into_iter();
    let mut pages = segments.flat_map(|(at, len)| (at..at + len).step_by(4096));
    pages
        .find(|at| {
            pmem.read(*at, &mut found);
            found == bytes
        })
        .expect("they are there")
}

/// Where the slot of an inode lies in a pool.
fn slot(cluster: &Cluster, node: u16, inode: InodeRef) -> u64 {
    let offset = RegionOffset(inode.ino.slot() * INODE_SIZE as u64);
    cluster.place(node, Gpa::new(inode.ino.region(), offset))
}

fn flip(cluster: &Cluster, node: u16, at: u64) {
    let pmem = cluster.pmem(node);
    let word = at / 8 * 8;
    pmem.write_u64(word, pmem.read_u64(word) ^ (1 << 21));
}

#[test]
fn damaged_file_data_is_taken_from_a_mirror() {
    with_files(1, async |cluster, f| {
        let mut damaged = Vec::new();
        for (i, (file, contents)) in f.files.iter().enumerate().step_by(3) {
            let region = file.ino.region();
            let [primary, _] = nodes(cluster, region);
            let page = i % 9 * 4096;
            let at = place_of(cluster, primary, region, true, &contents[page..page + 4096]);
            flip(cluster, primary, at + 8 * i as u64);
            damaged.push(*file);
        }
        let mut done = f.scrub().await;
        done.mended.sort_by_key(|inode| inode.ino);
        damaged.sort_by_key(|inode| inode.ino);
        let expected = Done {
            mended: damaged,
            ..Done::default()
        };
        assert_eq!(done, expected);
        f.are_there().await;
        assert_eq!(f.scrub().await, Done::default(), "sound again");
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

/// Pages are used again, and what one holds behind a file's last byte is of one that was there before: at a copy that was made anew it is
/// something else, and nobody has lost anything by that.
#[test]
fn what_lies_behind_the_bytes_of_a_file_is_made_the_same_and_not_counted() {
    with_files(9, async |cluster, f| {
        let (file, contents) = &f.files[0];
        let region = file.ino.region();
        let last = &contents[FILE / 4096 * 4096..];
        let [ours, theirs] = nodes(cluster, region).map(|node| {
            let at = place_of(cluster, node, region, true, last);
            (cluster.pmem(node), at + 4096 - 8)
        });
        theirs.0.write_u64(theirs.1, ours.0.read_u64(ours.1) ^ 1);
        assert_eq!(f.scrub().await, Done::default(), "nothing is wrong");
        cluster.rest().await;
        assert_eq!(theirs.0.read_u64(theirs.1), ours.0.read_u64(ours.1), "it is the same");
    });
}

#[test]
fn what_is_damaged_on_both_sides_stays_and_is_named() {
    with_files(2, async |cluster, f| {
        let (file, contents) = &f.files[0];
        let region = file.ino.region();
        for node in nodes(cluster, region) {
            let at = place_of(cluster, node, region, true, &contents[..4096]);
            flip(cluster, node, at + 16 + 8 * u64::from(node));
        }
        let done = f.scrub().await;
        assert_eq!((done.damaged, done.mended, done.left), (vec![*file], vec![], 1));
    });
}

#[test]
fn pages_of_a_copy_that_differ_are_sent() {
    with_files(3, async |cluster, f| {
        for (file, contents) in &f.files[..4] {
            let region = file.ino.region();
            let [_, mirror] = nodes(cluster, region);
            flip(cluster, mirror, slot(cluster, mirror, *file) + 128);
            flip(
                cluster,
                mirror,
                place_of(cluster, mirror, region, true, &contents[..4096]) + 24,
            );
        }
        let done = f.scrub().await;
        assert!((5..=8).contains(&done.sent), "{done:?}"); // slots may lie in one page
        assert_eq!((done.damaged, done.taken, done.left), (vec![], 0, 0));
        assert_eq!(f.scrub().await, Done::default(), "equal again");
        cluster.compare_mirrors().unwrap();
    });
}

#[test]
fn damaged_inodes_and_logs_are_taken_from_a_mirror() {
    with_files(4, async |cluster, f| {
        let mut pages = Vec::new();
        for (i, (file, _)) in f.files.iter().enumerate().take(6) {
            let [primary, _] = nodes(cluster, file.ino.region());
            let at = slot(cluster, primary, *file);
            let place = match i % 3 {
                0 => at + 8,
                1 => at + 128 + 16,
                _ => {
                    // its first log page
                    let page = cluster.pmem(primary).read_u64(at + 16);
                    cluster.place(primary, Gpa::new(file.ino.region(), RegionOffset(page))) + 72
                }
            };
            flip(cluster, primary, place);
            pages.push((primary, place / 4096));
        }
        pages.sort_unstable();
        pages.dedup();
        assert!(!cluster.check().is_empty(), "they are damaged");
        let done = f.scrub().await;
        assert_eq!((done.sent, done.left, done.damaged.len()), (0, 0, 0), "{done:?}");
        assert_eq!(done.taken, pages.len());
        assert_eq!(cluster.check(), Vec::<String>::new());
        assert_eq!(f.scrub().await, Done::default(), "sound again");
        for node in 0..3 {
            cluster.power_cut(node, 5).await;
            cluster.restart(node).await.unwrap();
            cluster.mirrored().await;
        }
        f.are_there().await;
    });
}

#[test]
fn copies_are_compared_while_files_change() {
    with_files(5, async |cluster, f| {
        let (still, _) = f.files[0];
        let [_, mirror] = nodes(cluster, still.ino.region());
        flip(cluster, mirror, slot(cluster, mirror, still) + 128);
        let changes = async {
            for i in 0..400u64 {
                let (file, _) = f.files[2 + i as usize % 4];
                f.c.write(file, FILE as u64, &pattern(600, i)).await.unwrap();
                let name = format!("n{}", i % 10);
                match i / 10 % 2 {
                    0 => drop(f.c.create(ROOT, &name).await.unwrap()),
                    _ => f.c.unlink(ROOT, &name).await.unwrap(),
                }
            }
        };
        let scrubs = async {
            let mut all = Done::default();
            for _ in 0..6 {
                let done = f.scrub().await;
                all.sent += done.sent;
                assert_eq!(
                    (done.damaged, done.mended, done.taken, done.left),
                    (vec![], vec![], 0, 0)
                );
            }
            all.sent
        };
        let ((), sent) = tokio::join!(changes, scrubs);
        assert_eq!(sent, 1, "what is under way is no difference");
        cluster.rest().await;
        cluster.sleep(Duration::from_secs(3)).await;
        cluster.compare_mirrors().unwrap();
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

#[test]
fn a_fill_does_not_send_damaged_file_data_over_what_is_whole() {
    with_files(6, async |cluster, f| {
        let (file, contents) = &f.files[0];
        let region = file.ino.region();
        let [primary, _] = nodes(cluster, region);
        let at = place_of(cluster, primary, region, true, &contents[4096..8192]);
        flip(cluster, primary, at + 40);
        // before anybody takes its place: it compares its copies
        cluster.crash(primary).await;
        cluster.restart(primary).await.unwrap();
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.mirrored().await;
        assert_eq!(nodes(cluster, region)[0], primary);
        f.are_there().await;
        assert_eq!(f.scrub().await, Done::default());
    });
}
