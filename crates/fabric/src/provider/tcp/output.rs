//! What is to be sent: small things copied together, large ones by reference.

use super::records::{BODY_MAX, Sealer};
use crate::Memory;
use crate::wait::OpId;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Payloads from here on are sent from where they lie, bytes.
pub(crate) const BY_REFERENCE: usize = 4096;

/// Pieces that go to the kernel in one call.
const MAX_PIECES: usize = 32;

/// Bytes sent in one round, so that one connection does not keep the thread for itself.
const ROUND: usize = 2 << 20;

/// Who keeps a referenced piece alive.
enum Owner {
    /// The caller of an operation (`None`: of an unsignaled batch that is being posted), while it is being polled.
    Caller(Option<OpId>),
    /// Memory that the caller of an operation sends from. It keeps its mapping; abandoned, the bytes are to stay what they are.
    Local(Option<OpId>, #[allow(dead_code)] Memory),
    /// A memory region of ours that is being read.
    #[allow(dead_code)] // held, not looked at
    Lease(Memory),
}

enum Piece {
    /// The next so many bytes of `small`.
    Small(usize),
    /// Bytes of somebody else.
    Reference { at: *const u8, len: usize, owner: Owner },
    /// Bytes of our own; copied from a caller, or (`answer`) from a memory region.
    Owned {
        bytes: Box<[u8]>,
        sent: usize,
        answer: bool,
    },
}

/// The output queue of a connection.
#[derive(Default)]
pub(crate) struct Output {
    pieces: VecDeque<Piece>,
    small: Vec<u8>,
    small_sent: usize,
    /// Pieces by reference to memory regions.
    leases: usize,
    /// Bytes kept in `small` and `Owned`, and those of them that are copied answers.
    kept: usize,
    answers: usize,
    /// The kernel takes no more.
    pub(crate) stuck: bool,
    /// What is sent goes through it.
    sealer: Option<Box<Sealer>>,
}

/// What a round of sending left.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
pub(crate) enum Sent {
    /// Nothing.
    All,
    /// Something: the kernel takes no more for now.
    Stuck,
    /// Something: others should have their turn.
    Round,
    /// Something: bytes of this operation come next, whose caller is not being polled.
    Held(OpId),
}

impl Piece {
    /// The operation whose caller has to be polled before the piece can be sent.
    fn waits_for(&self, present: Option<OpId>) -> Option<OpId> {
        match self {
            Piece::Reference {
                owner: Owner::Caller(op @ Some(_)),
                ..
            } if *op != present => *op,
            _ => None,
        }
    }
}

impl Output {
    /// One whose bytes travel in records.
    pub(super) fn sealed(sealer: Sealer) -> Output {
        Output {
            sealer: Some(Box::new(sealer)),
            ..Output::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.sealer.as_ref().is_none_or(|sealer| sealer.is_empty())
    }

    /// Bytes of memory it holds.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Bytes of memory it holds, less large answers: what posting adds to.
    pub(crate) fn posted(&self) -> usize {
        self.kept.checked_sub(self.answers).expect("copied answers are kept")
    }

    /// True while bytes of a memory region are still to be read by the kernel.
    pub(crate) fn has_leases(&self) -> bool {
        self.leases > 0
    }

    /// True while bytes of a caller that does not wait are still to be read by the kernel.
    pub(crate) fn has_callers(&self) -> bool {
        let of_caller = |piece: &Piece| match piece {
            Piece::Reference { owner, .. } => matches!(owner, Owner::Caller(None) | Owner::Local(None, _)),
            _ => false,
        };
        self.pieces.iter().any(of_caller)
    }

    /// What is kept and what is referenced is counted.
    fn check(&self) {
        let of = |count: fn(&Piece) -> usize| self.pieces.iter().map(count).sum::<usize>();
        let small = of(|piece| if let Piece::Small(len) = piece { *len } else { 0 });
        debug_assert_eq!(small, self.small.len() - self.small_sent, "small pieces");
        let owned = of(|piece| {
            if let Piece::Owned { bytes, .. } = piece {
                bytes.len()
            } else {
                0
            }
        });
        debug_assert_eq!(small + owned, self.kept, "bytes kept");
        debug_assert!(self.answers <= owned, "copied answers are kept");
        let is_lease = |piece: &&Piece| {
            matches!(
                piece,
                Piece::Reference {
                    owner: Owner::Lease(_),
                    ..
                }
            )
        };
        debug_assert_eq!(self.pieces.iter().filter(is_lease).count(), self.leases, "leases");
    }

    /// Room for `len` bytes at the end, to be filled by the caller.
    pub(crate) fn reserve(&mut self, len: usize) -> &mut [u8] {
        match self.pieces.back_mut() {
            Some(Piece::Small(bytes)) => *bytes += len,
            _ => self.pieces.push_back(Piece::Small(len)),
        }
        self.kept += len;
        let start = self.small.len();
        self.small.resize(start + len, 0);
        &mut self.small[start..]
    }

    /// Appends a copy.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.pieces.back_mut() {
            Some(Piece::Small(len)) => *len += bytes.len(),
            _ => self.pieces.push_back(Piece::Small(bytes.len())),
        }
        self.kept += bytes.len();
        self.small.extend_from_slice(bytes);
    }

    /// Appends bytes of a caller without copying them; they lie in `memory`, or the caller lends them while it is being polled. When
    /// it is no longer there (for an unsignaled batch: when it has been posted) [`Output::own`] is to be called.
    pub(crate) fn push_caller(&mut self, bytes: &[u8], op: Option<OpId>, memory: Option<&Memory>) {
        self.pieces.push_back(Piece::Reference {
            at: bytes.as_ptr(),
            len: bytes.len(),
            owner: match memory {
                Some(memory) => Owner::Local(op, memory.clone()),
                None => Owner::Caller(op),
            },
        });
    }

    /// Appends `len` bytes of a memory region without copying them; `at` lies in the mapping of `memory`.
    pub(crate) fn push_lease(&mut self, at: *const u8, len: usize, memory: Memory) {
        self.leases += 1;
        self.pieces.push_back(Piece::Reference {
            at,
            len,
            owner: Owner::Lease(memory),
        });
    }

    /// Copies what is still referenced of this operation's (`None`: of an unsignaled batch's) caller.
    pub(crate) fn own(&mut self, op: Option<OpId>) {
        self.own_if(|owner| matches!(owner, Owner::Caller(of) | Owner::Local(of, _) if *of == op));
    }

    /// Copies what is still to be read of memory regions, so that later requests may change it.
    pub(crate) fn own_leases(&mut self) {
        self.own_if(|owner| matches!(owner, Owner::Lease(_)));
    }

    fn own_if(&mut self, wanted: impl Fn(&Owner) -> bool) {
        for piece in &mut self.pieces {
            if let Piece::Reference { at, len, owner } = piece
                && wanted(owner)
            {
                // SAFETY: a caller's bytes are asked for by the caller, which still borrows them; other owners hold their mapping.
                // Memory of a region may change meanwhile; the copy is of plain bytes.
                let bytes: Box<[u8]> = unsafe { std::slice::from_raw_parts(*at, *len) }.into();
                let answer = matches!(owner, Owner::Lease(_));
                self.leases = less(self.leases, usize::from(answer));
                self.answers += if answer { bytes.len() } else { 0 };
                self.kept += bytes.len();
                *piece = Piece::Owned { bytes, sent: 0, answer };
            }
        }
        self.check();
    }

    /// Forgets everything; nothing is sent any more.
    pub(crate) fn clear(&mut self) {
        *self = Output::default();
    }

    /// Who holds up all that is to be sent.
    fn holder(&self, present: Option<OpId>) -> Option<OpId> {
        let is_sealed = self.sealer.as_ref().is_some_and(|sealer| !sealer.is_empty());
        let front = self.pieces.front().filter(|_| !is_sealed);
        front.and_then(|piece| piece.waits_for(present))
    }

    /// Sends what the kernel takes; also returns how many bytes that were. `present`: the operation whose caller is being polled.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, present: Option<OpId>) -> io::Result<(Sent, usize)> {
        let mut round = 0;
        self.stuck = false;
        while !self.is_empty() {
            if let Some(op) = self.holder(present) {
                return Ok((Sent::Held(op), round));
            }
            if round >= ROUND {
                return Ok((Sent::Round, round));
            }
            match self.send_once(socket, present) {
                Ok(sent) => round += sent,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.stuck = true;
                    return Ok((Sent::Stuck, round));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok((Sent::All, round))
    }

    fn send_once(&mut self, socket: BorrowedFd<'_>, present: Option<OpId>) -> io::Result<usize> {
        if let Some(mut sealer) = self.sealer.take() {
            self.seal(&mut sealer, present);
            let sent = sealer.send(socket);
            self.sealer = Some(sealer);
            return sent;
        }
        let sent = self.send_pieces(socket, present)?;
        self.advance(sent);
        Ok(sent)
    }

    /// Copies what is to be sent into records, as many as go to the kernel in one call.
    fn seal(&mut self, sealer: &mut Sealer, present: Option<OpId>) {
        let is_here = |piece: &Piece| piece.waits_for(present).is_none();
        while self.pieces.front().is_some_and(is_here) && sealer.has_room() {
            let mut len = 0;
            sealer.seal(|record| {
                let mut small = self.small_sent;
                for piece in self.pieces.iter().take_while(|piece| is_here(piece)) {
                    let room = BODY_MAX - len;
                    let bytes = match piece {
                        Piece::Small(len) => {
                            let at = small;
                            small += len;
                            &self.small[at..small]
                        }
                        // SAFETY: the caller whose bytes they are is being polled; other owners hold their mapping.
                        Piece::Reference { at, len, .. } => unsafe { std::slice::from_raw_parts(*at, *len) },
                        Piece::Owned { bytes, sent, .. } => &bytes[*sent..],
                    };
                    let now = bytes.len().min(room);
                    record.extend_from_slice(&bytes[..now]);
                    len += now;
                    if now == room {
                        break;
                    }
                }
            });
            debug_assert!(len <= BODY_MAX, "a record of {len} bytes");
            self.advance(len);
        }
    }

    fn send_pieces(&self, socket: BorrowedFd<'_>, present: Option<OpId>) -> io::Result<usize> {
        let mut vectors = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MAX_PIECES];
        let mut small = self.small_sent;
        let mut count = 0;
        let pieces = self
            .pieces
            .iter()
            .take_while(|piece| piece.waits_for(present).is_none());
        for (vector, piece) in vectors.iter_mut().zip(pieces) {
            let (at, len) = match piece {
                Piece::Small(len) => {
                    let at = self.small[small..].as_ptr();
                    small += len;
                    (at, *len)
                }
                Piece::Reference { at, len, .. } => (*at, *len),
                Piece::Owned { bytes, sent, .. } => (bytes[*sent..].as_ptr(), bytes.len() - sent),
            };
            *vector = libc::iovec {
                iov_base: at.cast_mut().cast(),
                iov_len: len,
            };
            count += 1;
        }
        // SAFETY: all zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = count;
        let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: each vector names bytes of ours, of a mapping that their owner holds, or of a caller that is being polled; the
        // kernel only reads them.
        let sent = unsafe {
            match vectors[..count] {
                [libc::iovec { iov_base, iov_len }] => libc::send(socket, iov_base, iov_len, flags),
                _ => libc::sendmsg(socket, &message, flags),
            }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn advance(&mut self, mut sent: usize) {
        while sent > 0 {
            let Some(piece) = self.pieces.front_mut() else { break };
            let (now, whole) = match piece {
                Piece::Small(len) => {
                    let now = sent.min(*len);
                    *len -= now;
                    self.small_sent += now;
                    self.kept = less(self.kept, now);
                    (now, *len == 0)
                }
                Piece::Reference { at, len, .. } => {
                    let now = sent.min(*len);
                    *at = at.wrapping_add(now);
                    *len -= now;
                    (now, *len == 0)
                }
                Piece::Owned {
                    bytes,
                    sent: done,
                    answer,
                } => {
                    let now = sent.min(bytes.len() - *done);
                    *done += now;
                    let whole = *done == bytes.len();
                    self.kept = less(self.kept, if whole { bytes.len() } else { 0 });
                    self.answers = less(self.answers, if whole && *answer { bytes.len() } else { 0 });
                    (now, whole)
                }
            };
            sent -= now;
            if whole
                && let Some(Piece::Reference {
                    owner: Owner::Lease(_), ..
                }) = self.pieces.pop_front()
            {
                self.leases = less(self.leases, 1);
            }
        }
        if self.small_sent == self.small.len() {
            self.small.clear();
            self.small_sent = 0;
        } else if self.small_sent >= 1 << 16 {
            self.small.drain(..self.small_sent);
            self.small_sent = 0;
        }
        self.check();
    }
}

/// What is left of a count.
fn less(count: usize, gone: usize) -> usize {
    count.checked_sub(gone).expect("what goes has been counted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn everything_arrives_in_order_however_small_the_socket_buffer() {
        let (left, mut right) = UnixStream::pair().unwrap();
        let buffer = Buffer::new(300_000);
        buffer.write(0, &(0..300_000u32).map(|i| (i % 241) as u8).collect::<Vec<_>>());
        let mut memory = vec![0; 300_000];
        buffer.read(0, &mut memory);
        let caller = vec![9; 500_000];
        let mut expected = Vec::new();
        let mut output = Output::default();
        for round in 0..5u8 {
            output.push(&[round; 100]);
            output.push(&[round; 3]);
            output.push_lease(buffer.map().as_ptr(), 300_000, Memory::Buffer(buffer.clone()));
            output.reserve(8).fill(round);
            output.push_caller(&caller, None, None);
            expected.extend_from_slice(&[round; 103]);
            expected.extend_from_slice(&memory);
            expected.extend_from_slice(&[round; 8]);
            expected.extend_from_slice(&caller);
        }
        let reader = std::thread::spawn(move || {
            let mut found = vec![0; expected.len()];
            right.read_exact(&mut found).unwrap();
            assert!(found == expected);
        });
        let mut owned = false;
        while output.send(left.as_fd(), None).unwrap().0 != Sent::All {
            if !owned {
                output.own(None);
                output.own_leases();
                assert!(!output.has_leases());
                buffer.write(0, &[0; 300_000]);
                owned = true;
            }
            std::thread::yield_now();
        }
        reader.join().unwrap();
        assert_eq!((output.kept(), output.posted(), output.leases), (0, 0, 0));
    }
}
