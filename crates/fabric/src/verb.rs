//! The verbs, and what arrives at their target.

use crate::{Memory, RemoteKey};

/// Largest [`Verb::Send`], bytes.
pub const MAX_SEND: usize = 64 * 1024;

/// Address at the peer: key and byte offset in that memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Key of the memory region.
    pub key: RemoteKey,
    /// Offset in the memory region, bytes.
    pub offset: u64,
}

/// Memory of this side that a verb works on in place: a range of a pool or of a buffer, rather than memory lent by the caller.
#[derive(Clone, Copy)]
pub struct Local<'a> {
    /// The memory.
    pub memory: &'a Memory,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// One verb of a batch. Verbs of a batch take effect at the target in order; the batch stops at the first that fails.
///
/// Aligned 8-byte reads and writes are atomic; larger ones are not (a concurrent writer may be seen half-way).
pub enum Verb<'a> {
    /// One-sided read.
    Read {
        /// Where.
        from: Remote,
        /// To; its content is undefined if the batch fails.
        into: &'a mut [u8],
    },
    /// One-sided write. Durable when it completes, if the memory region lies in a pool.
    Write {
        /// Where.
        to: Remote,
        /// What.
        bytes: &'a [u8],
    },
    /// One-sided read that lands where it is to stay. Durable when it completes, if that is in a pool; if the batch fails, the
    /// content is undefined. Panics if the range does not lie within the memory.
    ReadInto {
        /// Where.
        from: Remote,
        /// To.
        into: Local<'a>,
    },
    /// One-sided write of what lies in a pool or buffer. Panics if the range does not lie within the memory.
    WriteFrom {
        /// Where.
        to: Remote,
        /// What.
        from: Local<'a>,
    },
    /// Write, then an event with `imm` at the peer. `to.key == RemoteKey(0)` with empty bytes sends the immediate alone. Unsignaled
    /// its bytes are there when the event is, which may be after what is posted later has taken effect.
    WriteImm {
        /// Where.
        to: Remote,
        /// What.
        bytes: &'a [u8],
        /// Immediate.
        imm: u32,
    },
    /// 64-bit compare-and-swap.
    CompareSwap {
        /// Where; the offset is a multiple of 8.
        at: Remote,
        /// Expected.
        expect: u64,
        /// Stored if the expected value was found.
        new: u64,
        /// Gets the old value.
        found: &'a mut u64,
    },
    /// 64-bit fetch-and-add (wrapping).
    FetchAdd {
        /// Where; the offset is a multiple of 8.
        at: Remote,
        /// Addend.
        add: u64,
        /// Gets the old value.
        found: &'a mut u64,
    },
    /// What was written to the range before is durable when this completes.
    Flush {
        /// Where.
        at: Remote,
        /// Bytes.
        len: u64,
    },
    /// Two-sided message (at most [`MAX_SEND`]), an [`Event::Message`] at the peer.
    Send {
        /// Payload.
        bytes: &'a [u8],
    },
}

impl Verb<'_> {
    /// Bytes that it brings here, but for words of atomics.
    pub(crate) fn reading(&self) -> usize {
        match self {
            Verb::Read { into, .. } => into.len(),
            Verb::ReadInto { into, .. } => into.len as usize,
            _ => 0,
        }
    }

    /// Something comes back that its caller waits for.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(
            self,
            Verb::Read { .. } | Verb::ReadInto { .. } | Verb::CompareSwap { .. } | Verb::FetchAdd { .. }
        )
    }
}

/// What arrives at the target side of a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A write-with-immediate landed.
    Immediate(u32),
    /// A `Send`.
    Message(Vec<u8>),
}
