//! Messages to a peer on this host: a ring in shared memory with one writer and one reader.
//!
//! The reader makes it (a sealed memfd), the writer maps it. The first word of an entry says by its lap that it is new: whoever
//! polls for it sees it in the line that carries it, with no position to be read before. What is short travels in the entry, two
//! lines in all: a message, or a write-with-immediate that the reader carries out when it takes it (as a software RNIC would). The
//! bytes of longer messages lie in a ring of their own. A first word is never among bytes that a writer sends, so that none of
//! them can be taken for one. The reader publishes how far it has read; the
//! writer looks at that only when it knows of no more room, so that the line moves between the two once a lap rather than
//! once an entry. What either reads of the other is checked, since it may lie. A reader that sleeps says so, a writer that
//! waits for room as well; only then the other one rings the doorbell (an eventfd).

use crate::key_table::check_sealed;
use crate::memory::Mapping;
use crate::{Event, MAX_SEND};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Entries in the ring: few, since a thread with many peers has many rings in its cache.
const ENTRIES: usize = 64;

/// Bytes of an entry: two cache lines, which a processor fetches together.
const ENTRY: usize = 128;

/// Where the second one begins.
const SECOND_LINE: usize = ENTRY / 2;

/// Bytes of messages in the ring.
const BYTES: usize = 1 << 20;

/// By which a peer of another layout is told.
pub(super) const LAYOUT: u64 = (4 << 48) | (ENTRIES as u64) << 24 | BYTES as u64;

/// Positions and flags, each in a cache line of its own (and the one that is fetched along with it), then entries and bytes.
const ENTRIES_READ: usize = 0;
const BYTES_READ: usize = 8;
const SLEEPS: usize = 128;
const WAITS: usize = 256;
const FIRST_ENTRY: usize = 512;
const FIRST_BYTE: usize = (FIRST_ENTRY + ENTRIES * ENTRY).next_multiple_of(4096);
const SIZE: usize = FIRST_BYTE + BYTES;

/// Kinds of entries; value; what follows the first word.
/// The immediate.
const IMMEDIATE: u8 = 1;
/// Its length; the message is in the ring of bytes.
const MESSAGE: u8 = 2;
/// Its length; the message.
const SHORT_MESSAGE: u8 = 3;
/// The immediate; key, offset, length, bytes.
const WRITE: u8 = 4;

/// Where an entry's bytes begin, and how many there may be.
const SHORT_MESSAGE_AT: usize = 8;
const SHORT_MESSAGE_MAX: usize = ENTRY - SHORT_MESSAGE_AT;
const WRITE_AT: usize = 32;
/// Longest write-with-immediate that travels in an entry, bytes.
pub(super) const WRITE_MAX: usize = ENTRY - WRITE_AT;

/// A write-with-immediate that travelled in its entry, to be carried out by who takes it. Not checked, but for its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Write {
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) imm: u32,
    len: usize,
    bytes: [u8; WRITE_MAX],
}

impl Write {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What comes out of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    Event(Event),
    Write(Write),
}

/// The peer has published nonsense.
#[derive(Debug)]
pub(super) struct Nonsense(pub(super) &'static str);

/// What messages take of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Room {
    entries: usize,
    bytes: usize,
}

impl Room {
    pub(super) const NONE: Room = Room { entries: 0, bytes: 0 };
    pub(super) const ALL: Room = Room {
        entries: ENTRIES,
        bytes: BYTES,
    };
    pub(super) const IMMEDIATE: Room = Room { entries: 1, bytes: 0 };

    pub(super) fn message(len: usize) -> Room {
        Room {
            entries: 1,
            bytes: if is_short(len) { 0 } else { padded(len) },
        }
    }

    /// What is too much for the whole ring, and how much that holds.
    pub(super) fn over(self) -> (u64, u64) {
        if self.bytes > BYTES {
            (self.bytes as u64, BYTES as u64)
        } else {
            (self.entries as u64, ENTRIES as u64)
        }
    }

    pub(super) fn fits(self, free: Room) -> bool {
        self.entries <= free.entries && self.bytes <= free.bytes
    }
}

impl AddAssign for Room {
    fn add_assign(&mut self, other: Room) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }
}

/// Whether a message travels in its entry.
fn is_short(len: usize) -> bool {
    len <= SHORT_MESSAGE_MAX
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// The first word of an entry as it lies in the ring: kind, lap, value.
#[derive(Clone, Copy)]
struct Entry(u64);

const LAPS: u64 = 1 << 24;

impl Entry {
    fn new(kind: u8, position: u64, value: u32) -> Entry {
        let entry = Entry(u64::from(kind) | Entry::lap_at(position) << 8 | u64::from(value) << 32);
        debug_assert!(entry.kind() == kind && entry.value() == value && entry.lap() == Entry::lap_at(position));
        entry
    }

    /// Laps are counted from 1, since an empty ring is all zeros.
    fn lap_at(position: u64) -> u64 {
        (position / ENTRIES as u64 + 1) % LAPS
    }

    fn lap(self) -> u64 {
        self.0 >> 8 & (LAPS - 1)
    }

    fn kind(self) -> u8 {
        self.0 as u8
    }

    fn value(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Where the entry of a position lies.
    fn place(position: u64) -> usize {
        FIRST_ENTRY + position as usize % ENTRIES * ENTRY
    }
}

/// Between what one side publishes and its look at what the other one waits for.
pub(super) fn order() {
    fence(Ordering::SeqCst);
}

/// The reader's side.
pub(super) struct Reader {
    map: Mapping,
    fd: OwnedFd,
    /// Entries and bytes read so far.
    entries: u64,
    bytes: u64,
}

impl Reader {
    pub(super) fn new() -> io::Result<Reader> {
        let fd = rustix::fs::memfd_create("polvo-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Mapping::new(fd.as_fd(), SIZE, true)?;
        Ok(Reader {
            map,
            fd,
            entries: 0,
            bytes: 0,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The next entry; what was written before it is seen too.
    fn entry(&self) -> Result<Option<Entry>, Nonsense> {
        let entry = Entry(self.map.word(Entry::place(self.entries)).load(Ordering::Acquire));
        let lap = Entry::lap_at(self.entries);
        if entry.lap() == lap {
            return Ok(Some(entry));
        }
        let is_of_before = (entry.lap() + 1) % LAPS == lap;
        if is_of_before {
            Ok(None)
        } else {
            Err(Nonsense("an entry out of turn"))
        }
    }

    /// True if something is to be read. Whoever asks again and again until it is has the second line of the entry on its way
    /// along with the first, rather than after it.
    pub(super) fn has_more(&self) -> bool {
        self.map.prefetch(Entry::place(self.entries) + SECOND_LINE);
        !matches!(self.entry(), Ok(None))
    }

    /// The word that changes when there is something to read, and what it is as long as there is nothing.
    pub(super) fn next_word(&self) -> (&AtomicU64, u64) {
        let word = self.map.word(Entry::place(self.entries));
        let now = word.load(Ordering::Relaxed);
        let has_come = Entry(now).lap() == Entry::lap_at(self.entries);
        (word, if has_come { !now } else { now })
    }

    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<Taken>, Nonsense> {
        let Some(entry) = self.entry()? else {
            return Ok(None);
        };
        let place = Entry::place(self.entries);
        let taken = match entry.kind() {
            IMMEDIATE => Taken::Event(Event::Immediate(entry.value())),
            WRITE => Taken::Write(self.write(place, entry.value())?),
            SHORT_MESSAGE => {
                let len = entry.value() as usize;
                if !is_short(len) {
                    return Err(Nonsense("a message beyond its entry"));
                }
                let mut bytes = vec![0; len];
                self.map.read(place + SHORT_MESSAGE_AT, &mut bytes);
                Taken::Event(Event::Message(bytes))
            }
            MESSAGE => {
                let len = entry.value() as usize;
                if len > MAX_SEND {
                    return Err(Nonsense("a message over the limit"));
                }
                let mut bytes = vec![0; len];
                let start = self.bytes as usize % BYTES;
                let first = len.min(BYTES - start);
                self.map.read(FIRST_BYTE + start, &mut bytes[..first]);
                self.map.read(FIRST_BYTE, &mut bytes[first..]);
                self.bytes += padded(len) as u64;
                self.map.word(BYTES_READ).store(self.bytes, Ordering::Release);
                Taken::Event(Event::Message(bytes))
            }
            _ => return Err(Nonsense("a message of an unknown kind")),
        };
        self.entries += 1;
        debug_assert!(self.bytes.is_multiple_of(8), "messages are padded");
        self.map.word(ENTRIES_READ).store(self.entries, Ordering::Release);
        Ok(Some(taken))
    }

    fn write(&self, place: usize, imm: u32) -> Result<Write, Nonsense> {
        let word = |at: usize| self.map.word(place + at).load(Ordering::Relaxed);
        let (key, offset, len) = (word(8), word(16), word(24));
        if len > WRITE_MAX as u64 {
            return Err(Nonsense("a write beyond its entry"));
        }
        let (len, mut bytes) = (len as usize, [0; WRITE_MAX]);
        self.map.read(place + WRITE_AT, &mut bytes[..len]);
        Ok(Write {
            key,
            offset,
            imm,
            len,
            bytes,
        })
    }

    /// True if the writer waits for room, and has to be told that there is some. A fence comes between the reading and this.
    pub(super) fn writer_waits(&self) -> bool {
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
    /// Entries and bytes written so far.
    entries: u64,
    bytes: u64,
    /// Room that was left when the reader's positions were looked at last, less what was written since.
    free: Room,
}

impl Writer {
    /// Maps what the peer has sent.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Writer> {
        check_sealed(fd, SIZE)?;
        Ok(Writer {
            map: Mapping::new(fd, SIZE, true)?,
            entries: 0,
            bytes: 0,
            free: Room::ALL,
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.map.word(at)
    }

    /// The next entry is to be written in a moment: has the processor take its lines from the reader's cache meanwhile.
    pub(super) fn prefetch(&self) {
        let place = Entry::place(self.entries);
        self.map.prefetch_to_write(place);
        self.map.prefetch_to_write(place + SECOND_LINE);
    }

    /// Whether so much can be written now.
    pub(super) fn has_room(&mut self, room: Room) -> Result<bool, Nonsense> {
        if room.fits(self.free) {
            return Ok(true);
        }
        let used = |written: u64, read_at: usize, all: usize| {
            let used = written.wrapping_sub(self.word(read_at).load(Ordering::Acquire));
            if used > all as u64 {
                return Err(Nonsense("an impossible position in our ring"));
            }
            Ok(all - used as usize)
        };
        self.free = Room {
            entries: used(self.entries, ENTRIES_READ, ENTRIES)?,
            bytes: used(self.bytes, BYTES_READ, BYTES)?,
        };
        debug_assert!(self.free.fits(Room::ALL), "no more is free than there is");
        Ok(room.fits(self.free))
    }

    /// Asks to be told when there is room; whether there is some already.
    pub(super) fn wait_for_room(&mut self, room: Room) -> Result<bool, Nonsense> {
        self.word(WAITS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_room(room)
    }

    /// Writes an immediate; there is room.
    pub(super) fn immediate(&mut self, imm: u32) {
        self.publish(IMMEDIATE, imm, Room::IMMEDIATE);
    }

    /// Writes a write-with-immediate of at most [`WRITE_MAX`] bytes; there is room.
    pub(super) fn write(&mut self, key: u64, offset: u64, bytes: &[u8], imm: u32) {
        assert!(
            bytes.len() <= WRITE_MAX,
            "a write of {} bytes in its entry",
            bytes.len()
        );
        let place = Entry::place(self.entries);
        for (at, value) in [(8, key), (16, offset), (24, bytes.len() as u64)] {
            self.word(place + at).store(value, Ordering::Relaxed);
        }
        self.map.write(place + WRITE_AT, bytes);
        self.publish(WRITE, imm, Room::IMMEDIATE);
    }

    /// Writes a message; there is room.
    pub(super) fn message(&mut self, bytes: &[u8]) {
        let room = Room::message(bytes.len());
        assert!(room.fits(self.free), "whoever writes has asked for room");
        if is_short(bytes.len()) {
            self.map.write(Entry::place(self.entries) + SHORT_MESSAGE_AT, bytes);
            return self.publish(SHORT_MESSAGE, bytes.len() as u32, room);
        }
        let start = self.bytes as usize % BYTES;
        let first = bytes.len().min(BYTES - start);
        self.map.write(FIRST_BYTE + start, &bytes[..first]);
        self.map.write(FIRST_BYTE, &bytes[first..]);
        self.publish(MESSAGE, bytes.len() as u32, room);
    }

    fn publish(&mut self, kind: u8, value: u32, room: Room) {
        let entry = Entry::new(kind, self.entries, value);
        self.word(Entry::place(self.entries)).store(entry.0, Ordering::Release);
        self.entries += 1;
        self.bytes += room.bytes as u64;
        assert!(room.fits(self.free), "whoever writes has asked for room");
        self.free.entries -= room.entries;
        self.free.bytes -= room.bytes;
    }

    /// True if the reader sleeps, and the doorbell has to be rung. A fence comes between the writing and this.
    pub(super) fn reader_sleeps(&self) -> bool {
        self.word(SLEEPS).load(Ordering::Relaxed) != 0 && self.word(SLEEPS).swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: Event) -> Option<Taken> {
        Some(Taken::Event(event))
    }

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
            let room = |n: u32| {
                let mut room = Room::message(message(n).len());
                room += Room::IMMEDIATE;
                room
            };
            while sent < 500 && writer.has_room(room(sent)).unwrap() {
                writer.message(&message(sent));
                writer.immediate(sent);
                sent += 1;
            }
            assert_eq!(reader.next().unwrap(), event(Event::Message(message(received))));
            assert_eq!(reader.next().unwrap(), event(Event::Immediate(received)));
            received += 1;
        }
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn entries_of_the_lap_before_are_not_read_again() {
        let (mut reader, mut writer) = ring();
        for n in 0..3 * ENTRIES as u32 + 5 {
            assert_eq!(reader.next().unwrap(), None);
            assert!(writer.has_room(Room::IMMEDIATE).unwrap());
            writer.immediate(n);
            assert_eq!(reader.next().unwrap(), event(Event::Immediate(n)));
        }
    }

    #[test]
    fn what_is_short_travels_in_its_entry() {
        let (mut reader, mut writer) = ring();
        for len in (0..=WRITE_MAX).rev().cycle().take(5 * ENTRIES) {
            // bytes that look like entries
            let bytes: Vec<u8> = (0..len)
                .map(|at| Entry::new(IMMEDIATE, 1, 7).0.to_le_bytes()[at % 8])
                .collect();
            let (key, offset, imm) = (u64::MAX - len as u64, len as u64 * 3, len as u32);
            writer.has_room(Room::IMMEDIATE).unwrap();
            writer.write(key, offset, &bytes, imm);
            writer.has_room(Room::message(len)).unwrap();
            writer.message(&bytes);
            let Some(Taken::Write(write)) = reader.next().unwrap() else {
                panic!("it was written as such")
            };
            assert_eq!(
                (write.key, write.offset, write.imm, write.bytes()),
                (key, offset, imm, &bytes[..])
            );
            assert_eq!(reader.next().unwrap(), event(Event::Message(bytes)));
            assert_eq!(reader.next().unwrap(), None);
        }
        assert_eq!(writer.bytes, 0, "the ring of bytes was not needed");
    }

    #[test]
    fn a_full_ring_has_no_room_until_it_is_read() {
        let (mut reader, mut writer) = ring();
        let mut count = 0;
        while writer.has_room(Room::IMMEDIATE).unwrap() {
            writer.immediate(count);
            count += 1;
        }
        assert_eq!(count as usize, ENTRIES);
        assert!(!writer.wait_for_room(Room::IMMEDIATE).unwrap());
        assert!(reader.writer_waits() && !reader.writer_waits(), "told once");
        reader.next().unwrap();
        assert!(writer.has_room(Room::IMMEDIATE).unwrap());
        writer.immediate(count);
        assert!(!writer.has_room(Room::IMMEDIATE).unwrap());
    }

    #[test]
    fn bytes_run_out_before_entries_and_come_back() {
        let (mut reader, mut writer) = ring();
        let big = vec![9; MAX_SEND];
        let mut count = 0;
        while writer.has_room(Room::message(big.len())).unwrap() {
            writer.message(&big);
            count += 1;
        }
        assert_eq!(count, BYTES / padded(MAX_SEND));
        assert!(writer.has_room(Room::IMMEDIATE).unwrap(), "that needs no bytes");
        reader.next().unwrap();
        assert!(writer.has_room(Room::message(big.len())).unwrap());
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
        for entry in [
            Entry::new(0, 0, 0),
            Entry::new(77, 0, 0),
            Entry::new(IMMEDIATE, ENTRIES as u64, 0),
            Entry::new(IMMEDIATE, (LAPS - 2) * ENTRIES as u64, 0),
            Entry::new(MESSAGE, 0, MAX_SEND as u32 + 1),
            Entry::new(MESSAGE, 0, u32::MAX),
            Entry::new(SHORT_MESSAGE, 0, SHORT_MESSAGE_MAX as u32 + 1),
            Entry::new(SHORT_MESSAGE, 0, u32::MAX),
        ] {
            let (mut reader, writer) = ring();
            writer.word(Entry::place(0)).store(entry.0, Ordering::Relaxed);
            assert!(reader.next().is_err(), "{:#x}", entry.0);
        }
        for len in [WRITE_MAX as u64 + 1, u64::MAX] {
            let (mut reader, mut writer) = ring();
            writer.write(1, 2, &[], 3);
            writer.word(Entry::place(0) + 24).store(len, Ordering::Relaxed);
            assert!(reader.next().is_err(), "{len}");
        }
    }

    #[test]
    fn nonsense_of_the_reader_is_noticed() {
        for at in [ENTRIES_READ, BYTES_READ] {
            for read in [8, 1, u64::MAX - BYTES as u64 - 7] {
                let (reader, mut writer) = ring();
                reader.map.word(at).store(read, Ordering::Relaxed);
                assert!(
                    writer
                        .has_room(Room {
                            entries: ENTRIES + 1,
                            bytes: 0
                        })
                        .is_err(),
                    "{at} {read:#x}"
                );
            }
        }
    }

    #[test]
    fn memory_that_could_be_taken_away_is_refused() {
        let fd = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, SIZE as u64).unwrap();
        assert!(Writer::new(fd.as_fd()).is_err());
        let small = crate::Buffer::new(4096);
        assert!(Writer::new(small.fd()).is_err());
    }
}
