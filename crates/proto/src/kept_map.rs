//! What a node keeps of the cluster map in its pool.

use crate::message::{decode, encode};
use crate::{ClusterMap, DecodeError, MAP_BYTES_MAX};
use polvo_consensus::register::Voter;
use serde::{Deserialize, Serialize};

/// Rounds of ballots are below this number: each attempt to change the map takes a higher one than those it has heard of.
pub const ROUNDS_MAX: u64 = 1 << 56;

/// What a node keeps of the cluster map in its pool, before it says anything that follows from it. docs/media-format.md draws the
/// bytes; whoever changes them raises the version in [`polvo_format::RegisterSlot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptMap {
    /// The highest round of its own attempts to change the map: no two have the same.
    pub proposed: u64,
    /// What it has promised and accepted as a voter.
    pub voter: Voter<ClusterMap>,
    /// The newest map that it knows to have been chosen.
    pub known: ClusterMap,
}

impl KeptMap {
    /// Most bytes of one: two maps, and what goes with them.
    pub const BYTES_MAX: usize = 2 * MAP_BYTES_MAX + 128;

    /// Bytes for the media.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads bytes from the media.
    ///
    /// # Errors
    /// What is no kept map, or one that makes no sense.
    pub fn decode(bytes: &[u8]) -> Result<KeptMap, DecodeError> {
        let kept: KeptMap = decode(bytes)?;
        let accepted = kept.voter.accepted().map(|(_, map)| map);
        for map in accepted.into_iter().chain([&kept.known]) {
            map.check().map_err(DecodeError)?;
            if map.cluster != kept.known.cluster {
                return Err(DecodeError("maps of two clusters".into()));
            }
        }
        let highest = kept.proposed.max(kept.voter.promised().round);
        match highest < ROUNDS_MAX {
            true => Ok(kept),
            false => Err(DecodeError(format!("round {highest}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, NodeInfo, RegionInfo, RegionSet, Replica, ReplicaRole};
    use polvo_consensus::Voters;
    use polvo_consensus::register::{Answer, Ask, Ballot};
    use polvo_format::{Epoch, NodeId, RegionId};

    /// Of a cluster with long names and three replicas a region.
    pub(crate) fn large(nodes: u16, regions: u16) -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: "0b5c1f6e-6a8f-4a8e-9a55-6c62c21f7d1d".into(),
            addresses: vec![
                format!("tcp://node-{id}.rack-7.example.com:7000"),
                format!("tcp://10.200.100.{id}:7000"),
                format!("shm:///run/polvofs/node-{id}.sock"),
            ],
        };
        let region = |id| RegionInfo {
            id: RegionId(id),
            set: RegionSet::default(),
            epoch: Epoch(u64::from(u32::MAX)),
            replicas: (0..3)
                .map(|n| Replica {
                    node: NodeId((id + n) % nodes),
                    role: if n == 0 {
                        ReplicaRole::Primary
                    } else {
                        ReplicaRole::Mirror
                    },
                })
                .collect(),
        };
        ClusterMap {
            cluster: [0xcc; 16],
            epoch: Epoch(u64::MAX),
            nodes: (0..nodes).map(node).collect(),
            regions: (0..regions).map(region).collect(),
            voters: Voters::new((0..5).map(NodeId)),
        }
    }

    fn kept(map: ClusterMap) -> KeptMap {
        let ballot = Ballot {
            round: 7,
            by: NodeId(3),
        };
        let mut voter = Voter::of_first(map.clone());
        assert_eq!(voter.answer(Ask::Accept(ballot, map.clone())), Answer::Accepted(ballot));
        KeptMap {
            proposed: 7,
            voter,
            known: map,
        }
    }

    #[test]
    fn the_map_of_a_large_cluster_fits() {
        let map = large(64, 1024);
        assert_eq!(map.check(), Ok(()));
        assert!(map.encoded_len() <= MAP_BYTES_MAX, "{} bytes", map.encoded_len());
        let kept = kept(map);
        let bytes = kept.encode();
        assert!(bytes.len() <= KeptMap::BYTES_MAX);
        assert_eq!(KeptMap::decode(&bytes), Ok(kept));
    }

    #[test]
    fn bytes_that_make_no_sense_are_refused() {
        let good = kept(large(5, 8));
        let bytes = good.encode();
        for len in 0..bytes.len() {
            assert!(KeptMap::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // no panic, whatever it says
            let _read = KeptMap::decode(&bad);
        }
        let refused = |change: &dyn Fn(&mut KeptMap)| {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(KeptMap::decode(&bad.encode()).is_err(), "{bad:?}");
        };
        refused(&|kept| kept.proposed = ROUNDS_MAX);
        refused(&|kept| kept.known.cluster[0] = 0);
        refused(&|kept| kept.known.regions.clear());
        refused(&|kept| kept.known.regions.swap(0, 1));
        refused(&|kept| kept.known.nodes.truncate(4));
        refused(&|kept| kept.known.nodes[0].id = NodeId(1));
        refused(&|kept| kept.known.regions[0].replicas[0].node = NodeId(9));
    }

    /// What pools hold does not change unless the version in the slot does. A set with no number of replicas is of a program that kept
    /// none.
    #[test]
    fn the_bytes_are_those_of_version_2() {
        let map = ClusterMap {
            cluster: [0xcc; 16],
            epoch: Epoch(300),
            nodes: vec![NodeInfo {
                id: NodeId(1),
                host: "h".into(),
                addresses: vec!["a".into()],
            }],
            regions: vec![RegionInfo {
                id: RegionId(0),
                set: RegionSet {
                    replicas: 0,
                    durability: Durability::Async,
                },
                epoch: Epoch(2),
                replicas: vec![Replica {
                    node: NodeId(1),
                    role: ReplicaRole::Mirror,
                }],
            }],
            voters: Voters::new([NodeId(1)]),
        };
        let mut bytes = vec![0xcc; 16];
        bytes.extend([0xac, 0x02]); // epoch
        bytes.extend([1, 1, 1, b'h', 1, 1, b'a']); // nodes
        bytes.extend([1, 0, 2, 2, 1, 1, 1]); // regions
        bytes.extend([1, 1, 0]); // voters, and those that follow them
        let map_bytes = bytes.clone();
        assert_eq!(map.encoded_len(), map_bytes.len());
        bytes = vec![7, 7, 3, 1, 7, 3]; // proposed; promised; accepted, by which ballot
        bytes.extend(&map_bytes);
        bytes.extend(&map_bytes);
        assert_eq!(kept(map).encode(), bytes);
    }
}
