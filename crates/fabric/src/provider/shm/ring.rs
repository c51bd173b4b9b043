//! Messages to a peer on this host: a ring in shared memory with one writer and one reader.
//!
//! The reader makes it (a sealed memfd), the writer maps it. Each keeps its own position to itself and publishes it in the
//! ring; what the other one publishes is checked, since it may lie. A reader that sleeps says so in the ring, a writer that
//! waits for room as well; only then the other one rings the doorbell (an eventfd).

use crate::key_table::check_sealed;
use crate::memory::Mapping;
use crate::{Event, MAX_SEND};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of messages in the ring.
pub(super) const CAPACITY: usize = 1 << 20;

/// Positions and flags, each in a cache line of its own, before the messages.
const TAIL: usize = 0;
const HEAD: usize = 128;
const SLEEPS: usize = 256;
const WAITS: usize = 384;
const DATA: usize = 4096;

/// Kinds of messages.
const IMMEDIATE: u32 = 1;
const MESSAGE: u32 = 2;

/// The peer has published nonsense.
#[derive(Debug)]
pub(super) struct Nonsense(pub(super) &'static str);

fn padded(len: usize) -> usize {
    8 + len.next_multiple_of(8)
}

/// Bytes of the ring that an event takes.
pub(super) fn size_of_message(len: usize) -> usize {
    padded(len)
}

/// Bytes of the ring that an immediate takes.
pub(super) const SIZE_OF_IMMEDIATE: usize = 8;

/// The reader's side.
pub(super) struct Reader {
    map: Mapping,
    fd: OwnedFd,
    head: u64,
}

impl Reader {
    pub(super) fn new() -> io::Result<Reader> {
        let fd = rustix::fs::memfd_create("polvo-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, (DATA + CAPACITY) as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Mapping::new(fd.as_fd(), DATA + CAPACITY, true)?;
        Ok(Reader { map, fd, head: 0 })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True if something is to be read.
    pub(super) fn has_more(&self) -> bool {
        self.map.word(TAIL).load(Ordering::Acquire) != self.head
    }

    /// The next event.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Nonsense> {
        let tail = self.map.word(TAIL).load(Ordering::Acquire);
        if tail == self.head {
            return Ok(None);
        }
        let there = tail.wrapping_sub(self.head);
        if there > CAPACITY as u64 || !there.is_multiple_of(8) {
            return Err(Nonsense("an impossible position in its ring"));
        }
        let word = self
            .map
            .word(DATA + self.head as usize % CAPACITY)
            .load(Ordering::Relaxed);
        let (kind, value) = (word as u32, (word >> 32) as u32);
        let (event, size) = match kind {
            IMMEDIATE => (Event::Immediate(value), SIZE_OF_IMMEDIATE),
            MESSAGE => {
                let len = value as usize;
                if len > MAX_SEND || padded(len) as u64 > there {
                    return Err(Nonsense("a message that ends beyond its ring"));
                }
                let mut bytes = vec![0; len];
                let start = (self.head as usize + 8) % CAPACITY;
                let first = len.min(CAPACITY - start);
                self.map.read(DATA + start, &mut bytes[..first]);
                self.map.read(DATA, &mut bytes[first..]);
                (Event::Message(bytes), padded(len))
            }
            _ => return Err(Nonsense("a message of an unknown kind")),
        };
        self.head += size as u64;
        self.map.word(HEAD).store(self.head, Ordering::Release);
        Ok(Some(event))
    }

    /// True if the writer waits for room, and has to be told that there is some.
    pub(super) fn writer_waits(&self) -> bool {
        fence(Ordering::SeqCst);
        self.map.word(WAITS).load(Ordering::Relaxed) != 0 && self.map.word(WAITS).swap(0, Ordering::Relaxed) != 0
    }

    /// Says that the reader sleeps. False if there is something to read, and it does not.
    pub(super) fn sleep(&self) -> bool {
        self.map.word(SLEEPS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.has_more() {
            self.map.word(SLEEPS).store(0, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// The writer's side.
pub(super) struct Writer {
    map: Mapping,
    tail: u64,
}

impl Writer {
    /// Maps what the peer has sent.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Writer> {
        check_sealed(fd, DATA + CAPACITY)?;
        Ok(Writer {
            map: Mapping::new(fd, DATA + CAPACITY, true)?,
            tail: 0,
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.map.word(at)
    }

    /// Whether `len` bytes of messages can be written now.
    pub(super) fn has_room(&self, len: usize) -> Result<bool, Nonsense> {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        if used > CAPACITY as u64 || !used.is_multiple_of(8) {
            return Err(Nonsense("an impossible position in our ring"));
        }
        Ok(CAPACITY - used as usize >= len)
    }

    /// Asks to be told when there is room; whether there is some already.
    pub(super) fn wait_for_room(&self, len: usize) -> Result<bool, Nonsense> {
        self.word(WAITS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_room(len)
    }

    /// Writes an immediate; there is room.
    pub(super) fn immediate(&mut self, imm: u32) {
        self.publish(IMMEDIATE, imm, SIZE_OF_IMMEDIATE);
    }

    /// Writes a message; there is room.
    pub(super) fn message(&mut self, bytes: &[u8]) {
        let start = (self.tail as usize + 8) % CAPACITY;
        let first = bytes.len().min(CAPACITY - start);
        self.map.write(DATA + start, &bytes[..first]);
        self.map.write(DATA, &bytes[first..]);
        self.publish(MESSAGE, bytes.len() as u32, padded(bytes.len()));
    }

    fn publish(&mut self, kind: u32, value: u32, size: usize) {
        let word = u64::from(kind) | u64::from(value) << 32;
        self.word(DATA + self.tail as usize % CAPACITY)
            .store(word, Ordering::Relaxed);
        self.tail += size as u64;
        self.word(TAIL).store(self.tail, Ordering::Release);
    }

    /// True if the reader sleeps, and the doorbell has to be rung.
    pub(super) fn reader_sleeps(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word(SLEEPS).load(Ordering::Relaxed) != 0 && self.word(SLEEPS).swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Reader, Writer) {
        let reader = Reader::new().unwrap();
        let writer = Writer::new(reader.fd()).unwrap();
        (reader, writer)
    }

    #[test]
    fn what_is_written_is_read_in_order_many_times_around() {
        let (mut reader, mut writer) = ring();
        let (mut sent, mut received) = (0u32, 0u32);
        let message = |n: u32| vec![n as u8; n as usize * 7919 % (MAX_SEND + 1)];
        while received < 500 {
            while sent < 500
                && writer
                    .has_room(size_of_message(message(sent).len()) + SIZE_OF_IMMEDIATE)
                    .unwrap()
            {
                writer.message(&message(sent));
                writer.immediate(sent);
                sent += 1;
            }
            assert_eq!(reader.next().unwrap(), Some(Event::Message(message(received))));
            assert_eq!(reader.next().unwrap(), Some(Event::Immediate(received)));
            received += 1;
        }
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn a_full_ring_has_no_room_until_it_is_read() {
        let (mut reader, mut writer) = ring();
        let mut count = 0;
        while writer.has_room(SIZE_OF_IMMEDIATE).unwrap() {
            writer.immediate(count);
            count += 1;
        }
        assert_eq!(count as usize, CAPACITY / SIZE_OF_IMMEDIATE);
        assert!(!writer.wait_for_room(8).unwrap());
        assert!(reader.writer_waits() && !reader.writer_waits(), "told once");
        reader.next().unwrap();
        assert!(writer.has_room(8).unwrap() && !writer.has_room(16).unwrap());
    }

    #[test]
    fn a_sleeping_reader_is_woken_once() {
        let (mut reader, mut writer) = ring();
        assert!(!writer.reader_sleeps());
        assert!(reader.sleep());
        writer.immediate(1);
        assert!(writer.reader_sleeps() && !writer.reader_sleeps());
        assert!(!reader.sleep(), "there is something to read");
        reader.next().unwrap();
        assert!(reader.sleep());
    }

    #[test]
    fn nonsense_of_the_writer_is_noticed() {
        for (tail, word) in [
            (CAPACITY as u64 + 8, u64::from(IMMEDIATE)),
            (4, u64::from(IMMEDIATE)),
            (u64::MAX - 7, u64::from(IMMEDIATE)),
            (8, 0),
            (8, 77),
            (8, u64::from(MESSAGE) | 1 << 32),
            (16, u64::from(MESSAGE) | 9 << 32),
            (CAPACITY as u64, u64::from(MESSAGE) | (MAX_SEND as u64 + 1) << 32),
            (CAPACITY as u64, u64::from(MESSAGE) | 0xffff_ffff << 32),
        ] {
            let (mut reader, writer) = ring();
            writer.word(DATA).store(word, Ordering::Relaxed);
            writer.word(TAIL).store(tail, Ordering::Relaxed);
            assert!(reader.next().is_err(), "{tail:#x} {word:#x}");
        }
    }

    #[test]
    fn nonsense_of_the_reader_is_noticed() {
        let (reader, writer) = ring();
        for head in [8, 1, u64::MAX - CAPACITY as u64 - 7] {
            reader.map.word(HEAD).store(head, Ordering::Relaxed);
            assert!(writer.has_room(8).is_err(), "{head:#x}");
        }
    }

    #[test]
    fn memory_that_could_be_taken_away_is_refused() {
        let fd = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, (DATA + CAPACITY) as u64).unwrap();
        assert!(Writer::new(fd.as_fd()).is_err());
        let small = crate::Buffer::new(4096);
        assert!(Writer::new(small.fd()).is_err());
    }
}
