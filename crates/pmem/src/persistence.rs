//! How stores become durable: which cache instruction a medium needs and this CPU has.

#[cfg(target_arch = "x86_64")]
use crate::CACHE_LINE;
use crate::UnknownName;
use strum::{Display, EnumString};

/// How stores become durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Display, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown)]
pub enum Persistence {
    /// Nothing to do (eADR, volatile media): stores need no flush.
    None,
    /// `clwb` + `sfence`: writes back, keeps the line in the cache.
    Clwb,
    /// `clflushopt` + `sfence`: writes back and evicts.
    Clflushopt,
    /// `clflush`: as above, and serialised with each other (old CPUs).
    Clflush,
}

impl Persistence {
    /// The best instruction that this CPU has. `None` only where it has none at all (not x86-64).
    pub fn best() -> Persistence {
        [Persistence::Clwb, Persistence::Clflushopt, Persistence::Clflush]
            .into_iter()
            .find(|p| p.is_supported())
            .unwrap_or(Persistence::None)
    }

    /// True when this CPU can do it.
    pub fn is_supported(self) -> bool {
        match self {
            Persistence::None => true,
            #[cfg(target_arch = "x86_64")]
            _ => {
                use std::arch::x86_64::{__cpuid, __cpuid_count};
                #[allow(unused_unsafe)] // `__cpuid` became safe after our minimum Rust version
                // SAFETY: every x86-64 CPU has the cpuid instruction.
                let (leaves, leaf1) = unsafe { (__cpuid(0).eax, __cpuid(1).edx) };
                #[allow(unused_unsafe)]
                let leaf7 = match leaves {
                    ..7 => 0,
                    // SAFETY: as above; the leaf exists.
                    _ => unsafe { __cpuid_count(7, 0).ebx },
                };
                match self {
                    Persistence::None => true,
                    Persistence::Clwb => leaf7 & 1 << 24 != 0,
                    Persistence::Clflushopt => leaf7 & 1 << 23 != 0,
                    Persistence::Clflush => leaf1 & 1 << 19 != 0,
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Starts write-back of the cache lines that hold `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are mapped, and `self` [is supported](Persistence::is_supported).
    #[inline]
    pub(crate) unsafe fn flush(self, at: *const u8, len: usize) {
        if self == Persistence::None || len == 0 {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        {
            let end = at as usize + len;
            let mut line = at as usize & !(CACHE_LINE as usize - 1);
            macro_rules! lines {
                ($instruction:literal) => {
                    while line < end {
                        // SAFETY: the line is mapped and the CPU has the instruction (contract above). No data changes.
                        unsafe {
                            std::arch::asm!(concat!($instruction, " [{}]"), in(reg) line,
                                options(nostack, preserves_flags));
                        }
                        line += CACHE_LINE as usize;
                    }
                };
            }
            match self {
                Persistence::None => {}
                Persistence::Clwb => lines!("clwb"),
                Persistence::Clflushopt => lines!("clflushopt"),
                Persistence::Clflush => lines!("clflush"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Waits until every earlier flush and non-temporal store of this thread is done, and orders later stores after it.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: sfence is part of x86-64 and touches no data. The asm block is also a barrier for the compiler.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags))
    };
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

fn unknown(name: &str) -> UnknownName {
    UnknownName {
        kind: "persistence",
        given: name.into(),
        known: "none, clwb, clflushopt, clflush",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for p in [
            Persistence::None,
            Persistence::Clwb,
            Persistence::Clflushopt,
            Persistence::Clflush,
        ] {
            assert_eq!(p.to_string().parse::<Persistence>().unwrap(), p);
        }
        let error = "clwd".parse::<Persistence>().unwrap_err().to_string();
        assert!(error.contains("clwd") && error.contains("clflushopt"), "{error}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_x86_can_flush_and_leaves_the_bytes_alone() {
        assert_ne!(Persistence::best(), Persistence::None);
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        for p in [
            Persistence::None,
            Persistence::Clwb,
            Persistence::Clflushopt,
            Persistence::Clflush,
        ] {
            if p.is_supported() {
                // SAFETY: the bytes are ours and the instruction is supported.
                unsafe { p.flush(bytes.as_ptr().add(3), 900) };
                fence();
            }
        }
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == i as u8));
    }
}
