//! The cluster map and the segment maps: who serves a region, and where its bytes lie.

use crate::{Durability, RegionSet, SetWish};
use polvo_consensus::{Voters, register};
use polvo_format::{Epoch, Lsn, NodeId, PAGE, PAGE_CHECKSUM_SIZE, REGIONS_MAX, RegionId, RegionOffset};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Role of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReplicaRole {
    /// Serves the region.
    Primary,
    /// Has a whole copy: nothing is answered before it has it, too.
    Mirror,
    /// Gets a copy, or what it has is behind: nobody waits for it.
    Backup,
}

/// One copy of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replica {
    /// Where.
    pub node: NodeId,
    /// As what.
    pub role: ReplicaRole,
}

/// A region in the map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Which.
    pub id: RegionId,
    /// Which set it is of.
    pub set: RegionSet,
    /// Raised when the replica set changes.
    pub epoch: Epoch,
    /// Its copies; exactly one is primary.
    pub replicas: Vec<Replica>,
}

impl RegionInfo {
    /// The node that serves the region; `None` while it has no primary.
    pub fn primary(&self) -> Option<NodeId> {
        self.replicas
            .iter()
            .find(|r| r.role == ReplicaRole::Primary)
            .map(|r| r.node)
    }

    /// May it be answered before its copies have what it has done?
    pub fn is_async(&self) -> bool {
        self.set.durability == Durability::Async && self.replicas.len() > 1
    }

    /// The set, with a number of replicas where the map is of a program that kept none: as many as there are.
    pub fn region_set(&self) -> RegionSet {
        let replicas = match self.set.replicas {
            0 => u8::try_from(self.replicas.len()).unwrap_or(u8::MAX),
            replicas => replicas,
        };
        RegionSet { replicas, ..self.set }
    }

    /// What a node is to the region, if it is anything.
    pub fn role(&self, node: NodeId) -> Option<ReplicaRole> {
        self.replicas.iter().find(|r| r.node == node).map(|r| r.role)
    }
}

/// A node in the map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Which.
    pub id: NodeId,
    /// Identity of the host (boot id); peers on the same host prefer `shm`.
    pub host: String,
    /// Addresses in order of preference, as `polvo_fabric::Address` prints them.
    pub addresses: Vec<String>,
}

/// Epoch, nodes, regions with their replica sets and roles, and who votes on changes of all this: the value of the register that
/// they keep together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// Raised by one with every change.
    pub epoch: Epoch,
    /// All nodes, by id.
    pub nodes: Vec<NodeInfo>,
    /// All regions, by id.
    pub regions: Vec<RegionInfo>,
    /// Who keeps it.
    pub voters: Voters,
}

impl register::Value for ClusterMap {
    fn voters(&self) -> &Voters {
        &self.voters
    }
}

impl ClusterMap {
    /// Looks at a map that came over the wire or from the media.
    ///
    /// # Errors
    /// What makes no sense: no region, or regions out of order; a node twice; a voter or a replica that is no node of the map.
    pub fn check(&self) -> Result<(), String> {
        let ids: BTreeSet<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        if ids.len() < self.nodes.len() {
            return Err("a node is in it twice".into());
        }
        if self.regions.is_empty() || self.regions.len() > REGIONS_MAX {
            return Err(format!("{} regions", self.regions.len()));
        }
        if !self.regions.is_sorted_by(|a, b| a.id < b.id) {
            return Err("its regions are not in order".into());
        }
        let sets: BTreeSet<RegionSet> = self.sets().map(|regions| regions[0].set).collect();
        if sets.len() < self.sets().count() {
            return Err("regions of one set do not lie together".into());
        }
        let replicas = self.regions.iter().flat_map(|region| &region.replicas);
        let named = replicas.map(|replica| replica.node).chain(self.voters.all());
        if let Some(stranger) = named.into_iter().find(|node| !ids.contains(node)) {
            return Err(format!("node {} is not in it", stranger.0));
        }
        match self.voters.now().next() {
            Some(_) => Ok(()),
            None => Err("nobody votes".into()),
        }
    }

    /// The regions of each set, which lie together: first those of the cluster's default.
    pub fn sets(&self) -> impl Iterator<Item = &[RegionInfo]> {
        self.regions.chunk_by(|a, b| a.set == b.set)
    }

    /// The regions of a set; `None`: of the cluster's default. Empty: it has no such regions.
    pub fn of_set(&self, set: Option<RegionSet>) -> &[RegionInfo] {
        let default = self.regions.first().map(|region| region.set);
        if set.is_none() || set == default {
            let end = self.regions.partition_point(|region| Some(region.set) == default);
            return &self.regions[..end];
        }
        self.sets().find(|regions| Some(regions[0].set) == set).unwrap_or(&[])
    }

    /// The set that is meant; `None`: the cluster's default. Of several that are as wished, the one that is as the default in what is
    /// left open.
    ///
    /// # Errors
    /// There is none, or it is not clear which: what there is, in words.
    pub fn find_set(&self, wish: SetWish) -> Result<Option<RegionSet>, String> {
        let sets: Vec<RegionSet> = self.sets().map(|regions| regions[0].region_set()).collect();
        let alike: Vec<usize> = (0..sets.len()).filter(|i| wish.is_met_by(sets[*i])).collect();
        let default = sets.iter().position(|set| *set == wish.over(sets[0]));
        let found = match (&alike[..], default) {
            (&[only], _) => only,
            (_, Some(default)) => default,
            (_, None) => {
                let all: Vec<String> = sets.iter().map(RegionSet::to_string).collect();
                let count = if alike.is_empty() { "no" } else { "several sets of" };
                return Err(format!(
                    "there are {count} regions with {wish} in this cluster, which has {}",
                    all.join(", and ")
                ));
            }
        };
        Ok((found > 0).then(|| sets[found]))
    }

    /// Bytes that it takes in messages and on the media; at most [`crate::MAP_BYTES_MAX`] fit.
    pub fn encoded_len(&self) -> usize {
        crate::message::encode(self).len()
    }

    /// The region's entry.
    pub fn region(&self, id: RegionId) -> Option<&RegionInfo> {
        // nearly always each is at its number
        if let Some(at_its_number) = self.regions.get(usize::from(id.0)).filter(|region| region.id == id) {
            return Some(at_its_number);
        }
        let at = self.regions.binary_search_by_key(&id, |region| region.id).ok()?;
        Some(&self.regions[at])
    }

    /// The node's entry.
    pub fn node(&self, id: NodeId) -> Option<&NodeInfo> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// Has any region copies?
    pub fn is_replicated(&self) -> bool {
        self.regions.iter().any(|region| region.replicas.len() > 1)
    }

    /// May any region answer before its mirrors have what it has done? Then a session has to ask for what is to be at all of them.
    pub fn is_async(&self) -> bool {
        self.regions.iter().any(RegionInfo::is_async)
    }

    /// The node that serves a region.
    pub fn primary(&self, id: RegionId) -> Option<NodeId> {
        self.region(id).and_then(RegionInfo::primary)
    }

    /// Does a node serve any region?
    pub fn serves(&self, node: NodeId) -> bool {
        self.regions.iter().any(|region| region.primary() == Some(node))
    }
}

/// The lane by which a region's copy at a node follows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LanePlace {
    /// Key for one-sided access to the whole pool, as long as nobody attaches anew.
    pub key: u64,
    /// Where the lane begins ([`polvo_format::LaneHead`]).
    pub lane: u64,
    /// Where the pool's checksums of file data begin, and its segments; 0 and 0: it has none.
    pub checksums: (u64, u64),
    /// The last record that has come. All before it have, too.
    pub last: Lsn,
    /// Where the next one goes in the ring, which is empty.
    pub position: u32,
    /// The copy has got all that the region held when it was begun.
    pub whole: bool,
}

/// What a segment holds; fixed while the segment belongs to a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum SegmentClass {
    /// Inodes (and, in the first one, the region header in slot 0).
    Inodes = 1,
    /// Log pages.
    Logs = 2,
    /// File data.
    Data = 3,
    /// The register in which the pool keeps the cluster map. It is the pool's own: no region has such a segment.
    Register = 5,
}

impl SegmentClass {
    /// As it is on the media and in records.
    pub fn from_u8(byte: u8) -> Option<SegmentClass> {
        use SegmentClass::*;
        [Inodes, Logs, Data, Register]
            .into_iter()
            .find(|class| *class as u8 == byte)
    }

    /// May a region have segments of this class?
    pub fn is_of_regions(self) -> bool {
        self != SegmentClass::Register
    }
}

/// Where a segment of a region lies on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentPlace {
    /// Index in the region (region offset = index * segment size).
    pub index: u32,
    /// Byte offset in the node's pool, which is also the offset under the whole-pool keys.
    pub pool_offset: u64,
    /// What it holds.
    pub class: SegmentClass,
    /// Key for one-sided writes to this segment (offset 0 = the segment's first byte); 0 where the asker may not write.
    pub write_key: u64,
    /// Key for one-sided reads of this segment, for an asker that may not read the whole pool; 0 where it may read nothing.
    pub read_key: u64,
}

/// What the primary of a region with copies shows beside the region, so that one-sided reads know what they may believe: how far its
/// mirrors have followed, and that it has leases of them. It is read behind the data, in one batch.
///
/// The primary raises `begun` before it stores anything, so what was read is of records up to that one. Read in whichever order:
/// `mirrored` only grows while there are mirrors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    /// Nothing is stored yet of records behind this one.
    pub begun: Lsn,
    /// Every mirror in the set has the records up to this one.
    pub mirrored: Lsn,
    /// The last lease. What was read is the region's as long as that lasts.
    pub beat: Beat,
}

/// A number, and how long leases lasted when it was shown, in milliseconds, by the fastest clock; 0: nothing may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beat(pub u64);

impl Beat {
    const MS_BITS: u32 = 16;

    /// Number `n`, with that much left.
    pub fn new(n: u64, left: Duration) -> Beat {
        let left = left.as_millis().min((1 << Beat::MS_BITS) - 1) as u64;
        match left {
            0 => Beat::default(),
            left => Beat(n << Beat::MS_BITS | left),
        }
    }

    /// How much was left when it was shown.
    pub fn left(self) -> Duration {
        Duration::from_millis(self.0 & ((1 << Beat::MS_BITS) - 1))
    }
}

impl Gate {
    /// Bytes.
    pub const SIZE: usize = 24;
    /// Where `begun` lies in it.
    pub const BEGUN: usize = 0;
    /// Where `mirrored` lies in it.
    pub const MIRRORED: usize = 8;
    /// Where `beat` lies in it.
    pub const BEAT: usize = 16;

    /// Reads one, which may change meanwhile.
    pub fn decode(bytes: &[u8; Gate::SIZE]) -> Gate {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a word is 8 bytes"));
        Gate {
            begun: Lsn(word(Gate::BEGUN)),
            mirrored: Lsn(word(Gate::MIRRORED)),
            beat: Beat(word(Gate::BEAT)),
        }
    }
}

/// How a region's offsets map to one node's pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentMap {
    /// Which region.
    pub region: RegionId,
    /// Epoch for which the keys hold.
    pub epoch: Epoch,
    /// log2 of the segment size.
    pub segment_shift: u32,
    /// Key for one-sided reads of the whole pool; 0: those of the segments count.
    pub read_key: u64,
    /// Key for one-sided writes and atomics anywhere in the pool, for dispatch; 0 for an asker that is no node.
    pub node_key: u64,
    /// Where the pool's checksums of file data begin, and its segments; 0 and 0: it has none.
    pub checksums: (u64, u64),
    /// Key and offset of the region's [`Gate`]; 0 and 0: it has no copies.
    pub gate: (u64, u64),
    /// Segments by index.
    pub segments: Vec<SegmentPlace>,
}

impl SegmentMap {
    /// Translates a region offset to the place of its segment and the offset in the segment; `None` when the
    /// segment is not (yet) known, which is the sign to fetch the map again.
    pub fn locate(&self, offset: RegionOffset) -> Option<(&SegmentPlace, u64)> {
        let index = u32::try_from(offset.0 >> self.segment_shift).ok()?;
        let at = self.segments.binary_search_by_key(&index, |s| s.index).ok()?;
        Some((&self.segments[at], offset.0 & ((1 << self.segment_shift) - 1)))
    }

    /// Pool offset of the checksum of the page at an offset in a segment; `None` where there are none.
    pub fn checksum_of(&self, place: &SegmentPlace, inner: u64) -> Option<u64> {
        let (checksums, segments) = self.checksums;
        let page = place.pool_offset.checked_add(inner)?.checked_sub(segments)? / PAGE as u64;
        (checksums != 0).then(|| checksums + page * PAGE_CHECKSUM_SIZE)
    }
}
