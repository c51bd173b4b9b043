//! The bytes of a pool as a tree of shared pages: cloning is cheap, writing copies the pages it touches.

use std::sync::Arc;

pub(super) const PAGE: usize = 4096;
const CHUNK_PAGES: usize = 128;

#[derive(Clone)]
struct Page([u8; PAGE]);

#[derive(Clone)]
struct Chunk([Option<Arc<Page>>; CHUNK_PAGES]);

static ZERO_PAGE: [u8; PAGE] = [0; PAGE];

/// The contents of a whole pool at one moment, for instance after a power cut. Clones share their pages.
#[derive(Clone)]
pub struct CrashImage {
    len: u64,
    /// Absent chunks and pages are zeros.
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl CrashImage {
    /// `len` zero bytes.
    pub fn zeroed(len: u64) -> CrashImage {
        assert!(len > 0, "a pool has at least one byte");
        let chunks = len.div_ceil((CHUNK_PAGES * PAGE) as u64);
        CrashImage {
            len,
            chunks: vec![None; usize::try_from(chunks).expect("simulated pools fit in memory")],
        }
    }

    /// These bytes.
    pub fn from_bytes(bytes: &[u8]) -> CrashImage {
        let mut image = CrashImage::zeroed(bytes.len() as u64);
        for (page, bytes) in bytes.chunks(PAGE).enumerate() {
            if bytes.iter().any(|b| *b != 0) {
                image.page_mut(page)[..bytes.len()].copy_from_slice(bytes);
            }
        }
        image
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.len
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
    }

    /// All bytes, in one allocation of the pool's size.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// Page, when it was ever written.
    #[inline]
    pub(super) fn page(&self, page: usize) -> Option<&[u8; PAGE]> {
        let chunk = self.chunks[page / CHUNK_PAGES].as_ref()?;
        chunk.0[page % CHUNK_PAGES].as_ref().map(|p| &p.0)
    }

    /// Page, zeros when it was never written.
    #[inline]
    pub(super) fn page_or_zeros(&self, page: usize) -> &[u8; PAGE] {
        self.page(page).unwrap_or(&ZERO_PAGE)
    }

    /// Page to write to; ours alone afterwards.
    #[inline]
    pub(super) fn page_mut(&mut self, page: usize) -> &mut [u8; PAGE] {
        let chunk =
            self.chunks[page / CHUNK_PAGES].get_or_insert_with(|| Arc::new(Chunk([const { None }; CHUNK_PAGES])));
        let page = Arc::make_mut(chunk).0[page % CHUNK_PAGES].get_or_insert_with(|| Arc::new(Page([0; PAGE])));
        &mut Arc::make_mut(page).0
    }

    /// Takes over a page of another image of the same pool, by sharing it.
    pub(super) fn share_page(&mut self, from: &CrashImage, page: usize) {
        let (chunk, slot) = (page / CHUNK_PAGES, page % CHUNK_PAGES);
        let theirs = from.chunks[chunk].as_ref().and_then(|c| c.0[slot].clone());
        let ours = self.chunks[chunk].get_or_insert_with(|| Arc::new(Chunk([const { None }; CHUNK_PAGES])));
        Arc::make_mut(ours).0[slot] = theirs;
    }
}

impl std::fmt::Debug for CrashImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrashImage")
            .field("len", &self.len)
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
        at += len as u64;
        Some(piece)
    })
}
