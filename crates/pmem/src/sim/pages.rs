//! The bytes of a pool as a tree of shared pages: cloning is cheap, writing copies the pages it touches.

use std::sync::Arc;

pub(super) const PAGE: usize = 4096;
const LINE: usize = crate::CACHE_LINE as usize;
const CHUNK_PAGES: usize = 128;

#[derive(Clone)]
struct Page([u8; PAGE]);

#[derive(Clone)]
struct Chunk([Option<Arc<Page>>; CHUNK_PAGES]);

static ZERO_PAGE: [u8; PAGE] = [0; PAGE];

/// The bytes of a pool. Clones share their pages.
#[derive(Clone)]
pub(super) struct Pages {
    len: u64,
    /// Absent chunks and pages are zeros.
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl Pages {
    fn zeroed(len: u64) -> Pages {
        assert!(len > 0, "a pool has at least one byte");
        let chunks = len.div_ceil((CHUNK_PAGES * PAGE) as u64);
        Pages {
            len,
            chunks: vec![None; usize::try_from(chunks).expect("simulated pools fit in memory")],
        }
    }

    /// Copies `into.len()` bytes at `offset` out. Panics when they do not lie in the pool.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len() as u64).is_some_and(|end| end <= self.len),
            "outside the image"
        );
        let mut done = 0;
        for piece in pieces(offset, into.len() as u64) {
            let into = &mut into[done..done + piece.len];
            match self.page(piece.page) {
                Some(page) => into.copy_from_slice(&page[piece.start..piece.start + piece.len]),
                None => into.fill(0),
            }
            done += piece.len;
        }
        debug_assert_eq!(done, into.len(), "the pieces have all bytes");
    }

    /// Page, when it was ever written.
    #[inline]
    fn page(&self, page: usize) -> Option<&[u8; PAGE]> {
        let chunk = self.chunks[page / CHUNK_PAGES].as_ref()?;
        chunk.0[page % CHUNK_PAGES].as_ref().map(|p| &p.0)
    }

    /// Page, zeros when it was never written.
    #[inline]
    pub fn page_or_zeros(&self, page: usize) -> &[u8; PAGE] {
        self.page(page).unwrap_or(&ZERO_PAGE)
    }

    /// Page to write to; ours alone afterwards.
    #[inline]
    pub fn page_mut(&mut self, page: usize) -> &mut [u8; PAGE] {
        let chunk =
            self.chunks[page / CHUNK_PAGES].get_or_insert_with(|| Arc::new(Chunk([const { None }; CHUNK_PAGES])));
        let page = Arc::make_mut(chunk).0[page % CHUNK_PAGES].get_or_insert_with(|| Arc::new(Page([0; PAGE])));
        &mut Arc::make_mut(page).0
    }

    fn share_page(&mut self, from: &Pages, page: usize) {
        let (chunk, slot) = (page / CHUNK_PAGES, page % CHUNK_PAGES);
        let theirs = from.chunks[chunk].as_ref().and_then(|c| c.0[slot].clone());
        let ours = self.chunks[chunk].get_or_insert_with(|| Arc::new(Chunk([const { None }; CHUNK_PAGES])));
        Arc::make_mut(ours).0[slot] = theirs;
    }
}

/// The contents of a whole pool at one moment, for instance after a power cut. Clones share their pages.
#[derive(Clone)]
pub struct CrashImage {
    pages: Pages,
    fingerprint: u64,
}

impl CrashImage {
    /// `len` zero bytes.
    pub fn zeroed(len: u64) -> CrashImage {
        CrashImage {
            pages: Pages::zeroed(len),
            fingerprint: 0,
        }
    }

    /// These bytes.
    pub fn from_bytes(bytes: &[u8]) -> CrashImage {
        let mut image = CrashImage::zeroed(bytes.len() as u64);
        for (page, bytes) in bytes.chunks(PAGE).enumerate() {
            for (line, bytes) in bytes.chunks(LINE).enumerate() {
                let mut whole = [0; LINE];
                whole[..bytes.len()].copy_from_slice(bytes);
                image.set_line(page, line, &whole);
            }
        }
        image
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.pages.len
    }

    /// A hash of all bytes, kept up to date line by line: images of one size with different fingerprints differ, those
    /// with the same one are equal, but for an accident of about one in 2^64 a pair.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Copies `into.len()` bytes at `offset` out. Panics when they do not lie in the pool.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.pages.read(offset, into);
    }

    /// All bytes, in one allocation of the pool's size.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.pages.len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Sets a line; a page whose lines stay as they are stays shared.
    pub(super) fn set_line(&mut self, page: usize, line: usize, bytes: &[u8; LINE]) {
        let range = line * LINE..(line + 1) * LINE;
        let there = self.pages.page_or_zeros(page)[range.clone()].try_into();
        let there: &[u8; LINE] = there.expect("a range of a line's length");
        if there == bytes {
            return;
        }
        let at = page * (PAGE / LINE) + line;
        debug_assert!(((at * LINE) as u64) < self.len(), "line {at} lies in the pool");
        self.fingerprint ^= line_hash(at, there) ^ line_hash(at, bytes);
        self.pages.page_mut(page)[range].copy_from_slice(bytes);
    }

    /// Takes over a page by sharing it.
    pub(super) fn share_page(&mut self, from: &Pages, page: usize) {
        debug_assert_eq!(self.pages.len, from.len, "pages of one pool");
        let first = page * (PAGE / LINE);
        for pages in [&self.pages, from] {
            let lines = pages.page_or_zeros(page).as_chunks::<LINE>().0;
            let hashes = (first..).zip(lines).map(|(at, bytes)| line_hash(at, bytes));
            self.fingerprint ^= hashes.fold(0, |all, hash| all ^ hash);
        }
        self.pages.share_page(from, page);
    }
}

/// 0 for a line of zeros, whichever it is: so zeros cost nothing. (Zobrist: A new hashing method, 1970, with a mixing
/// function in place of a table.)
fn line_hash(line: usize, bytes: &[u8; LINE]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    if *bytes == [0; LINE] {
        return 0;
    }
    let start = (line as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // as wyhash: a 64 by 64 bit product folded together, and the sum goes on so that a zero factor forgets nothing
    let z = words.fold(start, |hash, word| {
        let product = u128::from(hash ^ word) * 0xa076_1d64_78bd_642f;
        ((product >> 64) as u64 ^ product as u64).wrapping_add(hash.rotate_left(23))
    });
    let z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

impl std::fmt::Debug for CrashImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrashImage")
            .field("len", &self.pages.len)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// Part of a range that lies in one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub page: usize,
    pub start: usize,
    pub len: usize,
}

/// Cuts a range at page boundaries.
pub(super) fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = (at % PAGE as u64) as usize;
        let len = ((end - at) as usize).min(PAGE - start);
        let piece = Piece {
            page: (at / PAGE as u64) as usize,
            start,
            len,
        };
        debug_assert!(len > 0 && start + len <= PAGE, "a piece lies in its page");
        at += len as u64;
        Some(piece)
    })
}
