//! What this pool has seen of the pools of the other nodes: the latest era of each ([`polvo_format::PeerRecord`]).

use super::PoolSpace;
use polvo_format::{KnownPool, NodeId, PEER_RECORD_SIZE, PeerRecord};

impl PoolSpace {
    /// What is remembered of the pool of a node; `None` where nothing is, or nothing that can be read.
    pub fn peer(&self, node: NodeId) -> Option<KnownPool> {
        self.peer_record(node).map(|record| KnownPool {
            pool: record.pool,
            era: record.era,
        })
    }

    /// Remembers the pool of a node. Durable on return. Nodes for which there is no room are not remembered (a pool has
    /// room for the first 1,024, very small ones for fewer). One caller at a time for one node.
    pub fn remember_peer(&self, node: NodeId, known: KnownPool) {
        let Some(place) = self.peers_offset(node) else {
            return;
        };
        let record = PeerRecord {
            node,
            written: self.peer_record(node).map_or(1, |before| before.written + 1),
            pool: known.pool,
            era: known.era,
        };
        let bytes = record.encode(&self.identity.pool);
        self.pmem.write(place + record.offset(), &bytes);
        self.pmem.persist(place + record.offset(), bytes.len() as u64);
        debug_assert_eq!(self.peer_record(node), Some(record), "the record written last counts");
    }

    /// Where records begin, if there is room for those of `node`.
    fn peers_offset(&self, node: NodeId) -> Option<u64> {
        let (offset, room) = self.layout.peers();
        (u64::from(node.0) < room).then_some(offset)
    }

    fn peer_record(&self, node: NodeId) -> Option<PeerRecord> {
        let place = self.peers_offset(node)?;
        let read = |written| {
            let none = PeerRecord {
                node,
                written,
                ..PeerRecord::default()
            };
            let mut bytes = [0; PEER_RECORD_SIZE];
            self.pmem.read(place + none.offset(), &mut bytes);
            PeerRecord::decode(&bytes, node, &self.identity.pool).ok()
        };
        [read(0), read(1)]
            .into_iter()
            .flatten()
            .max_by_key(|record| record.written)
    }
}
