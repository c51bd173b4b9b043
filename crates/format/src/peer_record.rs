//! What a pool remembers of the pool of another node: which one it is, and the latest era seen of it. A node has two records,
//! of which one is written while the other stays, so a power cut leaves what was known before, or what is new.

use crate::{Era, FormatError, NodeId, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const WHAT: &str = "record of a peer";

/// Bytes of a record.
pub const PEER_RECORD_SIZE: usize = 64;
/// Bytes set aside for one node: two records.
pub const PEER_PLACE: u64 = 2 * PEER_RECORD_SIZE as u64;
/// Nodes for which pools with checksums have room at the least.
pub(crate) const PEERS_MIN: u64 = 64;
/// Nodes that are remembered at the most: those with lower numbers.
pub const PEERS_MAX: u64 = 1024;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    node: U16,
    reserved: [u8; 6],
    written: U64,
    pool: [u8; 16],
    era: U64,
    mark: U64,
    reserved1: [u8; 12],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == PEER_RECORD_SIZE);

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerRecord {
    /// Of which node.
    pub node: NodeId,
    /// The greater one of the two counts; from 1.
    pub written: u64,
    /// Identity of its pool.
    pub pool: [u8; 16],
    /// Latest era seen of it.
    pub era: Era,
}

impl PeerRecord {
    /// Where the record lies, from where records begin.
    pub fn offset(&self) -> u64 {
        u64::from(self.node.0) * PEER_PLACE + self.written % 2 * PEER_RECORD_SIZE as u64
    }

    /// Bytes for the media, checksum included. The checksum covers `owner`, the identity of the pool that remembers, too: what
    /// was left at this place by another pool is no record.
    pub fn encode(&self, owner: &[u8; 16]) -> [u8; PEER_RECORD_SIZE] {
        let mut raw = Raw {
            node: U16::new(self.node.0),
            reserved: [0; 6],
            written: U64::new(self.written),
            pool: self.pool,
            era: U64::new(self.era.number),
            mark: U64::new(self.era.mark),
            reserved1: [0; 12],
            crc: U32::ZERO,
        };
        raw.crc = U32::new(crc(&raw, owner));
        let bytes: [u8; PEER_RECORD_SIZE] = raw.as_bytes().try_into().expect("the struct has this size");
        debug_assert_eq!(
            PeerRecord::decode(&bytes, self.node, owner),
            Ok(*self),
            "a record is read as it was written"
        );
        bytes
    }

    /// Reads a record of `node`.
    ///
    /// # Errors
    /// `Short`, `Checksum` (also for what was never written), `Invalid` for one of another node.
    pub fn decode(bytes: &[u8], node: NodeId, owner: &[u8; 16]) -> Result<PeerRecord, FormatError> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            structure: WHAT,
            len: bytes.len(),
            need: PEER_RECORD_SIZE,
        })?;
        if crc(&raw, owner) != raw.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let record = PeerRecord {
            node: NodeId(raw.node.get()),
            written: raw.written.get(),
            pool: raw.pool,
            era: Era {
                number: raw.era.get(),
                mark: raw.mark.get(),
            },
        };
        if record.node != node || record.written == 0 || record.era.number >> 48 != 0 {
            return Err(FormatError::invalid(WHAT, format!("{record:?}")));
        }
        Ok(record)
    }
}

fn crc(raw: &Raw, owner: &[u8; 16]) -> u32 {
    let used = &raw.as_bytes()[..PEER_RECORD_SIZE - 4];
    checksum::crc32c_append(checksum::crc32c(owner), used)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: [u8; 16] = *b"owner-owner-owne";

    fn sample() -> PeerRecord {
        PeerRecord {
            node: NodeId(7),
            written: 5,
            pool: *b"pool-pool-pool-p",
            era: Era {
                number: 12,
                mark: u64::MAX,
            },
        }
    }

    #[test]
    fn comes_back_as_written_for_its_node_and_owner_only() {
        let record = sample();
        let bytes = record.encode(&OWNER);
        assert_eq!(PeerRecord::decode(&bytes, NodeId(7), &OWNER), Ok(record));
        assert!(PeerRecord::decode(&bytes, NodeId(8), &OWNER).is_err());
        assert!(PeerRecord::decode(&bytes, NodeId(7), b"somebody-elses-p").is_err());
        assert!(PeerRecord::decode(&bytes[..63], NodeId(7), &OWNER).is_err());
        assert!(PeerRecord::decode(&[0; PEER_RECORD_SIZE], NodeId(0), &OWNER).is_err());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample().encode(&OWNER);
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(PeerRecord::decode(&bad, NodeId(7), &OWNER).is_err(), "bit {bit}");
        }
    }
}
