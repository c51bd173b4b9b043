//! What peers on a host tell each other over the UNIX socket they met at: descriptors of memory, and by its closing that
//! they are gone. Messages have a fixed size; a descriptor travels with the message it belongs to.

use crate::Memory;
use crate::key_table::check_sealed;
use crate::memory::{Buffer, Mapping};
use polvo_pmem::{Medium, Persistence, Pmem};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Bytes of a message.
pub(super) const MESSAGE: usize = 32;

/// Descriptors that come with one message at most.
const MAX_FDS: usize = 3;

const SETUP: u8 = 1;
const WANT: u8 = 2;
const POOL: u8 = 3;
const BUFFER: u8 = 4;
const NONE: u8 = 5;

/// What one peer tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// With the descriptors of the ring that the sender reads, its doorbell, and its key table. So many pools follow, unasked.
    Setup { pools: u64 },
    /// Asks for a memory by its number.
    Want(u64),
    /// With the descriptor of a pool.
    Pool {
        memory: u64,
        len: u64,
        persistence: Persistence,
        medium: Medium,
        /// Number of the sender's run ([`Pmem::incarnation`]).
        incarnation: u64,
    },
    /// With the descriptor of a buffer.
    Buffer { memory: u64, len: u64 },
    /// There is no such memory, or none that can be mapped.
    None(u64),
}

const PERSISTENCES: [Persistence; 4] = [
    Persistence::None,
    Persistence::Clwb,
    Persistence::Clflushopt,
    Persistence::Clflush,
];
const MEDIA: [Medium; 5] = [Medium::DevDax, Medium::FsDax, Medium::Tmpfs, Medium::File, Medium::Sim];

impl Message {
    pub(super) fn to_bytes(self) -> [u8; MESSAGE] {
        let (kind, a, b, c, persistence, medium) = match self {
            Message::Setup { pools } => (SETUP, super::ring::LAYOUT, crate::access::SLOTS as u64, pools, 0, 0),
            Message::Want(memory) => (WANT, memory, 0, 0, 0, 0),
            Message::Pool {
                memory,
                len,
                persistence,
                medium,
                incarnation,
            } => {
                let persistence = PERSISTENCES.iter().position(|p| *p == persistence).unwrap_or(0);
                let medium = MEDIA.iter().position(|m| *m == medium).unwrap_or(0);
                (POOL, memory, len, incarnation, persistence, medium)
            }
            Message::Buffer { memory, len } => (BUFFER, memory, len, 0, 0, 0),
            Message::None(memory) => (NONE, memory, 0, 0, 0, 0),
        };
        let mut bytes = [0; MESSAGE];
        bytes[0] = kind;
        bytes[1] = persistence as u8;
        bytes[2] = medium as u8;
        bytes[8..16].copy_from_slice(&a.to_le_bytes());
        bytes[16..24].copy_from_slice(&b.to_le_bytes());
        bytes[24..32].copy_from_slice(&c.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; MESSAGE]) -> Result<Message, &'static str> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (a, b, c) = (word(8), word(16), word(24));
        match bytes[0] {
            SETUP if a == super::ring::LAYOUT && b == crate::access::SLOTS as u64 => Ok(Message::Setup { pools: c }),
            SETUP => Err("a setup message of another version"),
            WANT => Ok(Message::Want(a)),
            POOL => {
                let persistence = *PERSISTENCES
                    .get(usize::from(bytes[1]))
                    .ok_or("an unknown persistence")?;
                let medium = *MEDIA.get(usize::from(bytes[2])).ok_or("an unknown medium")?;
                Ok(Message::Pool {
                    memory: a,
                    len: b,
                    persistence,
                    medium,
                    incarnation: c,
                })
            }
            BUFFER => Ok(Message::Buffer { memory: a, len: b }),
            NONE => Ok(Message::None(a)),
            _ => Err("a message of an unknown kind"),
        }
    }

    fn fds(self) -> usize {
        match self {
            Message::Setup { .. } => 3,
            Message::Pool { .. } | Message::Buffer { .. } => 1,
            Message::Want(_) | Message::None(_) => 0,
        }
    }
}

/// Memory of a peer, mapped here.
pub(super) enum PeerMemory {
    Mapped(Memory),
    Unreachable,
}

/// A pool mapped by this process.
struct MappedPool {
    file: File,
    /// Incarnation of the node that has given it. What another one has given is another mapping: the node holds space back for as
    /// long as one of an earlier incarnation is there.
    incarnation: u64,
    /// Stores there reach nobody any more.
    is_retired: bool,
    pool: Weak<Pmem>,
}

/// One mapping serves all queue pairs of the process with an incarnation of the node.
static POOLS: Mutex<Vec<MappedPool>> = Mutex::new(Vec::new());

/// What is said of a pool.
pub(super) fn pool_message(memory: u64, pool: &Pmem) -> Message {
    Message::Pool {
        memory,
        len: pool.len(),
        persistence: pool.persistence(),
        medium: pool.medium(),
        incarnation: pool.incarnation(),
    }
}

/// Device and inode.
type File = (u64, u64);

fn file_of(fd: BorrowedFd<'_>) -> io::Result<File> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A node has told by which descriptor its present incarnation has its pool open. What earlier ones had given is of no use any
/// more: no thread of the process keeps it, though it may not have noticed yet that its node has ended.
pub(super) fn retire_before(incarnation: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
    let file = file_of(fd)?;
    let mut pools = POOLS.lock().expect("nobody panics holding this lock");
    pools.retain(|mapped| mapped.pool.strong_count() > 0);
    for mapped in pools
        .iter_mut()
        .filter(|mapped| mapped.file == file && mapped.incarnation < incarnation)
    {
        let Some(pool) = mapped.pool.upgrade() else { continue };
        match pool.retire(fd) {
            Ok(()) => {
                tracing::debug!(
                    before = mapped.incarnation,
                    incarnation,
                    "a pool of an earlier incarnation was let go of"
                );
                // what lies there now is of this incarnation, and has to go with it
                mapped.incarnation = incarnation;
                mapped.is_retired = true;
            }
            Err(error) => {
                tracing::debug!(before = mapped.incarnation, %error, "a pool of an earlier incarnation stays until nobody uses it");
            }
        }
    }
    Ok(())
}

fn map_pool(
    fd: OwnedFd,
    len: u64,
    persistence: Persistence,
    medium: Medium,
    incarnation: u64,
) -> io::Result<Arc<Pmem>> {
    let file = file_of(fd.as_fd())?;
    let mut pools = POOLS.lock().expect("nobody panics holding this lock");
    pools.retain(|mapped| mapped.pool.strong_count() > 0);
    let fits = |pool: &Arc<Pmem>| pool.len() == len && pool.persistence() == persistence && pool.medium() == medium;
    let mapped = pools
        .iter()
        .filter(|mapped| mapped.file == file && mapped.incarnation == incarnation && !mapped.is_retired)
        .find_map(|mapped| mapped.pool.upgrade().filter(fits));
    if let Some(mapped) = mapped {
        return Ok(mapped);
    }
    let pool = Pmem::from_fd(fd, len, persistence, medium)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    pools.push(MappedPool {
        file,
        incarnation,
        is_retired: false,
        pool: Arc::downgrade(&pool),
    });
    Ok(pool)
}

/// Maps memory that came with a message.
pub(super) fn map(message: Message, fd: Option<OwnedFd>) -> io::Result<PeerMemory> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    match (message, fd) {
        (
            Message::Pool {
                len,
                persistence,
                medium,
                incarnation,
                ..
            },
            Some(fd),
        ) => {
            let pool = map_pool(fd, len, persistence, medium, incarnation)?;
            Ok(PeerMemory::Mapped(Memory::Pool(pool)))
        }
        (Message::Buffer { len, .. }, Some(fd)) => {
            let len = usize::try_from(len).map_err(|_| wrong("a buffer of impossible size"))?;
            let mapped = len
                .max(1)
                .checked_next_multiple_of(4096)
                .ok_or_else(|| wrong("a buffer of impossible size"))?;
            check_sealed(fd.as_fd(), mapped)?;
            let map = Mapping::new(fd.as_fd(), mapped, true)?;
            let buffer = Memory::Buffer(Arc::new(Buffer::of_peer(map, len, fd)));
            Ok(PeerMemory::Mapped(buffer))
        }
        _ => Ok(PeerMemory::Unreachable),
    }
}

/// Sends a message; the socket's buffer has room for all that a peer that reads can be owed.
pub(super) fn send(socket: BorrowedFd<'_>, message: Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    debug_assert_eq!(message.fds(), fds.len());
    let bytes = message.to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(pushed, "there is space for {MAX_FDS}");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    if sent == MESSAGE {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "the peer does not read its socket",
        ))
    }
}

/// Why there is no message.
pub(super) enum Ended {
    Lost(String),
    Broken(&'static str),
}

/// Puts messages together from what the socket gives.
#[derive(Default)]
pub(super) struct Incoming {
    bytes: [u8; MESSAGE],
    there: usize,
    fds: VecDeque<OwnedFd>,
}

impl Incoming {
    /// The next message with its descriptors, or `None` if there is none yet.
    pub(super) fn next(&mut self, socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, Ended> {
        while self.there < MESSAGE {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut vectors = [IoSliceMut::new(&mut self.bytes[self.there..])];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = match rustix::net::recvmsg(socket, &mut vectors, &mut ancillary, flags) {
                Ok(got) => got,
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(Ended::Lost(error.to_string())),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.fds.extend(fds);
                }
            }
            if got.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
                return Err(Ended::Broken("more descriptors than were announced"));
            }
            if got.bytes == 0 {
                return Err(if self.there == 0 {
                    Ended::Lost("closed by the peer".into())
                } else {
                    Ended::Broken("a truncated message")
                });
            }
            self.there += got.bytes;
        }
        self.there = 0;
        let message = Message::from_bytes(self.bytes).map_err(Ended::Broken)?;
        if self.fds.len() != message.fds() {
            return Err(Ended::Broken("a message without its descriptors"));
        }
        Ok(Some((message, self.fds.drain(..).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let buffer = Buffer::new(5000);
        buffer.write(4990, b"0123456789");
        let sent = Message::Buffer { memory: 7, len: 5000 };
        send(a.as_fd(), Message::Want(3), &[]).unwrap();
        send(a.as_fd(), sent, &[buffer.fd()]).unwrap();
        let mut incoming = Incoming::default();
        let next = |incoming: &mut Incoming| incoming.next(b.as_fd()).ok().flatten();
        assert_eq!(next(&mut incoming).unwrap().0, Message::Want(3));
        let (found, mut fds) = next(&mut incoming).unwrap();
        assert_eq!(found, sent);
        let Ok(PeerMemory::Mapped(memory)) = map(found, fds.pop()) else {
            panic!("a buffer is mapped")
        };
        let mut bytes = [0; 10];
        memory.read(4990, &mut bytes);
        assert_eq!(&bytes, b"0123456789");
        assert!(next(&mut incoming).is_none());
        drop(a);
        assert!(matches!(incoming.next(b.as_fd()), Err(Ended::Lost(_))));
    }

    #[test]
    fn messages_are_read_as_written_and_otherwise_refused() {
        let pool = Message::Pool {
            memory: 1,
            len: 2,
            persistence: Persistence::Clflush,
            medium: Medium::File,
            incarnation: 3,
        };
        for message in [
            Message::Setup { pools: 2 },
            Message::Want(9),
            pool,
            Message::Buffer { memory: 1, len: 5 },
            Message::None(4),
        ] {
            assert_eq!(Message::from_bytes(message.to_bytes()), Ok(message));
        }
        for (at, byte) in [(0, 0), (0, 99), (1, 4), (2, 5)] {
            let mut bytes = pool.to_bytes();
            bytes[at] = byte;
            assert!(Message::from_bytes(bytes).is_err(), "byte {at} = {byte}");
        }
    }

    #[test]
    fn a_pool_is_mapped_once_a_process() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = Pmem::create(&dir.path().join("pool"), 1 << 20, None).unwrap();
        let (persistence, medium) = (pool.persistence(), pool.medium());
        let fd = || pool.fd().unwrap().try_clone_to_owned().unwrap();
        let map = |len, incarnation| map_pool(fd(), len, persistence, medium, incarnation);
        let first = map(1 << 20, 1).unwrap();
        let second = map(1 << 20, 1).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let shorter = map(1 << 19, 1).unwrap();
        assert!(!Arc::ptr_eq(&first, &shorter));
        assert!(map(1 << 21, 1).is_err());
        pool.write(77, b"seen");
        let mut found = [0; 4];
        second.read(77, &mut found);
        assert_eq!(&found, b"seen");
    }

    #[test]
    fn a_pool_of_a_run_before_is_let_go_of_whoever_uses_it() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("pool");
        let run = |incarnation| {
            let pool = Pmem::open(&path, None).unwrap();
            pool.begin_incarnation(incarnation).unwrap();
            pool
        };
        let map = |of: &Pmem| {
            let fd = of.fd().unwrap().try_clone_to_owned().unwrap();
            map_pool(fd, of.len(), of.persistence(), of.medium(), of.incarnation()).unwrap()
        };
        drop(Pmem::create(&path, 1 << 20, None).unwrap());
        let first = run(1);
        let ours = map(&first);
        drop(first);
        let second = run(2);
        let mapped_anew = map(&second);
        assert!(!Arc::ptr_eq(&ours, &mapped_anew));
        assert!(second.is_mapped_since_before(2).unwrap());
        // neither what an older incarnation says nor what this one says of itself concerns a mapping of this incarnation
        retire_before(1, second.fd().unwrap()).unwrap();
        assert!(second.is_mapped_since_before(2).unwrap());
        retire_before(2, second.fd().unwrap()).unwrap();
        assert!(!second.is_mapped_since_before(2).unwrap());
        ours.write(0, b"late");
        second.write(100, b"now");
        let (mut late, mut now) = ([1; 4], [1; 3]);
        second.read(0, &mut late);
        assert_eq!(late, [0; 4], "a late store has reached the pool");
        mapped_anew.read(100, &mut now);
        assert_eq!(&now, b"now");
        let third = {
            drop(second);
            run(3)
        };
        assert!(third.is_mapped_since_before(3).unwrap(), "of the second run");
        drop(mapped_anew);
        retire_before(3, third.fd().unwrap()).unwrap();
        assert!(!third.is_mapped_since_before(3).unwrap());
        let again = map(&third);
        assert!(!Arc::ptr_eq(&ours, &again), "what was let go of is not used again");
    }

    #[test]
    fn memory_shorter_than_announced_is_refused() {
        let buffer = Buffer::new(4096);
        let fd = || buffer.fd().try_clone_to_owned().unwrap();
        assert!(map(Message::Buffer { memory: 1, len: 4097 }, Some(fd())).is_err());
        assert!(
            map(
                Message::Buffer {
                    memory: 1,
                    len: u64::MAX
                },
                Some(fd())
            )
            .is_err()
        );
        assert!(map(Message::Buffer { memory: 1, len: 4096 }, Some(fd())).is_ok());
    }
}
