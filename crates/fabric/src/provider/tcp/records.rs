//! Records: how the bytes of a connection travel when its peers have agreed on security.
//!
//! ```text
//! length of the body (4 bytes, little-endian, 1 to BODY_MAX) | body, encrypted | tag (16 bytes)
//! ```
//!
//! AES-128-GCM under a key for each direction; the length is authenticated along with the body, and the nonce is the number of the
//! record: one that was changed, left out, repeated or swapped with another has a wrong tag, and the connection ends. Frames do not
//! care where records end. Nothing of a record is looked at but its length before its tag is found right, so bodies are received into
//! a buffer here and copied from there to where they belong; and memory that others may change is copied before it is sealed.
//!
//! To encrypt costs less than to compute a tag over the plain bytes alone: ciphers of this kind are made for it (see
//! docs/performance.md). So there is one way for `auth` and for `encrypt`.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, MAX_TAG_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

const LENGTH: usize = 4;
const TAG: usize = MAX_TAG_LEN;
/// Most bytes of a record's body.
pub(super) const BODY_MAX: usize = 32 << 10;
/// Sealed bytes that go to the kernel in one call.
const SEALED_MAX: usize = 4 * (LENGTH + BODY_MAX + TAG);
/// The buffer that records are received into: a whole one fits, and some more.
const RECEIVED_MAX: usize = 4 * (LENGTH + BODY_MAX + TAG);
/// Records under one key: the bound that TLS 1.3 keeps to for this cipher (RFC 8446, section 5.5), rounded down.
const RECORDS_MAX: u64 = 1 << 23;

/// The keys of one direction, one after the other.
struct Keys {
    secret: Prk,
    key: LessSafeKey,
    records: u64,
}

impl Keys {
    fn new(secret: Prk) -> Keys {
        let key = secret
            .expand(&[b"key"], &AES_128_GCM)
            .expect("16 bytes are not too many");
        Keys {
            key: LessSafeKey::new(UnboundKey::from(key)),
            secret,
            records: 0,
        }
    }

    /// The key and the nonce of the next record.
    fn next(&mut self) -> (&LessSafeKey, Nonce) {
        if self.records == RECORDS_MAX {
            let next = self
                .secret
                .expand(&[b"next"], HKDF_SHA256)
                .expect("32 bytes are not too many");
            *self = Keys::new(Prk::from(next));
        }
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        (&self.key, Nonce::assume_unique_for_key(nonce))
    }
}

/// The sending half: seals bytes, and keeps them until the kernel has taken them.
pub(super) struct Sealer {
    keys: Keys,
    sealed: Vec<u8>,
    sent: usize,
}

impl Sealer {
    pub(super) fn new(secret: Prk) -> Sealer {
        Sealer {
            keys: Keys::new(secret),
            sealed: Vec::new(),
            sent: 0,
        }
    }

    /// Everything has been taken.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.sealed.len()
    }

    /// There is room for another record before all goes to the kernel.
    pub(super) fn has_room(&self) -> bool {
        self.sent == 0 && self.sealed.len() + LENGTH + BODY_MAX + TAG <= SEALED_MAX
    }

    /// Seals what `fill` appends: a record, of at least a byte and at most [`BODY_MAX`].
    pub(super) fn seal(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.sealed.len();
        self.sealed.extend_from_slice(&[0; LENGTH]);
        fill(&mut self.sealed);
        let (length, body) = self.sealed[start..].split_at_mut(LENGTH);
        assert!((1..=BODY_MAX).contains(&body.len()), "the body of a record");
        length.copy_from_slice(&(body.len() as u32).to_le_bytes());
        debug_assert!(self.sent <= start, "what is sealed follows what is sent");
        let (key, nonce) = self.keys.next();
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(length), body);
        let tag = tag.expect("a record is not too long for its cipher");
        self.sealed.extend_from_slice(tag.as_ref());
    }

    /// Gives the kernel what it takes.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let bytes = &self.sealed[self.sent..];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are ours, and are only read.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        assert!(sent <= bytes.len(), "the kernel takes no more than it is given");
        self.sent += sent;
        if self.is_empty() {
            self.sealed.clear();
            self.sent = 0;
        }
        Ok(sent)
    }
}

/// The receiving half: receives records, and gives out the bodies of those that are sound.
pub(super) struct Opener {
    keys: Keys,
    buffer: Box<[u8]>,
    /// Received and not opened yet.
    received: Range<usize>,
    /// Opened and not taken yet.
    open: Range<usize>,
}

impl Opener {
    pub(super) fn new(secret: Prk) -> Opener {
        Opener {
            keys: Keys::new(secret),
            buffer: vec![0; RECEIVED_MAX].into(),
            received: 0..0,
            open: 0..0,
        }
    }

    /// Bytes that can be taken.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.open.clone()]
    }

    /// So many of them have been.
    pub(super) fn take(&mut self, len: usize) {
        self.open.start += len;
        debug_assert!(self.open.start <= self.open.end);
    }

    /// A record has come in part.
    pub(super) fn is_within_record(&self) -> bool {
        !self.received.is_empty()
    }

    /// Opens the next record, all bytes of the last one having been taken. False: it has not come in whole.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn open_next(&mut self) -> Result<bool, &'static str> {
        debug_assert!(self.open.is_empty());
        let received = &mut self.buffer[self.received.clone()];
        let Some((length, rest)) = received.split_first_chunk_mut::<LENGTH>() else {
            return Ok(false);
        };
        let len = u32::from_le_bytes(*length) as usize;
        if !(1..=BODY_MAX).contains(&len) {
            return Err("a record of an impossible length");
        }
        let Some(record) = rest.get_mut(..len + TAG) else {
            return Ok(false);
        };
        let (key, nonce) = self.keys.next();
        key.open_in_place(nonce, Aad::from(*length), record)
            .map_err(|_| "a record that is not what its peer has sent")?;
        let start = self.received.start + LENGTH;
        self.open = start..start + len;
        self.received.start = start + len + TAG;
        debug_assert!(self.open.end < self.received.start && self.received.start <= self.received.end);
        Ok(true)
    }

    /// Receives once, all whole records having been opened and taken; gives how many bytes came, and whether that was all there is.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<(usize, bool)> {
        debug_assert!(self.open.is_empty(), "what was opened was taken");
        self.buffer.copy_within(self.received.clone(), 0);
        self.received = 0..self.received.len();
        let room = &mut self.buffer[self.received.end..];
        assert!(!room.is_empty(), "there is room for a whole record");
        // SAFETY: the kernel writes into the buffer, which is ours.
        let got = unsafe {
            let at = room.as_mut_ptr().cast();
            libc::recv(socket.as_raw_fd(), at, room.len(), libc::MSG_DONTWAIT)
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        self.received.end += got;
        Ok((got, got < room.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    fn secret() -> Prk {
        Prk::new_less_safe(HKDF_SHA256, &[7; 32])
    }

    /// What comes out at the other end of what is sealed, cut into pieces of these lengths on the way; or what is wrong.
    fn opened(sealed: &[u8], pieces: &[usize]) -> Result<Vec<u8>, &'static str> {
        let flags = SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let mut opener = Opener::new(secret());
        let mut found = Vec::new();
        let (mut rest, mut lengths) = (sealed, pieces.iter().cycle());
        while !rest.is_empty() {
            let piece = rest.len().min(*lengths.next().unwrap());
            let sent = rustix::io::write(&near, &rest[..piece]).unwrap();
            rest = &rest[sent..];
            let (got, _) = opener.receive(far.as_fd()).unwrap();
            assert_eq!(got, sent);
            while opener.open_next()? {
                // in two parts, as a payload and what follows it
                let half = opener.bytes().len() / 2;
                found.extend_from_slice(&opener.bytes()[..half]);
                opener.take(half);
                found.extend_from_slice(opener.bytes());
                opener.take(opener.bytes().len());
            }
        }
        match opener.is_within_record() {
            true => Err("cut short"),
            false => Ok(found),
        }
    }

    fn sealed(sealer: &mut Sealer, bodies: &[&[u8]]) -> Vec<Vec<u8>> {
        let seal = |body: &&[u8]| {
            let before = sealer.sealed.len();
            sealer.seal(|into| into.extend_from_slice(body));
            sealer.sealed[before..].to_vec()
        };
        bodies.iter().map(seal).collect()
    }

    #[test]
    fn what_is_sealed_is_opened_however_it_is_cut() {
        let large: Vec<u8> = (0..BODY_MAX).map(|i| (i % 251) as u8).collect();
        let bodies = [&b"a"[..], &large, b"some bytes", &large[..7000], b"end"];
        let records = sealed(&mut Sealer::new(secret()), &bodies).concat();
        for pieces in [&[1 << 20][..], &[1, 3, 20_000], &[7], &[LENGTH, 1, TAG], &[65_000, 1]] {
            assert!(opened(&records, pieces).unwrap() == bodies.concat(), "{pieces:?}");
        }
    }

    #[test]
    fn nothing_that_was_tampered_with_is_opened() {
        let records = sealed(
            &mut Sealer::new(secret()),
            &[b"one", b"three", b"second to last", b"last"],
        );
        let all = records.concat();
        assert!(opened(&all, &[1 << 20]).is_ok());
        for bit in 0..all.len() * 8 {
            let mut bad = all.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(opened(&bad, &[1 << 20]).is_err(), "bit {bit}");
        }
        let [one, three, second, last] = &records[..] else {
            unreachable!()
        };
        for order in [
            [three, one, second, last],
            [one, one, second, last],
            [one, second, last, last],
            [one, three, last, second],
        ] {
            assert!(opened(&order.map(|record| &record[..]).concat(), &[1 << 20]).is_err());
        }
        for len in 1..last.len() {
            assert_eq!(opened(&all[..all.len() - len], &[1 << 20]), Err("cut short"));
        }
    }

    #[test]
    fn keys_change_before_they_are_worn() {
        let (mut sealer, mut opener) = (Sealer::new(secret()), Opener::new(secret()));
        (sealer.keys.records, opener.keys.records) = (RECORDS_MAX - 2, RECORDS_MAX - 2);
        for body in [b"last but one", b"last of them", b"the next one", b"and another!"] {
            let records = sealed(&mut sealer, &[body]).concat();
            opener.buffer[..records.len()].copy_from_slice(&records);
            opener.received = 0..records.len();
            assert_eq!(opener.open_next(), Ok(true));
            assert_eq!(opener.bytes(), body);
            opener.take(body.len());
        }
        assert_eq!((sealer.keys.records, opener.keys.records), (2, 2));
    }
}
