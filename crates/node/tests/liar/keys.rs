//! One-sided operations with keys that were guessed, are for something else, or do not reach so far.

use super::scene::*;
use polvo_fabric::{FabricError, Remote, RemoteKey, Verb};
use polvo_format::{Gpa, NodeId};
use polvo_proto::*;

#[test]
fn a_key_that_was_never_given_to_it() {
    refused(async |cluster, s| {
        let map = s.segments().await;
        let given: Vec<u64> = std::iter::once(map.read_key)
            .chain(map.segments.iter().map(|place| place.write_key))
            .filter(|key| *key != 0)
            .collect();
        // the neighbours of those it has: the key of nodes to the whole pool was registered next to that for reading
        let near = given[..2].iter().flat_map(|key| {
            let tag = key >> 20;
            (tag - 8..=tag + 8).flat_map(|tag| (0..6).map(move |slot| tag << 20 | slot))
        });
        let elsewhere = {
            let region = cluster
                .map()
                .regions
                .iter()
                .find(|r| r.primary() == Some(NodeId(0)))
                .unwrap()
                .id;
            s.liar.links.segments(region, true).await.unwrap().read_key
        };
        let guesses: Vec<u64> = near
            .chain([0, 1, u64::MAX, elsewhere])
            .filter(|key| !given.contains(key))
            .collect();
        assert!(guesses.len() > 100);
        for key in guesses {
            let to = Remote {
                key: RemoteKey(key),
                offset: 0,
            };
            let error = s.touch(Verb::Write { to, bytes: &[0; 8] }).await;
            assert_eq!(error, FabricError::BadKey { key });
            let (mut into, mut found) = ([0; 8], 0);
            let error = s
                .touch(Verb::Read {
                    from: to,
                    into: &mut into,
                })
                .await;
            assert_eq!(error, FabricError::BadKey { key });
            let swap = Verb::CompareSwap {
                at: to,
                expect: 0,
                new: 1,
                found: &mut found,
            };
            assert_eq!(s.touch(swap).await, FabricError::BadKey { key });
        }
    });
}

#[test]
fn a_write_with_a_key_for_reading() {
    refused(async |_, s| {
        let map = s.segments().await;
        let inode_at = map.locate(s.file.ino.offset().unwrap()).unwrap();
        for offset in [0, inode_at.0.pool_offset + inode_at.1, s.file.ino.slot()] {
            let to = Remote {
                key: RemoteKey(map.read_key),
                offset,
            };
            let error = s.touch(Verb::Write { to, bytes: &[0xee; 8] }).await;
            assert_eq!(error, FabricError::Denied { key: map.read_key });
        }
    });
}

#[test]
fn an_atomic_by_a_client_and_a_read_with_a_key_for_writing() {
    refused(async |_, s| {
        let map = s.segments().await;
        let write_key = map
            .segments
            .iter()
            .find(|place| place.write_key != 0)
            .unwrap()
            .write_key;
        for key in [map.read_key, write_key] {
            let at = Remote {
                key: RemoteKey(key),
                offset: 0,
            };
            let mut found = 0;
            let swap = Verb::CompareSwap {
                at,
                expect: 0,
                new: 1,
                found: &mut found,
            };
            assert_eq!(s.touch(swap).await, FabricError::Denied { key });
            let add = Verb::FetchAdd {
                at,
                add: 1,
                found: &mut found,
            };
            assert_eq!(s.touch(add).await, FabricError::Denied { key });
        }
        let (from, mut into) = (
            Remote {
                key: RemoteKey(write_key),
                offset: 0,
            },
            [0; 8],
        );
        let error = s.touch(Verb::Read { from, into: &mut into }).await;
        assert_eq!(error, FabricError::Denied { key: write_key });
    });
}

#[test]
fn a_write_to_metadata_by_a_client() {
    refused(async |_, s| {
        let map = s.segments().await;
        assert_eq!(map.node_key, 0, "that is for nodes");
        for place in map.segments.iter().filter(|place| place.class != SegmentClass::Data) {
            assert_eq!(place.write_key, 0, "{:?}", place.class);
        }
        let at = Gpa::new(s.region, s.file.ino.offset().unwrap());
        let link = s.liar.links.clone();
        let mut write = [polvo_cluster::RegionVerb::WriteAny { at, bytes: &[0; 8] }];
        assert_eq!(link.one_sided(s.region, &mut write).await, Err(FsError::NotPermitted));
        let mut write = [polvo_cluster::RegionVerb::WriteData { at, bytes: &[0; 8] }];
        assert!(link.one_sided(s.region, &mut write).await.is_err());
    });
}

#[test]
fn offsets_outside_the_memory_of_a_key() {
    refused(async |cluster, s| {
        let map = s.segments().await;
        let pool = cluster.pmem(s.node).len();
        let write_key = map
            .segments
            .iter()
            .find(|place| place.write_key != 0)
            .unwrap()
            .write_key;
        let segment = 1u64 << SHIFT;
        for offset in [segment, segment - 4, segment + 8, pool, u64::MAX, u64::MAX - 7] {
            let to = Remote {
                key: RemoteKey(write_key),
                offset,
            };
            let error = s.touch(Verb::Write { to, bytes: &[0xee; 8] }).await;
            assert!(matches!(error, FabricError::OutOfRange { .. }), "{error}");
        }
        for offset in [pool, pool - 4, u64::MAX, u64::MAX - 3] {
            let (from, mut into) = (
                Remote {
                    key: RemoteKey(map.read_key),
                    offset,
                },
                [0; 8],
            );
            let error = s.touch(Verb::Read { from, into: &mut into }).await;
            assert!(matches!(error, FabricError::OutOfRange { .. }), "{error}");
        }
    });
}
