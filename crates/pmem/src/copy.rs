//! Copies between DRAM and a mapping that other processes (or a network card) may change at the same time.
//!
//! A mapping is no Rust object: it is touched through raw pointers only. Every copy here is enclosed in compiler
//! barriers, so the compiler can neither read the mapping twice where the caller asked once (a value that was checked
//! is the value that is used) nor move copies across each other, across atomics or across cache instructions.
//!
//! What a racing copy sees: aligned 8-byte words of the mapping are not torn, everything larger may be. That is more
//! than memcpy gives, whose accesses are aligned on the other side, or overlap: hence loops of our own, aligned on the
//! side of the mapping. (Vector accesses are not promised to be single by the manuals beyond 16 bytes, but no CPU takes
//! them apart below an aligned word.)

use crate::CACHE_LINE;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const LINE: usize = CACHE_LINE as usize;
const WORD: usize = 8;

/// Makes the compiler assume that any memory may have been read and written here. Costs nothing.
#[inline(always)]
fn compiler_barrier() {
    // SAFETY: empty. Without `nomem` the block counts as an access to all memory that has escaped.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) };
}

/// Widest vector registers of this CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vector {
    /// 64 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 32 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16 bytes.
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// None that we use: copies by words, no non-temporal stores.
    #[cfg(not(target_arch = "x86_64"))]
    Words,
}

/// A loop over lines of 64 bytes: loads, then stores. One register counts, from minus the length up to the end at 0.
///
/// All of the first sixteen vector registers count as changed, each named by its lowest part, which stands for the whole:
/// `vzeroupper` clears the upper parts of those as well that the loop does not use. So do the flags, by default.
#[cfg(target_arch = "x86_64")]
macro_rules! line_loops {
    ($($copy:ident [$($load:literal),+] [$($store:literal),+] $leave:literal;)+) => {$(
        /// # Safety
        /// `lines > 0` lines can be read at `src` and written at `dst`, `dst` is aligned to a line if the stores are
        /// non-temporal, and the CPU has the instructions.
        unsafe fn $copy(dst: *mut u8, src: *const u8, lines: usize) {
            // SAFETY: reads and writes `lines * 64` bytes; every register that it changes is declared.
            unsafe {
                std::arch::asm!(
                    "2:", $($load,)+ $($store,)+ "add {at}, 64", "jnz 2b", $leave,
                    src = in(reg) src.add(lines * LINE), dst = in(reg) dst.add(lines * LINE),
                    at = inout(reg) (lines * LINE).wrapping_neg() => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _, options(nostack),
                );
            }
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
line_loops! {
    move_avx512 ["vmovdqu64 zmm0, [{src} + {at}]"] ["vmovdqu64 [{dst} + {at}], zmm0"] "vzeroupper";
    stream_avx512 ["vmovdqu64 zmm0, [{src} + {at}]"] ["vmovntdq [{dst} + {at}], zmm0"] "vzeroupper";
    move_avx2
        ["vmovdqu ymm0, [{src} + {at}]", "vmovdqu ymm1, [{src} + {at} + 32]"]
        ["vmovdqu [{dst} + {at}], ymm0", "vmovdqu [{dst} + {at} + 32], ymm1"] "vzeroupper";
    stream_avx2
        ["vmovdqu ymm0, [{src} + {at}]", "vmovdqu ymm1, [{src} + {at} + 32]"]
        ["vmovntdq [{dst} + {at}], ymm0", "vmovntdq [{dst} + {at} + 32], ymm1"] "vzeroupper";
    move_sse2
        ["movdqu xmm0, [{src} + {at}]", "movdqu xmm1, [{src} + {at} + 16]",
         "movdqu xmm2, [{src} + {at} + 32]", "movdqu xmm3, [{src} + {at} + 48]"]
        ["movdqu [{dst} + {at}], xmm0", "movdqu [{dst} + {at} + 16], xmm1",
         "movdqu [{dst} + {at} + 32], xmm2", "movdqu [{dst} + {at} + 48], xmm3"]
        "";
    stream_sse2
        ["movdqu xmm0, [{src} + {at}]", "movdqu xmm1, [{src} + {at} + 16]",
         "movdqu xmm2, [{src} + {at} + 32]", "movdqu xmm3, [{src} + {at} + 48]"]
        ["movntdq [{dst} + {at}], xmm0", "movntdq [{dst} + {at} + 16], xmm1",
         "movntdq [{dst} + {at} + 32], xmm2", "movntdq [{dst} + {at} + 48], xmm3"]
        "";
}

/// Zeroes lines past the cache. The widest register gains nothing here that would be worth three loops.
///
/// # Safety
/// `lines > 0` lines can be written at `dst`, which is aligned to a line.
#[cfg(target_arch = "x86_64")]
unsafe fn zero_sse2(dst: *mut u8, lines: usize) {
    // SAFETY: writes `lines * 64` bytes; SSE2 is part of x86-64.
    unsafe {
        std::arch::asm!(
            "pxor xmm0, xmm0",
            "2:",
            "movntdq [{dst}], xmm0", "movntdq [{dst} + 16], xmm0", "movntdq [{dst} + 32], xmm0",
            "movntdq [{dst} + 48], xmm0",
            "add {dst}, 64", "dec {lines}", "jnz 2b",
            dst = inout(reg) dst => _, lines = inout(reg) lines => _, out("xmm0") _, options(nostack),
        );
    }
}

/// One side of a copy is the mapping; the other is plain memory.
#[derive(Clone, Copy)]
enum Mapped {
    Source,
    Destination,
}

/// Copies one byte, the mapping's side atomically.
///
/// # Safety
/// Both are valid.
#[inline(always)]
unsafe fn copy_byte(dst: *mut u8, src: *const u8, mapped: Mapped) {
    // SAFETY: the caller's; a byte is always aligned.
    unsafe {
        match mapped {
            Mapped::Source => *dst = AtomicU8::from_ptr(src.cast_mut()).load(Ordering::Relaxed),
            Mapped::Destination => AtomicU8::from_ptr(dst).store(*src, Ordering::Relaxed),
        }
    }
}

/// Copies `words` words, the mapping's side atomically.
///
/// # Safety
/// Both ranges are valid, the mapping's side is aligned to 8.
#[inline(always)]
unsafe fn copy_words(dst: *mut u8, src: *const u8, words: usize, mapped: Mapped) {
    for at in 0..words {
        // SAFETY: the caller's; the plain side may be unaligned.
        unsafe {
            let (dst, src) = (dst.cast::<u64>().add(at), src.cast::<u64>().add(at));
            match mapped {
                Mapped::Source => {
                    dst.write_unaligned(AtomicU64::from_ptr(src.cast_mut()).load(Ordering::Relaxed));
                }
                Mapped::Destination => AtomicU64::from_ptr(dst).store(src.read_unaligned(), Ordering::Relaxed),
            }
        }
    }
}

/// Copies that are shorter than this go by words.
const BY_LINES_FROM: usize = 3 * LINE;
/// Copies of so many lines (64 KiB) go on at several places in turn. A processor fetches ahead only up to the end of a page;
/// where one place waits for its next page, the others' lines are on their way. Measured: from 14 to 19 GB/s out of memory,
/// from 24 to 28 out of the last cache; nothing below this.
const INTERLEAVED_FROM: usize = 1024;
/// How many places.
const PLACES: usize = 4;
/// Lines that are copied at one place before it is the next one's turn.
const INTERLEAVE: usize = 8;

impl Vector {
    /// The widest that this CPU has.
    pub(crate) fn detect() -> Vector {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                Vector::Avx512
            } else if std::arch::is_x86_feature_detected!("avx2") {
                Vector::Avx2
            } else {
                Vector::Sse2
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Vector::Words
    }

    /// Copies `len` bytes out of a mapping.
    ///
    /// # Safety
    /// Both ranges are valid and do not overlap; `src` is in the mapping, `dst` is not; `self` is from
    /// [`Vector::detect`].
    #[inline(always)]
    pub(crate) unsafe fn copy_out(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's.
        unsafe { self.copy(dst, src, len, Mapped::Source) }
    }

    /// Copies `len` bytes into a mapping.
    ///
    /// # Safety
    /// As for [`Vector::copy_out`], with the mapping on the other side.
    #[inline(always)]
    pub(crate) unsafe fn copy_in(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's.
        unsafe { self.copy(dst, src, len, Mapped::Destination) }
    }

    #[inline(always)]
    unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize, mapped: Mapped) {
        compiler_barrier();
        // SAFETY: the caller's.
        unsafe {
            if len < BY_LINES_FROM {
                copy_short(dst, src, len, mapped);
            } else {
                self.copy_long(dst, src, len, mapped);
            }
        }
        compiler_barrier();
    }

    /// # Safety
    /// As for [`Vector::copy_out`]; `len` is at least two lines.
    #[inline(never)]
    unsafe fn copy_long(self, dst: *mut u8, src: *const u8, len: usize, mapped: Mapped) {
        let aligned = match mapped {
            Mapped::Source => src,
            Mapped::Destination => dst.cast_const(),
        };
        let (head, lines, tail) = split(aligned, len);
        // SAFETY: head + lines * 64 + tail == len, so all parts lie in the caller's ranges.
        unsafe {
            copy_short(dst, src, head, mapped);
            let (to, from) = (dst.add(head), src.add(head));
            let mut done = 0;
            if lines >= INTERLEAVED_FROM {
                let part = lines / (PLACES * INTERLEAVE) * INTERLEAVE;
                for at in (0..part).step_by(INTERLEAVE) {
                    for place in 0..PLACES {
                        let at = (place * part + at) * LINE;
                        self.copy_lines(to.add(at), from.add(at), INTERLEAVE, mapped);
                    }
                }
                done = PLACES * part;
            }
            if done < lines {
                self.copy_lines(to.add(done * LINE), from.add(done * LINE), lines - done, mapped);
            }
            copy_short(to.add(lines * LINE), from.add(lines * LINE), tail, mapped);
        }
    }

    /// # Safety
    /// `lines > 0` lines can be read at `src` and written at `dst`; the mapping's side is aligned to a line.
    #[inline(always)]
    unsafe fn copy_lines(self, dst: *mut u8, src: *const u8, lines: usize, mapped: Mapped) {
        // SAFETY: the caller's; the CPU has the instructions because `detect` saw them.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Vector::Avx512 => move_avx512(dst, src, lines),
                #[cfg(target_arch = "x86_64")]
                Vector::Avx2 => move_avx2(dst, src, lines),
                #[cfg(target_arch = "x86_64")]
                Vector::Sse2 => move_sse2(dst, src, lines),
                #[cfg(not(target_arch = "x86_64"))]
                Vector::Words => copy_words(dst, src, lines * (LINE / WORD), mapped),
            }
            #[cfg(target_arch = "x86_64")]
            let _ = mapped;
        }
    }

    /// Copies `len` bytes into a mapping, past the cache. Weakly ordered: a fence has to follow before anyone is told
    /// about the bytes. Returns how many bytes at the start and at the end went through the cache (and want a flush).
    ///
    /// # Safety
    /// As for [`Vector::copy_in`].
    pub(crate) unsafe fn stream_in(self, dst: *mut u8, src: *const u8, len: usize) -> (usize, usize) {
        let (head, lines, tail) = split(dst, len);
        // SAFETY: head + lines * 64 + tail == len, so all parts lie in the caller's ranges; `dst + head` is aligned to
        // a line; the CPU has the instructions because `detect` saw them.
        unsafe {
            copy_short(dst, src, head, Mapped::Destination);
            let (to, from) = (dst.add(head), src.add(head));
            if lines > 0 {
                match self {
                    #[cfg(target_arch = "x86_64")]
                    Vector::Avx512 => stream_avx512(to, from, lines),
                    #[cfg(target_arch = "x86_64")]
                    Vector::Avx2 => stream_avx2(to, from, lines),
                    #[cfg(target_arch = "x86_64")]
                    Vector::Sse2 => stream_sse2(to, from, lines),
                    #[cfg(not(target_arch = "x86_64"))]
                    Vector::Words => copy_words(to, from, lines * (LINE / WORD), Mapped::Destination),
                }
            }
            copy_short(to.add(lines * LINE), from.add(lines * LINE), tail, Mapped::Destination);
        }
        compiler_barrier();
        through_cache(head, lines, tail)
    }

    /// Zeroes `len` bytes of a mapping past the cache; otherwise as [`Vector::stream_in`].
    ///
    /// # Safety
    /// The range is valid; `self` is from [`Vector::detect`].
    pub(crate) unsafe fn stream_zeros(self, dst: *mut u8, len: usize) -> (usize, usize) {
        static ZEROS: [u8; LINE] = [0; LINE];
        let (head, lines, tail) = split(dst, len);
        compiler_barrier();
        // SAFETY: as in `stream_in`; head and tail are shorter than a line.
        unsafe {
            copy_short(dst, ZEROS.as_ptr(), head, Mapped::Destination);
            let to = dst.add(head);
            #[cfg(target_arch = "x86_64")]
            if lines > 0 {
                zero_sse2(to, lines);
            }
            #[cfg(not(target_arch = "x86_64"))]
            for line in 0..lines {
                copy_words(to.add(line * LINE), ZEROS.as_ptr(), LINE / WORD, Mapped::Destination);
            }
            copy_short(to.add(lines * LINE), ZEROS.as_ptr(), tail, Mapped::Destination);
        }
        compiler_barrier();
        through_cache(head, lines, tail)
    }
}

/// Copies by words, and by bytes up to the first and from the last word boundary of the mapping.
///
/// # Safety
/// Both ranges are valid and do not overlap.
#[inline(always)]
unsafe fn copy_short(dst: *mut u8, src: *const u8, len: usize, mapped: Mapped) {
    let start = match mapped {
        Mapped::Source => src as usize,
        Mapped::Destination => dst as usize,
    };
    let head = (start.wrapping_neg() & (WORD - 1)).min(len);
    let words = (len - head) / WORD;
    debug_assert!(words == 0 || (start + head).is_multiple_of(WORD), "words are aligned");
    // SAFETY: all parts lie in the caller's ranges; after `head` the mapping's side is aligned, or nothing is left.
    unsafe {
        for at in 0..head {
            copy_byte(dst.add(at), src.add(at), mapped);
        }
        copy_words(dst.add(head), src.add(head), words, mapped);
        for at in head + words * WORD..len {
            copy_byte(dst.add(at), src.add(at), mapped);
        }
    }
}

#[inline]
fn through_cache(head: usize, lines: usize, tail: usize) -> (usize, usize) {
    if cfg!(target_arch = "x86_64") {
        (head, tail)
    } else {
        (head + lines * LINE, tail)
    }
}

/// Splits into bytes before the first line boundary, whole lines, and the rest.
#[inline]
fn split(start: *const u8, len: usize) -> (usize, usize, usize) {
    let head = ((start as usize).wrapping_neg() & (LINE - 1)).min(len);
    let lines = (len - head) / LINE;
    debug_assert!(
        lines == 0 || (start as usize + head).is_multiple_of(LINE),
        "lines are aligned"
    );
    (head, lines, len - head - lines * LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variants() -> Vec<Vector> {
        let mut all = vec![Vector::detect()];
        #[cfg(target_arch = "x86_64")]
        {
            all.push(Vector::Sse2);
            if std::arch::is_x86_feature_detected!("avx2") {
                all.push(Vector::Avx2);
            }
        }
        all
    }

    #[test]
    fn every_copy_copies_exactly_its_range() {
        let src: Vec<u8> = (0..2048u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let long = [191, 192, 193, 255, 256, 640, 1000, 1024];
        for how in variants() {
            for len in (0..=130).chain(long) {
                for (to, from) in [
                    (0, 0),
                    (1, 3),
                    (63, 1),
                    (64, 5),
                    (7, 9),
                    (33, 0),
                    (5, 5),
                    (8, 16),
                    (0, 63),
                ] {
                    let check = |what: &str, expected: &[u8], copy: &dyn Fn(*mut u8, *const u8)| {
                        let mut dst = vec![0xEE; 2048];
                        // In the vectors, whatever `to` and `from` are.
                        copy(dst[to..to + len].as_mut_ptr(), src[from..from + len].as_ptr());
                        crate::persistence::fence();
                        assert_eq!(&dst[to..to + len], expected, "{what} {how:?} {to} {from} {len}");
                        let around = dst[..to].iter().chain(&dst[to + len..]);
                        assert_eq!(
                            around.filter(|b| **b != 0xEE).count(),
                            0,
                            "{what} {how:?} {to} {from} {len}"
                        );
                    };
                    let expected = &src[from..from + len];
                    // SAFETY: (all four) both ranges lie in the vectors.
                    check("out", expected, &|dst, src| unsafe { how.copy_out(dst, src, len) });
                    // SAFETY: as above.
                    check("in", expected, &|dst, src| unsafe { how.copy_in(dst, src, len) });
                    check("stream", expected, &|dst, src| {
                        // SAFETY: as above.
                        let (head, tail) = unsafe { how.stream_in(dst, src, len) };
                        assert!(head + tail <= len);
                    });
                    check("zeros", &vec![0; len], &|dst, _| {
                        // SAFETY: as above.
                        let (head, tail) = unsafe { how.stream_zeros(dst, len) };
                        assert!(head + tail <= len);
                    });
                }
            }
        }
    }

    #[test]
    fn a_copy_at_several_places_in_turn_leaves_nothing_out() {
        const AROUND: usize = 100;
        let most = 70_000 * 4;
        let src: Vec<u8> = (0..most as u32 / 4).flat_map(|word| word.to_le_bytes()).collect();
        for how in variants() {
            for len in [
                INTERLEAVED_FROM * LINE - 1,
                INTERLEAVED_FROM * LINE,
                INTERLEAVED_FROM * LINE + 77,
                (INTERLEAVED_FROM + 31) * LINE,
                (INTERLEAVED_FROM + PLACES * INTERLEAVE) * LINE + 200,
                most - 7,
            ] {
                for (to, from) in [(0, 0), (3, 0), (0, 5), (8, 7), (63, 1)] {
                    let mut dst = vec![0xEE; AROUND + to + len + AROUND];
                    // SAFETY: both ranges lie in the vectors.
                    unsafe { how.copy_out(dst[AROUND + to..].as_mut_ptr(), src[from..].as_ptr(), len) };
                    let (before, rest) = dst.split_at(AROUND + to);
                    let (copied, after) = rest.split_at(len);
                    assert!(copied == &src[from..from + len], "{how:?} {to} {from} {len}");
                    assert!(
                        before.iter().chain(after).all(|b| *b == 0xEE),
                        "{how:?} {to} {from} {len}"
                    );
                }
            }
        }
    }
}
