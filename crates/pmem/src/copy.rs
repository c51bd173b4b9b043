//! Copies between DRAM and a mapping that other processes (or a network card) may change at the same time.
//!
//! A mapping is no Rust object: it is touched through raw pointers only. Every copy here is enclosed in compiler
//! barriers, so the compiler can neither read the mapping twice where the caller asked once (a value that was checked
//! is the value that is used) nor move copies across each other, across atomics or across cache instructions. What a
//! racing copy sees is what the hardware gives: aligned 8-byte words are not torn, everything larger may be.

use crate::CACHE_LINE;

/// Makes the compiler assume that any memory may have been read and written here. Costs nothing.
#[inline(always)]
fn compiler_barrier() {
    // SAFETY: empty. Without `nomem` the block counts as an access to all memory that has escaped.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) };
}

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are valid and do not overlap; one of them may be shared memory.
#[inline(always)]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    compiler_barrier();
    // SAFETY: the caller's. Fixed sizes become a few moves, the rest is one call of memcpy.
    unsafe {
        match len {
            8 => dst.copy_from_nonoverlapping(src, 8),
            16 => dst.copy_from_nonoverlapping(src, 16),
            32 => dst.copy_from_nonoverlapping(src, 32),
            64 => dst.copy_from_nonoverlapping(src, 64),
            _ => dst.copy_from_nonoverlapping(src, len),
        }
    }
    compiler_barrier();
}

/// Widest non-temporal store of this CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Streaming {
    /// 64-byte stores.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 32-byte stores.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16-byte stores.
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// No non-temporal stores here: copy and flush.
    #[cfg(not(target_arch = "x86_64"))]
    Plain,
}

const LINE: usize = CACHE_LINE as usize;

#[cfg(target_arch = "x86_64")]
macro_rules! streaming_loops {
    ($copy:ident, $zero:ident, [$($load:literal),+], [$($store:literal),+], $clear:literal, $leave:literal) => {
        /// # Safety
        /// `dst` is aligned to a line; `lines` lines can be read at `src` and written at `dst`; the CPU has the instructions.
        unsafe fn $copy(dst: *mut u8, src: *const u8, lines: usize) {
            // SAFETY: reads and writes `lines * 64` bytes, `lines > 0` (checked by the caller in this file).
            unsafe {
                std::arch::asm!(
                    "2:", $($load,)+ $($store,)+
                    "add {src}, 64", "add {dst}, 64", "dec {lines}", "jnz 2b", $leave,
                    src = inout(reg) src => _, dst = inout(reg) dst => _, lines = inout(reg) lines => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack),
                );
            }
        }
        /// # Safety
        /// As for the copy.
        unsafe fn $zero(dst: *mut u8, lines: usize) {
            // SAFETY: writes `lines * 64` bytes, `lines > 0` (checked by the caller in this file).
            unsafe {
                std::arch::asm!(
                    $clear, "2:", $($store,)+ "add {dst}, 64", "dec {lines}", "jnz 2b", $leave,
                    dst = inout(reg) dst => _, lines = inout(reg) lines => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack),
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
streaming_loops!(
    copy_avx512,
    zero_avx512,
    ["vmovdqu64 zmm0, [{src}]"],
    ["vmovntdq [{dst}], zmm0"],
    "vpxorq zmm0, zmm0, zmm0",
    "vzeroupper"
);
#[cfg(target_arch = "x86_64")]
streaming_loops!(
    copy_avx2,
    zero_avx2,
    ["vmovdqu ymm0, [{src}]", "vmovdqu ymm1, [{src} + 32]"],
    ["vmovntdq [{dst}], ymm0", "vmovntdq [{dst} + 32], ymm1"],
    "vpxor ymm0, ymm0, ymm0\nvpxor ymm1, ymm1, ymm1",
    "vzeroupper"
);
#[cfg(target_arch = "x86_64")]
streaming_loops!(
    copy_sse2,
    zero_sse2,
    [
        "movdqu xmm0, [{src}]",
        "movdqu xmm1, [{src} + 16]",
        "movdqu xmm2, [{src} + 32]",
        "movdqu xmm3, [{src} + 48]"
    ],
    [
        "movntdq [{dst}], xmm0",
        "movntdq [{dst} + 16], xmm1",
        "movntdq [{dst} + 32], xmm2",
        "movntdq [{dst} + 48], xmm3"
    ],
    "pxor xmm0, xmm0\npxor xmm1, xmm1\npxor xmm2, xmm2\npxor xmm3, xmm3",
    ""
);

impl Streaming {
    /// The widest that this CPU has.
    pub(crate) fn detect() -> Streaming {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                Streaming::Avx512
            } else if std::arch::is_x86_feature_detected!("avx2") {
                Streaming::Avx2
            } else {
                Streaming::Sse2
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Streaming::Plain
    }

    /// Copies `len` bytes past the cache. Weakly ordered: a fence has to follow before anyone is told about the bytes.
    /// Returns how many bytes at the start and at the end went through the cache (and want a flush).
    ///
    /// # Safety
    /// Both ranges are valid and do not overlap; `self` came from [`Streaming::detect`].
    pub(crate) unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) -> (usize, usize) {
        let (head, lines, tail) = split(dst, len);
        // SAFETY: head + lines * 64 + tail == len, so all parts lie in the caller's ranges; `dst + head` is aligned to
        // a line; the CPU has the instructions because `detect` saw them.
        unsafe {
            if head > 0 {
                copy(dst, src, head);
            }
            let (to, from) = (dst.add(head), src.add(head));
            if lines > 0 {
                match self {
                    #[cfg(target_arch = "x86_64")]
                    Streaming::Avx512 => copy_avx512(to, from, lines),
                    #[cfg(target_arch = "x86_64")]
                    Streaming::Avx2 => copy_avx2(to, from, lines),
                    #[cfg(target_arch = "x86_64")]
                    Streaming::Sse2 => copy_sse2(to, from, lines),
                    #[cfg(not(target_arch = "x86_64"))]
                    Streaming::Plain => copy(to, from, lines * LINE),
                }
            }
            if tail > 0 {
                copy(to.add(lines * LINE), from.add(lines * LINE), tail);
            }
        }
        self.through_cache(head, lines, tail)
    }

    /// Zeroes `len` bytes past the cache; otherwise as [`Streaming::copy`].
    ///
    /// # Safety
    /// The range is valid; `self` came from [`Streaming::detect`].
    pub(crate) unsafe fn zero(self, dst: *mut u8, len: usize) -> (usize, usize) {
        let (head, lines, tail) = split(dst, len);
        compiler_barrier();
        // SAFETY: as in `copy`.
        unsafe {
            dst.write_bytes(0, head);
            let to = dst.add(head);
            if lines > 0 {
                match self {
                    #[cfg(target_arch = "x86_64")]
                    Streaming::Avx512 => zero_avx512(to, lines),
                    #[cfg(target_arch = "x86_64")]
                    Streaming::Avx2 => zero_avx2(to, lines),
                    #[cfg(target_arch = "x86_64")]
                    Streaming::Sse2 => zero_sse2(to, lines),
                    #[cfg(not(target_arch = "x86_64"))]
                    Streaming::Plain => to.write_bytes(0, lines * LINE),
                }
            }
            to.add(lines * LINE).write_bytes(0, tail);
        }
        compiler_barrier();
        self.through_cache(head, lines, tail)
    }

    #[inline]
    fn through_cache(self, head: usize, _lines: usize, tail: usize) -> (usize, usize) {
        #[cfg(not(target_arch = "x86_64"))]
        return (head + _lines * LINE, tail);
        #[cfg(target_arch = "x86_64")]
        (head, tail)
    }
}

/// Splits into bytes before the first line boundary, whole lines, and the rest.
#[inline]
fn split(dst: *mut u8, len: usize) -> (usize, usize, usize) {
    let head = ((dst as usize).wrapping_neg() & (LINE - 1)).min(len);
    let lines = (len - head) / LINE;
    (head, lines, len - head - lines * LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variants() -> Vec<Streaming> {
        let mut all = vec![Streaming::detect()];
        #[cfg(target_arch = "x86_64")]
        {
            all.push(Streaming::Sse2);
            if std::arch::is_x86_feature_detected!("avx2") {
                all.push(Streaming::Avx2);
            }
        }
        all
    }

    #[test]
    fn every_streaming_copy_copies_exactly_its_range() {
        let src: Vec<u8> = (0..2048u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for how in variants() {
            for (to, from, len) in [
                (0, 0, 0),
                (0, 0, 64),
                (1, 3, 62),
                (63, 1, 2),
                (64, 5, 640),
                (7, 9, 1500),
                (33, 0, 31),
                (5, 5, 1024),
            ] {
                let mut dst = vec![0xEE; 2048];
                let mut zeroed = vec![0xEE; 2048];
                // SAFETY: both ranges lie in the vectors.
                let (head, tail) = unsafe {
                    how.zero(zeroed.as_mut_ptr().add(to), len);
                    how.copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len)
                };
                crate::persistence::fence();
                assert!(head + tail <= len);
                assert_eq!(&dst[to..to + len], &src[from..from + len], "{how:?} {to} {from} {len}");
                assert!(zeroed[to..to + len].iter().all(|b| *b == 0), "{how:?} {to} {len}");
                for out in [&dst, &zeroed] {
                    assert!(
                        out[..to].iter().chain(&out[to + len..]).all(|b| *b == 0xEE),
                        "{how:?} {to} {from} {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn plain_copy_copies_exactly_its_range() {
        let src: Vec<u8> = (0..300u32).map(|i| i as u8).collect();
        for len in (0..=70).chain([128, 255, 256]) {
            let mut dst = vec![0xEE; 300];
            // SAFETY: both ranges lie in the vectors.
            unsafe { copy(dst.as_mut_ptr().add(5), src.as_ptr().add(9), len) };
            assert_eq!(&dst[5..5 + len], &src[9..9 + len]);
            assert!(dst[..5].iter().chain(&dst[5 + len..]).all(|b| *b == 0xEE));
        }
    }
}
