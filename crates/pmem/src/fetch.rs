//! Having lines of memory fetched into the cache by whoever knows that they will be needed, but not at once.

/// Has the line that a value begins in fetched, to be read.
#[inline(always)]
pub fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither faults nor changes anything.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Has a line fetched, to be written.
///
/// # Safety
/// The address lies in a mapping.
#[inline(always)]
pub(crate) unsafe fn fetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch neither faults nor changes anything, and does nothing where the processor does not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
