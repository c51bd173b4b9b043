//! Keys of memory regions, and what they allow: what a process and its peers have to see alike.

use crate::FabricError;

/// Access rights of a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Remote read.
    pub read: bool,
    /// Remote write.
    pub write: bool,
    /// Remote atomics.
    pub atomic: bool,
}

impl Access {
    /// Reading only.
    pub const READ: Access = Access {
        read: true,
        write: false,
        atomic: false,
    };
    /// Writing only.
    pub const WRITE: Access = Access {
        read: false,
        write: true,
        atomic: false,
    };
    /// Everything.
    pub const ALL: Access = Access {
        read: true,
        write: true,
        atomic: true,
    };
}

/// Key of a memory region, valid at the endpoint that registered it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RemoteKey(pub u64);

/// What an operation wants of a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Read,
    Write,
    Atomic,
    Flush,
}

impl Want {
    pub(crate) fn allowed_by(self, access: Access) -> bool {
        match self {
            Want::Read => access.read,
            Want::Write => access.write,
            Want::Atomic => access.atomic,
            Want::Flush => access.write || access.atomic || access.read,
        }
    }
}

/// Checks `len` bytes at `offset` against a memory region of `region_len` bytes and its rights, in the order that
/// decides which error the initiator sees.
pub(crate) fn check(
    key: u64,
    region_len: u64,
    access: Access,
    offset: u64,
    len: u64,
    want: Want,
) -> Result<(), FabricError> {
    if !want.allowed_by(access) {
        return Err(FabricError::Denied { key });
    }
    let inside = offset <= region_len && len <= region_len - offset;
    if !inside || (want == Want::Atomic && !offset.is_multiple_of(8)) {
        return Err(FabricError::OutOfRange { key, offset, len });
    }
    Ok(())
}

/// Low bits of a key say the slot in the table. The others are drawn: whoever was given a key can guess no other one,
/// and a key that was revoked is not met again (once in 2^44 registrations of its slot).
pub(crate) const SLOT_BITS: u32 = 20;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// Memory regions that may be registered at a time.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;

/// The slot of a key.
pub(crate) fn slot_of(key: u64) -> usize {
    (key & SLOT_MASK) as usize
}

/// The upper bits of the key of the `n`th registration; never 0.
pub(crate) fn draw(n: u64) -> u64 {
    if cfg!(fuzzing) {
        return n; // what a fuzzer finds must be found again
    }
    let mut bytes = [0; 8];
    loop {
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        let drawn = u64::from_le_bytes(bytes) >> SLOT_BITS;
        if drawn != 0 {
            return drawn;
        }
    }
}
