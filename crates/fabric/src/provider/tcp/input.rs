//! What is received: frames are parsed, the peer's requests served, answers brought to the callers.
//!
//! Small frames go through a buffer; the payload of large ones is received straight to where it belongs.
//!
//! Requests take effect in order. A large read is answered by reference to the memory region, whose bytes are taken when
//! the kernel accepts them; so the next request is not looked at before that. If the kernel takes no more, the requests
//! wait, and the peer with them, unless answers to operations of our own may be behind them (then both ends might wait
//! for each other for ever): in that case what was read is copied.

use super::output::{BY_REFERENCE, Output};
use super::records::Opener;
use super::wire::{Frame, HEADER, LAST, MAX_PAYLOAD, NO_OP, Opcode};
use crate::access::Want;
use crate::wait::{MAX_READING, NotOurs, OpId, Reach, Shared};
use crate::{Event, FabricError, Memory, MemoryRegions};
use std::borrow::Cow;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use zerocopy::IntoBytes;

/// The buffer for small frames, bytes.
const BUFFER: usize = 16 * 1024;

/// Reads from here on are answered from where the bytes lie, bytes. Below, a copy is cheaper than what the reference costs:
/// a call of its own into the kernel when another request follows.
const ANSWER_BY_REFERENCE: usize = 32 * 1024;

/// Frames and bytes handled in one round, so that one connection does not keep the thread for itself.
const ROUND_FRAMES: usize = 128;
const ROUND_BYTES: usize = 2 << 20;

/// Answers kept for a peer that does not take them, bytes: beyond the first the connection waits where it may, beyond the
/// second it is ended.
const KEEP: usize = 4 << 20;
const KEEP_AT_MOST: usize = 2 * MAX_READING;

/// Status codes of a completion.
const OK: u32 = 0;
const BAD_KEY: u32 = 1;
const DENIED: u32 = 2;
const OUT_OF_RANGE: u32 = 3;

/// Why receiving ended.
pub(super) enum Ended {
    /// The peer closed, or the socket failed.
    Lost(String),
    /// The peer does not keep to the protocol.
    Broken(Cow<'static, str>),
}

impl From<NotOurs> for Ended {
    fn from(_: NotOurs) -> Self {
        "an answer to nothing that was asked".into()
    }
}

impl From<&'static str> for Ended {
    fn from(what: &'static str) -> Self {
        Ended::Broken(what.into())
    }
}

/// What a round of receiving left.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
pub(super) enum Received {
    /// Nothing: the socket is drained.
    All,
    /// Something that has to wait until output has gone.
    Waiting,
    /// Something: others should have their turn.
    Round,
    /// Something: an answer whose caller was called, since its memory is touched only while it is being polled.
    Called,
}

/// Where a payload goes.
enum Sink {
    Discard,
    Memory { memory: Memory, at: u64 },
    Destination { op: OpId, which: usize },
    Message(Vec<u8>),
}

/// A large payload on its way.
struct Payload {
    opcode: Opcode,
    frame: Frame,
    sink: Sink,
    done: usize,
}

/// The batch the peer is sending.
struct Batch {
    op: u32,
    failed: Option<FabricError>,
}

/// The receiving half of a connection.
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    batch: Option<Batch>,
    /// What is received comes through it.
    opener: Option<Box<Opener>>,
    /// The socket was empty when we looked last,
    socket_empty: bool,
    /// and nothing that has come from it is left here.
    pub(super) drained: bool,
    /// Nothing is received until output has gone, events are taken or an operation of our own begins.
    pub(super) waiting: bool,
    /// Nothing is handled before that caller has had its turn,
    pub(super) calling: bool,
    /// which was called last. If it does not come, its bytes are kept for it.
    called: Option<OpId>,
}

/// What receiving works on.
pub(super) struct Around<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) shared: &'a Shared,
    pub(super) regions: &'a MemoryRegions,
}

impl Around<'_> {
    /// Sends what the kernel takes.
    fn send(&self, output: &mut Output) -> Result<(), Ended> {
        let sent = output.send(self.socket, self.shared.present());
        sent.map(|_| ()).map_err(|error| Ended::Lost(error.to_string()))
    }
}

impl Input {
    pub(super) fn new(opener: Option<Opener>) -> Input {
        Input {
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            payload: None,
            batch: None,
            opener: opener.map(Box::new),
            socket_empty: false,
            drained: false,
            waiting: false,
            calling: false,
            called: None,
        }
    }

    /// Forgets what it refers to.
    pub(super) fn clear(&mut self) {
        self.payload = None;
        self.batch = None;
    }

    /// Receives and handles what is there, at most a round of it.
    pub(super) fn receive(&mut self, around: &Around<'_>, output: &mut Output) -> Result<Received, Ended> {
        self.socket_empty = false;
        self.drained = false;
        self.waiting = false;
        self.calling = false;
        let (mut frames, mut bytes) = (0, 0);
        loop {
            while self.handle_buffered(around, output)? {
                frames += 1;
                if frames >= ROUND_FRAMES {
                    return Ok(Received::Round);
                }
            }
            if self.waiting {
                return Ok(Received::Waiting);
            }
            if self.calling {
                return Ok(Received::Called);
            }
            if self.drained {
                return Ok(Received::All);
            }
            if bytes >= ROUND_BYTES {
                return Ok(Received::Round);
            }
            bytes += self.refill(around)?;
        }
    }

    fn buffered(&self) -> usize {
        debug_assert!(
            self.start <= self.end && self.end <= self.buffer.len(),
            "what is buffered"
        );
        self.end - self.start
    }

    /// Handles one thing that lies in the buffer: a frame, or a part of a payload. False if more must be received first,
    /// or if it has to wait.
    fn handle_buffered(&mut self, around: &Around<'_>, output: &mut Output) -> Result<bool, Ended> {
        self.stop_if_revoked(around);
        if let Some(payload) = &self.payload
            && let Sink::Destination { op, which } = payload.sink
            && self.buffered() > 0
            && !self.may_fill(op, which, around.shared)?
        {
            return Ok(false);
        }
        if let Some(payload) = &mut self.payload {
            let here = &self.buffer[self.start..self.end];
            let take = here.len().min(payload.left());
            if take > 0 {
                payload.take(&here[..take], around.shared)?;
                self.start += take;
            }
            if payload.done < payload.frame.payload() {
                return Ok(false);
            }
            let payload = self.payload.take().expect("just looked at");
            self.finish(payload, around, output)?;
            return Ok(true);
        }
        if self.buffered() < HEADER {
            return Ok(false);
        }
        let (opcode, frame) = Frame::parse(&self.buffer[self.start..self.start + HEADER])?;
        let is_small = frame.payload() < BY_REFERENCE;
        if is_small && self.buffered() < HEADER + frame.payload() {
            return Ok(false);
        }
        if opcode.is_request() && !self.may_serve(opcode, around, output)? {
            self.waiting = true;
            return Ok(false);
        }
        if is_small
            && opcode == Opcode::Data
            && !self.may_fill(OpId(frame.op()), frame.aux() as usize, around.shared)?
        {
            return Ok(false);
        }
        self.start += HEADER;
        if opcode.is_request() {
            self.enter_batch(&frame)?;
        }
        if is_small {
            let range = self.start..self.start + frame.payload();
            self.start = range.end;
            self.handle_small(opcode, frame, range, around, output)?;
        } else {
            let sink = self.sink(opcode, &frame, around)?;
            debug_assert!(self.payload.is_none(), "one payload at a time");
            self.payload = Some(Payload {
                opcode,
                frame,
                sink,
                done: 0,
            });
        }
        Ok(true)
    }

    /// False if an answer has to wait for its caller, which is called. That comes with its next turn if it ever comes.
    fn may_fill(&mut self, op: OpId, which: usize, shared: &Shared) -> Result<bool, Ended> {
        match shared.reach(op, which)? {
            Reach::Here => self.called = None,
            Reach::Away if self.called == Some(op) => {}
            Reach::Away => {
                shared.call(op);
                self.called = Some(op);
                self.calling = true;
            }
        }
        Ok(!self.calling)
    }

    /// False if a request has to wait.
    fn may_serve(&self, opcode: Opcode, around: &Around<'_>, output: &mut Output) -> Result<bool, Ended> {
        let full = matches!(opcode, Opcode::WriteImm | Opcode::Send) && !around.shared.has_room_for_events();
        if !full && !output.has_leases() && output.kept() < KEEP {
            return Ok(true);
        }
        if output.has_leases() || output.kept() >= KEEP {
            around.send(output)?;
        }
        let waits = around.shared.any_outstanding();
        if full {
            return if waits {
                Err("more events than anybody here takes".into())
            } else {
                Ok(false)
            };
        }
        if waits {
            output.own_leases();
            if output.kept() >= KEEP_AT_MOST {
                return Err("it does not take the answers to its reads".into());
            }
            return Ok(true);
        }
        Ok(!output.has_leases() && output.kept() < KEEP)
    }

    fn enter_batch(&mut self, frame: &Frame) -> Result<(), Ended> {
        if frame.is_unsignaled() != (frame.op() == NO_OP) || frame.is_unreported() && !frame.is_unsignaled() {
            return Err("an unsignaled batch with an operation id".into());
        }
        match &self.batch {
            Some(batch) if batch.op != frame.op() => Err("a batch within a batch".into()),
            Some(_) => Ok(()),
            None => {
                self.batch = Some(Batch {
                    op: frame.op(),
                    failed: None,
                });
                Ok(())
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.failed.is_some())
    }

    /// Notes the failure of the batch, or passes the value on.
    fn note<T>(&mut self, result: Result<T, FabricError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if let Some(batch) = &mut self.batch {
                    batch.failed = Some(error);
                }
                None
            }
        }
    }

    /// Where the payload of a large frame goes.
    fn sink(&mut self, opcode: Opcode, frame: &Frame, around: &Around<'_>) -> Result<Sink, Ended> {
        match opcode {
            Opcode::Data => Ok(Sink::Destination {
                op: OpId(frame.op()),
                which: frame.aux() as usize,
            }),
            _ if self.has_failed() => Ok(Sink::Discard),
            Opcode::Send => Ok(Sink::Message(Vec::with_capacity(frame.payload()))),
            _ => match self.write_target(frame, around)? {
                Some((memory, at)) => Ok(Sink::Memory { memory, at }),
                None => Ok(Sink::Discard),
            },
        }
    }

    /// The target of a write, with all that is left of the verb checked; `None` if the batch has failed.
    fn write_target(&mut self, frame: &Frame, around: &Around<'_>) -> Result<Option<(Memory, u64)>, Ended> {
        if frame.a() < frame.payload() as u64 {
            return Err("a write that is longer than it says".into());
        }
        let resolved = around
            .regions
            .resolve(frame.key(), frame.offset(), frame.a(), Want::Write);
        Ok(self.note(resolved))
    }

    /// The owner of the memory that a large payload goes to may have taken it back since its first part came: what is still
    /// to come is no longer brought there.
    fn stop_if_revoked(&mut self, around: &Around<'_>) {
        let Some(Payload { frame, sink, .. }) = &mut self.payload else {
            return;
        };
        let Sink::Memory { .. } = sink else { return };
        let resolved = around
            .regions
            .resolve(frame.key(), frame.offset(), frame.payload() as u64, Want::Write);
        if let Err(error) = resolved {
            *sink = Sink::Discard;
            self.note::<()>(Err(error));
        }
    }

    /// A frame whose payload lies in the buffer.
    fn handle_small(
        &mut self,
        opcode: Opcode,
        frame: Frame,
        payload: std::ops::Range<usize>,
        around: &Around<'_>,
        output: &mut Output,
    ) -> Result<(), Ended> {
        match opcode {
            Opcode::Data | Opcode::Word | Opcode::Complete => {
                return self.answer(opcode, &frame, payload, around.shared);
            }
            _ => around.shared.count_served(),
        }
        if self.has_failed() {
            return self.end_verb(&frame, around, output, false);
        }
        let mut answered = false;
        match opcode {
            Opcode::Write | Opcode::WriteImm => {
                let is_bare = opcode == Opcode::WriteImm && frame.key() == 0 && frame.a() == 0;
                let target = if is_bare {
                    None
                } else {
                    self.write_target(&frame, around)?
                };
                if let Some((memory, at)) = target {
                    memory.write(at, &self.buffer[payload.clone()]);
                }
                if opcode == Opcode::WriteImm && !self.has_failed() && frame.a() == payload.len() as u64 {
                    around.shared.push_event(Event::Immediate(frame.aux()));
                }
            }
            Opcode::Send => around.shared.push_event(Event::Message(self.buffer[payload].to_vec())),
            Opcode::Read => answered = self.read(&frame, around, output)?,
            Opcode::CompareSwap | Opcode::FetchAdd => {
                let resolved = around.regions.resolve(frame.key(), frame.offset(), 8, Want::Atomic);
                if let Some((memory, at)) = self.note(resolved) {
                    let found = match opcode {
                        Opcode::CompareSwap => memory.compare_swap(at, frame.a(), frame.b()),
                        _ => memory.fetch_add(at, frame.a()),
                    };
                    let answer = Frame::new(Opcode::Word, frame.op())
                        .with(found, 0)
                        .with_aux(frame.aux());
                    output.push(answer.flags(frame.flags & LAST).as_bytes());
                    answered = true;
                }
            }
            Opcode::Flush => {
                let resolved = around
                    .regions
                    .resolve(frame.key(), frame.offset(), frame.a(), Want::Flush);
                if let Some((memory, at)) = self.note(resolved) {
                    memory.persist(at, frame.a());
                }
            }
            Opcode::Data | Opcode::Word | Opcode::Complete => unreachable!("handled above"),
        }
        self.end_verb(&frame, around, output, answered)
    }

    /// Answers a read. True if the answer carries the completion where that is due.
    fn read(&mut self, frame: &Frame, around: &Around<'_>, output: &mut Output) -> Result<bool, Ended> {
        if frame.is_unsignaled() || frame.a() > MAX_PAYLOAD as u64 || frame.a() > frame.b() {
            return Err("a read that makes no sense".into());
        }
        let resolved = around
            .regions
            .resolve(frame.key(), frame.offset(), frame.b(), Want::Read);
        let Some((memory, at)) = self.note(resolved) else {
            return Ok(false);
        };
        let len = frame.a() as usize;
        let answer = Frame::new(Opcode::Data, frame.op())
            .with_aux(frame.aux())
            .with_payload(len);
        output.push(answer.flags(frame.flags & LAST).as_bytes());
        match memory.mapped() {
            Some(base) if len >= ANSWER_BY_REFERENCE => {
                output.push_lease(base.wrapping_add(at as usize).cast_const(), len, memory);
            }
            _ => memory.read(at, output.reserve(len)),
        }
        Ok(true)
    }

    /// Ends a request frame; with the last one of a batch its completion goes out, unless an answer carries it. A failed batch that
    /// is not signaled ends the connection here too: what was posted behind it relies on it.
    fn end_verb(
        &mut self,
        frame: &Frame,
        around: &Around<'_>,
        output: &mut Output,
        answered: bool,
    ) -> Result<(), Ended> {
        if !frame.is_last() {
            return Ok(());
        }
        let failed = self.batch.take().and_then(|batch| batch.failed);
        let wanted = match failed {
            None => !answered && !frame.is_unsignaled(),
            Some(_) => !frame.is_unreported(),
        };
        if !wanted {
            return Ok(());
        }
        let complete = Frame::new(Opcode::Complete, frame.op());
        let lost = match &failed {
            Some(error) if frame.is_unsignaled() => {
                Some(format!("an unsignaled operation of the peer failed: {error}"))
            }
            _ => None,
        };
        let complete = match failed {
            None => complete.with_aux(OK),
            Some(FabricError::Denied { key }) => complete.with_aux(DENIED).at(key, 0),
            Some(FabricError::OutOfRange { key, offset, len }) => {
                complete.with_aux(OUT_OF_RANGE).at(key, offset).with(len, 0)
            }
            Some(FabricError::BadKey { key }) => complete.with_aux(BAD_KEY).at(key, 0),
            Some(other) => unreachable!("resolving a key gives no {other}"),
        };
        output.push(complete.as_bytes());
        match lost {
            None => Ok(()),
            Some(why) => {
                // as far as the kernel takes it: without it the peer finds the connection closed
                around.send(output)?;
                Err(Ended::Lost(why))
            }
        }
    }

    /// A small answer to an operation of ours.
    fn answer(
        &mut self,
        opcode: Opcode,
        frame: &Frame,
        payload: std::ops::Range<usize>,
        shared: &Shared,
    ) -> Result<(), Ended> {
        let op = OpId(frame.op());
        match opcode {
            Opcode::Data => {
                shared.fill(op, frame.aux() as usize, self.buffer[payload].into())?;
                if !frame.is_last() {
                    return Ok(());
                }
            }
            Opcode::Word => {
                shared.fill_word(op, frame.aux() as usize, frame.a())?;
                if !frame.is_last() {
                    return Ok(());
                }
            }
            _ => {}
        }
        let (key, offset, len) = (frame.key(), frame.offset(), frame.a());
        let result = match (opcode, frame.aux()) {
            (Opcode::Complete, BAD_KEY) => Err(FabricError::BadKey { key }),
            (Opcode::Complete, DENIED) => Err(FabricError::Denied { key }),
            (Opcode::Complete, OUT_OF_RANGE) => Err(FabricError::OutOfRange { key, offset, len }),
            (Opcode::Complete, OK) | (Opcode::Data | Opcode::Word, _) => Ok(()),
            _ => return Err("a completion with an unknown status".into()),
        };
        match result {
            Err(error) if frame.op() == NO_OP => Err(Ended::Lost(format!("an unsignaled operation failed: {error}"))),
            result => Ok(shared.complete(op, result)?),
        }
    }

    /// A large payload has come in whole.
    fn finish(&mut self, payload: Payload, around: &Around<'_>, output: &mut Output) -> Result<(), Ended> {
        let Payload {
            opcode, frame, sink, ..
        } = payload;
        let len = frame.payload() as u64;
        match sink {
            Sink::Destination { op, .. } => {
                if frame.is_last() {
                    around.shared.complete(op, Ok(()))?;
                }
                return Ok(());
            }
            Sink::Discard => {}
            Sink::Message(bytes) => around.shared.push_event(Event::Message(bytes)),
            Sink::Memory { memory, at } => {
                memory.persist(at, len);
                if opcode == Opcode::WriteImm && frame.a() == len {
                    around.shared.push_event(Event::Immediate(frame.aux()));
                }
            }
        }
        around.shared.count_served();
        self.end_verb(&frame, around, output, false)
    }

    /// Receives once: the rest of a large payload straight to its place, and what follows into the buffer.
    fn refill(&mut self, around: &Around<'_>) -> Result<usize, Ended> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.stop_if_revoked(around);
        if let Some(mut opener) = self.opener.take() {
            let got = self.refill_opened(&mut opener, around);
            self.opener = Some(opener);
            return got;
        }
        let direct = match &mut self.payload {
            Some(payload) => payload.place(around.shared)?,
            None => None,
        };
        debug_assert!(
            direct.is_none() || self.end == 0,
            "what was buffered of a payload has been taken"
        );
        let (at, len) = direct.unwrap_or((self.buffer.as_mut_ptr(), 0));
        let buffer = &mut self.buffer[self.end..];
        let mut vectors = [
            libc::iovec {
                iov_base: at.cast(),
                iov_len: len,
            },
            libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            },
        ];
        let asked = len + buffer.len();
        // SAFETY: all zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = 2;
        // SAFETY: the first vector is the rest of a destination whose caller is being polled (`Payload::place`), or lies in a
        // mapping that the payload's sink or the operation keeps; the second one is our buffer.
        let got = unsafe {
            match direct {
                Some(_) => libc::recvmsg(around.socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT),
                // the usual case, for which the kernel has less to copy and to check
                None => {
                    let [_, libc::iovec { iov_base, iov_len }] = vectors;
                    libc::recv(around.socket.as_raw_fd(), iov_base, iov_len, libc::MSG_DONTWAIT)
                }
            }
        };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.drained = true;
                    Ok(0)
                }
                io::ErrorKind::Interrupted => Ok(0),
                _ => Err(Ended::Lost(error.to_string())),
            };
        };
        if got == 0 {
            return Err(self.end());
        }
        self.drained = got < asked;
        around.shared.note_activity();
        if len > 0 {
            let placed = got.min(len);
            if let Some(payload) = &mut self.payload {
                payload.placed(placed, around.shared)?;
            }
            self.end = got - placed;
        } else {
            self.end += got;
        }
        Ok(got)
    }

    /// The peer sends no more.
    fn end(&self) -> Ended {
        match (&self.payload, self.buffered()) {
            (None, 0) => Ended::Lost("closed by the peer".into()),
            _ => "a truncated frame".into(),
        }
    }

    /// As [`Input::refill`], of records: a part of a sound one, to where it belongs or into the buffer; or receives once.
    fn refill_opened(&mut self, opener: &mut Opener, around: &Around<'_>) -> Result<usize, Ended> {
        if !opener.bytes().is_empty() || opener.open_next()? {
            let bytes = opener.bytes();
            let taken = match &mut self.payload {
                Some(payload) if self.end == 0 && payload.is_here(around.shared) => {
                    let now = bytes.len().min(payload.left());
                    payload.take(&bytes[..now], around.shared)?;
                    now
                }
                _ => {
                    let now = bytes.len().min(self.buffer.len() - self.end);
                    self.buffer[self.end..self.end + now].copy_from_slice(&bytes[..now]);
                    self.end += now;
                    now
                }
            };
            opener.take(taken);
            return Ok(taken);
        }
        if self.socket_empty {
            self.drained = true;
            return Ok(0);
        }
        match opener.receive(around.socket) {
            Ok((0, _)) if opener.is_within_record() => Err("a truncated record".into()),
            Ok((0, _)) => Err(self.end()),
            Ok((_, all)) => {
                self.socket_empty = all;
                around.shared.note_activity();
                Ok(0)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.socket_empty = true;
                    Ok(0)
                }
                io::ErrorKind::Interrupted => Ok(0),
                _ => Err(Ended::Lost(error.to_string())),
            },
        }
    }
}

impl Payload {
    fn left(&self) -> usize {
        self.frame.payload() - self.done
    }

    /// Whether it can be brought to where it goes now.
    fn is_here(&self, shared: &Shared) -> bool {
        match self.sink {
            Sink::Destination { op, which } => !matches!(shared.reach(op, which), Ok(Reach::Away)),
            _ => true,
        }
    }

    /// Takes a part that was received into the buffer.
    fn take(&mut self, bytes: &[u8], shared: &Shared) -> Result<(), Ended> {
        match &mut self.sink {
            Sink::Discard => {}
            Sink::Message(message) => message.extend_from_slice(bytes),
            Sink::Memory { memory, at } => memory.write_part(*at + self.done as u64, bytes),
            Sink::Destination { op, which } => shared.fill(*op, *which, bytes.into())?,
        }
        self.done += bytes.len();
        Ok(())
    }

    /// Where the rest of it can be received without a copy.
    fn place(&mut self, shared: &Shared) -> Result<Option<(*mut u8, usize)>, Ended> {
        let left = self.left();
        match &self.sink {
            Sink::Discard | Sink::Message(_) => Ok(None),
            Sink::Memory { memory, at } => {
                let to = *at as usize + self.done;
                Ok(memory.mapped().map(|base| (base.wrapping_add(to), left)))
            }
            Sink::Destination { op, which } => Ok(shared.place(*op, *which, left)?.map(|at| (at, left))),
        }
    }

    /// So many bytes were received where `place` said.
    fn placed(&mut self, len: usize, shared: &Shared) -> Result<(), Ended> {
        self.done += len;
        if let Sink::Destination { op, which } = &self.sink {
            shared.placed(*op, *which, len)?;
        }
        Ok(())
    }
}
