//! Answers to requests.
//!
//! A [`Reply`] is the right to answer one request, once. It may go to another thread, and answer there as late as it likes. A
//! reply that is dropped says EIO, so that no program waits for ever: a handler that panics comes to that, too.

use crate::abi::{Attr, Dirent, Direntplus, EntryOut, INodeNo, OutHeader};
use crate::transport::{BODY_PARTS, BackingId, Transport};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The kernel takes errors below this only; a request that is answered with another one waits for ever.
const FIRST_KERNEL_ERROR: i32 = 512;

/// The right to answer a request with a `T`; `Reply<()>`: with nothing but success.
#[must_use = "somebody waits for the answer"]
pub struct Reply<T: ?Sized> {
    transport: Arc<dyn Transport>,
    /// 0: it has been answered.
    unique: u64,
    answer: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Reply<T> {
    pub(crate) fn new(transport: &Arc<dyn Transport>, unique: u64) -> Reply<T> {
        Reply {
            transport: transport.clone(),
            unique,
            answer: PhantomData,
        }
    }

    /// What the kernel calls the request, also where it asks for it to be given up ([`FileSystem::interrupt`]).
    ///
    /// [`FileSystem::interrupt`]: crate::FileSystem::interrupt
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The request failed.
    pub fn error(mut self, errno: Errno) {
        self.send(Err(errno));
    }

    fn send(&mut self, answer: Result<&[IoSlice<'_>], Errno>) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) if errno.raw_os_error() < FIRST_KERNEL_ERROR => (-errno.raw_os_error(), &[][..]),
            Err(_) => (-Errno::IO.raw_os_error(), &[][..]),
        };
        let header = OutHeader {
            len: (size_of::<OutHeader>() + body.iter().map(|part| part.len()).sum::<usize>()) as u32,
            error,
            unique: std::mem::take(&mut self.unique),
        };
        match self.transport.send(&header, body) {
            // It was unmounted, or whoever asked was killed.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(errno) => tracing::error!(%errno, len = header.len, "the kernel takes no answer"),
        }
    }

    /// Has the kernel know an open file, for opening others for passthrough to it. Needs CAP_SYS_ADMIN, and
    /// [`PASSTHROUGH`](crate::abi::init::PASSTHROUGH).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn register(&self, file: impl AsFd) -> io::Result<BackingId> {
        BackingId::new(&self.transport, file.as_fd())
    }
}

impl<T: ?Sized + IntoBytes + Immutable> Reply<T> {
    /// The request succeeded.
    pub fn ok(mut self, answer: &T) {
        self.send(Ok(&[IoSlice::new(answer.as_bytes())]));
    }
}

impl Reply<[u8]> {
    /// The request succeeded, with bytes that lie in several places, at most [`BODY_PARTS`].
    pub fn ok_parts(mut self, answer: &[IoSlice<'_>]) {
        assert!(answer.len() <= BODY_PARTS, "{} parts of one answer", answer.len());
        self.send(Ok(answer));
    }
}

impl<T: IntoBytes + Immutable> Reply<T> {
    /// The request succeeded, or failed.
    pub fn give(self, answer: Result<T, Errno>) {
        match answer {
            Ok(answer) => self.ok(&answer),
            Err(errno) => self.error(errno),
        }
    }
}

impl<T: ?Sized> Drop for Reply<T> {
    fn drop(&mut self) {
        if self.unique != 0 {
            self.send(Err(Errno::IO));
        }
    }
}

/// What READDIR and READDIRPLUS are answered with: entries, as many as there is room for.
pub struct Listing<'b> {
    buffer: &'b mut Vec<u8>,
    room: usize,
}

impl<'b> Listing<'b> {
    /// None yet, and `room` bytes for them. `buffer`: where they are put; what it holds goes.
    pub fn new(buffer: &'b mut Vec<u8>, room: u32) -> Listing<'b> {
        buffer.clear();
        Listing {
            buffer,
            room: room as usize,
        }
    }

    /// Adds an entry. `next`: the offset of the one after it; `mode`: its type, of which permissions are no part. False: there is
    /// no room for it.
    #[must_use]
    pub fn add(&mut self, ino: INodeNo, next: u64, mode: u32, name: &[u8]) -> bool {
        self.put(&[], ino, next, mode, name)
    }

    /// The same with what LOOKUP would say of it. Unless it is `.` or `..` the kernel counts a lookup.
    #[must_use]
    pub fn add_plus(&mut self, entry: &EntryOut, next: u64, name: &[u8]) -> bool {
        let Attr { ino, mode, .. } = entry.attr;
        self.put(entry.as_bytes(), ino, next, mode, name)
    }

    /// Bytes that an entry of a name of that length takes with what LOOKUP would say of it.
    pub const fn len_plus(name_len: usize) -> usize {
        size_of::<Direntplus>() + name_len.next_multiple_of(8)
    }

    fn put(&mut self, before: &[u8], ino: INodeNo, offset: u64, mode: u32, name: &[u8]) -> bool {
        let dirent = Dirent {
            ino,
            offset,
            namelen: name.len() as u32,
            kind: mode >> 12,
        };
        debug_assert!(
            self.buffer.len().is_multiple_of(8),
            "entries begin at multiples of 8 bytes"
        );
        let end = self.buffer.len() + before.len() + size_of::<Dirent>() + name.len().next_multiple_of(8);
        if end > self.room {
            return false;
        }
        for part in [before, dirent.as_bytes(), name] {
            self.buffer.extend_from_slice(part);
        }
        debug_assert!(
            (self.buffer.len()..self.buffer.len() + 8).contains(&end),
            "nothing but padding is missing"
        );
        self.buffer.resize(end, 0);
        true
    }

    /// What was added.
    pub fn bytes(&self) -> &[u8] {
        self.buffer
    }
}

const _: () = assert!(size_of::<Direntplus>() == size_of::<EntryOut>() + size_of::<Dirent>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::WriteOut;
    use crate::transport::testing::Recorder;
    use zerocopy::{FromBytes, FromZeros};

    #[test]
    fn a_request_is_answered_once_whatever_becomes_of_the_reply() {
        let recorder = Arc::new(Recorder::default());
        let transport: Arc<dyn Transport> = recorder.clone();
        Reply::<WriteOut>::new(&transport, 2).ok(&WriteOut::new(7));
        Reply::<()>::new(&transport, 4).give(Ok(()));
        Reply::<[u8]>::new(&transport, 6).error(Errno::NOENT);
        drop(Reply::<[u8]>::new(&transport, 8));
        let elsewhere = Reply::<[u8]>::new(&transport, 10);
        std::thread::spawn(move || elsewhere.ok(b"late"))
            .join()
            .expect("no panic");
        Reply::<()>::new(&transport, 12).error(Errno::from_raw_os_error(FIRST_KERNEL_ERROR));
        Reply::<[u8]>::new(&transport, 14).ok_parts(&[&b"in "[..], b"", b"parts"].map(IoSlice::new));
        let (noent, io) = (-Errno::NOENT.raw_os_error(), -Errno::IO.raw_os_error());
        let expected = [
            (2, 0, vec![7, 0, 0, 0, 0, 0, 0, 0]),
            (4, 0, vec![]),
            (6, noent, vec![]),
            (8, io, vec![]),
            (10, 0, b"late".to_vec()),
            (12, io, vec![]),
            (14, 0, b"in parts".to_vec()),
        ];
        assert_eq!(recorder.answers(), expected);
    }

    #[test]
    fn a_listing_ends_where_its_room_does() {
        let mut buffer = vec![1, 2, 3];
        let mut listing = Listing::new(&mut buffer, 100);
        assert!(listing.add(INodeNo(5), 1, 0o040755, b"."));
        assert!(listing.add(INodeNo(6), 2, 0o100000, b"ninechars"));
        assert!(
            !listing.add(INodeNo(7), 3, 0o100000, b"one more"),
            "32 + 40 + 32 is too much"
        );
        let bytes = listing.bytes();
        assert_eq!(bytes.len(), 72);
        let (first, name) = Dirent::read_from_prefix(bytes).expect("an entry");
        assert_eq!(
            (first.ino, first.offset, first.namelen, first.kind),
            (INodeNo(5), 1, 1, 4)
        );
        assert_eq!(&name[..8], b".\0\0\0\0\0\0\0");
        let mut entry = EntryOut::new_zeroed();
        (entry.attr.ino, entry.attr.mode) = (INodeNo(9), 0o120777);
        let mut listing = Listing::new(&mut buffer, 160);
        assert!(listing.add_plus(&entry, 1, b"link"));
        let (plus, _) = Direntplus::read_from_prefix(listing.bytes()).expect("an entry");
        assert_eq!((plus.dirent.ino, plus.dirent.kind), (INodeNo(9), 10));
    }
}
