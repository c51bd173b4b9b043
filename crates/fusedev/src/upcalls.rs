//! How often the kernel has asked for what.

use crate::abi::opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opcodes below this are counted one by one, all others together.
const COUNTED: usize = 64;

/// Requests of a mount, by opcode.
#[derive(Debug)]
pub struct Upcalls([AtomicU64; COUNTED + 1]);

impl Default for Upcalls {
    fn default() -> Upcalls {
        Upcalls(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Upcalls {
    pub(crate) fn count(&self, opcode: u32) {
        let of_opcode = &self.0[(opcode as usize).min(COUNTED)];
        of_opcode.fetch_add(1, Ordering::Relaxed);
    }

    /// What was asked for at least once, under the kernel's names, and how often.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = self.0.iter().enumerate().map(|(opcode, count)| {
            let name = opcode::name(opcode as u32).unwrap_or("OTHER");
            (name, count.load(Ordering::Relaxed))
        });
        all.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_counted_under_its_name() {
        let upcalls = Upcalls::default();
        for opcode in [opcode::READ, opcode::LOOKUP, opcode::READ, u32::MAX] {
            upcalls.count(opcode);
        }
        let counts: Vec<_> = upcalls.counts().collect();
        assert_eq!(counts, [("LOOKUP", 1), ("READ", 2), ("OTHER", 1)]);
    }
}
