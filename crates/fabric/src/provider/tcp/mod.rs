//! Peers across a network: a software RNIC on a TCP connection.
//!
//! One-sided operations of the peer are served from the memory regions by whoever drives the queue pair, without code of
//! the file system; see `input` and `output`. Handshakes are in `listen`; what the bytes look like on their way where that is to be
//! safe from others, in `records`.

mod input;
mod listen;
mod output;
mod records;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use listen::{Arrived, TcpListening, connect};

use crate::handshake::Shaken;
use crate::provider::{Completion, Polling, Posted, Progress, Provider};
use crate::queue_pair::check_batch;
use crate::wait::{self, Asked, Directions, OpId, Shared};
use crate::{FabricError, Local, Memory, MemoryRegions, Security, Verb};
use input::{Around, Ended, Input, Received};
use output::{BY_REFERENCE, Output, Sent};
use records::{Opener, Sealer};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, Waker};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use wire::{Frame, LAST, MAX_PAYLOAD, NO_OP, Opcode, UNREPORTED, UNSIGNALED};
use zerocopy::IntoBytes;

/// Copied output beyond which nothing more is posted, bytes.
const POST_LIMIT: usize = 1 << 20;

/// One end of a TCP queue pair.
pub(crate) struct Tcp {
    shared: Shared,
    regions: Arc<MemoryRegions>,
    socket: AsyncFd<OwnedFd>,
    input: RefCell<Input>,
    output: RefCell<Output>,
    channel_waker: Waker,
    /// A batch was not posted because of the output that waits; who wanted to is to be told when that has gone.
    refused: Cell<bool>,
}

impl Tcp {
    /// Takes over a connected, non-blocking socket whose peer has proved who it is.
    pub(crate) fn new(socket: OwnedFd, peer: Shaken, name: String, regions: Arc<MemoryRegions>) -> io::Result<Tcp> {
        let shared = Shared::new(peer.role, name);
        let (input, output) = match peer.security {
            Security::None => (Input::new(None), Output::default()),
            Security::Auth | Security::Encrypt => (
                Input::new(Some(Opener::new(peer.receiving))),
                Output::sealed(Sealer::new(peer.sending)),
            ),
        };
        let channel_waker = Waker::from(shared.channel.clone());
        // SAFETY: `OwnedFd` owns the descriptor and always returns the same one.
        let socket = unsafe { AsyncFd::register(socket)? };
        Ok(Tcp {
            shared,
            regions,
            socket,
            input: RefCell::new(input),
            output: RefCell::new(output),
            channel_waker,
            refused: Cell::new(false),
        })
    }

    fn lose(&self, why: &str) {
        if self.shared.lose(why) {
            tracing::debug!(peer = %self.shared.peer_name, why, "connection ended");
            self.output.borrow_mut().clear();
            self.input.borrow_mut().clear();
            // The peer learns of it even while clones of the queue pair live on.
            let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
        }
    }

    fn send(&self, output: &mut Output) -> Result<Progress, Ended> {
        if output.is_empty() {
            return Ok(Progress::Idle);
        }
        let (sent, bytes) = output
            .send(self.socket.get_ref().as_fd(), self.shared.present())
            .map_err(|e| Ended::Lost(e.to_string()))?;
        if bytes > 0 {
            self.shared.note_activity();
        }
        match sent {
            Sent::Round => return Ok(Progress::More),
            Sent::Held(op) => self.shared.call(op),
            Sent::All | Sent::Stuck => {}
        }
        Ok(Progress::Idle)
    }

    fn try_progress(&self) -> Result<Progress, Ended> {
        let around = Around {
            socket: self.socket.get_ref().as_fd(),
            shared: &self.shared,
            regions: &self.regions,
        };
        let mut output = self.output.borrow_mut();
        let mut input = self.input.borrow_mut();
        let first = self.send(&mut output)?;
        let received = input.receive(&around, &mut output)?;
        let second = self.send(&mut output)?;
        if self.refused.get() && output.posted() < POST_LIMIT {
            self.refused.set(false);
            self.shared.channel.notify_room();
        }
        // What had to wait for output can go on if that has gone.
        let go_on = received == Received::Waiting && output.is_empty() && self.shared.has_room_for_events();
        let more = matches!(received, Received::Round | Received::Called)
            || go_on
            || first == Progress::More
            || second == Progress::More;
        Ok(if more { Progress::More } else { Progress::Idle })
    }

    /// What has become of the connection.
    fn note(&self, progress: Result<Progress, Ended>) -> Progress {
        match progress {
            Ok(progress) => return progress,
            Err(Ended::Lost(why)) => self.lose(&why),
            Err(Ended::Broken(what)) => {
                tracing::warn!(peer = %self.shared.peer_name, %what, "peer breaks the protocol; connection closed");
                self.lose(&format!("it sent {what}"));
            }
        }
        Progress::Idle
    }

    /// The socket is ready, or was, if that `is_stale` when it has been used.
    fn be_ready(&self, ready: io::Result<AsyncFdReadyGuard<'_, OwnedFd>>, is_stale: impl FnOnce() -> bool) -> Asked {
        let progress = self.progress();
        match ready {
            Ok(mut guard) if is_stale() => guard.clear_ready(),
            Ok(_) => {}
            Err(error) => self.lose(&error.to_string()),
        }
        match progress {
            Progress::More => Asked::More,
            Progress::Idle => Asked::Ready,
        }
    }

    fn push_verb(&self, output: &mut Output, verb: &Verb<'_>, frame: Frame, destination: &mut u32, last: u8) {
        let which = *destination;
        match verb {
            Verb::Read { from, .. } | Verb::ReadInto { from, .. } => {
                *destination += 1;
                let whole = verb.reading();
                for (start, len, is_end) in chunks(whole) {
                    let flags = frame.flags | if is_end { last } else { 0 };
                    let frame = frame
                        .at(from.key.0, from.offset.wrapping_add(start as u64))
                        .with_aux(which)
                        .flags(flags);
                    output.push(
                        Opcode::Read
                            .on(frame)
                            .with(len as u64, (whole - start) as u64)
                            .as_bytes(),
                    );
                }
            }
            Verb::Write { to, bytes } => {
                let frame = Opcode::Write.on(frame).at(to.key.0, to.offset);
                push_bytes(output, frame, bytes, None, last);
            }
            Verb::WriteFrom { to, from } => {
                push_local(output, Opcode::Write.on(frame).at(to.key.0, to.offset), from, last);
            }
            Verb::WriteImm { to, bytes, imm } => {
                let frame = Opcode::WriteImm.on(frame).at(to.key.0, to.offset).with_aux(*imm);
                push_bytes(output, frame, bytes, None, last);
            }
            Verb::CompareSwap { at, expect, new, .. } => {
                *destination += 1;
                let frame = Opcode::CompareSwap
                    .on(frame)
                    .at(at.key.0, at.offset)
                    .with(*expect, *new);
                output.push(frame.with_aux(which).flags(frame.flags | last).as_bytes());
            }
            Verb::FetchAdd { at, add, .. } => {
                *destination += 1;
                let frame = Opcode::FetchAdd.on(frame).at(at.key.0, at.offset).with(*add, 0);
                output.push(frame.with_aux(which).flags(frame.flags | last).as_bytes());
            }
            Verb::Flush { at, len } => {
                let frame = Opcode::Flush.on(frame).at(at.key.0, at.offset).with(*len, 0);
                output.push(frame.flags(frame.flags | last).as_bytes());
            }
            Verb::Send { bytes } => push_bytes(output, Opcode::Send.on(frame), bytes, None, last),
        }
    }
}

/// Start, length and whether it is the last, of the chunks that `len` bytes travel in; one of no bytes for none.
fn chunks(len: usize) -> impl Iterator<Item = (usize, usize, bool)> {
    (0..len.max(1)).step_by(MAX_PAYLOAD).map(move |start| {
        let chunk = (len - start).min(MAX_PAYLOAD);
        (start, chunk, start + chunk == len)
    })
}

/// The frames of a verb that carries bytes: the caller's, or those of `memory`. `frame` has the operation id of the batch in it.
fn push_bytes(output: &mut Output, frame: Frame, bytes: &[u8], memory: Option<&Memory>, last: u8) {
    let (key, offset, op) = (frame.key(), frame.offset(), frame.op());
    for (start, len, is_end) in chunks(bytes.len()) {
        let flags = frame.flags | if is_end { last } else { 0 };
        let chunk = frame
            .at(key, offset.wrapping_add(start as u64))
            .with((bytes.len() - start) as u64, 0);
        output.push(chunk.with_payload(len).flags(flags).as_bytes());
        let bytes = &bytes[start..start + len];
        if len >= BY_REFERENCE {
            output.push_caller(bytes, (op != NO_OP).then_some(OpId(op)), memory);
        } else {
            output.push(bytes);
        }
    }
}

/// As [`push_bytes`], of bytes that lie in memory of ours: the kernel takes them from there.
fn push_local(output: &mut Output, frame: Frame, from: &Local<'_>, last: u8) {
    let len = from.len as usize;
    match from.memory.mapped() {
        Some(base) => {
            // SAFETY: in range (`check_batch`), and the memory goes along, so that its mapping stays. Others may change the bytes
            // meanwhile: they are only copied.
            let bytes =
                unsafe { std::slice::from_raw_parts(base.wrapping_add(from.offset as usize).cast_const(), len) };
            push_bytes(output, frame, bytes, Some(from.memory), last);
        }
        None => {
            let (key, offset) = (frame.key(), frame.offset());
            for (start, part, is_end) in chunks(len) {
                let flags = frame.flags | if is_end { last } else { 0 };
                let chunk = frame
                    .at(key, offset.wrapping_add(start as u64))
                    .with((len - start) as u64, 0);
                output.push(chunk.with_payload(part).flags(flags).as_bytes());
                from.memory.read(from.offset + start as u64, output.reserve(part));
            }
        }
    }
}

impl Provider for Tcp {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn post(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<Posted, FabricError> {
        let signaled = completion == Completion::Signaled;
        check_batch(verbs)?;
        if verbs.is_empty() {
            return Ok(Posted::Done);
        }
        let mut output = self.output.borrow_mut();
        let reading = verbs.iter().map(Verb::reading).sum();
        if output.posted() >= POST_LIMIT {
            self.refused.set(true);
            return Ok(Posted::Full);
        }
        if signaled && !self.shared.has_room_for(reading) {
            return Ok(Posted::Full);
        }
        let op = if signaled { Some(self.shared.begin(verbs)) } else { None };
        let frame = match op {
            Some(op) => Frame::new(Opcode::Read, op.0),
            None if completion == Completion::Unreported => {
                Frame::new(Opcode::Read, NO_OP).flags(UNSIGNALED | UNREPORTED)
            }
            None => Frame::new(Opcode::Read, NO_OP).flags(UNSIGNALED),
        };
        let (count, mut destination) = (verbs.len(), 0);
        for (index, verb) in verbs.iter().enumerate() {
            let last = if index + 1 == count { LAST } else { 0 };
            self.push_verb(&mut output, verb, frame, &mut destination, last);
        }
        match op {
            Some(op) => Ok(Posted::Pending(op)),
            // what is copied goes with what comes next
            None if !output.has_callers() => Ok(Posted::Done),
            None => {
                let sent = self.send(&mut output);
                output.own(None);
                drop(output);
                self.note(sent);
                self.shared.lost().map_or(Ok(Posted::Done), Err)
            }
        }
    }

    fn progress(&self) -> Progress {
        if self.shared.is_closed() {
            return Progress::Idle;
        }
        let progress = self.try_progress();
        self.note(progress)
    }

    fn flush(&self) {
        let mut output = self.output.borrow_mut();
        if output.is_empty() || output.stuck {
            return;
        }
        let sent = self.send(&mut output);
        drop(output);
        self.note(sent);
    }

    fn arm(&self) -> Progress {
        // what has come waits here for its caller, who may not: no readiness of the socket will tell of it
        if self.input.borrow().calling {
            return Progress::More;
        }
        let wanted = || Directions {
            read: !self.input.borrow().waiting,
            write: self.output.borrow().stuck,
        };
        wait::arm(&self.shared, &self.channel_waker, wanted, |directions, cx| {
            let mut asked = Asked::Registered;
            if directions.read
                && let Poll::Ready(guard) = self.socket.poll_read_ready(cx)
            {
                asked = self.be_ready(guard, || self.input.borrow().drained);
            }
            if directions.write
                && asked != Asked::More
                && let Poll::Ready(guard) = self.socket.poll_write_ready(cx)
            {
                asked = self.be_ready(guard, || self.output.borrow().stuck);
            }
            asked
        })
    }

    fn abandon(&self, op: OpId) {
        self.output.borrow_mut().own(Some(op));
        self.shared.abandon(op);
    }

    fn close(&self, why: &str) {
        let _ = self.progress();
        self.lose(why);
    }

    fn polling(&self) -> Polling {
        Polling::Kernel
    }
}
