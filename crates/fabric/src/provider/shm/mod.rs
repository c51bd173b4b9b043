//! Peers on one host.
//!
//! They meet at a UNIX socket, which afterwards carries descriptors of memory when they are first needed and tells by its
//! closing that the peer has gone. One-sided operations are loads, stores and atomics of the initiator on the peer's
//! memory, which it maps: the peer takes no part. Keys are checked against the table that the peer keeps in shared memory
//! (`key_table`), so a revoked key is seen at once. Immediates and messages go through a ring in shared memory for each
//! direction, with a doorbell that is rung only for a peer that sleeps.
//!
//! There is one exception: an unsignaled write-with-immediate of a few bytes to a buffer travels in the ring along with its
//! immediate, which saves moving lines of their own for it; the peer checks it once more and carries it out when it takes the
//! event. So its bytes are there when the event is, and not before.
//!
//! An operation that passes its check while the key is being revoked, or within a millisecond after the peer has died, may
//! still take effect.

mod listen;
mod ring;
mod socket;
#[cfg(test)]
mod tests;

pub(crate) use listen::{Arrived, ShmListening, connect};

use crate::access::{Want, check};
use crate::key_table::{PeerKeys, Slot};
use crate::provider::{Completion, News, Polling, Posted, Progress, Provider};
use crate::queue_pair::check_batch;
use crate::regions;
use crate::wait::{self, Asked, Directions, OpId, Shared};
use crate::{Event, FabricError, Memory, MemoryRegions, Remote, Role, Verb};
use listen::Meeting;
use ring::{Nonsense, Reader, Room, Taken, WRITE_MAX, Writer};
use socket::{Ended, Incoming, Message, PeerMemory};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, Waker};
use tokio::io::unix::AsyncFd;

/// Events and messages of the socket handled in one round.
const ROUND: usize = 128;

/// Memories of the peer kept mapped; beyond, all are mapped anew as they are needed.
const MAX_MEMORIES: usize = 256;

/// A tick of the kernel's timer, of 1 to 10 ms. Before a batch it is made sure that the peer lives if that was not done in
/// this one: a look is a system call, several times what the batch takes, and reading a precise clock a third of it. Less than
/// a process needs to be started again and to give out what its predecessor had given out.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tick {
    s: i64,
    ns: i64,
}

impl Tick {
    fn now() -> Tick {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock is filled in; it exists on every Linux, and if it did not, time would not go on and that is all.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
        Tick {
            s: now.tv_sec,
            ns: now.tv_nsec,
        }
    }
}

enum Known {
    Requested,
    Here(PeerMemory),
}

/// One end of a queue pair between peers on one host.
pub(crate) struct Shm {
    shared: Shared,
    regions: Arc<MemoryRegions>,
    socket: AsyncFd<OwnedFd>,
    doorbell: AsyncFd<OwnedFd>,
    peer_doorbell: OwnedFd,
    reader: RefCell<Reader>,
    writer: RefCell<Writer>,
    keys: PeerKeys,
    incoming: RefCell<Incoming>,
    /// Memory region of ours that the peer wrote to last by way of the ring.
    written: RefCell<Option<regions::Known>>,
    /// Memories of the peer by their number; few.
    memories: RefCell<Vec<(u64, Known)>>,
    requested: Cell<usize>,
    /// Something was published since the peer's sleep and its wait for room were looked at.
    unflushed: Cell<bool>,
    /// So much room in the ring is waited for.
    wants_room: Cell<Room>,
    /// When it was made sure last that the peer lives.
    last_probe: Cell<Tick>,
    channel_waker: Waker,
}

/// Why a batch was not executed.
enum Stopped {
    Failed(FabricError),
    Broken(&'static str),
}

impl From<Nonsense> for Stopped {
    fn from(Nonsense(what): Nonsense) -> Self {
        Stopped::Broken(what)
    }
}

impl From<FabricError> for Stopped {
    fn from(error: FabricError) -> Self {
        Stopped::Failed(error)
    }
}

impl Shm {
    fn new(meeting: Meeting, name: String, regions: Arc<MemoryRegions>) -> io::Result<Shm> {
        let shared = Shared::new(meeting.role, name);
        let channel_waker = Waker::from(shared.channel.clone());
        // SAFETY: `OwnedFd` owns the descriptor and always returns the same one.
        let (socket, doorbell) = unsafe { (AsyncFd::register(meeting.socket)?, AsyncFd::register(meeting.doorbell)?) };
        Ok(Shm {
            shared,
            regions,
            socket,
            doorbell,
            peer_doorbell: meeting.peer_doorbell,
            reader: RefCell::new(meeting.reader),
            writer: RefCell::new(meeting.writer),
            keys: meeting.keys,
            incoming: RefCell::new(meeting.incoming),
            written: RefCell::default(),
            memories: RefCell::default(),
            requested: Cell::new(0),
            unflushed: Cell::new(false),
            wants_room: Cell::default(),
            last_probe: Cell::new(Tick::now()),
            channel_waker,
        })
    }

    fn lose(&self, why: &str) {
        if self.shared.lose(why) {
            tracing::debug!(peer = %self.shared.peer_name, why, "connection ended");
            let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
            self.memories.borrow_mut().clear();
            self.requested.set(0);
        }
    }

    fn broken(&self, what: &str) {
        tracing::warn!(peer = %self.shared.peer_name, what, "peer breaks the protocol; connection closed");
        self.lose(&format!("it sent {what}"));
    }

    fn ring_doorbell(&self) {
        // Never blocks; a full counter means that it rings already.
        let _ = rustix::io::write(&self.peer_doorbell, &1u64.to_ne_bytes());
    }

    fn send(&self, message: Message, fds: &[std::os::fd::BorrowedFd<'_>]) {
        if let Err(error) = socket::send(self.socket.get_ref().as_fd(), message, fds) {
            self.lose(&error.to_string());
        }
    }

    /// Takes what has come over the socket: requests for memory, memory, the end.
    fn poll_socket(&self) -> Progress {
        self.last_probe.set(Tick::now());
        for _ in 0..ROUND {
            let next = self.incoming.borrow_mut().next(self.socket.get_ref().as_fd());
            match next {
                Ok(None) => return Progress::Idle,
                Ok(Some((Message::Want(number), _))) => self.serve_memory(number),
                Ok(Some((message, mut fds))) => self.take_memory(message, fds.pop()),
                Err(Ended::Lost(why)) => {
                    self.take_last_events();
                    self.lose(&why);
                }
                Err(Ended::Broken(what)) => self.broken(what),
            }
            if self.shared.is_closed() {
                return Progress::Idle;
            }
        }
        Progress::More
    }

    fn serve_memory(&self, number: u64) {
        match self.regions.memory(number) {
            Some(Memory::Buffer(buffer)) => {
                self.send(
                    Message::Buffer {
                        memory: number,
                        len: buffer.len() as u64,
                    },
                    &[buffer.fd()],
                );
            }
            Some(Memory::Pool(pool)) => match pool.fd() {
                Some(fd) => self.send(socket::pool_message(number, &pool), &[fd]),
                None => self.send(Message::None(number), &[]),
            },
            None => self.send(Message::None(number), &[]),
        }
    }

    fn take_memory(&self, message: Message, fd: Option<OwnedFd>) {
        let (Message::Pool { memory, .. } | Message::Buffer { memory, .. } | Message::None(memory)) = message else {
            return self.broken("a message out of turn");
        };
        let mapped = match socket::map(message, fd) {
            // its file could be made shorter under us
            Ok(PeerMemory::Mapped(Memory::Pool(_))) if self.shared.peer == Role::Client => PeerMemory::Unreachable,
            Ok(mapped) => mapped,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return self.broken("memory that is not what it says");
            }
            Err(error) => {
                tracing::warn!(peer = %self.shared.peer_name, %error, "cannot map the peer's memory");
                PeerMemory::Unreachable
            }
        };
        let mut memories = self.memories.borrow_mut();
        match memories.iter_mut().find(|(number, _)| *number == memory) {
            Some((_, known @ Known::Requested)) => *known = Known::Here(mapped),
            _ => {
                drop(memories);
                return self.broken("memory that nobody asked for");
            }
        }
        let left = self.requested.get().checked_sub(1);
        self.requested.set(left.expect("it was counted when it was requested"));
        drop(memories);
        self.check_requested();
        self.shared.channel.notify_room();
    }

    /// Memory that was asked for and has not come is counted.
    fn check_requested(&self) {
        let memories = self.memories.borrow();
        debug_assert_eq!(
            memories
                .iter()
                .filter(|(_, known)| matches!(known, Known::Requested))
                .count(),
            self.requested.get(),
            "memory that was asked for"
        );
    }

    /// Whether the memory is known; if not, asks for it.
    fn is_known(&self, number: u64) -> bool {
        let mut memories = self.memories.borrow_mut();
        match memories.iter().find(|(known, _)| *known == number) {
            Some((_, Known::Here(_))) => return true,
            Some((_, Known::Requested)) => return false,
            None => {}
        }
        if memories.len() >= MAX_MEMORIES {
            memories.retain(|(_, known)| matches!(known, Known::Requested));
        }
        memories.push((number, Known::Requested));
        drop(memories);
        self.requested.set(self.requested.get() + 1);
        self.check_requested();
        self.send(Message::Want(number), &[]);
        false
    }

    /// Whether all that the batch needs is here: the peer's memory, room in the ring.
    fn is_ready(&self, verbs: &[Verb<'_>]) -> Result<bool, Stopped> {
        let mut room = Room::NONE;
        let mut ready = true;
        for verb in verbs {
            match verb {
                Verb::Send { bytes } => room += Room::message(bytes.len()),
                Verb::WriteImm { .. } => room += Room::IMMEDIATE,
                _ => {}
            }
            // A key that is not valid fails when its turn comes.
            if let Some(at) = target(verb)
                && let Ok(slot) = self.keys.lookup(at.key.0)
            {
                ready &= self.is_known(slot.memory);
            }
        }
        if room == Room::NONE {
            return Ok(ready);
        }
        if !room.fits(Room::ALL) {
            let (len, max) = room.over();
            return Err(FabricError::TooLarge {
                what: "the messages of a batch",
                len,
                max,
            }
            .into());
        }
        let mut writer = self.writer.borrow_mut();
        let has_room = writer.has_room(room)? || writer.wait_for_room(room)?;
        self.wants_room.set(if has_room { Room::NONE } else { room });
        Ok(ready && has_room)
    }

    /// The peer lives, as far as can be known cheaply enough.
    fn check_alive(&self) -> Result<(), FabricError> {
        if self.last_probe.get() != Tick::now() {
            self.poll_socket();
        }
        self.shared.lost().map_or(Ok(()), Err)
    }

    /// Does the verbs, one after the other.
    fn run(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<(), Stopped> {
        let memories = self.memories.borrow();
        let resolve = |at: &Remote, len: u64, want: Want| -> Result<(&Memory, u64), Stopped> {
            let key = at.key.0;
            let slot: Slot = self.keys.lookup(key)?;
            check(key, slot.len, slot.access, at.offset, len, want)?;
            match memories.iter().find(|(number, _)| *number == slot.memory) {
                Some((_, Known::Here(PeerMemory::Mapped(memory)))) => {
                    let (start, end) = (slot.start, slot.start.checked_add(slot.len));
                    if end.is_none_or(|end| end > memory.len()) {
                        return Err(Stopped::Broken("a key beyond its memory"));
                    }
                    if want == Want::Atomic && !start.is_multiple_of(8) {
                        return Err(Stopped::Broken("a misaligned key for atomics"));
                    }
                    let place = start + at.offset;
                    if let (Want::Write, Memory::Pool(pool)) = (want, memory) {
                        pool.enter_pages(place, len);
                    }
                    Ok((memory, place))
                }
                Some((_, Known::Here(PeerMemory::Unreachable))) => Err(FabricError::Denied { key }.into()),
                // Revoked, and its place taken by another key, since we looked; keys are never used again.
                _ => Err(FabricError::BadKey { key }.into()),
            }
        };
        let mut writer = self.writer.borrow_mut();
        for verb in verbs {
            match verb {
                Verb::Read { from, into } => {
                    let (memory, at) = resolve(from, into.len() as u64, Want::Read)?;
                    memory.read(at, into);
                }
                Verb::Write { to, bytes } => {
                    let (memory, at) = resolve(to, bytes.len() as u64, Want::Write)?;
                    memory.write(at, bytes);
                }
                Verb::ReadInto { from, into } => {
                    let (memory, at) = resolve(from, into.len, Want::Read)?;
                    into.memory.copy_from(into.offset, memory, at, into.len);
                }
                Verb::WriteFrom { to, from } => {
                    let (memory, at) = resolve(to, from.len, Want::Write)?;
                    memory.copy_from(at, from.memory, from.offset, from.len);
                }
                Verb::WriteImm { to, bytes, imm } => {
                    self.unflushed.set(true);
                    if to.key.0 != 0 || !bytes.is_empty() {
                        let (memory, at) = resolve(to, bytes.len() as u64, Want::Write)?;
                        let is_carried = completion == Completion::Unsignaled
                            && bytes.len() <= WRITE_MAX
                            && matches!(memory, Memory::Buffer(_));
                        if is_carried {
                            writer.write(to.key.0, to.offset, bytes, *imm);
                            continue;
                        }
                        memory.write(at, bytes);
                    }
                    writer.immediate(*imm);
                }
                Verb::CompareSwap { at, expect, new, found } => {
                    let (memory, at) = resolve(at, 8, Want::Atomic)?;
                    **found = memory.compare_swap(at, *expect, *new);
                }
                Verb::FetchAdd { at, add, found } => {
                    let (memory, at) = resolve(at, 8, Want::Atomic)?;
                    **found = memory.fetch_add(at, *add);
                }
                Verb::Flush { at, len } => {
                    let (memory, at) = resolve(at, *len, Want::Flush)?;
                    memory.persist(at, *len);
                }
                Verb::Send { bytes } => {
                    writer.message(bytes);
                    self.unflushed.set(true);
                }
            }
        }
        Ok(())
    }

    fn try_post(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<bool, Stopped> {
        if !self.is_ready(verbs)? {
            self.shared.lost().map_or(Ok(()), Err)?;
            return Ok(false);
        }
        self.check_alive()?;
        self.run(verbs, completion)?;
        self.check_incarnation()?;
        Ok(true)
    }

    /// Another thread of the process has heard meanwhile that the peer was started anew, and let go of its pool: what was stored
    /// there has reached nobody, perhaps.
    fn check_incarnation(&self) -> Result<(), FabricError> {
        let memories = self.memories.borrow();
        let is_retired = |(_, known): &(u64, Known)| match known {
            Known::Here(PeerMemory::Mapped(Memory::Pool(pool))) => pool.is_retired(),
            _ => false,
        };
        if memories.iter().any(is_retired) {
            drop(memories);
            self.lose("the peer was started anew");
        }
        self.shared.lost().map_or(Ok(()), Err)
    }

    /// The peer has gone: what it had sent before is delivered. As much as the ring holds, whatever the limit.
    fn take_last_events(&self) {
        let mut reader = self.reader.borrow_mut();
        while let Ok(Some(taken)) = reader.next() {
            if self.deliver(taken).is_err() {
                break;
            }
        }
    }

    fn deliver(&self, taken: Taken) -> Result<(), FabricError> {
        let event = match taken {
            Taken::Event(event) => event,
            Taken::Write(write) => {
                let (bytes, mut written) = (write.bytes(), self.written.borrow_mut());
                let resolved =
                    self.regions
                        .resolve_again(&mut written, write.key, write.offset, bytes.len() as u64, Want::Write);
                let (memory, at) = resolved?;
                memory.write(at, bytes);
                Event::Immediate(write.imm)
            }
        };
        self.shared.push_event(event);
        Ok(())
    }

    fn take_events(&self) -> Result<Progress, Nonsense> {
        let mut reader = self.reader.borrow_mut();
        let mut taken = 0;
        while self.shared.has_room_for_events() {
            if taken == ROUND {
                break;
            }
            match reader.next()? {
                Some(taken) => {
                    if let Err(error) = self.deliver(taken) {
                        self.lose(&format!("an unsignaled operation of the peer failed: {error}"));
                        return Ok(Progress::Idle);
                    }
                }
                None => break,
            }
            taken += 1;
        }
        if taken > 0 {
            self.shared.note_activity();
            self.unflushed.set(true);
        }
        let wanted = self.wants_room.get();
        if wanted != Room::NONE && self.writer.borrow_mut().has_room(wanted)? {
            self.wants_room.set(Room::NONE);
            self.shared.channel.notify_room();
        }
        Ok(if taken == ROUND { Progress::More } else { Progress::Idle })
    }
}

/// The memory region that a verb works on.
fn target(verb: &Verb<'_>) -> Option<Remote> {
    match verb {
        Verb::Read { from: at, .. }
        | Verb::ReadInto { from: at, .. }
        | Verb::Write { to: at, .. }
        | Verb::WriteFrom { to: at, .. }
        | Verb::WriteImm { to: at, .. }
        | Verb::CompareSwap { at, .. }
        | Verb::FetchAdd { at, .. }
        | Verb::Flush { at, .. } => Some(*at),
        Verb::Send { .. } => None,
    }
}

impl Provider for Shm {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn will_post(&self) {
        self.writer.borrow().prefetch();
    }

    fn post(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<Posted, FabricError> {
        check_batch(verbs)?;
        match self.try_post(verbs, completion) {
            Ok(true) => Ok(Posted::Done),
            Ok(false) => Ok(Posted::Full),
            Err(Stopped::Failed(error)) => {
                if completion == Completion::Unsignaled {
                    self.lose(&format!("an unsignaled operation failed: {error}"));
                }
                Err(error)
            }
            Err(Stopped::Broken(what)) => {
                self.broken(what);
                self.shared.lost().map_or(Ok(Posted::Full), Err)
            }
        }
    }

    fn progress(&self) -> Progress {
        if self.shared.is_closed() {
            return Progress::Idle;
        }
        let events = match self.take_events() {
            Ok(progress) => progress,
            Err(Nonsense(what)) => {
                self.broken(what);
                return Progress::Idle;
            }
        };
        let socket = if self.requested.get() > 0 {
            self.poll_socket()
        } else {
            Progress::Idle
        };
        if events == Progress::More { events } else { socket }
    }

    /// One fence for what was sent and what was received: it waits until the lines have come over from the peer's cache.
    fn flush(&self) {
        if !self.unflushed.replace(false) {
            return;
        }
        ring::order();
        let (sleeps, waits) = (
            self.writer.borrow().reader_sleeps(),
            self.reader.borrow().writer_waits(),
        );
        if sleeps || waits {
            self.ring_doorbell();
        }
    }

    fn news(&self) -> Option<News> {
        let reader = self.reader.borrow();
        let (word, nothing) = reader.next_word();
        Some(News::new(word, nothing))
    }

    fn may_have_come(&self) -> bool {
        self.reader.borrow().has_more() || self.wants_room.get() != Room::NONE || self.requested.get() > 0
    }

    fn probe(&self) {
        if self.progress() == Progress::Idle && !self.shared.is_closed() {
            self.poll_socket();
        }
    }

    fn arm(&self) -> Progress {
        let wanted = || Directions {
            read: self.shared.has_room_for_events(),
            write: false,
        };
        wait::arm(&self.shared, &self.channel_waker, wanted, |directions, cx| {
            let mut asked = Asked::Registered;
            if let Poll::Ready(guard) = self.doorbell.poll_read_ready(cx) {
                asked = Asked::Ready;
                match guard {
                    // The counter need not be read: every ring is an edge of its own.
                    Ok(mut guard) => guard.clear_ready(),
                    Err(error) => self.lose(&error.to_string()),
                }
            }
            if let Poll::Ready(guard) = self.socket.poll_read_ready(cx) {
                asked = Asked::Ready;
                match guard {
                    Ok(mut guard) => {
                        if self.poll_socket() == Progress::Idle {
                            guard.clear_ready();
                        }
                    }
                    Err(error) => self.lose(&error.to_string()),
                }
            }
            // while the channel is armed to read, the peer has been told that we sleep
            if directions.read && !self.reader.borrow().sleep() {
                asked = match self.progress() {
                    Progress::More => Asked::More,
                    Progress::Idle => Asked::Ready,
                };
            }
            asked
        })
    }

    fn abandon(&self, _op: OpId) {
        unreachable!("nothing is ever pending");
    }

    fn close(&self, why: &str) {
        self.lose(why);
    }

    fn is_immediate(&self) -> bool {
        true
    }

    fn polling(&self) -> Polling {
        Polling::Memory
    }
}
