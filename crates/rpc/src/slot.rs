//! What lies in a slot, and what both sides tell each other at the start. Pure.

/// Largest request, bytes: 64 KiB that a caller may hand over, and what goes with them.
pub const MAX_REQUEST: usize = 68 * 1024;
/// Largest reply, bytes: as for requests.
pub const MAX_REPLY: usize = 68 * 1024;
/// Calls that may be in flight on one connection; further ones wait.
pub const SLOTS: usize = 16;

/// Before the body: length and sequence number of the message in this slot.
pub(crate) const HEADER: usize = 16;

/// From one slot to the next.
pub(crate) const REQUEST_STRIDE: usize = HEADER + MAX_REQUEST;
pub(crate) const REPLY_STRIDE: usize = HEADER + MAX_REPLY;

/// Bodies from here on are written separately from their header instead of being copied behind it, bytes.
pub(crate) const SEPARATE: usize = 4096;

const MAGIC: u32 = 0x4350_5250; // "PRPC"
const VERSION: u16 = 2;

/// Header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) sequence: u32,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        debug_assert_eq!(
            Header::check(bytes, self.sequence, self.len as usize),
            Ok(self.len as usize),
            "a header is read as it was written"
        );
        bytes
    }

    /// The body's length, if this is the message expected in the slot.
    pub(crate) fn check(bytes: [u8; HEADER], sequence: u32, max: usize) -> Result<usize, &'static str> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if word(0) != MAGIC {
            return Err("a slot without a message");
        }
        if word(8) != sequence {
            return Err("a stale or repeated message");
        }
        match word(4) as usize {
            len if len <= max => Ok(len),
            _ => Err("a message over the limit"),
        }
    }
}

/// The immediate of a request (Octopus: the client's identifier and the position of its slot).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Immediate {
    pub(crate) client: u32,
    pub(crate) slot: usize,
}

impl Immediate {
    pub(crate) const CLIENTS: u32 = 1 << 24;

    pub(crate) fn to_u32(self) -> u32 {
        assert!(self.client < Immediate::CLIENTS && self.slot < SLOTS, "{self:?}");
        let word = self.client << 8 | self.slot as u32;
        debug_assert_eq!(
            Immediate::from_u32(word),
            self,
            "an immediate is read as it was written"
        );
        word
    }

    pub(crate) fn from_u32(word: u32) -> Immediate {
        Immediate {
            client: word >> 8,
            slot: (word & 0xff) as usize,
        }
    }
}

/// First message of either side: where the other one writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setup {
    /// Memory region with the slots.
    pub(crate) key: u64,
    /// By which the server knows the caller.
    pub(crate) client: u32,
}

impl Setup {
    const LEN: usize = 24;

    pub(crate) fn to_bytes(self) -> [u8; Setup::LEN] {
        let mut bytes = [0; Setup::LEN];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(SLOTS as u16).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.client.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        debug_assert_eq!(Setup::from_bytes(&bytes), Ok(self), "a setup is read as it was written");
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Setup, &'static str> {
        let bytes: &[u8; Setup::LEN] = bytes.try_into().map_err(|_| "a setup message of the wrong size")?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if word(0) != MAGIC || word(4) != u32::from(VERSION) | (SLOTS as u32) << 16 {
            return Err("a setup message of another version");
        }
        let client = word(8);
        if client >= Immediate::CLIENTS {
            return Err("a setup message with an impossible client");
        }
        Ok(Setup {
            key: u64::from_le_bytes(bytes[16..].try_into().expect("8 bytes")),
            client,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written_and_otherwise_refused() {
        let bytes = Header { len: 100, sequence: 7 }.to_bytes();
        assert_eq!(Header::check(bytes, 7, 100), Ok(100));
        assert!(Header::check(bytes, 8, 100).is_err());
        assert!(Header::check(bytes, 7, 99).is_err());
        assert!(Header::check([0; HEADER], 0, 99).is_err());
    }

    #[test]
    fn setup_is_read_as_written_and_otherwise_refused() {
        let setup = Setup {
            key: 0x1234_5678_9abc_def0,
            client: 77,
        };
        let bytes = setup.to_bytes();
        assert_eq!(Setup::from_bytes(&bytes), Ok(setup));
        assert!(Setup::from_bytes(&bytes[1..]).is_err());
        for at in [0, 4, 6, 11] {
            let mut other = bytes;
            other[at] ^= 0x80;
            assert!(Setup::from_bytes(&other).is_err(), "byte {at}");
        }
    }

    #[test]
    fn an_immediate_names_client_and_slot() {
        let named = Immediate {
            client: Immediate::CLIENTS - 1,
            slot: 15,
        };
        assert_eq!(Immediate::from_u32(named.to_u32()), named);
    }
}
