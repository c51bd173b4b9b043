//! Frames on the TCP stream: a fixed header, then a payload.
//!
//! A batch is a sequence of request frames with one operation id, the last of them marked [`LAST`]; batches of one
//! initiator are never interleaved. Answers come in the order of the requests. Both directions carry requests and
//! answers.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First two bytes of every frame.
const MAGIC: u16 = 0x5ab0;

/// Largest payload of a frame, bytes; the initiator splits what is larger.
pub(crate) const MAX_PAYLOAD: usize = 16 << 20;

/// Bytes of a header.
pub(crate) const HEADER: usize = size_of::<Frame>();

/// Last frame of a batch (request), or the completion rides on this answer.
pub(crate) const LAST: u8 = 1;
/// No completion is wanted unless the batch fails.
pub(crate) const UNSIGNALED: u8 = 2;
/// Nor if it fails.
pub(crate) const UNREPORTED: u8 = 4;

/// Operation id of unsignaled batches.
pub(crate) const NO_OP: u32 = u32::MAX;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opcode {
    /// Request: `a` bytes at key, offset; `b`: bytes of the verb from here on; `aux`: which destination.
    Read,
    /// Request: payload to key, offset; `a`: bytes of the verb from here on.
    Write,
    /// As `Write`; `aux`: immediate, raised with the last frame of the verb.
    WriteImm,
    /// Request: `a`: expected, `b`: new, `aux`: which destination.
    CompareSwap,
    /// Request: `a`: addend, `aux`: which destination.
    FetchAdd,
    /// Request: `a` bytes at key, offset.
    Flush,
    /// Request: payload is the message.
    Send,
    /// Answer: payload is what was read; `aux`: which destination.
    Data,
    /// Answer: `a` is the word found; `aux`: which destination.
    Word,
    /// Answer: the batch is complete; `aux`: status; key, offset, `a`: the range that failed.
    Complete,
}

impl Opcode {
    fn of(code: u8) -> Option<Opcode> {
        use Opcode::*;
        [
            Read,
            Write,
            WriteImm,
            CompareSwap,
            FetchAdd,
            Flush,
            Send,
            Data,
            Word,
            Complete,
        ]
        .into_iter()
        .find(|o| o.code() == code)
    }

    fn code(self) -> u8 {
        match self {
            Opcode::Read => 1,
            Opcode::Write => 2,
            Opcode::WriteImm => 3,
            Opcode::CompareSwap => 4,
            Opcode::FetchAdd => 5,
            Opcode::Flush => 6,
            Opcode::Send => 7,
            Opcode::Data => 16,
            Opcode::Word => 17,
            Opcode::Complete => 18,
        }
    }

    /// The frame, with this opcode.
    pub(crate) fn on(self, frame: Frame) -> Frame {
        Frame {
            opcode: self.code(),
            ..frame
        }
    }

    pub(crate) fn is_request(self) -> bool {
        self.code() < 16
    }

    fn max_payload(self) -> usize {
        match self {
            Opcode::Write | Opcode::WriteImm | Opcode::Data => MAX_PAYLOAD,
            Opcode::Send => crate::MAX_SEND,
            _ => 0,
        }
    }
}

/// The header, 48 bytes, little-endian.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(crate) struct Frame {
    magic: U16,
    opcode: u8,
    pub(crate) flags: u8,
    len: U32,
    op: U32,
    aux: U32,
    key: U64,
    offset: U64,
    a: U64,
    b: U64,
}

const _: () = assert!(size_of::<Frame>() == 48);

impl Frame {
    pub(crate) fn new(opcode: Opcode, op: u32) -> Frame {
        let zero = Frame::new_zeroed();
        Frame {
            magic: MAGIC.into(),
            opcode: opcode.code(),
            op: op.into(),
            ..zero
        }
    }

    pub(crate) fn flags(self, flags: u8) -> Frame {
        Frame { flags, ..self }
    }

    pub(crate) fn at(self, key: u64, offset: u64) -> Frame {
        Frame {
            key: key.into(),
            offset: offset.into(),
            ..self
        }
    }

    pub(crate) fn with(self, a: u64, b: u64) -> Frame {
        Frame {
            a: a.into(),
            b: b.into(),
            ..self
        }
    }

    pub(crate) fn with_aux(self, aux: u32) -> Frame {
        Frame {
            aux: aux.into(),
            ..self
        }
    }

    pub(crate) fn with_payload(self, len: usize) -> Frame {
        Frame {
            len: (len as u32).into(),
            ..self
        }
    }

    /// Parses and checks what can be checked without context; the error names what is wrong.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Opcode, Frame), &'static str> {
        let frame = Frame::read_from_bytes(bytes).map_err(|_| "a header of the wrong size")?;
        if frame.magic.get() != MAGIC {
            return Err("a frame that does not begin as one");
        }
        let opcode = Opcode::of(frame.opcode).ok_or("a frame with an unknown opcode")?;
        if frame.flags & !(LAST | UNSIGNALED | UNREPORTED) != 0 {
            return Err("a frame with unknown flags");
        }
        if frame.payload() > opcode.max_payload() {
            return Err("a frame with an oversized payload");
        }
        Ok((opcode, frame))
    }

    pub(crate) fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }

    pub(crate) fn is_unsignaled(&self) -> bool {
        self.flags & UNSIGNALED != 0
    }

    pub(crate) fn is_unreported(&self) -> bool {
        self.flags & UNREPORTED != 0
    }

    /// Bytes of the payload that follows.
    pub(crate) fn payload(&self) -> usize {
        self.len.get() as usize
    }

    pub(crate) fn op(&self) -> u32 {
        self.op.get()
    }

    pub(crate) fn aux(&self) -> u32 {
        self.aux.get()
    }

    pub(crate) fn key(&self) -> u64 {
        self.key.get()
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset.get()
    }

    pub(crate) fn a(&self) -> u64 {
        self.a.get()
    }

    pub(crate) fn b(&self) -> u64 {
        self.b.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_parsed_as_it_was_made() {
        let made = Frame::new(Opcode::WriteImm, 7)
            .flags(LAST)
            .at(1 << 60, 5)
            .with(3, 9)
            .with_aux(0xffff_fffe)
            .with_payload(3);
        let (opcode, frame) = Frame::parse(made.as_bytes()).unwrap();
        assert_eq!(opcode, Opcode::WriteImm);
        assert_eq!(
            (frame.op(), frame.key(), frame.offset(), frame.a(), frame.b()),
            (7, 1 << 60, 5, 3, 9)
        );
        assert_eq!(
            (frame.aux(), frame.payload(), frame.is_last(), frame.is_unsignaled()),
            (0xffff_fffe, 3, true, false)
        );
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let good = Frame::new(Opcode::Read, 1);
        assert!(Frame::parse(good.as_bytes()).is_ok());
        assert!(Frame::parse(&good.as_bytes()[..47]).is_err());
        for (at, byte) in [(0, 0), (1, 0), (2, 0), (2, 8), (2, 99), (3, 8), (4, 1), (7, 1)] {
            let mut bytes = [0; HEADER];
            bytes.copy_from_slice(good.as_bytes());
            bytes[at] = byte;
            assert!(Frame::parse(&bytes).is_err(), "byte {at} = {byte}");
        }
        assert!(Frame::parse(Frame::new(Opcode::Send, 1).with_payload(crate::MAX_SEND + 1).as_bytes()).is_err());
        assert!(Frame::parse(Frame::new(Opcode::Write, 1).with_payload(MAX_PAYLOAD + 1).as_bytes()).is_err());
    }
}
